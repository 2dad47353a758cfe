-- Publish and subscribe: the log of messages. It works like the log of jobs: rows are inserted,
-- read through snapshots, and reclaimed by TRUNCATE, a segment at a time. A message has no owner and many readers, so
-- ticks take the place of batches, and there are no results.
--
-- More advisory steps (see 0001_jobs.sql): 4 ticking, 5 rotation of messages.

CREATE SEQUENCE weir.message_id AS bigint;
COMMENT ON SEQUENCE weir.message_id IS 'Message ids. A hub compares its last_value with the one of its last poll to find out whether anything was published in between.';
CREATE SEQUENCE weir.active_message AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_message IS 'The segment that new messages are written to.';
CREATE SEQUENCE weir.tick_seq AS bigint;
COMMENT ON SEQUENCE weir.tick_seq IS
  'The number of the newest tick. It may be ahead: while that tick is being committed, and after a cut was rolled back, until the next one.';
CREATE SEQUENCE weir.tick_floor AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.tick_floor IS 'Ticks up to this number can''t be read any more, because messages of theirs have been truncated.';

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
COMMENT ON COLUMN weir.message.keep IS 'True: deliver the message even if its transaction has already published the same one.';

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
  'A batch of messages: those of the transactions that its snapshot sees and that of the previous tick did not. These are the transactions from from_xid up to the snapshot''s xmax that are not in progress in it, and those in late, which were in progress before.';
COMMENT ON COLUMN weir.tick.segments IS 'A bit mask of the segments that contain its messages: bit (1 << segment).';
COMMENT ON COLUMN weir.tick.bytes IS 'The size of its payloads. A tick of more than 10000 messages, or of more than 8 MB, contains a single transaction.';
COMMENT ON COLUMN weir.tick.last_id IS 'The last message id that had been assigned before the snapshot was taken.';

DO $$
DECLARE
  s integer;
BEGIN
  FOR s IN 1..4 LOOP
    EXECUTE format('CREATE TABLE weir.message_%s PARTITION OF weir.message FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.tick_%s PARTITION OF weir.tick FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    -- Publishing takes the time of an insert: no time is spent on compressing payloads.
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
  'Periods in which one server cut ticks, each with its first tick: they distinguish ticks of logs that were copied from each other and then diverged. Never truncated: one row for each start of the server; kept are the newest 1000, and those whose ticks can still be read.';
COMMENT ON COLUMN weir.epoch.epoch IS 'A random number of 48 bits.';
COMMENT ON COLUMN weir.epoch.started_at IS
  'The start time of the server. home is its timeline and the file of this table, which differs in a copy on the same server. While both are unchanged, the epoch continues. They are only compared for equality.';
INSERT INTO weir.epoch (from_tick, epoch, started_at, at, home)
SELECT 1, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
       left(pg_walfile_name(pg_current_wal_lsn()), 8) || ' ' || pg_relation_filepath('weir.epoch');

CREATE TABLE weir.hub_beat (
  ring        smallint    NOT NULL,
  at          timestamptz NOT NULL,
  tick        bigint,
  subscribers integer     NOT NULL,
  hub         text        NOT NULL,
  address     text        NOT NULL,
  channels    integer     NOT NULL,
  messages    real        NOT NULL,
  deliveries  real        NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.hub_beat_0 PARTITION OF weir.hub_beat FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_1 PARTITION OF weir.hub_beat FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.hub_beat_2 PARTITION OF weir.hub_beat FOR VALUES IN (2) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.hub_beat IS
  'Heartbeats of hubs, with the newest tick that each has dispatched (NULL: the hub has stopped), and what it does, in messages and deliveries per second: a ring of three tables for five minutes each; each is truncated before its turn.';

CREATE TABLE weir.role_channel (
  role     text PRIMARY KEY,
  listens  text[],
  notifies text[]
);
COMMENT ON TABLE weir.role_channel IS 'The channels and patterns that a role is restricted to at hubs; NULL: not restricted.';

CREATE SEQUENCE weir.revocation_id AS bigint;
COMMENT ON SEQUENCE weir.revocation_id IS 'Ids of revocations.';
CREATE TABLE weir.revocation (
  id        bigint      NOT NULL PRIMARY KEY,
  at        timestamptz NOT NULL,
  until     timestamptz,
  user_name text        NOT NULL
);
COMMENT ON TABLE weir.revocation IS
  'Users that were disconnected from all hubs. Their tokens from before at are refused until the time until; NULL: they are not. Only inserted into; what is over is deleted by later calls.';

-- down --
-- Triggers of watched tables: without Weir they have nothing to do.
DO $$
DECLARE
  made text;
BEGIN
  FOR made IN SELECT p.oid::regprocedure FROM pg_proc p WHERE left(p.proname, 11) = 'weir_watch_' AND left(obj_description(p.oid, 'pg_proc'), 17) = 'weir.watch_table ' LOOP
    EXECUTE 'DROP FUNCTION ' || made || ' CASCADE';
  END LOOP;
END
$$;
DELETE FROM weir.setting WHERE name LIKE 'message%';
DELETE FROM weir.segment WHERE log = 'message';
DROP TABLE weir.revocation, weir.role_channel, weir.hub_beat, weir.epoch, weir.tick, weir.message;
DROP SEQUENCE weir.revocation_id, weir.message_id, weir.active_message, weir.tick_seq, weir.tick_floor;
