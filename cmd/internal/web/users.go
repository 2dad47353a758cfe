package web

// EndUser ends all streams of a user, who has been disconnected or whose tokens have been revoked, and returns how many. What a callback has said is asked for again.
func (w *Web) EndUser(user string, revoked bool) (n int) {
	if c, ok := w.Authorizer.(*callback); ok {
		database, _ := w.names.are(w.Databases)
		c.forget(fullName(database))
	}
	w.revocations.Add(1)
	w.mu.Lock()
	var found []*stream
	for s := range w.all {
		if s.user() == user {
			found = append(found, s)
		}
	}
	w.mu.Unlock()
	reason := errEnded
	if revoked {
		reason = errExpired
	}
	for _, s := range found {
		go s.leave(reason) // it may have to wait for a write
	}
	return len(found)
}
