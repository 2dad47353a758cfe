package web

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Client is one who is connected.
type Client struct {
	ID       string    `json:"id"`
	Protocol string    `json:"protocol"`
	Address  string    `json:"address"`
	User     string    `json:"user,omitempty"`
	Name     string    `json:"name,omitempty"` // that it gives itself
	Since    time.Time `json:"since"`
}

// Others are clients of another protocol, which Admin shows and ends too.
type Others interface {
	Clients() []Client
	End(id string) bool
}

var errEnded = errors.New("an operator has ended the connection")

// Admin is the handler for operators alone: /metrics, /healthz, /readyz; GET /clients lists who is connected, DELETE /clients/ID ends a
// client, and DELETE /clients?user=NAME, or address=, all of those. others may be nil. Whoever reaches it may do all of that, but
// pages may not: /clients takes requests for its address or localhost alone.
func (w *Web) Admin(others Others) http.Handler {
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
			fail(http.StatusNotFound, "not_found", "there is no such client", "GET /clients lists them").write(rw)
			return
		}
		reply(rw, http.StatusOK, ended{1})
	})
	mux.HandleFunc("DELETE /clients", func(rw http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); !q.Has("user") && !q.Has("address") {
			badRequest("it is not said whom to end", "name a user or an address: DELETE /clients?user=NAME").write(rw)
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
	apart := &Web{Config: Config{Hosts: []string{}}, metrics: w.metrics}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/clients") && (!apart.named(r) || r.Header.Get("Origin") != "") {
			apart.refuseName(rw, r)
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

type ended struct {
	Ended int `json:"ended"`
}

// chosen returns the clients of the user and the address that the URL names, if it does.
func chosen(all []Client, r *http.Request) []Client {
	q := r.URL.Query()
	return slices.DeleteFunc(all, func(c Client) bool {
		return q.Has("user") && c.User != q.Get("user") || q.Has("address") && c.Address != q.Get("address")
	})
}

// Clients returns the streams that are open.
func (w *Web) Clients() []Client {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Client, 0, len(w.all))
	for s := range w.all {
		all = append(all, Client{ID: s.id(), Protocol: s.kind.name(), Address: s.remote, User: s.user(), Since: s.since})
	}
	return all
}

// End ends a stream, if there is one of the name.
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
