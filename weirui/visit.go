package weirui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

const (
	maxForm  = 1 << 20          // bytes of an action's form: a job's args, above all
	writeFor = 30 * time.Second // how long a client may take to read a page
)

// visit is a request for a page or an action.
type visit struct {
	*http.Request
	ui   *UI
	user User
	db   *database // nil: there is none of this name
	root string    // from the page to the database's first page: "", "../", and so on
	to   string    // where an action sends the browser, below the database; "": back
}

// view is what a page shows.
type view struct {
	template string
	title    string
	data     any // as JSON too
	status   int // 0: 200
}

type userKey struct{}

func withUser(ctx context.Context, u User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// serve answers a request that has been authenticated.
func (u *UI) serve(w http.ResponseWriter, r *http.Request, e endpoint) {
	user, _ := r.Context().Value(userKey{}).(User)
	v := &visit{Request: r, ui: u, user: user, root: rootOf(r.URL.EscapedPath(), u.several)}
	for _, d := range u.list() {
		if !u.several || d.Name == r.PathValue("database") {
			v.db = d
		}
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	// Another site may lead here, but not have its pages read from here: each costs the database something.
	if err := u.origin.Check(r); err != nil || r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		v.show(w, v.failed(&problem{http.StatusForbidden, "This request comes from another site.", "Open the page here, and try again."}))
		return
	}
	unknown := e.unknownField(r.URL.Query())
	switch {
	case user.Role < e.role && u.config.ReadOnly && user.Role == Viewer:
		v.show(w, v.failed(&problem{http.StatusForbidden, "This UI is read-only.", ""}))
	case user.Role < e.role:
		hint := "Ask whoever operates this server for the role " + e.role.String() + "."
		v.show(w, v.failed(&problem{http.StatusForbidden, fmt.Sprintf("Your role is %s, and this needs the role %s.", user.Role, e.role), hint}))
	case !e.all && v.db == nil && r.PathValue("database") == "":
		v.show(w, v.failed(&problem{http.StatusNotFound, "There is no such page.", "This UI shows several databases: their pages are below db/NAME/."}))
	case !e.all && v.db == nil:
		v.show(w, v.failed(&problem{http.StatusNotFound, fmt.Sprintf("There is no database %q here.", r.PathValue("database")), ""}))
	case e.method == http.MethodGet && unknown != nil:
		v.show(w, v.failed(unknown))
	case e.stream != nil:
		if err := e.stream(v, w); err != nil {
			v.show(w, v.failed(err))
		}
	case e.page != nil:
		view, err := e.page(v)
		if err != nil {
			view = v.failed(err)
		}
		v.show(w, view)
	default:
		v.act(w, e)
	}
}

// act does what was asked for, and sends the browser back to where it came from.
func (v *visit) act(w http.ResponseWriter, e endpoint) {
	v.Body = http.MaxBytesReader(w, v.Body, maxForm)
	// What can't be read here would be no condition, and mean more than was meant.
	if form := v.Header.Get("Content-Type"); form != "" && !strings.HasPrefix(form, "application/x-www-form-urlencoded") {
		v.show(w, v.failed(&problem{http.StatusUnsupportedMediaType, fmt.Sprintf("Fields of actions are sent as application/x-www-form-urlencoded, not as %s.", cut(form, 100)), "With curl: -d name=value, or --data-urlencode."}))
		return
	} else if v.URL.RawQuery != "" {
		v.show(w, v.failed(&problem{http.StatusBadRequest, "Fields of actions are sent in the body, not in the address.", "With curl: -d name=value, or --data-urlencode."}))
		return
	}
	if err := v.ParseForm(); err != nil {
		v.show(w, v.failed(&problem{http.StatusBadRequest, "The form can't be read: " + err.Error() + ".", ""}))
		return
	}
	if err := e.unknownField(v.PostForm); err != nil {
		v.show(w, v.failed(err))
		return
	}
	if !v.isSure(e) {
		question, err := v.question(e)
		if err != nil {
			question = v.failed(err)
		}
		v.show(w, question)
		return
	}
	ctx, cancel := context.WithTimeout(v.Context(), actFor)
	defer cancel()
	v.Request = v.WithContext(ctx)
	err := v.db.acts.enter(ctx)
	var said string
	if err == nil {
		said, err = e.action(v)
		v.db.acts.leave()
		v.db.changed()
	}
	attrs := []any{"user", v.user.Name, "database", v.db.Name, "action", v.URL.Path}
	if err != nil {
		v.ui.log.Warn("weir: an action in the UI failed", append(attrs, "error", err)...)
		var form *again
		if errors.As(err, &form) && !v.wantsJSON() {
			v.show(w, form.view)
			return
		}
		v.show(w, v.failed(err))
		return
	}
	v.ui.log.Info("weir: an action in the UI", append(attrs, "said", said)...)
	if v.wantsJSON() {
		answer := map[string]string{"said": said}
		if v.to != "" {
			answer["to"] = v.to
		}
		writeJSON(w, http.StatusOK, answer)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: saidCookie, Value: base64.RawURLEncoding.EncodeToString([]byte(cut(said, 1000))), MaxAge: 60, HttpOnly: true, SameSite: http.SameSiteStrictMode, Path: "/"})
	redirect(w, v.root+cmp.Or(v.to, v.back()))
}

const saidCookie = "weir_said"

// back is where the form wants to go after it, below the database: never to another site.
func (v *visit) back() string {
	to, err := url.Parse(v.PostForm.Get("back"))
	if err != nil || to.IsAbs() || to.Host != "" || strings.HasPrefix(to.EscapedPath(), "/") || strings.Contains(to.Path, `\`) || slices.ContainsFunc(strings.Split(to.EscapedPath(), "/"), isStep) {
		return ""
	}
	return to.String()
}

// isStep reports whether browsers take a part of a path for a step to what is above it.
func isStep(part string) bool {
	part, err := url.PathUnescape(part)
	return err != nil || isDots(part)
}

// here is the page's own address, below the database, for forms to come back to.
func (v *visit) here() string {
	path := strings.TrimPrefix(v.URL.EscapedPath(), "/")
	if v.ui.several {
		path = strings.TrimPrefix(path, "db/"+v.db.Name+"/")
	}
	if v.URL.RawQuery != "" {
		path += "?" + v.URL.RawQuery
	}
	return path
}

// rootOf is the way from a page to the first page of its database, as relative links need it. An escaped slash in the path is part of a name.
func rootOf(path string, several bool) string {
	depth := strings.Count(path, "/") - 1
	if several {
		depth -= strings.Count(databasePath, "/")
	}
	return strings.Repeat("../", max(depth, 0))
}

// show renders a view: as JSON, as a page, or only as the page's content, which the script puts in place of the earlier one.
func (v *visit) show(w http.ResponseWriter, view *view) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeFor)) // a client that doesn't read keeps the page in memory
	status := view.status
	if status == 0 {
		status = http.StatusOK
	}
	if v.wantsJSON() {
		writeJSON(w, status, view.data)
		return
	}
	name := "layout"
	if v.wantsFragment() {
		name = "fragment"
	}
	l := layout{View: view, visit: v}
	if c, err := v.Cookie(saidCookie); err == nil && name == "layout" {
		if said, err := base64.RawURLEncoding.DecodeString(c.Value); err == nil {
			l.Said = string(said)
		}
		http.SetCookie(w, &http.Cookie{Name: saidCookie, MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Path: "/"})
	}
	var page bytes.Buffer
	if err := v.ui.templates.ExecuteTemplate(&page, name, l); err != nil {
		v.ui.log.Error("weir: render a page of the UI", "page", view.template, "error", err)
		http.Error(w, "The page can't be shown: see the server's log.", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	if name == "fragment" {
		sum := sha256.Sum256(page.Bytes())
		tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
		h.Set("ETag", tag)
		if v.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes())
}

// wantsFragment reports whether the script wants the page's content, of which it only uses the live parts.
func (v *visit) wantsFragment() bool { return v.Header.Get("Weir-Fragment") != "" }

// wantsJSON reports whether the client prefers JSON: browsers don't ask for it.
func (v *visit) wantsJSON() bool {
	accept := v.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

func writeJSON(w http.ResponseWriter, status int, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// mayStill reports whether who sent the request may still do what it was for. It is for answers that take long.
func (v *visit) mayStill(role Role) bool {
	user, ok := v.ui.config.Access.Identify(&unheard{http.Header{}}, v.Request)
	return ok && user.Role >= role
}

// unheard is an answer that nobody hears.
type unheard struct{ header http.Header }

func (u *unheard) Header() http.Header          { return u.header }
func (*unheard) Write(text []byte) (int, error) { return len(text), nil }
func (*unheard) WriteHeader(int)                {}

// id returns a number in the path.
func (v *visit) id() (int64, error) {
	n, err := strconv.ParseInt(v.PathValue("id"), 10, 64)
	if err != nil || n < 1 {
		return 0, &problem{http.StatusNotFound, fmt.Sprintf("%q is not an id: ids are numbers.", cut(v.PathValue("id"), 50)), ""}
	}
	return n, nil
}

// onNamed does something with what the path names; none is the error if there is no such thing. said has a place for the name.
func (v *visit) onNamed(said string, do func(ctx context.Context, name string) error, none func(name string) error) (string, error) {
	name := v.name()
	err := do(v.Context(), name)
	if errors.Is(err, weir.ErrNotFound) {
		err = none(name)
	}
	return fmt.Sprintf(said, name), err
}

// cut shortens a text to so many bytes, between two characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
