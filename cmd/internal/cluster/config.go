package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// Config configures how a hub joins others. Source, Database, and one of URL and Embedded are required.
type Config struct {
	Source hub.Source // the database

	// Database identifies the database, because several can share a NATS server: hubs with the same value accept each other's ticks. See
	// store.DatabaseID. It consists of letters, digits, - and _.
	Database string

	// URL is the address of a NATS server, or of several in one NATS cluster, separated by commas: nats://host:4222, tls://host:4222.
	URL string

	// Embedded runs a NATS server in this process instead.
	Embedded *Embedded

	// At most one of these authenticates the hub to the server at URL. The URL may contain user and password, or a token, instead.
	Token       string
	User        string
	Password    string
	Credentials string // a NATS credentials file: a JWT and its key
	NKey        string // a file that contains the seed of an NKey

	// TLS names certificates for the connection to URL. A URL that begins with tls:// is encrypted even without them.
	TLS TLS

	Name   string       // this hub's name in logs; "": host name and process id
	Logger *slog.Logger // nil: slog.Default()
}

// TLS names PEM files.
type TLS struct {
	CA   string // the CA of the other side's certificate; "": the system's CAs
	Cert string // this side's certificate
	Key  string // and its key
}

func (t TLS) isZero() bool { return t == TLS{} }

// Embedded configures a NATS server inside the hub. Its only client is the hub itself, connected in memory. The servers of
// the other hubs must know the secret, or present a certificate.
type Embedded struct {
	Listen    string   // address for the other hubs; "": 127.0.0.1:6222. Port -1 chooses a free port
	Advertise string   // where the other hubs reach it, if not at Listen: host:port
	Routes    []string // addresses of other hubs, host:port; one that is up is enough to find all hubs
	Secret    string   // the same at all hubs, at least 16 characters; optional only with TLS
	TLS       TLS      // all three files: both sides present a certificate that CA has signed
}

const (
	defaultListen = "127.0.0.1:6222"
	minSecret     = 16
)

// check validates the configuration and fills in defaults.
func (c *Config) check() error {
	switch {
	case c.Source == nil:
		return errors.New("the cluster's Config.Source is nil: set it to the database's log")
	case c.Database == "" || strings.Trim(strings.ToLower(c.Database), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
		return fmt.Errorf("%q is not a valid name of a cluster's database: use letters, digits, - and _", c.Database)
	case (c.URL == "") == (c.Embedded == nil):
		return errors.New("a cluster needs either the URL of a NATS server or an embedded server")
	case c.URL == "" && (c.identities() > 0 || !c.TLS.isZero()):
		return errors.New("token, user, credentials, nkey and certificates apply only to the URL of a NATS server: an embedded server has its own settings")
	case c.identities() > 1:
		return errors.New("more than one of token, user, credentials and nkey is set: a hub can use only one of them")
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "hub"
		}
		c.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	if len(c.Name) > 128 {
		return fmt.Errorf("the hub's name has %d bytes; the limit is 128: %q", len(c.Name), c.Name)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// identities counts the ways to authenticate that are set.
func (c *Config) identities() (n int) {
	for _, s := range [...]string{c.Token, c.User, c.Credentials, c.NKey} {
		if s != "" {
			n++
		}
	}
	return n
}
