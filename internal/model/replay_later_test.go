package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// promotions replays the log of scheduled attempts. The clock advances or steps back by an hour when the test moves the times of all rows.
type promotions struct {
	script
	m     *later
	s     laterState
	url   string
	admin *pgx.Conn
	open  map[uint8]*pgx.Conn // producers' transactions, by the job that they log
	ids   map[uint8]int64

	closed int // the server's segment that corresponds to the closed one of the model
}

func newPromotions(t *testing.T, rng *rand.Rand) *promotions {
	sc := laterScenario{name: "replay", limit: 1 + rng.IntN(2), promoters: 1, back: 3, rotations: 200}
	for range 8 {
		sc.at = append(sc.at, 1+uint8(rng.IntN(lastTime)))
	}
	m := &later{laterScenario: sc}
	p := &promotions{script: script{T: t, rng: rng}, m: m, s: m.machine().start, url: pgtest.Database(t), open: map[uint8]*pgx.Conn{}, ids: map[uint8]int64{}}
	p.admin = p.connect(p.url)
	return p
}

func (p *promotions) close() {
	for _, c := range p.open {
		_ = c.Close(context.Background())
	}
	_ = p.admin.Close(context.Background())
}

func (p *promotions) take(do action, a int) {
	p.Helper()
	if err := p.m.take(&p.s, step{do, uint8(a), 0}); err != nil {
		p.fail("the model breaks a promise: %v", err)
	}
}

func (p *promotions) moves() (all []func()) {
	can := func(weight int, f func()) {
		for range weight {
			all = append(all, f)
		}
	}
	can(4, p.promote)
	can(1, p.rotate)
	if int(p.s.begun) < len(p.m.at) && p.s.clock < lastTime {
		can(4, p.begin)
	}
	for _, job := range slices.Sorted(maps.Keys(p.open)) {
		can(2, func() { p.end(job, true) })
		can(1, func() { p.end(job, false) })
	}
	if p.s.clock < lastTime {
		can(2, func() { p.clock(clockGoesOn, `-`) })
	}
	if p.s.clock > 0 && p.s.back > 0 {
		can(1, func() { p.clock(clockStepsBack, `+`) })
	}
	return all
}

func (p *promotions) begin() {
	c := p.connect(p.url)
	p.exec(c, `BEGIN`)
	job := p.s.begun + 1
	p.m.at[job-1] = max(p.m.at[job-1], p.s.clock+1) // a job that is already due is not scheduled
	// Half an hour is more than the run itself takes.
	p.ids[job] = query[int64](&p.script, c, `SELECT weir.enqueue('q', 'k', run_at => now() + ($1 - 0.5) * interval '1 hour' + $2 * interval '1 second')`, int(p.m.at[job-1])-int(p.s.clock), job)
	p.open[job] = c
	p.take(laterBegin, 0)
	p.note("enqueue of job %d for time %d", job, p.m.at[job-1])
}

func (p *promotions) end(job uint8, commits bool) {
	sql, do := `ROLLBACK`, laterRollback
	if commits {
		sql, do = `COMMIT`, laterCommit
	}
	p.exec(p.open[job], sql)
	_ = p.open[job].Close(p.Context())
	delete(p.open, job)
	var by xid
	for _, w := range p.s.wanted.all() {
		if w.of == job {
			by = w.by
		}
	}
	for i, o := range p.s.ops.all() {
		if o.xid == by {
			p.take(do, i)
			break
		}
	}
	p.note("%s of job %d", sql, job)
}

// clock advances the clock by an hour, or sets it back.
func (p *promotions) clock(do action, sign string) {
	for job, c := range p.open { // rows that only their own transactions see
		p.exec(c, `UPDATE weir.later SET run_at = run_at `+sign+` interval '1 hour' WHERE id = $1`, p.ids[job])
	}
	p.exec(p.admin, `UPDATE weir.later SET run_at = run_at `+sign+` interval '1 hour'`)
	p.exec(p.admin, `UPDATE weir.promotion SET due = due `+sign+` interval '1 hour', ahead_due = (SELECT array_agg(d `+sign+` interval '1 hour' ORDER BY nr) FROM unnest(ahead_due) WITH ORDINALITY a(d, nr))`)
	p.take(do, 0)
	p.note("the clock is at %d", p.s.clock)
}

func (p *promotions) promote() {
	n := query[int](&p.script, p.admin, `SELECT promoted FROM weir._promote($1)`, p.m.limit)
	before := p.s.promoted.n
	p.take(promote, 0)
	for i := int(p.s.ops.n) - 1; i >= 0 && p.s.ops.row[i].promotes; i = int(p.s.ops.n) - 1 {
		p.take([]action{promoteLook, promoteInsert, promoteCommit}[p.s.ops.row[i].phase], i)
	}
	p.note("promote copies %d", n)
	if want := int(p.s.promoted.n - before); n != want {
		p.fail("promote copied %d jobs, but in the model it is %d", n, want)
	}
}

// rotate opens a segment of later, or reclaims the closed one. The server may always postpone it.
func (p *promotions) rotate() {
	bytes := int64(0)
	if p.s.used(3 - p.s.active()) {
		bytes = 1 << 40
	}
	before := query[int](&p.script, p.admin, `SELECT last_value FROM weir.active_later`)
	did := query[string](&p.script, p.admin, `SELECT coalesce(weir._rotate_later($1), '')`, bytes)
	p.note("rotate_later: %s", did)
	if query[int](&p.script, p.admin, `SELECT last_value FROM weir.active_later`) != before {
		p.take(rotateLater, 0)
		p.closed = before
	}
	if did == fmt.Sprint("reclaimed later ", p.closed) { // not one that was already empty and closed
		if !p.m.mayReclaim(&p.s) {
			p.fail("a segment of later was reclaimed although a transaction in flight has rows there")
		}
		p.take(reclaimLater, 0)
	}
}

// look compares which jobs have been promoted.
func (p *promotions) look() {
	p.m.tidy(&p.s)
	if err := p.s.once(); err != nil {
		p.fail("%v", err)
	}
	for _, job := range slices.Sorted(maps.Keys(p.ids)) {
		n := query[int](&p.script, p.admin, `SELECT count(*) FROM weir.job WHERE id = $1`, p.ids[job])
		if want := p.s.times(job); n != want {
			p.fail("job %d (%d) was promoted %d times, but in the model %d times", job, p.ids[job], n, want)
		}
	}
}
