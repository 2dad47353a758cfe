package weirui

import (
	"strconv"
	"time"
)

// inSeconds is a duration that is a number of seconds in JSON: clients in other languages don't count nanoseconds.
type inSeconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s inSeconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}
