package hub

import (
	"log/slog"
	"time"
)

// An outage is logged when it begins, from time to time while it lasts, and when it is over. A single failed read is not: a connection was lost
// and replaced.
const (
	remindFirst = time.Minute // the pause before the first reminder; it doubles each time
	remindLast  = time.Hour
)

// outage is a series of failed reads.
type outage struct {
	began  time.Time // of the first; zero: the last read succeeded
	logged time.Time // zero: not logged yet
	remind time.Duration
}

func (o *outage) failed(log *slog.Logger, err error) {
	now := time.Now()
	switch {
	case o.began.IsZero():
		o.began = now
	case o.logged.IsZero():
		o.logged, o.remind = now, remindFirst
		log.Warn("weir: the hub can't read ticks: it tries until it can", "error", err)
	case now.Sub(o.logged) >= o.remind:
		o.logged, o.remind = now, min(2*o.remind, remindLast)
		log.Warn("weir: the hub still can't read ticks", "for", now.Sub(o.began).Round(time.Second), "error", err)
	}
}

// over ends an outage.
func (o *outage) over(log *slog.Logger) {
	if !o.logged.IsZero() {
		log.Warn("weir: the hub reads ticks again", "after", time.Since(o.began).Round(time.Millisecond))
	}
	*o = outage{}
}
