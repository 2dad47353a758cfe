package doctor

// Code names a kind of finding. Codes are part of the interface: alerts are built on them.
type Code string

// Codes of findings.
const (
	NotifyCommitLock    Code = "notify-commit-lock"
	ListenersWoken      Code = "listeners-woken"
	NotifyQueueFilling  Code = "notify-queue-filling"
	PostmasterSaturated Code = "postmaster-saturated"
	MultiXactContention Code = "multixact-contention"
	HotRow              Code = "hot-row"
	TableLock           Code = "table-lock"
	ChattyStatements    Code = "chatty-statements"
	RowCommits          Code = "row-commits"
	HorizonPinned       Code = "horizon-pinned"
	LaneBacklog         Code = "lane-backlog"
	SegmentStuck        Code = "segment-stuck"
	WorkerDead          Code = "worker-dead"
	PromotionLate       Code = "promotion-late"
	HubLagging          Code = "hub-lagging"
	WeirSlow            Code = "weir-slow"
	KindUnknown         Code = "kind-unknown"

	SyncReplicationStalled Code = "sync-replication-stalled"
	ReplayStalled          Code = "replay-stalled"
	AdvisoryLock           Code = "advisory-lock"
	LockManager            Code = "lock-manager"
	WaitsUnexplained       Code = "waits-unexplained"
	IdleBlocker            Code = "idle-blocker"
	ConnectionsExhausted   Code = "connections-exhausted"
	SlotHoldsWAL           Code = "slot-holds-wal"
	WraparoundNear         Code = "wraparound-near"
	SequenceNearEnd        Code = "sequence-near-end"
	AutovacuumBehind       Code = "autovacuum-behind"
	ConnectionChurn        Code = "connection-churn"
	ParallelChurn          Code = "parallel-churn"
	TableScanned           Code = "table-scanned"
	Deadlocks              Code = "deadlocks"
	TempFiles              Code = "temp-files"
	CheckpointsForced      Code = "checkpoints-forced"
	SubtransactionOverflow Code = "subtransaction-overflow"
)

// Codes returns all codes.
func Codes() []Code {
	return []Code{
		NotifyCommitLock, ListenersWoken, NotifyQueueFilling, PostmasterSaturated, MultiXactContention, HotRow, TableLock, ChattyStatements, RowCommits,
		HorizonPinned, LaneBacklog, SegmentStuck, WorkerDead, PromotionLate, HubLagging, WeirSlow, KindUnknown,
		SyncReplicationStalled, ReplayStalled, AdvisoryLock, LockManager, WaitsUnexplained,
		IdleBlocker, ConnectionsExhausted, SlotHoldsWAL, WraparoundNear, SequenceNearEnd, AutovacuumBehind, ConnectionChurn, ParallelChurn, TableScanned, Deadlocks,
		TempFiles, CheckpointsForced, SubtransactionOverflow,
	}
}
