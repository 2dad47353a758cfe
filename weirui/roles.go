package weirui

import "fmt"

// Roles says who has which role, by what an authority says about its users: their groups, or their names. Everyone is the entry for all others.
// Without entries, the authority names roles themselves: viewer, operator or admin.
type Roles map[string]Role

// Everyone is the entry of Roles for users of whom no other entry speaks.
const Everyone = "*"

// Of returns the greatest role that any of the values gives, or Nobody.
func (r Roles) Of(values ...string) Role {
	greatest := Nobody
	for _, value := range values {
		role, ok := r[value]
		if len(r) == 0 {
			role, ok = ParseRole(value)
		}
		if ok && value != Everyone {
			greatest = max(greatest, role)
		}
	}
	if greatest == Nobody {
		greatest = r[Everyone]
	}
	return greatest
}

// check returns an error if an entry is of no use.
func (r Roles) check() error {
	for value, role := range r {
		if value == "" || role < Viewer || role > Admin {
			return fmt.Errorf("%q has the role %q: give it viewer, operator or admin", value, role)
		}
	}
	return nil
}
