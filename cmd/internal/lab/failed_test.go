package lab

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatWasMeasuredBeforeAFailureIsKept: with the variant that failed and why, and without a verdict.
func TestWhatWasMeasuredBeforeAFailureIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		step  int           // whose sessions are terminated
		lasts time.Duration // long enough for that in each step
		fails string
		kept  []string
	}{
		"notify":    {step: 5, lasts: 6 * time.Second, fails: "round 2 of 2: insert + pg_notify: ", kept: []string{"insert", "insert + weir.publish"}}, // no flush is slow here
		"listeners": {step: 2, lasts: 10 * time.Second, fails: pingPongName("PostgreSQL", 15) + ": ", kept: []string{pingPongName("PostgreSQL", 0)}},
		"tree":      {step: 2, lasts: 6 * time.Second, fails: crowdWay + ": ", kept: []string{treeSteps[0].name}},
		"pinned":    {step: 3, lasts: 6 * time.Second, fails: sqlQueues[2].name + ", read pin: ", kept: []string{sqlQueues[0].name + ", read pin", sqlQueues[1].name + ", read pin"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Empty(t)
			pool := pgtest.Pool(t, url)
			if err := pool.Ping(t.Context()); err != nil { // so that it is connected when it is in a hurry
				t.Fatal(err)
			}
			config := tiny(name, url)
			config.Duration = c.lasts
			var once sync.Once
			var failing string
			config.Progress = func(p Progress) {
				if p.Step != c.step || p.Way == "" {
					return
				}
				once.Do(func() {
					failing = p.Way
					if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, appName); err != nil {
						t.Error(err)
					}
				})
			}
			r, err := Run(t.Context(), config)
			if err == nil || r == nil {
				t.Fatalf("the run ends with %v, and a result: %v", err, r != nil)
			}
			if !strings.HasPrefix(r.Failed, c.fails) || !strings.Contains(r.Failed, failing+": ") {
				t.Errorf("%s failed because %q", failing, r.Failed)
			}
			var kept []string
			for _, w := range r.Ways {
				kept = append(kept, w.Name)
				if w.Done < 1 || w.Seconds <= 0 {
					t.Errorf("%+v did nothing", w)
				}
			}
			if strings.Join(kept, "; ") != strings.Join(c.kept, "; ") {
				t.Errorf("%s failed, and kept are %q, want %q", failing, kept, c.kept)
			}
			if v := r.Verdict; v.Shown || !strings.HasPrefix(v.Text, "No verdict: ") || len(r.Charts) == 0 && name != "listeners" || r.Conditions == nil || r.Server.Version == "" {
				t.Errorf("%d charts; the verdict is %+v", len(r.Charts), v)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
			nothingLeft(t, url)
		})
	}
}

// TestWhatFailsAfterTheMeasurementsLeavesTheVerdict: such as cleaning up.
func TestWhatFailsAfterTheMeasurementsLeavesTheVerdict(t *testing.T) {
	t.Parallel()
	r := &Result{Scenario: "tree", Verdict: Verdict{Shown: true, Text: "Shown: it is slow."}}
	r.fail(t.Context(), errors.Join(errors.New("lab: tree: the first"), errors.New("lab: the second")))
	if r.Verdict.Text != "Shown: it is slow." || r.Failed != "the first; the second" {
		t.Errorf("it failed because %q, and the verdict is %q", r.Failed, r.Verdict.Text)
	}
}

// TestWaysThatTakeTurnsKeepTheirRounds: those that had none are not in the result, and neither is the one that failed.
func TestWaysThatTakeTurnsKeepTheirRounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failsAt int // of all turns; 0: none
		kept    string
		err     string
	}{{0, "aaa bbb ccc", ""}, {1, "", "round 1 of 3: no"}, {3, "a b", "round 1 of 3: no"}, {5, "aa c", "round 2 of 3: no"}, {7, "bb cc", "round 3 of 3: no"}} {
		r := &run{Config: Config{Duration: time.Second}, result: &Result{}}
		turn, turns := 0, map[string]int{}
		measured, err := inRounds(r, 3, []string{"a", "b", "c"}, func(name string) error {
			if turn++; turn == c.failsAt {
				return errors.New("no")
			}
			turns[name]++
			return nil
		}, func(name string) *Way { return &Way{Name: strings.Repeat(name, turns[name])} })
		var kept []string
		for _, w := range r.result.Ways {
			kept = append(kept, w.Name)
		}
		if got := strings.Join(kept, " "); got != c.kept || len(measured) != len(kept) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("failing at turn %d: kept are %q, want %q; %v", c.failsAt, got, c.kept, err)
		}
	}
}
