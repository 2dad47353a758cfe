-- The log of jobs, and all tables that belong to it. Nothing here is updated or deleted on a hot path:
-- rows are inserted, read through positions, and reclaimed by TRUNCATE, a segment at a time.
--
-- Advisory locks are transaction-level and two-keyed. The first key says what is locked:
--   1464158546  a lane            (second key: queue id * 4 + priority - 1)  exclusive: claim, and carrying the lane's jobs into another segment
--   1464158547  a step            (second key: step)      see below
--   1464158548  a worker          (second key: worker)    shared: record; exclusive: fence
--   1464158549  a segment         (second key: segment)   shared: record, complete; exclusive: reclaim, rebase
--   1464158550  a worker's ends   (second key: worker)    exclusive: record, reconcile, settle; shared, for a moment: complete
--   1464158551  an attempt's end  (second key: hash of the job's id)  exclusive: complete
--   1464158552  a worker's claims (second key: worker)    exclusive: claim, fence, reconcile, settle
--   1464158553  a worker's open completions (second key: worker)  shared: complete; exclusive, tried: record, reconcile, settle
--   1464158554  a worker's attendance (second key: worker)  shared, for the session: attend (the one lock that a session holds)
--   1464158555  a worker's last word (second key: worker)  shared: attend, heartbeat; exclusive, tried: rescue
--   1464158556  a queue's unique jobs  (second key: hash of its name)  exclusive: claim
--   1464158557  a unique key      (second key: hash of the key)  exclusive: enqueue_unique with wait
--   1464158558  a gate            (second key: its number)  exclusive: claim
--   1464158559  a queue's turns   (second key: hash of its name)  exclusive: claim, reclaim
--   1464158560  a place in front of a gate   (second key: its number, and with another bit)  exclusive, tried: claim
--   1464158561  a place in front of turns    (second key: as of the turns, and with another bit)  exclusive, tried: claim
--   1464158562  an operation      (second key: its id)  exclusive, tried: a step of it; exclusive: stop_operation
-- Steps: 0 guards claims against reclaiming and changes of limits (shared: claim; exclusive: reclaim, rebase, set_limit, clear_limit, tidying gates);
--        1 rotation, reclaiming and rebasing; 2 promotion; 3 tidying; 6 rescue; 7 folding arrivals of flows; 8 counting minutes (see 0003_history.sql).

COMMENT ON SCHEMA weir IS 'Weir: background jobs on an insert-only log. Call the functions; the tables are private.';

-- Registers are sequences: read without a snapshot, written without a dead row.
CREATE SEQUENCE weir.job_id AS bigint;
COMMENT ON SEQUENCE weir.job_id IS 'Job ids. An idle worker compares its last_value with the one of its last poll to find out whether anything was enqueued in between.';
CREATE SEQUENCE weir.control AS bigint;
COMMENT ON SEQUENCE weir.control IS 'Counts changes that running workers must notice: cancellations, pauses, new queues.';
CREATE SEQUENCE weir.batch_no AS bigint;
COMMENT ON SEQUENCE weir.batch_no IS 'Numbers batches. A worker''s claims exclude each other, so its batches are numbered in the order of their commits.';
CREATE SEQUENCE weir.active_job AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_job IS 'The segment that new jobs are written to.';
CREATE SEQUENCE weir.active_later AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_later IS 'The segment that new rows of weir.later are written to.';
CREATE SEQUENCE weir.carried AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.carried IS 'Bytes carried into the active segment, in steps, since it was opened.';
CREATE SEQUENCE weir.active_failure AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_failure IS 'The segment that new rows of weir.failure are written to.';

CREATE SEQUENCE weir.active_report AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_report IS 'The segment that new rows of weir.report are written to.';
CREATE SEQUENCE weir.active_release AS smallint MINVALUE 1 MAXVALUE 3;
COMMENT ON SEQUENCE weir.active_release IS 'The table that new rows of weir.release are written to.';
CREATE SEQUENCE weir.report_no AS bigint;
COMMENT ON SEQUENCE weir.report_no IS 'Numbers reports.';

CREATE TYPE weir.outcome AS ENUM ('completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released', 'lost');
COMMENT ON TYPE weir.outcome IS
  'How an attempt ended. completed, failed and cancelled are final; retried, snoozed, released (not started) and lost (its worker died) are followed by another row of the same job.';

CREATE TABLE weir.job (
  id           bigint      NOT NULL,
  xid          xid8        NOT NULL,
  enqueued_at  timestamptz NOT NULL,
  ready_at     timestamptz,
  lane         bigint      NOT NULL,
  attempt      integer     NOT NULL,
  max_attempts integer     NOT NULL,
  put_off      integer     NOT NULL DEFAULT 0,
  segment      smallint    NOT NULL,
  leads        boolean     NOT NULL DEFAULT true,
  kind         text        NOT NULL,
  args         jsonb       NOT NULL,
  meta         jsonb,
  seq          bigint,
  errors       jsonb,
  unique_key   uuid,
  unique_no    bigint,
  unique_until timestamptz,
  key          text,
  flow         bigint
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.job IS
  'The log: one row for each attempt, and one more for each time that the attempt was snoozed or released, with the transaction that logged it.';
COMMENT ON COLUMN weir.job.put_off IS
  'How often this attempt was snoozed or released before: (id, attempt, put_off) identifies a row, and the rows of a job are ordered by it.';
COMMENT ON COLUMN weir.job.ready_at IS 'When the job became ready to be claimed, if that is not when it was enqueued: it was scheduled, retried, snoozed or released.';
COMMENT ON COLUMN weir.job.errors IS
  'Why earlier attempts ended, in brief: see weir._brief_errors. It goes with the job, so that it outlives the segments of those attempts. NULL: this is the first attempt.';
COMMENT ON COLUMN weir.job.seq IS 'The batch of an attempt that ended before a rebase, which keeps results but no batches; NULL for all others.';
COMMENT ON COLUMN weir.job.key IS 'Whose job it is, in a queue that is shared by turns; its hash is part of the lane. NULL: nobody''s.';
COMMENT ON COLUMN weir.job.flow IS 'The flow that it is a member of: see functions/flow.sql. NULL: none.';
COMMENT ON COLUMN weir.job.unique_key IS 'Of a unique job, or one that is to be done once in its flow: a hash of what must not be enqueued, or done, twice. See functions/unique.sql.';
COMMENT ON COLUMN weir.job.unique_no IS
  'Orders the rows of a key: each attempt, and each time that it was put off, has a new number, twice an id of weir.job_id; plus 1 if the job replaces those that were enqueued before it and have not started. NULL: it is no unique job, but may be one that is to be done once in its flow.';
COMMENT ON COLUMN weir.job.unique_until IS
  'Which others this job is a duplicate of: NULL: those that are unfinished; -infinity: those that wait; a time: those enqueued as long before or after it as this is after enqueued_at.';
COMMENT ON COLUMN weir.job.leads IS
  'False if the row logged before it, in the same transaction and segment, has the same lane: the rows where it is true show in which lanes a transaction has logged.';

CREATE TABLE weir.batch (
  lane          bigint      NOT NULL,
  worker        integer     NOT NULL,
  segment       smallint    NOT NULL,
  origin        smallint    NOT NULL,
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
  seen          pg_snapshot,
  gate          integer,
  lanes         bigint[],
  flows         bigint[],
  PRIMARY KEY (lane, seq, segment, origin)
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.batch IS
  'A slice of a lane and the worker that claimed it, with one row for each segment that its jobs are in. The newest batch of a lane holds the lane''s position, its pending transactions and the total number of claimed jobs.';
COMMENT ON COLUMN weir.batch.origin IS 'The segment it was written in. It distinguishes the rows of one batch after reclaiming has carried them into one segment.';
COMMENT ON COLUMN weir.batch.from_xid IS 'The smallest xid of its jobs. With to_xid, the greatest, it bounds the search for a job of the batch.';
COMMENT ON COLUMN weir.batch.no IS 'A value of weir.batch_no. The attempts that a worker holds are found by (worker, no).';
COMMENT ON COLUMN weir.batch.seen IS 'The snapshot of its claim, if unique jobs are in it: their duplicates that it shows need no run of their own.';
COMMENT ON COLUMN weir.batch.gate IS 'The gate that counts its attempts; their ends write to weir.release. NULL: its queue had no limits.';
COMMENT ON COLUMN weir.batch.lanes IS 'In the ring lane of a queue, where nothing is logged, are the batches of claims from its keys: these are the lanes of its jobs, in the order of ids. NULL: all are in the batch''s lane.';
COMMENT ON COLUMN weir.batch.flows IS 'The flows of its jobs, in the order of ids; one element: all are members of that flow. NULL: none is a member of one.';
COMMENT ON COLUMN weir.batch.pending IS 'Transactions that were in progress below the position; pending_after holds the last id already claimed of each.';

CREATE TABLE weir.result (
  lane        bigint       NOT NULL,
  seq         bigint       NOT NULL,
  finished_at timestamptz  NOT NULL,
  worker      integer      NOT NULL,
  outcome     weir.outcome NOT NULL,
  segment     smallint     NOT NULL,
  ids         bigint[]     NOT NULL,
  errors      text[],
  outputs     text[]
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.result IS 'How attempts ended: one row for each flush, batch and outcome, in the segment of its batch.';

CREATE TABLE weir.later (
  id           bigint      NOT NULL,
  xid          xid8        NOT NULL,
  run_at       timestamptz NOT NULL,
  enqueued_at  timestamptz NOT NULL,
  lane         bigint      NOT NULL,
  attempt      integer     NOT NULL,
  max_attempts integer     NOT NULL,
  put_off      integer     NOT NULL DEFAULT 0,
  segment      smallint    NOT NULL,
  kind         text        NOT NULL,
  args         jsonb       NOT NULL,
  meta         jsonb,
  errors       jsonb,
  unique_key   uuid,
  unique_no    bigint,
  unique_until timestamptz,
  key          text,
  flow         bigint
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.later IS 'Attempts with a run_at in the future: scheduled, retried, snoozed. Promotion copies them into the log when they are due.';

CREATE TABLE weir.failure (
  id           bigint   NOT NULL,
  lane         bigint   NOT NULL,
  enqueued_at  timestamptz,
  claimed_at   timestamptz,
  finished_at  timestamptz,
  attempt      integer  NOT NULL,
  max_attempts integer,
  worker       integer,
  segment      smallint NOT NULL,
  kind         text,
  args         jsonb,
  meta         jsonb,
  error        text,
  output       text,
  errors       jsonb,
  unique_key   uuid,
  unique_until timestamptz,
  key          text,
  flow         bigint
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.failure IS
  'Jobs that failed for good, each as it was after its last attempt. A row is a copy, which outlives the job''s segment. It contains no transaction ids, so it stays valid in another cluster.';
COMMENT ON COLUMN weir.failure.finished_at IS 'NULL: not a failure, but a note that the job was retried manually, as this attempt.';

CREATE TABLE weir.report (
  job_id     bigint      NOT NULL,
  claim      bigint      NOT NULL,
  no         bigint      NOT NULL,
  at         timestamptz NOT NULL,
  percent    double precision,
  attempt    integer     NOT NULL,
  segment    smallint    NOT NULL,
  message    text,
  checkpoint jsonb,
  lines      jsonb
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.report IS 'What attempts have reported while they ran. The newest row of a job counts, in the order of (claim, no); and the newest that has a checkpoint.';
COMMENT ON COLUMN weir.report.claim IS 'The number of the batch that claimed the attempt: those of a job''s attempts grow.';
COMMENT ON COLUMN weir.report.checkpoint IS 'NULL: the checkpoint has not changed; a JSON null: there is none any more.';

-- Partitions. Autovacuum has nothing to do on them (freezing against wraparound still happens
-- automatically). toast_tuple_target keeps a full batch of ids inline and out of TOAST.
CREATE TABLE weir.turn (
  lane          bigint   NOT NULL,
  seq           bigint   NOT NULL,
  pos_xid       xid8     NOT NULL,
  pos_id        bigint   NOT NULL,
  tag           bigint   NOT NULL,
  segment       smallint NOT NULL,
  waits         boolean  NOT NULL,
  parked        boolean  NOT NULL,
  pending       xid8[],
  pending_after bigint[],
  open          bigint[],
  next_start    timestamptz,
  again_at      timestamptz
) PARTITION BY LIST (segment);
COMMENT ON TABLE weir.turn IS
  'Where the keys of queues stand: a row for each turn, and the newest row of a lane is the key''s whole state. A key without a row has had no turn yet, or nothing that is left in the log. See functions/turn.sql.';
COMMENT ON COLUMN weir.turn.seq IS 'The batch of the claim that wrote the row: it has the same number in the ring lane.';
COMMENT ON COLUMN weir.turn.tag IS 'When its next turn begins, in the virtual time of weir.ring.';
COMMENT ON COLUMN weir.turn.waits IS 'It waits for its turn.';
COMMENT ON COLUMN weir.turn.parked IS 'It has jobs, but so many of its attempts run that none may start: it gets another turn when one ends.';
COMMENT ON COLUMN weir.turn.again_at IS 'It has jobs, and gets another turn at this time, because of its rate.';
COMMENT ON COLUMN weir.turn.pending IS 'Transactions that ended after the position had passed them, and are not read to their end; pending_after holds the last id already claimed of each.';
COMMENT ON COLUMN weir.turn.open IS 'Attempts that are not known to have ended: the batch and the job of each. NULL: there are none, or their number is not limited.';
COMMENT ON COLUMN weir.turn.next_start IS 'As weir.gate.next_start, for the rate of the key.';

DO $$
DECLARE
  s integer;
BEGIN
  FOR s IN 1..4 LOOP
    EXECUTE format('CREATE TABLE weir.turn_%s PARTITION OF weir.turn FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.job_%s PARTITION OF weir.job FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.batch_%s PARTITION OF weir.batch FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast_tuple_target = 8160)', s, s);
    EXECUTE format('CREATE TABLE weir.result_%s PARTITION OF weir.result FOR VALUES IN (%s) WITH (autovacuum_enabled = off, toast_tuple_target = 8160)', s, s);
    EXECUTE format('CREATE TABLE weir.later_%s PARTITION OF weir.later FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.failure_%s PARTITION OF weir.failure FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('CREATE TABLE weir.report_%s PARTITION OF weir.report FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', s, s);
    EXECUTE format('ALTER TABLE weir.batch_%s ALTER COLUMN ids SET STORAGE EXTERNAL', s);
    EXECUTE format('ALTER TABLE weir.batch_%s ALTER COLUMN pending SET STORAGE EXTERNAL', s);
    EXECUTE format('ALTER TABLE weir.result_%s ALTER COLUMN ids SET STORAGE EXTERNAL', s);
  END LOOP;
END
$$;
CREATE INDEX job_lane ON weir.job (lane, xid, id);
CREATE INDEX job_lead ON weir.job (xid) WHERE leads;
CREATE INDEX job_key_lead ON weir.job ((lane >> 39), xid) WHERE leads AND lane & 549755813880 <> 0;  -- the rows that have a key: see functions/ring.sql
CREATE INDEX turn_lane ON weir.turn (lane, seq);
CREATE INDEX turn_ring ON weir.turn ((lane >> 39), tag) WHERE waits;
CREATE INDEX turn_again ON weir.turn ((lane >> 39), again_at) WHERE again_at IS NOT NULL;
CREATE INDEX turn_stopped ON weir.turn (lane) WHERE parked OR again_at IS NOT NULL;
CREATE INDEX job_by_id ON weir.job (id, attempt, put_off);
CREATE INDEX job_unique ON weir.job (unique_key, unique_no) WHERE unique_key IS NOT NULL;
CREATE INDEX batch_worker ON weir.batch (worker, no);
CREATE INDEX result_batch ON weir.result (lane, seq);
CREATE INDEX result_cancelled ON weir.result (finished_at) WHERE outcome = 'cancelled';
CREATE INDEX result_cancelled_in ON weir.result (lane, finished_at) WHERE outcome = 'cancelled';
CREATE INDEX later_due ON weir.later (run_at, id);
CREATE INDEX later_lane ON weir.later (lane, run_at, id);
CREATE INDEX later_xid ON weir.later (xid);
CREATE INDEX later_by_id ON weir.later (id, attempt, put_off);
CREATE INDEX report_job ON weir.report (job_id, claim, no);
CREATE INDEX report_checkpoint ON weir.report (job_id, claim, no) WHERE checkpoint IS NOT NULL;
CREATE INDEX later_unique ON weir.later (unique_key, unique_no) WHERE unique_key IS NOT NULL;
CREATE INDEX failure_by_id ON weir.failure (id, attempt);
CREATE INDEX failure_ended ON weir.failure (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX failure_lane ON weir.failure (lane, finished_at, id) WHERE finished_at IS NOT NULL;

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
  'The cursor of promotion; the newest row counts: every row of weir.later up to (due, due_id) that the snapshot could see has been promoted.';
COMMENT ON COLUMN weir.promotion.ahead_due IS
  'Earlier cursors that reach further in time, with ahead_id and ahead_snapshot: the rows that their snapshots could see are promoted. NULL except after the clock stepped back, or while very many late jobs are being promoted.';
INSERT INTO weir.promotion (seq, due, due_id, snapshot) VALUES (1, '-infinity', 0, pg_current_snapshot());
CREATE SEQUENCE weir.queue_id AS integer MINVALUE 1 MAXVALUE 16777215;  -- 24 bits of a lane

CREATE TABLE weir.queue (
  id         integer     PRIMARY KEY DEFAULT nextval('weir.queue_id'),
  name       text        NOT NULL,
  paused_at  timestamptz,
  aside      boolean     NOT NULL DEFAULT false,
  backoff       interval NOT NULL DEFAULT '1 second',
  backoff_limit interval NOT NULL DEFAULT '1 hour',
  backoff_form  text     NOT NULL DEFAULT 'exponential',
  ageing     interval,
  created_at timestamptz NOT NULL DEFAULT now(),
  gate       integer
);
CREATE INDEX queue_name ON weir.queue (name, id);
CREATE SEQUENCE weir.idle_looked AS integer MINVALUE 0;
COMMENT ON SEQUENCE weir.idle_looked IS 'The greatest queue id that tidying has checked for idle lanes.';
COMMENT ON COLUMN weir.queue.aside IS
  'True for a twin (another row with the same name) without jobs: claims skip it. If a job is added to it after all, weir._set_twins_aside makes claims include it again.';
COMMENT ON COLUMN weir.queue.backoff IS
  'The delay between the first failure of a job and the next attempt. It grows with each further failure as backoff_form says, up to backoff_limit: see weir._next_try.';
COMMENT ON COLUMN weir.queue.ageing IS
  'For how long a job waits before it may be claimed ahead of those whose priority is one before its own: see weir._reserve. NULL: forever.';
COMMENT ON COLUMN weir.queue.gate IS
  'The gate of its limits; NULL: it has none. A twin that was created at the same time may lack it: the gate of a name is that of any of its twins.';
COMMENT ON TABLE weir.queue IS
  'Queues by name. lane = id << 39 | priority - 1; the bits between are 0. A name may have several ids: two transactions that use a new name at the same time create one row each instead of waiting for each other.';

-- Limits: see functions/limit.sql.
CREATE SEQUENCE weir.gate_id AS integer;
CREATE TABLE weir.queue_limit (
  name    text             PRIMARY KEY,
  gate    integer          NOT NULL,
  running integer,
  rate    double precision,
  per     interval,
  burst   integer,
  key_running integer,
  key_rate    double precision,
  key_per     interval,
  key_burst   integer,
  in_order    boolean NOT NULL DEFAULT false,
  version     bigint  NOT NULL
);
CREATE SEQUENCE weir.limit_version AS bigint;
COMMENT ON COLUMN weir.queue_limit.key_running IS 'This and the following are the limits of each key of the queue.';
COMMENT ON COLUMN weir.queue_limit.in_order IS 'No job of a key starts while an earlier one of it is to be tried again.';
COMMENT ON COLUMN weir.queue_limit.version IS 'Another one each time that they change: then keys that a limit has stopped are looked at again.';
COMMENT ON TABLE weir.queue_limit IS
  'The limits of queues, which only those change who operate them: at most running attempts at a time; at most rate starts per interval, of which burst may start at once. NULL: unlimited.';
COMMENT ON COLUMN weir.queue_limit.gate IS 'Another one each time that a queue without limits gets some.';

CREATE TABLE weir.gate (
  gate         integer     NOT NULL,
  seq          bigint      NOT NULL,
  running      integer     NOT NULL,
  folded       pg_snapshot NOT NULL,
  next_start   timestamptz,
  before       bigint,
  before_lanes bigint[],
  before_seqs  bigint[],
  PRIMARY KEY (gate, seq)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.gate IS
  'What the limits of a queue count: a row for each claim, and the newest row of a gate is its whole state. Insert-only, and compacted by TRUNCATE.';
COMMENT ON COLUMN weir.gate.running IS 'How many attempts were handed out through this gate, minus how many of them the releases in folded have ended.';
COMMENT ON COLUMN weir.gate.folded IS 'The releases of transactions that this snapshot sees are in running.';
COMMENT ON COLUMN weir.gate.next_start IS 'When the rate would allow the next start if there were no burst: the theoretical arrival time of the generic cell rate algorithm.';
COMMENT ON COLUMN weir.gate.before IS
  'The seq of the gate''s first row. Its before_lanes and before_seqs are the batches that were not ended when the gate was opened: what runs of them counts as well. NULL: all have ended.';

CREATE TABLE weir.release (
  gate integer  NOT NULL,
  ring smallint NOT NULL,
  xid  xid8     NOT NULL,
  n    integer  NOT NULL,
  lanes bigint[]
) PARTITION BY LIST (ring);
CREATE INDEX release_gate ON weir.release (gate, xid);
CREATE TABLE weir.release_1 PARTITION OF weir.release FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.release_2 PARTITION OF weir.release FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE TABLE weir.release_3 PARTITION OF weir.release FOR VALUES IN (3) WITH (autovacuum_enabled = off);
COMMENT ON COLUMN weir.release.lanes IS 'The lanes of those that were jobs of keys. Claims give turns to keys that were at their limit. Empty: to all of them, because a filter has cancelled jobs that may have held them up.';
COMMENT ON TABLE weir.release IS
  'How many attempts of a gate a transaction has ended, written by that transaction. Insert-only: a ring of three tables, each of which is truncated once its rows are counted.';

CREATE TABLE weir.retry_rule (
  name          text     PRIMARY KEY,
  queue         text,
  kind          text,
  error         text,
  action        text     NOT NULL,
  backoff       interval,
  backoff_limit interval,
  backoff_form  text
);
COMMENT ON TABLE weir.retry_rule IS
  'What follows an attempt that failed with an error which the regular expression error matches, in a queue, of a kind; NULL: any. A backoff, limit or form that is NULL is the queue''s.';

CREATE TABLE weir.keyed (queue text NOT NULL) WITH (autovacuum_enabled = off);
CREATE INDEX keyed_queue ON weir.keyed (queue);
COMMENT ON TABLE weir.keyed IS
  'The names of queues that have had unique jobs; insert-only. Transactions that do not see each other may each write a row. A snapshot that shows a unique job shows a row of its queue.';

CREATE TABLE weir.with_keys (queue text NOT NULL, since xid8 NOT NULL) WITH (autovacuum_enabled = off);
CREATE INDEX with_keys_queue ON weir.with_keys (queue);
COMMENT ON TABLE weir.with_keys IS
  'The names of queues that have had jobs with keys; insert-only. Transactions that do not see each other may each write a row. A snapshot that shows a job with a key shows a row of its queue.';
COMMENT ON COLUMN weir.with_keys.since IS 'No transaction before it has logged a job with a key that another row does not stand for.';

CREATE TABLE weir.ring (
  queue   text        NOT NULL,
  seq     bigint      NOT NULL,
  tag     bigint      NOT NULL,
  forms   integer     NOT NULL,
  version bigint      NOT NULL,
  arrived pg_snapshot NOT NULL,
  newcomers bigint[]  NOT NULL,
  due     timestamptz NOT NULL DEFAULT '-infinity',
  stopped_after bigint,
  stopped_upto  bigint,
  PRIMARY KEY (queue, seq)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.ring IS
  'The turns of a queue''s keys: a row for each claim from them, and the newest row of a queue is the whole state. Insert-only, and compacted by TRUNCATE.';
COMMENT ON COLUMN weir.ring.tag IS 'Virtual time: no turn that has not begun has a smaller tag.';
COMMENT ON COLUMN weir.ring.forms IS 'Which last three bits the lanes of keys have had so far, as a set: priorities, and whether attempts were put back.';
COMMENT ON COLUMN weir.ring.version IS 'The version of the limits that the claim has seen.';
COMMENT ON COLUMN weir.ring.newcomers IS 'Lanes of keys with news that have not had a turn yet, in the order in which they came, and are not in the ring.';
COMMENT ON COLUMN weir.ring.due IS 'No key that has another turn at an earlier time than this, because of its rate, still waits for it, unless the clock was set back.';
COMMENT ON COLUMN weir.ring.stopped_after IS
  'Limits have changed, or a filter has cancelled jobs, and some of the keys that a limit has stopped are still to be looked at again: those in the lanes after this one, up to stopped_upto; if that does not lie after it, to the last lane, and then from the first one on. NULL: none.';
COMMENT ON COLUMN weir.ring.arrived IS 'What is announced: the news of the transactions that this snapshot sees. Rows of others are left to later claims.';

CREATE TABLE weir.key_weight (
  queue  text             NOT NULL,
  bits   bigint           NOT NULL,
  key    text             NOT NULL,
  weight double precision NOT NULL,
  PRIMARY KEY (queue, bits)
);
COMMENT ON TABLE weir.key_weight IS 'How many turns a key gets in relation to others, if not one; only those change it who operate queues.';
COMMENT ON COLUMN weir.key_weight.bits IS 'What the lanes of the key have in common: see weir._key_bits.';

CREATE SEQUENCE weir.schedule_generation AS integer;
CREATE TABLE weir.schedule (
  name         text        PRIMARY KEY,
  generation   integer     NOT NULL,
  schedule     text        NOT NULL,
  fields       text[]      NOT NULL,
  time_zone    text        NOT NULL,
  missed       text        NOT NULL CHECK (missed IN ('one', 'all', 'none')),
  jitter       interval    NOT NULL,
  queue        text        NOT NULL,
  kind         text        NOT NULL,
  args         jsonb       NOT NULL,
  priority     integer     NOT NULL,
  max_attempts integer     NOT NULL,
  meta         jsonb,
  key          text,
  first_due    timestamptz NOT NULL,
  paused_at    timestamptz
);
COMMENT ON TABLE weir.schedule IS 'Schedules, which only those change who declare or operate them.';
COMMENT ON COLUMN weir.schedule.generation IS 'Another one after each change: rows of weir.later with an earlier one count no more.';
COMMENT ON COLUMN weir.schedule.fields IS 'The parsed schedule: see weir._parse_schedule.';
COMMENT ON COLUMN weir.schedule.first_due IS 'The first due time of this generation.';

CREATE TABLE weir.firing (
  name text        NOT NULL,
  due  timestamptz NOT NULL,
  job  bigint,
  PRIMARY KEY (name, due)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.firing IS
  'The due times of schedules that were fired, each with its job (NULL: it was missed, and passed over). Insert-only; the newest row of a schedule counts, and the others are kept for a while.';

CREATE TABLE weir.survey (
  no         bigint        PRIMARY KEY,
  upto       integer       NOT NULL,
  snapshot   pg_snapshot   NOT NULL,
  batches    bigint        NOT NULL,
  reclaimed  bigint        NOT NULL,
  waiting    bigint[]      NOT NULL,
  lanes      bigint[]      NOT NULL,
  totals     bigint[]      NOT NULL,
  claimed_at timestamptz[] NOT NULL
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.survey IS
  'A summary of the lanes of queues with ids up to upto, for inspections; insert-only, and the newest row counts. Of the jobs that snapshot sees, all were claimed except those in the lanes in waiting. lanes, totals and claimed_at hold how many jobs were ever claimed from each lane, and when last.';
COMMENT ON COLUMN weir.survey.batches IS 'The value of weir.batch_no at the time: it bounds how many batches may have been claimed since.';
COMMENT ON COLUMN weir.survey.reclaimed IS 'The number of the last event by which a segment of jobs was reclaimed. After another such event the survey is invalid.';
CREATE SEQUENCE weir.worker_id AS integer;

-- Leases are measured by Weir's own clock, which runs only while a rescuer is watching.
CREATE SEQUENCE weir.watched AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.watched IS
  'For how long, in ms, rescuers have watched the workers: each call of weir._rescue adds the time since the previous call, but at most 2 s, and at most 0.5 s while a worker whose session has ended has time to attend with another. An outage, a failover, a clock step or an hour without a rescuer therefore does not count as silence of a worker.';
CREATE SEQUENCE weir.watched_at AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.watched_at IS 'The server''s clock, in ms, when weir.watched was last advanced.';
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
COMMENT ON TABLE weir.worker IS 'A row with fenced = false when a worker starts, another with fenced = true when it stops or is fenced. Never updated.';

CREATE TABLE weir.settled (
  worker integer  NOT NULL,
  no     bigint   NOT NULL,
  open   bigint[] NOT NULL,
  PRIMARY KEY (worker, no)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.settled IS
  'Up to which number all of a worker''s batches have ended, except those listed in open. Insert-only; the row with the greatest no counts. The greatest possible no means that the worker is fenced and has no unfinished attempts.';

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
  'The last words of workers, their liveness records, ordered by no: a ring of three tables for five minutes of weir.watched each; each is truncated before its turn. watched is the value of that sequence; at is only for people.';

-- Unlogged: like the locks it describes, it does not survive a crash, and is empty after a failover.
CREATE UNLOGGED TABLE weir.attendance (
  worker     integer     NOT NULL,
  started_at timestamptz NOT NULL,
  watched    bigint      NOT NULL,
  PRIMARY KEY (worker, started_at)
);
COMMENT ON TABLE weir.attendance IS
  'Workers that have attended, each with the start time of the server on which they did, and the value of weir.watched at that time. Without a row for the current server start, a free attendance lock means nothing. The row of worker 0 records the first check for unattended workers since the server started: no lease counts from before it.';

CREATE TABLE weir.cancellation (
  id    bigint      PRIMARY KEY,
  at    timestamptz NOT NULL DEFAULT now(),
  queue text
);
CREATE INDEX cancellation_of_queue ON weir.cancellation (queue, id);
CREATE SEQUENCE weir.cancel_looked AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.cancel_looked IS 'The greatest id of weir.cancellation that tidying has checked.';
COMMENT ON TABLE weir.cancellation IS 'Jobs that were cancelled: they must not start, or must stop.';
COMMENT ON COLUMN weir.cancellation.queue IS 'The queue in which the job was when it was cancelled, for lists of one queue.';

CREATE SEQUENCE weir.cancellation_no AS bigint;
CREATE TABLE weir.cancellation_where (
  no              bigint      NOT NULL DEFAULT nextval('weir.cancellation_no'),
  at              timestamptz NOT NULL DEFAULT clock_timestamp(),
  upto            bigint      NOT NULL,
  queue           text,
  kinds           text[],
  meta            jsonb,
  priority        integer,
  enqueued_after  timestamptz,
  enqueued_before timestamptz,
  key             text,
  flow            bigint,
  is_late         boolean     NOT NULL DEFAULT false,
  batches         bigint,
  xid             xid8,
  clear_xid       xid8
);
COMMENT ON TABLE weir.cancellation_where IS
  'Cancellations by filter: unfinished jobs that a row describes, with ids up to upto, must not start, or must stop. A row is deleted when no such job is left.';
COMMENT ON COLUMN weir.cancellation_where.is_late IS 'Of a flow: it means jobs that were added beside another cancellation of the flow, as long as their flow is cancelled.';
COMMENT ON COLUMN weir.cancellation_where.batches IS 'A value of weir.batch_no: claims with greater numbers have seen this row. NULL: not known yet.';
COMMENT ON COLUMN weir.cancellation_where.xid IS 'Jobs with ids up to upto were enqueued by transactions with smaller xids. NULL: not known yet.';
COMMENT ON COLUMN weir.cancellation_where.clear_xid IS 'All unfinished jobs that the row describes wait to be claimed, in rows with smaller xids. NULL: some may run, or be scheduled.';
CREATE INDEX cancellation_where_flow ON weir.cancellation_where (flow) WHERE flow IS NOT NULL;
CREATE TABLE weir.reprieve (
  id      bigint  NOT NULL,
  attempt integer NOT NULL,
  since   bigint  NOT NULL,
  upto    bigint  NOT NULL
) WITH (autovacuum_enabled = off);
CREATE INDEX reprieve_by_id ON weir.reprieve (id);
COMMENT ON TABLE weir.reprieve IS
  'Jobs that were retried after they were cancelled by a filter, or moved: cancellations with numbers from since to upto do not apply to this and later attempts. Insert-only, truncated when those cancellations are gone.';

-- Flows: see functions/flow.sql.
CREATE SEQUENCE weir.flow_id AS bigint;
COMMENT ON SEQUENCE weir.flow_id IS 'Flow ids.';
CREATE SEQUENCE weir.flow_bytes AS bigint MINVALUE 0;
COMMENT ON SEQUENCE weir.flow_bytes IS 'The size of weir.flow and weir.fold when they were compacted last.';
CREATE TABLE weir.flow (
  id         bigint      PRIMARY KEY,
  created_at timestamptz NOT NULL,
  deadline   timestamptz NOT NULL,
  name       text        NOT NULL,
  on_done    jsonb,
  on_success jsonb,
  fail_fast  boolean     NOT NULL DEFAULT false,
  root       bigint      NOT NULL,
  parent     bigint,
  task       jsonb
) WITH (autovacuum_enabled = off);
CREATE INDEX flow_deadline ON weir.flow (deadline) WHERE task IS NULL;
CREATE INDEX flow_top ON weir.flow (id) WHERE parent IS NULL;
CREATE INDEX flow_within ON weir.flow (parent, name) WHERE parent IS NOT NULL;
COMMENT ON TABLE weir.flow IS 'Flows, as they were created. Insert-only; those that ended long ago are left out when it is compacted by TRUNCATE.';
COMMENT ON COLUMN weir.flow.deadline IS 'When it is sealed, if nobody has done so.';
COMMENT ON COLUMN weir.flow.parent IS 'The flow that it is a member of; root is the outermost one, possibly itself. NULL: none.';
COMMENT ON COLUMN weir.flow.task IS 'It is a task of its parent: its first member, which is enqueued when the tasks that it comes after have ended. NULL: it is none.';

CREATE TABLE weir.edge (
  flow        bigint  NOT NULL,
  predecessor text    NOT NULL,
  successor   bigint  NOT NULL,
  is_lenient  boolean NOT NULL
) WITH (autovacuum_enabled = off);
CREATE INDEX edge_predecessor ON weir.edge (flow, predecessor);
CREATE INDEX edge_successor ON weir.edge (successor);
COMMENT ON TABLE weir.edge IS 'Which task of a flow comes after which: by name, because two transactions that do not see each other may both add a task, of which one counts. Insert-only, and compacted with weir.flow.';
COMMENT ON COLUMN weir.edge.is_lenient IS 'The successor runs also if the predecessor has failed or was cancelled.';

CREATE SEQUENCE weir.active_arrival AS smallint MINVALUE 1 MAXVALUE 3;
COMMENT ON SEQUENCE weir.active_arrival IS 'The table that new rows of weir.arrival are written to.';
CREATE TABLE weir.arrival (
  flow      bigint   NOT NULL,
  xid       xid8     NOT NULL,
  jobs      integer  NOT NULL DEFAULT 0,
  completed integer  NOT NULL DEFAULT 0,
  failed    integer  NOT NULL DEFAULT 0,
  cancelled integer  NOT NULL DEFAULT 0,
  ring      smallint NOT NULL,
  event     text,
  no        bigint,
  waits     integer,
  broken    integer,
  counts    jsonb
) PARTITION BY LIST (ring);
CREATE INDEX arrival_xid ON weir.arrival (xid, flow);
CREATE TABLE weir.arrival_1 PARTITION OF weir.arrival FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.arrival_2 PARTITION OF weir.arrival FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE TABLE weir.arrival_3 PARTITION OF weir.arrival FOR VALUES IN (3) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.arrival IS
  'What a transaction has changed of the counts of a flow: how many jobs were added, and how many have ended, in which way; a retry takes back an end. Insert-only: a ring of three tables, each of which is truncated once its rows are counted.';
COMMENT ON COLUMN weir.arrival.event IS 'created, sealed, cancelled or retried: what has happened to the flow besides; called: the job is a callback of a flow within it. NULL: nothing.';
COMMENT ON COLUMN weir.arrival.no IS 'Of cancelled, the number of the cancellation; of retried, the greatest of those of the flow that whoever retried it had seen.';
COMMENT ON COLUMN weir.arrival.waits IS 'Of a task: what has changed of weir.fold.waits; and broken of weir.fold.broken. NULL: nothing.';
COMMENT ON COLUMN weir.arrival.counts IS 'What is added to counters of the flow, by name. NULL: nothing.';

CREATE TABLE weir.fold (
  flow         bigint      NOT NULL,
  cut          bigint      NOT NULL,
  jobs         bigint      NOT NULL,
  completed    bigint      NOT NULL,
  failed       bigint      NOT NULL,
  cancelled    bigint      NOT NULL,
  generation   integer     NOT NULL,
  is_sealed    boolean     NOT NULL,
  is_cancelled boolean     NOT NULL,
  is_abandoned boolean     NOT NULL,
  fired_at     timestamptz,
  waits        integer,
  broken       integer,
  is_skipped   boolean     NOT NULL,
  job          bigint,
  counters     jsonb,
  cancelled_no bigint,
  retried_no   bigint,
  PRIMARY KEY (flow, cut)
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.fold IS
  'The sums of the arrivals of flows, a row for each cut in which a flow had some; the newest row of a flow counts. Insert-only, and compacted by TRUNCATE.';
COMMENT ON COLUMN weir.fold.generation IS 'How often it has ended, or will have; more than 1 if ended members were retried, or others were added, after it had ended.';
COMMENT ON COLUMN weir.fold.is_abandoned IS 'It was sealed by its deadline.';
COMMENT ON COLUMN weir.fold.waits IS 'Of a task: how many of the tasks that it comes after have not ended; broken: how many have ended, but did not succeed, although it needs that. NULL: it is no task.';
COMMENT ON COLUMN weir.fold.is_skipped IS 'Of a task: it does not start, because a task that it needs has failed or was cancelled, or its flow was; counted as cancelled.';
COMMENT ON COLUMN weir.fold.job IS 'Of a task: its job, once that was enqueued.';
COMMENT ON COLUMN weir.fold.cancelled_no IS 'The last cancellation; it counts, and is_cancelled is true, unless who retried the flow has seen it: retried_no is as great. NULL: there was none.';
COMMENT ON COLUMN weir.fold.counters IS 'The counters of the flow, by name. NULL: it has none.';
COMMENT ON COLUMN weir.fold.fired_at IS 'When its members had all ended, and its callbacks were enqueued. NULL: some have not.';

CREATE SEQUENCE weir.active_seen AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_seen IS 'The table that new rows of weir.seen are written to.';
CREATE TABLE weir.seen (
  key  uuid     NOT NULL,
  job  bigint   NOT NULL,
  flow bigint   NOT NULL,
  ring smallint NOT NULL
) PARTITION BY LIST (ring);
CREATE UNIQUE INDEX seen_key ON weir.seen (key, ring);
CREATE TABLE weir.seen_1 PARTITION OF weir.seen FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.seen_2 PARTITION OF weir.seen FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE TABLE weir.seen_3 PARTITION OF weir.seen FOR VALUES IN (3) WITH (autovacuum_enabled = off);
CREATE TABLE weir.seen_4 PARTITION OF weir.seen FOR VALUES IN (4) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.seen IS
  'What was done, or is being done, once in a flow: the job that the first claim has chosen, by weir.job.unique_key. Insert-only: a ring of four tables, each of which is truncated once its flows are forgotten.';

CREATE SEQUENCE weir.output_no AS bigint;
COMMENT ON SEQUENCE weir.output_no IS 'Numbers outputs of members of flows.';
CREATE SEQUENCE weir.active_output AS smallint MINVALUE 1 MAXVALUE 4;
COMMENT ON SEQUENCE weir.active_output IS 'The table that new rows of weir.output are written to.';
CREATE TABLE weir.output (
  no     bigint   NOT NULL,
  flow   bigint   NOT NULL,
  job    bigint   NOT NULL,
  ring   smallint NOT NULL,
  task   text,
  kind   text,
  output text     NOT NULL
) PARTITION BY LIST (ring);
CREATE INDEX output_flow ON weir.output (flow, no);
CREATE INDEX output_job ON weir.output (flow, job, no);
CREATE INDEX output_task ON weir.output (flow, task) WHERE task IS NOT NULL;
CREATE TABLE weir.output_1 PARTITION OF weir.output FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.output_2 PARTITION OF weir.output FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE TABLE weir.output_3 PARTITION OF weir.output FOR VALUES IN (3) WITH (autovacuum_enabled = off);
CREATE TABLE weir.output_4 PARTITION OF weir.output FOR VALUES IN (4) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.output IS
  'Outputs of members of flows that have completed, for as long as their flows are kept. Insert-only: a ring of four tables, each of which is truncated once its flows are forgotten.';
COMMENT ON COLUMN weir.output.flow IS 'The flow of the member; of the job of a task, the flow of which it is a task.';

CREATE SEQUENCE weir.active_request AS smallint MINVALUE 1 MAXVALUE 2;
COMMENT ON SEQUENCE weir.active_request IS 'The table that new rows of weir.request are written to.';
CREATE TABLE weir.request (
  key        uuid        NOT NULL,
  body       uuid        NOT NULL,
  at         timestamptz NOT NULL,
  ring       smallint    NOT NULL,
  ids        bigint[]    NOT NULL,
  duplicates boolean[]
) PARTITION BY LIST (ring);
CREATE INDEX request_key ON weir.request (key);
CREATE TABLE weir.request_1 PARTITION OF weir.request FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE weir.request_2 PARTITION OF weir.request FOR VALUES IN (2) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.request IS
  'Requests to enqueue that came with a key of their own, to be answered alike when they are repeated within a day. Insert-only: a ring of two tables, each of which is truncated before its turn.';
COMMENT ON COLUMN weir.request.key IS 'A hash of what the requester calls the request. body: a hash of the jobs.';
COMMENT ON COLUMN weir.request.ids IS 'The answer, and duplicates (NULL: none).';

CREATE TABLE weir.flow_cut (
  no       bigint      PRIMARY KEY,
  due      timestamptz NOT NULL,
  snapshot pg_snapshot NOT NULL
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.flow_cut IS
  'Up to where arrivals are counted: the newest row counts. Those of the transactions that its snapshot sees are in weir.fold, and no others. Insert-only, and compacted by TRUNCATE.';
COMMENT ON COLUMN weir.flow_cut.due IS 'Flows with deadlines up to then, which the snapshot sees, are sealed.';
INSERT INTO weir.flow_cut (no, due, snapshot) VALUES (1, '-infinity', '3:3:');  -- before every transaction
SELECT setval('weir.active_arrival', 1), setval('weir.active_seen', 1), setval('weir.active_output', 1), setval('weir.active_request', 1), setval('weir.flow_bytes', 0);

CREATE TYPE weir.flow_info AS (
  id bigint, name text, state text, generation integer, jobs bigint, unfinished bigint, completed bigint, failed bigint, cancelled bigint,
  created_at timestamptz, deadline timestamptz, finished_at timestamptz, on_done jsonb, on_success jsonb, parent bigint, is_task boolean, job bigint, fail_fast boolean, counters jsonb);
COMMENT ON TYPE weir.flow_info IS 'A flow and its progress, as weir.flow_info returns it.';

CREATE SEQUENCE weir.segment_no AS bigint;
CREATE TABLE weir.segment (
  no      bigint      PRIMARY KEY DEFAULT nextval('weir.segment_no'),
  log     text        NOT NULL CHECK (log IN ('job', 'later', 'failure', 'report', 'message')),
  segment smallint    NOT NULL,
  event   text        NOT NULL CHECK (event IN ('opened', 'closed', 'carried', 'reclaimed')),
  at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  upto    bigint
) WITH (autovacuum_enabled = off);
COMMENT ON TABLE weir.segment IS 'The history of segments, insert-only. A segment''s state is its event with the greatest number; at is used for ages, never for order.';
INSERT INTO weir.segment (log, segment, event) VALUES ('job', 1, 'opened'), ('later', 1, 'opened'), ('failure', 1, 'opened'), ('report', 1, 'opened');
COMMENT ON COLUMN weir.segment.upto IS 'Up to which job id a segment of reports is carried; NULL for all other events.';
SELECT setval('weir.active_job', 1), setval('weir.active_later', 1), setval('weir.active_failure', 1), setval('weir.active_report', 1), setval('weir.active_release', 1), setval('weir.carried', 0);

CREATE TABLE weir.setting (
  name  text PRIMARY KEY,
  value text NOT NULL
);
COMMENT ON TABLE weir.setting IS 'Settings, which operators change with weir.set; the cluster that this log belongs to; and the secret that seals the cursors of lists.';
INSERT INTO weir.setting (name, value) VALUES
  ('completed_retention', '1 day'),
  ('failed_retention', '7 days'),
  ('retention_bytes', '4294967296'),
  ('cursor_secret', encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex')),
  ('cluster', (SELECT system_identifier::text FROM pg_control_system()));

CREATE TYPE weir.failure_group AS (
  kind text, shape text, jobs bigint, first_at timestamptz, last_at timestamptz, job_id bigint, error text, rest timestamptz
);
COMMENT ON TYPE weir.failure_group IS 'Failed jobs of a kind whose errors have the same shape, and one of them: see weir.failure_groups.';

CREATE TYPE weir.schedule_info AS (
  name text, state text, schedule text, time_zone text, next_at timestamptz, last_at timestamptz, last_job bigint,
  queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, missed text, jitter interval, error text, key text);
COMMENT ON TYPE weir.schedule_info IS 'A schedule, as weir.schedules lists it.';
CREATE TYPE weir.job_info AS (
  id bigint, state text, queue text, priority integer, kind text, args jsonb, meta jsonb, attempt integer, max_attempts integer,
  enqueued_at timestamptz, run_at timestamptz, claimed_at timestamptz, finished_at timestamptz, worker integer,
  cancel_requested boolean, output text, error text, errors jsonb, percent double precision, message text, log jsonb, key text, flow bigint);
COMMENT ON TYPE weir.job_info IS
  'A job, in the state of its newest attempt. error is why the last attempt ended; errors are those of the last attempts, oldest first: up to 25 from weir.job_info, one from a list.';

-- down --
DROP SCHEMA weir CASCADE;
