-- Schedules: jobs that are enqueued again and again, at the times of an expression.
--
-- The next due time of a schedule is a row of weir.later, in lane 0, which belongs to no queue. Promotion finds it as it finds a scheduled job; in
-- the same transaction, weir._fire enqueues the job, records the firing in weir.firing, and inserts the row of the next due time. So a due time has
-- been fired if and only if the row of the next one exists: through kills, crashes and failovers. Nobody's memory takes part, and no election.
--
-- A row of weir.later counts only if it has the schedule's current generation: a change gives the schedule another one, and a row for it. Two
-- generations may have the same due time, because a change may commit after it: then the key of weir.firing tells that it has been fired.

CREATE OR REPLACE FUNCTION weir._mark_due(name text, generation integer, due timestamptz, run_at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM pg_current_xact_id();
  -- The number of no job; drawing it wakes those who promote.
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args)
  VALUES (-nextval('weir.job_id'), pg_current_xact_id(), _mark_due.run_at, _mark_due.due, 0, _mark_due.generation, 1,
          pg_sequence_last_value('weir.active_later'), _mark_due.name, '{}');
END
$$;
COMMENT ON FUNCTION weir._mark_due IS
  'Inserts the row of weir.later by which promotion will find that a schedule is due: enqueued_at is the due time, and run_at that time with its jitter. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._fire(marks weir.later[], at_time timestamptz, most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  grace     CONSTANT interval := '1 minute';  -- due times that are later than this were missed
  most_each CONSTANT integer := 100;
  mark      weir.later;
  s         weir.schedule;
  fired     integer := 0;
  n         integer;
  this_due  timestamptz;
  next_due  timestamptz;
  next_run  timestamptz;
  is_late   boolean;
BEGIN
  FOREACH mark IN ARRAY marks LOOP
    SELECT k.* INTO s FROM weir.schedule k WHERE k.name = mark.kind AND k.generation = mark.attempt AND k.paused_at IS NULL;
    CONTINUE WHEN NOT FOUND;  -- changed, paused or dropped since
    n := 0;
    next_due := mark.enqueued_at;
    next_run := mark.run_at;
    WHILE next_run <= at_time AND n < most_each AND fired < most LOOP  -- the next call does the rest
      this_due := next_due;
      is_late := this_due < at_time - s.jitter - grace;
      BEGIN
        IF is_late AND s.missed <> 'all' THEN
          this_due := weir._due_upto(s.fields, s.time_zone, this_due, at_time - s.jitter - grace);  -- the newest of them stands for all
        END IF;
        next_due := weir._due_after(s.fields, s.time_zone, this_due);
      EXCEPTION WHEN OTHERS THEN  -- PostgreSQL does not know the time zone any more: that must not stop other schedules
        RAISE WARNING 'weir: schedule %: %', s.name, SQLERRM USING ERRCODE = SQLSTATE;
        next_run := at_time + interval '1 minute';
        EXIT;
      END;
      IF NOT EXISTS (SELECT FROM weir.firing f WHERE f.name = s.name AND f.due = this_due) THEN
        INSERT INTO weir.firing (name, due, job)
        VALUES (s.name, this_due, CASE WHEN NOT is_late OR s.missed <> 'none' THEN weir._enqueue_due(s, this_due) END);
        fired := fired + 1;
      END IF;
      n := n + 1;
      next_run := next_due + random() * s.jitter;
    END LOOP;
    IF next_due IS NOT NULL THEN
      -- After at_time, and so beyond the point of promotion, whose snapshot may count this transaction as ended.
      PERFORM weir._mark_due(s.name, s.generation, next_due, greatest(next_run, at_time + interval '1 millisecond'));
    END IF;
  END LOOP;
  RETURN fired;
END
$$;
COMMENT ON FUNCTION weir._fire IS
  'Fires the schedules whose rows of weir.later promotion has found due at at_time, up to most due times in all and 100 of each schedule, and inserts the rows of the next due times, which are after at_time. What was missed, because nobody promoted for more than a minute after the due time and its jitter, is fired as the schedule says; later due times are fired one by one. Returns the number of due times. Locks: the caller''s step of promotion lets one session fire at a time. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._enqueue_due(s weir.schedule, due timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT weir.enqueue(s.queue, s.kind, s.args, s.priority, max_attempts => s.max_attempts, key => s.key,
                      meta => coalesce(s.meta, '{}') || jsonb_build_object('schedule', s.name, 'due', to_char(_enqueue_due.due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))
$$;
COMMENT ON FUNCTION weir._enqueue_due IS 'Enqueues a job of a schedule; its meta says of which one, and when it was due. Errors: none, since set_schedule has checked the job. Locks: see enqueue. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._pending_due(s weir.schedule) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
  last_due timestamptz;
BEGIN
  IF s.paused_at IS NOT NULL THEN
    RETURN NULL;
  END IF;
  SELECT f.due INTO last_due FROM weir.firing f WHERE f.name = s.name AND f.due >= s.first_due ORDER BY f.due DESC LIMIT 1;
  RETURN CASE WHEN last_due IS NULL THEN s.first_due ELSE weir._due_after(s.fields, s.time_zone, last_due) END;
END
$$;
COMMENT ON FUNCTION weir._pending_due IS 'The first due time of a schedule that has not been fired; NULL while it is paused. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._time_zone(name text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  found_name text;
BEGIN
  -- Reading all names takes a while. PostgreSQL would also take things like Berlin+1, and mean something else by them.
  IF name = 'UTC' OR EXISTS (SELECT FROM weir.schedule s WHERE s.time_zone = _time_zone.name) THEN
    RETURN name;
  END IF;
  SELECT z.name INTO found_name FROM pg_timezone_names z WHERE lower(z.name COLLATE "C") = lower(_time_zone.name COLLATE "C") AND z.name !~ '^(posix|right)/' LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'weir: unknown time zone %', coalesce(quote_literal(name), 'null') USING ERRCODE = '22023',
      HINT = 'Use a name like Europe/Berlin; SELECT name FROM pg_timezone_names lists them.';
  END IF;
  RETURN found_name;
END
$$;
COMMENT ON FUNCTION weir._time_zone IS 'The name of a time zone as PostgreSQL writes it. Errors: 22023 (unknown). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.set_schedule(
  name         text,
  schedule     text,
  queue        text,
  kind         text,
  args         jsonb    DEFAULT '{}',
  time_zone    text     DEFAULT 'UTC',
  missed       text     DEFAULT 'one',
  jitter       interval DEFAULT '0',
  priority     integer  DEFAULT 2,
  max_attempts integer  DEFAULT 25,
  meta         jsonb    DEFAULT NULL,
  key          text     DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  wanted  weir.schedule;
  existing weir.schedule;
  at_time timestamptz;
  is_new  boolean;
BEGIN
  wanted.name := set_schedule.name;
  wanted.schedule := set_schedule.schedule;
  wanted.queue := set_schedule.queue;
  wanted.kind := set_schedule.kind;
  wanted.args := coalesce(set_schedule.args, '{}');
  wanted.time_zone := coalesce(set_schedule.time_zone, 'UTC');
  wanted.missed := coalesce(set_schedule.missed, 'one');
  wanted.jitter := coalesce(set_schedule.jitter, '0');
  wanted.priority := coalesce(set_schedule.priority, 2);
  wanted.max_attempts := coalesce(set_schedule.max_attempts, 25);
  wanted.meta := set_schedule.meta;
  wanted.key := set_schedule.key;
  -- Every process of a fleet declares its schedules when it starts: that costs one look-up.
  SELECT s.* INTO existing FROM weir.schedule s WHERE s.name = wanted.name;
  IF FOUND AND weir._same_schedule(existing, wanted) THEN
    RETURN 'unchanged';
  END IF;

  PERFORM weir._check_isolation('set_schedule', true);
  IF coalesce(length(wanted.name), 0) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'weir: the name of a schedule must have 1 to 128 characters, got %', coalesce(length(wanted.name)::text, 'null') USING ERRCODE = '22023';
  ELSIF wanted.missed NOT IN ('one', 'all', 'none') THEN
    RAISE EXCEPTION 'weir: unknown choice % for missed', quote_literal(wanted.missed) USING ERRCODE = '22023',
      HINT = 'What was missed while no worker ran is fired once (one), each time (all) or not at all (none).';
  ELSIF wanted.jitter NOT BETWEEN '0' AND '1 day' THEN
    RAISE EXCEPTION 'weir: the jitter of a schedule must be 0 to 1 day, got %', wanted.jitter USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_job(wanted.queue, wanted.kind, wanted.args, wanted.priority, wanted.max_attempts, wanted.meta), weir._check_key(wanted.key), weir._check_new_queue(wanted.queue);
  IF octet_length(wanted.meta::text) > 60000 THEN
    RAISE EXCEPTION 'weir: meta too large: % bytes, at most 60000 are allowed for a schedule, which adds to it', octet_length(wanted.meta::text) USING ERRCODE = '22023';
  END IF;
  wanted.time_zone := weir._time_zone(wanted.time_zone);
  wanted.fields := weir._parse_schedule(wanted.schedule, wanted.time_zone);
  at_time := clock_timestamp();
  wanted.first_due := weir._due_after(wanted.fields, wanted.time_zone, at_time);
  IF wanted.first_due IS NULL THEN
    RAISE EXCEPTION 'weir: the schedule % is never due', quote_literal(wanted.schedule) USING ERRCODE = '22023', HINT = 'No year has such a day: check the day and the month.';
  END IF;
  wanted.generation := nextval('weir.schedule_generation');

  INSERT INTO weir.schedule SELECT wanted.* ON CONFLICT (name) DO NOTHING;
  is_new := FOUND;
  IF NOT is_new THEN
    SELECT s.* INTO existing FROM weir.schedule s WHERE s.name = wanted.name FOR UPDATE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'weir: schedule % was dropped at the same time', wanted.name USING ERRCODE = '40001', HINT = 'Try again.';
    ELSIF weir._same_schedule(existing, wanted) THEN
      RETURN 'unchanged';  -- by another process, a moment ago
    END IF;
    PERFORM weir._lock_firings();
    -- A due time that has passed and has not been fired yet belongs to the new generation, which would otherwise start after it.
    wanted.first_due := least(wanted.first_due, (SELECT d FROM weir._pending_due(existing) d WHERE d <= at_time));
    UPDATE weir.schedule s SET (generation, schedule, fields, time_zone, missed, jitter, queue, kind, args, priority, max_attempts, meta, key, first_due)
      = (SELECT wanted.generation, wanted.schedule, wanted.fields, wanted.time_zone, wanted.missed, wanted.jitter, wanted.queue, wanted.kind,
                wanted.args, wanted.priority, wanted.max_attempts, wanted.meta, wanted.key, wanted.first_due)
    WHERE s.name = wanted.name;
  END IF;
  IF is_new OR existing.paused_at IS NULL THEN
    PERFORM weir._mark_due(wanted.name, wanted.generation, wanted.first_due, wanted.first_due + random() * wanted.jitter);
  END IF;
  RETURN CASE WHEN is_new THEN 'created' ELSE 'changed' END;
END
$$;
COMMENT ON FUNCTION weir.set_schedule IS
  'Declares a schedule: at each of its due times after the commit, a job is enqueued. schedule is a cron expression of five fields (minute, hour, day, month, weekday), of six with the second first, @hourly and the like, or an interval (every 90 seconds; every 2 weeks from 2026-01-05 09:00), in the time zone time_zone. Returns created, changed, or unchanged: declaring the same again writes nothing, so every process can do it when it starts. A paused schedule stays paused. missed says what happens to due times that nobody fired for more than a minute, because no worker ran: one (a single job for all of them, with the newest of these due times), all (a job for each), or none. Those of the last minute are fired one by one, whatever missed says. jitter delays each job by a random time up to it. The job''s meta has the keys schedule (the name) and due (the due time), and its key is key. NULL: the default. Errors: 22023 with the field and the value; 40001; WR004 (a change outside READ COMMITTED). Locks: none that others wait for, except another change of the same schedule; a change waits while firings are being compacted. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._same_schedule(a weir.schedule, b weir.schedule) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT (a.schedule, a.missed, a.jitter, a.queue, a.kind, a.args, a.priority, a.max_attempts, a.meta, a.key) IS NOT DISTINCT FROM
         (b.schedule, b.missed, b.jitter, b.queue, b.kind, b.args, b.priority, b.max_attempts, b.meta, b.key) AND lower(a.time_zone COLLATE "C") = lower(b.time_zone COLLATE "C")
$$;
COMMENT ON FUNCTION weir._same_schedule IS 'Reports whether two declarations of a schedule say the same. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.drop_schedule(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  DELETE FROM weir.schedule s WHERE s.name = drop_schedule.name;
  RETURN FOUND;
END
$$;
COMMENT ON FUNCTION weir.drop_schedule IS
  'Drops a schedule: after the commit, it enqueues no more jobs. Those that it has enqueued stay. Returns false if it does not exist. Errors: none. Locks: none that others wait for, except another change of the same schedule. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.pause_schedule(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  UPDATE weir.schedule s SET paused_at = now() WHERE s.name = pause_schedule.name AND s.paused_at IS NULL;
  RETURN EXISTS (SELECT FROM weir.schedule s WHERE s.name = pause_schedule.name);
END
$$;
COMMENT ON FUNCTION weir.pause_schedule IS
  'Pauses a schedule: after the commit, it enqueues no more jobs until it is resumed, even if it is declared again. Returns false if it does not exist. Errors: none. Locks: none that others wait for, except another change of the same schedule. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.resume_schedule(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  s weir.schedule;
BEGIN
  UPDATE weir.schedule k SET paused_at = NULL, generation = nextval('weir.schedule_generation'),
                             first_due = coalesce(weir._due_after(k.fields, k.time_zone, clock_timestamp()), k.first_due)
  WHERE k.name = resume_schedule.name AND k.paused_at IS NOT NULL RETURNING k.* INTO s;
  IF FOUND THEN
    PERFORM weir._mark_due(s.name, s.generation, s.first_due, s.first_due + random() * s.jitter);
    RETURN true;
  END IF;
  RETURN EXISTS (SELECT FROM weir.schedule k WHERE k.name = resume_schedule.name);
END
$$;
COMMENT ON FUNCTION weir.resume_schedule IS
  'Resumes a schedule. What was due while it was paused is not fired, whatever missed says. Returns false if it does not exist. Errors: 22023 (PostgreSQL does not know its time zone any more). Locks: none that others wait for, except another change of the same schedule. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  s weir.schedule;
BEGIN
  SELECT k.* INTO s FROM weir.schedule k WHERE k.name = run_schedule.name;
  RETURN CASE WHEN FOUND THEN weir._enqueue_due(s, now()) END;
END
$$;
COMMENT ON FUNCTION weir.run_schedule IS
  'Enqueues a job of a schedule now, as if it were due, even if the schedule is paused. Its due times stay as they are. Returns the job''s id, or NULL if the schedule does not exist. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._lock_firings() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  LOCK TABLE weir.firing IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^firing$', 'weir: the due times that schedules have fired were compacted after this transaction took its snapshot, which shows none of them');
END
$$;
COMMENT ON FUNCTION weir._lock_firings IS
  'Locks the firings of schedules against TRUNCATE, so that the next snapshot shows them all. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on weir.firing; waits while it is being compacted.';

CREATE OR REPLACE FUNCTION weir._read_schedules(name text, after text, max_rows integer) RETURNS SETOF weir.schedule_info
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  s weir.schedule;
  i weir.schedule_info;
BEGIN
  FOR s IN SELECT k.* FROM weir.schedule k WHERE (_read_schedules.name IS NULL OR k.name = _read_schedules.name) AND (_read_schedules.after IS NULL OR k.name > _read_schedules.after)
           ORDER BY k.name LIMIT _read_schedules.max_rows LOOP
    i := ROW(s.name, CASE WHEN s.paused_at IS NULL THEN 'active' ELSE 'paused' END, s.schedule, s.time_zone, NULL, NULL, NULL,
             s.queue, s.kind, s.args, s.priority, s.max_attempts, s.meta, s.missed, s.jitter, NULL, s.key);
    i.last_at := (SELECT f.due FROM weir.firing f WHERE f.name = s.name ORDER BY f.due DESC LIMIT 1);
    i.last_job := (SELECT f.job FROM weir.firing f WHERE f.name = s.name AND f.job IS NOT NULL ORDER BY f.due DESC LIMIT 1);
    BEGIN
      i.next_at := weir._pending_due(s);
    EXCEPTION WHEN OTHERS THEN
      i.error := SQLERRM;
    END;
    RETURN NEXT i;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._read_schedules IS 'Schedules as one snapshot shows them, see weir.schedules. The caller has called weir._lock_firings.';

CREATE OR REPLACE FUNCTION weir.schedules(name text DEFAULT NULL, after text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS SETOF weir.schedule_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF schedules.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: schedules needs a limit of 1 to 10000 rows, got %', schedules.max_rows USING ERRCODE = '22023';
  END IF;
  PERFORM weir._lock_firings();
  RETURN QUERY SELECT s.* FROM weir._read_schedules(schedules.name, schedules.after, coalesce(schedules.max_rows, 1000)) s;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.schedules IS
  'Schedules in the order of their names, up to max_rows (1 to 10000) after the name after, or the one called name: state is active or paused; next_at is the first due time that has not been fired, without its jitter; last_at the last one that has, or that was missed and passed over; last_job the last job that a due time has enqueued; error why it can''t be fired. Errors: 22023; 40001, in REPEATABLE READ and SERIALIZABLE, if firings were compacted after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while firings are being compacted. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.next_times(schedule text, time_zone text DEFAULT 'UTC', after timestamptz DEFAULT NULL, count integer DEFAULT 5) RETURNS SETOF timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  zone   text := weir._time_zone(coalesce(time_zone, 'UTC'));
  fields text[] := weir._parse_schedule(schedule, zone);
  due    timestamptz := coalesce(after, now());
BEGIN
  IF count NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: next_times returns 1 to 10000 times, got %', count USING ERRCODE = '22023';
  END IF;
  FOR i IN 1..coalesce(count, 5) LOOP
    due := weir._due_after(fields, zone, due);
    EXIT WHEN due IS NULL;
    RETURN NEXT due;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir.next_times IS
  'The next due times of a schedule after an instant (NULL: now): count of them, 1 to 10000, or fewer if there are no more. To try an expression before it is set. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';
