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

// Named returns the names of a connection string's database, which are parts of addresses: the short one is that of the database, and the full one says where it is, too, such
// as app.db1-5432. Both have letters, digits, hyphens, underscores and dots, and stay the same whatever other databases there are.
func Named(text string) (short, full string, err error) {
	c, err := pgx.ParseConfig(text)
	if err != nil {
		return "", "", Invalid(err)
	}
	short = Plain(cmp.Or(c.Database, c.User))
	full = short + "." + odd.ReplaceAllString(net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), "-")
	if len(full) > longestName {
		sum := sha256.Sum256([]byte(full))
		full = full[:longestName-9] + "-" + hex.EncodeToString(sum[:4])
	}
	return short, full, nil
}

// Plain returns what stands for a database's name in addresses.
func Plain(name string) string {
	name = odd.ReplaceAllString(name, "-")
	if name == "" || name == "." || name == ".." {
		return "postgres"
	}
	return name[:min(len(name), longestName)]
}
