-- Functions for hubs, other than ticks: heartbeats, queues with new jobs, password verifiers, restrictions of roles.

CREATE OR REPLACE FUNCTION weir._beat(hub text, address text, tick bigint, subscribers integer, channels integer DEFAULT 0, messages real DEFAULT 0,
                                  deliveries real DEFAULT 0) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF _beat.hub IS NULL OR length(_beat.hub) NOT BETWEEN 1 AND 128 OR length(_beat.address) > 255 THEN
    RAISE EXCEPTION 'weir: a hub needs a name of 1 to 128 characters, got %', coalesce(quote_literal(left(_beat.hub, 140)), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO weir.hub_beat (ring, at, tick, subscribers, hub, address, channels, messages, deliveries)
  VALUES ((extract(epoch FROM clock_timestamp())::bigint / 300 % 3)::smallint, clock_timestamp(), _beat.tick, _beat.subscribers, _beat.hub, coalesce(_beat.address, ''),
          _beat.channels, _beat.messages, _beat.deliveries);
END
$$;
COMMENT ON FUNCTION weir._beat IS
  'A hub''s heartbeat, with the newest tick that it has dispatched, and how many channels have subscribers there and how many messages and deliveries it has had per second of late; NULL for the tick means that the hub stops. Errors: 22023. Locks: none that others wait for. Isolation: any. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir.hubs() RETURNS TABLE (hub text, address text, seen_at timestamptz, tick bigint, behind bigint, subscribers integer, channels integer,
                                                 messages_per_second real, deliveries_per_second real)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT b.hub, b.address, b.at, b.tick,
         greatest(0, (SELECT max(t.seq) FROM weir.tick t WHERE t.at <= b.at) - b.tick), b.subscribers,
         b.channels, b.messages, b.deliveries
  FROM (SELECT DISTINCT ON (b.hub) b.* FROM weir.hub_beat b WHERE b.at > clock_timestamp() - interval '5 minutes' ORDER BY b.hub, b.at DESC) b
  WHERE b.tick IS NOT NULL ORDER BY b.hub
$$;
COMMENT ON FUNCTION weir.hubs IS
  'The hubs with a heartbeat in the last five minutes that have not stopped since. behind is how many ticks had been cut by then that the hub had not dispatched. Rates are averages of the seconds before the heartbeat; messages are counted once at each hub, whether or not it has subscribers for them. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._fresh_queues(seen pg_snapshot DEFAULT NULL, jobs bigint DEFAULT NULL, polls integer DEFAULT 1, pause double precision DEFAULT 0.003,
                                  patience integer DEFAULT 0, OUT names text[], OUT counts integer[], OUT seen_now pg_snapshot, OUT jobs_now bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  max_count CONSTANT integer := 100;
  lanes     bigint[];
  has_keys  boolean;
  key_lanes bigint[];  -- if there are many
  poll      integer := 1;
  slept     text;
BEGIN
  IF _fresh_queues.polls IS NULL OR _fresh_queues.pause IS NULL OR _fresh_queues.polls < 1 OR _fresh_queues.polls * _fresh_queues.pause > 1 THEN
    RAISE EXCEPTION 'weir: fresh_queues polls for at most 1 second, got % polls, every % s', _fresh_queues.polls, _fresh_queues.pause USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('fresh_queues');
  -- As in weir._await_tick: while nothing happens, no table is read.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);  -- before the snapshot
    EXIT WHEN _fresh_queues.seen IS NULL OR jobs_now IS DISTINCT FROM _fresh_queues.jobs;
    IF poll > _fresh_queues.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text <> _fresh_queues.seen::text;
    END IF;
    IF poll >= _fresh_queues.polls THEN
      seen_now := _fresh_queues.seen;
      RETURN;
    END IF;
    poll := poll + 1;
    slept := pg_sleep(_fresh_queues.pause);
  END LOOP;
  IF _fresh_queues.seen IS NULL THEN
    seen_now := pg_current_snapshot();
    RETURN;
  END IF;
  seen_now := pg_current_snapshot();
  lanes := weir._fresh_lanes(_fresh_queues.seen, seen_now);
  has_keys := lanes IS NULL AND EXISTS (SELECT FROM weir.with_keys);
  IF has_keys THEN
    key_lanes := weir._fresh_lanes(_fresh_queues.seen, seen_now, 5000);  -- NULL: more; then each queue with keys may have some
    key_lanes := CASE WHEN key_lanes IS NOT NULL THEN ARRAY(SELECT f FROM unnest(key_lanes) f WHERE f & 549755813880 <> 0) END;
  END IF;
  WITH ended AS MATERIALIZED (SELECT e.low, e.high FROM weir._ended_since(_fresh_queues.seen, seen_now) e),
  fresh AS MATERIALIZED (
    SELECT q.name, sum(j.n)::integer AS n
    FROM (SELECT unnest(lanes) AS lane UNION ALL SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE lanes IS NULL
          UNION ALL SELECT unnest(key_lanes)) l
    JOIN weir.queue q ON q.id = (l.lane >> 39)::integer
    CROSS JOIN ended e CROSS JOIN LATERAL (
      SELECT count(*) AS n FROM (
        SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid >= e.low AND j.xid < e.high ORDER BY j.lane, j.xid, j.id LIMIT max_count) j) j
    GROUP BY q.name HAVING sum(j.n) > 0
  )
  SELECT array_agg(f.name ORDER BY f.name), array_agg(f.n ORDER BY f.name) INTO names, counts
  FROM (SELECT u.name, max(u.n) AS n FROM (SELECT f.name, f.n FROM fresh f UNION ALL SELECT w.queue, max_count FROM weir.with_keys w WHERE has_keys AND key_lanes IS NULL) u GROUP BY u.name) f;
END
$$;
COMMENT ON FUNCTION weir._fresh_queues IS
  'The queues for which jobs were committed since seen, and how many (from 100 on possibly fewer than there are). seen_now and jobs_now are to be passed to the next call; without seen, the call only returns where to start. It polls up to polls times, every pause seconds; while no job is logged and nothing is committed, it reads only counters. From poll patience + 1 on, it also returns after a commit without jobs. Errors: 22023. Locks: none. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';

CREATE OR REPLACE FUNCTION weir._logins() RETURNS TABLE (name text, verifier text, listens text[], notifies text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT a.rolname::text, a.rolpassword,
         CASE WHEN NOT has_function_privilege(a.oid, f.read, 'EXECUTE') THEN '{}'::text[] ELSE c.listens END,
         CASE WHEN NOT has_function_privilege(a.oid, f.publish, 'EXECUTE') THEN '{}'::text[] ELSE c.notifies END
  FROM (SELECT max(p.oid) FILTER (WHERE p.proname = 'read') AS read, max(p.oid) FILTER (WHERE p.proname = 'publish') AS publish
        FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace) f
  CROSS JOIN pg_authid a LEFT JOIN weir.role_channel c ON c.role = a.rolname
  WHERE a.rolcanlogin AND coalesce(a.rolvaliduntil > clock_timestamp(), true) AND a.rolpassword LIKE 'SCRAM-SHA-256$%'
    AND has_database_privilege(a.oid, current_database(), 'CONNECT')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE (s.rolsuper OR s.rolreplication) AND pg_has_role(a.oid, s.oid, 'MEMBER'));
EXCEPTION WHEN insufficient_privilege THEN
  RAISE EXCEPTION 'weir: the owner of the schema weir may not read pg_authid, so roles'' passwords can''t be checked'
    USING ERRCODE = '42501', HINT = 'Pass hubs a users file; or have a superuser run: GRANT SELECT ON pg_catalog.pg_authid TO ' || quote_ident(current_user) || '.';
END
$$;
COMMENT ON FUNCTION weir._logins IS
  'The roles that may log in at hubs: they have a SCRAM password and the right to connect to this database, and can''t become a superuser or replicate. Hubs check passwords against the stored verifiers, as poolers do, and never see a password. listens and notifies are the channels and patterns that the role may LISTEN on and NOTIFY: NULL for all, none if it may not call weir.read or weir.publish here (see the roles weir_subscribe and weir_publish, and weir.restrict). For the role weir_hub alone. Errors: 42501. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._login_secret(OUT secret text, OUT iterations integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT s.value, coalesce(current_setting('scram_iterations', true)::integer, 4096) FROM weir.setting s WHERE s.name = 'message_login_secret'
$$;
COMMENT ON FUNCTION weir._login_secret IS
  'The secret from which hubs derive salts for users that do not exist, and the number of iterations that they show for them. They are the same at every hub, and like those of this server''s roles, so that nobody can find out which users exist. For the role weir_hub alone. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.restrict(role text, listens text[] DEFAULT NULL, notifies text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  bad text;
BEGIN
  IF restrict.role IS NULL OR octet_length(restrict.role) NOT BETWEEN 1 AND 63 THEN
    RAISE EXCEPTION 'weir: restrict needs the name of a role, got %', coalesce(quote_literal(left(restrict.role, 80)), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_array('restrict', 'listens', restrict.listens), weir._check_array('restrict', 'notifies', restrict.notifies);
  IF cardinality(restrict.listens) > 1000 OR cardinality(restrict.notifies) > 1000 THEN
    RAISE EXCEPTION 'weir: a role can be restricted to at most 1000 channels and patterns, got % and %', cardinality(restrict.listens), cardinality(restrict.notifies)
      USING ERRCODE = '22023', HINT = 'Use broader patterns.';
  END IF;
  SELECT coalesce(c, 'null') INTO bad FROM unnest(restrict.listens || restrict.notifies) c
  WHERE c IS NULL OR octet_length(c) NOT BETWEEN 1 AND 255 OR c ~ '(^|[.])>[.]'
     OR c ~ '(^|[.])([*]([.]|$)|>$)' AND cardinality(string_to_array(c, '.')) > 10 LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % is neither a channel nor a pattern', quote_literal(left(bad, 300))
      USING ERRCODE = '22023', HINT = 'A channel has 1 to 255 bytes. A pattern has at most 10 words, separated by dots; * matches any one word, and > at the end matches one or more words.';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = restrict.role) THEN
    RAISE WARNING 'weir: role % does not exist', quote_literal(restrict.role)
      USING HINT = 'The restriction applies once it does. Check the name: a role with another name is not restricted.';
  END IF;
  DELETE FROM weir.role_channel c WHERE c.role = restrict.role;
  IF restrict.listens IS NOT NULL OR restrict.notifies IS NOT NULL THEN
    INSERT INTO weir.role_channel (role, listens, notifies) VALUES (restrict.role, restrict.listens, restrict.notifies);
  END IF;
END
$$;
COMMENT ON FUNCTION weir.restrict IS
  'Restricts what a role may LISTEN on and NOTIFY at hubs to channels and patterns such as orders.*; NULL allows everything that its grants allow. It replaces earlier restrictions of the role, and applies to connected clients within a few seconds. It does not restrict access to the database itself. Errors: 22023. Locks: none that others wait for, except another change of the role''s restrictions. Isolation: any.';
