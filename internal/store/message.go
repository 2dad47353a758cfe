package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	sqlTick = `SELECT seqs, ats, counts, sizes, epochs, ids_now, seen_now::text, message_ids, xids, channels, payloads, binaries, keeps
		FROM weir._await_tick($1, $2, $3::text::pg_snapshot, $4, $5, $6, $7, $8, $9)`
	sqlTicks    = `SELECT seqs, ats, counts, sizes, epochs, ids_now, seen_now::text FROM weir.ticks($1, $2, $3, $4, $5)`
	sqlMayTick  = `SELECT coalesce(bool_or(has_function_privilege(p.oid, 'EXECUTE')), false) FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND p.proname = '_await_tick'`
	sqlRead     = `SELECT id, xid::text::bigint, channel, payload, is_binary, keep FROM weir.read($1, $2, $3, $4)`
	sqlReadMany = `SELECT t.seq, r.id, r.xid::text::bigint, r.channel, r.payload, r.is_binary, r.keep
		FROM unnest($1::bigint[], $2::bigint[]) t(seq, epoch) CROSS JOIN LATERAL weir.read(t.seq, 0, $3, t.epoch) r ORDER BY t.seq, r.id`
	sqlNewestTick     = `SELECT t, weir._epoch_of(t) FROM weir.newest_tick() t`
	sqlRebaseMessages = `SELECT weir.rebase_messages()`
	sqlRotateMessages = `SELECT coalesce(weir._rotate_messages(), '')`
	sqlPublish        = `SELECT weir.publish($1, $2, $3)::text` // the cast makes it a value that every driver can read
	sqlPublishBytes   = `SELECT weir.publish_bytes($1, $2, $3)::text`
	sqlPublishDrafts  = `SELECT coalesce(tick, 0), coalesce(epoch, 0), coalesce(prior, 0), at FROM weir._publish_drafts($1, $2, $3, $4)`
	sqlBeat           = `SELECT weir._beat($1, $2, $3, $4, $5, $6, $7)`
	sqlFreshQueues    = `SELECT names, counts, seen_now::text, jobs_now FROM weir._fresh_queues($1::text::pg_snapshot, $2, $3, $4, $5)`
	sqlLogins         = `SELECT name, verifier, listens, notifies FROM weir._logins()`
	sqlLoginSecret    = `SELECT secret, iterations FROM weir._login_secret()`
	sqlDatabaseID     = `SELECT (SELECT c.system_identifier FROM pg_control_system() c) || '-' || d.oid FROM pg_database d WHERE d.datname = current_database()`
	sqlRevocations    = `SELECT id, user_name, at, until FROM weir.revocations()`
	sqlDisconnect     = `SELECT weir.disconnect($1)::text`
	sqlRevoke         = `SELECT weir.revoke($1, make_interval(secs => $2))`
	sqlServer         = `SELECT pg_postmaster_start_time(), pg_is_in_recovery()`
	sqlServerVersion  = `SHOW server_version`
)

// Tick is the header of a tick.
type Tick struct {
	Seq   int64
	Epoch int64 // the epoch of its log
	At    time.Time
	Count int32
	Bytes int64 // size of its payloads

	Messages []Message // all of its messages, if the poll returned them; nil: read them separately
}

// Seen is the result of a poll for ticks: while nothing has changed since, the next poll reads no table. With the zero value, it does.
type Seen struct {
	ids      *int64
	snapshot *string
}

// Poll specifies how a hub polls for news.
type Poll struct {
	Polls    int           // maximum number of polls
	Pause    time.Duration // between them
	Patience int           // polls before a commit alone, with nothing logged, makes it read the tables
	Cut      bool          // for ticks: cut the next tick if there is none,
	Messages int           // and return its messages, if there are no more than this
}

// Place is a tick of a certain log.
type Place struct {
	Tick  int64
	Epoch int64 // negative: any log
}

func (p Place) epoch() *int64 {
	if p.Epoch < 0 {
		return nil
	}
	return &p.Epoch
}

// Ticks returns the ticks after a given one, and the Seen for the next call.
func (s *Store) Ticks(ctx context.Context, after Place, seen Seen, poll Poll) ([]Tick, Seen, error) {
	var seqs []int64
	var ats []time.Time
	var counts []int32
	var sizes, epochs []int64
	var now Seen
	sql, args, to := sqlTicks, []any{after.Tick, seen.ids, poll.Polls, poll.Pause.Seconds(), after.epoch()}, []any{&seqs, &ats, &counts, &sizes, &epochs, &now.ids, &now.snapshot}
	var came columns
	if poll.Cut {
		sql, args = sqlTick, []any{after.Tick, seen.ids, seen.snapshot, poll.Polls, poll.Pause.Seconds(), poll.Patience, true, after.epoch(), poll.Messages}
		to = append(to, &came.ids, &came.xids, &came.channels, &came.payloads, &came.binaries, &came.keeps)
	}
	if err := s.row(ctx, sql, args, to...); err != nil {
		return nil, Seen{}, err
	}
	ticks := make([]Tick, len(seqs))
	for i := range seqs {
		ticks[i] = Tick{Seq: seqs[i], Epoch: epochs[i], At: ats[i], Count: counts[i], Bytes: sizes[i]}
	}
	if len(ticks) == 1 {
		ticks[0].Messages = came.messages()
	}
	return ticks, now, nil
}

// MayTick reports whether the role may cut ticks; a role that may not sees only the ticks that hubs cut.
func (s *Store) MayTick(ctx context.Context) (may bool, err error) {
	err = s.row(ctx, sqlMayTick, nil, &may)
	return may, err
}

// All reports whether the poll has cut all messages that were committed before it, or found none to cut.
func (s Seen) All() bool { return s.ids != nil }

// Published reports whether more message ids had been assigned at this poll than at an earlier one; true if either number is unknown.
func (s Seen) Published(earlier Seen) bool {
	return s.ids == nil || earlier.ids == nil || *s.ids != *earlier.ids
}

// Message is a row of the log.
type Message struct {
	ID      int64
	XID     int64
	Channel string
	Payload []byte
	Binary  bool
	Keep    bool
}

// columns are messages in the form in which weir.tick returns them.
type columns struct {
	ids, xids       []int64
	channels        []string
	payloads        [][]byte
	binaries, keeps []bool
}

func (c columns) messages() []Message {
	if c.ids == nil {
		return nil
	}
	m := make([]Message, len(c.ids))
	for i := range m {
		m[i] = Message{ID: c.ids[i], XID: c.xids[i], Channel: c.channels[i], Payload: c.payloads[i], Binary: c.binaries[i], Keep: c.keeps[i]}
	}
	return m
}

// ReadTick returns up to limit messages of a tick after an id, in order.
func (s *Store) ReadTick(ctx context.Context, tick Tick, afterID int64, limit int) ([]Message, error) {
	return rows(ctx, s, sqlRead, []any{tick.Seq, afterID, limit, tick.Epoch}, scanMessage)
}

func scanMessage(row pgx.CollectableRow) (m Message, err error) {
	err = row.Scan(&m.ID, &m.XID, &m.Channel, &m.Payload, &m.Binary, &m.Keep)
	return m, err
}

// ReadTicks reads several whole ticks in one round trip. They must be small enough for that.
func (s *Store) ReadTicks(ctx context.Context, ticks []Tick, limit int) ([][]Message, error) {
	seqs, epochs := make([]int64, len(ticks)), make([]int64, len(ticks))
	place := make(map[int64]int, len(ticks))
	for i, t := range ticks {
		seqs[i], epochs[i], place[t.Seq] = t.Seq, t.Epoch, i
	}
	type row struct {
		tick int64
		Message
	}
	found, err := rows(ctx, s, sqlReadMany, []any{seqs, epochs, limit}, func(r pgx.CollectableRow) (m row, err error) {
		err = r.Scan(&m.tick, &m.ID, &m.XID, &m.Channel, &m.Payload, &m.Binary, &m.Keep)
		return m, err
	})
	all := make([][]Message, len(ticks))
	for _, m := range found {
		all[place[m.tick]] = append(all[place[m.tick]], m.Message)
	}
	return all, err
}

// NewestTick returns the newest tick.
func (s *Store) NewestTick(ctx context.Context) (newest Place, err error) {
	err = s.row(ctx, sqlNewestTick, nil, &newest.Tick, &newest.Epoch)
	return newest, err
}

// RebaseMessages starts the log of messages over in another cluster; nil: there was no need.
func (s *Store) RebaseMessages(ctx context.Context) (relogged *int64, err error) {
	err = s.row(ctx, sqlRebaseMessages, nil, &relogged)
	return relogged, err
}

// RotateMessages takes the next step in the life of message segments, and returns which, or "".
func (s *Store) RotateMessages(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotateMessages, nil, &did)
	return did, err
}

// Publish publishes text.
func Publish(ctx context.Context, q Querier, channel, payload string, keep bool) error {
	var nothing *string
	return q.QueryRow(ctx, sqlPublish, channel, payload, keep).Scan(&nothing)
}

// PublishBytes publishes bytes that are not text.
func PublishBytes(ctx context.Context, q Querier, channel string, payload []byte, keep bool) error {
	var nothing *string
	return q.QueryRow(ctx, sqlPublishBytes, channel, payload, keep).Scan(&nothing)
}

// PublishDraftsTx is PublishDrafts without a tick, in the caller's transaction.
func PublishDraftsTx(ctx context.Context, q Querier, channels []string, payloads [][]byte, binaries []bool) error {
	var tick, epoch, prior int64
	var at *time.Time
	return q.QueryRow(ctx, sqlPublishDrafts, channels, payloads, binaries, false).Scan(&tick, &epoch, &prior, &at)
}

// PublishDrafts logs messages of several publishers in one transaction. With cut, it also cuts the next tick in that transaction, if it
// can. It returns the tick that holds these messages and no others, with Seq 0 if there is none yet, and the epoch of the previous tick.
func (s *Store) PublishDrafts(ctx context.Context, channels []string, payloads [][]byte, binaries []bool, cut bool) (tick Tick, prior int64, err error) {
	var at *time.Time
	err = s.row(ctx, sqlPublishDrafts, []any{channels, payloads, binaries, cut}, &tick.Seq, &tick.Epoch, &prior, &at)
	if at != nil {
		tick.At = *at
	}
	return tick, prior, err
}

// HubBeat is what a hub's heartbeat says.
type HubBeat struct {
	Hub, Address          string
	Tick                  int64 // the newest that it has dispatched
	Subscribers, Channels int
	Messages, Deliveries  float64 // per second
}

// Beat records a hub's heartbeat.
func (s *Store) Beat(ctx context.Context, b HubBeat) error {
	return s.exec(ctx, sqlBeat, b.Hub, b.Address, b.Tick, b.Subscribers, b.Channels, float32(b.Messages), float32(b.Deliveries))
}

// Leave records that the hub stops.
func (s *Store) Leave(ctx context.Context, hub, address string) error {
	return s.exec(ctx, sqlBeat, hub, address, nil, 0, 0, float32(0), float32(0))
}

// Fresh is the result of a poll for queues with fresh jobs. Begin with the zero value.
type Fresh struct {
	Queues   []string
	Counts   []int32 // number of jobs; from a hundred on, a lower bound
	snapshot *string
	jobs     *int64
}

// Logged reports whether more jobs had been logged at this poll than at an earlier one.
func (f Fresh) Logged(earlier Fresh) bool {
	return f.jobs == nil || earlier.jobs == nil || *f.jobs != *earlier.jobs
}

// FreshQueues returns the queues for which jobs were committed since an earlier poll.
func (s *Store) FreshQueues(ctx context.Context, since Fresh, poll Poll) (now Fresh, err error) {
	err = s.row(ctx, sqlFreshQueues, []any{since.snapshot, since.jobs, poll.Polls, poll.Pause.Seconds(), poll.Patience},
		&now.Queues, &now.Counts, &now.snapshot, &now.jobs)
	return now, err
}

// Login is a role that may log in at hubs.
type Login struct {
	Name, Verifier    string
	Listens, Notifies []string // channels and patterns; nil: all
}

// Logins returns all roles that may log in at hubs.
func (s *Store) Logins(ctx context.Context) ([]Login, error) {
	return rows(ctx, s, sqlLogins, nil, func(r pgx.CollectableRow) (l Login, err error) {
		err = r.Scan(&l.Name, &l.Verifier, &l.Listens, &l.Notifies)
		return l, err
	})
}

// LoginSecret returns the secret from which salts of unknown users are derived, and the number of iterations announced for them.
func (s *Store) LoginSecret(ctx context.Context) (secret string, iterations int, err error) {
	err = s.row(ctx, sqlLoginSecret, nil, &secret, &iterations)
	return secret, iterations, err
}

// DatabaseID returns an id that is unique among all databases of all clusters.
func (s *Store) DatabaseID(ctx context.Context) (id string, err error) {
	err = s.row(ctx, sqlDatabaseID, nil, &id)
	return id, err
}

// Server returns since when the server runs, which no other server does, and whether it is a standby.
func (s *Store) Server(ctx context.Context) (since time.Time, standby bool, err error) {
	err = s.row(ctx, sqlServer, nil, &since, &standby)
	return since, standby, err
}

// ServerVersion returns the version that the server reports.
func (s *Store) ServerVersion(ctx context.Context) (version string, err error) {
	err = s.row(ctx, sqlServerVersion, nil, &version)
	return version, err
}

// TruncatedUpTo returns the last tick that can no longer be read, if the error reports that.
func TruncatedUpTo(err error) (last Place, ok bool) { return detail(err, codeTruncated) }

// NotOfThisLog returns the tick to continue from, if the error reports that the requested tick is not in this log.
func NotOfThisLog(err error) (from Place, ok bool) { return detail(err, codeElsewhere) }

// codeElsewhere means that the requested tick is ahead of the log, or of another epoch.
const codeElsewhere = "WR006"

// detail returns the tick in the detail of an error with the SQLSTATE code, written as epoch.tick.
func detail(err error, code string) (p Place, ok bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != code {
		return Place{}, false
	}
	epoch, tick, ok := strings.Cut(pg.Detail, ".")
	e, err1 := strconv.ParseInt(epoch, 10, 64)
	t, err2 := strconv.ParseInt(tick, 10, 64)
	return Place{Epoch: e, Tick: t}, ok && err1 == nil && err2 == nil
}
