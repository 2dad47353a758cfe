package proof

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// clockedRate is the arithmetic of a rate, under a clock that the test sets.
type clockedRate struct {
	t        *testing.T
	conn     *pgx.Conn
	bySecond float64
	burst    int
	next     *time.Time
}

// take starts as many as the rate allows at a time, at most most, and returns how many, and when another is allowed if none was.
func (r *clockedRate) take(at time.Time, most int) (n int, again time.Time) {
	r.t.Helper()
	var next time.Time
	if err := r.conn.QueryRow(r.t.Context(), `SELECT k.n, weir._started($1, $2, $3, $4, k.n), weir._starts_at($1, $2, $3, $4)
		FROM (SELECT greatest(0, least($5, weir._starts_now($1, $2, $3, $4))) AS n) k`, r.bySecond, r.burst, r.next, at, most).Scan(&n, &next, &again); err != nil {
		r.t.Fatal(err)
	}
	if n > 0 {
		r.next = &next
	}
	return n, again
}

// TestRatesAreKept: over time a rate starts what it allows, to within 2%, whether it is asked all the time, at its own times or seldom; and in no
// stretch more than that and one burst. The clock is the test's own.
func TestRatesAreKept(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		bySecond float64
		burst    int
		every    time.Duration // between two claims; 0: when the last one says
	}{
		{100, 10, 3 * time.Millisecond}, {100, 10, 0}, {1000, 100, 7 * time.Millisecond}, {1000, 500, 0}, {3, 1, 0}, {0.1, 1, 0},
		{1.0 / 60, 5, time.Second}, {50000, 5000, 10 * time.Millisecond}, {7, 4, 500 * time.Millisecond},
	} {
		r := &clockedRate{t: t, conn: conn, bySecond: c.bySecond, burst: c.burst}
		total, first, at := 0, 0, begin
		for i := range 1500 {
			n, again := r.take(at, 100000)
			if i == 0 {
				first = n
			} else {
				total += n
			}
			most := float64(c.burst) + at.Sub(begin).Seconds()*c.bySecond
			if float64(first+total) > most+0.01 {
				t.Fatalf("%v: %d have started after %v, at most %.1f may", c, first+total, at.Sub(begin), most)
			}
			switch {
			case c.every > 0:
				at = at.Add(c.every)
			case n > 0: // asks once more, and is told when
			case !again.After(at):
				t.Fatalf("%v: none is allowed at %v, and another look is due at %v", c, at, again)
			default:
				at = again
			}
		}
		want := at.Sub(begin).Seconds() * c.bySecond
		if first != c.burst || float64(total) < 0.98*want-1 || float64(total) > 1.02*want+1 {
			t.Errorf("%v: %d at once, then %d in %v, want %d and %.0f", c, first, total, at.Sub(begin), c.burst, want)
		}
	}
}

// TestRatesSurviveStepsOfTheClock: a clock that is set back delays no start beyond the rate's own interval, and allows one at once; one that is set
// forward allows one burst at most. A change of the rate is like a step.
func TestRatesSurviveStepsOfTheClock(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	r := &clockedRate{t: t, conn: conn, bySecond: 10, burst: 5}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if n, _ := r.take(at, 100); n != 5 {
		t.Fatalf("%d start at once, want 5", n)
	}
	at = at.Add(-time.Hour)
	if n, _ := r.take(at, 100); n != 1 {
		t.Errorf("%d start at once after a step back, want 1", n)
	}
	n, again := r.take(at, 100)
	if wait := again.Sub(at); n != 0 || wait <= 0 || wait > 100*time.Millisecond {
		t.Errorf("then %d start, and the next after %v; want none, and one after 100ms", n, wait)
	}
	at = again
	if n, _ := r.take(at, 100); n != 1 {
		t.Errorf("%d start at that time, want 1", n)
	}
	at = at.Add(24 * time.Hour)
	if n, _ := r.take(at, 100); n != 5 {
		t.Errorf("%d start after a step forward, want 5", n)
	}
	at = at.Add(-24 * time.Hour)
	if n, _ := r.take(at.Add(time.Second), 100); n > 5 {
		t.Errorf("%d start a second after the step was undone, want 5 at most", n)
	}
	r.bySecond, r.burst = 0.001, 1
	r.next = new(at.Add(5000 * time.Second))
	r.bySecond, r.burst = 1000, 50
	if n, _ := r.take(at, 100); n != 1 {
		t.Errorf("%d start at once after the rate was raised, want 1", n)
	}
	if n, again := r.take(at, 100); n != 0 || again.Sub(at) > 50*time.Millisecond {
		t.Errorf("then %d start, and the next after %v", n, again.Sub(at))
	}
}

// TestRatesLimitClaims: claims of two workers together start no more than the rate allows, say when there may be more, and reach about the rate; what
// was claimed once counts, whatever becomes of it.
func TestRatesLimitClaims(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	workers := []int32{startWorker(t, conn, "q"), startWorker(t, conn, "q")}
	exec(t, conn, `SELECT weir.set_limit('q', rate => 12000, per => '1 minute', burst => 20)`)
	exec(t, conn, `SELECT weir.set_limit('hourly', rate => 2, per => '1 hour', burst => 2)`)
	enqueueN(t, conn, "q", 5000)
	begin, total := time.Now(), 0
	var took, asked time.Duration
	missed := 0.0 // starts that may have been lost because a busy machine did not claim for longer than a burst covers
	for i := 0; took < 1500*time.Millisecond; i++ {
		before := asked
		asked = time.Since(begin)
		got := mustClaim(t, conn, workers[i%2], "q", 960)
		took = time.Since(begin)
		missed += max(0, 200*(took-before).Seconds()-20)
		total += len(got)
		if most := 20 + 200*took.Seconds(); float64(total) > most+1 {
			t.Fatalf("%d were claimed in %v, at most %.0f may be", total, took, most)
		}
		if i%3 == 0 {
			if _, err := record(t.Context(), conn, workers[i%2], got, "released", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if least := (200*took.Seconds() - missed) / 2; float64(total) < least {
		t.Errorf("%d were claimed in %v, want about %.0f", total, took, 2*least)
	}
	worker := startWorker(t, conn, "hourly")
	enqueueN(t, conn, "hourly", 5)
	wantClaimed(t, "2 in an hour", conn, worker, "hourly", 2)
	var queue string
	var minutes float64
	if err := conn.QueryRow(t.Context(), `SELECT c.queue, extract(epoch FROM c.ready_at - c.enqueued_at) / 60 FROM weir._claim($1, ARRAY['hourly'], ARRAY[1]) c`, worker).Scan(&queue, &minutes); err != nil {
		t.Fatal(err)
	}
	if queue != "hourly" || minutes < 20 || minutes > 30 {
		t.Errorf("the claim says that %s has another in %.1f minutes, want 30", queue, minutes)
	}
	if next := value[float64](t, conn, `SELECT extract(epoch FROM l.next_at - now()) / 60 FROM weir.limits() l WHERE l.queue = 'hourly'`); next < 20 || next > 30 {
		t.Errorf("limits says that the next may start in %.1f minutes, want 30", next)
	}
}

// TestWorkersInPlainSQLWaitForLimits: take returns nothing while a limit is reached, and waits: until another worker's attempt ends, or the rate
// allows a start.
func TestWorkersInPlainSQLWaitForLimits(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set_limit('q', running => 1)`)
	enqueueN(t, conn, "q", 5)
	a, b := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	held := mustClaim(t, conn, a, "q", 5)
	taken := make(chan int, 1)
	go func() { // ends with its call
		n := 0
		for begin := time.Now(); n == 0 && time.Since(begin) < patience; {
			if err := other.QueryRow(t.Context(), `SELECT count(*) FROM weir.take($1) WHERE event = 'job'`, b).Scan(&n); err != nil {
				t.Error(err)
				break
			}
		}
		taken <- n
	}()
	until(t, "take waits", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep')`, other.PgConn().PID())
	})
	select {
	case n := <-taken:
		t.Fatalf("%d were taken at the limit", n)
	default:
	}
	mustComplete(t, conn, a, held)
	if n := pgtest.Receive(t, taken, "a job is taken"); n != 1 {
		t.Errorf("%d were taken after one has ended, want 1", n)
	}
	exec(t, conn, `SELECT weir.set_limit('rated', rate => 4, burst => 1)`)
	enqueueN(t, conn, "rated", 2)
	c := startWorker(t, conn, "rated")
	for i := range 2 { // the second is due within the second that a call waits
		if got := takeSome(t, conn, c, taking{}); len(got) != 1 {
			t.Errorf("call %d has taken %d, want 1", i+1, len(got))
		}
	}
}
