-- Slots: which keys this database owns, of those that a router spreads over many databases.
--
-- A key is in one of 16384 slots, the first 14 bits of its hash: so the slots of a range are ranges of lanes (see weir._key_bits). Each database says itself which slots it
-- owns, and a router that enqueues asks it in the same transaction: whatever a router remembers, no job is logged in a database that does not own its key.
--
-- Nothing waits for anybody here. A transaction that asks locks weir.slot in ROW SHARE mode, which only these do and nothing conflicts with, and then looks. Once a row is
-- committed that says that a slot leaves, whoever has not seen it holds that lock, until its transaction ends: so a move waits for those whom it has found in pg_locks.

CREATE OR REPLACE FUNCTION weir._hold_slot(slot integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_column
DECLARE
  newest weir.slot;
BEGIN
  PERFORM weir._check_isolation('enqueueing by a router', true);
  LOCK TABLE weir.slot IN ROW SHARE MODE;  -- the next statement's snapshot is newer
  SELECT s.* INTO newest FROM weir.slot s WHERE _hold_slot.slot BETWEEN s.low AND s.high ORDER BY s.no DESC LIMIT 1;
  IF newest.state IS DISTINCT FROM 'owned' THEN
    RAISE EXCEPTION 'weir: this database does not own slot %: %', _hold_slot.slot,
      CASE WHEN newest.state IS NULL THEN 'it never did' WHEN newest.state = 'left' THEN format('it has moved to database %s', newest.peer)
           WHEN newest.state = 'returning' THEN format('its move to database %s is being given up', newest.peer) ELSE format('it is moving to database %s', newest.peer) END
      USING ERRCODE = 'WR009', HINT = 'Ask the databases again which of them owns it.';
  END IF;
  RETURN newest.epoch;
END
$$;
COMMENT ON FUNCTION weir._hold_slot IS
  'Makes sure that this database owns a slot until the transaction has ended. Returns the slot''s epoch. Errors: WR004 (not in READ COMMITTED), WR009 (it does not own it). Locks: ROW SHARE on weir.slot, for which a move of slots waits, without a lock. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._slots() RETURNS TABLE (no bigint, low integer, high integer, state text, epoch bigint, move text, peer text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
  SELECT s.no, s.low, s.high, s.state, s.epoch, coalesce(s.move::text, ''), coalesce(s.peer, '') FROM weir.slot s ORDER BY s.no
$$;
COMMENT ON FUNCTION weir._slots IS 'What this database says about slots: a later row counts more than an earlier one. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._note_slots(low integer, high integer, state text, epoch bigint, move uuid, peer text, copy uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  this bigint := nextval('weir.slot_no');
BEGIN
  INSERT INTO weir.slot (no, low, high, state, epoch, move, peer, copy, at, by)
  VALUES (this, _note_slots.low, _note_slots.high, _note_slots.state, _note_slots.epoch, _note_slots.move, _note_slots.peer, _note_slots.copy, clock_timestamp(), session_user);
  DELETE FROM weir.slot s WHERE s.no < this AND s.low >= _note_slots.low AND s.high <= _note_slots.high;
END
$$;
COMMENT ON FUNCTION weir._note_slots IS 'Writes what is true of a range of slots from now on, and removes the rows that this covers. The caller holds the lock of slots.';

CREATE OR REPLACE FUNCTION weir._change_slots(low integer, high integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._check_isolation('a change of slots'), weir._hold_briefly(), weir._commit_synchronously();
  IF _change_slots.low IS NULL OR _change_slots.high IS NULL OR _change_slots.low < 0 OR _change_slots.high > 16383 OR _change_slots.low > _change_slots.high THEN
    RAISE EXCEPTION 'weir: slots are 0 to 16383, got % to %', coalesce(_change_slots.low::text, 'null'), coalesce(_change_slots.high::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM pg_advisory_xact_lock(1464158566, 0);
END
$$;
COMMENT ON FUNCTION weir._change_slots IS 'Checks a range of slots, and locks what this database says about slots against other changes, to the end of the transaction. Errors: 22023, WR004.';

CREATE OR REPLACE FUNCTION weir._said_of_slots(low integer, high integer) RETURNS SETOF weir.slot
LANGUAGE sql VOLATILE  -- it sees what was committed before the lock
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT DISTINCT n.* FROM generate_series(_said_of_slots.low, _said_of_slots.high) g(slot)
  CROSS JOIN LATERAL (SELECT s.* FROM weir.slot s WHERE g.slot BETWEEN s.low AND s.high ORDER BY s.no DESC LIMIT 1) n
$$;
COMMENT ON FUNCTION weir._said_of_slots IS 'The rows that count for a range of slots.';

CREATE OR REPLACE FUNCTION weir._assign_slots(low integer, high integer, epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._change_slots(_assign_slots.low, _assign_slots.high);
  IF EXISTS (SELECT FROM weir._said_of_slots(_assign_slots.low, _assign_slots.high) s WHERE s.state <> 'left' OR s.epoch >= _assign_slots.epoch) THEN
    RETURN false;
  END IF;
  PERFORM weir._note_slots(_assign_slots.low, _assign_slots.high, 'owned', _assign_slots.epoch, NULL, NULL);
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._assign_slots IS
  'Makes this database the owner of slots that nobody owns, with an epoch; false: it has said something of some of them that counts more, or that it owns them, and nothing is changed. Errors: 22023, WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';

CREATE OR REPLACE FUNCTION weir._own_slots(low integer, high integer, epoch bigint, move uuid, upto text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  arrived text;
  newer   weir.slot;
BEGIN
  PERFORM weir._change_slots(_own_slots.low, _own_slots.high);
  arrived := weir._taken_upto(_own_slots.move);
  IF arrived = 'done' THEN
    RETURN true;
  ELSIF arrived <> _own_slots.upto THEN
    RETURN false;  -- this database was set back, and has lost some of the jobs
  END IF;
  SELECT s.* INTO newer FROM weir._said_of_slots(_own_slots.low, _own_slots.high) s WHERE s.epoch >= _own_slots.epoch AND NOT (s.epoch = _own_slots.epoch AND s.state = 'owned') ORDER BY s.no DESC LIMIT 1;
  IF newer.no IS NOT NULL THEN
    RAISE EXCEPTION 'weir: slots % to % can''t be taken over with epoch %: slots % to % are % here, with epoch %', _own_slots.low, _own_slots.high, _own_slots.epoch, newer.low, newer.high, newer.state, newer.epoch
      USING ERRCODE = '55000', HINT = 'Another move has overtaken this one, or a database was set back by a restore or a failover: look at what each says.';
  END IF;
  PERFORM weir._note_slots(_own_slots.low, _own_slots.high, 'owned', _own_slots.epoch, NULL, NULL), weir._note_taken(_own_slots.move, 'done');
  RETURN true;
END
$$;
COMMENT ON FUNCTION weir._own_slots IS
  'Makes this database the owner of slots whose jobs have all arrived, up to the place that is given, and notes that the move is done here; false: they have not. Once more does nothing, whatever has become of the slots since; with the same epoch under another name, it owns them already. Errors: 22023, 55000 (it knows of a later move, or this one is given up), WR004. Locks: advisory: slots (exclusive). Isolation: READ COMMITTED. Commits synchronously.';
