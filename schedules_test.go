package weir_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAScheduleOfAnEncryptedKindIsDeclaredOnce: args are encrypted differently each time; declaring the same schedule again changes nothing all the same,
// other args do, and nobody without the key reads them.
func TestAScheduleOfAnEncryptedKindIsDeclaredOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool).WithCodec(codec(t, "k1"))
	for i, c := range []struct {
		format  string
		changed bool
	}{{"secret", true}, {"secret", false}, {"other", true}, {"other", false}} {
		changed, err := client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{c.format}})
		if err != nil || changed != c.changed {
			t.Errorf("declaration %d: changed is %t (%v), want %t", i+1, changed, err, c.changed)
		}
		info, err := client.Schedule(t.Context(), "s")
		if err != nil || bytes.Contains(info.Args, []byte(c.format)) {
			t.Errorf("the args are %s, %v", info.Args, err)
		}
	}
}

// TestAScheduleRefusesWhatItsJobsCannotHave: a time of their own, and uniqueness, also where they come from the kind's defaults; nothing is declared. What
// else is among the options, its jobs have.
func TestAScheduleRefusesWhatItsJobsCannotHave(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	for name, s := range map[string]weir.Schedule{
		"RunAt":                    {Args: Report{}, Options: &weir.Options{RunAt: time.Now().Add(time.Hour)}},
		"Unique":                   {Args: Report{}, Options: &weir.Options{Unique: &weir.Unique{Key: "one"}}},
		"Unique, of the defaults":  {Args: uniqueByDefault{}},
		"Unique, beside a default": {Args: uniqueByDefault{}, Options: &weir.Options{Queue: "q"}},
	} {
		s.Name, s.Schedule = "s", "@daily"
		if changed, err := client.SetSchedule(t.Context(), s); err == nil || changed || !strings.Contains(err.Error(), strings.Split(name, ",")[0]) {
			t.Errorf("%s: changed is %t, and the error %v", name, changed, err)
		}
	}
	if all, err := client.Schedules(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the schedules are %v, %v: want none", all, err)
	}
	options := &weir.Options{Queue: "q", Priority: 3, MaxAttempts: 7, Meta: map[string]int{"m": 1}, Key: "acme"}
	if _, err := client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{}, Options: options}); err != nil {
		t.Fatal(err)
	}
	run, err := client.RunSchedule(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	job, err := client.Job(t.Context(), run.ID)
	if err != nil || job.Queue != "q" || job.Priority != 3 || job.MaxAttempts != 7 || !strings.Contains(string(job.Meta), `"m": 1`) || job.Key != "acme" {
		t.Errorf("the job is %+v, %v: want the options %+v", job, err, options)
	}
}

type uniqueByDefault struct{}

func (uniqueByDefault) Kind() string                 { return "unique" }
func (uniqueByDefault) EnqueueOptions() weir.Options { return weir.Options{Unique: &weir.Unique{}} }
