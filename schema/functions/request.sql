-- Requests to enqueue that may be repeated. Who asks over a network may get no answer, and can't know whether the jobs are enqueued. So a request may
-- have a key: a row in weir.request, of the same transaction as the jobs, holds the answer for a day. Unique jobs are not enough for it: a job can be
-- unique for one reason only, is forgotten when it is cancelled or its segment is reclaimed, and can't hold the answer for a list.

CREATE OR REPLACE FUNCTION weir._enqueue_request(request uuid, jobs jsonb, OUT ids bigint[], OUT duplicates boolean[], OUT repeated boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  -- The text of a jsonb has one form, whatever the order in which its keys were written.
  this  CONSTANT uuid := encode(substr(sha256(convert_to(jobs::text, 'UTF8')), 1, 16), 'hex')::uuid;
  known record;
BEGIN
  PERFORM weir._check_isolation('a request with a key', true), pg_advisory_xact_lock(1464158563, hashtext(request::text));
  -- In a statement of its own, which sees what others have committed while this one waited.
  SELECT r.body, r.ids, r.duplicates INTO known FROM weir.request r WHERE r.key = request AND r.at > now() - interval '1 day' ORDER BY r.at DESC LIMIT 1;
  repeated := FOUND;
  IF NOT repeated THEN
    SELECT e.ids, e.duplicates INTO ids, duplicates FROM weir._enqueue_json(jobs) e;
    IF true <> ALL (duplicates) THEN
      duplicates := NULL;
    END IF;
    INSERT INTO weir.request (key, body, at, ring, ids, duplicates) VALUES (request, this, now(), pg_sequence_last_value('weir.active_request'), ids, duplicates);
  ELSIF known.body <> this THEN
    RAISE EXCEPTION 'weir: the key of this request was used with other jobs less than a day ago' USING ERRCODE = 'WR007', HINT = 'Repeat a request as it was, and use a new key for another one.';
  ELSE
    ids := known.ids;
    duplicates := known.duplicates;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._enqueue_request IS
  'Does what weir.enqueue_many(jsonb) does, unless a request with the same key was committed less than a day ago: then it returns what that one did, and repeated is true. duplicates: which of the jobs are there already; NULL: none. Of several at the same time, one enqueues, and the others wait for it. A request that is refused, or rolled back, is not kept. Errors: WR007 (the key was used with other jobs); WR004 (not in READ COMMITTED); those of weir.enqueue_many. Locks: advisory: the request''s key (exclusive, to the end of the transaction); otherwise as for weir.enqueue_many. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._enqueue_requests(requests uuid[], jobs text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  mine bigint[];
  ids  bigint[];
BEGIN
  PERFORM weir._check_isolation('requests with keys', true);
  mine := ARRAY(SELECT min(u.ord) FROM unnest(requests) WITH ORDINALITY u(key, ord) GROUP BY u.key HAVING pg_try_advisory_xact_lock(1464158563, hashtext(u.key::text)));
  -- In a statement of its own, which sees what those have committed that had the locks before.
  mine := ARRAY(SELECT m FROM unnest(mine) m WHERE NOT EXISTS (SELECT FROM weir.request r WHERE r.key = requests[m] AND r.at > now() - interval '1 day'));
  WITH done AS MATERIALIZED (
    SELECT u.key, u.ord, u.job, weir.enqueue(x.queue, x.kind, x.args, x.priority, x.run_at, x.max_attempts, x.meta, x.key, x.flow) AS id
    FROM unnest(requests, jobs::jsonb[]) WITH ORDINALITY u(key, job, ord)
    CROSS JOIN LATERAL jsonb_to_record(u.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint)
    WHERE u.ord = ANY (mine)
  ), kept AS (
    INSERT INTO weir.request (key, body, at, ring, ids)
    SELECT d.key, encode(substr(sha256(convert_to(jsonb_build_array(d.job)::text, 'UTF8')), 1, 16), 'hex')::uuid, now(), pg_sequence_last_value('weir.active_request'), ARRAY[d.id] FROM done d
  )
  SELECT array_agg(d.id ORDER BY o.ord) INTO ids FROM generate_series(1, cardinality(requests)) o(ord) LEFT JOIN done d ON d.ord = o.ord;
  RETURN ids;
END
$$;
COMMENT ON FUNCTION weir._enqueue_requests IS
  'Does what weir._enqueue_request does for requests of one job each, which weir.enqueue takes, together, and returns the ids of their jobs. NULL: nothing was done, because the key was used before, or another transaction, or an earlier one of these requests, is using it: call weir._enqueue_request. So nobody is waited for. Errors: WR004 (not in READ COMMITTED); those of weir.enqueue, for which none of the jobs is enqueued. Locks: advisory: the requests'' keys (exclusive, tried, to the end of the transaction); otherwise as for weir.enqueue. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._turn_requests() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
DECLARE
  active  integer := pg_sequence_last_value('weir.active_request');
  other   integer := 3 - active;
  is_full boolean;
  is_old  boolean;
BEGIN
  IF pg_relation_size('weir.request_' || active) = 0 THEN
    RETURN NULL;
  END IF;
  is_full := pg_total_relation_size('weir.request_' || active) > (SELECT s.value::bigint / 8 FROM weir.setting s WHERE s.name = 'retention_bytes');
  IF NOT is_full THEN
    -- Its first row in the order of storage is about its oldest.
    EXECUTE format('SELECT r.at < clock_timestamp() - interval ''1 day'' FROM weir.request_%s r LIMIT 1', active) INTO is_old;
  END IF;
  IF NOT (is_full OR coalesce(is_old, false)) THEN
    RETURN NULL;
  ELSIF pg_relation_size('weir.request_' || other) = 0 THEN
    PERFORM setval('weir.active_request', other);
    RETURN 'opened request ' || other;
  END IF;
  -- Since its last row came, the active one was written to for a day, unless space is short.
  EXECUTE format('LOCK TABLE weir.request_%s IN ACCESS EXCLUSIVE MODE NOWAIT', other);
  EXECUTE format('TRUNCATE weir.request_%s', other);
  RETURN 'emptied request ' || other;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._turn_requests IS
  'When the active table of weir.request is a day old, or has an eighth of retention_bytes: empties the other one, and in the next call opens it. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';
