-- Ticks: batches of messages, cut by snapshots. A tick contains whole transactions: those that its snapshot sees and the snapshot of
-- the previous tick did not. So no transaction that commits late is lost, no tick waits for the oldest transaction, and two snapshots
-- describe a tick, whatever it contains. (PgQ has cut its batches in this way since 2007; its readers need only the snapshots, too.)

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
  'The ranges (low included, high not) of transactions from from_xid on that have ended in the snapshot. A scan of only these ranges skips the rows of transactions in progress.';

CREATE OR REPLACE FUNCTION weir._as_committed(snapshot pg_snapshot, xid xid8) RETURNS pg_snapshot
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF _as_committed.xid < pg_snapshot_xmax(_as_committed.snapshot) THEN
    RETURN _as_committed.snapshot;  -- it is not listed as in progress, because a snapshot does not list its own transaction
  ELSIF _as_committed.xid = pg_snapshot_xmax(_as_committed.snapshot) AND _as_committed.xid = pg_snapshot_xmin(_as_committed.snapshot) THEN
    RETURN replace('x:x:', 'x', (_as_committed.xid::text::bigint + 1)::text)::pg_snapshot;  -- no other transaction: the usual case, which needs no query
  END IF;
  RETURN (SELECT (coalesce(min(x), _as_committed.xid::text::bigint + 1) || ':' || _as_committed.xid::text::bigint + 1 || ':' || coalesce(string_agg(x::text, ',' ORDER BY x), ''))
          FROM (SELECT x::text::bigint FROM pg_snapshot_xip(_as_committed.snapshot) x
                UNION ALL
                SELECT generate_series(pg_snapshot_xmax(_as_committed.snapshot)::text::bigint, _as_committed.xid::text::bigint - 1)) p(x))::pg_snapshot;
END
$$;
COMMENT ON FUNCTION weir._as_committed IS
  'A transaction''s own snapshot, as if that transaction had committed, and no other since. Errors: none. Locks: none. Isolation: any.';

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
  max_count  CONSTANT integer := 10000;
  max_bytes  CONSTANT bigint  := 8388608;
  max_inline CONSTANT bigint  := 262144;  -- bytes of messages that are returned with the tick
  last       weir.tick;
  low        xid8;
  high       xid8;
  late       xid8[]  := '{}';
  found      xid8[];
  ns         bigint[];
  sizes      bigint[];
  masks      integer[];
  mask       integer;
  taken      integer := 0;
  one_range  boolean;  -- the new transactions form a single range of xids
  stop       xid8;
  this       xid8    := CASE WHEN _cut.own_count > 0 THEN pg_current_xact_id() END;
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
    snapshot := weir._as_committed(snapshot, this);  -- the messages of this transaction commit with the tick
  END IF;

  -- Later statements see more than the snapshot. So rows are found by their transactions, and transactions that committed after the
  -- snapshot are in no range.
  low := pg_snapshot_xmax(last.snapshot);
  high := pg_snapshot_xmax(snapshot);
  IF pg_snapshot_xmin(last.snapshot) < low THEN
    late := ARRAY(SELECT x FROM pg_snapshot_xip(last.snapshot) x WHERE pg_visible_in_snapshot(x, _cut.snapshot));
  END IF;
  one_range := late = '{}' AND (pg_snapshot_xmin(snapshot) = high OR NOT EXISTS (SELECT FROM pg_snapshot_xip(_cut.snapshot) x WHERE x >= low));
  IF one_range AND low = this AND high = (this::text::bigint + 1)::text::xid8 THEN  -- no other transaction is new
    count := _cut.own_count;
    size := _cut.own_size;
    mask := 1 << _cut.own_segment;
  ELSIF one_range THEN
    SELECT count(*), sum(m.size), bit_or(1 << m.segment) INTO count, size, mask
    FROM (SELECT m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= low AND m.xid < high LIMIT max_count + 1) m;
  END IF;
  IF NOT one_range OR count > max_count OR size > max_bytes THEN
    SELECT array_agg(g.xid ORDER BY g.xid), array_agg(g.n ORDER BY g.xid), array_agg(g.size ORDER BY g.xid), array_agg(g.mask ORDER BY g.xid)
      INTO found, ns, sizes, masks
    FROM (SELECT m.xid, count(*) AS n, sum(m.size) AS size, bit_or(1 << m.segment) AS mask
          FROM (SELECT m.* FROM unnest(late) l(x) CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid = l.x ORDER BY m.xid, m.id LIMIT max_count + 1) m
                UNION ALL
                SELECT m.* FROM weir._spans(low, _cut.snapshot) p CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high
                  ORDER BY m.xid, m.id LIMIT max_count + 1) m) m GROUP BY m.xid) g;
    -- A tick contains whole transactions up to a bounded size; a larger transaction gets its own tick.
    count := 0;
    size := 0;
    mask := 0;
    WHILE taken < cardinality(found) LOOP
      EXIT WHEN taken > 0 AND (count + ns[taken + 1] > max_count OR size + sizes[taken + 1] > max_bytes);
      taken := taken + 1;
      count := count + ns[taken];
      size := size + sizes[taken];
      mask := mask | masks[taken];
    END LOOP;
    stop := found[taken + 1];
    IF count > max_count THEN
      -- A single transaction, whose rows were not all counted; later transactions of its range have not been read at all.
      SELECT count(*), sum(octet_length(m.payload)), bit_or(1 << m.segment) INTO count, size, mask FROM weir.message m WHERE m.xid = found[1];
      stop := (found[1]::text::bigint + 1)::text::xid8;
    END IF;
  END IF;
  IF count = 0 THEN
    IF pg_sequence_last_value('weir.tick_seq') <> last.seq THEN
      PERFORM setval('weir.tick_seq', last.seq);  -- an earlier cut was rolled back, but the sequence was not
    END IF;
    count := NULL;
    RETURN;
  END IF;
  whole := stop IS NULL;
  IF NOT whole THEN
    -- The other transactions are left for the next tick: the snapshot is changed as if they had not committed yet.
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
    PERFORM set_config('weir.cut', seq::text, true);  -- see weir._check_message
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);  -- a position that was returned must exist after a crash
  END IF;
  INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
  VALUES (_cut.seq, low, _cut.last_id, _cut.size, _cut.at, _cut.count, mask, pg_sequence_last_value('weir.active_message'),
          ARRAY(SELECT x FROM unnest(found[:taken]) x WHERE x = ANY (late)), _cut.snapshot);
  PERFORM setval('weir.tick_seq', seq);
  IF count <= _cut.most_messages AND size <= max_inline THEN
    SELECT array_agg(m.id ORDER BY m.id), array_agg(m.xid::text::bigint ORDER BY m.id), array_agg(m.channel ORDER BY m.id), array_agg(m.payload ORDER BY m.id),
           array_agg(m.is_binary ORDER BY m.id), array_agg(m.keep ORDER BY m.id) INTO ids, xids, channels, payloads, binaries, keeps
    FROM weir.message m WHERE m.xid >= least(low, found[1]) AND m.xid < high AND (m.xid = ANY (found[:taken]) OR taken = 0);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._cut IS
  'Cuts the next tick from messages that were committed since the last one, and describes it; everything is NULL if there were none. whole is true if it contains everything that was committed before its snapshot. If it has at most most_messages messages of at most 256 kB together, they are returned with it. Messages that this transaction has published itself, own_count of own_size bytes in the segment own_segment, count as committed, because they commit with the tick; after that, the transaction can neither publish nor cut (WR004). The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';

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
  poll  integer := 1;
  there bigint;
  floor bigint;
  made  record;
  slept text;
BEGIN
  IF _await_tick.polls IS NULL OR _await_tick.pause IS NULL OR _await_tick.polls < 1 OR _await_tick.polls * _await_tick.pause > 1 THEN
    RAISE EXCEPTION 'weir: tick polls for at most 1 second, got % polls, every % s', _await_tick.polls, _await_tick.pause USING ERRCODE = '22023';
  ELSIF _await_tick.after IS NULL OR _await_tick.after < 0 THEN
    RAISE EXCEPTION 'weir: after must be the number of a tick, or 0, got %', coalesce(_await_tick.after::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('tick');
  IF _await_tick.cuts AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: tick needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF _await_tick.cuts AND clock_timestamp() - now() > interval '2 seconds' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: tick was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: until your commit, no other session could cut a tick. If you did, try again.';
  ELSIF _await_tick.cuts AND pg_is_in_recovery() THEN
    RAISE EXCEPTION 'weir: ticks can only be cut on the primary, but this is a standby' USING ERRCODE = '25006', HINT = 'Call it on the primary, or with cuts => false.';
  END IF;
  -- While nothing happens, no table is read: its lock would be held until this call ends, and block reclaiming.
  LOOP
    there := pg_sequence_last_value('weir.tick_seq');
    ids_now := coalesce(pg_sequence_last_value('weir.message_id'), 0);
    EXIT WHEN there > _await_tick.after OR _await_tick.cuts AND ids_now IS DISTINCT FROM _await_tick.ids;
    IF _await_tick.cuts AND poll > _await_tick.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text IS DISTINCT FROM _await_tick.seen::text;
    END IF;
    IF poll >= _await_tick.polls THEN
      IF _await_tick.ids IS NULL THEN
        PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
      END IF;
      ids_now := _await_tick.ids;
      seen_now := _await_tick.seen;
      RETURN;
    END IF;
    poll := poll + 1;
    slept := pg_sleep(_await_tick.pause);
  END LOOP;

  PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
  seen_now := pg_current_snapshot();
  FOR attempt IN 1..2 LOOP
    -- The sequence may be ahead, so only the table shows whether the tick exists.
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
        slept := pg_sleep(_await_tick.pause);  -- the tick is being committed, or no tick has been cut since a cut was rolled back
      END IF;
      EXIT;
    ELSIF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
      -- The session that gets the lock cuts; all others read the tick in another poll.
      ids_now := NULL;
      slept := pg_sleep(_await_tick.pause / 3);
    ELSE
      made := weir._cut(most_messages => _await_tick.most_messages);
      IF made.seq = _await_tick.after + 1 THEN
        seqs := ARRAY[made.seq]; ats := ARRAY[made.at]; counts := ARRAY[made.count]; sizes := ARRAY[made.size]; epochs := ARRAY[made.epoch];
        message_ids := made.ids; xids := made.xids; channels := made.channels; payloads := made.payloads; binaries := made.binaries; keeps := made.keeps;
        ids_now := CASE WHEN made.whole THEN made.last_id END;  -- otherwise there is more
        seen_now := made.snapshot;
        EXIT;
      ELSIF made.seq IS NOT NULL THEN
        ids_now := NULL;
      END IF;
    END IF;
  END LOOP;
  floor := pg_sequence_last_value('weir.tick_floor');  -- after reading the table
  IF _await_tick.after < floor THEN
    RAISE EXCEPTION 'weir: the ticks after % can''t be read, because those up to % have been truncated', _await_tick.after, floor
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(floor) || '.' || floor;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._await_tick IS
  'Returns the ticks after a given one, up to 100; if there are none and cuts is true, cuts the next. The messages of a tick that it has cut are returned with it, if there are at most most_messages, of at most 256 kB. If epoch, the epoch of the given tick, is passed, a position that was lost when the log was set back is refused. It polls up to polls times, every pause seconds. ids and seen are ids_now and seen_now of an earlier call: while nothing has been published or committed since then, it reads only counters. From poll patience + 1 on, a commit without messages counts too. Errors: WR003 (see rebase_messages), WR004 (not in READ COMMITTED autocommit), WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (see _check_position; not checked again while nothing changes), 22023, 25006 (cuts on a standby), 55000 (the transaction is old: try again). Locks: advisory step 4 (tried). Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';

CREATE OR REPLACE FUNCTION weir.ticks(after bigint, ids bigint DEFAULT NULL, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, epoch bigint DEFAULT NULL,
                                      OUT seqs bigint[], OUT ats timestamptz[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[],
                                      OUT ids_now bigint, OUT seen_now pg_snapshot)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  SELECT t.* INTO seqs, ats, counts, sizes, epochs, ids_now, seen_now
  FROM weir._await_tick(ticks.after, ids => ticks.ids, polls => coalesce(ticks.polls, 1), pause => coalesce(ticks.pause, 0.003), cuts => false, epoch => ticks.epoch) t;
  RAISE SQLSTATE 'WR099';  -- releases the tables' locks, as every inspection does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.ticks IS
  'Returns the ticks after a given one, up to 100, which hubs have cut; it cuts none. It polls up to polls times, every pause seconds, until there are any; pass ids_now of the previous call as ids, and the epoch of the given tick as epoch, so that a position that was lost when the log was set back is refused. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick does not belong to this log; the detail is epoch.tick of the last one to continue from), 22023, WR004 (not in READ COMMITTED). Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';

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
  max_bytes CONSTANT bigint := 8388608;
  t         weir.tick;
  one       xid8;
BEGIN
  -- The result outlives the locks on the tables, so payloads are fetched and copied here (|| ''): TOAST may be truncated right after.
  SELECT k.* INTO t FROM weir.tick k WHERE k.seq = read.tick;
  IF t.count > 10000 OR t.bytes > max_bytes THEN
    -- A single transaction, read in the order of the index.
    one := t.late[1];
    IF one IS NULL THEN
      SELECT m.xid INTO one FROM weir._spans(t.from_xid, t.snapshot) p
      CROSS JOIN LATERAL (SELECT m.xid FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high ORDER BY m.xid, m.id LIMIT 1) m LIMIT 1;
    END IF;
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.id) - octet_length(m.payload) AS before
            FROM (SELECT m.* FROM weir.message m WHERE m.xid = one AND m.id > coalesce(read.after_id, 0) ORDER BY m.xid, m.id LIMIT coalesce(read.max_rows, 10000)) m) m
      WHERE m.before < max_bytes ORDER BY m.id;
  ELSE
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.* FROM weir._spans(t.from_xid, t.snapshot) p
            CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high OFFSET 0) m
            UNION ALL
            SELECT m.* FROM unnest(t.late) l(x) CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid = l.x OFFSET 0) m) m
      WHERE m.id > coalesce(read.after_id, 0) ORDER BY m.id LIMIT coalesce(read.max_rows, 10000);
  END IF;
  -- TRUNCATE empties a table for old snapshots too, so this check comes last: tick_floor is raised before anything is truncated.
  IF read.tick <= nullif(pg_sequence_last_value('weir.tick_floor'), 0) THEN
    RAISE EXCEPTION 'weir: tick % has been truncated', read.tick
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(pg_sequence_last_value('weir.tick_floor')) || '.' || pg_sequence_last_value('weir.tick_floor');
  ELSIF t.seq IS NULL THEN
    RAISE EXCEPTION 'weir: tick % does not exist', coalesce(read.tick::text, 'null') USING ERRCODE = '22023';
  ELSIF read.epoch IS NOT NULL THEN
    PERFORM weir._check_position(read.tick, read.epoch);
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables' locks, as every inspection does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.read IS
  'Returns the messages of a tick after a given id, in the order of publishing: up to max_rows; from a tick of more than 10000 messages or 8 MB, about 8 MB at most. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick has another epoch; the detail is epoch.tick of the last one to continue from), 22023. Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED.';

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
  'Returns the newest tick. Errors: WR003 (the log comes from another cluster: call weir.rebase_messages). Locks: none that others wait for, and none after the call. Isolation: any.';
