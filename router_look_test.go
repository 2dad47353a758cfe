package weir_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASilentDatabaseHoldsUpNoOther: a router that looks for slots that have moved goes on when their owner has answered; and knows what the silent one said before.
func TestASilentDatabaseHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 3)
	slices.SortFunc(clients, byFirstSlot(t, r))
	all := owners(t, r)
	key, silent := keyIn(0, all[0].High), keyIn(all[2].Low, all[2].High)
	stale := routerOf(t, clients...)
	if err := r.Move(t.Context(), 0, all[0].High, clients[1], nil); err != nil {
		t.Fatal(err)
	}
	tx, err := clients[2].Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir.slot IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	job, err := stale.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key})
	if err != nil || job.Client != clients[1] {
		t.Errorf("%+v, %v", job, err)
	}
	pgtest.Until(t, "the silent database is still being asked", func() bool {
		return answer[int](t, clients[2], `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%_slots%'`) > 0 // by the router that has moved a slot, too, if its look was slow
	})
	if owner, err := stale.Client(t.Context(), silent); err != nil || owner != clients[2] {
		t.Errorf("what the silent database owns is forgotten: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job, err := stale.Enqueue(t.Context(), step{silent, 1}, &weir.Options{Key: silent}); err != nil || job.Client != clients[2] {
		t.Errorf("%+v, %v", job, err)
	}
}

// TestWhatASilentDatabaseOwnsIsNotTakenForUnowned: a router that looks, and whose look has failed there, knows what it said before.
func TestWhatASilentDatabaseOwnsIsNotTakenForUnowned(t *testing.T) {
	t.Parallel()
	server := pgtest.Installed(t, nil)
	clients := []*weir.Client{weir.NewClient(pgtest.Pool(t, pgtest.Database(t))), weir.NewClient(pgtest.Pool(t, pgtest.Database(t))), weir.NewClient(pgtest.Pool(t, server.URL("postgres")))}
	r := routerOf(t, clients...)
	if err := r.Assign(t.Context()); err != nil {
		t.Fatal(err)
	}
	place := slices.IndexFunc(owners(t, r), func(o weir.SlotOwner) bool { return o.Client == clients[2] })
	mine := owners(t, r)[place]
	live := owners(t, r)[(place+1)%3]
	other := owners(t, r)[(place+2)%3]
	stale := routerOf(t, clients...)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := routerOf(t, live.Client, other.Client).Move(t.Context(), live.Low, live.High, other.Client, nil); err != nil {
		t.Fatal(err)
	}
	key := keyIn(live.Low, live.High)
	if job, err := stale.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != other.Client {
		t.Errorf("%+v, %v", job, err)
	}
	if owner, err := stale.Client(t.Context(), keyIn(mine.Low, mine.High)); err != nil || owner != clients[2] {
		t.Errorf("what the dead database owns is forgotten: %v", err)
	}
}

// TestASlotThatArrivesBetweenTwoAnswersIsFound: the one database is asked before it owns the slot, and the other one when it has left already.
func TestASlotThatArrivesBetweenTwoAnswersIsFound(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	from, to := clients[0], clients[1]
	high := owners(t, r)[0].High
	key := keyIn(0, high)
	err := to.Pool().AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error { // from then on it counts as moving
		tx, err := conn.Begin(t.Context())
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if err := r.HoldTx(t.Context(), tx, key); !errors.Is(err, weir.ErrMoving) {
			t.Errorf("held where the key is not: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	there := answer[string](t, to, `SELECT (SELECT c.system_identifier FROM pg_control_system() c) || '-' || d.oid FROM pg_database d WHERE d.datname = current_database()`)
	begin := answer[time.Time](t, to, `SELECT clock_timestamp()`)
	tx, err := from.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir.slot IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	type result struct {
		weir.Routed
		err error
	}
	enqueued := make(chan result, 1)
	go func() { // ends when both databases have answered
		job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key})
		enqueued <- result{job, err}
	}()
	pgtest.Until(t, "the database that does not own the slot yet has answered", func() bool {
		return answer[int](t, to, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '%_slots%' AND query_start > $1`, begin) > 0
	})
	execute(t, to, `SELECT weir._note_slots(0, $1, 'owned', 7, NULL, NULL)`, high)
	if _, err := tx.Exec(t.Context(), `SELECT weir._note_slots(0, $1, 'left', 7, gen_random_uuid(), $2)`, high, there); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job := pgtest.Receive(t, enqueued, "the job is enqueued"); job.err != nil || job.Client != to {
		t.Errorf("%+v, %v", job.Routed, job.err)
	}
}

// TestAnEnqueueWaitsForASlotThatHasLeft: as long as a slot may take to arrive, and not only for a few answers: of slots that move to and fro, each database may say every time that they have
// left it.
func TestAnEnqueueWaitsForASlotThatHasLeft(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	from, to := clients[0], clients[1]
	high := owners(t, r)[0].High
	key, own := keyIn(0, high), routerOf(t, clients...)
	there := answer[string](t, to, `SELECT (SELECT c.system_identifier FROM pg_control_system() c) || '-' || d.oid FROM pg_database d WHERE d.datname = current_database()`)
	execute(t, from, `SELECT weir._note_slots(0, $1, 'left', 7, gen_random_uuid(), $2)`, high, there)
	soon, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := own.Enqueue(soon, step{key, 1}, &weir.Options{Key: key}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that it waits", err)
	}
	execute(t, to, `SELECT weir._note_slots(0, $1, 'owned', 7, NULL, NULL)`, high)
	if job, err := own.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != to {
		t.Errorf("%+v, %v", job, err)
	}
}
