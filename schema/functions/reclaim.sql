-- Reclaiming a closed segment. TRUNCATE frees space immediately, even while other transactions hold old snapshots; but it is not
-- MVCC-safe, and every other access would wait behind its lock. So a segment is first scanned under a lock that blocks no worker, and
-- then emptied in a short step during which claims wait: unfinished jobs are copied unchanged into the active segment, and the
-- segment is truncated.
--
-- The number of rows and bytes that this step may copy is bounded. If more jobs wait to be claimed, they are carried beforehand, in
-- steps of that size: a lane's jobs are copied and deleted under the lane's lock, so that a claim sees each job once.
-- The rows deleted there cost nothing later, because the segment is about to be truncated.

CREATE OR REPLACE FUNCTION weir._reclaim(segment integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET work_mem = '64MB'
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  max_jobs    CONSTANT integer := 10000;  -- copied while others wait, which takes about 50 ms
  max_bytes   CONSTANT bigint := 8388608;
  max_batches CONSTANT integer := 2000;   -- or lanes, which take as long
  max_keys    CONSTANT integer := 2000;   -- that are looked at one by one; more of them all at once
  max_turns   CONSTANT integer := 50000;  -- repeated in one call, which takes half a second
  active      integer;
  lanes       bigint[];
  has_keys    boolean;
  keys        bigint[] := '{}';  -- lanes of keys here
  waiting     bigint[];
  watched     bigint[];  -- where claims from the lanes in waiting write their batches
  turns       bigint[] := '{}';  -- lanes of keys whose newest turn is here, and counts
  newest      bigint[];
  stale       bigint[];
  ids         bigint[];
  b_lanes     bigint[];
  b_seqs      bigint[];
  n           bigint;
  size        bigint;
  too_much    boolean;
  tables      regclass[];
BEGIN
  PERFORM weir._check_isolation('reclaim');
  PERFORM weir._check_cluster();
  active := pg_sequence_last_value('weir.active_job');
  IF _reclaim.segment NOT BETWEEN 1 AND 4 OR _reclaim.segment = active OR NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN false;
  END IF;
  tables := ARRAY['weir.job_' || _reclaim.segment, 'weir.batch_' || _reclaim.segment, 'weir.result_' || _reclaim.segment, 'weir.turn_' || _reclaim.segment]::regclass[];
  IF weir._is_held(tables) THEN
    RETURN false;
  END IF;
  -- With this lock, no transaction in flight has rows here, and none that still considers the segment active
  -- can add any. Claims and results continue.
  EXECUTE format('LOCK TABLE weir.job_%1$s, weir.turn_%1$s IN SHARE MODE NOWAIT', _reclaim.segment);
  LOCK TABLE weir.ring IN ACCESS SHARE MODE;  -- it is not compacted meanwhile: see _late_of

  has_keys := EXISTS (SELECT FROM weir.with_keys);
  -- The long scan. The order matters: later claims from this segment are from lanes that have jobs waiting here now.
  lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p);
  IF has_keys THEN
    keys := ARRAY(SELECT k FROM weir._key_lanes(NULL, NULL, _reclaim.segment, max_keys + 1) k);
  END IF;
  SELECT coalesce(array_agg(DISTINCT u.lane), '{}'), count(*), coalesce(sum(150 + pg_column_size(u.args) + coalesce(pg_column_size(u.meta), 0)), 0)
    INTO waiting, n, size
  FROM (SELECT u.lane, u.args, u.meta FROM weir._unclaimed(_reclaim.segment, lanes || CASE WHEN cardinality(keys) <= max_keys THEN keys ELSE '{}' END, max_jobs + 1) u
        UNION ALL SELECT k.lane, k.args, k.meta FROM weir._unclaimed_of_keys(_reclaim.segment, max_jobs + 1) k WHERE cardinality(keys) > max_keys) u;
  -- Batches of jobs with keys are in the ring lanes of their queues.
  IF has_keys THEN
    lanes := lanes || ARRAY(SELECT (q.id::bigint << 39) + 4 FROM weir.queue q);
  END IF;
  watched := ARRAY(SELECT DISTINCT r FROM (SELECT DISTINCT CASE WHEN w & 549755813880 = 0 THEN w ELSE w >> 39 << 39 | 8 END AS lane FROM unnest(waiting) w) l
                   CROSS JOIN unnest(weir._ring_lanes(l.lane)) r);
  too_much := n > max_jobs OR size > max_bytes OR cardinality(waiting) > max_batches;
  -- These lanes, and those whose state is in a batch here.
  SELECT coalesce(array_agg(l.lane), '{}'), coalesce(array_agg(l.seq), '{}'), coalesce(array_agg(l.lane) FILTER (WHERE l.is_here), '{}')
    INTO lanes, newest, stale
  FROM (
    SELECT l.lane, coalesce(s.seq, 0) AS seq, s.segment = _reclaim.segment AND NOT EXISTS (
      SELECT FROM weir.batch b WHERE b.lane = l.lane AND b.seq = s.seq AND b.segment <> _reclaim.segment) AS is_here
    FROM unnest(lanes) l(lane)
    LEFT JOIN LATERAL (SELECT b.seq, b.segment FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
    WHERE NOT too_much) l
  WHERE l.is_here OR l.lane = ANY (watched);
  IF cardinality(stale) > max_batches THEN
    PERFORM weir._carry_states(_reclaim.segment, active, stale);
    PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + 1);
    RETURN false;
  END IF;
  IF NOT too_much THEN
    -- An attempt ends once, so a batch with as many results as jobs has ended. Only for the others, the unfinished jobs are searched.
    SELECT coalesce(array_agg(u.lane), '{}'), coalesce(array_agg(u.seq), '{}') INTO b_lanes, b_seqs
    FROM (
      SELECT b.lane, b.seq
      FROM (SELECT k.lane, k.seq, sum(cardinality(k.ids)) AS n FROM weir.batch k WHERE k.segment = _reclaim.segment GROUP BY k.lane, k.seq) b
      LEFT JOIN (SELECT k.lane, k.seq, sum(cardinality(k.ids)) AS n FROM weir.result k WHERE k.segment = _reclaim.segment GROUP BY k.lane, k.seq) r
        ON r.lane = b.lane AND r.seq = b.seq
      WHERE b.n <> coalesce(r.n, 0) LIMIT max_batches + 1) u;
    too_much := cardinality(b_lanes) > max_batches;
  END IF;
  IF NOT too_much THEN
    ids := ARRAY(
      SELECT i.id FROM unnest(b_lanes, b_seqs) e(lane, seq)
      CROSS JOIN LATERAL (
        SELECT unnest(b.ids) AS id FROM weir.batch b WHERE b.segment = _reclaim.segment AND b.lane = e.lane AND b.seq = e.seq
        EXCEPT
        SELECT unnest(r.ids) FROM weir.result r WHERE r.segment = _reclaim.segment AND r.lane = e.lane AND r.seq = e.seq) i
      LIMIT max_jobs + 1);
    SELECT size + coalesce(sum(150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0)), 0) INTO size FROM unnest(ids) i(id)
    CROSS JOIN LATERAL (SELECT j.* FROM weir.job j WHERE j.segment = _reclaim.segment AND j.id = i.id OFFSET 0) j;
    too_much := n + cardinality(ids) > max_jobs OR size > max_bytes;
  END IF;
  IF NOT too_much AND has_keys THEN
    turns := weir._kept_turns(_reclaim.segment, waiting || ARRAY(
      SELECT DISTINCT k.lane FROM unnest(b_lanes, b_seqs) e(lane, seq)
      CROSS JOIN LATERAL (SELECT b.ids, b.lanes FROM weir.batch b WHERE b.segment = _reclaim.segment AND b.lane = e.lane AND b.seq = e.seq AND b.lanes IS NOT NULL OFFSET 0) b
      CROSS JOIN LATERAL unnest(b.ids, b.lanes) k(id, lane)));
    IF cardinality(turns) > max_batches THEN
      PERFORM weir._carry_turns(_reclaim.segment, active, turns[: max_turns]);
      PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + 1);
      RETURN false;
    END IF;
  END IF;
  IF too_much THEN
    -- Waiting jobs are carried, at most half as many bytes as have been logged since the active segment was opened. Running jobs will end.
    IF n > 0 AND pg_sequence_last_value('weir.carried') * 2 <= weir._segment_bytes(active) THEN
      PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + weir._carry_waiting(_reclaim.segment, active, waiting, max_jobs, max_bytes));
    END IF;
    RETURN false;
  ELSIF weir._is_held(tables) THEN
    RETURN false;
  END IF;

  -- The short step. Claims and most results are autocommit calls, so each wait is short; all waits are bounded.
  PERFORM set_config('lock_timeout', '250ms', true);  -- on a busy server, or in a session that plans its first, a claim may take long
  PERFORM pg_advisory_xact_lock(1464158547, 0);
  PERFORM set_config('lock_timeout', '25ms', true);
  PERFORM pg_advisory_xact_lock(1464158549, _reclaim.segment);
  EXECUTE format('LOCK TABLE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s, weir.turn_%1$s IN ACCESS EXCLUSIVE MODE', _reclaim.segment);
  PERFORM weir._carry_turns(_reclaim.segment, active, turns);
  PERFORM weir._carry_unfinished(_reclaim.segment, active, waiting, lanes, newest, b_lanes, b_seqs);
  EXECUTE format('TRUNCATE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s, weir.turn_%1$s', _reclaim.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('job', _reclaim.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;  -- the segment is in use: try again later
END
$$;
COMMENT ON FUNCTION weir._reclaim IS
  'Empties a closed segment: copies its unclaimed and running jobs, with their xids, ids and batches, into the active one, and truncates it. Returns false if that is not done yet, because the segment is in use, or more than 10000 jobs or 8 MB of it are unfinished; in that case it may have carried some of the waiting jobs. Locks: advisory step 1 (tried); SHARE on the segment''s jobs (NOWAIT) during the scan; to carry, the lanes (exclusive, tried); to empty, claims (exclusive, waiting at most 250 ms), the segment (exclusive) and ACCESS EXCLUSIVE on its tables (at most 25 ms for each), but not while another transaction keeps a lock on them. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._is_held(tables regclass[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  holders text[];
  seen    text[];
BEGIN
  FOR check_no IN 1..20 LOOP
    SELECT array_agg(l.virtualtransaction) INTO seen FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = ANY (_is_held.tables::oid[]) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (holders IS NULL OR l.virtualtransaction = ANY (holders));
    IF seen IS NULL THEN
      RETURN false;
    END IF;
    holders := seen;
    PERFORM pg_sleep(0.005);
  END LOOP;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._is_held IS
  'Reports whether a transaction of another session holds a lock on one of the tables, in any mode, and keeps it for a tenth of a second. Requesting ACCESS EXCLUSIVE would then block later sessions, and fail.';

CREATE OR REPLACE FUNCTION weir._unclaimed(segment integer, lanes bigint[], max_rows integer DEFAULT NULL) RETURNS SETOF weir.job
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  WITH late AS MATERIALIZED (
    SELECT q.id, weir._late_of(q.name) AS xids FROM (SELECT DISTINCT l >> 39 AS id FROM unnest(_unclaimed.lanes) l WHERE l & 549755813880 <> 0) d
    CROSS JOIN LATERAL (SELECT q.id, q.name FROM weir.queue q WHERE q.id = d.id::integer OFFSET 0) q
  )
  SELECT j.*
  FROM unnest(_unclaimed.lanes) l(lane)
  LEFT JOIN LATERAL (
    (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE l.lane & 549755813880 = 0 AND b.lane = l.lane ORDER BY b.seq DESC LIMIT 1)
    UNION ALL
    (SELECT t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t WHERE l.lane & 549755813880 <> 0 AND t.lane = l.lane ORDER BY t.seq DESC LIMIT 1)) s ON true
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = _unclaimed.segment AND j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
    UNION ALL
    SELECT j.* FROM (SELECT p.xid, p.after FROM unnest(s.pending, s.pending_after) p(xid, after)
                     UNION ALL SELECT x, 0 FROM late f CROSS JOIN LATERAL unnest(f.xids) x WHERE f.id = (l.lane >> 39)::integer AND l.lane & 549755813880 <> 0 AND x < s.pos_xid) p
    CROSS JOIN LATERAL (
      SELECT j.* FROM weir.job j WHERE j.segment = _unclaimed.segment AND j.lane = l.lane AND j.xid = p.xid AND j.id > p.after OFFSET 0) j) j
  LIMIT _unclaimed.max_rows
$$;
COMMENT ON FUNCTION weir._unclaimed IS
  'The jobs in one segment that no batch has claimed yet, in some lanes: those past the position, and those of a pending transaction (see _state_of).';

CREATE OR REPLACE FUNCTION weir._unclaimed_of_keys(segment integer, max_rows integer) RETURNS SETOF weir.job
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET work_mem = '64MB'
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH late AS MATERIALIZED (
    SELECT q.id, weir._late_of(q.name) AS xids FROM weir.queue q WHERE EXISTS (SELECT FROM weir.with_keys w WHERE w.queue = q.name)
  )
  SELECT j.* FROM weir.job j
  LEFT JOIN (SELECT DISTINCT ON (t.lane) t.lane, t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t ORDER BY t.lane, t.seq DESC) s ON s.lane = j.lane
  LEFT JOIN late f ON f.id = (j.lane >> 39)::integer
  WHERE j.segment = _unclaimed_of_keys.segment AND j.lane & 549755813880 <> 0
    AND weir._waits(j.xid, j.id, s.pos_xid, s.pos_id, s.pending, s.pending_after, f.xids)
  LIMIT max_rows;
END
$$;
COMMENT ON FUNCTION weir._unclaimed_of_keys IS 'As _unclaimed, for all lanes of keys: it reads the whole segment once, however many lanes there are.';
