package work

// Holds reports whether this hub holds an attempt that has no end yet.
func (d *Dispatcher) Holds(token string) bool {
	k, err := d.tokens.parse(token)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.attempts[k]
	return a != nil && !a.over
}
