package hub

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// account is the account with which clients of the wire protocol log in: the same for PostgreSQL and for a hub.
type account struct {
	home           string // PostgreSQL's own address
	name, database string
	settings       map[string]string
	scram          *scramUser
}

// accountOf returns the account in a connection string.
func accountOf(url string) (*account, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if config.Host == "" || config.Host[0] == '/' {
		return nil, fmt.Errorf("bench: clients connect by TCP, but the connection string has the socket in %s: use a host name", config.Host)
	}
	return &account{
		home: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), name: config.User, database: config.Database,
		scram: &scramUser{password: config.Password},
	}, nil
}

// with returns the account with other session settings.
func (a *account) with(settings map[string]string) *account {
	other := *a
	other.settings = settings
	return &other
}

// wire is a connection of the wire protocol that uses very little CPU time, so that the server determines the result. It does not support TLS. It
// is used by one goroutine.
type wire struct {
	conn       net.Conn
	buf        []byte
	begin, end int // of the bytes that were read but not used
}

const loginTimeout = 2 * time.Minute // clients wait during a storm

// login connects client i and logs in. ctx limits only the login.
func (a *account) login(ctx context.Context, address string, i int) (_ *wire, err error) {
	conn, err := load.Dial(ctx, address, i)
	if err != nil {
		return nil, err
	}
	w := &wire{conn: conn, buf: make([]byte, 512)}
	defer func() {
		if err != nil {
			conn.Close()
			err = fmt.Errorf("log in at %s: %w", address, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	defer w.bound(ctx)()
	parameters := map[string]string{"user": a.name, "database": a.database, "application_name": "weir bench"}
	for name, value := range a.settings {
		parameters[name] = value
	}
	if err := w.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: parameters}); err != nil {
		return nil, err
	}
	if err := w.authenticate(a); err != nil {
		return nil, err
	}
	return w, w.ready()
}

// bound makes reads and writes end with ctx, until the returned function is called.
func (w *wire) bound(ctx context.Context) (unbound func()) {
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

func (w *wire) authenticate(a *account) error {
	exchange := scramExchange{user: a.scram}
	for {
		kind, body, err := w.next()
		if err != nil {
			return err
		}
		if kind != 'R' || len(body) < 4 {
			return fmt.Errorf("got a message of type %q, want authentication", kind)
		}
		var answer pgproto3.FrontendMessage
		switch how := binary.BigEndian.Uint32(body); how {
		case pgproto3.AuthTypeOk:
			return nil
		case pgproto3.AuthTypeSASL:
			answer = &pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: exchange.first()}
		case pgproto3.AuthTypeSASLContinue:
			data, err := exchange.answer(string(body[4:]))
			if err != nil {
				return err
			}
			answer = &pgproto3.SASLResponse{Data: data}
		case pgproto3.AuthTypeSASLFinal:
			if err := exchange.check(string(body[4:])); err != nil {
				return err
			}
			continue
		default:
			return fmt.Errorf("the server requires authentication of type %d, but the clients support only SCRAM-SHA-256 and trust", how)
		}
		if err := w.send(answer); err != nil {
			return err
		}
	}
}

func (w *wire) send(messages ...pgproto3.FrontendMessage) error {
	b, err := encodeAll(messages...)
	if err != nil {
		return err
	}
	_, err = w.conn.Write(b)
	return err
}

func encodeAll(messages ...pgproto3.FrontendMessage) (b []byte, err error) {
	for _, m := range messages {
		if b, err = m.Encode(b); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// next returns the next message, valid until the next call. If the server sends an error, next returns it as an error.
func (w *wire) next() (kind byte, body []byte, err error) {
	if err := w.need(5); err != nil {
		return 0, nil, err
	}
	kind = w.buf[w.begin]
	n := int(binary.BigEndian.Uint32(w.buf[w.begin+1:])) + 1
	if n < 5 || n > 1<<26 {
		return 0, nil, fmt.Errorf("a message of type %q is %d bytes long", kind, n)
	}
	if err := w.need(n); err != nil {
		return 0, nil, err
	}
	body = w.buf[w.begin+5 : w.begin+n]
	w.begin += n
	if kind == 'E' {
		return 0, nil, serverError(body)
	}
	return kind, body, nil
}

func serverError(body []byte) error {
	var e pgproto3.ErrorResponse
	if err := e.Decode(body); err != nil {
		return fmt.Errorf("the server sent an error that can't be decoded: %w", err)
	}
	return pgconn.ErrorResponseToPgError(&e)
}

// need reads until n bytes are available.
func (w *wire) need(n int) error {
	if w.end-w.begin >= n {
		return nil
	}
	if w.begin+n > len(w.buf) {
		to := w.buf
		if n > len(to) {
			to = make([]byte, max(n, 2*len(to)))
		}
		copy(to, w.buf[w.begin:w.end])
		w.buf, w.begin, w.end = to, 0, w.end-w.begin
	}
	for w.end-w.begin < n {
		got, err := w.conn.Read(w.buf[w.end:])
		if w.end += got; err != nil && w.end-w.begin < n {
			return err
		}
	}
	return nil
}

// until reads up to the first message of a kind, and returns its body.
func (w *wire) until(kind byte) ([]byte, error) {
	for {
		got, body, err := w.next()
		if err != nil || got == kind {
			return body, err
		}
	}
}

// ready reads up to the end of the answer.
func (w *wire) ready() error {
	_, err := w.until('Z')
	return err
}

// query runs a simple query and discards its rows.
func (w *wire) query(sql string) error {
	if err := w.send(&pgproto3.Query{String: sql}); err != nil {
		return err
	}
	return w.ready()
}

func (w *wire) listen(channel string) error {
	if err := w.query("LISTEN " + pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	return nil
}

// rest returns the bytes that were read but not used.
func (w *wire) rest() []byte { return w.buf[w.begin:w.end] }

// hangUp closes the connection without leaving its port in TIME_WAIT: there may be too few ports for so many clients.
func (w *wire) hangUp() {
	_ = w.send(&pgproto3.Terminate{})
	w.reset()
}

// reset closes the connection without a Terminate message.
func (w *wire) reset() {
	if tcp, ok := w.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	w.conn.Close()
}

// refusedBy reports whether an error is the server's answer, or its refusal of the connection.
func refusedBy(err error) bool {
	var answer *pgconn.PgError
	var network *net.OpError
	return errors.As(err, &answer) || errors.As(err, &network) && network.Op == "dial" && !network.Timeout()
}
