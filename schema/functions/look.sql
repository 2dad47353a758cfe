-- Looking at jobs: for people and dashboards. Each look is bounded by indexes and by a limit.

CREATE OR REPLACE FUNCTION weir.batch_of(lane integer, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  low  bigint;
  high bigint;
  mid  bigint;
  b    weir.batch;
BEGIN
  SELECT min(k.seq), max(k.seq) INTO low, high FROM weir.batch k WHERE k.segment = batch_of.segment AND k.lane = batch_of.lane;
  -- Positions grow with seq: bisect for the first batch that reached the job's place.
  WHILE low < high LOOP
    mid := (low + high) / 2;
    SELECT k.* INTO b FROM weir.batch k WHERE k.segment = batch_of.segment AND k.lane = batch_of.lane AND k.seq <= mid
    ORDER BY k.seq DESC LIMIT 1;
    IF (b.pos_xid, b.pos_id) < (batch_of.xid, batch_of.id) THEN
      low := mid + 1;
    ELSE
      high := mid;
    END IF;
  END LOOP;
  -- A late transaction's job is in a later batch than that.
  RETURN QUERY SELECT k.* FROM weir.batch k
    WHERE k.segment = batch_of.segment AND k.lane = batch_of.lane AND k.seq >= low AND batch_of.id = ANY (k.ids)
      AND k.from_xid <= batch_of.xid AND (k.pos_xid, k.pos_id) >= (batch_of.xid, batch_of.id) ORDER BY k.seq LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir.batch_of IS 'The batch that handed out a job of one segment, found by bisection.';

CREATE OR REPLACE FUNCTION weir.job_info(job_id bigint) RETURNS SETOF weir.job_look
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  look weir.job_look;
  c    record;
  a    record;
  b    weir.batch;
  r    record;
  past jsonb := '[]';
BEGIN
  look.cancel_requested := EXISTS (SELECT FROM weir.cancel k WHERE k.id = job_id);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR a IN
    SELECT j.id, j.xid, j.lane, j.segment, j.attempt, j.max_attempts, j.put_off, j.kind, j.args, j.meta, j.enqueued_at, NULL::timestamptz AS run_at
    FROM weir.job j WHERE j.id = job_id
    UNION ALL
    SELECT l.id, l.xid, l.lane, l.segment, l.attempt, l.max_attempts, l.put_off, l.kind, l.args, l.meta, l.enqueued_at, l.run_at
    FROM weir.later l
    WHERE l.id = job_id AND ((l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot))
    ORDER BY attempt, put_off
  LOOP
    look.id := a.id; look.kind := a.kind; look.args := a.args; look.meta := a.meta; look.enqueued_at := a.enqueued_at;
    look.attempt := a.attempt; look.max_attempts := a.max_attempts; look.run_at := a.run_at; look.priority := a.lane % 4 + 1;
    look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = a.lane / 4);
    look.claimed_at := NULL; look.finished_at := NULL; look.worker := NULL; look.output := NULL;
    IF a.run_at IS NOT NULL THEN
      look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'later' END;
      CONTINUE;
    END IF;
    SELECT k.* INTO b FROM weir.batch_of(a.lane, a.segment, a.xid, a.id) k;
    IF FOUND THEN
      look.state := 'running'; look.claimed_at := b.claimed_at; look.worker := b.worker;
    ELSIF a.xid = '1' THEN
      b.seq := NULL;  -- history from before a re-basing, which keeps no batches
    ELSE
      look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'available' END;
      CONTINUE;
    END IF;
    SELECT k.outcome, k.worker, k.finished_at, k.errors[k.n] AS error, k.outputs[k.n] AS output INTO r
    FROM (SELECT x.*, array_position(x.ids, a.id) AS n FROM weir.result x
          WHERE x.lane = a.lane AND (x.seq = b.seq OR b.seq IS NULL) AND a.id = ANY (x.ids)) k
    ORDER BY k.finished_at LIMIT 1;
    IF FOUND THEN
      look.state := r.outcome; look.worker := r.worker; look.finished_at := r.finished_at; look.output := r.output; look.error := r.error;
      IF r.error IS NOT NULL THEN
        past := past || jsonb_build_object('attempt', a.attempt, 'at', r.finished_at, 'outcome', r.outcome, 'error', r.error);
      END IF;
    END IF;
  END LOOP;
  IF look.id IS NOT NULL THEN
    look.errors := past;
    RETURN NEXT look;
  END IF;
END
$$;
COMMENT ON FUNCTION weir.job_info IS
  'One job by id, in state available, running, later, completed, failed or cancelled. No row if the id is unknown or the job has gone with its segment. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.jobs(state text, queue text DEFAULT NULL, most integer DEFAULT 100) RETURNS SETOF weir.job_look
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  lanes integer[] := ARRAY(SELECT q.id * 4 + p FROM weir.queue q, generate_series(0, 3) p WHERE jobs.queue IS NULL OR q.name = jobs.queue);
  found bigint[];
  since timestamptz;
BEGIN
  IF jobs.most IS NULL OR jobs.most NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: jobs shows 1 to 10000 at once, got %', jobs.most USING ERRCODE = '22023';
  ELSIF jobs.state = 'available' THEN
    found := ARRAY(
      SELECT j.id FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
        SELECT u.id, u.xid FROM (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s
        RIGHT JOIN (SELECT 1) one ON true
        CROSS JOIN LATERAL (
          SELECT j.id, j.xid FROM unnest(s.pending, s.pending_after) p(xid, after)
          CROSS JOIN LATERAL (SELECT j.* FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after OFFSET 0) j
          UNION ALL
          (SELECT j.id, j.xid FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
           ORDER BY j.xid, j.id LIMIT jobs.most)) u
        LIMIT jobs.most) j
      ORDER BY l.lane % 4, j.xid, j.id LIMIT jobs.most);
  ELSIF jobs.state = 'running' THEN
    -- No live worker has anything older unfinished than its last heartbeat says.
    SELECT coalesce(min(k.oldest), now()) - interval '1 minute' INTO since FROM (
      SELECT DISTINCT ON (w.id) coalesce(h.oldest, w.at) AS oldest FROM weir.worker w LEFT JOIN weir.heartbeat h ON h.worker = w.id
      WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced) ORDER BY w.id, h.at DESC NULLS LAST) k;
    found := ARRAY(
      SELECT j.id FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
        SELECT u.id, b.claimed_at FROM weir.batch b CROSS JOIN LATERAL (
          SELECT i.id FROM unnest(b.ids) i(id)
          EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq) u
        WHERE b.lane = l.lane AND b.seq > coalesce((
          SELECT o.seq FROM weir.batch o WHERE o.lane = l.lane AND o.claimed_at < since ORDER BY o.seq DESC LIMIT 1), 0)
        ORDER BY b.seq DESC LIMIT jobs.most) j
      ORDER BY j.claimed_at DESC LIMIT jobs.most);
  ELSIF jobs.state = 'later' THEN
    found := ARRAY(
      SELECT l.id FROM (SELECT p.* FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1) c CROSS JOIN LATERAL (
        SELECT l.id FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.lane = ANY (lanes) ORDER BY l.run_at, l.id LIMIT jobs.most) l);
  ELSIF jobs.state = 'completed' THEN
    found := ARRAY(
      SELECT j.id FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
        SELECT i.id, r.finished_at FROM weir.result r, unnest(r.ids) i(id)
        WHERE r.lane = l.lane AND r.outcome = 'completed' ORDER BY r.seq DESC LIMIT jobs.most) j
      ORDER BY j.finished_at DESC LIMIT jobs.most);
  ELSIF jobs.state IN ('failed', 'cancelled') THEN
    found := ARRAY(
      SELECT j.id FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
        SELECT i.id, r.finished_at FROM weir.result r, unnest(r.ids) i(id)
        WHERE r.outcome = jobs.state::weir.outcome AND r.outcome IN ('failed', 'cancelled') AND r.lane = l.lane
        ORDER BY r.seq DESC LIMIT jobs.most) j
      ORDER BY j.finished_at DESC LIMIT jobs.most);
    IF jobs.state = 'cancelled' THEN  -- and those whose tombstone has not been met yet
      found := found || ARRAY(SELECT c.id FROM weir.cancel c ORDER BY c.id DESC LIMIT jobs.most);
    END IF;
  ELSE
    RAISE EXCEPTION 'weir: unknown state %', coalesce(jobs.state, 'null')
      USING ERRCODE = '22023', HINT = 'States are available, running, later, completed, failed and cancelled.';
  END IF;
  RETURN QUERY
    SELECT k.* FROM (SELECT DISTINCT ON (u.id) u.id, u.ord FROM unnest(found) WITH ORDINALITY u(id, ord) ORDER BY u.id, u.ord) u
    CROSS JOIN LATERAL weir.job_info(u.id) k
    WHERE k.state = jobs.state AND (jobs.queue IS NULL OR k.queue = jobs.queue)
    ORDER BY CASE WHEN jobs.state IN ('completed', 'failed', 'cancelled') THEN k.finished_at END DESC NULLS LAST, u.ord LIMIT jobs.most;
END
$$;
COMMENT ON FUNCTION weir.jobs IS
  'Jobs in one state: available in the order they will be claimed, later by run_at, the others newest first; at most so many. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.queues()
RETURNS TABLE (name text, paused_at timestamptz, available bigint, claimed bigint, last_claim timestamptz, workers bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT q.name, max(q.paused_at), sum(k.available)::bigint, sum(coalesce(s.total, 0))::bigint, max(s.claimed_at),
         (SELECT count(*) FROM weir.worker w WHERE NOT w.fenced AND q.name = ANY (w.queues)
            AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced))
  FROM weir.queue q CROSS JOIN LATERAL generate_series(q.id * 4, q.id * 4 + 3) l(lane)
  LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
  CROSS JOIN LATERAL (
    SELECT count(*) AS available FROM (
      SELECT FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
      UNION ALL
      SELECT FROM unnest(s.pending, s.pending_after) p(xid, after)
      CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after OFFSET 0) j
      LIMIT 10000) u) k
  GROUP BY q.name ORDER BY q.name
$$;
COMMENT ON FUNCTION weir.queues IS
  'Queues: available counts at most 10000 of each priority, claimed is all that was ever handed out. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.workers()
RETURNS TABLE (id integer, name text, queues text[], state text, started_at timestamptz, seen_at timestamptz, running integer, reason text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT w.id, w.name, w.queues,
         CASE WHEN f.id IS NOT NULL THEN 'ended' WHEN now() - coalesce(h.at, w.at) > w.lease THEN 'silent' ELSE 'alive' END,
         w.at, coalesce(h.at, w.at), CASE WHEN f.id IS NULL THEN coalesce(h.running, 0) ELSE 0 END, f.name
  FROM weir.worker w
  LEFT JOIN weir.worker f ON f.id = w.id AND f.fenced
  LEFT JOIN LATERAL (SELECT h.* FROM weir.heartbeat h WHERE h.worker = w.id ORDER BY h.at DESC LIMIT 1) h ON true
  WHERE NOT w.fenced ORDER BY w.id DESC LIMIT 10000
$$;
COMMENT ON FUNCTION weir.workers IS 'Workers, newest first: alive, silent (past their lease, about to be fenced) or ended, with the reason. Locks: none that others wait for.';
