package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Jobs of the torture test that have keys: in "shared", at most two of a key run; in "order", they run strictly one after the other. They are of the
// kind torn, so what becomes of each is judged with the others. Claims from keys are noted as they are made, in their own transactions, in which the ends
// of earlier attempts are seen at least as far as the claim has seen them.

const keyNotebook = `
CREATE TABLE key_logged (id bigint PRIMARY KEY, lane bigint NOT NULL, xid xid8 NOT NULL);
CREATE TABLE key_claimed (queue text, lane bigint, seq bigint, id bigint, bits bigint NOT NULL, PRIMARY KEY (lane, seq, id));
CREATE TABLE key_running (queue text NOT NULL, bits bigint NOT NULL, seq bigint NOT NULL, n bigint NOT NULL);
CREATE TABLE key_jumped (id bigint NOT NULL, other bigint NOT NULL);
CREATE TABLE key_seen (queue text, seq bigint, snapshot pg_snapshot NOT NULL, PRIMARY KEY (queue, seq));
CREATE INDEX ON key_claimed (queue, bits);
CREATE INDEX ON key_claimed (id);

CREATE FUNCTION note_key_logged() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.key_logged VALUES (NEW.id, NEW.lane, NEW.xid) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_key_logged AFTER INSERT ON weir.job FOR EACH ROW WHEN (NEW.lane & 549755813880 <> 0 AND NEW.attempt = 1 AND NEW.put_off = 0) EXECUTE FUNCTION note_key_logged();

CREATE FUNCTION note_key_claimed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
  name text := (SELECT q.name FROM weir.queue q WHERE q.id = NEW.lane >> 39);
BEGIN
  -- Reclaiming repeats batches.
  WITH made AS (
    INSERT INTO public.key_claimed SELECT name, NEW.lane, NEW.seq, u.id, u.lane & 549755813880 FROM unnest(NEW.ids, NEW.lanes) u(id, lane)
    ON CONFLICT DO NOTHING RETURNING id, bits
  ), before AS (
    SELECT c.* FROM (SELECT DISTINCT m.bits FROM made m) m JOIN public.key_claimed c ON c.queue = name AND c.bits = m.bits
  ), ran AS (
    INSERT INTO public.key_running
    SELECT name, r.bits, NEW.seq, count(*)
    FROM (SELECT m.bits FROM made m
          UNION ALL
          SELECT b.bits FROM before b WHERE NOT EXISTS (SELECT FROM public.ended e WHERE e.lane = b.lane AND e.seq = b.seq AND e.id = b.id)) r
    GROUP BY r.bits
  )
  INSERT INTO public.key_jumped
  SELECT m.id, b.id FROM made m JOIN before b ON b.bits = m.bits AND b.id <> m.id
  WHERE name = 'order' AND NOT EXISTS (SELECT FROM public.key_claimed c WHERE c.id = m.id)
    AND NOT EXISTS (SELECT FROM public.ended e WHERE e.id = b.id AND e.outcome IN ('completed', 'failed', 'cancelled'));
  INSERT INTO public.key_seen VALUES (name, NEW.seq, pg_current_snapshot()) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_key_claimed AFTER INSERT ON weir.batch FOR EACH ROW WHEN (NEW.worker > 0 AND NEW.lanes IS NOT NULL) EXECUTE FUNCTION note_key_claimed();
SELECT weir.set_weight('shared', 'key 0', 3);
`

// keyFaults are what the notebook of keys must not show.
var keyFaults = map[string]string{
	"are too many attempts of a key":                            `SELECT format('%s in claim %s of %s', n, seq, queue) FROM key_running WHERE n > CASE queue WHEN 'order' THEN 1 ELSE 2 END`,
	"started, although another job of its key was not finished": `SELECT format('job %s, and job %s', id, other) FROM key_jumped`,
	// A claim sees at least what was committed when the claim before it was made.
	"started after a job of its key that came later in the log": `WITH first AS (
			SELECT c.queue, l.lane, l.xid, l.id, min(c.seq) AS seq FROM key_claimed c JOIN key_logged l ON l.id = c.id GROUP BY c.queue, l.lane, l.xid, l.id)
		SELECT format('job %s of %s in claim %s after job %s in claim %s', a.id, a.queue, a.seq, b.id, b.seq)
		FROM first b JOIN first a ON a.queue = b.queue AND a.lane = b.lane AND (a.xid, a.id) < (b.xid, b.id) AND a.seq > b.seq
		JOIN LATERAL (SELECT s.snapshot FROM key_seen s WHERE s.queue = b.queue AND s.seq < b.seq ORDER BY s.seq DESC LIMIT 1) s ON pg_visible_in_snapshot(a.xid, s.snapshot)`,
}

// useKeys sets the limits, each in a transaction of its own, as it must be.
func (w *torture) useKeys(conn *pgx.Conn) {
	exec(w.T, conn, keyNotebook)
	exec(w.T, conn, `SELECT weir.set_limit('shared', running => 2, per_key => true)`)
	exec(w.T, conn, `SELECT weir.set_limit('order', per_key => true, in_order => true)`)
}

// produceKeys enqueues a job with a key, which is part of f. Some are the first of a key of their own, and stay uncommitted until a later one of it was claimed.
func (w *torture) produceKeys(tx pgx.Tx, rng *rand.Rand, producer int, n *int, f *txRecord) error {
	queue, keys := "shared", 4
	if rng.IntN(2) == 0 {
		queue, keys = "order", 8
	}
	key, isLate := fmt.Sprint("key ", rng.IntN(keys)), rng.IntN(8) == 0
	runAt := "NULL"
	if isLate {
		key = fmt.Sprintf("late %d.%d", producer, *n)
	} else if rng.IntN(4) == 0 {
		runAt = fmt.Sprintf("now() + interval '%d ms'", rng.IntN(400))
	}
	enqueue := func(by interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}, f *txRecord) (id int64, err error) {
		*n++
		return id, by.QueryRow(w.ctx, `WITH j AS (SELECT weir.enqueue($1, 'torn', jsonb_build_object('Key', $2::text, 'Tx', $3::boolean, 'Takes', $4::int), key => $5, run_at => `+runAt+`) AS id)
			INSERT INTO produced SELECT $2, j.id, $3 FROM j RETURNING id`,
			queue, w.named(fmt.Sprintf("k%d.%d", producer, *n), f), rng.IntN(2) == 0, rng.IntN(40), key).Scan(&id)
	}
	if _, err := enqueue(tx, f); err != nil || !isLate {
		return err
	}
	conn, err := pgx.Connect(w.ctx, w.common.url(w.T, w.address))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	later := &txRecord{fate: uncertain, life: w.life.Load(), weak: true} // where it ends in the log is not noted
	id, err := enqueue(conn, later)
	if err != nil {
		return err
	}
	w.ledger.mu.Lock()
	later.fate = committed
	w.ledger.mu.Unlock()
	claimed := false
	for began := time.Now(); !claimed && err == nil && time.Since(began) < 2*time.Second; w.paces(1) { // it may wait for longer: a worker was frozen, or a failover has lost it
		err = conn.QueryRow(w.ctx, `SELECT EXISTS (SELECT FROM key_claimed WHERE id = $1)`, id).Scan(&claimed)
	}
	return err
}

// judgeKeys compares what the notebook of keys says with what is promised. The jobs have ended.
func (w *torture) judgeKeys(conn *pgx.Conn) {
	w.findNone(conn, keyFaults)
	var jobs, full, waited, late int
	if err := conn.QueryRow(w.ctx, `SELECT (SELECT count(*) FROM key_logged), (SELECT count(*) FROM key_running WHERE queue = 'shared' AND n = 2),
		(SELECT count(*) FROM (SELECT c.id FROM key_claimed c WHERE c.queue = 'order' GROUP BY c.id HAVING count(*) > 1) c),
		(SELECT count(*) FROM key_logged l JOIN key_logged m ON m.lane = l.lane AND (m.xid, m.id) > (l.xid, l.id)
			WHERE (SELECT min(c.seq) FROM key_claimed c WHERE c.id = m.id) < (SELECT min(c.seq) FROM key_claimed c WHERE c.id = l.id))`).Scan(&jobs, &full, &waited, &late); err != nil {
		w.Fatal(err)
	}
	w.Logf("%d jobs with keys; %d claims that brought a key to its limit, %d jobs in order that were tried again, %d pairs of jobs of which the later one committed first", jobs, full, waited, late)
	for what, n := range map[string]int{"has a key": jobs, "brought a key to its limit": full, "in order was tried again": waited, "committed too late for its place": late} {
		if n == 0 && *longFlag > 0 {
			w.Errorf("no job %s", what)
		}
	}
}
