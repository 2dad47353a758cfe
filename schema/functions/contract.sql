-- What a worker in any language speaks: start, take, record, stop; complete, for effects in its own transaction; and chores, where no Go worker
-- runs. Each is one call in autocommit. An attempt goes by a token, which says which batch handed it out.

CREATE OR REPLACE FUNCTION weir.start(name text, queues text[], lease interval DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_array('start', 'queues', start.queues, true);
  IF coalesce(cardinality(start.queues), 0) = 0 THEN
    RAISE EXCEPTION 'weir: a worker needs queues to take jobs from, and got none' USING ERRCODE = '22023', HINT = 'For example ARRAY[''default''].';
  END IF;
  BEGIN
    PERFORM weir._check_cluster();
  EXCEPTION WHEN SQLSTATE 'WR003' THEN
    PERFORM weir.rebase();
  END;
  RETURN weir._start(start.name, start.queues, coalesce(start.lease, '30 seconds'));
END
$$;
COMMENT ON FUNCTION weir.start IS
  'Registers a worker, makes its queues and returns its id. From then on it must call take (or heartbeat) well within its lease, 1 second to 5 minutes (30 seconds where NULL), or its jobs are given to others. A log that has come from another cluster is re-based first: that may take minutes, without a statement_timeout. Errors: 22023; see rebase. Locks: none that others wait for, but where it re-bases. Isolation: any; where it re-bases READ COMMITTED, in autocommit.';

CREATE OR REPLACE FUNCTION weir.take(
  worker integer, queues text[] DEFAULT NULL, limits integer[] DEFAULT NULL, kinds text[] DEFAULT NULL, held text[] DEFAULT NULL,
  lost boolean DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS TABLE (event text, token text, id bigint, queue text, priority integer, kind text, args jsonb, meta jsonb,
               attempt integer, max_attempts integer, enqueued_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  pause    double precision;  -- between two looks, in seconds; NULL: it has not waited yet
  own      record;
  holds    record;          -- what held names
  patience double precision;  -- for how much longer it may wait, in seconds
  began    timestamptz;
  known    record;          -- what was seen before the last claim
  looks    integer;
  slept    text;
  is_full  boolean;
  is_first boolean := true;
  is_done  boolean := false;
  told     bigint[] := '{}';  -- jobs whose cancellation is reported
  after    bigint := 0;
  j        record;
  lanes    integer[] := '{}';  -- jobs that end without being run
  seqs     bigint[]  := '{}';
  ids      bigint[]  := '{}';
  outcomes text[]    := '{}';
  errors   text[]    := '{}';
BEGIN
  PERFORM weir._check_isolation('take'), weir._check_array('take', 'queues', take.queues, true), weir._check_array('take', 'limits', take.limits, true),
          weir._check_array('take', 'kinds', take.kinds, true), weir._check_array('take', 'held', take.held, true), weir._check_worker(take.worker);
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: take was called inside an open transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: it takes locks that would be held until your commit.';
  ELSIF clock_timestamp() - now() > interval '1 second' THEN  -- or the server stood still between two messages
    RAISE EXCEPTION 'weir: take was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: it takes locks that would be held until your commit. If it was, try again.';
  ELSIF take.lost AND take.held IS NULL THEN
    RAISE EXCEPTION 'weir: take was told that an answer was lost, but not what the worker holds'
      USING ERRCODE = '22023', HINT = 'As held, give the tokens of all attempts that it has not recorded; ''{}'' if there are none.';
  END IF;
  SELECT w.lease, w.queues INTO own FROM weir.worker w WHERE w.id = take.worker AND NOT w.fenced;
  take.queues := coalesce(take.queues, own.queues);
  take.limits := coalesce(take.limits, array_fill(1, ARRAY[cardinality(take.queues)]));
  is_full := NOT coalesce(0 < ANY (take.limits), false);
  holds := weir._named_by(take.held);
  -- Not for so long that the server ends the call.
  patience := extract(epoch FROM greatest('0', least(coalesce(take.wait, '1 second'), '1 second', own.lease / 3,
    nullif(current_setting('statement_timeout')::interval, '0') / 2, nullif(current_setting('transaction_timeout', true)::interval, '0') / 2)));

  -- It waits with nothing in its hands: what a block has locked that is rolled back, it lets go of. Else it would keep segments from being
  -- given back, and lanes from others. What has to be written besides is written in a call of its own, so that no lane is held meanwhile.
  BEGIN
    IF weir._beat_if_due(take.worker, own.lease, cardinality(holds.ids)) THEN
      take.lost := take.held IS NOT NULL;
    END IF;
    WHILE take.lost AND after IS NOT NULL LOOP
      after := (SELECT r.next FROM weir._reconcile(take.worker, holds.lanes, holds.seqs, array_fill(1, ARRAY[cardinality(holds.ids)]), holds.ids, after) r);
      EXIT WHEN clock_timestamp() - now() > interval '1 second';  -- how far it came is written down: the rest another time
    END LOOP;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
      RAISE SQLSTATE 'WR099';
    END IF;
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;

  known := weir._watch(0, 0, NULL, NULL);
  LOOP
    FOR id IN SELECT c.id FROM unnest(weir._cancelled_among(holds.ids)) c(id) WHERE c.id <> ALL (told) LOOP
      told := told || id;
      event := 'cancel';
      token := take.held[array_position(holds.ids, id)];
      RETURN NEXT;
      is_done := NOT is_first;  -- what was cancelled before may have been reported before: its handler takes its time
    END LOOP;
    EXIT WHEN is_done OR pg_current_xact_id_if_assigned() IS NOT NULL OR clock_timestamp() - now() > interval '1.8 seconds';  -- claim refuses an old transaction
    is_first := false;

    IF NOT is_full THEN
      BEGIN
        FOR j IN SELECT c.* FROM weir._claim(take.worker, take.queues, take.limits) c LOOP
          IF j.cancelled OR take.kinds IS NOT NULL AND j.kind <> ALL (take.kinds) THEN
            lanes := lanes || j.lane;
            seqs := seqs || j.seq;
            ids := ids || j.id;
            outcomes := outcomes || CASE WHEN j.cancelled THEN 'cancelled' ELSE 'released' END;
            errors := errors || CASE WHEN NOT j.cancelled THEN format('no handler for kind %s', j.kind) END;
          ELSE
            event := 'job';
            token := format('%s.%s.%s', j.lane, j.seq, j.id);
            id := j.id;
            queue := j.queue;
            priority := j.lane % 4 + 1;
            kind := j.kind;
            args := j.args;
            meta := j.meta;
            attempt := j.attempt;
            max_attempts := j.max_attempts;
            enqueued_at := j.enqueued_at;
            RETURN NEXT;
          END IF;
        END LOOP;
        IF ids <> '{}' THEN
          PERFORM weir._record(take.worker, lanes, seqs, array_fill(1, ARRAY[cardinality(ids)]), ids, outcomes, errors, NULL,
                               array_fill('-infinity'::timestamptz, ARRAY[cardinality(ids)]));
        END IF;
        IF pg_current_xact_id_if_assigned() IS NULL THEN
          RAISE SQLSTATE 'WR099';  -- others were faster, in the lanes that it has locked
        END IF;
      EXCEPTION WHEN SQLSTATE 'WR099' THEN
        NULL;
      END;
      EXIT WHEN pg_current_xact_id_if_assigned() IS NOT NULL;
    END IF;

    pause := coalesce(pause, greatest(0.01, least(weir._pause_among(take.queues), patience / 2)));
    LOOP
      looks := floor(patience / pause);
      IF looks < 1 THEN
        RETURN;
      END IF;
      began := clock_timestamp();
      slept := pg_sleep(pause);  -- at least, whatever others enqueue
      j := weir._watch(known.jobs_now, known.control_now, known.seen_now, known.upto_now, looks, pause);
      patience := patience - greatest(pause, extract(epoch FROM clock_timestamp() - began));  -- at least, should the clock step back
      EXIT WHEN j.ended OR j.jobs_now <> known.jobs_now OR j.control_now <> known.control_now;
    END LOOP;
    known := j;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir.take IS
  'The next rows for a worker to act on: event job, an attempt to run and then to record by its token; event cancel, an attempt that it holds (held) whose job was cancelled, to be interrupted. Up to limits[i] of queues[i] (all that the worker was started for, and 1 of each, where NULL; at most 960 of a priority in one call), priority by priority. Jobs of a kind that is not in kinds (NULL: all) are handed back for workers that have a handler, each time for longer. Where there is nothing it waits, for 1 second at most (wait; 0 does not) and half of what statement_timeout allows, and returns no row. It also renews the lease once a third of it has passed, so that two thirds at least are left, from when it was called; and compares what the database takes the worker to hold with held (the tokens of all that it has not recorded): what held does not name is given to others, a few times in a lease, and at once where lost says that the answer of a take got lost; a call that has written for this hands out nothing. One take of a worker at a time. Errors: WR001 (fenced: drop everything and start again), 22023, WR003, WR004, 55000 (the transaction is old: try again). Locks: see _claim and _reconcile. Isolation: READ COMMITTED, in autocommit. While it waits it holds a snapshot, and no lock that others wait for.';

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
  'How long a worker that waits for work of these queues pauses between two looks, in seconds: 10 ms for each worker that shares one of them, so that a fleet looks as often as one worker would; 100 ms at most, for the others may all be busy. Errors: none. Locks: none that others wait for. Isolation: any.';

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
    -- Nothing is written that tells when it was compared last. But what it claimed since then, and when, is known.
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
  'Renews a worker''s lease if a third of it has passed since its last word, by weir.watched, or a rescuer has missed it; and nothing else speaks for it. Tells whether, and so whether it is time to compare what the worker holds; for one that attends it is when something was claimed a third of the lease ago and not compared since. Locks: see heartbeat.';

CREATE OR REPLACE FUNCTION weir._named_by(tokens text[], OUT lanes integer[], OUT seqs bigint[], OUT ids bigint[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  wrong text;
BEGIN
  SELECT t INTO wrong FROM unnest(_named_by.tokens) t WHERE NOT weir._is_token(t) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % is not a token', quote_literal(left(wrong, 100)) USING ERRCODE = '22023', HINT = 'Give tokens as weir.take has returned them.';
  END IF;
  SELECT coalesce(array_agg(split_part(t, '.', 1)::integer ORDER BY nr), '{}'), coalesce(array_agg(split_part(t, '.', 2)::bigint ORDER BY nr), '{}'),
         coalesce(array_agg(split_part(t, '.', 3)::bigint ORDER BY nr), '{}')
    INTO lanes, seqs, ids
  FROM unnest(_named_by.tokens) WITH ORDINALITY u(t, nr);
END
$$;
COMMENT ON FUNCTION weir._named_by IS 'What tokens stand for, in their order: lane, batch and job. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._is_token(token text) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE WHEN _is_token.token ~ '^[0-9]{1,10}[.][0-9]{1,18}[.][0-9]{1,18}$' THEN split_part(_is_token.token, '.', 1)::bigint < 2147483648 ELSE false END
$$;
COMMENT ON FUNCTION weir._is_token IS 'Whether a text has a token''s form. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.record(worker integer, ends text) RETURNS TABLE (token text, refusal text, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 64;  -- MiB; what is made of it takes eight times as much memory
  given jsonb;
BEGIN
  IF octet_length(record.ends) > most * 1048576 THEN
    RAISE EXCEPTION 'weir: record takes at most % MiB at once, got %', most, pg_size_pretty(octet_length(record.ends)::bigint)
      USING ERRCODE = '22023', HINT = 'Record the ends in several calls, or keep large outputs elsewhere.';
  END IF;
  given := weir._jsonb_of(record.ends);
  IF jsonb_typeof(given) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'weir: record takes a JSON array of ends, got %', coalesce('a JSON ' || jsonb_typeof(given), 'null')
      USING ERRCODE = '22023', HINT = 'For example [{"token": "…", "outcome": "completed"}].';
  ELSIF jsonb_array_length(given) > 10000 THEN
    RAISE EXCEPTION 'weir: record takes at most 10000 ends at once, got %', jsonb_array_length(given) USING ERRCODE = '22023', HINT = 'Record them in several calls.';
  END IF;
  RETURN QUERY SELECT e.value ->> 'token', 'invalid', weir._wrong_with(e.value) FROM jsonb_array_elements(given) e WHERE weir._wrong_with(e.value) IS NOT NULL;
  RETURN QUERY
  WITH ends AS MATERIALIZED (
    SELECT e.value ->> 'token' AS token, row_number() OVER (ORDER BY p.lane, p.seq, e.ordinality) AS place, p.*,
           CASE WHEN e.value ->> 'outcome' = 'failed' AND (e.value ->> 'final')::boolean IS NOT TRUE THEN 'retried' ELSE coalesce(e.value ->> 'outcome', 'completed') END AS outcome,
           e.value ->> 'error' AS error, e.value ->> 'output' AS output,
           coalesce(now() + round((e.value ->> 'delay')::numeric, 6)::double precision * interval '1 second', '-infinity') AS run_at
    FROM jsonb_array_elements(given) WITH ORDINALITY e
    CROSS JOIN LATERAL (SELECT n.lanes[1] AS lane, n.seqs[1] AS seq, n.ids[1] AS id FROM weir._named_by(ARRAY[e.value ->> 'token']) n OFFSET 0) p
    WHERE weir._wrong_with(e.value) IS NULL
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
  JOIN ends k ON k.place = r.place;
END
$$;
COMMENT ON FUNCTION weir.record IS
  'Records how attempts ended, many at once, each judged by itself: ends is a JSON array (as text, of at most 10000, and 64 MiB) of objects with a token; the outcome: completed (the default); failed: tried again while attempts are left, and, with "final": true, not; cancelled; or, without using up the attempt, snoozed (the job asked for it) or released (this worker can''t run it); error and output, texts that are kept; and delay, in seconds, of the next try (NULL: the queue''s backoff, see weir.set). Returns those that were not recorded: ended (the attempt has an end already: so the call may be repeated), lost (it is not this worker''s any more: drop it), busy (a transaction that completes it is open: record it again later) or invalid (with the detail: record it as failed, for it is held still, and runs again when it no longer is). Characters that PostgreSQL can''t keep become U+FFFD. Errors: 22023, 22P02 (no JSON), WR001 (fenced), WR004. Locks: see _record. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._jsonb_of(given text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN given::jsonb;
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
  -- NUL, and halves of a surrogate pair: escapes that JSON has and PostgreSQL's text has not. An escaped backslash before them is none.
  RETURN regexp_replace(regexp_replace(given,
    '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2}))', '\1\\ufffd', 'g'),
    '(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(?<!\\)((?:\\\\)*)\\u[dD][c-fC-F][0-9a-fA-F]{2}', '\1\\ufffd', 'g')::jsonb;
END
$$;
COMMENT ON FUNCTION weir._jsonb_of IS 'A JSON text, with U+FFFD for escaped characters that PostgreSQL can''t keep, as they come in error messages. Errors: 22P02. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._wrong_with(given jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT CASE
    WHEN jsonb_typeof(given) <> 'object' THEN format('an end is a JSON object, not a JSON %s', jsonb_typeof(given))
    WHEN weir._is_token(given ->> 'token') IS NOT TRUE THEN format('%s is not a token: give it as weir.take has returned it', coalesce(left((given -> 'token')::text, 100), 'null'))
    WHEN given ->> 'outcome' <> ALL (ARRAY['completed', 'failed', 'cancelled', 'snoozed', 'released'])
      THEN format('an attempt ends as completed, failed, cancelled, snoozed or released, not as %s', left(given ->> 'outcome', 100))
    WHEN jsonb_typeof(given -> 'delay') NOT IN ('number', 'null') OR (given ->> 'delay')::numeric NOT BETWEEN 0 AND 315576000
      THEN format('a delay is a number of seconds from 0 to 315576000 (ten years), not %s', left((given -> 'delay')::text, 100))
    WHEN jsonb_typeof(given -> 'final') NOT IN ('boolean', 'null') THEN format('final is true or false, not %s', left((given -> 'final')::text, 100))
    ELSE (SELECT format('an end has no field %s: there are token, outcome, error, output, delay and final', quote_ident(left(k, 100)))
          FROM jsonb_object_keys(given) k WHERE k <> ALL (ARRAY['token', 'outcome', 'error', 'output', 'delay', 'final']) LIMIT 1)
  END
$$;
COMMENT ON FUNCTION weir._wrong_with IS 'What is wrong with an end that record was given; NULL: nothing. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.complete(worker integer, token text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  holds record := weir._named_by(ARRAY[complete.token]);
BEGIN
  PERFORM weir._complete(complete.worker, holds.lanes[1], holds.seqs[1], holds.ids[1]);
END
$$;
COMMENT ON FUNCTION weir.complete IS
  'Records an attempt as completed in a transaction of the caller''s: effects and completion commit together. The transaction may stay open: if the worker is fenced meanwhile, the attempt is handed out again when it has rolled back, and has ended when it commits. Errors: WR001 (fenced), WR002 (the attempt is not this worker''s, or has ended: roll back), WR004, 22023. Locks, to the end of the transaction: see _complete. Isolation: READ COMMITTED. Commits synchronously.';

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
      after := (SELECT r.next FROM weir._reconcile(stop.worker, '{}', '{}', '{}', '{}', after) r);
      EXIT WHEN after IS NULL OR clock_timestamp() - now() > interval '1 second';  -- how far it came is written down
    END LOOP;
    IF after IS NOT NULL OR NOT weir._fence(stop.worker, 'stopped') THEN
      RETURN false;
    END IF;
  END IF;
  RETURN NOT (SELECT s.more FROM weir._settle(stop.worker) s);
END
$$;
COMMENT ON FUNCTION weir.stop IS
  'Ends a worker. What it holds still is handed to others at once, and the attempt is not used up. False while a call of the worker''s is under way, or there is more to hand over: call it again. May be repeated. Errors: WR001 (unknown), WR004. Locks: see _reconcile, _fence and _settle. Isolation: READ COMMITTED, in autocommit.';

CREATE OR REPLACE PROCEDURE weir.chores()
LANGUAGE plpgsql
AS $$
DECLARE
  chore text;
BEGIN
  FOREACH chore IN ARRAY ARRAY['promote', 'rescue', 'rotate', 'rotate_later', 'rotate_messages', 'resurvey', 'tidy'] LOOP
    -- Each in a transaction of its own, which COMMIT allows neither a SECURITY DEFINER nor one with settings: so it runs with its caller's rights.
    -- Before the first, for it refuses a transaction of the caller's before anything is done.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;  -- whatever the role's own taste
    BEGIN
      EXECUTE format('SELECT FROM weir._%s()', chore);
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: %: %', chore, SQLERRM USING ERRCODE = SQLSTATE;
    END;
  END LOOP;
END
$$;
COMMENT ON PROCEDURE weir.chores IS
  'What must be done about twice a second where no Go worker runs: CALL weir.chores(). Promotes jobs whose time has come, gives the jobs of lost workers to others, gives back space, tidies. Any number of processes may call it, and none waits for another. What goes wrong is a warning, and the next call tries again. It commits in between, so call it in autocommit (2D000 otherwise). Isolation: any, for its own are READ COMMITTED.';
