-- Turns: how a claim hands out the jobs of keys.
--
-- A key is a lane of its own, and weir.turn holds where each stands: a row for each turn, of which the newest is the key's whole state. All claims
-- from the keys of a queue hold one lock, the ring's, and form a chain: each announces the transactions that its snapshot sees and the one before did
-- not (weir.ring.arrived), and reads only rows that are announced. The rows that lead (see weir.job) name the keys with news, so nothing searches for
-- keys that have work. Of a transaction that ends late, after its key's position has passed it, this is when that is noticed: it becomes
-- pending, and is read before anything else. So a state lists no transaction in progress, however many there are.
--
-- A job of a key waits if it lies past the key's position, if its transaction is pending, or if it is not announced yet.
--
-- Turns are given by start-time fair queueing (Goyal, Vin, Cheng: Start-Time Fair Queuing, 1996): a key's tag is when, in virtual time, its
-- next turn begins; each job moves it on by a unit divided by the key's weight; the key with the least tag is next, and virtual time is the tag
-- of the last turn that began. A key that has had no jobs for a while begins now, and saves nothing up.

CREATE OR REPLACE FUNCTION weir._key_bits(key text) RETURNS bigint
LANGUAGE sql STABLE  -- as convert_to is
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT greatest(1, ('x' || substr(encode(sha256(convert_to(_key_bits.key, 'UTF8')), 'hex'), 1, 9))::bit(36)::bigint) << 3
$$;
COMMENT ON FUNCTION weir._key_bits IS 'What the lanes of a key have in common: 36 bits of a hash, never 0, in their places. Two keys with the same share a lane. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._take_turns(name text, ring weir.ring, seq bigint, quota integer, before bigint, snapshot pg_snapshot) RETURNS SETOF weir.job
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  unit      CONSTANT bigint  := 1048576;  -- of virtual time: a job's, at a weight of 1
  max_keys  CONSTANT integer := least(quota, 100);  -- with a turn in one call: they bound how long it takes
  max_rows  CONSTANT integer := 1000;     -- that lead, announced in one call; more only of one transaction, and these at once: see crowd
  max_lanes CONSTANT integer := greatest(50, 2 * max_keys);  -- they name
  max_stopped CONSTANT integer := 100;  -- that are looked at again in one call
  max_skip  CONSTANT integer := 4;
  last_id   CONSTANT bigint  := 9223372036854775807;
  key_mask  CONSTANT bigint  := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  ids       bigint[]    := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _take_turns.name);
  rings     bigint[]    := ARRAY(SELECT (q << 39) + 4 FROM unnest(ids) q);  -- the ring lanes of these
  active    smallint    := pg_sequence_last_value('weir.active_job');
  at        timestamptz := clock_timestamp();
  due       bigint[];       -- the keys whose rate may allow a turn now, as lanes
  due_upto  timestamptz;    -- at, or the time of the last one, if there are more
  lim       weir.queue_limit;
  seen      pg_snapshot := weir._snapshot_of_others(snapshot);
  top       xid8;
  skip      xid8[];         -- transactions in progress for so long that the claim before saw them too: they may be large
  lanes     bigint[];       -- with news: of each, and of each transaction, one
  xids      xid8[];
  read_upto xid8;           -- the last transaction that was read
  crowd     xid8;           -- the same, if more than max_rows of its rows lead: their lanes wait for their turns without being looked at one by one
  n_crowd   bigint := 0;    -- how many they are
  freed     bigint[];       -- keys of which an attempt has ended, as lanes without their forms
  stopped   bigint[];       -- keys that are looked at again for another reason, and may have a turn
  looked    weir.turn[];    -- their lanes
  forms     integer[];
  states    weir.turn[];    -- of the lanes that may have a turn, as they are with what is announced now; in the order of their turns
  may       boolean[];      -- it has a turn, if there is room
  changed   boolean[];      -- it differs from what is stored
  rooms     integer[];      -- how many each may start; 0: it has no turn in this call
  allowed   integer[];      -- of these, how many its limits allow
  shares    boolean[];      -- another lane of its key comes first, and may not use what it gets
  tries     timestamptz[];  -- when its rate allows one
  starts    timestamptz[];  -- its key's next_start
  chosen    integer;        -- the first so many of states have a turn
  popped    integer;        -- new keys that were left over by the last call, and may have a turn in this one
  newcomers bigint[];       -- those that this one leaves over
  offsets   double precision[];  -- when their turns begin, from the present virtual time on
  weights   double precision[];
  others    integer;        -- how many have a turn, but no place in this call
  size      integer;        -- the length of states
  has_weights boolean := EXISTS (SELECT FROM weir.key_weight w WHERE w.queue = _take_turns.name);
  leftover  record;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _take_turns.name;

  -- What is new. Beyond max_rows it is left to the next claim, from the end of a transaction on.
  SELECT n.lanes, n.xids INTO lanes, xids FROM weir._key_news(ids, ring.arrived, seen, max_rows) n;
  read_upto := xids[max_rows];
  IF cardinality(lanes) > max_lanes THEN
    SELECT coalesce((SELECT n.xid FROM (SELECT u.xid, u.nr, count(*) FILTER (WHERE u.is_first) OVER (ORDER BY u.nr) AS n
                                        FROM (SELECT u.xid, u.nr, row_number() OVER (PARTITION BY u.lane ORDER BY u.nr) = 1 AS is_first
                                              FROM unnest(lanes, xids) WITH ORDINALITY u(lane, xid, nr)) u) n
                     WHERE n.n > max_lanes ORDER BY n.nr LIMIT 1), read_upto) INTO read_upto;
  END IF;
  IF read_upto IS NOT NULL THEN
    IF (SELECT count(*) > max_rows FROM (SELECT FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, read_upto) AND (j.lane >> 39, j.xid) <= (q.id, read_upto) OFFSET 0) j LIMIT max_rows + 1) l) THEN
      crowd := read_upto;
    END IF;
    SELECT array_agg(u.lane), array_agg(u.xid) INTO lanes, xids
    FROM (SELECT u.lane, u.xid FROM unnest(lanes, xids) u(lane, xid) WHERE u.xid < read_upto
          UNION ALL
          SELECT j.lane, read_upto FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, read_upto) AND (j.lane >> 39, j.xid) <= (q.id, read_upto) OFFSET 0) j WHERE crowd IS NULL) u;
    seen := weir._snapshot_upto(ring.arrived, seen, read_upto);
  END IF;
  top := pg_snapshot_xmax(seen);
  skip := CASE WHEN pg_snapshot_xmin(seen) < pg_snapshot_xmax(ring.arrived) THEN ARRAY(SELECT x FROM pg_snapshot_xip(seen) x WHERE NOT pg_visible_in_snapshot(x, ring.arrived) AND x < pg_snapshot_xmax(ring.arrived) ORDER BY x LIMIT max_skip) ELSE '{}' END;
  popped := least(cardinality(ring.newcomers), max_keys);
  forms := ARRAY(SELECT f FROM generate_series(0, 7) f WHERE (ring.forms | (SELECT coalesce(bit_or(1 << (u & 7)::integer), 0) FROM unnest(lanes) u)) & (1 << f) <> 0);
  IF lim.key_running IS NOT NULL THEN
    freed := ARRAY(
      SELECT DISTINCT (q.id << 39) + (l.lane & key_mask) FROM weir._ended_since(ring.arrived, seen) e
      CROSS JOIN LATERAL (SELECT r.lanes FROM weir.release r WHERE r.gate = lim.gate AND r.xid >= e.low AND r.xid < e.high
                            AND pg_visible_in_snapshot(r.xid, seen) AND r.lanes IS NOT NULL OFFSET 0) r
      CROSS JOIN unnest(CASE WHEN r.lanes = '{}' THEN ARRAY[NULL::bigint] ELSE r.lanes END) l(lane) CROSS JOIN unnest(ids) q(id));
  END IF;
  IF coalesce(lim.version, 0) <> ring.version OR array_position(freed, NULL) IS NOT NULL THEN
    -- Other limits than before, or a release without lanes: all keys that a limit has stopped are looked at again, some of them in each claim.
    ring.stopped_after := coalesce(ring.stopped_after, 0);
    ring.stopped_upto := ring.stopped_after;
    freed := array_remove(freed, NULL);
  END IF;
  IF ring.stopped_after IS NOT NULL THEN
    SELECT n.keys, n.after, n.upto INTO stopped, ring.stopped_after, ring.stopped_upto FROM weir._next_stopped(ids, ring.stopped_after, ring.stopped_upto, max_stopped) n;
    IF stopped <> '{}' AND (lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL) THEN
      -- Most may still not start any: these take no place from others.
      looked := ARRAY(SELECT t.t FROM unnest(stopped) s(lane) CROSS JOIN unnest(forms) g(form)
                      CROSS JOIN LATERAL (SELECT t FROM weir.turn t WHERE t.lane = s.lane + g.form ORDER BY t.seq DESC LIMIT 1) t WHERE (t.t).parked OR (t.t).again_at IS NOT NULL);
      stopped := ARRAY(
        SELECT DISTINCT k.lane & ~ 7::bigint
        FROM weir._limit_turns(lim, looked, array_fill(1, ARRAY[cardinality(looked)]), ids, rings, forms, ring.arrived, before, at) l
        CROSS JOIN LATERAL unnest(looked, l.allowed, l.tries) WITH ORDINALITY AS k(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, allowed, try_at, nr)
        WHERE k.allowed > 0 OR k.try_at <> coalesce(k.again_at, '-infinity'));
    END IF;
  END IF;

  -- Rows that others follow count no more.
  SELECT array_agg(t.lane ORDER BY t.again_at), CASE WHEN count(*) = max_rows THEN max(t.again_at) ELSE at END INTO due, due_upto
  FROM (SELECT t.lane, t.again_at FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (SELECT t.lane, t.seq, t.again_at FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at BETWEEN ring.due AND at ORDER BY t.again_at OFFSET 0) t
        WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq)
        LIMIT CASE WHEN cardinality(ids) > 1 THEN NULL ELSE max_rows END) t;

  -- Who may have a turn, in the order of the turns.
  WITH news AS MATERIALIZED (
    SELECT u.lane, array_agg(u.xid ORDER BY u.nr) AS xids, min(u.nr) AS nr
    FROM (SELECT u.lane, u.xid, min(u.nr) AS nr FROM unnest(lanes, xids) WITH ORDINALITY u(lane, xid, nr) GROUP BY u.lane, u.xid) u GROUP BY u.lane
  ), touched AS MATERIALIZED (
    SELECT u.lane, min(u.nr) AS nr, array_agg(u.xids) FILTER (WHERE u.xids IS NOT NULL) AS xids, bool_or(u.is_news) AS is_news, bool_or(u.is_freed) AS is_freed
    FROM (SELECT n.lane, n.nr, NULL::xid8[] AS xids, true AS is_news, false AS is_freed FROM unnest(ring.newcomers[: popped]) WITH ORDINALITY n(lane, nr)
          UNION ALL SELECT n.lane, popped + n.nr, n.xids, true, false FROM news n
          UNION ALL SELECT f.lane + g.form, 0, NULL, false, true FROM unnest(freed) f(lane) CROSS JOIN unnest(forms) g(form)
          UNION ALL SELECT d.lane, 0, NULL, false, false FROM unnest(due) d(lane)
          UNION ALL SELECT s.lane + g.form, NULL, NULL, false, true FROM unnest(stopped) s(lane) CROSS JOIN unnest(forms) g(form)) u  -- behind new ones
    GROUP BY u.lane
  ), stored AS MATERIALIZED (
    SELECT k.lane AS of_lane, k.nr, k.is_news, k.is_freed, t.*, n.late
    FROM touched k
    LEFT JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = k.lane ORDER BY t.seq DESC LIMIT 1) t ON true
    CROSS JOIN LATERAL (
      SELECT array_agg(x ORDER BY x) AS late
      FROM (SELECT unnest(k.xids) AS x UNION ALL SELECT crowd WHERE EXISTS (SELECT FROM weir.job j WHERE j.lane = k.lane AND j.xid = crowd)) x WHERE x < t.pos_xid) n
  ), able AS (
    SELECT s.of_lane, s.pos_xid, s.pos_id, greatest(coalesce(s.tag, 0), ring.tag) AS tag, coalesce(s.waits, false) AS waits,
           coalesce(s.parked AND NOT s.is_freed, false) AS parked,
           s.pending || s.late AS pending, CASE WHEN s.late IS NOT NULL THEN s.pending_after || array_fill(0::bigint, ARRAY[cardinality(s.late)]) ELSE s.pending_after END AS pending_after,
           s.open, s.next_start, CASE WHEN s.again_at > at AND NOT s.is_freed THEN s.again_at END AS again_at,
           s.late IS NOT NULL OR s.is_freed OR s.again_at <= at AS is_changed, s.nr,
           s.seq IS NULL OR s.waits OR s.is_freed OR NOT s.parked AND s.again_at IS NULL OR s.again_at <= at AS has_turn
    FROM stored s
    WHERE s.is_news AND (s.late IS NOT NULL OR s.seq IS NULL OR NOT s.waits AND NOT s.parked AND s.again_at IS NULL) OR s.is_freed AND (s.parked OR s.again_at IS NOT NULL) OR s.again_at <= at
  ), head AS MATERIALIZED (
    SELECT t.*, crowd < t.pos_xid AND EXISTS (SELECT FROM weir.job j WHERE j.lane = t.lane AND j.xid = crowd) AS is_late FROM unnest(ids) q(id)
    CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= ring.tag ORDER BY t.tag OFFSET 0) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND (n.seq, n.segment) > (t.seq, t.segment))  -- reclaiming may have repeated it
      AND t.lane NOT IN (SELECT a.of_lane FROM able a)
    LIMIT CASE WHEN cardinality(ids) > 1 THEN NULL ELSE max_keys + 1 END  -- of twins, the turns are mixed
  ), known AS (
    SELECT ROW(a.of_lane, _take_turns.seq, a.pos_xid, a.pos_id, a.tag, active, a.waits, a.parked, a.pending, a.pending_after, a.open, a.next_start, a.again_at)::weir.turn AS state,
           coalesce(a.has_turn, false) AS has_turn, coalesce(a.is_changed, false) AS is_changed, a.tag, a.nr, NULL::bigint AS place FROM able a
    UNION ALL
    SELECT ROW(h.lane, _take_turns.seq, h.pos_xid, h.pos_id, h.tag, active, true, false, CASE WHEN h.is_late THEN h.pending || crowd ELSE h.pending END,
               CASE WHEN h.is_late THEN h.pending_after || 0::bigint ELSE h.pending_after END, h.open, h.next_start, NULL)::weir.turn,
           true, coalesce(h.is_late, false), h.tag, NULL, row_number() OVER (ORDER BY h.tag) FROM head h
  )
  SELECT array_agg(k.state ORDER BY k.rank), array_agg(k.has_turn ORDER BY k.rank), array_agg(k.is_changed ORDER BY k.rank), array_agg(k.start ORDER BY k.rank),
         array_agg(coalesce(CASE WHEN has_weights THEN (SELECT w.weight FROM weir.key_weight w WHERE w.queue = _take_turns.name AND w.bits = (k.state).lane & key_mask) END, 1) ORDER BY k.rank)
    INTO states, may, changed, offsets, weights
  FROM (
    SELECT k.*, row_number() OVER (ORDER BY NOT k.has_turn, k.start, k.nr NULLS LAST) AS rank  -- of two that may begin at once, the new one
    FROM (
      -- If there are more new keys than places, a quarter of these is for keys that have waited for a turn, however many new ones come.
      SELECT k.*, CASE WHEN count(*) FILTER (WHERE k.nr > 0) OVER () >= quota AND k.place <= CASE WHEN quota < 4 THEN (_take_turns.seq % 4 = 0)::integer ELSE quota / 4 END
                       THEN -1 ELSE k.tag - ring.tag END::double precision AS start
      FROM known k) k) k;
  size := coalesce(cardinality(states), 0);

  -- How many jobs each may start. Virtual time goes on from tag to tag, and faster the fewer keys there are, until all places are taken: up to this
  -- level, each key whose tag lies before it has got as many as its weight gives it in the meantime.
  WITH key AS MATERIALIZED (
    SELECT k.nr, k.start / unit AS start, k.weight FROM unnest(offsets, may, weights) WITH ORDINALITY k(start, may, weight, nr)
    WHERE k.may ORDER BY k.nr LIMIT max_keys
  ), level AS MATERIALIZED (
    SELECT s.nr, s.level
    FROM (SELECT k.nr, (quota + sum(k.start * k.weight) OVER (ORDER BY k.nr)) / sum(k.weight) OVER (ORDER BY k.nr) AS level, lead(k.start) OVER (ORDER BY k.nr) AS next FROM key k) s
    WHERE s.next IS NULL OR s.level <= s.next ORDER BY s.nr LIMIT 1
  )
  SELECT array_agg(least(p.part, quota - p.before) ORDER BY p.nr) INTO rooms
  FROM (
    SELECT p.nr, p.part, sum(p.part) OVER (ORDER BY p.nr) - p.part AS before
    FROM (SELECT k.nr, greatest(1, ceil((l.level - k.start) * k.weight - 1e-6))::integer AS part FROM level l JOIN key k ON k.nr <= l.nr) p) p
  WHERE p.before < quota;
  chosen := coalesce(cardinality(rooms), 0);
  allowed := rooms;
  IF chosen > 0 AND (lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL) THEN
    SELECT l.kept || states[chosen + 1 :], l.allowed, l.shares, l.tries, l.starts INTO states, allowed, shares, tries, starts
    FROM weir._limit_turns(lim, states[: chosen], rooms, ids, rings, forms, ring.arrived, before, at) l;
  END IF;
  rooms := rooms || array_fill(0, ARRAY[size - chosen]);
  others := (SELECT count(*) FROM unnest(may[chosen + 1 :]) m WHERE m) + greatest(0, cardinality(ring.newcomers) - popped);

  -- New keys that have no place in this call are the first of a later one, in their order. Of few, the ring's row lists the lanes; others get a row each.
  newcomers := ring.newcomers[popped + 1 :];
  IF size > chosen THEN
    SELECT array_agg(l.lane ORDER BY l.nr) FILTER (WHERE l.is_popped) AS popped, array_agg(l.lane ORDER BY l.nr) FILTER (WHERE NOT l.is_popped AND NOT l.is_listed) AS new INTO leftover
    FROM (SELECT u.lane, u.nr, u.lane IN (SELECT n FROM unnest(ring.newcomers[: popped]) n) AS is_popped, u.lane IN (SELECT n FROM unnest(newcomers) n) AS is_listed
          FROM unnest(states[chosen + 1 :], may[chosen + 1 :], changed[chosen + 1 :]) WITH ORDINALITY
            u(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, may, changed, nr)
          WHERE u.may AND NOT u.changed AND NOT u.waits) l;
    newcomers := leftover.popped || newcomers;
    newcomers := newcomers || leftover.new[: 10 * max_keys - cardinality(newcomers)];
  END IF;

  IF crowd IS NOT NULL THEN
    -- As the others that have no place in this call.
    WITH waiting AS (
      INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
      SELECT n.lane, _take_turns.seq, coalesce(t.pos_xid, '0'), coalesce(t.pos_id, 0), greatest(coalesce(t.tag, 0), ring.tag) + CASE WHEN t.waits THEN 0 ELSE n.nr END, active,
             coalesce(t.waits OR NOT t.parked AND t.again_at IS NULL, true), coalesce(t.parked, false),
             CASE WHEN crowd < t.pos_xid THEN t.pending || crowd ELSE t.pending END, CASE WHEN crowd < t.pos_xid THEN t.pending_after || 0::bigint ELSE t.pending_after END,
             t.open, t.next_start, t.again_at
      FROM (SELECT u.lane, min(u.nr) AS nr FROM (SELECT j.lane, row_number() OVER () AS nr FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, crowd) AND (j.lane >> 39, j.xid) <= (q.id, crowd) OFFSET 0) j) u
            GROUP BY u.lane) n
      LEFT JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = n.lane ORDER BY t.seq DESC LIMIT 1) t ON true
      WHERE (t.lane IS NULL OR crowd < t.pos_xid OR NOT t.waits AND NOT t.parked AND t.again_at IS NULL)
        AND (crowd < t.pos_xid OR n.lane NOT IN (SELECT unnest(newcomers))) AND n.lane NOT IN (SELECT s.lane FROM unnest(states) s)
      RETURNING lane
    )
    SELECT w.n, ARRAY(SELECT f FROM generate_series(0, 7) f WHERE f = ANY (forms) OR w.bits & (1 << f) <> 0) INTO n_crowd, forms
    FROM (SELECT count(*) AS n, bit_or(1 << (w.lane & 7)::integer) AS bits FROM waiting w) w;
    others := others + n_crowd;
  END IF;

  RETURN QUERY
  WITH turn AS (
    SELECT t.*, t.room > 0 AS is_served
    FROM unnest(states, may, changed, weights, rooms, allowed, shares, tries, starts) WITH ORDINALITY
      t(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, may, changed, weight, room, allowed, shares, try_at, start_at, nr)
    WHERE t.room > 0 OR t.changed OR NOT t.may OR t.waits OR t.lane NOT IN (SELECT n FROM unnest(newcomers) n)
  ), found AS (
    SELECT t.*, f.jobs, f.n AS n_found, f.n_late AS n_late_found, least(t.allowed, f.n) AS n
    FROM turn t
    -- The rows that its transactions have left behind, and then those past its position: one more than it may start, if there are more.
    CROSS JOIN LATERAL (
      SELECT array_agg(f.job) AS jobs, count(*)::integer AS n, count(*) FILTER (WHERE f.is_late)::integer AS n_late
      FROM (
        SELECT true AS is_late, j.job FROM (SELECT p.* FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE t.pending IS NOT NULL ORDER BY p.xid OFFSET 0) p
        CROSS JOIN LATERAL (SELECT j AS job FROM weir.job j WHERE t.is_served AND j.lane = t.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT t.allowed + 1) j
        UNION ALL
        (SELECT false, j.job FROM (SELECT width_bucket(coalesce(t.pos_xid, '0'), skip) AS below OFFSET 0) s
         CROSS JOIN LATERAL generate_series(s.below, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j AS job FROM weir.job j
           WHERE t.is_served AND j.lane = t.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > s.below THEN skip[i] ELSE coalesce(t.pos_xid, '0') END, CASE WHEN i > s.below THEN last_id ELSE coalesce(t.pos_id, 0) END)
             AND pg_visible_in_snapshot(j.xid, seen)
           ORDER BY j.xid, j.id LIMIT t.allowed + 1) j
         LIMIT t.allowed + 1)) f) f
  ), next AS MATERIALIZED (
    SELECT f.*, f.n_found > f.n AS is_more, (f.jobs[f.n]).xid AS last_xid, (f.jobs[f.n]).id AS last_id,
           -- Keys that came at the same time differ in their place, so that no two turns begin at once, and what was served is not read again.
           f.tag + CASE WHEN f.is_served THEN (f.n * unit / f.weight)::bigint
                        WHEN f.waits THEN 0 ELSE f.nr END AS next_tag,
           -- At its limit, a key whose turn would come again at once leaves the ring until one of its attempts ends. Otherwise one may have ended by then.
           CASE WHEN f.is_served THEN f.n_found > f.n AND f.try_at IS NULL AND (f.allowed >= f.room OR f.shares OR others > 0 AND f.n > 0) ELSE f.may OR f.waits END AS will_wait,
           CASE WHEN f.is_served THEN f.n_found > f.n AND f.try_at IS NULL ELSE f.parked END AS will_park
    FROM found f
  ), written AS (
    INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
    SELECT n.lane, n.seq,
           CASE WHEN n.n > n.n_late_found THEN n.last_xid ELSE coalesce(n.pos_xid, '0') END, CASE WHEN n.n > n.n_late_found THEN n.last_id ELSE coalesce(n.pos_id, 0) END,
           n.next_tag, n.segment, n.will_wait, NOT n.will_wait AND n.will_park, p.xids, p.afters,
           CASE WHEN lim.key_running IS NOT NULL THEN n.open || (SELECT array_agg(v.v ORDER BY u.ordinality, v.nr) FROM unnest(n.jobs[: n.n]) WITH ORDINALITY u
                  CROSS JOIN LATERAL (VALUES (1, n.seq), (2, u.id)) v(nr, v)) END,
           CASE WHEN lim.key_rate IS NOT NULL THEN
             CASE WHEN n.n > 0 THEN weir._started(lim.key_rate / extract(epoch FROM lim.key_per), lim.key_burst, n.start_at, at,
               (SELECT sum(o.n)::integer FROM next o WHERE o.lane & key_mask = n.lane & key_mask)) ELSE n.next_start END END,
           CASE WHEN NOT n.is_served THEN CASE WHEN NOT n.may THEN n.again_at END WHEN n.is_more AND n.try_at IS NOT NULL THEN greatest(n.try_at, due_upto) END
    FROM next n
    CROSS JOIN LATERAL (
      -- Late rows that there was no room for: from the last transaction that was read on.
      SELECT array_agg(p.xid ORDER BY p.xid) AS xids, array_agg(CASE WHEN n.n > 0 AND p.xid = n.last_xid THEN n.last_id ELSE p.after END ORDER BY p.xid) AS afters
      FROM unnest(n.pending, n.pending_after) p(xid, after)
      WHERE NOT n.is_served OR n.n_late_found > n.n AND (n.n = 0 OR p.xid >= n.last_xid)) p
    WHERE CASE WHEN n.is_served THEN n.n_found > 0 OR n.waits OR n.changed ELSE n.changed OR n.may AND NOT n.waits END
  ), announced AS (
    -- Virtual time is where the next turn begins, or the last one, if there is no next.
    INSERT INTO weir.ring (queue, seq, tag, forms, version, arrived, newcomers, due, stopped_after, stopped_upto)
    SELECT _take_turns.name, _take_turns.seq,
           CASE WHEN n_crowd > 0 THEN ring.tag ELSE greatest(ring.tag, coalesce(min(n.next_tag) FILTER (WHERE n.will_wait), max(n.tag) FILTER (WHERE n.is_served))) END,
           (SELECT coalesce(bit_or(1 << f), 0) FROM unnest(forms) f), coalesce(lim.version, 0), seen, newcomers, due_upto, ring.stopped_after, ring.stopped_upto
    FROM next n
  )
  SELECT u.id, u.xid, u.enqueued_at, u.ready_at, u.lane, u.attempt, u.max_attempts, u.put_off, u.segment, u.leads, u.kind, u.args, u.meta, u.seq, u.errors,
         u.unique_key, u.unique_no, u.unique_until, u.key, u.flow
  FROM next n CROSS JOIN LATERAL unnest(n.jobs[: n.n]) WITH ORDINALITY u
  ORDER BY u.ordinality, n.nr;
END
$$;
COMMENT ON FUNCTION weir._take_turns IS
  'The next jobs from the keys of a queue: up to quota, each key as many as its weight and its limits allow, in the order of their turns. It announces what is new, and writes where the keys and the ring stand. before: see _gate_now. snapshot: of the claim, taken after the ring''s lock. The caller is a claim, which holds the ring''s lock and logs the batch seq in the ring lane. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._next_stopped(ids bigint[], INOUT after bigint, INOUT upto bigint, most integer, OUT keys bigint[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
  last_lane CONSTANT bigint  := 9223372036854775807;
  to_end    CONSTANT boolean := upto <= after;
BEGIN
  -- From key to key, because a key has an old row for each time that it was stopped.
  keys := ARRAY(
    WITH RECURSIVE stopped AS (
      SELECT _next_stopped.after - 7 AS key
      UNION ALL
      SELECT n.key FROM stopped s CROSS JOIN LATERAL (
        SELECT min(t.lane) & ~ 7::bigint AS key FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE (t.parked OR t.again_at IS NOT NULL) AND t.lane > greatest(s.key + 7, q.id << 39)
                              AND t.lane < (q.id + 1) << 39 AND t.lane <= CASE WHEN to_end THEN last_lane ELSE _next_stopped.upto END ORDER BY t.lane LIMIT 1) t) n
      WHERE n.key IS NOT NULL
    )
    SELECT s.key FROM stopped s OFFSET 1 LIMIT most);
  IF cardinality(keys) = most AND keys[most] + 7 IS DISTINCT FROM upto THEN
    after := keys[most] + 7;
  ELSIF to_end AND upto > 0 THEN
    after := 0;
  ELSE
    after := NULL;
    upto := NULL;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._next_stopped IS
  'The next keys, at most most, of those that a limit has or had stopped and that are to be looked at again, as lanes without their forms; after and upto: see weir.ring. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._limit_turns(
  lim weir.queue_limit, states weir.turn[], rooms integer[], ids bigint[], rings bigint[], forms integer[], arrived pg_snapshot, before bigint, at timestamptz,
  OUT kept weir.turn[], OUT allowed integer[], OUT shares boolean[], OUT tries timestamptz[], OUT starts timestamptz[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  key_mask  CONSTANT bigint := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  by_second double precision := lim.key_rate / extract(epoch FROM lim.key_per);
BEGIN
  WITH chosen AS MATERIALIZED (
    SELECT s.*, s.lane & key_mask AS bits
    FROM unnest(states, rooms) WITH ORDINALITY s(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, room, nr)
  ), family AS MATERIALIZED (  -- the lanes of these keys: of other priorities, put back, of twins
    SELECT c.bits, c.lane, c.open, c.next_start FROM chosen c
    UNION ALL
    SELECT k.bits, l.lane, t.open, t.next_start FROM (SELECT DISTINCT c.bits FROM chosen c) k
    CROSS JOIN LATERAL (SELECT (q.id << 39) + k.bits + f.form AS lane FROM unnest(ids) q(id) CROSS JOIN unnest(forms) f(form)) l
    CROSS JOIN LATERAL (SELECT t.open, t.next_start FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t
    WHERE l.lane NOT IN (SELECT c.lane FROM chosen c)
  ), open AS MATERIALIZED (
    SELECT f.bits, f.lane, f.open[2 * i - 1] AS seq, f.open[2 * i] AS id, i FROM family f CROSS JOIN LATERAL generate_series(1, cardinality(f.open) / 2) i
  ), ended AS MATERIALIZED (
    SELECT s.seq, r.ids, r.outcome IN ('completed', 'failed', 'cancelled') AS is_final
    FROM (SELECT DISTINCT o.seq FROM open o) s CROSS JOIN unnest(rings) q(lane)
    CROSS JOIN LATERAL (SELECT r.ids, r.outcome FROM weir.result r WHERE r.lane = q.lane AND r.seq = s.seq OFFSET 0) r
  ), batch AS MATERIALIZED (
    SELECT s.seq, b.ids FROM (SELECT DISTINCT o.seq FROM open o) s CROSS JOIN unnest(rings) q(lane)
    CROSS JOIN LATERAL (SELECT b.ids FROM weir.batch b WHERE b.lane = q.lane AND b.seq = s.seq OFFSET 0) b
  ), still AS MATERIALIZED (
    -- Reclaiming keeps the batches of attempts that run, and nothing of those that have ended.
    SELECT o.*
    FROM (SELECT o.bits, o.lane, o.seq, o.id, o.i, coalesce(bool_or(e.is_final), false) AS is_final,
                 count(e.seq) > 0 OR NOT EXISTS (SELECT FROM batch b WHERE b.seq = o.seq AND o.id = ANY (b.ids)) AS is_followed
          FROM open o LEFT JOIN ended e ON e.seq = o.seq AND o.id = ANY (e.ids) GROUP BY o.bits, o.lane, o.seq, o.id, o.i) o
    WHERE NOT o.is_followed OR NOT o.is_final AND lim.in_order AND weir._is_put_back(o.id, o.bits, ids, arrived)
  ), earlier AS MATERIALIZED (  -- attempts that ran before the queue had these limits
    SELECT l.lane & key_mask AS bits, count(*) AS n, count(*) FILTER (WHERE EXISTS (SELECT FROM still s WHERE s.seq = u.seq AND s.id = l.id)) AS counted  -- since an even earlier limit
    FROM weir.gate g CROSS JOIN LATERAL unnest(g.before_lanes, g.before_seqs) u(lane, seq)
    CROSS JOIN LATERAL (SELECT b.ids, b.lanes FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq AND b.lanes IS NOT NULL OFFSET 0) b
    CROSS JOIN LATERAL unnest(b.ids, b.lanes) l(id, lane)
    WHERE g.gate = lim.gate AND g.seq = before
      AND NOT EXISTS (SELECT FROM weir.result r WHERE r.lane = u.lane AND r.seq = u.seq AND l.id = ANY (r.ids))
    GROUP BY l.lane & key_mask
  ), used AS MATERIALIZED (
    SELECT u.bits, sum(u.runs) AS runs, sum(u.follow) AS follow, sum(u.earlier) AS earlier
    FROM (SELECT s.bits, count(*) FILTER (WHERE NOT s.is_followed) AS runs, count(*) FILTER (WHERE s.is_followed) AS follow, 0 AS earlier FROM still s GROUP BY s.bits
          UNION ALL SELECT e.bits, e.n - e.counted, 0, e.n FROM earlier e) u
    GROUP BY u.bits
  ), start AS MATERIALIZED (
    SELECT f.bits, max(f.next_start) AS next_start FROM family f GROUP BY f.bits
  ), held AS MATERIALIZED (
    SELECT s.lane, array_agg(v.v ORDER BY s.i, v.nr) AS open FROM still s CROSS JOIN LATERAL (VALUES (1, s.seq), (2, s.id)) v(nr, v) GROUP BY s.lane
  ), room AS (
    SELECT c.*, h.open AS still_open, s.next_start AS start_at, u.earlier,
           -- Of several lanes of a key, each gets what is left by those before it; what was put back comes first.
           sum(c.room) OVER (PARTITION BY c.bits ORDER BY c.lane & 4 DESC, c.nr) - c.room AS ahead,
           -- In order, nothing of a key starts while an earlier job of it is to be tried again; except that job, which waits in front.
           lim.key_running - coalesce(u.runs, 0) - CASE WHEN c.lane & 4 = 0 THEN coalesce(u.follow, 0) ELSE 0 END AS slots,
           CASE WHEN lim.key_rate IS NOT NULL THEN weir._starts_now(by_second, lim.key_burst, s.next_start, at) END AS by_rate
    FROM chosen c LEFT JOIN used u ON u.bits = c.bits LEFT JOIN start s ON s.bits = c.bits LEFT JOIN held h ON h.lane = c.lane
  ), decided AS (
    SELECT r.*, greatest(0, least(r.room, r.slots - r.ahead, r.by_rate - r.ahead))::integer AS n FROM room r
  )
  SELECT array_agg(ROW(d.lane, d.seq, d.pos_xid, d.pos_id, d.tag, d.segment, d.waits, d.parked, d.pending, d.pending_after, d.still_open, d.next_start, d.again_at)::weir.turn ORDER BY d.nr),
         array_agg(d.n ORDER BY d.nr), array_agg(d.ahead > 0 ORDER BY d.nr),
         array_agg(CASE WHEN d.by_rate - d.ahead - d.n <= 0 AND coalesce(d.slots - d.ahead > d.n, true) AND d.n < d.room
                        THEN weir._starts_at(by_second, lim.key_burst, weir._started(by_second, lim.key_burst, d.start_at, at, d.n), at)
                        -- Attempts from before the limits tell nobody when they end.
                        WHEN d.n < d.room AND d.earlier > 0 THEN at + interval '100 milliseconds' END ORDER BY d.nr),
         array_agg(d.start_at ORDER BY d.nr)
    INTO kept, allowed, shares, tries, starts
  FROM decided d;
END
$$;
COMMENT ON FUNCTION weir._limit_turns IS
  'What the limits of keys allow: for each of these lanes how many jobs may start, at most its rooms, and if only the rate keeps it from more, when to try again; with its open attempts reduced to those that count. A key has one limit, whatever lanes it has. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._is_put_back(job_id bigint, bits bigint, ids bigint[], arrived pg_snapshot) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  logged record;
  later  record;
  state  weir.turn;
  c      weir.promotion;
BEGIN
  IF EXISTS (SELECT FROM weir.cancellation k WHERE k.id = job_id) OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= job_id) AND weir._is_cancelled_where(job_id) THEN
    RETURN false;  -- the next attempt will not run
  END IF;
  SELECT j.lane, j.xid, j.id, j.attempt, j.put_off INTO logged FROM weir.job j WHERE j.id = job_id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1;
  -- What was promoted may stay in weir.later for longer than in the log.
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT l.lane, l.attempt, l.put_off INTO later FROM (SELECT l.* FROM weir.later l WHERE l.id = job_id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1) l
  WHERE weir._waits_later(c, l.run_at, l.id, l.xid);
  IF later.attempt IS NOT NULL AND (logged.attempt IS NULL OR (later.attempt, later.put_off) > (logged.attempt, logged.put_off)) THEN
    RETURN later.lane >> 39 = ANY (ids) AND later.lane & 549755813880 = bits;
  ELSIF logged.lane IS NULL OR logged.lane & 4 = 0 OR logged.lane >> 39 <> ALL (ids) OR logged.lane & 549755813880 <> bits THEN
    RETURN false;
  END IF;
  SELECT t.* INTO state FROM weir.turn t WHERE t.lane = logged.lane ORDER BY t.seq DESC LIMIT 1;
  RETURN weir._waits(logged.xid, logged.id, state.pos_xid, state.pos_id, state.pending, state.pending_after) OR NOT pg_visible_in_snapshot(logged.xid, arrived);
END
$$;
COMMENT ON FUNCTION weir._is_put_back IS
  'Whether a job whose attempt has ended waits for its next one in this key: in front, or until it is due, and is not cancelled. Then it keeps its place in order. Isolation: READ COMMITTED.';
