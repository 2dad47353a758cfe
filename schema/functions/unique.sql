-- Unique jobs: of the jobs with one unique key (key, below), enqueue_unique logs a new one only if it sees none that it would duplicate. Two transactions that don't see
-- each other may both log one, and neither waits for the other. So the claims decide, one at a time for a queue: the first that is claimed runs, and
-- the others are ended as cancelled when their turn comes.
--
-- A job may be ended in this way only if a run of its key follows its commit, or, with until 'finished', one was unfinished when its turn came. Therefore
-- a batch with unique jobs stores the snapshot of its claim (weir.batch.seen): of the jobs that it shows, none needs a run of its own.
--
-- All rows of a key are numbered (unique_no), and each attempt has a new number. Going back from the newest one, the first that was claimed in order to
-- run is the last run of the key: a job runs only if no run has a greater number than it has. If one has, the job is logged again, with a new number. So
-- whatever a key was used for before, the newest few rows decide. What has been reclaimed with its segment has ended, and is not missed.

CREATE OR REPLACE FUNCTION weir.enqueue_unique(
  queue        text,
  kind         text,
  args         jsonb       DEFAULT '{}',
  unique_key   text        DEFAULT NULL,
  fields       text[]      DEFAULT NULL,
  until        text        DEFAULT NULL,
  within       interval    DEFAULT NULL,
  replace      boolean     DEFAULT NULL,
  wait         boolean     DEFAULT NULL,
  priority     integer     DEFAULT 2,
  run_at       timestamptz DEFAULT NULL,
  max_attempts integer     DEFAULT 25,
  meta         jsonb       DEFAULT NULL,
  key          text        DEFAULT NULL,
  OUT id        bigint,
  OUT duplicate boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  hash     uuid;
  found    record;
  lane     bigint;
  no       bigint;
  until_at timestamptz;
BEGIN
  args := coalesce(args, '{}');
  priority := coalesce(priority, 2);
  max_attempts := coalesce(max_attempts, 25);
  replace := coalesce(replace, false);
  PERFORM weir._check_job(queue, kind, args, priority, max_attempts, meta), weir._check_unique(unique_key, fields, until, within, replace, args), weir._check_key(key);
  IF run_at >= '10000-01-01 00:00:00+00' THEN
    RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999', run_at USING ERRCODE = '22023';
  END IF;
  hash := weir._unique_key(queue, kind, args, unique_key, fields);
  IF wait THEN
    PERFORM weir._check_isolation('enqueue_unique with wait', true), pg_advisory_xact_lock(1464158557, hashtext(hash::text));
  END IF;

  -- Rolling back a block releases its locks, which would otherwise keep segments from being reclaimed until the caller's transaction ends. A segment
  -- that is emptied just before they are taken may hide a job: then this one is logged, and the claims decide.
  BEGIN
    SELECT n.* INTO found FROM weir._newest_of_key(hash, 9223372036854775807, true, now() - within) n;
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  duplicate := CASE WHEN found.id IS NULL THEN false
                    WHEN within IS NOT NULL THEN true
                    WHEN replace OR until = 'started' THEN found.waits
                    ELSE found.waits OR found.runs END;
  IF duplicate AND NOT replace THEN
    id := found.id;
    RETURN;
  END IF;

  lane := weir._lane_of(queue, priority, key);
  PERFORM pg_current_xact_id();  -- before the id is drawn, as in enqueue
  id := nextval('weir.job_id');
  no := id * 2 + replace::integer;
  until_at := CASE WHEN within IS NOT NULL THEN now() + within WHEN replace OR until = 'started' THEN '-infinity' END;
  INSERT INTO weir.keyed (queue) SELECT queue WHERE NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = enqueue_unique.queue);
  IF run_at IS NULL OR run_at <= now() THEN
    INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
    VALUES (id, pg_current_xact_id(), now(), lane, 1, max_attempts, pg_sequence_last_value('weir.active_job'), kind, args, meta, hash, no, until_at, key);
  ELSE
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
    VALUES (id, pg_current_xact_id(), run_at, now(), lane, 1, max_attempts, pg_sequence_last_value('weir.active_later'), kind, args, meta, hash, no, until_at, key);
  END IF;
END
$$;
COMMENT ON FUNCTION weir.enqueue_unique IS
  'Enqueues a job in the caller''s transaction unless it would be a duplicate of an earlier one, and returns its id and false; or else the id of the earlier one and true. Jobs are duplicates of each other if their queue and unique_key are equal; if that is NULL, their queue, kind and args; or, of args, only the values in fields, names of the JSON object, of which args has at least one ({}: none). until says up to when the earlier one counts: finished (the default): until it has completed, failed or been cancelled; started: while it waits, also for another attempt. Or within, an interval up to 1 year: if it was enqueued within that time, and not cancelled. With replace, this job is enqueued in any case, and replaces the ones that wait, as they are when it is claimed: they end as cancelled; duplicate then reports whether there was one. Jobs enqueued in transactions that do not see each other are found to be duplicates when they are claimed, and end as cancelled, with the reason as their error. Nothing waits for another transaction, unless wait is true: then the call waits for transactions that have called it with wait and the same unique_key, and sees what they have committed. The other arguments are those of enqueue. Errors: 22023 with the value; WR004 (wait, and not in READ COMMITTED). Locks: none that others wait for, except with wait: advisory: the unique key (exclusive, to the end of the transaction). Isolation: any; REPEATABLE READ and SERIALIZABLE judge by the transaction''s snapshot.';

CREATE OR REPLACE FUNCTION weir._check_unique(key text, fields text[], until text, within interval, replace boolean, args jsonb) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF length(_check_unique.key) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: unique_key must have 1 to 1000 characters, got %', length(_check_unique.key) USING ERRCODE = '22023';
  ELSIF _check_unique.key IS NOT NULL AND _check_unique.fields IS NOT NULL THEN
    RAISE EXCEPTION 'weir: enqueue_unique got both a unique_key and fields' USING ERRCODE = '22023', HINT = 'A unique_key alone decides which jobs are duplicates: leave out fields.';
  ELSIF _check_unique.until NOT IN ('finished', 'started') THEN
    RAISE EXCEPTION 'weir: until must be finished or started, got "%"', left(_check_unique.until, 100) USING ERRCODE = '22023';
  ELSIF _check_unique.within <= interval '0' OR _check_unique.within > interval '366 days' THEN
    RAISE EXCEPTION 'weir: within must be more than 0 and at most 1 year, got %', _check_unique.within USING ERRCODE = '22023';
  ELSIF _check_unique.within IS NOT NULL AND _check_unique.until IS NOT NULL THEN
    RAISE EXCEPTION 'weir: enqueue_unique got both until (%) and within (%)', _check_unique.until, _check_unique.within USING ERRCODE = '22023', HINT = 'Pass one of them.';
  ELSIF _check_unique.replace AND (_check_unique.within IS NOT NULL OR _check_unique.until = 'finished') THEN
    RAISE EXCEPTION 'weir: replace goes with until started, got %', coalesce('until ' || _check_unique.until, 'within ' || _check_unique.within)
      USING ERRCODE = '22023', HINT = 'A job is replaced only as long as it has not started.';
  END IF;
  PERFORM weir._check_array('enqueue_unique', 'fields', _check_unique.fields, true);
  IF cardinality(_check_unique.fields) > 100 THEN
    RAISE EXCEPTION 'weir: enqueue_unique takes at most 100 fields, got %', cardinality(_check_unique.fields) USING ERRCODE = '22023';
  ELSIF cardinality(_check_unique.fields) > 0 AND NOT _check_unique.args ?| _check_unique.fields THEN
    -- Probably they are misspelled; then all jobs of the kind would be duplicates of each other.
    RAISE EXCEPTION 'weir: args has none of the fields that make the job unique: %', left((SELECT string_agg(CASE WHEN f ~ '^[^[:space:],"]+$' THEN f ELSE to_json(f)::text END, ', ') FROM unnest(_check_unique.fields) f), 200)
      USING ERRCODE = '22023', HINT = 'Fields are the names in the JSON of args, in upper and lower case as there. ' || CASE WHEN _check_unique.args = '{}' THEN 'These args are empty.' ELSE
        'These args have: ' || left((SELECT string_agg(k, ', ') FROM jsonb_object_keys(_check_unique.args) k), 200) || '.' END;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_unique IS 'Checks the arguments of enqueue_unique that enqueue does not have. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._unique_key(queue text, kind text, args jsonb, key text, fields text[]) RETURNS uuid
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- The text of a jsonb has one form, whatever the order in which its keys were written.
  SELECT encode(substr(sha256(convert_to(CASE
      WHEN _unique_key.key IS NOT NULL THEN jsonb_build_array(_unique_key.queue, _unique_key.key)
      WHEN _unique_key.fields IS NULL THEN jsonb_build_array(_unique_key.queue, _unique_key.kind, _unique_key.args)
      ELSE jsonb_build_array(_unique_key.queue, _unique_key.kind, coalesce((SELECT jsonb_object_agg(f, _unique_key.args -> f) FROM unnest(_unique_key.fields) f), '{}'))
    END::text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
COMMENT ON FUNCTION weir._unique_key IS 'What jobs that are duplicates of each other have in common, as a hash of 128 bits. A field that args lacks counts as null, beside others that it has. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._newest_of_key(key uuid, below bigint, fresh boolean, after timestamptz DEFAULT NULL, before timestamptz DEFAULT NULL)
RETURNS TABLE (id bigint, no bigint, waits boolean, runs boolean, enqueued_at timestamptz, seen pg_snapshot)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  max_rows CONSTANT integer := 10000;  -- more than a server has connections: so many may have logged a job without seeing each other's
  c     weir.promotion;
  r     record;
  batch record;
  lanes bigint[];
  ended weir.outcome;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR r IN
    -- Each part is sorted on its own, so that the rows are read one by one from the two indexes, and no more than needed.
    SELECT u.* FROM (
      (SELECT j.unique_no, j.unique_until, j.id, j.xid, j.attempt, j.put_off, j.enqueued_at, j.lane, j.segment, j.seq, NULL::timestamptz AS run_at
       FROM weir.job j WHERE j.unique_key = _newest_of_key.key AND j.unique_no < _newest_of_key.below
       ORDER BY j.unique_no DESC LIMIT max_rows)
      UNION ALL
      (SELECT l.unique_no, l.unique_until, l.id, l.xid, l.attempt, l.put_off, l.enqueued_at, l.lane, l.segment, NULL, l.run_at
       FROM weir.later l WHERE l.unique_key = _newest_of_key.key AND l.unique_no < _newest_of_key.below
       ORDER BY l.unique_no DESC LIMIT max_rows)) u
    ORDER BY u.unique_no DESC LIMIT max_rows
  LOOP
    IF r.enqueued_at <= _newest_of_key.after THEN
      EXIT WHEN r.unique_no / 2 = r.id;  -- so were those before; but a job that was tried again has a greater number than some that were enqueued later
      CONTINUE;
    END IF;
    CONTINUE WHEN r.enqueued_at >= _newest_of_key.before;
    waits := true;
    runs := false;
    seen := NULL;
    IF r.run_at IS NOT NULL THEN
      -- One that was promoted is in the log, too.
      CONTINUE WHEN weir._waits_later(c, r.run_at, r.id, r.xid) IS NOT TRUE;
    ELSE
      SELECT k.seq, k.seen, k.lane INTO batch FROM weir._batch_of(r.lane, r.segment, r.xid, r.id) k;
      IF coalesce(batch.seq, r.seq) IS NOT NULL THEN
        lanes := CASE WHEN batch.seq IS NOT NULL THEN ARRAY[batch.lane] ELSE weir._ring_lanes(r.lane) END;
        ended := (SELECT k.outcome FROM weir.result k WHERE k.segment = r.segment AND k.lane = ANY (lanes) AND k.seq = coalesce(batch.seq, r.seq) AND r.id = ANY (k.ids) LIMIT 1);
        CONTINUE WHEN ended IN ('cancelled', 'released');  -- released: it has not been started
        waits := false;
        runs := ended IS NULL;
        seen := batch.seen;
      END IF;
    END IF;
    IF waits THEN
      CONTINUE WHEN NOT _newest_of_key.fresh AND r.attempt = 1 AND r.put_off = 0 AND r.unique_no & 1 = 0
        OR EXISTS (SELECT FROM weir.cancellation k WHERE k.id = r.id)
        OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= r.id) AND weir._is_cancelled_where(r.id);
      -- A job that a claim would drop for one that has started already stands for nobody.
      CONTINUE WHEN _newest_of_key.fresh AND EXISTS (
        SELECT FROM weir._judge(ARRAY[r.id], ARRAY[r.xid], ARRAY[_newest_of_key.key], ARRAY[r.unique_no], ARRAY[coalesce(r.unique_until, 'infinity')], ARRAY[r.enqueued_at]) g
        WHERE g.fate = 'dropped');
    END IF;
    id := r.id;
    no := r.unique_no;
    enqueued_at := r.enqueued_at;
    RETURN NEXT;
    RETURN;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._newest_of_key IS
  'The newest row of a unique key, with a number less than below, that decides what becomes of others: one that waits, runs, or has run. Jobs that were cancelled or handed back are skipped; if fresh is true, so are those that wait and that a claim would drop; if it is not, those that have never been claimed, except those that replace others; and if after and before are not NULL, so are those that were not enqueued between them. no is its number, seen the snapshot of its claim. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._judge(ids bigint[], xids xid8[], keys uuid[], nos bigint[], untils timestamptz[], times timestamptz[])
RETURNS TABLE (id bigint, fate text, reason text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  this   uuid;
  j      record;
  newest record;   -- of this key; read once
  other  record;
  is_new boolean;
  after  timestamptz;  -- within a time: only jobs that were enqueued after this count
  chosen record;   -- the job of this key, in this batch, that will run
  is_set boolean;  -- there is one
  gone   bigint[]; -- those of this key, in this batch, that will not
BEGIN
  IF array_position(nos, NULL) IS NOT NULL THEN
    RETURN QUERY SELECT o.* FROM weir._judge_once(ids, keys, nos) o;
  END IF;
  FOR j IN
    SELECT u.*, EXISTS (SELECT FROM weir.cancellation c WHERE c.id = u.id)
                OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= u.id) AND weir._is_cancelled_where(u.id) AS cancelled, u.no & 1 = 1 AS replaces,
           EXISTS (SELECT FROM weir.job r WHERE r.unique_key = u.key AND r.unique_no <> u.no)
           OR EXISTS (SELECT FROM weir.later r WHERE r.unique_key = u.key AND r.unique_no <> u.no) AS shares
    FROM unnest(_judge.ids, _judge.xids, _judge.keys, _judge.nos, _judge.untils, _judge.times) WITH ORDINALITY u(id, xid, key, no, until, at, ord)
    WHERE u.no IS NOT NULL
    ORDER BY u.key, u.ord
  LOOP
    IF j.key IS DISTINCT FROM this THEN
      this := j.key;
      is_new := true;
      is_set := false;
      gone := '{}';
    END IF;
    id := j.id;
    fate := 'run';
    reason := NULL;
    IF j.cancelled THEN
      fate := 'dropped';
      reason := '';
    ELSIF is_set THEN
      IF NOT isfinite(j.until) OR abs(extract(epoch FROM j.at - chosen.at)) < extract(epoch FROM j.until - j.at) THEN
        fate := 'dropped';
        reason := CASE WHEN chosen.replaces AND chosen.id > j.id THEN 'replaced by job ' ELSE 'duplicate of job ' END || chosen.id;
      END IF;
    ELSIF j.shares THEN
      IF is_new THEN
        SELECT n.* INTO newest FROM weir._newest_of_key(j.key, 9223372036854775807, false) n;
        is_new := false;
      END IF;
      IF isfinite(j.until) AND newest.id IS NOT NULL THEN
        after := j.at - extract(epoch FROM j.until - j.at) * interval '1 second';
        SELECT n.* INTO other FROM weir._newest_of_key(j.key, 9223372036854775807, false, after, j.until) n;
        WHILE other.id = j.id AND other.no = j.no OR other.waits AND other.id = ANY (gone) LOOP
          SELECT n.* INTO other FROM weir._newest_of_key(j.key, other.no, false, after, j.until) n;
        END LOOP;
        IF other.id <> j.id THEN
          fate := 'dropped';
        END IF;
      END IF;
      IF fate = 'run' THEN
        other := newest;
      END IF;
      -- The job itself, if it was put off or tried before, jobs that it replaces, and those that have just been dropped don't decide.
      WHILE fate = 'run' AND (other.id = j.id AND other.no = j.no AND NOT j.replaces OR other.waits AND (j.replaces AND other.id < j.id OR other.id = ANY (gone))) LOOP
        SELECT n.* INTO other FROM weir._newest_of_key(j.key, other.no, false) n;
      END LOOP;
      IF other.id IS NULL OR other.id = j.id THEN
        NULL;
      ELSIF fate = 'dropped' OR NOT isfinite(j.until) AND (other.waits OR other.runs AND j.until = 'infinity' OR pg_visible_in_snapshot(j.xid, other.seen)) THEN
        fate := 'dropped';
        reason := CASE WHEN other.waits AND other.no & 1 = 1 AND other.id > j.id THEN 'replaced by job ' ELSE 'duplicate of job ' END || other.id;
      ELSIF NOT other.waits AND other.no > j.no THEN
        fate := 'again';
      END IF;
    END IF;
    IF fate <> 'dropped' THEN
      chosen := j;
      is_set := true;
    ELSE
      gone := gone || j.id;
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._judge IS
  'What a claim does with the unique jobs that it has picked, in their order: run: returns them; dropped: ends them as cancelled, for a reason; again: logs them again with a new number, because the last run of their key has a greater one. The caller holds the lock of the queue''s unique jobs, so no other claim changes the answer. Locks: ACCESS SHARE on the log. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._judge_once(ids bigint[], keys uuid[], nos bigint[]) RETURNS TABLE (id bigint, fate text, reason text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT k.id, CASE WHEN k.cancelled OR k.chosen <> k.id THEN 'dropped' ELSE 'run' END, CASE WHEN k.cancelled THEN '' WHEN k.chosen <> k.id THEN 'duplicate of job ' || k.chosen END
  FROM (
    SELECT u.id, u.cancelled, coalesce((SELECT s.job FROM weir.seen s WHERE s.key = u.key LIMIT 1),
                                       first_value(u.id) OVER (PARTITION BY u.key ORDER BY u.cancelled, u.ord)) AS chosen
    FROM (SELECT u.*, EXISTS (SELECT FROM weir.cancellation c WHERE c.id = u.id)
                      OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= u.id) AND weir._is_cancelled_where(u.id) AS cancelled
          FROM unnest(_judge_once.ids, _judge_once.keys, _judge_once.nos) WITH ORDINALITY u(id, key, no, ord) WHERE u.no IS NULL) u) k;
END
$$;
COMMENT ON FUNCTION weir._judge_once IS
  'What a claim does with jobs that are to be done once in their flow, those without a number (nos): the first that is claimed, and not cancelled, runs, and whatever becomes of it, all others are dropped. weir.seen knows it from then on (see _set_aside). Otherwise as _judge.';

CREATE OR REPLACE FUNCTION weir._set_aside(worker integer, lane bigint, seq bigint, ids bigint[], segments smallint[], fates text[], reasons text[], onces uuid[], flows bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
  SELECT _set_aside.lane, u.segment, _set_aside.worker, _set_aside.seq, clock_timestamp(),
         CASE u.fate WHEN 'dropped' THEN 'cancelled' ELSE 'released' END::weir.outcome, array_agg(u.id),
         CASE WHEN max(u.reason) <> '' THEN array_agg(nullif(u.reason, '')) END
  FROM unnest(_set_aside.ids, _set_aside.segments, _set_aside.fates, _set_aside.reasons) u(id, segment, fate, reason)
  WHERE u.fate <> 'run' GROUP BY u.segment, u.fate;
  INSERT INTO weir.seen (key, job, flow, ring)
  SELECT u.once, u.id, u.flow, pg_sequence_last_value('weir.active_seen') FROM unnest(_set_aside.ids, _set_aside.fates, _set_aside.onces, _set_aside.flows) u(id, fate, once, flow)
  WHERE u.fate = 'run' AND u.once IS NOT NULL AND NOT EXISTS (SELECT FROM weir.seen s WHERE s.key = u.once) ORDER BY u.once;
  PERFORM weir._arrive_ended(array_agg(u.flow), array_agg(u.reason)) FROM unnest(_set_aside.flows, _set_aside.fates, _set_aside.reasons) u(flow, fate, reason) WHERE u.fate = 'dropped';
  IF _set_aside.fates && ARRAY['again'] THEN
    PERFORM pg_current_xact_id();
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    -- With a key, it is put back in front of those that come after it.
    SELECT j.id, pg_current_xact_id(), j.enqueued_at, now(), CASE WHEN j.key IS NULL THEN j.lane ELSE j.lane | 4 END, j.attempt, j.max_attempts, j.put_off + 1, (SELECT a.last_value FROM weir.active_job a),
           j.kind, j.args, j.meta, j.errors, j.unique_key, nextval('weir.job_id') * 2 + (j.unique_no & 1), j.unique_until, j.key, j.flow
    FROM unnest(_set_aside.ids, _set_aside.segments, _set_aside.fates) u(id, segment, fate)
    CROSS JOIN LATERAL (SELECT j.* FROM weir.job j WHERE j.segment = u.segment AND j.id = u.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    WHERE u.fate = 'again';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._set_aside IS
  'Ends unique jobs that a claim has picked and does not hand out: dropped ones as cancelled, with the reason; the others as released, and logs them again. Of those that it does hand out, and that are to be done once in their flow (onces: their keys), it notes that they are seen. All of it is part of the claim''s transaction, so that nothing exists without the rest. Errors: 23505 (a job that was moved and one of its old queue are claimed at the same moment: try again). Locks: none that others wait for, but then the other claim.';

CREATE OR REPLACE FUNCTION weir._unique_of(job_id bigint, OUT unique_key uuid, OUT unique_until timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  SELECT u.unique_key, u.unique_until INTO _unique_of.unique_key, _unique_of.unique_until
  FROM (SELECT j.unique_key, j.unique_until, j.attempt, j.put_off FROM weir.job j WHERE j.id = job_id
        UNION ALL SELECT f.unique_key, f.unique_until, f.attempt, 0 FROM weir.failure f WHERE f.id = job_id AND f.finished_at IS NOT NULL) u
  ORDER BY u.attempt DESC, u.put_off DESC LIMIT 1;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir._unique_of IS 'What makes a job unique, for another attempt at it; NULL if nothing does. Locks: none that outlast the call. Isolation: any.';
