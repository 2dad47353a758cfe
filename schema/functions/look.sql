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
  LOCK TABLE weir.job, weir.batch, weir.result, weir.later, weir.promotion, weir.settled, weir.segment IN ACCESS SHARE MODE;
  -- A snapshot that is older than the lock sees the tables' old files in the catalog, and nothing of what is in the new ones.
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
     AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r' AND c.relfilenode <> pg_relation_filenode(c.oid)
                   AND c.relname ~ '^((job|batch|result|later)_[1-4]|promotion|settled|segment)$') THEN
    RAISE EXCEPTION 'weir: a segment was reclaimed after this transaction took its snapshot, and the snapshot does not show the jobs that were moved'
      USING ERRCODE = '40001', HINT = 'Run the transaction again, or begin it with ISOLATION LEVEL READ COMMITTED.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._lock_log IS
  'Locks the log against TRUNCATE, so that the next snapshot shows every job where it is; the caller releases the locks. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on the log; waits while a segment is being emptied.';

CREATE OR REPLACE FUNCTION weir._batch_of(lane integer, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch
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
  b    record;
BEGIN
  -- Past a batch a job is still to be handed out if it lies past its position, or belongs to a transaction that is pending. Once it is
  -- not, it never is again: so the first batch past which it is not is the one that handed it out. Bisect for it.
  WHILE low <= mid LOOP
    SELECT k.seq, k.pos_xid, k.pos_id, k.pending, k.pending_after INTO b
    FROM weir.batch k WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq <= mid ORDER BY k.seq DESC LIMIT 1;
    IF (b.pos_xid, b.pos_id) < (_batch_of.xid, _batch_of.id)
       OR coalesce(b.pending_after[array_position(b.pending, _batch_of.xid)] < _batch_of.id, false) THEN
      EXIT WHEN high = 9223372036854775807;  -- the newest: it was not handed out
      low := mid + 1;
    ELSE
      high := b.seq;
    END IF;
    mid := low + (high - 1 - low) / 2;
    EXIT WHEN low >= high;
  END LOOP;
  RETURN QUERY SELECT k.* FROM weir.batch k
    WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq = high AND _batch_of.id = ANY (k.ids) LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir._batch_of IS 'The batch that handed out a job of one segment, found by bisection.';

CREATE OR REPLACE FUNCTION weir._read_job(job_id bigint) RETURNS SETOF weir.job_info
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
  a    record;
  b    record;
  r    record;
  f    weir.failure;
  past jsonb := '[]';
BEGIN
  look.cancel_requested := EXISTS (SELECT FROM weir.cancellation k WHERE k.id = job_id);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR a IN
    SELECT j.id, j.xid, j.lane, j.segment, j.attempt, j.max_attempts, j.put_off, j.kind, j.args, j.meta, j.enqueued_at, NULL::timestamptz AS run_at
    FROM weir.job j WHERE j.id = job_id
    UNION ALL
    SELECT l.id, l.xid, l.lane, l.segment, l.attempt, l.max_attempts, l.put_off, l.kind, l.args, l.meta, l.enqueued_at, l.run_at
    FROM weir.later l
    WHERE l.id = job_id AND ((l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot))
      AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
    ORDER BY attempt, put_off
  LOOP
    -- Out of TOAST now (|| '{}'): where it lies may be truncated as soon as the table is let go of.
    look.id := a.id; look.kind := a.kind; look.args := a.args || '{}'; look.meta := a.meta || '{}'; look.enqueued_at := a.enqueued_at;
    look.attempt := a.attempt; look.max_attempts := a.max_attempts; look.run_at := a.run_at; look.priority := a.lane % 4 + 1;
    look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = a.lane / 4);
    look.claimed_at := NULL; look.finished_at := NULL; look.worker := NULL; look.output := NULL;
    IF a.run_at IS NOT NULL THEN
      look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'scheduled' END;
      CONTINUE;
    END IF;
    SELECT k.seq, k.worker, k.claimed_at INTO b FROM weir._batch_of(a.lane, a.segment, a.xid, a.id) k;
    IF FOUND THEN
      look.state := 'running'; look.claimed_at := b.claimed_at; look.worker := b.worker;
      SELECT x.outcome, x.worker, x.finished_at, x.errors[array_position(x.ids, a.id)] AS error, x.outputs[array_position(x.ids, a.id)] AS output INTO r
      FROM weir.result x WHERE x.segment = a.segment AND x.lane = a.lane AND x.seq = b.seq AND a.id = ANY (x.ids) ORDER BY x.finished_at LIMIT 1;
    ELSIF a.xid = '1' THEN  -- history from before a re-basing, which keeps no batches
      SELECT x.outcome, x.worker, x.finished_at, x.errors[array_position(x.ids, a.id)] AS error, x.outputs[array_position(x.ids, a.id)] AS output INTO r
      FROM weir.result x WHERE x.segment = a.segment AND x.lane = a.lane AND a.id = ANY (x.ids) ORDER BY x.finished_at LIMIT 1
      OFFSET (SELECT count(*) FROM weir.job j WHERE j.id = a.id AND j.xid = '1' AND j.segment = a.segment AND j.lane = a.lane
                AND (j.attempt, j.put_off) < (a.attempt, a.put_off));  -- attempts end in their order
    ELSE
      look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'available' END;
      CONTINUE;
    END IF;
    IF r.outcome IS NOT NULL THEN
      look.state := r.outcome; look.worker := r.worker; look.finished_at := r.finished_at; look.output := r.output; look.error := r.error;
      IF r.error IS NOT NULL THEN
        past := past || jsonb_build_object('attempt', a.attempt, 'at', r.finished_at, 'outcome', r.outcome, 'error', r.error);
      END IF;
    END IF;
  END LOOP;
  IF look.state = 'failed' AND EXISTS (SELECT FROM weir.failure k WHERE k.id = job_id AND k.attempt > look.attempt AND k.finished_at IS NULL) THEN
    look := NULL;  -- it was retried, and what followed has gone with its segment; the failures that are kept may know
  END IF;
  IF look.id IS NULL OR look.state IN ('retried', 'snoozed', 'released', 'lost') THEN  -- what followed has gone with its segment
    SELECT k.* INTO f FROM weir._kept_failure(job_id, coalesce(look.attempt, 0)) k;
    IF FOUND THEN
      look.id := f.id; look.kind := f.kind; look.args := f.args || '{}'; look.meta := f.meta || '{}'; look.enqueued_at := f.enqueued_at;
      look.attempt := f.attempt; look.max_attempts := f.max_attempts; look.run_at := NULL; look.priority := f.lane % 4 + 1;
      look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = f.lane / 4);
      look.state := 'failed'; look.claimed_at := f.claimed_at; look.finished_at := f.finished_at; look.worker := f.worker;
      look.output := f.output || ''; look.error := f.error || '';
      IF f.error IS NOT NULL THEN
        past := past || jsonb_build_object('attempt', f.attempt, 'at', f.finished_at, 'outcome', 'failed', 'error', f.error);
      END IF;
    END IF;
  END IF;
  IF look.id IS NOT NULL THEN
    look.errors := past;
    RETURN NEXT look;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._read_job IS 'One job by id, see weir.job_info. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir.job_info(job_id bigint) RETURNS SETOF weir.job_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._lock_log();
  RETURN QUERY SELECT j.* FROM weir._read_job(job_info.job_id) j;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.job_info IS
  'One job by id, in state available, running, scheduled, completed, failed or cancelled. No row if the id is unknown or the job''s retention is over. If the job has failed and its segment has been reclaimed, errors holds only the last one. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.workers()
RETURNS TABLE (id integer, name text, queues text[], state text, started_at timestamptz, seen_at timestamptz, running integer, reason text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT w.id, w.name, w.queues, l.state, w.at, CASE WHEN l.attends THEN now() ELSE coalesce(h.at, w.at) END,
         CASE WHEN f.id IS NULL THEN coalesce(h.running, 0) ELSE 0 END, CASE WHEN l.state = 'silent' THEN weir._prepared_for(w.id) ELSE f.name END
  FROM weir.worker w
  LEFT JOIN weir.worker f ON f.id = w.id AND f.fenced
  LEFT JOIN weir._attending() a(id) ON a.id = w.id
  CROSS JOIN (SELECT pg_sequence_last_value('weir.watched') AS watched,
                     abs((extract(epoch FROM now()) * 1000)::bigint - pg_sequence_last_value('weir.watched_at')) AS since,
                     weir._first_look() AS first OFFSET 0) r
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = w.id ORDER BY h.no DESC LIMIT 1) h ON true
  -- A standby has none of the locks; rescuers write down whom they miss.
  CROSS JOIN LATERAL (SELECT f.id IS NULL AND (a.id IS NOT NULL OR pg_is_in_recovery() AND coalesce(h.says, 'attends') = 'attends') AS attends) k
  -- Silent is who would be taken to be by whoever rescues: by the register that rescuing moves on. Where nobody rescues it stands still, and the
  -- clock goes on; and one that was set is no silence, for the register's own reading follows it within a second where somebody does. Before the first look in
  -- this life of the server nobody knows how long it has been there: so only since the register stood still.
  CROSS JOIN LATERAL (SELECT k.attends, CASE
    WHEN f.id IS NOT NULL THEN 'ended'
    WHEN k.attends OR greatest(now() - coalesce(h.at, w.at), coalesce(h.at, w.at) - now()) <= w.lease
      OR (r.watched + r.since - greatest(h.watched, r.first)) * interval '1 ms' <= w.lease + interval '2 seconds' THEN 'alive'
    ELSE 'silent' END AS state) l
  WHERE NOT w.fenced ORDER BY w.id DESC LIMIT 10000
$$;
COMMENT ON FUNCTION weir.workers IS 'Workers, newest first: alive, silent (past their lease, about to be fenced; reason, where there is one: why that can''t be) or ended, with the reason. Locks: none that others wait for.';
