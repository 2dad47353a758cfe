package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

var working = []script{
	{promise: "each queue has its own number of jobs at once", pooled: true, run: func(s *stage) {
		for i := range 6 {
			s.exec(`SELECT weir.enqueue($1, 'alpha', jsonb_build_object('i', $2::int))`, []string{"a", "b"}[i%2], i)
		}
		d := s.worker(object{"queues": object{"a": 1, "b": 2}})
		running, most, ended := map[string][]event{}, map[string]int{"a": 1, "b": 2}, map[string]int{}
		for range 6 {
			e := d.anyJob()
			q := e.Job.Queue
			running[q] = append(running[q], e)
			if len(running[q]) > most[q] {
				s.Fatalf("%d jobs of queue %s run at once, want at most %d", len(running[q]), q, most[q])
			}
			for q, all := range running { // once all slots are used, or no more jobs will come
				if len(all) > 0 && (len(all) == most[q] || ended[q]+len(all) == 3) {
					d.finish(all[0], "return", nil)
					running[q], ended[q] = all[1:], ended[q]+1
				}
			}
		}
		for _, all := range running {
			for _, e := range all {
				d.finish(e, "return", nil)
			}
		}
		s.allEnd(6)
	}},
	{promise: "a slot that is free is filled while others are busy", run: func(s *stage) {
		d := s.worker(object{"queues": object{"q": 2}})
		long := d.job(s.enqueue())
		for range 20 {
			e := d.job(s.enqueue())
			d.finish(e, "return", nil)
			s.until(e.Job.ID, "completed")
		}
		d.finish(long, "return", nil)
		s.until(long.Job.ID, "completed")
	}},
	{promise: "a queue may be worked before it exists", run: func(s *stage) {
		d := s.worker(object{"queues": object{"new": 1}})
		id := value[int64](s, `SELECT weir.enqueue('new', 'alpha', '{}')`)
		d.finish(d.job(id), "return", nil)
		s.until(id, "completed")
	}},
	{promise: "jobs of higher priority go first", run: func(s *stage) {
		for _, p := range []string{"4", "2", "3", "1"} {
			s.enqueue("priority => " + p)
		}
		d := s.worker(object{"queues": object{"q": 1}})
		for p := 1; p <= 4; p++ {
			e := d.anyJob()
			if e.Job.Priority != p {
				s.Errorf("a job of priority %d runs, want one of %d", e.Job.Priority, p)
			}
			d.finish(e, "return", nil)
		}
	}},
	{promise: "the jobs of a key run in order, also if one fails", run: func(s *stage) {
		s.exec(`SELECT weir.set_limit('q', running => 1, per_key => true, in_order => true)`)
		a1, a2, b1 := s.enqueue("key => 'a'"), s.enqueue("key => 'a'"), s.enqueue("key => 'b'")
		d := s.worker(nil)
		first := d.job(a1)
		d.finish(d.job(b1), "return", nil)
		s.until(b1, "completed")
		d.none("job")
		d.finish(first, "raise", object{"error": "not yet"})
		e := d.anyJob()
		if e.Job.ID != a1 || e.Job.Attempt != 2 {
			s.Fatalf("after attempt 1 of job %d comes attempt %d of job %d", a1, e.Job.Attempt, e.Job.ID)
		}
		d.finish(e, "return", nil)
		d.finish(d.job(a2), "return", nil)
		s.until(a2, "completed")
	}},
	{promise: "jobs of other kinds are left to workers that have them", pooled: true, run: func(s *stage) {
		other, own := value[int64](s, `SELECT weir.enqueue('q', 'beta', '{}', max_attempts => 1)`), s.enqueue()
		first, second := s.worker(nil), s.start()
		first.finish(first.job(own), "return", nil)
		s.until(own, "completed")
		first.stopped()
		first.none("job")
		if i := s.info(other); i.Attempt != 1 || i.State == "failed" {
			s.Errorf("the job of another kind is %+v", i)
		}
		second.work(object{"kinds": []string{"beta"}})
		e := second.job(other)
		if e.Job.Attempt != 1 {
			s.Errorf("the first attempt of a job has the number %d", e.Job.Attempt)
		}
		second.finish(e, "return", nil)
		s.until(other, "completed")
	}},
	{promise: "thousands of jobs end, each once", pooled: true, run: func(s *stage) {
		const jobs = 3000
		s.exec(`SELECT weir.enqueue('q', 'alpha', jsonb_build_object('i', i)) FROM generate_series(1, $1) i`, jobs)
		d := s.start()
		finish := d.answerAll(func(event) object { return object{"how": "return", "output": "ok"} })
		d.work(object{"queues": object{"q": 200}})
		s.allEnd(jobs)
		if n := finish(); n != jobs {
			s.Errorf("%d handlers were called for %d jobs", n, jobs)
		}
		if n := value[int](s, `SELECT count(*) FROM weir.jobs('completed', max_rows => 10000) WHERE attempt = 1 AND output = 'ok'`); n != jobs {
			s.Errorf("%d jobs have completed as they should, want %d", n, jobs)
		}
	}},
	{promise: "large args arrive, many at once", run: func(s *stage) {
		const jobs = 40
		s.exec(`SELECT weir.enqueue('q', 'alpha', jsonb_build_object('text', repeat('ü', 500000), 'i', i)) FROM generate_series(1, $1) i`, jobs) // of 1 MB each
		d := s.start()
		want := strings.Repeat("ü", 500_000)
		d.work(object{"queues": object{"q": jobs}})
		for range jobs {
			e := d.anyJob()
			if args, ok := e.Job.Args.(map[string]any); !ok || args["text"] != want {
				s.Errorf("the args of job %d are not what was enqueued: %s", e.Job.ID, brief(e.Job.Args))
			}
			d.finish(e, "return", nil)
		}
		s.allEnd(jobs)
	}},
	{promise: "a worker that stops finishes what runs in time, and gives back the rest", pooled: true, run: func(s *stage) {
		short, long := s.enqueue("max_attempts => 1"), s.enqueue("max_attempts => 1")
		d := s.worker(object{"queues": object{"q": 2}, "stop_timeout": 2})
		first, second := d.job(short), d.job(long)
		waiting := s.enqueue()
		d.do("stop", nil)
		d.finish(first, "return", object{"output": "in time"})
		if reason := d.interrupted(second); reason != "stopping" {
			s.Errorf("the handler was interrupted because of %q, want stopping", reason)
		}
		d.hasStopped()
		if out := s.output(short); out != "in time" {
			s.Errorf("the output of the job that ended in time is %q", out)
		}
		for _, id := range []int64{long, waiting} {
			if i := s.until(id, "available"); i.Attempt != 1 {
				s.Errorf("after the worker has stopped, job %d is %+v", id, i)
			}
		}
		d.none("job")
		if n := value[int](s, `SELECT count(*) FROM weir.workers() WHERE state = 'alive' AND 'q' = ANY (queues)`); n > 0 && s.client.via == "sql" {
			s.Errorf("%d workers are alive", n)
		}
		d.work(nil) // a new one in the same process
		for _, id := range []int64{long, waiting} {
			e := d.job(id)
			if e.Job.Attempt != 1 {
				s.Errorf("job %d, which was given back, is at attempt %d", id, e.Job.Attempt)
			}
			d.finish(e, "return", nil)
			s.until(id, "completed")
		}
		d.stopped()
	}},
	{promise: "a worker that has nothing to do stops at once", run: func(s *stage) {
		d := s.worker(object{"stop_timeout": 300})
		id := s.enqueue()
		d.finish(d.job(id), "return", nil)
		s.until(id, "completed")
		d.stopped() // waits for a minute
	}},
	{promise: "a worker with nothing to do keeps its lease", needs: []string{"lease"}, pooled: true, run: func(s *stage) {
		d := s.worker(object{"lease": lease})
		e := d.job(s.enqueue("max_attempts => 1"))
		s.outlast(2 * lease * time.Second)
		d.finish(e, "return", nil) // neither did it lose the job meanwhile
		if i := s.until(e.Job.ID, "completed"); i.Attempt != 1 {
			s.Errorf("the job is %+v", i)
		}
		if n := value[int](s, `SELECT count(*) FROM weir.workers() WHERE 'q' = ANY (queues)`); n != 1 && s.client.via == "sql" {
			s.Errorf("there were %d workers, want one", n)
		}
	}},
	{promise: "jobs and outputs are the same for workers in Go", run: func(s *stage) {
		mine := s.start()
		other := s.goDriver()
		args := object{"text": everything, "numbers": []any{0, 0.1, 1e-7, 9007199254740991}, "list": []any{nil, true, object{}}}
		for _, c := range []struct{ from, at *driver }{{mine, other}, {other, mine}} {
			id := c.from.do("enqueue", object{"queue": "q", "kind": "alpha", "args": args, "meta": args, "run_at": "2001-01-01T00:00:00+01:00"}).ID
			c.at.work(nil)
			e := c.at.job(id)
			same(s, "args", e.Job.Args, args)
			same(s, "meta", e.Job.Meta, args)
			c.at.do("set_checkpoint", object{"run": e.Run, "checkpoint": args})
			c.at.finish(e, "raise", object{"error": everything})
			c.at.do("stop", nil)
			c.at.await("stopped", func(e event) bool { return e.Event == "stopped" })
			c.from.work(nil)
			e = c.from.job(id)
			got := c.from.do("checkpoint", object{"run": e.Run}).Checkpoint
			var checkpoint any
			decode(s, got, &checkpoint)
			same(s, "checkpoint", checkpoint, args)
			c.from.finish(e, "return", object{"output": args})
			out := s.output(id)
			var output any
			decode(s, []byte(out), &output)
			same(s, "output", output, args)
			if seen := c.at.do("job", object{"id": id}).Job; seen.Output == nil || *seen.Output != out || seen.State != "completed" {
				s.Errorf("the other client sees %+v, want the output %q", seen, out)
			}
			c.from.stopped()
		}
	}},
}

// goDriver starts the Go library's driver on the same database.
func (s *stage) goDriver() *driver {
	s.Helper()
	return s.startAs(goClient(s.T, "sql"), pgtest.NewLine(s, s.url))
}

// outlast lets time pass, in which leases end.
func (s *stage) outlast(d time.Duration) {
	s.Helper()
	begin := value[float64](s, `SELECT extract(epoch FROM clock_timestamp())::double precision`)
	pgtest.Eventually(s, func() error {
		if passed := value[float64](s, `SELECT extract(epoch FROM clock_timestamp())::double precision`) - begin; passed < d.Seconds() {
			return fmt.Errorf("%v s have passed", passed)
		}
		return nil
	})
}
