package proof

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestTorture: while producers use every isolation level, workers in Go and SQL and hubs are killed, and the server crashes and fails over to a
// lagging standby, among other faults, nothing that was committed and survived is lost, no attempt ends twice, no attempt is shown as running
// without a worker for longer than two leases, which count anew when the server starts, and subscribers receive messages in order, once, and with a gap if any are missing. The test
// compares what surviving transactions have recorded with what the processes have reported.
func TestTorture(t *testing.T) {
	t.Parallel()
	w := newTorture(t, 8*time.Second)
	w.subscribe()
	w.torment(faults)
	w.endFeatures()
	w.judgeJobs()
	w.judgeFeatures()
	w.judgeMessages()
}

// TestNoJobIsRunningWithNobody: after kills of workers, lost answers, crashes and failovers to a lagging standby, no attempt is shown as running
// without a worker for longer than two leases, which count anew when the server starts.
func TestNoJobIsRunningWithNobody(t *testing.T) {
	t.Parallel()
	w := newTorture(t, 8*time.Second)
	w.torment([]string{"kill worker", "lose answers", "failover", "kill worker", "lose answers", "lose answers", "cut worker", "crash", "lose answers"})
	w.endFeatures()
	w.judgeJobs()
}

// torture is the state of a run.
type torture struct {
	*testing.T
	ctx   context.Context
	seed  uint64
	lease time.Duration
	pace  *time.Ticker // limits endless loops

	// Used only by the goroutine that causes faults.
	rng             *rand.Rand
	address         string // URL of the first primary, with its password
	server, standby *embedded.Server
	workers         []*tortured
	silent, frozen  *tortured
	hubs            []*tortured
	listener        *child
	done            map[string]int // number of faults, by name
	pinned          *pgx.Conn

	port     atomic.Int32 // port of the primary
	life     atomic.Int32 // life of the log: the number of failovers
	acked    atomic.Int64 // acknowledged commits of producers
	long     atomic.Bool  // a long job exists
	common   *proxy       // used by producers
	everyone sync.WaitGroup
	stop     context.CancelFunc

	ledger
	inbox
	featured
}

// tortured is a process with its own proxy to the database, and a hub also has one in front of it.
type tortured struct {
	*child
	proxy, front *proxy
	port         atomic.Int32
	begin        func() *child
}

// parameters limit the disk space that a run uses.
var parameters = map[string]string{"max_connections": "80", "max_wal_size": "64MB", "min_wal_size": "32MB", "wal_keep_size": "64MB"}

func newTorture(t *testing.T, lease time.Duration) *torture {
	w := &torture{T: t, seed: newSeed(t), lease: lease, pace: time.NewTicker(15 * time.Millisecond), done: map[string]int{}}
	w.rng = rand.New(rand.NewPCG(w.seed, 1))
	w.ctx, w.stop = context.WithCancel(t.Context())
	t.Cleanup(func() {
		w.stop()
		w.everyone.Wait()
	})
	w.ledger.begin()
	w.server = pgtest.Server(t, parameters)
	w.address = w.server.URL("postgres")
	w.port.Store(int32(w.server.Port()))
	conn := connect(t, w.address)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, notebook)
	w.first = newest(t, conn)
	w.standby = pgtest.Standby(t, w.server, nil)
	w.common = newProxy(t, &w.port)
	w.useFeatures()
	for i := range 3 {
		w.addWorker(i)
	}
	return w
}

// notebook creates tables in which transactions of the test record what they do. Ends of attempts are recorded in their own transactions.
const notebook = `
CREATE TABLE produced (key text NOT NULL, id bigint NOT NULL, tx boolean NOT NULL);
CREATE TABLE effect (key text NOT NULL);
CREATE TABLE ended (lane bigint, seq bigint, worker integer, outcome weir.outcome, id bigint, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.ended (lane, seq, worker, outcome, id) SELECT NEW.lane, NEW.seq, NEW.worker, NEW.outcome, unnest(NEW.ids);
  RETURN NULL;
END
$$;
CREATE TRIGGER note_end AFTER INSERT ON weir.result FOR EACH ROW EXECUTE FUNCTION note_end();
SELECT weir.set('retention_bytes', '1048576');
CREATE ROLE hasty LOGIN PASSWORD 'hasty' IN ROLE weir_enqueue, weir_work, weir_publish;
GRANT ALL ON produced, effect TO hasty;
ALTER ROLE hasty SET statement_timeout = '2s';
ALTER ROLE hasty SET lock_timeout = '100ms';
ALTER ROLE hasty SET idle_in_transaction_session_timeout = '3s';
ALTER ROLE hasty SET synchronous_commit = off;
ALTER ROLE hasty SET plan_cache_mode = force_custom_plan;
ALTER ROLE hasty SET default_transaction_isolation = serializable;
ALTER ROLE hasty SET default_transaction_deferrable = on;
ALTER ROLE hasty SET work_mem = '64kB';
`

// as returns the address with another role, such as the one with harmful settings.
func (w *torture) as(role, address string) string {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		w.Fatal(err)
	}
	return "postgres://" + role + ":" + role + "@" + config.Host + ":" + itoa(int64(config.Port)) + "/" + config.Database + "?sslmode=disable"
}

// addWorker starts a worker with its own proxy to the database. The first uses the role with harmful settings; the last connects directly to the
// server, and attends.
func (w *torture) addWorker(i int) {
	k := &tortured{}
	if i < 2 {
		k.proxy = newProxy(w.T, &w.port)
	}
	k.begin = func() *child {
		address := w.server.URL("postgres")
		switch i {
		case 0:
			address = w.as("hasty", k.proxy.url(w.T, w.address))
		case 1:
			address = k.proxy.url(w.T, w.address)
		}
		return w.play(part{Do: "work", Database: address, Lease: w.lease, Declares: i == 2}, func(c *child, words []string) {
			if words[0] == "read" || words[0] == "stored" {
				w.heardStep(words)
			} else {
				w.ledger.heard(c, words)
			}
		})
	}
	k.child = k.begin()
	w.workers = append(w.workers, k)
}

// torment runs producers and workers while it causes one fault after the other: each fault of the deck at least once, in random order, and more
// until the time is over. Then it ends all faults.
func (w *torture) torment(deck []string) {
	long := *longFlag // at least as long as it takes to cause each fault once
	produce, enough := context.WithCancel(w.ctx)
	defer enough()
	var producers sync.WaitGroup
	for i := range 3 {
		rng := rand.New(rand.NewPCG(w.seed, uint64(100+i)))
		producers.Go(func() { w.produce(produce, rng, i) })
		address, n := w.common.url(w.T, w.address), 0
		if i == 0 {
			address = w.as("hasty", address)
		}
		features := rand.New(rand.NewPCG(w.seed, uint64(300+i)))
		producers.Go(func() {
			w.loops(produce, 40*time.Millisecond, address, func(conn *pgx.Conn) error { return w.produceFeatures(conn, features, i, &n) })
		})
	}
	operator := rand.New(rand.NewPCG(w.seed, 400))
	producers.Go(func() {
		w.loops(produce, 100*time.Millisecond, w.common.url(w.T, w.address), func(conn *pgx.Conn) error { return w.operate(conn, operator) })
	})
	w.everyone.Go(func() { w.takeInSQL(w.common.url(w.T, w.address), rand.New(rand.NewPCG(w.seed, 500))) })
	for i := range 2 {
		w.everyone.Go(func() { w.workInSQL(rand.New(rand.NewPCG(w.seed, uint64(200+i)))) })
	}
	w.everyone.Go(w.watch)

	faulty := time.NewTicker(400 * time.Millisecond)
	defer faulty.Stop()
	begun := time.Now()
	for dealt := 0; dealt < len(deck) || time.Since(begun) < long; {
		order := w.rng.Perm(len(deck))
		for _, i := range order {
			<-faulty.C // pause between faults
			if dealt++; dealt > len(deck) && time.Since(begun) >= long {
				break
			}
			w.done[deck[i]]++
			w.fault(deck[i])
		}
	}
	enough()
	producers.Wait()
	w.mend()
}
