package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/schema"
)

const (
	appName     = "weir lab"         // of working sessions
	watcherName = "weir lab watcher" // of observing sessions

	// Comments of schema weir_lab, which say what the lab may drop.
	markAlone = "made by weir lab"
	markWeir  = "made by weir lab, which also installed schema weir"
	markFlows = markWeir + " and made schema " + treeFlowsSchema
)

// needs is what a scenario requires of its server.
type needs struct {
	connections int
	parameters  map[string]string // of a private server
	weir        bool              // some ways use Weir's functions
}

// site is a database to measure in.
type site struct {
	url         string
	server      *embedded.Server // nil: an existing database
	private     load.Server
	follower    *embedded.Server // a standby of the private server; nil: not started
	followerDir string
	guard       *pgx.Conn // holds the lab's lock; creates and drops the schemas
	weir        bool      // Weir's functions may be used
	notes       []string
	version     string
	number      int // server_version_num
	super       bool
	mine        bool // the lab's lock is held, so the lab's schemas in the database are this run's
}

// openSite starts a private server, or uses the given database after checking that it is empty.
func openSite(ctx context.Context, url string, major int, allowNonempty bool, n needs, say func(string)) (s *site, err error) {
	s = &site{url: url}
	defer func() {
		if err != nil {
			err = errors.Join(s.explain(err), s.close())
		}
	}()
	if url == "" {
		if err := s.start(ctx, major, n, say); err != nil {
			return s, err
		}
	}
	if s.guard, err = connect(ctx, s.url, watcherName, nil); err != nil {
		return s, fmt.Errorf("lab: connect: %w", err)
	}
	err = s.guard.QueryRow(ctx, `
		SELECT current_setting('server_version'), current_setting('server_version_num')::int, rolsuper FROM pg_roles WHERE rolname = current_user`).Scan(&s.version, &s.number, &s.super)
	if err != nil {
		return s, fmt.Errorf("lab: read the server's version: %w", err)
	}
	if s.number/10000 < schema.Oldest {
		return s, fmt.Errorf("lab: the server is PostgreSQL %d: the lab needs %d or later", s.number/10000, schema.Oldest)
	}
	left, err := connectionsLeft(ctx, s.guard)
	if err != nil {
		return s, err
	}
	if n.connections > left {
		return s, fmt.Errorf("lab: this needs %d connections, and the server has %d left of max_connections: use fewer clients, or measure "+
			"on a private server",
			n.connections, left)
	}
	return s, s.occupy(ctx, allowNonempty, n.weir)
}

// start starts a private server.
func (s *site) start(ctx context.Context, major int, n needs, say func(string)) error {
	say("starting a private PostgreSQL")
	parameters := map[string]string{
		"shared_buffers":  "512MB",
		"max_wal_size":    "4GB",
		"max_connections": strconv.Itoa(max(n.connections+20, 100)),
	}
	maps.Copy(parameters, n.parameters)
	if err := s.private.Start(ctx, embedded.Config{Major: major, Parameters: parameters}); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	s.server = s.private.Server
	s.url = s.server.URL("postgres")
	return nil
}

// occupy creates the lab's schema, after checking what else the database contains.
func (s *site) occupy(ctx context.Context, allowNonempty, weir bool) error {
	var locked bool
	if err := s.guard.QueryRow(ctx, tryLock).Scan(&locked); err != nil {
		return fmt.Errorf("lab: take the lab's lock: %w", err)
	}
	if !locked {
		return errors.New("lab: another lab is running in this database: wait until it ends, or use another database")
	}
	s.mine = true
	mark, err := s.mark(ctx)
	if err != nil {
		return err
	}
	if s.server == nil && !allowNonempty {
		if err := s.refuseForeign(ctx, mark); err != nil {
			return err
		}
	}
	if err := s.clear(ctx); err != nil { // left by a lab that was killed
		return err
	}
	if _, err := s.guard.Exec(ctx, `CREATE SCHEMA weir_lab; COMMENT ON SCHEMA weir_lab IS '`+markAlone+`'`); err != nil {
		return fmt.Errorf("lab: create schema weir_lab: %w", err)
	}
	if !weir {
		return nil
	}
	var there bool
	if err := s.guard.QueryRow(ctx, `SELECT to_regnamespace('weir') IS NOT NULL`).Scan(&there); err != nil {
		return fmt.Errorf("lab: check for schema weir: %w", err)
	}
	if there {
		s.notes = append(s.notes, "The database has its own schema weir, which the lab does not touch: the variants that use Weir "+
			"were not measured.")
		return nil
	}
	if err := s.remark(ctx, markWeir); err != nil {
		return err
	}
	roles, err := rolesMissing(ctx, s.guard)
	if err != nil {
		return err
	}
	if err := schema.Up(ctx, s.guard); err != nil {
		return fmt.Errorf("lab: install Weir: %w", err)
	}
	s.weir = true
	if names := strings.Join(roles, ", "); names != "" && s.server == nil {
		s.notes = append(s.notes, fmt.Sprintf("The roles %s are new, and stay: roles belong to the whole server, and other databases may use them by now. If none does, remove them with: DROP ROLE %[1]s", names))
	}
	return nil
}

// remark comes before what it names is made, so that the lab knows what it may drop even if it is killed next.
func (s *site) remark(ctx context.Context, mark string) error {
	if _, err := s.guard.Exec(ctx, `COMMENT ON SCHEMA weir_lab IS '`+mark+`'`); err != nil {
		return fmt.Errorf("lab: mark schema weir_lab: %w", err)
	}
	return nil
}

// ownFlows makes the schema of the tree in Weir's flows the lab's, unless the database has one of its own.
func (s *site) ownFlows(ctx context.Context) (own bool, err error) {
	var there bool
	if err := s.guard.QueryRow(ctx, `SELECT to_regnamespace('`+treeFlowsSchema+`') IS NOT NULL`).Scan(&there); err != nil || there {
		return false, err
	}
	return true, s.remark(ctx, markFlows)
}

// mark returns the comment of schema weir_lab, or "".
func (s *site) mark(ctx context.Context) (mark string, err error) {
	err = s.guard.QueryRow(ctx, `SELECT coalesce((SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'weir_lab'), '')`).Scan(&mark)
	if err != nil {
		return "", fmt.Errorf("lab: inspect schema weir_lab: %w", err)
	}
	return mark, nil
}

// refuseForeign returns an error if the database contains anything that the lab has not created.
func (s *site) refuseForeign(ctx context.Context, mark string) error {
	own := []string{"public", "information_schema"}
	switch mark {
	case markFlows:
		own = append(own, "weir_lab", "weir", treeFlowsSchema)
	case markWeir:
		own = append(own, "weir_lab", "weir")
	case markAlone:
		own = append(own, "weir_lab")
	}
	var found []string
	err := s.guard.QueryRow(ctx, `
		SELECT coalesce(array_agg(what), '{}') FROM (
			SELECT 'schema ' || nspname AS what FROM pg_namespace WHERE nspname <> ALL ($1) AND nspname !~ '^pg_'
			UNION ALL
			SELECT 'relation public.' || relname FROM pg_class c
			WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
			  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
			UNION ALL
			SELECT 'function public.' || proname FROM pg_proc p
			WHERE pronamespace = 'public'::regnamespace
			  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
			LIMIT 4) f`, own).Scan(&found)
	if err != nil {
		return fmt.Errorf("lab: check whether the database is empty: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	some := strings.Join(found, ", ")
	if len(found) == 4 {
		some = strings.Join(found[:3], ", ") + " and more"
	}
	return fmt.Errorf("lab: the database is not empty (%s), and the lab would disturb its users: use an empty one, or pass "+
		"--allow-nonempty", some)
}

// clear drops what the lab has created.
func (s *site) clear(ctx context.Context) error {
	mark, err := s.mark(ctx)
	if err != nil || mark == "" {
		return err
	}
	if mark != markAlone && mark != markWeir && mark != markFlows {
		return fmt.Errorf("lab: the database has a schema weir_lab that the lab has not created (its comment is %q): drop or rename it, or use "+
			"another database", mark)
	}
	if err := unpin(ctx, s.guard); err != nil {
		return err
	}
	if mark == markFlows {
		if _, err := s.guard.Exec(ctx, `SET client_min_messages = warning; DROP SCHEMA IF EXISTS `+treeFlowsSchema+` CASCADE`); err != nil {
			return fmt.Errorf("lab: drop schema %s: %w", treeFlowsSchema, err)
		}
	}
	if mark == markWeir || mark == markFlows {
		if err := schema.Down(ctx, s.guard, 0); err != nil {
			return fmt.Errorf("lab: remove Weir: %w", err)
		}
	}
	if _, err := s.guard.Exec(ctx, `SET client_min_messages = warning; DROP SCHEMA weir_lab CASCADE`); err != nil {
		return fmt.Errorf("lab: drop schema weir_lab: %w", err)
	}
	return nil
}

// close drops what the lab created in a given database, or stops and removes the private server.
func (s *site) close() error {
	// Clean up however the run ended.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if !s.private.Started() {
		if s.guard == nil {
			return nil
		}
		if !s.mine {
			return s.guard.Close(ctx) // what exists is not this lab's
		}
		if err := s.reconnect(ctx); err != nil {
			return &LeftError{err}
		}
		// Disconnected sessions may still be running in the server and hold locks. The lab's lock guarantees that they are this run's.
		_, err := s.guard.Exec(ctx, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = current_user AND application_name IN ($1, $2) AND pid <> pg_backend_pid()`, appName, watcherName)
		err = errors.Join(err, s.clear(ctx))
		// The server may notice the end of a session only after the next lab has started.
		_, unlockErr := s.guard.Exec(ctx, `SELECT pg_advisory_unlock(hashtextextended('weir lab', 0))`)
		if err = errors.Join(err, unlockErr, s.guard.Close(ctx)); err != nil {
			return &LeftError{err}
		}
		return nil
	}
	if s.guard != nil {
		_ = s.guard.Close(ctx) // the server is being stopped anyway
	}
	return errors.Join(s.dropStandby(ctx), s.private.Remove(ctx))
}

// LeftError is why a lab could not remove what it had made in a given database.
type LeftError struct{ Err error }

func (e *LeftError) Error() string {
	return fmt.Sprintf("lab: what it has made in the database is left there, until the next lab runs in it: %v", e.Err)
}

func (e *LeftError) Unwrap() error { return e.Err }

// reconnect gives the guard a new session with the lab's lock if it has lost its own, as it does when its query is interrupted.
func (s *site) reconnect(ctx context.Context) error {
	if !s.guard.IsClosed() {
		return nil
	}
	guard, err := connect(ctx, s.url, watcherName, nil)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	for locked := false; !locked; { // the server may notice only now that the session has ended
		if err := guard.QueryRow(ctx, tryLock).Scan(&locked); err != nil {
			return errors.Join(fmt.Errorf("take the lab's lock: %w", err), guard.Close(ctx))
		}
		if !locked && !sleep.For(ctx, 50*time.Millisecond) {
			closeConn(guard)
			return errors.New("another lab is running in this database")
		}
	}
	s.guard = guard
	return nil
}

// tryLock takes the lab's lock, which ends with the guard's session, even if this process is killed.
const tryLock = `SELECT pg_try_advisory_lock(hashtextextended('weir lab', 0))`

// facts describes the server for the result.
func (s *site) facts(ctx context.Context) (Server, error) {
	f := Server{Version: s.version, Private: s.server != nil}
	rows, err := s.guard.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings WHERE name IN (
		'autovacuum', 'autovacuum_naptime', 'checkpoint_timeout', 'commit_delay', 'commit_siblings', 'fsync', 'full_page_writes', 'huge_pages',
		'io_method', 'jit', 'max_connections', 'max_wal_size', 'shared_buffers', 'synchronous_commit', 'wal_level') ORDER BY name`)
	if err != nil {
		return f, fmt.Errorf("lab: read the server's settings: %w", err)
	}
	f.Settings, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Setting])
	if err != nil {
		return f, fmt.Errorf("lab: read the server's settings: %w", err)
	}
	return f, nil
}

// ThisMachine describes the machine.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH, HugePages: "unknown"}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	if total, ok := meminfo("MemTotal"); ok {
		m.Memory = total << 10
	}
	if pages, ok := meminfo("HugePages_Total"); ok {
		m.HugePages = "none reserved"
		if pages > 0 {
			m.HugePages = fmt.Sprintf("%d reserved", pages)
		}
	}
	return m
}

// meminfo returns a number from /proc/meminfo.
func meminfo(name string) (int64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
