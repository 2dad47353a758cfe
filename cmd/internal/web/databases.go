package web

import (
	"slices"
	"sync"
)

// naming is by which names clients reach the database, and how often they have changed: what was granted by others is asked for again.
type naming struct {
	mu      sync.Mutex
	current []string
	changes uint64
}

// are asks for the names, which are not nil if databases is not.
func (n *naming) are(databases func() []string) (current []string, changes uint64) {
	if databases == nil {
		return nil, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if found := databases(); n.current == nil || !slices.Equal(found, n.current) {
		n.current = append([]string{}, found...)
		n.changes++
	}
	return n.current, n.changes
}

// fullName returns the database's full name; "": unknown.
func fullName(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}
