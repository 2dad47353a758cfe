-- What an idle lane remembers of transactions that were in progress when it was last claimed from.

CREATE OR REPLACE FUNCTION weir._forget_ended() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  queues   CONSTANT integer := 500;  -- looked at in a call
  most     CONSTANT integer := 200;  -- lanes locked
  few      CONSTANT integer := 4;    -- fewer may stay
  snapshot pg_snapshot := pg_current_snapshot();
  looked   integer[] := ARRAY(SELECT q.id FROM weir.queue q WHERE q.id > coalesce(pg_sequence_last_value('weir.idle_looked'), 0) ORDER BY q.id LIMIT queues);
  upto     integer := CASE WHEN cardinality(looked) = queues THEN looked[queues] ELSE 0 END;  -- 0: from the beginning again
  one      integer;
  locked   integer := 0;
  trimmed  integer := 0;
  last     record;
  kept     record;
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN 0;
  END IF;
  PERFORM weir._check_cluster();
  FOR one IN
    SELECT l.lane FROM unnest(looked) q(id) CROSS JOIN generate_series(q.id * 4, q.id * 4 + 3) l(lane)
    CROSS JOIN LATERAL (SELECT b.pending FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s
    WHERE (SELECT count(*) FROM unnest(s.pending) p(xid) WHERE pg_visible_in_snapshot(p.xid, snapshot)) >= least(few, nullif(cardinality(s.pending), 0))
  LOOP
    IF locked = most OR clock_timestamp() - now() > interval '100 ms' AND locked > 0 THEN
      upto := one / 4 - 1;
      EXIT;
    END IF;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158546, one);
    locked := locked + 1;
    SELECT b.* INTO last FROM weir.batch b WHERE b.lane = one ORDER BY b.seq DESC LIMIT 1;
    -- As a claim does: with the lane's lock comes a new snapshot, and what is read below sees at least as much.
    snapshot := pg_current_snapshot();
    SELECT array_agg(p.xid ORDER BY p.ord) AS xids, array_agg(p.after ORDER BY p.ord) AS afters, count(*) AS n INTO kept
    FROM unnest(last.pending, last.pending_after) WITH ORDINALITY p(xid, after, ord)
    WHERE NOT pg_visible_in_snapshot(p.xid, snapshot)
       OR EXISTS (SELECT FROM weir.job j WHERE j.lane = one AND j.xid = p.xid AND j.id > p.after);
    IF kept.n < cardinality(last.pending) THEN
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
      VALUES (one, pg_sequence_last_value('weir.active_job'), 0, 0, last.seq + 1, last.from_xid, last.to_xid, last.pos_xid, last.pos_id,
              last.total, last.claimed_at, 0, kept.xids, kept.afters, '{}');
      trimmed := trimmed + 1;
    END IF;
  END LOOP;
  PERFORM setval('weir.idle_looked', upto);
  RETURN trimmed;
END
$$;
COMMENT ON FUNCTION weir._forget_ended IS
  'Has idle lanes forget the pending transactions that have ended and left nothing there, by a batch of nobody without jobs: each claim would look for their rows anew. Looks at 500 queues in a call, locks at most 200 lanes, and stops after 0.1 s. Returns how many lanes. Errors: WR003. Locks: advisory: claims (shared, tried), the lanes (tried). Isolation: READ COMMITTED.';
