-- Workers: start, heartbeat, the ends of attempts, fence.

CREATE FUNCTION weir.worker_start(name text, queues text[], lease interval DEFAULT '30 seconds') RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  new_id integer;
  q      text;
BEGIN
  IF worker_start.lease IS NULL OR worker_start.lease < interval '1 second' OR worker_start.lease > interval '5 minutes' THEN  -- what the heartbeat ring holds
    RAISE EXCEPTION 'weir: a worker''s lease must be 1 second to 5 minutes, got %', worker_start.lease USING ERRCODE = '22023';
  ELSIF length(worker_start.name) > 200 THEN
    RAISE EXCEPTION 'weir: worker name too long: % characters, at most 200 are allowed', length(worker_start.name) USING ERRCODE = '22023';
  END IF;
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') <> (SELECT system_identifier::text FROM pg_control_system()) THEN
    RAISE EXCEPTION 'weir: this log comes from another cluster, whose transaction ids mean nothing here'
      USING ERRCODE = 'WR003', HINT = 'The database was restored or moved: call weir.rebase().';
  END IF;
  FOREACH q IN ARRAY coalesce(worker_start.queues, '{}') LOOP
    PERFORM weir.check_job(q, 'any', '{}', 2, 1, NULL);
    PERFORM weir.queue_id(q);
  END LOOP;
  new_id := nextval('weir.worker_id');
  INSERT INTO weir.worker (id, fenced, at, lease, name, queues)
  VALUES (new_id, false, clock_timestamp(), worker_start.lease, coalesce(worker_start.name, ''), coalesce(worker_start.queues, '{}'));
  RETURN new_id;
END
$$;
COMMENT ON FUNCTION weir.worker_start IS
  'Registers a worker, makes its queues and returns its id. From then on it must call heartbeat well within its lease, or its jobs are given to others. Errors: 22023; WR003 (the log comes from another cluster). Locks: none that others wait for. Isolation: any.';

CREATE FUNCTION weir.heartbeat(worker integer, running integer DEFAULT 0, oldest interval DEFAULT '0',
                               OUT fenced boolean, OUT workers integer, OUT sharing integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  SELECT NOT coalesce(bool_or(w.id = heartbeat.worker), false), count(*), count(*) FILTER (WHERE w.queues && me.queues)
    INTO heartbeat.fenced, heartbeat.workers, heartbeat.sharing
  FROM weir.worker w LEFT JOIN weir.worker me ON me.id = heartbeat.worker AND NOT me.fenced
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);
  IF NOT heartbeat.fenced THEN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO weir.heartbeat (ring, worker, at, running, oldest)
    VALUES ((extract(epoch FROM clock_timestamp())::bigint / 300 % 3)::smallint, heartbeat.worker, clock_timestamp(),
            coalesce(heartbeat.running, 0), now() - coalesce(heartbeat.oldest, '0'));
  END IF;
END
$$;
COMMENT ON FUNCTION weir.heartbeat IS
  'Renews a worker''s lease; tells whether it is fenced, how many workers live, and how many of them share a queue with it. oldest is how long ago its oldest unfinished batch was claimed; it bounds how far back the rescuer looks. Locks: none that others wait for. Isolation: any. Commits asynchronously.';

CREATE FUNCTION weir.check_worker(worker integer) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
  is_fenced boolean;
  w         record;
BEGIN
  -- At most two rows, and in this order.
  FOR w IN SELECT k.fenced, k.queues FROM weir.worker k WHERE k.id = check_worker.worker ORDER BY k.fenced DESC LOOP
    is_fenced := w.fenced;
    EXIT;
  END LOOP;
  IF is_fenced IS NULL THEN
    RAISE EXCEPTION 'weir: worker % is not known', check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Call weir.worker_start first.';
  ELSIF is_fenced THEN
    RAISE EXCEPTION 'weir: worker % is fenced: it has stopped or was silent past its lease, and its jobs were given to others', check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Drop what it was doing and start again under a new id from weir.worker_start.';
  END IF;
  RETURN w.queues;
END
$$;
COMMENT ON FUNCTION weir.check_worker IS 'The queues of a worker; raises WR001 unless it was started and is not fenced. The caller holds the worker''s lock.';

CREATE FUNCTION weir.hold_batches(worker integer, lanes integer[], seqs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
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
    JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker = hold_batches.worker;
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

CREATE FUNCTION weir.complete(worker integer, lanes integer[], seqs bigint[], sizes integer[], ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
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
    WHERE NOT EXISTS (SELECT FROM weir.batch b WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker = complete.worker
                        AND b.ids = complete.ids[i.first : i.first + i.size - 1])
      AND EXISTS (SELECT x.id FROM unnest(complete.ids[i.first : i.first + i.size - 1]) x(id)
                  EXCEPT SELECT y.id FROM weir.batch b, unnest(b.ids) y(id)
                  WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker = complete.worker)) THEN
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
    JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker = complete.worker
  ) r
  WHERE r.ids <> '{}'
    -- A caller that lost its connection repeats the very same call.
    AND NOT EXISTS (SELECT FROM weir.result e WHERE e.lane = r.lane AND e.seq = r.seq AND e.ids = r.ids);
END
$$;
COMMENT ON FUNCTION weir.complete IS
  'Records attempts as completed, a flush at a time: lanes[i], seqs[i] name a batch, the next sizes[i] of ids are its jobs. One row a batch. May be repeated. In a transaction of the caller''s own, effects and completion commit together. Errors: 22023, WR001 (fenced), WR002 (not this worker''s batch, or not a job of it), WR004. Locks: advisory, shared: the worker, the segments; held to the commit. Isolation: READ COMMITTED.';

CREATE FUNCTION weir.end_attempt(worker integer, in_segment smallint, lane integer, seq bigint, from_xid xid8, to_xid xid8, id bigint,
                                 outcome weir.outcome, error text, output text, run_at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  j          record;
  ended      weir.outcome := end_attempt.outcome;
  extra      integer := 0;
BEGIN
  IF end_attempt.outcome IN ('retried', 'snoozed', 'released', 'lost') THEN
    SELECT j.* INTO j FROM weir.job j
    WHERE j.segment = end_attempt.in_segment AND j.lane = end_attempt.lane
      AND j.xid >= end_attempt.from_xid AND j.xid <= end_attempt.to_xid AND j.id = end_attempt.id
    -- A batch with late jobs spans many transactions, those of the same job's earlier attempts among them.
    ORDER BY j.attempt DESC LIMIT 1;
    IF end_attempt.outcome IN ('retried', 'lost') AND j.attempt >= j.max_attempts THEN
      ended := 'failed';
    ELSE
      -- A job that was put off or handed back has not used up one of its attempts.
      extra := (end_attempt.outcome IN ('snoozed', 'released'))::integer;
      -- As in enqueue: the xid first, then an id, which wakes whoever waits for work.
      PERFORM pg_current_xact_id();
      PERFORM nextval('weir.job_id');
      IF end_attempt.run_at IS NULL OR end_attempt.run_at <= now() THEN
        INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta)
        VALUES (j.id, pg_current_xact_id(), j.enqueued_at, j.lane, j.attempt + 1, j.max_attempts + extra,
                (SELECT a.last_value FROM weir.active_job a), j.kind, j.args, j.meta);
      ELSE
        INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta)
        VALUES (j.id, pg_current_xact_id(), end_attempt.run_at, j.enqueued_at, j.lane, j.attempt + 1, j.max_attempts + extra,
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

CREATE FUNCTION weir.finish(
  worker integer, lane integer, seq bigint, id bigint, outcome weir.outcome,
  error text DEFAULT NULL, output text DEFAULT NULL, run_at timestamptz DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
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
  WHERE b.lane = finish.lane AND b.seq = finish.seq AND b.worker = finish.worker AND finish.id = ANY (b.ids);
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

CREATE FUNCTION weir.has_ended(worker integer, lane integer, seq bigint, id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
  PERFORM weir.check_isolation('has_ended');
  LOCK TABLE weir.batch, weir.result IN ACCESS SHARE MODE;  -- the look comes after a TRUNCATE, not across it
  RETURN EXISTS (SELECT FROM weir.result r WHERE r.lane = has_ended.lane AND r.seq = has_ended.seq AND has_ended.id = ANY (r.ids))
      OR NOT EXISTS (SELECT FROM weir.batch b WHERE b.lane = has_ended.lane AND b.seq = has_ended.seq
                       AND b.worker = has_ended.worker AND has_ended.id = ANY (b.ids));
END
$$;
COMMENT ON FUNCTION weir.has_ended IS
  'Whether an attempt has a result, or is no longer this worker''s: after a completion in a transaction of its handler''s the worker asks whether it was committed. Locks: ACCESS SHARE. Isolation: READ COMMITTED.';

CREATE FUNCTION weir.relog(worker integer, outcome weir.outcome, reason text, known_lanes integer[], known_seqs bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  since timestamptz;
  l     integer;
  b     record;
  u     bigint;
  n     integer := 0;
BEGIN
  SELECT k.oldest - interval '1 minute' INTO since FROM (
    SELECT h.at, h.oldest FROM weir.heartbeat h WHERE h.worker = relog.worker
    UNION ALL SELECT w.at, w.at FROM weir.worker w WHERE w.id = relog.worker AND NOT w.fenced) k
  ORDER BY k.at DESC LIMIT 1;
  FOR l IN SELECT q.id * 4 + p FROM weir.worker w, weir.queue q, generate_series(0, 3) p
           WHERE w.id = relog.worker AND NOT w.fenced AND q.name = ANY (w.queues) ORDER BY 1 LOOP
    FOR b IN SELECT b.* FROM weir.batch b WHERE b.lane = l ORDER BY b.seq DESC LOOP
      EXIT WHEN b.claimed_at < since;
      CONTINUE WHEN b.worker <> relog.worker
        OR EXISTS (SELECT FROM unnest(relog.known_lanes, relog.known_seqs) k(lane, seq) WHERE k.lane = b.lane AND k.seq = b.seq);
      FOR u IN SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq LOOP
        PERFORM weir.end_attempt(relog.worker, b.segment, b.lane, b.seq, b.from_xid, b.to_xid, u, relog.outcome, relog.reason, NULL, NULL);
        n := n + 1;
      END LOOP;
    END LOOP;
  END LOOP;
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir.relog IS
  'Ends a worker''s unfinished attempts, but for those of the batches known, and logs those that follow. It looks back along each lane to where the worker''s last heartbeat says that nothing is unfinished. The caller holds the worker''s lock alone and keeps reclaiming out.';

CREATE FUNCTION weir.fence(worker integer, reason text DEFAULT 'its worker was fenced') RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM weir.check_isolation('fence');
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = fence.worker) THEN
    RAISE EXCEPTION 'weir: worker % is not known', fence.worker USING ERRCODE = 'WR001';
  END IF;
  -- Results in flight hold it shared: their worker is alive enough to be asked again later.
  IF NOT pg_try_advisory_xact_lock(1464158548, fence.worker) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0);
  IF EXISTS (SELECT FROM weir.worker w WHERE w.id = fence.worker AND w.fenced) THEN
    RETURN 0;
  END IF;
  INSERT INTO weir.worker (id, fenced, at, name) VALUES (fence.worker, true, clock_timestamp(), left(fence.reason, 200));
  RETURN weir.relog(fence.worker, 'lost', fence.reason, '{}', '{}');
END
$$;
COMMENT ON FUNCTION weir.fence IS
  'Ends a worker: from the commit on it can neither claim nor record, and its unfinished attempts are logged again (or failed, if that was their last). Returns how many; NULL, and nothing done, while a transaction of the worker''s is recording; 0 if it was fenced before. Locks: advisory: the worker (exclusive, tried), claims (shared). Isolation: READ COMMITTED.';

CREATE FUNCTION weir.give_back(worker integer, known_lanes integer[], known_seqs bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
BEGIN
  PERFORM weir.check_isolation('give_back');
  PERFORM pg_advisory_xact_lock(1464158548, give_back.worker);  -- after a claim that may still be running
  PERFORM weir.check_worker(give_back.worker);
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0);
  RETURN weir.relog(give_back.worker, 'released', 'the connection was lost during the claim', give_back.known_lanes, give_back.known_seqs);
END
$$;
COMMENT ON FUNCTION weir.give_back IS
  'For a worker whose connection broke during a claim: logs again, as not started, what was handed to it in batches other than those it knows. Returns how many. Errors: WR001, WR004. Locks: advisory: the worker (exclusive, waiting at most 5 s), claims (shared). Isolation: READ COMMITTED.';

-- down --
DROP FUNCTION weir.has_ended(integer, integer, bigint, bigint);
DROP FUNCTION weir.give_back(integer, integer[], bigint[]);
DROP FUNCTION weir.fence(integer, text);
DROP FUNCTION weir.relog(integer, weir.outcome, text, integer[], bigint[]);
DROP FUNCTION weir.finish(integer, integer, bigint, bigint, weir.outcome, text, text, timestamptz);
DROP FUNCTION weir.end_attempt(integer, smallint, integer, bigint, xid8, xid8, bigint, weir.outcome, text, text, timestamptz);
DROP FUNCTION weir.complete(integer, integer[], bigint[], integer[], bigint[]);
DROP FUNCTION weir.hold_batches(integer, integer[], bigint[]);
DROP FUNCTION weir.check_worker(integer);
DROP FUNCTION weir.heartbeat(integer, integer, interval);
DROP FUNCTION weir.worker_start(text, text[], interval);
