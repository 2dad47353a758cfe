package weir_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weircrypt"
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
		if err != nil || string(info.Args) != `{"encrypted":"k1"}` {
			t.Errorf("the args are %s, %v", info.Args, err)
		}
	}
}

// TestDeclaringAScheduleEncryptsItWithTheFirstKey: so that after the second step of a rotation nothing needs the old key; its jobs can be decrypted before and after.
func TestDeclaringAScheduleEncryptsItWithTheFirstKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for i, c := range []struct {
		codec   *weircrypt.Codec
		changed bool
		key     string
	}{
		{nil, true, ""}, {codec(t, "k1"), true, "k1"}, {codec(t, "k1", "k2"), false, "k1"}, {codec(t, "k2", "k1"), true, "k2"}, {codec(t, "k2", "k1"), false, "k2"}, {codec(t, "k2"), false, "k2"},
		{codec(t, "k3"), true, "k3"}, // the key is lost: the declaration says what the args are
	} {
		client := weir.NewClient(pool)
		if c.codec != nil {
			client = client.WithCodec(c.codec)
		}
		changed, err := client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{"pdf"}})
		if err != nil || changed != c.changed {
			t.Errorf("declaration %d: changed is %t (%v), want %t", i+1, changed, err, c.changed)
		}
		var key string
		if err := pool.QueryRow(t.Context(), `SELECT coalesce(args->'weir.encrypted'->>'key', '') FROM weir.schedules()`).Scan(&key); err != nil || key != c.key {
			t.Errorf("after declaration %d, the key is %q (%v), want %q", i+1, key, err, c.key)
		}
		run, err := client.RunSchedule(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		job, err := client.Job(t.Context(), run.ID)
		if err == nil {
			err = client.Decrypt(t.Context(), job)
		}
		if err != nil || !bytes.Contains(job.Args, []byte("pdf")) {
			t.Errorf("after declaration %d, a job has the args %s, %v", i+1, job.Args, err)
		}
		if all, err := client.Schedules(t.Context()); err != nil || len(all) != 1 || c.key != "" && string(all[0].Args) != fmt.Sprintf(`{"encrypted":%q}`, c.key) {
			t.Errorf("after declaration %d, the list shows %v, %v", i+1, all, err)
		}
	}
}

// TestAScheduleRefusesWhatItsJobsCannotHave: a time of their own, uniqueness and a flow, also where they come from the kind's defaults; nothing is declared. What
// else is among the options, its jobs have.
func TestAScheduleRefusesWhatItsJobsCannotHave(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	for name, s := range map[string]weir.Schedule{
		"RunAt":                    {Args: Report{}, Options: &weir.Options{RunAt: time.Now().Add(time.Hour)}},
		"Unique":                   {Args: Report{}, Options: &weir.Options{Unique: &weir.Unique{Key: "one"}}},
		"Flow":                     {Args: Report{}, Options: &weir.Options{Flow: 7}},
		"Once":                     {Args: Report{}, Options: &weir.Options{Once: "a"}},
		"Once, with a flow":        {Args: Report{}, Options: &weir.Options{Once: "a", Flow: 7}},
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
