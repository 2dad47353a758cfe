package relay_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
)

// process is this test's binary as another program. It ends, at the latest, when this one does, which its standard input tells it.
func process(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asVariable+"="+as)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // which Wait closes
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	cmd.Process.Kill() //nolint:errcheck // it may have ended
	cmd.Wait()         //nolint:errcheck // it was killed
}

// program is a process that the test kills, and starts anew.
type program struct {
	as   string
	args []string
	*exec.Cmd
}

func killable(t *testing.T, as string, args ...string) *program {
	t.Helper()
	p := &program{as, args, process(t, as, args...)}
	t.Cleanup(func() { kill(p.Cmd) })
	return p
}

func (p *program) replace(t *testing.T) {
	t.Helper()
	kill(p.Cmd)
	if p.ProcessState.Exited() {
		t.Errorf("the %s has ended by itself", p.as)
	}
	p.Cmd = process(t, p.as, p.args...)
}

var kills = flag.Int("kills", 4, "how often TestNothingIsLostOrDoubledThoughEachSideIsKilled kills something with each broker: a quarter of these times the broker, a quarter PostgreSQL, and otherwise a relay; with webhooks, each of four sides a quarter")

// dying is a broker that the test kills, with what relays pass on to it and from it.
type dying struct {
	kill, start func()
	messages    []*end  // which get each number in order
	jobs        *end    // which gets them in any order
	source      *source // nil: no relay reads from this broker
}

// source is a stream of which jobs are made, in order.
type source struct {
	*end
	publish func(ctx context.Context, n int) error // adds a number, once, however often it is called
	held    func(n int) []string                   // what the stream has, once there are n
}

// TestNothingIsLostOrDoubledThoughEachSideIsKilled: relays of messages, of jobs and from a broker, the broker, and PostgreSQL are killed as by kill -9, and of the two processes that run the relays now
// one and now the other: the one that passes on, or the one that stands by.
func TestNothingIsLostOrDoubledThoughEachSideIsKilled(t *testing.T) {
	pgtest.Alone(t, "it kills processes all the time")
	t.Run("NATS", func(t *testing.T) { killEachSide(t, dyingNATS) })
	t.Run("Kafka", func(t *testing.T) { killEachSide(t, dyingKafka) })
	t.Run("Redis", func(t *testing.T) { killEachSide(t, dyingRedis) })
	t.Run("another database", func(t *testing.T) { killEachSide(t, dyingDatabase) })
	t.Run("webhooks", killEachSideOfWebhooks)
}

func killEachSide(t *testing.T, prepare func(*testing.T, *pgxpool.Pool) *dying) {
	pg := pgtest.Installed(t, nil)
	pool := pgtest.Pool(t, pg.URL("postgres"))
	broker := prepare(t, pool)
	ends := append(slices.Clone(broker.messages), broker.jobs)
	published, fed := publishing(t, publisher(t, pool, `weir.publish('orders', it::text), weir.enqueue('orders', 'order', it)`)), func() []int { return nil }
	if broker.source != nil {
		ends = append(ends, broker.source.end)
		fed = publishing(t, broker.source.publish)
	}
	relays := twoRelays(t, pg.URL("postgres"), ends)

	killed := map[string]int{}
	for n := range *kills {
		progress(t, ends) // somebody publishes, and each relay passes on, between one kill and the next
		switch n % 4 {
		case 0: // first: the jobs of a process that was killed before wait for its whole lease afterwards
			killed["PostgreSQL"]++
			killPostgres(t, pg)
		case 1, 3:
			killed["relays"]++
			relays[n/2%2].replace(t)
		case 2:
			killed["the broker"]++
			broker.kill()
			broker.start()
		}
	}
	progress(t, ends) // and whoever passes on now has sent again what it would
	made, given := published(), fed()
	t.Logf("killed: %v", killed)
	for _, e := range broker.messages {
		e.has(t, made, true)
	}
	allCompleted(t, pool, "orders") // so none is sent again from here on
	broker.jobs.has(t, made, false)
	if s := broker.source; s != nil {
		held := numbersIn(t, s.held(len(given)))
		if !slices.Equal(held, given) {
			t.Errorf("what the stream itself has %s", compare(held, given))
		}
		s.has(t, held, true)
	}
}

// publisher publishes numbers with an SQL expression of it, the payload. It has a row for each number, in the same transaction: so it knows after a crash which are committed.
func publisher(t *testing.T, pool *pgxpool.Pool, expression string) func(ctx context.Context, n int) error {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `CREATE TABLE made (n integer PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, n int) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := pool.Exec(ctx, `WITH one AS (INSERT INTO made VALUES ($1) ON CONFLICT DO NOTHING RETURNING jsonb_build_object('n', n) AS it) SELECT `+expression+` FROM one`, n)
		return err
	}
}

func killPostgres(t *testing.T, pg *embedded.Server) {
	t.Helper()
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// twoRelays are the processes that run the relays.
func twoRelays(t *testing.T, url string, ends []*end) [2]*program {
	t.Helper()
	var text []byte
	for _, e := range ends {
		text = append(text, "[relay."+e.relay+"]\nmax_records = 50\n"+e.settings+"\n"...)
	}
	file := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return [2]*program{killable(t, "relay", url, file), killable(t, "relay", url, file)}
}

// allCompleted waits until all jobs of a queue have completed. Processes that were killed hold some of them, each for a lease, of which only the time counts in which the server is up and somebody looks.
func allCompleted(t *testing.T, pool *pgxpool.Pool, queue string) {
	t.Helper()
	begin := time.Now()
	states := slices.DeleteFunc(slices.Clone(weir.States), func(s weir.State) bool { return s == weir.StateCompleted })
	for {
		left, err := someJob(t, pool, weir.JobsParams{Queue: queue, States: states})
		if err == nil && left == nil { // or it came into another list between two pages
			left, err = someJob(t, pool, weir.JobsParams{Queue: queue, States: states})
		}
		switch {
		case err == nil && left == nil:
			t.Logf("all jobs have completed %v later", time.Since(begin).Round(time.Millisecond))
			return
		case time.Since(begin) < 5*patience:
			sleep.For(t.Context(), 100*time.Millisecond)
		case err != nil:
			t.Fatal(err)
		default:
			t.Fatalf("after %v, job %d is %s", time.Since(begin).Round(time.Second), left.ID, left.State)
		}
	}
}

// someJob returns one of the jobs in a list; nil: there is none. A page may have none although a later one has some, as what a page reads is bounded.
func someJob(t *testing.T, pool *pgxpool.Pool, list weir.JobsParams) (*weir.JobInfo, error) {
	t.Helper()
	for list.Limit = 1; ; {
		page, err := weir.NewClient(pool).Jobs(t.Context(), list)
		switch {
		case err != nil:
			return nil, err
		case len(page.Jobs) > 0:
			return &page.Jobs[0], nil
		case page.Next == "":
			return nil, nil
		}
		list.After = page.Next
	}
}
