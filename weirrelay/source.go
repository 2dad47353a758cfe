package weirrelay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/store"
)

// Arrival is a message of another broker.
type Arrival struct {
	Subject string // or the stream's name
	ID      string // its place in the stream, for people
	Payload []byte
	Key     string // if the broker knows one
}

// Source is a stream of another broker from which messages come in order, each with a place of its own. Its methods are called by one goroutine at a time.
type Source interface {
	// Begin is called before the first Next, and again whenever the relay begins anew: Next then returns what follows position, which an earlier Next or Begin has
	// returned; "": what the source's configuration says. Begin returns the position if it has to be recorded before anything has arrived, so that a relay which begins with
	// what is new misses nothing that comes while it is not there; otherwise "".
	Begin(ctx context.Context, position string) (at string, err error)
	// Next waits for messages, and returns up to most of them, with the position behind them. A source that has lost messages which the relay had not read
	// returns a *Lost, and goes on behind them.
	Next(ctx context.Context, most int) (arrived []Arrival, position string, err error)
}

// Lost is a source's error for messages that it no longer has.
type Lost struct{ What string }

func (l *Lost) Error() string { return l.What }

// FromConfig specifies a relay that makes a job of each message of a source. Name, Pool, Source, Queue and Kind are required.
type FromConfig struct {
	// Name is that under which the database records how far the relay has come, 1 to 100 characters. Several processes may run it: one enqueues, and the
	// others stand by.
	Name string
	// Pool connects to the database, directly or through a pooler in session mode, as a user with the roles weir_hub and weir_enqueue.
	Pool   *pgxpool.Pool
	Source Source

	// Queue, Kind and Key are templates, in which {subject}, {id}, {key} and {payload.FIELD} are replaced. Key is none by default.
	Queue string
	Kind  string
	Key   string

	// MaxRecords bounds how many jobs are enqueued in one transaction; default 1,000.
	MaxRecords int
	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called with what the relay has done, by one goroutine at a time.
	Observe func(Progress)
}

// RunFrom enqueues a job for each message of the source until ctx ends, exactly once: jobs and position are in the same transaction. The job's args are the
// payload, if that is a JSON object, and otherwise {"payload": …}, with JSON as it is and another text as a string, or {"bytes": …} in base64. A message of which no job
// can be made, because of its queue, kind, key or size, becomes one of the kind DeadLetter has, in the queue NAME-dead-letters.
//
// It returns the same errors as Run.
func RunFrom(ctx context.Context, c FromConfig) error {
	f, err := newFrom(c)
	if err != nil {
		return fmt.Errorf("weirrelay: %w", err)
	}
	return f.hold.run(ctx, f.stint)
}

// from is a relay into the database. It is owned by the goroutine of RunFrom.
type from struct {
	FromConfig
	hold             holder
	client           *weir.Client
	store            *store.Store
	queue, kind, key template
	at               string // as the database has it
}

var arrivalFields = []string{"subject", "id", "key"}

// CheckFrom returns what is wrong with a configuration, apart from Pool and Source.
func CheckFrom(c FromConfig) error {
	_, err := parseFrom(c)
	return err
}

func parseFrom(c FromConfig) (*from, error) {
	f := &from{FromConfig: c}
	var err error
	switch {
	case !isName(c.Name):
		err = fmt.Errorf("FromConfig.Name must have 1 to 100 characters, got %q", c.Name)
	case c.Queue == "" || c.Kind == "":
		err = fmt.Errorf("FromConfig.Queue and Kind must be set, got %q and %q: they say which jobs messages become", c.Queue, c.Kind)
	case c.MaxRecords < 0 || c.MaxRecords > 10_000:
		err = fmt.Errorf("FromConfig.MaxRecords must be 1 to 10000, or 0 for %d, got %d", defaultRecords, c.MaxRecords)
	}
	for _, t := range []struct {
		into *template
		text string
	}{{&f.queue, c.Queue}, {&f.kind, c.Kind}, {&f.key, c.Key}} {
		if err == nil {
			*t.into, err = parseTemplate(t.text, arrivalFields)
		}
	}
	return f, err
}

func newFrom(c FromConfig) (*from, error) {
	f, err := parseFrom(c)
	switch {
	case err != nil:
		return nil, err
	case c.Pool == nil:
		return nil, errors.New("FromConfig.Pool is nil: set the pool of the database that gets the jobs")
	case c.Source == nil:
		return nil, errors.New("FromConfig.Source is nil: set where messages come from")
	}
	f.MaxRecords = cmp.Or(f.MaxRecords, defaultRecords)
	f.Logger, f.Observe = watched(c.Name, f.Logger, f.Observe)
	f.client, f.store = weir.NewClient(c.Pool), store.New(c.Pool, 0).Bound(callTimeout)
	f.hold = newHolder(c.Name, c.Pool, f.Logger, f.Observe)
	return f, nil
}

// stint enqueues for as long as this process has the relay.
func (f *from) stint(ctx context.Context) error {
	var err error
	if f.at, _, err = f.store.RelayPosition(ctx, f.Name); err != nil {
		return err
	}
	at, err := f.Source.Begin(ctx, f.at)
	if err != nil {
		return fmt.Errorf("begin at the source: %w", err)
	}
	if f.at == "" && at != "" {
		if err := f.inTx(ctx, nil, at); err != nil {
			return err
		}
	}
	f.hold.worked()
	for {
		arrived, position, err := f.Source.Next(ctx, f.MaxRecords)
		var lost *Lost
		if errors.As(err, &lost) {
			f.Logger.Error("weir: the source has lost messages before they were relayed: the relay goes on behind them", "what", lost.What)
			f.Observe(Progress{Active: true, Gap: &weir.Gap{Reason: lost.What}})
			continue
		} else if err != nil {
			return fmt.Errorf("read the source: %w", err)
		}
		read := time.Now()
		dead, err := f.enqueue(ctx, arrived, position)
		if err != nil {
			return err
		}
		f.Observe(Progress{Active: true, Sent: len(arrived) - dead, Dead: dead, Lag: time.Since(read)})
	}
}

// enqueue enqueues what has arrived, and moves the position, in one transaction.
func (f *from) enqueue(ctx context.Context, arrived []Arrival, position string) (dead int, err error) {
	jobs := make([]weir.NewJob, len(arrived))
	for i := range arrived {
		jobs[i] = f.job(&arrived[i])
	}
	err = f.inTx(ctx, jobs, position)
	if !store.IsBadData(err) {
		return 0, err
	}
	// Each is tried in a transaction that is rolled back, and those that can't be jobs become dead letters; then all of them are enqueued.
	for i := range jobs {
		err := f.try(ctx, jobs[i])
		if !store.IsBadData(err) {
			if err != nil {
				return 0, err
			}
			continue
		}
		letter := weir.NewJob{Args: f.letter(&arrived[i], err), Options: &weir.Options{Queue: f.Name + deadLetters}}
		if again := f.try(ctx, letter); store.IsBadData(again) {
			letter.Args = f.letter(&arrived[i], err).bare(len(arrived[i].Payload))
		} else if again != nil {
			return 0, again
		}
		jobs[i] = letter
		dead++
		f.Logger.Error("weir: no job can be made of a message, which is kept as a dead letter", "subject", arrived[i].Subject, "id", arrived[i].ID, "error", err, "queue", f.Name+deadLetters)
	}
	return dead, f.inTx(ctx, jobs, position)
}

func (f *from) inTx(ctx context.Context, jobs []weir.NewJob, position string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(len(jobs))*timePerRecord)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, f.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := store.RelayReached(ctx, tx, f.Name, position, nil, &f.at); err != nil {
			return err
		}
		if len(jobs) == 0 {
			return nil
		}
		_, err := f.client.EnqueueManyTx(ctx, tx, jobs)
		return err
	})
	if err == nil {
		f.at = position
	} else if store.IsPassedOn(err) {
		err = fmt.Errorf("%w: %w", ErrMoved, err)
	}
	return err
}

var errTried = errors.New("weirrelay: only tried")

func (f *from) try(ctx context.Context, job weir.NewJob) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, f.Pool, func(tx pgx.Tx) error {
		if _, err := f.client.EnqueueManyTx(ctx, tx, []weir.NewJob{job}); err != nil {
			return err
		}
		return errTried
	})
	if errors.Is(err, errTried) {
		return nil
	}
	return err
}

// raw are args that are JSON already.
type raw struct {
	kind string
	json.RawMessage
}

// Kind implements weir.Args.
func (r raw) Kind() string { return r.kind }

func (f *from) job(a *Arrival) weir.NewJob {
	v := values{payload: a.Payload, of: func(name string) string {
		switch name {
		case "subject":
			return a.Subject
		case "key":
			return a.Key
		}
		return a.ID
	}}
	args := raw{kind: f.kind.with(&v), RawMessage: a.Payload}
	if !json.Valid(a.Payload) || !bytes.HasPrefix(bytes.TrimLeft(a.Payload, " \t\r\n"), []byte("{")) {
		name, value := "payload", any(json.RawMessage(a.Payload))
		switch {
		case json.Valid(a.Payload):
		case utf8.Valid(a.Payload) && !bytes.ContainsRune(a.Payload, 0):
			value = string(a.Payload)
		default:
			name, value = "bytes", a.Payload
		}
		args.RawMessage, _ = json.Marshal(map[string]any{name: value}) //nolint:errcheck // any of these can be encoded
	}
	return weir.NewJob{Args: args, Options: &weir.Options{Queue: f.queue.with(&v), Key: f.key.with(&v)}}
}

// letter names the message by its own id: the position is that of the batch.
func (f *from) letter(a *Arrival, why error) DeadLetter {
	l := DeadLetter{Relay: f.Name, Position: weir.Position(legible(a.ID, maxSubject)), Subject: legible(a.Subject, maxSubject), Error: legible(why.Error(), maxError)}
	l.keep(a.Payload, bytes.IndexByte(a.Payload, 0) >= 0)
	return l
}
