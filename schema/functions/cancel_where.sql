-- Cancelling by filter: one row, however many jobs it describes.
--
-- weir.cancel_where records what it cancels as a filter and the last job id at that time. Ids are never reused and stay with a job for life,
-- and so does everything that a filter compares, unless the job is moved, which weir.reprieve notes. Therefore the row means the same jobs whatever
-- becomes of them: promoted, carried, dumped or rebased.
-- Claims read these rows after they have locked a lane. A job that one of them describes is not returned: the claim writes the batch and, in the same
-- transaction, that its jobs ended as cancelled. So no such job is ever held by a worker, a claim that is lost is lost as a whole, and
-- many thousands are ended in one call, without their arguments being read by anyone.

CREATE OR REPLACE FUNCTION weir._filters_of(queue text, priority integer) RETURNS weir.cancellation_where[]
LANGUAGE plpgsql STABLE  -- so that it is planned once for each session
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN (SELECT array_agg(w) FROM weir.cancellation_where w
          WHERE (w.queue IS NULL OR w.queue = _filters_of.queue) AND (_filters_of.priority IS NULL OR w.priority IS NULL OR w.priority = _filters_of.priority));
END
$$;
COMMENT ON FUNCTION weir._filters_of IS 'The cancellations by filter that may concern jobs of a queue, of one priority or (NULL) of any; NULL: there are none.';

CREATE OR REPLACE FUNCTION weir._check_filter(what text, queue text, kinds text[], meta jsonb, priority integer, key text, error text, has_time boolean, hint text, shape text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  empty text;  -- a condition that was given, but whose value is empty: from a variable that is not set, for example
BEGIN
  SELECT c.name INTO empty
  FROM (VALUES ('queue', _check_filter.queue = ''), ('kinds', cardinality(_check_filter.kinds) = 0 OR '' = ANY (_check_filter.kinds)), ('meta', _check_filter.meta = '{}'), ('key', _check_filter.key = ''), ('error', _check_filter.error = ''), ('shape', _check_filter.shape = '')) c(name, is_empty)
  WHERE c.is_empty LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % got a condition whose value is empty: %', _check_filter.what, empty USING ERRCODE = '22023', HINT = 'Pass NULL for no condition.';
  END IF;
  PERFORM weir._check_array(_check_filter.what, 'kinds', _check_filter.kinds), weir._check_key(_check_filter.key);
  IF cardinality(_check_filter.kinds) > 1000 OR array_position(_check_filter.kinds, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % takes 1 to 1000 kinds, none of them null, got % kinds', _check_filter.what, cardinality(_check_filter.kinds) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(_check_filter.meta) <> 'object' OR pg_column_size(_check_filter.meta) > 65536 THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object of at most 64 KiB, got %', left(_check_filter.meta::text, 100)
      USING ERRCODE = '22023', HINT = 'It selects the jobs whose meta contains this object, as with @>.';
  ELSIF _check_filter.priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: priority must be 1 to 4, got %', _check_filter.priority USING ERRCODE = '22023';
  ELSIF NOT _check_filter.has_time AND num_nonnulls(_check_filter.queue, _check_filter.kinds, _check_filter.meta, _check_filter.priority, _check_filter.key, _check_filter.error, _check_filter.shape) = 0 THEN
    RAISE EXCEPTION 'weir: % needs a filter', _check_filter.what USING ERRCODE = '22023', HINT = _check_filter.hint;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_filter IS 'Refuses a filter of a bulk operation that is not valid, that has no condition, or one whose value is empty. has_time: a time is a condition. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.cancel_where(queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL, priority integer DEFAULT NULL,
                                             enqueued_after timestamptz DEFAULT NULL, enqueued_before timestamptz DEFAULT NULL, key text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 1000;
  this weir.cancellation_where;
  n    bigint;
BEGIN
  PERFORM weir._check_filter('cancel_where', cancel_where.queue, cancel_where.kinds, cancel_where.meta, cancel_where.priority, cancel_where.key, NULL,
    num_nonnulls(cancel_where.enqueued_after, cancel_where.enqueued_before) > 0,
    'Pass a queue, a key, kinds, meta, a priority or a time. To cancel all jobs, pass enqueued_before => now().');
  IF cancel_where.queue IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q WHERE q.name = cancel_where.queue) THEN
    RETURN NULL;
  END IF;
  this.upto := coalesce(pg_sequence_last_value('weir.job_id'), 0);
  this.queue := cancel_where.queue;
  this.kinds := cancel_where.kinds;
  this.meta := cancel_where.meta;
  this.priority := cancel_where.priority;
  this.enqueued_after := cancel_where.enqueued_after;
  this.enqueued_before := cancel_where.enqueued_before;
  this.key := cancel_where.key;
  n := (SELECT count(*) FROM weir.cancellation_where w WHERE w.flow IS NULL);
  IF n >= 2 * most OR n >= most AND NOT EXISTS (SELECT FROM weir.cancellation_where w WHERE weir._covers(this, w)) THEN
    RAISE EXCEPTION 'weir: % cancellations by filter are not finished', n
      USING ERRCODE = '54000', HINT = 'Each is kept until workers have passed its jobs, scheduled ones are due, and transactions that were open then have ended. Cancel with one wider filter, which replaces those that it covers; or end old transactions (weir doctor names them), and work or resume the queues; or cancel single jobs with weir.cancel.';
  END IF;
  PERFORM pg_current_xact_id();
  INSERT INTO weir.cancellation_where (upto, queue, kinds, meta, priority, enqueued_after, enqueued_before, key)
  VALUES (this.upto, this.queue, this.kinds, this.meta, this.priority, this.enqueued_after, this.enqueued_before, this.key)
  RETURNING no INTO this.no;
  PERFORM nextval('weir.control');
  -- In order, those that were to be tried again hold up their keys no more.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT l.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, CASE WHEN this.key IS NOT NULL THEN ARRAY[weir._key_bits(this.key)] ELSE '{}' END
  FROM weir.queue_limit l WHERE l.in_order AND (this.queue IS NULL OR l.name = this.queue);
  IF FOUND THEN
    PERFORM nextval('weir.job_id');  -- wakes idle workers
  END IF;
  RETURN this.no;
END
$$;
COMMENT ON FUNCTION weir.cancel_where IS
  'Cancels all jobs that match a filter and are not finished: of a queue, of some kinds, whose meta contains meta, of a priority, enqueued at or after enqueued_after, or before enqueued_before, with this key; all conditions that are not NULL must hold. At least one is required. It writes one row, and one for each queue whose keys run in order, and counts nothing, so it takes the same time for one job as for a million. After the commit no such job starts, and all functions show those that wait as cancelled; the workers of running ones are notified, as by weir.cancel. It applies to jobs with ids up to the last one assigned when it is called, including those of transactions that have not committed yet, and to no job enqueued later. Returns a number that identifies the cancellation, or NULL if the queue does not exist. Errors: 22023 (no filter, or not a valid one: an empty value is refused, pass NULL for no condition), 54000 (1000 cancellations are unfinished, and this one covers none of them). Locks: ROW EXCLUSIVE on weir.cancellation_where: it waits for steps of weir.move_where, and these wait until its transaction ends, for up to 5 s. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._covers(later weir.cancellation_where, earlier weir.cancellation_where) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce(later.is_late IS NOT TRUE AND later.upto >= earlier.upto AND (later.queue IS NULL OR later.queue = earlier.queue) AND (later.kinds IS NULL OR earlier.kinds <@ later.kinds)
    AND (later.meta IS NULL OR earlier.meta @> later.meta) AND (later.priority IS NULL OR later.priority = earlier.priority) AND (later.key IS NULL OR later.key = earlier.key) AND (later.flow IS NULL OR later.flow = earlier.flow)
    AND (later.enqueued_after IS NULL OR earlier.enqueued_after >= later.enqueued_after)
    AND (later.enqueued_before IS NULL OR earlier.enqueued_before <= later.enqueued_before), false)
$$;
COMMENT ON FUNCTION weir._covers IS 'Reports whether a later cancellation by filter means every job that an earlier one means, so that the earlier one is not needed. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._means(w weir.cancellation_where, id bigint, kind text, meta jsonb, at timestamptz, key text, priority integer, flow bigint) RETURNS boolean
LANGUAGE sql STABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT w.upto >= _means.id AND (w.kinds IS NULL OR _means.kind = ANY (w.kinds)) AND (w.meta IS NULL OR _means.meta @> w.meta)
    AND (w.key IS NULL OR _means.key = w.key) AND (w.flow IS NULL OR (_means.flow = w.flow OR weir._is_within(_means.flow, w.flow)) AND coalesce(NOT _means.meta ? 'weir.flow', true) AND (NOT w.is_late OR weir._is_cancelled_now(_means.flow))) AND (w.priority IS NULL OR _means.priority IS NULL OR _means.priority = w.priority)
    AND (w.enqueued_after IS NULL OR _means.at >= w.enqueued_after) AND (w.enqueued_before IS NULL OR _means.at < w.enqueued_before)
$$;
COMMENT ON FUNCTION weir._means IS 'Whether a cancellation by filter means a job of its queue, apart from reprieves; a flow''s does not mean callbacks of flows within it. priority: NULL, if the caller has compared it. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._cancelled_of(filters weir.cancellation_where[], ids bigint[], attempts integer[], kinds text[], metas jsonb[], enqueued timestamptz[], keys text[] DEFAULT NULL, priorities integer[] DEFAULT NULL, flows bigint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT ARRAY(
    SELECT u.id FROM unnest(_cancelled_of.ids, _cancelled_of.attempts, _cancelled_of.kinds, _cancelled_of.metas, _cancelled_of.enqueued,
                     _cancelled_of.keys, _cancelled_of.priorities, _cancelled_of.flows) WITH ORDINALITY u(id, attempt, kind, meta, at, key, priority, flow, nr)
    WHERE EXISTS (
      SELECT FROM unnest(_cancelled_of.filters) f
      WHERE weir._means(f::weir.cancellation_where, u.id, u.kind, u.meta, u.at, u.key, u.priority, u.flow)
        AND NOT EXISTS (SELECT FROM weir.reprieve r WHERE r.id = u.id AND r.attempt <= u.attempt AND f.no BETWEEN r.since AND r.upto OFFSET 0)
      OFFSET 0)
    ORDER BY u.nr)
$$;
COMMENT ON FUNCTION weir._cancelled_of IS 'Which of some rows of the log are cancelled by one of these filters, in their order. The caller has chosen filters by queue, and by priority, unless it passes priorities. keys: NULL, if none of them has one.';

CREATE OR REPLACE FUNCTION weir._drop(worker integer, lane bigint, seq bigint, filters weir.cancellation_where[], segments smallint[], ids bigint[],
                                      attempts integer[], kinds text[], metas jsonb[], enqueued timestamptz[], keys text[], priorities integer[], flows bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  gone bigint[] := weir._cancelled_of(_drop.filters, _drop.ids, _drop.attempts, _drop.kinds, _drop.metas, _drop.enqueued, _drop.keys, _drop.priorities, _drop.flows);
BEGIN
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
  SELECT _drop.lane, u.segment, _drop.worker, _drop.seq, clock_timestamp(), 'cancelled', array_agg(u.id)
  FROM unnest(_drop.segments, _drop.ids) u(segment, id) WHERE u.id = ANY (gone) GROUP BY u.segment;
  PERFORM weir._arrive_ended(ARRAY(SELECT u.flow FROM unnest(_drop.ids, _drop.flows) u(id, flow) WHERE u.id = ANY (gone)), '{}');
  RETURN gone;
END
$$;
COMMENT ON FUNCTION weir._drop IS
  'Ends those jobs of a batch that is being claimed that are cancelled by one of these filters, and returns their ids. In the transaction of the claim: so they are claimed and ended, or neither. Segments can''t be reclaimed meanwhile, because a claim holds the claims'' lock.';

CREATE OR REPLACE FUNCTION weir._skip_ended(worker integer, lane bigint, filters weir.cancellation_where[], to_judge boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  max_batches CONSTANT integer := 10;   -- in one call
  max_size    CONSTANT integer := 960;  -- as in a claim
  max_skip    CONSTANT integer := 64;
  last_id     CONSTANT bigint := 9223372036854775807;
  size        integer := CASE WHEN to_judge THEN 30 ELSE max_size END;
  snapshot    pg_snapshot;
  top         xid8;
  running     xid8[];
  skip        xid8[];
  below       integer;
  last        record;
  next        record;
  fates       record;   -- of those that are ended: ids and reasons
  length      integer;  -- of the run of jobs at the head that are ended
  this_seq    bigint;
BEGIN
  FOR batch IN 1..max_batches LOOP
    SELECT b.seq, b.pos_xid, b.pos_id, b.total, b.pending INTO last FROM weir.batch b WHERE b.lane = _skip_ended.lane ORDER BY b.seq DESC LIMIT 1;
    IF NOT FOUND THEN
      SELECT 0::bigint AS seq, '0'::xid8 AS pos_xid, 0::bigint AS pos_id, 0::bigint AS total, NULL::xid8[] AS pending INTO last;
    END IF;
    snapshot := pg_current_snapshot();
    top := least(pg_snapshot_xmax(snapshot), pg_current_xact_id_if_assigned());  -- what this transaction logs must not lie before the position
    running := ARRAY(SELECT pg_snapshot_xip(snapshot));
    below := width_bucket(last.pos_xid, running);
    IF last.pos_xid >= top OR last.pending <> running[1 : below] THEN
      RETURN false;  -- the claim reports the former; of the latter, rows of transactions that have ended come first, and the claim reads them
    END IF;
    skip := running[below + 1 : below + max_skip];
    SELECT array_agg(p.segment) AS segments, array_agg(p.xid) AS xids, array_agg(p.id) AS ids, array_agg(p.attempt) AS attempts, array_agg(p.kind) AS kinds,
           array_agg(p.meta) AS metas, array_agg(p.enqueued_at) AS enqueued, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos, array_agg(p.unique_until) AS untils, array_agg(p.flow) AS flows INTO next
    FROM (
      SELECT j.* FROM generate_series(0, cardinality(skip)) i
      CROSS JOIN LATERAL (
        SELECT j.segment, j.xid, j.id, j.attempt, j.kind, j.meta, j.enqueued_at, j.unique_key, j.unique_no, j.unique_until, j.flow FROM weir.job j
        WHERE j.lane = _skip_ended.lane AND j.xid < coalesce(skip[i + 1], top)
          AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
          AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))
        ORDER BY j.xid, j.id LIMIT size) j
      LIMIT size) p;
    SELECT array_agg(e.id ORDER BY e.nr) AS ids, array_agg(e.reason ORDER BY e.nr) AS reasons INTO fates
    FROM weir._ended_among(_skip_ended.filters, to_judge, next.ids, next.xids, next.attempts, next.kinds, next.metas, next.enqueued, NULL, NULL, next.keys, next.nos, next.untils, next.flows) e;
    -- The rows up to the first one that is not ended.
    length := (SELECT coalesce(min(u.nr) - 1, cardinality(next.ids)) FROM unnest(next.ids, fates.ids) WITH ORDINALITY u(id, gone, nr) WHERE u.gone IS DISTINCT FROM u.id);
    IF coalesce(length, 0) = 0 THEN
      RETURN false;
    END IF;
    this_seq := greatest(last.seq, (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) << 40) + 1;  -- as in a claim
    WITH made AS (
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, ids, pending_after, flows)
      SELECT _skip_ended.lane, s.segment, s.segment, _skip_ended.worker, this_seq, next.xids[1], next.xids[length], next.xids[length], next.ids[length], last.total + length, now(),
             o.no, CASE WHEN o.pending > 0 THEN running[1 : o.pending] END, s.ids, CASE WHEN o.pending > 0 THEN array_fill(0::bigint, ARRAY[o.pending]) END, s.flows
      FROM (SELECT nextval('weir.batch_no') AS no, width_bucket(next.xids[length], running) AS pending OFFSET 0) o
      CROSS JOIN (SELECT p.segment, array_agg(p.id) AS ids, weir._flows_of(array_agg(p.flow)) AS flows
                  FROM unnest(next.segments[1 : length], next.ids[1 : length], next.flows[1 : length]) p(segment, id, flow) GROUP BY p.segment) s
      RETURNING segment, ids
    )
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
    SELECT _skip_ended.lane, m.segment, _skip_ended.worker, this_seq, clock_timestamp(), 'cancelled', m.ids,
           CASE WHEN array_to_string(fates.reasons, '') <> '' THEN ARRAY(SELECT nullif(fates.reasons[array_position(fates.ids, i.id)], '') FROM unnest(m.ids) WITH ORDINALITY i(id, nr) ORDER BY i.nr) END
    FROM made m;
    PERFORM weir._arrive_ended(next.flows[1 : length], fates.reasons[1 : length]);
    IF length < size THEN
      RETURN false;
    END IF;
    size := least(2 * size, max_size);
  END LOOP;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._skip_ended IS
  'Ends the jobs at the head of a lane that are cancelled by one of these filters or, with to_judge, are duplicates of others (see _judge), up to the first one that is not: up to 9600 in one call, in batches that are ended as they are claimed. True: there may be more. The caller is a claim, and holds the lane''s lock, and to judge that of the queue''s unique jobs.';

CREATE OR REPLACE FUNCTION weir._ended_among(filters weir.cancellation_where[], to_judge boolean, ids bigint[], xids xid8[], attempts integer[], kinds text[], metas jsonb[], enqueued timestamptz[],
                                             keys text[], priorities integer[], unique_keys uuid[], nos bigint[], untils timestamptz[], flows bigint[]) RETURNS TABLE (nr bigint, id bigint, reason text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off  -- both sides have hundreds of rows, which no planner knows; and callers have turned hash joins off
SET enable_hashjoin = on
AS $$
#variable_conflict use_column
DECLARE
  cancelled bigint[] := CASE WHEN filters IS NOT NULL THEN weir._cancelled_of(filters, _ended_among.ids, attempts, kinds, metas, enqueued, keys, priorities, flows) END;
  judged    bigint[];
  reasons   text[];
BEGIN
  IF to_judge THEN
    SELECT array_agg(g.id), array_agg(g.reason) INTO judged, reasons
    FROM (SELECT array_agg(u.id) AS ids, array_agg(u.xid) AS xids, array_agg(u.key) AS keys, array_agg(u.no) AS nos, array_agg(coalesce(u.until, 'infinity')) AS untils, array_agg(u.at) AS times
          FROM unnest(_ended_among.ids, xids, unique_keys, nos, untils, enqueued) u(id, xid, key, no, until, at) WHERE u.key IS NOT NULL) u
    CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
    WHERE u.ids IS NOT NULL AND g.fate = 'dropped';
  END IF;
  RETURN QUERY
  SELECT u.nr, u.id, coalesce(j.reason, '') FROM unnest(_ended_among.ids) WITH ORDINALITY u(id, nr)
  LEFT JOIN unnest(cancelled) c(id) ON c.id = u.id LEFT JOIN unnest(judged, reasons) j(id, reason) ON j.id = u.id
  WHERE c.id IS NOT NULL OR j.id IS NOT NULL;
END
$$;
COMMENT ON FUNCTION weir._ended_among IS
  'Which of some rows of one lane, in their order, a claim ends itself, and for what reason: those that are cancelled by one of these filters and, with to_judge, unique jobs that need no run (see _judge). Their fates are those of a claim that ends just them: so they hold up to the first row that is not among them.';

CREATE OR REPLACE FUNCTION weir._cancelled_where_among(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  gone    bigint[] := '{}';
  filters weir.cancellation_where[];
  r       record;
BEGIN
  FOR r IN
    SELECT a.queue, array_agg(a.id) AS ids, array_agg(a.attempt) AS attempts, array_agg(a.kind) AS kinds, array_agg(a.meta) AS metas, array_agg(a.enqueued_at) AS enqueued,
           array_agg(a.key) AS keys, array_agg((a.lane & 3)::integer + 1) AS priorities, array_agg(a.flow) AS flows
    FROM (
      SELECT i.id, u.*, (SELECT q.name FROM weir.queue q WHERE q.id = (u.lane >> 39)::integer) AS queue
      FROM unnest(_cancelled_where_among.ids) i(id) CROSS JOIN LATERAL (
        SELECT k.* FROM (
          (SELECT j.lane, j.attempt, j.put_off, j.kind, j.meta, j.enqueued_at, j.key, j.flow FROM weir.job j WHERE j.id = i.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1)
          UNION ALL
          (SELECT l.lane, l.attempt, l.put_off, l.kind, l.meta, l.enqueued_at, l.key, l.flow FROM weir.later l WHERE l.id = i.id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1)) k
        ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1) u) a
    GROUP BY a.queue
  LOOP
    SELECT array_agg(w) INTO filters FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(r.ids) i(id)) AND (w.queue IS NULL OR w.queue = r.queue);
    IF filters IS NOT NULL THEN
      gone := gone || weir._cancelled_of(filters, r.ids, r.attempts, r.kinds, r.metas, r.enqueued, r.keys, r.priorities, r.flows);
    END IF;
  END LOOP;
  RETURN gone;
END
$$;
COMMENT ON FUNCTION weir._cancelled_where_among IS 'Those of some jobs that are not finished that are cancelled by a filter. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_cancelled_where(job_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN job_id = ANY (weir._cancelled_where_among(ARRAY[job_id]));
END
$$;
COMMENT ON FUNCTION weir._is_cancelled_where IS 'Reports whether a job that is not finished is cancelled by a filter. Errors: none. Locks: none that others wait for. Isolation: any.';
