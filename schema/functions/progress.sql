-- What attempts report while they run: how far they are, a checkpoint from which the next attempt goes on, and lines of a log.
--
-- Each report is a row. Of a job the newest counts, in the order in which its attempts were claimed, and within an attempt in the order of the
-- numbers. So a report that arrives late hides none of a later attempt. A row has a checkpoint only if that is new; of the rows that have one, the
-- newest counts. Nothing else reads or writes these tables: jobs that report nothing cost nothing.
--
-- A row is kept as long as finished jobs are. The reports of unfinished jobs, and of failed ones that can be retried, are carried into the active
-- segment before theirs is emptied.

CREATE OR REPLACE FUNCTION weir.progress(worker integer, entries text) RETURNS TABLE (token text, refusal text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
SET enable_hashjoin = off
SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
  max_mib CONSTANT integer := 16;
  given   jsonb;
  lanes   bigint[];
  seqs    bigint[];
  segment smallint;  -- of the reports
BEGIN
  PERFORM weir._check_isolation('progress');
  IF octet_length(progress.entries) > max_mib * 1048576 THEN
    RAISE EXCEPTION 'weir: progress takes at most % MiB at once, got %', max_mib, pg_size_pretty(octet_length(progress.entries)::bigint)
      USING ERRCODE = '22023', HINT = 'Report in several calls.';
  END IF;
  given := weir._jsonb_of(progress.entries);
  IF jsonb_typeof(given) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'weir: progress takes a JSON array of entries, got %', coalesce('a JSON ' || jsonb_typeof(given), 'null')
      USING ERRCODE = '22023', HINT = 'For example [{"token": "...", "percent": 50}].';
  ELSIF jsonb_array_length(given) > 1000 THEN
    RAISE EXCEPTION 'weir: progress takes at most 1000 entries at once, got %', jsonb_array_length(given) USING ERRCODE = '22023', HINT = 'Report in several calls.';
  END IF;
  PERFORM weir._hold_briefly(), weir._commit_synchronously();
  PERFORM pg_advisory_xact_lock_shared(1464158548, progress.worker);
  PERFORM weir._check_worker(progress.worker);
  RETURN QUERY SELECT e.value ->> 'token', 'invalid', weir._wrong_with_entry(e.value) FROM jsonb_array_elements(given) e WHERE weir._wrong_with_entry(e.value) IS NOT NULL;
  SELECT n.lanes, n.seqs INTO lanes, seqs
  FROM weir._named_by(ARRAY(SELECT e.value ->> 'token' FROM jsonb_array_elements(given) e WHERE weir._wrong_with_entry(e.value) IS NULL)) n;
  PERFORM weir._hold_segments(progress.worker, lanes, seqs);
  segment := weir._hold_report_segment();
  RETURN QUERY
  WITH entry AS MATERIALIZED (
    SELECT e.value AS v, p.*, e.ordinality AS place FROM jsonb_array_elements(given) WITH ORDINALITY e
    CROSS JOIN LATERAL (SELECT n.lanes[1] AS lane, n.seqs[1] AS seq, n.ids[1] AS id FROM weir._named_by(ARRAY[e.value ->> 'token']) n OFFSET 0) p
    WHERE weir._wrong_with_entry(e.value) IS NULL
  ), held AS MATERIALIZED (
    SELECT k.*, b.no AS claim, b.attempt
    FROM entry k
    LEFT JOIN LATERAL (
      SELECT b.no, j.attempt FROM weir.batch b
      CROSS JOIN LATERAL (
        SELECT j.attempt FROM weir.job j
        WHERE j.segment = b.segment AND j.id = k.id AND j.lane IS NOT DISTINCT FROM coalesce(b.lanes[array_position(b.ids, k.id)], k.lane)  -- worded so that the index on id is used
          AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
        ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
      WHERE b.lane = k.lane AND b.seq = k.seq AND b.worker IS NOT DISTINCT FROM progress.worker AND k.id = ANY (b.ids)
        AND NOT EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = k.lane AND r.seq = k.seq AND k.id = ANY (r.ids))
      LIMIT 1) b ON true
  ), written AS (
    INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint, lines)
    SELECT h.id, h.claim, nextval('weir.report_no'), segment, clock_timestamp(), h.attempt,
           (h.v ->> 'percent')::double precision, left(h.v ->> 'message', 2000), h.v -> 'checkpoint', nullif(h.v -> 'log', 'null')
    FROM held h WHERE h.claim IS NOT NULL ORDER BY h.place
  )
  SELECT h.v ->> 'token', 'lost', format('worker %s does not run this attempt any more: it has ended, or the job was claimed again', progress.worker)
  FROM held h WHERE h.claim IS NULL;
END
$$;
COMMENT ON FUNCTION weir.progress IS
  'Stores what running attempts report: up to 1000 at once, as the text of a JSON array of at most 16 MiB. The fields of an entry are token; percent (0 to 100); message (a text, of which 2000 characters are kept); checkpoint (any JSON value of at most 131072 bytes as text, which the next attempt reads with weir.checkpoint; null: it reads none; left out: it stays as it is); and log (an array of up to 200 lines, each an object with text, at most 8000 characters, and optionally level, INFO by default, and at, a time in the form of RFC 3339, by default when it is stored). percent and message replace those of the previous report. Returns a row for each entry that was not stored: lost (the attempt has ended, or another worker has the job) or invalid. Each call writes one row for each entry: report at most once a second. Errors: 22023, 22P02 (not valid JSON), WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and the segments (shared); ROW EXCLUSIVE on weir.report and its active segment, for which only the rotation of reports waits, at most 50 ms. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._wrong_with_entry(given jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE
    WHEN jsonb_typeof(given) <> 'object' THEN format('an entry must be a JSON object, got a JSON %s', jsonb_typeof(given))
    WHEN jsonb_typeof(given -> 'invalid') = 'string' THEN format('it has a number that PostgreSQL does not take: %s', left(given ->> 'invalid', 100))
    WHEN weir._is_token(given ->> 'token') IS NOT TRUE THEN format('%s is not a token: pass it unchanged, as weir.take returned it', coalesce(left((given -> 'token')::text, 100), 'null'))
    WHEN jsonb_typeof(given -> 'percent') NOT IN ('number', 'null') OR (given ->> 'percent')::numeric NOT BETWEEN 0 AND 100
      THEN format('percent must be a number from 0 to 100, got %s', left((given -> 'percent')::text, 100))
    WHEN jsonb_typeof(given -> 'message') NOT IN ('string', 'null') THEN format('message must be a text, got a JSON %s', jsonb_typeof(given -> 'message'))
    WHEN octet_length((given -> 'checkpoint')::text) > 131072
      THEN format('the checkpoint has %s bytes, at most 131072 are allowed: keep larger data elsewhere, and its place in the checkpoint', octet_length((given -> 'checkpoint')::text))
    WHEN jsonb_typeof(given -> 'log') NOT IN ('array', 'null') THEN format('log must be an array of lines, got a JSON %s', jsonb_typeof(given -> 'log'))
    WHEN jsonb_typeof(given -> 'log') = 'array' AND jsonb_array_length(given -> 'log') > 200
      THEN format('log has %s lines, at most 200 are allowed in one entry', jsonb_array_length(given -> 'log'))
    WHEN jsonb_typeof(given -> 'log') = 'array' AND EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(given -> 'log') = 'array' THEN given -> 'log' END) l
                                                            WHERE jsonb_typeof(l -> 'text') IS DISTINCT FROM 'string' OR length(l ->> 'text') > 8000)
      THEN 'each line of log must be an object with a text of at most 8000 characters'
    ELSE (SELECT format('unknown field %s: the fields of an entry are token, percent, message, checkpoint and log', quote_ident(left(k, 100)))
          FROM jsonb_object_keys(given) k WHERE k <> ALL (ARRAY['token', 'percent', 'message', 'checkpoint', 'log']) LIMIT 1)
  END
$$;
COMMENT ON FUNCTION weir._wrong_with_entry IS 'Why an entry that was passed to progress is invalid; NULL: it is valid. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._hold_report_segment() RETURNS smallint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  active smallint := pg_sequence_last_value('weir.active_report');
BEGIN
  LOOP
    EXECUTE format('LOCK TABLE weir.report_%s IN ROW EXCLUSIVE MODE', active);
    -- If it is still the active one, it will be closed after this, and emptied after this transaction.
    EXIT WHEN active = pg_sequence_last_value('weir.active_report');
    active := pg_sequence_last_value('weir.active_report');
  END LOOP;
  RETURN active;
END
$$;
COMMENT ON FUNCTION weir._hold_report_segment IS
  'The segment into which reports are written. It is not emptied before the transaction has ended. Locks: ROW EXCLUSIVE on the segment, for which only _rotate_reports waits. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.set_checkpoint(worker integer, token text, checkpoint jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  held   record := weir._named_by(ARRAY[set_checkpoint.token]);
  is_now record;
  size   integer := octet_length(set_checkpoint.checkpoint::text);
BEGIN
  IF size > 131072 THEN
    RAISE EXCEPTION 'weir: the checkpoint has % bytes, at most 131072 are allowed', size USING ERRCODE = '22023', HINT = 'Keep larger data elsewhere, and its place in the checkpoint.';
  END IF;
  PERFORM weir._hold_attempt('set_checkpoint', set_checkpoint.worker, held.lanes[1], held.seqs[1], held.ids[1]);
  BEGIN
    SELECT b.no, j.attempt, n.percent, n.message || '' AS message INTO is_now  -- out of TOAST, as in weir.checkpoint
    FROM weir.batch b
    CROSS JOIN LATERAL (
      SELECT j.attempt FROM weir.job j
      WHERE j.segment = b.segment AND j.id = held.ids[1] AND j.lane IS NOT DISTINCT FROM coalesce(b.lanes[array_position(b.ids, held.ids[1])], b.lane)  -- worded so that the index on id is used
        AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
      ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    LEFT JOIN LATERAL (SELECT r.percent, r.message FROM weir.report r WHERE r.job_id = held.ids[1] ORDER BY r.claim DESC, r.no DESC LIMIT 1) n ON true
    WHERE b.lane = held.lanes[1] AND b.seq = held.seqs[1] AND held.ids[1] = ANY (b.ids) LIMIT 1;
    RAISE SQLSTATE 'WR099';  -- releases the tables: the transaction may stay open for long
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint)
  VALUES (held.ids[1], is_now.no, nextval('weir.report_no'), weir._hold_report_segment(), clock_timestamp(), is_now.attempt, is_now.percent, is_now.message,
          coalesce(set_checkpoint.checkpoint, 'null'));
END
$$;
COMMENT ON FUNCTION weir.set_checkpoint IS
  'Sets the checkpoint of a running attempt in the caller''s transaction: its effects and the checkpoint commit together, so the next attempt goes on exactly behind the last transaction that was committed. checkpoint is any JSON value of at most 131072 bytes as text; null: the next attempt reads none. The transaction may stay open: even if the worker is lost in the meantime, no other attempt starts before it has ended. Its percent and message stay as they are. Errors: 22023; WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended: roll back), WR004. Locks, to the end of the transaction: advisory: see _hold_attempt; ROW EXCLUSIVE on weir.report and its active segment, for which only the rotation of reports waits, at most 50 ms. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir.checkpoint(job_id bigint) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  found_it jsonb;
BEGIN
  LOCK TABLE weir.report IN ACCESS SHARE MODE;  -- before the snapshot: see look.sql
  SELECT r.checkpoint INTO found_it FROM weir.report r
  WHERE r.job_id = checkpoint.job_id AND r.checkpoint IS NOT NULL ORDER BY r.claim DESC, r.no DESC LIMIT 1;
  found_it := nullif(jsonb_build_array(found_it) -> 0, 'null');  -- out of TOAST now: the table is released, and may then be truncated
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN found_it;
END
$$;
COMMENT ON FUNCTION weir.checkpoint IS
  'The newest checkpoint that an attempt of the job has reported with weir.progress, for the next attempt to go on from; NULL: there is none. It survives retries, snoozes, releases, lost workers and the move of the log to another cluster, and is kept as long as the job. Errors: none. Locks: none that others wait for, and none that outlast the call. Isolation: READ COMMITTED, to see what was reported before the call.';

CREATE OR REPLACE FUNCTION weir._reported(job_id bigint, with_log boolean, OUT percent double precision, OUT message text, OUT log jsonb)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  IF pg_sequence_last_value('weir.report_no') IS NULL THEN
    RETURN;  -- nothing was ever reported
  END IF;
  SELECT r.percent, r.message INTO percent, message FROM weir.report r WHERE r.job_id = _reported.job_id ORDER BY r.claim DESC, r.no DESC LIMIT 1;
  IF FOUND AND with_log THEN
    -- A line that does not say when it was written was stored then. Clients read the time as one in RFC 3339.
    log := (SELECT jsonb_agg(l.line || jsonb_build_object('attempt', l.attempt, 'level', coalesce(l.line ->> 'level', 'INFO'),
                               'at', coalesce(weir._log_time(l.line ->> 'at'), to_jsonb(l.at)))
                             ORDER BY l.claim, l.no, l.nr)
            FROM (SELECT e.line, e.nr, r.claim, r.no, r.attempt, r.at
                  FROM weir.report r CROSS JOIN LATERAL jsonb_array_elements(r.lines) WITH ORDINALITY e(line, nr)
                  WHERE r.job_id = _reported.job_id AND r.lines IS NOT NULL
                  ORDER BY r.claim DESC, r.no DESC, e.nr DESC LIMIT 1000) l);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._reported IS
  'What a job has reported last and, if asked for, the last 1000 lines of its attempts'' logs, oldest first. All NULL if it has reported nothing.';

CREATE OR REPLACE FUNCTION weir._log_time(given text) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  at timestamptz;
BEGIN
  IF given ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})? ?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
    at := given;
    RETURN CASE WHEN at NOT BETWEEN '2000-01-01 00:00:00+00' AND '9998-12-31 00:00:00+00' THEN NULL  -- to_jsonb writes some of these times as RFC 3339 does not
                WHEN given ~ 'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$' THEN to_jsonb(given)
                ELSE to_jsonb(at) END;
  END IF;
  RETURN NULL;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._log_time IS
  'The time of a line of a log, in the form of RFC 3339, also if it was given with a space in place of the T, as languages print it; NULL: it is no time with a time zone. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._rotate_reports() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  max_rows  CONSTANT integer := 1000;
  retention interval := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
  bytes     bigint   := (SELECT s.value::bigint / 16 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer  := pg_sequence_last_value('weir.active_report');
  target    integer;
  size      bigint   := pg_total_relation_size('weir.report_' || active);
  age       interval;
  k         record;
  ids       bigint[];
BEGIN
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('report', s) = 'reclaimed';
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'report' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);
  IF target IS NOT NULL AND (size >= bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.report_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('report', active, 'closed'), ('report', target, 'opened');
    PERFORM setval('weir.active_report', target);  -- last: it does not roll back
    RETURN 'opened report ' || target;
  END IF;
  SELECT e.* INTO k FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'report' AND s.segment <> active
    ORDER BY s.segment, s.no DESC) e WHERE e.event <> 'reclaimed' ORDER BY e.event <> 'carried', e.no LIMIT 1;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF k.event <> 'carried' THEN
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN
      INSERT INTO weir.segment (log, segment, event) VALUES ('report', k.segment, 'closed');
    END IF;
    IF age < retention AND NOT (target IS NULL AND size >= bytes / 2) THEN
      RETURN NULL;
    END IF;
    -- A transaction that writes into a segment locks it, and then checks that it is active: once this lock is granted, none follows into it.
    EXECUTE format('LOCK TABLE weir.report_%s IN SHARE MODE', k.segment);
    INSERT INTO weir.segment (log, segment, event, upto) VALUES ('report', k.segment, 'carried', 0);
    RETURN 'closed report ' || k.segment;
  END IF;

  -- Job by job, in the order of their ids.
  ids := ARRAY(SELECT r.job_id FROM weir.report r WHERE r.segment = k.segment AND r.job_id > k.upto ORDER BY r.job_id LIMIT max_rows);
  IF ids = '{}' THEN
    EXECUTE format('LOCK TABLE weir.report_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
    EXECUTE format('TRUNCATE weir.report_%s', k.segment);
    INSERT INTO weir.segment (log, segment, event) VALUES ('report', k.segment, 'reclaimed');
    RETURN 'reclaimed report ' || k.segment;
  END IF;
  PERFORM weir._lock_log();
  INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint)
  SELECT i.id, n.claim, n.no, active, n.at, n.attempt, n.percent, n.message, n.checkpoint
  FROM (SELECT DISTINCT u.id FROM unnest(ids) u(id)) i
  CROSS JOIN LATERAL (
    (SELECT r.* FROM weir.report r WHERE r.job_id = i.id ORDER BY r.claim DESC, r.no DESC LIMIT 1)
    UNION  -- each under its own number: one between them may be committed later
    (SELECT r.* FROM weir.report r WHERE r.job_id = i.id AND r.checkpoint IS NOT NULL ORDER BY r.claim DESC, r.no DESC LIMIT 1)) n
  CROSS JOIN LATERAL weir._read_job(i.id, 1) j
  WHERE n.segment = k.segment AND j.state IN ('available', 'running', 'scheduled', 'failed');
  INSERT INTO weir.segment (log, segment, event, upto) VALUES ('report', k.segment, 'carried', ids[cardinality(ids)]);
  RETURN 'carried from report ' || k.segment;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- the segment is being read, or written: the next call tries again
END
$$;
COMMENT ON FUNCTION weir._rotate_reports IS
  'Performs the next step of rotating the segments of reports. Opens a free segment when the active one exceeds a sixteenth of retention_bytes, or is older than half of failed_retention or completed_retention, whichever is longer. Empties the oldest segment when that retention has passed since it was closed, or when no free segment is left: in steps, it copies what unfinished and failed jobs have reported last into the active segment, and then truncates. Returns what it did, or NULL. The caller holds advisory step 1. Locks: SHARE on the segment, once, waiting at most 50 ms; ACCESS EXCLUSIVE on it, NOWAIT; ACCESS SHARE on the log.';
