package weirui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
)

// problem is an error that is shown as it is.
type problem struct {
	Status int    `json:"-"`
	Text   string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

func (p *problem) Error() string { return p.Text }

// again is a problem with a form, which is shown again.
type again struct {
	*problem
	view *view
}

func (a *again) Unwrap() error { return a.problem }

func badInput(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...), ""}
}

// failed is the view of an error.
func (v *visit) failed(err error) *view {
	p := v.problemOf(err)
	if p.Status >= 500 && !errors.Is(err, context.Canceled) {
		v.ui.log.Warn("weir: a page of the UI can't be shown", "path", v.URL.Path, "error", err)
	}
	title := http.StatusText(p.Status)
	if strings.HasPrefix(p.Text, unreachable) {
		title = unreachable
	}
	return &view{template: "problem", title: title, data: p, status: p.Status}
}

const unreachable = "The database can't be reached"

// problemOf says what an error means to whoever looks at the page.
func (v *visit) problemOf(err error) (p *problem) {
	var server *pgconn.PgError
	switch {
	case errors.As(err, &p):
	case errors.Is(err, weir.ErrNotFound):
		p = &problem{http.StatusNotFound, sentence(err.Error()), "It may never have existed, or its retention is over."}
	case errors.Is(err, weir.ErrNotInstalled):
		p = &problem{http.StatusServiceUnavailable, "Weir is not installed in this database.", "Run weir migrate up."}
	case errors.As(err, &server) && server.Code == "42501":
		p = &problem{http.StatusForbidden, "The UI's database role may not do this: " + server.Message + ".", "Grant it the role weir_operate."}
	case errors.As(err, &server) && strings.HasPrefix(server.Code, "22"):
		p = &problem{http.StatusBadRequest, sentence(server.Message), server.Hint}
	case errors.Is(err, context.DeadlineExceeded):
		p = &problem{http.StatusGatewayTimeout, "The database did not answer in time.", "It may be overloaded: weir doctor says by what."}
	case isUnreachable(err):
		p = &problem{http.StatusBadGateway, unreachable + ": " + cut(err.Error(), 500), ""}
	case v.Method == http.MethodPost && !errors.As(err, &server) && !errors.Is(err, context.Canceled): // refused before it was sent
		p = &problem{http.StatusBadRequest, sentence(err.Error()), ""}
	default:
		p = &problem{http.StatusBadGateway, "The database can't be read: " + cut(err.Error(), 500), ""}
	}
	return p
}

// isUnreachable reports whether an error is one of the connection to the database: none could be made, or it broke, or the server ended it.
func isUnreachable(err error) bool {
	var connect *pgconn.ConnectError
	var network *net.OpError
	var server *pgconn.PgError
	switch {
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return errors.As(err, &server) && strings.HasPrefix(server.Code, "57P")
}

func notHere(*visit) (*view, error) {
	return nil, &problem{http.StatusNotFound, "There is no such page.", ""}
}

// sentence makes an error message a sentence.
func sentence(text string) string {
	text = strings.TrimPrefix(text, "weir: ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
