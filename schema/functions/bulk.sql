-- Bulk operations by filter that have to touch each job: in steps, each of which is one call and one transaction, and returns where to continue.
--
-- A step reads pages of the list of jobs (list.sql), so that the same bounds and cursors hold, compares what a list does not filter by, and then does
-- to each job what the function for a single job does. Nothing but the cursor is remembered between two steps, and a job that has been dealt
-- with is not in the list any more: so a run that was ended, or runs beside another one, does no harm, and another run does the rest.

CREATE OR REPLACE FUNCTION weir._select_where(states text[], queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamptz, enqueued_before timestamptz,
                                              key text, error text, after text, max_rows integer, flow bigint DEFAULT NULL, shape text DEFAULT NULL,
                                              finished_after timestamptz DEFAULT NULL, finished_before timestamptz DEFAULT NULL, OUT ids bigint[], OUT next text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  on_page CONSTANT integer := 100;  -- arguments may be large, and a page is read as a whole
  p       record;
BEGIN
  ids := '{}';
  next := after;
  PERFORM weir._lock_log();
  FOR page IN 1..greatest(max_rows / on_page, 1) LOOP
    SELECT k.* INTO p FROM weir._read_page(states, queue, kinds, meta, key, next, least(max_rows, on_page), flow, from_copies => true) k;
    ids := ids || ARRAY(
      SELECT j.id FROM unnest(p.jobs) j
      WHERE (priority IS NULL OR j.priority = priority) AND (enqueued_after IS NULL OR j.enqueued_at >= enqueued_after) AND (enqueued_before IS NULL OR j.enqueued_at < enqueued_before)
        AND (error IS NULL OR strpos(j.error, error) > 0)
        AND (finished_after IS NULL OR coalesce(j.finished_at, weir._cancelled_at(j.id, j.queue)) >= finished_after)
        AND (finished_before IS NULL OR coalesce(j.finished_at, weir._cancelled_at(j.id, j.queue)) < finished_before)
        -- In a CASE, so that it comes in the end: it takes longer than all of the above.
        AND CASE WHEN shape IS NULL THEN true ELSE weir._has_shape(j.error, shape) END);
    next := p.next;
    EXIT WHEN next IS NULL;
  END LOOP;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir._select_where IS 'The jobs among the next max_rows of a list that match a filter; next: where the list continues, or NULL. Errors: 22023, 40001. Locks: none that outlast the call; waits while a segment is being emptied.';

CREATE OR REPLACE FUNCTION weir._cancelled_at(job_id bigint, queue text) RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((SELECT c.at FROM weir.cancellation c WHERE c.id = _cancelled_at.job_id),
                  -- Which of the filters has cancelled it is not worth a look: with the last one, none is retried that was cancelled after a time.
                  (SELECT max(w.at) FROM weir.cancellation_where w WHERE w.upto >= _cancelled_at.job_id AND (w.queue IS NULL OR w.queue = _cancelled_at.queue)),
                  clock_timestamp())
$$;
COMMENT ON FUNCTION weir._cancelled_at IS
  'When a job was cancelled that has no end yet, because no worker has passed it: at the latest. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_step(what text, queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamptz, enqueued_before timestamptz,
                                            key text, error text, max_rows integer, shape text DEFAULT NULL, has_end boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation(_check_step.what);
  PERFORM weir._check_filter(_check_step.what, _check_step.queue, _check_step.kinds, _check_step.meta, _check_step.priority, _check_step.key, _check_step.error,
    num_nonnulls(_check_step.enqueued_after, _check_step.enqueued_before) > 0 OR _check_step.has_end,
    'Pass a queue, a key, kinds, meta, a priority, a time, or a part or the shape of the error. To select all jobs, pass enqueued_before => now().', _check_step.shape);
  IF _check_step.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a step looks at 1 to 1000 jobs, got %', _check_step.max_rows USING ERRCODE = '22023', HINT = 'Call it again with after, until next is NULL.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_step IS 'Refuses a step of a bulk operation whose arguments are not valid. has_end: a time of the end is a condition. Errors: 22023, WR004. Locks: none.';

CREATE OR REPLACE FUNCTION weir._check_states(what text, states text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF cardinality(states) = 0 THEN
    RAISE EXCEPTION 'weir: % got an empty list of states', what USING ERRCODE = '22023', HINT = 'Pass NULL for failed jobs.';
  ELSIF NOT states <@ ARRAY['completed', 'failed', 'cancelled'] THEN
    RAISE EXCEPTION 'weir: % retries completed, failed and cancelled jobs, got states %', what, states USING ERRCODE = '22023', HINT = 'Jobs in other states are still to run.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_states IS 'Refuses states whose jobs can''t be retried; NULL is valid. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.retry_where(
  queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL, priority integer DEFAULT NULL, enqueued_after timestamptz DEFAULT NULL,
  enqueued_before timestamptz DEFAULT NULL, error text DEFAULT NULL, states text[] DEFAULT NULL, after text DEFAULT NULL, max_rows integer DEFAULT 500, key text DEFAULT NULL,
  shape text DEFAULT NULL, finished_after timestamptz DEFAULT NULL, finished_before timestamptz DEFAULT NULL, OUT retried integer, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  ids  bigint[];
  done bigint[];
BEGIN
  PERFORM weir._check_step('retry_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, max_rows, shape, num_nonnulls(finished_after, finished_before) > 0),
          weir._check_states('retry_where', states);
  states := coalesce(states, ARRAY['failed']);
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(states, queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, after, coalesce(max_rows, 500),
                          shape => shape, finished_after => finished_after, finished_before => finished_before) s;
  PERFORM weir._lock_to_retry(ids);
  done := CASE WHEN 'failed' = ANY (states) THEN weir._retry_failed(ids) ELSE '{}' END;
  -- Those that are retried first are claimed first: the oldest.
  SELECT cardinality(done) + count(*) FILTER (WHERE k.is_retried) INTO retried
  FROM (SELECT u.id FROM unnest(ids) u(id) WHERE u.id <> ALL (done) ORDER BY u.id OFFSET 0) i CROSS JOIN LATERAL weir._retry(i.id, states) k;
END
$$;
COMMENT ON FUNCTION weir.retry_where IS
  'One step of retrying all jobs that match a filter, as weir.retry does: those that are failed (or in states: failed, cancelled, completed), of a queue, of some kinds, whose meta contains meta, of a priority, enqueued at or after enqueued_after or before enqueued_before, with this key, whose last error contains the text error, or has the shape by which weir.failure_groups groups it, and that reached that state at or after finished_after, or before finished_before (of a job that was cancelled and that no worker has passed, the time when it was enqueued counts). All conditions that are not NULL must hold, and one besides states is required. An empty value is refused: pass NULL for no condition. A step looks at max_rows jobs (1 to 1000) of the list of these states from after on, returns how many it has retried, and next: pass it as after in the next call, with the same filter; NULL: this was the last step. A job that fails again meanwhile is not retried a second time. Call each step in autocommit: then a run that is ended has done what it has returned, and a new run does the rest. Errors: 22023, 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry, in an order in which two runs don''t deadlock. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.delete_where(
  queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL, priority integer DEFAULT NULL, enqueued_after timestamptz DEFAULT NULL,
  enqueued_before timestamptz DEFAULT NULL, error text DEFAULT NULL, after text DEFAULT NULL, max_rows integer DEFAULT 500, key text DEFAULT NULL,
  shape text DEFAULT NULL, finished_after timestamptz DEFAULT NULL, finished_before timestamptz DEFAULT NULL, OUT deleted integer, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  ids bigint[];
BEGIN
  PERFORM weir._check_step('delete_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, max_rows, shape, num_nonnulls(finished_after, finished_before) > 0);
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(ARRAY['failed'], queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, after, coalesce(max_rows, 500),
                          shape => shape, finished_after => finished_after, finished_before => finished_before) s;
  PERFORM weir._lock_to_retry(ids);
  deleted := weir._forget_failures(ids);
END
$$;
COMMENT ON FUNCTION weir.delete_where IS
  'One step of deleting all failed jobs that match a filter; for the arguments see weir.retry_where. A deleted job is unknown to all functions after the commit, and can''t be retried. It writes a short note for each; the job''s data leaves the disk with its segment, when its retention is over. Returns how many jobs it has deleted, and next, as weir.retry_where. Errors: 22023, 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.delete(job_id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation('delete');
  IF (SELECT i.state FROM weir.job_info(job_id) i) = 'failed' THEN
    PERFORM weir._lock_to_retry(ARRAY[job_id]);
    IF weir._forget_failures(ARRAY[job_id]) = 1 THEN
      RETURN 'deleted';
    END IF;
  END IF;
  RETURN (SELECT i.state FROM weir.job_info(job_id) i);
END
$$;
COMMENT ON FUNCTION weir.delete IS
  'Deletes a failed job, as weir.delete_where does, and returns deleted. A job in another state is left as it is, and its state returned; NULL for an unknown id. Errors: WR004 (not in READ COMMITTED). Locks: as for weir.retry. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._retry_failed(job_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
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
  failures weir.failure[];
  retried  bigint[];
BEGIN
  -- Which of these cancellations mean a job, weir._retry finds out for each.
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(_retry_failed.job_ids) i(id))) THEN
    RETURN '{}';
  END IF;
  failures := weir._copies_of(_retry_failed.job_ids);
  retried := ARRAY(SELECT f.id FROM unnest(failures) f);
  IF retried = '{}' THEN
    RETURN retried;
  END IF;
  DELETE FROM weir.cancellation c WHERE c.id = ANY (retried);
  INSERT INTO weir.failure (id, segment, lane, attempt) SELECT f.id, f.segment, f.lane, f.attempt + 1 FROM unnest(failures) f;
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');  -- wakes idle workers
  WITH place AS MATERIALIZED (
    SELECT d.lane AS from_lane, weir._lane_of(q.name, (d.lane & 3)::integer + 1, d.key) AS lane, d.key
    FROM (SELECT DISTINCT f.lane, f.key FROM unnest(failures) f) d JOIN weir.queue q ON q.id = (d.lane >> 39)::integer
  )
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, errors, key)
  SELECT f.id, pg_current_xact_id(), f.enqueued_at, now(), p.lane, f.attempt + 1, greatest(f.max_attempts, f.attempt + 1), pg_sequence_last_value('weir.active_job'),
         row_number() OVER (PARTITION BY p.lane ORDER BY f.id) = 1, f.kind, f.args, f.meta, weir._with_error(f.errors, f.attempt, f.finished_at, 'failed', f.error), f.key
  FROM unnest(failures) f JOIN place p ON p.from_lane = f.lane AND p.key IS NOT DISTINCT FROM f.key
  ORDER BY f.id;
  RETURN retried;
END
$$;
COMMENT ON FUNCTION weir._retry_failed IS
  'Retries the failed ones among some jobs together, from their copies, as weir._retry does one by one in ten times as long, and returns which. It leaves out those that are unique or in a flow, and all if some may be cancelled by a filter. The caller has called weir._lock_to_retry.';

CREATE OR REPLACE FUNCTION weir._copies_of(job_ids bigint[]) RETURNS weir.failure[]
LANGUAGE plpgsql VOLATILE
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
  copies weir.failure[];
BEGIN
  PERFORM weir._lock_log();
  copies := ARRAY(
    SELECT f::weir.failure
    FROM unnest(_copies_of.job_ids) i(id)
    CROSS JOIN LATERAL (SELECT k.* FROM weir.failure k WHERE k.id = i.id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1) f
    WHERE f.finished_at IS NOT NULL AND f.unique_key IS NULL AND f.flow IS NULL
      AND NOT EXISTS (SELECT FROM weir.job j WHERE j.id = i.id AND j.attempt > f.attempt));
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN copies;
END
$$;
COMMENT ON FUNCTION weir._copies_of IS
  'The copies of those among some jobs that have failed, and are neither unique nor in a flow. A copy in the array holds its values itself, so nothing is read of the tables later. Locks: none that outlast the call; waits while a segment is being emptied.';

CREATE OR REPLACE FUNCTION weir._forget_failures(job_ids bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
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
  n integer;
BEGIN
  -- As weir.retry notes that a failure is not the end of its job, in the failure's segment; but no attempt follows.
  INSERT INTO weir.failure (id, segment, lane, attempt)
  SELECT f.id, f.segment, f.lane, f.attempt + 1
  FROM unnest(_forget_failures.job_ids) i(id)
  CROSS JOIN LATERAL (SELECT k.* FROM weir.failure k WHERE k.id = i.id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1) f
  WHERE f.finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM weir.job j WHERE j.id = i.id AND j.attempt > f.attempt);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir._forget_failures IS 'Notes that failed jobs are deleted; not those that have been retried since. Returns how many were. The caller has called weir._lock_to_retry.';
