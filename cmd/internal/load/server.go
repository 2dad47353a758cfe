package load

import (
	"context"
	"errors"
	"os"

	"github.com/weir-pg/weir/cmd/internal/binaries"
	"github.com/weir-pg/weir/internal/embedded"
)

// Server is a private PostgreSQL that keeps every promise that PostgreSQL makes by default, in a directory of its own. The zero value has not been started.
type Server struct {
	*embedded.Server
	dir string
}

// Start starts it. Config.Dir and Config.Fetch are filled in. It must be removed, also where this fails.
func (s *Server) Start(ctx context.Context, c embedded.Config) (err error) {
	if s.dir, err = os.MkdirTemp("", "weir-load-*"); err != nil {
		return err
	}
	// Started by root, the server runs as another user, who must pass.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return err
	}
	c.Dir, c.Fetch = s.dir, binaries.Fetch
	s.Server, err = embedded.Start(ctx, c)
	return err
}

// Started tells whether there is a server, or was to be one.
func (s *Server) Started() bool { return s.dir != "" }

// Remove stops the server, and removes what it kept.
func (s *Server) Remove(ctx context.Context) error {
	switch {
	case s.dir == "":
		return nil
	case s.Server == nil:
		return os.RemoveAll(s.dir)
	}
	return errors.Join(s.Stop(ctx), embedded.Remove(ctx, s.dir))
}
