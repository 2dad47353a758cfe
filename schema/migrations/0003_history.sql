-- The last 72 hours, minute by minute, for charts. Rows are inserted when a minute is over, and reclaimed by TRUNCATE: see functions/history.sql.

-- What has ended in a minute is found by its time. Rows of a segment are not stored in that order: small ones go where large ones have left space.
CREATE INDEX result_finished ON weir.result (finished_at);

CREATE SEQUENCE weir.counted_minute AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.counted_minute IS
  'The minute, since 1970, in which minutes were last counted: those that were over a minute before it are in weir.minute. It lies behind if that is rolled back or lost, which does no harm.';

CREATE TABLE weir.minute (
  at        timestamptz NOT NULL,
  ring      smallint    NOT NULL,
  queue     text        NOT NULL,
  upto      timestamptz,
  completed bigint,
  failed    bigint,
  cancelled bigint,
  retried   bigint,
  other     bigint,
  sampled   bigint,
  waiting   bigint,
  oldest    interval,
  waits     numeric,
  runs      numeric
) PARTITION BY LIST (ring);
CREATE TABLE weir.minute_0 PARTITION OF weir.minute FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE weir.minute_1 PARTITION OF weir.minute FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.minute_2 PARTITION OF weir.minute FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE TABLE weir.minute_3 PARTITION OF weir.minute FOR VALUES IN (3) WITH (autovacuum_enabled = off);
CREATE INDEX minute_queue ON weir.minute (queue, at);
COMMENT ON TABLE weir.minute IS
  'What happened in a minute in a queue: in one kind of rows, how its attempts ended; in another, what waited when it was over. No row: nothing. Several rows of a minute and a queue add up. Insert-only: a ring of four tables for 36 hours each; each is truncated before its turn.';
COMMENT ON COLUMN weir.minute.queue IS 'Empty: all queues together, also those that have no rows of their own because a hundred others had more to count.';
COMMENT ON COLUMN weir.minute.upto IS 'The ends before this time are counted, here or in earlier rows. NULL: the row says what waited.';
COMMENT ON COLUMN weir.minute.retried IS 'With those whose worker was lost. other: snoozed or released.';
COMMENT ON COLUMN weir.minute.sampled IS 'How many of the attempts that completed, failed or were retried have been looked at for waits and runs.';
COMMENT ON COLUMN weir.minute.waiting IS 'How many jobs waited when the minute was over. oldest: for how long the first of them had.';
COMMENT ON COLUMN weir.minute.waits IS 'For how long the attempts waited that completed, failed or were retried, and in runs, how long they ran: about how many of them fall into each bucket of weir._bucket, in twelve digits for each, those of bucket 0 last. So sums of rows are sums of their buckets.';

-- down --
DROP TABLE weir.minute;
DROP SEQUENCE weir.counted_minute;
DROP INDEX weir.result_finished;
