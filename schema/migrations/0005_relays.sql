-- Relays, which copy messages to other brokers, and messages of other brokers into this log: see functions/relay.sql.

CREATE SEQUENCE weir.relay_no AS bigint;
COMMENT ON SEQUENCE weir.relay_no IS 'Numbers the rows of weir.relay.';
CREATE SEQUENCE weir.relay_bytes AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.relay_bytes IS 'The size of weir.relay when it was compacted last.';

CREATE TABLE weir.relay (
  relay    text        NOT NULL,
  no       bigint      NOT NULL,
  at       timestamptz NOT NULL,
  position text        NOT NULL,
  tick     bigint,
  sent     text,
  PRIMARY KEY (relay, no)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.relay IS
  'How far relays have come. Insert-only; the newest row of a relay counts, and the others are left out when it is compacted by TRUNCATE.';
COMMENT ON COLUMN weir.relay.position IS 'A position in the log that the relay reads: of this database''s messages, or of another broker, in that broker''s own form.';
COMMENT ON COLUMN weir.relay.tick IS 'The first tick of this database with messages that the relay has not passed on: they are kept for it. NULL: it reads another log.';
COMMENT ON COLUMN weir.relay.sent IS 'The position of the message that the target got last, which tells a target that was set back from one for which nothing has come. NULL: none.';
INSERT INTO weir.setting (name, value) VALUES ('relay_retention', '1 day');

-- down --
DELETE FROM weir.setting WHERE name = 'relay_retention';
DROP TABLE weir.relay;
DROP SEQUENCE weir.relay_no, weir.relay_bytes;
