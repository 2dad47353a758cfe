-- What a transaction has enqueued, for tests that check it before they roll back.
--
-- A transaction may contain jobs that its user could not read otherwise: those that another owner's SECURITY DEFINER function or trigger has
-- enqueued. Nothing records who enqueued a job, so this function is for roles that may read all jobs (weir_work, weir_operate). A role that
-- may only enqueue cannot call it.

CREATE OR REPLACE FUNCTION weir.enqueued(max_rows integer DEFAULT 1000) RETURNS SETOF weir.job_info
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  mine CONSTANT xid8 := pg_current_xact_id_if_assigned();
  this bigint;
BEGIN
  IF enqueued.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: enqueued shows 1 to 10000 at once, got %', enqueued.max_rows USING ERRCODE = '22023';
  END IF;
  FOR this IN
    -- The leading rows show in which lanes the transaction has logged jobs; a job that it has retried was not enqueued by it.
    SELECT u.id FROM (
      SELECT j.id FROM (SELECT DISTINCT k.lane FROM weir.job k WHERE k.xid = mine AND k.leads) l
      CROSS JOIN LATERAL (SELECT j.id FROM weir.job j WHERE j.lane = l.lane AND j.xid = mine AND j.attempt = 1 AND j.put_off = 0 OFFSET 0) j
      UNION ALL
      SELECT l.id FROM weir.later l WHERE l.xid = mine AND l.attempt = 1 AND l.put_off = 0) u
    ORDER BY u.id LIMIT coalesce(enqueued.max_rows, 1000)
  LOOP
    RETURN QUERY SELECT k.* FROM weir._read_job(this, 1) k;
  END LOOP;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.enqueued IS
  'The jobs that this transaction has enqueued, in that order, up to a limit of 1 to 10000. For tests, which check them and then roll back. The jobs of other transactions are not among them. Those that functions and triggers of other owners have enqueued in this transaction are; therefore the caller needs weir_work or weir_operate, which may read every job. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
