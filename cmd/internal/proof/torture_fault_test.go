package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// faults are what goes wrong in a torture.
var faults = []string{
	"crash", "failover", "failover", // there, and back
	"kill worker", "kill worker", "freeze worker", "cut worker", "silence worker", "lose answers", "lose answers",
	"kill hub", "cut hub", "kill subscribers", "cut subscribers",
	"end backends", "fill connections", "step clock", "dump", "pin horizon",
}

// fault does something bad.
func (w *torture) fault(what string) {
	some := func() *tortured { return w.workers[w.rng.IntN(len(w.workers)-1)] } // the last has no proxy
	switch what {
	case "crash":
		if err := errors.Join(w.server.Kill(), w.server.Restart(w.ctx)); err != nil {
			w.Error(err)
		}
	case "failover":
		w.failover()
	case "kill worker":
		w.again(w.workers[w.rng.IntN(len(w.workers))])
	case "freeze worker":
		// It stands still for longer than its lease, mostly.
		w.thaw()
		w.frozen = w.workers[w.rng.IntN(len(w.workers))]
		if err := freeze(w.frozen.command.Process); err != nil {
			w.Error(err)
		}
	case "cut worker":
		some().proxy.cut()
	case "silence worker":
		if w.silent != nil {
			w.silent.proxy.silence(false)
		}
		w.silent = some()
		w.silent.proxy.silence(true)
	case "lose answers":
		some().proxy.lose(1 + w.rng.IntN(5))
	case "kill hub":
		k := w.hubs[w.rng.IntN(len(w.hubs))]
		k.kill()
		k.child = k.begin()
	case "cut hub":
		w.hubs[w.rng.IntN(len(w.hubs))].proxy.cut()
	case "kill subscribers":
		w.listener.kill()
		w.listen()
	case "cut subscribers":
		w.hubs[w.rng.IntN(len(w.hubs))].front.cut()
	default:
		// These need a connection, and may not get one.
		bounded, cancel := context.WithTimeout(w.ctx, patience)
		defer cancel()
		conn, err := pgx.Connect(bounded, w.server.URL("postgres"))
		if err == nil {
			err = w.inside(bounded, conn, what)
			_ = conn.Close(bounded)
		}
		if err != nil {
			w.Logf("%s: %v", what, err)
		}
	}
}

// again kills a worker, and starts another in its place.
func (w *torture) again(k *tortured) {
	k.kill()
	w.books.died(k.child)
	k.child = k.begin()
}

// thaw has the worker go on that stands still, if it is still the same.
func (w *torture) thaw() {
	if w.frozen != nil {
		_ = thaw(w.frozen.command.Process)
	}
}

// inside does what needs a connection.
func (w *torture) inside(ctx context.Context, conn *pgx.Conn, what string) error {
	switch what {
	case "end backends":
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5`)
		return err
	case "fill connections":
		// Until the server takes no more; held for a while.
		var all []*pgx.Conn
		for len(all) < 100 {
			c, err := pgx.Connect(ctx, w.as("hasty", w.server.URL("postgres")))
			if err != nil {
				break
			}
			all = append(all, c)
		}
		w.paces(40)
		for _, c := range all {
			_ = c.Close(ctx)
		}
		return nil
	case "step clock":
		// Rows that were written before the clock was set look as if it had been ahead by so much, or behind.
		by := time.Duration(w.rng.IntN(4000)-2000) * time.Millisecond
		far := by * 3600
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, step := range []struct {
				sql string
				by  time.Duration
			}{
				{`SET LOCAL lock_timeout = '1s'`, 0},
				{`SELECT pg_advisory_xact_lock(1464158547, 2)`, 0}, // promotion
				{`UPDATE weir.later SET run_at = run_at + $1::interval`, by},
				{`UPDATE weir.promotion SET due = due + $1::interval, ahead_due = (SELECT array_agg(d + $1::interval ORDER BY n) FROM unnest(ahead_due) WITH ORDINALITY a(d, n))`, by},
				{`UPDATE weir.segment SET at = at + $1::interval`, far},
				{`UPDATE weir.worker SET at = at + $1::interval`, far},
				{`UPDATE weir.last_word SET at = at + $1::interval`, far},
				{`SELECT setval('weir.watched_at', greatest(last_value + extract(epoch FROM $1::interval)::bigint * 1000, 1)) FROM weir.watched_at`, far},
			} {
				var args []any
				if step.by != 0 {
					args = append(args, step.by)
				}
				if _, err := tx.Exec(ctx, step.sql, args...); err != nil {
					return err
				}
			}
			return nil
		})
	case "dump":
		// As pg_dump does it: one snapshot, every table locked, then read.
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'weir' ORDER BY 1`)
			if err != nil {
				return err
			}
			tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, table := range tables {
				if err == nil {
					_, err = tx.Exec(ctx, `LOCK TABLE `+table+` IN ACCESS SHARE MODE`)
				}
			}
			for _, table := range tables {
				if err == nil {
					_, err = tx.Exec(ctx, `SELECT count(t) FROM `+table+` t`)
				}
			}
			w.paces(60)
			return err
		})
	case "pin horizon":
		if w.pinned != nil {
			_ = w.pinned.Close(ctx)
		}
		var err error
		if w.pinned, err = pgx.Connect(ctx, w.server.URL("postgres")); err == nil {
			_, err = w.pinned.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`) // both kinds: an old snapshot, an old transaction
		}
		return err
	}
	return fmt.Errorf("there is no fault %q", what)
}

// failover cuts the standby off, so that what is acknowledged from then on is lost, kills the primary some commits later, and goes on with the standby;
// a new one follows it, to which it fails back the next time.
func (w *torture) failover() {
	pgtest.CutOff(w, w.standby)
	for enough, n := w.acked.Load()+int64(w.rng.IntN(20)), 0; w.acked.Load() < enough && n < 100; n++ {
		w.paces(1)
	}
	if err := w.server.Kill(); err != nil {
		w.Error(err)
	}
	conn, err := pgx.Connect(w.ctx, w.standby.URL("postgres"))
	if err != nil {
		w.Fatal(err)
	}
	w.books.lifeEnds(value[int64](w.T, conn, `SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn`))
	pgtest.Promote(w, w.standby)
	exec(w.T, conn, `ALTER SYSTEM RESET primary_conninfo`) // which CutOff has set, and the next standby would copy
	_ = conn.Close(w.ctx)
	w.life.Add(1)
	w.server = w.standby
	w.port.Store(int32(w.server.Port()))
	w.again(w.workers[len(w.workers)-1]) // which goes to the server itself
	w.standby = pgtest.Standby(w, w.server, nil)
}

// paces waits for so many beats of the common pace.
func (w *torture) paces(n int) {
	for range n {
		select {
		case <-w.pace.C:
		case <-w.ctx.Done():
		}
	}
}

// mend ends what is bad.
func (w *torture) mend() {
	w.thaw()
	if w.silent != nil {
		w.silent.proxy.silence(false)
	}
	for _, k := range w.workers[:len(w.workers)-1] {
		k.proxy.lose(0)
	}
	if w.pinned != nil {
		_ = w.pinned.Close(context.Background())
	}
}
