// Package weirui is Weir's web UI, as an http.Handler: what waits, runs and fails, with what an operator does about it.
//
//	access, err := weirui.Password(weirui.PasswordConfig{File: "users.txt"})
//	...
//	ui, err := weirui.New(weirui.Config{
//		Databases: []weirui.Database{{Pool: pool}},
//		Access:    access,
//	})
//	...
//	http.Handle("/weir/", http.StripPrefix("/weir", ui))
//
// It may be served at any path, also behind a proxy that changes it, because its pages contain only relative links. It needs no files, no
// other server and no build step, and stores nothing. weir serve contains it: see docs/ui.md.
//
// Each page is also JSON, for requests that accept it: Accept: application/json.
//
// What a page shows is read at most once a second, for all who look at it, and no request counts jobs: a page costs the same at
// ten million jobs as at ten.
package weirui
