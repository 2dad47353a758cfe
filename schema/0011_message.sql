-- Publish and subscribe: the log of messages, and publishing into it. It is the same idea as the log of jobs: rows are inserted,
-- read through snapshots, and given back by TRUNCATE, a segment at a time. Nobody owns a message and everybody reads it, so what
-- a batch is for jobs is a tick here, and there is no result.
--
-- More advisory steps (see 0001): 4 ticking, 5 rotation of messages.

CREATE SEQUENCE weir.message_id AS bigint;
COMMENT ON SEQUENCE weir.message_id IS 'Message ids. Its last_value also tells a hub whether anything was published since it last looked.';
CREATE SEQUENCE weir.active_message AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_message IS 'The segment that new messages are logged in.';
CREATE SEQUENCE weir.tick_seq AS bigint;
COMMENT ON SEQUENCE weir.tick_seq IS 'The newest tick, or ahead of it: while that is being committed, and after a cut that was rolled back until the next.';
CREATE SEQUENCE weir.tick_floor AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.tick_floor IS 'Ticks up to this one can no longer be read: messages of theirs have been truncated.';

CREATE TABLE weir.message (
  id        bigint   NOT NULL,
  xid       xid8     NOT NULL,
  segment   smallint NOT NULL,
  is_binary boolean  NOT NULL,
  keep      boolean  NOT NULL,
  channel   text     NOT NULL,
  payload   bytea    NOT NULL
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.message IS 'The log of messages, with the transaction that published each. A payload that is not binary is text in UTF-8.';
COMMENT ON COLUMN weir.message.keep IS 'Deliver it even where its transaction has published the same before.';

CREATE TABLE weir.tick (
  seq      bigint      NOT NULL,
  from_xid xid8        NOT NULL,
  last_id  bigint      NOT NULL,
  bytes    bigint      NOT NULL,
  at       timestamptz NOT NULL,
  count    integer     NOT NULL,
  segments smallint    NOT NULL,
  segment  smallint    NOT NULL,
  late     xid8[]      NOT NULL,
  snapshot pg_snapshot NOT NULL,
  PRIMARY KEY (seq, segment)
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.tick IS
  'A batch of messages: those of the transactions that its snapshot sees and that of the tick before did not. They are the transactions from from_xid up to the snapshot''s xmax that are not in progress in it, and the late ones, which were in progress before.';
COMMENT ON COLUMN weir.tick.segments IS 'A bit (1 << segment) for each segment that holds messages of it.';
COMMENT ON COLUMN weir.tick.bytes IS 'Of its payloads. A tick of more than 10000 messages, or of more than 8 MB, holds a single transaction.';
COMMENT ON COLUMN weir.tick.last_id IS 'The last id that had been drawn before the snapshot was taken.';

DO $$
DECLARE
  s integer;
BEGIN
  FOR s IN 1..4 LOOP
    EXECUTE format('CREATE TABLE weir.message_%s PARTITION OF weir.message FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.tick_%s PARTITION OF weir.tick FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    -- Publishing is to take the time of an insert, and no more for a payload that compresses badly.
    EXECUTE format('ALTER TABLE weir.message_%s ALTER COLUMN payload SET STORAGE EXTERNAL', s);
  END LOOP;
END
$$;
CREATE INDEX message_xid ON weir.message (xid, id);

ALTER TABLE weir.segment DROP CONSTRAINT segment_log_check, ADD CONSTRAINT segment_log_check CHECK (log IN ('job', 'later', 'message'));
INSERT INTO weir.segment (log, segment, event) VALUES ('message', 1, 'opened');
INSERT INTO weir.setting (name, value) VALUES
  ('message_retention', '1 hour'),
  ('message_retention_bytes', '1073741824'),
  ('message_bytes', '1048576'),
  ('message_cluster', (SELECT system_identifier::text FROM pg_control_system()));
SELECT setval('weir.active_message', 1), setval('weir.tick_seq', 1), setval('weir.tick_floor', 0);
INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
SELECT 1, pg_snapshot_xmax(s), 0, 0, clock_timestamp(), 0, 0, 1, '{}', s FROM pg_current_snapshot() s;

CREATE FUNCTION weir.check_message(channel text, bytes integer) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  most integer;
BEGIN
  IF check_message.channel IS NULL OR check_message.channel = '' THEN
    RAISE EXCEPTION 'weir: a channel needs a name, and this one is %', CASE WHEN check_message.channel IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023';
  ELSIF octet_length(check_message.channel) > 255 THEN
    RAISE EXCEPTION 'weir: channel name too long: % bytes, at most 255 are allowed', octet_length(check_message.channel)
      USING ERRCODE = '22023';
  END IF;
  IF check_message.bytes > 8000 THEN
    SELECT s.value::integer INTO most FROM weir.setting s WHERE s.name = 'message_bytes';
    IF check_message.bytes > most THEN
      RAISE EXCEPTION 'weir: payload too large: % bytes, at most % are allowed', check_message.bytes, most
        USING ERRCODE = '22023',
              HINT = 'Publish a reference to the data; or raise the limit: SELECT weir.set(''message_bytes'', ...).';
    END IF;
  END IF;
END
$$;
COMMENT ON FUNCTION weir.check_message IS
  'Raises 22023 with the offending value when a message is not well-formed. Up to 8000 bytes are always allowed, so that small ones cost no look at the setting message_bytes. Locks: none. Isolation: any.';

CREATE FUNCTION weir.publish(channel text, payload text DEFAULT '', keep boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
BEGIN
  IF channel IS NULL OR channel = '' OR octet_length(channel) > 255 OR octet_length(payload) > 8000 THEN
    PERFORM weir.check_message(channel, octet_length(payload));
  END IF;
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  VALUES (nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), false, keep IS TRUE, channel, convert_to(coalesce(payload, ''), 'UTF8'));
END
$$;
COMMENT ON FUNCTION weir.publish IS
  'Publishes a message with this transaction: it is delivered after the commit, to whoever subscribes to the channel, and not at all after a rollback, also of a savepoint. channel: 1 to 255 bytes. payload: up to message_bytes (default 1048576); null counts as empty. The same channel and payload in one transaction are delivered once, unless keep is true. Errors: 22023. Locks: none that another caller waits for. Isolation: any.';

CREATE FUNCTION weir.publish_bytes(channel text, payload bytea, keep boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
BEGIN
  payload := coalesce(payload, '');
  PERFORM weir.check_message(channel, octet_length(payload));
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  VALUES (nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), true, keep IS TRUE, channel, payload);
END
$$;
COMMENT ON FUNCTION weir.publish_bytes IS 'weir.publish with a payload that is not text.';

CREATE FUNCTION weir.publish_many(channels text[], payloads text[], keep boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
  n        bigint;
BEGIN
  IF cardinality(channels) IS DISTINCT FROM cardinality(payloads) THEN
    RAISE EXCEPTION 'weir: publish_many needs a payload for each channel, got % channels and % payloads',
      coalesce(cardinality(channels)::text, 'null'), coalesce(cardinality(payloads)::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir.check_message(m.channel, octet_length(m.payload)) FROM unnest(channels, payloads) m(channel, payload)
  WHERE m.channel IS NULL OR m.channel = '' OR octet_length(m.channel) > 255 OR octet_length(m.payload) > 8000;
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

CREATE FUNCTION weir.publish_drafts(channels text[], payloads bytea[], binaries boolean[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
BEGIN
  PERFORM weir.check_message(m.channel, octet_length(m.payload)) FROM unnest(channels, payloads) m(channel, payload);
  this_xid := pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT nextval('weir.message_id'), this_xid, pg_sequence_last_value('weir.active_message'), m.is_binary, true, m.channel, m.payload
  FROM unnest(channels, payloads, binaries) WITH ORDINALITY m(channel, payload, is_binary, place) ORDER BY m.place;
END
$$;
COMMENT ON FUNCTION weir.publish_drafts IS
  'For hubs: logs what several of its clients publish, each message for itself. Text must be in UTF-8. Errors: 22023. Locks: none that another caller waits for. Isolation: any.';

CREATE FUNCTION weir.notify(channel text, payload text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
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

-- down --
DROP FUNCTION weir.notify(text, text);
DROP FUNCTION weir.publish_drafts(text[], bytea[], boolean[]);
DROP FUNCTION weir.publish_many(text[], text[], boolean);
DROP FUNCTION weir.publish_bytes(text, bytea, boolean);
DROP FUNCTION weir.publish(text, text, boolean);
DROP FUNCTION weir.check_message(text, integer);
DELETE FROM weir.setting WHERE name LIKE 'message%';
DELETE FROM weir.segment WHERE log = 'message';
ALTER TABLE weir.segment DROP CONSTRAINT segment_log_check, ADD CONSTRAINT segment_log_check CHECK (log IN ('job', 'later'));
DROP TABLE weir.tick, weir.message;
DROP SEQUENCE weir.message_id, weir.active_message, weir.tick_seq, weir.tick_floor;
