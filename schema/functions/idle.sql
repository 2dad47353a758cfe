-- The pending transactions of idle lanes, which were in progress when the lane was last claimed from.

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
  max_queues CONSTANT integer := 500;  -- checked in one call
  max_locked CONSTANT integer := 200;  -- lanes
  min_ended  CONSTANT integer := 4;    -- pending transactions that have ended, before a lane is trimmed; or all of them
  snapshot   pg_snapshot := pg_current_snapshot();
  checked    integer[] := ARRAY(SELECT q.id FROM weir.queue q WHERE q.id > coalesce(pg_sequence_last_value('weir.idle_looked'), 0) ORDER BY q.id LIMIT max_queues);
  upto       integer := CASE WHEN cardinality(checked) = max_queues THEN checked[max_queues] ELSE 0 END;  -- 0: start over
  this_lane  bigint;
  locked     integer := 0;
  trimmed    integer := 0;
  last       record;
  kept       record;
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN 0;
  END IF;
  PERFORM weir._check_cluster();
  FOR this_lane IN
    SELECT l.lane FROM unnest(checked) q(id) CROSS JOIN generate_series(q.id::bigint << 39, (q.id::bigint << 39) + 3) l(lane)
    CROSS JOIN LATERAL (SELECT b.pending FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s
    WHERE (SELECT count(*) FROM unnest(s.pending) p(xid) WHERE pg_visible_in_snapshot(p.xid, snapshot)) >= least(min_ended, nullif(cardinality(s.pending), 0))
  LOOP
    IF locked = max_locked OR clock_timestamp() - now() > interval '100 ms' AND locked > 0 THEN
      upto := (this_lane >> 39)::integer - 1;
      EXIT;
    END IF;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158546, ((this_lane >> 39) * 4 + (this_lane & 3))::integer);
    locked := locked + 1;
    SELECT b.* INTO last FROM weir.batch b WHERE b.lane = this_lane ORDER BY b.seq DESC LIMIT 1;
    -- As in a claim: a new snapshot, taken after the lane's lock; the query below sees at least as much.
    snapshot := pg_current_snapshot();
    SELECT array_agg(p.xid ORDER BY p.ord) AS xids, array_agg(p.after ORDER BY p.ord) AS afters, count(*) AS n INTO kept
    FROM unnest(last.pending, last.pending_after) WITH ORDINALITY p(xid, after, ord)
    WHERE NOT pg_visible_in_snapshot(p.xid, snapshot)
       OR EXISTS (SELECT FROM weir.job j WHERE j.lane = this_lane AND j.xid = p.xid AND j.id > p.after);
    IF kept.n < cardinality(last.pending) THEN
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
      VALUES (this_lane, pg_sequence_last_value('weir.active_job'), 0, 0, last.seq + 1, last.from_xid, last.to_xid, last.pos_xid, last.pos_id,
              last.total, last.claimed_at, 0, kept.xids, kept.afters, '{}');
      trimmed := trimmed + 1;
    END IF;
  END LOOP;
  PERFORM setval('weir.idle_looked', upto);
  RETURN trimmed;
END
$$;
COMMENT ON FUNCTION weir._forget_ended IS
  'Removes pending transactions that have ended and left no jobs from the state of idle lanes, by writing a batch without jobs and without a worker: otherwise each claim would search for their rows again. Checks 500 queues in a call, locks at most 200 lanes, and stops after 0.1 s. Returns the number of lanes. Errors: WR003. Locks: advisory: claims (shared, tried), the lanes (exclusive, tried). Isolation: READ COMMITTED.';
