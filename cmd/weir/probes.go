package main

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/weir-pg/weir"
)

// probes serves /healthz, which fails if a restart would help, and /readyz, which fails whenever the process does not do its work. Neither
// function may block. The answers have the form of the hub's.
func probes(stuck, ready func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { replyProbe(w, "live", stuck()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { replyProbe(w, "ready", ready()) })
	return mux
}

// probesOf serves a worker's health.
func probesOf(health func() error) *http.ServeMux {
	return probes(func() error {
		var ill *weir.HealthError
		if err := health(); errors.As(err, &ill) && ill.Reason == weir.HealthStuck {
			return err
		}
		return nil
	}, health)
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
