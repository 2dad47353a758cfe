-- Checks that functions make before they do anything else.

CREATE OR REPLACE FUNCTION weir._check_isolation(caller text, with_others boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'weir: % needs READ COMMITTED, this transaction is %', caller, upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'WR004', HINT = CASE WHEN with_others THEN 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.' ELSE 'Call it in autocommit, or begin with ISOLATION LEVEL READ COMMITTED.' END;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_isolation IS 'Raises WR004 unless the transaction is READ COMMITTED, because the caller relies on a new snapshot for each statement. with_others: it belongs into a transaction with other statements.';

CREATE OR REPLACE FUNCTION weir._hold_briefly() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  timeout interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
  IF timeout = interval '0' OR timeout > interval '10 seconds' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '10s', true);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._hold_briefly IS
  'For functions that take locks that others wait for, and are called in autocommit: if the transaction is left open, the server ends the session, and thereby releases the locks, once it has been idle for 10 seconds.';

CREATE OR REPLACE FUNCTION weir._commit_synchronously() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._commit_synchronously IS
  'Makes the transaction survive a crash once its commit is acknowledged, even if synchronous_commit is off for the role.';

CREATE OR REPLACE FUNCTION weir._held(class integer, mode text) RETURNS SETOF integer
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT l.objid::bigint::bit(32)::integer FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.classid = _held.class AND l.objsubid = 2 AND l.mode = _held.mode AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
COMMENT ON FUNCTION weir._held IS
  'The second keys of the advisory locks of a class that are held in this database in a mode: by sessions, open transactions and prepared transactions. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_cluster() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') <> (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    RAISE EXCEPTION 'weir: this log comes from another cluster, whose transaction ids mean nothing here'
      USING ERRCODE = 'WR003', HINT = 'The database was restored or moved: call weir.rebase().';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_cluster IS
  'Raises WR003 if the log comes from another cluster. Functions that compare transaction ids call it first, every time: behind a pooler a session survives a move to another cluster, and the new counter may have passed the old positions. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_cluster_once() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  named text := (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster');
BEGIN
  IF named IS DISTINCT FROM current_setting('weir.cluster', true) THEN
    PERFORM weir._check_cluster(), set_config('weir.cluster', named, false);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_cluster_once IS
  'As _check_cluster, for functions that are called often: a session never changes its cluster, so it looks once for each cluster that the log names. Errors: WR003. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_message_cluster() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') <> (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    RAISE EXCEPTION 'weir: the log of messages comes from another cluster, whose transaction ids mean nothing here'
      USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_message_cluster IS 'Raises WR003 if the log of messages comes from another cluster. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_array(caller text, name text, given anyarray, is_filled boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF array_lower(given, 1) <> 1 OR array_ndims(given) <> 1 THEN
    RAISE EXCEPTION 'weir: % needs a list as %, got an array with the dimensions %', caller, name, array_dims(given)
      USING ERRCODE = '22023', HINT = 'Pass an array of one dimension whose first index is 1.';
  ELSIF is_filled AND array_position(given, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % got a null in %, as its element %', caller, name, array_position(given, NULL) USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_array IS
  'Raises 22023 unless an array is a list: of one dimension that begins at 1, and without nulls if is_filled. Parallel arrays are matched by index, so an array of another shape would be misread. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_job(
  queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF _check_job.queue IS NULL OR _check_job.queue = '' THEN
    RAISE EXCEPTION 'weir: a job needs a queue, but its queue is %', CASE WHEN _check_job.queue IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'Name the queue, for example queue => ''default''.';
  ELSIF length(_check_job.queue) > 128 THEN
    RAISE EXCEPTION 'weir: queue name too long: % characters, at most 128 are allowed', length(_check_job.queue)
      USING ERRCODE = '22023';
  ELSIF _check_job.kind IS NULL OR _check_job.kind = '' THEN
    RAISE EXCEPTION 'weir: a job needs a kind, but its kind is %', CASE WHEN _check_job.kind IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'The kind determines which handler runs the job.';
  ELSIF length(_check_job.kind) > 128 THEN
    RAISE EXCEPTION 'weir: kind too long: % characters, at most 128 are allowed', length(_check_job.kind)
      USING ERRCODE = '22023';
  ELSIF _check_job.args IS NULL OR jsonb_typeof(_check_job.args) <> 'object' THEN
    RAISE EXCEPTION 'weir: args must be a JSON object, got %', coalesce('a JSON ' || jsonb_typeof(_check_job.args), 'null')
      USING ERRCODE = '22023', HINT = 'Wrap the value, for example {"value": 1}.';
  ELSIF octet_length(_check_job.args::text) > 1048576 THEN
    RAISE EXCEPTION 'weir: args too large: % bytes, at most 1048576 are allowed', octet_length(_check_job.args::text)
      USING ERRCODE = '22023', HINT = 'Store large data elsewhere and put a reference to it into args.';
  ELSIF _check_job.priority IS NULL OR _check_job.priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: unknown priority %: priorities are 1 (first) to 4', coalesce(_check_job.priority::text, 'null')
      USING ERRCODE = '22023';
  ELSIF _check_job.max_attempts IS NULL OR _check_job.max_attempts NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: max_attempts must be 1 to 1000, got %', coalesce(_check_job.max_attempts::text, 'null')
      USING ERRCODE = '22023';
  ELSIF _check_job.meta IS NOT NULL THEN
    IF jsonb_typeof(_check_job.meta) <> 'object' THEN
      RAISE EXCEPTION 'weir: meta must be a JSON object, got a JSON %', jsonb_typeof(_check_job.meta)
        USING ERRCODE = '22023';
    ELSIF octet_length(_check_job.meta::text) > 65536 THEN
      RAISE EXCEPTION 'weir: meta too large: % bytes, at most 65536 are allowed', octet_length(_check_job.meta::text)
        USING ERRCODE = '22023';
    ELSIF jsonb_path_exists(_check_job.meta, '$.keyvalue() ? (@.key starts with "weir." && @.key != "weir.otel")') THEN
      RAISE EXCEPTION 'weir: the key % of meta is reserved for Weir', (SELECT to_json(left(k, 100)) FROM jsonb_object_keys(_check_job.meta) k WHERE k LIKE 'weir.%' AND k <> 'weir.otel' ORDER BY k LIMIT 1)
        USING ERRCODE = '22023', HINT = 'Choose a key that does not begin with "weir.".';
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_job IS
  'Raises 22023 with the offending value if a job is not valid. The sizes of args and meta are those of their texts, which workers receive: a column of another table may hold 50 MB in a few compressed bytes, and 1e100000 takes 12. Callers may skip the check of sizes for values of at most 2000 bytes, whose texts never exceed 16 MB. Keys of meta that begin with weir. are written by Weir''s own functions, and weir.otel by clients that trace. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_new_queue(name text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF _check_new_queue.name ~ '^[[:space:]]|[[:space:]]$' THEN
    RAISE EXCEPTION 'weir: the queue name % begins or ends with a blank', to_json(left(_check_new_queue.name, 200)) USING ERRCODE = '22023', HINT = 'Leave it out: it would be another queue than the one without.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_new_queue IS 'Raises 22023 if a queue should not be created with this name, because it is easily taken for another. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_message(channel text, bytes integer) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  max_bytes integer;
BEGIN
  IF current_setting('weir.cut', true) <> '' THEN
    RAISE EXCEPTION 'weir: this transaction can''t publish any more, because it has cut tick % itself', current_setting('weir.cut')
      USING ERRCODE = 'WR004', HINT = 'Publish in another transaction. Call publish_drafts with cuts in autocommit.';
  ELSIF _check_message.channel IS NULL OR _check_message.channel = '' THEN
    RAISE EXCEPTION 'weir: the channel name is %', CASE WHEN _check_message.channel IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023';
  ELSIF octet_length(_check_message.channel) > 255 THEN
    RAISE EXCEPTION 'weir: channel name too long: % bytes, at most 255 are allowed', octet_length(_check_message.channel)
      USING ERRCODE = '22023';
  END IF;
  IF _check_message.bytes > 8000 THEN
    SELECT s.value::integer INTO max_bytes FROM weir.setting s WHERE s.name = 'message_bytes';
    IF _check_message.bytes > max_bytes THEN
      RAISE EXCEPTION 'weir: payload too large: % bytes, at most % are allowed', _check_message.bytes, max_bytes
        USING ERRCODE = '22023',
              HINT = 'Publish a reference to the data, or raise the limit: SELECT weir.set(''message_bytes'', ...).';
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_message IS
  'Raises 22023 with the offending value if a message is not valid, and WR004 if its transaction has already cut a tick of its own. Up to 8000 bytes are always allowed, so small payloads don''t need a query for the setting message_bytes. Locks: none. Isolation: any.';
