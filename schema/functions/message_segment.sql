-- Segments of messages: rotation, reclaiming, and rebasing after a restore.

CREATE OR REPLACE FUNCTION weir._rotate_messages() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'message_retention');
  max_bytes bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'message_retention_bytes');
  is_short  boolean;  -- of space
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

  -- A segment is filled for half of retention, and kept for retention after its last message was delivered.
  IF target IS NOT NULL AND size > 8192 AND (size >= max_bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second')) THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('message', active, 'closed'), ('message', target, 'opened');
    PERFORM setval('weir.active_message', target);  -- last, because it does not roll back
    RETURN 'opened message ' || target;
  END IF;
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'message' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN  -- the clock was set back: its retention starts over
      INSERT INTO weir.segment (log, segment, event) VALUES ('message', k.segment, 'closed');
    END IF;
    is_short := target IS NULL AND size >= max_bytes / 2;
    IF is_short OR age >= retention THEN
      IF weir._reclaim_messages(k.segment, CASE WHEN is_short THEN interval '0' ELSE retention END,
                                age < (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'relay_retention') AND NOT is_short) THEN
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
      NULL;  -- it is being read: try again later
    END;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._rotate_messages IS
  'Takes the next step in the life of message segments, if one is due: opens a free segment when the active one is half of message_retention old or has a quarter of message_retention_bytes; reclaims the oldest closed one when its newest message was delivered message_retention ago and relays have passed it on, or after relay_retention, or when no free one is left; empties the heartbeats of hubs ahead of their turn. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see _reclaim_messages.';

CREATE OR REPLACE FUNCTION weir._reclaim_messages(segment integer, retention interval, for_relays boolean DEFAULT false) RETURNS boolean
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
  -- No transaction in flight has messages here, and none can add any, so all messages can be put into ticks.
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
    RAISE lock_not_available;  -- more than a hundred ticks are missing: hubs cut them
  END IF;
  -- Ticks up to the last one with a message here become unreadable.
  SELECT t.* INTO floor FROM weir.tick t
  WHERE t.segment = _reclaim_messages.segment OR t.segments & (1 << _reclaim_messages.segment) <> 0 ORDER BY t.seq DESC LIMIT 1;
  IF floor.at > clock_timestamp() - _reclaim_messages.retention THEN
    RAISE lock_not_available;  -- it was delivered late: other messages of that tick must still be kept
  ELSIF _reclaim_messages.for_relays AND weir._is_relayed_later(floor.seq) THEN
    RETURN false;
  END IF;
  -- Readers hold these locks only briefly, but together perhaps without a gap. So this waits, and new readers wait behind it, for
  -- at most 10 ms. Readers lock ticks first, then messages; so does this.
  EXECUTE format('LOCK TABLE weir.tick_%1$s, weir.message_%1$s IN ACCESS EXCLUSIVE MODE', _reclaim_messages.segment);
  IF newest.segment = _reclaim_messages.segment THEN
    -- The newest tick holds the log's state: an empty tick takes its place.
    IF weir._epoch_here() IS NULL THEN
      PERFORM weir._draw_epoch(newest.seq + 1);
    END IF;
    INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
    VALUES (newest.seq + 1, pg_snapshot_xmax(newest.snapshot), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}', newest.snapshot);
    PERFORM setval('weir.tick_seq', newest.seq + 1);
  END IF;
  -- When the tick was cut that is the floor from now on: what is newer is all kept (weir._first_tick_after).
  IF floor.seq >= pg_sequence_last_value('weir.tick_floor') THEN
    INSERT INTO weir.segment (log, segment, event, at, upto) VALUES ('message', _reclaim_messages.segment, 'carried', floor.at, floor.seq);
  END IF;
  -- The floor is raised first, so that no reader mistakes truncated ticks for ticks without messages.
  PERFORM setval('weir.tick_floor', greatest(floor.seq, pg_sequence_last_value('weir.tick_floor')));
  EXECUTE format('TRUNCATE weir.message_%1$s, weir.tick_%1$s', _reclaim_messages.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('message', _reclaim_messages.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;
COMMENT ON COLUMN weir.segment.upto IS
  'With the event carried: up to which job id a segment of reports is carried; of messages, the last tick that can''t be read any more, and at is when that was cut. NULL for all other events.';
COMMENT ON FUNCTION weir._reclaim_messages IS
  'Truncates a closed segment of messages and ticks, once all its messages are in ticks and the last of these was cut retention ago; with for_relays, only if all relays have passed it on. Records when the last of these ticks was cut. Returns false, and does nothing, if the segment is in use or too young. Locks: SHARE on the segment''s messages (NOWAIT), advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';

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
  -- It checks twice: before it blocks other sessions, and under the locks, when no other session can rebase.
  FOR check_no IN 1..2 LOOP
    IF check_no = 2 THEN
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM generate_series(4, 5) step;
      LOCK TABLE weir.message, weir.tick, weir.epoch, weir.setting IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') = here
         AND pg_snapshot_xmax(newest.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- releases the tables' locks: two sessions that upgrade them would deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;
  -- Messages that are in no tick yet: those with an id after the last tick, since both clusters count ids alike, and late ones.
  CREATE TEMP TABLE weir_message ON COMMIT DROP AS
  SELECT m.* FROM weir.message m WHERE m.id > newest.last_id OR NOT pg_visible_in_snapshot(m.xid, newest.snapshot);
  TRUNCATE weir.message, weir.tick, weir.hub_beat;
  -- The original log has continued since this copy was made. Its positions have another epoch. For subscribers that name no epoch, our
  -- tick numbers start where the original's, at 250 a second, would be after half a year.
  next := newest.seq + (1::bigint << 32);
  PERFORM weir._draw_epoch(next);
  PERFORM setval('weir.tick_floor', next - 1), setval('weir.tick_seq', next);
  INSERT INTO weir.segment (log, segment, event, at, upto) VALUES ('message', pg_sequence_last_value('weir.active_message'), 'carried', newest.at, next - 1);
  -- The new tick's snapshot does not see this transaction, so the next tick contains the messages that it logs again.
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
  'After a restore or a move into another cluster, logs the messages that were in no tick yet again under this cluster''s transaction ids. Earlier ticks are deleted, because no position in them is valid here: subscribers receive a gap. Returns the number of messages, or NULL if there was nothing to do. Hubs call it automatically. Errors: WR004 (not in READ COMMITTED), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on the tables of messages and on the settings, waiting at most 10 s for each. Isolation: READ COMMITTED.';
