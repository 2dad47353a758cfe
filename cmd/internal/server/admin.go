package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

// maxTokenFile bounds the file of operators' tokens.
const maxTokenFile = 64 << 10

func (s *Server) adminConfig() web.AdminConfig {
	c := s.config.operators()
	c.Others, c.Users = pgClients{s.pg}, everywhere{s.primary}
	return c
}

// operators says who may end clients.
func (c Config) operators() (a web.AdminConfig) {
	if c.AdminTokenFile != "" {
		a.Tokens = c.adminTokens
	}
	return a
}

// adminTokens reads the tokens of operators.
func (c Config) adminTokens() ([]byte, error) {
	info, err := os.Stat(c.AdminTokenFile)
	if err == nil && info.Size() > maxTokenFile {
		return nil, fmt.Errorf("it has %d bytes; the limit is %d", info.Size(), maxTokenFile)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(c.AdminTokenFile)
}

// everywhere implements web.Users: through the database, so at all hubs.
type everywhere struct{ primary *store.Store }

// Disconnect implements web.Users.
func (e everywhere) Disconnect(ctx context.Context, user string) error {
	return asked(e.primary.Direct(ctx, func(q store.Querier) error { return store.Disconnect(ctx, q, user) }))
}

// Revoke implements web.Users.
func (e everywhere) Revoke(ctx context.Context, user string, lasts time.Duration) (before time.Time, err error) {
	err = e.primary.Direct(ctx, func(q store.Querier) error {
		before, err = store.Revoke(ctx, q, user, lasts)
		return err
	})
	return before, asked(err)
}

// asked explains what the database refuses to an operator: a name that is too long, a time that is too long, or too many revocations.
func asked(err error) error {
	if store.IsBadInput(err) {
		return web.Fail(http.StatusBadRequest, "bad_request", strings.TrimPrefix(store.Reason(err), "weir: "), store.Hint(err))
	}
	return err
}
