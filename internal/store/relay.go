package store

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlRelayReached  = `SELECT weir._relay_reached($1, $2, $3, $4, $5)::text`
	sqlRelayPosition = `SELECT coalesce(position, ''), coalesce(sent, '') FROM weir._relay_position($1)`
	sqlFirstTick     = `SELECT tick, coalesce(epoch, 0), is_kept FROM weir._first_tick_after($1)`
	sqlSharedUpto    = `SELECT coalesce(t.tick, -1), coalesce(weir._epoch_of(t.tick), 0) FROM weir._shared_upto($1, $2) t(tick)`
	sqlRelays        = `SELECT relay, position, reached_at, tick, newest_tick, oldest_waiting FROM weir.relays()`
	sqlForgetRelay   = `SELECT weir.forget_relay($1)`
	sqlLockRelay     = `SELECT pg_try_advisory_lock(1464158565, hashtext($1))`
	sqlEndIdle       = `SELECT set_config('idle_session_timeout', $1, false)`
)

// Relay is how far a relay has come.
type Relay struct {
	Name          string
	Position      string // in the log that it reads
	ReachedAt     time.Time
	Tick          *int64 // the first tick that it has not passed on in whole; nil: it does not read this database's messages
	NewestTick    *int64
	OldestWaiting *time.Time // when the oldest tick was cut that may have messages to pass on; nil: there is none
}

// RelayReached records how far a relay has come. From tick on, messages are kept for it; nil: none are. With after, it must have been there; "": nowhere.
func RelayReached(ctx context.Context, q Querier, name, position string, tick *int64, after *string) error {
	var nothing *string
	return q.QueryRow(ctx, sqlRelayReached, name, position, tick, after, nil).Scan(&nothing)
}

// RelayReached is the function of this name in a transaction of its own. sent is the position of the message that the target got last; "": none is known.
func (s *Store) RelayReached(ctx context.Context, name, position string, tick *int64, sent string) error {
	return s.exec(ctx, sqlRelayReached, name, position, tick, nil, sent)
}

// RelayPosition returns what was recorded last, and the position of the message that the target got last; "": nothing.
func (s *Store) RelayPosition(ctx context.Context, name string) (position, sent string, err error) {
	err = s.row(ctx, sqlRelayPosition, []any{name}, &position, &sent)
	return position, sent, err
}

// FirstTickAfter returns the tick before the first one that was cut after a time, and whether everything since then is kept.
func (s *Store) FirstTickAfter(ctx context.Context, at time.Time) (before Place, kept bool, err error) {
	err = s.row(ctx, sqlFirstTick, []any{at}, &before.Tick, &before.Epoch, &kept)
	before.Tick--
	return before, kept, err
}

// SharedUpto returns the last tick that the log has in common with the one of a place: the place's own, if it is of this log; false: nothing is known of its epoch.
func (s *Store) SharedUpto(ctx context.Context, at Place) (last Place, known bool, err error) {
	err = s.row(ctx, sqlSharedUpto, []any{at.Tick, at.Epoch}, &last.Tick, &last.Epoch)
	return last, last.Tick >= 0, err
}

// Relays lists the relays.
func (s *Store) Relays(ctx context.Context) ([]Relay, error) {
	return rows(ctx, s, sqlRelays, nil, pgx.RowToStructByPos[Relay])
}

// ForgetRelay forgets a relay; false: it is not known.
func (s *Store) ForgetRelay(ctx context.Context, name string) (known bool, err error) {
	err = s.row(ctx, sqlForgetRelay, []any{name}, &known)
	return known, err
}

// LockRelay takes the relay for as long as the session lasts; false: another session has it. The server ends the session when it has been idle for so long: a process that stands still, or whose machine
// is gone, would keep it otherwise.
func LockRelay(ctx context.Context, conn *pgx.Conn, name string, idle time.Duration) (locked bool, err error) {
	if err = conn.QueryRow(ctx, sqlLockRelay, name).Scan(&locked); err != nil || !locked {
		return false, err
	}
	return true, conn.QueryRow(ctx, sqlEndIdle, strconv.FormatInt(idle.Milliseconds(), 10)).Scan(new(string))
}

// IsPassedOn reports whether another process has passed on what this one was about to.
func IsPassedOn(err error) bool { return code(err) == codePassedOn }
