-- The log and everything beside it. Nothing here is updated or deleted on a hot path:
-- rows are inserted, read through positions, and given back by TRUNCATE, a segment at a time.
--
-- Advisory locks are transaction-level and two-keyed. The first key says what is locked:
--   1464158546  a lane            (second key: lane)      exclusive: claim, and who carries its jobs into another segment
--   1464158547  a step            (second key: step)      see below
--   1464158548  a worker          (second key: worker)    shared: record; exclusive: fence
--   1464158549  a segment         (second key: segment)   shared: record, complete; exclusive: reclaim, rebase
--   1464158550  a worker's ends   (second key: worker)    exclusive: record, reconcile, settle; shared, for a moment: complete
--   1464158551  an attempt's end  (second key: hash of the job's id)  exclusive: complete
--   1464158552  a worker's claims (second key: worker)    exclusive: claim, fence, reconcile, settle
--   1464158553  a worker's open completions (second key: worker)  shared: complete; exclusive, tried: record, reconcile, settle
--   1464158554  a worker's attendance (second key: worker)  shared, for the session: attend (the one lock that a session holds)
--   1464158555  a worker's last word (second key: worker)  shared: attend, heartbeat; exclusive, tried: rescue
-- Steps: 0 guards claims against reclaiming (shared: claim; exclusive: reclaim, rebase);
--        1 rotation, reclaiming and re-basing; 2 promotion; 3 tidying; 6 rescue.

COMMENT ON SCHEMA weir IS 'Weir: background jobs on an insert-only log. Call the functions; the tables are private.';

-- Registers are sequences: read without a snapshot, written without a dead row.
CREATE SEQUENCE weir.job_id AS bigint;
COMMENT ON SEQUENCE weir.job_id IS 'Job ids. Its last_value also tells an idle worker whether anything was enqueued since it last looked.';
CREATE SEQUENCE weir.control AS bigint;
COMMENT ON SEQUENCE weir.control IS 'Counts what running workers must hear of: cancellations, pauses, new queues.';
CREATE SEQUENCE weir.batch_no AS bigint;
COMMENT ON SEQUENCE weir.batch_no IS 'Numbers batches. A worker''s claims exclude each other, so its batches are numbered in the order of their commits.';
CREATE SEQUENCE weir.active_job AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_job IS 'The segment that new jobs are logged in.';
CREATE SEQUENCE weir.active_later AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.carried AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.carried IS 'Bytes carried into the active segment, step by step, since it was opened.';
COMMENT ON SEQUENCE weir.active_later IS 'The segment that jobs for later are logged in.';
CREATE SEQUENCE weir.active_failure AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_failure IS 'The segment that failures are kept in.';

CREATE TYPE weir.outcome AS ENUM ('completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released', 'lost');
COMMENT ON TYPE weir.outcome IS
  'How an attempt ended. completed, failed and cancelled are final; retried, snoozed, released (handed back unstarted) and lost (its worker died) are followed by another attempt.';

CREATE TABLE weir.job (
  id           bigint      NOT NULL,
  xid          xid8        NOT NULL,
  enqueued_at  timestamptz NOT NULL,
  ready_at     timestamptz,
  lane         integer     NOT NULL,
  attempt      integer     NOT NULL,
  max_attempts integer     NOT NULL,
  put_off      integer     NOT NULL DEFAULT 0,
  segment      smallint    NOT NULL,
  leads        boolean     NOT NULL DEFAULT true,
  kind         text        NOT NULL,
  args         jsonb       NOT NULL,
  meta         jsonb,
  seq          bigint
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.job IS 'The log: one row for each attempt, and for each time that one was put off, with the transaction that logged it.';
COMMENT ON COLUMN weir.job.put_off IS 'How often this attempt was put off (snoozed) or handed back (released) before: (id, attempt, put_off) names a row, and a job''s rows follow each other in that order.';

COMMENT ON COLUMN weir.job.ready_at IS 'When it became ready to be claimed, where that is not when it was enqueued: it was scheduled, retried or handed back.';
COMMENT ON COLUMN weir.job.seq IS 'The batch of an attempt that ended before a rebase, which keeps results but no batches. NULL for all others.';
COMMENT ON COLUMN weir.job.leads IS 'False where the row logged before it, in the same transaction and segment, is of the same lane: the others tell in which lanes a transaction has logged.';

CREATE TABLE weir.batch (
  lane          integer     NOT NULL,
  segment       smallint    NOT NULL,
  origin        smallint    NOT NULL,
  worker        integer     NOT NULL,
  seq           bigint      NOT NULL,
  from_xid      xid8        NOT NULL,
  to_xid        xid8        NOT NULL,
  pos_xid       xid8        NOT NULL,
  pos_id        bigint      NOT NULL,
  total         bigint      NOT NULL,
  claimed_at    timestamptz NOT NULL,
  no            bigint      NOT NULL,
  pending       xid8[],
  pending_after bigint[],
  ids           bigint[]    NOT NULL,
  PRIMARY KEY (lane, seq, segment, origin)
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.batch IS
  'A slice of a lane and who works it, one row for each segment its jobs are in. The newest batch of a lane holds its position, its pending transactions and the total handed out.';
COMMENT ON COLUMN weir.batch.origin IS 'The segment it was made in; it tells the rows of one batch apart where reclaiming has carried them together.';
COMMENT ON COLUMN weir.batch.from_xid IS 'The smallest xid among its jobs: with to_xid, the greatest, it bounds the look-up of a job from its batch.';
COMMENT ON COLUMN weir.batch.no IS 'Of weir.batch_no: what a worker holds is found through (worker, no).';
COMMENT ON COLUMN weir.batch.pending IS 'Transactions that were in progress below the position; pending_after is the last id already taken of each.';

CREATE TABLE weir.result (
  lane        integer      NOT NULL,
  segment     smallint     NOT NULL,
  worker      integer      NOT NULL,
  seq         bigint       NOT NULL,
  finished_at timestamptz  NOT NULL,
  outcome     weir.outcome NOT NULL,
  ids         bigint[]     NOT NULL,
  errors      text[],
  outputs     text[]
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.result IS 'How attempts ended: a row for each flush, batch and outcome. It lies in its batch''s segment.';

CREATE TABLE weir.later (
  id           bigint      NOT NULL,
  xid          xid8        NOT NULL,
  run_at       timestamptz NOT NULL,
  enqueued_at  timestamptz NOT NULL,
  lane         integer     NOT NULL,
  attempt      integer     NOT NULL,
  max_attempts integer     NOT NULL,
  put_off      integer     NOT NULL DEFAULT 0,
  segment      smallint    NOT NULL,
  kind         text        NOT NULL,
  args         jsonb       NOT NULL,
  meta         jsonb
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.later IS 'Attempts with a run_at in the future: scheduled, retried, snoozed. The promoter copies them into the log when they are due.';

CREATE TABLE weir.failure (
  id           bigint   NOT NULL,
  segment      smallint NOT NULL,
  lane         integer  NOT NULL,
  attempt      integer  NOT NULL,
  max_attempts integer,
  enqueued_at  timestamptz,
  claimed_at   timestamptz,
  finished_at  timestamptz,
  worker       integer,
  kind         text,
  args         jsonb,
  meta         jsonb,
  error        text,
  output       text
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.failure IS
  'Jobs that have failed for good, each as it stood after the attempt it failed in; a copy, which outlives the job''s segment. It holds no transaction ids, so it means the same in another cluster.';
COMMENT ON COLUMN weir.failure.finished_at IS 'NULL: no end, but the word that the job was retried by hand, as this attempt.';

-- Leaves. Autovacuum has nothing to do on them (freezing against wraparound still happens by
-- itself). toast_tuple_target keeps a full batch of ids inline and out of TOAST.
DO $$
DECLARE
  s integer;
BEGIN
  FOR s IN 1..4 LOOP
    EXECUTE format('CREATE TABLE weir.job_%s PARTITION OF weir.job FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.batch_%s PARTITION OF weir.batch FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast_tuple_target = 8160)', s, s);
    EXECUTE format('CREATE TABLE weir.result_%s PARTITION OF weir.result FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast_tuple_target = 8160)', s, s);
    EXECUTE format('CREATE TABLE weir.later_%s PARTITION OF weir.later FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.failure_%s PARTITION OF weir.failure FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('ALTER TABLE weir.batch_%s ALTER COLUMN ids SET STORAGE EXTERNAL', s);
    EXECUTE format('ALTER TABLE weir.batch_%s ALTER COLUMN pending SET STORAGE EXTERNAL', s);
    EXECUTE format('ALTER TABLE weir.result_%s ALTER COLUMN ids SET STORAGE EXTERNAL', s);
  END LOOP;
END
$$;
CREATE INDEX job_lane ON weir.job (lane, xid, id);
CREATE INDEX job_lead ON weir.job (xid) WHERE leads;
CREATE INDEX job_by_id ON weir.job (id, attempt, put_off);
CREATE INDEX batch_worker ON weir.batch (worker, no);
CREATE INDEX result_batch ON weir.result (lane, seq);
CREATE INDEX result_cancelled ON weir.result (finished_at) WHERE outcome = 'cancelled';
CREATE INDEX later_due ON weir.later (run_at, id);
CREATE INDEX later_lane ON weir.later (lane, run_at, id);
CREATE INDEX later_xid ON weir.later (xid);
CREATE INDEX later_by_id ON weir.later (id, attempt, put_off);
CREATE INDEX failure_by_id ON weir.failure (id, attempt);
CREATE INDEX failure_ended ON weir.failure (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE weir.promotion (
  seq            bigint      PRIMARY KEY,
  due            timestamptz NOT NULL,
  due_id         bigint      NOT NULL,
  snapshot       pg_snapshot NOT NULL,
  ahead_due      timestamptz[],
  ahead_id       bigint[],
  ahead_snapshot pg_snapshot[]
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.promotion IS
  'The promoter''s cursor, newest row: everything in later up to (due, due_id) that snapshot could see has been promoted.';
COMMENT ON COLUMN weir.promotion.ahead_due IS
  'Cursors of before that reach further in time, with ahead_id and ahead_snapshot: what they say of what their snapshots could see still holds. NULL but after a clock stepped back, or while very many late jobs are promoted.';
INSERT INTO weir.promotion (seq, due, due_id, snapshot) VALUES (1, '-infinity', 0, pg_current_snapshot());
CREATE SEQUENCE weir.queue_id AS integer MINVALUE 1 MAXVALUE 500000000;

CREATE TABLE weir.queue (
  id         integer     PRIMARY KEY DEFAULT nextval('weir.queue_id'),
  name       text        NOT NULL,
  paused_at  timestamptz,
  aside      boolean     NOT NULL DEFAULT false,
  backoff       interval NOT NULL DEFAULT '1 second',
  backoff_limit interval NOT NULL DEFAULT '1 hour',
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX queue_name ON weir.queue (name, id);
CREATE SEQUENCE weir.idle_looked AS integer MINVALUE 0;
COMMENT ON SEQUENCE weir.idle_looked IS 'How far tidying has looked through the queues for idle lanes, in the order of ids.';
COMMENT ON COLUMN weir.queue.aside IS 'A twin with nothing to do: claims do not look at it. Should a job come to it all the same, weir._set_twins_aside finds it.';
COMMENT ON COLUMN weir.queue.backoff IS 'How long after its first failure a job is tried again; twice as long after each that follows, up to backoff_limit: see weir._next_try.';
COMMENT ON TABLE weir.queue IS
  'Queues by name. lane = id * 4 + priority - 1. A name may have several ids: two transactions that first use a name at the same time make one each rather than wait for one another.';

CREATE TABLE weir.survey (
  no         bigint        PRIMARY KEY,
  upto       integer       NOT NULL,
  snapshot   pg_snapshot   NOT NULL,
  batches    bigint        NOT NULL,
  reclaimed  bigint        NOT NULL,
  waiting    integer[]     NOT NULL,
  lanes      integer[]     NOT NULL,
  totals     bigint[]      NOT NULL,
  claimed_at timestamptz[] NOT NULL
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.survey IS
  'What is known of the lanes of queues up to the id upto, for looks; insert-only, and the newest row counts. Of what snapshot sees, all was handed out but in the lanes waiting; and lanes, totals and claimed_at tell what was ever handed out, and when last.';
COMMENT ON COLUMN weir.survey.batches IS 'What weir.batch_no showed: tells how much may have been handed out since.';
COMMENT ON COLUMN weir.survey.reclaimed IS 'The last event by which a segment of jobs was given back: after another the survey is of no use.';
CREATE SEQUENCE weir.worker_id AS integer;

-- Leases are measured by a clock of Weir's own, which runs only while somebody watches.
CREATE SEQUENCE weir.watched AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.watched IS
  'For how long, in ms, the silence of workers has been watched: by each weir._rescue, for the time since the last, but 2 s at most, and 0.5 s while somebody is missed. An outage, a failover, a clock that steps and an hour in which nobody looked are not a worker''s silence.';
CREATE SEQUENCE weir.watched_at AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.watched_at IS 'What the server''s clock showed when weir.watched was moved on, in ms.';
SELECT setval('weir.watched', 0), setval('weir.watched_at', 0);

CREATE TABLE weir.worker (
  id      integer     NOT NULL,
  fenced  boolean     NOT NULL,
  at      timestamptz NOT NULL,
  lease   interval,
  name    text        NOT NULL,
  queues  text[],
  PRIMARY KEY (id, fenced)
);
COMMENT ON TABLE weir.worker IS 'A row (fenced false) when a worker starts, another (fenced true) when it stops or is fenced. Never updated.';

CREATE TABLE weir.settled (
  worker integer  NOT NULL,
  no     bigint   NOT NULL,
  open   bigint[] NOT NULL,
  PRIMARY KEY (worker, no)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.settled IS
  'How far a worker''s batches have all ended: up to number no, but for those listed. Insert-only; the row with the greatest no counts. The greatest number there is means that the worker is fenced and has left nothing.';

CREATE SEQUENCE weir.last_word_no AS bigint;
CREATE TABLE weir.last_word (
  ring    smallint    NOT NULL,
  no      bigint      NOT NULL DEFAULT nextval('weir.last_word_no'),
  worker  integer     NOT NULL,
  at      timestamptz NOT NULL,
  watched bigint      NOT NULL,
  says    text        NOT NULL CHECK (says IN ('beats', 'attends', 'missed')),
  running integer     NOT NULL
) PARTITION BY LIST (ring);
CREATE INDEX last_word_worker ON weir.last_word (worker, no);
CREATE TABLE weir.last_word_0 PARTITION OF weir.last_word FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE weir.last_word_1 PARTITION OF weir.last_word FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.last_word_2 PARTITION OF weir.last_word FOR VALUES IN (2) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.last_word IS
  'Workers'' last words, in the order of no: a ring of three, five minutes of weir.watched each, truncated before its turn. watched is what that register showed; at is for people.';

-- Unlogged: as the locks it tells of, it does not survive a crash, and is not there after a failover.
CREATE UNLOGGED TABLE weir.attendance (
  worker     integer     NOT NULL,
  started_at timestamptz NOT NULL,
  watched    bigint      NOT NULL,
  PRIMARY KEY (worker, started_at)
);
COMMENT ON TABLE weir.attendance IS
  'Workers that have attended, of the server they did it at when it was started, and what weir.watched showed then. Where there is none of this life of the server, a lock that is free says nothing. That of worker 0 is of the first look at who does not attend: in this life no lease counts from before.';

CREATE TABLE weir.cancellation (
  id bigint      PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now()
);
CREATE SEQUENCE weir.cancel_looked AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.cancel_looked IS 'How far tidying has looked through weir.cancellation, in the order of ids.';
COMMENT ON TABLE weir.cancellation IS 'Tombstones: jobs that must not start, or must stop.';

CREATE SEQUENCE weir.segment_no AS bigint;
CREATE TABLE weir.segment (
  no      bigint      PRIMARY KEY DEFAULT nextval('weir.segment_no'),
  log     text        NOT NULL CHECK (log IN ('job', 'later', 'failure', 'message')),
  segment smallint    NOT NULL,
  event   text        NOT NULL CHECK (event IN ('opened', 'closed', 'reclaimed')),
  at      timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.segment IS 'What happened to segments, insert-only. The event with the greatest number of a segment is its state; at tells ages, never order.';
INSERT INTO weir.segment (log, segment, event) VALUES ('job', 1, 'opened'), ('later', 1, 'opened'), ('failure', 1, 'opened');
SELECT setval('weir.active_job', 1), setval('weir.active_later', 1), setval('weir.active_failure', 1), setval('weir.carried', 0);

CREATE TABLE weir.setting (
  name  text PRIMARY KEY,
  value text NOT NULL
);
COMMENT ON TABLE weir.setting IS 'Settings, changed by an operator: see weir.set; the cluster this log belongs to; and the secret that seals the cursors of lists.';
INSERT INTO weir.setting (name, value) VALUES
  ('completed_retention', '1 day'),
  ('failed_retention', '7 days'),
  ('retention_bytes', '4294967296'),
  ('cursor_secret', encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex')),
  ('cluster', (SELECT system_identifier::text FROM pg_control_system()));

CREATE TYPE weir.job_info AS (
  id bigint, state text, queue text, priority integer, kind text, args jsonb, meta jsonb, attempt integer, max_attempts integer,
  enqueued_at timestamptz, run_at timestamptz, claimed_at timestamptz, finished_at timestamptz, worker integer,
  cancel_requested boolean, output text, error text, errors jsonb);
COMMENT ON TYPE weir.job_info IS
  'A job as its newest attempt stands. error is why the last attempt ended as it did; errors are those of the last attempts still kept, oldest first: up to 25 from weir.job_info, one from a list.';

-- down --
DROP SCHEMA weir CASCADE;
