package weir_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
)

// half is two databases, of which the first owns the first half of all slots, and a key of these.
func half(t *testing.T) (r *weir.Router, from, to *weir.Client, key string) {
	t.Helper()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	return r, clients[0], clients[1], keyOf(0, 1)
}

func execute(t *testing.T, c *weir.Client, sql string, args ...any) {
	t.Helper()
	if _, err := c.Pool().Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func answer[T any](t *testing.T, c *weir.Client, sql string, args ...any) (v T) {
	t.Helper()
	if err := c.Pool().QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestAMoveWhoseSourceWasSetBackLosesNothing: what departs then is copied, whatever the other database knows of the move that is forgotten. A mover that still follows that one is
// told so.
func TestAMoveWhoseSourceWasSetBackLosesNothing(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	execute(t, from, `SELECT weir.enqueue('q', 'first', key => $1)`, key)
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	// As a standby that lagged has it: the slots are leaving, and a job waits that had departed, or was enqueued after the failover by what runs there.
	move := answer[string](t, from, `UPDATE weir.slot SET state = 'leaving', copy = NULL WHERE state = 'left' RETURNING move::text`)
	execute(t, from, `SELECT weir.enqueue('q', 'second', key => $1)`, key)
	if _, err := from.Pool().Exec(t.Context(), `SELECT * FROM weir._departing($1::text::uuid, '')`, move); err == nil {
		t.Error("jobs are copied that have not all departed")
	}
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	if got := unfinished(t, to, key); len(got) != 2 || len(unfinished(t, from, key)) != 0 {
		t.Errorf("the jobs are %v, and where they were %v", got, unfinished(t, from, key))
	}
	if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != to {
		t.Errorf("%+v, %v", job, err)
	}
	execute(t, from, `TRUNCATE weir.slot`) // it has forgotten everything
	if _, err := from.Pool().Exec(t.Context(), `SELECT weir._close_slots($1::text::uuid)`, move); err == nil {
		t.Error("a move is closed that is not known")
	}
}

// TestADatabaseOwnsNoSlotsBeforeTheirJobsHaveArrived: also if it was set back, and has lost some that had.
func TestADatabaseOwnsNoSlotsBeforeTheirJobsHaveArrived(t *testing.T) {
	t.Parallel()
	_, _, to, _ := half(t)
	const own = `SELECT weir._own_slots(0, 1, 2, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', $1)`
	if answer[bool](t, to, own, "1 1 1 1") {
		t.Error("the slots are owned without the jobs")
	}
	for range 2 { // once more changes nothing
		if !answer[bool](t, to, own, "") {
			t.Error("the slots are not owned though there were no jobs")
		}
	}
}

// TestAMoveIsClosedWhenNothingIsLeft: one look finds what waits, is scheduled or runs. Members of flows and what was cancelled stay, and hold up nothing.
func TestAMoveIsClosedWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	_, from, _, key := half(t)
	execute(t, from, `SELECT weir.enqueue('q', 'of a flow', key => $1, flow => weir.flow('f'))`, key)
	execute(t, from, `SELECT weir.cancel(weir.enqueue('q', 'cancelled', key => $1))`, key)
	move := answer[string](t, from, `SELECT move::text FROM weir._leave_slots(0, $1, 'somebody')`, firstHalf)
	isIn := func(what string, want bool) {
		t.Helper()
		if got := answer[bool](t, from, `SELECT weir._is_in_log(0, $1)`, firstHalf); got != want {
			t.Errorf("%s: there are jobs in the log: %v", what, got)
		}
	}
	isIn("a flow, and one that was cancelled", false)
	id := answer[int64](t, from, `SELECT weir.enqueue('w', 'waits', key => $1)`, key)
	isIn("one waits", true)
	worker := answer[int32](t, from, `SELECT weir.start('w', '{w}')`)
	token := answer[string](t, from, `SELECT token FROM weir.take($1, wait => '0 s') WHERE event = 'job' AND id = $2`, worker, id)
	isIn("one runs", true)
	if closed := answer[*string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move); closed != nil {
		t.Error("the move is closed while a job runs")
	}
	execute(t, from, `SELECT weir.record($1, jsonb_build_array(jsonb_build_object('token', $2::text, 'outcome', 'failed', 'error', 'no luck', 'delay', 3600))::text)`, worker, token)
	isIn("one is to be tried again", true)
	execute(t, from, `SELECT weir.cancel($1)`, id)
	isIn("none", false)
	first := answer[*string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move)
	if second := answer[*string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move); first == nil || second == nil || *first != *second {
		t.Errorf("the move is called %v, and then %v", first, second)
	}
}

// TestManyCancelledJobsHideNoneThatMoves: they stay in the log, and are looked at each time.
func TestManyCancelledJobsHideNoneThatMoves(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	execute(t, from, `SELECT weir.enqueue('q', 'cancelled', key => $1, run_at => now() + interval '1 hour') FROM generate_series(1, 600)`, key)
	execute(t, from, `SELECT weir.cancel_where(kinds => '{cancelled}')`)
	execute(t, from, `SELECT weir.enqueue('q', 'stays planned', key => $1, run_at => now() + interval '2 hours')`, key)
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	if got := unfinished(t, to, key); len(got) != 1 {
		t.Errorf("the other database has %v", got)
	}
}

// TestARouterNeedsAnAnswer: one whose databases were not asked says so, rather than to guess.
func TestARouterNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	_, from, _, _ := half(t)
	if _, err := weir.NewRouter(t.Context(), from, nil); err == nil || err.Error() != "weir: database 2 of 2 of a router is nil" {
		t.Errorf("a client that is nil: %v", err)
	}
}

// TestSlotsMoveAlthoughADatabaseWasSetBack: it says that it owns them with an epoch that the other one has long passed.
func TestSlotsMoveAlthoughADatabaseWasSetBack(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	for _, c := range []*weir.Client{to, from} {
		if err := r.Move(t.Context(), 0, firstHalf, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, from, `UPDATE weir.slot SET epoch = 1`) // as before the slots moved to and fro
	execute(t, from, `SELECT weir.enqueue('q', 'k', key => $1)`, key)
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != to || len(unfinished(t, to, key)) != 2 {
		t.Errorf("%+v, %v", job, err)
	}
}

// TestSlotsThatAllHaveLeftAreAssigned: to the database to which they have moved last, which was set back; and by a router that has it.
func TestSlotsThatAllHaveLeftAreAssigned(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	for _, c := range []*weir.Client{to, from} {
		if err := r.Move(t.Context(), 0, firstHalf, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	id := owners(t, r)[1].Database
	execute(t, from, `UPDATE weir.slot SET epoch = 2, state = 'left', peer = $1`, id) // as between the two moves
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err == nil {
		t.Error("slots have moved that nobody owns")
	}
	if err := routerOf(t, to).Assign(t.Context()); err == nil {
		t.Error("slots are assigned by a router that lacks the database to which they have moved")
	}
	if err := r.Assign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != from {
		t.Errorf("%+v, %v", job, err)
	}
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Error(err)
	}
}

// TestAStaleMoveTakesNothingFromTheOwner: a database that was set back to the middle of a move puts back what had left it, when the slots are moved next; the one that has owned them
// since keeps them, or they move from there.
func TestAStaleMoveTakesNothingFromTheOwner(t *testing.T) {
	t.Parallel()
	for name, aim := range map[string]int{"to the database that was set back": 0, "to where they were about to move": 1, "to their owner": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clients := spread(t, 3)
			slices.SortFunc(clients, byFirstSlot(t, r))
			all := owners(t, r)
			high, peer := all[0].High, all[1].Database
			key := keyIn(0, high)
			for _, c := range clients[1:] {
				if err := r.Move(t.Context(), 0, high, c, nil); err != nil {
					t.Fatal(err)
				}
			}
			execute(t, clients[0], `SELECT weir.enqueue('q', 'k', key => $1)`, key)
			execute(t, clients[0], `UPDATE weir.slot SET state = 'leaving', peer = $1, copy = NULL WHERE state = 'left'`, peer)
			move := answer[string](t, clients[0], `SELECT move::text FROM weir.slot WHERE state = 'leaving'`)
			execute(t, clients[0], `SELECT weir._depart($1::text::uuid)`, move)
			if answer[int](t, clients[0], departed) != 1 {
				t.Fatal("no job has left")
			}
			if err := r.Move(t.Context(), 0, high, clients[aim], nil); err != nil {
				t.Fatal(err)
			}
			if _, err := clients[0].Pool().Exec(t.Context(), `SELECT weir._close_slots($1::text::uuid)`, move); err == nil {
				t.Error("who still moves the slots is not told that it was given up")
			}
			found := 0
			for _, c := range clients {
				found += len(unfinished(t, c, key)) + 100*answer[int](t, c, departed)
			}
			if found != 1 {
				t.Errorf("there are %d jobs, want 1", found)
			}
			job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key})
			if err != nil || job.Client != clients[aim] {
				t.Errorf("%+v, %v", job, err)
			}
			if n := answer[int](t, clients[2], `SELECT count(*) FROM weir.slot s WHERE s.low = 0 AND s.state = 'owned'`); (n == 1) != (aim == 2) {
				t.Error("two databases own the slots")
			}
		})
	}
}

// TestJobsThatMoveAreCheckedAsThoseThatAreEnqueued: a priority that there is not would be another key's.
func TestJobsThatMoveAreCheckedAsThoseThatAreEnqueued(t *testing.T) {
	t.Parallel()
	_, _, to, key := half(t)
	const takeIn = `SELECT weir._take_in('6ba7b810-9dad-11d1-80b4-00c04fd430c8', $3, $4, jsonb_build_array(jsonb_build_object('queue', 'q', 'kind', 'k', 'args', '{}'::jsonb, 'priority', 2, 'max_attempts', 25, 'attempt', 1, 'put_off', 0, 'key', $1::text, 'enqueued_at', now(), 'is_back', false, 'is_unique', false) || $2::text::jsonb))`
	for _, change := range []string{`{"priority": 9}`, `{"priority": null}`, `{"queue": ""}`, `{"kind": null}`, `{"args": []}`, `{"key": null}`, `{"key": ""}`, `{"attempt": 0}`, `{"put_off": -1}`, `{"meta": 1}`, `{"errors": {}}`, `{"max_attempts": 0}`} {
		if _, err := to.Pool().Exec(t.Context(), takeIn, key, change, "", "8 1 1 1"); !isInvalid(err) {
			t.Errorf("%s: %v", change, err)
		}
	}
	if _, err := to.Pool().Exec(t.Context(), takeIn, key, "{}", nil, "8 1 1 1"); !isInvalid(err) {
		t.Errorf("no place after which they come: %v", err)
	}
	if _, err := to.Pool().Exec(t.Context(), takeIn, key, "{}", "", "somewhere"); !isInvalid(err) {
		t.Errorf("a place that is none: %v", err)
	}
	execute(t, to, takeIn, key, `{"meta": {"weir.flow": 1}}`, "", "8 1 1 1")
	if got := unfinished(t, to, key); len(got) != 1 {
		t.Errorf("the jobs are %v", got)
	}
}

func isInvalid(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "22023"
}
