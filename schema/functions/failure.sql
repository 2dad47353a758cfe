-- Jobs that have failed for good are kept for longer than completed ones, because people examine and retry them. Copying them from segment to segment
-- would cost more the longer they are kept, and a flood of failures would delay reclaiming. So the transaction that records a final failure also
-- copies the job into a log of failures. The job's segment is reclaimed like any other, and reclaiming needs no knowledge of failures.

CREATE OR REPLACE FUNCTION weir._keep_failures(worker integer, lanes bigint[], seqs bigint[], segments smallint[], ids bigint[], errors text[], outputs text[])
RETURNS void
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
  INSERT INTO weir.failure (id, segment, lane, attempt, max_attempts, enqueued_at, claimed_at, finished_at, worker, kind, args, meta, error, output, errors, unique_key, unique_until, key, flow)
  SELECT e.id, (SELECT a.last_value FROM weir.active_failure a), j.lane & ~ 4::bigint, j.attempt, j.max_attempts, j.enqueued_at, b.claimed_at, clock_timestamp(),
         _keep_failures.worker, j.kind, j.args, j.meta, left(e.error, 65536), e.output, j.errors, j.unique_key, j.unique_until, j.key, j.flow
  FROM unnest(_keep_failures.lanes, _keep_failures.seqs, _keep_failures.segments, _keep_failures.ids, _keep_failures.errors, _keep_failures.outputs)
       e(lane, seq, segment, id, error, output)
  CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq LIMIT 1) b
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)  -- so worded to be read by id
      AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;
END
$$;
COMMENT ON FUNCTION weir._keep_failures IS 'Copies jobs that fail for good with these attempts into the log of failures. The caller records how the attempts ended in the same transaction.';

CREATE OR REPLACE FUNCTION weir._kept_failure(job_id bigint, after integer) RETURNS SETOF weir.failure
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  f weir.failure;
BEGIN
  -- A row without finished_at says that the job was retried.
  SELECT k.* INTO f FROM weir.failure k WHERE k.id = _kept_failure.job_id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1;
  IF f.finished_at IS NOT NULL AND f.attempt >= _kept_failure.after THEN
    RETURN NEXT f;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._kept_failure IS 'How a job failed for good, in attempt after or a later one, unless it has been retried since.';

CREATE OR REPLACE FUNCTION weir._look_at_copy(job_id bigint) RETURNS SETOF weir.job_info
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  f    weir.failure;
  look weir.job_info;
BEGIN
  SELECT k.* INTO f FROM weir.failure k WHERE k.id = _look_at_copy.job_id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1;
  IF f.finished_at IS NULL OR EXISTS (SELECT FROM weir.job j WHERE j.id = _look_at_copy.job_id AND j.attempt > f.attempt) THEN
    RETURN;
  ELSIF length(f.error) >= 65536 THEN
    RETURN QUERY SELECT k.* FROM weir._read_job(_look_at_copy.job_id, 1) k;  -- the copy has the beginning of its error
    RETURN;
  END IF;
  look.id := f.id; look.state := 'failed'; look.kind := f.kind; look.enqueued_at := f.enqueued_at; look.attempt := f.attempt; look.max_attempts := f.max_attempts;
  look.priority := (f.lane & 3)::integer + 1; look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (f.lane >> 39)::integer); look.key := f.key; look.flow := f.flow;
  look.claimed_at := f.claimed_at; look.finished_at := f.finished_at; look.worker := f.worker; look.error := f.error;
  RETURN NEXT look;
END
$$;
COMMENT ON FUNCTION weir._look_at_copy IS
  'A failed job as its copy shows it, without args, meta, output and earlier errors, in a tenth of the time of weir._read_job. No row: it has not failed, or has been retried since. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir._rotate_failures() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  -- A failure is kept at least as long as its job's rows in the log.
  retention interval := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
  bytes     bigint   := (SELECT s.value::bigint / 16 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer  := pg_sequence_last_value('weir.active_failure');
  target    integer;
  size      bigint   := pg_total_relation_size('weir.failure_' || active);
  age       interval;
  k         record;
BEGIN
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('failure', s) = 'reclaimed';
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'failure' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);
  IF target IS NOT NULL AND (size >= bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.failure_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', active, 'closed'), ('failure', target, 'opened');
    PERFORM setval('weir.active_failure', target);  -- last: it does not roll back
    RETURN 'opened failure ' || target;
  END IF;
  SELECT e.segment, e.at INTO k FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'failure' AND s.segment <> active
    ORDER BY s.segment, s.no DESC) e WHERE e.event <> 'reclaimed' ORDER BY e.no LIMIT 1;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  age := clock_timestamp() - k.at;
  IF age < interval '-1 minute' THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', k.segment, 'closed');
  ELSIF age >= retention OR target IS NULL AND size >= bytes / 2 THEN
    EXECUTE format('LOCK TABLE weir.failure_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
    EXECUTE format('TRUNCATE weir.failure_%s', k.segment);
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', k.segment, 'reclaimed');
    RETURN 'reclaimed failure ' || k.segment;
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- the segment is being read or written: the next call tries again
END
$$;
COMMENT ON FUNCTION weir._rotate_failures IS
  'Performs the next step of rotating the segments of failures. Opens a free segment when the active one exceeds a sixteenth of retention_bytes, or is older than half of failed_retention or completed_retention, whichever is longer. Empties the oldest segment when that retention has passed since it was closed, or when no free segment is left. Returns what it did, or NULL. The caller holds advisory step 1. Locks: ACCESS EXCLUSIVE on the segment, NOWAIT.';
