package weir_test

import (
	"context"
	"fmt"
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

// clients returns clients of the same databases, which it stops.
func (p *pauser) clients(t *testing.T, clients ...*weir.Client) (own []*weir.Client) {
	t.Helper()
	for _, c := range clients {
		config := c.Pool().Config()
		config.ConnConfig.Tracer = p
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		own = append(own, weir.NewClient(pool))
	}
	return own
}

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
		own := p.clients(t, from, to)
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

// TestWhoGivesUpAMoveLeavesALaterOneAlone: who gives up a move stands still once the databases were asked; that move ends meanwhile, the slots move back, and begin to move again.
func TestWhoGivesUpAMoveLeavesALaterOneAlone(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	peer := owners(t, r)[1].Database
	move := answer[string](t, from, `SELECT move::text FROM weir._leave_slots(0, $1, $2)`, firstHalf, peer)
	copied := answer[string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move)
	execute(t, to, `SELECT weir._own_slots(0, $1, 2, $2::text::uuid, '')`, firstHalf, copied) // and the mover dies
	p := &pauser{paused: make(chan struct{}), resume: make(chan struct{})}
	own := p.clients(t, from, to)
	giver := routerOf(t, own...)
	p.left.Store(3) // two ask which slots are owned
	ended := make(chan error, 1)
	go func() { ended <- giver.Move(t.Context(), 0, firstHalf, own[0], nil) }()
	pgtest.Receive(t, p.paused, "the giver stands still")
	for _, c := range []*weir.Client{to, from} {
		if err := r.Move(t.Context(), 0, firstHalf, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, from, `SELECT weir._leave_slots(0, $1, $2)`, firstHalf, peer)
	close(p.resume)
	if err := pgtest.Receive(t, ended, "the giver ends"); err != nil { // it looks again, and gives up that move, as it is to
		t.Error(err)
	}
	if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != from {
		t.Errorf("%+v, %v", job, err)
	}
}

// TestManyJobsAreGivenBackAPageAtATime: each page is a transaction. Once one is logged again, nobody goes on with the move; whoever gives it up goes on with that, without the other
// database, and each job that has not arrived there is logged once, in its order.
func TestManyJobsAreGivenBackAPageAtATime(t *testing.T) {
	t.Parallel()
	const jobs, arrived = 1300, 3
	for state, stays := range map[string]int{"leaving": jobs, "copying": jobs - arrived} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			r, from, to, key := half(t)
			execute(t, from, `SELECT weir.enqueue('q', 'k', jsonb_build_object('n', n), key => $1) FROM generate_series(1, $2::int) n`, key, jobs)
			move := answer[string](t, from, `SELECT move::text FROM weir._leave_slots(0, $1, $2)`, firstHalf, owners(t, r)[1].Database)
			for answer[int](t, from, `SELECT departed FROM weir._depart($1::text::uuid)`, move) > 0 {
			}
			const stay = `SELECT coalesce(next, '') FROM weir._stay($1::text::uuid, 2, NULL, nullif($2, '')::uuid, $3)`
			copied, upto := "", ""
			if state == "copying" {
				copied = answer[string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move)
				upto = answer[string](t, from, `SELECT place FROM weir._departing($1::text::uuid, '') LIMIT 1 OFFSET $2`, move, arrived-1)
				page := answer[string](t, from, `SELECT '[' || string_agg(d.job, ',') || ']' FROM (SELECT job FROM weir._departing($1::text::uuid, '') LIMIT $2) d`, move, arrived)
				execute(t, to, `SELECT weir._take_in($1::text::uuid, '', $2, $3::text::jsonb)`, copied, upto, page)
				answer[string](t, to, `SELECT weir._stop_taking($1::text::uuid)`, copied)
			}
			if next := answer[string](t, from, stay, move, copied, upto); next == "" {
				t.Fatal("all is given up in one step")
			}
			if here, gone := len(order(t, from)), answer[int](t, from, departed); here != 500 || here+gone != stays {
				t.Fatalf("after one step, %d jobs are in the log, and %d of %d out of it", here, gone, stays)
			}
			for _, sql := range []string{`SELECT weir._close_slots($1::text::uuid)`, `SELECT * FROM weir._departing($1::text::uuid, '')`} {
				if _, err := from.Pool().Exec(t.Context(), sql, move); err == nil {
					t.Errorf("%s: no error", sql)
				}
			}
			execute(t, from, `SELECT weir._depart($1::text::uuid), weir._clear_departed($1::text::uuid)`, move)
			if err := r.Move(t.Context(), 0, firstHalf, to, nil); err == nil {
				t.Error("a move goes on that is half given up")
			}
			if _, err := r.Owners(t.Context()); err != nil || !owners(t, r)[0].Moving {
				t.Errorf("the slots are owned before all is given back (%v)", err)
			}
			if here, gone := len(order(t, from)), answer[int](t, from, departed); here != 500 || here+gone != stays {
				t.Fatalf("nobody gave back, and %d jobs are in the log, and %d of %d out of it", here, gone, stays)
			}
			if err := routerOf(t, from).Move(t.Context(), 0, firstHalf, from, nil); err != nil {
				t.Fatal(err)
			}
			all := order(t, from)
			if len(all) != stays || answer[int](t, from, departed) != 0 || !slices.IsSorted(all) || len(slices.Compact(all)) != stays {
				t.Errorf("%d jobs are in the log, want %d, in their order", len(all), stays)
			}
			if job, err := r.Enqueue(t.Context(), step{key, 1}, &weir.Options{Key: key}); err != nil || job.Client != from {
				t.Errorf("%+v, %v", job, err)
			}
		})
	}
}

// order returns the numbers of a database's jobs, in the order in which they are logged.
func order(t *testing.T, c *weir.Client) []int {
	t.Helper()
	return answer[[]int](t, c, `SELECT coalesce(array_agg((j.args ->> 'n')::int ORDER BY j.xid, j.id), '{}') FROM weir.job j`)
}

// TestWhoGivesUpAMoveMayBeThoughtDead: it stands still before each of its statements, another one gives up the move, or goes on with it if it can be, and the first one goes on. Each job
// is in one of the databases in the end, and one of them owns the slots.
func TestWhoGivesUpAMoveMayBeThoughtDead(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		for _, aim := range []int{0, 1} {
			t.Run(fmt.Sprintf("closed %v, aim %d", closed, aim), func(t *testing.T) {
				t.Parallel()
				r, from, to, key := half(t)
				peer := owners(t, r)[1].Database
				enqueued := 0
				for after := int32(1); ; after++ {
					more := 600 - answer[int](t, from, `SELECT count(*) FROM weir.job`) // more than a page
					execute(t, from, `SELECT weir.enqueue('q', 'k', key => $1) FROM generate_series(1, $2::int)`, key, more)
					enqueued += more
					move := answer[string](t, from, `SELECT move::text FROM weir._leave_slots(0, $1, $2)`, firstHalf, peer)
					for answer[int](t, from, `SELECT departed FROM weir._depart($1::text::uuid)`, move) > 0 {
					}
					if closed {
						answer[string](t, from, `SELECT weir._close_slots($1::text::uuid)::text`, move)
					}
					p := &pauser{paused: make(chan struct{}), resume: make(chan struct{})}
					resume := sync.OnceFunc(func() { close(p.resume) })
					defer resume()
					own := p.clients(t, from, to)
					giver := routerOf(t, own...)
					p.left.Store(after)
					ended := make(chan error, 1)
					go func() { ended <- giver.Move(t.Context(), 0, firstHalf, own[0], nil) }()
					var err error
					paused := false
					select {
					case <-p.paused:
						paused = true
						if err := r.Move(t.Context(), 0, firstHalf, []*weir.Client{from, to}[aim], nil); err != nil && aim == 0 {
							t.Fatalf("before statement %d: %v", after, err)
						}
						resume()
						err = pgtest.Receive(t, ended, "the giver ends")
					case err = <-ended:
					}
					if err != nil {
						t.Fatalf("the giver stood still before statement %d: %v", after, err)
					}
					for _, c := range own {
						c.Pool().Close()
					}
					const count = `SELECT count(*) FROM weir.job`
					here, there, gone := answer[int](t, from, count), answer[int](t, to, count), answer[int](t, from, departed)+answer[int](t, to, departed)
					if here+there != enqueued || gone != 0 {
						t.Fatalf("before statement %d: of %d jobs, one database has %d, the other %d, and %d are in neither", after, enqueued, here, there, gone)
					}
					if aim == 1 { // the slots may have moved once more, after they had been given up
						if err := r.Move(t.Context(), 0, firstHalf, from, nil); err != nil {
							t.Fatalf("before statement %d: %v", after, err)
						}
					}
					if all := owners(t, r); all[0].Client != from {
						t.Fatalf("before statement %d: the slots are %+v", after, all[0])
					}
					if !paused {
						if after < 6 {
							t.Errorf("the giver has only %d statements", after)
						}
						return
					}
				}
			})
		}
	}
}
