-- Epochs: which log a tick is of. A failover, a point-in-time restore or a copy of the disk sets the log back, and then it grows over the same
-- numbers again with other messages. So each life of a server that cuts ticks is an epoch, with a random number: a copy that is brought up
-- twice has two. A position is (epoch, tick, index), and one whose tick has another epoch here was lost, whatever its number.

CREATE OR REPLACE FUNCTION weir._epoch_of(tick bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  -- Volatile, so that it sees what a tick was read from: the caller's statement may be older than a rebase that it has waited for.
  RETURN (SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= _epoch_of.tick ORDER BY e.from_tick DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._epoch_of IS
  'The epoch that a tick is of, also after it was truncated; NULL before the first. Both together tell ticks of all logs apart. Errors: none. Locks: none. Isolation: any.';

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
  'Where ticks are cut: on which timeline, and in which of the copies that one server may hold. Errors: none on a primary. Locks: none. Isolation: any.';

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
    RETURN newest.epoch;  -- and so it was drawn in this cluster
  END IF;
  PERFORM weir._check_message_cluster();
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._epoch_here IS
  'The newest epoch, if it was drawn here, on this timeline, and since this server started; NULL: the next tick begins one. Whoever is about to cut a tick calls it first, every time: a session behind a pooler outlives a move. The caller holds advisory step 4. Errors: WR003 (the log comes from another cluster). Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._draw_epoch(tick bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 1000;
BEGIN
  INSERT INTO weir.epoch (from_tick, epoch, started_at, at, home)
  VALUES (_draw_epoch.tick, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
          weir._epoch_home());
  -- Who stands in a life of so long ago is told of a gap all the same.
  DELETE FROM weir.epoch e
  WHERE e.from_tick < (SELECT k.from_tick FROM weir.epoch k ORDER BY k.from_tick DESC OFFSET most - 1 LIMIT 1)
    AND e.from_tick < (SELECT k.from_tick FROM weir.epoch k WHERE k.from_tick <= pg_sequence_last_value('weir.tick_floor') ORDER BY k.from_tick DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir._draw_epoch IS
  'Begins an epoch with a tick, and forgets those that are neither among the newest 1000 nor have a tick that can be read. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';

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
      RETURN;  -- a standby that lags
    END IF;
  ELSIF _check_position.epoch IS NULL OR _check_position.tick = 0 OR weir._epoch_of(_check_position.tick) = _check_position.epoch THEN
    RETURN;
  END IF;
  -- Where its epoch is known, both logs are one up to that epoch's end.
  common := least(newest, (SELECT min(n.from_tick) - 1 FROM weir.epoch e JOIN weir.epoch n ON n.from_tick > e.from_tick WHERE e.epoch = _check_position.epoch));
  RAISE EXCEPTION 'weir: tick % of epoch % is not of this log, which ends at %', _check_position.tick, coalesce(_check_position.epoch::text, 'null'), newest
    USING ERRCODE = 'WR006', DETAIL = weir._epoch_of(common) || '.' || common,
          HINT = 'It is of another database, or this one has been set back to an earlier state and has gone on from there.';
END
$$;
COMMENT ON FUNCTION weir._check_position IS
  'Refuses a tick that is not of this log: one that lies ahead of it, or whose number is there in another epoch. On a standby, which may lag, what lies ahead is let pass. Errors: WR006 (the detail is epoch.tick of the last tick from which to go on). Locks: none that another caller waits for. Isolation: READ COMMITTED.';
