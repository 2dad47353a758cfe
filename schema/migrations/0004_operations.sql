-- Bulk operations that run in the background, and how far they are: see functions/operation.sql.

CREATE SEQUENCE weir.operation_id AS bigint;
COMMENT ON SEQUENCE weir.operation_id IS 'Numbers operations.';
CREATE SEQUENCE weir.operation_bytes AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.operation_bytes IS 'The size of weir.operation and weir.operation_step when they were compacted last.';

CREATE TABLE weir.operation (
  id          bigint      PRIMARY KEY,
  at          timestamptz NOT NULL,
  by          text        NOT NULL,
  what        text        NOT NULL,
  filter      jsonb       NOT NULL,
  to_queue    text,
  to_priority integer
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.operation IS 'Bulk operations, as they were begun. Insert-only; old ones are left out when it is compacted by TRUNCATE.';
COMMENT ON COLUMN weir.operation.filter IS 'The conditions, by the names of the arguments of weir.retry_where and the like.';

CREATE TABLE weir.operation_step (
  operation bigint      NOT NULL,
  no        integer     NOT NULL,
  at        timestamptz NOT NULL,
  state     text        NOT NULL CHECK (state IN ('running', 'done', 'stopped', 'failed')),
  changed   bigint,
  after     text,
  error     text,
  by        text,
  PRIMARY KEY (operation, no)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.operation_step IS
  'Where operations stand: a row for each step, written in the transaction of what the step does. Insert-only; the newest row of an operation counts, and the others are left out when it is compacted with weir.operation.';
COMMENT ON COLUMN weir.operation_step.changed IS 'How many jobs the operation has changed so far. NULL: that is not counted.';
COMMENT ON COLUMN weir.operation_step.after IS 'Where the list continues. NULL: at its beginning.';
COMMENT ON COLUMN weir.operation_step.by IS 'Who has stopped the operation.';

CREATE TABLE weir.operation_mark (
  no   bigint PRIMARY KEY,
  upto bigint NOT NULL
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.operation_mark IS
  'Up to which number all operations have ended, so that nobody looks at them again. Insert-only; the newest row counts, and the others are left out when weir.operation is compacted.';

-- down --
DROP TABLE weir.operation, weir.operation_step, weir.operation_mark;
DROP SEQUENCE weir.operation_id, weir.operation_bytes;
