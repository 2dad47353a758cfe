package load

import (
	"errors"
	"os"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// UsersFile writes the users file of a hub that one user may log in to. The hub does not let it in by the database if it is a superuser there.
func UsersFile(user, password string) (path string, err error) {
	f, err := os.CreateTemp("", "weir-users-")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(pgwire.UserLine(user, password))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
