package web

import (
	"net"
	"net/http"
	"time"
)

// taken is a connection taken over from net/http.
type taken struct {
	net.Conn
	polite bool // the client answers a farewell by closing
}

// HangUp implements link. The reader then sees the end of the connection.
func (t taken) HangUp(by time.Time) {
	if !t.polite || by.IsZero() || t.SetReadDeadline(by) != nil {
		_ = t.Conn.Close()
	}
}

// lent is a net/http response, for connections that can't be taken over. It must not be used after its handler has returned.
type lent struct {
	response   http.ResponseWriter
	controller *http.ResponseController
	over       chan struct{} // closed by HangUp: the handler may return
}

func (l *lent) SetWriteDeadline(t time.Time) error { return l.controller.SetWriteDeadline(t) }

func (l *lent) Write(b []byte) (int, error) {
	n, err := l.response.Write(b)
	if err == nil {
		err = l.controller.Flush()
	}
	return n, err
}

// HangUp implements link.
func (l *lent) HangUp(time.Time) { close(l.over) }
