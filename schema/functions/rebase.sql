-- Transaction ids do not survive a dump and restore: the log is started anew.

CREATE OR REPLACE FUNCTION weir.rebase() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '10s'
SET work_mem = '256MB'
SET maintenance_work_mem = '256MB'
-- Nothing has statistics: each row is hashed by its id, once.
SET enable_mergejoin = off
SET enable_nestloop = off
AS $$
#variable_conflict use_column
DECLARE
  here   text := (SELECT system_identifier::text FROM pg_control_system());
  active integer := pg_sequence_last_value('weir.active_job');
  relogged bigint;
  c        weir.promotion;
  indexes  regclass[];
  remake   text[];
  made     text;
BEGIN
  PERFORM weir._check_isolation('rebase'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rebase needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  -- Twice: before anybody is held up, and when nobody else can have done it.
  FOR look IN 1..2 LOOP
    IF look = 2 THEN
      -- Everybody else stops for this once: nobody works in a log that has just come from elsewhere.
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM unnest(ARRAY[0, 1, 2, 3, 6]) step;
      PERFORM pg_advisory_xact_lock(1464158549, segment) FROM generate_series(1, 4) segment;
      LOCK TABLE weir.job, weir.batch, weir.result, weir.later, weir.promotion, weir.worker, weir.setting, weir.survey IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') = here
         AND NOT EXISTS (SELECT FROM weir.batch b WHERE b.pos_xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- lets go of the tables: two that wait for each other's would be a deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;

  INSERT INTO weir.worker (id, fenced, at, name)
  SELECT w.id, true, clock_timestamp(), 'the log was moved to another cluster' FROM weir.worker w
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);

  -- An attempt is followed by another only together with its result. So of the attempts of one id
  -- that are in the log as many have ended as there are results, and at most the last has not.
  CREATE TEMP TABLE weir_open ON COMMIT DROP AS
  SELECT k.id, max(k.step) AS step
  FROM (SELECT j.id, j.attempt::bigint << 32 | j.put_off AS step, 1 AS n FROM weir.job j
        UNION ALL
        SELECT unnest(r.ids), NULL, -1 FROM weir.result r) k
  GROUP BY k.id HAVING sum(k.n) > 0;
  GET DIAGNOSTICS relogged = ROW_COUNT;
  -- Attempts end in their order, and in the segment and lane of their row: so the first row of an id there is of its first end.
  CREATE TEMP TABLE weir_end ON COMMIT DROP AS
  SELECT e.*, row_number() OVER (PARTITION BY e.id, e.lane, e.segment ORDER BY e.seq) AS nr
  FROM (SELECT unnest(r.ids) AS id, r.lane, r.segment, r.seq FROM weir.result r) e;
  CREATE TEMP TABLE weir_job ON COMMIT DROP AS
  SELECT j.*, o.id IS NOT NULL AS unfinished, row_number() OVER (PARTITION BY j.id, j.lane, j.segment ORDER BY j.attempt, j.put_off) AS nr
  FROM weir.job j LEFT JOIN pg_temp.weir_open o ON o.id = j.id AND o.step = (j.attempt::bigint << 32 | j.put_off);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  CREATE TEMP TABLE weir_later ON COMMIT DROP AS
  SELECT l.* FROM weir.later l
  WHERE ((l.run_at, l.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(l.xid, c.snapshot))
    AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid));
  CREATE TEMP TABLE weir_lane ON COMMIT DROP AS
  SELECT DISTINCT ON (b.lane) b.lane, b.seq, b.total FROM weir.batch b ORDER BY b.lane, b.seq DESC;
  CREATE TEMP TABLE weir_seq ON COMMIT DROP AS SELECT max(p.seq) AS seq FROM weir.promotion p;

  TRUNCATE weir.job, weir.batch, weir.later, weir.promotion, weir.survey;
  -- Indexes are made again when all is there: several times faster than row by row.
  indexes := ARRAY(SELECT i.indexrelid::regclass FROM pg_index i WHERE i.indrelid IN ('weir.job'::regclass, 'weir.later'::regclass) ORDER BY i.indexrelid);
  remake := ARRAY(SELECT replace(pg_get_indexdef(i.at), ' ON ONLY ', ' ON ') FROM unnest(indexes) WITH ORDINALITY i(at, nr) ORDER BY i.nr);
  EXECUTE 'DROP INDEX ' || array_to_string(indexes, ', ');
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');
  -- Transactions are counted from 3. History lies below every position, at 1, and every new position at 2: so what is to be done lies past
  -- it, and so does what a transaction logs that is older than this one, and waits for it or has not come to its enqueue yet.
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, leads, kind, args, meta, seq)
  SELECT j.id, CASE WHEN j.unfinished THEN pg_current_xact_id() ELSE '1' END, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off,
         CASE WHEN j.unfinished THEN active ELSE j.segment END, j.unfinished, j.kind, j.args, j.meta, CASE WHEN NOT j.unfinished THEN e.seq END
  FROM pg_temp.weir_job j LEFT JOIN pg_temp.weir_end e ON e.id = j.id AND e.lane = j.lane AND e.segment = j.segment AND e.nr = j.nr;
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids)
  SELECT l.lane, active, active, 0, max(l.seq) + 1, '2', '2', '2', 0, max(l.total), now(), 0, '{}'::bigint[]
  FROM (SELECT k.lane, k.seq, k.total FROM pg_temp.weir_lane k
        UNION ALL SELECT j.lane, 0, 0 FROM (SELECT DISTINCT j.lane FROM pg_temp.weir_job j WHERE NOT j.unfinished) j) l
  GROUP BY l.lane;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
  SELECT l.id, pg_current_xact_id(), l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, l.segment, l.kind, l.args, l.meta
  FROM pg_temp.weir_later l ORDER BY l.run_at, l.id;
  FOREACH made IN ARRAY remake LOOP
    EXECUTE made;
  END LOOP;
  -- Nothing has been promoted: so the snapshot does not matter.
  INSERT INTO weir.promotion (seq, due, due_id, snapshot) SELECT s.seq + 1, '-infinity', 0, pg_current_snapshot() FROM pg_temp.weir_seq s;
  UPDATE weir.setting SET value = here WHERE name = 'cluster';
  RETURN relogged;
EXCEPTION WHEN query_canceled THEN
  RAISE EXCEPTION 'weir: rebase was cancelled, and nothing has changed: %', SQLERRM
    USING ERRCODE = '57014', HINT = format('It writes the whole log anew, in one transaction, and statement_timeout is %s: SET statement_timeout = 0, and call it again.',
                                           current_setting('statement_timeout'));
END
$$;
COMMENT ON FUNCTION weir.rebase IS
  'After a restore or a move into another cluster: logs every unfinished attempt again under this cluster''s transaction ids and starts from new positions; fences all workers of before. Returns how many attempts, or NULL when there was nothing to do. Workers call it by themselves, without a statement_timeout. Errors: WR004 (not in READ COMMITTED autocommit); 57014 (cancelled, as by a statement_timeout; nothing has changed). Locks: everything of Weir''s, ACCESS EXCLUSIVE, waiting at most 10 s for each. Isolation: READ COMMITTED.';
