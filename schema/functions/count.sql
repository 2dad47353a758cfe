-- How many jobs of each queue are available, running and scheduled, and since when the first one waits, at a bounded cost.
--
-- There are no counters: a counter would be a row that every enqueue updates. Jobs are counted up to a limit; above it, the number is estimated from a
-- few hundred pages of the log, evenly spaced from the first waiting job on. Jobs are stored approximately in the order in which they were logged, so
-- waiting jobs fill whole ranges of pages, and an evenly spaced sample is off by a few percent.

CREATE OR REPLACE FUNCTION weir._in_progress(OUT running xid8[], OUT top xid8)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  snapshot pg_snapshot := pg_current_snapshot();
BEGIN
  running := '{}';
  IF (SELECT k.value FROM weir.setting k WHERE k.name = 'cluster') IS DISTINCT FROM (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    top := '18446744073709551615';  -- the log of another cluster: its transaction ids mean nothing here
    RETURN;
  END IF;
  top := pg_snapshot_xmax(snapshot);
  IF pg_snapshot_xmin(snapshot) < top THEN
    running := ARRAY(SELECT pg_snapshot_xip(snapshot));
  END IF;
END
$$;
COMMENT ON FUNCTION weir._in_progress IS 'The transactions in progress, in order, and the first xid from which on no transaction has ended: readers skip their rows. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._waiting(lane bigint, running xid8[], top xid8, after_xid xid8, after_id bigint, most integer,
                                         upto_xid xid8 DEFAULT '18446744073709551615', upto_id bigint DEFAULT 9223372036854775807, late xid8[] DEFAULT NULL)
RETURNS TABLE (xid xid8, id bigint, ready_at timestamptz, segment smallint, place tid)
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
  last_id  CONSTANT bigint := 9223372036854775807;
  own      xid8 := pg_current_xact_id_if_assigned();
  last     record;
  from_xid xid8 := after_xid;
  from_id  bigint := after_id;
  skip     xid8[];
BEGIN
  IF _waiting.lane & 549755813880 = 0 THEN
    SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after INTO last FROM weir.batch b WHERE b.lane = _waiting.lane ORDER BY b.seq DESC LIMIT 1;
  ELSE
    last := weir._state_of(_waiting.lane, late);
  END IF;
  IF (last.pos_xid, last.pos_id) > (from_xid, from_id) THEN
    from_xid := last.pos_xid;
    from_id := last.pos_id;
  END IF;
  skip := running[width_bucket(from_xid, running) + 1 : width_bucket(from_xid, running) + 64];
  RETURN QUERY
  SELECT u.xid, u.id, coalesce(u.ready_at, u.enqueued_at), u.segment, u.place FROM (
    -- What a batch left of a transaction precedes older ones that were still in progress.
    SELECT j.* FROM (SELECT * FROM unnest(last.pending, last.pending_after) u(xid, after) ORDER BY u.xid) p
    CROSS JOIN LATERAL (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE j.lane = _waiting.lane AND j.xid = p.xid AND j.id > greatest(p.after, CASE WHEN p.xid = after_xid THEN after_id END) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j
    WHERE p.xid >= after_xid AND running[width_bucket(p.xid, running)] IS DISTINCT FROM p.xid
    UNION ALL
    SELECT j.* FROM generate_series(0, cardinality(skip)) i
    CROSS JOIN LATERAL (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE j.lane = _waiting.lane AND j.xid < coalesce(skip[i + 1], top)
        AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE from_xid END, CASE WHEN i > 0 THEN last_id ELSE from_id END) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j
    UNION ALL  -- rows of the caller's own transaction
    SELECT j.* FROM (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE own >= top AND j.lane = _waiting.lane AND j.xid = own AND (j.xid, j.id) > (from_xid, from_id) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j) u
  LIMIT most;
END
$$;
COMMENT ON FUNCTION weir._waiting IS
  'Up to most jobs of a lane that wait to be claimed, including cancelled ones, in the order in which they will be claimed, after a place in that order and up to another one. running and top come from weir._in_progress: rows of transactions in progress are skipped, and not scanned. late: see _state_of. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._waiting_among(lanes bigint[], running xid8[], top xid8, most integer)
RETURNS TABLE (lane bigint, segment smallint, n bigint, ready_at timestamptz, place tid)
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
  last_id CONSTANT bigint := 9223372036854775807;
  own     xid8 := pg_current_xact_id_if_assigned();
BEGIN
  -- One statement for all lanes: to begin and end that of _waiting takes ten times as long as to read a lane in which little waits.
  RETURN QUERY
  SELECT s.lane, w.segment, w.n, w.ready_at, w.place
  FROM (
    SELECT l.lane, coalesce(b.pos_xid, '0') AS pos_xid, coalesce(b.pos_id, 0) AS pos_id, b.pending, b.pending_after,
           running[width_bucket(coalesce(b.pos_xid, '0'), running) + 1 : width_bucket(coalesce(b.pos_xid, '0'), running) + 64] AS skip
    FROM unnest(_waiting_among.lanes) l(lane)
    LEFT JOIN LATERAL (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
    WHERE l.lane & 549755813880 = 0 OFFSET 0) s
  CROSS JOIN LATERAL (
    SELECT u.segment, count(*) AS n, min(u.ready_at) AS ready_at, min(u.place) AS place FROM (
      SELECT j.* FROM unnest(s.pending, s.pending_after) p(xid, after)
      CROSS JOIN LATERAL (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE j.lane = s.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT most) j
      WHERE running[width_bucket(p.xid, running)] IS DISTINCT FROM p.xid
      UNION ALL
      SELECT j.* FROM generate_series(0, cardinality(s.skip)) i
      CROSS JOIN LATERAL (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE j.lane = s.lane AND j.xid < coalesce(s.skip[i + 1], top)
          AND (j.xid, j.id) > (CASE WHEN i > 0 THEN s.skip[i] ELSE s.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE s.pos_id END)
        ORDER BY j.xid, j.id LIMIT most) j
      UNION ALL  -- rows of the caller's own transaction
      SELECT j.* FROM (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE own >= top AND j.lane = s.lane AND j.xid = own AND (j.xid, j.id) > (s.pos_xid, s.pos_id) ORDER BY j.xid, j.id LIMIT most) j
      LIMIT most) u
    GROUP BY u.segment) w
  UNION ALL  -- lanes of keys
  SELECT l.lane, w.segment, w.n, w.ready_at, w.place FROM unnest(_waiting_among.lanes) l(lane)
  CROSS JOIN LATERAL (
    SELECT u.segment, count(*) AS n, min(u.ready_at) AS ready_at, min(u.place) AS place
    FROM weir._waiting(l.lane, running, top, '0', 0, most) u GROUP BY u.segment) w
  WHERE l.lane & 549755813880 <> 0;
END
$$;
COMMENT ON FUNCTION weir._waiting_among IS
  'How many jobs of each of some lanes wait to be claimed, up to most of a lane, in each segment, including cancelled ones; since when the first of them has waited, and the first place of them. It finds what _waiting finds, at a tenth of the cost for lanes without keys. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._depths(lanes bigint[]) RETURNS TABLE (lane bigint, waiting bigint, is_estimate boolean, ready_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  few     CONSTANT integer := least(100, greatest(20, 200000 / greatest(cardinality(_depths.lanes), 1)));  -- jobs counted of each lane in any case
  most    CONSTANT integer := 10000;  -- jobs counted of one lane
  all_in  CONSTANT integer := 20000;  -- jobs counted of all lanes together, approximately
  pages   CONSTANT integer := 300;    -- sampled
  counted integer;
  v       record;
  first   record;  -- what is found of all lanes
  deep    bigint[];
  size    bigint := current_setting('block_size')::bigint;
BEGIN
  v := weir._in_progress();
  SELECT array_agg(w.lane) AS lanes, array_agg(w.segment) AS segments, array_agg(w.n) AS counts, array_agg(w.ready_at) AS ready_ats, array_agg(w.place) AS places INTO first
  FROM weir._waiting_among(_depths.lanes, v.running, v.top, few) w;
  FOR lane, waiting, ready_at IN
    SELECT f.lane, sum(f.n), min(f.ready_at) FROM unnest(first.lanes, first.counts, first.ready_ats) f(lane, n, ready_at) GROUP BY f.lane
  LOOP
    IF waiting < few THEN
      is_estimate := false;
      RETURN NEXT;
    ELSE
      deep := deep || lane;
    END IF;
  END LOOP;
  IF deep IS NULL THEN
    RETURN;
  END IF;
  counted := greatest(few, least(most, all_in / cardinality(deep)));
  RETURN QUERY
  WITH found AS MATERIALIZED (
    SELECT w.* FROM weir._waiting_among(deep, v.running, v.top, counted) w WHERE counted > few
    UNION ALL
    SELECT f.* FROM unnest(first.lanes, first.segments, first.counts, first.ready_ats, first.places) f(lane, segment, n, ready_at, place)
    WHERE counted = few AND f.lane IN (SELECT unnest(deep))
  ), total AS MATERIALIZED (
    SELECT f.lane, sum(f.n)::bigint AS n, min(f.ready_at) AS ready_at FROM found f GROUP BY f.lane
  ), state AS MATERIALIZED (  -- of lanes with more jobs
    SELECT t.lane, coalesce(b.pos_xid, '0') AS pos_xid, coalesce(b.pos_id, 0) AS pos_id, b.pending, b.pending_after
    FROM total t LEFT JOIN LATERAL (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = t.lane ORDER BY b.seq DESC LIMIT 1) b ON true
    WHERE t.n >= counted AND t.lane & 549755813880 = 0
    UNION ALL
    SELECT t.lane, coalesce(k.pos_xid, '0'), coalesce(k.pos_id, 0), k.pending, k.pending_after FROM total t CROSS JOIN LATERAL weir._state_of(t.lane) k
    WHERE t.n >= counted AND t.lane & 549755813880 <> 0
  ), stretch AS MATERIALIZED (
    SELECT k.segment, k.first, pg_relation_size('weir.job_' || k.segment) / size AS behind
    FROM (
      SELECT g.segment, min((coalesce(f.place, p.place)::text::point)[0])::bigint AS first
      FROM state s CROSS JOIN generate_series(1, 4) g(segment)
      LEFT JOIN found f ON f.lane = s.lane AND f.segment = g.segment
      LEFT JOIN LATERAL (
        SELECT j.ctid AS place FROM weir.job j
        WHERE f.lane IS NULL AND j.segment = g.segment AND j.lane = s.lane AND (j.xid, j.id) > (s.pos_xid, s.pos_id) ORDER BY j.xid, j.id LIMIT 1) p ON true
      GROUP BY g.segment) k
    WHERE k.first IS NOT NULL
  ), every AS MATERIALIZED (
    SELECT greatest(sum(t.behind - t.first) / pages, 1)::float8 AS step FROM stretch t
  ), seen AS MATERIALIZED (
    SELECT s.lane, count(*) AS n
    FROM every e CROSS JOIN stretch t CROSS JOIN LATERAL generate_series(0, ceil((t.behind - t.first) / e.step)::integer - 1) i
    CROSS JOIN LATERAL weir._jobs_on(t.segment::smallint, t.first + floor(i * e.step)::bigint) r
    JOIN state s ON s.lane = r.lane
    WHERE weir._waits(r.xid, r.id, s.pos_xid, s.pos_id, s.pending, s.pending_after)
    GROUP BY s.lane
  )
  SELECT t.lane, CASE WHEN s.lane IS NULL THEN t.n ELSE greatest(t.n, (coalesce(k.n, 0) * e.step)::bigint) END, s.lane IS NOT NULL AND t.n >= counted, t.ready_at
  FROM total t CROSS JOIN every e LEFT JOIN state s ON s.lane = t.lane LEFT JOIN seen k ON k.lane = t.lane;
END
$$;
COMMENT ON FUNCTION weir._depths IS
  'How many jobs of each lane wait to be claimed, including cancelled ones, and since when the first of them have waited; lanes without waiting jobs are left out. Up to 10,000 jobs of a lane and about 20,000 of all lanes are counted; above that, the number is an estimate from a sample of pages. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._waiting_keys(name text, most integer, OUT lanes bigint[], OUT is_whole boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  few      CONSTANT integer := 200;
  max_rows CONSTANT integer := 10000;  -- read in one way
  ids      integer[] := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _waiting_keys.name);
  v        record := weir._in_progress();
  ring     weir.ring;
  own      xid8 := pg_current_xact_id_if_assigned();
  n        bigint;
BEGIN
  lanes := ARRAY(SELECT k FROM unnest(ids) q(id) CROSS JOIN LATERAL weir._key_lanes(q.id, NULL, NULL, few + 1) k LIMIT few + 1);
  is_whole := cardinality(lanes) <= few;
  IF is_whole THEN
    RETURN;
  END IF;
  -- In all lanes of keys where jobs wait, the newest turn or the ring says so, or there are rows that are not announced yet (see functions/turn.sql).
  ring := weir._ring_of(name);
  IF v.top < '18446744073709551615' AND pg_snapshot_xmax(ring.arrived) <= v.top THEN
    SELECT array_agg(DISTINCT u.lane), max(u.n) INTO lanes, n
    FROM (
      SELECT t.lane, count(*) OVER () AS n FROM (
        SELECT t.lane FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= ring.tag ORDER BY t.tag LIMIT max_rows) t LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT t.lane FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE (t.parked OR t.again_at IS NOT NULL)
          AND t.lane > q.id::bigint << 39 AND t.lane < (q.id + 1)::bigint << 39 LIMIT max_rows) t LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT j.lane FROM weir._ended_since(ring.arrived, pg_current_snapshot()) e CROSS JOIN unnest(ids) q(id)
        CROSS JOIN LATERAL (
          SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id::bigint, e.low) AND (j.lane >> 39, j.xid) < (q.id::bigint, e.high) LIMIT max_rows) j LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT j.lane FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (
          SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id::bigint, own) AND (j.lane >> 39, j.xid) <= (q.id::bigint, own) LIMIT max_rows) j LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, 1 FROM unnest(ring.newcomers) t(lane)) u
    WHERE u.lane >> 39 = ANY (ids) AND u.lane & 549755813880 <> 0 OR u.n = max_rows;
    IF coalesce(n, 0) < max_rows THEN
      lanes := coalesce(lanes, '{}');
      is_whole := cardinality(lanes) <= most;
      RETURN;
    END IF;
  END IF;
  lanes := ARRAY(SELECT k FROM unnest(ids) q(id) CROSS JOIN LATERAL weir._key_lanes(q.id, NULL, NULL, most + 1) k LIMIT most + 1);
  is_whole := cardinality(lanes) <= most;
END
$$;
COMMENT ON FUNCTION weir._waiting_keys IS
  'The lanes of keys of a queue in which jobs may wait; is_whole: these are all, and at most most. What it reads is bounded, however many keys there are. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._depths_of_keys() RETURNS TABLE (lane bigint, waiting bigint, is_estimate boolean, ready_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most   CONSTANT integer := 2000;   -- lanes that are looked at, of one queue
  all_in CONSTANT integer := 20000;  -- jobs counted of all lanes together, approximately
  pages  CONSTANT integer := 300;    -- sampled
  v      record := weir._in_progress();
  names  text[] := ARRAY(SELECT DISTINCT w.queue FROM weir.with_keys w);
  name   text;
  keys   record;
  lanes  bigint[] := '{}';
  rest   text[] := '{}';             -- queues with more lanes
  size   bigint := current_setting('block_size')::bigint;
BEGIN
  FOREACH name IN ARRAY names LOOP
    keys := weir._waiting_keys(name, most);
    IF keys.is_whole AND cardinality(lanes) <= most THEN
      lanes := lanes || keys.lanes;
    ELSE
      rest := rest || name;
    END IF;
  END LOOP;
  IF lanes <> '{}' THEN
    RETURN QUERY
    WITH late AS MATERIALIZED (
      SELECT q.id, weir._late_of(q.name) AS xids FROM (SELECT DISTINCT l >> 39 AS id FROM unnest(lanes) l) d JOIN weir.queue q ON q.id = d.id
    ), found AS MATERIALIZED (
      SELECT l.lane, w.n, w.ready_at FROM unnest(lanes) l(lane) JOIN late f ON f.id = l.lane >> 39
      CROSS JOIN LATERAL (SELECT count(*) AS n, min(w.ready_at) AS ready_at
                          FROM weir._waiting(l.lane, v.running, v.top, '0', 0, greatest(10, all_in / cardinality(lanes)), late => f.xids) w) w
      WHERE w.n > 0
    )
    SELECT f.lane, f.n, false, f.ready_at FROM found f WHERE f.n < greatest(10, all_in / cardinality(lanes))
    UNION ALL
    SELECT d.* FROM weir._depths(ARRAY(SELECT f.lane FROM found f WHERE f.n >= greatest(10, all_in / cardinality(lanes)))) d;
  END IF;
  IF rest <> '{}' THEN
    RETURN QUERY
    WITH queue AS MATERIALIZED (
      SELECT q.id, weir._late_of(q.name) AS late FROM weir.queue q WHERE q.name = ANY (rest)
    ), every AS MATERIALIZED (
      SELECT greatest(sum(pg_relation_size('weir.job_' || g.segment) / size) / pages, 1)::float8 AS step FROM generate_series(1, 4) g(segment)
    ), seen AS MATERIALIZED (
      SELECT r.*, g.segment FROM every e CROSS JOIN generate_series(1, 4) g(segment)
      CROSS JOIN LATERAL generate_series(0, ceil(pg_relation_size('weir.job_' || g.segment) / size / e.step)::integer - 1) i
      CROSS JOIN LATERAL weir._jobs_on(g.segment::smallint, floor(i * e.step)::bigint) r
      JOIN queue q ON q.id = r.lane >> 39
      WHERE r.lane & 549755813880 <> 0
    ), state AS MATERIALIZED (
      SELECT l.lane, q.late, t.* FROM (SELECT DISTINCT s.lane FROM seen s) l JOIN queue q ON q.id = l.lane >> 39
      LEFT JOIN LATERAL (SELECT t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t ON true
    )
    SELECT s.lane, (count(*) * min(e.step))::bigint, true, min(s.ready_at)
    FROM every e CROSS JOIN seen s JOIN state t ON t.lane = s.lane
    WHERE weir._waits(s.xid, s.id, t.pos_xid, t.pos_id, t.pending, t.pending_after, t.late)
    GROUP BY s.lane;
    RETURN QUERY SELECT (q.id::bigint << 39) + 4, 0::bigint, true, NULL::timestamptz FROM weir.queue q WHERE q.name = ANY (rest);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._depths_of_keys IS
  'As _depths, for the lanes of keys. If jobs may wait in more than 2,000 lanes of a queue, their number is an estimate from a sample of pages, given for the lanes that it has met. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._jobs_on(segment smallint, page bigint) RETURNS TABLE (lane bigint, xid xid8, id bigint, ready_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_indexscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT j.lane, j.xid, j.id, coalesce(j.ready_at, j.enqueued_at) FROM weir.job j
    WHERE j.segment = _jobs_on.segment AND j.ctid >= format('(%s,0)', _jobs_on.page)::tid AND j.ctid < format('(%s,0)', _jobs_on.page + 1)::tid;
END
$$;
COMMENT ON FUNCTION weir._jobs_on IS 'The jobs on one page of a segment.';

CREATE OR REPLACE FUNCTION weir._in_hand(workers integer[], upto bigint, most integer)
RETURNS TABLE (worker integer, no bigint, lane bigint, ids bigint[], is_last boolean)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT w.id, b.no, b.lane,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq),
         b.nr = _in_hand.most
  FROM unnest(_in_hand.workers) w(id)
  LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = w.id ORDER BY s.no DESC LIMIT 1) m ON true
  CROSS JOIN LATERAL (
    SELECT l.*, row_number() OVER (ORDER BY l.no DESC) AS nr FROM (
      SELECT b.no, b.lane, b.seq, b.segment, b.ids FROM weir.batch b
      WHERE b.worker = w.id AND b.no > coalesce(m.no, 0) AND b.no <= _in_hand.upto ORDER BY b.no DESC
      FETCH FIRST (_in_hand.most) ROWS WITH TIES) l  -- all parts of the oldest batch: the next page continues below its number
    UNION ALL
    SELECT b.no, b.lane, b.seq, b.segment, b.ids, 0 FROM unnest(m.open) o(no)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.worker = w.id AND b.no = o.no OFFSET 0) b
    WHERE o.no <= _in_hand.upto) b
  -- An attempt ends once, so a batch with as many results as jobs has ended, with both of its parts: see _unfinished.
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq) OR b.nr = _in_hand.most
$$;
COMMENT ON FUNCTION weir._in_hand IS
  'What some workers hold: their batches up to a number that have jobs without a result, and these jobs. It reads, of each worker, the batches that were open when it was last settled, and about most of the newest claimed since, each with all its parts: is_last marks the oldest one read, if there may be older ones.';

CREATE OR REPLACE FUNCTION weir._depths_running() RETURNS TABLE (lane bigint, running bigint, is_estimate boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most    CONSTANT integer := 5000;  -- batches read, approximately
  workers integer[] := weir._holders();
BEGIN
  RETURN QUERY
  WITH hand AS MATERIALIZED (
    SELECT h.* FROM weir._in_hand(workers, 9223372036854775807, greatest(20, most / greatest(cardinality(workers), 1))) h
  ), unsure AS (  -- a worker of which not all is read may hold jobs of any queue that it works, also of one that is not among those read
    SELECT q.id FROM weir.queue q
    WHERE q.name IN (SELECT n FROM weir.worker w CROSS JOIN unnest(w.queues) n WHERE NOT w.fenced AND w.id IN (SELECT h.worker FROM hand h WHERE h.is_last))
       OR EXISTS (SELECT FROM weir.worker w WHERE NOT w.fenced AND w.others IS NOT NULL AND q.name ~ w.others AND w.id IN (SELECT h.worker FROM hand h WHERE h.is_last))
  )
  SELECT k.lane, sum(k.n)::bigint, bool_or(k.is_estimate)
  FROM (SELECT h.lane, cardinality(h.ids) AS n, false AS is_estimate FROM hand h
        UNION ALL SELECT (u.id::bigint << 39) + p, 0, true FROM unsure u CROSS JOIN generate_series(0, 3) p) k
  GROUP BY k.lane;
END
$$;
COMMENT ON FUNCTION weir._depths_running IS
  'How many jobs of each lane are running: too few, perhaps, in the lanes of a worker that has claimed so many batches since it was last settled that only the newest are read; these are marked as estimates, and all of them are returned. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._holders() RETURNS integer[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(SELECT w.id FROM weir.worker w WHERE NOT w.fenced
               AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = w.id AND s.no = 9223372036854775807))
$$;
COMMENT ON FUNCTION weir._holders IS 'The workers that may hold jobs: all except those that have ended and hold nothing.';

CREATE OR REPLACE FUNCTION weir._depths_later() RETURNS TABLE (lane bigint, scheduled bigint, is_estimate boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 10000;  -- jobs counted
  few   CONSTANT integer := 100;    -- jobs counted of each lane in any case,
  lanes CONSTANT integer := 2000;   -- in up to this number of lanes
  pages CONSTANT integer := 300;
  size  bigint := current_setting('block_size')::bigint;
  c     weir.promotion;
  found record;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT coalesce(sum(k.n), 0) AS looked, coalesce(sum(k.n) FILTER (WHERE k.lane > 0), 0) AS n,
         array_agg(k.lane) FILTER (WHERE k.lane > 0) AS lanes, array_agg(k.n) FILTER (WHERE k.lane > 0) AS counts INTO found
  FROM (
    SELECT f.lane, count(*) AS n
    FROM ((SELECT l.lane FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
           ORDER BY l.run_at, l.id LIMIT 2 * most + 1)
          UNION ALL SELECT l.lane FROM weir._overdue(c, most) l) f  -- in lane 0 are due times of schedules, which are no jobs
    GROUP BY f.lane) k;
  IF found.n <= most AND found.looked <= 2 * most THEN
    RETURN QUERY SELECT k.lane, k.n, false FROM unnest(found.lanes, found.counts) k(lane, n);
    RETURN;
  END IF;
  RETURN QUERY
  WITH RECURSIVE known(lane) AS (
    (SELECT l.lane FROM weir.later l WHERE l.lane > 0 ORDER BY l.lane, l.run_at, l.id LIMIT 1)
    UNION ALL
    SELECT (SELECT l.lane FROM weir.later l WHERE l.lane > k.lane ORDER BY l.lane, l.run_at, l.id LIMIT 1) FROM known k WHERE k.lane IS NOT NULL
  ), counted AS MATERIALIZED (
    SELECT k.lane, (SELECT count(*) FROM (SELECT FROM weir.later l WHERE l.lane = k.lane AND (l.run_at, l.id) > (c.due, c.due_id) LIMIT few) f) AS n
    FROM (SELECT k.lane FROM known k WHERE k.lane IS NOT NULL LIMIT lanes) k
  ), stretch AS MATERIALIZED (
    SELECT g.segment, pg_relation_size('weir.later_' || g.segment) / size AS behind FROM generate_series(1, 4) g(segment)
  ), every AS MATERIALIZED (
    SELECT greatest(sum(t.behind) / pages, 1)::float8 AS step FROM stretch t
  ), seen AS MATERIALIZED (
    SELECT r.lane, (count(*) * min(e.step))::bigint AS n
    FROM every e CROSS JOIN stretch t CROSS JOIN LATERAL generate_series(0, ceil(t.behind / e.step)::integer - 1) i
    CROSS JOIN LATERAL weir._later_on(t.segment::smallint, floor(i * e.step)::bigint) r
    WHERE (r.run_at, r.id) > (c.due, c.due_id) AND r.lane > 0
    GROUP BY r.lane
  )
  SELECT coalesce(k.lane, s.lane), CASE WHEN k.n < few THEN k.n ELSE greatest(k.n, s.n) END, coalesce(k.n >= few, true)
  FROM counted k FULL JOIN seen s ON s.lane = k.lane WHERE coalesce(k.n, s.n) > 0;
END
$$;
COMMENT ON FUNCTION weir._depths_later IS
  'How many jobs of each lane are scheduled, including cancelled ones: if there are more than 10,000, an estimate from a sample of pages for lanes with 100 or more. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._later_on(segment smallint, page bigint) RETURNS TABLE (lane bigint, run_at timestamptz, id bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_indexscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT l.lane, l.run_at, l.id FROM weir.later l
    WHERE l.segment = _later_on.segment AND l.ctid >= format('(%s,0)', _later_on.page)::tid AND l.ctid < format('(%s,0)', _later_on.page + 1)::tid;
END
$$;
COMMENT ON FUNCTION weir._later_on IS 'The scheduled jobs on one page of a segment.';

CREATE OR REPLACE FUNCTION weir._lanes_to_count(s weir.survey) RETURNS SETOF bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT w FROM unnest(s.waiting) w UNION ALL SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 3) p WHERE q.id > s.upto
$$;
COMMENT ON FUNCTION weir._lanes_to_count IS 'The lanes in which jobs without a key may wait, of which a survey tells: the others have none. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._read_queues()
RETURNS TABLE (name text, paused_at timestamptz, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamptz,
               claimed bigint, last_claim timestamptz, workers bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  s weir.survey;
BEGIN
  s := weir._surveyed();
  RETURN QUERY
  WITH looked AS MATERIALIZED (
    SELECT l.lane, b.total, b.claimed_at
    FROM (SELECT weir._lanes_to_count(s)
          UNION ALL SELECT (q.id::bigint << 39) + 4 FROM weir.queue q WHERE q.name IN (SELECT w.queue FROM weir.with_keys w)) l(lane)
    LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
  ), lane AS (
    SELECT l.lane, l.total, l.claimed_at FROM looked l
    UNION ALL
    SELECT k.lane, k.total, k.at FROM unnest(s.lanes, s.totals, s.claimed_at) k(lane, total, at)
    LEFT JOIN looked l ON l.lane = k.lane WHERE l.lane IS NULL
  ), depth AS (
    SELECT d.lane, d.waiting, 0 AS running, 0 AS scheduled, d.is_estimate, d.ready_at FROM weir._depths(ARRAY(SELECT l.lane FROM looked l)) d
    UNION ALL SELECT k.lane, k.waiting, 0, 0, k.is_estimate, k.ready_at FROM weir._depths_of_keys() k
    UNION ALL SELECT r.lane, 0, r.running, 0, r.is_estimate, NULL FROM weir._depths_running() r
    UNION ALL SELECT l.lane, 0, 0, l.scheduled, l.is_estimate, NULL FROM weir._depths_later() l
  ), crew AS (
    SELECT u.name, count(*) AS n
    FROM weir.worker w
    CROSS JOIN LATERAL (SELECT q.name FROM unnest(w.queues) q(name) UNION SELECT q.name FROM weir.queue q WHERE w.others IS NOT NULL AND q.name ~ w.others) u
    WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced) AND w.id NOT IN (SELECT i.id FROM weir._silent() i(id))
    GROUP BY u.name
  ), sums AS (
    SELECT (l.lane >> 39)::integer AS id, sum(l.total) AS total, max(l.claimed_at) FILTER (WHERE l.total > 0) AS claimed_at FROM lane l GROUP BY (l.lane >> 39)::integer
  ), depths AS (
    SELECT (d.lane >> 39)::integer AS id, sum(d.waiting) AS waiting, sum(d.running) AS running, sum(d.scheduled) AS scheduled, bool_or(d.is_estimate) AS is_estimate, min(d.ready_at) AS ready_at
    FROM depth d GROUP BY (d.lane >> 39)::integer
  )
  SELECT q.name, max(q.paused_at), coalesce(sum(d.waiting), 0)::bigint, coalesce(sum(d.running), 0)::bigint, coalesce(sum(d.scheduled), 0)::bigint,
         coalesce(bool_or(d.is_estimate), false), min(d.ready_at), coalesce(sum(l.total), 0)::bigint, max(l.claimed_at), coalesce(max(c.n), 0)
  FROM weir.queue q LEFT JOIN sums l ON l.id = q.id LEFT JOIN depths d ON d.id = q.id LEFT JOIN crew c ON c.name = q.name
  GROUP BY q.name ORDER BY q.name;
END
$$;
COMMENT ON FUNCTION weir._read_queues IS 'The queues as one snapshot shows them, see weir.queues. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir.queues()
RETURNS TABLE (name text, paused_at timestamptz, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamptz,
               claimed bigint, last_claim timestamptz, workers bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._lock_log();
  RETURN QUERY SELECT q.* FROM weir._read_queues() q;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.queues IS
  'Queues by name: how many of their jobs are available, running and scheduled, including cancelled ones that no worker has reached yet; since when the available job that has waited longest could have been claimed; and claimed, the number of attempts ever claimed; last_claim is NULL until the first; workers, how many workers that are alive work the queue, see weir.workers. Counts are exact up to about 10,000 and estimated to a few percent above that; running may lack jobs that a worker claimed long before its newest batches, of which about 5,000 are read. approximate means that one of a queue''s counts is an estimate. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
