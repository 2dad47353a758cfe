-- Lists of jobs, one page at a time.
--
-- A page continues after a key, not after a number of rows, so jobs that come and go do not move others to another page. Each state has an order whose
-- keys do not change while a job is in that state, and in which an index or the log itself is sorted:
--
--   available  in the order in which they will be claimed: priority, then (xid, id); of very many lanes 500 at a time, which bounds what a page reads.
--              Jobs with keys, which are claimed by turns, come behind the others: key by key
--   running    latest claim first: the number of the batch, then the id
--   scheduled  by (run_at, id)
--   completed  newest first: in one queue by its batches, lane by lane; in all queues in the order of results in each segment, from the end. Each lane
--              or segment is a stream in its own order; they are merged by the time when jobs ended, and the key is the place in each
--   failed     newest first: (finished_at, id)
--   cancelled  jobs with a tombstone by id, newest first; then those that a filter has cancelled and that still wait; then those that have ended, in the order of failed ones
--
-- The states follow one another. The cost of a page is bounded: if a filter finds nothing, or jobs have changed their state, the page ends early,
-- and the next one continues from there.

CREATE OR REPLACE FUNCTION weir._next_available(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb, cost integer)
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
  of_keys  boolean := coalesce(after->>0 = 'keys', false);
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
    RETURN QUERY SELECT k.* FROM weir._next_of_keys(queue, (after->>1)::bigint, (after->>2)::xid8, (after->>3)::bigint, most) k;
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
  key := jsonb_build_array(from_, upto, first, at_xid::text, at_id);
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
    key := jsonb_build_array(CASE WHEN upto < no_end THEN upto + 1 ELSE no_end END, NULL, NULL, NULL, NULL);
    cost := 1;
    RETURN NEXT;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_available IS
  'Jobs that wait to be claimed, in that order, after a key; no id for a cancelled one. Of more than 500 lanes in which jobs may wait, it takes 500 at a time, by priority and queue. Behind them come the jobs with keys. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_of_keys(queue text, after bigint, after_xid xid8, after_id bigint, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  bound   CONSTANT integer := 200;  -- lanes that are looked at
  v       record := weir._in_progress();
  name    text;
  keys    record;
  lanes   bigint[] := '{}';
  is_last boolean := true;          -- there are no lanes behind these
  looked  integer := 0;
  shown   integer := 0;
  this    bigint;
  late    xid8[];
  of      bigint;
  found   integer;
BEGIN
  FOR name IN SELECT DISTINCT w.queue FROM weir.with_keys w WHERE _next_of_keys.queue IS NULL OR w.queue = _next_of_keys.queue ORDER BY 1 LOOP
    keys := weir._waiting_keys(name, 1000);
    looked := looked + 1;
    IF keys.is_whole THEN
      lanes := lanes || keys.lanes;
    ELSE  -- the next that have rows at all
      lanes := lanes || ARRAY(SELECT k FROM weir.queue q CROSS JOIN LATERAL weir._key_lanes(q.id, after - 1, NULL, bound + 1) k WHERE q.name = name);
    END IF;
  END LOOP;
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
    FOR id, key IN
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
    key := jsonb_build_array('keys', CASE WHEN is_last THEN 9223372036854775807 ELSE lanes[bound] + 1 END, '0', 0);
    cost := cost + 1;
    RETURN NEXT;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_of_keys IS
  'Jobs with keys that wait to be claimed, in all queues or in one, key by key, from a place in a lane on; no id for a cancelled one, or to show how far the search has come. See weir._next_available.';

CREATE OR REPLACE FUNCTION weir._next_running(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
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
    SELECT i.id, h.no FROM reached r CROSS JOIN held h CROSS JOIN LATERAL unnest(h.ids) i(id)
    WHERE h.no >= coalesce(r.no, 0) AND (h.no, i.id) < (at_no, at_id) AND (_next_running.lanes IS NULL OR h.lane = ANY (_next_running.lanes))
    UNION ALL
    SELECT NULL, r.no FROM reached r WHERE r.no IS NOT NULL) k
  ORDER BY k.no DESC, k.id DESC NULLS LAST LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._next_running IS 'Running jobs, those of the newest batches first, after a key; a row without an id shows how far the search has come. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_later(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb)
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
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_later.lanes) l);
  overdue weir.later[];  -- before the cursor's point, and not promoted yet
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  IF (c.due, c.due_id) > (at_due, at_id) THEN
    overdue := ARRAY(SELECT o FROM weir._overdue(c, 10000) o
                     WHERE (o.run_at, o.id) > (at_due, at_id) AND (lanes IS NULL OR o.lane >> 39 = ANY (queues)) ORDER BY o.run_at, o.id LIMIT most);
    at_due := c.due;
    at_id := c.due_id;
  END IF;
  IF lanes IS NULL OR EXISTS (SELECT FROM weir.queue q JOIN weir.with_keys w ON w.queue = q.name WHERE q.id = ANY (queues)) THEN
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
COMMENT ON FUNCTION weir._next_later IS 'Scheduled jobs in the order of run_at, after a key; no id for a cancelled one, or a due time of a schedule. See weir._next.';

CREATE OR REPLACE FUNCTION weir._results_of(lane bigint, before_seq bigint, before_id bigint, most integer) RETURNS TABLE (place bigint, id bigint, finished_at timestamptz, is_end boolean)
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
  SELECT r.seq, coalesce(i.id, 0), r.finished_at, i.id IS NOT NULL
  FROM weir.result r LEFT JOIN LATERAL unnest(CASE WHEN r.outcome = 'completed' THEN r.ids END) i(id) ON true
  WHERE r.lane = _results_of.lane AND r.seq <= before_seq AND (r.seq, coalesce(i.id, 0)) < (before_seq, before_id)
  ORDER BY r.seq DESC, coalesce(i.id, 0) DESC LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._results_of IS 'Completed jobs of a lane, newest batches first, before a place; a row with is_end false stands for a result with another outcome.';

CREATE OR REPLACE FUNCTION weir._results_in(segment integer, before_place bigint, before_id bigint, most integer) RETURNS TABLE (place bigint, id bigint, finished_at timestamptz, is_end boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  behind bigint := before_place / 65536;
  first  bigint;
  upto   tid := format('(%s,%s)', behind, before_place % 65536 + 1);
  shown  bigint := 0;
  more   bigint;
  pages  bigint := 2;
BEGIN
  -- Results are never updated or deleted, so those of a segment are approximately in the order in which they were recorded: the newest are in its last pages.
  WHILE behind >= 0 AND shown < most LOOP
    first := greatest(behind - pages, 0);
    RETURN QUERY
    SELECT k.place, k.id, k.finished_at, k.is_end FROM (
      SELECT (r.at[0]::bigint * 65536 + r.at[1]::bigint) AS place, coalesce(i.id, 0) AS id, r.finished_at, i.id IS NOT NULL AS is_end
      FROM (SELECT r.ctid::text::point AS at, r.finished_at, r.outcome, r.ids FROM weir.result r
            WHERE r.segment = _results_in.segment AND r.ctid >= format('(%s,0)', first)::tid AND r.ctid < upto) r
      LEFT JOIN LATERAL unnest(CASE WHEN r.outcome = 'completed' THEN r.ids END) i(id) ON true) k
    WHERE (k.place, k.id) < (before_place, before_id)
    ORDER BY k.place DESC, k.id DESC LIMIT most - shown;
    GET DIAGNOSTICS more = ROW_COUNT;
    shown := shown + more;
    EXIT WHEN first = 0;
    behind := first - 1;
    upto := format('(%s,0)', first);
    pages := pages * 2;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._results_in IS
  'Completed jobs of a segment, from the end of its results backwards, before a place (page * 65536 + line); a row with is_end false stands for a result with another outcome.';

CREATE OR REPLACE FUNCTION weir._next_completed(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  last_id  CONSTANT bigint := 9223372036854775807;
  size     bigint := current_setting('block_size')::bigint;
  r        record;
BEGIN
  key := after;
  IF lanes IS NOT NULL THEN
    key := coalesce(key, '{}');
    FOR r IN
      SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.lane ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at  -- each lane keeps its order
      FROM unnest(_next_completed.lanes) l(lane)
      CROSS JOIN LATERAL (SELECT l.lane, e.* FROM weir._results_of(l.lane, coalesce((after->l.lane::text->>0)::bigint, last_id), coalesce((after->l.lane::text->>1)::bigint, last_id), most) e) k
      ORDER BY at DESC, k.lane, k.place DESC, k.id DESC LIMIT most
    LOOP
      id := CASE WHEN r.is_end THEN r.id END;
      ended_at := r.finished_at;
      key := key || jsonb_build_object(r.lane::text, jsonb_build_array(r.place, r.id));
      RETURN NEXT;
    END LOOP;
    RETURN;
  END IF;
  -- Results appended from now on are newer than all that are shown, and a segment that has been reclaimed holds none of its earlier results.
  key := coalesce(key, (SELECT jsonb_object_agg(s::text, jsonb_build_array((pg_relation_size('weir.result_' || s) / size) * 65536, 0, weir._times_reclaimed(s))) FROM generate_series(1, 4) s));
  FOR r IN
    SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.segment ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at
    FROM generate_series(1, 4) s(segment)
    CROSS JOIN LATERAL (
      SELECT s.segment, e.* FROM weir._results_in(s.segment, (key->s.segment::text->>0)::bigint, (key->s.segment::text->>1)::bigint, most) e
      WHERE (key->s.segment::text->>2)::bigint = weir._times_reclaimed(s.segment)) k
    ORDER BY at DESC, k.segment, k.place DESC, k.id DESC LIMIT most
  LOOP
    id := CASE WHEN r.is_end THEN r.id END;
    ended_at := r.finished_at;
    key := key || jsonb_build_object(r.segment::text, jsonb_build_array(r.place, r.id, key->r.segment::text->2));
    RETURN NEXT;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._next_completed IS
  'Completed jobs, newest first, after a key: the place in each lane or, for all queues, in each segment. No id for a result with another outcome. See weir._next.';

CREATE OR REPLACE FUNCTION weir._times_reclaimed(segment integer) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((SELECT max(k.no) FROM weir.segment k WHERE k.log = 'job' AND k.segment = _times_reclaimed.segment AND k.event = 'reclaimed'), 0)
$$;
COMMENT ON FUNCTION weir._times_reclaimed IS 'The number of the event by which a segment of jobs was last reclaimed: a different one each time.';

CREATE OR REPLACE FUNCTION weir._next_failed(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb)
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
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_failed.lanes) l);
  at_time timestamptz := coalesce((after->>0)::timestamptz, 'infinity');
  at_id   bigint := coalesce((after->>1)::bigint, 9223372036854775807);
BEGIN
  RETURN QUERY
  -- A job that has failed again since is listed under its later failure.
  SELECT CASE WHEN (_next_failed.lanes IS NULL OR f.lane >> 39 = ANY (queues))
                AND NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt) THEN f.id END, NULL::timestamptz, jsonb_build_array(f.finished_at, f.id)
  FROM weir.failure f
  WHERE f.finished_at <= at_time AND (f.finished_at, f.id) < (at_time, at_id)
  ORDER BY f.finished_at DESC, f.id DESC LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._next_failed IS 'Failed jobs, newest first, after a key; no id for a job of another queue. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_cancelled(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  each    integer := CASE WHEN lanes IS NULL THEN 1 ELSE 10 END;
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_cancelled.lanes) l);
  at_time timestamptz;
  at_id   bigint;
BEGIN
  IF after IS NULL OR jsonb_typeof(after) = 'number' THEN
    RETURN QUERY
    SELECT CASE WHEN _next_cancelled.lanes IS NULL OR EXISTS (SELECT FROM (  -- all rows of a job belong to one queue
                       (SELECT j.lane FROM weir.job j WHERE j.id = c.id LIMIT 1) UNION ALL (SELECT l.lane FROM weir.later l WHERE l.id = c.id LIMIT 1)) k
                     WHERE k.lane >> 39 = ANY (queues)) THEN c.id END,
           NULL::timestamptz, to_jsonb(c.id), each
    FROM weir.cancellation c WHERE c.id < coalesce(after::bigint, 9223372036854775807) ORDER BY c.id DESC LIMIT most;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"waiting": null}';
  END IF;
  -- Those that a filter has cancelled wait among the others. Of a job that ends while pages are read, the end comes after this place.
  IF after ? 'waiting' AND EXISTS (SELECT FROM weir.cancellation_where) THEN
    RETURN QUERY
    SELECT CASE WHEN n.id IS NOT NULL AND weir._is_cancelled_where(n.id) THEN n.id END, NULL::timestamptz, jsonb_build_object('waiting', n.key), n.cost + 9
    FROM weir._next_available(_next_cancelled.lanes, nullif(after -> 'waiting', 'null'), most) n;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"later": null}';
  END IF;
  IF after ? 'later' AND EXISTS (SELECT FROM weir.cancellation_where) THEN
    RETURN QUERY
    SELECT CASE WHEN n.id IS NOT NULL AND weir._is_cancelled_where(n.id) THEN n.id END, NULL::timestamptz, jsonb_build_object('later', n.key), 10
    FROM weir._next_later(_next_cancelled.lanes, nullif(after -> 'later', 'null'), most) n;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF jsonb_typeof(after) = 'object' THEN
    after := '["infinity", 0]';
  END IF;
  at_time := (after->>0)::timestamptz;
  at_id := (after->>1)::bigint;
  RETURN QUERY
  SELECT CASE WHEN (_next_cancelled.lanes IS NULL OR r.lane >> 39 = ANY (queues)) AND NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = i.id) THEN i.id END,
         r.finished_at, jsonb_build_array(r.finished_at, i.id), each
  FROM weir.result r CROSS JOIN LATERAL unnest(r.ids) i(id)
  WHERE r.outcome = 'cancelled' AND r.finished_at <= at_time AND (r.finished_at, i.id) < (at_time, at_id)
  ORDER BY r.finished_at DESC, i.id DESC LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._next_cancelled IS
  'Cancelled jobs, after a key: those with a tombstone by id, newest first; then those that a filter has cancelled and that are still in the log, available ones before scheduled ones; then those that have ended, newest first. No id for a job of another queue, or that is not cancelled. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next(state text, lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, key jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  CASE _next.state
    WHEN 'available' THEN RETURN QUERY SELECT n.* FROM weir._next_available(_next.lanes, _next.after, _next.most) n;
    WHEN 'running' THEN RETURN QUERY SELECT n.* FROM weir._next_running(_next.lanes, _next.after, _next.most) n;
    WHEN 'scheduled' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_later(_next.lanes, _next.after, _next.most) n;
    WHEN 'completed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_completed(_next.lanes, _next.after, _next.most) n;
    WHEN 'failed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_failed(_next.lanes, _next.after, _next.most) n;
    WHEN 'cancelled' THEN RETURN QUERY SELECT n.* FROM weir._next_cancelled(_next.lanes, _next.after, _next.most) n;
  END CASE;
END
$$;
COMMENT ON FUNCTION weir._next IS
  'Up to most of the next jobs that are, or were, in a state, in some lanes or, for NULL, in all, after a key: each with the key to continue after it, when it ended, and what was read to find it, in units of a row. A row without an id only shows how far the search has come; no row means that there are no more.';

CREATE OR REPLACE FUNCTION weir._read_page(states text[], queue text, kinds text[], meta jsonb, after text, most integer, OUT jobs weir.job_info[], OUT next text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  every  CONSTANT text[] := ARRAY['available', 'running', 'scheduled', 'completed', 'failed', 'cancelled'];
  bound  CONSTANT integer := 10000;  -- of a page's effort: 1 for a row or a batch, 12 for a lane, 10 for a job that is compared, 50 for one that is read in vain
  effort integer := 0;
  lanes  bigint[];
  wrong  text;
  at     jsonb;   -- where the previous page stopped: the state's number in the list, the key, and the seal
  nr     integer := 1;
  key    jsonb;
  got    integer;
  r      record;
  look   weir.job_info;
  has_filters boolean := EXISTS (SELECT FROM weir.cancellation_where);
BEGIN
  IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a page has 1 to 1000 jobs, got %', coalesce(most::text, 'null') USING ERRCODE = '22023', HINT = 'Read more pages.';
  END IF;
  SELECT s INTO wrong FROM unnest(states) s WHERE s IS NULL OR s <> ALL (every) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: unknown state %', coalesce(left(wrong, 100), 'null')
      USING ERRCODE = '22023', HINT = 'States are available, running, scheduled, completed, failed and cancelled.';
  ELSIF cardinality(states) > 6 THEN
    RAISE EXCEPTION 'weir: a list has up to 6 states, got %', cardinality(states) USING ERRCODE = '22023', HINT = 'Name each state once.';
  ELSIF cardinality(kinds) > 1000 OR array_position(kinds, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: a list has 1 to 1000 kinds, none of them null, got % kinds', cardinality(kinds) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(meta) <> 'object' OR pg_column_size(meta) > 65536 THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object of at most 64 KiB, got %', left(meta::text, 100) USING ERRCODE = '22023', HINT = 'The list has the jobs whose meta contains this object, as with @>.';
  END IF;
  states := ARRAY(SELECT u.s FROM unnest(CASE WHEN cardinality(states) > 0 THEN states ELSE every END) WITH ORDINALITY u(s, nr) GROUP BY u.s ORDER BY min(u.nr));
  kinds := CASE WHEN cardinality(kinds) > 0 THEN kinds END;
  IF after <> '' THEN
    BEGIN
      IF length(after) > 65536 THEN
        RAISE data_exception;
      END IF;
      at := convert_from(decode(rpad(translate(after, '-_', '+/'), (length(after) + 3) / 4 * 4, '='), 'base64'), 'UTF8')::jsonb;
      IF at->>2 IS DISTINCT FROM weir._seal(states, queue, kinds, meta, at) THEN
        RAISE data_exception;
      END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
      RAISE EXCEPTION 'weir: "%" is not a valid cursor for this list', left(after, 100)
        USING ERRCODE = '22023', HINT = 'Pass what the previous page returned as next, in the same database, with the same states, queue, kinds and meta; or NULL for the first page.';
    END;
    nr := (at->>0)::integer;
    key := at->1;
  END IF;
  IF queue IS NOT NULL THEN
    lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 4) p WHERE q.name = _read_page.queue);  -- and its ring lane
  END IF;

  jobs := '{}';
  <<states>>
  WHILE nr <= cardinality(states) LOOP
    LOOP
      got := 0;
      FOR r IN SELECT n.* FROM weir._next(states[nr], lanes, nullif(key, 'null'), least(most + 1, 200)) n LOOP
        got := got + 1;
        effort := effort + r.cost;
        IF r.id IS NOT NULL AND states[nr] IN ('available', 'scheduled') AND has_filters AND weir._is_cancelled_where(r.id) THEN
          effort := effort + 9;
          r.id := NULL;
        END IF;
        IF r.id IS NOT NULL AND (kinds IS NOT NULL OR meta IS NOT NULL) THEN
          effort := effort + 9;
          -- All rows of a job have the same kind and meta.
          IF NOT EXISTS (SELECT FROM (
               (SELECT j.kind, j.meta FROM weir.job j WHERE j.id = r.id LIMIT 1)
               UNION ALL (SELECT l.kind, l.meta FROM weir.later l WHERE l.id = r.id LIMIT 1)
               UNION ALL (SELECT f.kind, f.meta FROM weir.failure f WHERE f.id = r.id AND f.kind IS NOT NULL LIMIT 1)) k
             WHERE (kinds IS NULL OR k.kind = ANY (kinds)) AND (_read_page.meta IS NULL OR k.meta @> _read_page.meta)) THEN
            r.id := NULL;
          END IF;
        END IF;
        IF r.id IS NOT NULL THEN
          SELECT k.* INTO look FROM weir._read_job(r.id, 1) k;
          -- A job that was retried by hand is in another state now, or has ended again since.
          IF look.state = states[nr] AND (_read_page.queue IS NULL OR look.queue = _read_page.queue) AND (r.ended_at IS NULL OR look.finished_at = r.ended_at) THEN
            IF cardinality(jobs) = most THEN
              next := jsonb_build_array(nr, key);
              EXIT states;
            END IF;
            jobs := jobs || look;
          ELSE
            effort := effort + 50;
          END IF;
        END IF;
        key := r.key;
        IF effort >= bound THEN
          next := jsonb_build_array(nr, key);
          EXIT states;
        END IF;
      END LOOP;
      EXIT WHEN got = 0;
    END LOOP;
    nr := nr + 1;
    key := NULL;
  END LOOP;
  IF next IS NOT NULL THEN
    at := next::jsonb;
    next := rtrim(translate(encode(convert_to((at || to_jsonb(weir._seal(states, queue, kinds, meta, at)))::text, 'UTF8'), 'base64'), E'+/\n', '-_'), '=');
  END IF;
END
$$;
COMMENT ON FUNCTION weir._read_page IS 'A page of jobs as one snapshot shows them, see weir.jobs_page. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir._seal(states text[], queue text, kinds text[], meta jsonb, at jsonb) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- The number is the version of the keys: increase it when their form changes.
  SELECT left(encode(sha256(convert_to(jsonb_build_array(s.value, c.system_identifier, d.oid::bigint, 2, states, queue, kinds, meta, at->0, at->1)::text, getdatabaseencoding())), 'hex'), 32)
  FROM weir.setting s, pg_control_system() c, pg_database d WHERE s.name = 'cursor_secret' AND d.datname = current_database()
$$;
COMMENT ON FUNCTION weir._seal IS
  'Ties a cursor to its list and to this database, with a secret that no client knows: what is inside a cursor with a valid seal was written by this code.';

CREATE OR REPLACE FUNCTION weir.jobs_page(states text[] DEFAULT NULL, queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL,
                                          after text DEFAULT NULL, max_rows integer DEFAULT 100, OUT jobs jsonb, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._lock_log();
  SELECT to_jsonb(p.jobs), p.next INTO jobs, next
  FROM weir._read_page(jobs_page.states, jobs_page.queue, jobs_page.kinds, jobs_page.meta, jobs_page.after, coalesce(jobs_page.max_rows, 100)) p;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.jobs_page IS
  'A page of the list of jobs that are in some states (NULL: all), in a queue, of some kinds, and whose meta contains meta: a JSON array of up to max_rows jobs (1 to 1000), as weir.job_info shows them; and next, to be passed as after to get the next page, NULL if there is none. The states follow one another in the order in which they are named: available jobs in the order in which they will be claimed (of more than 500 lanes, 500 at a time), scheduled jobs by run_at, the others newest first (completed ones approximately, as they were recorded; of cancelled ones, first those that weir.cancel cancelled, by id, then those that weir.cancel_where cancelled and that no worker has passed yet). A job that stays in its state while pages are read is on exactly one of them; a job that enters a state in the meantime may be on none. Two exceptions: a cancelled job is on a second page if, between the two, it has ended and the record that weir.cancel wrote is tidied away, or a worker has passed a job that weir.cancel_where cancelled; and failed jobs are listed while their copies are kept, which is less than failed_retention if they need more than a quarter of retention_bytes, although weir.job_info finds some of them in the log for longer. A page may have fewer jobs than max_rows, or none, and still a next: what one page reads is bounded, however little a filter finds and however many queues there are. Errors: 22023; 40001 as for weir.job_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.jobs(state text, queue text DEFAULT NULL, max_rows integer DEFAULT 100) RETURNS SETOF weir.job_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  pages CONSTANT integer := 20;
  left_ integer := coalesce(jobs.max_rows, 100);
  after text;
  p     record;
BEGIN
  IF jobs.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: jobs returns 1 to 10000 jobs, got %', jobs.max_rows USING ERRCODE = '22023', HINT = 'Use weir.jobs_page to read more, page by page.';
  END IF;
  PERFORM weir._lock_log();
  FOR page IN 1..pages LOOP
    SELECT k.* INTO p FROM weir._read_page(ARRAY[jobs.state], jobs.queue, NULL, NULL, after, least(left_, 1000)) k;
    RETURN QUERY SELECT j.* FROM unnest(p.jobs) j;
    left_ := left_ - cardinality(p.jobs);
    after := p.next;
    EXIT WHEN left_ = 0 OR after IS NULL;
  END LOOP;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.jobs IS
  'The first jobs in one state, as rows, in the order of weir.jobs_page: up to max_rows (1 to 10000), and fewer if very many jobs before them have changed their state. Errors and locks: as for weir.jobs_page. Isolation: any.';
