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

// newListing tells the databases by which names they can be reached from now on. A name that several have stands for none of them: a token that was issued for one must not become
// one for another.
func newListing(members []*member) *listing {
	l := &listing{members: members, named: map[string][]*member{}}
	for _, d := range members {
		if d.err == nil && !d.missing {
			l.named[d.Full] = append(l.named[d.Full], d)
			l.named[d.Short] = append(l.named[d.Short], d)
		}
	}
	for _, d := range members {
		if d.err != nil || !d.missing {
			continue
		}
		had := *d.names.Load()
		for _, name := range []string{d.Full, d.Short} {
			taken := l.named[name]
			// Its name leads to another database if it has moved there, say, so that its line is another one now. A name that stood for none of several does so until they are gone.
			if taken == nil || taken[0].Place == d.Place || !slices.Contains(had, name) {
				l.named[name] = append(taken, d)
			}
		}
	}
	for _, d := range members {
		names := []string{}
		if d.err != nil {
			d.names.Store(&names)
			continue
		}
		for _, name := range []string{d.Full, d.Short} {
			if all := l.named[name]; one(all) && slices.Contains(all, d) {
				names = append(names, name)
			}
		}
		d.names.Store(&names)
	}
	return l
}

// one reports whether all lead to one place, as different users.
func one(all []*member) bool {
	return !slices.ContainsFunc(all, func(d *member) bool { return d.Place != all[0].Place })
}

// nameError says that no database has a name, or several have.
type nameError struct{ text, hint string }

func (e *nameError) Error() string { return e.text }

const namesShown = 5

// find returns the database with a name.
func (m *Many) find(name string) (*member, error) {
	found := m.list.Load().named[connstring.Plain(name)]
	switch {
	case len(found) == 0:
		return nil, &nameError{fmt.Sprintf("no database that is served here has the name %.63q", name), "the name is that of the database, such as app, or, if several have it, with the host and port, such as app.db1-5432"}
	case one(found): // the one that runs, if there are several, as different users
		if i := slices.IndexFunc(found, func(d *member) bool { return d.running() != nil }); i > 0 {
			return found[i], nil
		}
		return found[0], nil
	}
	return nil, &nameError{fmt.Sprintf("several databases have the name %.63q", name), "use the full name, with the host and port, such as app.db1-5432"}
}

// shared returns the names that stand for no database because several have them, each with their full names. They are for the log alone: who has not logged in yet need not know hosts.
func (l *listing) shared() map[string]string {
	all := map[string]string{}
	for name, found := range l.named {
		if one(found) {
			continue
		}
		var names []string
		for _, d := range found {
			names = append(names, d.Full)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		all[name] = strings.Join(names[:min(len(names), namesShown)], ", ")
		if more := len(names) - namesShown; more > 0 {
			all[name] += fmt.Sprintf(" and %d more", more)
		}
	}
	return all
}
