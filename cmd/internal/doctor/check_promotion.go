package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	promotionLate     = 3 * time.Second
	promotionVeryLate = time.Minute
	maxDue            = 10_000
)

// The first row past the promoter's cursor is the next one due.
const promotionSQL = `
SELECT (SELECT l.run_at FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) ORDER BY l.run_at, l.id LIMIT 1), clock_timestamp(),
       (SELECT count(*) FROM (SELECT FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= clock_timestamp() ORDER BY l.run_at, l.id LIMIT $1) d)
FROM (SELECT p.due, p.due_id FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1) c`

// checkPromotion detects scheduled jobs and retries that are overdue.
func checkPromotion(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	type row struct {
		Next *time.Time
		Now  time.Time
		Due  int64
	}
	r, err := one[row](ctx, l.session, promotionSQL, maxDue)
	if r, ok, err := unless(err, "whether Weir's scheduled jobs are promoted on time", "the schema's owner"); !ok {
		return r, err
	}
	late := time.Duration(0)
	if r.Next != nil {
		late = r.Now.Sub(*r.Next)
	}
	if late < promotionLate {
		return healthy("Weir's scheduled jobs are promoted on time.")
	}
	severity := Warning
	if late >= promotionVeryLate {
		severity = Critical
	}
	f := l.finding(PromotionLate, severity, 0, 1)
	f.Samples = 1
	f.Summary = fmt.Sprintf("%s due and not promoted, the oldest for %s.", isAre(int(r.Due), "scheduled job"), span(late))
	f.add(`SELECT run_at FROM weir.later l, (SELECT due, due_id FROM weir.promotion ORDER BY seq DESC LIMIT 1) c
WHERE (l.run_at, l.id) > (c.due, c.due_id) ORDER BY l.run_at, l.id LIMIT 1`,
		"the next one was due at %s, %s ago; %s due", r.Next.UTC().Format(time.RFC3339), span(late), isAre(int(r.Due), "job"))
	if workers, err := readWorkers(ctx, l.session); err == nil {
		alive := 0
		for _, w := range workers {
			if w.State == "alive" {
				alive++
			}
		}
		f.add("SELECT * FROM weir.workers()", "%s alive; each promotes", isAre(alive, "worker"))
	}
	f.Now = "Start a worker, for any queue; or run CALL weir.chores() twice a second."
	f.ForGood = "Keep one Go worker running, or have workers in other languages run CALL weir.chores() twice a second."
	return found(f)
}
