package store

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const sqlAttend = `SELECT weir.attend($1::int, $2::int, $3::text::inet, $4::int)`

// directKey tells of a connection that it has a session of the server to itself; Settle has found it out.
const directKey = "weir.direct"

// Attendance is a session that speaks for a worker: while it lasts the worker is alive. Whoever holds it makes one call after the other.
type Attendance struct {
	by   *Store // makes calls by the session
	conn *pgxpool.Conn
	gone chan struct{}
	end  sync.Once
	stop func() // ends the listening
}

// Attend has a session of its own speak for the worker, until it is closed; nil: the way to the server is such that none can.
func (s *Store) Attend(ctx context.Context, worker int32) (a *Attendance, err error) {
	// Where the server has ended all sessions, the pool hands out each of them once.
	for range s.pool.Config().MaxConns + 1 {
		var conn *pgxpool.Conn
		if conn, err = s.pool.Acquire(ctx); err != nil {
			return nil, err
		}
		var attends bool
		if attends, err = attend(ctx, conn.Conn(), worker); attends {
			by := New(s.pool, 0)
			by.conn = conn.Conn()
			a = &Attendance{by: by, conn: conn, gone: make(chan struct{})}
			a.listen()
			return a, nil
		}
		broken := conn.Conn().IsClosed()
		if err != nil {
			hangUp(conn) // its session may attend all the same
		} else {
			conn.Release()
		}
		if !broken || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func attend(ctx context.Context, conn *pgx.Conn, worker int32) (attends bool, err error) {
	if conn.PgConn().CustomData()[directKey] != true {
		return false, nil
	}
	// How this end of the connection is seen from here, for the server to compare.
	var address *string
	var port *int32
	switch here := conn.PgConn().Conn().LocalAddr().(type) {
	case *net.UnixAddr:
		if !isServers(conn.PgConn().Conn(), conn.PgConn().PID()) {
			return false, nil
		}
	case *net.TCPAddr:
		a, p := here.AddrPort().Addr().Unmap().WithZone("").String(), int32(here.Port)
		address, port = &a, &p
	default:
		return false, nil
	}
	err = conn.QueryRow(ctx, sqlAttend, worker, int32(conn.PgConn().PID()), address, port).Scan(&attends)
	if attends {
		probe(conn.PgConn().Conn())
	}
	return attends, err
}

// bare is what lies below TLS.
func bare(conn net.Conn) net.Conn {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return secured.NetConn()
	}
	return conn
}

// probe has the kernel ask the other end every second: where that has ended the connection and the word of it got lost, the answer says so.
func probe(conn net.Conn) {
	if tcp, ok := bare(conn).(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 120}) // without it the next call tells
	}
}

// Gone is closed when the session has ended.
func (a *Attendance) Gone() <-chan struct{} { return a.gone }

// Call has f make calls by the session.
func (a *Attendance) Call(f func(by *Store) error) error {
	a.stop()
	defer a.listen()
	return f(a.by)
}

// Close ends the session.
func (a *Attendance) Close() {
	a.stop()
	hangUp(a.conn)
}

// hangUp ends a connection's session, with what it holds.
func hangUp(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx) // what does not end by itself ends with the process
	conn.Release()
}

// listen begins to read from the connection, so that its end is known at once.
func (a *Attendance) listen() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.stop = func() { cancel(); <-done }
	go func() { // ends with stop, or with the session
		defer close(done)
		var err error
		for err == nil { // what it is notified of is nobody's
			_, err = a.conn.Conn().WaitForNotification(ctx)
		}
		if ctx.Err() == nil || a.conn.Conn().IsClosed() {
			a.end.Do(func() { close(a.gone) })
		}
	}()
}
