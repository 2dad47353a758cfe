package proof

import (
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// eventually polls until a condition holds, for much longer than it should take.
func (w *torture) eventually(what string, is func() (bool, string)) {
	bound := 4*patience + 2**longFlag // the longer the run, the more is left behind: lost workers, and jobs that wait for their slots
	end := time.NewTimer(bound)
	defer end.Stop()
	for every := time.NewTicker(50 * time.Millisecond); ; {
		done, now := is()
		if done {
			every.Stop()
			return
		}
		select {
		case <-every.C:
		case <-end.C:
			w.Fatalf("waited %v in vain: %s: %s", bound, what, now)
		}
	}
}

// findNone reports what queries find that must not be, each by what it is.
func (w *torture) findNone(conn *pgx.Conn, faults map[string]string) {
	for what, sql := range faults {
		if found := column[string](w.T, conn, sql); len(found) > 0 {
			w.Errorf("%[3]s: %[1]d, such as %[2]s", len(found), strings.Join(found[:min(len(found), 5)], ", "), what)
		}
	}
}

// untilDone waits until no job is left to do, and no flow is open.
func (w *torture) untilDone(conn *pgx.Conn) {
	w.eventually("no job is left to do", func() (bool, string) {
		// All states are read with one snapshot: a job that changes its state between two snapshots would be in neither list.
		var left, flows string
		err := pgx.BeginTxFunc(w.ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			if err := tx.QueryRow(w.ctx, flowsLeft).Scan(&flows); err != nil {
				return err
			}
			return tx.QueryRow(w.ctx, `SELECT format('%s scheduled, %s available, %s running',
				(SELECT count(*) FROM weir.jobs('scheduled', max_rows => 1000)), (SELECT count(*) FROM weir.jobs('available', max_rows => 1000)),
				(SELECT count(*) FROM weir.jobs('running', max_rows => 1000)))`).Scan(&left)
		})
		if err != nil { // a serialization failure: a segment was reclaimed
			return false, err.Error()
		}
		if left == "0 scheduled, 0 available, 0 running" {
			return flows == "", flows
		}
		some := column[string](w.T, conn, `SELECT j::text FROM weir.jobs('scheduled', max_rows => 3) j UNION ALL SELECT j::text FROM weir.jobs('available', max_rows => 3) j UNION ALL SELECT j::text FROM weir.jobs('running', max_rows => 3) j`)
		return false, left + ": " + strings.Join(some, "\n") + column[string](w.T, conn, `SELECT coalesce(string_agg(p::text, E'\n'), '') FROM (SELECT * FROM weir.promotion ORDER BY seq DESC LIMIT 2) p`)[0] +
			strings.Join(column[string](w.T, conn, `SELECT l::text FROM weir.later l WHERE id IN (SELECT id FROM weir.jobs('scheduled', max_rows => 3))`), "\n")
	})
}

// judgeJobs compares the database with what producers and workers know. The jobs have ended.
func (w *torture) judgeJobs() {
	conn := connect(w.T, w.server.URL("postgres"))
	w.findNone(conn, map[string]string{
		"was committed and survived, but never completed": `SELECT format('job %s (%s)', p.id, p.key) FROM produced p WHERE NOT EXISTS (SELECT FROM ended e WHERE e.id = p.id AND e.outcome = 'completed')`,
		"has ended, but was never enqueued": `SELECT format('job %s', e.id) FROM ended e WHERE NOT EXISTS (SELECT FROM produced p WHERE p.id = e.id) AND NOT EXISTS (SELECT FROM promised p WHERE p.id = e.id)
			AND NOT EXISTS (SELECT FROM fired f WHERE f.job = e.id) AND NOT EXISTS (SELECT FROM flow_member m WHERE m.id = e.id)`,
		"ended twice in one batch": `SELECT format('job %s of batch %s of lane %s', id, seq, lane) FROM ended GROUP BY lane, seq, id HAVING count(*) > 1`,
		"ended for good more than once": `SELECT format('job %s', id) FROM ended e WHERE outcome IN ('completed', 'failed', 'cancelled')
			AND NOT EXISTS (SELECT FROM promised p WHERE p.id = e.id AND p.what = 'dud') AND NOT EXISTS (SELECT FROM flow_member m WHERE m.id = e.id AND m.kind <> 'torn') GROUP BY id HAVING count(*) > 1`,
		"should have one effect if it completes in a transaction": `SELECT format('job %s (%s)', id, key) FROM produced p WHERE tx AND (SELECT count(*) FROM effect e WHERE e.key = p.key) <> 1`,
		"has an effect, but is not a job with an effect":          `SELECT key FROM effect e WHERE NOT EXISTS (SELECT FROM produced p WHERE p.key = e.key AND p.tx)`,
		"was enqueued twice, or shares its id with another":       `SELECT format('job %s', id) FROM produced GROUP BY id HAVING count(*) > 1`,
	})
	produced := column[string](w.T, conn, `SELECT key FROM produced`)
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	for _, key := range produced {
		if w.ran[key] == 0 {
			w.Errorf("job %s was committed but never run", key)
		}
	}
	lost := w.compare(produced, func(key string) bool { return key[0] != 'm' })
	for key := range w.ran {
		if f := w.fates[key]; f == nil || f.fate == rolledBack {
			w.Errorf("job %s was run, but its transaction is unknown or was rolled back", key)
		}
	}
	w.Logf("%d jobs, %d with an effect, %d runs, %d results; %d acknowledged commits; %d jobs lost in failovers; running without a worker for at most %v, and two leases are %v",
		len(produced), value[int](w.T, conn, `SELECT count(*)::integer FROM effect`), total(w.ran), value[int](w.T, conn, `SELECT count(*)::integer FROM ended`),
		w.acked.Load(), lost, w.longest.Round(time.Millisecond), 2*w.lease)
	w.Logf("%d faults: %v", total(w.done), w.done)
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// compare checks that what producers committed exists. An acknowledged commit may be missing only if a failover lost its life of the log from some
// position on, and the commit may be behind that position: its producer recorded the WAL position after the commit. The commit of a role that
// commits asynchronously may also be lost in a crash. The caller holds the ledger's lock.
func (w *torture) compare(there []string, such func(string) bool) (lost int) {
	is := map[string]bool{}
	for _, key := range there {
		is[key] = true
		if f := w.fates[key]; f == nil || f.fate == rolledBack {
			w.Errorf("%s exists, but its transaction is unknown or was rolled back", key)
		}
	}
	for key, f := range w.fates {
		if !such(key) || is[key] || f.fate != committed || f.weak {
			continue
		}
		if int(f.life) >= len(w.lives) || f.lsn != 0 && f.lsn <= w.lives[f.life] {
			w.Errorf("%s was acknowledged in life %d of the log at %d, but is lost, although the lives of the log survived up to %v", key, f.life, f.lsn, w.lives)
		}
		lost++
	}
	return lost
}

// judgeMessages publishes one more message, waits until every subscription has received it, and compares what each received with the log.
func (w *torture) judgeMessages() {
	conn := connect(w.T, w.server.URL("postgres"))
	w.ledger.mu.Lock()
	w.fates["mlast"] = &txRecord{fate: committed, life: w.life.Load()}
	w.ledger.mu.Unlock()
	w.everybodyHears(conn, "mlast")

	// all is the log, in its order.
	type logged struct {
		at      weir.Position
		channel string
		key     string
	}
	var all []logged
	last := w.first
	for {
		var seqs, epochs []int64
		if err := conn.QueryRow(w.ctx, `SELECT seqs, epochs FROM weir._await_tick($1)`, last).Scan(&seqs, &epochs); err != nil {
			w.Fatal(err)
		}
		if len(seqs) == 0 {
			break
		}
		for i, seq := range seqs {
			rows, err := conn.Query(w.ctx, `SELECT channel, convert_from(payload, 'UTF8') FROM weir.read($1)`, seq)
			if err != nil {
				w.Fatal(err)
			}
			n, l := 0, logged{}
			if _, err := pgx.ForEachRow(rows, []any{&l.channel, &l.key}, func() error {
				n++
				l.at = weir.Position(itoa(epochs[i]) + "." + itoa(seq) + "." + itoa(int64(n)))
				all = append(all, l)
				return nil
			}); err != nil {
				w.Fatal(err)
			}
			last = seq
		}
	}
	var keys []string
	for _, l := range all {
		keys = append(keys, l.key)
	}
	w.ledger.mu.Lock()
	lost := w.compare(keys, func(key string) bool { return key[0] == 'm' })
	w.ledger.mu.Unlock()
	if slices.Sort(keys); len(slices.Compact(keys)) != len(all) {
		w.Error("the log contains a message twice")
	}

	delivered, gaps, beyond := 0, 0, 0
	w.inbox.mu.Lock()
	defer w.inbox.mu.Unlock()
	for i, h := range w.on {
		place := map[weir.Position]int{} // index of each message for this subscription
		var keys []string
		for _, l := range all {
			if slices.ContainsFunc(h.channels, func(c string) bool { return covers(c, l.channel) }) {
				place[l.at] = len(keys)
				keys = append(keys, l.key)
			}
		}
		// next is the index of the next message; astray: the subscription is in a log that was lost, and must receive a gap first.
		next, gapped, astray, mine := 0, false, false, 0
		for _, g := range h.got {
			at, there := place[g.at]
			there = there && g.key != "" && keys[at] == g.key
			switch {
			case g.key == "":
				mine++
				gapped, astray = true, false
			case !there:
				if f := w.fates[g.key]; f == nil || f.fate == rolledBack || len(w.lives) == 0 {
					w.Errorf("subscription %d: message %s at %s was never committed", i, g.key, g.at)
				}
				astray = true
				beyond++
			case astray:
				w.Errorf("subscription %d: message %s at %s follows messages of a lost log without a gap", i, g.key, g.at)
				astray, next = false, at+1
			case at < next:
				w.Errorf("subscription %d: message %s at %s was received again, or too late", i, g.key, g.at)
			case at > next && !gapped:
				w.Errorf("subscription %d: %d messages are missing without a gap before %s at %s: %v", i, at-next, g.key, g.at, keys[next:min(at, next+5)])
				next = at + 1
			default:
				next, gapped = at+1, false
			}
		}
		if next != len(keys) {
			w.Errorf("subscription %d: the last %d messages are missing", i, len(keys)-next)
		}
		if mine > len(w.lives) {
			w.Errorf("subscription %d received %d gaps in %d failovers", i, mine, len(w.lives))
		}
		delivered, gaps = delivered+len(h.got)-mine, gaps+mine
	}
	w.Logf("%d messages, %d deliveries to %d subscriptions, %d of them from lost logs, %d gaps; %d messages lost in failovers", len(all), delivered, len(w.on), beyond, gaps, lost)
}

// covers reports whether a pattern of this test matches a channel.
func covers(pattern, channel string) bool {
	p, c := strings.Split(pattern, "."), strings.Split(channel, ".")
	for i, word := range p {
		if word == ">" {
			return len(c) > i
		}
		if i >= len(c) || word != "*" && word != c[i] {
			return false
		}
	}
	return len(p) == len(c)
}
