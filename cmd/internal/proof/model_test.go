package proof

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// fate is what a client knows about the end of the transaction that enqueued a job.
type fate int

const (
	uncertain fate = iota // the connection was lost before an answer: both ends are possible
	committed
	rolledBack
)

// ending is what a client knows about how an attempt ended.
type ending int

const (
	running   ending = iota
	unsure           // the connection was lost before an answer
	final            // completed, failed, cancelled
	followed         // retried, snoozed, released: another attempt must follow
	abandoned        // the worker was given up: another attempt must follow
)

// evidence is one claim of an attempt, as seen by the client that received it.
type evidence struct {
	attempt
	worker int32
	began  time.Time // when the question was sent
	at     time.Time // when the answer arrived
	end    ending
}

// answered reports whether its result was certainly recorded.
func (e *evidence) answered() bool { return e.end == final || e.end == followed }

// model is what must be true according to all clients.
type model struct {
	mu     sync.Mutex
	jobs   map[string]fate
	ids    map[string]map[int64]bool // of a key
	keys   map[int64]map[string]bool // of an id
	claims map[int64]map[step][]*evidence
	began  map[string]time.Time // when the transaction of a key was begun
	synced []acknowledged
	count  int
}

// acknowledged is a transaction of which the client knows that it is on disk, with everything that was committed before it.
type acknowledged struct{ began, answered time.Time }

func newModel() *model {
	return &model{jobs: map[string]fate{}, ids: map[string]map[int64]bool{}, keys: map[int64]map[string]bool{}, claims: map[int64]map[step][]*evidence{}, began: map[string]time.Time{}}
}

// enqueued records the fate of jobs. It is called with uncertain before anything is sent.
func (m *model) enqueued(f fate, keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, k := range keys {
		m.jobs[k] = f
		switch f {
		case uncertain:
			m.began[k] = now
		case committed:
			if n := len(m.synced); n == 0 || m.synced[n-1].began.Before(m.began[k]) {
				m.synced = append(m.synced, acknowledged{m.began[k], now})
			}
		}
	}
}

// survived returns a time before which everything that was committed has survived a kill.
func (m *model) survived(killed time.Time) (upto time.Time) {
	for _, a := range m.synced {
		if a.answered.Before(killed) {
			upto = a.began
		}
	}
	return upto
}

// claimed records what the answer to a question sent at began says of claims.
func (m *model) claimed(worker int32, began time.Time, got []attempt) []*evidence {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*evidence
	now := time.Now()
	for _, a := range got {
		e := &evidence{attempt: a, worker: worker, began: began, at: now}
		all = append(all, e)
		if m.claims[a.ID] == nil {
			m.claims[a.ID], m.keys[a.ID] = map[step][]*evidence{}, map[string]bool{}
		}
		if m.ids[a.Key] == nil {
			m.ids[a.Key] = map[int64]bool{}
		}
		m.ids[a.Key][a.ID], m.keys[a.ID][a.Key] = true, true
		m.claims[a.ID][a.step()] = append(m.claims[a.ID][a.step()], e)
		m.count++
	}
	return all
}

// ended records how attempts ended. A retry of the last attempt is final.
func (m *model) ended(end ending, all ...*evidence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		e.end = end
	}
}

// abandon marks attempts without a result as abandoned.
func (m *model) abandon(all []*evidence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		if e.end != running {
			continue
		}
		if e.end = abandoned; e.Attempt >= e.Max {
			e.end = unsure // lost in its last attempt: it has failed, which this client can't know
		}
	}
}

// has reports whether an attempt was claimed.
func (m *model) has(id int64, t step) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.claims[id][t]) > 0
}

// problems compares the evidence with what must be true. Claims commit asynchronously, so a claim made after the last transaction that is known to be on
// disk may be lost when the server is killed, and its attempts claimed again. A client may read the killed server's last answers after the kill, so a claim is
// the next server's if its question was sent after the kill.
func (m *model) problems(killed time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	survived := m.survived(killed)
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for key, f := range m.jobs {
		n := len(m.ids[key])
		switch {
		case n > 1:
			say("job %s has %d ids", key, n)
		case f == committed && n == 0:
			say("job %s was committed but never claimed", key)
		case f == rolledBack && n > 0:
			say("job %s was rolled back but claimed", key)
		}
	}
	batches := map[[2]int64]*evidence{}
	for id, attempts := range m.claims {
		if len(m.keys[id]) > 1 {
			say("job %d has keys %v", id, m.keys[id])
		}
		turns := slices.SortedFunc(maps.Keys(attempts), func(a, b step) int {
			return cmp.Or(cmp.Compare(a.attempt, b.attempt), cmp.Compare(a.putOff, b.putOff))
		})
		before, last := step{}, turns[len(turns)-1]
		for _, k := range turns {
			claims := attempts[k]
			if !k.follows(before) {
				say("job %d: attempts %v were claimed, but not those between %v and %v", id, turns, before, k)
				break
			}
			before = k
			slices.SortFunc(claims, func(a, b *evidence) int { return a.at.Compare(b.at) })
			for _, e := range claims[:len(claims)-1] {
				if e.answered() || e.began.After(killed) || e.at.Before(survived) {
					say("job %d attempt %v was claimed twice: %s, then %s", id, k, describe(e), describe(claims[len(claims)-1]))
				}
			}
			e := claims[len(claims)-1]
			switch {
			case k != last && e.end == final:
				say("job %d was claimed again after %s", id, describe(e))
			case k == last && (e.end == running || e.end == followed || e.end == abandoned):
				say("job %d has no attempt after %s", id, describe(e))
			}
			b := [2]int64{e.Lane, e.Seq}
			if other := batches[b]; other == nil {
				batches[b] = e
			} else if other.worker != e.worker && other.began.After(killed) && e.began.After(killed) {
				say("lane %d batch %d was returned to workers %d and %d", e.Lane, e.Seq, other.worker, e.worker)
			}
		}
	}
	slices.Sort(all)
	return all
}

func describe(e *evidence) string {
	return fmt.Sprintf("attempt %d of %d, put off %d times (key %s, lane %d, batch %d, worker %d, at %s, %s)", e.Attempt, e.Max, e.PutOff, e.Key, e.Lane, e.Seq, e.worker,
		e.at.Format("05.000"), [...]string{"running", "unsure", "final", "followed", "abandoned"}[e.end])
}
