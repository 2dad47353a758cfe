-- Who lives, and who is fenced for being silent.
--
-- A worker with a session of the server to itself attends: that session holds the worker's attendance lock, and while it does the worker is
-- alive and need not write that it is. When its process is killed the session ends at once, and the lock is free. Every other worker renews a
-- lease by heartbeats. weir.last_word is a worker's last word, in the order of no: it 'beats', so the lease counts from then; it 'attends', so the
-- lock tells; or a rescuer has 'missed' it, finding its lock free, and both counts begin. Worker and rescuer exclude each other in whatever they
-- write there by a lock of the last word's own.

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
  PERFORM pg_advisory_xact_lock_shared(1464158555, attend.worker);  -- only a rescuer is waited for
  PERFORM weir._check_worker(attend.worker);
  -- A process that stands still keeps its session: for a lease, like everybody. Nor does the server give up a line earlier that says nothing,
  -- for who is at its other end may not know of it, and go on.
  SELECT extract(epoch FROM w.lease) * 1000 INTO lease FROM weir.worker w WHERE w.id = attend.worker AND NOT w.fenced;
  PERFORM set_config('idle_session_timeout', lease::text, false), set_config('tcp_user_timeout', '0', false),
          set_config('tcp_keepalives_idle', (lease / 1000 + 1)::text, false), set_config('tcp_keepalives_interval', (lease / 1000 + 1)::text, false),
          set_config('synchronous_commit', 'off', true), set_config('weir.attends', attend.worker || ' 0', false);
  INSERT INTO weir.attendance (worker, started_at, watched) VALUES (attend.worker, pg_postmaster_start_time(), pg_sequence_last_value('weir.watched')) ON CONFLICT DO NOTHING;
  PERFORM weir._note_word(attend.worker, 'attends', 0);
  -- For the session: it outlives errors and a rollback, so it comes last. Twice: then a heartbeat can tell that it was lost.
  PERFORM pg_advisory_lock_shared(1464158554, attend.worker), pg_advisory_lock_shared(1464158554, attend.worker);
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir.attend IS
  'Has this session speak for the worker: while it lasts the worker is alive, and once it has ended without another the worker is soon fenced. Only where nothing lies between that could cut the line with both ends alive: so the caller says the process id that it was given as it connected, and the address and port of its own end of the connection (both NULL for a Unix socket). If the server sees others, there is a pooler, a proxy or an address translation, and the answer is false: renew the lease by heartbeats. Where it is true call heartbeat by the same session, well within the lease: it writes nothing then, and keeps the session from being ended as idle. In autocommit, for a rollback does not take the lock back; to cease to attend end the session. Errors: WR001. Locks: advisory: the worker''s attendance (shared, for the session), its last word (shared), each waited for at most 5 s. Isolation: any. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._note_word(worker integer, says text, running integer) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  INSERT INTO weir.last_word (ring, worker, at, watched, says, running)
  VALUES ((pg_sequence_last_value('weir.watched') / 300000 % 3)::smallint, _note_word.worker, clock_timestamp(),
          pg_sequence_last_value('weir.watched'), _note_word.says, _note_word.running)
$$;
COMMENT ON FUNCTION weir._note_word IS 'Notes a worker''s last word. The caller holds its lock.';

CREATE OR REPLACE FUNCTION weir._last_says(worker integer) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT h.says FROM weir.last_word h WHERE h.worker = _last_says.worker ORDER BY h.no DESC LIMIT 1
$$;
COMMENT ON FUNCTION weir._last_says IS 'What a worker''s last word says; NULL: there is none any more.';

CREATE OR REPLACE FUNCTION weir._attending() RETURNS SETOF integer
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT DISTINCT h.key FROM weir._held(1464158554, 'ShareLock') h(key)  -- by whom ever: also of numbers that no worker has
$$;
COMMENT ON FUNCTION weir._attending IS 'The workers whose attendance lock is held by a session of theirs.';

CREATE OR REPLACE FUNCTION weir._unattended()
RETURNS TABLE (id integer, name text, lease interval, no bigint, says text, watched bigint, running integer)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
  SELECT l.id, l.name, l.lease, h.no, h.says, h.watched, h.running
  FROM (SELECT w.id, w.name, w.lease FROM weir.worker w
        WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
          AND NOT EXISTS (SELECT FROM weir._attending() a(id) WHERE a.id = w.id) OFFSET 0) l
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = l.id ORDER BY h.no DESC LIMIT 1) h ON true
$$;
COMMENT ON FUNCTION weir._unattended IS 'Workers that are not fenced and whose attendance lock is free, each with its last word, if that is known still.';

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
  'Says which prepared transaction has called record, claim or heartbeat for a worker, which therefore cannot be fenced before that transaction ends; NULL: none. PostgreSQL tells no function that its transaction will be prepared, so such calls are not refused.';

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
COMMENT ON FUNCTION weir._is_crowded IS 'Whether the server has hardly a connection left, or this database or a role has none, so that one who lost his may not get another.';

CREATE OR REPLACE FUNCTION weir._first_look() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF pg_is_in_recovery() THEN  -- what is unlogged can't be read there
    RETURN 0;
  END IF;
  RETURN coalesce((SELECT a.watched FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time()), pg_sequence_last_value('weir.watched'));
END
$$;
COMMENT ON FUNCTION weir._first_look IS
  'What weir.watched showed at the first look in this life of the server at who does not attend, or shows, if there was none yet: no lease counts from before. 0 on a standby, where nobody is fenced.';

CREATE OR REPLACE FUNCTION weir._fence_silent() RETURNS TABLE (worker integer, reason text, more boolean, error text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  granted constant interval := '3 seconds';  -- for a session that has ended to be followed by another
  grace   constant interval := '2 seconds';  -- a heartbeat may have come at the end of the 2 s at most that began with what it noted
  clock   bigint;
  passed  bigint;
  reading bigint;
  since   bigint;  -- what weir.watched showed at the first look in this life of the server
  crowded boolean;
  w       record;
  is_new  boolean;
  silent  interval;
  noted   integer := 0;
  fenced  integer := 0;
BEGIN
  FOR w IN SELECT u.*, bool_or(u.says IS DISTINCT FROM 'beats') OVER () AS anybody_missing, bool_or(u.says = 'missed') OVER () AS anybody_missed
           FROM weir._unattended() u ORDER BY u.id LOOP
    IF reading IS NULL THEN  -- where all attend, no time passes
      clock := extract(epoch FROM clock_timestamp()) * 1000;
      -- Who may still come back has little time, of which a clock that steps takes no more than rescuers let pass between two looks.
      passed := least(abs(clock - pg_sequence_last_value('weir.watched_at')), CASE WHEN w.anybody_missed THEN 500 ELSE 2000 END);
      IF passed >= 1000 OR w.anybody_missing AND passed >= 200 THEN
        PERFORM setval('weir.watched_at', clock), setval('weir.watched', pg_sequence_last_value('weir.watched') + passed);
      END IF;
      reading := pg_sequence_last_value('weir.watched');
      -- Words that a crash or a failover has taken back may have been renewals: whom it may have taken them from has his lease anew.
      SELECT a.watched INTO since FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time();
      IF NOT FOUND THEN
        since := reading;
        INSERT INTO weir.attendance (worker, started_at, watched) VALUES (0, pg_postmaster_start_time(), since);
      END IF;
    END IF;
    EXIT WHEN fenced >= 20 OR noted >= 100;
    is_new := coalesce(w.says, 'attends') = 'attends';
    silent := (reading - greatest(w.watched, since)) * interval '1 ms';
    CONTINUE WHEN w.says = 'beats' AND silent <= w.lease + grace;
    worker := w.id;
    more := true;
    IF is_new THEN
      reason := 'its session has ended';
    ELSIF silent > w.lease + grace THEN
      reason := format('worker %s (%s) was lost: silent for %s', w.id, w.name, date_trunc('second', silent));
    ELSE
      CONTINUE WHEN NOT EXISTS (SELECT FROM weir.attendance a WHERE a.worker = w.id AND a.started_at = pg_postmaster_start_time());
      reason := format('worker %s (%s) was lost: its session has ended', w.id, w.name);
      IF silent < granted THEN
        more := false;
        RETURN NEXT;
        CONTINUE;
      END IF;
      crowded := coalesce(crowded, weir._is_crowded());
      CONTINUE WHEN crowded;
    END IF;
    -- Nobody begins to attend or beats under this lock: so what is the last word now is it until the commit.
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
      noted := noted + 1;
      RETURN NEXT;
      CONTINUE;
    END IF;
    BEGIN
      IF NOT weir._fence(w.id, reason) THEN
        RAISE SQLSTATE 'WR099';  -- lets go of its locks
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
  'Fences workers that were silent past their lease, by weir.watched, which it moves on, counted from the first look in this life of the server at the earliest, and those that attended since this server started and whose lock has been free for 3 seconds. Of these a crash or a failover leaves no trace in weir.attendance: then the lease counts, from when they were missed. Returns whom it fenced or missed; more is false for those to look at again in half a second; error is why one could not be fenced, among it that a prepared transaction holds it, and it holds up no other. The caller holds advisory step 6. Locks: advisory: their last words (exclusive, tried); see fence. Isolation: READ COMMITTED.';
