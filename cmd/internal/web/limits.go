package web

import (
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound what clients may take.
type Limits struct {
	Connections   int     // streams, waits for jobs and requests to publish at once; 0: no limit
	PerAddress    int     // of them at once of one client address; 0: no limit
	Subscriptions int     // channels and patterns of one stream; 0: 1000
	MessageBytes  int     // a payload that is published; 0: 1 MiB. What carries it may be twice as long and 4 KiB, for JSON's escapes
	ChannelBytes  int     // a channel's name; 0: what the hub allows
	QueueBytes    int     // queued for a stream that reads slowly; 0: the hub's default
	PublishRate   float64 // messages that one WebSocket may publish in a second; 0: no limit
	PublishBurst  int     // and at once; 0: a second's worth
	Queues        int     // of one wait for jobs; 0: 1000
	Messages      int     // published by one request; 0: 1000
}

func (l Limits) withDefaults() Limits {
	or := func(value *int, d int) {
		if *value <= 0 {
			*value = d
		}
	}
	or(&l.Subscriptions, 1000)
	or(&l.MessageBytes, 1<<20)
	or(&l.ChannelBytes, 255)
	or(&l.PublishBurst, max(1, int(l.PublishRate)))
	or(&l.Queues, 1000)
	or(&l.Messages, 1000)
	return l
}

// carrier is how long a frame or a body with a message may be.
func (l Limits) carrier() int64 { return int64(l.MessageBytes)*2 + 4<<10 }

// enter counts a stream in, or says why it may not. Who enters must leave, by exit.
func (w *Web) enter(s *stream) *failure {
	if f := w.admit(s.remote); f != nil {
		return f
	}
	w.mu.Lock()
	w.lastID++
	s.number, s.since = w.lastID, time.Now()
	w.all[s] = struct{}{}
	w.mu.Unlock()
	w.metrics.opened(s.kind)
	return nil
}

func (w *Web) exit(s *stream) {
	w.mu.Lock()
	delete(w.all, s)
	w.mu.Unlock()
	w.metrics.closed(s.kind)
	w.release(s.remote)
}

// admit counts in what a client makes the server keep: a stream, a wait, a message that is on its way. Or it says why it may not. Who is
// admitted must be released.
func (w *Web) admit(remote string) (f *failure) {
	defer func() {
		if f != nil {
			w.metrics.refused(f.Code)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.refusing:
		return fail(http.StatusServiceUnavailable, "draining", "this server is stopping", "connect again: another takes over")
	case w.Limits.Connections > 0 && w.streams >= w.Limits.Connections:
		return fail(http.StatusServiceUnavailable, "limit", "this server has as many connections as it may have", "try again later")
	case w.Limits.PerAddress > 0 && w.from[remote] >= w.Limits.PerAddress:
		return fail(http.StatusTooManyRequests, "limit", "your address has as many connections as it may have",
			"subscribe to several channels on one connection")
	}
	w.streams++
	if w.Limits.PerAddress > 0 {
		w.from[remote]++
	}
	w.ended.Add(1)
	return nil
}

func (w *Web) release(remote string) {
	w.mu.Lock()
	w.streams--
	if w.Limits.PerAddress > 0 {
		if w.from[remote]--; w.from[remote] == 0 {
			delete(w.from, remote)
		}
	}
	w.mu.Unlock()
	w.ended.Done()
}

// newRate returns what lets a client publish so many messages in a second; nil where there is no limit.
func newRate(l Limits) *rate.Limiter {
	if l.PublishRate <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(l.PublishRate), l.PublishBurst)
}
