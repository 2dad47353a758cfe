-- Rings: what a claim from the keys of a queue begins with, and whether it has anything to do. See functions/turn.sql.

CREATE OR REPLACE FUNCTION weir._snapshot_upto(since pg_snapshot, snapshot pg_snapshot, upto xid8) RETURNS pg_snapshot
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT (coalesce((array_agg(s.xip ORDER BY s.xip) FILTER (WHERE s.xip IS NOT NULL))[1]::text, m.top::text) || ':' || m.top::text || ':' || coalesce(string_agg(s.xip::text, ',' ORDER BY s.xip), ''))::pg_snapshot
  FROM (SELECT greatest(pg_snapshot_xmax(_snapshot_upto.since), (_snapshot_upto.upto::text::bigint + 1)::text::xid8) AS top) m
  LEFT JOIN LATERAL (
    SELECT x AS xip FROM pg_snapshot_xip(_snapshot_upto.snapshot) x WHERE x < m.top
    UNION  -- of those that ended in between, the ones that come after upto are not seen yet
    SELECT x FROM pg_snapshot_xip(_snapshot_upto.since) x WHERE x > _snapshot_upto.upto) s ON true
  GROUP BY m.top
$$;
COMMENT ON FUNCTION weir._snapshot_upto IS
  'What a snapshot sees in addition to an earlier one, only up to a transaction: as if the later ones of them had not ended yet. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._ring_of(name text) RETURNS weir.ring
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  ring weir.ring;
BEGIN
  SELECT r.* INTO ring FROM weir.ring r WHERE r.queue = _ring_of.name ORDER BY r.seq DESC LIMIT 1;
  IF ring.seq IS NULL THEN
    ring.queue := _ring_of.name;
    ring.seq := 0;
    ring.tag := 0;
    ring.forms := 0;
    ring.version := 0;
    ring.newcomers := '{}';
    ring.due := '-infinity';
    SELECT (w.since::text || ':' || w.since::text || ':')::pg_snapshot INTO ring.arrived FROM weir.with_keys w WHERE w.queue = _ring_of.name ORDER BY w.since LIMIT 1;
  END IF;
  IF ring.due > clock_timestamp() THEN  -- the clock was set back
    IF ring.due > clock_timestamp() + interval '1 second' THEN  -- keys that have waited for their rate would have to wait for as long again
      ring.stopped_after := coalesce(ring.stopped_after, 0);
      ring.stopped_upto := ring.stopped_after;
    END IF;
    ring.due := '-infinity';
  END IF;
  RETURN ring;
END
$$;
COMMENT ON FUNCTION weir._ring_of IS 'The state of a queue''s ring, which nobody may have written yet. Its due is in the past, also if the clock was set back; then all keys that a limit has stopped are looked at again. The queue has had jobs with keys. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._has_turns(name text, snapshot pg_snapshot) RETURNS boolean
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
  ids      bigint[]    := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _has_turns.name);
  ring     weir.ring   := weir._ring_of(name);
  at       timestamptz := clock_timestamp();
  lim      weir.queue_limit;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _has_turns.name;
  IF ring.version <> coalesce(lim.version, 0)
     OR ring.newcomers <> '{}' OR ring.stopped_after IS NOT NULL OR pg_snapshot_xmax(ring.arrived) > pg_snapshot_xmax(snapshot)  -- another claim has just been here
     OR weir._has_waiting(ids, ring.tag) THEN
    RETURN true;
  END IF;
  IF weir._has_key_news(ids, ring.arrived, snapshot) THEN
    RETURN true;
  ELSIF lim.key_running IS NULL AND lim.key_rate IS NULL THEN
    RETURN false;
  END IF;
  RETURN EXISTS (
      SELECT FROM unnest(ids) q(id)
      CROSS JOIN LATERAL (SELECT t.lane, t.seq FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at BETWEEN ring.due AND at OFFSET 0) t
      WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq))
    OR EXISTS (
      SELECT FROM weir._ended_since(ring.arrived, snapshot) e
      CROSS JOIN LATERAL (SELECT FROM weir.release r WHERE r.gate = lim.gate AND r.xid >= e.low AND r.xid < e.high AND r.lanes IS NOT NULL LIMIT 1) r);
END
$$;
COMMENT ON FUNCTION weir._has_turns IS
  'Whether a claim from the keys of a queue may have something to do. The cost depends on what is new, not on how many keys there are. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._has_waiting(ids bigint[], tag bigint) RETURNS boolean
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
  RETURN EXISTS (
    SELECT FROM unnest(ids) q(id)
    CROSS JOIN LATERAL (SELECT t.lane, t.seq FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= _has_waiting.tag ORDER BY t.tag OFFSET 0) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq));
END
$$;
COMMENT ON FUNCTION weir._has_waiting IS
  'Whether keys of the queues with these ids, of which the ring''s tag is given, wait for their next turn. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._key_news(ids bigint[], since pg_snapshot, snapshot pg_snapshot, max_rows integer, OUT lanes bigint[], OUT xids xid8[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
BEGIN
  -- Only the index of leading rows that have keys has this order. What it is about is written as it is there.
  SELECT array_agg(f.lane), array_agg(f.xid) INTO lanes, xids
  FROM (
    SELECT n.lane, n.xid FROM weir._ended_since(_key_news.since, _key_news.snapshot) e
    CROSS JOIN LATERAL (
      SELECT k.lane, k.xid FROM unnest(_key_news.ids) q(id)
      CROSS JOIN LATERAL (
        SELECT j.lane, j.xid FROM weir.job j
        WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
          AND pg_visible_in_snapshot(j.xid, _key_news.snapshot)
        ORDER BY j.lane >> 39, j.xid LIMIT _key_news.max_rows) k
      ORDER BY k.xid LIMIT _key_news.max_rows) n  -- of twins, the rows are mixed
    LIMIT _key_news.max_rows) f;
END
$$;
COMMENT ON FUNCTION weir._key_news IS
  'The rows that lead in lanes of keys of the queues with these ids, and that the second snapshot sees and the first does not: the first max_rows, by their transactions. It reads no rows of other queues, and none without a key. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._has_key_news(ids bigint[], since pg_snapshot, snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
  max_xips CONSTANT integer := 16;
  max_rows CONSTANT integer := 50;
  found    record;
BEGIN
  IF (SELECT count(*) > max_xips FROM pg_snapshot_xip(_has_key_news.since)) THEN
    -- Nobody writes the first snapshot anew while the queue has no news, so very many transactions that it does not see may have ended. They are
    -- not looked for one by one if few rows were logged since the first of them began.
    SELECT count(*) AS n, coalesce(bool_or(NOT pg_visible_in_snapshot(f.xid, _has_key_news.since)), false) AS any INTO found
    FROM (SELECT j.xid FROM weir._ended_since(format('%1$s:%1$s:', pg_snapshot_xmin(_has_key_news.since))::pg_snapshot, _has_key_news.snapshot) e
          CROSS JOIN unnest(_has_key_news.ids) q(id)
          CROSS JOIN LATERAL (
            SELECT j.xid FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
            ORDER BY j.lane >> 39, j.xid LIMIT max_rows) j
          LIMIT max_rows) f;
    IF found.any OR found.n < max_rows THEN
      RETURN found.any;
    END IF;
  END IF;
  RETURN EXISTS (
    SELECT FROM weir._ended_since(_has_key_news.since, _has_key_news.snapshot) e
    CROSS JOIN unnest(_has_key_news.ids) q(id)
    CROSS JOIN LATERAL (
      SELECT FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
      ORDER BY j.lane >> 39, j.xid LIMIT 1) j);
END
$$;
COMMENT ON FUNCTION weir._has_key_news IS
  'Whether _key_news would find rows, or may find some soon. The cost depends on how many transactions are in progress, and not on what other queues hold, or on how long ago the first snapshot was taken. Locks: none. Isolation: READ COMMITTED.';
