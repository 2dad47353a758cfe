-- Recovery of attempts whose worker is lost, or does not know that it holds them.
--
-- The database knows what a worker holds: its batches, found by (worker, no), minus their results. weir.settled keeps this query short: it
-- stores the number up to which all batches have ended, and the exceptions. It is insert-only, and a row is written after the results that it
-- relies on: so if the row survives a crash or a failover, the results do. If the row is lost, the query takes longer, but is still correct.

CREATE OR REPLACE FUNCTION weir._unfinished(worker integer, nos bigint[])
RETURNS TABLE (no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamptz, ids bigint[])
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
  SELECT b.no, b.lane, b.seq, b.segment, b.claimed_at,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq)
  FROM unnest(_unfinished.nos) o(no) JOIN weir.batch b ON b.worker = _unfinished.worker AND b.no = o.no
  -- An attempt ends once, so a batch with as many results as jobs has ended, which is quick to check. Reclaiming may have moved one part of a batch
  -- into the segment of the other: the results do not say to which part they belong, so both parts count together.
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq)
$$;
COMMENT ON FUNCTION weir._unfinished IS
  'Those of a worker''s batches with these numbers that have jobs without a result, and these jobs; no jobs if only another part of the batch has some.';

CREATE OR REPLACE FUNCTION weir._unfinished_in(worker integer, after bigint, upto bigint)
RETURNS TABLE (no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamptz, ids bigint[])
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
  SELECT b.no, b.lane, b.seq, b.segment, b.claimed_at,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq)
  FROM weir.batch b
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE b.worker = _unfinished_in.worker AND b.no > _unfinished_in.after AND b.no <= _unfinished_in.upto
    AND coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq)
$$;
COMMENT ON FUNCTION weir._unfinished_in IS 'As weir._unfinished, for all batches after a number and up to another.';

CREATE OR REPLACE FUNCTION weir._batches_after(worker integer, after bigint, max_batches integer) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashagg = off
SET jit = off
AS $$
  SELECT ARRAY(
    SELECT DISTINCT k.no FROM (
      SELECT b.no, sum(cardinality(b.ids)) OVER (ORDER BY b.no ROWS UNBOUNDED PRECEDING) - cardinality(b.ids) AS before
      FROM (SELECT b.no, b.ids FROM weir.batch b WHERE b.worker = _batches_after.worker AND b.no > _batches_after.after ORDER BY b.no LIMIT _batches_after.max_batches) b) k
    WHERE _batches_after.max_batches IS NULL OR k.before < 1500 ORDER BY k.no)
$$;
COMMENT ON FUNCTION weir._batches_after IS
  'The numbers of a worker''s next batches, in order: up to max_batches, but only as many as have about 2,000 jobs together; NULL: all.';

CREATE OR REPLACE FUNCTION weir._holds(worker integer)
RETURNS TABLE (no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamptz, ids bigint[])
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT u.* FROM (SELECT 1) one
  LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = _holds.worker ORDER BY s.no DESC LIMIT 1) m ON true
  CROSS JOIN LATERAL weir._unfinished(_holds.worker, ARRAY(
    SELECT o.no FROM unnest(m.open) o(no)
    UNION ALL SELECT a.no FROM unnest(weir._batches_after(_holds.worker, coalesce(m.no, 0), NULL)) a(no))) u
  WHERE u.ids <> '{}'
$$;
COMMENT ON FUNCTION weir._holds IS
  'The attempts that a worker holds: its batches with jobs that have no result, and these jobs. It reads what the worker has claimed since it was last settled.';

CREATE OR REPLACE FUNCTION weir._relog(
  worker integer, outcome weir.outcome, reason text, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[], after bigint,
  OUT relogged integer, OUT next bigint, OUT jobs bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  per_query   constant integer := 100;   -- batches checked in one statement
  max_jobs    constant integer := 1000;  -- logged in one call, plus the rest of the batches of a statement
  max_batches constant integer := 5000;  -- checked in one call
  max_open    constant integer := 1000;  -- exceptions that are stored
  is_over     boolean := _relog.outcome = 'lost';  -- the worker is fenced
  named       jsonb;                -- the attempts that are not to be ended
  mark        bigint;
  open        bigint[];             -- the exceptions up to mark
  to_check    bigint[] := '{}';     -- the exceptions that are checked again
  checked     integer := 0;         -- how many of them have been
  still       bigint[] := '{}';     -- the batches that are still open, of all that have been checked
  position    bigint;
  moved       boolean := false;     -- mark has changed
  nos         bigint[];
  seen        integer := 0;         -- batches checked
  has_ends    boolean := false;
  busy        integer[];            -- jobs that are being completed in open transactions; NULL until they are needed
  found       record;
BEGIN
  relogged := 0;
  jobs := '{}';
  SELECT coalesce(max(s.no), 0) INTO mark FROM weir.settled s WHERE s.worker = _relog.worker;
  open := coalesce((SELECT s.open FROM weir.settled s WHERE s.worker = _relog.worker AND s.no = mark), '{}');
  IF _relog.after = 0 THEN
    to_check := open;
  ELSE
    still := open;  -- checked at the start of this round
  END IF;
  position := greatest(mark, _relog.after);
  named := coalesce((
    SELECT jsonb_object_agg(format('%s %s %s', _relog.lanes[k.nr], _relog.seqs[k.nr], k.id), true)
    FROM unnest(ARRAY(SELECT b.nr FROM unnest(_relog.sizes) WITH ORDINALITY b(size, nr) CROSS JOIN generate_series(1, b.size) ORDER BY b.nr), _relog.ids) k(nr, id)), '{}');

  LOOP
    -- First the exceptions, then batches claimed since, per_query at a time.
    IF checked < cardinality(to_check) THEN
      nos := to_check[checked + 1 : checked + per_query / 20];
    ELSE
      nos := weir._batches_after(_relog.worker, position, per_query);
      EXIT WHEN nos = '{}';
    END IF;
    SELECT array_agg(g.lane) FILTER (WHERE g.gone) AS lanes, array_agg(g.seq) FILTER (WHERE g.gone) AS seqs,
           array_agg(g.segment) FILTER (WHERE g.gone) AS segments, array_agg(g.id) FILTER (WHERE g.gone) AS ids,
           (count(*) FILTER (WHERE g.gone))::integer AS gone, coalesce(array_agg(DISTINCT g.no) FILTER (WHERE NOT g.gone), '{}') AS open INTO found
    FROM (SELECT u.no, u.lane, u.seq, u.segment, i.id,
                 NOT named ? format('%s %s %s', u.lane, u.seq, i.id) AND hashint8(i.id) <> ALL (coalesce(busy, '{}')) AS gone
          FROM (SELECT k.* FROM weir._unfinished(_relog.worker, nos) k WHERE checked < cardinality(to_check)
                UNION ALL
                SELECT k.* FROM weir._unfinished_in(_relog.worker, position, nos[cardinality(nos)]) k WHERE checked >= cardinality(to_check)) u
          CROSS JOIN unnest(u.ids) i(id)) g;
    IF found.gone > 0 AND NOT has_ends THEN
      -- This lock makes results wait, so it is taken only if there is an attempt to end that is not being completed. Then the batches are checked again.
      IF busy IS NULL THEN
        busy := weir._being_completed();
      ELSE
        busy := weir._hold_ends(_relog.worker);
        has_ends := true;
      END IF;
      CONTINUE;
    END IF;
    IF found.gone > 0 THEN
      PERFORM weir._end_attempts(_relog.worker, found.lanes, found.seqs, found.segments, found.ids,
        array_fill(_relog.outcome, ARRAY[found.gone]), array_fill(_relog.reason, ARRAY[found.gone]), NULL, NULL);
      relogged := relogged + found.gone;
      jobs := jobs || found.ids;
    END IF;
    seen := seen + cardinality(nos);
    still := still || found.open;
    IF checked < cardinality(to_check) THEN
      checked := checked + cardinality(nos);
    ELSE
      position := nos[cardinality(nos)];
      IF _relog.after <= mark AND cardinality(still) <= max_open THEN
        mark := position;
        open := still;
        moved := true;
      END IF;
    END IF;
    IF relogged >= max_jobs OR seen >= max_batches OR found.gone > 0 AND NOT is_over THEN
      next := CASE WHEN checked < cardinality(to_check) THEN 0 ELSE position END;
      EXIT;
    END IF;
  END LOOP;

  IF is_over AND next IS NULL AND still = '{}' THEN
    INSERT INTO weir.settled (worker, no, open) VALUES (_relog.worker, 9223372036854775807, '{}') ON CONFLICT DO NOTHING;
  ELSIF moved THEN
    INSERT INTO weir.settled (worker, no, open) VALUES (_relog.worker, mark, open);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._relog IS
  'Ends unfinished attempts of a worker, except the named ones, and logs those that follow: some thousands in one call, from at most 5,000 batches. It skips attempts that are being completed in open transactions, which stay exceptions. jobs: their ids. next: pass it as after in another call to continue; NULL: finished. The caller holds the worker''s claims, and keeps segments from being reclaimed.';

CREATE OR REPLACE FUNCTION weir._reconcile(worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[], after bigint DEFAULT 0,
                                          reason text DEFAULT 'the worker did not know that it held this job', OUT released integer, OUT next bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation('reconcile'), weir._hold_briefly();
  PERFORM weir._check_array('reconcile', 'lanes', _reconcile.lanes, true), weir._check_array('reconcile', 'seqs', _reconcile.seqs, true),
          weir._check_array('reconcile', 'sizes', _reconcile.sizes, true), weir._check_array('reconcile', 'ids', _reconcile.ids, true);
  IF cardinality(_reconcile.lanes) IS DISTINCT FROM cardinality(_reconcile.seqs) OR cardinality(_reconcile.lanes) IS DISTINCT FROM cardinality(_reconcile.sizes)
     OR EXISTS (SELECT FROM unnest(_reconcile.sizes) k(size) WHERE k.size < 0)
     OR coalesce((SELECT sum(k.size) FROM unnest(_reconcile.sizes) k(size)), 0) IS DISTINCT FROM coalesce(cardinality(_reconcile.ids), 0) THEN
    RAISE EXCEPTION 'weir: reconcile got % lanes, % seqs, % sizes and % ids, which don''t match', cardinality(_reconcile.lanes), cardinality(_reconcile.seqs),
      cardinality(_reconcile.sizes), cardinality(_reconcile.ids) USING ERRCODE = '22023', HINT = 'Pass a lane, a seq and a size for each batch; the sizes must add up to the number of ids.';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158548, _reconcile.worker);
  PERFORM weir._check_worker(_reconcile.worker);
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _reconcile.worker);  -- after a claim that may still be running
  SELECT r.relogged, r.next INTO released, next
  FROM weir._relog(_reconcile.worker, 'released', _reconcile.reason, _reconcile.lanes, _reconcile.seqs, _reconcile.sizes, _reconcile.ids,
                  coalesce(_reconcile.after, 0)) r;
END
$$;
COMMENT ON FUNCTION weir._reconcile IS
  'Compares the attempts that a worker holds according to the database with those that it says it holds: lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs that the worker has not recorded. Other attempts are released for this reason, without being used up, unless an open transaction completes them. Call it while the worker has no claim under way: after a claim or a connection failed, and now and then. It works in bounded steps: if next is not NULL, call again and pass it as after. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and claims (shared), the worker''s claims (exclusive, waiting at most 5 s), and its ends if there is something to release. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._fence(worker integer, reason text DEFAULT 'its worker was fenced') RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation('fence'), weir._hold_briefly();
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = _fence.worker) THEN
    RAISE EXCEPTION 'weir: worker % is unknown', _fence.worker USING ERRCODE = 'WR001', HINT = 'Pass an id that weir.start returned.';
  END IF;
  -- A record or claim in flight holds one of them: then the worker is alive, and a later call tries again.
  IF NOT (pg_try_advisory_xact_lock(1464158548, _fence.worker) AND pg_try_advisory_xact_lock(1464158552, _fence.worker)) THEN
    RETURN false;
  END IF;
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = _fence.worker AND w.fenced) THEN
    INSERT INTO weir.worker (id, fenced, at, name) VALUES (_fence.worker, true, clock_timestamp(), left(_fence.reason, 200));
  END IF;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._fence IS
  'Ends a worker: after the commit it can neither claim nor record. _settle then releases its unfinished attempts; the rescuer calls it too. Returns false, and does nothing, while a transaction of the worker is claiming or recording. Errors: WR001 (the worker is unknown), WR004. Locks: advisory: the worker and its claims (exclusive, tried). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._settle(worker integer, OUT relogged integer, OUT more boolean, OUT jobs bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  why text;
BEGIN
  PERFORM weir._check_isolation('settle'), weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _settle.worker);
  SELECT w.name INTO why FROM weir.worker w WHERE w.id = _settle.worker AND w.fenced;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'weir: worker % is not fenced', _settle.worker USING ERRCODE = '22023', HINT = 'Call weir._fence first.';
  ELSIF EXISTS (SELECT FROM weir.settled s WHERE s.worker = _settle.worker AND s.no = 9223372036854775807) THEN
    relogged := 0;
    more := false;
    jobs := '{}';
  ELSE
    SELECT r.relogged, r.next IS NOT NULL, r.jobs INTO relogged, more, jobs FROM weir._relog(_settle.worker, 'lost', why, '{}', '{}', '{}', '{}', 0) r;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._settle IS
  'Logs unfinished attempts of a fenced worker again (or fails the job, if no attempts are left): some thousands in one call. jobs: their ids; more: call again. Attempts that an open transaction completes are left for a later call. Errors: 22023 (not fenced), WR004. Locks: advisory: claims (shared), the worker''s claims and ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._rescue() RETURNS TABLE (worker integer, reason text, relogged integer, more boolean, error text, jobs bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  lost_worker record;
  steps       integer := 0;
  is_new      boolean := false;
BEGIN
  PERFORM weir._check_isolation('rescue'), weir._hold_briefly();
  IF NOT pg_try_advisory_xact_lock(1464158547, 6) THEN
    RETURN;
  END IF;
  FOR worker, reason, more, error IN SELECT s.worker, s.reason, s.more, s.error FROM weir._fence_silent() s LOOP
    is_new := is_new OR more;
    RETURN NEXT;
  END LOOP;
  IF is_new THEN
    RETURN;  -- a missed worker that is alive waits for this commit to write its last word
  END IF;
  -- Like claims, this must not run while a segment is being emptied.
  IF NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN;
  END IF;
  -- Each call makes a bounded number of steps. Workers with an open completion come last, because that may be all they have left. The order is
  -- otherwise random, so that no worker waits forever behind workers that can't be settled.
  FOR lost_worker IN
    SELECT f.id, f.name FROM weir.worker f
    WHERE f.fenced AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = f.id AND s.no = 9223372036854775807)
    ORDER BY f.id = ANY (ARRAY(SELECT weir._held(1464158553, 'ShareLock'))), random()
  LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158552, lost_worker.id);  -- another session settles it, or its last claim has not ended
    worker := lost_worker.id;
    reason := lost_worker.name;
    BEGIN
      SELECT s.relogged, s.more, NULL, s.jobs INTO relogged, more, error, jobs FROM weir._settle(lost_worker.id) s;
    EXCEPTION WHEN OTHERS THEN
      relogged := 0;
      more := false;
      error := SQLERRM;
      jobs := '{}';
    END;
    RETURN NEXT;
    steps := steps + 1;
    EXIT WHEN more OR relogged >= 1000 OR steps = 20;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._rescue IS
  'Fences workers whose session has ended, or that were silent past their lease, and logs the unfinished attempts of fenced workers again, in bounded steps. Returns for each worker why it ended, how many attempts were logged (NULL for one that was just fenced or is missing), and the ids of their jobs; if more is true, call again; error is why a worker could not be settled, which does not delay the others. Call it about twice a second. Errors: WR004. Locks: advisory step 6, claims (shared) and the workers'' claims (tried); see _fence_silent, _fence and _settle. Isolation: READ COMMITTED.';
