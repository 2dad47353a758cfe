-- Lists of jobs that wait, run or are scheduled: see list.sql.

CREATE OR REPLACE FUNCTION weir._next_available(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  bound    CONSTANT integer := 500;  -- lanes in a group
  step     CONSTANT integer := 20;
  no_end   CONSTANT bigint := 9223372036854775807;
  v        record := weir._in_progress();
  -- The queue, if all lanes are those of one.
  queue    text := (SELECT q.name FROM weir.queue q WHERE q.id = (_next_available.lanes[1] >> 39)::integer);
  of_keys  boolean := coalesce(after->>0 = 'keys' OR lanes[1] & 549755813880 <> 0, false);
  -- A group contains the lanes between two places in the order of priority, then queue: place = priority << 32 | queue id.
  from_    bigint := CASE WHEN of_keys THEN 0 ELSE coalesce((after->>0)::bigint, 0) END;
  upto     bigint := (after->>1)::bigint;  -- NULL: a new group
  first    integer := CASE WHEN of_keys THEN 0 ELSE coalesce((after->>2)::integer, from_ >> 32) END;  -- priority
  at_xid   xid8 := CASE WHEN of_keys THEN '0' ELSE coalesce((after->>3)::xid8, '0') END;
  at_id    bigint := coalesce((after->>4)::bigint, 0);
  upto_xid xid8;
  upto_id  bigint;
  s        weir.survey;
  places   bigint[];
  head     record;
  shown    integer := 0;
  n        integer := 0;
  found    integer;
BEGIN
  IF lanes = '{}' THEN
    RETURN;
  ELSIF of_keys THEN
    RETURN QUERY SELECT k.* FROM weir._next_of_keys(queue, coalesce((after->>1)::bigint, 0), coalesce((after->>2)::xid8, '0'), coalesce((after->>3)::bigint, 0), most,
                                                    CASE WHEN lanes[1] & 549755813880 <> 0 THEN lanes END) k;
    RETURN;
  END IF;
  IF lanes IS NULL THEN
    s := weir._surveyed();
    lanes := s.waiting;
  ELSE
    lanes := ARRAY(SELECT l FROM unnest(lanes) l WHERE l & 4 = 0);
  END IF;
  -- The end of a group is fixed when it begins, so that no lane moves to another group when others become idle or busy.
  places := ARRAY(
    SELECT k.place FROM (
      SELECT (l & 3) << 32 | (l >> 39) AS place FROM unnest(_next_available.lanes) l
      UNION ALL
      SELECT q.place FROM generate_series(from_ >> 32, 3) p CROSS JOIN LATERAL (
        SELECT p << 32 | q.id AS place FROM weir.queue q
        WHERE q.id > s.upto AND q.id >= CASE WHEN p = from_ >> 32 THEN from_ & 4294967295 ELSE 0 END
        ORDER BY q.id LIMIT CASE WHEN upto IS NULL THEN bound + 1 END) q) k
    WHERE k.place BETWEEN from_ AND coalesce(upto, no_end)
    ORDER BY k.place LIMIT CASE WHEN upto IS NULL THEN bound + 1 END);
  IF places = '{}' AND upto IS NULL THEN
    RETURN QUERY SELECT k.* FROM weir._next_of_keys(queue, 0, '0', 0, most) k;
    RETURN;
  ELSIF upto IS NULL THEN
    upto := coalesce(places[bound + 1] - 1, no_end);
    places := places[1:bound];
  END IF;

  -- No other lane has a job on the page.
  SELECT array_agg(h.lane) AS lanes, array_agg(h.xid) AS xids, array_agg(h.id) AS ids INTO head
  FROM (
    SELECT l.lane, w.xid, w.id
    FROM unnest(places) p(place) CROSS JOIN LATERAL (SELECT ((p.place & 4294967295) << 39) + (p.place >> 32) AS lane) l
    CROSS JOIN LATERAL weir._waiting(l.lane, v.running, v.top, CASE WHEN l.lane & 3 = first THEN at_xid ELSE '0' END, CASE WHEN l.lane & 3 = first THEN at_id ELSE 0 END, 1) w
    WHERE l.lane & 3 >= first
    ORDER BY l.lane & 3, w.xid, w.id LIMIT most + 1) h;
  place := jsonb_build_array(from_, upto, first, at_xid::text, at_id);
  cost := 12 * cardinality(places);
  RETURN NEXT;
  WHILE shown < most AND n < coalesce(cardinality(head.lanes), 0) LOOP
    -- A few lanes at a time, up to the first job of the next lane.
    n := n + step;
    upto_xid := coalesce(head.xids[n + 1], '18446744073709551615');
    upto_id := coalesce(head.ids[n + 1] - 1, no_end);
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = r.id) THEN r.id END,  -- cancelled jobs stay in the log until they are claimed
           NULL::timestamptz, jsonb_build_array(from_, upto, r.priority, r.xid::text, r.id), CASE r.nr WHEN 1 THEN 12 * n + r.rows ELSE 1 END::integer
    FROM (
      SELECT l.lane & 3 AS priority, w.xid, w.id, count(*) OVER () AS rows, row_number() OVER (ORDER BY l.lane & 3, w.xid, w.id) AS nr
      FROM unnest(head.lanes[1:n]) l(lane)
      CROSS JOIN LATERAL weir._waiting(l.lane, v.running, v.top, CASE WHEN l.lane & 3 = first THEN at_xid ELSE '0' END, CASE WHEN l.lane & 3 = first THEN at_id ELSE 0 END,
        most - shown, CASE WHEN l.lane & 3 = head.lanes[n + 1] & 3 THEN upto_xid ELSE '18446744073709551615' END, CASE WHEN l.lane & 3 = head.lanes[n + 1] & 3 THEN upto_id ELSE no_end END) w
      WHERE l.lane & 3 >= first) r
    WHERE r.nr <= most - shown ORDER BY r.nr;
    GET DIAGNOSTICS found = ROW_COUNT;
    shown := shown + found;
    first := head.lanes[n + 1] & 3;
    at_xid := upto_xid;
    at_id := upto_id;
  END LOOP;
  IF shown < most THEN
    place := jsonb_build_array(CASE WHEN upto < no_end THEN upto + 1 ELSE no_end END, NULL, NULL, NULL, NULL);
    cost := 1;
    RETURN NEXT;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_available IS
  'Jobs that wait to be claimed, in that order, after a place; no id for a cancelled one. Of more than 500 lanes in which jobs may wait, it takes 500 at a time, by priority and queue. Behind them come the jobs with keys. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_of_keys(queue text, after bigint, after_xid xid8, after_id bigint, most integer, lanes bigint[] DEFAULT NULL) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  bound   CONSTANT integer := 200;  -- lanes that are looked at
  v       record := weir._in_progress();
  of_name text;
  keys    record;
  is_last boolean := true;          -- there are no lanes behind these
  looked  integer := 0;
  shown   integer := 0;
  this    bigint;
  late    xid8[];
  of      bigint;
  found   integer;
BEGIN
  IF lanes IS NULL THEN
    lanes := '{}';
    FOR of_name IN SELECT DISTINCT w.queue FROM weir.with_keys w WHERE _next_of_keys.queue IS NULL OR w.queue = _next_of_keys.queue ORDER BY 1 LOOP
      keys := weir._waiting_keys(of_name, 1000);
      looked := looked + 1;
      IF keys.is_whole THEN
        lanes := lanes || keys.lanes;
      ELSE  -- the next that have rows at all
        lanes := lanes || ARRAY(SELECT k FROM weir.queue q CROSS JOIN LATERAL weir._key_lanes(q.id, after - 1, NULL, bound + 1) k WHERE q.name = of_name);
      END IF;
    END LOOP;
  END IF;
  lanes := ARRAY(SELECT l FROM unnest(lanes) l WHERE l >= after ORDER BY l LIMIT bound + 1);
  IF lanes = '{}' THEN
    RETURN;
  END IF;
  is_last := cardinality(lanes) <= bound;
  cost := 20 * looked;
  FOREACH this IN ARRAY lanes[: bound] LOOP
    IF this >> 39 IS DISTINCT FROM of THEN
      of := this >> 39;
      late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = of::integer));
    END IF;
    cost := coalesce(cost, 0) + 4;
    FOR id, place IN
      SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = w.id) THEN w.id END, jsonb_build_array('keys', this, w.xid::text, w.id)
      FROM weir._waiting(this, v.running, v.top, CASE WHEN this = after THEN after_xid ELSE '0' END, CASE WHEN this = after THEN after_id ELSE 0 END, most - shown, late => late) w
      ORDER BY w.xid, w.id
    LOOP
      cost := cost + 1;
      RETURN NEXT;
      cost := 0;
      shown := shown + 1;
    END LOOP;
    EXIT WHEN shown >= most;
  END LOOP;
  IF shown < most THEN
    id := NULL;
    place := jsonb_build_array('keys', CASE WHEN is_last THEN 9223372036854775807 ELSE lanes[bound] + 1 END, '0', 0);
    cost := cost + 1;
    RETURN NEXT;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_of_keys IS
  'Jobs with keys that wait to be claimed, in all queues, in one, or in some lanes, key by key, from a place in a lane on; no id for a cancelled one, or to show how far the search has come. See weir._next_available.';

CREATE OR REPLACE FUNCTION weir._next_running(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  claimed bigint[] := CASE WHEN of_key THEN ARRAY(SELECT DISTINCT (l >> 39 << 39) + 4 FROM unnest(_next_running.lanes) l) ELSE lanes END;  -- the lanes of their batches
  workers integer[] := weir._holders();
  batches integer := greatest(20, 2500 / greatest(cardinality(workers), 1));  -- of each worker
  at_no   bigint := coalesce((after->>0)::bigint, 9223372036854775807);
  at_id   bigint := coalesce((after->>1)::bigint, 9223372036854775807);
BEGIN
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT h.* FROM weir._in_hand(workers, at_no, batches) h
  ), reached AS MATERIALIZED (  -- older batches of a worker with more have not been read
    SELECT max(h.no) AS no FROM held h WHERE h.is_last
  )
  SELECT k.id, NULL::timestamptz, jsonb_build_array(k.no, coalesce(k.id, 0)),
         CASE row_number() OVER (ORDER BY k.no DESC, k.id DESC NULLS LAST) WHEN 1 THEN batches * cardinality(workers) ELSE 1 END
  FROM (
    SELECT i.id, h.no FROM reached r CROSS JOIN held h
    CROSS JOIN LATERAL unnest(CASE WHEN NOT of_key THEN h.ids ELSE ARRAY(
      SELECT u.id FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) u(id, lane)
      WHERE b.worker = h.worker AND b.no = h.no AND u.lane = ANY (_next_running.lanes) AND u.id = ANY (h.ids)) END) i(id)
    WHERE h.no >= coalesce(r.no, 0) AND (h.no, i.id) < (at_no, at_id) AND (claimed IS NULL OR h.lane = ANY (claimed))
    UNION ALL
    SELECT NULL, r.no FROM reached r WHERE r.no IS NOT NULL) k
  ORDER BY k.no DESC, k.id DESC NULLS LAST LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._next_running IS 'Running jobs, those of the newest batches first, after a place; a row without an id shows how far the search has come. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_later(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET cursor_tuple_fraction = 0.001
AS $$
#variable_conflict use_column
DECLARE
  c       weir.promotion;
  at_due  timestamptz := coalesce((after->>0)::timestamptz, '-infinity');
  at_id   bigint := coalesce((after->>1)::bigint, 0);
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_later.lanes) l);
  overdue weir.later[];  -- before the cursor's point, and not promoted yet
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  IF (c.due, c.due_id) > (at_due, at_id) THEN
    overdue := ARRAY(SELECT o FROM weir._overdue(c, 10000) o
                     WHERE (o.run_at, o.id) > (at_due, at_id) AND (lanes IS NULL OR CASE WHEN of_key THEN o.lane = ANY (lanes) ELSE o.lane >> 39 = ANY (queues) END) ORDER BY o.run_at, o.id LIMIT most);
    at_due := c.due;
    at_id := c.due_id;
  END IF;
  IF lanes IS NULL OR NOT of_key AND EXISTS (SELECT FROM weir.queue q JOIN weir.with_keys w ON w.queue = q.name WHERE q.id = ANY (queues)) THEN
    RETURN QUERY
    SELECT CASE WHEN j.lane > 0 AND (lanes IS NULL OR j.lane >> 39 = ANY (queues)) AND NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = j.id) THEN j.id END, NULL::timestamptz, jsonb_build_array(j.run_at, j.id)
    FROM (
      SELECT o.lane, o.id, o.run_at FROM unnest(overdue) o
      UNION ALL
      (SELECT l.lane, l.id, l.run_at FROM weir.later l WHERE (l.run_at, l.id) > (at_due, at_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
       ORDER BY l.run_at, l.id LIMIT most)) j
    ORDER BY j.run_at, j.id LIMIT most;
  ELSE
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = j.id) THEN j.id END, NULL::timestamptz, jsonb_build_array(j.run_at, j.id)
    FROM (
      SELECT o.id, o.run_at FROM unnest(overdue) o
      UNION ALL
      SELECT k.id, k.run_at FROM unnest(_next_later.lanes) n(lane) CROSS JOIN LATERAL (
        SELECT l.id, l.run_at FROM weir.later l
        WHERE l.lane = n.lane AND (l.run_at, l.id) > (at_due, at_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
        ORDER BY l.run_at, l.id LIMIT most) k) j
    ORDER BY j.run_at, j.id LIMIT most;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_later IS 'Scheduled jobs in the order of run_at, after a place; no id for a cancelled one, or a due time of a schedule. See weir._next.';
