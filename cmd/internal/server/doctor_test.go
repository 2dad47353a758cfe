package server

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestDoctorExportsWhatItFinds: with Doctor, /metrics contains the doctor's waits and findings.
func TestDoctorExportsWhatItFinds(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Database: pgtest.Database(t), Doctor: true})
	awaitMetrics(t, s, func(text string) bool {
		return strings.Contains(text, "weir_doctor_up 1") && strings.Contains(text, `weir_doctor_waiting_sessions{class="commit"}`)
	})
}

// TestDoctorExportsWhatItCannotExamine: with a hub's privileges alone, the doctor sees neither other roles' sessions nor Weir's segments, and
// a metric says so. The log names each, and where one ends.
func TestDoctorExportsWhatItCannotExamine(t *testing.T) {
	t.Parallel()
	var log pgtest.Log
	s := start(t, Config{Database: roleURL(t, pgtest.Database(t), "IN ROLE weir_hub").String(), Doctor: true, Logger: log.Logger()})
	unchecked := regexp.MustCompile(`(?m)^weir_doctor_unchecked [1-9]`)
	awaitMetrics(t, s, unchecked.MatchString)
	named := regexp.MustCompile(`unchecked="?[^\[\n]+; [^\n]+`)
	pgtest.Until(t, "the log names them", func() bool { return named.MatchString(log.String()) })
}

// TestFindingsOfOneKindShareAMetric: /metrics answers while the doctor finds the same in two queues.
func TestFindingsOfOneKindShareAMetric(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	const enqueue = `SELECT weir.enqueue(q, 'k') FROM generate_series(1, 1000), unnest('{qa,qb}'::text[]) q`
	if _, err := pgtest.Pool(t, database).Exec(t.Context(), enqueue); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Database: database, Doctor: true})
	finding := regexp.MustCompile(`(?m)^weir_doctor_finding{code="lane-backlog",downstream_of="",severity="warning"} 1$`)
	lost := regexp.MustCompile(`(?m)^weir_doctor_lost_sessions{code="lane-backlog"} 0$`)
	awaitMetrics(t, s, func(text string) bool { return finding.MatchString(text) && lost.MatchString(text) })
}

// awaitMetrics waits until the server's metrics are as wanted.
func awaitMetrics(t *testing.T, s *Server, wanted func(text string) bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; <-time.After(100 * time.Millisecond) {
		response, err := http.Get("http://" + s.HTTPAddr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if wanted(string(text)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the metrics are\n%s", text)
		}
	}
}
