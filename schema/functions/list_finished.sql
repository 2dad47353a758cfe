-- Lists of jobs that have completed, failed or been cancelled: see list.sql.

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

CREATE OR REPLACE FUNCTION weir._next_completed(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb)
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
  place := after;
  IF lanes[1] & 549755813880 <> 0 THEN
    RETURN QUERY SELECT n.* FROM weir._next_claimed(lanes, after, most) n;
    RETURN;
  ELSIF lanes IS NOT NULL THEN
    place := coalesce(place, '{}');
    FOR r IN
      SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.lane ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at  -- each lane keeps its order
      FROM unnest(_next_completed.lanes) l(lane)
      CROSS JOIN LATERAL (SELECT l.lane, e.* FROM weir._results_of(l.lane, coalesce((after->l.lane::text->>0)::bigint, last_id), coalesce((after->l.lane::text->>1)::bigint, last_id), most) e) k
      ORDER BY at DESC, k.lane, k.place DESC, k.id DESC LIMIT most
    LOOP
      id := CASE WHEN r.is_end THEN r.id END;
      ended_at := r.finished_at;
      place := place || jsonb_build_object(r.lane::text, jsonb_build_array(r.place, r.id));
      RETURN NEXT;
    END LOOP;
    RETURN;
  END IF;
  -- Results appended from now on are newer than all that are shown, and a segment that has been reclaimed holds none of its earlier results.
  place := coalesce(place, (SELECT jsonb_object_agg(s::text, jsonb_build_array((pg_relation_size('weir.result_' || s) / size) * 65536, 0, weir._times_reclaimed(s))) FROM generate_series(1, 4) s));
  FOR r IN
    SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.segment ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at
    FROM generate_series(1, 4) s(segment)
    CROSS JOIN LATERAL (
      SELECT s.segment, e.* FROM weir._results_in(s.segment, (_next_completed.place->s.segment::text->>0)::bigint, (_next_completed.place->s.segment::text->>1)::bigint, most) e
      WHERE (_next_completed.place->s.segment::text->>2)::bigint = weir._times_reclaimed(s.segment)) k
    ORDER BY at DESC, k.segment, k.place DESC, k.id DESC LIMIT most
  LOOP
    id := CASE WHEN r.is_end THEN r.id END;
    ended_at := r.finished_at;
    place := place || jsonb_build_object(r.segment::text, jsonb_build_array(r.place, r.id, place->r.segment::text->2));
    RETURN NEXT;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._next_completed IS
  'Completed jobs, newest first, after a place: that in each lane or, for all queues, in each segment; those of a key in the order of the log. No id for a result with another outcome. See weir._next.';

CREATE OR REPLACE FUNCTION weir._next_claimed(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  late   xid8[] := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = (lanes[1] >> 39)::integer));
  at_xid xid8   := coalesce((after->>0)::xid8, '18446744073709551615');
  at_id  bigint := coalesce((after->>1)::bigint, 0);
BEGIN
  RETURN QUERY
  -- Of a job with several rows, the newest one counts. After a rebase, all rows of its history have the same place: together they are one.
  SELECT CASE WHEN c.xid = (SELECT n.xid FROM weir.job n WHERE n.id = c.id ORDER BY n.attempt DESC, n.put_off DESC LIMIT 1) THEN c.id END, NULL::timestamptz, jsonb_build_array(c.xid::text, c.id)
  FROM (
    SELECT DISTINCT k.* FROM (
      SELECT j.* FROM unnest(_next_claimed.lanes) l(lane)
      CROSS JOIN LATERAL weir._state_of(l.lane, late) s
      CROSS JOIN LATERAL (
        SELECT j.xid, j.id FROM weir.job j
        WHERE j.lane = l.lane AND (j.xid, j.id) <= (s.pos_xid, s.pos_id) AND (j.xid, j.id) < (at_xid, at_id) ORDER BY j.xid DESC, j.id DESC LIMIT most) j
      ORDER BY j.xid DESC, j.id DESC LIMIT most) k) c
  ORDER BY c.xid DESC, c.id DESC;
END
$$;
COMMENT ON FUNCTION weir._next_claimed IS
  'Jobs of a key up to the positions of its lanes, in the order of the log, newest first, after a place; no id for earlier attempts. Nearly all of them have been claimed. See weir._next.';

CREATE OR REPLACE FUNCTION weir._times_reclaimed(segment integer) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((SELECT max(k.no) FROM weir.segment k WHERE k.log = 'job' AND k.segment = _times_reclaimed.segment AND k.event = 'reclaimed'), 0)
$$;
COMMENT ON FUNCTION weir._times_reclaimed IS 'The number of the event by which a segment of jobs was last reclaimed: a different one each time.';

CREATE OR REPLACE FUNCTION weir._next_failed(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb)
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
  -- The lanes of a queue with keys are too many to be read one by one.
  IF lanes[1] & 549755813880 <> 0 OR lanes IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q JOIN weir.with_keys w ON w.queue = q.name WHERE q.id = ANY (queues)) THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt) THEN f.id END, NULL::timestamptz, jsonb_build_array(f.finished_at, f.id)
    FROM unnest(_next_failed.lanes) l(lane)
    CROSS JOIN LATERAL (
      SELECT f.id, f.attempt, f.finished_at FROM weir.failure f
      WHERE f.lane = l.lane AND f.finished_at <= at_time AND (f.finished_at, f.id) < (at_time, at_id) ORDER BY f.finished_at DESC, f.id DESC LIMIT most) f
    ORDER BY f.finished_at DESC, f.id DESC LIMIT most;
    RETURN;
  END IF;
  RETURN QUERY
  -- A job that has failed again since is listed under its later failure.
  SELECT CASE WHEN (_next_failed.lanes IS NULL OR f.lane >> 39 = ANY (queues))
                AND NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt) THEN f.id END, NULL::timestamptz, jsonb_build_array(f.finished_at, f.id)
  FROM weir.failure f
  WHERE f.finished_at <= at_time AND (f.finished_at, f.id) < (at_time, at_id)
  ORDER BY f.finished_at DESC, f.id DESC LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._next_failed IS 'Failed jobs, newest first, after a place; no id for a job of another queue. See weir._next.';

CREATE OR REPLACE FUNCTION weir._cancelled_in(lane bigint, before_time timestamptz, before_id bigint, most integer) RETURNS TABLE (id bigint, finished_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.id, r.finished_at FROM weir.result r CROSS JOIN LATERAL unnest(r.ids) i(id)
  WHERE r.lane = _cancelled_in.lane AND r.outcome = 'cancelled' AND r.finished_at <= before_time AND (r.finished_at, i.id) < (before_time, before_id)
  ORDER BY r.finished_at DESC, i.id DESC LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._cancelled_in IS 'Jobs of a lane that have ended as cancelled, newest first, before a place.';

CREATE OR REPLACE FUNCTION weir._next_cancelled(lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  -- The queue, if all lanes are those of one.
  of_name text := (SELECT q.name FROM weir.queue q WHERE q.id = (_next_cancelled.lanes[1] >> 39)::integer);
  has_filters boolean := EXISTS (SELECT FROM weir.cancellation_where w WHERE of_name IS NULL OR w.queue IS NULL OR w.queue = of_name);
  upto    bigint := (SELECT max(w.upto) FROM weir.cancellation_where w);  -- no job with a greater id is cancelled by a filter
  at_time timestamptz;
  at_id   bigint;
BEGIN
  IF after IS NULL OR jsonb_typeof(after) = 'number' THEN
    IF lanes IS NULL THEN
      RETURN QUERY
      SELECT c.id, NULL::timestamptz, to_jsonb(c.id), 1
      FROM weir.cancellation c WHERE c.id < coalesce(after::bigint, 9223372036854775807) ORDER BY c.id DESC LIMIT most;
    ELSE
      RETURN QUERY
      SELECT CASE WHEN NOT of_key OR EXISTS (SELECT FROM (  -- all rows of a job have the same key
                         (SELECT j.lane FROM weir.job j WHERE j.id = c.id LIMIT 1) UNION ALL (SELECT l.lane FROM weir.later l WHERE l.id = c.id LIMIT 1)) k
                       WHERE k.lane = ANY (_next_cancelled.lanes)) THEN c.id END,
             NULL::timestamptz, to_jsonb(c.id), CASE WHEN of_key THEN 10 ELSE 1 END
      FROM weir.cancellation c
      WHERE c.queue = of_name AND c.id < coalesce(after::bigint, 9223372036854775807) ORDER BY c.id DESC LIMIT most;
    END IF;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"waiting": null}';
  END IF;
  -- Those that a filter has cancelled wait among the others. Of a job that ends while pages are read, the end comes after this place.
  IF after ? 'waiting' AND has_filters THEN
    RETURN QUERY
    WITH n AS MATERIALIZED (
      SELECT k.*, row_number() OVER () AS at_nr FROM weir._next_available(_next_cancelled.lanes, nullif(after -> 'waiting', 'null'), most) k
    ), gone AS MATERIALIZED (
      SELECT weir._cancelled_where_among(ARRAY(SELECT n.id FROM n WHERE n.id <= upto)) AS ids
    )
    SELECT CASE WHEN n.id = ANY (gone.ids) THEN n.id END, NULL::timestamptz, jsonb_build_object('waiting', n.place), n.cost + CASE WHEN n.id <= upto THEN 9 ELSE 0 END FROM n CROSS JOIN gone ORDER BY n.at_nr;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"later": null}';
  END IF;
  IF after ? 'later' AND has_filters THEN
    RETURN QUERY
    WITH n AS MATERIALIZED (
      SELECT k.*, row_number() OVER () AS at_nr FROM weir._next_later(_next_cancelled.lanes, nullif(after -> 'later', 'null'), most) k
    ), gone AS MATERIALIZED (
      SELECT weir._cancelled_where_among(ARRAY(SELECT n.id FROM n WHERE n.id <= upto)) AS ids
    )
    SELECT CASE WHEN n.id = ANY (gone.ids) THEN n.id END, NULL::timestamptz, jsonb_build_object('later', n.place), CASE WHEN n.id <= upto THEN 10 ELSE 1 END FROM n CROSS JOIN gone ORDER BY n.at_nr;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF of_key THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = n.id AND c.queue = of_name) THEN n.id END, NULL::timestamptz, n.place, 10
    FROM weir._next_claimed(_next_cancelled.lanes, CASE WHEN jsonb_typeof(after) = 'array' THEN after END, most) n;
    RETURN;
  ELSIF jsonb_typeof(after) = 'object' THEN
    after := '["infinity", 0]';
  END IF;
  at_time := (after->>0)::timestamptz;
  at_id := (after->>1)::bigint;
  IF lanes IS NULL THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = i.id) THEN i.id END, r.finished_at, jsonb_build_array(r.finished_at, i.id), 1
    FROM weir.result r CROSS JOIN LATERAL unnest(r.ids) i(id)
    WHERE r.outcome = 'cancelled' AND r.finished_at <= at_time AND (r.finished_at, i.id) < (at_time, at_id)
    ORDER BY r.finished_at DESC, i.id DESC LIMIT most;
  ELSE
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = k.id AND c.queue = of_name) THEN k.id END, k.finished_at, jsonb_build_array(k.finished_at, k.id), 1
    FROM unnest(_next_cancelled.lanes) l(lane) CROSS JOIN LATERAL weir._cancelled_in(l.lane, at_time, at_id, most) k
    ORDER BY k.finished_at DESC, k.id DESC LIMIT most;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_cancelled IS
  'Cancelled jobs, after a place: those with a tombstone by id, newest first; then those that a filter has cancelled and that are still in the log, available ones before scheduled ones; then those that have ended, newest first. No id for a job of another queue, or that is not cancelled. See weir._next.';
