package doctor

import (
	"context"
	"fmt"
	"time"
)

// counters is one reading of the server's counters. Checks use the growth between two readings.
type counters struct {
	At  time.Time
	Own int64 // the doctor's own statements so far
	totals
	Tables     map[uint32]tableCount
	Statements map[statementKey]statementCount
	Queues     []queueCount
	queuesErr  error
	extra
	postmasterCPU  *time.Duration // nil if the server runs on another machine
	postmasterBusy *time.Duration // what it used, and what it waited for a CPU; nil also if the kernel does not count that
}

// totals are counters of the whole server.
type totals struct {
	Commits        int64 // in this database
	AllCommits     int64
	Sessions       int64 // started since the counters were reset, in all databases
	Written        int64 // rows in this database
	Parallel       *int64
	NextXID        int64
	NextMultiXact  int64
	NotifyUsage    float64 // how full the notification queue is: 0 to 1
	NotifyPages    int64   // pages started in it
	MultiXactReads int64   // pages of the multixact log looked up
}

const countersSQL = `
SELECT coalesce(sum(d.xact_commit) FILTER (WHERE d.datname = current_database()), 0)::bigint, coalesce(sum(d.xact_commit), 0)::bigint,
       coalesce(sum(d.sessions), 0)::bigint,
       coalesce(sum(d.tup_inserted + d.tup_updated + d.tup_deleted) FILTER (WHERE d.datname = current_database()), 0)::bigint,
       sum((to_jsonb(d) ->> 'parallel_workers_launched')::bigint)::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint, mxid_age('1'::xid)::bigint + 1,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_notification_queue_usage() END,
       coalesce((SELECT sum(s.blks_zeroed) FROM pg_stat_slru s WHERE lower(s.name) = 'notify'), 0)::bigint,
       coalesce((SELECT sum(s.blks_hit + s.blks_read) FROM pg_stat_slru s WHERE lower(s.name) LIKE 'multixact%'), 0)::bigint
FROM pg_stat_database d`

// tableCount is a row of pg_stat_user_tables.
type tableCount struct {
	OID                        uint32
	Schema, Name               string
	Live, Dead                 int64
	Inserted, Updated, Deleted int64
	IndexScans                 int64
	Scans, ScanRows            int64 // from beginning to end
	Vacuumed                   *time.Time
}

func (t tableCount) qualified() string {
	if t.Schema == "public" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

const maxTables = 300

const tablesSQL = `
SELECT t.relid, t.schemaname::text, t.relname::text, coalesce(t.n_live_tup, 0), coalesce(t.n_dead_tup, 0), coalesce(t.n_tup_ins, 0), coalesce(t.n_tup_upd, 0),
       coalesce(t.n_tup_del, 0), coalesce(t.idx_scan, 0), coalesce(t.seq_scan, 0), coalesce(t.seq_tup_read, 0), greatest(t.last_vacuum, t.last_autovacuum)
FROM pg_stat_user_tables t
WHERE t.n_dead_tup > 0 OR t.n_tup_ins + t.n_tup_upd + t.n_tup_del > 0 OR t.idx_scan > 0 OR t.seq_scan > 0
ORDER BY t.n_dead_tup + t.n_tup_ins + t.n_tup_upd + t.n_tup_del + coalesce(t.seq_tup_read, 0) / 100 DESC LIMIT $1`

// statementKey is one statement of pg_stat_statements.
type statementKey struct {
	User, Database uint32
	Query          int64
}

type statementCount struct {
	Calls, Rows int64
	Time        float64 // ms
}

const maxStatements = 10000

// statementsSQL omits the texts: they are in a file that is always read completely.
const statementsSQL = `
SELECT s.userid, s.dbid, s.queryid, sum(s.calls)::bigint, sum(s.rows)::bigint, sum(s.total_exec_time)::float8
FROM %s.pg_stat_statements(false) s WHERE s.queryid IS NOT NULL AND s.dbid = $2 GROUP BY 1, 2, 3 LIMIT $1`

// readCounters reads the counters once. A part that cannot be read is empty, and in what failed.
func readCounters(ctx context.Context, s *session, server Server) (*counters, []unread) {
	var failed []unread
	c := &counters{At: s.now(), Own: recall(s.tape, "own statements", s.meter.statements.Load), Tables: map[uint32]tableCount{}, Statements: map[statementKey]statementCount{}}
	var err error
	if c.totals, err = one[totals](ctx, s, countersSQL); err != nil {
		failed = append(failed, unread{ofTotals, fmt.Errorf("the server's counters: %w", err)})
	}
	if c.extra, err = readExtra(ctx, s, server); err != nil {
		failed = append(failed, unread{ofExtra, err})
	}
	tables, err := list[tableCount](ctx, s, tablesSQL, maxTables)
	if err != nil {
		failed = append(failed, unread{ofTables, fmt.Errorf("the counters of tables: %w", err)})
	}
	for _, t := range tables {
		c.Tables[t.OID] = t
	}
	if server.Statements {
		type statementRow struct {
			User, Database     uint32
			Query, Calls, Rows int64
			Time               float64
		}
		statements, err := list[statementRow](ctx, s, fmt.Sprintf(statementsSQL, server.statementsSchema), maxStatements, server.databaseOID)
		if err != nil {
			failed = append(failed, unread{ofStatements, fmt.Errorf("pg_stat_statements: %w", err)})
		}
		for _, r := range statements {
			c.Statements[statementKey{r.User, r.Database, r.Query}] = statementCount{r.Calls, r.Rows, r.Time}
		}
	}
	if server.Weir {
		if c.Queues, c.queuesErr = readQueues(ctx, s); c.queuesErr != nil && !notPermitted(c.queuesErr) {
			failed = append(failed, unread{ofQueues, fmt.Errorf("read Weir's queues: %w", c.queuesErr)})
		}
	}
	return c, failed
}
