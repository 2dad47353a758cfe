package work_test

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWorkersAreWarnedOfWhatTheyCannotSee: of queues that never had a job, and of kinds of their queues that no worker takes; once of each thing, over both transports, and of nothing of other queues.
func TestWorkersAreWarnedOfWhatTheyCannotSee(t *testing.T) {
	t.Parallel()
	const (
		misspelt = `no job was ever enqueued to queue "mial": check its name, unless its first jobs are still to come`
		resize   = `no worker of queue "mail" at this hub has a handler for kind "resize": its jobs, such as 2, are left to others`
	)
	s := newSite(t, nil)
	s.enqueue("mail", "welcome", "{}")
	other, _ := s.dial(m{"queues": m{"files": 1}}) // which is never used either
	k, _ := s.dial(m{"queues": m{"mail": 8, "mial": 1}, "kinds": []string{"welcome"}})
	if f := k.next(); f.Type != "jobs" || len(f.Jobs) != 1 {
		t.Fatalf("%+v", f)
	}
	if got := pgtest.Receive(t, k.warnings, "the worker is warned of a name"); got != misspelt {
		t.Errorf("it is warned that %s, want: %s", got, misspelt)
	}
	if got := pgtest.Receive(t, other.warnings, "the other worker is warned of a name"); got != `no job was ever enqueued to queue "files": check its name, unless its first jobs are still to come` {
		t.Errorf("the other is warned that %s", got)
	}
	first := s.enqueue("mail", "resize", "{}")
	s.until(first, "scheduled") // it is left to others
	if got := pgtest.Receive(t, k.warnings, "the worker is warned of a kind"); got != resize {
		t.Errorf("it is warned that %s, want: %s", got, resize)
	}
	s.until(s.enqueue("mail", "resize", "{}"), "scheduled")
	s.until(s.enqueue("mail", "rotate", "{}"), "scheduled")
	if got := pgtest.Receive(t, k.warnings, "the worker is warned of another kind"); got == resize {
		t.Error("it is warned of the same kind twice")
	}

	a := s.take(m{"queues": m{"mail": 1, "mial": 1, "files": 0}, "kinds": []string{"welcome"}, "wait": 0})
	var all []string
	pgtest.Until(t, "a worker that polls is warned", func() bool {
		a = s.take(m{"worker": a.Worker, "queues": m{"mail": 1, "mial": 1}, "kinds": []string{"welcome"}, "wait": 1})
		all = append(all, a.Warnings...)
		return slices.Contains(all, misspelt)
	})
	a = s.take(m{"worker": a.Worker, "queues": m{"mail": 1, "mial": 1}, "kinds": []string{"welcome"}, "wait": 0})
	if slices.Contains(a.Warnings, misspelt) {
		t.Errorf("it is warned again: %q", a.Warnings)
	}
	if len(other.warnings) > 0 {
		t.Errorf("the worker of another queue is warned of this one's, that %s", <-other.warnings)
	}
}
