package proof

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// publisher publishes in transactions of every kind until it is stopped. Each transaction also inserts a row into a table, so that a reader of a
// message can check whether the transaction is visible. A payload begins with "transaction|number|length|".
type publisher struct {
	*load
	talk     *talk
	rng      *rand.Rand
	n        int
	conn     *pgx.Conn
	prepared []preparedTx
	gids     int
}

func (l *load) publish(talk *talk, n int) {
	p := &publisher{load: l, talk: talk, n: n, rng: rand.New(rand.NewPCG(l.seed, uint64(3000+n)))}
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

func (p *publisher) ready() bool {
	if p.ctx.Err() == nil && (p.conn == nil || p.conn.IsClosed()) {
		p.conn = p.dial("victim publisher")
	}
	return p.ctx.Err() == nil && p.conn != nil
}

// speech is the messages of a transaction by number: those that count, in order, and the next number.
type speech struct {
	tx   string
	said []int
	next int
}

func (s *speech) head(length int) string {
	s.next++
	return fmt.Sprintf("%s|%d|%d|", s.tx, s.next, length)
}

func (s *speech) counts(times int) {
	for range times {
		s.said = append(s.said, s.next)
	}
}

// say publishes in the open transaction, in one of the possible ways.
func (p *publisher) say(s *speech) error {
	channel := fmt.Sprintf("c.%d", p.rng.IntN(5))
	run := func(sql string, args ...any) error { _, err := p.conn.Exec(p.ctx, sql, args...); return err }
	padded := func(length int) string {
		head := s.head(length)
		return head + strings.Repeat("x", max(0, length-len(head)))
	}
	switch dice := p.rng.IntN(100); {
	case dice < 50:
		text := padded(100 + p.rng.IntN(600))
		s.counts(1)
		return run(`SELECT weir.publish($1, $2)`, channel, text)
	case dice < 65: // a repetition counts once, unless it is to be kept
		text := padded(60 + p.rng.IntN(100))
		s.counts(1)
		if err := run(`SELECT weir.notify($1, $2), weir.notify($1, $2)`, channel, text); err != nil || p.rng.IntN(2) == 0 {
			return err
		}
		s.counts(2)
		return run(`SELECT weir.publish($1, $2, true), weir.notify($1, $2), weir.publish($1, $2, keep => true)`, channel, text)
	case dice < 80:
		n := 1 + p.rng.IntN(150)
		var channels, payloads []string
		for range n {
			channels, payloads = append(channels, channel), append(payloads, padded(60))
			s.counts(1)
		}
		return run(`SELECT weir.publish_many($1, $2)`, channels, payloads)
	case dice < 90:
		length := 1000 + p.rng.IntN(200_000)
		bytes := []byte(padded(length))
		for i := 64; i < len(bytes); i++ {
			bytes[i] = byte(p.rng.Uint32())
		}
		s.counts(1)
		return run(`SELECT weir.publish_bytes($1, $2)`, channel, bytes)
	case dice < 92 && p.talk.giants.Add(1) <= 6: // more than fits into another tick
		n := 10_001 + p.rng.IntN(12_000)
		first := s.next + 1
		for range n {
			s.next++
			s.counts(1)
		}
		return run(`SELECT weir.publish_many(array_fill($1::text, ARRAY[$4::int - $3::int + 1]), array_agg($2::text || '|' || n || '|0|' ORDER BY n))
			FROM generate_series($3::int, $4::int) n`, channel, s.tx, first, s.next)
	default: // within a block with an exception handler, which is a savepoint
		kept, gone := padded(80), padded(90)
		s.said = append(s.said, s.next-1)
		return run(fmt.Sprintf(`DO $$ BEGIN PERFORM weir.publish('%s', '%s'); BEGIN PERFORM weir.publish('%s', '%s'); RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN NULL; END; END $$`, channel, kept, channel, gone))
	}
}

func (p *publisher) transaction() {
	s := &speech{tx: fmt.Sprintf("p%d-%d", p.n, p.keys.Add(1))}
	p.talk.spoke(s, uncertain) // before anything is sent
	if p.rng.IntN(4) == 0 {    // autocommit
		text := s.head(0)
		s.counts(1)
		p.talk.spoke(s, uncertain)
		sql := `WITH i AS (INSERT INTO spoken VALUES ($1) RETURNING tx) SELECT weir.publish('auto', $2) FROM i`
		if p.rng.IntN(2) == 0 { // as a hub does, with its own tick
			sql = `INSERT INTO spoken SELECT $1 FROM weir._publish_drafts(ARRAY['auto'], ARRAY[convert_to($2, 'UTF8')], ARRAY[false], true)`
		}
		_, err := p.conn.Exec(p.ctx, sql, s.tx, text)
		if !p.check(p.conn, "publish", err) {
			p.talk.spoke(s, committed)
		}
		return
	}
	end := p.rng.IntN(8)
	savepoint, undo, long := p.rng.IntN(3) == 0, p.rng.IntN(2) == 0, p.rng.IntN(12) == 0
	steps := []func() error{
		p.step("BEGIN"),
		func() error { _, err := p.conn.Exec(p.ctx, `INSERT INTO spoken VALUES ($1)`, s.tx); return err },
		func() error { return p.say(s) },
	}
	if savepoint {
		var before []int
		steps = append(steps, p.step("SAVEPOINT s"), func() error { before = s.said; return p.say(s) })
		if undo {
			steps = append(steps, p.step("ROLLBACK TO SAVEPOINT s"), func() error { s.said = before[:len(before):len(before)]; return nil })
		}
		steps = append(steps, func() error { return p.say(s) })
	}
	patient := time.Duration(p.rng.IntN(15)) * time.Millisecond
	if long {
		patient = time.Duration(100+p.rng.IntN(1200)) * time.Millisecond
	}
	steps = append(steps, func() error { p.pause(patient); return nil }, func() error { return p.say(s) })
	for _, step := range steps {
		if p.check(p.conn, "in a transaction", step()) {
			p.talk.spoke(s, rolledBack) // COMMIT was never sent
			return
		}
	}
	switch {
	case end == 0:
		if err := p.step("ROLLBACK")(); !p.check(p.conn, "rollback", err) {
			p.talk.spoke(s, rolledBack)
		}
	case end == 1:
		p.gids++
		gid := fmt.Sprintf("%s p%d-%d", p.conn.Config().Database, p.n, p.gids) // the names of all databases are in one list
		if err := p.step("PREPARE TRANSACTION '" + gid + "'")(); !p.check(p.conn, "prepare", err) {
			p.prepared = append(p.prepared, preparedTx{gid, []string{s.tx}})
		}
		p.talk.spoke(s, uncertain)
	default:
		p.talk.spoke(s, uncertain) // with all messages so far
		if err := p.step("COMMIT")(); !p.check(p.conn, "commit", err) {
			p.talk.spoke(s, committed)
		}
	}
}

func (p *publisher) step(sql string) func() error {
	return func() error { _, err := p.conn.Exec(p.ctx, sql); return err }
}

// decide commits or rolls back the oldest prepared transaction. If the answer is lost, the end of the load decides.
func (p *publisher) decide() {
	tx := p.prepared[0]
	p.prepared = p.prepared[1:]
	verb, f := "COMMIT", committed
	if p.rng.IntN(3) == 0 {
		verb, f = "ROLLBACK", rolledBack
	}
	if err := p.step(verb + " PREPARED '" + tx.gid + "'")(); !p.check(p.conn, verb, err) {
		p.talk.decided(tx.keys[0], f)
	}
}

// rotate rotates and reclaims message segments until the load is drained.
func (l *load) rotate(talk *talk) {
	var conn *pgx.Conn
	for l.ctx.Err() == nil && !closed(l.drained) {
		if conn == nil || conn.IsClosed() {
			if conn = l.dial("victim rotator"); conn == nil {
				return
			}
		}
		var did *string
		err := conn.QueryRow(l.ctx, `SELECT split_part(weir._rotate_messages(), ' ', 1)`).Scan(&did)
		if !l.check(conn, "rotate", err) && did != nil {
			n, _ := l.did.LoadOrStore(*did, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
		l.pause(20 * time.Millisecond)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// listener reads one tick after the other, as a hub does.
type listener struct {
	*load
	talk  *talk
	rng   *rand.Rand
	conn  *pgx.Conn
	cuts  bool
	after int64
}

// listen reads until the last tick, which the talk knows once it is over.
func (l *load) listen(talk *talk, n int, from int64) {
	r := &listener{load: l, talk: talk, rng: rand.New(rand.NewPCG(l.seed, uint64(4000+n))), cuts: n != 1, after: from}
	var ids *int64
	var seen *string
	for l.ctx.Err() == nil && !(closed(l.drained) && r.after >= talk.last.Load()) {
		if r.conn == nil || r.conn.IsClosed() {
			if r.conn = l.dial("victim listener"); r.conn == nil {
				return
			}
			ids, seen = nil, nil
		}
		if time.Now().UnixMilli()/400%3 == 0 && !closed(l.drained) {
			l.pause(20 * time.Millisecond) // no tick is cut for a while, so that the next one has many messages
			continue
		}
		var seqs []int64
		var counts []int32
		err := r.conn.QueryRow(l.ctx, `SELECT seqs, counts, ids_now, seen_now::text FROM weir._await_tick($1, $2, $3::text::pg_snapshot, $4, 0.003, $5, $6)`,
			r.after, ids, seen, 1+r.rng.IntN(20), r.rng.IntN(3), r.cuts && !closed(l.drained)).Scan(&seqs, &counts, &ids, &seen)
		if r.truncated(err) || l.check(r.conn, "tick", err) {
			ids, seen = nil, nil
			continue
		}
		for i, seq := range seqs {
			if seq != r.after+1 {
				l.fail(fmt.Errorf("tick %d follows %d", seq, r.after))
				return
			}
			if !r.read(seq, counts[i]) {
				break
			}
			r.after = seq
		}
	}
	if r.conn != nil {
		_ = r.conn.Close(context.Background())
	}
}

// truncated continues after the ticks that are gone.
func (r *listener) truncated(err error) bool {
	if sqlstate(err) != "WR005" {
		return false
	}
	floor, bad := detail(err)
	if bad != nil || floor <= r.after {
		r.fail(errors.Join(fmt.Errorf("after tick %d: truncated up to %d", r.after, floor), bad, err))
		return true
	}
	r.talk.gaps.Add(1)
	r.after = floor
	return true
}

// read reads one tick, and at once checks that the rows of its transactions are visible.
func (r *listener) read(seq int64, count int32) bool {
	var got []heard
	for {
		var after int64
		if len(got) > 0 {
			after = got[len(got)-1].id
		}
		limit := 1 + r.rng.IntN(20_000)
		rows, err := r.conn.Query(r.ctx, `SELECT id, xid::text, channel, keep, octet_length(payload), convert_from(substr(payload, 1, 50), 'SQL_ASCII'), md5(payload)
			FROM weir.read($1, $2, $3)`, seq, after, limit)
		var page []heard
		if err == nil {
			page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h heard, err error) {
				err = row.Scan(&h.id, &h.xid, &h.channel, &h.keep, &h.length, &h.head, &h.hash)
				return h, err
			})
		}
		if r.truncated(err) || r.check(r.conn, "read", err) {
			return false
		}
		got = append(got, page...)
		if len(page) == 0 || len(got) >= int(count) {
			break
		}
	}
	txs := map[string]bool{}
	for _, h := range got {
		txs[h.tx()] = true
	}
	var names []string
	for tx := range txs {
		names = append(names, tx)
	}
	var there int
	if err := r.conn.QueryRow(r.ctx, `SELECT count(*) FROM spoken WHERE tx = ANY ($1)`, names).Scan(&there); r.check(r.conn, "check for rows", err) {
		return false
	}
	if there != len(names) {
		r.fail(fmt.Errorf("tick %d has messages of %d transactions, but the rows of %d are there: delivered before the commit", seq, len(names), there))
	}
	if err := r.talk.heard(seq, count, got); err != nil {
		r.fail(err)
	}
	return true
}
