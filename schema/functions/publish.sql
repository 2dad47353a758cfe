-- Publishing: an insert into the log of messages, in the caller's transaction.

CREATE OR REPLACE FUNCTION weir.publish(channel text, payload text DEFAULT '', keep boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
BEGIN
  IF channel IS NULL OR channel = '' OR octet_length(channel) > 255 OR octet_length(payload) > 8000 OR current_setting('weir.cut', true) <> '' THEN
    PERFORM weir._check_message(channel, octet_length(payload));
  END IF;
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  VALUES (nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), false, keep IS TRUE, channel, convert_to(coalesce(payload, ''), 'UTF8'));
END
$$;
COMMENT ON FUNCTION weir.publish IS
  'Publishes a message in the caller''s transaction: it is delivered to the channel''s subscribers after the commit, and never after a rollback, not even of a savepoint. channel: 1 to 255 bytes; payload: up to message_bytes (1048576 by default), NULL counts as empty. If a transaction publishes the same channel and payload more than once, they are delivered once, unless keep is true. Errors: 22023; WR004 (after _publish_drafts with cuts in the same transaction). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.publish_bytes(channel text, payload bytea, keep boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
BEGIN
  payload := coalesce(payload, '');
  PERFORM weir._check_message(channel, octet_length(payload));
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  VALUES (nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), true, keep IS TRUE, channel, payload);
END
$$;
COMMENT ON FUNCTION weir.publish_bytes IS
  'Publishes a message with a binary payload; otherwise as weir.publish. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.publish_many(channels text[], payloads text[], keep boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
  n        bigint;
BEGIN
  PERFORM weir._check_array('publish_many', 'channels', channels), weir._check_array('publish_many', 'payloads', payloads);
  IF cardinality(channels) IS DISTINCT FROM cardinality(payloads) THEN
    RAISE EXCEPTION 'weir: publish_many needs a payload for each channel, got % channels and % payloads',
      coalesce(cardinality(channels)::text, 'null'), coalesce(cardinality(payloads)::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_message(m.channel, octet_length(m.payload)) FROM unnest(channels, payloads) m(channel, payload)
  WHERE m.channel IS NULL OR m.channel = '' OR octet_length(m.channel) > 255 OR octet_length(m.payload) > 8000
     OR current_setting('weir.cut', true) <> '';
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), false, keep IS TRUE, m.channel,
         convert_to(coalesce(m.payload, ''), 'UTF8')
  FROM unnest(channels, payloads) WITH ORDINALITY m(channel, payload, place) ORDER BY m.place;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END
$$;
COMMENT ON FUNCTION weir.publish_many IS
  'Publishes each pair of channel and payload in order, as weir.publish does, all or none; returns how many. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._publish_drafts(channels text[], payloads bytea[], binaries boolean[], cuts boolean DEFAULT false,
                                    OUT tick bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  max_running CONSTANT bigint := 1000;
  this_xid    xid8;
  active      integer;
  n           integer;
  size        bigint := 0;
  draft       bytea;
  made        record;
BEGIN
  PERFORM weir._check_message(m.channel, octet_length(m.payload)) FROM unnest(channels, payloads) m(channel, payload)
  WHERE m.channel IS NULL OR m.channel = '' OR octet_length(m.channel) > 255 OR octet_length(m.payload) > 8000
     OR current_setting('weir.cut', true) <> '';
  IF cuts AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: publish_drafts with cuts needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  this_xid := pg_current_xact_id();
  active := pg_sequence_last_value('weir.active_message');
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT nextval('weir.message_id'), this_xid, active, m.is_binary, true, m.channel, m.payload
  FROM unnest(channels, payloads, binaries) WITH ORDINALITY m(channel, payload, is_binary, place) ORDER BY m.place;
  GET DIAGNOSTICS n = ROW_COUNT;
  -- A tick that is cut here costs no commit of its own, and no hub has to poll for the messages first. Its snapshot lists earlier
  -- transactions that have not ended: if there are very many, including subtransactions, it is left to a later call.
  IF cuts AND current_setting('transaction_isolation') = 'read committed'
     AND this_xid::text::bigint - pg_snapshot_xmax(pg_current_snapshot())::text::bigint < max_running AND pg_try_advisory_xact_lock(1464158547, 4) THEN
    FOREACH draft IN ARRAY payloads LOOP
      size := size + octet_length(draft);
    END LOOP;
    made := weir._cut(own_count => n, own_size => size, own_segment => active);
    IF made.count = n AND pg_visible_in_snapshot(this_xid, made.snapshot) THEN
      tick := made.seq;
      epoch := made.epoch;
      prior := made.prior;
      at := made.at;
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION weir._publish_drafts IS
  'For hubs: publishes messages of several clients, each delivered even if it repeats another. Text must be in UTF-8. With cuts, the next tick is cut in the same transaction, unless another session is cutting; the tick is returned, with its epoch and the epoch of the previous tick, if it contains exactly these messages. Then call it in autocommit: no other session can cut before the commit, and a later message of the transaction would be in no tick, so publishing it is refused (WR004). Errors: 22023; WR004 (this transaction has cut, or, with cuts, has written); with cuts, WR003. Locks: with cuts, advisory step 4 (tried); none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.notify(channel text, payload text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  mark text;
BEGIN
  -- Hubs drop messages that repeat within a transaction. If a trigger sends the same one for each of a million rows, it is logged only once:
  -- the last message is remembered until the transaction ends, or until the savepoint in which it was sent is rolled back.
  payload := coalesce(payload, '');
  IF octet_length(payload) <= 200 THEN
    mark := length(channel) || ' ' || channel || payload;
    IF current_setting('weir.published', true) = mark THEN
      RETURN;
    END IF;
    mark := set_config('weir.published', mark, true);
  END IF;
  PERFORM weir.publish(channel, payload);
END
$$;
COMMENT ON FUNCTION weir.notify IS
  'Replaces pg_notify, with the same arguments, also in triggers for each row: as weir.publish, but a message of up to 200 bytes that repeats the last one of its transaction is not even logged. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
