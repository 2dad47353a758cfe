package proof

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// uniqueAnswer is an answer of enqueue_unique.
type uniqueAnswer struct {
	ID        int64
	Duplicate bool
}

// TestManyUniqueJobsAreJudgedAsOneByOne: enqueued together, jobs are duplicates of the same jobs as if they were enqueued one after the other, in a
// random load with few keys, all rules, and jobs that have run.
func TestManyUniqueJobsAreJudgedAsOneByOne(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(newSeed(t), 0))
	conns := [2]*pgx.Conn{connect(t, pgtest.Database(t)), connect(t, pgtest.Database(t))}
	workers := [2]int32{startWorker(t, conns[0], "q"), startWorker(t, conns[1], "q")}
	places := [2]map[int64]int{{}, {}} // the number of the job with this id
	rules := []string{`{}`, `{"until": "started"}`, `{"within": "1 hour"}`, `{"replace": true}`, `{"wait": true}`, `{"run_at": "9000-01-01"}`}
	n := 0
	for round := range 6 {
		var jobs []map[string]any
		for range 1 + random.IntN(60) {
			job := map[string]any{"queue": "q", "kind": "k", "args": map[string]int{"n": random.IntN(4 + 20*round)}, "priority": 1 + random.IntN(4)}
			if err := json.Unmarshal([]byte(rules[random.IntN(len(rules))]), &job); err != nil {
				t.Fatal(err)
			}
			if random.IntN(3) == 0 {
				job["unique_key"] = fmt.Sprint(random.IntN(5))
			}
			jobs = append(jobs, job)
		}
		text, err := json.Marshal(jobs)
		if err != nil {
			t.Fatal(err)
		}
		var answers [2][]string
		for i, sql := range []string{
			`SELECT id, duplicate FROM weir._enqueue_unique_many($1)`,
			`SELECT a.id, a.duplicate FROM jsonb_array_elements($1) WITH ORDINALITY e(job, ord)
				CROSS JOIN LATERAL jsonb_to_record(e.job) x(args jsonb, priority integer, run_at timestamptz, unique_key text, until text, within interval, replace boolean, wait boolean)
				CROSS JOIN LATERAL weir.enqueue_unique('q', 'k', x.args, x.unique_key, NULL, x.until, x.within, x.replace, x.wait, x.priority, x.run_at) a ORDER BY e.ord`,
		} {
			rows, err := conns[i].Query(t.Context(), sql, text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[uniqueAnswer])
			if err != nil {
				t.Fatal(err)
			}
			for k, a := range got {
				if _, known := places[i][a.ID]; !known {
					places[i][a.ID] = n + k
				}
				answers[i] = append(answers[i], fmt.Sprint(places[i][a.ID], a.Duplicate))
			}
			if round%2 == 1 {
				mustComplete(t, conns[i], workers[i], runnable(t, conns[i], workers[i]))
			}
		}
		if n += len(jobs); len(answers[0]) != len(jobs) || !slices.Equal(answers[0], answers[1]) {
			t.Fatalf("enqueued together, jobs %s\nare answered with %v,\none by one with      %v", text, answers[0], answers[1])
		}
	}
}

// TestManyJobsMayBeUniqueOrNot: enqueue_many takes unique and plain jobs in one call, and answers in their order.
func TestManyJobsMayBeUniqueOrNot(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	before := logUniquely(t, conn, `unique_key => 'a'`)
	ids := value[[]int64](t, conn, `SELECT weir.enqueue_many('[{"queue": "q", "kind": "plain"}, {"queue": "q", "kind": "k", "unique": {"key": "b"}}, {"queue": "q", "kind": "k", "unique": {"key": "a"}},
		{"queue": "q", "kind": "plain", "unique": false}, {"queue": "q", "kind": "k", "unique": {"key": "b"}}, {"queue": "q", "kind": "args", "unique": true}]'::jsonb)`)
	kinds := value[string](t, conn, `SELECT string_agg(j.kind, ' ' ORDER BY u.ord) FROM unnest($1::bigint[]) WITH ORDINALITY u(id, ord) JOIN weir.job j ON j.id = u.id`, ids)
	if len(ids) != 6 || ids[2] != before || ids[4] != ids[1] || kinds != "plain k k plain k args" {
		t.Errorf("the answer is %v, of kinds %q", ids, kinds)
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "unique": {"key": "c"}}, {"queue": "q", "kind": "k", "unique": {"until": "done"}}]'::jsonb)`)
	wantCode(t, "a rule that does not exist", err, "22023")
	if _, duplicate := uniquely(t, conn, `unique_key => 'c'`); duplicate {
		t.Error("of a call that fails, a job was enqueued")
	}
}

// TestAUniqueJobCostsFewBytesMore: from enqueue to result, a unique job writes at most 160 bytes of WAL more than a plain one with the same args, by its
// args or by a key, alone or together with others.
func TestAUniqueJobCostsFewBytesMore(t *testing.T) {
	t.Parallel() // on a server of its own, because what is written is counted
	const jobs, most = 1000, 160
	server := pgtest.Server(t, map[string]string{"full_page_writes": "off", "autovacuum": "off"})
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	written := func(sql string, times int) float64 {
		t.Helper()
		const lsn = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
		before := value[int64](t, conn, lsn)
		for range times {
			exec(t, conn, sql)
		}
		mustComplete(t, conn, worker, runnable(t, conn, worker))
		return float64(value[int64](t, conn, lsn)-before) / jobs
	}
	exec(t, conn, `CREATE SEQUENCE number START 1000000`)
	const args = `jsonb_build_object('n', nextval('number'))`
	many := func(unique string) string {
		return fmt.Sprintf(`SELECT weir.enqueue_many(jsonb_agg(jsonb_build_object('queue', 'q', 'kind', 'k', 'args', %s, 'unique', %s))) FROM generate_series(1, %d)`, args, unique, jobs)
	}
	one := func(rest string) string {
		return fmt.Sprintf(`SELECT weir.enqueue_unique('q', 'k', %s %s)`, args, rest)
	}
	const key = `'customer ' || currval('number')`
	plain, bulk := written(`SELECT weir.enqueue('q', 'k', `+args+`)`, jobs), written(many(`false`), 1)
	for _, c := range []struct {
		how, sql  string
		times     int
		insteadOf float64
	}{
		{"by args", one(``), jobs, plain}, {"by key", one(`, unique_key => ` + key), jobs, plain}, {"within a time", one(`, within => '1 hour'`), jobs, plain},
		{"by args, together", many(`true`), 1, bulk}, {"by key, together", many(`jsonb_build_object('key', ` + key + `)`), 1, bulk},
	} {
		got := written(c.sql, c.times)
		t.Logf("unique %s: %.0f bytes, %.0f more than a plain job", c.how, got, got-c.insteadOf)
		if got > c.insteadOf+most {
			t.Errorf("unique %s: %.0f bytes more than a plain job, want at most %d", c.how, got-c.insteadOf, most)
		}
	}
}
