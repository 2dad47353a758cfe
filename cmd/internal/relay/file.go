// Package relay runs the relays of a file.
package relay

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/refer"
	"github.com/weir-pg/weir/weirrelay"
)

// Example is a file with every setting and its meaning.
//
//go:embed example.toml
var Example string

const maxRelays = 100

// file is the file as it was read.
type file struct {
	Relays map[string]relayFile `toml:"relay"`
}

type relayFile struct {
	Since       string        `toml:"since"`
	MaxRecords  int           `toml:"max_records"`
	MaxBytes    int           `toml:"max_bytes"`
	DeadLetters string        `toml:"dead_letters"`
	Routes      []routeFile   `toml:"route"`
	NATS        *natsFile     `toml:"nats"`
	Redis       *redisFile    `toml:"redis"`
	Database    *databaseFile `toml:"database"`
}

type routeFile struct {
	Channels string            `toml:"channels"`
	Subject  string            `toml:"subject"`
	Key      string            `toml:"key"`
	Headers  map[string]string `toml:"headers"`
}

type natsFile struct {
	URL         string `toml:"url"`
	Stream      string `toml:"stream"`
	Domain      string `toml:"domain"`
	Credentials string `toml:"credentials"`
	TLSCA       string `toml:"tls_ca"`
}

type redisFile struct {
	URL       string `toml:"url"`
	Form      string `toml:"form"`
	MaxLength int64  `toml:"max_length"`
}

type databaseFile struct {
	URL  string `toml:"url"`
	Kind string `toml:"kind"`
}

var relayName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// read reads the relays of a file, without their pools and targets.
func read(path string) (map[string]relayFile, map[string]weirrelay.Config, error) {
	var f file
	if err := refer.TOML(path, &f); err != nil {
		return nil, nil, err
	}
	if len(f.Relays) < 1 || len(f.Relays) > maxRelays {
		return nil, nil, fmt.Errorf("it has %d relays: write 1 to %d, each under [relay.NAME]", len(f.Relays), maxRelays)
	}
	configs := map[string]weirrelay.Config{}
	for _, name := range slices.Sorted(maps.Keys(f.Relays)) {
		c, err := f.Relays[name].config(name)
		if err != nil {
			return nil, nil, fmt.Errorf("relay %.100s: %w", name, err)
		}
		configs[name] = c
	}
	return f.Relays, configs, nil
}

func (f relayFile) config(name string) (c weirrelay.Config, err error) {
	targets := 0
	for _, given := range []bool{f.NATS != nil, f.Redis != nil, f.Database != nil} {
		if given {
			targets++
		}
	}
	switch {
	case !relayName.MatchString(name):
		return c, errors.New("its name must have 1 to 100 letters, digits, - and _")
	case targets != 1:
		return c, fmt.Errorf("it has %d targets: give one of nats, redis and database, as in [relay.%s.nats]", targets, name)
	case len(f.Routes) == 0:
		return c, errors.New(`it has no routes: name channels, as in route = [{ channels = "orders.>" }]`)
	}
	c = weirrelay.Config{Name: name, MaxRecords: f.MaxRecords, MaxBytes: f.MaxBytes, DeadLetters: f.DeadLetters}
	if c.Since, err = since(f.Since); err != nil {
		return c, err
	}
	for _, r := range f.Routes {
		c.Routes = append(c.Routes, weirrelay.Route(r))
	}
	return c, weirrelay.Check(c)
}

func since(text string) (time.Time, error) {
	switch text {
	case "", "now":
		return time.Time{}, nil
	case "oldest":
		return time.Unix(0, 0), nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf(`since = %q: write "now", "oldest", how long ago as in "2h", or a time as in "2026-11-26T08:00:00Z"`, text)
	}
	return at, nil
}
