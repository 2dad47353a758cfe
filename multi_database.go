package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/share"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/turn"
	"github.com/weir-pg/weir/internal/worker"
)

const (
	idleAfter    = 30 * time.Second      // after its last job, the worker ends
	looksIdle    = time.Second / 4       // the same for one that has looked for a job, and found none
	pollsOfAll   = 20 * time.Millisecond // between two polls for idle databases
	pollsOfOne   = 50 * time.Millisecond // for one of them, at least
	pollAtLeast  = 2 * time.Second
	idleTimes    = 30               // so many times longer are the pauses between chores than those of a worker alone
	lookAnyway   = 20 * time.Minute // as a safety net; it doubles each time that nothing was missed: a look costs as much as a hundred polls
	lookRarely   = 80 * time.Minute
	pollAtHub    = 10 * time.Second // as a safety net, for a database that waits at its hub
	looksFor     = time.Second / 4  // a database counts among those that are asked which they are: of a server that is silent, there may be a thousand
	startsFor    = 5 * time.Second  // a worker counts among those that start or look for jobs, unless it has started, or found something, or nothing, before
	closesFor    = 5 * time.Second  // a pool may take to close, before it is left to the handlers that keep its connections
	tryAgain     = time.Second      // after a failure; it doubles
	tryAtLeast   = time.Minute
	lookAtLeast  = 15 * time.Second // whether another name for the same database still reaches it
	databaseCall = 30 * time.Second
)

// workedDatabase is a database of a MultiWorker, for as long as it is listed.
type workedDatabase struct {
	m      *MultiWorker
	name   string
	number int // of its first place on the list when it came
	stop   context.CancelFunc
	again  bool // its worker has run before; its own

	// MultiWorker.mu guards these.
	stops  bool // it is listed no more
	id     string
	client *Client // of whoever has the id
	yield  func()  // makes it stop, and begin anew
	state  DatabaseState
	err    error
	worker *Worker
}

// is notes the state, and reports whether it is another one than before.
func (d *workedDatabase) is(state DatabaseState, err error) (changed bool) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	changed = d.state != state
	d.state, d.err = state, err
	return changed
}

// live works the database until ctx ends. After a failure it begins anew: whatever it is, somebody may have mended it.
func (d *workedDatabase) live(ctx context.Context) {
	for wait := tryAgain; ; wait = min(2*wait, tryAtLeast) {
		began := time.Now()
		log, err := d.work(ctx, d.m.config.Logger)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) { // it may not even have begun, as when many wait until they are asked which they are
				log.Error("weir: the worker of a database did not stop as it should", "error", err)
			}
			return
		}
		if time.Since(began) > tryAtLeast {
			wait = tryAgain
		}
		if errors.Is(err, errDuplicate) {
			wait = min(wait, lookAtLeast)
			if d.is(DatabaseDuplicate, err) {
				log.Warn("weir: two names on the list lead to one database: it is worked once")
			}
		} else {
			d.is(DatabaseUnreachable, err)
			log.Error("weir: a database can't be worked; it is tried again", "again_in", wait, "error", err)
		}
		if !sleep.For(ctx, sleep.Jitter(wait)) {
			return
		}
	}
}

var errDuplicate = errors.New("weir: the database is worked already, under another name")

// work opens the database and works it, until ctx ends or it fails. It returns log with the database's name; if that is not known, with its place on the list, where it may have a password.
func (d *workedDatabase) work(ctx context.Context, log *slog.Logger) (*slog.Logger, error) {
	client, err := d.open(ctx)
	if err != nil {
		return log.With("database", fmt.Sprintf("number %d of the list", d.number)), fmt.Errorf("weir: open the database: %w", err)
	}
	at := client.Pool().Config().ConnConfig
	log = log.With("database", at.Database, "host", at.Host, "port", at.Port)
	defer d.close(client.Pool(), log)
	return log, d.workAt(ctx, client, log)
}

func (d *workedDatabase) workAt(ctx context.Context, client *Client, log *slog.Logger) error {
	ctx, yield := context.WithCancelCause(ctx)
	defer yield(nil)
	if err := d.identify(ctx, client, func() { yield(errDuplicate) }); err != nil {
		return explain(err, "weir_work")
	}
	defer d.release()
	cfg := d.m.config.WorkerConfig
	cfg.Logger = log
	if err := d.hubs(&cfg); err != nil {
		return err
	}
	w, err := client.NewWorker(cfg)
	if err != nil {
		return err
	}
	w.groups.gathering = d.m.groups // whose jobs fill the slots that all share
	d.m.mu.Lock()
	d.worker = w
	d.m.mu.Unlock()
	var known store.Probe
	moved, anyway := false, lookAnyway
	for ctx.Err() == nil {
		idle, err := d.stint(ctx, w, known, moved)
		if err != nil || ctx.Err() != nil {
			return cmp.Or(err, yielded(ctx))
		}
		d.is(DatabaseIdle, nil)
		stir, err := d.rest(ctx, w, idle, anyway)
		if err != nil {
			return err
		}
		known, moved = idle.Rested(), stir == worker.Moved
		if anyway = min(2*anyway, lookRarely); stir != worker.Still {
			anyway = lookAnyway
		}
	}
	return yielded(ctx)
}

// hubs asks a program's function for the hubs of the database, in a goroutine that a panic must not end.
func (d *workedDatabase) hubs(cfg *WorkerConfig) (err error) {
	if d.m.config.HubsOf == nil {
		return nil
	}
	defer caught(&err)
	hubs, token := d.m.config.HubsOf(d.name)
	cfg.Hubs = hubs
	if token != nil {
		cfg.HubToken = token
	}
	return nil
}

// yielded returns errDuplicate if the database was left to another name; nil: it was not.
func yielded(ctx context.Context) error {
	if context.Cause(ctx) == errDuplicate {
		return errDuplicate
	}
	return nil
}

// open calls a program's function, in a goroutine that a panic must not end.
func (d *workedDatabase) open(ctx context.Context) (client *Client, err error) {
	defer caught(&err)
	ctx, cancel := context.WithTimeout(ctx, databaseCall)
	defer cancel()
	if client, err = d.m.config.Open(ctx, d.name); err == nil && client == nil {
		err = errors.New("MultiWorkerConfig.Open returned neither a client nor an error")
	}
	return client, err
}

// close closes the pool of a database. It does not wait for ever for handlers that did not stop and keep connections: the database may be listed again, and the
// program may end.
func (d *workedDatabase) close(pool *pgxpool.Pool, log *slog.Logger) {
	closed := make(chan struct{})
	go func() { // ends with the last handler that has a connection
		defer close(closed)
		pool.Close()
	}()
	late := time.NewTimer(closesFor)
	defer late.Stop()
	select {
	case <-closed:
	case <-late.C:
		log.Error("weir: handlers of a database that is not worked any more did not stop: they still have connections of its pool", "connections", pool.Stat().AcquiredConns())
	}
}

// stint runs the worker until it has been idle for some time, or ctx ends. If something has moved in the database since it was known, the worker stays for a while, and does the chores. Else
// it looks whether there is a job. There may be many such databases, so it waits for one of a few places: it has three connections until it has found nothing.
func (d *workedDatabase) stint(ctx context.Context, w *Worker, known store.Probe, moved bool) (idle *worker.Worker, err error) {
	places := d.m.tries
	if moved {
		places = d.m.limiter
	}
	leave, ok := turn.Take(ctx, places, startsFor) // one that can't be reached starts for as long as it takes
	if !ok {
		return nil, nil
	}
	defer leave()
	d.is(DatabaseWorking, nil)
	config := w.config
	if moved {
		config.Hooks.Started = leave
	} else {
		config.Hooks.Stays = leave
		config.Look, config.Known = looksIdle, known
	}
	config.Idle, config.Again = idleAfter, d.again
	d.again = true
	config.Room = make(map[string]worker.Room, len(d.m.slots))
	var inner *worker.Worker
	err = w.run(ctx, config, func(started *worker.Worker) {
		inner = started
		for name, slots := range d.m.slots {
			config.Room[name] = slots.Join(inner.More)
		}
	})
	for _, room := range config.Room {
		room.(*share.Member).Leave()
	}
	if errors.Is(err, worker.ErrIdle) {
		return inner, nil
	}
	return nil, explain(err, "weir_work")
}

// pollEvery is the pause between two polls for one idle database.
func (m *MultiWorker) pollEvery() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(max(time.Duration(len(m.members))*pollsOfAll, pollsOfOne), pollAtLeast)
}
