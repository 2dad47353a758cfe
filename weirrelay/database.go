package weirrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/store"
)

// Database is a target: another database with Weir's schema. Each Send is a transaction that publishes the messages there, or enqueues a job for each, and records
// the position, so the database has both or neither.
type Database struct {
	// Pool connects to the database, as a user with the role weir_hub, and for jobs weir_enqueue.
	Pool *pgxpool.Pool
	// Name is that of the relay, unique among all that go into this database; it also has to differ from those of the database's own relays.
	Name string
	// Kind is of messages alone; jobs stay jobs of their kind, with their meta, key and priority, in the queue that the route's subject names. It makes each message a job of this kind, whose args are {"channel": …, "position": …, "payload": …}, with a payload that is JSON as it is and another one as
	// text; one that was published as bytes is in base64, under "bytes". The route's subject names the queue, and its key, if the route has one, is that of the
	// job. "": messages are published, on the channel that the route's subject names.
	Kind string

	at weir.Position // as the database has it
}

// Begin implements Target: the database knows what it has.
func (d *Database) Begin(ctx context.Context, _ weir.Position) (weir.Position, error) {
	if d.Pool == nil || d.Name == "" {
		return "", errors.New("weirrelay: Database needs a Pool and a Name")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at, _, err := store.New(d.Pool, 0).RelayPosition(ctx, d.Name)
	if err != nil {
		return "", store.Explain(err, "weir_hub")
	}
	d.at = weir.Position(at)
	return d.at, nil
}

// Send implements Target.
func (d *Database) Send(ctx context.Context, records []Record) error {
	// A server that does not answer is waited for no longer than this; then the log says so.
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(len(records))*timePerRecord)
	defer cancel()
	if len(records) > 0 && records[0].Job != nil {
		return d.enqueueJobs(ctx, records)
	}
	records, passed := Behind(records, d.at)
	err := d.send(ctx, records)
	if !store.IsBadData(err) {
		return err
	}
	// Of which record the database does not take, its error says nothing that could be relied on.
	for i := range records {
		if err := d.send(ctx, records[i:i+1]); store.IsBadData(err) {
			return &Refused{Index: passed + i, Err: err}
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (d *Database) send(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	last, after := records[len(records)-1].Position, string(d.at)
	err := pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := store.RelayReached(ctx, tx, d.Name, string(last), nil, &after); err != nil {
			return err
		}
		if d.Kind != "" {
			return d.enqueue(ctx, tx, records)
		}
		return publish(ctx, tx, records)
	})
	if store.IsPassedOn(err) {
		// An earlier try has arrived, although its answer did not; or another process has sent something.
		return fmt.Errorf("%w: %w", ErrMoved, err)
	}
	if err == nil {
		d.at = last
	}
	return err
}

func publish(ctx context.Context, tx pgx.Tx, records []Record) error {
	channels, payloads, binaries := make([]string, len(records)), make([][]byte, len(records)), make([]bool, len(records))
	for i := range records {
		channels[i], payloads[i], binaries[i] = records[i].Subject, records[i].Payload, records[i].Binary
	}
	return store.PublishDraftsTx(ctx, tx, channels, payloads, binaries)
}

// relayed are the args of a job that was a message.
type relayed struct {
	kind     string
	Channel  string          `json:"channel"`
	Position weir.Position   `json:"position"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	Bytes    []byte          `json:"bytes,omitempty"`
}

// Kind implements weir.Args.
func (r relayed) Kind() string { return r.kind }

func (d *Database) enqueue(ctx context.Context, tx pgx.Tx, records []Record) error {
	jobs := make([]weir.NewJob, len(records))
	for i := range records {
		r := &records[i]
		args := relayed{kind: d.Kind, Channel: r.Channel, Position: r.Position}
		switch {
		case r.Binary:
			args.Bytes = r.Payload
		case json.Valid(r.Payload):
			args.Payload = r.Payload
		default:
			text, err := json.Marshal(string(r.Payload))
			if err != nil {
				return err
			}
			args.Payload = text
		}
		jobs[i] = weir.NewJob{Args: args, Options: &weir.Options{Queue: r.Subject}}
		if r.Key != r.Channel {
			jobs[i].Options.Key = r.Key
		}
	}
	_, err := weir.NewClient(d.Pool).EnqueueManyTx(ctx, tx, jobs)
	return err
}

// timePerRecord is what each record adds to how long a transaction may take.
const timePerRecord = 2 * time.Millisecond

// keptApart is for how long a job that comes again is known to be there.
const keptApart = 24 * time.Hour

// enqueueJobs enqueues jobs that were jobs elsewhere, each once.
func (d *Database) enqueueJobs(ctx context.Context, records []Record) error {
	jobs := make([]weir.NewJob, len(records))
	for i := range records {
		r := &records[i]
		o := &weir.Options{Queue: r.Subject, Key: r.Key, Priority: r.Job.Priority, MaxAttempts: r.Job.MaxAttempts, Unique: &weir.Unique{Key: d.Name + "/" + r.ID, Within: keptApart}}
		if r.Job.Meta != nil {
			o.Meta = r.Job.Meta
		}
		jobs[i] = weir.NewJob{Args: raw{r.Job.Kind, r.Payload}, Options: o}
	}
	client := weir.NewClient(d.Pool)
	_, err := client.EnqueueMany(ctx, jobs)
	if !store.IsBadData(err) || len(jobs) == 1 {
		if store.IsBadData(err) {
			return &Refused{Index: 0, Err: err}
		}
		return err
	}
	for i := range jobs { // those before it are not doubled when they are sent again
		if _, err := client.EnqueueMany(ctx, jobs[i:i+1]); store.IsBadData(err) {
			return &Refused{Index: i, Err: err}
		} else if err != nil {
			return err
		}
	}
	return nil
}
