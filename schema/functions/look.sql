-- Reading jobs, for people and dashboards. Indexes and a limit bound what each call reads.
--
-- A reader first locks the log against TRUNCATE, and only then takes its snapshot (weir._lock_log): TRUNCATE is not MVCC-safe, and a snapshot from
-- before a reclaim that the reader has waited for shows neither the rows nor their copies. So the functions that people call are VOLATILE: each
-- locks, then calls a STABLE function, which reads everything under one new snapshot.
--
-- A reader leaves no lock behind on the tables of the log, even in a transaction that stays open: held until its end, ACCESS SHARE would
-- keep every segment from being reclaimed. So each reads in a block that ends in an exception, WR099, which never leaves the function: the block's
-- locks are released with it, and what was found stays in variables, or among the rows that are returned.

CREATE OR REPLACE FUNCTION weir._lock_log() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  LOCK TABLE weir.job, weir.batch, weir.result, weir.turn, weir.ring, weir.later, weir.promotion, weir.settled, weir.segment, weir.report, weir.reprieve IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^((job|batch|result|turn|later|report)_[1-4]|ring|promotion|settled|segment|reprieve)$',
                                    'weir: a segment was reclaimed after this transaction took its snapshot, and the snapshot does not show the jobs that were moved');
END
$$;
COMMENT ON FUNCTION weir._lock_log IS
  'Locks the log against TRUNCATE, so that the next snapshot shows every job where it is; the caller releases the locks. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on the log; waits while a segment is being emptied.';

CREATE OR REPLACE FUNCTION weir._refuse_old_snapshot(tables text, message text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  -- A snapshot that is older than the caller's lock sees the tables' old files in the catalog, and nothing of what is in the new ones.
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
     AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r' AND c.relfilenode <> pg_relation_filenode(c.oid)
                   AND c.relname ~ _refuse_old_snapshot.tables) THEN
    RAISE EXCEPTION USING MESSAGE = _refuse_old_snapshot.message, ERRCODE = '40001', HINT = 'Run the transaction again, or begin it with ISOLATION LEVEL READ COMMITTED.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._refuse_old_snapshot IS
  'Raises the message if the transaction''s snapshot is older than the last TRUNCATE of one of the tables whose names match a regular expression. The caller has locked them. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._batch_of(lane bigint, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  low  bigint := (SELECT min(k.seq) FROM weir.batch k WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane);
  high bigint := 9223372036854775807;
  mid  bigint := high;
  step bigint := 1;
  b    record;
BEGIN
  IF _batch_of.lane & 549755813880 <> 0 THEN
    RETURN QUERY SELECT k.* FROM weir._batch_of_key(_batch_of.lane, _batch_of.segment, _batch_of.xid, _batch_of.id) k;
    RETURN;
  END IF;
  -- After a batch, a job still waits if it lies past the batch's position, or belongs to a pending transaction. Once it does not wait any more, it
  -- never will again: so the first batch after which it does not wait is the one that claimed it. Find it by bisection, in a range that begins at the
  -- newest batches and grows until the job is in it: what was claimed lately is found at once, however many batches there are.
  WHILE low <= mid LOOP
    SELECT k.seq, k.pos_xid, k.pos_id, k.pending, k.pending_after INTO b
    FROM weir.batch k WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq <= mid ORDER BY k.seq DESC LIMIT 1;
    IF weir._waits(_batch_of.xid, _batch_of.id, b.pos_xid, b.pos_id, b.pending, b.pending_after) THEN
      EXIT WHEN high = 9223372036854775807;  -- the newest batch: the job was not claimed
      low := mid + 1;
      step := 0;  -- it is in the range: bisect
    ELSE
      high := b.seq;
    END IF;
    EXIT WHEN low >= high;
    mid := CASE WHEN step > 0 THEN greatest(high - step, low) ELSE low + (high - 1 - low) / 2 END;
    step := step * 16;
  END LOOP;
  RETURN QUERY SELECT k.* FROM weir.batch k
    WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq = high AND _batch_of.id = ANY (k.ids) LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir._batch_of IS 'The batch that claimed a job of one segment, found by bisection from the newest on.';

CREATE OR REPLACE FUNCTION weir._batch_of_key(lane bigint, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  rings bigint[];
  state record := weir._state_of(_batch_of_key.lane);
  low   bigint;
  high  bigint;
  mid   bigint;
  step  bigint := 1;
  t     record;
BEGIN
  IF weir._waits(_batch_of_key.xid, _batch_of_key.id, state.pos_xid, state.pos_id, state.pending, state.pending_after) THEN
    RETURN;
  END IF;
  rings := weir._ring_lanes(_batch_of_key.lane);
  -- The first turn after which it does not wait, as far as the turn's row shows, by bisection as in _batch_of.
  low := (SELECT min(k.seq) FROM weir.turn k WHERE k.lane = _batch_of_key.lane);
  high := state.seq;
  mid := greatest(high - step, low);
  WHILE low < high LOOP
    SELECT k.seq, k.pos_xid, k.pos_id, k.pending, k.pending_after INTO t
    FROM weir.turn k WHERE k.lane = _batch_of_key.lane AND k.seq <= mid ORDER BY k.seq DESC LIMIT 1;
    IF weir._waits(_batch_of_key.xid, _batch_of_key.id, t.pos_xid, t.pos_id, t.pending, t.pending_after) THEN
      low := mid + 1;
      step := 0;
    ELSE
      high := t.seq;
    END IF;
    mid := CASE WHEN step > 0 THEN greatest(high - step, low) ELSE low + (high - low) / 2 END;
    step := step * 16;
  END LOOP;
  -- Usually it was that turn. If the job's transaction ended late, when the position had passed it, it was a later one.
  RETURN QUERY SELECT b.* FROM weir.turn k CROSS JOIN unnest(rings) r(lane)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _batch_of_key.segment AND b.lane = r.lane AND b.seq = k.seq
                          AND _batch_of_key.xid BETWEEN b.from_xid AND b.to_xid AND _batch_of_key.lane = b.lanes[array_position(b.ids, _batch_of_key.id)] OFFSET 0) b
    WHERE k.lane = _batch_of_key.lane AND k.seq >= high ORDER BY k.seq LIMIT 1;
  IF NOT FOUND THEN
    -- The turn was reclaimed with its segment. Either the batch was carried, and is among the oldest of its segment; or the job's transaction ended late,
    -- and an earlier turn, after which the job does not seem to wait, is still there.
    RETURN QUERY SELECT f.* FROM (VALUES (0::bigint, high), (high, 9223372036854775807)) span(after, upto) CROSS JOIN unnest(rings) r(lane)
      CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _batch_of_key.segment AND b.lane = r.lane AND b.seq > span.after AND b.seq < span.upto
                            AND _batch_of_key.xid BETWEEN b.from_xid AND b.to_xid AND _batch_of_key.lane = b.lanes[array_position(b.ids, _batch_of_key.id)]
                          ORDER BY b.seq LIMIT 1) f
      LIMIT 1;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._batch_of_key IS
  'As _batch_of, for a job with a key: its batch is in a ring lane, and the turns of its own lane show which one it is. Locks: ACCESS SHARE on the log, which the caller releases.';

CREATE OR REPLACE FUNCTION weir._end_of(attempt weir.job, OUT claimed_at timestamptz, OUT worker integer, OUT outcome weir.outcome,
                                        OUT finished_at timestamptz, OUT error text, OUT output text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  batch bigint := _end_of.attempt.seq;
  lanes bigint[];
  r     record;
BEGIN
  IF batch IS NULL THEN
    SELECT k.seq, ARRAY[k.lane], k.claimed_at, k.worker INTO batch, lanes, claimed_at, worker
    FROM weir._batch_of(_end_of.attempt.lane, _end_of.attempt.segment, _end_of.attempt.xid, _end_of.attempt.id) k;
  ELSE
    lanes := weir._ring_lanes(_end_of.attempt.lane);
  END IF;
  SELECT k.outcome, k.worker, k.finished_at, k.errors[array_position(k.ids, _end_of.attempt.id)] AS error, k.outputs[array_position(k.ids, _end_of.attempt.id)] AS output INTO r
  FROM weir.result k
  WHERE k.segment = _end_of.attempt.segment AND k.lane = ANY (lanes) AND k.seq = batch AND _end_of.attempt.id = ANY (k.ids)
  ORDER BY k.finished_at LIMIT 1;
  IF FOUND THEN
    outcome := r.outcome; worker := r.worker; finished_at := r.finished_at; error := r.error; output := r.output;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._end_of IS
  'When and by which worker a row of the log was claimed, and how that attempt ended. All NULL: it was not claimed; outcome NULL: it is running.';

CREATE OR REPLACE FUNCTION weir._read_job(job_id bigint, ends integer) RETURNS SETOF weir.job_info
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  look weir.job_info;
  c    weir.promotion;
  j    weir.job;    -- a row of the log, from the newest backwards
  l    weir.later;  -- the row that waits for its time
  a    record;      -- the newer one of these
  e    record;
  f    weir.failure;
  read integer := 0;
  history jsonb;  -- of its earlier attempts, in brief
  by_id   boolean;  -- weir.cancel was called
BEGIN
  IF job_id < 1 THEN
    RETURN;  -- rows of weir.later with such numbers are due times of schedules
  END IF;
  look.errors := '[]';
  look.cancel_requested := EXISTS (SELECT FROM weir.cancellation k WHERE k.id = job_id);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT k.* INTO j FROM weir.job k WHERE k.id = job_id ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
  -- A row of later is promoted before the job can be put off again, so only the newest one may still wait.
  SELECT k.* INTO l FROM (SELECT n.* FROM weir.later n WHERE n.id = job_id ORDER BY n.attempt DESC, n.put_off DESC LIMIT 1) k
  WHERE weir._waits_later(c, k.run_at, k.id, k.xid);
  IF l.id IS NOT NULL AND (j.id IS NULL OR (l.attempt, l.put_off) >= (j.attempt, j.put_off)) THEN
    a := l;
    look.run_at := l.run_at;
  ELSE
    a := j;
  END IF;
  by_id := look.cancel_requested;
  look.cancel_requested := by_id OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= job_id) AND weir._is_cancelled_where(job_id);
  IF look.run_at IS NOT NULL THEN
    look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'scheduled' END;
  END IF;
  IF a.id IS NOT NULL THEN
    -- Out of TOAST now (|| '{}'): the caller releases the table, which may then be truncated.
    look.id := a.id; look.kind := a.kind; look.args := a.args || '{}'; look.meta := a.meta || '{}'; look.enqueued_at := a.enqueued_at;
    look.attempt := a.attempt; look.max_attempts := a.max_attempts; look.priority := (a.lane & 3)::integer + 1;
    look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (a.lane >> 39)::integer); look.key := a.key; look.flow := a.flow;
    history := a.errors || '[]';
  END IF;
  WHILE j.id IS NOT NULL LOOP
    e := weir._end_of(j);
    IF look.state IS NULL THEN
      look.state := CASE WHEN e.outcome IS NOT NULL THEN e.outcome::text WHEN e.claimed_at IS NOT NULL THEN 'running'
                         WHEN look.cancel_requested THEN 'cancelled' ELSE 'available' END;
      look.cancel_requested := by_id OR e.outcome IS NULL AND look.cancel_requested;
      look.claimed_at := e.claimed_at; look.worker := e.worker; look.finished_at := e.finished_at; look.output := e.output;
    END IF;
    IF e.outcome IS NOT NULL THEN
      look.error := CASE WHEN read = 0 THEN e.error ELSE look.error END;
      IF e.error IS NOT NULL THEN
        look.errors := jsonb_build_array(jsonb_build_object('attempt', j.attempt, 'at', e.finished_at, 'outcome', e.outcome, 'error', e.error)) || look.errors;
      END IF;
      read := read + 1;
      EXIT WHEN read = ends;
    END IF;
    EXIT WHEN j.attempt = 1 AND j.put_off = 0;  -- the first row
    -- How often an attempt was put off is unbounded: of each earlier attempt only the last row is read.
    SELECT k.* INTO j FROM weir.job k
    WHERE k.id = job_id AND (k.attempt, k.put_off) < (j.attempt, CASE WHEN e.outcome IS NULL THEN j.put_off ELSE 0 END)
    ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
  END LOOP;
  IF look.state = 'failed' AND EXISTS (SELECT FROM weir.failure k WHERE k.id = job_id AND k.attempt > look.attempt AND k.finished_at IS NULL) THEN
    history := NULL;
    look := NULL;  -- it was retried, and what followed was reclaimed with its segment; a kept failure may say how it ended
    look.errors := '[]';
  END IF;
  IF look.id IS NULL OR look.state IN ('retried', 'snoozed', 'released', 'lost') THEN  -- what followed was reclaimed with its segment
    SELECT k.* INTO f FROM weir._kept_failure(job_id, coalesce(look.attempt, 0)) k;
    IF FOUND THEN
      look.id := f.id; look.kind := f.kind; look.args := f.args || '{}'; look.meta := f.meta || '{}'; look.enqueued_at := f.enqueued_at;
      look.attempt := f.attempt; look.max_attempts := f.max_attempts; look.run_at := NULL; look.priority := (f.lane & 3)::integer + 1;
      look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (f.lane >> 39)::integer); look.key := f.key; look.flow := f.flow;
      look.state := 'failed'; look.claimed_at := f.claimed_at; look.finished_at := f.finished_at; look.worker := f.worker;
      look.output := f.output || ''; look.error := f.error || '';
      history := f.errors || '[]';
      IF f.error IS NOT NULL THEN
        look.errors := look.errors || jsonb_build_object('attempt', f.attempt, 'at', f.finished_at, 'outcome', 'failed', 'error', f.error);
      END IF;
    END IF;
  END IF;
  IF look.id IS NOT NULL THEN
    IF history IS NOT NULL AND ends > 1 THEN
      look.errors := weir._merged_errors(history, look.errors, ends);
    END IF;
    SELECT k.percent, k.message, k.log INTO look.percent, look.message, look.log FROM weir._reported(job_id, ends > 1) k;
    RETURN NEXT look;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._read_job IS
  'One job by id, see weir.job_info. Reads its newest row and the ends of up to ends attempts, however many rows the log holds of the job. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir.job_info(job_id bigint) RETURNS SETOF weir.job_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._lock_log();
  RETURN QUERY SELECT j.* FROM weir._read_job(job_info.job_id, 25) j;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.job_info IS
  'One job by id, in state available, running, scheduled, completed, failed or cancelled. No row if the id is unknown or the job''s retention is over. errors tells how its last 25 attempts ended, oldest first; of an attempt that was snoozed or released before it ended, only the end counts. Of an earlier attempt whose segment has been reclaimed, a text of more than 1000 characters is reduced to its beginning and its end. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.workers()
RETURNS TABLE (id integer, name text, queues text[], state text, started_at timestamptz, seen_at timestamptz, running integer, reason text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT w.id, w.name, w.queues, l.state, w.at, CASE WHEN k.attends THEN now() ELSE coalesce(h.at, w.at) END,
         CASE WHEN f.id IS NULL THEN coalesce(h.running, 0) ELSE 0 END, CASE WHEN l.state = 'silent' THEN weir._prepared_for(w.id) ELSE f.name END
  FROM weir.worker w
  LEFT JOIN weir.worker f ON f.id = w.id AND f.fenced
  LEFT JOIN weir._attending() a(id) ON a.id = w.id
  LEFT JOIN weir._silent() s(id) ON s.id = w.id
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = w.id ORDER BY h.no DESC LIMIT 1) h ON true
  CROSS JOIN LATERAL (SELECT f.id IS NULL AND (a.id IS NOT NULL OR pg_is_in_recovery() AND coalesce(h.says, 'attends') = 'attends') AS attends) k
  CROSS JOIN LATERAL (SELECT CASE WHEN f.id IS NOT NULL THEN 'ended' WHEN s.id IS NULL OR k.attends THEN 'alive' ELSE 'silent' END AS state) l
  WHERE NOT w.fenced ORDER BY w.id DESC LIMIT 10000
$$;
COMMENT ON FUNCTION weir.workers IS 'Workers, newest first, up to 10,000: alive, silent (past their lease, about to be fenced; reason, if any: why they can''t be) or ended, with the reason. running is how many attempts it ran at its last heartbeat; weir.jobs(''running'') lists those that it has claimed. Locks: none that others wait for. Isolation: any.';
