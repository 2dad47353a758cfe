-- Promotion: due attempts from later into the log.
--
-- The cursor is a pair: a point (due, due_id) in the order of run_at, and a snapshot. Promoted is what
-- lies up to the point and was visible to the snapshot. So due now are the visible rows past the point,
-- and the rows up to it that the snapshot could not see: their transaction committed too late.

CREATE OR REPLACE FUNCTION weir.promote(most integer DEFAULT 2000, OUT promoted integer, OUT next_due timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  c       record;
  at_time timestamptz;
BEGIN
  promote.promoted := 0;
  PERFORM weir.check_isolation('promote');
  IF promote.most IS NULL OR promote.most NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'weir: promote takes 1 to 100000 jobs at once, got %', promote.most USING ERRCODE = '22023';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);  -- lost together with its cursor, so done again
  SELECT p.seq, p.due, p.due_id, p.snapshot, pg_snapshot_xmax(p.snapshot) AS xmax,
         ARRAY(SELECT pg_snapshot_xip(p.snapshot)) AS xip INTO c
  FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  at_time := clock_timestamp();

  -- Nothing new and nothing due: nothing is written.
  IF EXISTS (SELECT FROM weir.later l WHERE l.xid >= c.xmax)
     OR EXISTS (SELECT FROM unnest(c.xip) x(xid) CROSS JOIN LATERAL (SELECT FROM weir.later l WHERE l.xid = x.xid LIMIT 1) l)
     OR EXISTS (SELECT FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time) THEN
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.job_id');  -- wakes whoever waits for work
    WITH fresh AS MATERIALIZED (
      SELECT l.* FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time
      ORDER BY l.run_at, l.id LIMIT promote.most
    ), due AS (
      SELECT f.* FROM fresh f
      UNION ALL
      SELECT l.* FROM weir.later l WHERE l.xid >= c.xmax AND NOT ((l.run_at, l.id) > (c.due, c.due_id))  -- so worded to be read by xid
      UNION ALL
      SELECT l.* FROM unnest(c.xip) x(xid) CROSS JOIN LATERAL (SELECT l.* FROM weir.later l WHERE l.xid = x.xid OFFSET 0) l WHERE NOT ((l.run_at, l.id) > (c.due, c.due_id))
    ), logged AS (
      INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
      SELECT d.id, pg_current_xact_id(), d.enqueued_at, d.lane, d.attempt, d.max_attempts, d.put_off,
             (SELECT a.last_value FROM weir.active_job a), d.kind, d.args, d.meta
      FROM due d
      RETURNING 1
    ), reached AS (
      -- Short of the limit, everything up to now is done.
      SELECT CASE WHEN r.n < promote.most THEN greatest(at_time, c.due) ELSE r.dues[r.n] END AS due,
             CASE WHEN r.n < promote.most THEN 9223372036854775807 ELSE r.ids[r.n] END AS due_id
      FROM (SELECT count(*)::integer AS n, array_agg(f.run_at) AS dues, array_agg(f.id) AS ids FROM fresh f) r
    ), moved AS (
      INSERT INTO weir.promotion (seq, due, due_id, snapshot)
      SELECT c.seq + 1, r.due, r.due_id, pg_current_snapshot() FROM reached r
      RETURNING due, due_id
    )
    SELECT (SELECT count(*) FROM logged), m.due, m.due_id INTO promote.promoted, c.due, c.due_id FROM moved m;
  END IF;
  SELECT l.run_at INTO promote.next_due FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) ORDER BY l.run_at, l.id LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir.promote IS
  'Copies due attempts from later into the log, at most so many past the cursor in one call; returns how many and when the next is due (NULL: none is known, or another session is promoting). Locks: advisory step 2 (tried). Isolation: READ COMMITTED. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir.rotate_later(segment_bytes bigint DEFAULT 67108864) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  active  integer;
  target  integer;
  is_full boolean;
  k       record;
  c       record;
  n       bigint;
  live    bigint;
BEGIN
  PERFORM weir.check_isolation('rotate_later');
  IF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN NULL;
  END IF;
  SELECT a.last_value INTO active FROM weir.active_later a;
  SELECT min(s) INTO target FROM generate_series(1, 4) s
  WHERE s <> active AND weir.segment_state('later', s) = 'reclaimed';
  is_full := pg_relation_size('weir.later_' || active) >= rotate_later.segment_bytes;
  IF is_full AND target IS NOT NULL THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('later', active, 'closed'), ('later', target, 'opened');
    PERFORM setval('weir.active_later', target);
    active := target;
  END IF;

  -- A closed segment is given back when nothing in it waits any more; and when space is needed, once at
  -- least half of it has been promoted: so each copy halves.
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR k IN SELECT s.segment FROM weir.segment s WHERE s.log = 'later' AND s.segment <> active
           GROUP BY s.segment HAVING weir.segment_state('later', s.segment) <> 'reclaimed' ORDER BY max(s.no) LOOP
    IF NOT is_full THEN
      CONTINUE WHEN EXISTS (SELECT FROM weir.later l WHERE l.segment = k.segment AND (l.run_at, l.id) > (c.due, c.due_id));
    ELSE
      SELECT count(*), count(*) FILTER (WHERE (l.run_at, l.id) > (c.due, c.due_id)) INTO n, live FROM weir.later l WHERE l.segment = k.segment;
      CONTINUE WHEN live * 2 > n;
    END IF;
    BEGIN
      EXECUTE format('LOCK TABLE weir.later_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
      SELECT count(*), count(*) FILTER (WHERE (l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot))
        INTO n, live FROM weir.later l WHERE l.segment = k.segment;
      CONTINUE WHEN live * 2 > n;
      INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
      SELECT l.id, l.xid, l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, active, l.kind, l.args, l.meta
      FROM weir.later l
      WHERE l.segment = k.segment AND ((l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot));
      EXECUTE format('TRUNCATE weir.later_%s', k.segment);
      INSERT INTO weir.segment (log, segment, event) VALUES ('later', k.segment, 'reclaimed');
      RETURN 'reclaimed later ' || k.segment;
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- a transaction in flight has rows in it: the next one, or later
    END;
  END LOOP;
  RETURN CASE WHEN is_full AND target IS NOT NULL THEN 'opened later ' || target END;
END
$$;
COMMENT ON FUNCTION weir.rotate_later IS
  'Opens the next segment of later when the active one has reached segment_bytes, and gives back a closed one when all of it has been promoted, or, when space is needed, half of it, carrying the rest along unchanged. Returns what it did, or NULL. Locks: advisory step 2 (tried); ACCESS EXCLUSIVE on the segment, NOWAIT.';
