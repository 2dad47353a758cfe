package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestProbesOfAWorkerTellWhetherARestartHelps: a worker that is not healthy is not ready; only one that is stuck is not live.
func TestProbesOfAWorkerTellWhetherARestartHelps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		health      error
		ready, live int
	}{
		{nil, 200, 200},
		{&weir.HealthError{Reason: weir.HealthUnreachable, Since: time.Now()}, 503, 200},
		{&weir.HealthError{Reason: weir.HealthStopping, Since: time.Now()}, 503, 200},
		{&weir.HealthError{Reason: weir.HealthStuck, Since: time.Now()}, 503, 503},
	} {
		for path, want := range map[string]int{"/readyz": c.ready, "/healthz": c.live} {
			got := httptest.NewRecorder()
			probesOf(func() error { return c.health }).ServeHTTP(got, httptest.NewRequest("GET", path, nil))
			if got.Code != want || want == 503 && !strings.Contains(got.Body.String(), "the worker is") {
				t.Errorf("%v: %s answers %d %s, want %d", c.health, path, got.Code, got.Body, want)
			}
		}
	}
}
