package weirui

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

// inSeconds is a duration that is a number of seconds in JSON: clients in other languages don't count nanoseconds.
type inSeconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s inSeconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// queueLimit is a limit of a queue.
type queueLimit struct{ weir.QueueLimit }

// MarshalJSON writes the time of a rate in seconds.
func (l queueLimit) MarshalJSON() ([]byte, error) {
	type rate struct {
		Starts float64   `json:"starts"`
		Per    inSeconds `json:"per,omitempty"`
		Burst  int       `json:"burst,omitempty"`
	}
	return json.Marshal(struct {
		weir.QueueLimit
		Rate rate `json:"rate,omitzero"`
	}{l.QueueLimit, rate{l.Rate.Starts, inSeconds(l.Rate.Per), l.Rate.Burst}})
}

// listed is a list that is [] in JSON if nothing is in it, and never null.
func listed[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
