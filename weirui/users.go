package weirui

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	lookEvery   = time.Second     // at the users file
	keepUsers   = 5 * time.Second // while the file can't be read
	maxUserFile = 1 << 20         // bytes
	maxUserName = 100             // bytes
)

// UserLine returns the line of a user in a file for Password.
func UserLine(name string, role Role, password string) (string, error) {
	switch {
	case name == "" || len(name) > maxUserName || strings.ContainsAny(name, ":#\r\n") || strings.TrimSpace(name) != name:
		return "", fmt.Errorf("weirui: %q can't be the name of a user: it must have 1 to %d bytes, without colons, # and line breaks, and no space around it", cut(name, 200), maxUserName)
	case role < Viewer || role > Admin:
		return "", fmt.Errorf("weirui: %q is not the role of a user: it must be viewer, operator or admin", role)
	case len(password) < minPassword || len(password) > maxPassword:
		return "", fmt.Errorf("weirui: the password has %d bytes: it must have %d to %d", len(password), minPassword, maxPassword)
	}
	return name + ":" + role.String() + ":" + newVerifier(password).String() + "\n", nil
}

// account is a user of a file.
type account struct {
	role     Role
	verifier verifier
}

// accounts are the users of a file, read again when it changes.
type accounts struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	text   []byte
	users  map[string]account
	looked time.Time
	good   time.Time // when the file could last be read
	bad    bool      // which was said
}

// now returns the users of the file, as they were a second ago or later. While the file can't be read, or has a mistake, they stay for some time, because it may be just being
// written, and then there are none.
func (a *accounts) now() map[string]account {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.looked) < lookEvery {
		return a.users
	}
	a.looked = time.Now()
	err := a.read()
	switch {
	case err == nil && a.bad:
		a.log.Warn("weir: the file of the UI's users can be read again", "file", a.path)
	case err != nil && !a.bad:
		a.log.Error("weir: the file of the UI's users can't be read, and soon nobody can log in: correct it", "error", err, "in", keepUsers)
	}
	if a.bad = err != nil; a.bad && time.Since(a.good) > keepUsers {
		a.users, a.text = nil, nil
	}
	return a.users
}

// broken reports whether nobody can log in, because the file can't be read.
func (a *accounts) broken() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bad && a.users == nil
}

// read reads the file. The caller holds mu, or is the only one.
func (a *accounts) read() error {
	f, err := os.Open(a.path)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxUserFile+1))
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	if len(text) > maxUserFile {
		return fmt.Errorf("read users from %s: it has more than %d bytes", a.path, maxUserFile)
	}
	if a.users == nil || !bytes.Equal(text, a.text) {
		users, err := parseUsers(string(text))
		if err != nil {
			return fmt.Errorf("read users from %s: %w", a.path, err)
		}
		a.text, a.users = text, users
	}
	a.good = time.Now()
	return nil
}

// parseUsers parses lines of the form name:role:verifier. What is wrong with a line is said without its verifier.
func parseUsers(text string) (map[string]account, error) {
	users, n := map[string]account{}, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, ":")
		roleName, text, ok := strings.Cut(rest, ":")
		if !ok || name == "" || len(name) > maxUserName {
			return nil, fmt.Errorf("line %d is not of the form name:role:verifier: weir ui-password prints such a line", n)
		}
		role, ok := ParseRole(roleName)
		if !ok {
			return nil, fmt.Errorf("line %d: %s has the role %q: it must be viewer, operator or admin", n, name, cut(roleName, 50))
		}
		v, err := parseVerifier(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s has no valid verifier: %w", n, name, err)
		}
		if _, twice := users[name]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", n, name)
		}
		users[name] = account{role, v}
	}
	if len(users) == 0 {
		return nil, errors.New("there is no user in it: weir ui-password prints the line of one")
	}
	return users, nil
}
