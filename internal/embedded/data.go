package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (s *Server) passwordPath() string { return filepath.Join(s.config.Dir, "password") }

// prepareData finds or creates the data directory, and sets data, password and owner.
func (s *Server) prepareData(ctx context.Context) error {
	data := filepath.Join(s.config.Dir, "data")
	_, err := os.Lstat(data)
	if errors.Is(err, fs.ErrNotExist) {
		err = s.initialise(ctx, data)
	}
	if err != nil {
		return fmt.Errorf("prepare the data directory: %w", err)
	}
	if s.data, err = filepath.EvalSymlinks(data); err != nil {
		return fmt.Errorf("prepare the data directory: %w: restore it, or delete %s to start empty", err, s.config.Dir)
	}
	if s.owner, err = ownerOf(s.data); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(s.data, "PG_VERSION"))
	if err != nil {
		return fmt.Errorf("%w: %s is not a data directory of PostgreSQL: restore it, or delete %s to start empty", err, s.data, s.config.Dir)
	}
	if found := strings.TrimSpace(string(version)); found != strconv.Itoa(s.config.Major) {
		return fmt.Errorf("the data in %s is of PostgreSQL %s, but this is PostgreSQL %d: use version %s, or delete the directory to start empty",
			s.config.Dir, found, s.config.Major, found)
	}
	password, err := os.ReadFile(s.passwordPath())
	if err != nil {
		return fmt.Errorf("%w: restore the password of the data in %s, or delete the directory to start empty", err, s.config.Dir)
	}
	s.password = strings.TrimSpace(string(password))
	return nil
}

// initialise creates a data directory, completely or not at all, and its password. A standby is filled from another server, and then shares
// that server's password.
func (s *Server) initialise(ctx context.Context, data string) (err error) {
	owner, err := pickOwner()
	if err != nil {
		return err
	}
	if err := owner.reach(filepath.Join(s.binaries, "bin")); err != nil {
		return err
	}
	home := s.config.Dir
	if owner.reach(home) != nil {
		// The server's user can't reach the directory, as is the case below /root. The data is then elsewhere, with a link to it: after
		// deleting Dir, the next server still starts empty.
		if home, err = owner.elsewhere(); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				os.RemoveAll(home)
			}
		}()
	}
	if s.fill == nil {
		s.password = rand.Text()
	}
	if err := os.WriteFile(s.passwordPath(), []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	made := filepath.Join(home, "data.new")
	if err := os.RemoveAll(made); err != nil { // left from an interrupted initdb
		return err
	}
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := owner.own(made); err != nil {
		return err
	}
	fill := s.fill
	if fill == nil {
		fill = s.initdb
	}
	if err := fill(ctx, made, owner); err != nil {
		return err
	}
	ready := filepath.Join(home, "data")
	if err := os.Rename(made, ready); err != nil {
		return err
	}
	if ready == data {
		return nil
	}
	return os.Symlink(ready, data)
}

// initdb fills an empty data directory with a new cluster.
func (s *Server) initdb(ctx context.Context, data string, owner *owner) error {
	passwordFile, err := os.CreateTemp(filepath.Dir(data), "initdb-password-*")
	if err != nil {
		return err
	}
	defer os.Remove(passwordFile.Name())
	_, err = passwordFile.WriteString(s.password + "\n")
	if err := errors.Join(err, passwordFile.Close(), owner.own(passwordFile.Name())); err != nil {
		return err
	}
	args := []string{
		"-D", data, "-U", superuser, "-A", "scram-sha-256", "--pwfile", passwordFile.Name(), "-E", "UTF8", "--locale", "C", "--no-instructions",
	}
	if s.config.Fast {
		args = append(args, "--no-sync")
	}
	return run(ctx, filepath.Join(s.binaries, "bin", "initdb"), args, owner)
}

// lockDir makes this process the only one that may run a server in dir.
func lockDir(dir string) (io.Closer, error) {
	path := filepath.Join(dir, "lock")
	lock, err := tryLock(path)
	if errors.Is(err, errLocked) {
		holder := ""
		if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 {
			holder = " (pid " + strings.TrimSpace(string(pid)) + ")"
		}
		return nil, fmt.Errorf("another process%s runs the server in %s: stop it, or use another directory", holder, dir)
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(lock.Truncate(0), writeAt0(lock, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func writeAt0(f io.WriterAt, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// waitForPredecessor makes sure that no other postmaster uses the data.
//
// This process holds the lock of Dir, so a postmaster.pid was left by a server whose process was killed. There are three cases. The server
// is dead: then PostgreSQL takes the file over, after checking for live backends. Its pid belongs to another program by now, which is
// common in containers that assign the same pids after each start: then PostgreSQL would refuse to start, so the file is removed. Or the
// server is still shutting down, after the signal that our death sent it: then we wait for it.
func waitForPredecessor(ctx context.Context, data string) error {
	path := filepath.Join(data, "postmaster.pid")
	begin := time.Now()
	for {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
		if err != nil || pid <= 0 || pid == os.Getpid() || (alive(pid) && !isPostmaster(pid, data)) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the pid file of a dead server: %w", err)
			}
			return nil
		}
		if !alive(pid) {
			return nil
		}
		patience := 5 * time.Second
		if len(lines) > 7 && strings.TrimSpace(lines[7]) == "stopping" {
			patience = time.Minute
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("a server (pid %d) already runs on %s: stop it with kill -INT %d, or use another directory", pid, data, pid)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the server with pid %d to end on %s: %w", pid, data, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
