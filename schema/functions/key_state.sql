-- Where lanes stand, for everybody but claims: the state of a lane without a key is its newest batch; that of a key's lane its newest turn, together
-- with the transactions that have ended since the last claim from the queue's keys, which no state lists.

CREATE OR REPLACE FUNCTION weir._waits(xid xid8, id bigint, pos_xid xid8, pos_id bigint, pending xid8[], pending_after bigint[], late xid8[] DEFAULT NULL) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT coalesce((_waits.xid, _waits.id) > (_waits.pos_xid, _waits.pos_id), true) OR coalesce(_waits.id > _waits.pending_after[array_position(_waits.pending, _waits.xid)], false)
    OR coalesce(_waits.xid = ANY (_waits.late), false)
$$;
COMMENT ON FUNCTION weir._waits IS
  'Whether a row of the log, whose transaction has ended, waits in its lane, which stands at this position (NULL: at its beginning) with these transactions pending. late: see _late_of, for a lane of a key whose newest turn gives the rest. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._late_of(name text) RETURNS xid8[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(SELECT x FROM pg_snapshot_xip((weir._ring_of(_late_of.name)).arrived) x
               WHERE x < v.top AND v.running[width_bucket(x, v.running)] IS DISTINCT FROM x ORDER BY x)
  FROM weir._in_progress() v
$$;
COMMENT ON FUNCTION weir._late_of IS
  'The transactions, in order, that were in progress for the last claim from the keys of a queue, and have ended since: of them, rows wait below the positions of keys. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._state_of(lane bigint, late xid8[] DEFAULT NULL, OUT seq bigint, OUT pos_xid xid8, OUT pos_id bigint, OUT pending xid8[], OUT pending_after bigint[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  IF _state_of.lane & 549755813880 = 0 THEN
    SELECT b.seq, b.pos_xid, b.pos_id, b.pending, b.pending_after INTO seq, pos_xid, pos_id, pending, pending_after
    FROM weir.batch b WHERE b.lane = _state_of.lane ORDER BY b.seq DESC LIMIT 1;
    RETURN;
  END IF;
  SELECT t.seq, t.pos_xid, t.pos_id, t.pending, t.pending_after INTO seq, pos_xid, pos_id, pending, pending_after
  FROM weir.turn t WHERE t.lane = _state_of.lane ORDER BY t.seq DESC LIMIT 1;
  IF seq IS NULL THEN
    RETURN;
  END IF;
  IF late IS NULL THEN
    late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = (_state_of.lane >> 39)::integer));
  END IF;
  IF late[1] < pos_xid THEN
    SELECT array_agg(p.xid ORDER BY p.xid), array_agg(p.after ORDER BY p.xid) INTO pending, pending_after
    FROM (SELECT u.* FROM unnest(pending, pending_after) u(xid, after)
          UNION ALL
          SELECT x, 0 FROM unnest(late) x WHERE x < pos_xid AND EXISTS (SELECT FROM weir.job j WHERE j.lane = _state_of.lane AND j.xid = x)) p;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._state_of IS
  'Where a lane stands: a job of it waits if it lies past the position, or if its transaction is pending, in their order, and its id comes after the one in pending_after. All NULL: nothing was claimed from it, or nothing that it has claimed is left. late: see _late_of; NULL: it is looked up. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._key_lanes(queue_id integer DEFAULT NULL, after bigint DEFAULT NULL, segment integer DEFAULT NULL, most integer DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  at   bigint  := greatest(coalesce(queue_id, 0)::bigint << 39 | 7, after);
  upto bigint  := CASE WHEN queue_id IS NOT NULL THEN (queue_id + 1)::bigint << 39 ELSE 9223372036854775807 END;
  n    integer := 0;
  lane bigint;
BEGIN
  WHILE most IS NULL OR n < most LOOP
    IF segment IS NULL THEN
      lane := (SELECT j.lane FROM weir.job j WHERE j.lane > at AND j.lane < upto ORDER BY j.lane, j.xid, j.id LIMIT 1);
    ELSE
      lane := (SELECT j.lane FROM weir.job j WHERE j.segment = _key_lanes.segment AND j.lane > at AND j.lane < upto ORDER BY j.lane, j.xid, j.id LIMIT 1);
    END IF;
    EXIT WHEN lane IS NULL;
    IF lane & 549755813880 = 0 THEN
      at := lane | 7;  -- no key: on to those of the queue
    ELSE
      RETURN NEXT lane;
      n := n + 1;
      at := lane;
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._key_lanes IS
  'Lanes of keys that have rows in the log, or in one segment of it, in order: those of a queue (NULL: of all), after a lane, at most so many. It jumps from lane to lane, whatever is in them. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._lanes_of_key(queue text, key text) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
  SELECT ARRAY(
    SELECT (q.id::bigint << 39) + weir._key_bits(_lanes_of_key.key) + form
    FROM (SELECT _lanes_of_key.queue AS name WHERE _lanes_of_key.queue IS NOT NULL
          UNION SELECT w.queue FROM weir.with_keys w WHERE _lanes_of_key.queue IS NULL) n
    JOIN weir.queue q ON q.name = n.name CROSS JOIN generate_series(0, 7) form
    ORDER BY 1)
$$;
COMMENT ON FUNCTION weir._lanes_of_key IS
  'The lanes that jobs of a key have in a queue, or for NULL in all queues that have had jobs with keys, in order: of each priority, and those in front. Another key with the same hash has the same. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._ring_lanes(lane bigint) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
  SELECT CASE WHEN _ring_lanes.lane & 549755813880 = 0 THEN ARRAY[_ring_lanes.lane] ELSE ARRAY(
    SELECT (t.id::bigint << 39) + 4 FROM weir.queue q JOIN weir.queue t ON t.name = q.name WHERE q.id = (_ring_lanes.lane >> 39)::integer) END
$$;
COMMENT ON FUNCTION weir._ring_lanes IS 'In which lanes the batches and results of a job are: its own or, if it has a key, the ring lanes of its queue and of that queue''s twins. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._lock_lanes(lanes bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  r record;
BEGIN
  -- In the order in which claims lock them: the ring of a queue after the lanes of its first twin.
  FOR r IN
    SELECT DISTINCT CASE WHEN l.lane & 549755813884 = 0 THEN l.lane ELSE (n.id << 39) + 4 END AS lane, CASE WHEN l.lane & 549755813884 <> 0 THEN hashtext(q.name) END AS ring
    FROM unnest(_lock_lanes.lanes) l(lane) JOIN weir.queue q ON q.id = (l.lane >> 39)::integer
    CROSS JOIN LATERAL (SELECT min(t.id)::bigint AS id FROM weir.queue t WHERE t.name = q.name) n
    ORDER BY 1
  LOOP
    IF r.ring IS NULL THEN
      PERFORM pg_advisory_xact_lock(1464158546, ((r.lane >> 39) * 4 + (r.lane & 3))::integer);
    ELSE
      PERFORM pg_advisory_xact_lock(1464158559, r.ring);
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._lock_lanes IS
  'Keeps claims from the lanes of jobs, to the end of the transaction; for a job with a key, from all keys of its queue. Locks: advisory: the lanes, and the rings of keys (exclusive).';

CREATE OR REPLACE FUNCTION weir._try_lane(lane bigint) RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE WHEN _try_lane.lane & 549755813884 = 0 THEN pg_try_advisory_xact_lock(1464158546, ((_try_lane.lane >> 39) * 4 + (_try_lane.lane & 3))::integer)
              ELSE pg_try_advisory_xact_lock(1464158559, hashtext((SELECT q.name FROM weir.queue q WHERE q.id = (_try_lane.lane >> 39)::integer))) END
$$;
COMMENT ON FUNCTION weir._try_lane IS 'As _lock_lanes, for one lane and without waiting: false if another transaction holds it. Locks: advisory: the lane or the ring (exclusive, tried).';
