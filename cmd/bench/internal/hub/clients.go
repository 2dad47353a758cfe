package hub

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// prepare prepares a statement under a name.
func (w *wire) prepare(name, sql string) error {
	if err := w.send(&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Sync{}); err != nil {
		return err
	}
	return w.ready()
}

// pipeline returns the bytes that run prepared statements in one round trip.
func pipeline(names ...string) ([]byte, error) {
	var messages []pgproto3.FrontendMessage
	for _, name := range names {
		messages = append(messages, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{})
	}
	return encodeAll(append(messages, &pgproto3.Sync{})...)
}

// repeat makes each client repeat the same transaction for a time.
func repeat(ctx context.Context, r *load.Rounds, clients []*wire, transaction []byte, d time.Duration) error {
	for _, w := range clients {
		defer w.bound(ctx)()
	}
	return r.Run(len(clients), d, func(i int) error {
		if _, err := clients[i].conn.Write(transaction); err != nil {
			return err
		}
		return clients[i].ready()
	})
}

// withSettings adds session settings to a connection string.
func withSettings(connection string, settings map[string]string) string {
	if len(settings) == 0 {
		return connection
	}
	if u, err := url.Parse(connection); err == nil && u.Scheme != "" {
		query := u.Query()
		for name, value := range settings {
			query.Set(name, value)
		}
		u.RawQuery = query.Encode()
		return u.String()
	}
	var b strings.Builder
	b.WriteString(connection)
	for name, value := range settings {
		b.WriteString(" " + name + "=" + value)
	}
	return b.String()
}
