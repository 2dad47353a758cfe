package work_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// TestANewTokenCountsThoughTheOldOneIsRefusedLater: while the Authorizer is asked again for the token of a session, the client sends another one. What is then said of the old one ends nothing.
func TestANewTokenCountsThoughTheOldOneIsRefusedLater(t *testing.T) {
	t.Parallel()
	f := newFickle()
	s := newSite(t, func(c *server.Config) { shortLease(c); c.Web = web.Config{Authorizer: f} })
	k, _ := s.dial(m{"queues": m{"mail": 1}})
	f.revision.Store(1)
	<-f.asked
	k.send(m{"type": "auth", "token": "new"})
	if got := k.next(); got.Type != "authorized" {
		t.Fatalf("%+v", got)
	}
	close(f.answer)
	f.revision.Store(2)
	select {
	case <-f.newest:
	case <-time.After(generous):
		t.Fatal("nobody asks for the new token")
	}
	k.send(m{"type": "ping", "id": 1})
	if got := k.next(); got.Type != "pong" {
		t.Errorf("%+v", got)
	}
}

// fickle lets all tokens in until its revision changes; then it refuses the old one, but not before it is told to answer.
type fickle struct {
	revision      atomic.Uint64
	asked, newest chan struct{} // signal that it is asked for the old token, and for the new one at the last revision; never closed
	answer        chan struct{}
}

func newFickle() *fickle {
	return &fickle{asked: make(chan struct{}, 1), newest: make(chan struct{}, 1), answer: make(chan struct{})}
}

func (f *fickle) Revision() uint64 { return f.revision.Load() }

func (f *fickle) Authorize(_ context.Context, ask web.Ask) (web.Grant, error) {
	signal := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	switch revision := f.revision.Load(); {
	case revision > 0 && ask.Token != "new":
		signal(f.asked)
		<-f.answer
		return web.Grant{}, web.Denied("it was revoked", "")
	case revision == 2:
		signal(f.newest)
	}
	return web.Grant{Allow: ask.Filters}, nil
}
