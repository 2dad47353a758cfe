package pgwire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// UsersFile is an Auth from a file, as PgBouncer's userlist.txt: on each line a user and a password or a SCRAM verifier, each in
// double quotes or without white space. A # or ; at the beginning of a line makes it a comment.
type UsersFile struct{ verifiers map[string]string }

// ReadUsersFile reads the file once. Passwords are turned into verifiers, which costs a few milliseconds each.
func ReadUsersFile(path string) (*UsersFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read users: %w", err)
	}
	defer f.Close()
	u, err := readUsers(f)
	if err != nil {
		return nil, fmt.Errorf("read users from %s: %w", path, err)
	}
	return u, nil
}

func readUsers(r io.Reader) (*UsersFile, error) {
	u := &UsersFile{verifiers: map[string]string{}}
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
		password, _, err := quotedWord(strings.TrimSpace(rest)) // PgBouncer's older files have more on a line
		if err != nil {
			return nil, fmt.Errorf("line %d, user %q: %w", n, user, err)
		}
		if _, twice := u.verifiers[user]; twice {
			return nil, fmt.Errorf("line %d: user %q is there twice", n, user)
		}
		if u.verifiers[user], err = asVerifier(password); err != nil {
			return nil, fmt.Errorf("line %d, user %q: %w", n, user, err)
		}
	}
	return u, lines.Err()
}

// asVerifier makes a verifier of a password, unless it is one.
func asVerifier(password string) (string, error) {
	switch {
	case strings.HasPrefix(password, scramPrefix):
		_, err := parseVerifier(password)
		return password, err
	case len(password) == 35 && strings.HasPrefix(password, "md5"):
		return "", fmt.Errorf("an md5 hash can't be used: give the password, or its SCRAM-SHA-256 verifier from pg_authid.rolpassword")
	case password == "":
		return "", fmt.Errorf("the password is empty")
	}
	v, err := newVerifier(password)
	if err != nil {
		return "", err
	}
	return v.String(), nil
}

// quotedWord cuts the first word off. In double quotes a doubled one stands for itself.
func quotedWord(s string) (word, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("a user and a password are needed")
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
	return "", "", fmt.Errorf("a double quote is missing at the end")
}

// Verifier returns a user's verifier.
func (u *UsersFile) Verifier(_ context.Context, user string) (string, error) {
	if v, ok := u.verifiers[user]; ok {
		return v, nil
	}
	return "", ErrUnknownUser
}
