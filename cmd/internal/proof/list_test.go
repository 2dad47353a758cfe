package proof

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// allStates has the states in the order of a list without states.
var allStates = []string{"available", "running", "scheduled", "completed", "failed", "cancelled"}

// list holds the arguments of weir.jobs_page.
type list struct {
	states []string
	queue  *string
	kinds  []string
	meta   *string
	key    *string
}

// listed is a job of a page.
type listed struct {
	ID         int64      `json:"id"`
	State      string     `json:"state"`
	Queue      string     `json:"queue"`
	Kind       string     `json:"kind"`
	Priority   int        `json:"priority"`
	FinishedAt *time.Time `json:"finished_at"`
	RunAt      *time.Time `json:"run_at"`
}

func (l list) page(t *testing.T, q querier, after string, limit int) (jobs []listed, next string) {
	t.Helper()
	var text []byte
	if err := q.QueryRow(t.Context(), `SELECT jobs, coalesce(next, '') FROM weir.jobs_page($1, $2, $3, $4, $5, $6, $7)`,
		l.states, l.queue, l.kinds, l.meta, after, limit, l.key).Scan(&text, &next); err != nil {
		t.Fatalf("the list %+v after %q: %v", l, after, err)
	}
	if err := json.Unmarshal(text, &jobs); err != nil {
		t.Fatal(err)
	}
	if len(jobs) > limit {
		t.Fatalf("a page of at most %d has %d jobs", limit, len(jobs))
	}
	return jobs, next
}

// all reads a list to its end, and calls between after each page.
func (l list) all(t *testing.T, q querier, limit int, between func()) (jobs []listed, pages int) {
	t.Helper()
	for after := ""; pages < 1000; {
		some, next := l.page(t, q, after, limit)
		jobs = append(jobs, some...)
		if pages++; next == "" {
			return jobs, pages
		}
		if after = next; between != nil {
			between()
		}
	}
	t.Fatalf("the list %+v does not end", l)
	return nil, 0
}

func listedIDs(jobs []listed) (ids []int64) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// manyStates makes jobs of each state in two queues.
func manyStates(t *testing.T, conn *pgx.Conn, worker int32, n int) {
	t.Helper()
	for _, queue := range []string{"q", "r"} {
		end := func(outcome string) {
			ids := value[[]int64](t, conn, `SELECT array_agg(weir.enqueue($1, 'k' || n % 3, priority => 1 + n % 4, meta => jsonb_build_object('n', n, 't', n % 2))) FROM generate_series(1, $2::int) n`, queue, n)
			for _, a := range claimAll(t, conn, worker, queue) {
				if !slices.Contains(ids, a.ID) {
					t.Fatalf("job %d is not in its first attempt", a.ID)
				}
				if _, err := finish(t.Context(), conn, worker, a, outcome, time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		end("completed")
		end("failed")
		end("cancelled")
		exec(t, conn, `SELECT weir.enqueue($1, 'k' || n % 3, meta => jsonb_build_object('n', n, 't', n % 2)) FROM generate_series(1, $2::int) n`, queue, n)
		mustClaim(t, conn, worker, queue, int32(n/2))
		mustClaim(t, conn, worker, queue, int32(n-n/2))
		exec(t, conn, `SELECT weir.enqueue($1, 'k' || n % 3, run_at => now() + (10 + n % 7) * interval '1 hour', meta => jsonb_build_object('n', n, 't', n % 2)) FROM generate_series(1, $2::int) n`, queue, n)
		exec(t, conn, `SELECT weir.enqueue($1, 'k' || n % 3, priority => 1 + n % 4, meta => jsonb_build_object('n', n, 't', n % 2)) FROM generate_series(1, $2::int) n`, queue, n)
		exec(t, conn, `SELECT weir.cancel(weir.enqueue($1, 'k' || n % 3, meta => jsonb_build_object('n', n, 't', n % 2))) FROM generate_series(1, $2::int) n`, queue, n)
	}
}

// TestPagesAreTheListCutUp: for any states, filter and page size, the pages together have each job once, in the order of the whole list, and with
// its state, queue, kind and meta.
func TestPagesAreTheListCutUp(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "r")
	const n = 12
	manyStates(t, conn, worker, n)
	q, meta := "q", `{"t": 1}`
	for _, l := range []list{
		{}, {states: []string{"available"}}, {states: []string{"running"}}, {states: []string{"scheduled"}}, {states: []string{"completed"}}, {states: []string{"failed"}},
		{states: []string{"cancelled"}}, {queue: &q}, {kinds: []string{"k1", "k2"}}, {meta: &meta}, {states: []string{"failed", "scheduled"}, queue: &q, kinds: []string{"k0"}, meta: &meta},
	} {
		whole, pages := l.all(t, conn, 1000, nil)
		if pages != 1 {
			t.Errorf("the list %+v has %d pages of 1000", l, pages)
		}
		for _, limit := range []int{1, 5, 7} {
			cut, _ := l.all(t, conn, limit, nil)
			if !slices.Equal(listedIDs(cut), listedIDs(whole)) {
				t.Errorf("the list %+v in pages of %d is %v, and as a whole %v", l, limit, listedIDs(cut), listedIDs(whole))
			}
		}
		states := l.states
		if states == nil {
			states = allStates
		}
		want := 0
		for _, state := range states {
			each := 2 * n
			if state == "cancelled" {
				each = 4 * n // before and while they ran
			}
			if l.queue != nil {
				each /= 2
			}
			each = each * max(len(l.kinds), 3*(1-min(len(l.kinds), 1))) / 3
			if l.meta != nil {
				each /= 2
			}
			want += each
		}
		if len(whole) != want {
			t.Errorf("the list %+v has %d jobs, want %d", l, len(whole), want)
		}
		at := 0
		for _, j := range whole {
			for at < len(states) && j.State != states[at] {
				at++
			}
			if at == len(states) || l.queue != nil && j.Queue != *l.queue || l.kinds != nil && !slices.Contains(l.kinds, j.Kind) {
				t.Errorf("the list %+v has the job %+v", l, j)
			}
		}
	}
	ordered := func(state string, inOrder func(a, b listed) bool) {
		t.Helper()
		jobs, _ := list{states: []string{state}}.all(t, conn, 5, nil)
		for i := 1; i < len(jobs); i++ {
			if !inOrder(jobs[i-1], jobs[i]) {
				t.Errorf("in the list of %s jobs, %+v comes before %+v", state, jobs[i-1], jobs[i])
			}
		}
	}
	ordered("available", func(a, b listed) bool { return a.Priority < b.Priority || a.Priority == b.Priority && a.ID < b.ID })
	ordered("scheduled", func(a, b listed) bool { return !b.RunAt.Before(*a.RunAt) })
	ordered("failed", func(a, b listed) bool { return !b.FinishedAt.After(*a.FinishedAt) })
	ordered("completed", func(a, b listed) bool { return !b.FinishedAt.After(*a.FinishedAt) })
}

// TestAJobThatStaysInItsStateIsOnExactlyOnePage: this holds while other jobs are enqueued, claimed, retried and cancelled between pages, and jobs
// are carried into other segments.
func TestAJobThatStaysInItsStateIsOnExactlyOnePage(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set('completed_retention', '1 hour'), weir.set('retention_bytes', '1048576')`)
	worker := startWorker(t, conn, "q", "r", "filler")
	fill := startWorker(t, conn, "filler")
	manyStates(t, conn, worker, 8)
	state := func() map[int64]string {
		got := map[int64]string{}
		for _, s := range column[string](t, conn, `SELECT i.id || ' ' || i.state FROM (
			SELECT j.id FROM weir.job j WHERE j.lane >> 39 IN (SELECT q.id FROM weir.queue q WHERE q.name <> 'filler') UNION SELECT l.id FROM weir.later l) k, weir.job_info(k.id) i`) {
			var id int64
			var name string
			if _, err := fmt.Sscan(s, &id, &name); err != nil {
				t.Fatal(err)
			}
			got[id] = name
		}
		return got
	}
	for _, name := range allStates {
		for _, queue := range []string{"", "q"} {
			l := list{states: []string{name}}
			if queue != "" {
				l.queue = &queue
			}
			before, left := state(), map[int64]bool{}
			moved, limit := 0, 3
			if name == "completed" && queue == "" {
				limit = 100 // the jobs that fill the segments are among them
			}
			got, pages := l.all(t, conn, limit, func() {
				if moved++; moved > 6 {
					return
				}
				switch rng.IntN(5) {
				case 0:
					exec(t, conn, `SELECT weir.enqueue('q', 'k', priority => 1 + n % 4), weir.enqueue('r', 'k', run_at => now() + interval '11 hours') FROM generate_series(1, 3) n`)
				case 1:
					for _, a := range mustClaim(t, conn, worker, []string{"q", "r"}[rng.IntN(2)], 3) {
						left[a.ID] = true // a job that is retried at once gets another place among the available ones
						if _, err := finish(t.Context(), conn, worker, a, []string{"completed", "failed", "cancelled", "retried"}[rng.IntN(4)], time.Time{}); err != nil {
							t.Fatal(err)
						}
					}
				case 2:
					exec(t, conn, `SELECT weir.retry((SELECT id FROM weir.jobs($1) ORDER BY random() LIMIT 1))`, []string{"completed", "failed", "cancelled"}[rng.IntN(3)])
				case 3:
					exec(t, conn, `SELECT weir.cancel((SELECT id FROM weir.jobs($1) ORDER BY random() LIMIT 1))`, []string{"available", "scheduled"}[rng.IntN(2)])
				case 4:
					openNext(t, conn, fill)
				}
				for id, was := range state() {
					left[id] = left[id] || was != before[id]
				}
			})
			after := state()
			times := map[int64]int{}
			for _, j := range got {
				times[j.ID]++
			}
			for id, was := range before {
				var of string
				if err := conn.QueryRow(t.Context(), `SELECT queue FROM weir.job_info($1)`, id).Scan(&of); err != nil {
					continue // deleted with its segment
				}
				if was == name && after[id] == name && !left[id] && (queue == "" || of == queue) && times[id] != 1 {
					t.Errorf("seed %d: %s of %q: job %d was %s all the time, but is on %d of %d pages", seed, name, queue, id, was, times[id], pages)
				}
			}
		}
	}
}

// TestAFilterThatFindsNothingEndsPagesEarly: if a filter matches nothing, a page touches about as many blocks in a log of ten thousand jobs as in
// one of two thousand, and following the pages still finds a match at the end.
func TestAFilterThatFindsNothingEndsPagesEarly(t *testing.T) {
	pgtest.Alone(t, "what a page touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	work := func(n int) {
		for range n / 1000 {
			enqueueN(t, conn, "q", 1000)
			mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
		}
	}
	want := value[int64](t, conn, `SELECT weir.enqueue('q', 'rare', meta => '{"a": {"b": 1}, "c": 2}')`)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	work(2000)
	meta := `{"a": {"b": 1}}`
	l := list{states: []string{"completed"}, meta: &meta}
	page := fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['completed'], meta => '%s')`, meta)
	small := settled(t, conn, page)
	work(8000)
	large := settled(t, conn, page)
	t.Logf("a page without a job touches %d blocks in a log of 2,000 jobs, and %d in one of 10,000", small, large)
	if large > small*5/4+100 {
		t.Errorf("a page without a job touches %d blocks in a log of 2,000 jobs, and %d in one of 10,000", small, large)
	}
	got, pages := l.all(t, conn, 100, nil)
	if ids := listedIDs(got); !slices.Equal(ids, []int64{want}) || pages < 3 {
		t.Errorf("%d pages have the jobs %v, want only %d, after several pages", pages, ids, want)
	}
}

// TestEveryPageIsReadWithinABound: running jobs are found even if their worker has claimed thousands of batches since it last reconciled, and no
// page examines all of these batches.
func TestEveryPageIsReadWithinABound(t *testing.T) {
	pgtest.Alone(t, "what a page touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	held := enqueueN(t, conn, "q", 3)
	mustClaim(t, conn, worker, "q", 3)
	endedBatches(t, conn, worker, 12_000)
	l := list{states: []string{"running"}}
	page := settled(t, conn, `SELECT * FROM weir.jobs_page(ARRAY['running'])`)
	got, pages := l.all(t, conn, 100, nil)
	t.Logf("the running jobs are found on %d pages after 12,000 batches; the first page touches %d blocks", pages, page)
	slices.Reverse(held)
	if ids := listedIDs(got); !slices.Equal(ids, held) || pages < 2 {
		t.Errorf("%d pages have the jobs %v, want %v at the end", pages, ids, held)
	}
	if page > 100_000 {
		t.Errorf("a page touches %d blocks, which is too many", page)
	}
}

// TestBothPartsOfABatchAreListed: the jobs of a batch in two segments are all listed, also where what one page reads of its worker ends between the
// two parts.
func TestBothPartsOfABatchAreListed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	held := enqueueN(t, conn, "q", 5)
	openNext(t, conn, worker)
	held = append(held, enqueueN(t, conn, "q", 5)...)
	mustClaim(t, conn, worker, "q", 10)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.batch WHERE no = (SELECT max(no) FROM weir.batch)`); n != 2 {
		t.Fatalf("the batch has %d parts, want 2", n)
	}
	endedBatches(t, conn, worker, 2499) // of one worker, a page reads 2500 parts
	slices.Reverse(held)
	for _, limit := range []int{3, 100} {
		got, pages := list{states: []string{"running"}}.all(t, conn, limit, nil)
		if ids := listedIDs(got); !slices.Equal(ids, held) {
			t.Errorf("%d pages of %d have the jobs %v, want %v", pages, limit, ids, held)
		}
	}
}

// TestListsRefuseWhatTheyDoNotUnderstand: an invalid argument of a list is refused with its value and what to do.
func TestListsRefuseWhatTheyDoNotUnderstand(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ args, says string }{
		{`ARRAY['available', 'done']`, "unknown state done"},
		{`ARRAY[NULL]`, "unknown state null"},
		{`array_fill('failed'::text, ARRAY[7])`, "up to 6 states, got 7"},
		{`kinds => ARRAY['k', NULL]`, "none of them null"},
		{`kinds => array_fill('k'::text, ARRAY[1001])`, "1 to 1000 kinds"},
		{`meta => '[1]'`, "must be a JSON object of at most 64 KiB, got [1]"},
		{`meta => 'null'`, "must be a JSON object"},
		{`key => ''`, "1 to 200 characters, got 0"},
		{`key => repeat('x', 201)`, "1 to 200 characters, got 201"},
		{`args_text => ''`, "1 to 1000 characters, got 0"},
		{`args_text => repeat('x', 1001)`, "1 to 1000 characters, got 1001"},
		{`'{failed}', shape => ''`, "1 to 1000 characters, got 0"},
		{`'{failed}', shape => repeat('x', 1001)`, "1 to 1000 characters, got 1001"},
		{`shape => 'x'`, "only failed jobs"},
		{`'{}', shape => 'x'`, "only failed jobs"},
		{`'{failed,cancelled}', shape => 'x'`, "only failed jobs"},
		{`max_rows => 0`, "1 to 1000 jobs, got 0"},
		{`max_rows => 1001`, "1 to 1000 jobs, got 1001"},
	} {
		_, err := conn.Exec(t.Context(), `SELECT * FROM weir.jobs_page(`+c.args+`)`)
		if wantCode(t, c.args, err, "22023"); err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.args, err, c.says)
		}
	}
}

// TestCursorsOfAnythingElseAreRefused: a cursor that is damaged, forged, or of another list or database is refused, always with the same error.
func TestCursorsOfAnythingElseAreRefused(t *testing.T) {
	t.Parallel()
	conn, other := connect(t, pgtest.Database(t)), connect(t, pgtest.Database(t))
	manyStates(t, conn, startWorker(t, conn, "q", "r"), 4)
	manyStates(t, other, startWorker(t, other, "q", "r"), 4)
	encode := func(content string) string { return base64.RawURLEncoding.EncodeToString([]byte(content)) }
	refused := func(q querier, what, after string, states ...string) {
		t.Helper()
		_, err := q.Exec(t.Context(), `SELECT * FROM weir.jobs_page($1, after => $2)`, states, after)
		if wantCode(t, what, err, "22023"); err != nil && !strings.Contains(err.Error(), "is not a valid cursor for this list") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, state := range allStates {
		l := list{states: []string{state}}
		jobs, next := l.page(t, conn, "", 1)
		_, of := l.page(t, other, "", 1)
		content, err := base64.RawURLEncoding.DecodeString(next)
		if err != nil {
			t.Fatal(err)
		}
		var parts []json.RawMessage
		if err := json.Unmarshal(content, &parts); err != nil || len(parts) != 3 {
			t.Fatalf("%s: %v", content, err)
		}
		refused(conn, "another database's", of, state)
		refused(conn, "another state's", next, "available", "failed")
		refused(conn, "truncated", next[:len(next)-4], state)
		refused(conn, "extended", next+"AAAA", state)
		refused(conn, "not base64", next+"!", state)
		for _, key := range []string{`null`, `{}`, `[]`, `"x"`, `["x", "y", "z", "u", "v"]`, `[null, 1]`, `{"1": ["x", "y", "z"]}`, `1e400`, string(parts[1])} {
			for _, nr := range []string{"1", "0", "-1", `"x"`, "99999999999"} {
				for _, seal := range []string{`""`, `null`, `"00000000"`} {
					refused(conn, "forged", encode(fmt.Sprintf(`[%s, %s, %s]`, nr, key, seal)), state)
				}
			}
			if key != string(parts[1]) {
				refused(conn, "forged, with the seal of another key", encode(fmt.Sprintf(`[%s, %s, %s]`, parts[0], key, parts[2])), state)
			}
		}
		if rest, _ := l.page(t, conn, next, 100); len(jobs) != 1 || len(rest) == 0 {
			t.Errorf("%s: after a page of %d, %d jobs follow", state, len(jobs), len(rest))
		}
	}
	for _, after := range []string{"x", "!", "bnVsbA", strings.Repeat("A", 100), encode("{}"), encode("[]"), encode(`"\u0000"`), encode("\xff"),
		encode(strings.Repeat("[", 40_000)), strings.Repeat("A", 1_000_000)} {
		refused(conn, "nonsense", after)
	}
	for _, args := range []string{`NULL, 'q'`, `NULL, NULL, ARRAY['k']`, `NULL, NULL, NULL, '{"n": 1}'`, `key => 'k'`} {
		_, next := list{}.page(t, conn, "", 1)
		_, err := conn.Exec(t.Context(), `SELECT * FROM weir.jobs_page(`+args+`, after => $1)`, next)
		wantCode(t, "another filter's", err, "22023")
	}
}

// TestAPageIsBoundedWhateverTheNumberOfQueues: the cost of a page of available jobs does not grow with the number of queues, even if its filter
// finds nothing; together the pages have every job once.
func TestAPageIsBoundedWhateverTheNumberOfQueues(t *testing.T) {
	pgtest.Alone(t, "what a page reads depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	var enqueued []int64
	grow := func(from, upto int) {
		t.Helper()
		enqueued = append(enqueued, value[[]int64](t, conn, `SELECT weir.enqueue_many(array_agg('q' || n), array_agg('k'::text), array_agg('{}'::jsonb), priority => array_agg(1 + n % 4))
			FROM generate_series($1::int, $2::int) n`, from, upto)...)
	}
	costliest := func(filter string) (blocks int64, pages int) {
		t.Helper()
		call := func(after string) string {
			return fmt.Sprintf(`SELECT next FROM weir.jobs_page(ARRAY['available'], %s, after => '%s')`, filter, after)
		}
		for range 6 {
			exec(t, conn, call("")) // makes the plans
		}
		for after := ""; pages < 1000; {
			pages++
			blocks = max(blocks, buffers(t, conn, call(after)))
			next := value[*string](t, conn, call(after))
			if next == nil {
				return blocks, pages
			}
			after = *next
		}
		t.Fatal("the list does not end")
		return 0, 0
	}
	grow(1, 400)
	few, _ := costliest(`kinds => ARRAY['rare']`)
	grow(401, 900)
	rare := value[int64](t, conn, `SELECT weir.enqueue('q901', 'rare', priority => 4)`)
	enqueued = append(enqueued, rare)
	many, pages := costliest(`kinds => ARRAY['other']`)
	t.Logf("a page that finds nothing reads up to %d blocks with 400 queues and %d with 900 (%d pages)", few, many, pages)
	if many > few*3/2+100 {
		t.Errorf("a page that finds nothing reads up to %d blocks with 400 queues and %d with 900", few, many)
	}
	l := list{states: []string{"available"}}
	jobs, _ := l.all(t, conn, 1000, nil)
	got := listedIDs(jobs)
	slices.Sort(got)
	if slices.Sort(enqueued); !slices.Equal(got, enqueued) {
		t.Errorf("the pages have %d jobs, want %d", len(got), len(enqueued))
	}
	for i := 1; i < len(jobs); i++ {
		if jobs[i].Priority < jobs[i-1].Priority {
			t.Errorf("job %d of priority %d follows one of priority %d", jobs[i].ID, jobs[i].Priority, jobs[i-1].Priority)
		}
	}
	l.kinds = []string{"rare"}
	if got, _ := l.all(t, conn, 100, nil); !slices.Equal(listedIDs(got), []int64{rare}) {
		t.Errorf("the list of a rare kind is %v, want %d", listedIDs(got), rare)
	}
}
