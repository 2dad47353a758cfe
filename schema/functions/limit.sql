-- Limits of queues: how many attempts may run at a time, and how many may start in a time.
--
-- A queue with limits has a gate: a lock under which claims hand out its jobs, and insert-only rows of which the newest is the gate's whole state.
-- What runs is what claims have added, minus what releases have removed. A release is written by the transaction that ends attempts, and counted by
-- exactly one claim: the first whose snapshot sees that transaction, as the snapshot of the row before did not. So nothing is released twice, nothing
-- is forgotten, no counter drifts, and who ends an attempt waits for nobody. The row is written by the transaction that hands the jobs out: so they
-- are counted, or they are not handed out.
--
-- Which queues have a gate changes only while no claim is in progress. So all claims at one time agree about it, and one that has begun after
-- weir.set_limit has returned keeps the limit.

CREATE OR REPLACE FUNCTION weir._gate_now(
  name text, gate integer, to_write boolean,
  OUT seq bigint, OUT running integer, OUT counted integer, OUT folded pg_snapshot, OUT next_start timestamptz, OUT before bigint, OUT at timestamptz,
  OUT room integer, OUT next_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  lim       weir.queue_limit;
  newest    weir.gate;
  earlier   integer := 0;  -- attempts that ran when the gate was opened, and still do
  by_second double precision;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _gate_now.name;
  SELECT g.* INTO newest FROM weir.gate g WHERE g.gate = _gate_now.gate ORDER BY g.seq DESC LIMIT 1;
  IF newest.seq IS NULL THEN
    IF to_write THEN
      newest := weir._open_gate(_gate_now.name, _gate_now.gate);
    ELSE
      newest.seq := 0;
      newest.running := 0;
      newest.folded := pg_current_snapshot();
    END IF;
  END IF;
  folded := weir._snapshot_of_others();  -- statements below may see more: what this snapshot does not see is left to the next row
  counted := newest.running - coalesce((
    SELECT sum(r.n) FROM weir._ended_since(newest.folded, folded) e
    CROSS JOIN LATERAL (SELECT r.n FROM weir.release r WHERE r.gate = _gate_now.gate AND r.xid >= e.low AND r.xid < e.high
                          AND pg_visible_in_snapshot(r.xid, folded) OFFSET 0) r), 0);
  IF newest.before IS NOT NULL THEN
    earlier := (
      SELECT coalesce(sum(b.n - coalesce(r.n, 0)), 0) FROM weir.gate g CROSS JOIN LATERAL unnest(g.before_lanes, g.before_seqs) u(lane, seq)
      CROSS JOIN LATERAL (SELECT sum(cardinality(b.ids)) AS n FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq) b
      CROSS JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.lane = u.lane AND r.seq = u.seq) r
      WHERE g.gate = _gate_now.gate AND g.seq = newest.before);
  END IF;
  seq := newest.seq;
  running := counted + earlier;
  before := CASE WHEN earlier > 0 THEN newest.before END;
  room := lim.running - running;
  IF lim.rate IS NOT NULL THEN
    at := clock_timestamp();
    by_second := lim.rate / extract(epoch FROM lim.per);
    next_start := newest.next_start;
    IF coalesce(room, 1) > 0 THEN
      room := least(room, weir._starts_now(by_second, lim.burst, next_start, at));
      IF room <= 0 THEN
        next_at := weir._starts_at(by_second, lim.burst, next_start, at);
      END IF;
    END IF;
  END IF;
  room := coalesce(room, 2147483647);
END
$$;
COMMENT ON FUNCTION weir._gate_now IS
  'The state of a queue''s gate: its newest row (seq, next_start), what runs now (running), what of it was handed out through the gate (counted) according to the snapshot folded, how many more attempts may start (room), and if only the rate keeps them from it, when that changes (next_at), as the clock is at. before: attempts from before the gate was opened still run. With to_write, the caller is a claim that holds the gate''s lock, and a gate that has no row yet is opened. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._snapshot_of_others(s pg_snapshot DEFAULT pg_current_snapshot()) RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  own xid8 := pg_current_xact_id_if_assigned();
BEGIN
  IF own IS NULL OR NOT pg_visible_in_snapshot(own, s) THEN
    RETURN s;
  END IF;
  RETURN (pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmax(s)::text || ':'
          || (SELECT string_agg(u.x::text, ',' ORDER BY u.x) FROM (SELECT pg_snapshot_xip(s) AS x UNION ALL SELECT own) u))::pg_snapshot;
END
$$;
COMMENT ON FUNCTION weir._snapshot_of_others IS
  'The present snapshot, or one of before, as another session would take it: with this transaction among those in progress. PostgreSQL leaves a transaction out of its own snapshots, so those show it as ended once a later one has; but it may still end attempts, as weir.take does with jobs of unknown kinds. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._open_gate(name text, gate integer) RETURNS weir.gate
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  opened weir.gate;
BEGIN
  -- All claims that have not seen the gate have ended, because setting a limit waited for them.
  SELECT array_agg(h.lane), array_agg(h.seq) INTO opened.before_lanes, opened.before_seqs
  FROM (SELECT DISTINCT h.lane, h.seq FROM weir.worker w CROSS JOIN LATERAL weir._holds(w.id) h
        WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = w.id AND s.no = 9223372036854775807)
          AND (h.lane >> 39)::integer IN (SELECT q.id FROM weir.queue q WHERE q.name = _open_gate.name)) h;
  opened.gate := _open_gate.gate;
  opened.seq := 1;
  opened.running := 0;
  opened.folded := weir._snapshot_of_others();
  opened.before := CASE WHEN opened.before_lanes IS NOT NULL THEN 1 END;
  INSERT INTO weir.gate SELECT (opened).*;
  RETURN opened;
END
$$;
COMMENT ON FUNCTION weir._open_gate IS
  'Writes a gate''s first row, which lists the batches of the queue that have unfinished attempts. It reads what all workers have claimed since they were last settled, once for each gate. The caller holds the gate''s lock. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._next_start(by_second double precision, burst integer, next_start timestamptz, at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN CASE WHEN _next_start.next_start > _next_start.at + (_next_start.burst / _next_start.by_second + 0.01) * interval '1 second'
              THEN _next_start.at + ((_next_start.burst - 1) / _next_start.by_second) * interval '1 second'
              ELSE greatest(_next_start.next_start, _next_start.at) END;
END
$$;
COMMENT ON FUNCTION weir._next_start IS
  'next_start as it counts at a time: not before that time; and further ahead than the burst only if the clock was set back since, or the rate was another one: then one may start at once. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._starts_now(by_second double precision, burst integer, next_start timestamptz, at timestamptz) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN floor(_starts_now.burst + 1e-6 - _starts_now.by_second * extract(epoch FROM
    weir._next_start(_starts_now.by_second, _starts_now.burst, _starts_now.next_start, _starts_now.at) - _starts_now.at)::double precision)::integer;
END
$$;
COMMENT ON FUNCTION weir._starts_now IS
  'How many starts a rate with a burst allows at a time: as many as keep next_start, which each start moves by the interval between two, within burst intervals of that time. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._starts_at(by_second double precision, burst integer, next_start timestamptz, at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN weir._next_start(_starts_at.by_second, _starts_at.burst, _starts_at.next_start, _starts_at.at)
         + (least(_starts_at.burst, greatest(1, floor(_starts_at.by_second / 100))) - _starts_at.burst) / _starts_at.by_second * interval '1 second';
END
$$;
COMMENT ON FUNCTION weir._starts_at IS
  'When a rate that allows no start now is worth another look: when it allows one; or, if that is soon, as many as it allows in 10 ms. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._started(by_second double precision, burst integer, next_start timestamptz, at timestamptz, n integer) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN weir._next_start(_started.by_second, _started.burst, _started.next_start, _started.at) + _started.n / _started.by_second * interval '1 second';
END
$$;
COMMENT ON FUNCTION weir._started IS 'next_start after n more starts. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._free_slots(gates integer[], counts integer[], lanes bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT u.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), sum(u.n), array_agg(u.lane) FILTER (WHERE u.lane IS NOT NULL)
  FROM unnest(_free_slots.gates, _free_slots.counts, _free_slots.lanes) u(gate, n, lane) WHERE u.gate IS NOT NULL GROUP BY u.gate;
  IF FOUND THEN
    PERFORM nextval('weir.job_id');  -- wakes idle workers, as a new job does: first the xid, then the id
  END IF;
END
$$;
COMMENT ON FUNCTION weir._free_slots IS
  'Logs how many attempts of each gate the transaction has ended: counts[i] of gates[i], of a job with a key in lanes[i]; NULL is no gate, or no key. Attempts that follow them are claimed as any others. Locks: none that others wait for.';

CREATE OR REPLACE FUNCTION weir._compact_gates() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 4194304;
  active    integer := pg_sequence_last_value('weir.active_release');
  ring      integer;
BEGIN
  IF pg_relation_size('weir.release_' || active) > max_bytes AND pg_relation_size('weir.release_' || active % 3 + 1) = 0 THEN
    PERFORM setval('weir.active_release', active % 3 + 1);
    RETURN 'opened release ' || active % 3 + 1;
  ELSIF pg_relation_size('weir.gate') > max_bytes THEN
    -- Without claims, nobody reads these tables with an older snapshot.
    PERFORM pg_advisory_xact_lock(1464158547, 0);
    LOCK TABLE weir.gate IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
      SELECT k.* FROM weir.queue_limit l
      CROSS JOIN LATERAL (SELECT g.* FROM weir.gate g WHERE g.gate = l.gate ORDER BY g.seq DESC LIMIT 1) n
      CROSS JOIN LATERAL (SELECT g.* FROM weir.gate g WHERE g.gate = n.gate AND g.seq IN (n.seq, n.before)) k;
    TRUNCATE weir.gate;
    INSERT INTO weir.gate SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted gate';
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 3) r WHERE r <> active AND pg_relation_size('weir.release_' || r) > 0 LOOP
    CONTINUE WHEN weir._is_held(ARRAY['weir.release_' || ring]::regclass[]);  -- an open transaction has ended attempts there: the others rotate meanwhile
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      EXECUTE format('LOCK TABLE weir.release_%s IN ACCESS EXCLUSIVE MODE NOWAIT', ring);
      -- Nearly all releases are counted in the newest rows of their gates.
      EXECUTE format('INSERT INTO weir.release (gate, ring, xid, n, lanes) SELECT r.gate, $1, r.xid, r.n, r.lanes FROM weir.release_%s r JOIN weir.queue_limit l ON l.gate = r.gate
                      WHERE NOT EXISTS (SELECT FROM (SELECT g.folded FROM weir.gate g WHERE g.gate = r.gate ORDER BY g.seq DESC LIMIT 1) n
                                        WHERE pg_visible_in_snapshot(r.xid, n.folded))
                         OR r.lanes IS NOT NULL AND NOT pg_visible_in_snapshot(r.xid, (weir._ring_of(l.name)).arrived)', ring) USING active;
      EXECUTE format('TRUNCATE weir.release_%s', ring);
      RETURN 'emptied release ' || ring;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._compact_gates IS
  'Does one small chore for the tables of limits: opens the next table of releases when the active one has 4 MB; empties the others of what is counted; compacts the gates to their newest rows. Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.set_limit(
  queue text, running integer DEFAULT NULL, rate double precision DEFAULT NULL, per interval DEFAULT NULL, burst integer DEFAULT NULL,
  per_key boolean DEFAULT false, in_order boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  by_second double precision;
  gate_no   integer;
BEGIN
  PERFORM weir._check_isolation('set_limit');
  per_key := coalesce(per_key, false);
  in_order := coalesce(in_order, false);
  IF coalesce(queue, '') = '' OR length(queue) > 128 THEN
    RAISE EXCEPTION 'weir: set_limit needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF num_nonnulls(running, rate) = 0 AND NOT in_order THEN
    RAISE EXCEPTION 'weir: set_limit needs running or rate, and both are null' USING ERRCODE = '22023', HINT = 'Pass running, rate or in_order. To remove the limits of a queue, call weir.clear_limit.';
  ELSIF in_order AND NOT (per_key AND coalesce(running, 1) = 1) THEN
    RAISE EXCEPTION 'weir: in_order is for limits per key with 1 running, got per_key % and running %', per_key::text, coalesce(running::text, 'null')
      USING ERRCODE = '22023', HINT = 'Jobs of a key run one after the other, also after failed attempts, with per_key => true, running => 1, in_order => true.';
  ELSIF per_key AND running > 1000 THEN
    RAISE EXCEPTION 'weir: running must be at most 1000 for each key, got %', running USING ERRCODE = '22023';
  ELSIF running < 1 THEN
    RAISE EXCEPTION 'weir: running must be at least 1, got %', running USING ERRCODE = '22023', HINT = 'To stop a queue, pause it.';
  ELSIF rate IS NULL AND num_nonnulls(per, burst) > 0 THEN
    RAISE EXCEPTION 'weir: set_limit got %, but no rate', CASE WHEN per IS NULL THEN 'burst ' || burst ELSE 'per ' || per END USING ERRCODE = '22023', HINT = 'For example: rate => 100, per => ''1 minute'', burst => 10.';
  END IF;
  IF rate IS NOT NULL THEN
    per := coalesce(per, '1 second');
    IF per < interval '1 millisecond' OR per > interval '366 days' THEN
      RAISE EXCEPTION 'weir: per must be 1 millisecond to 1 year, got %', per USING ERRCODE = '22023';
    ELSIF NOT (rate > 0 AND rate <= 1e9) THEN
      RAISE EXCEPTION 'weir: rate must be more than 0, and at most 1000000000, got %', rate USING ERRCODE = '22023', HINT = 'To stop a queue, pause it.';
    END IF;
    by_second := rate / extract(epoch FROM per);
    burst := coalesce(burst, greatest(1, least(1000000, ceil(by_second / 2)))::integer);
    IF by_second > 1e6 OR by_second < 1e-9 THEN
      RAISE EXCEPTION 'weir: a rate must be at most 1000000 a second, and at least 1 in 30 years, got % in %', rate, per USING ERRCODE = '22023';
    ELSIF burst NOT BETWEEN 1 AND 1000000 THEN
      RAISE EXCEPTION 'weir: burst must be 1 to 1000000, got %', burst USING ERRCODE = '22023';
    ELSIF burst / by_second > 36525 * 86400.0 THEN  -- times in the far future would be out of range
      RAISE EXCEPTION 'weir: burst must be at most what may start in 100 years, % at % in %, got %', floor(by_second * 36525 * 86400), rate, per, burst USING ERRCODE = '22023';
    END IF;
  END IF;
  running := CASE WHEN in_order THEN 1 ELSE running END;
  IF EXISTS (SELECT FROM weir.queue_limit l WHERE l.name = queue
               AND CASE WHEN per_key THEN (l.key_running, l.key_rate, l.key_per, l.key_burst, l.in_order) IS NOT DISTINCT FROM (running, rate, per, burst, in_order)
                        ELSE (l.running, l.rate, l.per, l.burst) IS NOT DISTINCT FROM (running, rate, per, burst) END) THEN
    RETURN;  -- many processes declare the same limits when they start
  END IF;
  PERFORM weir._stop_claims('set_limit');
  -- Attempts of keys are counted one by one only while each key has a limit: with a new gate, those that run already are listed.
  SELECT l.gate INTO gate_no FROM weir.queue_limit l WHERE l.name = queue AND NOT (per_key AND running IS NOT NULL AND l.key_running IS NULL);
  IF gate_no IS NULL THEN
    gate_no := nextval('weir.gate_id');
    UPDATE weir.queue q SET gate = gate_no WHERE q.name = queue;
    IF NOT FOUND THEN
      PERFORM weir._check_new_queue(queue);
      INSERT INTO weir.queue (name, gate) VALUES (queue, gate_no);
    END IF;
  END IF;
  IF per_key THEN
    INSERT INTO weir.queue_limit AS l (name, gate, version, key_running, key_rate, key_per, key_burst, in_order)
    VALUES (queue, gate_no, nextval('weir.limit_version'), running, rate, per, burst, in_order)
    ON CONFLICT (name) DO UPDATE SET gate = excluded.gate, version = excluded.version, key_running = excluded.key_running, key_rate = excluded.key_rate,
      key_per = excluded.key_per, key_burst = excluded.key_burst, in_order = excluded.in_order;
  ELSE
    INSERT INTO weir.queue_limit AS l (name, gate, version, running, rate, per, burst) VALUES (queue, gate_no, nextval('weir.limit_version'), running, rate, per, burst)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, running = excluded.running, rate = excluded.rate, per = excluded.per, burst = excluded.burst;
  END IF;
  PERFORM nextval('weir.control');  -- workers claim: there may be more room than before
END
$$;
COMMENT ON FUNCTION weir.set_limit IS
  'Limits what the whole fleet does with the jobs of a queue, of all priorities: at most running attempts at a time; at most rate starts per interval (1 second if NULL), of which burst may start at once after a pause (NULL: half a second''s worth, at least 1). NULL for running or rate: unlimited. With per_key, this is what each key of the queue may do (running at most 1000), besides the limits of the queue as a whole; and with in_order (running 1), no job of a key starts while an earlier one is to be tried again. It replaces the limits of this sort that the queue had; the same limits again change nothing and take no lock. The queue need not exist yet. From the moment it returns no attempt starts beyond the limits; attempts that run already count, and none is interrupted. An attempt holds its place until its end is recorded, or its worker is fenced and the attempt was logged again; a job that waits for its next attempt holds none. Errors: 22023, WR004 (not in READ COMMITTED, or inside a transaction that has written or is old), 55P03 (claims did not end for 5 s: try again). Locks: advisory: claims (exclusive, waiting at most 50 ms at first, and at most 1 s at a time, to the end of the transaction). Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir.clear_limit(queue text, per_key boolean DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
BEGIN
  PERFORM weir._check_isolation('clear_limit');
  IF NOT EXISTS (SELECT FROM weir.queue_limit l WHERE l.name = queue
                   AND (per_key IS NULL OR CASE WHEN per_key THEN num_nonnulls(l.key_running, l.key_rate) ELSE num_nonnulls(l.running, l.rate) END > 0)) THEN
    RETURN false;
  END IF;
  PERFORM weir._stop_claims('clear_limit');
  IF per_key THEN
    UPDATE weir.queue_limit l SET version = nextval('weir.limit_version'), key_running = NULL, key_rate = NULL, key_per = NULL, key_burst = NULL, in_order = false WHERE l.name = queue;
  ELSIF NOT per_key THEN
    UPDATE weir.queue_limit l SET version = nextval('weir.limit_version'), running = NULL, rate = NULL, per = NULL, burst = NULL WHERE l.name = queue;
  END IF;
  DELETE FROM weir.queue_limit l WHERE l.name = queue AND (per_key IS NULL OR num_nonnulls(l.running, l.rate, l.key_running, l.key_rate) = 0);
  IF FOUND THEN
    UPDATE weir.queue q SET gate = NULL WHERE q.name = queue;
  END IF;
  PERFORM nextval('weir.control');
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.clear_limit IS
  'Removes the limits of a queue: those of its keys (per_key), those of the queue as a whole (false), or both (NULL). Returns false if it had none. Errors: WR004 (not in READ COMMITTED, or inside a transaction that has written or is old), 55P03 (claims did not end for 5 s: try again). Locks: as weir.set_limit. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir._stop_claims(caller text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  slept text;
  turn  integer := 50;  -- in ms
BEGIN
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % was called inside a transaction that has written', caller
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: no job of any queue is claimed until its transaction ends.';
  ELSIF clock_timestamp() - now() > interval '2 seconds' THEN
    RAISE EXCEPTION 'weir: % was called inside a transaction that has been open for %', caller, clock_timestamp() - now()
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: no job of any queue is claimed until its transaction ends. If you did, try again.';
  END IF;
  PERFORM weir._hold_briefly();
  -- Claims that come while it waits would wait behind it: so it waits in short turns. They get longer, because on a busy server a claim may take longer.
  LOOP
    BEGIN
      PERFORM set_config('lock_timeout', turn || 'ms', true);
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      PERFORM set_config('lock_timeout', '5s', true);
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      IF clock_timestamp() - now() > interval '5 seconds' THEN
        RAISE EXCEPTION 'weir: % found claims in progress for 5 seconds', caller
          USING ERRCODE = '55P03', HINT = 'Try again. A transaction that called weir.retry or weir.take, or a prepared one, may have been left open.';
      END IF;
    END;
    slept := pg_sleep(0.02 + random() / 20);
    turn := least(2 * turn, 1000);
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._stop_claims IS
  'Waits until no claim is in progress, and lets none begin before the transaction ends. Errors: WR004, 55P03. Locks: advisory: claims (exclusive, waiting at most 50 ms at first, and at most 1 s at a time).';

CREATE OR REPLACE FUNCTION weir.limits()
RETURNS TABLE (queue text, running integer, running_now integer, rate double precision, per interval, burst integer, room integer, next_at timestamptz,
               per_key boolean, in_order boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  lim weir.queue_limit;
  g   record;
BEGIN
  PERFORM weir._lock_log();
  LOCK TABLE weir.gate, weir.release IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^(gate|release_[1-3])$', 'weir: the counts of limits were compacted after this transaction took its snapshot');
  FOR lim IN SELECT l.* FROM weir.queue_limit l ORDER BY l.name LOOP
    queue := lim.name;
    IF num_nonnulls(lim.running, lim.rate) > 0 THEN
      g := weir._gate_now(lim.name, lim.gate, false);
      running := lim.running;
      running_now := g.running;
      rate := lim.rate;
      per := lim.per;
      burst := lim.burst;
      room := CASE WHEN g.seq IS NOT NULL THEN greatest(g.room, 0) END;
      next_at := g.next_at;
      per_key := false;
      in_order := false;
      RETURN NEXT;
    END IF;
    IF num_nonnulls(lim.key_running, lim.key_rate) > 0 THEN
      running := lim.key_running;
      running_now := NULL;
      rate := lim.key_rate;
      per := lim.key_per;
      burst := lim.key_burst;
      room := NULL;
      next_at := NULL;
      per_key := true;
      in_order := lim.in_order;
      RETURN NEXT;
    END IF;
  END LOOP;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.limits IS
  'The limits of queues, in the order of their names, and what they count: running_now attempts run; room more may start at this moment, and if none may because of the rate, the next may at next_at. A queue that nothing was claimed from since it has limits counts nothing yet. A row with per_key is about the limits of each key of the queue, and counts nothing; in_order is as in weir.set_limit. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only: the transaction''s snapshot is too old; run it again). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
