package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// faults are the faults of the torture test.
var faults = []string{
	"crash", "failover", "failover", // to the standby and back
	"kill worker", "kill worker", "freeze worker", "cut worker", "silence worker", "lose answers", "lose answers",
	"kill hub", "cut hub", "kill subscribers", "cut subscribers",
	"end backends", "fill connections", "step clock", "dump", "pin horizon",
}

// fault causes a fault.
func (w *torture) fault(what string) {
	some := func() *tortured { return w.workers[w.rng.IntN(len(w.workers)-1)] } // the last worker has no proxy
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
		// It is usually suspended for longer than its lease.
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
		// These need a connection, which may fail.
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
	w.ledger.died(k.child)
	k.child = k.begin()
}

// thaw resumes the suspended worker, if it still exists.
func (w *torture) thaw() {
	if w.frozen != nil {
		_ = thaw(w.frozen.command.Process)
	}
}

// inside causes a fault that needs a connection.
func (w *torture) inside(ctx context.Context, conn *pgx.Conn, what string) error {
	switch what {
	case "end backends":
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5`)
		return err
	case "fill connections":
		// Open connections until the server accepts no more, and hold them for a while.
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
		// Rows written before the step look as if the clock had been ahead, or behind, by this much.
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
				{`SELECT pg_advisory_xact_lock(1464158547, 7)`, 0}, // counting what arrives at flows
				{`UPDATE weir.flow SET deadline = deadline + $1::interval`, by},
				{`UPDATE weir.flow_cut SET due = due + $1::interval WHERE no = (SELECT max(no) FROM weir.flow_cut)`, by},
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
		// Like pg_dump: one snapshot, every table locked, then read.
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
			_, err = w.pinned.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`) // pins it in both ways: with an old snapshot and an old transaction
		}
		return err
	}
	return fmt.Errorf("fault %q does not exist", what)
}

// failover cuts the standby off, so that later commits are lost, kills the primary some commits later, and promotes the standby, which gets a new
// standby for the next failover.
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
	w.ledger.lifeEnds(value[int64](w.T, conn, `SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn`))
	pgtest.Promote(w, w.standby)
	exec(w.T, conn, `ALTER SYSTEM RESET primary_conninfo`) // CutOff has set it, and the next standby would copy it
	_ = conn.Close(w.ctx)
	w.life.Add(1)
	w.server = w.standby
	w.port.Store(int32(w.server.Port()))
	w.again(w.workers[len(w.workers)-1]) // this worker connects directly to the server
	w.standby = pgtest.Standby(w, w.server, nil)
}

// paces waits for n beats of the common pace.
func (w *torture) paces(n int) {
	for range n {
		select {
		case <-w.pace.C:
		case <-w.ctx.Done():
		}
	}
}

// mend ends all faults.
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
