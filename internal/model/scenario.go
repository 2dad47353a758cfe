package model

// scenarios are explored completely: few jobs, few workers, each fault once or twice, but every interleaving of them. A scenario with everything at
// once would be too large; each has what can meet in one place.
var scenarios = []scenario{
	{name: "commits out of order", transactions: []uint8{2, 1}, processes: 2, quota: 1, budget: budget{Claims: 3}},
	{name: "large claims", transactions: []uint8{1, 1, 1}, processes: 2, quota: 2, budget: budget{Claims: 2}},
	{name: "crash", transactions: []uint8{1, 1}, processes: 2, quota: 1, budget: budget{Claims: 3, Crashes: 1, Txs: 1}},
	{name: "crash of a large claim", transactions: []uint8{2}, processes: 1, quota: 2, budget: budget{Claims: 2, Crashes: 1, Retries: 1, Txs: 1}},
	{name: "failover", transactions: []uint8{1}, processes: 2, starts: 1, quota: 1, budget: budget{Reconciles: 1, Claims: 3, Failovers: 1, Txs: 1, Retries: 1}},
	{name: "failover and a lost answer", transactions: []uint8{1, 1}, processes: 1, quota: 1, budget: budget{Claims: 2, Failovers: 1, Losses: 1}},
	{name: "lost answers", transactions: []uint8{1}, processes: 1, quota: 1, budget: budget{Reconciles: 2, Claims: 2, Losses: 2, Retries: 1, Txs: 2}},
	{name: "late calls", transactions: []uint8{1}, processes: 1, quota: 1, budget: budget{Reconciles: 2, Claims: 3, Late: 2, Retries: 1, Txs: 1}},
	{name: "fences", transactions: []uint8{1}, processes: 2, quota: 1, budget: budget{Reconciles: 2, Claims: 2, Fences: 1, Kills: 1, Retries: 1, Txs: 1, Losses: 1}},
	{name: "reclaim", transactions: []uint8{1, 1}, processes: 2, quota: 1, straggler: true, budget: budget{Claims: 2, Rotations: 2, Reclaims: 2}},
	{name: "reclaim in parts", transactions: []uint8{1, 1}, processes: 1, quota: 1, straggler: true, budget: budget{Claims: 2, Rotations: 2, Reclaims: 2, Carries: 1}},
	{name: "reclaim under results", transactions: []uint8{1}, processes: 1, quota: 1, budget: budget{Reconciles: 1, Claims: 2, Rotations: 2, Reclaims: 2, Retries: 1, Txs: 1, Crashes: 1}},
	{name: "idle lanes", transactions: []uint8{1, 1, 1}, processes: 1, quota: 1, budget: budget{Claims: 3, Forgets: 1}},
	{name: "move", transactions: []uint8{1, 1}, processes: 1, quota: 1, straggler: true, budget: budget{Claims: 2, Moves: 1}},
}

var laterScenarios = []laterScenario{
	{name: "later commits out of order", at: []uint8{1, 1}, limit: 2, promoters: 2},
	{name: "later in small steps", at: []uint8{1, 1, 1}, limit: 1, promoters: 1},
	{name: "clock steps back", at: []uint8{1, 2}, limit: 2, promoters: 1, back: 2},
	{name: "later reclaimed", at: []uint8{1, 2}, limit: 2, promoters: 1, rotations: 1},
	{name: "crash of promotion", at: []uint8{1, 1}, limit: 1, promoters: 1, back: 1, crashes: 1},
	{name: "failover of promotion", at: []uint8{1}, limit: 1, promoters: 1, back: 1, rotations: 1, failover: 1},
}

var messageScenarios = []messageScenario{
	{name: "messages commit out of order", transactions: []uint8{1, 2, 1}, cutters: 2, limit: 1},
	{name: "messages in larger ticks", transactions: []uint8{1, 1, 1, 1}, cutters: 2, limit: 2},
	{name: "crash of messages", transactions: []uint8{1, 1, 1}, cutters: 2, limit: 2, crashes: 1},
	{name: "failover of messages", transactions: []uint8{1, 1, 1}, cutters: 1, limit: 1, failovers: 1},
	{name: "messages truncated", transactions: []uint8{1, 1, 1}, cutters: 1, limit: 2, reclaims: 1},
}

var attendScenarios = []attendScenario{
	{name: "sessions end", slow: true, ends: 1, kills: 1},
	{name: "sessions end again", ends: 2, kills: 1},
	{name: "sessions end at work", works: true, ends: 1},
	{name: "heartbeats alone", slow: true, pooled: true, kills: 1},
	{name: "sessions end behind a pooler", slow: true, pooled: true, ends: 1},
	{name: "server full", ends: 1, fills: 1},
	{name: "keepers' calls arrive late", late: 1, ends: 1},
	{name: "a heartbeat that arrives late", attends: true, others: true, ends: 1},
	{name: "lines that are cut", cuts: 1, late: 1},
	{name: "process suspended", freezes: 1, ends: 1},
	{name: "crash with attendance", crashes: 1, kills: 1},
	{name: "restart with attendance", restarts: 1, kills: 1},
	{name: "sessions end after a restart", restarts: 1, ends: 1, kills: 1},
	{name: "failover of attendance", failovers: 1},
}

var limitScenarios = []limitScenario{
	{name: "a limit", jobs: 3, limit: 2, quota: 2, claimers: 2, claims: 4, retries: 1, rollBack: 1},
	{name: "a limit for several lanes", jobs: 3, limit: 2, quota: 1, claimers: 1, claims: 2, lanes: 1, handsBack: 1},
	{name: "a limit that is set at work", jobs: 3, limit: 1, quota: 2, claimers: 2, late: true, claims: 3, rollBack: 1},
	{name: "crash under a limit", jobs: 3, limit: 2, quota: 2, claimers: 1, claims: 3, crashes: 1},
	{name: "failover under a limit", jobs: 3, limit: 2, quota: 2, claimers: 1, claims: 3, retries: 1, failovers: 1},
	{name: "releases truncated", jobs: 3, limit: 2, quota: 2, claimers: 1, claims: 3, rotations: 1, crashes: 1},
}

var uniqueScenarios = []uniqueScenario{
	{name: "unique until finished", lanes: []uint8{0, 1, 0}, quota: 1, claims: 3, releases: 1},
	{name: "unique until started", lanes: []uint8{0, 1, 0}, started: true, quota: 1, claims: 3, retries: 1},
	{name: "unique jobs handed back", lanes: []uint8{0, 1}, started: true, quota: 1, claims: 3, releases: 1, cancels: 1},
	{name: "unique in large claims", lanes: []uint8{0, 0, 1}, quota: 2, claims: 3, retries: 1},
	{name: "crash of unique jobs", lanes: []uint8{0, 1}, started: true, quota: 1, claims: 3, crashes: 1},
}

var firingScenarios = []firingScenario{
	{name: "a schedule that changes", promoters: 2, limit: 4, changes: 1, kills: 1, rollbacks: 1},
	{name: "a schedule in small steps", promoters: 1, limit: 1, changes: 1, kills: 1},
	{name: "crash of a schedule", promoters: 1, limit: 4, changes: 1, crashes: 1},
	{name: "failover of a schedule", promoters: 1, limit: 4, changes: 1, failover: 1},
}

var turnScenarios = []turnScenario{
	{name: "a key in order", transactions: []uint8{1, 1, 1}, claimers: 2, claims: 4},
	{name: "retries in order", transactions: []uint8{1, 1}, claimers: 1, claims: 3, retries: 1},
	{name: "large transactions in order", transactions: []uint8{2, 1}, claimers: 1, claims: 3},
}
