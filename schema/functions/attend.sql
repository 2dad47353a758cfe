-- Which workers are alive, and which are fenced because they are silent.
--
-- A worker with its own session attends: the session holds the worker's attendance lock, and as long as it does, the worker is alive and
-- writes no heartbeats. When its process is killed, the session ends immediately and the lock becomes free. Every other worker renews a lease
-- by heartbeats. The newest row of a worker in weir.last_word, by no, is its last word: 'beats': its lease counts from then; 'attends': its
-- lock decides; 'missed': a rescuer found its lock free, and both the lease and the time for a new session count from then. Worker and
-- rescuer write last words under a lock of their own, so they exclude each other.

CREATE OR REPLACE FUNCTION weir.attend(worker integer, pid integer, address inet, port integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '5s'
AS $$
DECLARE
  lease bigint;  -- in ms
BEGIN
  IF attend.pid IS DISTINCT FROM pg_backend_pid() OR attend.address IS DISTINCT FROM inet_client_addr() OR attend.port IS DISTINCT FROM inet_client_port() THEN
    RETURN false;
  END IF;
  PERFORM weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158555, attend.worker);  -- it waits only for a rescuer
  PERFORM weir._check_worker(attend.worker);
  -- A process that hangs keeps its session for a lease, like every other worker. The server doesn't give up a silent connection earlier
  -- either, because the worker at its other end may not notice that and continue.
  SELECT extract(epoch FROM w.lease) * 1000 INTO lease FROM weir.worker w WHERE w.id = attend.worker AND NOT w.fenced;
  PERFORM set_config('idle_session_timeout', lease::text, false), set_config('tcp_user_timeout', '0', false),
          set_config('tcp_keepalives_idle', (lease / 1000 + 1)::text, false), set_config('tcp_keepalives_interval', (lease / 1000 + 1)::text, false),
          set_config('synchronous_commit', 'off', true), set_config('weir.attends', attend.worker || ' 0', false);
  INSERT INTO weir.attendance (worker, started_at, watched) VALUES (attend.worker, pg_postmaster_start_time(), pg_sequence_last_value('weir.watched')) ON CONFLICT DO NOTHING;
  PERFORM weir._note_word(attend.worker, 'attends', 0);
  -- A session lock survives errors and a rollback, so it is taken last. It is taken twice, so that a heartbeat can detect that it was lost.
  PERFORM pg_advisory_lock_shared(1464158554, attend.worker), pg_advisory_lock_shared(1464158554, attend.worker);
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.attend IS
  'Makes this session stand for the worker: while the session lasts, the worker is alive; soon after it has ended without a successor, the worker is fenced. This requires a direct connection, because an intermediary could cut it while both ends are alive. Therefore pass the process id that the client received when it connected, and the address and port of the client''s own end of the connection (both NULL for a Unix socket). If the server sees other values, there is a pooler, a proxy or an address translation, and the function returns false: then renew the lease by heartbeats. If it returns true, call heartbeat in the same session well within the lease: it writes nothing, and keeps the session from being ended as idle. Call it in autocommit, because a rollback does not release the lock; to stop attending, end the session. Errors: WR001 (the worker is unknown or fenced), 55P03 (a lock was not available within 5 s). Locks: advisory: the worker''s attendance (shared, for the session) and its last word (shared), waiting at most 5 s for each. Isolation: any. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._note_word(worker integer, says text, running integer) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  INSERT INTO weir.last_word (ring, worker, at, watched, says, running)
  VALUES ((pg_sequence_last_value('weir.watched') / 300000 % 3)::smallint, _note_word.worker, clock_timestamp(),
          pg_sequence_last_value('weir.watched'), _note_word.says, _note_word.running)
$$;
COMMENT ON FUNCTION weir._note_word IS 'Writes a worker''s last word. The caller holds its lock.';

CREATE OR REPLACE FUNCTION weir._last_says(worker integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT h.says FROM weir.last_word h WHERE h.worker = _last_says.worker ORDER BY h.no DESC LIMIT 1
$$;
COMMENT ON FUNCTION weir._last_says IS 'What a worker''s last word says; NULL: none is left.';

CREATE OR REPLACE FUNCTION weir._attending() RETURNS SETOF integer
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT DISTINCT h.key FROM weir._held(1464158554, 'ShareLock') h(key)  -- any role can take such a lock, also with a number that no worker has
$$;
COMMENT ON FUNCTION weir._attending IS 'The workers whose attendance lock is held by a session.';

CREATE OR REPLACE FUNCTION weir._unattended()
RETURNS TABLE (id integer, name text, lease interval, no bigint, says text, watched bigint, running integer, seen_at timestamptz)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT l.id, l.name, l.lease, h.no, h.says, h.watched, h.running, coalesce(h.at, l.at)
  FROM (SELECT w.id, w.name, w.lease, w.at FROM weir.worker w
        WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
          AND NOT EXISTS (SELECT FROM weir._attending() a(id) WHERE a.id = w.id) OFFSET 0) l
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = l.id ORDER BY h.no DESC LIMIT 1) h ON true
$$;
COMMENT ON FUNCTION weir._unattended IS 'Workers that are not fenced and whose attendance lock is free, each with its last word, if one is left.';

CREATE OR REPLACE FUNCTION weir._misses_one() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  tries CONSTANT integer := 100;  -- many rows may be those of workers that have ended, or many pages empty
  pages bigint := pg_relation_size('weir.worker') / current_setting('block_size')::bigint;
  page  bigint;
  w     record;
  last  record;
BEGIN
  -- While somebody keeps watch, nobody else need do so: see _fence_silent.
  IF abs(extract(epoch FROM clock_timestamp()) * 1000 - pg_sequence_last_value('weir.watched_at')) < 1000 THEN
    RETURN false;
  END IF;
  FOR try IN 1..tries LOOP
    page := floor(random() * pages);
    SELECT k.id, k.lease INTO w
    FROM (SELECT w.id, w.lease FROM weir.worker w WHERE w.ctid >= format('(%s,0)', page)::tid AND w.ctid < format('(%s,0)', page + 1)::tid AND NOT w.fenced) k
    ORDER BY random() LIMIT 1;
    CONTINUE WHEN NOT FOUND OR EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);
    IF NOT pg_try_advisory_xact_lock(1464158554, w.id) THEN
      RETURN false;  -- it attends
    END IF;
    SELECT h.says, h.at INTO last FROM weir.last_word h WHERE h.worker = w.id ORDER BY h.no DESC LIMIT 1;
    RETURN last.says IS DISTINCT FROM 'beats' OR greatest(clock_timestamp() - last.at, last.at - clock_timestamp()) > w.lease;
  END LOOP;
  RETURN false;
END
$$;
COMMENT ON FUNCTION weir._misses_one IS
  'Whether one worker, chosen at random, seems to be lost, as weir._fence_silent sees it: nobody attends, and no heartbeat has come for a lease by the clock. False if somebody keeps watch already. What it reads is bounded, however many workers there are, so that each of a large fleet may call it where it would not call weir._rescue. Call it in autocommit. Errors: 53200 (the lock table of the server is full). Locks: advisory: the attendance of that worker, for a moment, without waiting. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._silent() RETURNS SETOF integer
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT u.id
  FROM (SELECT c.clock, pg_sequence_last_value('weir.watched') + abs((extract(epoch FROM c.clock) * 1000)::bigint - pg_sequence_last_value('weir.watched_at')) AS reading,
               weir._first_look() AS first
        -- In a long transaction, last words are those of now, or those of its snapshot.
        FROM (SELECT CASE WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN now() ELSE clock_timestamp() END OFFSET 0) c(clock) OFFSET 0) r
  CROSS JOIN weir._unattended() u
  -- A standby has none of the locks; rescuers record the workers that they miss.
  WHERE NOT (pg_is_in_recovery() AND coalesce(u.says, 'attends') = 'attends')
  -- A worker is silent if a rescuer would consider it silent: by the counter that rescuing advances. If no one rescues, the counter stands still, and the
  -- clock is added; a clock that was set back or forward makes no worker silent, because the counter's own reading of it follows within a second if someone
  -- rescues. From before the first reading since the server started, only the time for which the counter has stood still counts.
    AND greatest(r.clock - u.seen_at, u.seen_at - r.clock) > u.lease
    AND (r.reading - greatest(u.watched, r.first)) * interval '1 ms' > u.lease + interval '2 seconds'
$$;
COMMENT ON FUNCTION weir._silent IS 'The workers that are silent past their lease and not fenced, see weir.workers. It reads the last words of those that have no session of their own.';

CREATE OR REPLACE FUNCTION weir._prepared_for(worker integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT format('the prepared transaction %L of %s holds its locks: end it by COMMIT PREPARED or ROLLBACK PREPARED', x.gid, x.owner)
  FROM pg_locks l
  JOIN pg_locks t ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction
  JOIN pg_prepared_xacts x ON x.transaction = t.transactionid AND x.database = current_database()
  WHERE l.locktype = 'advisory' AND l.pid IS NULL AND l.objsubid = 2 AND l.granted AND l.objid::bigint = _prepared_for.worker
    AND l.classid IN (1464158548, 1464158552, 1464158555) AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  ORDER BY x.prepared LIMIT 1
$$;
COMMENT ON FUNCTION weir._prepared_for IS
  'Describes the prepared transaction that has called record, claim or heartbeat for a worker, which therefore can''t be fenced before that transaction ends; NULL: none. Such calls can''t be refused, because a function can''t know that its transaction will be prepared.';

CREATE OR REPLACE FUNCTION weir._is_crowded() RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT (SELECT sum(pg_stat_get_db_numbackends(d.oid)) >= current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                 - coalesce(current_setting('reserved_connections', true)::integer, 0) - 3
          FROM pg_database d)
      OR EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database() AND d.datconnlimit >= 0 AND pg_stat_get_db_numbackends(d.oid) >= d.datconnlimit)
      OR EXISTS (SELECT FROM pg_roles r WHERE r.rolconnlimit >= 0 AND (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid) >= r.rolconnlimit)
$$;
COMMENT ON FUNCTION weir._is_crowded IS
  'Reports whether the server, this database or a role has hardly any connection left, so that a worker that lost its connection may not get a new one.';

CREATE OR REPLACE FUNCTION weir._first_look() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF pg_is_in_recovery() THEN  -- unlogged tables can't be read there
    RETURN 0;
  END IF;
  RETURN coalesce((SELECT a.watched FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time()), pg_sequence_last_value('weir.watched'));
END
$$;
COMMENT ON FUNCTION weir._first_look IS
  'The value of weir.watched at the first check for unattended workers since this server started, or its present value if there was none yet: no lease counts from before it. 0 on a standby, where no worker is fenced.';

CREATE OR REPLACE FUNCTION weir._fence_silent() RETURNS TABLE (worker integer, reason text, more boolean, error text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  session_grace constant interval := '3 seconds';  -- for a worker whose session has ended to attend with another
  lease_grace   constant interval := '2 seconds';  -- weir.watched advances by up to 2 s at once: a heartbeat may have come at the end of that step
  clock         bigint;
  passed        bigint;
  reading       bigint;
  since         bigint;  -- weir.watched at the first check since this server started
  crowded       boolean;
  w             record;
  advances      boolean;
  is_new        boolean;
  silent        interval;
  missed        integer := 0;
  fenced        integer := 0;
BEGIN
  FOR w IN SELECT u.*, bool_or(u.is_missing) OVER () AS anybody_missing, bool_or(u.is_awaited) OVER () AS anybody_awaited
           FROM (SELECT u.*, u.says IS DISTINCT FROM 'beats' OR greatest(clock_timestamp() - u.seen_at, u.seen_at - clock_timestamp()) > u.lease AS is_missing,
                        coalesce(u.says = 'missed', false) AND EXISTS (SELECT FROM weir.attendance a WHERE a.worker = u.id AND a.started_at = pg_postmaster_start_time()) AS is_awaited
                 FROM weir._unattended() u) u
           ORDER BY u.id LOOP
    IF reading IS NULL THEN  -- while all workers attend, the clock doesn't advance
      clock := extract(epoch FROM clock_timestamp()) * 1000;
      -- A worker whose session has ended has little time to come back; a clock step takes no more of it than the usual time between two checks. Of all others
      -- the lease counts, as after a restart: there a check that comes late must count for more, or a lease of seconds would take minutes.
      passed := least(abs(clock - pg_sequence_last_value('weir.watched_at')), CASE WHEN w.anybody_awaited THEN 500 ELSE 2000 END);
      advances := passed >= 1000 OR w.anybody_missing AND passed >= 200;
      IF advances THEN
        PERFORM setval('weir.watched_at', clock), setval('weir.watched', pg_sequence_last_value('weir.watched') + passed);
      END IF;
      reading := pg_sequence_last_value('weir.watched');
      -- A crash or a failover may have undone renewals: after it, every lease starts over.
      SELECT a.watched INTO since FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time();
      IF NOT FOUND THEN
        since := reading;
        INSERT INTO weir.attendance (worker, started_at, watched) VALUES (0, pg_postmaster_start_time(), since);
      END IF;
    END IF;
    EXIT WHEN fenced >= 20 OR missed >= 100;
    is_new := coalesce(w.says, 'attends') = 'attends';
    silent := (reading - greatest(w.watched, since)) * interval '1 ms';
    CONTINUE WHEN NOT w.is_missing AND silent <= w.lease + lease_grace;
    worker := w.id;
    more := true;
    IF is_new THEN
      reason := 'its session has ended';
    ELSIF silent > w.lease + lease_grace THEN
      reason := format('worker %s (%s) was lost: silent for %s', w.id, w.name, date_trunc('second', silent));
    ELSE
      reason := format('worker %s (%s) was lost: its session has ended', w.id, w.name);
      IF w.is_awaited AND silent >= session_grace THEN
        crowded := coalesce(crowded, weir._is_crowded());
      END IF;
      IF NOT w.is_awaited OR silent < session_grace OR crowded THEN
        -- While a lease decides, whoever has advanced the clock checks again soon, and nobody else need do so: few may be left of many maintainers, and as long as
        -- the lost ones count, each has its turn as rarely as when all were alive.
        IF advances OR w.is_awaited AND silent < session_grace THEN
          more := false;
          RETURN NEXT;
        END IF;
        CONTINUE;
      END IF;
    END IF;
    -- No worker can write under this lock, so the last word of now stays the last word until the commit.
    IF NOT pg_try_advisory_xact_lock(1464158555, w.id) THEN
      error := weir._prepared_for(w.id);
      IF error IS NOT NULL THEN
        more := false;
        RETURN NEXT;
        error := NULL;
      END IF;
      CONTINUE;
    END IF;
    CONTINUE WHEN (SELECT max(h.no) FROM weir.last_word h WHERE h.worker = w.id) IS DISTINCT FROM w.no;
    IF is_new THEN
      PERFORM weir._note_word(w.id, 'missed', coalesce(w.running, 0));
      missed := missed + 1;
      RETURN NEXT;
      CONTINUE;
    END IF;
    BEGIN
      IF NOT weir._fence(w.id, reason) THEN
        RAISE SQLSTATE 'WR099';  -- releases its locks
      END IF;
      fenced := fenced + 1;
      RETURN NEXT;
    EXCEPTION
      WHEN SQLSTATE 'WR099' THEN
        error := weir._prepared_for(w.id);
        IF error IS NOT NULL THEN
          more := false;
          RETURN NEXT;
          error := NULL;
        END IF;
      WHEN OTHERS THEN
        more := false;
        error := SQLERRM;
        RETURN NEXT;
        error := NULL;
    END;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._fence_silent IS
  'Fences workers that were silent past their lease, and workers that have attended since this server started and whose lock has been free for 3 seconds. Silence is measured by weir.watched, which this function advances, and counts from the first check since this server started at the earliest. After a crash or a failover weir.attendance has no trace of attending workers: then their lease counts, from when they were missed. Returns the workers that it fenced or missed; more is false for those to check again in half a second: after a session has ended, until the 3 seconds are over, for everybody; while a lease decides about a worker that seems to be lost, for the caller that has advanced weir.watched; error is why a worker could not be fenced, for example that a prepared transaction holds it; the others are fenced all the same. The caller holds advisory step 6. Locks: advisory: their last words (exclusive, tried); see _fence. Isolation: READ COMMITTED.';
