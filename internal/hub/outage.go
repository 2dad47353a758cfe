package hub

import (
	"log/slog"
	"time"

	"github.com/weir-pg/weir/internal/outage"
)

// unread is a series of failed reads. It is logged when it begins, from time to time while it lasts, and when it is over. A single failed read
// is not: a connection was lost and replaced.
type unread struct {
	began  time.Time // of the first; zero: the last read succeeded
	logged bool
	remind outage.Reminder
}

func (u *unread) failed(log *slog.Logger, err error) {
	now := time.Now()
	switch {
	case u.began.IsZero():
		u.began = now
	case !u.logged:
		u.logged = true
		u.remind.Begin(now)
		log.Warn("weir: the hub can't read ticks: it tries until it can", "error", err)
	case u.remind.Due(now):
		log.Warn("weir: the hub still can't read ticks", "for", now.Sub(u.began).Round(time.Second), "error", err)
	}
}

// over ends the series.
func (u *unread) over(log *slog.Logger) {
	if u.logged {
		log.Warn("weir: the hub reads ticks again", "after", time.Since(u.began).Round(time.Millisecond))
	}
	*u = unread{}
}
