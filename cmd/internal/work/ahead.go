package work

import "time"

// Of a queue with short jobs, some are claimed ahead, for sessions that are about to end one: a session gets its next job a round trip to the database sooner. They wait here for less
// than the time of a job. Longer ones are better left to a worker that is free.
const (
	aheadBelow = 20 * time.Millisecond // from giving a job to a session until its end comes, of late
	aheadOf    = 4                     // one for so many that sessions have
	averageOf  = 16
)

// ended learns from the time that an attempt took; the caller holds mu.
func (d *Dispatcher) ended(a *attempt) {
	if a.session == nil {
		return
	}
	a.queue.took += (d.clock().Sub(a.given) - a.queue.took) / averageOf
}

// ahead returns how many more jobs of a queue may be claimed ahead, while running have not ended; the caller holds mu.
func (d *Dispatcher) ahead(q *queue, running int) int {
	if q.took >= aheadBelow || d.bytes > maxBytes*3/4 {
		return 0
	}
	return max((running-q.here)/aheadOf-q.here, 0)
}

// tooLong notices that jobs are not as short any more: one that was claimed, perhaps ahead, has waited in vain. The caller holds mu.
func (q *queue) tooLong() { q.took = waitHere }
