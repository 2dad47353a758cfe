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
  'Publishes a message with this transaction: it is delivered after the commit, to whoever subscribes to the channel, and not at all after a rollback, also of a savepoint. channel: 1 to 255 bytes. payload: up to message_bytes (default 1048576); null counts as empty. The same channel and payload in one transaction are delivered once, unless keep is true. Errors: 22023; WR004 (after publish_drafts with cuts in the same transaction). Locks: none that another caller waits for. Isolation: any.';

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
COMMENT ON FUNCTION weir.publish_bytes IS 'weir.publish with a payload that is not text.';

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
  'weir.publish for each pair of the arrays, in their order; returns how many. One bad message, and none is published. Errors: 22023. Locks: none that another caller waits for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._publish_drafts(channels text[], payloads bytea[], binaries boolean[], cuts boolean DEFAULT false,
                                    OUT tick bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  most CONSTANT bigint := 1000;
  this_xid xid8;
  active   integer;
  n        integer;
  size     bigint := 0;
  one      bytea;
  made     record;
BEGIN
  PERFORM weir._check_message(m.channel, octet_length(m.payload)) FROM unnest(channels, payloads) m(channel, payload)
  WHERE m.channel IS NULL OR m.channel = '' OR octet_length(m.channel) > 255 OR octet_length(m.payload) > 8000
     OR current_setting('weir.cut', true) <> '';
  IF cuts AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: publish_drafts cuts in a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  this_xid := pg_current_xact_id();
  active := pg_sequence_last_value('weir.active_message');
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT nextval('weir.message_id'), this_xid, active, m.is_binary, true, m.channel, m.payload
  FROM unnest(channels, payloads, binaries) WITH ORDINALITY m(channel, payload, is_binary, place) ORDER BY m.place;
  GET DIAGNOSTICS n = ROW_COUNT;
  -- Cut here, a tick costs no commit of its own, and nobody has to find out first that there is something to cut. Those who have begun
  -- before and not ended are listed in its snapshot: where they are very many, subtransactions among them, somebody else is to cut later.
  IF cuts AND current_setting('transaction_isolation') = 'read committed'
     AND this_xid::text::bigint - pg_snapshot_xmax(pg_current_snapshot())::text::bigint < most AND pg_try_advisory_xact_lock(1464158547, 4) THEN
    FOREACH one IN ARRAY payloads LOOP
      size := size + octet_length(one);
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
  'For hubs: logs what several of its clients publish, each message for itself. Text must be in UTF-8. With cuts the next tick is cut in the same transaction, unless somebody else is at it; it is returned, with its epoch and that of the tick before, if it holds these messages and no others. Only in autocommit then: until the commit nobody else can cut, and what the transaction publishes after it would be in no tick, so that is refused (WR004). Errors: 22023; WR004 (this transaction has cut, or with cuts has written); with cuts WR003. Locks: with cuts advisory step 4 (tried); none that another caller waits for. Isolation: any.';

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
  -- Hubs drop what repeats within a transaction. That a trigger says the same for each of a million rows costs one row all the same:
  -- the last message is remembered until the transaction ends, and a savepoint that is rolled back takes the memory with it.
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
  'weir.publish in the shape of PostgreSQL''s function of that name, to put in its place, also in triggers for each row: a message of up to 200 bytes that repeats the last one of its transaction is not even logged.';
