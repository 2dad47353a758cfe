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

// notLower lists the settings that must not be lower on a standby than on its primary, or the standby does not start.
var notLower = []string{"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"}

// Standby starts a hot standby of s, which streams from s, and returns when it accepts connections. ctx limits only the start. s may be a
// standby itself: then changes of the primary arrive through s.
//
// Config.Dir must not hold data yet; Config.Major may be omitted. These Parameters control how the standby follows:
//
//	cluster_name          its application_name on s, for synchronous_standby_names there
//	hot_standby_feedback  "on" makes it report to s which rows its own queries may still need
//	primary_slot_name     a replication slot of s, created if it does not exist. It keeps WAL for the standby while the standby
//	                      is stopped; without a slot, a standby that was stopped for long may not find the WAL it needs.
//
// Settings that must not be lower on a standby than on s, such as max_connections, default to those of s. Its superuser and password are
// those of s. Stop it before s, and Restart it after s.
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
		return nil, fmt.Errorf("start standby: %s holds data already: start it with Start, or name another directory", dir)
	}
	parameters := map[string]string{
		"wal_retrieve_retry_interval":  "200ms", // a standby that connects too early tries again; default: after 5 s
		"wal_receiver_status_interval": "1",     // seconds until s receives feedback; default: 10
	}
	for _, name := range notLower {
		if value, ok := s.config.Parameters[name]; ok {
			parameters[name] = value
		}
	}
	maps.Copy(parameters, c.Parameters)
	c.Parameters = parameters

	// s must keep the WAL since the backup's start until the standby has it. A slot that exists as long as this session ensures that.
	keeper, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("start standby: connect to its upstream server: %w", err)
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

// reserve makes the server keep its WAL: as long as this session exists, and with a named slot, until that slot is dropped.
func reserve(ctx context.Context, conn *pgx.Conn, slot string) error {
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_create_physical_replication_slot($1, true, true)",
		"weir_backup_"+strings.ToLower(rand.Text()[:10])); err != nil {
		return fmt.Errorf("reserve WAL for the standby: %w", err)
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

// primary finds the server from which s ultimately receives its WAL, or s itself if it is not a standby or was promoted, and connects to
// it.
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

// fillFromBackup copies the primary's data directory while it runs, with the low-level backup interface, since the fetched binaries have no
// pg_basebackup. A standby of a standby is copied from the primary too, because a backup of a standby needs full_page_writes, which Fast
// turns off.
func (s *Server) fillFromBackup(ctx context.Context, data string, owner *owner) error {
	primary, conn, err := s.upstream.primary(ctx)
	if err != nil {
		return fmt.Errorf("back up the primary: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // also ends a failed backup
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
		return errors.New("back up the primary: it has tablespaces, which both servers would use: drop them")
	}
	// Both are set in the data directory, not on the command line, where every user could read the password.
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

// replicationURL returns the URL to which a standby of s connects.
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
