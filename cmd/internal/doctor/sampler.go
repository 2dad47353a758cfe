package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

const (
	calmEvery = time.Second
	busyEvery = 100 * time.Millisecond
	lockEvery = 400 * time.Millisecond
	// dutyCycle limits sampling to a twentieth of the time on a slow server.
	dutyCycle = 20
	// calmAfter is how long no session must wait before samples become rare again.
	calmAfter = 3 * time.Second
)

// SamplerConfig configures a Sampler. Only URL is required.
type SamplerConfig struct {
	// URL is the connection string: postgres://user:password@host:port/database.
	URL string
	// Window is how long samples are kept for Waits. Default: 2 minutes.
	Window time.Duration
	// Every is the time from one sample to the next, whatever sessions do and samples cost. Default: about once a second, and more often while sessions wait.
	Every time.Duration
	// Logger receives failed samples. Default: slog.Default().
	Logger *slog.Logger
}

// Sampler reads what sessions wait for, about once a second, and ten times a second while sessions wait. It can be used alone:
//
//	s, err := doctor.NewSampler(ctx, doctor.SamplerConfig{URL: url})
//	defer s.Close()
//	go s.Run(ctx)
//	...
//	waits := s.Waits(from, to)
//	class, rate := waits.Dominant()
type Sampler struct {
	session *session
	window  *window
	every   time.Duration // 0: as sessions wait
	log     *slog.Logger

	blind bool // used only by Run's goroutine: what other roles' sessions do is hidden, so those that wait for locks are read from the locks

	hot func(ctx context.Context, s *session, sample *Sample) // reads what changes too fast to be read later; may be nil

	texts interner // used only by Run's goroutine

	mu     sync.Mutex
	own    []int32
	failed int
	err    error
}

// NewSampler connects. Close ends the connection.
func NewSampler(ctx context.Context, c SamplerConfig) (*Sampler, error) {
	config, err := sessionConfig(c.URL)
	if err != nil {
		return nil, err
	}
	s := &Sampler{session: &session{config: config, meter: new(meter)}, window: &window{span: c.Window}, every: c.Every, log: c.Logger}
	s.defaults()
	if _, err := scalars[int32](ctx, s.session, "SELECT 1"); err != nil {
		return nil, fmt.Errorf("sample the database: %w", err)
	}
	return s, nil
}

func (s *Sampler) defaults() {
	if s.window.span == 0 {
		s.window.span = 2 * time.Minute
	}
	if s.log == nil {
		s.log = slog.Default()
	}
}

// Close ends the connection. Call it after Run has returned.
func (s *Sampler) Close() { s.session.close() }

// Run takes samples until ctx ends. A sample that fails is left out, and the connection is reopened.
func (s *Sampler) Run(ctx context.Context) {
	var lastLocks, lastBusy time.Time
	// The smaller of the last two readings of locks: the first one also fills the session's caches.
	var locksCost, lastCost time.Duration
	readLocks := func(sample *Sample) {
		start := time.Now()
		s.addLocks(ctx, sample)
		cost := time.Since(start)
		locksCost, lastCost = min(cost, lastCost), cost
		lastLocks = start
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		begin := time.Now()
		// To a role that sees no waits but those in the locks, a sample without locks would show that nobody waits.
		if pause := max(lockEvery, dutyCycle*locksCost) - begin.Sub(lastLocks); s.blind && pause > 0 {
			next.Reset(pause)
			continue
		}
		sample, err := takeSample(ctx, s.session, s.ownPIDs())
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.fail(err)
			next.Reset(calmEvery)
			continue
		}
		sampleCost := time.Since(begin)
		s.blind = sample.Hidden > 0
		if s.blind {
			readLocks(&sample)
			sample.addWaiting()
		}
		busy := sample.suspicious()
		if busy {
			lastBusy = begin
		}
		if busy && !s.blind && begin.Sub(lastLocks) >= max(lockEvery, dutyCycle*locksCost) {
			readLocks(&sample)
		}
		s.texts.sample(&sample)
		s.window.add(sample)
		if s.every > 0 {
			next.Reset(max(sleep.Jitter(s.every)-time.Since(begin), 0))
			continue
		}
		every := interval(begin.Sub(lastBusy) < calmAfter)
		next.Reset(max(every-time.Since(begin), min(dutyCycle*sampleCost, calmEvery), 0))
	}
}

// interval is the time from one sample to the next. It varies, so that work that comes as regularly as samples is not always missed, or always seen.
func interval(busy bool) time.Duration {
	if busy {
		return sleep.Jitter(busyEvery)
	}
	return sleep.Jitter(calmEvery)
}

// addLocks adds the locks to a sample.
func (s *Sampler) addLocks(ctx context.Context, sample *Sample) {
	locks, err := takeLocks(ctx, s.session, sample.writers())
	if err != nil {
		if ctx.Err() == nil {
			s.fail(err)
		}
		return
	}
	sample.Locks, sample.HasLocks = locks, true
	if s.hot != nil {
		s.hot(ctx, s.session, sample)
	}
}

// Waits adds up the waits between two moments.
func (s *Sampler) Waits(from, to time.Time) Waits { return s.window.between(from, to).waits() }

// Last returns the newest sample; false if there is none.
func (s *Sampler) Last() (Sample, bool) {
	s.window.mu.Lock()
	defer s.window.mu.Unlock()
	if n := len(s.window.samples); n > 0 {
		return s.window.samples[n-1], true
	}
	return Sample{}, false
}

func (s *Sampler) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.err = s.failed+1, err
	s.log.Debug("weir doctor: a sample failed", "error", err)
}

// failures returns how many samples failed, and the last reason.
func (s *Sampler) failures() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, s.err
}

// Ignore leaves sessions with the given pids out of all later samples.
func (s *Sampler) Ignore(pids ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range pids {
		s.own = append(s.own, int32(pid))
	}
}

func (s *Sampler) ownPIDs() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int32(nil), s.own...)
}
