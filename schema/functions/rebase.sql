-- Transaction ids do not survive a dump and restore: rebasing writes the log again, with those of the new cluster.

CREATE OR REPLACE FUNCTION weir.rebase() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '10s'
SET work_mem = '256MB'
SET maintenance_work_mem = '256MB'
-- No table has statistics: the plan is a hash join, which reads each row once.
SET enable_mergejoin = off
SET enable_nestloop = off
AS $$
#variable_conflict use_column
DECLARE
  here        text := (SELECT system_identifier::text FROM pg_control_system());
  active      integer := pg_sequence_last_value('weir.active_job');
  relogged    bigint;
  cut         weir.flow_cut;
  c           weir.promotion;
  indexes     regclass[];
  definitions text[];
  definition  text;
BEGIN
  PERFORM weir._check_isolation('rebase'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rebase needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  -- It checks twice: before it blocks other sessions, and under the locks, when no other session can rebase.
  FOR check_no IN 1..2 LOOP
    IF check_no = 2 THEN
      -- All other sessions are blocked: no jobs run in a log that has just been restored.
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM unnest(ARRAY[0, 1, 2, 3, 6, 7]) step;
      PERFORM pg_advisory_xact_lock(1464158549, segment) FROM generate_series(1, 4) segment;
      LOCK TABLE weir.job, weir.batch, weir.result, weir.later, weir.promotion, weir.worker, weir.setting, weir.survey, weir.gate, weir.release, weir.turn, weir.ring, weir.arrival, weir.flow_cut IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') = here
         AND NOT EXISTS (SELECT FROM weir.batch b WHERE b.pos_xid >= pg_snapshot_xmax(pg_current_snapshot()))
         AND NOT EXISTS (SELECT FROM weir.turn t WHERE t.pos_xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- releases the tables' locks: two sessions that upgrade them would deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;

  INSERT INTO weir.worker (id, fenced, at, name)
  SELECT w.id, true, clock_timestamp(), 'the log was moved to another cluster' FROM weir.worker w
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);

  -- The next attempt is always logged together with the result of the previous one. So as many attempts of an id have
  -- ended as there are results, and at most the last attempt has not ended.
  CREATE TEMP TABLE weir_open ON COMMIT DROP AS
  SELECT k.id, max(k.step) AS step
  FROM (SELECT j.id, j.attempt::bigint << 32 | j.put_off AS step, 1 AS n FROM weir.job j
        UNION ALL
        SELECT unnest(r.ids), NULL, -1 FROM weir.result r) k
  GROUP BY k.id HAVING sum(k.n) > 0;
  GET DIAGNOSTICS relogged = ROW_COUNT;
  -- Attempts end in their order, and in the segment and lane of their row, or in the ring lane of the queue: so the first row of an id there is of
  -- its first end.
  CREATE TEMP TABLE weir_place ON COMMIT DROP AS
  SELECT q.id::bigint AS queue, (min(q.id) OVER (PARTITION BY q.name)::bigint << 39) + 4 AS ring FROM weir.queue q;
  CREATE TEMP TABLE weir_end ON COMMIT DROP AS
  SELECT e.*, row_number() OVER (PARTITION BY e.id, e.place, e.segment ORDER BY e.seq) AS nr
  FROM (SELECT unnest(r.ids) AS id, CASE WHEN r.lane & 4 <> 0 THEN p.ring ELSE r.lane END AS place, r.segment, r.seq
        FROM weir.result r LEFT JOIN pg_temp.weir_place p ON p.queue = r.lane >> 39) e;
  CREATE TEMP TABLE weir_job ON COMMIT DROP AS
  SELECT j.*, o.id IS NOT NULL AS unfinished, row_number() OVER (PARTITION BY j.id, j.place, j.segment ORDER BY j.attempt, j.put_off) AS nr
  FROM (SELECT j.*, CASE WHEN j.lane & 549755813884 <> 0 THEN p.ring ELSE j.lane END AS place FROM weir.job j LEFT JOIN pg_temp.weir_place p ON p.queue = j.lane >> 39) j
  LEFT JOIN pg_temp.weir_open o ON o.id = j.id AND o.step = (j.attempt::bigint << 32 | j.put_off);
  -- In order, an attempt that was running is put back as if its worker had died: what is logged again is in the order of ids, in which others may come first.
  UPDATE pg_temp.weir_job j SET lane = j.lane | 4, put_off = j.put_off + 1
  WHERE j.unfinished AND j.lane & 549755813880 <> 0 AND j.lane & 4 = 0 AND j.id IN (
    SELECT k.id FROM (
      SELECT b.lane, b.seq, unnest(b.ids) AS id FROM weir.batch b JOIN weir.queue q ON q.id = b.lane >> 39 JOIN weir.queue_limit m ON m.name = q.name AND m.in_order WHERE b.lanes IS NOT NULL
      EXCEPT SELECT r.lane, r.seq, unnest(r.ids) FROM weir.result r) k);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  CREATE TEMP TABLE weir_later ON COMMIT DROP AS
  SELECT l.* FROM weir.later l
  WHERE weir._waits_later(c, l.run_at, l.id, l.xid);
  CREATE TEMP TABLE weir_lane ON COMMIT DROP AS
  SELECT DISTINCT ON (b.lane) b.lane, b.seq, b.total FROM weir.batch b ORDER BY b.lane, b.seq DESC;
  CREATE TEMP TABLE weir_keys ON COMMIT DROP AS
  SELECT w.queue, coalesce(max(r.seq), 0) AS seq, coalesce(bit_or(r.forms | (r.forms & 15) << 4), 0) AS forms, least(pg_snapshot_xmin(pg_current_snapshot()), pg_current_xact_id()) AS since
  FROM (SELECT DISTINCT w.queue FROM weir.with_keys w) w LEFT JOIN weir.ring r ON r.queue = w.queue GROUP BY w.queue;
  CREATE TEMP TABLE weir_seq ON COMMIT DROP AS SELECT max(p.seq) AS seq FROM weir.promotion p;

  -- Arrivals that are not counted yet: the next cut counts them, as if this transaction had written them.
  SELECT k.* INTO cut FROM weir.flow_cut k ORDER BY k.no DESC LIMIT 1;
  CREATE TEMP TABLE weir_arrival ON COMMIT DROP AS SELECT a.* FROM weir.arrival a WHERE NOT pg_visible_in_snapshot(a.xid, cut.snapshot);

  -- Nothing runs any more: gates count from nothing.
  TRUNCATE weir.job, weir.batch, weir.later, weir.promotion, weir.survey, weir.gate, weir.release, weir.turn, weir.ring, weir.arrival, weir.flow_cut;
  -- Indexes are created again after the inserts, which is several times faster than row by row.
  indexes := ARRAY(SELECT i.indexrelid::regclass FROM pg_index i WHERE i.indrelid IN ('weir.job'::regclass, 'weir.later'::regclass) ORDER BY i.indexrelid);
  definitions := ARRAY(SELECT replace(pg_get_indexdef(i.at), ' ON ONLY ', ' ON ') FROM unnest(indexes) WITH ORDINALITY i(at, nr) ORDER BY i.nr);
  EXECUTE 'DROP INDEX ' || array_to_string(indexes, ', ');
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');
  -- The first xid of a cluster is 3. History gets xid 1, below every position, and every new position is 2: so unfinished jobs lie past it, and
  -- so do jobs of transactions that are older than this one and enqueue after it.
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, leads, kind, args, meta, seq, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, CASE WHEN j.unfinished THEN pg_current_xact_id() ELSE '1' END, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts,
         -- An attempt that has reported was started: it is put off, so that it does not pass for one that has no checkpoint yet.
         j.put_off + (j.unfinished AND j.id IN (SELECT r.job_id FROM weir.report r))::integer,
         CASE WHEN j.unfinished THEN active ELSE j.segment END, j.unfinished, j.kind, j.args, j.meta, CASE WHEN NOT j.unfinished THEN e.seq END, j.errors,
         j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM pg_temp.weir_job j LEFT JOIN pg_temp.weir_end e ON e.id = j.id AND e.place = j.place AND e.segment = j.segment AND e.nr = j.nr;
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids)
  SELECT l.lane, active, active, 0, max(l.seq) + 1, '2', '2', '2', 0, max(l.total), now(), 0, '{}'::bigint[]
  FROM (SELECT k.lane, k.seq, k.total FROM pg_temp.weir_lane k
        UNION ALL SELECT j.place, 0, 0 FROM (SELECT DISTINCT j.place FROM pg_temp.weir_job j WHERE NOT j.unfinished) j
        UNION ALL SELECT p.ring, k.seq, 0 FROM pg_temp.weir_keys k JOIN weir.queue q ON q.name = k.queue JOIN pg_temp.weir_place p ON p.queue = q.id) l
  GROUP BY l.lane;
  -- Of keys with history, only the rows past it wait. In order, a job that is to be tried again keeps its place. The next claim announces what this
  -- transaction logs, and all later ones.
  INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, open)
  WITH put_back AS (
    SELECT u.lane, array_agg(v.v ORDER BY u.id, v.nr) AS open  -- of an attempt that has left no result, batch 0
    FROM (SELECT j.id, j.lane FROM pg_temp.weir_job j WHERE j.unfinished UNION ALL SELECT l.id, l.lane FROM pg_temp.weir_later l) u
    JOIN weir.queue q ON q.id = u.lane >> 39 JOIN weir.queue_limit m ON m.name = q.name AND m.in_order
    LEFT JOIN (SELECT e.id, max(e.seq) AS seq FROM pg_temp.weir_end e WHERE e.place & 4 <> 0 GROUP BY e.id) e ON e.id = u.id
    CROSS JOIN LATERAL (VALUES (1, coalesce(e.seq, 0)), (2, u.id)) v(nr, v)
    WHERE u.lane & 549755813880 <> 0 AND u.lane & 4 <> 0 GROUP BY u.lane
  )
  SELECT coalesce(j.lane, b.lane), 0, '2', 0, 0, active, false, false, b.open
  FROM (SELECT DISTINCT j.lane FROM pg_temp.weir_job j WHERE NOT j.unfinished AND j.lane & 549755813880 <> 0) j FULL JOIN put_back b ON b.lane = j.lane;
  DELETE FROM weir.with_keys;
  INSERT INTO weir.with_keys (queue, since) SELECT k.queue, k.since FROM pg_temp.weir_keys k;
  INSERT INTO weir.ring (queue, seq, tag, forms, version, arrived, newcomers)
  SELECT k.queue, k.seq, 0, k.forms, 0, (k.since::text || ':' || k.since::text || ':')::pg_snapshot, '{}' FROM pg_temp.weir_keys k;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT l.id, pg_current_xact_id(), l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, l.segment, l.kind, l.args, l.meta, l.errors, l.unique_key, l.unique_no, l.unique_until, l.key, l.flow
  FROM pg_temp.weir_later l ORDER BY l.run_at, l.id;
  FOREACH definition IN ARRAY definitions LOOP
    EXECUTE definition;
  END LOOP;
  -- Nothing has been promoted, so any snapshot will do.
  INSERT INTO weir.promotion (seq, due, due_id, snapshot) SELECT s.seq + 1, '-infinity', 0, pg_current_snapshot() FROM pg_temp.weir_seq s;
  INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, waits, broken, counts)
  SELECT a.flow, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts FROM pg_temp.weir_arrival a;
  INSERT INTO weir.flow_cut (no, due, snapshot) VALUES (cut.no + 1, cut.due, '3:3:');  -- before every transaction
  -- Ids of jobs are as they were, so what was cancelled by a filter stays cancelled.
  UPDATE weir.cancellation_where SET batches = NULL, xid = NULL, clear_xid = NULL;
  UPDATE weir.setting SET value = here WHERE name = 'cluster';
  RETURN relogged;
EXCEPTION WHEN query_canceled THEN
  RAISE EXCEPTION 'weir: rebase was cancelled and changed nothing: %', SQLERRM
    USING ERRCODE = '57014', HINT = format('It rewrites the whole log in one transaction, and statement_timeout is %s: SET statement_timeout = 0, and call it again.',
                                           current_setting('statement_timeout'));
END
$$;
COMMENT ON FUNCTION weir.rebase IS
  'After a restore or a move into another cluster, logs every unfinished attempt again under this cluster''s transaction ids, starts from new positions, and fences all earlier workers. Returns the number of attempts, or NULL if there was nothing to do. Workers call it automatically, without a statement_timeout. Errors: WR004 (not in READ COMMITTED autocommit), 57014 (cancelled, for example by a statement_timeout; nothing has changed), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on all tables of the log of jobs, waiting at most 10 s for each. Isolation: READ COMMITTED, in autocommit.';
