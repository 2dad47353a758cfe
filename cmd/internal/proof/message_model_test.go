package proof

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// heard is a row of weir.read.
type heard struct {
	id      int64
	xid     string
	channel string
	keep    bool
	length  int32
	head    string // "transaction|number|length|" and the rest
	hash    string
}

func (h heard) tx() string { return h.head[:strings.IndexByte(h.head, '|')] }

// talk is the model of what publishers published and listeners read.
type talk struct {
	giants atomic.Int32
	gaps   atomic.Int32
	last   atomic.Int64 // the last tick, once everything is published

	mu    sync.Mutex
	fates map[string]fate
	said  map[string][]int // numbers of the messages that count
	ticks map[int64][]heard
}

func newTalk() *talk {
	return &talk{fates: map[string]fate{}, said: map[string][]int{}, ticks: map[int64][]heard{}}
}

// tally counts transactions by their fate, and the messages that were heard.
func (k *talk) tally() (fates map[fate]int, messages int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fates = map[fate]int{}
	for _, f := range k.fates {
		fates[f]++
	}
	for _, got := range k.ticks {
		messages += len(got)
	}
	return fates, messages
}

// isEnough reports whether so much was said and heard that the test proves something.
func (k *talk) isEnough() bool {
	fates, messages := k.tally()
	return fates[committed] >= 50 && fates[rolledBack] > 0 && messages >= 20_000
}

// spoke records the fate of a transaction. It is called with uncertain before anything is sent.
func (k *talk) spoke(s *speech, f fate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fates[s.tx], k.said[s.tx] = f, s.said
}

func (k *talk) decided(tx string, f fate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fates[tx] = f
}

// heard stores a tick, or compares it with what another listener read.
func (k *talk) heard(seq int64, count int32, got []heard) error {
	if len(got) != int(count) {
		return fmt.Errorf("tick %d has %d messages, but %d were read", seq, count, len(got))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if other, ok := k.ticks[seq]; !ok {
		k.ticks[seq] = got
	} else if !slices.Equal(other, got) {
		return fmt.Errorf("tick %d: two listeners read different messages, %d and %d", seq, len(other), len(got))
	}
	return nil
}

// problems compares what was read with what was published.
func (k *talk) problems(first int64) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	in := map[string]int64{}
	numbers := map[string][]int{}
	ids := map[int64]int64{}
	for seq := first; seq <= k.last.Load(); seq++ {
		got, ok := k.ticks[seq]
		if !ok {
			say("tick %d was not read by any listener", seq)
		}
		last := int64(0)
		for _, h := range got {
			if h.id <= last {
				say("tick %d: id %d follows %d", seq, h.id, last)
			}
			last = h.id
			if other, ok := ids[h.id]; ok {
				say("id %d is in ticks %d and %d", h.id, other, seq)
			}
			ids[h.id] = seq
			words := strings.SplitN(h.head, "|", 4)
			n, err := strconv.Atoi(words[1])
			if length, _ := strconv.Atoi(words[2]); err != nil || length > 0 && int32(max(length, len(h.head)-len(words[3]))) != h.length {
				say("message %q has %d bytes", h.head, h.length)
			}
			tx := words[0]
			if other, ok := in[tx]; ok && other != seq {
				say("transaction %s is in ticks %d and %d", tx, other, seq)
			}
			in[tx] = seq
			numbers[tx] = append(numbers[tx], n)
		}
	}
	for tx, f := range k.fates {
		switch got, want := numbers[tx], k.said[tx]; {
		case f == rolledBack && got != nil:
			say("transaction %s was rolled back, but %d of its messages were delivered", tx, len(got))
		case f == committed && got == nil && want != nil:
			say("transaction %s was committed but never delivered", tx)
		case f != rolledBack && got != nil && !slices.Equal(got, want):
			say("transaction %s published %d messages, but %d were delivered: %s", tx, len(want), len(got), differ(want, got))
		}
	}
	for tx := range numbers {
		if _, ok := k.fates[tx]; !ok {
			say("transaction %s was delivered but never published", tx)
		}
	}
	slices.Sort(all)
	return all
}

func differ(want, got []int) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("number %d in the place of %d", got[i], want[i])
		}
	}
	return "one is longer than the other"
}

// detail returns the tick in the detail of an error, written as epoch.tick.
func detail(err error) (int64, error) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return 0, err
	}
	_, tick, _ := strings.Cut(pg.Detail, ".")
	return strconv.ParseInt(tick, 10, 64)
}
