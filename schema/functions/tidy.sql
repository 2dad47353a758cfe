-- Cleaning up small tables that grow all the time.

CREATE OR REPLACE FUNCTION weir._tidy() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  next_ring integer := (pg_sequence_last_value('weir.watched') / 300000 + 1) % 3;
  job_id    bigint;
  forgotten integer := 0;
  lanes     integer;
  done      text;
  j         weir.job_info;
BEGIN
  PERFORM weir._check_isolation('tidy'), weir._hold_briefly();
  IF NOT pg_try_advisory_xact_lock(1464158547, 3) THEN
    RETURN NULL;
  END IF;
  IF weir._set_twins_aside() > 0 THEN
    RETURN 'set twins aside';
  END IF;
  -- These small tables are insert-only too: they are truncated, and rows that still count are inserted again.
  IF pg_relation_size('weir.last_word_' || next_ring) > 0 THEN
    EXECUTE format('LOCK TABLE weir.last_word_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
    EXECUTE format('TRUNCATE weir.last_word_%s', next_ring);
    RETURN 'emptied heartbeat ' || next_ring;
  ELSIF pg_relation_size('weir.promotion') > 1048576 THEN
    IF pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.promotion IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT p.* FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
      TRUNCATE weir.promotion;
      INSERT INTO weir.promotion SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted promotion';
    END IF;
  ELSIF pg_table_size('weir.firing') > 1048576 AND pg_table_size('weir.firing') > 500 * (SELECT count(*) FROM weir.schedule) THEN
    IF pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.firing IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
        SELECT f.* FROM weir.schedule s CROSS JOIN LATERAL (
          (SELECT f.* FROM weir.firing f WHERE f.name = s.name ORDER BY f.due DESC LIMIT 1)
          UNION
          (SELECT f.* FROM weir.firing f WHERE f.name = s.name AND f.job IS NOT NULL ORDER BY f.due DESC LIMIT 1)) f;
      TRUNCATE weir.firing;
      INSERT INTO weir.firing SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted firing';
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
  ELSIF pg_table_size('weir.settled') > 4194304 THEN
    LOCK TABLE weir.settled IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
      SELECT DISTINCT ON (s.worker) s.* FROM weir.settled s WHERE EXISTS (SELECT FROM weir.worker w WHERE w.id = s.worker) ORDER BY s.worker, s.no DESC;
    TRUNCATE weir.settled;
    INSERT INTO weir.settled SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted settled';
  ELSIF pg_relation_size('weir.worker') > 131072 AND weir._forget_workers() > 0 THEN
    RETURN 'forgot workers';
  ELSIF pg_relation_size('weir.cancellation') > 1048576 THEN
    -- A part at a time, from where the last call stopped, because cancellations of jobs in the far future must stay.
    FOR job_id IN SELECT c.id FROM weir.cancellation c WHERE c.id > coalesce(pg_sequence_last_value('weir.cancel_looked'), 0) ORDER BY c.id LIMIT 1000 LOOP
      SELECT i.* INTO j FROM weir.job_info(job_id) i;
      IF j.state IS NULL OR j.finished_at IS NOT NULL THEN
        DELETE FROM weir.cancellation c WHERE c.id = job_id;
        forgotten := forgotten + 1;
      END IF;
      EXIT WHEN clock_timestamp() - now() > interval '100 ms';
    END LOOP;
    PERFORM setval('weir.cancel_looked', coalesce(job_id, 0));  -- after the last one, it starts over
    IF forgotten > 0 THEN
      RETURN 'forgot ' || forgotten || ' cancellations';
    END IF;
  END IF;
  done := coalesce(weir._compact_gates(), weir._compact_rings(), weir._compact_flows(), weir._compact_operations(), weir._compact_relays(), weir._turn_requests(), weir._retire_cancellations());
  IF done IS NOT NULL THEN
    RETURN done;
  END IF;
  lanes := weir._forget_ended();
  RETURN CASE WHEN lanes > 0 THEN 'trimmed ' || lanes || ' lanes' END;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._tidy IS
  'Does one small chore at a time: sets twins aside; truncates the next table of last words ahead of its turn; compacts the cursor of promotion, the firings of schedules, the history of segments and the progress of settling by TRUNCATE; deletes ended workers, and cancellations of ended jobs, once there are thousands, checking up to 1000 for at most 0.1 s; takes the next step to retire a cancellation by filter (see _retire_cancellations); does a chore for the tables of limits (see _compact_gates); compacts the rings of keys (see _compact_rings); does a chore for the tables of flows (see _compact_flows); compacts operations (see _compact_operations) and the positions of relays (see _compact_relays); takes the next step for requests with keys (see _turn_requests); and trims idle lanes (see _forget_ended). Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates; see _compact_gates, _compact_flows and _forget_ended. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._compact_rings() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
BEGIN
  IF pg_table_size('weir.ring') <= greatest(4194304, 4000 * (SELECT count(*) FROM weir.with_keys)) THEN
    RETURN NULL;
  END IF;
  -- Without claims, nobody reads it with an older snapshot, except those who have locked it.
  PERFORM pg_advisory_xact_lock(1464158547, 0);
  LOCK TABLE weir.ring IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT n.* FROM (SELECT DISTINCT w.queue FROM weir.with_keys w) q
    CROSS JOIN LATERAL (SELECT r.* FROM weir.ring r WHERE r.queue = q.queue ORDER BY r.seq DESC LIMIT 1) n;
  TRUNCATE weir.ring;
  INSERT INTO weir.ring SELECT k.* FROM pg_temp.weir_keep k;
  RETURN 'compacted ring';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._compact_rings IS
  'Compacts weir.ring to the newest row of each queue, when it has 4 MB. Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on weir.ring. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._set_twins_aside() RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  n integer;
BEGIN
  UPDATE weir.queue q SET aside = NOT t.is_busy
  FROM (
    SELECT k.id, bool_or(l.is_busy) AS is_busy
    FROM weir.queue k CROSS JOIN generate_series(0, 3) p CROSS JOIN LATERAL (
      SELECT EXISTS (SELECT FROM weir.job j WHERE j.lane = (k.id::bigint << 39) + p AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0)))
          OR EXISTS (SELECT FROM unnest(s.pending, s.pending_after) w(xid, after) CROSS JOIN LATERAL (
               SELECT FROM weir.job j WHERE j.lane = (k.id::bigint << 39) + p AND j.xid = w.xid AND j.id > w.after LIMIT 1) j)
          -- A running job may be tried again.
          OR NOT k.aside AND EXISTS (SELECT FROM weir.batch b CROSS JOIN unnest(b.ids) i(id) WHERE b.lane = (k.id::bigint << 39) + p AND NOT EXISTS (
               SELECT FROM weir.result r WHERE r.lane = b.lane AND r.seq = b.seq AND i.id = ANY (r.ids))) AS is_busy
      FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = (k.id::bigint << 39) + p ORDER BY b.seq DESC LIMIT 1) s ON true) l
    WHERE EXISTS (SELECT FROM weir.queue o WHERE o.name = k.name AND o.id < k.id)
    GROUP BY k.id) t
  WHERE q.id = t.id AND q.aside = t.is_busy;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n > 0 THEN
    PERFORM nextval('weir.control');  -- workers poll all queues
  END IF;
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir._set_twins_aside IS
  'Sets aside the twins of queues that have no jobs, so that claims skip them, and takes back those that have: a transaction may have looked up the queue before its older twin was visible, and enqueue a job long after. Returns how many changed.';
