-- Publish and subscribe: the log of messages. It is the same idea as the log of jobs: rows are inserted,
-- read through snapshots, and given back by TRUNCATE, a segment at a time. Nobody owns a message and everybody reads it, so what
-- a batch is for jobs is a tick here, and there is no result.
--
-- More advisory steps (see 0001_jobs.sql): 4 ticking, 5 rotation of messages.

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
INSERT INTO weir.segment (log, segment, event) VALUES ('message', 1, 'opened');
INSERT INTO weir.setting (name, value) VALUES
  ('message_retention', '1 hour'),
  ('message_retention_bytes', '1073741824'),
  ('message_bytes', '1048576'),
  ('message_login_secret', encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex')),
  ('message_cluster', (SELECT system_identifier::text FROM pg_control_system()));
SELECT setval('weir.active_message', 1), setval('weir.tick_seq', 1), setval('weir.tick_floor', 0);
INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
SELECT 1, pg_snapshot_xmax(s), 0, 0, clock_timestamp(), 0, 0, 1, '{}', s FROM pg_current_snapshot() s;

CREATE TABLE weir.epoch (
  from_tick  bigint      NOT NULL PRIMARY KEY,
  epoch      bigint      NOT NULL,
  started_at timestamptz NOT NULL,
  at         timestamptz NOT NULL,
  home       text        NOT NULL
);
COMMENT ON TABLE weir.epoch IS
  'The lives of servers in which ticks were cut, each with the first tick of it: which of several logs, that were one and have parted, a tick is of. Never truncated: a row for each start of the server, the newest 1000 and those whose ticks can still be read.';
COMMENT ON COLUMN weir.epoch.epoch IS 'Drawn at random, 48 bits.';
COMMENT ON COLUMN weir.epoch.started_at IS 'When the server started, and home, its timeline and the file of this table, which a copy in the same server has not: while both are the same, so is the epoch. Only compared for being equal.';
INSERT INTO weir.epoch (from_tick, epoch, started_at, at, home)
SELECT 1, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
       left(pg_walfile_name(pg_current_wal_lsn()), 8) || ' ' || pg_relation_filepath('weir.epoch');

CREATE TABLE weir.hub_beat (
  ring        smallint    NOT NULL,
  at          timestamptz NOT NULL,
  tick        bigint,
  subscribers integer     NOT NULL,
  hub         text        NOT NULL,
  address     text        NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.hub_beat_0 PARTITION OF weir.hub_beat FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_1 PARTITION OF weir.hub_beat FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_2 PARTITION OF weir.hub_beat FOR VALUES IN (2) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.hub_beat IS 'Hubs'' signs of life, and the newest tick each has dispatched (NULL: it has stopped): a ring of three, five minutes each, truncated before its turn.';

CREATE TABLE weir.role_channel (
  role     text PRIMARY KEY,
  listens  text[],
  notifies text[]
);
COMMENT ON TABLE weir.role_channel IS 'The channels and patterns that a role is restricted to at hubs; null: not restricted.';

-- down --
DELETE FROM weir.setting WHERE name LIKE 'message%';
DELETE FROM weir.segment WHERE log = 'message';
DROP TABLE weir.role_channel, weir.hub_beat, weir.epoch, weir.tick, weir.message;
DROP SEQUENCE weir.message_id, weir.active_message, weir.tick_seq, weir.tick_floor;
