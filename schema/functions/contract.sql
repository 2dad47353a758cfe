-- The contract of workers in any language: start, take, record, stop; complete, for effects in the handler's own transaction; and chores, if no
-- Go worker runs. Each is one call in autocommit, except complete. A token identifies an attempt, and contains the batch that claimed it.

CREATE OR REPLACE FUNCTION weir.start(name text, queues text[], lease interval DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  unused text;
BEGIN
  PERFORM weir._check_array('start', 'queues', start.queues, true);
  IF coalesce(cardinality(start.queues), 0) = 0 THEN
    RAISE EXCEPTION 'weir: a worker needs at least one queue, got none' USING ERRCODE = '22023', HINT = 'Pass a list of queues, for example ARRAY[''default''].';
  END IF;
  BEGIN
    PERFORM weir._check_cluster();
  EXCEPTION WHEN SQLSTATE 'WR003' THEN
    PERFORM weir.rebase();
  END;
  BEGIN
    FOREACH unused IN ARRAY (weir._never_used(start.queues))[:20] LOOP
      RAISE WARNING 'weir: no job was ever enqueued to queue "%": check its name, unless its first jobs are still to come', unused;
    END LOOP;
  EXCEPTION WHEN serialization_failure THEN
    NULL;  -- of a snapshot that is too old to know
  END;
  RETURN weir._start(start.name, start.queues, coalesce(start.lease, '30 seconds'));
END
$$;
COMMENT ON FUNCTION weir.start IS
  'Registers a worker, creates its queues and returns its id. From then on it must call take (or heartbeat) well within its lease, 1 second to 5 minutes (NULL: 30 seconds), or other workers get its jobs. Raises a WARNING for each queue, of up to 20, that never had a job: its name may be misspelt. A log that comes from another cluster is rebased first; that may take minutes, and ignores statement_timeout. Errors: 22023; see rebase. Locks: none that others wait for; see rebase if it rebases. Isolation: any; if it rebases, READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir.take(
  worker integer, queues text[] DEFAULT NULL, limits integer[] DEFAULT NULL, kinds text[] DEFAULT NULL, held text[] DEFAULT NULL,
  lost boolean DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS TABLE (event text, token text, id bigint, queue text, priority integer, kind text, args jsonb, meta jsonb,
               attempt integer, max_attempts integer, enqueued_at timestamptz, key text, flow bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  pause    double precision;  -- between two polls, in seconds; NULL: it has not waited yet
  own      record;            -- the worker's registration
  holds    record;            -- the attempts in held
  patience double precision;  -- for how much longer it may wait, in seconds
  began    timestamptz;
  polled   record;            -- the result of the last poll
  polls    integer;
  slept    text;
  is_full  boolean;
  is_first boolean := true;
  is_done  boolean := false;
  is_cut   boolean;           -- the claim has not visited all lanes
  again_at timestamptz;       -- when a rate may allow jobs that it has withheld
  reported bigint[] := '{}';  -- jobs whose cancellation is reported
  after    bigint := 0;
  j        record;
  lanes    bigint[] := '{}';  -- jobs that are ended without being run
  seqs     bigint[]  := '{}';
  ids      bigint[]  := '{}';
  outcomes text[]    := '{}';
  errors   text[]    := '{}';
BEGIN
  PERFORM weir._check_isolation('take'), weir._check_array('take', 'queues', take.queues, true), weir._check_array('take', 'limits', take.limits, true),
          weir._check_array('take', 'kinds', take.kinds, true), weir._check_array('take', 'held', take.held, true), weir._check_worker(take.worker);
  IF current_setting('transaction_read_only') = 'on' AND NOT pg_is_in_recovery() THEN
    RAISE EXCEPTION 'weir: take was called in a READ ONLY transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit, with default_transaction_read_only = off for this role: it claims jobs.';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: take was called inside an open transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: it takes locks that would be held until your commit.';
  ELSIF clock_timestamp() - now() > interval '1 second' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: take was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: it takes locks that would be held until your commit. If you did, try again.';
  ELSIF take.lost AND take.held IS NULL THEN
    RAISE EXCEPTION 'weir: take needs held if lost is true, but held is null'
      USING ERRCODE = '22023', HINT = 'Pass as held the tokens of all attempts that the worker has not recorded; ''{}'' if there are none.';
  END IF;
  SELECT w.lease, w.queues INTO own FROM weir.worker w WHERE w.id = take.worker AND NOT w.fenced;
  take.queues := coalesce(take.queues, own.queues);
  take.limits := coalesce(take.limits, array_fill(1, ARRAY[cardinality(take.queues)]));
  IF cardinality(take.queues) <> cardinality(take.limits) THEN
    RAISE EXCEPTION 'weir: take got % queues and % limits', cardinality(take.queues), cardinality(take.limits)
      USING ERRCODE = '22023', HINT = 'Pass a limit for each queue; if queues is null, for each that the worker was started for.';
  END IF;
  is_full := NOT coalesce(0 < ANY (take.limits), false);
  IF 0 > ANY (take.limits) THEN
    RAISE EXCEPTION 'weir: take got the limit %, for queue %', (SELECT min(l) FROM unnest(take.limits) l), (SELECT to_json(u.queue) FROM unnest(take.queues, take.limits) u(queue, l) ORDER BY u.l LIMIT 1)
      USING ERRCODE = '22023', HINT = 'Pass how many jobs to claim from it; 0 claims none.';
  END IF;
  holds := weir._named_by(take.held);
  -- The wait is short enough that no timeout ends the call.
  patience := extract(epoch FROM greatest('0', least(coalesce(take.wait, '1 second'), '1 second', own.lease / 3,
    nullif(current_setting('statement_timeout')::interval, '0') / 2, nullif(current_setting('transaction_timeout', true)::interval, '0') / 2)));

  -- While it waits it must hold no locks, because they would block reclaiming and other claims: rolling back a block releases its locks.
  -- A call that writes for other reasons doesn't claim, so that no lane is locked in the meantime.
  BEGIN
    IF weir._beat_if_due(take.worker, own.lease, cardinality(holds.ids)) THEN
      take.lost := take.held IS NOT NULL;
    END IF;
    WHILE take.lost AND after IS NOT NULL LOOP
      after := (SELECT r.next FROM weir._reconcile(take.worker, holds.lanes, holds.seqs, array_fill(1, ARRAY[cardinality(holds.ids)]), holds.ids, after) r);
      EXIT WHEN clock_timestamp() - now() > interval '1 second';  -- its progress is stored: a later call does the rest
    END LOOP;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
      RAISE SQLSTATE 'WR099';
    END IF;
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;

  polled := weir._watch(0, 0, NULL, NULL);
  LOOP
    FOR id IN SELECT c.id FROM unnest(weir._cancelled_among(holds.ids)) c(id) WHERE c.id <> ALL (reported) LOOP
      reported := reported || id;
      event := 'cancel';
      token := take.held[array_position(holds.ids, id)];
      RETURN NEXT;
      is_done := NOT is_first;  -- an old cancellation may have been reported before, so it doesn't end the wait
    END LOOP;
    EXIT WHEN is_done OR pg_current_xact_id_if_assigned() IS NOT NULL OR clock_timestamp() - now() > interval '1.8 seconds';  -- because claim refuses an old transaction
    is_first := false;

    IF NOT is_full THEN
      BEGIN
        is_cut := false;
        again_at := NULL;
        FOR j IN SELECT c.* FROM weir._claim(take.worker, take.queues, take.limits) c LOOP
          IF j.id IS NULL AND j.queue IS NULL THEN
            is_cut := true;
          ELSIF j.id IS NULL THEN
            again_at := least(again_at, j.ready_at);  -- limits have withheld jobs of this queue
          ELSIF j.dropped IS NOT NULL OR take.kinds IS NOT NULL AND j.kind <> ALL (take.kinds) THEN
            lanes := lanes || j.lane;
            seqs := seqs || j.seq;
            ids := ids || j.id;
            outcomes := outcomes || CASE WHEN j.dropped IS NULL THEN 'released' ELSE 'cancelled' END;
            errors := errors || CASE WHEN j.dropped IS NULL THEN format('no handler for kind %s', j.kind) ELSE nullif(j.dropped, '') END;
          ELSE
            event := 'job';
            token := format('%s.%s.%s', j.lane, j.seq, j.id);
            id := j.id;
            queue := j.queue;
            priority := j.priority;
            kind := j.kind;
            args := j.args;
            meta := j.meta;
            attempt := j.attempt;
            max_attempts := j.max_attempts;
            enqueued_at := j.enqueued_at;
            key := j.key;
            flow := j.flow;
            RETURN NEXT;
          END IF;
        END LOOP;
        IF ids <> '{}' THEN
          PERFORM weir._record(take.worker, lanes, seqs, array_fill(1, ARRAY[cardinality(ids)]), ids, outcomes, errors, NULL,
                               array_fill('-infinity'::timestamptz, ARRAY[cardinality(ids)]));
        END IF;
        IF pg_current_xact_id_if_assigned() IS NULL THEN
          RAISE SQLSTATE 'WR099';  -- other workers got the jobs of the lanes that it has locked
        END IF;
      EXCEPTION WHEN SQLSTATE 'WR099' THEN
        NULL;
      END;
      EXIT WHEN pg_current_xact_id_if_assigned() IS NOT NULL;
      CONTINUE WHEN is_cut;  -- others got the jobs of all lanes that it visited
    END IF;

    pause := coalesce(pause, greatest(0.01, least(weir._pause_among(take.queues), patience / 2)));
    LOOP
      polls := floor(patience / pause);
      IF polls < 1 THEN
        RETURN;
      END IF;
      began := clock_timestamp();
      polls := greatest(1, least(polls, ceil(extract(epoch FROM again_at - began) / pause) - 1));
      slept := pg_sleep(pause);  -- a minimum, however many jobs others enqueue
      j := weir._watch(polled.jobs_now, polled.control_now, polled.seen_now, polled.upto_now, polls, pause);
      patience := patience - greatest(pause, extract(epoch FROM clock_timestamp() - began));  -- at least the pause, in case the clock steps back
      EXIT WHEN j.ended OR j.jobs_now <> polled.jobs_now OR j.control_now <> polled.control_now OR again_at <= clock_timestamp();
    END LOOP;
    polled := j;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir.take IS
  'Returns what a worker must do next, as rows: with event job, an attempt to run, and then to record by its token; with event cancel, an attempt in held whose job was cancelled, to interrupt. Claims up to limits[i] jobs of queues[i], at most 960 of a priority and from at most 200 pairs of queue and priority in one call, priority by priority (NULL: 1 from each of the queues that the worker was started for). Jobs whose kind is not in kinds (NULL: all kinds) are released for workers that have a handler, each time with a longer delay. If there is no work it waits, for at most 1 second (wait; 0 does not wait) and half of statement_timeout, and then returns no row. It also renews the lease once a third of it has passed, so that at least two thirds are left, counted from the call. A few times in a lease, and if lost is true (the answer of a take was lost), it compares what the database has recorded as held by the worker with held, the tokens of all attempts that the worker has not recorded: others get the attempts that are not in held. A call that has written for one of these reasons claims nothing. Call it once at a time for a worker. Errors: WR001 (the worker is unknown or fenced: drop everything and start again), 22023, WR003, WR004, 55000 (the transaction is old: try again). Locks: see _claim and _reconcile. Isolation: READ COMMITTED, in autocommit. While it waits it holds a snapshot, and no lock that others wait for.';

CREATE OR REPLACE FUNCTION weir._pause_among(queues text[]) RETURNS double precision
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT 0.01 * greatest(count(*), 1)
  FROM (SELECT FROM weir.worker w
        WHERE NOT w.fenced AND w.queues && _pause_among.queues AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
        LIMIT 10) w
$$;
COMMENT ON FUNCTION weir._pause_among IS
  'How long a worker that waits for jobs of these queues pauses between two polls, in seconds: 10 ms for each worker that shares one of the queues, so that a fleet polls as often as a single worker would; at most 100 ms, because all the others may be busy. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._beat_if_due(worker integer, lease interval, running integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
  word record;
BEGIN
  SELECT h.says, h.watched INTO word FROM weir.last_word h WHERE h.worker = _beat_if_due.worker ORDER BY h.no DESC LIMIT 1;
  IF word.says = 'attends' THEN
    -- The time of the last comparison is not stored, but the batches claimed since then are, with their times.
    RETURN EXISTS (
      SELECT FROM (SELECT b.claimed_at FROM weir.batch b
                   WHERE b.worker = _beat_if_due.worker AND b.no > coalesce((SELECT max(s.no) FROM weir.settled s WHERE s.worker = _beat_if_due.worker), 0)
                   ORDER BY b.no LIMIT 1) k
      WHERE k.claimed_at NOT BETWEEN clock_timestamp() - _beat_if_due.lease / 3 AND clock_timestamp());
  ELSIF word.says = 'beats' AND (pg_sequence_last_value('weir.watched') - word.watched) * interval '1 ms' < _beat_if_due.lease / 3 THEN
    RETURN false;
  END IF;
  PERFORM weir.heartbeat(_beat_if_due.worker, _beat_if_due.running);
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._beat_if_due IS
  'Renews a worker''s lease if it does not attend, and a third of the lease has passed since its last word by weir.watched or a rescuer has missed it. Reports whether it is time to compare what the worker holds: when the lease was renewed, or, for a worker that attends, when a batch that was claimed a third of the lease ago has not been compared since. Locks: see heartbeat.';

CREATE OR REPLACE FUNCTION weir._named_by(tokens text[], OUT lanes bigint[], OUT seqs bigint[], OUT ids bigint[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  invalid text;
BEGIN
  -- A worker passes all that it holds each time: the usual form is told without a call.
  SELECT t INTO invalid FROM unnest(_named_by.tokens) t
  WHERE CASE WHEN t ~ '^[0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}$' THEN false ELSE NOT weir._is_token(t) END LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % is not a token', quote_literal(left(invalid, 100)) USING ERRCODE = '22023', HINT = 'Pass tokens unchanged, as weir.take returned them.';
  END IF;
  SELECT coalesce(array_agg(split_part(t, '.', 1)::bigint ORDER BY nr), '{}'), coalesce(array_agg(split_part(t, '.', 2)::bigint ORDER BY nr), '{}'),
         coalesce(array_agg(split_part(t, '.', 3)::bigint ORDER BY nr), '{}')
    INTO lanes, seqs, ids
  FROM unnest(_named_by.tokens) WITH ORDINALITY u(t, nr);
END
$$;
COMMENT ON FUNCTION weir._named_by IS 'The lane, batch and job of each token, in the order of the tokens. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_token(token text) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE WHEN _is_token.token ~ '^[0-9]{1,19}[.][0-9]{1,18}[.][0-9]{1,18}$' THEN split_part(_is_token.token, '.', 1)::numeric < 9223372036854775808 ELSE false END
$$;
COMMENT ON FUNCTION weir._is_token IS 'Reports whether a text has the form of a token. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.record(worker integer, ends text) RETURNS TABLE (token text, refusal text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  max_mib CONSTANT integer := 64;  -- parsing takes eight times as much memory
  given   jsonb;
  wrong   text[];  -- with each end; NULL: it is valid
BEGIN
  IF octet_length(record.ends) > max_mib * 1048576 THEN
    RAISE EXCEPTION 'weir: record takes at most % MiB at once, got %', max_mib, pg_size_pretty(octet_length(record.ends)::bigint)
      USING ERRCODE = '22023', HINT = 'Record the ends in several calls, or keep large outputs elsewhere.';
  END IF;
  given := weir._jsonb_of(record.ends);
  IF jsonb_typeof(given) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'weir: record takes a JSON array of ends, got %', coalesce('a JSON ' || jsonb_typeof(given), 'null')
      USING ERRCODE = '22023', HINT = 'For example [{"token": "...", "outcome": "completed"}].';
  ELSIF jsonb_array_length(given) > 10000 THEN
    RAISE EXCEPTION 'weir: record takes at most 10000 ends at once, got %', jsonb_array_length(given) USING ERRCODE = '22023', HINT = 'Record them in several calls.';
  END IF;
  PERFORM weir._check_worker(record.worker);  -- again under its lock below, from where an error would carry the whole statement as its context
  -- Most ends say only how they ended, and are seen to be valid without a call.
  wrong := ARRAY(
    SELECT CASE WHEN jsonb_typeof(e.value) = 'object' AND e.value ->> 'token' ~ '^[0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}$' AND e.value - ARRAY['token', 'outcome', 'output', 'error'] = '{}'
                     AND coalesce(e.value ->> 'outcome', 'completed') = ANY (ARRAY['completed', 'failed', 'cancelled', 'snoozed', 'released'])
                THEN NULL ELSE weir._wrong_with(e.value) END
    FROM jsonb_array_elements(given) WITH ORDINALITY e ORDER BY e.ordinality);
  RETURN QUERY SELECT e.value ->> 'token', 'invalid', wrong[e.ordinality] FROM jsonb_array_elements(given) WITH ORDINALITY e WHERE wrong[e.ordinality] IS NOT NULL;
  RETURN QUERY
  WITH ends AS MATERIALIZED (
    SELECT e.value ->> 'token' AS token, row_number() OVER (ORDER BY p.lane, p.seq, e.ordinality) AS place, p.*,
           CASE WHEN e.value ->> 'outcome' = 'failed' AND (e.value ->> 'final')::boolean IS NOT TRUE THEN 'retried' ELSE coalesce(e.value ->> 'outcome', 'completed') END AS outcome,
           e.value ->> 'error' AS error, e.value ->> 'output' AS output,
           coalesce(now() + round((e.value ->> 'delay')::numeric, 6)::double precision * interval '1 second', '-infinity') AS run_at
    FROM jsonb_array_elements(given) WITH ORDINALITY e
    CROSS JOIN LATERAL (SELECT split_part(e.value ->> 'token', '.', 1)::bigint AS lane, split_part(e.value ->> 'token', '.', 2)::bigint AS seq,
                               split_part(e.value ->> 'token', '.', 3)::bigint AS id OFFSET 0) p
    WHERE wrong[e.ordinality] IS NULL
  ), batches AS (
    SELECT array_agg(b.lane ORDER BY b.lane, b.seq) AS lanes, array_agg(b.seq ORDER BY b.lane, b.seq) AS seqs, array_agg(b.size ORDER BY b.lane, b.seq) AS sizes
    FROM (SELECT k.lane, k.seq, count(*)::integer AS size FROM ends k GROUP BY k.lane, k.seq) b
  ), attempts AS (
    SELECT array_agg(k.id ORDER BY k.place) AS ids, array_agg(k.outcome ORDER BY k.place) AS outcomes, array_agg(k.error ORDER BY k.place) AS errors,
           array_agg(k.output ORDER BY k.place) AS outputs, array_agg(k.run_at ORDER BY k.place) AS run_at
    FROM ends k
  )
  SELECT k.token, r.refusal, r.detail
  FROM batches b, attempts a
  CROSS JOIN LATERAL weir._record(record.worker, coalesce(b.lanes, '{}'), coalesce(b.seqs, '{}'), coalesce(b.sizes, '{}'), coalesce(a.ids, '{}'), a.outcomes, a.errors, a.outputs, a.run_at) r
  JOIN ends k ON k.place = r.place
  WHERE r.refusal IS NOT NULL;
END
$$;
COMMENT ON FUNCTION weir.record IS
  'Records how attempts ended, many at once, and accepts or refuses each on its own. ends is the text of a JSON array of at most 10000 objects and 64 MiB. The fields of an object are token; outcome: completed (the default), failed (tried again while attempts are left, unless "final" is true), cancelled, or, without using up the attempt, snoozed (the job postponed itself) or released (this worker can''t run it); error and output, texts that are kept with the job; and delay, in seconds, until the next try (NULL: as weir.set_retry_rule and the queue''s backoff say). Returns a row for each end that was not recorded, with the refusal: ended (the attempt has already ended, so it is safe to repeat a call), lost (it no longer belongs to this worker: drop it), busy (a transaction that completes it is still open: record it again later) or invalid (see detail; the worker still holds the attempt: record it as failed). Characters that PostgreSQL can''t store become U+FFFD. Errors: 22023, 22P02 (not valid JSON), WR001 (the worker is unknown or fenced), WR004. Locks: see _record. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._jsonb_of(given text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  BEGIN
    RETURN given::jsonb;
  EXCEPTION WHEN untranslatable_character OR invalid_text_representation OR numeric_value_out_of_range THEN
    -- NUL, and halves of surrogate pairs: JSON can escape them, but PostgreSQL's text can't contain them. Without lookbehind, which would make it
    -- quadratic: escaped backslashes are written in another way, so that each backslash begins an escape; then whole pairs also get a U+FFFD,
    -- and lose it again.
    given := regexp_replace(regexp_replace(replace(given, E'\\\\', E'\\u005c'),
      E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', E'\\1\\\\ufffd', 'g'),
      E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})\\\\ufffd', E'\\1', 'g');
  END;
  RETURN given::jsonb;
EXCEPTION WHEN numeric_value_out_of_range OR invalid_text_representation THEN  -- JSON has numbers that PostgreSQL's jsonb has not, such as 1e400000: they spoil one entry, not all
  IF json_typeof(given::json) = 'array' THEN
    RETURN (SELECT jsonb_agg(weir._jsonb_of(e::text)) FROM json_array_elements(given::json) e);
  END IF;
  RETURN jsonb_build_object('token', given::json ->> 'token', 'invalid', SQLERRM);
END
$$;
COMMENT ON FUNCTION weir._jsonb_of IS
  'Parses a JSON text, with U+FFFD for escaped characters that PostgreSQL can''t store, which occur in error messages. Of an array, an element with a number that is out of jsonb''s range becomes an object with its token and what is wrong (invalid), which is no field of an end or an entry. Errors: 22P02. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._wrong_with(given jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE
    WHEN jsonb_typeof(given) <> 'object' THEN format('an end must be a JSON object, got a JSON %s', jsonb_typeof(given))
    WHEN jsonb_typeof(given -> 'invalid') = 'string' THEN format('it has a number that PostgreSQL does not take: %s', left(given ->> 'invalid', 100))
    WHEN weir._is_token(given ->> 'token') IS NOT TRUE THEN format('%s is not a token: pass it unchanged, as weir.take returned it', coalesce(left((given -> 'token')::text, 100), 'null'))
    WHEN given ->> 'outcome' <> ALL (ARRAY['completed', 'failed', 'cancelled', 'snoozed', 'released'])
      THEN format('outcome must be completed, failed, cancelled, snoozed or released, got %s', left(given ->> 'outcome', 100))
    WHEN jsonb_typeof(given -> 'delay') NOT IN ('number', 'null') OR (given ->> 'delay')::numeric NOT BETWEEN 0 AND 315576000
      THEN format('delay must be a number of seconds from 0 to 315576000 (ten years), got %s', left((given -> 'delay')::text, 100))
    WHEN jsonb_typeof(given -> 'final') NOT IN ('boolean', 'null') THEN format('final must be true or false, got %s', left((given -> 'final')::text, 100))
    ELSE (SELECT format('unknown field %s: the fields of an end are token, outcome, error, output, delay and final', quote_ident(left(k, 100)))
          FROM jsonb_object_keys(given) k WHERE k <> ALL (ARRAY['token', 'outcome', 'error', 'output', 'delay', 'final']) LIMIT 1)
  END
$$;
COMMENT ON FUNCTION weir._wrong_with IS 'Why an end that was passed to record is invalid; NULL: it is valid. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.complete(worker integer, token text, output text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  holds record := weir._named_by(ARRAY[complete.token]);
BEGIN
  PERFORM weir._complete(complete.worker, holds.lanes[1], holds.seqs[1], holds.ids[1], complete.output);
END
$$;
COMMENT ON FUNCTION weir.complete IS
  'Records an attempt as completed in the caller''s transaction, with an output of up to 1048576 characters (NULL: none): its effects and the completion commit together. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended: roll back), WR004, 22023. Locks, to the end of the transaction: see _complete. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir.stop(worker integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  after bigint := 0;
BEGIN
  PERFORM weir._check_isolation('stop');
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = stop.worker AND w.fenced) THEN
    LOOP
      after := (SELECT r.next FROM weir._reconcile(stop.worker, '{}', '{}', '{}', '{}', after, 'the worker was stopped') r);
      EXIT WHEN after IS NULL OR clock_timestamp() - now() > interval '1 second';  -- its progress is stored
    END LOOP;
    IF after IS NOT NULL OR NOT weir._fence(stop.worker, 'stopped') THEN
      RETURN false;
    END IF;
  END IF;
  RETURN NOT (SELECT s.more FROM weir._settle(stop.worker) s);
END
$$;
COMMENT ON FUNCTION weir.stop IS
  'Ends a worker. The jobs that it still holds are released immediately, without using up an attempt. Returns false while a call for this worker is still running, or more jobs are left to release: then call it again. It is safe to repeat. Errors: WR001 (the worker is unknown), WR004. Locks: see _reconcile, _fence and _settle. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE PROCEDURE weir.chores()
LANGUAGE plpgsql
AS $$
DECLARE
  chore text;
  again boolean;
BEGIN
  FOREACH chore IN ARRAY ARRAY['promote', 'rescue', 'rotate', 'rotate_history', 'rotate_later', 'rotate_messages', 'resurvey', 'count_minutes', 'tidy', 'fold_arrivals'] LOOP
    -- Each chore has a transaction of its own. A procedure that commits can't be SECURITY DEFINER or have settings, so it runs with the
    -- caller's rights. The first COMMIT refuses to run inside the caller's transaction before anything is done.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;  -- whatever the role's default
    BEGIN
      EXECUTE format('SELECT FROM weir._%s()', chore);
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: %: %', chore, SQLERRM USING ERRCODE = SQLSTATE;
    END;
  END LOOP;
  FOR round IN 1..20 LOOP  -- what has been counted may mean something for other flows
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    BEGIN
      EXECUTE 'SELECT f.again FROM weir._fold_arrivals() f' INTO again;
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: fold_arrivals: %', SQLERRM USING ERRCODE = SQLSTATE;
      again := false;
    END;
    EXIT WHEN again IS NOT TRUE;
  END LOOP;
  FOR round IN 1..5 LOOP  -- each takes a while, for which other chores wait
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    BEGIN
      EXECUTE 'SELECT s.operation IS NOT NULL FROM weir._step_operations() s' INTO again;
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: step_operations: %', SQLERRM USING ERRCODE = SQLSTATE;
      again := false;
    END;
    EXIT WHEN again IS NOT TRUE;
  END LOOP;
END
$$;
COMMENT ON PROCEDURE weir.chores IS
  'Does the maintenance that Go workers do automatically; if none runs, call it about twice a second: CALL weir.chores(). It promotes jobs that are due, rescues the jobs of lost workers, counts what has arrived at flows and, for weir.history, what happens in each minute, does up to 5 steps of operations, reclaims space and tidies. Any number of processes may call it, and none waits for another. An error becomes a warning, and the next call tries again. Errors: 2D000 (not in autocommit: it commits in between). Locks: those of its steps, each until the step commits. Isolation: any; its own transactions are READ COMMITTED.';
