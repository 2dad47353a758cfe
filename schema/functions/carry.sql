-- What reclaiming carries from a closed segment into the active one.

CREATE OR REPLACE FUNCTION weir._carry_waiting(segment integer, active integer, lanes integer[], most integer, bytes bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  one     integer;
  s       record;
  chosen  tid[];
  size    bigint;
  carried bigint := 0;
  locked  integer := 0;
BEGIN
  FOREACH one IN ARRAY _carry_waiting.lanes LOOP
    EXIT WHEN most <= 0 OR carried >= bytes OR locked = 200;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158546, one);
    locked := locked + 1;
    SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after INTO s
    FROM weir.batch b WHERE b.lane = one ORDER BY b.seq DESC LIMIT 1;
    -- From the end: what is claimed next stays where it is, and no claim walks through what is deleted here.
    SELECT array_agg(k.at), max(k.total) INTO chosen, size
    FROM (
      SELECT u.at, sum(u.size) OVER (ROWS UNBOUNDED PRECEDING) AS total
      FROM (
        (SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) AS size FROM weir.job j
         WHERE j.segment = _carry_waiting.segment AND j.lane = one AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
         ORDER BY j.xid DESC, j.id DESC LIMIT most)
        UNION ALL
        SELECT l.at, l.size FROM unnest(s.pending, s.pending_after) p(xid, after)
        CROSS JOIN LATERAL (
          SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) AS size FROM weir.job j
          WHERE j.segment = _carry_waiting.segment AND j.lane = one AND j.xid = p.xid AND j.id > p.after LIMIT most) l) u
      LIMIT most) k
    WHERE k.total - 1048576 <= bytes - carried;  -- a job of a megabyte goes alone
    CONTINUE WHEN chosen IS NULL;
    WITH gone AS (
      DELETE FROM weir.job j WHERE j.segment = _carry_waiting.segment AND j.ctid = ANY (chosen) RETURNING j.*
    )
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
    SELECT g.id, g.xid, g.enqueued_at, g.ready_at, g.lane, g.attempt, g.max_attempts, g.put_off, active, g.kind, g.args, g.meta FROM gone g;
    most := most - cardinality(chosen);
    carried := carried + size;
  END LOOP;
  RETURN carried;
END
$$;
COMMENT ON FUNCTION weir._carry_waiting IS
  'Carries jobs that wait to be claimed, up to so many and so many bytes, of at most 200 lanes; returns how many bytes. A job is copied, xid and id unchanged, and deleted in one transaction, under its lane''s lock, so that each claim sees it once, in its place. Locks: advisory: the lanes (tried).';

CREATE OR REPLACE FUNCTION weir._carry_states(segment integer, active integer, lanes integer[]) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
  SELECT b.lane, _carry_states.active, 0, 0, b.seq, b.from_xid, b.to_xid, b.pos_xid, b.pos_id, b.total, b.claimed_at, 0, b.pending, b.pending_after, '{}'
  FROM unnest(_carry_states.lanes) l(lane)
  CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b
  WHERE b.segment = _carry_states.segment
$$;
COMMENT ON FUNCTION weir._carry_states IS
  'Repeats the states of idle lanes, whose newest batch is in a closed segment, as batches of nobody without jobs. One that is outrun by a claim meanwhile is of no consequence.';

CREATE OR REPLACE FUNCTION weir._carry_unfinished(segment integer, active integer, waiting integer[], lanes integer[], newest bigint[],
                                                 b_lanes integer[], b_seqs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta
  FROM weir._unclaimed(_carry_unfinished.segment, waiting) j;

  WITH suspect AS (
    SELECT u.lane, u.seq FROM unnest(b_lanes, b_seqs) u(lane, seq)
    UNION  -- claimed since the look; and lanes' newest batches, which hold their state
    SELECT b.lane, b.seq FROM unnest(_carry_unfinished.lanes, newest) l(lane, seq)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _carry_unfinished.segment AND b.lane = l.lane AND b.seq >= l.seq OFFSET 0) b
  ), kept AS MATERIALIZED (
    SELECT b.*, ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
                      EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq) AS unfinished,
           NOT EXISTS (SELECT FROM weir.batch m WHERE m.lane = b.lane AND m.seq >= b.seq
                         AND (m.seq > b.seq OR m.segment <> _carry_unfinished.segment)) AS is_state
    FROM suspect s CROSS JOIN LATERAL (
      SELECT b.* FROM weir.batch b WHERE b.segment = _carry_unfinished.segment AND b.lane = s.lane AND b.seq = s.seq OFFSET 0) b
  ), batches AS (
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
    SELECT k.lane, active, k.origin, k.worker, k.seq, k.from_xid, k.to_xid, k.pos_xid, k.pos_id, k.total, k.claimed_at, k.no, k.pending, k.pending_after, k.unfinished
    FROM kept k WHERE k.is_state OR k.unfinished <> '{}'
  )
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta
  FROM kept k CROSS JOIN unnest(k.unfinished) i(id)
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = _carry_unfinished.segment AND j.id = i.id AND j.lane IS NOT DISTINCT FROM k.lane  -- so worded to be read by id
      AND NOT (j.xid < k.from_xid) AND NOT (j.xid > k.to_xid)
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;  -- not an earlier attempt in the same span
END
$$;
COMMENT ON FUNCTION weir._carry_unfinished IS
  'Carries what is unfinished in a segment that the caller holds alone: what still waits of the lanes waiting; and of the batches named, of those from newest on, their unfinished jobs, and their state if no other has it.';
