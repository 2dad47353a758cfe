-- What every way in checks before it does anything.

CREATE OR REPLACE FUNCTION weir._check_isolation(caller text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'weir: % needs READ COMMITTED, this transaction is %', caller, upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit, or begin with ISOLATION LEVEL READ COMMITTED.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_isolation IS 'Raises WR004 unless the transaction is READ COMMITTED: what the caller does relies on a new snapshot for each statement.';

CREATE OR REPLACE FUNCTION weir._hold_briefly() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  own interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
  IF own = interval '0' OR own > interval '10 seconds' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '10s', true);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._hold_briefly IS
  'For whatever takes locks that others wait for, to be called in autocommit: in a transaction that is left open, the server ends the session when it has been idle for 10 seconds, and the locks with it.';

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
COMMENT ON FUNCTION weir._commit_synchronously IS 'Has the transaction survive a crash once it is acknowledged, whatever the role''s own taste.';

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
  'The second keys of the advisory locks of a class that are held in this database in a mode, by sessions, open transactions and prepared ones. Locks: none. Isolation: any.';

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
  'Raises WR003 when the log comes from another cluster. Whatever compares transaction ids calls it first, every time: behind a pooler a session outlives a move, and the new counter may have passed the old positions. Locks: none. Isolation: any.';

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
COMMENT ON FUNCTION weir._check_message_cluster IS 'Raises WR003 when the log of messages comes from another cluster. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_array(caller text, name text, given anyarray, is_filled boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF array_lower(given, 1) <> 1 OR array_ndims(given) <> 1 THEN
    RAISE EXCEPTION 'weir: % takes a list as %, and this array is %', caller, name, array_dims(given)
      USING ERRCODE = '22023', HINT = 'Give an array of one dimension that begins at 1.';
  ELSIF is_filled AND array_position(given, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % got a null in %, as its element %', caller, name, array_position(given, NULL) USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_array IS
  'Raises 22023 unless an array is a list: of one dimension that begins at 1, and without nulls where it is to be filled. Where arrays go together, by place, any other shape would mean something else. Locks: none. Isolation: any.';

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
    RAISE EXCEPTION 'weir: a job needs a queue, and this one is %', CASE WHEN _check_job.queue IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'Name the queue, for example queue => ''default''.';
  ELSIF length(_check_job.queue) > 128 THEN
    RAISE EXCEPTION 'weir: queue name too long: % characters, at most 128 are allowed', length(_check_job.queue)
      USING ERRCODE = '22023';
  ELSIF _check_job.kind IS NULL OR _check_job.kind = '' THEN
    RAISE EXCEPTION 'weir: a job needs a kind, and this one is %', CASE WHEN _check_job.kind IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'The kind tells workers which handler runs the job.';
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
  ELSIF _check_job.meta IS NOT NULL AND jsonb_typeof(_check_job.meta) <> 'object' THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object, got a JSON %', jsonb_typeof(_check_job.meta)
      USING ERRCODE = '22023';
  ELSIF octet_length(_check_job.meta::text) > 65536 THEN
    RAISE EXCEPTION 'weir: meta too large: % bytes, at most 65536 are allowed', octet_length(_check_job.meta::text)
      USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_job IS
  'Raises 22023 with the offending value when a job is not well-formed. What args and meta take is counted as text, as workers get them: a column of another table may hold 50 MB in a few compressed bytes, and 1e100000 takes 12. Callers spare it those of at most 2000 bytes, which are never more than 16 MB as text. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_message(channel text, bytes integer) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  most integer;
BEGIN
  IF current_setting('weir.cut', true) <> '' THEN
    RAISE EXCEPTION 'weir: this transaction has cut tick % itself, and what it published now would be in none', current_setting('weir.cut')
      USING ERRCODE = 'WR004', HINT = 'Publish in another transaction: publish_drafts with cuts is for autocommit.';
  ELSIF _check_message.channel IS NULL OR _check_message.channel = '' THEN
    RAISE EXCEPTION 'weir: the channel name is %', CASE WHEN _check_message.channel IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023';
  ELSIF octet_length(_check_message.channel) > 255 THEN
    RAISE EXCEPTION 'weir: channel name too long: % bytes, at most 255 are allowed', octet_length(_check_message.channel)
      USING ERRCODE = '22023';
  END IF;
  IF _check_message.bytes > 8000 THEN
    SELECT s.value::integer INTO most FROM weir.setting s WHERE s.name = 'message_bytes';
    IF _check_message.bytes > most THEN
      RAISE EXCEPTION 'weir: payload too large: % bytes, at most % are allowed', _check_message.bytes, most
        USING ERRCODE = '22023',
              HINT = 'Publish a reference to the data; or raise the limit: SELECT weir.set(''message_bytes'', ...).';
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_message IS
  'Raises 22023 with the offending value when a message is not well-formed, and WR004 where its transaction has cut a tick of its own already. Up to 8000 bytes are always allowed, so that small ones cost no look at the setting message_bytes. Locks: none. Isolation: any.';
