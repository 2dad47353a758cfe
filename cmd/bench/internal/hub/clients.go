package hub

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
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

// pipeline is the bytes that run prepared statements in one round trip.
func pipeline(names ...string) ([]byte, error) {
	var messages []pgproto3.FrontendMessage
	for _, name := range names {
		messages = append(messages, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{})
	}
	return encodeAll(append(messages, &pgproto3.Sync{})...)
}

// flow is what came of transactions that many clients ran at once.
type flow struct {
	done  int64
	rates []float64 // of each run
	h     load.Histogram
}

// run has each client run the same transaction over and over, for a time. The last ones are waited for and counted.
func (l *flow) run(ctx context.Context, clients []*wire, transaction []byte, d time.Duration) error {
	if l.h.IsZero() {
		l.h = load.NewHistogram()
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed error
	done := int64(0)
	began := time.Now()
	for _, w := range clients {
		running.Go(func() {
			defer w.bound(ctx)()
			h, n := load.NewHistogram(), int64(0)
			var err error
			for now := began; err == nil && now.Sub(began) < d; {
				if _, err = w.conn.Write(transaction); err == nil {
					err = w.ready()
				}
				if err == nil {
					n++
					next := time.Now()
					h.Add(next.Sub(now))
					now = next
				}
			}
			mu.Lock()
			defer mu.Unlock()
			l.h.Merge(h)
			done += n
			failed = errors.Join(failed, err)
		})
	}
	running.Wait()
	l.done += done
	l.rates = append(l.rates, float64(done)/time.Since(began).Seconds())
	return failed
}

// withSettings adds settings of sessions to a connection string.
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
