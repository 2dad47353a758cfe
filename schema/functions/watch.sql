-- What an idle worker looks at, without a table.

CREATE OR REPLACE FUNCTION weir.watch(jobs bigint, control bigint, pending xid8[], looks integer DEFAULT 1, pause double precision DEFAULT 0.003,
                           OUT jobs_now bigint, OUT control_now bigint, OUT running xid8[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  slept text;
BEGIN
  IF watch.looks IS NULL OR watch.pause IS NULL OR watch.looks < 1 OR watch.looks * watch.pause > 1 THEN
    RAISE EXCEPTION 'weir: watch waits at most 1 second: % looks, % s apart', watch.looks, watch.pause USING ERRCODE = '22023';
  END IF;
  -- Assignments, not queries: a look costs some microseconds, and touches two sequences only.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);
    control_now := coalesce(pg_sequence_last_value('weir.control'), 0);
    EXIT WHEN watch.looks <= 1 OR jobs_now IS DISTINCT FROM watch.jobs OR control_now IS DISTINCT FROM watch.control;
    IF watch.pending <> '{}' THEN
      running := ARRAY(SELECT pg_snapshot_xip(pg_current_snapshot()));
      EXIT WHEN NOT watch.pending <@ running;
    END IF;
    watch.looks := watch.looks - 1;
    slept := pg_sleep(watch.pause);
  END LOOP;
  running := ARRAY(SELECT pg_snapshot_xip(pg_current_snapshot()));
END
$$;
COMMENT ON FUNCTION weir.watch IS
  'For an idle worker: looks up to so many times, pause seconds apart, until the counters differ from those given or one of the pending transactions has ended; returns the counters, and after them the transactions in progress. jobs_now moves with every job logged, control_now with every cancellation and new queue, both even before the commit. Errors: 22023. Locks: none that others wait for. Isolation: READ COMMITTED. It holds a snapshot while it waits: at most 1 second.';
