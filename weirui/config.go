package weirui

import (
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// Config configures a UI. Databases and Access are required.
type Config struct {
	Databases []Database
	Several   bool         // the databases may change while it runs: see UI.SetDatabases. Then there may be none at first, and all have pages below db/NAME/, even one
	Access    Access       // who may use it, and for what
	ReadOnly  bool         // nobody may change anything, whatever Access says
	Redact    []string     // names of fields whose values are never shown, wherever they are in args, meta and outputs, besides those in DefaultRedact
	Logger    *slog.Logger // nil: slog.Default(). Each action is logged, with who did it
}

// Database is a database that the UI shows.
type Database struct {
	// Name is part of its pages' addresses and shown where there are several: letters, digits, hyphens, underscores and dots. It may be "" if there is one.
	Name string

	// Pool connects as a role with weir_operate. The UI uses up to six of its connections at a time, and two more while somebody watches messages.
	Pool *pgxpool.Pool

	Hub    Hub    // the hub of this process; nil: none
	Doctor Doctor // nil: none
}

// DefaultRedact are the fields that are never shown. Upper and lower case, hyphens and underscores don't matter.
var DefaultRedact = []string{"password", "passwd", "secret", "token", "access_token", "refresh_token", "api_key", "authorization", "private_key", "credit_card", "card_number", "cvv", "ssn", "iban"}

// UI is the web UI. Create it with New.
type UI struct {
	config    Config
	log       *slog.Logger
	templates *template.Template
	mux       *http.ServeMux
	static    http.Handler // for everybody, also who is not let in
	origin    *http.CrossOriginProtection
	several   bool // each database has its pages below db/NAME/
	databases atomic.Pointer[[]*database]
	sums      slots           // how many databases are read at a time for the page of all
	secret    map[string]bool // fields that are not shown
	asks      map[string]ask  // by the path of the action
	servers   servers
	patience  time.Duration // how long a page looks for jobs that are rare
}

var databaseName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// New returns a UI.
func New(c Config) (*UI, error) {
	switch {
	case len(c.Databases) == 0 && !c.Several:
		return nil, errors.New("weirui: Config.Databases is empty: name the databases to show")
	case c.Access == nil:
		return nil, errors.New("weirui: Config.Access is nil: say who may use the UI, for example with Password; for everybody, Open")
	}
	u := &UI{config: c, log: c.Logger, mux: http.NewServeMux(), static: staticFiles(), origin: http.NewCrossOriginProtection(), secret: map[string]bool{}, asks: map[string]ask{}, patience: 40 * time.Millisecond,
		several: c.Several || len(c.Databases) > 1, sums: make(slots, sumsAtOnce)}
	if u.log == nil {
		u.log = slog.Default()
	}
	for _, n := range slices.Concat(DefaultRedact, c.Redact) {
		u.secret[plainName(n)] = true
	}
	if err := u.setDatabases(c.Databases); err != nil {
		return nil, err
	}
	var err error
	if u.templates, err = parseTemplates(u); err != nil {
		return nil, fmt.Errorf("weirui: %w", err)
	}
	u.routes()
	return u, nil
}

// SetDatabases shows other databases from now on, if Config.Several is set. One that has the name and the pool that it had before goes on as it is. Pools of databases that are
// not among them any more may be closed: requests that still use them fail.
func (u *UI) SetDatabases(all []Database) error {
	if !u.config.Several {
		return errors.New("weirui: SetDatabases needs Config.Several, which decides about the addresses of pages")
	}
	return u.setDatabases(all)
}

func (u *UI) setDatabases(all []Database) error {
	before := map[string]*database{}
	for _, d := range u.list() {
		before[d.Name] = d
	}
	seen := map[string]bool{}
	list := make([]*database, len(all))
	for i, d := range all {
		switch {
		case d.Pool == nil:
			return fmt.Errorf("weirui: Config.Databases[%d].Pool is nil", i)
		case !databaseName.MatchString(d.Name) && (d.Name != "" || u.several) || d.Name == "." || d.Name == "..":
			return fmt.Errorf("weirui: Config.Databases[%d].Name is %q: it must have 1 to 63 letters, digits, hyphens, underscores and dots", i, d.Name)
		case seen[d.Name]:
			return fmt.Errorf("weirui: two databases have the name %q", d.Name)
		}
		seen[d.Name] = true
		if was := before[d.Name]; was != nil && was.Pool == d.Pool {
			list[i] = was
		} else {
			list[i] = newDatabase(d, weir.NewClient(d.Pool))
		}
	}
	u.databases.Store(&list)
	return nil
}

// list returns the databases.
func (u *UI) list() []*database {
	if all := u.databases.Load(); all != nil {
		return *all
	}
	return nil
}
