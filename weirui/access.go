package weirui

import "net/http"

// Role is what a user may do. Each includes those before it.
type Role int

// The roles.
const (
	Nobody   Role = iota
	Viewer        // sees everything that is not redacted or encrypted
	Operator      // and retries, cancels, moves, edits and enqueues jobs, pauses queues and schedules, and runs schedules now
	Admin         // and deletes failed jobs, changes limits, removes schedules, and disconnects clients
)

var roleNames = []string{"nobody", "viewer", "operator", "admin"}

// String returns the role's name.
func (r Role) String() string {
	if r < Nobody || r > Admin {
		return "invalid"
	}
	return roleNames[r]
}

// ParseRole returns the role with this name: viewer, operator or admin.
func ParseRole(name string) (Role, bool) {
	for r := Viewer; r <= Admin; r++ {
		if r.String() == name {
			return r, true
		}
	}
	return Nobody, false
}

// User is who sends a request.
type User struct {
	Name   string // for the log of what was done; "": anonymous
	Role   Role
	Logout string // the path below the UI to which a form is posted that ends the session; "": there is no session to end
}

// Access decides who may use the UI.
type Access interface {
	// Identify returns who sends the request. If it returns false, it has answered the request itself: with a refusal, a redirection
	// to a page where the user logs in, or whatever the way back from there requires. It is called before anything else is read of a request; paths that begin with
	// /auth/ are its own. A page that refreshes itself, in a request with the header Weir-Fragment, is loaded again by the browser if the answer is 401.
	Identify(w http.ResponseWriter, r *http.Request) (User, bool)
}

// Open is an Access that lets everybody in, with a role. It is for servers that only this machine can reach: it accepts only requests to
// localhost and IP addresses by name, so that no web page can reach it under a name of its own.
func Open(role Role) Access { return open{role} }

type open struct{ role Role }

func (o open) Identify(w http.ResponseWriter, r *http.Request) (User, bool) {
	if !isLocalName(r.Host) {
		http.Error(w, "This server has no users, and so answers only to localhost and IP addresses.", http.StatusForbidden)
		return User{}, false
	}
	return User{Role: o.role}, true
}
