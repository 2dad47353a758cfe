package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/pgtest"
)

func decode(s *stage, text []byte, into any) {
	s.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		s.Errorf("%q is not JSON: %v", text, err)
	}
}

var ending = []script{
	{promise: "outputs are kept", pooled: true, run: func(s *stage) {
		d := s.worker(nil)
		for _, out := range []string{"sent", "", " ", "{\"a\": 1}", "null", everything, "1e400000"} { // no double, nor a numeric of PostgreSQL, is as large as the last
			id := s.enqueue()
			d.finish(d.job(id), "return", object{"output": out})
			if got := s.output(id); got != out {
				s.Errorf("the output %q is kept as %q", out, got)
			}
		}
		for _, out := range []any{object{"a": []any{1, 2.5, nil, true, everything}}, []any{}, 0.1, true} {
			id := s.enqueue()
			d.finish(d.job(id), "return", object{"output": out})
			var got any
			decode(s, []byte(s.output(id)), &got)
			same(s, "an output", got, out)
		}
	}},
	{promise: "texts that PostgreSQL can't store cost no other job", run: func(s *stage) {
		// U+0000, and surrogates without the other half, which JSON can express and Unicode can't. They must become something else.
		bad := json.RawMessage(`"before\u0000 \ud800 \udc00 after"`)
		d := s.worker(object{"queues": object{"q": 10}})
		var events []event
		for range 9 {
			events = append(events, d.job(s.enqueue("max_attempts => 1")))
		}
		for i, e := range events { // together, so that they may be recorded in one call
			switch i % 3 {
			case 0:
				d.finish(e, "return", object{"output": "good"})
			case 1:
				d.finish(e, "return", object{"output": bad})
			case 2:
				d.finish(e, "raise", object{"error": bad})
			}
		}
		for i, e := range events {
			text := ""
			switch i % 3 {
			case 0:
				if out := s.output(e.Job.ID); out != "good" {
					s.Errorf("the output of another job is %q", out)
				}
				continue
			case 1:
				text = s.output(e.Job.ID)
			case 2:
				text = s.until(e.Job.ID, "failed").Error
			}
			if !strings.Contains(text, "before") || !strings.Contains(text, "after") {
				s.Errorf("of a text with characters that can't be stored, %q is left", text)
			}
		}
	}},
	{promise: "texts that are too long are cut, and cost no other job", run: func(s *stage) {
		const jobs = 12
		long := strings.Repeat("für ", 500_000) // 2.5 MB
		d := s.worker(object{"queues": object{"q": jobs}})
		var events []event
		for range jobs {
			events = append(events, d.job(s.enqueue("max_attempts => 1")))
		}
		for i, e := range events {
			switch i % 3 {
			case 0:
				d.finish(e, "return", object{"output": "good"})
			case 1:
				d.finish(e, "return", object{"output": long})
			case 2:
				d.finish(e, "raise", object{"error": long})
			}
		}
		for i, e := range events {
			switch i % 3 {
			case 0:
				if out := s.output(e.Job.ID); out != "good" {
					s.Errorf("the output of another job is %q", out)
				}
			case 1:
				out := s.output(e.Job.ID)
				if !utf8.ValidString(out) || len(out) > 1<<20 || len(out) < 1<<19 || !strings.HasPrefix(out, "für für") {
					s.Errorf("an output of %d bytes is kept as one of %d: %.20q …", len(long), len(out), out)
				}
			case 2:
				if err := s.until(e.Job.ID, "failed").Error; len(err) > 64<<10 || len(err) < 10_000 || !strings.Contains(err, "für für") {
					s.Errorf("an error of %d bytes is kept as one of %d: %.20q …", len(long), len(err), err)
				}
			}
		}
	}},
	{promise: "many large outputs are recorded, also if they end together", run: func(s *stage) {
		const jobs = 80 // more than a call of weir.record takes
		large := strings.Repeat("x", 1_000_000)
		d := s.worker(object{"queues": object{"q": jobs}})
		s.exec(`SELECT weir.enqueue('q', 'alpha', '{}', max_attempts => 1) FROM generate_series(1, $1)`, jobs)
		var events []event
		for range jobs {
			events = append(events, d.anyJob())
		}
		for _, e := range events {
			d.finish(e, "return", object{"output": large})
		}
		s.allEnd(jobs)
		if n := value[int](s, `SELECT count(*) FROM weir.jobs('completed', max_rows => 1000) WHERE length(output) = 1000000`); n != jobs {
			s.Errorf("%d jobs have their output, want %d", n, jobs)
		}
	}},
	{promise: "a job that fails is tried again until its attempts are used up", pooled: true, run: func(s *stage) {
		id := s.enqueue("max_attempts => 3")
		d := s.worker(nil)
		for attempt := 1; attempt <= 3; attempt++ {
			e := d.job(id)
			if e.Job.Attempt != attempt || e.Job.MaxAttempts != 3 {
				s.Errorf("attempt %d of %d runs, want %d of 3", e.Job.Attempt, e.Job.MaxAttempts, attempt)
			}
			d.finish(e, "raise", object{"error": fmt.Sprintf("mailbox %d is full", attempt)})
		}
		i := s.until(id, "failed")
		if i.Attempt != 3 || i.Errors != 3 || !strings.Contains(i.Error, "mailbox 3 is full") {
			s.Errorf("the job is %+v, want three errors", i)
		}
		d.stopped()
		d.none("job")
	}},
	{promise: "a job that fails for good is not tried again", run: func(s *stage) {
		id := s.enqueue()
		d := s.worker(nil)
		d.finish(d.job(id), "fail", object{"error": "no such account"})
		if i := s.until(id, "failed"); i.Attempt != 1 || !strings.Contains(i.Error, "no such account") {
			s.Errorf("the job is %+v", i)
		}
	}},
	{promise: "the queue's backoff says when a job is tried again, unless the handler does", needs: []string{"retry_after"}, run: func(s *stage) {
		d := s.worker(nil)
		id := s.enqueue()
		d.finish(d.job(id), "retry_after", object{"error": "busy", "delay": 3600})
		s.until(id, "scheduled")
		if in := value[float64](s, `SELECT extract(epoch FROM run_at - now())::double precision FROM weir.job_info($1)`, id); in < 3000 || in > 3601 {
			s.Errorf("the next attempt is in %v s, want an hour", in)
		}
		id = s.enqueue()
		d.finish(d.job(id), "retry_after", object{"error": "busy", "delay": 0.01})
		if e := d.job(id); e.Job.Attempt != 2 {
			s.Errorf("the next attempt is %d", e.Job.Attempt)
		}
	}},
	{promise: "the queue's backoff says when a job is tried again", run: func(s *stage) {
		s.exec(`SELECT weir.set('q', 'backoff_limit', '1 hour'), weir.set('q', 'backoff', '1 hour')`)
		d := s.worker(nil)
		id := s.enqueue()
		d.finish(d.job(id), "raise", object{"error": "busy"})
		s.until(id, "scheduled")
		if in := value[float64](s, `SELECT extract(epoch FROM run_at - now())::double precision FROM weir.job_info($1)`, id); in < 2000 {
			s.Errorf("the next attempt is in %v s, want about an hour", in)
		}
	}},
	{promise: "retry rules decide by the error", pooled: true, run: func(s *stage) {
		s.exec(`SELECT weir.set_retry_rule('gone', 'fail', error => 'HTTP 410'), weir.set_retry_rule('busy', 'snooze', error => 'HTTP 429', backoff => '1 hour'), weir.set_retry_rule('obsolete', 'cancel', error => 'HTTP 404')`)
		d := s.worker(nil)
		for text, state := range map[string]string{"HTTP 410": "failed", "HTTP 429": "scheduled", "HTTP 404": "cancelled"} {
			id := s.enqueue()
			d.finish(d.job(id), "raise", object{"error": "the server says " + text})
			if i := s.until(id, state); i.Attempt != 1 {
				s.Errorf("after %s the job is %+v", text, i)
			}
		}
	}},
	{promise: "a snooze uses up no attempt", pooled: true, run: func(s *stage) {
		id, long := s.enqueue("max_attempts => 1"), s.enqueue()
		d := s.worker(nil)
		d.finish(d.job(long), "snooze", object{"delay": 3600})
		for range 3 {
			e := d.job(id)
			if e.Job.Attempt != 1 {
				s.Errorf("after a snooze, attempt %d runs, want 1", e.Job.Attempt)
			}
			d.finish(e, "snooze", object{"delay": 0.05})
		}
		d.finish(d.job(id), "return", nil)
		if i := s.until(id, "completed"); i.Attempt != 1 {
			s.Errorf("the job is %+v", i)
		}
		s.until(long, "scheduled")
		if in := value[float64](s, `SELECT extract(epoch FROM run_at - now())::double precision FROM weir.job_info($1)`, long); in < 3000 || in > 3601 {
			s.Errorf("the job is snoozed for %v s, want an hour", in)
		}
	}},
	{promise: "effects and completion commit together", needs: []string{"complete"}, pooled: true, run: func(s *stage) {
		id := s.enqueue()
		d := s.worker(nil)
		d.finish(d.job(id), "complete", object{"sql": effect(id), "then": "commit", "output": "done"})
		if out := s.output(id); out != "done" {
			s.Errorf("the output is %q", out)
		}
		if i := s.info(id); i.Attempt != 1 || i.Errors != 0 || s.effects(id) != 1 {
			s.Errorf("the job is %+v, and its effect is there %d times", i, s.effects(id))
		}
		d.stopped()
		d.none("job")
	}},
	{promise: "effects and completion roll back together", needs: []string{"complete"}, pooled: true, run: func(s *stage) {
		d := s.worker(nil)
		for _, then := range []string{"raise", "rollback"} {
			id := s.enqueue()
			d.finish(d.job(id), "complete", object{"sql": effect(id), "then": then, "error": "mailbox is full", "output": "done"})
			e := d.job(id)
			if e.Job.Attempt != 2 {
				s.Errorf("%s: attempt %d follows, want 2", then, e.Job.Attempt)
			}
			if i := s.info(id); s.effects(id) != 0 || then == "raise" && !strings.Contains(i.Error, "mailbox is full") {
				s.Errorf("%s: after the rollback the job is %+v, and its effect is there %d times", then, i, s.effects(id))
			}
			d.finish(e, "complete", object{"sql": effect(id), "then": "commit"})
			if s.until(id, "completed"); s.effects(id) != 1 {
				s.Errorf("%s: the effect is there %d times, want once", then, s.effects(id))
			}
		}
	}},
	{promise: "an effect that can't be had fails the attempt, and only it", needs: []string{"complete"}, run: func(s *stage) {
		id, other := s.enqueue("max_attempts => 1"), s.enqueue()
		d := s.worker(nil)
		e := d.job(other)
		d.finish(d.job(id), "complete", object{"sql": "INSERT INTO effect VALUES (1 / 0)", "then": "commit"})
		if i := s.until(id, "failed"); !strings.Contains(i.Error, "division by zero") {
			s.Errorf("the job is %+v", i)
		}
		d.finish(e, "return", nil)
		s.until(other, "completed")
	}},
	{promise: "a commit whose answer is lost counts once", needs: []string{"complete"}, run: func(s *stage) {
		// The commit waits for a lock that the judge has.
		release := s.holds(4711)
		s.exec(`CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
		id := s.enqueue()
		d := s.worker(nil)
		d.finish(d.job(id), "complete", object{"sql": effect(id), "then": "commit"})
		s.waits(4711)
		s.line.Hold() // otherwise a driver that sees its connection end may still cancel the commit
		s.line.Cut()
		release()
		pgtest.Until(s, "the commit", func() bool { return s.effects(id) > 0 })
		s.line.LetGo()
		if i := s.until(id, "completed"); i.Attempt != 1 || s.effects(id) != 1 {
			s.Errorf("the job is %+v, and its effect is there %d times", i, s.effects(id))
		}
		other := s.enqueue()
		d.finish(d.job(other), "return", nil)
		s.until(other, "completed")
		d.none("job")
	}},
	{promise: "a worker that is killed before its commit leaves the job to another", needs: []string{"complete", "lease"}, run: func(s *stage) {
		// The statement before the commit waits for a lock that the judge has.
		release := s.holds(4711)
		s.exec(`CREATE TRIGGER wait AFTER INSERT ON effect FOR EACH ROW EXECUTE FUNCTION wait()`)
		id := s.enqueue()
		first, second := s.worker(object{"lease": lease}), s.start()
		first.finish(first.job(id), "complete", object{"sql": effect(id), "then": "commit"})
		s.waits(4711)
		first.kill()
		release()
		second.work(object{"lease": lease})
		e := second.job(id)
		if e.Job.Attempt != 2 {
			s.Errorf("attempt %d follows, want 2", e.Job.Attempt)
		}
		second.finish(e, "complete", object{"sql": effect(id), "then": "commit"})
		if s.until(id, "completed"); s.effects(id) != 1 {
			s.Errorf("the effect is there %d times, want once", s.effects(id))
		}
	}},
}
