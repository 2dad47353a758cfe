-- Tasks: named jobs of a flow, each of which comes after others.
--
-- A task is a flow of its own, within another: its job is its first member, and what that adds to it, jobs and flows, belongs to the task. So a task has ended
-- when all of that has, at any depth. It is created at once, and enqueued by the cut that finds that the tasks it comes after have ended (see functions/fold.sql).

CREATE OR REPLACE FUNCTION weir.add_tasks(flow bigint, tasks jsonb) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off  -- names are joined, however many there are
AS $$
#variable_conflict use_column
DECLARE
  n       integer;
  bad     record;
  t       record;     -- the tasks, as arrays
  ids     bigint[];   -- of those that are there already; then of all
  new     boolean[];
  e       record;     -- what comes after what, as arrays
  fresh   bigint;
  first   bigint;     -- the first id of these
BEGIN
  IF add_tasks.flow IS NULL THEN
    RAISE EXCEPTION 'weir: add_tasks got no flow' USING ERRCODE = '22023', HINT = 'Pass an id that weir.flow has returned.';
  ELSIF add_tasks.tasks IS NULL OR jsonb_typeof(add_tasks.tasks) <> 'array' THEN
    RAISE EXCEPTION 'weir: add_tasks takes a JSON array of tasks, got %', coalesce('a JSON ' || jsonb_typeof(add_tasks.tasks), 'null') USING ERRCODE = '22023';
  END IF;
  n := jsonb_array_length(add_tasks.tasks);
  IF n > 10000 THEN
    RAISE EXCEPTION 'weir: % tasks in one call, at most 10000 are allowed', n USING ERRCODE = '22023', HINT = 'Call add_tasks several times in one transaction.';
  ELSIF n = 0 THEN
    RETURN '{}';
  END IF;
  SELECT x.nr, x.why INTO bad FROM (
    SELECT k.nr, CASE WHEN jsonb_typeof(k.task) <> 'object' THEN format('must be a JSON object, got a JSON %s', jsonb_typeof(k.task))
                      WHEN k.unknown IS NOT NULL THEN format('has an unknown key %s', to_json(left(k.unknown, 100)))
                      WHEN (jsonb_typeof(k.task -> 'task') = 'string' AND length(k.task ->> 'task') BETWEEN 1 AND 200) IS NOT TRUE THEN 'needs the name of the task, as "task": a text of 1 to 200 characters'
                      WHEN coalesce(jsonb_typeof(k.task -> 'after'), 'null') NOT IN ('array', 'null')
                        OR EXISTS (SELECT FROM jsonb_array_elements(CASE jsonb_typeof(k.task -> 'after') WHEN 'array' THEN k.task -> 'after' END) a WHERE jsonb_typeof(a) <> 'string')
                        THEN 'has an "after" that must be an array of names of tasks'
                      WHEN coalesce(jsonb_typeof(k.task -> 'ignore_failed'), 'null') NOT IN ('boolean', 'null') THEN 'has an "ignore_failed" that must be true or false' END AS why
    FROM (SELECT k.task, k.nr, (SELECT o.key FROM jsonb_object_keys(CASE jsonb_typeof(k.task) WHEN 'object' THEN k.task ELSE '{}' END) o(key)
                                WHERE o.key NOT IN ('task', 'after', 'ignore_failed', 'queue', 'kind', 'args', 'priority', 'max_attempts', 'meta', 'key') LIMIT 1) AS unknown
          FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr)) k) x
  WHERE x.why IS NOT NULL ORDER BY x.nr LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: task % of % %', bad.nr, n, bad.why USING ERRCODE = '22023', HINT = 'A task is {"task": ..., "queue": ..., "kind": ...}, optionally with after, ignore_failed, args, priority, max_attempts, meta and key.';
  END IF;

  SELECT array_agg(k.task ->> 'task' ORDER BY k.nr) AS names, array_agg(weir._callback(format('task %s', to_json(k.task ->> 'task')), k.task - '{task,after,ignore_failed}'::text[]) ORDER BY k.nr) AS jobs INTO t
  FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr);
  SELECT k.name INTO bad FROM unnest(t.names) k(name) GROUP BY k.name HAVING count(*) > 1 LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: two tasks are called %', to_json(bad.name) USING ERRCODE = '22023', HINT = 'The names of tasks are unique in their flow.';
  END IF;
  PERFORM weir._hold_flows();
  ids := ARRAY(SELECT weir._task_of(add_tasks.flow, k.name) FROM unnest(t.names) WITH ORDINALITY k(name, nr) ORDER BY k.nr);
  new := ARRAY(SELECT k.id IS NULL FROM unnest(ids) WITH ORDINALITY k(id, nr) ORDER BY k.nr);
  fresh := (SELECT count(*) FROM unnest(new) k WHERE k);
  IF fresh = 0 THEN
    RETURN ids;
  END IF;

  SELECT array_agg(k.nr::integer ORDER BY k.nr, k.name) AS nrs, array_agg(k.name ORDER BY k.nr, k.name) AS names, array_agg(b.nr::integer ORDER BY k.nr, k.name) AS befores,
         array_agg(k.is_lenient ORDER BY k.nr, k.name) AS lenient INTO e
  FROM (SELECT DISTINCT k.nr, a.name, coalesce((k.task ->> 'ignore_failed')::boolean, false) AS is_lenient
        FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr)
        CROSS JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(k.task -> 'after') WHEN 'array' THEN k.task -> 'after' ELSE '[]' END) a(name)
        WHERE new[k.nr]) k
  LEFT JOIN unnest(t.names) WITH ORDINALITY b(name, nr) ON b.name = k.name;
  IF cardinality(e.nrs) > 100000 THEN
    RAISE EXCEPTION 'weir: % names in the "after" of tasks in one call, at most 100000 are allowed', cardinality(e.nrs)
      USING ERRCODE = '22023', HINT = 'Add them in several calls. Or, where many tasks come after the same many, put one in between.';
  END IF;
  SELECT k.nr, k.name INTO bad FROM unnest(e.nrs, e.names, e.befores) k(nr, name, before) WHERE k.before IS NULL AND weir._task_of(add_tasks.flow, k.name) IS NULL LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: task % comes after %, and there is no such task', to_json(t.names[bad.nr]), to_json(left(bad.name, 200)) USING ERRCODE = '22023', HINT = 'Add that task first, or in the same call.';
  END IF;
  -- In the order of the array, nothing can wait for itself.
  IF EXISTS (SELECT FROM unnest(e.nrs, e.befores) k(nr, before) WHERE k.before >= k.nr AND new[k.before]) THEN
    PERFORM weir._refuse_cycle(t.names, new, e.nrs, e.befores);
  END IF;

  PERFORM pg_current_xact_id(), weir._join_flow(add_tasks.flow, fresh);
  ids := ARRAY(SELECT CASE WHEN k.id IS NULL THEN nextval('weir.flow_id') ELSE k.id END FROM unnest(ids) WITH ORDINALITY k(id, nr) ORDER BY k.nr);
  first := (SELECT min(u.id) FROM unnest(ids, new) u(id, is_new) WHERE u.is_new);
  INSERT INTO weir.flow (id, created_at, deadline, name, root, parent, task)
  SELECT k.id, now(), 'infinity', k.name, (SELECT f.root FROM weir.flow f WHERE f.id = add_tasks.flow), add_tasks.flow,
         -- Of those that another call adds at the same time, all of one call come first: so the tasks that count never wait for each other.
         k.job || jsonb_build_object('call', first)
  FROM unnest(ids, t.names, t.jobs, new) k(id, name, job, new) WHERE k.new;
  INSERT INTO weir.edge (flow, predecessor, successor, is_lenient) SELECT add_tasks.flow, k.name, ids[k.nr], k.is_lenient FROM unnest(e.nrs, e.names, e.lenient) k(nr, name, is_lenient);
  INSERT INTO weir.arrival (flow, ring, xid, jobs, event) SELECT k.id, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), 1, 'created' FROM unnest(ids, new) k(id, new) WHERE k.new;
  PERFORM nextval('weir.job_id');  -- wakes idle workers, whose maintainers count them
  RETURN ids;
END
$$;
COMMENT ON FUNCTION weir.add_tasks IS
  'Adds up to 10000 tasks to a flow, all or none, in the caller''s transaction, and returns their ids in order: each is a flow of its own within this one, for weir.flow_info, cancel_flow and retry_flow. tasks is a JSON array of objects: task (the name, 1 to 200 characters, unique in the flow), after (names of the tasks that it comes after, of this call or added before; up to 100000 in all tasks of a call), ignore_failed (true: it runs even if these fail or are cancelled), and the job, as in weir.flow: queue, kind, and optionally args, priority, max_attempts, meta and key. A task''s job is enqueued when all tasks that it comes after have ended; if one of them fails or is cancelled, the task is cancelled without having started, unless ignore_failed. Its meta has the key weir.task: the flow''s id and the task''s name. A task that is there already stays as it is. Errors: 22023 (a value, a name, or tasks that wait for each other in a circle), 22P02; 55000 (the flow has ended, or is cancelled). Locks: none that others wait for; waits while a table of flows is being compacted. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._hold_flows() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  LOCK TABLE weir.flow, weir.edge, weir.fold, weir.flow_cut, weir.arrival IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^(flow|edge|fold|flow_cut|arrival_[1-3])$', 'weir: the tables of flows were compacted after this transaction took its snapshot, which does not show what was moved');
END
$$;
COMMENT ON FUNCTION weir._hold_flows IS 'Keeps the tables of flows from being compacted, to the end of the transaction or block. Errors: 40001, if the transaction''s snapshot is older than the last compaction (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on these tables.';

CREATE OR REPLACE FUNCTION weir._task_of(flow bigint, name text) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  -- Of several, which transactions have added that do not see each other, the one that was counted is the task.
  RETURN (SELECT f.id FROM (SELECT f.id, f.task FROM weir.flow f WHERE f.parent = _task_of.flow AND f.name = _task_of.name AND f.task IS NOT NULL OFFSET 0) f
          ORDER BY coalesce((SELECT p.jobs > 0 FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1)::integer * 2, 1) DESC, (f.task ->> 'call')::bigint, f.id LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._task_of IS 'The id of a task of a flow, by name; NULL: there is none. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._refuse_cycle(names text[], new boolean[], nrs integer[], befores integer[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  n       integer   := cardinality(names);
  waits   integer[] := array_fill(0, ARRAY[n]);  -- for how many each waits
  first   integer[] := array_fill(0, ARRAY[n]);  -- those that come after each are follows[first : last]
  last    integer[] := array_fill(-1, ARRAY[n]);
  follows integer[];
  ready   integer[];
  at      integer   := 1;
  before  integer[] := array_fill(0, ARRAY[n]);  -- of those that are left, one that each waits for
  this    integer;
  path    integer[] := '{}';
  r       record;
BEGIN
  -- Kahn: Topological sorting of large networks, 1962.
  FOR r IN
    SELECT k.before, min(k.place)::integer AS first, max(k.place)::integer AS last
    FROM (SELECT u.before, row_number() OVER (ORDER BY u.before, u.nr) AS place FROM unnest(nrs, befores) u(nr, before) WHERE new[u.before]) k GROUP BY k.before
  LOOP
    first[r.before] := r.first;
    last[r.before] := r.last;
  END LOOP;
  follows := ARRAY(SELECT u.nr FROM unnest(nrs, befores) u(nr, before) WHERE new[u.before] ORDER BY u.before, u.nr);
  FOREACH this IN ARRAY follows LOOP
    waits[this] := waits[this] + 1;
  END LOOP;
  ready := ARRAY(SELECT u.nr FROM unnest(waits) WITH ORDINALITY u(waits, nr) WHERE u.waits = 0);
  WHILE at <= cardinality(ready) LOOP
    this := ready[at];
    at := at + 1;
    FOR i IN first[this] .. last[this] LOOP
      waits[follows[i]] := waits[follows[i]] - 1;
      IF waits[follows[i]] = 0 THEN
        ready := ready || follows[i];
      END IF;
    END LOOP;
  END LOOP;
  IF cardinality(ready) = n THEN
    RETURN;
  END IF;
  FOR r IN SELECT u.nr, u.before FROM unnest(nrs, befores) u(nr, before) WHERE waits[u.nr] > 0 AND waits[u.before] > 0 LOOP
    before[r.nr] := r.before;
    this := r.nr;
  END LOOP;
  WHILE array_position(path, this) IS NULL LOOP
    path := this || path;
    this := before[this];
  END LOOP;
  path := this || path[: array_position(path, this)];
  RAISE EXCEPTION 'weir: tasks wait for each other: %', left((SELECT string_agg(CASE WHEN u.nr <= 20 OR u.nr = cardinality(path) THEN to_json(names[u.id])::text WHEN u.nr = 21 THEN '...' END, ', then ' ORDER BY u.nr) FROM unnest(path) WITH ORDINALITY u(id, nr)), 2000)
    USING ERRCODE = '22023', HINT = 'A task can only come after others that do not come after it.';
END
$$;
COMMENT ON FUNCTION weir._refuse_cycle IS
  'Refuses tasks of which some wait for each other in a circle: those with names, of which new ones are looked at; the task nrs[i] comes after befores[i] (both places in names, or NULL: one that was there before). Errors: 22023, with a circle. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.tasks(flow bigint, after bigint DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (id bigint, name text, state text, job bigint, queue text, kind text, after_tasks text[], waits_for text[], ignore_failed boolean, generation integer, jobs bigint, unfinished bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  IF tasks.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: tasks returns 1 to 1000 tasks, got %', tasks.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last id as after.';
  END IF;
  PERFORM weir._hold_flows();
  RETURN QUERY
  SELECT i.id, i.name, i.state, i.job, f.task ->> 'queue', f.task ->> 'kind', e.names, e.waits, e.is_lenient, i.generation, i.jobs, i.unfinished
  FROM weir._read_flows(ARRAY(
    SELECT k.id FROM weir.flow k WHERE k.parent = tasks.flow AND k.task IS NOT NULL AND k.id > coalesce(tasks.after, 0)
      AND coalesce((SELECT p.jobs > 0 FROM weir.fold p WHERE p.flow = k.id ORDER BY p.cut DESC LIMIT 1), true)
    ORDER BY k.id LIMIT coalesce(tasks.max_rows, 100))) i
  CROSS JOIN LATERAL (SELECT f.task FROM weir.flow f WHERE f.id = i.id OFFSET 0) f
  CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(e.predecessor ORDER BY e.predecessor), '{}') AS names, coalesce(bool_or(e.is_lenient), false) AS is_lenient,
           coalesce(array_agg(e.predecessor ORDER BY e.predecessor) FILTER (WHERE i.state = 'blocked' AND weir._kind_of(weir._last_of_task(e.flow, e.predecessor)) IS NULL), '{}') AS waits
    FROM (SELECT e.* FROM weir.edge e WHERE e.successor = i.id OFFSET 0) e) e
  ORDER BY i.id;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.tasks IS
  'The tasks of a flow, in the order of their ids, up to max_rows (1 to 1000) with ids greater than after (NULL: from the first on): the task''s id, name and state, as in weir.flow_info; its job, once that was enqueued; the names of the tasks that it comes after, and of those for which it still waits; and how many jobs belong to it, with those that its own has added. Errors: 22023; WR003 and 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';
