-- What hubs need beside the ticks: signs of life, queues with fresh work, passwords' verifiers.

CREATE OR REPLACE FUNCTION weir.beat(hub text, address text, tick bigint, subscribers integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
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

CREATE OR REPLACE FUNCTION weir.hubs() RETURNS TABLE (hub text, address text, seen_at timestamptz, tick bigint, behind bigint, subscribers integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT DISTINCT ON (b.hub) b.hub, b.address, b.at, b.tick,
         greatest(0, (SELECT max(t.seq) FROM weir.tick t WHERE t.at <= b.at) - b.tick), b.subscribers
  FROM weir.hub_beat b WHERE b.at > clock_timestamp() - interval '5 minutes' ORDER BY b.hub, b.at DESC
$$;
COMMENT ON FUNCTION weir.hubs IS 'The hubs that have shown a sign of life in the last five minutes; behind is how many ticks had been cut by then that it had not dispatched.';

CREATE OR REPLACE FUNCTION weir.fresh_queues(seen pg_snapshot DEFAULT NULL, jobs bigint DEFAULT NULL, looks integer DEFAULT 1, pause double precision DEFAULT 0.003,
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

CREATE OR REPLACE FUNCTION weir.role_verifier(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
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
