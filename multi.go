package weir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/share"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/worker"
)

// MultiWorkerConfig configures a MultiWorker. Databases, Handlers and Queues are required.
type MultiWorkerConfig struct {
	// WorkerConfig is that of each database's worker, with two differences: Queues says how many jobs of each queue run at once in all databases together, and
	// Hubs must be empty, because each database has hubs of its own: see HubsOf.
	WorkerConfig
	// Databases returns the databases to work: from a list, a query, or a service. It is called at the start, and then every RefreshEvery. Workers of databases
	// that are not listed any more stop gracefully. After an error, which is logged, the list stays as it was.
	//
	// A database is given as a connection string, unless Open takes something else. Two that lead to the same database are worked once.
	Databases func(ctx context.Context) ([]string, error)
	// RefreshEvery is how often Databases is called; default 15 seconds.
	RefreshEvery time.Duration
	// Open returns the client for a database, for example one with codecs or middleware. Its pool is closed when the database is not worked any more, or can't be,
	// before Open is called again: return another one each time. Default: a pool of up to 4 connections, for handlers, which are closed when they have been idle for a minute.
	Open func(ctx context.Context, database string) (*Client, error)
	// HubsOf, if set, returns the hubs of a database, and what returns tokens for them, as WorkerConfig.Hubs and HubToken. While nothing happens in the database, it
	// waits at one of them, and is polled only every ten seconds. No hubs: it is polled as others are. No token: HubToken counts. It is called whenever the
	// database is opened.
	HubsOf func(database string) (hubs []string, token func(context.Context) (string, error))
}

// MultiWorker works the same queues of many databases in one process: of shards, tenants, or regions.
//
//   - The databases share the concurrency of each queue. While several want more than there is, each gets its part, and who has least comes first; what one does
//     not need, others use. No more jobs run at once than the queue's concurrency. A database that crawls takes nothing from the others: what a claim was promised
//     that is not answered within 20 ms, they use, and what it gets starts when there is room.
//   - A database in which nothing happened for half a minute costs one connection and a poll every two seconds, or more often if they are few: all together poll
//     50 times a second, and each at most 20 times, until there are more than a hundred. So the first job after that time starts up to two seconds later, or at once
//     if the database has a hub (HubsOf). Others have a worker's three connections.
//   - A database that fails, or can't be reached, is tried again for as long as it is listed. The others don't notice.
//
// A handler finds its database by [JobMeta.Client]. Job ids are unique within a database only.
type MultiWorker struct {
	config  MultiWorkerConfig
	slots   map[string]*share.Slots
	groups  *gathering
	looks   chan struct{} // holds an element for each database that is asked which it is
	tries   chan struct{} // holds an element for each worker that looks whether there are jobs
	limiter chan struct{} // holds an element for each worker that starts because there may be some: it does not wait for those that look, of which there are many at the start

	mu      sync.Mutex
	members map[string]*workedDatabase // by the string that names it
	worked  map[string]*workedDatabase // by the database's id
}

// How many databases are asked at once which they are, and how many workers look for jobs at once, or start, each with three connections: there may be as many databases as their servers
// have connections.
const (
	maxLooking  = 16
	maxStarting = 8
)

// NewMultiWorker returns a worker for many databases. Call Run to start it.
func NewMultiWorker(cfg MultiWorkerConfig) (*MultiWorker, error) {
	switch {
	case cfg.Databases == nil:
		return nil, errors.New("weir: MultiWorkerConfig.Databases is nil: return the databases to work")
	case len(cfg.Hubs) > 0:
		return nil, errors.New("weir: MultiWorkerConfig.Hubs must be empty: each database has hubs of its own: return them by HubsOf")
	case cfg.RefreshEvery < 0:
		return nil, fmt.Errorf("weir: MultiWorkerConfig.RefreshEvery must not be negative, got %s", cfg.RefreshEvery)
	}
	if cfg.RefreshEvery == 0 {
		cfg.RefreshEvery = 15 * time.Second
	}
	if cfg.Open == nil {
		cfg.Open = openDatabase
	}
	checked, err := cfg.WorkerConfig.checked()
	if err != nil {
		return nil, err
	}
	cfg.WorkerConfig = checked
	m := &MultiWorker{config: cfg, slots: map[string]*share.Slots{}, groups: newGathering(cfg.Queues), looks: make(chan struct{}, maxLooking), tries: make(chan struct{}, maxStarting), limiter: make(chan struct{}, maxStarting), members: map[string]*workedDatabase{}, worked: map[string]*workedDatabase{}}
	for name, n := range cfg.Queues {
		m.slots[name] = share.New(n)
	}
	return m, nil
}

// openDatabase is the default of MultiWorkerConfig.Open.
func openDatabase(ctx context.Context, database string) (*Client, error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, connstring.Invalid(err)
	}
	if !strings.Contains(database, "pool_max_conns") {
		config.MaxConns = 4
	}
	if !strings.Contains(database, "pool_max_conn_idle_time") {
		config.MaxConnIdleTime = time.Minute
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return NewClient(pool), nil
}

// Run works until ctx ends. Then the workers of all databases stop as [Worker.Run] says, and it returns nil.
func (m *MultiWorker) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	wait := time.Second
	for {
		list, err := m.list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			m.config.Logger.Error("weir: the list of databases can't be had: those that are known are worked", "error", err)
		default:
			m.refresh(ctx, &all, list)
			wait = m.config.RefreshEvery
		}
		if !sleep.For(ctx, sleep.Jitter(wait)) {
			return nil
		}
		wait = min(2*wait, m.config.RefreshEvery) // until there was a first list
	}
}

// list calls a program's function, in a goroutine that a panic must not end.
func (m *MultiWorker) list(ctx context.Context) (list []string, err error) {
	defer caught(&err)
	return m.config.Databases(ctx)
}

// refresh starts and stops what the list has changed.
func (m *MultiWorker) refresh(ctx context.Context, all *sync.WaitGroup, list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	added, removed := 0, 0
	listed := make(map[string]int, len(list)) // where
	for i, name := range list {
		if listed[name] == 0 {
			listed[name] = i + 1
		}
	}
	for name, one := range m.members {
		if listed[name] == 0 && !one.stops {
			removed++
			one.stops = true
			one.stop() // it removes itself when it has ended
		}
	}
	for name, number := range listed {
		if before := m.members[name]; before != nil {
			continue // also one that is stopping: it begins again at the next refresh
		}
		added++
		life, stop := context.WithCancel(ctx)
		one := &workedDatabase{m: m, name: name, number: number, stop: stop, state: DatabaseStarting}
		m.members[name] = one
		all.Go(func() {
			defer stop()
			one.live(life)
			m.mu.Lock()
			delete(m.members, name)
			m.mu.Unlock()
		})
	}
	if added > 0 || removed > 0 {
		m.config.Logger.Info("weir: the databases to work have changed", "databases", len(listed), "added", added, "removed", removed)
	}
}

// DatabaseState is what a MultiWorker does with a database.
type DatabaseState string

// States of databases.
const (
	DatabaseStarting    DatabaseState = "starting"
	DatabaseWorking     DatabaseState = "working"     // its worker runs
	DatabaseIdle        DatabaseState = "idle"        // nothing happens there, which is looked after
	DatabaseUnreachable DatabaseState = "unreachable" // or it refuses something: Err says why
	DatabaseDuplicate   DatabaseState = "duplicate"   // it is worked under another name
)

// WorkedDatabase is a database of a MultiWorker.
type WorkedDatabase struct {
	Name  string // as Databases has returned it: it may contain a password
	ID    string // of the cluster and the database in it, with a number after it if there are several copies; "": not known yet
	State DatabaseState
	Err   error // why it is not worked; nil: it is
}

// Databases returns the databases that are worked now, in the order of their names. It asks none of them: one whose calls fail is unreachable after two seconds of that, and one that does not
// answer, when its worker gives up its lease: after 25 of 30 seconds at most.
func (m *MultiWorker) Databases() []WorkedDatabase {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]WorkedDatabase, 0, len(m.members))
	for _, one := range m.members {
		d := WorkedDatabase{Name: one.name, ID: one.id, State: one.state, Err: one.err}
		if one.state == DatabaseWorking && one.worker != nil {
			if why, since, err := one.worker.config.Health.IllSoon(); why != "" {
				d.Err = &HealthError{Reason: HealthReason(why), Since: since, Err: err}
				if why == worker.Unreachable {
					d.State = DatabaseUnreachable
				}
			}
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b WorkedDatabase) int { return strings.Compare(a.Name, b.Name) })
	return all
}
