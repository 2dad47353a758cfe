package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-pg/weir/internal/connstring"
)

// listing is the list of databases, as last read.
type listing struct {
	members []*member            // in its order
	named   map[string][]*member // by short and full names
}

// newListing tells the databases by which names they can be reached from now on. A short name that several have stands for none of them: a token that was issued for one must not
// become one for another.
func newListing(members []*member) *listing {
	l := &listing{members: members, named: map[string][]*member{}}
	for _, d := range members {
		if d.err != nil {
			continue
		}
		l.named[d.full] = append(l.named[d.full], d)
		if d.short != d.full {
			l.named[d.short] = append(l.named[d.short], d)
		}
	}
	for _, d := range members {
		names := []string{d.full}
		if len(fullNames(l.named[d.short])) == 1 && d.short != d.full {
			names = append(names, d.short)
		}
		d.names.Store(&names)
	}
	return l
}

// fullNames returns the different full names of databases.
func fullNames(all []*member) []string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.full
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nameError says that no database has a name, or several have.
type nameError struct{ text, hint string }

func (e *nameError) Error() string { return e.text }

const namesShown = 5

// find returns the database with a name.
func (m *Many) find(name string) (*member, error) {
	found := m.list.Load().named[connstring.Plain(name)]
	names := fullNames(found)
	switch len(names) {
	case 0:
		return nil, &nameError{fmt.Sprintf("no database that is served here has the name %.63q", name), "the name is that of the database, such as app, or, if several have it, with the host and port, such as app.db1-5432"}
	case 1:
		return found[0], nil // others lead to the same place as other users
	}
	text := strings.Join(names[:min(len(names), namesShown)], ", ")
	if more := len(names) - namesShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return nil, &nameError{fmt.Sprintf("several databases have the name %.63q", name), "use one of their full names: " + text}
}
