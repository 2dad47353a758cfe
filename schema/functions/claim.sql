-- Claiming: the snapshot cursor.
--
-- Rows become visible in commit order, but ids and xids are assigned in another order. A position (xid, id)
-- alone would skip a transaction that commits late, so the newest batch of a lane also lists
-- the transactions that were in progress below the position (pending). The next batch takes the rows
-- of those that have committed since (late), then the rows past the position (fresh), and derives the
-- new position and pending from the same snapshot that it read the rows with.

CREATE OR REPLACE FUNCTION weir._claim(worker integer, queues text[], limits integer[], since pg_snapshot DEFAULT NULL, backlog text[] DEFAULT NULL)
RETURNS TABLE (queue text, lane bigint, seq bigint, id bigint, attempt integer, max_attempts integer,
               kind text, args jsonb, meta jsonb, enqueued_at timestamptz, dropped text, put_off integer, ready_at timestamptz,
               priority integer, key text, flow bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
-- A truncated segment has no statistics, and a full one would be planned as if it were empty: the plan is pinned.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  max_skip    CONSTANT integer := 64;
  max_lanes   CONSTANT integer := 200;  -- to lock: the server's lock table is shared
  last_id     CONSTANT bigint  := 9223372036854775807;
  soon        CONSTANT interval := '10 milliseconds';  -- when to try again, if others have a queue's gate or turns
  snapshot    pg_snapshot;
  newer       pg_snapshot;
  top         xid8;     -- the snapshot's xmax: no transaction from here on has ended
  running     xid8[];   -- the transactions below it that have not ended either
  below       integer;  -- how many of those are below the position
  skip        xid8[];   -- the first of those past the position
  ended       xid8[];   -- pending transactions that the snapshot sees
  afters      bigint[];
  cluster     text;
  started_for text[];
  hinted      bigint[];  -- the only lanes to check; NULL: all
  start_at    integer;
  visited     integer := 0;
  gaps        record;     -- what is known of the stretches between running transactions: see weir._fresh_between
  ready       record;
  last        record;
  quota       integer;
  taken       integer;
  is_cut      boolean := false;             -- there may be more jobs
  filters     weir.cancellation_where[];    -- the cancellations by filter that concern the lane
  upto        bigint;                       -- the greatest job id that one of them applies to; 0: there are none
  judging     integer[] := '{}';            -- the queues whose unique jobs it may judge: hashes of their names
  queue_hash  integer;
  has_lanes   boolean := false;             -- it has locked one
  has_keys    boolean;                      -- there are queues with turns
  has_limits  boolean := false;             -- among those that it claims from, there are some with limits for each key
  is_ring     boolean;                      -- the lane stands for the keys of a queue: see functions/turn.sql
  ring        weir.ring;                    -- its state
  ring_seq    bigint;                       -- before the lock
  shared_by   text;                         -- a queue with turns to give and with jobs without a key, and how many of the latter it may still hand out
  unshared    integer;
  before      bigint;                       -- see _gate_now
  aged_queue  integer;                      -- the id of the queue that reserved is about
  reserved    integer[];                    -- how many jobs of each priority are chosen by age: see weir._reserve
  shortened   bigint[] := '{}';             -- queues in which it left jobs for a lower priority
  gates       integer[] := '{}';            -- those that it has locked
  gate_now    record;                       -- the state of the lane's gate
  withheld    text[] := '{}';               -- queues from which limits have withheld jobs
  again_at    timestamptz[] := '{}';        -- when their rates may allow some
  commits     text;                         -- the caller's synchronous_commit
  own         xid8;                         -- this transaction, if it may log unique jobs again and has written to another lane
  batch_no    bigint;
  this_seq    bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'weir: claim needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit, with default_transaction_isolation = ''read committed''.';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: claim was called inside an open transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: its lock on the lane would be held until your commit.';
  ELSIF clock_timestamp() - now() > interval '2 seconds' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: claim was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: its lock on the lane would be held until your commit. If you did, try again.';
  END IF;
  PERFORM weir._check_array('claim', 'queues', queues, true), weir._check_array('claim', 'limits', limits, true), weir._check_array('claim', 'backlog', backlog, true);
  IF cardinality(queues) IS DISTINCT FROM cardinality(limits) OR queues IS NULL THEN
    RAISE EXCEPTION 'weir: claim got % queues and % limits', coalesce(cardinality(queues)::text, 'null'), coalesce(cardinality(limits)::text, 'null') USING ERRCODE = '22023';
  END IF;
  -- The jobs of a lost claim are only claimed again. Flushing a result to disk also flushes the claim before it.
  commits := current_setting('synchronous_commit');
  PERFORM set_config('synchronous_commit', 'off', true), weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _claim.worker);
  started_for := weir._check_worker(_claim.worker);
  IF _claim.queues <> started_for AND NOT weir._takes_up_others(_claim.worker) AND NOT _claim.queues <@ started_for THEN  -- for thousands of queues, <@ takes long
    RAISE EXCEPTION 'weir: worker % claims from %, but was started for %', _claim.worker, _claim.queues, started_for
      USING ERRCODE = '22023', HINT = 'Start the worker with all queues that it claims from.';
  END IF;

  -- A backend never changes its cluster, so it checks once for each cluster that the log names; the log may be replaced.
  SELECT s.value, EXISTS (SELECT FROM weir.with_keys) INTO cluster, has_keys FROM weir.setting s WHERE s.name = 'cluster';
  IF cluster IS DISTINCT FROM current_setting('weir.cluster', true) THEN
    PERFORM weir._check_cluster(), set_config('weir.cluster', cluster, false);
  END IF;
  snapshot := pg_current_snapshot();
  top := pg_snapshot_xmax(snapshot);
  running := CASE WHEN pg_snapshot_xmin(snapshot) < top THEN ARRAY(SELECT pg_snapshot_xip(snapshot)) ELSE '{}' END;

  -- With a hint, the cost depends on how many new jobs there are, not on how many lanes.
  IF _claim.since IS NOT NULL AND pg_snapshot_xmax(_claim.since) <= top THEN
    hinted := weir._fresh_lanes(_claim.since, snapshot);
    IF hinted IS NOT NULL AND _claim.backlog <> '{}' THEN
      hinted := ARRAY(SELECT unnest(hinted) UNION
                      SELECT (q.id::bigint << 39) + p FROM unnest(_claim.backlog) b(name) JOIN weir.queue q ON q.name = b.name CROSS JOIN generate_series(0, 3) p);
    END IF;
  END IF;

  -- If there are more lanes than it may lock, it starts at a random queue, so that none always comes last.
  IF cardinality(hinted) > max_lanes THEN
    start_at := hinted[1 + floor(random() * cardinality(hinted))] >> 39;
    hinted := ARRAY(SELECT h FROM unnest(hinted) h ORDER BY h >> 39 < start_at, h);
  ELSIF hinted IS NULL AND 4 * cardinality(queues) > max_lanes THEN
    start_at := floor(random() * cardinality(queues));
    queues := queues[start_at + 1 :] || queues[: start_at];
    limits := limits[start_at + 1 :] || limits[: start_at];
  END IF;

  -- Most lanes are idle, and have no rows between transactions in progress: one query finds this out for all of them.
  SELECT NULL::boolean[] AS known, '{}'::bigint[] AS lanes INTO gaps;
  IF coalesce(cardinality(hinted), 4 * cardinality(queues)) * cardinality(running) > 16 THEN
    gaps := weir._fresh_between(running, top);
  END IF;

  -- The first lanes that have jobs, read without their locks. They are in the order of lanes, so that two claims that
  -- lock several lanes can't deadlock; within a queue this is the order of priorities.
  <<lanes>>
  FOR ready IN
    SELECT r.lane, r.ord, r.name, r.gate, r.ageing, EXISTS (SELECT FROM weir.keyed k WHERE k.queue = r.name) AS keyed FROM (
      SELECT l.lane, l.ord, l.name, n.gate, n.ageing
      FROM (
        SELECT q.lane, u.ord, u.name
        FROM unnest(_claim.queues, _claim.limits) WITH ORDINALITY u(name, quota, ord)
        -- OFFSET 0 makes it go through the queues in their order, only as far as needed.
        CROSS JOIN LATERAL (SELECT (q.id::bigint << 39) + p AS lane FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE q.name = u.name AND NOT q.aside OFFSET 0) q
        WHERE hinted IS NULL AND u.quota > 0
        UNION ALL
        SELECT h.lane, o.ord, q.name
        FROM unnest(hinted) h(lane)
        CROSS JOIN LATERAL (SELECT q.name FROM weir.queue q WHERE q.id = (h.lane >> 39)::integer OFFSET 0) q
        CROSS JOIN LATERAL (SELECT array_position(_claim.queues, q.name) AS ord OFFSET 0) o
        WHERE _claim.limits[o.ord] > 0 AND h.lane < ((h.lane >> 39) << 39) + 4  -- no key
        UNION ALL
        SELECT k.lane, k.ord, k.name FROM weir._turn_lanes(_claim.queues, hinted) k
        WHERE has_keys AND _claim.limits[k.ord] > 0) l
      -- A pause, a gate and ageing apply to all twins of a name, also to one that was committed after them.
      CROSS JOIN LATERAL (SELECT max(p.paused_at) AS paused_at, max(p.gate) AS gate, max(p.ageing) AS ageing FROM weir.queue p WHERE p.name = l.name OFFSET 0) n
      LEFT JOIN LATERAL (
        SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after
        FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
      CROSS JOIN LATERAL (SELECT l.lane = ANY (gaps.lanes) AS is_fresh OFFSET 0) f
      WHERE
        n.paused_at IS NULL
        AND CASE WHEN has_keys AND l.lane & 4 <> 0 THEN weir._has_turns(l.name, snapshot) ELSE
            (s.pos_xid >= top  -- raises WR003 below: new jobs would lie before the position
             OR EXISTS (SELECT FROM generate_series(0, least(cardinality(running) - width_bucket(coalesce(s.pos_xid, '0'), running), max_skip)) i
                     CROSS JOIN LATERAL (SELECT width_bucket(coalesce(s.pos_xid, '0'), running) + i AS at OFFSET 0) o
                     CROSS JOIN LATERAL (SELECT FROM weir.job j
                       WHERE j.lane = l.lane AND j.xid < CASE WHEN i < max_skip THEN coalesce(running[o.at + 1], top) ELSE top END
                         AND (j.xid, j.id) > (CASE WHEN i > 0 THEN running[o.at] ELSE coalesce(s.pos_xid, '0') END, CASE WHEN i > 0 THEN last_id ELSE coalesce(s.pos_id, 0) END)
                       LIMIT 1) j
                     -- The last stretch may contain several running transactions. The first is not in gaps. Between two consecutive xids there is no row.
                     WHERE i = max_skip OR o.at = 0
                        OR (f.is_fresh OR gaps.known[o.at] IS NOT TRUE) AND running[o.at + 1]::text::bigint - running[o.at]::text::bigint IS DISTINCT FROM 1)
             OR (s.pending <> running[1 : width_bucket(s.pos_xid, running)] AND EXISTS (
                     SELECT FROM unnest(s.pending, s.pending_after) p(xid, after)
                     CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after LIMIT 1) j
                     WHERE pg_visible_in_snapshot(p.xid, snapshot)))) END
      LIMIT max_lanes) r
    ORDER BY r.lane
  LOOP
    visited := visited + 1;
    quota := least(_claim.limits[ready.ord], 960);  -- so that a batch's ids stay inline in its row
    CONTINUE WHEN quota <= 0;
    is_ring := ready.lane & 4 <> 0;
    IF has_keys AND NOT is_ring THEN
      -- Jobs without a key get half of what a queue with turns to give hands out.
      IF ready.name IS DISTINCT FROM shared_by THEN
        shared_by := ready.name;
        unshared := CASE WHEN EXISTS (SELECT FROM weir.with_keys k WHERE k.queue = ready.name) AND weir._has_turns(ready.name, snapshot)
                         THEN floor(quota / 2.0 + random()) ELSE quota END;
      END IF;
      quota := least(quota, unshared);
      IF quota <= 0 THEN
        is_cut := true;
        CONTINUE;
      END IF;
    END IF;
    before := NULL;
    IF ready.gate IS NOT NULL THEN
      IF ready.gate <> ALL (gates) THEN
        -- First without its lock: most claims of a queue at its limit end here, and write nothing. It waits for the lock only while it has
        -- neither a lane's nor another gate's, so that claims can't deadlock.
        gate_now := weir._gate_now(ready.name, ready.gate, false);
        IF gate_now.room > 0 AND (has_lanes OR gates <> '{}') AND NOT pg_try_advisory_xact_lock(1464158558, ready.gate) THEN
          is_cut := true;
          CONTINUE;
        ELSIF gate_now.room > 0 THEN
          IF weir._lock_behind_few(1464158558, ready.gate) THEN
            gates := gates || ready.gate;
          ELSE
            gate_now.room := 0;
            gate_now.next_at := clock_timestamp() + soon;
          END IF;
        END IF;
      END IF;
      IF ready.gate = ANY (gates) THEN
        gate_now := weir._gate_now(ready.name, ready.gate, true);
      END IF;
      IF gate_now.room <= 0 THEN
        IF ready.name <> ALL (withheld) THEN
          withheld := withheld || ready.name;
          again_at := again_at || gate_now.next_at;
        END IF;
        CONTINUE;
      END IF;
      quota := least(quota, gate_now.room);
      before := gate_now.before;
    END IF;
    -- The unique jobs of a queue are judged by one claim at a time. It waits for this lock only while it has no lane's, so that claims can't deadlock.
    queue_hash := CASE WHEN ready.keyed THEN hashtext(ready.name) END;
    IF queue_hash <> ALL (judging) THEN
      IF has_lanes AND NOT pg_try_advisory_xact_lock(1464158556, queue_hash) THEN
        is_cut := true;
        CONTINUE;
      ELSIF NOT has_lanes THEN
        PERFORM pg_advisory_xact_lock(1464158556, queue_hash);
      END IF;
      judging := judging || queue_hash;
    END IF;
    IF ready.ageing IS NOT NULL AND NOT is_ring THEN
      IF (ready.lane >> 39)::integer IS DISTINCT FROM aged_queue THEN
        aged_queue := (ready.lane >> 39)::integer;
        reserved := weir._reserve(aged_queue, quota, ready.ageing);
        has_lanes := has_lanes OR reserved IS NOT NULL;
      END IF;
      IF reserved[(ready.lane & 3)::integer + 2 :] <> array_fill(0, ARRAY[3 - (ready.lane & 3)::integer]) THEN
        shortened := shortened || ready.ord;
        quota := quota - (SELECT sum(r) FROM unnest(reserved[(ready.lane & 3)::integer + 2 :]) r);
        CONTINUE WHEN quota <= 0;
      END IF;
    END IF;
    IF is_ring THEN
      ring := weir._ring_of(ready.name);
    END IF;
    IF NOT is_ring THEN
      PERFORM pg_advisory_xact_lock(1464158546, ((ready.lane >> 39) * 4 + (ready.lane & 3))::integer);
    ELSIF NOT has_lanes THEN
      IF NOT weir._lock_behind_few(1464158559, hashtext(ready.name)) THEN
        IF ready.name <> ALL (withheld) THEN
          withheld := withheld || ready.name;
          again_at := again_at || clock_timestamp() + soon;
        END IF;
        CONTINUE;
      END IF;
    ELSIF NOT pg_try_advisory_xact_lock(1464158559, hashtext(ready.name)) THEN
      is_cut := true;
      CONTINUE;
    END IF;
    has_lanes := true;
    -- The snapshot of this statement, taken after the locks, is that of the batch. Statements below may have a newer one; rows that only the newer one
    -- sees are left alone.
    -- An empty file of cancellations has no row that any snapshot sees, and costs no reading.
    FOR again IN 0..1 LOOP  -- a second time, if jobs at the head of the lane may have been ended
      SELECT b.seq, b.pos_xid, b.pos_id, b.total, b.pending, b.pending_after, pg_current_snapshot() AS snapshot, EXISTS (SELECT FROM weir.keyed k WHERE k.queue = ready.name) AS keyed,
             CASE WHEN pg_relation_size('weir.cancellation_where') > 0 THEN weir._filters_of(ready.name, CASE WHEN NOT is_ring THEN (ready.lane & 3)::integer + 1 END) END AS filters INTO last
      FROM weir.batch b WHERE b.lane = ready.lane ORDER BY b.seq DESC LIMIT 1;
      IF NOT FOUND THEN  -- a join to a row that is always there would take each claim longer
        SELECT 0::bigint AS seq, '0'::xid8 AS pos_xid, 0::bigint AS pos_id, 0::bigint AS total, NULL::xid8[] AS pending, NULL::bigint[] AS pending_after, pg_current_snapshot() AS snapshot,
               EXISTS (SELECT FROM weir.keyed k WHERE k.queue = ready.name) AS keyed, weir._filters_of(ready.name, CASE WHEN NOT is_ring THEN (ready.lane & 3)::integer + 1 END) AS filters INTO last;
      END IF;
      filters := last.filters;
      upto := 0;
      IF filters IS NOT NULL THEN
        upto := (SELECT max(f.upto) FROM unnest(filters) f);
      END IF;
      EXIT WHEN upto = 0 OR is_ring OR again = 1;
      IF weir._skip_ended(_claim.worker, ready.lane, filters, false) THEN
        is_cut := true;
        CONTINUE lanes;
      END IF;
    END LOOP;
    IF last.keyed AND queue_hash IS NULL THEN  -- the queue's first unique jobs have just been committed
      is_cut := true;
      CONTINUE;
    END IF;
    newer := last.snapshot;
    IF record_image_ne(ROW(newer), ROW(snapshot)) THEN  -- with thousands of transactions in progress, each of these takes as long as an idle claim
      snapshot := newer;
      top := pg_snapshot_xmax(snapshot);
      running := CASE WHEN pg_snapshot_xmin(snapshot) < top THEN ARRAY(SELECT pg_snapshot_xip(snapshot)) ELSE '{}' END;
    END IF;
    IF is_ring THEN
      ring_seq := ring.seq;
      ring := weir._ring_of(ready.name);
      -- Claims that waited for each other began because of the same jobs, and the first may have taken them all.
      CONTINUE WHEN ring.seq <> ring_seq AND NOT weir._has_turns(ready.name, snapshot);
      IF pg_snapshot_xmax(ring.arrived) > top THEN
        RAISE EXCEPTION 'weir: the turns of queue % (up to xid %) are ahead of this cluster''s xid counter (%)', ready.name, pg_snapshot_xmax(ring.arrived), top
          USING ERRCODE = 'WR003', HINT = 'The database was restored or moved into another cluster: call weir.rebase().';
      END IF;
      last.seq := greatest(last.seq, ring.seq);
    END IF;
    IF last.pos_xid >= top THEN
      RAISE EXCEPTION 'weir: the position of lane % (xid %) is ahead of this cluster''s xid counter (%)', ready.lane, last.pos_xid, top
        USING ERRCODE = 'WR003', HINT = 'The database was restored or moved into another cluster: call weir.rebase().';
    END IF;
    below := width_bucket(last.pos_xid, running);
    skip := running[below + 1 : below + max_skip];
    ended := NULL;
    IF last.pending <> running[1 : below] THEN
      SELECT array_agg(p.xid ORDER BY p.xid), array_agg(p.after ORDER BY p.xid) INTO ended, afters
      FROM unnest(last.pending, last.pending_after) p(xid, after) WHERE pg_visible_in_snapshot(p.xid, snapshot);
    END IF;

    own := CASE WHEN last.keyed THEN pg_current_xact_id_if_assigned() END;
    batch_no := nextval('weir.batch_no');
    -- It includes the server's timeline, so that no number which a failover has lost is used again.
    this_seq := greatest(last.seq, (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) << 40) + 1;
    IF is_ring THEN
      RETURN QUERY
      WITH picked AS MATERIALIZED (
        SELECT t.* FROM weir._take_turns(ready.name, ring, this_seq, quota, before, snapshot) t
      ), judged AS MATERIALIZED (
        SELECT g.* FROM (SELECT array_agg(p.id) AS ids, array_agg(p.xid) AS xids, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos,
                                array_agg(coalesce(p.unique_until, 'infinity')) AS untils, array_agg(p.enqueued_at) AS times FROM picked p WHERE p.unique_key IS NOT NULL) u
        CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
        WHERE last.keyed AND u.ids IS NOT NULL
      ), aside AS MATERIALIZED (
        SELECT weir._set_aside(_claim.worker, ready.lane, this_seq, a.ids, a.segments, a.fates, a.reasons, a.onces, a.flows)
        FROM (SELECT array_agg(p.id) AS ids, array_agg(p.segment) AS segments, array_agg(g.fate) AS fates, array_agg(g.reason) AS reasons,
                     array_agg(CASE WHEN p.unique_no IS NULL THEN p.unique_key END) AS onces, array_agg(p.flow) AS flows
              FROM judged g JOIN picked p ON p.id = g.id WHERE g.fate <> 'run' OR p.unique_no IS NULL) a
        WHERE last.keyed AND a.ids IS NOT NULL
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids, seen, gate, lanes, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.xids[1], state.xids[cardinality(state.xids)], '0', 0,
               last.total + cardinality(state.xids), now(), batch_no, p.ids,
               CASE WHEN last.keyed AND EXISTS (SELECT FROM judged g WHERE g.fate = 'run') THEN snapshot END, ready.gate, p.lanes, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, array_agg(p.lane) AS lanes, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p,
             (SELECT array_agg(p.xid ORDER BY p.xid) AS xids FROM picked p) state
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (p.lane & 3)::integer + 1, p.key, p.flow
      FROM picked p
      WHERE p.id > upto AND p.unique_key IS NULL
         OR CASE WHEN last.keyed AND p.unique_key IS NOT NULL THEN (SELECT count(*) FROM aside) IS NOT NULL AND p.id IN (SELECT g.id FROM judged g WHERE g.fate = 'run')
                 ELSE p.id > upto OR p.id <> ALL ((
        SELECT weir._drop(_claim.worker, ready.lane, this_seq, filters, array_agg(d.segment), array_agg(d.id), array_agg(d.attempt), array_agg(d.kind), array_agg(d.meta), array_agg(d.enqueued_at), array_agg(d.key), array_agg((d.lane & 3)::integer + 1), array_agg(d.flow))
        FROM picked d WHERE d.unique_key IS NULL)::bigint[]) END;
    ELSIF upto = 0 AND NOT last.keyed THEN  -- nothing to end: the statement below, with less to prepare
      RETURN QUERY
      WITH late AS MATERIALIZED (
        SELECT j.id, j.xid, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.flow, p.ord AS pending_ord
        FROM unnest(ended, afters) WITH ORDINALITY p(xid, after, ord)
        CROSS JOIN LATERAL (
          SELECT j.* FROM weir.job j
          WHERE j.lane = ready.lane AND j.xid = p.xid AND j.id > p.after
          ORDER BY j.xid, j.id LIMIT quota) j
        LIMIT quota
      ), picked AS MATERIALIZED (
        SELECT late.* FROM late
        UNION ALL
        (SELECT j.id, j.xid, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.flow, NULL::bigint FROM generate_series(0, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j.* FROM weir.job j
           WHERE j.lane = ready.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
             AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))  -- more transactions may be in progress than skip lists
           ORDER BY j.xid, j.id LIMIT quota) j
         LIMIT quota)
        LIMIT quota
      ), state AS MATERIALIZED (
        -- picked is sorted: late before fresh, each by (xid, id), and every late xid is below every fresh one.
        SELECT r.xids[1] AS from_xid, r.xids[r.n] AS to_xid, r.n, r.n_late, r.late_ord,
               CASE WHEN r.n > r.n_late THEN r.xids[r.n] ELSE last.pos_xid END AS pos_xid,
               CASE WHEN r.n > r.n_late THEN r.ids[r.n] ELSE last.pos_id END AS pos_id
        FROM (SELECT array_agg(p.xid) AS xids, array_agg(p.id) AS ids, count(*)::integer AS n,
                     count(p.pending_ord)::integer AS n_late, max(p.pending_ord) AS late_ord FROM picked p) r
      ), unread AS MATERIALIZED (
        -- Transactions that have ended but, because late rows filled the batch, are not yet read to their end.
        SELECT array_agg(e.xid) AS xids, array_agg(CASE WHEN e.ord = state.late_ord THEN (SELECT max(l.id) FROM late l WHERE l.pending_ord = e.ord) ELSE e.after END) AS afters
        FROM state, unnest(ended, afters) WITH ORDINALITY e(xid, after, ord) WHERE state.n_late >= quota AND e.ord >= state.late_ord
      ), pending AS MATERIALIZED (
        SELECT CASE WHEN p.n > 0 OR u.xids IS NOT NULL THEN u.xids || running[1 : p.n] END AS xids,
               CASE WHEN p.n > 0 OR u.xids IS NOT NULL THEN u.afters || array_fill(0::bigint, ARRAY[p.n]) END AS afters
        FROM (SELECT width_bucket(state.pos_xid, running) AS n FROM state) p, unread u
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, gate, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.from_xid, state.to_xid, state.pos_xid, state.pos_id,
               last.total + state.n, now(), batch_no, pending.xids, pending.afters, p.ids, ready.gate, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p, state, pending
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (ready.lane & 3)::integer + 1, NULL::text, p.flow
      FROM picked p;
    ELSE
      RETURN QUERY
      WITH late AS MATERIALIZED (
        SELECT j.id, j.xid, j.lane, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, p.ord AS pending_ord
        FROM unnest(ended, afters) WITH ORDINALITY p(xid, after, ord)
        CROSS JOIN LATERAL (
          SELECT j.* FROM weir.job j
          WHERE j.lane = ready.lane AND j.xid = p.xid AND j.id > p.after
          ORDER BY j.xid, j.id LIMIT quota) j
        LIMIT quota
      ), picked AS MATERIALIZED (
        SELECT late.* FROM late
        UNION ALL
        (SELECT j.id, j.xid, j.lane, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, NULL::bigint FROM generate_series(0, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j.* FROM weir.job j
           WHERE j.lane = ready.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
             AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))  -- more transactions may be in progress than skip lists
           ORDER BY j.xid, j.id LIMIT quota) j
         LIMIT quota)
        LIMIT quota
      ), state AS MATERIALIZED (
        -- picked is sorted: late before fresh, each by (xid, id), and every late xid is below every fresh one.
        SELECT r.xids[1] AS from_xid, r.xids[r.n] AS to_xid, r.n, r.n_late, r.late_ord,
               CASE WHEN r.n > r.n_late THEN r.xids[r.n] ELSE last.pos_xid END AS pos_xid,
               CASE WHEN r.n > r.n_late THEN r.ids[r.n] ELSE last.pos_id END AS pos_id
        FROM (SELECT array_agg(p.xid) AS xids, array_agg(p.id) AS ids, count(*)::integer AS n,
                     count(p.pending_ord)::integer AS n_late, max(p.pending_ord) AS late_ord FROM picked p) r
      ), unread AS MATERIALIZED (
        -- Transactions that have ended but, because late rows filled the batch, are not yet read to their end.
        SELECT array_agg(e.xid) AS xids, array_agg(CASE WHEN e.ord = state.late_ord THEN (SELECT max(l.id) FROM late l WHERE l.pending_ord = e.ord) ELSE e.after END) AS afters
        FROM state, unnest(ended, afters) WITH ORDINALITY e(xid, after, ord) WHERE state.n_late >= quota AND e.ord >= state.late_ord
      ), judged AS MATERIALIZED (
        SELECT g.* FROM (SELECT array_agg(p.id) AS ids, array_agg(p.xid) AS xids, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos,
                                array_agg(coalesce(p.unique_until, 'infinity')) AS untils, array_agg(p.enqueued_at) AS times FROM picked p WHERE p.unique_key IS NOT NULL) u
        CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
        WHERE last.keyed AND u.ids IS NOT NULL
      ), pending AS MATERIALIZED (
        -- If this transaction began before those whose jobs it has picked, the jobs that it logs again lie before the position.
        SELECT CASE WHEN p.n > 0 OR u.xids IS NOT NULL OR p.own IS NOT NULL THEN u.xids || running[1 : p.n] || p.own END AS xids,
               CASE WHEN p.n > 0 OR u.xids IS NOT NULL OR p.own IS NOT NULL THEN u.afters || array_fill(0::bigint, ARRAY[p.n + coalesce(cardinality(p.own), 0)]) END AS afters
        FROM (SELECT width_bucket(state.pos_xid, running) AS n,
                     CASE WHEN own <= state.pos_xid AND EXISTS (SELECT FROM judged g WHERE g.fate = 'again') THEN ARRAY[own] END AS own FROM state) p, unread u
      ), aside AS MATERIALIZED (
        SELECT weir._set_aside(_claim.worker, ready.lane, this_seq, a.ids, a.segments, a.fates, a.reasons, a.onces, a.flows)
        FROM (SELECT array_agg(p.id) AS ids, array_agg(p.segment) AS segments, array_agg(g.fate) AS fates, array_agg(g.reason) AS reasons,
                     array_agg(CASE WHEN p.unique_no IS NULL THEN p.unique_key END) AS onces, array_agg(p.flow) AS flows
              FROM judged g JOIN picked p ON p.id = g.id WHERE g.fate <> 'run' OR p.unique_no IS NULL) a
        WHERE last.keyed AND a.ids IS NOT NULL
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, seen, gate, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.from_xid, state.to_xid, state.pos_xid, state.pos_id,
               last.total + state.n, now(), batch_no, pending.xids, pending.afters, p.ids,
               CASE WHEN last.keyed AND EXISTS (SELECT FROM judged g WHERE g.fate = 'run') THEN snapshot END, ready.gate, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p, state, pending
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (p.lane & 3)::integer + 1, p.key, p.flow
      FROM picked p
      WHERE p.id > upto AND p.unique_key IS NULL
         OR CASE WHEN last.keyed AND p.unique_key IS NOT NULL THEN (SELECT count(*) FROM aside) IS NOT NULL AND p.id IN (SELECT g.id FROM judged g WHERE g.fate = 'run')
                 ELSE p.id > upto OR p.id <> ALL ((
        SELECT weir._drop(_claim.worker, ready.lane, this_seq, filters, array_agg(d.segment), array_agg(d.id), array_agg(d.attempt), array_agg(d.kind), array_agg(d.meta), array_agg(d.enqueued_at), array_agg(d.key), array_agg((d.lane & 3)::integer + 1), array_agg(d.flow))
        FROM picked d WHERE d.unique_key IS NULL)::bigint[]) END;
    END IF;

    GET DIAGNOSTICS taken = ROW_COUNT;
    limits[ready.ord] := limits[ready.ord] - taken;
    unshared := unshared - taken;
    IF ready.gate IS NOT NULL AND taken > 0 THEN
      INSERT INTO weir.gate (gate, seq, running, folded, next_start, before)
      SELECT ready.gate, gate_now.seq + 1, gate_now.counted + taken, gate_now.folded,
             CASE WHEN l.rate IS NOT NULL THEN weir._started(l.rate / extract(epoch FROM l.per), l.burst, gate_now.next_start, gate_now.at, taken) END, gate_now.before
      FROM weir.queue_limit l WHERE l.name = ready.name;
      IF taken = gate_now.room THEN  -- there may be more jobs
        gate_now := weir._gate_now(ready.name, ready.gate, false);
        withheld := withheld || ready.name;
        again_at := again_at || gate_now.next_at;
      END IF;
      -- If the claim were lost in a crash, its jobs might run without being counted.
      PERFORM set_config('synchronous_commit', CASE commits WHEN 'off' THEN 'on' ELSE commits END, true);
    END IF;
    IF is_ring AND (upto > 0 OR last.keyed) THEN
      is_cut := weir._pass_ended(_claim.worker, ready.name, ready.lane, this_seq, filters, last.keyed) OR is_cut;
    END IF;
    IF taken >= quota THEN
      NULL;
    ELSIF is_ring AND taken > 0 THEN  -- some keys had fewer jobs than their part; what came since can wait for the next claim
      ring := weir._ring_of(ready.name);
      is_cut := is_cut OR ring.newcomers <> '{}' OR ring.stopped_after IS NOT NULL OR weir._has_waiting(ARRAY(SELECT q.id::bigint FROM weir.queue q WHERE q.name = ready.name), ring.tag);
    ELSIF is_ring THEN  -- it has ended some
      is_cut := is_cut OR weir._has_turns(ready.name, pg_current_snapshot());
    ELSIF upto > 0 OR last.keyed THEN
      IF (SELECT b.total FROM weir.batch b WHERE b.lane = ready.lane ORDER BY b.seq DESC LIMIT 1) > last.total + taken THEN
        is_cut := true;  -- it has ended some, so others may wait behind them
        PERFORM weir._skip_ended(_claim.worker, ready.lane, filters, true) WHERE last.keyed;
      END IF;
    END IF;
  END LOOP;
  IF has_keys THEN
    has_limits := EXISTS (SELECT FROM unnest(_claim.queues) u(name) JOIN weir.queue_limit l ON l.name = u.name WHERE l.key_running IS NOT NULL OR l.key_rate IS NOT NULL);
  END IF;
  IF has_limits THEN
    -- Keys that a limit has stopped for a time: when the first of them may have another turn.
    FOR ready IN
      SELECT l.name, a.again_at FROM unnest(_claim.queues, limits) u(name, quota) JOIN weir.queue_limit l ON l.name = u.name
      CROSS JOIN LATERAL (SELECT r.due FROM weir._ring_of(l.name) r OFFSET 0) d
      CROSS JOIN LATERAL (
        SELECT t.again_at FROM weir.queue q
        CROSS JOIN LATERAL (SELECT t.lane, t.seq, t.again_at FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at >= d.due ORDER BY t.again_at OFFSET 0) t
        WHERE q.name = l.name AND NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq)
        LIMIT 1) a
      WHERE u.quota > 0 AND u.name <> ALL (withheld)
    LOOP
      withheld := withheld || ready.name;
      again_at := again_at || ready.again_at;
    END LOOP;
  END IF;
  FOR i IN 1..cardinality(withheld) LOOP
    queue := withheld[i];
    enqueued_at := clock_timestamp();
    ready_at := again_at[i];
    RETURN NEXT;
  END LOOP;
  IF shortened <> '{}' THEN
    is_cut := is_cut OR EXISTS (SELECT FROM unnest(shortened) o WHERE limits[o] > 0);
  END IF;
  IF visited = max_lanes OR is_cut THEN
    queue := NULL;
    enqueued_at := NULL;
    ready_at := NULL;
    RETURN NEXT;  -- without values: there may be more
  END IF;
END
$$;
COMMENT ON FUNCTION weir._claim IS
  'Claims the next jobs of the named queues for a worker: up to limits[i] of queues[i] (at most 960 of a lane in one call), priority by priority, and with ageing some of lower priorities (see _reserve), each attempt in exactly one batch. put_off is how often this attempt was snoozed or released before; ready_at is when the job became ready, if that is not enqueued_at. lane and seq name the batch; jobs with keys are in batches of their queue''s ring lane, whatever their priority. dropped is NULL if the job is to be run; otherwise it must not be run, but be recorded as cancelled, and dropped is the reason, to be stored as its error ('''': none to store). A paused or unknown queue returns no jobs. since is a hint for workers of very many queues: of queues that are not in backlog, only jobs of transactions that ended after that snapshot are considered; NULL: all. Jobs that weir.cancel_where has cancelled, and unique jobs that need no run (see _judge), are not returned: the claim ends them itself, thousands in one call. It visits at most 200 lanes with jobs, from a random queue on; if there may be more, the last row is all NULL, and the caller claims again at once. For each queue of which jobs were withheld there is a row without a job: with the queue and, in enqueued_at, the present time; and if only its rate has withheld them, or four other claims that have its gate or its turns, or wait for them, in ready_at, when there may be some. Otherwise it is worth another claim when attempts have ended, which moves weir.job_id. Errors: WR001 (the worker is unknown or fenced), WR003 (positions are ahead of the cluster), WR004 (not in READ COMMITTED autocommit), 22023, 55000 (the transaction is old: try again). Locks: advisory: claims (shared), the worker''s claims (exclusive), the unique jobs of each queue that has had some (exclusive, only tried if it has locked a lane already), the gate of each queue that has limits and room, and the ring of each that has jobs with keys (exclusive, only tried if it has locked a lane or a gate already; otherwise see _lock_behind_few), each lane with jobs that it visits, and with ageing the queue''s other lanes (exclusive, to the end of the call). Isolation: READ COMMITTED, in autocommit. Commits asynchronously, unless it returns jobs of a queue with limits.';

CREATE OR REPLACE FUNCTION weir._turn_lanes(queues text[], hinted bigint[]) RETURNS TABLE (lane bigint, ord bigint, name text)
LANGUAGE plpgsql STABLE  -- so that it is planned once for each session
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT (q.id << 39) + 4, n.ord, n.name
  FROM (SELECT u.name, u.ord FROM unnest(_turn_lanes.queues) WITH ORDINALITY u(name, ord) WHERE _turn_lanes.hinted IS NULL
        UNION ALL
        SELECT m.name, array_position(_turn_lanes.queues, m.name)
        FROM (SELECT q.name FROM weir.queue q WHERE q.id = ANY (ARRAY(SELECT DISTINCT (h >> 39)::integer FROM unnest(_turn_lanes.hinted) h))
              UNION  -- where keys have limits, they may have turns without anything that is new
              SELECT k.name FROM weir.queue_limit k WHERE _turn_lanes.hinted IS NOT NULL AND num_nonnulls(k.key_running, k.key_rate) > 0) m) n
  CROSS JOIN LATERAL (SELECT min(q.id)::bigint AS id FROM weir.queue q WHERE q.name = n.name AND EXISTS (SELECT FROM weir.with_keys k WHERE k.queue = n.name) OFFSET 0) q
  WHERE n.ord IS NOT NULL AND q.id IS NOT NULL;
END
$$;
COMMENT ON FUNCTION weir._turn_lanes IS
  'The ring lanes of those queues that have had jobs with keys; with a hint, only those that it has lanes of, and those whose keys have limits. A function, so that claims where no queue has any don''t prepare to look for them. Errors: none. Locks: none.';

CREATE OR REPLACE FUNCTION weir._lock_behind_few(what integer, key integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  -- Four places: one for the transaction that has the lock, and three for the next.
  FOR place IN 0..3 LOOP
    IF pg_try_advisory_xact_lock(what + 2, key # (place << 29)) THEN
      PERFORM pg_advisory_xact_lock(what, key);
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END
$$;
COMMENT ON FUNCTION weir._lock_behind_few IS
  'Takes the lock of a gate or of turns, but waits for it behind three other claims at most; false: four are there already. In a large fleet, all would wait for longer than deadlock_timeout, and then spend their time, and the server''s, on looking for deadlocks. Locks: advisory: a place (exclusive, tried) and the lock itself (exclusive), to the end of the transaction.';
