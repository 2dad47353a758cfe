package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	deadlocksMany  = 2
	deadlocksStand = 0.4 // deadlocks at any moment, from which on the lines at rows are theirs
)

// checkDeadlocks reports deadlocks: in each, sessions have waited for deadlock_timeout, and one of them has lost its transaction.
func checkDeadlocks(ctx context.Context, l *inspection) (result, error) {
	n := l.grown(func(c *counters) int64 { return c.Deadlocks })
	if n == 0 {
		return healthy("No deadlocks in %s.", span(l.span()))
	}
	timeouts, err := scalars[float64](ctx, l.session, "SELECT p.setting::float8 / 1000 FROM pg_settings p WHERE p.name = 'deadlock_timeout'")
	if err != nil {
		return result{}, err
	}
	severity := Info
	if n >= deadlocksMany {
		severity = Warning
	}
	f := l.finding(Deadlocks, severity, per(2*float64(n)*timeouts[0], l.span()), l.view.seen(RowLock, OtherLock))
	// While one stands, all that come to its rows queue up behind it.
	f.stands = per(float64(n)*timeouts[0], l.span())
	for _, hot := range l.findings {
		if f.stands >= deadlocksStand && hot.Code == HotRow && n >= deadlocksMany && f.Severity.rank() < hot.Severity.rank() {
			f.Severity, f.Lost = hot.Severity, max(f.Lost, hot.Lost)
		}
	}
	f.Summary = fmt.Sprintf("%s in %s: in each, a transaction was rolled back after it had waited for %s.", many(n, "deadlock"), span(l.span()), span(seconds(timeouts[0])))
	if f.stands >= deadlocksStand {
		f.add("", "there was one for %s of the time, and whoever came to its rows waited behind it", shareOf(min(f.stands, 1), 1))
	}
	f.add("SELECT datname, deadlocks FROM pg_stat_database -- twice", "%s, all databases", many(n, "deadlock"))
	statements := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if s.Class == RowLock || s.Class == OtherLock {
			statements[shape(s.Query)]++
		}
	})
	f.addStatements("", "statements that waited for locks", WaitsForIt, statements)
	f.add("", "the server's log has the statements of both sides of each")
	f.Now = "Let all transactions change rows in the same order, such as that of their keys: SELECT … ORDER BY id FOR UPDATE first."
	f.ForGood = "Retry transactions that fail with SQLSTATE 40P01, and keep them short."
	return found(f)
}

const (
	tempRate  = 10 << 20 // bytes per second, below which temporary files are no matter
	tempFiles = 5.0      // per second, of more than one session: not one report, but many statements
)

type workMemory struct{ Work, Times, Others string }

// workMemorySQL reads work_mem, and some of those for whom it is another.
const workMemorySQL = `
SELECT coalesce((SELECT pg_size_pretty(p.reset_val::bigint * 1024) FROM pg_settings p WHERE p.name = 'work_mem'), ''), current_setting('hash_mem_multiplier'),
       coalesce((SELECT string_agg(o.text, '; ' ORDER BY o.text) FROM (
         SELECT coalesce('role ' || r.rolname, 'all roles') || coalesce(' in database ' || d.datname, '') || ': ' || c.setting AS text
         FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) c(setting) LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
         WHERE c.setting LIKE 'work\_mem=%' ORDER BY 1 LIMIT 5) o), '')`

// checkTempFiles reports sorts and hashes that don't fit into work_mem.
func checkTempFiles(ctx context.Context, l *inspection) (result, error) {
	files := per(float64(l.grown(func(c *counters) int64 { return c.TempFiles })), l.span())
	written := per(float64(l.grown(func(c *counters) int64 { return c.TempBytes })), l.span())
	waits, statements, working := 0.0, map[string]int{}, map[uint32]bool{}
	l.view.each(func(s Session, weight float64) {
		if s.State == "active" && s.Kind == "client backend" {
			working[s.PID] = true
		}
		if s.WaitType == "IO" && strings.HasPrefix(strings.ToLower(s.Wait), "buffile") {
			waits += per(weight, l.view.duration())
			statements[shape(s.Query)]++
		}
	})
	if written < tempRate {
		return healthy("Few sorts and hashes need more than work_mem (%s of temporary files a second).", bytes(written))
	}
	severity := Info
	if files >= tempFiles && len(working) > 1 {
		severity = Warning
	}
	f := l.finding(TempFiles, severity, waits, len(l.view.samples))
	f.Summary = fmt.Sprintf("Sorts and hashes don't fit into work_mem: %s temporary files a second, of %s in all.", figure(files), bytes(written))
	f.add("SELECT datname, temp_files, temp_bytes FROM pg_stat_database -- twice", "%s files and %s a second, all databases", figure(files), bytes(written))
	memory, err := one[workMemory](ctx, l.session, workMemorySQL)
	if err != nil {
		return result{}, fmt.Errorf("the size of work_mem: %w", err)
	}
	f.add("SHOW work_mem", "work_mem is %s, times hash_mem_multiplier (%s) for hashes", memory.Work, memory.Times)
	if memory.Others != "" {
		f.add("SELECT setdatabase::regdatabase, setrole::regrole, setconfig FROM pg_db_role_setting", "some have another: %s", memory.Others)
	}
	f.addStatements("", "statements that waited for these files", CausesIt, statements)
	f.Now = "Have the server's log name the statements for a while: ALTER SYSTEM SET log_temp_files = 0; SELECT pg_reload_conf(); and afterwards ALTER SYSTEM RESET log_temp_files; SELECT pg_reload_conf(); where EXPLAIN (ANALYZE) says Disk, SET work_mem for their role, and maintenance_work_mem for CREATE INDEX."
	f.ForGood = "Give reports a role with a larger work_mem rather than all sessions, and read rows in the order of an index where that saves a sort."
	return found(f)
}

const manyRequested = 2

// checkCheckpoints reports checkpoints that come early because max_wal_size is reached. Those that somebody requests with CHECKPOINT write little WAL
// in between.
func checkCheckpoints(ctx context.Context, l *inspection) (result, error) {
	if l.server.Standby {
		return result{}, nil
	}
	n := l.grown(func(c *counters) int64 { return c.Requested })
	settings, err := scalars[float64](ctx, l.session, "SELECT p.setting::float8 * 1024 * 1024 FROM pg_settings p WHERE p.name = 'max_wal_size'")
	if err != nil {
		return result{}, err
	}
	limit := settings[0]
	if n == 0 || l.last.WAL-l.first.WAL < float64(n)*limit/4 {
		return healthy("Checkpoints are not forced: %s of WAL a second, with max_wal_size %s.", bytes(l.wal()), bytes(limit))
	}
	severity := Info
	if n >= manyRequested {
		severity = Warning
	}
	f := l.finding(CheckpointsForced, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("The WAL forces a checkpoint every %s: each writes all changed pages, and each first change of a page after it writes the whole page to the WAL.",
		span(l.span()/time.Duration(n)))
	view := "checkpoints_req, checkpoints_timed FROM pg_stat_bgwriter"
	if l.server.VersionNum >= checkpointerView {
		view = "num_requested, num_timed FROM pg_stat_checkpointer"
	}
	f.add("SELECT "+view+" -- twice", "%s in %s; since the statistics were reset %s of %s", many(n, "forced checkpoint"), span(l.span()),
		figure(float64(l.last.Requested)), many(l.last.Requested+l.last.Timed, "checkpoint"))
	f.add("SHOW max_wal_size", "%s of WAL a second, with max_wal_size %s", bytes(l.wal()), bytes(limit))
	minutes := 15 * time.Minute
	f.Now = fmt.Sprintf("Raise max_wal_size: at this rate %s are written in %s.", bytes(l.wal()*minutes.Seconds()), span(minutes))
	f.ForGood = "Set checkpoint_timeout to 15 minutes or more and max_wal_size to what is written meanwhile; wal_compression shrinks whole pages."
	return found(f)
}

const (
	subtransSome = 1_000.0  // look-ups per second
	subtransMany = 20_000.0 //
	// Until 15 no view shows which sessions have too many.
	subtransactionView = 160000
	seeSubtrans        = `SELECT a.pid, s.* FROM pg_stat_get_backend_idset() b, pg_stat_get_backend_subxact(b) s JOIN pg_stat_activity a ON a.pid = pg_stat_get_backend_pid(b)`
)

const overflowedSQL = `
SELECT pg_stat_get_backend_pid(b.id), s.subxact_count::bigint, s.subxact_overflowed,
       coalesce(pg_stat_get_backend_wait_event_type(b.id) || ':' || pg_stat_get_backend_wait_event(b.id), ''), coalesce(left(pg_stat_get_backend_activity(b.id), $1), '')
FROM pg_stat_get_backend_idset() b(id) CROSS JOIN LATERAL pg_stat_get_backend_subxact(b.id) s
WHERE s.subxact_overflowed OR s.subxact_count > 32 ORDER BY 3 DESC, 2 DESC LIMIT 5`

// checkSubtransactions detects a transaction with more than 64 subtransactions. Snapshots have no room for more of them, so every session that meets a row
// of a running transaction must look in the log of subtransactions who its parent is.
func checkSubtransactions(ctx context.Context, l *inspection) (result, error) {
	reads := l.rate(func(c *counters) int64 { return c.SubtransReads })
	isSubtrans := func(s Session) bool {
		return s.WaitType == "LWLock" && strings.HasPrefix(strings.ToLower(s.Wait), "subtrans")
	}
	lost := 0.0
	l.view.each(func(s Session, weight float64) {
		if isSubtrans(s) {
			lost += per(weight, l.view.duration())
		}
	})
	if reads < subtransSome && lost < noticeable {
		return healthy("Snapshots have room for all subtransactions (%s look-ups of their parents a second).", figure(reads))
	}
	if lost < noticeable {
		serializable, err := scalars[bool](ctx, l.session, `SELECT EXISTS (SELECT FROM pg_lock_status() k WHERE k.mode = 'SIReadLock')`)
		if err != nil {
			return result{}, fmt.Errorf("whether transactions are serializable: %w", err)
		}
		// These look up the parent of each transaction whose rows they meet, whether or not it has subtransactions.
		if slices.Contains(serializable, true) {
			return healthy("No session waits for the log of subtransactions (%s look-ups of parents a second, which SERIALIZABLE transactions make).", figure(reads))
		}
	}
	severity := grade(lost)
	if severity == Info && reads >= subtransMany {
		severity = Warning
	}
	f := l.finding(SubtransactionOverflow, severity, lost, l.seenBy(isSubtrans))
	f.Summary = fmt.Sprintf("A transaction has more than 64 subtransactions, so other sessions look up %s parents of subtransactions a second.", figure(reads))
	f.add(`SELECT name, blks_hit, blks_read FROM pg_stat_slru WHERE name ILIKE 'subtrans%' -- twice`, "%s pages of the log of subtransactions looked up per second", figure(reads))
	if lost > 0 {
		f.add(seeWaits, "%s for it on average", sessionsThat(lost, "waits", "wait"))
	}
	f.Now = "Commit the transactions with many savepoints earlier, or end them."
	type row struct {
		PID        int32
		Count      int64
		Overflowed bool
		Wait       string
		Query      string `text:"statement"`
	}
	if l.server.VersionNum >= subtransactionView {
		rows, err := list[row](ctx, l.session, overflowedSQL, queryLength)
		if err != nil {
			return result{}, err
		}
		for i, r := range rows {
			has := fmt.Sprintf("has %d subtransactions", r.Count)
			if r.Overflowed {
				has = fmt.Sprintf("has more than the %d subtransactions that a snapshot has room for", r.Count) // further ones are not counted
			}
			f.add(seeSubtrans, "pid %d %s: %s", r.PID, has, shape(r.Query))
			f.names(CausesIt, r.Query)
			switch {
			case i > 0:
			case r.Wait == standbyWait.String():
				f.Now = leaveCommit(uint32(r.PID))
			default:
				f.Now = fmt.Sprintf("Let pid %d commit, or end it: SELECT pg_terminate_backend(%d);", r.PID, r.PID)
			}
		}
	} else if s, ok := l.oldestWriter(); ok {
		f.add(`SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start`,
			"before PostgreSQL 16 no view shows whose they are; the longest transaction that writes is that of pid %d, for %s: %s", s.PID, span(seconds(s.Age)), shape(s.Query))
		f.names(CausesIt, s.Query)
	}
	f.ForGood = "Use no savepoint per row: drivers and ORMs make one for each statement or nested block, and PL/pgSQL one for each block with EXCEPTION. " +
		"INSERT … ON CONFLICT, or checks before the change, need none."
	return found(f)
}

// oldestWriter returns the session of the newest sample whose writing transaction is the oldest.
func (l *inspection) oldestWriter() (Session, bool) {
	if len(l.view.samples) == 0 {
		return Session{}, false
	}
	sessions := l.view.samples[len(l.view.samples)-1].Sessions
	writers := slices.DeleteFunc(slices.Clone(sessions), func(s Session) bool { return !s.HasXID })
	if len(writers) == 0 {
		return Session{}, false
	}
	return slices.MaxFunc(writers, func(a, b Session) int { return cmp.Compare(a.Age, b.Age) }), true
}
