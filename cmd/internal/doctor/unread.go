package doctor

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// readings is a set of what a reading consists of.
type readings uint8

const (
	ofTotals readings = 1 << iota
	ofExtra
	ofTables
	ofStatements
	ofQueues
	ofPins
	ofHidden

	ofCounted = ofTotals | ofExtra | ofTables | ofStatements
)

// unread is a part of a reading that failed.
type unread struct {
	part readings
	err  error
}

// lacks returns what was not read, or does not belong to the reading before: if a session ends, its server may have ended too, and after a crash it counts from zero.
func (t *reading) lacks() readings {
	var all readings
	for _, u := range t.failed {
		all |= u.part
		if lostSession(u.err) {
			all |= ofCounted
		}
	}
	return all
}

// lostSession reports whether an error ended the session: there was no answer, or operator_intervention.
func lostSession(err error) bool {
	var refused *pgconn.PgError
	return !errors.As(err, &refused) || strings.HasPrefix(refused.Code, "57P")
}

// without returns the counters without parts of them. What was read only once has not grown by what it is: it is left out of both readings.
func (c *counters) without(lacks readings) *counters {
	some := *c
	if lacks&ofTotals != 0 {
		some.totals = totals{}
	}
	if lacks&ofExtra != 0 {
		some.extra = extra{}
	}
	if lacks&ofTables != 0 {
		some.Tables = nil
	}
	if lacks&ofStatements != 0 {
		some.Statements = nil
	}
	return &some
}
