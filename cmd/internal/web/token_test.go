package web

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// TestANewTokenCountsThoughTheOldOneIsRefusedLater: while the Authorizer is asked again for the token of a connection, the client sends another one. What is then said of the old one ends nothing.
func TestANewTokenCountsThoughTheOldOneIsRefusedLater(t *testing.T) {
	t.Parallel()
	f := newFickle()
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer, c.Heartbeat = f, 20*time.Millisecond })
	c, _, err := r.dial("", bearerOf("old"))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.ask(`{"type":"subscribe","channels":["a"]}`); s.Type != "subscribed" {
		t.Fatalf("%+v", s)
	}
	f.revision.Store(1)
	<-f.asked
	if s := c.ask(`{"type":"auth","token":"new"}`); s.Type != "authorized" {
		t.Fatalf("%+v", s)
	}
	close(f.answer)
	f.revision.Store(2)
	select {
	case <-f.newest:
	case <-time.After(generous):
		t.Fatal("nobody asks for the new token")
	}
	r.publish("a=still here")
	expect(t, c, "a=still here")
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

func (f *fickle) Authorize(_ context.Context, ask Ask) (Grant, error) {
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
		return Grant{}, Denied("it was revoked", "")
	case revision == 2:
		signal(f.newest)
	}
	return Grant{Allow: ask.Filters}, nil
}
