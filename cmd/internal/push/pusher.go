package push

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/cmd/internal/work"
	"github.com/weir-pg/weir/internal/sleep"
)

// Config configures a Pusher. All fields are required.
type Config struct {
	File       string // the endpoints: see Example
	Dispatcher *work.Dispatcher
	Lease      time.Duration // of the dispatcher
	Secret     string        // the same at all hubs of the database
	Metrics    *prometheus.Registry
	Log        *slog.Logger
}

// readEvery is how often the file is read.
const readEvery = time.Second

// Pusher pushes jobs to the endpoints of a file. Create it with New, and call Run. It implements web.Endpoints.
type Pusher struct {
	Config
	client  *http.Client
	key     []byte // for tokens
	gate    *web.Gate
	metrics *metrics
	trouble string // why the file can't be read, as it was logged; "": it can

	mu        sync.Mutex
	endpoints map[string]*endpoint // those that were taken out of the file, too, while they have jobs
}

// New returns a Pusher, or what is wrong with the file.
func New(c Config) (*Pusher, error) {
	first, err := readFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	key := hmac.New(sha256.New, []byte(c.Secret))
	key.Write([]byte("weir push tokens"))
	p := &Pusher{Config: c, client: newClient(), key: key.Sum(nil), endpoints: map[string]*endpoint{}}
	for name, t := range first { // before they run: a hub that was restarted may get reports at once
		p.endpoints[name] = newEndpoint(p, t)
	}
	p.metrics, err = newMetrics(c.Metrics, p)
	return p, err
}

// Run pushes jobs until ctx ends: stop the dispatcher first, so that what is being delivered can end.
func (p *Pusher) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer p.client.CloseIdleConnections()
	defer all.Wait()
	p.mu.Lock()
	for _, e := range p.endpoints {
		all.Go(func() { e.run(ctx) })
	}
	p.mu.Unlock()
	for sleep.For(ctx, readEvery) {
		targets, err := readFile(p.File)
		if err != nil {
			if text := err.Error(); text != p.trouble {
				p.Log.Error("weir: the endpoints to push jobs to can't be read; they stay as they were", "file", p.File, "error", err)
				p.trouble = text
			}
			continue
		}
		if p.trouble != "" {
			p.Log.Info("weir: the endpoints to push jobs to can be read again", "file", p.File)
			p.trouble = ""
		}
		p.apply(ctx, targets, &all)
	}
}

// apply makes the endpoints what the file says.
func (p *Pusher) apply(ctx context.Context, targets map[string]*target, all *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, e := range p.endpoints {
		if targets[name] == nil {
			e.update(nil)
		}
	}
	for name, t := range targets {
		if e := p.endpoints[name]; e != nil && e.update(t) {
			continue
		}
		e := newEndpoint(p, t)
		p.endpoints[name] = e
		all.Go(func() { e.run(ctx) })
	}
}

// endpoint returns the endpoint of a name; nil: there is none.
func (p *Pusher) endpoint(name string) *endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints[name]
}

// gone forgets an endpoint that has ended.
func (p *Pusher) gone(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints[e.name] == e {
		delete(p.endpoints, e.name)
	}
}

const tagBytes = 12

// tag binds the token of an attempt to an endpoint: with the secret of another, it is of no use.
func (p *Pusher) tag(endpoint, token string) string {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(endpoint + "\x00" + token))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:tagBytes])
}

// bound returns the token of an attempt as an endpoint gets it.
func (p *Pusher) bound(endpoint, token string) string { return token + "." + p.tag(endpoint, token) }

// unbound returns the token that an endpoint has got.
func (p *Pusher) unbound(endpoint, bound string) (token string, ok bool) {
	token, tag, _ := strings.Cut(bound, ".")
	return token, hmac.Equal([]byte(tag), []byte(p.tag(endpoint, token)))
}
