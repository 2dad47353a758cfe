package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/sleep"
)

// pinKind is one kind of long transaction, or of what has the same effect.
type pinKind struct {
	name, what string
	session    bool // it is a session's, which the guard can end

	unable  func(ctx context.Context, s *site) string // why it is impossible here, or ""
	prepare func(ctx context.Context, t *trial) error // before the time is measured
	open    func(ctx context.Context, t *trial) error
	end     func(ctx context.Context, t *trial) error // returns an error if it was no longer open
}

// pinKinds are all pins, the one with which all queues are measured first.
func pinKinds() []*pinKind {
	able := func(context.Context, *site) string { return "" }
	commit := func(ctx context.Context, t *trial) error {
		_, err := t.holder.Exec(ctx, `COMMIT`)
		return err
	}
	return []*pinKind{
		{name: "read", what: load.Pins["read"].What, session: true, unable: able, prepare: holdHere, open: openWith(load.Pins["read"].SQL), end: commit},
		{name: "write", what: load.Pins["write"].What, session: true, unable: able, prepare: holdHere, open: openWith(load.Pins["write"].SQL), end: commit},
		{
			name: "standby", what: "a transaction on a standby with hot_standby_feedback, which shows no session on the primary", session: true,
			unable: standbyUnable, prepare: holdOnStandby, open: openOnStandby, end: commit,
		},
		{
			name: "slot", what: "a replication slot whose standby is gone, and which keeps the rows that it last asked for", unable: slotUnable,
			prepare: func(context.Context, *trial) error { return nil }, open: abandonSlot, end: endSlot,
		},
		{
			name: "prepared", what: "a prepared transaction that nobody commits, and which no session belongs to", unable: preparedUnable, prepare: holdHere,
			open: openWith([]string{`BEGIN`, `SELECT pg_current_xact_id()`, `PREPARE TRANSACTION '` + pinPrepared + `'`}),
			end: func(ctx context.Context, t *trial) error {
				_, err := t.holder.Exec(ctx, `COMMIT PREPARED '`+pinPrepared+`'`)
				return err
			},
		},
	}
}

// What a pin leaves in the server if the lab is killed. The slot's name is followed by the database's oid, because slots belong to the whole server.
const (
	pinPrepared = "weir_lab_pin"
	pinSlot     = "weir_lab_pin_"
)

// PinNames are the names of the pins, in order.
func PinNames() (names []string) {
	for _, p := range pinKinds() {
		names = append(names, p.name)
	}
	return names
}

func pinNamed(name string) (*pinKind, error) {
	for _, p := range pinKinds() {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%q is not a pin: use one of %s", name, strings.Join(PinNames(), ", "))
}

// unpin removes what the pins of a lab that was killed or interrupted have left.
func unpin(ctx context.Context, conn *pgx.Conn) error {
	rows, _ := conn.Query(ctx, `SELECT gid FROM pg_prepared_xacts WHERE gid = $1 AND database = current_database() AND owner = current_user`, pinPrepared) // rows report the error
	prepared, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for range prepared {
		if err == nil {
			_, err = conn.Exec(ctx, `ROLLBACK PREPARED '`+pinPrepared+`'`)
		}
	}
	if err == nil {
		_, err = dropPinSlot(ctx, conn)
	}
	if err != nil {
		return fmt.Errorf("lab: remove what pins the horizon: %w", err)
	}
	return nil
}

// unlimited are settings of a session that holds a pin.
var unlimited = map[string]string{"idle_in_transaction_session_timeout": "0", "statement_timeout": "0"}

func holdHere(ctx context.Context, t *trial) (err error) {
	t.holder, err = connect(ctx, t.site.url, watcherName, unlimited)
	return err
}

func openWith(statements []string) func(ctx context.Context, t *trial) error {
	return func(ctx context.Context, t *trial) error {
		for _, sql := range statements {
			if _, err := t.holder.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	}
}

func standbyUnable(_ context.Context, s *site) string {
	if s.server == nil {
		return "it needs a private server"
	}
	return ""
}

// standby returns the standby, which is started when it is first needed.
func (s *site) standby(ctx context.Context) (*embedded.Server, error) {
	if s.follower != nil {
		return s.follower, nil
	}
	dir, err := os.MkdirTemp("", "weir-lab-*")
	if err != nil {
		return nil, err
	}
	s.followerDir = dir
	if err := os.Chmod(dir, 0o711); err != nil { // if started by root, the server runs as another user, who needs access
		return nil, err
	}
	s.follower, err = s.server.Standby(ctx, embedded.Config{Dir: dir, Parameters: map[string]string{
		"hot_standby_feedback": "on", "max_standby_streaming_delay": "-1", "shared_buffers": "64MB",
	}})
	return s.follower, err
}

// dropStandby stops the standby.
func (s *site) dropStandby(ctx context.Context) (err error) {
	if s.follower != nil {
		err = s.follower.Stop(ctx)
	}
	if s.followerDir != "" {
		err = errors.Join(err, embedded.Remove(ctx, s.followerDir))
	}
	s.follower, s.followerDir = nil, ""
	return err
}

func holdOnStandby(ctx context.Context, t *trial) error {
	standby, err := t.site.standby(ctx)
	if err != nil {
		return err
	}
	t.holder, err = connect(ctx, standby.URL("postgres"), watcherName, unlimited)
	return err
}

// openOnStandby returns when the primary knows of the transaction.
func openOnStandby(ctx context.Context, t *trial) error {
	if err := openWith(load.Pins["read"].SQL)(ctx, t); err != nil {
		return err
	}
	return t.await(ctx, `SELECT count(*) > 0 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL`)
}

// await waits, for half a minute at most, until a query returns true.
func (t *trial) await(ctx context.Context, sql string, args ...any) error {
	conn, err := connect(ctx, t.site.url, watcherName, nil)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for until := time.Now().Add(30 * time.Second); ; {
		var there bool
		if err := conn.QueryRow(ctx, sql, args...).Scan(&there); err != nil || there {
			return err
		}
		if time.Now().After(until) || !sleep.For(ctx, 50*time.Millisecond) {
			return errors.Join(ctx.Err(), errors.New("the primary has not learnt of it"))
		}
	}
}

func slotUnable(ctx context.Context, s *site) (why string) {
	err := s.guard.QueryRow(ctx, `SELECT CASE
		WHEN NOT (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user) THEN 'the role may not use replication'
		WHEN current_setting('wal_level') = 'minimal' THEN 'wal_level is minimal'
		WHEN (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::int THEN 'the server allows no further replication slot'
		ELSE '' END`).Scan(&why)
	if err != nil {
		return err.Error()
	}
	if why == "" { // pg_hba.conf has lines of its own for replication, and poolers have none
		stream, err := replicate(ctx, s.url)
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
			return "the server accepts no connection for replication: " + refused.Message // the driver's error has a line for each of its attempts
		}
		if err != nil {
			return fmt.Sprintf("the server can't be reached for replication: %v", err)
		}
		_ = stream.Close(ctx)
	}
	return why
}

// replicate opens a connection for physical replication.
func replicate(ctx context.Context, url string) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"], config.RuntimeParams["application_name"] = "true", watcherName
	return pgconn.ConnectConfig(ctx, config)
}

func preparedUnable(ctx context.Context, s *site) (why string) {
	err := s.guard.QueryRow(ctx, `SELECT CASE WHEN (SELECT count(*) FROM pg_prepared_xacts) < current_setting('max_prepared_transactions')::int THEN ''
		ELSE 'max_prepared_transactions is ' || current_setting('max_prepared_transactions') || ', and no more can be prepared' END`).Scan(&why)
	if err != nil {
		return err.Error()
	}
	return why
}

// thisSlot is the name of this database's slot, in SQL.
const thisSlot = `'` + pinSlot + `' || (SELECT oid FROM pg_database WHERE datname = current_database())`

// dropPinSlot drops the slot, and says whether there was one. Its client is gone, but the server may not have noticed yet.
func dropPinSlot(ctx context.Context, conn *pgx.Conn) (found bool, err error) {
	if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = `+thisSlot+` AND active`); err != nil {
		return false, err
	}
	tag, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = `+thisSlot)
	return tag.RowsAffected() > 0, err
}

func endSlot(ctx context.Context, t *trial) error {
	conn, err := connect(ctx, t.site.url, watcherName, nil)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	found, err := dropPinSlot(ctx, conn)
	if err == nil && !found {
		err = errors.New("somebody else has dropped the slot")
	}
	return err
}

// abandonSlot plays a standby that asks for rows to be kept, and then is gone for good.
func abandonSlot(ctx context.Context, t *trial) error {
	stream, err := followSlot(ctx, t)
	if stream != nil {
		_ = stream.Close(context.WithoutCancel(ctx)) // the slot remains
	}
	return err
}

// followSlot plays a standby that asks for rows to be kept, as with hot_standby_feedback. The connection is the caller's to close, with an error too.
func followSlot(ctx context.Context, t *trial) (stream *pgconn.PgConn, err error) {
	conn, err := connect(ctx, t.site.url, watcherName, nil)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	var name, at string
	var xid uint64
	err = conn.QueryRow(ctx, `SELECT slot_name, lsn::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM pg_create_physical_replication_slot(`+thisSlot+`, true)`).Scan(&name, &at, &xid)
	if err != nil {
		return nil, err
	}
	if stream, err = replicate(ctx, t.site.url); err != nil {
		return nil, err
	}
	stream.Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf("START_REPLICATION SLOT %s PHYSICAL %s", name, at)})
	if err := stream.Frontend().Flush(); err != nil {
		return stream, err
	}
	for streaming := false; !streaming; {
		m, err := stream.ReceiveMessage(ctx)
		if err != nil {
			return stream, err
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			return stream, pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyBothResponse:
			streaming = true
		}
	}
	// "Hot standby feedback" of the streaming replication protocol: the time, the xmin with its epoch, and no catalog_xmin.
	feedback := []byte{'h'}
	feedback = binary.BigEndian.AppendUint64(feedback, 0)
	feedback = binary.BigEndian.AppendUint32(feedback, uint32(xid))
	feedback = binary.BigEndian.AppendUint32(feedback, uint32(xid>>32))
	feedback = binary.BigEndian.AppendUint64(feedback, 0)
	stream.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	if err := stream.Frontend().Flush(); err != nil {
		return stream, err
	}
	return stream, t.await(ctx, `SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = $1`, name)
}

// oldestTransaction reads for how many seconds that has been open what holds the horizon: the age of the oldest transaction, wherever it is.
func oldestTransaction(conn *pgx.Conn) gauge {
	since := map[string]time.Time{} // by the xid that is held: first seen
	return gauge{oldest, func(ctx context.Context) (float64, error) {
		rows, _ := conn.Query(ctx, `SELECT x::text FROM (
				SELECT backend_xmin FROM pg_stat_activity WHERE pid <> pg_backend_pid() UNION ALL SELECT backend_xid FROM pg_stat_activity
				UNION ALL SELECT xmin FROM pg_replication_slots UNION ALL SELECT transaction FROM pg_prepared_xacts) h (x)
			WHERE x IS NOT NULL ORDER BY age(x) DESC`) // rows report the error
		held, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(held) == 0 {
			return 0, err
		}
		seen := make(map[string]time.Time, len(held))
		for _, xid := range held {
			if at, ok := since[xid]; ok {
				seen[xid] = at
			} else {
				seen[xid] = time.Now()
			}
		}
		since = seen
		return round(time.Since(since[held[0]]).Seconds()), nil
	}}
}
