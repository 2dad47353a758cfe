package web

import (
	"net/http"
	"time"

	tokens "golang.org/x/time/rate"

	"github.com/weir-pg/weir/cmd/internal/rate"
)

// Limits bound what clients may use.
type Limits struct {
	Connections   int     // streams, waits for jobs and requests to publish at once; 0: no limit
	PerAddress    int     // of these at once from one client address; 0: no limit
	Subscriptions int     // channels and patterns of one stream; 0: 1000
	MessageBytes  int     // bytes of a published payload; 0: 1 MiB. A body or frame may have twice as many plus 4 KiB, for JSON escapes
	ChannelBytes  int     // bytes of a channel name; 0: 255, the hub's limit
	QueueBytes    int     // bytes queued for a stream that reads slowly; 0: the hub's default
	PublishRate   float64 // messages that one WebSocket may publish per second; 0: no limit
	PublishBurst  int     // messages that it may publish at once; 0: one second's worth
	RequestRate   float64 // requests that one WebSocket may send per second, and ten times as many at once; 0: no limit
	ClientRate    float64 // requests of every kind that one user, or one address, may send per second, and ten times as many at once; 0: no limit
	Queues        int     // queues in one wait for jobs; 0: 1000
	Messages      int     // messages published by one request; 0: 1000
	History       int     // messages of a channel's history that a subscription may begin with; 0: 1000
}

// maxClients is the number of clients whose rates are remembered.
const maxClients = 200000

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
	or(&l.History, 1000)
	return l
}

// carrier returns the maximum length of a frame or body that contains a message.
func (l Limits) carrier() int64 { return int64(l.MessageBytes)*2 + 4<<10 }

// enter admits a stream, or returns why it is refused. A stream that was admitted must call exit.
func (w *Web) enter(s *stream) *Failure {
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
	s.quitsAll()
	w.metrics.closed(s.kind)
	w.release(s.remote)
}

// admit counts something that a client makes the server hold: a stream, a wait for jobs, a request to publish. It returns a failure if a limit
// refuses it. Each admission must be followed by release.
func (w *Web) admit(remote string) (f *Failure) {
	defer func() {
		if f != nil {
			w.metrics.refused(f.Code)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.refusing:
		return fail(http.StatusServiceUnavailable, "draining", "this server is stopping", "connect again: another server takes over")
	case w.Limits.Connections > 0 && w.streams >= w.Limits.Connections:
		return fail(http.StatusServiceUnavailable, "limit", "this server has reached its limit of connections", "try again later")
	case w.Limits.PerAddress > 0 && w.from[origin(remote)] >= w.Limits.PerAddress:
		return fail(http.StatusTooManyRequests, "limit", "your address has reached its limit of connections",
			"subscribe to several channels on one connection")
	}
	if f := w.countRequest(identity("", remote), "http"); f != nil {
		return f
	}
	w.streams++
	if w.Limits.PerAddress > 0 {
		w.from[origin(remote)]++
	}
	w.ended.Add(1)
	return nil
}

func (w *Web) release(remote string) {
	w.mu.Lock()
	w.streams--
	if w.Limits.PerAddress > 0 {
		from := origin(remote)
		if w.from[from]--; w.from[from] == 0 {
			delete(w.from, from)
		}
	}
	w.mu.Unlock()
	w.ended.Done()
}

// newRate returns the limiter of a WebSocket's publishing; nil if there is no limit.
func newRate(l Limits) *tokens.Limiter {
	if l.PublishRate <= 0 {
		return nil
	}
	return tokens.NewLimiter(tokens.Limit(l.PublishRate), l.PublishBurst)
}

// tenSeconds is a rate that allows ten seconds' worth at once: a client that connects again has much to say at first.
func tenSeconds(perSecond float64) rate.Limit {
	return rate.Limit{PerSecond: perSecond, Burst: max(1, int(10*perSecond))}
}

// countRequest counts a request by a user or an address, and returns a failure if there are too many.
func (w *Web) countRequest(client, transport string) *Failure {
	wait := w.clients.Take(client, 1)
	if wait == 0 {
		return nil
	}
	w.metrics.limited(transport)
	return tooFast("you have sent too many requests", "send fewer, or combine them", wait)
}

// maxPause bounds the time for which a WebSocket that sends too much is not read.
const maxPause = time.Second

// count counts a request, and returns a failure if there are too many. Then the client is not read for a while, so that what it sends costs it time, and the hub none.
func (ws *webSocket) count() *Failure {
	f := ws.web.countRequest(identity(ws.user(), ws.remote), ws.kind.name())
	if f != nil {
		ws.pause = time.Duration(f.After) * time.Second
	} else if wait := ws.requests.Take(tenSeconds(ws.web.Limits.RequestRate), 1); wait > 0 {
		ws.web.metrics.limited(ws.kind.name())
		ws.pause = wait
		f = tooFast("you have exceeded the rate at which a connection may send requests", "send fewer, or combine them", wait)
	}
	return f
}
