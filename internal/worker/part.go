package worker

import "math"

// With Config.Most, all queues share what there is: a queue's part begins small, doubles with each claim that fills it, and shrinks when claims find less. So one queue may have all of it; and
// a claim that finds jobs in many queues at once gets no more than about as much again, because it visits at most manyLanes.
const (
	leastPart = 10
	manyLanes = 200 // of weir._claim
)

// firstPart is the part of a queue in which claims have not found more.
func (w *Worker) firstPart() int { return min(max(w.Most/manyLanes, 1), leastPart) }

// left returns how many more jobs may be in flight.
func (s *session) left() int {
	if s.Most == 0 {
		return math.MaxInt
	}
	return max(s.Most-int(s.all.Load()), 0)
}

// roomy reports whether enough of that is left to claim now, rather than wait for more.
func (s *session) roomy() bool { return s.Most == 0 || 4*s.left() >= s.Most }

// part returns how many jobs a claim may get of a queue whose part has grown: those share what is left.
func (s *session) part() int {
	left := s.left()
	return min(max(left/max(s.grown, 1), s.firstPart()), left)
}

// adjust changes a queue's part after a claim that got some jobs of it, of those that it might get.
func (s *session) adjust(q *queue, got, limit int) {
	if q.part == 0 {
		return
	}
	least, before := s.firstPart(), q.part
	switch {
	case got == limit:
		q.part = max(q.part, min(2*limit, s.Most))
	case got == 0 || got < limit/2:
		q.part = max(q.part/2, least)
	}
	switch {
	case before == least && q.part > least:
		s.grown++
	case before > least && q.part == least:
		s.grown--
	}
}
