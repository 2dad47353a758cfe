//go:build linux || darwin

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

func supported() error { return nil }

func runsAsRoot() bool { return os.Geteuid() == 0 }

// owner is the user that the server runs as if this process is root. A nil owner is this process's user.
type owner struct {
	uid, gid uint32
	name     string
}

// pickOwner chooses the user for a new cluster.
func pickOwner() (*owner, error) {
	if !runsAsRoot() {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
			gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
			if err1 == nil && err2 == nil && uid != 0 {
				return &owner{uid: uint32(uid), gid: uint32(gid), name: name}, nil
			}
		}
	}
	return &owner{uid: 65534, gid: 65534, name: "65534"}, nil // the user nobody, by convention
}

// ownerOf returns the user to run the server as on existing data: PostgreSQL requires the owner of the data.
func ownerOf(data string) (*owner, error) {
	info, err := os.Stat(data)
	if err != nil {
		return nil, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	switch {
	case stat.Uid == 0:
		return nil, fmt.Errorf("the data in %s belongs to root, but PostgreSQL refuses to run as root: change its owner with chown -R", data)
	case runsAsRoot():
		return &owner{uid: stat.Uid, gid: stat.Gid, name: strconv.Itoa(int(stat.Uid))}, nil
	case stat.Uid != uint32(os.Geteuid()):
		return nil, fmt.Errorf("the data in %s belongs to user %d, and you are %d: run as that user or as root, or use another directory", data, stat.Uid, os.Geteuid())
	}
	return nil, nil
}

// as returns a phrase for error messages.
func (o *owner) as() string {
	if o == nil {
		return ""
	}
	return " as user " + o.name
}

// own makes the user the owner of a file.
func (o *owner) own(path string) error {
	if o == nil {
		return nil
	}
	return os.Chown(path, int(o.uid), int(o.gid))
}

// reach returns an error if the user can't traverse dir. It tries this instead of reading modes, so that access control lists and security
// modules are taken into account.
func (o *owner) reach(dir string) error {
	if o == nil {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", ":")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential()}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("user %s, which runs postgres because it refuses to run as root, can't reach %s (%w): let others traverse its directories, or run as an ordinary user", o.name, dir, err)
	}
	return nil
}

// elsewhere creates a directory that the user can traverse.
func (o *owner) elsewhere() (string, error) {
	const place = "/var/lib/weir"
	if err := os.MkdirAll(place, 0o755); err != nil {
		return "", err
	}
	if err := checkPrivate(place); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(place, "postgres-*")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	return dir, o.reach(dir)
}

// credential also drops root's supplementary groups.
func (o *owner) credential() *syscall.Credential {
	if o == nil {
		return nil
	}
	return &syscall.Credential{Uid: o.uid, Gid: o.gid}
}

// checkPrivate returns an error if another user could replace the contents of dir: it must be a directory, not a symbolic link, that this
// user owns and no other user can write.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || stat.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s must be a directory of user %d that others can't write: remove it, or change its owner and mode", dir, os.Geteuid())
	}
	return nil
}

var errLocked = errors.New("locked by another process")

// lockedFile is a locked file whose Close releases the lock at once. Otherwise a child that another goroutine has forked, but that has not
// reached its exec yet, would keep the file open, and with it the lock.
type lockedFile struct{ *os.File }

func (l *lockedFile) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// tryLock locks a file, creating it, until it is closed or this process ends.
func tryLock(path string) (*lockedFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &lockedFile{f}, nil
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// isPostmaster reports whether a live process is a PostgreSQL server on the data directory; true if in doubt.
func isPostmaster(pid int, data string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if name, err := os.ReadFile(filepath.Join(proc, "comm")); err == nil {
		if strings.TrimSpace(string(name)) != "postgres" {
			return false
		}
		dir, err := os.Readlink(filepath.Join(proc, "cwd")) // of a postmaster: its data directory
		return err != nil || dir == data
	}
	out, err := exec.Command("ps", "-p", strconv.Itoa(pid), "-o", "comm=").Output()
	return err != nil || filepath.Base(strings.TrimSpace(string(out))) == "postgres"
}

// environment returns this process's environment, without variables that PostgreSQL would read. The locale is fixed, because macOS refuses
// to start a postmaster without one.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			env = append(env, v)
		}
	}
	return env
}

// run runs a program to its end. The error includes its output.
func run(ctx context.Context, path string, args []string, o *owner) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/" // the user may not have access to ours
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential(), Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("run %s%s: %w: %s", path, o.as(), err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return nil
}

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the postmaster has ended; err is set then
	gone chan struct{} // closed when its children have ended too
	err  error
}

// startProcess starts a postmaster in its own process group, so that Ctrl-C at the terminal reaches only this process, which then stops the
// server in an orderly way.
func startProcess(path string, args []string, log *os.File, o *owner) (*process, error) {
	// Every process of the server inherits the write end, and holds it until it ends. So end of file means that all of them have ended,
	// on every Unix, whatever process is their parent by then.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential(), Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	p := &process{cmd: cmd, done: make(chan struct{}), gone: make(chan struct{})}
	started := make(chan error, 1)
	// This goroutine ends with the postmaster. Linux ties the signal of dieWithParent to the thread that forked, so
	// the goroutine keeps its thread, and the thread lives as long as the server.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		w.Close()
		started <- err
		if err != nil {
			r.Close()
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	// Ends with the server's last process.
	go func() {
		_, _ = io.Copy(io.Discard, r)
		r.Close()
		close(p.gone)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// The process may have ended before the signal; err then says how.
func (p *process) interrupt() { _ = p.cmd.Process.Signal(syscall.SIGINT) }  // fast shutdown
func (p *process) quit()      { _ = p.cmd.Process.Signal(syscall.SIGQUIT) } // immediate shutdown
func (p *process) kill()      { _ = p.cmd.Process.Kill() }
