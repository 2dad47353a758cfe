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

// directKey marks a connection that has a session of the server to itself; Settle sets it.
const directKey = "weir.direct"

// Attendance is a session of the server that attends for a worker: as long as the session exists, the worker is alive. Its holder makes one
// call at a time.
type Attendance struct {
	by   *Store // makes calls with the session
	conn *pgxpool.Conn
	gone chan struct{}
	end  sync.Once
	stop func() // ends listening
}

// Attend makes a session attend for the worker until it is closed; nil: the connection to the server does not allow it.
func (s *Store) Attend(ctx context.Context, worker int32) (a *Attendance, err error) {
	// If the server has ended all sessions, the pool returns each of them once.
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
			hangUp(conn) // its session may attend despite the error
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
	// The address of this end of the connection, for the server to compare with the one that it sees.
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

// bare returns the connection below TLS.
func bare(conn net.Conn) net.Conn {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return secured.NetConn()
	}
	return conn
}

// probe makes the kernel send a keepalive every second: if the other end has closed the connection and its packet was lost, the reply
// reports it.
func probe(conn net.Conn) {
	if tcp, ok := bare(conn).(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 120}) // without it, the next call reports the loss
	}
}

// Gone returns a channel that is closed when the session has ended.
func (a *Attendance) Gone() <-chan struct{} { return a.gone }

// Call runs f with the session.
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
	_ = conn.Conn().Close(ctx) // a session that does not end now ends with the process
	conn.Release()
}

// listen starts reading from the connection, so that its end is detected at once.
func (a *Attendance) listen() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.stop = func() { cancel(); <-done }
	go func() { // ends with stop, or with the session
		defer close(done)
		var err error
		for err == nil { // notifications are ignored
			_, err = a.conn.Conn().WaitForNotification(ctx)
		}
		if ctx.Err() == nil || a.conn.Conn().IsClosed() {
			a.end.Do(func() { close(a.gone) })
		}
	}()
}
