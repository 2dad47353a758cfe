-- Epochs: which log a tick is of. A failover, a point-in-time restore or a copy of the disk sets the log back, and then it grows over the same
-- numbers again with other messages. So each life of a server that cuts ticks is an epoch, with a random number: a copy that is brought up
-- twice has two. A position is (epoch, tick, index), and one whose tick has another epoch here was lost, whatever its number.

CREATE OR REPLACE FUNCTION weir.epoch_of(tick bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN (SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= epoch_of.tick ORDER BY e.from_tick DESC LIMIT 1);
END
$$;
COMMENT ON FUNCTION weir.epoch_of IS
  'The epoch that a tick is of, also after it was truncated; NULL before the first. Both together tell ticks of all logs apart. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.settle_epoch(tick bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  newest weir.epoch;
  here   text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
BEGIN
  SELECT e.* INTO newest FROM weir.epoch e ORDER BY e.from_tick DESC LIMIT 1;
  IF newest.timeline = here AND newest.started_at = pg_postmaster_start_time() THEN
    RETURN;
  ELSIF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') <> (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    RAISE EXCEPTION 'weir: the log of messages comes from another cluster' USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
  END IF;
  PERFORM weir.draw_epoch(settle_epoch.tick);
END
$$;
COMMENT ON FUNCTION weir.settle_epoch IS
  'Draws an epoch for the tick that is about to be cut, unless the newest was drawn on this timeline and since this server started. The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir.draw_epoch(tick bigint) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  INSERT INTO weir.epoch (from_tick, epoch, started_at, at, timeline)
  SELECT draw_epoch.tick, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
         left(pg_walfile_name(pg_current_wal_lsn()), 8)
$$;
COMMENT ON FUNCTION weir.draw_epoch IS 'Begins an epoch with a tick. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.check_position(tick bigint, epoch bigint) RETURNS void
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
  IF check_position.tick > newest THEN
    IF pg_is_in_recovery() THEN
      RETURN;  -- a standby that lags
    END IF;
  ELSIF check_position.epoch IS NULL OR check_position.tick = 0 OR weir.epoch_of(check_position.tick) = check_position.epoch THEN
    RETURN;
  END IF;
  -- Where its epoch is known, both logs are one up to that epoch's end.
  common := least(newest, (SELECT min(n.from_tick) - 1 FROM weir.epoch e JOIN weir.epoch n ON n.from_tick > e.from_tick WHERE e.epoch = check_position.epoch));
  RAISE EXCEPTION 'weir: tick % of epoch % is not of this log, which ends at %', check_position.tick, coalesce(check_position.epoch::text, 'null'), newest
    USING ERRCODE = 'WR006', DETAIL = weir.epoch_of(common) || '.' || common,
          HINT = 'It is of another database, or this one has been set back to an earlier state and has gone on from there.';
END
$$;
COMMENT ON FUNCTION weir.check_position IS
  'Refuses a tick that is not of this log: one that lies ahead of it, or whose number is there in another epoch. On a standby, which may lag, what lies ahead is let pass. Errors: WR006 (the detail is epoch.tick of the last tick from which to go on). Locks: none that another caller waits for. Isolation: READ COMMITTED.';
