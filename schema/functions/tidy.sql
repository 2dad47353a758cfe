-- Small tables that grow all the time.

CREATE OR REPLACE FUNCTION weir.tidy() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  next_ring integer := (extract(epoch FROM clock_timestamp())::bigint / 300 + 1) % 3;
BEGIN
  PERFORM weir.check_isolation('tidy');
  IF NOT pg_try_advisory_xact_lock(1464158547, 3) THEN
    RETURN NULL;
  END IF;
  -- Small tables that grow all the time are insert-only too: emptied whole, and what still counts put back.
  IF pg_relation_size('weir.heartbeat_' || next_ring) > 0 THEN
    EXECUTE format('LOCK TABLE weir.heartbeat_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
    EXECUTE format('TRUNCATE weir.heartbeat_%s', next_ring);
    RETURN 'emptied heartbeat ' || next_ring;
  ELSIF pg_relation_size('weir.promotion') > 1048576 THEN
    IF pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.promotion IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT p.* FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
      TRUNCATE weir.promotion;
      INSERT INTO weir.promotion SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted promotion';
    END IF;
  ELSIF pg_relation_size('weir.segment') > 65536 THEN
    IF pg_try_advisory_xact_lock(1464158547, 1) AND pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.segment IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
        SELECT DISTINCT ON (k.log, k.segment, k.event) k.* FROM weir.segment k ORDER BY k.log, k.segment, k.event, k.no DESC;
      TRUNCATE weir.segment;
      INSERT INTO weir.segment SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted segment';
    END IF;
  ELSIF pg_relation_size('weir.worker') > 1048576 AND EXISTS (SELECT FROM weir.worker w WHERE w.fenced AND w.at < now() - interval '1 day') THEN
    -- A thousand deploys at a time; results of such a worker are refused all the same, for it is unknown.
    DELETE FROM weir.worker w WHERE EXISTS (
      SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced AND f.at < now() - interval '1 day');
    RETURN 'forgot workers';
  ELSIF pg_relation_size('weir.cancel') > 1048576
        AND pg_try_advisory_xact_lock(1464158547, 1) AND pg_try_advisory_xact_lock(1464158547, 2) THEN  -- no TRUNCATE while it looks
    DELETE FROM weir.cancel c WHERE c.id IN (
      SELECT o.id FROM (SELECT k.id FROM weir.cancel k ORDER BY k.at LIMIT 1000) o
      LEFT JOIN LATERAL weir.job_info(o.id) i ON true WHERE i.state IS NULL OR i.finished_at IS NOT NULL);
    IF FOUND THEN
      RETURN 'forgot cancellations';
    END IF;
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: later
END
$$;
COMMENT ON FUNCTION weir.tidy IS
  'One small chore at a time: empties the heartbeat ring ahead of its turn, compacts the promoter''s cursor and the history of segments by TRUNCATE, and deletes what thousands of ended workers and cancellations have left. Returns what it did, or NULL. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates.';
