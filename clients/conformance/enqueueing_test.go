package conformance

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/weir-pg/weir/internal/pgtest"
)

// everything has all kinds of characters, except NUL, which PostgreSQL can't store.
const everything = "\x01\t\n\r \"'`\\/$1 %s {}[]<>& é ß Ǆ 漢字 العربية 🚀👩‍👩‍👧 \u2028\u2029\ufeff\uffff\U0010ffff $$ -- ; \\u0000 \\x00"

var enqueueing = []script{
	{promise: "a job arrives as it was enqueued", pooled: true, run: func(s *stage) {
		args := object{"text": everything, everything: true, "numbers": []any{0, -1, 0.1, 1e-7, 9007199254740991, -9007199254740991, 1.5e300}, "empty": []any{object{}, []any{}, "", nil}, "deep": deep(50)}
		meta := object{"trace": everything, "n": []any{1, 2.5}}
		d := s.start()
		flow := value[int64](s, `SELECT weir.flow('f')`)
		id := d.do("enqueue", object{
			"queue": "q " + everything[20:] + "q", "kind": "Größe 漢字 🚀", "args": args, "meta": meta, "priority": 3, "run_at": "2001-02-03T04:05:06Z", "max_attempts": 7, "key": "Schlüssel 🔑", "flow": flow,
		}).ID
		d.work(object{"queues": object{"q " + everything[20:] + "q": 1}, "kinds": []string{"alpha", "Größe 漢字 🚀"}})
		e := d.job(id)
		j := e.Job
		same(s, "args", j.Args, args)
		same(s, "meta", j.Meta, meta)
		if j.Queue != "q "+everything[20:]+"q" || j.Kind != "Größe 漢字 🚀" || j.Priority != 3 || j.Attempt != 1 || j.MaxAttempts != 7 {
			s.Errorf("the job is %+v", j)
		}
		if j.Key == nil || *j.Key != "Schlüssel 🔑" || j.Flow == nil || *j.Flow != flow {
			s.Errorf("the job has the key %v and the flow %v", j.Key, j.Flow)
		}
		if off := value[float64](s, `SELECT extract(epoch FROM enqueued_at - $2)::double precision FROM weir.job_info($1)`, id, j.EnqueuedAt); off > 0.001 || off < -0.001 {
			s.Errorf("enqueued_at is %s, which is %v s off", j.EnqueuedAt, off)
		}
		d.finish(e, "return", object{"output": everything})
		if out := s.output(id); out != everything {
			s.Errorf("the output is %q", out)
		}
	}},
	{promise: "a job enqueued with nothing has the defaults", run: func(s *stage) {
		d := s.worker(nil)
		id := d.do("enqueue", object{"queue": "q", "kind": "alpha"}).ID
		e := d.job(id)
		same(s, "args", e.Job.Args, object{})
		if j := e.Job; j.Priority != 2 || j.MaxAttempts != 25 || j.Attempt != 1 || j.Key != nil || j.Flow != nil || j.Meta != nil {
			s.Errorf("the job is %+v", j)
		}
		d.finish(e, "return", nil)
		if i := s.until(id, "completed"); i.Output != nil {
			s.Errorf("the output of a handler that returns nothing is %q", *i.Output)
		}
	}},
	{promise: "a time is a point in time, in any zone", run: func(s *stage) {
		d := s.start()
		for at, want := range map[string]string{
			"2030-01-01T10:00:00+05:45":     "2030-01-01T04:15:00.000",
			"2030-07-01T10:00:00.125-09:30": "2030-07-01T19:30:00.125",
			"2030-03-10T07:30:00Z":          "2030-03-10T07:30:00.000", // in the hour that St. John's skips
		} {
			if id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "run_at": at}).ID; s.info(id).RunAt != want {
				s.Errorf("run_at %s is stored as %s, want %s", at, s.info(id).RunAt, want)
			}
		}
		d.work(nil)
		e := d.job(d.do("enqueue", object{"queue": "q", "kind": "alpha", "run_at": "1960-01-01T00:00:00+02:00"}).ID) // at once
		d.finish(e, "return", nil)
		s.until(e.Job.ID, "completed")
	}},
	{promise: "the settings of the role and the database change nothing", run: func(s *stage) {
		for _, setting := range []string{
			`timezone = 'Pacific/Chatham'`, `datestyle = 'SQL, DMY'`, `intervalstyle = 'sql_standard'`, `bytea_output = 'escape'`, `search_path = 'nowhere'`, `standard_conforming_strings = off`,
			`backslash_quote = off`, `extra_float_digits = 0`, `default_transaction_isolation = 'serializable'`, `xmlbinary = 'hex'`, `client_min_messages = 'error'`, `lc_monetary = 'C'`,
		} {
			s.exec(`ALTER ROLE ` + s.role + ` SET ` + setting)
		}
		d := s.worker(nil)
		args := object{"text": everything}
		id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "args": args, "run_at": "2001-02-03T04:05:06+07:00"}).ID
		later := d.do("enqueue", object{"queue": "q", "kind": "alpha", "run_at": "2030-02-01T00:00:00Z"}).ID
		if at := s.info(later).RunAt; at != "2030-02-01T00:00:00.000" {
			s.Errorf("run_at is stored as %s", at)
		}
		e := d.job(id)
		same(s, "args", e.Job.Args, args)
		if off := value[float64](s, `SELECT extract(epoch FROM enqueued_at - $2)::double precision FROM weir.job_info($1)`, id, e.Job.EnqueuedAt); off > 0.001 || off < -0.001 {
			s.Errorf("enqueued_at is %s, which is %v s off", e.Job.EnqueuedAt, off)
		}
		d.finish(e, "raise", object{"error": everything})
		e = d.job(id)
		d.finish(e, "return", object{"output": everything})
		if out := s.output(id); out != everything {
			s.Errorf("the output is %q", out)
		}
	}},
	{promise: "what is out of bounds is refused, and the client goes on", pooled: true, run: func(s *stage) {
		d := s.start()
		before := s.jobs()
		for _, c := range []struct {
			of     string
			fields object
		}{
			{"queue", object{"queue": " q"}},
			{"queue", object{"queue": strings.Repeat("q", 129)}},
			{"queue", object{"queue": "q\x00"}},
			{"kind", object{"kind": ""}},
			{"kind", object{"kind": strings.Repeat("k", 129)}},
			{"priority", object{"priority": 5}},
			{"priority", object{"priority": -1}},
			{"max_attempts", object{"max_attempts": 1001}},
			{"args", object{"args": []int{1}}},
			{"args", object{"args": object{"a": "\x00"}}},
			{"args", object{"args": object{"a": strings.Repeat("x", 1<<20)}}},
			{"meta", object{"meta": object{"weir.a": 1}}},
			{"meta", object{"meta": object{"a": strings.Repeat("x", 64<<10)}}},
			{"key", object{"key": strings.Repeat("k", 201)}},
			{"flow", object{"flow": 4711}},
			{"unique", object{"unique": object{"key": strings.Repeat("k", 1001)}}},
			{"unique", object{"unique": object{"until": "noon"}}},
			{"unique", object{"unique": object{"within": 3 * 366 * 86400}}},
		} {
			fields := object{"queue": "q", "kind": "alpha"}
			for name, value := range c.fields {
				fields[name] = value
			}
			d.refuse("enqueue", fields, "invalid", "not_found")
		}
		if n := s.jobs(); n != before {
			s.Errorf("%d jobs were enqueued although they were refused", n-before)
		}
		d.do("enqueue", object{"queue": "q", "kind": "alpha", "args": object{"a": strings.Repeat("x", 1<<20-100)}})
	}},
	{promise: "many jobs are enqueued in their order, or none", pooled: true, run: func(s *stage) {
		d := s.start()
		var jobs []object
		for i := range 1000 {
			jobs = append(jobs, object{"queue": "q", "kind": "alpha", "args": object{"i": i}, "priority": 1 + i%4})
		}
		all := d.do("enqueue_many", object{"jobs": jobs}).Jobs
		if len(all) != len(jobs) {
			s.Fatalf("%d results for %d jobs", len(all), len(jobs))
		}
		for _, i := range []int{0, 1, 499, 999} {
			if n := value[int](s, `SELECT (args->>'i')::int FROM weir.job_info($1)`, all[i].ID); n != i {
				s.Errorf("result %d is that of job %d", i, n)
			}
		}
		before := s.jobs()
		d.refuse("enqueue_many", object{"jobs": append(jobs[:500:500], object{"queue": "q", "kind": ""})}, "invalid")
		if n := s.jobs(); n != before {
			s.Errorf("%d jobs were enqueued although one was refused", n-before)
		}
		mixed := d.do("enqueue_many", object{"jobs": []object{
			{"queue": "q", "kind": "alpha", "run_at": "2030-01-01T00:00:00Z", "meta": object{"m": 1}}, {"queue": "r", "kind": "beta", "key": "k", "max_attempts": 3},
			{"queue": "r", "kind": "beta", "unique": object{"key": "u"}}, {"queue": "r", "kind": "beta", "unique": object{"key": "u"}},
		}}).Jobs
		if len(mixed) != 4 || mixed[1].Duplicate || mixed[2].Duplicate || !mixed[3].Duplicate || mixed[2].ID != mixed[3].ID {
			s.Errorf("the results of unique jobs are %+v", mixed)
		}
		if i := s.info(mixed[0].ID); i.State != "scheduled" {
			s.Errorf("a job with run_at is %+v", i)
		}
		if i := s.info(mixed[1].ID); i.MaxAttempts != 3 {
			s.Errorf("a job with max_attempts 3 is %+v", i)
		}
	}},
	{promise: "no jobs are no error", run: func(s *stage) {
		if all := s.start().do("enqueue_many", object{"jobs": []object{}}).Jobs; len(all) > 0 {
			s.Errorf("the results of no job are %v", all)
		}
	}},
	{promise: "a duplicate is answered with the job that is there", run: func(s *stage) {
		d := s.start()
		add := func(fields object) answer {
			all := object{"queue": "q", "kind": "alpha", "args": object{"a": 1, "page": 1}}
			for name, value := range fields {
				all[name] = value
			}
			return d.do("enqueue", all)
		}
		for _, c := range []struct {
			name        string
			unique      object
			other, same object // fields of a job that is no duplicate, and of one that is
		}{
			{"by kind and args", object{}, object{"args": object{"a": 2}}, nil},
			{"by a key", object{"key": "k"}, object{"unique": object{"key": "l"}}, object{"kind": "beta", "args": object{"b": 1}}},
			{"by fields", object{"fields": []string{"a"}}, object{"args": object{"a": 3}}, object{"args": object{"a": 1, "page": 2}}},
			{"by no fields", object{"fields": []string{}}, object{"kind": "beta"}, object{"args": object{"z": 2}}},
			{"within an hour", object{"key": "w", "within": 3600}, object{"unique": object{"key": "v", "within": 3600}}, nil},
			{"while it waits", object{"key": "s", "until": "started"}, object{"unique": object{"key": "t", "until": "started"}}, nil},
		} {
			first := add(object{"unique": c.unique})
			if c.same == nil {
				c.same = object{}
			}
			if c.same["unique"] = c.unique; first.Duplicate {
				s.Errorf("%s: the first job is a duplicate", c.name)
			}
			if c.other["unique"] == nil {
				c.other["unique"] = c.unique
			}
			if a := add(c.other); a.Duplicate || a.ID == first.ID {
				s.Errorf("%s: another job is a duplicate: %+v", c.name, a)
			}
			if a := add(c.same); !a.Duplicate || a.ID != first.ID {
				s.Errorf("%s: the second job is %+v, want a duplicate of %d", c.name, a, first.ID)
			}
		}
		first := add(object{"unique": object{"key": "r", "replace": true}, "run_at": "2030-01-01T00:00:00Z"})
		if a := add(object{"unique": object{"key": "r", "replace": true}, "run_at": "2030-01-01T00:00:00Z"}); !a.Duplicate || a.ID == first.ID {
			s.Errorf("the job that replaces another is %+v, want a new id, and a duplicate", a)
		}
	}},
	{promise: "a unique job that waits for others learns what they have done", run: func(s *stage) {
		d := s.start()
		tx, err := s.pool.Begin(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		defer tx.Rollback(s.Context())
		var id int64
		if err := tx.QueryRow(s.Context(), `SELECT id FROM weir.enqueue_unique('q', 'alpha', '{}', unique_key => 'k', wait => true)`).Scan(&id); err != nil {
			s.Fatal(err)
		}
		got := make(chan answer, 1)
		go func() { // ends with the driver, at the latest
			a, _ := d.try("enqueue", object{"queue": "q", "kind": "alpha", "unique": object{"key": "k", "wait": true}})
			got <- a
		}()
		pgtest.Until(s, "the driver waits for a lock", func() bool {
			return value[bool](s, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database())`)
		})
		if err := tx.Commit(s.Context()); err != nil {
			s.Fatal(err)
		}
		if a := pgtest.Receive(s, got, "the answer"); a.ID != id || !a.Duplicate {
			s.Errorf("the answer is %+v, want a duplicate of job %d", a, id)
		}
	}},
	{promise: "a member counts in its flow", needs: []string{"flows"}, run: func(s *stage) {
		flow := value[int64](s, `SELECT weir.flow('f')`)
		d := s.worker(nil)
		id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "flow": flow}).ID
		e := d.job(id)
		if e.Job.Flow == nil || *e.Job.Flow != flow {
			s.Errorf("the flow of the job is %v, want %d", e.Job.Flow, flow)
		}
		d.do("enqueue", object{"queue": "q", "kind": "alpha", "flow": flow, "run_at": "2030-01-01T00:00:00Z"})
		d.finish(e, "return", nil)
		s.until(id, "completed")
		pgtest.Eventually(s, func() error {
			if got := value[string](s, `SELECT format('%s of %s', unfinished, jobs) FROM weir.flow_info($1)`, flow); got != "1 of 2" {
				return fmt.Errorf("%s jobs of the flow are unfinished, want 1 of 2", got)
			}
			return nil
		})
		s.exec(`SELECT weir.cancel_flow($1)`, flow)
		d.refuse("enqueue", object{"queue": "q", "kind": "alpha", "flow": flow}, "invalid", "other")
	}},
}

// jobs counts the jobs that were ever enqueued.
func (s *stage) jobs() int {
	s.Helper()
	return value[int](s, `SELECT (SELECT count(*) FROM weir.jobs('available', max_rows => 10000)) + (SELECT count(*) FROM weir.jobs('scheduled', max_rows => 10000)) + (SELECT count(*) FROM weir.jobs('completed', max_rows => 10000))`)
}

func deep(n int) any {
	if n == 0 {
		return "deep"
	}
	return []any{deep(n - 1)}
}

// same compares JSON, in which all numbers are floating-point numbers.
func same(s *stage, what string, got any, want any) {
	s.Helper()
	if want := plain(want); !reflect.DeepEqual(got, want) {
		s.Errorf("%s arrived as %s, want %s", what, brief(got), brief(want))
	}
}
