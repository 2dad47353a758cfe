// Package embedded runs a private PostgreSQL server, for weir dev, benchmarks and tests.
//
// The server is a child of this process and lives no longer than it. It listens on 127.0.0.1 alone,
// asks for a random password, and keeps everything it has in one directory:
//
//	data/          the cluster
//	password       of the superuser, mode 0600
//	postgres.log   what the server said, of all its runs
//	lock           held while a process runs the server
//
// A server can have standbys, and they can have theirs: see [Server.Standby].
//
// The binaries are fetched once per user and version, and shared by all processes. Set WEIR_POSTGRES to
// a directory with bin/postgres and bin/initdb (such as /usr/lib/postgresql/18) to use installed ones,
// wherever no major version is asked for, or theirs.
//
// PostgreSQL refuses to run as root. Started by root, the server runs as an unprivileged user, and its
// binaries lie where that user can reach them but only root can write.
//
// Start it, use it, stop it:
//
//	server, err := embedded.Start(ctx, embedded.Config{Dir: ".weir"})
//	...
//	defer server.Stop(context.Background())
//	pool, err := pgxpool.New(ctx, server.URL("postgres"))
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	superuser    = "postgres"
	host         = "127.0.0.1"
	defaultMajor = 18
)

// Config says which server to start. Dir alone is required.
type Config struct {
	// Dir holds the server's data, log and password. It is created where absent, and what an earlier
	// server left in it is used again.
	Dir string

	// Major is the major version of PostgreSQL, 14 to 18. The default is that of WEIR_POSTGRES, or else 18.
	Major int

	// Binaries is a directory with bin/postgres and bin/initdb, such as /usr/lib/postgresql/18. The default is as the package says.
	Binaries string

	// Port to listen on. The default, 0, takes a free one.
	Port int

	// Parameters are server settings, such as "max_connections": "200". They are given on the command
	// line, so they win over postgresql.conf and ALTER SYSTEM.
	Parameters map[string]string

	// Fast gives up safety against a crash of the machine (fsync and full_page_writes are off). A crash
	// of the server alone loses nothing. For tests; the default is false.
	Fast bool

	// Fetch downloads a version, such as 18.1.0, and unpacks it into a directory. It is called where the binaries are needed and not there;
	// without it that is an error. The command's is cmd/internal/binaries.Fetch, that of tests is pgtest.Fetch.
	Fetch func(ctx context.Context, version, into string, progress func(done, total int64)) error

	// Progress, where set, is told how many bytes of the binaries have been downloaded. The total is -1
	// where it is unknown. It is not called when there is nothing to download.
	Progress func(done, total int64)
}

// Server is a running, stopped or killed PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	config   Config // with the defaults filled in
	binaries string // directory that holds bin/postgres
	data     string // data directory, free of symbolic links
	password string
	owner    *owner // nil: the server runs as this process's user

	upstream *Server                                                    // of a standby: the server that it streams from
	fill     func(ctx context.Context, data string, owner *owner) error // of a standby: fills its data directory; nil runs initdb

	mu      sync.Mutex
	lock    io.Closer // nil while stopped
	process *process  // nil while stopped
}

// Start starts a server, and returns when it accepts connections. The context bounds the start alone.
func Start(ctx context.Context, c Config) (*Server, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	if c.Dir == "" {
		return nil, errors.New("start postgres: Config.Dir is empty: name a directory for the server's data")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	c.Dir = dir
	s := &Server{config: c}
	if s.binaries, s.config.Major, err = findBinaries(ctx, c); err != nil {
		return nil, err
	}
	if err := s.Restart(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// URL returns the connection string of a database for the superuser. It contains the password.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort(host, strconv.Itoa(s.Port())),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the port that the server listens on. It stays the same over Restart.
func (s *Server) Port() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config.Port
}

// PID returns the process id of the postmaster, or 0 while the server is stopped.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid()
}

// Stop shuts the server down as pg_ctl's fast mode does: sessions are cut off, their transactions rolled
// back, and everything is written out. When ctx ends first, the server is stopped at once instead, and
// recovers when it is next started. In any case the server is gone when Stop returns. Stopping a stopped
// server does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	defer s.release()
	s.process.interrupt()
	select {
	case <-s.process.done:
	case <-ctx.Done():
		s.process.quit()
		select {
		case <-s.process.done:
		case <-time.After(10 * time.Second): // the postmaster itself kills its children after 5
			s.process.kill()
			<-s.process.done
		}
		return fmt.Errorf("stop postgres in %s: %w: it was cut off, and recovers when it is next started", s.config.Dir, ctx.Err())
	}
	if err := s.process.err; err != nil {
		return fmt.Errorf("stop postgres in %s: %w: see %s", s.config.Dir, err, s.logPath())
	}
	return nil
}

// Kill ends the postmaster by SIGKILL, as the kernel does when memory runs out, and waits until its
// children have noticed and are gone too, so that Restart finds the shared memory free. Killing a stopped
// server does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	defer s.release()
	s.process.kill()
	<-s.process.done
	// A backend notices the postmaster's death when it next waits for something. One that computes
	// notices only after that.
	const bound = 30 * time.Second
	select {
	case <-s.process.gone:
		return nil
	case <-time.After(bound):
		return fmt.Errorf("kill postgres in %s: backends still run %v after the postmaster's death: wait for their statements to end before Restart", s.config.Dir, bound)
	}
}

// Restart starts the server again after Stop or Kill, on the same port and data. The context bounds the
// start alone.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		select {
		case <-s.process.done: // it died by itself
			s.release()
		default:
			return fmt.Errorf("restart postgres in %s: it runs (pid %d): stop it first", s.config.Dir, s.process.pid())
		}
	}
	if err := s.start(ctx); err != nil {
		s.release()
		return err
	}
	return nil
}

// Remove deletes a server's directory and all its data, if it is there. It refuses while the server runs.
func Remove(ctx context.Context, dir string) error {
	lock, err := lockDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody has swept up
	}
	if err != nil {
		return fmt.Errorf("remove postgres: %w", err)
	}
	defer lock.Close()
	// Where the data had to lie elsewhere, it has a directory of its own there.
	data := filepath.Join(dir, "data")
	elsewhere, notLinked := os.Readlink(data)
	if notLinked == nil {
		data = elsewhere
	}
	if err := waitForPredecessor(ctx, data); err != nil {
		return fmt.Errorf("remove postgres: %w", err)
	}
	if notLinked == nil {
		if err := os.RemoveAll(filepath.Dir(elsewhere)); err != nil {
			return fmt.Errorf("remove postgres: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove postgres: %w", err)
	}
	return nil
}

// release gives the directory back. It is called with mu held, when no process runs in it any more.
func (s *Server) release() {
	s.process = nil
	if s.lock != nil {
		s.lock.Close()
		s.lock = nil
	}
}

func (s *Server) logPath() string { return filepath.Join(s.config.Dir, "postgres.log") }

// start is called with mu held.
func (s *Server) start(ctx context.Context) error {
	// Others may pass through, so that an unprivileged server reaches data/; each file has a mode of its own.
	if err := os.MkdirAll(s.config.Dir, 0o711); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	var err error
	if s.lock, err = lockDir(s.config.Dir); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	wanted := s.config.Port
	if err := s.prepareData(ctx); err != nil {
		return err
	}
	if err := waitForPredecessor(ctx, s.data); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	for attempt := 1; ; attempt++ {
		if wanted == 0 {
			if s.config.Port, err = freePort(); err != nil {
				return err
			}
		} else if err := probePort(wanted); err != nil {
			return fmt.Errorf("start postgres: port %d on %s is in use (%w): stop what listens there, or choose another port", wanted, host, err)
		}
		err = s.launch(ctx)
		if err == nil {
			return nil
		}
		// Between the probe and the start somebody else may have taken a port that we chose.
		if wanted != 0 || attempt == 5 || ctx.Err() != nil || probePort(s.config.Port) == nil {
			return err
		}
	}
}

// launch starts the postmaster and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer log.Close() // the server has its own descriptor
	said, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	p, err := startProcess(filepath.Join(s.binaries, "bin", "postgres"), s.arguments(), log, s.owner)
	if err != nil {
		return fmt.Errorf("start postgres%s: %w", s.owner.as(), err)
	}
	if err := s.waitReady(ctx, p, said); err != nil {
		p.quit()
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			p.kill()
			<-p.done
		}
		return err
	}
	s.process = p
	return nil
}

func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        host,
		"port":                    strconv.Itoa(s.config.Port),
		"unix_socket_directories": "",
		"logging_collector":       "off",
		"log_destination":         "stderr",
	}
	if s.config.Fast {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, s.config.Parameters)
	args := []string{"-D", s.data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// waitReady polls with real connections until one succeeds, the server ends, or ctx does. Recovery after a crash may take
// long, so a server that says it is starting up gets the time it needs.
func (s *Server) waitReady(ctx context.Context, p *process, said int64) error {
	const silence = 60 * time.Second // without any answer
	var (
		last  error
		heard = time.Now()
	)
	config, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=postgres sslmode=disable connect_timeout=5",
		host, s.config.Port, superuser))
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	config.Password = s.password
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		select {
		case <-p.done:
			return fmt.Errorf("start postgres: it ended at once: %s: the whole log is %s", s.lastWords(said, p.err), s.logPath())
		case <-ctx.Done():
			return fmt.Errorf("start postgres in %s: it does not answer yet: %w", s.config.Dir, errors.Join(ctx.Err(), last))
		case <-time.After(wait):
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			_ = conn.Close(ctx) // it was only to see whether the server answers
			return nil
		}
		last = err
		var answer *pgconn.PgError
		if errors.As(err, &answer) {
			heard = time.Now()
			switch answer.Code {
			case "28P01": // invalid_password
				return fmt.Errorf("start postgres: the password in %s is not this server's: restore the file, or delete %s to start empty",
					s.passwordPath(), s.config.Dir)
			case "57P03": // cannot_connect_now: starting up, or in recovery
			default:
				return fmt.Errorf("start postgres: %w", err)
			}
		}
		if time.Since(heard) > silence {
			return fmt.Errorf("start postgres on port %d: no answer in %v: %w: see %s", s.config.Port, silence, err, s.logPath())
		}
	}
}

// lastWords returns the reason that the server gave in its log since the offset said, or else how its process ended.
func (s *Server) lastWords(said int64, ended error) string {
	text, err := os.ReadFile(s.logPath())
	if err == nil && int64(len(text)) > said {
		lines := strings.Split(strings.TrimSpace(string(text[said:])), "\n")
		for _, line := range lines {
			if _, words, ok := strings.Cut(line, "FATAL:"); ok {
				return strings.TrimSpace(words)
			}
		}
		return lines[len(lines)-1]
	}
	if ended != nil {
		return ended.Error()
	}
	return "it gave no reason"
}
