package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weircrypt"
)

// The torture test uses all features of the queue at once: unique jobs, keys, schedules, groups, encryption, checkpoints, retry rules, limits, and operations by
// filter, each with promises of its own, which featureNotebook notes as they are kept, in the transactions that keep them.

// secret is in everything that is encrypted in this test, and must never be stored.
const secret = "nobody may read this"

// unique are the rules of unique jobs. Each key has one.
var unique = []string{"finished", "started", "replace"}

// featureNotebook creates tables in which the test notes what becomes of jobs whose promises are more than to run once: promised by their producers,
// the others by triggers. judged has the snapshot with which a claim judged unique jobs: a trigger that is STABLE sees it.
const featureNotebook = `
CREATE TABLE promised (id bigint, what text NOT NULL, key text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE doomed (key text NOT NULL, upto bigint NOT NULL, at timestamptz NOT NULL);
CREATE TABLE claimed (lane bigint, seq bigint, id bigint, at timestamptz NOT NULL, xid xid8 NOT NULL, seen pg_snapshot, PRIMARY KEY (lane, seq, id));
CREATE TABLE judged (lane bigint, seq bigint, snapshot pg_snapshot NOT NULL, PRIMARY KEY (lane, seq));
CREATE TABLE dropped (id bigint NOT NULL, lane bigint, seq bigint, reason text NOT NULL);
CREATE TABLE overlapped (id bigint NOT NULL, other bigint NOT NULL, key text NOT NULL);
CREATE TABLE fired (name text NOT NULL, due timestamptz NOT NULL, job bigint, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE paused (since pg_snapshot NOT NULL, upto pg_snapshot);
CREATE TABLE leaked (at text NOT NULL);
CREATE INDEX ON promised (id);
CREATE INDEX ON promised (key);
CREATE INDEX ON claimed (id);
CREATE INDEX ON ended (lane, seq, id);
CREATE INDEX ON ended (id);
GRANT ALL ON promised TO hasty;

CREATE FUNCTION note_judged() RETURNS trigger LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
  PERFORM set_config('torture.judged', pg_current_snapshot()::text, true);
  RETURN NEW;
END
$$;
CREATE TRIGGER note_judged BEFORE INSERT ON weir.batch FOR EACH ROW WHEN (NEW.worker > 0) EXECUTE FUNCTION note_judged();

CREATE FUNCTION note_claimed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.judged VALUES (NEW.lane, NEW.seq, current_setting('torture.judged')::pg_snapshot) ON CONFLICT DO NOTHING;
  -- What the claim itself has ended does not start. Reclaiming repeats batches.
  WITH made AS (
    INSERT INTO public.claimed SELECT NEW.lane, NEW.seq, i, now(), pg_current_xact_id(), NEW.seen FROM unnest(NEW.ids) i
    WHERE NOT EXISTS (SELECT FROM weir.result r WHERE r.lane = NEW.lane AND r.seq = NEW.seq AND i = ANY (r.ids))
    ON CONFLICT DO NOTHING RETURNING id)
  INSERT INTO public.overlapped
  SELECT m.id, o.id, o.key FROM made m JOIN public.promised p ON p.id = m.id AND p.what = 'finished'
  JOIN public.promised o ON o.key = p.key AND o.id <> p.id JOIN public.claimed c ON c.id = o.id
  WHERE NOT EXISTS (SELECT FROM public.ended e WHERE e.lane = c.lane AND e.seq = c.seq AND e.id = c.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER note_claimed AFTER INSERT ON weir.batch FOR EACH ROW WHEN (NEW.worker > 0) EXECUTE FUNCTION note_claimed();

CREATE FUNCTION note_dropped() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.dropped SELECT u.id, NEW.lane, NEW.seq, u.reason FROM unnest(NEW.ids, NEW.errors) u(id, reason) WHERE u.reason ~ '^(duplicate of|replaced by) job ';
  RETURN NULL;
END
$$;
CREATE TRIGGER note_dropped AFTER INSERT ON weir.result FOR EACH ROW WHEN (NEW.outcome = 'cancelled') EXECUTE FUNCTION note_dropped();

CREATE FUNCTION note_fired() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.fired (name, due, job) VALUES (NEW.name, NEW.due, NEW.job);
  RETURN NULL;
END
$$;
CREATE TRIGGER note_fired AFTER INSERT ON weir.firing FOR EACH ROW EXECUTE FUNCTION note_fired();

CREATE FUNCTION note_leaked() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.leaked VALUES (TG_TABLE_NAME || ': ' || left(NEW::text, 500));
  RETURN NULL;
END
$$;
DO $$
DECLARE
  name regclass;
BEGIN
  FOR name IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'weir'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition LOOP
    EXECUTE format('CREATE TRIGGER note_leaked AFTER INSERT OR UPDATE ON %s FOR EACH ROW WHEN (NEW::text LIKE ''%%` + secret + `%%'') EXECUTE FUNCTION note_leaked()', name);
  END LOOP;
END
$$;
SELECT weir._queue_id('only');
-- A worker that cannot decrypt a job releases it, each time after a longer pause.
SELECT weir.set('only', 'backoff', '50 ms'), weir.set('only', 'backoff_limit', '500 ms');
SELECT weir.set_retry_rule('grouped', 'retry', kind => 'grouped', backoff => '50 ms', backoff_form => 'fixed');
SELECT weir.set_retry_rule('later', 'snooze', error => 'later, please', backoff => '50 ms');
SELECT weir.set_schedule('every ' || n, format('every %s seconds', n), 'only', 'tick', missed => 'all', jitter => n % 2 * interval '300 ms') FROM generate_series(1, 6) n;
SELECT weir.set_schedule('at times', 'every 1 seconds', 'only', 'tick');  -- is paused and resumed
`

// tortureCodec is the codec of all processes of the test.
func tortureCodec() weir.Codec {
	codec, err := weircrypt.New(weircrypt.Key{ID: "torture", Secret: make([]byte, 32)})
	if err != nil {
		panic(err)
	}
	return codec
}

// encrypted are the kinds that are encrypted.
var encrypted = []string{"sealed", "steps", "sealed tick"}

// sealedTick is the schedule with encrypted args, which every worker declares that may.
var sealedTick = weir.Schedule{Name: "sealed", Schedule: "every 2 seconds", Missed: weir.MissedAll, Args: tick{secret}, Options: &weir.Options{Queue: "only"}}

// featured is what the test knows of its use of features.
type featured struct {
	seals    *weir.Client // encrypts
	declared int          // generation of the schedule with encrypted args
	steps    map[int64][]stepped
	batch    atomic.Int64 // the last batch of jobs that may be cancelled by filter
	cancels  atomic.Int64
	moves    atomic.Int64
	retries  atomic.Int64
	deletes  atomic.Int64
	pauses   atomic.Int64

	forgets     bool // flows that have ended are soon forgotten
	flowCancels atomic.Int64
	flowRetries atomic.Int64
}

// stepped is what an attempt at a job with checkpoints has stored, or has read when it began.
type stepped struct {
	step
	read bool
	n    int
	life int32
	lsn  int64
}

// useFeatures starts producers and operators that use all features, until ctx ends.
func (w *torture) useFeatures() {
	conn := connect(w.T, w.address)
	exec(w.T, conn, featureNotebook)
	exec(w.T, conn, `SELECT weir.set_limit('only', running => 20)`) // in a transaction of its own, as it must be
	w.useKeys(conn)
	w.useFlows(conn)
	w.steps = map[int64][]stepped{}
	config, err := pgxpool.ParseConfig(w.common.url(w.T, w.address))
	if err != nil {
		w.Fatal(err)
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(w.ctx, config)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(pool.Close)
	w.seals = weir.NewClient(pool).WithCodec(tortureCodec(), encrypted...)
	if _, err := w.seals.SetSchedule(w.ctx, sealedTick); err != nil {
		w.Fatal(err)
	}
	w.declared = value[int](w.T, conn, `SELECT generation FROM weir.schedule WHERE name = 'sealed'`)
}

// loops runs a step of one of the users of features again and again over a connection, which it replaces after an error.
func (w *torture) loops(ctx context.Context, every time.Duration, address string, do func(conn *pgx.Conn) error) {
	pace := time.NewTicker(every)
	defer pace.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		bounded, cancel := context.WithTimeout(w.ctx, patience)
		var err error
		if conn == nil {
			conn, err = pgx.Connect(bounded, address)
		}
		if err == nil {
			err = do(conn)
		}
		cancel()
		if err != nil && conn != nil {
			_ = conn.Close(context.Background())
			conn = nil
		}
	}
}

// produceFeatures runs a transaction of a producer. Jobs that run and complete once, whatever else is true of them, are noted in produced; the others
// in promised.
func (w *torture) produceFeatures(conn *pgx.Conn, rng *rand.Rand, producer int, n *int) error {
	f := &txRecord{fate: uncertain, life: w.life.Load(), weak: producer == 0}
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	tx, err := conn.BeginTx(w.ctx, pgx.TxOptions{IsoLevel: levels[rng.IntN(len(levels))]})
	if err != nil {
		return err
	}
	later := func(n int) string { return fmt.Sprintf("now() + interval '%d ms'", max(rng.IntN(n)-n/2, 0)) }
	for range 1 + rng.IntN(3) {
		var err error
		switch rng.IntN(9) {
		case 0, 1: // a unique job
			key := rng.IntN(6)
			rule := unique[key%len(unique)]
			args := map[string]string{"finished": "", "started": ", until => 'started'", "replace": ", replace => true"}[rule]
			if rule == "replace" {
				args += ", run_at => " + later(600)
			}
			_, err = tx.Exec(w.ctx, fmt.Sprintf(`INSERT INTO promised (id, what, key) SELECT u.id, $1, $2 FROM weir.enqueue_unique('only', 'only', unique_key => $2, priority => $3%s) u WHERE NOT u.duplicate OR $1 = 'replace'`, args),
				rule, fmt.Sprint("key ", key), 1+rng.IntN(4))
		case 2: // jobs that may be cancelled by filter
			_, err = tx.Exec(w.ctx, fmt.Sprintf(`INSERT INTO promised (id, what, key)
				SELECT weir.enqueue('only', 'doom', run_at => %s, meta => jsonb_build_object('doom', $1::text), priority => $2), 'doom', $1 FROM generate_series(1, $3)`, later(2000)),
				itoa(w.batch.Add(1)), 1+rng.IntN(4), 1+rng.IntN(10))
		case 3: // a job that fails for good, and is retried or deleted by filter
			_, err = tx.Exec(w.ctx, `INSERT INTO promised (id, what, key) SELECT weir.enqueue('only', $1, max_attempts => 1), $1, ''`, []string{"dud", "scrap"}[rng.IntN(2)])
		case 4: // encrypted
			*n++
			key := w.named(fmt.Sprintf("s%d.%d", producer, *n), f)
			job := torn{Key: key, Tx: rng.IntN(2) == 0}
			var args weir.Args = sealedTorn{job, secret}
			if rng.IntN(2) == 0 {
				job.Tx = false
				args = steps{job.Key, secret}
			}
			var enqueued weir.Enqueued
			if enqueued, err = w.seals.EnqueueTx(w.ctx, tx, args, &weir.Options{Queue: "only", Priority: 1 + rng.IntN(4)}); err == nil {
				_, err = tx.Exec(w.ctx, `INSERT INTO produced VALUES ($1, $2, $3)`, job.Key, enqueued.ID, job.Tx)
			}
		case 5, 6:
			err = w.produceKeys(tx, rng, producer, n, f)
		case 7:
			err = w.produceFlows(tx, rng, producer, n, f)
		default: // grouped, and moved to and fro
			*n++
			key := w.named(fmt.Sprintf("g%d.%d", producer, *n), f)
			_, err = tx.Exec(w.ctx, fmt.Sprintf(`WITH j AS (SELECT weir.enqueue($1, 'grouped', jsonb_build_object('Key', $2::text, 'Tx', $3::boolean), priority => $4, run_at => %s) AS id)
				INSERT INTO produced SELECT $2, j.id, $3 FROM j`, later(1000)), []string{"torture", "only"}[rng.IntN(2)], key, rng.IntN(2) == 0, 1+rng.IntN(4))
		}
		if err != nil {
			return err
		}
	}
	if rng.IntN(3) == 0 { // others commit, and workers claim, in the meantime
		select {
		case <-time.After(time.Duration(rng.IntN(150)) * time.Millisecond):
		case <-w.ctx.Done():
		}
	}
	end, to := tx.Commit, committed
	if rng.IntN(8) == 0 {
		end, to = tx.Rollback, rolledBack
	}
	if err := end(w.ctx); err != nil {
		return err
	}
	w.ledger.mu.Lock()
	f.fate = to
	w.ledger.mu.Unlock()
	if to == committed {
		w.acked.Add(1)
		var lsn int64
		if err := conn.QueryRow(w.ctx, `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(&lsn); err != nil {
			return err
		}
		w.ledger.mu.Lock()
		f.lsn = lsn
		w.ledger.mu.Unlock()
	}
	return nil
}

// named notes the transaction of a key.
func (w *torture) named(key string, f *txRecord) string {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.fates[key] = f
	return key
}

// operate is an operator that cancels, moves, retries and deletes by filter, and pauses a schedule. A cancellation is noted once it has been acknowledged.
func (w *torture) operate(conn *pgx.Conn, rng *rand.Rand) error {
	switch rng.IntN(8) {
	case 0:
		key := itoa(max(w.batch.Load()-int64(rng.IntN(5)), 1))
		var upto int64
		if err := conn.QueryRow(w.ctx, `SELECT last_value FROM weir.job_id`).Scan(&upto); err != nil {
			return err
		}
		if _, err := conn.Exec(w.ctx, `SELECT weir.cancel_where(meta => jsonb_build_object('doom', $1::text))`, key); err != nil {
			return err
		}
		w.cancels.Add(1)
		_, err := conn.Exec(w.ctx, `INSERT INTO doomed VALUES ($1, $2, clock_timestamp())`, key, upto)
		return err
	case 1:
		return w.stepsOf(conn, "move_where", "moved", `'torture', '{grouped}', to_queue => 'only'`, &w.moves)
	case 2:
		return w.stepsOf(conn, "move_where", "moved", fmt.Sprintf(`'only', '{grouped}', to_queue => 'torture', to_priority => %d`, 1+rng.IntN(4)), &w.moves)
	case 3:
		return w.stepsOf(conn, "delete_where", "deleted", `'only', '{scrap}'`, &w.deletes)
	case 4:
		return w.pauseOrResume(conn)
	case 5, 6:
		return w.operateFlows(conn, rng)
	}
	return w.stepsOf(conn, "retry_where", "retried", `'only', '{dud}'`, &w.retries)
}

// pauseOrResume notes between which snapshots a schedule was certainly paused.
func (w *torture) pauseOrResume(conn *pgx.Conn) error {
	ended, err := conn.Exec(w.ctx, `UPDATE paused SET upto = pg_current_snapshot() WHERE upto IS NULL`)
	if err != nil {
		return err
	}
	if ended.RowsAffected() > 0 {
		_, err := conn.Exec(w.ctx, `SELECT weir.resume_schedule('at times')`)
		return err
	}
	if _, err := conn.Exec(w.ctx, `SELECT weir.pause_schedule('at times')`); err != nil {
		return err
	}
	w.pauses.Add(1)
	_, err = conn.Exec(w.ctx, `INSERT INTO paused (since) VALUES (pg_current_snapshot())`)
	return err
}

// stepsOf takes all steps of an operation by filter.
func (w *torture) stepsOf(conn *pgx.Conn, name, did, args string, count *atomic.Int64) error {
	for after, steps := new(string), 0; steps < 1000; steps++ {
		var n int64
		if *after == "" {
			after = nil
		}
		if err := conn.QueryRow(w.ctx, fmt.Sprintf(`SELECT %s, next FROM weir.%s(%s, after => $1)`, did, name, args), after).Scan(&n, &after); err != nil {
			return err
		}
		count.Add(n)
		if after == nil {
			return nil
		}
	}
	return fmt.Errorf("%s does not end", name)
}

// takeInSQL is a worker that uses the functions of the contract alone, of the kinds that are not encrypted.
func (w *torture) takeInSQL(address string, rng *rand.Rand) {
	worker := int32(0)
	me := new(int)
	w.loops(w.ctx, 20*time.Millisecond, address, func(conn *pgx.Conn) (err error) {
		defer func() {
			if sqlstate(err) == "WR001" {
				worker = 0
			}
		}()
		if worker == 0 {
			if err := conn.QueryRow(w.ctx, `SELECT weir.start('torture by contract', '{only,order}', lease => $1)`, w.lease).Scan(&worker); err != nil {
				return err
			}
		}
		rows, err := conn.Query(w.ctx, `SELECT token, id, kind, attempt, args FROM weir.take($1, limits => '{5,3}', kinds => '{only,doom,dud,scrap,tick,grouped,torn,member,"flow done","flow success"}', held => '{}', lost => true, wait => '0') WHERE event = 'job'`, worker)
		if err != nil {
			return err
		}
		type job struct {
			Token   string
			ID      int64
			Kind    string
			Attempt int
			Args    json.RawMessage
		}
		jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
		for _, j := range jobs {
			var args torn
			_ = json.Unmarshal(j.Args, &args)
			w.ledger.started(me, attemptRun{j.ID, j.Attempt}, args.Key)
		}
		for _, j := range jobs {
			if err == nil {
				err = w.endByToken(conn, worker, rng, j.Token, j.Kind, j.Attempt, j.Args)
			}
			w.ledger.stopped(me, attemptRun{j.ID, j.Attempt})
		}
		return err
	})
}

// endByToken runs and ends an attempt.
func (w *torture) endByToken(conn *pgx.Conn, worker int32, rng *rand.Rand, token, kind string, attempt int, args json.RawMessage) error {
	end := map[string]any{"token": token, "outcome": "completed"}
	var job torn
	switch {
	case kind == "dud" && attempt == 1, kind == "scrap":
		end["outcome"], end["error"] = "failed", "a dud"
	case (kind == "grouped" || kind == "torn") && json.Unmarshal(args, &job) == nil && job.Tx:
		return pgx.BeginFunc(w.ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(w.ctx, `INSERT INTO effect (key) VALUES ($1)`, job.Key); err != nil {
				return err
			}
			_, err := tx.Exec(w.ctx, `SELECT weir.complete($1, $2)`, worker, token)
			return err
		})
	case kind != "dud" && rng.IntN(10) == 0:
		end["outcome"], end["error"] = "failed", "later, please"
	case kind != "dud" && rng.IntN(10) == 0:
		end["outcome"], end["error"], end["delay"] = "failed", "again", 0.1
	case kind == "member":
		end["output"] = "from SQL"
	}
	text, err := json.Marshal([]any{end})
	if err == nil {
		_, err = conn.Exec(w.ctx, `SELECT weir.progress($1, $2)`, worker, fmt.Sprintf(`[{"token": %q, "percent": 50, "message": "half", "checkpoint": {"half": true}}]`, token))
	}
	if err == nil {
		_, err = conn.Exec(w.ctx, `SELECT weir.record($1, $2)`, worker, string(text))
	}
	return err
}

// heardStep notes what a worker has said about a checkpoint: job, attempt, put off, checkpoint, life of the log, and position of the WAL.
func (w *torture) heardStep(words []string) {
	var id int64
	s := stepped{read: words[0] == "read"}
	if _, err := fmt.Sscan(strings.Join(words[1:], " "), &id, &s.attempt, &s.putOff, &s.n, &s.life, &s.lsn); err != nil {
		w.Errorf("%v: %v", words, err)
		return
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.steps[id] = append(w.steps[id], s)
}
