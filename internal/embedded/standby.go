package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// notLower are the settings that a standby must not have lower than its primary, else it refuses to start.
var notLower = []string{"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"}

// Standby starts a hot standby of s, which streams from it, and returns when it accepts connections. The context bounds the start alone.
// A standby of a standby is one too: it then streams from s, and so by way of it from the primary.
//
// Config.Dir must hold no data yet; Config.Major may be left out. These Parameters say how it follows:
//
//	cluster_name          its application_name on s, for synchronous_standby_names there
//	hot_standby_feedback  "on" has it report to s which rows its own queries may still need
//	primary_slot_name     a replication slot of s, made where there is none. It keeps WAL for the standby while that is
//	                      stopped; without one, a standby that was stopped for long may not find what it needs.
//
// Those of s that a standby may not have lower, such as max_connections, are its own by default. Its superuser and password are those of s.
// Stop it before s, and Restart it after s.
func (s *Server) Standby(ctx context.Context, c Config) (*Server, error) {
	if c.Dir == "" {
		return nil, errors.New("start standby: Config.Dir is empty: name a directory for the standby's data")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("start standby: %w", err)
	}
	c.Dir = dir
	switch c.Major {
	case 0:
		c.Major = s.config.Major
	case s.config.Major:
	default:
		return nil, fmt.Errorf("start standby: a standby of PostgreSQL %d can't be PostgreSQL %d: leave Config.Major out", s.config.Major, c.Major)
	}
	if _, err := os.Lstat(filepath.Join(dir, "data")); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("start standby: %s holds data already: Start it as it is, or name another directory", dir)
	}
	parameters := map[string]string{
		"wal_retrieve_retry_interval":  "200ms", // a standby that came too early tries again, by default after 5 s
		"wal_receiver_status_interval": "1",     // seconds until s hears of feedback, by default 10
	}
	for _, name := range notLower {
		if value, ok := s.config.Parameters[name]; ok {
			parameters[name] = value
		}
	}
	maps.Copy(parameters, c.Parameters)
	c.Parameters = parameters

	// s must keep the WAL since the backup's start until the standby has it: so says a slot that lasts as long as this session.
	keeper, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("start standby: connect to the server that it follows: %w", err)
	}
	defer keeper.Close(context.WithoutCancel(ctx))
	if err := reserve(ctx, keeper, parameters["primary_slot_name"]); err != nil {
		return nil, fmt.Errorf("start standby: %w", err)
	}

	standby := &Server{config: c, binaries: s.binaries, password: s.password, upstream: s}
	standby.fill = standby.fillFromBackup
	if err := standby.Restart(ctx); err != nil {
		return nil, err
	}
	return standby, nil
}

// reserve has the server keep its WAL: for the length of this session, and where a slot is named, until that is dropped.
func reserve(ctx context.Context, conn *pgx.Conn, slot string) error {
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_create_physical_replication_slot($1, true, true)",
		"weir_backup_"+strings.ToLower(rand.Text()[:10])); err != nil {
		return fmt.Errorf("keep WAL for it: %w", err)
	}
	if slot == "" {
		return nil
	}
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.pg_create_physical_replication_slot($1, true)
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)`, slot); err != nil {
		return fmt.Errorf("create replication slot %s: %w", slot, err)
	}
	return nil
}

// primary finds the server that s gets its WAL from in the end, itself where it is no standby or was promoted, and connects to it.
func (s *Server) primary(ctx context.Context) (*Server, *pgx.Conn, error) {
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err != nil {
			return nil, nil, err
		}
		var follows bool
		err = conn.QueryRow(ctx, "SELECT pg_catalog.pg_is_in_recovery()").Scan(&follows)
		if err == nil && (!follows || s.upstream == nil) {
			return s, conn, nil
		}
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			return nil, nil, err
		}
		s = s.upstream
	}
}

// fillFromBackup copies the primary's data directory while it runs, by the low-level backup interface: the fetched binaries
// have no pg_basebackup. Also a standby's standby is copied from the primary, for a backup of a standby needs full_page_writes,
// which Fast turns off.
func (s *Server) fillFromBackup(ctx context.Context, data string, owner *owner) error {
	primary, conn, err := s.upstream.primary(ctx)
	if err != nil {
		return fmt.Errorf("back up the primary: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // which also ends a backup that failed
	start, stop := "pg_catalog.pg_backup_start('weir', true)", "pg_catalog.pg_backup_stop(false)"
	if s.config.Major < 15 {
		start, stop = "pg_catalog.pg_start_backup('weir', true, false)", "pg_catalog.pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, "SELECT "+start); err != nil {
		return fmt.Errorf("start a backup of the primary: %w", err)
	}
	if err := copyCluster(ctx, primary.data, data, owner); err != nil {
		return fmt.Errorf("back up the primary: %w", err)
	}
	var label, tablespaces string
	if err := conn.QueryRow(ctx, "SELECT labelfile, spcmapfile FROM "+stop).Scan(&label, &tablespaces); err != nil {
		return fmt.Errorf("stop the backup of the primary: %w", err)
	}
	if tablespaces != "" {
		return errors.New("back up the primary: it has tablespaces, which both servers would share: drop them")
	}
	// Both are given in the data directory, and not on the command line, where everybody can read the password.
	auto := filepath.Join(data, "postgresql.auto.conf")
	settings, err := os.ReadFile(auto)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	settings = append(settings, "\nprimary_conninfo = "+quoteSetting(s.upstream.replicationURL())+"\n"...)
	for path, text := range map[string][]byte{
		auto: settings, filepath.Join(data, "backup_label"): []byte(label), filepath.Join(data, "standby.signal"): nil,
	} {
		if err := errors.Join(os.WriteFile(path, text, 0o600), owner.own(path)); err != nil {
			return err
		}
	}
	return nil
}

// replicationURL is what a standby of s connects to.
func (s *Server) replicationURL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort(host, strconv.Itoa(s.Port())),
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

func quoteSetting(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }
