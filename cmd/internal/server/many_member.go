package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/turn"
)

const (
	startWithin = 10 * time.Second // for a hub to start
	startAtOnce = 8                // hubs that start at a time
	startsFor   = time.Second      // a hub counts among these
	startAgain  = time.Second      // after it could not
	unproven    = time.Minute      // after which a hub rests if nobody has logged in
)

// member is a database of the list, with its hub while that runs.
type member struct {
	connstring.Names
	many  *Many
	url   string
	err   error                    // why it has no names, and can't be served
	names atomic.Pointer[[]string] // by which it can be reached now, the full one first

	missing bool // from the list as last read; Many.set uses it

	mu       sync.Mutex
	server   *Server       // nil: its hub does not run
	id       string        // of its database and the running server, as the hub found them; "": no hub runs, or it could not
	changing chan struct{} // closed when the hub has started or ended; nil: it does neither
	requests int           // of HTTP, in progress
	ever     int64         // clients that were let in, as last seen
	proven   bool          // a client of this hub has shown that it may be one
	used     time.Time     // when there was last such a client
	failed   error         // why the hub could not start
	failedAt time.Time
	gone     bool // it is listed no more

	said time.Time // when it was last logged that the hub can't start; only start uses it, of which there is one at a time
}

var errUnlisted = errors.New("the database is served no more")

func newMember(m *Many, url string) *member {
	one := &member{many: m, url: url}
	one.Names, one.err = connstring.Named(url)
	return one
}

// hub returns the database's hub, which it starts if it does not run.
func (d *member) hub(ctx context.Context) (*Server, error) {
	for {
		d.mu.Lock()
		switch {
		case d.err != nil:
			d.mu.Unlock()
			return nil, d.err
		case d.gone:
			d.mu.Unlock()
			return nil, errUnlisted
		case d.server != nil && d.changing == nil:
			s := d.server
			d.mu.Unlock()
			return s, nil
		case d.changing == nil && d.failed != nil && time.Since(d.failedAt) < startAgain:
			err := d.failed
			d.mu.Unlock()
			return nil, err
		case d.changing == nil:
			d.changing = make(chan struct{})
			d.many.hubs.Go(d.start)
		}
		wait := d.changing
		d.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// start starts the hub. The caller has set changing.
func (d *member) start() {
	places := d.many.starts
	if d.failed != nil { // only start changes it
		places = d.many.tries
	}
	leave, ok := turn.Take(d.many.life, places, startsFor) // the clients of all may come at the same time, and hubs that start together all take long
	if ok {
		defer leave()
	}
	ctx, cancel := context.WithTimeout(d.many.life, startWithin)
	defer cancel()
	c := d.many.config.Config
	c.TLSCert, c.TLSKey, c.RequireTLS = "", "", false // the listeners have them, and keep what they have read while the files are replaced
	c.Database, c.Logger, c.UI, c.many = d.url, d.many.log.With("database", d.Full), nil, d
	s, err := Start(ctx, c)
	if err == nil {
		d.said = time.Time{}
		d.identify(ctx, s)
	} else if d.many.life.Err() == nil && time.Since(d.said) >= sayEvery { // clients may ask all the time
		d.said = time.Now()
		d.many.log.Error("weir: a hub can't start", "database", d.Full, "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server, d.failed, d.failedAt = s, err, time.Now()
	d.proven, d.ever, d.used = false, 0, time.Now()
	close(d.changing)
	d.changing = nil
}

// rest ends the hub if it had no clients for this long.
func (d *member) rest(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil || d.changing != nil {
		return
	}
	clients, ever := d.server.use()
	if clients > 0 || ever > d.ever {
		d.proven, d.ever, d.used = d.proven || ever > 0, ever, time.Now()
	}
	if !d.proven {
		after = min(after, unproven)
	}
	if d.requests > 0 { // it may be about to be authorized; but somebody who always sends another one keeps no hub from its rest
		after *= 2
	}
	if time.Since(d.used) >= after {
		d.changing = make(chan struct{})
		d.many.hubs.Go(d.end)
	}
}

// end ends the hub. The caller has set changing.
func (d *member) end() {
	ctx, cancel := context.WithTimeout(context.Background(), d.many.config.drain()+startWithin)
	defer cancel()
	if err := d.server.Stop(ctx); err != nil {
		d.many.log.Warn("weir: a hub has not ended well", "database", d.Full, "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server, d.id = nil, ""
	close(d.changing)
	d.changing = nil
}

// leave ends the hub for good, and returns when it has ended.
func (d *member) leave() {
	d.mu.Lock()
	d.gone = true
	for d.changing != nil {
		wait := d.changing
		d.mu.Unlock()
		<-wait
		d.mu.Lock()
	}
	if d.server == nil {
		d.mu.Unlock()
		return
	}
	d.changing = make(chan struct{})
	d.mu.Unlock()
	d.end()
}

// running returns the hub, or nil while it does not run.
func (d *member) running() *Server {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changing != nil {
		return nil
	}
	return d.server
}

// enter returns the hub, or nil while it does not run. It counts a request of HTTP; the caller calls leave after it.
func (d *member) enter() (_ *Server, leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil || d.changing != nil {
		return nil, nil
	}
	d.requests++
	return d.server, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.requests--
	}
}

// fails reports whether the hub could not start.
func (d *member) fails() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err != nil || d.failed != nil
}
