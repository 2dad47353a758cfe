//go:build !linux

package doctor_test

func preferClients() (end func()) { return func() {} }
