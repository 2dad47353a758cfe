-- Segments of the log: which is active, and when a closed one is given back. What giving back takes is in reclaim.sql.
--
-- Segments' states follow from the order of their events, never from the clock. Ages do come from the clock, and it may have been
-- set back since: an event of the future has no age. A segment is opened all the same, which does no harm; and the time
-- that a closed one is kept begins anew.

CREATE OR REPLACE FUNCTION weir._rotate() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'completed_retention');
  bytes     bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer;
  target    integer;
  size      bigint;
  age       interval;
  carried   bigint;
  k         record;
BEGIN
  PERFORM weir._check_isolation('rotate'), weir._hold_briefly();
  PERFORM weir._check_cluster();  -- what was enqueued since a move may lie before the old positions, and would not be carried
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_job');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('job', s) = 'reclaimed';
  size := weir._segment_bytes(active);
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'job' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);

  IF target IS NOT NULL AND (size >= bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.job_' || active) + pg_relation_size('weir.batch_' || active) + pg_relation_size('weir.result_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('job', active, 'closed'), ('job', target, 'opened');
    PERFORM setval('weir.carried', 0), setval('weir.active_job', target);  -- last: it does not roll back
    RETURN 'opened job ' || target;
  END IF;

  -- One that is not active is closed, whatever its last event says: setval stays where a caller rolls back.
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'job' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN
      INSERT INTO weir.segment (log, segment, event) VALUES ('job', k.segment, 'closed');
    END IF;
    CONTINUE WHEN age < retention AND NOT (target IS NULL AND size >= bytes / 2);
    carried := pg_sequence_last_value('weir.carried');
    IF weir._reclaim(k.segment) THEN
      RETURN 'reclaimed job ' || k.segment;
    ELSIF pg_sequence_last_value('weir.carried') <> carried THEN
      RETURN 'carried from job ' || k.segment;
    END IF;
  END LOOP;
  RETURN weir._rotate_failures();
END
$$;
COMMENT ON FUNCTION weir._rotate IS
  'Takes the next step in the life of segments, if one is due: opens a free segment when the active one is a quarter of retention_bytes or half of completed_retention old; reclaims the oldest closed one, or carries some of it, when completed_retention has passed, or when no free one is left; then see rotate_failures. Returns what it did, or NULL. Locks: advisory step 1 (tried); see reclaim and rotate_failures.';

CREATE OR REPLACE FUNCTION weir._segment_state(log text, segment integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce((
    SELECT s.event FROM weir.segment s WHERE s.log = _segment_state.log AND s.segment = _segment_state.segment
    ORDER BY s.no DESC LIMIT 1), 'reclaimed')
$$;
COMMENT ON FUNCTION weir._segment_state IS 'opened, closed or reclaimed. A segment never used counts as reclaimed.';

CREATE OR REPLACE FUNCTION weir._segment_bytes(segment integer) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT sum(pg_total_relation_size('weir.' || t || '_' || _segment_bytes.segment))::bigint FROM unnest(ARRAY['job', 'batch', 'result']) t
$$;
COMMENT ON FUNCTION weir._segment_bytes IS 'What a segment takes on disk, with its indexes and with what lies in TOAST.';
