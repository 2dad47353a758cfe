-- Segments of the log: which one is active, and when a closed one is reclaimed. How it is reclaimed is in reclaim.sql.
--
-- The states of segments follow from the order of their events, never from the clock. Their ages come from the clock, which may have been
-- set back: an event of the future has no age. In that case the next segment is opened early, which does no harm, and the
-- retention of a closed segment starts over.

CREATE OR REPLACE FUNCTION weir._rotate() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'completed_retention');
  max_bytes bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer;
  target    integer;
  size      bigint;
  age       interval;
  carried   bigint;
  k         record;
BEGIN
  PERFORM weir._check_isolation('rotate'), weir._hold_briefly();
  PERFORM weir._check_cluster();  -- jobs that were enqueued since a move may lie before the old positions, and would not be carried
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_job');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('job', s) = 'reclaimed';
  size := weir._segment_bytes(active);
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'job' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);

  IF target IS NOT NULL AND (size >= max_bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.job_' || active) + pg_relation_size('weir.batch_' || active) + pg_relation_size('weir.result_' || active) + pg_relation_size('weir.turn_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('job', active, 'closed'), ('job', target, 'opened');
    PERFORM setval('weir.carried', 0), setval('weir.active_job', target);  -- last, because it does not roll back
    RETURN 'opened job ' || target;
  END IF;

  -- A segment that is not active is closed, whatever its last event: setval is not undone if the caller rolls back.
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'job' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN
      INSERT INTO weir.segment (log, segment, event) VALUES ('job', k.segment, 'closed');
    END IF;
    CONTINUE WHEN age < retention AND NOT (target IS NULL AND size >= max_bytes / 2);
    carried := pg_sequence_last_value('weir.carried');
    IF weir._reclaim(k.segment) THEN
      RETURN 'reclaimed job ' || k.segment;
    ELSIF pg_sequence_last_value('weir.carried') <> carried THEN
      RETURN 'carried from job ' || k.segment;
    END IF;
  END LOOP;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._rotate IS
  'Takes the next step in the life of segments, if one is due: opens a free segment when the active one has a quarter of retention_bytes, or is half of completed_retention old; reclaims the oldest closed one, or carries some of its jobs, when completed_retention has passed, or when no free one is left. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 1 (tried); see _reclaim. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._rotate_history() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation('rotate_history'), weir._hold_briefly();
  PERFORM weir._check_cluster();
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  RETURN nullif(concat_ws(', ', weir._rotate_failures(), weir._rotate_reports()), '');
END
$$;
COMMENT ON FUNCTION weir._rotate_history IS
  'Takes the next step in the life of the segments of failures, and of those of reports. It is a chore of its own: under load weir._rotate may have something to do each time, and holds locks that others wait for when it has done it. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 1 (tried); see _rotate_failures and _rotate_reports. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._segment_state(log text, segment integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((
    SELECT s.event FROM weir.segment s WHERE s.log = _segment_state.log AND s.segment = _segment_state.segment
    ORDER BY s.no DESC LIMIT 1), 'reclaimed')
$$;
COMMENT ON FUNCTION weir._segment_state IS 'The state of a segment: opened, closed or reclaimed. A segment that was never used counts as reclaimed.';

CREATE OR REPLACE FUNCTION weir._segment_bytes(segment integer) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT sum(pg_total_relation_size('weir.' || t || '_' || _segment_bytes.segment))::bigint FROM unnest(ARRAY['job', 'batch', 'result', 'turn']) t
$$;
COMMENT ON FUNCTION weir._segment_bytes IS 'The size of a segment on disk, with indexes and TOAST.';
