package pgwire

import (
	"sync"
	"time"
)

// complaints are log lines that strangers cause: so many in a second, and then a word of how many there were besides.
type complaints struct {
	mu     sync.Mutex
	second time.Time
	said   int
	unsaid int
}

const mostComplaints = 10 // in a second

// complain logs a warning, unless there have been enough of them.
func (s *Server) complain(text string, args ...any) {
	c := &s.complaints
	c.mu.Lock()
	unsaid := 0
	if now := time.Now(); now.Sub(c.second) >= time.Second {
		unsaid = c.unsaid
		c.second, c.said, c.unsaid = now, 0, 0
	}
	quiet := c.said >= mostComplaints
	if quiet {
		c.unsaid++
	} else {
		c.said++
	}
	c.mu.Unlock()
	if unsaid > 0 {
		args = append(args, "not_logged_before", unsaid)
	}
	if !quiet {
		s.log.Warn(text, args...)
	}
}
