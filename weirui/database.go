package weirui

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir"
)

const (
	fresh      = time.Second           // how long what was read is usually shown again
	readFor    = 10 * time.Second      // how long a read may take
	restAfter  = 10                    // times as long as the read took is it shown again, if that is longer
	slowRead   = 50 * time.Millisecond // what takes longer is shown once more while it is read again
	refresh    = 3 * time.Second       // pages refresh themselves a little more often
	readAtOnce = 4                     // reads of a database at a time
	actAtOnce  = 2                     // actions
	actFor     = time.Minute           // how long an action may take
	keptAtMost = 128                   // results of reads
)

// database is a database with what was last read from it.
type database struct {
	Database
	client *weir.Client
	reads  slots
	acts   slots
	tails  tails
	sum    atomic.Pointer[databaseSum] // the last one

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is the result of a read, for all who ask for the same.
type kept struct {
	done  chan struct{} // closed when value, err and at are set
	at    time.Time
	age   time.Duration // how long it is shown again
	took  time.Duration
	value any
	err   error

	before *kept // shown until this is read; guarded by database.mu
}

func newDatabase(d Database, c *weir.Client) *database {
	return &database{Database: d, client: c, reads: make(slots, readAtOnce), acts: make(slots, actAtOnce), kept: map[string]*kept{}}
}

// read returns what fetch returns, at most a second old.
func read[T any](ctx context.Context, d *database, key string, fetch func(context.Context) (T, error)) (T, error) {
	return readAged(ctx, d, key, fresh, fetch)
}

// readAged returns what fetch returns, at most as old as age, or ten times as old as the read took: of those who ask for the same at the same time, one fetches. If that takes long, and
// they have seen an earlier result lately, they are shown that meanwhile: a page that refreshes itself does not wait. The key names what is read, with all that it depends on.
func readAged[T any](ctx context.Context, d *database, key string, age time.Duration, fetch func(context.Context) (T, error)) (T, error) {
	d.mu.Lock()
	k := d.kept[key]
	if k == nil || k.isOld() {
		k = &kept{done: make(chan struct{}), age: age, before: k.meanwhile()}
		d.forget()
		d.kept[key] = k
		time.AfterFunc(readFor+max(age, readFor), func() { d.drop(key, k) }) // when nobody looks any more
		// The others that wait for it may stay when the first has left.
		go func(ctx context.Context) { // ends with its read
			ctx, cancel := context.WithTimeout(ctx, readFor)
			defer cancel()
			defer d.replace(k)
			defer close(k.done)
			defer func() { k.at = time.Now() }()
			if k.err = d.reads.enter(ctx); k.err != nil {
				return
			}
			defer d.reads.leave()
			began := time.Now()
			k.value, k.err = fetch(ctx)
			k.took = time.Since(began)
			k.age = max(age, min(restAfter*k.took, readFor)) // what takes long is not read all the time
		}(context.WithoutCancel(ctx))
	}
	before := k.before
	d.mu.Unlock()
	if before.isRecent() {
		return before.value.(T), nil
	}
	var none T
	select {
	case <-k.done:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	if k.err != nil {
		return none, k.err
	}
	return k.value.(T), nil
}

func (k *kept) isOld() bool {
	select {
	case <-k.done:
		return time.Since(k.at) > k.age
	default:
		return false
	}
}

// meanwhile returns the result itself if it may be shown while it is read again, which will take long. It is an old one.
func (k *kept) meanwhile() *kept {
	if k == nil || k.err != nil || k.took < slowRead || !k.isRecent() {
		return nil
	}
	return k
}

// isRecent reports whether there is a result that is not much older than one that is shown again anyway. It must be done.
func (k *kept) isRecent() bool { return k != nil && time.Since(k.at) < 2*k.age+refresh }

// replace forgets what was shown before a result.
func (d *database) replace(k *kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k.before = nil
}

// drop forgets a result, unless there is a newer one.
func (d *database) drop(key string, k *kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept[key] == k {
		delete(d.kept, key)
	}
}

// forget makes room: it drops what is old and, if that is not enough, everything. Whoever waits for a dropped result still gets it.
func (d *database) forget() {
	if len(d.kept) < keptAtMost {
		return
	}
	for key, k := range d.kept {
		if k.isOld() {
			delete(d.kept, key)
		}
	}
	if len(d.kept) >= keptAtMost {
		clear(d.kept)
	}
}

// changed drops all that was read, after an action: its effect is shown at once.
func (d *database) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.kept)
}

// slots bound how many use the database at a time, which leaves the rest of the pool to the application.
type slots chan struct{}

func (s slots) enter(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for earlier requests to the database: %w", ctx.Err())
	}
}

func (s slots) leave() { <-s }
