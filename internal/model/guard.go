package model

// guard is one thing that Weir does so that a promise holds. The explorer takes them out one by one, to show that each is needed, and that
// it would find out.
type guard uint8

const (
	_ guard = iota
	pendingList
	oneSnapshot
	newestAfterLock
	laneLock
	claimsLock
	shareLock
	segmentLock
	carryRunning
	workerLock
	batchCheck
	timelines
	endedOnce
	attemptLock
	txAlone
	reconcileAll
	reconcileAgain
	reconcileClaims
	reconcileResults
	flushResults
	rebasePending
	// of messages
	lateTransactions
	cutLock
	tickKey
	flushTicks
	epochs
	floorLast
	guards
)

// guarded says of each guard what it is, in words that finish "without ...", and in which scenario its lack shows. Those without a scenario
// are backed by another: see backed.
var guarded = [guards]struct{ what, scenario string }{
	pendingList:      {"the list of pending transactions in a batch", "commits out of order"},
	oneSnapshot:      {"pending taken from the snapshot that the rows were read with", "commits out of order"},
	newestAfterLock:  {"the newest batch read after the lane's lock was given", "reclaim"},
	laneLock:         {"the lane's lock", "reclaim"},
	claimsLock:       {"the claims' lock in reclaim", "reclaim"},
	shareLock:        {"the SHARE lock in reclaim", "reclaim"},
	segmentLock:      {"the segment's lock in results", "reclaim under results"},
	carryRunning:     {"what is running carried along by reclaim", "reclaim under results"},
	workerLock:       {"the worker's lock between results and fence", "fences"},
	batchCheck:       {"results checked against the worker's batch (WR002)", "crash"},
	timelines:        {"numbers of batches that a failover does not give out again", "failover and a lost answer"},
	endedOnce:        {"the refusal of a completion where the attempt has ended otherwise (WR002)", "lost answers"},
	attemptLock:      {"the lock on an attempt's end", "lost answers"},
	txAlone:          {"a completion with effects that excludes every other, and is refused where the attempt has a result", "lost answers"},
	reconcileAll:     {"reconcile looking at every batch of the worker", "failover"},
	reconcileAgain:   {"reconcile once a lease, whatever the worker believes", "late calls"},
	reconcileClaims:  {"reconcile waiting for the worker's claims", ""},
	reconcileResults: {"reconcile waiting for the worker's results in flight", "late calls"},
	flushResults:     {"results flushed before they are acknowledged", "crash"},
	rebasePending:    {"the transactions in progress as pending of the positions that rebase makes", "move"},
	lateTransactions: {"the transactions that were in progress before, in a tick", "messages commit out of order"},
	cutLock:          {"the lock of who cuts", ""},
	tickKey:          {"the primary key of ticks", ""},
	flushTicks:       {"ticks flushed before they are given out", "crash of messages"},
	epochs:           {"the epoch in positions", "failover of messages"},
	floorLast:        {"the floor looked at last", "messages truncated"},
}

// backed are guards of which either will do, and in which scenario the lack of both shows.
var backed = []struct {
	a, b     guard
	scenario string
}{
	{reconcileClaims, reconcileAgain, "lost answers"},
	{cutLock, tickKey, "messages commit out of order"},
}

// off is a set of guards that are taken out.
type off uint32

func (o off) with(g guard) off   { return o | 1<<g }
func (o off) holds(g guard) bool { return o>>g&1 == 0 }
