package load

import (
	"errors"
	"os"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// UsersFile writes a hub's users file with one user. Roles of the database do not suffice, because the hub refuses superusers.
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
