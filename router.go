package weir

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Slots is the number of slots among which a Router spreads keys.
const Slots = 16384

// SlotOf returns the slot of a key, 0 to Slots-1: the first 14 bits of its SHA-256.
func SlotOf(key string) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint16(sum[:]) >> 2)
}

// ErrMoving means that the slot of a key is moving to another database, and did not arrive there in time: try again later. If nobody is moving it any more, because
// whoever did was killed, call Router.Move again, with the same slots and the same database.
var ErrMoving = errors.New("the key's slot is moving to another database: try again; if whoever moves it was killed, move the same slots to the same database again")

const (
	movesWithin = 30 * time.Second // a slot may take to arrive, before an enqueue gives up
	moveFirst   = 5 * time.Millisecond
	moveMost    = 250 * time.Millisecond
)

// Router enqueues each job in the database that owns its key. Keys are spread over 16384 slots ([SlotOf]), and each slot belongs to one database. Which slots it owns, each
// database says itself, and is asked in the transaction that enqueues: routers that remember something else enqueue nothing in the wrong place, but look again.
//
// Databases are known by what they are, not by a name. A database that is added owns nothing before slots are moved to it: see [Router.Move].
//
// It is safe for concurrent use. Create it with NewRouter.
type Router struct {
	databases []routed

	mu      sync.Mutex
	answers []answer      // of each database
	changed chan struct{} // closed, and replaced, when one of them has answered
	known   slotTable
	isOld   bool // one has answered since known was made
}

// routed is a database of a router.
type routed struct {
	id     string
	client *Client
}

// NewRouter returns a router for some databases, which it asks which slots they own. It needs none of them to answer as to slots, but each to say which database it is; two
// clients of one database are refused.
func NewRouter(ctx context.Context, databases ...*Client) (*Router, error) {
	if len(databases) == 0 {
		return nil, errors.New("weir: a router needs a database")
	}
	if len(databases) > 10_000 {
		return nil, fmt.Errorf("weir: a router has at most 10000 databases, got %d", len(databases))
	}
	r := &Router{changed: make(chan struct{}), answers: make([]answer, len(databases))}
	for n, client := range databases {
		if client == nil {
			return nil, fmt.Errorf("weir: database %d of %d of a router is nil", n+1, len(databases))
		}
		id, err := client.store.DatabaseID(ctx)
		if err != nil {
			return nil, fmt.Errorf("weir: ask database %d of %d what it is: %w", n+1, len(databases), explain(err, "weir_enqueue"))
		}
		if slices.ContainsFunc(r.databases, func(d routed) bool { return d.id == id }) {
			return nil, fmt.Errorf("weir: database %d of %d is one that was passed before, or a copy of its cluster: both are %s", n+1, len(databases), id)
		}
		r.databases = append(r.databases, routed{id, client})
	}
	if r.look(ctx, everySlot); ctx.Err() != nil {
		return nil, fmt.Errorf("weir: ask the databases which slots they own: %w", context.Cause(ctx))
	}
	return r, nil
}

// Routed is the result of enqueueing a job by a router.
type Routed struct {
	Enqueued
	Client *Client // of the database in which the job is
}

// Enqueue enqueues a job in the database that owns its key, which Options.Key or the kind's options say, in a transaction of its own. While the key's slot moves, it waits,
// up to 30 seconds; then the error is ErrMoving. Otherwise it is as [Client.Enqueue]. A flow is in one database: enqueue its members with the client of that one.
func (r *Router) Enqueue(ctx context.Context, args Args, o *Options) (job Routed, err error) {
	key, err := routedKey(NewJob{Args: args, Options: o})
	if err != nil {
		return job, fmt.Errorf("weir: enqueue: %w", err)
	}
	err = r.at(ctx, key, func(client *Client) error {
		return client.store.InSlots(ctx, []int{SlotOf(key)}, func(q store.Querier) error {
			job.Client = client
			job.Enqueued, err = client.EnqueueTx(ctx, q, args, o)
			return err
		})
	})
	if err != nil {
		return Routed{}, err
	}
	return job, nil
}

// EnqueueMany enqueues jobs in the databases that own their keys: those of each database in one transaction, all of them or none, and one database after the other. There is
// no transaction of all; and if slots have moved since the router looked, a database may get some of its jobs in another one. After an error, those that are enqueued have a Client in what it returns, and the others, which are to be enqueued again, have none. Otherwise it is as Enqueue of each.
func (r *Router) EnqueueMany(ctx context.Context, jobs []NewJob) ([]Routed, error) {
	done, left := make([]Routed, len(jobs)), make([]int, len(jobs))
	keys := make([]string, len(jobs))
	for i, j := range jobs {
		var err error
		if keys[i], err = routedKey(j); err != nil {
			return done, fmt.Errorf("weir: enqueue job %d of %d: %w", i+1, len(jobs), err)
		}
		left[i] = i
	}
	for len(left) > 0 {
		err := r.at(ctx, keys[left[0]], func(client *Client) error {
			var these, others, slots []int
			var some []NewJob
			for n, i := range left {
				if owner, err := r.owner(SlotOf(keys[i])); n > 0 && (err != nil || owner.client != client) {
					others = append(others, i)
					continue
				}
				these, slots, some = append(these, i), append(slots, SlotOf(keys[i])), append(some, jobs[i])
			}
			var enqueued []Enqueued
			if err := client.store.InSlots(ctx, slots, func(q store.Querier) (err error) {
				enqueued, err = client.EnqueueManyTx(ctx, q, some)
				return err
			}); err != nil {
				return err
			}
			for n, i := range these {
				done[i] = Routed{enqueued[n], client}
			}
			left = others
			return nil
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// routedKey returns the key by which a router enqueues a job.
func routedKey(j NewJob) (string, error) {
	if j.Args == nil {
		return "", errNoArgs
	}
	switch options := j.options(); {
	case options.Key == "":
		return "", errors.New("a router enqueues jobs that have a key: set Options.Key")
	case options.Flow != 0:
		return "", fmt.Errorf("flow %d is in one database: enqueue its members with the client of that database", options.Flow)
	default:
		return options.Key, nil
	}
}

// at calls f with the database that owns a key, and again with another one, if it is refused because that does not own it any more.
func (r *Router) at(ctx context.Context, key string, f func(*Client) error) error {
	slot := SlotOf(key)
	late := time.Now().Add(movesWithin)
	for wait, asked := moveFirst, 0; ; wait = min(2*wait, moveMost) {
		owner, err := r.owner(slot)
		switch {
		case err == nil:
			if err = f(owner.client); !store.IsNotOwner(err) {
				return err
			}
			err = ErrMoving
		case errors.Is(err, ErrMoving), errors.As(err, new(*leftError)): // it arrives, or whoever moves it was killed, and another goes on
		case asked > 0:
			return err
		}
		if time.Now().After(late) {
			if errors.Is(err, ErrMoving) {
				err = fmt.Errorf("weir: slot %d of key %q: %w", slot, key, err)
			}
			return err
		}
		if asked > 0 && !sleep.For(ctx, wait/2+rand.N(wait)) {
			return context.Cause(ctx)
		}
		r.look(ctx, slot)
		asked++
	}
}

// Client returns the client of the database that owns a key. That may change at any time: enqueue in a transaction of your own with it after [Router.HoldTx].
func (r *Router) Client(ctx context.Context, key string) (client *Client, err error) {
	err = r.at(ctx, key, func(c *Client) error {
		client = c
		return nil
	})
	return client, err
}

// HoldTx makes sure that the database of your transaction owns a key until you commit: then enqueue jobs of that key with the database's client. The transaction must be
// READ COMMITTED. If the key has moved, the error is ErrMoving: roll back, and begin again in the database that Client returns then.
func (r *Router) HoldTx(ctx context.Context, tx Tx, key string) error {
	if tx == nil {
		return errNoTx
	}
	slot := SlotOf(key)
	err := store.HoldSlot(ctx, tx, slot)
	if store.IsNotOwner(err) {
		// The databases are asked when the transaction is over, by Client: they are asked through pools, of which it keeps a connection.
		r.mu.Lock()
		r.known.owners[slot] = slotMoving
		r.mu.Unlock()
		return fmt.Errorf("weir: slot %d of key %q: %w (%w)", slot, key, ErrMoving, err)
	}
	return wrap("hold a key", err, "weir_enqueue")
}
