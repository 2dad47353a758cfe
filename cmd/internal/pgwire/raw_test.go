package pgwire_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// raw speaks the protocol message by message, and abbreviates the answers:
//
//	tag             CommandComplete            1 2 3 n s    ParseComplete, BindComplete, CloseComplete, NoData, PortalSuspended
//	[name:oid]      RowDescription             t(oid)       ParameterDescription
//	(value|null)    DataRow                    ERROR code   also FATAL and WARNING
//	!channel text   NotificationResponse       name=value   ParameterStatus
//	/I              ReadyForQuery              empty        EmptyQueryResponse
type raw struct {
	t    testing.TB
	net  net.Conn
	wire *pgproto3.Frontend
}

func (e *endpoint) dial() *raw {
	e.t.Helper()
	conn, err := net.Dial("tcp", e.addr.String())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		e.t.Fatal(err)
	}
	return &raw{t: e.t, net: conn, wire: pgproto3.NewFrontend(conn, conn)}
}

// session connects, and returns the messages up to the first ReadyForQuery.
func (e *endpoint) session(parameters map[string]string) (*raw, string) {
	e.t.Helper()
	r := e.dial()
	all := map[string]string{"user": "someone", "database": "app"}
	for k, v := range parameters {
		all[k] = v
	}
	r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: all})
	return r, r.answer()
}

func (r *raw) send(messages ...pgproto3.FrontendMessage) {
	r.t.Helper()
	_ = r.net.SetDeadline(time.Now().Add(patience))
	for _, m := range messages {
		r.wire.Send(m)
	}
	if err := r.wire.Flush(); err != nil {
		r.t.Fatal(err)
	}
}

// next returns the next message, abbreviated; "gone" if the connection has ended.
func (r *raw) next() string {
	_ = r.net.SetDeadline(time.Now().Add(patience))
	m, err := r.wire.Receive()
	if err != nil {
		return "gone"
	}
	return inShort(m)
}

func inShort(m pgproto3.BackendMessage) string {
	switch m := m.(type) {
	case *pgproto3.CommandComplete:
		return string(m.CommandTag)
	case *pgproto3.ErrorResponse:
		return m.Severity + " " + m.Code
	case *pgproto3.NoticeResponse:
		return m.Severity + " " + m.Code
	case *pgproto3.ReadyForQuery:
		return "/" + string(m.TxStatus)
	case *pgproto3.NotificationResponse:
		return "!" + m.Channel + " " + m.Payload
	case *pgproto3.ParameterStatus:
		return m.Name + "=" + m.Value
	case *pgproto3.RowDescription:
		var fields []string
		for _, f := range m.Fields {
			fields = append(fields, fmt.Sprintf("%s:%d", f.Name, f.DataTypeOID))
		}
		return "[" + strings.Join(fields, "|") + "]"
	case *pgproto3.DataRow:
		var values []string
		for _, v := range m.Values {
			if v == nil {
				values = append(values, "null")
			} else {
				values = append(values, string(v))
			}
		}
		return "(" + strings.Join(values, "|") + ")"
	case *pgproto3.ParameterDescription:
		return "t" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(m.ParameterOIDs)), ","), " ")
	case *pgproto3.ParseComplete:
		return "1"
	case *pgproto3.BindComplete:
		return "2"
	case *pgproto3.CloseComplete:
		return "3"
	case *pgproto3.NoData:
		return "n"
	case *pgproto3.PortalSuspended:
		return "s"
	case *pgproto3.EmptyQueryResponse:
		return "empty"
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
}

// answer reads up to ReadyForQuery, or the end of the connection.
func (r *raw) answer() string {
	r.t.Helper()
	var all []string
	for {
		s := r.next()
		all = append(all, s)
		if s == "gone" || s[0] == '/' {
			return strings.Join(all, " ")
		}
	}
}

func (r *raw) query(sql string) string {
	r.t.Helper()
	r.send(&pgproto3.Query{String: sql})
	return r.answer()
}

// asks runs queries and compares the answers.
func (r *raw) asks(pairs ...string) {
	r.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := r.query(pairs[i]); got != pairs[i+1] {
			r.t.Errorf("%s\n got %s\nwant %s", pairs[i], got, pairs[i+1])
		}
	}
}

// expect reads one message.
func (r *raw) expect(want string) {
	r.t.Helper()
	if got := r.next(); got != want {
		r.t.Fatalf("got %s, want %s", got, want)
	}
}
