package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	// During a deployment, which takes some minutes, old workers release jobs of kinds that only new workers know.
	kindUnknownFor = 10 * time.Minute
	maxReleased    = 200
)

// Workers release such jobs with the first of these errors, weir.take with the second. They are among the first of the scheduled jobs, because they
// wait for at most five minutes; then they are available.
const kindsSQL = `
SELECT j.kind, j.queue, count(*)::int, extract(epoch FROM clock_timestamp() - min(j.enqueued_at))::float8
FROM (SELECT jobs FROM weir.jobs_page(ARRAY['scheduled'], max_rows => $1) UNION ALL SELECT jobs FROM weir.jobs_page(ARRAY['available'], max_rows => $1)) p
CROSS JOIN jsonb_to_recordset(p.jobs) j(kind text, queue text, enqueued_at timestamptz, error text)
WHERE j.error LIKE '%: no handler for this kind in this worker' OR j.error LIKE 'no handler for kind %' GROUP BY j.kind, j.queue ORDER BY 4 DESC LIMIT 20`

// checkKinds detects jobs that are released because no worker so far has a handler for their kind.
func checkKinds(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	type row struct {
		Kind, Queue string
		Jobs        int32
		Oldest      float64
	}
	kinds, err := list[row](ctx, l.session, kindsSQL, maxReleased)
	if r, ok, err := unless(err, "whether Weir's workers have handlers for all kinds", "the role weir_work"); !ok {
		return r, err
	}
	if len(kinds) == 0 {
		return healthy("Weir's workers have handlers for all jobs they claim.")
	}
	severity := Info
	if seconds(kinds[0].Oldest) >= kindUnknownFor {
		severity = Warning
	}
	f := l.finding(KindUnknown, severity, 0, 1)
	f.Samples = 1
	for _, k := range kinds {
		f.add(`SELECT id, kind, queue, error FROM weir.jobs('scheduled') WHERE error LIKE '%no handler for%'`,
			"kind %s in queue %s: %s released, the oldest enqueued %s ago", k.Kind, k.Queue, many(int64(k.Jobs), "job"), span(seconds(k.Oldest)))
	}
	f.Summary = fmt.Sprintf("No worker so far has a handler for jobs of kind %s.", kinds[0].Kind)
	f.Now = "If a deployment is in progress, wait for it to finish: the jobs run on the new workers. Otherwise start workers with a handler for the kind, or cancel the jobs."
	f.ForGood = "Deploy the workers that know a kind before the programs that enqueue it."
	return found(f)
}
