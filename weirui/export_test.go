package weirui

import "testing"

// Endpoint is what tests know of an endpoint.
type Endpoint struct {
	Method, Path string
	Role         Role
}

// Endpoints lists all pages and actions.
func Endpoints(testing.TB) (all []Endpoint) {
	for _, e := range (&UI{}).endpoints() {
		all = append(all, Endpoint{e.method, e.path, e.role})
	}
	return all
}
