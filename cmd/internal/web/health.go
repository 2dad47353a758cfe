package web

import (
	"errors"
	"fmt"
	"net/http"
)

type health struct {
	Status string `json:"status"`
}

// serveHealth reports that the process is alive; a supervisor may restart a process that doesn't answer.
func (w *Web) serveHealth(rw http.ResponseWriter, _ *http.Request) {
	reply(rw, http.StatusOK, health{"live"})
}

// serveReady reports whether a load balancer should send clients here.
func (w *Web) serveReady(rw http.ResponseWriter, _ *http.Request) {
	if err := w.ready(); err != nil {
		fail(http.StatusServiceUnavailable, "unavailable", "not ready: "+err.Error(), "").write(rw)
		return
	}
	reply(rw, http.StatusOK, health{"ready"})
}

func (w *Web) ready() error {
	w.mu.Lock()
	draining := w.draining
	w.mu.Unlock()
	if draining {
		return errors.New("the server is stopping")
	}
	if err := w.Hub.Stuck(); err != nil {
		return fmt.Errorf("%w: restart this process", err)
	}
	if !w.Hub.Live() {
		return errors.New("the hub can't read ticks: the database may be unreachable")
	}
	if w.Ready != nil {
		return w.Ready()
	}
	return nil
}
