package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weir-pg/weir/internal/pgtest"
)

// waits waits until a driver waits for the advisory lock of this number.
func (s *stage) waits(lock int) {
	s.Helper()
	pgtest.Until(s, "the driver waits for the lock", func() bool {
		return value[bool](s, `SELECT EXISTS (SELECT FROM pg_locks l WHERE NOT l.granted AND l.locktype = 'advisory' AND l.objid = $1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, lock)
	})
}

// holds has the judge hold an advisory lock of this number until it is released, for which the trigger function wait() waits.
func (s *stage) holds(lock int) (release func()) {
	s.Helper()
	s.exec(fmt.Sprintf(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(%d); RETURN NULL; END $$`, lock))
	tx, err := s.pool.Begin(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the script fails before
	if _, err := tx.Exec(s.Context(), `SELECT pg_advisory_xact_lock($1)`, lock); err != nil {
		s.Fatal(err)
	}
	return func() {
		s.Helper()
		if err := tx.Rollback(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
}

var reporting = []script{
	{promise: "progress can be seen while a job runs", pooled: true, run: func(s *stage) {
		id := s.enqueue()
		d := s.worker(nil)
		e := d.job(id)
		d.do("progress", object{"run": e.Run, "percent": 12.5, "message": "reading " + everything})
		s.sees(id, "12.5 reading "+everything)
		d.do("progress", object{"run": e.Run, "percent": 80, "message": "writing"})
		s.sees(id, "80 writing")
		d.do("progress", object{"run": e.Run, "percent": 100, "message": "almost done"}) // just before the end
		d.finish(e, "return", nil)
		s.until(id, "completed")
		s.sees(id, "100 almost done")
	}},
	{promise: "the next attempt goes on from the checkpoint", pooled: true, run: func(s *stage) {
		id := s.enqueue()
		d := s.worker(nil)
		e := d.job(id)
		var got any
		if decode(s, d.do("checkpoint", object{"run": e.Run}).Checkpoint, &got); got != nil {
			s.Errorf("the checkpoint of the first attempt is %v", got)
		}
		for i := range 20 {
			d.do("set_checkpoint", object{"run": e.Run, "checkpoint": object{"row": i, "text": everything}})
		}
		d.finish(e, "raise", object{"error": "not yet"})
		e = d.job(id)
		decode(s, d.do("checkpoint", object{"run": e.Run}).Checkpoint, &got)
		same(s, "the checkpoint", got, object{"row": 19, "text": everything})
		d.finish(e, "snooze", object{"delay": 0.01})
		e = d.job(id)
		decode(s, d.do("checkpoint", object{"run": e.Run}).Checkpoint, &got)
		same(s, "the checkpoint after a snooze", got, object{"row": 19, "text": everything})
		d.do("set_checkpoint", object{"run": e.Run, "checkpoint": json.RawMessage("null")})
		d.finish(e, "raise", object{"error": "not yet"})
		e = d.job(id)
		if decode(s, d.do("checkpoint", object{"run": e.Run}).Checkpoint, &got); got != nil {
			s.Errorf("the checkpoint is %v after it was set to null", got)
		}
		for _, c := range []any{7, "text", []any{1, "2"}, false} {
			d.do("set_checkpoint", object{"run": e.Run, "checkpoint": c})
			d.finish(e, "raise", object{"error": "not yet"})
			e = d.job(id)
			decode(s, d.do("checkpoint", object{"run": e.Run}).Checkpoint, &got)
			same(s, "the checkpoint", got, c)
		}
	}},
	{promise: "a checkpoint and its transaction commit together", needs: []string{"complete", "transactions", "lease"}, pooled: true, run: func(s *stage) {
		id := s.enqueue()
		first := s.worker(object{"lease": lease})
		e := first.job(id)
		for i, end := range []string{"rollback", "commit", "rollback"} {
			tx := first.do("begin", nil).Tx
			first.do("set_checkpoint", object{"run": e.Run, "checkpoint": object{"row": i + 1}, "tx": tx})
			first.do("sql", object{"tx": tx, "sql": effect(id)})
			first.do(end, object{"tx": tx})
		}
		first.kill()
		second := s.worker(object{"lease": lease})
		e = second.job(id)
		var got any
		decode(s, second.do("checkpoint", object{"run": e.Run}).Checkpoint, &got)
		same(s, "the checkpoint", got, object{"row": 2})
		if s.effects(id) != 1 {
			s.Errorf("the effect is there %d times, want once", s.effects(id))
		}
	}},
	{promise: "what can't be reported does not harm the job", run: func(s *stage) {
		id := s.enqueue("max_attempts => 1")
		d := s.worker(nil)
		e := d.job(id)
		for _, fields := range []object{{"percent": 250, "message": "too much"}, {"percent": 50, "message": "NUL \x00"}, {"percent": 50, "message": strings.Repeat("long ", 10_000)}} {
			fields["run"] = e.Run
			if _, err := d.try("progress", fields); err != nil { // it may refuse, or mend it
				s.Fatal(err)
			}
		}
		for _, c := range []any{strings.Repeat("x", 1<<20), "NUL \x00"} {
			if _, err := d.try("set_checkpoint", object{"run": e.Run, "checkpoint": c}); err != nil {
				s.Fatal(err)
			}
		}
		d.do("progress", object{"run": e.Run, "percent": 99, "message": "good"})
		s.sees(id, "99 good")
		d.finish(e, "return", object{"output": "ok"})
		s.until(id, "completed")
	}},
	{promise: "lines of the log are kept", needs: []string{"log"}, run: func(s *stage) {
		id := s.enqueue()
		d := s.worker(nil)
		e := d.job(id)
		for i := range 3 {
			d.do("log", object{"run": e.Run, "text": fmt.Sprintf("line %d %s", i, everything)})
		}
		d.finish(e, "return", nil)
		s.until(id, "completed")
		if n := value[int](s, `SELECT count(*) FROM weir.job_info($1) j, jsonb_array_elements(to_jsonb(j.log)) l WHERE l->>'text' LIKE 'line _ %漢字%'`, id); n != 3 {
			s.Errorf("%d lines of the log are kept, want 3", n)
		}
	}},
}

// sees waits until a job shows how far it is.
func (s *stage) sees(id int64, want string) {
	s.Helper()
	pgtest.Eventually(s, func() error {
		i := s.info(id)
		if got := fmt.Sprintf("%v %s", i.Percent, i.Message); got != want {
			return fmt.Errorf("the progress of job %d is %q, want %q", id, got, want)
		}
		return nil
	})
}
