package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Client is a connected client.
type Client struct {
	ID       string    `json:"id"`
	Protocol string    `json:"protocol"`
	Address  string    `json:"address"`
	User     string    `json:"user,omitempty"`
	Name     string    `json:"name,omitempty"` // chosen by the client
	Since    time.Time `json:"since"`
}

// Others are clients of another protocol, which Admin lists and ends too.
type Others interface {
	Clients() []Client
	End(id string) bool
}

var errEnded = errors.New("an operator closed the connection")

// AdminConfig configures the handler for operators. The zero value is valid.
type AdminConfig struct {
	Others Others                 // nil: none
	Users  Users                  // nil: users can't be disconnected from all hubs
	Tokens func() ([]byte, error) // reads the tokens of operators, a token in each line; nil: there are none
}

// Admin returns the handler for operators: /metrics, /healthz, /readyz; GET /clients lists the connected clients, DELETE /clients/ID ends one,
// and DELETE /clients?user=NAME, or address=, ends all that match; POST /users/disconnect and POST /users/revoke end a user's connections at all
// hubs. With tokens, /clients and /users require one. Without, anyone who can reach it may use /clients, except web pages: it only accepts
// requests for its address or localhost; and /users is closed.
func (w *Web) Admin(c AdminConfig) http.Handler {
	others := c.Others
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", w.serveHealth)
	mux.HandleFunc("GET /readyz", w.serveReady)
	mux.Handle("GET /metrics", w.metrics.handler())
	mux.HandleFunc("GET /clients", func(rw http.ResponseWriter, r *http.Request) {
		all := w.Clients()
		if others != nil {
			all = append(all, others.Clients()...)
		}
		reply(rw, http.StatusOK, struct {
			Clients []Client `json:"clients"`
		}{chosen(all, r)})
	})
	end := func(id string) bool { return w.End(id) || others != nil && others.End(id) }
	mux.HandleFunc("DELETE /clients/{id}", func(rw http.ResponseWriter, r *http.Request) {
		if !end(r.PathValue("id")) {
			fail(http.StatusNotFound, "not_found", fmt.Sprintf("client %.50q does not exist", r.PathValue("id")), "GET /clients lists the clients").write(rw)
			return
		}
		reply(rw, http.StatusOK, ended{1})
	})
	mux.HandleFunc("DELETE /clients", func(rw http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); !q.Has("user") && !q.Has("address") {
			badRequest("the request names no clients to end", "name a user or an address: DELETE /clients?user=NAME").write(rw)
			return
		}
		all := w.Clients()
		if others != nil {
			all = append(all, others.Clients()...)
		}
		n := 0
		for _, c := range chosen(all, r) {
			if end(c.ID) {
				n++
			}
		}
		reply(rw, http.StatusOK, ended{n})
	})
	mux.HandleFunc("POST /users/disconnect", w.serveUser(c, false))
	mux.HandleFunc("POST /users/revoke", w.serveUser(c, true))
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if f := c.Admits(r); f != nil {
			if f.Code == "host" {
				w.metrics.refused(f.Code)
			}
			f.write(rw)
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// Admits returns why a request may not be made by whoever makes it; nil: it may. Only AdminConfig.Tokens are used.
func (c AdminConfig) Admits(r *http.Request) *Failure {
	if !strings.HasPrefix(r.URL.Path, "/clients") && !strings.HasPrefix(r.URL.Path, "/users") {
		return nil
	}
	apart := &Web{Config: Config{Hosts: []string{}}}
	if !apart.named(r) || r.Header.Get("Origin") != "" {
		return refusedName(r)
	}
	if c.Tokens != nil {
		return c.isOperator(r)
	}
	return nil
}

type ended struct {
	Ended int `json:"ended"`
}

// chosen returns the clients that match the user and the address in the URL, where given.
func chosen(all []Client, r *http.Request) []Client {
	q := r.URL.Query()
	return slices.DeleteFunc(all, func(c Client) bool {
		return q.Has("user") && c.User != q.Get("user") || q.Has("address") && c.Address != q.Get("address")
	})
}

// Clients lists the open streams.
func (w *Web) Clients() []Client {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Client, 0, len(w.all))
	for s := range w.all {
		all = append(all, Client{ID: s.id(), Protocol: s.kind.name(), Address: s.remote, User: s.user(), Since: s.since})
	}
	return all
}

// End ends the stream with the given id, and reports whether there was one.
func (w *Web) End(id string) bool {
	if !strings.HasPrefix(id, "web-") {
		return false
	}
	w.mu.Lock()
	var found *stream
	for s := range w.all {
		if s.id() == id {
			found = s
		}
	}
	w.mu.Unlock()
	if found == nil {
		return false
	}
	go found.leave(errEnded) // it may have to wait for a write
	return true
}

func (s *stream) id() string { return "web-" + strconv.FormatUint(s.number, 10) }
