-- Enqueueing. Every path assigns the transaction's xid before it draws an id. A reader of the id
-- counter therefore finds the transaction of each drawn id in its next snapshot, as visible or
-- as in progress. The wake-up of idle workers relies on this (see Wake-ups in ARCHITECTURE.md).

CREATE OR REPLACE FUNCTION weir._queue_id(name text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
SET enable_seqscan = off  -- the plan is kept when thousands of queues have been created
AS $$
DECLARE
  found_id integer;
BEGIN
  -- OFFSET 0: otherwise a plan may look for the name in the order of ids, from the first queue on.
  SELECT min(k.id) INTO found_id FROM (SELECT q.id FROM weir.queue q WHERE q.name = _queue_id.name OFFSET 0) k;
  IF found_id IS NULL THEN
    PERFORM weir._check_new_queue(_queue_id.name);
    -- Names are not unique, on purpose: with a unique index, the second transaction that uses a
    -- new name would wait for the first to commit.
    INSERT INTO weir.queue (name) VALUES (_queue_id.name) RETURNING id INTO found_id;
    PERFORM nextval('weir.control');
  END IF;
  RETURN found_id;
END
$$;
COMMENT ON FUNCTION weir._queue_id IS 'The id of a queue, which is created if the name is new. Errors: 22023 (a new name begins or ends with a blank). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_key(key text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF length(_check_key.key) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'weir: a key must have 1 to 200 characters, got %', length(_check_key.key) USING ERRCODE = '22023', HINT = 'For no key, pass NULL.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_key IS 'Checks the key of a job. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._mark_keys(queue text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- Whatever was in progress when no mark was to be seen may log jobs with keys without leaving one.
  INSERT INTO weir.with_keys (queue, since) SELECT _mark_keys.queue, least(pg_snapshot_xmin(pg_current_snapshot()), pg_current_xact_id())
  WHERE NOT EXISTS (SELECT FROM weir.with_keys w WHERE w.queue = _mark_keys.queue)
$$;
COMMENT ON FUNCTION weir._mark_keys IS 'Notes that a queue has jobs with keys, before the first is logged. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._lane_of(queue text, priority integer, key text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  lane bigint := (weir._queue_id(queue)::bigint << 39) + priority - 1;
BEGIN
  IF key IS NOT NULL THEN
    PERFORM weir._check_key(key), weir._mark_keys(queue);
    lane := lane + weir._key_bits(key);
  END IF;
  RETURN lane;
END
$$;
COMMENT ON FUNCTION weir._lane_of IS 'The lane for a job; creates its queue if the name is new. Errors: 22023. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.enqueue(
  queue        text,
  kind         text,
  args         jsonb       DEFAULT '{}',
  priority     integer     DEFAULT 2,
  run_at       timestamptz DEFAULT NULL,
  max_attempts integer     DEFAULT 25,
  meta         jsonb       DEFAULT NULL,
  key          text        DEFAULT NULL,
  flow         bigint      DEFAULT NULL,
  once         text        DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
  lane     bigint;
  new_id   bigint;
BEGIN
  IF once IS NOT NULL THEN
    RETURN (SELECT e.ids[1] FROM weir._enqueue_many(ARRAY[queue], ARRAY[kind], ARRAY[args], ARRAY[priority], ARRAY[run_at], ARRAY[max_attempts], ARRAY[meta], ARRAY[key], ARRAY[flow], ARRAY[once]) e);
  END IF;
  -- Each transaction initializes each expression again, which costs more than evaluating it: so there are few, and an existing queue's name isn't checked.
  SELECT (q.id::bigint << 39) + priority - 1, pg_current_xact_id() INTO lane, this_xid FROM weir.queue q WHERE q.name = queue ORDER BY q.id LIMIT 1;
  IF (lane > 0 AND key IS NULL AND length(kind) BETWEEN 1 AND 128 AND priority BETWEEN 1 AND 4 AND max_attempts BETWEEN 1 AND 1000 AND meta IS NULL
      AND jsonb_typeof(args) = 'object' AND pg_column_size(args) <= 2000 AND pg_column_compression(args) IS NULL) IS NOT TRUE THEN
    args := coalesce(args, '{}');
    priority := coalesce(priority, 2);
    max_attempts := coalesce(max_attempts, 25);
    PERFORM weir._check_job(queue, kind, args, priority, max_attempts, meta);
    lane := weir._lane_of(queue, priority, key);
    this_xid := pg_current_xact_id();
  END IF;
  IF run_at IS NULL OR run_at <= now() THEN
    INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
    VALUES (nextval('weir.job_id'), this_xid, now(), lane, 1, max_attempts,
            pg_sequence_last_value('weir.active_job'), kind, args, meta, key, flow)
    RETURNING id INTO new_id;
  ELSE
    IF run_at >= '10000-01-01 00:00:00+00' THEN  -- later times have no form in JSON that all clients read
      RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999', run_at USING ERRCODE = '22023';
    END IF;
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
    VALUES (nextval('weir.job_id'), this_xid, run_at, now(), lane, 1, max_attempts,
            pg_sequence_last_value('weir.active_later'), kind, args, meta, key, flow)
    RETURNING id INTO new_id;
  END IF;
  IF flow IS NOT NULL THEN
    PERFORM weir._join_flow(flow, 1);
  END IF;
  RETURN new_id;
END
$$;
COMMENT ON FUNCTION weir.enqueue IS
  'Enqueues a job in the caller''s transaction and returns its id. The job runs after the commit, and never after a rollback; if run_at is given, not before that time. priority: 1 (first) to 4 (NULL: 2); max_attempts: 1 to 1000 (NULL: 25). key: whose job it is (1 to 200 characters), in a queue whose keys are served by turns; NULL: nobody''s. flow: the flow that it is added to (see weir.flow); NULL: none. once: what is to be done once in this flow, in this queue (1 to 1000 characters): the first such job runs, whatever becomes of it, and others are not added; NULL: each is. Returns the id of the earlier job if it is known. If the transactions of both do not see each other, the later one is taken out of the flow, as cancelled, when it would start. Errors: 22023 with the value; 55000 (the flow has ended). Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._once_key(flow bigint, queue text, once text) RETURNS uuid
LANGUAGE sql STABLE  -- without settings of its own, like weir._key_bits
AS $$
  SELECT encode(substr(sha256(convert_to(jsonb_build_array('once', _once_key.flow, _once_key.queue, _once_key.once)::text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
COMMENT ON FUNCTION weir._once_key IS 'The key of jobs that are to be done once in a flow and queue: a hash of 128 bits, which no unique job has. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.enqueue_many(
  queue        text[],
  kind         text[],
  args         jsonb[]       DEFAULT NULL,
  priority     integer[]     DEFAULT NULL,
  run_at       timestamptz[] DEFAULT NULL,
  max_attempts integer[]     DEFAULT NULL,
  meta         jsonb[]       DEFAULT NULL,
  key          text[]        DEFAULT NULL,
  flow         bigint[]      DEFAULT NULL,
  once         text[]        DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER  -- in SQL, it would be planned again by each transaction
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
BEGIN
  RETURN (SELECT e.ids FROM weir._enqueue_many(queue, kind, args, priority, run_at, max_attempts, meta, key, flow, once) e);
END
$$;
COMMENT ON FUNCTION weir.enqueue_many(text[], text[], jsonb[], integer[], timestamptz[], integer[], jsonb[], text[], bigint[], text[]) IS
  'Enqueues up to 10000 jobs from parallel arrays, all or none, and returns their ids in order. NULL for an optional array, or in it, means the default. Errors: 22023 with the value; 55000 (a flow has ended). Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._enqueue_many(
  queue        text[],
  kind         text[],
  args         jsonb[]       DEFAULT NULL,
  priority     integer[]     DEFAULT NULL,
  run_at       timestamptz[] DEFAULT NULL,
  max_attempts integer[]     DEFAULT NULL,
  meta         jsonb[]       DEFAULT NULL,
  key          text[]        DEFAULT NULL,
  flow         bigint[]      DEFAULT NULL,
  once         text[]        DEFAULT NULL,
  OUT ids        bigint[],
  OUT duplicates boolean[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_column
DECLARE
  few        CONSTANT integer := 20;
  n          integer := coalesce(cardinality(_enqueue_many.kind), 0);
  this_xid   xid8;
  in_segment integer;
  names      text[];
  queue_ids  integer[];
  homes      integer[];  -- the queue of each job, as an id; NULL: there are few names, in which each is looked up
  bits       bigint[];  -- of the keys
  hashes     uuid[];    -- of jobs that are to be done once in their flow
  known      bigint[];  -- those that are there already, for which these are not added
  bad        record;
BEGIN
  ids := '{}';
  IF n = 0 AND coalesce(greatest(cardinality(_enqueue_many.queue), cardinality(_enqueue_many.args), cardinality(_enqueue_many.priority), cardinality(_enqueue_many.run_at), cardinality(_enqueue_many.max_attempts),
                                 cardinality(_enqueue_many.meta), cardinality(_enqueue_many.key), cardinality(_enqueue_many.flow), cardinality(_enqueue_many.once)), 0) = 0 THEN
    RETURN;
  ELSIF n > 10000 THEN
    RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', n
      USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
  ELSIF cardinality(_enqueue_many.queue) IS DISTINCT FROM n OR cardinality(_enqueue_many.args) <> n
     OR cardinality(_enqueue_many.priority) <> n OR cardinality(_enqueue_many.run_at) <> n
     OR cardinality(_enqueue_many.max_attempts) <> n OR cardinality(_enqueue_many.meta) <> n OR cardinality(_enqueue_many.key) <> n
     OR cardinality(_enqueue_many.flow) <> n OR cardinality(_enqueue_many.once) <> n THEN
    RAISE EXCEPTION 'weir: the arrays of enqueue_many differ in length: % kinds, % queues, % args, % priorities, % run_ats, % max_attempts, % metas, % keys, % flows, % onces',
      n, cardinality(_enqueue_many.queue), cardinality(_enqueue_many.args), cardinality(_enqueue_many.priority),
      cardinality(_enqueue_many.run_at), cardinality(_enqueue_many.max_attempts), cardinality(_enqueue_many.meta), cardinality(_enqueue_many.key), cardinality(_enqueue_many.flow), cardinality(_enqueue_many.once)
      USING ERRCODE = '22023', HINT = 'Every array needs one element for each job; leave out optional arrays.';
  END IF;

  PERFORM weir._check_array('enqueue_many', 'queue', _enqueue_many.queue), weir._check_array('enqueue_many', 'kind', _enqueue_many.kind),
          weir._check_array('enqueue_many', 'args', _enqueue_many.args), weir._check_array('enqueue_many', 'priority', _enqueue_many.priority),
          weir._check_array('enqueue_many', 'run_at', _enqueue_many.run_at), weir._check_array('enqueue_many', 'max_attempts', _enqueue_many.max_attempts),
          weir._check_array('enqueue_many', 'meta', _enqueue_many.meta), weir._check_array('enqueue_many', 'key', _enqueue_many.key), weir._check_array('enqueue_many', 'flow', _enqueue_many.flow), weir._check_array('enqueue_many', 'once', _enqueue_many.once);
  FOR bad IN
    SELECT u.* FROM unnest(_enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                           _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key)
      WITH ORDINALITY u(queue, kind, args, priority, run_at, max_attempts, meta, key, ord)
    WHERE u.queue IS NULL OR u.queue = '' OR length(u.queue) > 128 OR u.kind IS NULL OR u.kind = '' OR length(u.kind) > 128
       OR jsonb_typeof(u.args) <> 'object'
       OR pg_column_size(u.args) > 2000 AND octet_length(u.args::text) > 1048576  -- elements of an array are not compressed
       OR u.priority NOT BETWEEN 1 AND 4 OR u.max_attempts NOT BETWEEN 1 AND 1000
       OR jsonb_typeof(u.meta) <> 'object' OR octet_length(u.meta::text) > 65536
       OR jsonb_path_exists(u.meta, '$.keyvalue() ? (@.key starts with "weir." && @.key != "weir.otel")', silent => true) OR u.run_at >= '10000-01-01 00:00:00+00'
       OR length(u.key) NOT BETWEEN 1 AND 200
  LOOP
    BEGIN
      PERFORM weir._check_job(bad.queue, bad.kind, coalesce(bad.args, '{}'), coalesce(bad.priority, 2), coalesce(bad.max_attempts, 25), bad.meta), weir._check_key(bad.key);
    EXCEPTION WHEN invalid_parameter_value THEN
      RAISE EXCEPTION '% (job % of %)', SQLERRM, bad.ord, n USING ERRCODE = '22023';
    END;
    IF bad.run_at >= '10000-01-01 00:00:00+00' THEN
      RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999 (job % of %)', bad.run_at, bad.ord, n USING ERRCODE = '22023';
    END IF;
  END LOOP;

  SELECT array_agg(d.name), array_agg(weir._queue_id(d.name)) INTO names, queue_ids
  FROM (SELECT u.name FROM unnest(_enqueue_many.queue) u(name) GROUP BY u.name ORDER BY u.name COLLATE "C") d;
  IF cardinality(names) > few THEN
    homes := ARRAY(SELECT queue_ids[r.place] FROM (SELECT u.ord, dense_rank() OVER (ORDER BY u.name COLLATE "C") AS place FROM unnest(_enqueue_many.queue) WITH ORDINALITY u(name, ord)) r ORDER BY r.ord);
  END IF;

  IF _enqueue_many.key IS NOT NULL THEN
    bits := ARRAY(SELECT CASE WHEN u.key IS NULL THEN 0 ELSE weir._key_bits(u.key) END FROM unnest(_enqueue_many.key) u(key));
    PERFORM weir._mark_keys(d.name) FROM (SELECT DISTINCT u.name FROM unnest(_enqueue_many.queue, _enqueue_many.key) u(name, key) WHERE u.key IS NOT NULL) d;
  END IF;
  IF _enqueue_many.once IS NOT NULL THEN
    SELECT k.hashes, k.known INTO hashes, known FROM weir._known_once(_enqueue_many.queue, _enqueue_many.flow, _enqueue_many.once) k;
    INSERT INTO weir.keyed (queue) SELECT DISTINCT u.queue FROM unnest(_enqueue_many.queue, hashes) u(queue, hash)
    WHERE u.hash IS NOT NULL AND NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = u.queue);
  END IF;
  this_xid := pg_current_xact_id();
  in_segment := pg_sequence_last_value('weir.active_job');  -- one segment for all: a row that leads is truncated no earlier than the rows that follow it
  SELECT array_agg(nextval('weir.job_id')) INTO ids FROM generate_series(1, n);

  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, key, flow, unique_key)
  SELECT u.id, this_xid, now(), u.lane, 1, coalesce(u.max_attempts, 25), in_segment,
         lag(u.lane) OVER () IS DISTINCT FROM u.lane, u.kind, coalesce(u.args, '{}'), u.meta, u.key, u.flow, u.hash
  FROM (SELECT u.*, (coalesce(u.home, queue_ids[array_position(names, u.queue)])::bigint << 39) + coalesce(u.priority, 2) - 1
                           + coalesce(u.bits, 0) AS lane
        FROM unnest(ids, _enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                    _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key, bits, _enqueue_many.flow, hashes, known, homes)
          u(id, queue, kind, args, priority, run_at, max_attempts, meta, key, bits, flow, hash, known, home)
        WHERE (u.run_at IS NULL OR u.run_at <= now()) AND u.known IS NULL) u;

  IF _enqueue_many.run_at IS NOT NULL THEN
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow, unique_key)
    SELECT u.id, this_xid, u.run_at, now(), (coalesce(u.home, queue_ids[array_position(names, u.queue)])::bigint << 39) + coalesce(u.priority, 2) - 1
             + coalesce(u.bits, 0), 1,
           coalesce(u.max_attempts, 25), pg_sequence_last_value('weir.active_later'), u.kind, coalesce(u.args, '{}'), u.meta, u.key, u.flow, u.hash
    FROM unnest(ids, _enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key, bits, _enqueue_many.flow, hashes, known, homes)
      u(id, queue, kind, args, priority, run_at, max_attempts, meta, key, bits, flow, hash, known, home)
    WHERE u.run_at > now() AND u.known IS NULL;
  END IF;
  IF _enqueue_many.flow IS NOT NULL THEN
    PERFORM weir._join_flow(u.flow, count(*)) FROM unnest(_enqueue_many.flow, known) u(flow, known) WHERE u.flow IS NOT NULL AND u.known IS NULL GROUP BY u.flow;
  END IF;
  IF known IS NOT NULL THEN
    duplicates := ARRAY(SELECT k IS NOT NULL FROM unnest(known) WITH ORDINALITY u(k, nr) ORDER BY u.nr);
    -- Of those that occur twice in this call, the first is added.
    ids := ARRAY(SELECT CASE WHEN k < 0 THEN ids[- k] ELSE coalesce(k, ids[u.nr]) END FROM unnest(known) WITH ORDINALITY u(k, nr) ORDER BY u.nr);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._enqueue_many IS
  'Does what weir.enqueue_many does, and also returns which of the jobs were not added because they are to be done once in their flow, and are there already; NULL: none. Errors, locks and isolation: as for weir.enqueue_many.';

CREATE OR REPLACE FUNCTION weir._known_once(queues text[], flows bigint[], onces text[], OUT hashes uuid[], OUT known bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  bad record;
BEGIN
  SELECT u.* INTO bad FROM unnest(_known_once.flows, _known_once.onces) WITH ORDINALITY u(flow, once, nr)
  WHERE u.once IS NOT NULL AND (u.flow IS NULL OR length(u.once) NOT BETWEEN 1 AND 1000) ORDER BY u.nr LIMIT 1;
  IF bad.nr IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % (job % of %)', CASE WHEN bad.flow IS NULL THEN format('once is %s, and flow is null', to_json(left(bad.once, 100))) ELSE format('once must have 1 to 1000 characters, got %s', length(bad.once)) END,
      bad.nr, cardinality(_known_once.onces) USING ERRCODE = '22023', HINT = CASE WHEN bad.flow IS NULL THEN 'A job is done once in a flow: pass the id of the flow that it is added to. Without a flow, see weir.enqueue_unique.' ELSE 'Pass what names the job, or a hash of it.' END;
  END IF;
  hashes := ARRAY(SELECT CASE WHEN u.once IS NOT NULL THEN weir._once_key(u.flow, u.queue, u.once) END
                  FROM unnest(_known_once.queues, _known_once.flows, _known_once.onces) WITH ORDINALITY u(queue, flow, once, nr) ORDER BY u.nr);
  -- In a block that is rolled back, which releases its locks, as in enqueue_unique. What a segment that is just being emptied may hide is found by the claim.
  BEGIN
    known := ARRAY(
      SELECT CASE WHEN u.hash IS NOT NULL THEN coalesce(
        (SELECT s.job FROM weir.seen s WHERE s.key = u.hash LIMIT 1),
        (SELECT j.id FROM weir.job j WHERE j.unique_key = u.hash LIMIT 1),
        (SELECT l.id FROM weir.later l WHERE l.unique_key = u.hash LIMIT 1),
        - nullif(min(u.nr) OVER (PARTITION BY u.hash), u.nr)) END
      FROM unnest(hashes) WITH ORDINALITY u(hash, nr) ORDER BY u.nr);
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
END
$$;
COMMENT ON FUNCTION weir._known_once IS
  'The keys of jobs that are to be done once in their flows, and the ids of those that are there already, as far as this snapshot shows: known, NULL: none; a negative one is the place, in these arrays, of the first of several. Errors: 22023. Locks: none that outlast the call. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.enqueue_many(jobs jsonb) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  RETURN (SELECT e.ids FROM weir._enqueue_json(jobs) e);
END
$$;
COMMENT ON FUNCTION weir.enqueue_many(jsonb) IS
  'Enqueues up to 10000 jobs, all or none, and returns their ids in order. jobs is a JSON array of objects whose keys are the arguments of enqueue; and unique, if it is to be enqueued only if it is no duplicate: an object whose keys are the arguments of enqueue_unique that enqueue does not have (its unique_key is called key there), or true. The id of a duplicate is that of the earlier job. Errors: 22023 with the job''s number and the value. Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._enqueue_json(jobs jsonb, OUT ids bigint[], OUT duplicates boolean[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  bad     text;
  r       record;
  plain   record;
  uniques record;
BEGIN
  IF jobs IS NULL OR jsonb_typeof(jobs) <> 'array' THEN
    RAISE EXCEPTION 'weir: enqueue_many takes a JSON array of jobs, got %', coalesce('a JSON ' || jsonb_typeof(jobs), 'null')
      USING ERRCODE = '22023';
  END IF;
  SELECT format('job %s must be a JSON object, got a JSON %s', e.ord, jsonb_typeof(e.job)) INTO bad
  FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord) WHERE jsonb_typeof(e.job) <> 'object' LIMIT 1;
  IF bad IS NULL THEN
    SELECT format('job %s has an unknown key %s', e.ord, to_json(k.key)) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord), jsonb_object_keys(e.job) k(key)
    WHERE k.key NOT IN ('queue', 'kind', 'args', 'priority', 'run_at', 'max_attempts', 'meta', 'key', 'unique', 'flow', 'once') LIMIT 1;
  END IF;
  IF bad IS NULL THEN
    SELECT format('job %s has a unique that must be true, false or an object with some of key, fields, until, within, replace and wait, got %s', e.ord,
                  CASE WHEN k.key IS NULL THEN 'a JSON ' || jsonb_typeof(e.job -> 'unique') ELSE 'the key ' || to_json(left(k.key, 100)) END) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
    LEFT JOIN LATERAL (SELECT k.key FROM jsonb_object_keys(CASE jsonb_typeof(e.job -> 'unique') WHEN 'object' THEN e.job -> 'unique' ELSE '{}' END) k(key)
                       WHERE k.key NOT IN ('key', 'fields', 'until', 'within', 'replace', 'wait') ORDER BY 1 LIMIT 1) k ON true
    WHERE jsonb_typeof(e.job -> 'unique') <> ALL (ARRAY['object', 'boolean', 'null']) OR k.key IS NOT NULL LIMIT 1;
  END IF;
  IF bad IS NULL THEN
    SELECT format('job %s is unique and has a %s, which is not possible', e.ord, k.name) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord) CROSS JOIN (VALUES ('flow'), ('once')) k(name)
    WHERE coalesce(e.job -> 'unique', 'null') NOT IN ('null', 'false') AND coalesce(e.job -> k.name, 'null') <> 'null' LIMIT 1;
  END IF;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'weir: %', bad
      USING ERRCODE = '22023', HINT = 'A job is {"queue": ..., "kind": ...}, optionally with args, priority, run_at, max_attempts, meta, key, flow, once and unique.';
  END IF;
  IF jsonb_path_exists(jobs, '$[*].unique ? (@.type() == "object" || @ == true)') THEN
    IF jsonb_array_length(jobs) > 10000 THEN
      RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', jsonb_array_length(jobs)
        USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
    END IF;
    PERFORM weir._check_types(jobs);
    SELECT jsonb_agg(e.job ORDER BY e.ord) FILTER (WHERE NOT e.is_unique) AS plain,
           jsonb_agg(e.job - 'unique' || CASE WHEN jsonb_typeof(e.job -> 'unique') = 'object' THEN (e.job -> 'unique') - 'key' || jsonb_build_object('unique_key', e.job -> 'unique' -> 'key') ELSE '{}' END
                     ORDER BY e.ord) FILTER (WHERE e.is_unique) AS uniques,
           array_agg(e.is_unique ORDER BY e.ord) AS is_unique
      INTO r
    FROM (SELECT e.*, coalesce(e.job -> 'unique', 'null') NOT IN ('null', 'false') AS is_unique FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)) e;
    SELECT e.ids, e.duplicates INTO plain FROM weir._enqueue_json(coalesce(r.plain, '[]')) e;
    SELECT array_agg(u.id ORDER BY u.ord) AS ids, array_agg(u.duplicate ORDER BY u.ord) AS duplicates INTO uniques FROM weir._enqueue_unique_many(r.uniques) WITH ORDINALITY u(id, duplicate, ord);
    SELECT array_agg(CASE WHEN k.is_unique THEN uniques.ids[k.nr] ELSE plain.ids[k.nr] END ORDER BY k.ord),
           array_agg(CASE WHEN k.is_unique THEN uniques.duplicates[k.nr] ELSE coalesce(plain.duplicates[k.nr], false) END ORDER BY k.ord)
      INTO ids, duplicates
    FROM (SELECT i.*, row_number() OVER (PARTITION BY i.is_unique ORDER BY i.ord) AS nr FROM unnest(r.is_unique) WITH ORDINALITY i(is_unique, ord)) k;
    RETURN;
  END IF;
  BEGIN
    SELECT array_agg(x.queue ORDER BY e.ord) AS queue, array_agg(x.kind ORDER BY e.ord) AS kind,
           array_agg(coalesce(x.args, '{}') ORDER BY e.ord) AS args, array_agg(x.priority ORDER BY e.ord) AS priority,
           array_agg(x.run_at ORDER BY e.ord) AS run_at, array_agg(x.max_attempts ORDER BY e.ord) AS max_attempts,
           array_agg(x.meta ORDER BY e.ord) AS meta, CASE WHEN count(x.key) > 0 THEN array_agg(x.key ORDER BY e.ord) END AS key,
           CASE WHEN count(x.flow) > 0 THEN array_agg(x.flow ORDER BY e.ord) END AS flow, CASE WHEN count(x.once) > 0 THEN array_agg(x.once ORDER BY e.ord) END AS once
      INTO r
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord),
         jsonb_to_record(e.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint, once text);
  EXCEPTION WHEN data_exception THEN
    PERFORM weir._check_types(jobs);
    RAISE;
  END;
  SELECT e.ids, e.duplicates INTO ids, duplicates FROM weir._enqueue_many(r.queue, r.kind, r.args, r.priority, r.run_at, r.max_attempts, r.meta, r.key, r.flow, r.once) e;
END
$$;
COMMENT ON FUNCTION weir._enqueue_json IS
  'Does what weir.enqueue_many(jsonb) does, and also returns which of the jobs are duplicates of earlier ones, or to be done once in their flow and there already; NULL: none. Errors, locks and isolation: as for weir.enqueue_many.';

CREATE OR REPLACE FUNCTION weir._check_types(jobs jsonb) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  r record;
BEGIN
  BEGIN
    PERFORM x.* FROM jsonb_array_elements(jobs) e(job)
    CROSS JOIN LATERAL jsonb_to_record(e.job || CASE jsonb_typeof(e.job -> 'unique') WHEN 'object' THEN (e.job -> 'unique') - 'key' ELSE '{}' END)
      x(priority integer, run_at timestamptz, max_attempts integer, flow bigint, fields text[], within interval, replace boolean, wait boolean);
    RETURN;
  EXCEPTION WHEN data_exception THEN
    NULL;
  END;
  FOR r IN
    SELECT e.ord, f.name, f.must_be, f.value FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
    CROSS JOIN LATERAL (VALUES ('priority', 'a whole number', e.job -> 'priority'), ('run_at', 'a time', e.job -> 'run_at'), ('max_attempts', 'a whole number', e.job -> 'max_attempts'), ('flow', 'the id of a flow', e.job -> 'flow'),
                               ('fields', 'an array of texts', e.job -> 'unique' -> 'fields'), ('within', 'an interval', e.job -> 'unique' -> 'within'),
                               ('replace', 'true or false', e.job -> 'unique' -> 'replace'), ('wait', 'true or false', e.job -> 'unique' -> 'wait')) f(name, must_be, value)
    WHERE f.value IS NOT NULL ORDER BY e.ord
  LOOP
    BEGIN
      PERFORM x.* FROM jsonb_to_record(jsonb_build_object(r.name, r.value))
        x(priority integer, run_at timestamptz, max_attempts integer, flow bigint, fields text[], within interval, replace boolean, wait boolean);
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION 'weir: job % of %: % must be %, got %', r.ord, jsonb_array_length(jobs), r.name, r.must_be, left(r.value::text, 100) USING ERRCODE = '22023';
    END;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._check_types IS 'Raises 22023 with the job''s number and the value if a field of a job for weir.enqueue_many(jsonb) does not have its type. Locks: none. Isolation: any.';
