-- The ends of attempts, which workers record.
--
-- An attempt ends once. A function that writes an end first checks that there is none, so functions that could write at the same time exclude
-- each other: record, reconcile and settle for one worker by the lock of the worker's ends; a completion in a handler's own transaction, which
-- may stay open for any time, by a lock on its attempt alone. The former functions skip such an attempt, and process the others.

CREATE OR REPLACE FUNCTION weir._hold_segments(worker integer, lanes bigint[], seqs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  segments integer[];
  held     integer[] := '{}';
  s        integer;
BEGIN
  LOOP
    BEGIN
      SELECT array_agg(DISTINCT b.segment::integer ORDER BY b.segment::integer) INTO segments
      FROM unnest(_hold_segments.lanes, _hold_segments.seqs) i(lane, seq)
      JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _hold_segments.worker;  -- worded so that the index on (lane, seq) is used
      RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
    EXCEPTION WHEN SQLSTATE 'WR099' THEN
      EXIT WHEN segments IS NULL OR segments <@ held;
    END;
    FOREACH s IN ARRAY segments LOOP
      PERFORM pg_advisory_xact_lock_shared(1464158549, s);
    END LOOP;
    held := held || segments;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._hold_segments IS
  'Prevents a worker''s batches from being carried into other segments, to the end of the transaction. A result is written to the segment of its batch: that segment''s lock, shared, keeps it from being reclaimed. The batches are looked up again under the lock, because they may have been carried before it was held.';

CREATE OR REPLACE FUNCTION weir._record(
  worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[],
  outcomes text[] DEFAULT NULL, errors text[] DEFAULT NULL, outputs text[] DEFAULT NULL, run_at timestamptz[] DEFAULT NULL)
RETURNS TABLE (place integer, refusal text, detail text, outcome text)
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
  has_ended CONSTANT text := 'the attempt has already ended: drop this end';
  n         integer := coalesce(cardinality(_record.ids), 0);
  is_plain  boolean := _record.outcomes IS NULL AND _record.errors IS NULL AND _record.outputs IS NULL;
  lasts     integer[];   -- the place of each batch's last id
  whole     integer[];   -- batches all of whose ids are accepted, and their segments
  whole_in  smallint[];
  gates     integer[];   -- of the whole ones, and of the others job by job; NULL: the queue has no limits
  gates_of  integer[];
  lanes_of  bigint[];    -- those of jobs with keys
  has_members boolean;   -- a whole one has members of flows
  rest      integer[];   -- batches that are checked job by job
  batch_of  integer[];   -- for these: each job's batch, and its place
  places    integer[];
  segments  smallint[];
  refusals  text[];
  details   text[];
  held_open integer[];
  found     record;      -- those that have ended
  judged    record;      -- by a retry rule
  ruled     text[] := '{}';
BEGIN
  PERFORM weir._check_array('record', 'lanes', _record.lanes, true), weir._check_array('record', 'seqs', _record.seqs, true),
          weir._check_array('record', 'sizes', _record.sizes, true), weir._check_array('record', 'ids', _record.ids, true);
  IF NOT is_plain OR _record.run_at IS NOT NULL THEN
    PERFORM weir._check_array('record', 'outcomes', _record.outcomes), weir._check_array('record', 'errors', _record.errors),
            weir._check_array('record', 'outputs', _record.outputs), weir._check_array('record', 'run_at', _record.run_at);
  END IF;
  IF cardinality(_record.lanes) IS DISTINCT FROM cardinality(_record.seqs) OR cardinality(_record.lanes) IS DISTINCT FROM cardinality(_record.sizes) THEN
    RAISE EXCEPTION 'weir: record got % lanes, % seqs and % sizes', cardinality(_record.lanes), cardinality(_record.seqs), cardinality(_record.sizes)
      USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM unnest(_record.sizes) k(size) WHERE k.size < 0)
     OR coalesce((SELECT sum(k.size) FROM unnest(_record.sizes) k(size)), 0) <> n THEN
    RAISE EXCEPTION 'weir: record got % ids, but sizes that add up to %', n, (SELECT sum(k.size) FROM unnest(_record.sizes) k(size)) USING ERRCODE = '22023';
  ELSIF n > 10000 THEN
    RAISE EXCEPTION 'weir: record takes at most 10000 attempts at once, got %', n USING ERRCODE = '22023', HINT = 'Record them in several calls.';
  ELSIF n <> ANY (ARRAY[coalesce(cardinality(_record.outcomes), n), coalesce(cardinality(_record.errors), n),
                        coalesce(cardinality(_record.outputs), n), coalesce(cardinality(_record.run_at), n)]) THEN
    RAISE EXCEPTION 'weir: record got % ids, % outcomes, % errors, % outputs and % run_at', n, cardinality(_record.outcomes),
      cardinality(_record.errors), cardinality(_record.outputs), cardinality(_record.run_at) USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('record'), weir._hold_briefly(), weir._commit_synchronously();
  -- Workers pass what their handlers' own transactions have ended, to learn whether these were committed. They usually were, which needs no locks: no end is ever taken back.
  IF NOT is_plain AND n > 0 AND EXISTS (SELECT FROM weir._ends_of(_record.worker, _record.lanes[1:1], _record.seqs[1:1], ARRAY[1], _record.ids[1:1])) THEN
    SELECT array_agg(e.place) AS places, array_agg(e.outcome) AS outcomes INTO found FROM weir._ends_of(_record.worker, _record.lanes, _record.seqs, _record.sizes, _record.ids) e;
    IF cardinality(found.places) = n THEN
      PERFORM weir._check_worker(_record.worker);
      RETURN QUERY SELECT e.place, 'ended', has_ended, e.outcome FROM unnest(found.places, found.outcomes) e(place, outcome) ORDER BY e.place;
      RETURN;
    END IF;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158548, _record.worker);
  PERFORM weir._check_worker(_record.worker);
  IF n = 0 THEN
    RETURN;
  END IF;
  PERFORM weir._hold_segments(_record.worker, _record.lanes, _record.seqs);
  held_open := weir._hold_ends(_record.worker);
  lasts := ARRAY(SELECT sum(k.size) OVER (ORDER BY k.nr) FROM unnest(_record.sizes) WITH ORDINALITY k(size, nr) ORDER BY k.nr);

  BEGIN
    -- Usually everything is accepted, which is checked a batch at a time: each id is a job of the batch, occurs once, and has no end.
    IF held_open = '{}' THEN
      SELECT array_agg(i.nr), array_agg(b.segment), array_agg(b.gate), bool_or(b.flows IS NOT NULL) INTO whole, whole_in, gates, has_members
      FROM (SELECT k.nr, k.lane, k.seq, _record.ids[k.last - k.size + 1 : k.last] AS ids, count(*) OVER (PARTITION BY k.lane, k.seq) AS times
            FROM unnest(_record.lanes, _record.seqs, _record.sizes, lasts) WITH ORDINALITY k(lane, seq, size, last, nr) WHERE k.size > 0) i
      JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _record.worker
      WHERE i.times = 1
        AND (i.ids = b.ids OR NOT EXISTS (SELECT unnest(i.ids) EXCEPT ALL SELECT unnest(b.ids)))
        AND NOT EXISTS (SELECT FROM (SELECT unnest(i.ids) INTERSECT
                                     SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = i.lane AND r.seq = i.seq) e);
    END IF;
    rest := ARRAY(SELECT k.nr FROM unnest(_record.sizes) WITH ORDINALITY k(size, nr) WHERE k.size > 0 EXCEPT SELECT unnest(whole) ORDER BY 1);
    IF rest <> '{}' THEN
      SELECT array_agg(k.nr ORDER BY k.place), array_agg(k.place ORDER BY k.place) INTO batch_of, places
      FROM (SELECT r.nr, generate_series(lasts[r.nr] - _record.sizes[r.nr] + 1, lasts[r.nr]) AS place FROM unnest(rest) r(nr)) k;
      -- Each id may be passed, in the batch, and ended already: these facts are grouped instead of joined, so that no plan is quadratic.
      SELECT array_agg(v.segment ORDER BY v.place), array_agg(v.refusal ORDER BY v.place), array_agg(v.gate ORDER BY v.place), array_agg(v.job_lane ORDER BY v.place)
        INTO segments, refusals, gates_of, lanes_of
      FROM (
        SELECT p.place, u.segment, u.gate, u.job_lane,
               CASE WHEN u.segment IS NULL THEN 'lost'
                    WHEN u.ended OR p.nth > 1 THEN 'ended'
                    WHEN hashint8(u.id) = ANY (held_open) THEN 'busy' END AS refusal
        FROM (
          SELECT a.lane, a.seq, a.id, array_agg(a.place ORDER BY a.place) FILTER (WHERE a.place IS NOT NULL) AS places, max(a.segment) AS segment, max(a.gate) AS gate, max(a.job_lane) AS job_lane, bool_or(a.ended) AS ended
          FROM (
            SELECT _record.lanes[g.nr] AS lane, _record.seqs[g.nr] AS seq, _record.ids[g.place] AS id, g.place, NULL::smallint AS segment, NULL::integer AS gate, NULL::bigint AS job_lane, false AS ended
            FROM unnest(batch_of, places) g(nr, place)
            UNION ALL
            SELECT b.lane, b.seq, m.id, NULL, m.segment, b.gate, m.job_lane, m.ended
            FROM (SELECT DISTINCT _record.lanes[r.nr] AS lane, _record.seqs[r.nr] AS seq FROM unnest(rest) r(nr)) i
            JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _record.worker
            CROSS JOIN LATERAL (
              SELECT m.id, b.segment, m.lane AS job_lane, false AS ended FROM unnest(b.ids, b.lanes) m(id, lane)
              UNION ALL
              SELECT x.id, NULL, NULL, true FROM weir.result r CROSS JOIN unnest(r.ids) x(id)
              WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) m) a
          GROUP BY a.lane, a.seq, a.id) u
        CROSS JOIN LATERAL unnest(u.places) WITH ORDINALITY p(place, nth)) v;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
  EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- a code that ends in 000 would catch its whole class
    NULL;
  END;

  IF is_plain THEN
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
    SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), 'completed',
           _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]
    FROM unnest(whole, whole_in) k(nr, segment);
    IF rest <> '{}' THEN
      INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
      SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), 'completed', array_agg(_record.ids[k.place])
      FROM unnest(batch_of, places, segments, refusals) k(nr, place, segment, refusal)
      WHERE k.refusal IS NULL
      GROUP BY k.nr, k.segment;
    END IF;
    IF has_members OR rest <> '{}' THEN
      PERFORM weir._end_members(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), NULL) FROM (
        SELECT k.nr, i.id FROM unnest(whole) k(nr) CROSS JOIN LATERAL unnest(_record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) i(id)
        UNION ALL
        SELECT k.nr, _record.ids[k.place] FROM unnest(batch_of, places, refusals) k(nr, place, refusal) WHERE k.refusal IS NULL) k;
    END IF;
    IF array_remove(gates || gates_of, NULL) <> '{}' THEN
      PERFORM weir._free_slots(array_agg(k.gate), array_agg(k.n), array_agg(k.lane)) FROM (
        SELECT k.gate, _record.sizes[k.nr] AS n, NULL::bigint AS lane FROM unnest(whole, gates) k(nr, gate) WHERE _record.lanes[k.nr] & 4 = 0
        UNION ALL
        SELECT k.gate, 1, l.lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
        CROSS JOIN LATERAL weir._lanes_in(_record.lanes[k.nr], _record.seqs[k.nr], k.segment, _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) l(lane)
        WHERE _record.lanes[k.nr] & 4 <> 0 AND k.gate IS NOT NULL
        UNION ALL
        SELECT k.gate, 1, k.lane FROM unnest(gates_of, refusals, lanes_of) k(gate, refusal, lane) WHERE k.refusal IS NULL) k;
    END IF;
  ELSE
    -- From here on places contains all places, in order. Invalid ends are refused, too.
    SELECT array_agg(k.nr ORDER BY k.place), array_agg(k.place ORDER BY k.place), array_agg(k.segment ORDER BY k.place), array_agg(k.refusal ORDER BY k.place),
           array_agg(k.gate ORDER BY k.place), array_agg(k.job_lane ORDER BY k.place)
      INTO batch_of, places, segments, refusals, gates_of, lanes_of
    FROM (
      SELECT k.nr, p.place, k.segment, NULL::text AS refusal, k.gate, NULL::bigint AS job_lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
      CROSS JOIN LATERAL generate_series(lasts[k.nr] - _record.sizes[k.nr] + 1, lasts[k.nr]) p(place)
      WHERE _record.lanes[k.nr] & 4 = 0
      UNION ALL
      SELECT k.nr, lasts[k.nr] - _record.sizes[k.nr] + p.nr, k.segment, NULL, k.gate, p.lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
      CROSS JOIN LATERAL weir._lanes_in(_record.lanes[k.nr], _record.seqs[k.nr], k.segment, _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) WITH ORDINALITY p(lane, nr)
      WHERE _record.lanes[k.nr] & 4 <> 0
      UNION ALL
      SELECT k.* FROM unnest(batch_of, places, segments, refusals, gates_of, lanes_of) k) k;
    SELECT array_agg(coalesce(k.refusal, CASE WHEN k.why IS NOT NULL THEN 'invalid' END) ORDER BY k.place), array_agg(k.why ORDER BY k.place)
      INTO refusals, details
    FROM (
      SELECT u.place, u.refusal,
             CASE WHEN coalesce(u.outcome, 'completed') <> ALL (ARRAY['completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released'])
                  THEN format('outcome must be completed, failed, cancelled, retried, snoozed or released, got %s', left(u.outcome, 100))
                  WHEN length(u.output) > 1048576
                  THEN format('output too large: %s characters, at most 1048576 are allowed', length(u.output))
                  WHEN u.run_at >= '10000-01-01 00:00:00+00' THEN format('run_at is %s: a job can be scheduled up to the year 9999', u.run_at) END AS why
      FROM unnest(refusals, _record.outcomes, _record.outputs, _record.run_at) WITH ORDINALITY u(refusal, outcome, output, run_at, place)) k;
    IF _record.outcomes && ARRAY['retried'] AND _record.run_at && ARRAY['-infinity'::timestamptz] AND EXISTS (SELECT FROM weir.retry_rule) THEN
      FOR judged IN
        SELECT r.* FROM (
          SELECT array_agg(k.place::integer) AS places, array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments,
                 array_agg(k.id) AS ids, array_agg(k.error) AS errors
          FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.run_at)
               WITH ORDINALITY k(nr, segment, id, refusal, outcome, error, run_at, place)
          WHERE k.refusal IS NULL AND k.outcome = 'retried' AND k.run_at = '-infinity') e
        CROSS JOIN LATERAL weir._judged(e.places, e.lanes, e.seqs, e.segments, e.ids, e.errors) r
      LOOP
        outcomes[judged.place] := judged.outcome;
        run_at[judged.place] := judged.run_at;
        IF judged.outcome <> 'retried' THEN
          ruled[judged.place] := judged.outcome;
          CONTINUE WHEN errors IS NULL;
          errors[judged.place] := left(errors[judged.place], 65000) || format(E'\n[%s by retry rule %s]', judged.outcome, quote_ident(judged.rule));
        END IF;
      END LOOP;
    END IF;
    -- Final ends are written directly; an end that is followed by another attempt needs the job's row.
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors, outputs)
    SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), k.outcome, array_agg(k.id),
           CASE WHEN count(k.error) > 0 THEN array_agg(left(k.error, 65536)) END, CASE WHEN count(k.output) > 0 THEN array_agg(k.output) END
    FROM (
      SELECT u.nr, u.segment, u.id, coalesce(u.outcome, 'completed')::weir.outcome AS outcome, u.error, u.output,
             CASE WHEN length(u.error) > 2000 OR length(u.output) > 2000 THEN u.id END AS alone  -- as in weir._end_attempts
      FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs) u(nr, segment, id, refusal, outcome, error, output)
      WHERE u.refusal IS NULL AND coalesce(u.outcome, 'completed') IN ('completed', 'failed', 'cancelled')) k
    GROUP BY k.nr, k.segment, k.outcome, k.alone;
    IF has_members OR rest <> '{}' THEN
      PERFORM weir._end_members(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), array_agg(k.outcome))
      FROM (SELECT u.nr, u.id, coalesce(u.outcome, 'completed') AS outcome FROM unnest(batch_of, _record.ids, refusals, _record.outcomes) u(nr, id, refusal, outcome) WHERE u.refusal IS NULL) k
      WHERE k.outcome IN ('completed', 'failed', 'cancelled');
      PERFORM weir._keep_outputs(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), array_agg(k.output))
      FROM unnest(batch_of, _record.ids, refusals, _record.outcomes, _record.outputs) k(nr, id, refusal, outcome, output)
      WHERE k.refusal IS NULL AND coalesce(k.outcome, 'completed') = 'completed' AND k.output IS NOT NULL HAVING count(*) > 0;
    END IF;
    IF array_remove(gates_of, NULL) <> '{}' THEN
      PERFORM weir._free_slots(array_agg(k.gate), array_agg(1), array_agg(k.lane)) FROM unnest(gates_of, refusals, _record.outcomes, lanes_of) k(gate, refusal, outcome, lane)
      WHERE k.refusal IS NULL AND coalesce(k.outcome, 'completed') IN ('completed', 'failed', 'cancelled');
    END IF;
    IF _record.outcomes && ARRAY['failed'] THEN
      PERFORM weir._keep_failures(_record.worker, e.lanes, e.seqs, e.segments, e.ids, e.errors, e.outputs)
      FROM (
        SELECT array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments, array_agg(k.id) AS ids,
               array_agg(k.error) AS errors, array_agg(k.output) AS outputs
        FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs) k(nr, segment, id, refusal, outcome, error, output)
        WHERE k.refusal IS NULL AND k.outcome = 'failed') e
      WHERE e.ids IS NOT NULL;
    END IF;
    IF _record.outcomes && ARRAY['retried', 'snoozed', 'released'] THEN
      PERFORM weir._end_attempts(_record.worker, e.lanes, e.seqs, e.segments, e.ids, e.outcomes, e.errors, e.outputs, e.run_at)
      FROM (
        SELECT array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments, array_agg(k.id) AS ids,
               array_agg(k.outcome::weir.outcome) AS outcomes, array_agg(k.error) AS errors, array_agg(k.output) AS outputs, array_agg(k.run_at) AS run_at
        FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs, _record.run_at)
          k(nr, segment, id, refusal, outcome, error, output, run_at)
        WHERE k.refusal IS NULL AND k.outcome IN ('retried', 'snoozed', 'released')) e
      WHERE e.ids IS NOT NULL;
    END IF;
  END IF;
  IF places IS NOT NULL THEN  -- else all is accepted
    RETURN QUERY SELECT k.place, k.refusal, CASE k.refusal
        WHEN 'ended' THEN has_ended
        WHEN 'lost' THEN format('worker %s does not hold this attempt, because the claim was lost in a crash or the job was claimed again: drop this end', _record.worker)
        WHEN 'busy' THEN 'an open transaction completes the job, or sets its checkpoint: record this end again after it has ended'
        ELSE k.detail END,
        CASE WHEN k.refusal IS NULL THEN ruled[k.place]
             WHEN k.refusal = 'ended' THEN (SELECT r.outcome::text FROM weir.result r WHERE r.lane = _record.lanes[k.nr] AND r.seq = _record.seqs[k.nr] AND _record.ids[k.place] = ANY (r.ids) LIMIT 1) END
      FROM unnest(places, batch_of, refusals, details) k(place, nr, refusal, detail) WHERE k.refusal IS NOT NULL OR ruled[k.place] IS NOT NULL ORDER BY k.place;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._record IS
  'Records how attempts ended, many at once, and accepts or refuses each on its own. lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs. outcomes (NULL: completed), errors, outputs and run_at (when the next attempt is due, after retried, snoozed or released; NULL: immediately; -infinity: after the queue''s backoff) are parallel to ids. After retried with run_at -infinity, a retry rule may decide on something else: see weir.set_retry_rule. Returns a row for each end that was recorded as such, with the outcome, and for each end that was not recorded, with its place in ids: ended (the attempt has already ended, as outcome says, so it is safe to repeat a call), lost (it does not belong to this worker, because the claim was lost in a crash or the job was claimed again: drop it), busy (an open transaction of its handler completes it, or sets its checkpoint: record it again later) or invalid; detail says what is wrong and what to do. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and the segments (shared), the worker''s ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._ends_of(worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[]) RETURNS TABLE (place integer, outcome text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off  -- where there is another way: both sides have hundreds of rows, which no planner knows
SET enable_hashjoin = on
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT k.place, x.outcome
  FROM (SELECT b.lane, b.seq, _ends_of.ids[p] AS id, p AS place
        FROM (SELECT k.lane, k.seq, k.size, sum(k.size) OVER (ORDER BY k.nr)::integer AS last FROM unnest(_ends_of.lanes, _ends_of.seqs, _ends_of.sizes) WITH ORDINALITY k(lane, seq, size, nr)) b
        CROSS JOIN LATERAL generate_series(b.last - b.size + 1, b.last) p) k
  JOIN (SELECT DISTINCT ON (b.lane, b.seq, r.id) b.lane, b.seq, r.id, r.outcome
        FROM (SELECT DISTINCT k.lane, k.seq FROM unnest(_ends_of.lanes, _ends_of.seqs) k(lane, seq)) i
        CROSS JOIN LATERAL (SELECT b.lane, b.seq, b.segment FROM weir.batch b WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _ends_of.worker OFFSET 0) b
        CROSS JOIN LATERAL (SELECT unnest(r.ids) AS id, r.outcome::text FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq OFFSET 0) r) x
    ON x.lane = k.lane AND x.seq = k.seq AND x.id = k.id;
END
$$;
COMMENT ON FUNCTION weir._ends_of IS 'Which of some attempts of a worker have ended, and how: passed as to _record, returned by their places in ids. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._lanes_in(lane bigint, seq bigint, segment smallint, ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE  -- in SQL, it would be planned again by each transaction
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off  -- both sides have hundreds of rows, which no planner knows
AS $$
BEGIN
  RETURN QUERY
  SELECT k.lane FROM (
    SELECT u.id, u.lane FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) u(id, lane)
    WHERE b.segment = _lanes_in.segment AND b.lane = _lanes_in.lane AND b.seq = _lanes_in.seq) k
  JOIN unnest(_lanes_in.ids) WITH ORDINALITY u(id, nr) ON u.id = k.id ORDER BY u.nr;
END
$$;
COMMENT ON FUNCTION weir._lanes_in IS 'The lanes of jobs with keys, which are in one row of a batch, in the order of the ids. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._hold_ends(worker integer) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(1464158550, _hold_ends.worker);
  IF pg_try_advisory_xact_lock(1464158553, _hold_ends.worker) THEN
    RETURN '{}';
  END IF;
  RETURN weir._being_completed();
END
$$;
COMMENT ON FUNCTION weir._hold_ends IS
  'Prevents other transactions from ending attempts of the worker, to the end of this one, except those returned: hashes of the ids of jobs that are being completed in open transactions. Locks: advisory: the worker''s ends (exclusive), its open completions (exclusive, tried).';

CREATE OR REPLACE FUNCTION weir._being_completed() RETURNS integer[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- Every such transaction takes its attempt's lock, then waits for the lock of the worker's ends, and then checks for an end.
  SELECT ARRAY(SELECT weir._held(1464158551, 'ExclusiveLock'))
$$;
COMMENT ON FUNCTION weir._being_completed IS 'Hashes of the ids of jobs that are being completed in open transactions, or whose checkpoint is set there, including prepared ones.';

CREATE OR REPLACE FUNCTION weir._hold_attempt(what text, worker integer, lane bigint, seq bigint, id bigint, OUT in_segment smallint, OUT in_gate integer, OUT in_lane bigint, OUT in_flow bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  -- The segment that is locked against reclaiming. A job that was just enqueued, like its batch, is in the active one: then one look is enough.
  held      smallint := pg_sequence_last_value('weir.active_job');
  has_ended boolean;
BEGIN
  PERFORM weir._check_isolation(_hold_attempt.what, true), weir._commit_synchronously();
  -- The locks that are kept after this call concern only this attempt: fencing and settling the worker doesn't wait for them.
  PERFORM pg_advisory_xact_lock(1464158551, hashint8(_hold_attempt.id)), pg_advisory_xact_lock_shared(1464158553, _hold_attempt.worker), pg_advisory_xact_lock_shared(1464158549, held);
  LOOP
    BEGIN
      -- A concurrent record or settle may have checked before it could see this transaction's lock: wait for it, then see what it has
      -- written. A fence that is not visible here comes later, and settling after it sees the attempt's lock.
      PERFORM pg_advisory_xact_lock_shared(1464158550, _hold_attempt.worker);
      PERFORM weir._check_worker(_hold_attempt.worker);
      in_segment := NULL;
      SELECT b.segment, EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq AND _hold_attempt.id = ANY (r.ids)), b.gate,
             b.lanes[array_position(b.ids, _hold_attempt.id)], CASE WHEN b.flows IS NOT NULL THEN b.flows[CASE WHEN cardinality(b.flows) = 1 THEN 1 ELSE array_position(b.ids, _hold_attempt.id) END] END
        INTO in_segment, has_ended, in_gate, in_lane, in_flow
      FROM weir.batch b
      WHERE b.lane = _hold_attempt.lane AND b.seq = _hold_attempt.seq AND b.worker IS NOT DISTINCT FROM _hold_attempt.worker AND _hold_attempt.id = ANY (b.ids);
      RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
    EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- a code that ends in 000 would catch its whole class
      EXIT WHEN in_segment IS NULL OR in_segment = held;
    END;
    -- Check again under a lock that prevents the batch from being carried into another segment.
    PERFORM pg_advisory_xact_lock_shared(1464158549, in_segment);
    held := in_segment;
  END LOOP;
  IF in_segment IS NULL THEN
    RAISE EXCEPTION 'weir: worker % does not hold job % (lane %, batch %)', _hold_attempt.worker, _hold_attempt.id, _hold_attempt.lane, _hold_attempt.seq
      USING ERRCODE = 'WR002', HINT = 'Roll back: its claim was lost in a crash of the server, or the job was claimed again.';
  ELSIF has_ended THEN
    RAISE EXCEPTION 'weir: the attempt of job % has already ended', _hold_attempt.id USING ERRCODE = 'WR002', HINT = 'Roll back, and drop the attempt.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._hold_attempt IS
  'Lets an attempt not end, nor be followed by another one, before the caller''s transaction has ended, unless in this transaction; returns its batch''s segment and gate, the lane of its job if it has a key, and its flow. The transaction may stay open: if the worker is fenced in the meantime, the attempt is followed after the transaction''s end. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended), WR004. Locks, to the end of the transaction: advisory: the worker''s open completions, the segment, and the one that is active now (shared), the attempt (exclusive). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._complete(worker integer, lane bigint, seq bigint, id bigint, output text DEFAULT NULL, counts jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
  held record := weir._hold_attempt('complete', _complete.worker, _complete.lane, _complete.seq, _complete.id);
BEGIN
  IF length(_complete.output) > 1048576 THEN
    RAISE EXCEPTION 'weir: output too large: % characters, at most 1048576 are allowed', length(_complete.output) USING ERRCODE = '22023';
  END IF;
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, outputs)
  VALUES (_complete.lane, held.in_segment, _complete.worker, _complete.seq, clock_timestamp(), 'completed', ARRAY[_complete.id], CASE WHEN _complete.output IS NOT NULL THEN ARRAY[_complete.output] END);
  IF held.in_gate IS NOT NULL THEN
    PERFORM weir._free_slots(ARRAY[held.in_gate], ARRAY[1], ARRAY[held.in_lane]);
  END IF;
  IF held.in_flow IS NOT NULL THEN
    IF _complete.counts IS NOT NULL THEN
      PERFORM weir._check_counts(held.in_flow, _complete.counts);
    END IF;
    PERFORM weir._arrive(held.in_flow, 'completed', 1, counts => _complete.counts);
    IF _complete.output IS NOT NULL THEN
      PERFORM weir._keep_outputs(ARRAY[_complete.lane], ARRAY[_complete.seq], ARRAY[_complete.id], ARRAY[_complete.output]);
    END IF;
  ELSIF _complete.counts IS NOT NULL THEN
    RAISE EXCEPTION 'weir: counters belong to a flow, and job % is a member of none', _complete.id USING ERRCODE = '22023', HINT = 'Pass no counts.';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._complete IS
  'Records one attempt as completed in the caller''s transaction: its effects and the completion commit together. counts: what is added to counters of its flow, by name, as with weir.increment, in the row that counts its end; NULL: nothing. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: see _hold_attempt; 22023. Locks, to the end of the transaction: those of _hold_attempt; ROW EXCLUSIVE on the segment''s results. Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._end_attempts(
  worker integer, lanes bigint[], seqs bigint[], segments smallint[], ids bigint[],
  outcomes weir.outcome[], errors text[], outputs text[], run_at timestamptz[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
SET enable_hashjoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  IF _end_attempts.outcomes && ARRAY['retried', 'snoozed', 'released', 'lost']::weir.outcome[] THEN
    -- As in enqueue: first the xid, then an id, which wakes idle workers.
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.job_id');
  END IF;
  WITH attempt AS MATERIALIZED (
    SELECT e.lane, e.seq, e.segment, e.id, e.outcome, e.error, e.output, e.ord, coalesce(q.next, e.run_at) AS run_at, j.kind, j.args, j.meta, j.errors, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.claimed_at, j.gate, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, j.lane AS job_lane,
           CASE WHEN e.outcome IN ('retried', 'lost') AND j.attempt >= j.max_attempts THEN 'failed' ELSE e.outcome END AS ended
    FROM unnest(_end_attempts.lanes, _end_attempts.seqs, _end_attempts.segments, _end_attempts.ids, _end_attempts.outcomes,
                _end_attempts.errors, _end_attempts.outputs, _end_attempts.run_at)
         WITH ORDINALITY e(lane, seq, segment, id, outcome, error, output, run_at, ord)
    LEFT JOIN LATERAL (
      SELECT j.*, b.claimed_at, b.gate FROM weir.batch b
      CROSS JOIN LATERAL (
        SELECT j.* FROM weir.job j
        WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)  -- worded so that the index on id is used
          AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
        -- A batch with late jobs spans many transactions, possibly those of earlier attempts of the same job.
        ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
      WHERE e.outcome IN ('retried', 'snoozed', 'released', 'lost')
        AND b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq  -- all rows of a batch have the same xids
      LIMIT 1) j ON true
    LEFT JOIN LATERAL (
      SELECT weir._next_try(q.backoff, q.backoff_limit, q.backoff_form, CASE e.outcome WHEN 'retried' THEN j.attempt ELSE j.put_off + 1 END) AS next
      FROM weir.queue q WHERE q.id = (e.lane >> 39)::integer AND e.run_at = '-infinity') q ON true
  ), next AS MATERIALIZED (
    -- A snoozed or released job keeps its attempt.
    SELECT a.id, CASE WHEN a.key IS NULL THEN a.lane ELSE a.job_lane | 4 END AS lane, a.attempt + (a.ended NOT IN ('snoozed', 'released'))::integer AS attempt, a.max_attempts,
           CASE WHEN a.ended IN ('snoozed', 'released') THEN a.put_off + 1 ELSE 0 END AS put_off, a.kind, a.args, a.meta, a.enqueued_at, a.run_at, a.ord,
           CASE WHEN a.ended IN ('snoozed', 'released') THEN a.errors ELSE weir._with_error(a.errors, a.attempt, clock_timestamp(), a.ended, a.error) END AS errors,
           a.unique_key, CASE WHEN a.unique_no IS NOT NULL THEN nextval('weir.job_id') * 2 + (a.unique_no & 1) END AS unique_no, a.unique_until, a.key, a.flow
    FROM attempt a WHERE a.ended IN ('retried', 'snoozed', 'released', 'lost')
  ), logged AS (
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT n.id, pg_current_xact_id(), n.enqueued_at, now(), n.lane, n.attempt, n.max_attempts, n.put_off, (SELECT a.last_value FROM weir.active_job a), n.kind, n.args, n.meta, n.errors, n.unique_key, n.unique_no, n.unique_until, n.key, n.flow
    FROM next n WHERE n.run_at IS NULL OR n.run_at <= now() ORDER BY n.ord
  ), postponed AS (
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT n.id, pg_current_xact_id(), n.run_at, n.enqueued_at, n.lane, n.attempt, n.max_attempts, n.put_off, (SELECT a.last_value FROM weir.active_later a), n.kind, n.args, n.meta, n.errors, n.unique_key, n.unique_no, n.unique_until, n.key, n.flow
    FROM next n WHERE n.run_at > now() ORDER BY n.ord
  ), recorded AS (
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors, outputs)
    SELECT a.lane, a.segment, _end_attempts.worker, a.seq, clock_timestamp(), a.ended, array_agg(a.id),
           CASE WHEN count(a.error) > 0 THEN array_agg(left(a.error, 65536)) END, CASE WHEN count(a.output) > 0 THEN array_agg(a.output) END
    FROM attempt a
    -- A long text has its own row, so that reading one doesn't read all.
    GROUP BY a.lane, a.segment, a.seq, a.ended, CASE WHEN length(a.error) > 2000 OR length(a.output) > 2000 THEN a.ord END
  ), freed AS (
    INSERT INTO weir.release (gate, ring, xid, n, lanes)
    SELECT a.gate, (SELECT r.last_value FROM weir.active_release r), pg_current_xact_id(), count(*), array_agg(a.job_lane) FILTER (WHERE a.key IS NOT NULL)
    FROM attempt a WHERE a.gate IS NOT NULL GROUP BY a.gate
  ), arrived AS (
    INSERT INTO weir.arrival (flow, ring, xid, failed)
    SELECT a.flow, (SELECT weir._arrival_ring()), pg_current_xact_id(), count(*) FROM attempt a WHERE a.ended = 'failed' AND a.flow IS NOT NULL GROUP BY a.flow
  )
  -- As weir._keep_failures does, but from rows that have been read already.
  INSERT INTO weir.failure (id, segment, lane, attempt, max_attempts, enqueued_at, claimed_at, finished_at, worker, kind, args, meta, error, output, errors, unique_key, unique_until, key, flow)
  SELECT a.id, (SELECT s.last_value FROM weir.active_failure s), CASE WHEN a.key IS NULL THEN a.lane ELSE a.job_lane & ~ 4::bigint END, a.attempt, a.max_attempts, a.enqueued_at, a.claimed_at, clock_timestamp(),
         _end_attempts.worker, a.kind, a.args, a.meta, left(a.error, 65536), a.output, a.errors, a.unique_key, a.unique_until, a.key, a.flow
  FROM attempt a WHERE a.ended = 'failed';
END
$$;
COMMENT ON FUNCTION weir._end_attempts IS
  'Writes how attempts ended, and logs those that follow. retried and lost become failed if no attempts are left; run_at -infinity means the queue''s backoff. The caller has checked that the attempts have not ended, and holds the locks that keep it so.';

CREATE OR REPLACE FUNCTION weir._next_try(backoff interval, backoff_limit interval, backoff_form text, tries integer) RETURNS timestamptz
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- In seconds, which don't overflow, unlike an interval. From 64 tries on, the delay of every backoff but 0 exceeds every limit.
  SELECT now() + greatest(0, least(extract(epoch FROM _next_try.backoff_limit)::double precision,
                                   extract(epoch FROM _next_try.backoff)::double precision * CASE _next_try.backoff_form
                                     WHEN 'fixed' THEN 1 WHEN 'linear' THEN _next_try.tries ELSE power(2, least(_next_try.tries, 64) - 1) END))
                 * (0.75 + random() / 2) * interval '1 second'
$$;
COMMENT ON FUNCTION weir._next_try IS
  'When a job is tried again after a number of tries: backoff after the first; after each further one twice as long (exponential), longer by backoff (linear) or as long again (fixed), up to backoff_limit; and randomly up to a quarter earlier or later, so that jobs which failed together are not tried together. Errors: none. Locks: none. Isolation: any.';
