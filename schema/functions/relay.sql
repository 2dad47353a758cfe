-- How far relays have come. Where the target of a relay can tell, that decides, and what stands here only keeps messages for it; otherwise the row is
-- written in the transaction of what was passed on, so that both are there, or neither.
COMMENT ON COLUMN weir.relay.tick IS 'The first tick of this database with messages that the relay has not passed on: they are kept for it. NULL: it reads another log, or has ended (weir._relay_has_ended).';

CREATE OR REPLACE FUNCTION weir._relay_reached(relay text, "position" text, tick bigint DEFAULT NULL, after text DEFAULT NULL, sent text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  known text;
BEGIN
  PERFORM weir._check_isolation('_relay_reached', true);
  IF relay IS NULL OR length(relay) NOT BETWEEN 1 AND 100 OR "position" IS NULL OR length("position") > 1000 THEN
    RAISE EXCEPTION 'weir: a relay needs a name of 1 to 100 characters, and a position of up to 1000, got % and %', coalesce(quote_literal(left(relay, 200)), 'null'), coalesce(quote_literal(left("position", 200)), 'null')
      USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.relay IN ROW EXCLUSIVE MODE;  -- from here on it is not compacted, and the next statement sees what it was compacted to
  IF after IS NOT NULL THEN
    PERFORM weir._hold_briefly();  -- a process that stands still keeps no other from passing on
    PERFORM pg_advisory_xact_lock(1464158564, hashtext(_relay_reached.relay));
    SELECT r.position INTO known FROM weir.relay r WHERE r.relay = _relay_reached.relay ORDER BY r.no DESC LIMIT 1;
    IF coalesce(known, '') <> after THEN
      RAISE EXCEPTION 'weir: relay % has come to %, and not to %', _relay_reached.relay, coalesce(quote_literal(known), 'no position'), quote_literal(after)
        USING ERRCODE = 'WR008', HINT = 'Another process runs a relay of this name: continue from where that is.';
    END IF;
  END IF;
  INSERT INTO weir.relay (relay, no, at, position, tick, sent)
  VALUES (_relay_reached.relay, nextval('weir.relay_no'), clock_timestamp(), _relay_reached."position", _relay_reached.tick, left(_relay_reached.sent, 1000));
END
$$;
COMMENT ON FUNCTION weir._relay_reached IS
  'Records how far a relay has come, in the caller''s transaction. sent: the position of the message that the target got last. tick: the first tick of this database that it has not passed on in whole; messages from there on are kept for it, for relay_retention. after: where the relay must have been until then ('''': nowhere); then of two processes that pass on the same, only one commits. Errors: 22023; WR008 (it is elsewhere: another process has passed it on); WR004 (not in READ COMMITTED). Locks: with after, advisory: the relay (exclusive, to the end of the transaction). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._relay_position(relay text, OUT "position" text, OUT sent text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
  PERFORM weir._check_isolation('_relay_position', true);
  LOCK TABLE weir.relay IN ACCESS SHARE MODE;
  SELECT r.position, r.sent INTO _relay_position."position", _relay_position.sent FROM weir.relay r WHERE r.relay = _relay_position.relay ORDER BY r.no DESC LIMIT 1;
END
$$;
COMMENT ON FUNCTION weir._relay_position IS
  'How far a relay has come, and what its target got last, as _relay_reached has recorded; NULL: nothing is recorded. Errors: WR004 (not in READ COMMITTED). Locks: none that others wait for. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._first_tick_after(at timestamptz, OUT tick bigint, OUT epoch bigint, OUT is_kept boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
  -- The newest tick is that of the table, as the sequence may be ahead of it. From here on no part is truncated; and the floor is raised before one is, so it is read afterwards.
  newest bigint := (SELECT t.seq FROM weir.tick t ORDER BY t.seq DESC LIMIT 1);
  floor  bigint := coalesce(pg_sequence_last_value('weir.tick_floor'), 0);
  low    bigint := floor;                         -- it is too early, or there is none
  high   bigint := greatest(newest, floor) + 1;   -- it is late enough, or there is none from here to one that is
  mid    bigint;
  next   bigint;
  made   timestamptz;
  gone   timestamptz;                             -- when the last tick was cut that can't be read
BEGIN
  -- By bisection, among the ticks in the order of their numbers. Where a clock was set back, it is one of the places with this time.
  WHILE high - low > 1 LOOP
    mid := (low + high) / 2;
    SELECT t.seq, t.at INTO next, made FROM weir.tick t WHERE t.seq >= mid AND t.seq < high ORDER BY t.seq LIMIT 1;
    IF made <= _first_tick_after.at THEN
      low := next;
    ELSE
      high := mid;  -- also if there is none: a relay may begin too early, but not too late
    END IF;
  END LOOP;
  tick := high;
  epoch := weir._epoch_of(low);
  is_kept := low > floor OR floor = 0;
  IF NOT is_kept THEN
    -- Nothing is missing if the time is that of the floor, or later. The floor's own row is left if it is in another segment, or if the truncation was rolled back, which lowers no floor.
    SELECT t.at INTO gone FROM weir.tick t WHERE t.seq = floor;
    IF gone IS NULL THEN
      LOCK TABLE weir.segment IN ACCESS SHARE MODE;  -- the next statement sees what it was compacted to
      SELECT s.at INTO gone FROM weir.segment s WHERE s.log = 'message' AND s.event = 'carried' AND s.upto = floor;
    END IF;
    is_kept := coalesce(gone <= _first_tick_after.at, false);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._first_tick_after IS
  'The first tick that was cut after a time, of those that are kept, or the next one; the epoch of the tick before it; and whether everything since that time is kept. A tick that is being committed counts as later. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_relayed_later(tick bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM (SELECT DISTINCT ON (r.relay) r.at, r.tick FROM weir.relay r ORDER BY r.relay, r.no DESC) r
    WHERE r.tick <= _is_relayed_later.tick AND r.at > clock_timestamp() - (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'relay_retention'));
END
$$;
COMMENT ON FUNCTION weir._is_relayed_later IS
  'Whether a relay that was heard of within relay_retention has not passed on a tick in whole. Errors: none. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._relay_has_ended(tick bigint, sent text) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- Nothing is kept for it, although it reads this log: what has a position of another log is written with what was passed on, and says nothing of what was sent.
  SELECT _relay_has_ended.tick IS NULL AND _relay_has_ended.sent IS NOT NULL
$$;
COMMENT ON FUNCTION weir._relay_has_ended IS
  'Whether the newest row of a relay is that of one which has passed everything on up to where it was to end, such as a replay. The row stays: a process that stands by for it, or comes later, goes on from there, and passes nothing on again. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.relays() RETURNS TABLE (relay text, "position" text, reached_at timestamptz, tick bigint, newest_tick bigint, oldest_waiting timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  LOCK TABLE weir.relay IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^relay$', 'weir: the positions of relays were compacted after this transaction took its snapshot');
  RETURN QUERY
  SELECT r.relay, r.position, r.at, r.tick, CASE WHEN r.tick IS NOT NULL THEN n.seq END,
    (SELECT t.at FROM weir.tick t WHERE r.tick <= n.seq AND t.seq >= r.tick ORDER BY t.seq LIMIT 1)
  FROM (SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r ORDER BY r.relay, r.no DESC) r,
       (SELECT pg_sequence_last_value('weir.tick_seq') AS seq) n
  WHERE NOT weir._relay_has_ended(r.tick, r.sent)
  ORDER BY r.relay;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.relays IS
  'Relays by name, and how far they have come, without those that have ended where they were to end: the position in the log that they read, when that was recorded (about every ten seconds while it changes, and once an hour), and for those that read messages of this database the first tick that they have not passed on in whole, the newest tick, and when the oldest tick with messages that may still have to be passed on was cut (NULL: there is none). Errors: 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.forget_relay(relay text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM weir._check_isolation('forget_relay'), weir._hold_briefly();
  LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT FROM weir.relay r WHERE r.relay = forget_relay.relay) THEN
    RETURN false;
  END IF;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r WHERE r.relay <> forget_relay.relay ORDER BY r.relay, r.no DESC;
  TRUNCATE weir.relay;
  INSERT INTO weir.relay SELECT k.* FROM pg_temp.weir_keep k;
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.forget_relay IS
  'Forgets a relay that no longer runs: messages are not kept for it any more, and one of the same name begins as a new one. Returns false if nothing is known of it. Errors: 55P03 (the table was in use for 5 seconds: call again); WR004 (not in READ COMMITTED). Locks: ACCESS EXCLUSIVE on the positions of relays, to the end of the transaction. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir._compact_relays() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF pg_table_size('weir.relay') <= greatest(1048576, 2 * pg_sequence_last_value('weir.relay_bytes')) THEN
    RETURN NULL;
  END IF;
  LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT k.* FROM (SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r ORDER BY r.relay, r.no DESC) k
    -- Nothing of what one that has ended has passed on can be read any more: it would pass none of it on again.
    WHERE NOT coalesce(weir._relay_has_ended(k.tick, k.sent) AND k.at < clock_timestamp() - (SELECT g.value::interval FROM weir.setting g WHERE g.name = 'relay_retention')
                       AND substring(k.position FROM '^[0-9]+[.]([0-9]{1,18})[.][0-9]+$')::bigint <= pg_sequence_last_value('weir.tick_floor'), false);
  TRUNCATE weir.relay;
  INSERT INTO weir.relay SELECT k.* FROM pg_temp.weir_keep k;
  PERFORM setval('weir.relay_bytes', pg_table_size('weir.relay'));
  RETURN 'compacted relays';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._compact_relays IS
  'Compacts weir.relay to the newest row of each relay, without those that ended longer than relay_retention ago and passed on only what has been truncated since, when it has 1 MB and twice what was left the last time. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on it. Isolation: READ COMMITTED.';
