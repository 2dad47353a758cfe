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
	// of messages
	lateTransactions
	cutLock
	tickKey
	flushTicks
	epochs
	floorLast
	// of promotion
	latePromotion
	pointID
	aheadKept
	aheadSnapshot
	promoteLock
	carryLater
	carryUnseen
	laterLock
	// of attending
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
	guards
)

// guarded says of each guard what it is, in words that finish "without ...", and in which scenario its lack shows. Those without a scenario
// are backed by another: see backed.
var guarded = [guards]struct{ what, scenario string }{
	pendingList:        {"the list of pending transactions in a batch", "commits out of order"},
	oneSnapshot:        {"pending taken from the snapshot that the rows were read with", "commits out of order"},
	newestAfterLock:    {"the newest batch read after the lane's lock was given", "reclaim"},
	laneLock:           {"the lane's lock", "reclaim"},
	claimsLock:         {"the claims' lock in reclaim", "reclaim"},
	shareLock:          {"the SHARE lock in reclaim", "reclaim"},
	segmentLock:        {"the segment's lock in results", "reclaim under results"},
	carryRunning:       {"what is running carried along by reclaim", "reclaim under results"},
	carryLane:          {"the lane's lock in carry_waiting", "reclaim in parts"},
	workerLock:         {"the worker's lock between records and fence", "fences"},
	batchCheck:         {"results checked against the worker's batch (WR002)", "crash"},
	timelines:          {"numbers of batches that a failover does not give out again", "failover and a lost answer"},
	endedOnce:          {"the look whether an attempt has ended already (WR002)", "lost answers"},
	endsLock:           {"the lock of a worker's ends", "late calls"},
	attemptLock:        {"the lock on an attempt that is being completed in a transaction of its handler's", "lost answers"},
	reconcileAll:       {"reconcile looking at every batch of the worker", "failover"},
	reconcileAgain:     {"reconcile once a lease, whatever the worker believes", "late calls"},
	reconcileClaims:    {"reconcile waiting for the worker's claims", ""},
	settledOpen:        {"the exceptions in what is settled of a worker", "fences"},
	flushResults:       {"results flushed before they are acknowledged", "crash"},
	rebasePending:      {"the transactions in progress as pending of the positions that rebase makes", "move"},
	forgetUnread:       {"what pending transactions have left unread, kept by forget_ended", "idle lanes"},
	forgetLane:         {"the lane's lock in forget_ended", "idle lanes"},
	lateTransactions:   {"the transactions that were in progress before, in a tick", "messages commit out of order"},
	cutLock:            {"the lock of who cuts", ""},
	tickKey:            {"the primary key of ticks", ""},
	flushTicks:         {"ticks flushed before they are given out", "crash of messages"},
	epochs:             {"the epoch in positions", "failover of messages"},
	floorLast:          {"the floor looked at last", "messages truncated"},
	latePromotion:      {"what the last promotion's snapshot could not see, up to its point, in promote", "later commits out of order"},
	pointID:            {"the id in the point of promotion, where several jobs are due at one time", "later in small steps"},
	aheadKept:          {"the cursor that is kept beside the newest when the clock steps back", "clock steps back"},
	aheadSnapshot:      {"the snapshot of that cursor", "clock steps back"},
	promoteLock:        {"the lock of who promotes and who rotates later", "later reclaimed"},
	carryLater:         {"what waits carried along by rotate_later", "later reclaimed"},
	carryUnseen:        {"what promotion could not see yet among it", "later reclaimed"},
	laterLock:          {"ACCESS EXCLUSIVE on the segment that rotate_later gives back", "later reclaimed"},
	attendanceStart:    {"the start of the server in weir.attendance", "restart of who is attended"},
	unloggedAttendance: {"weir.attendance being unlogged, so that a crash empties it", "crash of who is attended"},
	twoLooks:           {"the note of whom a first look misses, from which the time of a second is counted", "sessions end"},
	wordLock:           {"the last word's lock between those who speak for a worker and rescuers", "sessions end"},
	wordAgain:          {"the last word looked at again once its lock is had", "sessions end"},
	attendsAgain:       {"the heartbeats of a session that attends, which put right what a late one has said", "a heartbeat that arrives late"},
	crowded:            {"the look whether the server has a connection left", "server full"},
	watchedBound:       {"the bound of what one look adds to weir.watched", "heartbeats alone"},
	leaseGrace:         {"the 2 s that a lease is longer for rescuers, for what one look adds at most", "heartbeats alone"},
	leaseOfLife:        {"leases counted from the first look in this life of the server", "failover of attendance"},
	idleTimeout:        {"the end of a session that is idle for a lease", "process stands still"},
	quietLine:          {"the server's patience with lines that say nothing", "lines that are cut"},
	unbrokenLine:       {"the look whether something lies between worker and server", "sessions end behind a pooler"},
	sessionLapse:       {"the interruption of jobs whose worker has lost its session", "sessions end"},
	leaseLapse:         {"the interruption of jobs before the lease is over", "heartbeats alone"},
	unsureLapse:        {"the haste of a worker that has given up a session which may still come to attend", "keepers' calls arrive late"},
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
type off uint64

func (o off) with(g guard) off   { return o | 1<<g }
func (o off) holds(g guard) bool { return o>>g&1 == 0 }
