package weirrelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// Config specifies a relay. Name, Pool, Target and Routes are required.
type Config struct {
	// Name is that under which the database records how far the relay has come, 1 to 100 characters. Of the processes that run a relay of this name, one
	// passes messages on, and the others stand by.
	Name string
	// Pool connects to the database, directly or through a pooler in session mode, as a user with the roles weir_hub and, for dead letters, weir_enqueue.
	// The relay holds one of its connections, and uses up to two more.
	Pool   *pgxpool.Pool
	Target Target
	Routes []Route

	// Since is from when on messages are relayed the first time, when nothing is recorded of a relay of this name. Zero: from now on. Earlier messages
	// are relayed as far as they are still kept (setting message_retention). After, if it is set, is the position behind which messages are relayed the
	// first time, instead.
	Since time.Time
	After weir.Position

	// Until, if it is set, is a position at which the relay ends: Run returns nil once everything up to it has been passed on. Then it is not listed any more, and
	// nothing is kept for it; one of the same name, with a later Until, goes on from there.
	Until weir.Position

	// MaxRecords and MaxBytes bound what is sent at once; defaults 1,000 records and 4 MiB of payloads. A single larger message is sent alone.
	MaxRecords int
	MaxBytes   int

	// DeadLetters is the queue into which messages are enqueued that the target refuses for good, as jobs of the kind DeadLetter has. Default: the
	// relay's name, and "-dead-letters".
	DeadLetters string

	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called with what the relay has done, by one goroutine at a time.
	Observe func(Progress)
}

// Progress is what a relay has done since the last call of Observe.
type Progress struct {
	Sent, Dead int           // messages
	Lag        time.Duration // from when the newest of them was read until the target had it
	Gap        *weir.Gap     // messages may be missing; the relay goes on behind them
	Active     bool          // this process passes messages on; otherwise it stands by
	Waiting    time.Time     // of Run: since when the oldest message waits that may still have to be passed on; zero: none does
}

// DeadLetter has the arguments of the job that keeps a message which the target has refused.
type DeadLetter struct {
	Relay    string        `json:"relay"`
	Position weir.Position `json:"position"`
	Channel  string        `json:"channel"`
	Subject  string        `json:"subject"`
	Payload  string        `json:"payload,omitempty"`
	Bytes    []byte        `json:"bytes,omitempty"` // the payload of a message that was published as bytes
	Error    string        `json:"error"`
}

// Kind implements weir.Args.
func (DeadLetter) Kind() string { return "relay.dead_letter" }

const (
	defaultRecords = 1000
	defaultBytes   = 4 << 20
	maxRecords     = 100_000
	maxBytes       = 256 << 20

	standbyEvery = 2 * time.Second  // between tries to become the one that passes messages on
	aliveEvery   = 5 * time.Second  // between checks that this process still is
	callTimeout  = 10 * time.Second // of a call of the database
	joinTimeout  = time.Minute      // of beginning to read the log, for which ticks may have to be cut
	recordEvery  = 10 * time.Second // between records of how far the relay has come, while that changes,
	recordIdle   = time.Hour        // and while it does not: whoever is silent for relay_retention counts as gone
	recordMost   = 50_000           // messages from one record to the next
	retryFirst   = 100 * time.Millisecond
	retryLast    = 15 * time.Second
)

// Run passes messages on until ctx ends. It waits out outages of the database and of the target. It returns an error that waiting can't fix: a
// configuration that is wrong, or the database from which is relayed, if it refuses that.
func Run(ctx context.Context, c Config) error {
	r, err := newRelay(c)
	if err != nil {
		return fmt.Errorf("weirrelay: %w", err)
	}
	return r.holder.run(ctx, r.stint)
}

// relay is owned by the goroutine of Run.
type relay struct {
	Config
	holder
	client *weir.Client
	store  *store.Store
	router *router
	had    weir.Position // of the message that the target got last, as far as this process knows
	passed passed
	astray weir.Position // where it has begun, if that is not of this log: its number says nothing, and the subscription says first where it goes on
	anew   bool          // it begins anew because the log was set back
}

// Check returns what is wrong with a configuration, apart from Pool and Target.
func Check(c Config) error {
	_, err := check(c, false)
	return err
}

func check(c Config, jobs bool) (*router, error) {
	switch {
	case !isName(c.Name):
		return nil, fmt.Errorf("Config.Name must have 1 to 100 characters, got %q", c.Name)
	case c.MaxRecords < 0 || c.MaxRecords > maxRecords:
		return nil, fmt.Errorf("Config.MaxRecords must be 1 to %d, or 0 for %d, got %d", maxRecords, defaultRecords, c.MaxRecords)
	case c.MaxBytes < 0 || c.MaxBytes > maxBytes:
		return nil, fmt.Errorf("Config.MaxBytes must be 1 to %d, or 0 for %d, got %d", maxBytes, defaultBytes, c.MaxBytes)
	}
	router, err := newRouter(c.Routes, jobs)
	if err != nil {
		return nil, fmt.Errorf("Config.Routes: %w", err)
	}
	for name, at := range map[string]weir.Position{"Config.After": c.After, "Config.Until": c.Until} {
		if _, err := hub.ParsePosition(string(at)); at != "" && err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return router, nil
}

// complete checks the configuration, and fills in what is not set.
func (c *Config) complete(jobs bool) (*router, error) {
	router, err := check(*c, jobs)
	switch {
	case err != nil:
		return nil, err
	case c.Pool == nil:
		return nil, errors.New("Config.Pool is nil: set the pool of the database from which is relayed")
	case c.Target == nil:
		return nil, errors.New("Config.Target is nil: set what is relayed to")
	}
	c.MaxRecords, c.MaxBytes = cmp.Or(c.MaxRecords, defaultRecords), cmp.Or(c.MaxBytes, defaultBytes)
	c.DeadLetters = cmp.Or(c.DeadLetters, c.Name+deadLetters)
	c.Logger, c.Observe = watched(c.Name, c.Logger, c.Observe)
	return router, nil
}

// isName reports whether a relay may have this name.
func isName(name string) bool {
	n := utf8.RuneCountInString(name)
	return n >= 1 && n <= 100
}

// watched returns where a relay logs, and what it is observed by.
func watched(name string, log *slog.Logger, observe func(Progress)) (*slog.Logger, func(Progress)) {
	if log == nil {
		log = slog.Default()
	}
	if observe == nil {
		observe = func(Progress) {}
	}
	return log.With("relay", name), observe
}

func newRelay(c Config) (*relay, error) {
	router, err := c.complete(false)
	if err != nil {
		return nil, err
	}
	r := &relay{Config: c, client: weir.NewClient(c.Pool), store: store.New(c.Pool, 0).Bound(callTimeout), router: router}
	r.Observe = func(p Progress) {
		p.Waiting = r.waiting
		c.Observe(p)
	}
	r.holder = newHolder(c.Name, c.Pool, c.Logger, r.Observe)
	return r, nil
}

// stint passes messages on for as long as this process has the relay.
func (r *relay) stint(ctx context.Context) error {
	at, is, err := r.begin(ctx)
	if err != nil {
		return err
	}
	if r.astray = ""; !is.here {
		r.astray = at
	}
	if !is.known || !r.isReached(weir.Position(is.String())) {
		if at, err = r.passFrom(ctx, at); err != nil {
			return err
		}
	}
	// Nothing is kept any more for a relay that has ended.
	if err := r.store.RelayReached(ctx, r.Name, string(at), nil, string(r.had)); err != nil {
		return err
	}
	return errReached
}

// passFrom passes on what follows a position, and returns where it is when everything was passed on that is to be.
func (r *relay) passFrom(ctx context.Context, at weir.Position) (weir.Position, error) {
	joining, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	sub, err := weir.Subscribe(joining, weir.SubscribeConfig{Client: r.client, Channels: r.router.channels(), After: at, Logger: r.Logger})
	if err != nil {
		return "", err
	}
	defer sub.Close()
	r.worked()
	return r.pass(ctx, sub, at)
}

// errReached is what a stint returns at Until; errSetBack, when the log was set back: where to go on is for the next one to find out.
var (
	errReached = errors.New("the relay's end is reached")
	errSetBack = errors.New("the database was set back")
)

// isReached reports whether everything was passed on that is to be.
func (r *relay) isReached(at weir.Position) bool {
	return r.Until != "" && at != "" && !before(at, r.Until)
}

// begin returns the position from which the relay is to go on, and where that lies, and records it: from then on messages are kept for it.
func (r *relay) begin(ctx context.Context) (weir.Position, place, error) {
	text, had, err := r.store.RelayPosition(ctx, r.Name)
	if err != nil {
		return "", place{}, err
	}
	recorded := weir.Position(text)
	r.mayWait(ctx, recorded)
	own, err := r.Target.Begin(ctx, recorded)
	if err != nil {
		return "", place{}, fmt.Errorf("begin at the target: %w", &elsewhere{err})
	}
	remembered := r.had
	is, err := r.places(ctx, append([]weir.Position{recorded, weir.Position(had), remembered, own, r.Until}, r.passed...)...)
	if err != nil {
		return "", place{}, err
	}
	if r.Until != "" && !is[r.Until].here && is[r.Until].known {
		r.Until = weir.Position(is[r.Until].String()) // what was to be passed on from there up to Until is lost
	}
	_, forgets := r.Target.(Forgetful)
	at := is.later(recorded, own)
	r.had = is.later(weir.Position(had), remembered)
	foreign, anew := own != "" && !is[own].known, remembered != "" && !is[remembered].known
	for _, p := range r.passed {
		if (foreign || anew) && is[p].known {
			at = is.later(at, p) // what this process has passed on of what both logs have
		}
	}
	const restored = "it was set back, as by a restore, and what the target had from then on may be sent again"
	switch {
	case own == "" && recorded != "":
		if r.had != "" {
			r.gap(weir.Gap{To: recorded, Reason: "the target does not know any more how far it has come: what it had may be gone"})
		}
	case anew && remembered != weir.Position(had) && is[at].known: // it was not said before
		r.gap(weir.Gap{From: remembered, To: at, Reason: "what was passed on last is of another log, of which this database knows nothing: " + restored})
		if foreign {
			r.had = own
		}
	case foreign && is[at].known:
		if own != weir.Position(had) && !forgets { // it was not said before
			r.gap(weir.Gap{From: own, To: at, Reason: "the target's position is of another log, of which this database knows nothing: " + restored})
			r.had = own
		}
	case own != recorded && is.before(own, r.had) && !forgets: // one that keeps no position returns what is recorded, which may be behind
		r.Logger.Warn("weir: the target was set back, as by a restore: what came since is sent again, as far as it is kept", "target", own, "had", r.had)
		at, r.had = own, own
	case at == "":
		if at, err = r.first(ctx); err != nil {
			return "", place{}, err
		}
	case own == recorded && is[r.had].known && !is[r.had].here && is.before(at, r.had): // the log itself says so if the position is not of it either
		parted := weir.Position(is[r.had].String())
		r.gap(weir.Gap{From: r.had, To: parted, Reason: "the database has lost messages that the target has, as by a failover to a server that lagged"})
		r.had = parted
	}
	if is, err = r.places(ctx, at); err != nil {
		return "", place{}, err
	}
	return at, is[at], r.recordFrom(ctx, at, is[at].Tick, r.had)
}

// elsewhere is an error of a target. It may be another database, which refuses something: that is waited out as any other outage of a target, since relays beside this one don't need it.
type elsewhere struct{ error }

func (e *elsewhere) Unwrap() error { return e.error }

// first returns the position at which a new relay begins.
func (r *relay) first(ctx context.Context) (weir.Position, error) {
	if r.After != "" {
		return r.After, nil
	}
	since := r.Since
	if since.IsZero() {
		since = time.Now().AddDate(1, 0, 0) // behind the newest tick, whatever the server's clock says
	}
	tick, kept, err := r.store.FirstTickAfter(ctx, since)
	if err != nil {
		return "", err
	}
	at := weir.Position(hub.Position{Epoch: tick.Epoch, Tick: tick.Tick + 1}.String())
	if !kept && since.After(time.Unix(0, 0)) && since.Before(time.Now()) {
		r.gapFor(weir.Gap{To: at, Reason: "messages since " + since.UTC().Format(time.RFC3339) + " may not be kept any more"}, "raise message_retention to keep them for longer from now on")
	}
	return at, nil
}

// gap says that messages may be missing.
func (r *relay) gap(g weir.Gap) {
	fix := "if they are still kept, pass them on again with weir relay replay"
	if g.Reason == string(hub.Truncated) {
		fix = "if it was silent for longer than relay_retention, or space was short: raise relay_retention or message_retention_bytes"
	}
	r.gapFor(g, fix)
}

// gapFor is gap with what to do.
func (r *relay) gapFor(g weir.Gap, fix string) {
	r.Logger.Error("weir: messages may be missing: the relay goes on behind them", "after", g.From, "up to", g.To, "reason", g.Reason, "fix", fix)
	r.Observe(Progress{Active: true, Gap: &g})
}

// before reports whether a position lies before another one of the same log.
func before(at, other weir.Position) bool {
	a, err1 := hub.ParsePosition(string(at))
	o, err2 := hub.ParsePosition(string(other))
	return err1 == nil && err2 == nil && a.Before(o)
}

// record records how far the relay has come. A database that was set back keeps what it has recorded itself, rather than a position of which it knows nothing.
func (r *relay) record(ctx context.Context, at, had weir.Position) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p, err := hub.ParsePosition(string(at))
	if err != nil {
		return err
	}
	is, err := r.places(ctx, at)
	switch {
	case err != nil:
		return err
	case !is[at].known:
		return errSetBack
	}
	return r.recordFrom(ctx, at, p.Tick, had)
}

// recordFrom records how far the relay has come, and from which tick on messages are kept for it.
func (r *relay) recordFrom(ctx context.Context, at weir.Position, tick int64, had weir.Position) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.store.RelayReached(ctx, r.Name, string(at), &tick, string(had))
}

// backoff doubles from one failure to the next.
type backoff struct{ last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, retryFirst), retryLast)
	return b.last
}
