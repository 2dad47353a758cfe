package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// subjects are the NATS subjects of a database.
type subjects struct {
	head, beat string
	bucket     [buckets]string
}

func subjectsOf(database string) (s subjects) {
	prefix := "weir." + database
	s.head, s.beat = prefix+".head", prefix+".beat"
	for i := range s.bucket {
		s.bucket[i] = prefix + ".bucket." + strconv.Itoa(i)
	}
	return s
}

const (
	dialAtMost   = 2 * time.Second
	redialEvery  = 200 * time.Millisecond
	pingEvery    = 2 * time.Second
	stopAtMost   = 2 * time.Second
	warnedRarely = 10 * time.Second
)

// connect starts the embedded server, if configured, and connects to NATS.
func (c *Cluster) connect(ctx context.Context, config *Config) (err error) {
	options := c.options()
	if config.Embedded != nil {
		if c.server, err = startServer(ctx, config, c.id); err != nil {
			return err
		}
		options = append(options, nats.InProcessServer(c.server))
	} else {
		identity, err := identify(config)
		if err != nil {
			return err
		}
		options = append(options, identity...)
	}
	if c.conn, err = nats.Connect(config.URL, options...); err == nil {
		c.publish, c.largest = c.conn.Publish, c.conn.MaxPayload
		err = c.listen()
	}
	if err != nil {
		c.disconnect()
		return fmt.Errorf("join the cluster over NATS: %w", err)
	}
	if !c.conn.IsConnected() {
		c.log.Warn("weir: NATS can't be reached: this hub reads ticks for itself, and keeps trying to connect", "hub", c.name)
	}
	return nil
}

// options configure the connection to reconnect forever, to drop frames instead of buffering them while disconnected, and not to receive its own
// frames.
func (c *Cluster) options() []nats.Option {
	return []nats.Option{
		nats.Name("weir hub " + c.name), nats.NoEcho(),
		nats.Timeout(dialAtMost), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(redialEvery), nats.ReconnectJitter(redialEvery, redialEvery), nats.ReconnectBufSize(-1),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(stopAtMost),
		nats.ConnectHandler(func(*nats.Conn) { c.setConnected(true) }),
		nats.ReconnectHandler(func(*nats.Conn) {
			c.setConnected(true)
			c.log.Info("weir: reconnected to NATS", "hub", c.name)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.setConnected(false)
			if err != nil {
				c.log.Warn("weir: disconnected from NATS: this hub reads ticks for itself until it reconnects", "hub", c.name, "error", redact(err))
			}
		}),
		nats.ErrorHandler(c.natsError()),
	}
}

// rarely limits how often a recurring message is logged.
type rarely struct{ last time.Time }

// now reports whether the message may be logged again.
func (r *rarely) now() bool {
	if time.Since(r.last) < warnedRarely {
		return false
	}
	r.last = time.Now()
	return true
}

// natsError counts dropped frames, and logs other errors rarely.
func (c *Cluster) natsError() nats.ErrHandler {
	var warned rarely // NATS calls handlers one at a time
	return func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrSlowConsumer) {
			c.counters.dropped.Add(1)
			return
		}
		if warned.now() {
			c.log.Warn("weir: NATS reports an error", "hub", c.name, "error", redact(err))
		}
	}
}

// disconnect sends what is still buffered, disconnects from NATS and stops the embedded server.
func (c *Cluster) disconnect() {
	if c.conn != nil {
		if c.conn.IsConnected() {
			_ = c.conn.FlushTimeout(stopAtMost / 2)
		}
		c.conn.Close()
	}
	if c.server != nil {
		c.server.Shutdown()
		c.server.WaitForShutdown()
	}
}

// identify returns the options that authenticate the hub, and those that verify the server.
func identify(config *Config) (options []nats.Option, err error) {
	switch {
	case config.Token != "":
		options = append(options, nats.Token(config.Token))
	case config.User != "":
		options = append(options, nats.UserInfo(config.User, config.Password))
	case config.Credentials != "":
		if _, err := os.Stat(config.Credentials); err != nil {
			return nil, fmt.Errorf("read NATS credentials: %w", err)
		}
		options = append(options, nats.UserCredentials(config.Credentials))
	case config.NKey != "":
		option, err := nats.NkeyOptionFromSeed(config.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the NATS nkey %s: %w", config.NKey, err)
		}
		options = append(options, option)
	}
	if !config.TLS.isZero() {
		t, err := config.TLS.load()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Secure(t))
	}
	for at := range strings.SplitSeq(config.URL, ",") {
		if err := checkURL(strings.TrimSpace(at)); err != nil {
			return nil, err
		}
	}
	return options, nil
}

func checkURL(at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return errors.New("the URL of a NATS server is not valid: use the form nats://host:4222 or tls://host:4222") // not quoted: it may contain a password
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return nil
	default:
		return fmt.Errorf("%q is not a valid scheme for the URL of a NATS server: use nats:// or tls://", u.Scheme)
	}
}

// load reads the files into a TLS configuration.
func (t TLS) load() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read the CA's certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s contains no PEM certificate", t.CA)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("only one of certificate and key is set: name both files")
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("read the certificate %s and its key: %w", t.Cert, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// redact removes passwords in URLs from an error's text.
func redact(err error) string {
	if err == nil {
		return ""
	}
	words := strings.Fields(err.Error())
	for i, word := range words {
		if at := strings.LastIndex(word, "@"); at >= 0 {
			if scheme := strings.Index(word, "://"); scheme >= 0 && scheme < at {
				words[i] = word[:scheme+3] + "…" + word[at:]
			}
		}
	}
	return strings.Join(words, " ")
}
