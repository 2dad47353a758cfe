-- Ageing: in a queue with the setting ageing, no priority waits forever. One of every four jobs that are claimed from it is chosen by age, and the
-- others by priority. By age, a job counts as if it had become ready ageing later for each priority that is before its own, and the earliest is next.
--
-- Only one in four, so that a backlog of lower priorities, however old, leaves most of the queue to the higher ones. No counter is needed to know
-- whose turn it is: the newest batch of each lane says how many jobs were ever claimed from it. Without the setting, none of this is called.

CREATE OR REPLACE FUNCTION weir._reserve(queue_no integer, n integer, ageing interval) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  one_in  CONSTANT integer := 4;
  v       record := weir._in_progress();
  by_age  integer;  -- how many of the next n jobs are chosen by age
  by_rank integer;  -- of the others, those that higher priorities leave
  lane    bigint;
  heads   record;   -- what by_rank leaves of a lane
  lanes   integer[] := '{}';
  times   timestamptz[] := '{}';
BEGIN
  -- Nobody is ahead of a higher priority before it has waited for ageing. Usually nobody has, and one row of each lane tells.
  IF NOT EXISTS (SELECT FROM generate_series(1, 3) p CROSS JOIN LATERAL weir._waiting((queue_no::bigint << 39) + p, v.running, v.top, '0', 0, 1) w WHERE w.ready_at <= now() - ageing) THEN
    RETURN NULL;
  END IF;
  FOR p IN 0..3 LOOP
    lane := (queue_no::bigint << 39) + p;
    PERFORM pg_advisory_xact_lock(1464158546, ((lane >> 39) * 4 + (lane & 3))::integer);
  END LOOP;
  v := weir._in_progress();
  SELECT (k.total + n) / one_in - k.total / one_in INTO by_age
  FROM (SELECT coalesce(sum(b.total), 0)::bigint AS total FROM generate_series(0, 3) p
        CROSS JOIN LATERAL (SELECT b.total FROM weir.batch b WHERE b.lane = (queue_no::bigint << 39) + p ORDER BY b.seq DESC LIMIT 1) b) k;
  by_rank := n - by_age;
  FOR p IN 0..3 LOOP
    lane := (queue_no::bigint << 39) + p;
    -- A lane's jobs are claimed in their order, so none counts before the one ahead of it.
    SELECT count(*) AS n, array_agg(w.at ORDER BY w.nr) FILTER (WHERE w.nr > by_rank) AS times INTO heads
    FROM (SELECT u.nr, max(u.at) FILTER (WHERE u.nr > by_rank) OVER (ROWS UNBOUNDED PRECEDING) AS at
          FROM (SELECT row_number() OVER () AS nr, w.ready_at + p * ageing AS at FROM weir._waiting(lane, v.running, v.top, '0', 0, by_rank + by_age) w) u) w;
    times := times || heads.times;
    lanes := lanes || array_fill(p, ARRAY[coalesce(cardinality(heads.times), 0)]);
    by_rank := greatest(by_rank - heads.n, 0);
  END LOOP;
  RETURN ARRAY(
    SELECT count(f.lane)::integer FROM generate_series(0, 3) r
    LEFT JOIN (SELECT u.lane FROM unnest(lanes, times) u(lane, at) ORDER BY u.at, u.lane LIMIT by_age) f ON f.lane = r GROUP BY r ORDER BY r);
END
$$;
COMMENT ON FUNCTION weir._reserve IS
  'How many of the next n jobs that are claimed from a queue are chosen by age, by priority (1 to 4): a claim leaves them to their lanes. NULL: none, because no job has waited for ageing. Then it has locked nothing; otherwise the answer holds until the claim ends, because no other claims from these lanes. Locks: advisory: the queue''s lanes in their order (exclusive), unless it returns NULL. Isolation: READ COMMITTED.';
