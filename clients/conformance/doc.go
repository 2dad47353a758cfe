// Package conformance is one suite of tests for the clients of Weir in all languages. README.md describes the driver that a client needs.
package conformance
