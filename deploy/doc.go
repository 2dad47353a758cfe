// Package deploy tests the files in this directory, which deploy Weir: each is parsed with the parser of the program that reads it, the
// commands it starts are run with the same flags, and the endpoints it names are queried.
//
// It is a separate module, outside the workspace, because only these tests should depend on those parsers:
//
//	cd deploy && GOWORK=off go test ./...
package deploy
