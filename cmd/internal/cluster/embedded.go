package cluster

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	startAtMost   = 10 * time.Second
	routeUser     = "weir"
	payloadMost   = 4 << 20  // of a frame
	pendingMost   = 64 << 20 // that wait for the hub, or it is cut off and comes again
	routePing     = 2 * time.Second
	readyLookTime = 50 * time.Millisecond
)

// startServer starts a NATS server that other hubs' servers can join, and that takes no client except from within this process.
func startServer(ctx context.Context, config *Config, id ident) (*server.Server, error) {
	options, err := serverOptions(config, id)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("make the embedded NATS server: %w", err)
	}
	log := &serverLog{log: config.Logger, warned: map[string]*rarely{}}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, startAtMost)
	defer cancel()
	for !s.ReadyForConnections(readyLookTime) {
		err := log.failed()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			s.Shutdown()
			s.WaitForShutdown()
			return nil, fmt.Errorf("start the embedded NATS server on %s: %w", net.JoinHostPort(options.Cluster.Host, strconv.Itoa(options.Cluster.Port)), err)
		}
	}
	return s, nil
}

func serverOptions(config *Config, id ident) (*server.Options, error) {
	e := *config.Embedded
	if e.Listen == "" {
		e.Listen = defaultListen
	}
	host, port, err := splitAddress(e.Listen)
	if err != nil {
		return nil, err
	}
	if e.Secret != "" && len(e.Secret) < leastSecret {
		return nil, fmt.Errorf("the secret of a cluster has at least %d characters, and this one %d: openssl rand -hex 32 makes one",
			leastSecret, len(e.Secret))
	}
	if e.Secret == "" && e.TLS.isZero() {
		return nil, errors.New("hubs that join each other need a secret or certificates: openssl rand -hex 32 makes a secret")
	}
	options := &server.Options{
		ServerName: "weir-" + hex.EncodeToString(id[:]),
		// Routes wait for a client port to be open. Nobody is let in through it.
		Host: "127.0.0.1", Port: server.RANDOM_PORT, CustomClientAuthentication: inProcess{},
		NoSigs: true, NoLog: true, DisableShortFirstPing: true,
		MaxPayload: payloadMost, MaxPending: pendingMost,
		Cluster: server.ClusterOpts{
			Name: "weir-" + config.Database, Host: host, Port: port, Advertise: e.Advertise, NoAdvertise: true,
			PingInterval: routePing, MaxPingsOut: 2, ConnectRetries: 120,
		},
	}
	if e.Secret != "" {
		options.Cluster.Username, options.Cluster.Password = routeUser, e.Secret
	}
	if e.TLS.isZero() {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			config.Logger.Warn("weir: messages go to other hubs unencrypted: name certificates, or keep the network private", "listen", e.Listen)
		}
	} else if options.Cluster.TLSConfig, err = mutual(e.TLS); err != nil {
		return nil, err
	}
	if !e.TLS.isZero() {
		options.Cluster.TLSTimeout = dialAtMost.Seconds()
	}
	for _, route := range e.Routes {
		if _, _, err := splitAddress(route); err != nil {
			return nil, err
		}
		u := &url.URL{Scheme: "nats-route", Host: route}
		if e.Secret != "" {
			u.User = url.UserPassword(routeUser, e.Secret)
		}
		options.Routes = append(options.Routes, u)
	}
	return options, nil
}

// inProcess lets clients in that come from within this process.
type inProcess struct{}

// Check implements server.Authentication.
func (inProcess) Check(c server.ClientAuthentication) bool {
	at := c.RemoteAddress()
	return at != nil && at.Network() == "pipe"
}

// mutual demands a certificate of both sides.
func mutual(t TLS) (*tls.Config, error) {
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return nil, errors.New("hubs that join each other over TLS need three files: a CA, a certificate that it signed, and its key")
	}
	config, err := t.load()
	if err != nil {
		return nil, err
	}
	config.ClientCAs = config.RootCAs
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return config, nil
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < -1 || port == 0 || port > 65535 {
		return "", 0, fmt.Errorf("the address of a hub's NATS server must be of the form host:port, got %q", address)
	}
	return host, port, nil
}

// Address is where the embedded server listens for those of other hubs; "" without one.
func (c *Cluster) Address() string {
	if c.server == nil {
		return ""
	}
	return c.server.ClusterAddr().String()
}

// serverLog makes the embedded server log with slog, and keeps why it did not start.
type serverLog struct {
	log    *slog.Logger
	mu     sync.Mutex
	fatal  error
	warned map[string]*rarely // by format: a route that is down is tried every second
}

func (l *serverLog) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = fmt.Errorf(format, v...)
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.mu.Lock()
	if l.warned[format] == nil {
		l.warned[format] = &rarely{}
	}
	now := l.warned[format].now()
	l.mu.Unlock()
	if now {
		l.log.Warn("weir: the embedded NATS server: " + fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Warnf(format string, v ...any) { l.Errorf(format, v...) }
func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}

var _ server.Logger = (*serverLog)(nil)
