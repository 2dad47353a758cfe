package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// knock is a client's connection up to the server's first answer.
type knock struct {
	conn     net.Conn
	heard    time.Duration // from the signal until the client received it
	since    time.Duration // from the signal until the answer, minus the client's jitter
	accepted time.Duration // the TCP connection's time
	answered time.Duration // from the startup message to the answer
	refused  bool          // the answer was an error: too many clients
	err      error         // no answer
}

// target is a server that clients connect to.
type target struct {
	address string
	startup []byte // a client's startup message
}

// targetOf returns the server of a connection string.
func targetOf(url string) (target, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return target{}, err
	}
	if strings.HasPrefix(config.Host, "/") {
		return target{}, fmt.Errorf("a storm needs a server that listens on TCP, but the connection string names the socket in %s", config.Host)
	}
	m := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		"user": config.User, "database": config.Database, "application_name": appName,
	}}
	startup, err := m.Encode(nil)
	return target{net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), startup}, err
}

// knockAt connects client i and waits for the server's first answer. The caller must close the connection.
func knockAt(ctx context.Context, to target, i int) (k knock) {
	begun := time.Now()
	k.conn, k.err = load.Dial(ctx, to.address, i)
	if k.err != nil {
		return k
	}
	k.accepted = time.Since(begun)
	stop := context.AfterFunc(ctx, func() { k.conn.SetDeadline(time.Now()) })
	defer stop()
	asked := time.Now()
	if _, k.err = k.conn.Write(to.startup); k.err != nil {
		return k
	}
	var head [5]byte // kind and length of a message
	if _, k.err = io.ReadFull(k.conn, head[:]); k.err != nil {
		return k
	}
	k.answered = time.Since(asked)
	switch head[0] {
	case 'R': // authentication is requested, or not needed
	case 'E':
		k.refused = true
	default:
		k.err = fmt.Errorf("%s answered a startup message with message %q of %d bytes: it is not PostgreSQL", to.address, head[0], binary.BigEndian.Uint32(head[1:]))
	}
	return k
}

// cutOff reports whether a client has no answer only because the time is over. A connection's deadline, which is the same moment, may come first.
func cutOff(until context.Context, err error) bool {
	var n net.Error
	return err != nil && (until.Err() != nil || errors.As(err, &n) && n.Timeout())
}

// call is how client i asks for what it needs.
type call func(ctx context.Context, i int) knock

// spread makes clients connect to one of the targets each.
func spread(targets []target) call {
	return func(ctx context.Context, i int) knock { return knockAt(ctx, targets[i%len(targets)], i) }
}

// borrow makes clients share sessions that exist already: each waits until one is free, and uses it for a small query.
func borrow(pool *sessions) call {
	free := make(chan int, len(pool.conns))
	for i := range pool.conns {
		free <- i
	}
	return func(ctx context.Context, _ int) (k knock) {
		asked := time.Now()
		select {
		case i := <-free:
			_, k.err = pool.conns[i].Exec(ctx, `SELECT 1`)
			free <- i
		case <-ctx.Done():
			k.err = ctx.Err()
		}
		k.answered = time.Since(asked)
		return k
	}
}

// storm makes clients connect when they receive the signal, each after its jitter, and returns when all have an answer.
func storm(ctx context.Context, clients int, call call, g *signal, jitter func() time.Duration, m *load.Tally) ([]knock, error) {
	g.again()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	knocks := make([]knock, clients)
	heard, answered := make([]time.Time, clients), make([]time.Time, clients)
	var all, ready sync.WaitGroup
	ready.Add(clients)
	for i := range knocks {
		all.Go(func() {
			ready.Done()
			if knocks[i].err = g.hear(ctx, i); knocks[i].err != nil {
				return
			}
			heard[i] = time.Now()
			if wait := jitter(); wait > 0 && !sleep.For(ctx, wait) {
				knocks[i].err = ctx.Err()
				return
			}
			knocks[i] = call(ctx, i)
			answered[i] = time.Now()
			if k := &knocks[i]; k.err == nil && !k.refused {
				m.Did(1, k.answered)
			}
		})
	}
	ready.Wait()
	sent, err := g.send(ctx)
	if err != nil {
		cancel() // the clients would wait for it
	}
	all.Wait()
	if err != nil {
		return nil, fmt.Errorf("publish the signal: %w", err)
	}
	for i := range knocks {
		knocks[i].heard, knocks[i].since = heard[i].Sub(sent), answered[i].Sub(sent)
	}
	return knocks, hangUp(knocks)
}

// hangUp closes the connections, and returns an error if clients got no answer.
func hangUp(knocks []knock) error {
	var errs []error
	failed := 0
	for i := range knocks {
		if knocks[i].conn != nil {
			knocks[i].conn.Close()
			knocks[i].conn = nil
		}
		if err := knocks[i].err; err != nil {
			if failed++; failed <= 2 {
				errs = append(errs, err)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d clients got no answer: %w", failed, len(knocks), errors.Join(errs...))
	}
	return nil
}

// settle waits until the backends of an earlier storm have ended and the servers answer quickly again.
func settle(ctx context.Context, targets []target) error {
	patient, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, to := range targets {
		for quick := 0; quick < 5; {
			k := knockAt(patient, to, 0)
			if k.conn != nil {
				k.conn.Close()
			}
			if k.err == nil && !k.refused && k.answered < 50*time.Millisecond {
				quick++
				continue
			}
			quick = 0
			if !sleep.For(patient, 50*time.Millisecond) {
				return fmt.Errorf("%s is still busy after a storm: %w", to.address, errors.Join(patient.Err(), k.err))
			}
		}
	}
	return nil
}
