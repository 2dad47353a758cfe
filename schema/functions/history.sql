-- What happened in the last 72 hours, minute by minute, for charts.
--
-- Nothing is counted where jobs are worked. Once a minute, a chore reads the results of the minute before, which an index finds by their time, looks
-- at a sample of these attempts, and inserts a few rows; and it notes how many jobs wait. A result is counted if it is committed a minute after the
-- attempt ended. What has been counted follows from the rows themselves: ends before the last upto. So a rollback, a crash, a failover or a restored
-- dump takes back the counts together with the rows, and nothing is counted twice. No row means zero, and an idle database inserts none.

CREATE OR REPLACE FUNCTION weir._count_minutes(at timestamptz DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most        CONSTANT integer := 20000;  -- results read in one call
  max_sample  CONSTANT integer := 500;    -- of these, looked at for waits and runs
  max_queues  CONSTANT integer := 100;    -- with rows of their own, in a minute
  zero        CONSTANT timestamptz := '1970-01-01 00:00:00+00';
  this_minute timestamptz := date_bin('1 minute', coalesce(_count_minutes.at, clock_timestamp()), zero);
  target      timestamptz := this_minute - interval '1 minute';
  number      bigint := extract(epoch FROM this_minute)::bigint / 60;
  next_ring   integer := (weir._minute_ring(this_minute) + 1) % 4;
  since       timestamptz;
  counted     record;
  depth       record;
BEGIN
  PERFORM weir._check_isolation('count_minutes'), weir._hold_briefly();
  IF pg_sequence_last_value('weir.counted_minute') = number OR NOT pg_try_advisory_xact_lock(1464158547, 8) THEN
    RETURN NULL;
  ELSIF pg_sequence_last_value('weir.counted_minute') = number THEN  -- somebody else has just done it
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();
  PERFORM set_config('synchronous_commit', 'off', true);
  IF pg_relation_size('weir.minute_' || next_ring) > 0 THEN
    BEGIN
      EXECUTE format('LOCK TABLE weir.minute_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
      EXECUTE format('TRUNCATE weir.minute_%s', next_ring);
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- it is being read: its turn comes in hours
    END;
  END IF;

  -- First, because it may have to be given up: rows that were inserted before would be dead ones.
  BEGIN
    PERFORM weir._lock_log();
    SELECT array_agg(d.queue) AS queues, array_agg(d.waiting) AS waiting, array_agg(d.ready_at) AS ready_at INTO depth FROM weir._waiting_by_queue() d;
    RAISE SQLSTATE 'WR099';  -- releases the tables
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;

  -- Rows of the future are from before the clock was set back. What ended longer ago than an hour, while nobody did the chores, is left out.
  SELECT max(m.upto) INTO since FROM weir.minute m
  WHERE m.queue = '' AND m.at = (SELECT l.at FROM weir.minute l WHERE l.queue = '' AND l.at < target AND l.upto IS NOT NULL ORDER BY l.at DESC LIMIT 1);
  since := greatest(since, target - interval '1 hour');
  WITH ends AS MATERIALIZED (
    SELECT e.* FROM weir._ends_between(since, target, most) e
  ), stop AS MATERIALIZED (  -- if there is more, the call goes as far as it has read
    SELECT count(*) AS n, CASE WHEN count(*) < most THEN target ELSE greatest(max(e.finished_at), since + interval '1 microsecond') END AS upto FROM ends e
  ), ended AS MATERIALIZED (
    SELECT e.*, date_bin('1 minute', e.finished_at, zero) AS minute, (e.lane >> 39)::integer AS queue_id
    FROM ends e CROSS JOIN stop s WHERE e.finished_at < s.upto
  ), sums AS MATERIALIZED (
    SELECT e.minute, coalesce(q.name, '') AS queue, sum(e.n) AS n, sum(e.n) FILTER (WHERE e.outcome = 'completed') AS completed, sum(e.n) FILTER (WHERE e.outcome = 'failed') AS failed,
           sum(e.n) FILTER (WHERE e.outcome = 'cancelled') AS cancelled, sum(e.n) FILTER (WHERE e.outcome IN ('retried', 'lost')) AS retried,
           sum(e.n) FILTER (WHERE e.outcome IN ('snoozed', 'released')) AS other
    FROM ended e JOIN weir.queue q ON q.id = e.queue_id GROUP BY GROUPING SETS ((e.minute, q.name), (e.minute))
  ), chosen AS MATERIALIZED (
    SELECT s.* FROM (SELECT s.*, row_number() OVER (PARTITION BY s.minute ORDER BY s.queue <> '', s.n DESC, s.queue) AS place FROM sums s) s WHERE s.place <= max_queues + 1
  ), sample AS MATERIALIZED (  -- as many of each queue as possible; a result stands for its jobs, which were claimed and have ended together
    SELECT k.minute, k.queue_id, k.n, k.total, k.finished_at - b.claimed_at AS run, b.claimed_at - j.ready_at AS wait
    FROM (SELECT e.*, sum(e.n) OVER (PARTITION BY e.minute, e.queue_id) AS total, row_number() OVER (PARTITION BY e.minute, e.queue_id ORDER BY random()) AS place
          FROM ended e WHERE e.outcome IN ('completed', 'failed', 'retried') ORDER BY place LIMIT max_sample) k
    CROSS JOIN LATERAL (SELECT b.claimed_at, b.from_xid, b.to_xid, b.lanes FROM weir.batch b
                        WHERE b.segment = k.segment AND b.lane = k.lane AND b.seq = k.seq AND k.id = ANY (b.ids) LIMIT 1) b
    LEFT JOIN LATERAL (SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at FROM weir.job j
                       WHERE j.segment = k.segment AND j.id = k.id AND (j.lane = k.lane OR b.lanes IS NOT NULL)  -- so worded to be read by id
                         AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
                       ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j ON true
  ), marks AS (  -- the sample of a queue stands for all its attempts
    SELECT s.minute, s.queue_id, m.what, weir._bucket(m.took) AS bucket, s.n, s.n::float8 * s.total::float8 / (sum(s.n) OVER (PARTITION BY s.minute, s.queue_id, m.what))::float8 AS about
    FROM sample s CROSS JOIN LATERAL (VALUES ('wait', s.wait), ('run', s.run)) m(what, took) WHERE m.took IS NOT NULL
  ), buckets AS (
    SELECT k.minute, coalesce(q.name, '') AS queue, k.what, k.bucket, sum(k.n) AS n, greatest(round(sum(k.about)), 1)::integer AS about
    FROM marks k JOIN weir.queue q ON q.id = k.queue_id GROUP BY GROUPING SETS ((k.minute, q.name, k.what, k.bucket), (k.minute, k.what, k.bucket))
  ), spread AS MATERIALIZED (
    SELECT b.minute, b.queue, sum(b.n) FILTER (WHERE b.what = 'run') AS sampled,
           sum(b.about * ('1e' || 12 * b.bucket)::numeric) FILTER (WHERE b.what = 'wait') AS waits,
           sum(b.about * ('1e' || 12 * b.bucket)::numeric) FILTER (WHERE b.what = 'run') AS runs
    FROM buckets b GROUP BY b.minute, b.queue
  ), written AS (
    INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, cancelled, retried, other, sampled, waits, runs)
    SELECT c.minute, weir._minute_ring(c.minute), c.queue, s.upto, c.completed, c.failed, c.cancelled, c.retried, c.other, p.sampled, p.waits, p.runs
    FROM chosen c CROSS JOIN stop s LEFT JOIN spread p ON p.minute = c.minute AND p.queue = c.queue
    RETURNING queue
  )
  SELECT s.n, s.upto, (SELECT count(*) FROM written) AS rows INTO counted FROM stop s;
  IF counted.n = most THEN
    RETURN 'counted minutes up to ' || counted.upto;  -- the next call goes on
  END IF;
  INSERT INTO weir.minute (at, ring, queue, waiting, oldest)
  SELECT target, weir._minute_ring(target), d.queue, d.waiting, greatest(clock_timestamp() - d.ready_at, interval '0')
  FROM (SELECT coalesce(u.queue, '') AS queue, sum(u.waiting) AS waiting, min(u.ready_at) AS ready_at
        FROM unnest(depth.queues, depth.waiting, depth.ready_at) u(queue, waiting, ready_at) GROUP BY GROUPING SETS ((u.queue), ()) HAVING sum(u.waiting) > 0) d
  ORDER BY d.queue <> '', d.waiting DESC, d.queue LIMIT max_queues + 1;
  PERFORM setval('weir.counted_minute', number);  -- last, because it does not roll back
  RETURN CASE WHEN counted.rows > 0 THEN 'counted minutes up to ' || counted.upto END;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- a segment is being emptied: try again later
END
$$;
COMMENT ON FUNCTION weir._count_minutes IS
  'Once in each minute, notes how many jobs wait, and counts what has ended in the minutes before the last one: in a row for each of the hundred queues with most, and one for all. It reads up to 20,000 results, which the next calls continue, and looks at up to 500 of them for how long their attempts waited and ran. Ends that are committed more than a minute later are not counted. Truncates the next table of minutes ahead of its turn. at: as if it were that time. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 8 (tried); ACCESS SHARE on the log; ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._ends_between(since timestamptz, upto timestamptz, most integer)
RETURNS TABLE (lane bigint, seq bigint, segment smallint, finished_at timestamptz, outcome weir.outcome, n integer, id bigint)
LANGUAGE plpgsql VOLATILE
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
  SELECT r.lane, r.seq, r.segment, r.finished_at, r.outcome, cardinality(r.ids), r.ids[1 + floor(random() * cardinality(r.ids))::integer]
  FROM weir.result r WHERE r.finished_at >= _ends_between.since AND r.finished_at < _ends_between.upto ORDER BY r.finished_at LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._ends_between IS
  'The first results of a time, in its order, up to most of them: each with the number of its jobs, and one of these at random. Locks: ACCESS SHARE on the results. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._waiting_by_queue() RETURNS TABLE (queue text, waiting bigint, ready_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  s weir.survey := weir._surveyed();
BEGIN
  RETURN QUERY
  SELECT q.name, sum(d.waiting)::bigint, min(d.ready_at)
  FROM (SELECT k.* FROM weir._depths(ARRAY(SELECT weir._lanes_to_count(s))) k
        UNION ALL SELECT k.* FROM weir._depths_of_keys() k) d
  JOIN weir.queue q ON q.id = (d.lane >> 39)::integer
  WHERE d.waiting > 0 GROUP BY q.name;
END
$$;
COMMENT ON FUNCTION weir._waiting_by_queue IS
  'How many jobs of each queue wait, and since when the first of them has, as weir.queues counts them; queues in which none waits are left out. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir._minute_ring(at timestamptz) RETURNS smallint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT (extract(epoch FROM _minute_ring.at)::bigint / 129600 % 4)::smallint
$$;
COMMENT ON FUNCTION weir._minute_ring IS 'Which of the tables of weir.minute is that of a time: each has its turn for 36 hours, so that after two turns, when it is truncated, its rows are older than 72 hours. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._bucket(took interval) RETURNS integer
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT least(ceil(2 * ln(greatest(extract(epoch FROM _bucket.took)::float8 * 1000, 1)) / ln(2::float8)), 64)::integer
$$;
COMMENT ON FUNCTION weir._bucket IS
  'The bucket of a duration: each reaches to 1.41 times what the one before it does, bucket 0 to 1 ms, 20 to 1 s, and 64 is for all above 36 days. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.history(queue text DEFAULT NULL, since timestamptz DEFAULT NULL, step interval DEFAULT NULL)
RETURNS TABLE (at timestamptz, completed bigint, failed bigint, cancelled bigint, retried bigint, other bigint, waiting bigint, oldest interval,
               wait_p50 interval, wait_p95 interval, run_p50 interval, run_p95 interval)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  max_points CONSTANT integer := 500;
  zero       CONSTANT timestamptz := '1970-01-01 00:00:00+00';
  counted    timestamptz := zero + (pg_sequence_last_value('weir.counted_minute') - 1) * interval '1 minute';  -- the minutes before are counted
  first      timestamptz := least(greatest(coalesce(history.since, counted - interval '1 hour'), counted - interval '72 hours'), counted);
  seconds    numeric := extract(epoch FROM history.step);
  every      interval;
BEGIN
  IF seconds < 60 OR seconds > 86400 OR seconds % 60 <> 0 THEN
    RAISE EXCEPTION 'weir: the step of a history must be a number of minutes, from 1 minute to 1 day, got %', history.step USING ERRCODE = '22023';
  END IF;
  every := make_interval(secs => coalesce(seconds, CASE WHEN counted - first <= interval '6 hours' THEN 60 WHEN counted - first <= interval '24 hours' THEN 300 ELSE 600 END)::float8);
  IF counted - first > every * max_points THEN
    RAISE EXCEPTION 'weir: a history of % in steps of % has more than % points', counted - first, every, max_points
      USING ERRCODE = '22023', HINT = 'Pass a longer step, or a later since.';
  END IF;
  first := date_bin(every, first, zero);
  LOCK TABLE weir.minute IN ACCESS SHARE MODE;
  RETURN QUERY
  WITH sums AS MATERIALIZED (
    SELECT date_bin(every, m.at, zero) AS bin, sum(m.completed)::bigint AS completed, sum(m.failed)::bigint AS failed, sum(m.cancelled)::bigint AS cancelled, sum(m.retried)::bigint AS retried,
           sum(m.other)::bigint AS other, max(m.waiting) AS waiting, max(m.oldest) AS oldest, sum(m.waits)::text AS waits, sum(m.runs)::text AS runs
    FROM weir.minute m WHERE m.queue = coalesce(history.queue, '') AND m.at >= first AND m.at < counted GROUP BY 1
  ), buckets AS MATERIALIZED (  -- twelve digits each, from the first that is not zero
    SELECT s.bin, x.ran, b.bucket, substr(d.digits, d.n - 12 * b.bucket - 11, 12)::float8 AS n
    FROM sums s CROSS JOIN LATERAL (VALUES (false, s.waits), (true, s.runs)) x(ran, counts)
    CROSS JOIN LATERAL (SELECT (length(x.counts) + 11) / 12 * 12 AS n OFFSET 0) k
    CROSS JOIN LATERAL (SELECT lpad(x.counts, k.n, '0') AS digits, k.n OFFSET 0) d
    CROSS JOIN LATERAL generate_series((length(x.counts) - length(rtrim(x.counts, '0'))) / 12, d.n / 12 - 1) b(bucket)
  ), heaped AS (
    SELECT b.*, sum(b.n) OVER (PARTITION BY b.bin, b.ran ORDER BY b.bucket ROWS UNBOUNDED PRECEDING) AS heap, sum(b.n) OVER (PARTITION BY b.bin, b.ran) AS total FROM buckets b
  ), quantiles AS (  -- durations within a bucket are taken to be evenly spread, on its logarithmic scale
    SELECT h.bin, h.ran, p.p, CASE WHEN h.bucket = 0 THEN f.f ELSE power(2, (h.bucket - 1 + f.f) / 2) END * interval '1 millisecond' AS took
    FROM heaped h CROSS JOIN (VALUES (0.5::float8), (0.95)) p(p) CROSS JOIN LATERAL (SELECT (p.p * h.total - (h.heap - h.n)) / nullif(h.n, 0) AS f) f
    WHERE p.p * h.total > h.heap - h.n AND p.p * h.total <= h.heap
  ), spread AS MATERIALIZED (
    SELECT q.bin, max(q.took) FILTER (WHERE NOT q.ran AND q.p = 0.5) AS wait_p50, max(q.took) FILTER (WHERE NOT q.ran AND q.p > 0.5) AS wait_p95,
           max(q.took) FILTER (WHERE q.ran AND q.p = 0.5) AS run_p50, max(q.took) FILTER (WHERE q.ran AND q.p > 0.5) AS run_p95
    FROM quantiles q GROUP BY q.bin
  )
  SELECT t.at, coalesce(s.completed, 0), coalesce(s.failed, 0), coalesce(s.cancelled, 0), coalesce(s.retried, 0), coalesce(s.other, 0), coalesce(s.waiting, 0), coalesce(s.oldest, interval '0'),
         p.wait_p50, p.wait_p95, p.run_p50, p.run_p95
  FROM generate_series(first, counted - every, every) t(at) LEFT JOIN sums s ON s.bin = t.at LEFT JOIN spread p ON p.bin = t.at
  ORDER BY t.at;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.history IS
  'What happened in a queue, or in all (NULL), in the last 72 hours: a row for each step since a time (by default, an hour before the last), up to 500: at, its beginning; how many attempts completed, failed for good, were cancelled, were retried (or lost with their worker), and how many ended otherwise (snoozed or released); the most jobs that waited when a minute of the step was over, and the longest that the oldest of them had; and for how long half (p50) and 95 % (p95) of the attempts that completed, failed or were retried had waited and ran, NULL if there were none. The step is 1 minute for up to 6 hours, 5 for 24 hours and 10 above, unless another is passed: a number of minutes. The last row is that of the last whole step that ended at least a minute ago. Counts are exact, but for ends that were committed more than a minute after they happened, and for those whose segment was emptied before that, where the log is filled within a few minutes; durations are estimates, within 20 %, from a sample. Of more than a hundred queues in a minute, only those with most are counted on their own. A queue that does not exist has had nothing. Errors: 22023 (a step that is not such a number, or more than 500 points). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
