package server

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestServingJobsNeedsTheRoleForIt: a hub whose user may not work jobs refuses to start with them, and names the role; one that may has a pool of its own for them.
func TestServingJobsNeedsTheRoleForIt(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	config := Config{Name: "jobs", ListenHTTP: "127.0.0.1:0", Jobs: true, Logger: slog.New(slog.DiscardHandler), Web: web.Config{Anonymous: true}}
	config.Database = roleURL(t, database, "IN ROLE weir_hub").String()
	if s, err := Start(t.Context(), config); err == nil {
		_ = s.Stop(t.Context())
		t.Error("a hub without the role serves jobs")
	} else if !strings.Contains(err.Error(), "grant the role weir_work") {
		t.Errorf("%v does not name the role", err)
	}
	config.Database = roleURL(t, database, "IN ROLE weir_hub, weir_work").String()
	s := start(t, config)
	response, err := http.Get("http://" + s.HTTPAddr().String() + "/v1/jobs/1")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if b, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 404 || !strings.Contains(string(b), "job 1 is unknown") {
		t.Errorf("%d %s %v", response.StatusCode, b, err)
	}
	var pools int
	if err := pgtest.Pool(t, database).QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir hub jobs'`).Scan(&pools); err != nil || pools != 1 {
		t.Errorf("%d connections for jobs: %v", pools, err)
	}
}
