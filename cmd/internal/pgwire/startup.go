package pgwire

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Codes in place of a protocol version.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// startup is what precedes authentication: TLS on request, and the startup message, which names the database. It returns the protocol's version.
func (c *conn) startup(ctx context.Context, until time.Time) (version uint32, err error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	keepAlive(c.raw)
	c.setReadDeadline(until)
	version, params, err := c.negotiate(ctx)
	if err == nil {
		err = c.admit()
	}
	if err == nil {
		err = c.begins(version, params)
	}
	return version, err
}

// admit refuses connections that the server does not serve, whoever they are.
func (c *conn) admit() error {
	if c.server.over() {
		c.server.stats.refused.Add(1)
		return errorf(tooManyConnections, "sorry, too many clients already").hint("This hub serves all that it may: connect to another one.")
	}
	if c.server.config.RequireTLS && !c.encrypted() {
		return errorf(badAuthorization, "this hub accepts only connections with TLS").hint("Add sslmode=require.")
	}
	return nil
}

// login turns a connection into a session.
func (c *conn) login(ctx context.Context, until time.Time, version uint32) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := c.authenticate(ctx); err != nil {
		if c.stopping() {
			return err
		}
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, errEnding) {
			return err // psql only checks whether a password is needed, and reconnects with one
		}
		c.server.stats.authFailed.Add(1)
		c.server.turnedAway(err, "client", c.remote(), "user", cut(c.user, 64))
		return err
	}
	c.door.strangers.leave(c)
	c.server.stats.authenticated.Add(1)
	c.pid = c.door.nextPID.Add(1) // unique over all its databases
	c.loggedIn.Store(true)
	c.send(&pgproto3.AuthenticationOk{})
	c.tell(true)
	// Nothing that runs here can be cancelled, so the key is never compared.
	key := make([]byte, map[bool]int{true: 32, false: 4}[version >= pgproto3.ProtocolVersion32])
	randomBytes(key)
	c.send(&pgproto3.BackendKeyData{ProcessID: c.pid, SecretKey: key})
	c.setReadDeadline(time.Time{})
	c.ready()
	return nil
}

// setReadDeadline sets it, unless a server is stopping and has set its own.
func (c *conn) setReadDeadline(t time.Time) {
	_ = c.raw.SetReadDeadline(t)
	if c.stopping() {
		_ = c.raw.SetReadDeadline(time.Unix(1, 0))
	}
}

// keepAlive detects within two minutes that a silent client has disconnected.
func keepAlive(raw net.Conn) {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 60 * time.Second, Interval: 15 * time.Second, Count: 4})
	}
}

func randomBytes(b []byte) { _, _ = rand.Read(b) } // it never fails

func (c *conn) encrypted() bool {
	_, ok := c.net.(*tls.Conn)
	return ok
}

const maxName = 255 // bytes, of a user or a database

// negotiate reads up to the startup message, and returns its parameters.
func (c *conn) negotiate(ctx context.Context) (version uint32, params map[string]string, err error) {
	first, err := c.in.peek()
	if err != nil {
		return 0, nil, err
	}
	if first == 0x16 { // a TLS handshake: sslnegotiation=direct
		if err := c.direct(ctx); err != nil {
			return 0, nil, err
		}
	}
	for range 3 { // an SSLRequest, a GSSENCRequest, a startup message
		body, err := c.in.startup()
		if err != nil {
			return 0, nil, err
		}
		code := binary.BigEndian.Uint32(body)
		switch {
		case code == cancelRequest:
			return 0, nil, io.EOF
		case code == sslRequest && c.server.config.TLS != nil && !c.encrypted():
			if err := c.upgrade(ctx); err != nil {
				return 0, nil, err
			}
		case code == sslRequest || code == gssRequest:
			if err := c.refuse(); err != nil {
				return 0, nil, err
			}
		case code>>16 == 3:
			params, err := parameters(body[4:])
			return code, params, err
		default:
			return 0, nil, errorf(unsupported, "unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", code>>16, code&0xFFFF)
		}
	}
	return 0, nil, errorf(protocolViolation, "expected a startup packet")
}

// refuse answers that the requested encryption is not available.
func (c *conn) refuse() error {
	c.answer = append(c.buffer(), 'N')
	c.flush()
	return nil
}

// parameters parses a startup message's parameters.
func parameters(b []byte) (map[string]string, error) {
	params := map[string]string{}
	for {
		name, rest, ok := bytes.Cut(b, []byte{0})
		if !ok {
			break
		}
		if len(name) == 0 {
			if len(rest) > 0 {
				break
			}
			return params, nil
		}
		value, rest, ok := bytes.Cut(rest, []byte{0})
		if !ok {
			break
		}
		if !isText(string(name)) || !isText(string(value)) {
			return nil, errorf(badEncoding, "invalid byte sequence for encoding \"UTF8\" in the startup packet")
		}
		params[string(name)] = string(value)
		b = rest
	}
	return nil, errorf(protocolViolation, "invalid startup packet layout: expected terminator as last byte")
}

// begins applies the startup message's parameters, and answers which of them, or which protocol version, are not supported.
func (c *conn) begins(version uint32, params map[string]string) error {
	c.user = params["user"]
	if c.user == "" {
		return errorf(badAuthorization, "no PostgreSQL user name specified in startup packet")
	}
	if len(c.user) > maxName || len(params["database"]) > maxName {
		return errorf(badAuthorization, "user and database have names of at most %d bytes", maxName)
	}
	if c.database = params["database"]; c.database == "" {
		c.database = c.user
	}
	if err := c.enter(); err != nil {
		return err
	}
	if only := c.server.config.Database; only != "" && c.database != only {
		return errorf(noSuchDatabase, "database \"%s\" does not exist here", cut(c.database, 64)).hint("This hub serves the database \"" + only + "\".")
	}
	if replication := params["replication"]; replication != "" {
		if on, err := boolType.cast(&replication); err != nil || *on == "t" {
			return errorf(unsupported, "this endpoint does not replicate").hint("Connect to the database itself.")
		}
	}
	var unknown []string
	start := map[string]string{}
	set := func(name, v string) error {
		name = canonical(name)
		checked, err := checkSetting(name, &v)
		if err != nil {
			return err
		}
		if start[name] = *checked; *checked == defaults[name] {
			delete(start, name)
		}
		return nil
	}
	for _, option := range optionSettings(params["options"]) {
		if err := set(option[0], option[1]); err != nil {
			return err
		}
	}
	for name, v := range params {
		switch name {
		case "user", "database", "replication", "options":
			continue
		}
		if strings.HasPrefix(name, "_pq_.") {
			unknown = append(unknown, name)
			continue
		}
		if err := set(name, v); err != nil {
			return err
		}
	}
	if len(start) > 0 {
		c.settings.start = start
	}
	if newest := uint32(pgproto3.ProtocolVersion32); version > newest || len(unknown) > 0 {
		c.send(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: min(version, newest), UnrecognizedOptions: unknown})
	}
	return nil
}

// optionSettings returns the settings in command line options: -c name=value, -cname=value and --name=value. A backslash escapes the next
// character. Other options are ignored.
func optionSettings(options string) (settings [][2]string) {
	var words []string
	var word strings.Builder
	begun := false
	for i := 0; i < len(options); i++ {
		switch ch := options[i]; {
		case ch == '\\' && i+1 < len(options):
			i++
			word.WriteByte(options[i])
			begun = true
		case isSpace(ch):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteByte(ch)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	for i := 0; i < len(words); i++ {
		text, ok := strings.CutPrefix(words[i], "--")
		if !ok {
			text, ok = strings.CutPrefix(words[i], "-c")
			if ok && text == "" && i+1 < len(words) {
				i++
				text = words[i]
			}
		}
		if name, v, found := strings.Cut(text, "="); ok && found {
			settings = append(settings, [2]string{strings.ReplaceAll(name, "-", "_"), v})
		}
	}
	return settings
}

func (c *conn) userName() string     { return c.user }
func (c *conn) databaseName() string { return c.database }

func (c *conn) version() string {
	return "PostgreSQL " + c.server.config.ServerVersion + " (Weir: this endpoint only listens and notifies)"
}
