package pgwire

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// UsersFile is an Auth from a file like PgBouncer's userlist.txt: each line has a user and a password or a SCRAM verifier, each in
// double quotes or without white space. A # or ; at the beginning of a line makes it a comment. After the password, listen=A,B and notify=A,B
// restrict the user to those channels and patterns; without them it may listen and notify on all channels.
//
// The file is reloaded on change. While it can't be read or contains a mistake, the previous users stay valid for 10 seconds, and then none.
type UsersFile struct {
	*Roster
	path   string
	secret []byte
	log    *slog.Logger

	// Used by the roster's load, which is never concurrent.
	text  []byte
	users map[string]Login
	good  time.Time // when the file was last read successfully
	bad   bool      // which was said
}

const usersKeep = 10 * time.Second

// ReadUsersFile reads the file. It converts passwords to verifiers, which takes a few milliseconds each; their salts are derived from the
// secret, as those of users that do not exist. Later errors in reading the file are logged.
func ReadUsersFile(path string, secret []byte, log *slog.Logger) (*UsersFile, error) {
	u := &UsersFile{path: path, secret: secret, log: log}
	if err := u.read(); err != nil {
		return nil, err
	}
	u.Roster = NewRoster(func(context.Context) (map[string]Login, error) { return u.reload() })
	return u, nil
}

// reload returns the users, read again if the file has changed.
func (u *UsersFile) reload() (map[string]Login, error) {
	err := u.read()
	if err == nil {
		if u.bad {
			u.log.Warn("weir: the users file can be read again", "file", u.path)
		}
		u.bad = false
		return u.users, nil
	}
	if !u.bad {
		u.log.Error("weir: the users file can't be read, and soon nobody can log in", "error", err, "in", usersKeep)
	}
	if u.bad = true; time.Since(u.good) < usersKeep {
		return u.users, nil // it may be incomplete because it is being written
	}
	return nil, err
}

func (u *UsersFile) read() error {
	text, err := os.ReadFile(u.path)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	if u.users == nil || !bytes.Equal(text, u.text) {
		users, err := readUsers(bytes.NewReader(text), u.secret)
		if err != nil {
			return fmt.Errorf("read users from %s: %w", u.path, err)
		}
		u.text, u.users = text, users
	}
	u.good = time.Now()
	return nil
}

func readUsers(r io.Reader, secret []byte) (map[string]Login, error) {
	users := map[string]Login{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		user, rest, err := quotedWord(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		password, rest, err := quotedWord(strings.TrimSpace(rest))
		if err != nil {
			return nil, fmt.Errorf("line %d, user %q: %w", n, user, err)
		}
		if _, twice := users[user]; twice {
			return nil, fmt.Errorf("line %d: user %q appears twice", n, user)
		}
		login, err := restrictions(rest)
		if err == nil {
			login.Verifier, err = asVerifier(password, saltOf(secret, user))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d, user %q: %w", n, user, err)
		}
		users[user] = login
	}
	return users, lines.Err()
}

// UserLine returns a line of a users file.
func UserLine(user, password string) string {
	quoted := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	return quoted(user) + " " + quoted(password) + "\n"
}

// restrictions parses what follows the password. Older PgBouncer files have other words there, which are ignored.
func restrictions(text string) (login Login, err error) {
	login.Listen, login.Notify = Everything(), Everything()
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		var word string
		if word, text, err = quotedWord(text); err != nil {
			return login, err
		}
		name, list, ok := strings.Cut(word, "=")
		if !ok {
			continue
		}
		var filters []hub.Filter
		if list != "" {
			if filters, err = hub.ParseFilters(strings.Split(list, ",")); err != nil {
				return login, fmt.Errorf("%s: %w", name, err)
			}
		}
		switch name {
		case "listen":
			login.Listen = filters
		case "notify":
			login.Notify = filters
		default:
			return login, fmt.Errorf("%q is not valid: after the password, only listen= and notify= with comma-separated channels and patterns are allowed", name)
		}
	}
	return login, nil
}

// asVerifier converts a password to a verifier, unless it is one.
func asVerifier(password string, salt []byte) (string, error) {
	switch {
	case strings.HasPrefix(password, scramPrefix):
		_, err := parseVerifier(password)
		return password, err
	case len(password) == 35 && strings.HasPrefix(password, "md5"):
		return "", fmt.Errorf("an md5 hash is not supported: give the password, or its SCRAM-SHA-256 verifier from pg_authid.rolpassword")
	case password == "":
		return "", fmt.Errorf("the password is empty")
	}
	v, err := newVerifier(password, salt)
	if err != nil {
		return "", err
	}
	return v.String(), nil
}

// quotedWord splits off the first word. Within double quotes, a doubled quote stands for one.
func quotedWord(s string) (word, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("a line needs a user and a password")
	}
	if s[0] != '"' {
		end := strings.IndexAny(s, " \t")
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			return b.String(), s[i+1:], nil
		}
	}
	return "", "", fmt.Errorf("the closing double quote is missing")
}
