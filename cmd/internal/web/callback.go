package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// CallbackConfig configures an authorization callback. Only URL is required.
type CallbackConfig struct {
	URL        string        // receives a POST for each question
	Timeout    time.Duration // for an answer; 0: 2 s
	Concurrent int           // maximum questions at once; others wait, within Timeout; 0: 64
	Cache      time.Duration // how long an answer is reused for the same question; 0: 5 s; negative: not at all
	Client     *http.Client  // nil: a new client that follows no redirects
}

const (
	defaultCallbackTimeout = 2 * time.Second
	defaultConcurrent      = 64
	defaultCache           = 5 * time.Second
	maxCached              = 10000
	maxAnswer              = 64 << 10
	maxAllowed             = 1000 // channels and patterns in an answer
	maxUser                = 255  // bytes of a user's name
)

// callback authorizes clients by asking an HTTP service.
type callback struct {
	CallbackConfig
	slots chan struct{}

	mu     sync.Mutex
	cached map[[sha256.Size]byte]cachedGrant
	forgot uint64 // how often answers were forgotten
}

type cachedGrant struct {
	grant    Grant
	err      error
	database string // that the question was about
	until    time.Time
}

// question is the body of a request to the service.
type question struct {
	Token    string   `json:"token"`
	Action   Action   `json:"action"`
	Channels []string `json:"channels"`
	Remote   string   `json:"remote"`
	Database string   `json:"database,omitempty"` // its full name, if that is known
}

// NewCallback returns an Authorizer that asks an HTTP service.
func NewCallback(c CallbackConfig) (Authorizer, error) {
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("web: %q is not a valid URL for the authorization callback: use an http or https URL", c.URL)
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultCallbackTimeout
	}
	if c.Concurrent <= 0 {
		c.Concurrent = defaultConcurrent
	}
	if c.Cache == 0 {
		c.Cache = defaultCache
	}
	if c.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = c.Concurrent
		// Redirects are not followed: the token must only reach the configured service.
		c.Client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &callback{CallbackConfig: c, slots: make(chan struct{}, c.Concurrent), cached: map[[sha256.Size]byte]cachedGrant{}}, nil
}

// Authorize implements Authorizer.
func (c *callback) Authorize(ctx context.Context, ask Ask) (Grant, error) {
	if ask.Token == "" {
		return Grant{}, noToken // a client without a token must not cause requests to the service
	}
	if ask.Several && len(ask.Databases) == 0 { // the service would not know which of them it allows
		return Grant{}, Denied("this database has no name of its own now", "another one has got the same")
	}
	if len(ask.Filters) == 0 {
		ask.Action = Connect
	}
	database := fullName(ask.Databases)
	body := marshal(question{Token: ask.Token, Action: ask.Action, Channels: names(ask.Filters), Remote: ask.Remote, Database: database})
	key := sha256.Sum256(body)
	if cached, ok := c.recall(key); ok {
		return cached.grant, cached.err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return Grant{}, fmt.Errorf("ask the authorization callback: %d questions are in progress: %w", c.Concurrent, ctx.Err())
	}
	if cached, ok := c.recall(key); ok { // another request has asked the same in the meantime
		return cached.grant, cached.err
	}
	c.mu.Lock()
	asked := c.forgot
	c.mu.Unlock()
	grant, err := c.ask(ctx, body, ask.Filters)
	var refusal *Failure
	if err == nil || errors.As(err, &refusal) {
		c.remember(key, cachedGrant{grant: grant, err: err, database: database}, asked)
	}
	return grant, err
}

func (c *callback) ask(ctx context.Context, body []byte, filters []hub.Filter) (Grant, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return Grant{}, fmt.Errorf("ask the authorization callback: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.Client.Do(request)
	if err != nil {
		return Grant{}, fmt.Errorf("ask the authorization callback: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return Grant{}, fmt.Errorf("read the authorization callback's answer: %w", err)
	}
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		return Grant{}, NoToken("the token is not valid", "get a new one")
	case response.StatusCode == http.StatusForbidden:
		return Grant{}, Denied("this is not allowed", "")
	case response.StatusCode != http.StatusOK:
		return Grant{}, fmt.Errorf("the authorization callback answered %s: it must answer 200, 401 or 403", response.Status)
	case len(answer) > maxAnswer:
		return Grant{}, fmt.Errorf("the authorization callback's answer is longer than %d bytes", maxAnswer)
	}
	grant, err := parseAnswer(answer, filters)
	if err != nil {
		return Grant{}, fmt.Errorf("the authorization callback's answer: %w", err)
	}
	return grant, nil
}

// parseAnswer parses {"allow": true, "expires_in": 300}; allow may be a list of channels and patterns instead. true allows exactly what was
// asked for: a channel that is named like a pattern is still one channel.
func parseAnswer(answer []byte, asked []hub.Filter) (grant Grant, err error) {
	var a struct {
		Allow     json.RawMessage `json:"allow"`
		ExpiresIn *float64        `json:"expires_in"`
		User      string          `json:"user"`
		Info      json.RawMessage `json:"info"`
		Terms
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return grant, err
	}
	var yes bool
	var patterns []string
	if err := json.Unmarshal(a.Allow, &yes); err == nil {
		if !yes {
			return grant, Denied("this is not allowed", "")
		}
		grant.Allow = asked
	} else if err := json.Unmarshal(a.Allow, &patterns); err != nil {
		return grant, errors.New("allow must be true, false or a list of channels and patterns")
	} else if len(patterns) > maxAllowed {
		return grant, fmt.Errorf("it allows %d channels and patterns; the limit is %d: use broader patterns", len(patterns), maxAllowed)
	} else if grant.Allow, err = hub.ParseFilters(patterns); err != nil {
		return grant, err
	}
	if len(a.User) > maxUser {
		return grant, fmt.Errorf("the user has %d bytes; the limit is %d", len(a.User), maxUser)
	}
	if a.PublishRate != nil && *a.PublishRate <= 0 {
		return grant, fmt.Errorf("publish_rate is %v: it must be greater than 0; to allow no message, don't allow the channel", *a.PublishRate)
	}
	grant.Info = infoOf(a.Info)
	if grant.User = a.User; a.Terms != (Terms{}) {
		grant.Terms = &a.Terms
	}
	if a.ExpiresIn != nil {
		if *a.ExpiresIn <= 0 {
			return grant, NoToken("the token has expired", "get a new one")
		}
		const year = 365 * 24 * 3600
		grant.Expires = time.Now().Add(time.Duration(min(*a.ExpiresIn, year) * float64(time.Second)))
	}
	return grant, nil
}

// forget forgets the answers about a database. Those about others stay: were the service away, their clients would be refused.
func (c *callback) forget(database string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.cached, func(_ [sha256.Size]byte, a cachedGrant) bool { return a.database == database })
	c.forgot++
}

func (c *callback) recall(key [sha256.Size]byte) (cachedGrant, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached, ok := c.cached[key]
	now := time.Now()
	return cached, ok && now.Before(cached.until) && !cached.grant.Expired(now)
}

// remember keeps an answer, unless some were forgotten since the question was asked, when that had happened as often as asked says.
func (c *callback) remember(key [sha256.Size]byte, answer cachedGrant, asked uint64) {
	if c.Cache < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgot != asked {
		return
	}
	now := time.Now()
	if len(c.cached) >= maxCached {
		for k, old := range c.cached {
			if now.After(old.until) {
				delete(c.cached, k)
			}
		}
		if len(c.cached) >= maxCached {
			clear(c.cached) // caching does not help against a storm of different clients
		}
	}
	answer.until = now.Add(c.Cache)
	c.cached[key] = answer
}
