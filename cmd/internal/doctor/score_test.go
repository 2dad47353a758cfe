package doctor_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// scene is a load and what the doctor must say of it: all of want, with at least this severity. If several are wanted, the first finding must be one of them.
type scene struct {
	name  string
	start func(t *testing.T) (url string)
	want  []doctor.Code // none: a healthy load
	least doctor.Severity
	or    doctor.Code // found instead, or as well
	also  doctor.Code // right too, but not enough
	stood bool        // its sessions stand still and cost nothing, so that others may run beside it
}

func scenes() []scene {
	one := func(c doctor.Code) []doctor.Code { return []doctor.Code{c} }
	tree := []doctor.Code{doctor.MultiXactContention, doctor.HotRow, doctor.ChattyStatements}
	return []scene{
		{"the lab's notify, 24 clients", ofTheLab(lab.LoadConfig{Scenario: "notify", Clients: 24}, nil), one(doctor.NotifyCommitLock), doctor.Critical, "", "", false},
		{"the same, with a flush of 2 ms", ofTheLab(lab.LoadConfig{Scenario: "notify", Clients: 24, SlowFlush: true}, map[string]string{"fsync": "on"}), one(doctor.NotifyCommitLock), doctor.Critical, "", "", false},
		{"the lab's listeners, 100", ofTheLab(lab.LoadConfig{Scenario: "listeners", Clients: 100}, nil), one(doctor.ListenersWoken), doctor.Warning, "", "", false},
		{"the lab's storm", ofTheLab(lab.LoadConfig{Scenario: "storm"}, nil), one(doctor.PostmasterSaturated), doctor.Warning, "", "", false},
		{"the lab's tree", ofTheLab(lab.LoadConfig{Scenario: "tree"}, slowDisk()), tree, doctor.Info, "", "", false},
		{"the lab's pinned, by a snapshot", ofTheLab(lab.LoadConfig{Scenario: "pinned", Pin: "read"}, nil), one(doctor.HorizonPinned), doctor.Warning, "", "", false},
		{"the lab's pinned, by an xid", ofTheLab(lab.LoadConfig{Scenario: "pinned", Pin: "write"}, nil), one(doctor.HorizonPinned), doctor.Warning, "", "", false},
		{"8 sessions update one row", hotRowLoad, one(doctor.HotRow), doctor.Critical, "", "", false},
		{"an ALTER TABLE behind a reader", tableLockLoad, one(doctor.TableLock), doctor.Critical, "", "", true},
		{"a queue for an advisory lock", advisoryLoad, one(doctor.AdvisoryLock), doctor.Critical, "", "", true},
		{"64 partitions, none pruned", partitionsLoad, one(doctor.LockManager), doctor.Warning, "", "", false},
		{"the synchronous standby is gone", standbyGoneLoad, one(doctor.SyncReplicationStalled), doctor.Critical, "", "", true},
		{"a query on a standby holds its replay up", replayLoad, one(doctor.ReplayStalled), doctor.Warning, "", "", true},
		{"an idle transaction holds a row", idleBlockerLoad, one(doctor.IdleBlocker), doctor.Warning, "", "", true},
		{"an index is built behind a reader", unexplainedLoad, one(doctor.WaitsUnexplained), doctor.Warning, "", "", true},
		{"inserts of rows that exist", conflictsLoad, one(doctor.ChattyStatements), doctor.Info, "", "", false},
		{"a commit per row, with a flush of 2 ms", rowCommitsLoad, one(doctor.RowCommits), doctor.Warning, "", "", false},
		{"1 of 17 connections is left", fullLoad, one(doctor.ConnectionsExhausted), doctor.Warning, "", "", true},
		{"a connection per transaction", connectingLoad, one(doctor.ConnectionChurn), doctor.Info, doctor.PostmasterSaturated, "", false},
		{"parallel queries of a millisecond", parallelLoad, one(doctor.ParallelChurn), doctor.Info, doctor.PostmasterSaturated, "", false},
		{"a forgotten slot", slotLoad, one(doctor.SlotHoldsWAL), doctor.Warning, "", "", true},
		{"a forgotten prepared transaction", wraparoundLoad, one(doctor.WraparoundNear), doctor.Warning, "", "", true},
		{"an integer column runs out of numbers", sequenceLoad, one(doctor.SequenceNearEnd), doctor.Warning, "", "", true},
		{"autovacuum is off for a table", autovacuumOffLoad, one(doctor.AutovacuumBehind), doctor.Warning, "", "", false},
		{"an index is missing", missingIndexLoad, one(doctor.TableScanned), doctor.Warning, "", "", false},
		{"a foreign key without an index", unindexedKeyLoad, one(doctor.TableScanned), doctor.Warning, "", "", false},
		{"deadlocks", deadlocksLoad, one(doctor.Deadlocks), doctor.Warning, "", "", true},
		{"sorts in files", tempFilesLoad, one(doctor.TempFiles), doctor.Warning, "", "", false},
		{"max_wal_size is too small", checkpointsLoad, one(doctor.CheckpointsForced), doctor.Info, "", "", false},
		{"90 savepoints in one transaction", subtransactionsLoad, one(doctor.SubtransactionOverflow), doctor.Info, "", doctor.HorizonPinned, false},
		{"Weir, compiled at each call", compiledLoad, one(doctor.WeirSlow), doctor.Warning, "", "", false},
		{"a killed worker of Weir", deadWorkerLoad, one(doctor.WorkerDead), doctor.Warning, "", "", true},
		{"a queue of Weir without workers", backlogLoad, one(doctor.LaneBacklog), doctor.Warning, "", "", true},

		{"healthy: TPC-B, 8 clients", bankLoad, nil, "", "", "", false},
		{"healthy: single-row selects, 8 clients", selectLoad, nil, "", "", "", false},
		{"healthy: single rows of 8 clients", singleRowsLoad, nil, "", "", "", false},
		{"healthy: a batch load", batchLoad, nil, "", "", "", false},
		{"healthy: an analytics query", reportLoad, nil, "", "", "", false},
		{"healthy: 500 idle connections", manyIdleLoad, nil, "", "", "", false},
		{"healthy: Weir at work, all cores busy", busyCoresLoad, nil, "", "", "", false},
		{"healthy: an idle server", idleLoad, nil, "", "", "", true},
	}
}

// compiledLoad is a server with JIT, on which Weir's functions have lost the setting that keeps their plans from being compiled on each call.
func compiledLoad(t *testing.T) string {
	if os.Getenv("WEIR_POSTGRES") == "" {
		t.Skip("only a distribution's server has JIT")
	}
	url := pgtest.JIT(t, nil).URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, `DO $$ DECLARE f regprocedure; BEGIN
		FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND p.prokind = 'f' LOOP EXECUTE format('ALTER FUNCTION %s RESET jit', f); END LOOP; END $$`,
		`SELECT weir.enqueue('q', 'k') FROM generate_series(1, 500)`)
	const worker = `SELECT weir._start('slow', ARRAY['q'])`
	execute(t, conn, worker, worker)
	runSessions(t, url, 2, repeat(`SELECT * FROM weir._claim((SELECT array_agg(w.id ORDER BY w.id) FROM weir.workers() w)[$1::int + 1], ARRAY['q'], ARRAY[1])`))
	return url
}

const (
	scoreRounds = 2 // examinations of each load on each server
	scoreBeside = 5 // loads of sessions that stand still, at the same time
)

// scoreFor returns how long the doctor runs each time.
func scoreFor(t *testing.T) time.Duration {
	text := os.Getenv("WEIR_SCORE_FOR")
	if text == "" {
		t.Skip("it takes minutes: WEIR_TEST_ALONE=1 WEIR_SCORE_FOR=2s has it run")
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("WEIR_SCORE_FOR: %v", err)
	}
	return d
}

// scored is what the doctor has said of a load, on one server or on all.
type scored struct {
	runs, right, missed, alarms int
	wrong                       []string // false alarms
}

func (s *scored) add(o scored) {
	s.runs, s.right, s.missed, s.alarms = s.runs+o.runs, s.right+o.right, s.missed+o.missed, s.alarms+o.alarms
	for _, w := range o.wrong {
		if !slices.Contains(s.wrong, w) {
			s.wrong = append(s.wrong, w)
		}
	}
}

// TestTheRightCauseIsNamedUnderEachLoad: the doctor names the right cause of each load that it should recognize, and nothing on healthy ones, on the newest
// server; with WEIR_SCORE_ALL=1 on a distribution's, if one is installed, and on all older ones, too. It prints the table of docs/findings/README.md.
func TestTheRightCauseIsNamedUnderEachLoad(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	looking, begin := scoreFor(t), time.Now()
	servers := []map[string]string{{"WEIR_POSTGRES": "", "WEIR_TEST_PG_MAJOR": ""}}
	if os.Getenv("WEIR_SCORE_ALL") != "" {
		if installed := embedded.Installed(); len(installed) > 0 {
			servers = append(servers, map[string]string{"WEIR_POSTGRES": installed[0], "WEIR_TEST_PG_MAJOR": ""})
		}
		for _, major := range []string{"17", "16", "15", "14"} {
			servers = append(servers, map[string]string{"WEIR_POSTGRES": "", "WEIR_TEST_PG_MAJOR": major})
		}
	}
	all := scenes()
	results := make([][]scored, len(all)) // by scene and server
	for i := range results {
		results[i] = make([]scored, len(servers))
	}
	versions := make([]string, len(servers))
	for n, environment := range servers {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for name, value := range environment {
				t.Setenv(name, value)
			}
			_, conn := serverFor(t, nil)
			if err := conn.QueryRow(t.Context(), "SELECT split_part(current_setting('server_version'), ' ', 1)").Scan(&versions[n]); err != nil {
				t.Fatal(err)
			}
			var beside sync.WaitGroup
			slots := make(chan struct{}, scoreBeside)
			for i, s := range all {
				if !s.stood {
					continue
				}
				beside.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					results[i][n] = s.run(t, looking)
				})
			}
			beside.Wait()
			for i, s := range all {
				if !s.stood {
					results[i][n] = s.run(t, looking)
				}
			}
		})
	}
	t.Logf("\n%s\nexaminations of %s each, in %s", table(all, results, versions), looking, time.Since(begin).Round(time.Second))
}

// run starts the load on a server and examines it. It fails only if no examination is right: on a busy machine a load may not do what it is for, and in so short
// a time few samples are taken. So if all were wrong, as many longer ones follow, which count like the others.
func (s scene) run(t *testing.T, looking time.Duration) (of scored) {
	t.Run(s.name, func(t *testing.T) {
		url := s.start(t)
		var last doctor.Report
		for round := range 2 * scoreRounds {
			if round == scoreRounds {
				if of.right > 0 {
					break
				}
				looking *= 2
			}
			last = examine(t, url, looking)
			missed, alarms := s.judge(last)
			of.add(scored{runs: 1, missed: min(1, len(missed)), alarms: min(1, len(alarms)), wrong: alarms})
			if len(missed)+len(alarms) == 0 {
				of.right++
			} else {
				t.Logf("missed %v, false alarms %v:\n%s", missed, alarms, describe(last))
			}
		}
		if of.right == 0 {
			t.Errorf("none of %d examinations is right", of.runs)
		}
	})
	return of
}

// judge compares findings with the expected ones. A false alarm is another critical finding or another first one; of a healthy load, any above info.
func (s scene) judge(r doctor.Report) (missed, alarms []string) {
	_, instead := r.Find(s.or)
	for _, code := range s.want {
		if f, ok := r.Find(code); (!ok || rank(f.Severity) < rank(s.least)) && !instead {
			missed = append(missed, string(code))
		}
	}
	bound := doctor.Critical
	if len(s.want) == 0 {
		bound = doctor.Warning
	}
	for i, f := range r.Findings {
		if slices.Contains(s.want, f.Code) || f.Code == s.or || f.Code == s.also {
			continue
		}
		if rank(f.Severity) >= rank(bound) || i == 0 && len(s.want) > 0 && rank(f.Severity) >= rank(doctor.Warning) {
			alarms = append(alarms, string(f.Code))
		}
	}
	return missed, alarms
}

// table returns the score as Markdown, as docs/findings/README.md has it.
func table(all []scene, results [][]scored, versions []string) string {
	var b strings.Builder
	b.WriteString("| load | finding |")
	for _, v := range versions {
		b.WriteString(" right on " + v + " |")
	}
	b.WriteString(" missed | false alarms |\n|---|---|" + strings.Repeat("---|", len(versions)+2) + "\n")
	var sum [2]scored // troubles, healthy
	for i, s := range all {
		codes := make([]string, len(s.want))
		for i, code := range s.want {
			codes[i] = fmt.Sprintf("[%[1]s](%[1]s.md)", code)
		}
		if s.or != "" {
			codes[0] += fmt.Sprintf(", or [%[1]s](%[1]s.md)", s.or)
		}
		if len(codes) == 0 {
			codes = []string{"none above info"}
		}
		fmt.Fprintf(&b, "| %s | %s |", s.name, strings.Join(codes, ", "))
		var whole scored
		for _, r := range results[i] {
			fmt.Fprintf(&b, " %s |", of(r.right, r.runs))
			whole.add(r)
		}
		alarms := fmt.Sprint(whole.alarms)
		if len(whole.wrong) > 0 {
			alarms += " (" + strings.Join(whole.wrong, ", ") + ")"
		}
		missed := fmt.Sprint(whole.missed)
		kind := 0
		if len(s.want) == 0 {
			missed, kind = "", 1
		}
		sum[kind].add(whole)
		fmt.Fprintf(&b, " %s | %s |\n", missed, alarms)
	}
	fmt.Fprintf(&b, "\nOf %d examinations under a load with troubles, %s named the right finding and nothing wrong; %d missed it, and %d named a wrong one. Of %d under a healthy load, %s were free of alarms.",
		sum[0].runs, percentage(sum[0].right, sum[0].runs), sum[0].missed, sum[0].alarms, sum[1].runs, percentage(sum[1].right, sum[1].runs))
	return b.String()
}

func of(n, all int) string {
	if all == 0 {
		return "not run"
	}
	return fmt.Sprintf("%d of %d", n, all)
}

func percentage(n, all int) string {
	return fmt.Sprintf("%d (%.1f%%)", n, 100*float64(n)/float64(max(all, 1)))
}

// load runs a scenario until the end of the test.
func load(t *testing.T, c lab.LoadConfig) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	c.Ready = func() { close(ready) }
	end := preferClients()
	go func() { done <- lab.Load(ctx, c) }() // the test's end waits for it
	t.Cleanup(func() {
		defer end()
		cancel()
		if err := pgtest.Receive(t, done, "the load has ended"); err != nil {
			t.Errorf("the load of %s: %v", c.Scenario, err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the load of %s did not start: %v", c.Scenario, err)
	}
}
