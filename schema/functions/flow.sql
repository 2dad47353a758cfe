-- Flows: sets of jobs with callbacks when all of them are done, and when all have succeeded.
--
-- Who adds jobs to a flow logs how many, and who ends some logs how many ended in which way: rows of weir.arrival, one for each flow and transaction or
-- flush. Nobody updates a counter, so nobody waits. One session at a time, whoever comes, sums up what has arrived: a cut. Like a batch of messages, a cut
-- takes whole snapshots: all arrivals of the transactions that its snapshot sees, and that the snapshot of the cut before did not. So each arrival is
-- counted once, and the sum is what was true at one moment: a child that a job has added before its own end is counted before that end. If a flow
-- is sealed and the sum is zero, all members have ended, and the transaction that finds it so also enqueues the callbacks: exactly one of each.

CREATE OR REPLACE FUNCTION weir._callback(what text, given jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  wrong text;
  r     record;
BEGIN
  IF _callback.given IS NULL OR _callback.given = 'null' THEN
    RETURN NULL;
  ELSIF jsonb_typeof(_callback.given) <> 'object' THEN
    RAISE EXCEPTION 'weir: % must be a job, as a JSON object, got a JSON %', _callback.what, jsonb_typeof(_callback.given)
      USING ERRCODE = '22023', HINT = 'For example {"queue": "default", "kind": "merge"}.';
  END IF;
  SELECT k INTO wrong FROM jsonb_object_keys(_callback.given) k WHERE k NOT IN ('queue', 'kind', 'args', 'priority', 'max_attempts', 'meta', 'key') LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % has an unknown key %', _callback.what, to_json(left(wrong, 100))
      USING ERRCODE = '22023', HINT = 'A callback is {"queue": ..., "kind": ...}, optionally with args, priority, max_attempts, meta and key.';
  END IF;
  SELECT x.queue, x.kind, coalesce(x.args, '{}') AS args, coalesce(x.priority, 2) AS priority, coalesce(x.max_attempts, 25) AS max_attempts, nullif(x.meta, 'null') AS meta, x.key INTO r
  FROM jsonb_to_record(_callback.given) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, key text);
  BEGIN
    PERFORM weir._check_job(r.queue, r.kind, r.args, r.priority, r.max_attempts, r.meta), weir._check_key(r.key), weir._check_new_queue(r.queue);
    IF octet_length(r.meta::text) > 64000 THEN  -- the flow's key is added
      RAISE EXCEPTION 'weir: meta too large: % bytes, at most 64000 are allowed in a callback', octet_length(r.meta::text) USING ERRCODE = '22023';
    END IF;
  EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION '% (%)', SQLERRM, _callback.what USING ERRCODE = '22023';
  END;
  RETURN jsonb_build_object('queue', r.queue, 'kind', r.kind, 'args', r.args, 'priority', r.priority, 'max_attempts', r.max_attempts)
      || CASE WHEN r.meta IS NOT NULL THEN jsonb_build_object('meta', r.meta) ELSE '{}' END || CASE WHEN r.key IS NOT NULL THEN jsonb_build_object('key', r.key) ELSE '{}' END;
END
$$;
COMMENT ON FUNCTION weir._callback IS 'A callback of a flow with its defaults; NULL: none. Errors: 22023 (it could not be enqueued), 22P02. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.flow(name text, on_done jsonb DEFAULT NULL, on_success jsonb DEFAULT NULL, deadline timestamptz DEFAULT NULL, parent bigint DEFAULT NULL,
                                     fail_fast boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  new_id bigint := nextval('weir.flow_id');
BEGIN
  IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'weir: the name of a flow must have 1 to 200 characters, got %', CASE WHEN name IS NULL THEN 'null' ELSE length(name)::text END USING ERRCODE = '22023';
  ELSIF deadline IS NOT NULL AND (NOT isfinite(deadline) OR deadline < now()) THEN
    RAISE EXCEPTION 'weir: the deadline of a flow must be a time to come, got %', deadline USING ERRCODE = '22023', HINT = 'Until then, somebody has to seal it. NULL: one day.';
  END IF;
  PERFORM pg_current_xact_id();
  IF parent IS NOT NULL THEN
    PERFORM weir._join_flow(parent, 1);
  END IF;
  INSERT INTO weir.flow (id, created_at, deadline, name, on_done, on_success, fail_fast, root, parent)
  VALUES (new_id, now(), coalesce(deadline, now() + interval '1 day'), name, weir._callback('on_done', on_done), weir._callback('on_success', on_success), coalesce(fail_fast, false),
          coalesce((SELECT f.root FROM weir.flow f WHERE f.id = parent), new_id), parent);
  PERFORM weir._arrive(new_id, 'jobs', 0, 'created');
  RETURN new_id;
END
$$;
COMMENT ON FUNCTION weir.flow IS
  'Creates a flow in the caller''s transaction and returns its id: a set of jobs, to which weir.enqueue and weir.enqueue_many add with flow, and running members, too. It is open until weir.seal, and no callback comes before that; if nobody has sealed it by the deadline (NULL: in one day), it is sealed as abandoned. When it is sealed and all its members have ended, on_done is enqueued; and on_success, if all of them have completed. Each is a job as in weir.enqueue_many(jsonb), without run_at, unique and flow; its meta has the key weir.flow: the flow''s id, name, generation (1; more if members were retried, or added, after it had ended) and how many jobs it has had, and of these completed, failed and cancelled, and its counters. name is for people, and need not be unique. parent: the flow that it is a member of, as a job would be: the parent does not end before it has ended, nor before its callbacks have, which are members of the parent, too; it counts there as one member, completed, failed or cancelled. fail_fast: it is cancelled as soon as a member has failed for good. Errors: 22023, 22P02 (a value of another type); 55000 (the parent has ended); WR003 (the log comes from another cluster, and was not rebased). Locks: ROW EXCLUSIVE on weir.flow; none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._arrival_ring() RETURNS smallint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  -- The last cut was made in the cluster that the log names: it would pass for one that has counted what is logged here.
  PERFORM weir._check_cluster_once();
  RETURN pg_sequence_last_value('weir.active_arrival');
END
$$;
COMMENT ON FUNCTION weir._arrival_ring IS 'The table of weir.arrival to log in, for all but cuts. Errors: WR003 (the log comes from another cluster). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._arrive(flow bigint, what text, n bigint, event text DEFAULT NULL, no bigint DEFAULT NULL, counts jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, counts)
  VALUES (_arrive.flow, weir._arrival_ring(), pg_current_xact_id(), CASE _arrive.what WHEN 'jobs' THEN _arrive.n ELSE 0 END,
          CASE _arrive.what WHEN 'completed' THEN _arrive.n ELSE 0 END, CASE _arrive.what WHEN 'failed' THEN _arrive.n ELSE 0 END,
          CASE _arrive.what WHEN 'cancelled' THEN _arrive.n ELSE 0 END, _arrive.event, _arrive.no, _arrive.counts);
END
$$;
COMMENT ON FUNCTION weir._arrive IS 'Logs that n jobs of a flow were added (jobs), or have ended in a way, and what is added to its counters. Errors: WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';

CREATE OR REPLACE FUNCTION weir._arrive_ended(flows bigint[], reasons text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  IF cardinality(array_remove(_arrive_ended.flows, NULL)) > 0 THEN
    INSERT INTO weir.arrival (flow, ring, xid, jobs, cancelled)
    SELECT u.flow, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), - count(*) FILTER (WHERE u.reason <> ''), count(*) FILTER (WHERE coalesce(u.reason, '') = '')
    FROM unnest(_arrive_ended.flows, _arrive_ended.reasons) u(flow, reason) WHERE u.flow IS NOT NULL GROUP BY u.flow;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._arrive_ended IS
  'Logs that a claim has ended members of flows itself: those without a reason (NULL or empty) are cancelled; the others are duplicates of members, and were none. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';

CREATE OR REPLACE FUNCTION weir._end_members(lanes bigint[], seqs bigint[], ids bigint[], outcomes text[]) RETURNS void
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
  INSERT INTO weir.arrival (flow, ring, xid, completed, failed, cancelled)
  SELECT m.flow, (SELECT weir._arrival_ring()), pg_current_xact_id(), count(*) FILTER (WHERE m.outcome = 'completed'),
         count(*) FILTER (WHERE m.outcome = 'failed'), count(*) FILTER (WHERE m.outcome = 'cancelled')
  FROM (
    SELECT max(k.flow) AS flow, max(k.outcome) AS outcome
    FROM (
      -- Grouped instead of joined, so that no plan is quadratic.
      SELECT e.lane, e.seq, e.id, coalesce(e.outcome, 'completed') AS outcome, NULL::bigint AS flow
      FROM unnest(_end_members.lanes, _end_members.seqs, _end_members.ids, _end_members.outcomes) e(lane, seq, id, outcome)
      UNION ALL
      SELECT b.lane, b.seq, u.id, NULL, CASE WHEN cardinality(b.flows) = 1 THEN b.flows[1] ELSE u.flow END
      FROM (SELECT DISTINCT d.lane, d.seq FROM unnest(_end_members.lanes, _end_members.seqs) d(lane, seq)) d
      CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = d.lane AND b.seq = d.seq AND b.flows IS NOT NULL OFFSET 0) b
      CROSS JOIN LATERAL unnest(b.ids, b.flows) u(id, flow)) k
    GROUP BY k.lane, k.seq, k.id) m
  WHERE m.flow IS NOT NULL AND m.outcome IS NOT NULL
  GROUP BY m.flow;
END
$$;
COMMENT ON FUNCTION weir._end_members IS
  'Logs how many members of flows are among attempts that the caller''s transaction has ended, for good: the jobs ids of the batches lanes and seqs; outcomes NULL: all are completed. Errors: WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';

CREATE OR REPLACE FUNCTION weir._flows_of(flows bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE WHEN min(f) IS NOT NULL THEN CASE WHEN min(f) = max(f) AND count(f) = count(*) THEN ARRAY[min(f)] ELSE flows END END FROM unnest(flows) f
$$;
COMMENT ON FUNCTION weir._flows_of IS 'The flows of jobs as weir.batch stores them: one element, if all are of the same; NULL, if none is of any. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._flows_in(segment integer, ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
  RETURN ARRAY(
    SELECT (SELECT j.flow FROM weir.job j WHERE j.segment = _flows_in.segment AND j.id = u.id LIMIT 1)
    FROM unnest(_flows_in.ids) WITH ORDINALITY u(id, nr) ORDER BY u.nr);
END
$$;
COMMENT ON FUNCTION weir._flows_in IS
  'The flows of some jobs, in the order of their ids, read again from the log: only claims of jobs of several flows call it, so that the others need not aggregate what nearly all jobs lack. Locks: ACCESS SHARE on the log.';

CREATE OR REPLACE FUNCTION weir._flows_among(ids bigint[], flows bigint[], wanted bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF cardinality(_flows_among.flows) <= 1 OR _flows_among.flows IS NULL THEN
    RETURN _flows_among.flows;
  END IF;
  RETURN weir._flows_of(ARRAY(SELECT _flows_among.flows[array_position(_flows_among.ids, u.id)] FROM unnest(_flows_among.wanted) WITH ORDINALITY u(id, nr) ORDER BY u.nr));
END
$$;
COMMENT ON FUNCTION weir._flows_among IS 'The flows of some of the jobs of a batch, as weir.batch stores them. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._join_flow(flow bigint, n bigint, counts jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  state    record;
  is_known boolean;
BEGIN
  -- Usually it has been counted, and neither ended nor was cancelled; or it was not counted yet, and so has not ended.
  SELECT f.fired_at IS NULL AND NOT f.is_cancelled AND (f.waits IS NULL OR f.job IS NOT NULL) INTO is_known FROM weir.fold f WHERE f.flow = _join_flow.flow ORDER BY f.cut DESC LIMIT 1;
  IF NOT FOUND THEN
    is_known := (SELECT f.task IS NULL FROM weir.flow f WHERE f.id = _join_flow.flow);
  END IF;
  IF is_known IS NOT TRUE OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.flow = _join_flow.flow) THEN
    SELECT i.* INTO state FROM weir._read_flows(ARRAY[_join_flow.flow]) i;
    IF state.id IS NULL THEN
      RAISE EXCEPTION 'weir: flow % is unknown', _join_flow.flow USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass an id that weir.flow has returned, in a transaction that has committed, or in this one.';
    ELSIF state.state IN ('cancelling', 'cancelled') THEN
      RAISE EXCEPTION 'weir: flow % (%) is cancelled', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Jobs can be added to a flow that is open or running.';
    ELSIF state.state = 'blocked' THEN
      RAISE EXCEPTION 'weir: task % (%) has not started', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Its own job may add others to it while it runs. Add a task to the flow, to do something else.';
    ELSIF state.state NOT IN ('open', 'running') THEN
      RAISE EXCEPTION 'weir: flow % (%) has ended', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Add jobs before it is sealed, or from its members while they run; or create another flow.';
    END IF;
  END IF;
  PERFORM weir._arrive(_join_flow.flow, 'jobs', _join_flow.n, counts => _join_flow.counts);
END
$$;
COMMENT ON FUNCTION weir._join_flow IS 'Logs that n jobs are added to a flow; or what is added to its counters. Errors: 22023 (the flow is unknown), 55000 (it has ended, or is cancelled), WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';

CREATE OR REPLACE FUNCTION weir._read_flows(ids bigint[]) RETURNS SETOF weir.flow_info
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
  own      xid8 := pg_current_xact_id_if_assigned();
  past_own xid8 := (own::text::bigint + 1)::text::xid8;
BEGIN
  PERFORM weir._check_cluster_once();
  -- Volatile, because each statement then has a snapshot that is younger than its locks.
  PERFORM weir._hold_flows();
  RETURN QUERY
  WITH c AS MATERIALIZED (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1),
  fresh AS MATERIALIZED (  -- not counted yet
    SELECT a.* FROM c CROSS JOIN LATERAL weir._ended_since(c.snapshot, pg_current_snapshot()) e
    CROSS JOIN LATERAL (SELECT e.low, least(e.high, own) AS high UNION ALL SELECT greatest(e.low, past_own), e.high WHERE own IS NOT NULL) r
    CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= r.low AND a.xid < r.high OFFSET 0) a WHERE a.flow = ANY (_read_flows.ids)
    UNION ALL  -- its own may be many, so they are not read for other flows
    SELECT a.* FROM unnest(_read_flows.ids) i(id) CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid = own AND a.flow = i.id OFFSET 0) a
  ), news AS MATERIALIZED (
    SELECT a.flow, sum(a.jobs) AS jobs, sum(a.completed) AS completed, sum(a.failed) AS failed, sum(a.cancelled) AS cancelled, array_agg(a.counts) FILTER (WHERE a.counts IS NOT NULL) AS counts, bool_or(a.jobs > a.completed + a.failed + a.cancelled) AS reopened,
           coalesce(bool_or(a.event IN ('sealed', 'cancelled')), false) AS seals, max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no,
           max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no
    FROM fresh a GROUP BY a.flow
  )
  SELECT f.id, f.name,
         CASE WHEN f.task IS NOT NULL AND p.job IS NULL THEN CASE WHEN p.is_skipped OR p.jobs = 0 THEN 'cancelled' ELSE 'blocked' END
              WHEN NOT t.is_sealed THEN 'open' WHEN t.unfinished > 0 OR t.fired_at IS NULL THEN CASE WHEN t.is_cancelled THEN 'cancelling' ELSE 'running' END
              WHEN t.is_cancelled THEN 'cancelled' WHEN p.is_abandoned THEN 'abandoned' WHEN t.failed + t.cancelled > 0 THEN 'failed' ELSE 'succeeded' END,
         t.generation, t.jobs, t.unfinished, t.completed, t.failed, t.cancelled, f.created_at, nullif(f.deadline, 'infinity'), CASE WHEN t.is_sealed AND t.unfinished = 0 THEN t.fired_at END, f.on_done, f.on_success,
         f.parent, f.task IS NOT NULL, p.job, f.fail_fast, CASE WHEN n.counts IS NOT NULL THEN weir._add_counts(p.counters, n.counts) ELSE p.counters END
  FROM unnest(_read_flows.ids) WITH ORDINALITY i(id, nr)
  CROSS JOIN LATERAL (SELECT f.* FROM weir.flow f WHERE f.id = i.id OFFSET 0) f
  LEFT JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = i.id ORDER BY p.cut DESC LIMIT 1) p ON true
  LEFT JOIN LATERAL (SELECT n.* FROM news n WHERE n.flow = i.id) n ON true
  CROSS JOIN LATERAL (
    SELECT k.*, k.jobs - k.completed - k.failed - k.cancelled AS unfinished, CASE WHEN NOT k.is_reopened THEN p.fired_at END AS fired_at,
           coalesce(p.generation, 1) + (p.fired_at IS NOT NULL AND k.is_reopened)::integer AS generation
    FROM (SELECT (coalesce(p.jobs, 0) + coalesce(n.jobs, 0))::bigint AS jobs, (coalesce(p.completed, 0) + coalesce(n.completed, 0))::bigint AS completed,
                 (coalesce(p.failed, 0) + coalesce(n.failed, 0))::bigint AS failed, (coalesce(p.cancelled, 0) + coalesce(n.cancelled, 0))::bigint AS cancelled,
                 coalesce(n.reopened, false) AS is_reopened, coalesce(p.is_sealed, f.task IS NOT NULL) OR coalesce(n.seals, false) AS is_sealed,
                 coalesce(greatest(n.cancelled_no, p.cancelled_no) > coalesce(greatest(n.retried_no, p.retried_no), 0), false) AS is_cancelled) k) t
  ORDER BY i.nr;
  RAISE SQLSTATE 'WR099';  -- releases the tables, which are compacted beside a reader that stays open
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir._read_flows IS 'Some flows and their progress, as this snapshot shows them, in the order of ids: what is counted, and what has arrived since. Errors: WR003 (the log comes from another cluster); 40001, if the transaction''s snapshot is older than the last compaction (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call; waits while a table of flows is being compacted. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.flow_info(flow bigint) RETURNS SETOF weir.flow_info
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
  SELECT i.* FROM weir._read_flows(ARRAY[flow_info.flow]) i
$$;
COMMENT ON FUNCTION weir.flow_info IS
  'A flow and its progress: its state, which is open (not sealed), blocked (a task whose job is not enqueued yet: one that it comes after has not ended, or no chores have come to it), running or cancelling (sealed, and members or callbacks are left), succeeded (all its members completed), failed (some failed, or were cancelled), cancelled (by weir.cancel_flow; or a task that does not start, also because another transaction has added one of the same name) or abandoned (it was sealed by its deadline); how many jobs it has had, and of these are unfinished, completed, failed and cancelled; the generation; its deadline, NULL for a task, which has none; when it ended, if it has; its parent, if it is a member of another; whether it is a task, and then its job, once that was enqueued; and its counters (see weir.increment). No row if the id is unknown, or the flow ended longer ago than completed_retention and failed_retention. It reads a bounded number of rows, however many members there are. Errors: WR003 (the log comes from another cluster, and was not rebased), 40001 (REPEATABLE READ and SERIALIZABLE only: the tables of flows were compacted after the transaction took its snapshot). Locks: none that others wait for, and none that outlast the call; waits while a table of flows is being compacted. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.flow_running(flow bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
  most    CONSTANT integer := 5000;  -- batches read, approximately
  workers integer[];
  n       bigint;
BEGIN
  PERFORM weir._lock_log(), weir._hold_flows();
  workers := weir._holders();
  n := (SELECT coalesce(sum(k.n), 0) FROM (
          SELECT k.flow, count(*) AS n FROM (
            SELECT CASE WHEN cardinality(b.flows) = 1 THEN b.flows[1] ELSE u.flow END AS flow
            FROM weir._in_hand(workers, 9223372036854775807, greatest(20, most / greatest(cardinality(workers), 1))) h
            CROSS JOIN LATERAL (SELECT b.ids, b.flows FROM weir.batch b WHERE b.worker = h.worker AND b.no = h.no AND b.lane = h.lane AND b.flows IS NOT NULL OFFSET 0) b
            CROSS JOIN LATERAL unnest(b.ids, b.flows) u(id, flow)
            WHERE u.id = ANY (h.ids)) k
          GROUP BY k.flow OFFSET 0) k  -- one look for each flow
        WHERE weir._is_within(k.flow, flow_running.flow));
  RAISE SQLSTATE 'WR099';  -- releases the log
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir.flow_running IS
  'How many jobs of a flow, and of the tasks and flows within it, are running, as weir.jobs_page lists them. weir.flow_info counts a task or a flow within it as one member, however many jobs of its own are running. What it costs depends on how many jobs of all queues are running, not on how many members there are; it may lack jobs that a worker claimed long before its newest batches, of which about 5,000 are read. Errors: 40001, as for weir.queues and weir.flow_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied, or a table of flows is being compacted. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.flows(after bigint DEFAULT NULL, max_rows integer DEFAULT 100, parent bigint DEFAULT NULL) RETURNS SETOF weir.flow_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  IF flows.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: flows returns 1 to 1000 flows, got %', flows.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last id as after.';
  END IF;
  RETURN QUERY SELECT i.* FROM weir._read_flows(CASE WHEN flows.parent IS NULL THEN ARRAY(
    SELECT f.id FROM weir.flow f WHERE f.parent IS NULL AND f.id < coalesce(flows.after, 9223372036854775807) ORDER BY f.id DESC LIMIT coalesce(flows.max_rows, 100))
  ELSE ARRAY(
    SELECT f.id FROM (SELECT f.id, f.task FROM weir.flow f WHERE f.parent = flows.parent OFFSET 0) f
    WHERE f.task IS NULL AND f.id < coalesce(flows.after, 9223372036854775807) ORDER BY f.id DESC LIMIT coalesce(flows.max_rows, 100)) END) i;
END
$$;
COMMENT ON FUNCTION weir.flows IS 'Flows that are not members of others, or with parent those that are members of this flow or task (see weir.tasks for its tasks), and their progress, newest first: up to max_rows (1 to 1000) with smaller ids than after (NULL: the newest); see weir.flow_info. No row, if there is no such parent. With parent, it reads the ids of all flows and tasks directly within that, for each page. Errors: 22023; WR003 and 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.seal(flow bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  now_is text;
BEGIN
  SELECT i.state INTO now_is FROM weir._read_flows(ARRAY[seal.flow]) i;
  IF now_is IS NULL THEN
    RAISE EXCEPTION 'weir: flow % is unknown', coalesce(seal.flow::text, 'null') USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass an id that weir.flow has returned.';
  ELSIF now_is <> 'open' THEN
    RETURN false;
  END IF;
  PERFORM weir._arrive(seal.flow, 'jobs', 0, 'sealed'), nextval('weir.job_id');  -- wakes idle workers, whose maintainers count it
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.seal IS
  'Seals a flow, in the caller''s transaction: after the commit, it ends as soon as all its members have. From then on, only these should add jobs. A flow without members ends at once. Returns false if it was sealed already. Errors: 22023 (the flow is unknown); WR003 and 40001 as for weir.flow_info. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.cancel_flow(flow bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most   CONSTANT integer := 2000;
  now_is text;
BEGIN
  SELECT i.state INTO now_is FROM weir._read_flows(ARRAY[cancel_flow.flow]) i;
  IF now_is IN ('open', 'running', 'blocked') THEN
    IF (SELECT count(*) FROM weir.cancellation_where w WHERE w.flow IS NOT NULL AND NOT w.is_late) >= most THEN
      RAISE EXCEPTION 'weir: % cancellations are not finished', most USING ERRCODE = '54000', HINT = 'Each is kept until workers have passed its jobs, scheduled ones are due, and transactions that were open then have ended: see weir.cancel_where.';
    END IF;
    PERFORM weir._cancel_members(cancel_flow.flow);
    RETURN 'cancelling';
  END IF;
  RETURN now_is;
END
$$;
COMMENT ON FUNCTION weir.cancel_flow IS
  'Cancels a flow: all its unfinished members, however many, with one row, as weir.cancel_where does, and the flows and tasks within it, but not their callbacks; seals it, and lets nobody add jobs any more. What others add in transactions that don''t see that yet is cancelled when it is counted. When all members have ended, on_done is enqueued, and on_success is not. Returns cancelling; or the state of a flow that has ended, which stays as it is, or NULL for an unknown id. Errors: 54000 (2000 cancellations are unfinished). Locks: ROW EXCLUSIVE on weir.cancellation_where: see weir.cancel_where. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._cancel_members(flow bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  new_no bigint;
BEGIN
  PERFORM pg_current_xact_id();
  INSERT INTO weir.cancellation_where (upto, flow) VALUES (coalesce(pg_sequence_last_value('weir.job_id'), 0), _cancel_members.flow) RETURNING cancellation_where.no INTO new_no;
  PERFORM weir._arrive(_cancel_members.flow, 'jobs', 0, 'cancelled', new_no);
  PERFORM nextval('weir.control');
  -- In order, those that were to be tried again hold up their keys no more.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT l.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, '{}' FROM weir.queue_limit l WHERE l.in_order;
  PERFORM nextval('weir.job_id');  -- wakes idle workers
END
$$;
COMMENT ON FUNCTION weir._cancel_members IS 'Cancels what weir.cancel_flow says, however many cancellations there are: what fails fast has no limit. Errors: none. Locks: see weir.cancel_flow.';

CREATE OR REPLACE FUNCTION weir._is_cancelled_now(flow bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  fresh record;  -- not counted yet
  p     weir.fold;
BEGIN
  SELECT max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no, max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no INTO fresh
  FROM (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c CROSS JOIN LATERAL weir._ended_since(c.snapshot, pg_current_snapshot()) e
  CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high OFFSET 0) a WHERE a.flow = _is_cancelled_now.flow;
  SELECT k.* INTO p FROM weir.fold k WHERE k.flow = _is_cancelled_now.flow ORDER BY k.cut DESC LIMIT 1;
  RETURN coalesce(greatest(fresh.cancelled_no, p.cancelled_no) > coalesce(greatest(fresh.retried_no, p.retried_no), 0), false);
END
$$;
COMMENT ON FUNCTION weir._is_cancelled_now IS 'Whether a flow is cancelled, and was not retried since. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.retry_flow(flow bigint, after text DEFAULT NULL, max_rows integer DEFAULT 500, OUT retried integer, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  states CONSTANT text[] := ARRAY['failed', 'cancelled'];
  ids          bigint[];
  cancelled_no bigint;
BEGIN
  PERFORM weir._check_isolation('retry_flow');
  IF NOT EXISTS (SELECT FROM weir.flow f WHERE f.id = retry_flow.flow) THEN
    RAISE EXCEPTION 'weir: flow % is unknown', coalesce(flow::text, 'null') USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass the id of a flow that has not ended longer ago than failed_retention.';
  ELSIF max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a step looks at 1 to 1000 jobs, got %', max_rows USING ERRCODE = '22023', HINT = 'Call it again with after, until next is NULL.';
  END IF;
  SELECT s.ids, s.next INTO ids, next FROM weir._select_where(states, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, after, coalesce(max_rows, 500), flow) s;
  PERFORM weir._lock_to_retry(ids);
  SELECT count(*) FILTER (WHERE k.is_retried) INTO retried
  FROM (SELECT u.id FROM unnest(ids) u(id) ORDER BY u.id OFFSET 0) i CROSS JOIN LATERAL weir._retry(i.id, states) k;
  -- Also for those that were cancelled before they started, which have not ended, and for tasks that were not enqueued.
  cancelled_no := weir._cancellation_of(flow);
  IF retried > 0 OR after IS NULL AND cancelled_no IS NOT NULL THEN
    PERFORM weir._arrive(flow, 'jobs', 0, 'retried', cancelled_no);
  END IF;
  -- Flows and tasks within it that were cancelled on their own, or have failed fast, are no longer, either.
  IF after IS NULL THEN
    PERFORM weir._arrive(k.id, 'jobs', 0, 'retried', weir._cancellation_of(k.id)) FROM unnest(weir._cancelled_within(flow)) k(id);
  END IF;
END
$$;
COMMENT ON FUNCTION weir.retry_flow IS
  'One step of retrying all failed and cancelled members of a flow, and of flows and tasks within it, as weir.retry does; tasks that did not start because of these may start again. If the flow had ended, it runs again, and its callbacks come once more when it ends: with the next generation. A step looks at max_rows jobs (1 to 1000) of the list from after on, returns how many it has retried, and next: pass it as after in the next call; NULL: this was the last step. Errors: 22023 (the flow is unknown), 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry, in an order in which two runs don''t deadlock. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._cancelled_within(flow bigint) RETURNS bigint[]
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
BEGIN
  RETURN ARRAY(
    WITH RECURSIVE within AS (
      SELECT d.id FROM weir.flow d WHERE d.parent = _cancelled_within.flow
      UNION ALL
      SELECT d.id FROM within w CROSS JOIN LATERAL (SELECT d.id FROM weir.flow d WHERE d.parent = w.id OFFSET 0) d
    )
    SELECT w.id FROM within w WHERE (SELECT p.is_cancelled FROM weir.fold p WHERE p.flow = w.id ORDER BY p.cut DESC LIMIT 1)
    UNION  -- not counted yet
    SELECT c.flow FROM weir.cancellation_where c WHERE c.flow <> _cancelled_within.flow AND weir._is_within(c.flow, _cancelled_within.flow) ORDER BY 1);
END
$$;
COMMENT ON FUNCTION weir._cancelled_within IS 'The flows and tasks within a flow, at any depth, that are cancelled, or were a short time ago. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._cancellation_of(flow bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  -- To the end of the transaction, so that the flow is not forgotten before what it logs is counted.
  LOCK TABLE weir.flow IN ACCESS SHARE MODE;
  RETURN (
    WITH RECURSIVE around AS (
      SELECT _cancellation_of.flow AS id
      UNION ALL
      SELECT f.parent FROM around a CROSS JOIN LATERAL (SELECT f.parent FROM weir.flow f WHERE f.id = a.id OFFSET 0) f WHERE f.parent IS NOT NULL
    )
    SELECT max(greatest((SELECT f.cancelled_no FROM weir.fold f WHERE f.flow = a.id ORDER BY f.cut DESC LIMIT 1),
                        (SELECT max(w.no) FROM weir.cancellation_where w WHERE w.flow = a.id AND NOT w.is_late))) FROM around a);
END
$$;
COMMENT ON FUNCTION weir._cancellation_of IS
  'The last cancellation of a flow, or of one around it, that this transaction can see, for who retries it: one that it does not see counts all the same, whichever commits first. Locks: ACCESS SHARE on weir.flow, to the end of the transaction. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_within(flow bigint, ancestor bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  at bigint := _is_within.flow;
BEGIN
  WHILE at IS NOT NULL LOOP
    IF at = _is_within.ancestor THEN
      RETURN true;
    END IF;
    at := (SELECT f.parent FROM weir.flow f WHERE f.id = at);
  END LOOP;
  RETURN false;
END
$$;
COMMENT ON FUNCTION weir._is_within IS 'Whether a flow is another one, or a member of it, at any depth. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.increment(flow bigint, counter text, n bigint DEFAULT 1) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
BEGIN
  IF counter IS NULL OR length(counter) NOT BETWEEN 1 AND 100 THEN
    RAISE EXCEPTION 'weir: the name of a counter must have 1 to 100 characters, got %', CASE WHEN counter IS NULL THEN 'null' ELSE length(counter)::text END USING ERRCODE = '22023';
  ELSIF flow IS NULL THEN
    RAISE EXCEPTION 'weir: counters belong to a flow, got null' USING ERRCODE = '22023', HINT = 'Pass the id of a flow that has not ended.';
  END IF;
  PERFORM weir._check_counts(flow, jsonb_build_object(counter, coalesce(n, 1)));
  PERFORM weir._join_flow(flow, 0, jsonb_build_object(counter, coalesce(n, 1)));
END
$$;
COMMENT ON FUNCTION weir.increment IS
  'Adds n to a counter of a flow (1 to 100 characters; a flow has up to 100), in the caller''s transaction: it counts after the commit, and never after a rollback. No row is updated, so nobody waits. With weir.complete in the same transaction, each completed attempt is counted once, and the sum is exact when the flow ends. weir.flow_info shows it at any time. Errors: 22023; 55000 (the flow has ended, or is cancelled). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_counts(flow bigint, counts jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 100;
  now_has jsonb := (SELECT f.counters FROM weir.fold f WHERE f.flow = _check_counts.flow ORDER BY f.cut DESC LIMIT 1);
  name text;
BEGIN
  IF now_has ?& ARRAY(SELECT jsonb_object_keys(counts)) THEN
    RETURN;  -- as nearly always
  END IF;
  FOR name IN SELECT k FROM jsonb_object_keys(counts) k LOOP
    IF length(name) NOT BETWEEN 1 AND 100 THEN
      RAISE EXCEPTION 'weir: the name of a counter must have 1 to 100 characters, got %', length(name) USING ERRCODE = '22023';
    ELSIF NOT now_has ? name AND (SELECT count(*) FROM jsonb_object_keys(now_has)) >= most THEN
      RAISE EXCEPTION 'weir: flow % has % counters, and % would be another', flow, most, to_json(name) USING ERRCODE = '22023', HINT = 'Counters are for a few sums of the whole flow.';
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._check_counts IS 'Refuses counters of a flow whose names are too long, or that would be too many. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._add_counts(counters jsonb, counts jsonb[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT jsonb_object_agg(k.name, k.n) FROM (
    SELECT e.key AS name, least(greatest(sum(e.value::numeric), -9223372036854775808), 9223372036854775807) AS n
    FROM unnest(counts || counters) c(counts) CROSS JOIN LATERAL jsonb_each(c.counts) e(key, value) WHERE jsonb_typeof(e.value) = 'number' GROUP BY e.key) k
$$;
COMMENT ON FUNCTION weir._add_counts IS 'The counters of a flow after some were added to: each stays a bigint; what is not a number is not counted. Errors: none. Locks: none. Isolation: any.';
