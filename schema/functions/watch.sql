-- How an idle worker polls without reading a table.

CREATE OR REPLACE FUNCTION weir._watch(jobs bigint, control bigint, seen pg_snapshot, upto xid8, polls integer DEFAULT 1, pause double precision DEFAULT 0.003,
                           OUT jobs_now bigint, OUT control_now bigint, OUT seen_now pg_snapshot, OUT upto_now xid8, OUT ended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  moved boolean;
  slept text;
BEGIN
  IF _watch.polls IS NULL OR _watch.pause IS NULL OR _watch.polls < 1 OR _watch.polls * _watch.pause > 1 THEN
    RAISE EXCEPTION 'weir: watch polls for at most 1 second, got % polls, every % s', _watch.polls, _watch.pause USING ERRCODE = '22023';
  END IF;
  -- Assignments, not queries: a poll takes some microseconds, and reads only two sequences.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);
    control_now := coalesce(pg_sequence_last_value('weir.control'), 0);
    seen_now := pg_current_snapshot();  -- after the counters
    moved := jobs_now IS DISTINCT FROM _watch.jobs OR control_now IS DISTINCT FROM _watch.control;
    ended := _watch.seen IS NULL OR _watch.upto IS NULL;
    IF NOT ended AND pg_snapshot_xmin(_watch.seen) < _watch.upto AND seen_now::text <> _watch.seen::text THEN
      ended := EXISTS (SELECT FROM pg_snapshot_xip(_watch.seen) x WHERE x < _watch.upto AND pg_visible_in_snapshot(x, seen_now))
        -- And transactions that the snapshot could not list yet, because they are newer than all that had ended.
        OR least(pg_snapshot_xmax(seen_now), _watch.upto)::text::bigint - pg_snapshot_xmax(_watch.seen)::text::bigint
           > (SELECT count(*) FROM pg_snapshot_xip(seen_now) x WHERE x >= pg_snapshot_xmax(_watch.seen) AND x < _watch.upto);
    END IF;
    EXIT WHEN _watch.polls <= 1 OR moved OR ended;
    _watch.polls := _watch.polls - 1;
    slept := pg_sleep(_watch.pause);
  END LOOP;
  -- Each transaction that has drawn from a counter so far has an id below the next one to be assigned.
  upto_now := CASE WHEN moved OR _watch.upto IS NULL
                   THEN (pg_snapshot_xmax(seen_now)::text::bigint + age(pg_snapshot_xmax(seen_now)::xid))::text::xid8
                   ELSE _watch.upto END;
END
$$;
COMMENT ON FUNCTION weir._watch IS
  'For an idle worker: polls up to polls times, every pause seconds, until the counters differ from those passed, or a transaction below upto has ended that was in progress in seen. Pass what the previous call returned (at first 0, 0, NULL, NULL). jobs_now changes with every job that is logged, control_now with every cancellation and new queue, both before the commit; ended reports whether a transaction has ended. Errors: 22023. Locks: none that others wait for. Isolation: READ COMMITTED, in autocommit. It holds a snapshot while it waits, for at most 1 second.';
