package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// ReplayConfig specifies a replay: the messages that a relay of a file has passed on, or would have, are passed on again, under another name.
type ReplayConfig struct {
	Path    string // of the file
	Relay   string // its name there
	As      string // the name of the replay: one that is called again under it goes on where it was
	Since   string // as in the file
	Subject string // "": that of each route
	Log     *slog.Logger
	Made    func(Replayed) // is called when more is done; nil: not called
}

// Replayed is what a replay has done.
type Replayed struct {
	From, To         weir.Position
	Sent, Dead, Gaps int
	Again            bool // it has gone on where an earlier call had ended
}

// Replay passes messages on from a place in the log up to where it ends then.
type Replay struct {
	config ReplayConfig
	plan   plan
	close  func()
}

// OpenReplay reads the file, and prepares to connect to the target. Its errors say what is wrong in the file, or in the rest of the configuration.
func OpenReplay(ctx context.Context, c ReplayConfig) (*Replay, error) {
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	end, err := p.connect(ctx, c.Log.With("relay", c.As))
	if err != nil {
		return nil, fmt.Errorf("%s: relay %s: %w", c.Path, c.Relay, err)
	}
	return &Replay{config: c, plan: p, close: end}, nil
}

// Close closes the connections to the target.
func (r *Replay) Close() { r.close() }

// ErrSince is wrapped by the error of a replay that is to begin at a position which is not in the log of the database.
var ErrSince = errors.New("give a position in it, or a time")

// Run passes the messages of the pool's database on.
func (r *Replay) Run(ctx context.Context, pool *pgxpool.Pool) (done Replayed, err error) {
	c, p := r.config, r.plan
	db := store.New(pool, 0)
	end, err := hub.NewLog(db, nil).Newest(ctx)
	if err != nil {
		return done, err
	}
	recorded, _, err := db.RelayPosition(ctx, c.As)
	if err != nil {
		return done, err
	}
	if recorded == "" && p.config.After != "" {
		if err := inLog(ctx, db, p.config.After, end); err != nil {
			return done, err
		}
	}
	done.Again, done.To = recorded != "", weir.Position(end.String())
	if done.From = p.config.After; done.Again {
		done.From = weir.Position(recorded)
	}
	p.config.Pool, p.config.Until, p.config.Logger = pool, done.To, c.Log
	p.config.Observe = func(made weirrelay.Progress) {
		done.Sent, done.Dead = done.Sent+made.Sent, done.Dead+made.Dead
		if made.Gap != nil {
			done.Gaps++
		}
		if c.Made != nil {
			c.Made(done)
		}
	}
	err = p.run(ctx)
	if err == nil {
		err = ctx.Err()
	}
	return done, err
}

// inLog checks that a replay can begin at a position: before anything is recorded of it. One that a failover has lost can be, since the log is known up to where both part.
func inLog(ctx context.Context, db *store.Store, at weir.Position, end hub.Position) error {
	p, err := hub.ParsePosition(string(at))
	if err != nil {
		return err
	}
	last, known, err := db.SharedUpto(ctx, p.Reached())
	if err != nil {
		return err
	}
	if known && (last.Tick == p.Reached().Tick || last.Tick < end.Reached().Tick) {
		return nil
	}
	before, _, err := db.FirstTickAfter(ctx, time.Unix(0, 0))
	if err != nil {
		return err
	}
	what := "is of a log that this database does not know: its own"
	if known {
		what = "is ahead of the log of this database, which"
	}
	return fmt.Errorf("the position %s %s is kept from %s on, and ends at %s: %w", at, what, hub.Behind(before), end, ErrSince)
}

// plan returns the relay of the file as the replay is to be.
func (c ReplayConfig) plan() (p plan, err error) {
	plans, err := read(c.Path)
	if err != nil {
		return p, fmt.Errorf("%s: %w", c.Path, err)
	}
	names := make([]string, len(plans))
	for i := range plans {
		names[i] = plans[i].config.Name
	}
	i := slices.Index(names, c.Relay)
	if i < 0 {
		return p, fmt.Errorf("%s has no relay %q: it has %s", c.Path, c.Relay, strings.Join(names, ", "))
	}
	p = plans[i]
	switch {
	case p.source != nil:
		return p, fmt.Errorf("the relay %s makes jobs of another broker's messages: give one of another name since = \"oldest\" instead", c.Relay)
	case p.jobs:
		return p, fmt.Errorf("the relay %s passes on jobs, which have ended then: weir jobs retry runs them again", c.Relay)
	case !relayName.MatchString(c.As):
		return p, fmt.Errorf("the name %q must have 1 to 100 letters, digits, - and _", c.As)
	case slices.Contains(names, c.As):
		return p, fmt.Errorf("the name %q is that of a relay of %s: a replay needs another one, so that neither knows the position of the other", c.As, c.Path)
	case c.Since == "" || c.Since == "now":
		return p, errors.New("a replay begins in the past: say since when")
	case p.Redis != nil && (p.Redis.Form == "" || p.Redis.Form == string(redisrelay.Stream)) && c.Subject == "":
		return p, errors.New("the ids of a stream of Redis only grow, and are the positions: replay into another stream by another subject, as in replay.{channel}")
	}
	var ok bool
	if p.config.Since, p.config.After, ok = past(c.Since); !ok {
		return p, fmt.Errorf("%q: write %s", c.Since, pastForms)
	}
	if p.config.Since.After(time.Now()) {
		return p, fmt.Errorf("the time %s is to come", c.Since)
	}
	p.config.Name, p.config.Routes = c.As, slices.Clone(p.config.Routes)
	if c.Subject != "" {
		for i := range p.config.Routes {
			p.config.Routes[i].Subject = c.Subject
		}
	}
	return p, weirrelay.Check(p.config)
}
