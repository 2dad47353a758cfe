// Package deploy tests the files in this directory, which deploy Weir: each is read by the parser of the program that it is for, and what it
// starts is started, with those very flags, and asked at the endpoints that are named there.
//
// It is a module of its own, outside of the workspace, for it needs those parsers, which nobody else should:
//
//	cd deploy && GOWORK=off go test ./...
package deploy
