package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/cmd/internal/server"
)

// hub is a hub in this process, on the site's database.
type hub struct {
	server *server.Server
	url    string // at which an unchanged driver can LISTEN
	users  string // the users file
}

// startHub starts a hub, and returns when clients can connect to it. They authenticate as they do to PostgreSQL.
func startHub(ctx context.Context, s *site) (_ *hub, err error) {
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	users, err := load.UsersFile(config.User, password)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(users)
		}
	}()
	h, err := server.Start(ctx, server.Config{
		Database: s.url, ListenPG: "127.0.0.1:0", PGAuth: server.UsersFile, UsersFile: users, Name: "weir lab", Drain: time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, fmt.Errorf("start a hub: %w", err)
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, password), Host: h.PGAddr().String(), Path: "/" + config.Database,
		RawQuery: "sslmode=disable",
	}
	return &hub{server: h, url: u.String(), users: users}, nil
}

// stop ends the hub. On nil it does nothing.
func (h *hub) stop() {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = h.server.Stop(ctx) // it stores nothing
	_ = os.Remove(h.users)
}
