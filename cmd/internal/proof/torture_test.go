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

// TestTorture: producers in every isolation level; workers written in Go, each a process that is killed, and one in plain SQL; hubs with
// subscribers, which are killed too; a server that crashes, fails over to a standby that lags, and back; and what else goes wrong on a bad day
// (faults). Judged from outside, by what surviving transactions themselves noted, and by what the processes said: nothing that was committed
// and survived is lost, no attempt ended twice, none was `running` with nobody running it for longer than two leases, no message came out of
// the log's order or twice, and none is missing without a gap.
func TestTorture(t *testing.T) {
	t.Parallel()
	w := newTorture(t, 8*time.Second)
	w.subscribe()
	w.torment(faults)
	w.judgeJobs()
	w.judgeMessages()
}

// TestNoJobIsRunningWithNobody: workers that are killed, answers that are lost, crashes and failovers to a standby that lags leave no attempt
// `running` that nobody runs for longer than two leases.
func TestNoJobIsRunningWithNobody(t *testing.T) {
	t.Parallel()
	w := newTorture(t, 8*time.Second)
	w.torment([]string{"kill worker", "lose answers", "failover", "kill worker", "lose answers", "lose answers", "cut worker", "crash", "lose answers"})
	w.judgeJobs()
}

// torture is the state of one run.
type torture struct {
	*testing.T
	ctx   context.Context
	seed  uint64
	lease time.Duration
	pace  *time.Ticker // of whoever would go on without end

	// Of the goroutine that does what is bad.
	rng             *rand.Rand
	address         string // of the first primary, with its password
	server, standby *embedded.Server
	workers         []*tortured
	silent, frozen  *tortured
	hubs            []*tortured
	listener        *child
	done            map[string]int // faults
	pinned          *pgx.Conn

	port     atomic.Int32 // of the primary
	life     atomic.Int32 // of the log: how many failovers there were
	acked    atomic.Int64 // commits of producers
	long     atomic.Bool  // a long job is on its way
	common   *proxy       // of producers
	everyone sync.WaitGroup
	stop     context.CancelFunc

	books
	ear
}

// tortured is a process with a way of its own to the database, and, where it is a hub, one to it.
type tortured struct {
	*child
	proxy, front *proxy
	port         atomic.Int32
	begin        func() *child
}

// parameters keep what a run leaves on the disk small.
var parameters = map[string]string{"max_connections": "80", "max_wal_size": "64MB", "min_wal_size": "32MB", "wal_keep_size": "64MB"}

func newTorture(t *testing.T, lease time.Duration) *torture {
	w := &torture{T: t, seed: newSeed(t), lease: lease, pace: time.NewTicker(15 * time.Millisecond), done: map[string]int{}}
	w.rng = rand.New(rand.NewPCG(w.seed, 1))
	w.ctx, w.stop = context.WithCancel(t.Context())
	t.Cleanup(func() {
		w.stop()
		w.everyone.Wait()
	})
	w.books.begin()
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
	for i := range 3 {
		w.addWorker(i)
	}
	return w
}

// notebook is where the torture notes, in the very transactions, what happens. What it notes of ends is there or lost with them.
const notebook = `
CREATE TABLE produced (key text NOT NULL, id bigint NOT NULL, tx boolean NOT NULL);
CREATE TABLE effect (key text NOT NULL);
CREATE TABLE ended (lane integer, seq bigint, worker integer, outcome weir.outcome, id bigint);
CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.ended SELECT NEW.lane, NEW.seq, NEW.worker, NEW.outcome, unnest(NEW.ids);
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

// as is an address for the role with the nasty settings.
func (w *torture) as(role, address string) string {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		w.Fatal(err)
	}
	return "postgres://" + role + ":" + role + "@" + config.Host + ":" + itoa(int64(config.Port)) + "/" + config.Database + "?sslmode=disable"
}

// addWorker starts a worker with a way of its own to the database. The first is of the role with the nasty settings; the last reaches the server
// itself, and attends.
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
		return w.play(part{Do: "work", Database: address, Lease: w.lease}, w.books.heard)
	}
	k.child = k.begin()
	w.workers = append(w.workers, k)
}

// torment has everybody work while one bad thing happens after the other: each of those named at least once, in an order drawn by lot, and on until
// the time is over. Then all that is bad ends.
func (w *torture) torment(deck []string) {
	long := *longFlag // or no longer than it takes to do each once
	produce, enough := context.WithCancel(w.ctx)
	defer enough()
	var producers sync.WaitGroup
	for i := range 3 {
		rng := rand.New(rand.NewPCG(w.seed, uint64(100+i)))
		producers.Go(func() { w.produce(produce, rng, i) })
	}
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
			<-faulty.C // for so long there is no new fault
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
