package weirui_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirui"
)

type noFindings struct{}

func (noFindings) Findings(context.Context) ([]weirui.Finding, error) { return nil, nil }

// TestListsAreNeverNull: programs go through a page's lists without asking whether they are there.
func TestListsAreNeverNull(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *weirui.Config) { c.Databases[0].Doctor = noFindings{} })
	for path, list := range map[string]string{
		"": "queues", "failures": "groups", "jobs": "jobs", "operations": "operations", "queues": "queues", "schedules": "schedules", "flows": "flows",
		"workers": "workers", "channels": "channels", "storage": "settings", "doctor": "findings", "history": "points",
	} {
		answer, text := r.ask("GET", path, "", "Accept", "application/json")
		if answer.StatusCode != http.StatusOK || strings.Contains(text, "null") || !strings.Contains(text, `"`+list+`":[`) {
			t.Errorf("%q: %s: %s", path, answer.Status, text)
		}
	}
}

// TestADatabaseThatCannotBeReachedIsSaid: as the page's title too, and with the reason.
func TestADatabaseThatCannotBeReachedIsSaid(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), "postgres://weir@"+address+"/weir?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := newRig(t, func(c *weirui.Config) { c.Databases[0].Pool = pool })
	answer, text := r.ask("GET", "queues", "")
	for _, want := range []string{"<title>The database can&#39;t be reached · Weir</title>", "<h1>The database can&#39;t be reached</h1>", address} {
		if answer.StatusCode != http.StatusBadGateway || !strings.Contains(text, want) {
			t.Errorf("%s without %s: %s", answer.Status, want, text)
		}
	}
}

// TestDurationsAreSeconds: of limits; those of the history are tested with it.
func TestDurationsAreSeconds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	for _, l := range []weir.Limit{{Running: 3, Rate: weir.Rate{Starts: 10, Per: 90 * time.Second}}, {PerKey: true, Running: 2}} {
		if err := r.client.SetLimit(t.Context(), "mail", l); err != nil {
			t.Fatal(err)
		}
	}
	_, text := r.ask("GET", "queues/mail", "", "Accept", "application/json")
	for _, want := range []string{`"starts":10,"per":90`, `"running":3`, `"per_key":{"queue":"mail","running":2,"per_key":true`} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %s: %s", want, text)
		}
	}
}
