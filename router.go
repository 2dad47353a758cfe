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
	askSlots    = 10 * time.Second // a database may take to say which slots it owns
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

	asking sync.Mutex // held by who asks the databases
	mu     sync.Mutex
	known  slotTable
	since  time.Time // when the databases were asked for it
}

// routed is a database of a router.
type routed struct {
	id     string
	client *Client
}

// slotTable says who owns each slot.
type slotTable struct {
	owners [Slots]int16 // the place of the database in Router.databases; or one of those below
	unread []string     // ids of databases that could not be asked, and why
}

const (
	slotUnowned  int16 = -1
	slotMoving   int16 = -2
	slotDisputed int16 = -3
)

// NewRouter returns a router for some databases, which it asks which slots they own. It needs none of them to answer as to slots, but each to say which database it is; two
// clients of one database are refused.
func NewRouter(ctx context.Context, databases ...*Client) (*Router, error) {
	if len(databases) == 0 {
		return nil, errors.New("weir: a router needs a database")
	}
	if len(databases) > 10_000 {
		return nil, fmt.Errorf("weir: a router has at most 10000 databases, got %d", len(databases))
	}
	r := &Router{}
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
	if r.look(ctx); ctx.Err() != nil {
		return nil, fmt.Errorf("weir: ask the databases which slots they own: %w", context.Cause(ctx))
	}
	return r, nil
}

// said returns what each database says about slots, or why it does not.
func (r *Router) said(ctx context.Context) (said [][]store.SlotRange, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, askSlots)
	defer cancel()
	said, errs = make([][]store.SlotRange, len(r.databases)), make([]error, len(r.databases))
	var all sync.WaitGroup
	for n, d := range r.databases {
		all.Go(func() { said[n], errs[n] = d.client.store.Slots(ctx) })
	}
	all.Wait()
	return said, errs
}

// judge finds out who owns each slot: of those that say so, or that it moves from there, the one with the greatest epoch. That is the newest, also after one was set back.
func (r *Router) judge(said [][]store.SlotRange, errs []error) (t slotTable) {
	var epochs [Slots]int64
	for slot := range t.owners {
		t.owners[slot] = slotUnowned
	}
	for n, ranges := range said {
		if errs[n] != nil {
			t.unread = append(t.unread, fmt.Sprintf("%s (%v)", r.databases[n].id, explain(errs[n], "weir_enqueue")))
			continue
		}
		for slot, s := range newest(ranges) {
			if s == nil || s.State == store.SlotsLeft || s.Epoch < epochs[slot] {
				continue
			}
			owned := s.State == store.SlotsOwned
			switch at := &t.owners[slot]; {
			case s.Epoch > epochs[slot], owned && *at == slotMoving:
				if *at = slotMoving; owned {
					*at = int16(n)
				}
			case owned: // another one says the same
				*at = slotDisputed
			}
			epochs[slot] = s.Epoch
		}
	}
	return t
}

// newest returns what a database says about each slot; nil: nothing.
func newest(ranges []store.SlotRange) (slots [Slots]*store.SlotRange) {
	for i, s := range ranges {
		for slot := max(s.Low, 0); slot <= min(s.High, Slots-1); slot++ {
			slots[slot] = &ranges[i]
		}
	}
	return slots
}

// look asks the databases which slots they own, or waits for somebody else who has begun to ask them since.
func (r *Router) look(ctx context.Context) {
	began := time.Now()
	r.asking.Lock()
	defer r.asking.Unlock()
	r.mu.Lock()
	since := r.since
	r.mu.Unlock()
	if since.After(began) {
		return
	}
	at := time.Now()
	said, errs := r.said(ctx)
	if ctx.Err() != nil {
		return
	}
	known := r.judge(said, errs)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.since = known, at
}

// owner returns who owned a slot when the databases were asked last.
func (r *Router) owner(slot int) (routed, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch at := r.known.owners[slot]; at {
	case slotMoving:
		return routed{}, ErrMoving
	case slotDisputed:
		return routed{}, fmt.Errorf("weir: several databases say that they own slot %d, with the same epoch, as copies of one do: leave out the copy", slot)
	case slotUnowned:
		if len(r.known.unread) > 0 {
			return routed{}, fmt.Errorf("weir: no database says that it owns slot %d, and some could not be asked: %v", slot, r.known.unread)
		}
		return routed{}, fmt.Errorf("weir: no database of this router owns slot %d: pass all databases to NewRouter, or, if they are new, call Router.Assign", slot)
	default:
		return r.databases[at], nil
	}
}

// Routed is the result of enqueueing a job by a router.
type Routed struct {
	Enqueued
	Client *Client // of the database in which the job is
}

// Enqueue enqueues a job in the database that owns its key, which Options.Key or the kind's options say, in a transaction of its own. While the key's slot moves, it waits,
// up to 30 seconds; then the error is ErrMoving. Otherwise it is as [Client.Enqueue]. A flow is in one database: enqueue its members with the client of that one.
func (r *Router) Enqueue(ctx context.Context, args Args, o *Options) (job Routed, err error) {
	if args == nil {
		return job, fmt.Errorf("weir: enqueue: %w", errNoArgs)
	}
	switch options := (NewJob{Args: args, Options: o}).options(); {
	case options.Key == "":
		return job, errors.New("weir: a router enqueues jobs that have a key: set Options.Key")
	case options.Flow != 0:
		return job, fmt.Errorf("weir: flow %d is in one database: enqueue its members with the client of that database", options.Flow)
	default:
		err = r.at(ctx, options.Key, func(client *Client) error {
			return client.store.InSlot(ctx, SlotOf(options.Key), func(q store.Querier) error {
				job.Client = client
				job.Enqueued, err = client.EnqueueTx(ctx, q, args, o)
				return err
			})
		})
	}
	if err != nil {
		return Routed{}, err
	}
	return job, nil
}

// at calls f with the database that owns a key, and again with another one, if it is refused because that does not own it any more.
func (r *Router) at(ctx context.Context, key string, f func(*Client) error) error {
	slot := SlotOf(key)
	late := time.Now().Add(movesWithin)
	for wait, asked := moveFirst, false; ; wait = min(2*wait, moveMost) {
		owner, err := r.owner(slot)
		if err == nil {
			if err = f(owner.client); !store.IsNotOwner(err) {
				return err
			}
			err = ErrMoving
		} else if !errors.Is(err, ErrMoving) && asked {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("weir: slot %d of key %q: %w", slot, key, err)
		}
		if asked && !sleep.For(ctx, wait/2+rand.N(wait)) {
			return context.Cause(ctx)
		}
		r.look(ctx)
		asked = true
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
