package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// estate is a MultiWorker with its databases.
type estate struct {
	*testing.T
	clients []*weir.Client
	urls    []string
	multi   *weir.MultiWorker
	log     *pgtest.Log

	mu     sync.Mutex
	listed []string
	err    error
}

// newEstate has databases, and a worker that is not started.
func newEstate(t *testing.T, databases int, run func(context.Context, *weir.Job[number]) error, change func(*weir.MultiWorkerConfig)) *estate {
	t.Helper()
	e := &estate{T: t, log: &pgtest.Log{}}
	for range databases {
		url := pgtest.Database(t)
		e.urls = append(e.urls, url)
		e.clients = append(e.clients, weir.NewClient(pgtest.Pool(t, url)))
	}
	e.list(e.urls...)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, run)
	cfg := weir.MultiWorkerConfig{
		WorkerConfig: weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 4}, Logger: e.log.Logger()},
		Databases: func(context.Context) ([]string, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.listed, e.err
		},
		RefreshEvery: 20 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if e.multi, err = weir.NewMultiWorker(cfg); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *estate) list(urls ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listed = urls
}

func (e *estate) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.multi.Run(ctx) }()
	e.Cleanup(func() {
		cancel()
		if err := pgtest.Receive(e.T, ended, "the worker stops"); err != nil {
			e.Error(err)
		}
		if e.Failed() {
			e.Log(e.log)
		}
	})
}

func (e *estate) enqueue(n, jobs int) {
	e.Helper()
	for i := range jobs {
		if _, err := e.clients[n].Enqueue(e.Context(), number{i}, nil); err != nil {
			e.Fatal(err)
		}
	}
}

// states returns those of all databases, in the order of the list.
func (e *estate) states() (all []weir.DatabaseState) {
	known := e.multi.Databases()
	for _, url := range e.urls {
		state := weir.DatabaseState("unknown")
		for _, d := range known {
			if d.Name == url {
				state = d.State
			}
		}
		all = append(all, state)
	}
	return all
}

func (e *estate) until(n int, want weir.DatabaseState) {
	e.Helper()
	pgtest.Until(e.T, fmt.Sprintf("database %d is %s", n, want), func() bool { return e.states()[n] == want })
}

// databasesAt returns so many new databases of one server.
func databasesAt(t *testing.T, server *embedded.Server, n int) (urls []string) {
	t.Helper()
	admin := pgtest.Pool(t, server.URL("postgres"))
	for i := range n {
		sql := fmt.Sprintf("CREATE DATABASE d%d TEMPLATE d0", i)
		if i == 0 {
			sql = "CREATE DATABASE d0"
		}
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, server.URL(fmt.Sprintf("d%d", i)))
		if i == 0 {
			migrate(t, urls[0])
		}
	}
	return urls
}

// TestManyDatabasesOfOneServerStartWithoutItsConnections: it need not have more than one for each, and some for those that start at the time.
func TestManyDatabasesOfOneServerStartWithoutItsConnections(t *testing.T) {
	t.Parallel()
	const databases = 60
	server := pgtest.Server(t, map[string]string{"max_connections": strconv.Itoa(databases + 30), "max_wal_size": "4GB"})
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error { return nil }, func(cfg *weir.MultiWorkerConfig) { cfg.RefreshEvery = 0 })
	e.urls = databasesAt(t, server, databases)
	e.list(e.urls...)
	e.run()
	for n := range e.urls {
		e.until(n, weir.DatabaseIdle)
	}
	if text := e.log.String(); strings.Contains(text, "53300") || strings.Contains(text, "too many clients") {
		t.Errorf("the server's connections did not suffice: %s", text)
	}
}

// TestManyDatabasesShareTheirConcurrency: all jobs of all databases run, no more of them at once than the queue allows, and each with the client of its database.
func TestManyDatabasesShareTheirConcurrency(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now, most := 0, 0
	ran := map[string]int{}
	e := newEstate(t, 5, func(ctx context.Context, job *weir.Job[number]) error {
		mu.Lock()
		now++
		most = max(most, now)
		ran[job.Client().Pool().Config().ConnConfig.Database]++
		mu.Unlock()
		var there bool // the job runs in its database, and in no other
		err := job.Client().Pool().QueryRow(ctx, `SELECT EXISTS (SELECT FROM weir.jobs('running') WHERE id = $1 AND args = to_jsonb($2::json))`, job.ID, fmt.Sprintf(`{"n": %d}`, job.Args.N)).Scan(&there)
		mu.Lock()
		now--
		mu.Unlock()
		if err == nil && !there {
			err = errors.New("the job is not in its database")
		}
		return err
	}, nil)
	for n := range e.clients {
		e.enqueue(n, 10+10*n)
	}
	e.run()
	for n, url := range e.urls {
		name := url[strings.LastIndex(url, "/")+1:]
		name, _, _ = strings.Cut(name, "?")
		pgtest.Until(t, fmt.Sprintf("the jobs of database %d end", n), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return ran[name] == 10+10*n
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if most > 4 {
		t.Errorf("%d jobs ran at once", most)
	}
}

// TestDatabasesComeAndGo: what is listed is worked, what is not listed any more is not, two names for one database make one worker, and an error changes nothing.
func TestDatabasesComeAndGo(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 100)
	e := newEstate(t, 2, func(_ context.Context, job *weir.Job[number]) error {
		ran <- job.Client().Pool().Config().ConnConfig.Database
		return nil
	}, nil)
	again := strings.Replace(e.urls[0], "?", "?application_name=again&", 1)
	if again == e.urls[0] {
		again += "?application_name=again"
	}
	e.list(e.urls[0])
	e.run()
	e.enqueue(0, 1)
	first := pgtest.Receive(t, ran, "the job of the first runs")
	e.enqueue(1, 1)
	e.list(e.urls[0], e.urls[1], again)
	if second := pgtest.Receive(t, ran, "the job of the second runs"); second == first {
		t.Error("it is the first's")
	}
	pgtest.Until(t, "the other name is known as one", func() bool {
		return slices.ContainsFunc(e.multi.Databases(), func(d weir.WorkedDatabase) bool {
			return d.Name == again && d.State == weir.DatabaseDuplicate && d.Err != nil
		})
	})
	e.list(e.urls[1])
	pgtest.Until(t, "the first is worked no more", func() bool { return len(e.multi.Databases()) == 1 })
	e.mu.Lock()
	e.err = errors.New("the list is not to be had")
	e.mu.Unlock()
	pgtest.Until(t, "the error is logged", func() bool { return e.log.Count("the list is not to be had") > 0 })
	e.enqueue(0, 1)
	e.enqueue(1, 1)
	if from := pgtest.Receive(t, ran, "the job of the second runs"); from == first {
		t.Error("the first is worked though it is not listed")
	}
	e.mu.Lock()
	e.err = nil
	e.mu.Unlock()
	e.list(e.urls...)
	if from := pgtest.Receive(t, ran, "the job of the first runs, which is listed again"); from != first {
		t.Error("it is the second's")
	}
}

// TestAnIdleDatabaseCostsOneConnection: and whatever happens there wakes its worker: a job, one that was scheduled, a queue that is resumed, a worker that is lost.
func TestAnIdleDatabaseCostsOneConnection(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 100)
	e := newEstate(t, 4, func(_ context.Context, job *weir.Job[number]) error {
		ran <- job.Client().Pool().Config().ConnConfig.Database
		return nil
	}, nil)
	const plain, scheduled, paused, lost = 0, 1, 2, 3
	for n := range e.clients { // the queues exist, as they do wherever jobs were enqueued before
		e.enqueue(n, 1)
	}
	if err := e.clients[paused].PauseQueue(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	taken := 0
	take := func(sql string, args ...any) {
		t.Helper()
		if err := e.clients[lost].Pool().QueryRow(t.Context(), sql, args...).Scan(&taken); err != nil {
			t.Fatal(err)
		}
	}
	take(`SELECT weir.start('lost', ARRAY['default'], '12 s')`)
	if take(`SELECT count(*) FROM weir.take($1, wait => '0 s')`, taken); taken != 1 {
		t.Fatal(taken)
	}
	e.run()
	for range 2 {
		pgtest.Receive(t, ran, "the first jobs run")
	}
	for _, n := range []int{lost, paused, plain, scheduled} {
		e.until(n, weir.DatabaseIdle)
		pgtest.Until(t, "one connection is left", func() bool {
			connections := 0
			if err := e.clients[n].Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir worker'`).Scan(&connections); err != nil {
				t.Fatal(err)
			}
			return connections == 1
		})
	}
	runs := func(n int, what string) {
		t.Helper()
		if from, want := pgtest.Receive(t, ran, what), e.clients[n].Pool().Config().ConnConfig.Database; from != want {
			t.Fatalf("%s: a job of another database does", what)
		}
	}
	runs(lost, "the job of the lost worker runs")
	e.enqueue(plain, 1)
	runs(plain, "the job runs")
	if _, err := e.clients[scheduled].Enqueue(t.Context(), number{1}, &weir.Options{RunAt: time.Now().Add(2 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	runs(scheduled, "the scheduled job runs")
	if err := e.clients[paused].ResumeQueue(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	runs(paused, "the job of the queue that was paused runs")
}

// TestADatabaseThatFailsIsTriedAgain: the others don't notice.
func TestADatabaseThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	e := newEstate(t, 1, func(context.Context, *weir.Job[number]) error {
		ran.Add(1)
		return nil
	}, nil)
	empty := pgtest.Empty(t)
	server := pgtest.Server(t, nil)
	e.urls = append(e.urls, empty, server.URL("postgres"))
	e.clients = append(e.clients, weir.NewClient(pgtest.Pool(t, empty)), weir.NewClient(pgtest.Pool(t, server.URL("postgres"))))
	e.list(append(slices.Clone(e.urls), "postgress://app:se:cret@db/shop")...)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	e.run()
	e.until(1, weir.DatabaseUnreachable)
	e.until(2, weir.DatabaseUnreachable)
	for _, d := range e.multi.Databases() {
		if d.Name == empty && !errors.Is(d.Err, weir.ErrNotInstalled) {
			t.Errorf("%+v", d)
		}
	}
	config, err := pgx.ParseConfig(empty)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the log names the database without the schema", func() bool { // a moment after its state is known
		return strings.Contains(e.log.String(), fmt.Sprintf("database=%s host=%s port=%d ", config.Database, config.Host, config.Port))
	})
	pgtest.Until(t, "the log says which string can't be read, and why", func() bool {
		return strings.Contains(e.log.String(), `database="number 4 of the list"`) && strings.Contains(e.log.String(), "must begin with postgres:// or postgresql://")
	})
	if strings.Contains(e.log.String(), "cret") {
		t.Errorf("the log has a part of the password:\n%s", e.log)
	}
	e.enqueue(0, 20)
	pgtest.Until(t, "the jobs of the one that works run", func() bool { return ran.Load() == 20 })
	for _, n := range []int{1, 2} {
		if n == 2 {
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		migrate(t, e.urls[n])
		e.enqueue(n, 1)
		pgtest.Until(t, fmt.Sprintf("the job of database %d runs", n), func() bool { return ran.Load() == int32(20+n) })
	}
}

// TestADatabaseThatDiesWhileItIsWorkedIsUnreachable: Databases says so, with the reason, and when it is worked again.
func TestADatabaseThatDiesWhileItIsWorkedIsUnreachable(t *testing.T) {
	t.Parallel()
	runs, end := make(chan struct{}, 10), make(chan struct{})
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error {
		runs <- struct{}{}
		<-end // a worker without a job ends
		return nil
	}, nil)
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	e.urls, e.clients = []string{url}, []*weir.Client{weir.NewClient(pgtest.Pool(t, url))}
	e.list(url)
	e.enqueue(0, 1)
	e.run()
	defer close(end)
	pgtest.Receive(t, runs, "the job runs")
	e.until(0, weir.DatabaseWorking)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	e.until(0, weir.DatabaseUnreachable)
	if err := e.multi.Databases()[0].Err; err == nil {
		t.Error("nothing says why")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.until(0, weir.DatabaseWorking)
}

// TestManyDatabasesWakeTogether: whose worker has started does not keep others from starting, of which there are more than start at once.
func TestManyDatabasesWakeTogether(t *testing.T) {
	pgtest.Alone(t, "it compares how long workers take to start with how long they would keep each other waiting")
	ran, end := make(chan time.Time, 100), make(chan struct{})
	const databases = 17
	e := newEstate(t, databases, func(context.Context, *weir.Job[number]) error {
		ran <- time.Now()
		<-end // a worker without a job ends
		return nil
	}, func(cfg *weir.MultiWorkerConfig) { cfg.Queues = map[string]int{"default": databases} })
	for n := range e.clients {
		e.enqueue(n, 1)
	}
	e.run()
	defer close(end)
	first := pgtest.Receive(t, ran, "the first job runs")
	last := first
	for range databases - 1 {
		last = pgtest.Receive(t, ran, "the others run")
	}
	if took := last.Sub(first); took > 4*time.Second { // one that has not started keeps its place for 5 seconds
		t.Errorf("the last started %s after the first", took)
	}
}

// TestAJobDoesNotWaitForDatabasesThatAreLookedAt: of which there are many at the start, and more whenever databases are listed.
func TestAJobDoesNotWaitForDatabasesThatAreLookedAt(t *testing.T) {
	pgtest.Alone(t, "it compares how long a job takes to start with how long databases would keep it waiting")
	const crawling = 40 // whose workers connect so slowly that all of them look for jobs for 25 seconds, 8 at a time
	server := pgtest.Server(t, map[string]string{"max_connections": strconv.Itoa(2*crawling + 30), "max_wal_size": "4GB"})
	urls := databasesAt(t, server, 1+crawling)
	ran := make(chan time.Time, 1)
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error {
		ran <- time.Now()
		return nil
	}, func(cfg *weir.MultiWorkerConfig) {
		cfg.Open = func(ctx context.Context, database string) (*weir.Client, error) {
			config, err := pgxpool.ParseConfig(database)
			if err != nil {
				return nil, err
			}
			config.MaxConns = 2
			config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
				if database != urls[0] && c.RuntimeParams["application_name"] == "weir worker" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			pool, err := pgxpool.NewWithConfig(ctx, config)
			if err != nil {
				return nil, err
			}
			return weir.NewClient(pool), nil
		}
	})
	e.urls, e.clients = urls, []*weir.Client{weir.NewClient(pgtest.Pool(t, urls[0]))}
	e.list(urls[0])
	e.run()
	e.until(0, weir.DatabaseIdle)
	e.list(urls...)
	pgtest.Until(t, "others are looked at", func() bool { return slices.Contains(e.states()[1:], weir.DatabaseWorking) })
	began := time.Now()
	e.enqueue(0, 1)
	if took := pgtest.Receive(t, ran, "the job runs").Sub(began); took > 10*time.Second {
		t.Errorf("the job started after %s", took)
	}
}

// TestSilentDatabasesKeepNoneFromBeingWorked: all databases of a server that is silent are asked again and again which they are, and others must not wait for that.
func TestSilentDatabasesKeepNoneFromBeingWorked(t *testing.T) {
	pgtest.Alone(t, "it compares how long a database takes to be worked with how long others would keep it waiting")
	const silent = 480                                // which would keep their places for half a minute, were those kept for a second
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it accepts nobody
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	e := newEstate(t, 1, func(context.Context, *weir.Job[number]) error { return nil }, nil)
	var urls []string
	for i := range silent {
		urls = append(urls, fmt.Sprintf("postgres://nobody@%s/d%d?sslmode=disable", listener.Addr(), i))
	}
	e.list(urls...)
	e.run()
	pgtest.Until(t, "they are listed", func() bool { return len(e.multi.Databases()) == silent })
	began := time.Now()
	e.list(append(urls, e.urls...)...)
	e.until(0, weir.DatabaseIdle)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the database is worked after %s", took)
	}
}

// TestAHandlerThatDoesNotStopKeepsNoDatabase: whose connection it keeps. The database is worked again when it is listed again, and the worker of all stops.
func TestAHandlerThatDoesNotStopKeepsNoDatabase(t *testing.T) {
	t.Parallel()
	began, ran, end := make(chan struct{}), make(chan struct{}, 10), make(chan struct{})
	var attempts atomic.Int32
	e := newEstate(t, 1, func(ctx context.Context, job *weir.Job[number]) error {
		if attempts.Add(1) > 1 {
			ran <- struct{}{}
			return nil
		}
		conn, err := job.Client().Pool().Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		close(began)
		<-end
		return nil
	}, func(cfg *weir.MultiWorkerConfig) { cfg.StopTimeout = time.Millisecond })
	defer close(end)
	e.run()
	e.enqueue(0, 1)
	pgtest.Receive(t, began, "the handler begins")
	e.list()
	pgtest.Until(t, "the database is worked no more", func() bool { return len(e.multi.Databases()) == 0 })
	if e.log.Count("they still have connections of its pool") != 1 {
		t.Error("nothing says which connections are left")
	}
	e.list(e.urls...)
	pgtest.Receive(t, ran, "the job runs when the database is listed again")
}

// TestAnOpenWithoutAClientIsAnError: as is one that panics. The other databases don't notice.
func TestAnOpenWithoutAClientIsAnError(t *testing.T) {
	t.Parallel()
	ran := make(chan struct{}, 10)
	var urls []string
	e := newEstate(t, 3, func(context.Context, *weir.Job[number]) error {
		ran <- struct{}{}
		return nil
	}, func(cfg *weir.MultiWorkerConfig) {
		cfg.Open = func(_ context.Context, url string) (*weir.Client, error) {
			switch url {
			case urls[0]:
				return nil, nil
			case urls[1]:
				panic("no such thing")
			}
			return weir.NewClient(pgtest.Pool(t, url)), nil
		}
	})
	urls = e.urls
	e.run()
	e.enqueue(2, 1)
	pgtest.Receive(t, ran, "the job of the third runs")
	e.until(0, weir.DatabaseUnreachable)
	e.until(1, weir.DatabaseUnreachable)
}

// TestAStopWhileDatabasesBeginIsNoFailure: of which there may be thousands.
func TestAStopWhileDatabasesBeginIsNoFailure(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 1)
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error { return nil }, func(cfg *weir.MultiWorkerConfig) {
		cfg.Open = func(ctx context.Context, _ string) (*weir.Client, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	e.list("one")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- e.multi.Run(ctx) }()
	pgtest.Receive(t, begun, "the database is opened")
	stop()
	if err := pgtest.Receive(t, ended, "the worker stops"); err != nil || strings.Contains(e.log.String(), "level=ERROR") {
		t.Errorf("%v, and the log says: %s", err, e.log)
	}
}

// TestACopyOfAClusterIsAnotherDatabase: a standby is not worked; once it is promoted and runs beside its former primary, both are.
func TestACopyOfAClusterIsAnotherDatabase(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 10)
	e, primary, standby := newPair(t, ran)
	e.run()
	e.until(1, weir.DatabaseUnreachable)
	e.enqueue(0, 1)
	if from := pgtest.Receive(t, ran, "the job at the primary runs"); from != e.urls[0] {
		t.Errorf("it is worked as %s", from)
	}
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	pgtest.Promote(t, standby)
	e.enqueue(0, 1)
	if from := pgtest.Receive(t, ran, "the job at the primary runs"); from != e.urls[0] {
		t.Errorf("it is worked as %s", from)
	}
	e.enqueue(1, 1)
	if from := pgtest.Receive(t, ran, "the job at the copy runs"); from != e.urls[1] {
		t.Errorf("it is worked as %s", from)
	}
	ids := map[string]bool{}
	for _, d := range e.multi.Databases() {
		ids[d.ID] = true
	}
	if len(ids) != 2 || ids[""] {
		t.Errorf("%v", e.multi.Databases())
	}
}

// TestAfterAFailoverAnotherNameIsWorked: the name under which a database was worked leads nowhere any more.
func TestAfterAFailoverAnotherNameIsWorked(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 10)
	e, primary, standby := newPair(t, ran)
	e.run()
	e.enqueue(0, 1)
	pgtest.Receive(t, ran, "the job at the primary runs")
	pgtest.Replayed(t, primary, standby)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	e.enqueue(1, 1)
	if from := pgtest.Receive(t, ran, "the job at the new primary runs"); from != e.urls[1] {
		t.Errorf("it is worked as %s", from)
	}
}

// newPair has a primary and its standby on the list, and says by which name jobs are worked.
func newPair(t *testing.T, ran chan string) (e *estate, primary, standby *embedded.Server) {
	t.Helper()
	primary = pgtest.Installed(t, nil)
	standby = pgtest.Standby(t, primary, nil)
	e = newEstate(t, 0, func(_ context.Context, job *weir.Job[number]) error {
		ran <- job.Client().Pool().Config().ConnString()
		return nil
	}, func(cfg *weir.MultiWorkerConfig) { cfg.Lease, cfg.StopTimeout = 2*time.Second, time.Millisecond }) // an outage is noticed soon
	for _, s := range []*embedded.Server{primary, standby} {
		url := s.URL("postgres")
		e.urls, e.clients = append(e.urls, url), append(e.clients, weir.NewClient(pgtest.Pool(t, url)))
	}
	e.list(e.urls...)
	return e, primary, standby
}

// TestGroupsOfManyDatabasesDoNotWaitForSlotsOfEachOther: when the jobs that wait for their groups take all slots that the databases share, a group starts. It has jobs of one database.
func TestGroupsOfManyDatabasesDoNotWaitForSlotsOfEachOther(t *testing.T) {
	t.Parallel()
	ran := make(chan []string, 10)
	e := newEstate(t, 2, nil, func(cfg *weir.MultiWorkerConfig) {
		cfg.Handlers = weir.NewHandlers()
		weir.HandleGroup(cfg.Handlers, weir.GroupOptions[number]{Size: 100, Wait: time.Hour}, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
			var from []string
			for _, job := range jobs {
				from = append(from, job.Client().Pool().Config().ConnConfig.Database)
			}
			ran <- from
			return nil
		})
	})
	e.enqueue(0, 2)
	e.enqueue(1, 2)
	e.run()
	if from := pgtest.Receive(t, ran, "a group runs"); len(from) != 2 || from[0] != from[1] {
		t.Errorf("it has jobs of %v", from)
	}
}

// TestManyDatabasesThroughAPooler: behind PgBouncer in transaction mode, a database is known by what runs behind it, so that another name, without the pooler, leads to
// the same; jobs run, and an idle database wakes for one that was scheduled.
func TestManyDatabasesThroughAPooler(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 100)
	e := newEstate(t, 2, func(_ context.Context, job *weir.Job[number]) error {
		ran <- fmt.Sprintf("%d %d", job.Client().Pool().Config().ConnConfig.Port, job.Args.N)
		return nil
	}, nil)
	direct := e.urls[0]
	through := []string{pgtest.Bouncer(t, e.urls[0]), pgtest.Bouncer(t, e.urls[1])}
	e.urls = through
	e.list(through...)
	e.run()
	for n := range through {
		e.enqueue(n, 1)
	}
	names := map[string]bool{}
	for range through {
		names[pgtest.Receive(t, ran, "a job of each runs")] = true
	}
	if len(names) != 2 {
		t.Errorf("jobs ran in %v", names)
	}
	e.until(0, weir.DatabaseIdle)
	if _, err := e.clients[0].Enqueue(t.Context(), number{7}, &weir.Options{RunAt: time.Now().Add(time.Second)}); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Receive(t, ran, "the scheduled job runs"); !strings.HasSuffix(got, " 7") {
		t.Errorf("%s ran", got)
	}
	e.list(through[0], through[1], direct)
	pgtest.Until(t, "the other name is known as one", func() bool {
		return slices.ContainsFunc(e.multi.Databases(), func(d weir.WorkedDatabase) bool { return d.Name == direct && d.State == weir.DatabaseDuplicate })
	})
}

// TestFreeSlotsAreUsedBesideLongJobs: while most slots have long jobs, the others go on with short ones, which are worth claiming together only where more slots soon become free.
func TestFreeSlotsAreUsedBesideLongJobs(t *testing.T) {
	t.Parallel()
	const slots, long, short = 8, 5, 1000
	var started, done atomic.Int64
	release := make(chan struct{})
	e := newEstate(t, 1, func(_ context.Context, j *weir.Job[number]) error {
		if j.Args.N >= 0 {
			done.Add(1)
			return nil
		}
		started.Add(1)
		<-release
		return nil
	}, func(c *weir.MultiWorkerConfig) { c.Queues = map[string]int{"default": slots} })
	var free sync.Once
	end := func() { free.Do(func() { close(release) }) }
	e.run()
	t.Cleanup(end)
	e.enqueue(0, short)
	pgtest.Until(t, "the short jobs are done", func() bool { return done.Load() == short })
	for range long {
		if _, err := e.clients[0].Enqueue(t.Context(), number{-1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Until(t, "the long jobs run", func() bool { return started.Load() == long })
	e.enqueue(0, short)
	pgtest.Until(t, "short jobs are done beside them", func() bool { return done.Load() == 2*short })
}
