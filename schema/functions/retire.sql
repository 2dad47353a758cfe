-- When a cancellation by filter is over: when no unfinished job is left that it describes. It is found out in three steps, each of which stays true:
--
--   1. All claims that may not have seen it are over, and have taken batches up to a known number. Later claims return none of its jobs.
--   2. The transactions that enqueued its jobs have ended, none of its jobs is left in batches up to that number, and none is scheduled. So
--      all that are left wait to be claimed, and will be ended by a claim.
--   3. All lanes have been claimed past the rows that existed then.
--
-- Of a flow it is known how many members are unfinished, so its cancellation is over when there are none, and those that enqueued them have ended.

CREATE OR REPLACE FUNCTION weir._retire_cancellations() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  nos bigint[];
  w   weir.cancellation_where;
BEGIN
  IF NOT EXISTS (SELECT FROM weir.cancellation_where) THEN
    IF pg_relation_size('weir.reprieve') = 0 THEN
      RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(1464158547, 0);  -- after claims that have read a cancellation
    LOCK TABLE weir.reprieve IN ACCESS EXCLUSIVE MODE NOWAIT;
    IF EXISTS (SELECT FROM weir.cancellation_where) THEN
      RETURN NULL;
    END IF;
    TRUNCATE weir.reprieve;
    RETURN 'emptied reprieve';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();

  IF weir._covered_cancellations('{}') <> '{}' THEN
    BEGIN
      LOCK TABLE weir.cancellation_where IN ROW EXCLUSIVE MODE;
      LOCK TABLE weir.reprieve IN SHARE MODE NOWAIT;
      -- One from which jobs were retried does not take the place of others: these may have been committed later, and mean such a job.
      nos := weir._covered_cancellations(ARRAY(SELECT DISTINCT r.upto FROM weir.reprieve r WHERE r.since > 0));
      DELETE FROM weir.cancellation_where c WHERE c.no = ANY (nos);
      IF FOUND THEN
        RETURN 'merged cancellations';
      END IF;
    EXCEPTION WHEN lock_not_available THEN NULL;  -- a job is being retried
    END;
  END IF;

  nos := ARRAY(SELECT c.no FROM weir.cancellation_where c WHERE c.batches IS NULL);
  IF nos <> '{}' THEN
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      RAISE SQLSTATE 'WR099';  -- releases it
    EXCEPTION WHEN SQLSTATE 'WR099' THEN
      NULL;
    END;
    UPDATE weir.cancellation_where c SET batches = coalesce(pg_sequence_last_value('weir.batch_no'), 0), xid = pg_current_xact_id() WHERE c.no = ANY (nos);
    RETURN 'noted cancellations';
  END IF;

  -- Those who may have added jobs before have ended, which the last cut has seen, or there is nothing that it has not; and so have all members: what runs again was
  -- retried since. The cancellation is counted, so that who retries the flow sees it.
  DELETE FROM weir.cancellation_where d
  WHERE d.flow IS NOT NULL
    AND d.xid <= (SELECT pg_snapshot_xmin(CASE WHEN EXISTS (SELECT FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e
                                                            CROSS JOIN LATERAL (SELECT FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high LIMIT 1) a)
                                               THEN c.snapshot ELSE pg_current_snapshot() END)
                  FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1)
    AND coalesce((SELECT (d.is_late OR p.cancelled_no >= d.no) AND p.jobs = p.completed + p.failed + p.cancelled FROM weir.fold p WHERE p.flow = d.flow ORDER BY p.cut DESC LIMIT 1),
                 NOT EXISTS (SELECT FROM weir.flow f WHERE f.id = d.flow));
  IF FOUND THEN
    RETURN 'retired a cancellation';
  END IF;
  PERFORM weir._lock_log();
  SELECT c.* INTO w FROM weir.cancellation_where c WHERE c.flow IS NULL ORDER BY random() LIMIT 1;
  IF w.no IS NULL THEN
    RETURN NULL;
  ELSIF w.clear_xid IS NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= w.xid AND weir._none_started(w) AND weir._none_scheduled(w) THEN
    UPDATE weir.cancellation_where c SET clear_xid = pg_current_xact_id() WHERE c.no = w.no;
    RETURN 'cleared a cancellation';
  ELSIF w.clear_xid IS NOT NULL AND weir._all_claimed(w) THEN
    DELETE FROM weir.cancellation_where c WHERE c.no = w.no;
    RETURN 'retired a cancellation';
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._retire_cancellations IS
  'Takes the next step to retire cancellations by filter, of one of them, chosen at random; merges those with the same filter, and those that one of the newest covers; and empties weir.reprieve when none is left. Returns what it did, or NULL. The caller is weir._tidy. Errors: WR003, 55P03 (a lock is held: try again later). Locks: claims (exclusive, for a moment, waiting as long as lock_timeout); ACCESS SHARE on the log; to merge, SHARE NOWAIT on weir.reprieve, for which retries of jobs wait that cancellations concern.';

CREATE OR REPLACE FUNCTION weir._covered_cancellations(others bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(
    SELECT d.no FROM weir.cancellation_where d WHERE d.no IN (
      SELECT k.no FROM (
        SELECT c.no, c.upto, max(c.upto) FILTER (WHERE c.no <> ALL (_covered_cancellations.others))
                               OVER (PARTITION BY c.queue, c.kinds, c.meta, c.priority, c.enqueued_after, c.enqueued_before, c.key, c.flow, c.is_late ORDER BY c.no
                                     ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS covered
        FROM weir.cancellation_where c) k
      WHERE k.covered >= k.upto)
    -- Of wider filters, only the newest are compared with all others.
    OR EXISTS (SELECT FROM (SELECT n.* FROM weir.cancellation_where n WHERE n.no <> ALL (_covered_cancellations.others) ORDER BY n.no DESC LIMIT 10 OFFSET 0) n
               WHERE n.no > d.no AND weir._covers(n::weir.cancellation_where, d)))
$$;
COMMENT ON FUNCTION weir._covered_cancellations IS 'The cancellations by filter that are not needed, because a later one means all their jobs: one with another number than others. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._none_started(w weir.cancellation_where) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most     CONSTANT integer := 1000;  -- batches of a worker that are checked at once
  max_open CONSTANT integer := 1000;  -- as in _relog
  h        record;
  held     record;
BEGIN
  FOR h IN
    SELECT i.id, coalesce(m.no, 0) AS mark, coalesce(m.open, '{}') AS open, ARRAY(
      SELECT b.no FROM weir.batch b WHERE b.worker = i.id AND b.no > coalesce(m.no, 0) AND b.no <= w.batches ORDER BY b.no LIMIT most) AS nos
    FROM unnest(weir._holders()) i(id)
    LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = i.id ORDER BY s.no DESC LIMIT 1) m ON true
  LOOP
    CONTINUE WHEN h.nos = '{}' AND NOT (w.batches >= ANY (h.open));
    SELECT coalesce(array_agg(DISTINCT u.no), '{}') AS open, coalesce(bool_or(u.no <= w.batches AND j.id <= w.upto AND weir._is_cancelled_where(j.id)), false) AS has_some INTO held
    FROM weir._unfinished(h.id, h.nos || h.open) u CROSS JOIN LATERAL unnest(u.ids) j(id);
    IF cardinality(h.nos) = most AND cardinality(held.open) <= max_open THEN
      -- A worker that does not say what it holds is not settled otherwise. All its claims up to w.batches have been committed.
      INSERT INTO weir.settled (worker, no, open) VALUES (h.id, h.nos[most], held.open) ON CONFLICT DO NOTHING;
    END IF;
    IF held.has_some OR cardinality(h.nos) = most THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._none_started IS
  'Reports whether no job of a cancellation is left in the batches that were claimed by those that may not have seen it. If a worker has a thousand that it has not been settled past, it is settled past these that have ended, and the answer is false.';

CREATE OR REPLACE FUNCTION weir._none_scheduled(w weir.cancellation_where) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET cursor_tuple_fraction = 0.001
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 10000;  -- rows read in one way
  ids   bigint[] := ARRAY(SELECT q.id FROM weir.queue q WHERE w.queue IS NULL OR q.name = w.queue);
  c     weir.promotion;
  way   text;
  r     record;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  -- Rows that came behind the cursor of promotion, then those that are due from now on; if these are too many, those with the ids.
  FOREACH way IN ARRAY ARRAY['late', 'due', 'id'] LOOP
    SELECT count(*) AS n, array_agg(l.id) FILTER (WHERE l.waits) AS ids, array_agg(l.attempt) FILTER (WHERE l.waits) AS attempts, array_agg(l.kind) FILTER (WHERE l.waits) AS kinds,
           array_agg(l.meta) FILTER (WHERE l.waits) AS metas, array_agg(l.enqueued_at) FILTER (WHERE l.waits) AS enqueued, array_agg(l.key) FILTER (WHERE l.waits) AS keys, array_agg(l.flow) FILTER (WHERE l.waits) AS flows INTO r
    FROM (
      SELECT u.*, u.id <= w.upto AND u.lane >> 39 = ANY (ids) AND (w.priority IS NULL OR u.lane & 3 = w.priority - 1) AND weir._waits_later(c, u.run_at, u.id, u.xid) AS waits
      FROM (
        (SELECT l.* FROM weir.later l WHERE way = 'late' AND l.xid >= pg_snapshot_xmin(c.snapshot) ORDER BY l.xid LIMIT most + 1)
        UNION ALL
        (SELECT l.* FROM weir.later l WHERE way = 'due' AND (l.run_at, l.id) > (c.due, c.due_id) ORDER BY l.run_at, l.id LIMIT most + 1)
        UNION ALL
        (SELECT l.* FROM weir.later l WHERE way = 'id' AND l.id BETWEEN 1 AND w.upto ORDER BY l.id LIMIT most + 1)) u) l;
    IF r.ids IS NOT NULL AND weir._cancelled_of(ARRAY[w], r.ids, r.attempts, r.kinds, r.metas, r.enqueued, r.keys, NULL, r.flows) <> '{}' OR r.n > most AND way <> 'due' THEN
      RETURN false;
    END IF;
    EXIT WHEN way = 'due' AND r.n <= most;
  END LOOP;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._none_scheduled IS
  'Reports whether no job of a cancellation is scheduled. False, too, while that would take reading more than 10000 rows, in the order of run_at and in that of ids.';

CREATE OR REPLACE FUNCTION weir._all_claimed(w weir.cancellation_where) RETURNS boolean
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
  most  CONSTANT integer := 2000;  -- lanes of keys that are looked at
  name  text;
  lanes bigint[];
  keys  record;
BEGIN
  IF w.key IS NOT NULL THEN
    lanes := weir._lanes_of_key(w.queue, w.key);
  ELSE
    lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE w.queue IS NULL OR q.name = w.queue);
    FOR name IN SELECT DISTINCT k.queue FROM weir.with_keys k WHERE w.queue IS NULL OR k.queue = w.queue LOOP
      keys := weir._waiting_keys(name, most);
      IF NOT keys.is_whole OR cardinality(lanes) + cardinality(keys.lanes) > 100 * most THEN
        RETURN false;
      END IF;
      lanes := lanes || keys.lanes;
    END LOOP;
  END IF;
  RETURN NOT EXISTS (
    SELECT FROM unnest(lanes) l(lane) CROSS JOIN LATERAL weir._state_of(l.lane) s
    WHERE (w.priority IS NULL OR l.lane & 3 = w.priority - 1)
      AND (EXISTS (SELECT FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0)) AND j.xid < w.clear_xid)
           OR EXISTS (SELECT FROM unnest(s.pending, s.pending_after) d(xid, after)
                      CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = d.xid AND j.id > d.after LIMIT 1) j
                      WHERE d.xid < w.clear_xid)));
END
$$;
COMMENT ON FUNCTION weir._all_claimed IS
  'Reports whether claims have passed all jobs that could have been claimed when a cancellation had no other ones left. False, too, while jobs of very many keys wait.';
