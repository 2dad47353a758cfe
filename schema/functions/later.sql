-- Promotion copies due attempts from weir.later into the log.
--
-- The cursor is a pair: a point (due, due_id) in the order of run_at, and a snapshot. Rows up to the point that the snapshot could see
-- are promoted. Therefore two kinds of rows are due now: visible rows past the point up to now, and rows up to the point that the
-- snapshot could not see, because their transaction committed later.
--
-- The clock decides what is due, and nothing else. If the clock steps back, now lies before the point. Then the new point is now, and
-- the old cursor is kept beside the new one (ahead): rows that its snapshot could see up to its point are promoted, whatever the clock
-- says; newer rows wait for their time. The same happens if more jobs are late than fit into one call: they too are promoted in order.

CREATE OR REPLACE FUNCTION weir._was_ahead(c weir.promotion, run_at timestamptz, id bigint, xid xid8) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT EXISTS (SELECT FROM unnest(c.ahead_due, c.ahead_id, c.ahead_snapshot) a(due, id, snapshot)
                 WHERE (_was_ahead.run_at, _was_ahead.id) <= (a.due, a.id) AND pg_visible_in_snapshot(_was_ahead.xid, a.snapshot))
$$;
COMMENT ON FUNCTION weir._was_ahead IS
  'Reports whether a row of weir.later was promoted before the clock stepped back, according to the earlier cursors that are kept beside the newest.';

CREATE OR REPLACE FUNCTION weir._waits_later(c weir.promotion, run_at timestamptz, id bigint, xid xid8) RETURNS boolean
LANGUAGE sql STABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT ((_waits_later.run_at, _waits_later.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(_waits_later.xid, c.snapshot))
    AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, _waits_later.run_at, _waits_later.id, _waits_later.xid))
$$;
COMMENT ON FUNCTION weir._waits_later IS
  'Whether a row of weir.later waits for its time, according to the newest cursor of promotion. Rows that were promoted stay there until their segment is emptied. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._overdue(c weir.promotion, most integer) RETURNS SETOF weir.later
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT n.* FROM (
    SELECT l.* FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e
    CROSS JOIN LATERAL (SELECT l.* FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high OFFSET 0) l  -- read by xid
    LIMIT most) n
  WHERE NOT ((n.run_at, n.id) > (c.due, c.due_id));
END
$$;
COMMENT ON FUNCTION weir._overdue IS
  'Rows up to a cursor''s point that its snapshot could not see, for those who show what is scheduled: their transactions were committed after their time, so the next promotion logs them. It reads up to most rows of transactions that have ended since, however many those are. Locks: ACCESS SHARE on weir.later, which the caller releases. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._promote(max_rows integer DEFAULT 2000, upto timestamptz DEFAULT NULL, ahead interval DEFAULT '10 seconds', OUT promoted integer, OUT next_due timestamptz)
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
  c       weir.promotion;
  at_time timestamptz;
  at_now  timestamptz;
  is_new  boolean;
  is_due  boolean;
  is_held boolean;
  seen    pg_snapshot;
  quota   integer := _promote.max_rows;
  marks   weir.later[];  -- of schedules that are due
BEGIN
  _promote.promoted := 0;
  PERFORM weir._check_isolation('promote'), weir._hold_briefly();
  IF _promote.max_rows IS NULL OR _promote.max_rows NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'weir: promote needs a limit of 1 to 100000 jobs, got %', _promote.max_rows USING ERRCODE = '22023';
  ELSIF NOT isfinite(_promote.upto) THEN
    RAISE EXCEPTION 'weir: promote needs a finite time, got %', _promote.upto USING ERRCODE = '22023';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    -- It would see its own jobs, and promote them a second time.
    RAISE EXCEPTION 'weir: promote needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN;
  END IF;
  PERFORM weir._check_cluster();
  PERFORM set_config('synchronous_commit', 'off', true);  -- a lost promotion is repeated, because its cursor is lost with it
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  at_time := greatest(clock_timestamp(), _promote.upto);
  -- One call adds up to two cursors: that of a clock that has stepped back, and upto. If that happens again and again, some jobs are promoted early,
  -- so that the list of cursors stays short: either no older cursor is added, or upto reaches the nearest one.
  IF cardinality(c.ahead_due) > 14 THEN
    at_time := greatest(at_time, c.due);
    IF _promote.upto >= at_time THEN
      at_time := coalesce((SELECT min(a) FROM unnest(c.ahead_due) a WHERE a >= at_time), at_time);
    END IF;
    quota := NULL;
  END IF;

  WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
  ended AS MATERIALIZED (SELECT e.low, e.high FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e)
  SELECT EXISTS (SELECT FROM ended e CROSS JOIN LATERAL (SELECT FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high LIMIT 1) l),
         EXISTS (SELECT FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time),
         pg_snapshot_xmin(s.snapshot) < pg_snapshot_xmax(s.snapshot) OR age(pg_snapshot_xmax(s.snapshot)::xid) > 0, s.snapshot
    INTO is_new, is_due, is_held, seen FROM s;
  -- If nothing is new and nothing is due, nothing is written. However, every poll scans due rows of transactions in progress until the
  -- point is past them, so the point still advances every few seconds.
  IF NOT is_new AND NOT is_due AND c.ahead_due IS NULL AND _promote.upto IS NULL THEN
    -- Nothing is logged, so nobody is woken: on a server with other databases, where some transaction is always in progress, none would rest.
    IF is_held AND c.due < at_time - interval '2 seconds' THEN
      INSERT INTO weir.promotion (seq, due, due_id, snapshot) VALUES (c.seq + 1, at_time, 9223372036854775807, seen) RETURNING due, due_id INTO c.due, c.due_id;
    END IF;
  ELSIF is_new OR is_due OR is_held AND c.due < at_time - interval '2 seconds' THEN
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.job_id');  -- wakes idle workers
    WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
    ended AS MATERIALIZED (SELECT e.low, e.high FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e),
    late AS MATERIALIZED (
      SELECT l.* FROM ended e CROSS JOIN LATERAL (SELECT l.* FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high OFFSET 0) l  -- read by xid
      WHERE NOT ((l.run_at, l.id) > (c.due, c.due_id)) AND l.run_at <= at_time
    ), fresh AS MATERIALIZED (
      SELECT l.* FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time
        AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
      ORDER BY l.run_at, l.id LIMIT quota
    ), due AS MATERIALIZED (
      SELECT d.* FROM (SELECT l.* FROM late l UNION ALL SELECT f.* FROM fresh f) d ORDER BY d.run_at, d.id LIMIT quota
    ), logged AS (
      INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT d.id, pg_current_xact_id(), d.enqueued_at, d.run_at, d.lane, d.attempt, d.max_attempts, d.put_off,
             (SELECT a.last_value FROM weir.active_job a), d.kind, d.args, d.meta, d.errors, d.unique_key, d.unique_no, d.unique_until, d.key, d.flow
      FROM due d WHERE d.lane > 0
      RETURNING 1
    ), reached AS (
      -- Below the limit, everything up to now is promoted.
      SELECT CASE WHEN r.n = quota THEN r.dues[r.n] ELSE at_time END AS due,
             CASE WHEN r.n = quota THEN r.ids[r.n] ELSE 9223372036854775807 END AS due_id
      FROM (SELECT count(*)::integer AS n, array_agg(d.run_at) AS dues, array_agg(d.id) AS ids FROM due d) r
    ), moved AS (
      INSERT INTO weir.promotion (seq, due, due_id, snapshot, ahead_due, ahead_id, ahead_snapshot)
      SELECT c.seq + 1, r.due, r.due_id, s.snapshot, a.dues, a.ids, a.snapshots
      FROM s, reached r CROSS JOIN LATERAL (
        SELECT array_agg(a.due) AS dues, array_agg(a.id) AS ids, array_agg(a.snapshot) AS snapshots
        FROM (SELECT * FROM unnest(c.ahead_due, c.ahead_id, c.ahead_snapshot) UNION ALL SELECT c.due, c.due_id, c.snapshot) a(due, id, snapshot)
        WHERE (a.due, a.id) > (r.due, r.due_id)) a
      RETURNING due, due_id, ahead_due, ahead_id, ahead_snapshot
    )
    SELECT (SELECT count(*) FROM logged), (SELECT array_agg(d::weir.later) FROM due d WHERE d.lane = 0), m.due, m.due_id, m.ahead_due, m.ahead_id, m.ahead_snapshot
      INTO _promote.promoted, marks, c.due, c.due_id, c.ahead_due, c.ahead_id, c.ahead_snapshot FROM moved m;
    IF marks IS NOT NULL THEN
      _promote.promoted := _promote.promoted + weir._fire(marks, at_time, _promote.max_rows);
    END IF;
    at_now := clock_timestamp();  -- read once: rows between two readings would be skipped
    IF _promote.upto IS NOT NULL AND c.due > at_now THEN  -- back to now: rows that are added from here on wait for their time
      INSERT INTO weir.promotion (seq, due, due_id, snapshot, ahead_due, ahead_id, ahead_snapshot)
      SELECT p.seq + 1, at_now, 9223372036854775807, p.snapshot, p.due || p.ahead_due, p.due_id || p.ahead_id, p.snapshot || p.ahead_snapshot
      FROM weir.promotion p WHERE p.seq = c.seq + 1
      RETURNING due, due_id, ahead_due, ahead_id, ahead_snapshot INTO c.due, c.due_id, c.ahead_due, c.ahead_id, c.ahead_snapshot;
    END IF;
  END IF;
  SELECT l.run_at INTO _promote.next_due FROM weir.later l
  WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time + _promote.ahead  -- doesn't scan all rows of transactions in progress
    AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
  ORDER BY l.run_at, l.id LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir._promote IS
  'Copies due attempts from weir.later into the log, in the order of run_at, up to max_rows in one call, and fires schedules that are due (see _fire). Returns how many jobs it has logged, and when the next one is due if that is within ahead (NULL: none is, or another session is promoting). If upto is in the future, attempts up to that time are due, as if the clock showed it and then stepped back: for tests of scheduled jobs. Errors: WR003, WR004 (not in READ COMMITTED autocommit), 22023. Locks: advisory step 2 (tried). Isolation: READ COMMITTED. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._rotate_later(segment_bytes bigint DEFAULT 67108864) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  active      integer;
  target      integer;
  is_full     boolean;
  k           record;
  c           weir.promotion;
  max_carried CONSTANT bigint := 100000;  -- rows
  pages       bigint;
  n           bigint;
  live        bigint;
BEGIN
  PERFORM weir._check_isolation('rotate_later'), weir._hold_briefly();
  PERFORM weir._check_cluster();
  IF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN NULL;
  END IF;
  SELECT a.last_value INTO active FROM weir.active_later a;
  SELECT min(s) INTO target FROM generate_series(1, 4) s
  WHERE s <> active AND weir._segment_state('later', s) = 'reclaimed';
  is_full := pg_relation_size('weir.later_' || active) >= _rotate_later.segment_bytes;
  IF is_full AND target IS NOT NULL THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('later', active, 'closed'), ('later', target, 'opened');
    PERFORM setval('weir.active_later', target);
    active := target;
  END IF;

  -- A closed segment is reclaimed when all its rows are promoted; if space is needed, once at least half of them are,
  -- so that each copy has at most half the size. A sample of a hundred pages decides.
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR k IN SELECT s.segment FROM weir.segment s WHERE s.log = 'later' AND s.segment <> active
           GROUP BY s.segment HAVING weir._segment_state('later', s.segment) <> 'reclaimed' ORDER BY max(s.no) LOOP
    IF EXISTS (SELECT FROM weir.later l WHERE l.segment = k.segment AND (l.run_at, l.id) > (c.due, c.due_id)) THEN
      CONTINUE WHEN NOT is_full;
      pages := pg_relation_size('weir.later_' || k.segment) / current_setting('block_size')::integer;
      EXECUTE format('SELECT count(*), count(*) FILTER (WHERE l.run_at > $1) FROM weir.later_%s l TABLESAMPLE SYSTEM ($2)', k.segment)
        INTO n, live USING c.due, least(100 * 100.0 / greatest(pages, 1), 100);
      CONTINUE WHEN live * 2 > n OR live * (pages / 100.0) > max_carried;
    END IF;
    BEGIN
      EXECUTE format('LOCK TABLE weir.later_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
      INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT l.id, l.xid, l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, active, l.kind, l.args, l.meta, l.errors, l.unique_key, l.unique_no, l.unique_until, l.key, l.flow
      FROM weir.later l
      WHERE l.segment = k.segment AND weir._waits_later(c, l.run_at, l.id, l.xid);
      EXECUTE format('TRUNCATE weir.later_%s', k.segment);
      INSERT INTO weir.segment (log, segment, event) VALUES ('later', k.segment, 'reclaimed');
      RETURN 'reclaimed later ' || k.segment;
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- a transaction in flight has rows in it: try the next segment, or try again later
    END;
  END LOOP;
  RETURN CASE WHEN is_full AND target IS NOT NULL THEN 'opened later ' || target END;
END
$$;
COMMENT ON FUNCTION weir._rotate_later IS
  'Opens the next segment of weir.later when the active one has reached segment_bytes. Reclaims a closed one when all its rows are promoted; or, if space is needed, when at least half of them are and about 100,000 at most are left, which are copied unchanged into the active segment. Returns what it did, or NULL. Locks: advisory step 2 (tried); ACCESS EXCLUSIVE on the segment, NOWAIT.';
