package testdb

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/schema"
)

// template returns the name of a database to copy, which it creates if necessary.
func (s *Server) template(ctx context.Context, setup *Setup) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, ok := s.private[setup]; ok {
		return name, nil
	}
	name, err := s.find(ctx, setup)
	if err == nil {
		s.private[setup] = name
	}
	return name, err
}

func (s *Server) forget(setup *Setup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.private, setup)
}

// find returns a template. It is called with the lock held.
func (s *Server) find(ctx context.Context, setup *Setup) (string, error) {
	if setup != nil && setup.Run != nil && setup.Version == "" {
		return s.prepare(ctx, setup)
	}
	sum, err := schema.Sum()
	if err != nil {
		return "", err
	}
	key := sum + "\x00" + s.role
	if setup != nil && setup.Run != nil {
		key += "\x00" + setup.Version
	}
	name := sealed(fmt.Sprintf("%s%x", templates, sha256.Sum256([]byte(key)))[:longest-20])
	// Only one process creates it; the others wait, and find it. The lock is a session lock, because a database can't be created in a
	// transaction. It is held by a separate connection, whose end releases it in any case.
	conn, err := pgx.ConnectConfig(ctx, s.own.Config())
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := patient(ctx, conn); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.pg_advisory_lock($1, pg_catalog.hashtext($2))`, lockClass+1, name); err != nil {
		return "", fmt.Errorf("wait for another process to create the template database: %w", err)
	}
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1)`, name).Scan(&there); err != nil || there {
		return name, err
	}
	raw, err := s.prepare(ctx, setup)
	if err != nil {
		return "", err
	}
	// It gets its name only when it is complete. A process that connects to another database, and so takes another lock, may have been faster.
	rename := fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", pgx.Identifier{raw}.Sanitize(), pgx.Identifier{name}.Sanitize())
	if _, err := conn.Exec(ctx, rename); err != nil {
		err = errors.Join(fmt.Errorf("rename the template database: %w", err), s.Drop(context.WithoutCancel(ctx), raw))
		if code(err) != "42P04" { // duplicate_database
			return "", err
		}
	}
	return name, nil
}

// prepare creates a template of this run.
func (s *Server) prepare(ctx context.Context, setup *Setup) (string, error) {
	name := s.name("template")
	if err := s.create(ctx, name, ""); err != nil {
		return "", err
	}
	err := s.fill(ctx, name, setup)
	if err == nil { // a database with connections can't be copied
		_, err = s.admin.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH ALLOW_CONNECTIONS false")
	}
	if err != nil {
		return "", errors.Join(err, s.Drop(context.WithoutCancel(ctx), name))
	}
	return name, nil
}

func (s *Server) fill(ctx context.Context, name string, setup *Setup) error {
	conn, err := s.connect(ctx, name)
	if err != nil {
		return err
	}
	err = schema.Up(ctx, conn)
	if err == nil && setup != nil && setup.Run != nil {
		if err = setup.Run(ctx, conn); err != nil {
			err = fmt.Errorf("set up the template database: %w", err)
		}
	}
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}
