package push

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/refer"
	"github.com/weir-pg/weir/cmd/internal/work"
	"github.com/weir-pg/weir/internal/hub"
)

// Example is a file with every setting and its meaning.
//
//go:embed example.toml
var Example string

const (
	maxEndpoints = 1000
	maxKinds     = 1000
	maxAtOnce    = 500 // jobs that an endpoint gets at once: half of what a session may hold, because it may still have as many of other queues

	defaultTimeout  = 30 * time.Second
	longestTimeout  = time.Hour
	defaultAccepted = time.Hour
	longestAccepted = 7 * 24 * time.Hour
)

// duration is written as in "1h30m".
type duration struct{ time.Duration }

// UnmarshalText parses a duration.
func (d *duration) UnmarshalText(text []byte) (err error) {
	if d.Duration, err = time.ParseDuration(string(text)); err != nil {
		return fmt.Errorf("%q is not a valid duration: write it as 30s, 5m or 1h30m", text)
	}
	return nil
}

// endpointFile is an endpoint as the file says it.
type endpointFile struct {
	URL             string            `toml:"url"`
	Queues          map[string]int    `toml:"queues"`
	Kinds           []string          `toml:"kinds"`
	Secrets         []string          `toml:"secrets"`
	Headers         map[string]string `toml:"headers"`
	Timeout         duration          `toml:"timeout"`
	AcceptedTimeout duration          `toml:"accepted_timeout"`
}

// file is the file as it was read.
type file struct {
	CallbackURL string                  `toml:"callback_url"`
	Endpoints   map[string]endpointFile `toml:"endpoint"`
}

// target is an endpoint with all that it refers to.
type target struct {
	name     string
	url      string
	queues   map[string]int
	kinds    []string // nil: all
	secrets  []secret
	headers  map[string]string
	timeout  time.Duration
	accepted time.Duration // how long a job that was accepted may take
	callback string        // where the endpoint reports it; "": the endpoint knows
}

// equal reports whether nothing has changed.
func (t *target) equal(o *target) bool {
	return t.url == o.url && t.callback == o.callback && t.timeout == o.timeout && t.accepted == o.accepted && maps.Equal(t.headers, o.headers) &&
		slices.EqualFunc(t.secrets, o.secrets, func(a, b secret) bool { return bytes.Equal(a, b) }) && t.works(o)
}

// works reports whether the jobs that it gets are the same.
func (t *target) works(o *target) bool {
	return maps.Equal(t.queues, o.queues) && slices.Equal(t.kinds, o.kinds)
}

// readFile reads the endpoints from a file, and what it refers to from other files and the environment.
func readFile(path string) (map[string]*target, error) {
	var f file
	if err := refer.TOML(path, &f); err != nil {
		return nil, err
	}
	if f.CallbackURL != "" {
		if err := checkURL(f.CallbackURL); err != nil {
			return nil, fmt.Errorf("callback_url: %w", err)
		}
	}
	if len(f.Endpoints) > maxEndpoints {
		return nil, fmt.Errorf("it has %d endpoints, at most %d are possible", len(f.Endpoints), maxEndpoints)
	}
	targets := make(map[string]*target, len(f.Endpoints))
	for _, name := range slices.Sorted(maps.Keys(f.Endpoints)) {
		var err error
		if targets[name], err = f.Endpoints[name].resolve(name, f.CallbackURL); err != nil {
			return nil, fmt.Errorf("endpoint %.100s: %w", name, err)
		}
	}
	return targets, nil
}

var endpointName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`) // it is part of a URL

func (e endpointFile) resolve(name, callback string) (*target, error) {
	t := &target{name: name, url: e.URL, queues: e.Queues, kinds: e.Kinds, headers: map[string]string{}, timeout: e.Timeout.Duration, accepted: e.AcceptedTimeout.Duration}
	if callback != "" {
		t.callback = strings.TrimSuffix(callback, "/") + "/v1/push/" + name + "/callback"
	}
	if t.timeout == 0 {
		t.timeout = defaultTimeout
	}
	if t.accepted == 0 {
		t.accepted = defaultAccepted
	}
	switch {
	case !endpointName.MatchString(name):
		return nil, errors.New("its name must have 1 to 64 letters, digits, - and _")
	case len(t.queues) == 0:
		return nil, errors.New("it has no queues: write them as queues = { mail = 8 }, with how many jobs it gets at once")
	case t.kinds != nil && len(t.kinds) == 0:
		return nil, errors.New("kinds is empty: leave it out for all kinds")
	case len(t.kinds) > maxKinds || slices.Contains(t.kinds, ""):
		return nil, fmt.Errorf("kinds may have up to %d names", maxKinds)
	case slices.ContainsFunc(t.kinds, hub.IsPattern):
		return nil, fmt.Errorf("kinds has a pattern, %.150q: name each kind, or leave kinds out for all", t.kinds[slices.IndexFunc(t.kinds, hub.IsPattern)])
	case len(e.Secrets) < 1 || len(e.Secrets) > 2:
		return nil, fmt.Errorf("it has %d secrets: give one, or two while you replace it", len(e.Secrets))
	case t.timeout < time.Second || t.timeout > longestTimeout:
		return nil, fmt.Errorf("timeout must be 1s to %v, got %v", longestTimeout, t.timeout)
	case t.accepted < time.Second || t.accepted > longestAccepted:
		return nil, fmt.Errorf("accepted_timeout must be 1s to %v, got %v", longestAccepted, t.accepted)
	}
	if err := checkURL(t.url); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	sum := 0
	for queue, n := range t.queues {
		if !work.IsQueue(queue) {
			return nil, fmt.Errorf("%.150q is no name of a queue: use 1 to 128 characters, without blanks at either end", queue)
		}
		if hub.IsPattern(queue) {
			return nil, fmt.Errorf("%.150q is a pattern, and not the name of a queue: name each queue", queue)
		}
		if sum += n; n < 1 {
			return nil, fmt.Errorf("queue %.100q: it gets %d jobs at once; give it at least 1, or leave it out", queue, n)
		}
	}
	if sum > maxAtOnce {
		return nil, fmt.Errorf("it gets %d jobs at once; at most %d are possible", sum, maxAtOnce)
	}
	for _, from := range e.Secrets {
		text, err := refer.LookUp(from)
		if err != nil {
			return nil, fmt.Errorf("secrets: %w", err)
		}
		s, err := parseSecret(text)
		if err != nil {
			return nil, fmt.Errorf("secrets: %s is not valid: %w: make one with: echo whsec_$(openssl rand -base64 32)", refer.Hidden(from), err)
		}
		t.secrets = append(t.secrets, s)
	}
	for name, from := range e.Headers {
		value, err := refer.LookUp(from)
		if err == nil && (!headerName.MatchString(name) || strings.HasPrefix(strings.ToLower(name), "webhook-") || strings.ContainsAny(value, "\r\n\x00")) {
			err = errors.New("it is not possible")
		}
		if err != nil {
			return nil, fmt.Errorf("header %.100s: %w", name, err)
		}
		t.headers[name] = value
	}
	return t, nil
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Fragment != "" {
		return fmt.Errorf("%.200q is not a valid URL: use an http or https URL", text)
	}
	if u.User != nil {
		return errors.New("it contains a password, which logs would show: use headers = { Authorization = \"env:NAME\" }")
	}
	return nil
}
