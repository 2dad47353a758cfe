package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// checker is a sink that queries each message's row on the primary as soon as the message arrives.
type checker struct {
	*box
	primary *pgxpool.Pool
	missing []string
}

func (r *checker) Deliver(events []Event) error {
	for _, e := range events {
		if e.Message == nil {
			continue
		}
		var there bool
		if err := r.primary.QueryRow(context.Background(), `SELECT EXISTS (SELECT FROM row_of WHERE name = $1)`, string(e.Message.Payload)).Scan(&there); err != nil {
			return err
		}
		if !there {
			r.mu.Lock()
			r.missing = append(r.missing, string(e.Message.Payload))
			r.mu.Unlock()
		}
	}
	return r.box.Deliver(events)
}

// TestReadsFromAStandbyThatLags: a hub that reads from a standby delivers everything in order, even if replay on the standby pauses
// for a while; no ticks are cut there. With a synchronous standby, a client that receives a message can read its row on the primary immediately.
func TestReadsFromAStandbyThatLags(t *testing.T) {
	t.Parallel()
	primary := pgtest.Installed(t, nil)
	standby := pgtest.Standby(t, primary, map[string]string{"cluster_name": "near"})
	write, read := pgtest.Pool(t, primary.URL("postgres")), pgtest.Pool(t, standby.URL("postgres"))
	exec(t, write, `CREATE TABLE row_of (name text)`)
	pgtest.Replayed(t, primary, standby)

	var refused *pgconn.PgError
	if _, err := read.Exec(t.Context(), `SELECT * FROM weir._await_tick(1)`); !errors.As(err, &refused) || refused.Code != "25006" {
		t.Errorf("a tick is cut on a standby: %v", err)
	}

	h, end := run(t, Config{Source: NewLog(store.New(write, 0), store.New(read, 0))})
	sink := &checker{box: newBox(), primary: write}
	s, err := h.Join(sink, Options{MaxBytes: 1 << 24})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), Channel("a")); err != nil {
		t.Fatal(err)
	}
	begin := h.Position()
	var want []string
	say := func(n int) {
		t.Helper()
		for range n {
			text := fmt.Sprint(len(want))
			exec(t, write, `WITH i AS (INSERT INTO row_of VALUES ($1) RETURNING name) SELECT weir.publish('a', name) FROM i`, text)
			want = append(want, "a="+text)
		}
	}
	say(50)
	sink.texts(t, 50)
	exec(t, read, `SELECT pg_wal_replay_pause()`)
	until(t, "replay on the standby is paused", func() bool { return scan[string](t, read, `SELECT pg_get_wal_replay_pause_state()`) == "paused" })
	say(100)
	exec(t, write, `SELECT weir._await_tick(weir.newest_tick())`)
	if n := len(sink.snapshot()); n > 50 {
		t.Errorf("%d messages came from a standby whose replay is paused", n)
	}
	// A hub that starts while the standby lags has an empty ring, and must not conclude that nothing was published.
	late, _ := run(t, Config{Source: NewLog(store.New(write, 0), store.New(read, 0))})
	if err := late.untilReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := resume(t, late, begin, "a")
	exec(t, read, `SELECT pg_wal_replay_resume()`)
	say(50)
	if got := sink.texts(t, 200); !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d: %s", len(got), len(want), firstDifference(want, got))
	}
	if got := r.texts(t, 200); !slices.Equal(got, want) {
		t.Errorf("resumed at a new hub: got %d messages, want %d: %s", len(got), len(want), firstDifference(want, got))
	}

	// Synchronous, and replayed before the commit becomes visible on the primary.
	exec(t, write, `ALTER SYSTEM SET synchronous_standby_names = 'near'`)
	exec(t, write, `ALTER SYSTEM SET synchronous_commit = 'remote_apply'`)
	exec(t, write, `SELECT pg_reload_conf()`)
	until(t, "the standby is synchronous", func() bool {
		return scan[bool](t, write, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`) && scan[string](t, write, `SHOW synchronous_commit`) == "remote_apply"
	})
	exec(t, write, `CHECKPOINT`) // the checkpointer makes commits wait, and reads the new configuration before it checkpoints
	write.Reset()                // a session of the pool may not have read it yet; new ones have
	var publishers sync.WaitGroup
	for n := range 4 {
		publishers.Go(func() {
			for i := range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				_, err := write.Exec(ctx, `WITH i AS (INSERT INTO row_of VALUES ($1) RETURNING name) SELECT weir.publish('a', name) FROM i`, fmt.Sprintf("sync %d-%d", n, i))
				cancel()
				if err != nil {
					t.Errorf("publish: %v", err)
					return
				}
			}
		})
	}
	publishers.Wait()
	all := sink.texts(t, 360)
	other := &checker{box: newBox(), primary: write} // history, from the standby
	o, err := late.Join(other, Options{MaxBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Resume(t.Context(), begin, Channel("a")); err != nil {
		t.Fatal(err)
	}
	if got := other.texts(t, 360); !slices.Equal(got, all) {
		t.Errorf("resumed: %s", firstDifference(all, got))
	}
	if len(sink.missing) > 0 || len(other.missing) > 0 {
		t.Errorf("notified of rows that did not exist yet: %v %v", sink.missing, other.missing)
	}
	end()
	exec(t, write, `ALTER SYSTEM RESET synchronous_standby_names`)
	exec(t, write, `SELECT pg_reload_conf()`)
}
