-- What becomes of attempts whose worker is gone, or does not know of them.

CREATE OR REPLACE FUNCTION weir.relog(worker integer, outcome weir.outcome, reason text, known_lanes integer[], known_seqs bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  since timestamptz;
  l     integer;
  b     record;
  u     bigint;
  n     integer := 0;
BEGIN
  SELECT k.oldest - interval '1 minute' INTO since FROM (
    SELECT h.at, h.oldest FROM weir.heartbeat h WHERE h.worker = relog.worker
    UNION ALL SELECT w.at, w.at FROM weir.worker w WHERE w.id = relog.worker AND NOT w.fenced) k
  ORDER BY k.at DESC LIMIT 1;
  FOR l IN SELECT q.id * 4 + p FROM weir.worker w, weir.queue q, generate_series(0, 3) p
           WHERE w.id = relog.worker AND NOT w.fenced AND q.name = ANY (w.queues) ORDER BY 1 LOOP
    FOR b IN SELECT b.* FROM weir.batch b WHERE b.lane = l ORDER BY b.seq DESC LOOP
      EXIT WHEN b.claimed_at < since;
      CONTINUE WHEN b.worker <> relog.worker
        OR EXISTS (SELECT FROM unnest(relog.known_lanes, relog.known_seqs) k(lane, seq) WHERE k.lane = b.lane AND k.seq = b.seq);
      FOR u IN SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq LOOP
        PERFORM weir.end_attempt(relog.worker, b.segment, b.lane, b.seq, b.from_xid, b.to_xid, u, relog.outcome, relog.reason, NULL, NULL);
        n := n + 1;
      END LOOP;
    END LOOP;
  END LOOP;
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir.relog IS
  'Ends a worker''s unfinished attempts, but for those of the batches known, and logs those that follow. It looks back along each lane to where the worker''s last heartbeat says that nothing is unfinished. The caller holds the worker''s lock alone and keeps reclaiming out.';

CREATE OR REPLACE FUNCTION weir.fence(worker integer, reason text DEFAULT 'its worker was fenced') RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir.check_isolation('fence');
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = fence.worker) THEN
    RAISE EXCEPTION 'weir: worker % is not known', fence.worker USING ERRCODE = 'WR001';
  END IF;
  -- Results and a claim in flight hold them: their worker is alive enough to be asked again later.
  IF NOT (pg_try_advisory_xact_lock(1464158548, fence.worker) AND pg_try_advisory_xact_lock(1464158552, fence.worker)) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0);
  IF EXISTS (SELECT FROM weir.worker w WHERE w.id = fence.worker AND w.fenced) THEN
    RETURN 0;
  END IF;
  INSERT INTO weir.worker (id, fenced, at, name) VALUES (fence.worker, true, clock_timestamp(), left(fence.reason, 200));
  RETURN weir.relog(fence.worker, 'lost', fence.reason, '{}', '{}');
END
$$;
COMMENT ON FUNCTION weir.fence IS
  'Ends a worker: from the commit on it can neither claim nor record, and its unfinished attempts are logged again (or failed, if that was their last). Returns how many; NULL, and nothing done, while a transaction of the worker''s is recording; 0 if it was fenced before. Locks: advisory: the worker (exclusive, tried), claims (shared). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.give_back(worker integer, known_lanes integer[], known_seqs bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
AS $$
BEGIN
  PERFORM weir.check_isolation('give_back');
  PERFORM pg_advisory_xact_lock(1464158548, give_back.worker);
  PERFORM pg_advisory_xact_lock(1464158552, give_back.worker);  -- after a claim that may still be running
  PERFORM weir.check_worker(give_back.worker);
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0);
  RETURN weir.relog(give_back.worker, 'released', 'the connection was lost during the claim', give_back.known_lanes, give_back.known_seqs);
END
$$;
COMMENT ON FUNCTION weir.give_back IS
  'For a worker whose connection broke during a claim: logs again, as not started, what was handed to it in batches other than those it knows. Returns how many. Errors: WR001, WR004. Locks: advisory: the worker (exclusive, waiting at most 5 s), claims (shared). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.rescue() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  dead    record;
  rescued integer := 0;
BEGIN
  PERFORM weir.check_isolation('rescue');
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN 0;
  END IF;
  FOR dead IN
    SELECT w.id, w.name, clock_timestamp() - coalesce(max(h.at), w.at) AS silent
    FROM weir.worker w LEFT JOIN weir.heartbeat h ON h.worker = w.id
    WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
    GROUP BY w.id, w.name, w.at, w.lease
    -- A server that was down has heard of nobody: that is not their silence.
    HAVING clock_timestamp() - greatest(coalesce(max(h.at), w.at), pg_postmaster_start_time()) > w.lease
    ORDER BY w.id LIMIT 20
  LOOP
    rescued := rescued + coalesce(weir.fence(dead.id,
      format('worker %s (%s) was lost: silent for %s', dead.id, dead.name, date_trunc('second', dead.silent))), 0);
  END LOOP;
  RETURN rescued;
END
$$;
COMMENT ON FUNCTION weir.rescue IS
  'Fences workers that were silent past their lease and logs their unfinished attempts again; returns how many attempts. Locks: advisory step 1 (tried); see fence. Isolation: READ COMMITTED.';
