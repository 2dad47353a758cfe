package web

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// life is a stream's timer: for heartbeats, and for the end of what it was allowed.
type life struct {
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	beatAt  time.Time
	expires time.Time // zero: never

	token    string // by which the stream lives
	user     string // whose it is
	revision uint64 // of the Authorizer when it last said that the token is good

	heard atomic.Int64 // when the client last said anything, in ns since 1970; WebSocket alone
}

func (s *stream) startTimer() {
	l := &s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.beatAt = time.Now().Add(s.web.untilBeat())
	l.timer = time.AfterFunc(l.next(), s.tick)
}

func (s *stream) stopTimer() {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.life.stopped = true
	if s.life.timer != nil {
		s.life.timer.Stop()
	}
}

// until lets the stream live until then, or ever if it is zero.
func (s *stream) until(t time.Time) {
	l := &s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = t
	if l.timer != nil && !l.stopped {
		l.timer.Reset(l.next())
	}
}

// next is how long nothing is to be done. The caller holds mu.
func (l *life) next() time.Duration {
	at := l.beatAt
	if !l.expires.IsZero() && l.expires.Before(at) {
		at = l.expires
	}
	return max(time.Until(at), 0)
}

// tick is called by the timer.
func (s *stream) tick() {
	l := &s.life
	l.mu.Lock()
	now := time.Now()
	expired := !l.expires.IsZero() && !now.Before(l.expires)
	beat := !now.Before(l.beatAt)
	if beat {
		l.beatAt = now.Add(s.web.untilBeat())
	}
	if l.stopped || expired {
		l.mu.Unlock()
		if expired {
			s.leave(errExpired)
		}
		return
	}
	l.timer.Reset(l.next())
	l.mu.Unlock()
	if !beat {
		return
	}
	if !s.stillGood() {
		s.leave(errExpired)
		return
	}
	if err := s.heartbeat(); err != nil {
		s.leave(err)
	}
}

// livesBy notes the token by which the stream lives, which has just been found good.
func (s *stream) livesBy(token, user string, revision uint64) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.life.token, s.life.user, s.life.revision = token, user, revision
}

func (s *stream) user() string {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	return s.life.user
}

// stillGood looks at the stream's token again when the Authorizer may have changed its mind. That it can't be asked is no no.
func (s *stream) stillGood() bool {
	now := s.web.revision()
	s.life.mu.Lock()
	token, was := s.life.token, s.life.revision
	s.life.mu.Unlock()
	if now == was {
		return true
	}
	ctx, cancel := context.WithTimeout(s.web.ctx, patience)
	defer cancel()
	grant, err := s.web.Authorizer.Authorize(ctx, Ask{Token: token, Action: Connect, Remote: s.remote})
	var refusal *failure
	if errors.As(err, &refusal) {
		return false
	}
	if err == nil {
		s.livesBy(token, grant.User, now)
	}
	return true
}

// heartbeat tells the client where it stands. Where something is being written the client hears enough as it is.
func (s *stream) heartbeat() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	b := takeBuffer()
	defer b.give()
	if b.bytes = s.kind.probe(b.bytes); len(b.bytes) > 0 && s.silent() {
		return errSilent
	}
	at := s.position()
	e := outgoing{Type: "heartbeat"}
	if !at.IsZero() {
		e.Position = at.String()
	}
	b.bytes = s.kind.append(b.bytes, at, e)
	return s.write(b.bytes, at)
}

// heard notes that the client lives.
func (s *stream) heard() { s.life.heard.Store(time.Now().UnixNano()) }

// silent tells whether the client has left two probes unanswered, and had as much time as a write has.
func (s *stream) silent() bool {
	return time.Since(time.Unix(0, s.life.heard.Load())) > max(2*s.web.Heartbeat, s.web.WriteTimeout)
}

// untilBeat is how long until a stream's next heartbeat: the interval at most, for proxies end what is silent for longer.
func (w *Web) untilBeat() time.Duration { return sleep.Jitter(w.Heartbeat * 4 / 5) }
