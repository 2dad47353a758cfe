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
	startAtMost = 10 * time.Second
	routeUser   = "weir"
	maxPayload  = 4 << 20  // bytes of a frame
	maxPending  = 64 << 20 // bytes that wait for the hub; beyond that it is disconnected, and reconnects
	routePing   = 2 * time.Second
	readyEvery  = 50 * time.Millisecond // between checks whether the server accepts connections
)

// startServer starts a NATS server that other hubs' servers can join, and that accepts clients only from within this process.
func startServer(ctx context.Context, config *Config, id ident) (*server.Server, error) {
	options, err := serverOptions(config, id)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("create the embedded NATS server: %w", err)
	}
	log := &serverLog{log: config.Logger, warned: map[string]*rarely{}}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, startAtMost)
	defer cancel()
	for !s.ReadyForConnections(readyEvery) {
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
	if e.Secret != "" && len(e.Secret) < minSecret {
		return nil, fmt.Errorf("the cluster's secret has %d characters; at least %d are required: create one with openssl rand -hex 32",
			len(e.Secret), minSecret)
	}
	if e.Secret == "" && e.TLS.isZero() {
		return nil, errors.New("an embedded NATS server needs a secret or certificates: create a secret with openssl rand -hex 32")
	}
	options := &server.Options{
		ServerName: "weir-" + hex.EncodeToString(id[:]),
		// Routes need an open client port. All logins there are refused.
		Host: "127.0.0.1", Port: server.RANDOM_PORT, CustomClientAuthentication: inProcess{},
		NoSigs: true, NoLog: true, DisableShortFirstPing: true,
		MaxPayload: maxPayload, MaxPending: maxPending,
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
			config.Logger.Warn("weir: messages to other hubs are not encrypted: configure certificates, or keep the network private", "listen", e.Listen)
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

// inProcess accepts only clients from within this process.
type inProcess struct{}

// Check implements server.Authentication.
func (inProcess) Check(c server.ClientAuthentication) bool {
	at := c.RemoteAddress()
	return at != nil && at.Network() == "pipe"
}

// mutual returns a configuration in which both sides have to present a certificate.
func mutual(t TLS) (*tls.Config, error) {
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return nil, errors.New("an embedded NATS server with TLS needs three files: a CA, a certificate that it has signed, and the certificate's key")
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
		return "", 0, fmt.Errorf("%q is not a valid address of a hub's NATS server: use the form host:port", address)
	}
	return host, port, nil
}

// Address returns where the embedded server listens for the servers of other hubs; "" without an embedded server.
func (c *Cluster) Address() string {
	if c.server == nil {
		return ""
	}
	return c.server.ClusterAddr().String()
}

// serverLog makes the embedded server log with slog, and keeps the reason if it fails to start.
type serverLog struct {
	log    *slog.Logger
	mu     sync.Mutex
	fatal  error
	warned map[string]*rarely // by format: a route that is down is retried every second
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
