package pgwire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/rate"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// conn is one client's connection. One goroutine, serve's, reads and answers; the hub's goroutines write notifications in between, through
// Deliver. It is small, because there are very many, and most are idle.
type conn struct {
	door     *Server // which accepted it
	server   *Server // which serves it: that of its database, from before it authenticates; otherwise the door
	raw      net.Conn
	net      net.Conn // raw, with TLS if there is any
	in       reader
	pid      uint32
	since    time.Time
	user     string
	database string
	rights   atomic.Pointer[rights]
	policies uint64 // version of the policies that were last checked; only Recheck uses it
	settings settings
	told     settings // as last reported to the client

	pace rate.Cell // of statements and messages; only this goroutine uses it

	tx            transaction
	prepared      map[string]*prepared
	preparedBytes int
	portals       map[string]*portal
	skipping      bool // until Sync
	subscriber    *hub.Subscriber

	answer []byte // messages not written yet; nil between queries

	loggedIn atomic.Bool // pid and user are final
	shed     atomic.Bool // it was ended before it had logged in, to make room for another

	closing atomic.Bool // it is being ended: only the reason is written from now on

	out      sync.Mutex // guards the fields below, and writing
	listens  map[string]struct{}
	deadline time.Time
	held     []byte
	holding  bool // a query is being answered, or a transaction is open: notifications wait
	broken   bool // a message may have been written partly

	unlistened bool // from some channel, whose queued messages may still arrive
}

var errEnding = errors.New("the connection is being ended")

// write writes whole messages. The caller holds out.
func (c *conn) write(b []byte) error {
	if c.broken || c.closing.Load() {
		return errEnding
	}
	// Setting a deadline has a cost, so one that is still far enough away is kept.
	now := time.Now()
	if wait := c.server.config.WriteTimeout; c.deadline.Sub(now) < wait/2 {
		c.deadline = now.Add(wait)
		if err := c.net.SetWriteDeadline(c.deadline); err != nil {
			return err
		}
		if c.closing.Load() { // it may have overwritten cutOff's deadline
			return errEnding
		}
	}
	_, err := c.net.Write(b)
	if err != nil {
		c.broken = true
	}
	return err
}

var answers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

const largeAnswer = 64 << 10 // bytes from which an answer is written before it is complete, and its buffer is not kept

// buffer returns the answer so far, to append to.
func (c *conn) buffer() []byte {
	if c.answer == nil {
		c.answer = (*answers.Get().(*[]byte))[:0]
	}
	return c.answer
}

// send appends a message to the answer.
func (c *conn) send(m pgproto3.BackendMessage) {
	b, err := m.Encode(c.buffer())
	if err != nil { // longer than a gigabyte
		return
	}
	if c.answer = b; len(b) > largeAnswer {
		c.flush()
	}
}

// flush writes the answer so far.
func (c *conn) flush() {
	c.out.Lock()
	defer c.out.Unlock()
	c.flushLocked()
}

// flushLocked does it for a caller that holds out. A write error shows when the next message is read.
func (c *conn) flushLocked() {
	if len(c.answer) > 0 {
		if err := c.write(c.answer); err != nil && !c.closing.Load() {
			c.raw.Close()
		}
	}
	if b := c.answer; cap(b) > 0 && cap(b) <= largeAnswer {
		answers.Put(&b)
	}
	c.answer = nil
}

// ready ends the answer to a query, and resumes notifications if no transaction is open.
func (c *conn) ready() {
	if c.told.version != c.settings.version {
		c.tell(false)
	}
	answer := c.buffer()
	c.out.Lock()
	release := c.holding && c.tx.status == idle
	if release {
		answer = append(answer, c.held...)
		c.holding, c.held = false, nil
	}
	c.answer = append(answer, 'Z', 0, 0, 0, 5, c.tx.status)
	c.flushLocked()
	c.out.Unlock()
	if release && c.subscriber != nil {
		c.subscriber.Continue()
	}
}

// tell sends the settings that PostgreSQL reports to clients: all, or those that have changed.
func (c *conn) tell(all bool) {
	for _, name := range reported {
		now, err := c.settingIn(&c.settings, name)
		if err != nil {
			continue
		}
		if was, _ := c.settingIn(&c.told, name); all || now != was {
			c.send(&pgproto3.ParameterStatus{Name: name, Value: now})
		}
	}
	c.told = c.settings
}

// fail answers with an error, which ends the transaction or marks it as failed.
func (c *conn) fail(err error) {
	c.abort()
	c.send(asError(err).response("ERROR"))
}

func (c *conn) warn(code, message string) {
	c.send(&pgproto3.NoticeResponse{Severity: "WARNING", SeverityUnlocalized: "WARNING", Code: code, Message: message})
}

// cutOff ends the connection. It sends the reason, if there is one, unless the client does not read it promptly. It makes a blocked
// write return. It may be called from any goroutine, and more than once.
func (c *conn) cutOff(reason *Error) {
	if !c.closing.CompareAndSwap(false, true) {
		return
	}
	_ = c.raw.SetWriteDeadline(time.Now().Add(lastWords))
	c.out.Lock()
	if reason != nil && !c.broken {
		if b, err := reason.response("FATAL").Encode(nil); err == nil {
			_ = c.raw.SetWriteDeadline(time.Now().Add(lastWords))
			_, err = c.net.Write(b)
			c.broken = err != nil
		}
	}
	if tcp, ok := c.raw.(*net.TCPConn); ok && c.broken {
		_ = tcp.SetLinger(0) // the kernel need not keep what the client has not read
	}
	c.broken = true
	c.out.Unlock()
	c.net.Close()
}

func (c *conn) remote() string { return c.raw.RemoteAddr().String() }

// serve is the connection's goroutine.
func (c *conn) serve() {
	defer c.raw.Close()
	until := time.Now().Add(c.door.config.AuthTimeout)
	version, err := c.startup(c.door.work, until)
	ctx := c.server.workFrom(c.door)
	if err == nil {
		err = c.login(ctx, until, version)
	}
	for err == nil {
		var kind byte
		var body []byte
		if kind, body, err = c.in.message(c.server.maxMessage); err == nil {
			err = c.handle(ctx, kind, body)
		}
	}
	c.leave(err)
}

// stopping reports whether a server that the connection belongs to is stopping. Either has set the read deadline then.
func (c *conn) stopping() bool { return c.door.stopping.Load() || c.server.stopping.Load() }

// slowDown waits until the connection may send another statement. Waiting, rather than refusing, breaks no client: what it sends next waits in its own
// connection.
func (c *conn) slowDown(ctx context.Context) {
	limit := rate.Limit{PerSecond: c.server.config.StatementRate, Burst: int(10 * c.server.config.StatementRate)}
	for waited := false; ; waited = true {
		wait := c.pace.Take(limit, 1)
		if wait == 0 {
			return
		}
		if !waited {
			c.server.stats.delayed.Add(1)
		}
		if !sleep.For(ctx, wait) {
			return // the server stops
		}
	}
}

// leave ends the connection after an error, which may be that the client has disconnected.
func (c *conn) leave(err error) {
	if c.subscriber != nil {
		c.subscriber.Leave()
	}
	var told *Error
	switch {
	case errors.As(err, &told):
		c.cutOff(told)
	case errors.Is(err, os.ErrDeadlineExceeded) && c.stopping():
		c.cutOff(errStopping)
	default:
		c.cutOff(nil)
	}
}

// handle answers one message. An error ends the connection.
func (c *conn) handle(ctx context.Context, kind byte, body []byte) error {
	var m pgproto3.FrontendMessage
	switch kind {
	case 'Q':
		m = &pgproto3.Query{}
	case 'P':
		m = &pgproto3.Parse{}
	case 'B':
		m = &pgproto3.Bind{}
	case 'D':
		m = &pgproto3.Describe{}
	case 'E':
		m = &pgproto3.Execute{}
	case 'C':
		m = &pgproto3.Close{}
	case 'H':
		m = &pgproto3.Flush{}
	case 'S':
		m = &pgproto3.Sync{}
	case 'F':
		if !c.skipping {
			c.fail(errorf(unsupported, "function calls are not supported here").hint("Use SELECT pg_notify(...)."))
			c.ready()
		}
		return nil
	case 'd', 'c', 'f': // of a failed COPY: PostgreSQL ignores them too
		return nil
	case 'X':
		return io.EOF
	default:
		return errorf(protocolViolation, "invalid frontend message type %d", kind)
	}
	if kind == 'P' || kind == 'B' || kind == 'D' || kind == 'C' { // statements are counted when they are executed
		c.slowDown(ctx)
	}
	if err := m.Decode(body); err != nil {
		return errorf(protocolViolation, "invalid message format: %v", err)
	}
	if !c.holding { // only this goroutine writes it
		c.hold()
	}
	if q, ok := m.(*pgproto3.Query); ok {
		if !c.skipping {
			c.query(ctx, q.String)
		}
		return nil
	}
	c.extended(ctx, m)
	return nil
}
