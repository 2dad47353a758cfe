-- Counting what has arrived at flows, and what follows from it: see functions/flow.sql.
--
-- A cut works in three steps: it sums up what has arrived; it finds what has changed by that: flows that have ended, tasks that may start or never will; and
-- it does what follows. What follows for other flows, for those that they are members of, and for tasks that come after them, are arrivals again, which the
-- next cut counts. So a cut never has to look at more than what is new, whatever depends on it. Only what is taken back, and what is cancelled, is done
-- within the same cut, for it must not be seen half-done: see fold_around.sql.

CREATE OR REPLACE FUNCTION weir._fold_arrivals(OUT folded integer, OUT fired integer, OUT busy boolean, OUT is_used boolean, OUT again boolean)
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
DECLARE
  c         weir.flow_cut;
  at        timestamptz;
  was       weir.fold[];  -- what was counted before
  sums      weir.fold[];  -- and with what has arrived since
  is_new    boolean;      -- some are new, and members of others
  is_nested boolean;      -- some may be members of others, or have some
  plain     weir.fold[];  -- the sums, before it is known what follows from them
  taken     boolean[] := '{}';  -- of which of them the end was taken back
  is_over   boolean;      -- some start over
  failing   bigint[];     -- flows that members have failed of
  late      bigint[];     -- flows that somebody has cancelled, or added jobs to
  passed    boolean := false;
BEGIN
  folded := 0;
  fired := 0;
  busy := false;
  again := false;
  is_used := pg_relation_size('weir.flow') > 0;
  IF NOT is_used THEN
    RETURN;
  END IF;
  PERFORM weir._check_isolation('fold'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: fold needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 7) THEN
    busy := true;
    RETURN;
  END IF;
  PERFORM weir._check_cluster();
  SELECT k.* INTO c FROM weir.flow_cut k ORDER BY k.no DESC LIMIT 1;
  at := clock_timestamp();  -- if it was set back, flows whose deadline comes again are sealed already
  IF NOT EXISTS (SELECT FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e CROSS JOIN LATERAL (SELECT FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high LIMIT 1) a)
     AND NOT EXISTS (SELECT FROM weir.flow f WHERE f.task IS NULL AND f.deadline > c.due AND f.deadline <= at) THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);  -- a lost cut is made again, because its callbacks are lost with it

  -- This transaction gets its id only after the snapshot of this statement was taken: so the next cut counts what it logs itself. And before ids are drawn, as in enqueue.
  WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
  news AS MATERIALIZED (
    SELECT a.flow, sum(a.jobs) AS jobs, sum(a.completed) AS completed, sum(a.failed) AS failed, sum(a.cancelled) AS cancelled, sum(a.waits) AS waits, sum(a.broken) AS broken,
           array_agg(a.counts) FILTER (WHERE a.counts IS NOT NULL) AS counts,
           coalesce(bool_or(a.jobs > a.completed + a.failed + a.cancelled), false) AS reopened, coalesce(bool_or(a.event IN ('sealed', 'cancelled')), false) AS seals, coalesce(bool_or(a.failed > 0), false) AS fails, coalesce(bool_or(a.event = 'cancelled' OR a.event IS NULL AND a.jobs > 0), false) AS late,
           max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no, max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no
    FROM (
      SELECT a.flow, a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e
      CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high OFFSET 0) a
      UNION ALL  -- those whose deadline has come
      SELECT d.id, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL FROM weir.flow d WHERE d.task IS NULL AND d.deadline > c.due AND d.deadline <= at) a
    GROUP BY a.flow
  ), summed AS MATERIALIZED (
    SELECT d.parent, n.fails, n.late, p AS was,
           ROW(n.flow, c.no + 1, n.jobs + coalesce(p.jobs, 0), n.completed + coalesce(p.completed, 0), n.failed + coalesce(p.failed, 0),
               n.cancelled + coalesce(p.cancelled, 0) - coalesce(p.is_skipped, false)::integer, coalesce(p.generation, 1) + (p.fired_at IS NOT NULL AND n.reopened)::integer,
               z.is_sealed OR coalesce(d.deadline <= at, false), coalesce(e.cancelled_no > coalesce(e.retried_no, 0), false),
               coalesce(p.is_abandoned, false) OR coalesce(d.deadline <= at, false) AND NOT z.is_sealed, CASE WHEN NOT n.reopened THEN p.fired_at END,
               p.waits + coalesce(n.waits, 0), p.broken + coalesce(n.broken, 0), coalesce(p.is_skipped, false), p.job,
               CASE WHEN n.counts IS NOT NULL THEN weir._add_counts(p.counters, n.counts) ELSE p.counters END,
               e.cancelled_no, e.retried_no)::weir.fold AS sum
    FROM news n
    CROSS JOIN LATERAL (SELECT CASE WHEN d.task IS NULL THEN d.deadline END AS deadline, d.task IS NOT NULL AS is_task, d.parent FROM weir.flow d WHERE d.id = n.flow OFFSET 0) d  -- without one, it is forgotten
    LEFT JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = n.flow ORDER BY p.cut DESC LIMIT 1) p ON true
    CROSS JOIN LATERAL (SELECT n.seals OR coalesce(p.is_sealed, d.is_task) AS is_sealed) z
    CROSS JOIN LATERAL (SELECT greatest(n.cancelled_no, p.cancelled_no) AS cancelled_no, greatest(n.retried_no, p.retried_no) AS retried_no) e  -- whatever the order of their commits
  ), moved AS (
    INSERT INTO weir.flow_cut (no, due, snapshot) SELECT c.no + 1, at, s.snapshot FROM s
  )
  SELECT array_agg(k.was ORDER BY (k.sum).flow), array_agg(k.sum ORDER BY (k.sum).flow), bool_or(k.parent IS NOT NULL AND (k.was).flow IS NULL), bool_or(k.parent IS NOT NULL OR (k.sum).is_cancelled <> coalesce((k.was).is_cancelled, false) OR (k.sum).cancelled_no > (k.was).cancelled_no),
         array_agg((k.sum).flow) FILTER (WHERE k.fails), array_agg((k.sum).flow) FILTER (WHERE k.late)
    INTO was, sums, is_new, is_nested, failing, late FROM summed k;
  IF sums IS NULL THEN
    RETURN;
  ELSIF is_new THEN
    sums := weir._begin_nested(sums, was);
  END IF;

  IF is_nested THEN
    SELECT k.sums, k.was INTO sums, was FROM weir._take_along(sums, was, c.no + 1) k;
    plain := sums;
  END IF;
  sums := weir._settle_sums(sums, was, at);
  WHILE is_nested LOOP
    SELECT k.sums, k.was, k.taken, k.more INTO plain, was, taken, is_over FROM weir._take_back(plain, was, taken, sums, c.no + 1) k;
    EXIT WHEN NOT is_over;
    sums := weir._settle_sums(plain, was, at);
  END LOOP;
  INSERT INTO weir.fold SELECT f.* FROM unnest(sums) f;
  folded := cardinality(sums);

  IF is_nested THEN
    PERFORM weir._release_tasks(sums, was);
    passed := weir._pass_on(sums, was, taken);
  END IF;
  SELECT e.fired, e.again OR passed INTO fired, again FROM weir._end_flows(sums, was, failing) e;
  IF late IS NOT NULL THEN
    PERFORM weir._cancel_late(sums, late);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._fold_arrivals IS
  'Counts what has arrived at flows since the last cut, seals those whose deadline has come, enqueues the callbacks of those that have ended, and tasks whose predecessors have. Returns how many flows it has counted (folded), how many have ended (fired), busy: another session is doing it, so call again for what it may not have seen; is_used: there are flows; and again: it has logged arrivals itself, so call it again at once. If there is nothing new, it writes nothing. Errors: WR003, WR004 (not in READ COMMITTED autocommit). Locks: advisory step 7 (tried). Isolation: READ COMMITTED, in autocommit. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._begin_nested(sums weir.fold[], was weir.fold[]) RETURNS weir.fold[]
LANGUAGE plpgsql STABLE
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
  retried weir.fold[] := ARRAY(SELECT n FROM unnest(_begin_nested.sums) n WHERE n.retried_no IS NOT NULL);
BEGIN
  -- By what was counted before this cut: what it changes is passed on to these as to all others.
  RETURN ARRAY(
    SELECT CASE WHEN (_begin_nested.was[t.ordinality]).flow IS NOT NULL OR d.parent IS NULL THEN _begin_nested.sums[t.ordinality] ELSE
             ROW(t.flow, t.cut, CASE WHEN g.is_gone THEN 0 ELSE t.jobs END, t.completed, t.failed, t.cancelled, t.generation, t.is_sealed OR k.is_cancelled, t.is_cancelled OR k.holds AND k.cancelled_no > coalesce(t.retried_no, 0), t.is_abandoned AND NOT k.is_cancelled, t.fired_at,
                 w.waits, w.broken, false, NULL, t.counters, CASE WHEN k.holds THEN greatest(t.cancelled_no, k.cancelled_no) ELSE t.cancelled_no END, t.retried_no)::weir.fold END
    FROM unnest(_begin_nested.sums) WITH ORDINALITY t
    CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task IS NOT NULL AS is_task, (d.task ->> 'call')::bigint AS call FROM weir.flow d WHERE d.id = t.flow OFFSET 0) d
    CROSS JOIN LATERAL (SELECT a.is_cancelled, a.cancelled_no, a.is_cancelled AND a.cancelled_no > coalesce(a.retried_no, 0) AS holds FROM weir._last_around(d.parent, retried) a) k
    -- Another transaction has added a task of the same name: the one that is counted first is the task; of two that are counted at once, that of the earlier call.
    CROSS JOIN LATERAL (SELECT d.is_task AND EXISTS (
      SELECT FROM (SELECT o.id, (o.task ->> 'call')::bigint AS call FROM weir.flow o WHERE o.parent = d.parent AND o.name = d.name AND o.task IS NOT NULL AND o.id <> t.flow OFFSET 0) o
      WHERE EXISTS (SELECT FROM weir.fold p WHERE p.flow = o.id AND p.jobs > 0) OR (o.call, o.id) < (d.call, t.flow) AND o.id = ANY (SELECT n.flow FROM unnest(_begin_nested.sums) n)) AS is_gone OFFSET 0) g
    CROSS JOIN LATERAL (
      SELECT CASE WHEN d.is_task THEN count(*) FILTER (WHERE p.kind IS NULL) END AS waits, CASE WHEN d.is_task THEN count(*) FILTER (WHERE p.kind <> 'completed' AND NOT e.is_lenient) END AS broken
      FROM (SELECT e.* FROM weir.edge e WHERE e.successor = t.flow AND NOT g.is_gone OFFSET 0) e
      CROSS JOIN LATERAL (SELECT weir._kind_of(weir._last_of_task(e.flow, e.predecessor)) AS kind OFFSET 0) p) w
    ORDER BY t.ordinality);
END
$$;
COMMENT ON FUNCTION weir._begin_nested IS
  'Completes the first counts of flows that are members of others: they are cancelled if what is around them is, unless they, or what lies between, were retried since; a task knows how many of those that it comes after have not ended, or broke; and one that another transaction has added before has no job. Locks: none.';

CREATE OR REPLACE FUNCTION weir._last_around(flow bigint, retried weir.fold[], OUT is_cancelled boolean, OUT cancelled_no bigint, OUT retried_no bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  at bigint := _last_around.flow;
BEGIN
  WHILE at IS NOT NULL LOOP
    SELECT p.is_cancelled, p.cancelled_no INTO is_cancelled, cancelled_no FROM weir.fold p WHERE p.flow = at ORDER BY p.cut DESC LIMIT 1;
    EXIT WHEN FOUND;
    retried_no := greatest(retried_no, (SELECT n.retried_no FROM unnest(_last_around.retried) n WHERE n.flow = at));
    at := (SELECT f.parent FROM weir.flow f WHERE f.id = at);
  END LOOP;
  is_cancelled := coalesce(is_cancelled, false);
END
$$;
COMMENT ON FUNCTION weir._last_around IS
  'Whether a flow is cancelled by what was counted last of it, or, if nothing was yet, of the next one around it, and by which cancellation; and retried_no: the last one that a retry undoes, in this cut (retried), of the flows in between, which were not counted yet. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._last_of_task(flow bigint, name text) RETURNS weir.fold
LANGUAGE plpgsql STABLE
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
  last weir.fold;
BEGIN
  SELECT p.* INTO last FROM (SELECT f.id FROM weir.flow f WHERE f.parent = _last_of_task.flow AND f.name = _last_of_task.name AND f.task IS NOT NULL OFFSET 0) f
  CROSS JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1) p WHERE p.jobs > 0 LIMIT 1;
  RETURN last;
END
$$;
COMMENT ON FUNCTION weir._last_of_task IS 'What was counted last of a task of a flow, by name; NULL: nothing yet. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._kind_of(f weir.fold) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE WHEN f.fired_at IS NULL OR f.waits IS NOT NULL AND f.jobs = 0 THEN NULL WHEN f.is_cancelled THEN 'cancelled' WHEN f.is_abandoned OR f.failed > 0 THEN 'failed' WHEN f.cancelled > 0 THEN 'cancelled'
              ELSE 'completed' END
$$;
COMMENT ON FUNCTION weir._kind_of IS 'How a flow has ended, as a member of another: completed, failed or cancelled; NULL: it has not. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._release_tasks(sums weir.fold[], was weir.fold[]) RETURNS void
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
BEGIN
  PERFORM weir._log_member(k.job, k.flow, d.task, jsonb_build_object('weir.task', jsonb_build_object('flow', d.parent, 'name', d.name)))
  FROM (SELECT n.job, n.flow FROM unnest(_release_tasks.sums) WITH ORDINALITY n
        WHERE n.job IS NOT NULL AND (_release_tasks.was[n.ordinality]).job IS NULL ORDER BY n.job OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.* FROM weir.flow d WHERE d.id = k.flow OFFSET 0) d;
END
$$;
COMMENT ON FUNCTION weir._release_tasks IS 'Enqueues the jobs of tasks that have got one in this cut. Locks: see weir.enqueue.';

CREATE OR REPLACE FUNCTION weir._log_member(id bigint, flow bigint, job jsonb, about jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
  SELECT _log_member.id, pg_current_xact_id(), now(), weir._lane_of(x.queue, x.priority, x.key), 1, x.max_attempts, pg_sequence_last_value('weir.active_job'), x.kind, x.args,
         coalesce(x.meta, '{}') || _log_member.about, x.key, _log_member.flow
  FROM jsonb_to_record(_log_member.job) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, key text);
END
$$;
COMMENT ON FUNCTION weir._log_member IS 'Logs a job that a flow brings with it, whose id was drawn after the transaction got its own, with what its meta says about that. Locks: see weir.enqueue.';

CREATE OR REPLACE FUNCTION weir._pass_on(sums weir.fold[], was weir.fold[], taken boolean[]) RETURNS boolean
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
  ring    smallint := pg_sequence_last_value('weir.active_arrival');
  changes record;
  passed  boolean := false;
BEGIN
  -- What has changed of those that are members of others, but for ends that were taken back already.
  SELECT array_agg(d.parent) AS parents, array_agg(d.name) AS names, array_agg(d.task IS NOT NULL) AS tasks, array_agg(k.before) AS before, array_agg(k.kind) AS kinds, array_agg(k.is_gone) AS gone INTO changes
  FROM (SELECT n.flow, CASE WHEN _pass_on.taken[n.ordinality] IS NOT TRUE THEN weir._kind_of(_pass_on.was[n.ordinality]) END AS before, weir._kind_of(_pass_on.sums[n.ordinality]) AS kind,
               n.waits IS NOT NULL AND n.jobs = 0 AND (_pass_on.was[n.ordinality]).flow IS NULL AS is_gone
        FROM unnest(_pass_on.sums) WITH ORDINALITY n OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task FROM weir.flow d WHERE d.id = k.flow OFFSET 0) d
  WHERE d.parent IS NOT NULL AND (k.before IS DISTINCT FROM k.kind OR k.is_gone);
  IF changes.parents IS NOT NULL THEN
    passed := true;
    -- Two rows, if an end is taken back and another follows: so that the parent starts over.
    INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled)
    SELECT k.parent, ring, pg_current_xact_id(), - count(*) FILTER (WHERE k.is_gone), sum(k.sign * (k.kind = 'completed')::integer), sum(k.sign * (k.kind = 'failed')::integer), sum(k.sign * (k.kind = 'cancelled')::integer)
    FROM (SELECT u.parent, -1 AS sign, u.before AS kind, false AS is_gone FROM unnest(changes.parents, changes.before) u(parent, before) WHERE u.before IS NOT NULL
          UNION ALL
          SELECT u.parent, 1, coalesce(u.kind, ''), u.is_gone FROM unnest(changes.parents, changes.kinds, changes.gone) u(parent, kind, is_gone) WHERE u.kind IS NOT NULL OR u.is_gone) k
    GROUP BY k.parent, k.sign;
    INSERT INTO weir.arrival (flow, ring, xid, waits, broken)
    SELECT k.successor, ring, pg_current_xact_id(), k.waits, k.broken
    FROM (SELECT e.successor, sum((u.kind IS NULL)::integer - (u.before IS NULL)::integer) AS waits,
                 sum(coalesce(u.kind <> 'completed', false)::integer - coalesce(u.before <> 'completed', false)::integer) FILTER (WHERE NOT e.is_lenient) AS broken
          FROM unnest(changes.parents, changes.names, changes.tasks, changes.before, changes.kinds, changes.gone) u(parent, name, is_task, before, kind, is_gone)
          CROSS JOIN LATERAL (SELECT e.* FROM weir.edge e WHERE e.flow = u.parent AND e.predecessor = u.name AND u.is_task AND NOT u.is_gone OFFSET 0) e
          GROUP BY e.successor) k
    -- One that was not counted yet will look at what is counted then.
    WHERE (k.waits <> 0 OR k.broken <> 0) AND EXISTS (SELECT FROM weir.fold p WHERE p.flow = k.successor);
  END IF;
  RETURN passed;
END
$$;
COMMENT ON FUNCTION weir._pass_on IS
  'Logs what a cut means for other flows: for those that the flows in it are members of, and for tasks that come after them, except for ends that were taken back already (taken). Whether it has logged something. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';

CREATE OR REPLACE FUNCTION weir._end_flows(sums weir.fold[], was weir.fold[], failing bigint[], OUT fired integer, OUT again boolean)
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
  this  record;
  about jsonb;
BEGIN
  fired := (SELECT count(*) FROM unnest(sums) WITH ORDINALITY n WHERE n.fired_at IS NOT NULL AND ((was[n.ordinality]).fired_at IS NULL OR (was[n.ordinality]).generation <> n.generation));
  again := false;
  FOR this IN
    SELECT n.*, d.name, d.parent, d.on_done, d.on_success, d.fail_fast, (was[n.ordinality]).fired_at AS before, (was[n.ordinality]).generation AS generation_before
    FROM unnest(sums) WITH ORDINALITY n
    CROSS JOIN LATERAL (SELECT d.* FROM weir.flow d WHERE d.id = n.flow AND (d.fail_fast OR d.on_done IS NOT NULL OR d.on_success IS NOT NULL) OFFSET 0) d
    ORDER BY n.ordinality
  LOOP
    IF this.fired_at IS NULL THEN
      IF this.fail_fast AND this.flow = ANY (failing) AND this.failed > 0 AND NOT this.is_cancelled THEN  -- unless that was retried already
        PERFORM weir._cancel_members(this.flow);
        again := true;
      END IF;
      CONTINUE;
    END IF;
    CONTINUE WHEN this.before IS NOT NULL AND this.generation_before = this.generation;
    about := jsonb_build_object('id', this.flow, 'name', this.name, 'generation', this.generation, 'jobs', this.jobs, 'completed', this.completed, 'failed', this.failed, 'cancelled', this.cancelled)
      || CASE WHEN this.counters IS NOT NULL THEN jsonb_build_object('counters', this.counters) ELSE '{}' END;
    IF this.on_success IS NOT NULL AND this.failed = 0 AND this.cancelled = 0 AND NOT this.is_cancelled AND NOT this.is_abandoned THEN
      PERFORM weir._call_back(this.on_success, about, this.parent);
    END IF;
    IF this.on_done IS NOT NULL THEN
      PERFORM weir._call_back(this.on_done, about, this.parent);
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._end_flows IS
  'Enqueues the callbacks of flows that have ended in this cut, and cancels those that fail fast and that members have failed of (failing). Returns how many have ended, and whether it has logged an arrival that is to be counted at once. Locks: see weir.enqueue, weir.cancel_flow.';

CREATE OR REPLACE FUNCTION weir._cancel_late(sums weir.fold[], late bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  last_id bigint := coalesce(pg_sequence_last_value('weir.job_id'), 0);
BEGIN
  INSERT INTO weir.cancellation_where (upto, flow, is_late)
  SELECT last_id, n.flow, true FROM unnest(_cancel_late.sums) n
  WHERE n.is_cancelled AND n.flow = ANY (_cancel_late.late) AND (n.waits IS NULL OR n.job IS NOT NULL)  -- a task that never starts has no job
    AND last_id > coalesce((SELECT max(w.upto) FROM weir.cancellation_where w WHERE w.flow = n.flow), 0);
  IF FOUND THEN
    PERFORM nextval('weir.control'), nextval('weir.job_id');
  END IF;
END
$$;
COMMENT ON FUNCTION weir._cancel_late IS
  'Cancels what was added to cancelled flows between the call that cancelled them and its commit, or by transactions that could not see it yet: the ids of these jobs may be greater than those that the cancellation means. Locks: see weir.cancel_flow.';

CREATE OR REPLACE FUNCTION weir._call_back(job jsonb, about jsonb, parent bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  PERFORM weir._log_member(nextval('weir.job_id'), _call_back.parent, _call_back.job, jsonb_build_object('weir.flow', _call_back.about));
  IF _call_back.parent IS NOT NULL THEN
    PERFORM weir._arrive(_call_back.parent, 'jobs', 1, 'called');  -- in the transaction in which the flow ends there, so that it does not end before its callbacks
  END IF;
END
$$;
COMMENT ON FUNCTION weir._call_back IS 'Enqueues a callback of a flow, with what its meta says about the flow; it is a member of the flow''s parent, if that has one, but not cancelled with it. Locks: see weir.enqueue.';
