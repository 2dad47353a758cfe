package proof

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// load is a random load of producers, claimers and a maintainer, with a model of what they saw.
type load struct {
	t        *testing.T
	url      string
	seed     uint64
	queues   []string
	crashing bool // the server will be killed: claimers keep their attempts
	model    *model
	ctx      context.Context // ends when anything fails
	fail     context.CancelCauseFunc
	stop     chan struct{} // closed when no more jobs are to be enqueued
	drained  chan struct{} // closed when there is no more work
	draining atomic.Bool
	keys     atomic.Int64
	did      sync.Map // what the maintainer did -> *atomic.Int64
}

func newLoad(t *testing.T, url string, seed uint64) *load {
	l := &load{t: t, url: url, seed: seed, queues: []string{"a", "b", "c"}, model: newModel(), stop: make(chan struct{}), drained: make(chan struct{})}
	l.ctx, l.fail = context.WithCancelCause(t.Context())
	return l
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pause waits, as part of the load's plan.
func (l *load) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
	}
}

// isLost reports whether an error means that the connection or the server was lost.
func isLost(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return strings.HasPrefix(pg.Code, "57P0") || strings.HasPrefix(pg.Code, "08")
	}
	return err != nil
}

// dial connects, again and again while the server is down. It returns nil when the load has failed.
func (l *load) dial(name string) *pgx.Conn {
	for end := time.Now().Add(patience); ; l.pause(20 * time.Millisecond) {
		config, err := pgx.ParseConfig(l.url)
		if err != nil {
			l.fail(err)
			return nil
		}
		config.RuntimeParams["application_name"] = name
		conn, err := pgx.ConnectConfig(l.ctx, config)
		if err == nil {
			return conn
		}
		if l.ctx.Err() != nil || time.Now().After(end) {
			l.fail(fmt.Errorf("connect: %w", err))
			return nil
		}
	}
}

// check reports an error unless it is a lost connection, and returns whether there was any error.
func (l *load) check(conn *pgx.Conn, what string, err error) bool {
	if err == nil {
		return false
	}
	if !isLost(err) {
		l.fail(fmt.Errorf("%s: %w", what, err))
	}
	_ = conn.Close(context.Background())
	return true
}

// producer enqueues in transactions of every kind until it is stopped.
type producer struct {
	*load
	rng      *rand.Rand
	n        int
	conn     *pgx.Conn
	prepared []preparedTx
	gids     int
}

type preparedTx struct {
	gid  string
	keys []string
}

func (l *load) produce(n int) {
	p := &producer{load: l, n: n, rng: rand.New(rand.NewPCG(l.seed, uint64(n)))}
	for p.ready() && !closed(l.stop) {
		p.transaction()
		if len(p.prepared) > 0 && (len(p.prepared) > 1 || p.rng.IntN(3) == 0) {
			p.decide()
		}
	}
	for len(p.prepared) > 0 && p.ready() {
		p.decide()
	}
	if p.conn != nil {
		_ = p.conn.Close(context.Background())
	}
}

func (p *producer) ready() bool {
	if p.ctx.Err() == nil && (p.conn == nil || p.conn.IsClosed()) {
		p.conn = p.dial("victim producer")
	}
	return p.ctx.Err() == nil && p.conn != nil
}

// shared returns the key of a job in a queue whose keys are served by turns, or nil for two of three jobs.
func (p *producer) shared() *string {
	if p.rng.IntN(3) > 0 {
		return nil
	}
	key := fmt.Sprintf("customer %d", p.rng.IntN(6))
	return &key
}

func (p *producer) newKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("p%d-%d", p.n, p.keys.Add(1))
	}
	p.model.enqueued(uncertain, keys...)
	return keys
}

// enqueue enqueues jobs, one by one or many at once, and returns their keys.
func (p *producer) enqueue() ([]string, error) {
	if p.rng.IntN(3) > 0 {
		keys := p.newKeys(1)
		var runAt *time.Time
		if p.rng.IntN(5) == 0 {
			at := time.Now().Add(time.Duration(p.rng.IntN(400)) * time.Millisecond)
			runAt = &at
		}
		_, err := p.conn.Exec(p.ctx, `SELECT weir.enqueue($1, 'k', jsonb_build_object('k', $2::text, 'pad', repeat('x', $3)), $4, $5, $6, NULL, $7)`,
			p.queues[p.rng.IntN(len(p.queues))], keys[0], p.rng.IntN(600), 1+p.rng.IntN(4), runAt, 1+p.rng.IntN(25), p.shared())
		return keys, err
	}
	keys := p.newKeys(1 + p.rng.IntN(120))
	var queues, kinds, args []string
	var priorities []int32
	var runAts []*time.Time
	var shared []*string
	for _, k := range keys {
		queues, kinds = append(queues, p.queues[p.rng.IntN(len(p.queues))]), append(kinds, "many")
		args, priorities = append(args, `{"k":"`+k+`"}`), append(priorities, int32(1+p.rng.IntN(4)))
		var runAt *time.Time
		if p.rng.IntN(8) == 0 {
			at := time.Now().Add(time.Duration(p.rng.IntN(600)-100) * time.Millisecond)
			runAt = &at
		}
		runAts, shared = append(runAts, runAt), append(shared, p.shared())
	}
	_, err := p.conn.Exec(p.ctx, `SELECT weir.enqueue_many($1, $2, $3::text[]::jsonb[], $4, $5, NULL, NULL, $6)`, queues, kinds, args, priorities, runAts, shared)
	return keys, err
}

func (p *producer) transaction() {
	if p.rng.IntN(3) == 0 { // autocommit
		keys, err := p.enqueue()
		if !p.check(p.conn, "enqueue", err) {
			p.model.enqueued(committed, keys...)
		}
		return
	}
	var kept, dropped []string
	end := p.rng.IntN(8)
	savepoint, undo, long := p.rng.IntN(3) == 0, p.rng.IntN(2) == 0, p.rng.IntN(10) == 0
	patient := p.rng.IntN(20)
	steps := []func() error{
		p.step("BEGIN"),
		func() error { keys, err := p.enqueue(); kept = append(kept, keys...); return err },
	}
	if savepoint {
		steps = append(steps, p.step("SAVEPOINT s"), func() error {
			keys, err := p.enqueue()
			if undo {
				dropped = append(dropped, keys...)
			} else {
				kept = append(kept, keys...)
			}
			return err
		})
		if undo {
			steps = append(steps, p.step("ROLLBACK TO SAVEPOINT s"))
		}
		steps = append(steps, func() error { keys, err := p.enqueue(); kept = append(kept, keys...); return err })
	}
	steps = append(steps, func() error {
		if long {
			p.pause(time.Duration(100+p.rng.IntN(900)) * time.Millisecond)
		} else {
			p.pause(time.Duration(patient) * time.Millisecond)
		}
		return nil
	})
	for _, step := range steps {
		if p.check(p.conn, "in a transaction", step()) {
			p.model.enqueued(rolledBack, append(kept, dropped...)...) // COMMIT was never sent
			return
		}
	}
	p.model.enqueued(rolledBack, dropped...)
	switch {
	case end == 0:
		if err := p.step("ROLLBACK")(); !p.check(p.conn, "rollback", err) {
			p.model.enqueued(rolledBack, kept...)
		}
	case end == 1:
		p.gids++
		gid := fmt.Sprintf("%s p%d-%d", p.conn.Config().Database, p.n, p.gids) // the names of all databases are in one list
		if err := p.step("PREPARE TRANSACTION '" + gid + "'")(); !p.check(p.conn, "prepare", err) {
			p.prepared = append(p.prepared, preparedTx{gid, kept})
		}
	default:
		if err := p.step("COMMIT")(); !p.check(p.conn, "commit", err) {
			p.model.enqueued(committed, kept...)
		}
	}
}

func (p *producer) step(sql string) func() error {
	return func() error { _, err := p.conn.Exec(p.ctx, sql); return err }
}

// decide commits or rolls back the oldest prepared transaction. If the answer is lost, the end of the load decides.
func (p *producer) decide() {
	tx := p.prepared[0]
	p.prepared = p.prepared[1:]
	verb, f := "COMMIT", committed
	if p.rng.IntN(3) == 0 {
		verb, f = "ROLLBACK", rolledBack
	}
	if err := p.step(verb + " PREPARED '" + tx.gid + "'")(); !p.check(p.conn, verb, err) {
		p.model.enqueued(f, tx.keys...)
	}
}

// maintain does random maintenance steps.
func (l *load) maintain(n int) {
	rng := rand.New(rand.NewPCG(l.seed, uint64(1000+n)))
	steps := []string{
		`SELECT 'promoted' FROM weir._promote(%d) WHERE promoted > 0`,
		`SELECT 'promoted' FROM weir._promote(%d) WHERE promoted > 0`,
		`SELECT split_part(weir._rotate(), ' ', 1) FROM (SELECT %d) one`,
		`SELECT split_part(weir._rotate(), ' ', 1) FROM (SELECT %d) one`,
		`SELECT split_part(weir._rotate_later(65536), ' ', 1) || ' later' FROM (SELECT %d) one`,
		`SELECT CASE WHEN sum(r.relogged) > 0 THEN 'rescued' END FROM weir._rescue() r WHERE %d > 0`,
		`SELECT split_part(weir._tidy(), ' ', 1) FROM (SELECT %d) one`,
	}
	var conn *pgx.Conn
	for l.ctx.Err() == nil && !closed(l.drained) {
		if conn == nil || conn.IsClosed() {
			if conn = l.dial("victim maintainer"); conn == nil {
				return
			}
		}
		var did *string
		sql := fmt.Sprintf(steps[rng.IntN(len(steps))], 1+rng.IntN(400))
		err := conn.QueryRow(l.ctx, sql).Scan(&did)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		if !l.check(conn, sql, err) && did != nil {
			n, _ := l.did.LoadOrStore(*did, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
		l.pause(time.Duration(rng.IntN(10)) * time.Millisecond)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// terminate ends random sessions of the load.
func (l *load) terminate() {
	conn := l.dial("terminator")
	for conn != nil && l.ctx.Err() == nil && !closed(l.stop) {
		_, err := conn.Exec(l.ctx, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'victim%' ORDER BY random() LIMIT 1) v`)
		if l.check(conn, "terminate", err) {
			conn = l.dial("terminator")
		}
		l.pause(150 * time.Millisecond)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}
