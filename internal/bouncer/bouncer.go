// Package bouncer runs a private PgBouncer, in transaction mode by default, if the machine has one, for tests and for the lab.
//
//	b, err := bouncer.Start(ctx, bouncer.Config{Target: url})
//	if errors.Is(err, bouncer.ErrNotInstalled) {
//		... // do without
//	}
//	defer b.Stop()
//	conn, err := pgx.Connect(ctx, b.URL())
package bouncer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNotInstalled is the error of Start on a machine without PgBouncer.
var ErrNotInstalled = errors.New("pgbouncer is not installed")

// Config specifies what is behind PgBouncer. Target is required.
type Config struct {
	Target   string   // URL of the database
	Sessions int      // that it has at the server; default 2, so that clients change sessions all the time
	Clients  int      // that it accepts; default 100
	Mode     string   // its pool_mode; default transaction
	Ignores  []string // startup parameters of clients, beside extra_float_digits
}

// Bouncer is a running PgBouncer.
type Bouncer struct {
	url  string
	dir  string
	cmd  *exec.Cmd
	log  *bounded
	done chan struct{} // closed when the process has ended
}

// owner is the user that PgBouncer runs as if this process is root.
type owner struct {
	name     string
	uid, gid int
}

// Find returns the path of the program, or ErrNotInstalled.
func Find() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // which an ordinary user's PATH lacks
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNotInstalled
}

// Start starts PgBouncer, which ends with this process on Linux, on a free port of 127.0.0.1, and returns when it accepts connections. It must be stopped.
func Start(ctx context.Context, c Config) (b *Bouncer, err error) {
	program, err := Find()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	b = &Bouncer{log: &bounded{}, done: make(chan struct{})}
	b.url = fmt.Sprintf("postgres://someone:secret@127.0.0.1:%d/weir?sslmode=disable", port)
	config, as, err := b.configure(c, port)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start pgbouncer: %w", err), os.RemoveAll(b.dir))
	}
	b.cmd = command(program, config, as)
	b.cmd.Stderr = b.log
	if err := b.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start pgbouncer: %w", err), os.RemoveAll(b.dir))
	}
	go func() { // ends with the process; Stop waits for it
		_ = b.cmd.Wait()
		close(b.done)
	}()
	if err := b.listens(ctx, port); err != nil {
		b.Stop()
		return nil, fmt.Errorf("start pgbouncer: %w: it said: %s", err, b.Log())
	}
	return b, nil
}

// configure writes the files in a directory that its user can read, and returns the path of the configuration and the user, or nil for this
// process's.
func (b *Bouncer) configure(c Config, port int) (config string, as *owner, err error) {
	to, err := url.Parse(c.Target)
	if err != nil {
		return "", nil, err
	}
	password, _ := to.User.Password()
	sessions, clients, mode := c.Sessions, c.Clients, c.Mode
	if mode == "" {
		mode = "transaction"
	}
	if sessions == 0 {
		sessions = 2
	}
	if clients == 0 {
		clients = 100
	}
	if b.dir, err = os.MkdirTemp(base(), "weir-pgbouncer-"); err != nil {
		return "", nil, err
	}
	config = filepath.Join(b.dir, "pgbouncer.ini")
	users := filepath.Join(b.dir, "users.txt")
	for path, text := range map[string]string{users: `"someone" "secret"` + "\n", config: fmt.Sprintf(`[databases]
weir = host=%s port=%s dbname=%s user=%s password=%s pool_size=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
listen_backlog = 4096
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = %s
server_login_retry = 1
max_client_conn = %d
ignore_startup_parameters = %s
`, to.Hostname(), to.Port(), strings.TrimPrefix(to.Path, "/"), to.User.Username(), password, sessions, port, users, mode, clients,
		strings.Join(append([]string{"extra_float_digits"}, c.Ignores...), ","))} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	if os.Getuid() != 0 {
		return config, nil, nil
	}
	nobody, err := user.Lookup("nobody") // it refuses to run as root
	if err != nil {
		return "", nil, err
	}
	as = &owner{name: nobody.Username}
	if as.uid, err = strconv.Atoi(nobody.Uid); err != nil {
		return "", nil, err
	}
	if as.gid, err = strconv.Atoi(nobody.Gid); err != nil {
		return "", nil, err
	}
	for _, path := range []string{b.dir, users, config} {
		if err := os.Chown(path, as.uid, -1); err != nil {
			return "", nil, err
		}
	}
	return config, as, nil
}

// base returns a directory for temporary files in which the user that PgBouncer runs as can read: "" is that of this process.
func base() string {
	if os.Getuid() != 0 {
		return ""
	}
	for dir := os.TempDir(); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return "/tmp" // others may not enter a directory above the usual one
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// listens waits until it accepts connections, which it does not report.
func (b *Bouncer) listens(ctx context.Context, port int) error {
	patient, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for pause := time.NewTicker(20 * time.Millisecond); ; {
		var d net.Dialer
		conn, err := d.DialContext(patient, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			pause.Stop()
			return conn.Close()
		}
		select {
		case <-pause.C:
		case <-b.done:
			return errors.New("it has ended")
		case <-patient.Done():
			return errors.Join(patient.Err(), err)
		}
	}
}

// URL returns the connection string through PgBouncer.
func (b *Bouncer) URL() string { return b.url }

// PID returns the process id.
func (b *Bouncer) PID() int { return b.cmd.Process.Pid }

// Log returns the beginning of what it has written to its log.
func (b *Bouncer) Log() string { return b.log.String() }

// Stop ends PgBouncer and removes its files.
func (b *Bouncer) Stop() {
	_ = b.cmd.Process.Kill() // it has no state
	<-b.done
	os.RemoveAll(b.dir)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	mu   sync.Mutex
	text []byte
}

const mostLog = 64 << 10

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p[:min(len(p), mostLog-len(b.text))]...)
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}
