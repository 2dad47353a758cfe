-- Segments of the log: rotation and reclaiming. TRUNCATE gives space back at once, whoever holds an
-- old snapshot; but it is not MVCC-safe, and its lock would stall everybody behind it. So a segment is
-- looked through under a lock that stops nobody, then emptied in a short step during which claims wait.

CREATE OR REPLACE FUNCTION weir.rotate() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'retention');
  bytes     bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer;
  target    integer;
  size      bigint;
  opened_at timestamptz;
  k         record;
BEGIN
  PERFORM weir.check_isolation('rotate');
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  SELECT a.last_value INTO active FROM weir.active_job a;
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir.segment_state('job', s) = 'reclaimed';
  size := pg_relation_size('weir.job_' || active) + pg_relation_size('weir.batch_' || active) + pg_relation_size('weir.result_' || active);
  SELECT max(s.at) INTO opened_at FROM weir.segment s WHERE s.log = 'job' AND s.segment = active AND s.event = 'opened';

  IF target IS NOT NULL AND size > 0 AND (size >= bytes OR coalesce(clock_timestamp() - opened_at >= greatest(retention / 2, interval '1 second'), true)) THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('job', active, 'closed'), ('job', target, 'opened');
    PERFORM setval('weir.active_job', target);  -- last: it does not roll back
    RETURN 'opened job ' || target;
  END IF;

  -- One that is not active is closed, whatever its last event says: setval stays where a caller rolls back.
  FOR k IN SELECT s.segment, max(s.at) AS closed_at FROM weir.segment s WHERE s.log = 'job' AND s.segment <> active
           GROUP BY s.segment HAVING weir.segment_state('job', s.segment) <> 'reclaimed' ORDER BY 2 LOOP
    IF clock_timestamp() - k.closed_at >= retention OR (target IS NULL AND size >= bytes / 2) THEN
      IF weir.reclaim(k.segment) THEN
        RETURN 'reclaimed job ' || k.segment;
      END IF;
    END IF;
  END LOOP;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir.rotate IS
  'Takes the next step in the life of segments, if one is due: opens a free segment when the active one is a quarter of retention_bytes or half of retention old; reclaims the oldest closed one when retention has passed, or when no free one is left. Returns what it did, or NULL. Locks: advisory step 1 (tried); see reclaim.';

CREATE OR REPLACE FUNCTION weir.reclaim(segment integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET work_mem = '64MB'
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  -- Carried in one go, while claims wait: about 0.1 s for 20,000. More only when no segment is free.
  most    integer := 500000;
  active  integer;
  lanes   integer[];
  newest  bigint[];
  u_lanes integer[];
  u_seqs  bigint[];
  n       bigint;
BEGIN
  PERFORM weir.check_isolation('reclaim');
  SELECT a.last_value INTO active FROM weir.active_job a;
  IF EXISTS (SELECT FROM generate_series(1, 4) s WHERE s <> active AND weir.segment_state('job', s) = 'reclaimed') THEN
    most := 20000;
  END IF;
  IF reclaim.segment NOT BETWEEN 1 AND 4 OR reclaim.segment = active OR NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN false;
  END IF;
  -- No transaction in flight has rows here, and no straggler that still takes it for the active one
  -- can add any. Claims and results go on.
  EXECUTE format('LOCK TABLE weir.job_%s IN SHARE MODE NOWAIT', reclaim.segment);

  -- The long look: where every lane stands, which batches here have unfinished jobs.
  SELECT array_agg(q.id * 4 + p), array_agg(coalesce(b.seq, 0)) INTO lanes, newest
  FROM weir.queue q CROSS JOIN generate_series(0, 3) p
  LEFT JOIN LATERAL (SELECT b.seq FROM weir.batch b WHERE b.lane = q.id * 4 + p ORDER BY b.seq DESC LIMIT 1) b ON true;
  SELECT count(*) INTO n FROM (SELECT FROM weir.unclaimed(reclaim.segment, lanes) LIMIT most + 1) c;
  IF n > most THEN
    RAISE lock_not_available;
  END IF;
  SELECT array_agg(u.lane), array_agg(u.seq), sum(u.n) INTO u_lanes, u_seqs, n
  FROM (
    SELECT e.lane, e.seq, count(*) AS n FROM (
      SELECT b.lane, b.seq, i.id FROM weir.batch b, unnest(b.ids) i(id) WHERE b.segment = reclaim.segment
      EXCEPT
      SELECT r.lane, r.seq, i.id FROM weir.result r, unnest(r.ids) i(id) WHERE r.segment = reclaim.segment) e
    GROUP BY e.lane, e.seq) u;
  IF n > most THEN
    RAISE lock_not_available;
  END IF;

  -- The short step. Claims are autocommit calls, so the wait for them is short, and bounded.
  PERFORM pg_advisory_xact_lock(1464158547, 0);
  IF NOT pg_try_advisory_xact_lock(1464158549, reclaim.segment) THEN
    RAISE lock_not_available;  -- out through the handler, which lets go of all of it
  END IF;
  EXECUTE format('LOCK TABLE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s IN ACCESS EXCLUSIVE MODE NOWAIT', reclaim.segment);

  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
  SELECT j.id, j.xid, j.enqueued_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta
  FROM weir.unclaimed(reclaim.segment, lanes) j;

  WITH suspect AS (
    SELECT u.lane, u.seq FROM unnest(u_lanes, u_seqs) u(lane, seq)
    UNION  -- claimed since the look; and every lane's newest batch, which holds its state
    SELECT b.lane, b.seq FROM unnest(lanes, newest) l(lane, seq) JOIN weir.batch b ON b.lane = l.lane AND b.seq >= l.seq AND b.segment = reclaim.segment
  ), kept AS MATERIALIZED (
    SELECT b.*, ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
                      EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq) AS unfinished,
           b.seq = (SELECT max(m.seq) FROM weir.batch m WHERE m.lane = b.lane) AS is_newest
    FROM suspect s JOIN weir.batch b ON b.lane = s.lane AND b.seq = s.seq AND b.segment = reclaim.segment
  ), batches AS (
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
    SELECT k.lane, active, k.origin, k.worker, k.seq, k.from_xid, k.to_xid, k.pos_xid, k.pos_id, k.total, k.claimed_at, k.no, k.pending, k.pending_after, k.unfinished
    FROM kept k WHERE k.is_newest OR k.unfinished <> '{}'
  )
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
  SELECT j.id, j.xid, j.enqueued_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta
  FROM kept k CROSS JOIN unnest(k.unfinished) i(id)
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = reclaim.segment AND j.lane = k.lane AND j.xid >= k.from_xid AND j.xid <= k.to_xid AND j.id = i.id
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;  -- not an earlier attempt in the same span

  EXECUTE format('TRUNCATE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s', reclaim.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('job', reclaim.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;  -- somebody is at work in it, or too much of it is unfinished: later
END
$$;
COMMENT ON FUNCTION weir.reclaim IS
  'Empties a closed segment, carrying its unclaimed and running jobs, xid and id unchanged, with their batches, into the active one. False, and nothing done, when it is in use or too much of it is unfinished. Locks: advisory step 1 (tried), SHARE on the segment''s jobs (NOWAIT) during the look; then claims (exclusive, at most 50 ms of waiting), the segment (exclusive, tried), ACCESS EXCLUSIVE on its tables (NOWAIT).';

CREATE OR REPLACE FUNCTION weir.unclaimed(segment integer, lanes integer[]) RETURNS SETOF weir.job
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT j.*
  FROM unnest(unclaimed.lanes) l(lane)
  LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = unclaimed.segment AND j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
    UNION ALL
    SELECT j.* FROM unnest(s.pending, s.pending_after) p(xid, after)
    CROSS JOIN LATERAL (
      SELECT j.* FROM weir.job j WHERE j.segment = unclaimed.segment AND j.lane = l.lane AND j.xid = p.xid AND j.id > p.after OFFSET 0) j) j
$$;
COMMENT ON FUNCTION weir.unclaimed IS 'The jobs in one segment that no batch has handed out yet: past the position, or of a pending transaction.';

CREATE OR REPLACE FUNCTION weir.segment_state(log text, segment integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((
    SELECT s.event FROM weir.segment s WHERE s.log = segment_state.log AND s.segment = segment_state.segment
    ORDER BY s.at DESC LIMIT 1), 'reclaimed')
$$;
COMMENT ON FUNCTION weir.segment_state IS 'opened, closed or reclaimed. A segment never used counts as reclaimed.';
