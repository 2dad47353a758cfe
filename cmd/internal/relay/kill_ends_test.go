package relay_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
)

// payload is how a number is published.
func payload(n int) string { return fmt.Sprintf(`{"n": %d}`, n) }

var payloads = regexp.MustCompile(`"n": ?([0-9]+)`)

// numbersIn returns those in payloads, or in texts that contain one each.
func numbersIn(t *testing.T, texts []string) []int {
	t.Helper()
	all := make([]int, len(texts))
	for i, text := range texts {
		found := payloads.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("there is no number in %s", text)
		}
		all[i], _ = strconv.Atoi(found[1]) //nolint:errcheck // it is one
	}
	return all
}

// publishing publishes numbers, one after the other, each until it is known to be there, until stop is called, which returns them all. Each is there once, however often it is published.
func publishing(t *testing.T, publish func(ctx context.Context, n int) error) (stop func() []int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []int, 1)
	go func() { // ends with ctx, or with the test if a number can't be published
		var all []int
		for n := 0; ctx.Err() == nil; n++ {
			for publish(t.Context(), n) != nil && sleep.For(t.Context(), time.Millisecond) {
			}
			all = append(all, n)
			sleep.For(ctx, 3*time.Millisecond) // so that hundreds of kills do not make millions of numbers
		}
		done <- all
	}()
	return func() []int {
		cancel()
		return pgtest.Receive(t, done, "the last number is published")
	}
}

// end is where the numbers of a relay arrive.
type end struct {
	relay    string
	settings string               // of the relay, in its file
	arrived  func() int           // about how many there are; -1: that is not known now
	stored   func(n int) []string // all that there are, once there are n
}

// messagesTo are settings of a relay of the messages.
func messagesTo(subject string) string {
	return fmt.Sprintf("since = \"oldest\"\nroute = [{ channels = \"orders\", subject = %q }]\n", subject)
}

// jobsTo are settings of a relay of the jobs.
func jobsTo(subject string) string {
	return fmt.Sprintf("route = [{ queue = \"orders\", subject = %q }]\n", subject)
}

// progress waits until some more have arrived at each end.
func progress(t *testing.T, ends []*end) {
	t.Helper()
	begin := make([]int, len(ends))
	for i, e := range ends {
		pgtest.Until(t, "it is known what has arrived by the relay "+e.relay, func() bool {
			begin[i] = e.arrived()
			return begin[i] >= 0
		})
	}
	for i, e := range ends {
		pgtest.Until(t, "more has arrived by the relay "+e.relay, func() bool { return e.arrived() > begin[i]+20 })
	}
}

// arrive waits until so many have arrived, for as long as there are more and more: a relay that was killed hundreds of times has much to pass on. Which are missing, if some are, has tells.
func arrive(t *testing.T, n int, where string, arrived func() int) {
	t.Helper()
	for have, since := arrived(), time.Now(); have < n; sleep.For(t.Context(), 100*time.Millisecond) {
		if now := arrived(); now > have {
			have, since = now, time.Now()
		}
		if time.Since(since) > patience {
			t.Errorf("%d of %d have arrived %s, and for %v no more", have, n, where, patience)
			return
		}
	}
}

// has waits until each of the numbers has arrived, and reports what was lost or doubled.
func (e *end) has(t *testing.T, want []int, inOrder bool) {
	t.Helper()
	begin := time.Now()
	got := numbersIn(t, e.stored(len(want)))
	if !inOrder {
		slices.Sort(got)
	}
	if slices.Equal(got, want) {
		t.Logf("relay %s: %d, none lost, none doubled; %v after the last was published", e.relay, len(want), time.Since(begin).Round(time.Millisecond))
		return
	}
	t.Errorf("relay %s: what has arrived %s", e.relay, compare(got, want))
}

// compare says how many of the numbers are not there, and how many more than once.
func compare(got, want []int) string {
	seen := map[int]int{}
	for _, n := range got {
		seen[n]++
	}
	var missing, doubled []int
	for _, n := range want {
		switch seen[n] {
		case 0:
			missing = append(missing, n)
		case 1:
		default:
			doubled = append(doubled, n)
		}
	}
	return fmt.Sprintf("are %d of %d: %d are not there yet or lost, %.100v, and %d doubled, %.100v; in order: %t", len(got), len(want), len(missing), fmt.Sprint(missing), len(doubled), fmt.Sprint(doubled), slices.IsSorted(got))
}
