package pgwire

import (
	"log/slog"
	"sync"
	"time"
)

// complaints limits the log lines that unauthenticated clients cause: a number per period, then one line that counts the others.
type complaints struct {
	limit int
	every time.Duration

	mu     sync.Mutex
	since  time.Time
	said   int
	unsaid int
}

// warn logs a warning, unless the limit is reached.
func (c *complaints) warn(log *slog.Logger, text string, args ...any) {
	c.mu.Lock()
	unsaid := 0
	if now := time.Now(); now.Sub(c.since) >= c.every {
		unsaid = c.unsaid
		c.since, c.said, c.unsaid = now, 0, 0
	}
	quiet := c.said >= c.limit
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
		log.Warn(text, args...)
	}
}

// complain logs a warning caused by a client, at most ten times a second.
func (s *Server) complain(text string, args ...any) { s.complaints.warn(s.log, text, args...) }

// turnedAway logs that a client could not log in. A cause that affects every client is logged once a minute.
func (s *Server) turnedAway(err error, args ...any) {
	if asError(err).Code == cannotConnect {
		s.outages.warn(s.log, "weir: no client can log in now", append(args, "error", err)...)
		return
	}
	s.complain("weir: a client failed to authenticate", append(args, "error", err)...)
}
