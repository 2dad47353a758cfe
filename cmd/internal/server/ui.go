package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// UI is how the web UI is served. What it shows is the handler's: cmd/internal/ui makes one.
type UI struct {
	Listen  string // an address of its own; "": below /ui/ of ListenHTTP
	Open    bool   // it lets everybody in, so it may be served on loopback addresses only
	Handler func(context.Context, *Server) (http.Handler, error)
	Many    func(context.Context, *Many) (http.Handler, error) // instead of Handler, for many databases
	Run     func(context.Context)                              // runs while the server does, beside the handler; nil: nothing
}

// listenUI opens the listener of the UI, if it has one of its own, and checks who could reach an open one.
func (l *listeners) listenUI(ctx context.Context, ui *UI) (err error) {
	if ui == nil {
		return nil
	}
	at := l.httpListener
	if ui.Listen != "" {
		var config net.ListenConfig
		if l.uiListener, err = config.Listen(ctx, "tcp", ui.Listen); err != nil {
			return cannotListen("listen for the web UI", err)
		}
		at = l.uiListener
	}
	switch {
	case at == nil:
		return errors.New("there is no address to serve the web UI at: give it one of its own, or give one for HTTP")
	case ui.Open && !loopback(at.Addr()):
		return fmt.Errorf("an open web UI lets everybody in, and %s can be reached from other machines: listen on 127.0.0.1, or say who may use it", at.Addr())
	}
	return nil
}

// uiHandler returns the web UI, or nil.
func (s *Server) uiHandler(ctx context.Context) (http.Handler, error) {
	if s.config.UI == nil {
		return nil, nil
	}
	return s.config.UI.Handler(ctx, s)
}

// UIURL returns where the web UI is, or "".
func (s *Server) UIURL() string { return s.uiURL(s.config) }

// UIExposed reports whether other machines may reach the web UI without TLS.
func (s *Server) UIExposed() bool { return s.uiExposed(s.config) }

// UIURL returns where the web UI is, or "".
func (m *Many) UIURL() string { return m.uiURL(m.config.Config) }

// UIExposed reports whether other machines may reach the web UI without TLS.
func (m *Many) UIExposed() bool { return m.uiExposed(m.config.Config) }

func (l *listeners) uiURL(c Config) string {
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	switch {
	case c.UI == nil:
		return ""
	case l.uiListener != nil:
		return scheme + "://" + l.uiListener.Addr().String() + "/"
	}
	return scheme + "://" + l.httpListener.Addr().String() + "/ui/"
}

func (l *listeners) uiExposed(c Config) bool {
	at := l.httpListener
	if l.uiListener != nil {
		at = l.uiListener
	}
	return c.UI != nil && c.TLSCert == "" && !loopback(at.Addr())
}

// Pool returns a pool of connections to a database, which connects when first used and is closed by Stop.
func (s *Server) Pool(ctx context.Context, url string, connections int, name string) (*pgxpool.Pool, error) {
	return s.pool(ctx, url, connections, name)
}

// Clients lists the connected clients of both protocols.
func (s *Server) Clients() []web.Client {
	all := pgClients{s.pg}.Clients()
	if s.web != nil {
		all = append(all, s.web.Clients()...)
	}
	return all
}

// End disconnects a client, and reports whether there was one with this id.
func (s *Server) End(id string) bool {
	return pgClients{s.pg}.End(id) || s.web != nil && s.web.End(id)
}

// Examines reports whether this hub runs the doctor.
func (s *Server) Examines() bool { return s.examiner != nil }

// Examined returns the doctor's last report, or why there is none; neither: the doctor has only begun.
func (s *Server) Examined() (*doctor.Report, error) {
	if report := s.examiner.report.Load(); report != nil {
		return report, nil
	}
	if err := s.examiner.trouble.Load(); err != nil {
		return nil, fmt.Errorf("the doctor can't examine the database: %w", *err)
	}
	return nil, nil
}
