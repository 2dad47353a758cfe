-- Functions of operators: cancel, retry, pause, resume, settings. They are called rarely, so they may
-- update and delete rows.

CREATE OR REPLACE FUNCTION weir.cancel(job_id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  job weir.job_info;
BEGIN
  SELECT i.* INTO job FROM weir.job_info(job_id) i;
  IF job.state IN ('available', 'scheduled', 'running') THEN
    INSERT INTO weir.cancellation (id, queue) VALUES (job_id, job.queue) ON CONFLICT (id) DO NOTHING;
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.control');
    -- In order, the next job of its key waits for it no more.
    PERFORM weir._free_slots(ARRAY[l.gate], ARRAY[0], ARRAY[weir._key_bits(job.key)]) FROM weir.queue_limit l
    WHERE l.name = job.queue AND l.in_order AND job.key IS NOT NULL;
    RETURN CASE job.state WHEN 'running' THEN 'requested' ELSE 'cancelled' END;
  END IF;
  RETURN job.state;
END
$$;
COMMENT ON FUNCTION weir.cancel IS
  'Cancels a job. A job that has not started will not start (returns cancelled); the worker of a running job is notified, and cancels the job''s context (returns requested). Otherwise it does nothing, and returns the job''s final state, or NULL for an unknown id. A job that starts while this commits is cancelled like a running one. Errors: 40001 (see weir.job_info). Locks: none that others wait for, except a second cancel of the same job, so cancel several jobs of one transaction in ascending order of their ids. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._cancelled_among(ids bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(
    SELECT i.id FROM unnest(_cancelled_among.ids) i(id)
    WHERE EXISTS (SELECT FROM weir.cancellation c WHERE c.id = i.id)
       OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= i.id) AND weir._is_cancelled_where(i.id))
$$;
COMMENT ON FUNCTION weir._cancelled_among IS 'The ids whose jobs were cancelled: a worker calls it for its running jobs when weir.control has changed.';

CREATE OR REPLACE FUNCTION weir.retry(job_id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  now_is text;
BEGIN
  PERFORM weir._check_isolation('retry');
  now_is := (SELECT i.state FROM weir.job_info(job_id) i);
  IF now_is IN ('completed', 'failed', 'cancelled') THEN
    PERFORM weir._lock_to_retry(ARRAY[job_id]);
    RETURN (SELECT r.state FROM weir._retry(job_id, ARRAY['completed', 'failed', 'cancelled']) r);
  END IF;
  RETURN now_is;
END
$$;
COMMENT ON FUNCTION weir.retry IS
  'Enqueues another attempt of a completed, failed or cancelled job, and returns its new state. A job in another state is left as it is, and its state returned; NULL for an unknown id. Errors: WR004 (not in READ COMMITTED). Locks: advisory: the job (exclusive); only a second retry of the same job waits, so retry several jobs of one transaction in ascending order of their ids. For a job that weir.cancel_where or weir.cancel_flow means, also its lane (exclusive): until the transaction ends, no job is claimed from it. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._lock_to_retry(job_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  -- In the order of their keys, the lanes last, as claims lock them: so nobody deadlocks.
  PERFORM pg_advisory_xact_lock(1464158546, k.key)
  FROM (SELECT DISTINCT -1 - (i.id % 1000000)::integer AS key FROM unnest(_lock_to_retry.job_ids) i(id) ORDER BY 1 OFFSET 0) k;
  -- A claim that has begun may not see that a job is not cancelled any more.
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(_lock_to_retry.job_ids) i(id))) THEN
    PERFORM weir._lock_lanes(ARRAY(
      SELECT DISTINCT l.lane FROM unnest(weir._cancelled_where_among(_lock_to_retry.job_ids)) i(id)
      CROSS JOIN LATERAL (
        SELECT j.lane FROM weir.job j WHERE j.id = i.id UNION SELECT l.lane FROM weir.later l WHERE l.id = i.id AND l.lane > 0) l));
  END IF;
END
$$;
COMMENT ON FUNCTION weir._lock_to_retry IS
  'Excludes other retries of some jobs, to the end of the transaction; and, of those that are cancelled by a filter or with their flow, claims from their lanes. Locks: advisory: the jobs and lanes (exclusive).';

CREATE OR REPLACE FUNCTION weir._retry(job_id bigint, states text[], OUT state text, OUT is_retried boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  j weir.job_info;
  u record;
BEGIN
  SELECT i.* INTO j FROM weir.job_info(job_id) i;
  state := j.state;
  is_retried := coalesce(j.state = ANY (_retry.states), false);
  IF NOT is_retried THEN
    RETURN;
  END IF;
  SELECT k.* INTO u FROM weir._unique_of(job_id) k WHERE EXISTS (SELECT FROM weir.keyed q WHERE q.queue = j.queue);  -- reading it takes a subtransaction
  IF j.flow IS NOT NULL AND u.unique_key IS NOT NULL AND EXISTS (SELECT FROM weir.seen s WHERE s.key = u.unique_key AND s.job <> j.id) THEN
    is_retried := false;  -- what is to be done once in its flow, another job does
    RETURN;
  END IF;
  DELETE FROM weir.cancellation c WHERE c.id = job_id;
  PERFORM pg_current_xact_id();
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= j.id) THEN
    -- Of those that mean it, each that is visible. One that is not yet, whatever its number, means the job once it is committed. The lock comes first, so
    -- that none of these takes the place of another one meanwhile.
    LOCK TABLE weir.reprieve IN ROW EXCLUSIVE MODE;
    INSERT INTO weir.reprieve (id, attempt, since, upto)
    SELECT j.id, j.attempt + (j.finished_at IS NOT NULL)::integer, w.no, w.no FROM weir.cancellation_where w
    WHERE (w.queue IS NULL OR w.queue = j.queue) AND weir._means(w, j.id, j.kind, j.meta, j.enqueued_at, j.key, j.priority, j.flow);
  END IF;
  IF j.finished_at IS NULL THEN  -- cancelled before it started: it is still in the log
    IF j.flow IS NOT NULL THEN
      PERFORM weir._arrive(j.flow, 'jobs', 0, 'retried', weir._cancellation_of(j.flow));
    END IF;
    PERFORM nextval('weir.control');
    state := CASE WHEN j.run_at IS NULL THEN 'available' ELSE 'scheduled' END;
    RETURN;
  END IF;
  IF j.state = 'failed' THEN
    -- In the segment of the failure, so that both are truncated together: otherwise the job would be failed again once the next attempt
    -- has been removed from the log.
    INSERT INTO weir.failure (id, segment, lane, attempt)
    SELECT f.id, f.segment, f.lane, j.attempt + 1 FROM weir.failure f WHERE f.id = j.id AND f.attempt = j.attempt;
  END IF;
  PERFORM nextval('weir.job_id');
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  VALUES (j.id, pg_current_xact_id(), j.enqueued_at, now(), weir._lane_of(j.queue, j.priority, j.key), j.attempt + 1,
          greatest(j.max_attempts, j.attempt + 1), pg_sequence_last_value('weir.active_job'), j.kind, j.args, j.meta,
          weir._brief_errors(j.errors), u.unique_key, CASE WHEN u.unique_key IS NOT NULL AND j.flow IS NULL THEN nextval('weir.job_id') * 2 END, u.unique_until, j.key, j.flow);
  IF j.flow IS NOT NULL THEN
    PERFORM weir._arrive(j.flow, j.state, -1, 'retried', weir._cancellation_of(j.flow));
  END IF;
  state := 'available';
END
$$;
COMMENT ON FUNCTION weir._retry IS 'Retries a job if it is in one of these final states, and returns its state then, and whether it was. The caller has called weir._lock_to_retry.';

CREATE OR REPLACE FUNCTION weir.pause(queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  UPDATE weir.queue q SET paused_at = coalesce(q.paused_at, now()) WHERE q.name = pause.queue;
  RETURN FOUND;
END
$$;
COMMENT ON FUNCTION weir.pause IS
  'Pauses a queue: after the commit, no more of its jobs are claimed; running jobs continue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.resume(queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  found_it boolean;
BEGIN
  UPDATE weir.queue q SET paused_at = NULL WHERE q.name = resume.queue;
  found_it := FOUND;
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.control');  -- wakes idle workers
  RETURN found_it;
END
$$;
COMMENT ON FUNCTION weir.resume IS
  'Resumes a queue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._interval_of(name text, value text) RETURNS interval
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET intervalstyle = postgres
SET jit = off
AS $$
DECLARE
  hint     CONSTANT text := 'Write it as ''3 days'', ''12 hours'' or ''90 seconds''.';
  found_it interval;
BEGIN
  -- PostgreSQL skips punctuation and the words at and on, and takes a number that no unit follows for seconds.
  IF _interval_of.value ~ '[1-9]' AND _interval_of.value !~ '[0-9]:[0-9]'
     AND regexp_replace(_interval_of.value, '[[:<:]](at|on)[[:>:]]', '', 'gi') ~ '[0-9][^A-Za-z]*$' THEN
    RAISE EXCEPTION 'weir: % needs a unit, got "%"', _interval_of.name, left(_interval_of.value, 100) USING ERRCODE = '22023', HINT = hint;
  END IF;
  found_it := _interval_of.value::interval;
  -- To compare, PostgreSQL counts 30 days for a month, so 360 for a year.
  IF found_it < interval '0' OR found_it > interval '366 days' THEN
    RAISE EXCEPTION 'weir: % must be 0 to 1 year, got "%"', _interval_of.name, left(_interval_of.value, 100) USING ERRCODE = '22023';
  END IF;
  RETURN found_it;
EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR interval_field_overflow OR invalid_time_zone_displacement_value THEN
  RAISE EXCEPTION 'weir: % must be an interval of 0 to 1 year, got "%"', _interval_of.name, left(_interval_of.value, 100)
    USING ERRCODE = '22023', HINT = hint;
END
$$;
COMMENT ON FUNCTION weir._interval_of IS 'The interval that is the value of a setting. Errors: 22023.';

CREATE OR REPLACE FUNCTION weir._bytes_of(name text, value text, low bigint, high bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  found_it bigint;
BEGIN
  found_it := pg_size_bytes(_bytes_of.value);
  IF found_it NOT BETWEEN low AND high THEN
    RAISE EXCEPTION USING ERRCODE = '22003';
  END IF;
  RETURN found_it;
EXCEPTION WHEN invalid_parameter_value OR numeric_value_out_of_range OR invalid_text_representation THEN
  RAISE EXCEPTION 'weir: % must be % to %, got %', _bytes_of.name, low, high, format(CASE WHEN _bytes_of.value ~ '^[0-9]+$' THEN '%s' ELSE '"%s"' END, left(_bytes_of.value, 100))
    USING ERRCODE = '22023', HINT = 'Write a number of bytes, or a size such as 512 MB or 4 GB.';
END
$$;
COMMENT ON FUNCTION weir._bytes_of IS 'The number of bytes that is the value of a setting, which may have a unit. Errors: 22023.';

CREATE OR REPLACE FUNCTION weir.set(name text, value text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET intervalstyle = postgres  -- every session that reads the value takes it for the same interval, whatever its own style
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  low  bigint;
  high bigint;
BEGIN
  IF set.name IS NULL OR set.value IS NULL THEN
    RAISE EXCEPTION 'weir: a setting needs a name and a value, got % and %', coalesce(left(set.name, 100), 'null'), coalesce(left(set.value, 100), 'null') USING ERRCODE = '22023';
  ELSIF set.name IN ('completed_retention', 'failed_retention', 'message_retention', 'relay_retention') THEN
    set.value := weir._interval_of(set.name, set.value);
  ELSE
    SELECT l.low, l.high INTO low, high FROM (VALUES
      ('retention_bytes', 1048576, 9223372036854775807), ('message_retention_bytes', 1048576, 9223372036854775807),
      ('message_bytes', 8000, 16777216)) l(name, low, high) WHERE l.name = set.name;
    IF set.name IN ('backoff', 'backoff_limit', 'backoff_form', 'ageing') THEN
      RAISE EXCEPTION 'weir: % is a setting of each queue, and no queue is named', set.name USING ERRCODE = '22023', HINT = 'Name it: weir.set(queue, name, value), or --queue of the command.';
    ELSIF low IS NULL THEN
      RAISE EXCEPTION 'weir: unknown setting %', left(set.name, 100)
        USING ERRCODE = '22023', HINT = 'The settings are completed_retention, failed_retention, message_retention and relay_retention (intervals), retention_bytes, message_retention_bytes and message_bytes.';
    END IF;
    set.value := weir._bytes_of(set.name, set.value, low, high);
  END IF;
  UPDATE weir.setting s SET value = set.value WHERE s.name = set.name;
END
$$;
COMMENT ON FUNCTION weir.set(text, text) IS
  'Changes a setting: completed_retention (how long completed and cancelled jobs can be inspected and retried; 1 day by default), failed_retention (the same for failed jobs, but never less than completed_retention; 7 days by default), retention_bytes (the size of log and history together, and a quarter more for failed jobs; unfinished jobs are kept whatever their size; 4294967296 by default), message_retention (how long a subscriber can resume from a position; 1 hour by default), relay_retention (how long messages are kept beyond that for a relay that has not passed them on, unless space is short; 1 day by default), message_retention_bytes (the size of messages; 1073741824 by default) or message_bytes (the largest payload; 1048576 by default, at most 16777216). Intervals need a unit; bytes may have one (4 GB). Errors: 22023. Locks: none that others wait for, except another change of the setting. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.set(queue text, name text, value text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  chosen interval;
  known  boolean;
BEGIN
  IF set.name IS NULL OR set.name NOT IN ('backoff', 'backoff_limit', 'backoff_form', 'ageing') THEN
    RAISE EXCEPTION 'weir: queues have no setting %', coalesce(left(set.name, 100), 'null') USING ERRCODE = '22023', HINT = 'The settings of a queue are backoff, backoff_limit and ageing (intervals), and backoff_form.';
  ELSIF coalesce(set.queue, '') = '' OR length(set.queue) > 128 THEN
    RAISE EXCEPTION 'weir: set needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(set.queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF set.name = 'backoff_form' THEN
    PERFORM weir._check_backoff(NULL, NULL, coalesce(set.value, 'null'));
  ELSIF set.value IS NULL THEN
    RAISE EXCEPTION 'weir: % must be 0 to 1 year, got null', set.name USING ERRCODE = '22023';
  ELSE
    chosen := weir._interval_of(set.name, set.value);
  END IF;
  known := EXISTS (SELECT FROM weir.queue q WHERE q.name = set.queue);
  IF NOT known THEN
    PERFORM weir._queue_id(set.queue);
  END IF;
  -- It changes all twins of the name.
  IF set.name = 'backoff' THEN
    UPDATE weir.queue q SET backoff = chosen WHERE q.name = set.queue;
  ELSIF set.name = 'backoff_form' THEN
    UPDATE weir.queue q SET backoff_form = set.value WHERE q.name = set.queue;
  ELSIF set.name = 'ageing' THEN
    UPDATE weir.queue q SET ageing = nullif(chosen, '0') WHERE q.name = set.queue;
  ELSE
    UPDATE weir.queue q SET backoff_limit = chosen WHERE q.name = set.queue;
  END IF;
  RETURN known;
END
$$;
COMMENT ON FUNCTION weir.set(text, text, text) IS
  'Changes a setting of a queue, which need not have been used yet: backoff (the delay between a job''s first failure and the next attempt; it doubles with each further failure, and varies by up to a quarter; 1 second by default), backoff_limit (its maximum; 1 hour by default), backoff_form (how it grows: exponential, the default, which doubles it; linear, which adds it once more; or fixed), or ageing (for how long a job waits before it may start ahead of jobs of the priority before its own; 0, the default: forever). Returns false if no queue had this name, and creates it. Errors: 22023. Locks: none that others wait for, except another change of the queue. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.settings() RETURNS TABLE (queue text, name text, value text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- Failed jobs are kept no shorter than the others, whatever is set.
  SELECT NULL, s.name, CASE WHEN s.name = 'failed_retention'
    THEN (SELECT r.value FROM weir.setting r WHERE r.name IN ('completed_retention', 'failed_retention') ORDER BY r.value::interval DESC LIMIT 1) ELSE s.value END
  FROM weir.setting s
  WHERE s.name IN ('completed_retention', 'failed_retention', 'retention_bytes', 'message_retention', 'message_retention_bytes', 'message_bytes', 'relay_retention')
  UNION ALL
  -- All twins of a name have the same settings.
  SELECT q.name, v.name, v.value
  FROM (SELECT DISTINCT ON (q.name) q.* FROM weir.queue q ORDER BY q.name, q.id) q
  CROSS JOIN LATERAL (VALUES ('backoff', q.backoff::text), ('backoff_limit', q.backoff_limit::text), ('backoff_form', q.backoff_form), ('ageing', coalesce(q.ageing, '0')::text)) v(name, value)
  ORDER BY 1 NULLS FIRST, 2
$$;
COMMENT ON FUNCTION weir.settings IS
  'All settings that weir.set changes: those of the database (queue is NULL), then those of each queue; of failed_retention, what applies, which is at least completed_retention. Errors: none. Locks: none that others wait for. Isolation: any.';
