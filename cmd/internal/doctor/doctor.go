package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config configures a Doctor. Only URL is required.
type Config struct {
	// URL is the connection string: postgres://user:password@host:port/database. Connect to the server directly, not
	// through a pooler, because the postmaster's answers are measured too.
	URL string
	// Standbys are the connection strings of its standbys, on which the sessions are read that hold the horizon through hot_standby_feedback. Optional.
	Standbys []string
	// Window is the length of the period that Watch judges. Default: 15 seconds.
	Window time.Duration
	// Every is how often Watch runs the checks. Default: 5 seconds.
	Every time.Duration
	// Record keeps what Run sees, for Doctor.Recording.
	Record bool
	// WithoutStatements leaves the texts of statements and the keys of rows out of samples, recordings and reports. Of a statement only the command and the tables
	// that it names stay.
	WithoutStatements bool
	// Logger receives failures to read the server. Default: slog.Default().
	Logger *slog.Logger
	// Progress, if set, is called by Run once a second with the elapsed time and the newest sample.
	Progress func(elapsed time.Duration, samples int)
}

// Doctor examines one database. Run and Watch must not be called concurrently.
type Doctor struct {
	config  Config
	server  Server
	session *session // for checks; the sampler has its own
	sampler *Sampler
	prober  *prober
	local   *local
	hot     *hotRows
	meter   *meter
	clock   *clock
	tape    *tape // nil unless Config.Record is set, or this is a replay

	recording *Recording

	standbys []standby

	part   part
	listed []uint32  // of theServer: the databases that are judged beside it
	above  []Finding // of theDatabase: those of its server
}

// Open opens two connections: one for samples, one for checks. Connection errors are *pgconn.ConnectError.
func Open(ctx context.Context, c Config) (*Doctor, error) {
	if c.Window == 0 {
		c.Window = 15 * time.Second
	}
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	config, err := sessionConfig(c.URL)
	if err != nil {
		return nil, err
	}
	d := &Doctor{config: c, meter: new(meter), clock: newClock()}
	if c.Record {
		d.tape = &tape{}
	}
	d.session = &session{config: config, meter: d.meter, clock: d.clock, tape: d.tape}
	if d.server, err = readServer(ctx, d.session); err != nil {
		d.session.close()
		return nil, err
	}
	var redact *redactor
	if c.WithoutStatements {
		if redact, err = newRedactor(ctx, &session{config: config, meter: d.meter, conn: d.session.conn}); err != nil {
			d.session.close()
			return nil, err
		}
	}
	d.session.redact = redact
	samples := &session{config: config.Copy(), meter: d.meter, clock: d.clock, redact: redact}
	d.sampler = &Sampler{session: samples, window: &window{span: 2 * c.Window}, log: c.Logger}
	d.sampler.defaults()
	if _, err := scalars[int32](ctx, samples, "SELECT 1"); err != nil {
		d.session.close()
		return nil, err
	}
	d.hot = newHotRows(d.server.databaseOID, c.WithoutStatements)
	if !c.WithoutStatements {
		d.sampler.hot = d.hot.find
	}
	d.sampler.Ignore(d.session.pid(), samples.pid())
	d.prober = &prober{window: d.sampler.window, clock: d.clock}
	d.prober.network, d.prober.address = d.session.endpoint()
	d.local = findLocal(d.server, d.tape)
	for _, url := range c.Standbys {
		config, err := sessionConfig(url)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("a standby: %w", err)
		}
		at := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
		s := standby{at, &session{config: config, name: at, meter: d.meter, clock: d.clock, tape: d.tape, redact: redact}}
		d.standbys = append(d.standbys, s)
		if err := d.accept(ctx, s); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Close ends the sessions.
func (d *Doctor) Close() {
	d.sampler.Close()
	d.session.close()
	for _, s := range d.standbys {
		s.session.close()
	}
}

// Server describes the server that is examined.
func (d *Doctor) Server() Server { return d.server }

// Sampler returns the doctor's sampler, which runs while Run or Watch does.
func (d *Doctor) Sampler() *Sampler { return d.sampler }

// Run examines the server for a time and returns a report. It returns an error if nothing could be read.
func (d *Doctor) Run(ctx context.Context, duration time.Duration) (Report, error) {
	var report Report
	d.sampler.window.reach(duration + connectTimeout)
	err := d.while(ctx, func(ctx context.Context) error {
		begin := d.clock.now()
		first := d.read(ctx)
		if err := d.wait(ctx, begin, duration); err != nil {
			return err
		}
		report = d.judge(ctx, begin, first, d.read(ctx))
		if report.Samples == 0 {
			_, err := d.sampler.failures()
			return fmt.Errorf("no sample could be taken in %s: %w", span(duration), errors.Join(err, ctx.Err()))
		}
		return ctx.Err()
	})
	return report, err
}

// Snapshot is what Watch reports each second.
type Snapshot struct {
	At      time.Time
	Waits   Waits // since the previous snapshot
	Clients int
	Idle    int
	Report  *Report // the newest; nil at first

	Blocking Blocking
	Changes  []Change      // since the previous snapshot
	Answer   time.Duration // of the postmaster, the slowest within Config.Window; 0 if it was not asked yet
}

// Watch examines the server until ctx ends, and calls f once a second. Config.Every sets how often the report is renewed.
func (d *Doctor) Watch(ctx context.Context, f func(Snapshot)) error {
	return d.while(ctx, func(ctx context.Context) error {
		var readings []*reading // the readings of the last window, oldest first
		var report *Report
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		last := d.clock.now()
		begin, judged := last, last
		every := d.config.Every
		var blocking Blocking
		var changed changes
		var nextTree time.Time
		readings = append(readings, d.read(ctx))
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			now := d.clock.now()
			if now.Sub(judged) >= every {
				judged = now
				readings = append(readings, d.read(ctx))
				for len(readings) > 2 && now.Sub(readings[1].counters.At) >= d.config.Window {
					readings = readings[1:]
				}
				from := readings[0].counters.At
				if from.Before(begin) {
					from = begin
				}
				r := d.judge(ctx, from, readings[0], readings[len(readings)-1])
				d.hot.reset()
				report = &r
				changed.report(now, r)
				every = max(d.config.Every, dutyCycle*d.clock.now().Sub(now))
			}
			snapshot := Snapshot{At: now, Waits: d.sampler.Waits(last, now), Report: report}
			if s, ok := d.sampler.Last(); ok {
				snapshot.Clients, snapshot.Idle = s.Clients, s.Idle
			}
			// Reading who blocks whom takes at most a twentieth of the time.
			if s, ok := d.sampler.Last(); !ok || !s.anyLock() {
				blocking = Blocking{}
			} else if begin := d.clock.now(); !begin.Before(nextTree) {
				if read, err := readBlocking(ctx, d.session); err == nil {
					blocking = read
				} else if ctx.Err() == nil {
					d.config.Logger.Debug("weir doctor: reading who blocks whom failed", "error", err)
				}
				end := d.clock.now()
				nextTree = end.Add(dutyCycle * end.Sub(begin))
			}
			changed.blocking(now, blocking)
			snapshot.Blocking, snapshot.Changes = blocking, changed.take()
			for _, p := range d.sampler.window.between(now.Add(-d.config.Window), now).probes {
				if d.server.relayed {
					break // the answers are not the postmaster's
				}
				snapshot.Answer = max(snapshot.Answer, p.Took)
			}
			last = now
			f(snapshot)
		}
	})
}

// while runs f together with the sampler and the prober, which it starts, stops and waits for.
func (d *Doctor) while(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	var both sync.WaitGroup
	both.Go(func() { d.sampler.Run(ctx) })
	both.Go(func() { d.prober.run(ctx) })
	defer both.Wait()
	defer stop()
	return f(ctx)
}

// wait waits for a time, and reports progress.
func (d *Doctor) wait(ctx context.Context, begin time.Time, duration time.Duration) error {
	end := time.NewTimer(duration - d.clock.now().Sub(begin))
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-tick.C:
			if d.config.Progress != nil {
				now := d.clock.now()
				d.config.Progress(now.Sub(begin), len(d.sampler.window.between(begin, now).samples))
			}
		}
	}
}

// taken is one reading of the counters and of the holders of the horizon.
type reading struct {
	server   Server
	counters *counters
	pins     []pin
	hidden   int64 // sessions of other roles, which this one may not see
	failed   []unread
}

func (d *Doctor) read(ctx context.Context) *reading {
	t := &reading{}
	// It may have been promoted since, or have taken rights from the role. If a lock on a catalog hides that, the sessions that are hidden are counted all the same.
	now, err := readServer(ctx, d.session)
	if err == nil {
		d.server = now
	}
	t.server = d.server
	t.counters, t.failed = readCounters(ctx, d.session, d.server)
	if err != nil && lostSession(err) { // the counters may have come from another one
		t.failed = append(t.failed, unread{ofCounted, fmt.Errorf("the server's counters: %w", err)})
	}
	if cpu, ok := d.local.cpu(); ok {
		t.counters.postmasterCPU = &cpu
	}
	if busy, ok := d.local.busy(); ok {
		t.counters.postmasterBusy = &busy
	}
	if t.pins, err = readPins(ctx, d.session); err != nil {
		t.failed = append(t.failed, unread{ofPins, fmt.Errorf("what holds back the vacuum horizon: %w", err)})
	}
	hidden, err := scalars[int64](ctx, d.session, hiddenSQL, hiddenQuery)
	if err != nil {
		t.failed = append(t.failed, unread{ofHidden, fmt.Errorf("how many sessions are hidden: %w", err)})
	} else {
		t.hidden = hidden[0]
	}
	return t
}

// hiddenSQL counts sessions, and no processes of the server itself.
const hiddenSQL = `SELECT count(*) FROM pg_stat_get_activity(NULL) a WHERE a.query = $1 AND a.datid IS NOT NULL AND a.usesysid IS NOT NULL`

// judge runs the checks on the period between two readings.
func (d *Doctor) judge(ctx context.Context, from time.Time, first, last *reading) Report {
	view := d.sampler.window.between(from, d.clock.now())
	if d.part == theDatabase {
		view = view.of(d.here)
	}
	report := d.examine(ctx, view, first, last)
	if d.tape != nil {
		d.record(view)
	}
	return report
}

// here reports whether what sessions of a database wait for is judged here.
func (d *Doctor) here(database uint32) bool {
	switch d.part {
	case theServer:
		return !slices.Contains(d.listed, database)
	case theDatabase:
		return database == d.server.databaseOID
	}
	return true
}

// examine runs the checks on what was seen between two readings.
func (d *Doctor) examine(ctx context.Context, view view, first, last *reading) Report {
	lacks := first.lacks() | last.lacks() | last.server.differs(first.server)
	l := &inspection{
		server: d.server, view: view, waits: view.waits(), first: first.counters.without(lacks), last: last.counters.without(lacks), pins: first.pins, hot: d.hot,
		session: d.session, local: d.local, here: d.here,
	}
	var standbyErrs []error
	l.standbys, standbyErrs = readStandbys(ctx, d.standbys)
	report := Report{
		Version: ReportVersion, At: d.session.now(), Seconds: round(l.span().Seconds()), Server: d.server, Samples: len(view.samples), Waits: l.waits.rounded(),
		Findings: []Finding{}, Well: []Well{}, Unseen: d.unseen(),
	}
	hidden := max(first.hidden, last.hidden, view.hidden())
	var unjudged, unknown []string
	for _, u := range slices.Concat(first.failed, last.failed) {
		report.Unseen = append(report.Unseen, u.err.Error())
	}
	for _, err := range standbyErrs {
		report.Unseen = append(report.Unseen, err.Error())
	}
	report.Incomplete = lacks != 0 || len(standbyErrs) > 0 // it was told to look there
	for _, c := range checks() {
		if ctx.Err() != nil {
			break
		}
		if d.part != whole && c.of != whole && c.of != d.part {
			continue
		}
		if d.part == theServer && c.of == whole { // what sessions of the listed databases wait for is judged with these
			l.view = view.of(d.here)
			l.waits = l.view.waits()
		}
		l.findings = slices.Concat(d.above, report.Findings)
		r, err := c.run(ctx, l)
		if err != nil {
			report.Unseen = append(report.Unseen, fmt.Sprintf("the check of %s failed: %v", c.name, err))
			report.Incomplete = true
		}
		report.Findings = append(report.Findings, r.findings...)
		report.Unseen = append(report.Unseen, r.unseen...)
		report.Incomplete = report.Incomplete || r.blind
		reads := c.reads
		if c.sessions {
			reads |= ofHidden
		}
		if lacks&reads != 0 && r.healthy != "" {
			unknown, r.healthy = append(unknown, c.name), "" // what was not read does not show that all is well
		}
		if c.sessions && hidden > 0 && r.healthy != "" {
			unjudged, r.healthy = append(unjudged, c.name), "" // it saw too little to say that all is well
		}
		if r.healthy != "" {
			report.Well = append(report.Well, Well{c.name, r.healthy})
		}
	}
	if len(unknown) > 0 {
		report.Unseen = append(report.Unseen, "because of what could not be read, not judged: "+strings.Join(unknown, ", "))
	}
	if len(unjudged) > 0 {
		report.Unseen = append(report.Unseen, fmt.Sprintf("%s of other roles, and so not judged: %s; it needs pg_monitor", many(hidden, "session"), strings.Join(unjudged, ", ")))
		report.Incomplete = true
	}
	if hidden > 0 {
		for i := range report.Findings {
			if f := &report.Findings[i]; f.Lost > 0 {
				f.add("", "more may be lost: of %s of other roles only waits for locks are seen, and no statements; it needs pg_monitor", many(hidden, "session"))
			}
		}
	}
	report.Findings = slices.DeleteFunc(relate(slices.Concat(d.above, report.Findings)), func(f Finding) bool { return f.above })
	for i := range report.Findings {
		report.Findings[i].Lost = round(report.Findings[i].Lost)
	}
	report.Unseen = unique(report.Unseen)
	report.Cost = recall(d.tape, "cost", d.meter.cost)
	return report
}

// unseen lists what the role may not see at all.
func (d *Doctor) unseen() []string {
	list := []string{}
	if !d.server.sees() {
		list = append(list, "the waits and statements of other roles' sessions: GRANT pg_monitor TO "+quoteIdentifier(d.server.User))
	}
	if !d.server.Weir && d.part != theServer {
		list = append(list, "Weir: its schema is not in database "+d.server.Database+", so only PostgreSQL was examined (if Weir should be there, name another database, or run weir migrate up)")
	}
	if d.part == theDatabase {
		return list // the rest is said of its server
	}
	if d.server.Standby {
		list = append(list, "the primary: this is a standby")
	}
	failed := recall(d.tape, "failed samples", func() string {
		n, err := d.sampler.failures()
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("%s: %v", many(n, "sample"), err)
	})
	if failed != "" {
		list = append(list, failed)
	}
	return list
}

// unique removes duplicates.
func unique(texts []string) []string {
	seen := map[string]bool{}
	kept := texts[:0]
	for _, t := range texts {
		if !seen[t] {
			seen[t] = true
			kept = append(kept, t)
		}
	}
	return kept
}

func round(x float64) float64 { return math.Round(x*1000) / 1000 }
