package proof

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestCommentsSayWhichLocksAreHeld: a transaction that has called a function holds no lock for which others wait but those that the function's comment
// names, and none on Weir's tables where the comment says that none outlasts the call.
func TestCommentsSayWhichLocksAreHeld(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	deadLetters(t, conn, worker, "q", 3, "refused")
	dead := column[int64](t, conn, `SELECT id FROM weir.jobs('failed', 'q')`)
	enqueueN(t, conn, "q", 1)
	running := mustClaim(t, conn, worker, "q", 1)[0]
	waiting := enqueueN(t, conn, "q", 3)
	exec(t, conn, `SELECT weir.cancel_where('q', priority => 3)`)
	exec(t, conn, `SELECT weir.set_retry_rule('old', 'fail', kind => 'k'), weir.set_schedule('old', '* * * * *', 'q', 'k')`)

	calls := map[string]string{
		"cancel": fmt.Sprint(`(`, waiting[0], `)`), "retry": fmt.Sprint(`(`, dead[0], `)`), "jobs_page": `()`, "jobs": `('failed')`, "job_info": fmt.Sprint(`(`, dead[0], `)`), "queues": `()`, "history": `()`, "workers": `()`,
		"keys_in_use": `()`, "cancel_where": `('q')`, "retry_where": `('q')`, "delete_where": `('q')`, "move_where": `('q', to_priority => 1)`,
		"set_retry_rule": `('new', 'fail', kind => 'k')`, "drop_retry_rule": `('old')`, "retry_rules": `()`, "failure_groups": `()`,
		"set_schedule": `('new', '* * * * *', 'q', 'k')`, "drop_schedule": `('old')`, "pause_schedule": `('old')`, "resume_schedule": `('old')`, "run_schedule": `('old')`,
		"schedules": `()`, "set_weight": `('q', 'key', 2)`, "weights": `()`, "limits": `()`, "next_times": `('* * * * *')`,
		"enqueue": `('q', 'k')`, "enqueue_unique": `('q', 'k')`, "enqueued": `()`,
		"progress": fmt.Sprintf(`(%d, '[{"token": %q, "percent": 5}]')`, worker, running.token()), "checkpoint": fmt.Sprint(`(`, running.ID, `)`),
		"set_checkpoint": fmt.Sprintf(`(%d, '%s', '5')`, worker, running.token()),
		"settings":       `()`, "storage": `()`, "pause": `('q')`, "resume": `('q')`,
	}
	// For these tables others wait although nobody locks them strongly: ROW EXCLUSIVE is enough.
	waitedFor := column[string](t, conn, `SELECT DISTINCT m[1] FROM pg_proc p, regexp_matches(p.prosrc, 'LOCK TABLE weir\.([a-z_]+?)(?:_%s)? IN (?:SHARE|SHARE ROW EXCLUSIVE) MODE(?! NOWAIT)', 'g') m WHERE p.pronamespace = 'weir'::regnamespace`)
	if len(waitedFor) < 3 {
		t.Fatalf("found only these tables: %v", waitedFor)
	}
	comments := map[string]string{}
	for name := range calls {
		comments[name] = value[string](t, conn, `SELECT substring(obj_description(min(p.oid), 'pg_proc') FROM '([Ll]ocks[,:].*)') FROM pg_proc p WHERE p.proname = $1 AND p.pronamespace = 'weir'::regnamespace`, name)
	}
	reference := regexp.MustCompile(`as for weir\.([a-z_]+)`)
	for name, args := range calls {
		comment := comments[name]
		for _, m := range reference.FindAllStringSubmatch(comment, -1) {
			comment += comments[m[1]]
		}
		for _, wrong := range locksNotIn(t, connect(t, url), comment, `SELECT FROM weir.`+name+args, waitedFor) {
			t.Errorf("after weir.%s%s, a transaction holds %s, which its comment does not say: %s", name, args, wrong, comment)
		}
	}
}

// locksNotIn returns the locks that a transaction holds after a statement, of those for which others may wait and which a comment does not name.
func locksNotIn(t *testing.T, conn *pgx.Conn, comment, sql string, waitedFor []string) (wrong []string) {
	t.Helper()
	exec(t, conn, `BEGIN`)
	exec(t, conn, sql)
	modes := strings.NewReplacer("AccessExclusiveLock", "ACCESS EXCLUSIVE", "ShareRowExclusiveLock", "SHARE ROW EXCLUSIVE", "RowExclusiveLock", "ROW EXCLUSIVE", "ExclusiveLock", "EXCLUSIVE",
		"ShareUpdateExclusiveLock", "SHARE UPDATE EXCLUSIVE", "AccessShareLock", "ACCESS SHARE", "RowShareLock", "ROW SHARE", "ShareLock", "SHARE")
	rows, err := conn.Query(t.Context(), `SELECT l.locktype, coalesce(c.relname, ''), l.mode FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation AND l.locktype = 'relation'
		WHERE l.pid = pg_backend_pid() AND (l.locktype = 'advisory' OR c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p'))`)
	if err != nil {
		t.Fatal(err)
	}
	var locktype, table, mode string
	if _, err := pgx.ForEachRow(rows, []any{&locktype, &table, &mode}, func() error {
		words := modes.Replace(mode)
		weak := slices.Contains([]string{"ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE"}, words)
		switch {
		case strings.Contains(comment, "none that outlast the call"):
		case locktype == "advisory":
			if strings.Contains(comment, "advisory:") {
				return nil
			}
		case weak && !(words == "ROW EXCLUSIVE" && slices.Contains(waitedFor, table)):
			return nil
		case strings.Contains(comment, words+" on weir."+table):
			return nil
		}
		wrong = append(wrong, strings.TrimSpace(locktype+" "+table+" "+words))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `ROLLBACK`)
	return wrong
}
