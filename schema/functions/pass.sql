-- What a claim from keys does if it has ended some of the jobs that it has picked, because they are cancelled by a filter or are duplicates of others.

CREATE OR REPLACE FUNCTION weir._pass_ended(worker integer, name text, lane bigint, seq bigint, filters weir.cancellation_where[], keyed boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  max_rounds CONSTANT integer := 20;
  max_jobs   CONSTANT integer := 9600;  -- in one call
  max_size   CONSTANT integer := 960;   -- of a batch, as in a claim
  max_time   CONSTANT interval := '100 milliseconds';  -- for what others wait for, or may find no more of
  max_heads  CONSTANT integer := 300;   -- in a round
  max_skip   CONSTANT integer := 4;
  last_id    CONSTANT bigint  := 9223372036854775807;
  key_mask   CONSTANT bigint  := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  began      timestamptz := clock_timestamp();
  active     smallint    := pg_sequence_last_value('weir.active_job');
  lim        weir.queue_limit;
  ring       weir.ring;
  top        xid8;
  skip       xid8[];
  lanes      bigint[];     -- those of the jobs that it has ended
  states     weir.turn[];  -- where these stand
  this       weir.turn[];  -- those of a round
  places     integer := CASE WHEN keyed THEN 1 ELSE 100 END;  -- how many they are at most; unique jobs are judged lane by lane, so that what is ended in one is known in the next
  goes_on    boolean;      -- to the keys that come next, because it has ended all that it has picked
  head_tag   bigint;       -- how far it has gone
  all_gone   boolean := true;  -- of the keys up to there, none waits for a turn any more
  size       integer := CASE WHEN keyed THEN 30 ELSE max_size END;
  this_seq   bigint  := seq;
  most       integer;      -- jobs of each in one round
  passed     integer := 0;
  next       record;
  fates      record;
  written    record;
BEGIN
  SELECT array_agg(k.lane) FILTER (WHERE k.is_ended), bool_and(k.is_ended) AND NOT keyed INTO lanes, goes_on
  FROM (SELECT k.lane, EXISTS (SELECT FROM weir.result r WHERE r.lane = b.lane AND r.seq = b.seq AND k.id = ANY (r.ids)) AS is_ended
        FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) k(id, lane) WHERE b.lane = _pass_ended.lane AND b.seq = _pass_ended.seq) k;
  IF lanes IS NULL THEN
    RETURN false;
  END IF;
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _pass_ended.name;
  ring := weir._ring_of(name);
  -- They have taken no slot.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT lim.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, lanes WHERE lim.key_running IS NOT NULL;
  IF lim.key_rate IS NOT NULL THEN
    -- And no start of the rate: what it keeps from one, on any lane of these keys, is looked at again.
    this_seq := this_seq + 1;
    INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
    SELECT t.lane, this_seq, t.pos_xid, t.pos_id, t.tag, active, t.waits, t.parked, t.pending, t.pending_after, t.open,
           CASE WHEN t.seq = _pass_ended.seq THEN t.next_start - k.n * extract(epoch FROM lim.key_per) / lim.key_rate * interval '1 second' ELSE t.next_start END, CASE WHEN t.again_at IS NOT NULL THEN greatest(began, ring.due) END
    FROM (SELECT l.lane & key_mask AS bits, count(*) AS n FROM unnest(lanes) l(lane) GROUP BY l.lane & key_mask) k
    CROSS JOIN weir.queue q CROSS JOIN generate_series(0, 7) f(form)
    CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = (q.id::bigint << 39) + k.bits + f.form ORDER BY t.seq DESC LIMIT 1) t
    WHERE q.name = _pass_ended.name AND (t.seq = _pass_ended.seq OR t.again_at IS NOT NULL);
    ring.seq := this_seq;
    INSERT INTO weir.ring SELECT (ring).*;
  END IF;

  -- Others like them often come next in their lanes.
  lanes := ARRAY(SELECT DISTINCT l FROM unnest(lanes) l);
  states := ARRAY(SELECT t FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (SELECT t FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t);
  top := pg_snapshot_xmax(ring.arrived);
  skip := ARRAY(SELECT x FROM pg_snapshot_xip(ring.arrived) x ORDER BY x LIMIT max_skip);
  FOR round IN 1..max_rounds LOOP
    this := states[: places];
    EXIT WHEN this = '{}';
    most := greatest(1, size / cardinality(this));
    SELECT array_agg(f.nr) AS nrs, array_agg(f.is_late) AS lates, array_agg((f.job).segment) AS segments, array_agg((f.job).xid) AS xids, array_agg((f.job).id) AS ids,
           array_agg((f.job).attempt) AS attempts, array_agg((f.job).kind) AS kinds, array_agg((f.job).meta) AS metas, array_agg((f.job).enqueued_at) AS enqueued,
           array_agg((f.job).key) AS keys, array_agg(((f.job).lane & 3)::integer + 1) AS priorities,
           array_agg((f.job).unique_key) AS unique_keys, array_agg((f.job).unique_no) AS nos, array_agg((f.job).unique_until) AS untils, array_agg((f.job).flow) AS flows INTO next
    FROM unnest(this) WITH ORDINALITY t(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, nr)
    CROSS JOIN LATERAL (
      -- As in a turn.
      SELECT t.nr, true AS is_late, j.job FROM (SELECT p.* FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE t.pending IS NOT NULL ORDER BY p.xid OFFSET 0) p
      CROSS JOIN LATERAL (SELECT j AS job FROM weir.job j WHERE j.lane = t.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT most) j
      UNION ALL
      (SELECT t.nr, false, j.job FROM (SELECT width_bucket(t.pos_xid, skip) AS below OFFSET 0) s
       CROSS JOIN LATERAL generate_series(s.below, cardinality(skip)) i
       CROSS JOIN LATERAL (
         SELECT j AS job FROM weir.job j
         WHERE j.lane = t.lane AND j.xid < coalesce(skip[i + 1], top)
           AND (j.xid, j.id) > (CASE WHEN i > s.below THEN skip[i] ELSE t.pos_xid END, CASE WHEN i > s.below THEN last_id ELSE t.pos_id END)
           AND pg_visible_in_snapshot(j.xid, ring.arrived)
         ORDER BY j.xid, j.id LIMIT most) j
       LIMIT most)
      LIMIT most) f;
    SELECT array_agg(e.id ORDER BY e.nr) AS ids, array_agg(e.reason ORDER BY e.nr) AS reasons, array_agg(e.nr ORDER BY e.nr) AS nrs INTO fates
    FROM weir._ended_among(filters, keyed, next.ids, next.xids, next.attempts, next.kinds, next.metas, next.enqueued, next.keys, next.priorities, next.unique_keys, next.nos, next.untils, next.flows) e;
    this_seq := this_seq + 1;
    WITH prefix AS MATERIALIZED (  -- of each lane, the rows up to the first one that is not ended
      SELECT u.* FROM (
        SELECT u.*, e.reason, count(*) OVER (PARTITION BY u.nr) AS n_found, bool_and(e.nr IS NOT NULL) OVER (PARTITION BY u.nr ORDER BY u.place) AS is_ended
        FROM unnest(next.nrs, next.lates, next.segments, next.xids, next.ids, next.flows) WITH ORDINALITY u(nr, is_late, segment, xid, id, flow, place)
        LEFT JOIN LATERAL (SELECT width_bucket(u.place, fates.nrs) AS at OFFSET 0) w ON fates.nrs IS NOT NULL
        LEFT JOIN LATERAL (SELECT fates.nrs[w.at] AS nr, fates.reasons[w.at] AS reason WHERE fates.nrs[w.at] = u.place) e ON true) u
      WHERE u.is_ended
    ), reach AS MATERIALIZED (
      SELECT p.nr, count(*) AS n, count(*) FILTER (WHERE p.is_late) AS n_late, (array_agg(p.xid ORDER BY p.place DESC))[1] AS xid, (array_agg(p.id ORDER BY p.place DESC))[1] AS id, max(p.n_found) AS n_found FROM prefix p GROUP BY p.nr
    ), made AS (
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids, lanes, flows)
      SELECT _pass_ended.lane, s.segment, s.segment, _pass_ended.worker, this_seq, a.xids[1], a.xids[cardinality(a.xids)], '0', 0,
             (SELECT b.total FROM weir.batch b WHERE b.lane = _pass_ended.lane AND b.seq < this_seq ORDER BY b.seq DESC LIMIT 1) + cardinality(a.xids), now(), o.no, s.ids, s.lanes, weir._flows_of(s.flows)
      FROM (SELECT nextval('weir.batch_no') AS no OFFSET 0) o, (SELECT array_agg(p.xid ORDER BY p.xid) AS xids FROM prefix p) a,
           (SELECT p.segment, array_agg(p.id ORDER BY p.place) AS ids, array_agg((this[p.nr]).lane ORDER BY p.place) AS lanes, array_agg(p.flow ORDER BY p.place) AS flows FROM prefix p GROUP BY p.segment) s
    ), ended AS (
      INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
      SELECT _pass_ended.lane, p.segment, _pass_ended.worker, this_seq, clock_timestamp(), 'cancelled', array_agg(p.id ORDER BY p.place),
             CASE WHEN max(p.reason) <> '' THEN array_agg(nullif(p.reason, '') ORDER BY p.place) END
      FROM prefix p GROUP BY p.segment
    ), moved AS MATERIALIZED (
      SELECT r.nr, r.n, w.is_empty,
             ROW(t.lane, this_seq, CASE WHEN r.n > r.n_late THEN r.xid ELSE t.pos_xid END, CASE WHEN r.n > r.n_late THEN r.id ELSE t.pos_id END,
                 t.tag, active, t.waits AND NOT w.is_empty, t.parked AND NOT w.is_empty, p.xids, p.afters, t.open, t.next_start, CASE WHEN NOT w.is_empty THEN t.again_at END)::weir.turn AS turn
      FROM reach r CROSS JOIN LATERAL unnest(this[r.nr : r.nr]) t
      CROSS JOIN LATERAL (SELECT r.n = r.n_found AND r.n < most AS is_empty OFFSET 0) w
      CROSS JOIN LATERAL (
        -- Of those that it has not passed: from the last transaction that was read on.
        SELECT array_agg(p.xid ORDER BY p.xid) AS xids, array_agg(CASE WHEN p.xid = r.xid THEN r.id ELSE p.after END ORDER BY p.xid) AS afters
        FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE r.n = r.n_late AND p.xid >= r.xid) p
    ), stands AS (
      INSERT INTO weir.turn SELECT (m.turn).* FROM moved m
    )
    SELECT coalesce(sum(m.n), 0) AS n, count(*) FILTER (WHERE m.is_empty) AS n_gone, coalesce(array_agg(m.turn ORDER BY m.nr) FILTER (WHERE m.n = most), '{}') AS again,
           (SELECT array_agg(p.flow) FROM prefix p WHERE p.flow IS NOT NULL) AS flows, (SELECT array_agg(p.reason) FROM prefix p WHERE p.flow IS NOT NULL) AS reasons INTO written FROM moved m;
    PERFORM weir._arrive_ended(written.flows, written.reasons);
    IF written.n > 0 THEN
      ring.seq := this_seq;
      all_gone := all_gone AND (head_tag IS NULL OR written.n_gone = cardinality(this));
      IF all_gone THEN
        ring.tag := greatest(ring.tag, head_tag);  -- virtual time goes on
      END IF;
      INSERT INTO weir.ring SELECT (ring).*;
    ELSE
      this_seq := this_seq - 1;
    END IF;
    passed := passed + written.n;
    states := written.again || states[places + 1 :];
    EXIT WHEN passed >= max_jobs OR (keyed OR head_tag IS NOT NULL) AND clock_timestamp() - began > max_time;
    IF keyed AND written.again <> '{}' THEN
      size := least(2 * size, max_size);
    END IF;
    IF states = '{}' THEN
      EXIT WHEN NOT goes_on OR head_tag IS NOT NULL AND written.n = 0;
      places := max_heads;
      states := weir._heads(name, coalesce(head_tag, ring.tag), max_heads);
      EXIT WHEN states IS NULL;
      head_tag := states[cardinality(states)].tag;
    END IF;
  END LOOP;
  RETURN lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL OR states <> '{}';
END
$$;
COMMENT ON FUNCTION weir._pass_ended IS
  'If a claim from the keys of a queue has ended some of the jobs in its batch seq itself, gives back what their limits have counted for them, and ends the jobs that follow them in their lanes, up to the first one that may run; if it has ended all of them, also those of the keys that come next. Up to 9600 in one call, in batches that are ended as they are claimed. True: there may be more, or the limits allow more. The caller is the claim, and holds the lock of the ring, and of the queue''s unique jobs, if it has any (keyed).';

CREATE OR REPLACE FUNCTION weir._heads(name text, tag bigint, most integer) RETURNS weir.turn[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN (
    SELECT (array_agg(h.turn ORDER BY (h.turn).tag))[: _heads.most] FROM weir.queue q
    CROSS JOIN LATERAL (
      SELECT t AS turn FROM weir.turn t
      WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= _heads.tag
        AND NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND (n.seq, n.segment) > (t.seq, t.segment))  -- reclaiming may have repeated it
      ORDER BY t.tag LIMIT _heads.most) h
    WHERE q.name = _heads.name);
END
$$;
COMMENT ON FUNCTION weir._heads IS
  'Where the keys of a queue stand that wait for their turns from this tag on, in their order, at most most. Locks: none. Isolation: READ COMMITTED.';
