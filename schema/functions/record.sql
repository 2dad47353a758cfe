-- The ends of attempts: what a worker records.

CREATE OR REPLACE FUNCTION weir.hold_batches(worker integer, lanes integer[], seqs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  found    integer;
  segments integer[];
  held     integer[] := '{}';
  s        integer;
BEGIN
  PERFORM weir.check_isolation('results');
  PERFORM pg_advisory_xact_lock_shared(1464158548, hold_batches.worker);
  PERFORM weir.check_worker(hold_batches.worker);
  LOOP
    SELECT count(DISTINCT i.ord), array_agg(DISTINCT b.segment::integer) INTO found, segments
    FROM unnest(hold_batches.lanes, hold_batches.seqs) WITH ORDINALITY i(lane, seq, ord)
    JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM hold_batches.worker;
    IF found <> cardinality(hold_batches.lanes) THEN
      RAISE EXCEPTION 'weir: % of the % batches named are not worker %''s', cardinality(hold_batches.lanes) - found,
        cardinality(hold_batches.lanes), hold_batches.worker
        USING ERRCODE = 'WR002', HINT = 'Their claim was lost in a crash of the server, and the jobs are handed out again: drop these results.';
    END IF;
    EXIT WHEN segments <@ held;
    FOREACH s IN ARRAY segments LOOP
      PERFORM pg_advisory_xact_lock_shared(1464158549, s);
    END LOOP;
    held := held || segments;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir.hold_batches IS
  'Checks that the worker is not fenced and that the batches are its own, and keeps both so to the end of the transaction. A result lies in its batch''s segment: that segment''s lock, shared, keeps it from being reclaimed meanwhile; the look is repeated under the lock, for the batch may have been carried elsewhere before it was held. Errors: WR001, WR002, WR004.';

CREATE OR REPLACE FUNCTION weir.complete(worker integer, lanes integer[], seqs bigint[], sizes integer[], ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
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
  firsts integer[] := '{}';
  next   integer := 1;
  size   integer;
BEGIN
  IF cardinality(complete.lanes) IS DISTINCT FROM cardinality(complete.seqs) OR cardinality(complete.lanes) IS DISTINCT FROM cardinality(complete.sizes) THEN
    RAISE EXCEPTION 'weir: complete got % lanes, % seqs and % sizes', cardinality(complete.lanes), cardinality(complete.seqs), cardinality(complete.sizes)
      USING ERRCODE = '22023';
  END IF;
  FOREACH size IN ARRAY complete.sizes LOOP
    firsts := firsts || next;
    next := next + size;
  END LOOP;
  IF next - 1 IS DISTINCT FROM cardinality(complete.ids) THEN
    RAISE EXCEPTION 'weir: complete got % ids, its sizes add up to %', cardinality(complete.ids), next - 1 USING ERRCODE = '22023';
  END IF;
  PERFORM weir.hold_batches(complete.worker, complete.lanes, complete.seqs);
  IF cardinality(complete.ids) = 1 THEN
    PERFORM pg_advisory_xact_lock_shared(1464158551, hashint8(complete.ids[1]));
    IF EXISTS (SELECT FROM weir.result e WHERE e.lane = complete.lanes[1] AND e.seq = complete.seqs[1]
                 AND complete.ids[1] = ANY (e.ids) AND e.outcome <> 'completed') THEN
      RAISE EXCEPTION 'weir: the attempt at job % has ended otherwise', complete.ids[1] USING ERRCODE = 'WR002';
    END IF;
  END IF;
  -- After a crash of the server the worker may have the same batch again with other jobs in it.
  IF EXISTS (
    SELECT FROM unnest(complete.lanes, complete.seqs, firsts, complete.sizes) i(lane, seq, first, size)
    WHERE NOT EXISTS (SELECT FROM weir.batch b WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM complete.worker
                        AND b.ids = complete.ids[i.first : i.first + i.size - 1])
      AND EXISTS (SELECT x.id FROM unnest(complete.ids[i.first : i.first + i.size - 1]) x(id)
                  EXCEPT SELECT y.id FROM weir.batch b, unnest(b.ids) y(id)
                  WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM complete.worker)) THEN
    RAISE EXCEPTION 'weir: a job named is not in the batch named'
      USING ERRCODE = 'WR002', HINT = 'Its claim was lost in a crash of the server, or its result is recorded already: drop the results of that batch.';
  END IF;
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
  SELECT r.lane, r.segment, complete.worker, r.seq, clock_timestamp(), 'completed', r.ids
  FROM (
    SELECT b.lane, b.segment, b.seq,
           -- A batch that crossed into another segment has a row in each: split the ids alike.
           CASE WHEN count(*) OVER (PARTITION BY i.ord) = 1 THEN complete.ids[i.first : i.first + i.size - 1]
                ELSE (SELECT array_agg(x.id) FROM unnest(complete.ids[i.first : i.first + i.size - 1]) x(id) WHERE x.id = ANY (b.ids)) END AS ids
    FROM unnest(complete.lanes, complete.seqs, firsts, complete.sizes) WITH ORDINALITY i(lane, seq, first, size, ord)
    JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM complete.worker
  ) r
  WHERE r.ids <> '{}'
    -- A caller that lost its connection repeats the very same call.
    AND NOT EXISTS (SELECT FROM weir.result e WHERE e.lane = r.lane AND e.seq = r.seq AND e.ids = r.ids);
END
$$;
COMMENT ON FUNCTION weir.complete IS
  'Records attempts as completed, a flush at a time: lanes[i], seqs[i] name a batch, the next sizes[i] of ids are its jobs. One row a batch. May be repeated. In a transaction of the caller''s own, effects and completion commit together. Errors: 22023, WR001 (fenced), WR002 (not this worker''s batch, or not a job of it), WR004. Locks: advisory, shared: the worker, the segments; held to the commit. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.end_attempt(worker integer, in_segment smallint, lane integer, seq bigint, from_xid xid8, to_xid xid8, id bigint,
                                 outcome weir.outcome, error text, output text, run_at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  j          record;
  ended      weir.outcome := end_attempt.outcome;
  counts     integer := 1;
BEGIN
  IF end_attempt.outcome IN ('retried', 'snoozed', 'released', 'lost') THEN
    SELECT j.* INTO j FROM weir.job j
    WHERE j.segment = end_attempt.in_segment AND j.lane = end_attempt.lane
      AND j.xid >= end_attempt.from_xid AND j.xid <= end_attempt.to_xid AND j.id = end_attempt.id
    -- A batch with late jobs spans many transactions, those of the same job's earlier attempts among them.
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1;
    IF end_attempt.outcome IN ('retried', 'lost') AND j.attempt >= j.max_attempts THEN
      ended := 'failed';
    ELSE
      -- What was put off or handed back is the same attempt still, and does not use up another.
      counts := (end_attempt.outcome NOT IN ('snoozed', 'released'))::integer;
      -- As in enqueue: the xid first, then an id, which wakes whoever waits for work.
      PERFORM pg_current_xact_id();
      PERFORM nextval('weir.job_id');
      IF end_attempt.run_at IS NULL OR end_attempt.run_at <= now() THEN
        INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
        VALUES (j.id, pg_current_xact_id(), j.enqueued_at, j.lane, j.attempt + counts, j.max_attempts, (j.put_off + 1) * (1 - counts),
                (SELECT a.last_value FROM weir.active_job a), j.kind, j.args, j.meta);
      ELSE
        INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
        VALUES (j.id, pg_current_xact_id(), end_attempt.run_at, j.enqueued_at, j.lane, j.attempt + counts, j.max_attempts, (j.put_off + 1) * (1 - counts),
                (SELECT a.last_value FROM weir.active_later a), j.kind, j.args, j.meta);
      END IF;
    END IF;
  END IF;
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors, outputs)
  VALUES (end_attempt.lane, end_attempt.in_segment, end_attempt.worker, end_attempt.seq, clock_timestamp(), ended, ARRAY[end_attempt.id],
          CASE WHEN end_attempt.error IS NOT NULL THEN ARRAY[left(end_attempt.error, 65536)] END,
          CASE WHEN end_attempt.output IS NOT NULL THEN ARRAY[end_attempt.output] END);
END
$$;
COMMENT ON FUNCTION weir.end_attempt IS
  'Writes how one attempt ended and logs the attempt that follows, if one does. retried and lost become failed when the attempts are used up. The caller holds the batch and has seen that the attempt has no result.';

CREATE OR REPLACE FUNCTION weir.finish(
  worker integer, lane integer, seq bigint, id bigint, outcome weir.outcome,
  error text DEFAULT NULL, output text DEFAULT NULL, run_at timestamptz DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
  b record;
BEGIN
  IF finish.outcome IS NULL OR finish.outcome = 'lost' THEN
    RAISE EXCEPTION 'weir: an attempt ends as completed, failed, cancelled, retried, snoozed or released, not as %', coalesce(finish.outcome::text, 'null')
      USING ERRCODE = '22023';
  ELSIF length(finish.output) > 1048576 THEN
    RAISE EXCEPTION 'weir: output too large: % characters, at most 1048576 are allowed', length(finish.output) USING ERRCODE = '22023';
  ELSIF finish.run_at = 'infinity' THEN
    RAISE EXCEPTION 'weir: run_at is infinity: the job would never run' USING ERRCODE = '22023';
  END IF;
  PERFORM weir.hold_batches(finish.worker, ARRAY[finish.lane], ARRAY[finish.seq]);
  IF finish.outcome <> 'completed' THEN
    PERFORM pg_advisory_xact_lock(1464158550, finish.worker);
  END IF;
  -- After a completion of this very attempt that is still uncommitted in a transaction of its handler's.
  PERFORM pg_advisory_xact_lock(1464158551, hashint8(finish.id));
  SELECT b.segment, b.from_xid, b.to_xid INTO b FROM weir.batch b
  WHERE b.lane = finish.lane AND b.seq = finish.seq AND b.worker IS NOT DISTINCT FROM finish.worker AND finish.id = ANY (b.ids);
  IF NOT FOUND OR EXISTS (
       SELECT FROM weir.result e WHERE e.lane = finish.lane AND e.seq = finish.seq AND finish.id = ANY (e.ids)) THEN
    RETURN false;
  END IF;
  PERFORM weir.end_attempt(finish.worker, b.segment, finish.lane, finish.seq, b.from_xid, b.to_xid, finish.id,
                           finish.outcome, finish.error, finish.output, finish.run_at);
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.finish IS
  'Records how one attempt ended, with its error or output, and logs the next attempt, at run_at or at once, when it was retried, snoozed or released. False if the attempt has a result already: the call may be repeated (and gives WR002 once the segment has been reclaimed). Errors, locks, isolation: as complete; and its calls for one worker wait for each other, unless the outcome is completed.';

CREATE OR REPLACE FUNCTION weir.has_ended(worker integer, lane integer, seq bigint, id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
  PERFORM weir.check_isolation('has_ended');
  LOCK TABLE weir.batch, weir.result IN ACCESS SHARE MODE;  -- the look comes after a TRUNCATE, not across it
  RETURN EXISTS (SELECT FROM weir.result r WHERE r.lane = has_ended.lane AND r.seq = has_ended.seq AND has_ended.id = ANY (r.ids))
      OR NOT EXISTS (SELECT FROM weir.batch b WHERE b.lane = has_ended.lane AND b.seq = has_ended.seq
                       AND b.worker IS NOT DISTINCT FROM has_ended.worker AND has_ended.id = ANY (b.ids));
END
$$;
COMMENT ON FUNCTION weir.has_ended IS
  'Whether an attempt has a result, or is no longer this worker''s: after a completion in a transaction of its handler''s the worker asks whether it was committed. Locks: ACCESS SHARE. Isolation: READ COMMITTED.';
