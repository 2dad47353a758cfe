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

// account is who clients of the wire protocol log in as: the same on PostgreSQL and on a hub.
type account struct {
	home           string // PostgreSQL's own address
	name, database string
	settings       map[string]string
	scram          *scramUser
}

// accountOf is the account of a connection string.
func accountOf(url string) (*account, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if config.Host == "" || config.Host[0] == '/' {
		return nil, fmt.Errorf("bench: clients connect by TCP, and the connection string names the socket in %s: name a host", config.Host)
	}
	return &account{
		home: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), name: config.User, database: config.Database,
		scram: &scramUser{password: config.Password},
	}, nil
}

// with returns the account with other settings of its sessions.
func (a *account) with(settings map[string]string) *account {
	other := *a
	other.settings = settings
	return &other
}

// wire is a connection of the wire protocol that costs next to no CPU time, so that it is the server that is measured. It speaks no
// TLS. One goroutine uses it.
type wire struct {
	conn       net.Conn
	buf        []byte
	begin, end int // of what has been read and not used
}

const loginTimeout = 2 * time.Minute // in a storm clients wait

// login connects client i and logs in. ctx bounds the login alone.
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

// bound makes reads and writes end with ctx, until the function that it returns is called.
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
			return fmt.Errorf("a message of type %q came where authentication was to be", kind)
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
			return fmt.Errorf("the server asks for authentication of type %d: the bench's clients know SCRAM-SHA-256 and trust", how)
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

// next returns the next message, valid until it is called again. An error that the server sends is an error.
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
		return fmt.Errorf("the server sends an error that can't be read: %w", err)
	}
	return pgconn.ErrorResponseToPgError(&e)
}

// need reads until n bytes are there.
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

// until reads up to a message of a kind and returns its body.
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

// query runs a simple query and drops its rows.
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

// rest is what has been read and not used.
func (w *wire) rest() []byte { return w.buf[w.begin:w.end] }

// hangUp closes the connection, and leaves no port waiting for a while: there may be too few of them for so many clients.
func (w *wire) hangUp() {
	_ = w.send(&pgproto3.Terminate{})
	w.reset()
}

// reset closes it without a goodbye.
func (w *wire) reset() {
	if tcp, ok := w.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	w.conn.Close()
}

// refusedBy tells whether an error is the server's answer, or its refusal to take the connection.
func refusedBy(err error) bool {
	var answer *pgconn.PgError
	var network *net.OpError
	return errors.As(err, &answer) || errors.As(err, &network) && network.Op == "dial" && !network.Timeout()
}
