package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Reasons for which a call ends.
var (
	errEnded   = errors.New("the worker was ended")
	errRenewed = errors.New("another call for the same worker has begun")
)

// Opening is what a remote worker says of itself.
type Opening struct {
	Worker string         // its id; "": it is new
	Name   string         // for people
	Queues map[string]int // how many jobs it wants of each
	Kinds  []string       // that it has handlers for; nil: all
	Held   []string       // tokens of the attempts that it has
	Number int64          // grows with each call of the worker; 0: it does not number them
}

// Call is a connection of a session: one call of take, or a standing one, a WebSocket. A session has one at a time.
type Call struct {
	Standing bool // credit returns when an attempt has ended
	Session  *Session
	Lost     []Interrupted // of what it said it holds
	begun    time.Time
	told     time.Time // when it was first told jobs
	over     chan struct{}
	why      error
	away     map[key]string // attempts of other hubs that it said it holds, and that may not have ended, with their queues ("": not known yet), whose slots they take; Dispatcher.mu guards it

	anonymous bool // the client did not name its worker
	numbered  bool // so no earlier call can be taken for it, which names fewer attempts than the worker has
}

// Open connects a session, which it creates if it is not known.
func (d *Dispatcher) Open(ctx context.Context, o Opening, standing bool) (*Call, error) {
	names, err := o.check()
	if err != nil {
		return nil, err
	}
	var seen looks
	if standing { // their queues must be known, because they take its slots
		seen = d.look(ctx, d.elsewhere(o.Held))
	}
	c, elsewhere, err := d.open(&o, names, standing, seen)
	if err != nil {
		return nil, err
	}
	if again := c.again(); len(again) > 0 {
		c.checked(again, d.look(ctx, again))
	}
	due := d.remind(elsewhere)
	if standing {
		c.Lost = append(c.Lost, d.interruptions(elsewhere, seen)...)
		return c, nil
	}
	c.Lost = append(c.Lost, d.cancelledAmong(ctx, elsewhere)...)
	due = d.sample(due)
	c.Lost = append(c.Lost, d.lostAmong(due, d.look(ctx, due))...)
	return c, nil
}

// sample returns those of the attempts of other hubs that a call of take looks at.
func (d *Dispatcher) sample(due []key) []key {
	return slices.DeleteFunc(due, func(key) bool { return d.draw(lookAtSome) > 0 })
}

// open is what Open decides, without the database: names are those of the queues, sorted, and seen is what the database says of what other hubs have given to a worker that opens a
// standing call. It returns what other hubs have given it.
func (d *Dispatcher) open(o *Opening, names []string, standing bool, seen looks) (c *Call, elsewhere []key, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	anonymous := o.Worker == ""
	s := d.sessions[o.Worker]
	if s == nil {
		if len(d.sessions) >= maxSessions {
			return nil, nil, &LimitError{fmt.Sprintf("this hub has %d workers, its limit", maxSessions)}
		}
		if o.Worker == "" {
			o.Worker = newID()
		}
		s = &Session{d: d, id: o.Worker, wants: map[string]*want{}, held: map[key]*attempt{}, wake: make(chan struct{}, 1)}
		d.sessions[s.id] = s
		if d.Calls != nil {
			d.begun = append(d.begun, s)
		}
	}
	if o.Number > 0 && o.Number <= s.newest {
		return nil, nil, &BadError{fmt.Sprintf("call %d came after call %d", o.Number, s.newest), "number the calls of a worker in the order in which they are made"}
	}
	s.newest = max(o.Number, s.newest)
	if s.call != nil {
		s.call.end(errRenewed)
	}
	c = &Call{Standing: standing, Session: s, over: make(chan struct{}), anonymous: anonymous && !standing, numbered: o.Number > 0}
	c.begun = d.clock()
	s.call, s.seen = c, c.begun
	if o.Name != "" {
		s.name = o.Name
	}
	if err := d.ask(names); err != nil {
		c.end(err)
		return nil, nil, err
	}
	s.want(names, o.Kinds)
	c.Lost, elsewhere = s.hold(o.Held)
	if standing {
		c.hasAway(elsewhere, seen)
	}
	room := c.room(o, names)
	c.repeat(room)
	more := false
	for _, name := range names {
		s.wants[name].slots = o.Queues[name]
		if s.credit(name, room[name]) {
			more = true
		}
	}
	if standing {
		s.tellOf = s.interrupted() // an earlier connection may not have told it
	}
	if len(s.outbox) > 0 || len(s.tellOf) > 0 {
		s.signal()
	}
	if more {
		d.more()
	}
	return c, elsewhere, nil
}

// room returns how many attempts of each queue the session may be told now, at most: those that it was given, but has not got, and further ones. The caller holds mu.
func (c *Call) room(o *Opening, names []string) map[string]int {
	room := make(map[string]int, len(names))
	if !c.Standing { // it says how many more it wants
		left := max(maxAtOnce-len(o.Held), 0) // with more it could not name all in its next call
		for _, name := range names {
			room[name] = min(o.Queues[name], left)
			left -= room[name]
		}
		return room
	}
	for _, name := range names { // it says how many it may have
		room[name] = o.Queues[name] - c.Session.has(name)
		for _, queue := range c.away {
			if queue == name || queue == "" {
				room[name]--
			}
		}
	}
	for _, a := range c.Session.outbox {
		if _, wants := room[a.queue.name]; wants {
			room[a.queue.name]++
		}
	}
	return room
}

// has returns how many attempts of a queue the session has; the caller holds mu.
func (s *Session) has(queue string) (n int) {
	for _, a := range s.held {
		if a.queue.name == queue {
			n++
		}
	}
	return n
}

// repeat keeps those attempts to be told again for which there is room, and releases the others: the worker would be given too many. The caller holds mu.
func (c *Call) repeat(room map[string]int) {
	s := c.Session
	s.outbox = slices.DeleteFunc(s.outbox, func(a *attempt) bool {
		if room[a.queue.name] > 0 && s.takes(a.task.Kind) {
			room[a.queue.name]--
			return false
		}
		c.release(a)
		return true
	})
}

// again returns the attempts that are to be told again. Their worker may have got them, and recorded them at another hub a moment ago, of which this one has not been told yet.
func (c *Call) again() (keys []key) {
	c.Session.d.mu.Lock()
	defer c.Session.d.mu.Unlock()
	for _, a := range c.Session.outbox {
		if a.answers > 0 {
			keys = append(keys, a.key)
		}
	}
	return keys
}

// checked drops those of them that do not run any more, by what the database says: their worker would run them once more.
func (c *Call) checked(keys []key, l looks) {
	s, d := c.Session, c.Session.d
	d.mu.Lock()
	defer d.mu.Unlock()
	newest := map[int64]int64{} // batches of these jobs: an attempt has ended if there is a later one
	for _, k := range keys {
		newest[k.id] = k.seq
	}
	for k := range d.attempts {
		if seq, is := newest[k.id]; is {
			newest[k.id] = max(seq, k.seq)
		}
	}
	for _, k := range keys {
		a := d.attempts[k]
		if a == nil || a.session != s || l.runs(k) && (l == nil || l[k.id].Attempt == a.task.Attempt) && newest[k.id] == k.seq || !a.finish(endedElsewhere()) {
			continue
		}
		d.freed(a)
	}
	s.outbox = slices.DeleteFunc(s.outbox, func(a *attempt) bool { return a.over })
}

// release ends an attempt that was not told to this call, for others to run, if it is certain that the worker has not got it. After calls without numbers it is not: this one may have been
// overtaken by a later one, whose answer contained it. The caller holds mu.
func (c *Call) release(a *attempt) {
	if (c.numbered || a.answers == 0) && a.session == c.Session && a.finish(worker.Result{Outcome: store.Released}) {
		delete(c.Session.held, a.key) // without freed, which would give it another
		return
	}
	a.unnamed = true
}

// end ends the call, whose credit it takes back; the caller holds mu.
func (c *Call) end(why error) {
	s := c.Session
	if s.call != c {
		return
	}
	s.call, c.why = nil, why
	if c.Standing {
		for _, a := range s.held { // from now on, they have the whole lease
			if !a.unnamed && s.seen.After(a.since) { // another hub may have heard of one since
				a.since = s.seen
			}
		}
	}
	for name := range s.wants {
		s.credit(name, 0)
	}
	close(c.over)
}

// Slots changes how many jobs of queues a standing call may have at once.
func (c *Call) Slots(queues map[string]int) error {
	o := Opening{Queues: queues}
	names, err := o.check()
	if err != nil {
		return err
	}
	d, s := c.Session.d, c.Session
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.call != c {
		return c.why
	}
	sum := 0
	for name, w := range s.wants {
		if n, changes := queues[name]; changes {
			sum += n
		} else {
			sum += w.slots
		}
	}
	if sum > maxAtOnce {
		return tooMany(sum)
	}
	for _, name := range names {
		if s.wants[name] == nil {
			return &BadError{fmt.Sprintf("the session was not opened for queue %q", name), "open another session"}
		}
	}
	more := false
	for _, name := range names {
		w := s.wants[name]
		if d.give(s, d.queueOf(name), queues[name]-w.slots) {
			more = true
		}
		w.slots = queues[name]
	}
	if more {
		d.more()
	}
	return nil
}

// News is what a session is told.
type News struct {
	Jobs        []Job
	Interrupted []Interrupted
	Quiet       bool     // the hub is stopping: there will be no more jobs
	Trouble     error    // why the hub can't work jobs now; nil: it can, or has said so of late
	Warnings    []string // to a standing call: others get them with their answer
}

// tellTroubleEvery is how often a session is told that the hub can't work jobs, which tries again more often than that.
const tellTroubleEvery = time.Minute

const (
	tellings     = 10      // of an attempt, from each of which its lease counts anew: a worker that gets no answers must not keep it for ever
	maxTold      = 1000    // jobs told at once
	maxToldBytes = 4 << 20 // of them as JSON, unless it is one
	// How long the first job waits for others that come with the same claim: an answer of take ends a call, while a session may be told more at any time.
	gatherTake     = time.Millisecond
	gatherStanding = 100 * time.Microsecond
)

// Wait waits for news, for as long as the context lasts. It returns without any if the context has ended, and an error if the call has.
func (c *Call) Wait(ctx context.Context) (News, error) {
	s := c.Session
	for {
		news, gathers := c.take()
		if gathers {
			pause := gatherTake
			if c.Standing {
				pause = gatherStanding
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			more, _ := c.take()
			news.add(more)
		}
		if len(news.Jobs) > 0 || len(news.Interrupted) > 0 || news.Quiet || news.Trouble != nil || len(news.Warnings) > 0 {
			return news, nil
		}
		select {
		case <-s.wake:
		case <-c.over:
			return News{}, c.why
		case <-ctx.Done():
			return News{}, nil
		}
	}
}

// add adds what there is to tell since. A job that was lost meanwhile is not told: its slot may be another's already.
func (n *News) add(more News) {
	for _, i := range more.Interrupted {
		if i.Reason == Lost {
			n.Jobs = slices.DeleteFunc(n.Jobs, func(j Job) bool { return j.Token == i.Token })
		}
	}
	n.Jobs, n.Interrupted, n.Quiet = append(n.Jobs, more.Jobs...), append(n.Interrupted, more.Interrupted...), n.Quiet || more.Quiet
	n.Warnings = append(n.Warnings, more.Warnings...)
	if more.Trouble != nil {
		n.Trouble = more.Trouble
	}
}

// interrupted returns which attempts are to be interrupted before the jobs are told, and after: a worker that is told so before it gets a job begins it all the same.
func (n *News) interrupted() (before, after []Interrupted) {
	for _, i := range n.Interrupted {
		if slices.ContainsFunc(n.Jobs, func(j Job) bool { return j.Token == i.Token }) {
			after = append(after, i)
		} else {
			before = append(before, i)
		}
	}
	return before, after
}

// take returns what there is to tell now; gathers: there is a first job, and room for more.
func (c *Call) take() (n News, gathers bool) {
	c.Session.d.mu.Lock()
	defer c.Session.d.mu.Unlock()
	return c.news()
}

// news is take for callers that hold mu.
func (c *Call) news() (n News, gathers bool) {
	s, d := c.Session, c.Session.d
	if s.call != c {
		return n, false
	}
	bytes, told, now := 0, 0, d.clock()
	var untold []*attempt // whose jobs were cancelled first
	for _, a := range s.outbox {
		if bytes += a.size(); told == maxTold || told > 0 && bytes > maxToldBytes {
			break
		}
		told++
		switch {
		case a.session != s || a.over:
		case a.reason != "":
			untold = append(untold, a)
		default:
			a.answers++
			a.since = now // it may have been given, and told, long ago: the worker learns of it now, and counts its lease from when the first of an answer was told
			n.Jobs = append(n.Jobs, a.job())
		}
	}
	for _, a := range untold {
		if a.finish(worker.Result{Outcome: store.Cancelled}) { // or it would keep its slot: the worker does not know it
			d.freed(a)
		}
	}
	if s.outbox = s.outbox[told:]; len(s.outbox) > 0 {
		s.signal()
	}
	n.Interrupted, s.tellOf = s.tellOf, nil // if it has recorded some since, it ignores them
	if c.Standing {
		n.Warnings = s.warningsNow()
	}
	n.Quiet = d.quiet && !s.toldQuiet
	s.toldQuiet = d.quiet
	if len(n.Jobs) > 0 && c.told.IsZero() {
		c.told = now
	}
	if s.trouble != nil && (!c.Standing || now.Sub(s.troubled) > tellTroubleEvery) {
		n.Trouble, s.troubled = s.trouble, now
	}
	s.trouble = nil
	if len(n.Jobs) > 0 && len(s.outbox) == 0 {
		for _, w := range s.wants {
			gathers = gathers || w.credit > 0
		}
	}
	return n, gathers
}

// Close ends the call. It returns what is still to be told, unless the client has gone: then these jobs are released.
func (c *Call) Close(gone bool) (rest News) {
	s, d := c.Session, c.Session.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.call != c {
		return rest
	}
	s.seen = d.clock()
	if gone {
		for _, a := range s.outbox {
			c.release(a)
		}
		s.outbox = nil
	} else {
		rest, _ = c.news()
	}
	c.end(errEnded)
	if c.anonymous && len(s.held) == 0 {
		s.leave() // if it asks again, it is made again
	}
	return rest
}

// Unsent takes back jobs that Wait has returned: the client has gone before it could get them.
func (c *Call) Unsent(jobs []Job) {
	d := c.Session.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.Session.call != c {
		return // they are told to another call
	}
	for _, j := range jobs {
		k, err := d.tokens.parse(j.Token)
		if a := d.attempts[k]; err == nil && a != nil && a.session == c.Session && !a.over {
			a.answers--
			c.Session.outbox = append(c.Session.outbox, a)
		}
	}
}

// Interrupted returns all that the session holds and is to interrupt.
func (c *Call) Interrupted() []Interrupted {
	c.Session.d.mu.Lock()
	defer c.Session.d.mu.Unlock()
	return append(c.Session.interrupted(), c.Lost...)
}

// Heard says that a standing call is alive.
func (c *Call) Heard() {
	c.Session.d.mu.Lock()
	c.Session.seen = c.Session.d.clock()
	c.Session.d.mu.Unlock()
}

// ID returns the worker's id.
func (c *Call) ID() string { return c.Session.id }
