package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// listeners are those of a process. Each is nil if there is none.
type listeners struct {
	pgListener, httpListener, adminListener, uiListener net.Listener
}

// listen opens the listeners.
func (l *listeners) listen(ctx context.Context, c Config, log *slog.Logger) (err error) {
	var config net.ListenConfig
	if c.ListenPG != "" {
		if l.pgListener, err = config.Listen(ctx, "tcp", c.ListenPG); err != nil {
			return cannotListen("listen for the wire protocol", err)
		}
		if c.PGAuth == Trust && !loopback(l.pgListener.Addr()) {
			return fmt.Errorf("trust accepts every client, and %s can be reached from other machines: listen on 127.0.0.1, or choose another authentication method", l.pgListener.Addr())
		}
	}
	if c.ListenHTTP != "" {
		if l.httpListener, err = config.Listen(ctx, "tcp", c.ListenHTTP); err != nil {
			return cannotListen("listen for HTTP", err)
		}
		if c.Web.Anonymous && c.Web.Authorizer == nil && !loopback(l.httpListener.Addr()) {
			if len(c.Web.Hosts) == 0 {
				return fmt.Errorf("%s would accept every client, and foreign web pages could pass for its own: name the hosts that clients connect to with --host, or listen on 127.0.0.1", l.httpListener.Addr())
			}
			log.Warn("weir: anyone who can reach this address may subscribe and publish", "address", l.httpListener.Addr())
		}
	}
	if c.ListenAdmin != "" {
		if l.adminListener, err = config.Listen(ctx, "tcp", c.ListenAdmin); err != nil {
			return fmt.Errorf("listen for operators: %w", err)
		}
	}
	return l.listenUI(ctx, c.UI)
}

// close closes the listeners.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.pgListener, l.httpListener, l.adminListener, l.uiListener} {
		if one != nil {
			_ = one.Close()
		}
	}
}

// PGAddr returns the address of the wire protocol, or nil.
func (l *listeners) PGAddr() net.Addr { return address(l.pgListener) }

// HTTPAddr returns the address of HTTP, or nil.
func (l *listeners) HTTPAddr() net.Addr { return address(l.httpListener) }

// AdminAddr returns the address for operators, or nil.
func (l *listeners) AdminAddr() net.Addr { return address(l.adminListener) }

func address(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// auth returns how clients of the wire protocol authenticate.
func (s *Server) auth(ctx context.Context) (pgwire.Auth, error) {
	switch s.config.PGAuth {
	case SCRAM, "":
		// On its own connection, so that password guessing does not use up the connections for ticks.
		pool, err := s.pool(ctx, s.config.Database, 1, "weir hub logins")
		if err != nil {
			return nil, err
		}
		from := store.New(pool, 0)
		s.roster = pgwire.NewRoster(func(ctx context.Context) (map[string]pgwire.Login, error) { return s.logins(ctx, from) })
		_ = s.roster.Check(ctx) // logs errors itself
		return s.roster, nil
	case UsersFile:
		if s.config.UsersFile == "" {
			return nil, errors.New("authentication by users file requires the file: give UsersFile")
		}
		users, err := pgwire.ReadUsersFile(s.config.UsersFile, []byte(s.secret), s.log)
		if err != nil {
			return nil, err
		}
		s.roster = users.Roster
		return users, nil
	case Trust:
		return pgwire.Trust, nil
	}
	return nil, fmt.Errorf("%q is not a valid authentication method: use scram, users-file or trust", s.config.PGAuth)
}

const loginsFix = "give --pg-auth users-file and --users-file (not with --list), or --listen-pg \"\", or let a superuser grant, in this database, SELECT on pg_catalog.pg_authid to the owner of the schema weir"

// refusals records which problems with roles have been logged. Only the roster's query uses it, of which there is one at a time.
type refusals struct {
	at    time.Time // when it was last logged that roles can't be read; zero: they can
	times int       // failures since then
	roles string    // roles whose channels can't be read
}

// sayEvery is how often a persistent problem is logged again.
const sayEvery = time.Minute

// logins returns the roles of the database as users.
func (s *Server) logins(ctx context.Context, from *store.Store) (map[string]pgwire.Login, error) {
	all, err := from.Logins(ctx)
	said := &s.refusals
	if err != nil {
		if said.times++; time.Since(said.at) >= sayEvery {
			args := []any{"error", err, "times", said.times}
			if store.IsDenied(err) {
				args = append(args, "fix", loginsFix)
			}
			s.log.Error("weir: no client of the wire protocol can log in: the hub can't read the roles that may", args...)
			said.at, said.times = time.Now(), 0
		}
		return nil, err
	}
	if !said.at.IsZero() {
		s.log.Warn("weir: clients of the wire protocol can log in again")
		said.at, said.times = time.Time{}, 0
	}
	users := make(map[string]pgwire.Login, len(all))
	var unread []string
	for _, l := range all {
		listen, err := channels(l.Listens)
		if err == nil {
			var notify []hub.Filter
			notify, err = channels(l.Notifies)
			users[l.Name] = pgwire.Login{Verifier: l.Verifier, Listen: listen, Notify: notify}
		}
		if err != nil {
			unread = append(unread, fmt.Sprintf("%s: %v", l.Name, err))
			delete(users, l.Name)
		}
	}
	if roles := strings.Join(unread, "; "); roles != said.roles {
		said.roles = roles
		s.log.Warn("weir: roles can't log in because their channels can't be read: see weir.restrict", "roles", roles)
	}
	return users, nil
}

// channels parses the channels that a role is restricted to; nil: not restricted.
func channels(all []string) ([]hub.Filter, error) {
	if all == nil {
		return pgwire.Everything(), nil
	}
	return hub.ParseFilters(all)
}

// tlsConfig returns a configuration with the files' certificate, which is reloaded on change.
func (c Config) tlsConfig() (*tls.Config, error) {
	if c.TLSCert == "" && c.TLSKey == "" {
		if c.RequireTLS {
			return nil, errors.New("TLS is required, but no certificate is set: give the certificate and key files")
		}
		return nil, nil
	}
	from := &certificate{cert: c.TLSCert, key: c.TLSKey}
	if _, err := from.get(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: from.get}, nil
}

type certificate struct {
	cert, key string

	mu     sync.Mutex
	loaded *tls.Certificate
	at     time.Time // modification time of the newer file when loaded
	looked time.Time
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && time.Since(c.looked) < time.Second {
		return c.loaded, nil
	}
	c.looked = time.Now()
	at, err := newest(c.cert, c.key)
	if err == nil && (c.loaded == nil || !at.Equal(c.at)) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.cert, c.key); err == nil {
			c.loaded, c.at = &pair, at
		}
	}
	if c.loaded != nil {
		return c.loaded, nil // while files are being replaced, certificate and key may not match for a moment
	}
	return nil, fmt.Errorf("read the certificate: %w", err)
}

func newest(paths ...string) (at time.Time, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return at, err
		}
		if info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	return at, nil
}

// cannotListen adds what to do to the error of a listener.
func cannotListen(what string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s: %w: another hub, such as weir dev's, may have the address", what, err)
	}
	return fmt.Errorf("%s: %w: name an address of this machine and a free port, as in 127.0.0.1:8080", what, err)
}
