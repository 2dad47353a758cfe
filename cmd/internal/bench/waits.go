package bench

import (
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// waits measures, phase by phase, how long jobs wait and claims take.
type waits struct {
	mu     sync.Mutex
	now    *phase // nil: nothing is measured
	phases map[string]*phase
	order  []string

	// Jobs of which one is known: that they were committed, or started. A job may start before its enqueuer learns of the commit.
	open map[int64]committed

	running, mostRunning int // jobs of the large tenant
}

type committed struct {
	at    time.Time // zero: it has started
	phase *phase
}

// phase is what all rounds have shown of one phase.
type phase struct {
	waits, claims load.Histogram
	cpu, lasted   time.Duration
}

func newWaits() *waits { return &waits{phases: map[string]*phase{}, open: map[int64]committed{}} }

// enter begins a phase, or goes on with it in another round.
func (w *waits) enter(name string) *phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.phases[name]
	if p == nil {
		p = &phase{waits: load.NewHistogram(), claims: load.NewHistogram()}
		w.phases[name] = p
		w.order = append(w.order, name)
	}
	w.now = p
	return p
}

// leave ends a phase.
func (w *waits) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = nil
}

// committed says that a job was enqueued. Its wait counts in the phase of that moment, however long it takes.
func (w *waits) committed(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.open[number]; !ok {
		w.open[number] = committed{time.Now(), w.now}
		return
	}
	delete(w.open, number)
	if w.now != nil {
		w.now.waits.Add(0)
	}
}

// start says that a job has started.
func (w *waits) start(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.open[number]
	if !ok {
		w.open[number] = committed{}
		return
	}
	delete(w.open, number)
	if c.phase != nil {
		c.phase.waits.Add(time.Since(c.at))
	}
}

// unstarted returns how many jobs were enqueued and have not started.
func (w *waits) unstarted() (n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		if !c.at.IsZero() {
			n++
		}
	}
	return n
}

func (w *waits) claimed(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		w.now.claims.Add(took)
	}
}

// large says that a job of the large tenant has started. It returns what to call at its end.
func (w *waits) large() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running++
	w.mostRunning = max(w.mostRunning, w.running)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
	}
}

func (w *waits) mostLarge() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mostRunning
}

func (p *phase) report(name string) load.Phase {
	r := load.Phase{What: name, Waits: p.waits.Times(), Claims: p.claims.Times()}
	if p.cpu > 0 {
		cores := p.cpu.Seconds() / p.lasted.Seconds()
		r.Cores = &cores
	}
	return r
}
