package weirui_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// oddName has what addresses and HTML treat specially.
const oddName = `a/b ?&<"%2F'+;`

func (r *rig) schedule(s weir.Schedule) {
	r.Helper()
	if _, err := r.client.SetSchedule(r.Context(), s); err != nil {
		r.Fatal(err)
	}
}

func TestAScheduleIsPausedResumedRunAndDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule(weir.Schedule{Name: oddName, Schedule: "30 4 * * *", TimeZone: "Europe/Berlin", Args: note{Text: "hello", Password: "hunter2"}, Options: &weir.Options{Queue: "mail"}})
	at := "schedules/" + url.PathEscape(oddName)
	var shown struct {
		weir.ScheduleInfo
		Times []time.Time `json:"next_times"`
		Last  *weir.JobInfo
	}
	r.data(at, &shown)
	if shown.Name != oddName || len(shown.Times) != 10 || shown.Last != nil {
		t.Errorf("shows %+v", shown)
	}
	for _, next := range shown.Times {
		if _, offset := next.Zone(); next.Hour() != 4 || next.Minute() != 30 || offset == 0 {
			t.Errorf("the next times are not on the schedule's clock: %s", next)
		}
	}
	for _, path := range []string{"schedules", at} {
		for _, accept := range []string{"text/html", "application/json"} {
			if _, text := r.ask("GET", path, "", "Accept", accept); strings.Contains(text, "hunter2") || strings.Contains(text, `b ?&<`) {
				t.Errorf("%s as %s shows a secret, or is not escaped: %s", path, accept, text)
			}
		}
	}
	state := func() string {
		t.Helper()
		k, err := r.client.Schedule(t.Context(), oddName)
		if err != nil {
			t.Fatal(err)
		}
		return k.State
	}
	if r.do(at+"/pause", nil); state() != "paused" {
		t.Errorf("it is %s", state())
	}
	if text := r.page("schedules"); !strings.Contains(text, ">Resume<") || !strings.Contains(text, "30 4 * * *") {
		t.Errorf("the list is %s", text)
	}
	if r.do(at+"/resume", nil); state() != "active" {
		t.Errorf("it is %s", state())
	}
	said := r.do(at+"/run", nil)
	if page, err := r.client.Jobs(t.Context(), weir.JobsParams{Queue: "mail"}); err != nil || len(page.Jobs) != 1 || !strings.Contains(said, fmt.Sprintf("job %d.", page.Jobs[0].ID)) {
		t.Errorf("it says %q, and the jobs are %+v, %v", said, page, err)
	}
	answer, _ := r.ask("POST", at+"/pause", url.Values{"back": {at}}.Encode())
	if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || to != "../../"+at {
		t.Errorf("the form comes back to %q with %s", to, answer.Status)
	}
	r.role = weirui.Operator
	if text := r.page(at); strings.Contains(text, ">Drop<") {
		t.Error("an operator is offered what only admins may do")
	}
	r.role = weirui.Admin
	r.do(at+"/drop", nil)
	for _, path := range []string{at, "schedules/none"} {
		if answer, text := r.ask("GET", path, ""); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "There is no schedule") {
			t.Errorf("%s: %s: %s", path, answer.Status, text)
		}
	}
	for _, verb := range []string{"pause", "resume", "run", "drop"} {
		if answer, text := r.ask("POST", at+"/"+verb, "sure=yes"); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "There is no schedule") {
			t.Errorf("%s of a dropped schedule: %s: %s", verb, answer.Status, text)
		}
	}
}

func TestTheLastJobOfAScheduleIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule(weir.Schedule{Name: "often", Schedule: "* * * * * *", Args: note{Password: "hunter2"}, Options: &weir.Options{Queue: "mail"}})
	var shown struct{ Last *weir.JobInfo }
	pgtest.Eventually(t, func() error {
		if _, err := r.pool.Exec(t.Context(), `CALL weir.chores()`); err != nil {
			return err
		}
		if r.data("schedules/often", &shown); shown.Last == nil {
			return errors.New("it has no last job")
		}
		return nil
	})
	if shown.Last.Queue != "mail" || strings.Contains(string(shown.Last.Args), "hunter2") {
		t.Errorf("its last job is %+v", shown.Last)
	}
	for _, path := range []string{"schedules", "schedules/often"} {
		if text := r.page(path); !strings.Contains(text, "jobs/") || strings.Contains(text, "hunter2") {
			t.Errorf("%s is %s", path, text)
		}
	}
}

func TestSchedulesArePagedByName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 203 {
		r.schedule(weir.Schedule{Name: fmt.Sprintf("s%03d", i), Schedule: "@daily", Args: note{}})
	}
	type page struct {
		Schedules []weir.ScheduleInfo
		Next      string
	}
	var first, second page
	r.data("schedules", &first)
	r.data("schedules?after="+url.QueryEscape(first.Next), &second)
	if len(first.Schedules) != 200 || first.Next != "s199" || len(second.Schedules) != 3 || second.Schedules[0].Name != "s200" || second.Next != "" {
		t.Errorf("pages of %d and %d schedules, the second after %q", len(first.Schedules), len(second.Schedules), first.Next)
	}
}
