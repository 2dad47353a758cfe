package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/hub"
)

// TestLogSetBackIsToldAtAllHubs: after a failover to an earlier state, subscribers at followers receive a gap, as those at the reader do, and
// then the messages published since.
func TestLogSetBackIsToldAtAllHubs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 3)
	var boxes []*box
	for _, n := range nodes {
		_, b := subscribe(t, n, hub.Position{}, "c")
		boxes = append(boxes, b)
	}
	for range 5 {
		s.publish("c", "before")
		for _, b := range boxes {
			s.wait(b, filters(t, "c")...)
		}
	}
	s.setBack()
	for _, b := range boxes {
		until(t, "a gap", func() bool {
			all, _ := b.got()
			return strings.HasPrefix(all[len(all)-1], "gap") || strings.Contains(strings.Join(all, "\n"), "\ngap")
		})
	}
	s.publish("c", "after")
	for _, b := range boxes {
		until(t, "the message published after", func() bool {
			all, _ := b.got()
			return strings.Contains(all[len(all)-1], " after ")
		})
	}
}

// setBack restores the log to its state three ticks ago, on a server that started at another time. (Nothing else of a database that is set
// back matters here.)
func (s *site) setBack() {
	s.t.Helper()
	s.exec(`WITH gone AS (DELETE FROM weir.tick WHERE seq > (SELECT max(seq) - 3 FROM weir.tick) RETURNING seq),
		old AS (UPDATE weir.epoch SET started_at = started_at - interval '1 hour')
		SELECT setval('weir.tick_seq', (SELECT min(seq) - 1 FROM gone))`)
}

// TestLogSetBackIsNoticedAfterItHasGrown: a hub whose next poll comes after a log that was set back has grown past the hub's position still
// notices the change.
func TestLogSetBackIsNoticedAfterItHasGrown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url := natstest.Start(t, nil).ClientURL()
	reader := s.join(Config{URL: url})
	settle(t, reader)
	_, b := subscribe(t, reader, hub.Position{}, "c")
	c, err := Start(t.Context(), Config{Source: s.source(), Database: s.name, URL: url, Name: "follower", Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	publish := func() {
		t.Helper()
		before := b.count()
		s.publish("c", "")
		until(t, "it is in a tick", func() bool { return b.count() > before })
	}
	at := reader.Position()
	for range 5 {
		publish()
	}
	for at.Before(reader.Position()) || c.Stats().Role != Following {
		parts, err := c.Next(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		if len(parts) > 0 {
			at = parts[len(parts)-1].After()
		}
	}
	s.setBack()
	for range 6 {
		publish()
	}
	until(t, "the log has grown past the follower's position", func() bool { return at.Before(reader.Position()) })
	var setBack *hub.SetBackError
	for range 20 {
		parts, err := c.Next(ctx, at)
		if errors.As(err, &setBack) {
			break
		}
		if err != nil || len(parts) > 0 {
			t.Fatalf("%d parts after %s: %v", len(parts), at, err)
		}
	}
	if setBack == nil {
		t.Fatal("the log that was set back was not noticed")
	}
	// It continues where the two logs diverge, so that nothing in the new log is missing.
	if !setBack.To.Before(at) {
		t.Errorf("after %s it continues from %s", at, setBack.To)
	}
	for at = setBack.To; at.Before(reader.Position()); {
		parts, err := c.Next(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		if len(parts) > 0 {
			at = parts[len(parts)-1].After()
		}
	}
}
