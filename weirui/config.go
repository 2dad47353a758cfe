package weirui

import (
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// Config configures a UI. Databases and Access are required.
type Config struct {
	Databases []Database
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
	origin    *http.CrossOriginProtection
	databases []*database
	secret    map[string]bool // fields that are not shown
	asks      map[string]ask  // by the path of the action
	servers   servers
	patience  time.Duration // how long a page looks for jobs that are rare
}

var databaseName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// New returns a UI.
func New(c Config) (*UI, error) {
	switch {
	case len(c.Databases) == 0:
		return nil, errors.New("weirui: Config.Databases is empty: name the databases to show")
	case c.Access == nil:
		return nil, errors.New("weirui: Config.Access is nil: say who may use the UI, for example with Password; for everybody, Open")
	}
	u := &UI{config: c, log: c.Logger, mux: http.NewServeMux(), origin: http.NewCrossOriginProtection(), secret: map[string]bool{}, asks: map[string]ask{}, patience: 250 * time.Millisecond}
	if u.log == nil {
		u.log = slog.Default()
	}
	for _, n := range slices.Concat(DefaultRedact, c.Redact) {
		u.secret[plainName(n)] = true
	}
	seen := map[string]bool{}
	for i, d := range c.Databases {
		switch {
		case d.Pool == nil:
			return nil, fmt.Errorf("weirui: Config.Databases[%d].Pool is nil", i)
		case !databaseName.MatchString(d.Name) && (d.Name != "" || len(c.Databases) > 1) || d.Name == "." || d.Name == "..":
			return nil, fmt.Errorf("weirui: Config.Databases[%d].Name is %q: it must have 1 to 63 letters, digits, hyphens, underscores and dots", i, d.Name)
		case seen[d.Name]:
			return nil, fmt.Errorf("weirui: two databases have the name %q", d.Name)
		}
		seen[d.Name] = true
		u.databases = append(u.databases, newDatabase(d, weir.NewClient(d.Pool)))
	}
	var err error
	if u.templates, err = parseTemplates(u); err != nil {
		return nil, fmt.Errorf("weirui: %w", err)
	}
	u.routes()
	return u, nil
}
