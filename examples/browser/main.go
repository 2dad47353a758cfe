// Command browser serves a page that shows what a hub delivers, over WebSocket and over Server-Sent Events. The page and weir.js, a
// client to copy, are plain files that need no build.
//
//	weir serve --anonymous --listen-http localhost:8080 --origin http://localhost:3000 …
//	go run ./examples/browser localhost:3000
package main

import (
	"embed"
	"fmt"
	"net/http"
	"os"
	"time"
)

//go:embed index.html style.css weir.js
var files embed.FS

func main() {
	address := "localhost:3000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	fmt.Printf("open http://%s; the hub must allow that origin: --origin http://%[1]s\n", address)
	server := &http.Server{Addr: address, Handler: page(), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, "browser:", server.ListenAndServe())
	os.Exit(1)
}

func page() http.Handler { return http.FileServerFS(files) }
