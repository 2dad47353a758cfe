-- Moving slots to another database. The steps, each a transaction of its own, in one of the two databases:
--
--   here   _leave_slots     nothing more is enqueued by routers; whoever still may be is waited for (_holders_of_slots)
--   here   _depart          unfinished jobs that do not run go from the log to weir.departed; those that run end here, or are put back and follow
--   here   _close_slots     all of them are there: what is copied, and in which order, is fixed from now on, and has a name of its own
--   there  _take_in         they are logged, a part at a time, with how far that has come
--   there  _own_slots       routers enqueue there from now on
--   here   _clear_departed  they are forgotten
--
-- Until the other database owns the slots, a move can be given up:
--
--   there  _stop_taking     no more jobs are taken in, nor slots owned, whoever still tries (only if what is copied has a name)
--   here   _stay            those that have not arrived there are logged here again, a part at a time: from the first on, the move can't be gone on with any more, but only be
--                           given up; at the end, the slots are owned here
--
-- What is next follows from what the databases say. So nobody owns a move: whoever wants it does the next step, whatever has become of the one who began it, and two at
-- once get in nobody's way. A job is in the log here, or in weir.departed here until it is in the log there; and is logged there once, because how far that has come is
-- committed with it.
--
-- As in move.sql, an operator asks for what is deleted from the log, and the dead rows go with their segment.

CREATE OR REPLACE FUNCTION weir._leave_slots(low integer, high integer, peer text, OUT move uuid, OUT epoch bigint, OUT is_closed boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  said  record;
  other weir.slot;
BEGIN
  PERFORM weir._change_slots(_leave_slots.low, _leave_slots.high);
  SELECT bool_and(s.state = 'owned') AS owned, max(s.epoch) AS epoch,
         bool_and(s.state IN ('leaving', 'copying') AND s.peer = _leave_slots.peer AND s.low = _leave_slots.low AND s.high = _leave_slots.high) AS is_this, (array_agg(s.move))[1] AS move, bool_or(s.state = 'copying') AS copying
    INTO said FROM weir._said_of_slots(_leave_slots.low, _leave_slots.high) s;
  IF said.is_this THEN
    move := said.move;
    epoch := said.epoch;
    is_closed := said.copying;
    RETURN;
  ELSIF said.owned AND NOT EXISTS (SELECT FROM generate_series(_leave_slots.low, _leave_slots.high) g(slot) WHERE NOT EXISTS (SELECT FROM weir.slot s WHERE g.slot BETWEEN s.low AND s.high)) THEN
    epoch := said.epoch + 1;
    move := gen_random_uuid();
    PERFORM weir._note_slots(_leave_slots.low, _leave_slots.high, 'leaving', epoch, move, _leave_slots.peer);
    is_closed := false;
    RETURN;
  END IF;
  SELECT s.* INTO other FROM weir._said_of_slots(_leave_slots.low, _leave_slots.high) s WHERE s.state <> 'owned' ORDER BY s.no DESC LIMIT 1;
  RAISE EXCEPTION 'weir: slots % to % can''t move from here to database %: %', _leave_slots.low, _leave_slots.high, _leave_slots.peer,
    CASE WHEN other.no IS NULL THEN 'this database does not own all of them'
         WHEN other.state = 'left' THEN format('slots %s to %s have moved to database %s', other.low, other.high, other.peer)
         WHEN other.state = 'returning' THEN format('the move of slots %s to %s to database %s is being given up', other.low, other.high, other.peer)
         ELSE format('slots %s to %s are moving to database %s', other.low, other.high, other.peer) END
    USING ERRCODE = '55000', HINT = CASE WHEN other.state IN ('leaving', 'copying') THEN 'Let that move end first: begin it again, with the same slots; or give it up: move the same slots to where they are.' WHEN other.state = 'returning' THEN 'Move the same slots to where they are first.' ELSE 'Ask the databases again which of them owns these slots.' END;
END
$$;
COMMENT ON FUNCTION weir._leave_slots IS
  'Begins to move slots to another database, or finds the move that has begun. From its commit on, no router enqueues their jobs here. is_closed: all unfinished jobs are in weir.departed. Errors: 22023, 55000 (it does not own all of them, or others of them move), WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._holders_of_slots(among text[] DEFAULT NULL) RETURNS text[]
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(
    SELECT l.virtualtransaction FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = 'weir.slot'::regclass AND l.mode = 'RowShareLock' AND l.granted
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      -- One that is prepared meanwhile has another name.
      AND (_holders_of_slots.among IS NULL OR l.virtualtransaction = ANY (_holders_of_slots.among) OR l.virtualtransaction LIKE '-%'))
$$;
COMMENT ON FUNCTION weir._holders_of_slots IS
  'The open transactions that have asked whether this database owns a slot (see _hold_slot): all, or those of some, and the prepared ones. Once none is left of all those that there were after a change was committed, everybody has seen it, however many have begun since. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_in_slots(lane bigint, low integer, high integer) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT _is_in_slots.lane & 549755813880 <> 0 AND (_is_in_slots.lane & 549755813880) >> 25 BETWEEN _is_in_slots.low AND _is_in_slots.high
$$;
COMMENT ON FUNCTION weir._is_in_slots IS 'Whether a lane is that of a key in a range of slots. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._depart(move uuid, after text DEFAULT NULL, max_rows integer DEFAULT 500, OUT departed integer, OUT running integer, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  max_lanes CONSTANT integer := 300;
  s         weir.slot;
  v         record;
  ids       bigint[] := '{}';
  lanes     bigint[] := '{}';
  gone      bigint[] := '{}';  -- the lanes of those that have departed
  this      bigint;
  begins    bigint := coalesce(split_part(after, ' ', 1)::bigint, 0);  -- the lane to go on with
  after_xid xid8   := coalesce(split_part(after, ' ', 2)::xid8, '0');
  after_id  bigint := coalesce(split_part(after, ' ', 3)::bigint, 0);
  left_     integer := max_lanes;
  q         record;
  w         record;
  late      xid8[];
  page      bigint[];
  c         weir.promotion;
  look      weir.job_info;
  j         weir.job;
  l         weir.later;
BEGIN
  PERFORM weir._check_isolation('a move of slots'), weir._hold_briefly(), weir._commit_synchronously();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: a move of slots needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  PERFORM weir._check_cluster();
  departed := 0;
  running := 0;
  -- Steps before lanes, and these in their order, as claims and rebasing do. The lock of slots keeps the move from being closed meanwhile.
  PERFORM pg_advisory_xact_lock(1464158566, 0), pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158547, 2);
  LOCK TABLE weir.cancellation_where IN SHARE MODE;  -- as in move_where
  SELECT k.* INTO s FROM weir.slot k WHERE k.move = _depart.move ORDER BY k.no DESC LIMIT 1;
  IF s.state IS DISTINCT FROM 'leaving' THEN
    RETURN;
  END IF;
  -- First those that run: what is put back after this is found by a later call.
  running := weir._running_in_slots(s.low, s.high);
  v := weir._in_progress();
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;

  -- Those that wait, lane by lane.
  <<queues>>
  FOR q IN SELECT k.id::bigint AS id, k.name FROM weir.queue k WHERE k.name IN (SELECT m.queue FROM weir.with_keys m) AND k.id >= (begins >> 39)::integer ORDER BY k.id LOOP
    late := weir._late_of(q.name);
    LOOP
      page := ARRAY(SELECT k FROM weir._key_lanes(q.id::integer, greatest(begins - 1, (q.id << 39) + (s.low::bigint << 25) - 1), NULL, 100) k
                    WHERE k < (q.id << 39) + ((s.high + 1)::bigint << 25) ORDER BY k);
      EXIT WHEN page = '{}';
      FOREACH this IN ARRAY page LOOP
        IF left_ = 0 OR cardinality(ids) >= max_rows THEN
          next := concat_ws(' ', this, '0', 0);
          EXIT queues;
        END IF;
        left_ := left_ - 1;
        FOR w IN SELECT k.xid, k.id FROM weir._waiting(this, v.running, v.top, CASE WHEN this = begins THEN after_xid ELSE '0' END, CASE WHEN this = begins THEN after_id ELSE 0 END, max_rows - cardinality(ids), late => late) k ORDER BY k.xid, k.id LOOP
          ids := ids || w.id;
          IF cardinality(ids) >= max_rows THEN
            next := concat_ws(' ', this, w.xid, w.id);
            EXIT queues;
          END IF;
        END LOOP;
      END LOOP;
      begins := page[cardinality(page)] + 1;
    END LOOP;
  END LOOP;
  -- And those that are scheduled, which leave nothing behind that would be looked at again.
  IF next IS NULL THEN
    ids := ids || ARRAY(
      SELECT n.id FROM weir.queue k CROSS JOIN LATERAL (
        SELECT n.id FROM weir.later n
        WHERE n.lane >= (k.id::bigint << 39) + greatest(s.low::bigint << 25, 8) AND n.lane < (k.id::bigint << 39) + ((s.high + 1)::bigint << 25) AND n.flow IS NULL AND weir._waits_later(c, n.run_at, n.id, n.xid)
          AND NOT EXISTS (SELECT FROM weir.cancellation x WHERE x.id = n.id)
          AND NOT (EXISTS (SELECT FROM weir.cancellation_where x WHERE x.upto >= n.id) AND weir._is_cancelled_where(n.id))
        ORDER BY n.lane, n.run_at, n.id LIMIT max_rows) n
      LIMIT max_rows);
  END IF;
  IF ids = '{}' THEN
    RETURN;
  END IF;
  lanes := weir._lanes_of(ids);
  PERFORM weir._lock_lanes(lanes);

  FOREACH this IN ARRAY ids LOOP
    SELECT k.* INTO look FROM weir._read_job(this, 1) k;
    CONTINUE WHEN look.id IS NULL OR look.flow IS NOT NULL OR look.state NOT IN ('available', 'scheduled');
    IF look.state = 'available' THEN
      SELECT k.* INTO j FROM weir.job k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      CONTINUE WHEN j.lane <> ALL (lanes) OR NOT weir._is_in_slots(j.lane, s.low, s.high);  -- logged again in another lane since
      DELETE FROM weir.job k WHERE k.id = this AND k.attempt = j.attempt AND k.put_off = j.put_off AND k.segment = j.segment;
      IF j.leads THEN
        UPDATE weir.job k SET leads = true WHERE (k.id, k.attempt, k.put_off, k.segment) IN (
          SELECT n.id, n.attempt, n.put_off, n.segment FROM (SELECT n.* FROM weir.job n WHERE n.lane = j.lane AND n.xid = j.xid ORDER BY n.lane, n.xid, n.id LIMIT 1) n WHERE NOT n.leads);
      END IF;
      PERFORM weir._note_departed(move, look.queue, this, j.lane, j.xid, NULL, j.enqueued_at, j.ready_at, j.attempt, j.max_attempts, j.put_off, j.kind, j.args, j.meta, j.errors, j.unique_key, j.unique_no, j.unique_until, j.key);
      gone := gone || j.lane;
    ELSE
      SELECT k.* INTO l FROM weir.later k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      CONTINUE WHEN NOT weir._is_in_slots(l.lane, s.low, s.high);
      DELETE FROM weir.later k WHERE k.id = this AND k.attempt = l.attempt AND k.put_off = l.put_off AND k.segment = l.segment;
      PERFORM weir._note_departed(move, look.queue, this, l.lane, l.xid, l.run_at, l.enqueued_at, NULL, l.attempt, l.max_attempts, l.put_off, l.kind, l.args, l.meta, l.errors, l.unique_key, l.unique_no, l.unique_until, l.key);
      gone := gone || l.lane;
    END IF;
    departed := departed + 1;
  END LOOP;
  -- In order, the next job of a key may have waited for one of these.
  PERFORM weir._free_slots(array_agg(m.gate), array_agg(0), array_agg(k.lane))
  FROM unnest(gone) k(lane) JOIN weir.queue n ON n.id = (k.lane >> 39)::integer JOIN weir.queue_limit m ON m.name = n.name
  WHERE m.in_order;
END
$$;
COMMENT ON FUNCTION weir._depart IS
  'One step of taking the unfinished jobs of slots that leave out of the log, from a place on: of those that wait, at most max_rows; and, at the end, of those that are scheduled. Members of flows stay. Returns how many have departed, how many of the slots'' jobs run, and the next place (NULL: this was the last). A run from the beginning to the end that finds none, neither waiting nor running, has found all. Errors: 55P03 (a lock was not available within 5 seconds: call again), WR003, WR004. Locks, to the end of the call: advisory: slots, promotion and the lanes (exclusive), claims (shared); SHARE on weir.cancellation_where. Isolation: READ COMMITTED, in autocommit. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._note_departed(move uuid, queue text, id bigint, lane bigint, xid xid8, run_at timestamptz, enqueued_at timestamptz, ready_at timestamptz, attempt integer, max_attempts integer, put_off integer, kind text, args jsonb, meta jsonb, errors jsonb,
                                               unique_key uuid, unique_no bigint, unique_until timestamptz, key text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  is_back  boolean := lane & 4 <> 0;
  in_order boolean := EXISTS (SELECT FROM weir.queue_limit m WHERE m.name = queue AND m.in_order);
BEGIN
  INSERT INTO weir.departed (move, lane, front, xid, id, job)
  VALUES (move, lane & ~4::bigint, CASE WHEN is_back THEN 0 ELSE 1 END, xid::text::bigint, id, jsonb_build_object(
    'queue', queue, 'priority', (lane & 3) + 1, 'is_back', is_back,
    -- In order, one that is to be tried again is tried at once: what follows it must not start before it.
    'run_at', CASE WHEN NOT (is_back AND in_order) THEN run_at END,
    'enqueued_at', enqueued_at, 'ready_at', coalesce(ready_at, CASE WHEN is_back AND in_order THEN least(run_at, clock_timestamp()) END),
    'attempt', attempt, 'max_attempts', max_attempts, 'put_off', put_off, 'kind', kind, 'args', args, 'meta', meta, 'errors', errors,
    'unique_key', unique_key, 'is_unique', unique_no IS NOT NULL, 'replaces', coalesce(unique_no & 1, 0), 'unique_until', unique_until, 'key', key, 'checkpoint', CASE WHEN attempt > 1 OR put_off > 0 THEN weir.checkpoint(id) END));
END
$$;
COMMENT ON FUNCTION weir._note_departed IS 'Keeps a job that has left the log, for the database to which it moves.';

CREATE OR REPLACE FUNCTION weir._is_of_flow(job_id bigint) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
  SELECT EXISTS (SELECT FROM weir.job j WHERE j.id = job_id AND j.flow IS NOT NULL)
$$;
COMMENT ON FUNCTION weir._is_of_flow IS 'Whether a job that has started is a member of a flow.';

CREATE OR REPLACE FUNCTION weir._running_in_slots(low integer, high integer) RETURNS integer
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT count(*)::integer
  FROM weir._in_hand(weir._holders(), 9223372036854775807, 1000000) h
  CROSS JOIN LATERAL (SELECT b.ids, b.lanes FROM weir.batch b WHERE b.worker = h.worker AND b.no = h.no AND b.lanes IS NOT NULL OFFSET 0) b
  CROSS JOIN LATERAL unnest(b.ids, b.lanes) u(id, lane)
  WHERE weir._is_in_slots(u.lane, _running_in_slots.low, _running_in_slots.high) AND u.id = ANY (h.ids) AND NOT weir._is_of_flow(u.id)
$$;
COMMENT ON FUNCTION weir._running_in_slots IS 'How many jobs of slots run, members of flows aside.';

CREATE OR REPLACE FUNCTION weir._is_in_log(low integer, high integer) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  v      record;
  c      weir.promotion;
  q      record;
  this   bigint;
  begins bigint;
  late   xid8[];
  page   bigint[];
BEGIN
  IF weir._running_in_slots(_is_in_log.low, _is_in_log.high) > 0 THEN
    RETURN true;
  END IF;
  v := weir._in_progress();
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR q IN SELECT k.id::bigint AS id, k.name FROM weir.queue k WHERE k.name IN (SELECT m.queue FROM weir.with_keys m) ORDER BY k.id LOOP
    late := weir._late_of(q.name);
    begins := (q.id << 39) + (_is_in_log.low::bigint << 25);
    LOOP
      page := ARRAY(SELECT k FROM weir._key_lanes(q.id::integer, begins - 1, NULL, 100) k WHERE k < (q.id << 39) + ((_is_in_log.high + 1)::bigint << 25) ORDER BY k);
      EXIT WHEN page = '{}';
      FOREACH this IN ARRAY page LOOP
        IF EXISTS (
             SELECT FROM weir._waiting(this, v.running, v.top, '0', 0, 1000000, late => late) w CROSS JOIN LATERAL weir._read_job(w.id, 1) k
             WHERE k.flow IS NULL AND k.state IN ('available', 'scheduled', 'running')) THEN
          RETURN true;
        END IF;
      END LOOP;
      begins := page[cardinality(page)] + 1;
    END LOOP;
  END LOOP;
  RETURN EXISTS (
    SELECT FROM weir.queue k CROSS JOIN LATERAL (
      SELECT FROM weir.later n
      WHERE n.lane >= (k.id::bigint << 39) + greatest(_is_in_log.low::bigint << 25, 8) AND n.lane < (k.id::bigint << 39) + ((_is_in_log.high + 1)::bigint << 25)
        AND n.flow IS NULL AND weir._waits_later(c, n.run_at, n.id, n.xid) AND NOT EXISTS (SELECT FROM weir.cancellation x WHERE x.id = n.id)
        AND NOT (EXISTS (SELECT FROM weir.cancellation_where x WHERE x.upto >= n.id) AND weir._is_cancelled_where(n.id))
      LIMIT 1) n);
END
$$;
COMMENT ON FUNCTION weir._is_in_log IS
  'Whether the log has unfinished jobs of slots, members of flows and cancelled ones aside. It sees one snapshot, that of the statement that calls it, in which each job is in one place: so none is passed over because it moves on meanwhile, from the one place to the other.';

CREATE OR REPLACE FUNCTION weir._close_slots(move uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  s weir.slot;
BEGIN
  PERFORM weir._change_slots(0, 0);
  SELECT k.* INTO s FROM weir.slot k WHERE k.move = _close_slots.move ORDER BY k.no DESC LIMIT 1;
  IF s.no IS NULL THEN
    RAISE EXCEPTION 'weir: this database knows nothing of the move of slots %: it was given up, another one has followed, or the database was set back', _close_slots.move
      USING ERRCODE = '55000', HINT = 'Move the same slots to the same database again: what is left to do follows from what the databases say.';
  ELSIF s.state = 'returning' OR s.state = 'left' AND s.copy IS NULL THEN
    RAISE EXCEPTION 'weir: the move of slots % is given up', _close_slots.move USING ERRCODE = '55000', HINT = 'Move the slots to where they were, which gives it up in whole; then to the other database again, if they are to move.';
  ELSIF s.state <> 'leaving' THEN
    RETURN s.copy;
  -- Nothing is put back by what does not run, and nothing is enqueued: what one snapshot does not have, does not come any more.
  ELSIF (SELECT weir._is_in_log(s.low, s.high)) THEN
    RETURN NULL;
  END IF;
  s.copy := gen_random_uuid();
  PERFORM weir._note_slots(s.low, s.high, 'copying', s.epoch, s.move, s.peer, s.copy);
  RETURN s.copy;
END
$$;
COMMENT ON FUNCTION weir._close_slots IS
  'Ends the departure of jobs: from now on, no more follow. Returns what the move is called in the other database; NULL: some jobs have not departed yet. Errors: 55000 (the move is not known here, or is given up), WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._departed_after(move uuid, after text, max_rows integer DEFAULT 500, max_bytes bigint DEFAULT 4194304) RETURNS TABLE (place text, job text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  p    text[] := string_to_array(coalesce(nullif(after, ''), '0 0 0 0'), ' ');
  size bigint := 0;
BEGIN
  FOR place, job IN
    SELECT concat_ws(' ', d.lane, d.front, d.xid, d.id), d.job::text FROM weir.departed d
    WHERE d.move = _departed_after.move AND (d.move, d.lane, d.front, d.xid, d.id) > (_departed_after.move, p[1]::bigint, p[2]::integer, p[3]::bigint, p[4]::bigint)
    ORDER BY d.move, d.lane, d.front, d.xid, d.id LIMIT max_rows
  LOOP
    RETURN NEXT;
    size := size + octet_length(job);
    EXIT WHEN size >= max_bytes;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._departed_after IS 'The next jobs that have departed, after a place (empty: from the first on): at most max_rows, and no more after max_bytes.';

CREATE OR REPLACE FUNCTION weir._departing(move uuid, after text) RETURNS TABLE (place text, job text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
  IF NOT EXISTS (SELECT FROM weir.slot s WHERE s.move = _departing.move AND s.state IN ('copying', 'left')) THEN
    RAISE EXCEPTION 'weir: this database knows nothing of the move of slots %: it was given up, or the database was set back', _departing.move USING ERRCODE = '55000', HINT = 'Move the same slots to the same database again: what is left to do follows from what the databases say.';
  END IF;
  RETURN QUERY SELECT d.place, d.job FROM weir._departed_after(_departing.move, after) d;
END
$$;
COMMENT ON FUNCTION weir._departing IS 'A page of the jobs that have departed, after a place (empty: from the first on), once all have. Errors: 55000 (it is not closed here: it was given up, or the database was set back). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._taken_upto(move uuid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  place text := coalesce((SELECT a.upto FROM weir.taken_in a WHERE a.move = _taken_upto.move ORDER BY a.no DESC LIMIT 1), '');
BEGIN
  IF place LIKE 'stopped %' THEN
    RAISE EXCEPTION 'weir: the move of slots % is given up', _taken_upto.move USING ERRCODE = '55000', HINT = 'Move the slots to where they were, which gives it up in whole; then to this database again, if they are to move.';
  END IF;
  RETURN place;
END
$$;
COMMENT ON FUNCTION weir._taken_upto IS 'Up to which place the jobs of a move have arrived here; empty: none has; done: all have, and it is over here. Errors: 55000 (it is given up). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._stop_taking(move uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  place text;
BEGIN
  PERFORM weir._change_slots(0, 0);
  place := coalesce((SELECT a.upto FROM weir.taken_in a WHERE a.move = _stop_taking.move ORDER BY a.no DESC LIMIT 1), '');
  IF place LIKE 'stopped %' THEN
    RETURN substr(place, 9);
  ELSIF place <> 'done' THEN
    PERFORM weir._note_taken(_stop_taking.move, 'stopped ' || place);
  END IF;
  RETURN place;
END
$$;
COMMENT ON FUNCTION weir._stop_taking IS
  'Takes in no more jobs of a move, and owns no slots by it. Returns up to which place they have arrived (empty: none has), which stays so; done: it is over here, and nothing is changed. Errors: WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._note_taken(move uuid, upto text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  INSERT INTO weir.taken_in (move, no, upto, at)
  SELECT _note_taken.move, coalesce(max(a.no), 0) + 1, _note_taken.upto, clock_timestamp() FROM weir.taken_in a WHERE a.move = _note_taken.move;
  DELETE FROM weir.taken_in a WHERE a.move = _note_taken.move AND a.no < (SELECT max(n.no) FROM weir.taken_in n WHERE n.move = _note_taken.move);
$$;
COMMENT ON FUNCTION weir._note_taken IS 'Notes how far a move has come here. The caller holds the lock of slots.';

CREATE OR REPLACE FUNCTION weir._log_departed(jobs jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_column
DECLARE
  this_xid xid8;
  ids      bigint[];
  names    text[];
  queues   integer[];
  report   smallint;
BEGIN
  names := ARRAY(SELECT DISTINCT k.value ->> 'queue' FROM jsonb_array_elements(jobs) k ORDER BY 1);
  queues := ARRAY(SELECT weir._queue_id(u.name) FROM unnest(names) WITH ORDINALITY u(name, nr) ORDER BY u.nr);
  PERFORM weir._mark_keys(u.name) FROM unnest(names) u(name);
  INSERT INTO weir.keyed (queue) SELECT DISTINCT k.value ->> 'queue' FROM jsonb_array_elements(jobs) k
  WHERE (k.value ->> 'is_unique')::boolean AND NOT EXISTS (SELECT FROM weir.keyed y WHERE y.queue = k.value ->> 'queue');
  this_xid := pg_current_xact_id();  -- before the ids are drawn, as in enqueue
  ids := ARRAY(SELECT nextval('weir.job_id') FROM generate_series(1, jsonb_array_length(jobs)));
  -- Those that were put back come first, and are in one lane with those behind them: whatever their order was, it is kept.
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT ids[k.nr], this_xid, x.enqueued_at, x.ready_at, (queues[array_position(names, x.queue)]::bigint << 39) + weir._key_bits(x.key) + x.priority - 1, x.attempt, x.max_attempts, x.put_off, pg_sequence_last_value('weir.active_job'),
         x.kind, x.args, x.meta, x.errors, x.unique_key, CASE WHEN x.is_unique THEN ids[k.nr] * 2 + x.replaces END, x.unique_until, x.key, NULL
  FROM jsonb_array_elements(jobs) WITH ORDINALITY k(job, nr) CROSS JOIN LATERAL jsonb_to_record(k.job) x(queue text, priority integer, run_at timestamptz, enqueued_at timestamptz, ready_at timestamptz, attempt integer,
    max_attempts integer, put_off integer, kind text, args jsonb, meta jsonb, errors jsonb, unique_key uuid, is_unique boolean, replaces integer, unique_until timestamptz, key text)
  WHERE x.run_at IS NULL ORDER BY k.nr;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT ids[k.nr], this_xid, x.run_at, x.enqueued_at, (queues[array_position(names, x.queue)]::bigint << 39) + weir._key_bits(x.key) + CASE WHEN x.is_back THEN 4 ELSE 0 END + x.priority - 1, x.attempt, x.max_attempts, x.put_off,
         pg_sequence_last_value('weir.active_later'), x.kind, x.args, x.meta, x.errors, x.unique_key, CASE WHEN x.is_unique THEN ids[k.nr] * 2 + x.replaces END, x.unique_until, x.key, NULL
  FROM jsonb_array_elements(jobs) WITH ORDINALITY k(job, nr) CROSS JOIN LATERAL jsonb_to_record(k.job) x(queue text, priority integer, run_at timestamptz, is_back boolean, enqueued_at timestamptz, attempt integer,
    max_attempts integer, put_off integer, kind text, args jsonb, meta jsonb, errors jsonb, unique_key uuid, is_unique boolean, replaces integer, unique_until timestamptz, key text)
  WHERE x.run_at IS NOT NULL ORDER BY k.nr;
  IF EXISTS (SELECT FROM jsonb_array_elements(jobs) k WHERE coalesce(k.value -> 'checkpoint', 'null') <> 'null') THEN
    report := weir._hold_report_segment();
    INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, checkpoint)
    SELECT ids[k.nr], 0, nextval('weir.report_no'), report, clock_timestamp(), (k.job ->> 'attempt')::integer, k.job -> 'checkpoint'
    FROM jsonb_array_elements(jobs) WITH ORDINALITY k(job, nr) WHERE coalesce(k.job -> 'checkpoint', 'null') <> 'null';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._log_departed IS 'Logs jobs as _note_departed has kept them, in their order. The caller holds the lock of slots.';

CREATE OR REPLACE FUNCTION weir._take_in(move uuid, after text, upto text, jobs jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_column
DECLARE
  was text;
BEGIN
  PERFORM weir._check_isolation('a move of slots'), weir._hold_briefly(), weir._commit_synchronously();
  PERFORM weir._check_cluster();
  IF move IS NULL OR after IS NULL OR upto IS NULL OR jsonb_typeof(jobs) IS DISTINCT FROM 'array' OR upto !~ '^[0-9]+ [01] [0-9]+ [0-9]+$' THEN
    RAISE EXCEPTION 'weir: jobs of a move need its name, the places before and after them, and an array, got %, %, % and %', coalesce(move::text, 'null'), coalesce(quote_literal(left(after, 200)), 'null'), coalesce(quote_literal(left(upto, 200)), 'null'),
      coalesce('a JSON ' || jsonb_typeof(jobs), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM pg_advisory_xact_lock(1464158566, 0);
  was := weir._taken_upto(_take_in.move);
  IF was <> after THEN
    RETURN was;  -- somebody else was faster
  END IF;
  -- As they were checked when they were enqueued; Weir itself may have written into meta since, and added attempts.
  PERFORM weir._check_job(x.queue, x.kind, x.args, x.priority, least(x.max_attempts, 1000), NULL), weir._check_moved(x.key, x.meta, x.errors, x.attempt, x.put_off)
  FROM jsonb_array_elements(jobs) k CROSS JOIN LATERAL jsonb_to_record(k.value) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, key text, meta jsonb, errors jsonb, attempt integer, put_off integer);
  PERFORM weir._log_departed(jobs);
  PERFORM weir._note_taken(_take_in.move, _take_in.upto);
  RETURN upto;
END
$$;
COMMENT ON FUNCTION weir._take_in IS
  'Logs jobs that have departed from another database, and how far the move has come with them: upto. Returns upto; or, if the move has not come as far as after, or further, how far it has, and then nothing is logged. Errors: 22023, 55000 (the move is given up), WR003, WR004. Locks: advisory: slots (exclusive); ROW EXCLUSIVE on the log; none that an enqueue waits for. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._check_moved(key text, meta jsonb, errors jsonb, attempt integer, put_off integer) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
BEGIN
  PERFORM weir._check_key(_check_moved.key);
  IF _check_moved.key IS NULL OR jsonb_typeof(_check_moved.meta) NOT IN ('object', 'null') OR jsonb_typeof(_check_moved.errors) NOT IN ('array', 'null')
     OR _check_moved.attempt IS NULL OR _check_moved.attempt < 1 OR _check_moved.put_off IS NULL OR _check_moved.put_off < 0 THEN
    RAISE EXCEPTION 'weir: a job that moves has a key, an attempt from 1 and a number of times that it was put off, meta that is an object, and errors that are an array; got the key %, % and %, a % and a %',
      coalesce(quote_literal(_check_moved.key), 'null'), coalesce(_check_moved.attempt::text, 'null'), coalesce(_check_moved.put_off::text, 'null'), coalesce(jsonb_typeof(_check_moved.meta), 'null'), coalesce(jsonb_typeof(_check_moved.errors), 'null')
      USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_moved IS 'Checks what a job that moves has apart from what one that is enqueued has. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._stay(move uuid, epoch bigint, owner text DEFAULT NULL, copy uuid DEFAULT NULL, upto text DEFAULT NULL, OUT copied uuid, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_column
DECLARE
  s       weir.slot;
  page    jsonb;
  reached text;
BEGIN
  PERFORM weir._change_slots(0, 0), weir._check_cluster();
  IF _stay.upto !~ '^([0-9]+ [01] [0-9]+ [0-9]+)?$' THEN
    RAISE EXCEPTION 'weir: % is no place of a move', quote_literal(left(_stay.upto, 200)) USING ERRCODE = '22023';
  END IF;
  SELECT k.* INTO s FROM weir.slot k WHERE k.move = _stay.move ORDER BY k.no DESC LIMIT 1;
  IF s.no IS NULL OR s.state NOT IN ('leaving', 'copying', 'returning') OR EXISTS (SELECT FROM weir._said_of_slots(s.low, s.high) k WHERE k.no <> s.no) THEN
    RETURN;  -- it has ended, or was given up
  ELSIF s.state = 'copying' THEN
    IF s.copy IS DISTINCT FROM _stay.copy THEN
      copied := s.copy;
      RETURN;
    ELSIF _stay.upto IS NULL THEN
      RAISE EXCEPTION 'weir: how far the move % has come in database % is not given', s.copy, s.peer USING ERRCODE = '22023';
    END IF;
    PERFORM weir._forget_departed(s.move, '', _stay.upto);  -- they have arrived
  END IF;
  -- What is before the place was logged, and is deleted: a scan from the first on would pass over its dead rows once a page. Should there be some after all, they are found in the end.
  FOREACH next IN ARRAY ARRAY[coalesce(_stay.upto, ''), ''] LOOP
    SELECT jsonb_agg(d.job::jsonb ORDER BY d.nr), (array_agg(d.place ORDER BY d.nr DESC))[1] INTO page, reached FROM weir._departed_after(s.move, next) WITH ORDINALITY d(place, job, nr);
    CONTINUE WHEN page IS NULL;
    PERFORM weir._log_departed(page), weir._forget_departed(s.move, next, reached);
    IF s.state <> 'returning' THEN
      PERFORM weir._note_slots(s.low, s.high, 'returning', s.epoch, s.move, s.peer, s.copy);
    END IF;
    next := reached;
    RETURN;
  END LOOP;
  next := NULL;
  IF _stay.owner IS NULL THEN
    PERFORM weir._note_slots(s.low, s.high, 'owned', greatest(_stay.epoch, s.epoch + 1), NULL, NULL);
  ELSE
    PERFORM weir._note_slots(s.low, s.high, 'left', s.epoch, s.move, _stay.owner, s.copy);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._stay IS
  'One step of giving up a move of slots to another database: logs a page of what has departed again, from which on the move can only be given up, and returns its place, next: call it again, with that place as upto (without, it does the same, more slowly). Once nothing is left, it makes this database the owner of the slots, with an epoch of at least this; or, with owner, notes that they are there; and returns nothing, as it does when there is no such move, because it has ended or was given up. If some jobs may have arrived in the other database, nothing is changed, and what the move is called there is returned, copied: call _stop_taking there, and this again with copy, and with the place upto, up to which they stay there. Errors: 22023, WR003, WR004. Locks: advisory: slots (exclusive); ROW EXCLUSIVE on the log; none that an enqueue waits for. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._forget_departed(move uuid, after text, upto text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  a text[] := string_to_array(coalesce(nullif(after, ''), '0 0 0 0'), ' ');
  u text[] := string_to_array(coalesce(nullif(upto, ''), '0 0 0 0'), ' ');
BEGIN
  DELETE FROM weir.departed d
  WHERE d.move = _forget_departed.move AND (d.move, d.lane, d.front, d.xid, d.id) > (_forget_departed.move, a[1]::bigint, a[2]::integer, a[3]::bigint, a[4]::bigint)
    AND (d.move, d.lane, d.front, d.xid, d.id) <= (_forget_departed.move, u[1]::bigint, u[2]::integer, u[3]::bigint, u[4]::bigint);
END
$$;
COMMENT ON FUNCTION weir._forget_departed IS 'Deletes the jobs that have departed, after a place (empty: from the first on) up to another. The caller holds the lock of slots.';

CREATE OR REPLACE FUNCTION weir._clear_departed(move uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  s weir.slot;
BEGIN
  PERFORM weir._change_slots(0, 0);
  SELECT k.* INTO s FROM weir.slot k WHERE k.move = _clear_departed.move ORDER BY k.no DESC LIMIT 1;
  IF s.state = 'copying' THEN
    PERFORM weir._note_slots(s.low, s.high, 'left', s.epoch, s.move, s.peer, s.copy);
    DELETE FROM weir.departed d WHERE d.move = _clear_departed.move;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._clear_departed IS 'Ends a move, once the other database owns the slots: forgets the jobs that have arrived there. Errors: WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';
