-- What hubs and operators need beside the ticks: segments of messages, hubs' signs of life, queues with fresh work, and the way from
-- PostgreSQL's own notifications to Weir's.

CREATE FUNCTION weir.rotate_messages() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'message_retention');
  most      bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'message_retention_bytes');
  next_ring integer  := (extract(epoch FROM clock_timestamp())::bigint / 300 + 1) % 3;
  active    integer;
  target    integer;
  size      bigint;
  opened_at timestamptz;
  k         record;
BEGIN
  PERFORM weir.check_isolation('rotate_messages');
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rotate_messages needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 5) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_message');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir.segment_state('message', s) = 'reclaimed';
  size := pg_table_size('weir.message_' || active) + pg_relation_size('weir.tick_' || active);
  SELECT max(s.at) INTO opened_at FROM weir.segment s WHERE s.log = 'message' AND s.segment = active AND s.event = 'opened';

  -- Half of retention each: a segment is kept for retention after its last message was delivered.
  IF target IS NOT NULL AND size > 8192 AND (size >= most OR coalesce(clock_timestamp() - opened_at >= greatest(retention / 2, interval '1 second'), true)) THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('message', active, 'closed'), ('message', target, 'opened');
    PERFORM setval('weir.active_message', target);  -- last: it does not roll back
    RETURN 'opened message ' || target;
  END IF;
  FOR k IN SELECT s.segment, max(s.at) AS closed_at FROM weir.segment s WHERE s.log = 'message' AND s.segment <> active
           GROUP BY s.segment HAVING weir.segment_state('message', s.segment) <> 'reclaimed' ORDER BY 2 LOOP
    IF clock_timestamp() - k.closed_at >= retention OR (target IS NULL AND size >= most / 2) THEN
      IF weir.reclaim_messages(k.segment, CASE WHEN target IS NULL AND size >= most / 2 THEN interval '0' ELSE retention END) THEN
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
COMMENT ON FUNCTION weir.rotate_messages IS
  'Takes the next step in the life of message segments, if one is due: opens a free one when the active one is half of message_retention old or a quarter of message_retention_bytes; gives the oldest closed one back when its newest message was delivered message_retention ago, or when no free one is left. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see reclaim_messages.';

CREATE FUNCTION weir.reclaim_messages(segment integer, retention interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
SET lock_timeout = '10ms'
AS $$
#variable_conflict use_column
DECLARE
  newest weir.tick;
  floor  weir.tick;
BEGIN
  IF reclaim_messages.segment NOT BETWEEN 1 AND 4 OR reclaim_messages.segment = pg_sequence_last_value('weir.active_message') THEN
    RETURN false;
  END IF;
  -- No transaction in flight has messages here, and none can add any: so all of them can be in ticks.
  EXECUTE format('LOCK TABLE weir.message_%s IN SHARE MODE NOWAIT', reclaim_messages.segment);
  IF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
    RAISE lock_not_available;
  END IF;
  FOR i IN 1..100 LOOP
    EXIT WHEN NOT weir.cut();
  END LOOP;
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF EXISTS (SELECT FROM weir.message m WHERE m.segment = reclaim_messages.segment AND NOT pg_visible_in_snapshot(m.xid, newest.snapshot)
             AND m.xid >= pg_snapshot_xmin(newest.snapshot)) THEN
    RAISE lock_not_available;  -- more than a hundred ticks: others are at it
  END IF;
  -- Ticks up to the last that has a message here can't be read any more.
  SELECT t.* INTO floor FROM weir.tick t
  WHERE t.segment = reclaim_messages.segment OR t.segments & (1 << reclaim_messages.segment) <> 0 ORDER BY t.seq DESC LIMIT 1;
  IF floor.at > clock_timestamp() - reclaim_messages.retention THEN
    RAISE lock_not_available;  -- a late transaction's: others of its time are still to be kept
  END IF;
  -- Whoever reads holds these, each for a moment, and all together perhaps without a pause: so this waits, and they wait behind it, for
  -- 10 ms at most. In their order, first ticks, then messages.
  EXECUTE format('LOCK TABLE weir.tick_%1$s, weir.message_%1$s IN ACCESS EXCLUSIVE MODE', reclaim_messages.segment);
  IF newest.segment = reclaim_messages.segment THEN
    -- The newest tick is the log's state: an empty one takes its place.
    INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
    VALUES (newest.seq + 1, pg_snapshot_xmax(newest.snapshot), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}', newest.snapshot);
    PERFORM setval('weir.tick_seq', newest.seq + 1);
  END IF;
  -- First the register, so that nobody takes what is gone for all there was.
  PERFORM setval('weir.tick_floor', greatest(floor.seq, pg_sequence_last_value('weir.tick_floor')));
  EXECUTE format('TRUNCATE weir.message_%1$s, weir.tick_%1$s', reclaim_messages.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('message', reclaim_messages.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;
COMMENT ON FUNCTION weir.reclaim_messages IS
  'Empties a closed segment of messages and ticks, when all of it has been in ticks, the last of them retention ago. False, and nothing done, when it is in use or too young. Locks: SHARE on the segment''s messages, advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';

CREATE FUNCTION weir.rebase_messages() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
DECLARE
  here   text := (SELECT c.system_identifier::text FROM pg_control_system() c);
  newest weir.tick;
  next   bigint;
  n      bigint;
BEGIN
  PERFORM weir.check_isolation('rebase_messages');
  PERFORM pg_advisory_xact_lock(1464158547, step) FROM generate_series(4, 5) step;
  LOCK TABLE weir.message, weir.tick, weir.setting IN ACCESS EXCLUSIVE MODE;
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') = here
     AND pg_snapshot_xmax(newest.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
    RETURN NULL;
  END IF;
  -- In no tick yet: what was published after the last snapshot by the count of ids, which both clusters share, or late.
  CREATE TEMP TABLE weir_message ON COMMIT DROP AS
  SELECT m.* FROM weir.message m WHERE m.id > newest.last_id OR NOT pg_visible_in_snapshot(m.xid, newest.snapshot);
  TRUNCATE weir.message, weir.tick, weir.hub_beat;
  -- The log that this is a copy of has gone on after the copy was made. Its positions must not be mistaken for ours: so ours begin where its
  -- ticks, at 250 a second, would be after half a year, and whoever comes from there learns of a gap.
  next := newest.seq + (1::bigint << 32);
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

CREATE TABLE weir.hub_beat (
  ring        smallint    NOT NULL,
  at          timestamptz NOT NULL,
  tick        bigint      NOT NULL,
  subscribers integer     NOT NULL,
  hub         text        NOT NULL,
  address     text        NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.hub_beat_0 PARTITION OF weir.hub_beat FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_1 PARTITION OF weir.hub_beat FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_2 PARTITION OF weir.hub_beat FOR VALUES IN (2) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.hub_beat IS 'Hubs'' signs of life, and the newest tick each has dispatched: a ring of three, five minutes each, truncated before its turn.';

CREATE FUNCTION weir.beat(hub text, address text, tick bigint, subscribers integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF beat.hub IS NULL OR length(beat.hub) NOT BETWEEN 1 AND 128 OR length(beat.address) > 255 THEN
    RAISE EXCEPTION 'weir: a hub needs a name of 1 to 128 characters, got %', coalesce(quote_literal(left(beat.hub, 140)), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO weir.hub_beat (ring, at, tick, subscribers, hub, address)
  VALUES ((extract(epoch FROM clock_timestamp())::bigint / 300 % 3)::smallint, clock_timestamp(), beat.tick, beat.subscribers, beat.hub, coalesce(beat.address, ''));
END
$$;
COMMENT ON FUNCTION weir.beat IS 'A hub''s sign of life, with the newest tick it has dispatched. Errors: 22023. Locks: none that others wait for. Isolation: any. Commits asynchronously.';

CREATE FUNCTION weir.hubs() RETURNS TABLE (hub text, address text, seen_at timestamptz, tick bigint, behind bigint, subscribers integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT DISTINCT ON (b.hub) b.hub, b.address, b.at, b.tick,
         greatest(0, (SELECT max(t.seq) FROM weir.tick t WHERE t.at <= b.at) - b.tick), b.subscribers
  FROM weir.hub_beat b WHERE b.at > clock_timestamp() - interval '5 minutes' ORDER BY b.hub, b.at DESC
$$;
COMMENT ON FUNCTION weir.hubs IS 'The hubs that have shown a sign of life in the last five minutes; behind is how many ticks had been cut by then that it had not dispatched.';

CREATE FUNCTION weir.fresh_queues(seen pg_snapshot DEFAULT NULL, jobs bigint DEFAULT NULL, looks integer DEFAULT 1, pause double precision DEFAULT 0.003,
                                  patience integer DEFAULT 0, OUT names text[], OUT counts integer[], OUT seen_now pg_snapshot, OUT jobs_now bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 100;
  look  integer := 1;
  slept text;
BEGIN
  IF fresh_queues.looks IS NULL OR fresh_queues.pause IS NULL OR fresh_queues.looks < 1 OR fresh_queues.looks * fresh_queues.pause > 1 THEN
    RAISE EXCEPTION 'weir: fresh_queues waits at most 1 second: % looks, % s apart', fresh_queues.looks, fresh_queues.pause USING ERRCODE = '22023';
  END IF;
  PERFORM weir.check_isolation('fresh_queues');
  -- As in weir.tick: while nothing happens, no table is touched.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);  -- before the snapshot
    EXIT WHEN fresh_queues.seen IS NULL OR jobs_now IS DISTINCT FROM fresh_queues.jobs;
    IF look > fresh_queues.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text <> fresh_queues.seen::text;
    END IF;
    IF look >= fresh_queues.looks THEN
      seen_now := fresh_queues.seen;
      RETURN;
    END IF;
    look := look + 1;
    slept := pg_sleep(fresh_queues.pause);
  END LOOP;
  IF fresh_queues.seen IS NULL THEN
    seen_now := pg_current_snapshot();
    RETURN;
  END IF;
  WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
  ended AS MATERIALIZED (
    SELECT x AS low, (x::text::bigint + 1)::text::xid8 AS high FROM s, pg_snapshot_xip(fresh_queues.seen) x WHERE pg_visible_in_snapshot(x, s.snapshot)
    UNION ALL
    SELECT p.low, p.high FROM s CROSS JOIN LATERAL weir.spans(pg_snapshot_xmax(fresh_queues.seen), s.snapshot) p),
  fresh AS MATERIALIZED (
    SELECT q.name, sum(j.n)::integer AS n
    FROM weir.queue q CROSS JOIN generate_series(0, 3) p CROSS JOIN ended e CROSS JOIN LATERAL (
      SELECT count(*) AS n FROM (
        SELECT FROM weir.job j WHERE j.lane = q.id * 4 + p AND j.xid >= e.low AND j.xid < e.high ORDER BY j.lane, j.xid, j.id LIMIT most) j) j
    GROUP BY q.name HAVING sum(j.n) > 0)
  SELECT s.snapshot, (SELECT array_agg(f.name ORDER BY f.name) FROM fresh f), (SELECT array_agg(f.n ORDER BY f.name) FROM fresh f)
    INTO seen_now, names, counts FROM s;
END
$$;
COMMENT ON FUNCTION weir.fresh_queues IS
  'The queues for which jobs were committed since seen, with how many (from a hundred on perhaps less than all), and seen and jobs to ask with next. Without seen it tells where to begin. Looks up to so many times, pause seconds apart; while no job is logged and nothing is committed, only counters are looked at. A commit alone counts from look patience + 1 on. Errors: 22023. Locks: none. Isolation: READ COMMITTED. It holds a snapshot while it waits: at most 1 second.';

CREATE FUNCTION weir.role_verifier(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT a.rolpassword FROM pg_authid a
          WHERE a.rolname = role_verifier.name AND a.rolcanlogin AND coalesce(a.rolvaliduntil > clock_timestamp(), true)
            AND a.rolpassword LIKE 'SCRAM-SHA-256$%' AND has_database_privilege(a.oid, current_database(), 'CONNECT'));
EXCEPTION WHEN insufficient_privilege THEN
  RAISE EXCEPTION 'weir: the owner of the schema weir may not read pg_authid, so roles'' passwords can''t be checked'
    USING ERRCODE = '42501', HINT = 'Let a superuser own weir.role_verifier: ALTER FUNCTION weir.role_verifier OWNER TO postgres; or give hubs a users file.';
END
$$;
COMMENT ON FUNCTION weir.role_verifier IS
  'The stored SCRAM verifier of a role that may log in and connect to this database, or NULL: hubs check passwords with it, as poolers do, without ever seeing one. For the role weir_hub alone. Errors: 42501. Locks: none. Isolation: any.';

CREATE FUNCTION weir.notify_callers() RETURNS TABLE (kind text, name text, calls text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  WITH look AS (
    -- A call of the function; or the statement, where a statement can begin, also in a string that is executed.
    SELECT '(?in)^.*(?:\mpg_notify\M"?\s*\(|(?:^|[;$(]|\m(?:begin|then|else|loop|also|instead|do)\M|\mexecute\M\s*\(?\s*(?:format\s*\(\s*)?e?''\s*)[ \t]*notify\s+["a-z_%'']).*$' AS for_calls,
           -- Strings stay, comments go.
           '(''(?:[^'']|'''')*'')|--[^\n]*|/\*(?:[^*]|\*+[^*/])*\*+/' AS comments
  ), callers AS (
    SELECT p.oid, p.oid::regprocedure::text AS name, substring(b.body FROM look.for_calls) AS calls
    FROM look CROSS JOIN pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
    CROSS JOIN LATERAL (SELECT regexp_replace(CASE WHEN p.prosrc = '' AND p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE p.prosrc END, look.comments, '\1', 'g') AS body) b
    WHERE p.pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND b.body ~ look.for_calls)
  SELECT CASE WHEN p.prorettype = 'trigger'::regtype THEN 'trigger function' ELSE 'function' END, c.name, btrim(c.calls)
  FROM callers c JOIN pg_proc p ON p.oid = c.oid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), c.name FROM pg_trigger t JOIN callers c ON c.oid = t.tgfoid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), p.oid::regprocedure::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.proname = 'triggered_change_notification'
  UNION ALL
  SELECT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, CASE WHEN r.ev_type = '1' THEN c.oid::regclass::text ELSE format('%I on %s', r.rulename, c.oid::regclass) END,
         btrim(substring(d.def FROM look.for_calls))
  FROM look CROSS JOIN pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class CROSS JOIN LATERAL (SELECT pg_get_ruledef(r.oid) AS def) d
  WHERE c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND d.def ~ look.for_calls
  ORDER BY 1, 2
$$;
COMMENT ON FUNCTION weir.notify_callers IS
  'What in this database still sends PostgreSQL''s own notifications: functions, with the line that does, the triggers that call them, rules and views. It reads their text, and may take a string for a call. What applications send themselves is not seen here. Sees what the caller may see. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.set(name text, value text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  low  bigint;
  high bigint;
BEGIN
  IF set.name IN ('retention', 'message_retention') THEN
    IF set.value::interval < interval '0' OR set.value::interval > interval '1 year' THEN
      RAISE EXCEPTION 'weir: % must be 0 to 1 year, got %', set.name, set.value USING ERRCODE = '22023';
    END IF;
  ELSE
    SELECT l.low, l.high INTO low, high FROM (VALUES
      ('retention_bytes', 1048576, 9223372036854775807), ('message_retention_bytes', 1048576, 9223372036854775807),
      ('message_bytes', 8000, 16777216)) l(name, low, high) WHERE l.name = set.name;
    IF low IS NULL THEN
      RAISE EXCEPTION 'weir: unknown setting %', set.name
        USING ERRCODE = '22023', HINT = 'Settings are retention and message_retention (intervals), retention_bytes, message_retention_bytes and message_bytes.';
    ELSIF set.value::bigint NOT BETWEEN low AND high THEN
      RAISE EXCEPTION 'weir: % must be % to %, got %', set.name, low, high, set.value USING ERRCODE = '22023';
    END IF;
  END IF;
  UPDATE weir.setting s SET value = set.value WHERE s.name = set.name;
END
$$;
COMMENT ON FUNCTION weir.set IS
  'Changes a setting: retention (how long finished jobs can be looked at, default 1 day), retention_bytes (what log and history may take together, default 4294967296; unfinished jobs are kept whatever they take), message_retention (how long a subscriber can resume from a position, default 1 hour), message_retention_bytes (what messages may take, default 1073741824) or message_bytes (the largest payload, default 1048576, at most 16777216). Errors: 22023.';

DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['weir_publish', 'weir_subscribe', 'weir_hub'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', r);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;  -- another database is being migrated at this moment
        WHEN insufficient_privilege THEN
          RAISE EXCEPTION 'weir: the role % is missing and % may not create roles', r, current_user
            USING ERRCODE = '42501', HINT = format('Let an administrator run: CREATE ROLE %I NOLOGIN', r);
      END;
    END IF;
  END LOOP;
END
$$;

REVOKE ALL ON FUNCTION weir.check_message, weir.publish, weir.publish_bytes, weir.publish_many, weir.publish_drafts, weir.notify, weir.spans, weir.cut, weir.tick,
  weir.read, weir.newest_tick, weir.rotate_messages, weir.reclaim_messages, weir.rebase_messages, weir.beat, weir.hubs, weir.fresh_queues,
  weir.role_verifier, weir.notify_callers FROM PUBLIC;
GRANT USAGE ON SCHEMA weir TO weir_publish, weir_subscribe, weir_hub;
GRANT EXECUTE ON FUNCTION weir.publish, weir.publish_bytes, weir.publish_many, weir.notify TO weir_publish, weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir.tick, weir.read, weir.newest_tick, weir.rebase_messages TO weir_subscribe, weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir.rotate_messages TO weir_subscribe, weir_hub, weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.publish_drafts, weir.beat, weir.fresh_queues, weir.role_verifier TO weir_hub;
GRANT EXECUTE ON FUNCTION weir.hubs, weir.notify_callers TO weir_operate;

-- down --
CREATE OR REPLACE FUNCTION weir.set(name text, value text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  IF set.name = 'retention' THEN
    IF set.value::interval < interval '0' OR set.value::interval > interval '1 year' THEN
      RAISE EXCEPTION 'weir: retention must be 0 to 1 year, got %', set.value USING ERRCODE = '22023';
    END IF;
  ELSIF set.name = 'retention_bytes' THEN
    IF set.value::bigint < 1048576 THEN
      RAISE EXCEPTION 'weir: retention_bytes must be at least 1048576, got %', set.value USING ERRCODE = '22023';
    END IF;
  ELSE
    RAISE EXCEPTION 'weir: unknown setting %', set.name USING ERRCODE = '22023', HINT = 'Settings are retention (an interval) and retention_bytes.';
  END IF;
  UPDATE weir.setting s SET value = set.value WHERE s.name = set.name;
END
$$;
COMMENT ON FUNCTION weir.set IS
  'Changes a setting: retention (how long finished jobs can be looked at, default 1 day) or retention_bytes (what log and history may take together, default 4294967296; unfinished jobs are kept whatever they take). Errors: 22023.';

DROP FUNCTION weir.notify_callers();
DROP FUNCTION weir.role_verifier(text);
DROP FUNCTION weir.fresh_queues(pg_snapshot, bigint, integer, double precision, integer);
DROP FUNCTION weir.hubs();
DROP FUNCTION weir.beat(text, text, bigint, integer);
DROP TABLE weir.hub_beat;
DROP FUNCTION weir.rebase_messages();
DROP FUNCTION weir.reclaim_messages(integer, interval);
DROP FUNCTION weir.rotate_messages();
REVOKE ALL ON SCHEMA weir FROM weir_publish, weir_subscribe, weir_hub;
-- The roles belong to the whole server and stay.
