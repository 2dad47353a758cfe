package weirui

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

const (
	mostTails       = 50 // of a database at a time
	mostTailsOfUser = 5  // as many as a browser has connections for, but for one
	tailConnections = 2  // of the database's pool, however many tails are open
	tailRing        = 1 << 20
)

// tails is what all tails of a database share: a hub of their own, which reads its messages only while somebody looks. Each tail subscribes there, so
// the database is read once for all of them, whatever their channels.
type tails struct {
	mu   sync.Mutex
	open int
	of   map[string]int // open ones, by their user's name
	hub  *hub.Hub
	stop context.CancelFunc // ends the hub
	hubs int                // that have not ended
}

// enter counts a tail of a user, and returns the hub, which runs until the last tail has left.
func (t *tails) enter(u *UI, d *database, user string) (*hub.Hub, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if user != "" && t.of[user] >= mostTailsOfUser { // who has no name can't be told from others
		return nil, &problem{http.StatusTooManyRequests, fmt.Sprintf("You have %d tails of this database open, and no more may be.", mostTailsOfUser), "Close one, or look from the shell: weir listen."}
	}
	if t.open >= mostTails {
		return nil, &problem{http.StatusServiceUnavailable, fmt.Sprintf("%d tails of this database are open, and no more may be.", mostTails), "Close one, or look from the shell: weir listen."}
	}
	if t.of == nil {
		t.of = map[string]int{}
	}
	t.of[user]++
	t.open++
	if t.open == 1 {
		var ctx context.Context
		ctx, t.stop = context.WithCancel(context.Background())
		h := hub.New(hub.Config{Source: hub.NewLog(store.New(d.Pool, tailConnections), nil), Logger: u.log, RingBytes: tailRing})
		t.hub = h
		t.hubs++
		go func() { // ends after t.stop
			h.Run(ctx)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.hubs--
		}()
	}
	return t.hub, nil
}

// leave undoes enter.
func (t *tails) leave(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[user]--; t.of[user] == 0 {
		delete(t.of, user)
	}
	if t.open--; t.open == 0 {
		t.stop()
		t.hub = nil
	}
}

// servers knows which servers of this UI's requests are shutting down.
type servers struct {
	mu   sync.Mutex
	ends map[*http.Server]chan struct{}
}

// ending returns a channel that is closed when the server of a request shuts down; nil: nobody knows. http.Server.Shutdown waits until all requests
// have been answered, and ends none: a stream has to end itself.
func (s *servers) ending(ctx context.Context) <-chan struct{} {
	server, _ := ctx.Value(http.ServerContextKey).(*http.Server)
	if server == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end, known := s.ends[server]; known {
		return end
	}
	end := make(chan struct{})
	if s.ends == nil {
		s.ends = map[*http.Server]chan struct{}{}
	}
	s.ends[server] = end
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(end) }))
	return end
}
