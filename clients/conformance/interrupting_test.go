package conformance

import (
	"os"
	"strings"
	"time"
)

var interrupting = []script{
	{promise: "a job that is cancelled while it waits never runs", pooled: true, run: func(s *stage) {
		d := s.start()
		id, later := s.enqueue(), s.enqueue("run_at => now() + interval '1 day'")
		for _, id := range []int64{id, later} {
			if state := d.do("cancel", object{"id": id}).State; state != "cancelled" {
				s.Errorf("the answer to cancel is %q", state)
			}
			if i := s.info(id); i.State != "cancelled" {
				s.Errorf("the job is %+v", i)
			}
		}
		other := s.enqueue()
		d.work(object{"queues": object{"q": 1}})
		e := d.anyJob()
		if e.Job.ID != other {
			s.Fatalf("job %d runs, which was cancelled", e.Job.ID)
		}
		d.finish(e, "return", nil)
		s.until(other, "completed")
		if state := d.do("cancel", object{"id": other}).State; state != "completed" {
			s.Errorf("the answer to cancel for a completed job is %q", state)
		}
		d.refuse("cancel", object{"id": 1 << 40}, "not_found")
	}},
	{promise: "a job that is cancelled while it runs is interrupted, once", pooled: true, run: func(s *stage) {
		d := s.worker(nil)
		id, other := s.enqueue(), s.enqueue()
		e, beside := d.job(id), d.job(other)
		if state := d.do("cancel", object{"id": id}).State; state != "running" {
			s.Errorf("the answer to cancel is %q, want running", state)
		}
		if reason := d.interrupted(e); reason != "cancelled" {
			s.Errorf("the handler was interrupted because of %q, want cancelled", reason)
		}
		if i := s.until(id, "cancelled"); i.Attempt != 1 {
			s.Errorf("the job is %+v", i)
		}
		d.finish(beside, "return", nil)
		s.until(other, "completed")
		d.none("interrupted")
		d.none("job")
	}},
	{promise: "an attempt that takes too long is interrupted, and tried again", pooled: true, run: func(s *stage) {
		id := s.enqueue("max_attempts => 2")
		d := s.worker(object{"timeout": 0.3})
		for range 2 {
			if reason := d.interrupted(d.job(id)); reason != "timeout" {
				s.Errorf("the handler was interrupted because of %q, want timeout", reason)
			}
		}
		if i := s.until(id, "failed"); i.Attempt != 2 || !strings.Contains(strings.ToLower(i.Error), "time") {
			s.Errorf("the job is %+v, want an error that names the timeout", i)
		}
	}},
	{promise: "the jobs of a worker that is killed run again", needs: []string{"lease"}, pooled: true, run: func(s *stage) {
		first, second := s.worker(object{"lease": lease}), s.start()
		ids := []int64{s.enqueue(), s.enqueue()}
		for _, id := range ids {
			first.job(id)
		}
		second.work(object{"lease": lease})
		first.kill()
		killed := time.Now()
		for _, id := range ids {
			e := second.job(id)
			if e.Job.Attempt != 2 {
				s.Errorf("attempt %d of job %d follows, want 2", e.Job.Attempt, id)
			}
			second.finish(e, "return", nil)
		}
		if took := time.Since(killed); took > (lease+5)*time.Second && os.Getenv("WEIR_TEST_ALONE") != "" { // a busy machine may take longer
			s.Errorf("the jobs run again %v after the kill, want at most 5 s after the lease of %d s", took, lease)
		}
		s.allEnd(len(ids))
	}},
	{promise: "a job is not lost because its worker had none for longer than its lease", needs: []string{"lease"}, run: func(s *stage) {
		d := s.worker(object{"lease": lease})
		time.Sleep((lease + 2) * time.Second) // nothing happens: that is the point
		id := s.enqueue()
		e := d.job(id)
		other := s.enqueue() // once it is there, the worker has asked for more, and holds the first
		beside := d.job(other)
		d.none("interrupted")
		d.finish(e, "return", nil)
		d.finish(beside, "return", nil)
		for _, id := range []int64{id, other} {
			if i := s.until(id, "completed"); i.Attempt != 1 {
				s.Errorf("the job is %+v", i)
			}
		}
	}},
	{promise: "a worker that stood still drops its jobs, and goes on", needs: []string{"lease"}, run: func(s *stage) {
		first := s.worker(object{"lease": lease})
		id := s.enqueue()
		e := first.job(id)
		first.signal(suspend)
		s.Cleanup(func() { first.signal(resume) })
		second := s.worker(object{"lease": lease})
		again := second.job(id)
		if again.Job.Attempt != 2 {
			s.Errorf("attempt %d follows, want 2", again.Job.Attempt)
		}
		first.signal(resume)
		if reason := first.interrupted(e); reason != "lost" {
			s.Errorf("the handler was interrupted because of %q, want lost", reason)
		}
		second.finish(again, "return", object{"output": "by the second"})
		if out := s.output(id); out != "by the second" {
			s.Errorf("the output is %q", out)
		}
		second.stopped()
		other := s.enqueue()
		first.finish(first.job(other), "return", nil)
		s.until(other, "completed")
		first.none("job")
		s.allEnd(2)
	}},
	{promise: "a worker that can't reach the database interrupts its jobs before others get them", needs: []string{"lease"}, pooled: true, run: func(s *stage) {
		first := s.worker(object{"lease": lease})
		id := s.enqueue()
		e := first.job(id)
		s.line.Hold()
		if reason := first.interrupted(e); reason != "lost" {
			s.Errorf("the handler was interrupted because of %q, want lost", reason)
		}
		if i := s.info(id); i.Attempt > 1 {
			s.Errorf("the job was given to others before the handler was interrupted: %+v", i)
		}
		second := s.apart()
		second.work(object{"lease": lease})
		again := second.job(id)
		second.finish(again, "return", nil)
		s.until(id, "completed")
		second.stopped()
		s.line.Cut() // what is held back still arrives
		s.line.LetGo()
		other := s.enqueue()
		first.finish(first.job(other), "return", nil)
		s.until(other, "completed")
		s.allEnd(2)
	}},
	{promise: "a worker whose line is silent for a while keeps its jobs", needs: []string{"lease"}, run: func(s *stage) {
		d := s.worker(object{"lease": 30})
		id := s.enqueue("max_attempts => 1")
		e := d.job(id)
		s.line.Hold()
		d.finish(e, "return", object{"output": "meanwhile"})
		s.outlast(time.Second)
		s.line.LetGo()
		if out := s.output(id); out != "meanwhile" {
			s.Errorf("the output is %q", out)
		}
		d.none("interrupted")
	}},
}
