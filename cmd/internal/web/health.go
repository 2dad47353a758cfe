package web

import (
	"errors"
	"fmt"
	"net/http"
)

type health struct {
	Status string `json:"status"`
}

// serveHealth reports whether a supervisor should restart the process: only if a part of it is stuck. An outage of the database is no reason,
// because hubs wait it out with their clients connected. It takes no lock, so it always answers.
func (w *Web) serveHealth(rw http.ResponseWriter, _ *http.Request) {
	if err := w.stuck(); err != nil {
		fail(http.StatusServiceUnavailable, "unavailable", "not live: "+err.Error(), "").write(rw)
		return
	}
	reply(rw, http.StatusOK, health{"live"})
}

// stuck returns an error that names the part that makes no progress, or nil.
func (w *Web) stuck() error {
	err := w.Hub.Stuck()
	if w.Stuck != nil {
		err = errors.Join(err, w.Stuck())
	}
	if err != nil {
		return fmt.Errorf("%w: restart this process", err)
	}
	return nil
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
	if err := w.stuck(); err != nil {
		return err
	}
	w.mu.Lock()
	draining := w.draining
	w.mu.Unlock()
	if draining {
		return errors.New("the server is stopping")
	}
	if !w.Hub.Live() {
		return errors.New("the hub can't read ticks: the database may be unreachable")
	}
	if w.Ready != nil {
		return w.Ready()
	}
	return nil
}
