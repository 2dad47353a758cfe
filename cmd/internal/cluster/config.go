package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// Config says how a hub joins others. Source, Database, and one of URL and Embedded are required.
type Config struct {
	Source hub.Source // the database

	// Database names the database, and keeps those that share a NATS apart: hubs with the same name believe each other's ticks. See
	// store.DatabaseID. Letters, digits, - and _.
	Database string

	// URL is of a NATS server, or of several of one cluster, separated by commas: nats://host:4222, tls://host:4222.
	URL string

	// Embedded runs a NATS server in this process instead.
	Embedded *Embedded

	// At most one of these says who the hub is to the server at URL. A URL may hold user and password, or a token, itself.
	Token       string
	User        string
	Password    string
	Credentials string // a file of NATS credentials: a JWT and its key
	NKey        string // a file with the seed of an NKey

	// TLS are certificates for the connection to URL. A URL that begins with tls:// is encrypted without them, too.
	TLS TLS

	Name   string       // of this hub, for people; "": host name and process id
	Logger *slog.Logger // nil: slog.Default()
}

// TLS names files in PEM.
type TLS struct {
	CA   string // who signs the other side's certificates; "": whom the system trusts
	Cert string // one's own
	Key  string // and its key
}

func (t TLS) isZero() bool { return t == TLS{} }

// Embedded is a NATS server of the hub's own. It takes no clients but the hub itself, which is connected in memory. The servers of
// the other hubs must know the secret, or show a certificate.
type Embedded struct {
	Listen    string   // for the other hubs; "": 127.0.0.1:6222. A port of -1 is one that is free
	Advertise string   // where the others reach it, if not at Listen: host:port
	Routes    []string // of other hubs, host:port; one of them that is up is enough to find all
	Secret    string   // the same at all hubs, 16 characters or more; it may be left out only with TLS
	TLS       TLS      // all three files: both sides show a certificate that CA has signed
}

const (
	defaultListen = "127.0.0.1:6222"
	leastSecret   = 16
)

// check says what is wrong, and fills in defaults.
func (c *Config) check() error {
	switch {
	case c.Source == nil:
		return errors.New("a cluster needs a source of ticks")
	case c.Database == "" || strings.Trim(strings.ToLower(c.Database), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
		return fmt.Errorf("a cluster needs a name for its database of letters, digits, - and _: got %q", c.Database)
	case (c.URL == "") == (c.Embedded == nil):
		return errors.New("a cluster needs either the URL of a NATS server or an embedded one")
	case c.URL == "" && (c.identities() > 0 || !c.TLS.isZero()):
		return errors.New("token, user, credentials, nkey and certificates go with the URL of a NATS server: an embedded one has its own")
	case c.identities() > 1:
		return errors.New("only one of token, user, credentials and nkey can say who the hub is to NATS")
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "hub"
		}
		c.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	if len(c.Name) > 128 {
		return fmt.Errorf("a hub's name has at most 128 bytes, and this one %d: %q", len(c.Name), c.Name)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// identities counts the ways in which the hub says who it is.
func (c *Config) identities() (n int) {
	for _, s := range [...]string{c.Token, c.User, c.Credentials, c.NKey} {
		if s != "" {
			n++
		}
	}
	return n
}
