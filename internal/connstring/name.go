package connstring

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
)

const longestName = 63 // bytes, as PostgreSQL's names

var odd = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// Names are those of a connection string's database, as parts of addresses: they have letters, digits, hyphens, underscores and dots, and stay the same whatever other databases
// there are.
type Names struct {
	Short string // that of the database
	Full  string // which says where it is, too, such as app.db1-5432
	Place string // no part of addresses: two that differ are of different places, though the names may be the same, because other characters are replaced in them
}

// Named returns the names of a connection string's database.
func Named(text string) (n Names, err error) {
	c, err := pgx.ParseConfig(text)
	if err != nil {
		return n, Invalid(err)
	}
	database, at := cmp.Or(c.Database, c.User), net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	n.Short, n.Place = Plain(database), at+"/"+database
	n.Full = n.Short + "." + odd.ReplaceAllString(at, "-")
	if len(n.Full) > longestName {
		sum := sha256.Sum256([]byte(n.Full))
		n.Full = n.Full[:longestName-9] + "-" + hex.EncodeToString(sum[:4])
	}
	return n, nil
}

// Plain returns what stands for a database's name in addresses.
func Plain(name string) string {
	name = odd.ReplaceAllString(name, "-")
	if name == "" || name == "." || name == ".." {
		return "postgres"
	}
	return name[:min(len(name), longestName)]
}
