// Package embedded runs a private PostgreSQL server, for weir dev, benchmarks and tests.
//
// The server is a child of this process, and does not outlive it. It listens only on 127.0.0.1, requires a random password, and keeps all
// of its files in one directory:
//
//	data/          the cluster
//	password       the superuser's, mode 0600
//	postgres.log   the server's log, of all its runs
//	lock           held while a process runs the server
//
// A server can have standbys, and standbys can have their own: see [Server.Standby].
//
// The binaries are fetched once per user and version, and shared by all processes. To use installed binaries instead, set WEIR_POSTGRES to
// a directory with bin/postgres and bin/initdb, such as /usr/lib/postgresql/18. They are used if no major version is requested, or theirs
// is.
//
// PostgreSQL refuses to run as root. If root starts it, the server runs as an unprivileged user, and its binaries are in a directory that
// this user can read but only root can write.
//
// Start the server, use it, and stop it:
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

// Config specifies the server to start. Only Dir is required.
type Config struct {
	// Dir holds the server's data, log and password. It is created if it does not exist; if it holds the data of an earlier server, that
	// data is used.
	Dir string

	// Major is the major version of PostgreSQL, 14 to 18. The default is that of WEIR_POSTGRES, or else 18.
	Major int

	// Binaries is a directory with bin/postgres and bin/initdb, such as /usr/lib/postgresql/18. The default is in the package
	// documentation.
	Binaries string

	// Port to listen on. The default, 0, chooses a free one.
	Port int

	// Parameters are server settings, such as "max_connections": "200". They are passed on the command line, so they take precedence over
	// postgresql.conf and ALTER SYSTEM.
	Parameters map[string]string

	// Fast turns off safety against a crash of the machine (fsync and full_page_writes are off). A crash of the server alone loses nothing.
	// It is for tests; the default is false.
	Fast bool

	// Fetch downloads a version, such as 18.1.0, and unpacks it into a directory. It is called if the binaries are needed and missing;
	// without Fetch, that is an error. The command uses cmd/internal/binaries.Fetch, tests use pgtest.Fetch.
	Fetch func(ctx context.Context, version, into string, progress func(done, total int64)) error

	// Progress, if set, is called with the number of bytes of the binaries downloaded so far. The total is -1 if it is unknown. Progress is
	// not called if there is nothing to download.
	Progress func(done, total int64)
}

// Server is a running, stopped or killed PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	config   Config // with defaults filled in
	binaries string // directory that holds bin/postgres
	data     string // data directory, free of symbolic links
	password string
	owner    *owner // nil: the server runs as this process's user

	upstream *Server                                                    // for a standby: the server that it streams from
	fill     func(ctx context.Context, data string, owner *owner) error // for a standby: fills its data directory; nil: run initdb

	mu      sync.Mutex
	lock    io.Closer // nil while stopped
	process *process  // nil while stopped
}

// Start starts a server, and returns when it accepts connections. ctx limits only the start.
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

// URL returns the superuser's connection string for a database. It contains the password.
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

// Port returns the port on which the server listens. Restart keeps it.
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

// Stop shuts the server down as pg_ctl does in fast mode: it ends sessions, rolls their transactions back, and writes everything to disk.
// If ctx ends first, Stop stops the server at once instead, and the server recovers at its next start. In any case the server has ended
// when Stop returns. Stopping a stopped server does nothing.
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
		case <-time.After(10 * time.Second): // the postmaster kills its children itself after 5 s
			s.process.kill()
			<-s.process.done
		}
		return fmt.Errorf("stop postgres in %s: %w: it was stopped at once, and recovers at its next start", s.config.Dir, ctx.Err())
	}
	if err := s.process.err; err != nil {
		return fmt.Errorf("stop postgres in %s: %w: see %s", s.config.Dir, err, s.LogPath())
	}
	return nil
}

// Kill ends the postmaster with SIGKILL, as the kernel does when memory runs out, and waits until its children have noticed and ended too,
// so that Restart finds the shared memory free. Killing a stopped server does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	defer s.release()
	s.process.kill()
	<-s.process.done
	// A backend notices the postmaster's death when it next waits, so one that is computing notices later.
	const bound = 30 * time.Second
	select {
	case <-s.process.gone:
		return nil
	case <-time.After(bound):
		return fmt.Errorf("kill postgres in %s: backends still run %v after the postmaster's death: wait for their statements to end before Restart", s.config.Dir, bound)
	}
}

// Restart starts the server again after Stop or Kill, on the same port and data. ctx limits only the start.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		select {
		case <-s.process.done: // it died on its own
			s.release()
		default:
			return fmt.Errorf("restart postgres in %s: it is running (pid %d): stop it first", s.config.Dir, s.process.pid())
		}
	}
	if err := s.start(ctx); err != nil {
		s.release()
		return err
	}
	return nil
}

// Remove deletes a server's directory and all its data, if it exists. It refuses while the server runs.
func Remove(ctx context.Context, dir string) error {
	lock, err := lockDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process has removed it
	}
	if err != nil {
		return fmt.Errorf("remove postgres: %w", err)
	}
	defer lock.Close()
	// If the data is elsewhere, it has its own directory there.
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

// release releases the directory. It is called with mu held, when no process runs in it any more.
func (s *Server) release() {
	s.process = nil
	if s.lock != nil {
		s.lock.Close()
		s.lock = nil
	}
}

// LogPath returns the file of the server's log.
func (s *Server) LogPath() string { return filepath.Join(s.config.Dir, "postgres.log") }

// start starts the server. It is called with mu held.
func (s *Server) start(ctx context.Context) error {
	// Other users may traverse it, so that an unprivileged server reaches data/; each file has its own mode.
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
		// Another process may have taken a port that we chose, after the probe.
		if wanted != 0 || attempt == 5 || ctx.Err() != nil || probePort(s.config.Port) == nil {
			return err
		}
	}
}

// launch starts the postmaster, and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	log, err := os.OpenFile(s.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer log.Close() // the server has inherited its own descriptor
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

// waitReady tries real connections until one succeeds, the server ends, or ctx does. Recovery after a crash may take long, so a server that
// reports that it is starting up gets the time it needs.
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
			return fmt.Errorf("start postgres: it ended at once: %s: the whole log is %s", s.lastWords(said, p.err), s.LogPath())
		case <-ctx.Done():
			return fmt.Errorf("start postgres in %s: it does not answer yet: %w", s.config.Dir, errors.Join(ctx.Err(), last))
		case <-time.After(wait):
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			_ = conn.Close(ctx) // it only tested whether the server answers
			return nil
		}
		last = err
		var answer *pgconn.PgError
		if errors.As(err, &answer) {
			heard = time.Now()
			switch answer.Code {
			case "28P01": // invalid_password
				return fmt.Errorf("start postgres: the password in %s is not the password of this server: restore the file, or delete %s to start empty",
					s.passwordPath(), s.config.Dir)
			case "57P03": // cannot_connect_now: starting up, or in recovery
			default:
				return fmt.Errorf("start postgres: %w", err)
			}
		}
		if time.Since(heard) > silence {
			return fmt.Errorf("start postgres on port %d: no answer in %v: %w: see %s", s.config.Port, silence, err, s.LogPath())
		}
	}
}

// lastWords returns the reason that the server gave in its log after the offset said, or otherwise how its process ended.
func (s *Server) lastWords(said int64, ended error) string {
	text, err := os.ReadFile(s.LogPath())
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
