package weirui_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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
	for _, want := range []string{`href="db/shop/"`, `href="db/billing.eu/"`, `href="static/weir.css"`} {
		if text := r.page(""); !strings.Contains(text, want) {
			t.Errorf("the first page has no %s: %s", want, text)
		}
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
	for path, hint := range map[string]bool{"nopage": true, "db/shop/nopage": false} {
		if answer, text := r.ask("GET", path, ""); answer.StatusCode != http.StatusNotFound || strings.Contains(text, "below db/NAME/") != hint {
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

// TestAllDatabasesAreShownAsTheyAnswer: each in a row, the ones with trouble first; those that can't be read, or don't answer in time, hold up no other.
func TestAllDatabasesAreShownAsTheyAnswer(t *testing.T) {
	t.Parallel()
	line := pgtest.NewLine(t, pgtest.Database(t))
	slow := pgtest.Pool(t, line.URL)
	if err := slow.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone, err := pgxpool.New(t.Context(), "postgres://ada:secret@127.0.0.1:1/gone?connect_timeout=5")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gone.Close)
	r := newRig(t, func(c *weirui.Config) {
		c.Databases[0].Name = "shop"
		c.Databases = append(c.Databases, weirui.Database{Name: "slow", Pool: slow}, weirui.Database{Name: "gone", Pool: gone}, weirui.Database{Name: "idle", Pool: pgtest.Pool(t, pgtest.Database(t))})
	})
	for range 3 {
		r.enqueue(note{Text: "waits"}, &weir.Options{Queue: "mail"})
	}
	r.enqueue(note{Text: "later"}, &weir.Options{Queue: "mail", RunAt: time.Now().Add(time.Hour)})
	if _, err := r.pool.Exec(t.Context(), `SELECT weir._count_minutes()`); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pool.Exec(t.Context(), `INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, cancelled, other, waits, runs)
		SELECT at, weir._minute_ring(at), '', at + interval '1 minute', 1, 20, 0, 0, 0, 0, 0 FROM (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at FROM generate_series(2, 6) n) m`); err != nil {
		t.Fatal(err)
	}
	type row struct {
		Name, Problem               string
		Waiting, Running, Scheduled int64
		Oldest                      float64
		Failed                      float64 `json:"failed_per_minute"`
		Late                        bool
		At                          time.Time
	}
	var list struct {
		Databases          []row
		Total, Unreachable int
		Waiting            int64
	}
	by := func() map[string]row {
		list.Databases = nil
		r.data("", &list)
		rows := map[string]row{}
		for _, d := range list.Databases {
			rows[d.Name] = d
		}
		return rows
	}
	pgtest.Until(t, "each has answered, as far as it can", func() bool {
		rows := by()
		return !rows["shop"].At.IsZero() && !rows["idle"].At.IsZero() && !rows["slow"].At.IsZero() && rows["gone"].Problem != ""
	})
	rows := by()
	if shop := rows["shop"]; shop.Waiting != 3 || shop.Scheduled != 1 || shop.Oldest <= 0 || shop.Failed <= 0 || shop.Problem != "" {
		t.Errorf("the shop: %+v", shop)
	}
	if list.Total != 4 || list.Unreachable != 1 || list.Waiting != 3 || list.Databases[0].Name != "gone" || list.Databases[1].Name != "shop" {
		t.Errorf("%+v", list)
	}
	if strings.Contains(r.page(""), "secret") {
		t.Error("the page tells the password")
	}
	line.Hold()
	defer line.LetGo()
	pgtest.Until(t, "the one that crawls is shown as it was, and the others as they are", func() bool {
		rows := by()
		return (rows["slow"].Late || rows["slow"].Problem != "") && rows["shop"].Waiting == 3 && !rows["shop"].Late
	})
	if text := r.page("?name=SHO"); !strings.Contains(text, "1 database:") || strings.Contains(text, "db/idle/jobs") {
		t.Errorf("found by name: %s", text)
	}
}

// TestDatabasesComeAndGo: while the UI runs. What stays goes on as it was; before there are any, the page says so.
func TestDatabasesComeAndGo(t *testing.T) {
	t.Parallel()
	var pools []*pgxpool.Pool
	r := newRig(t, func(c *weirui.Config) { c.Databases, c.Several = nil, true })
	for range 2 {
		pools = append(pools, pgtest.Pool(t, pgtest.Database(t)))
	}
	if text := r.page(""); !strings.Contains(text, "There are no databases yet.") {
		t.Error(text)
	}
	set := func(all ...weirui.Database) {
		t.Helper()
		if err := r.ui.SetDatabases(all); err != nil {
			t.Fatal(err)
		}
	}
	set(weirui.Database{Name: "one", Pool: pools[0]})
	r.page("db/one/queues")
	set(weirui.Database{Name: "one", Pool: pools[0]}, weirui.Database{Name: "two", Pool: pools[1]})
	r.page("db/two/queues")
	set(weirui.Database{Name: "two", Pool: pools[1]})
	if answer, _ := r.ask("GET", "db/one/queues", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a database that has gone: %s", answer.Status)
	}
	if err := r.ui.SetDatabases([]weirui.Database{{Name: "a", Pool: pools[0]}, {Name: "a", Pool: pools[1]}}); err == nil {
		t.Error("two databases have one name")
	}
	r.page("db/two/queues")
	fixed := newRig(t)
	if err := fixed.ui.SetDatabases(nil); err == nil {
		t.Error("the databases of a UI that is not for several were changed")
	}
}

// TestManyDatabasesFitOnAPage: of more than fit, the page shows the first and finds others by name, and pages of a database have a link to the list instead of to each.
func TestManyDatabasesFitOnAPage(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	r := newRig(t, func(c *weirui.Config) {
		c.Databases = nil
		for i := range 250 {
			c.Databases = append(c.Databases, weirui.Database{Name: fmt.Sprintf("tenant-%03d", i), Pool: pool})
		}
	})
	text := r.page("")
	if n := strings.Count(text, `<th scope="row">`); n != 200 || !strings.Contains(text, "250 databases") {
		t.Errorf("%d rows: %.2000s", n, text)
	}
	text = r.page("db/tenant-007/queues")
	if strings.Contains(text, "tenant-008") || !strings.Contains(text, `<a href="../../">All databases</a>`) {
		t.Errorf("a page of a database: %.2000s", text)
	}
}
