-- What reclaiming carries from a closed segment into the active one.

CREATE OR REPLACE FUNCTION weir._carry_waiting(segment integer, active integer, lanes bigint[], max_jobs integer, max_bytes bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  this_lane bigint;
  s         record;
  chosen    tid[];
  size      bigint;
  carried   bigint := 0;
  locked    integer := 0;
  ring      bigint;       -- the queue of the last lane that had a key
  is_ours   boolean;      -- its ring is locked
  keys      bigint[];
  late      xid8[];
  since     timestamptz;  -- when it was
BEGIN
  FOREACH this_lane IN ARRAY _carry_waiting.lanes LOOP
    EXIT WHEN max_jobs <= 0 OR carried >= max_bytes OR locked = 200;
    IF this_lane & 549755813880 = 0 OR this_lane >> 39 IS DISTINCT FROM ring THEN
      EXIT WHEN since IS NOT NULL;  -- one ring in a call, for a short time: claims from all its keys wait
      is_ours := weir._try_lane(this_lane);
      locked := locked + 1;
      IF this_lane & 549755813880 <> 0 THEN
        ring := this_lane >> 39;
        IF is_ours THEN
          late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = ring::integer));
          since := clock_timestamp();
          keys := ARRAY(SELECT l FROM unnest(_carry_waiting.lanes) l WHERE l >> 39 = ring AND l & 549755813880 <> 0);
          IF cardinality(keys) > 50 THEN  -- one by one would take too long
            RETURN carried + weir._carry_keys(_carry_waiting.segment, active, keys[: 1000], max_jobs, max_bytes - carried);
          END IF;
        END IF;
      END IF;
    END IF;
    CONTINUE WHEN NOT is_ours;
    EXIT WHEN clock_timestamp() - since > interval '50 ms';
    s := weir._state_of(this_lane, late);
    -- From the end of the lane: the jobs that are claimed next stay where they are, and no claim scans the rows that are deleted here.
    SELECT array_agg(k.at), max(k.total) INTO chosen, size
    FROM (
      SELECT u.at, sum(u.size) OVER (ROWS UNBOUNDED PRECEDING) AS total
      FROM (
        (SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) + coalesce(pg_column_size(j.errors), 0) AS size FROM weir.job j
         WHERE j.segment = _carry_waiting.segment AND j.lane = this_lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
         ORDER BY j.xid DESC, j.id DESC LIMIT max_jobs)
        UNION ALL
        SELECT l.at, l.size FROM unnest(s.pending, s.pending_after) p(xid, after)
        CROSS JOIN LATERAL (
          SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) + coalesce(pg_column_size(j.errors), 0) AS size FROM weir.job j
          WHERE j.segment = _carry_waiting.segment AND j.lane = this_lane AND j.xid = p.xid AND j.id > p.after LIMIT max_jobs) l) u
      LIMIT max_jobs) k
    WHERE k.total - 1048576 <= max_bytes - carried;  -- a job of a megabyte is carried alone
    CONTINUE WHEN chosen IS NULL;
    WITH deleted AS (
      DELETE FROM weir.job j WHERE j.segment = _carry_waiting.segment AND j.ctid = ANY (chosen) RETURNING j.*
    )
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT g.id, g.xid, g.enqueued_at, g.ready_at, g.lane, g.attempt, g.max_attempts, g.put_off, active, g.kind, g.args, g.meta, g.errors, g.unique_key, g.unique_no, g.unique_until, g.key, g.flow FROM deleted g;
    max_jobs := max_jobs - cardinality(chosen);
    carried := carried + size;
  END LOOP;
  RETURN carried;
END
$$;
COMMENT ON FUNCTION weir._carry_waiting IS
  'Carries jobs that wait to be claimed into the active segment: about max_jobs or max_bytes, from at most 200 lanes and the keys of one queue. Returns how many bytes. Each job is copied with its xid and id and deleted, in one transaction and under its lane''s lock, or that of its key''s ring: so a claim sees it exactly once, in its place. Locks: advisory: the lanes and a ring (exclusive, tried).';

CREATE OR REPLACE FUNCTION weir._carry_keys(segment integer, active integer, lanes bigint[], max_jobs integer, max_bytes bigint) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  WITH waiting AS MATERIALIZED (
    SELECT k.* FROM (
      SELECT u.id, u.attempt, u.put_off, sum(150 + pg_column_size(u.args) + coalesce(pg_column_size(u.meta), 0) + coalesce(pg_column_size(u.errors), 0)) OVER (ROWS UNBOUNDED PRECEDING) AS total
      FROM weir._unclaimed(_carry_keys.segment, _carry_keys.lanes, _carry_keys.max_jobs) u) k
    WHERE k.total - 1048576 <= _carry_keys.max_bytes
  ), deleted AS (
    DELETE FROM weir.job j USING waiting w
    WHERE j.segment = _carry_keys.segment AND j.id = w.id AND j.attempt = w.attempt AND j.put_off = w.put_off RETURNING j.*
  ), copied AS (
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT g.id, g.xid, g.enqueued_at, g.ready_at, g.lane, g.attempt, g.max_attempts, g.put_off, _carry_keys.active, g.kind, g.args, g.meta, g.errors, g.unique_key, g.unique_no, g.unique_until, g.key, g.flow FROM deleted g
  )
  SELECT coalesce(max(w.total), 0)::bigint FROM waiting w
$$;
COMMENT ON FUNCTION weir._carry_keys IS 'As _carry_waiting, for many lanes of keys at once. The caller holds their ring''s lock. Returns how many bytes.';

CREATE OR REPLACE FUNCTION weir._kept_turns(segment integer, lanes bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
SET work_mem = '64MB'
AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    SELECT t.lane
    FROM (SELECT DISTINCT ON (t.lane) t.* FROM weir.turn t WHERE t.segment = _kept_turns.segment ORDER BY t.lane, t.seq DESC) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq >= t.seq AND n.segment <> _kept_turns.segment)
      AND (EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.segment <> _kept_turns.segment)  -- an earlier one would pass for the newest
           OR t.lane IN (SELECT l FROM unnest(_kept_turns.lanes) l)
           OR EXISTS (SELECT FROM weir.job j WHERE j.lane = t.lane AND j.segment <> _kept_turns.segment)
           OR t.next_start > clock_timestamp()  -- the rate of the key
           -- In order, a job that is to be tried again keeps its place.
           OR EXISTS (SELECT FROM unnest(t.open) WITH ORDINALITY o(id, nr) WHERE o.nr % 2 = 0
                        AND (EXISTS (SELECT FROM weir.later l WHERE l.id = o.id)
                             OR EXISTS (SELECT FROM weir.job j WHERE j.id = o.id AND j.lane & 4 <> 0
                                          AND (j.segment <> _kept_turns.segment OR j.lane IN (SELECT l FROM unnest(_kept_turns.lanes) l)))))));
END
$$;
COMMENT ON FUNCTION weir._kept_turns IS
  'The lanes of keys whose newest turn is in this segment and must be kept when it is emptied: those in lanes, where jobs here wait or run, and those that have jobs or earlier turns elsewhere, or a limit that still counts what they did. For the others, no turn means the same: all jobs that they will have lie past position 0. That a turn need not be kept stays true.';

CREATE OR REPLACE FUNCTION weir._carry_turns(segment integer, active integer, lanes bigint[]) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
  SELECT t.lane, t.seq, t.pos_xid, t.pos_id, t.tag, _carry_turns.active, t.waits, t.parked, t.pending, t.pending_after, t.open, t.next_start, t.again_at
  FROM unnest(_carry_turns.lanes) l(lane)
  CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC, t.segment = _carry_turns.segment LIMIT 1) t
  WHERE t.segment = _carry_turns.segment
$$;
COMMENT ON FUNCTION weir._carry_turns IS
  'Repeats the newest turns of keys that are in a closed segment, and nowhere else, in the active one. A concurrent claim may write newer ones first, which does no harm.';

CREATE OR REPLACE FUNCTION weir._carry_states(segment integer, active integer, lanes bigint[]) RETURNS void
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
  'Repeats the states of idle lanes, whose newest batch is in a closed segment, in the active one: as batches without jobs and without a worker. A concurrent claim may write a newer state first, which does no harm.';

CREATE OR REPLACE FUNCTION weir._carry_unfinished(segment integer, active integer, waiting bigint[], lanes bigint[], newest bigint[],
                                                 b_lanes bigint[], b_seqs bigint[]) RETURNS void
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
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta, j.errors, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM weir._unclaimed(_carry_unfinished.segment, waiting) j;

  WITH suspect AS (
    SELECT u.lane, u.seq FROM unnest(b_lanes, b_seqs) u(lane, seq)
    UNION  -- batches claimed since they were collected; and the newest batch of each lane, which holds its state
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
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, seen, gate, lanes, flows)
    SELECT k.lane, active, k.origin, k.worker, k.seq, k.from_xid, k.to_xid, k.pos_xid, k.pos_id, k.total, k.claimed_at, k.no, k.pending, k.pending_after, k.unfinished, k.seen, k.gate,
           CASE WHEN k.lanes IS NOT NULL THEN ARRAY(SELECT l.lane FROM unnest(k.unfinished) WITH ORDINALITY u(id, nr) JOIN unnest(k.ids, k.lanes) l(id, lane) ON l.id = u.id ORDER BY u.nr) END,
           weir._flows_among(k.ids, k.flows, k.unfinished)
    FROM kept k WHERE k.is_state OR k.unfinished <> '{}'
  )
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta, j.errors, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM kept k CROSS JOIN unnest(k.unfinished) i(id)
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = _carry_unfinished.segment AND j.id = i.id AND (j.lane = k.lane OR k.lanes IS NOT NULL)  -- worded so that the index on id is used
      AND NOT (j.xid < k.from_xid) AND NOT (j.xid > k.to_xid)
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;  -- not an earlier attempt in the same span of xids
END
$$;
COMMENT ON FUNCTION weir._carry_unfinished IS
  'Carries everything unfinished from a segment, which the caller has locked exclusively, into the active one: the unclaimed jobs of the lanes in waiting; the unfinished jobs of the batches in b_lanes and b_seqs, and of each lane''s batches from newest on; and the state of a lane, if no batch elsewhere holds it.';
