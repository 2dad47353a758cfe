package weir_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

const departed = `SELECT count(*) FROM weir.departed`

// TestAMoveIsGivenUpWhileAJobRuns: nobody waits for the job, what has left is logged again, and the database owns the slots. The mover is told so.
func TestAMoveIsGivenUpWhileAJobRuns(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	execute(t, from, `SELECT weir.enqueue('w', 'runs', key => $1)`, key)
	worker := answer[int32](t, from, `SELECT weir.start('w', '{w}')`)
	token := answer[string](t, from, `SELECT token FROM weir.take($1, wait => '0 s') WHERE event = 'job'`, worker)
	execute(t, from, `SELECT weir.enqueue('q', 'waits', key => $1), weir.enqueue('q', 'is scheduled', key => $1, run_at => now() + interval '1 hour')`, key)
	left, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- r.Move(t.Context(), 0, firstHalf, to, func(p weir.MoveProgress) {
			if p.Departed == 2 && p.Running == 1 {
				select {
				case left <- struct{}{}:
				default:
				}
			}
		})
	}()
	pgtest.Receive(t, left, "all jobs but the one that runs have left")
	if err := routerOf(t, from, to).Move(t.Context(), 0, firstHalf, from, nil); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, ended, "the mover ends"); err == nil {
		t.Error("the mover is not told that the move was given up")
	}
	if got := unfinished(t, from, key); len(got) != 2 || len(unfinished(t, to, key)) != 0 || answer[int](t, from, departed) != 0 {
		t.Errorf("the jobs are %v", got)
	}
	execute(t, from, `SELECT weir.record($1, jsonb_build_array(jsonb_build_object('token', $2::text, 'outcome', 'completed'))::text)`, worker, token)
	if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != from {
		t.Errorf("%+v, %v", job, err)
	}
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Error(err)
	}
	if got := unfinished(t, to, key); len(got) != 3 {
		t.Errorf("when they move again, the jobs are %v", got)
	}
}

// TestAMoveThatIsGivenUpLeavesWhatHasArrived: the other jobs are logged again; and whoever still copies logs nothing any more, and makes nobody the owner.
func TestAMoveThatIsGivenUpLeavesWhatHasArrived(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	execute(t, from, `SELECT weir.enqueue('q', 'arrives', key => $1), weir.enqueue('r', 'does not', key => $1)`, key)
	move := answer[string](t, from, `SELECT move::text FROM weir._leave_slots(0, $1, $2)`, firstHalf, owners(t, r)[1].Database)
	execute(t, from, `SELECT weir._depart($1::text::uuid)`, move)
	copied := answer[string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move)
	var places, jobs []string
	rows, err := from.Pool().Query(t.Context(), `SELECT place, job FROM weir._departing($1::text::uuid, '')`, move)
	if err != nil {
		t.Fatal(err)
	}
	var place, job string
	if _, err := pgx.ForEachRow(rows, []any{&place, &job}, func() error { places, jobs = append(places, place), append(jobs, job); return nil }); err != nil || len(jobs) != 2 {
		t.Fatalf("%v, %v", jobs, err)
	}
	const takeIn = `SELECT weir._take_in($1::text::uuid, $2, $3, ('[' || $4::text || ']')::jsonb)`
	execute(t, to, takeIn, copied, "", places[0], jobs[0])
	for range 2 { // as two who give it up, or one who was interrupted
		answer[string](t, to, `SELECT weir._stop_taking($1::text::uuid)`, copied)
	}
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err == nil {
		t.Error("a move goes on that is half given up")
	}
	if err := r.Move(t.Context(), 0, firstHalf, from, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Pool().Exec(t.Context(), takeIn, copied, places[0], places[1], jobs[1]); err == nil {
		t.Error("a job arrives by a move that was given up")
	}
	if _, err := to.Pool().Exec(t.Context(), `SELECT weir._own_slots(0, $1, 2, $2::text::uuid, $3)`, firstHalf, copied, places[0]); err == nil {
		t.Error("slots are owned by a move that was given up")
	}
	if here, there := unfinished(t, from, key), unfinished(t, to, key); len(here) != 1 || len(there) != 1 || answer[int](t, from, departed) != 0 {
		t.Errorf("the jobs are %v, and those that had arrived %v", here, there)
	}
	if client, err := r.Client(t.Context(), key); err != nil || client != from {
		t.Errorf("the owner is another one (%v)", err)
	}
}

func owners(t *testing.T, r *weir.Router) []weir.SlotOwner {
	t.Helper()
	all, err := r.Owners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// pauser stops whoever makes a statement, when so many have begun, until it may go on.
type pauser struct {
	left           atomic.Int32
	paused, resume chan struct{}
}

func (p *pauser) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if p.left.Add(-1) == 0 {
		close(p.paused)
		<-p.resume
	}
	return ctx
}

func (p *pauser) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestAMoverThatWasThoughtDeadDoesNoHarm: it stands still before each of its statements, another one gives its move up, or moves the slots as well, and then it goes on. Each job is in
// one of the databases in the end, and one of them owns the slots.
func TestAMoverThatWasThoughtDeadDoesNoHarm(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	enqueued, again := 0, 0
	for after := int32(1); ; after++ {
		for range 3 {
			enqueued++
			if _, err := r.Enqueue(t.Context(), step{key, enqueued}, &weir.Options{Key: key}); err != nil {
				t.Fatal(err)
			}
		}
		p := &pauser{paused: make(chan struct{}), resume: make(chan struct{})}
		resume := sync.OnceFunc(func() { close(p.resume) })
		defer resume()
		var own []*weir.Client
		for _, c := range []*weir.Client{from, to} {
			config := c.Pool().Config()
			config.ConnConfig.Tracer = p
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			own = append(own, weir.NewClient(pool))
		}
		mover := routerOf(t, own...)
		p.left.Store(after)
		ended := make(chan error, 1)
		go func() { ended <- mover.Move(t.Context(), 0, firstHalf, own[1], nil) }()
		paused := false
		select {
		case <-p.paused:
			paused = true
			if err := r.Move(t.Context(), 0, firstHalf, from, nil); err != nil {
				t.Fatalf("given up before statement %d: %v", after, err)
			}
			if after%2 == 0 {
				if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
					t.Fatalf("moved again before statement %d: %v", after, err)
				}
			}
			resume()
			if err := pgtest.Receive(t, ended, "the mover ends"); err != nil {
				again++
			}
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
		}
		resume()
		for _, c := range own {
			c.Pool().Close()
		}
		here, there := unfinished(t, from, key), unfinished(t, to, key)
		if len(here)+len(there) != enqueued {
			t.Fatalf("given up before statement %d: of %d jobs, one database has %d, and the other %d", after, enqueued, len(here), len(there))
		}
		if n := answer[int](t, from, departed) + answer[int](t, to, departed); n != 0 {
			t.Fatalf("given up before statement %d: %d jobs are neither here nor there", after, n)
		}
		if i := slices.IndexFunc(owners(t, r), func(o weir.SlotOwner) bool { return o.Client == nil }); i >= 0 {
			t.Fatalf("given up before statement %d: nobody owns some slots, or they move", after)
		}
		if err := r.Move(t.Context(), 0, firstHalf, from, nil); err != nil {
			t.Fatal(err)
		}
		if !paused {
			if after < 8 || again < 3 {
				t.Errorf("the mover has only %d statements, and %d times an error", after, again)
			}
			return
		}
	}
}
