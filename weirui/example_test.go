package weirui_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// The UI is an http.Handler, at any path of your own server. Its users are in a file, with verifiers of their passwords.
func Example() {
	pool, err := pgxpool.New(context.Background(), pgtest.Shared("weirui-example"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	line, err := weirui.UserLine("ada", weirui.Operator, "correct horse battery staple") // weir ui-password prints it
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weirui")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "users.txt")
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		log.Fatal(err)
	}

	access, err := weirui.Password(weirui.PasswordConfig{File: file})
	if err != nil {
		log.Fatal(err)
	}
	ui, err := weirui.New(weirui.Config{
		Databases: []weirui.Database{{Pool: pool}},
		Access:    access,
		Redact:    slices.Concat(weirui.DefaultRedact, []string{"birthday"}),
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/weir/", http.StripPrefix("/ops/weir", ui))
	server := httptest.NewServer(mux) // in your program: http.ListenAndServe
	defer server.Close()

	request, err := http.NewRequest("GET", server.URL+"/ops/weir/queues", nil)
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Accept", "application/json") // each page is JSON, too
	for _, password := range []string{"a guess", "correct horse battery staple"} {
		request.SetBasicAuth("ada", password)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s", answer.StatusCode, text)
	}
	// Output:
	// 401 The name or the password is wrong.
	// 200 {"queues":[],"total":0,"found":0}
}
