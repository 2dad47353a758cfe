package model

// guard is one thing that Weir does to keep a promise. A test removes the guards one by one, to show that each is needed, and that the explorer
// notices.
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
	carryLane
	workerLock
	batchCheck
	timelines
	endedOnce
	endsLock
	attemptLock
	reconcileAll
	reconcileAgain
	reconcileClaims
	settledOpen
	flushResults
	rebasePending
	forgetUnread
	forgetLane
	// guards of messages
	lateTransactions
	cutLock
	tickKey
	flushTicks
	epochs
	floorLast
	// guards of promotion
	latePromotion
	pointID
	aheadKept
	aheadSnapshot
	promoteLock
	carryLater
	carryUnseen
	laterLock
	// guards of attending
	attendanceStart
	unloggedAttendance
	twoLooks
	wordLock
	wordAgain
	attendsAgain
	crowded
	watchedBound
	leaseGrace
	leaseOfLife
	idleTimeout
	quietLine
	unbrokenLine
	sessionLapse
	leaseLapse
	unsureLapse
	// guards of limits
	gateLock
	othersSnapshot
	foldedOnce
	flushGate
	gateBefore
	limitWaits
	keepReleases
	// guards of unique jobs
	keyLock
	releasedNoRun
	seenByRun
	numberedAgain
	doomedNotCounted
	// guards of schedules
	fireLock
	promotionKey
	firedOnce
	generations
	nextBeyond
	pendingMoves
	// guards of turns
	ringLock
	lateAnnounced
	orderKept
	guards
)

// guarded describes each guard, in words that complete "without ...", and gives the scenario that shows its lack. A guard without a scenario is
// backed by another: see backed.
var guarded = [guards]struct{ what, scenario string }{
	pendingList:        {"the list of pending transactions in a batch", "commits out of order"},
	oneSnapshot:        {"pending taken from the snapshot that the rows were read with", "commits out of order"},
	newestAfterLock:    {"reading the newest batch after taking the lane's lock", "reclaim"},
	laneLock:           {"the lane's lock", "reclaim"},
	claimsLock:         {"the claims' lock in reclaim", "reclaim"},
	shareLock:          {"the SHARE lock in reclaim", "reclaim"},
	segmentLock:        {"the segment's lock in results", "reclaim under results"},
	carryRunning:       {"the carrying of running jobs in reclaim", "reclaim under results"},
	carryLane:          {"the lane's lock in carry_waiting", "reclaim in parts"},
	workerLock:         {"the worker's lock, which separates records and fence", "fences"},
	batchCheck:         {"the check of results against the worker's batch (WR002)", "crash"},
	timelines:          {"batch numbers that are not assigned again after a failover", "failover and a lost answer"},
	endedOnce:          {"the check whether an attempt has already ended (WR002)", "lost answers"},
	endsLock:           {"the lock on a worker's results", "late calls"},
	attemptLock:        {"the lock on an attempt that a handler's transaction completes", "lost answers"},
	reconcileAll:       {"the comparison of every batch of the worker in reconcile", "failover"},
	reconcileAgain:     {"reconcile once per lease, whatever the worker believes", "late calls"},
	reconcileClaims:    {"reconcile's wait for the worker's claims", ""},
	settledOpen:        {"the exceptions in what is settled for a worker", "fences"},
	flushResults:       {"the flush of results before they are acknowledged", "crash"},
	rebasePending:      {"the transactions in progress in the pending lists of the positions that rebase creates", "move"},
	forgetUnread:       {"the unread rows of pending transactions, which forget_ended keeps", "idle lanes"},
	forgetLane:         {"the lane's lock in forget_ended", "idle lanes"},
	lateTransactions:   {"the transactions that were in progress before, in a tick", "messages commit out of order"},
	cutLock:            {"the lock for cutting", ""},
	tickKey:            {"the primary key of ticks", ""},
	flushTicks:         {"the flush of ticks before they are returned", "crash of messages"},
	epochs:             {"the epoch in positions", "failover of messages"},
	floorLast:          {"the check of the floor at the end", "messages truncated"},
	latePromotion:      {"the jobs up to the last promotion's point that its snapshot could not see, in promote", "later commits out of order"},
	pointID:            {"the id in the point of promotion, for jobs that are due at the same time", "later in small steps"},
	aheadKept:          {"the older cursor that is kept when the clock steps back", "clock steps back"},
	aheadSnapshot:      {"the snapshot of that cursor", "clock steps back"},
	promoteLock:        {"the lock for promoting and for rotating later", "later reclaimed"},
	carryLater:         {"the carrying of waiting jobs in rotate_later", "later reclaimed"},
	carryUnseen:        {"the carrying of jobs that promotion could not see yet", "later reclaimed"},
	laterLock:          {"ACCESS EXCLUSIVE on the segment that rotate_later reclaims", "later reclaimed"},
	attendanceStart:    {"the start of the server in weir.attendance", "restart with attendance"},
	unloggedAttendance: {"weir.attendance being unlogged, so that a crash empties it", "crash with attendance"},
	twoLooks:           {"the record of a worker missed by a first check, from which the time until the second is counted", "sessions end"},
	wordLock:           {"the last word's lock, which separates a worker's calls and rescuers", "sessions end"},
	wordAgain:          {"reading the last word again under its lock", "sessions end"},
	attendsAgain:       {"the heartbeats of a session that attends, which correct a late one", "a heartbeat that arrives late"},
	crowded:            {"the check whether the server has a free connection", "server full"},
	watchedBound:       {"the limit of what one check adds to weir.watched", "heartbeats alone"},
	leaseGrace:         {"the 2 s that rescuers add to a lease, which is the most that one check adds", "heartbeats alone"},
	leaseOfLife:        {"counting leases from the first check in this life of the server", "failover of attendance"},
	idleTimeout:        {"the end of a session that is idle for a lease", "process suspended"},
	quietLine:          {"the server's patience with silent connections", "lines that are cut"},
	unbrokenLine:       {"the check whether a pooler is between worker and server", "sessions end behind a pooler"},
	sessionLapse:       {"the interruption of the jobs of a worker that has lost its session", "sessions end"},
	leaseLapse:         {"the interruption of jobs before the lease is over", "heartbeats alone"},
	unsureLapse:        {"the early interruption by a worker that has given up a session which may still attend", "keepers' calls arrive late"},
	gateLock:           {"the gate's lock", "a limit"},
	othersSnapshot:     {"the claim's own transaction among those in progress, in the snapshot of a gate's row", "a limit for several lanes"},
	foldedOnce:         {"the snapshot in a gate's row, whose releases are not counted again", "a limit"},
	flushGate:          {"the flush of claims under a limit", "crash under a limit"},
	gateBefore:         {"the attempts that ran before, in a gate's first row", "a limit that is set at work"},
	limitWaits:         {"the wait of set_limit for claims in progress", "a limit that is set at work"},
	keepReleases:       {"the releases that are not counted yet, when their table is truncated", "releases truncated"},
	keyLock:            {"the lock of the claims of a queue's unique jobs", "unique until finished"},
	releasedNoRun:      {"passing over jobs that were handed back", "unique jobs handed back"},
	seenByRun:          {"the snapshot in a batch, which shows what its jobs stand for", "unique until started"},
	numberedAgain:      {"another number for a job that runs after one with a greater number", "unique until finished"},
	doomedNotCounted:   {"passing over jobs that a claim would drop, when enqueue_unique looks for a duplicate", "unique until started"},
	fireLock:           {"the lock for promoting, when schedules fire", ""},
	promotionKey:       {"the primary key of promotions", ""},
	firedOnce:          {"the key of weir.firing, which tells whether a due time has been fired", "a schedule that changes"},
	generations:        {"the generation of a schedule in the rows of its due times", "a schedule that changes"},
	nextBeyond:         {"the row of the next due time, beyond the point of promotion", "a schedule in small steps"},
	pendingMoves:       {"the due time that has passed, which moves to the changed schedule", "a schedule that changes"},
	ringLock:           {"the ring's lock", "a key in order"},
	lateAnnounced:      {"the transactions that are announced behind a key's position, as pending", "a key in order"},
	orderKept:          {"the place that a job keeps while its next attempt is not announced", "retries in order"},
}

// backed lists pairs of guards of which either is enough, with the scenario that shows the lack of both.
var backed = []struct {
	a, b     guard
	scenario string
}{
	{reconcileClaims, reconcileAgain, "lost answers"},
	{cutLock, tickKey, "messages commit out of order"},
	{fireLock, promotionKey, "a schedule that changes"},
}

// off is a set of guards that are removed.
type off [2]uint64

func (o off) with(g guard) off {
	o[g/64] |= 1 << (g % 64)
	return o
}

func (o off) holds(g guard) bool { return o[g/64]>>(g%64)&1 == 0 }
