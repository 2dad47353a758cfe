-- Moving waiting and scheduled jobs into another queue, or to another priority. A job keeps its id, attempt and arguments: in one transaction its row
-- is deleted and logged again in the other lane. While that goes on, the lanes' locks keep claims away, and the lock of promotion keeps it scheduled; so
-- every claim sees the job exactly once, as when reclaiming carries jobs (carry.sql).
--
-- Besides carrying, this is the only place where rows of the log are deleted, and an operator asks for it. The dead rows go with their segment. Where all
-- jobs at the head of a lane were moved, its position is set past them, so that no claim walks over them.

CREATE OR REPLACE FUNCTION weir._check_destination(what text, to_queue text, to_priority integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF to_queue IS NULL AND to_priority IS NULL THEN
    RAISE EXCEPTION 'weir: % needs to_queue or to_priority', what USING ERRCODE = '22023';
  ELSIF length(to_queue) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'weir: to_queue must have 1 to 128 characters, got %', length(to_queue) USING ERRCODE = '22023';
  ELSIF to_priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: to_priority must be 1 to 4, got %', to_priority USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_destination IS 'Refuses a queue and a priority to which jobs can''t be moved. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.move_where(
  queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL, priority integer DEFAULT NULL, enqueued_after timestamptz DEFAULT NULL,
  enqueued_before timestamptz DEFAULT NULL, to_queue text DEFAULT NULL, to_priority integer DEFAULT NULL, after text DEFAULT NULL, max_rows integer DEFAULT 500, key text DEFAULT NULL,
  OUT moved integer, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_variable
DECLARE
  ids   bigint[];
  lanes bigint[];
  known bigint;  -- the last cancellation by filter, if one has a queue or a priority
BEGIN
  PERFORM weir._check_step('move_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, NULL, max_rows),
          weir._check_destination('move_where', to_queue, to_priority), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: move_where needs a transaction of its own, and this one has written'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: its locks on lanes would be held until your commit.';
  END IF;
  PERFORM weir._check_cluster();
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(ARRAY['available', 'scheduled'], queue, kinds, meta, priority, enqueued_after, enqueued_before, key, NULL, after, coalesce(max_rows, 500)) s;
  -- Steps before lanes, and these in their order, as claims and rebasing do.
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158547, 2);
  -- So that all cancellations with a smaller number are visible, and none that means a job where it is commits before the job has left.
  LOCK TABLE weir.cancellation_where IN SHARE MODE;
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE num_nonnulls(w.queue, w.priority) > 0) THEN
    known := (SELECT max(w.no) FROM weir.cancellation_where w);
  END IF;
  lanes := weir._lanes_of(ids);
  PERFORM weir._lock_lanes(lanes);
  moved := weir._move(ids, lanes, queue, to_queue, to_priority, known);
END
$$;
COMMENT ON FUNCTION weir.move_where IS
  'One step of moving all available and scheduled jobs that match a filter to another queue (to_queue, which is created if the name is new), to another priority, or both; for the filter see weir.cancel_where. A moved job keeps its id, attempt, arguments and time, and comes behind the jobs that wait there; the others keep their order. A job that has started is not moved, and one that was cancelled stays cancelled; earlier cancellations of the jobs in its new place do not mean it. A step looks at max_rows jobs (1 to 1000) from after on, and returns how many it has moved, and next: pass it as after in the next call, with the same filter; NULL: this was the last step. A run that is ended has moved what it has returned, and a new run does the rest. Errors: 22023, 40001, 55P03 (a lock was not available within 5 seconds: call again), WR003, WR004 (not in READ COMMITTED autocommit). Locks, to the end of the call: advisory: claims (shared), promotion and the lanes (exclusive); SHARE on weir.cancellation_where, for which cancellations by filter wait. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir._lanes_of(ids bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT ARRAY(
    SELECT DISTINCT k.lane FROM unnest(_lanes_of.ids) i(id)
    CROSS JOIN LATERAL ((SELECT j.lane FROM weir.job j WHERE j.id = i.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1)
                        UNION ALL (SELECT l.lane FROM weir.later l WHERE l.id = i.id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1)) k
    ORDER BY k.lane)
$$;
COMMENT ON FUNCTION weir._lanes_of IS 'The lanes of the newest rows of some jobs, in order.';

CREATE OR REPLACE FUNCTION weir._move(ids bigint[], lanes bigint[], from_queue text, to_queue text, to_priority integer, known bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_variable
DECLARE
  look     weir.job_info;
  j        weir.job;
  l        weir.later;
  was      bigint;  -- the lane that it leaves
  this     bigint;
  moved    integer := 0;
  left_    bigint[] := '{}';
  keys     bigint[] := '{}';
  simple   record;  -- those that are moved at once
  queue_no integer := CASE WHEN to_queue IS NOT NULL AND ids <> '{}' THEN weir._queue_id(to_queue) END;
BEGIN
  IF to_queue IS NOT NULL AND EXISTS (SELECT FROM unnest(lanes) k(lane) WHERE k.lane & 549755813880 <> 0) THEN
    PERFORM weir._mark_keys(to_queue);
  END IF;
  IF queue_no IS NOT NULL AND NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = to_queue) AND EXISTS (
       SELECT FROM unnest(ids) i(id) WHERE EXISTS (SELECT FROM weir.job k WHERE k.id = i.id AND k.unique_key IS NOT NULL AND k.flow IS NOT NULL)
                                        OR EXISTS (SELECT FROM weir.later k WHERE k.id = i.id AND k.unique_key IS NOT NULL AND k.flow IS NOT NULL)) THEN
    INSERT INTO weir.keyed (queue) VALUES (to_queue);  -- what is to be done once stays so
  END IF;
  -- Usually, these are jobs without keys that have not been claimed, nor cancelled. They are moved at once, in less than half of the time.
  IF known IS NULL AND NOT EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i) FROM unnest(ids) i)) THEN
    WITH place AS MATERIALIZED (
      SELECT k.lane, q.name, s.pos_xid, s.pos_id, s.pending, s.pending_after FROM unnest(lanes) k(lane)
      JOIN weir.queue q ON q.id = (k.lane >> 39)::integer CROSS JOIN LATERAL weir._state_of(k.lane) s
      WHERE k.lane & 549755813880 = 0 AND q.name = coalesce(from_queue, q.name)
        AND (q.name <> coalesce(to_queue, q.name) OR (k.lane & 3) + 1 <> coalesce(to_priority, (k.lane & 3) + 1))
    ), gone AS (
      DELETE FROM weir.job d USING (
        SELECT i.nr, n.*, p.name FROM unnest(ids) WITH ORDINALITY i(id, nr)
        CROSS JOIN LATERAL (SELECT k.id, k.attempt, k.put_off, k.segment, k.xid, k.lane FROM weir.job k WHERE k.id = i.id ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1) n
        JOIN place p ON p.lane = n.lane
        WHERE weir._waits(n.xid, n.id, p.pos_xid, p.pos_id, p.pending, p.pending_after)
          AND NOT EXISTS (SELECT FROM weir.later k WHERE k.id = n.id) AND NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = n.id)) n
      WHERE d.id = n.id AND d.attempt = n.attempt AND d.put_off = n.put_off AND d.segment = n.segment
      RETURNING d.*, n.nr, coalesce(to_queue <> n.name, false) AS leaves_queue, (coalesce(queue_no, d.lane >> 39) << 39) + coalesce(to_priority - 1, d.lane & 3) AS to_lane
    ), logged AS (
      INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, leads, kind, args, meta, seq, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT g.id, pg_current_xact_id(), g.enqueued_at, g.ready_at, g.to_lane, g.attempt, g.max_attempts, g.put_off, pg_sequence_last_value('weir.active_job'),
             row_number() OVER (PARTITION BY g.to_lane ORDER BY g.id) = 1, g.kind, g.args, g.meta, g.seq, g.errors,
             CASE WHEN NOT g.leaves_queue OR g.unique_no IS NULL THEN g.unique_key END, CASE WHEN NOT g.leaves_queue THEN g.unique_no END, CASE WHEN NOT g.leaves_queue THEN g.unique_until END, g.key, g.flow
      FROM gone g ORDER BY g.nr
    )
    SELECT array_agg(g.id) AS gone_ids, array_agg(DISTINCT g.lane) AS from_lanes, array_agg(g.lane) FILTER (WHERE g.leads) AS lead_lanes, array_agg(g.xid) FILTER (WHERE g.leads) AS lead_xids INTO simple FROM gone g;
    IF simple.gone_ids IS NOT NULL THEN
      PERFORM nextval('weir.job_id');  -- wakes idle workers
      UPDATE weir.job k SET leads = true WHERE (k.id, k.attempt, k.put_off, k.segment) IN (
        SELECT n.id, n.attempt, n.put_off, n.segment FROM (SELECT DISTINCT u.lane, u.xid FROM unnest(simple.lead_lanes, simple.lead_xids) u(lane, xid)) u
        CROSS JOIN LATERAL (SELECT n.id, n.attempt, n.put_off, n.segment, n.leads FROM weir.job n WHERE n.lane = u.lane AND n.xid = u.xid ORDER BY n.lane, n.xid, n.id LIMIT 1) n WHERE NOT n.leads);
      moved := cardinality(simple.gone_ids);
      left_ := simple.from_lanes;
      ids := ARRAY(SELECT i FROM unnest(ids) WITH ORDINALITY u(i, nr) WHERE i NOT IN (SELECT unnest(simple.gone_ids)) ORDER BY u.nr);
    END IF;
  END IF;
  FOREACH this IN ARRAY ids LOOP
    SELECT k.* INTO look FROM weir._read_job(this, 1) k;
    CONTINUE WHEN look.state NOT IN ('available', 'scheduled') OR look.id IS NULL OR look.queue <> from_queue
      OR (look.queue = coalesce(to_queue, look.queue) AND look.priority = coalesce(to_priority, look.priority));
    IF look.state = 'available' THEN
      SELECT k.* INTO j FROM weir.job k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      was := j.lane;
      CONTINUE WHEN was <> ALL (lanes);  -- enqueued again in another lane since
      DELETE FROM weir.job k WHERE k.id = this AND k.attempt = j.attempt AND k.put_off = j.put_off AND k.segment = j.segment;
      IF j.leads THEN
        UPDATE weir.job k SET leads = true WHERE (k.id, k.attempt, k.put_off, k.segment) IN (
          SELECT n.id, n.attempt, n.put_off, n.segment FROM (SELECT n.* FROM weir.job n WHERE n.lane = was AND n.xid = j.xid ORDER BY n.lane, n.xid, n.id LIMIT 1) n WHERE NOT n.leads);
      END IF;
      j.xid := pg_current_xact_id();
      PERFORM nextval('weir.job_id');  -- wakes idle workers
      -- The key stays the same, and so does its place in front of those that were never tried.
      j.lane := (coalesce(queue_no, was >> 39) << 39) + (was & 549755813884) + coalesce(to_priority - 1, was & 3);
      j.segment := pg_sequence_last_value('weir.active_job');
      j.leads := true;
      IF to_queue <> look.queue AND j.unique_no IS NOT NULL THEN  -- its key meant only jobs of its old queue
        j.unique_key := NULL;
        j.unique_no := NULL;
        j.unique_until := NULL;
      END IF;
      INSERT INTO weir.job SELECT (j).*;
      IF was <> ALL (left_) THEN
        left_ := left_ || was;
      END IF;
    ELSE
      SELECT k.* INTO l FROM weir.later k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      DELETE FROM weir.later k WHERE k.id = this AND k.attempt = l.attempt AND k.put_off = l.put_off AND k.segment = l.segment;
      IF to_queue <> look.queue AND l.unique_no IS NOT NULL THEN
        l.unique_key := NULL;
        l.unique_no := NULL;
        l.unique_until := NULL;
      END IF;
      l.xid := pg_current_xact_id();
      was := l.lane;
      l.lane := (coalesce(queue_no, was >> 39) << 39) + (was & 549755813884) + coalesce(to_priority - 1, was & 3);
      l.segment := pg_sequence_last_value('weir.active_later');
      INSERT INTO weir.later SELECT (l).*;
    END IF;
    IF was & 549755813880 <> 0 THEN
      keys := keys || was;
    END IF;
    -- It is not cancelled where it was. Cancellations of the jobs in its new place mean those that were there.
    IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.no <= known AND w.upto >= this AND num_nonnulls(w.queue, w.priority) > 0) THEN
      INSERT INTO weir.reprieve (id, attempt, since, upto) VALUES (this, look.attempt, 0, known);
    END IF;
    moved := moved + 1;
  END LOOP;
  PERFORM weir._pass_moved(k.lane) FROM unnest(left_) k(lane) WHERE k.lane & 549755813880 = 0;
  -- In order, the next job of a key may have waited for one of these.
  PERFORM weir._free_slots(array_agg(m.gate), array_agg(0), array_agg(k.lane))
  FROM unnest(keys) k(lane) JOIN weir.queue q ON q.id = (k.lane >> 39)::integer JOIN weir.queue_limit m ON m.name = q.name
  WHERE m.in_order;
  RETURN moved;
END
$$;
COMMENT ON FUNCTION weir._move IS
  'Moves those of some jobs that still wait, or are still scheduled, and returns how many. Columns that it does not change are taken as they are. The caller holds the lanes'' locks, and those of claims and promotion.';

CREATE OR REPLACE FUNCTION weir._pass_moved(lane bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  snapshot pg_snapshot := pg_current_snapshot();
  top      xid8 := pg_snapshot_xmax(snapshot);
  running  xid8[] := ARRAY(SELECT pg_snapshot_xip(snapshot));
  last     weir.batch;
  head     xid8;  -- the first transaction that has a row left in the lane
  behind   xid8;  -- the one before it: the position is set behind that
BEGIN
  SELECT b.* INTO last FROM weir.batch b WHERE b.lane = _pass_moved.lane ORDER BY b.seq DESC LIMIT 1;
  IF last.pending <> running[1 : width_bucket(last.pos_xid, running)] THEN
    RETURN;  -- the next claim reads the rows of transactions that have ended
  ELSIF last.lane IS NULL THEN
    last.seq := 0; last.from_xid := '0'; last.to_xid := '0'; last.pos_xid := '0'; last.pos_id := 0; last.total := 0; last.claimed_at := now();
  END IF;
  head := (SELECT j.xid FROM weir.job j WHERE j.lane = _pass_moved.lane AND (j.xid, j.id) > (last.pos_xid, last.pos_id) AND j.xid < top ORDER BY j.xid, j.id LIMIT 1);
  behind := (coalesce(head, least(top, pg_current_xact_id()))::text::bigint - 1)::text::xid8;
  IF behind > last.pos_xid THEN
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
    SELECT _pass_moved.lane, pg_sequence_last_value('weir.active_job'), 0, 0, last.seq + 1, last.from_xid, last.to_xid, behind, 9223372036854775807,
           last.total, last.claimed_at, 0, CASE WHEN p.n > 0 THEN running[1 : p.n] END, CASE WHEN p.n > 0 THEN array_fill(0::bigint, ARRAY[p.n]) END, '{}'
    FROM (SELECT width_bucket(behind, running) AS n OFFSET 0) p;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._pass_moved IS
  'Sets the position of a lane behind the rows that were moved from its head, by writing a batch without jobs and without a worker; all transactions in progress below it are pending. The caller holds the lane''s lock.';
