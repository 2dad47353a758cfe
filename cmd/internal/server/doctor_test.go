package server

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestDoctorExportsWhatItFinds: with Doctor, /metrics contains the doctor's waits and findings.
func TestDoctorExportsWhatItFinds(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Database: pgtest.Database(t), Doctor: true})
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
		if strings.Contains(string(text), "weir_doctor_up 1") && strings.Contains(string(text), `weir_doctor_waiting_sessions{class="commit"}`) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the doctor exports nothing:\n%s", text)
		}
	}
}
