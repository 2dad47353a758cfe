package weirui_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestSeveralDatabasesAreKeptApart: each database has its pages below its name, an action changes the one that it names, and links stay within it.
func TestSeveralDatabasesAreKeptApart(t *testing.T) {
	t.Parallel()
	other := pgtest.Pool(t, pgtest.Database(t))
	r := newRig(t, func(c *weirui.Config) {
		c.Databases[0].Name = "shop"
		c.Databases = append(c.Databases, weirui.Database{Name: "billing.eu", Pool: other})
	})
	elsewhere := weir.NewClient(other)
	ids := map[string]int64{"shop": r.enqueue(note{Text: "of the shop"}, &weir.Options{Queue: "mail"})}
	made, err := elsewhere.Enqueue(t.Context(), note{Text: "of billing"}, &weir.Options{Queue: "invoices"})
	if err != nil {
		t.Fatal(err)
	}
	ids["billing.eu"] = made.ID
	if answer, _ := r.ask("GET", "", ""); answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "db/shop/" {
		t.Errorf("the first page leads to %q", answer.Header.Get("Location"))
	}
	for name, own := range map[string]string{"shop": "mail", "billing.eu": "invoices"} {
		for _, path := range []string{"", "queues", "jobs", fmt.Sprintf("jobs/%d", ids[name])} {
			text := r.page("db/" + name + "/" + path)
			if !strings.Contains(text, own) || strings.Contains(text, map[string]string{"mail": "invoices", "invoices": "mail"}[own]) {
				t.Errorf("%s of %s shows other jobs: %s", path, name, text)
			}
			for _, want := range []string{"shop", "billing.eu"} {
				if !strings.Contains(text, "db/"+want+"/\"") {
					t.Errorf("%s of %s has no link to %s", path, name, want)
				}
			}
		}
	}
	for _, path := range []string{"db/none/", "db/none/queues", "queues", "jobs", "db/", "db/shop/db/shop/"} {
		if answer, text := r.ask("GET", path, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %q: %s: %s", path, answer.Status, text)
		}
	}
	if answer, _ := r.ask("POST", "db/none/queues/mail/pause", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an action in an unknown database: %s", answer.Status)
	}

	// Both have a job of this number, and only one is cancelled.
	if ids["shop"] != ids["billing.eu"] {
		t.Fatalf("the jobs have the numbers %v", ids)
	}
	r.do(fmt.Sprintf("db/billing.eu/jobs/%d/cancel", ids["shop"]), nil)
	for client, want := range map[*weir.Client]weir.State{r.client: weir.StateAvailable, elsewhere: weir.StateCancelled} {
		if j, err := client.Job(t.Context(), ids["shop"]); err != nil || j.State != want {
			t.Errorf("the job is %v, %v, want %s", j, err, want)
		}
	}
	answer, _ := r.ask("POST", "db/shop/queues/mail/pause", "back=queues%2Fmail")
	if got := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || got != "../../queues/mail" {
		t.Errorf("the form comes back to %q", got)
	}
	if text := r.page("db/shop/queues/mail"); !strings.Contains(text, "paused") {
		t.Errorf("the queue is not paused: %s", text)
	}
}
