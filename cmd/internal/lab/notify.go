package lab

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// NotifySize is the size of scenario notify.
type NotifySize struct {
	Clients int // writers; default 64
	Rounds  int // rounds in which the ways alternate; default 3
}

var notifyScenario = &scenario{
	title: "NOTIFY lets only one commit through at a time",
	about: "Writers insert one row per transaction: without notifying, with pg_notify, and with weir.publish; with the disk as it is, and with " +
		"2 ms more for each flush, as on network storage. A transaction that notifies takes a cluster-wide lock before its commit record is " +
		"flushed and holds it until after the flush, so notifying commits cannot share a flush. Nobody listens: what it costs to deliver is measured by scenario listeners. Then a steady load of inserts, which the server " +
		"serves with ease, is joined for a while by more transactions than the lock lets through, in the same sessions: all of them come to " +
		"wait for the lock, and the server idles.",
	needs: func(c *Config) needs {
		c.Notify.Clients = cmp.Or(c.Notify.Clients, 64)
		c.Notify.Rounds = cmp.Or(c.Notify.Rounds, 3)
		return needs{connections: c.Notify.Clients + 5, weir: true}
	},
	run:  runNotify,
	load: loadNotify,
}

// notifyLock is the wait event that identifies the collapse.
const notifyLock = "Lock:object"

const (
	insertEntry = `INSERT INTO weir_lab.entry (body) VALUES ('an entry of some length, as a small business record has it')`
	makeEntry   = `CREATE TABLE weir_lab.entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), body text NOT NULL)`

	slowFlush   = `SET commit_delay = 2000; SET commit_siblings = 0`
	normalFlush = `RESET commit_delay; RESET commit_siblings`

	slowSuffix = ", 2 ms flushes" // of the names of ways
)

var slowSettings = []Setting{{"commit_delay", "2000"}, {"commit_siblings", "0"}}

// notifyWays are the statements that a writer adds to its insert.
var notifyWays = []struct {
	name, what string
	kind       Kind
	add        string
}{
	{"insert", "insert a row", Baseline, ""},
	{"insert + pg_notify", "insert a row and notify", Collapse, `SELECT pg_notify('weir_lab', 'an entry was added')`},
	{"insert + weir.publish", "insert a row and publish through Weir", Fix, `SELECT weir.publish('weir_lab', 'an entry was added')`},
}

func runNotify(ctx context.Context, r *run) error {
	size := r.Notify
	r.set("clients", size.Clients)
	r.set("rounds", size.Rounds)
	r.set("duration of each variant", r.Duration)
	if _, err := r.site.guard.Exec(ctx, makeEntry); err != nil {
		return err
	}
	writers, err := openSessions(ctx, r.site.url, size.Clients, nil)
	if err != nil {
		return err
	}
	defer writers.close()
	sampler, watcher, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	type variant struct {
		*track
		add, flush string
	}
	var variants []variant
	for _, slow := range []bool{false, true} {
		if slow {
			if why := slowFlushUnable(ctx, r.site); why != "" {
				r.note("The variants with slow flushes were not measured: %s.", why)
				break
			}
		}
		for _, w := range notifyWays {
			if w.kind == Fix && !r.site.weir {
				continue
			}
			way := &Way{Name: w.name, Kind: w.kind, What: w.what, Unit: "transactions"}
			flush := normalFlush
			if slow {
				flush = slowFlush
				way.Name += slowSuffix
				way.Settings = slowSettings
			}
			variants = append(variants, variant{newTrack(way, r.Duration), w.add, flush})
		}
	}
	r.steps = size.Rounds*len(variants) + len(notifyWays)
	measured, err := inRounds(r, size.Rounds, variants, func(v variant) error {
		if _, err := r.site.guard.Exec(ctx, `TRUNCATE weir_lab.entry`); err != nil {
			return fmt.Errorf("%s: %w", v.way.Name, err)
		}
		if err := setFlush(ctx, r.site, writers, v.flush); err != nil {
			return fmt.Errorf("%s: %w", v.way.Name, err)
		}
		return r.measure(ctx, v.track, r.Duration/time.Duration(size.Rounds), sampler, serverGauges(r.site, watcher), func(until context.Context, m *load.Tally) error {
			return writers.work(ctx, until, m, writeEntry(v.add))
		})
	}, func(v variant) *Way { return v.sum() })
	var tracks, slowTracks []*track
	for _, v := range measured {
		if v.flush == slowFlush {
			slowTracks = append(slowTracks, v.track)
		} else {
			tracks = append(tracks, v.track)
		}
	}
	r.chartTracks(tracks, "Transactions, with the disk as it is,")
	r.chartServer(tracks, ", with the disk as it is")
	r.chartTracks(slowTracks, "Transactions, with flushes of 2 ms,")
	r.chartServer(slowTracks, ", with flushes of 2 ms")
	if err != nil {
		return err
	}
	suffix, flush := "", normalFlush
	if len(slowTracks) > 0 { // as where the story was told
		suffix, flush = slowSuffix, slowFlush
	}
	if err := quoteNotifyLog(ctx, r, writers, flush, r.result.Way("insert + pg_notify"+suffix).Latency); err != nil {
		return err
	}
	if b := planBurst(r, suffix, flush); b != nil {
		if err := runBursts(ctx, r, b, writers, sampler, watcher); err != nil {
			return err
		}
	}
	r.result.Verdict = notifyVerdict(r.result)
	return nil
}

// setFlush makes the writers' flushes slow or normal. Without the right to it they are never slow, and may not even be reset.
func setFlush(ctx context.Context, s *site, writers *sessions, flush string) error {
	if !s.super {
		return nil
	}
	return writers.exec(ctx, flush)
}

// slowFlushUnable returns why commit_delay can't slow flushes down here, or "". Without flushes the lock is held for a shorter time than it is elsewhere.
func slowFlushUnable(ctx context.Context, s *site) (why string) {
	if !s.super {
		return "only a superuser can set commit_delay"
	}
	err := s.guard.QueryRow(ctx, `SELECT CASE WHEN NOT current_setting('fsync')::boolean THEN 'fsync is off, so nothing was flushed with the disk as it is, either'
		WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit is off, so no commit waits for its flush with the disk as it is, either' ELSE '' END`).Scan(&why)
	if err != nil {
		return err.Error()
	}
	return why
}

// writeEntry runs one transaction of a writer, in one round trip.
func writeEntry(add string) func(ctx context.Context, conn *pgx.Conn, _ int) error {
	return func(ctx context.Context, conn *pgx.Conn, _ int) error {
		return transaction(ctx, conn, func(b *pgx.Batch) {
			b.Queue(insertEntry)
			if add != "" {
				b.Queue(add)
			}
		})
	}
}

func notifyVerdict(r *Result) Verdict {
	worst, what := 0.0, ""
	var fixes []string
	for _, flush := range []struct{ suffix, words string }{{"", "with the disk as it is"}, {slowSuffix, "with flushes of 2 ms"}} {
		alone, notify := r.Way("insert"+flush.suffix), r.Way("insert + pg_notify"+flush.suffix)
		if alone == nil || notify == nil || alone.Rate == 0 || notify.Rate == 0 {
			continue
		}
		times := ratio(alone.Rate, notify.Rate)
		worst = max(worst, times)
		what = join(what, fmt.Sprintf("%s, %s transactions per second with pg_notify and %s without it, %s times fewer",
			flush.words, Number(notify.Rate), Number(alone.Rate), Number(times)))
		if len(notify.Waits) > 0 { // otherwise too short a time to sample
			what += fmt.Sprintf(", with %.0f%% of the sessions' time spent waiting for the lock of the notify queue (%s)", 100*share(notify, notifyLock), notifyLock)
		}
		if publish := r.Way("insert + weir.publish" + flush.suffix); publish != nil {
			fixes = append(fixes, fmt.Sprintf("With weir.publish, %s: %s per second, %.0f%% of the rate of inserts alone.",
				flush.words, Number(publish.Rate), 100*ratio(publish.Rate, alone.Rate)))
		}
	}
	for _, suffix := range []string{"", slowSuffix} {
		fixes = append(fixes, burstVerdict(r, suffix)...)
	}
	return verdict(worst, cmp.Or(what, tooShort), fixes)
}

// share returns the share of a way's busy time spent in a wait event.
func share(w *Way, event string) float64 {
	for _, wait := range w.Waits {
		if wait.Event == event {
			return wait.Share
		}
	}
	return 0
}

// join joins two clauses.
func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func loadNotify(ctx context.Context, s *site, c LoadConfig) error {
	if _, err := s.guard.Exec(ctx, makeEntry); err != nil {
		return err
	}
	writers, err := openSessions(ctx, s.url, cmp.Or(c.Clients, 32), nil)
	if err != nil {
		return err
	}
	defer writers.close()
	if c.SlowFlush {
		if err := writers.exec(ctx, slowFlush); err != nil {
			return err
		}
	}
	c.Ready()
	return writers.work(ctx, ctx, load.NewTally(), writeEntry(notifyWays[1].add))
}
