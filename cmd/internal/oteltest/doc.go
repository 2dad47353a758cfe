// Package oteltest tests package weirotel with OpenTelemetry's SDK. The tests are not in weirotel's own module, because a module brings its
// users what its tests require: weirotel brings them OpenTelemetry's API alone.
package oteltest
