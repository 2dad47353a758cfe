-- Segments of messages: rotation, reclaiming, and a new beginning after a restore.

CREATE OR REPLACE FUNCTION weir._rotate_messages() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'message_retention');
  most      bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'message_retention_bytes');
  next_ring integer  := (extract(epoch FROM clock_timestamp())::bigint / 300 + 1) % 3;
  active    integer;
  target    integer;
  size      bigint;
  age       interval;
  k         record;
BEGIN
  PERFORM weir._check_isolation('rotate_messages'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rotate_messages needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 5) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_message');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('message', s) = 'reclaimed';
  size := pg_table_size('weir.message_' || active) + pg_relation_size('weir.tick_' || active);
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'message' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);

  -- Half of retention each: a segment is kept for retention after its last message was delivered.
  IF target IS NOT NULL AND size > 8192 AND (size >= most OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second')) THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('message', active, 'closed'), ('message', target, 'opened');
    PERFORM setval('weir.active_message', target);  -- last: it does not roll back
    RETURN 'opened message ' || target;
  END IF;
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'message' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN  -- the clock was set back: its time begins anew
      INSERT INTO weir.segment (log, segment, event) VALUES ('message', k.segment, 'closed');
    END IF;
    IF age >= retention OR (target IS NULL AND size >= most / 2) THEN
      IF weir._reclaim_messages(k.segment, CASE WHEN target IS NULL AND size >= most / 2 THEN interval '0' ELSE retention END) THEN
        RETURN 'reclaimed message ' || k.segment;
      END IF;
    END IF;
  END LOOP;
  IF pg_relation_size('weir.hub_beat_' || next_ring) > 0 THEN
    BEGIN
      EXECUTE format('LOCK TABLE weir.hub_beat_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
      EXECUTE format('TRUNCATE weir.hub_beat_%s', next_ring);
      RETURN 'emptied hub_beat ' || next_ring;
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- being read: later
    END;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._rotate_messages IS
  'Takes the next step in the life of message segments, if one is due: opens a free one when the active one is half of message_retention old or a quarter of message_retention_bytes; gives the oldest closed one back when its newest message was delivered message_retention ago, or when no free one is left. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see reclaim_messages.';

CREATE OR REPLACE FUNCTION weir._reclaim_messages(segment integer, retention interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET lock_timeout = '10ms'
AS $$
#variable_conflict use_column
DECLARE
  newest weir.tick;
  floor  weir.tick;
BEGIN
  IF _reclaim_messages.segment NOT BETWEEN 1 AND 4 OR _reclaim_messages.segment = pg_sequence_last_value('weir.active_message') THEN
    RETURN false;
  END IF;
  -- No transaction in flight has messages here, and none can add any: so all of them can be in ticks.
  EXECUTE format('LOCK TABLE weir.message_%s IN SHARE MODE NOWAIT', _reclaim_messages.segment);
  IF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
    RAISE lock_not_available;
  END IF;
  FOR i IN 1..100 LOOP
    EXIT WHEN (weir._cut()).seq IS NULL;
  END LOOP;
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF EXISTS (SELECT FROM weir.message m WHERE m.segment = _reclaim_messages.segment AND NOT pg_visible_in_snapshot(m.xid, newest.snapshot)
             AND m.xid >= pg_snapshot_xmin(newest.snapshot)) THEN
    RAISE lock_not_available;  -- more than a hundred ticks: others are at it
  END IF;
  -- Ticks up to the last that has a message here can't be read any more.
  SELECT t.* INTO floor FROM weir.tick t
  WHERE t.segment = _reclaim_messages.segment OR t.segments & (1 << _reclaim_messages.segment) <> 0 ORDER BY t.seq DESC LIMIT 1;
  IF floor.at > clock_timestamp() - _reclaim_messages.retention THEN
    RAISE lock_not_available;  -- a late transaction's: others of its time are still to be kept
  END IF;
  -- Whoever reads holds these, each for a moment, and all together perhaps without a pause: so this waits, and they wait behind it, for
  -- 10 ms at most. In their order, first ticks, then messages.
  EXECUTE format('LOCK TABLE weir.tick_%1$s, weir.message_%1$s IN ACCESS EXCLUSIVE MODE', _reclaim_messages.segment);
  IF newest.segment = _reclaim_messages.segment THEN
    -- The newest tick is the log's state: an empty one takes its place.
    IF weir._epoch_here() IS NULL THEN
      PERFORM weir._draw_epoch(newest.seq + 1);
    END IF;
    INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
    VALUES (newest.seq + 1, pg_snapshot_xmax(newest.snapshot), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}', newest.snapshot);
    PERFORM setval('weir.tick_seq', newest.seq + 1);
  END IF;
  -- First the register, so that nobody takes what is gone for all there was.
  PERFORM setval('weir.tick_floor', greatest(floor.seq, pg_sequence_last_value('weir.tick_floor')));
  EXECUTE format('TRUNCATE weir.message_%1$s, weir.tick_%1$s', _reclaim_messages.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('message', _reclaim_messages.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;
COMMENT ON FUNCTION weir._reclaim_messages IS
  'Empties a closed segment of messages and ticks, when all of it has been in ticks, the last of them retention ago. False, and nothing done, when it is in use or too young. Locks: SHARE on the segment''s messages, advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';

CREATE OR REPLACE FUNCTION weir.rebase_messages() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
DECLARE
  here   text := (SELECT c.system_identifier::text FROM pg_control_system() c);
  newest weir.tick;
  next   bigint;
  n      bigint;
BEGIN
  PERFORM weir._check_isolation('rebase_messages');
  -- Twice: before anybody is held up, and when nobody else can have done it.
  FOR look IN 1..2 LOOP
    IF look = 2 THEN
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM generate_series(4, 5) step;
      LOCK TABLE weir.message, weir.tick, weir.epoch, weir.setting IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') = here
         AND pg_snapshot_xmax(newest.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- lets go of the tables: two that wait for each other's would be a deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;
  -- In no tick yet: what was published after the last snapshot by the count of ids, which both clusters share, or late.
  CREATE TEMP TABLE weir_message ON COMMIT DROP AS
  SELECT m.* FROM weir.message m WHERE m.id > newest.last_id OR NOT pg_visible_in_snapshot(m.xid, newest.snapshot);
  TRUNCATE weir.message, weir.tick, weir.hub_beat;
  -- The log that this is a copy of has gone on after the copy was made. Its positions are of another epoch; and for those who ask
  -- without one, ours begin where its ticks, at 250 a second, would be after half a year.
  next := newest.seq + (1::bigint << 32);
  PERFORM weir._draw_epoch(next);
  PERFORM setval('weir.tick_floor', next - 1), setval('weir.tick_seq', next);
  -- This transaction's xid is not in the new tick's snapshot, so the next tick brings what it logs again.
  INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
  SELECT next, pg_snapshot_xmin(s), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}',
         (pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmin(s)::text || ':')::pg_snapshot
  FROM pg_current_snapshot() s;
  PERFORM pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT m.id, pg_current_xact_id(), pg_sequence_last_value('weir.active_message'), m.is_binary, m.keep OR true, m.channel, m.payload
  FROM pg_temp.weir_message m ORDER BY m.id;
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE weir.setting SET value = here WHERE name = 'message_cluster';
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir.rebase_messages IS
  'After a restore or a move into another cluster: logs messages that were in no tick yet again under this cluster''s transaction ids; what was in ticks is history that nobody can resume from, and goes. Returns how many, or NULL when there was nothing to do. Hubs call it by themselves. Locks: the messages'' tables, ACCESS EXCLUSIVE, waiting at most 10 s for each. Isolation: READ COMMITTED.';
