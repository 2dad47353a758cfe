-- Epochs identify the log that a tick belongs to. A failover, a point-in-time restore or a copy of the disk sets the log back, and it then uses
-- the same tick numbers again for other messages. So the time from one start of a server that cuts ticks to the next is an epoch, with a random
-- number: two servers started from one copy have two. A position is (epoch, tick, index); if its tick has another epoch here, it was lost.

CREATE OR REPLACE FUNCTION weir._epoch_of(tick bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  -- Volatile, because the caller's snapshot may be older than a rebase that the call has waited for.
  RETURN (SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= _epoch_of.tick ORDER BY e.from_tick DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._epoch_of IS
  'The epoch of a tick, also after the tick was truncated; NULL before the first epoch. Epoch and tick together identify a tick across all logs. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._epoch_home() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8) || ' ' || pg_relation_filepath('weir.epoch');
END
$$;
COMMENT ON FUNCTION weir._epoch_home IS
  'The place where ticks are cut: the timeline, and the file of the table, which differs between copies on one server. Errors: none on a primary. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._epoch_here() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  newest weir.epoch;
BEGIN
  SELECT e.* INTO newest FROM weir.epoch e ORDER BY e.from_tick DESC LIMIT 1;
  IF newest.home = weir._epoch_home() AND newest.started_at = pg_postmaster_start_time() THEN
    RETURN newest.epoch;  -- it was drawn in this cluster
  END IF;
  PERFORM weir._check_message_cluster();
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._epoch_here IS
  'The newest epoch, if it was drawn here, on this timeline, and since this server started; NULL: the next tick starts a new one. Call it before every cut, because a session behind a pooler survives a move. The caller holds advisory step 4. Errors: WR003 (the log comes from another cluster). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._draw_epoch(tick bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  max_kept CONSTANT integer := 1000;
BEGIN
  INSERT INTO weir.epoch (from_tick, epoch, started_at, at, home)
  VALUES (_draw_epoch.tick, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
          weir._epoch_home());
  -- A subscriber whose position is in a deleted epoch still receives a gap.
  DELETE FROM weir.epoch e
  WHERE e.from_tick < (SELECT k.from_tick FROM weir.epoch k ORDER BY k.from_tick DESC OFFSET max_kept - 1 LIMIT 1)
    AND e.from_tick < (SELECT k.from_tick FROM weir.epoch k WHERE k.from_tick <= pg_sequence_last_value('weir.tick_floor') ORDER BY k.from_tick DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._draw_epoch IS
  'Starts an epoch with a tick, and deletes the epochs that are neither among the newest 1000 nor have a tick that can still be read. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._shared_upto(tick bigint, epoch bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  newest bigint := coalesce((SELECT t.seq FROM weir.tick t ORDER BY t.seq DESC LIMIT 1), pg_sequence_last_value('weir.tick_floor'), 0);
BEGIN
  IF _shared_upto.tick = 0 OR _shared_upto.tick <= newest AND weir._epoch_of(_shared_upto.tick) = _shared_upto.epoch THEN
    RETURN _shared_upto.tick;
  END IF;
  -- If its epoch is known here, both logs are the same up to the end of that epoch.
  RETURN (SELECT least(newest, (SELECT min(n.from_tick) - 1 FROM weir.epoch n WHERE n.from_tick > e.from_tick)) FROM weir.epoch e WHERE e.epoch = _shared_upto.epoch ORDER BY e.from_tick LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._shared_upto IS
  'The last tick that this log has in common with the one that a tick of an epoch belongs to: the tick itself, if it is of this log; NULL: nothing is known here of that epoch. Errors: none. Locks: none. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._check_position(tick bigint, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  newest bigint := (SELECT t.seq FROM weir.tick t ORDER BY t.seq DESC LIMIT 1);
  common bigint;
BEGIN
  IF _check_position.tick > newest THEN
    IF pg_is_in_recovery() THEN
      RETURN;  -- the standby may lag behind
    END IF;
  ELSIF _check_position.epoch IS NULL OR _check_position.tick = 0 OR weir._epoch_of(_check_position.tick) = _check_position.epoch THEN
    RETURN;
  END IF;
  common := coalesce(weir._shared_upto(_check_position.tick, _check_position.epoch), newest);
  RAISE EXCEPTION 'weir: tick % of epoch % does not belong to this log, which ends at %', _check_position.tick, coalesce(_check_position.epoch::text, 'null'), newest
    USING ERRCODE = 'WR006', DETAIL = weir._epoch_of(common) || '.' || common,
          HINT = 'It belongs to another database, or this database was set back to an earlier state and has continued from there.';
END
$$;
COMMENT ON FUNCTION weir._check_position IS
  'Refuses a tick that does not belong to this log: it is ahead of the log, or its number has another epoch here. A standby may lag behind, so it accepts ticks that are ahead. Errors: WR006 (the detail is epoch.tick of the last tick to continue from). Locks: none that others wait for. Isolation: READ COMMITTED.';
