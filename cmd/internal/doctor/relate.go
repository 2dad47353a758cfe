package doctor

import "slices"

// A consequence is a kind of finding that another kind can cause. when reports whether it does in the given case.
type consequence struct {
	of, is Code
	when   func(cause, effect Finding) bool
}

// mostly reports whether the holders of what the effect waits for spend most of their time in one of the classes.
func mostly(classes ...Class) func(Finding, Finding) bool {
	return func(_, effect Finding) bool {
		in, all := 0.0, 0.0
		for c, lost := range effect.holders {
			all += lost
			if slices.Contains(classes, c) {
				in += lost
			}
		}
		return all > 0 && in >= all/2
	}
}

// heavier reports whether the cause loses more time than the effect.
func heavier(cause, effect Finding) bool { return cause.Lost >= effect.Lost }

// worked reports whether the effect is about a queue that the cause's workers worked.
func worked(cause, effect Finding) bool {
	return slices.ContainsFunc(effect.queues, func(q string) bool { return slices.Contains(cause.queues, q) })
}

// sameStatement reports whether both are about the same statement.
func sameStatement(cause, effect Finding) bool {
	return slices.ContainsFunc(effect.Statements, func(s Statement) bool {
		return slices.ContainsFunc(cause.Statements, func(o Statement) bool { return o.Text == s.Text })
	})
}

// changesIt reports whether statements of the effect name the cause's table.
func changesIt(cause, effect Finding) bool {
	return cause.table != "" && slices.ContainsFunc(effect.Statements, func(s Statement) bool { return naming(cause.table).MatchString(s.Text) })
}

func always(Finding, Finding) bool { return true }

// consequences are tried in this order: the first that matches a finding gives its cause.
func consequences() []consequence {
	return []consequence{
		// A commit that waits for a standby keeps its locks, NOTIFY's included.
		{SyncReplicationStalled, NotifyCommitLock, always},
		{SyncReplicationStalled, HotRow, mostly(Commit)},
		{SyncReplicationStalled, TableLock, mostly(Commit)},
		{SyncReplicationStalled, AdvisoryLock, mostly(Commit)},
		{SyncReplicationStalled, WaitsUnexplained, mostly(Commit)},
		{SyncReplicationStalled, RowCommits, always},
		{SyncReplicationStalled, WeirSlow, always},
		{SyncReplicationStalled, LaneBacklog, always},
		{IdleBlocker, HotRow, mostly(notWaiting)},
		// Most of the time a deadlock stands, and the line is behind it; otherwise they meet in the line.
		{Deadlocks, HotRow, func(cause, effect Finding) bool { return cause.stands >= deadlocksStand || cause.Lost >= effect.Lost/2 }},
		{HotRow, Deadlocks, always},
		// Dead rows make every scan longer.
		{AutovacuumBehind, RowCommits, changesIt},
		{AutovacuumBehind, ChattyStatements, heavier},
		// A session that waits in a line keeps its snapshot.
		{SyncReplicationStalled, HorizonPinned, mostly(Commit)},
		{IdleBlocker, HorizonPinned, mostly(RowLock)},
		{HotRow, HorizonPinned, mostly(RowLock)},
		{TableLock, HorizonPinned, mostly(OtherLock)},
		{AdvisoryLock, HorizonPinned, mostly(OtherLock)},
		{HorizonPinned, WraparoundNear, always},
		{SlotHoldsWAL, WraparoundNear, always},
		{ConnectionChurn, ConnectionsExhausted, always},
		// Without an index a statement is planned with workers.
		{TableScanned, ParallelChurn, sameStatement},
		// The postmaster starts the workers of parallel queries too, one after another.
		{ParallelChurn, PostmasterSaturated, heavier},
		// A session that waits for NOTIFY's lock keeps its row locks, and its commit is not acknowledged yet.
		{NotifyCommitLock, HotRow, mostly(ObjectLock)},
		{NotifyCommitLock, RowCommits, heavier},
		{NotifyCommitLock, MultiXactContention, heavier},
		{NotifyCommitLock, ChattyStatements, heavier},
		// Woken listeners compete with the holders of NOTIFY's lock for CPUs and the queue's locks.
		{ListenersWoken, NotifyCommitLock, heavier},
		// A listener in a long transaction reads no notifications, and also holds the horizon.
		{HorizonPinned, NotifyQueueFilling, always},
		{MultiXactContention, HotRow, mostly(MultiXact)},
		{MultiXactContention, RowCommits, heavier},
		{MultiXactContention, ChattyStatements, heavier},
		{HotRow, RowCommits, heavier},
		{HotRow, ChattyStatements, heavier},
		{RowCommits, ChattyStatements, heavier},
		// A session that waits for a table keeps its row locks.
		{TableLock, HotRow, mostly(OtherLock)},
		{TableLock, LaneBacklog, always},
		{TableLock, ReplayStalled, mostly(OtherLock)},
		// A connection storm takes CPU time from all sessions.
		{PostmasterSaturated, RowCommits, heavier},
		{WeirSlow, LaneBacklog, always},
		{WeirSlow, PromotionLate, always},
		{WorkerDead, SegmentStuck, always},
		{WorkerDead, PromotionLate, always},
		{WorkerDead, LaneBacklog, worked},
		{LaneBacklog, SegmentStuck, always},
		{NotifyCommitLock, LaneBacklog, always},
		{PostmasterSaturated, LaneBacklog, always},
	}
}

// relate marks findings that are consequences of others, caps their severity below critical, and sorts causes first, each followed by its
// consequences.
func relate(findings []Finding) []Finding {
	byCode := func(code Code) int { return slices.IndexFunc(findings, func(f Finding) bool { return f.Code == code }) }
	for _, c := range consequences() {
		cause := byCode(c.of)
		if cause < 0 {
			continue
		}
		for i := range findings {
			effect := &findings[i]
			if effect.Code != c.is || effect.DownstreamOf != "" || findings[cause].DownstreamOf == effect.Code || !c.when(findings[cause], *effect) {
				continue
			}
			// Whoever waits for a row of a session that waits for a table waits for the table as well: that is as bad as both.
			if c.of == TableLock && c.is == HotRow && effect.Severity.rank() > findings[cause].Severity.rank() {
				findings[cause].Severity = effect.Severity
			}
			// A finding that is worse than its supposed cause has another cause.
			if effect.Severity.rank() > findings[cause].Severity.rank() {
				continue
			}
			effect.DownstreamOf = c.of
			if effect.Severity == Critical {
				effect.Severity, effect.Capped = Warning, Critical
			}
		}
	}
	slices.SortStableFunc(findings, byWeight)
	ordered := make([]Finding, 0, len(findings))
	placed := make([]bool, len(findings))
	var place func(i int)
	place = func(i int) {
		if placed[i] {
			return // several findings may have the code of the cause
		}
		placed[i] = true
		ordered = append(ordered, findings[i])
		for j, effect := range findings {
			if effect.DownstreamOf == findings[i].Code {
				place(j)
			}
		}
	}
	for i, f := range findings {
		if f.DownstreamOf == "" {
			place(i)
		}
	}
	return ordered
}
