-- The transactions that ended between two snapshots, and the lanes in which they have logged jobs.

CREATE OR REPLACE FUNCTION weir._ended_since(since pg_snapshot, snapshot pg_snapshot) RETURNS TABLE (low xid8, high xid8)
LANGUAGE plpgsql STABLE  -- in SQL, it would be planned again by each transaction
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
  RETURN QUERY
  SELECT x, (x::text::bigint + 1)::text::xid8 FROM pg_snapshot_xip(_ended_since.since) x WHERE pg_visible_in_snapshot(x, _ended_since.snapshot)
  UNION ALL
  SELECT s.low, s.high
  FROM (
    SELECT b.low, lead(b.edge, 1, pg_snapshot_xmax(_ended_since.snapshot)) OVER (ORDER BY b.low) AS high
    FROM (
      SELECT pg_snapshot_xmax(_ended_since.since) AS low, pg_snapshot_xmax(_ended_since.since) AS edge
      UNION ALL
      (SELECT (x::text::bigint + 1)::text::xid8, x FROM pg_snapshot_xip(_ended_since.snapshot) x
       WHERE x >= pg_snapshot_xmax(_ended_since.since) ORDER BY x LIMIT 64)) b) s
  WHERE s.low < s.high;
END
$$;
COMMENT ON FUNCTION weir._ended_since IS
  'The ranges (low included, high not) of transactions that the second snapshot sees as ended and the first did not. They exclude the 64 oldest transactions in progress, so that a scan skips the rows of those: large transactions are old. The last range may include younger ones, whose rows nobody sees.';

CREATE OR REPLACE FUNCTION weir._fresh_lanes(since pg_snapshot, snapshot pg_snapshot, max_rows integer DEFAULT 200) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
  lanes bigint[];
BEGIN
  lanes := ARRAY(
    SELECT f.lane FROM weir._ended_since(_fresh_lanes.since, _fresh_lanes.snapshot) e
    CROSS JOIN LATERAL (
      SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid >= e.low AND j.xid < e.high ORDER BY j.xid LIMIT _fresh_lanes.max_rows + 1) f
    LIMIT _fresh_lanes.max_rows + 1);
  IF cardinality(lanes) > _fresh_lanes.max_rows THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY(SELECT DISTINCT l FROM unnest(lanes) l);
END
$$;
COMMENT ON FUNCTION weir._fresh_lanes IS
  'The lanes with jobs of transactions that the second snapshot sees as ended and the first did not; NULL if more than max_rows rows would have to be read. The cost depends on how many jobs are new, not on how many lanes exist.';

CREATE OR REPLACE FUNCTION weir._fresh_between(running xid8[], top xid8, OUT known boolean[], OUT lanes bigint[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
  max_ranges CONSTANT integer := 256;
  max_lanes  CONSTANT integer := 4;
BEGIN
  WITH stretch AS MATERIALIZED (
    SELECT f.n <= max_lanes AS known, CASE WHEN f.n <= max_lanes THEN f.lanes END AS lanes
    FROM generate_series(1, least(cardinality(running), max_ranges)) i
    CROSS JOIN LATERAL (
      SELECT count(*) AS n, array_agg(j.lane) AS lanes FROM (
        SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid > running[i] AND j.xid < coalesce(running[i + 1], top)
          AND running[i + 1]::text::bigint - running[i]::text::bigint IS DISTINCT FROM 1
        ORDER BY j.xid LIMIT max_lanes + 1) j) f)
  SELECT array_agg(s.known), ARRAY(SELECT DISTINCT l FROM stretch t, unnest(t.lanes) l)
    INTO _fresh_between.known, _fresh_between.lanes FROM stretch s;
END
$$;
COMMENT ON FUNCTION weir._fresh_between IS
  'The lanes that have rows of transactions between those in progress, in one query for all lanes: known[i] is true if at most four lanes have any between the i-th and the next transaction in progress, and lanes are the lanes of all such ranges. It covers the 256 oldest ranges, with the index on rows that lead, as _fresh_lanes does.';
