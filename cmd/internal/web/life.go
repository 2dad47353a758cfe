package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// life is a stream's timer: for heartbeats, and for the expiry of its grant.
type life struct {
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	beatAt  time.Time
	expires time.Time // zero: never

	present map[string]string // channels that it is a member of, with the user as whom
	info    json.RawMessage   // about the user, for other members
	gone    bool              // it has ended, and enters no channel any more

	token    string       // the token that the Authorizer last accepted
	accepted uint64       // how many times it has
	user     string       // whose token it is
	revision uint64       // the Authorizer's and the policies' when they last accepted the token
	holding  []hub.Filter // what it has subscribed to, if there are policies

	heard clock.Last  // when the client last sent anything; only for WebSocket
	busy  atomic.Bool // a request of the client is being read or carried out, behind which an answer would wait; only for WebSocket
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

// until sets when the stream expires; zero means never.
func (s *stream) until(t time.Time) {
	l := &s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = t
	if l.timer != nil && !l.stopped {
		l.timer.Reset(l.next())
	}
}

// next returns the time until the timer's next task. The caller holds mu.
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
	if err := s.stillGood(); err != nil {
		s.leave(err)
		return
	}
	if err := s.heartbeat(); err != nil {
		s.leave(err)
	}
}

// livesBy records the token that the stream was granted by, which the Authorizer has just accepted. Where the stream makes a member of its user, it is of the token's from now on.
func (s *stream) livesBy(token string, grant Grant, revision uint64) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.lives(token, grant, revision)
}

// lives is livesBy for callers that hold life.mu.
func (s *stream) lives(token string, grant Grant, revision uint64) {
	l := &s.life
	l.accepted++
	same := l.user == grant.User && bytes.Equal(l.info, grant.Info)
	l.token, l.user, l.info, l.revision = token, strings.Clone(grant.User), grant.Info, revision
	if same {
		return
	}
	for on, was := range l.present {
		if s.web.Presence.Enter(on, l.user, l.info) { // before the old membership ends: the user may be the same
			l.present[on] = l.user
		} else {
			delete(l.present, on)
		}
		s.web.Presence.Leave(on, was)
	}
}

// confirm asks the Authorizer again if a user was disconnected since revocations had a value, which was before the token was accepted: that one may be the stream's, and not
// have been found. Call it when the stream is known as its user's.
func (s *stream) confirm(revocations uint64) error {
	if s.web.revocations.Load() == revocations {
		return nil
	}
	return s.askAgain(s.web.revision())
}

func (s *stream) user() string {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	return s.life.user
}

// stillGood checks the stream's token and its channels again if the revision has changed. If the Authorizer can't answer, the token remains good.
func (s *stream) stillGood() error {
	current := s.web.revision()
	s.life.mu.Lock()
	accepted := s.life.revision
	s.life.mu.Unlock()
	if current == accepted {
		return nil
	}
	return s.askAgain(current)
}

// askAgain checks the stream's token and its channels, at a revision. If the client sends another token meanwhile, that one decides.
func (s *stream) askAgain(current uint64) error {
	s.life.mu.Lock()
	token, user, info, holding, accepted := s.life.token, s.life.user, s.life.info, slices.Clone(s.life.holding), s.life.accepted
	s.life.mu.Unlock()
	grant, err := s.ask(token, Grant{User: user, Info: info}, holding)
	s.life.mu.Lock()
	same := s.life.accepted == accepted
	if same && err == nil && grant != nil {
		s.lives(token, *grant, current)
	}
	s.life.mu.Unlock()
	if same && err != nil {
		return err
	}
	if grant != nil {
		s.entersAgain()
	}
	return nil
}

// ask asks whether a stream of this user, with this token, may have these channels. It returns neither a grant nor an error if the Authorizer can't answer.
func (s *stream) ask(token string, anyone Grant, holding []hub.Filter) (*Grant, error) {
	rest, err := s.web.decide(Subscribe, holding, anyone.User)
	if err != nil {
		return nil, errDenied
	}
	if token == "" && len(rest) == 0 && s.web.Policies.Set().Anyone() {
		return &anyone, nil
	}
	ask := Ask{Token: token, Action: Connect, Remote: s.remote}
	if len(rest) > 0 {
		ask.Action, ask.Filters = Subscribe, rest
	}
	ctx, cancel := context.WithTimeout(s.web.ctx, patience)
	defer cancel()
	grant, err := s.web.authorize(ctx, ask)
	if err == nil {
		return &grant, nil
	}
	var refusal *Failure
	switch {
	case !errors.As(err, &refusal):
	case refusal.Status == http.StatusUnauthorized:
		return nil, errExpired
	case refusal.Status == http.StatusForbidden:
		return nil, errDenied
	}
	return nil, nil
}

// holds records what the stream has subscribed to, so that it ends if the policies no longer allow it.
func (s *stream) holds(filters ...hub.Filter) {
	if s.web.Policies == nil {
		return
	}
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.life.holding = append(s.life.holding, filters...)
}

// lets is the opposite of holds.
func (s *stream) lets(filters []hub.Filter) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.life.holding = slices.DeleteFunc(s.life.holding, func(f hub.Filter) bool { return slices.Contains(filters, f) })
}

// heartbeat sends the client its position. While something else is being written, no heartbeat is needed.
func (s *stream) heartbeat() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	b := takeBuffer()
	defer b.give()
	if !s.life.busy.Load() { // otherwise it is not silent; and some libraries end a connection when they can't write a pong for five seconds
		if b.bytes = s.kind.probe(b.bytes); len(b.bytes) > 0 && s.silent() {
			return errSilent
		}
	}
	at := s.position()
	e := outgoing{Type: "heartbeat"}
	if !at.IsZero() {
		e.Position = at.String()
	}
	b.bytes = s.kind.append(b.bytes, at, e)
	return s.write(b.bytes, at)
}

// heard records that the client has just sent something.
func (s *stream) heard() { s.life.heard.Now() }

// silent reports whether the client has left two probes unanswered for at least the time that a write may take.
func (s *stream) silent() bool {
	return s.life.heard.Ago() > max(2*s.web.Heartbeat, s.web.WriteTimeout)
}

// untilBeat returns the time until a stream's next heartbeat: never longer than Heartbeat, because proxies end connections that are silent.
func (w *Web) untilBeat() time.Duration { return sleep.Jitter(w.Heartbeat * 4 / 5) }
