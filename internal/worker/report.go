package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Limits of what an attempt reports. Those of the server are a little wider, because encrypted texts are longer.
const (
	reportEvery   = time.Second // between two reports of a worker, which contain what all its attempts have to report
	maxReports    = 1000        // attempts in one call
	maxReportSize = 8 << 20     // of one call
	MaxCheckpoint = 64 << 10    // bytes, as stored
	maxMessage    = 1000
	maxLine       = 4 << 10
	maxLines      = 1000 // of an attempt
	maxLineBytes  = 256 << 10
	maxLinesSent  = 200 // in one report
)

// line is a line of an attempt's log.
type line struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
}

// Report holds what an attempt reports while it runs, until it is stored. It is safe for concurrent use.
type Report struct {
	task    *Task
	reports *reports // nil: there is no database
	seal    func(part sealed.Part, text string) (string, error)

	mu         sync.Mutex
	percent    *float64
	message    string
	checkpoint json.RawMessage // as stored; nil: this attempt has set none
	lines      []line          // not stored yet
	logged     int             // lines, and bytes in them
	bytes      int
	dropped    int
	changed    bool
	sending    bool // a call is storing what was taken
	fresh      bool // the checkpoint is not stored yet
	outside    bool // a transaction of the handler's has set the checkpoint since: the database knows whether it was committed
	ended      bool
	refused    error // why the database has refused it: the attempt is lost
}

// reports writes the reports of a session: those of all attempts in one statement, once a second. Its goroutine is started by session.run.
type reports struct {
	s       *session
	mu      sync.Mutex
	changed map[*Report]struct{}
	more    chan struct{} // signals that there is something to write; never closed
	writing chan struct{} // holds one element while a call is made
}

func newReports(s *session) *reports {
	return &reports{s: s, changed: map[*Report]struct{}{}, more: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

// Report returns the attempt's report, which the first call creates with seal.
func (t *Task) Report(seal func(part sealed.Part, text string) (string, error)) *Report {
	var rs *reports
	if t.batch != nil {
		rs = t.batch.reports
		rs.mu.Lock()
		defer rs.mu.Unlock()
	}
	if t.report == nil {
		t.report = &Report{task: t, reports: rs, seal: seal}
	}
	return t.report
}

// Progress sets how far the attempt is.
func (r *Report) Progress(percent float64, message string) {
	if math.IsNaN(percent) {
		percent = 0
	}
	percent = min(max(percent, 0), 100)
	r.change(func() { r.percent, r.message = &percent, clean(message, maxMessage) })
}

// SetCheckpoint sets what the next attempt reads, in the form in which it is stored.
func (r *Report) SetCheckpoint(stored json.RawMessage) {
	r.change(func() { r.checkpoint, r.fresh, r.outside = stored, true, false })
}

// Checkpoint returns the checkpoint that this attempt has set, and whether only the database knows it. nil: it has set none.
func (r *Report) Checkpoint() (stored json.RawMessage, outside bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checkpoint, r.outside
}

// SetCheckpointTx calls set, which sets the checkpoint in a transaction of the handler's. What the attempt has set before is stored first: stored later, it would
// replace this one.
func (r *Report) SetCheckpointTx(ctx context.Context, set func() error) error {
	if before, _ := r.Checkpoint(); before != nil {
		if err := r.Sync(ctx); err != nil {
			return err
		}
	}
	if err := set(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkpoint, r.outside = nil, true
	return nil
}

// Log adds a line to the attempt's log, or counts it if there are too many.
func (r *Report) Log(at time.Time, level, text string) {
	r.change(func() {
		text = clean(text, maxLine)
		if r.logged >= maxLines || r.bytes+len(text) > maxLineBytes {
			r.dropped++
			return
		}
		r.logged++
		r.bytes += len(text)
		r.lines = append(r.lines, line{at, level, text})
	})
}

func (r *Report) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	f()
	r.changed = true
	if r.reports != nil {
		r.reports.note(r)
	}
}

// note queues a report. The lock order is Report.mu, then reports.mu.
func (rs *reports) note(r *Report) {
	rs.mu.Lock()
	rs.changed[r] = struct{}{}
	rs.mu.Unlock()
	select {
	case rs.more <- struct{}{}:
	default:
	}
}

// run writes until ctx ends.
func (rs *reports) run(ctx context.Context) {
	for {
		select {
		case <-rs.more:
		case <-ctx.Done():
			return
		}
		if err := rs.write(ctx); err != nil && ctx.Err() == nil && !rs.s.endedBy(err) {
			rs.s.Outage.Failed("progress", err)
		}
		if !sleep.For(ctx, reportEvery) {
			return
		}
	}
}

// Sync returns when everything that the attempt has reported before is stored.
func (r *Report) Sync(ctx context.Context) error {
	if r.reports == nil {
		return nil
	}
	if err := r.reports.write(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// ends stores what attempts have reported that have ended, before their ends are recorded.
func (rs *reports) ends(ctx context.Context, some []*Task) {
	var ended []*Report
	rs.mu.Lock()
	for _, t := range some {
		if t.report != nil {
			ended = append(ended, t.report)
		}
	}
	rs.mu.Unlock()
	waits := false
	for _, r := range ended {
		waits = r.end() || waits
	}
	if !waits {
		return
	}
	for wait := rs.s.backoff(); ; {
		err := rs.write(ctx)
		if err == nil || rs.s.endedBy(err) {
			return
		}
		rs.s.Outage.Failed("progress", err)
		if !wait.sleep(ctx) {
			return
		}
	}
}

// end makes the report final, and returns whether something is not stored yet.
func (r *Report) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dropped > 0 && !r.ended {
		r.lines = append(r.lines, line{time.Now(), "WARN", fmt.Sprintf("%d more lines are not kept: of an attempt, %d lines and %d bytes are", r.dropped, maxLines, maxLineBytes)})
		r.changed = true
	}
	r.ended = true
	if r.changed {
		r.reports.note(r)
	}
	return r.changed || r.sending
}

// entry is what weir.progress takes.
type entry struct {
	Token      string          `json:"token"`
	Percent    *float64        `json:"percent,omitempty"`
	Message    string          `json:"message,omitempty"`
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Log        []line          `json:"log,omitempty"`

	of    *Report
	lines []line // as in the report
	fresh bool
	more  bool // lines are left
}

// write stores what all reports have to tell at this moment. Calls follow one another, so that each sees what the one before it has stored.
func (rs *reports) write(ctx context.Context) error {
	select {
	case rs.writing <- struct{}{}:
		defer func() { <-rs.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	rs.mu.Lock()
	all := slices.Collect(maps.Keys(rs.changed))
	clear(rs.changed)
	rs.mu.Unlock()
	// An attempt may have more lines than fit into one entry: what is left of them follows. What comes up meanwhile is left to the next call.
	for len(all) > 0 {
		var left []*Report
		for some := range slices.Chunk(all, maxReports) {
			more, err := rs.send(ctx, some)
			if err != nil {
				for _, r := range all {
					rs.note(r)
				}
				return err
			}
			left = append(left, more...)
		}
		all = left
	}
	return nil
}

// send stores some reports, in as few calls as their sizes allow, and returns those of which something is left. What could not be stored is
// kept in the reports.
func (rs *reports) send(ctx context.Context, some []*Report) (left []*Report, err error) {
	var entries []entry
	var texts []json.RawMessage
	size := 0
	call := func() error {
		if len(texts) == 0 {
			return nil
		}
		text, err := json.Marshal(texts)
		if err == nil {
			var refused []store.NotStored
			refused, err = rs.s.Store.Progress(ctx, rs.s.id, string(text))
			rs.tell(entries, refused)
		}
		if store.IsRefused(err) && !store.IsFenced(err) && !store.IsMoved(err) {
			rs.s.Log.Error("weir: the database refused what jobs have reported, and it is dropped", "worker", rs.s.id, "jobs", len(texts), "error", err)
			err = nil
		}
		if err != nil {
			for _, e := range entries {
				e.of.restore(e)
			}
		} else {
			for _, e := range entries {
				e.of.sent()
			}
			rs.s.Outage.Worked("progress")
		}
		entries, texts, size = nil, nil, 0
		return err
	}
	for _, r := range some {
		e, ok := r.take()
		if !ok {
			continue
		}
		if e.more {
			left = append(left, r)
		}
		text, err := json.Marshal(e)
		if err != nil {
			rs.s.Log.Error("weir: what a job has reported can't be encoded, and is dropped", "worker", rs.s.id, "job", r.task.ID, "error", err)
			r.sent()
			continue
		}
		if size+len(text) > maxReportSize {
			if err := call(); err != nil {
				r.restore(e)
				return nil, err
			}
		}
		entries, texts, size = append(entries, e), append(texts, text), size+len(text)
	}
	return left, call()
}

// tell passes to reports that they were refused.
func (rs *reports) tell(entries []entry, refused []store.NotStored) {
	for _, why := range refused {
		if why.Why == string(store.Invalid) {
			rs.s.Log.Error("weir: the database refused what a job has reported", "worker", rs.s.id, "token", why.Token, "error", why.Detail)
		}
		for _, e := range entries {
			if e.Token == why.Token {
				e.of.mu.Lock()
				e.of.refused = fmt.Errorf("%w: %s", ErrFenced, why.Detail)
				e.of.mu.Unlock()
			}
		}
	}
}

// take returns what is to be stored; sent or restore follows.
func (r *Report) take() (e entry, ok bool) {
	r.mu.Lock()
	if !r.changed {
		r.mu.Unlock()
		return e, false
	}
	b := r.task.Batch
	e = entry{Token: fmt.Sprintf("%d.%d.%d", b.Lane, b.Seq, r.task.ID), Percent: r.percent, Message: r.message, of: r}
	e.lines = r.lines[:min(len(r.lines), maxLinesSent)]
	if r.lines = r.lines[len(e.lines):]; len(r.lines) == 0 {
		r.lines = nil
	}
	if r.fresh {
		e.Checkpoint, e.fresh = r.checkpoint, true
	}
	r.fresh, r.changed, r.sending = false, len(r.lines) > 0, true
	e.more = r.changed
	r.mu.Unlock()
	e.Message = r.sealed(sealed.Message, e.Message)
	for _, l := range e.lines {
		l.Text = r.sealed(sealed.Log, l.Text)
		e.Log = append(e.Log, l)
	}
	return e, true
}

// sealed encrypts a text if the attempt's are encrypted.
func (r *Report) sealed(part sealed.Part, text string) string {
	if r.seal == nil || text == "" {
		return text
	}
	stored, err := r.seal(part, text)
	if err != nil {
		return "this text could not be encrypted: " + clean(fmt.Sprint(err), maxMessage/2)
	}
	return stored
}

// restore queues again what could not be stored.
func (r *Report) restore(e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(e.lines[:len(e.lines):len(e.lines)], r.lines...)
	r.fresh = r.fresh || e.fresh
	r.changed, r.sending = true, false
}

// sent notes that what was taken is stored, or given up.
func (r *Report) sent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending = false
}
