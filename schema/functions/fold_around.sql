-- What a cut means at once for what is around a flow and within it: see functions/fold.sql.
--
-- That a flow has ended is passed on by an arrival, so it is known one cut later, level by level. That an end is taken back, because a member was retried or
-- added, must not be late: else, in the same cut, the flow around it would end, or a task that comes after it start, though what they wait for runs again.
-- Nor must a cancellation: else, tasks within the flow would start in the meantime. Therefore a cut does both itself, at every level.

CREATE OR REPLACE FUNCTION weir._settle_sums(sums weir.fold[], was weir.fold[], at timestamptz) RETURNS weir.fold[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    SELECT ROW(t.flow, t.cut, t.jobs, t.completed, t.failed, t.cancelled + k.skips::integer, t.generation + (k.starts_over AND t.fired_at IS NOT NULL)::integer,
               t.is_sealed, t.is_cancelled, t.is_abandoned,
               CASE WHEN t.is_sealed AND t.jobs = t.completed + t.failed + t.cancelled + k.skips::integer THEN coalesce(CASE WHEN NOT k.starts_over THEN t.fired_at END, _settle_sums.at) END,
               t.waits, t.broken, k.skips, CASE WHEN t.job IS NULL AND t.waits = 0 AND NOT k.skips AND t.jobs > 0 THEN nextval('weir.job_id') ELSE t.job END, t.counters, t.cancelled_no, t.retried_no)::weir.fold
    FROM unnest(_settle_sums.sums) WITH ORDINALITY t
    CROSS JOIN LATERAL (SELECT coalesce(t.job IS NULL AND t.jobs > 0 AND (t.broken > 0 OR t.waits IS NOT NULL AND t.is_cancelled), false) AS skips OFFSET 0) s
    -- One that had ended as cancelled, and is cancelled no more, ends anew.
    CROSS JOIN LATERAL (SELECT s.skips, NOT s.skips AND (t.is_skipped OR NOT t.is_cancelled AND coalesce((_settle_sums.was[t.ordinality]).is_cancelled, false)) AS starts_over OFFSET 0) k
    ORDER BY t.ordinality);
END
$$;
COMMENT ON FUNCTION weir._settle_sums IS
  'What follows from the sums of some flows for themselves: which tasks start, and get a job, or never will; and which flows have ended. was is what was counted before. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._take_along(INOUT sums weir.fold[], INOUT was weir.fold[], cut bigint)
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
  retried weir.fold[] := ARRAY(SELECT n FROM unnest(_take_along.sums) n WHERE n.retried_no IS NOT NULL);
  this    record;
  f       weir.fold;
  is_dead boolean;
BEGIN
  FOR this IN
    WITH RECURSIVE changed AS MATERIALIZED (
      SELECT n.flow, n.is_cancelled, CASE WHEN n.is_cancelled THEN n.cancelled_no ELSE n.retried_no END AS no
      FROM unnest(_take_along.sums) WITH ORDINALITY n
      WHERE n.is_cancelled <> coalesce((_take_along.was[n.ordinality]).is_cancelled, false) OR n.is_cancelled AND n.cancelled_no > (_take_along.was[n.ordinality]).cancelled_no
    ), within AS (
      SELECT c.flow, c.is_cancelled, c.no, 0 AS depth FROM changed c
      UNION ALL
      SELECT d.id, w.is_cancelled, w.no, w.depth + 1 FROM within w CROSS JOIN LATERAL (SELECT d.id FROM weir.flow d WHERE d.parent = w.flow OFFSET 0) d
      -- A retry that undoes a cancellation does so for all within.
      WHERE NOT (w.is_cancelled AND EXISTS (SELECT FROM unnest(retried) r WHERE r.flow = w.flow AND r.retried_no >= w.no))
    )
    SELECT k.flow, max(k.nr) AS nr, max(k.no) FILTER (WHERE k.is_cancelled) AS cancelled_no, max(k.no) FILTER (WHERE NOT k.is_cancelled) AS retried_no
    FROM (SELECT w.flow, NULL::bigint AS nr, w.is_cancelled, w.no FROM within w WHERE w.depth > 0
          UNION ALL
          SELECT n.flow, n.ordinality, NULL, NULL
          FROM unnest(_take_along.sums) WITH ORDINALITY n
          WHERE EXISTS (SELECT FROM changed)) k
    GROUP BY k.flow HAVING bool_or(k.nr IS NULL)
  LOOP
    IF this.nr IS NOT NULL THEN
      f := sums[this.nr];
    ELSE
      SELECT p.* INTO f FROM weir.fold p WHERE p.flow = this.flow ORDER BY p.cut DESC LIMIT 1;
      CONTINUE WHEN NOT FOUND;  -- its first count looks at the flow around it
    END IF;
    is_dead := coalesce(greatest(f.cancelled_no, this.cancelled_no) > coalesce(greatest(f.retried_no, this.retried_no), 0), false);
    -- What has ended is not cancelled, but for a task that would start now only because it is no longer.
    CONTINUE WHEN f.is_cancelled = is_dead OR is_dead AND (f.fired_at IS NOT NULL OR f.is_sealed AND f.jobs = f.completed + f.failed + f.cancelled) AND NOT (f.is_skipped AND coalesce((was[this.nr]).is_cancelled, false));
    IF this.nr IS NULL THEN
      this.nr := cardinality(sums) + 1;
      was[this.nr] := f;
      f.cut := _take_along.cut;
      f.cancelled := f.cancelled - f.is_skipped::integer;
    END IF;
    f.cancelled_no := greatest(f.cancelled_no, this.cancelled_no);
    f.retried_no := greatest(f.retried_no, this.retried_no);
    f.is_cancelled := is_dead;
    f.is_sealed := f.is_sealed OR f.is_cancelled;
    sums[this.nr] := f;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._take_along IS
  'Adds to the sums of a cut, and to what was counted before, what is within flows that were cancelled, or are no longer, at any depth: it is cancelled, too, unless it has ended; or no longer. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._take_back(INOUT sums weir.fold[], INOUT was weir.fold[], INOUT taken boolean[], settled weir.fold[], cut bigint, OUT more boolean)
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
  over record;  -- those that start over: their places, parents, names, whether they are tasks, and as what they had ended
  this record;
  f    weir.fold;
BEGIN
  SELECT array_agg(k.nr) AS nrs, array_agg(d.parent) AS parents, array_agg(d.name) AS names, array_agg(d.task IS NOT NULL) AS tasks, array_agg(k.before) AS kinds INTO over
  FROM (SELECT n.flow, n.ordinality AS nr, weir._kind_of(_take_back.was[n.ordinality]) AS before
        FROM unnest(_take_back.settled) WITH ORDINALITY n
        WHERE _take_back.taken[n.ordinality] IS NOT TRUE AND (n.fired_at IS NULL OR n.generation <> (_take_back.was[n.ordinality]).generation) OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task FROM weir.flow d WHERE d.id = k.flow AND d.parent IS NOT NULL OFFSET 0) d
  WHERE k.before IS NOT NULL;
  more := over.nrs IS NOT NULL;
  IF NOT more THEN
    RETURN;
  END IF;
  FOR this IN SELECT u.nr FROM unnest(over.nrs) u(nr) LOOP
    taken[this.nr] := true;
  END LOOP;
  FOR this IN
    SELECT k.flow, max(k.nr) AS nr, sum(k.completed) AS completed, sum(k.failed) AS failed, sum(k.cancelled) AS cancelled, sum(k.waits) AS waits, sum(k.broken) AS broken
    FROM (SELECT u.parent AS flow, NULL::bigint AS nr, (u.kind = 'completed')::integer AS completed, (u.kind = 'failed')::integer AS failed, (u.kind = 'cancelled')::integer AS cancelled, 0 AS waits, 0 AS broken
          FROM unnest(over.parents, over.kinds) u(parent, kind)
          UNION ALL
          SELECT e.successor, NULL, 0, 0, 0, 1, (u.kind <> 'completed' AND NOT e.is_lenient)::integer FROM unnest(over.parents, over.names, over.tasks, over.kinds) u(parent, name, is_task, kind)
          CROSS JOIN LATERAL (SELECT e.* FROM weir.edge e WHERE e.flow = u.parent AND e.predecessor = u.name AND u.is_task OFFSET 0) e
          UNION ALL
          SELECT n.flow, n.ordinality, 0, 0, 0, 0, 0
          FROM unnest(_take_back.sums) WITH ORDINALITY n) k
    GROUP BY k.flow HAVING bool_or(k.nr IS NULL)
  LOOP
    IF this.nr IS NOT NULL THEN
      f := sums[this.nr];
    ELSE
      SELECT p.* INTO f FROM weir.fold p WHERE p.flow = this.flow ORDER BY p.cut DESC LIMIT 1;
      CONTINUE WHEN NOT FOUND;  -- its first count looks at those that it comes after
      this.nr := cardinality(sums) + 1;
      was[this.nr] := f;
      f.cut := _take_back.cut;
      f.cancelled := f.cancelled - f.is_skipped::integer;
    END IF;
    IF this.completed + this.failed + this.cancelled > 0 THEN
      f.completed := f.completed - this.completed;
      f.failed := f.failed - this.failed;
      f.cancelled := f.cancelled - this.cancelled;
      f.generation := f.generation + (f.fired_at IS NOT NULL)::integer;
      f.fired_at := NULL;
    END IF;
    f.waits := f.waits + this.waits;
    f.broken := f.broken - this.broken;
    sums[this.nr] := f;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._take_back IS
  'Takes back, in the sums of a cut, the ends of those that start over in it: from the flows that they are members of, and from the tasks that come after them; taken says of which it has done so. more: there were some, so others may start over because of that: settle the sums, and call it again. Errors: none. Locks: none.';
