package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lockClass is the first key of the locks that runs hold; the second key is the run. It differs from the keys of jobs and messages.
const lockClass = 1464158560

const (
	prefix    = "weir_test_"
	longest   = 63 // length of a PostgreSQL identifier, in bytes
	templates = prefix + "template_"
)

// connections is the maximum number that a process opens to create and drop databases, in addition to the one that holds its lock.
const connections = 2

// Server creates databases on one server. It is safe for concurrent use.
type Server struct {
	url   string
	admin *pgxpool.Pool
	own   *pgx.Conn // holds the lock of this run
	run   uint32
	from  uint32 // oid of the database connected to
	role  string

	mu      sync.Mutex // guards the templates
	private map[*Setup]string
}

// Setup specifies what a template has in addition to Weir's schema.
type Setup struct {
	// Run changes the database; nil: the template has only Weir's schema.
	Run func(ctx context.Context, conn *pgx.Conn) error
	// Version identifies the result of Run. With a Version, the template is kept for other processes and later runs; without one, it
	// belongs to this process.
	Version string
}

// Open connects to the server with a URL, or a DSN of keywords and values, and drops what killed runs have left there. The role must be
// allowed to create databases.
func Open(ctx context.Context, at string) (*Server, error) {
	config, err := pgxpool.ParseConfig(at)
	if err != nil {
		return nil, err // pgx hides the password
	}
	config.MaxConns, config.MinConns = connections, 0
	config.AfterConnect = patient
	s := &Server{url: at, private: map[*Setup]string{}}
	if s.own, err = pgx.ConnectConfig(ctx, config.ConnConfig.Copy()); err != nil {
		return nil, err
	}
	if err := patient(ctx, s.own); err != nil {
		return nil, errors.Join(err, s.own.Close(ctx))
	}
	err = s.own.QueryRow(ctx, `SELECT d.oid, current_user::text FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()`).Scan(&s.from, &s.role)
	if err == nil {
		err = s.lock(ctx)
	}
	if err == nil {
		s.admin, err = pgxpool.NewWithConfig(ctx, config)
	}
	if err != nil {
		return nil, errors.Join(err, s.own.Close(ctx))
	}
	s.sweep(ctx)
	return s, nil
}

// patient removes timeouts from a session that a role or a server sets for applications: copying takes as long as the disk does, and an
// idle session holds the lock.
func patient(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0`)
	return err
}

// lock chooses a run number that no other process has.
func (s *Server) lock(ctx context.Context) error {
	for range 10 {
		var random [4]byte
		_, _ = rand.Read(random[:]) // it never fails
		s.run = binary.BigEndian.Uint32(random[:])
		var got bool
		if err := s.own.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock($1, $2)`, lockClass, int32(s.run)).Scan(&got); err != nil || got {
			return err
		}
	}
	return errors.New("ten advisory locks with random keys were all taken")
}

// Create creates an empty database, named after its purpose.
func (s *Server) Create(ctx context.Context, label string) (name string, err error) {
	name = s.name(label)
	return name, s.create(ctx, name, "")
}

// Copy creates a database with Weir's schema, and with the additions of the setup, if there is one.
func (s *Server) Copy(ctx context.Context, label string, setup *Setup) (name string, err error) {
	for range 3 { // another process may consider a shared template outdated
		var template string
		if template, err = s.template(ctx, setup); err != nil {
			return "", err
		}
		name = s.name(label)
		if err = s.create(ctx, name, template); code(err) != "3D000" { // invalid_catalog_name: it was dropped
			break
		}
		s.forget(setup)
	}
	return name, err
}

func (s *Server) create(ctx context.Context, name, template string) error {
	sql := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()
	if template != "" {
		sql += " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	}
	_, err := s.admin.Exec(ctx, sql)
	switch {
	case code(err) == "42501": // insufficient_privilege
		return fmt.Errorf("the role %s may not create databases, but every test needs one: have an administrator run ALTER ROLE %s CREATEDB, or use a role that may (%w)",
			s.role, pgx.Identifier{s.role}.Sanitize(), err)
	case err != nil:
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Drop drops a database, even if it has sessions or prepared transactions.
func (s *Server) Drop(ctx context.Context, name string) error {
	sql := "DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"
	_, err := s.admin.Exec(ctx, sql)
	if code(err) == "55006" { // object_in_use: prepared transactions, which FORCE does not end
		if err = s.rollBackPrepared(ctx, name); err == nil {
			_, err = s.admin.Exec(ctx, sql)
		}
	}
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

func (s *Server) rollBackPrepared(ctx context.Context, name string) error {
	conn, err := s.connect(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()")
	if err != nil {
		return err
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, gid := range gids {
		if _, err := conn.Exec(ctx, "ROLLBACK PREPARED '"+strings.ReplaceAll(gid, "'", "''")+"'"); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) connect(ctx context.Context, name string) (*pgx.Conn, error) {
	at, err := s.URL(name)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := patient(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// URL returns the URL of a database of the server: the one with which the server was opened, with another database.
func (s *Server) URL(name string) (string, error) {
	if !strings.HasPrefix(s.url, "postgres://") && !strings.HasPrefix(s.url, "postgresql://") {
		return s.url + " dbname=" + name, nil // if a keyword is given twice, the last one counts
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return "", errors.New("parse the server's URL") // url.Parse would show the password
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// Close drops the templates that belong to this process, and closes its connections. Any remaining databases are left for the next process
// to sweep.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, name := range s.private {
		if !strings.HasPrefix(name, templates) {
			errs = append(errs, s.Drop(ctx, name))
		}
	}
	s.admin.Close()
	return errors.Join(append(errs, s.own.Close(ctx))...)
}

// name returns an unused name that shows in pg_stat_activity which test the database belongs to.
func (s *Server) name(label string) string {
	label = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(label))
	name := s.mine()
	unique := "_" + strings.ToLower(rand.Text()[:6])
	return sealed(name + label[:min(len(label), longest-sealLength-len(name)-len(unique))] + unique)
}

const sealLength = 6

// sealed appends to a name a checksum of it, by which sweep recognizes the databases that this package has created. Nothing else marks a
// database from the moment it exists: a comment would be missing if the process was killed while the server created the database.
func sealed(name string) string {
	sum := sha256.Sum256([]byte("weir testdb " + name))
	return name + hex.EncodeToString(sum[:sealLength/2])
}

// isSealed reports whether this package has chosen the database's name: a name chosen or changed by others has no such checksum.
func isSealed(name string) bool {
	return len(name) > sealLength && sealed(name[:len(name)-sealLength]) == name
}

// mine returns the prefix of the names of this run's databases.
func (s *Server) mine() string { return fmt.Sprintf("%sr%08x_", s.ours(), s.run) }

// ours returns the prefix of the names of databases whose runs are visible from the database connected to.
func (s *Server) ours() string { return fmt.Sprintf("%sa%d_", prefix, s.from) }

func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}
