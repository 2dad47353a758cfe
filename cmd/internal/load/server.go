package load

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/weir-pg/weir/cmd/internal/binaries"
	"github.com/weir-pg/weir/internal/embedded"
)

// Server is a private PostgreSQL with all default guarantees, in its own directory. The zero value has not been started.
type Server struct {
	*embedded.Server
	dir string
}

// Start starts the server. It fills in Config.Dir and Config.Fetch. Remove must be called even if Start fails.
func (s *Server) Start(ctx context.Context, c embedded.Config) error {
	return s.startWith(c, func(c embedded.Config) (*embedded.Server, error) { return embedded.Start(ctx, c) })
}

// Follow starts a standby of another server. Remove must be called even if Follow fails, and before the other server stops.
func (s *Server) Follow(ctx context.Context, primary *embedded.Server) error {
	return s.startWith(embedded.Config{}, func(c embedded.Config) (*embedded.Server, error) { return primary.Standby(ctx, c) })
}

func (s *Server) startWith(c embedded.Config, start func(embedded.Config) (*embedded.Server, error)) (err error) {
	if s.dir, err = os.MkdirTemp("", "weir-load-*"); err != nil {
		return err
	}
	// If started by root, the server runs as another user, who needs access.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return err
	}
	c.Dir, c.Fetch = s.dir, binaries.Fetch
	s.Server, err = start(c)
	return err
}

// Started reports whether Start has been called.
func (s *Server) Started() bool { return s.dir != "" }

// Full reports whether the server has found its disk full, and where it has its files. A server that can't write its log any more has ended, and refuses connections.
func (s *Server) Full() (dir string, full bool) {
	log, err := os.ReadFile(filepath.Join(s.dir, "postgres.log"))
	return s.dir, err == nil && bytes.Contains(log, []byte("No space left on device"))
}

// Remove stops the server and removes its files.
func (s *Server) Remove(ctx context.Context) error {
	switch {
	case s.dir == "":
		return nil
	case s.Server == nil:
		return os.RemoveAll(s.dir)
	}
	return errors.Join(s.Stop(ctx), embedded.Remove(ctx, s.dir))
}
