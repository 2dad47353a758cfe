package conformance

import "strings"

var operating = []script{
	{promise: "a job can be looked up in each state", pooled: true, run: func(s *stage) {
		d := s.worker(nil)
		id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "args": object{"text": everything}, "meta": object{"m": 1}}).ID
		look := func(state string) job {
			s.Helper()
			s.until(id, state)
			j := d.do("job", object{"id": id}).Job
			if j.ID != id || j.State != state || j.Queue != "q" || j.Kind != "alpha" {
				s.Errorf("the job is %+v, want it %s", j, state)
			}
			same(s, "args", j.Args, object{"text": everything})
			return j
		}
		e := d.job(id)
		look("running")
		d.finish(e, "raise", object{"error": "not yet " + everything})
		e = d.job(id)
		if j := look("running"); j.Attempt != 2 || j.Error == nil || !strings.Contains(*j.Error, "not yet "+everything) {
			s.Errorf("the job is %+v, want the error of its first attempt", j)
		}
		d.finish(e, "snooze", object{"delay": 3600})
		look("scheduled")
		later := d.do("enqueue", object{"queue": "r", "kind": "beta"}).ID
		if j := d.do("job", object{"id": later}).Job; j.State != "available" || j.Attempt != 1 {
			s.Errorf("a job that waits is %+v", j)
		}
		d.do("cancel", object{"id": id})
		look("cancelled")
		id = d.do("enqueue", object{"queue": "q", "kind": "alpha", "args": object{"text": everything}}).ID
		d.finish(d.job(id), "return", object{"output": everything})
		if j := look("completed"); j.Output == nil || *j.Output != everything {
			s.Errorf("the job is %+v, want its output", j)
		}
		id = d.do("enqueue", object{"queue": "q", "kind": "alpha", "args": object{"text": everything}}).ID
		d.finish(d.job(id), "fail", object{"error": "no such account"})
		look("failed")
		d.refuse("job", object{"id": 1 << 40}, "not_found")
	}},
	{promise: "a failed job can be retried", needs: []string{"retry"}, run: func(s *stage) {
		d := s.worker(nil)
		id := s.enqueue("max_attempts => 1")
		d.finish(d.job(id), "raise", object{"error": "not yet"})
		s.until(id, "failed")
		if state := d.do("retry", object{"id": id}).State; state != "available" {
			s.Errorf("the answer to retry is %q, want available", state)
		}
		e := d.job(id)
		d.finish(e, "return", nil)
		s.until(id, "completed")
		d.refuse("retry", object{"id": 1 << 40}, "not_found")
	}},
}
