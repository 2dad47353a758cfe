package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/weir-pg/weir"
)

// probes serves /readyz, which succeeds while the worker is healthy, and /healthz, which succeeds unless a restart would help. The answers
// have the form of the hub's.
func probes(health func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		replyProbe(w, "ready", health())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		var ill *weir.HealthError
		err := health()
		if !errors.As(err, &ill) || ill.Reason != weir.HealthStuck {
			err = nil
		}
		replyProbe(w, "live", err)
	})
	return mux
}

func replyProbe(w http.ResponseWriter, status string, err error) {
	body, code := map[string]string{"status": status}, http.StatusOK
	if err != nil {
		body, code = map[string]string{"code": "unavailable", "error": "not " + status + ": " + err.Error()}, http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
