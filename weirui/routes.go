package weirui

import (
	"net/http"
	"slices"
	"strings"
)

// endpoint is a page or an action, with the role that it requires.
type endpoint struct {
	method, path string // below a database; no method: there is no such page
	role         Role
	page         func(*visit) (*view, error)             // for GET
	action       func(*visit) (said string, err error)   // for POST; it returns what was done, in a sentence
	all          bool                                    // of all databases together, in no one's
	ask          ask                                     // for an action; nil: it does not ask
	stream       func(*visit, http.ResponseWriter) error // for GET, instead of a page; an error: nothing has been sent
	fields       []string                                // that it reads from the address, or an action from its form
}

// endpoints are all pages and actions: those of each part of the UI are beside it.
func (u *UI) endpoints() []endpoint {
	return slices.Concat(
		[]endpoint{page("{$}", overview).takes("hours")},
		jobEndpoints(),
		bulkEndpoints(),
		failureEndpoints(),
		operationEndpoints(),
		queueEndpoints(),
		historyEndpoints(),
		scheduleEndpoints(),
		flowEndpoints(),
		workerEndpoints(),
		channelEndpoints(),
		storageEndpoints(),
		doctorEndpoints(),
	)
}

func page(path string, f func(*visit) (*view, error)) endpoint {
	return endpoint{method: "GET", path: path, role: Viewer, page: f}
}

func action(role Role, path string, f func(*visit) (string, error)) endpoint {
	return endpoint{method: "POST", path: path, role: role, action: f}
}

// databasePath is what precedes the path of an endpoint, where there are several databases.
const databasePath = "db/{database}/"

func (u *UI) routes() {
	prefix := "/"
	below := func(w http.ResponseWriter, r *http.Request) { redirect(w, lastPart(r.URL.EscapedPath())+"/") } // relative, unlike those of the mux
	if u.several {
		prefix += databasePath
		u.mux.HandleFunc("GET "+strings.TrimSuffix(prefix, "/"), below)
		all := endpoint{method: "GET", role: Viewer, page: showDatabases, all: true, fields: []string{"name"}}
		u.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { u.serve(w, r, all) })
	}
	for _, e := range u.endpoints() {
		if e.ask != nil {
			u.asks[e.path] = e.ask
		}
		u.mux.HandleFunc(e.method+" "+prefix+e.path, func(w http.ResponseWriter, r *http.Request) { u.serve(w, r, e) })
	}
	missing := func(w http.ResponseWriter, r *http.Request) { u.serve(w, r, endpoint{role: Viewer, page: notHere}) }
	u.mux.HandleFunc("/", missing)
	if u.several {
		u.mux.HandleFunc(prefix, missing) // below a database
	}
}

// ServeHTTP implements http.Handler.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // whatever is between may keep nothing but static files
	h.Set("Referrer-Policy", "same-origin")
	if r.URL.Path == "" { // served below a path, which was opened without its slash: relative links need it
		redirect(w, lastPart(r.RequestURI)+"/")
		return
	}
	if strings.HasPrefix(r.URL.Path, "/static/") { // not by the mux, which has pages for paths that only look so, such as static%2fx
		u.static.ServeHTTP(w, r)
		return
	}
	user, ok := u.config.Access.Identify(w, r)
	if !ok {
		return
	}
	if u.config.ReadOnly && user.Role > Viewer {
		user.Role = Viewer
	}
	u.mux.ServeHTTP(w, r.WithContext(withUser(r.Context(), user)))
}

// lastPart is the last part of a path, without its query.
func lastPart(uri string) string {
	path, _, _ := strings.Cut(uri, "?")
	return path[strings.LastIndexByte(path, '/')+1:]
}

// redirect sends the browser to an address that is relative to the one that it has asked for.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}
