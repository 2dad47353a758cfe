-- Ticks: batches of messages, cut through snapshots. A tick holds whole transactions: those that its snapshot sees and the snapshot of
-- the tick before did not. So no transaction that commits late is lost, nobody waits for the oldest one, and a tick is described by two
-- snapshots, whatever it holds. (PgQ cut its batches so in 2007; its readers need no more than the snapshots either.)

CREATE OR REPLACE FUNCTION weir._spans(from_xid xid8, snapshot pg_snapshot) RETURNS TABLE (low xid8, high xid8)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT s.low, s.high
  FROM (
    SELECT b.x AS low, lead(b.edge) OVER (ORDER BY b.x, b.edge) AS high
    FROM (
      SELECT _spans.from_xid AS x, _spans.from_xid AS edge
      UNION ALL
      SELECT (x::text::bigint + 1)::text::xid8, x FROM pg_snapshot_xip(_spans.snapshot) x WHERE x >= _spans.from_xid
      UNION ALL
      SELECT pg_snapshot_xmax(_spans.snapshot), pg_snapshot_xmax(_spans.snapshot)) b) s
  WHERE s.low < s.high AND s.low >= _spans.from_xid
$$;
COMMENT ON FUNCTION weir._spans IS
  'The stretches (low included, high not) of transactions from from_xid on that have ended in the snapshot. Looking only there, a scan never walks through the rows of one in progress.';

CREATE OR REPLACE FUNCTION weir._as_committed(snapshot pg_snapshot, xid xid8) RETURNS pg_snapshot
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF _as_committed.xid < pg_snapshot_xmax(_as_committed.snapshot) THEN
    RETURN _as_committed.snapshot;  -- it is not among those in progress, for a snapshot does not list whose it is
  ELSIF _as_committed.xid = pg_snapshot_xmax(_as_committed.snapshot) AND _as_committed.xid = pg_snapshot_xmin(_as_committed.snapshot) THEN
    RETURN replace('x:x:', 'x', (_as_committed.xid::text::bigint + 1)::text)::pg_snapshot;  -- nobody else: most often, and without a query
  END IF;
  RETURN (SELECT (coalesce(min(x), _as_committed.xid::text::bigint + 1) || ':' || _as_committed.xid::text::bigint + 1 || ':' || coalesce(string_agg(x::text, ',' ORDER BY x), ''))
          FROM (SELECT x::text::bigint FROM pg_snapshot_xip(_as_committed.snapshot) x
                UNION ALL
                SELECT generate_series(pg_snapshot_xmax(_as_committed.snapshot)::text::bigint, _as_committed.xid::text::bigint - 1)) p(x))::pg_snapshot;
END
$$;
COMMENT ON FUNCTION weir._as_committed IS
  'A transaction''s own snapshot as it would be if that had committed, and nothing else since. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._cut(most_messages integer DEFAULT 0, own_count integer DEFAULT 0, own_size bigint DEFAULT 0, own_segment integer DEFAULT NULL,
                         OUT seq bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamptz, OUT count integer, OUT size bigint,
                         OUT last_id bigint, OUT snapshot pg_snapshot, OUT whole boolean,
                         OUT ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most       CONSTANT integer := 10000;
  most_bytes CONSTANT bigint  := 8388608;
  small      CONSTANT bigint  := 262144;
  last  weir.tick;
  low   xid8;
  high  xid8;
  late  xid8[]  := '{}';
  found xid8[];
  ns    bigint[];
  sizes bigint[];
  masks integer[];
  mask  integer;
  taken integer := 0;
  one   boolean;  -- what is new are the transactions of one stretch
  stop  xid8;
  this  xid8    := CASE WHEN _cut.own_count > 0 THEN pg_current_xact_id() END;
BEGIN
  prior := weir._epoch_here();
  epoch := prior;
  SELECT t.* INTO last FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  last_id := coalesce(pg_sequence_last_value('weir.message_id'), 0);  -- before the snapshot
  snapshot := pg_current_snapshot();
  IF pg_snapshot_xmax(last.snapshot) > pg_snapshot_xmax(snapshot) THEN
    RAISE EXCEPTION 'weir: the log of messages comes from another cluster' USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
  END IF;
  IF this IS NOT NULL THEN
    snapshot := weir._as_committed(snapshot, this);  -- what this transaction has published commits with the tick
  END IF;

  -- What follows is read in later statements, which see more than the snapshot; so each row is found by its transaction, and what was
  -- committed after the snapshot is in nobody's stretch.
  low := pg_snapshot_xmax(last.snapshot);
  high := pg_snapshot_xmax(snapshot);
  IF pg_snapshot_xmin(last.snapshot) < low THEN
    late := ARRAY(SELECT x FROM pg_snapshot_xip(last.snapshot) x WHERE pg_visible_in_snapshot(x, _cut.snapshot));
  END IF;
  one := late = '{}' AND (pg_snapshot_xmin(snapshot) = high OR NOT EXISTS (SELECT FROM pg_snapshot_xip(_cut.snapshot) x WHERE x >= low));
  IF one AND low = this AND high = (this::text::bigint + 1)::text::xid8 THEN  -- nobody else's transaction is new
    count := _cut.own_count;
    size := _cut.own_size;
    mask := 1 << _cut.own_segment;
  ELSIF one THEN
    SELECT count(*), sum(m.size), bit_or(1 << m.segment) INTO count, size, mask
    FROM (SELECT m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= low AND m.xid < high LIMIT most + 1) m;
  END IF;
  IF NOT one OR count > most OR size > most_bytes THEN
    SELECT array_agg(g.xid ORDER BY g.xid), array_agg(g.n ORDER BY g.xid), array_agg(g.size ORDER BY g.xid), array_agg(g.mask ORDER BY g.xid)
      INTO found, ns, sizes, masks
    FROM (SELECT m.xid, count(*) AS n, sum(m.size) AS size, bit_or(1 << m.segment) AS mask
          FROM (SELECT m.* FROM unnest(late) l(x) CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid = l.x ORDER BY m.xid, m.id LIMIT most + 1) m
                UNION ALL
                SELECT m.* FROM weir._spans(low, _cut.snapshot) p CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high
                  ORDER BY m.xid, m.id LIMIT most + 1) m) m GROUP BY m.xid) g;
    -- Whole transactions, as many as make a tick of bounded size; one that is larger is a tick of its own.
    count := 0;
    size := 0;
    mask := 0;
    WHILE taken < cardinality(found) LOOP
      EXIT WHEN taken > 0 AND (count + ns[taken + 1] > most OR size + sizes[taken + 1] > most_bytes);
      taken := taken + 1;
      count := count + ns[taken];
      size := size + sizes[taken];
      mask := mask | masks[taken];
    END LOOP;
    stop := found[taken + 1];
    IF count > most THEN
      -- One transaction, whose rows were not counted to their end; so what follows it in its stretch has not been seen at all.
      SELECT count(*), sum(octet_length(m.payload)), bit_or(1 << m.segment) INTO count, size, mask FROM weir.message m WHERE m.xid = found[1];
      stop := (found[1]::text::bigint + 1)::text::xid8;
    END IF;
  END IF;
  IF count = 0 THEN
    IF pg_sequence_last_value('weir.tick_seq') <> last.seq THEN
      PERFORM setval('weir.tick_seq', last.seq);  -- an earlier cut was rolled back, and the register was not
    END IF;
    count := NULL;
    RETURN;
  END IF;
  whole := stop IS NULL;
  IF NOT whole THEN
    -- The rest is left for the next tick: this one's snapshot is as if those transactions had not committed yet.
    SELECT (coalesce(min(p.x::text::bigint), max(p.top::text::bigint)) || ':' || max(p.top::text::bigint) || ':'
            || coalesce(string_agg(p.x::text, ',' ORDER BY p.x), ''))::pg_snapshot INTO snapshot
    FROM (
      SELECT x, NULL::xid8 AS top FROM pg_snapshot_xip(CASE WHEN stop < low THEN last.snapshot ELSE _cut.snapshot END) x
      WHERE CASE WHEN stop < low THEN x >= stop OR NOT pg_visible_in_snapshot(x, _cut.snapshot) ELSE x < stop END
      UNION ALL
      SELECT NULL, CASE WHEN stop < low THEN low ELSE stop END) p;
  END IF;

  seq := last.seq + 1;
  at := clock_timestamp();
  IF epoch IS NULL THEN
    PERFORM weir._draw_epoch(seq);
    epoch := weir._epoch_of(seq);
    prior := weir._epoch_of(last.seq);
  END IF;
  IF this IS NOT NULL THEN
    PERFORM set_config('weir.cut', seq::text, true);  -- see check_message
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);  -- a position that was given out must be there after a crash
  END IF;
  INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
  VALUES (_cut.seq, low, _cut.last_id, _cut.size, _cut.at, _cut.count, mask, pg_sequence_last_value('weir.active_message'),
          ARRAY(SELECT x FROM unnest(found[:taken]) x WHERE x = ANY (late)), _cut.snapshot);
  PERFORM setval('weir.tick_seq', seq);
  IF count <= _cut.most_messages AND size <= small THEN
    SELECT array_agg(m.id ORDER BY m.id), array_agg(m.xid::text::bigint ORDER BY m.id), array_agg(m.channel ORDER BY m.id), array_agg(m.payload ORDER BY m.id),
           array_agg(m.is_binary ORDER BY m.id), array_agg(m.keep ORDER BY m.id) INTO ids, xids, channels, payloads, binaries, keeps
    FROM weir.message m WHERE m.xid >= least(low, found[1]) AND m.xid < high AND (m.xid = ANY (found[:taken]) OR taken = 0);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._cut IS
  'Cuts the next tick from what was committed since the last, and says what it is; all null when there was nothing. whole tells that it holds all that was committed before its snapshot. Of one with at most most_messages, and of 256 kB at most, the messages come with it. What this transaction itself has published, own_count messages of own_size bytes in the segment own_segment, counts as committed, for they commit together; after that nothing can be published or cut in it any more (WR004). The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._await_tick(after bigint, ids bigint DEFAULT NULL, seen pg_snapshot DEFAULT NULL, polls integer DEFAULT 1, pause double precision DEFAULT 0.003,
                          patience integer DEFAULT 0, cuts boolean DEFAULT true, epoch bigint DEFAULT NULL, most_messages integer DEFAULT 0,
                          OUT seqs bigint[], OUT ats timestamptz[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[],
                          OUT ids_now bigint, OUT seen_now pg_snapshot,
                          OUT message_ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  look  integer := 1;
  there bigint;
  floor bigint;
  made  record;
  slept text;
BEGIN
  IF _await_tick.polls IS NULL OR _await_tick.pause IS NULL OR _await_tick.polls < 1 OR _await_tick.polls * _await_tick.pause > 1 THEN
    RAISE EXCEPTION 'weir: tick waits at most 1 second: % polls, % s apart', _await_tick.polls, _await_tick.pause USING ERRCODE = '22023';
  ELSIF _await_tick.after IS NULL OR _await_tick.after < 0 THEN
    RAISE EXCEPTION 'weir: there is no tick %', coalesce(_await_tick.after::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('tick');
  IF _await_tick.cuts AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: tick needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF _await_tick.cuts AND clock_timestamp() - now() > interval '2 seconds' THEN  -- or the server stood still between two messages
    RAISE EXCEPTION 'weir: tick was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: until your commit nobody else could cut a tick. If it was, try again.';
  ELSIF _await_tick.cuts AND pg_is_in_recovery() THEN
    RAISE EXCEPTION 'weir: ticks are cut on the primary, and this is a standby' USING ERRCODE = '25006', HINT = 'Call it on the primary, or with cuts => false.';
  END IF;
  -- While nothing happens, no table is touched: a lock would last as long as this call, and keep segments from being given back.
  LOOP
    there := pg_sequence_last_value('weir.tick_seq');
    ids_now := coalesce(pg_sequence_last_value('weir.message_id'), 0);
    EXIT WHEN there > _await_tick.after OR _await_tick.cuts AND ids_now IS DISTINCT FROM _await_tick.ids;
    IF _await_tick.cuts AND look > _await_tick.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text IS DISTINCT FROM _await_tick.seen::text;
    END IF;
    IF look >= _await_tick.polls THEN
      IF _await_tick.ids IS NULL THEN
        PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
      END IF;
      ids_now := _await_tick.ids;
      seen_now := _await_tick.seen;
      RETURN;
    END IF;
    look := look + 1;
    slept := pg_sleep(_await_tick.pause);
  END LOOP;

  PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
  seen_now := pg_current_snapshot();
  FOR attempt IN 1..2 LOOP
    -- The register may be ahead, so it is the table that says whether a tick is missing.
    IF attempt = 2 OR there > _await_tick.after THEN
      SELECT array_agg(t.seq ORDER BY t.seq), array_agg(t.at ORDER BY t.seq), array_agg(t.count ORDER BY t.seq), array_agg(t.bytes ORDER BY t.seq),
             array_agg((SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= t.seq ORDER BY e.from_tick DESC LIMIT 1) ORDER BY t.seq)
        INTO seqs, ats, counts, sizes, epochs
      FROM (SELECT t.* FROM weir.tick t WHERE t.seq > _await_tick.after ORDER BY t.seq LIMIT 100) t;
    END IF;
    EXIT WHEN attempt = 2;
    IF seqs IS NOT NULL OR NOT _await_tick.cuts THEN
      ids_now := NULL;  -- there may be more
      IF seqs IS NULL AND there > _await_tick.after THEN
        slept := pg_sleep(_await_tick.pause);  -- it is being committed, or nobody has cut since a cut was rolled back
      END IF;
      EXIT;
    ELSIF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
      -- Whoever gets the lock cuts; all others read what was cut. Who did not get it must look again.
      ids_now := NULL;
      slept := pg_sleep(_await_tick.pause / 3);
    ELSE
      made := weir._cut(most_messages => _await_tick.most_messages);
      IF made.seq = _await_tick.after + 1 THEN
        seqs := ARRAY[made.seq]; ats := ARRAY[made.at]; counts := ARRAY[made.count]; sizes := ARRAY[made.size]; epochs := ARRAY[made.epoch];
        message_ids := made.ids; xids := made.xids; channels := made.channels; payloads := made.payloads; binaries := made.binaries; keeps := made.keeps;
        ids_now := CASE WHEN made.whole THEN made.last_id END;  -- else there is more
        seen_now := made.snapshot;
        EXIT;
      ELSIF made.seq IS NOT NULL THEN
        ids_now := NULL;
      END IF;
    END IF;
  END LOOP;
  floor := pg_sequence_last_value('weir.tick_floor');  -- after the look
  IF _await_tick.after < floor THEN
    RAISE EXCEPTION 'weir: ticks up to % have been truncated, and those after % were asked for', floor, _await_tick.after
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(floor) || '.' || floor;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._await_tick IS
  'Returns the ticks after a given one, at most 100, and cuts the next if there is none and cuts is true. The messages of one that it has cut come with it, if there are at most most_messages, of 256 kB. With the epoch of that given one it is refused where the log has been set back and has grown past it again. Looks up to so many times, pause seconds apart; ids and seen are what an earlier call returned: while nothing has been published or committed since then, only counters are looked at. A commit alone counts from look patience + 1 on. Errors: WR003 (see rebase_messages), WR004 (not in autocommit), WR005 (truncated; the detail is epoch.tick of the last that was), WR006 (see check_position; not looked at again while nothing changes), 22023, 25006. Locks: advisory step 4 (tried). Isolation: READ COMMITTED. It holds a snapshot while it waits: at most 1 second.';

CREATE OR REPLACE FUNCTION weir.ticks(after bigint, ids bigint DEFAULT NULL, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, epoch bigint DEFAULT NULL,
                                      OUT seqs bigint[], OUT ats timestamptz[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[],
                                      OUT ids_now bigint, OUT seen_now pg_snapshot)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  SELECT t.* INTO seqs, ats, counts, sizes, epochs, ids_now, seen_now
  FROM weir._await_tick(ticks.after, ids => ticks.ids, polls => ticks.polls, pause => ticks.pause, cuts => false, epoch => ticks.epoch) t;
  RAISE SQLSTATE 'WR099';  -- lets go of the tables, as every look does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.ticks IS
  'weir.tick for who reads and does not cut: a lock that a cut takes lasts until its transaction ends, so subscribers could stop everybody by not ending theirs. They see what hubs cut. Errors, isolation: as weir.tick with cuts => false. Locks: none that others wait for, and none that outlast the call.';

CREATE OR REPLACE FUNCTION weir.read(tick bigint, after_id bigint DEFAULT 0, max_rows integer DEFAULT 10000, epoch bigint DEFAULT NULL)
RETURNS TABLE (id bigint, xid xid8, channel text, payload bytea, is_binary boolean, keep boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  most_bytes CONSTANT bigint := 8388608;
  t   weir.tick;
  one xid8;
BEGIN
  -- What is returned outlasts the locks on the tables, so payloads are fetched and copied here (|| ''): where they lie may be truncated next.
  SELECT k.* INTO t FROM weir.tick k WHERE k.seq = read.tick;
  IF t.count > 10000 OR t.bytes > most_bytes THEN
    -- One transaction: in the order of the index.
    one := t.late[1];
    IF one IS NULL THEN
      SELECT m.xid INTO one FROM weir._spans(t.from_xid, t.snapshot) p
      CROSS JOIN LATERAL (SELECT m.xid FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high ORDER BY m.xid, m.id LIMIT 1) m LIMIT 1;
    END IF;
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.id) - octet_length(m.payload) AS before
            FROM (SELECT m.* FROM weir.message m WHERE m.xid = one AND m.id > read.after_id ORDER BY m.xid, m.id LIMIT read.max_rows) m) m
      WHERE m.before < most_bytes ORDER BY m.id;
  ELSE
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.* FROM weir._spans(t.from_xid, t.snapshot) p
            CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high OFFSET 0) m
            UNION ALL
            SELECT m.* FROM unnest(t.late) l(x) CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid = l.x OFFSET 0) m) m
      WHERE m.id > read.after_id ORDER BY m.id LIMIT read.max_rows;
  END IF;
  -- TRUNCATE empties a table for old snapshots too, so this comes last: it is raised before anything is truncated.
  IF read.tick <= pg_sequence_last_value('weir.tick_floor') THEN
    RAISE EXCEPTION 'weir: tick % has been truncated', read.tick
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(pg_sequence_last_value('weir.tick_floor')) || '.' || pg_sequence_last_value('weir.tick_floor');
  ELSIF t.seq IS NULL THEN
    RAISE EXCEPTION 'weir: there is no tick %', read.tick USING ERRCODE = '22023';
  ELSIF read.epoch IS NOT NULL THEN
    PERFORM weir._check_position(read.tick, read.epoch);
  END IF;
  RAISE SQLSTATE 'WR099';  -- lets go of the tables, as every look does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.read IS
  'The messages of a tick after a given id, in order of publishing: at most max_rows, and of a tick that is longer than 10000 or larger than 8 MB about 8 MB at most. Errors: WR005 (truncated; the detail is epoch.tick of the last that was), WR006 (the tick is of another epoch; see check_position), 22023. Locks: none that others wait for, and none that outlast the call. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.newest_tick() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  newest weir.tick;
BEGIN
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF NOT pg_is_in_recovery() THEN
    PERFORM weir._check_message_cluster();
    IF pg_snapshot_xmax(newest.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
      RAISE EXCEPTION 'weir: the log of messages comes from another cluster' USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
    END IF;
  END IF;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN newest.seq;
END
$$;
COMMENT ON FUNCTION weir.newest_tick IS
  'The newest tick. Errors: WR003 (the log comes from another cluster and needs weir.rebase_messages). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
