package lab

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// connect opens a session with one of the lab's application names.
func connect(ctx context.Context, url, name string, settings map[string]string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = name
	for key, value := range settings {
		config.RuntimeParams[key] = value
	}
	// During a storm connecting may take long, which is not an error here.
	config.ConnectTimeout = 2 * time.Minute
	return pgx.ConnectConfig(ctx, config)
}

// sessions is a group of sessions that do the same work, each on its own connection.
type sessions struct{ conns []*pgx.Conn }

// openSessions connects n sessions, a few at a time, so that the lab causes no unintended storm.
func openSessions(ctx context.Context, url string, n int, settings map[string]string) (*sessions, error) {
	c := &sessions{conns: make([]*pgx.Conn, n)}
	err := eachOf(n, 8, func(i int) (err error) {
		c.conns[i], err = connect(ctx, url, appName, settings)
		return err
	})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open %d sessions: %w", n, err)
	}
	return c, nil
}

// add opens sessions until there are n.
func (c *sessions) add(ctx context.Context, url string, n int) error {
	if n <= len(c.conns) {
		return nil
	}
	more, err := openSessions(ctx, url, n-len(c.conns), nil)
	if err != nil {
		return err
	}
	c.conns = append(c.conns, more.conns...)
	return nil
}

// eachOf calls f for 0 to n-1 from several goroutines, and returns an error of theirs. They are usually the same.
func eachOf(n, goroutines int, f func(i int) error) error {
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < n && errs[g] == nil; i += goroutines {
				errs[g] = f(i)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// exec runs a statement in each session.
func (c *sessions) exec(ctx context.Context, sql string) error {
	return eachOf(len(c.conns), 8, func(i int) error {
		_, err := c.conns[i].Exec(ctx, sql)
		return err
	})
}

// work repeats step in each session until `until` ends, and counts the steps. A step in progress is finished; only ctx interrupts it.
func (c *sessions) work(ctx, until context.Context, m *load.Tally, step func(ctx context.Context, conn *pgx.Conn, i int) error) error {
	return c.each(ctx, until, func(until context.Context, conn *pgx.Conn, i int) error {
		for until.Err() == nil {
			begun := time.Now()
			if err := step(ctx, conn, i); err != nil {
				return err
			}
			m.Did(1, time.Since(begun))
		}
		return nil
	})
}

// serve runs step for each request that arrives, in whichever session is free, until `until` ends, and counts the time since its arrival.
func (c *sessions) serve(ctx, until context.Context, a *arrivals, m *load.Tally, step func(ctx context.Context, conn *pgx.Conn, request int) error) error {
	return c.each(ctx, until, func(until context.Context, conn *pgx.Conn, _ int) error {
		for {
			request, at, ok := a.next(until)
			if !ok {
				return nil
			}
			if err := step(ctx, conn, request); err != nil {
				return err
			}
			m.Did(1, time.Since(at))
		}
	})
}

// each runs f with each session at the same time. The first error ends until for the others.
func (c *sessions) each(ctx, until context.Context, f func(until context.Context, conn *pgx.Conn, i int) error) error {
	until, cancel := context.WithCancel(until)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(c.conns))
	for i, conn := range c.conns {
		all.Go(func() {
			if errs[i] = f(until, conn, i); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return cmp.Or(errs...)
}

// close ends the sessions.
func (c *sessions) close() {
	_ = eachOf(len(c.conns), 8, func(i int) error {
		if c.conns[i] != nil {
			closeConn(c.conns[i])
		}
		return nil
	})
}

// closeConn ends a session in any state.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is no longer needed
}

// transaction runs statements between BEGIN and COMMIT in one round trip.
func transaction(ctx context.Context, conn *pgx.Conn, add func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	b.Queue(`BEGIN`)
	add(b)
	b.Queue(`COMMIT`)
	return conn.SendBatch(ctx, b).Close()
}

// during repeats step in each session until the returned function is called, which returns when all have stopped.
func (c *sessions) during(ctx context.Context, m *load.Tally, step func(ctx context.Context, conn *pgx.Conn, i int) error) (stop func() error) {
	until, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.work(ctx, until, m, step) }() // ends with until; stop waits for it
	return func() error {
		cancel()
		return <-ended
	}
}
