// Package ui makes the web UI of a hub process: the package weirui, with what this process knows of its hub and its doctor.
package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/weirui"
)

// Config configures the UI of a server.
type Config struct {
	weirui.Config // Databases are set here, and a Logger is required

	Listen string // an address of its own; "": below /ui/ of the server's HTTP

	// Open lets everybody in with this role, on loopback addresses only; Access is then not used.
	Open weirui.Role

	// Database is the connection string of the server's database, and Others those of further databases, by the names to show. One with the name of the server's database is
	// how the UI connects to that. "": the UI is that of a server.Many, and shows the databases of List, with their hubs.
	Database string
	Others   map[string]string

	// List returns the connection strings of still more databases, which come and go: it is called every ListEvery, by default 15 seconds. nil: there are none.
	List      func() ([]string, error)
	ListEvery time.Duration
}

const (
	connections = 8               // of a database: as many as the UI uses at a time
	lookWithin  = 5 * time.Second // whether the UI may do what it has to
)

// New returns what server.Config.UI is set to.
func New(c Config) (*server.UI, error) {
	if c.Open != weirui.Nobody {
		c.Access = weirui.Open(c.Open)
	}
	if c.Database == "" {
		return ofMany(c), nil
	}
	names, err := connstring.Named(c.Database)
	if err != nil {
		return nil, err
	}
	main := names.Short
	var follow *follower // set by the handler, before it runs
	result := &server.UI{Listen: c.Listen, Open: c.Open != weirui.Nobody, Handler: func(ctx context.Context, s *server.Server) (http.Handler, error) {
		first := weirui.Database{Name: main, Hub: hub{s}}
		if s.Examines() {
			first.Doctor = doctor{s}
		}
		var others []weirui.Database
		for name := range c.Others {
			if name != main {
				others = append(others, weirui.Database{Name: name})
			}
		}
		slices.SortFunc(others, func(a, b weirui.Database) int { return cmp.Compare(a.Name, b.Name) })
		config := c.Config
		config.Databases = append([]weirui.Database{first}, others...)
		for i := range config.Databases {
			d := &config.Databases[i]
			url, ok := c.Others[d.Name]
			if !ok {
				url = c.Database
			}
			if d.Pool, err = s.Pool(ctx, url, connections, "weir ui"); err != nil {
				return nil, fmt.Errorf("connect the web UI to the database %s: %w", d.Name, err)
			}
		}
		looked := make([]error, len(config.Databases))
		var looks sync.WaitGroup
		for i := range config.Databases { // at the same time, so that several that don't answer delay the hub no longer than one
			looks.Go(func() { looked[i] = look(ctx, config.Databases[i], config.Logger) })
		}
		looks.Wait()
		if err := all(looked); err != nil {
			return nil, err
		}
		config.Several = c.List != nil
		u, err := weirui.New(config)
		if c.List != nil && err == nil {
			follow = newFollower(u, c, config.Databases)
		}
		return u, err
	}}
	if c.List != nil {
		result.Run = func(ctx context.Context) { follow.run(ctx) }
	}
	return result, nil
}

// ofMany returns the UI of a server.Many.
func ofMany(c Config) *server.UI {
	var follow *follower // set by the handler, before it runs
	return &server.UI{
		Listen: c.Listen, Open: c.Open != weirui.Nobody,
		Many: func(_ context.Context, m *server.Many) (http.Handler, error) {
			config := c.Config
			config.Databases, config.Several = nil, true
			u, err := weirui.New(config)
			if err == nil {
				follow = newFollower(u, c, nil)
				follow.many = m
			}
			return u, err
		},
		Run: func(ctx context.Context) { follow.run(ctx) },
	}
}

// all joins errors so that each can be told from the others where they are shown in one line.
func all(errs []error) (joined error) {
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; and %w", joined, err)
		}
	}
	return joined
}

// look checks that the UI may do what it has to. A database that can't be reached now may be later.
func look(ctx context.Context, d weirui.Database, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	_, err := weir.NewClient(d.Pool).Settings(ctx)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == "42501":
		user := d.Pool.Config().ConnConfig.User
		return fmt.Errorf("the web UI may not read the database %s: GRANT weir_operate TO %s, or have the UI connect as another user with --ui-database %s=URL", d.Name, quoted(user), d.Name)
	}
	log.Warn("weir: the web UI can't read a database yet", "database", d.Name, "error", err)
	return nil
}

// quoted is a name as SQL has it.
func quoted(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return fmt.Sprintf("%q", name)
}

var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)
