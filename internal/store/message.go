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
	sqlBeat           = `SELECT weir._beat($1, $2, $3, $4)`
	sqlFreshQueues    = `SELECT names, counts, seen_now::text, jobs_now FROM weir._fresh_queues($1::text::pg_snapshot, $2, $3, $4, $5)`
	sqlLogins         = `SELECT name, verifier, listens, notifies FROM weir._logins()`
	sqlLoginSecret    = `SELECT secret, iterations FROM weir._login_secret()`
	sqlDatabaseID     = `SELECT (SELECT c.system_identifier FROM pg_control_system() c) || '-' || d.oid FROM pg_database d WHERE d.datname = current_database()`
	sqlServerVersion  = `SHOW server_version`
)

// Tick is a tick's header.
type Tick struct {
	Seq   int64
	Epoch int64 // which log it is of
	At    time.Time
	Count int32
	Bytes int64 // of the payloads

	Messages []Message // all of them, where the look has brought them along; nil: they are to be read
}

// Seen is what a look for ticks saw: while nothing has changed since, the next look touches no table. The zero value makes it look.
type Seen struct {
	ids      *int64
	snapshot *string
}

// Look says how a hub looks for news.
type Look struct {
	Looks    int           // at most
	Pause    time.Duration // between them
	Patience int           // looks before a commit alone, with nothing logged since, makes it look into the tables
	Cut      bool          // of ticks: cut the next if there is none,
	Messages int           // and bring its messages along, if there are at most so many
}

// Place is a tick of a certain log.
type Place struct {
	Tick  int64
	Epoch int64 // negative: whichever log it is
}

func (p Place) epoch() *int64 {
	if p.Epoch < 0 {
		return nil
	}
	return &p.Epoch
}

// Ticks returns the ticks after a given one, and what to look with next.
func (s *Store) Ticks(ctx context.Context, after Place, seen Seen, look Look) ([]Tick, Seen, error) {
	var seqs []int64
	var ats []time.Time
	var counts []int32
	var sizes, epochs []int64
	var now Seen
	sql, args, to := sqlTicks, []any{after.Tick, seen.ids, look.Looks, look.Pause.Seconds(), after.epoch()}, []any{&seqs, &ats, &counts, &sizes, &epochs, &now.ids, &now.snapshot}
	var came columns
	if look.Cut {
		sql, args = sqlTick, []any{after.Tick, seen.ids, seen.snapshot, look.Looks, look.Pause.Seconds(), look.Patience, true, after.epoch(), look.Messages}
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

// MayTick tells whether the role may cut ticks; who may not sees those that hubs cut.
func (s *Store) MayTick(ctx context.Context) (may bool, err error) {
	err = s.row(ctx, sqlMayTick, nil, &may)
	return may, err
}

// Published tells whether more ids had been drawn at this look than at an earlier one, as far as both know.
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

// columns are messages as weir.tick brings them.
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

// ReadTick returns messages of a tick behind an id, in order: at most most of them, and not all of a tick that is larger than that.
func (s *Store) ReadTick(ctx context.Context, tick Tick, afterID int64, most int) ([]Message, error) {
	return rows(ctx, s, sqlRead, []any{tick.Seq, afterID, most, tick.Epoch}, scanMessage)
}

func scanMessage(row pgx.CollectableRow) (m Message, err error) {
	err = row.Scan(&m.ID, &m.XID, &m.Channel, &m.Payload, &m.Binary, &m.Keep)
	return m, err
}

// ReadTicks reads several ticks, each whole, in one round trip. They must be small enough for it.
func (s *Store) ReadTicks(ctx context.Context, ticks []Tick, most int) ([][]Message, error) {
	seqs, epochs := make([]int64, len(ticks)), make([]int64, len(ticks))
	place := make(map[int64]int, len(ticks))
	for i, t := range ticks {
		seqs[i], epochs[i], place[t.Seq] = t.Seq, t.Epoch, i
	}
	type row struct {
		tick int64
		Message
	}
	found, err := rows(ctx, s, sqlReadMany, []any{seqs, epochs, most}, func(r pgx.CollectableRow) (m row, err error) {
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

// RebaseMessages starts the log of messages anew in another cluster; nil: there was no need.
func (s *Store) RebaseMessages(ctx context.Context) (relogged *int64, err error) {
	err = s.row(ctx, sqlRebaseMessages, nil, &relogged)
	return relogged, err
}

// RotateMessages takes the next step in the life of message segments and says which, or "".
func (s *Store) RotateMessages(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotateMessages, nil, &did)
	return did, err
}

// Publish publishes a text.
func Publish(ctx context.Context, q Querier, channel, payload string, keep bool) error {
	var nothing *string
	return q.QueryRow(ctx, sqlPublish, channel, payload, keep).Scan(&nothing)
}

// PublishBytes publishes what is not text.
func PublishBytes(ctx context.Context, q Querier, channel string, payload []byte, keep bool) error {
	var nothing *string
	return q.QueryRow(ctx, sqlPublishBytes, channel, payload, keep).Scan(&nothing)
}

// PublishDrafts logs messages of several publishers in one transaction. With cut it cuts the next tick in the same transaction if it can. It
// returns the tick that holds these messages and no others, and the epoch of the one before; its Seq is 0 where there is none yet.
func (s *Store) PublishDrafts(ctx context.Context, channels []string, payloads [][]byte, binaries []bool, cut bool) (tick Tick, prior int64, err error) {
	var at *time.Time
	err = s.row(ctx, sqlPublishDrafts, []any{channels, payloads, binaries, cut}, &tick.Seq, &tick.Epoch, &prior, &at)
	if at != nil {
		tick.At = *at
	}
	return tick, prior, err
}

// Beat is a hub's sign of life.
func (s *Store) Beat(ctx context.Context, hub, address string, tick int64, subscribers int) error {
	return s.exec(ctx, sqlBeat, hub, address, tick, subscribers)
}

// Leave says that the hub stops.
func (s *Store) Leave(ctx context.Context, hub, address string) error {
	return s.exec(ctx, sqlBeat, hub, address, nil, 0)
}

// Fresh is what a look for queues with fresh jobs saw. The zero value says where to begin.
type Fresh struct {
	Queues   []string
	Counts   []int32 // of jobs; from a hundred on perhaps less than all
	snapshot *string
	jobs     *int64
}

// Logged tells whether more jobs had been logged at this look than at an earlier one.
func (f Fresh) Logged(earlier Fresh) bool {
	return f.jobs == nil || earlier.jobs == nil || *f.jobs != *earlier.jobs
}

// FreshQueues returns the queues for which jobs were committed since an earlier look.
func (s *Store) FreshQueues(ctx context.Context, since Fresh, look Look) (now Fresh, err error) {
	err = s.row(ctx, sqlFreshQueues, []any{since.snapshot, since.jobs, look.Looks, look.Pause.Seconds(), look.Patience},
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

// LoginSecret returns what salts of users that do not exist are made from, and how many iterations are shown for them.
func (s *Store) LoginSecret(ctx context.Context) (secret string, iterations int, err error) {
	err = s.row(ctx, sqlLoginSecret, nil, &secret, &iterations)
	return secret, iterations, err
}

// DatabaseID names the database among all there are.
func (s *Store) DatabaseID(ctx context.Context) (id string, err error) {
	err = s.row(ctx, sqlDatabaseID, nil, &id)
	return id, err
}

// ServerVersion is what the server says it is.
func (s *Store) ServerVersion(ctx context.Context) (version string, err error) {
	err = s.row(ctx, sqlServerVersion, nil, &version)
	return version, err
}

// TruncatedUpTo returns the last tick that can no longer be read, when that is what the error says.
func TruncatedUpTo(err error) (last Place, ok bool) { return detail(err, codeTruncated) }

// NotOfThisLog returns the tick from which to go on, when the error says that the one asked for is not of this log.
func NotOfThisLog(err error) (from Place, ok bool) { return detail(err, codeElsewhere) }

// codeElsewhere is beside codeTruncated: the tick asked for lies ahead of the log, or is of another epoch.
const codeElsewhere = "WR006"

// detail returns the tick in the detail of an error with the SQLSTATE: epoch.tick.
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
