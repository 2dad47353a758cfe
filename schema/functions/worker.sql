-- Workers: registration, heartbeats, and the check that a worker is not fenced.

CREATE OR REPLACE FUNCTION weir._start(name text, queues text[], lease interval DEFAULT '30 seconds', others text[] DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  new_id integer;
  q      text;
BEGIN
  IF _start.lease IS NULL OR _start.lease < interval '1 second' OR _start.lease > interval '5 minutes' THEN  -- the range that the ring of last words covers
    RAISE EXCEPTION 'weir: a worker''s lease must be 1 second to 5 minutes, got %', coalesce(_start.lease::text, 'null') USING ERRCODE = '22023';
  ELSIF length(_start.name) > 200 THEN
    RAISE EXCEPTION 'weir: worker name too long: % characters, at most 200 are allowed', length(_start.name) USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_cluster(), weir._check_array('start', 'others', _start.others, true);
  FOREACH q IN ARRAY coalesce(_start.queues, '{}') LOOP
    PERFORM weir._check_job(q, 'any', '{}', 2, 1, NULL);
    PERFORM weir._queue_id(q);
  END LOOP;
  -- A failover or a restore may set the sequence back while an earlier process is alive, so each timeline has its own ids. Each database begins at a place of
  -- its own, because a name may lead to another one than before: it was made anew, or has swapped names. The commit is
  -- synchronous, because no worker may use an id that a crash can undo.
  PERFORM weir._commit_synchronously();
  new_id := (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) % 127 * 16777216
    + (nextval('weir.worker_id') + (SELECT hashoid(d.oid) & 16777215 FROM pg_database d WHERE d.datname = current_database())) % 16777215 + 1;
  INSERT INTO weir.worker (id, fenced, at, lease, name, queues, others)
  VALUES (new_id, false, clock_timestamp(), _start.lease, coalesce(_start.name, ''), coalesce(_start.queues, '{}'), weir._fitting(_start.others));
  PERFORM weir._note_word(new_id, 'beats', 0);  -- without a lock: no other session knows the id yet
  RETURN new_id;
END
$$;
COMMENT ON FUNCTION weir._start IS
  'Registers a worker, creates its queues and returns its id. others: patterns of other queues that it takes up while it runs. From then on it must call heartbeat well within its lease, or other workers get its jobs. Errors: 22023; WR003 (the log comes from another cluster). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._fitting(patterns text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  most  CONSTANT integer := 50;  -- each costs every look at weir.queues() some microseconds for each queue
  plain text;
  dead  text;
BEGIN
  IF coalesce(cardinality(patterns), 0) = 0 THEN
    RETURN NULL;
  ELSIF cardinality(patterns) > most THEN
    RETURN '';
  END IF;
  SELECT string_agg(e.text, '|') FILTER (WHERE NOT e.is_dead), string_agg(e.text, '|') FILTER (WHERE e.is_dead) INTO plain, dead
  FROM (
    SELECT p.pattern LIKE '%-dead-letters' AS is_dead,
      (SELECT string_agg(CASE WHEN w.word = '*' THEN '[^.]*' WHEN w.word = '>' THEN '.+' ELSE regexp_replace(w.word, E'([][\\\\.+*?(){}|^$])', E'\\\\\\1', 'g') END, E'\\.' ORDER BY w.ord)
       FROM unnest(string_to_array(p.pattern, '.')) WITH ORDINALITY w(word, ord)) AS text
    FROM unnest(patterns) p(pattern)
    WHERE length(p.pattern) <= 300  -- no longer one fits a queue, whose name has at most 128 characters
  ) e;
  RETURN E'^(?!\\$weir\\.)(?:' || concat_ws('|', '(?!.*-dead-letters$)(?:' || plain || ')', '(?:' || dead || ')') || ')$';
END
$$;
COMMENT ON FUNCTION weir._fitting IS
  'A regular expression of the queues that fit one of these patterns; NULL for none; of more than 50, that of all queues. What ends in -dead-letters only fits a pattern that ends so itself. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._never_used(queues text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
  names text[];
BEGIN
  PERFORM weir._lock_log();
  -- The newest batch of a lane outlives its segment, so a lane that had jobs has a batch, or they still wait to be claimed for the first time.
  names := ARRAY(SELECT n.name FROM unnest(_never_used.queues) n(name) WHERE NOT EXISTS (
    SELECT FROM weir.queue q CROSS JOIN LATERAL (SELECT q.id::bigint << 39 AS low, (q.id + 1)::bigint << 39 AS high) l
    WHERE q.name = n.name AND (EXISTS (SELECT FROM weir.batch b WHERE b.lane >= l.low AND b.lane < l.high) OR EXISTS (SELECT FROM weir.job j WHERE j.lane >= l.low AND j.lane < l.high)
                               OR EXISTS (SELECT FROM weir.later t WHERE t.lane >= l.low AND t.lane < l.high))) ORDER BY n.name);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN names;
END
$$;
COMMENT ON FUNCTION weir._never_used IS
  'Which of these queues have no jobs and no trace of any, such as those whose names are mistyped. A rebase removes the traces. Errors: 40001 (see weir._lock_log). Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._queue_names() RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT ARRAY(SELECT DISTINCT q.name FROM weir.queue q)
$$;
COMMENT ON FUNCTION weir._queue_names IS
  'The names of all queues that have ever had a job, a worker or a setting. It reads a row for each queue, and nothing of jobs. weir.control has moved before a new one is committed. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.heartbeat(worker integer, running integer DEFAULT 0,
                               OUT fenced boolean, OUT workers integer, OUT sharing integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  before  text := current_setting('weir.attends', true);
  attends boolean := coalesce(split_part(before, ' ', 1) = heartbeat.worker::text, false);
  word    text := heartbeat.worker || ' ' || coalesce(heartbeat.running, 0);
  writes  boolean := before IS DISTINCT FROM word;
BEGIN
  IF attends THEN
    IF NOT pg_advisory_unlock_shared(1464158554, heartbeat.worker) THEN  -- of two: all locks of this session were released
      writes := true;
      PERFORM pg_advisory_lock_shared(1464158554, heartbeat.worker);
    END IF;
    PERFORM pg_advisory_lock_shared(1464158554, heartbeat.worker);
    -- A delayed heartbeat of another connection may have become the last word. No other will follow it, so it must not stay.
    writes := writes OR coalesce(weir._last_says(heartbeat.worker) <> 'attends', false);
  END IF;
  IF writes THEN
    PERFORM weir._hold_briefly(), pg_advisory_xact_lock_shared(1464158555, heartbeat.worker);
  END IF;
  SELECT NOT coalesce(bool_or(w.id = heartbeat.worker), false), count(*), count(*) FILTER (WHERE w.queues && me.queues OR w.others = me.others OR w.id = me.id)
    INTO heartbeat.fenced, heartbeat.workers, heartbeat.sharing
  FROM weir.worker w LEFT JOIN weir.worker me ON me.id = heartbeat.worker AND NOT me.fenced
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);
  IF writes AND NOT heartbeat.fenced THEN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF attends THEN
      PERFORM set_config('weir.attends', word, false);
    END IF;
    PERFORM weir._note_word(heartbeat.worker, CASE WHEN attends THEN 'attends' ELSE 'beats' END, coalesce(heartbeat.running, 0));
  END IF;
END
$$;
COMMENT ON FUNCTION weir.heartbeat IS
  'Renews a worker''s lease; returns whether the worker is fenced, how many workers are alive, and how many of them share a queue with it. In a session that attends for the worker, it writes only changes, so an idle worker uses no transaction ids. An unknown worker counts as fenced. Errors: 55P03 (the lock was not available within 5 s). Locks: advisory: the worker''s last word (shared; it waits only for a rescuer, at most 5 s). Isolation: any. Commits asynchronously.';

CREATE OR REPLACE FUNCTION weir._check_worker(worker integer) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
  is_fenced boolean;
  w         record;
BEGIN
  -- At most two rows; a fence comes first.
  FOR w IN SELECT k.fenced, k.queues FROM weir.worker k WHERE k.id = _check_worker.worker ORDER BY k.fenced DESC LOOP
    is_fenced := w.fenced;
    EXIT;
  END LOOP;
  IF is_fenced IS NULL THEN
    RAISE EXCEPTION 'weir: worker % is unknown', _check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Pass an id that weir.start has returned: is this transaction in the worker''s database?';
  ELSIF is_fenced THEN
    RAISE EXCEPTION 'weir: worker % is fenced: it stopped or was silent past its lease, and other workers get its jobs', _check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Drop its jobs, and start again with a new id from weir.start.';
  END IF;
  RETURN w.queues;
END
$$;
COMMENT ON FUNCTION weir._check_worker IS 'Returns the queues of a worker; raises WR001 unless it was started and is not fenced. The caller holds the worker''s lock.';

CREATE OR REPLACE FUNCTION weir._takes_up_others(worker integer) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM weir.worker w WHERE w.id = _takes_up_others.worker AND NOT w.fenced AND w.others IS NOT NULL);
END
$$;
COMMENT ON FUNCTION weir._takes_up_others IS 'Whether a worker claims from queues, too, that it was not started for.';

CREATE OR REPLACE FUNCTION weir._forget_workers() RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  ended integer[];
BEGIN
  -- A worker with unfinished attempts is kept.
  SELECT array_agg(e.id) INTO ended
  FROM (SELECT f.id, f.at, row_number() OVER (ORDER BY f.at DESC, f.id DESC) AS nr FROM weir.worker f WHERE f.fenced) e
  WHERE (e.nr > 1000 OR e.at < now() - interval '1 day') AND EXISTS (SELECT FROM weir.settled s WHERE s.worker = e.id AND s.no = 9223372036854775807);
  IF ended IS NULL THEN
    RETURN 0;
  END IF;
  DELETE FROM weir.worker w USING unnest(ended) g(id) WHERE w.id = g.id;
  DELETE FROM weir.attendance a USING unnest(ended) g(id) WHERE a.worker = g.id;
  RETURN cardinality(ended);
END
$$;
COMMENT ON FUNCTION weir._forget_workers IS
  'Deletes ended workers that have no unfinished attempts, except the newest thousand of the last day, so that heartbeats read about as many rows as workers are alive. Their results are still refused, because they are unknown then. Returns how many.';
