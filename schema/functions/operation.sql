-- Operations: bulk retries, deletions, moves and cancellations that run in the background, step by step.
--
-- An operation is a row with its filter, and each of its steps a row with the cursor behind it. A step is one call of weir.retry_where, delete_where or
-- move_where, and its row is written in the same transaction: so what a killed step has done is undone with its row, and the next step, in whichever session,
-- continues where the last one has stopped. Nobody's memory takes part, and no election: whoever does a step holds the lock of the operation meanwhile.
--
-- An operation means what there was when it began. A job that it has retried and that fails again, or is enqueued again, lies behind that time; the
-- cursor has usually passed it as well, but not where the states of a filter follow one another.

CREATE OR REPLACE FUNCTION weir._conditions(
  filter jsonb, OUT queue text, OUT kinds text[], OUT meta jsonb, OUT priority integer, OUT enqueued_after timestamptz, OUT enqueued_before timestamptz, OUT key text,
  OUT error text, OUT shape text, OUT finished_after timestamptz, OUT finished_before timestamptz, OUT states text[])
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT r.* FROM jsonb_to_record(_conditions.filter) r(
    queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamptz, enqueued_before timestamptz, key text,
    error text, shape text, finished_after timestamptz, finished_before timestamptz, states text[])
$$;
COMMENT ON FUNCTION weir._conditions IS 'The conditions of an operation''s filter; NULL: it has no such condition. Errors: 22P02, 22007 and the like (a value has another type). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_operation(what text, filter jsonb, to_queue text, to_priority integer) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  known text[] := ARRAY['queue', 'kinds', 'meta', 'priority', 'enqueued_after', 'enqueued_before', 'key'];
  wrong text;
  f     record;
BEGIN
  IF what IS NULL OR what <> ALL (ARRAY['retry', 'delete', 'move', 'cancel']) THEN
    RAISE EXCEPTION 'weir: an operation is to retry, delete, move or cancel jobs, got %', coalesce(quote_literal(left(what, 100)), 'null') USING ERRCODE = '22023';
  ELSIF jsonb_typeof(filter) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'weir: the filter of an operation must be a JSON object, got %', coalesce(left(filter::text, 100), 'null') USING ERRCODE = '22023', HINT = 'For example {"queue": "mail"}.';
  END IF;
  known := known || CASE WHEN what IN ('retry', 'delete') THEN ARRAY['error', 'shape', 'finished_after', 'finished_before'] END || CASE WHEN what = 'retry' THEN ARRAY['states'] END;
  SELECT k INTO wrong FROM jsonb_object_keys(filter) k WHERE k <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: an operation that is to % jobs has no condition %', what, to_json(left(wrong, 100)) USING ERRCODE = '22023', HINT = 'It has: ' || array_to_string(known, ', ') || '.';
  END IF;
  f := weir._conditions(filter);
  PERFORM weir._check_filter('begin_operation', f.queue, f.kinds, f.meta, f.priority, f.key, f.error,
    num_nonnulls(f.enqueued_after, f.enqueued_before, f.finished_after, f.finished_before) > 0,
    'Name a condition besides states, such as {"queue": "mail"}. To select all jobs, name enqueued_before, with the present time.', f.shape),
    weir._check_states('begin_operation', f.states);
  IF what <> 'move' AND num_nonnulls(to_queue, to_priority) > 0 THEN
    RAISE EXCEPTION 'weir: an operation that is to % jobs has no to_queue and no to_priority', what USING ERRCODE = '22023';
  ELSIF what = 'move' THEN
    PERFORM weir._check_destination('begin_operation', to_queue, to_priority);
  END IF;
  RETURN (SELECT jsonb_object_agg(c.name, c.value) FROM (VALUES
    ('queue', to_jsonb(f.queue)), ('kinds', to_jsonb(f.kinds)), ('meta', f.meta), ('priority', to_jsonb(f.priority)), ('enqueued_after', to_jsonb(f.enqueued_after)),
    ('enqueued_before', to_jsonb(f.enqueued_before)), ('key', to_jsonb(f.key)), ('error', to_jsonb(f.error)), ('shape', to_jsonb(f.shape)),
    ('finished_after', to_jsonb(f.finished_after)), ('finished_before', to_jsonb(f.finished_before)), ('states', to_jsonb(f.states))) c(name, value)
    WHERE c.value IS NOT NULL);
END
$$;
COMMENT ON FUNCTION weir._check_operation IS
  'Refuses an operation whose arguments are not valid, and returns its filter as it is stored: without nulls, and with times that mean the same whenever they are read. Errors: 22023; see _conditions. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._open_operations() RETURNS SETOF bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT o.id FROM weir.operation o CROSS JOIN LATERAL (SELECT s.state FROM weir.operation_step s WHERE s.operation = o.id ORDER BY s.no DESC LIMIT 1) s
  WHERE o.id > coalesce((SELECT m.upto FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1), 0) AND s.state = 'running' ORDER BY o.id
$$;
COMMENT ON FUNCTION weir._open_operations IS 'The operations that have not ended, oldest first. The caller has locked weir.operation and weir.operation_step, so that its snapshot is not older than their last TRUNCATE. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._mark_operations() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  few  CONSTANT integer := 50;  -- that have ended and may be looked at again
  last weir.operation_mark;
  upto bigint;
BEGIN
  SELECT m.* INTO last FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  IF (SELECT o.id FROM weir.operation o ORDER BY o.id DESC LIMIT 1) <= coalesce(last.upto, 0) + few OR NOT pg_try_advisory_xact_lock(1464158562, 0) THEN
    RETURN NULL;
  END IF;
  -- None is being begun, so those that are not visible now never will be.
  SELECT m.* INTO last FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  upto := coalesce((SELECT k - 1 FROM weir._open_operations() k LIMIT 1), (SELECT o.id FROM weir.operation o ORDER BY o.id DESC LIMIT 1));
  IF upto > coalesce(last.upto, 0) + few THEN
    INSERT INTO weir.operation_mark (no, upto) VALUES (coalesce(last.no, 0) + 1, upto);
    RETURN upto;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._mark_operations IS
  'Notes up to which operation all have ended, if that are fifty more than were noted. Returns its number, or NULL. The caller has locked the tables. Errors: none. Locks: advisory: the beginning of operations (exclusive, tried). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.begin_operation(what text, filter jsonb, by text DEFAULT NULL, to_queue text DEFAULT NULL, to_priority integer DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 100;  -- that have not ended
  given jsonb  := weir._check_operation(begin_operation.what, begin_operation.filter, begin_operation.to_queue, begin_operation.to_priority);
  f     record := weir._conditions(given);
  this  bigint;
BEGIN
  IF length(begin_operation.by) > 200 THEN
    RAISE EXCEPTION 'weir: by must have up to 200 characters, got %', length(begin_operation.by) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(begin_operation.filter -> 'queue') NOT IN ('string', 'null') THEN
    RAISE EXCEPTION 'weir: queue must be a text, got %', left((begin_operation.filter -> 'queue')::text, 100) USING ERRCODE = '22023';
  ELSIF f.queue IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q WHERE q.name = f.queue) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158562, 0);  -- see _mark_operations, which holds it for a moment
  LOCK TABLE weir.operation, weir.operation_step IN ROW EXCLUSIVE MODE;
  IF begin_operation.what <> 'cancel' AND (SELECT count(*) FROM weir._open_operations()) >= most THEN
    RAISE EXCEPTION 'weir: % operations have not ended', most USING ERRCODE = '54000', HINT = 'Let them end, which needs a worker, or stop some: weir.operations() lists them.';
  END IF;
  PERFORM pg_current_xact_id();
  this := nextval('weir.operation_id');
  INSERT INTO weir.operation (id, at, by, what, filter, to_queue, to_priority)
  VALUES (this, clock_timestamp(), coalesce(nullif(begin_operation.by, ''), session_user), begin_operation.what, given, begin_operation.to_queue, begin_operation.to_priority);
  IF begin_operation.what = 'cancel' THEN
    PERFORM weir.cancel_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.key);
  END IF;
  INSERT INTO weir.operation_step (operation, no, at, state, changed)
  VALUES (this, 0, clock_timestamp(), CASE WHEN begin_operation.what = 'cancel' THEN 'done' ELSE 'running' END, CASE WHEN begin_operation.what <> 'cancel' THEN 0 END);
  PERFORM nextval('weir.control');  -- wakes those who do the steps
  RETURN this;
END
$$;
COMMENT ON FUNCTION weir.begin_operation IS
  'Begins an operation: what is retry, delete, move or cancel, and filter a JSON object with the conditions of weir.retry_where, delete_where, move_where or cancel_where, by the names of their arguments, such as {"queue": "mail", "kinds": ["welcome"]}; at least one is required. A cancellation is done with the commit. The others are done after it, step by step, by the maintenance of workers or by weir.chores, which continue after any crash; they mean the jobs that there were when the operation began, and each job is changed once: one that fails again later is not retried again. by says who has begun it (NULL: the session''s user), and to_queue and to_priority where jobs are moved. Returns the number of the operation, or NULL if the filter names a queue that does not exist. Errors: 22023, and 22P02 or 22007 (a value of the filter has another type); 54000 (100 operations have not ended); of a cancellation also those of weir.cancel_where. Locks: advisory: the beginning of operations (shared), for which none waits; of a cancellation those of weir.cancel_where. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._step_operations(max_rows integer DEFAULT 500, OUT operation bigint, OUT changed integer, OUT state text, OUT is_open boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '2s'  -- somebody's open transaction may hold jobs of an operation: others go on meanwhile
AS $$
#variable_conflict use_column
DECLARE
  this  bigint;
  o     weir.operation;
  last  weir.operation_step;
  f     record;
  next  text;
  wrong text;  -- the column that an error names
  why   text;  -- the operation has failed
BEGIN
  PERFORM weir._check_isolation('step_operations');
  is_open := false;
  IF pg_sequence_last_value('weir.operation_id') IS NULL THEN
    RETURN;  -- there was never one
  END IF;
  PERFORM weir._check_cluster();
  LOCK TABLE weir.operation, weir.operation_step IN ACCESS SHARE MODE;
  FOR this IN SELECT k FROM weir._open_operations() k LOOP
    is_open := true;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158562, (this % 2147483648)::integer);
    -- With a new snapshot: whoever held the lock before may have done a step.
    SELECT s.* INTO last FROM weir.operation_step s WHERE s.operation = this ORDER BY s.no DESC LIMIT 1;
    CONTINUE WHEN last.state <> 'running';
    SELECT k.* INTO o FROM weir.operation k WHERE k.id = this;
    f := weir._conditions(o.filter);
    BEGIN
      CASE o.what
        WHEN 'retry' THEN
          SELECT r.retried, r.next INTO changed, next FROM weir.retry_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.error, f.states, last.after,
            _step_operations.max_rows, f.key, f.shape, f.finished_after, least(f.finished_before, o.at)) r;
        WHEN 'delete' THEN
          SELECT r.deleted, r.next INTO changed, next FROM weir.delete_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.error, last.after,
            _step_operations.max_rows, f.key, f.shape, f.finished_after, least(f.finished_before, o.at)) r;
        WHEN 'move' THEN
          SELECT r.moved, r.next INTO changed, next FROM weir.move_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, least(f.enqueued_before, o.at), o.to_queue, o.to_priority, last.after,
            _step_operations.max_rows, f.key) r;
      END CASE;
      state := CASE WHEN next IS NULL THEN 'done' ELSE 'running' END;
    EXCEPTION WHEN lock_not_available THEN
      CONTINUE;  -- with the next operation; a later call tries this one again
    WHEN OTHERS THEN
      IF SQLSTATE ~ '^(08|0A|25|40|53|55|57|58|XX|WR)' THEN
        RAISE;  -- not because of the operation: another call tries again
      END IF;
      GET STACKED DIAGNOSTICS wrong = COLUMN_NAME;
      changed := 0;
      next := NULL;
      IF last.after IS NOT NULL AND wrong = 'after' THEN
        state := 'running';  -- from the beginning: the cursor comes from another cluster or version, and what is done is not in the list any more
      ELSE
        state := 'failed';
        why := SQLERRM;
      END IF;
    END;
    INSERT INTO weir.operation_step (operation, no, at, state, changed, after, error)
    VALUES (this, last.no + 1, clock_timestamp(), _step_operations.state, last.changed + _step_operations.changed, next, left(why, 2000));
    operation := this;
    RETURN;
  END LOOP;
  PERFORM weir._mark_operations();
END
$$;
COMMENT ON FUNCTION weir._step_operations IS
  'Does one step, of up to max_rows jobs, of the oldest operation that has not ended and of which no other session does a step: which one, how many jobs it has changed, and the operation''s state after it; NULL: there was none. is_open: some operation has not ended. An operation whose step fails, other than because of a lock, a lack of resources or the like, has failed. Errors: 40001, 55P03, WR003, WR004. Locks: advisory: the operation (exclusive, tried), the beginning of operations (exclusive, tried, for a moment when some have ended); see weir.retry_where, delete_where and move_where. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir.stop_operation(id bigint, by text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
  last weir.operation_step;
BEGIN
  PERFORM weir._check_isolation('stop_operation', true), weir._hold_briefly();
  IF length(stop_operation.by) > 200 THEN
    RAISE EXCEPTION 'weir: by must have up to 200 characters, got %', length(stop_operation.by) USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.operation_step IN ROW EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT FROM weir.operation_step s WHERE s.operation = stop_operation.id) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock(1464158562, (stop_operation.id % 2147483648)::integer);
  SELECT s.* INTO last FROM weir.operation_step s WHERE s.operation = stop_operation.id ORDER BY s.no DESC LIMIT 1;
  IF last.state = 'running' THEN
    INSERT INTO weir.operation_step (operation, no, at, state, changed, after, by)
    VALUES (last.operation, last.no + 1, clock_timestamp(), 'stopped', last.changed, last.after, coalesce(nullif(stop_operation.by, ''), session_user));
    RETURN 'stopped';
  END IF;
  RETURN last.state;
END
$$;
COMMENT ON FUNCTION weir.stop_operation IS
  'Stops an operation: after the commit it changes no more jobs, and what it has done stays done. by says who has stopped it (NULL: the session''s user). Returns stopped; done or failed, if it had ended; NULL: the number is unknown. Errors: 22023, 55P03 (a step did not end within 5 seconds: call again), WR004 (not in READ COMMITTED). Locks: advisory: the operation (exclusive), until the transaction ends; steps of it pass over it meanwhile. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.operations(before bigint DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (id bigint, what text, filter jsonb, to_queue text, to_priority integer, began_at timestamptz, began_by text, state text, changed bigint, changed_at timestamptz, error text, stopped_by text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  IF operations.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: operations returns 1 to 1000 operations, got max_rows %', operations.max_rows USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.operation, weir.operation_step IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^operation(_step)?$', 'weir: operations were compacted after this transaction took its snapshot');
  RETURN QUERY
  SELECT o.id, o.what, o.filter, o.to_queue, o.to_priority, o.at, o.by, s.state, s.changed, s.at, s.error, s.by
  FROM weir.operation o CROSS JOIN LATERAL (SELECT s.* FROM weir.operation_step s WHERE s.operation = o.id ORDER BY s.no DESC LIMIT 1) s
  WHERE o.id < coalesce(operations.before, 9223372036854775807) AND (s.state = 'running' OR o.at > clock_timestamp() - interval '30 days')
  ORDER BY o.id DESC LIMIT coalesce(operations.max_rows, 100);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.operations IS
  'Operations, newest first: up to max_rows (1 to 1000) with numbers below before (NULL: from the newest one on). state is running, done, stopped or failed, with the error; changed is how many jobs it has retried, deleted or moved so far, at changed_at (NULL: a cancellation counts nothing). Kept are those of the last 30 days, but not many more than 1000. Errors: 22023; 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._compact_operations() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF pg_table_size('weir.operation') + pg_table_size('weir.operation_step') <= greatest(1048576, 2 * pg_sequence_last_value('weir.operation_bytes')) THEN
    RETURN NULL;
  END IF;
  LOCK TABLE weir.operation, weir.operation_step, weir.operation_mark IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep_step ON COMMIT DROP AS SELECT DISTINCT ON (s.operation) s.* FROM weir.operation_step s ORDER BY s.operation, s.no DESC;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT o.* FROM (SELECT o.*, row_number() OVER (ORDER BY o.id DESC) AS nr FROM weir.operation o) o JOIN pg_temp.weir_keep_step s ON s.operation = o.id
    WHERE s.state = 'running' OR o.nr <= 1000 AND o.at > clock_timestamp() - interval '30 days';
  CREATE TEMP TABLE weir_keep_mark ON COMMIT DROP AS SELECT m.* FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  TRUNCATE weir.operation, weir.operation_step, weir.operation_mark;
  INSERT INTO weir.operation_mark (no, upto) SELECT m.no, m.upto FROM pg_temp.weir_keep_mark m;
  INSERT INTO weir.operation (id, at, by, what, filter, to_queue, to_priority) SELECT k.id, k.at, k.by, k.what, k.filter, k.to_queue, k.to_priority FROM pg_temp.weir_keep k;
  INSERT INTO weir.operation_step SELECT s.* FROM pg_temp.weir_keep_step s JOIN pg_temp.weir_keep k ON k.id = s.operation;
  PERFORM setval('weir.operation_bytes', pg_table_size('weir.operation') + pg_table_size('weir.operation_step'));
  RETURN 'compacted operations';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._compact_operations IS
  'Compacts weir.operation and weir.operation_step, when they have 1 MB and twice what was left the last time: to the operations that have not ended, and of the others to the newest 1000 of the last 30 days, each with its newest step; and weir.operation_mark with them. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on the three. Isolation: READ COMMITTED.';
