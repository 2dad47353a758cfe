package policy

import (
	"fmt"
	"time"
)

// RateError reports that a user has published too much on the channels of an entry.
type RateError struct {
	Match string
	Burst int           // messages allowed at once
	Count int           // messages refused
	After time.Duration // when it makes sense to try again; 0: never, because these are more than Burst
}

func (e *RateError) Error() string {
	if e.Count > e.Burst {
		return fmt.Sprintf("%d messages at once are more than a user may publish on %s", e.Count, e.Match)
	}
	return fmt.Sprintf("you have exceeded the rate at which a user may publish on %s", e.Match)
}

// Publish counts the messages that a client publishes at once, one for each element of channels. If one entry's rate does not allow its share of them,
// it returns a *RateError; those of other entries may then be counted nevertheless.
func (s *Set) Publish(client string, channels []string) error {
	if s == nil {
		return nil
	}
	var counts map[*Rule]int
	for _, channel := range channels {
		if r := s.Of(channel); r != nil && r.rates != nil {
			if counts == nil {
				counts = map[*Rule]int{}
			}
			counts[r]++
		}
	}
	for r, n := range counts {
		if burst := r.rates.Burst(); n > burst {
			return &RateError{Match: r.Match, Burst: burst, Count: n}
		}
		if wait := r.rates.Take(client, n); wait > 0 {
			return &RateError{r.Match, r.rates.Burst(), n, wait}
		}
	}
	return nil
}
