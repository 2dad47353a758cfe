-- Rescue of dead workers, tidying of the small tables, re-basing after a restore.

CREATE FUNCTION weir.rescue() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  dead    record;
  rescued integer := 0;
BEGIN
  PERFORM weir.check_isolation('rescue');
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN 0;
  END IF;
  FOR dead IN
    SELECT w.id, w.name, clock_timestamp() - coalesce(max(h.at), w.at) AS silent
    FROM weir.worker w LEFT JOIN weir.heartbeat h ON h.worker = w.id
    WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
    GROUP BY w.id, w.name, w.at, w.lease
    -- A server that was down has heard of nobody: that is not their silence.
    HAVING clock_timestamp() - greatest(coalesce(max(h.at), w.at), pg_postmaster_start_time()) > w.lease
    ORDER BY w.id LIMIT 20
  LOOP
    rescued := rescued + coalesce(weir.fence(dead.id,
      format('worker %s (%s) was lost: silent for %s', dead.id, dead.name, date_trunc('second', dead.silent))), 0);
  END LOOP;
  RETURN rescued;
END
$$;
COMMENT ON FUNCTION weir.rescue IS
  'Fences workers that were silent past their lease and logs their unfinished attempts again; returns how many attempts. Locks: advisory step 1 (tried); see fence. Isolation: READ COMMITTED.';

CREATE FUNCTION weir.tidy() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  next_ring integer := (extract(epoch FROM clock_timestamp())::bigint / 300 + 1) % 3;
  i         record;
BEGIN
  PERFORM weir.check_isolation('tidy');
  IF NOT pg_try_advisory_xact_lock(1464158547, 3) THEN
    RETURN NULL;
  END IF;
  -- Look-ups by id read BRIN summaries, and ranges without one whole. Only full ranges get theirs: every
  -- insert into a range that has one would log an update of it. Backwards, to the last one that had it.
  FOR i IN SELECT c.oid AS index, pg_relation_size(x.indrelid) / current_setting('block_size')::integer / 32 AS ranges
           FROM pg_inherits h JOIN pg_index x ON x.indrelid = h.inhrelid
           JOIN pg_class c ON c.oid = x.indexrelid JOIN pg_am a ON a.oid = c.relam AND a.amname = 'brin'
           WHERE h.inhparent IN ('weir.job'::regclass, 'weir.later'::regclass) LOOP
    FOR k IN REVERSE i.ranges - 1 .. 0 LOOP
      EXIT WHEN brin_summarize_range(i.index, k * 32) = 0;
    END LOOP;
  END LOOP;

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
        SELECT DISTINCT ON (k.log, k.segment, k.event) k.* FROM weir.segment k ORDER BY k.log, k.segment, k.event, k.at DESC;
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
  'One small chore at a time: summarises the BRIN indexes as far as their ranges are full, empties the heartbeat ring ahead of its turn, compacts the promoter''s cursor and the history of segments by TRUNCATE, and deletes what thousands of ended workers and cancellations have left. Returns what it did, or NULL. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates.';

CREATE FUNCTION weir.rebase() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
DECLARE
  here   text := (SELECT system_identifier::text FROM pg_control_system());
  active integer := pg_sequence_last_value('weir.active_job');
  relogged bigint;
BEGIN
  PERFORM weir.check_isolation('rebase');
  -- Everybody else stops for this once: nobody works in a log that has just come from elsewhere.
  PERFORM pg_advisory_xact_lock(1464158547, step) FROM generate_series(0, 3) step;
  LOCK TABLE weir.job, weir.batch, weir.result, weir.later, weir.promotion, weir.worker, weir.setting IN ACCESS EXCLUSIVE MODE;
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') = here
     AND NOT EXISTS (SELECT FROM weir.batch b WHERE b.pos_xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
    RETURN NULL;
  END IF;

  INSERT INTO weir.worker (id, fenced, at, name)
  SELECT w.id, true, clock_timestamp(), 'the log was moved to another cluster' FROM weir.worker w
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);

  -- An attempt is followed by another only together with its result. So of the attempts of one id
  -- that are in the log as many have ended as there are results, and at most the last has not.
  CREATE TEMP TABLE weir_job ON COMMIT DROP AS
  SELECT j.*, j.n > coalesce(r.n, 0) AND j.is_last AS unfinished
  FROM (SELECT j.*, count(*) OVER (PARTITION BY j.id) AS n, row_number() OVER (PARTITION BY j.id ORDER BY j.attempt DESC) = 1 AS is_last
        FROM weir.job j) j
  LEFT JOIN (SELECT d.id, count(*) AS n
             FROM (SELECT DISTINCT r.lane, r.seq, i.id FROM weir.result r, unnest(r.ids) i(id)) d GROUP BY d.id) r ON r.id = j.id;
  CREATE TEMP TABLE weir_later ON COMMIT DROP AS
  SELECT l.* FROM weir.later l, (SELECT p.* FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1) c
  WHERE (l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot);
  CREATE TEMP TABLE weir_lane ON COMMIT DROP AS
  SELECT DISTINCT ON (b.lane) b.lane, b.seq, b.total FROM weir.batch b ORDER BY b.lane, b.seq DESC;
  CREATE TEMP TABLE weir_seq ON COMMIT DROP AS SELECT max(p.seq) AS seq FROM weir.promotion p;

  TRUNCATE weir.job, weir.batch, weir.later, weir.promotion;
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');
  -- History lies below every position, what is to be done lies past the new ones.
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta)
  SELECT j.id, CASE WHEN j.unfinished THEN pg_current_xact_id() ELSE '1' END, j.enqueued_at, j.lane, j.attempt, j.max_attempts,
         CASE WHEN j.unfinished THEN active ELSE j.segment END, j.kind, j.args, j.meta
  FROM pg_temp.weir_job j ORDER BY j.segment, j.id;
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, ids)
  SELECT DISTINCT ON (l.lane) l.lane, active, active, 0, l.seq + 1, pg_current_xact_id(), pg_current_xact_id(), pg_current_xact_id(), 0, l.total, now(), '{}'::bigint[]
  FROM (SELECT k.lane, k.seq, k.total FROM pg_temp.weir_lane k UNION ALL SELECT j.lane, 0, 0 FROM pg_temp.weir_job j) l
  ORDER BY l.lane, l.seq DESC;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta)
  SELECT l.id, pg_current_xact_id(), l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.segment, l.kind, l.args, l.meta
  FROM pg_temp.weir_later l;
  INSERT INTO weir.promotion (seq, due, due_id, snapshot) SELECT s.seq + 1, '-infinity', 0, pg_current_snapshot() FROM pg_temp.weir_seq s;
  UPDATE weir.setting SET value = here WHERE name = 'cluster';
  SELECT count(*) INTO relogged FROM pg_temp.weir_job j WHERE j.unfinished;
  RETURN relogged;
END
$$;
COMMENT ON FUNCTION weir.rebase IS
  'After a restore or a move into another cluster: logs every unfinished attempt again under this cluster''s transaction ids and starts from new positions; fences all workers of before. Returns how many attempts, or NULL when there was nothing to do. Workers call it by themselves. Locks: everything of Weir''s, ACCESS EXCLUSIVE, waiting at most 10 s for each. Isolation: READ COMMITTED.';

-- down --
DROP FUNCTION weir.rebase();
DROP FUNCTION weir.tidy();
DROP FUNCTION weir.rescue();
