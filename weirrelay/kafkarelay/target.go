// Package kafkarelay relays Weir's messages to Kafka, and to what speaks its protocol.
package kafkarelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
)

// Config specifies a target. Options and Name are required.
type Config struct {
	// Options say where Kafka is, and how to connect to it: kgo.SeedBrokers, and kgo.DialTLSConfig or kgo.SASL. The target adds what it needs itself.
	Options []kgo.Opt
	// Name is the relay's. "weir.relay." and the name are the transactional id, and the consumer group that keeps the relay's position: so no two relays into
	// one Kafka may have the same name, not even those of different databases.
	Name string
	// Jobs must be set for a relay of jobs, RunJobs, and for no other: any number of processes send these at the same time.
	Jobs bool
}

const (
	openTimeout   = 30 * time.Second // of the fencing of others, and of reading the position
	sendTimeout   = 25 * time.Second // of writing a batch
	commitTimeout = 10 * time.Second // of its commit
	txnTimeout    = time.Minute      // after which Kafka ends the transaction of a process that has died, if none follows it
	endTimeout    = 3 * time.Second  // of giving a transaction up

	largest     = 64 << 20 // bytes of a batch of records: in fact, the topic says how large it may be
	batch       = 900_000  // bytes of records that are written as one, with their overhead below the 1 MiB that a topic takes by default
	batchAtMost = 200_000  // records of one Send, twice as many as a relay may send
	leastBatch  = 16 << 10
)

// Target implements weirrelay.Target. Each Send is a transaction, in which the position is committed too: so consumers that read what is committed see each message
// once, and in order. Whatever goes wrong, the client is closed, and the next one begins as after a crash: it fences this one, so that the transaction which it
// left is decided, and reads the position.
//
// A relay of jobs has no position, and many processes: it writes outside of transactions, with an idempotent producer.
type Target struct {
	Config
	id     string
	client *kgo.Client         // nil: to be opened
	at     weir.Position       // as Kafka has it; "": none
	passed int64               // how many records were sent up to there
	batch  int                 // bytes that are written as one
	have   map[string]struct{} // jobs that Kafka has, of a Send that has failed
}

// New returns a target, which connects when it is used. Close it at the end.
func New(c Config) (*Target, error) {
	if c.Name == "" {
		return nil, errors.New("kafkarelay: Config.Name is empty: give the relay's")
	}
	t := &Target{Config: c, id: "weir.relay." + c.Name, batch: batch, have: map[string]struct{}{}}
	if err := kgo.ValidateOpts(t.options()...); err != nil {
		return nil, fmt.Errorf("kafkarelay: Config.Options: %w", err)
	}
	return t, nil
}

func (t *Target) options() []kgo.Opt {
	first := []kgo.Opt{kgo.ClientID("weir"), kgo.MetadataMinAge(250 * time.Millisecond), kgo.DisableClientMetrics()}
	last := []kgo.Opt{
		// Requests of our own have the fields of these versions. Later ones name topics by ids.
		kgo.MaxVersions(kversion.V4_0_0()),
		// What is written as one is known: so it is known what a broker refuses.
		kgo.ManualFlushing(), kgo.ProducerBatchMaxBytes(largest), kgo.MaxBufferedRecords(batchAtMost), kgo.RecordDeliveryTimeout(sendTimeout),
	}
	if !t.Jobs {
		first, last = append(first, kgo.TransactionTimeout(txnTimeout)), append(last, kgo.TransactionalID(t.id))
	}
	return slices.Concat(first, t.Options, last)
}

// Close closes the connections to Kafka.
func (t *Target) Close() {
	if t.client != nil {
		t.client.Close()
		t.client = nil
	}
}

// Begin implements weirrelay.Target: Kafka knows what it has.
func (t *Target) Begin(ctx context.Context, recorded weir.Position) (weir.Position, error) {
	t.Close()
	if err := t.open(ctx); err != nil {
		return "", err
	}
	if t.at == "" {
		return recorded, nil
	}
	return t.at, nil
}

// Forgetful implements weirrelay.Forgetful: Kafka forgets the position if the topic is deleted of which it is an offset, or some days after the last record.
func (t *Target) Forgetful() {}

// open opens a client. From then on no other can write or commit anything for this relay, and nothing that another has written is undecided.
func (t *Target) open(ctx context.Context) (err error) {
	if t.client, err = kgo.NewClient(t.options()...); err != nil || t.Jobs {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if _, _, err = t.client.ProducerID(ctx); err != nil {
		err = fmt.Errorf("become the producer %s: %w", t.id, err)
	} else if err = t.readPosition(ctx); err != nil {
		err = fmt.Errorf("read the position of the consumer group %s: %w", t.id, err)
	}
	if err != nil {
		t.Close()
	}
	return err
}

// Send implements weirrelay.Target.
func (t *Target) Send(ctx context.Context, records []weirrelay.Record) error {
	if len(records) > 0 && (records[0].Job != nil) != t.Jobs {
		return errors.New("kafkarelay: Config.Jobs must be set in a relay of jobs, and in no other")
	}
	before := t.at
	if t.client == nil {
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	rest, passed := weirrelay.Behind(records, t.at)
	if passed == 0 && t.at != before {
		return fmt.Errorf("%w: to %q", weirrelay.ErrMoved, t.at)
	}
	err := t.send(ctx, rest)
	if no := (*weirrelay.Refused)(nil); errors.As(err, &no) {
		no.Index += passed
	}
	return err
}

// send sends records, none of which Kafka has, other than jobs.
func (t *Target) send(ctx context.Context, records []weirrelay.Record) error {
	if len(records) == 0 {
		return nil
	}
	for i := range records {
		if err := checkTopic(records[i].Subject); err != nil {
			return &weirrelay.Refused{Index: i, Err: err}
		}
	}
	parts := divide(records, t.batch)
	for cut := false; ; cut = true {
		err := t.try(ctx, records, parts)
		if err == nil {
			if cut { // each of them is small enough, and only together they were not
				t.batch = max(t.batch/2, leastBatch)
			}
			return nil
		}
		no := (*refusal)(nil)
		if !errors.As(err, &no) {
			return t.fail(err)
		}
		if !t.abort(ctx) {
			t.Close()
			return no.error
		}
		if no.to-no.from == 1 {
			return &weirrelay.Refused{Index: no.from, Err: no.error}
		}
		parts = halve(parts, no)
	}
}

// try writes the records, and commits them with their position, or nothing of them.
func (t *Target) try(ctx context.Context, records []weirrelay.Record, parts []int) error {
	sending, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if t.Jobs {
		return t.write(sending, records, parts)
	}
	if err := t.client.BeginTransaction(); err != nil {
		return err
	}
	if err := t.write(sending, records, parts); err != nil {
		return err
	}
	last, passed := &records[len(records)-1], t.passed+int64(len(records))
	if err := t.commitPosition(sending, last, passed); err != nil {
		return fmt.Errorf("commit the position to the consumer group %s: %w", t.id, err)
	}
	// Whoever stops the relay now had better wait for the answer.
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer stop()
	if err := t.client.EndTransaction(ending, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	t.at, t.passed = last.Position, passed
	return nil
}

// abort ends what was begun. It returns false if the client is of no use any more.
func (t *Target) abort(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if t.client.AbortBufferedRecords(ctx) != nil {
		return false
	}
	return t.Jobs || t.client.EndTransaction(ctx, kgo.TryAbort) == nil
}

// fail gives the client up. If the transaction is left undecided, then the next client decides it.
func (t *Target) fail(err error) error {
	t.abort(context.Background())
	t.Close()
	for _, fenced := range []error{kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState} {
		if errors.Is(err, fenced) && !t.Jobs {
			return fmt.Errorf("%w: another process sends, or this one was paused for so long that Kafka has given its transaction up: %w", weirrelay.ErrMoved, err)
		}
	}
	return err
}
