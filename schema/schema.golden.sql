-- Written by go test ./cmd/internal/proof -run Golden -update. Views are without their queries, which each PostgreSQL prints differently.

CREATE TYPE weir.outcome AS ENUM ('completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released', 'lost');

CREATE SEQUENCE weir.active_arrival AS smallint MINVALUE 1 MAXVALUE 3;
CREATE SEQUENCE weir.active_failure AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_job AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_later AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_message AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_output AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_release AS smallint MINVALUE 1 MAXVALUE 3;
CREATE SEQUENCE weir.active_report AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_request AS smallint MINVALUE 1 MAXVALUE 2;
CREATE SEQUENCE weir.active_seen AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.batch_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.cancel_looked AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.cancellation_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.carried AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.control AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.counted_minute AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.flow_bytes AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.flow_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.gate_id AS integer MINVALUE 1 MAXVALUE 2147483647;
CREATE SEQUENCE weir.idle_looked AS integer MINVALUE 0 MAXVALUE 2147483647;
CREATE SEQUENCE weir.job_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.last_word_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.limit_version AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.message_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.operation_bytes AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.operation_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.output_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.queue_id AS integer MINVALUE 1 MAXVALUE 16777215;
CREATE SEQUENCE weir.relay_bytes AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.relay_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.report_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.revocation_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.schedule_generation AS integer MINVALUE 1 MAXVALUE 2147483647;
CREATE SEQUENCE weir.segment_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.tick_floor AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.tick_seq AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.watched AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.watched_at AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.worker_id AS integer MINVALUE 1 MAXVALUE 2147483647;

CREATE TABLE weir.arrival (
  flow bigint NOT NULL,
  xid xid8 NOT NULL,
  jobs integer NOT NULL DEFAULT 0,
  completed integer NOT NULL DEFAULT 0,
  failed integer NOT NULL DEFAULT 0,
  cancelled integer NOT NULL DEFAULT 0,
  ring smallint NOT NULL,
  event text,
  no bigint,
  waits integer,
  broken integer,
  counts jsonb
) PARTITION BY LIST (ring);
CREATE TABLE weir.arrival_1 PARTITION OF weir.arrival FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.arrival_2 PARTITION OF weir.arrival FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.arrival_3 PARTITION OF weir.arrival FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.attendance (
  worker integer NOT NULL,
  started_at timestamp with time zone NOT NULL,
  watched bigint NOT NULL
);
CREATE VIEW weir.available_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.batch (
  lane bigint NOT NULL,
  worker integer NOT NULL,
  segment smallint NOT NULL,
  origin smallint NOT NULL,
  seq bigint NOT NULL,
  from_xid xid8 NOT NULL,
  to_xid xid8 NOT NULL,
  pos_xid xid8 NOT NULL,
  pos_id bigint NOT NULL,
  total bigint NOT NULL,
  claimed_at timestamp with time zone NOT NULL,
  no bigint NOT NULL,
  pending xid8[],
  pending_after bigint[],
  ids bigint[] NOT NULL,
  seen pg_snapshot,
  gate integer,
  lanes bigint[],
  flows bigint[]
) PARTITION BY LIST (segment);
CREATE TABLE weir.batch_1 PARTITION OF weir.batch FOR VALUES IN ('1') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.batch_1 ALTER COLUMN pending SET STORAGE EXTERNAL;
ALTER TABLE weir.batch_1 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.batch_2 PARTITION OF weir.batch FOR VALUES IN ('2') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.batch_2 ALTER COLUMN pending SET STORAGE EXTERNAL;
ALTER TABLE weir.batch_2 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.batch_3 PARTITION OF weir.batch FOR VALUES IN ('3') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.batch_3 ALTER COLUMN pending SET STORAGE EXTERNAL;
ALTER TABLE weir.batch_3 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.batch_4 PARTITION OF weir.batch FOR VALUES IN ('4') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.batch_4 ALTER COLUMN pending SET STORAGE EXTERNAL;
ALTER TABLE weir.batch_4 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.cancellation (
  id bigint NOT NULL,
  at timestamp with time zone NOT NULL DEFAULT now(),
  queue text
);
CREATE TABLE weir.cancellation_where (
  no bigint NOT NULL DEFAULT nextval('weir.cancellation_no'::regclass),
  at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
  upto bigint NOT NULL,
  queue text,
  kinds text[],
  meta jsonb,
  priority integer,
  enqueued_after timestamp with time zone,
  enqueued_before timestamp with time zone,
  key text,
  flow bigint,
  is_late boolean NOT NULL DEFAULT false,
  batches bigint,
  xid xid8,
  clear_xid xid8
);
CREATE VIEW weir.cancelled_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE VIEW weir.completed_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.edge (
  flow bigint NOT NULL,
  predecessor text NOT NULL,
  successor bigint NOT NULL,
  is_lenient boolean NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.epoch (
  from_tick bigint NOT NULL,
  epoch bigint NOT NULL,
  started_at timestamp with time zone NOT NULL,
  at timestamp with time zone NOT NULL,
  home text NOT NULL
);
CREATE VIEW weir.failed_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.failure (
  id bigint NOT NULL,
  lane bigint NOT NULL,
  enqueued_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  attempt integer NOT NULL,
  max_attempts integer,
  worker integer,
  segment smallint NOT NULL,
  kind text,
  args jsonb,
  meta jsonb,
  error text,
  output text,
  errors jsonb,
  unique_key uuid,
  unique_until timestamp with time zone,
  key text,
  flow bigint
) PARTITION BY LIST (segment);
CREATE TABLE weir.failure_1 PARTITION OF weir.failure FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_2 PARTITION OF weir.failure FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_3 PARTITION OF weir.failure FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_4 PARTITION OF weir.failure FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TYPE weir.failure_group (
  kind text,
  shape text,
  jobs bigint,
  first_at timestamp with time zone,
  last_at timestamp with time zone,
  job_id bigint,
  error text,
  rest timestamp with time zone
);
CREATE TABLE weir.firing (
  name text NOT NULL,
  due timestamp with time zone NOT NULL,
  job bigint
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.flow (
  id bigint NOT NULL,
  created_at timestamp with time zone NOT NULL,
  deadline timestamp with time zone NOT NULL,
  name text NOT NULL,
  on_done jsonb,
  on_success jsonb,
  fail_fast boolean NOT NULL DEFAULT false,
  root bigint NOT NULL,
  parent bigint,
  task jsonb
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.flow_cut (
  no bigint NOT NULL,
  due timestamp with time zone NOT NULL,
  snapshot pg_snapshot NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TYPE weir.flow_info (
  id bigint,
  name text,
  state text,
  generation integer,
  jobs bigint,
  unfinished bigint,
  completed bigint,
  failed bigint,
  cancelled bigint,
  created_at timestamp with time zone,
  deadline timestamp with time zone,
  finished_at timestamp with time zone,
  on_done jsonb,
  on_success jsonb,
  parent bigint,
  is_task boolean,
  job bigint,
  fail_fast boolean,
  counters jsonb
);
CREATE TABLE weir.fold (
  flow bigint NOT NULL,
  cut bigint NOT NULL,
  jobs bigint NOT NULL,
  completed bigint NOT NULL,
  failed bigint NOT NULL,
  cancelled bigint NOT NULL,
  generation integer NOT NULL,
  is_sealed boolean NOT NULL,
  is_cancelled boolean NOT NULL,
  is_abandoned boolean NOT NULL,
  fired_at timestamp with time zone,
  waits integer,
  broken integer,
  is_skipped boolean NOT NULL,
  job bigint,
  counters jsonb,
  cancelled_no bigint,
  retried_no bigint
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.gate (
  gate integer NOT NULL,
  seq bigint NOT NULL,
  running integer NOT NULL,
  folded pg_snapshot NOT NULL,
  next_start timestamp with time zone,
  before bigint,
  before_lanes bigint[],
  before_seqs bigint[]
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat (
  ring smallint NOT NULL,
  at timestamp with time zone NOT NULL,
  tick bigint,
  subscribers integer NOT NULL,
  hub text NOT NULL,
  address text NOT NULL,
  channels integer NOT NULL,
  messages real NOT NULL,
  deliveries real NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.hub_beat_0 PARTITION OF weir.hub_beat FOR VALUES IN ('0') WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat_1 PARTITION OF weir.hub_beat FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat_2 PARTITION OF weir.hub_beat FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.job (
  id bigint NOT NULL,
  xid xid8 NOT NULL,
  enqueued_at timestamp with time zone NOT NULL,
  ready_at timestamp with time zone,
  lane bigint NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  put_off integer NOT NULL DEFAULT 0,
  segment smallint NOT NULL,
  leads boolean NOT NULL DEFAULT true,
  kind text NOT NULL,
  args jsonb NOT NULL,
  meta jsonb,
  seq bigint,
  errors jsonb,
  unique_key uuid,
  unique_no bigint,
  unique_until timestamp with time zone,
  key text,
  flow bigint
) PARTITION BY LIST (segment);
CREATE TABLE weir.job_1 PARTITION OF weir.job FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.job_2 PARTITION OF weir.job FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.job_3 PARTITION OF weir.job FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.job_4 PARTITION OF weir.job FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TYPE weir.job_info (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.key_weight (
  queue text NOT NULL,
  bits bigint NOT NULL,
  key text NOT NULL,
  weight double precision NOT NULL
);
CREATE TABLE weir.keyed (
  queue text NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.last_word (
  ring smallint NOT NULL,
  no bigint NOT NULL DEFAULT nextval('weir.last_word_no'::regclass),
  worker integer NOT NULL,
  at timestamp with time zone NOT NULL,
  watched bigint NOT NULL,
  says text NOT NULL,
  running integer NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.last_word_0 PARTITION OF weir.last_word FOR VALUES IN ('0') WITH (autovacuum_enabled=off);
CREATE TABLE weir.last_word_1 PARTITION OF weir.last_word FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.last_word_2 PARTITION OF weir.last_word FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.later (
  id bigint NOT NULL,
  xid xid8 NOT NULL,
  run_at timestamp with time zone NOT NULL,
  enqueued_at timestamp with time zone NOT NULL,
  lane bigint NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  put_off integer NOT NULL DEFAULT 0,
  segment smallint NOT NULL,
  kind text NOT NULL,
  args jsonb NOT NULL,
  meta jsonb,
  errors jsonb,
  unique_key uuid,
  unique_no bigint,
  unique_until timestamp with time zone,
  key text,
  flow bigint
) PARTITION BY LIST (segment);
CREATE TABLE weir.later_1 PARTITION OF weir.later FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.later_2 PARTITION OF weir.later FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.later_3 PARTITION OF weir.later FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.later_4 PARTITION OF weir.later FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.message (
  id bigint NOT NULL,
  xid xid8 NOT NULL,
  segment smallint NOT NULL,
  is_binary boolean NOT NULL,
  keep boolean NOT NULL,
  channel text NOT NULL,
  payload bytea NOT NULL
) PARTITION BY LIST (segment);
CREATE TABLE weir.message_1 PARTITION OF weir.message FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
ALTER TABLE weir.message_1 ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE weir.message_2 PARTITION OF weir.message FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
ALTER TABLE weir.message_2 ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE weir.message_3 PARTITION OF weir.message FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
ALTER TABLE weir.message_3 ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE weir.message_4 PARTITION OF weir.message FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
ALTER TABLE weir.message_4 ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE weir.migration (
  version integer NOT NULL,
  name text NOT NULL,
  applied_at timestamp with time zone NOT NULL DEFAULT now(),
  checksum text NOT NULL
);
CREATE TABLE weir.minute (
  at timestamp with time zone NOT NULL,
  ring smallint NOT NULL,
  queue text NOT NULL,
  upto timestamp with time zone,
  completed bigint,
  failed bigint,
  cancelled bigint,
  retried bigint,
  other bigint,
  sampled bigint,
  waiting bigint,
  oldest interval,
  waits numeric,
  runs numeric
) PARTITION BY LIST (ring);
CREATE TABLE weir.minute_0 PARTITION OF weir.minute FOR VALUES IN ('0') WITH (autovacuum_enabled=off);
CREATE TABLE weir.minute_1 PARTITION OF weir.minute FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.minute_2 PARTITION OF weir.minute FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.minute_3 PARTITION OF weir.minute FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.operation (
  id bigint NOT NULL,
  at timestamp with time zone NOT NULL,
  by text NOT NULL,
  what text NOT NULL,
  filter jsonb NOT NULL,
  to_queue text,
  to_priority integer
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.operation_mark (
  no bigint NOT NULL,
  upto bigint NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.operation_step (
  operation bigint NOT NULL,
  no integer NOT NULL,
  at timestamp with time zone NOT NULL,
  state text NOT NULL,
  changed bigint,
  after text,
  error text,
  by text
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.output (
  no bigint NOT NULL,
  flow bigint NOT NULL,
  job bigint NOT NULL,
  ring smallint NOT NULL,
  task text,
  kind text,
  output text NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.output_1 PARTITION OF weir.output FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.output_2 PARTITION OF weir.output FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.output_3 PARTITION OF weir.output FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.output_4 PARTITION OF weir.output FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.promotion (
  seq bigint NOT NULL,
  due timestamp with time zone NOT NULL,
  due_id bigint NOT NULL,
  snapshot pg_snapshot NOT NULL,
  ahead_due timestamp with time zone[],
  ahead_id bigint[],
  ahead_snapshot pg_snapshot[]
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.queue (
  id integer NOT NULL DEFAULT nextval('weir.queue_id'::regclass),
  name text NOT NULL,
  paused_at timestamp with time zone,
  aside boolean NOT NULL DEFAULT false,
  backoff interval NOT NULL DEFAULT '00:00:01'::interval,
  backoff_limit interval NOT NULL DEFAULT '01:00:00'::interval,
  backoff_form text NOT NULL DEFAULT 'exponential'::text,
  ageing interval,
  created_at timestamp with time zone NOT NULL DEFAULT now(),
  gate integer
);
CREATE TABLE weir.queue_limit (
  name text NOT NULL,
  gate integer NOT NULL,
  running integer,
  rate double precision,
  per interval,
  burst integer,
  key_running integer,
  key_rate double precision,
  key_per interval,
  key_burst integer,
  in_order boolean NOT NULL DEFAULT false,
  version bigint NOT NULL
);
CREATE TABLE weir.relay (
  relay text NOT NULL,
  no bigint NOT NULL,
  at timestamp with time zone NOT NULL,
  "position" text NOT NULL,
  tick bigint,
  sent text
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.release (
  gate integer NOT NULL,
  ring smallint NOT NULL,
  xid xid8 NOT NULL,
  n integer NOT NULL,
  lanes bigint[]
) PARTITION BY LIST (ring);
CREATE TABLE weir.release_1 PARTITION OF weir.release FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.release_2 PARTITION OF weir.release FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.release_3 PARTITION OF weir.release FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.report (
  job_id bigint NOT NULL,
  claim bigint NOT NULL,
  no bigint NOT NULL,
  at timestamp with time zone NOT NULL,
  percent double precision,
  attempt integer NOT NULL,
  segment smallint NOT NULL,
  message text,
  checkpoint jsonb,
  lines jsonb
) PARTITION BY LIST (segment);
CREATE TABLE weir.report_1 PARTITION OF weir.report FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.report_2 PARTITION OF weir.report FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.report_3 PARTITION OF weir.report FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.report_4 PARTITION OF weir.report FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.reprieve (
  id bigint NOT NULL,
  attempt integer NOT NULL,
  since bigint NOT NULL,
  upto bigint NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.request (
  key uuid NOT NULL,
  body uuid NOT NULL,
  at timestamp with time zone NOT NULL,
  ring smallint NOT NULL,
  ids bigint[] NOT NULL,
  duplicates boolean[]
) PARTITION BY LIST (ring);
CREATE TABLE weir.request_1 PARTITION OF weir.request FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.request_2 PARTITION OF weir.request FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.result (
  lane bigint NOT NULL,
  seq bigint NOT NULL,
  finished_at timestamp with time zone NOT NULL,
  worker integer NOT NULL,
  outcome weir.outcome NOT NULL,
  segment smallint NOT NULL,
  ids bigint[] NOT NULL,
  errors text[],
  outputs text[]
) PARTITION BY LIST (segment);
CREATE TABLE weir.result_1 PARTITION OF weir.result FOR VALUES IN ('1') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.result_1 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.result_2 PARTITION OF weir.result FOR VALUES IN ('2') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.result_2 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.result_3 PARTITION OF weir.result FOR VALUES IN ('3') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.result_3 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.result_4 PARTITION OF weir.result FOR VALUES IN ('4') WITH (autovacuum_enabled=off, toast_tuple_target=8160);
ALTER TABLE weir.result_4 ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE TABLE weir.retry_rule (
  name text NOT NULL,
  queue text,
  kind text,
  error text,
  action text NOT NULL,
  backoff interval,
  backoff_limit interval,
  backoff_form text
);
CREATE TABLE weir.revocation (
  id bigint NOT NULL,
  at timestamp with time zone NOT NULL,
  until timestamp with time zone,
  user_name text NOT NULL
);
CREATE TABLE weir.ring (
  queue text NOT NULL,
  seq bigint NOT NULL,
  tag bigint NOT NULL,
  forms integer NOT NULL,
  version bigint NOT NULL,
  arrived pg_snapshot NOT NULL,
  newcomers bigint[] NOT NULL,
  due timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
  stopped_after bigint,
  stopped_upto bigint
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.role_channel (
  role text NOT NULL,
  listens text[],
  notifies text[]
);
CREATE VIEW weir.running_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.schedule (
  name text NOT NULL,
  generation integer NOT NULL,
  schedule text NOT NULL,
  fields text[] NOT NULL,
  time_zone text NOT NULL,
  missed text NOT NULL,
  jitter interval NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  args jsonb NOT NULL,
  priority integer NOT NULL,
  max_attempts integer NOT NULL,
  meta jsonb,
  key text,
  first_due timestamp with time zone NOT NULL,
  paused_at timestamp with time zone
);
CREATE TYPE weir.schedule_info (
  name text,
  state text,
  schedule text,
  time_zone text,
  next_at timestamp with time zone,
  last_at timestamp with time zone,
  last_job bigint,
  queue text,
  kind text,
  args jsonb,
  priority integer,
  max_attempts integer,
  meta jsonb,
  missed text,
  jitter interval,
  error text,
  key text
);
CREATE VIEW weir.scheduled_jobs (
  id bigint,
  state text,
  queue text,
  priority integer,
  kind text,
  args jsonb,
  meta jsonb,
  attempt integer,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  run_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  cancel_requested boolean,
  output text,
  error text,
  errors jsonb,
  percent double precision,
  message text,
  log jsonb,
  key text,
  flow bigint
);
CREATE TABLE weir.seen (
  key uuid NOT NULL,
  job bigint NOT NULL,
  flow bigint NOT NULL,
  ring smallint NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.seen_1 PARTITION OF weir.seen FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.seen_2 PARTITION OF weir.seen FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.seen_3 PARTITION OF weir.seen FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.seen_4 PARTITION OF weir.seen FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.segment (
  no bigint NOT NULL DEFAULT nextval('weir.segment_no'::regclass),
  log text NOT NULL,
  segment smallint NOT NULL,
  event text NOT NULL,
  at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
  upto bigint
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.setting (
  name text NOT NULL,
  value text NOT NULL
);
CREATE TABLE weir.settled (
  worker integer NOT NULL,
  no bigint NOT NULL,
  open bigint[] NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.survey (
  no bigint NOT NULL,
  upto integer NOT NULL,
  snapshot pg_snapshot NOT NULL,
  batches bigint NOT NULL,
  reclaimed bigint NOT NULL,
  waiting bigint[] NOT NULL,
  lanes bigint[] NOT NULL,
  totals bigint[] NOT NULL,
  claimed_at timestamp with time zone[] NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.tick (
  seq bigint NOT NULL,
  from_xid xid8 NOT NULL,
  last_id bigint NOT NULL,
  bytes bigint NOT NULL,
  at timestamp with time zone NOT NULL,
  count integer NOT NULL,
  segments smallint NOT NULL,
  segment smallint NOT NULL,
  late xid8[] NOT NULL,
  snapshot pg_snapshot NOT NULL
) PARTITION BY LIST (segment);
CREATE TABLE weir.tick_1 PARTITION OF weir.tick FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.tick_2 PARTITION OF weir.tick FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.tick_3 PARTITION OF weir.tick FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.tick_4 PARTITION OF weir.tick FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.turn (
  lane bigint NOT NULL,
  seq bigint NOT NULL,
  pos_xid xid8 NOT NULL,
  pos_id bigint NOT NULL,
  tag bigint NOT NULL,
  segment smallint NOT NULL,
  waits boolean NOT NULL,
  parked boolean NOT NULL,
  pending xid8[],
  pending_after bigint[],
  open bigint[],
  next_start timestamp with time zone,
  again_at timestamp with time zone
) PARTITION BY LIST (segment);
CREATE TABLE weir.turn_1 PARTITION OF weir.turn FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.turn_2 PARTITION OF weir.turn FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.turn_3 PARTITION OF weir.turn FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.turn_4 PARTITION OF weir.turn FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.with_keys (
  queue text NOT NULL,
  since xid8 NOT NULL
) WITH (autovacuum_enabled=off);
CREATE TABLE weir.worker (
  id integer NOT NULL,
  fenced boolean NOT NULL,
  at timestamp with time zone NOT NULL,
  lease interval,
  name text NOT NULL,
  queues text[]
);

ALTER TABLE weir.attendance ADD PRIMARY KEY (worker, started_at);
ALTER TABLE weir.batch ADD PRIMARY KEY (lane, seq, segment, origin);
ALTER TABLE weir.cancellation ADD PRIMARY KEY (id);
ALTER TABLE weir.epoch ADD PRIMARY KEY (from_tick);
ALTER TABLE weir.firing ADD PRIMARY KEY (name, due);
ALTER TABLE weir.flow_cut ADD PRIMARY KEY (no);
ALTER TABLE weir.flow ADD PRIMARY KEY (id);
ALTER TABLE weir.fold ADD PRIMARY KEY (flow, cut);
ALTER TABLE weir.gate ADD PRIMARY KEY (gate, seq);
ALTER TABLE weir.key_weight ADD PRIMARY KEY (queue, bits);
ALTER TABLE weir.last_word_0 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word_1 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word_2 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.migration ADD PRIMARY KEY (version);
ALTER TABLE weir.operation_mark ADD PRIMARY KEY (no);
ALTER TABLE weir.operation_step ADD PRIMARY KEY (operation, no);
ALTER TABLE weir.operation_step ADD CHECK ((state = ANY (ARRAY['running'::text, 'done'::text, 'stopped'::text, 'failed'::text])));
ALTER TABLE weir.operation ADD PRIMARY KEY (id);
ALTER TABLE weir.promotion ADD PRIMARY KEY (seq);
ALTER TABLE weir.queue_limit ADD PRIMARY KEY (name);
ALTER TABLE weir.queue ADD PRIMARY KEY (id);
ALTER TABLE weir.relay ADD PRIMARY KEY (relay, no);
ALTER TABLE weir.retry_rule ADD PRIMARY KEY (name);
ALTER TABLE weir.revocation ADD PRIMARY KEY (id);
ALTER TABLE weir.ring ADD PRIMARY KEY (queue, seq);
ALTER TABLE weir.role_channel ADD PRIMARY KEY (role);
ALTER TABLE weir.schedule ADD CHECK ((missed = ANY (ARRAY['one'::text, 'all'::text, 'none'::text])));
ALTER TABLE weir.schedule ADD PRIMARY KEY (name);
ALTER TABLE weir.segment ADD CHECK ((event = ANY (ARRAY['opened'::text, 'closed'::text, 'carried'::text, 'reclaimed'::text])));
ALTER TABLE weir.segment ADD CHECK ((log = ANY (ARRAY['job'::text, 'later'::text, 'failure'::text, 'report'::text, 'message'::text])));
ALTER TABLE weir.segment ADD PRIMARY KEY (no);
ALTER TABLE weir.setting ADD PRIMARY KEY (name);
ALTER TABLE weir.settled ADD PRIMARY KEY (worker, no);
ALTER TABLE weir.survey ADD PRIMARY KEY (no);
ALTER TABLE weir.tick ADD PRIMARY KEY (seq, segment);
ALTER TABLE weir.worker ADD PRIMARY KEY (id, fenced);

CREATE INDEX arrival_xid ON ONLY weir.arrival USING btree (xid, flow);
CREATE INDEX batch_worker ON ONLY weir.batch USING btree (worker, no);
CREATE INDEX cancellation_of_queue ON weir.cancellation USING btree (queue, id);
CREATE INDEX cancellation_where_flow ON weir.cancellation_where USING btree (flow) WHERE (flow IS NOT NULL);
CREATE INDEX edge_predecessor ON weir.edge USING btree (flow, predecessor);
CREATE INDEX edge_successor ON weir.edge USING btree (successor);
CREATE INDEX failure_by_id ON ONLY weir.failure USING btree (id, attempt);
CREATE INDEX failure_ended ON ONLY weir.failure USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX failure_lane ON ONLY weir.failure USING btree (lane, finished_at, id) WHERE (finished_at IS NOT NULL);
CREATE INDEX flow_deadline ON weir.flow USING btree (deadline) WHERE (task IS NULL);
CREATE INDEX flow_top ON weir.flow USING btree (id) WHERE (parent IS NULL);
CREATE INDEX flow_within ON weir.flow USING btree (parent, name) WHERE (parent IS NOT NULL);
CREATE INDEX job_by_id ON ONLY weir.job USING btree (id, attempt, put_off);
CREATE INDEX job_key_lead ON ONLY weir.job USING btree (((lane >> 39)), xid) WHERE (leads AND ((lane & '549755813880'::bigint) <> 0));
CREATE INDEX job_lane ON ONLY weir.job USING btree (lane, xid, id);
CREATE INDEX job_lead ON ONLY weir.job USING btree (xid) WHERE leads;
CREATE INDEX job_unique ON ONLY weir.job USING btree (unique_key, unique_no) WHERE (unique_key IS NOT NULL);
CREATE INDEX keyed_queue ON weir.keyed USING btree (queue);
CREATE INDEX last_word_worker ON ONLY weir.last_word USING btree (worker, no);
CREATE INDEX later_by_id ON ONLY weir.later USING btree (id, attempt, put_off);
CREATE INDEX later_due ON ONLY weir.later USING btree (run_at, id);
CREATE INDEX later_lane ON ONLY weir.later USING btree (lane, run_at, id);
CREATE INDEX later_unique ON ONLY weir.later USING btree (unique_key, unique_no) WHERE (unique_key IS NOT NULL);
CREATE INDEX later_xid ON ONLY weir.later USING btree (xid);
CREATE INDEX message_xid ON ONLY weir.message USING btree (xid, id);
CREATE INDEX minute_queue ON ONLY weir.minute USING btree (queue, at);
CREATE INDEX output_flow ON ONLY weir.output USING btree (flow, no);
CREATE INDEX output_job ON ONLY weir.output USING btree (flow, job, no);
CREATE INDEX output_task ON ONLY weir.output USING btree (flow, task) WHERE (task IS NOT NULL);
CREATE INDEX queue_name ON weir.queue USING btree (name, id);
CREATE INDEX release_gate ON ONLY weir.release USING btree (gate, xid);
CREATE INDEX report_checkpoint ON ONLY weir.report USING btree (job_id, claim, no) WHERE (checkpoint IS NOT NULL);
CREATE INDEX report_job ON ONLY weir.report USING btree (job_id, claim, no);
CREATE INDEX reprieve_by_id ON weir.reprieve USING btree (id);
CREATE INDEX request_key ON ONLY weir.request USING btree (key);
CREATE INDEX result_batch ON ONLY weir.result USING btree (lane, seq);
CREATE INDEX result_cancelled ON ONLY weir.result USING btree (finished_at) WHERE (outcome = 'cancelled'::weir.outcome);
CREATE INDEX result_cancelled_in ON ONLY weir.result USING btree (lane, finished_at) WHERE (outcome = 'cancelled'::weir.outcome);
CREATE INDEX result_finished ON ONLY weir.result USING btree (finished_at);
CREATE UNIQUE INDEX seen_key ON ONLY weir.seen USING btree (key, ring);
CREATE INDEX turn_again ON ONLY weir.turn USING btree (((lane >> 39)), again_at) WHERE (again_at IS NOT NULL);
CREATE INDEX turn_lane ON ONLY weir.turn USING btree (lane, seq);
CREATE INDEX turn_ring ON ONLY weir.turn USING btree (((lane >> 39)), tag) WHERE waits;
CREATE INDEX turn_stopped ON ONLY weir.turn USING btree (lane) WHERE (parked OR (again_at IS NOT NULL));
CREATE INDEX with_keys_queue ON weir.with_keys USING btree (queue);

CREATE FUNCTION weir._add_counts(counters jsonb, counts jsonb[]) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT jsonb_object_agg(k.name, k.n) FROM (
    SELECT e.key AS name, least(greatest(sum(e.value::numeric), -9223372036854775808), 9223372036854775807) AS n
    FROM unnest(counts || counters) c(counts) CROSS JOIN LATERAL jsonb_each(c.counts) e(key, value) WHERE jsonb_typeof(e.value) = 'number' GROUP BY e.key) k
$$;
CREATE FUNCTION weir._all_claimed(w weir.cancellation_where) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 2000;  -- lanes of keys that are looked at
  name  text;
  lanes bigint[];
  keys  record;
BEGIN
  IF w.key IS NOT NULL THEN
    lanes := weir._lanes_of_key(w.queue, w.key);
  ELSE
    lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE w.queue IS NULL OR q.name = w.queue);
    FOR name IN SELECT DISTINCT k.queue FROM weir.with_keys k WHERE w.queue IS NULL OR k.queue = w.queue LOOP
      keys := weir._waiting_keys(name, most);
      IF NOT keys.is_whole OR cardinality(lanes) + cardinality(keys.lanes) > 100 * most THEN
        RETURN false;
      END IF;
      lanes := lanes || keys.lanes;
    END LOOP;
  END IF;
  RETURN NOT EXISTS (
    SELECT FROM unnest(lanes) l(lane) CROSS JOIN LATERAL weir._state_of(l.lane) s
    WHERE (w.priority IS NULL OR l.lane & 3 = w.priority - 1)
      AND (EXISTS (SELECT FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0)) AND j.xid < w.clear_xid)
           OR EXISTS (SELECT FROM unnest(s.pending, s.pending_after) d(xid, after)
                      CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = d.xid AND j.id > d.after LIMIT 1) j
                      WHERE d.xid < w.clear_xid)));
END
$$;
CREATE FUNCTION weir._arrival_ring() RETURNS smallint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  -- The last cut was made in the cluster that the log names: it would pass for one that has counted what is logged here.
  PERFORM weir._check_cluster_once();
  RETURN pg_sequence_last_value('weir.active_arrival');
END
$$;
CREATE FUNCTION weir._arrive_ended(flows bigint[], reasons text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF cardinality(array_remove(_arrive_ended.flows, NULL)) > 0 THEN
    INSERT INTO weir.arrival (flow, ring, xid, jobs, cancelled)
    SELECT u.flow, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), - count(*) FILTER (WHERE u.reason <> ''), count(*) FILTER (WHERE coalesce(u.reason, '') = '')
    FROM unnest(_arrive_ended.flows, _arrive_ended.reasons) u(flow, reason) WHERE u.flow IS NOT NULL GROUP BY u.flow;
  END IF;
END
$$;
CREATE FUNCTION weir._arrive(flow bigint, what text, n bigint, event text DEFAULT NULL::text, no bigint DEFAULT NULL::bigint, counts jsonb DEFAULT NULL::jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, counts)
  VALUES (_arrive.flow, weir._arrival_ring(), pg_current_xact_id(), CASE _arrive.what WHEN 'jobs' THEN _arrive.n ELSE 0 END,
          CASE _arrive.what WHEN 'completed' THEN _arrive.n ELSE 0 END, CASE _arrive.what WHEN 'failed' THEN _arrive.n ELSE 0 END,
          CASE _arrive.what WHEN 'cancelled' THEN _arrive.n ELSE 0 END, _arrive.event, _arrive.no, _arrive.counts);
END
$$;
CREATE FUNCTION weir._as_committed(snapshot pg_snapshot, xid xid8) RETURNS pg_snapshot LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF _as_committed.xid < pg_snapshot_xmax(_as_committed.snapshot) THEN
    RETURN _as_committed.snapshot;  -- it is not listed as in progress, because a snapshot does not list its own transaction
  ELSIF _as_committed.xid = pg_snapshot_xmax(_as_committed.snapshot) AND _as_committed.xid = pg_snapshot_xmin(_as_committed.snapshot) THEN
    RETURN replace('x:x:', 'x', (_as_committed.xid::text::bigint + 1)::text)::pg_snapshot;  -- no other transaction: the usual case, which needs no query
  END IF;
  RETURN (SELECT (coalesce(min(x), _as_committed.xid::text::bigint + 1) || ':' || _as_committed.xid::text::bigint + 1 || ':' || coalesce(string_agg(x::text, ',' ORDER BY x), ''))
          FROM (SELECT x::text::bigint FROM pg_snapshot_xip(_as_committed.snapshot) x
                UNION ALL
                SELECT generate_series(pg_snapshot_xmax(_as_committed.snapshot)::text::bigint, _as_committed.xid::text::bigint - 1)) p(x))::pg_snapshot;
END
$$;
CREATE FUNCTION weir._attending() RETURNS SETOF integer LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT DISTINCT h.key FROM weir._held(1464158554, 'ShareLock') h(key)  -- any role can take such a lock, also with a number that no worker has
$$;
CREATE FUNCTION weir._await_tick(after bigint, ids bigint DEFAULT NULL::bigint, seen pg_snapshot DEFAULT NULL::pg_snapshot, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, patience integer DEFAULT 0, cuts boolean DEFAULT true, epoch bigint DEFAULT NULL::bigint, most_messages integer DEFAULT 0, OUT seqs bigint[], OUT ats timestamp with time zone[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[], OUT ids_now bigint, OUT seen_now pg_snapshot, OUT message_ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off
AS $$
#variable_conflict use_column
DECLARE
  poll  integer := 1;
  there bigint;
  floor bigint;
  made  record;
  slept text;
BEGIN
  IF _await_tick.polls IS NULL OR _await_tick.pause IS NULL OR _await_tick.polls < 1 OR _await_tick.polls * _await_tick.pause > 1 THEN
    RAISE EXCEPTION 'weir: tick polls for at most 1 second, got % polls, every % s', _await_tick.polls, _await_tick.pause USING ERRCODE = '22023';
  ELSIF _await_tick.after IS NULL OR _await_tick.after < 0 THEN
    RAISE EXCEPTION 'weir: after must be the number of a tick, or 0, got %', coalesce(_await_tick.after::text, 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('tick');
  IF _await_tick.cuts AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: tick needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF _await_tick.cuts AND clock_timestamp() - now() > interval '2 seconds' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: tick was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: until your commit, no other session could cut a tick. If you did, try again.';
  ELSIF _await_tick.cuts AND pg_is_in_recovery() THEN
    RAISE EXCEPTION 'weir: ticks can only be cut on the primary, but this is a standby' USING ERRCODE = '25006', HINT = 'Call it on the primary, or with cuts => false.';
  END IF;
  -- While nothing happens, no table is read: its lock would be held until this call ends, and block reclaiming.
  LOOP
    there := pg_sequence_last_value('weir.tick_seq');
    ids_now := coalesce(pg_sequence_last_value('weir.message_id'), 0);
    EXIT WHEN there > _await_tick.after OR _await_tick.cuts AND ids_now IS DISTINCT FROM _await_tick.ids;
    IF _await_tick.cuts AND poll > _await_tick.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text IS DISTINCT FROM _await_tick.seen::text;
    END IF;
    IF poll >= _await_tick.polls THEN
      IF _await_tick.ids IS NULL THEN
        PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
      END IF;
      ids_now := _await_tick.ids;
      seen_now := _await_tick.seen;
      RETURN;
    END IF;
    poll := poll + 1;
    slept := pg_sleep(_await_tick.pause);
  END LOOP;

  PERFORM weir._check_position(_await_tick.after, _await_tick.epoch);
  seen_now := pg_current_snapshot();
  FOR attempt IN 1..2 LOOP
    -- The sequence may be ahead, so only the table shows whether the tick exists.
    IF attempt = 2 OR there > _await_tick.after THEN
      SELECT array_agg(t.seq ORDER BY t.seq), array_agg(t.at ORDER BY t.seq), array_agg(t.count ORDER BY t.seq), array_agg(t.bytes ORDER BY t.seq),
             array_agg((SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= t.seq ORDER BY e.from_tick DESC LIMIT 1) ORDER BY t.seq)
        INTO seqs, ats, counts, sizes, epochs
      FROM (SELECT t.* FROM weir.tick t WHERE t.seq > _await_tick.after ORDER BY t.seq LIMIT 100) t;
    END IF;
    EXIT WHEN attempt = 2;
    IF seqs IS NOT NULL OR NOT _await_tick.cuts THEN
      ids_now := NULL;  -- there may be more
      IF seqs IS NULL AND there > _await_tick.after THEN
        slept := pg_sleep(_await_tick.pause);  -- the tick is being committed, or no tick has been cut since a cut was rolled back
      END IF;
      EXIT;
    ELSIF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
      -- The session that gets the lock cuts; all others read the tick in another poll.
      ids_now := NULL;
      slept := pg_sleep(_await_tick.pause / 3);
    ELSE
      made := weir._cut(most_messages => _await_tick.most_messages);
      IF made.seq = _await_tick.after + 1 THEN
        seqs := ARRAY[made.seq]; ats := ARRAY[made.at]; counts := ARRAY[made.count]; sizes := ARRAY[made.size]; epochs := ARRAY[made.epoch];
        message_ids := made.ids; xids := made.xids; channels := made.channels; payloads := made.payloads; binaries := made.binaries; keeps := made.keeps;
        ids_now := CASE WHEN made.whole THEN made.last_id END;  -- otherwise there is more
        seen_now := made.snapshot;
        EXIT;
      ELSIF made.seq IS NOT NULL THEN
        ids_now := NULL;
      END IF;
    END IF;
  END LOOP;
  floor := pg_sequence_last_value('weir.tick_floor');  -- after reading the table
  IF _await_tick.after < floor THEN
    RAISE EXCEPTION 'weir: the ticks after % can''t be read, because those up to % have been truncated', _await_tick.after, floor
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(floor) || '.' || floor;
  END IF;
END
$$;
CREATE FUNCTION weir._batch_of_key(lane bigint, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  rings bigint[];
  state record := weir._state_of(_batch_of_key.lane);
  low   bigint;
  high  bigint;
  mid   bigint;
  step  bigint := 1;
  t     record;
BEGIN
  IF weir._waits(_batch_of_key.xid, _batch_of_key.id, state.pos_xid, state.pos_id, state.pending, state.pending_after) THEN
    RETURN;
  END IF;
  rings := weir._ring_lanes(_batch_of_key.lane);
  -- The first turn after which it does not wait, as far as the turn's row shows, by bisection as in _batch_of.
  low := (SELECT min(k.seq) FROM weir.turn k WHERE k.lane = _batch_of_key.lane);
  high := state.seq;
  mid := greatest(high - step, low);
  WHILE low < high LOOP
    SELECT k.seq, k.pos_xid, k.pos_id, k.pending, k.pending_after INTO t
    FROM weir.turn k WHERE k.lane = _batch_of_key.lane AND k.seq <= mid ORDER BY k.seq DESC LIMIT 1;
    IF weir._waits(_batch_of_key.xid, _batch_of_key.id, t.pos_xid, t.pos_id, t.pending, t.pending_after) THEN
      low := mid + 1;
      step := 0;
    ELSE
      high := t.seq;
    END IF;
    mid := CASE WHEN step > 0 THEN greatest(high - step, low) ELSE low + (high - low) / 2 END;
    step := step * 16;
  END LOOP;
  -- Usually it was that turn. If the job's transaction ended late, when the position had passed it, it was a later one.
  RETURN QUERY SELECT b.* FROM weir.turn k CROSS JOIN unnest(rings) r(lane)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _batch_of_key.segment AND b.lane = r.lane AND b.seq = k.seq
                          AND _batch_of_key.xid BETWEEN b.from_xid AND b.to_xid AND _batch_of_key.lane = b.lanes[array_position(b.ids, _batch_of_key.id)] OFFSET 0) b
    WHERE k.lane = _batch_of_key.lane AND k.seq >= high ORDER BY k.seq LIMIT 1;
  IF NOT FOUND THEN
    -- The turn was reclaimed with its segment. Either the batch was carried, and is among the oldest of its segment; or the job's transaction ended late,
    -- and an earlier turn, after which the job does not seem to wait, is still there.
    RETURN QUERY SELECT f.* FROM (VALUES (0::bigint, high), (high, 9223372036854775807)) span(after, upto) CROSS JOIN unnest(rings) r(lane)
      CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _batch_of_key.segment AND b.lane = r.lane AND b.seq > span.after AND b.seq < span.upto
                            AND _batch_of_key.xid BETWEEN b.from_xid AND b.to_xid AND _batch_of_key.lane = b.lanes[array_position(b.ids, _batch_of_key.id)]
                          ORDER BY b.seq LIMIT 1) f
      LIMIT 1;
  END IF;
END
$$;
CREATE FUNCTION weir._batch_of(lane bigint, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  low  bigint := (SELECT min(k.seq) FROM weir.batch k WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane);
  high bigint := 9223372036854775807;
  mid  bigint := high;
  step bigint := 1;
  b    record;
BEGIN
  IF _batch_of.lane & 549755813880 <> 0 THEN
    RETURN QUERY SELECT k.* FROM weir._batch_of_key(_batch_of.lane, _batch_of.segment, _batch_of.xid, _batch_of.id) k;
    RETURN;
  END IF;
  -- After a batch, a job still waits if it lies past the batch's position, or belongs to a pending transaction. Once it does not wait any more, it
  -- never will again: so the first batch after which it does not wait is the one that claimed it. Find it by bisection, in a range that begins at the
  -- newest batches and grows until the job is in it: what was claimed lately is found at once, however many batches there are.
  WHILE low <= mid LOOP
    SELECT k.seq, k.pos_xid, k.pos_id, k.pending, k.pending_after INTO b
    FROM weir.batch k WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq <= mid ORDER BY k.seq DESC LIMIT 1;
    IF weir._waits(_batch_of.xid, _batch_of.id, b.pos_xid, b.pos_id, b.pending, b.pending_after) THEN
      EXIT WHEN high = 9223372036854775807;  -- the newest batch: the job was not claimed
      low := mid + 1;
      step := 0;  -- it is in the range: bisect
    ELSE
      high := b.seq;
    END IF;
    EXIT WHEN low >= high;
    mid := CASE WHEN step > 0 THEN greatest(high - step, low) ELSE low + (high - 1 - low) / 2 END;
    step := step * 16;
  END LOOP;
  RETURN QUERY SELECT k.* FROM weir.batch k
    WHERE k.segment = _batch_of.segment AND k.lane = _batch_of.lane AND k.seq = high AND _batch_of.id = ANY (k.ids) LIMIT 1;
END
$$;
CREATE FUNCTION weir._batches_after(worker integer, after bigint, max_batches integer) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashagg=off SET jit=off
AS $$
  SELECT ARRAY(
    SELECT DISTINCT k.no FROM (
      SELECT b.no, sum(cardinality(b.ids)) OVER (ORDER BY b.no ROWS UNBOUNDED PRECEDING) - cardinality(b.ids) AS before
      FROM (SELECT b.no, b.ids FROM weir.batch b WHERE b.worker = _batches_after.worker AND b.no > _batches_after.after ORDER BY b.no LIMIT _batches_after.max_batches) b) k
    WHERE _batches_after.max_batches IS NULL OR k.before < 1500 ORDER BY k.no)
$$;
CREATE FUNCTION weir._beat_if_due(worker integer, lease interval, running integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  word record;
BEGIN
  SELECT h.says, h.watched INTO word FROM weir.last_word h WHERE h.worker = _beat_if_due.worker ORDER BY h.no DESC LIMIT 1;
  IF word.says = 'attends' THEN
    -- The time of the last comparison is not stored, but the batches claimed since then are, with their times.
    RETURN EXISTS (
      SELECT FROM (SELECT b.claimed_at FROM weir.batch b
                   WHERE b.worker = _beat_if_due.worker AND b.no > coalesce((SELECT max(s.no) FROM weir.settled s WHERE s.worker = _beat_if_due.worker), 0)
                   ORDER BY b.no LIMIT 1) k
      WHERE k.claimed_at NOT BETWEEN clock_timestamp() - _beat_if_due.lease / 3 AND clock_timestamp());
  ELSIF word.says = 'beats' AND (pg_sequence_last_value('weir.watched') - word.watched) * interval '1 ms' < _beat_if_due.lease / 3 THEN
    RETURN false;
  END IF;
  PERFORM weir.heartbeat(_beat_if_due.worker, _beat_if_due.running);
  RETURN true;
END
$$;
CREATE FUNCTION weir._beat(hub text, address text, tick bigint, subscribers integer, channels integer DEFAULT 0, messages real DEFAULT 0, deliveries real DEFAULT 0) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF _beat.hub IS NULL OR length(_beat.hub) NOT BETWEEN 1 AND 128 OR length(_beat.address) > 255 THEN
    RAISE EXCEPTION 'weir: a hub needs a name of 1 to 128 characters, got %', coalesce(quote_literal(left(_beat.hub, 140)), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO weir.hub_beat (ring, at, tick, subscribers, hub, address, channels, messages, deliveries)
  VALUES ((extract(epoch FROM clock_timestamp())::bigint / 300 % 3)::smallint, clock_timestamp(), _beat.tick, _beat.subscribers, _beat.hub, coalesce(_beat.address, ''),
          _beat.channels, _beat.messages, _beat.deliveries);
END
$$;
CREATE FUNCTION weir._begin_nested(sums weir.fold[], was weir.fold[]) RETURNS weir.fold[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  -- By what was counted before this cut: what it changes is passed on to these as to all others.
  RETURN ARRAY(
    SELECT CASE WHEN (_begin_nested.was[t.ordinality]).flow IS NOT NULL OR d.parent IS NULL THEN _begin_nested.sums[t.ordinality] ELSE
             ROW(t.flow, t.cut, CASE WHEN g.is_gone THEN 0 ELSE t.jobs END, t.completed, t.failed, t.cancelled, t.generation, t.is_sealed OR k.is_cancelled, t.is_cancelled OR k.is_cancelled, t.is_abandoned AND NOT k.is_cancelled, t.fired_at,
                 w.waits, w.broken, false, NULL, t.counters, CASE WHEN k.is_cancelled THEN greatest(t.cancelled_no, k.cancelled_no) ELSE t.cancelled_no END, t.retried_no)::weir.fold END
    FROM unnest(_begin_nested.sums) WITH ORDINALITY t
    CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task IS NOT NULL AS is_task, (d.task ->> 'call')::bigint AS call FROM weir.flow d WHERE d.id = t.flow OFFSET 0) d
    CROSS JOIN LATERAL (SELECT coalesce(bool_or(p.is_cancelled), false) AS is_cancelled, max(p.cancelled_no) AS cancelled_no FROM (SELECT p.* FROM weir.fold p WHERE p.flow = d.parent ORDER BY p.cut DESC LIMIT 1) p) k
    -- Another transaction has added a task of the same name: the one that is counted first is the task; of two that are counted at once, that of the earlier call.
    CROSS JOIN LATERAL (SELECT d.is_task AND EXISTS (
      SELECT FROM (SELECT o.id, (o.task ->> 'call')::bigint AS call FROM weir.flow o WHERE o.parent = d.parent AND o.name = d.name AND o.task IS NOT NULL AND o.id <> t.flow OFFSET 0) o
      WHERE EXISTS (SELECT FROM weir.fold p WHERE p.flow = o.id AND p.jobs > 0) OR (o.call, o.id) < (d.call, t.flow) AND o.id = ANY (SELECT n.flow FROM unnest(_begin_nested.sums) n)) AS is_gone OFFSET 0) g
    CROSS JOIN LATERAL (
      SELECT CASE WHEN d.is_task THEN count(*) FILTER (WHERE p.kind IS NULL) END AS waits, CASE WHEN d.is_task THEN count(*) FILTER (WHERE p.kind <> 'completed' AND NOT e.is_lenient) END AS broken
      FROM (SELECT e.* FROM weir.edge e WHERE e.successor = t.flow AND NOT g.is_gone OFFSET 0) e
      CROSS JOIN LATERAL (SELECT weir._kind_of(weir._last_of_task(e.flow, e.predecessor)) AS kind OFFSET 0) p) w
    ORDER BY t.ordinality);
END
$$;
CREATE FUNCTION weir._being_completed() RETURNS integer[] LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- Every such transaction takes its attempt's lock, then waits for the lock of the worker's ends, and then checks for an end.
  SELECT ARRAY(SELECT weir._held(1464158551, 'ExclusiveLock'))
$$;
CREATE FUNCTION weir._brief_errors(errors jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- Most attempts fail for the same reason as the one before: its text is not repeated.
  SELECT jsonb_agg(CASE WHEN k.text IS DISTINCT FROM k.before THEN k.entry || jsonb_build_object('error', k.text) ELSE k.entry - 'error' END ORDER BY k.nr)
  FROM (
    SELECT s.entry, s.nr, s.text, lag(s.text) OVER (ORDER BY s.nr) AS before
    FROM (
      SELECT u.entry, u.nr, CASE WHEN length(t.text) <= 1000 THEN t.text
               -- A part of an encrypted text can't be decrypted: only the id of its key is kept.
               ELSE coalesce('{"weir.encrypted":{"key":' || substring(left(t.text, 1000) FROM '^[{]"weir[.]encrypted": ?[{]"key": ?("[^"]*")') || '}}',
                             left(t.text, 500) || ' ... ' || right(t.text, 495)) END AS text
      FROM jsonb_array_elements(_brief_errors.errors) WITH ORDINALITY u(entry, nr)
      CROSS JOIN LATERAL (SELECT u.entry ->> 'error' AS text OFFSET 0) t
      WHERE u.nr > jsonb_array_length(_brief_errors.errors) - 24) s) k
$$;
CREATE FUNCTION weir._bucket(took interval) RETURNS integer LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT least(ceil(2 * ln(greatest(extract(epoch FROM _bucket.took)::float8 * 1000, 1)) / ln(2::float8)), 64)::integer
$$;
CREATE FUNCTION weir._bytes_of(name text, value text, low bigint, high bigint) RETURNS bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  found_it bigint;
BEGIN
  found_it := pg_size_bytes(_bytes_of.value);
  IF found_it NOT BETWEEN low AND high THEN
    RAISE EXCEPTION USING ERRCODE = '22003';
  END IF;
  RETURN found_it;
EXCEPTION WHEN invalid_parameter_value OR numeric_value_out_of_range OR invalid_text_representation THEN
  RAISE EXCEPTION 'weir: % must be % to %, got %', _bytes_of.name, low, high, format(CASE WHEN _bytes_of.value ~ '^[0-9]+$' THEN '%s' ELSE '"%s"' END, left(_bytes_of.value, 100))
    USING ERRCODE = '22023', HINT = 'Write a number of bytes, or a size such as 512 MB or 4 GB.';
END
$$;
CREATE FUNCTION weir._call_back(job jsonb, about jsonb, parent bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  PERFORM weir._log_member(nextval('weir.job_id'), _call_back.parent, _call_back.job, jsonb_build_object('weir.flow', _call_back.about));
  IF _call_back.parent IS NOT NULL THEN
    PERFORM weir._arrive(_call_back.parent, 'jobs', 1, 'called');  -- in the transaction in which the flow ends there, so that it does not end before its callbacks
  END IF;
END
$$;
CREATE FUNCTION weir._callback(what text, given jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  wrong text;
  r     record;
BEGIN
  IF _callback.given IS NULL OR _callback.given = 'null' THEN
    RETURN NULL;
  ELSIF jsonb_typeof(_callback.given) <> 'object' THEN
    RAISE EXCEPTION 'weir: % must be a job, as a JSON object, got a JSON %', _callback.what, jsonb_typeof(_callback.given)
      USING ERRCODE = '22023', HINT = 'For example {"queue": "default", "kind": "merge"}.';
  END IF;
  SELECT k INTO wrong FROM jsonb_object_keys(_callback.given) k WHERE k NOT IN ('queue', 'kind', 'args', 'priority', 'max_attempts', 'meta', 'key') LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % has an unknown key %', _callback.what, to_json(left(wrong, 100))
      USING ERRCODE = '22023', HINT = 'A callback is {"queue": ..., "kind": ...}, optionally with args, priority, max_attempts, meta and key.';
  END IF;
  SELECT x.queue, x.kind, coalesce(x.args, '{}') AS args, coalesce(x.priority, 2) AS priority, coalesce(x.max_attempts, 25) AS max_attempts, nullif(x.meta, 'null') AS meta, x.key INTO r
  FROM jsonb_to_record(_callback.given) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, key text);
  BEGIN
    PERFORM weir._check_job(r.queue, r.kind, r.args, r.priority, r.max_attempts, r.meta), weir._check_key(r.key), weir._check_new_queue(r.queue);
    IF octet_length(r.meta::text) > 64000 THEN  -- the flow's key is added
      RAISE EXCEPTION 'weir: meta too large: % bytes, at most 64000 are allowed in a callback', octet_length(r.meta::text) USING ERRCODE = '22023';
    END IF;
  EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION '% (%)', SQLERRM, _callback.what USING ERRCODE = '22023';
  END;
  RETURN jsonb_build_object('queue', r.queue, 'kind', r.kind, 'args', r.args, 'priority', r.priority, 'max_attempts', r.max_attempts)
      || CASE WHEN r.meta IS NOT NULL THEN jsonb_build_object('meta', r.meta) ELSE '{}' END || CASE WHEN r.key IS NOT NULL THEN jsonb_build_object('key', r.key) ELSE '{}' END;
END
$$;
CREATE FUNCTION weir._cancel_late(sums weir.fold[], late bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  last_id bigint := coalesce(pg_sequence_last_value('weir.job_id'), 0);
BEGIN
  INSERT INTO weir.cancellation_where (upto, flow, is_late)
  SELECT last_id, n.flow, true FROM unnest(_cancel_late.sums) n
  WHERE n.is_cancelled AND n.flow = ANY (_cancel_late.late) AND (n.waits IS NULL OR n.job IS NOT NULL)  -- a task that never starts has no job
    AND last_id > coalesce((SELECT max(w.upto) FROM weir.cancellation_where w WHERE w.flow = n.flow), 0);
  IF FOUND THEN
    PERFORM nextval('weir.control'), nextval('weir.job_id');
  END IF;
END
$$;
CREATE FUNCTION weir._cancel_members(flow bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  new_no bigint;
BEGIN
  PERFORM pg_current_xact_id();
  INSERT INTO weir.cancellation_where (upto, flow) VALUES (coalesce(pg_sequence_last_value('weir.job_id'), 0), _cancel_members.flow) RETURNING cancellation_where.no INTO new_no;
  PERFORM weir._arrive(_cancel_members.flow, 'jobs', 0, 'cancelled', new_no);
  PERFORM nextval('weir.control');
  -- In order, those that were to be tried again hold up their keys no more.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT l.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, '{}' FROM weir.queue_limit l WHERE l.in_order;
  PERFORM nextval('weir.job_id');  -- wakes idle workers
END
$$;
CREATE FUNCTION weir._cancellation_of(flow bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  -- To the end of the transaction, so that the flow is not forgotten before what it logs is counted.
  LOCK TABLE weir.flow IN ACCESS SHARE MODE;
  RETURN (
    WITH RECURSIVE around AS (
      SELECT _cancellation_of.flow AS id
      UNION ALL
      SELECT f.parent FROM around a CROSS JOIN LATERAL (SELECT f.parent FROM weir.flow f WHERE f.id = a.id OFFSET 0) f WHERE f.parent IS NOT NULL
    )
    SELECT max(greatest((SELECT f.cancelled_no FROM weir.fold f WHERE f.flow = a.id ORDER BY f.cut DESC LIMIT 1),
                        (SELECT max(w.no) FROM weir.cancellation_where w WHERE w.flow = a.id AND NOT w.is_late))) FROM around a);
END
$$;
CREATE FUNCTION weir._cancelled_among(ids bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT ARRAY(
    SELECT i.id FROM unnest(_cancelled_among.ids) i(id)
    WHERE EXISTS (SELECT FROM weir.cancellation c WHERE c.id = i.id)
       OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= i.id) AND weir._is_cancelled_where(i.id))
$$;
CREATE FUNCTION weir._cancelled_at(job_id bigint, queue text) RETURNS timestamp with time zone LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce((SELECT c.at FROM weir.cancellation c WHERE c.id = _cancelled_at.job_id),
                  -- Which of the filters has cancelled it is not worth a look: with the last one, none is retried that was cancelled after a time.
                  (SELECT max(w.at) FROM weir.cancellation_where w WHERE w.upto >= _cancelled_at.job_id AND (w.queue IS NULL OR w.queue = _cancelled_at.queue)),
                  clock_timestamp())
$$;
CREATE FUNCTION weir._cancelled_in(lane bigint, before_time timestamp with time zone, before_id bigint, most integer) RETURNS TABLE(id bigint, finished_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.id, r.finished_at FROM weir.result r CROSS JOIN LATERAL unnest(r.ids) i(id)
  WHERE r.lane = _cancelled_in.lane AND r.outcome = 'cancelled' AND r.finished_at <= before_time AND (r.finished_at, i.id) < (before_time, before_id)
  ORDER BY r.finished_at DESC, i.id DESC LIMIT most;
END
$$;
CREATE FUNCTION weir._cancelled_of(filters weir.cancellation_where[], ids bigint[], attempts integer[], kinds text[], metas jsonb[], enqueued timestamp with time zone[], keys text[] DEFAULT NULL::text[], priorities integer[] DEFAULT NULL::integer[], flows bigint[] DEFAULT NULL::bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  SELECT ARRAY(
    SELECT u.id FROM unnest(_cancelled_of.ids, _cancelled_of.attempts, _cancelled_of.kinds, _cancelled_of.metas, _cancelled_of.enqueued,
                     _cancelled_of.keys, _cancelled_of.priorities, _cancelled_of.flows) WITH ORDINALITY u(id, attempt, kind, meta, at, key, priority, flow, nr)
    WHERE EXISTS (
      SELECT FROM unnest(_cancelled_of.filters) f
      WHERE weir._means(f::weir.cancellation_where, u.id, u.kind, u.meta, u.at, u.key, u.priority, u.flow)
        AND NOT EXISTS (SELECT FROM weir.reprieve r WHERE r.id = u.id AND r.attempt <= u.attempt AND f.no BETWEEN r.since AND r.upto OFFSET 0)
      OFFSET 0)
    ORDER BY u.nr)
$$;
CREATE FUNCTION weir._cancelled_where_among(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  gone    bigint[] := '{}';
  filters weir.cancellation_where[];
  r       record;
BEGIN
  FOR r IN
    SELECT a.queue, array_agg(a.id) AS ids, array_agg(a.attempt) AS attempts, array_agg(a.kind) AS kinds, array_agg(a.meta) AS metas, array_agg(a.enqueued_at) AS enqueued,
           array_agg(a.key) AS keys, array_agg((a.lane & 3)::integer + 1) AS priorities, array_agg(a.flow) AS flows
    FROM (
      SELECT i.id, u.*, (SELECT q.name FROM weir.queue q WHERE q.id = (u.lane >> 39)::integer) AS queue
      FROM unnest(_cancelled_where_among.ids) i(id) CROSS JOIN LATERAL (
        SELECT k.* FROM (
          (SELECT j.lane, j.attempt, j.put_off, j.kind, j.meta, j.enqueued_at, j.key, j.flow FROM weir.job j WHERE j.id = i.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1)
          UNION ALL
          (SELECT l.lane, l.attempt, l.put_off, l.kind, l.meta, l.enqueued_at, l.key, l.flow FROM weir.later l WHERE l.id = i.id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1)) k
        ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1) u) a
    GROUP BY a.queue
  LOOP
    SELECT array_agg(w) INTO filters FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(r.ids) i(id)) AND (w.queue IS NULL OR w.queue = r.queue);
    IF filters IS NOT NULL THEN
      gone := gone || weir._cancelled_of(filters, r.ids, r.attempts, r.kinds, r.metas, r.enqueued, r.keys, r.priorities, r.flows);
    END IF;
  END LOOP;
  RETURN gone;
END
$$;
CREATE FUNCTION weir._cancelled_within(flow bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    WITH RECURSIVE within AS (
      SELECT d.id FROM weir.flow d WHERE d.parent = _cancelled_within.flow
      UNION ALL
      SELECT d.id FROM within w CROSS JOIN LATERAL (SELECT d.id FROM weir.flow d WHERE d.parent = w.id OFFSET 0) d
    )
    SELECT w.id FROM within w WHERE (SELECT p.is_cancelled FROM weir.fold p WHERE p.flow = w.id ORDER BY p.cut DESC LIMIT 1)
    UNION  -- not counted yet
    SELECT c.flow FROM weir.cancellation_where c WHERE c.flow <> _cancelled_within.flow AND weir._is_within(c.flow, _cancelled_within.flow) ORDER BY 1);
END
$$;
CREATE FUNCTION weir._carry_keys(segment integer, active integer, lanes bigint[], max_jobs integer, max_bytes bigint) RETURNS bigint LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  WITH waiting AS MATERIALIZED (
    SELECT k.* FROM (
      SELECT u.id, u.attempt, u.put_off, sum(150 + pg_column_size(u.args) + coalesce(pg_column_size(u.meta), 0) + coalesce(pg_column_size(u.errors), 0)) OVER (ROWS UNBOUNDED PRECEDING) AS total
      FROM weir._unclaimed(_carry_keys.segment, _carry_keys.lanes, _carry_keys.max_jobs) u) k
    WHERE k.total - 1048576 <= _carry_keys.max_bytes
  ), deleted AS (
    DELETE FROM weir.job j USING waiting w
    WHERE j.segment = _carry_keys.segment AND j.id = w.id AND j.attempt = w.attempt AND j.put_off = w.put_off RETURNING j.*
  ), copied AS (
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT g.id, g.xid, g.enqueued_at, g.ready_at, g.lane, g.attempt, g.max_attempts, g.put_off, _carry_keys.active, g.kind, g.args, g.meta, g.errors, g.unique_key, g.unique_no, g.unique_until, g.key, g.flow FROM deleted g
  )
  SELECT coalesce(max(w.total), 0)::bigint FROM waiting w
$$;
CREATE FUNCTION weir._carry_states(segment integer, active integer, lanes bigint[]) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
  SELECT b.lane, _carry_states.active, 0, 0, b.seq, b.from_xid, b.to_xid, b.pos_xid, b.pos_id, b.total, b.claimed_at, 0, b.pending, b.pending_after, '{}'
  FROM unnest(_carry_states.lanes) l(lane)
  CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b
  WHERE b.segment = _carry_states.segment
$$;
CREATE FUNCTION weir._carry_turns(segment integer, active integer, lanes bigint[]) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
  SELECT t.lane, t.seq, t.pos_xid, t.pos_id, t.tag, _carry_turns.active, t.waits, t.parked, t.pending, t.pending_after, t.open, t.next_start, t.again_at
  FROM unnest(_carry_turns.lanes) l(lane)
  CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC, t.segment = _carry_turns.segment LIMIT 1) t
  WHERE t.segment = _carry_turns.segment
$$;
CREATE FUNCTION weir._carry_unfinished(segment integer, active integer, waiting bigint[], lanes bigint[], newest bigint[], b_lanes bigint[], b_seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta, j.errors, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM weir._unclaimed(_carry_unfinished.segment, waiting) j;

  WITH suspect AS (
    SELECT u.lane, u.seq FROM unnest(b_lanes, b_seqs) u(lane, seq)
    UNION  -- batches claimed since they were collected; and the newest batch of each lane, which holds its state
    SELECT b.lane, b.seq FROM unnest(_carry_unfinished.lanes, newest) l(lane, seq)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = _carry_unfinished.segment AND b.lane = l.lane AND b.seq >= l.seq OFFSET 0) b
  ), kept AS MATERIALIZED (
    SELECT b.*, ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
                      EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.lane = b.lane AND r.seq = b.seq) AS unfinished,
           NOT EXISTS (SELECT FROM weir.batch m WHERE m.lane = b.lane AND m.seq >= b.seq
                         AND (m.seq > b.seq OR m.segment <> _carry_unfinished.segment)) AS is_state
    FROM suspect s CROSS JOIN LATERAL (
      SELECT b.* FROM weir.batch b WHERE b.segment = _carry_unfinished.segment AND b.lane = s.lane AND b.seq = s.seq OFFSET 0) b
  ), batches AS (
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, seen, gate, lanes, flows)
    SELECT k.lane, active, k.origin, k.worker, k.seq, k.from_xid, k.to_xid, k.pos_xid, k.pos_id, k.total, k.claimed_at, k.no, k.pending, k.pending_after, k.unfinished, k.seen, k.gate,
           CASE WHEN k.lanes IS NOT NULL THEN ARRAY(SELECT l.lane FROM unnest(k.unfinished) WITH ORDINALITY u(id, nr) JOIN unnest(k.ids, k.lanes) l(id, lane) ON l.id = u.id ORDER BY u.nr) END,
           weir._flows_among(k.ids, k.flows, k.unfinished)
    FROM kept k WHERE k.is_state OR k.unfinished <> '{}'
  )
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, j.xid, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts, j.put_off, active, j.kind, j.args, j.meta, j.errors, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM kept k CROSS JOIN unnest(k.unfinished) i(id)
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = _carry_unfinished.segment AND j.id = i.id AND (j.lane = k.lane OR k.lanes IS NOT NULL)  -- worded so that the index on id is used
      AND NOT (j.xid < k.from_xid) AND NOT (j.xid > k.to_xid)
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;  -- not an earlier attempt in the same span of xids
END
$$;
CREATE FUNCTION weir._carry_waiting(segment integer, active integer, lanes bigint[], max_jobs integer, max_bytes bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  this_lane bigint;
  s         record;
  chosen    tid[];
  size      bigint;
  carried   bigint := 0;
  locked    integer := 0;
  ring      bigint;       -- the queue of the last lane that had a key
  is_ours   boolean;      -- its ring is locked
  keys      bigint[];
  late      xid8[];
  since     timestamptz;  -- when it was
BEGIN
  FOREACH this_lane IN ARRAY _carry_waiting.lanes LOOP
    EXIT WHEN max_jobs <= 0 OR carried >= max_bytes OR locked = 200;
    IF this_lane & 549755813880 = 0 OR this_lane >> 39 IS DISTINCT FROM ring THEN
      EXIT WHEN since IS NOT NULL;  -- one ring in a call, for a short time: claims from all its keys wait
      is_ours := weir._try_lane(this_lane);
      locked := locked + 1;
      IF this_lane & 549755813880 <> 0 THEN
        ring := this_lane >> 39;
        IF is_ours THEN
          late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = ring::integer));
          since := clock_timestamp();
          keys := ARRAY(SELECT l FROM unnest(_carry_waiting.lanes) l WHERE l >> 39 = ring AND l & 549755813880 <> 0);
          IF cardinality(keys) > 50 THEN  -- one by one would take too long
            RETURN carried + weir._carry_keys(_carry_waiting.segment, active, keys[: 1000], max_jobs, max_bytes - carried);
          END IF;
        END IF;
      END IF;
    END IF;
    CONTINUE WHEN NOT is_ours;
    EXIT WHEN clock_timestamp() - since > interval '50 ms';
    s := weir._state_of(this_lane, late);
    -- From the end of the lane: the jobs that are claimed next stay where they are, and no claim scans the rows that are deleted here.
    SELECT array_agg(k.at), max(k.total) INTO chosen, size
    FROM (
      SELECT u.at, sum(u.size) OVER (ROWS UNBOUNDED PRECEDING) AS total
      FROM (
        (SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) + coalesce(pg_column_size(j.errors), 0) AS size FROM weir.job j
         WHERE j.segment = _carry_waiting.segment AND j.lane = this_lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
         ORDER BY j.xid DESC, j.id DESC LIMIT max_jobs)
        UNION ALL
        SELECT l.at, l.size FROM unnest(s.pending, s.pending_after) p(xid, after)
        CROSS JOIN LATERAL (
          SELECT j.ctid AS at, 150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0) + coalesce(pg_column_size(j.errors), 0) AS size FROM weir.job j
          WHERE j.segment = _carry_waiting.segment AND j.lane = this_lane AND j.xid = p.xid AND j.id > p.after LIMIT max_jobs) l) u
      LIMIT max_jobs) k
    WHERE k.total - 1048576 <= max_bytes - carried;  -- a job of a megabyte is carried alone
    CONTINUE WHEN chosen IS NULL;
    WITH deleted AS (
      DELETE FROM weir.job j WHERE j.segment = _carry_waiting.segment AND j.ctid = ANY (chosen) RETURNING j.*
    )
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT g.id, g.xid, g.enqueued_at, g.ready_at, g.lane, g.attempt, g.max_attempts, g.put_off, active, g.kind, g.args, g.meta, g.errors, g.unique_key, g.unique_no, g.unique_until, g.key, g.flow FROM deleted g;
    max_jobs := max_jobs - cardinality(chosen);
    carried := carried + size;
  END LOOP;
  RETURN carried;
END
$$;
CREATE FUNCTION weir._channel_for(template text, fields jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  channel text := template;
  field   text;
BEGIN
  FOR field IN SELECT DISTINCT m[1] FROM regexp_matches(template, '[{]([^{}]+)[}]', 'g') m LOOP
    channel := replace(channel, '{' || field || '}', weir._channel_part(fields ->> field));
  END LOOP;
  RETURN channel;
END
$$;
CREATE FUNCTION weir._channel_part(value text) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- What has a meaning in channels and templates, and what can't be seen. Of a long value only a hash fits into a channel.
  SELECT CASE WHEN _channel_part.value IS NULL THEN '%00'
              WHEN _channel_part.value = '' THEN '%'
              WHEN octet_length(_channel_part.value) > 60 THEN '%23' || md5(_channel_part.value)
              WHEN _channel_part.value !~ '[][:space:][:cntrl:].*>%{}]' THEN _channel_part.value
              ELSE (SELECT string_agg(CASE WHEN c ~ '[][:space:][:cntrl:].*>%{}]' THEN '%' || upper(lpad(to_hex(ascii(c)), 2, '0')) ELSE c END, '' ORDER BY nr)
                    FROM regexp_split_to_table(_channel_part.value, '') WITH ORDINALITY s(c, nr)) END
$$;
CREATE FUNCTION weir._check_array(caller text, name text, given anyarray, is_filled boolean DEFAULT false) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF array_lower(given, 1) <> 1 OR array_ndims(given) <> 1 THEN
    RAISE EXCEPTION 'weir: % needs a list as %, got an array with the dimensions %', caller, name, array_dims(given)
      USING ERRCODE = '22023', HINT = 'Pass an array of one dimension whose first index is 1.';
  ELSIF is_filled AND array_position(given, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % got a null in %, as its element %', caller, name, array_position(given, NULL) USING ERRCODE = '22023';
  END IF;
END
$$;
CREATE FUNCTION weir._check_backoff(backoff interval, backoff_limit interval, backoff_form text) RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF _check_backoff.backoff_form <> ALL (ARRAY['exponential', 'linear', 'fixed']) THEN
    RAISE EXCEPTION 'weir: backoff_form must be exponential, linear or fixed, got %', quote_literal(left(_check_backoff.backoff_form, 100)) USING ERRCODE = '22023';
  ELSIF _check_backoff.backoff NOT BETWEEN interval '0' AND interval '366 days' THEN
    RAISE EXCEPTION 'weir: backoff must be 0 to 1 year, got %', _check_backoff.backoff USING ERRCODE = '22023';
  ELSIF _check_backoff.backoff_limit NOT BETWEEN interval '0' AND interval '366 days' THEN
    RAISE EXCEPTION 'weir: backoff_limit must be 0 to 1 year, got %', _check_backoff.backoff_limit USING ERRCODE = '22023';
  END IF;
END
$$;
CREATE FUNCTION weir._check_cluster() RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') <> (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    RAISE EXCEPTION 'weir: this log comes from another cluster, whose transaction ids mean nothing here'
      USING ERRCODE = 'WR003', HINT = 'The database was restored or moved: call weir.rebase().';
  END IF;
END
$$;
CREATE FUNCTION weir._check_cluster_once() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  named text := (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster');
BEGIN
  IF named IS DISTINCT FROM current_setting('weir.cluster', true) THEN
    PERFORM weir._check_cluster(), set_config('weir.cluster', named, false);
  END IF;
END
$$;
CREATE FUNCTION weir._check_counts(flow bigint, counts jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 100;
  now_has jsonb := (SELECT f.counters FROM weir.fold f WHERE f.flow = _check_counts.flow ORDER BY f.cut DESC LIMIT 1);
  name text;
BEGIN
  IF now_has ?& ARRAY(SELECT jsonb_object_keys(counts)) THEN
    RETURN;  -- as nearly always
  END IF;
  FOR name IN SELECT k FROM jsonb_object_keys(counts) k LOOP
    IF length(name) NOT BETWEEN 1 AND 100 THEN
      RAISE EXCEPTION 'weir: the name of a counter must have 1 to 100 characters, got %', length(name) USING ERRCODE = '22023';
    ELSIF NOT now_has ? name AND (SELECT count(*) FROM jsonb_object_keys(now_has)) >= most THEN
      RAISE EXCEPTION 'weir: flow % has % counters, and % would be another', flow, most, to_json(name) USING ERRCODE = '22023', HINT = 'Counters are for a few sums of the whole flow.';
    END IF;
  END LOOP;
END
$$;
CREATE FUNCTION weir._check_destination(what text, to_queue text, to_priority integer) RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF to_queue IS NULL AND to_priority IS NULL THEN
    RAISE EXCEPTION 'weir: % needs to_queue or to_priority', what USING ERRCODE = '22023';
  ELSIF length(to_queue) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'weir: to_queue must have 1 to 128 characters, got %', length(to_queue) USING ERRCODE = '22023';
  ELSIF to_priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: to_priority must be 1 to 4, got %', to_priority USING ERRCODE = '22023';
  END IF;
END
$$;
CREATE FUNCTION weir._check_filter(what text, queue text, kinds text[], meta jsonb, priority integer, key text, error text, has_time boolean, hint text, shape text DEFAULT NULL::text) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  empty text;  -- a condition that was given, but whose value is empty: from a variable that is not set, for example
BEGIN
  SELECT c.name INTO empty
  FROM (VALUES ('queue', _check_filter.queue = ''), ('kinds', cardinality(_check_filter.kinds) = 0 OR '' = ANY (_check_filter.kinds)), ('meta', _check_filter.meta = '{}'), ('key', _check_filter.key = ''), ('error', _check_filter.error = ''), ('shape', _check_filter.shape = '')) c(name, is_empty)
  WHERE c.is_empty LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % got a condition whose value is empty: %', _check_filter.what, empty USING ERRCODE = '22023', HINT = 'Pass NULL for no condition.';
  END IF;
  PERFORM weir._check_array(_check_filter.what, 'kinds', _check_filter.kinds), weir._check_key(_check_filter.key);
  IF cardinality(_check_filter.kinds) > 1000 OR array_position(_check_filter.kinds, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % takes 1 to 1000 kinds, none of them null, got % kinds', _check_filter.what, cardinality(_check_filter.kinds) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(_check_filter.meta) <> 'object' OR pg_column_size(_check_filter.meta) > 65536 THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object of at most 64 KiB, got %', left(_check_filter.meta::text, 100)
      USING ERRCODE = '22023', HINT = 'It selects the jobs whose meta contains this object, as with @>.';
  ELSIF _check_filter.priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: priority must be 1 to 4, got %', _check_filter.priority USING ERRCODE = '22023';
  ELSIF NOT _check_filter.has_time AND num_nonnulls(_check_filter.queue, _check_filter.kinds, _check_filter.meta, _check_filter.priority, _check_filter.key, _check_filter.error, _check_filter.shape) = 0 THEN
    RAISE EXCEPTION 'weir: % needs a filter', _check_filter.what USING ERRCODE = '22023', HINT = _check_filter.hint;
  END IF;
END
$$;
CREATE FUNCTION weir._check_isolation(caller text, with_others boolean DEFAULT false) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'weir: % needs READ COMMITTED, this transaction is %', caller, upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'WR004', HINT = CASE WHEN with_others THEN 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.' ELSE 'Call it in autocommit, or begin with ISOLATION LEVEL READ COMMITTED.' END;
  END IF;
END
$$;
CREATE FUNCTION weir._check_job(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF _check_job.queue IS NULL OR _check_job.queue = '' THEN
    RAISE EXCEPTION 'weir: a job needs a queue, but its queue is %', CASE WHEN _check_job.queue IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'Name the queue, for example queue => ''default''.';
  ELSIF length(_check_job.queue) > 128 THEN
    RAISE EXCEPTION 'weir: queue name too long: % characters, at most 128 are allowed', length(_check_job.queue)
      USING ERRCODE = '22023';
  ELSIF _check_job.kind IS NULL OR _check_job.kind = '' THEN
    RAISE EXCEPTION 'weir: a job needs a kind, but its kind is %', CASE WHEN _check_job.kind IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023', HINT = 'The kind determines which handler runs the job.';
  ELSIF length(_check_job.kind) > 128 THEN
    RAISE EXCEPTION 'weir: kind too long: % characters, at most 128 are allowed', length(_check_job.kind)
      USING ERRCODE = '22023';
  ELSIF _check_job.args IS NULL OR jsonb_typeof(_check_job.args) <> 'object' THEN
    RAISE EXCEPTION 'weir: args must be a JSON object, got %', coalesce('a JSON ' || jsonb_typeof(_check_job.args), 'null')
      USING ERRCODE = '22023', HINT = 'Wrap the value, for example {"value": 1}.';
  ELSIF octet_length(_check_job.args::text) > 1048576 THEN
    RAISE EXCEPTION 'weir: args too large: % bytes, at most 1048576 are allowed', octet_length(_check_job.args::text)
      USING ERRCODE = '22023', HINT = 'Store large data elsewhere and put a reference to it into args.';
  ELSIF _check_job.priority IS NULL OR _check_job.priority NOT BETWEEN 1 AND 4 THEN
    RAISE EXCEPTION 'weir: unknown priority %: priorities are 1 (first) to 4', coalesce(_check_job.priority::text, 'null')
      USING ERRCODE = '22023';
  ELSIF _check_job.max_attempts IS NULL OR _check_job.max_attempts NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: max_attempts must be 1 to 1000, got %', coalesce(_check_job.max_attempts::text, 'null')
      USING ERRCODE = '22023';
  ELSIF _check_job.meta IS NOT NULL THEN
    IF jsonb_typeof(_check_job.meta) <> 'object' THEN
      RAISE EXCEPTION 'weir: meta must be a JSON object, got a JSON %', jsonb_typeof(_check_job.meta)
        USING ERRCODE = '22023';
    ELSIF octet_length(_check_job.meta::text) > 65536 THEN
      RAISE EXCEPTION 'weir: meta too large: % bytes, at most 65536 are allowed', octet_length(_check_job.meta::text)
        USING ERRCODE = '22023';
    ELSIF jsonb_path_exists(_check_job.meta, '$.keyvalue() ? (@.key starts with "weir." && @.key != "weir.otel")') THEN
      RAISE EXCEPTION 'weir: the key % of meta is reserved for Weir', (SELECT to_json(left(k, 100)) FROM jsonb_object_keys(_check_job.meta) k WHERE k LIKE 'weir.%' AND k <> 'weir.otel' ORDER BY k LIMIT 1)
        USING ERRCODE = '22023', HINT = 'Choose a key that does not begin with "weir.".';
    END IF;
  END IF;
END
$$;
CREATE FUNCTION weir._check_key(key text) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF length(_check_key.key) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'weir: a key must have 1 to 200 characters, got %', length(_check_key.key) USING ERRCODE = '22023', HINT = 'For no key, pass NULL.';
  END IF;
END
$$;
CREATE FUNCTION weir._check_message_cluster() RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') <> (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    RAISE EXCEPTION 'weir: the log of messages comes from another cluster, whose transaction ids mean nothing here'
      USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
  END IF;
END
$$;
CREATE FUNCTION weir._check_message(channel text, bytes integer) RETURNS void LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  max_bytes integer;
BEGIN
  IF current_setting('weir.cut', true) <> '' THEN
    RAISE EXCEPTION 'weir: this transaction can''t publish any more, because it has cut tick % itself', current_setting('weir.cut')
      USING ERRCODE = 'WR004', HINT = 'Publish in another transaction. Call publish_drafts with cuts in autocommit.';
  ELSIF _check_message.channel IS NULL OR _check_message.channel = '' THEN
    RAISE EXCEPTION 'weir: the channel name is %', CASE WHEN _check_message.channel IS NULL THEN 'null' ELSE 'empty' END
      USING ERRCODE = '22023';
  ELSIF octet_length(_check_message.channel) > 255 THEN
    RAISE EXCEPTION 'weir: channel name too long: % bytes, at most 255 are allowed', octet_length(_check_message.channel)
      USING ERRCODE = '22023';
  END IF;
  IF _check_message.bytes > 8000 THEN
    SELECT s.value::integer INTO max_bytes FROM weir.setting s WHERE s.name = 'message_bytes';
    IF _check_message.bytes > max_bytes THEN
      RAISE EXCEPTION 'weir: payload too large: % bytes, at most % are allowed', _check_message.bytes, max_bytes
        USING ERRCODE = '22023',
              HINT = 'Publish a reference to the data, or raise the limit: SELECT weir.set(''message_bytes'', ...).';
    END IF;
  END IF;
END
$$;
CREATE FUNCTION weir._check_new_queue(name text) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  IF _check_new_queue.name ~ '^[[:space:]]|[[:space:]]$' THEN
    RAISE EXCEPTION 'weir: the queue name % begins or ends with a blank', to_json(left(_check_new_queue.name, 200)) USING ERRCODE = '22023', HINT = 'Leave it out: it would be another queue than the one without.';
  END IF;
END
$$;
CREATE FUNCTION weir._check_operation(what text, filter jsonb, to_queue text, to_priority integer) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  known text[] := ARRAY['queue', 'kinds', 'meta', 'priority', 'enqueued_after', 'enqueued_before', 'key'];
  wrong text;
  f     record;
BEGIN
  IF what IS NULL OR what <> ALL (ARRAY['retry', 'delete', 'move', 'cancel']) THEN
    RAISE EXCEPTION 'weir: an operation is to retry, delete, move or cancel jobs, got %', coalesce(quote_literal(left(what, 100)), 'null') USING ERRCODE = '22023';
  ELSIF jsonb_typeof(filter) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'weir: the filter of an operation must be a JSON object, got %', coalesce(left(filter::text, 100), 'null') USING ERRCODE = '22023', HINT = 'For example {"queue": "mail"}.';
  END IF;
  known := known || CASE WHEN what IN ('retry', 'delete') THEN ARRAY['error', 'shape', 'finished_after', 'finished_before'] END || CASE WHEN what = 'retry' THEN ARRAY['states'] END;
  SELECT k INTO wrong FROM jsonb_object_keys(filter) k WHERE k <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: an operation that is to % jobs has no condition %', what, to_json(left(wrong, 100)) USING ERRCODE = '22023', HINT = 'It has: ' || array_to_string(known, ', ') || '.';
  END IF;
  f := weir._conditions(filter);
  PERFORM weir._check_filter('begin_operation', f.queue, f.kinds, f.meta, f.priority, f.key, f.error,
    num_nonnulls(f.enqueued_after, f.enqueued_before, f.finished_after, f.finished_before) > 0,
    'Name a condition besides states, such as {"queue": "mail"}. To select all jobs, name enqueued_before, with the present time.', f.shape),
    weir._check_states('begin_operation', f.states);
  IF what <> 'move' AND num_nonnulls(to_queue, to_priority) > 0 THEN
    RAISE EXCEPTION 'weir: an operation that is to % jobs has no to_queue and no to_priority', what USING ERRCODE = '22023';
  ELSIF what = 'move' THEN
    PERFORM weir._check_destination('begin_operation', to_queue, to_priority);
  END IF;
  RETURN (SELECT jsonb_object_agg(c.name, c.value) FROM (VALUES
    ('queue', to_jsonb(f.queue)), ('kinds', to_jsonb(f.kinds)), ('meta', f.meta), ('priority', to_jsonb(f.priority)), ('enqueued_after', to_jsonb(f.enqueued_after)),
    ('enqueued_before', to_jsonb(f.enqueued_before)), ('key', to_jsonb(f.key)), ('error', to_jsonb(f.error)), ('shape', to_jsonb(f.shape)),
    ('finished_after', to_jsonb(f.finished_after)), ('finished_before', to_jsonb(f.finished_before)), ('states', to_jsonb(f.states))) c(name, value)
    WHERE c.value IS NOT NULL);
END
$$;
CREATE FUNCTION weir._check_position(tick bigint, epoch bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off
AS $$
#variable_conflict use_column
DECLARE
  newest bigint := (SELECT t.seq FROM weir.tick t ORDER BY t.seq DESC LIMIT 1);
  common bigint;
BEGIN
  IF _check_position.tick > newest THEN
    IF pg_is_in_recovery() THEN
      RETURN;  -- the standby may lag behind
    END IF;
  ELSIF _check_position.epoch IS NULL OR _check_position.tick = 0 OR weir._epoch_of(_check_position.tick) = _check_position.epoch THEN
    RETURN;
  END IF;
  -- If its epoch is known here, both logs are the same up to the end of that epoch.
  common := least(newest, (SELECT min(n.from_tick) - 1 FROM weir.epoch e JOIN weir.epoch n ON n.from_tick > e.from_tick WHERE e.epoch = _check_position.epoch));
  RAISE EXCEPTION 'weir: tick % of epoch % does not belong to this log, which ends at %', _check_position.tick, coalesce(_check_position.epoch::text, 'null'), newest
    USING ERRCODE = 'WR006', DETAIL = weir._epoch_of(common) || '.' || common,
          HINT = 'It belongs to another database, or this database was set back to an earlier state and has continued from there.';
END
$$;
CREATE FUNCTION weir._check_states(what text, states text[]) RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF cardinality(states) = 0 THEN
    RAISE EXCEPTION 'weir: % got an empty list of states', what USING ERRCODE = '22023', HINT = 'Pass NULL for failed jobs.';
  ELSIF NOT states <@ ARRAY['completed', 'failed', 'cancelled'] THEN
    RAISE EXCEPTION 'weir: % retries completed, failed and cancelled jobs, got states %', what, states USING ERRCODE = '22023', HINT = 'Jobs in other states are still to run.';
  END IF;
END
$$;
CREATE FUNCTION weir._check_step(what text, queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamp with time zone, enqueued_before timestamp with time zone, key text, error text, max_rows integer, shape text DEFAULT NULL::text, has_end boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._check_isolation(_check_step.what);
  PERFORM weir._check_filter(_check_step.what, _check_step.queue, _check_step.kinds, _check_step.meta, _check_step.priority, _check_step.key, _check_step.error,
    num_nonnulls(_check_step.enqueued_after, _check_step.enqueued_before) > 0 OR _check_step.has_end,
    'Pass a queue, a key, kinds, meta, a priority, a time, or a part or the shape of the error. To select all jobs, pass enqueued_before => now().', _check_step.shape);
  IF _check_step.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a step looks at 1 to 1000 jobs, got %', _check_step.max_rows USING ERRCODE = '22023', HINT = 'Call it again with after, until next is NULL.';
  END IF;
END
$$;
CREATE FUNCTION weir._check_types(jobs jsonb) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  r record;
BEGIN
  BEGIN
    PERFORM x.* FROM jsonb_array_elements(jobs) e(job)
    CROSS JOIN LATERAL jsonb_to_record(e.job || CASE jsonb_typeof(e.job -> 'unique') WHEN 'object' THEN (e.job -> 'unique') - 'key' ELSE '{}' END)
      x(priority integer, run_at timestamptz, max_attempts integer, flow bigint, fields text[], within interval, replace boolean, wait boolean);
    RETURN;
  EXCEPTION WHEN data_exception THEN
    NULL;
  END;
  FOR r IN
    SELECT e.ord, f.name, f.must_be, f.value FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
    CROSS JOIN LATERAL (VALUES ('priority', 'a whole number', e.job -> 'priority'), ('run_at', 'a time', e.job -> 'run_at'), ('max_attempts', 'a whole number', e.job -> 'max_attempts'), ('flow', 'the id of a flow', e.job -> 'flow'),
                               ('fields', 'an array of texts', e.job -> 'unique' -> 'fields'), ('within', 'an interval', e.job -> 'unique' -> 'within'),
                               ('replace', 'true or false', e.job -> 'unique' -> 'replace'), ('wait', 'true or false', e.job -> 'unique' -> 'wait')) f(name, must_be, value)
    WHERE f.value IS NOT NULL ORDER BY e.ord
  LOOP
    BEGIN
      PERFORM x.* FROM jsonb_to_record(jsonb_build_object(r.name, r.value))
        x(priority integer, run_at timestamptz, max_attempts integer, flow bigint, fields text[], within interval, replace boolean, wait boolean);
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION 'weir: job % of %: % must be %, got %', r.ord, jsonb_array_length(jobs), r.name, r.must_be, left(r.value::text, 100) USING ERRCODE = '22023';
    END;
  END LOOP;
END
$$;
CREATE FUNCTION weir._check_unique(key text, fields text[], until text, within interval, replace boolean, args jsonb) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF length(_check_unique.key) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: unique_key must have 1 to 1000 characters, got %', length(_check_unique.key) USING ERRCODE = '22023';
  ELSIF _check_unique.key IS NOT NULL AND _check_unique.fields IS NOT NULL THEN
    RAISE EXCEPTION 'weir: enqueue_unique got both a unique_key and fields' USING ERRCODE = '22023', HINT = 'A unique_key alone decides which jobs are duplicates: leave out fields.';
  ELSIF _check_unique.until NOT IN ('finished', 'started') THEN
    RAISE EXCEPTION 'weir: until must be finished or started, got "%"', left(_check_unique.until, 100) USING ERRCODE = '22023';
  ELSIF _check_unique.within <= interval '0' OR _check_unique.within > interval '366 days' THEN
    RAISE EXCEPTION 'weir: within must be more than 0 and at most 1 year, got %', _check_unique.within USING ERRCODE = '22023';
  ELSIF _check_unique.within IS NOT NULL AND _check_unique.until IS NOT NULL THEN
    RAISE EXCEPTION 'weir: enqueue_unique got both until (%) and within (%)', _check_unique.until, _check_unique.within USING ERRCODE = '22023', HINT = 'Pass one of them.';
  ELSIF _check_unique.replace AND (_check_unique.within IS NOT NULL OR _check_unique.until = 'finished') THEN
    RAISE EXCEPTION 'weir: replace goes with until started, got %', coalesce('until ' || _check_unique.until, 'within ' || _check_unique.within)
      USING ERRCODE = '22023', HINT = 'A job is replaced only as long as it has not started.';
  END IF;
  PERFORM weir._check_array('enqueue_unique', 'fields', _check_unique.fields, true);
  IF cardinality(_check_unique.fields) > 100 THEN
    RAISE EXCEPTION 'weir: enqueue_unique takes at most 100 fields, got %', cardinality(_check_unique.fields) USING ERRCODE = '22023';
  ELSIF cardinality(_check_unique.fields) > 0 AND NOT _check_unique.args ?| _check_unique.fields THEN
    -- Probably they are misspelled; then all jobs of the kind would be duplicates of each other.
    RAISE EXCEPTION 'weir: args has none of the fields that make the job unique: %', left((SELECT string_agg(CASE WHEN f ~ '^[^[:space:],"]+$' THEN f ELSE to_json(f)::text END, ', ') FROM unnest(_check_unique.fields) f), 200)
      USING ERRCODE = '22023', HINT = 'Fields are the names in the JSON of args, in upper and lower case as there. ' || CASE WHEN _check_unique.args = '{}' THEN 'These args are empty.' ELSE
        'These args have: ' || left((SELECT string_agg(k, ', ') FROM jsonb_object_keys(_check_unique.args) k), 200) || '.' END;
  END IF;
END
$$;
CREATE FUNCTION weir._check_worker(worker integer) RETURNS text[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
DECLARE
  is_fenced boolean;
  w         record;
BEGIN
  -- At most two rows; a fence comes first.
  FOR w IN SELECT k.fenced, k.queues FROM weir.worker k WHERE k.id = _check_worker.worker ORDER BY k.fenced DESC LOOP
    is_fenced := w.fenced;
    EXIT;
  END LOOP;
  IF is_fenced IS NULL THEN
    RAISE EXCEPTION 'weir: worker % is unknown', _check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Pass an id that weir.start has returned: is this transaction in the worker''s database?';
  ELSIF is_fenced THEN
    RAISE EXCEPTION 'weir: worker % is fenced: it stopped or was silent past its lease, and other workers get its jobs', _check_worker.worker
      USING ERRCODE = 'WR001', HINT = 'Drop its jobs, and start again with a new id from weir.start.';
  END IF;
  RETURN w.queues;
END
$$;
CREATE FUNCTION weir._claim(worker integer, queues text[], limits integer[], since pg_snapshot DEFAULT NULL::pg_snapshot, backlog text[] DEFAULT NULL::text[]) RETURNS TABLE(queue text, lane bigint, seq bigint, id bigint, attempt integer, max_attempts integer, kind text, args jsonb, meta jsonb, enqueued_at timestamp with time zone, dropped text, put_off integer, ready_at timestamp with time zone, priority integer, key text, flow bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  max_skip    CONSTANT integer := 64;
  max_lanes   CONSTANT integer := 200;  -- to lock: the server's lock table is shared
  last_id     CONSTANT bigint  := 9223372036854775807;
  soon        CONSTANT interval := '10 milliseconds';  -- when to try again, if others have a queue's gate or turns
  snapshot    pg_snapshot;
  newer       pg_snapshot;
  top         xid8;     -- the snapshot's xmax: no transaction from here on has ended
  running     xid8[];   -- the transactions below it that have not ended either
  below       integer;  -- how many of those are below the position
  skip        xid8[];   -- the first of those past the position
  ended       xid8[];   -- pending transactions that the snapshot sees
  afters      bigint[];
  cluster     text;
  started_for text[];
  hinted      bigint[];  -- the only lanes to check; NULL: all
  start_at    integer;
  visited     integer := 0;
  gaps        record;     -- what is known of the stretches between running transactions: see weir._fresh_between
  ready       record;
  last        record;
  quota       integer;
  taken       integer;
  is_cut      boolean := false;             -- there may be more jobs
  filters     weir.cancellation_where[];    -- the cancellations by filter that concern the lane
  upto        bigint;                       -- the greatest job id that one of them applies to; 0: there are none
  judging     integer[] := '{}';            -- the queues whose unique jobs it may judge: hashes of their names
  queue_hash  integer;
  has_lanes   boolean := false;             -- it has locked one
  has_keys    boolean;                      -- there are queues with turns
  has_limits  boolean := false;             -- among those that it claims from, there are some with limits for each key
  is_ring     boolean;                      -- the lane stands for the keys of a queue: see functions/turn.sql
  ring        weir.ring;                    -- its state
  ring_seq    bigint;                       -- before the lock
  shared_by   text;                         -- a queue with turns to give and with jobs without a key, and how many of the latter it may still hand out
  unshared    integer;
  before      bigint;                       -- see _gate_now
  aged_queue  integer;                      -- the id of the queue that reserved is about
  reserved    integer[];                    -- how many jobs of each priority are chosen by age: see weir._reserve
  shortened   bigint[] := '{}';             -- queues in which it left jobs for a lower priority
  gates       integer[] := '{}';            -- those that it has locked
  gate_now    record;                       -- the state of the lane's gate
  withheld    text[] := '{}';               -- queues from which limits have withheld jobs
  again_at    timestamptz[] := '{}';        -- when their rates may allow some
  commits     text;                         -- the caller's synchronous_commit
  own         xid8;                         -- this transaction, if it may log unique jobs again and has written to another lane
  batch_no    bigint;
  this_seq    bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'weir: claim needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit, with default_transaction_isolation = ''read committed''.';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: claim was called inside an open transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: its lock on the lane would be held until your commit.';
  ELSIF clock_timestamp() - now() > interval '2 seconds' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: claim was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: its lock on the lane would be held until your commit. If you did, try again.';
  END IF;
  PERFORM weir._check_array('claim', 'queues', queues, true), weir._check_array('claim', 'limits', limits, true), weir._check_array('claim', 'backlog', backlog, true);
  IF cardinality(queues) IS DISTINCT FROM cardinality(limits) OR queues IS NULL THEN
    RAISE EXCEPTION 'weir: claim got % queues and % limits', coalesce(cardinality(queues)::text, 'null'), coalesce(cardinality(limits)::text, 'null') USING ERRCODE = '22023';
  END IF;
  -- The jobs of a lost claim are only claimed again. Flushing a result to disk also flushes the claim before it.
  commits := current_setting('synchronous_commit');
  PERFORM set_config('synchronous_commit', 'off', true), weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _claim.worker);
  started_for := weir._check_worker(_claim.worker);
  IF _claim.queues <> started_for AND NOT _claim.queues <@ started_for THEN  -- for thousands of queues, <@ takes long
    RAISE EXCEPTION 'weir: worker % claims from %, but was started for %', _claim.worker, _claim.queues, started_for
      USING ERRCODE = '22023', HINT = 'Start the worker with all queues that it claims from.';
  END IF;

  -- A backend never changes its cluster, so it checks once for each cluster that the log names; the log may be replaced.
  SELECT s.value, EXISTS (SELECT FROM weir.with_keys) INTO cluster, has_keys FROM weir.setting s WHERE s.name = 'cluster';
  IF cluster IS DISTINCT FROM current_setting('weir.cluster', true) THEN
    PERFORM weir._check_cluster(), set_config('weir.cluster', cluster, false);
  END IF;
  snapshot := pg_current_snapshot();
  top := pg_snapshot_xmax(snapshot);
  running := CASE WHEN pg_snapshot_xmin(snapshot) < top THEN ARRAY(SELECT pg_snapshot_xip(snapshot)) ELSE '{}' END;

  -- With a hint, the cost depends on how many new jobs there are, not on how many lanes.
  IF _claim.since IS NOT NULL AND pg_snapshot_xmax(_claim.since) <= top THEN
    hinted := weir._fresh_lanes(_claim.since, snapshot);
    IF hinted IS NOT NULL AND _claim.backlog <> '{}' THEN
      hinted := ARRAY(SELECT unnest(hinted) UNION
                      SELECT (q.id::bigint << 39) + p FROM unnest(_claim.backlog) b(name) JOIN weir.queue q ON q.name = b.name CROSS JOIN generate_series(0, 3) p);
    END IF;
  END IF;

  -- If there are more lanes than it may lock, it starts at a random queue, so that none always comes last.
  IF cardinality(hinted) > max_lanes THEN
    start_at := hinted[1 + floor(random() * cardinality(hinted))] >> 39;
    hinted := ARRAY(SELECT h FROM unnest(hinted) h ORDER BY h >> 39 < start_at, h);
  ELSIF hinted IS NULL AND 4 * cardinality(queues) > max_lanes THEN
    start_at := floor(random() * cardinality(queues));
    queues := queues[start_at + 1 :] || queues[: start_at];
    limits := limits[start_at + 1 :] || limits[: start_at];
  END IF;

  -- Most lanes are idle, and have no rows between transactions in progress: one query finds this out for all of them.
  SELECT NULL::boolean[] AS known, '{}'::bigint[] AS lanes INTO gaps;
  IF coalesce(cardinality(hinted), 4 * cardinality(queues)) * cardinality(running) > 16 THEN
    gaps := weir._fresh_between(running, top);
  END IF;

  -- The first lanes that have jobs, read without their locks. They are in the order of lanes, so that two claims that
  -- lock several lanes can't deadlock; within a queue this is the order of priorities.
  <<lanes>>
  FOR ready IN
    SELECT r.lane, r.ord, r.name, r.gate, r.ageing, EXISTS (SELECT FROM weir.keyed k WHERE k.queue = r.name) AS keyed FROM (
      SELECT l.lane, l.ord, l.name, n.gate, n.ageing
      FROM (
        SELECT q.lane, u.ord, u.name
        FROM unnest(_claim.queues, _claim.limits) WITH ORDINALITY u(name, quota, ord)
        -- OFFSET 0 makes it go through the queues in their order, only as far as needed.
        CROSS JOIN LATERAL (SELECT (q.id::bigint << 39) + p AS lane FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE q.name = u.name AND NOT q.aside OFFSET 0) q
        WHERE hinted IS NULL AND u.quota > 0
        UNION ALL
        SELECT h.lane, o.ord, q.name
        FROM unnest(hinted) h(lane)
        CROSS JOIN LATERAL (SELECT q.name FROM weir.queue q WHERE q.id = (h.lane >> 39)::integer OFFSET 0) q
        CROSS JOIN LATERAL (SELECT array_position(_claim.queues, q.name) AS ord OFFSET 0) o
        WHERE _claim.limits[o.ord] > 0 AND h.lane < ((h.lane >> 39) << 39) + 4  -- no key
        UNION ALL
        SELECT k.lane, k.ord, k.name FROM weir._turn_lanes(_claim.queues, hinted) k
        WHERE has_keys AND _claim.limits[k.ord] > 0) l
      -- A pause, a gate and ageing apply to all twins of a name, also to one that was committed after them.
      CROSS JOIN LATERAL (SELECT max(p.paused_at) AS paused_at, max(p.gate) AS gate, max(p.ageing) AS ageing FROM weir.queue p WHERE p.name = l.name OFFSET 0) n
      LEFT JOIN LATERAL (
        SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after
        FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
      CROSS JOIN LATERAL (SELECT l.lane = ANY (gaps.lanes) AS is_fresh OFFSET 0) f
      WHERE
        n.paused_at IS NULL
        AND CASE WHEN has_keys AND l.lane & 4 <> 0 THEN weir._has_turns(l.name, snapshot) ELSE
            (s.pos_xid >= top  -- raises WR003 below: new jobs would lie before the position
             OR EXISTS (SELECT FROM generate_series(0, least(cardinality(running) - width_bucket(coalesce(s.pos_xid, '0'), running), max_skip)) i
                     CROSS JOIN LATERAL (SELECT width_bucket(coalesce(s.pos_xid, '0'), running) + i AS at OFFSET 0) o
                     CROSS JOIN LATERAL (SELECT FROM weir.job j
                       WHERE j.lane = l.lane AND j.xid < CASE WHEN i < max_skip THEN coalesce(running[o.at + 1], top) ELSE top END
                         AND (j.xid, j.id) > (CASE WHEN i > 0 THEN running[o.at] ELSE coalesce(s.pos_xid, '0') END, CASE WHEN i > 0 THEN last_id ELSE coalesce(s.pos_id, 0) END)
                       LIMIT 1) j
                     -- The last stretch may contain several running transactions. The first is not in gaps. Between two consecutive xids there is no row.
                     WHERE i = max_skip OR o.at = 0
                        OR (f.is_fresh OR gaps.known[o.at] IS NOT TRUE) AND running[o.at + 1]::text::bigint - running[o.at]::text::bigint IS DISTINCT FROM 1)
             OR (s.pending <> running[1 : width_bucket(s.pos_xid, running)] AND EXISTS (
                     SELECT FROM unnest(s.pending, s.pending_after) p(xid, after)
                     CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after LIMIT 1) j
                     WHERE pg_visible_in_snapshot(p.xid, snapshot)))) END
      LIMIT max_lanes) r
    ORDER BY r.lane
  LOOP
    visited := visited + 1;
    quota := least(_claim.limits[ready.ord], 960);  -- so that a batch's ids stay inline in its row
    CONTINUE WHEN quota <= 0;
    is_ring := ready.lane & 4 <> 0;
    IF has_keys AND NOT is_ring THEN
      -- Jobs without a key get half of what a queue with turns to give hands out.
      IF ready.name IS DISTINCT FROM shared_by THEN
        shared_by := ready.name;
        unshared := CASE WHEN EXISTS (SELECT FROM weir.with_keys k WHERE k.queue = ready.name) AND weir._has_turns(ready.name, snapshot)
                         THEN floor(quota / 2.0 + random()) ELSE quota END;
      END IF;
      quota := least(quota, unshared);
      IF quota <= 0 THEN
        is_cut := true;
        CONTINUE;
      END IF;
    END IF;
    before := NULL;
    IF ready.gate IS NOT NULL THEN
      IF ready.gate <> ALL (gates) THEN
        -- First without its lock: most claims of a queue at its limit end here, and write nothing. It waits for the lock only while it has
        -- neither a lane's nor another gate's, so that claims can't deadlock.
        gate_now := weir._gate_now(ready.name, ready.gate, false);
        IF gate_now.room > 0 AND (has_lanes OR gates <> '{}') AND NOT pg_try_advisory_xact_lock(1464158558, ready.gate) THEN
          is_cut := true;
          CONTINUE;
        ELSIF gate_now.room > 0 THEN
          IF weir._lock_behind_few(1464158558, ready.gate) THEN
            gates := gates || ready.gate;
          ELSE
            gate_now.room := 0;
            gate_now.next_at := clock_timestamp() + soon;
          END IF;
        END IF;
      END IF;
      IF ready.gate = ANY (gates) THEN
        gate_now := weir._gate_now(ready.name, ready.gate, true);
      END IF;
      IF gate_now.room <= 0 THEN
        IF ready.name <> ALL (withheld) THEN
          withheld := withheld || ready.name;
          again_at := again_at || gate_now.next_at;
        END IF;
        CONTINUE;
      END IF;
      quota := least(quota, gate_now.room);
      before := gate_now.before;
    END IF;
    -- The unique jobs of a queue are judged by one claim at a time. It waits for this lock only while it has no lane's, so that claims can't deadlock.
    queue_hash := CASE WHEN ready.keyed THEN hashtext(ready.name) END;
    IF queue_hash <> ALL (judging) THEN
      IF has_lanes AND NOT pg_try_advisory_xact_lock(1464158556, queue_hash) THEN
        is_cut := true;
        CONTINUE;
      ELSIF NOT has_lanes THEN
        PERFORM pg_advisory_xact_lock(1464158556, queue_hash);
      END IF;
      judging := judging || queue_hash;
    END IF;
    IF ready.ageing IS NOT NULL AND NOT is_ring THEN
      IF (ready.lane >> 39)::integer IS DISTINCT FROM aged_queue THEN
        aged_queue := (ready.lane >> 39)::integer;
        reserved := weir._reserve(aged_queue, quota, ready.ageing);
        has_lanes := has_lanes OR reserved IS NOT NULL;
      END IF;
      IF reserved[(ready.lane & 3)::integer + 2 :] <> array_fill(0, ARRAY[3 - (ready.lane & 3)::integer]) THEN
        shortened := shortened || ready.ord;
        quota := quota - (SELECT sum(r) FROM unnest(reserved[(ready.lane & 3)::integer + 2 :]) r);
        CONTINUE WHEN quota <= 0;
      END IF;
    END IF;
    IF is_ring THEN
      ring := weir._ring_of(ready.name);
    END IF;
    IF NOT is_ring THEN
      PERFORM pg_advisory_xact_lock(1464158546, ((ready.lane >> 39) * 4 + (ready.lane & 3))::integer);
    ELSIF NOT has_lanes THEN
      IF NOT weir._lock_behind_few(1464158559, hashtext(ready.name)) THEN
        IF ready.name <> ALL (withheld) THEN
          withheld := withheld || ready.name;
          again_at := again_at || clock_timestamp() + soon;
        END IF;
        CONTINUE;
      END IF;
    ELSIF NOT pg_try_advisory_xact_lock(1464158559, hashtext(ready.name)) THEN
      is_cut := true;
      CONTINUE;
    END IF;
    has_lanes := true;
    -- The snapshot of this statement, taken after the locks, is that of the batch. Statements below may have a newer one; rows that only the newer one
    -- sees are left alone.
    -- An empty file of cancellations has no row that any snapshot sees, and costs no reading.
    FOR again IN 0..1 LOOP  -- a second time, if jobs at the head of the lane may have been ended
      SELECT b.seq, b.pos_xid, b.pos_id, b.total, b.pending, b.pending_after, pg_current_snapshot() AS snapshot, EXISTS (SELECT FROM weir.keyed k WHERE k.queue = ready.name) AS keyed,
             CASE WHEN pg_relation_size('weir.cancellation_where') > 0 THEN weir._filters_of(ready.name, CASE WHEN NOT is_ring THEN (ready.lane & 3)::integer + 1 END) END AS filters INTO last
      FROM weir.batch b WHERE b.lane = ready.lane ORDER BY b.seq DESC LIMIT 1;
      IF NOT FOUND THEN  -- a join to a row that is always there would take each claim longer
        SELECT 0::bigint AS seq, '0'::xid8 AS pos_xid, 0::bigint AS pos_id, 0::bigint AS total, NULL::xid8[] AS pending, NULL::bigint[] AS pending_after, pg_current_snapshot() AS snapshot,
               EXISTS (SELECT FROM weir.keyed k WHERE k.queue = ready.name) AS keyed, weir._filters_of(ready.name, CASE WHEN NOT is_ring THEN (ready.lane & 3)::integer + 1 END) AS filters INTO last;
      END IF;
      filters := last.filters;
      upto := 0;
      IF filters IS NOT NULL THEN
        upto := (SELECT max(f.upto) FROM unnest(filters) f);
      END IF;
      EXIT WHEN upto = 0 OR is_ring OR again = 1;
      IF weir._skip_ended(_claim.worker, ready.lane, filters, false) THEN
        is_cut := true;
        CONTINUE lanes;
      END IF;
    END LOOP;
    IF last.keyed AND queue_hash IS NULL THEN  -- the queue's first unique jobs have just been committed
      is_cut := true;
      CONTINUE;
    END IF;
    newer := last.snapshot;
    IF record_image_ne(ROW(newer), ROW(snapshot)) THEN  -- with thousands of transactions in progress, each of these takes as long as an idle claim
      snapshot := newer;
      top := pg_snapshot_xmax(snapshot);
      running := CASE WHEN pg_snapshot_xmin(snapshot) < top THEN ARRAY(SELECT pg_snapshot_xip(snapshot)) ELSE '{}' END;
    END IF;
    IF is_ring THEN
      ring_seq := ring.seq;
      ring := weir._ring_of(ready.name);
      -- Claims that waited for each other began because of the same jobs, and the first may have taken them all.
      CONTINUE WHEN ring.seq <> ring_seq AND NOT weir._has_turns(ready.name, snapshot);
      IF pg_snapshot_xmax(ring.arrived) > top THEN
        RAISE EXCEPTION 'weir: the turns of queue % (up to xid %) are ahead of this cluster''s xid counter (%)', ready.name, pg_snapshot_xmax(ring.arrived), top
          USING ERRCODE = 'WR003', HINT = 'The database was restored or moved into another cluster: call weir.rebase().';
      END IF;
      last.seq := greatest(last.seq, ring.seq);
    END IF;
    IF last.pos_xid >= top THEN
      RAISE EXCEPTION 'weir: the position of lane % (xid %) is ahead of this cluster''s xid counter (%)', ready.lane, last.pos_xid, top
        USING ERRCODE = 'WR003', HINT = 'The database was restored or moved into another cluster: call weir.rebase().';
    END IF;
    below := width_bucket(last.pos_xid, running);
    skip := running[below + 1 : below + max_skip];
    ended := NULL;
    IF last.pending <> running[1 : below] THEN
      SELECT array_agg(p.xid ORDER BY p.xid), array_agg(p.after ORDER BY p.xid) INTO ended, afters
      FROM unnest(last.pending, last.pending_after) p(xid, after) WHERE pg_visible_in_snapshot(p.xid, snapshot);
    END IF;

    own := CASE WHEN last.keyed THEN pg_current_xact_id_if_assigned() END;
    batch_no := nextval('weir.batch_no');
    -- It includes the server's timeline, so that no number which a failover has lost is used again.
    this_seq := greatest(last.seq, (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) << 40) + 1;
    IF is_ring THEN
      RETURN QUERY
      WITH picked AS MATERIALIZED (
        SELECT t.* FROM weir._take_turns(ready.name, ring, this_seq, quota, before, snapshot) t
      ), judged AS MATERIALIZED (
        SELECT g.* FROM (SELECT array_agg(p.id) AS ids, array_agg(p.xid) AS xids, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos,
                                array_agg(coalesce(p.unique_until, 'infinity')) AS untils, array_agg(p.enqueued_at) AS times FROM picked p WHERE p.unique_key IS NOT NULL) u
        CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
        WHERE last.keyed AND u.ids IS NOT NULL
      ), aside AS MATERIALIZED (
        SELECT weir._set_aside(_claim.worker, ready.lane, this_seq, a.ids, a.segments, a.fates, a.reasons, a.onces, a.flows)
        FROM (SELECT array_agg(p.id) AS ids, array_agg(p.segment) AS segments, array_agg(g.fate) AS fates, array_agg(g.reason) AS reasons,
                     array_agg(CASE WHEN p.unique_no IS NULL THEN p.unique_key END) AS onces, array_agg(p.flow) AS flows
              FROM judged g JOIN picked p ON p.id = g.id WHERE g.fate <> 'run' OR p.unique_no IS NULL) a
        WHERE last.keyed AND a.ids IS NOT NULL
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids, seen, gate, lanes, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.xids[1], state.xids[cardinality(state.xids)], '0', 0,
               last.total + cardinality(state.xids), now(), batch_no, p.ids,
               CASE WHEN last.keyed AND EXISTS (SELECT FROM judged g WHERE g.fate = 'run') THEN snapshot END, ready.gate, p.lanes, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, array_agg(p.lane) AS lanes, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p,
             (SELECT array_agg(p.xid ORDER BY p.xid) AS xids FROM picked p) state
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (p.lane & 3)::integer + 1, p.key, p.flow
      FROM picked p
      WHERE p.id > upto AND p.unique_key IS NULL
         OR CASE WHEN last.keyed AND p.unique_key IS NOT NULL THEN (SELECT count(*) FROM aside) IS NOT NULL AND p.id IN (SELECT g.id FROM judged g WHERE g.fate = 'run')
                 ELSE p.id > upto OR p.id <> ALL ((
        SELECT weir._drop(_claim.worker, ready.lane, this_seq, filters, array_agg(d.segment), array_agg(d.id), array_agg(d.attempt), array_agg(d.kind), array_agg(d.meta), array_agg(d.enqueued_at), array_agg(d.key), array_agg((d.lane & 3)::integer + 1), array_agg(d.flow))
        FROM picked d WHERE d.unique_key IS NULL)::bigint[]) END;
    ELSIF upto = 0 AND NOT last.keyed THEN  -- nothing to end: the statement below, with less to prepare
      RETURN QUERY
      WITH late AS MATERIALIZED (
        SELECT j.id, j.xid, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.flow, p.ord AS pending_ord
        FROM unnest(ended, afters) WITH ORDINALITY p(xid, after, ord)
        CROSS JOIN LATERAL (
          SELECT j.* FROM weir.job j
          WHERE j.lane = ready.lane AND j.xid = p.xid AND j.id > p.after
          ORDER BY j.xid, j.id LIMIT quota) j
        LIMIT quota
      ), picked AS MATERIALIZED (
        SELECT late.* FROM late
        UNION ALL
        (SELECT j.id, j.xid, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.flow, NULL::bigint FROM generate_series(0, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j.* FROM weir.job j
           WHERE j.lane = ready.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
             AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))  -- more transactions may be in progress than skip lists
           ORDER BY j.xid, j.id LIMIT quota) j
         LIMIT quota)
        LIMIT quota
      ), state AS MATERIALIZED (
        -- picked is sorted: late before fresh, each by (xid, id), and every late xid is below every fresh one.
        SELECT r.xids[1] AS from_xid, r.xids[r.n] AS to_xid, r.n, r.n_late, r.late_ord,
               CASE WHEN r.n > r.n_late THEN r.xids[r.n] ELSE last.pos_xid END AS pos_xid,
               CASE WHEN r.n > r.n_late THEN r.ids[r.n] ELSE last.pos_id END AS pos_id
        FROM (SELECT array_agg(p.xid) AS xids, array_agg(p.id) AS ids, count(*)::integer AS n,
                     count(p.pending_ord)::integer AS n_late, max(p.pending_ord) AS late_ord FROM picked p) r
      ), unread AS MATERIALIZED (
        -- Transactions that have ended but, because late rows filled the batch, are not yet read to their end.
        SELECT array_agg(e.xid) AS xids, array_agg(CASE WHEN e.ord = state.late_ord THEN (SELECT max(l.id) FROM late l WHERE l.pending_ord = e.ord) ELSE e.after END) AS afters
        FROM state, unnest(ended, afters) WITH ORDINALITY e(xid, after, ord) WHERE state.n_late >= quota AND e.ord >= state.late_ord
      ), pending AS MATERIALIZED (
        SELECT CASE WHEN p.n > 0 OR u.xids IS NOT NULL THEN u.xids || running[1 : p.n] END AS xids,
               CASE WHEN p.n > 0 OR u.xids IS NOT NULL THEN u.afters || array_fill(0::bigint, ARRAY[p.n]) END AS afters
        FROM (SELECT width_bucket(state.pos_xid, running) AS n FROM state) p, unread u
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, gate, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.from_xid, state.to_xid, state.pos_xid, state.pos_id,
               last.total + state.n, now(), batch_no, pending.xids, pending.afters, p.ids, ready.gate, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p, state, pending
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (ready.lane & 3)::integer + 1, NULL::text, p.flow
      FROM picked p;
    ELSE
      RETURN QUERY
      WITH late AS MATERIALIZED (
        SELECT j.id, j.xid, j.lane, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, p.ord AS pending_ord
        FROM unnest(ended, afters) WITH ORDINALITY p(xid, after, ord)
        CROSS JOIN LATERAL (
          SELECT j.* FROM weir.job j
          WHERE j.lane = ready.lane AND j.xid = p.xid AND j.id > p.after
          ORDER BY j.xid, j.id LIMIT quota) j
        LIMIT quota
      ), picked AS MATERIALIZED (
        SELECT late.* FROM late
        UNION ALL
        (SELECT j.id, j.xid, j.lane, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.segment, j.kind, j.args, j.meta, j.ready_at, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, NULL::bigint FROM generate_series(0, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j.* FROM weir.job j
           WHERE j.lane = ready.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
             AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))  -- more transactions may be in progress than skip lists
           ORDER BY j.xid, j.id LIMIT quota) j
         LIMIT quota)
        LIMIT quota
      ), state AS MATERIALIZED (
        -- picked is sorted: late before fresh, each by (xid, id), and every late xid is below every fresh one.
        SELECT r.xids[1] AS from_xid, r.xids[r.n] AS to_xid, r.n, r.n_late, r.late_ord,
               CASE WHEN r.n > r.n_late THEN r.xids[r.n] ELSE last.pos_xid END AS pos_xid,
               CASE WHEN r.n > r.n_late THEN r.ids[r.n] ELSE last.pos_id END AS pos_id
        FROM (SELECT array_agg(p.xid) AS xids, array_agg(p.id) AS ids, count(*)::integer AS n,
                     count(p.pending_ord)::integer AS n_late, max(p.pending_ord) AS late_ord FROM picked p) r
      ), unread AS MATERIALIZED (
        -- Transactions that have ended but, because late rows filled the batch, are not yet read to their end.
        SELECT array_agg(e.xid) AS xids, array_agg(CASE WHEN e.ord = state.late_ord THEN (SELECT max(l.id) FROM late l WHERE l.pending_ord = e.ord) ELSE e.after END) AS afters
        FROM state, unnest(ended, afters) WITH ORDINALITY e(xid, after, ord) WHERE state.n_late >= quota AND e.ord >= state.late_ord
      ), judged AS MATERIALIZED (
        SELECT g.* FROM (SELECT array_agg(p.id) AS ids, array_agg(p.xid) AS xids, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos,
                                array_agg(coalesce(p.unique_until, 'infinity')) AS untils, array_agg(p.enqueued_at) AS times FROM picked p WHERE p.unique_key IS NOT NULL) u
        CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
        WHERE last.keyed AND u.ids IS NOT NULL
      ), pending AS MATERIALIZED (
        -- If this transaction began before those whose jobs it has picked, the jobs that it logs again lie before the position.
        SELECT CASE WHEN p.n > 0 OR u.xids IS NOT NULL OR p.own IS NOT NULL THEN u.xids || running[1 : p.n] || p.own END AS xids,
               CASE WHEN p.n > 0 OR u.xids IS NOT NULL OR p.own IS NOT NULL THEN u.afters || array_fill(0::bigint, ARRAY[p.n + coalesce(cardinality(p.own), 0)]) END AS afters
        FROM (SELECT width_bucket(state.pos_xid, running) AS n,
                     CASE WHEN own <= state.pos_xid AND EXISTS (SELECT FROM judged g WHERE g.fate = 'again') THEN ARRAY[own] END AS own FROM state) p, unread u
      ), aside AS MATERIALIZED (
        SELECT weir._set_aside(_claim.worker, ready.lane, this_seq, a.ids, a.segments, a.fates, a.reasons, a.onces, a.flows)
        FROM (SELECT array_agg(p.id) AS ids, array_agg(p.segment) AS segments, array_agg(g.fate) AS fates, array_agg(g.reason) AS reasons,
                     array_agg(CASE WHEN p.unique_no IS NULL THEN p.unique_key END) AS onces, array_agg(p.flow) AS flows
              FROM judged g JOIN picked p ON p.id = g.id WHERE g.fate <> 'run' OR p.unique_no IS NULL) a
        WHERE last.keyed AND a.ids IS NOT NULL
      ), made AS (
        INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids, seen, gate, flows)
        SELECT ready.lane, p.segment, p.segment, _claim.worker, this_seq, state.from_xid, state.to_xid, state.pos_xid, state.pos_id,
               last.total + state.n, now(), batch_no, pending.xids, pending.afters, p.ids,
               CASE WHEN last.keyed AND EXISTS (SELECT FROM judged g WHERE g.fate = 'run') THEN snapshot END, ready.gate, p.flows
        FROM (SELECT p.segment, array_agg(p.id) AS ids, CASE WHEN max(p.flow) IS NOT NULL THEN CASE WHEN min(p.flow) = max(p.flow) AND count(p.flow) = cardinality(array_agg(p.id)) THEN ARRAY[max(p.flow)] ELSE weir._flows_in(p.segment, array_agg(p.id)) END END AS flows FROM picked p GROUP BY p.segment) p, state, pending
      )
      SELECT ready.name, ready.lane, this_seq, p.id, p.attempt, p.max_attempts, p.kind, p.args, p.meta, p.enqueued_at,
             -- Usually nothing is cancelled: this is checked once, not row by row.
             CASE WHEN EXISTS (SELECT FROM weir.cancellation) AND EXISTS (SELECT FROM weir.cancellation c WHERE c.id = p.id) THEN '' END, p.put_off, p.ready_at,
             (p.lane & 3)::integer + 1, p.key, p.flow
      FROM picked p
      WHERE p.id > upto AND p.unique_key IS NULL
         OR CASE WHEN last.keyed AND p.unique_key IS NOT NULL THEN (SELECT count(*) FROM aside) IS NOT NULL AND p.id IN (SELECT g.id FROM judged g WHERE g.fate = 'run')
                 ELSE p.id > upto OR p.id <> ALL ((
        SELECT weir._drop(_claim.worker, ready.lane, this_seq, filters, array_agg(d.segment), array_agg(d.id), array_agg(d.attempt), array_agg(d.kind), array_agg(d.meta), array_agg(d.enqueued_at), array_agg(d.key), array_agg((d.lane & 3)::integer + 1), array_agg(d.flow))
        FROM picked d WHERE d.unique_key IS NULL)::bigint[]) END;
    END IF;

    GET DIAGNOSTICS taken = ROW_COUNT;
    limits[ready.ord] := limits[ready.ord] - taken;
    unshared := unshared - taken;
    IF ready.gate IS NOT NULL AND taken > 0 THEN
      INSERT INTO weir.gate (gate, seq, running, folded, next_start, before)
      SELECT ready.gate, gate_now.seq + 1, gate_now.counted + taken, gate_now.folded,
             CASE WHEN l.rate IS NOT NULL THEN weir._started(l.rate / extract(epoch FROM l.per), l.burst, gate_now.next_start, gate_now.at, taken) END, gate_now.before
      FROM weir.queue_limit l WHERE l.name = ready.name;
      IF taken = gate_now.room THEN  -- there may be more jobs
        gate_now := weir._gate_now(ready.name, ready.gate, false);
        withheld := withheld || ready.name;
        again_at := again_at || gate_now.next_at;
      END IF;
      -- If the claim were lost in a crash, its jobs might run without being counted.
      PERFORM set_config('synchronous_commit', CASE commits WHEN 'off' THEN 'on' ELSE commits END, true);
    END IF;
    IF is_ring AND (upto > 0 OR last.keyed) THEN
      is_cut := weir._pass_ended(_claim.worker, ready.name, ready.lane, this_seq, filters, last.keyed) OR is_cut;
    END IF;
    IF taken >= quota THEN
      NULL;
    ELSIF is_ring AND taken > 0 THEN  -- some keys had fewer jobs than their part; what came since can wait for the next claim
      ring := weir._ring_of(ready.name);
      is_cut := is_cut OR ring.newcomers <> '{}' OR ring.stopped_after IS NOT NULL OR weir._has_waiting(ARRAY(SELECT q.id::bigint FROM weir.queue q WHERE q.name = ready.name), ring.tag);
    ELSIF is_ring THEN  -- it has ended some
      is_cut := is_cut OR weir._has_turns(ready.name, pg_current_snapshot());
    ELSIF upto > 0 OR last.keyed THEN
      IF (SELECT b.total FROM weir.batch b WHERE b.lane = ready.lane ORDER BY b.seq DESC LIMIT 1) > last.total + taken THEN
        is_cut := true;  -- it has ended some, so others may wait behind them
        PERFORM weir._skip_ended(_claim.worker, ready.lane, filters, true) WHERE last.keyed;
      END IF;
    END IF;
  END LOOP;
  IF has_keys THEN
    has_limits := EXISTS (SELECT FROM unnest(_claim.queues) u(name) JOIN weir.queue_limit l ON l.name = u.name WHERE l.key_running IS NOT NULL OR l.key_rate IS NOT NULL);
  END IF;
  IF has_limits THEN
    -- Keys that a limit has stopped for a time: when the first of them may have another turn.
    FOR ready IN
      SELECT l.name, a.again_at FROM unnest(_claim.queues, limits) u(name, quota) JOIN weir.queue_limit l ON l.name = u.name
      CROSS JOIN LATERAL (SELECT r.due FROM weir._ring_of(l.name) r OFFSET 0) d
      CROSS JOIN LATERAL (
        SELECT t.again_at FROM weir.queue q
        CROSS JOIN LATERAL (SELECT t.lane, t.seq, t.again_at FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at >= d.due ORDER BY t.again_at OFFSET 0) t
        WHERE q.name = l.name AND NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq)
        LIMIT 1) a
      WHERE u.quota > 0 AND u.name <> ALL (withheld)
    LOOP
      withheld := withheld || ready.name;
      again_at := again_at || ready.again_at;
    END LOOP;
  END IF;
  FOR i IN 1..cardinality(withheld) LOOP
    queue := withheld[i];
    enqueued_at := clock_timestamp();
    ready_at := again_at[i];
    RETURN NEXT;
  END LOOP;
  IF shortened <> '{}' THEN
    is_cut := is_cut OR EXISTS (SELECT FROM unnest(shortened) o WHERE limits[o] > 0);
  END IF;
  IF visited = max_lanes OR is_cut THEN
    queue := NULL;
    enqueued_at := NULL;
    ready_at := NULL;
    RETURN NEXT;  -- without values: there may be more
  END IF;
END
$$;
CREATE FUNCTION weir._clock_change(low timestamp with time zone, high timestamp with time zone, time_zone text) RETURNS timestamp with time zone LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  new_offset CONSTANT interval := weir._offset_at(high, time_zone);
  before  timestamptz := date_trunc('second', low);
  changed timestamptz := high;
  middle  timestamptz;
BEGIN
  WHILE changed - before > interval '1 second' LOOP
    middle := date_trunc('second', before + (changed - before) / 2);
    IF weir._offset_at(middle, time_zone) = new_offset THEN
      changed := middle;
    ELSE
      before := middle;
    END IF;
  END LOOP;
  RETURN changed;
END
$$;
CREATE FUNCTION weir._commit_synchronously() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END
$$;
CREATE FUNCTION weir._compact_flows() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 4194304;
  active    integer := pg_sequence_last_value('weir.active_arrival');
  ring      integer;
  kept      interval;
  did       text;
BEGIN
  IF pg_relation_size('weir.arrival_' || active) > max_bytes AND pg_relation_size('weir.arrival_' || active % 3 + 1) = 0 THEN
    PERFORM setval('weir.active_arrival', active % 3 + 1);
    RETURN 'opened arrival ' || active % 3 + 1;
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 3) r WHERE r <> active AND pg_relation_size('weir.arrival_' || r) > 0 LOOP
    CONTINUE WHEN weir._is_held(ARRAY['weir.arrival_' || ring]::regclass[]);  -- an open transaction has arrivals there: the others rotate meanwhile
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 7);
      EXECUTE format('LOCK TABLE weir.arrival_%s IN ACCESS EXCLUSIVE MODE NOWAIT', ring);
      -- Nearly all are counted.
      EXECUTE format('INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, waits, broken, counts)
                      SELECT a.flow, $1, a.xid, a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts
                      FROM weir.arrival_%s a CROSS JOIN (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c
                      WHERE NOT pg_visible_in_snapshot(a.xid, c.snapshot)', ring) USING active;
      EXECUTE format('TRUNCATE weir.arrival_%s', ring);
      RETURN 'emptied arrival ' || ring;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  did := coalesce(weir._turn_ring('seen', 'key, job, flow', 20000), weir._turn_ring('output', 'no, flow, job, task, kind, output', 1000));
  IF did IS NOT NULL THEN
    RETURN did;
  END IF;
  IF pg_relation_size('weir.flow_cut') > max_bytes THEN
    PERFORM pg_advisory_xact_lock(1464158547, 7);
    LOCK TABLE weir.flow_cut IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT c.* FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1;
    TRUNCATE weir.flow_cut;
    INSERT INTO weir.flow_cut SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted cuts of flows';
  ELSIF pg_relation_size('weir.fold') + pg_relation_size('weir.flow') > greatest(max_bytes, 2 * pg_sequence_last_value('weir.flow_bytes')) THEN
    PERFORM pg_advisory_xact_lock(1464158547, 7);
    LOCK TABLE weir.flow, weir.edge, weir.fold IN ACCESS EXCLUSIVE MODE NOWAIT;
    kept := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
    -- What is within a flow is kept as long as that.
    CREATE TEMP TABLE weir_last ON COMMIT DROP AS SELECT DISTINCT ON (p.flow) p.* FROM weir.fold p ORDER BY p.flow, p.cut DESC;
    CREATE TEMP TABLE weir_keep_root ON COMMIT DROP AS
      SELECT f.id FROM weir.flow f LEFT JOIN pg_temp.weir_last r ON r.flow = f.id
      WHERE f.parent IS NULL AND (r.flow IS NULL OR r.fired_at IS NULL OR r.fired_at > clock_timestamp() - kept)
      UNION  -- or a member was retried, which is not counted yet
      SELECT d.root FROM weir.arrival a CROSS JOIN (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c JOIN weir.flow d ON d.id = a.flow
      WHERE a.xid >= pg_snapshot_xmin(c.snapshot) AND NOT pg_visible_in_snapshot(a.xid, c.snapshot);
    -- Joined: where a list of flows is longer than work_mem, IN would go through it for each of them.
    CREATE TEMP TABLE weir_keep_flow ON COMMIT DROP AS SELECT f.* FROM weir.flow f JOIN pg_temp.weir_keep_root k ON k.id = f.root;
    CREATE TEMP TABLE weir_keep_edge ON COMMIT DROP AS SELECT e.* FROM weir.edge e JOIN pg_temp.weir_keep_flow f ON f.id = e.flow;
    TRUNCATE weir.flow, weir.edge, weir.fold;
    INSERT INTO weir.flow SELECT k.* FROM pg_temp.weir_keep_flow k;
    INSERT INTO weir.edge SELECT k.* FROM pg_temp.weir_keep_edge k;
    INSERT INTO weir.fold SELECT k.* FROM pg_temp.weir_last k JOIN pg_temp.weir_keep_flow f ON f.id = k.flow;
    PERFORM setval('weir.flow_bytes', pg_relation_size('weir.fold') + pg_relation_size('weir.flow'));
    RETURN 'compacted flows';
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._compact_gates() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 4194304;
  active    integer := pg_sequence_last_value('weir.active_release');
  ring      integer;
BEGIN
  IF pg_relation_size('weir.release_' || active) > max_bytes AND pg_relation_size('weir.release_' || active % 3 + 1) = 0 THEN
    PERFORM setval('weir.active_release', active % 3 + 1);
    RETURN 'opened release ' || active % 3 + 1;
  ELSIF pg_relation_size('weir.gate') > max_bytes THEN
    -- Without claims, nobody reads these tables with an older snapshot.
    PERFORM pg_advisory_xact_lock(1464158547, 0);
    LOCK TABLE weir.gate IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
      SELECT k.* FROM weir.queue_limit l
      CROSS JOIN LATERAL (SELECT g.* FROM weir.gate g WHERE g.gate = l.gate ORDER BY g.seq DESC LIMIT 1) n
      CROSS JOIN LATERAL (SELECT g.* FROM weir.gate g WHERE g.gate = n.gate AND g.seq IN (n.seq, n.before)) k;
    TRUNCATE weir.gate;
    INSERT INTO weir.gate SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted gate';
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 3) r WHERE r <> active AND pg_relation_size('weir.release_' || r) > 0 LOOP
    CONTINUE WHEN weir._is_held(ARRAY['weir.release_' || ring]::regclass[]);  -- an open transaction has ended attempts there: the others rotate meanwhile
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      EXECUTE format('LOCK TABLE weir.release_%s IN ACCESS EXCLUSIVE MODE NOWAIT', ring);
      -- Nearly all releases are counted in the newest rows of their gates.
      EXECUTE format('INSERT INTO weir.release (gate, ring, xid, n, lanes) SELECT r.gate, $1, r.xid, r.n, r.lanes FROM weir.release_%s r JOIN weir.queue_limit l ON l.gate = r.gate
                      WHERE NOT EXISTS (SELECT FROM (SELECT g.folded FROM weir.gate g WHERE g.gate = r.gate ORDER BY g.seq DESC LIMIT 1) n
                                        WHERE pg_visible_in_snapshot(r.xid, n.folded))
                         OR r.lanes IS NOT NULL AND NOT pg_visible_in_snapshot(r.xid, (weir._ring_of(l.name)).arrived)', ring) USING active;
      EXECUTE format('TRUNCATE weir.release_%s', ring);
      RETURN 'emptied release ' || ring;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._compact_operations() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF pg_table_size('weir.operation') + pg_table_size('weir.operation_step') <= greatest(1048576, 2 * pg_sequence_last_value('weir.operation_bytes')) THEN
    RETURN NULL;
  END IF;
  LOCK TABLE weir.operation, weir.operation_step, weir.operation_mark IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep_step ON COMMIT DROP AS SELECT DISTINCT ON (s.operation) s.* FROM weir.operation_step s ORDER BY s.operation, s.no DESC;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT o.* FROM (SELECT o.*, row_number() OVER (ORDER BY o.id DESC) AS nr FROM weir.operation o) o JOIN pg_temp.weir_keep_step s ON s.operation = o.id
    WHERE s.state = 'running' OR o.nr <= 1000 AND o.at > clock_timestamp() - interval '30 days';
  CREATE TEMP TABLE weir_keep_mark ON COMMIT DROP AS SELECT m.* FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  TRUNCATE weir.operation, weir.operation_step, weir.operation_mark;
  INSERT INTO weir.operation_mark (no, upto) SELECT m.no, m.upto FROM pg_temp.weir_keep_mark m;
  INSERT INTO weir.operation (id, at, by, what, filter, to_queue, to_priority) SELECT k.id, k.at, k.by, k.what, k.filter, k.to_queue, k.to_priority FROM pg_temp.weir_keep k;
  INSERT INTO weir.operation_step SELECT s.* FROM pg_temp.weir_keep_step s JOIN pg_temp.weir_keep k ON k.id = s.operation;
  PERFORM setval('weir.operation_bytes', pg_table_size('weir.operation') + pg_table_size('weir.operation_step'));
  RETURN 'compacted operations';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._compact_relays() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF pg_table_size('weir.relay') <= greatest(1048576, 2 * pg_sequence_last_value('weir.relay_bytes')) THEN
    RETURN NULL;
  END IF;
  LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r ORDER BY r.relay, r.no DESC;
  TRUNCATE weir.relay;
  INSERT INTO weir.relay SELECT k.* FROM pg_temp.weir_keep k;
  PERFORM setval('weir.relay_bytes', pg_table_size('weir.relay'));
  RETURN 'compacted relays';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._compact_rings() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
BEGIN
  IF pg_table_size('weir.ring') <= greatest(4194304, 4000 * (SELECT count(*) FROM weir.with_keys)) THEN
    RETURN NULL;
  END IF;
  -- Without claims, nobody reads it with an older snapshot, except those who have locked it.
  PERFORM pg_advisory_xact_lock(1464158547, 0);
  LOCK TABLE weir.ring IN ACCESS EXCLUSIVE MODE NOWAIT;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT n.* FROM (SELECT DISTINCT w.queue FROM weir.with_keys w) q
    CROSS JOIN LATERAL (SELECT r.* FROM weir.ring r WHERE r.queue = q.queue ORDER BY r.seq DESC LIMIT 1) n;
  TRUNCATE weir.ring;
  INSERT INTO weir.ring SELECT k.* FROM pg_temp.weir_keep k;
  RETURN 'compacted ring';
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._complete(worker integer, lane bigint, seq bigint, id bigint, output text DEFAULT NULL::text, counts jsonb DEFAULT NULL::jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
DECLARE
  held record := weir._hold_attempt('complete', _complete.worker, _complete.lane, _complete.seq, _complete.id);
BEGIN
  IF length(_complete.output) > 1048576 THEN
    RAISE EXCEPTION 'weir: output too large: % characters, at most 1048576 are allowed', length(_complete.output) USING ERRCODE = '22023';
  END IF;
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, outputs)
  VALUES (_complete.lane, held.in_segment, _complete.worker, _complete.seq, clock_timestamp(), 'completed', ARRAY[_complete.id], CASE WHEN _complete.output IS NOT NULL THEN ARRAY[_complete.output] END);
  IF held.in_gate IS NOT NULL THEN
    PERFORM weir._free_slots(ARRAY[held.in_gate], ARRAY[1], ARRAY[held.in_lane]);
  END IF;
  IF held.in_flow IS NOT NULL THEN
    IF _complete.counts IS NOT NULL THEN
      PERFORM weir._check_counts(held.in_flow, _complete.counts);
    END IF;
    PERFORM weir._arrive(held.in_flow, 'completed', 1, counts => _complete.counts);
    IF _complete.output IS NOT NULL THEN
      PERFORM weir._keep_outputs(ARRAY[_complete.lane], ARRAY[_complete.seq], ARRAY[_complete.id], ARRAY[_complete.output]);
    END IF;
  ELSIF _complete.counts IS NOT NULL THEN
    RAISE EXCEPTION 'weir: counters belong to a flow, and job % is a member of none', _complete.id USING ERRCODE = '22023', HINT = 'Pass no counts.';
  END IF;
END
$$;
CREATE FUNCTION weir._conditions(filter jsonb, OUT queue text, OUT kinds text[], OUT meta jsonb, OUT priority integer, OUT enqueued_after timestamp with time zone, OUT enqueued_before timestamp with time zone, OUT key text, OUT error text, OUT shape text, OUT finished_after timestamp with time zone, OUT finished_before timestamp with time zone, OUT states text[]) RETURNS record LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT r.* FROM jsonb_to_record(_conditions.filter) r(
    queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamptz, enqueued_before timestamptz, key text,
    error text, shape text, finished_after timestamptz, finished_before timestamptz, states text[])
$$;
CREATE FUNCTION weir._copies_of(job_ids bigint[]) RETURNS weir.failure[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  copies weir.failure[];
BEGIN
  PERFORM weir._lock_log();
  copies := ARRAY(
    SELECT f::weir.failure
    FROM unnest(_copies_of.job_ids) i(id)
    CROSS JOIN LATERAL (SELECT k.* FROM weir.failure k WHERE k.id = i.id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1) f
    WHERE f.finished_at IS NOT NULL AND f.unique_key IS NULL AND f.flow IS NULL
      AND NOT EXISTS (SELECT FROM weir.job j WHERE j.id = i.id AND j.attempt > f.attempt));
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN copies;
END
$$;
CREATE FUNCTION weir._count_minutes(at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  most        CONSTANT integer := 20000;  -- results read in one call
  max_sample  CONSTANT integer := 500;    -- of these, looked at for waits and runs
  max_queues  CONSTANT integer := 100;    -- with rows of their own, in a minute
  zero        CONSTANT timestamptz := '1970-01-01 00:00:00+00';
  this_minute timestamptz := date_bin('1 minute', coalesce(_count_minutes.at, clock_timestamp()), zero);
  target      timestamptz := this_minute - interval '1 minute';
  number      bigint := extract(epoch FROM this_minute)::bigint / 60;
  next_ring   integer := (weir._minute_ring(this_minute) + 1) % 4;
  since       timestamptz;
  counted     record;
  depth       record;
BEGIN
  PERFORM weir._check_isolation('count_minutes'), weir._hold_briefly();
  IF pg_sequence_last_value('weir.counted_minute') = number OR NOT pg_try_advisory_xact_lock(1464158547, 8) THEN
    RETURN NULL;
  ELSIF pg_sequence_last_value('weir.counted_minute') = number THEN  -- somebody else has just done it
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();
  PERFORM set_config('synchronous_commit', 'off', true);
  IF pg_relation_size('weir.minute_' || next_ring) > 0 THEN
    BEGIN
      EXECUTE format('LOCK TABLE weir.minute_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
      EXECUTE format('TRUNCATE weir.minute_%s', next_ring);
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- it is being read: its turn comes in hours
    END;
  END IF;

  -- Rows of the future are from before the clock was set back. What ended longer ago than an hour, while nobody did the chores, is left out.
  SELECT max(m.upto) INTO since FROM weir.minute m
  WHERE m.queue = '' AND m.at = (SELECT l.at FROM weir.minute l WHERE l.queue = '' AND l.at < target AND l.upto IS NOT NULL ORDER BY l.at DESC LIMIT 1);
  since := greatest(since, target - interval '1 hour');
  WITH ends AS MATERIALIZED (
    SELECT e.* FROM weir._ends_between(since, target, most) e
  ), stop AS MATERIALIZED (  -- if there is more, the call goes as far as it has read
    SELECT count(*) AS n, CASE WHEN count(*) < most THEN target ELSE greatest(max(e.finished_at), since + interval '1 microsecond') END AS upto FROM ends e
  ), ended AS MATERIALIZED (
    SELECT e.*, date_bin('1 minute', e.finished_at, zero) AS minute, (e.lane >> 39)::integer AS queue_id
    FROM ends e CROSS JOIN stop s WHERE e.finished_at < s.upto
  ), sums AS MATERIALIZED (
    SELECT e.minute, coalesce(q.name, '') AS queue, sum(e.n) AS n, sum(e.n) FILTER (WHERE e.outcome = 'completed') AS completed, sum(e.n) FILTER (WHERE e.outcome = 'failed') AS failed,
           sum(e.n) FILTER (WHERE e.outcome = 'cancelled') AS cancelled, sum(e.n) FILTER (WHERE e.outcome IN ('retried', 'lost')) AS retried,
           sum(e.n) FILTER (WHERE e.outcome IN ('snoozed', 'released')) AS other
    FROM ended e JOIN weir.queue q ON q.id = e.queue_id GROUP BY GROUPING SETS ((e.minute, q.name), (e.minute))
  ), chosen AS MATERIALIZED (
    SELECT s.* FROM (SELECT s.*, row_number() OVER (PARTITION BY s.minute ORDER BY s.queue <> '', s.n DESC, s.queue) AS place FROM sums s) s WHERE s.place <= max_queues + 1
  ), sample AS MATERIALIZED (  -- as many of each queue as possible; a result stands for its jobs, which were claimed and have ended together
    SELECT k.minute, k.queue_id, k.n, k.total, k.finished_at - b.claimed_at AS run, b.claimed_at - j.ready_at AS wait
    FROM (SELECT e.*, sum(e.n) OVER (PARTITION BY e.minute, e.queue_id) AS total, row_number() OVER (PARTITION BY e.minute, e.queue_id ORDER BY random()) AS place
          FROM ended e WHERE e.outcome IN ('completed', 'failed', 'retried') ORDER BY place LIMIT max_sample) k
    CROSS JOIN LATERAL (SELECT b.claimed_at, b.from_xid, b.to_xid, b.lanes FROM weir.batch b
                        WHERE b.segment = k.segment AND b.lane = k.lane AND b.seq = k.seq AND k.id = ANY (b.ids) LIMIT 1) b
    LEFT JOIN LATERAL (SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at FROM weir.job j
                       WHERE j.segment = k.segment AND j.id = k.id AND (j.lane = k.lane OR b.lanes IS NOT NULL)  -- so worded to be read by id
                         AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
                       ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j ON true
  ), marks AS (  -- the sample of a queue stands for all its attempts
    SELECT s.minute, s.queue_id, m.what, weir._bucket(m.took) AS bucket, s.n, s.n::float8 * s.total::float8 / (sum(s.n) OVER (PARTITION BY s.minute, s.queue_id, m.what))::float8 AS about
    FROM sample s CROSS JOIN LATERAL (VALUES ('wait', s.wait), ('run', s.run)) m(what, took) WHERE m.took IS NOT NULL
  ), buckets AS (
    SELECT k.minute, coalesce(q.name, '') AS queue, k.what, k.bucket, sum(k.n) AS n, greatest(round(sum(k.about)), 1)::integer AS about
    FROM marks k JOIN weir.queue q ON q.id = k.queue_id GROUP BY GROUPING SETS ((k.minute, q.name, k.what, k.bucket), (k.minute, k.what, k.bucket))
  ), spread AS MATERIALIZED (
    SELECT b.minute, b.queue, sum(b.n) FILTER (WHERE b.what = 'run') AS sampled,
           sum(b.about * ('1e' || 12 * b.bucket)::numeric) FILTER (WHERE b.what = 'wait') AS waits,
           sum(b.about * ('1e' || 12 * b.bucket)::numeric) FILTER (WHERE b.what = 'run') AS runs
    FROM buckets b GROUP BY b.minute, b.queue
  ), written AS (
    INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, cancelled, retried, other, sampled, waits, runs)
    SELECT c.minute, weir._minute_ring(c.minute), c.queue, s.upto, c.completed, c.failed, c.cancelled, c.retried, c.other, p.sampled, p.waits, p.runs
    FROM chosen c CROSS JOIN stop s LEFT JOIN spread p ON p.minute = c.minute AND p.queue = c.queue
    RETURNING queue
  )
  SELECT s.n, s.upto, (SELECT count(*) FROM written) AS rows INTO counted FROM stop s;
  IF counted.n = most THEN
    RETURN 'counted minutes up to ' || counted.upto;  -- the next call goes on
  END IF;

  BEGIN
    PERFORM weir._lock_log();
    SELECT array_agg(d.queue) AS queues, array_agg(d.waiting) AS waiting, array_agg(d.ready_at) AS ready_at INTO depth FROM weir._waiting_by_queue() d;
    RAISE SQLSTATE 'WR099';  -- releases the tables
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  INSERT INTO weir.minute (at, ring, queue, waiting, oldest)
  SELECT target, weir._minute_ring(target), d.queue, d.waiting, greatest(clock_timestamp() - d.ready_at, interval '0')
  FROM (SELECT coalesce(u.queue, '') AS queue, sum(u.waiting) AS waiting, min(u.ready_at) AS ready_at
        FROM unnest(depth.queues, depth.waiting, depth.ready_at) u(queue, waiting, ready_at) GROUP BY GROUPING SETS ((u.queue), ()) HAVING sum(u.waiting) > 0) d
  ORDER BY d.queue <> '', d.waiting DESC, d.queue LIMIT max_queues + 1;
  PERFORM setval('weir.counted_minute', number);  -- last, because it does not roll back
  RETURN CASE WHEN counted.rows > 0 THEN 'counted minutes up to ' || counted.upto END;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- a segment is being emptied: try again later
END
$$;
CREATE FUNCTION weir._covered_cancellations(others bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT ARRAY(
    SELECT d.no FROM weir.cancellation_where d WHERE d.no IN (
      SELECT k.no FROM (
        SELECT c.no, c.upto, max(c.upto) FILTER (WHERE c.no <> ALL (_covered_cancellations.others))
                               OVER (PARTITION BY c.queue, c.kinds, c.meta, c.priority, c.enqueued_after, c.enqueued_before, c.key, c.flow, c.is_late ORDER BY c.no
                                     ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS covered
        FROM weir.cancellation_where c) k
      WHERE k.covered >= k.upto)
    -- Of wider filters, only the newest are compared with all others.
    OR EXISTS (SELECT FROM (SELECT n.* FROM weir.cancellation_where n WHERE n.no <> ALL (_covered_cancellations.others) ORDER BY n.no DESC LIMIT 10 OFFSET 0) n
               WHERE n.no > d.no AND weir._covers(n::weir.cancellation_where, d)))
$$;
CREATE FUNCTION weir._covers(later weir.cancellation_where, earlier weir.cancellation_where) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce(later.is_late IS NOT TRUE AND later.upto >= earlier.upto AND (later.queue IS NULL OR later.queue = earlier.queue) AND (later.kinds IS NULL OR earlier.kinds <@ later.kinds)
    AND (later.meta IS NULL OR earlier.meta @> later.meta) AND (later.priority IS NULL OR later.priority = earlier.priority) AND (later.key IS NULL OR later.key = earlier.key) AND (later.flow IS NULL OR later.flow = earlier.flow)
    AND (later.enqueued_after IS NULL OR earlier.enqueued_after >= later.enqueued_after)
    AND (later.enqueued_before IS NULL OR earlier.enqueued_before <= later.enqueued_before), false)
$$;
CREATE FUNCTION weir._cron_after(fields text[], after timestamp without time zone) RETURNS timestamp without time zone LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  max_days CONSTANT integer := 366 * 60;  -- 29 February is a Sunday at least every 40 years
  start    timestamp := date_trunc('second', after) + interval '1 second';
  day      date := start::date;
  last_day date := day + max_days;
  hour     integer := extract(hour FROM start);
  minute   integer := extract(minute FROM start);
  second   integer := extract(second FROM start);
  month    integer;
  n        integer;
  is_day     boolean;
  is_weekday boolean;
  is_first   boolean := true;  -- the day on which times up to after are over
BEGIN
  WHILE day <= last_day LOOP
    month := extract(month FROM day);
    IF substr(fields[5], month, 1) = '0' THEN
      n := strpos(substr(fields[5], month + 1), '1');
      IF n = 0 THEN
        n := 12 - month + strpos(fields[5], '1');
      END IF;
      day := date_trunc('month', day::timestamp) + make_interval(months => n);
      is_first := false;
      CONTINUE;
    END IF;
    is_day := substr(fields[4], extract(day FROM day)::integer, 1) = '1';
    is_weekday := substr(fields[6], extract(dow FROM day)::integer + 1, 1) = '1';
    IF is_day AND is_weekday OR fields[7] = 'or' AND (is_day OR is_weekday) THEN
      IF NOT is_first THEN
        RETURN day + make_time(strpos(fields[3], '1') - 1, strpos(fields[2], '1') - 1, strpos(fields[1], '1') - 1);
      END IF;
      IF substr(fields[3], hour + 1, 1) = '1' THEN
        IF substr(fields[2], minute + 1, 1) = '1' THEN
          n := strpos(substr(fields[1], second + 1), '1');
          IF n > 0 THEN
            RETURN day + make_time(hour, minute, second + n - 1);
          END IF;
        END IF;
        n := strpos(substr(fields[2], minute + 2), '1');
        IF n > 0 THEN
          RETURN day + make_time(hour, minute + n, strpos(fields[1], '1') - 1);
        END IF;
      END IF;
      n := strpos(substr(fields[3], hour + 2), '1');
      IF n > 0 THEN
        RETURN day + make_time(hour + n, strpos(fields[2], '1') - 1, strpos(fields[1], '1') - 1);
      END IF;
    END IF;
    day := day + 1;
    is_first := false;
  END LOOP;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._cron_field(field text, given text, low integer, high integer, names text) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  bits   text := repeat('0', high - low + 1);
  item   text;
  part   text[];
  ends   text[];
  first  integer;
  last   integer;
  step   integer;
BEGIN
  FOREACH item IN ARRAY string_to_array(given, ',') LOOP
    part := regexp_match(item, '^([*]|[a-z]{3}|[0-9]{1,4})(?:-([a-z]{3}|[0-9]{1,4}))?(?:/([0-9]{1,6}))?$');
    IF part IS NULL OR part[1] = '*' AND part[2] IS NOT NULL THEN
      RAISE EXCEPTION 'weir: % is not a % of a schedule', quote_literal(left(item, 100)), field USING ERRCODE = '22023',
        HINT = format('Each field is *, a value, a range like %s-%s, a step like */2, or a list of these, separated by commas.', low, low + 2);
    END IF;
    step := part[3]::integer;
    IF step NOT BETWEEN 1 AND high THEN
      RAISE EXCEPTION 'weir: the step % of % is not in 1-%', step, field, high USING ERRCODE = '22023',
        HINT = 'A step counts within its field, and starts over with the next hour, day or month. For an interval of any length: every 90 minutes.';
    END IF;
    IF part[1] = '*' THEN
      first := low;
      last := high;
    ELSE
      ends := part[1:2];
      FOR i IN 1..2 LOOP
        IF ends[i] ~ '[a-z]' THEN
          IF strpos(names, ends[i]) = 0 OR strpos(names, ends[i]) % 4 <> 1 THEN
            RAISE EXCEPTION 'weir: % is not a %', ends[i], field USING ERRCODE = '22023',
              HINT = CASE WHEN names = '' THEN 'Only months and weekdays have names.' ELSE 'The names are ' || trim(names) || '.' END;
          END IF;
          ends[i] := low + strpos(names, ends[i]) / 4;
        ELSIF ends[i]::integer NOT BETWEEN low AND high THEN
          RAISE EXCEPTION 'weir: % % is not in %-%', field, ends[i], low, high USING ERRCODE = '22023';
        END IF;
      END LOOP;
      first := ends[1]::integer;
      last := coalesce(ends[2]::integer, CASE WHEN step IS NULL THEN first ELSE high END);
      IF field = 'weekday' AND last = 0 AND first > 0 THEN
        last := 7;  -- fri-sun
      ELSIF first > last THEN
        RAISE EXCEPTION 'weir: the range % of % runs backwards', item, field USING ERRCODE = '22023',
          HINT = format('Write it as two: %s-%s,%s-%s.', ends[1], high, low, ends[2]);
      END IF;
    END IF;
    FOR i IN 0..(last - first) / coalesce(step, 1) LOOP
      bits := overlay(bits PLACING '1' FROM first - low + i * coalesce(step, 1) + 1 FOR 1);
    END LOOP;
  END LOOP;
  IF field = 'weekday' THEN  -- 7 is Sunday, too
    bits := CASE WHEN substr(bits, 8, 1) = '1' THEN '1' ELSE substr(bits, 1, 1) END || substr(bits, 2, 6);
  END IF;
  RETURN bits;
END
$$;
CREATE FUNCTION weir._cut(most_messages integer DEFAULT 0, own_count integer DEFAULT 0, own_size bigint DEFAULT 0, own_segment integer DEFAULT NULL::integer, OUT seq bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamp with time zone, OUT count integer, OUT size bigint, OUT last_id bigint, OUT snapshot pg_snapshot, OUT whole boolean, OUT ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  max_count  CONSTANT integer := 10000;
  max_bytes  CONSTANT bigint  := 8388608;
  max_inline CONSTANT bigint  := 262144;  -- bytes of messages that are returned with the tick
  last       weir.tick;
  low        xid8;
  high       xid8;
  late       xid8[]  := '{}';
  found      xid8[];
  ns         bigint[];
  sizes      bigint[];
  masks      integer[];
  mask       integer;
  taken      integer := 0;
  one_range  boolean;  -- the new transactions form a single range of xids
  stop       xid8;
  this       xid8    := CASE WHEN _cut.own_count > 0 THEN pg_current_xact_id() END;
BEGIN
  prior := weir._epoch_here();
  epoch := prior;
  SELECT t.* INTO last FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  last_id := coalesce(pg_sequence_last_value('weir.message_id'), 0);  -- before the snapshot
  snapshot := pg_current_snapshot();
  IF pg_snapshot_xmax(last.snapshot) > pg_snapshot_xmax(snapshot) THEN
    RAISE EXCEPTION 'weir: the log of messages comes from another cluster' USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
  END IF;
  IF this IS NOT NULL THEN
    snapshot := weir._as_committed(snapshot, this);  -- the messages of this transaction commit with the tick
  END IF;

  -- Later statements see more than the snapshot. So rows are found by their transactions, and transactions that committed after the
  -- snapshot are in no range.
  low := pg_snapshot_xmax(last.snapshot);
  high := pg_snapshot_xmax(snapshot);
  IF pg_snapshot_xmin(last.snapshot) < low THEN
    late := ARRAY(SELECT x FROM pg_snapshot_xip(last.snapshot) x WHERE pg_visible_in_snapshot(x, _cut.snapshot));
  END IF;
  one_range := late = '{}' AND (pg_snapshot_xmin(snapshot) = high OR NOT EXISTS (SELECT FROM pg_snapshot_xip(_cut.snapshot) x WHERE x >= low));
  IF one_range AND low = this AND high = (this::text::bigint + 1)::text::xid8 THEN  -- no other transaction is new
    count := _cut.own_count;
    size := _cut.own_size;
    mask := 1 << _cut.own_segment;
  ELSIF one_range THEN
    SELECT count(*), sum(m.size), bit_or(1 << m.segment) INTO count, size, mask
    FROM (SELECT m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= low AND m.xid < high LIMIT max_count + 1) m;
  END IF;
  IF NOT one_range OR count > max_count OR size > max_bytes THEN
    SELECT array_agg(g.xid ORDER BY g.xid), array_agg(g.n ORDER BY g.xid), array_agg(g.size ORDER BY g.xid), array_agg(g.mask ORDER BY g.xid)
      INTO found, ns, sizes, masks
    FROM (SELECT m.xid, count(*) AS n, sum(m.size) AS size, bit_or(1 << m.segment) AS mask
          FROM (SELECT m.* FROM unnest(late) l(x) CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid = l.x ORDER BY m.xid, m.id LIMIT max_count + 1) m
                UNION ALL
                SELECT m.* FROM weir._spans(low, _cut.snapshot) p CROSS JOIN LATERAL (
                  SELECT m.xid, m.segment, octet_length(m.payload) AS size FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high
                  ORDER BY m.xid, m.id LIMIT max_count + 1) m) m GROUP BY m.xid) g;
    -- A tick contains whole transactions up to a bounded size; a larger transaction gets its own tick.
    count := 0;
    size := 0;
    mask := 0;
    WHILE taken < cardinality(found) LOOP
      EXIT WHEN taken > 0 AND (count + ns[taken + 1] > max_count OR size + sizes[taken + 1] > max_bytes);
      taken := taken + 1;
      count := count + ns[taken];
      size := size + sizes[taken];
      mask := mask | masks[taken];
    END LOOP;
    stop := found[taken + 1];
    IF count > max_count THEN
      -- A single transaction, whose rows were not all counted; later transactions of its range have not been read at all.
      SELECT count(*), sum(octet_length(m.payload)), bit_or(1 << m.segment) INTO count, size, mask FROM weir.message m WHERE m.xid = found[1];
      stop := (found[1]::text::bigint + 1)::text::xid8;
    END IF;
  END IF;
  IF count = 0 THEN
    IF pg_sequence_last_value('weir.tick_seq') <> last.seq THEN
      PERFORM setval('weir.tick_seq', last.seq);  -- an earlier cut was rolled back, but the sequence was not
    END IF;
    count := NULL;
    RETURN;
  END IF;
  whole := stop IS NULL;
  IF NOT whole THEN
    -- The other transactions are left for the next tick: the snapshot is changed as if they had not committed yet.
    SELECT (coalesce(min(p.x::text::bigint), max(p.top::text::bigint)) || ':' || max(p.top::text::bigint) || ':'
            || coalesce(string_agg(p.x::text, ',' ORDER BY p.x), ''))::pg_snapshot INTO snapshot
    FROM (
      SELECT x, NULL::xid8 AS top FROM pg_snapshot_xip(CASE WHEN stop < low THEN last.snapshot ELSE _cut.snapshot END) x
      WHERE CASE WHEN stop < low THEN x >= stop OR NOT pg_visible_in_snapshot(x, _cut.snapshot) ELSE x < stop END
      UNION ALL
      SELECT NULL, CASE WHEN stop < low THEN low ELSE stop END) p;
  END IF;

  seq := last.seq + 1;
  at := clock_timestamp();
  IF epoch IS NULL THEN
    PERFORM weir._draw_epoch(seq);
    epoch := weir._epoch_of(seq);
    prior := weir._epoch_of(last.seq);
  END IF;
  IF this IS NOT NULL THEN
    PERFORM set_config('weir.cut', seq::text, true);  -- see weir._check_message
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);  -- a position that was returned must exist after a crash
  END IF;
  INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
  VALUES (_cut.seq, low, _cut.last_id, _cut.size, _cut.at, _cut.count, mask, pg_sequence_last_value('weir.active_message'),
          ARRAY(SELECT x FROM unnest(found[:taken]) x WHERE x = ANY (late)), _cut.snapshot);
  PERFORM setval('weir.tick_seq', seq);
  IF count <= _cut.most_messages AND size <= max_inline THEN
    SELECT array_agg(m.id ORDER BY m.id), array_agg(m.xid::text::bigint ORDER BY m.id), array_agg(m.channel ORDER BY m.id), array_agg(m.payload ORDER BY m.id),
           array_agg(m.is_binary ORDER BY m.id), array_agg(m.keep ORDER BY m.id) INTO ids, xids, channels, payloads, binaries, keeps
    FROM weir.message m WHERE m.xid >= least(low, found[1]) AND m.xid < high AND (m.xid = ANY (found[:taken]) OR taken = 0);
  END IF;
END
$$;
CREATE FUNCTION weir._depths_later() RETURNS TABLE(lane bigint, scheduled bigint, is_estimate boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 10000;  -- jobs counted
  few   CONSTANT integer := 100;    -- jobs counted of each lane in any case,
  lanes CONSTANT integer := 2000;   -- in up to this number of lanes
  pages CONSTANT integer := 300;
  size  bigint := current_setting('block_size')::bigint;
  c     weir.promotion;
  found record;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT coalesce(sum(k.n), 0) AS looked, coalesce(sum(k.n) FILTER (WHERE k.lane > 0), 0) AS n,
         array_agg(k.lane) FILTER (WHERE k.lane > 0) AS lanes, array_agg(k.n) FILTER (WHERE k.lane > 0) AS counts INTO found
  FROM (
    SELECT f.lane, count(*) AS n
    FROM ((SELECT l.lane FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
           ORDER BY l.run_at, l.id LIMIT 2 * most + 1)
          UNION ALL SELECT l.lane FROM weir._overdue(c, most) l) f  -- in lane 0 are due times of schedules, which are no jobs
    GROUP BY f.lane) k;
  IF found.n <= most AND found.looked <= 2 * most THEN
    RETURN QUERY SELECT k.lane, k.n, false FROM unnest(found.lanes, found.counts) k(lane, n);
    RETURN;
  END IF;
  RETURN QUERY
  WITH RECURSIVE known(lane) AS (
    (SELECT l.lane FROM weir.later l WHERE l.lane > 0 ORDER BY l.lane, l.run_at, l.id LIMIT 1)
    UNION ALL
    SELECT (SELECT l.lane FROM weir.later l WHERE l.lane > k.lane ORDER BY l.lane, l.run_at, l.id LIMIT 1) FROM known k WHERE k.lane IS NOT NULL
  ), counted AS MATERIALIZED (
    SELECT k.lane, (SELECT count(*) FROM (SELECT FROM weir.later l WHERE l.lane = k.lane AND (l.run_at, l.id) > (c.due, c.due_id) LIMIT few) f) AS n
    FROM (SELECT k.lane FROM known k WHERE k.lane IS NOT NULL LIMIT lanes) k
  ), stretch AS MATERIALIZED (
    SELECT g.segment, pg_relation_size('weir.later_' || g.segment) / size AS behind FROM generate_series(1, 4) g(segment)
  ), every AS MATERIALIZED (
    SELECT greatest(sum(t.behind) / pages, 1)::float8 AS step FROM stretch t
  ), seen AS MATERIALIZED (
    SELECT r.lane, (count(*) * min(e.step))::bigint AS n
    FROM every e CROSS JOIN stretch t CROSS JOIN LATERAL generate_series(0, ceil(t.behind / e.step)::integer - 1) i
    CROSS JOIN LATERAL weir._later_on(t.segment::smallint, floor(i * e.step)::bigint) r
    WHERE (r.run_at, r.id) > (c.due, c.due_id) AND r.lane > 0
    GROUP BY r.lane
  )
  SELECT coalesce(k.lane, s.lane), CASE WHEN k.n < few THEN k.n ELSE greatest(k.n, s.n) END, coalesce(k.n >= few, true)
  FROM counted k FULL JOIN seen s ON s.lane = k.lane WHERE coalesce(k.n, s.n) > 0;
END
$$;
CREATE FUNCTION weir._depths_of_keys() RETURNS TABLE(lane bigint, waiting bigint, is_estimate boolean, ready_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  most   CONSTANT integer := 2000;   -- lanes that are looked at, of one queue
  all_in CONSTANT integer := 20000;  -- jobs counted of all lanes together, approximately
  pages  CONSTANT integer := 300;    -- sampled
  v      record := weir._in_progress();
  names  text[] := ARRAY(SELECT DISTINCT w.queue FROM weir.with_keys w);
  name   text;
  keys   record;
  lanes  bigint[] := '{}';
  rest   text[] := '{}';             -- queues with more lanes
  size   bigint := current_setting('block_size')::bigint;
BEGIN
  FOREACH name IN ARRAY names LOOP
    keys := weir._waiting_keys(name, most);
    IF keys.is_whole AND cardinality(lanes) <= most THEN
      lanes := lanes || keys.lanes;
    ELSE
      rest := rest || name;
    END IF;
  END LOOP;
  IF lanes <> '{}' THEN
    RETURN QUERY
    WITH late AS MATERIALIZED (
      SELECT q.id, weir._late_of(q.name) AS xids FROM (SELECT DISTINCT l >> 39 AS id FROM unnest(lanes) l) d JOIN weir.queue q ON q.id = d.id
    ), found AS MATERIALIZED (
      SELECT l.lane, w.n, w.ready_at FROM unnest(lanes) l(lane) JOIN late f ON f.id = l.lane >> 39
      CROSS JOIN LATERAL (SELECT count(*) AS n, min(w.ready_at) AS ready_at
                          FROM weir._waiting(l.lane, v.running, v.top, '0', 0, greatest(10, all_in / cardinality(lanes)), late => f.xids) w) w
      WHERE w.n > 0
    )
    SELECT f.lane, f.n, false, f.ready_at FROM found f WHERE f.n < greatest(10, all_in / cardinality(lanes))
    UNION ALL
    SELECT d.* FROM weir._depths(ARRAY(SELECT f.lane FROM found f WHERE f.n >= greatest(10, all_in / cardinality(lanes)))) d;
  END IF;
  IF rest <> '{}' THEN
    RETURN QUERY
    WITH queue AS MATERIALIZED (
      SELECT q.id, weir._late_of(q.name) AS late FROM weir.queue q WHERE q.name = ANY (rest)
    ), every AS MATERIALIZED (
      SELECT greatest(sum(pg_relation_size('weir.job_' || g.segment) / size) / pages, 1)::float8 AS step FROM generate_series(1, 4) g(segment)
    ), seen AS MATERIALIZED (
      SELECT r.*, g.segment FROM every e CROSS JOIN generate_series(1, 4) g(segment)
      CROSS JOIN LATERAL generate_series(0, ceil(pg_relation_size('weir.job_' || g.segment) / size / e.step)::integer - 1) i
      CROSS JOIN LATERAL weir._jobs_on(g.segment::smallint, floor(i * e.step)::bigint) r
      JOIN queue q ON q.id = r.lane >> 39
      WHERE r.lane & 549755813880 <> 0
    ), state AS MATERIALIZED (
      SELECT l.lane, q.late, t.* FROM (SELECT DISTINCT s.lane FROM seen s) l JOIN queue q ON q.id = l.lane >> 39
      LEFT JOIN LATERAL (SELECT t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t ON true
    )
    SELECT s.lane, (count(*) * min(e.step))::bigint, true, min(s.ready_at)
    FROM every e CROSS JOIN seen s JOIN state t ON t.lane = s.lane
    WHERE weir._waits(s.xid, s.id, t.pos_xid, t.pos_id, t.pending, t.pending_after, t.late)
    GROUP BY s.lane;
    RETURN QUERY SELECT (q.id::bigint << 39) + 4, 0::bigint, true, NULL::timestamptz FROM weir.queue q WHERE q.name = ANY (rest);
  END IF;
END
$$;
CREATE FUNCTION weir._depths_running() RETURNS TABLE(lane bigint, running bigint, is_estimate boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most    CONSTANT integer := 5000;  -- batches read, approximately
  workers integer[] := weir._holders();
BEGIN
  RETURN QUERY
  WITH hand AS MATERIALIZED (
    SELECT h.* FROM weir._in_hand(workers, 9223372036854775807, greatest(20, most / greatest(cardinality(workers), 1))) h
  ), unsure AS (  -- a worker of which not all is read may hold jobs of any queue that it works, also of one that is not among those read
    SELECT q.id FROM weir.queue q
    WHERE q.name IN (SELECT n FROM weir.worker w CROSS JOIN unnest(w.queues) n WHERE NOT w.fenced AND w.id IN (SELECT h.worker FROM hand h WHERE h.is_last))
  )
  SELECT k.lane, sum(k.n)::bigint, bool_or(k.is_estimate)
  FROM (SELECT h.lane, cardinality(h.ids) AS n, false AS is_estimate FROM hand h
        UNION ALL SELECT (u.id::bigint << 39) + p, 0, true FROM unsure u CROSS JOIN generate_series(0, 3) p) k
  GROUP BY k.lane;
END
$$;
CREATE FUNCTION weir._depths(lanes bigint[]) RETURNS TABLE(lane bigint, waiting bigint, is_estimate boolean, ready_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  few     CONSTANT integer := least(100, greatest(20, 200000 / greatest(cardinality(_depths.lanes), 1)));  -- jobs counted of each lane in any case
  most    CONSTANT integer := 10000;  -- jobs counted of one lane
  all_in  CONSTANT integer := 20000;  -- jobs counted of all lanes together, approximately
  pages   CONSTANT integer := 300;    -- sampled
  counted integer;
  v       record;
  first   record;  -- what is found of all lanes
  deep    bigint[];
  size    bigint := current_setting('block_size')::bigint;
BEGIN
  v := weir._in_progress();
  SELECT array_agg(w.lane) AS lanes, array_agg(w.segment) AS segments, array_agg(w.n) AS counts, array_agg(w.ready_at) AS ready_ats, array_agg(w.place) AS places INTO first
  FROM weir._waiting_among(_depths.lanes, v.running, v.top, few) w;
  FOR lane, waiting, ready_at IN
    SELECT f.lane, sum(f.n), min(f.ready_at) FROM unnest(first.lanes, first.counts, first.ready_ats) f(lane, n, ready_at) GROUP BY f.lane
  LOOP
    IF waiting < few THEN
      is_estimate := false;
      RETURN NEXT;
    ELSE
      deep := deep || lane;
    END IF;
  END LOOP;
  IF deep IS NULL THEN
    RETURN;
  END IF;
  counted := greatest(few, least(most, all_in / cardinality(deep)));
  RETURN QUERY
  WITH found AS MATERIALIZED (
    SELECT w.* FROM weir._waiting_among(deep, v.running, v.top, counted) w WHERE counted > few
    UNION ALL
    SELECT f.* FROM unnest(first.lanes, first.segments, first.counts, first.ready_ats, first.places) f(lane, segment, n, ready_at, place)
    WHERE counted = few AND f.lane IN (SELECT unnest(deep))
  ), total AS MATERIALIZED (
    SELECT f.lane, sum(f.n)::bigint AS n, min(f.ready_at) AS ready_at FROM found f GROUP BY f.lane
  ), state AS MATERIALIZED (  -- of lanes with more jobs
    SELECT t.lane, coalesce(b.pos_xid, '0') AS pos_xid, coalesce(b.pos_id, 0) AS pos_id, b.pending, b.pending_after
    FROM total t LEFT JOIN LATERAL (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = t.lane ORDER BY b.seq DESC LIMIT 1) b ON true
    WHERE t.n >= counted AND t.lane & 549755813880 = 0
    UNION ALL
    SELECT t.lane, coalesce(k.pos_xid, '0'), coalesce(k.pos_id, 0), k.pending, k.pending_after FROM total t CROSS JOIN LATERAL weir._state_of(t.lane) k
    WHERE t.n >= counted AND t.lane & 549755813880 <> 0
  ), stretch AS MATERIALIZED (
    SELECT k.segment, k.first, pg_relation_size('weir.job_' || k.segment) / size AS behind
    FROM (
      SELECT g.segment, min((coalesce(f.place, p.place)::text::point)[0])::bigint AS first
      FROM state s CROSS JOIN generate_series(1, 4) g(segment)
      LEFT JOIN found f ON f.lane = s.lane AND f.segment = g.segment
      LEFT JOIN LATERAL (
        SELECT j.ctid AS place FROM weir.job j
        WHERE f.lane IS NULL AND j.segment = g.segment AND j.lane = s.lane AND (j.xid, j.id) > (s.pos_xid, s.pos_id) ORDER BY j.xid, j.id LIMIT 1) p ON true
      GROUP BY g.segment) k
    WHERE k.first IS NOT NULL
  ), every AS MATERIALIZED (
    SELECT greatest(sum(t.behind - t.first) / pages, 1)::float8 AS step FROM stretch t
  ), seen AS MATERIALIZED (
    SELECT s.lane, count(*) AS n
    FROM every e CROSS JOIN stretch t CROSS JOIN LATERAL generate_series(0, ceil((t.behind - t.first) / e.step)::integer - 1) i
    CROSS JOIN LATERAL weir._jobs_on(t.segment::smallint, t.first + floor(i * e.step)::bigint) r
    JOIN state s ON s.lane = r.lane
    WHERE weir._waits(r.xid, r.id, s.pos_xid, s.pos_id, s.pending, s.pending_after)
    GROUP BY s.lane
  )
  SELECT t.lane, CASE WHEN s.lane IS NULL THEN t.n ELSE greatest(t.n, (coalesce(k.n, 0) * e.step)::bigint) END, s.lane IS NOT NULL AND t.n >= counted, t.ready_at
  FROM total t CROSS JOIN every e LEFT JOIN state s ON s.lane = t.lane LEFT JOIN seen k ON k.lane = t.lane;
END
$$;
CREATE FUNCTION weir._draw_epoch(tick bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  max_kept CONSTANT integer := 1000;
BEGIN
  INSERT INTO weir.epoch (from_tick, epoch, started_at, at, home)
  VALUES (_draw_epoch.tick, ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint, pg_postmaster_start_time(), clock_timestamp(),
          weir._epoch_home());
  -- A subscriber whose position is in a deleted epoch still receives a gap.
  DELETE FROM weir.epoch e
  WHERE e.from_tick < (SELECT k.from_tick FROM weir.epoch k ORDER BY k.from_tick DESC OFFSET max_kept - 1 LIMIT 1)
    AND e.from_tick < (SELECT k.from_tick FROM weir.epoch k WHERE k.from_tick <= pg_sequence_last_value('weir.tick_floor') ORDER BY k.from_tick DESC LIMIT 1);
END
$$;
CREATE FUNCTION weir._drop(worker integer, lane bigint, seq bigint, filters weir.cancellation_where[], segments smallint[], ids bigint[], attempts integer[], kinds text[], metas jsonb[], enqueued timestamp with time zone[], keys text[], priorities integer[], flows bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  gone bigint[] := weir._cancelled_of(_drop.filters, _drop.ids, _drop.attempts, _drop.kinds, _drop.metas, _drop.enqueued, _drop.keys, _drop.priorities, _drop.flows);
BEGIN
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
  SELECT _drop.lane, u.segment, _drop.worker, _drop.seq, clock_timestamp(), 'cancelled', array_agg(u.id)
  FROM unnest(_drop.segments, _drop.ids) u(segment, id) WHERE u.id = ANY (gone) GROUP BY u.segment;
  PERFORM weir._arrive_ended(ARRAY(SELECT u.flow FROM unnest(_drop.ids, _drop.flows) u(id, flow) WHERE u.id = ANY (gone)), '{}');
  RETURN gone;
END
$$;
CREATE FUNCTION weir._due_after(fields text[], time_zone text, after timestamp with time zone) RETURNS timestamp with time zone LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  reach  CONSTANT interval := '26 hours';  -- clocks have changed by up to a day
  ahead  interval;
  then_  interval;
  wall   timestamp;
  due    timestamptz;
  near   timestamptz;
  is_skipped boolean;
BEGIN
  IF after NOT BETWEEN '0001-01-01 00:00:00+00' AND '9900-01-01 00:00:00+00' THEN
    RETURN NULL;
  ELSIF fields[1] = 'every' THEN
    RETURN to_timestamp((fields[3]::bigint + (floor((extract(epoch FROM after) - fields[3]::bigint) / fields[2]::bigint) + 1) * fields[2]::bigint)::double precision);
  ELSIF time_zone = 'UTC' THEN
    RETURN weir._cron_after(fields, after AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
  END IF;
  wall := after AT TIME ZONE time_zone;
  IF fields[8] = 'fixed' THEN
    LOOP
      wall := weir._cron_after(fields, wall);
      due := (weir._first_instant(wall, time_zone)).instant;
      IF due > after OR due IS NULL THEN
        RETURN due;
      END IF;
    END LOOP;
  END IF;
  ahead := wall - (after AT TIME ZONE 'UTC');
  wall := weir._cron_after(fields, wall);
  due := (wall - ahead) AT TIME ZONE 'UTC';
  near := least(due, after + reach);
  then_ := weir._offset_at(near, time_zone);
  IF then_ = ahead AND near = due THEN
    RETURN due;
  ELSIF then_ < ahead THEN  -- clocks go back in between, and show some times again
    due := weir._clock_change(after, near, time_zone);
    wall := weir._cron_after(fields, (due AT TIME ZONE time_zone) - interval '1 microsecond');
    due := (wall - then_) AT TIME ZONE 'UTC';
    IF weir._offset_at(due, time_zone) = then_ THEN
      RETURN due;
    END IF;
  END IF;
  LOOP
    SELECT f.* INTO due, is_skipped FROM weir._first_instant(wall, time_zone) f;
    IF due IS NULL OR NOT is_skipped THEN
      RETURN due;
    END IF;
    wall := weir._cron_after(fields, (due AT TIME ZONE time_zone) - interval '1 microsecond');
  END LOOP;
END
$$;
CREATE FUNCTION weir._due_upto(fields text[], time_zone text, due timestamp with time zone, upto timestamp with time zone) RETURNS timestamp with time zone LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  newest timestamptz := due;
  none   timestamptz := upto;  -- nothing is due after it, up to upto
  middle timestamptz;
  found  timestamptz := weir._due_after(fields, time_zone, newest);
BEGIN
  WHILE found <= upto LOOP
    newest := found;
    -- Halve what is left.
    WHILE none - newest > interval '1 second' LOOP
      middle := newest + (none - newest) / 2;
      found := weir._due_after(fields, time_zone, middle);
      IF found <= upto THEN
        newest := found;
      ELSE
        none := middle;
      END IF;
    END LOOP;
    found := weir._due_after(fields, time_zone, newest);
  END LOOP;
  RETURN newest;
END
$$;
CREATE FUNCTION weir._end_attempts(worker integer, lanes bigint[], seqs bigint[], segments smallint[], ids bigint[], outcomes weir.outcome[], errors text[], outputs text[], run_at timestamp with time zone[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  IF _end_attempts.outcomes && ARRAY['retried', 'snoozed', 'released', 'lost']::weir.outcome[] THEN
    -- As in enqueue: first the xid, then an id, which wakes idle workers.
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.job_id');
  END IF;
  WITH attempt AS MATERIALIZED (
    SELECT e.lane, e.seq, e.segment, e.id, e.outcome, e.error, e.output, e.ord, coalesce(q.next, e.run_at) AS run_at, j.kind, j.args, j.meta, j.errors, j.enqueued_at, j.attempt, j.max_attempts, j.put_off, j.claimed_at, j.gate, j.unique_key, j.unique_no, j.unique_until, j.key, j.flow, j.lane AS job_lane,
           CASE WHEN e.outcome IN ('retried', 'lost') AND j.attempt >= j.max_attempts THEN 'failed' ELSE e.outcome END AS ended
    FROM unnest(_end_attempts.lanes, _end_attempts.seqs, _end_attempts.segments, _end_attempts.ids, _end_attempts.outcomes,
                _end_attempts.errors, _end_attempts.outputs, _end_attempts.run_at)
         WITH ORDINALITY e(lane, seq, segment, id, outcome, error, output, run_at, ord)
    LEFT JOIN LATERAL (
      SELECT j.*, b.claimed_at, b.gate FROM weir.batch b
      CROSS JOIN LATERAL (
        SELECT j.* FROM weir.job j
        WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)  -- worded so that the index on id is used
          AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
        -- A batch with late jobs spans many transactions, possibly those of earlier attempts of the same job.
        ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
      WHERE e.outcome IN ('retried', 'snoozed', 'released', 'lost')
        AND b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq  -- all rows of a batch have the same xids
      LIMIT 1) j ON true
    LEFT JOIN LATERAL (
      SELECT weir._next_try(q.backoff, q.backoff_limit, q.backoff_form, CASE e.outcome WHEN 'retried' THEN j.attempt ELSE j.put_off + 1 END) AS next
      FROM weir.queue q WHERE q.id = (e.lane >> 39)::integer AND e.run_at = '-infinity') q ON true
  ), next AS MATERIALIZED (
    -- A snoozed or released job keeps its attempt.
    SELECT a.id, CASE WHEN a.key IS NULL THEN a.lane ELSE a.job_lane | 4 END AS lane, a.attempt + (a.ended NOT IN ('snoozed', 'released'))::integer AS attempt, a.max_attempts,
           CASE WHEN a.ended IN ('snoozed', 'released') THEN a.put_off + 1 ELSE 0 END AS put_off, a.kind, a.args, a.meta, a.enqueued_at, a.run_at, a.ord,
           CASE WHEN a.ended IN ('snoozed', 'released') THEN a.errors ELSE weir._with_error(a.errors, a.attempt, clock_timestamp(), a.ended, a.error) END AS errors,
           a.unique_key, CASE WHEN a.unique_no IS NOT NULL THEN nextval('weir.job_id') * 2 + (a.unique_no & 1) END AS unique_no, a.unique_until, a.key, a.flow
    FROM attempt a WHERE a.ended IN ('retried', 'snoozed', 'released', 'lost')
  ), logged AS (
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT n.id, pg_current_xact_id(), n.enqueued_at, now(), n.lane, n.attempt, n.max_attempts, n.put_off, (SELECT a.last_value FROM weir.active_job a), n.kind, n.args, n.meta, n.errors, n.unique_key, n.unique_no, n.unique_until, n.key, n.flow
    FROM next n WHERE n.run_at IS NULL OR n.run_at <= now() ORDER BY n.ord
  ), postponed AS (
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    SELECT n.id, pg_current_xact_id(), n.run_at, n.enqueued_at, n.lane, n.attempt, n.max_attempts, n.put_off, (SELECT a.last_value FROM weir.active_later a), n.kind, n.args, n.meta, n.errors, n.unique_key, n.unique_no, n.unique_until, n.key, n.flow
    FROM next n WHERE n.run_at > now() ORDER BY n.ord
  ), recorded AS (
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors, outputs)
    SELECT a.lane, a.segment, _end_attempts.worker, a.seq, clock_timestamp(), a.ended, array_agg(a.id),
           CASE WHEN count(a.error) > 0 THEN array_agg(left(a.error, 65536)) END, CASE WHEN count(a.output) > 0 THEN array_agg(a.output) END
    FROM attempt a
    -- A long text has its own row, so that reading one doesn't read all.
    GROUP BY a.lane, a.segment, a.seq, a.ended, CASE WHEN length(a.error) > 2000 OR length(a.output) > 2000 THEN a.ord END
  ), freed AS (
    INSERT INTO weir.release (gate, ring, xid, n, lanes)
    SELECT a.gate, (SELECT r.last_value FROM weir.active_release r), pg_current_xact_id(), count(*), array_agg(a.job_lane) FILTER (WHERE a.key IS NOT NULL)
    FROM attempt a WHERE a.gate IS NOT NULL GROUP BY a.gate
  ), arrived AS (
    INSERT INTO weir.arrival (flow, ring, xid, failed)
    SELECT a.flow, (SELECT weir._arrival_ring()), pg_current_xact_id(), count(*) FROM attempt a WHERE a.ended = 'failed' AND a.flow IS NOT NULL GROUP BY a.flow
  )
  -- As weir._keep_failures does, but from rows that have been read already.
  INSERT INTO weir.failure (id, segment, lane, attempt, max_attempts, enqueued_at, claimed_at, finished_at, worker, kind, args, meta, error, output, errors, unique_key, unique_until, key, flow)
  SELECT a.id, (SELECT s.last_value FROM weir.active_failure s), CASE WHEN a.key IS NULL THEN a.lane ELSE a.job_lane & ~ 4::bigint END, a.attempt, a.max_attempts, a.enqueued_at, a.claimed_at, clock_timestamp(),
         _end_attempts.worker, a.kind, a.args, a.meta, left(a.error, 65536), a.output, a.errors, a.unique_key, a.unique_until, a.key, a.flow
  FROM attempt a WHERE a.ended = 'failed';
END
$$;
CREATE FUNCTION weir._end_flows(sums weir.fold[], was weir.fold[], failing bigint[], OUT fired integer, OUT again boolean) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  this  record;
  about jsonb;
BEGIN
  fired := (SELECT count(*) FROM unnest(sums) WITH ORDINALITY n WHERE n.fired_at IS NOT NULL AND ((was[n.ordinality]).fired_at IS NULL OR (was[n.ordinality]).generation <> n.generation));
  again := false;
  FOR this IN
    SELECT n.*, d.name, d.parent, d.on_done, d.on_success, d.fail_fast, (was[n.ordinality]).fired_at AS before, (was[n.ordinality]).generation AS generation_before
    FROM unnest(sums) WITH ORDINALITY n
    CROSS JOIN LATERAL (SELECT d.* FROM weir.flow d WHERE d.id = n.flow AND (d.fail_fast OR d.on_done IS NOT NULL OR d.on_success IS NOT NULL) OFFSET 0) d
    ORDER BY n.ordinality
  LOOP
    IF this.fired_at IS NULL THEN
      IF this.fail_fast AND this.flow = ANY (failing) AND this.failed > 0 AND NOT this.is_cancelled THEN  -- unless that was retried already
        PERFORM weir._cancel_members(this.flow);
        again := true;
      END IF;
      CONTINUE;
    END IF;
    CONTINUE WHEN this.before IS NOT NULL AND this.generation_before = this.generation;
    about := jsonb_build_object('id', this.flow, 'name', this.name, 'generation', this.generation, 'jobs', this.jobs, 'completed', this.completed, 'failed', this.failed, 'cancelled', this.cancelled)
      || CASE WHEN this.counters IS NOT NULL THEN jsonb_build_object('counters', this.counters) ELSE '{}' END;
    IF this.on_success IS NOT NULL AND this.failed = 0 AND this.cancelled = 0 AND NOT this.is_cancelled AND NOT this.is_abandoned THEN
      PERFORM weir._call_back(this.on_success, about, this.parent);
    END IF;
    IF this.on_done IS NOT NULL THEN
      PERFORM weir._call_back(this.on_done, about, this.parent);
    END IF;
  END LOOP;
END
$$;
CREATE FUNCTION weir._end_members(lanes bigint[], seqs bigint[], ids bigint[], outcomes text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.arrival (flow, ring, xid, completed, failed, cancelled)
  SELECT m.flow, (SELECT weir._arrival_ring()), pg_current_xact_id(), count(*) FILTER (WHERE m.outcome = 'completed'),
         count(*) FILTER (WHERE m.outcome = 'failed'), count(*) FILTER (WHERE m.outcome = 'cancelled')
  FROM (
    SELECT max(k.flow) AS flow, max(k.outcome) AS outcome
    FROM (
      -- Grouped instead of joined, so that no plan is quadratic.
      SELECT e.lane, e.seq, e.id, coalesce(e.outcome, 'completed') AS outcome, NULL::bigint AS flow
      FROM unnest(_end_members.lanes, _end_members.seqs, _end_members.ids, _end_members.outcomes) e(lane, seq, id, outcome)
      UNION ALL
      SELECT b.lane, b.seq, u.id, NULL, CASE WHEN cardinality(b.flows) = 1 THEN b.flows[1] ELSE u.flow END
      FROM (SELECT DISTINCT d.lane, d.seq FROM unnest(_end_members.lanes, _end_members.seqs) d(lane, seq)) d
      CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = d.lane AND b.seq = d.seq AND b.flows IS NOT NULL OFFSET 0) b
      CROSS JOIN LATERAL unnest(b.ids, b.flows) u(id, flow)) k
    GROUP BY k.lane, k.seq, k.id) m
  WHERE m.flow IS NOT NULL AND m.outcome IS NOT NULL
  GROUP BY m.flow;
END
$$;
CREATE FUNCTION weir._end_of(attempt weir.job, OUT claimed_at timestamp with time zone, OUT worker integer, OUT outcome weir.outcome, OUT finished_at timestamp with time zone, OUT error text, OUT output text) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  batch bigint := _end_of.attempt.seq;
  lanes bigint[];
  r     record;
BEGIN
  IF batch IS NULL THEN
    SELECT k.seq, ARRAY[k.lane], k.claimed_at, k.worker INTO batch, lanes, claimed_at, worker
    FROM weir._batch_of(_end_of.attempt.lane, _end_of.attempt.segment, _end_of.attempt.xid, _end_of.attempt.id) k;
  ELSE
    lanes := weir._ring_lanes(_end_of.attempt.lane);
  END IF;
  SELECT k.outcome, k.worker, k.finished_at, k.errors[array_position(k.ids, _end_of.attempt.id)] AS error, k.outputs[array_position(k.ids, _end_of.attempt.id)] AS output INTO r
  FROM weir.result k
  WHERE k.segment = _end_of.attempt.segment AND k.lane = ANY (lanes) AND k.seq = batch AND _end_of.attempt.id = ANY (k.ids)
  ORDER BY k.finished_at LIMIT 1;
  IF FOUND THEN
    outcome := r.outcome; worker := r.worker; finished_at := r.finished_at; error := r.error; output := r.output;
  END IF;
END
$$;
CREATE FUNCTION weir._ended_among(filters weir.cancellation_where[], to_judge boolean, ids bigint[], xids xid8[], attempts integer[], kinds text[], metas jsonb[], enqueued timestamp with time zone[], keys text[], priorities integer[], unique_keys uuid[], nos bigint[], untils timestamp with time zone[], flows bigint[]) RETURNS TABLE(nr bigint, id bigint, reason text) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_nestloop=off SET enable_hashjoin=on
AS $$
#variable_conflict use_column
DECLARE
  cancelled bigint[] := CASE WHEN filters IS NOT NULL THEN weir._cancelled_of(filters, _ended_among.ids, attempts, kinds, metas, enqueued, keys, priorities, flows) END;
  judged    bigint[];
  reasons   text[];
BEGIN
  IF to_judge THEN
    SELECT array_agg(g.id), array_agg(g.reason) INTO judged, reasons
    FROM (SELECT array_agg(u.id) AS ids, array_agg(u.xid) AS xids, array_agg(u.key) AS keys, array_agg(u.no) AS nos, array_agg(coalesce(u.until, 'infinity')) AS untils, array_agg(u.at) AS times
          FROM unnest(_ended_among.ids, xids, unique_keys, nos, untils, enqueued) u(id, xid, key, no, until, at) WHERE u.key IS NOT NULL) u
    CROSS JOIN LATERAL weir._judge(u.ids, u.xids, u.keys, u.nos, u.untils, u.times) g
    WHERE u.ids IS NOT NULL AND g.fate = 'dropped';
  END IF;
  RETURN QUERY
  SELECT u.nr, u.id, coalesce(j.reason, '') FROM unnest(_ended_among.ids) WITH ORDINALITY u(id, nr)
  LEFT JOIN unnest(cancelled) c(id) ON c.id = u.id LEFT JOIN unnest(judged, reasons) j(id, reason) ON j.id = u.id
  WHERE c.id IS NOT NULL OR j.id IS NOT NULL;
END
$$;
CREATE FUNCTION weir._ended_since(since pg_snapshot, snapshot pg_snapshot) RETURNS TABLE(low xid8, high xid8) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan
AS $$
BEGIN
  RETURN QUERY
  SELECT x, (x::text::bigint + 1)::text::xid8 FROM pg_snapshot_xip(_ended_since.since) x WHERE pg_visible_in_snapshot(x, _ended_since.snapshot)
  UNION ALL
  SELECT s.low, s.high
  FROM (
    SELECT b.low, lead(b.edge, 1, pg_snapshot_xmax(_ended_since.snapshot)) OVER (ORDER BY b.low) AS high
    FROM (
      SELECT pg_snapshot_xmax(_ended_since.since) AS low, pg_snapshot_xmax(_ended_since.since) AS edge
      UNION ALL
      (SELECT (x::text::bigint + 1)::text::xid8, x FROM pg_snapshot_xip(_ended_since.snapshot) x
       WHERE x >= pg_snapshot_xmax(_ended_since.since) ORDER BY x LIMIT 64)) b) s
  WHERE s.low < s.high;
END
$$;
CREATE FUNCTION weir._ends_between(since timestamp with time zone, upto timestamp with time zone, most integer) RETURNS TABLE(lane bigint, seq bigint, segment smallint, finished_at timestamp with time zone, outcome weir.outcome, n integer, id bigint) LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT r.lane, r.seq, r.segment, r.finished_at, r.outcome, cardinality(r.ids), r.ids[1 + floor(random() * cardinality(r.ids))::integer]
  FROM weir.result r WHERE r.finished_at >= _ends_between.since AND r.finished_at < _ends_between.upto ORDER BY r.finished_at LIMIT most;
END
$$;
CREATE FUNCTION weir._ends_of(worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[]) RETURNS TABLE(place integer, outcome text) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_nestloop=off SET enable_hashjoin=on
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT k.place, x.outcome
  FROM (SELECT b.lane, b.seq, _ends_of.ids[p] AS id, p AS place
        FROM (SELECT k.lane, k.seq, k.size, sum(k.size) OVER (ORDER BY k.nr)::integer AS last FROM unnest(_ends_of.lanes, _ends_of.seqs, _ends_of.sizes) WITH ORDINALITY k(lane, seq, size, nr)) b
        CROSS JOIN LATERAL generate_series(b.last - b.size + 1, b.last) p) k
  JOIN (SELECT DISTINCT ON (b.lane, b.seq, r.id) b.lane, b.seq, r.id, r.outcome
        FROM (SELECT DISTINCT k.lane, k.seq FROM unnest(_ends_of.lanes, _ends_of.seqs) k(lane, seq)) i
        CROSS JOIN LATERAL (SELECT b.lane, b.seq, b.segment FROM weir.batch b WHERE b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _ends_of.worker OFFSET 0) b
        CROSS JOIN LATERAL (SELECT unnest(r.ids) AS id, r.outcome::text FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq OFFSET 0) r) x
    ON x.lane = k.lane AND x.seq = k.seq AND x.id = k.id;
END
$$;
CREATE FUNCTION weir._enqueue_due(s weir.schedule, due timestamp with time zone) RETURNS bigint LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT weir.enqueue(s.queue, s.kind, s.args, s.priority, max_attempts => s.max_attempts, key => s.key,
                      meta => coalesce(s.meta, '{}') || jsonb_build_object('schedule', s.name, 'due', to_char(_enqueue_due.due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))
$$;
CREATE FUNCTION weir._enqueue_json(jobs jsonb, OUT ids bigint[], OUT duplicates boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  bad     text;
  r       record;
  plain   record;
  uniques record;
BEGIN
  IF jobs IS NULL OR jsonb_typeof(jobs) <> 'array' THEN
    RAISE EXCEPTION 'weir: enqueue_many takes a JSON array of jobs, got %', coalesce('a JSON ' || jsonb_typeof(jobs), 'null')
      USING ERRCODE = '22023';
  END IF;
  SELECT format('job %s must be a JSON object, got a JSON %s', e.ord, jsonb_typeof(e.job)) INTO bad
  FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord) WHERE jsonb_typeof(e.job) <> 'object' LIMIT 1;
  IF bad IS NULL THEN
    SELECT format('job %s has an unknown key %s', e.ord, to_json(k.key)) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord), jsonb_object_keys(e.job) k(key)
    WHERE k.key NOT IN ('queue', 'kind', 'args', 'priority', 'run_at', 'max_attempts', 'meta', 'key', 'unique', 'flow', 'once') LIMIT 1;
  END IF;
  IF bad IS NULL THEN
    SELECT format('job %s has a unique that must be true, false or an object with some of key, fields, until, within, replace and wait, got %s', e.ord,
                  CASE WHEN k.key IS NULL THEN 'a JSON ' || jsonb_typeof(e.job -> 'unique') ELSE 'the key ' || to_json(left(k.key, 100)) END) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
    LEFT JOIN LATERAL (SELECT k.key FROM jsonb_object_keys(CASE jsonb_typeof(e.job -> 'unique') WHEN 'object' THEN e.job -> 'unique' ELSE '{}' END) k(key)
                       WHERE k.key NOT IN ('key', 'fields', 'until', 'within', 'replace', 'wait') ORDER BY 1 LIMIT 1) k ON true
    WHERE jsonb_typeof(e.job -> 'unique') <> ALL (ARRAY['object', 'boolean', 'null']) OR k.key IS NOT NULL LIMIT 1;
  END IF;
  IF bad IS NULL THEN
    SELECT format('job %s is unique and has a %s, which is not possible', e.ord, k.name) INTO bad
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord) CROSS JOIN (VALUES ('flow'), ('once')) k(name)
    WHERE coalesce(e.job -> 'unique', 'null') NOT IN ('null', 'false') AND coalesce(e.job -> k.name, 'null') <> 'null' LIMIT 1;
  END IF;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'weir: %', bad
      USING ERRCODE = '22023', HINT = 'A job is {"queue": ..., "kind": ...}, optionally with args, priority, run_at, max_attempts, meta, key, flow, once and unique.';
  END IF;
  IF jsonb_path_exists(jobs, '$[*].unique ? (@.type() == "object" || @ == true)') THEN
    IF jsonb_array_length(jobs) > 10000 THEN
      RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', jsonb_array_length(jobs)
        USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
    END IF;
    PERFORM weir._check_types(jobs);
    SELECT jsonb_agg(e.job ORDER BY e.ord) FILTER (WHERE NOT e.is_unique) AS plain,
           jsonb_agg(e.job - 'unique' || CASE WHEN jsonb_typeof(e.job -> 'unique') = 'object' THEN (e.job -> 'unique') - 'key' || jsonb_build_object('unique_key', e.job -> 'unique' -> 'key') ELSE '{}' END
                     ORDER BY e.ord) FILTER (WHERE e.is_unique) AS uniques,
           array_agg(e.is_unique ORDER BY e.ord) AS is_unique
      INTO r
    FROM (SELECT e.*, coalesce(e.job -> 'unique', 'null') NOT IN ('null', 'false') AS is_unique FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)) e;
    SELECT e.ids, e.duplicates INTO plain FROM weir._enqueue_json(coalesce(r.plain, '[]')) e;
    SELECT array_agg(u.id ORDER BY u.ord) AS ids, array_agg(u.duplicate ORDER BY u.ord) AS duplicates INTO uniques FROM weir._enqueue_unique_many(r.uniques) WITH ORDINALITY u(id, duplicate, ord);
    SELECT array_agg(CASE WHEN k.is_unique THEN uniques.ids[k.nr] ELSE plain.ids[k.nr] END ORDER BY k.ord),
           array_agg(CASE WHEN k.is_unique THEN uniques.duplicates[k.nr] ELSE coalesce(plain.duplicates[k.nr], false) END ORDER BY k.ord)
      INTO ids, duplicates
    FROM (SELECT i.*, row_number() OVER (PARTITION BY i.is_unique ORDER BY i.ord) AS nr FROM unnest(r.is_unique) WITH ORDINALITY i(is_unique, ord)) k;
    RETURN;
  END IF;
  BEGIN
    SELECT array_agg(x.queue ORDER BY e.ord) AS queue, array_agg(x.kind ORDER BY e.ord) AS kind,
           array_agg(coalesce(x.args, '{}') ORDER BY e.ord) AS args, array_agg(x.priority ORDER BY e.ord) AS priority,
           array_agg(x.run_at ORDER BY e.ord) AS run_at, array_agg(x.max_attempts ORDER BY e.ord) AS max_attempts,
           array_agg(x.meta ORDER BY e.ord) AS meta, CASE WHEN count(x.key) > 0 THEN array_agg(x.key ORDER BY e.ord) END AS key,
           CASE WHEN count(x.flow) > 0 THEN array_agg(x.flow ORDER BY e.ord) END AS flow, CASE WHEN count(x.once) > 0 THEN array_agg(x.once ORDER BY e.ord) END AS once
      INTO r
    FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord),
         jsonb_to_record(e.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint, once text);
  EXCEPTION WHEN data_exception THEN
    PERFORM weir._check_types(jobs);
    RAISE;
  END;
  SELECT e.ids, e.duplicates INTO ids, duplicates FROM weir._enqueue_many(r.queue, r.kind, r.args, r.priority, r.run_at, r.max_attempts, r.meta, r.key, r.flow, r.once) e;
END
$$;
CREATE FUNCTION weir._enqueue_many(queue text[], kind text[], args jsonb[] DEFAULT NULL::jsonb[], priority integer[] DEFAULT NULL::integer[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], max_attempts integer[] DEFAULT NULL::integer[], meta jsonb[] DEFAULT NULL::jsonb[], key text[] DEFAULT NULL::text[], flow bigint[] DEFAULT NULL::bigint[], once text[] DEFAULT NULL::text[], OUT ids bigint[], OUT duplicates boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_column
DECLARE
  few        CONSTANT integer := 20;
  n          integer := coalesce(cardinality(_enqueue_many.kind), 0);
  this_xid   xid8;
  in_segment integer;
  names      text[];
  queue_ids  integer[];
  homes      integer[];  -- the queue of each job, as an id; NULL: there are few names, in which each is looked up
  bits       bigint[];  -- of the keys
  hashes     uuid[];    -- of jobs that are to be done once in their flow
  known      bigint[];  -- those that are there already, for which these are not added
  bad        record;
BEGIN
  ids := '{}';
  IF n = 0 AND coalesce(greatest(cardinality(_enqueue_many.queue), cardinality(_enqueue_many.args), cardinality(_enqueue_many.priority), cardinality(_enqueue_many.run_at), cardinality(_enqueue_many.max_attempts),
                                 cardinality(_enqueue_many.meta), cardinality(_enqueue_many.key), cardinality(_enqueue_many.flow), cardinality(_enqueue_many.once)), 0) = 0 THEN
    RETURN;
  ELSIF n > 10000 THEN
    RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', n
      USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
  ELSIF cardinality(_enqueue_many.queue) IS DISTINCT FROM n OR cardinality(_enqueue_many.args) <> n
     OR cardinality(_enqueue_many.priority) <> n OR cardinality(_enqueue_many.run_at) <> n
     OR cardinality(_enqueue_many.max_attempts) <> n OR cardinality(_enqueue_many.meta) <> n OR cardinality(_enqueue_many.key) <> n
     OR cardinality(_enqueue_many.flow) <> n OR cardinality(_enqueue_many.once) <> n THEN
    RAISE EXCEPTION 'weir: the arrays of enqueue_many differ in length: % kinds, % queues, % args, % priorities, % run_ats, % max_attempts, % metas, % keys, % flows, % onces',
      n, cardinality(_enqueue_many.queue), cardinality(_enqueue_many.args), cardinality(_enqueue_many.priority),
      cardinality(_enqueue_many.run_at), cardinality(_enqueue_many.max_attempts), cardinality(_enqueue_many.meta), cardinality(_enqueue_many.key), cardinality(_enqueue_many.flow), cardinality(_enqueue_many.once)
      USING ERRCODE = '22023', HINT = 'Every array needs one element for each job; leave out optional arrays.';
  END IF;

  PERFORM weir._check_array('enqueue_many', 'queue', _enqueue_many.queue), weir._check_array('enqueue_many', 'kind', _enqueue_many.kind),
          weir._check_array('enqueue_many', 'args', _enqueue_many.args), weir._check_array('enqueue_many', 'priority', _enqueue_many.priority),
          weir._check_array('enqueue_many', 'run_at', _enqueue_many.run_at), weir._check_array('enqueue_many', 'max_attempts', _enqueue_many.max_attempts),
          weir._check_array('enqueue_many', 'meta', _enqueue_many.meta), weir._check_array('enqueue_many', 'key', _enqueue_many.key), weir._check_array('enqueue_many', 'flow', _enqueue_many.flow), weir._check_array('enqueue_many', 'once', _enqueue_many.once);
  FOR bad IN
    SELECT u.* FROM unnest(_enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                           _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key)
      WITH ORDINALITY u(queue, kind, args, priority, run_at, max_attempts, meta, key, ord)
    WHERE u.queue IS NULL OR u.queue = '' OR length(u.queue) > 128 OR u.kind IS NULL OR u.kind = '' OR length(u.kind) > 128
       OR jsonb_typeof(u.args) <> 'object'
       OR pg_column_size(u.args) > 2000 AND octet_length(u.args::text) > 1048576  -- elements of an array are not compressed
       OR u.priority NOT BETWEEN 1 AND 4 OR u.max_attempts NOT BETWEEN 1 AND 1000
       OR jsonb_typeof(u.meta) <> 'object' OR octet_length(u.meta::text) > 65536
       OR jsonb_path_exists(u.meta, '$.keyvalue() ? (@.key starts with "weir." && @.key != "weir.otel")', silent => true) OR u.run_at >= '10000-01-01 00:00:00+00'
       OR length(u.key) NOT BETWEEN 1 AND 200
  LOOP
    BEGIN
      PERFORM weir._check_job(bad.queue, bad.kind, coalesce(bad.args, '{}'), coalesce(bad.priority, 2), coalesce(bad.max_attempts, 25), bad.meta), weir._check_key(bad.key);
    EXCEPTION WHEN invalid_parameter_value THEN
      RAISE EXCEPTION '% (job % of %)', SQLERRM, bad.ord, n USING ERRCODE = '22023';
    END;
    IF bad.run_at >= '10000-01-01 00:00:00+00' THEN
      RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999 (job % of %)', bad.run_at, bad.ord, n USING ERRCODE = '22023';
    END IF;
  END LOOP;

  SELECT array_agg(d.name), array_agg(weir._queue_id(d.name)) INTO names, queue_ids
  FROM (SELECT u.name FROM unnest(_enqueue_many.queue) u(name) GROUP BY u.name ORDER BY u.name COLLATE "C") d;
  IF cardinality(names) > few THEN
    homes := ARRAY(SELECT queue_ids[r.place] FROM (SELECT u.ord, dense_rank() OVER (ORDER BY u.name COLLATE "C") AS place FROM unnest(_enqueue_many.queue) WITH ORDINALITY u(name, ord)) r ORDER BY r.ord);
  END IF;

  IF _enqueue_many.key IS NOT NULL THEN
    bits := ARRAY(SELECT CASE WHEN u.key IS NULL THEN 0 ELSE weir._key_bits(u.key) END FROM unnest(_enqueue_many.key) u(key));
    PERFORM weir._mark_keys(d.name) FROM (SELECT DISTINCT u.name FROM unnest(_enqueue_many.queue, _enqueue_many.key) u(name, key) WHERE u.key IS NOT NULL) d;
  END IF;
  IF _enqueue_many.once IS NOT NULL THEN
    SELECT k.hashes, k.known INTO hashes, known FROM weir._known_once(_enqueue_many.queue, _enqueue_many.flow, _enqueue_many.once) k;
    INSERT INTO weir.keyed (queue) SELECT DISTINCT u.queue FROM unnest(_enqueue_many.queue, hashes) u(queue, hash)
    WHERE u.hash IS NOT NULL AND NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = u.queue);
  END IF;
  this_xid := pg_current_xact_id();
  in_segment := pg_sequence_last_value('weir.active_job');  -- one segment for all: a row that leads is truncated no earlier than the rows that follow it
  SELECT array_agg(nextval('weir.job_id')) INTO ids FROM generate_series(1, n);

  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, key, flow, unique_key)
  SELECT u.id, this_xid, now(), u.lane, 1, coalesce(u.max_attempts, 25), in_segment,
         lag(u.lane) OVER () IS DISTINCT FROM u.lane, u.kind, coalesce(u.args, '{}'), u.meta, u.key, u.flow, u.hash
  FROM (SELECT u.*, (coalesce(u.home, queue_ids[array_position(names, u.queue)])::bigint << 39) + coalesce(u.priority, 2) - 1
                           + coalesce(u.bits, 0) AS lane
        FROM unnest(ids, _enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                    _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key, bits, _enqueue_many.flow, hashes, known, homes)
          u(id, queue, kind, args, priority, run_at, max_attempts, meta, key, bits, flow, hash, known, home)
        WHERE (u.run_at IS NULL OR u.run_at <= now()) AND u.known IS NULL) u;

  IF _enqueue_many.run_at IS NOT NULL THEN
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow, unique_key)
    SELECT u.id, this_xid, u.run_at, now(), (coalesce(u.home, queue_ids[array_position(names, u.queue)])::bigint << 39) + coalesce(u.priority, 2) - 1
             + coalesce(u.bits, 0), 1,
           coalesce(u.max_attempts, 25), pg_sequence_last_value('weir.active_later'), u.kind, coalesce(u.args, '{}'), u.meta, u.key, u.flow, u.hash
    FROM unnest(ids, _enqueue_many.queue, _enqueue_many.kind, _enqueue_many.args, _enqueue_many.priority,
                _enqueue_many.run_at, _enqueue_many.max_attempts, _enqueue_many.meta, _enqueue_many.key, bits, _enqueue_many.flow, hashes, known, homes)
      u(id, queue, kind, args, priority, run_at, max_attempts, meta, key, bits, flow, hash, known, home)
    WHERE u.run_at > now() AND u.known IS NULL;
  END IF;
  IF _enqueue_many.flow IS NOT NULL THEN
    PERFORM weir._join_flow(u.flow, count(*)) FROM unnest(_enqueue_many.flow, known) u(flow, known) WHERE u.flow IS NOT NULL AND u.known IS NULL GROUP BY u.flow;
  END IF;
  IF known IS NOT NULL THEN
    duplicates := ARRAY(SELECT k IS NOT NULL FROM unnest(known) WITH ORDINALITY u(k, nr) ORDER BY u.nr);
    -- Of those that occur twice in this call, the first is added.
    ids := ARRAY(SELECT CASE WHEN k < 0 THEN ids[- k] ELSE coalesce(k, ids[u.nr]) END FROM unnest(known) WITH ORDINALITY u(k, nr) ORDER BY u.nr);
  END IF;
END
$$;
CREATE FUNCTION weir._enqueue_request(request uuid, jobs jsonb, OUT ids bigint[], OUT duplicates boolean[], OUT repeated boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  -- The text of a jsonb has one form, whatever the order in which its keys were written.
  this  CONSTANT uuid := encode(substr(sha256(convert_to(jobs::text, 'UTF8')), 1, 16), 'hex')::uuid;
  known record;
BEGIN
  PERFORM weir._check_isolation('a request with a key', true), pg_advisory_xact_lock(1464158563, hashtext(request::text));
  -- In a statement of its own, which sees what others have committed while this one waited.
  SELECT r.body, r.ids, r.duplicates INTO known FROM weir.request r WHERE r.key = request AND r.at > now() - interval '1 day' ORDER BY r.at DESC LIMIT 1;
  repeated := FOUND;
  IF NOT repeated THEN
    SELECT e.ids, e.duplicates INTO ids, duplicates FROM weir._enqueue_json(jobs) e;
    IF true <> ALL (duplicates) THEN
      duplicates := NULL;
    END IF;
    INSERT INTO weir.request (key, body, at, ring, ids, duplicates) VALUES (request, this, now(), pg_sequence_last_value('weir.active_request'), ids, duplicates);
  ELSIF known.body <> this THEN
    RAISE EXCEPTION 'weir: the key of this request was used with other jobs less than a day ago' USING ERRCODE = 'WR007', HINT = 'Repeat a request as it was, and use a new key for another one.';
  ELSE
    ids := known.ids;
    duplicates := known.duplicates;
  END IF;
END
$$;
CREATE FUNCTION weir._enqueue_requests(requests uuid[], jobs text[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  mine bigint[];
  ids  bigint[];
BEGIN
  PERFORM weir._check_isolation('requests with keys', true);
  mine := ARRAY(SELECT min(u.ord) FROM unnest(requests) WITH ORDINALITY u(key, ord) GROUP BY u.key HAVING pg_try_advisory_xact_lock(1464158563, hashtext(u.key::text)));
  -- In a statement of its own, which sees what those have committed that had the locks before.
  mine := ARRAY(SELECT m FROM unnest(mine) m WHERE NOT EXISTS (SELECT FROM weir.request r WHERE r.key = requests[m] AND r.at > now() - interval '1 day'));
  WITH done AS MATERIALIZED (
    SELECT u.key, u.ord, u.job, weir.enqueue(x.queue, x.kind, x.args, x.priority, x.run_at, x.max_attempts, x.meta, x.key, x.flow) AS id
    FROM unnest(requests, jobs::jsonb[]) WITH ORDINALITY u(key, job, ord)
    CROSS JOIN LATERAL jsonb_to_record(u.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint)
    WHERE u.ord = ANY (mine)
  ), kept AS (
    INSERT INTO weir.request (key, body, at, ring, ids)
    SELECT d.key, encode(substr(sha256(convert_to(jsonb_build_array(d.job)::text, 'UTF8')), 1, 16), 'hex')::uuid, now(), pg_sequence_last_value('weir.active_request'), ARRAY[d.id] FROM done d
  )
  SELECT array_agg(d.id ORDER BY o.ord) INTO ids FROM generate_series(1, cardinality(requests)) o(ord) LEFT JOIN done d ON d.ord = o.ord;
  RETURN ids;
END
$$;
CREATE FUNCTION weir._enqueue_unique_many(jobs jsonb) RETURNS TABLE(id bigint, duplicate boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  few        CONSTANT integer := 20;
  n          integer := jsonb_array_length(jobs);
  j          record;      -- the jobs, as arrays
  known      boolean[];   -- there are rows with its key
  is_new     boolean[];   -- it is logged together with others
  duplicates boolean[];
  ids        bigint[];
  names      text[];
  queue_ids  integer[];
  homes      integer[];   -- the queue of each job, as an id; NULL: see _enqueue_many
  this_xid   xid8;
  u          record;
BEGIN
  IF n > 10000 THEN
    RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', n
      USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
  ELSIF n = 0 THEN
    RETURN;
  END IF;
  PERFORM weir._check_job(x.queue, x.kind, coalesce(x.args, '{}'), coalesce(x.priority, 2), coalesce(x.max_attempts, 25), x.meta),
          weir._check_unique(x.unique_key, x.fields, x.until, x.within, x.replace, coalesce(x.args, '{}')), weir._check_key(x.key)
  FROM jsonb_to_recordset(jobs) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, unique_key text, fields text[], until text, within interval, replace boolean,
                                    key text);
  SELECT array_agg(x.queue ORDER BY e.ord) AS queues, array_agg(x.kind ORDER BY e.ord) AS kinds, array_agg(coalesce(x.args, '{}') ORDER BY e.ord) AS args,
         array_agg(coalesce(x.priority, 2) ORDER BY e.ord) AS priorities, array_agg(x.run_at ORDER BY e.ord) AS run_at,
         array_agg(coalesce(x.max_attempts, 25) ORDER BY e.ord) AS max_attempts, array_agg(x.meta ORDER BY e.ord) AS metas,
         array_agg(weir._unique_key(x.queue, x.kind, coalesce(x.args, '{}'), x.unique_key, x.fields) ORDER BY e.ord) AS keys, array_agg(coalesce(x.wait, false) ORDER BY e.ord) AS waits,
         array_agg(coalesce(x.replace, false)::integer ORDER BY e.ord) AS replaces,
         array_agg(CASE WHEN x.within IS NOT NULL THEN now() + x.within WHEN x.replace OR x.until = 'started' THEN '-infinity' END ORDER BY e.ord) AS untils,
         array_agg(x.key ORDER BY e.ord) AS owners, array_agg(CASE WHEN x.key IS NULL THEN 0 ELSE weir._key_bits(x.key) END ORDER BY e.ord) AS bits
    INTO j
  FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
  CROSS JOIN LATERAL jsonb_to_record(e.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb,
                                              unique_key text, fields text[], until text, within interval, replace boolean, wait boolean, key text);
  BEGIN
    -- Worded so that the indexes are used, whatever the number of keys.
    known := ARRAY(SELECT coalesce((SELECT true FROM weir.job k WHERE k.unique_key = h.key LIMIT 1), (SELECT true FROM weir.later k WHERE k.unique_key = h.key LIMIT 1), false)
                   FROM unnest(j.keys) WITH ORDINALITY h(key, ord) ORDER BY h.ord);
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- releases the tables, as in enqueue_unique
    NULL;
  END;
  is_new := ARRAY(SELECT NOT w.known AND NOT w.waits AND w.nth = 1 AND (w.run_at < '10000-01-01 00:00:00+00') IS NOT FALSE
                  FROM (SELECT h.*, row_number() OVER (PARTITION BY h.key ORDER BY h.ord) AS nth
                        FROM unnest(j.keys, known, j.waits, j.run_at) WITH ORDINALITY h(key, known, waits, run_at, ord)) w ORDER BY w.ord);
  duplicates := array_fill(false, ARRAY[n]);

  SELECT array_agg(d.name), array_agg(weir._queue_id(d.name)) INTO names, queue_ids FROM (SELECT q.name FROM unnest(j.queues) q(name) GROUP BY q.name ORDER BY q.name COLLATE "C") d;
  IF cardinality(names) > few THEN
    homes := ARRAY(SELECT queue_ids[r.place] FROM (SELECT q.ord, dense_rank() OVER (ORDER BY q.name COLLATE "C") AS place FROM unnest(j.queues) WITH ORDINALITY q(name, ord)) r ORDER BY r.ord);
  END IF;
  INSERT INTO weir.keyed (queue) SELECT d.name FROM unnest(names) d(name) WHERE (SELECT true FROM weir.keyed k WHERE k.queue = d.name LIMIT 1) IS NULL;
  PERFORM weir._mark_keys(d.name) FROM (SELECT DISTINCT h.queue AS name FROM unnest(j.queues, j.owners, is_new) h(queue, owner, is_new) WHERE h.owner IS NOT NULL AND h.is_new) d;
  this_xid := pg_current_xact_id();  -- before the ids are drawn, as in enqueue
  ids := ARRAY(SELECT CASE WHEN h.is_new THEN nextval('weir.job_id') END FROM unnest(is_new) WITH ORDINALITY h(is_new, ord) ORDER BY h.ord);
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, unique_key, unique_no, unique_until, key)
  SELECT w.id, this_xid, now(), w.lane, 1, w.max_attempts, pg_sequence_last_value('weir.active_job'), lag(w.lane) OVER () IS DISTINCT FROM w.lane, w.kind, w.args, w.meta,
         w.key, w.id * 2 + w.replaces, w.until, w.owner
  FROM (SELECT h.*, (coalesce(h.home, queue_ids[array_position(names, h.queue)])::bigint << 39) + h.priority - 1 + h.bits AS lane
        FROM unnest(ids, j.queues, j.kinds, j.args, j.priorities, j.run_at, j.max_attempts, j.metas, j.keys, j.replaces, j.untils, j.owners, j.bits, homes)
          h(id, queue, kind, args, priority, run_at, max_attempts, meta, key, replaces, until, owner, bits, home)
        WHERE h.id IS NOT NULL AND (h.run_at <= now()) IS NOT FALSE) w;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
  SELECT h.id, this_xid, h.run_at, now(), (coalesce(h.home, queue_ids[array_position(names, h.queue)])::bigint << 39) + h.priority - 1 + h.bits, 1, h.max_attempts, pg_sequence_last_value('weir.active_later'), h.kind, h.args, h.meta,
         h.key, h.id * 2 + h.replaces, h.until, h.owner
  FROM unnest(ids, j.queues, j.kinds, j.args, j.priorities, j.run_at, j.max_attempts, j.metas, j.keys, j.replaces, j.untils, j.owners, j.bits, homes)
    h(id, queue, kind, args, priority, run_at, max_attempts, meta, key, replaces, until, owner, bits, home)
  WHERE h.id IS NOT NULL AND h.run_at > now();

  FOR i IN 1..n LOOP
    CONTINUE WHEN is_new[i];
    SELECT a.* INTO u
    FROM jsonb_to_record(jobs -> (i - 1)) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb,
                                            unique_key text, fields text[], until text, within interval, replace boolean, wait boolean, key text)
    CROSS JOIN LATERAL weir.enqueue_unique(x.queue, x.kind, x.args, x.unique_key, x.fields, x.until, x.within, x.replace, x.wait, x.priority, x.run_at, x.max_attempts, x.meta, x.key) a;
    ids[i] := u.id;
    duplicates[i] := u.duplicate;
  END LOOP;
  RETURN QUERY SELECT w.id, w.duplicate FROM unnest(ids, duplicates) WITH ORDINALITY w(id, duplicate, ord) ORDER BY w.ord;
END
$$;
CREATE FUNCTION weir._epoch_here() RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  newest weir.epoch;
BEGIN
  SELECT e.* INTO newest FROM weir.epoch e ORDER BY e.from_tick DESC LIMIT 1;
  IF newest.home = weir._epoch_home() AND newest.started_at = pg_postmaster_start_time() THEN
    RETURN newest.epoch;  -- it was drawn in this cluster
  END IF;
  PERFORM weir._check_message_cluster();
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._epoch_home() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8) || ' ' || pg_relation_filepath('weir.epoch');
END
$$;
CREATE FUNCTION weir._epoch_of(tick bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  -- Volatile, because the caller's snapshot may be older than a rebase that the call has waited for.
  RETURN (SELECT e.epoch FROM weir.epoch e WHERE e.from_tick <= _epoch_of.tick ORDER BY e.from_tick DESC LIMIT 1);
END
$$;
CREATE FUNCTION weir._failed_between(lanes bigint[], since timestamp with time zone, before timestamp with time zone, most integer) RETURNS SETOF timestamp with time zone LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001
AS $$
  SELECT f.finished_at FROM (
    (SELECT f.finished_at FROM weir.failure f
     WHERE _failed_between.lanes IS NULL AND f.finished_at >= _failed_between.since AND f.finished_at < _failed_between.before
     ORDER BY f.finished_at DESC LIMIT _failed_between.most)
    UNION ALL
    SELECT f.finished_at FROM unnest(_failed_between.lanes) l(lane) CROSS JOIN LATERAL (
      SELECT f.finished_at FROM weir.failure f
      WHERE f.lane = l.lane AND f.key IS NOT NULL AND f.finished_at >= _failed_between.since AND f.finished_at < _failed_between.before
      ORDER BY f.finished_at DESC, f.id DESC LIMIT _failed_between.most) f) f  -- worded so that their own index is used
  ORDER BY f.finished_at DESC LIMIT _failed_between.most
$$;
CREATE FUNCTION weir._fence_silent() RETURNS TABLE(worker integer, reason text, more boolean, error text) LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  session_grace constant interval := '3 seconds';  -- for a worker whose session has ended to attend with another
  lease_grace   constant interval := '2 seconds';  -- weir.watched advances by up to 2 s at once: a heartbeat may have come at the end of that step
  clock         bigint;
  passed        bigint;
  reading       bigint;
  since         bigint;  -- weir.watched at the first check since this server started
  crowded       boolean;
  w             record;
  advances      boolean;
  is_new        boolean;
  silent        interval;
  missed        integer := 0;
  fenced        integer := 0;
BEGIN
  FOR w IN SELECT u.*, bool_or(u.is_missing) OVER () AS anybody_missing, bool_or(u.is_awaited) OVER () AS anybody_awaited
           FROM (SELECT u.*, u.says IS DISTINCT FROM 'beats' OR greatest(clock_timestamp() - u.seen_at, u.seen_at - clock_timestamp()) > u.lease AS is_missing,
                        coalesce(u.says = 'missed', false) AND EXISTS (SELECT FROM weir.attendance a WHERE a.worker = u.id AND a.started_at = pg_postmaster_start_time()) AS is_awaited
                 FROM weir._unattended() u) u
           ORDER BY u.id LOOP
    IF reading IS NULL THEN  -- while all workers attend, the clock doesn't advance
      clock := extract(epoch FROM clock_timestamp()) * 1000;
      -- A worker whose session has ended has little time to come back; a clock step takes no more of it than the usual time between two checks. Of all others
      -- the lease counts, as after a restart: there a check that comes late must count for more, or a lease of seconds would take minutes.
      passed := least(abs(clock - pg_sequence_last_value('weir.watched_at')), CASE WHEN w.anybody_awaited THEN 500 ELSE 2000 END);
      advances := passed >= 1000 OR w.anybody_missing AND passed >= 200;
      IF advances THEN
        PERFORM setval('weir.watched_at', clock), setval('weir.watched', pg_sequence_last_value('weir.watched') + passed);
      END IF;
      reading := pg_sequence_last_value('weir.watched');
      -- A crash or a failover may have undone renewals: after it, every lease starts over.
      SELECT a.watched INTO since FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time();
      IF NOT FOUND THEN
        since := reading;
        INSERT INTO weir.attendance (worker, started_at, watched) VALUES (0, pg_postmaster_start_time(), since);
      END IF;
    END IF;
    EXIT WHEN fenced >= 20 OR missed >= 100;
    is_new := coalesce(w.says, 'attends') = 'attends';
    silent := (reading - greatest(w.watched, since)) * interval '1 ms';
    CONTINUE WHEN NOT w.is_missing AND silent <= w.lease + lease_grace;
    worker := w.id;
    more := true;
    IF is_new THEN
      reason := 'its session has ended';
    ELSIF silent > w.lease + lease_grace THEN
      reason := format('worker %s (%s) was lost: silent for %s', w.id, w.name, date_trunc('second', silent));
    ELSE
      reason := format('worker %s (%s) was lost: its session has ended', w.id, w.name);
      IF w.is_awaited AND silent >= session_grace THEN
        crowded := coalesce(crowded, weir._is_crowded());
      END IF;
      IF NOT w.is_awaited OR silent < session_grace OR crowded THEN
        -- While a lease decides, whoever has advanced the clock checks again soon, and nobody else need do so: few may be left of many maintainers, and as long as
        -- the lost ones count, each has its turn as rarely as when all were alive.
        IF advances OR w.is_awaited AND silent < session_grace THEN
          more := false;
          RETURN NEXT;
        END IF;
        CONTINUE;
      END IF;
    END IF;
    -- No worker can write under this lock, so the last word of now stays the last word until the commit.
    IF NOT pg_try_advisory_xact_lock(1464158555, w.id) THEN
      error := weir._prepared_for(w.id);
      IF error IS NOT NULL THEN
        more := false;
        RETURN NEXT;
        error := NULL;
      END IF;
      CONTINUE;
    END IF;
    CONTINUE WHEN (SELECT max(h.no) FROM weir.last_word h WHERE h.worker = w.id) IS DISTINCT FROM w.no;
    IF is_new THEN
      PERFORM weir._note_word(w.id, 'missed', coalesce(w.running, 0));
      missed := missed + 1;
      RETURN NEXT;
      CONTINUE;
    END IF;
    BEGIN
      IF NOT weir._fence(w.id, reason) THEN
        RAISE SQLSTATE 'WR099';  -- releases its locks
      END IF;
      fenced := fenced + 1;
      RETURN NEXT;
    EXCEPTION
      WHEN SQLSTATE 'WR099' THEN
        error := weir._prepared_for(w.id);
        IF error IS NOT NULL THEN
          more := false;
          RETURN NEXT;
          error := NULL;
        END IF;
      WHEN OTHERS THEN
        more := false;
        error := SQLERRM;
        RETURN NEXT;
        error := NULL;
    END;
  END LOOP;
END
$$;
CREATE FUNCTION weir._fence(worker integer, reason text DEFAULT 'its worker was fenced'::text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._check_isolation('fence'), weir._hold_briefly();
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = _fence.worker) THEN
    RAISE EXCEPTION 'weir: worker % is unknown', _fence.worker USING ERRCODE = 'WR001', HINT = 'Pass an id that weir.start returned.';
  END IF;
  -- A record or claim in flight holds one of them: then the worker is alive, and a later call tries again.
  IF NOT (pg_try_advisory_xact_lock(1464158548, _fence.worker) AND pg_try_advisory_xact_lock(1464158552, _fence.worker)) THEN
    RETURN false;
  END IF;
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = _fence.worker AND w.fenced) THEN
    INSERT INTO weir.worker (id, fenced, at, name) VALUES (_fence.worker, true, clock_timestamp(), left(_fence.reason, 200));
  END IF;
  RETURN true;
END
$$;
CREATE FUNCTION weir._fields_of(fields jsonb, names text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT jsonb_object_agg(n, _fields_of.fields -> n) FROM unnest(_fields_of.names) n
$$;
CREATE FUNCTION weir._filters_of(queue text, priority integer) RETURNS weir.cancellation_where[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN (SELECT array_agg(w) FROM weir.cancellation_where w
          WHERE (w.queue IS NULL OR w.queue = _filters_of.queue) AND (_filters_of.priority IS NULL OR w.priority IS NULL OR w.priority = _filters_of.priority));
END
$$;
CREATE FUNCTION weir._fire(marks weir.later[], at_time timestamp with time zone, most integer) RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  grace     CONSTANT interval := '1 minute';  -- due times that are later than this were missed
  most_each CONSTANT integer := 100;
  mark      weir.later;
  s         weir.schedule;
  fired     integer := 0;
  n         integer;
  this_due  timestamptz;
  next_due  timestamptz;
  next_run  timestamptz;
  is_late   boolean;
BEGIN
  FOREACH mark IN ARRAY marks LOOP
    SELECT k.* INTO s FROM weir.schedule k WHERE k.name = mark.kind AND k.generation = mark.attempt AND k.paused_at IS NULL;
    CONTINUE WHEN NOT FOUND;  -- changed, paused or dropped since
    n := 0;
    next_due := mark.enqueued_at;
    next_run := mark.run_at;
    WHILE next_run <= at_time AND n < most_each AND fired < most LOOP  -- the next call does the rest
      this_due := next_due;
      is_late := this_due < at_time - s.jitter - grace;
      BEGIN
        IF is_late AND s.missed <> 'all' THEN
          this_due := weir._due_upto(s.fields, s.time_zone, this_due, at_time - s.jitter - grace);  -- the newest of them stands for all
        END IF;
        next_due := weir._due_after(s.fields, s.time_zone, this_due);
      EXCEPTION WHEN OTHERS THEN  -- PostgreSQL does not know the time zone any more: that must not stop other schedules
        RAISE WARNING 'weir: schedule %: %', s.name, SQLERRM USING ERRCODE = SQLSTATE;
        next_run := at_time + interval '1 minute';
        EXIT;
      END;
      IF NOT EXISTS (SELECT FROM weir.firing f WHERE f.name = s.name AND f.due = this_due) THEN
        INSERT INTO weir.firing (name, due, job)
        VALUES (s.name, this_due, CASE WHEN NOT is_late OR s.missed <> 'none' THEN weir._enqueue_due(s, this_due) END);
        fired := fired + 1;
      END IF;
      n := n + 1;
      next_run := next_due + random() * s.jitter;
    END LOOP;
    IF next_due IS NOT NULL THEN
      -- After at_time, and so beyond the point of promotion, whose snapshot may count this transaction as ended.
      PERFORM weir._mark_due(s.name, s.generation, next_due, greatest(next_run, at_time + interval '1 millisecond'));
    END IF;
  END LOOP;
  RETURN fired;
END
$$;
CREATE FUNCTION weir._first_instant(wall timestamp without time zone, time_zone text, OUT instant timestamp with time zone, OUT is_skipped boolean) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  reach  CONSTANT interval := '30 hours';  -- clocks have changed by up to a day
  before timestamptz;  -- by the offset before a change nearby
  after  timestamptz;
BEGIN
  instant := wall AT TIME ZONE time_zone;
  before := (wall - weir._offset_at(instant - reach, time_zone)) AT TIME ZONE 'UTC';
  after := (wall - weir._offset_at(instant + reach, time_zone)) AT TIME ZONE 'UTC';
  is_skipped := false;
  IF before = after THEN
    RETURN;
  END IF;
  SELECT min(c) INTO instant FROM (VALUES (before), (after)) v(c) WHERE c AT TIME ZONE time_zone = wall;
  IF instant IS NULL THEN
    is_skipped := true;
    instant := weir._clock_change(least(before, after), greatest(before, after), time_zone);
  END IF;
END
$$;
CREATE FUNCTION weir._first_look() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF pg_is_in_recovery() THEN  -- unlogged tables can't be read there
    RETURN 0;
  END IF;
  RETURN coalesce((SELECT a.watched FROM weir.attendance a WHERE a.worker = 0 AND a.started_at = pg_postmaster_start_time()), pg_sequence_last_value('weir.watched'));
END
$$;
CREATE FUNCTION weir._first_tick_after(at timestamp with time zone, OUT tick bigint, OUT epoch bigint, OUT is_kept boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  floor bigint := coalesce(pg_sequence_last_value('weir.tick_floor'), 0);
  low  bigint := floor;                                                       -- it is too early, or there is none
  high bigint := coalesce(pg_sequence_last_value('weir.tick_seq'), 0) + 1;    -- it is late enough
  mid  bigint;
  made timestamptz;
BEGIN
  -- By bisection, among the ticks in the order of their numbers. Where a clock was set back, it is one of the places with this time.
  WHILE high - low > 1 LOOP
    mid := (low + high) / 2;
    SELECT t.at INTO made FROM weir.tick t WHERE t.seq = mid LIMIT 1;
    IF made IS NULL OR made <= _first_tick_after.at THEN
      low := mid;
    ELSE
      high := mid;
    END IF;
  END LOOP;
  tick := high;
  epoch := weir._epoch_of(low);
  is_kept := low > floor OR floor = 0;
END
$$;
CREATE FUNCTION weir._flows_among(ids bigint[], flows bigint[], wanted bigint[]) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF cardinality(_flows_among.flows) <= 1 OR _flows_among.flows IS NULL THEN
    RETURN _flows_among.flows;
  END IF;
  RETURN weir._flows_of(ARRAY(SELECT _flows_among.flows[array_position(_flows_among.ids, u.id)] FROM unnest(_flows_among.wanted) WITH ORDINALITY u(id, nr) ORDER BY u.nr));
END
$$;
CREATE FUNCTION weir._flows_in(segment integer, ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
BEGIN
  RETURN ARRAY(
    SELECT (SELECT j.flow FROM weir.job j WHERE j.segment = _flows_in.segment AND j.id = u.id LIMIT 1)
    FROM unnest(_flows_in.ids) WITH ORDINALITY u(id, nr) ORDER BY u.nr);
END
$$;
CREATE FUNCTION weir._flows_of(flows bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE WHEN min(f) IS NOT NULL THEN CASE WHEN min(f) = max(f) AND count(f) = count(*) THEN ARRAY[min(f)] ELSE flows END END FROM unnest(flows) f
$$;
CREATE FUNCTION weir._fold_arrivals(OUT folded integer, OUT fired integer, OUT busy boolean, OUT is_used boolean, OUT again boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  c         weir.flow_cut;
  at        timestamptz;
  was       weir.fold[];  -- what was counted before
  sums      weir.fold[];  -- and with what has arrived since
  is_new    boolean;      -- some are new, and members of others
  is_nested boolean;      -- some may be members of others, or have some
  plain     weir.fold[];  -- the sums, before it is known what follows from them
  taken     boolean[] := '{}';  -- of which of them the end was taken back
  is_over   boolean;      -- some start over
  failing   bigint[];     -- flows that members have failed of
  late      bigint[];     -- flows that somebody has cancelled, or added jobs to
  passed    boolean := false;
BEGIN
  folded := 0;
  fired := 0;
  busy := false;
  again := false;
  is_used := pg_relation_size('weir.flow') > 0;
  IF NOT is_used THEN
    RETURN;
  END IF;
  PERFORM weir._check_isolation('fold'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: fold needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 7) THEN
    busy := true;
    RETURN;
  END IF;
  PERFORM weir._check_cluster();
  SELECT k.* INTO c FROM weir.flow_cut k ORDER BY k.no DESC LIMIT 1;
  at := clock_timestamp();  -- if it was set back, flows whose deadline comes again are sealed already
  IF NOT EXISTS (SELECT FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e CROSS JOIN LATERAL (SELECT FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high LIMIT 1) a)
     AND NOT EXISTS (SELECT FROM weir.flow f WHERE f.task IS NULL AND f.deadline > c.due AND f.deadline <= at) THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);  -- a lost cut is made again, because its callbacks are lost with it

  -- This transaction gets its id only after the snapshot of this statement was taken: so the next cut counts what it logs itself. And before ids are drawn, as in enqueue.
  WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
  news AS MATERIALIZED (
    SELECT a.flow, sum(a.jobs) AS jobs, sum(a.completed) AS completed, sum(a.failed) AS failed, sum(a.cancelled) AS cancelled, sum(a.waits) AS waits, sum(a.broken) AS broken,
           array_agg(a.counts) FILTER (WHERE a.counts IS NOT NULL) AS counts,
           coalesce(bool_or(a.jobs > a.completed + a.failed + a.cancelled), false) AS reopened, coalesce(bool_or(a.event IN ('sealed', 'cancelled')), false) AS seals, coalesce(bool_or(a.failed > 0), false) AS fails, coalesce(bool_or(a.event = 'cancelled' OR a.event IS NULL AND a.jobs > 0), false) AS late,
           max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no, max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no
    FROM (
      SELECT a.flow, a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e
      CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high OFFSET 0) a
      UNION ALL  -- those whose deadline has come
      SELECT d.id, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL FROM weir.flow d WHERE d.task IS NULL AND d.deadline > c.due AND d.deadline <= at) a
    GROUP BY a.flow
  ), summed AS MATERIALIZED (
    SELECT d.parent, n.fails, n.late, p AS was,
           ROW(n.flow, c.no + 1, n.jobs + coalesce(p.jobs, 0), n.completed + coalesce(p.completed, 0), n.failed + coalesce(p.failed, 0),
               n.cancelled + coalesce(p.cancelled, 0) - coalesce(p.is_skipped, false)::integer, coalesce(p.generation, 1) + (p.fired_at IS NOT NULL AND n.reopened)::integer,
               z.is_sealed OR coalesce(d.deadline <= at, false), coalesce(e.cancelled_no > coalesce(e.retried_no, 0), false),
               coalesce(p.is_abandoned, false) OR coalesce(d.deadline <= at, false) AND NOT z.is_sealed, CASE WHEN NOT n.reopened THEN p.fired_at END,
               p.waits + coalesce(n.waits, 0), p.broken + coalesce(n.broken, 0), coalesce(p.is_skipped, false), p.job,
               CASE WHEN n.counts IS NOT NULL THEN weir._add_counts(p.counters, n.counts) ELSE p.counters END,
               e.cancelled_no, e.retried_no)::weir.fold AS sum
    FROM news n
    CROSS JOIN LATERAL (SELECT CASE WHEN d.task IS NULL THEN d.deadline END AS deadline, d.task IS NOT NULL AS is_task, d.parent FROM weir.flow d WHERE d.id = n.flow OFFSET 0) d  -- without one, it is forgotten
    LEFT JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = n.flow ORDER BY p.cut DESC LIMIT 1) p ON true
    CROSS JOIN LATERAL (SELECT n.seals OR coalesce(p.is_sealed, d.is_task) AS is_sealed) z
    CROSS JOIN LATERAL (SELECT greatest(n.cancelled_no, p.cancelled_no) AS cancelled_no, greatest(n.retried_no, p.retried_no) AS retried_no) e  -- whatever the order of their commits
  ), moved AS (
    INSERT INTO weir.flow_cut (no, due, snapshot) SELECT c.no + 1, at, s.snapshot FROM s
  )
  SELECT array_agg(k.was ORDER BY (k.sum).flow), array_agg(k.sum ORDER BY (k.sum).flow), bool_or(k.parent IS NOT NULL AND (k.was).flow IS NULL), bool_or(k.parent IS NOT NULL OR (k.sum).is_cancelled <> coalesce((k.was).is_cancelled, false)),
         array_agg((k.sum).flow) FILTER (WHERE k.fails), array_agg((k.sum).flow) FILTER (WHERE k.late)
    INTO was, sums, is_new, is_nested, failing, late FROM summed k;
  IF sums IS NULL THEN
    RETURN;
  ELSIF is_new THEN
    sums := weir._begin_nested(sums, was);
  END IF;

  IF is_nested THEN
    SELECT k.sums, k.was INTO sums, was FROM weir._take_along(sums, was, c.no + 1) k;
    plain := sums;
  END IF;
  sums := weir._settle_sums(sums, was, at);
  WHILE is_nested LOOP
    SELECT k.sums, k.was, k.taken, k.more INTO plain, was, taken, is_over FROM weir._take_back(plain, was, taken, sums, c.no + 1) k;
    EXIT WHEN NOT is_over;
    sums := weir._settle_sums(plain, was, at);
  END LOOP;
  INSERT INTO weir.fold SELECT f.* FROM unnest(sums) f;
  folded := cardinality(sums);

  IF is_nested THEN
    PERFORM weir._release_tasks(sums, was);
    passed := weir._pass_on(sums, was, taken);
  END IF;
  SELECT e.fired, e.again OR passed INTO fired, again FROM weir._end_flows(sums, was, failing) e;
  IF late IS NOT NULL THEN
    PERFORM weir._cancel_late(sums, late);
  END IF;
END
$$;
CREATE FUNCTION weir._forget_ended() RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  max_queues CONSTANT integer := 500;  -- checked in one call
  max_locked CONSTANT integer := 200;  -- lanes
  min_ended  CONSTANT integer := 4;    -- pending transactions that have ended, before a lane is trimmed; or all of them
  snapshot   pg_snapshot := pg_current_snapshot();
  checked    integer[] := ARRAY(SELECT q.id FROM weir.queue q WHERE q.id > coalesce(pg_sequence_last_value('weir.idle_looked'), 0) ORDER BY q.id LIMIT max_queues);
  upto       integer := CASE WHEN cardinality(checked) = max_queues THEN checked[max_queues] ELSE 0 END;  -- 0: start over
  this_lane  bigint;
  locked     integer := 0;
  trimmed    integer := 0;
  last       record;
  kept       record;
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN 0;
  END IF;
  PERFORM weir._check_cluster();
  FOR this_lane IN
    SELECT l.lane FROM unnest(checked) q(id) CROSS JOIN generate_series(q.id::bigint << 39, (q.id::bigint << 39) + 3) l(lane)
    CROSS JOIN LATERAL (SELECT b.pending FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s
    WHERE (SELECT count(*) FROM unnest(s.pending) p(xid) WHERE pg_visible_in_snapshot(p.xid, snapshot)) >= least(min_ended, nullif(cardinality(s.pending), 0))
  LOOP
    IF locked = max_locked OR clock_timestamp() - now() > interval '100 ms' AND locked > 0 THEN
      upto := (this_lane >> 39)::integer - 1;
      EXIT;
    END IF;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158546, ((this_lane >> 39) * 4 + (this_lane & 3))::integer);
    locked := locked + 1;
    SELECT b.* INTO last FROM weir.batch b WHERE b.lane = this_lane ORDER BY b.seq DESC LIMIT 1;
    -- As in a claim: a new snapshot, taken after the lane's lock; the query below sees at least as much.
    snapshot := pg_current_snapshot();
    SELECT array_agg(p.xid ORDER BY p.ord) AS xids, array_agg(p.after ORDER BY p.ord) AS afters, count(*) AS n INTO kept
    FROM unnest(last.pending, last.pending_after) WITH ORDINALITY p(xid, after, ord)
    WHERE NOT pg_visible_in_snapshot(p.xid, snapshot)
       OR EXISTS (SELECT FROM weir.job j WHERE j.lane = this_lane AND j.xid = p.xid AND j.id > p.after);
    IF kept.n < cardinality(last.pending) THEN
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
      VALUES (this_lane, pg_sequence_last_value('weir.active_job'), 0, 0, last.seq + 1, last.from_xid, last.to_xid, last.pos_xid, last.pos_id,
              last.total, last.claimed_at, 0, kept.xids, kept.afters, '{}');
      trimmed := trimmed + 1;
    END IF;
  END LOOP;
  PERFORM setval('weir.idle_looked', upto);
  RETURN trimmed;
END
$$;
CREATE FUNCTION weir._forget_failures(job_ids bigint[]) RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  n integer;
BEGIN
  -- As weir.retry notes that a failure is not the end of its job, in the failure's segment; but no attempt follows.
  INSERT INTO weir.failure (id, segment, lane, attempt)
  SELECT f.id, f.segment, f.lane, f.attempt + 1
  FROM unnest(_forget_failures.job_ids) i(id)
  CROSS JOIN LATERAL (SELECT k.* FROM weir.failure k WHERE k.id = i.id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1) f
  WHERE f.finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM weir.job j WHERE j.id = i.id AND j.attempt > f.attempt);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END
$$;
CREATE FUNCTION weir._forget_workers() RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  ended integer[];
BEGIN
  -- A worker with unfinished attempts is kept.
  SELECT array_agg(e.id) INTO ended
  FROM (SELECT f.id, f.at, row_number() OVER (ORDER BY f.at DESC, f.id DESC) AS nr FROM weir.worker f WHERE f.fenced) e
  WHERE (e.nr > 1000 OR e.at < now() - interval '1 day') AND EXISTS (SELECT FROM weir.settled s WHERE s.worker = e.id AND s.no = 9223372036854775807);
  IF ended IS NULL THEN
    RETURN 0;
  END IF;
  DELETE FROM weir.worker w USING unnest(ended) g(id) WHERE w.id = g.id;
  DELETE FROM weir.attendance a USING unnest(ended) g(id) WHERE a.worker = g.id;
  RETURN cardinality(ended);
END
$$;
CREATE FUNCTION weir._free_slots(gates integer[], counts integer[], lanes bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT u.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), sum(u.n), array_agg(u.lane) FILTER (WHERE u.lane IS NOT NULL)
  FROM unnest(_free_slots.gates, _free_slots.counts, _free_slots.lanes) u(gate, n, lane) WHERE u.gate IS NOT NULL GROUP BY u.gate;
  IF FOUND THEN
    PERFORM nextval('weir.job_id');  -- wakes idle workers, as a new job does: first the xid, then the id
  END IF;
END
$$;
CREATE FUNCTION weir._fresh_between(running xid8[], top xid8, OUT known boolean[], OUT lanes bigint[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
DECLARE
  max_ranges CONSTANT integer := 256;
  max_lanes  CONSTANT integer := 4;
BEGIN
  WITH stretch AS MATERIALIZED (
    SELECT f.n <= max_lanes AS known, CASE WHEN f.n <= max_lanes THEN f.lanes END AS lanes
    FROM generate_series(1, least(cardinality(running), max_ranges)) i
    CROSS JOIN LATERAL (
      SELECT count(*) AS n, array_agg(j.lane) AS lanes FROM (
        SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid > running[i] AND j.xid < coalesce(running[i + 1], top)
          AND running[i + 1]::text::bigint - running[i]::text::bigint IS DISTINCT FROM 1
        ORDER BY j.xid LIMIT max_lanes + 1) j) f)
  SELECT array_agg(s.known), ARRAY(SELECT DISTINCT l FROM stretch t, unnest(t.lanes) l)
    INTO _fresh_between.known, _fresh_between.lanes FROM stretch s;
END
$$;
CREATE FUNCTION weir._fresh_lanes(since pg_snapshot, snapshot pg_snapshot, max_rows integer DEFAULT 200) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
DECLARE
  lanes bigint[];
BEGIN
  lanes := ARRAY(
    SELECT f.lane FROM weir._ended_since(_fresh_lanes.since, _fresh_lanes.snapshot) e
    CROSS JOIN LATERAL (
      SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid >= e.low AND j.xid < e.high ORDER BY j.xid LIMIT _fresh_lanes.max_rows + 1) f
    LIMIT _fresh_lanes.max_rows + 1);
  IF cardinality(lanes) > _fresh_lanes.max_rows THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY(SELECT DISTINCT l FROM unnest(lanes) l);
END
$$;
CREATE FUNCTION weir._fresh_queues(seen pg_snapshot DEFAULT NULL::pg_snapshot, jobs bigint DEFAULT NULL::bigint, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, patience integer DEFAULT 0, OUT names text[], OUT counts integer[], OUT seen_now pg_snapshot, OUT jobs_now bigint) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  max_count CONSTANT integer := 100;
  lanes     bigint[];
  has_keys  boolean;
  key_lanes bigint[];  -- if there are many
  poll      integer := 1;
  slept     text;
BEGIN
  IF _fresh_queues.polls IS NULL OR _fresh_queues.pause IS NULL OR _fresh_queues.polls < 1 OR _fresh_queues.polls * _fresh_queues.pause > 1 THEN
    RAISE EXCEPTION 'weir: fresh_queues polls for at most 1 second, got % polls, every % s', _fresh_queues.polls, _fresh_queues.pause USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('fresh_queues');
  -- As in weir._await_tick: while nothing happens, no table is read.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);  -- before the snapshot
    EXIT WHEN _fresh_queues.seen IS NULL OR jobs_now IS DISTINCT FROM _fresh_queues.jobs;
    IF poll > _fresh_queues.patience THEN
      seen_now := pg_current_snapshot();
      EXIT WHEN seen_now::text <> _fresh_queues.seen::text;
    END IF;
    IF poll >= _fresh_queues.polls THEN
      seen_now := _fresh_queues.seen;
      RETURN;
    END IF;
    poll := poll + 1;
    slept := pg_sleep(_fresh_queues.pause);
  END LOOP;
  IF _fresh_queues.seen IS NULL THEN
    seen_now := pg_current_snapshot();
    RETURN;
  END IF;
  seen_now := pg_current_snapshot();
  lanes := weir._fresh_lanes(_fresh_queues.seen, seen_now);
  has_keys := lanes IS NULL AND EXISTS (SELECT FROM weir.with_keys);
  IF has_keys THEN
    key_lanes := weir._fresh_lanes(_fresh_queues.seen, seen_now, 5000);  -- NULL: more; then each queue with keys may have some
    key_lanes := CASE WHEN key_lanes IS NOT NULL THEN ARRAY(SELECT f FROM unnest(key_lanes) f WHERE f & 549755813880 <> 0) END;
  END IF;
  WITH ended AS MATERIALIZED (SELECT e.low, e.high FROM weir._ended_since(_fresh_queues.seen, seen_now) e),
  fresh AS MATERIALIZED (
    SELECT q.name, sum(j.n)::integer AS n
    FROM (SELECT unnest(lanes) AS lane UNION ALL SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p WHERE lanes IS NULL
          UNION ALL SELECT unnest(key_lanes)) l
    JOIN weir.queue q ON q.id = (l.lane >> 39)::integer
    CROSS JOIN ended e CROSS JOIN LATERAL (
      SELECT count(*) AS n FROM (
        SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid >= e.low AND j.xid < e.high ORDER BY j.lane, j.xid, j.id LIMIT max_count) j) j
    GROUP BY q.name HAVING sum(j.n) > 0
  )
  SELECT array_agg(f.name ORDER BY f.name), array_agg(f.n ORDER BY f.name) INTO names, counts
  FROM (SELECT u.name, max(u.n) AS n FROM (SELECT f.name, f.n FROM fresh f UNION ALL SELECT w.queue, max_count FROM weir.with_keys w WHERE has_keys AND key_lanes IS NULL) u GROUP BY u.name) f;
END
$$;
CREATE FUNCTION weir._full_errors(errors jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce(jsonb_agg(k.entry || jsonb_build_object('error', first_value) ORDER BY k.nr), '[]')
  FROM (
    SELECT s.entry, s.nr, first_value(s.entry -> 'error') OVER (PARTITION BY s.run ORDER BY s.nr)
    FROM (
      SELECT u.entry, u.nr, count(u.entry -> 'error') OVER (ORDER BY u.nr) AS run
      FROM jsonb_array_elements(_full_errors.errors) WITH ORDINALITY u(entry, nr)) s) k
$$;
CREATE FUNCTION weir._gate_now(name text, gate integer, to_write boolean, OUT seq bigint, OUT running integer, OUT counted integer, OUT folded pg_snapshot, OUT next_start timestamp with time zone, OUT before bigint, OUT at timestamp with time zone, OUT room integer, OUT next_at timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  lim       weir.queue_limit;
  newest    weir.gate;
  earlier   integer := 0;  -- attempts that ran when the gate was opened, and still do
  by_second double precision;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _gate_now.name;
  SELECT g.* INTO newest FROM weir.gate g WHERE g.gate = _gate_now.gate ORDER BY g.seq DESC LIMIT 1;
  IF newest.seq IS NULL THEN
    IF to_write THEN
      newest := weir._open_gate(_gate_now.name, _gate_now.gate);
    ELSE
      newest.seq := 0;
      newest.running := 0;
      newest.folded := pg_current_snapshot();
    END IF;
  END IF;
  folded := weir._snapshot_of_others();  -- statements below may see more: what this snapshot does not see is left to the next row
  counted := newest.running - coalesce((
    SELECT sum(r.n) FROM weir._ended_since(newest.folded, folded) e
    CROSS JOIN LATERAL (SELECT r.n FROM weir.release r WHERE r.gate = _gate_now.gate AND r.xid >= e.low AND r.xid < e.high
                          AND pg_visible_in_snapshot(r.xid, folded) OFFSET 0) r), 0);
  IF newest.before IS NOT NULL THEN
    earlier := (
      SELECT coalesce(sum(b.n - coalesce(r.n, 0)), 0) FROM weir.gate g CROSS JOIN LATERAL unnest(g.before_lanes, g.before_seqs) u(lane, seq)
      CROSS JOIN LATERAL (SELECT sum(cardinality(b.ids)) AS n FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq) b
      CROSS JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.lane = u.lane AND r.seq = u.seq) r
      WHERE g.gate = _gate_now.gate AND g.seq = newest.before);
  END IF;
  seq := newest.seq;
  running := counted + earlier;
  before := CASE WHEN earlier > 0 THEN newest.before END;
  room := lim.running - running;
  IF lim.rate IS NOT NULL THEN
    at := clock_timestamp();
    by_second := lim.rate / extract(epoch FROM lim.per);
    next_start := newest.next_start;
    IF coalesce(room, 1) > 0 THEN
      room := least(room, weir._starts_now(by_second, lim.burst, next_start, at));
      IF room <= 0 THEN
        next_at := weir._starts_at(by_second, lim.burst, next_start, at);
      END IF;
    END IF;
  END IF;
  room := coalesce(room, 2147483647);
END
$$;
CREATE FUNCTION weir._has_key_news(ids bigint[], since pg_snapshot, snapshot pg_snapshot) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
DECLARE
  max_xips CONSTANT integer := 16;
  max_rows CONSTANT integer := 50;
  found    record;
BEGIN
  IF (SELECT count(*) > max_xips FROM pg_snapshot_xip(_has_key_news.since)) THEN
    -- Nobody writes the first snapshot anew while the queue has no news, so very many transactions that it does not see may have ended. They are
    -- not looked for one by one if few rows were logged since the first of them began.
    SELECT count(*) AS n, coalesce(bool_or(NOT pg_visible_in_snapshot(f.xid, _has_key_news.since)), false) AS any INTO found
    FROM (SELECT j.xid FROM weir._ended_since(format('%1$s:%1$s:', pg_snapshot_xmin(_has_key_news.since))::pg_snapshot, _has_key_news.snapshot) e
          CROSS JOIN unnest(_has_key_news.ids) q(id)
          CROSS JOIN LATERAL (
            SELECT j.xid FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
            ORDER BY j.lane >> 39, j.xid LIMIT max_rows) j
          LIMIT max_rows) f;
    IF found.any OR found.n < max_rows THEN
      RETURN found.any;
    END IF;
  END IF;
  RETURN EXISTS (
    SELECT FROM weir._ended_since(_has_key_news.since, _has_key_news.snapshot) e
    CROSS JOIN unnest(_has_key_news.ids) q(id)
    CROSS JOIN LATERAL (
      SELECT FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
      ORDER BY j.lane >> 39, j.xid LIMIT 1) j);
END
$$;
CREATE FUNCTION weir._has_shape(error text, shape text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  -- Of the parts of the text that weir.failure_groups groups by.
  RETURN weir._shape_of(concat(left(_has_shape.error, 1000), CASE WHEN length(_has_shape.error) > 1000 THEN right(_has_shape.error, 2000) END)) = _has_shape.shape;
END
$$;
CREATE FUNCTION weir._has_turns(name text, snapshot pg_snapshot) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  ids      bigint[]    := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _has_turns.name);
  ring     weir.ring   := weir._ring_of(name);
  at       timestamptz := clock_timestamp();
  lim      weir.queue_limit;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _has_turns.name;
  IF ring.version <> coalesce(lim.version, 0)
     OR ring.newcomers <> '{}' OR ring.stopped_after IS NOT NULL OR pg_snapshot_xmax(ring.arrived) > pg_snapshot_xmax(snapshot)  -- another claim has just been here
     OR weir._has_waiting(ids, ring.tag) THEN
    RETURN true;
  END IF;
  IF weir._has_key_news(ids, ring.arrived, snapshot) THEN
    RETURN true;
  ELSIF lim.key_running IS NULL AND lim.key_rate IS NULL THEN
    RETURN false;
  END IF;
  RETURN EXISTS (
      SELECT FROM unnest(ids) q(id)
      CROSS JOIN LATERAL (SELECT t.lane, t.seq FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at BETWEEN ring.due AND at OFFSET 0) t
      WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq))
    OR EXISTS (
      SELECT FROM weir._ended_since(ring.arrived, snapshot) e
      CROSS JOIN LATERAL (SELECT FROM weir.release r WHERE r.gate = lim.gate AND r.xid >= e.low AND r.xid < e.high AND r.lanes IS NOT NULL LIMIT 1) r);
END
$$;
CREATE FUNCTION weir._has_waiting(ids bigint[], tag bigint) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN EXISTS (
    SELECT FROM unnest(ids) q(id)
    CROSS JOIN LATERAL (SELECT t.lane, t.seq FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= _has_waiting.tag ORDER BY t.tag OFFSET 0) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq));
END
$$;
CREATE FUNCTION weir._heads(name text, tag bigint, most integer) RETURNS weir.turn[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN (
    SELECT (array_agg(h.turn ORDER BY (h.turn).tag))[: _heads.most] FROM weir.queue q
    CROSS JOIN LATERAL (
      SELECT t AS turn FROM weir.turn t
      WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= _heads.tag
        AND NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND (n.seq, n.segment) > (t.seq, t.segment))  -- reclaiming may have repeated it
      ORDER BY t.tag LIMIT _heads.most) h
    WHERE q.name = _heads.name);
END
$$;
CREATE FUNCTION weir._held(class integer, mode text) RETURNS SETOF integer LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT l.objid::bigint::bit(32)::integer FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.classid = _held.class AND l.objsubid = 2 AND l.mode = _held.mode AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
CREATE FUNCTION weir._hold_attempt(what text, worker integer, lane bigint, seq bigint, id bigint, OUT in_segment smallint, OUT in_gate integer, OUT in_lane bigint, OUT in_flow bigint) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  -- The segment that is locked against reclaiming. A job that was just enqueued, like its batch, is in the active one: then one look is enough.
  held      smallint := pg_sequence_last_value('weir.active_job');
  has_ended boolean;
BEGIN
  PERFORM weir._check_isolation(_hold_attempt.what, true), weir._commit_synchronously();
  -- The locks that are kept after this call concern only this attempt: fencing and settling the worker doesn't wait for them.
  PERFORM pg_advisory_xact_lock(1464158551, hashint8(_hold_attempt.id)), pg_advisory_xact_lock_shared(1464158553, _hold_attempt.worker), pg_advisory_xact_lock_shared(1464158549, held);
  LOOP
    BEGIN
      -- A concurrent record or settle may have checked before it could see this transaction's lock: wait for it, then see what it has
      -- written. A fence that is not visible here comes later, and settling after it sees the attempt's lock.
      PERFORM pg_advisory_xact_lock_shared(1464158550, _hold_attempt.worker);
      PERFORM weir._check_worker(_hold_attempt.worker);
      in_segment := NULL;
      SELECT b.segment, EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq AND _hold_attempt.id = ANY (r.ids)), b.gate,
             b.lanes[array_position(b.ids, _hold_attempt.id)], CASE WHEN b.flows IS NOT NULL THEN b.flows[CASE WHEN cardinality(b.flows) = 1 THEN 1 ELSE array_position(b.ids, _hold_attempt.id) END] END
        INTO in_segment, has_ended, in_gate, in_lane, in_flow
      FROM weir.batch b
      WHERE b.lane = _hold_attempt.lane AND b.seq = _hold_attempt.seq AND b.worker IS NOT DISTINCT FROM _hold_attempt.worker AND _hold_attempt.id = ANY (b.ids);
      RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
    EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- a code that ends in 000 would catch its whole class
      EXIT WHEN in_segment IS NULL OR in_segment = held;
    END;
    -- Check again under a lock that prevents the batch from being carried into another segment.
    PERFORM pg_advisory_xact_lock_shared(1464158549, in_segment);
    held := in_segment;
  END LOOP;
  IF in_segment IS NULL THEN
    RAISE EXCEPTION 'weir: worker % does not hold job % (lane %, batch %)', _hold_attempt.worker, _hold_attempt.id, _hold_attempt.lane, _hold_attempt.seq
      USING ERRCODE = 'WR002', HINT = 'Roll back: its claim was lost in a crash of the server, or the job was claimed again.';
  ELSIF has_ended THEN
    RAISE EXCEPTION 'weir: the attempt of job % has already ended', _hold_attempt.id USING ERRCODE = 'WR002', HINT = 'Roll back, and drop the attempt.';
  END IF;
END
$$;
CREATE FUNCTION weir._hold_briefly() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  timeout interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
  IF timeout = interval '0' OR timeout > interval '10 seconds' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '10s', true);
  END IF;
END
$$;
CREATE FUNCTION weir._hold_ends(worker integer) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(1464158550, _hold_ends.worker);
  IF pg_try_advisory_xact_lock(1464158553, _hold_ends.worker) THEN
    RETURN '{}';
  END IF;
  RETURN weir._being_completed();
END
$$;
CREATE FUNCTION weir._hold_flows() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  LOCK TABLE weir.flow, weir.edge, weir.fold, weir.flow_cut, weir.arrival IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^(flow|edge|fold|flow_cut|arrival_[1-3])$', 'weir: the tables of flows were compacted after this transaction took its snapshot, which does not show what was moved');
END
$$;
CREATE FUNCTION weir._hold_report_segment() RETURNS smallint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  active smallint := pg_sequence_last_value('weir.active_report');
BEGIN
  LOOP
    EXECUTE format('LOCK TABLE weir.report_%s IN ROW EXCLUSIVE MODE', active);
    -- If it is still the active one, it will be closed after this, and emptied after this transaction.
    EXIT WHEN active = pg_sequence_last_value('weir.active_report');
    active := pg_sequence_last_value('weir.active_report');
  END LOOP;
  RETURN active;
END
$$;
CREATE FUNCTION weir._hold_segments(worker integer, lanes bigint[], seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  segments integer[];
  held     integer[] := '{}';
  s        integer;
BEGIN
  LOOP
    BEGIN
      SELECT array_agg(DISTINCT b.segment::integer ORDER BY b.segment::integer) INTO segments
      FROM unnest(_hold_segments.lanes, _hold_segments.seqs) i(lane, seq)
      JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _hold_segments.worker;  -- worded so that the index on (lane, seq) is used
      RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
    EXCEPTION WHEN SQLSTATE 'WR099' THEN
      EXIT WHEN segments IS NULL OR segments <@ held;
    END;
    FOREACH s IN ARRAY segments LOOP
      PERFORM pg_advisory_xact_lock_shared(1464158549, s);
    END LOOP;
    held := held || segments;
  END LOOP;
END
$$;
CREATE FUNCTION weir._holders() RETURNS integer[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT ARRAY(SELECT w.id FROM weir.worker w WHERE NOT w.fenced
               AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = w.id AND s.no = 9223372036854775807))
$$;
CREATE FUNCTION weir._holds(worker integer) RETURNS TABLE(no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT u.* FROM (SELECT 1) one
  LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = _holds.worker ORDER BY s.no DESC LIMIT 1) m ON true
  CROSS JOIN LATERAL weir._unfinished(_holds.worker, ARRAY(
    SELECT o.no FROM unnest(m.open) o(no)
    UNION ALL SELECT a.no FROM unnest(weir._batches_after(_holds.worker, coalesce(m.no, 0), NULL)) a(no))) u
  WHERE u.ids <> '{}'
$$;
CREATE FUNCTION weir._in_hand(workers integer[], upto bigint, most integer) RETURNS TABLE(worker integer, no bigint, lane bigint, ids bigint[], is_last boolean) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  SELECT w.id, b.no, b.lane,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq),
         b.nr = _in_hand.most
  FROM unnest(_in_hand.workers) w(id)
  LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = w.id ORDER BY s.no DESC LIMIT 1) m ON true
  CROSS JOIN LATERAL (
    SELECT l.*, row_number() OVER (ORDER BY l.no DESC) AS nr FROM (
      SELECT b.no, b.lane, b.seq, b.segment, b.ids FROM weir.batch b
      WHERE b.worker = w.id AND b.no > coalesce(m.no, 0) AND b.no <= _in_hand.upto ORDER BY b.no DESC
      FETCH FIRST (_in_hand.most) ROWS WITH TIES) l  -- all parts of the oldest batch: the next page continues below its number
    UNION ALL
    SELECT b.no, b.lane, b.seq, b.segment, b.ids, 0 FROM unnest(m.open) o(no)
    CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.worker = w.id AND b.no = o.no OFFSET 0) b
    WHERE o.no <= _in_hand.upto) b
  -- An attempt ends once, so a batch with as many results as jobs has ended, with both of its parts: see _unfinished.
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq) OR b.nr = _in_hand.most
$$;
CREATE FUNCTION weir._in_progress(OUT running xid8[], OUT top xid8) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  snapshot pg_snapshot := pg_current_snapshot();
BEGIN
  running := '{}';
  IF (SELECT k.value FROM weir.setting k WHERE k.name = 'cluster') IS DISTINCT FROM (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    top := '18446744073709551615';  -- the log of another cluster: its transaction ids mean nothing here
    RETURN;
  END IF;
  top := pg_snapshot_xmax(snapshot);
  IF pg_snapshot_xmin(snapshot) < top THEN
    running := ARRAY(SELECT pg_snapshot_xip(snapshot));
  END IF;
END
$$;
CREATE FUNCTION weir._interval_of(name text, value text) RETURNS interval LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET IntervalStyle=postgres SET jit=off
AS $$
DECLARE
  hint     CONSTANT text := 'Write it as ''3 days'', ''12 hours'' or ''90 seconds''.';
  found_it interval;
BEGIN
  -- PostgreSQL skips punctuation and the words at and on, and takes a number that no unit follows for seconds.
  IF _interval_of.value ~ '[1-9]' AND _interval_of.value !~ '[0-9]:[0-9]'
     AND regexp_replace(_interval_of.value, '[[:<:]](at|on)[[:>:]]', '', 'gi') ~ '[0-9][^A-Za-z]*$' THEN
    RAISE EXCEPTION 'weir: % needs a unit, got "%"', _interval_of.name, left(_interval_of.value, 100) USING ERRCODE = '22023', HINT = hint;
  END IF;
  found_it := _interval_of.value::interval;
  -- To compare, PostgreSQL counts 30 days for a month, so 360 for a year.
  IF found_it < interval '0' OR found_it > interval '366 days' THEN
    RAISE EXCEPTION 'weir: % must be 0 to 1 year, got "%"', _interval_of.name, left(_interval_of.value, 100) USING ERRCODE = '22023';
  END IF;
  RETURN found_it;
EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR interval_field_overflow OR invalid_time_zone_displacement_value THEN
  RAISE EXCEPTION 'weir: % must be an interval of 0 to 1 year, got "%"', _interval_of.name, left(_interval_of.value, 100)
    USING ERRCODE = '22023', HINT = hint;
END
$$;
CREATE FUNCTION weir._is_cancelled_now(flow bigint) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  fresh record;  -- not counted yet
  p     weir.fold;
BEGIN
  SELECT max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no, max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no INTO fresh
  FROM (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c CROSS JOIN LATERAL weir._ended_since(c.snapshot, pg_current_snapshot()) e
  CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high OFFSET 0) a WHERE a.flow = _is_cancelled_now.flow;
  SELECT k.* INTO p FROM weir.fold k WHERE k.flow = _is_cancelled_now.flow ORDER BY k.cut DESC LIMIT 1;
  RETURN coalesce(greatest(fresh.cancelled_no, p.cancelled_no) > coalesce(greatest(fresh.retried_no, p.retried_no), 0), false);
END
$$;
CREATE FUNCTION weir._is_cancelled_where(job_id bigint) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN job_id = ANY (weir._cancelled_where_among(ARRAY[job_id]));
END
$$;
CREATE FUNCTION weir._is_crowded() RETURNS boolean LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT (SELECT sum(pg_stat_get_db_numbackends(d.oid)) >= current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                 - coalesce(current_setting('reserved_connections', true)::integer, 0) - 3
          FROM pg_database d)
      OR EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database() AND d.datconnlimit >= 0 AND pg_stat_get_db_numbackends(d.oid) >= d.datconnlimit)
      OR EXISTS (SELECT FROM pg_roles r WHERE r.rolconnlimit >= 0 AND (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid) >= r.rolconnlimit)
$$;
CREATE FUNCTION weir._is_held(tables regclass[]) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  holders text[];
  seen    text[];
BEGIN
  FOR check_no IN 1..20 LOOP
    SELECT array_agg(l.virtualtransaction) INTO seen FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = ANY (_is_held.tables::oid[]) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (holders IS NULL OR l.virtualtransaction = ANY (holders));
    IF seen IS NULL THEN
      RETURN false;
    END IF;
    holders := seen;
    PERFORM pg_sleep(0.005);
  END LOOP;
  RETURN true;
END
$$;
CREATE FUNCTION weir._is_kept(flow bigint, kept interval) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM weir.flow f WHERE f.id = _is_kept.flow
                   AND ((SELECT r.fired_at FROM weir.fold r WHERE r.flow = f.root ORDER BY r.cut DESC LIMIT 1) < clock_timestamp() - _is_kept.kept) IS NOT TRUE);
END
$$;
CREATE FUNCTION weir._is_put_back(job_id bigint, bits bigint, ids bigint[], arrived pg_snapshot) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  logged record;
  later  record;
  state  weir.turn;
  c      weir.promotion;
BEGIN
  IF EXISTS (SELECT FROM weir.cancellation k WHERE k.id = job_id) OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= job_id) AND weir._is_cancelled_where(job_id) THEN
    RETURN false;  -- the next attempt will not run
  END IF;
  SELECT j.lane, j.xid, j.id, j.attempt, j.put_off INTO logged FROM weir.job j WHERE j.id = job_id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1;
  -- What was promoted may stay in weir.later for longer than in the log.
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT l.lane, l.attempt, l.put_off INTO later FROM (SELECT l.* FROM weir.later l WHERE l.id = job_id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1) l
  WHERE weir._waits_later(c, l.run_at, l.id, l.xid);
  IF later.attempt IS NOT NULL AND (logged.attempt IS NULL OR (later.attempt, later.put_off) > (logged.attempt, logged.put_off)) THEN
    RETURN later.lane >> 39 = ANY (ids) AND later.lane & 549755813880 = bits;
  ELSIF logged.lane IS NULL OR logged.lane & 4 = 0 OR logged.lane >> 39 <> ALL (ids) OR logged.lane & 549755813880 <> bits THEN
    RETURN false;
  END IF;
  SELECT t.* INTO state FROM weir.turn t WHERE t.lane = logged.lane ORDER BY t.seq DESC LIMIT 1;
  RETURN weir._waits(logged.xid, logged.id, state.pos_xid, state.pos_id, state.pending, state.pending_after) OR NOT pg_visible_in_snapshot(logged.xid, arrived);
END
$$;
CREATE FUNCTION weir._is_relayed_later(tick bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM (SELECT DISTINCT ON (r.relay) r.at, r.tick FROM weir.relay r ORDER BY r.relay, r.no DESC) r
    WHERE r.tick <= _is_relayed_later.tick AND r.at > clock_timestamp() - (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'relay_retention'));
END
$$;
CREATE FUNCTION weir._is_token(token text) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE WHEN _is_token.token ~ '^[0-9]{1,19}[.][0-9]{1,18}[.][0-9]{1,18}$' THEN split_part(_is_token.token, '.', 1)::numeric < 9223372036854775808 ELSE false END
$$;
CREATE FUNCTION weir._is_within(flow bigint, ancestor bigint) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  at bigint := _is_within.flow;
BEGIN
  WHILE at IS NOT NULL LOOP
    IF at = _is_within.ancestor THEN
      RETURN true;
    END IF;
    at := (SELECT f.parent FROM weir.flow f WHERE f.id = at);
  END LOOP;
  RETURN false;
END
$$;
CREATE FUNCTION weir._jobs_after(state text, after text) RETURNS TABLE(job weir.job_info, next text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  p record;
BEGIN
  PERFORM weir._lock_log();
  SELECT k.* INTO p FROM weir._read_page(ARRAY[_jobs_after.state], NULL, NULL, NULL, NULL, _jobs_after.after, CASE WHEN _jobs_after.after IS NULL THEN 50 ELSE 500 END) k;
  RETURN QUERY SELECT j, NULL::text FROM unnest(p.jobs) j;
  IF p.next IS NOT NULL THEN
    RETURN QUERY SELECT NULL::weir.job_info, p.next;
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir._jobs_on(segment smallint, page bigint) RETURNS TABLE(lane bigint, xid xid8, id bigint, ready_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_indexscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT j.lane, j.xid, j.id, coalesce(j.ready_at, j.enqueued_at) FROM weir.job j
    WHERE j.segment = _jobs_on.segment AND j.ctid >= format('(%s,0)', _jobs_on.page)::tid AND j.ctid < format('(%s,0)', _jobs_on.page + 1)::tid;
END
$$;
CREATE FUNCTION weir._join_flow(flow bigint, n bigint, counts jsonb DEFAULT NULL::jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  state    record;
  is_known boolean;
BEGIN
  -- Usually it has been counted, and neither ended nor was cancelled; or it was not counted yet, and so has not ended.
  SELECT f.fired_at IS NULL AND NOT f.is_cancelled AND (f.waits IS NULL OR f.job IS NOT NULL) INTO is_known FROM weir.fold f WHERE f.flow = _join_flow.flow ORDER BY f.cut DESC LIMIT 1;
  IF NOT FOUND THEN
    is_known := (SELECT f.task IS NULL FROM weir.flow f WHERE f.id = _join_flow.flow);
  END IF;
  IF is_known IS NOT TRUE OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.flow = _join_flow.flow) THEN
    SELECT i.* INTO state FROM weir._read_flows(ARRAY[_join_flow.flow]) i;
    IF state.id IS NULL THEN
      RAISE EXCEPTION 'weir: flow % is unknown', _join_flow.flow USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass an id that weir.flow has returned, in a transaction that has committed, or in this one.';
    ELSIF state.state IN ('cancelling', 'cancelled') THEN
      RAISE EXCEPTION 'weir: flow % (%) is cancelled', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Jobs can be added to a flow that is open or running.';
    ELSIF state.state = 'blocked' THEN
      RAISE EXCEPTION 'weir: task % (%) has not started', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Its own job may add others to it while it runs. Add a task to the flow, to do something else.';
    ELSIF state.state NOT IN ('open', 'running') THEN
      RAISE EXCEPTION 'weir: flow % (%) has ended', _join_flow.flow, state.name USING ERRCODE = '55000', HINT = 'Add jobs before it is sealed, or from its members while they run; or create another flow.';
    END IF;
  END IF;
  PERFORM weir._arrive(_join_flow.flow, 'jobs', _join_flow.n, counts => _join_flow.counts);
END
$$;
CREATE FUNCTION weir._jsonb_of(given text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  BEGIN
    RETURN given::jsonb;
  EXCEPTION WHEN untranslatable_character OR invalid_text_representation OR numeric_value_out_of_range THEN
    -- NUL, and halves of surrogate pairs: JSON can escape them, but PostgreSQL's text can't contain them. Without lookbehind, which would make it
    -- quadratic: escaped backslashes are written in another way, so that each backslash begins an escape; then whole pairs also get a U+FFFD,
    -- and lose it again.
    given := regexp_replace(regexp_replace(replace(given, E'\\\\', E'\\u005c'),
      E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', E'\\1\\\\ufffd', 'g'),
      E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})\\\\ufffd', E'\\1', 'g');
  END;
  RETURN given::jsonb;
EXCEPTION WHEN numeric_value_out_of_range OR invalid_text_representation THEN  -- JSON has numbers that PostgreSQL's jsonb has not, such as 1e400000: they spoil one entry, not all
  IF json_typeof(given::json) = 'array' THEN
    RETURN (SELECT jsonb_agg(weir._jsonb_of(e::text)) FROM json_array_elements(given::json) e);
  END IF;
  RETURN jsonb_build_object('token', given::json ->> 'token', 'invalid', SQLERRM);
END
$$;
CREATE FUNCTION weir._judge_once(ids bigint[], keys uuid[], nos bigint[]) RETURNS TABLE(id bigint, fate text, reason text) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT k.id, CASE WHEN k.cancelled OR k.chosen <> k.id THEN 'dropped' ELSE 'run' END, CASE WHEN k.cancelled THEN '' WHEN k.chosen <> k.id THEN 'duplicate of job ' || k.chosen END
  FROM (
    SELECT u.id, u.cancelled, coalesce((SELECT s.job FROM weir.seen s WHERE s.key = u.key LIMIT 1),
                                       first_value(u.id) OVER (PARTITION BY u.key ORDER BY u.cancelled, u.ord)) AS chosen
    FROM (SELECT u.*, EXISTS (SELECT FROM weir.cancellation c WHERE c.id = u.id)
                      OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= u.id) AND weir._is_cancelled_where(u.id) AS cancelled
          FROM unnest(_judge_once.ids, _judge_once.keys, _judge_once.nos) WITH ORDINALITY u(id, key, no, ord) WHERE u.no IS NULL) u) k;
END
$$;
CREATE FUNCTION weir._judged(places integer[], lanes bigint[], seqs bigint[], segments smallint[], ids bigint[], errors text[]) RETURNS TABLE(place integer, rule text, outcome text, run_at timestamp with time zone) LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most    CONSTANT interval := '3 seconds';
  began   timestamptz := clock_timestamp();
  open    integer[];  -- the attempts that no rule has matched yet
  matched integer[];
  jobs    record;
  r       record;
BEGIN
  SELECT array_agg(e.nr ORDER BY e.nr) AS open, array_agg(q.name ORDER BY e.nr) AS queues, array_agg(j.kind ORDER BY e.nr) AS kinds,
         array_agg(j.attempt ORDER BY e.nr) AS attempts, array_agg(j.put_off ORDER BY e.nr) AS put_offs,
         array_agg(CASE WHEN length(e.error) > 4000 THEN left(e.error, 2000) || E'\n' || right(e.error, 2000) ELSE e.error END ORDER BY e.nr) AS texts,
         array_agg(q.backoff ORDER BY e.nr) AS backoffs, array_agg(q.backoff_limit ORDER BY e.nr) AS limits, array_agg(q.backoff_form ORDER BY e.nr) AS forms
    INTO jobs
  FROM (SELECT u.*, row_number() OVER ()::integer AS nr
        FROM unnest(_judged.lanes, _judged.seqs, _judged.segments, _judged.ids, _judged.errors) u(lane, seq, segment, id, error)) e
  LEFT JOIN LATERAL (  -- as in weir._end_attempts
    SELECT j.kind, j.attempt, j.put_off FROM weir.batch b
    CROSS JOIN LATERAL (
      SELECT j.* FROM weir.job j
      WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)
        AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
      ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    WHERE b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq LIMIT 1) j ON true
  LEFT JOIN LATERAL (SELECT q.* FROM weir.queue q WHERE q.id = (e.lane >> 39)::integer LIMIT 1) q ON true;
  open := jobs.open;
  -- Rule by rule, so that each expression is compiled once.
  FOR r IN SELECT k.* FROM weir.retry_rules() k LOOP
    EXIT WHEN open IS NULL OR open = '{}';
    BEGIN
      matched := ARRAY(
        SELECT o.nr FROM unnest(open) o(nr)
        WHERE CASE WHEN r.queue <> jobs.queues[o.nr] OR r.kind <> jobs.kinds[o.nr] THEN false
                   WHEN r.error IS NULL THEN true
                   WHEN clock_timestamp() - began > most THEN false
                   ELSE coalesce(jobs.texts[o.nr], '') ~ r.error END);
    EXCEPTION WHEN OTHERS THEN  -- results must be recorded
      RAISE WARNING 'weir: retry rule % was left out: %', quote_ident(r.name), SQLERRM;
      CONTINUE;
    END;
    RETURN QUERY
    SELECT _judged.places[o.nr], r.name, CASE r.action WHEN 'fail' THEN 'failed' WHEN 'cancel' THEN 'cancelled' WHEN 'snooze' THEN 'snoozed' ELSE 'retried' END,
           CASE r.action
             WHEN 'snooze' THEN weir._next_try(r.backoff, coalesce(r.backoff_limit, interval '366 days'), coalesce(r.backoff_form, 'fixed'), jobs.put_offs[o.nr] + 1)
             WHEN 'retry' THEN weir._next_try(coalesce(r.backoff, jobs.backoffs[o.nr]), coalesce(r.backoff_limit, jobs.limits[o.nr]), coalesce(r.backoff_form, jobs.forms[o.nr]), jobs.attempts[o.nr]) END
    FROM unnest(matched) o(nr);
    open := ARRAY(SELECT unnest(open) EXCEPT SELECT unnest(matched));
    IF clock_timestamp() - began > most AND open <> '{}' THEN
      RAISE WARNING 'weir: retry rules took more than % seconds: rule %, or those behind it, were left out for some errors', extract(epoch FROM most)::integer, quote_ident(r.name)
        USING HINT = 'Simplify their regular expressions.';
      EXIT;
    END IF;
  END LOOP;
END
$$;
CREATE FUNCTION weir._judge(ids bigint[], xids xid8[], keys uuid[], nos bigint[], untils timestamp with time zone[], times timestamp with time zone[]) RETURNS TABLE(id bigint, fate text, reason text) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  this   uuid;
  j      record;
  newest record;   -- of this key; read once
  other  record;
  is_new boolean;
  after  timestamptz;  -- within a time: only jobs that were enqueued after this count
  chosen record;   -- the job of this key, in this batch, that will run
  is_set boolean;  -- there is one
  gone   bigint[]; -- those of this key, in this batch, that will not
BEGIN
  IF array_position(nos, NULL) IS NOT NULL THEN
    RETURN QUERY SELECT o.* FROM weir._judge_once(ids, keys, nos) o;
  END IF;
  FOR j IN
    SELECT u.*, EXISTS (SELECT FROM weir.cancellation c WHERE c.id = u.id)
                OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= u.id) AND weir._is_cancelled_where(u.id) AS cancelled, u.no & 1 = 1 AS replaces,
           EXISTS (SELECT FROM weir.job r WHERE r.unique_key = u.key AND r.unique_no <> u.no)
           OR EXISTS (SELECT FROM weir.later r WHERE r.unique_key = u.key AND r.unique_no <> u.no) AS shares
    FROM unnest(_judge.ids, _judge.xids, _judge.keys, _judge.nos, _judge.untils, _judge.times) WITH ORDINALITY u(id, xid, key, no, until, at, ord)
    WHERE u.no IS NOT NULL
    ORDER BY u.key, u.ord
  LOOP
    IF j.key IS DISTINCT FROM this THEN
      this := j.key;
      is_new := true;
      is_set := false;
      gone := '{}';
    END IF;
    id := j.id;
    fate := 'run';
    reason := NULL;
    IF j.cancelled THEN
      fate := 'dropped';
      reason := '';
    ELSIF is_set THEN
      IF NOT isfinite(j.until) OR abs(extract(epoch FROM j.at - chosen.at)) < extract(epoch FROM j.until - j.at) THEN
        fate := 'dropped';
        reason := CASE WHEN chosen.replaces AND chosen.id > j.id THEN 'replaced by job ' ELSE 'duplicate of job ' END || chosen.id;
      END IF;
    ELSIF j.shares THEN
      IF is_new THEN
        SELECT n.* INTO newest FROM weir._newest_of_key(j.key, 9223372036854775807, false) n;
        is_new := false;
      END IF;
      IF isfinite(j.until) AND newest.id IS NOT NULL THEN
        after := j.at - extract(epoch FROM j.until - j.at) * interval '1 second';
        SELECT n.* INTO other FROM weir._newest_of_key(j.key, 9223372036854775807, false, after, j.until) n;
        WHILE other.id = j.id AND other.no = j.no OR other.waits AND other.id = ANY (gone) LOOP
          SELECT n.* INTO other FROM weir._newest_of_key(j.key, other.no, false, after, j.until) n;
        END LOOP;
        IF other.id <> j.id THEN
          fate := 'dropped';
        END IF;
      END IF;
      IF fate = 'run' THEN
        other := newest;
      END IF;
      -- The job itself, if it was put off or tried before, jobs that it replaces, and those that have just been dropped don't decide.
      WHILE fate = 'run' AND (other.id = j.id AND other.no = j.no AND NOT j.replaces OR other.waits AND (j.replaces AND other.id < j.id OR other.id = ANY (gone))) LOOP
        SELECT n.* INTO other FROM weir._newest_of_key(j.key, other.no, false) n;
      END LOOP;
      IF other.id IS NULL OR other.id = j.id THEN
        NULL;
      ELSIF fate = 'dropped' OR NOT isfinite(j.until) AND (other.waits OR other.runs AND j.until = 'infinity' OR pg_visible_in_snapshot(j.xid, other.seen)) THEN
        fate := 'dropped';
        reason := CASE WHEN other.waits AND other.no & 1 = 1 AND other.id > j.id THEN 'replaced by job ' ELSE 'duplicate of job ' END || other.id;
      ELSIF NOT other.waits AND other.no > j.no THEN
        fate := 'again';
      END IF;
    END IF;
    IF fate <> 'dropped' THEN
      chosen := j;
      is_set := true;
    ELSE
      gone := gone || j.id;
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;
CREATE FUNCTION weir._keep_failures(worker integer, lanes bigint[], seqs bigint[], segments smallint[], ids bigint[], errors text[], outputs text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.failure (id, segment, lane, attempt, max_attempts, enqueued_at, claimed_at, finished_at, worker, kind, args, meta, error, output, errors, unique_key, unique_until, key, flow)
  SELECT e.id, (SELECT a.last_value FROM weir.active_failure a), j.lane & ~ 4::bigint, j.attempt, j.max_attempts, j.enqueued_at, b.claimed_at, clock_timestamp(),
         _keep_failures.worker, j.kind, j.args, j.meta, left(e.error, 65536), e.output, j.errors, j.unique_key, j.unique_until, j.key, j.flow
  FROM unnest(_keep_failures.lanes, _keep_failures.seqs, _keep_failures.segments, _keep_failures.ids, _keep_failures.errors, _keep_failures.outputs)
       e(lane, seq, segment, id, error, output)
  CROSS JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq LIMIT 1) b
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)  -- so worded to be read by id
      AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
    ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j;
END
$$;
CREATE FUNCTION weir._keep_outputs(lanes bigint[], seqs bigint[], ids bigint[], outputs text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.output (no, flow, job, ring, task, kind, output)
  SELECT nextval('weir.output_no'), coalesce(d.parent, k.flow), k.id, pg_sequence_last_value('weir.active_output'), d.name, k.kind, k.output
  FROM (
    SELECT u.id, u.output, u.nr, b.flow, (SELECT j.kind FROM weir.job j WHERE j.segment = b.segment AND j.id = u.id LIMIT 1) AS kind
    FROM unnest(_keep_outputs.lanes, _keep_outputs.seqs, _keep_outputs.ids, _keep_outputs.outputs) WITH ORDINALITY u(lane, seq, id, output, nr)
    CROSS JOIN LATERAL (
      SELECT b.segment, b.flows[CASE WHEN cardinality(b.flows) = 1 THEN 1 ELSE array_position(b.ids, u.id) END] AS flow
      FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq AND b.flows IS NOT NULL AND u.id = ANY (b.ids) LIMIT 1) b
    WHERE b.flow IS NOT NULL OFFSET 0) k
  -- That of a task's own job is the task's, in the flow that this belongs to.
  LEFT JOIN LATERAL (SELECT d.parent, d.name FROM weir.flow d WHERE d.id = k.flow AND d.task IS NOT NULL
                     AND (SELECT p.job = k.id FROM weir.fold p WHERE p.flow = d.id ORDER BY p.cut DESC LIMIT 1) OFFSET 0) d ON true
  ORDER BY k.nr;
END
$$;
CREATE FUNCTION weir._kept_failure(job_id bigint, after integer) RETURNS SETOF weir.failure LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  f weir.failure;
BEGIN
  -- A row without finished_at says that the job was retried.
  SELECT k.* INTO f FROM weir.failure k WHERE k.id = _kept_failure.job_id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1;
  IF f.finished_at IS NOT NULL AND f.attempt >= _kept_failure.after THEN
    RETURN NEXT f;
  END IF;
END
$$;
CREATE FUNCTION weir._kept_turns(segment integer, lanes bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET work_mem=64MB
AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    SELECT t.lane
    FROM (SELECT DISTINCT ON (t.lane) t.* FROM weir.turn t WHERE t.segment = _kept_turns.segment ORDER BY t.lane, t.seq DESC) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq >= t.seq AND n.segment <> _kept_turns.segment)
      AND (EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.segment <> _kept_turns.segment)  -- an earlier one would pass for the newest
           OR t.lane IN (SELECT l FROM unnest(_kept_turns.lanes) l)
           OR EXISTS (SELECT FROM weir.job j WHERE j.lane = t.lane AND j.segment <> _kept_turns.segment)
           OR t.next_start > clock_timestamp()  -- the rate of the key
           -- In order, a job that is to be tried again keeps its place.
           OR EXISTS (SELECT FROM unnest(t.open) WITH ORDINALITY o(id, nr) WHERE o.nr % 2 = 0
                        AND (EXISTS (SELECT FROM weir.later l WHERE l.id = o.id)
                             OR EXISTS (SELECT FROM weir.job j WHERE j.id = o.id AND j.lane & 4 <> 0
                                          AND (j.segment <> _kept_turns.segment OR j.lane IN (SELECT l FROM unnest(_kept_turns.lanes) l)))))));
END
$$;
CREATE FUNCTION weir._key_bits(key text) RETURNS bigint LANGUAGE sql STABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT greatest(1, ('x' || substr(encode(sha256(convert_to(_key_bits.key, 'UTF8')), 'hex'), 1, 9))::bit(36)::bigint) << 3
$$;
CREATE FUNCTION weir._key_lanes(queue_id integer DEFAULT NULL::integer, after bigint DEFAULT NULL::bigint, segment integer DEFAULT NULL::integer, most integer DEFAULT NULL::integer) RETURNS SETOF bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  at   bigint  := greatest(coalesce(queue_id, 0)::bigint << 39 | 7, after);
  upto bigint  := CASE WHEN queue_id IS NOT NULL THEN (queue_id + 1)::bigint << 39 ELSE 9223372036854775807 END;
  n    integer := 0;
  lane bigint;
BEGIN
  WHILE most IS NULL OR n < most LOOP
    IF segment IS NULL THEN
      lane := (SELECT j.lane FROM weir.job j WHERE j.lane > at AND j.lane < upto ORDER BY j.lane, j.xid, j.id LIMIT 1);
    ELSE
      lane := (SELECT j.lane FROM weir.job j WHERE j.segment = _key_lanes.segment AND j.lane > at AND j.lane < upto ORDER BY j.lane, j.xid, j.id LIMIT 1);
    END IF;
    EXIT WHEN lane IS NULL;
    IF lane & 549755813880 = 0 THEN
      at := lane | 7;  -- no key: on to those of the queue
    ELSE
      RETURN NEXT lane;
      n := n + 1;
      at := lane;
    END IF;
  END LOOP;
END
$$;
CREATE FUNCTION weir._key_news(ids bigint[], since pg_snapshot, snapshot pg_snapshot, max_rows integer, OUT lanes bigint[], OUT xids xid8[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
BEGIN
  -- Only the index of leading rows that have keys has this order. What it is about is written as it is there.
  SELECT array_agg(f.lane), array_agg(f.xid) INTO lanes, xids
  FROM (
    SELECT n.lane, n.xid FROM weir._ended_since(_key_news.since, _key_news.snapshot) e
    CROSS JOIN LATERAL (
      SELECT k.lane, k.xid FROM unnest(_key_news.ids) q(id)
      CROSS JOIN LATERAL (
        SELECT j.lane, j.xid FROM weir.job j
        WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, e.low) AND (j.lane >> 39, j.xid) < (q.id, e.high)
          AND pg_visible_in_snapshot(j.xid, _key_news.snapshot)
        ORDER BY j.lane >> 39, j.xid LIMIT _key_news.max_rows) k
      ORDER BY k.xid LIMIT _key_news.max_rows) n  -- of twins, the rows are mixed
    LIMIT _key_news.max_rows) f;
END
$$;
CREATE FUNCTION weir._key_of(stored text) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT substring(left(_key_of.stored, 200) FROM '^[{]"weir[.]encrypted": ?[{]"key": ?"([^"]*)"')
$$;
CREATE FUNCTION weir._keys_now(table_id oid, keys text[]) RETURNS text[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
  SELECT coalesce((SELECT array_agg(a.attname::text ORDER BY k.nr) FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, nr)
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indrelid = _keys_now.table_id AND i.indisprimary), _keys_now.keys)
$$;
CREATE FUNCTION weir._kind_of(f weir.fold) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE WHEN f.fired_at IS NULL OR f.waits IS NOT NULL AND f.jobs = 0 THEN NULL WHEN f.is_cancelled THEN 'cancelled' WHEN f.is_abandoned OR f.failed > 0 THEN 'failed' WHEN f.cancelled > 0 THEN 'cancelled'
              ELSE 'completed' END
$$;
CREATE FUNCTION weir._known_once(queues text[], flows bigint[], onces text[], OUT hashes uuid[], OUT known bigint[]) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  bad record;
BEGIN
  SELECT u.* INTO bad FROM unnest(_known_once.flows, _known_once.onces) WITH ORDINALITY u(flow, once, nr)
  WHERE u.once IS NOT NULL AND (u.flow IS NULL OR length(u.once) NOT BETWEEN 1 AND 1000) ORDER BY u.nr LIMIT 1;
  IF bad.nr IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % (job % of %)', CASE WHEN bad.flow IS NULL THEN format('once is %s, and flow is null', to_json(left(bad.once, 100))) ELSE format('once must have 1 to 1000 characters, got %s', length(bad.once)) END,
      bad.nr, cardinality(_known_once.onces) USING ERRCODE = '22023', HINT = CASE WHEN bad.flow IS NULL THEN 'A job is done once in a flow: pass the id of the flow that it is added to. Without a flow, see weir.enqueue_unique.' ELSE 'Pass what names the job, or a hash of it.' END;
  END IF;
  hashes := ARRAY(SELECT CASE WHEN u.once IS NOT NULL THEN weir._once_key(u.flow, u.queue, u.once) END
                  FROM unnest(_known_once.queues, _known_once.flows, _known_once.onces) WITH ORDINALITY u(queue, flow, once, nr) ORDER BY u.nr);
  -- In a block that is rolled back, which releases its locks, as in enqueue_unique. What a segment that is just being emptied may hide is found by the claim.
  BEGIN
    known := ARRAY(
      SELECT CASE WHEN u.hash IS NOT NULL THEN coalesce(
        (SELECT s.job FROM weir.seen s WHERE s.key = u.hash LIMIT 1),
        (SELECT j.id FROM weir.job j WHERE j.unique_key = u.hash LIMIT 1),
        (SELECT l.id FROM weir.later l WHERE l.unique_key = u.hash LIMIT 1),
        - nullif(min(u.nr) OVER (PARTITION BY u.hash), u.nr)) END
      FROM unnest(hashes) WITH ORDINALITY u(hash, nr) ORDER BY u.nr);
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
END
$$;
CREATE FUNCTION weir._lane_of(queue text, priority integer, key text) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  lane bigint := (weir._queue_id(queue)::bigint << 39) + priority - 1;
BEGIN
  IF key IS NOT NULL THEN
    PERFORM weir._check_key(key), weir._mark_keys(queue);
    lane := lane + weir._key_bits(key);
  END IF;
  RETURN lane;
END
$$;
CREATE FUNCTION weir._lanes_in(lane bigint, seq bigint, segment smallint, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_nestloop=off
AS $$
BEGIN
  RETURN QUERY
  SELECT k.lane FROM (
    SELECT u.id, u.lane FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) u(id, lane)
    WHERE b.segment = _lanes_in.segment AND b.lane = _lanes_in.lane AND b.seq = _lanes_in.seq) k
  JOIN unnest(_lanes_in.ids) WITH ORDINALITY u(id, nr) ON u.id = k.id ORDER BY u.nr;
END
$$;
CREATE FUNCTION weir._lanes_of_key(queue text, key text) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
  SELECT ARRAY(
    SELECT (q.id::bigint << 39) + weir._key_bits(_lanes_of_key.key) + form
    FROM (SELECT _lanes_of_key.queue AS name WHERE _lanes_of_key.queue IS NOT NULL
          UNION SELECT w.queue FROM weir.with_keys w WHERE _lanes_of_key.queue IS NULL) n
    JOIN weir.queue q ON q.name = n.name CROSS JOIN generate_series(0, 7) form
    ORDER BY 1)
$$;
CREATE FUNCTION weir._lanes_of(ids bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  SELECT ARRAY(
    SELECT DISTINCT k.lane FROM unnest(_lanes_of.ids) i(id)
    CROSS JOIN LATERAL ((SELECT j.lane FROM weir.job j WHERE j.id = i.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1)
                        UNION ALL (SELECT l.lane FROM weir.later l WHERE l.id = i.id ORDER BY l.attempt DESC, l.put_off DESC LIMIT 1)) k
    ORDER BY k.lane)
$$;
CREATE FUNCTION weir._lanes_to_count(s weir.survey) RETURNS SETOF bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT w FROM unnest(s.waiting) w UNION ALL SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 3) p WHERE q.id > s.upto
$$;
CREATE FUNCTION weir._last_of_task(flow bigint, name text) RETURNS weir.fold LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  last weir.fold;
BEGIN
  SELECT p.* INTO last FROM (SELECT f.id FROM weir.flow f WHERE f.parent = _last_of_task.flow AND f.name = _last_of_task.name AND f.task IS NOT NULL OFFSET 0) f
  CROSS JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1) p WHERE p.jobs > 0 LIMIT 1;
  RETURN last;
END
$$;
CREATE FUNCTION weir._last_reclaimed() RETURNS bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_sort=off
AS $$
  SELECT coalesce((SELECT k.no FROM weir.segment k WHERE k.log = 'job' AND k.event = 'reclaimed' ORDER BY k.no DESC LIMIT 1), 0)
$$;
CREATE FUNCTION weir._last_says(worker integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
  SELECT h.says FROM weir.last_word h WHERE h.worker = _last_says.worker ORDER BY h.no DESC LIMIT 1
$$;
CREATE FUNCTION weir._late_of(name text) RETURNS xid8[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT ARRAY(SELECT x FROM pg_snapshot_xip((weir._ring_of(_late_of.name)).arrived) x
               WHERE x < v.top AND v.running[width_bucket(x, v.running)] IS DISTINCT FROM x ORDER BY x)
  FROM weir._in_progress() v
$$;
CREATE FUNCTION weir._later_on(segment smallint, page bigint) RETURNS TABLE(lane bigint, run_at timestamp with time zone, id bigint) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_indexscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT l.lane, l.run_at, l.id FROM weir.later l
    WHERE l.segment = _later_on.segment AND l.ctid >= format('(%s,0)', _later_on.page)::tid AND l.ctid < format('(%s,0)', _later_on.page + 1)::tid;
END
$$;
CREATE FUNCTION weir._limit_turns(lim weir.queue_limit, states weir.turn[], rooms integer[], ids bigint[], rings bigint[], forms integer[], arrived pg_snapshot, before bigint, at timestamp with time zone, OUT kept weir.turn[], OUT allowed integer[], OUT shares boolean[], OUT tries timestamp with time zone[], OUT starts timestamp with time zone[]) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  key_mask  CONSTANT bigint := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  by_second double precision := lim.key_rate / extract(epoch FROM lim.key_per);
BEGIN
  WITH chosen AS MATERIALIZED (
    SELECT s.*, s.lane & key_mask AS bits
    FROM unnest(states, rooms) WITH ORDINALITY s(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, room, nr)
  ), family AS MATERIALIZED (  -- the lanes of these keys: of other priorities, put back, of twins
    SELECT c.bits, c.lane, c.open, c.next_start FROM chosen c
    UNION ALL
    SELECT k.bits, l.lane, t.open, t.next_start FROM (SELECT DISTINCT c.bits FROM chosen c) k
    CROSS JOIN LATERAL (SELECT (q.id << 39) + k.bits + f.form AS lane FROM unnest(ids) q(id) CROSS JOIN unnest(forms) f(form)) l
    CROSS JOIN LATERAL (SELECT t.open, t.next_start FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t
    WHERE l.lane NOT IN (SELECT c.lane FROM chosen c)
  ), open AS MATERIALIZED (
    SELECT f.bits, f.lane, f.open[2 * i - 1] AS seq, f.open[2 * i] AS id, i FROM family f CROSS JOIN LATERAL generate_series(1, cardinality(f.open) / 2) i
  ), ended AS MATERIALIZED (
    SELECT s.seq, r.ids, r.outcome IN ('completed', 'failed', 'cancelled') AS is_final
    FROM (SELECT DISTINCT o.seq FROM open o) s CROSS JOIN unnest(rings) q(lane)
    CROSS JOIN LATERAL (SELECT r.ids, r.outcome FROM weir.result r WHERE r.lane = q.lane AND r.seq = s.seq OFFSET 0) r
  ), batch AS MATERIALIZED (
    SELECT s.seq, b.ids FROM (SELECT DISTINCT o.seq FROM open o) s CROSS JOIN unnest(rings) q(lane)
    CROSS JOIN LATERAL (SELECT b.ids FROM weir.batch b WHERE b.lane = q.lane AND b.seq = s.seq OFFSET 0) b
  ), still AS MATERIALIZED (
    -- Reclaiming keeps the batches of attempts that run, and nothing of those that have ended.
    SELECT o.*
    FROM (SELECT o.bits, o.lane, o.seq, o.id, o.i, coalesce(bool_or(e.is_final), false) AS is_final,
                 count(e.seq) > 0 OR NOT EXISTS (SELECT FROM batch b WHERE b.seq = o.seq AND o.id = ANY (b.ids)) AS is_followed
          FROM open o LEFT JOIN ended e ON e.seq = o.seq AND o.id = ANY (e.ids) GROUP BY o.bits, o.lane, o.seq, o.id, o.i) o
    WHERE NOT o.is_followed OR NOT o.is_final AND lim.in_order AND weir._is_put_back(o.id, o.bits, ids, arrived)
  ), earlier AS MATERIALIZED (  -- attempts that ran before the queue had these limits
    SELECT l.lane & key_mask AS bits, count(*) AS n, count(*) FILTER (WHERE EXISTS (SELECT FROM still s WHERE s.seq = u.seq AND s.id = l.id)) AS counted  -- since an even earlier limit
    FROM weir.gate g CROSS JOIN LATERAL unnest(g.before_lanes, g.before_seqs) u(lane, seq)
    CROSS JOIN LATERAL (SELECT b.ids, b.lanes FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq AND b.lanes IS NOT NULL OFFSET 0) b
    CROSS JOIN LATERAL unnest(b.ids, b.lanes) l(id, lane)
    WHERE g.gate = lim.gate AND g.seq = before
      AND NOT EXISTS (SELECT FROM weir.result r WHERE r.lane = u.lane AND r.seq = u.seq AND l.id = ANY (r.ids))
    GROUP BY l.lane & key_mask
  ), used AS MATERIALIZED (
    SELECT u.bits, sum(u.runs) AS runs, sum(u.follow) AS follow, sum(u.earlier) AS earlier
    FROM (SELECT s.bits, count(*) FILTER (WHERE NOT s.is_followed) AS runs, count(*) FILTER (WHERE s.is_followed) AS follow, 0 AS earlier FROM still s GROUP BY s.bits
          UNION ALL SELECT e.bits, e.n - e.counted, 0, e.n FROM earlier e) u
    GROUP BY u.bits
  ), start AS MATERIALIZED (
    SELECT f.bits, max(f.next_start) AS next_start FROM family f GROUP BY f.bits
  ), held AS MATERIALIZED (
    SELECT s.lane, array_agg(v.v ORDER BY s.i, v.nr) AS open FROM still s CROSS JOIN LATERAL (VALUES (1, s.seq), (2, s.id)) v(nr, v) GROUP BY s.lane
  ), room AS (
    SELECT c.*, h.open AS still_open, s.next_start AS start_at, u.earlier,
           -- Of several lanes of a key, each gets what is left by those before it; what was put back comes first.
           sum(c.room) OVER (PARTITION BY c.bits ORDER BY c.lane & 4 DESC, c.nr) - c.room AS ahead,
           -- In order, nothing of a key starts while an earlier job of it is to be tried again; except that job, which waits in front.
           lim.key_running - coalesce(u.runs, 0) - CASE WHEN c.lane & 4 = 0 THEN coalesce(u.follow, 0) ELSE 0 END AS slots,
           CASE WHEN lim.key_rate IS NOT NULL THEN weir._starts_now(by_second, lim.key_burst, s.next_start, at) END AS by_rate
    FROM chosen c LEFT JOIN used u ON u.bits = c.bits LEFT JOIN start s ON s.bits = c.bits LEFT JOIN held h ON h.lane = c.lane
  ), decided AS (
    SELECT r.*, greatest(0, least(r.room, r.slots - r.ahead, r.by_rate - r.ahead))::integer AS n FROM room r
  )
  SELECT array_agg(ROW(d.lane, d.seq, d.pos_xid, d.pos_id, d.tag, d.segment, d.waits, d.parked, d.pending, d.pending_after, d.still_open, d.next_start, d.again_at)::weir.turn ORDER BY d.nr),
         array_agg(d.n ORDER BY d.nr), array_agg(d.ahead > 0 ORDER BY d.nr),
         array_agg(CASE WHEN d.by_rate - d.ahead - d.n <= 0 AND coalesce(d.slots - d.ahead > d.n, true) AND d.n < d.room
                        THEN weir._starts_at(by_second, lim.key_burst, weir._started(by_second, lim.key_burst, d.start_at, at, d.n), at)
                        -- Attempts from before the limits tell nobody when they end.
                        WHEN d.n < d.room AND d.earlier > 0 THEN at + interval '100 milliseconds' END ORDER BY d.nr),
         array_agg(d.start_at ORDER BY d.nr)
    INTO kept, allowed, shares, tries, starts
  FROM decided d;
END
$$;
CREATE FUNCTION weir._lock_behind_few(what integer, key integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  -- Four places: one for the transaction that has the lock, and three for the next.
  FOR place IN 0..3 LOOP
    IF pg_try_advisory_xact_lock(what + 2, key # (place << 29)) THEN
      PERFORM pg_advisory_xact_lock(what, key);
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END
$$;
CREATE FUNCTION weir._lock_firings() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  LOCK TABLE weir.firing IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^firing$', 'weir: the due times that schedules have fired were compacted after this transaction took its snapshot, which shows none of them');
END
$$;
CREATE FUNCTION weir._lock_lanes(lanes bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  r record;
BEGIN
  -- In the order in which claims lock them: the ring of a queue after the lanes of its first twin.
  FOR r IN
    SELECT DISTINCT CASE WHEN l.lane & 549755813884 = 0 THEN l.lane ELSE (n.id << 39) + 4 END AS lane, CASE WHEN l.lane & 549755813884 <> 0 THEN hashtext(q.name) END AS ring
    FROM unnest(_lock_lanes.lanes) l(lane) JOIN weir.queue q ON q.id = (l.lane >> 39)::integer
    CROSS JOIN LATERAL (SELECT min(t.id)::bigint AS id FROM weir.queue t WHERE t.name = q.name) n
    ORDER BY 1
  LOOP
    IF r.ring IS NULL THEN
      PERFORM pg_advisory_xact_lock(1464158546, ((r.lane >> 39) * 4 + (r.lane & 3))::integer);
    ELSE
      PERFORM pg_advisory_xact_lock(1464158559, r.ring);
    END IF;
  END LOOP;
END
$$;
CREATE FUNCTION weir._lock_log() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  LOCK TABLE weir.job, weir.batch, weir.result, weir.turn, weir.ring, weir.later, weir.promotion, weir.settled, weir.segment, weir.report, weir.reprieve IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^((job|batch|result|turn|later|report)_[1-4]|ring|promotion|settled|segment|reprieve)$',
                                    'weir: a segment was reclaimed after this transaction took its snapshot, and the snapshot does not show the jobs that were moved');
END
$$;
CREATE FUNCTION weir._lock_to_retry(job_ids bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  -- In the order of their keys, the lanes last, as claims lock them: so nobody deadlocks.
  PERFORM pg_advisory_xact_lock(1464158546, k.key)
  FROM (SELECT DISTINCT -1 - (i.id % 1000000)::integer AS key FROM unnest(_lock_to_retry.job_ids) i(id) ORDER BY 1 OFFSET 0) k;
  -- A claim that has begun may not see that a job is not cancelled any more.
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(_lock_to_retry.job_ids) i(id))) THEN
    PERFORM weir._lock_lanes(ARRAY(
      SELECT DISTINCT l.lane FROM unnest(weir._cancelled_where_among(_lock_to_retry.job_ids)) i(id)
      CROSS JOIN LATERAL (
        SELECT j.lane FROM weir.job j WHERE j.id = i.id UNION SELECT l.lane FROM weir.later l WHERE l.id = i.id AND l.lane > 0) l));
  END IF;
END
$$;
CREATE FUNCTION weir._log_member(id bigint, flow bigint, job jsonb, about jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
  SELECT _log_member.id, pg_current_xact_id(), now(), weir._lane_of(x.queue, x.priority, x.key), 1, x.max_attempts, pg_sequence_last_value('weir.active_job'), x.kind, x.args,
         coalesce(x.meta, '{}') || _log_member.about, x.key, _log_member.flow
  FROM jsonb_to_record(_log_member.job) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, key text);
END
$$;
CREATE FUNCTION weir._log_time(given text) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  at timestamptz;
BEGIN
  IF given ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})? ?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
    at := given;
    RETURN CASE WHEN at NOT BETWEEN '2000-01-01 00:00:00+00' AND '9998-12-31 00:00:00+00' THEN NULL  -- to_jsonb writes some of these times as RFC 3339 does not
                WHEN given ~ 'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$' THEN to_jsonb(given)
                ELSE to_jsonb(at) END;
  END IF;
  RETURN NULL;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._login_secret(OUT secret text, OUT iterations integer) RETURNS record LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT s.value, coalesce(current_setting('scram_iterations', true)::integer, 4096) FROM weir.setting s WHERE s.name = 'message_login_secret'
$$;
CREATE FUNCTION weir._logins() RETURNS TABLE(name text, verifier text, listens text[], notifies text[]) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT a.rolname::text, a.rolpassword,
         CASE WHEN NOT has_function_privilege(a.oid, f.read, 'EXECUTE') THEN '{}'::text[] ELSE c.listens END,
         CASE WHEN NOT has_function_privilege(a.oid, f.publish, 'EXECUTE') THEN '{}'::text[] ELSE c.notifies END
  FROM (SELECT max(p.oid) FILTER (WHERE p.proname = 'read') AS read, max(p.oid) FILTER (WHERE p.proname = 'publish') AS publish
        FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace) f
  CROSS JOIN pg_authid a LEFT JOIN weir.role_channel c ON c.role = a.rolname
  WHERE a.rolcanlogin AND coalesce(a.rolvaliduntil > clock_timestamp(), true) AND a.rolpassword LIKE 'SCRAM-SHA-256$%'
    AND has_database_privilege(a.oid, current_database(), 'CONNECT')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE (s.rolsuper OR s.rolreplication) AND pg_has_role(a.oid, s.oid, 'MEMBER'));
EXCEPTION WHEN insufficient_privilege THEN
  RAISE EXCEPTION 'weir: the owner of the schema weir may not read pg_authid, so roles'' passwords can''t be checked'
    USING ERRCODE = '42501', HINT = 'Pass hubs a users file; or have a superuser run: GRANT SELECT ON pg_catalog.pg_authid TO ' || quote_ident(current_user) || '.';
END
$$;
CREATE FUNCTION weir._look_at_copy(job_id bigint) RETURNS SETOF weir.job_info LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  f    weir.failure;
  look weir.job_info;
BEGIN
  SELECT k.* INTO f FROM weir.failure k WHERE k.id = _look_at_copy.job_id ORDER BY k.attempt DESC, k.finished_at IS NULL LIMIT 1;
  IF f.finished_at IS NULL OR EXISTS (SELECT FROM weir.job j WHERE j.id = _look_at_copy.job_id AND j.attempt > f.attempt) THEN
    RETURN;
  ELSIF length(f.error) >= 65536 THEN
    RETURN QUERY SELECT k.* FROM weir._read_job(_look_at_copy.job_id, 1) k;  -- the copy has the beginning of its error
    RETURN;
  END IF;
  look.id := f.id; look.state := 'failed'; look.kind := f.kind; look.enqueued_at := f.enqueued_at; look.attempt := f.attempt; look.max_attempts := f.max_attempts;
  look.priority := (f.lane & 3)::integer + 1; look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (f.lane >> 39)::integer); look.key := f.key; look.flow := f.flow;
  look.claimed_at := f.claimed_at; look.finished_at := f.finished_at; look.worker := f.worker; look.error := f.error;
  RETURN NEXT look;
END
$$;
CREATE FUNCTION weir._mark_due(name text, generation integer, due timestamp with time zone, run_at timestamp with time zone) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM pg_current_xact_id();
  -- The number of no job; drawing it wakes those who promote.
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args)
  VALUES (-nextval('weir.job_id'), pg_current_xact_id(), _mark_due.run_at, _mark_due.due, 0, _mark_due.generation, 1,
          pg_sequence_last_value('weir.active_later'), _mark_due.name, '{}');
END
$$;
CREATE FUNCTION weir._mark_keys(queue text) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- Whatever was in progress when no mark was to be seen may log jobs with keys without leaving one.
  INSERT INTO weir.with_keys (queue, since) SELECT _mark_keys.queue, least(pg_snapshot_xmin(pg_current_snapshot()), pg_current_xact_id())
  WHERE NOT EXISTS (SELECT FROM weir.with_keys w WHERE w.queue = _mark_keys.queue)
$$;
CREATE FUNCTION weir._mark_operations() RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  few  CONSTANT integer := 50;  -- that have ended and may be looked at again
  last weir.operation_mark;
  upto bigint;
BEGIN
  SELECT m.* INTO last FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  IF (SELECT o.id FROM weir.operation o ORDER BY o.id DESC LIMIT 1) <= coalesce(last.upto, 0) + few OR NOT pg_try_advisory_xact_lock(1464158562, 0) THEN
    RETURN NULL;
  END IF;
  -- None is being begun, so those that are not visible now never will be.
  SELECT m.* INTO last FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1;
  upto := coalesce((SELECT k - 1 FROM weir._open_operations() k LIMIT 1), (SELECT o.id FROM weir.operation o ORDER BY o.id DESC LIMIT 1));
  IF upto > coalesce(last.upto, 0) + few THEN
    INSERT INTO weir.operation_mark (no, upto) VALUES (coalesce(last.no, 0) + 1, upto);
    RETURN upto;
  END IF;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._means(w weir.cancellation_where, id bigint, kind text, meta jsonb, at timestamp with time zone, key text, priority integer, flow bigint) RETURNS boolean LANGUAGE sql STABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT w.upto >= _means.id AND (w.kinds IS NULL OR _means.kind = ANY (w.kinds)) AND (w.meta IS NULL OR _means.meta @> w.meta)
    AND (w.key IS NULL OR _means.key = w.key) AND (w.flow IS NULL OR (_means.flow = w.flow OR weir._is_within(_means.flow, w.flow)) AND coalesce(NOT _means.meta ? 'weir.flow', true) AND (NOT w.is_late OR weir._is_cancelled_now(_means.flow))) AND (w.priority IS NULL OR _means.priority IS NULL OR _means.priority = w.priority)
    AND (w.enqueued_after IS NULL OR _means.at >= w.enqueued_after) AND (w.enqueued_before IS NULL OR _means.at < w.enqueued_before)
$$;
CREATE FUNCTION weir._merged_errors(history jsonb, errors jsonb, most integer) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce(jsonb_agg(k.entry ORDER BY k.attempt, k.nr), '[]')
  FROM (
    SELECT u.entry, u.nr, (u.entry ->> 'attempt')::integer AS attempt
    FROM (
      SELECT e.entry, e.nr FROM jsonb_array_elements(_merged_errors.errors) WITH ORDINALITY e(entry, nr)
      UNION ALL
      SELECT h.entry, 0 FROM jsonb_array_elements(weir._full_errors(_merged_errors.history)) h(entry)
      WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(_merged_errors.errors) e(entry) WHERE e.entry -> 'attempt' = h.entry -> 'attempt')) u
    ORDER BY 3 DESC, u.nr DESC LIMIT _merged_errors.most) k
$$;
CREATE FUNCTION weir._minute_ring(at timestamp with time zone) RETURNS smallint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT (extract(epoch FROM _minute_ring.at)::bigint / 129600 % 4)::smallint
$$;
CREATE FUNCTION weir._move(ids bigint[], lanes bigint[], from_queue text, to_queue text, to_priority integer, known bigint) RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_variable
DECLARE
  look     weir.job_info;
  j        weir.job;
  l        weir.later;
  was      bigint;  -- the lane that it leaves
  this     bigint;
  moved    integer := 0;
  left_    bigint[] := '{}';
  keys     bigint[] := '{}';
  simple   record;  -- those that are moved at once
  queue_no integer := CASE WHEN to_queue IS NOT NULL AND ids <> '{}' THEN weir._queue_id(to_queue) END;
BEGIN
  IF to_queue IS NOT NULL AND EXISTS (SELECT FROM unnest(lanes) k(lane) WHERE k.lane & 549755813880 <> 0) THEN
    PERFORM weir._mark_keys(to_queue);
  END IF;
  IF queue_no IS NOT NULL AND NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = to_queue) AND EXISTS (
       SELECT FROM unnest(ids) i(id) WHERE EXISTS (SELECT FROM weir.job k WHERE k.id = i.id AND k.unique_key IS NOT NULL AND k.flow IS NOT NULL)
                                        OR EXISTS (SELECT FROM weir.later k WHERE k.id = i.id AND k.unique_key IS NOT NULL AND k.flow IS NOT NULL)) THEN
    INSERT INTO weir.keyed (queue) VALUES (to_queue);  -- what is to be done once stays so
  END IF;
  -- Usually, these are jobs without keys that have not been claimed, nor cancelled. They are moved at once, in less than half of the time.
  IF known IS NULL AND NOT EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i) FROM unnest(ids) i)) THEN
    WITH place AS MATERIALIZED (
      SELECT k.lane, q.name, s.pos_xid, s.pos_id, s.pending, s.pending_after FROM unnest(lanes) k(lane)
      JOIN weir.queue q ON q.id = (k.lane >> 39)::integer CROSS JOIN LATERAL weir._state_of(k.lane) s
      WHERE k.lane & 549755813880 = 0 AND q.name = coalesce(from_queue, q.name)
        AND (q.name <> coalesce(to_queue, q.name) OR (k.lane & 3) + 1 <> coalesce(to_priority, (k.lane & 3) + 1))
    ), gone AS (
      DELETE FROM weir.job d USING (
        SELECT i.nr, n.*, p.name FROM unnest(ids) WITH ORDINALITY i(id, nr)
        CROSS JOIN LATERAL (SELECT k.id, k.attempt, k.put_off, k.segment, k.xid, k.lane FROM weir.job k WHERE k.id = i.id ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1) n
        JOIN place p ON p.lane = n.lane
        WHERE weir._waits(n.xid, n.id, p.pos_xid, p.pos_id, p.pending, p.pending_after)
          AND NOT EXISTS (SELECT FROM weir.later k WHERE k.id = n.id) AND NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = n.id)) n
      WHERE d.id = n.id AND d.attempt = n.attempt AND d.put_off = n.put_off AND d.segment = n.segment
      RETURNING d.*, n.nr, coalesce(to_queue <> n.name, false) AS leaves_queue, (coalesce(queue_no, d.lane >> 39) << 39) + coalesce(to_priority - 1, d.lane & 3) AS to_lane
    ), logged AS (
      INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, leads, kind, args, meta, seq, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT g.id, pg_current_xact_id(), g.enqueued_at, g.ready_at, g.to_lane, g.attempt, g.max_attempts, g.put_off, pg_sequence_last_value('weir.active_job'),
             row_number() OVER (PARTITION BY g.to_lane ORDER BY g.id) = 1, g.kind, g.args, g.meta, g.seq, g.errors,
             CASE WHEN NOT g.leaves_queue OR g.unique_no IS NULL THEN g.unique_key END, CASE WHEN NOT g.leaves_queue THEN g.unique_no END, CASE WHEN NOT g.leaves_queue THEN g.unique_until END, g.key, g.flow
      FROM gone g ORDER BY g.nr
    )
    SELECT array_agg(g.id) AS gone_ids, array_agg(DISTINCT g.lane) AS from_lanes, array_agg(g.lane) FILTER (WHERE g.leads) AS lead_lanes, array_agg(g.xid) FILTER (WHERE g.leads) AS lead_xids INTO simple FROM gone g;
    IF simple.gone_ids IS NOT NULL THEN
      PERFORM nextval('weir.job_id');  -- wakes idle workers
      UPDATE weir.job k SET leads = true WHERE (k.id, k.attempt, k.put_off, k.segment) IN (
        SELECT n.id, n.attempt, n.put_off, n.segment FROM (SELECT DISTINCT u.lane, u.xid FROM unnest(simple.lead_lanes, simple.lead_xids) u(lane, xid)) u
        CROSS JOIN LATERAL (SELECT n.id, n.attempt, n.put_off, n.segment, n.leads FROM weir.job n WHERE n.lane = u.lane AND n.xid = u.xid ORDER BY n.lane, n.xid, n.id LIMIT 1) n WHERE NOT n.leads);
      moved := cardinality(simple.gone_ids);
      left_ := simple.from_lanes;
      ids := ARRAY(SELECT i FROM unnest(ids) WITH ORDINALITY u(i, nr) WHERE i NOT IN (SELECT unnest(simple.gone_ids)) ORDER BY u.nr);
    END IF;
  END IF;
  FOREACH this IN ARRAY ids LOOP
    SELECT k.* INTO look FROM weir._read_job(this, 1) k;
    CONTINUE WHEN look.state NOT IN ('available', 'scheduled') OR look.id IS NULL OR look.queue <> from_queue
      OR (look.queue = coalesce(to_queue, look.queue) AND look.priority = coalesce(to_priority, look.priority));
    IF look.state = 'available' THEN
      SELECT k.* INTO j FROM weir.job k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      was := j.lane;
      CONTINUE WHEN was <> ALL (lanes);  -- enqueued again in another lane since
      DELETE FROM weir.job k WHERE k.id = this AND k.attempt = j.attempt AND k.put_off = j.put_off AND k.segment = j.segment;
      IF j.leads THEN
        UPDATE weir.job k SET leads = true WHERE (k.id, k.attempt, k.put_off, k.segment) IN (
          SELECT n.id, n.attempt, n.put_off, n.segment FROM (SELECT n.* FROM weir.job n WHERE n.lane = was AND n.xid = j.xid ORDER BY n.lane, n.xid, n.id LIMIT 1) n WHERE NOT n.leads);
      END IF;
      j.xid := pg_current_xact_id();
      PERFORM nextval('weir.job_id');  -- wakes idle workers
      -- The key stays the same, and so does its place in front of those that were never tried.
      j.lane := (coalesce(queue_no, was >> 39) << 39) + (was & 549755813884) + coalesce(to_priority - 1, was & 3);
      j.segment := pg_sequence_last_value('weir.active_job');
      j.leads := true;
      IF to_queue <> look.queue AND j.unique_no IS NOT NULL THEN  -- its key meant only jobs of its old queue
        j.unique_key := NULL;
        j.unique_no := NULL;
        j.unique_until := NULL;
      END IF;
      INSERT INTO weir.job SELECT (j).*;
      IF was <> ALL (left_) THEN
        left_ := left_ || was;
      END IF;
    ELSE
      SELECT k.* INTO l FROM weir.later k WHERE k.id = this ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
      DELETE FROM weir.later k WHERE k.id = this AND k.attempt = l.attempt AND k.put_off = l.put_off AND k.segment = l.segment;
      IF to_queue <> look.queue AND l.unique_no IS NOT NULL THEN
        l.unique_key := NULL;
        l.unique_no := NULL;
        l.unique_until := NULL;
      END IF;
      l.xid := pg_current_xact_id();
      was := l.lane;
      l.lane := (coalesce(queue_no, was >> 39) << 39) + (was & 549755813884) + coalesce(to_priority - 1, was & 3);
      l.segment := pg_sequence_last_value('weir.active_later');
      INSERT INTO weir.later SELECT (l).*;
    END IF;
    IF was & 549755813880 <> 0 THEN
      keys := keys || was;
    END IF;
    -- It is not cancelled where it was. Cancellations of the jobs in its new place mean those that were there.
    IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.no <= known AND w.upto >= this AND num_nonnulls(w.queue, w.priority) > 0) THEN
      INSERT INTO weir.reprieve (id, attempt, since, upto) VALUES (this, look.attempt, 0, known);
    END IF;
    moved := moved + 1;
  END LOOP;
  PERFORM weir._pass_moved(k.lane) FROM unnest(left_) k(lane) WHERE k.lane & 549755813880 = 0;
  -- In order, the next job of a key may have waited for one of these.
  PERFORM weir._free_slots(array_agg(m.gate), array_agg(0), array_agg(k.lane))
  FROM unnest(keys) k(lane) JOIN weir.queue q ON q.id = (k.lane >> 39)::integer JOIN weir.queue_limit m ON m.name = q.name
  WHERE m.in_order;
  RETURN moved;
END
$$;
CREATE FUNCTION weir._named_by(tokens text[], OUT lanes bigint[], OUT seqs bigint[], OUT ids bigint[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  invalid text;
BEGIN
  -- A worker passes all that it holds each time: the usual form is told without a call.
  SELECT t INTO invalid FROM unnest(_named_by.tokens) t
  WHERE CASE WHEN t ~ '^[0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}$' THEN false ELSE NOT weir._is_token(t) END LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % is not a token', quote_literal(left(invalid, 100)) USING ERRCODE = '22023', HINT = 'Pass tokens unchanged, as weir.take returned them.';
  END IF;
  SELECT coalesce(array_agg(split_part(t, '.', 1)::bigint ORDER BY nr), '{}'), coalesce(array_agg(split_part(t, '.', 2)::bigint ORDER BY nr), '{}'),
         coalesce(array_agg(split_part(t, '.', 3)::bigint ORDER BY nr), '{}')
    INTO lanes, seqs, ids
  FROM unnest(_named_by.tokens) WITH ORDINALITY u(t, nr);
END
$$;
CREATE FUNCTION weir._never_used(queues text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
DECLARE
  names text[];
BEGIN
  PERFORM weir._lock_log();
  -- The newest batch of a lane outlives its segment, so a lane that had jobs has a batch, or they still wait to be claimed for the first time.
  names := ARRAY(SELECT n.name FROM unnest(_never_used.queues) n(name) WHERE NOT EXISTS (
    SELECT FROM weir.queue q CROSS JOIN LATERAL (SELECT q.id::bigint << 39 AS low, (q.id + 1)::bigint << 39 AS high) l
    WHERE q.name = n.name AND (EXISTS (SELECT FROM weir.batch b WHERE b.lane >= l.low AND b.lane < l.high) OR EXISTS (SELECT FROM weir.job j WHERE j.lane >= l.low AND j.lane < l.high)
                               OR EXISTS (SELECT FROM weir.later t WHERE t.lane >= l.low AND t.lane < l.high))) ORDER BY n.name);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN names;
END
$$;
CREATE FUNCTION weir._newest_of_key(key uuid, below bigint, fresh boolean, after timestamp with time zone DEFAULT NULL::timestamp with time zone, before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, no bigint, waits boolean, runs boolean, enqueued_at timestamp with time zone, seen pg_snapshot) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  max_rows CONSTANT integer := 10000;  -- more than a server has connections: so many may have logged a job without seeing each other's
  c     weir.promotion;
  r     record;
  batch record;
  lanes bigint[];
  ended weir.outcome;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR r IN
    -- Each part is sorted on its own, so that the rows are read one by one from the two indexes, and no more than needed.
    SELECT u.* FROM (
      (SELECT j.unique_no, j.unique_until, j.id, j.xid, j.attempt, j.put_off, j.enqueued_at, j.lane, j.segment, j.seq, NULL::timestamptz AS run_at
       FROM weir.job j WHERE j.unique_key = _newest_of_key.key AND j.unique_no < _newest_of_key.below
       ORDER BY j.unique_no DESC LIMIT max_rows)
      UNION ALL
      (SELECT l.unique_no, l.unique_until, l.id, l.xid, l.attempt, l.put_off, l.enqueued_at, l.lane, l.segment, NULL, l.run_at
       FROM weir.later l WHERE l.unique_key = _newest_of_key.key AND l.unique_no < _newest_of_key.below
       ORDER BY l.unique_no DESC LIMIT max_rows)) u
    ORDER BY u.unique_no DESC LIMIT max_rows
  LOOP
    IF r.enqueued_at <= _newest_of_key.after THEN
      EXIT WHEN r.unique_no / 2 = r.id;  -- so were those before; but a job that was tried again has a greater number than some that were enqueued later
      CONTINUE;
    END IF;
    CONTINUE WHEN r.enqueued_at >= _newest_of_key.before;
    waits := true;
    runs := false;
    seen := NULL;
    IF r.run_at IS NOT NULL THEN
      -- One that was promoted is in the log, too.
      CONTINUE WHEN weir._waits_later(c, r.run_at, r.id, r.xid) IS NOT TRUE;
    ELSE
      SELECT k.seq, k.seen, k.lane INTO batch FROM weir._batch_of(r.lane, r.segment, r.xid, r.id) k;
      IF coalesce(batch.seq, r.seq) IS NOT NULL THEN
        lanes := CASE WHEN batch.seq IS NOT NULL THEN ARRAY[batch.lane] ELSE weir._ring_lanes(r.lane) END;
        ended := (SELECT k.outcome FROM weir.result k WHERE k.segment = r.segment AND k.lane = ANY (lanes) AND k.seq = coalesce(batch.seq, r.seq) AND r.id = ANY (k.ids) LIMIT 1);
        CONTINUE WHEN ended IN ('cancelled', 'released');  -- released: it has not been started
        waits := false;
        runs := ended IS NULL;
        seen := batch.seen;
      END IF;
    END IF;
    IF waits THEN
      CONTINUE WHEN NOT _newest_of_key.fresh AND r.attempt = 1 AND r.put_off = 0 AND r.unique_no & 1 = 0
        OR EXISTS (SELECT FROM weir.cancellation k WHERE k.id = r.id)
        OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= r.id) AND weir._is_cancelled_where(r.id);
      -- A job that a claim would drop for one that has started already stands for nobody.
      CONTINUE WHEN _newest_of_key.fresh AND EXISTS (
        SELECT FROM weir._judge(ARRAY[r.id], ARRAY[r.xid], ARRAY[_newest_of_key.key], ARRAY[r.unique_no], ARRAY[coalesce(r.unique_until, 'infinity')], ARRAY[r.enqueued_at]) g
        WHERE g.fate = 'dropped');
    END IF;
    id := r.id;
    no := r.unique_no;
    enqueued_at := r.enqueued_at;
    RETURN NEXT;
    RETURN;
  END LOOP;
END
$$;
CREATE FUNCTION weir._next_available(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
#variable_conflict use_column
DECLARE
  bound    CONSTANT integer := 500;  -- lanes in a group
  step     CONSTANT integer := 20;
  no_end   CONSTANT bigint := 9223372036854775807;
  v        record := weir._in_progress();
  -- The queue, if all lanes are those of one.
  queue    text := (SELECT q.name FROM weir.queue q WHERE q.id = (_next_available.lanes[1] >> 39)::integer);
  of_keys  boolean := coalesce(after->>0 = 'keys' OR lanes[1] & 549755813880 <> 0, false);
  -- A group contains the lanes between two places in the order of priority, then queue: place = priority << 32 | queue id.
  from_    bigint := CASE WHEN of_keys THEN 0 ELSE coalesce((after->>0)::bigint, 0) END;
  upto     bigint := (after->>1)::bigint;  -- NULL: a new group
  first    integer := CASE WHEN of_keys THEN 0 ELSE coalesce((after->>2)::integer, from_ >> 32) END;  -- priority
  at_xid   xid8 := CASE WHEN of_keys THEN '0' ELSE coalesce((after->>3)::xid8, '0') END;
  at_id    bigint := coalesce((after->>4)::bigint, 0);
  upto_xid xid8;
  upto_id  bigint;
  s        weir.survey;
  places   bigint[];
  head     record;
  shown    integer := 0;
  n        integer := 0;
  found    integer;
BEGIN
  IF lanes = '{}' THEN
    RETURN;
  ELSIF of_keys THEN
    RETURN QUERY SELECT k.* FROM weir._next_of_keys(queue, coalesce((after->>1)::bigint, 0), coalesce((after->>2)::xid8, '0'), coalesce((after->>3)::bigint, 0), most,
                                                    CASE WHEN lanes[1] & 549755813880 <> 0 THEN lanes END) k;
    RETURN;
  END IF;
  IF lanes IS NULL THEN
    s := weir._surveyed();
    lanes := s.waiting;
  ELSE
    lanes := ARRAY(SELECT l FROM unnest(lanes) l WHERE l & 4 = 0);
  END IF;
  -- The end of a group is fixed when it begins, so that no lane moves to another group when others become idle or busy.
  places := ARRAY(
    SELECT k.place FROM (
      SELECT (l & 3) << 32 | (l >> 39) AS place FROM unnest(_next_available.lanes) l
      UNION ALL
      SELECT q.place FROM generate_series(from_ >> 32, 3) p CROSS JOIN LATERAL (
        SELECT p << 32 | q.id AS place FROM weir.queue q
        WHERE q.id > s.upto AND q.id >= CASE WHEN p = from_ >> 32 THEN from_ & 4294967295 ELSE 0 END
        ORDER BY q.id LIMIT CASE WHEN upto IS NULL THEN bound + 1 END) q) k
    WHERE k.place BETWEEN from_ AND coalesce(upto, no_end)
    ORDER BY k.place LIMIT CASE WHEN upto IS NULL THEN bound + 1 END);
  IF places = '{}' AND upto IS NULL THEN
    RETURN QUERY SELECT k.* FROM weir._next_of_keys(queue, 0, '0', 0, most) k;
    RETURN;
  ELSIF upto IS NULL THEN
    upto := coalesce(places[bound + 1] - 1, no_end);
    places := places[1:bound];
  END IF;

  -- No other lane has a job on the page.
  SELECT array_agg(h.lane) AS lanes, array_agg(h.xid) AS xids, array_agg(h.id) AS ids INTO head
  FROM (
    SELECT l.lane, w.xid, w.id
    FROM unnest(places) p(place) CROSS JOIN LATERAL (SELECT ((p.place & 4294967295) << 39) + (p.place >> 32) AS lane) l
    CROSS JOIN LATERAL weir._waiting(l.lane, v.running, v.top, CASE WHEN l.lane & 3 = first THEN at_xid ELSE '0' END, CASE WHEN l.lane & 3 = first THEN at_id ELSE 0 END, 1) w
    WHERE l.lane & 3 >= first
    ORDER BY l.lane & 3, w.xid, w.id LIMIT most + 1) h;
  place := jsonb_build_array(from_, upto, first, at_xid::text, at_id);
  cost := 12 * cardinality(places);
  RETURN NEXT;
  WHILE shown < most AND n < coalesce(cardinality(head.lanes), 0) LOOP
    -- A few lanes at a time, up to the first job of the next lane.
    n := n + step;
    upto_xid := coalesce(head.xids[n + 1], '18446744073709551615');
    upto_id := coalesce(head.ids[n + 1] - 1, no_end);
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = r.id) THEN r.id END,  -- cancelled jobs stay in the log until they are claimed
           NULL::timestamptz, jsonb_build_array(from_, upto, r.priority, r.xid::text, r.id), CASE r.nr WHEN 1 THEN 12 * n + r.rows ELSE 1 END::integer
    FROM (
      SELECT l.lane & 3 AS priority, w.xid, w.id, count(*) OVER () AS rows, row_number() OVER (ORDER BY l.lane & 3, w.xid, w.id) AS nr
      FROM unnest(head.lanes[1:n]) l(lane)
      CROSS JOIN LATERAL weir._waiting(l.lane, v.running, v.top, CASE WHEN l.lane & 3 = first THEN at_xid ELSE '0' END, CASE WHEN l.lane & 3 = first THEN at_id ELSE 0 END,
        most - shown, CASE WHEN l.lane & 3 = head.lanes[n + 1] & 3 THEN upto_xid ELSE '18446744073709551615' END, CASE WHEN l.lane & 3 = head.lanes[n + 1] & 3 THEN upto_id ELSE no_end END) w
      WHERE l.lane & 3 >= first) r
    WHERE r.nr <= most - shown ORDER BY r.nr;
    GET DIAGNOSTICS found = ROW_COUNT;
    shown := shown + found;
    first := head.lanes[n + 1] & 3;
    at_xid := upto_xid;
    at_id := upto_id;
  END LOOP;
  IF shown < most THEN
    place := jsonb_build_array(CASE WHEN upto < no_end THEN upto + 1 ELSE no_end END, NULL, NULL, NULL, NULL);
    cost := 1;
    RETURN NEXT;
  END IF;
END
$$;
CREATE FUNCTION weir._next_cancelled(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  -- The queue, if all lanes are those of one.
  of_name text := (SELECT q.name FROM weir.queue q WHERE q.id = (_next_cancelled.lanes[1] >> 39)::integer);
  has_filters boolean := EXISTS (SELECT FROM weir.cancellation_where w WHERE of_name IS NULL OR w.queue IS NULL OR w.queue = of_name);
  upto    bigint := (SELECT max(w.upto) FROM weir.cancellation_where w);  -- no job with a greater id is cancelled by a filter
  at_time timestamptz;
  at_id   bigint;
BEGIN
  IF after IS NULL OR jsonb_typeof(after) = 'number' THEN
    IF lanes IS NULL THEN
      RETURN QUERY
      SELECT c.id, NULL::timestamptz, to_jsonb(c.id), 1
      FROM weir.cancellation c WHERE c.id < coalesce(after::bigint, 9223372036854775807) ORDER BY c.id DESC LIMIT most;
    ELSE
      RETURN QUERY
      SELECT CASE WHEN NOT of_key OR EXISTS (SELECT FROM (  -- all rows of a job have the same key
                         (SELECT j.lane FROM weir.job j WHERE j.id = c.id LIMIT 1) UNION ALL (SELECT l.lane FROM weir.later l WHERE l.id = c.id LIMIT 1)) k
                       WHERE k.lane = ANY (_next_cancelled.lanes)) THEN c.id END,
             NULL::timestamptz, to_jsonb(c.id), CASE WHEN of_key THEN 10 ELSE 1 END
      FROM weir.cancellation c
      WHERE c.queue = of_name AND c.id < coalesce(after::bigint, 9223372036854775807) ORDER BY c.id DESC LIMIT most;
    END IF;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"waiting": null}';
  END IF;
  -- Those that a filter has cancelled wait among the others. Of a job that ends while pages are read, the end comes after this place.
  IF after ? 'waiting' AND has_filters THEN
    RETURN QUERY
    WITH n AS MATERIALIZED (
      SELECT k.*, row_number() OVER () AS at_nr FROM weir._next_available(_next_cancelled.lanes, nullif(after -> 'waiting', 'null'), most) k
    ), gone AS MATERIALIZED (
      SELECT weir._cancelled_where_among(ARRAY(SELECT n.id FROM n WHERE n.id <= upto)) AS ids
    )
    SELECT CASE WHEN n.id = ANY (gone.ids) THEN n.id END, NULL::timestamptz, jsonb_build_object('waiting', n.place), n.cost + CASE WHEN n.id <= upto THEN 9 ELSE 0 END FROM n CROSS JOIN gone ORDER BY n.at_nr;
    IF FOUND THEN
      RETURN;
    END IF;
    after := '{"later": null}';
  END IF;
  IF after ? 'later' AND has_filters THEN
    RETURN QUERY
    WITH n AS MATERIALIZED (
      SELECT k.*, row_number() OVER () AS at_nr FROM weir._next_later(_next_cancelled.lanes, nullif(after -> 'later', 'null'), most) k
    ), gone AS MATERIALIZED (
      SELECT weir._cancelled_where_among(ARRAY(SELECT n.id FROM n WHERE n.id <= upto)) AS ids
    )
    SELECT CASE WHEN n.id = ANY (gone.ids) THEN n.id END, NULL::timestamptz, jsonb_build_object('later', n.place), CASE WHEN n.id <= upto THEN 10 ELSE 1 END FROM n CROSS JOIN gone ORDER BY n.at_nr;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF of_key THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = n.id AND c.queue = of_name) THEN n.id END, NULL::timestamptz, n.place, 10
    FROM weir._next_claimed(_next_cancelled.lanes, CASE WHEN jsonb_typeof(after) = 'array' THEN after END, most) n;
    RETURN;
  ELSIF jsonb_typeof(after) = 'object' THEN
    after := '["infinity", 0]';
  END IF;
  at_time := (after->>0)::timestamptz;
  at_id := (after->>1)::bigint;
  IF lanes IS NULL THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = i.id) THEN i.id END, r.finished_at, jsonb_build_array(r.finished_at, i.id), 1
    FROM weir.result r CROSS JOIN LATERAL unnest(r.ids) i(id)
    WHERE r.outcome = 'cancelled' AND r.finished_at <= at_time AND (r.finished_at, i.id) < (at_time, at_id)
    ORDER BY r.finished_at DESC, i.id DESC LIMIT most;
  ELSE
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = k.id AND c.queue = of_name) THEN k.id END, k.finished_at, jsonb_build_array(k.finished_at, k.id), 1
    FROM unnest(_next_cancelled.lanes) l(lane) CROSS JOIN LATERAL weir._cancelled_in(l.lane, at_time, at_id, most) k
    ORDER BY k.finished_at DESC, k.id DESC LIMIT most;
  END IF;
END
$$;
CREATE FUNCTION weir._next_claimed(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  late   xid8[] := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = (lanes[1] >> 39)::integer));
  at_xid xid8   := coalesce((after->>0)::xid8, '18446744073709551615');
  at_id  bigint := coalesce((after->>1)::bigint, 0);
BEGIN
  RETURN QUERY
  -- Of a job with several rows, the newest one counts.
  SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.job n WHERE n.id = c.id AND (n.attempt, n.put_off) > (c.attempt, c.put_off)) THEN c.id END, NULL::timestamptz, jsonb_build_array(c.xid::text, c.id)
  FROM (
    SELECT j.* FROM unnest(_next_claimed.lanes) l(lane)
    CROSS JOIN LATERAL weir._state_of(l.lane, late) s
    CROSS JOIN LATERAL (
      SELECT j.xid, j.id, j.attempt, j.put_off FROM weir.job j
      WHERE j.lane = l.lane AND (j.xid, j.id) <= (s.pos_xid, s.pos_id) AND (j.xid, j.id) < (at_xid, at_id) ORDER BY j.xid DESC, j.id DESC LIMIT most) j
    ORDER BY j.xid DESC, j.id DESC LIMIT most) c
  ORDER BY c.xid DESC, c.id DESC;
END
$$;
CREATE FUNCTION weir._next_completed(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  last_id  CONSTANT bigint := 9223372036854775807;
  size     bigint := current_setting('block_size')::bigint;
  r        record;
BEGIN
  place := after;
  IF lanes[1] & 549755813880 <> 0 THEN
    RETURN QUERY SELECT n.* FROM weir._next_claimed(lanes, after, most) n;
    RETURN;
  ELSIF lanes IS NOT NULL THEN
    place := coalesce(place, '{}');
    FOR r IN
      SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.lane ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at  -- each lane keeps its order
      FROM unnest(_next_completed.lanes) l(lane)
      CROSS JOIN LATERAL (SELECT l.lane, e.* FROM weir._results_of(l.lane, coalesce((after->l.lane::text->>0)::bigint, last_id), coalesce((after->l.lane::text->>1)::bigint, last_id), most) e) k
      ORDER BY at DESC, k.lane, k.place DESC, k.id DESC LIMIT most
    LOOP
      id := CASE WHEN r.is_end THEN r.id END;
      ended_at := r.finished_at;
      place := place || jsonb_build_object(r.lane::text, jsonb_build_array(r.place, r.id));
      RETURN NEXT;
    END LOOP;
    RETURN;
  END IF;
  -- Results appended from now on are newer than all that are shown, and a segment that has been reclaimed holds none of its earlier results.
  place := coalesce(place, (SELECT jsonb_object_agg(s::text, jsonb_build_array((pg_relation_size('weir.result_' || s) / size) * 65536, 0, weir._times_reclaimed(s))) FROM generate_series(1, 4) s));
  FOR r IN
    SELECT k.*, min(k.finished_at) OVER (PARTITION BY k.segment ORDER BY k.place DESC, k.id DESC ROWS UNBOUNDED PRECEDING) AS at
    FROM generate_series(1, 4) s(segment)
    CROSS JOIN LATERAL (
      SELECT s.segment, e.* FROM weir._results_in(s.segment, (_next_completed.place->s.segment::text->>0)::bigint, (_next_completed.place->s.segment::text->>1)::bigint, most) e
      WHERE (_next_completed.place->s.segment::text->>2)::bigint = weir._times_reclaimed(s.segment)) k
    ORDER BY at DESC, k.segment, k.place DESC, k.id DESC LIMIT most
  LOOP
    id := CASE WHEN r.is_end THEN r.id END;
    ended_at := r.finished_at;
    place := place || jsonb_build_object(r.segment::text, jsonb_build_array(r.place, r.id, place->r.segment::text->2));
    RETURN NEXT;
  END LOOP;
END
$$;
CREATE FUNCTION weir._next_failed(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001
AS $$
#variable_conflict use_column
DECLARE
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_failed.lanes) l);
  at_time timestamptz := coalesce((after->>0)::timestamptz, 'infinity');
  at_id   bigint := coalesce((after->>1)::bigint, 9223372036854775807);
BEGIN
  -- The lanes of a queue with keys are too many to be read one by one.
  IF lanes[1] & 549755813880 <> 0 OR lanes IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q JOIN weir.with_keys w ON w.queue = q.name WHERE q.id = ANY (queues)) THEN
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt) THEN f.id END, NULL::timestamptz, jsonb_build_array(f.finished_at, f.id)
    FROM unnest(_next_failed.lanes) l(lane)
    CROSS JOIN LATERAL (
      SELECT f.id, f.attempt, f.finished_at FROM weir.failure f
      WHERE f.lane = l.lane AND f.finished_at <= at_time AND (f.finished_at, f.id) < (at_time, at_id) ORDER BY f.finished_at DESC, f.id DESC LIMIT most) f
    ORDER BY f.finished_at DESC, f.id DESC LIMIT most;
    RETURN;
  END IF;
  RETURN QUERY
  -- A job that has failed again since is listed under its later failure.
  SELECT CASE WHEN (_next_failed.lanes IS NULL OR f.lane >> 39 = ANY (queues))
                AND NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt) THEN f.id END, NULL::timestamptz, jsonb_build_array(f.finished_at, f.id)
  FROM weir.failure f
  WHERE f.finished_at <= at_time AND (f.finished_at, f.id) < (at_time, at_id)
  ORDER BY f.finished_at DESC, f.id DESC LIMIT most;
END
$$;
CREATE FUNCTION weir._next_later(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001
AS $$
#variable_conflict use_column
DECLARE
  c       weir.promotion;
  at_due  timestamptz := coalesce((after->>0)::timestamptz, '-infinity');
  at_id   bigint := coalesce((after->>1)::bigint, 0);
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  queues  bigint[] := ARRAY(SELECT DISTINCT l >> 39 FROM unnest(_next_later.lanes) l);
  overdue weir.later[];  -- before the cursor's point, and not promoted yet
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  IF (c.due, c.due_id) > (at_due, at_id) THEN
    overdue := ARRAY(SELECT o FROM weir._overdue(c, 10000) o
                     WHERE (o.run_at, o.id) > (at_due, at_id) AND (lanes IS NULL OR CASE WHEN of_key THEN o.lane = ANY (lanes) ELSE o.lane >> 39 = ANY (queues) END) ORDER BY o.run_at, o.id LIMIT most);
    at_due := c.due;
    at_id := c.due_id;
  END IF;
  IF lanes IS NULL OR NOT of_key AND EXISTS (SELECT FROM weir.queue q JOIN weir.with_keys w ON w.queue = q.name WHERE q.id = ANY (queues)) THEN
    RETURN QUERY
    SELECT CASE WHEN j.lane > 0 AND (lanes IS NULL OR j.lane >> 39 = ANY (queues)) AND NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = j.id) THEN j.id END, NULL::timestamptz, jsonb_build_array(j.run_at, j.id)
    FROM (
      SELECT o.lane, o.id, o.run_at FROM unnest(overdue) o
      UNION ALL
      (SELECT l.lane, l.id, l.run_at FROM weir.later l WHERE (l.run_at, l.id) > (at_due, at_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
       ORDER BY l.run_at, l.id LIMIT most)) j
    ORDER BY j.run_at, j.id LIMIT most;
  ELSE
    RETURN QUERY
    SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation k WHERE k.id = j.id) THEN j.id END, NULL::timestamptz, jsonb_build_array(j.run_at, j.id)
    FROM (
      SELECT o.id, o.run_at FROM unnest(overdue) o
      UNION ALL
      SELECT k.id, k.run_at FROM unnest(_next_later.lanes) n(lane) CROSS JOIN LATERAL (
        SELECT l.id, l.run_at FROM weir.later l
        WHERE l.lane = n.lane AND (l.run_at, l.id) > (at_due, at_id) AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
        ORDER BY l.run_at, l.id LIMIT most) k) j
    ORDER BY j.run_at, j.id LIMIT most;
  END IF;
END
$$;
CREATE FUNCTION weir._next_of_keys(queue text, after bigint, after_xid xid8, after_id bigint, most integer, lanes bigint[] DEFAULT NULL::bigint[]) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  bound   CONSTANT integer := 200;  -- lanes that are looked at
  v       record := weir._in_progress();
  of_name text;
  keys    record;
  is_last boolean := true;          -- there are no lanes behind these
  looked  integer := 0;
  shown   integer := 0;
  this    bigint;
  late    xid8[];
  of      bigint;
  found   integer;
BEGIN
  IF lanes IS NULL THEN
    lanes := '{}';
    FOR of_name IN SELECT DISTINCT w.queue FROM weir.with_keys w WHERE _next_of_keys.queue IS NULL OR w.queue = _next_of_keys.queue ORDER BY 1 LOOP
      keys := weir._waiting_keys(of_name, 1000);
      looked := looked + 1;
      IF keys.is_whole THEN
        lanes := lanes || keys.lanes;
      ELSE  -- the next that have rows at all
        lanes := lanes || ARRAY(SELECT k FROM weir.queue q CROSS JOIN LATERAL weir._key_lanes(q.id, after - 1, NULL, bound + 1) k WHERE q.name = of_name);
      END IF;
    END LOOP;
  END IF;
  lanes := ARRAY(SELECT l FROM unnest(lanes) l WHERE l >= after ORDER BY l LIMIT bound + 1);
  IF lanes = '{}' THEN
    RETURN;
  END IF;
  is_last := cardinality(lanes) <= bound;
  cost := 20 * looked;
  FOREACH this IN ARRAY lanes[: bound] LOOP
    IF this >> 39 IS DISTINCT FROM of THEN
      of := this >> 39;
      late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = of::integer));
    END IF;
    cost := coalesce(cost, 0) + 4;
    FOR id, place IN
      SELECT CASE WHEN NOT EXISTS (SELECT FROM weir.cancellation c WHERE c.id = w.id) THEN w.id END, jsonb_build_array('keys', this, w.xid::text, w.id)
      FROM weir._waiting(this, v.running, v.top, CASE WHEN this = after THEN after_xid ELSE '0' END, CASE WHEN this = after THEN after_id ELSE 0 END, most - shown, late => late) w
      ORDER BY w.xid, w.id
    LOOP
      cost := cost + 1;
      RETURN NEXT;
      cost := 0;
      shown := shown + 1;
    END LOOP;
    EXIT WHEN shown >= most;
  END LOOP;
  IF shown < most THEN
    id := NULL;
    place := jsonb_build_array('keys', CASE WHEN is_last THEN 9223372036854775807 ELSE lanes[bound] + 1 END, '0', 0);
    cost := cost + 1;
    RETURN NEXT;
  END IF;
END
$$;
CREATE FUNCTION weir._next_running(lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  of_key  boolean := coalesce(lanes[1] & 549755813880 <> 0, false);
  claimed bigint[] := CASE WHEN of_key THEN ARRAY(SELECT DISTINCT (l >> 39 << 39) + 4 FROM unnest(_next_running.lanes) l) ELSE lanes END;  -- the lanes of their batches
  workers integer[] := weir._holders();
  batches integer := greatest(20, 2500 / greatest(cardinality(workers), 1));  -- of each worker
  at_no   bigint := coalesce((after->>0)::bigint, 9223372036854775807);
  at_id   bigint := coalesce((after->>1)::bigint, 9223372036854775807);
BEGIN
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT h.* FROM weir._in_hand(workers, at_no, batches) h
  ), reached AS MATERIALIZED (  -- older batches of a worker with more have not been read
    SELECT max(h.no) AS no FROM held h WHERE h.is_last
  )
  SELECT k.id, NULL::timestamptz, jsonb_build_array(k.no, coalesce(k.id, 0)),
         CASE row_number() OVER (ORDER BY k.no DESC, k.id DESC NULLS LAST) WHEN 1 THEN batches * cardinality(workers) ELSE 1 END
  FROM (
    SELECT i.id, h.no FROM reached r CROSS JOIN held h
    CROSS JOIN LATERAL unnest(CASE WHEN NOT of_key THEN h.ids ELSE ARRAY(
      SELECT u.id FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) u(id, lane)
      WHERE b.worker = h.worker AND b.no = h.no AND u.lane = ANY (_next_running.lanes) AND u.id = ANY (h.ids)) END) i(id)
    WHERE h.no >= coalesce(r.no, 0) AND (h.no, i.id) < (at_no, at_id) AND (claimed IS NULL OR h.lane = ANY (claimed))
    UNION ALL
    SELECT NULL, r.no FROM reached r WHERE r.no IS NOT NULL) k
  ORDER BY k.no DESC, k.id DESC NULLS LAST LIMIT most;
END
$$;
CREATE FUNCTION weir._next_start(by_second double precision, burst integer, next_start timestamp with time zone, at timestamp with time zone) RETURNS timestamp with time zone LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN CASE WHEN _next_start.next_start > _next_start.at + (_next_start.burst / _next_start.by_second + 0.01) * interval '1 second'
              THEN _next_start.at + ((_next_start.burst - 1) / _next_start.by_second) * interval '1 second'
              ELSE greatest(_next_start.next_start, _next_start.at) END;
END
$$;
CREATE FUNCTION weir._next_stopped(ids bigint[], INOUT after bigint, INOUT upto bigint, most integer, OUT keys bigint[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  last_lane CONSTANT bigint  := 9223372036854775807;
  to_end    CONSTANT boolean := upto <= after;
BEGIN
  -- From key to key, because a key has an old row for each time that it was stopped.
  keys := ARRAY(
    WITH RECURSIVE stopped AS (
      SELECT _next_stopped.after - 7 AS key
      UNION ALL
      SELECT n.key FROM stopped s CROSS JOIN LATERAL (
        SELECT min(t.lane) & ~ 7::bigint AS key FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE (t.parked OR t.again_at IS NOT NULL) AND t.lane > greatest(s.key + 7, q.id << 39)
                              AND t.lane < (q.id + 1) << 39 AND t.lane <= CASE WHEN to_end THEN last_lane ELSE _next_stopped.upto END ORDER BY t.lane LIMIT 1) t) n
      WHERE n.key IS NOT NULL
    )
    SELECT s.key FROM stopped s OFFSET 1 LIMIT most);
  IF cardinality(keys) = most AND keys[most] + 7 IS DISTINCT FROM upto THEN
    after := keys[most] + 7;
  ELSIF to_end AND upto > 0 THEN
    after := 0;
  ELSE
    after := NULL;
    upto := NULL;
  END IF;
END
$$;
CREATE FUNCTION weir._next_try(backoff interval, backoff_limit interval, backoff_form text, tries integer) RETURNS timestamp with time zone LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- In seconds, which don't overflow, unlike an interval. From 64 tries on, the delay of every backoff but 0 exceeds every limit.
  SELECT now() + greatest(0, least(extract(epoch FROM _next_try.backoff_limit)::double precision,
                                   extract(epoch FROM _next_try.backoff)::double precision * CASE _next_try.backoff_form
                                     WHEN 'fixed' THEN 1 WHEN 'linear' THEN _next_try.tries ELSE power(2, least(_next_try.tries, 64) - 1) END))
                 * (0.75 + random() / 2) * interval '1 second'
$$;
CREATE FUNCTION weir._next(state text, lanes bigint[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, place jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  CASE _next.state
    WHEN 'available' THEN RETURN QUERY SELECT n.* FROM weir._next_available(_next.lanes, _next.after, _next.most) n;
    WHEN 'running' THEN RETURN QUERY SELECT n.* FROM weir._next_running(_next.lanes, _next.after, _next.most) n;
    WHEN 'scheduled' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_later(_next.lanes, _next.after, _next.most) n;
    WHEN 'completed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_completed(_next.lanes, _next.after, _next.most) n;
    WHEN 'failed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_failed(_next.lanes, _next.after, _next.most) n;
    WHEN 'cancelled' THEN RETURN QUERY SELECT n.* FROM weir._next_cancelled(_next.lanes, _next.after, _next.most) n;
  END CASE;
END
$$;
CREATE FUNCTION weir._none_scheduled(w weir.cancellation_where) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 10000;  -- rows read in one way
  ids   bigint[] := ARRAY(SELECT q.id FROM weir.queue q WHERE w.queue IS NULL OR q.name = w.queue);
  c     weir.promotion;
  way   text;
  r     record;
BEGIN
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  -- Rows that came behind the cursor of promotion, then those that are due from now on; if these are too many, those with the ids.
  FOREACH way IN ARRAY ARRAY['late', 'due', 'id'] LOOP
    SELECT count(*) AS n, array_agg(l.id) FILTER (WHERE l.waits) AS ids, array_agg(l.attempt) FILTER (WHERE l.waits) AS attempts, array_agg(l.kind) FILTER (WHERE l.waits) AS kinds,
           array_agg(l.meta) FILTER (WHERE l.waits) AS metas, array_agg(l.enqueued_at) FILTER (WHERE l.waits) AS enqueued, array_agg(l.key) FILTER (WHERE l.waits) AS keys, array_agg(l.flow) FILTER (WHERE l.waits) AS flows INTO r
    FROM (
      SELECT u.*, u.id <= w.upto AND u.lane >> 39 = ANY (ids) AND (w.priority IS NULL OR u.lane & 3 = w.priority - 1) AND weir._waits_later(c, u.run_at, u.id, u.xid) AS waits
      FROM (
        (SELECT l.* FROM weir.later l WHERE way = 'late' AND l.xid >= pg_snapshot_xmin(c.snapshot) ORDER BY l.xid LIMIT most + 1)
        UNION ALL
        (SELECT l.* FROM weir.later l WHERE way = 'due' AND (l.run_at, l.id) > (c.due, c.due_id) ORDER BY l.run_at, l.id LIMIT most + 1)
        UNION ALL
        (SELECT l.* FROM weir.later l WHERE way = 'id' AND l.id BETWEEN 1 AND w.upto ORDER BY l.id LIMIT most + 1)) u) l;
    IF r.ids IS NOT NULL AND weir._cancelled_of(ARRAY[w], r.ids, r.attempts, r.kinds, r.metas, r.enqueued, r.keys, NULL, r.flows) <> '{}' OR r.n > most AND way <> 'due' THEN
      RETURN false;
    END IF;
    EXIT WHEN way = 'due' AND r.n <= most;
  END LOOP;
  RETURN true;
END
$$;
CREATE FUNCTION weir._none_started(w weir.cancellation_where) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  most     CONSTANT integer := 1000;  -- batches of a worker that are checked at once
  max_open CONSTANT integer := 1000;  -- as in _relog
  h        record;
  held     record;
BEGIN
  FOR h IN
    SELECT i.id, coalesce(m.no, 0) AS mark, coalesce(m.open, '{}') AS open, ARRAY(
      SELECT b.no FROM weir.batch b WHERE b.worker = i.id AND b.no > coalesce(m.no, 0) AND b.no <= w.batches ORDER BY b.no LIMIT most) AS nos
    FROM unnest(weir._holders()) i(id)
    LEFT JOIN LATERAL (SELECT s.no, s.open FROM weir.settled s WHERE s.worker = i.id ORDER BY s.no DESC LIMIT 1) m ON true
  LOOP
    CONTINUE WHEN h.nos = '{}' AND NOT (w.batches >= ANY (h.open));
    SELECT coalesce(array_agg(DISTINCT u.no), '{}') AS open, coalesce(bool_or(u.no <= w.batches AND j.id <= w.upto AND weir._is_cancelled_where(j.id)), false) AS has_some INTO held
    FROM weir._unfinished(h.id, h.nos || h.open) u CROSS JOIN LATERAL unnest(u.ids) j(id);
    IF cardinality(h.nos) = most AND cardinality(held.open) <= max_open THEN
      -- A worker that does not say what it holds is not settled otherwise. All its claims up to w.batches have been committed.
      INSERT INTO weir.settled (worker, no, open) VALUES (h.id, h.nos[most], held.open) ON CONFLICT DO NOTHING;
    END IF;
    IF held.has_some OR cardinality(h.nos) = most THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END
$$;
CREATE FUNCTION weir._note_word(worker integer, says text, running integer) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  INSERT INTO weir.last_word (ring, worker, at, watched, says, running)
  VALUES ((pg_sequence_last_value('weir.watched') / 300000 % 3)::smallint, _note_word.worker, clock_timestamp(),
          pg_sequence_last_value('weir.watched'), _note_word.says, _note_word.running)
$$;
CREATE FUNCTION weir._offset_at(at timestamp with time zone, time_zone text) RETURNS interval LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN (at AT TIME ZONE time_zone) - (at AT TIME ZONE 'UTC');
END
$$;
CREATE FUNCTION weir._once_key(flow bigint, queue text, once text) RETURNS uuid LANGUAGE sql STABLE
AS $$
  SELECT encode(substr(sha256(convert_to(jsonb_build_array('once', _once_key.flow, _once_key.queue, _once_key.once)::text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
CREATE FUNCTION weir._open_gate(name text, gate integer) RETURNS weir.gate LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  opened weir.gate;
BEGIN
  -- All claims that have not seen the gate have ended, because setting a limit waited for them.
  SELECT array_agg(h.lane), array_agg(h.seq) INTO opened.before_lanes, opened.before_seqs
  FROM (SELECT DISTINCT h.lane, h.seq FROM weir.worker w CROSS JOIN LATERAL weir._holds(w.id) h
        WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = w.id AND s.no = 9223372036854775807)
          AND (h.lane >> 39)::integer IN (SELECT q.id FROM weir.queue q WHERE q.name = _open_gate.name)) h;
  opened.gate := _open_gate.gate;
  opened.seq := 1;
  opened.running := 0;
  opened.folded := weir._snapshot_of_others();
  opened.before := CASE WHEN opened.before_lanes IS NOT NULL THEN 1 END;
  INSERT INTO weir.gate SELECT (opened).*;
  RETURN opened;
END
$$;
CREATE FUNCTION weir._open_operations() RETURNS SETOF bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  SELECT o.id FROM weir.operation o CROSS JOIN LATERAL (SELECT s.state FROM weir.operation_step s WHERE s.operation = o.id ORDER BY s.no DESC LIMIT 1) s
  WHERE o.id > coalesce((SELECT m.upto FROM weir.operation_mark m ORDER BY m.no DESC LIMIT 1), 0) AND s.state = 'running' ORDER BY o.id
$$;
CREATE FUNCTION weir._overdue(c weir.promotion, most integer) RETURNS SETOF weir.later LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT n.* FROM (
    SELECT l.* FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e
    CROSS JOIN LATERAL (SELECT l.* FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high OFFSET 0) l  -- read by xid
    LIMIT most) n
  WHERE NOT ((n.run_at, n.id) > (c.due, c.due_id));
END
$$;
CREATE FUNCTION weir._parse_schedule(schedule text, time_zone text) RETURNS text[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET DateStyle=ISO, YMD SET IntervalStyle=postgres
AS $$
DECLARE
  given  text := lower(btrim(regexp_replace(schedule, '[[:space:]]+', ' ', 'g')) COLLATE "C");  -- in Turkish, FRI would become something else
  fields text[];
  part   text[];
  every  interval;
  anchor timestamptz;
BEGIN
  IF given IS NULL OR given = '' OR length(given) > 1000 THEN
    RAISE EXCEPTION 'weir: a schedule must have 1 to 1000 characters, got %', coalesce(length(given)::text, 'null') USING ERRCODE = '22023', HINT = 'For example: 30 2 * * *';
  END IF;
  part := regexp_match(given, '^@?every (.+?)(?: from (.+))?$');
  IF part IS NOT NULL THEN
    -- PostgreSQL drops an offset that it finds in a timestamp, and takes words like tomorrow, which would mean another time whenever it is declared.
    IF part[2] !~ '^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([t ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.]0+)?)?( ?(z|[+-][0-9]{1,2}(:?[0-9]{2})?))?)?$' THEN
      RAISE EXCEPTION 'weir: % is not a time from which an interval can be counted', quote_literal(left(part[2], 100)) USING ERRCODE = '22023',
        HINT = 'Write it as 2026-01-05 09:00, in the schedule''s time zone, or with an offset, as 2026-01-05 09:00+01:00.';
    END IF;
    IF part[1] ~ '^ *[+-]?[0-9.]+ *$' THEN
      RAISE EXCEPTION 'weir: the interval of a schedule needs a unit, got %', left(part[1], 100) USING ERRCODE = '22023', HINT = 'For example: every 5 minutes.';
    END IF;
    BEGIN
      every := part[1]::interval;
      anchor := CASE WHEN part[2] IS NULL THEN 'epoch'::timestamptz
                     WHEN part[2] ~ ':.*[z+-]' THEN part[2]::timestamptz
                     ELSE part[2]::timestamp AT TIME ZONE time_zone END;
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION 'weir: % is not an interval: %', quote_literal(schedule), SQLERRM USING ERRCODE = '22023',
        HINT = 'For example: every 90 seconds; or, counted from a time: every 2 weeks from 2026-01-05 09:00.';
    END;
    IF extract(month FROM every) <> 0 OR extract(year FROM every) <> 0 OR extract(epoch FROM every) <> floor(extract(epoch FROM every))
       OR extract(epoch FROM every) NOT BETWEEN 1 AND 366 * 86400 THEN
      RAISE EXCEPTION 'weir: the interval % of a schedule is not in 1 second to 366 days, in whole seconds and without months', every USING ERRCODE = '22023',
        HINT = 'For months use a cron expression: 0 0 1 * * is the first day of each month.';
    ELSIF anchor NOT BETWEEN '1900-01-01 00:00:00+00' AND '9999-01-01 00:00:00+00' THEN
      RAISE EXCEPTION 'weir: an interval must be counted from a time in the years 1900 to 9998, got %', part[2] USING ERRCODE = '22023';
    END IF;
    RETURN ARRAY['every', extract(epoch FROM every)::bigint::text, extract(epoch FROM anchor)::bigint::text];
  END IF;
  IF left(given, 1) = '@' THEN
    SELECT a.fields INTO given FROM (VALUES
      ('@yearly', '0 0 1 1 *'), ('@annually', '0 0 1 1 *'), ('@monthly', '0 0 1 * *'), ('@weekly', '0 0 * * 0'),
      ('@daily', '0 0 * * *'), ('@midnight', '0 0 * * *'), ('@hourly', '0 * * * *')) a(name, fields) WHERE a.name = given;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'weir: unknown schedule %', schedule USING ERRCODE = '22023',
        HINT = 'There are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly.';
    END IF;
  END IF;
  fields := string_to_array(given, ' ');
  IF cardinality(fields) = 5 THEN
    fields := array_prepend('0', fields);
  ELSIF cardinality(fields) <> 6 THEN
    RAISE EXCEPTION 'weir: the schedule % has %', quote_literal(schedule), cardinality(fields) || CASE WHEN cardinality(fields) = 1 THEN ' field' ELSE ' fields' END USING ERRCODE = '22023',
      HINT = 'There are five: minute, hour, day of the month, month, weekday; or six, with the second first. Or write an interval: every 90 seconds.';
  END IF;
  RETURN ARRAY[
    weir._cron_field('second', fields[1], 0, 59, ''), weir._cron_field('minute', fields[2], 0, 59, ''), weir._cron_field('hour', fields[3], 0, 23, ''),
    weir._cron_field('day', fields[4], 1, 31, ''), weir._cron_field('month', fields[5], 1, 12, 'jan feb mar apr may jun jul aug sep oct nov dec '),
    weir._cron_field('weekday', fields[6], 0, 7, 'sun mon tue wed thu fri sat '),
    CASE WHEN left(fields[4], 1) = '*' OR left(fields[6], 1) = '*' THEN 'and' ELSE 'or' END,
    CASE WHEN '*' IN (left(fields[1], 1), left(fields[2], 1), left(fields[3], 1)) THEN 'real' ELSE 'fixed' END];
END
$$;
CREATE FUNCTION weir._pass_ended(worker integer, name text, lane bigint, seq bigint, filters weir.cancellation_where[], keyed boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  max_rounds CONSTANT integer := 20;
  max_jobs   CONSTANT integer := 9600;  -- in one call
  max_size   CONSTANT integer := 960;   -- of a batch, as in a claim
  max_time   CONSTANT interval := '100 milliseconds';  -- for what others wait for, or may find no more of
  max_heads  CONSTANT integer := 300;   -- in a round
  max_skip   CONSTANT integer := 4;
  last_id    CONSTANT bigint  := 9223372036854775807;
  key_mask   CONSTANT bigint  := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  began      timestamptz := clock_timestamp();
  active     smallint    := pg_sequence_last_value('weir.active_job');
  lim        weir.queue_limit;
  ring       weir.ring;
  top        xid8;
  skip       xid8[];
  lanes      bigint[];     -- those of the jobs that it has ended
  states     weir.turn[];  -- where these stand
  this       weir.turn[];  -- those of a round
  places     integer := CASE WHEN keyed THEN 1 ELSE 100 END;  -- how many they are at most; unique jobs are judged lane by lane, so that what is ended in one is known in the next
  goes_on    boolean;      -- to the keys that come next, because it has ended all that it has picked
  head_tag   bigint;       -- how far it has gone
  all_gone   boolean := true;  -- of the keys up to there, none waits for a turn any more
  size       integer := CASE WHEN keyed THEN 30 ELSE max_size END;
  this_seq   bigint  := seq;
  most       integer;      -- jobs of each in one round
  passed     integer := 0;
  next       record;
  fates      record;
  written    record;
BEGIN
  SELECT array_agg(k.lane) FILTER (WHERE k.is_ended), bool_and(k.is_ended) AND NOT keyed INTO lanes, goes_on
  FROM (SELECT k.lane, EXISTS (SELECT FROM weir.result r WHERE r.lane = b.lane AND r.seq = b.seq AND k.id = ANY (r.ids)) AS is_ended
        FROM weir.batch b CROSS JOIN LATERAL unnest(b.ids, b.lanes) k(id, lane) WHERE b.lane = _pass_ended.lane AND b.seq = _pass_ended.seq) k;
  IF lanes IS NULL THEN
    RETURN false;
  END IF;
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _pass_ended.name;
  ring := weir._ring_of(name);
  -- They have taken no slot.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT lim.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, lanes WHERE lim.key_running IS NOT NULL;
  IF lim.key_rate IS NOT NULL THEN
    -- And no start of the rate: what it keeps from one, on any lane of these keys, is looked at again.
    this_seq := this_seq + 1;
    INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
    SELECT t.lane, this_seq, t.pos_xid, t.pos_id, t.tag, active, t.waits, t.parked, t.pending, t.pending_after, t.open,
           CASE WHEN t.seq = _pass_ended.seq THEN t.next_start - k.n * extract(epoch FROM lim.key_per) / lim.key_rate * interval '1 second' ELSE t.next_start END, CASE WHEN t.again_at IS NOT NULL THEN greatest(began, ring.due) END
    FROM (SELECT l.lane & key_mask AS bits, count(*) AS n FROM unnest(lanes) l(lane) GROUP BY l.lane & key_mask) k
    CROSS JOIN weir.queue q CROSS JOIN generate_series(0, 7) f(form)
    CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = (q.id::bigint << 39) + k.bits + f.form ORDER BY t.seq DESC LIMIT 1) t
    WHERE q.name = _pass_ended.name AND (t.seq = _pass_ended.seq OR t.again_at IS NOT NULL);
    ring.seq := this_seq;
    INSERT INTO weir.ring SELECT (ring).*;
  END IF;

  -- Others like them often come next in their lanes.
  lanes := ARRAY(SELECT DISTINCT l FROM unnest(lanes) l);
  states := ARRAY(SELECT t FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (SELECT t FROM weir.turn t WHERE t.lane = l.lane ORDER BY t.seq DESC LIMIT 1) t);
  top := pg_snapshot_xmax(ring.arrived);
  skip := ARRAY(SELECT x FROM pg_snapshot_xip(ring.arrived) x ORDER BY x LIMIT max_skip);
  FOR round IN 1..max_rounds LOOP
    this := states[: places];
    EXIT WHEN this = '{}';
    most := greatest(1, size / cardinality(this));
    SELECT array_agg(f.nr) AS nrs, array_agg(f.is_late) AS lates, array_agg((f.job).segment) AS segments, array_agg((f.job).xid) AS xids, array_agg((f.job).id) AS ids,
           array_agg((f.job).attempt) AS attempts, array_agg((f.job).kind) AS kinds, array_agg((f.job).meta) AS metas, array_agg((f.job).enqueued_at) AS enqueued,
           array_agg((f.job).key) AS keys, array_agg(((f.job).lane & 3)::integer + 1) AS priorities,
           array_agg((f.job).unique_key) AS unique_keys, array_agg((f.job).unique_no) AS nos, array_agg((f.job).unique_until) AS untils, array_agg((f.job).flow) AS flows INTO next
    FROM unnest(this) WITH ORDINALITY t(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, nr)
    CROSS JOIN LATERAL (
      -- As in a turn.
      SELECT t.nr, true AS is_late, j.job FROM (SELECT p.* FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE t.pending IS NOT NULL ORDER BY p.xid OFFSET 0) p
      CROSS JOIN LATERAL (SELECT j AS job FROM weir.job j WHERE j.lane = t.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT most) j
      UNION ALL
      (SELECT t.nr, false, j.job FROM (SELECT width_bucket(t.pos_xid, skip) AS below OFFSET 0) s
       CROSS JOIN LATERAL generate_series(s.below, cardinality(skip)) i
       CROSS JOIN LATERAL (
         SELECT j AS job FROM weir.job j
         WHERE j.lane = t.lane AND j.xid < coalesce(skip[i + 1], top)
           AND (j.xid, j.id) > (CASE WHEN i > s.below THEN skip[i] ELSE t.pos_xid END, CASE WHEN i > s.below THEN last_id ELSE t.pos_id END)
           AND pg_visible_in_snapshot(j.xid, ring.arrived)
         ORDER BY j.xid, j.id LIMIT most) j
       LIMIT most)
      LIMIT most) f;
    SELECT array_agg(e.id ORDER BY e.nr) AS ids, array_agg(e.reason ORDER BY e.nr) AS reasons, array_agg(e.nr ORDER BY e.nr) AS nrs INTO fates
    FROM weir._ended_among(filters, keyed, next.ids, next.xids, next.attempts, next.kinds, next.metas, next.enqueued, next.keys, next.priorities, next.unique_keys, next.nos, next.untils, next.flows) e;
    this_seq := this_seq + 1;
    WITH prefix AS MATERIALIZED (  -- of each lane, the rows up to the first one that is not ended
      SELECT u.* FROM (
        SELECT u.*, e.reason, count(*) OVER (PARTITION BY u.nr) AS n_found, bool_and(e.nr IS NOT NULL) OVER (PARTITION BY u.nr ORDER BY u.place) AS is_ended
        FROM unnest(next.nrs, next.lates, next.segments, next.xids, next.ids, next.flows) WITH ORDINALITY u(nr, is_late, segment, xid, id, flow, place)
        LEFT JOIN LATERAL (SELECT width_bucket(u.place, fates.nrs) AS at OFFSET 0) w ON fates.nrs IS NOT NULL
        LEFT JOIN LATERAL (SELECT fates.nrs[w.at] AS nr, fates.reasons[w.at] AS reason WHERE fates.nrs[w.at] = u.place) e ON true) u
      WHERE u.is_ended
    ), reach AS MATERIALIZED (
      SELECT p.nr, count(*) AS n, count(*) FILTER (WHERE p.is_late) AS n_late, (array_agg(p.xid ORDER BY p.place DESC))[1] AS xid, (array_agg(p.id ORDER BY p.place DESC))[1] AS id, max(p.n_found) AS n_found FROM prefix p GROUP BY p.nr
    ), made AS (
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids, lanes, flows)
      SELECT _pass_ended.lane, s.segment, s.segment, _pass_ended.worker, this_seq, a.xids[1], a.xids[cardinality(a.xids)], '0', 0,
             (SELECT b.total FROM weir.batch b WHERE b.lane = _pass_ended.lane AND b.seq < this_seq ORDER BY b.seq DESC LIMIT 1) + cardinality(a.xids), now(), o.no, s.ids, s.lanes, weir._flows_of(s.flows)
      FROM (SELECT nextval('weir.batch_no') AS no OFFSET 0) o, (SELECT array_agg(p.xid ORDER BY p.xid) AS xids FROM prefix p) a,
           (SELECT p.segment, array_agg(p.id ORDER BY p.place) AS ids, array_agg((this[p.nr]).lane ORDER BY p.place) AS lanes, array_agg(p.flow ORDER BY p.place) AS flows FROM prefix p GROUP BY p.segment) s
    ), ended AS (
      INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
      SELECT _pass_ended.lane, p.segment, _pass_ended.worker, this_seq, clock_timestamp(), 'cancelled', array_agg(p.id ORDER BY p.place),
             CASE WHEN max(p.reason) <> '' THEN array_agg(nullif(p.reason, '') ORDER BY p.place) END
      FROM prefix p GROUP BY p.segment
    ), moved AS MATERIALIZED (
      SELECT r.nr, r.n, w.is_empty,
             ROW(t.lane, this_seq, CASE WHEN r.n > r.n_late THEN r.xid ELSE t.pos_xid END, CASE WHEN r.n > r.n_late THEN r.id ELSE t.pos_id END,
                 t.tag, active, t.waits AND NOT w.is_empty, t.parked AND NOT w.is_empty, p.xids, p.afters, t.open, t.next_start, CASE WHEN NOT w.is_empty THEN t.again_at END)::weir.turn AS turn
      FROM reach r CROSS JOIN LATERAL unnest(this[r.nr : r.nr]) t
      CROSS JOIN LATERAL (SELECT r.n = r.n_found AND r.n < most AS is_empty OFFSET 0) w
      CROSS JOIN LATERAL (
        -- Of those that it has not passed: from the last transaction that was read on.
        SELECT array_agg(p.xid ORDER BY p.xid) AS xids, array_agg(CASE WHEN p.xid = r.xid THEN r.id ELSE p.after END ORDER BY p.xid) AS afters
        FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE r.n = r.n_late AND p.xid >= r.xid) p
    ), stands AS (
      INSERT INTO weir.turn SELECT (m.turn).* FROM moved m
    )
    SELECT coalesce(sum(m.n), 0) AS n, count(*) FILTER (WHERE m.is_empty) AS n_gone, coalesce(array_agg(m.turn ORDER BY m.nr) FILTER (WHERE m.n = most), '{}') AS again,
           (SELECT array_agg(p.flow) FROM prefix p WHERE p.flow IS NOT NULL) AS flows, (SELECT array_agg(p.reason) FROM prefix p WHERE p.flow IS NOT NULL) AS reasons INTO written FROM moved m;
    PERFORM weir._arrive_ended(written.flows, written.reasons);
    IF written.n > 0 THEN
      ring.seq := this_seq;
      all_gone := all_gone AND (head_tag IS NULL OR written.n_gone = cardinality(this));
      IF all_gone THEN
        ring.tag := greatest(ring.tag, head_tag);  -- virtual time goes on
      END IF;
      INSERT INTO weir.ring SELECT (ring).*;
    ELSE
      this_seq := this_seq - 1;
    END IF;
    passed := passed + written.n;
    states := written.again || states[places + 1 :];
    EXIT WHEN passed >= max_jobs OR (keyed OR head_tag IS NOT NULL) AND clock_timestamp() - began > max_time;
    IF keyed AND written.again <> '{}' THEN
      size := least(2 * size, max_size);
    END IF;
    IF states = '{}' THEN
      EXIT WHEN NOT goes_on OR head_tag IS NOT NULL AND written.n = 0;
      places := max_heads;
      states := weir._heads(name, coalesce(head_tag, ring.tag), max_heads);
      EXIT WHEN states IS NULL;
      head_tag := states[cardinality(states)].tag;
    END IF;
  END LOOP;
  RETURN lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL OR states <> '{}';
END
$$;
CREATE FUNCTION weir._pass_moved(lane bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  snapshot pg_snapshot := pg_current_snapshot();
  top      xid8 := pg_snapshot_xmax(snapshot);
  running  xid8[] := ARRAY(SELECT pg_snapshot_xip(snapshot));
  last     weir.batch;
  head     xid8;  -- the first transaction that has a row left in the lane
  behind   xid8;  -- the one before it: the position is set behind that
BEGIN
  SELECT b.* INTO last FROM weir.batch b WHERE b.lane = _pass_moved.lane ORDER BY b.seq DESC LIMIT 1;
  IF last.pending <> running[1 : width_bucket(last.pos_xid, running)] THEN
    RETURN;  -- the next claim reads the rows of transactions that have ended
  ELSIF last.lane IS NULL THEN
    last.seq := 0; last.from_xid := '0'; last.to_xid := '0'; last.pos_xid := '0'; last.pos_id := 0; last.total := 0; last.claimed_at := now();
  END IF;
  head := (SELECT j.xid FROM weir.job j WHERE j.lane = _pass_moved.lane AND (j.xid, j.id) > (last.pos_xid, last.pos_id) AND j.xid < top ORDER BY j.xid, j.id LIMIT 1);
  behind := (coalesce(head, least(top, pg_current_xact_id()))::text::bigint - 1)::text::xid8;
  IF behind > last.pos_xid THEN
    INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, pending_after, ids)
    SELECT _pass_moved.lane, pg_sequence_last_value('weir.active_job'), 0, 0, last.seq + 1, last.from_xid, last.to_xid, behind, 9223372036854775807,
           last.total, last.claimed_at, 0, CASE WHEN p.n > 0 THEN running[1 : p.n] END, CASE WHEN p.n > 0 THEN array_fill(0::bigint, ARRAY[p.n]) END, '{}'
    FROM (SELECT width_bucket(behind, running) AS n OFFSET 0) p;
  END IF;
END
$$;
CREATE FUNCTION weir._pass_on(sums weir.fold[], was weir.fold[], taken boolean[]) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  ring    smallint := pg_sequence_last_value('weir.active_arrival');
  changes record;
  passed  boolean := false;
BEGIN
  -- What has changed of those that are members of others, but for ends that were taken back already.
  SELECT array_agg(d.parent) AS parents, array_agg(d.name) AS names, array_agg(d.task IS NOT NULL) AS tasks, array_agg(k.before) AS before, array_agg(k.kind) AS kinds, array_agg(k.is_gone) AS gone INTO changes
  FROM (SELECT n.flow, CASE WHEN _pass_on.taken[n.ordinality] IS NOT TRUE THEN weir._kind_of(_pass_on.was[n.ordinality]) END AS before, weir._kind_of(_pass_on.sums[n.ordinality]) AS kind,
               n.waits IS NOT NULL AND n.jobs = 0 AND (_pass_on.was[n.ordinality]).flow IS NULL AS is_gone
        FROM unnest(_pass_on.sums) WITH ORDINALITY n OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task FROM weir.flow d WHERE d.id = k.flow OFFSET 0) d
  WHERE d.parent IS NOT NULL AND (k.before IS DISTINCT FROM k.kind OR k.is_gone);
  IF changes.parents IS NOT NULL THEN
    passed := true;
    -- Two rows, if an end is taken back and another follows: so that the parent starts over.
    INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled)
    SELECT k.parent, ring, pg_current_xact_id(), - count(*) FILTER (WHERE k.is_gone), sum(k.sign * (k.kind = 'completed')::integer), sum(k.sign * (k.kind = 'failed')::integer), sum(k.sign * (k.kind = 'cancelled')::integer)
    FROM (SELECT u.parent, -1 AS sign, u.before AS kind, false AS is_gone FROM unnest(changes.parents, changes.before) u(parent, before) WHERE u.before IS NOT NULL
          UNION ALL
          SELECT u.parent, 1, coalesce(u.kind, ''), u.is_gone FROM unnest(changes.parents, changes.kinds, changes.gone) u(parent, kind, is_gone) WHERE u.kind IS NOT NULL OR u.is_gone) k
    GROUP BY k.parent, k.sign;
    INSERT INTO weir.arrival (flow, ring, xid, waits, broken)
    SELECT k.successor, ring, pg_current_xact_id(), k.waits, k.broken
    FROM (SELECT e.successor, sum((u.kind IS NULL)::integer - (u.before IS NULL)::integer) AS waits,
                 sum(coalesce(u.kind <> 'completed', false)::integer - coalesce(u.before <> 'completed', false)::integer) FILTER (WHERE NOT e.is_lenient) AS broken
          FROM unnest(changes.parents, changes.names, changes.tasks, changes.before, changes.kinds, changes.gone) u(parent, name, is_task, before, kind, is_gone)
          CROSS JOIN LATERAL (SELECT e.* FROM weir.edge e WHERE e.flow = u.parent AND e.predecessor = u.name AND u.is_task AND NOT u.is_gone OFFSET 0) e
          GROUP BY e.successor) k
    -- One that was not counted yet will look at what is counted then.
    WHERE (k.waits <> 0 OR k.broken <> 0) AND EXISTS (SELECT FROM weir.fold p WHERE p.flow = k.successor);
  END IF;
  RETURN passed;
END
$$;
CREATE FUNCTION weir._pause_among(queues text[]) RETURNS double precision LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT 0.01 * greatest(count(*), 1)
  FROM (SELECT FROM weir.worker w
        WHERE NOT w.fenced AND w.queues && _pause_among.queues AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
        LIMIT 10) w
$$;
CREATE FUNCTION weir._pending_due(s weir.schedule) RETURNS timestamp with time zone LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
DECLARE
  last_due timestamptz;
BEGIN
  IF s.paused_at IS NOT NULL THEN
    RETURN NULL;
  END IF;
  SELECT f.due INTO last_due FROM weir.firing f WHERE f.name = s.name AND f.due >= s.first_due ORDER BY f.due DESC LIMIT 1;
  RETURN CASE WHEN last_due IS NULL THEN s.first_due ELSE weir._due_after(s.fields, s.time_zone, last_due) END;
END
$$;
CREATE FUNCTION weir._prepared_for(worker integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT format('the prepared transaction %L of %s holds its locks: end it by COMMIT PREPARED or ROLLBACK PREPARED', x.gid, x.owner)
  FROM pg_locks l
  JOIN pg_locks t ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction
  JOIN pg_prepared_xacts x ON x.transaction = t.transactionid AND x.database = current_database()
  WHERE l.locktype = 'advisory' AND l.pid IS NULL AND l.objsubid = 2 AND l.granted AND l.objid::bigint = _prepared_for.worker
    AND l.classid IN (1464158548, 1464158552, 1464158555) AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  ORDER BY x.prepared LIMIT 1
$$;
CREATE FUNCTION weir._promote(max_rows integer DEFAULT 2000, upto timestamp with time zone DEFAULT NULL::timestamp with time zone, ahead interval DEFAULT '00:00:10'::interval, OUT promoted integer, OUT next_due timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  c       weir.promotion;
  at_time timestamptz;
  at_now  timestamptz;
  is_new  boolean;
  is_due  boolean;
  is_held boolean;
  seen    pg_snapshot;
  quota   integer := _promote.max_rows;
  marks   weir.later[];  -- of schedules that are due
BEGIN
  _promote.promoted := 0;
  PERFORM weir._check_isolation('promote'), weir._hold_briefly();
  IF _promote.max_rows IS NULL OR _promote.max_rows NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'weir: promote needs a limit of 1 to 100000 jobs, got %', _promote.max_rows USING ERRCODE = '22023';
  ELSIF NOT isfinite(_promote.upto) THEN
    RAISE EXCEPTION 'weir: promote needs a finite time, got %', _promote.upto USING ERRCODE = '22023';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    -- It would see its own jobs, and promote them a second time.
    RAISE EXCEPTION 'weir: promote needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN;
  END IF;
  PERFORM weir._check_cluster();
  PERFORM set_config('synchronous_commit', 'off', true);  -- a lost promotion is repeated, because its cursor is lost with it
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  at_time := greatest(clock_timestamp(), _promote.upto);
  -- One call adds up to two cursors: that of a clock that has stepped back, and upto. If that happens again and again, some jobs are promoted early,
  -- so that the list of cursors stays short: either no older cursor is added, or upto reaches the nearest one.
  IF cardinality(c.ahead_due) > 14 THEN
    at_time := greatest(at_time, c.due);
    IF _promote.upto >= at_time THEN
      at_time := coalesce((SELECT min(a) FROM unnest(c.ahead_due) a WHERE a >= at_time), at_time);
    END IF;
    quota := NULL;
  END IF;

  WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
  ended AS MATERIALIZED (SELECT e.low, e.high FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e)
  SELECT EXISTS (SELECT FROM ended e CROSS JOIN LATERAL (SELECT FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high LIMIT 1) l),
         EXISTS (SELECT FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time),
         pg_snapshot_xmin(s.snapshot) < pg_snapshot_xmax(s.snapshot) OR age(pg_snapshot_xmax(s.snapshot)::xid) > 0, s.snapshot
    INTO is_new, is_due, is_held, seen FROM s;
  -- If nothing is new and nothing is due, nothing is written. However, every poll scans due rows of transactions in progress until the
  -- point is past them, so the point still advances every few seconds.
  IF NOT is_new AND NOT is_due AND c.ahead_due IS NULL AND _promote.upto IS NULL THEN
    -- Nothing is logged, so nobody is woken: on a server with other databases, where some transaction is always in progress, none would rest.
    IF is_held AND c.due < at_time - interval '2 seconds' THEN
      INSERT INTO weir.promotion (seq, due, due_id, snapshot) VALUES (c.seq + 1, at_time, 9223372036854775807, seen) RETURNING due, due_id INTO c.due, c.due_id;
    END IF;
  ELSIF is_new OR is_due OR is_held AND c.due < at_time - interval '2 seconds' THEN
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.job_id');  -- wakes idle workers
    WITH s AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
    ended AS MATERIALIZED (SELECT e.low, e.high FROM s CROSS JOIN LATERAL weir._ended_since(c.snapshot, s.snapshot) e),
    late AS MATERIALIZED (
      SELECT l.* FROM ended e CROSS JOIN LATERAL (SELECT l.* FROM weir.later l WHERE l.xid >= e.low AND l.xid < e.high OFFSET 0) l  -- read by xid
      WHERE NOT ((l.run_at, l.id) > (c.due, c.due_id)) AND l.run_at <= at_time
    ), fresh AS MATERIALIZED (
      SELECT l.* FROM weir.later l WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time
        AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
      ORDER BY l.run_at, l.id LIMIT quota
    ), due AS MATERIALIZED (
      SELECT d.* FROM (SELECT l.* FROM late l UNION ALL SELECT f.* FROM fresh f) d ORDER BY d.run_at, d.id LIMIT quota
    ), logged AS (
      INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT d.id, pg_current_xact_id(), d.enqueued_at, d.run_at, d.lane, d.attempt, d.max_attempts, d.put_off,
             (SELECT a.last_value FROM weir.active_job a), d.kind, d.args, d.meta, d.errors, d.unique_key, d.unique_no, d.unique_until, d.key, d.flow
      FROM due d WHERE d.lane > 0
      RETURNING 1
    ), reached AS (
      -- Below the limit, everything up to now is promoted.
      SELECT CASE WHEN r.n = quota THEN r.dues[r.n] ELSE at_time END AS due,
             CASE WHEN r.n = quota THEN r.ids[r.n] ELSE 9223372036854775807 END AS due_id
      FROM (SELECT count(*)::integer AS n, array_agg(d.run_at) AS dues, array_agg(d.id) AS ids FROM due d) r
    ), moved AS (
      INSERT INTO weir.promotion (seq, due, due_id, snapshot, ahead_due, ahead_id, ahead_snapshot)
      SELECT c.seq + 1, r.due, r.due_id, s.snapshot, a.dues, a.ids, a.snapshots
      FROM s, reached r CROSS JOIN LATERAL (
        SELECT array_agg(a.due) AS dues, array_agg(a.id) AS ids, array_agg(a.snapshot) AS snapshots
        FROM (SELECT * FROM unnest(c.ahead_due, c.ahead_id, c.ahead_snapshot) UNION ALL SELECT c.due, c.due_id, c.snapshot) a(due, id, snapshot)
        WHERE (a.due, a.id) > (r.due, r.due_id)) a
      RETURNING due, due_id, ahead_due, ahead_id, ahead_snapshot
    )
    SELECT (SELECT count(*) FROM logged), (SELECT array_agg(d::weir.later) FROM due d WHERE d.lane = 0), m.due, m.due_id, m.ahead_due, m.ahead_id, m.ahead_snapshot
      INTO _promote.promoted, marks, c.due, c.due_id, c.ahead_due, c.ahead_id, c.ahead_snapshot FROM moved m;
    IF marks IS NOT NULL THEN
      _promote.promoted := _promote.promoted + weir._fire(marks, at_time, _promote.max_rows);
    END IF;
    at_now := clock_timestamp();  -- read once: rows between two readings would be skipped
    IF _promote.upto IS NOT NULL AND c.due > at_now THEN  -- back to now: rows that are added from here on wait for their time
      INSERT INTO weir.promotion (seq, due, due_id, snapshot, ahead_due, ahead_id, ahead_snapshot)
      SELECT p.seq + 1, at_now, 9223372036854775807, p.snapshot, p.due || p.ahead_due, p.due_id || p.ahead_id, p.snapshot || p.ahead_snapshot
      FROM weir.promotion p WHERE p.seq = c.seq + 1
      RETURNING due, due_id, ahead_due, ahead_id, ahead_snapshot INTO c.due, c.due_id, c.ahead_due, c.ahead_id, c.ahead_snapshot;
    END IF;
  END IF;
  SELECT l.run_at INTO _promote.next_due FROM weir.later l
  WHERE (l.run_at, l.id) > (c.due, c.due_id) AND l.run_at <= at_time + _promote.ahead  -- doesn't scan all rows of transactions in progress
    AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, l.run_at, l.id, l.xid))
  ORDER BY l.run_at, l.id LIMIT 1;
END
$$;
CREATE FUNCTION weir._publish_changes(table_name text, op text, template text, keys text[], columns text[], olds jsonb[], news jsonb[]) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
DECLARE
  most      CONSTANT integer := 1000;   -- changes in a message
  most_size CONSTANT integer := 65536;  -- and their bytes
  channels  text[];
  payloads  text[];
BEGIN
  WITH changed AS (
    SELECT k.nr, k.old, k.new, CASE WHEN k.old IS NOT NULL THEN weir._channel_for(template, k.old) END AS was_in, CASE WHEN k.new IS NOT NULL THEN weir._channel_for(template, k.new) END AS is_in
    FROM unnest(olds, news) WITH ORDINALITY k(old, new, nr)
  ), told AS (
    -- A row that moves to another channel leaves the one, and comes into the other.
    SELECT c.nr, c.was_in AS channel, 'delete' AS what, c.old AS fields, NULL::text[] AS names FROM changed c WHERE c.old IS NOT NULL AND c.was_in IS DISTINCT FROM c.is_in
    UNION ALL
    SELECT c.nr, c.is_in, 'insert', c.new, NULL FROM changed c WHERE c.new IS NOT NULL AND c.is_in IS DISTINCT FROM c.was_in
    UNION ALL
    SELECT c.nr, c.is_in, 'update', c.new, d.names
    FROM changed c
    CROSS JOIN LATERAL (SELECT array_agg(n ORDER BY n) AS names FROM jsonb_object_keys(c.new) n WHERE c.old -> n IS DISTINCT FROM c.new -> n AND (columns = '{}' OR n = ANY (columns))) d
    WHERE c.was_in = c.is_in AND d.names IS NOT NULL
  ), entries AS (
    SELECT t.channel, t.nr, t.what, weir._fields_of(t.fields, keys) AS key,
           jsonb_build_object('op', t.what, 'key', weir._fields_of(t.fields, keys)) || CASE WHEN t.names IS NULL THEN '{}' ELSE jsonb_build_object('changed', t.names) END
           || CASE WHEN columns = '{}' OR t.what = 'delete' THEN '{}' ELSE jsonb_build_object('new', weir._fields_of(t.fields, columns)) END AS entry
    FROM told t
  ), sized AS (
    SELECT e.*, row_number() OVER w AS place, sum(octet_length(e.entry::text)) OVER w AS size
    FROM entries e WINDOW w AS (PARTITION BY e.channel ORDER BY e.key, e.what ROWS UNBOUNDED PRECEDING)
  ), messages AS (
    SELECT s.channel, min(s.nr) AS nr,
           jsonb_build_object('table', table_name, 'op', lower(op COLLATE "C"), 'rows', count(*),
             'changes', coalesce(jsonb_agg(s.entry ORDER BY s.place) FILTER (WHERE s.place <= most AND s.size <= most_size), '[]'))
           || CASE WHEN count(*) FILTER (WHERE s.place <= most AND s.size <= most_size) < count(*) THEN '{"more": true}'::jsonb ELSE '{}' END AS payload
    FROM sized s GROUP BY s.channel
  )
  SELECT array_agg(m.channel ORDER BY m.nr, m.channel), array_agg(m.payload::text ORDER BY m.nr, m.channel) INTO channels, payloads FROM messages m;
  IF channels IS NOT NULL THEN
    PERFORM weir.publish_many(channels, payloads, keep => true);
  END IF;
END
$$;
CREATE FUNCTION weir._publish_drafts(channels text[], payloads bytea[], binaries boolean[], cuts boolean DEFAULT false, OUT tick bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
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
CREATE FUNCTION weir._queue_id(name text) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto SET enable_seqscan=off
AS $$
DECLARE
  found_id integer;
BEGIN
  -- OFFSET 0: otherwise a plan may look for the name in the order of ids, from the first queue on.
  SELECT min(k.id) INTO found_id FROM (SELECT q.id FROM weir.queue q WHERE q.name = _queue_id.name OFFSET 0) k;
  IF found_id IS NULL THEN
    PERFORM weir._check_new_queue(_queue_id.name);
    -- Names are not unique, on purpose: with a unique index, the second transaction that uses a
    -- new name would wait for the first to commit.
    INSERT INTO weir.queue (name) VALUES (_queue_id.name) RETURNING id INTO found_id;
    PERFORM nextval('weir.control');
  END IF;
  RETURN found_id;
END
$$;
CREATE FUNCTION weir._read_flows(ids bigint[]) RETURNS SETOF weir.flow_info LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  own      xid8 := pg_current_xact_id_if_assigned();
  past_own xid8 := (own::text::bigint + 1)::text::xid8;
BEGIN
  PERFORM weir._check_cluster_once();
  -- Volatile, because each statement then has a snapshot that is younger than its locks.
  PERFORM weir._hold_flows();
  RETURN QUERY
  WITH c AS MATERIALIZED (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1),
  fresh AS MATERIALIZED (  -- not counted yet
    SELECT a.* FROM c CROSS JOIN LATERAL weir._ended_since(c.snapshot, pg_current_snapshot()) e
    CROSS JOIN LATERAL (SELECT e.low, least(e.high, own) AS high UNION ALL SELECT greatest(e.low, past_own), e.high WHERE own IS NOT NULL) r
    CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid >= r.low AND a.xid < r.high OFFSET 0) a WHERE a.flow = ANY (_read_flows.ids)
    UNION ALL  -- its own may be many, so they are not read for other flows
    SELECT a.* FROM unnest(_read_flows.ids) i(id) CROSS JOIN LATERAL (SELECT a.* FROM weir.arrival a WHERE a.xid = own AND a.flow = i.id OFFSET 0) a
  ), news AS MATERIALIZED (
    SELECT a.flow, sum(a.jobs) AS jobs, sum(a.completed) AS completed, sum(a.failed) AS failed, sum(a.cancelled) AS cancelled, array_agg(a.counts) FILTER (WHERE a.counts IS NOT NULL) AS counts, bool_or(a.jobs > a.completed + a.failed + a.cancelled) AS reopened,
           coalesce(bool_or(a.event IN ('sealed', 'cancelled')), false) AS seals, max(a.no) FILTER (WHERE a.event = 'cancelled') AS cancelled_no,
           max(a.no) FILTER (WHERE a.event = 'retried') AS retried_no
    FROM fresh a GROUP BY a.flow
  )
  SELECT f.id, f.name,
         CASE WHEN f.task IS NOT NULL AND p.job IS NULL THEN CASE WHEN p.is_skipped OR p.jobs = 0 THEN 'cancelled' ELSE 'blocked' END
              WHEN NOT t.is_sealed THEN 'open' WHEN t.unfinished > 0 OR t.fired_at IS NULL THEN CASE WHEN t.is_cancelled THEN 'cancelling' ELSE 'running' END
              WHEN t.is_cancelled THEN 'cancelled' WHEN p.is_abandoned THEN 'abandoned' WHEN t.failed + t.cancelled > 0 THEN 'failed' ELSE 'succeeded' END,
         t.generation, t.jobs, t.unfinished, t.completed, t.failed, t.cancelled, f.created_at, nullif(f.deadline, 'infinity'), CASE WHEN t.is_sealed AND t.unfinished = 0 THEN t.fired_at END, f.on_done, f.on_success,
         f.parent, f.task IS NOT NULL, p.job, f.fail_fast, CASE WHEN n.counts IS NOT NULL THEN weir._add_counts(p.counters, n.counts) ELSE p.counters END
  FROM unnest(_read_flows.ids) WITH ORDINALITY i(id, nr)
  CROSS JOIN LATERAL (SELECT f.* FROM weir.flow f WHERE f.id = i.id OFFSET 0) f
  LEFT JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = i.id ORDER BY p.cut DESC LIMIT 1) p ON true
  LEFT JOIN LATERAL (SELECT n.* FROM news n WHERE n.flow = i.id) n ON true
  CROSS JOIN LATERAL (
    SELECT k.*, k.jobs - k.completed - k.failed - k.cancelled AS unfinished, CASE WHEN NOT k.is_reopened THEN p.fired_at END AS fired_at,
           coalesce(p.generation, 1) + (p.fired_at IS NOT NULL AND k.is_reopened)::integer AS generation
    FROM (SELECT (coalesce(p.jobs, 0) + coalesce(n.jobs, 0))::bigint AS jobs, (coalesce(p.completed, 0) + coalesce(n.completed, 0))::bigint AS completed,
                 (coalesce(p.failed, 0) + coalesce(n.failed, 0))::bigint AS failed, (coalesce(p.cancelled, 0) + coalesce(n.cancelled, 0))::bigint AS cancelled,
                 coalesce(n.reopened, false) AS is_reopened, coalesce(p.is_sealed, f.task IS NOT NULL) OR coalesce(n.seals, false) AS is_sealed,
                 coalesce(greatest(n.cancelled_no, p.cancelled_no) > coalesce(greatest(n.retried_no, p.retried_no), 0), false) AS is_cancelled) k) t
  ORDER BY i.nr;
  RAISE SQLSTATE 'WR099';  -- releases the tables, which are compacted beside a reader that stays open
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir._read_job(job_id bigint, ends integer) RETURNS SETOF weir.job_info LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  look weir.job_info;
  c    weir.promotion;
  j    weir.job;    -- a row of the log, from the newest backwards
  l    weir.later;  -- the row that waits for its time
  a    record;      -- the newer one of these
  e    record;
  f    weir.failure;
  read integer := 0;
  history jsonb;  -- of its earlier attempts, in brief
  by_id   boolean;  -- weir.cancel was called
BEGIN
  IF job_id < 1 THEN
    RETURN;  -- rows of weir.later with such numbers are due times of schedules
  END IF;
  look.errors := '[]';
  look.cancel_requested := EXISTS (SELECT FROM weir.cancellation k WHERE k.id = job_id);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  SELECT k.* INTO j FROM weir.job k WHERE k.id = job_id ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
  -- A row of later is promoted before the job can be put off again, so only the newest one may still wait.
  SELECT k.* INTO l FROM (SELECT n.* FROM weir.later n WHERE n.id = job_id ORDER BY n.attempt DESC, n.put_off DESC LIMIT 1) k
  WHERE weir._waits_later(c, k.run_at, k.id, k.xid);
  IF l.id IS NOT NULL AND (j.id IS NULL OR (l.attempt, l.put_off) >= (j.attempt, j.put_off)) THEN
    a := l;
    look.run_at := l.run_at;
  ELSE
    a := j;
  END IF;
  by_id := look.cancel_requested;
  look.cancel_requested := by_id OR EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= job_id) AND weir._is_cancelled_where(job_id);
  IF look.run_at IS NOT NULL THEN
    look.state := CASE WHEN look.cancel_requested THEN 'cancelled' ELSE 'scheduled' END;
  END IF;
  IF a.id IS NOT NULL THEN
    -- Out of TOAST now (|| '{}'): the caller releases the table, which may then be truncated.
    look.id := a.id; look.kind := a.kind; look.args := a.args || '{}'; look.meta := a.meta || '{}'; look.enqueued_at := a.enqueued_at;
    look.attempt := a.attempt; look.max_attempts := a.max_attempts; look.priority := (a.lane & 3)::integer + 1;
    look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (a.lane >> 39)::integer); look.key := a.key; look.flow := a.flow;
    history := a.errors || '[]';
  END IF;
  WHILE j.id IS NOT NULL LOOP
    e := weir._end_of(j);
    IF look.state IS NULL THEN
      look.state := CASE WHEN e.outcome IS NOT NULL THEN e.outcome::text WHEN e.claimed_at IS NOT NULL THEN 'running'
                         WHEN look.cancel_requested THEN 'cancelled' ELSE 'available' END;
      look.cancel_requested := by_id OR e.outcome IS NULL AND look.cancel_requested;
      look.claimed_at := e.claimed_at; look.worker := e.worker; look.finished_at := e.finished_at; look.output := e.output;
    END IF;
    IF e.outcome IS NOT NULL THEN
      look.error := CASE WHEN read = 0 THEN e.error ELSE look.error END;
      IF e.error IS NOT NULL THEN
        look.errors := jsonb_build_array(jsonb_build_object('attempt', j.attempt, 'at', e.finished_at, 'outcome', e.outcome, 'error', e.error)) || look.errors;
      END IF;
      read := read + 1;
      EXIT WHEN read = ends;
    END IF;
    EXIT WHEN j.attempt = 1 AND j.put_off = 0;  -- the first row
    -- How often an attempt was put off is unbounded: of each earlier attempt only the last row is read.
    SELECT k.* INTO j FROM weir.job k
    WHERE k.id = job_id AND (k.attempt, k.put_off) < (j.attempt, CASE WHEN e.outcome IS NULL THEN j.put_off ELSE 0 END)
    ORDER BY k.attempt DESC, k.put_off DESC LIMIT 1;
  END LOOP;
  IF look.state = 'failed' AND EXISTS (SELECT FROM weir.failure k WHERE k.id = job_id AND k.attempt > look.attempt AND k.finished_at IS NULL) THEN
    history := NULL;
    look := NULL;  -- it was retried, and what followed was reclaimed with its segment; a kept failure may say how it ended
    look.errors := '[]';
  END IF;
  IF look.id IS NULL OR look.state IN ('retried', 'snoozed', 'released', 'lost') THEN  -- what followed was reclaimed with its segment
    SELECT k.* INTO f FROM weir._kept_failure(job_id, coalesce(look.attempt, 0)) k;
    IF FOUND THEN
      look.id := f.id; look.kind := f.kind; look.args := f.args || '{}'; look.meta := f.meta || '{}'; look.enqueued_at := f.enqueued_at;
      look.attempt := f.attempt; look.max_attempts := f.max_attempts; look.run_at := NULL; look.priority := (f.lane & 3)::integer + 1;
      look.queue := (SELECT q.name FROM weir.queue q WHERE q.id = (f.lane >> 39)::integer); look.key := f.key; look.flow := f.flow;
      look.state := 'failed'; look.claimed_at := f.claimed_at; look.finished_at := f.finished_at; look.worker := f.worker;
      look.output := f.output || ''; look.error := f.error || '';
      history := f.errors || '[]';
      IF f.error IS NOT NULL THEN
        look.errors := look.errors || jsonb_build_object('attempt', f.attempt, 'at', f.finished_at, 'outcome', 'failed', 'error', f.error);
      END IF;
    END IF;
  END IF;
  IF look.id IS NOT NULL THEN
    IF history IS NOT NULL AND ends > 1 THEN
      look.errors := weir._merged_errors(history, look.errors, ends);
    END IF;
    SELECT k.percent, k.message, k.log INTO look.percent, look.message, look.log FROM weir._reported(job_id, ends > 1) k;
    RETURN NEXT look;
  END IF;
END
$$;
CREATE FUNCTION weir._read_page(states text[], queue text, kinds text[], meta jsonb, key text, after text, most integer, flow bigint DEFAULT NULL::bigint, args_text text DEFAULT NULL::text, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, shape text DEFAULT NULL::text, finished_after timestamp with time zone DEFAULT NULL::timestamp with time zone, finished_before timestamp with time zone DEFAULT NULL::timestamp with time zone, from_copies boolean DEFAULT false, OUT jobs weir.job_info[], OUT next text) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  every  CONSTANT text[] := ARRAY['available', 'running', 'scheduled', 'completed', 'failed', 'cancelled'];
  bound  CONSTANT integer := 10000;  -- of a page's effort: 1 for a row or a batch, 12 for a lane, 5 for a job that is compared, 10 for one that a filter has cancelled, 50 for one that is read in vain, 20 if its error has another shape, 1 for each kilobyte of args that is searched
  effort integer := 0;
  lanes  bigint[];
  wrong  text;
  at     jsonb;    -- where the previous page stopped: the state's number in the list, the place, and the seal
  nr     integer := 1;
  place  jsonb;
  widest CONSTANT integer := CASE WHEN args_text IS NULL THEN 500 ELSE 25 END;  -- of a step: args may have 1 MiB each, and the effort is seen after the step
  step   integer := least(most + 1, 200, widest);  -- more at a time, the more are read in vain
  wanted text    := lower(args_text COLLATE "C");
  conditions jsonb;
  got    integer;
  hits   integer;  -- how many jobs the page has had before this step
  r      record;
  look   weir.job_info;
  has_conditions boolean := num_nonnulls(nullif(kinds, '{}'), _read_page.meta, _read_page.key, _read_page.flow, args_text, enqueued_after, enqueued_before) > 0;
  has_end boolean := num_nonnulls(finished_after, finished_before) > 0;
  has_filters boolean := EXISTS (SELECT FROM weir.cancellation_where w WHERE _read_page.queue IS NULL OR w.queue IS NULL OR w.queue = _read_page.queue);
BEGIN
  IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a page has 1 to 1000 jobs, got %', coalesce(most::text, 'null') USING ERRCODE = '22023', HINT = 'Read more pages.';
  END IF;
  SELECT s INTO wrong FROM unnest(states) s WHERE s IS NULL OR s <> ALL (every) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: unknown state %', coalesce(left(wrong, 100), 'null')
      USING ERRCODE = '22023', HINT = 'States are available, running, scheduled, completed, failed and cancelled.';
  ELSIF cardinality(states) > 6 THEN
    RAISE EXCEPTION 'weir: a list has up to 6 states, got %', cardinality(states) USING ERRCODE = '22023', HINT = 'Name each state once.';
  ELSIF cardinality(kinds) > 1000 OR array_position(kinds, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: a list has 1 to 1000 kinds, none of them null, got % kinds', cardinality(kinds) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(meta) <> 'object' OR pg_column_size(meta) > 65536 THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object of at most 64 KiB, got %', left(meta::text, 100) USING ERRCODE = '22023', HINT = 'The list has the jobs whose meta contains this object, as with @>.';
  END IF;
  IF length(args_text) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: args_text must have 1 to 1000 characters, got %', length(args_text) USING ERRCODE = '22023', HINT = 'The list has the jobs whose args contain this text; pass NULL for all jobs.';
  END IF;
  IF length(shape) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a shape has 1 to 1000 characters, got %', length(shape) USING ERRCODE = '22023', HINT = 'Pass a shape that weir.failure_groups has returned; or NULL for all jobs.';
  ELSIF shape IS NOT NULL AND (coalesce(cardinality(states), 0) = 0 OR 'failed' <> ANY (states)) THEN
    RAISE EXCEPTION 'weir: only failed jobs are listed by the shape of their error' USING ERRCODE = '22023', HINT = 'Pass the states ''{failed}''.';
  END IF;
  PERFORM weir._check_key(_read_page.key);
  states := ARRAY(SELECT u.s FROM unnest(CASE WHEN cardinality(states) > 0 THEN states ELSE every END) WITH ORDINALITY u(s, nr)
                  WHERE NOT has_end OR u.s IN ('completed', 'failed', 'cancelled') GROUP BY u.s ORDER BY min(u.nr));
  kinds := CASE WHEN cardinality(kinds) > 0 THEN kinds END;
  -- Times in UTC, so that they read the same in a session with another time zone.
  conditions := jsonb_build_object('states', states, 'queue', queue, 'kinds', kinds, 'meta', _read_page.meta, 'key', _read_page.key, 'flow', _read_page.flow, 'args_text', args_text,
    'enqueued_after', enqueued_after AT TIME ZONE 'UTC', 'enqueued_before', enqueued_before AT TIME ZONE 'UTC',
    'shape', shape, 'finished_after', finished_after AT TIME ZONE 'UTC', 'finished_before', finished_before AT TIME ZONE 'UTC');
  IF after <> '' THEN
    BEGIN
      IF length(after) > 65536 THEN
        RAISE data_exception;
      END IF;
      at := convert_from(decode(rpad(translate(after, '-_', '+/'), (length(after) + 3) / 4 * 4, '='), 'base64'), 'UTF8')::jsonb;
      IF at->>2 IS DISTINCT FROM weir._seal(conditions, at) THEN
        RAISE data_exception;
      END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
      RAISE EXCEPTION 'weir: "%" is not a valid cursor for this list', left(after, 100)
        USING ERRCODE = '22023', COLUMN = 'after', HINT = 'Pass what the previous page returned as next, in the same database and with the same conditions; or NULL for the first page.';
    END;
    nr := (at->>0)::integer;
    step := CASE WHEN has_conditions THEN least(200, widest) ELSE step END;
    place := at->1;
  END IF;
  IF queue IS NOT NULL AND key IS NOT NULL THEN
    lanes := weir._lanes_of_key(queue, key);
  ELSIF queue IS NOT NULL THEN
    lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 4) p WHERE q.name = _read_page.queue);  -- and its ring lane
  END IF;

  jobs := '{}';
  <<states>>
  WHILE nr <= cardinality(states) AND lanes IS DISTINCT FROM '{}' LOOP
    IF states[nr] = 'failed' AND finished_before IS NOT NULL THEN
      place := coalesce(nullif(place, 'null'), jsonb_build_array(finished_before, 0));  -- failed jobs are in the order of their end: what is later is not read
    END IF;
    <<steps>>
    LOOP
      got := 0;
      hits := cardinality(jobs);
      FOR r IN
        WITH n AS MATERIALIZED (
          SELECT k.*, row_number() OVER () AS at_nr FROM weir._next(states[nr], lanes, nullif(place, 'null'), step) k
        ), fit AS MATERIALIZED (
          -- All rows of a job have the same kind, args, meta, time, key and flow. In one query for all of them: one for each would cost many times as much.
          SELECT n.*, n.id IS NOT NULL AND (NOT has_conditions OR coalesce(k.fits, false)) AS fits, coalesce(k.kilobytes, 0) AS kilobytes
          FROM n LEFT JOIN LATERAL (
            SELECT (kinds IS NULL OR k.kind = ANY (kinds)) AND (_read_page.meta IS NULL OR k.meta @> _read_page.meta) AND (_read_page.key IS NULL OR k.key = _read_page.key)
                   AND (enqueued_after IS NULL OR k.enqueued_at >= enqueued_after) AND (enqueued_before IS NULL OR k.enqueued_at < enqueued_before)
                   AND (wanted IS NULL OR strpos(t.text, wanted) > 0)
                   AND (_read_page.flow IS NULL OR k.flow = _read_page.flow OR weir._is_within(k.flow, _read_page.flow)) AS fits,
                   octet_length(t.text) / 1000 AS kilobytes
            FROM (
              (SELECT j.kind, j.args, j.meta, j.enqueued_at, j.key, j.flow FROM weir.job j WHERE j.id = n.id LIMIT 1)
              UNION ALL (SELECT l.kind, l.args, l.meta, l.enqueued_at, l.key, l.flow FROM weir.later l WHERE l.id = n.id LIMIT 1)
              UNION ALL (SELECT f.kind, f.args, f.meta, f.enqueued_at, f.key, f.flow FROM weir.failure f WHERE f.id = n.id AND f.kind IS NOT NULL LIMIT 1) LIMIT 1) k
            -- Encrypted args are not the database's to read.
            CROSS JOIN LATERAL (SELECT CASE WHEN wanted IS NOT NULL AND NOT k.args ? 'weir.encrypted' THEN lower(k.args::text COLLATE "C") END AS text OFFSET 0) t
            WHERE has_conditions) k ON true
        ), gone AS MATERIALIZED (
          SELECT CASE WHEN has_filters AND states[nr] IN ('available', 'scheduled') THEN weir._cancelled_where_among(ARRAY(SELECT f.id FROM fit f WHERE f.fits)) END AS ids
        )
        SELECT CASE WHEN f.fits THEN f.id END AS id, f.ended_at, f.place, f.cost + CASE WHEN has_conditions AND f.id IS NOT NULL THEN 4 + f.kilobytes ELSE 0 END AS cost,
               f.fits AND coalesce(f.id = ANY (gone.ids), false) AS is_gone
        FROM fit f CROSS JOIN gone ORDER BY f.at_nr
      LOOP
        got := got + 1;
        EXIT steps WHEN states[nr] = 'failed' AND (r.place->>0)::timestamptz < finished_after;  -- nor what is earlier
        effort := effort + r.cost;
        IF r.is_gone THEN
          effort := effort + 9;
          r.id := NULL;
        END IF;
        IF r.id IS NOT NULL THEN
          IF from_copies AND states[nr] = 'failed' THEN
            SELECT k.* INTO look FROM weir._look_at_copy(r.id) k;
          ELSE
            SELECT k.* INTO look FROM weir._read_job(r.id, 1) k;
          END IF;
          -- A job that was retried by hand is in another state now, or has ended again since.
          IF look.state IS DISTINCT FROM states[nr] OR look.queue <> _read_page.queue OR look.finished_at IS DISTINCT FROM coalesce(r.ended_at, look.finished_at)
             -- A job that was cancelled, and that no worker has passed, has no end yet.
             OR has_end AND (SELECT e < finished_after OR e >= finished_before FROM coalesce(look.finished_at, weir._cancelled_at(look.id, look.queue)) e) THEN
            effort := effort + 50;
          ELSIF (CASE WHEN _read_page.shape IS NULL THEN false ELSE NOT weir._has_shape(look.error, _read_page.shape) END) THEN
            effort := effort + 20;
          ELSE
            IF cardinality(jobs) = most THEN
              next := jsonb_build_array(nr, place);
              EXIT states;
            END IF;
            jobs := jobs || look;
          END IF;
        END IF;
        place := r.place;
        IF effort >= bound THEN
          next := jsonb_build_array(nr, place);
          EXIT states;
        END IF;
      END LOOP;
      EXIT WHEN got = 0;
      IF got >= step THEN
        step := least(2 * step, CASE WHEN cardinality(jobs) = hits THEN 500 ELSE 200 END, widest);
      END IF;
    END LOOP;
    nr := nr + 1;
    place := NULL;
  END LOOP;
  IF next IS NOT NULL THEN
    at := next::jsonb;
    next := rtrim(translate(encode(convert_to((at || to_jsonb(weir._seal(conditions, at)))::text, 'UTF8'), 'base64'), E'+/\n', '-_'), '=');
  END IF;
END
$$;
CREATE FUNCTION weir._read_queues() RETURNS TABLE(name text, paused_at timestamp with time zone, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamp with time zone, claimed bigint, last_claim timestamp with time zone, workers bigint) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  s weir.survey;
BEGIN
  s := weir._surveyed();
  RETURN QUERY
  WITH looked AS MATERIALIZED (
    SELECT l.lane, b.total, b.claimed_at
    FROM (SELECT weir._lanes_to_count(s)
          UNION ALL SELECT (q.id::bigint << 39) + 4 FROM weir.queue q WHERE q.name IN (SELECT w.queue FROM weir.with_keys w)) l(lane)
    LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
  ), lane AS (
    SELECT l.lane, l.total, l.claimed_at FROM looked l
    UNION ALL
    SELECT k.lane, k.total, k.at FROM unnest(s.lanes, s.totals, s.claimed_at) k(lane, total, at)
    LEFT JOIN looked l ON l.lane = k.lane WHERE l.lane IS NULL
  ), depth AS (
    SELECT d.lane, d.waiting, 0 AS running, 0 AS scheduled, d.is_estimate, d.ready_at FROM weir._depths(ARRAY(SELECT l.lane FROM looked l)) d
    UNION ALL SELECT k.lane, k.waiting, 0, 0, k.is_estimate, k.ready_at FROM weir._depths_of_keys() k
    UNION ALL SELECT r.lane, 0, r.running, 0, r.is_estimate, NULL FROM weir._depths_running() r
    UNION ALL SELECT l.lane, 0, 0, l.scheduled, l.is_estimate, NULL FROM weir._depths_later() l
  ), crew AS (
    SELECT u.name, count(*) AS n
    FROM weir.worker w CROSS JOIN LATERAL (SELECT DISTINCT q.name FROM unnest(w.queues) q(name)) u
    WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced) AND w.id NOT IN (SELECT i.id FROM weir._silent() i(id))
    GROUP BY u.name
  ), sums AS (
    SELECT (l.lane >> 39)::integer AS id, sum(l.total) AS total, max(l.claimed_at) FILTER (WHERE l.total > 0) AS claimed_at FROM lane l GROUP BY (l.lane >> 39)::integer
  ), depths AS (
    SELECT (d.lane >> 39)::integer AS id, sum(d.waiting) AS waiting, sum(d.running) AS running, sum(d.scheduled) AS scheduled, bool_or(d.is_estimate) AS is_estimate, min(d.ready_at) AS ready_at
    FROM depth d GROUP BY (d.lane >> 39)::integer
  )
  SELECT q.name, max(q.paused_at), coalesce(sum(d.waiting), 0)::bigint, coalesce(sum(d.running), 0)::bigint, coalesce(sum(d.scheduled), 0)::bigint,
         coalesce(bool_or(d.is_estimate), false), min(d.ready_at), coalesce(sum(l.total), 0)::bigint, max(l.claimed_at), coalesce(max(c.n), 0)
  FROM weir.queue q LEFT JOIN sums l ON l.id = q.id LEFT JOIN depths d ON d.id = q.id LEFT JOIN crew c ON c.name = q.name
  GROUP BY q.name ORDER BY q.name;
END
$$;
CREATE FUNCTION weir._read_schedules(name text, after text, max_rows integer) RETURNS SETOF weir.schedule_info LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
#variable_conflict use_column
DECLARE
  s weir.schedule;
  i weir.schedule_info;
BEGIN
  FOR s IN SELECT k.* FROM weir.schedule k WHERE (_read_schedules.name IS NULL OR k.name = _read_schedules.name) AND (_read_schedules.after IS NULL OR k.name > _read_schedules.after)
           ORDER BY k.name LIMIT _read_schedules.max_rows LOOP
    i := ROW(s.name, CASE WHEN s.paused_at IS NULL THEN 'active' ELSE 'paused' END, s.schedule, s.time_zone, NULL, NULL, NULL,
             s.queue, s.kind, s.args, s.priority, s.max_attempts, s.meta, s.missed, s.jitter, NULL, s.key);
    i.last_at := (SELECT f.due FROM weir.firing f WHERE f.name = s.name ORDER BY f.due DESC LIMIT 1);
    i.last_job := (SELECT f.job FROM weir.firing f WHERE f.name = s.name AND f.job IS NOT NULL ORDER BY f.due DESC LIMIT 1);
    BEGIN
      i.next_at := weir._pending_due(s);
    EXCEPTION WHEN OTHERS THEN
      i.error := SQLERRM;
    END;
    RETURN NEXT i;
  END LOOP;
END
$$;
CREATE FUNCTION weir._reclaim_messages(segment integer, retention interval, for_relays boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET lock_timeout=10ms
AS $$
#variable_conflict use_column
DECLARE
  newest weir.tick;
  floor  weir.tick;
BEGIN
  IF _reclaim_messages.segment NOT BETWEEN 1 AND 4 OR _reclaim_messages.segment = pg_sequence_last_value('weir.active_message') THEN
    RETURN false;
  END IF;
  -- No transaction in flight has messages here, and none can add any, so all messages can be put into ticks.
  EXECUTE format('LOCK TABLE weir.message_%s IN SHARE MODE NOWAIT', _reclaim_messages.segment);
  IF NOT pg_try_advisory_xact_lock(1464158547, 4) THEN
    RAISE lock_not_available;
  END IF;
  FOR i IN 1..100 LOOP
    EXIT WHEN (weir._cut()).seq IS NULL;
  END LOOP;
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF EXISTS (SELECT FROM weir.message m WHERE m.segment = _reclaim_messages.segment AND NOT pg_visible_in_snapshot(m.xid, newest.snapshot)
             AND m.xid >= pg_snapshot_xmin(newest.snapshot)) THEN
    RAISE lock_not_available;  -- more than a hundred ticks are missing: hubs cut them
  END IF;
  -- Ticks up to the last one with a message here become unreadable.
  SELECT t.* INTO floor FROM weir.tick t
  WHERE t.segment = _reclaim_messages.segment OR t.segments & (1 << _reclaim_messages.segment) <> 0 ORDER BY t.seq DESC LIMIT 1;
  IF floor.at > clock_timestamp() - _reclaim_messages.retention THEN
    RAISE lock_not_available;  -- it was delivered late: other messages of that tick must still be kept
  ELSIF _reclaim_messages.for_relays AND weir._is_relayed_later(floor.seq) THEN
    RETURN false;
  END IF;
  -- Readers hold these locks only briefly, but together perhaps without a gap. So this waits, and new readers wait behind it, for
  -- at most 10 ms. Readers lock ticks first, then messages; so does this.
  EXECUTE format('LOCK TABLE weir.tick_%1$s, weir.message_%1$s IN ACCESS EXCLUSIVE MODE', _reclaim_messages.segment);
  IF newest.segment = _reclaim_messages.segment THEN
    -- The newest tick holds the log's state: an empty tick takes its place.
    IF weir._epoch_here() IS NULL THEN
      PERFORM weir._draw_epoch(newest.seq + 1);
    END IF;
    INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
    VALUES (newest.seq + 1, pg_snapshot_xmax(newest.snapshot), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}', newest.snapshot);
    PERFORM setval('weir.tick_seq', newest.seq + 1);
  END IF;
  -- The floor is raised first, so that no reader mistakes truncated ticks for ticks without messages.
  PERFORM setval('weir.tick_floor', greatest(floor.seq, pg_sequence_last_value('weir.tick_floor')));
  EXECUTE format('TRUNCATE weir.message_%1$s, weir.tick_%1$s', _reclaim_messages.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('message', _reclaim_messages.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;
CREATE FUNCTION weir._reclaim(segment integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET work_mem=64MB SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  max_jobs    CONSTANT integer := 10000;  -- copied while others wait, which takes about 50 ms
  max_bytes   CONSTANT bigint := 8388608;
  max_batches CONSTANT integer := 2000;   -- or lanes, which take as long
  max_keys    CONSTANT integer := 2000;   -- that are looked at one by one; more of them all at once
  max_turns   CONSTANT integer := 50000;  -- repeated in one call, which takes half a second
  active      integer;
  lanes       bigint[];
  has_keys    boolean;
  keys        bigint[] := '{}';  -- lanes of keys here
  waiting     bigint[];
  watched     bigint[];  -- where claims from the lanes in waiting write their batches
  turns       bigint[] := '{}';  -- lanes of keys whose newest turn is here, and counts
  newest      bigint[];
  stale       bigint[];
  ids         bigint[];
  b_lanes     bigint[];
  b_seqs      bigint[];
  n           bigint;
  size        bigint;
  too_much    boolean;
  tables      regclass[];
BEGIN
  PERFORM weir._check_isolation('reclaim');
  PERFORM weir._check_cluster();
  active := pg_sequence_last_value('weir.active_job');
  IF _reclaim.segment NOT BETWEEN 1 AND 4 OR _reclaim.segment = active OR NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN false;
  END IF;
  tables := ARRAY['weir.job_' || _reclaim.segment, 'weir.batch_' || _reclaim.segment, 'weir.result_' || _reclaim.segment, 'weir.turn_' || _reclaim.segment]::regclass[];
  IF weir._is_held(tables) THEN
    RETURN false;
  END IF;
  -- With this lock, no transaction in flight has rows here, and none that still considers the segment active
  -- can add any. Claims and results continue.
  EXECUTE format('LOCK TABLE weir.job_%1$s, weir.turn_%1$s IN SHARE MODE NOWAIT', _reclaim.segment);
  LOCK TABLE weir.ring IN ACCESS SHARE MODE;  -- it is not compacted meanwhile: see _late_of

  has_keys := EXISTS (SELECT FROM weir.with_keys);
  -- The long scan. The order matters: later claims from this segment are from lanes that have jobs waiting here now.
  lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q CROSS JOIN generate_series(0, 3) p);
  IF has_keys THEN
    keys := ARRAY(SELECT k FROM weir._key_lanes(NULL, NULL, _reclaim.segment, max_keys + 1) k);
  END IF;
  SELECT coalesce(array_agg(DISTINCT u.lane), '{}'), count(*), coalesce(sum(150 + pg_column_size(u.args) + coalesce(pg_column_size(u.meta), 0)), 0)
    INTO waiting, n, size
  FROM (SELECT u.lane, u.args, u.meta FROM weir._unclaimed(_reclaim.segment, lanes || CASE WHEN cardinality(keys) <= max_keys THEN keys ELSE '{}' END, max_jobs + 1) u
        UNION ALL SELECT k.lane, k.args, k.meta FROM weir._unclaimed_of_keys(_reclaim.segment, max_jobs + 1) k WHERE cardinality(keys) > max_keys) u;
  -- Batches of jobs with keys are in the ring lanes of their queues.
  IF has_keys THEN
    lanes := lanes || ARRAY(SELECT (q.id::bigint << 39) + 4 FROM weir.queue q);
  END IF;
  watched := ARRAY(SELECT DISTINCT r FROM (SELECT DISTINCT CASE WHEN w & 549755813880 = 0 THEN w ELSE w >> 39 << 39 | 8 END AS lane FROM unnest(waiting) w) l
                   CROSS JOIN unnest(weir._ring_lanes(l.lane)) r);
  too_much := n > max_jobs OR size > max_bytes OR cardinality(waiting) > max_batches;
  -- These lanes, and those whose state is in a batch here.
  SELECT coalesce(array_agg(l.lane), '{}'), coalesce(array_agg(l.seq), '{}'), coalesce(array_agg(l.lane) FILTER (WHERE l.is_here), '{}')
    INTO lanes, newest, stale
  FROM (
    SELECT l.lane, coalesce(s.seq, 0) AS seq, s.segment = _reclaim.segment AND NOT EXISTS (
      SELECT FROM weir.batch b WHERE b.lane = l.lane AND b.seq = s.seq AND b.segment <> _reclaim.segment) AS is_here
    FROM unnest(lanes) l(lane)
    LEFT JOIN LATERAL (SELECT b.seq, b.segment FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) s ON true
    WHERE NOT too_much) l
  WHERE l.is_here OR l.lane = ANY (watched);
  IF cardinality(stale) > max_batches THEN
    PERFORM weir._carry_states(_reclaim.segment, active, stale);
    PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + 1);
    RETURN false;
  END IF;
  IF NOT too_much THEN
    -- An attempt ends once, so a batch with as many results as jobs has ended. Only for the others, the unfinished jobs are searched.
    SELECT coalesce(array_agg(u.lane), '{}'), coalesce(array_agg(u.seq), '{}') INTO b_lanes, b_seqs
    FROM (
      SELECT b.lane, b.seq
      FROM (SELECT k.lane, k.seq, sum(cardinality(k.ids)) AS n FROM weir.batch k WHERE k.segment = _reclaim.segment GROUP BY k.lane, k.seq) b
      LEFT JOIN (SELECT k.lane, k.seq, sum(cardinality(k.ids)) AS n FROM weir.result k WHERE k.segment = _reclaim.segment GROUP BY k.lane, k.seq) r
        ON r.lane = b.lane AND r.seq = b.seq
      WHERE b.n <> coalesce(r.n, 0) LIMIT max_batches + 1) u;
    too_much := cardinality(b_lanes) > max_batches;
  END IF;
  IF NOT too_much THEN
    ids := ARRAY(
      SELECT i.id FROM unnest(b_lanes, b_seqs) e(lane, seq)
      CROSS JOIN LATERAL (
        SELECT unnest(b.ids) AS id FROM weir.batch b WHERE b.segment = _reclaim.segment AND b.lane = e.lane AND b.seq = e.seq
        EXCEPT
        SELECT unnest(r.ids) FROM weir.result r WHERE r.segment = _reclaim.segment AND r.lane = e.lane AND r.seq = e.seq) i
      LIMIT max_jobs + 1);
    SELECT size + coalesce(sum(150 + pg_column_size(j.args) + coalesce(pg_column_size(j.meta), 0)), 0) INTO size FROM unnest(ids) i(id)
    CROSS JOIN LATERAL (SELECT j.* FROM weir.job j WHERE j.segment = _reclaim.segment AND j.id = i.id OFFSET 0) j;
    too_much := n + cardinality(ids) > max_jobs OR size > max_bytes;
  END IF;
  IF NOT too_much AND has_keys THEN
    turns := weir._kept_turns(_reclaim.segment, waiting || ARRAY(
      SELECT DISTINCT k.lane FROM unnest(b_lanes, b_seqs) e(lane, seq)
      CROSS JOIN LATERAL (SELECT b.ids, b.lanes FROM weir.batch b WHERE b.segment = _reclaim.segment AND b.lane = e.lane AND b.seq = e.seq AND b.lanes IS NOT NULL OFFSET 0) b
      CROSS JOIN LATERAL unnest(b.ids, b.lanes) k(id, lane)));
    IF cardinality(turns) > max_batches THEN
      PERFORM weir._carry_turns(_reclaim.segment, active, turns[: max_turns]);
      PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + 1);
      RETURN false;
    END IF;
  END IF;
  IF too_much THEN
    -- Waiting jobs are carried, at most half as many bytes as have been logged since the active segment was opened. Running jobs will end.
    IF n > 0 AND pg_sequence_last_value('weir.carried') * 2 <= weir._segment_bytes(active) THEN
      PERFORM setval('weir.carried', pg_sequence_last_value('weir.carried') + weir._carry_waiting(_reclaim.segment, active, waiting, max_jobs, max_bytes));
    END IF;
    RETURN false;
  ELSIF weir._is_held(tables) THEN
    RETURN false;
  END IF;

  -- The short step. Claims and most results are autocommit calls, so each wait is short; all waits are bounded.
  PERFORM set_config('lock_timeout', '250ms', true);  -- on a busy server, or in a session that plans its first, a claim may take long
  PERFORM pg_advisory_xact_lock(1464158547, 0);
  PERFORM set_config('lock_timeout', '25ms', true);
  PERFORM pg_advisory_xact_lock(1464158549, _reclaim.segment);
  EXECUTE format('LOCK TABLE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s, weir.turn_%1$s IN ACCESS EXCLUSIVE MODE', _reclaim.segment);
  PERFORM weir._carry_turns(_reclaim.segment, active, turns);
  PERFORM weir._carry_unfinished(_reclaim.segment, active, waiting, lanes, newest, b_lanes, b_seqs);
  EXECUTE format('TRUNCATE weir.job_%1$s, weir.batch_%1$s, weir.result_%1$s, weir.turn_%1$s', _reclaim.segment);
  INSERT INTO weir.segment (log, segment, event) VALUES ('job', _reclaim.segment, 'reclaimed');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;  -- the segment is in use: try again later
END
$$;
CREATE FUNCTION weir._reconcile(worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[], after bigint DEFAULT 0, reason text DEFAULT 'the worker did not know that it held this job'::text, OUT released integer, OUT next bigint) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off
AS $$
BEGIN
  PERFORM weir._check_isolation('reconcile'), weir._hold_briefly();
  PERFORM weir._check_array('reconcile', 'lanes', _reconcile.lanes, true), weir._check_array('reconcile', 'seqs', _reconcile.seqs, true),
          weir._check_array('reconcile', 'sizes', _reconcile.sizes, true), weir._check_array('reconcile', 'ids', _reconcile.ids, true);
  IF cardinality(_reconcile.lanes) IS DISTINCT FROM cardinality(_reconcile.seqs) OR cardinality(_reconcile.lanes) IS DISTINCT FROM cardinality(_reconcile.sizes)
     OR EXISTS (SELECT FROM unnest(_reconcile.sizes) k(size) WHERE k.size < 0)
     OR coalesce((SELECT sum(k.size) FROM unnest(_reconcile.sizes) k(size)), 0) IS DISTINCT FROM coalesce(cardinality(_reconcile.ids), 0) THEN
    RAISE EXCEPTION 'weir: reconcile got % lanes, % seqs, % sizes and % ids, which don''t match', cardinality(_reconcile.lanes), cardinality(_reconcile.seqs),
      cardinality(_reconcile.sizes), cardinality(_reconcile.ids) USING ERRCODE = '22023', HINT = 'Pass a lane, a seq and a size for each batch; the sizes must add up to the number of ids.';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158548, _reconcile.worker);
  PERFORM weir._check_worker(_reconcile.worker);
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _reconcile.worker);  -- after a claim that may still be running
  SELECT r.relogged, r.next INTO released, next
  FROM weir._relog(_reconcile.worker, 'released', _reconcile.reason, _reconcile.lanes, _reconcile.seqs, _reconcile.sizes, _reconcile.ids,
                  coalesce(_reconcile.after, 0)) r;
END
$$;
CREATE FUNCTION weir._record(worker integer, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[], outcomes text[] DEFAULT NULL::text[], errors text[] DEFAULT NULL::text[], outputs text[] DEFAULT NULL::text[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[]) RETURNS TABLE(place integer, refusal text, detail text, outcome text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off SET lock_timeout=5s
AS $$
#variable_conflict use_column
DECLARE
  has_ended CONSTANT text := 'the attempt has already ended: drop this end';
  n         integer := coalesce(cardinality(_record.ids), 0);
  is_plain  boolean := _record.outcomes IS NULL AND _record.errors IS NULL AND _record.outputs IS NULL;
  lasts     integer[];   -- the place of each batch's last id
  whole     integer[];   -- batches all of whose ids are accepted, and their segments
  whole_in  smallint[];
  gates     integer[];   -- of the whole ones, and of the others job by job; NULL: the queue has no limits
  gates_of  integer[];
  lanes_of  bigint[];    -- those of jobs with keys
  has_members boolean;   -- a whole one has members of flows
  rest      integer[];   -- batches that are checked job by job
  batch_of  integer[];   -- for these: each job's batch, and its place
  places    integer[];
  segments  smallint[];
  refusals  text[];
  details   text[];
  held_open integer[];
  found     record;      -- those that have ended
  judged    record;      -- by a retry rule
  ruled     text[] := '{}';
BEGIN
  PERFORM weir._check_array('record', 'lanes', _record.lanes, true), weir._check_array('record', 'seqs', _record.seqs, true),
          weir._check_array('record', 'sizes', _record.sizes, true), weir._check_array('record', 'ids', _record.ids, true);
  IF NOT is_plain OR _record.run_at IS NOT NULL THEN
    PERFORM weir._check_array('record', 'outcomes', _record.outcomes), weir._check_array('record', 'errors', _record.errors),
            weir._check_array('record', 'outputs', _record.outputs), weir._check_array('record', 'run_at', _record.run_at);
  END IF;
  IF cardinality(_record.lanes) IS DISTINCT FROM cardinality(_record.seqs) OR cardinality(_record.lanes) IS DISTINCT FROM cardinality(_record.sizes) THEN
    RAISE EXCEPTION 'weir: record got % lanes, % seqs and % sizes', cardinality(_record.lanes), cardinality(_record.seqs), cardinality(_record.sizes)
      USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM unnest(_record.sizes) k(size) WHERE k.size < 0)
     OR coalesce((SELECT sum(k.size) FROM unnest(_record.sizes) k(size)), 0) <> n THEN
    RAISE EXCEPTION 'weir: record got % ids, but sizes that add up to %', n, (SELECT sum(k.size) FROM unnest(_record.sizes) k(size)) USING ERRCODE = '22023';
  ELSIF n > 10000 THEN
    RAISE EXCEPTION 'weir: record takes at most 10000 attempts at once, got %', n USING ERRCODE = '22023', HINT = 'Record them in several calls.';
  ELSIF n <> ANY (ARRAY[coalesce(cardinality(_record.outcomes), n), coalesce(cardinality(_record.errors), n),
                        coalesce(cardinality(_record.outputs), n), coalesce(cardinality(_record.run_at), n)]) THEN
    RAISE EXCEPTION 'weir: record got % ids, % outcomes, % errors, % outputs and % run_at', n, cardinality(_record.outcomes),
      cardinality(_record.errors), cardinality(_record.outputs), cardinality(_record.run_at) USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_isolation('record'), weir._hold_briefly(), weir._commit_synchronously();
  -- Workers pass what their handlers' own transactions have ended, to learn whether these were committed. They usually were, which needs no locks: no end is ever taken back.
  IF NOT is_plain AND n > 0 AND EXISTS (SELECT FROM weir._ends_of(_record.worker, _record.lanes[1:1], _record.seqs[1:1], ARRAY[1], _record.ids[1:1])) THEN
    SELECT array_agg(e.place) AS places, array_agg(e.outcome) AS outcomes INTO found FROM weir._ends_of(_record.worker, _record.lanes, _record.seqs, _record.sizes, _record.ids) e;
    IF cardinality(found.places) = n THEN
      PERFORM weir._check_worker(_record.worker);
      RETURN QUERY SELECT e.place, 'ended', has_ended, e.outcome FROM unnest(found.places, found.outcomes) e(place, outcome) ORDER BY e.place;
      RETURN;
    END IF;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158548, _record.worker);
  PERFORM weir._check_worker(_record.worker);
  IF n = 0 THEN
    RETURN;
  END IF;
  PERFORM weir._hold_segments(_record.worker, _record.lanes, _record.seqs);
  held_open := weir._hold_ends(_record.worker);
  lasts := ARRAY(SELECT sum(k.size) OVER (ORDER BY k.nr) FROM unnest(_record.sizes) WITH ORDINALITY k(size, nr) ORDER BY k.nr);

  BEGIN
    -- Usually everything is accepted, which is checked a batch at a time: each id is a job of the batch, occurs once, and has no end.
    IF held_open = '{}' THEN
      SELECT array_agg(i.nr), array_agg(b.segment), array_agg(b.gate), bool_or(b.flows IS NOT NULL) INTO whole, whole_in, gates, has_members
      FROM (SELECT k.nr, k.lane, k.seq, _record.ids[k.last - k.size + 1 : k.last] AS ids, count(*) OVER (PARTITION BY k.lane, k.seq) AS times
            FROM unnest(_record.lanes, _record.seqs, _record.sizes, lasts) WITH ORDINALITY k(lane, seq, size, last, nr) WHERE k.size > 0) i
      JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _record.worker
      WHERE i.times = 1
        AND (i.ids = b.ids OR NOT EXISTS (SELECT unnest(i.ids) EXCEPT ALL SELECT unnest(b.ids)))
        AND NOT EXISTS (SELECT FROM (SELECT unnest(i.ids) INTERSECT
                                     SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = i.lane AND r.seq = i.seq) e);
    END IF;
    rest := ARRAY(SELECT k.nr FROM unnest(_record.sizes) WITH ORDINALITY k(size, nr) WHERE k.size > 0 EXCEPT SELECT unnest(whole) ORDER BY 1);
    IF rest <> '{}' THEN
      SELECT array_agg(k.nr ORDER BY k.place), array_agg(k.place ORDER BY k.place) INTO batch_of, places
      FROM (SELECT r.nr, generate_series(lasts[r.nr] - _record.sizes[r.nr] + 1, lasts[r.nr]) AS place FROM unnest(rest) r(nr)) k;
      -- Each id may be passed, in the batch, and ended already: these facts are grouped instead of joined, so that no plan is quadratic.
      SELECT array_agg(v.segment ORDER BY v.place), array_agg(v.refusal ORDER BY v.place), array_agg(v.gate ORDER BY v.place), array_agg(v.job_lane ORDER BY v.place)
        INTO segments, refusals, gates_of, lanes_of
      FROM (
        SELECT p.place, u.segment, u.gate, u.job_lane,
               CASE WHEN u.segment IS NULL THEN 'lost'
                    WHEN u.ended OR p.nth > 1 THEN 'ended'
                    WHEN hashint8(u.id) = ANY (held_open) THEN 'busy' END AS refusal
        FROM (
          SELECT a.lane, a.seq, a.id, array_agg(a.place ORDER BY a.place) FILTER (WHERE a.place IS NOT NULL) AS places, max(a.segment) AS segment, max(a.gate) AS gate, max(a.job_lane) AS job_lane, bool_or(a.ended) AS ended
          FROM (
            SELECT _record.lanes[g.nr] AS lane, _record.seqs[g.nr] AS seq, _record.ids[g.place] AS id, g.place, NULL::smallint AS segment, NULL::integer AS gate, NULL::bigint AS job_lane, false AS ended
            FROM unnest(batch_of, places) g(nr, place)
            UNION ALL
            SELECT b.lane, b.seq, m.id, NULL, m.segment, b.gate, m.job_lane, m.ended
            FROM (SELECT DISTINCT _record.lanes[r.nr] AS lane, _record.seqs[r.nr] AS seq FROM unnest(rest) r(nr)) i
            JOIN weir.batch b ON b.lane = i.lane AND b.seq = i.seq AND b.worker IS NOT DISTINCT FROM _record.worker
            CROSS JOIN LATERAL (
              SELECT m.id, b.segment, m.lane AS job_lane, false AS ended FROM unnest(b.ids, b.lanes) m(id, lane)
              UNION ALL
              SELECT x.id, NULL, NULL, true FROM weir.result r CROSS JOIN unnest(r.ids) x(id)
              WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) m) a
          GROUP BY a.lane, a.seq, a.id) u
        CROSS JOIN LATERAL unnest(u.places) WITH ORDINALITY p(place, nth)) v;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'WR099';  -- rolling back a block releases its locks, which may be on other segments too
  EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- a code that ends in 000 would catch its whole class
    NULL;
  END;

  IF is_plain THEN
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
    SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), 'completed',
           _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]
    FROM unnest(whole, whole_in) k(nr, segment);
    IF rest <> '{}' THEN
      INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
      SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), 'completed', array_agg(_record.ids[k.place])
      FROM unnest(batch_of, places, segments, refusals) k(nr, place, segment, refusal)
      WHERE k.refusal IS NULL
      GROUP BY k.nr, k.segment;
    END IF;
    IF has_members OR rest <> '{}' THEN
      PERFORM weir._end_members(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), NULL) FROM (
        SELECT k.nr, i.id FROM unnest(whole) k(nr) CROSS JOIN LATERAL unnest(_record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) i(id)
        UNION ALL
        SELECT k.nr, _record.ids[k.place] FROM unnest(batch_of, places, refusals) k(nr, place, refusal) WHERE k.refusal IS NULL) k;
    END IF;
    IF array_remove(gates || gates_of, NULL) <> '{}' THEN
      PERFORM weir._free_slots(array_agg(k.gate), array_agg(k.n), array_agg(k.lane)) FROM (
        SELECT k.gate, _record.sizes[k.nr] AS n, NULL::bigint AS lane FROM unnest(whole, gates) k(nr, gate) WHERE _record.lanes[k.nr] & 4 = 0
        UNION ALL
        SELECT k.gate, 1, l.lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
        CROSS JOIN LATERAL weir._lanes_in(_record.lanes[k.nr], _record.seqs[k.nr], k.segment, _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) l(lane)
        WHERE _record.lanes[k.nr] & 4 <> 0 AND k.gate IS NOT NULL
        UNION ALL
        SELECT k.gate, 1, k.lane FROM unnest(gates_of, refusals, lanes_of) k(gate, refusal, lane) WHERE k.refusal IS NULL) k;
    END IF;
  ELSE
    -- From here on places contains all places, in order. Invalid ends are refused, too.
    SELECT array_agg(k.nr ORDER BY k.place), array_agg(k.place ORDER BY k.place), array_agg(k.segment ORDER BY k.place), array_agg(k.refusal ORDER BY k.place),
           array_agg(k.gate ORDER BY k.place), array_agg(k.job_lane ORDER BY k.place)
      INTO batch_of, places, segments, refusals, gates_of, lanes_of
    FROM (
      SELECT k.nr, p.place, k.segment, NULL::text AS refusal, k.gate, NULL::bigint AS job_lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
      CROSS JOIN LATERAL generate_series(lasts[k.nr] - _record.sizes[k.nr] + 1, lasts[k.nr]) p(place)
      WHERE _record.lanes[k.nr] & 4 = 0
      UNION ALL
      SELECT k.nr, lasts[k.nr] - _record.sizes[k.nr] + p.nr, k.segment, NULL, k.gate, p.lane FROM unnest(whole, whole_in, gates) k(nr, segment, gate)
      CROSS JOIN LATERAL weir._lanes_in(_record.lanes[k.nr], _record.seqs[k.nr], k.segment, _record.ids[lasts[k.nr] - _record.sizes[k.nr] + 1 : lasts[k.nr]]) WITH ORDINALITY p(lane, nr)
      WHERE _record.lanes[k.nr] & 4 <> 0
      UNION ALL
      SELECT k.* FROM unnest(batch_of, places, segments, refusals, gates_of, lanes_of) k) k;
    SELECT array_agg(coalesce(k.refusal, CASE WHEN k.why IS NOT NULL THEN 'invalid' END) ORDER BY k.place), array_agg(k.why ORDER BY k.place)
      INTO refusals, details
    FROM (
      SELECT u.place, u.refusal,
             CASE WHEN coalesce(u.outcome, 'completed') <> ALL (ARRAY['completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released'])
                  THEN format('outcome must be completed, failed, cancelled, retried, snoozed or released, got %s', left(u.outcome, 100))
                  WHEN length(u.output) > 1048576
                  THEN format('output too large: %s characters, at most 1048576 are allowed', length(u.output))
                  WHEN u.run_at >= '10000-01-01 00:00:00+00' THEN format('run_at is %s: a job can be scheduled up to the year 9999', u.run_at) END AS why
      FROM unnest(refusals, _record.outcomes, _record.outputs, _record.run_at) WITH ORDINALITY u(refusal, outcome, output, run_at, place)) k;
    IF _record.outcomes && ARRAY['retried'] AND _record.run_at && ARRAY['-infinity'::timestamptz] AND EXISTS (SELECT FROM weir.retry_rule) THEN
      FOR judged IN
        SELECT r.* FROM (
          SELECT array_agg(k.place::integer) AS places, array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments,
                 array_agg(k.id) AS ids, array_agg(k.error) AS errors
          FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.run_at)
               WITH ORDINALITY k(nr, segment, id, refusal, outcome, error, run_at, place)
          WHERE k.refusal IS NULL AND k.outcome = 'retried' AND k.run_at = '-infinity') e
        CROSS JOIN LATERAL weir._judged(e.places, e.lanes, e.seqs, e.segments, e.ids, e.errors) r
      LOOP
        outcomes[judged.place] := judged.outcome;
        run_at[judged.place] := judged.run_at;
        IF judged.outcome <> 'retried' THEN
          ruled[judged.place] := judged.outcome;
          CONTINUE WHEN errors IS NULL;
          errors[judged.place] := left(errors[judged.place], 65000) || format(E'\n[%s by retry rule %s]', judged.outcome, quote_ident(judged.rule));
        END IF;
      END LOOP;
    END IF;
    -- Final ends are written directly; an end that is followed by another attempt needs the job's row.
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors, outputs)
    SELECT _record.lanes[k.nr], k.segment, _record.worker, _record.seqs[k.nr], clock_timestamp(), k.outcome, array_agg(k.id),
           CASE WHEN count(k.error) > 0 THEN array_agg(left(k.error, 65536)) END, CASE WHEN count(k.output) > 0 THEN array_agg(k.output) END
    FROM (
      SELECT u.nr, u.segment, u.id, coalesce(u.outcome, 'completed')::weir.outcome AS outcome, u.error, u.output,
             CASE WHEN length(u.error) > 2000 OR length(u.output) > 2000 THEN u.id END AS alone  -- as in weir._end_attempts
      FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs) u(nr, segment, id, refusal, outcome, error, output)
      WHERE u.refusal IS NULL AND coalesce(u.outcome, 'completed') IN ('completed', 'failed', 'cancelled')) k
    GROUP BY k.nr, k.segment, k.outcome, k.alone;
    IF has_members OR rest <> '{}' THEN
      PERFORM weir._end_members(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), array_agg(k.outcome))
      FROM (SELECT u.nr, u.id, coalesce(u.outcome, 'completed') AS outcome FROM unnest(batch_of, _record.ids, refusals, _record.outcomes) u(nr, id, refusal, outcome) WHERE u.refusal IS NULL) k
      WHERE k.outcome IN ('completed', 'failed', 'cancelled');
      PERFORM weir._keep_outputs(array_agg(_record.lanes[k.nr]), array_agg(_record.seqs[k.nr]), array_agg(k.id), array_agg(k.output))
      FROM unnest(batch_of, _record.ids, refusals, _record.outcomes, _record.outputs) k(nr, id, refusal, outcome, output)
      WHERE k.refusal IS NULL AND coalesce(k.outcome, 'completed') = 'completed' AND k.output IS NOT NULL HAVING count(*) > 0;
    END IF;
    IF array_remove(gates_of, NULL) <> '{}' THEN
      PERFORM weir._free_slots(array_agg(k.gate), array_agg(1), array_agg(k.lane)) FROM unnest(gates_of, refusals, _record.outcomes, lanes_of) k(gate, refusal, outcome, lane)
      WHERE k.refusal IS NULL AND coalesce(k.outcome, 'completed') IN ('completed', 'failed', 'cancelled');
    END IF;
    IF _record.outcomes && ARRAY['failed'] THEN
      PERFORM weir._keep_failures(_record.worker, e.lanes, e.seqs, e.segments, e.ids, e.errors, e.outputs)
      FROM (
        SELECT array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments, array_agg(k.id) AS ids,
               array_agg(k.error) AS errors, array_agg(k.output) AS outputs
        FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs) k(nr, segment, id, refusal, outcome, error, output)
        WHERE k.refusal IS NULL AND k.outcome = 'failed') e
      WHERE e.ids IS NOT NULL;
    END IF;
    IF _record.outcomes && ARRAY['retried', 'snoozed', 'released'] THEN
      PERFORM weir._end_attempts(_record.worker, e.lanes, e.seqs, e.segments, e.ids, e.outcomes, e.errors, e.outputs, e.run_at)
      FROM (
        SELECT array_agg(_record.lanes[k.nr]) AS lanes, array_agg(_record.seqs[k.nr]) AS seqs, array_agg(k.segment) AS segments, array_agg(k.id) AS ids,
               array_agg(k.outcome::weir.outcome) AS outcomes, array_agg(k.error) AS errors, array_agg(k.output) AS outputs, array_agg(k.run_at) AS run_at
        FROM unnest(batch_of, segments, _record.ids, refusals, _record.outcomes, _record.errors, _record.outputs, _record.run_at)
          k(nr, segment, id, refusal, outcome, error, output, run_at)
        WHERE k.refusal IS NULL AND k.outcome IN ('retried', 'snoozed', 'released')) e
      WHERE e.ids IS NOT NULL;
    END IF;
  END IF;
  IF places IS NOT NULL THEN  -- else all is accepted
    RETURN QUERY SELECT k.place, k.refusal, CASE k.refusal
        WHEN 'ended' THEN has_ended
        WHEN 'lost' THEN format('worker %s does not hold this attempt, because the claim was lost in a crash or the job was claimed again: drop this end', _record.worker)
        WHEN 'busy' THEN 'an open transaction completes the job, or sets its checkpoint: record this end again after it has ended'
        ELSE k.detail END,
        CASE WHEN k.refusal IS NULL THEN ruled[k.place]
             WHEN k.refusal = 'ended' THEN (SELECT r.outcome::text FROM weir.result r WHERE r.lane = _record.lanes[k.nr] AND r.seq = _record.seqs[k.nr] AND _record.ids[k.place] = ANY (r.ids) LIMIT 1) END
      FROM unnest(places, batch_of, refusals, details) k(place, nr, refusal, detail) WHERE k.refusal IS NOT NULL OR ruled[k.place] IS NOT NULL ORDER BY k.place;
  END IF;
END
$$;
CREATE FUNCTION weir._refuse_cycle(names text[], new boolean[], nrs integer[], befores integer[]) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  n       integer   := cardinality(names);
  waits   integer[] := array_fill(0, ARRAY[n]);  -- for how many each waits
  first   integer[] := array_fill(0, ARRAY[n]);  -- those that come after each are follows[first : last]
  last    integer[] := array_fill(-1, ARRAY[n]);
  follows integer[];
  ready   integer[];
  at      integer   := 1;
  before  integer[] := array_fill(0, ARRAY[n]);  -- of those that are left, one that each waits for
  this    integer;
  path    integer[] := '{}';
  r       record;
BEGIN
  -- Kahn: Topological sorting of large networks, 1962.
  FOR r IN
    SELECT k.before, min(k.place)::integer AS first, max(k.place)::integer AS last
    FROM (SELECT u.before, row_number() OVER (ORDER BY u.before, u.nr) AS place FROM unnest(nrs, befores) u(nr, before) WHERE new[u.before]) k GROUP BY k.before
  LOOP
    first[r.before] := r.first;
    last[r.before] := r.last;
  END LOOP;
  follows := ARRAY(SELECT u.nr FROM unnest(nrs, befores) u(nr, before) WHERE new[u.before] ORDER BY u.before, u.nr);
  FOREACH this IN ARRAY follows LOOP
    waits[this] := waits[this] + 1;
  END LOOP;
  ready := ARRAY(SELECT u.nr FROM unnest(waits) WITH ORDINALITY u(waits, nr) WHERE u.waits = 0);
  WHILE at <= cardinality(ready) LOOP
    this := ready[at];
    at := at + 1;
    FOR i IN first[this] .. last[this] LOOP
      waits[follows[i]] := waits[follows[i]] - 1;
      IF waits[follows[i]] = 0 THEN
        ready := ready || follows[i];
      END IF;
    END LOOP;
  END LOOP;
  IF cardinality(ready) = n THEN
    RETURN;
  END IF;
  FOR r IN SELECT u.nr, u.before FROM unnest(nrs, befores) u(nr, before) WHERE waits[u.nr] > 0 AND waits[u.before] > 0 LOOP
    before[r.nr] := r.before;
    this := r.nr;
  END LOOP;
  WHILE array_position(path, this) IS NULL LOOP
    path := this || path;
    this := before[this];
  END LOOP;
  path := this || path[: array_position(path, this)];
  RAISE EXCEPTION 'weir: tasks wait for each other: %', left((SELECT string_agg(CASE WHEN u.nr <= 20 OR u.nr = cardinality(path) THEN to_json(names[u.id])::text WHEN u.nr = 21 THEN '...' END, ', then ' ORDER BY u.nr) FROM unnest(path) WITH ORDINALITY u(id, nr)), 2000)
    USING ERRCODE = '22023', HINT = 'A task can only come after others that do not come after it.';
END
$$;
CREATE FUNCTION weir._refuse_old_snapshot(tables text, message text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  -- A snapshot that is older than the caller's lock sees the tables' old files in the catalog, and nothing of what is in the new ones.
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
     AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r' AND c.relfilenode <> pg_relation_filenode(c.oid)
                   AND c.relname ~ _refuse_old_snapshot.tables) THEN
    RAISE EXCEPTION USING MESSAGE = _refuse_old_snapshot.message, ERRCODE = '40001', HINT = 'Run the transaction again, or begin it with ISOLATION LEVEL READ COMMITTED.';
  END IF;
END
$$;
CREATE FUNCTION weir._relay_position(relay text, OUT "position" text, OUT sent text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
BEGIN
  PERFORM weir._check_isolation('_relay_position', true);
  LOCK TABLE weir.relay IN ACCESS SHARE MODE;
  SELECT r.position, r.sent INTO _relay_position."position", _relay_position.sent FROM weir.relay r WHERE r.relay = _relay_position.relay ORDER BY r.no DESC LIMIT 1;
END
$$;
CREATE FUNCTION weir._relay_reached(relay text, "position" text, tick bigint DEFAULT NULL::bigint, after text DEFAULT NULL::text, sent text DEFAULT NULL::text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  known text;
BEGIN
  PERFORM weir._check_isolation('_relay_reached', true);
  IF relay IS NULL OR length(relay) NOT BETWEEN 1 AND 100 OR "position" IS NULL OR length("position") > 1000 THEN
    RAISE EXCEPTION 'weir: a relay needs a name of 1 to 100 characters, and a position of up to 1000, got % and %', coalesce(quote_literal(left(relay, 200)), 'null'), coalesce(quote_literal(left("position", 200)), 'null')
      USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.relay IN ROW EXCLUSIVE MODE;  -- from here on it is not compacted, and the next statement sees what it was compacted to
  IF after IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(1464158564, hashtext(_relay_reached.relay));
    SELECT r.position INTO known FROM weir.relay r WHERE r.relay = _relay_reached.relay ORDER BY r.no DESC LIMIT 1;
    IF coalesce(known, '') <> after THEN
      RAISE EXCEPTION 'weir: relay % has come to %, and not to %', _relay_reached.relay, coalesce(quote_literal(known), 'no position'), quote_literal(after)
        USING ERRCODE = 'WR008', HINT = 'Another process runs a relay of this name: continue from where that is.';
    END IF;
  END IF;
  INSERT INTO weir.relay (relay, no, at, position, tick, sent)
  VALUES (_relay_reached.relay, nextval('weir.relay_no'), clock_timestamp(), _relay_reached."position", _relay_reached.tick, left(_relay_reached.sent, 1000));
END
$$;
CREATE FUNCTION weir._release_tasks(sums weir.fold[], was weir.fold[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  PERFORM weir._log_member(k.job, k.flow, d.task, jsonb_build_object('weir.task', jsonb_build_object('flow', d.parent, 'name', d.name)))
  FROM (SELECT n.job, n.flow FROM unnest(_release_tasks.sums) WITH ORDINALITY n
        WHERE n.job IS NOT NULL AND (_release_tasks.was[n.ordinality]).job IS NULL ORDER BY n.job OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.* FROM weir.flow d WHERE d.id = k.flow OFFSET 0) d;
END
$$;
CREATE FUNCTION weir._relog(worker integer, outcome weir.outcome, reason text, lanes bigint[], seqs bigint[], sizes integer[], ids bigint[], after bigint, OUT relogged integer, OUT next bigint, OUT jobs bigint[]) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  per_query   constant integer := 100;   -- batches checked in one statement
  max_jobs    constant integer := 1000;  -- logged in one call, plus the rest of the batches of a statement
  max_batches constant integer := 5000;  -- checked in one call
  max_open    constant integer := 1000;  -- exceptions that are stored
  is_over     boolean := _relog.outcome = 'lost';  -- the worker is fenced
  named       jsonb;                -- the attempts that are not to be ended
  mark        bigint;
  open        bigint[];             -- the exceptions up to mark
  to_check    bigint[] := '{}';     -- the exceptions that are checked again
  checked     integer := 0;         -- how many of them have been
  still       bigint[] := '{}';     -- the batches that are still open, of all that have been checked
  position    bigint;
  moved       boolean := false;     -- mark has changed
  nos         bigint[];
  seen        integer := 0;         -- batches checked
  has_ends    boolean := false;
  busy        integer[];            -- jobs that are being completed in open transactions; NULL until they are needed
  found       record;
BEGIN
  relogged := 0;
  jobs := '{}';
  SELECT coalesce(max(s.no), 0) INTO mark FROM weir.settled s WHERE s.worker = _relog.worker;
  open := coalesce((SELECT s.open FROM weir.settled s WHERE s.worker = _relog.worker AND s.no = mark), '{}');
  IF _relog.after = 0 THEN
    to_check := open;
  ELSE
    still := open;  -- checked at the start of this round
  END IF;
  position := greatest(mark, _relog.after);
  named := coalesce((
    SELECT jsonb_object_agg(format('%s %s %s', _relog.lanes[k.nr], _relog.seqs[k.nr], k.id), true)
    FROM unnest(ARRAY(SELECT b.nr FROM unnest(_relog.sizes) WITH ORDINALITY b(size, nr) CROSS JOIN generate_series(1, b.size) ORDER BY b.nr), _relog.ids) k(nr, id)), '{}');

  LOOP
    -- First the exceptions, then batches claimed since, per_query at a time.
    IF checked < cardinality(to_check) THEN
      nos := to_check[checked + 1 : checked + per_query / 20];
    ELSE
      nos := weir._batches_after(_relog.worker, position, per_query);
      EXIT WHEN nos = '{}';
    END IF;
    SELECT array_agg(g.lane) FILTER (WHERE g.gone) AS lanes, array_agg(g.seq) FILTER (WHERE g.gone) AS seqs,
           array_agg(g.segment) FILTER (WHERE g.gone) AS segments, array_agg(g.id) FILTER (WHERE g.gone) AS ids,
           (count(*) FILTER (WHERE g.gone))::integer AS gone, coalesce(array_agg(DISTINCT g.no) FILTER (WHERE NOT g.gone), '{}') AS open INTO found
    FROM (SELECT u.no, u.lane, u.seq, u.segment, i.id,
                 NOT named ? format('%s %s %s', u.lane, u.seq, i.id) AND hashint8(i.id) <> ALL (coalesce(busy, '{}')) AS gone
          FROM (SELECT k.* FROM weir._unfinished(_relog.worker, nos) k WHERE checked < cardinality(to_check)
                UNION ALL
                SELECT k.* FROM weir._unfinished_in(_relog.worker, position, nos[cardinality(nos)]) k WHERE checked >= cardinality(to_check)) u
          CROSS JOIN unnest(u.ids) i(id)) g;
    IF found.gone > 0 AND NOT has_ends THEN
      -- This lock makes results wait, so it is taken only if there is an attempt to end that is not being completed. Then the batches are checked again.
      IF busy IS NULL THEN
        busy := weir._being_completed();
      ELSE
        busy := weir._hold_ends(_relog.worker);
        has_ends := true;
      END IF;
      CONTINUE;
    END IF;
    IF found.gone > 0 THEN
      PERFORM weir._end_attempts(_relog.worker, found.lanes, found.seqs, found.segments, found.ids,
        array_fill(_relog.outcome, ARRAY[found.gone]), array_fill(_relog.reason, ARRAY[found.gone]), NULL, NULL);
      relogged := relogged + found.gone;
      jobs := jobs || found.ids;
    END IF;
    seen := seen + cardinality(nos);
    still := still || found.open;
    IF checked < cardinality(to_check) THEN
      checked := checked + cardinality(nos);
    ELSE
      position := nos[cardinality(nos)];
      IF _relog.after <= mark AND cardinality(still) <= max_open THEN
        mark := position;
        open := still;
        moved := true;
      END IF;
    END IF;
    IF relogged >= max_jobs OR seen >= max_batches OR found.gone > 0 AND NOT is_over THEN
      next := CASE WHEN checked < cardinality(to_check) THEN 0 ELSE position END;
      EXIT;
    END IF;
  END LOOP;

  IF is_over AND next IS NULL AND still = '{}' THEN
    INSERT INTO weir.settled (worker, no, open) VALUES (_relog.worker, 9223372036854775807, '{}') ON CONFLICT DO NOTHING;
  ELSIF moved THEN
    INSERT INTO weir.settled (worker, no, open) VALUES (_relog.worker, mark, open);
  END IF;
END
$$;
CREATE FUNCTION weir._reported(job_id bigint, with_log boolean, OUT percent double precision, OUT message text, OUT log jsonb) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  IF pg_sequence_last_value('weir.report_no') IS NULL THEN
    RETURN;  -- nothing was ever reported
  END IF;
  SELECT r.percent, r.message INTO percent, message FROM weir.report r WHERE r.job_id = _reported.job_id ORDER BY r.claim DESC, r.no DESC LIMIT 1;
  IF FOUND AND with_log THEN
    -- A line that does not say when it was written was stored then. Clients read the time as one in RFC 3339.
    log := (SELECT jsonb_agg(l.line || jsonb_build_object('attempt', l.attempt, 'level', coalesce(l.line ->> 'level', 'INFO'),
                               'at', coalesce(weir._log_time(l.line ->> 'at'), to_jsonb(l.at)))
                             ORDER BY l.claim, l.no, l.nr)
            FROM (SELECT e.line, e.nr, r.claim, r.no, r.attempt, r.at
                  FROM weir.report r CROSS JOIN LATERAL jsonb_array_elements(r.lines) WITH ORDINALITY e(line, nr)
                  WHERE r.job_id = _reported.job_id AND r.lines IS NOT NULL
                  ORDER BY r.claim DESC, r.no DESC, e.nr DESC LIMIT 1000) l);
  END IF;
END
$$;
CREATE FUNCTION weir._rescue() RETURNS TABLE(worker integer, reason text, relogged integer, more boolean, error text, jobs bigint[]) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  lost_worker record;
  steps       integer := 0;
  is_new      boolean := false;
BEGIN
  PERFORM weir._check_isolation('rescue'), weir._hold_briefly();
  IF NOT pg_try_advisory_xact_lock(1464158547, 6) THEN
    RETURN;
  END IF;
  FOR worker, reason, more, error IN SELECT s.worker, s.reason, s.more, s.error FROM weir._fence_silent() s LOOP
    is_new := is_new OR more;
    RETURN NEXT;
  END LOOP;
  IF is_new THEN
    RETURN;  -- a missed worker that is alive waits for this commit to write its last word
  END IF;
  -- Like claims, this must not run while a segment is being emptied.
  IF NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN;
  END IF;
  -- Each call makes a bounded number of steps. Workers with an open completion come last, because that may be all they have left. The order is
  -- otherwise random, so that no worker waits forever behind workers that can't be settled.
  FOR lost_worker IN
    SELECT f.id, f.name FROM weir.worker f
    WHERE f.fenced AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = f.id AND s.no = 9223372036854775807)
    ORDER BY f.id = ANY (ARRAY(SELECT weir._held(1464158553, 'ShareLock'))), random()
  LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158552, lost_worker.id);  -- another session settles it, or its last claim has not ended
    worker := lost_worker.id;
    reason := lost_worker.name;
    BEGIN
      SELECT s.relogged, s.more, NULL, s.jobs INTO relogged, more, error, jobs FROM weir._settle(lost_worker.id) s;
    EXCEPTION WHEN OTHERS THEN
      relogged := 0;
      more := false;
      error := SQLERRM;
      jobs := '{}';
    END;
    RETURN NEXT;
    steps := steps + 1;
    EXIT WHEN more OR relogged >= 1000 OR steps = 20;
  END LOOP;
END
$$;
CREATE FUNCTION weir._reserve(queue_no integer, n integer, ageing interval) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  one_in  CONSTANT integer := 4;
  v       record := weir._in_progress();
  by_age  integer;  -- how many of the next n jobs are chosen by age
  by_rank integer;  -- of the others, those that higher priorities leave
  lane    bigint;
  heads   record;   -- what by_rank leaves of a lane
  lanes   integer[] := '{}';
  times   timestamptz[] := '{}';
BEGIN
  -- Nobody is ahead of a higher priority before it has waited for ageing. Usually nobody has, and one row of each lane tells.
  IF NOT EXISTS (SELECT FROM generate_series(1, 3) p CROSS JOIN LATERAL weir._waiting((queue_no::bigint << 39) + p, v.running, v.top, '0', 0, 1) w WHERE w.ready_at <= now() - ageing) THEN
    RETURN NULL;
  END IF;
  FOR p IN 0..3 LOOP
    lane := (queue_no::bigint << 39) + p;
    PERFORM pg_advisory_xact_lock(1464158546, ((lane >> 39) * 4 + (lane & 3))::integer);
  END LOOP;
  v := weir._in_progress();
  SELECT (k.total + n) / one_in - k.total / one_in INTO by_age
  FROM (SELECT coalesce(sum(b.total), 0)::bigint AS total FROM generate_series(0, 3) p
        CROSS JOIN LATERAL (SELECT b.total FROM weir.batch b WHERE b.lane = (queue_no::bigint << 39) + p ORDER BY b.seq DESC LIMIT 1) b) k;
  by_rank := n - by_age;
  FOR p IN 0..3 LOOP
    lane := (queue_no::bigint << 39) + p;
    -- A lane's jobs are claimed in their order, so none counts before the one ahead of it.
    SELECT count(*) AS n, array_agg(w.at ORDER BY w.nr) FILTER (WHERE w.nr > by_rank) AS times INTO heads
    FROM (SELECT u.nr, max(u.at) FILTER (WHERE u.nr > by_rank) OVER (ROWS UNBOUNDED PRECEDING) AS at
          FROM (SELECT row_number() OVER () AS nr, w.ready_at + p * ageing AS at FROM weir._waiting(lane, v.running, v.top, '0', 0, by_rank + by_age) w) u) w;
    times := times || heads.times;
    lanes := lanes || array_fill(p, ARRAY[coalesce(cardinality(heads.times), 0)]);
    by_rank := greatest(by_rank - heads.n, 0);
  END LOOP;
  RETURN ARRAY(
    SELECT count(f.lane)::integer FROM generate_series(0, 3) r
    LEFT JOIN (SELECT u.lane FROM unnest(lanes, times) u(lane, at) ORDER BY u.at, u.lane LIMIT by_age) f ON f.lane = r GROUP BY r ORDER BY r);
END
$$;
CREATE FUNCTION weir._results_in(segment integer, before_place bigint, before_id bigint, most integer) RETURNS TABLE(place bigint, id bigint, finished_at timestamp with time zone, is_end boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  behind bigint := before_place / 65536;
  first  bigint;
  upto   tid := format('(%s,%s)', behind, before_place % 65536 + 1);
  shown  bigint := 0;
  more   bigint;
  pages  bigint := 2;
BEGIN
  -- Results are never updated or deleted, so those of a segment are approximately in the order in which they were recorded: the newest are in its last pages.
  WHILE behind >= 0 AND shown < most LOOP
    first := greatest(behind - pages, 0);
    RETURN QUERY
    SELECT k.place, k.id, k.finished_at, k.is_end FROM (
      SELECT (r.at[0]::bigint * 65536 + r.at[1]::bigint) AS place, coalesce(i.id, 0) AS id, r.finished_at, i.id IS NOT NULL AS is_end
      FROM (SELECT r.ctid::text::point AS at, r.finished_at, r.outcome, r.ids FROM weir.result r
            WHERE r.segment = _results_in.segment AND r.ctid >= format('(%s,0)', first)::tid AND r.ctid < upto) r
      LEFT JOIN LATERAL unnest(CASE WHEN r.outcome = 'completed' THEN r.ids END) i(id) ON true) k
    WHERE (k.place, k.id) < (before_place, before_id)
    ORDER BY k.place DESC, k.id DESC LIMIT most - shown;
    GET DIAGNOSTICS more = ROW_COUNT;
    shown := shown + more;
    EXIT WHEN first = 0;
    behind := first - 1;
    upto := format('(%s,0)', first);
    pages := pages * 2;
  END LOOP;
END
$$;
CREATE FUNCTION weir._results_of(lane bigint, before_seq bigint, before_id bigint, most integer) RETURNS TABLE(place bigint, id bigint, finished_at timestamp with time zone, is_end boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT r.seq, coalesce(i.id, 0), r.finished_at, i.id IS NOT NULL
  FROM weir.result r LEFT JOIN LATERAL unnest(CASE WHEN r.outcome = 'completed' THEN r.ids END) i(id) ON true
  WHERE r.lane = _results_of.lane AND r.seq <= before_seq AND (r.seq, coalesce(i.id, 0)) < (before_seq, before_id)
  ORDER BY r.seq DESC, coalesce(i.id, 0) DESC LIMIT most;
END
$$;
CREATE FUNCTION weir._resurvey() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  min_queues CONSTANT integer := 100;  -- fewer are inspected quickly without a survey
  step       CONSTANT integer := 500;
  snapshot   pg_snapshot;
  batches    bigint;
  reached    integer;
  every      integer;
  checked    bigint[];
  s          weir.survey;
  room       boolean := pg_table_size('weir.survey') < 4194304;
BEGIN
  PERFORM weir._check_isolation('survey'), weir._hold_briefly();
  IF NOT EXISTS (SELECT FROM weir.queue q ORDER BY q.id OFFSET min_queues LIMIT 1) THEN
    RETURN NULL;
  -- TRUNCATE is not MVCC-safe: nothing may be reclaimed between the snapshot and the queries.
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 3) OR NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();
  batches := coalesce(pg_sequence_last_value('weir.batch_no'), 0);
  snapshot := pg_current_snapshot();  -- later statements see at least as much
  s := weir._surveyed();
  reached := coalesce((SELECT max(n.id) FROM (SELECT q.id FROM weir.queue q WHERE q.id > s.upto ORDER BY q.id LIMIT step) n), s.upto);
  every := greatest(500, reached / 4);  -- the larger the survey, the less often it is rewritten
  IF reached = s.upto AND batches < s.batches + every AND weir._fresh_lanes(s.snapshot, snapshot, every) IS NOT NULL THEN
    RETURN NULL;
  END IF;
  IF NOT room THEN
    BEGIN
      LOCK TABLE weir.survey IN ACCESS EXCLUSIVE MODE NOWAIT;
      TRUNCATE weir.survey;
    EXCEPTION WHEN lock_not_available THEN
      RETURN NULL;  -- it is being read: try again later
    END;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  checked := ARRAY(SELECT w FROM unnest(s.waiting) w
                  UNION SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 3) p WHERE q.id > s.upto AND q.id <= reached);
  INSERT INTO weir.survey (no, upto, snapshot, batches, reclaimed, waiting, lanes, totals, claimed_at)
  WITH lane AS MATERIALIZED (
    SELECT l.lane, b.total, b.claimed_at,
           EXISTS (SELECT FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(b.pos_xid, '0'), coalesce(b.pos_id, 0)))
           OR EXISTS (SELECT FROM unnest(b.pending, b.pending_after) p(xid, after)
                      CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after LIMIT 1) j
                      WHERE pg_visible_in_snapshot(p.xid, snapshot)) AS waits
    FROM unnest(checked) l(lane)
    LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
  ), totals AS MATERIALIZED (
    SELECT l.lane, l.total, l.claimed_at FROM lane l WHERE l.total IS NOT NULL
    UNION ALL
    SELECT k.* FROM unnest(s.lanes, s.totals, s.claimed_at) k(lane, total, at) LEFT JOIN lane l ON l.lane = k.lane WHERE l.lane IS NULL
  )
  SELECT s.no + 1, reached, snapshot, batches, weir._last_reclaimed(), ARRAY(SELECT l.lane FROM lane l WHERE l.waits),
         coalesce(array_agg(k.lane), '{}'), coalesce(array_agg(k.total), '{}'), coalesce(array_agg(k.claimed_at), '{}') FROM totals k;
  RETURN format('surveyed %s lanes', cardinality(checked));
END
$$;
CREATE FUNCTION weir._retire_cancellations() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  nos bigint[];
  w   weir.cancellation_where;
BEGIN
  IF NOT EXISTS (SELECT FROM weir.cancellation_where) THEN
    IF pg_relation_size('weir.reprieve') = 0 THEN
      RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(1464158547, 0);  -- after claims that have read a cancellation
    LOCK TABLE weir.reprieve IN ACCESS EXCLUSIVE MODE NOWAIT;
    IF EXISTS (SELECT FROM weir.cancellation_where) THEN
      RETURN NULL;
    END IF;
    TRUNCATE weir.reprieve;
    RETURN 'emptied reprieve';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();

  IF weir._covered_cancellations('{}') <> '{}' THEN
    BEGIN
      LOCK TABLE weir.cancellation_where IN ROW EXCLUSIVE MODE;
      LOCK TABLE weir.reprieve IN SHARE MODE NOWAIT;
      -- One from which jobs were retried does not take the place of others: these may have been committed later, and mean such a job.
      nos := weir._covered_cancellations(ARRAY(SELECT DISTINCT r.upto FROM weir.reprieve r WHERE r.since > 0));
      DELETE FROM weir.cancellation_where c WHERE c.no = ANY (nos);
      IF FOUND THEN
        RETURN 'merged cancellations';
      END IF;
    EXCEPTION WHEN lock_not_available THEN NULL;  -- a job is being retried
    END;
  END IF;

  nos := ARRAY(SELECT c.no FROM weir.cancellation_where c WHERE c.batches IS NULL);
  IF nos <> '{}' THEN
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      RAISE SQLSTATE 'WR099';  -- releases it
    EXCEPTION WHEN SQLSTATE 'WR099' THEN
      NULL;
    END;
    UPDATE weir.cancellation_where c SET batches = coalesce(pg_sequence_last_value('weir.batch_no'), 0), xid = pg_current_xact_id() WHERE c.no = ANY (nos);
    RETURN 'noted cancellations';
  END IF;

  -- Those who may have added jobs before have ended, which the last cut has seen, or there is nothing that it has not; and so have all members: what runs again was
  -- retried since. The cancellation is counted, so that who retries the flow sees it.
  DELETE FROM weir.cancellation_where d
  WHERE d.flow IS NOT NULL
    AND d.xid <= (SELECT pg_snapshot_xmin(CASE WHEN EXISTS (SELECT FROM weir._ended_since(c.snapshot, pg_current_snapshot()) e
                                                            CROSS JOIN LATERAL (SELECT FROM weir.arrival a WHERE a.xid >= e.low AND a.xid < e.high LIMIT 1) a)
                                               THEN c.snapshot ELSE pg_current_snapshot() END)
                  FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1)
    AND coalesce((SELECT (d.is_late OR p.cancelled_no >= d.no) AND p.jobs = p.completed + p.failed + p.cancelled FROM weir.fold p WHERE p.flow = d.flow ORDER BY p.cut DESC LIMIT 1),
                 NOT EXISTS (SELECT FROM weir.flow f WHERE f.id = d.flow));
  IF FOUND THEN
    RETURN 'retired a cancellation';
  END IF;
  PERFORM weir._lock_log();
  SELECT c.* INTO w FROM weir.cancellation_where c WHERE c.flow IS NULL ORDER BY random() LIMIT 1;
  IF w.no IS NULL THEN
    RETURN NULL;
  ELSIF w.clear_xid IS NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= w.xid AND weir._none_started(w) AND weir._none_scheduled(w) THEN
    UPDATE weir.cancellation_where c SET clear_xid = pg_current_xact_id() WHERE c.no = w.no;
    RETURN 'cleared a cancellation';
  ELSIF w.clear_xid IS NOT NULL AND weir._all_claimed(w) THEN
    DELETE FROM weir.cancellation_where c WHERE c.no = w.no;
    RETURN 'retired a cancellation';
  END IF;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._retry_failed(job_ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  failures weir.failure[];
  retried  bigint[];
BEGIN
  -- Which of these cancellations mean a job, weir._retry finds out for each.
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= (SELECT min(i.id) FROM unnest(_retry_failed.job_ids) i(id))) THEN
    RETURN '{}';
  END IF;
  failures := weir._copies_of(_retry_failed.job_ids);
  retried := ARRAY(SELECT f.id FROM unnest(failures) f);
  IF retried = '{}' THEN
    RETURN retried;
  END IF;
  DELETE FROM weir.cancellation c WHERE c.id = ANY (retried);
  INSERT INTO weir.failure (id, segment, lane, attempt) SELECT f.id, f.segment, f.lane, f.attempt + 1 FROM unnest(failures) f;
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');  -- wakes idle workers
  WITH place AS MATERIALIZED (
    SELECT d.lane AS from_lane, weir._lane_of(q.name, (d.lane & 3)::integer + 1, d.key) AS lane, d.key
    FROM (SELECT DISTINCT f.lane, f.key FROM unnest(failures) f) d JOIN weir.queue q ON q.id = (d.lane >> 39)::integer
  )
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, errors, key)
  SELECT f.id, pg_current_xact_id(), f.enqueued_at, now(), p.lane, f.attempt + 1, greatest(f.max_attempts, f.attempt + 1), pg_sequence_last_value('weir.active_job'),
         row_number() OVER (PARTITION BY p.lane ORDER BY f.id) = 1, f.kind, f.args, f.meta, weir._with_error(f.errors, f.attempt, f.finished_at, 'failed', f.error), f.key
  FROM unnest(failures) f JOIN place p ON p.from_lane = f.lane AND p.key IS NOT DISTINCT FROM f.key
  ORDER BY f.id;
  RETURN retried;
END
$$;
CREATE FUNCTION weir._retry(job_id bigint, states text[], OUT state text, OUT is_retried boolean) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  j weir.job_info;
  u record;
BEGIN
  SELECT i.* INTO j FROM weir.job_info(job_id) i;
  state := j.state;
  is_retried := coalesce(j.state = ANY (_retry.states), false);
  IF NOT is_retried THEN
    RETURN;
  END IF;
  SELECT k.* INTO u FROM weir._unique_of(job_id) k WHERE EXISTS (SELECT FROM weir.keyed q WHERE q.queue = j.queue);  -- reading it takes a subtransaction
  IF j.flow IS NOT NULL AND u.unique_key IS NOT NULL AND EXISTS (SELECT FROM weir.seen s WHERE s.key = u.unique_key AND s.job <> j.id) THEN
    is_retried := false;  -- what is to be done once in its flow, another job does
    RETURN;
  END IF;
  DELETE FROM weir.cancellation c WHERE c.id = job_id;
  PERFORM pg_current_xact_id();
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE w.upto >= j.id) THEN
    -- Of those that mean it, each that is visible. One that is not yet, whatever its number, means the job once it is committed. The lock comes first, so
    -- that none of these takes the place of another one meanwhile.
    LOCK TABLE weir.reprieve IN ROW EXCLUSIVE MODE;
    INSERT INTO weir.reprieve (id, attempt, since, upto)
    SELECT j.id, j.attempt + (j.finished_at IS NOT NULL)::integer, w.no, w.no FROM weir.cancellation_where w
    WHERE (w.queue IS NULL OR w.queue = j.queue) AND weir._means(w, j.id, j.kind, j.meta, j.enqueued_at, j.key, j.priority, j.flow);
  END IF;
  IF j.finished_at IS NULL THEN  -- cancelled before it started: it is still in the log
    IF j.flow IS NOT NULL THEN
      PERFORM weir._arrive(j.flow, 'jobs', 0, 'retried', weir._cancellation_of(j.flow));
    END IF;
    PERFORM nextval('weir.control');
    state := CASE WHEN j.run_at IS NULL THEN 'available' ELSE 'scheduled' END;
    RETURN;
  END IF;
  IF j.state = 'failed' THEN
    -- In the segment of the failure, so that both are truncated together: otherwise the job would be failed again once the next attempt
    -- has been removed from the log.
    INSERT INTO weir.failure (id, segment, lane, attempt)
    SELECT f.id, f.segment, f.lane, j.attempt + 1 FROM weir.failure f WHERE f.id = j.id AND f.attempt = j.attempt;
  END IF;
  PERFORM nextval('weir.job_id');
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  VALUES (j.id, pg_current_xact_id(), j.enqueued_at, now(), weir._lane_of(j.queue, j.priority, j.key), j.attempt + 1,
          greatest(j.max_attempts, j.attempt + 1), pg_sequence_last_value('weir.active_job'), j.kind, j.args, j.meta,
          weir._brief_errors(j.errors), u.unique_key, CASE WHEN u.unique_key IS NOT NULL AND j.flow IS NULL THEN nextval('weir.job_id') * 2 END, u.unique_until, j.key, j.flow);
  IF j.flow IS NOT NULL THEN
    PERFORM weir._arrive(j.flow, j.state, -1, 'retried', weir._cancellation_of(j.flow));
  END IF;
  state := 'available';
END
$$;
CREATE FUNCTION weir._revoke(user_name text, lasts interval) RETURNS timestamp with time zone LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 100000;
  done_at timestamptz := clock_timestamp();
BEGIN
  IF user_name IS NULL OR octet_length(user_name) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'weir: a user''s name has 1 to 255 bytes, got %', coalesce(quote_literal(left(user_name, 80)), 'null') USING ERRCODE = '22023';
  ELSIF lasts <= interval '0' OR lasts > interval '400 days' THEN
    RAISE EXCEPTION 'weir: tokens are revoked for up to 400 days, got %', lasts
      USING ERRCODE = '22023', HINT = 'Name a time after which every token that has been issued until now has expired.';
  END IF;
  -- What is over goes here: the table is small, and only this function and hubs that were rung at read it.
  DELETE FROM weir.revocation r WHERE r.ctid = ANY (ARRAY(
    SELECT o.ctid FROM weir.revocation o WHERE coalesce(o.until, o.at) < done_at - interval '10 minutes' LIMIT 1000 FOR UPDATE SKIP LOCKED));
  IF (SELECT count(*) FROM (SELECT FROM weir.revocation LIMIT most) r) >= most THEN
    RAISE EXCEPTION 'weir: the tokens of % users are revoked, which is the limit', most
      USING ERRCODE = '54000', HINT = 'Remove the key that the tokens are signed with, which revokes all of them.';
  END IF;
  INSERT INTO weir.revocation (id, at, until, user_name) VALUES (nextval('weir.revocation_id'), done_at, done_at + lasts, user_name);
  PERFORM weir.publish('$weir.users');
  RETURN done_at;
END
$$;
CREATE FUNCTION weir._ring_lanes(lane bigint) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
  SELECT CASE WHEN _ring_lanes.lane & 549755813880 = 0 THEN ARRAY[_ring_lanes.lane] ELSE ARRAY(
    SELECT (t.id::bigint << 39) + 4 FROM weir.queue q JOIN weir.queue t ON t.name = q.name WHERE q.id = (_ring_lanes.lane >> 39)::integer) END
$$;
CREATE FUNCTION weir._ring_of(name text) RETURNS weir.ring LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  ring weir.ring;
BEGIN
  SELECT r.* INTO ring FROM weir.ring r WHERE r.queue = _ring_of.name ORDER BY r.seq DESC LIMIT 1;
  IF ring.seq IS NULL THEN
    ring.queue := _ring_of.name;
    ring.seq := 0;
    ring.tag := 0;
    ring.forms := 0;
    ring.version := 0;
    ring.newcomers := '{}';
    ring.due := '-infinity';
    SELECT (w.since::text || ':' || w.since::text || ':')::pg_snapshot INTO ring.arrived FROM weir.with_keys w WHERE w.queue = _ring_of.name ORDER BY w.since LIMIT 1;
  END IF;
  IF ring.due > clock_timestamp() THEN  -- the clock was set back
    IF ring.due > clock_timestamp() + interval '1 second' THEN  -- keys that have waited for their rate would have to wait for as long again
      ring.stopped_after := coalesce(ring.stopped_after, 0);
      ring.stopped_upto := ring.stopped_after;
    END IF;
    ring.due := '-infinity';
  END IF;
  RETURN ring;
END
$$;
CREATE FUNCTION weir._rotate() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'completed_retention');
  max_bytes bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer;
  target    integer;
  size      bigint;
  age       interval;
  carried   bigint;
  k         record;
BEGIN
  PERFORM weir._check_isolation('rotate'), weir._hold_briefly();
  PERFORM weir._check_cluster();  -- jobs that were enqueued since a move may lie before the old positions, and would not be carried
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_job');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('job', s) = 'reclaimed';
  size := weir._segment_bytes(active);
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'job' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);

  IF target IS NOT NULL AND (size >= max_bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.job_' || active) + pg_relation_size('weir.batch_' || active) + pg_relation_size('weir.result_' || active) + pg_relation_size('weir.turn_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('job', active, 'closed'), ('job', target, 'opened');
    PERFORM setval('weir.carried', 0), setval('weir.active_job', target);  -- last, because it does not roll back
    RETURN 'opened job ' || target;
  END IF;

  -- A segment that is not active is closed, whatever its last event: setval is not undone if the caller rolls back.
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'job' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN
      INSERT INTO weir.segment (log, segment, event) VALUES ('job', k.segment, 'closed');
    END IF;
    CONTINUE WHEN age < retention AND NOT (target IS NULL AND size >= max_bytes / 2);
    carried := pg_sequence_last_value('weir.carried');
    IF weir._reclaim(k.segment) THEN
      RETURN 'reclaimed job ' || k.segment;
    ELSIF pg_sequence_last_value('weir.carried') <> carried THEN
      RETURN 'carried from job ' || k.segment;
    END IF;
  END LOOP;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._rotate_failures() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  -- A failure is kept at least as long as its job's rows in the log.
  retention interval := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
  bytes     bigint   := (SELECT s.value::bigint / 16 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer  := pg_sequence_last_value('weir.active_failure');
  target    integer;
  size      bigint   := pg_total_relation_size('weir.failure_' || active);
  age       interval;
  k         record;
BEGIN
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('failure', s) = 'reclaimed';
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'failure' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);
  IF target IS NOT NULL AND (size >= bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.failure_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', active, 'closed'), ('failure', target, 'opened');
    PERFORM setval('weir.active_failure', target);  -- last: it does not roll back
    RETURN 'opened failure ' || target;
  END IF;
  SELECT e.segment, e.at INTO k FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'failure' AND s.segment <> active
    ORDER BY s.segment, s.no DESC) e WHERE e.event <> 'reclaimed' ORDER BY e.no LIMIT 1;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  age := clock_timestamp() - k.at;
  IF age < interval '-1 minute' THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', k.segment, 'closed');
  ELSIF age >= retention OR target IS NULL AND size >= bytes / 2 THEN
    EXECUTE format('LOCK TABLE weir.failure_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
    EXECUTE format('TRUNCATE weir.failure_%s', k.segment);
    INSERT INTO weir.segment (log, segment, event) VALUES ('failure', k.segment, 'reclaimed');
    RETURN 'reclaimed failure ' || k.segment;
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- the segment is being read or written: the next call tries again
END
$$;
CREATE FUNCTION weir._rotate_history() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._check_isolation('rotate_history'), weir._hold_briefly();
  PERFORM weir._check_cluster();
  IF NOT pg_try_advisory_xact_lock(1464158547, 1) THEN
    RETURN NULL;
  END IF;
  RETURN nullif(concat_ws(', ', weir._rotate_failures(), weir._rotate_reports()), '');
END
$$;
CREATE FUNCTION weir._rotate_later(segment_bytes bigint DEFAULT 67108864) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  active      integer;
  target      integer;
  is_full     boolean;
  k           record;
  c           weir.promotion;
  max_carried CONSTANT bigint := 100000;  -- rows
  pages       bigint;
  n           bigint;
  live        bigint;
BEGIN
  PERFORM weir._check_isolation('rotate_later'), weir._hold_briefly();
  PERFORM weir._check_cluster();
  IF NOT pg_try_advisory_xact_lock(1464158547, 2) THEN
    RETURN NULL;
  END IF;
  SELECT a.last_value INTO active FROM weir.active_later a;
  SELECT min(s) INTO target FROM generate_series(1, 4) s
  WHERE s <> active AND weir._segment_state('later', s) = 'reclaimed';
  is_full := pg_relation_size('weir.later_' || active) >= _rotate_later.segment_bytes;
  IF is_full AND target IS NOT NULL THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('later', active, 'closed'), ('later', target, 'opened');
    PERFORM setval('weir.active_later', target);
    active := target;
  END IF;

  -- A closed segment is reclaimed when all its rows are promoted; if space is needed, once at least half of them are,
  -- so that each copy has at most half the size. A sample of a hundred pages decides.
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  FOR k IN SELECT s.segment FROM weir.segment s WHERE s.log = 'later' AND s.segment <> active
           GROUP BY s.segment HAVING weir._segment_state('later', s.segment) <> 'reclaimed' ORDER BY max(s.no) LOOP
    IF EXISTS (SELECT FROM weir.later l WHERE l.segment = k.segment AND (l.run_at, l.id) > (c.due, c.due_id)) THEN
      CONTINUE WHEN NOT is_full;
      pages := pg_relation_size('weir.later_' || k.segment) / current_setting('block_size')::integer;
      EXECUTE format('SELECT count(*), count(*) FILTER (WHERE l.run_at > $1) FROM weir.later_%s l TABLESAMPLE SYSTEM ($2)', k.segment)
        INTO n, live USING c.due, least(100 * 100.0 / greatest(pages, 1), 100);
      CONTINUE WHEN live * 2 > n OR live * (pages / 100.0) > max_carried;
    END IF;
    BEGIN
      EXECUTE format('LOCK TABLE weir.later_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
      INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
      SELECT l.id, l.xid, l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, active, l.kind, l.args, l.meta, l.errors, l.unique_key, l.unique_no, l.unique_until, l.key, l.flow
      FROM weir.later l
      WHERE l.segment = k.segment AND weir._waits_later(c, l.run_at, l.id, l.xid);
      EXECUTE format('TRUNCATE weir.later_%s', k.segment);
      INSERT INTO weir.segment (log, segment, event) VALUES ('later', k.segment, 'reclaimed');
      RETURN 'reclaimed later ' || k.segment;
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- a transaction in flight has rows in it: try the next segment, or try again later
    END;
  END LOOP;
  RETURN CASE WHEN is_full AND target IS NOT NULL THEN 'opened later ' || target END;
END
$$;
CREATE FUNCTION weir._rotate_messages() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  retention interval := (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'message_retention');
  max_bytes bigint   := (SELECT s.value::bigint / 4 FROM weir.setting s WHERE s.name = 'message_retention_bytes');
  is_short  boolean;  -- of space
  next_ring integer  := (extract(epoch FROM clock_timestamp())::bigint / 300 + 1) % 3;
  active    integer;
  target    integer;
  size      bigint;
  age       interval;
  k         record;
BEGIN
  PERFORM weir._check_isolation('rotate_messages'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rotate_messages needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 5) THEN
    RETURN NULL;
  END IF;
  active := pg_sequence_last_value('weir.active_message');
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('message', s) = 'reclaimed';
  size := pg_table_size('weir.message_' || active) + pg_relation_size('weir.tick_' || active);
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'message' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);

  -- A segment is filled for half of retention, and kept for retention after its last message was delivered.
  IF target IS NOT NULL AND size > 8192 AND (size >= max_bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second')) THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('message', active, 'closed'), ('message', target, 'opened');
    PERFORM setval('weir.active_message', target);  -- last, because it does not roll back
    RETURN 'opened message ' || target;
  END IF;
  FOR k IN SELECT e.segment, e.at FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'message' AND s.segment <> active
             ORDER BY s.segment, s.no DESC) e
           WHERE e.event <> 'reclaimed' ORDER BY e.no LOOP
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN  -- the clock was set back: its retention starts over
      INSERT INTO weir.segment (log, segment, event) VALUES ('message', k.segment, 'closed');
    END IF;
    is_short := target IS NULL AND size >= max_bytes / 2;
    IF is_short OR age >= retention THEN
      IF weir._reclaim_messages(k.segment, CASE WHEN is_short THEN interval '0' ELSE retention END,
                                age < (SELECT s.value::interval FROM weir.setting s WHERE s.name = 'relay_retention') AND NOT is_short) THEN
        RETURN 'reclaimed message ' || k.segment;
      END IF;
    END IF;
  END LOOP;
  IF pg_relation_size('weir.hub_beat_' || next_ring) > 0 THEN
    BEGIN
      EXECUTE format('LOCK TABLE weir.hub_beat_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
      EXECUTE format('TRUNCATE weir.hub_beat_%s', next_ring);
      RETURN 'emptied hub_beat ' || next_ring;
    EXCEPTION WHEN lock_not_available THEN
      NULL;  -- it is being read: try again later
    END;
  END IF;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._rotate_reports() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  max_rows  CONSTANT integer := 1000;
  retention interval := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
  bytes     bigint   := (SELECT s.value::bigint / 16 FROM weir.setting s WHERE s.name = 'retention_bytes');
  active    integer  := pg_sequence_last_value('weir.active_report');
  target    integer;
  size      bigint   := pg_total_relation_size('weir.report_' || active);
  age       interval;
  k         record;
  ids       bigint[];
BEGIN
  SELECT min(s) INTO target FROM generate_series(1, 4) s WHERE s <> active AND weir._segment_state('report', s) = 'reclaimed';
  age := clock_timestamp() - (SELECT s.at FROM weir.segment s WHERE s.log = 'report' AND s.segment = active AND s.event = 'opened' ORDER BY s.no DESC LIMIT 1);
  IF target IS NOT NULL AND (size >= bytes OR age IS NULL OR age < interval '-1 minute' OR age >= greatest(retention / 2, interval '1 second'))
     AND pg_relation_size('weir.report_' || active) > 0 THEN
    INSERT INTO weir.segment (log, segment, event) VALUES ('report', active, 'closed'), ('report', target, 'opened');
    PERFORM setval('weir.active_report', target);  -- last: it does not roll back
    RETURN 'opened report ' || target;
  END IF;
  SELECT e.* INTO k FROM (SELECT DISTINCT ON (s.segment) s.* FROM weir.segment s WHERE s.log = 'report' AND s.segment <> active
    ORDER BY s.segment, s.no DESC) e WHERE e.event <> 'reclaimed' ORDER BY e.event <> 'carried', e.no LIMIT 1;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF k.event <> 'carried' THEN
    age := clock_timestamp() - k.at;
    IF age < interval '-1 minute' THEN
      INSERT INTO weir.segment (log, segment, event) VALUES ('report', k.segment, 'closed');
    END IF;
    IF age < retention AND NOT (target IS NULL AND size >= bytes / 2) THEN
      RETURN NULL;
    END IF;
    -- A transaction that writes into a segment locks it, and then checks that it is active: once this lock is granted, none follows into it.
    EXECUTE format('LOCK TABLE weir.report_%s IN SHARE MODE', k.segment);
    INSERT INTO weir.segment (log, segment, event, upto) VALUES ('report', k.segment, 'carried', 0);
    RETURN 'closed report ' || k.segment;
  END IF;

  -- Job by job, in the order of their ids.
  ids := ARRAY(SELECT r.job_id FROM weir.report r WHERE r.segment = k.segment AND r.job_id > k.upto ORDER BY r.job_id LIMIT max_rows);
  IF ids = '{}' THEN
    EXECUTE format('LOCK TABLE weir.report_%s IN ACCESS EXCLUSIVE MODE NOWAIT', k.segment);
    EXECUTE format('TRUNCATE weir.report_%s', k.segment);
    INSERT INTO weir.segment (log, segment, event) VALUES ('report', k.segment, 'reclaimed');
    RETURN 'reclaimed report ' || k.segment;
  END IF;
  PERFORM weir._lock_log();
  INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint)
  SELECT i.id, n.claim, n.no, active, n.at, n.attempt, n.percent, n.message, n.checkpoint
  FROM (SELECT DISTINCT u.id FROM unnest(ids) u(id)) i
  CROSS JOIN LATERAL (
    (SELECT r.* FROM weir.report r WHERE r.job_id = i.id ORDER BY r.claim DESC, r.no DESC LIMIT 1)
    UNION  -- each under its own number: one between them may be committed later
    (SELECT r.* FROM weir.report r WHERE r.job_id = i.id AND r.checkpoint IS NOT NULL ORDER BY r.claim DESC, r.no DESC LIMIT 1)) n
  CROSS JOIN LATERAL weir._read_job(i.id, 1) j
  WHERE n.segment = k.segment AND j.state IN ('available', 'running', 'scheduled', 'failed');
  INSERT INTO weir.segment (log, segment, event, upto) VALUES ('report', k.segment, 'carried', ids[cardinality(ids)]);
  RETURN 'carried from report ' || k.segment;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- the segment is being read, or written: the next call tries again
END
$$;
CREATE FUNCTION weir._same_schedule(a weir.schedule, b weir.schedule) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT (a.schedule, a.missed, a.jitter, a.queue, a.kind, a.args, a.priority, a.max_attempts, a.meta, a.key) IS NOT DISTINCT FROM
         (b.schedule, b.missed, b.jitter, b.queue, b.kind, b.args, b.priority, b.max_attempts, b.meta, b.key) AND lower(a.time_zone COLLATE "C") = lower(b.time_zone COLLATE "C")
$$;
CREATE FUNCTION weir._seal(conditions jsonb, at jsonb) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- The number is the version of the places: increase it when their form changes.
  SELECT left(encode(sha256(convert_to(jsonb_build_array(s.value, c.system_identifier, d.oid::bigint, 5, conditions, at->0, at->1)::text, getdatabaseencoding())), 'hex'), 32)
  FROM weir.setting s, pg_control_system() c, pg_database d WHERE s.name = 'cursor_secret' AND d.datname = current_database()
$$;
CREATE FUNCTION weir._segment_bytes(segment integer) RETURNS bigint LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT sum(pg_total_relation_size('weir.' || t || '_' || _segment_bytes.segment))::bigint FROM unnest(ARRAY['job', 'batch', 'result', 'turn']) t
$$;
CREATE FUNCTION weir._segment_state(log text, segment integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce((
    SELECT s.event FROM weir.segment s WHERE s.log = _segment_state.log AND s.segment = _segment_state.segment
    ORDER BY s.no DESC LIMIT 1), 'reclaimed')
$$;
CREATE FUNCTION weir._select_where(states text[], queue text, kinds text[], meta jsonb, priority integer, enqueued_after timestamp with time zone, enqueued_before timestamp with time zone, key text, error text, after text, max_rows integer, flow bigint DEFAULT NULL::bigint, shape text DEFAULT NULL::text, finished_after timestamp with time zone DEFAULT NULL::timestamp with time zone, finished_before timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT ids bigint[], OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  on_page CONSTANT integer := 100;  -- arguments may be large, and a page is read as a whole
  p       record;
BEGIN
  ids := '{}';
  next := after;
  PERFORM weir._lock_log();
  FOR page IN 1..greatest(max_rows / on_page, 1) LOOP
    SELECT k.* INTO p FROM weir._read_page(states, queue, kinds, meta, key, next, least(max_rows, on_page), flow, from_copies => true) k;
    ids := ids || ARRAY(
      SELECT j.id FROM unnest(p.jobs) j
      WHERE (priority IS NULL OR j.priority = priority) AND (enqueued_after IS NULL OR j.enqueued_at >= enqueued_after) AND (enqueued_before IS NULL OR j.enqueued_at < enqueued_before)
        AND (error IS NULL OR strpos(j.error, error) > 0)
        AND (finished_after IS NULL OR coalesce(j.finished_at, weir._cancelled_at(j.id, j.queue)) >= finished_after)
        AND (finished_before IS NULL OR coalesce(j.finished_at, weir._cancelled_at(j.id, j.queue)) < finished_before)
        -- In a CASE, so that it comes in the end: it takes longer than all of the above.
        AND CASE WHEN shape IS NULL THEN true ELSE weir._has_shape(j.error, shape) END);
    next := p.next;
    EXIT WHEN next IS NULL;
  END LOOP;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir._set_aside(worker integer, lane bigint, seq bigint, ids bigint[], segments smallint[], fates text[], reasons text[], onces uuid[], flows bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
  SELECT _set_aside.lane, u.segment, _set_aside.worker, _set_aside.seq, clock_timestamp(),
         CASE u.fate WHEN 'dropped' THEN 'cancelled' ELSE 'released' END::weir.outcome, array_agg(u.id),
         CASE WHEN max(u.reason) <> '' THEN array_agg(nullif(u.reason, '')) END
  FROM unnest(_set_aside.ids, _set_aside.segments, _set_aside.fates, _set_aside.reasons) u(id, segment, fate, reason)
  WHERE u.fate <> 'run' GROUP BY u.segment, u.fate;
  INSERT INTO weir.seen (key, job, flow, ring)
  SELECT u.once, u.id, u.flow, pg_sequence_last_value('weir.active_seen') FROM unnest(_set_aside.ids, _set_aside.fates, _set_aside.onces, _set_aside.flows) u(id, fate, once, flow)
  WHERE u.fate = 'run' AND u.once IS NOT NULL AND NOT EXISTS (SELECT FROM weir.seen s WHERE s.key = u.once) ORDER BY u.once;
  PERFORM weir._arrive_ended(array_agg(u.flow), array_agg(u.reason)) FROM unnest(_set_aside.flows, _set_aside.fates, _set_aside.reasons) u(flow, fate, reason) WHERE u.fate = 'dropped';
  IF _set_aside.fates && ARRAY['again'] THEN
    PERFORM pg_current_xact_id();
    INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
    -- With a key, it is put back in front of those that come after it.
    SELECT j.id, pg_current_xact_id(), j.enqueued_at, now(), CASE WHEN j.key IS NULL THEN j.lane ELSE j.lane | 4 END, j.attempt, j.max_attempts, j.put_off + 1, (SELECT a.last_value FROM weir.active_job a),
           j.kind, j.args, j.meta, j.errors, j.unique_key, nextval('weir.job_id') * 2 + (j.unique_no & 1), j.unique_until, j.key, j.flow
    FROM unnest(_set_aside.ids, _set_aside.segments, _set_aside.fates) u(id, segment, fate)
    CROSS JOIN LATERAL (SELECT j.* FROM weir.job j WHERE j.segment = u.segment AND j.id = u.id ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    WHERE u.fate = 'again';
  END IF;
END
$$;
CREATE FUNCTION weir._set_twins_aside() RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
DECLARE
  n integer;
BEGIN
  UPDATE weir.queue q SET aside = NOT t.is_busy
  FROM (
    SELECT k.id, bool_or(l.is_busy) AS is_busy
    FROM weir.queue k CROSS JOIN generate_series(0, 3) p CROSS JOIN LATERAL (
      SELECT EXISTS (SELECT FROM weir.job j WHERE j.lane = (k.id::bigint << 39) + p AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0)))
          OR EXISTS (SELECT FROM unnest(s.pending, s.pending_after) w(xid, after) CROSS JOIN LATERAL (
               SELECT FROM weir.job j WHERE j.lane = (k.id::bigint << 39) + p AND j.xid = w.xid AND j.id > w.after LIMIT 1) j)
          -- A running job may be tried again.
          OR NOT k.aside AND EXISTS (SELECT FROM weir.batch b CROSS JOIN unnest(b.ids) i(id) WHERE b.lane = (k.id::bigint << 39) + p AND NOT EXISTS (
               SELECT FROM weir.result r WHERE r.lane = b.lane AND r.seq = b.seq AND i.id = ANY (r.ids))) AS is_busy
      FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = (k.id::bigint << 39) + p ORDER BY b.seq DESC LIMIT 1) s ON true) l
    WHERE EXISTS (SELECT FROM weir.queue o WHERE o.name = k.name AND o.id < k.id)
    GROUP BY k.id) t
  WHERE q.id = t.id AND q.aside = t.is_busy;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n > 0 THEN
    PERFORM nextval('weir.control');  -- workers poll all queues
  END IF;
  RETURN n;
END
$$;
CREATE FUNCTION weir._settle_sums(sums weir.fold[], was weir.fold[], at timestamp with time zone) RETURNS weir.fold[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
  RETURN ARRAY(
    SELECT ROW(t.flow, t.cut, t.jobs, t.completed, t.failed, t.cancelled + k.skips::integer, t.generation + (k.starts_over AND t.fired_at IS NOT NULL)::integer,
               t.is_sealed, t.is_cancelled, t.is_abandoned,
               CASE WHEN t.is_sealed AND t.jobs = t.completed + t.failed + t.cancelled + k.skips::integer THEN coalesce(CASE WHEN NOT k.starts_over THEN t.fired_at END, _settle_sums.at) END,
               t.waits, t.broken, k.skips, CASE WHEN t.job IS NULL AND t.waits = 0 AND NOT k.skips AND t.jobs > 0 THEN nextval('weir.job_id') ELSE t.job END, t.counters, t.cancelled_no, t.retried_no)::weir.fold
    FROM unnest(_settle_sums.sums) WITH ORDINALITY t
    CROSS JOIN LATERAL (SELECT coalesce(t.job IS NULL AND t.jobs > 0 AND (t.broken > 0 OR t.waits IS NOT NULL AND t.is_cancelled), false) AS skips OFFSET 0) s
    -- One that had ended as cancelled, and is cancelled no more, ends anew.
    CROSS JOIN LATERAL (SELECT s.skips, NOT s.skips AND (t.is_skipped OR NOT t.is_cancelled AND coalesce((_settle_sums.was[t.ordinality]).is_cancelled, false)) AS starts_over OFFSET 0) k
    ORDER BY t.ordinality);
END
$$;
CREATE FUNCTION weir._settle(worker integer, OUT relogged integer, OUT more boolean, OUT jobs bigint[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  why text;
BEGIN
  PERFORM weir._check_isolation('settle'), weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158552, _settle.worker);
  SELECT w.name INTO why FROM weir.worker w WHERE w.id = _settle.worker AND w.fenced;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'weir: worker % is not fenced', _settle.worker USING ERRCODE = '22023', HINT = 'Call weir._fence first.';
  ELSIF EXISTS (SELECT FROM weir.settled s WHERE s.worker = _settle.worker AND s.no = 9223372036854775807) THEN
    relogged := 0;
    more := false;
    jobs := '{}';
  ELSE
    SELECT r.relogged, r.next IS NOT NULL, r.jobs INTO relogged, more, jobs FROM weir._relog(_settle.worker, 'lost', why, '{}', '{}', '{}', '{}', 0) r;
  END IF;
END
$$;
CREATE FUNCTION weir._shape_of(error text) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  trace  CONSTANT text := 'Traceback (most recent call last):';
  frames CONSTANT text := E'\n  File "';
  line   text;
  tail   text;
  frame  integer;
BEGIN
  IF left(_shape_of.error, 18) = '{"weir.encrypted":' THEN
    RETURN '<encrypted>';
  END IF;
  -- The line with the message: of a traceback of Python's the first one after the last frame, whose lines are indented, otherwise the text's first. Below it
  -- drivers add more, such as DETAIL and a caret. Without a frame in sight it is the last line, but for what a retry rule has added.
  line := coalesce(substring(left(_shape_of.error, 1000) FROM E'[^[:space:]][^\\r\\n]*'), '');
  IF right(rtrim(line), length(trace)) = trace THEN
    line := left(rtrim(line), -length(trace));
    tail := regexp_replace(right(_shape_of.error, 2000), E'\n\\[[a-z]+ by retry rule [^\n]*$', '');
    frame := strpos(reverse(tail), reverse(frames));
    line := line || coalesce(
      CASE WHEN frame > 0 THEN substring(right(tail, frame + length(frames) - 1) FROM E'\n([^[:space:]][^\\r\\n]*)') END,
      substring(rtrim(tail, E' \r\n\t') FROM E'[^\\r\\n]*$'), '');
  END IF;
  line := left(line, 300);
  -- Most lines have little of this, and to look for a character takes a tenth of the time of a regular expression.
  IF strpos(line, '-') > 0 THEN
    line := regexp_replace(line, E'\\m[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\\M', '<uuid>', 'g');
    line := regexp_replace(line, '[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?([.,][0-9]+)?(Z| ?[+-][0-9]{2}(:?[0-9]{2})?)?', '<time>', 'g');
  END IF;
  IF strpos(line, '@') > 0 THEN
    line := regexp_replace(line, '[^[:space:]<>"''@,;:()]+@[^[:space:]<>"''@,;:()]+', '<email>', 'g');
  END IF;
  IF strpos(line, '"') > 0 THEN
    line := regexp_replace(line, E'"([^"\\\\]|\\\\.)*"', '"<text>"', 'g');
  END IF;
  IF strpos(line, '`') > 0 THEN
    line := regexp_replace(line, '`[^`]*`', '`<text>`', 'g');
  END IF;
  IF strpos(line, '''') > 0 THEN
    line := regexp_replace(line, E'(^|[^[:alnum:]])''([^''\\\\]|\\\\.)*''(?![[:alnum:]])', E'\\1''<text>''', 'g');  -- not the apostrophe of a word
  END IF;
  IF strpos(line, '://') > 0 THEN
    line := regexp_replace(line, E'(\\m[a-z][a-z0-9+.-]*://[^/[:space:]"''?#)]+)[/?#][^[:space:]"'')]*', E'\\1/<path>', 'gi');
  END IF;
  IF line ~ '[0-9]' THEN
    IF strpos(line, '0x') > 0 THEN
      line := regexp_replace(line, E'\\m0x[0-9a-fA-F]+\\M', '<hex>', 'g');
    END IF;
    line := regexp_replace(line, E'\\m(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\\M', '<hex>', 'g');
    IF strpos(line, '/') > 0 OR strpos(line, E'\\') > 0 THEN
      line := regexp_replace(line, E'([/\\\\])[^[:space:]/\\\\"'':)]*[0-9][^[:space:]/\\\\"'':)]*(?=[/\\\\])', E'\\1<n>', 'g');
    END IF;
    -- Numbers, but not codes: status 404, SQLSTATE 23505, [Errno 111]. Parts of an address, a version or a list are one.
    line := regexp_replace(line, E'(?<!\\m(?:status|code|http|https|sqlstate|errno|exit)[ :=#]{0,2})(?<![0-9])[0-9]+([.,:][0-9]+)*', '<n>', 'gi');
  END IF;
  RETURN btrim(line);
END
$$;
CREATE FUNCTION weir._silent() RETURNS SETOF integer LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT u.id
  FROM (SELECT c.clock, pg_sequence_last_value('weir.watched') + abs((extract(epoch FROM c.clock) * 1000)::bigint - pg_sequence_last_value('weir.watched_at')) AS reading,
               weir._first_look() AS first
        -- In a long transaction, last words are those of now, or those of its snapshot.
        FROM (SELECT CASE WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN now() ELSE clock_timestamp() END OFFSET 0) c(clock) OFFSET 0) r
  CROSS JOIN weir._unattended() u
  -- A standby has none of the locks; rescuers record the workers that they miss.
  WHERE NOT (pg_is_in_recovery() AND coalesce(u.says, 'attends') = 'attends')
  -- A worker is silent if a rescuer would consider it silent: by the counter that rescuing advances. If no one rescues, the counter stands still, and the
  -- clock is added; a clock that was set back or forward makes no worker silent, because the counter's own reading of it follows within a second if someone
  -- rescues. From before the first reading since the server started, only the time for which the counter has stood still counts.
    AND greatest(r.clock - u.seen_at, u.seen_at - r.clock) > u.lease
    AND (r.reading - greatest(u.watched, r.first)) * interval '1 ms' > u.lease + interval '2 seconds'
$$;
CREATE FUNCTION weir._skip_ended(worker integer, lane bigint, filters weir.cancellation_where[], to_judge boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  max_batches CONSTANT integer := 10;   -- in one call
  max_size    CONSTANT integer := 960;  -- as in a claim
  max_skip    CONSTANT integer := 64;
  last_id     CONSTANT bigint := 9223372036854775807;
  size        integer := CASE WHEN to_judge THEN 30 ELSE max_size END;
  snapshot    pg_snapshot;
  top         xid8;
  running     xid8[];
  skip        xid8[];
  below       integer;
  last        record;
  next        record;
  fates       record;   -- of those that are ended: ids and reasons
  length      integer;  -- of the run of jobs at the head that are ended
  this_seq    bigint;
BEGIN
  FOR batch IN 1..max_batches LOOP
    SELECT b.seq, b.pos_xid, b.pos_id, b.total, b.pending INTO last FROM weir.batch b WHERE b.lane = _skip_ended.lane ORDER BY b.seq DESC LIMIT 1;
    IF NOT FOUND THEN
      SELECT 0::bigint AS seq, '0'::xid8 AS pos_xid, 0::bigint AS pos_id, 0::bigint AS total, NULL::xid8[] AS pending INTO last;
    END IF;
    snapshot := pg_current_snapshot();
    top := least(pg_snapshot_xmax(snapshot), pg_current_xact_id_if_assigned());  -- what this transaction logs must not lie before the position
    running := ARRAY(SELECT pg_snapshot_xip(snapshot));
    below := width_bucket(last.pos_xid, running);
    IF last.pos_xid >= top OR last.pending <> running[1 : below] THEN
      RETURN false;  -- the claim reports the former; of the latter, rows of transactions that have ended come first, and the claim reads them
    END IF;
    skip := running[below + 1 : below + max_skip];
    SELECT array_agg(p.segment) AS segments, array_agg(p.xid) AS xids, array_agg(p.id) AS ids, array_agg(p.attempt) AS attempts, array_agg(p.kind) AS kinds,
           array_agg(p.meta) AS metas, array_agg(p.enqueued_at) AS enqueued, array_agg(p.unique_key) AS keys, array_agg(p.unique_no) AS nos, array_agg(p.unique_until) AS untils, array_agg(p.flow) AS flows INTO next
    FROM (
      SELECT j.* FROM generate_series(0, cardinality(skip)) i
      CROSS JOIN LATERAL (
        SELECT j.segment, j.xid, j.id, j.attempt, j.kind, j.meta, j.enqueued_at, j.unique_key, j.unique_no, j.unique_until, j.flow FROM weir.job j
        WHERE j.lane = _skip_ended.lane AND j.xid < coalesce(skip[i + 1], top)
          AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE last.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE last.pos_id END)
          AND (cardinality(skip) < max_skip OR pg_visible_in_snapshot(j.xid, snapshot))
        ORDER BY j.xid, j.id LIMIT size) j
      LIMIT size) p;
    SELECT array_agg(e.id ORDER BY e.nr) AS ids, array_agg(e.reason ORDER BY e.nr) AS reasons INTO fates
    FROM weir._ended_among(_skip_ended.filters, to_judge, next.ids, next.xids, next.attempts, next.kinds, next.metas, next.enqueued, NULL, NULL, next.keys, next.nos, next.untils, next.flows) e;
    -- The rows up to the first one that is not ended.
    length := (SELECT coalesce(min(u.nr) - 1, cardinality(next.ids)) FROM unnest(next.ids, fates.ids) WITH ORDINALITY u(id, gone, nr) WHERE u.gone IS DISTINCT FROM u.id);
    IF coalesce(length, 0) = 0 THEN
      RETURN false;
    END IF;
    this_seq := greatest(last.seq, (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) << 40) + 1;  -- as in a claim
    WITH made AS (
      INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, pending, ids, pending_after, flows)
      SELECT _skip_ended.lane, s.segment, s.segment, _skip_ended.worker, this_seq, next.xids[1], next.xids[length], next.xids[length], next.ids[length], last.total + length, now(),
             o.no, CASE WHEN o.pending > 0 THEN running[1 : o.pending] END, s.ids, CASE WHEN o.pending > 0 THEN array_fill(0::bigint, ARRAY[o.pending]) END, s.flows
      FROM (SELECT nextval('weir.batch_no') AS no, width_bucket(next.xids[length], running) AS pending OFFSET 0) o
      CROSS JOIN (SELECT p.segment, array_agg(p.id) AS ids, weir._flows_of(array_agg(p.flow)) AS flows
                  FROM unnest(next.segments[1 : length], next.ids[1 : length], next.flows[1 : length]) p(segment, id, flow) GROUP BY p.segment) s
      RETURNING segment, ids
    )
    INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids, errors)
    SELECT _skip_ended.lane, m.segment, _skip_ended.worker, this_seq, clock_timestamp(), 'cancelled', m.ids,
           CASE WHEN array_to_string(fates.reasons, '') <> '' THEN ARRAY(SELECT nullif(fates.reasons[array_position(fates.ids, i.id)], '') FROM unnest(m.ids) WITH ORDINALITY i(id, nr) ORDER BY i.nr) END
    FROM made m;
    PERFORM weir._arrive_ended(next.flows[1 : length], fates.reasons[1 : length]);
    IF length < size THEN
      RETURN false;
    END IF;
    size := least(2 * size, max_size);
  END LOOP;
  RETURN true;
END
$$;
CREATE FUNCTION weir._snapshot_of_others(s pg_snapshot DEFAULT pg_current_snapshot()) RETURNS pg_snapshot LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  own xid8 := pg_current_xact_id_if_assigned();
BEGIN
  IF own IS NULL OR NOT pg_visible_in_snapshot(own, s) THEN
    RETURN s;
  END IF;
  RETURN (pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmax(s)::text || ':'
          || (SELECT string_agg(u.x::text, ',' ORDER BY u.x) FROM (SELECT pg_snapshot_xip(s) AS x UNION ALL SELECT own) u))::pg_snapshot;
END
$$;
CREATE FUNCTION weir._snapshot_upto(since pg_snapshot, snapshot pg_snapshot, upto xid8) RETURNS pg_snapshot LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT (coalesce((array_agg(s.xip ORDER BY s.xip) FILTER (WHERE s.xip IS NOT NULL))[1]::text, m.top::text) || ':' || m.top::text || ':' || coalesce(string_agg(s.xip::text, ',' ORDER BY s.xip), ''))::pg_snapshot
  FROM (SELECT greatest(pg_snapshot_xmax(_snapshot_upto.since), (_snapshot_upto.upto::text::bigint + 1)::text::xid8) AS top) m
  LEFT JOIN LATERAL (
    SELECT x AS xip FROM pg_snapshot_xip(_snapshot_upto.snapshot) x WHERE x < m.top
    UNION  -- of those that ended in between, the ones that come after upto are not seen yet
    SELECT x FROM pg_snapshot_xip(_snapshot_upto.since) x WHERE x > _snapshot_upto.upto) s ON true
  GROUP BY m.top
$$;
CREATE FUNCTION weir._spans(from_xid xid8, snapshot pg_snapshot) RETURNS TABLE(low xid8, high xid8) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT s.low, s.high
  FROM (
    SELECT b.x AS low, lead(b.edge) OVER (ORDER BY b.x, b.edge) AS high
    FROM (
      SELECT _spans.from_xid AS x, _spans.from_xid AS edge
      UNION ALL
      SELECT (x::text::bigint + 1)::text::xid8, x FROM pg_snapshot_xip(_spans.snapshot) x WHERE x >= _spans.from_xid
      UNION ALL
      SELECT pg_snapshot_xmax(_spans.snapshot), pg_snapshot_xmax(_spans.snapshot)) b) s
  WHERE s.low < s.high AND s.low >= _spans.from_xid
$$;
CREATE FUNCTION weir._started(by_second double precision, burst integer, next_start timestamp with time zone, at timestamp with time zone, n integer) RETURNS timestamp with time zone LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN weir._next_start(_started.by_second, _started.burst, _started.next_start, _started.at) + _started.n / _started.by_second * interval '1 second';
END
$$;
CREATE FUNCTION weir._start(name text, queues text[], lease interval DEFAULT '00:00:30'::interval) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  new_id integer;
  q      text;
BEGIN
  IF _start.lease IS NULL OR _start.lease < interval '1 second' OR _start.lease > interval '5 minutes' THEN  -- the range that the ring of last words covers
    RAISE EXCEPTION 'weir: a worker''s lease must be 1 second to 5 minutes, got %', coalesce(_start.lease::text, 'null') USING ERRCODE = '22023';
  ELSIF length(_start.name) > 200 THEN
    RAISE EXCEPTION 'weir: worker name too long: % characters, at most 200 are allowed', length(_start.name) USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_cluster();
  FOREACH q IN ARRAY coalesce(_start.queues, '{}') LOOP
    PERFORM weir._check_job(q, 'any', '{}', 2, 1, NULL);
    PERFORM weir._queue_id(q);
  END LOOP;
  -- A failover or a restore may set the sequence back while an earlier process is alive, so each timeline has its own ids. The commit is
  -- synchronous, because no worker may use an id that a crash can undo.
  PERFORM weir._commit_synchronously();
  new_id := (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) % 127 * 16777216 + nextval('weir.worker_id') % 16777216;
  INSERT INTO weir.worker (id, fenced, at, lease, name, queues)
  VALUES (new_id, false, clock_timestamp(), _start.lease, coalesce(_start.name, ''), coalesce(_start.queues, '{}'));
  PERFORM weir._note_word(new_id, 'beats', 0);  -- without a lock: no other session knows the id yet
  RETURN new_id;
END
$$;
CREATE FUNCTION weir._starts_at(by_second double precision, burst integer, next_start timestamp with time zone, at timestamp with time zone) RETURNS timestamp with time zone LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN weir._next_start(_starts_at.by_second, _starts_at.burst, _starts_at.next_start, _starts_at.at)
         + (least(_starts_at.burst, greatest(1, floor(_starts_at.by_second / 100))) - _starts_at.burst) / _starts_at.by_second * interval '1 second';
END
$$;
CREATE FUNCTION weir._starts_now(by_second double precision, burst integer, next_start timestamp with time zone, at timestamp with time zone) RETURNS integer LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  RETURN floor(_starts_now.burst + 1e-6 - _starts_now.by_second * extract(epoch FROM
    weir._next_start(_starts_now.by_second, _starts_now.burst, _starts_now.next_start, _starts_now.at) - _starts_now.at)::double precision)::integer;
END
$$;
CREATE FUNCTION weir._state_of(lane bigint, late xid8[] DEFAULT NULL::xid8[], OUT seq bigint, OUT pos_xid xid8, OUT pos_id bigint, OUT pending xid8[], OUT pending_after bigint[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  IF _state_of.lane & 549755813880 = 0 THEN
    SELECT b.seq, b.pos_xid, b.pos_id, b.pending, b.pending_after INTO seq, pos_xid, pos_id, pending, pending_after
    FROM weir.batch b WHERE b.lane = _state_of.lane ORDER BY b.seq DESC LIMIT 1;
    RETURN;
  END IF;
  SELECT t.seq, t.pos_xid, t.pos_id, t.pending, t.pending_after INTO seq, pos_xid, pos_id, pending, pending_after
  FROM weir.turn t WHERE t.lane = _state_of.lane ORDER BY t.seq DESC LIMIT 1;
  IF seq IS NULL THEN
    RETURN;
  END IF;
  IF late IS NULL THEN
    late := weir._late_of((SELECT q.name FROM weir.queue q WHERE q.id = (_state_of.lane >> 39)::integer));
  END IF;
  IF late[1] < pos_xid THEN
    SELECT array_agg(p.xid ORDER BY p.xid), array_agg(p.after ORDER BY p.xid) INTO pending, pending_after
    FROM (SELECT u.* FROM unnest(pending, pending_after) u(xid, after)
          UNION ALL
          SELECT x, 0 FROM unnest(late) x WHERE x < pos_xid AND EXISTS (SELECT FROM weir.job j WHERE j.lane = _state_of.lane AND j.xid = x)) p;
  END IF;
END
$$;
CREATE FUNCTION weir._step_operations(max_rows integer DEFAULT 500, OUT operation bigint, OUT changed integer, OUT state text, OUT is_open boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=2s
AS $$
#variable_conflict use_column
DECLARE
  this  bigint;
  o     weir.operation;
  last  weir.operation_step;
  f     record;
  next  text;
  wrong text;  -- the column that an error names
  why   text;  -- the operation has failed
BEGIN
  PERFORM weir._check_isolation('step_operations');
  is_open := false;
  IF pg_sequence_last_value('weir.operation_id') IS NULL THEN
    RETURN;  -- there was never one
  END IF;
  PERFORM weir._check_cluster();
  LOCK TABLE weir.operation, weir.operation_step IN ACCESS SHARE MODE;
  FOR this IN SELECT k FROM weir._open_operations() k LOOP
    is_open := true;
    CONTINUE WHEN NOT pg_try_advisory_xact_lock(1464158562, (this % 2147483648)::integer);
    -- With a new snapshot: whoever held the lock before may have done a step.
    SELECT s.* INTO last FROM weir.operation_step s WHERE s.operation = this ORDER BY s.no DESC LIMIT 1;
    CONTINUE WHEN last.state <> 'running';
    SELECT k.* INTO o FROM weir.operation k WHERE k.id = this;
    f := weir._conditions(o.filter);
    BEGIN
      CASE o.what
        WHEN 'retry' THEN
          SELECT r.retried, r.next INTO changed, next FROM weir.retry_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.error, f.states, last.after,
            _step_operations.max_rows, f.key, f.shape, f.finished_after, least(f.finished_before, o.at)) r;
        WHEN 'delete' THEN
          SELECT r.deleted, r.next INTO changed, next FROM weir.delete_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.error, last.after,
            _step_operations.max_rows, f.key, f.shape, f.finished_after, least(f.finished_before, o.at)) r;
        WHEN 'move' THEN
          SELECT r.moved, r.next INTO changed, next FROM weir.move_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, least(f.enqueued_before, o.at), o.to_queue, o.to_priority, last.after,
            _step_operations.max_rows, f.key) r;
      END CASE;
      state := CASE WHEN next IS NULL THEN 'done' ELSE 'running' END;
    EXCEPTION WHEN lock_not_available THEN
      CONTINUE;  -- with the next operation; a later call tries this one again
    WHEN OTHERS THEN
      IF SQLSTATE ~ '^(08|0A|25|40|53|55|57|58|XX|WR)' THEN
        RAISE;  -- not because of the operation: another call tries again
      END IF;
      GET STACKED DIAGNOSTICS wrong = COLUMN_NAME;
      changed := 0;
      next := NULL;
      IF last.after IS NOT NULL AND wrong = 'after' THEN
        state := 'running';  -- from the beginning: the cursor comes from another cluster or version, and what is done is not in the list any more
      ELSE
        state := 'failed';
        why := SQLERRM;
      END IF;
    END;
    INSERT INTO weir.operation_step (operation, no, at, state, changed, after, error)
    VALUES (this, last.no + 1, clock_timestamp(), _step_operations.state, last.changed + _step_operations.changed, next, left(why, 2000));
    operation := this;
    RETURN;
  END LOOP;
  PERFORM weir._mark_operations();
END
$$;
CREATE FUNCTION weir._stop_claims(caller text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  slept text;
  turn  integer := 50;  -- in ms
BEGIN
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: % was called inside a transaction that has written', caller
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: no job of any queue is claimed until its transaction ends.';
  ELSIF clock_timestamp() - now() > interval '2 seconds' THEN
    RAISE EXCEPTION 'weir: % was called inside a transaction that has been open for %', caller, clock_timestamp() - now()
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: no job of any queue is claimed until its transaction ends. If you did, try again.';
  END IF;
  PERFORM weir._hold_briefly();
  -- Claims that come while it waits would wait behind it: so it waits in short turns. They get longer, because on a busy server a claim may take longer.
  LOOP
    BEGIN
      PERFORM set_config('lock_timeout', turn || 'ms', true);
      PERFORM pg_advisory_xact_lock(1464158547, 0);
      PERFORM set_config('lock_timeout', '5s', true);
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      IF clock_timestamp() - now() > interval '5 seconds' THEN
        RAISE EXCEPTION 'weir: % found claims in progress for 5 seconds', caller
          USING ERRCODE = '55P03', HINT = 'Try again. A transaction that called weir.retry or weir.take, or a prepared one, may have been left open.';
      END IF;
    END;
    slept := pg_sleep(0.02 + random() / 20);
    turn := least(2 * turn, 1000);
  END LOOP;
END
$$;
CREATE FUNCTION weir._surveyed(max_rows integer DEFAULT 10000) RETURNS weir.survey LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
AS $$
DECLARE
  s     weir.survey;
  fresh bigint[];
  own   bigint[];  -- the lanes in which the caller's transaction has logged
BEGIN
  SELECT v.* INTO s FROM weir.survey v ORDER BY v.no DESC LIMIT 1;
  -- Transaction ids of another cluster can't be compared, and of jobs that were logged and reclaimed since, only the totals are left.
  IF pg_snapshot_xmax(s.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) AND s.reclaimed = weir._last_reclaimed()
     AND (SELECT k.value FROM weir.setting k WHERE k.name = 'cluster') = (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    fresh := weir._fresh_lanes(s.snapshot, pg_current_snapshot(), _surveyed.max_rows);
    own := ARRAY(SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid = pg_current_xact_id_if_assigned() LIMIT _surveyed.max_rows + 1);
    IF fresh IS NOT NULL AND cardinality(own) <= _surveyed.max_rows THEN
      s.waiting := ARRAY(SELECT w FROM unnest(s.waiting) w UNION SELECT f FROM unnest(fresh || own) f WHERE f >> 39 <= s.upto AND f & 549755813880 = 0);
      RETURN s;
    END IF;
  END IF;
  RETURN ROW(coalesce(s.no, 0), 0, NULL, 0, 0, '{}', '{}', '{}', '{}')::weir.survey;
END
$$;
CREATE FUNCTION weir._take_along(INOUT sums weir.fold[], INOUT was weir.fold[], cut bigint) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  this record;
  f    weir.fold;
BEGIN
  FOR this IN
    WITH RECURSIVE changed AS MATERIALIZED (
      SELECT n.flow, n.is_cancelled, CASE WHEN n.is_cancelled THEN n.cancelled_no ELSE n.retried_no END AS no
      FROM unnest(_take_along.sums) WITH ORDINALITY n
      WHERE n.is_cancelled <> coalesce((_take_along.was[n.ordinality]).is_cancelled, false)
    ), within AS (
      SELECT c.flow, c.flow AS top, c.is_cancelled, c.no, 0 AS depth FROM changed c
      UNION ALL
      SELECT d.id, w.top, w.is_cancelled, w.no, w.depth + 1 FROM within w CROSS JOIN LATERAL (SELECT d.id FROM weir.flow d WHERE d.parent = w.flow OFFSET 0) d
    )
    -- Of several, the outermost decides: it has the smallest id.
    SELECT k.flow, max(k.nr) AS nr, (array_agg(k.is_cancelled ORDER BY k.top) FILTER (WHERE k.nr IS NULL))[1] AS is_cancelled,
           (array_agg(k.no ORDER BY k.top) FILTER (WHERE k.nr IS NULL))[1] AS no
    FROM (SELECT w.flow, NULL::bigint AS nr, w.top, w.is_cancelled, w.no FROM within w WHERE w.depth > 0
          UNION ALL
          SELECT n.flow, n.ordinality, NULL, NULL, NULL
          FROM unnest(_take_along.sums) WITH ORDINALITY n
          WHERE EXISTS (SELECT FROM changed)) k
    GROUP BY k.flow HAVING bool_or(k.nr IS NULL)
  LOOP
    IF this.nr IS NOT NULL THEN
      f := sums[this.nr];
    ELSE
      SELECT p.* INTO f FROM weir.fold p WHERE p.flow = this.flow ORDER BY p.cut DESC LIMIT 1;
      CONTINUE WHEN NOT FOUND;  -- its first count looks at the flow around it
    END IF;
    CONTINUE WHEN f.is_cancelled = this.is_cancelled OR this.is_cancelled AND (f.fired_at IS NOT NULL OR f.is_sealed AND f.jobs = f.completed + f.failed + f.cancelled);
    IF this.nr IS NULL THEN
      this.nr := cardinality(sums) + 1;
      was[this.nr] := f;
      f.cut := _take_along.cut;
      f.cancelled := f.cancelled - f.is_skipped::integer;
    END IF;
    IF this.is_cancelled THEN
      f.cancelled_no := greatest(f.cancelled_no, this.no);
    ELSE
      f.retried_no := greatest(f.retried_no, this.no);
    END IF;
    f.is_cancelled := coalesce(f.cancelled_no > coalesce(f.retried_no, 0), false);
    f.is_sealed := f.is_sealed OR f.is_cancelled;
    sums[this.nr] := f;
  END LOOP;
END
$$;
CREATE FUNCTION weir._take_back(INOUT sums weir.fold[], INOUT was weir.fold[], INOUT taken boolean[], settled weir.fold[], cut bigint, OUT more boolean) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  over record;  -- those that start over: their places, parents, names, whether they are tasks, and as what they had ended
  this record;
  f    weir.fold;
BEGIN
  SELECT array_agg(k.nr) AS nrs, array_agg(d.parent) AS parents, array_agg(d.name) AS names, array_agg(d.task IS NOT NULL) AS tasks, array_agg(k.before) AS kinds INTO over
  FROM (SELECT n.flow, n.ordinality AS nr, weir._kind_of(_take_back.was[n.ordinality]) AS before
        FROM unnest(_take_back.settled) WITH ORDINALITY n
        WHERE _take_back.taken[n.ordinality] IS NOT TRUE AND (n.fired_at IS NULL OR n.generation <> (_take_back.was[n.ordinality]).generation) OFFSET 0) k
  CROSS JOIN LATERAL (SELECT d.parent, d.name, d.task FROM weir.flow d WHERE d.id = k.flow AND d.parent IS NOT NULL OFFSET 0) d
  WHERE k.before IS NOT NULL;
  more := over.nrs IS NOT NULL;
  IF NOT more THEN
    RETURN;
  END IF;
  FOR this IN SELECT u.nr FROM unnest(over.nrs) u(nr) LOOP
    taken[this.nr] := true;
  END LOOP;
  FOR this IN
    SELECT k.flow, max(k.nr) AS nr, sum(k.completed) AS completed, sum(k.failed) AS failed, sum(k.cancelled) AS cancelled, sum(k.waits) AS waits, sum(k.broken) AS broken
    FROM (SELECT u.parent AS flow, NULL::bigint AS nr, (u.kind = 'completed')::integer AS completed, (u.kind = 'failed')::integer AS failed, (u.kind = 'cancelled')::integer AS cancelled, 0 AS waits, 0 AS broken
          FROM unnest(over.parents, over.kinds) u(parent, kind)
          UNION ALL
          SELECT e.successor, NULL, 0, 0, 0, 1, (u.kind <> 'completed' AND NOT e.is_lenient)::integer FROM unnest(over.parents, over.names, over.tasks, over.kinds) u(parent, name, is_task, kind)
          CROSS JOIN LATERAL (SELECT e.* FROM weir.edge e WHERE e.flow = u.parent AND e.predecessor = u.name AND u.is_task OFFSET 0) e
          UNION ALL
          SELECT n.flow, n.ordinality, 0, 0, 0, 0, 0
          FROM unnest(_take_back.sums) WITH ORDINALITY n) k
    GROUP BY k.flow HAVING bool_or(k.nr IS NULL)
  LOOP
    IF this.nr IS NOT NULL THEN
      f := sums[this.nr];
    ELSE
      SELECT p.* INTO f FROM weir.fold p WHERE p.flow = this.flow ORDER BY p.cut DESC LIMIT 1;
      CONTINUE WHEN NOT FOUND;  -- its first count looks at those that it comes after
      this.nr := cardinality(sums) + 1;
      was[this.nr] := f;
      f.cut := _take_back.cut;
      f.cancelled := f.cancelled - f.is_skipped::integer;
    END IF;
    IF this.completed + this.failed + this.cancelled > 0 THEN
      f.completed := f.completed - this.completed;
      f.failed := f.failed - this.failed;
      f.cancelled := f.cancelled - this.cancelled;
      f.generation := f.generation + (f.fired_at IS NOT NULL)::integer;
      f.fired_at := NULL;
    END IF;
    f.waits := f.waits + this.waits;
    f.broken := f.broken - this.broken;
    sums[this.nr] := f;
  END LOOP;
END
$$;
CREATE FUNCTION weir._take_turns(name text, ring weir.ring, seq bigint, quota integer, before bigint, snapshot pg_snapshot) RETURNS SETOF weir.job LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
DECLARE
  unit      CONSTANT bigint  := 1048576;  -- of virtual time: a job's, at a weight of 1
  max_keys  CONSTANT integer := least(quota, 100);  -- with a turn in one call: they bound how long it takes
  max_rows  CONSTANT integer := 1000;     -- that lead, announced in one call; more only of one transaction, and these at once: see crowd
  max_lanes CONSTANT integer := greatest(50, 2 * max_keys);  -- they name
  max_stopped CONSTANT integer := 100;  -- that are looked at again in one call
  max_skip  CONSTANT integer := 4;
  last_id   CONSTANT bigint  := 9223372036854775807;
  key_mask  CONSTANT bigint  := 549755813880;  -- the bits of a key in a lane: see weir._key_bits
  ids       bigint[]    := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _take_turns.name);
  rings     bigint[]    := ARRAY(SELECT (q << 39) + 4 FROM unnest(ids) q);  -- the ring lanes of these
  active    smallint    := pg_sequence_last_value('weir.active_job');
  at        timestamptz := clock_timestamp();
  due       bigint[];       -- the keys whose rate may allow a turn now, as lanes
  due_upto  timestamptz;    -- at, or the time of the last one, if there are more
  lim       weir.queue_limit;
  seen      pg_snapshot := weir._snapshot_of_others(snapshot);
  top       xid8;
  skip      xid8[];         -- transactions in progress for so long that the claim before saw them too: they may be large
  lanes     bigint[];       -- with news: of each, and of each transaction, one
  xids      xid8[];
  read_upto xid8;           -- the last transaction that was read
  crowd     xid8;           -- the same, if more than max_rows of its rows lead: their lanes wait for their turns without being looked at one by one
  n_crowd   bigint := 0;    -- how many they are
  freed     bigint[];       -- keys of which an attempt has ended, as lanes without their forms
  stopped   bigint[];       -- keys that are looked at again for another reason, and may have a turn
  looked    weir.turn[];    -- their lanes
  forms     integer[];
  states    weir.turn[];    -- of the lanes that may have a turn, as they are with what is announced now; in the order of their turns
  may       boolean[];      -- it has a turn, if there is room
  changed   boolean[];      -- it differs from what is stored
  rooms     integer[];      -- how many each may start; 0: it has no turn in this call
  allowed   integer[];      -- of these, how many its limits allow
  shares    boolean[];      -- another lane of its key comes first, and may not use what it gets
  tries     timestamptz[];  -- when its rate allows one
  starts    timestamptz[];  -- its key's next_start
  chosen    integer;        -- the first so many of states have a turn
  popped    integer;        -- new keys that were left over by the last call, and may have a turn in this one
  newcomers bigint[];       -- those that this one leaves over
  offsets   double precision[];  -- when their turns begin, from the present virtual time on
  weights   double precision[];
  others    integer;        -- how many have a turn, but no place in this call
  size      integer;        -- the length of states
  has_weights boolean := EXISTS (SELECT FROM weir.key_weight w WHERE w.queue = _take_turns.name);
  leftover  record;
BEGIN
  SELECT l.* INTO lim FROM weir.queue_limit l WHERE l.name = _take_turns.name;

  -- What is new. Beyond max_rows it is left to the next claim, from the end of a transaction on.
  SELECT n.lanes, n.xids INTO lanes, xids FROM weir._key_news(ids, ring.arrived, seen, max_rows) n;
  read_upto := xids[max_rows];
  IF cardinality(lanes) > max_lanes THEN
    SELECT coalesce((SELECT n.xid FROM (SELECT u.xid, u.nr, count(*) FILTER (WHERE u.is_first) OVER (ORDER BY u.nr) AS n
                                        FROM (SELECT u.xid, u.nr, row_number() OVER (PARTITION BY u.lane ORDER BY u.nr) = 1 AS is_first
                                              FROM unnest(lanes, xids) WITH ORDINALITY u(lane, xid, nr)) u) n
                     WHERE n.n > max_lanes ORDER BY n.nr LIMIT 1), read_upto) INTO read_upto;
  END IF;
  IF read_upto IS NOT NULL THEN
    IF (SELECT count(*) > max_rows FROM (SELECT FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, read_upto) AND (j.lane >> 39, j.xid) <= (q.id, read_upto) OFFSET 0) j LIMIT max_rows + 1) l) THEN
      crowd := read_upto;
    END IF;
    SELECT array_agg(u.lane), array_agg(u.xid) INTO lanes, xids
    FROM (SELECT u.lane, u.xid FROM unnest(lanes, xids) u(lane, xid) WHERE u.xid < read_upto
          UNION ALL
          SELECT j.lane, read_upto FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, read_upto) AND (j.lane >> 39, j.xid) <= (q.id, read_upto) OFFSET 0) j WHERE crowd IS NULL) u;
    seen := weir._snapshot_upto(ring.arrived, seen, read_upto);
  END IF;
  top := pg_snapshot_xmax(seen);
  skip := CASE WHEN pg_snapshot_xmin(seen) < pg_snapshot_xmax(ring.arrived) THEN ARRAY(SELECT x FROM pg_snapshot_xip(seen) x WHERE NOT pg_visible_in_snapshot(x, ring.arrived) AND x < pg_snapshot_xmax(ring.arrived) ORDER BY x LIMIT max_skip) ELSE '{}' END;
  popped := least(cardinality(ring.newcomers), max_keys);
  forms := ARRAY(SELECT f FROM generate_series(0, 7) f WHERE (ring.forms | (SELECT coalesce(bit_or(1 << (u & 7)::integer), 0) FROM unnest(lanes) u)) & (1 << f) <> 0);
  IF lim.key_running IS NOT NULL THEN
    freed := ARRAY(
      SELECT DISTINCT (q.id << 39) + (l.lane & key_mask) FROM weir._ended_since(ring.arrived, seen) e
      CROSS JOIN LATERAL (SELECT r.lanes FROM weir.release r WHERE r.gate = lim.gate AND r.xid >= e.low AND r.xid < e.high
                            AND pg_visible_in_snapshot(r.xid, seen) AND r.lanes IS NOT NULL OFFSET 0) r
      CROSS JOIN unnest(CASE WHEN r.lanes = '{}' THEN ARRAY[NULL::bigint] ELSE r.lanes END) l(lane) CROSS JOIN unnest(ids) q(id));
  END IF;
  IF coalesce(lim.version, 0) <> ring.version OR array_position(freed, NULL) IS NOT NULL THEN
    -- Other limits than before, or a release without lanes: all keys that a limit has stopped are looked at again, some of them in each claim.
    ring.stopped_after := coalesce(ring.stopped_after, 0);
    ring.stopped_upto := ring.stopped_after;
    freed := array_remove(freed, NULL);
  END IF;
  IF ring.stopped_after IS NOT NULL THEN
    SELECT n.keys, n.after, n.upto INTO stopped, ring.stopped_after, ring.stopped_upto FROM weir._next_stopped(ids, ring.stopped_after, ring.stopped_upto, max_stopped) n;
    IF stopped <> '{}' AND (lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL) THEN
      -- Most may still not start any: these take no place from others.
      looked := ARRAY(SELECT t.t FROM unnest(stopped) s(lane) CROSS JOIN unnest(forms) g(form)
                      CROSS JOIN LATERAL (SELECT t FROM weir.turn t WHERE t.lane = s.lane + g.form ORDER BY t.seq DESC LIMIT 1) t WHERE (t.t).parked OR (t.t).again_at IS NOT NULL);
      stopped := ARRAY(
        SELECT DISTINCT k.lane & ~ 7::bigint
        FROM weir._limit_turns(lim, looked, array_fill(1, ARRAY[cardinality(looked)]), ids, rings, forms, ring.arrived, before, at) l
        CROSS JOIN LATERAL unnest(looked, l.allowed, l.tries) WITH ORDINALITY AS k(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, allowed, try_at, nr)
        WHERE k.allowed > 0 OR k.try_at <> coalesce(k.again_at, '-infinity'));
    END IF;
  END IF;

  -- Rows that others follow count no more.
  SELECT array_agg(t.lane ORDER BY t.again_at), CASE WHEN count(*) = max_rows THEN max(t.again_at) ELSE at END INTO due, due_upto
  FROM (SELECT t.lane, t.again_at FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (SELECT t.lane, t.seq, t.again_at FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.again_at BETWEEN ring.due AND at ORDER BY t.again_at OFFSET 0) t
        WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND n.seq > t.seq)
        LIMIT CASE WHEN cardinality(ids) > 1 THEN NULL ELSE max_rows END) t;

  -- Who may have a turn, in the order of the turns.
  WITH news AS MATERIALIZED (
    SELECT u.lane, array_agg(u.xid ORDER BY u.nr) AS xids, min(u.nr) AS nr
    FROM (SELECT u.lane, u.xid, min(u.nr) AS nr FROM unnest(lanes, xids) WITH ORDINALITY u(lane, xid, nr) GROUP BY u.lane, u.xid) u GROUP BY u.lane
  ), touched AS MATERIALIZED (
    SELECT u.lane, min(u.nr) AS nr, array_agg(u.xids) FILTER (WHERE u.xids IS NOT NULL) AS xids, bool_or(u.is_news) AS is_news, bool_or(u.is_freed) AS is_freed
    FROM (SELECT n.lane, n.nr, NULL::xid8[] AS xids, true AS is_news, false AS is_freed FROM unnest(ring.newcomers[: popped]) WITH ORDINALITY n(lane, nr)
          UNION ALL SELECT n.lane, popped + n.nr, n.xids, true, false FROM news n
          UNION ALL SELECT f.lane + g.form, 0, NULL, false, true FROM unnest(freed) f(lane) CROSS JOIN unnest(forms) g(form)
          UNION ALL SELECT d.lane, 0, NULL, false, false FROM unnest(due) d(lane)
          UNION ALL SELECT s.lane + g.form, NULL, NULL, false, true FROM unnest(stopped) s(lane) CROSS JOIN unnest(forms) g(form)) u  -- behind new ones
    GROUP BY u.lane
  ), stored AS MATERIALIZED (
    SELECT k.lane AS of_lane, k.nr, k.is_news, k.is_freed, t.*, n.late
    FROM touched k
    LEFT JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = k.lane ORDER BY t.seq DESC LIMIT 1) t ON true
    CROSS JOIN LATERAL (
      SELECT array_agg(x ORDER BY x) AS late
      FROM (SELECT unnest(k.xids) AS x UNION ALL SELECT crowd WHERE EXISTS (SELECT FROM weir.job j WHERE j.lane = k.lane AND j.xid = crowd)) x WHERE x < t.pos_xid) n
  ), able AS (
    SELECT s.of_lane, s.pos_xid, s.pos_id, greatest(coalesce(s.tag, 0), ring.tag) AS tag, coalesce(s.waits, false) AS waits,
           coalesce(s.parked AND NOT s.is_freed, false) AS parked,
           s.pending || s.late AS pending, CASE WHEN s.late IS NOT NULL THEN s.pending_after || array_fill(0::bigint, ARRAY[cardinality(s.late)]) ELSE s.pending_after END AS pending_after,
           s.open, s.next_start, CASE WHEN s.again_at > at AND NOT s.is_freed THEN s.again_at END AS again_at,
           s.late IS NOT NULL OR s.is_freed OR s.again_at <= at AS is_changed, s.nr,
           s.seq IS NULL OR s.waits OR s.is_freed OR NOT s.parked AND s.again_at IS NULL OR s.again_at <= at AS has_turn
    FROM stored s
    WHERE s.is_news AND (s.late IS NOT NULL OR s.seq IS NULL OR NOT s.waits AND NOT s.parked AND s.again_at IS NULL) OR s.is_freed AND (s.parked OR s.again_at IS NOT NULL) OR s.again_at <= at
  ), head AS MATERIALIZED (
    SELECT t.*, crowd < t.pos_xid AND EXISTS (SELECT FROM weir.job j WHERE j.lane = t.lane AND j.xid = crowd) AS is_late FROM unnest(ids) q(id)
    CROSS JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= ring.tag ORDER BY t.tag OFFSET 0) t
    WHERE NOT EXISTS (SELECT FROM weir.turn n WHERE n.lane = t.lane AND (n.seq, n.segment) > (t.seq, t.segment))  -- reclaiming may have repeated it
      AND t.lane NOT IN (SELECT a.of_lane FROM able a)
    LIMIT CASE WHEN cardinality(ids) > 1 THEN NULL ELSE max_keys + 1 END  -- of twins, the turns are mixed
  ), known AS (
    SELECT ROW(a.of_lane, _take_turns.seq, a.pos_xid, a.pos_id, a.tag, active, a.waits, a.parked, a.pending, a.pending_after, a.open, a.next_start, a.again_at)::weir.turn AS state,
           coalesce(a.has_turn, false) AS has_turn, coalesce(a.is_changed, false) AS is_changed, a.tag, a.nr, NULL::bigint AS place FROM able a
    UNION ALL
    SELECT ROW(h.lane, _take_turns.seq, h.pos_xid, h.pos_id, h.tag, active, true, false, CASE WHEN h.is_late THEN h.pending || crowd ELSE h.pending END,
               CASE WHEN h.is_late THEN h.pending_after || 0::bigint ELSE h.pending_after END, h.open, h.next_start, NULL)::weir.turn,
           true, coalesce(h.is_late, false), h.tag, NULL, row_number() OVER (ORDER BY h.tag) FROM head h
  )
  SELECT array_agg(k.state ORDER BY k.rank), array_agg(k.has_turn ORDER BY k.rank), array_agg(k.is_changed ORDER BY k.rank), array_agg(k.start ORDER BY k.rank),
         array_agg(coalesce(CASE WHEN has_weights THEN (SELECT w.weight FROM weir.key_weight w WHERE w.queue = _take_turns.name AND w.bits = (k.state).lane & key_mask) END, 1) ORDER BY k.rank)
    INTO states, may, changed, offsets, weights
  FROM (
    SELECT k.*, row_number() OVER (ORDER BY NOT k.has_turn, k.start, k.nr NULLS LAST) AS rank  -- of two that may begin at once, the new one
    FROM (
      -- If there are more new keys than places, a quarter of these is for keys that have waited for a turn, however many new ones come.
      SELECT k.*, CASE WHEN count(*) FILTER (WHERE k.nr > 0) OVER () >= quota AND k.place <= CASE WHEN quota < 4 THEN (_take_turns.seq % 4 = 0)::integer ELSE quota / 4 END
                       THEN -1 ELSE k.tag - ring.tag END::double precision AS start
      FROM known k) k) k;
  size := coalesce(cardinality(states), 0);

  -- How many jobs each may start. Virtual time goes on from tag to tag, and faster the fewer keys there are, until all places are taken: up to this
  -- level, each key whose tag lies before it has got as many as its weight gives it in the meantime.
  WITH key AS MATERIALIZED (
    SELECT k.nr, k.start / unit AS start, k.weight FROM unnest(offsets, may, weights) WITH ORDINALITY k(start, may, weight, nr)
    WHERE k.may ORDER BY k.nr LIMIT max_keys
  ), level AS MATERIALIZED (
    SELECT s.nr, s.level
    FROM (SELECT k.nr, (quota + sum(k.start * k.weight) OVER (ORDER BY k.nr)) / sum(k.weight) OVER (ORDER BY k.nr) AS level, lead(k.start) OVER (ORDER BY k.nr) AS next FROM key k) s
    WHERE s.next IS NULL OR s.level <= s.next ORDER BY s.nr LIMIT 1
  )
  SELECT array_agg(least(p.part, quota - p.before) ORDER BY p.nr) INTO rooms
  FROM (
    SELECT p.nr, p.part, sum(p.part) OVER (ORDER BY p.nr) - p.part AS before
    FROM (SELECT k.nr, greatest(1, ceil((l.level - k.start) * k.weight - 1e-6))::integer AS part FROM level l JOIN key k ON k.nr <= l.nr) p) p
  WHERE p.before < quota;
  chosen := coalesce(cardinality(rooms), 0);
  allowed := rooms;
  IF chosen > 0 AND (lim.key_running IS NOT NULL OR lim.key_rate IS NOT NULL) THEN
    SELECT l.kept || states[chosen + 1 :], l.allowed, l.shares, l.tries, l.starts INTO states, allowed, shares, tries, starts
    FROM weir._limit_turns(lim, states[: chosen], rooms, ids, rings, forms, ring.arrived, before, at) l;
  END IF;
  rooms := rooms || array_fill(0, ARRAY[size - chosen]);
  others := (SELECT count(*) FROM unnest(may[chosen + 1 :]) m WHERE m) + greatest(0, cardinality(ring.newcomers) - popped);

  -- New keys that have no place in this call are the first of a later one, in their order. Of few, the ring's row lists the lanes; others get a row each.
  newcomers := ring.newcomers[popped + 1 :];
  IF size > chosen THEN
    SELECT array_agg(l.lane ORDER BY l.nr) FILTER (WHERE l.is_popped) AS popped, array_agg(l.lane ORDER BY l.nr) FILTER (WHERE NOT l.is_popped AND NOT l.is_listed) AS new INTO leftover
    FROM (SELECT u.lane, u.nr, u.lane IN (SELECT n FROM unnest(ring.newcomers[: popped]) n) AS is_popped, u.lane IN (SELECT n FROM unnest(newcomers) n) AS is_listed
          FROM unnest(states[chosen + 1 :], may[chosen + 1 :], changed[chosen + 1 :]) WITH ORDINALITY
            u(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, may, changed, nr)
          WHERE u.may AND NOT u.changed AND NOT u.waits) l;
    newcomers := leftover.popped || newcomers;
    newcomers := newcomers || leftover.new[: 10 * max_keys - cardinality(newcomers)];
  END IF;

  IF crowd IS NOT NULL THEN
    -- As the others that have no place in this call.
    WITH waiting AS (
      INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
      SELECT n.lane, _take_turns.seq, coalesce(t.pos_xid, '0'), coalesce(t.pos_id, 0), greatest(coalesce(t.tag, 0), ring.tag) + CASE WHEN t.waits THEN 0 ELSE n.nr END, active,
             coalesce(t.waits OR NOT t.parked AND t.again_at IS NULL, true), coalesce(t.parked, false),
             CASE WHEN crowd < t.pos_xid THEN t.pending || crowd ELSE t.pending END, CASE WHEN crowd < t.pos_xid THEN t.pending_after || 0::bigint ELSE t.pending_after END,
             t.open, t.next_start, t.again_at
      FROM (SELECT u.lane, min(u.nr) AS nr FROM (SELECT j.lane, row_number() OVER () AS nr FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id, crowd) AND (j.lane >> 39, j.xid) <= (q.id, crowd) OFFSET 0) j) u
            GROUP BY u.lane) n
      LEFT JOIN LATERAL (SELECT t.* FROM weir.turn t WHERE t.lane = n.lane ORDER BY t.seq DESC LIMIT 1) t ON true
      WHERE (t.lane IS NULL OR crowd < t.pos_xid OR NOT t.waits AND NOT t.parked AND t.again_at IS NULL)
        AND (crowd < t.pos_xid OR n.lane NOT IN (SELECT unnest(newcomers))) AND n.lane NOT IN (SELECT s.lane FROM unnest(states) s)
      RETURNING lane
    )
    SELECT w.n, ARRAY(SELECT f FROM generate_series(0, 7) f WHERE f = ANY (forms) OR w.bits & (1 << f) <> 0) INTO n_crowd, forms
    FROM (SELECT count(*) AS n, bit_or(1 << (w.lane & 7)::integer) AS bits FROM waiting w) w;
    others := others + n_crowd;
  END IF;

  RETURN QUERY
  WITH turn AS (
    SELECT t.*, t.room > 0 AS is_served
    FROM unnest(states, may, changed, weights, rooms, allowed, shares, tries, starts) WITH ORDINALITY
      t(lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at, may, changed, weight, room, allowed, shares, try_at, start_at, nr)
    WHERE t.room > 0 OR t.changed OR NOT t.may OR t.waits OR t.lane NOT IN (SELECT n FROM unnest(newcomers) n)
  ), found AS (
    SELECT t.*, f.jobs, f.n AS n_found, f.n_late AS n_late_found, least(t.allowed, f.n) AS n
    FROM turn t
    -- The rows that its transactions have left behind, and then those past its position: one more than it may start, if there are more.
    CROSS JOIN LATERAL (
      SELECT array_agg(f.job) AS jobs, count(*)::integer AS n, count(*) FILTER (WHERE f.is_late)::integer AS n_late
      FROM (
        SELECT true AS is_late, j.job FROM (SELECT p.* FROM unnest(t.pending, t.pending_after) p(xid, after) WHERE t.pending IS NOT NULL ORDER BY p.xid OFFSET 0) p
        CROSS JOIN LATERAL (SELECT j AS job FROM weir.job j WHERE t.is_served AND j.lane = t.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT t.allowed + 1) j
        UNION ALL
        (SELECT false, j.job FROM (SELECT width_bucket(coalesce(t.pos_xid, '0'), skip) AS below OFFSET 0) s
         CROSS JOIN LATERAL generate_series(s.below, cardinality(skip)) i
         CROSS JOIN LATERAL (
           SELECT j AS job FROM weir.job j
           WHERE t.is_served AND j.lane = t.lane AND j.xid < coalesce(skip[i + 1], top)
             AND (j.xid, j.id) > (CASE WHEN i > s.below THEN skip[i] ELSE coalesce(t.pos_xid, '0') END, CASE WHEN i > s.below THEN last_id ELSE coalesce(t.pos_id, 0) END)
             AND pg_visible_in_snapshot(j.xid, seen)
           ORDER BY j.xid, j.id LIMIT t.allowed + 1) j
         LIMIT t.allowed + 1)) f) f
  ), next AS MATERIALIZED (
    SELECT f.*, f.n_found > f.n AS is_more, (f.jobs[f.n]).xid AS last_xid, (f.jobs[f.n]).id AS last_id,
           -- Keys that came at the same time differ in their place, so that no two turns begin at once, and what was served is not read again.
           f.tag + CASE WHEN f.is_served THEN (f.n * unit / f.weight)::bigint
                        WHEN f.waits THEN 0 ELSE f.nr END AS next_tag,
           -- At its limit, a key whose turn would come again at once leaves the ring until one of its attempts ends. Otherwise one may have ended by then.
           CASE WHEN f.is_served THEN f.n_found > f.n AND f.try_at IS NULL AND (f.allowed >= f.room OR f.shares OR others > 0 AND f.n > 0) ELSE f.may OR f.waits END AS will_wait,
           CASE WHEN f.is_served THEN f.n_found > f.n AND f.try_at IS NULL ELSE f.parked END AS will_park
    FROM found f
  ), written AS (
    INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, pending, pending_after, open, next_start, again_at)
    SELECT n.lane, n.seq,
           CASE WHEN n.n > n.n_late_found THEN n.last_xid ELSE coalesce(n.pos_xid, '0') END, CASE WHEN n.n > n.n_late_found THEN n.last_id ELSE coalesce(n.pos_id, 0) END,
           n.next_tag, n.segment, n.will_wait, NOT n.will_wait AND n.will_park, p.xids, p.afters,
           CASE WHEN lim.key_running IS NOT NULL THEN n.open || (SELECT array_agg(v.v ORDER BY u.ordinality, v.nr) FROM unnest(n.jobs[: n.n]) WITH ORDINALITY u
                  CROSS JOIN LATERAL (VALUES (1, n.seq), (2, u.id)) v(nr, v)) END,
           CASE WHEN lim.key_rate IS NOT NULL THEN
             CASE WHEN n.n > 0 THEN weir._started(lim.key_rate / extract(epoch FROM lim.key_per), lim.key_burst, n.start_at, at,
               (SELECT sum(o.n)::integer FROM next o WHERE o.lane & key_mask = n.lane & key_mask)) ELSE n.next_start END END,
           CASE WHEN NOT n.is_served THEN CASE WHEN NOT n.may THEN n.again_at END WHEN n.is_more AND n.try_at IS NOT NULL THEN greatest(n.try_at, due_upto) END
    FROM next n
    CROSS JOIN LATERAL (
      -- Late rows that there was no room for: from the last transaction that was read on.
      SELECT array_agg(p.xid ORDER BY p.xid) AS xids, array_agg(CASE WHEN n.n > 0 AND p.xid = n.last_xid THEN n.last_id ELSE p.after END ORDER BY p.xid) AS afters
      FROM unnest(n.pending, n.pending_after) p(xid, after)
      WHERE NOT n.is_served OR n.n_late_found > n.n AND (n.n = 0 OR p.xid >= n.last_xid)) p
    WHERE CASE WHEN n.is_served THEN n.n_found > 0 OR n.waits OR n.changed ELSE n.changed OR n.may AND NOT n.waits END
  ), announced AS (
    -- Virtual time is where the next turn begins, or the last one, if there is no next.
    INSERT INTO weir.ring (queue, seq, tag, forms, version, arrived, newcomers, due, stopped_after, stopped_upto)
    SELECT _take_turns.name, _take_turns.seq,
           CASE WHEN n_crowd > 0 THEN ring.tag ELSE greatest(ring.tag, coalesce(min(n.next_tag) FILTER (WHERE n.will_wait), max(n.tag) FILTER (WHERE n.is_served))) END,
           (SELECT coalesce(bit_or(1 << f), 0) FROM unnest(forms) f), coalesce(lim.version, 0), seen, newcomers, due_upto, ring.stopped_after, ring.stopped_upto
    FROM next n
  )
  SELECT u.id, u.xid, u.enqueued_at, u.ready_at, u.lane, u.attempt, u.max_attempts, u.put_off, u.segment, u.leads, u.kind, u.args, u.meta, u.seq, u.errors,
         u.unique_key, u.unique_no, u.unique_until, u.key, u.flow
  FROM next n CROSS JOIN LATERAL unnest(n.jobs[: n.n]) WITH ORDINALITY u
  ORDER BY u.ordinality, n.nr;
END
$$;
CREATE FUNCTION weir._task_of(flow bigint, name text) RETURNS bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  -- Of several, which transactions have added that do not see each other, the one that was counted is the task.
  RETURN (SELECT f.id FROM (SELECT f.id, f.task FROM weir.flow f WHERE f.parent = _task_of.flow AND f.name = _task_of.name AND f.task IS NOT NULL OFFSET 0) f
          ORDER BY coalesce((SELECT p.jobs > 0 FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1)::integer * 2, 1) DESC, (f.task ->> 'call')::bigint, f.id LIMIT 1);
END
$$;
CREATE FUNCTION weir._tidy() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  next_ring integer := (pg_sequence_last_value('weir.watched') / 300000 + 1) % 3;
  job_id    bigint;
  forgotten integer := 0;
  lanes     integer;
  done      text;
  j         weir.job_info;
BEGIN
  PERFORM weir._check_isolation('tidy'), weir._hold_briefly();
  IF NOT pg_try_advisory_xact_lock(1464158547, 3) THEN
    RETURN NULL;
  END IF;
  IF weir._set_twins_aside() > 0 THEN
    RETURN 'set twins aside';
  END IF;
  -- These small tables are insert-only too: they are truncated, and rows that still count are inserted again.
  IF pg_relation_size('weir.last_word_' || next_ring) > 0 THEN
    EXECUTE format('LOCK TABLE weir.last_word_%s IN ACCESS EXCLUSIVE MODE NOWAIT', next_ring);
    EXECUTE format('TRUNCATE weir.last_word_%s', next_ring);
    RETURN 'emptied heartbeat ' || next_ring;
  ELSIF pg_relation_size('weir.promotion') > 1048576 THEN
    IF pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.promotion IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT p.* FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
      TRUNCATE weir.promotion;
      INSERT INTO weir.promotion SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted promotion';
    END IF;
  ELSIF pg_table_size('weir.firing') > 1048576 AND pg_table_size('weir.firing') > 500 * (SELECT count(*) FROM weir.schedule) THEN
    IF pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.firing IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
        SELECT f.* FROM weir.schedule s CROSS JOIN LATERAL (
          (SELECT f.* FROM weir.firing f WHERE f.name = s.name ORDER BY f.due DESC LIMIT 1)
          UNION
          (SELECT f.* FROM weir.firing f WHERE f.name = s.name AND f.job IS NOT NULL ORDER BY f.due DESC LIMIT 1)) f;
      TRUNCATE weir.firing;
      INSERT INTO weir.firing SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted firing';
    END IF;
  ELSIF pg_relation_size('weir.segment') > 65536 THEN
    IF pg_try_advisory_xact_lock(1464158547, 1) AND pg_try_advisory_xact_lock(1464158547, 2) THEN
      LOCK TABLE weir.segment IN ACCESS EXCLUSIVE MODE NOWAIT;
      CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
        SELECT DISTINCT ON (k.log, k.segment, k.event) k.* FROM weir.segment k ORDER BY k.log, k.segment, k.event, k.no DESC;
      TRUNCATE weir.segment;
      INSERT INTO weir.segment SELECT k.* FROM pg_temp.weir_keep k;
      RETURN 'compacted segment';
    END IF;
  ELSIF pg_table_size('weir.settled') > 4194304 THEN
    LOCK TABLE weir.settled IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
      SELECT DISTINCT ON (s.worker) s.* FROM weir.settled s WHERE EXISTS (SELECT FROM weir.worker w WHERE w.id = s.worker) ORDER BY s.worker, s.no DESC;
    TRUNCATE weir.settled;
    INSERT INTO weir.settled SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted settled';
  ELSIF pg_relation_size('weir.worker') > 131072 AND weir._forget_workers() > 0 THEN
    RETURN 'forgot workers';
  ELSIF pg_relation_size('weir.cancellation') > 1048576 THEN
    -- A part at a time, from where the last call stopped, because cancellations of jobs in the far future must stay.
    FOR job_id IN SELECT c.id FROM weir.cancellation c WHERE c.id > coalesce(pg_sequence_last_value('weir.cancel_looked'), 0) ORDER BY c.id LIMIT 1000 LOOP
      SELECT i.* INTO j FROM weir.job_info(job_id) i;
      IF j.state IS NULL OR j.finished_at IS NOT NULL THEN
        DELETE FROM weir.cancellation c WHERE c.id = job_id;
        forgotten := forgotten + 1;
      END IF;
      EXIT WHEN clock_timestamp() - now() > interval '100 ms';
    END LOOP;
    PERFORM setval('weir.cancel_looked', coalesce(job_id, 0));  -- after the last one, it starts over
    IF forgotten > 0 THEN
      RETURN 'forgot ' || forgotten || ' cancellations';
    END IF;
  END IF;
  done := coalesce(weir._compact_gates(), weir._compact_rings(), weir._compact_flows(), weir._compact_operations(), weir._compact_relays(), weir._turn_requests(), weir._retire_cancellations());
  IF done IS NOT NULL THEN
    RETURN done;
  END IF;
  lanes := weir._forget_ended();
  RETURN CASE WHEN lanes > 0 THEN 'trimmed ' || lanes || ' lanes' END;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._time_zone(name text) RETURNS text LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  found_name text;
BEGIN
  -- Reading all names takes a while. PostgreSQL would also take things like Berlin+1, and mean something else by them.
  IF name = 'UTC' OR EXISTS (SELECT FROM weir.schedule s WHERE s.time_zone = _time_zone.name) THEN
    RETURN name;
  END IF;
  SELECT z.name INTO found_name FROM pg_timezone_names z WHERE lower(z.name COLLATE "C") = lower(_time_zone.name COLLATE "C") AND z.name !~ '^(posix|right)/' LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'weir: unknown time zone %', coalesce(quote_literal(name), 'null') USING ERRCODE = '22023',
      HINT = 'Use a name like Europe/Berlin; SELECT name FROM pg_timezone_names lists them.';
  END IF;
  RETURN found_name;
END
$$;
CREATE FUNCTION weir._times_reclaimed(segment integer) RETURNS bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT coalesce((SELECT max(k.no) FROM weir.segment k WHERE k.log = 'job' AND k.segment = _times_reclaimed.segment AND k.event = 'reclaimed'), 0)
$$;
CREATE FUNCTION weir._try_lane(lane bigint) RETURNS boolean LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE WHEN _try_lane.lane & 549755813884 = 0 THEN pg_try_advisory_xact_lock(1464158546, ((_try_lane.lane >> 39) * 4 + (_try_lane.lane & 3))::integer)
              ELSE pg_try_advisory_xact_lock(1464158559, hashtext((SELECT q.name FROM weir.queue q WHERE q.id = (_try_lane.lane >> 39)::integer))) END
$$;
CREATE FUNCTION weir._turn_lanes(queues text[], hinted bigint[]) RETURNS TABLE(lane bigint, ord bigint, name text) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT (q.id << 39) + 4, n.ord, n.name
  FROM (SELECT u.name, u.ord FROM unnest(_turn_lanes.queues) WITH ORDINALITY u(name, ord) WHERE _turn_lanes.hinted IS NULL
        UNION ALL
        SELECT m.name, array_position(_turn_lanes.queues, m.name)
        FROM (SELECT q.name FROM weir.queue q WHERE q.id = ANY (ARRAY(SELECT DISTINCT (h >> 39)::integer FROM unnest(_turn_lanes.hinted) h))
              UNION  -- where keys have limits, they may have turns without anything that is new
              SELECT k.name FROM weir.queue_limit k WHERE _turn_lanes.hinted IS NOT NULL AND num_nonnulls(k.key_running, k.key_rate) > 0) m) n
  CROSS JOIN LATERAL (SELECT min(q.id)::bigint AS id FROM weir.queue q WHERE q.name = n.name AND EXISTS (SELECT FROM weir.with_keys k WHERE k.queue = n.name) OFFSET 0) q
  WHERE n.ord IS NOT NULL AND q.id IS NOT NULL;
END
$$;
CREATE FUNCTION weir._turn_requests() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
DECLARE
  active  integer := pg_sequence_last_value('weir.active_request');
  other   integer := 3 - active;
  is_full boolean;
  is_old  boolean;
BEGIN
  IF pg_relation_size('weir.request_' || active) = 0 THEN
    RETURN NULL;
  END IF;
  is_full := pg_total_relation_size('weir.request_' || active) > (SELECT s.value::bigint / 8 FROM weir.setting s WHERE s.name = 'retention_bytes');
  IF NOT is_full THEN
    -- Its first row in the order of storage is about its oldest.
    EXECUTE format('SELECT r.at < clock_timestamp() - interval ''1 day'' FROM weir.request_%s r LIMIT 1', active) INTO is_old;
  END IF;
  IF NOT (is_full OR coalesce(is_old, false)) THEN
    RETURN NULL;
  ELSIF pg_relation_size('weir.request_' || other) = 0 THEN
    PERFORM setval('weir.active_request', other);
    RETURN 'opened request ' || other;
  END IF;
  -- Since its last row came, the active one was written to for a day, unless space is short.
  EXECUTE format('LOCK TABLE weir.request_%s IN ACCESS EXCLUSIVE MODE NOWAIT', other);
  EXECUTE format('TRUNCATE weir.request_%s', other);
  RETURN 'emptied request ' || other;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
CREATE FUNCTION weir._turn_ring(name text, columns text, most integer) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 16777216;
  active    integer := pg_sequence_last_value(('weir.active_' || name)::regclass);
  target    integer;
  ring      integer;
  kept      interval;
  n         bigint;
  bytes     bigint;
BEGIN
  IF pg_table_size('weir.' || name || '_' || active) > max_bytes THEN
    SELECT r INTO target FROM generate_series(1, 4) r WHERE pg_relation_size('weir.' || _turn_ring.name || '_' || r) = 0 LIMIT 1;
    IF FOUND THEN
      PERFORM setval(('weir.active_' || name)::regclass, target);
      RETURN format('opened %s %s', name, target);
    END IF;
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 4) r WHERE r <> active AND pg_relation_size('weir.' || _turn_ring.name || '_' || r) > 0 LOOP
    kept := coalesce(kept, (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention')));
    -- One that large flows still need waits until these have ended: the others rotate meanwhile. What is copied must be little, or it would fill the next table, and be copied again and again.
    EXECUTE format('SELECT count(*), sum(k.bytes) FROM (SELECT %s AS bytes FROM weir.%I s WHERE weir._is_kept(s.flow, $1) LIMIT $2) k',
                   (SELECT string_agg(format('coalesce(pg_column_size(s.%I), 0)', c), ' + ') FROM unnest(string_to_array(columns, ', ')) c), name || '_' || ring) INTO n, bytes USING kept, most + 1;
    CONTINUE WHEN n > most OR bytes > max_bytes / 4 OR weir._is_held(ARRAY[format('weir.%I', name || '_' || ring)]::regclass[]);
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);  -- a claim with an older snapshot would not see the copies
      EXECUTE format('LOCK TABLE weir.%I IN ACCESS EXCLUSIVE MODE NOWAIT', name || '_' || ring);
      EXECUTE format('INSERT INTO weir.%I (ring, %s) SELECT $1, %s FROM weir.%I s WHERE weir._is_kept(s.flow, $2)', name, columns, columns, name || '_' || ring) USING active, kept;
      EXECUTE format('TRUNCATE weir.%I', name || '_' || ring);
      RETURN format('emptied %s %s', name, ring);
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  RETURN NULL;
END
$$;
CREATE FUNCTION weir._unattended() RETURNS TABLE(id integer, name text, lease interval, no bigint, says text, watched bigint, running integer, seen_at timestamp with time zone) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
  SELECT l.id, l.name, l.lease, h.no, h.says, h.watched, h.running, coalesce(h.at, l.at)
  FROM (SELECT w.id, w.name, w.lease, w.at FROM weir.worker w
        WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)
          AND NOT EXISTS (SELECT FROM weir._attending() a(id) WHERE a.id = w.id) OFFSET 0) l
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = l.id ORDER BY h.no DESC LIMIT 1) h ON true
$$;
CREATE FUNCTION weir._unclaimed_of_keys(segment integer, max_rows integer) RETURNS SETOF weir.job LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET work_mem=64MB
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH late AS MATERIALIZED (
    SELECT q.id, weir._late_of(q.name) AS xids FROM weir.queue q WHERE EXISTS (SELECT FROM weir.with_keys w WHERE w.queue = q.name)
  )
  SELECT j.* FROM weir.job j
  LEFT JOIN (SELECT DISTINCT ON (t.lane) t.lane, t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t ORDER BY t.lane, t.seq DESC) s ON s.lane = j.lane
  LEFT JOIN late f ON f.id = (j.lane >> 39)::integer
  WHERE j.segment = _unclaimed_of_keys.segment AND j.lane & 549755813880 <> 0
    AND weir._waits(j.xid, j.id, s.pos_xid, s.pos_id, s.pending, s.pending_after, f.xids)
  LIMIT max_rows;
END
$$;
CREATE FUNCTION weir._unclaimed(segment integer, lanes bigint[], max_rows integer DEFAULT NULL::integer) RETURNS SETOF weir.job LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
  WITH late AS MATERIALIZED (
    SELECT q.id, weir._late_of(q.name) AS xids FROM (SELECT DISTINCT l >> 39 AS id FROM unnest(_unclaimed.lanes) l WHERE l & 549755813880 <> 0) d
    CROSS JOIN LATERAL (SELECT q.id, q.name FROM weir.queue q WHERE q.id = d.id::integer OFFSET 0) q
  )
  SELECT j.*
  FROM unnest(_unclaimed.lanes) l(lane)
  LEFT JOIN LATERAL (
    (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE l.lane & 549755813880 = 0 AND b.lane = l.lane ORDER BY b.seq DESC LIMIT 1)
    UNION ALL
    (SELECT t.pos_xid, t.pos_id, t.pending, t.pending_after FROM weir.turn t WHERE l.lane & 549755813880 <> 0 AND t.lane = l.lane ORDER BY t.seq DESC LIMIT 1)) s ON true
  CROSS JOIN LATERAL (
    SELECT j.* FROM weir.job j
    WHERE j.segment = _unclaimed.segment AND j.lane = l.lane AND (j.xid, j.id) > (coalesce(s.pos_xid, '0'), coalesce(s.pos_id, 0))
    UNION ALL
    SELECT j.* FROM (SELECT p.xid, p.after FROM unnest(s.pending, s.pending_after) p(xid, after)
                     UNION ALL SELECT x, 0 FROM late f CROSS JOIN LATERAL unnest(f.xids) x WHERE f.id = (l.lane >> 39)::integer AND l.lane & 549755813880 <> 0 AND x < s.pos_xid) p
    CROSS JOIN LATERAL (
      SELECT j.* FROM weir.job j WHERE j.segment = _unclaimed.segment AND j.lane = l.lane AND j.xid = p.xid AND j.id > p.after OFFSET 0) j) j
  LIMIT _unclaimed.max_rows
$$;
CREATE FUNCTION weir._unfinished_in(worker integer, after bigint, upto bigint) RETURNS TABLE(no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off
AS $$
  SELECT b.no, b.lane, b.seq, b.segment, b.claimed_at,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq)
  FROM weir.batch b
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE b.worker = _unfinished_in.worker AND b.no > _unfinished_in.after AND b.no <= _unfinished_in.upto
    AND coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq)
$$;
CREATE FUNCTION weir._unfinished(worker integer, nos bigint[]) RETURNS TABLE(no bigint, lane bigint, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off
AS $$
  SELECT b.no, b.lane, b.seq, b.segment, b.claimed_at,
         ARRAY(SELECT i.id FROM unnest(b.ids) i(id)
               EXCEPT SELECT x.id FROM weir.result r, unnest(r.ids) x(id) WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq)
  FROM unnest(_unfinished.nos) o(no) JOIN weir.batch b ON b.worker = _unfinished.worker AND b.no = o.no
  -- An attempt ends once, so a batch with as many results as jobs has ended, which is quick to check. Reclaiming may have moved one part of a batch
  -- into the segment of the other: the results do not say to which part they belong, so both parts count together.
  LEFT JOIN LATERAL (SELECT sum(cardinality(r.ids)) AS n FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq) e ON true
  WHERE coalesce(e.n, 0) < (SELECT sum(cardinality(p.ids)) FROM weir.batch p WHERE p.segment = b.segment AND p.lane = b.lane AND p.seq = b.seq)
$$;
CREATE FUNCTION weir._unique_key(queue text, kind text, args jsonb, key text, fields text[]) RETURNS uuid LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- The text of a jsonb has one form, whatever the order in which its keys were written.
  SELECT encode(substr(sha256(convert_to(CASE
      WHEN _unique_key.key IS NOT NULL THEN jsonb_build_array(_unique_key.queue, _unique_key.key)
      WHEN _unique_key.fields IS NULL THEN jsonb_build_array(_unique_key.queue, _unique_key.kind, _unique_key.args)
      ELSE jsonb_build_array(_unique_key.queue, _unique_key.kind, coalesce((SELECT jsonb_object_agg(f, _unique_key.args -> f) FROM unnest(_unique_key.fields) f), '{}'))
    END::text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
CREATE FUNCTION weir._unique_of(job_id bigint, OUT unique_key uuid, OUT unique_until timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  SELECT u.unique_key, u.unique_until INTO _unique_of.unique_key, _unique_of.unique_until
  FROM (SELECT j.unique_key, j.unique_until, j.attempt, j.put_off FROM weir.job j WHERE j.id = job_id
        UNION ALL SELECT f.unique_key, f.unique_until, f.attempt, 0 FROM weir.failure f WHERE f.id = job_id AND f.finished_at IS NOT NULL) u
  ORDER BY u.attempt DESC, u.put_off DESC LIMIT 1;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir._waiting_among(lanes bigint[], running xid8[], top xid8, most integer) RETURNS TABLE(lane bigint, segment smallint, n bigint, ready_at timestamp with time zone, place tid) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  last_id CONSTANT bigint := 9223372036854775807;
  own     xid8 := pg_current_xact_id_if_assigned();
BEGIN
  -- One statement for all lanes: to begin and end that of _waiting takes ten times as long as to read a lane in which little waits.
  RETURN QUERY
  SELECT s.lane, w.segment, w.n, w.ready_at, w.place
  FROM (
    SELECT l.lane, coalesce(b.pos_xid, '0') AS pos_xid, coalesce(b.pos_id, 0) AS pos_id, b.pending, b.pending_after,
           running[width_bucket(coalesce(b.pos_xid, '0'), running) + 1 : width_bucket(coalesce(b.pos_xid, '0'), running) + 64] AS skip
    FROM unnest(_waiting_among.lanes) l(lane)
    LEFT JOIN LATERAL (SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
    WHERE l.lane & 549755813880 = 0 OFFSET 0) s
  CROSS JOIN LATERAL (
    SELECT u.segment, count(*) AS n, min(u.ready_at) AS ready_at, min(u.place) AS place FROM (
      SELECT j.* FROM unnest(s.pending, s.pending_after) p(xid, after)
      CROSS JOIN LATERAL (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE j.lane = s.lane AND j.xid = p.xid AND j.id > p.after ORDER BY j.xid, j.id LIMIT most) j
      WHERE running[width_bucket(p.xid, running)] IS DISTINCT FROM p.xid
      UNION ALL
      SELECT j.* FROM generate_series(0, cardinality(s.skip)) i
      CROSS JOIN LATERAL (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE j.lane = s.lane AND j.xid < coalesce(s.skip[i + 1], top)
          AND (j.xid, j.id) > (CASE WHEN i > 0 THEN s.skip[i] ELSE s.pos_xid END, CASE WHEN i > 0 THEN last_id ELSE s.pos_id END)
        ORDER BY j.xid, j.id LIMIT most) j
      UNION ALL  -- rows of the caller's own transaction
      SELECT j.* FROM (
        SELECT coalesce(j.ready_at, j.enqueued_at) AS ready_at, j.segment, j.ctid AS place FROM weir.job j
        WHERE own >= top AND j.lane = s.lane AND j.xid = own AND (j.xid, j.id) > (s.pos_xid, s.pos_id) ORDER BY j.xid, j.id LIMIT most) j
      LIMIT most) u
    GROUP BY u.segment) w
  UNION ALL  -- lanes of keys
  SELECT l.lane, w.segment, w.n, w.ready_at, w.place FROM unnest(_waiting_among.lanes) l(lane)
  CROSS JOIN LATERAL (
    SELECT u.segment, count(*) AS n, min(u.ready_at) AS ready_at, min(u.place) AS place
    FROM weir._waiting(l.lane, running, top, '0', 0, most) u GROUP BY u.segment) w
  WHERE l.lane & 549755813880 <> 0;
END
$$;
CREATE FUNCTION weir._waiting_by_queue() RETURNS TABLE(queue text, waiting bigint, ready_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  s weir.survey := weir._surveyed();
BEGIN
  RETURN QUERY
  SELECT q.name, sum(d.waiting)::bigint, min(d.ready_at)
  FROM (SELECT k.* FROM weir._depths(ARRAY(SELECT weir._lanes_to_count(s))) k
        UNION ALL SELECT k.* FROM weir._depths_of_keys() k) d
  JOIN weir.queue q ON q.id = (d.lane >> 39)::integer
  WHERE d.waiting > 0 GROUP BY q.name;
END
$$;
CREATE FUNCTION weir._waiting_keys(name text, most integer, OUT lanes bigint[], OUT is_whole boolean) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  few      CONSTANT integer := 200;
  max_rows CONSTANT integer := 10000;  -- read in one way
  ids      integer[] := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = _waiting_keys.name);
  v        record := weir._in_progress();
  ring     weir.ring;
  own      xid8 := pg_current_xact_id_if_assigned();
  n        bigint;
BEGIN
  lanes := ARRAY(SELECT k FROM unnest(ids) q(id) CROSS JOIN LATERAL weir._key_lanes(q.id, NULL, NULL, few + 1) k LIMIT few + 1);
  is_whole := cardinality(lanes) <= few;
  IF is_whole THEN
    RETURN;
  END IF;
  -- In all lanes of keys where jobs wait, the newest turn or the ring says so, or there are rows that are not announced yet (see functions/turn.sql).
  ring := weir._ring_of(name);
  IF v.top < '18446744073709551615' AND pg_snapshot_xmax(ring.arrived) <= v.top THEN
    SELECT array_agg(DISTINCT u.lane), max(u.n) INTO lanes, n
    FROM (
      SELECT t.lane, count(*) OVER () AS n FROM (
        SELECT t.lane FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE t.lane >> 39 = q.id AND t.waits AND t.tag >= ring.tag ORDER BY t.tag LIMIT max_rows) t LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT t.lane FROM unnest(ids) q(id) CROSS JOIN LATERAL (SELECT t.lane FROM weir.turn t WHERE (t.parked OR t.again_at IS NOT NULL)
          AND t.lane > q.id::bigint << 39 AND t.lane < (q.id + 1)::bigint << 39 LIMIT max_rows) t LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT j.lane FROM weir._ended_since(ring.arrived, pg_current_snapshot()) e CROSS JOIN unnest(ids) q(id)
        CROSS JOIN LATERAL (
          SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id::bigint, e.low) AND (j.lane >> 39, j.xid) < (q.id::bigint, e.high) LIMIT max_rows) j LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, count(*) OVER () FROM (
        SELECT j.lane FROM unnest(ids) q(id)
        CROSS JOIN LATERAL (
          SELECT j.lane FROM weir.job j WHERE j.leads AND j.lane & 549755813880 <> 0 AND (j.lane >> 39, j.xid) >= (q.id::bigint, own) AND (j.lane >> 39, j.xid) <= (q.id::bigint, own) LIMIT max_rows) j LIMIT max_rows) t
      UNION ALL
      SELECT t.lane, 1 FROM unnest(ring.newcomers) t(lane)) u
    WHERE u.lane >> 39 = ANY (ids) AND u.lane & 549755813880 <> 0 OR u.n = max_rows;
    IF coalesce(n, 0) < max_rows THEN
      lanes := coalesce(lanes, '{}');
      is_whole := cardinality(lanes) <= most;
      RETURN;
    END IF;
  END IF;
  lanes := ARRAY(SELECT k FROM unnest(ids) q(id) CROSS JOIN LATERAL weir._key_lanes(q.id, NULL, NULL, most + 1) k LIMIT most + 1);
  is_whole := cardinality(lanes) <= most;
END
$$;
CREATE FUNCTION weir._waiting(lane bigint, running xid8[], top xid8, after_xid xid8, after_id bigint, most integer, upto_xid xid8 DEFAULT '18446744073709551615'::xid8, upto_id bigint DEFAULT '9223372036854775807'::bigint, late xid8[] DEFAULT NULL::xid8[]) RETURNS TABLE(xid xid8, id bigint, ready_at timestamp with time zone, segment smallint, place tid) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
AS $$
#variable_conflict use_column
DECLARE
  last_id  CONSTANT bigint := 9223372036854775807;
  own      xid8 := pg_current_xact_id_if_assigned();
  last     record;
  from_xid xid8 := after_xid;
  from_id  bigint := after_id;
  skip     xid8[];
BEGIN
  IF _waiting.lane & 549755813880 = 0 THEN
    SELECT b.pos_xid, b.pos_id, b.pending, b.pending_after INTO last FROM weir.batch b WHERE b.lane = _waiting.lane ORDER BY b.seq DESC LIMIT 1;
  ELSE
    last := weir._state_of(_waiting.lane, late);
  END IF;
  IF (last.pos_xid, last.pos_id) > (from_xid, from_id) THEN
    from_xid := last.pos_xid;
    from_id := last.pos_id;
  END IF;
  skip := running[width_bucket(from_xid, running) + 1 : width_bucket(from_xid, running) + 64];
  RETURN QUERY
  SELECT u.xid, u.id, coalesce(u.ready_at, u.enqueued_at), u.segment, u.place FROM (
    -- What a batch left of a transaction precedes older ones that were still in progress.
    SELECT j.* FROM (SELECT * FROM unnest(last.pending, last.pending_after) u(xid, after) ORDER BY u.xid) p
    CROSS JOIN LATERAL (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE j.lane = _waiting.lane AND j.xid = p.xid AND j.id > greatest(p.after, CASE WHEN p.xid = after_xid THEN after_id END) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j
    WHERE p.xid >= after_xid AND running[width_bucket(p.xid, running)] IS DISTINCT FROM p.xid
    UNION ALL
    SELECT j.* FROM generate_series(0, cardinality(skip)) i
    CROSS JOIN LATERAL (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE j.lane = _waiting.lane AND j.xid < coalesce(skip[i + 1], top)
        AND (j.xid, j.id) > (CASE WHEN i > 0 THEN skip[i] ELSE from_xid END, CASE WHEN i > 0 THEN last_id ELSE from_id END) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j
    UNION ALL  -- rows of the caller's own transaction
    SELECT j.* FROM (
      SELECT j.*, j.ctid AS place FROM weir.job j
      WHERE own >= top AND j.lane = _waiting.lane AND j.xid = own AND (j.xid, j.id) > (from_xid, from_id) AND (j.xid, j.id) <= (upto_xid, upto_id)
      ORDER BY j.xid, j.id LIMIT most) j) u
  LIMIT most;
END
$$;
CREATE FUNCTION weir._waits_later(c weir.promotion, run_at timestamp with time zone, id bigint, xid xid8) RETURNS boolean LANGUAGE sql STABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT ((_waits_later.run_at, _waits_later.id) > (c.due, c.due_id) OR NOT pg_visible_in_snapshot(_waits_later.xid, c.snapshot))
    AND (c.ahead_due IS NULL OR NOT weir._was_ahead(c, _waits_later.run_at, _waits_later.id, _waits_later.xid))
$$;
CREATE FUNCTION weir._waits(xid xid8, id bigint, pos_xid xid8, pos_id bigint, pending xid8[], pending_after bigint[], late xid8[] DEFAULT NULL::xid8[]) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
  -- Without settings of its own, it becomes part of its callers' expressions; these pin the search path.
  SELECT coalesce((_waits.xid, _waits.id) > (_waits.pos_xid, _waits.pos_id), true) OR coalesce(_waits.id > _waits.pending_after[array_position(_waits.pending, _waits.xid)], false)
    OR coalesce(_waits.xid = ANY (_waits.late), false)
$$;
CREATE FUNCTION weir._was_ahead(c weir.promotion, run_at timestamp with time zone, id bigint, xid xid8) RETURNS boolean LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT EXISTS (SELECT FROM unnest(c.ahead_due, c.ahead_id, c.ahead_snapshot) a(due, id, snapshot)
                 WHERE (_was_ahead.run_at, _was_ahead.id) <= (a.due, a.id) AND pg_visible_in_snapshot(_was_ahead.xid, a.snapshot))
$$;
CREATE FUNCTION weir._watch(jobs bigint, control bigint, seen pg_snapshot, upto xid8, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, OUT jobs_now bigint, OUT control_now bigint, OUT seen_now pg_snapshot, OUT upto_now xid8, OUT ended boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  moved boolean;
  slept text;
BEGIN
  IF _watch.polls IS NULL OR _watch.pause IS NULL OR _watch.polls < 1 OR _watch.polls * _watch.pause > 1 THEN
    RAISE EXCEPTION 'weir: watch polls for at most 1 second, got % polls, every % s', _watch.polls, _watch.pause USING ERRCODE = '22023';
  END IF;
  -- Assignments, not queries: a poll takes some microseconds, and reads only two sequences.
  LOOP
    jobs_now := coalesce(pg_sequence_last_value('weir.job_id'), 0);
    control_now := coalesce(pg_sequence_last_value('weir.control'), 0);
    seen_now := pg_current_snapshot();  -- after the counters
    moved := jobs_now IS DISTINCT FROM _watch.jobs OR control_now IS DISTINCT FROM _watch.control;
    ended := _watch.seen IS NULL OR _watch.upto IS NULL;
    IF NOT ended AND pg_snapshot_xmin(_watch.seen) < _watch.upto AND seen_now::text <> _watch.seen::text THEN
      ended := EXISTS (SELECT FROM pg_snapshot_xip(_watch.seen) x WHERE x < _watch.upto AND pg_visible_in_snapshot(x, seen_now))
        -- And transactions that the snapshot could not list yet, because they are newer than all that had ended.
        OR least(pg_snapshot_xmax(seen_now), _watch.upto)::text::bigint - pg_snapshot_xmax(_watch.seen)::text::bigint
           > (SELECT count(*) FROM pg_snapshot_xip(seen_now) x WHERE x >= pg_snapshot_xmax(_watch.seen) AND x < _watch.upto);
    END IF;
    EXIT WHEN _watch.polls <= 1 OR moved OR ended;
    _watch.polls := _watch.polls - 1;
    slept := pg_sleep(_watch.pause);
  END LOOP;
  -- Each transaction that has drawn from a counter so far has an id below the next one to be assigned.
  upto_now := CASE WHEN moved OR _watch.upto IS NULL
                   THEN (pg_snapshot_xmax(seen_now)::text::bigint + age(pg_snapshot_xmax(seen_now)::xid))::text::xid8
                   ELSE _watch.upto END;
END
$$;
CREATE FUNCTION weir._with_error(errors jsonb, attempt integer, at timestamp with time zone, outcome weir.outcome, error text) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  entry jsonb;
  brief text := CASE WHEN length(_with_error.error) > 1000 THEN left(_with_error.error, 500) || ' ... ' || right(_with_error.error, 495) ELSE _with_error.error END;
BEGIN
  -- What weir._brief_errors makes of the whole list, but for one more entry, because many attempts may fail at once.
  IF brief IS NULL THEN
    RETURN _with_error.errors;
  END IF;
  entry := jsonb_build_object('attempt', attempt, 'at', at, 'outcome', outcome);
  IF _with_error.errors IS NULL THEN
    RETURN jsonb_build_array(entry || jsonb_build_object('error', brief));
  ELSIF brief IS DISTINCT FROM (SELECT u.e ->> 'error' FROM jsonb_array_elements(_with_error.errors) WITH ORDINALITY u(e, nr) WHERE u.e ? 'error' ORDER BY u.nr DESC LIMIT 1) THEN
    entry := entry || jsonb_build_object('error', brief);
  END IF;
  errors := _with_error.errors || entry;
  IF jsonb_array_length(errors) > 24 THEN
    IF errors #> '{1,error}' IS NULL THEN
      errors := jsonb_set(errors, '{1,error}', errors #> '{0,error}');
    END IF;
    errors := errors - 0;
  END IF;
  RETURN errors;
END
$$;
CREATE FUNCTION weir._wrong_pattern(pattern text) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  bare text := regexp_replace(pattern, E'\\\\[^0-9]', '', 'g');  -- without escapes, but with back references
BEGIN
  IF length(pattern) NOT BETWEEN 1 AND 1000 THEN
    RETURN format('it must have 1 to 1000 characters, not %s', length(pattern));
  ELSIF bare ~ E'\\\\[0-9]' THEN
    RETURN 'back references can take very long';
  ELSIF bare ~ '[(][?](=|!|<=|<!)' THEN
    RETURN 'lookahead and lookbehind can take very long';
  END IF;
  PERFORM '' ~ pattern;
  RETURN NULL;
EXCEPTION WHEN invalid_regular_expression THEN
  RETURN SQLERRM;
END
$$;
CREATE FUNCTION weir._wrong_with_entry(given jsonb) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE
    WHEN jsonb_typeof(given) <> 'object' THEN format('an entry must be a JSON object, got a JSON %s', jsonb_typeof(given))
    WHEN jsonb_typeof(given -> 'invalid') = 'string' THEN format('it has a number that PostgreSQL does not take: %s', left(given ->> 'invalid', 100))
    WHEN weir._is_token(given ->> 'token') IS NOT TRUE THEN format('%s is not a token: pass it unchanged, as weir.take returned it', coalesce(left((given -> 'token')::text, 100), 'null'))
    WHEN jsonb_typeof(given -> 'percent') NOT IN ('number', 'null') OR (given ->> 'percent')::numeric NOT BETWEEN 0 AND 100
      THEN format('percent must be a number from 0 to 100, got %s', left((given -> 'percent')::text, 100))
    WHEN jsonb_typeof(given -> 'message') NOT IN ('string', 'null') THEN format('message must be a text, got a JSON %s', jsonb_typeof(given -> 'message'))
    WHEN octet_length((given -> 'checkpoint')::text) > 131072
      THEN format('the checkpoint has %s bytes, at most 131072 are allowed: keep larger data elsewhere, and its place in the checkpoint', octet_length((given -> 'checkpoint')::text))
    WHEN jsonb_typeof(given -> 'log') NOT IN ('array', 'null') THEN format('log must be an array of lines, got a JSON %s', jsonb_typeof(given -> 'log'))
    WHEN jsonb_typeof(given -> 'log') = 'array' AND jsonb_array_length(given -> 'log') > 200
      THEN format('log has %s lines, at most 200 are allowed in one entry', jsonb_array_length(given -> 'log'))
    WHEN jsonb_typeof(given -> 'log') = 'array' AND EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(given -> 'log') = 'array' THEN given -> 'log' END) l
                                                            WHERE jsonb_typeof(l -> 'text') IS DISTINCT FROM 'string' OR length(l ->> 'text') > 8000)
      THEN 'each line of log must be an object with a text of at most 8000 characters'
    ELSE (SELECT format('unknown field %s: the fields of an entry are token, percent, message, checkpoint and log', quote_ident(left(k, 100)))
          FROM jsonb_object_keys(given) k WHERE k <> ALL (ARRAY['token', 'percent', 'message', 'checkpoint', 'log']) LIMIT 1)
  END
$$;
CREATE FUNCTION weir._wrong_with(given jsonb) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT CASE
    WHEN jsonb_typeof(given) <> 'object' THEN format('an end must be a JSON object, got a JSON %s', jsonb_typeof(given))
    WHEN jsonb_typeof(given -> 'invalid') = 'string' THEN format('it has a number that PostgreSQL does not take: %s', left(given ->> 'invalid', 100))
    WHEN weir._is_token(given ->> 'token') IS NOT TRUE THEN format('%s is not a token: pass it unchanged, as weir.take returned it', coalesce(left((given -> 'token')::text, 100), 'null'))
    WHEN given ->> 'outcome' <> ALL (ARRAY['completed', 'failed', 'cancelled', 'snoozed', 'released'])
      THEN format('outcome must be completed, failed, cancelled, snoozed or released, got %s', left(given ->> 'outcome', 100))
    WHEN jsonb_typeof(given -> 'delay') NOT IN ('number', 'null') OR (given ->> 'delay')::numeric NOT BETWEEN 0 AND 315576000
      THEN format('delay must be a number of seconds from 0 to 315576000 (ten years), got %s', left((given -> 'delay')::text, 100))
    WHEN jsonb_typeof(given -> 'final') NOT IN ('boolean', 'null') THEN format('final must be true or false, got %s', left((given -> 'final')::text, 100))
    ELSE (SELECT format('unknown field %s: the fields of an end are token, outcome, error, output, delay and final', quote_ident(left(k, 100)))
          FROM jsonb_object_keys(given) k WHERE k <> ALL (ARRAY['token', 'outcome', 'error', 'output', 'delay', 'final']) LIMIT 1)
  END
$$;
CREATE FUNCTION weir.add_tasks(flow bigint, tasks jsonb) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_nestloop=off
AS $$
#variable_conflict use_column
DECLARE
  n       integer;
  bad     record;
  t       record;     -- the tasks, as arrays
  ids     bigint[];   -- of those that are there already; then of all
  new     boolean[];
  e       record;     -- what comes after what, as arrays
  fresh   bigint;
  first   bigint;     -- the first id of these
BEGIN
  IF add_tasks.flow IS NULL THEN
    RAISE EXCEPTION 'weir: add_tasks got no flow' USING ERRCODE = '22023', HINT = 'Pass an id that weir.flow has returned.';
  ELSIF add_tasks.tasks IS NULL OR jsonb_typeof(add_tasks.tasks) <> 'array' THEN
    RAISE EXCEPTION 'weir: add_tasks takes a JSON array of tasks, got %', coalesce('a JSON ' || jsonb_typeof(add_tasks.tasks), 'null') USING ERRCODE = '22023';
  END IF;
  n := jsonb_array_length(add_tasks.tasks);
  IF n > 10000 THEN
    RAISE EXCEPTION 'weir: % tasks in one call, at most 10000 are allowed', n USING ERRCODE = '22023', HINT = 'Call add_tasks several times in one transaction.';
  ELSIF n = 0 THEN
    RETURN '{}';
  END IF;
  SELECT x.nr, x.why INTO bad FROM (
    SELECT k.nr, CASE WHEN jsonb_typeof(k.task) <> 'object' THEN format('must be a JSON object, got a JSON %s', jsonb_typeof(k.task))
                      WHEN k.unknown IS NOT NULL THEN format('has an unknown key %s', to_json(left(k.unknown, 100)))
                      WHEN (jsonb_typeof(k.task -> 'task') = 'string' AND length(k.task ->> 'task') BETWEEN 1 AND 200) IS NOT TRUE THEN 'needs the name of the task, as "task": a text of 1 to 200 characters'
                      WHEN coalesce(jsonb_typeof(k.task -> 'after'), 'null') NOT IN ('array', 'null')
                        OR EXISTS (SELECT FROM jsonb_array_elements(CASE jsonb_typeof(k.task -> 'after') WHEN 'array' THEN k.task -> 'after' END) a WHERE jsonb_typeof(a) <> 'string')
                        THEN 'has an "after" that must be an array of names of tasks'
                      WHEN coalesce(jsonb_typeof(k.task -> 'ignore_failed'), 'null') NOT IN ('boolean', 'null') THEN 'has an "ignore_failed" that must be true or false' END AS why
    FROM (SELECT k.task, k.nr, (SELECT o.key FROM jsonb_object_keys(CASE jsonb_typeof(k.task) WHEN 'object' THEN k.task ELSE '{}' END) o(key)
                                WHERE o.key NOT IN ('task', 'after', 'ignore_failed', 'queue', 'kind', 'args', 'priority', 'max_attempts', 'meta', 'key') LIMIT 1) AS unknown
          FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr)) k) x
  WHERE x.why IS NOT NULL ORDER BY x.nr LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: task % of % %', bad.nr, n, bad.why USING ERRCODE = '22023', HINT = 'A task is {"task": ..., "queue": ..., "kind": ...}, optionally with after, ignore_failed, args, priority, max_attempts, meta and key.';
  END IF;

  SELECT array_agg(k.task ->> 'task' ORDER BY k.nr) AS names, array_agg(weir._callback(format('task %s', to_json(k.task ->> 'task')), k.task - '{task,after,ignore_failed}'::text[]) ORDER BY k.nr) AS jobs INTO t
  FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr);
  SELECT k.name INTO bad FROM unnest(t.names) k(name) GROUP BY k.name HAVING count(*) > 1 LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: two tasks are called %', to_json(bad.name) USING ERRCODE = '22023', HINT = 'The names of tasks are unique in their flow.';
  END IF;
  PERFORM weir._hold_flows();
  ids := ARRAY(SELECT weir._task_of(add_tasks.flow, k.name) FROM unnest(t.names) WITH ORDINALITY k(name, nr) ORDER BY k.nr);
  new := ARRAY(SELECT k.id IS NULL FROM unnest(ids) WITH ORDINALITY k(id, nr) ORDER BY k.nr);
  fresh := (SELECT count(*) FROM unnest(new) k WHERE k);
  IF fresh = 0 THEN
    RETURN ids;
  END IF;

  SELECT array_agg(k.nr::integer ORDER BY k.nr, k.name) AS nrs, array_agg(k.name ORDER BY k.nr, k.name) AS names, array_agg(b.nr::integer ORDER BY k.nr, k.name) AS befores,
         array_agg(k.is_lenient ORDER BY k.nr, k.name) AS lenient INTO e
  FROM (SELECT DISTINCT k.nr, a.name, coalesce((k.task ->> 'ignore_failed')::boolean, false) AS is_lenient
        FROM jsonb_array_elements(add_tasks.tasks) WITH ORDINALITY k(task, nr)
        CROSS JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(k.task -> 'after') WHEN 'array' THEN k.task -> 'after' ELSE '[]' END) a(name)
        WHERE new[k.nr]) k
  LEFT JOIN unnest(t.names) WITH ORDINALITY b(name, nr) ON b.name = k.name;
  IF cardinality(e.nrs) > 100000 THEN
    RAISE EXCEPTION 'weir: % names in the "after" of tasks in one call, at most 100000 are allowed', cardinality(e.nrs)
      USING ERRCODE = '22023', HINT = 'Add them in several calls. Or, where many tasks come after the same many, put one in between.';
  END IF;
  SELECT k.nr, k.name INTO bad FROM unnest(e.nrs, e.names, e.befores) k(nr, name, before) WHERE k.before IS NULL AND weir._task_of(add_tasks.flow, k.name) IS NULL LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: task % comes after %, and there is no such task', to_json(t.names[bad.nr]), to_json(left(bad.name, 200)) USING ERRCODE = '22023', HINT = 'Add that task first, or in the same call.';
  END IF;
  -- In the order of the array, nothing can wait for itself.
  IF EXISTS (SELECT FROM unnest(e.nrs, e.befores) k(nr, before) WHERE k.before >= k.nr AND new[k.before]) THEN
    PERFORM weir._refuse_cycle(t.names, new, e.nrs, e.befores);
  END IF;

  PERFORM pg_current_xact_id(), weir._join_flow(add_tasks.flow, fresh);
  ids := ARRAY(SELECT CASE WHEN k.id IS NULL THEN nextval('weir.flow_id') ELSE k.id END FROM unnest(ids) WITH ORDINALITY k(id, nr) ORDER BY k.nr);
  first := (SELECT min(u.id) FROM unnest(ids, new) u(id, is_new) WHERE u.is_new);
  INSERT INTO weir.flow (id, created_at, deadline, name, root, parent, task)
  SELECT k.id, now(), 'infinity', k.name, (SELECT f.root FROM weir.flow f WHERE f.id = add_tasks.flow), add_tasks.flow,
         -- Of those that another call adds at the same time, all of one call come first: so the tasks that count never wait for each other.
         k.job || jsonb_build_object('call', first)
  FROM unnest(ids, t.names, t.jobs, new) k(id, name, job, new) WHERE k.new;
  INSERT INTO weir.edge (flow, predecessor, successor, is_lenient) SELECT add_tasks.flow, k.name, ids[k.nr], k.is_lenient FROM unnest(e.nrs, e.names, e.lenient) k(nr, name, is_lenient);
  INSERT INTO weir.arrival (flow, ring, xid, jobs, event) SELECT k.id, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), 1, 'created' FROM unnest(ids, new) k(id, new) WHERE k.new;
  PERFORM nextval('weir.job_id');  -- wakes idle workers, whose maintainers count them
  RETURN ids;
END
$$;
CREATE FUNCTION weir.attend(worker integer, pid integer, address inet, port integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=5s
AS $$
DECLARE
  lease bigint;  -- in ms
BEGIN
  IF attend.pid IS DISTINCT FROM pg_backend_pid() OR attend.address IS DISTINCT FROM inet_client_addr() OR attend.port IS DISTINCT FROM inet_client_port() THEN
    RETURN false;
  END IF;
  PERFORM weir._hold_briefly();
  PERFORM pg_advisory_xact_lock_shared(1464158555, attend.worker);  -- it waits only for a rescuer
  PERFORM weir._check_worker(attend.worker);
  -- A process that hangs keeps its session for a lease, like every other worker. The server doesn't give up a silent connection earlier
  -- either, because the worker at its other end may not notice that and continue.
  SELECT extract(epoch FROM w.lease) * 1000 INTO lease FROM weir.worker w WHERE w.id = attend.worker AND NOT w.fenced;
  PERFORM set_config('idle_session_timeout', lease::text, false), set_config('tcp_user_timeout', '0', false),
          set_config('tcp_keepalives_idle', (lease / 1000 + 1)::text, false), set_config('tcp_keepalives_interval', (lease / 1000 + 1)::text, false),
          set_config('synchronous_commit', 'off', true), set_config('weir.attends', attend.worker || ' 0', false);
  INSERT INTO weir.attendance (worker, started_at, watched) VALUES (attend.worker, pg_postmaster_start_time(), pg_sequence_last_value('weir.watched')) ON CONFLICT DO NOTHING;
  PERFORM weir._note_word(attend.worker, 'attends', 0);
  -- A session lock survives errors and a rollback, so it is taken last. It is taken twice, so that a heartbeat can detect that it was lost.
  PERFORM pg_advisory_lock_shared(1464158554, attend.worker), pg_advisory_lock_shared(1464158554, attend.worker);
  RETURN true;
END
$$;
CREATE FUNCTION weir.begin_operation(what text, filter jsonb, by text DEFAULT NULL::text, to_queue text DEFAULT NULL::text, to_priority integer DEFAULT NULL::integer) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 100;  -- that have not ended
  given jsonb  := weir._check_operation(begin_operation.what, begin_operation.filter, begin_operation.to_queue, begin_operation.to_priority);
  f     record := weir._conditions(given);
  this  bigint;
BEGIN
  IF length(begin_operation.by) > 200 THEN
    RAISE EXCEPTION 'weir: by must have up to 200 characters, got %', length(begin_operation.by) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(begin_operation.filter -> 'queue') NOT IN ('string', 'null') THEN
    RAISE EXCEPTION 'weir: queue must be a text, got %', left((begin_operation.filter -> 'queue')::text, 100) USING ERRCODE = '22023';
  ELSIF f.queue IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q WHERE q.name = f.queue) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(1464158562, 0);  -- see _mark_operations, which holds it for a moment
  LOCK TABLE weir.operation, weir.operation_step IN ROW EXCLUSIVE MODE;
  IF begin_operation.what <> 'cancel' AND (SELECT count(*) FROM weir._open_operations()) >= most THEN
    RAISE EXCEPTION 'weir: % operations have not ended', most USING ERRCODE = '54000', HINT = 'Let them end, which needs a worker, or stop some: weir.operations() lists them.';
  END IF;
  PERFORM pg_current_xact_id();
  this := nextval('weir.operation_id');
  INSERT INTO weir.operation (id, at, by, what, filter, to_queue, to_priority)
  VALUES (this, clock_timestamp(), coalesce(nullif(begin_operation.by, ''), session_user), begin_operation.what, given, begin_operation.to_queue, begin_operation.to_priority);
  IF begin_operation.what = 'cancel' THEN
    PERFORM weir.cancel_where(f.queue, f.kinds, f.meta, f.priority, f.enqueued_after, f.enqueued_before, f.key);
  END IF;
  INSERT INTO weir.operation_step (operation, no, at, state, changed)
  VALUES (this, 0, clock_timestamp(), CASE WHEN begin_operation.what = 'cancel' THEN 'done' ELSE 'running' END, CASE WHEN begin_operation.what <> 'cancel' THEN 0 END);
  PERFORM nextval('weir.control');  -- wakes those who do the steps
  RETURN this;
END
$$;
CREATE FUNCTION weir.cancel_flow(flow bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most   CONSTANT integer := 2000;
  now_is text;
BEGIN
  SELECT i.state INTO now_is FROM weir._read_flows(ARRAY[cancel_flow.flow]) i;
  IF now_is IN ('open', 'running', 'blocked') THEN
    IF (SELECT count(*) FROM weir.cancellation_where w WHERE w.flow IS NOT NULL AND NOT w.is_late) >= most THEN
      RAISE EXCEPTION 'weir: % cancellations are not finished', most USING ERRCODE = '54000', HINT = 'Each is kept until workers have passed its jobs, scheduled ones are due, and transactions that were open then have ended: see weir.cancel_where.';
    END IF;
    PERFORM weir._cancel_members(cancel_flow.flow);
    RETURN 'cancelling';
  END IF;
  RETURN now_is;
END
$$;
CREATE FUNCTION weir.cancel_where(queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, priority integer DEFAULT NULL::integer, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, key text DEFAULT NULL::text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 1000;
  this weir.cancellation_where;
  n    bigint;
BEGIN
  PERFORM weir._check_filter('cancel_where', cancel_where.queue, cancel_where.kinds, cancel_where.meta, cancel_where.priority, cancel_where.key, NULL,
    num_nonnulls(cancel_where.enqueued_after, cancel_where.enqueued_before) > 0,
    'Pass a queue, a key, kinds, meta, a priority or a time. To cancel all jobs, pass enqueued_before => now().');
  IF cancel_where.queue IS NOT NULL AND NOT EXISTS (SELECT FROM weir.queue q WHERE q.name = cancel_where.queue) THEN
    RETURN NULL;
  END IF;
  this.upto := coalesce(pg_sequence_last_value('weir.job_id'), 0);
  this.queue := cancel_where.queue;
  this.kinds := cancel_where.kinds;
  this.meta := cancel_where.meta;
  this.priority := cancel_where.priority;
  this.enqueued_after := cancel_where.enqueued_after;
  this.enqueued_before := cancel_where.enqueued_before;
  this.key := cancel_where.key;
  n := (SELECT count(*) FROM weir.cancellation_where w WHERE w.flow IS NULL);
  IF n >= 2 * most OR n >= most AND NOT EXISTS (SELECT FROM weir.cancellation_where w WHERE weir._covers(this, w)) THEN
    RAISE EXCEPTION 'weir: % cancellations by filter are not finished', n
      USING ERRCODE = '54000', HINT = 'Each is kept until workers have passed its jobs, scheduled ones are due, and transactions that were open then have ended. Cancel with one wider filter, which replaces those that it covers; or end old transactions (weir doctor names them), and work or resume the queues; or cancel single jobs with weir.cancel.';
  END IF;
  PERFORM pg_current_xact_id();
  INSERT INTO weir.cancellation_where (upto, queue, kinds, meta, priority, enqueued_after, enqueued_before, key)
  VALUES (this.upto, this.queue, this.kinds, this.meta, this.priority, this.enqueued_after, this.enqueued_before, this.key)
  RETURNING no INTO this.no;
  PERFORM nextval('weir.control');
  -- In order, those that were to be tried again hold up their keys no more.
  INSERT INTO weir.release (gate, ring, xid, n, lanes)
  SELECT l.gate, pg_sequence_last_value('weir.active_release'), pg_current_xact_id(), 0, CASE WHEN this.key IS NOT NULL THEN ARRAY[weir._key_bits(this.key)] ELSE '{}' END
  FROM weir.queue_limit l WHERE l.in_order AND (this.queue IS NULL OR l.name = this.queue);
  IF FOUND THEN
    PERFORM nextval('weir.job_id');  -- wakes idle workers
  END IF;
  RETURN this.no;
END
$$;
CREATE FUNCTION weir.cancel(job_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  job weir.job_info;
BEGIN
  SELECT i.* INTO job FROM weir.job_info(job_id) i;
  IF job.state IN ('available', 'scheduled', 'running') THEN
    INSERT INTO weir.cancellation (id, queue) VALUES (job_id, job.queue) ON CONFLICT (id) DO NOTHING;
    PERFORM pg_current_xact_id();
    PERFORM nextval('weir.control');
    -- In order, the next job of its key waits for it no more.
    PERFORM weir._free_slots(ARRAY[l.gate], ARRAY[0], ARRAY[weir._key_bits(job.key)]) FROM weir.queue_limit l
    WHERE l.name = job.queue AND l.in_order AND job.key IS NOT NULL;
    RETURN CASE job.state WHEN 'running' THEN 'requested' ELSE 'cancelled' END;
  END IF;
  RETURN job.state;
END
$$;
CREATE FUNCTION weir.checkpoint(job_id bigint) RETURNS jsonb LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  found_it jsonb;
BEGIN
  LOCK TABLE weir.report IN ACCESS SHARE MODE;  -- before the snapshot: see look.sql
  SELECT r.checkpoint INTO found_it FROM weir.report r
  WHERE r.job_id = checkpoint.job_id AND r.checkpoint IS NOT NULL ORDER BY r.claim DESC, r.no DESC LIMIT 1;
  found_it := nullif(jsonb_build_array(found_it) -> 0, 'null');  -- out of TOAST now: the table is released, and may then be truncated
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN found_it;
END
$$;
CREATE PROCEDURE weir.chores() LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  chore text;
  again boolean;
BEGIN
  FOREACH chore IN ARRAY ARRAY['promote', 'rescue', 'rotate', 'rotate_history', 'rotate_later', 'rotate_messages', 'resurvey', 'count_minutes', 'tidy', 'fold_arrivals'] LOOP
    -- Each chore has a transaction of its own. A procedure that commits can't be SECURITY DEFINER or have settings, so it runs with the
    -- caller's rights. The first COMMIT refuses to run inside the caller's transaction before anything is done.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;  -- whatever the role's default
    BEGIN
      EXECUTE format('SELECT FROM weir._%s()', chore);
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: %: %', chore, SQLERRM USING ERRCODE = SQLSTATE;
    END;
  END LOOP;
  FOR round IN 1..20 LOOP  -- what has been counted may mean something for other flows
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    BEGIN
      EXECUTE 'SELECT f.again FROM weir._fold_arrivals() f' INTO again;
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: fold_arrivals: %', SQLERRM USING ERRCODE = SQLSTATE;
      again := false;
    END;
    EXIT WHEN again IS NOT TRUE;
  END LOOP;
  FOR round IN 1..5 LOOP  -- each takes a while, for which other chores wait
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    BEGIN
      EXECUTE 'SELECT s.operation IS NOT NULL FROM weir._step_operations() s' INTO again;
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'weir: step_operations: %', SQLERRM USING ERRCODE = SQLSTATE;
      again := false;
    END;
    EXIT WHEN again IS NOT TRUE;
  END LOOP;
END
$$;
CREATE FUNCTION weir.clear_limit(queue text, per_key boolean DEFAULT NULL::boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
BEGIN
  PERFORM weir._check_isolation('clear_limit');
  IF NOT EXISTS (SELECT FROM weir.queue_limit l WHERE l.name = queue
                   AND (per_key IS NULL OR CASE WHEN per_key THEN num_nonnulls(l.key_running, l.key_rate) ELSE num_nonnulls(l.running, l.rate) END > 0)) THEN
    RETURN false;
  END IF;
  PERFORM weir._stop_claims('clear_limit');
  IF per_key THEN
    UPDATE weir.queue_limit l SET version = nextval('weir.limit_version'), key_running = NULL, key_rate = NULL, key_per = NULL, key_burst = NULL, in_order = false WHERE l.name = queue;
  ELSIF NOT per_key THEN
    UPDATE weir.queue_limit l SET version = nextval('weir.limit_version'), running = NULL, rate = NULL, per = NULL, burst = NULL WHERE l.name = queue;
  END IF;
  DELETE FROM weir.queue_limit l WHERE l.name = queue AND (per_key IS NULL OR num_nonnulls(l.running, l.rate, l.key_running, l.key_rate) = 0);
  IF FOUND THEN
    UPDATE weir.queue q SET gate = NULL WHERE q.name = queue;
  END IF;
  PERFORM nextval('weir.control');
  RETURN true;
END
$$;
CREATE FUNCTION weir.complete(worker integer, token text, output text DEFAULT NULL::text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  holds record := weir._named_by(ARRAY[complete.token]);
BEGIN
  PERFORM weir._complete(complete.worker, holds.lanes[1], holds.seqs[1], holds.ids[1], complete.output);
END
$$;
CREATE FUNCTION weir.delete_where(queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, priority integer DEFAULT NULL::integer, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, error text DEFAULT NULL::text, after text DEFAULT NULL::text, max_rows integer DEFAULT 500, key text DEFAULT NULL::text, shape text DEFAULT NULL::text, finished_after timestamp with time zone DEFAULT NULL::timestamp with time zone, finished_before timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT deleted integer, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  ids bigint[];
BEGIN
  PERFORM weir._check_step('delete_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, max_rows, shape, num_nonnulls(finished_after, finished_before) > 0);
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(ARRAY['failed'], queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, after, coalesce(max_rows, 500),
                          shape => shape, finished_after => finished_after, finished_before => finished_before) s;
  PERFORM weir._lock_to_retry(ids);
  deleted := weir._forget_failures(ids);
END
$$;
CREATE FUNCTION weir.delete(job_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._check_isolation('delete');
  IF (SELECT i.state FROM weir.job_info(job_id) i) = 'failed' THEN
    PERFORM weir._lock_to_retry(ARRAY[job_id]);
    IF weir._forget_failures(ARRAY[job_id]) = 1 THEN
      RETURN 'deleted';
    END IF;
  END IF;
  RETURN (SELECT i.state FROM weir.job_info(job_id) i);
END
$$;
CREATE FUNCTION weir.disconnect(user_name text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._revoke(disconnect.user_name, NULL);
END
$$;
CREATE FUNCTION weir.drop_retry_rule(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  DELETE FROM weir.retry_rule r WHERE r.name = drop_retry_rule.name;
  RETURN FOUND;
END
$$;
CREATE FUNCTION weir.drop_schedule(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  DELETE FROM weir.schedule s WHERE s.name = drop_schedule.name;
  RETURN FOUND;
END
$$;
CREATE FUNCTION weir.enqueue_many(jobs jsonb) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
BEGIN
  RETURN (SELECT e.ids FROM weir._enqueue_json(jobs) e);
END
$$;
CREATE FUNCTION weir.enqueue_many(queue text[], kind text[], args jsonb[] DEFAULT NULL::jsonb[], priority integer[] DEFAULT NULL::integer[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], max_attempts integer[] DEFAULT NULL::integer[], meta jsonb[] DEFAULT NULL::jsonb[], key text[] DEFAULT NULL::text[], flow bigint[] DEFAULT NULL::bigint[], once text[] DEFAULT NULL::text[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
BEGIN
  RETURN (SELECT e.ids FROM weir._enqueue_many(queue, kind, args, priority, run_at, max_attempts, meta, key, flow, once) e);
END
$$;
CREATE FUNCTION weir.enqueue_unique(queue text, kind text, args jsonb DEFAULT '{}'::jsonb, unique_key text DEFAULT NULL::text, fields text[] DEFAULT NULL::text[], until text DEFAULT NULL::text, within interval DEFAULT NULL::interval, replace boolean DEFAULT NULL::boolean, wait boolean DEFAULT NULL::boolean, priority integer DEFAULT 2, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT 25, meta jsonb DEFAULT NULL::jsonb, key text DEFAULT NULL::text, OUT id bigint, OUT duplicate boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
DECLARE
  hash     uuid;
  found    record;
  lane     bigint;
  no       bigint;
  until_at timestamptz;
BEGIN
  args := coalesce(args, '{}');
  priority := coalesce(priority, 2);
  max_attempts := coalesce(max_attempts, 25);
  replace := coalesce(replace, false);
  PERFORM weir._check_job(queue, kind, args, priority, max_attempts, meta), weir._check_unique(unique_key, fields, until, within, replace, args), weir._check_key(key);
  IF run_at >= '10000-01-01 00:00:00+00' THEN
    RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999', run_at USING ERRCODE = '22023';
  END IF;
  hash := weir._unique_key(queue, kind, args, unique_key, fields);
  IF wait THEN
    PERFORM weir._check_isolation('enqueue_unique with wait', true), pg_advisory_xact_lock(1464158557, hashtext(hash::text));
  END IF;

  -- Rolling back a block releases its locks, which would otherwise keep segments from being reclaimed until the caller's transaction ends. A segment
  -- that is emptied just before they are taken may hide a job: then this one is logged, and the claims decide.
  BEGIN
    SELECT n.* INTO found FROM weir._newest_of_key(hash, 9223372036854775807, true, now() - within) n;
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  duplicate := CASE WHEN found.id IS NULL THEN false
                    WHEN within IS NOT NULL THEN true
                    WHEN replace OR until = 'started' THEN found.waits
                    ELSE found.waits OR found.runs END;
  IF duplicate AND NOT replace THEN
    id := found.id;
    RETURN;
  END IF;

  lane := weir._lane_of(queue, priority, key);
  PERFORM pg_current_xact_id();  -- before the id is drawn, as in enqueue
  id := nextval('weir.job_id');
  no := id * 2 + replace::integer;
  until_at := CASE WHEN within IS NOT NULL THEN now() + within WHEN replace OR until = 'started' THEN '-infinity' END;
  INSERT INTO weir.keyed (queue) SELECT queue WHERE NOT EXISTS (SELECT FROM weir.keyed k WHERE k.queue = enqueue_unique.queue);
  IF run_at IS NULL OR run_at <= now() THEN
    INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
    VALUES (id, pg_current_xact_id(), now(), lane, 1, max_attempts, pg_sequence_last_value('weir.active_job'), kind, args, meta, hash, no, until_at, key);
  ELSE
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
    VALUES (id, pg_current_xact_id(), run_at, now(), lane, 1, max_attempts, pg_sequence_last_value('weir.active_later'), kind, args, meta, hash, no, until_at, key);
  END IF;
END
$$;
CREATE FUNCTION weir.enqueued(max_rows integer DEFAULT 1000) RETURNS SETOF weir.job_info LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  mine CONSTANT xid8 := pg_current_xact_id_if_assigned();
  this bigint;
BEGIN
  IF enqueued.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: enqueued shows 1 to 10000 at once, got %', enqueued.max_rows USING ERRCODE = '22023';
  END IF;
  FOR this IN
    -- The leading rows show in which lanes the transaction has logged jobs; a job that it has retried was not enqueued by it.
    SELECT u.id FROM (
      SELECT j.id FROM (SELECT DISTINCT k.lane FROM weir.job k WHERE k.xid = mine AND k.leads) l
      CROSS JOIN LATERAL (SELECT j.id FROM weir.job j WHERE j.lane = l.lane AND j.xid = mine AND j.attempt = 1 AND j.put_off = 0 OFFSET 0) j
      UNION ALL
      SELECT l.id FROM weir.later l WHERE l.xid = mine AND l.attempt = 1 AND l.put_off = 0) u
    ORDER BY u.id LIMIT coalesce(enqueued.max_rows, 1000)
  LOOP
    RETURN QUERY SELECT k.* FROM weir._read_job(this, 1) k;
  END LOOP;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.enqueue(queue text, kind text, args jsonb DEFAULT '{}'::jsonb, priority integer DEFAULT 2, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT 25, meta jsonb DEFAULT NULL::jsonb, key text DEFAULT NULL::text, flow bigint DEFAULT NULL::bigint, once text DEFAULT NULL::text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
DECLARE
  this_xid xid8;
  lane     bigint;
  new_id   bigint;
BEGIN
  IF once IS NOT NULL THEN
    RETURN (SELECT e.ids[1] FROM weir._enqueue_many(ARRAY[queue], ARRAY[kind], ARRAY[args], ARRAY[priority], ARRAY[run_at], ARRAY[max_attempts], ARRAY[meta], ARRAY[key], ARRAY[flow], ARRAY[once]) e);
  END IF;
  -- Each transaction initializes each expression again, which costs more than evaluating it: so there are few, and an existing queue's name isn't checked.
  SELECT (q.id::bigint << 39) + priority - 1, pg_current_xact_id() INTO lane, this_xid FROM weir.queue q WHERE q.name = queue ORDER BY q.id LIMIT 1;
  IF (lane > 0 AND key IS NULL AND length(kind) BETWEEN 1 AND 128 AND priority BETWEEN 1 AND 4 AND max_attempts BETWEEN 1 AND 1000 AND meta IS NULL
      AND jsonb_typeof(args) = 'object' AND pg_column_size(args) <= 2000 AND pg_column_compression(args) IS NULL) IS NOT TRUE THEN
    args := coalesce(args, '{}');
    priority := coalesce(priority, 2);
    max_attempts := coalesce(max_attempts, 25);
    PERFORM weir._check_job(queue, kind, args, priority, max_attempts, meta);
    lane := weir._lane_of(queue, priority, key);
    this_xid := pg_current_xact_id();
  END IF;
  IF run_at IS NULL OR run_at <= now() THEN
    INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
    VALUES (nextval('weir.job_id'), this_xid, now(), lane, 1, max_attempts,
            pg_sequence_last_value('weir.active_job'), kind, args, meta, key, flow)
    RETURNING id INTO new_id;
  ELSE
    IF run_at >= '10000-01-01 00:00:00+00' THEN  -- later times have no form in JSON that all clients read
      RAISE EXCEPTION 'weir: run_at is %: a job can be scheduled up to the year 9999', run_at USING ERRCODE = '22023';
    END IF;
    INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, key, flow)
    VALUES (nextval('weir.job_id'), this_xid, run_at, now(), lane, 1, max_attempts,
            pg_sequence_last_value('weir.active_later'), kind, args, meta, key, flow)
    RETURNING id INTO new_id;
  END IF;
  IF flow IS NOT NULL THEN
    PERFORM weir._join_flow(flow, 1);
  END IF;
  RETURN new_id;
END
$$;
CREATE FUNCTION weir.failure_groups(queue text DEFAULT NULL::text, kind text DEFAULT NULL::text, since timestamp with time zone DEFAULT NULL::timestamp with time zone, before timestamp with time zone DEFAULT NULL::timestamp with time zone, max_rows integer DEFAULT NULL::integer, key text DEFAULT NULL::text) RETURNS SETOF weir.failure_group LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001 SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 10000;  -- failures that are looked at
  ids   bigint[];
  lanes bigint[];  -- of the key in the queue: only there are they indexed
  rest  timestamptz;
  newest record;
  none  weir.failure_group;
BEGIN
  max_rows := coalesce(failure_groups.max_rows, 100);
  IF max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: failure_groups returns 1 to 10000 groups, got max_rows %', max_rows USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_key(failure_groups.key);
  since := coalesce(failure_groups.since, '-infinity');
  before := coalesce(failure_groups.before, 'infinity');
  IF failure_groups.queue IS NOT NULL THEN
    ids := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = failure_groups.queue);
    lanes := CASE WHEN failure_groups.key IS NOT NULL THEN weir._lanes_of_key(failure_groups.queue, failure_groups.key) END;
  END IF;
  -- The newest ones, and all that ended at the same time as the last of them: so that a next call continues before that time.
  SELECT count(*) >= most AS is_cut, min(k) AS upto INTO newest
  FROM weir._failed_between(lanes, since, before, most) k;
  rest := CASE WHEN newest.is_cut AND EXISTS (SELECT FROM weir._failed_between(lanes, since, newest.upto, 1)) THEN newest.upto END;
  RETURN QUERY
  WITH seen AS MATERIALIZED (
    SELECT f.id, f.kind, f.finished_at, left(f.error, 1000) AS head, CASE WHEN length(f.error) > 1000 THEN right(f.error, 2000) END AS tail
    FROM (SELECT f.* FROM weir.failure f WHERE lanes IS NULL AND f.finished_at >= newest.upto AND f.finished_at >= since AND f.finished_at < before
          UNION ALL
          SELECT f.* FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
            SELECT f.* FROM weir.failure f WHERE f.lane = l.lane AND f.key IS NOT NULL AND f.finished_at >= newest.upto AND f.finished_at >= since AND f.finished_at < before
            ORDER BY f.finished_at DESC, f.id DESC LIMIT 2 * most) f) f
    WHERE (ids IS NULL OR f.lane >> 39 = ANY (ids)) AND (failure_groups.kind IS NULL OR f.kind = failure_groups.kind) AND (failure_groups.key IS NULL OR f.key = failure_groups.key)
      -- A job that was retried, or has failed again since, is not failed as it was here.
      AND NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt AND k.segment = f.segment)  -- see weir._retry
    LIMIT 2 * most
  ), texts AS MATERIALIZED (  -- the same text often occurs many times
    SELECT s.kind, s.head, s.tail, count(*) AS n, min(s.finished_at) AS first_at, max(s.finished_at) AS last_at, max(s.id) AS id FROM seen s GROUP BY s.kind, s.head, s.tail
  ), shapes AS MATERIALIZED (
    SELECT t.*, weir._shape_of(concat(t.head, t.tail)) AS shape FROM texts t
  )
  SELECT g.kind, g.shape, sum(g.n)::bigint, min(g.first_at), max(g.last_at), (array_agg(g.id ORDER BY g.last_at DESC))[1],
         (array_agg(g.head ORDER BY g.last_at DESC))[1], rest
  FROM shapes g GROUP BY g.kind, g.shape ORDER BY 3 DESC, 5 DESC, 1, 2 LIMIT max_rows;
  IF NOT FOUND AND rest IS NOT NULL THEN
    none.jobs := 0;
    none.rest := rest;
    RETURN NEXT none;
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.flow_info(flow bigint) RETURNS SETOF weir.flow_info LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
  SELECT i.* FROM weir._read_flows(ARRAY[flow_info.flow]) i
$$;
CREATE FUNCTION weir.flow_outputs(flow bigint, task text DEFAULT NULL::text, after bigint DEFAULT NULL::bigint, max_rows integer DEFAULT 100) RETURNS TABLE(no bigint, job bigint, task_name text, kind text, output text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  IF flow_outputs.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: flow_outputs returns 1 to 1000 outputs, got %', flow_outputs.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last no as after.';
  END IF;
  LOCK TABLE weir.output IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^output_[1-4]$', 'weir: a table of outputs was emptied after this transaction took its snapshot, which does not show what was moved');
  RETURN QUERY
  SELECT o.no, o.job, o.task, o.kind, o.output FROM weir.output o
  WHERE o.flow = flow_outputs.flow AND o.no > coalesce(flow_outputs.after, 0) AND (flow_outputs.task IS NULL OR o.task = flow_outputs.task)
    AND NOT EXISTS (SELECT FROM weir.output n WHERE n.flow = o.flow AND n.job = o.job AND n.no > o.no)  -- it has completed once more
  ORDER BY o.no LIMIT coalesce(flow_outputs.max_rows, 100);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.flow_running(flow bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
DECLARE
  most    CONSTANT integer := 5000;  -- batches read, approximately
  workers integer[];
  n       bigint;
BEGIN
  PERFORM weir._lock_log(), weir._hold_flows();
  workers := weir._holders();
  n := (SELECT coalesce(sum(k.n), 0) FROM (
          SELECT k.flow, count(*) AS n FROM (
            SELECT CASE WHEN cardinality(b.flows) = 1 THEN b.flows[1] ELSE u.flow END AS flow
            FROM weir._in_hand(workers, 9223372036854775807, greatest(20, most / greatest(cardinality(workers), 1))) h
            CROSS JOIN LATERAL (SELECT b.ids, b.flows FROM weir.batch b WHERE b.worker = h.worker AND b.no = h.no AND b.lane = h.lane AND b.flows IS NOT NULL OFFSET 0) b
            CROSS JOIN LATERAL unnest(b.ids, b.flows) u(id, flow)
            WHERE u.id = ANY (h.ids)) k
          GROUP BY k.flow OFFSET 0) k  -- one look for each flow
        WHERE weir._is_within(k.flow, flow_running.flow));
  RAISE SQLSTATE 'WR099';  -- releases the log
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN n;
END
$$;
CREATE FUNCTION weir.flow(name text, on_done jsonb DEFAULT NULL::jsonb, on_success jsonb DEFAULT NULL::jsonb, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, parent bigint DEFAULT NULL::bigint, fail_fast boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
DECLARE
  new_id bigint := nextval('weir.flow_id');
BEGIN
  IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'weir: the name of a flow must have 1 to 200 characters, got %', CASE WHEN name IS NULL THEN 'null' ELSE length(name)::text END USING ERRCODE = '22023';
  ELSIF deadline IS NOT NULL AND (NOT isfinite(deadline) OR deadline < now()) THEN
    RAISE EXCEPTION 'weir: the deadline of a flow must be a time to come, got %', deadline USING ERRCODE = '22023', HINT = 'Until then, somebody has to seal it. NULL: one day.';
  END IF;
  PERFORM pg_current_xact_id();
  IF parent IS NOT NULL THEN
    PERFORM weir._join_flow(parent, 1);
  END IF;
  INSERT INTO weir.flow (id, created_at, deadline, name, on_done, on_success, fail_fast, root, parent)
  VALUES (new_id, now(), coalesce(deadline, now() + interval '1 day'), name, weir._callback('on_done', on_done), weir._callback('on_success', on_success), coalesce(fail_fast, false),
          coalesce((SELECT f.root FROM weir.flow f WHERE f.id = parent), new_id), parent);
  PERFORM weir._arrive(new_id, 'jobs', 0, 'created');
  RETURN new_id;
END
$$;
CREATE FUNCTION weir.flows(after bigint DEFAULT NULL::bigint, max_rows integer DEFAULT 100, parent bigint DEFAULT NULL::bigint) RETURNS SETOF weir.flow_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  IF flows.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: flows returns 1 to 1000 flows, got %', flows.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last id as after.';
  END IF;
  RETURN QUERY SELECT i.* FROM weir._read_flows(CASE WHEN flows.parent IS NULL THEN ARRAY(
    SELECT f.id FROM weir.flow f WHERE f.parent IS NULL AND f.id < coalesce(flows.after, 9223372036854775807) ORDER BY f.id DESC LIMIT coalesce(flows.max_rows, 100))
  ELSE ARRAY(
    SELECT f.id FROM (SELECT f.id, f.task FROM weir.flow f WHERE f.parent = flows.parent OFFSET 0) f
    WHERE f.task IS NULL AND f.id < coalesce(flows.after, 9223372036854775807) ORDER BY f.id DESC LIMIT coalesce(flows.max_rows, 100)) END) i;
END
$$;
CREATE FUNCTION weir.forget_relay(relay text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=5s
AS $$
#variable_conflict use_column
BEGIN
  PERFORM weir._check_isolation('forget_relay'), weir._hold_briefly();
  LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT FROM weir.relay r WHERE r.relay = forget_relay.relay) THEN
    RETURN false;
  END IF;
  CREATE TEMP TABLE weir_keep ON COMMIT DROP AS
    SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r WHERE r.relay <> forget_relay.relay ORDER BY r.relay, r.no DESC;
  TRUNCATE weir.relay;
  INSERT INTO weir.relay SELECT k.* FROM pg_temp.weir_keep k;
  RETURN true;
END
$$;
CREATE FUNCTION weir.heartbeat(worker integer, running integer DEFAULT 0, OUT fenced boolean, OUT workers integer, OUT sharing integer) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  before  text := current_setting('weir.attends', true);
  attends boolean := coalesce(split_part(before, ' ', 1) = heartbeat.worker::text, false);
  word    text := heartbeat.worker || ' ' || coalesce(heartbeat.running, 0);
  writes  boolean := before IS DISTINCT FROM word;
BEGIN
  IF attends THEN
    IF NOT pg_advisory_unlock_shared(1464158554, heartbeat.worker) THEN  -- of two: all locks of this session were released
      writes := true;
      PERFORM pg_advisory_lock_shared(1464158554, heartbeat.worker);
    END IF;
    PERFORM pg_advisory_lock_shared(1464158554, heartbeat.worker);
    -- A delayed heartbeat of another connection may have become the last word. No other will follow it, so it must not stay.
    writes := writes OR coalesce(weir._last_says(heartbeat.worker) <> 'attends', false);
  END IF;
  IF writes THEN
    PERFORM weir._hold_briefly(), pg_advisory_xact_lock_shared(1464158555, heartbeat.worker);
  END IF;
  SELECT NOT coalesce(bool_or(w.id = heartbeat.worker), false), count(*), count(*) FILTER (WHERE w.queues && me.queues)
    INTO heartbeat.fenced, heartbeat.workers, heartbeat.sharing
  FROM weir.worker w LEFT JOIN weir.worker me ON me.id = heartbeat.worker AND NOT me.fenced
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);
  IF writes AND NOT heartbeat.fenced THEN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF attends THEN
      PERFORM set_config('weir.attends', word, false);
    END IF;
    PERFORM weir._note_word(heartbeat.worker, CASE WHEN attends THEN 'attends' ELSE 'beats' END, coalesce(heartbeat.running, 0));
  END IF;
END
$$;
CREATE FUNCTION weir.history(queue text DEFAULT NULL::text, since timestamp with time zone DEFAULT NULL::timestamp with time zone, step interval DEFAULT NULL::interval) RETURNS TABLE(at timestamp with time zone, completed bigint, failed bigint, cancelled bigint, retried bigint, other bigint, waiting bigint, oldest interval, wait_p50 interval, wait_p95 interval, run_p50 interval, run_p95 interval) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  max_points CONSTANT integer := 500;
  zero       CONSTANT timestamptz := '1970-01-01 00:00:00+00';
  counted    timestamptz := zero + (pg_sequence_last_value('weir.counted_minute') - 1) * interval '1 minute';  -- the minutes before are counted
  first      timestamptz := least(greatest(coalesce(history.since, counted - interval '1 hour'), counted - interval '72 hours'), counted);
  seconds    numeric := extract(epoch FROM history.step);
  every      interval;
BEGIN
  IF seconds < 60 OR seconds > 86400 OR seconds % 60 <> 0 THEN
    RAISE EXCEPTION 'weir: the step of a history must be a number of minutes, from 1 minute to 1 day, got %', history.step USING ERRCODE = '22023';
  END IF;
  every := make_interval(secs => coalesce(seconds, CASE WHEN counted - first <= interval '6 hours' THEN 60 WHEN counted - first <= interval '24 hours' THEN 300 ELSE 600 END)::float8);
  IF counted - first > every * max_points THEN
    RAISE EXCEPTION 'weir: a history of % in steps of % has more than % points', counted - first, every, max_points
      USING ERRCODE = '22023', HINT = 'Pass a longer step, or a later since.';
  END IF;
  first := date_bin(every, first, zero);
  LOCK TABLE weir.minute IN ACCESS SHARE MODE;
  RETURN QUERY
  WITH sums AS MATERIALIZED (
    SELECT date_bin(every, m.at, zero) AS bin, sum(m.completed)::bigint AS completed, sum(m.failed)::bigint AS failed, sum(m.cancelled)::bigint AS cancelled, sum(m.retried)::bigint AS retried,
           sum(m.other)::bigint AS other, max(m.waiting) AS waiting, max(m.oldest) AS oldest, sum(m.waits)::text AS waits, sum(m.runs)::text AS runs
    FROM weir.minute m WHERE m.queue = coalesce(history.queue, '') AND m.at >= first AND m.at < counted GROUP BY 1
  ), buckets AS MATERIALIZED (  -- twelve digits each, from the first that is not zero
    SELECT s.bin, x.ran, b.bucket, substr(d.digits, d.n - 12 * b.bucket - 11, 12)::float8 AS n
    FROM sums s CROSS JOIN LATERAL (VALUES (false, s.waits), (true, s.runs)) x(ran, counts)
    CROSS JOIN LATERAL (SELECT (length(x.counts) + 11) / 12 * 12 AS n OFFSET 0) k
    CROSS JOIN LATERAL (SELECT lpad(x.counts, k.n, '0') AS digits, k.n OFFSET 0) d
    CROSS JOIN LATERAL generate_series((length(x.counts) - length(rtrim(x.counts, '0'))) / 12, d.n / 12 - 1) b(bucket)
  ), heaped AS (
    SELECT b.*, sum(b.n) OVER (PARTITION BY b.bin, b.ran ORDER BY b.bucket ROWS UNBOUNDED PRECEDING) AS heap, sum(b.n) OVER (PARTITION BY b.bin, b.ran) AS total FROM buckets b
  ), quantiles AS (  -- durations within a bucket are taken to be evenly spread, on its logarithmic scale
    SELECT h.bin, h.ran, p.p, CASE WHEN h.bucket = 0 THEN f.f ELSE power(2, (h.bucket - 1 + f.f) / 2) END * interval '1 millisecond' AS took
    FROM heaped h CROSS JOIN (VALUES (0.5::float8), (0.95)) p(p) CROSS JOIN LATERAL (SELECT (p.p * h.total - (h.heap - h.n)) / nullif(h.n, 0) AS f) f
    WHERE p.p * h.total > h.heap - h.n AND p.p * h.total <= h.heap
  ), spread AS MATERIALIZED (
    SELECT q.bin, max(q.took) FILTER (WHERE NOT q.ran AND q.p = 0.5) AS wait_p50, max(q.took) FILTER (WHERE NOT q.ran AND q.p > 0.5) AS wait_p95,
           max(q.took) FILTER (WHERE q.ran AND q.p = 0.5) AS run_p50, max(q.took) FILTER (WHERE q.ran AND q.p > 0.5) AS run_p95
    FROM quantiles q GROUP BY q.bin
  )
  SELECT t.at, coalesce(s.completed, 0), coalesce(s.failed, 0), coalesce(s.cancelled, 0), coalesce(s.retried, 0), coalesce(s.other, 0), coalesce(s.waiting, 0), coalesce(s.oldest, interval '0'),
         p.wait_p50, p.wait_p95, p.run_p50, p.run_p95
  FROM generate_series(first, counted - every, every) t(at) LEFT JOIN sums s ON s.bin = t.at LEFT JOIN spread p ON p.bin = t.at
  ORDER BY t.at;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.hubs() RETURNS TABLE(hub text, address text, seen_at timestamp with time zone, tick bigint, behind bigint, subscribers integer, channels integer, messages_per_second real, deliveries_per_second real) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT b.hub, b.address, b.at, b.tick,
         greatest(0, (SELECT max(t.seq) FROM weir.tick t WHERE t.at <= b.at) - b.tick), b.subscribers,
         b.channels, b.messages, b.deliveries
  FROM (SELECT DISTINCT ON (b.hub) b.* FROM weir.hub_beat b WHERE b.at > clock_timestamp() - interval '5 minutes' ORDER BY b.hub, b.at DESC) b
  WHERE b.tick IS NOT NULL ORDER BY b.hub
$$;
CREATE FUNCTION weir.increment(flow bigint, counter text, n bigint DEFAULT 1) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
#variable_conflict use_variable
BEGIN
  IF counter IS NULL OR length(counter) NOT BETWEEN 1 AND 100 THEN
    RAISE EXCEPTION 'weir: the name of a counter must have 1 to 100 characters, got %', CASE WHEN counter IS NULL THEN 'null' ELSE length(counter)::text END USING ERRCODE = '22023';
  ELSIF flow IS NULL THEN
    RAISE EXCEPTION 'weir: counters belong to a flow, got null' USING ERRCODE = '22023', HINT = 'Pass the id of a flow that has not ended.';
  END IF;
  PERFORM weir._check_counts(flow, jsonb_build_object(counter, coalesce(n, 1)));
  PERFORM weir._join_flow(flow, 0, jsonb_build_object(counter, coalesce(n, 1)));
END
$$;
CREATE FUNCTION weir.job_info(job_id bigint) RETURNS SETOF weir.job_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._lock_log();
  RETURN QUERY SELECT j.* FROM weir._read_job(job_info.job_id, 25) j;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.jobs_page(states text[] DEFAULT NULL::text[], queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, after text DEFAULT NULL::text, max_rows integer DEFAULT 100, key text DEFAULT NULL::text, flow bigint DEFAULT NULL::bigint, args_text text DEFAULT NULL::text, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, shape text DEFAULT NULL::text, finished_after timestamp with time zone DEFAULT NULL::timestamp with time zone, finished_before timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT jobs jsonb, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._lock_log();
  SELECT to_jsonb(p.jobs), p.next INTO jobs, next
  FROM weir._read_page(jobs_page.states, jobs_page.queue, jobs_page.kinds, jobs_page.meta, jobs_page.key, jobs_page.after, coalesce(jobs_page.max_rows, 100), jobs_page.flow,
                       jobs_page.args_text, jobs_page.enqueued_after, jobs_page.enqueued_before, jobs_page.shape, jobs_page.finished_after, jobs_page.finished_before) p;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.jobs(state text, queue text DEFAULT NULL::text, max_rows integer DEFAULT 100, key text DEFAULT NULL::text) RETURNS SETOF weir.job_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  left_ integer := coalesce(jobs.max_rows, 100);
  after text;
  p     record;
BEGIN
  IF jobs.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: jobs returns 1 to 10000 jobs, got %', jobs.max_rows USING ERRCODE = '22023', HINT = 'Use weir.jobs_page to read more, page by page.';
  END IF;
  PERFORM weir._lock_log();
  LOOP
    SELECT k.* INTO p FROM weir._read_page(ARRAY[jobs.state], jobs.queue, NULL, NULL, jobs.key, after, least(left_, 1000)) k;
    RETURN QUERY SELECT j.* FROM unnest(p.jobs) j;
    left_ := left_ - cardinality(p.jobs);
    after := p.next;
    EXIT WHEN left_ = 0 OR after IS NULL;
  END LOOP;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.keys_in_use() RETURNS TABLE(key text, place text, n bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off
AS $$
#variable_conflict use_column
DECLARE
  kept interval;
BEGIN
  kept := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
  -- First what becomes jobs, then jobs: whatever becomes one meanwhile is counted twice, and never missed.
  RETURN QUERY SELECT k.key, 'schedules', count(*) FROM (SELECT s.args -> 'weir.encrypted' ->> 'key' AS key FROM weir.schedule s) k WHERE k.key IS NOT NULL GROUP BY k.key;
  BEGIN
    PERFORM weir._hold_flows();
    RETURN QUERY
    SELECT k.key, k.place, count(*) FROM (
      SELECT DISTINCT f.id, c.place, c.key
      FROM weir.flow f
      CROSS JOIN LATERAL (VALUES ('flows', f.on_done #>> '{args,weir.encrypted,key}'), ('flows', f.on_success #>> '{args,weir.encrypted,key}'), ('tasks', f.task #>> '{args,weir.encrypted,key}')) c(place, key)
      LEFT JOIN LATERAL (SELECT p.* FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1) p ON c.key IS NOT NULL
      -- A task that has started is a job. A flow whose members have all completed calls back no more.
      WHERE c.key IS NOT NULL AND weir._is_kept(f.id, kept)
        AND CASE WHEN c.place = 'tasks' THEN p.job IS NULL AND coalesce(p.jobs > 0, true) ELSE (p.fired_at IS NOT NULL AND p.failed + p.cancelled = 0 AND NOT p.is_cancelled) IS NOT TRUE END) k
    GROUP BY k.place, k.key;
    LOCK TABLE weir.output IN ACCESS SHARE MODE;
    PERFORM weir._refuse_old_snapshot('^output_[1-4]$', 'weir: a table of outputs was emptied after this transaction took its snapshot, which does not show what was moved');
    RETURN QUERY
    SELECT k.key, 'flow outputs', count(*) FROM (SELECT weir._key_of(o.output) AS key, o.* FROM weir.output o) k
    WHERE k.key IS NOT NULL AND weir._is_kept(k.flow, kept) AND NOT EXISTS (SELECT FROM weir.output n WHERE n.flow = k.flow AND n.job = k.job AND n.no > k.no)
    GROUP BY k.key;
    RAISE SQLSTATE 'WR099';  -- releases the tables
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  PERFORM weir._lock_log();
  -- In one statement, and so in one snapshot: no job is missed because it changes its state meanwhile.
  RETURN QUERY
  WITH RECURSIVE page AS (
    SELECT p.jobs, p.next FROM weir._read_page(ARRAY['available', 'running', 'scheduled', 'failed', 'cancelled'], NULL, NULL, NULL, NULL, NULL, 500) p
    UNION ALL
    SELECT n.jobs, n.next FROM page p CROSS JOIN LATERAL weir._read_page(ARRAY['available', 'running', 'scheduled', 'failed', 'cancelled'], NULL, NULL, NULL, NULL, p.next, 500) n WHERE p.next IS NOT NULL
  )
  SELECT k.key, k.place, count(*)
  FROM page p CROSS JOIN LATERAL unnest(p.jobs) j
  CROSS JOIN LATERAL (
    SELECT DISTINCT c.key, c.place FROM (
      SELECT j.args #>> '{weir.encrypted,key}', CASE j.state WHEN 'failed' THEN 'failed jobs' WHEN 'cancelled' THEN 'cancelled jobs' ELSE 'jobs' END
      UNION ALL
      SELECT (SELECT r.checkpoint #>> '{weir.encrypted,key}' FROM weir.report r WHERE r.job_id = j.id AND r.checkpoint IS NOT NULL ORDER BY r.claim DESC, r.no DESC LIMIT 1), 'checkpoints'
      UNION ALL
      SELECT weir._key_of(j.message), 'messages'
      UNION ALL
      SELECT weir._key_of(l.line ->> 'text'), 'log lines' FROM weir.report r CROSS JOIN LATERAL jsonb_array_elements(r.lines) l(line) WHERE r.job_id = j.id AND r.lines IS NOT NULL
      UNION ALL
      SELECT weir._key_of(j.error), 'errors and outputs'
      UNION ALL
      SELECT weir._key_of(j.output), 'errors and outputs') c(key, place)
    WHERE c.key IS NOT NULL) k
  GROUP BY k.place, k.key;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.limits() RETURNS TABLE(queue text, running integer, running_now integer, rate double precision, per interval, burst integer, room integer, next_at timestamp with time zone, per_key boolean, in_order boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  lim weir.queue_limit;
  g   record;
BEGIN
  PERFORM weir._lock_log();
  LOCK TABLE weir.gate, weir.release IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^(gate|release_[1-3])$', 'weir: the counts of limits were compacted after this transaction took its snapshot');
  FOR lim IN SELECT l.* FROM weir.queue_limit l ORDER BY l.name LOOP
    queue := lim.name;
    IF num_nonnulls(lim.running, lim.rate) > 0 THEN
      g := weir._gate_now(lim.name, lim.gate, false);
      running := lim.running;
      running_now := g.running;
      rate := lim.rate;
      per := lim.per;
      burst := lim.burst;
      room := CASE WHEN g.seq IS NOT NULL THEN greatest(g.room, 0) END;
      next_at := g.next_at;
      per_key := false;
      in_order := false;
      RETURN NEXT;
    END IF;
    IF num_nonnulls(lim.key_running, lim.key_rate) > 0 THEN
      running := lim.key_running;
      running_now := NULL;
      rate := lim.key_rate;
      per := lim.key_per;
      burst := lim.key_burst;
      room := NULL;
      next_at := NULL;
      per_key := true;
      in_order := lim.in_order;
      RETURN NEXT;
    END IF;
  END LOOP;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.move_where(queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, priority integer DEFAULT NULL::integer, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, to_queue text DEFAULT NULL::text, to_priority integer DEFAULT NULL::integer, after text DEFAULT NULL::text, max_rows integer DEFAULT 500, key text DEFAULT NULL::text, OUT moved integer, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=5s
AS $$
#variable_conflict use_variable
DECLARE
  ids   bigint[];
  lanes bigint[];
  known bigint;  -- the last cancellation by filter, if one has a queue or a priority
BEGIN
  PERFORM weir._check_step('move_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, NULL, max_rows),
          weir._check_destination('move_where', to_queue, to_priority), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: move_where needs a transaction of its own, and this one has written'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: its locks on lanes would be held until your commit.';
  END IF;
  PERFORM weir._check_cluster();
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(ARRAY['available', 'scheduled'], queue, kinds, meta, priority, enqueued_after, enqueued_before, key, NULL, after, coalesce(max_rows, 500)) s;
  -- Steps before lanes, and these in their order, as claims and rebasing do.
  PERFORM pg_advisory_xact_lock_shared(1464158547, 0), pg_advisory_xact_lock(1464158547, 2);
  -- So that all cancellations with a smaller number are visible, and none that means a job where it is commits before the job has left.
  LOCK TABLE weir.cancellation_where IN SHARE MODE;
  IF EXISTS (SELECT FROM weir.cancellation_where w WHERE num_nonnulls(w.queue, w.priority) > 0) THEN
    known := (SELECT max(w.no) FROM weir.cancellation_where w);
  END IF;
  lanes := weir._lanes_of(ids);
  PERFORM weir._lock_lanes(lanes);
  moved := weir._move(ids, lanes, queue, to_queue, to_priority, known);
END
$$;
CREATE FUNCTION weir.newest_tick() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  newest weir.tick;
BEGIN
  SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
  IF NOT pg_is_in_recovery() THEN
    PERFORM weir._check_message_cluster();
    IF pg_snapshot_xmax(newest.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
      RAISE EXCEPTION 'weir: the log of messages comes from another cluster' USING ERRCODE = 'WR003', HINT = 'Call weir.rebase_messages().';
    END IF;
  END IF;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN newest.seq;
END
$$;
CREATE FUNCTION weir.next_times(schedule text, time_zone text DEFAULT 'UTC'::text, after timestamp with time zone DEFAULT NULL::timestamp with time zone, count integer DEFAULT 5) RETURNS SETOF timestamp with time zone LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  zone   text := weir._time_zone(coalesce(time_zone, 'UTC'));
  fields text[] := weir._parse_schedule(schedule, zone);
  due    timestamptz := coalesce(after, now());
BEGIN
  IF count NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: next_times returns 1 to 10000 times, got %', count USING ERRCODE = '22023';
  END IF;
  FOR i IN 1..coalesce(count, 5) LOOP
    due := weir._due_after(fields, zone, due);
    EXIT WHEN due IS NULL;
    RETURN NEXT due;
  END LOOP;
END
$$;
CREATE FUNCTION weir.notify_callers() RETURNS TABLE(kind text, name text, calls text) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  WITH pattern AS (
    -- A call of pg_notify; or a NOTIFY statement where a statement can start, also in a string that is executed.
    SELECT E'(?in)^.*(?:\\mpg_notify\\M"?\\s*\\(|(?:^|[;$(]|\\m(?:begin|then|else|loop|also|instead|do)\\M|\\mexecute\\M\\s*\\(?\\s*(?:format\\s*\\(\\s*)?e?''\\s*)[ \\t]*notify\\s+["a-z_%'']).*$' AS for_calls,
           -- Matches strings, which are kept, and comments, which are removed.
           E'(''(?:[^'']|'''')*'')|--[^\\n]*|/\\*(?:[^*]|\\*+[^*/])*\\*+/' AS comments
  ), callers AS (
    SELECT p.oid, p.oid::regprocedure::text AS name, substring(b.body FROM pattern.for_calls) AS calls
    FROM pattern CROSS JOIN pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
    CROSS JOIN LATERAL (SELECT regexp_replace(CASE WHEN p.prosrc = '' AND p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE p.prosrc END, pattern.comments, E'\\1', 'g') AS body) b
    WHERE p.pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND b.body ~ pattern.for_calls)
  SELECT CASE WHEN p.prorettype = 'trigger'::regtype THEN 'trigger function' ELSE 'function' END, c.name, btrim(c.calls)
  FROM callers c JOIN pg_proc p ON p.oid = c.oid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), c.name FROM pg_trigger t JOIN callers c ON c.oid = t.tgfoid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), p.oid::regprocedure::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.proname = 'triggered_change_notification'
  UNION ALL
  SELECT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, CASE WHEN r.ev_type = '1' THEN c.oid::regclass::text ELSE format('%I on %s', r.rulename, c.oid::regclass) END,
         btrim(substring(d.def FROM pattern.for_calls))
  FROM pattern CROSS JOIN pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class CROSS JOIN LATERAL (SELECT pg_get_ruledef(r.oid) AS def) d
  WHERE c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND d.def ~ pattern.for_calls
  ORDER BY 1, 2
$$;
CREATE FUNCTION weir.notify(channel text, payload text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
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
CREATE FUNCTION weir.operations(before bigint DEFAULT NULL::bigint, max_rows integer DEFAULT 100) RETURNS TABLE(id bigint, what text, filter jsonb, to_queue text, to_priority integer, began_at timestamp with time zone, began_by text, state text, changed bigint, changed_at timestamp with time zone, error text, stopped_by text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  IF operations.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: operations returns 1 to 1000 operations, got max_rows %', operations.max_rows USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.operation, weir.operation_step IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^operation(_step)?$', 'weir: operations were compacted after this transaction took its snapshot');
  RETURN QUERY
  SELECT o.id, o.what, o.filter, o.to_queue, o.to_priority, o.at, o.by, s.state, s.changed, s.at, s.error, s.by
  FROM weir.operation o CROSS JOIN LATERAL (SELECT s.* FROM weir.operation_step s WHERE s.operation = o.id ORDER BY s.no DESC LIMIT 1) s
  WHERE o.id < coalesce(operations.before, 9223372036854775807) AND (s.state = 'running' OR o.at > clock_timestamp() - interval '30 days')
  ORDER BY o.id DESC LIMIT coalesce(operations.max_rows, 100);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.pause_schedule(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  UPDATE weir.schedule s SET paused_at = now() WHERE s.name = pause_schedule.name AND s.paused_at IS NULL;
  RETURN EXISTS (SELECT FROM weir.schedule s WHERE s.name = pause_schedule.name);
END
$$;
CREATE FUNCTION weir.pause(queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  UPDATE weir.queue q SET paused_at = coalesce(q.paused_at, now()) WHERE q.name = pause.queue;
  RETURN FOUND;
END
$$;
CREATE FUNCTION weir.progress(worker integer, entries text) RETURNS TABLE(token text, refusal text, detail text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off SET lock_timeout=5s
AS $$
#variable_conflict use_column
DECLARE
  max_mib CONSTANT integer := 16;
  given   jsonb;
  lanes   bigint[];
  seqs    bigint[];
  segment smallint;  -- of the reports
BEGIN
  PERFORM weir._check_isolation('progress');
  IF octet_length(progress.entries) > max_mib * 1048576 THEN
    RAISE EXCEPTION 'weir: progress takes at most % MiB at once, got %', max_mib, pg_size_pretty(octet_length(progress.entries)::bigint)
      USING ERRCODE = '22023', HINT = 'Report in several calls.';
  END IF;
  given := weir._jsonb_of(progress.entries);
  IF jsonb_typeof(given) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'weir: progress takes a JSON array of entries, got %', coalesce('a JSON ' || jsonb_typeof(given), 'null')
      USING ERRCODE = '22023', HINT = 'For example [{"token": "...", "percent": 50}].';
  ELSIF jsonb_array_length(given) > 1000 THEN
    RAISE EXCEPTION 'weir: progress takes at most 1000 entries at once, got %', jsonb_array_length(given) USING ERRCODE = '22023', HINT = 'Report in several calls.';
  END IF;
  PERFORM weir._hold_briefly(), weir._commit_synchronously();
  PERFORM pg_advisory_xact_lock_shared(1464158548, progress.worker);
  PERFORM weir._check_worker(progress.worker);
  RETURN QUERY SELECT e.value ->> 'token', 'invalid', weir._wrong_with_entry(e.value) FROM jsonb_array_elements(given) e WHERE weir._wrong_with_entry(e.value) IS NOT NULL;
  SELECT n.lanes, n.seqs INTO lanes, seqs
  FROM weir._named_by(ARRAY(SELECT e.value ->> 'token' FROM jsonb_array_elements(given) e WHERE weir._wrong_with_entry(e.value) IS NULL)) n;
  PERFORM weir._hold_segments(progress.worker, lanes, seqs);
  segment := weir._hold_report_segment();
  RETURN QUERY
  WITH entry AS MATERIALIZED (
    SELECT e.value AS v, p.*, e.ordinality AS place FROM jsonb_array_elements(given) WITH ORDINALITY e
    CROSS JOIN LATERAL (SELECT n.lanes[1] AS lane, n.seqs[1] AS seq, n.ids[1] AS id FROM weir._named_by(ARRAY[e.value ->> 'token']) n OFFSET 0) p
    WHERE weir._wrong_with_entry(e.value) IS NULL
  ), held AS MATERIALIZED (
    SELECT k.*, b.no AS claim, b.attempt
    FROM entry k
    LEFT JOIN LATERAL (
      SELECT b.no, j.attempt FROM weir.batch b
      CROSS JOIN LATERAL (
        SELECT j.attempt FROM weir.job j
        WHERE j.segment = b.segment AND j.id = k.id AND j.lane IS NOT DISTINCT FROM coalesce(b.lanes[array_position(b.ids, k.id)], k.lane)  -- worded so that the index on id is used
          AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
        ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
      WHERE b.lane = k.lane AND b.seq = k.seq AND b.worker IS NOT DISTINCT FROM progress.worker AND k.id = ANY (b.ids)
        AND NOT EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = k.lane AND r.seq = k.seq AND k.id = ANY (r.ids))
      LIMIT 1) b ON true
  ), written AS (
    INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint, lines)
    SELECT h.id, h.claim, nextval('weir.report_no'), segment, clock_timestamp(), h.attempt,
           (h.v ->> 'percent')::double precision, left(h.v ->> 'message', 2000), h.v -> 'checkpoint', nullif(h.v -> 'log', 'null')
    FROM held h WHERE h.claim IS NOT NULL ORDER BY h.place
  )
  SELECT h.v ->> 'token', 'lost', format('worker %s does not run this attempt any more: it has ended, or the job was claimed again', progress.worker)
  FROM held h WHERE h.claim IS NULL;
END
$$;
CREATE FUNCTION weir.publish_bytes(channel text, payload bytea, keep boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
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
CREATE FUNCTION weir.publish_many(channels text[], payloads text[], keep boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
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
CREATE FUNCTION weir.publish(channel text, payload text DEFAULT ''::text, keep boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
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
CREATE FUNCTION weir.queues() RETURNS TABLE(name text, paused_at timestamp with time zone, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamp with time zone, claimed bigint, last_claim timestamp with time zone, workers bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._lock_log();
  RETURN QUERY SELECT q.* FROM weir._read_queues() q;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.read(tick bigint, after_id bigint DEFAULT 0, max_rows integer DEFAULT 10000, epoch bigint DEFAULT NULL::bigint) RETURNS TABLE(id bigint, xid xid8, channel text, payload bytea, is_binary boolean, keep boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT bigint := 8388608;
  t         weir.tick;
  one       xid8;
BEGIN
  -- The result outlives the locks on the tables, so payloads are fetched and copied here (|| ''): TOAST may be truncated right after.
  SELECT k.* INTO t FROM weir.tick k WHERE k.seq = read.tick;
  IF t.count > 10000 OR t.bytes > max_bytes THEN
    -- A single transaction, read in the order of the index.
    one := t.late[1];
    IF one IS NULL THEN
      SELECT m.xid INTO one FROM weir._spans(t.from_xid, t.snapshot) p
      CROSS JOIN LATERAL (SELECT m.xid FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high ORDER BY m.xid, m.id LIMIT 1) m LIMIT 1;
    END IF;
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.id) - octet_length(m.payload) AS before
            FROM (SELECT m.* FROM weir.message m WHERE m.xid = one AND m.id > coalesce(read.after_id, 0) ORDER BY m.xid, m.id LIMIT coalesce(read.max_rows, 10000)) m) m
      WHERE m.before < max_bytes ORDER BY m.id;
  ELSE
    RETURN QUERY SELECT m.id, m.xid, m.channel, m.payload || '', m.is_binary, m.keep
      FROM (SELECT m.* FROM weir._spans(t.from_xid, t.snapshot) p
            CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid >= p.low AND m.xid < p.high OFFSET 0) m
            UNION ALL
            SELECT m.* FROM unnest(t.late) l(x) CROSS JOIN LATERAL (SELECT m.* FROM weir.message m WHERE m.xid = l.x OFFSET 0) m) m
      WHERE m.id > coalesce(read.after_id, 0) ORDER BY m.id LIMIT coalesce(read.max_rows, 10000);
  END IF;
  -- TRUNCATE empties a table for old snapshots too, so this check comes last: tick_floor is raised before anything is truncated.
  IF read.tick <= nullif(pg_sequence_last_value('weir.tick_floor'), 0) THEN
    RAISE EXCEPTION 'weir: tick % has been truncated', read.tick
      USING ERRCODE = 'WR005', DETAIL = weir._epoch_of(pg_sequence_last_value('weir.tick_floor')) || '.' || pg_sequence_last_value('weir.tick_floor');
  ELSIF t.seq IS NULL THEN
    RAISE EXCEPTION 'weir: tick % does not exist', coalesce(read.tick::text, 'null') USING ERRCODE = '22023';
  ELSIF read.epoch IS NOT NULL THEN
    PERFORM weir._check_position(read.tick, read.epoch);
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables' locks, as every inspection does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.rebase() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=10s SET work_mem=256MB SET maintenance_work_mem=256MB SET enable_mergejoin=off SET enable_nestloop=off
AS $$
#variable_conflict use_column
DECLARE
  here        text := (SELECT system_identifier::text FROM pg_control_system());
  active      integer := pg_sequence_last_value('weir.active_job');
  relogged    bigint;
  cut         weir.flow_cut;
  c           weir.promotion;
  indexes     regclass[];
  definitions text[];
  definition  text;
BEGIN
  PERFORM weir._check_isolation('rebase'), weir._hold_briefly();
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: rebase needs a transaction of its own, and this one has written' USING ERRCODE = 'WR004', HINT = 'Call it in autocommit.';
  END IF;
  -- It checks twice: before it blocks other sessions, and under the locks, when no other session can rebase.
  FOR check_no IN 1..2 LOOP
    IF check_no = 2 THEN
      -- All other sessions are blocked: no jobs run in a log that has just been restored.
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM unnest(ARRAY[0, 1, 2, 3, 6, 7]) step;
      PERFORM pg_advisory_xact_lock(1464158549, segment) FROM generate_series(1, 4) segment;
      LOCK TABLE weir.job, weir.batch, weir.result, weir.later, weir.promotion, weir.worker, weir.setting, weir.survey, weir.gate, weir.release, weir.turn, weir.ring, weir.arrival, weir.flow_cut IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'cluster') = here
         AND NOT EXISTS (SELECT FROM weir.batch b WHERE b.pos_xid >= pg_snapshot_xmax(pg_current_snapshot()))
         AND NOT EXISTS (SELECT FROM weir.turn t WHERE t.pos_xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- releases the tables' locks: two sessions that upgrade them would deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;

  INSERT INTO weir.worker (id, fenced, at, name)
  SELECT w.id, true, clock_timestamp(), 'the log was moved to another cluster' FROM weir.worker w
  WHERE NOT w.fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced);

  -- The next attempt is always logged together with the result of the previous one. So as many attempts of an id have
  -- ended as there are results, and at most the last attempt has not ended.
  CREATE TEMP TABLE weir_open ON COMMIT DROP AS
  SELECT k.id, max(k.step) AS step
  FROM (SELECT j.id, j.attempt::bigint << 32 | j.put_off AS step, 1 AS n FROM weir.job j
        UNION ALL
        SELECT unnest(r.ids), NULL, -1 FROM weir.result r) k
  GROUP BY k.id HAVING sum(k.n) > 0;
  GET DIAGNOSTICS relogged = ROW_COUNT;
  -- Attempts end in their order, and in the segment and lane of their row, or in the ring lane of the queue: so the first row of an id there is of
  -- its first end.
  CREATE TEMP TABLE weir_place ON COMMIT DROP AS
  SELECT q.id::bigint AS queue, (min(q.id) OVER (PARTITION BY q.name)::bigint << 39) + 4 AS ring FROM weir.queue q;
  CREATE TEMP TABLE weir_end ON COMMIT DROP AS
  SELECT e.*, row_number() OVER (PARTITION BY e.id, e.place, e.segment ORDER BY e.seq) AS nr
  FROM (SELECT unnest(r.ids) AS id, CASE WHEN r.lane & 4 <> 0 THEN p.ring ELSE r.lane END AS place, r.segment, r.seq
        FROM weir.result r LEFT JOIN pg_temp.weir_place p ON p.queue = r.lane >> 39) e;
  CREATE TEMP TABLE weir_job ON COMMIT DROP AS
  SELECT j.*, o.id IS NOT NULL AS unfinished, row_number() OVER (PARTITION BY j.id, j.place, j.segment ORDER BY j.attempt, j.put_off) AS nr
  FROM (SELECT j.*, CASE WHEN j.lane & 549755813884 <> 0 THEN p.ring ELSE j.lane END AS place FROM weir.job j LEFT JOIN pg_temp.weir_place p ON p.queue = j.lane >> 39) j
  LEFT JOIN pg_temp.weir_open o ON o.id = j.id AND o.step = (j.attempt::bigint << 32 | j.put_off);
  -- In order, an attempt that was running is put back as if its worker had died: what is logged again is in the order of ids, in which others may come first.
  UPDATE pg_temp.weir_job j SET lane = j.lane | 4, put_off = j.put_off + 1
  WHERE j.unfinished AND j.lane & 549755813880 <> 0 AND j.lane & 4 = 0 AND j.id IN (
    SELECT k.id FROM (
      SELECT b.lane, b.seq, unnest(b.ids) AS id FROM weir.batch b JOIN weir.queue q ON q.id = b.lane >> 39 JOIN weir.queue_limit m ON m.name = q.name AND m.in_order WHERE b.lanes IS NOT NULL
      EXCEPT SELECT r.lane, r.seq, unnest(r.ids) FROM weir.result r) k);
  SELECT p.* INTO c FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1;
  CREATE TEMP TABLE weir_later ON COMMIT DROP AS
  SELECT l.* FROM weir.later l
  WHERE weir._waits_later(c, l.run_at, l.id, l.xid);
  CREATE TEMP TABLE weir_lane ON COMMIT DROP AS
  SELECT DISTINCT ON (b.lane) b.lane, b.seq, b.total FROM weir.batch b ORDER BY b.lane, b.seq DESC;
  CREATE TEMP TABLE weir_keys ON COMMIT DROP AS
  SELECT w.queue, coalesce(max(r.seq), 0) AS seq, coalesce(bit_or(r.forms | (r.forms & 15) << 4), 0) AS forms, least(pg_snapshot_xmin(pg_current_snapshot()), pg_current_xact_id()) AS since
  FROM (SELECT DISTINCT w.queue FROM weir.with_keys w) w LEFT JOIN weir.ring r ON r.queue = w.queue GROUP BY w.queue;
  CREATE TEMP TABLE weir_seq ON COMMIT DROP AS SELECT max(p.seq) AS seq FROM weir.promotion p;

  -- Arrivals that are not counted yet: the next cut counts them, as if this transaction had written them.
  SELECT k.* INTO cut FROM weir.flow_cut k ORDER BY k.no DESC LIMIT 1;
  CREATE TEMP TABLE weir_arrival ON COMMIT DROP AS SELECT a.* FROM weir.arrival a WHERE NOT pg_visible_in_snapshot(a.xid, cut.snapshot);

  -- Nothing runs any more: gates count from nothing.
  TRUNCATE weir.job, weir.batch, weir.later, weir.promotion, weir.survey, weir.gate, weir.release, weir.turn, weir.ring, weir.arrival, weir.flow_cut;
  -- Indexes are created again after the inserts, which is several times faster than row by row.
  indexes := ARRAY(SELECT i.indexrelid::regclass FROM pg_index i WHERE i.indrelid IN ('weir.job'::regclass, 'weir.later'::regclass) ORDER BY i.indexrelid);
  definitions := ARRAY(SELECT replace(pg_get_indexdef(i.at), ' ON ONLY ', ' ON ') FROM unnest(indexes) WITH ORDINALITY i(at, nr) ORDER BY i.nr);
  EXECUTE 'DROP INDEX ' || array_to_string(indexes, ', ');
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.job_id');
  -- The first xid of a cluster is 3. History gets xid 1, below every position, and every new position is 2: so unfinished jobs lie past it, and
  -- so do jobs of transactions that are older than this one and enqueue after it.
  INSERT INTO weir.job (id, xid, enqueued_at, ready_at, lane, attempt, max_attempts, put_off, segment, leads, kind, args, meta, seq, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT j.id, CASE WHEN j.unfinished THEN pg_current_xact_id() ELSE '1' END, j.enqueued_at, j.ready_at, j.lane, j.attempt, j.max_attempts,
         -- An attempt that has reported was started: it is put off, so that it does not pass for one that has no checkpoint yet.
         j.put_off + (j.unfinished AND j.id IN (SELECT r.job_id FROM weir.report r))::integer,
         CASE WHEN j.unfinished THEN active ELSE j.segment END, j.unfinished, j.kind, j.args, j.meta, CASE WHEN NOT j.unfinished THEN e.seq END, j.errors,
         j.unique_key, j.unique_no, j.unique_until, j.key, j.flow
  FROM pg_temp.weir_job j LEFT JOIN pg_temp.weir_end e ON e.id = j.id AND e.place = j.place AND e.segment = j.segment AND e.nr = j.nr;
  INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids)
  SELECT l.lane, active, active, 0, max(l.seq) + 1, '2', '2', '2', 0, max(l.total), now(), 0, '{}'::bigint[]
  FROM (SELECT k.lane, k.seq, k.total FROM pg_temp.weir_lane k
        UNION ALL SELECT j.place, 0, 0 FROM (SELECT DISTINCT j.place FROM pg_temp.weir_job j WHERE NOT j.unfinished) j
        UNION ALL SELECT p.ring, k.seq, 0 FROM pg_temp.weir_keys k JOIN weir.queue q ON q.name = k.queue JOIN pg_temp.weir_place p ON p.queue = q.id) l
  GROUP BY l.lane;
  -- Of keys with history, only the rows past it wait. In order, a job that is to be tried again keeps its place. The next claim announces what this
  -- transaction logs, and all later ones.
  INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, open)
  WITH put_back AS (
    SELECT u.lane, array_agg(v.v ORDER BY u.id, v.nr) AS open  -- of an attempt that has left no result, batch 0
    FROM (SELECT j.id, j.lane FROM pg_temp.weir_job j WHERE j.unfinished UNION ALL SELECT l.id, l.lane FROM pg_temp.weir_later l) u
    JOIN weir.queue q ON q.id = u.lane >> 39 JOIN weir.queue_limit m ON m.name = q.name AND m.in_order
    LEFT JOIN (SELECT e.id, max(e.seq) AS seq FROM pg_temp.weir_end e WHERE e.place & 4 <> 0 GROUP BY e.id) e ON e.id = u.id
    CROSS JOIN LATERAL (VALUES (1, coalesce(e.seq, 0)), (2, u.id)) v(nr, v)
    WHERE u.lane & 549755813880 <> 0 AND u.lane & 4 <> 0 GROUP BY u.lane
  )
  SELECT coalesce(j.lane, b.lane), 0, '2', 0, 0, active, false, false, b.open
  FROM (SELECT DISTINCT j.lane FROM pg_temp.weir_job j WHERE NOT j.unfinished AND j.lane & 549755813880 <> 0) j FULL JOIN put_back b ON b.lane = j.lane;
  DELETE FROM weir.with_keys;
  INSERT INTO weir.with_keys (queue, since) SELECT k.queue, k.since FROM pg_temp.weir_keys k;
  INSERT INTO weir.ring (queue, seq, tag, forms, version, arrived, newcomers)
  SELECT k.queue, k.seq, 0, k.forms, 0, (k.since::text || ':' || k.since::text || ':')::pg_snapshot, '{}' FROM pg_temp.weir_keys k;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, put_off, segment, kind, args, meta, errors, unique_key, unique_no, unique_until, key, flow)
  SELECT l.id, pg_current_xact_id(), l.run_at, l.enqueued_at, l.lane, l.attempt, l.max_attempts, l.put_off, l.segment, l.kind, l.args, l.meta, l.errors, l.unique_key, l.unique_no, l.unique_until, l.key, l.flow
  FROM pg_temp.weir_later l ORDER BY l.run_at, l.id;
  FOREACH definition IN ARRAY definitions LOOP
    EXECUTE definition;
  END LOOP;
  -- Nothing has been promoted, so any snapshot will do.
  INSERT INTO weir.promotion (seq, due, due_id, snapshot) SELECT s.seq + 1, '-infinity', 0, pg_current_snapshot() FROM pg_temp.weir_seq s;
  INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, waits, broken, counts)
  SELECT a.flow, pg_sequence_last_value('weir.active_arrival'), pg_current_xact_id(), a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts FROM pg_temp.weir_arrival a;
  INSERT INTO weir.flow_cut (no, due, snapshot) VALUES (cut.no + 1, cut.due, '3:3:');  -- before every transaction
  -- Ids of jobs are as they were, so what was cancelled by a filter stays cancelled.
  UPDATE weir.cancellation_where SET batches = NULL, xid = NULL, clear_xid = NULL;
  UPDATE weir.setting SET value = here WHERE name = 'cluster';
  RETURN relogged;
EXCEPTION WHEN query_canceled THEN
  RAISE EXCEPTION 'weir: rebase was cancelled and changed nothing: %', SQLERRM
    USING ERRCODE = '57014', HINT = format('It rewrites the whole log in one transaction, and statement_timeout is %s: SET statement_timeout = 0, and call it again.',
                                           current_setting('statement_timeout'));
END
$$;
CREATE FUNCTION weir.rebase_messages() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=10s
AS $$
#variable_conflict use_column
DECLARE
  here   text := (SELECT c.system_identifier::text FROM pg_control_system() c);
  newest weir.tick;
  next   bigint;
  n      bigint;
BEGIN
  PERFORM weir._check_isolation('rebase_messages');
  -- It checks twice: before it blocks other sessions, and under the locks, when no other session can rebase.
  FOR check_no IN 1..2 LOOP
    IF check_no = 2 THEN
      PERFORM pg_advisory_xact_lock(1464158547, step) FROM generate_series(4, 5) step;
      LOCK TABLE weir.message, weir.tick, weir.epoch, weir.setting IN ACCESS EXCLUSIVE MODE;
    END IF;
    BEGIN
      SELECT t.* INTO newest FROM weir.tick t ORDER BY t.seq DESC LIMIT 1;
      IF (SELECT s.value FROM weir.setting s WHERE s.name = 'message_cluster') = here
         AND pg_snapshot_xmax(newest.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
        RETURN NULL;
      END IF;
      RAISE SQLSTATE 'WR099';  -- releases the tables' locks: two sessions that upgrade them would deadlock
    EXCEPTION WHEN SQLSTATE 'WR099' THEN NULL;
    END;
  END LOOP;
  -- Messages that are in no tick yet: those with an id after the last tick, since both clusters count ids alike, and late ones.
  CREATE TEMP TABLE weir_message ON COMMIT DROP AS
  SELECT m.* FROM weir.message m WHERE m.id > newest.last_id OR NOT pg_visible_in_snapshot(m.xid, newest.snapshot);
  TRUNCATE weir.message, weir.tick, weir.hub_beat;
  -- The original log has continued since this copy was made. Its positions have another epoch. For subscribers that name no epoch, our
  -- tick numbers start where the original's, at 250 a second, would be after half a year.
  next := newest.seq + (1::bigint << 32);
  PERFORM weir._draw_epoch(next);
  PERFORM setval('weir.tick_floor', next - 1), setval('weir.tick_seq', next);
  -- The new tick's snapshot does not see this transaction, so the next tick contains the messages that it logs again.
  INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
  SELECT next, pg_snapshot_xmin(s), newest.last_id, 0, clock_timestamp(), 0, 0, pg_sequence_last_value('weir.active_message'), '{}',
         (pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmin(s)::text || ':')::pg_snapshot
  FROM pg_current_snapshot() s;
  PERFORM pg_current_xact_id();
  INSERT INTO weir.message (id, xid, segment, is_binary, keep, channel, payload)
  SELECT m.id, pg_current_xact_id(), pg_sequence_last_value('weir.active_message'), m.is_binary, m.keep OR true, m.channel, m.payload
  FROM pg_temp.weir_message m ORDER BY m.id;
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE weir.setting SET value = here WHERE name = 'message_cluster';
  RETURN n;
END
$$;
CREATE FUNCTION weir.record(worker integer, ends text) RETURNS TABLE(token text, refusal text, detail text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  max_mib CONSTANT integer := 64;  -- parsing takes eight times as much memory
  given   jsonb;
  wrong   text[];  -- with each end; NULL: it is valid
BEGIN
  IF octet_length(record.ends) > max_mib * 1048576 THEN
    RAISE EXCEPTION 'weir: record takes at most % MiB at once, got %', max_mib, pg_size_pretty(octet_length(record.ends)::bigint)
      USING ERRCODE = '22023', HINT = 'Record the ends in several calls, or keep large outputs elsewhere.';
  END IF;
  given := weir._jsonb_of(record.ends);
  IF jsonb_typeof(given) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'weir: record takes a JSON array of ends, got %', coalesce('a JSON ' || jsonb_typeof(given), 'null')
      USING ERRCODE = '22023', HINT = 'For example [{"token": "...", "outcome": "completed"}].';
  ELSIF jsonb_array_length(given) > 10000 THEN
    RAISE EXCEPTION 'weir: record takes at most 10000 ends at once, got %', jsonb_array_length(given) USING ERRCODE = '22023', HINT = 'Record them in several calls.';
  END IF;
  PERFORM weir._check_worker(record.worker);  -- again under its lock below, from where an error would carry the whole statement as its context
  -- Most ends say only how they ended, and are seen to be valid without a call.
  wrong := ARRAY(
    SELECT CASE WHEN jsonb_typeof(e.value) = 'object' AND e.value ->> 'token' ~ '^[0-9]{1,18}[.][0-9]{1,18}[.][0-9]{1,18}$' AND e.value - ARRAY['token', 'outcome', 'output', 'error'] = '{}'
                     AND coalesce(e.value ->> 'outcome', 'completed') = ANY (ARRAY['completed', 'failed', 'cancelled', 'snoozed', 'released'])
                THEN NULL ELSE weir._wrong_with(e.value) END
    FROM jsonb_array_elements(given) WITH ORDINALITY e ORDER BY e.ordinality);
  RETURN QUERY SELECT e.value ->> 'token', 'invalid', wrong[e.ordinality] FROM jsonb_array_elements(given) WITH ORDINALITY e WHERE wrong[e.ordinality] IS NOT NULL;
  RETURN QUERY
  WITH ends AS MATERIALIZED (
    SELECT e.value ->> 'token' AS token, row_number() OVER (ORDER BY p.lane, p.seq, e.ordinality) AS place, p.*,
           CASE WHEN e.value ->> 'outcome' = 'failed' AND (e.value ->> 'final')::boolean IS NOT TRUE THEN 'retried' ELSE coalesce(e.value ->> 'outcome', 'completed') END AS outcome,
           e.value ->> 'error' AS error, e.value ->> 'output' AS output,
           coalesce(now() + round((e.value ->> 'delay')::numeric, 6)::double precision * interval '1 second', '-infinity') AS run_at
    FROM jsonb_array_elements(given) WITH ORDINALITY e
    CROSS JOIN LATERAL (SELECT split_part(e.value ->> 'token', '.', 1)::bigint AS lane, split_part(e.value ->> 'token', '.', 2)::bigint AS seq,
                               split_part(e.value ->> 'token', '.', 3)::bigint AS id OFFSET 0) p
    WHERE wrong[e.ordinality] IS NULL
  ), batches AS (
    SELECT array_agg(b.lane ORDER BY b.lane, b.seq) AS lanes, array_agg(b.seq ORDER BY b.lane, b.seq) AS seqs, array_agg(b.size ORDER BY b.lane, b.seq) AS sizes
    FROM (SELECT k.lane, k.seq, count(*)::integer AS size FROM ends k GROUP BY k.lane, k.seq) b
  ), attempts AS (
    SELECT array_agg(k.id ORDER BY k.place) AS ids, array_agg(k.outcome ORDER BY k.place) AS outcomes, array_agg(k.error ORDER BY k.place) AS errors,
           array_agg(k.output ORDER BY k.place) AS outputs, array_agg(k.run_at ORDER BY k.place) AS run_at
    FROM ends k
  )
  SELECT k.token, r.refusal, r.detail
  FROM batches b, attempts a
  CROSS JOIN LATERAL weir._record(record.worker, coalesce(b.lanes, '{}'), coalesce(b.seqs, '{}'), coalesce(b.sizes, '{}'), coalesce(a.ids, '{}'), a.outcomes, a.errors, a.outputs, a.run_at) r
  JOIN ends k ON k.place = r.place
  WHERE r.refusal IS NOT NULL;
END
$$;
CREATE FUNCTION weir.relays() RETURNS TABLE(relay text, "position" text, reached_at timestamp with time zone, tick bigint, newest_tick bigint, oldest_waiting timestamp with time zone) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
AS $$
#variable_conflict use_column
BEGIN
  LOCK TABLE weir.relay IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^relay$', 'weir: the positions of relays were compacted after this transaction took its snapshot');
  RETURN QUERY
  SELECT r.relay, r.position, r.at, r.tick, CASE WHEN r.tick IS NOT NULL THEN n.seq END,
    (SELECT t.at FROM weir.tick t WHERE r.tick <= n.seq AND t.seq >= r.tick ORDER BY t.seq LIMIT 1)
  FROM (SELECT DISTINCT ON (r.relay) r.* FROM weir.relay r ORDER BY r.relay, r.no DESC) r,
       (SELECT pg_sequence_last_value('weir.tick_seq') AS seq) n
  ORDER BY r.relay;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.restrict(role text, listens text[] DEFAULT NULL::text[], notifies text[] DEFAULT NULL::text[]) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  bad text;
BEGIN
  IF restrict.role IS NULL OR octet_length(restrict.role) NOT BETWEEN 1 AND 63 THEN
    RAISE EXCEPTION 'weir: restrict needs the name of a role, got %', coalesce(quote_literal(left(restrict.role, 80)), 'null') USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_array('restrict', 'listens', restrict.listens), weir._check_array('restrict', 'notifies', restrict.notifies);
  IF cardinality(restrict.listens) > 1000 OR cardinality(restrict.notifies) > 1000 THEN
    RAISE EXCEPTION 'weir: a role can be restricted to at most 1000 channels and patterns, got % and %', cardinality(restrict.listens), cardinality(restrict.notifies)
      USING ERRCODE = '22023', HINT = 'Use broader patterns.';
  END IF;
  SELECT coalesce(c, 'null') INTO bad FROM unnest(restrict.listens || restrict.notifies) c
  WHERE c IS NULL OR octet_length(c) NOT BETWEEN 1 AND 255 OR c ~ '(^|[.])>[.]'
     OR c ~ '(^|[.])([*]([.]|$)|>$)' AND cardinality(string_to_array(c, '.')) > 10 LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % is neither a channel nor a pattern', quote_literal(left(bad, 300))
      USING ERRCODE = '22023', HINT = 'A channel has 1 to 255 bytes. A pattern has at most 10 words, separated by dots; * matches any one word, and > at the end matches one or more words.';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = restrict.role) THEN
    RAISE WARNING 'weir: role % does not exist', quote_literal(restrict.role)
      USING HINT = 'The restriction applies once it does. Check the name: a role with another name is not restricted.';
  END IF;
  DELETE FROM weir.role_channel c WHERE c.role = restrict.role;
  IF restrict.listens IS NOT NULL OR restrict.notifies IS NOT NULL THEN
    INSERT INTO weir.role_channel (role, listens, notifies) VALUES (restrict.role, restrict.listens, restrict.notifies);
  END IF;
END
$$;
CREATE FUNCTION weir.resume_schedule(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  s weir.schedule;
BEGIN
  UPDATE weir.schedule k SET paused_at = NULL, generation = nextval('weir.schedule_generation'),
                             first_due = coalesce(weir._due_after(k.fields, k.time_zone, clock_timestamp()), k.first_due)
  WHERE k.name = resume_schedule.name AND k.paused_at IS NOT NULL RETURNING k.* INTO s;
  IF FOUND THEN
    PERFORM weir._mark_due(s.name, s.generation, s.first_due, s.first_due + random() * s.jitter);
    RETURN true;
  END IF;
  RETURN EXISTS (SELECT FROM weir.schedule k WHERE k.name = resume_schedule.name);
END
$$;
CREATE FUNCTION weir.resume(queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  found_it boolean;
BEGIN
  UPDATE weir.queue q SET paused_at = NULL WHERE q.name = resume.queue;
  found_it := FOUND;
  PERFORM pg_current_xact_id();
  PERFORM nextval('weir.control');  -- wakes idle workers
  RETURN found_it;
END
$$;
CREATE FUNCTION weir.retry_flow(flow bigint, after text DEFAULT NULL::text, max_rows integer DEFAULT 500, OUT retried integer, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  states CONSTANT text[] := ARRAY['failed', 'cancelled'];
  ids          bigint[];
  cancelled_no bigint;
BEGIN
  PERFORM weir._check_isolation('retry_flow');
  IF NOT EXISTS (SELECT FROM weir.flow f WHERE f.id = retry_flow.flow) THEN
    RAISE EXCEPTION 'weir: flow % is unknown', coalesce(flow::text, 'null') USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass the id of a flow that has not ended longer ago than failed_retention.';
  ELSIF max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a step looks at 1 to 1000 jobs, got %', max_rows USING ERRCODE = '22023', HINT = 'Call it again with after, until next is NULL.';
  END IF;
  SELECT s.ids, s.next INTO ids, next FROM weir._select_where(states, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, after, coalesce(max_rows, 500), flow) s;
  PERFORM weir._lock_to_retry(ids);
  SELECT count(*) FILTER (WHERE k.is_retried) INTO retried
  FROM (SELECT u.id FROM unnest(ids) u(id) ORDER BY u.id OFFSET 0) i CROSS JOIN LATERAL weir._retry(i.id, states) k;
  -- Also for those that were cancelled before they started, which have not ended, and for tasks that were not enqueued.
  cancelled_no := weir._cancellation_of(flow);
  IF retried > 0 OR after IS NULL AND cancelled_no IS NOT NULL THEN
    PERFORM weir._arrive(flow, 'jobs', 0, 'retried', cancelled_no);
  END IF;
  -- Flows and tasks within it that were cancelled on their own, or have failed fast, are no longer, either.
  IF after IS NULL THEN
    PERFORM weir._arrive(k.id, 'jobs', 0, 'retried', weir._cancellation_of(k.id)) FROM unnest(weir._cancelled_within(flow)) k(id);
  END IF;
END
$$;
CREATE FUNCTION weir.retry_rules() RETURNS TABLE(name text, action text, queue text, kind text, error text, backoff interval, backoff_limit interval, backoff_form text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT r.name, r.action, r.queue, r.kind, r.error, r.backoff, r.backoff_limit, r.backoff_form FROM weir.retry_rule r
  ORDER BY r.error IS NULL, r.kind IS NULL, r.queue IS NULL, r.name COLLATE "C"
$$;
CREATE FUNCTION weir.retry_where(queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, priority integer DEFAULT NULL::integer, enqueued_after timestamp with time zone DEFAULT NULL::timestamp with time zone, enqueued_before timestamp with time zone DEFAULT NULL::timestamp with time zone, error text DEFAULT NULL::text, states text[] DEFAULT NULL::text[], after text DEFAULT NULL::text, max_rows integer DEFAULT 500, key text DEFAULT NULL::text, shape text DEFAULT NULL::text, finished_after timestamp with time zone DEFAULT NULL::timestamp with time zone, finished_before timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT retried integer, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  ids  bigint[];
  done bigint[];
BEGIN
  PERFORM weir._check_step('retry_where', queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, max_rows, shape, num_nonnulls(finished_after, finished_before) > 0),
          weir._check_states('retry_where', states);
  states := coalesce(states, ARRAY['failed']);
  SELECT s.ids, s.next INTO ids, next
  FROM weir._select_where(states, queue, kinds, meta, priority, enqueued_after, enqueued_before, key, error, after, coalesce(max_rows, 500),
                          shape => shape, finished_after => finished_after, finished_before => finished_before) s;
  PERFORM weir._lock_to_retry(ids);
  done := CASE WHEN 'failed' = ANY (states) THEN weir._retry_failed(ids) ELSE '{}' END;
  -- Those that are retried first are claimed first: the oldest.
  SELECT cardinality(done) + count(*) FILTER (WHERE k.is_retried) INTO retried
  FROM (SELECT u.id FROM unnest(ids) u(id) WHERE u.id <> ALL (done) ORDER BY u.id OFFSET 0) i CROSS JOIN LATERAL weir._retry(i.id, states) k;
END
$$;
CREATE FUNCTION weir.retry(job_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  now_is text;
BEGIN
  PERFORM weir._check_isolation('retry');
  now_is := (SELECT i.state FROM weir.job_info(job_id) i);
  IF now_is IN ('completed', 'failed', 'cancelled') THEN
    PERFORM weir._lock_to_retry(ARRAY[job_id]);
    RETURN (SELECT r.state FROM weir._retry(job_id, ARRAY['completed', 'failed', 'cancelled']) r);
  END IF;
  RETURN now_is;
END
$$;
CREATE FUNCTION weir.revocations() RETURNS TABLE(id bigint, user_name text, at timestamp with time zone, until timestamp with time zone) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT r.id, r.user_name, r.at, r.until FROM weir.revocation r WHERE coalesce(r.until, r.at + interval '10 minutes') > clock_timestamp() ORDER BY r.id
$$;
CREATE FUNCTION weir.revoke(user_name text, lasts interval DEFAULT '30 days'::interval) RETURNS timestamp with time zone LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF revoke.lasts IS NULL THEN
    RAISE EXCEPTION 'weir: revoke needs the time after which the tokens have expired, got null' USING ERRCODE = '22023';
  END IF;
  RETURN weir._revoke(revoke.user_name, revoke.lasts);
END
$$;
CREATE FUNCTION weir.run_schedule(name text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  s weir.schedule;
BEGIN
  SELECT k.* INTO s FROM weir.schedule k WHERE k.name = run_schedule.name;
  RETURN CASE WHEN FOUND THEN weir._enqueue_due(s, now()) END;
END
$$;
CREATE FUNCTION weir.schedules(name text DEFAULT NULL::text, after text DEFAULT NULL::text, max_rows integer DEFAULT 1000) RETURNS SETOF weir.schedule_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  IF schedules.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: schedules needs a limit of 1 to 10000 rows, got %', schedules.max_rows USING ERRCODE = '22023';
  END IF;
  PERFORM weir._lock_firings();
  RETURN QUERY SELECT s.* FROM weir._read_schedules(schedules.name, schedules.after, coalesce(schedules.max_rows, 1000)) s;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.seal(flow bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  now_is text;
BEGIN
  SELECT i.state INTO now_is FROM weir._read_flows(ARRAY[seal.flow]) i;
  IF now_is IS NULL THEN
    RAISE EXCEPTION 'weir: flow % is unknown', coalesce(seal.flow::text, 'null') USING ERRCODE = '22023', TABLE = 'flow', HINT = 'Pass an id that weir.flow has returned.';
  ELSIF now_is <> 'open' THEN
    RETURN false;
  END IF;
  PERFORM weir._arrive(seal.flow, 'jobs', 0, 'sealed'), nextval('weir.job_id');  -- wakes idle workers, whose maintainers count it
  RETURN true;
END
$$;
CREATE FUNCTION weir.set_checkpoint(worker integer, token text, checkpoint jsonb) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  held   record := weir._named_by(ARRAY[set_checkpoint.token]);
  is_now record;
  size   integer := octet_length(set_checkpoint.checkpoint::text);
BEGIN
  IF size > 131072 THEN
    RAISE EXCEPTION 'weir: the checkpoint has % bytes, at most 131072 are allowed', size USING ERRCODE = '22023', HINT = 'Keep larger data elsewhere, and its place in the checkpoint.';
  END IF;
  PERFORM weir._hold_attempt('set_checkpoint', set_checkpoint.worker, held.lanes[1], held.seqs[1], held.ids[1]);
  BEGIN
    SELECT b.no, j.attempt, n.percent, n.message || '' AS message INTO is_now  -- out of TOAST, as in weir.checkpoint
    FROM weir.batch b
    CROSS JOIN LATERAL (
      SELECT j.attempt FROM weir.job j
      WHERE j.segment = b.segment AND j.id = held.ids[1] AND j.lane IS NOT DISTINCT FROM coalesce(b.lanes[array_position(b.ids, held.ids[1])], b.lane)  -- worded so that the index on id is used
        AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
      ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    LEFT JOIN LATERAL (SELECT r.percent, r.message FROM weir.report r WHERE r.job_id = held.ids[1] ORDER BY r.claim DESC, r.no DESC LIMIT 1) n ON true
    WHERE b.lane = held.lanes[1] AND b.seq = held.seqs[1] AND held.ids[1] = ANY (b.ids) LIMIT 1;
    RAISE SQLSTATE 'WR099';  -- releases the tables: the transaction may stay open for long
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;
  INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, message, checkpoint)
  VALUES (held.ids[1], is_now.no, nextval('weir.report_no'), weir._hold_report_segment(), clock_timestamp(), is_now.attempt, is_now.percent, is_now.message,
          coalesce(set_checkpoint.checkpoint, 'null'));
END
$$;
CREATE FUNCTION weir.set_limit(queue text, running integer DEFAULT NULL::integer, rate double precision DEFAULT NULL::double precision, per interval DEFAULT NULL::interval, burst integer DEFAULT NULL::integer, per_key boolean DEFAULT false, in_order boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_variable
DECLARE
  by_second double precision;
  gate_no   integer;
BEGIN
  PERFORM weir._check_isolation('set_limit');
  per_key := coalesce(per_key, false);
  in_order := coalesce(in_order, false);
  IF coalesce(queue, '') = '' OR length(queue) > 128 THEN
    RAISE EXCEPTION 'weir: set_limit needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF num_nonnulls(running, rate) = 0 AND NOT in_order THEN
    RAISE EXCEPTION 'weir: set_limit needs running or rate, and both are null' USING ERRCODE = '22023', HINT = 'Pass running, rate or in_order. To remove the limits of a queue, call weir.clear_limit.';
  ELSIF in_order AND NOT (per_key AND coalesce(running, 1) = 1) THEN
    RAISE EXCEPTION 'weir: in_order is for limits per key with 1 running, got per_key % and running %', per_key::text, coalesce(running::text, 'null')
      USING ERRCODE = '22023', HINT = 'Jobs of a key run one after the other, also after failed attempts, with per_key => true, running => 1, in_order => true.';
  ELSIF per_key AND running > 1000 THEN
    RAISE EXCEPTION 'weir: running must be at most 1000 for each key, got %', running USING ERRCODE = '22023';
  ELSIF running < 1 THEN
    RAISE EXCEPTION 'weir: running must be at least 1, got %', running USING ERRCODE = '22023', HINT = 'To stop a queue, pause it.';
  ELSIF rate IS NULL AND num_nonnulls(per, burst) > 0 THEN
    RAISE EXCEPTION 'weir: set_limit got %, but no rate', CASE WHEN per IS NULL THEN 'burst ' || burst ELSE 'per ' || per END USING ERRCODE = '22023', HINT = 'For example: rate => 100, per => ''1 minute'', burst => 10.';
  END IF;
  IF rate IS NOT NULL THEN
    per := coalesce(per, '1 second');
    IF per < interval '1 millisecond' OR per > interval '366 days' THEN
      RAISE EXCEPTION 'weir: per must be 1 millisecond to 1 year, got %', per USING ERRCODE = '22023';
    ELSIF NOT (rate > 0 AND rate <= 1e9) THEN
      RAISE EXCEPTION 'weir: rate must be more than 0, and at most 1000000000, got %', rate USING ERRCODE = '22023', HINT = 'To stop a queue, pause it.';
    END IF;
    by_second := rate / extract(epoch FROM per);
    burst := coalesce(burst, greatest(1, least(1000000, ceil(by_second / 2)))::integer);
    IF by_second > 1e6 OR by_second < 1e-9 THEN
      RAISE EXCEPTION 'weir: a rate must be at most 1000000 a second, and at least 1 in 30 years, got % in %', rate, per USING ERRCODE = '22023';
    ELSIF burst NOT BETWEEN 1 AND 1000000 THEN
      RAISE EXCEPTION 'weir: burst must be 1 to 1000000, got %', burst USING ERRCODE = '22023';
    ELSIF burst / by_second > 36525 * 86400.0 THEN  -- times in the far future would be out of range
      RAISE EXCEPTION 'weir: burst must be at most what may start in 100 years, % at % in %, got %', floor(by_second * 36525 * 86400), rate, per, burst USING ERRCODE = '22023';
    END IF;
  END IF;
  running := CASE WHEN in_order THEN 1 ELSE running END;
  IF EXISTS (SELECT FROM weir.queue_limit l WHERE l.name = queue
               AND CASE WHEN per_key THEN (l.key_running, l.key_rate, l.key_per, l.key_burst, l.in_order) IS NOT DISTINCT FROM (running, rate, per, burst, in_order)
                        ELSE (l.running, l.rate, l.per, l.burst) IS NOT DISTINCT FROM (running, rate, per, burst) END) THEN
    RETURN;  -- many processes declare the same limits when they start
  END IF;
  PERFORM weir._stop_claims('set_limit');
  -- Attempts of keys are counted one by one only while each key has a limit: with a new gate, those that run already are listed.
  SELECT l.gate INTO gate_no FROM weir.queue_limit l WHERE l.name = queue AND NOT (per_key AND running IS NOT NULL AND l.key_running IS NULL);
  IF gate_no IS NULL THEN
    gate_no := nextval('weir.gate_id');
    UPDATE weir.queue q SET gate = gate_no WHERE q.name = queue;
    IF NOT FOUND THEN
      PERFORM weir._check_new_queue(queue);
      INSERT INTO weir.queue (name, gate) VALUES (queue, gate_no);
    END IF;
  END IF;
  IF per_key THEN
    INSERT INTO weir.queue_limit AS l (name, gate, version, key_running, key_rate, key_per, key_burst, in_order)
    VALUES (queue, gate_no, nextval('weir.limit_version'), running, rate, per, burst, in_order)
    ON CONFLICT (name) DO UPDATE SET gate = excluded.gate, version = excluded.version, key_running = excluded.key_running, key_rate = excluded.key_rate,
      key_per = excluded.key_per, key_burst = excluded.key_burst, in_order = excluded.in_order;
  ELSE
    INSERT INTO weir.queue_limit AS l (name, gate, version, running, rate, per, burst) VALUES (queue, gate_no, nextval('weir.limit_version'), running, rate, per, burst)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, running = excluded.running, rate = excluded.rate, per = excluded.per, burst = excluded.burst;
  END IF;
  PERFORM nextval('weir.control');  -- workers claim: there may be more room than before
END
$$;
CREATE FUNCTION weir.set_retry_rule(name text, action text DEFAULT NULL::text, queue text DEFAULT NULL::text, kind text DEFAULT NULL::text, error text DEFAULT NULL::text, backoff interval DEFAULT NULL::interval, backoff_limit interval DEFAULT NULL::interval, backoff_form text DEFAULT NULL::text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 100;
  wrong text;
BEGIN
  action := coalesce(set_retry_rule.action, 'retry');
  IF set_retry_rule.name IS NULL OR set_retry_rule.name !~ '^[[:graph:]]{1,100}$' THEN
    RAISE EXCEPTION 'weir: the name of a retry rule must be 1 to 100 characters without spaces, got %', coalesce(quote_literal(left(set_retry_rule.name, 200)), 'null') USING ERRCODE = '22023';
  ELSIF set_retry_rule.action <> ALL (ARRAY['retry', 'fail', 'snooze', 'cancel']) THEN
    RAISE EXCEPTION 'weir: the action of a retry rule must be retry, fail, snooze or cancel, got %', quote_literal(left(set_retry_rule.action, 100)) USING ERRCODE = '22023';
  ELSIF set_retry_rule.action = 'snooze' AND set_retry_rule.backoff IS NULL THEN
    RAISE EXCEPTION 'weir: retry rule % snoozes, but does not say for how long', set_retry_rule.name USING ERRCODE = '22023', HINT = 'Pass a backoff, for example ''5 minutes''.';
  ELSIF set_retry_rule.action IN ('fail', 'cancel') AND num_nonnulls(set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form) > 0 THEN
    RAISE EXCEPTION 'weir: retry rule % has a backoff, but no attempt follows after %', set_retry_rule.name, set_retry_rule.action USING ERRCODE = '22023', HINT = 'A backoff belongs to retry and snooze.';
  ELSIF set_retry_rule.queue IS NULL AND set_retry_rule.kind IS NULL AND set_retry_rule.error IS NULL THEN
    RAISE EXCEPTION 'weir: retry rule % would apply to every error of every job', set_retry_rule.name USING ERRCODE = '22023', HINT = 'Name a queue, a kind or an error; error => ''.'' matches every error.';
  END IF;
  PERFORM weir._check_backoff(set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form);
  wrong := weir._wrong_pattern(set_retry_rule.error);
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION 'weir: retry rule %: error is not a usable regular expression: %, got %', set_retry_rule.name, wrong, quote_literal(left(set_retry_rule.error, 200))
      USING ERRCODE = '22023', HINT = 'Write a regular expression as PostgreSQL understands it, in which a backslash before . ( [ * + ? | makes it an ordinary character.';
  END IF;
  LOCK TABLE weir.retry_rule IN SHARE ROW EXCLUSIVE MODE;  -- for the count; readers do not wait
  IF (SELECT count(*) FROM weir.retry_rule r WHERE r.name <> set_retry_rule.name) >= most THEN
    RAISE EXCEPTION 'weir: there are % retry rules, and no more are allowed', most USING ERRCODE = '22023', HINT = 'One rule can match several errors: a|b. Drop rules that are not needed with weir.drop_retry_rule.';
  END IF;
  INSERT INTO weir.retry_rule (name, queue, kind, error, action, backoff, backoff_limit, backoff_form)
  VALUES (set_retry_rule.name, set_retry_rule.queue, set_retry_rule.kind, set_retry_rule.error, set_retry_rule.action,
          set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form)
  ON CONFLICT ON CONSTRAINT retry_rule_pkey DO UPDATE SET queue = excluded.queue, kind = excluded.kind, error = excluded.error, action = excluded.action,
    backoff = excluded.backoff, backoff_limit = excluded.backoff_limit, backoff_form = excluded.backoff_form;
END
$$;
CREATE FUNCTION weir.set_schedule(name text, schedule text, queue text, kind text, args jsonb DEFAULT '{}'::jsonb, time_zone text DEFAULT 'UTC'::text, missed text DEFAULT 'one'::text, jitter interval DEFAULT '00:00:00'::interval, priority integer DEFAULT 2, max_attempts integer DEFAULT 25, meta jsonb DEFAULT NULL::jsonb, key text DEFAULT NULL::text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  wanted  weir.schedule;
  existing weir.schedule;
  at_time timestamptz;
  is_new  boolean;
BEGIN
  wanted.name := set_schedule.name;
  wanted.schedule := set_schedule.schedule;
  wanted.queue := set_schedule.queue;
  wanted.kind := set_schedule.kind;
  wanted.args := coalesce(set_schedule.args, '{}');
  wanted.time_zone := coalesce(set_schedule.time_zone, 'UTC');
  wanted.missed := coalesce(set_schedule.missed, 'one');
  wanted.jitter := coalesce(set_schedule.jitter, '0');
  wanted.priority := coalesce(set_schedule.priority, 2);
  wanted.max_attempts := coalesce(set_schedule.max_attempts, 25);
  wanted.meta := set_schedule.meta;
  wanted.key := set_schedule.key;
  -- Every process of a fleet declares its schedules when it starts: that costs one look-up.
  SELECT s.* INTO existing FROM weir.schedule s WHERE s.name = wanted.name;
  IF FOUND AND weir._same_schedule(existing, wanted) THEN
    RETURN 'unchanged';
  END IF;

  PERFORM weir._check_isolation('set_schedule', true);
  IF coalesce(length(wanted.name), 0) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'weir: the name of a schedule must have 1 to 128 characters, got %', coalesce(length(wanted.name)::text, 'null') USING ERRCODE = '22023';
  ELSIF wanted.missed NOT IN ('one', 'all', 'none') THEN
    RAISE EXCEPTION 'weir: unknown choice % for missed', quote_literal(wanted.missed) USING ERRCODE = '22023',
      HINT = 'What was missed while no worker ran is fired once (one), each time (all) or not at all (none).';
  ELSIF wanted.jitter NOT BETWEEN '0' AND '1 day' THEN
    RAISE EXCEPTION 'weir: the jitter of a schedule must be 0 to 1 day, got %', wanted.jitter USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_job(wanted.queue, wanted.kind, wanted.args, wanted.priority, wanted.max_attempts, wanted.meta), weir._check_key(wanted.key), weir._check_new_queue(wanted.queue);
  IF octet_length(wanted.meta::text) > 60000 THEN
    RAISE EXCEPTION 'weir: meta too large: % bytes, at most 60000 are allowed for a schedule, which adds to it', octet_length(wanted.meta::text) USING ERRCODE = '22023';
  END IF;
  wanted.time_zone := weir._time_zone(wanted.time_zone);
  wanted.fields := weir._parse_schedule(wanted.schedule, wanted.time_zone);
  at_time := clock_timestamp();
  wanted.first_due := weir._due_after(wanted.fields, wanted.time_zone, at_time);
  IF wanted.first_due IS NULL THEN
    RAISE EXCEPTION 'weir: the schedule % is never due', quote_literal(wanted.schedule) USING ERRCODE = '22023', HINT = 'No year has such a day: check the day and the month.';
  END IF;
  wanted.generation := nextval('weir.schedule_generation');

  INSERT INTO weir.schedule SELECT wanted.* ON CONFLICT (name) DO NOTHING;
  is_new := FOUND;
  IF NOT is_new THEN
    SELECT s.* INTO existing FROM weir.schedule s WHERE s.name = wanted.name FOR UPDATE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'weir: schedule % was dropped at the same time', wanted.name USING ERRCODE = '40001', HINT = 'Try again.';
    ELSIF weir._same_schedule(existing, wanted) THEN
      RETURN 'unchanged';  -- by another process, a moment ago
    END IF;
    PERFORM weir._lock_firings();
    -- A due time that has passed and has not been fired yet belongs to the new generation, which would otherwise start after it.
    wanted.first_due := least(wanted.first_due, (SELECT d FROM weir._pending_due(existing) d WHERE d <= at_time));
    UPDATE weir.schedule s SET (generation, schedule, fields, time_zone, missed, jitter, queue, kind, args, priority, max_attempts, meta, key, first_due)
      = (SELECT wanted.generation, wanted.schedule, wanted.fields, wanted.time_zone, wanted.missed, wanted.jitter, wanted.queue, wanted.kind,
                wanted.args, wanted.priority, wanted.max_attempts, wanted.meta, wanted.key, wanted.first_due)
    WHERE s.name = wanted.name;
  END IF;
  IF is_new OR existing.paused_at IS NULL THEN
    PERFORM weir._mark_due(wanted.name, wanted.generation, wanted.first_due, wanted.first_due + random() * wanted.jitter);
  END IF;
  RETURN CASE WHEN is_new THEN 'created' ELSE 'changed' END;
END
$$;
CREATE FUNCTION weir.set_weight(queue text, key text, weight double precision) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  IF coalesce(set_weight.queue, '') = '' OR length(set_weight.queue) > 128 THEN
    RAISE EXCEPTION 'weir: set_weight needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(set_weight.queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF coalesce(set_weight.key, '') = '' THEN
    RAISE EXCEPTION 'weir: set_weight needs a key, got %', coalesce(quote_literal(set_weight.key), 'null') USING ERRCODE = '22023';
  ELSIF NOT (set_weight.weight BETWEEN 0.01 AND 1000) THEN
    RAISE EXCEPTION 'weir: a weight must be 0.01 to 1000, got %', set_weight.weight USING ERRCODE = '22023', HINT = '1 is the weight of keys for which none was set.';
  END IF;
  PERFORM weir._check_key(set_weight.key);
  IF coalesce(set_weight.weight, 1) = 1 THEN
    DELETE FROM weir.key_weight w WHERE w.queue = set_weight.queue AND w.bits = weir._key_bits(set_weight.key);
  ELSIF NOT EXISTS (SELECT FROM weir.key_weight w WHERE w.queue = set_weight.queue AND w.bits = weir._key_bits(set_weight.key) AND w.key = set_weight.key AND w.weight = set_weight.weight) THEN
    INSERT INTO weir.key_weight AS w (queue, bits, key, weight) VALUES (set_weight.queue, weir._key_bits(set_weight.key), set_weight.key, set_weight.weight)
    ON CONFLICT (queue, bits) DO UPDATE SET key = excluded.key, weight = excluded.weight;
  END IF;
END
$$;
CREATE FUNCTION weir.set(name text, value text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET IntervalStyle=postgres SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  low  bigint;
  high bigint;
BEGIN
  IF set.name IS NULL OR set.value IS NULL THEN
    RAISE EXCEPTION 'weir: a setting needs a name and a value, got % and %', coalesce(left(set.name, 100), 'null'), coalesce(left(set.value, 100), 'null') USING ERRCODE = '22023';
  ELSIF set.name IN ('completed_retention', 'failed_retention', 'message_retention', 'relay_retention') THEN
    set.value := weir._interval_of(set.name, set.value);
  ELSE
    SELECT l.low, l.high INTO low, high FROM (VALUES
      ('retention_bytes', 1048576, 9223372036854775807), ('message_retention_bytes', 1048576, 9223372036854775807),
      ('message_bytes', 8000, 16777216)) l(name, low, high) WHERE l.name = set.name;
    IF set.name IN ('backoff', 'backoff_limit', 'backoff_form', 'ageing') THEN
      RAISE EXCEPTION 'weir: % is a setting of each queue, and no queue is named', set.name USING ERRCODE = '22023', HINT = 'Name it: weir.set(queue, name, value), or --queue of the command.';
    ELSIF low IS NULL THEN
      RAISE EXCEPTION 'weir: unknown setting %', left(set.name, 100)
        USING ERRCODE = '22023', HINT = 'The settings are completed_retention, failed_retention, message_retention and relay_retention (intervals), retention_bytes, message_retention_bytes and message_bytes.';
    END IF;
    set.value := weir._bytes_of(set.name, set.value, low, high);
  END IF;
  UPDATE weir.setting s SET value = set.value WHERE s.name = set.name;
END
$$;
CREATE FUNCTION weir.set(queue text, name text, value text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  chosen interval;
  known  boolean;
BEGIN
  IF set.name IS NULL OR set.name NOT IN ('backoff', 'backoff_limit', 'backoff_form', 'ageing') THEN
    RAISE EXCEPTION 'weir: queues have no setting %', coalesce(left(set.name, 100), 'null') USING ERRCODE = '22023', HINT = 'The settings of a queue are backoff, backoff_limit and ageing (intervals), and backoff_form.';
  ELSIF coalesce(set.queue, '') = '' OR length(set.queue) > 128 THEN
    RAISE EXCEPTION 'weir: set needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(set.queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF set.name = 'backoff_form' THEN
    PERFORM weir._check_backoff(NULL, NULL, coalesce(set.value, 'null'));
  ELSIF set.value IS NULL THEN
    RAISE EXCEPTION 'weir: % must be 0 to 1 year, got null', set.name USING ERRCODE = '22023';
  ELSE
    chosen := weir._interval_of(set.name, set.value);
  END IF;
  known := EXISTS (SELECT FROM weir.queue q WHERE q.name = set.queue);
  IF NOT known THEN
    PERFORM weir._queue_id(set.queue);
  END IF;
  -- It changes all twins of the name.
  IF set.name = 'backoff' THEN
    UPDATE weir.queue q SET backoff = chosen WHERE q.name = set.queue;
  ELSIF set.name = 'backoff_form' THEN
    UPDATE weir.queue q SET backoff_form = set.value WHERE q.name = set.queue;
  ELSIF set.name = 'ageing' THEN
    UPDATE weir.queue q SET ageing = nullif(chosen, '0') WHERE q.name = set.queue;
  ELSE
    UPDATE weir.queue q SET backoff_limit = chosen WHERE q.name = set.queue;
  END IF;
  RETURN known;
END
$$;
CREATE FUNCTION weir.settings() RETURNS TABLE(queue text, name text, value text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  -- Failed jobs are kept no shorter than the others, whatever is set.
  SELECT NULL, s.name, CASE WHEN s.name = 'failed_retention'
    THEN (SELECT r.value FROM weir.setting r WHERE r.name IN ('completed_retention', 'failed_retention') ORDER BY r.value::interval DESC LIMIT 1) ELSE s.value END
  FROM weir.setting s
  WHERE s.name IN ('completed_retention', 'failed_retention', 'retention_bytes', 'message_retention', 'message_retention_bytes', 'message_bytes', 'relay_retention')
  UNION ALL
  -- All twins of a name have the same settings.
  SELECT q.name, v.name, v.value
  FROM (SELECT DISTINCT ON (q.name) q.* FROM weir.queue q ORDER BY q.name, q.id) q
  CROSS JOIN LATERAL (VALUES ('backoff', q.backoff::text), ('backoff_limit', q.backoff_limit::text), ('backoff_form', q.backoff_form), ('ageing', coalesce(q.ageing, '0')::text)) v(name, value)
  ORDER BY 1 NULLS FIRST, 2
$$;
CREATE FUNCTION weir.start(name text, queues text[], lease interval DEFAULT NULL::interval) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  PERFORM weir._check_array('start', 'queues', start.queues, true);
  IF coalesce(cardinality(start.queues), 0) = 0 THEN
    RAISE EXCEPTION 'weir: a worker needs at least one queue, got none' USING ERRCODE = '22023', HINT = 'Pass a list of queues, for example ARRAY[''default''].';
  END IF;
  BEGIN
    PERFORM weir._check_cluster();
  EXCEPTION WHEN SQLSTATE 'WR003' THEN
    PERFORM weir.rebase();
  END;
  RETURN weir._start(start.name, start.queues, coalesce(start.lease, '30 seconds'));
END
$$;
CREATE FUNCTION weir.stop_operation(id bigint, by text DEFAULT NULL::text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=5s
AS $$
#variable_conflict use_column
DECLARE
  last weir.operation_step;
BEGIN
  PERFORM weir._check_isolation('stop_operation', true), weir._hold_briefly();
  IF length(stop_operation.by) > 200 THEN
    RAISE EXCEPTION 'weir: by must have up to 200 characters, got %', length(stop_operation.by) USING ERRCODE = '22023';
  END IF;
  LOCK TABLE weir.operation_step IN ROW EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT FROM weir.operation_step s WHERE s.operation = stop_operation.id) THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock(1464158562, (stop_operation.id % 2147483648)::integer);
  SELECT s.* INTO last FROM weir.operation_step s WHERE s.operation = stop_operation.id ORDER BY s.no DESC LIMIT 1;
  IF last.state = 'running' THEN
    INSERT INTO weir.operation_step (operation, no, at, state, changed, after, by)
    VALUES (last.operation, last.no + 1, clock_timestamp(), 'stopped', last.changed, last.after, coalesce(nullif(stop_operation.by, ''), session_user));
    RETURN 'stopped';
  END IF;
  RETURN last.state;
END
$$;
CREATE FUNCTION weir.stop(worker integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
DECLARE
  after bigint := 0;
BEGIN
  PERFORM weir._check_isolation('stop');
  IF NOT EXISTS (SELECT FROM weir.worker w WHERE w.id = stop.worker AND w.fenced) THEN
    LOOP
      after := (SELECT r.next FROM weir._reconcile(stop.worker, '{}', '{}', '{}', '{}', after, 'the worker was stopped') r);
      EXIT WHEN after IS NULL OR clock_timestamp() - now() > interval '1 second';  -- its progress is stored
    END LOOP;
    IF after IS NOT NULL OR NOT weir._fence(stop.worker, 'stopped') THEN
      RETURN false;
    END IF;
  END IF;
  RETURN NOT (SELECT s.more FROM weir._settle(stop.worker) s);
END
$$;
CREATE FUNCTION weir.storage() RETURNS TABLE(log text, segment integer, state text, since timestamp with time zone, opened_at timestamp with time zone, reclaim_at timestamp with time zone, bytes bigint, index_bytes bigint, max_bytes bigint, holders integer[]) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
BEGIN
  LOCK TABLE weir.segment IN ACCESS SHARE MODE;  -- before the snapshot: see look.sql
  PERFORM weir._refuse_old_snapshot('^segment$', 'weir: the history of segments was compacted after this transaction took its snapshot');
  -- Scheduled jobs have no retention: their segments wait until the jobs are promoted.
  RETURN QUERY
  WITH logs(place, log, tables, retention, max_bytes) AS (
    SELECT l.place, l.log, l.tables, (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name = ANY (l.retention)),
           coalesce((SELECT s.value::bigint / l.parts FROM weir.setting s WHERE s.name = l.bytes), 67108864)
    FROM (VALUES (1, 'job', ARRAY['job', 'batch', 'result', 'turn'], ARRAY['completed_retention'], 'retention_bytes', 4),
                 (2, 'later', ARRAY['later'], ARRAY[]::text[], NULL, 1),
                 (3, 'failure', ARRAY['failure'], ARRAY['completed_retention', 'failed_retention'], 'retention_bytes', 16),
                 (4, 'report', ARRAY['report'], ARRAY['completed_retention', 'failed_retention'], 'retention_bytes', 16),
                 (5, 'message', ARRAY['message', 'tick'], ARRAY['message_retention'], 'message_retention_bytes', 4)) l(place, log, tables, retention, bytes, parts)
  ), segments AS (
    SELECT l.place, l.log, n AS segment, l.max_bytes, e.at, e.opened_at, ARRAY(SELECT format('weir.%s_%s', t, n)::regclass::oid FROM unnest(l.tables) t) AS tables,
           -- A segment that is not active is closed, whatever its last event: see weir._rotate.
           CASE WHEN n = pg_sequence_last_value(format('weir.active_%s', l.log)::regclass) THEN 'active' WHEN coalesce(e.event, 'reclaimed') = 'reclaimed' THEN 'free' ELSE 'closed' END AS state,
           e.at + l.retention AS reclaim_at
    FROM logs l CROSS JOIN generate_series(1, 4) n
    LEFT JOIN LATERAL (
      SELECT s.event, s.at, (SELECT o.at FROM weir.segment o WHERE o.log = l.log AND o.segment = n AND o.event = 'opened' ORDER BY o.no DESC LIMIT 1) AS opened_at
      FROM weir.segment s WHERE s.log = l.log AND s.segment = n ORDER BY s.no DESC LIMIT 1) e ON true
  )
  SELECT s.log, s.segment, s.state, CASE s.state WHEN 'active' THEN s.opened_at ELSE s.at END, CASE WHEN s.state <> 'free' THEN s.opened_at END,
         CASE s.state WHEN 'closed' THEN s.reclaim_at END, z.bytes, z.index_bytes, s.max_bytes,
         CASE WHEN s.state = 'closed' AND s.reclaim_at < clock_timestamp() THEN ARRAY(
           SELECT DISTINCT coalesce(k.pid, 0) FROM pg_locks k LEFT JOIN LATERAL (SELECT a.xact_start FROM pg_stat_get_activity(k.pid) a WHERE k.pid IS NOT NULL) a ON true
           WHERE k.locktype = 'relation' AND k.granted AND k.relation = ANY (s.tables) AND k.pid IS DISTINCT FROM pg_backend_pid()
             AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
             AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - interval '1 second')  -- every reader holds a lock for a moment
           ORDER BY 1 LIMIT 10) ELSE '{}' END
  FROM segments s CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_total_relation_size(t)), 0)::bigint AS bytes, coalesce(sum(pg_indexes_size(t)), 0)::bigint AS index_bytes FROM unnest(s.tables) t) z
  ORDER BY s.place, s.segment;
  RETURN QUERY
  SELECT t.log, NULL::integer, NULL::text, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, sum(pg_total_relation_size(t.oid))::bigint, sum(pg_indexes_size(t.oid))::bigint, NULL::bigint, '{}'::integer[]
  FROM (SELECT c.oid, CASE WHEN c.relname ~ '^(flow|edge|fold|arrival|seen|output)(_|$)' THEN 'flow' ELSE 'control' END AS log
        FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r' AND c.relname !~ '^(job|batch|result|turn|later|failure|report|message|tick)_[1-4]$') t
  GROUP BY t.log ORDER BY t.log DESC;
  RAISE SQLSTATE 'WR099';  -- releases the table
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.take(worker integer, queues text[] DEFAULT NULL::text[], limits integer[] DEFAULT NULL::integer[], kinds text[] DEFAULT NULL::text[], held text[] DEFAULT NULL::text[], lost boolean DEFAULT NULL::boolean, wait interval DEFAULT NULL::interval) RETURNS TABLE(event text, token text, id bigint, queue text, priority integer, kind text, args jsonb, meta jsonb, attempt integer, max_attempts integer, enqueued_at timestamp with time zone, key text, flow bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
#variable_conflict use_column
DECLARE
  pause    double precision;  -- between two polls, in seconds; NULL: it has not waited yet
  own      record;            -- the worker's registration
  holds    record;            -- the attempts in held
  patience double precision;  -- for how much longer it may wait, in seconds
  began    timestamptz;
  polled   record;            -- the result of the last poll
  polls    integer;
  slept    text;
  is_full  boolean;
  is_first boolean := true;
  is_done  boolean := false;
  is_cut   boolean;           -- the claim has not visited all lanes
  again_at timestamptz;       -- when a rate may allow jobs that it has withheld
  reported bigint[] := '{}';  -- jobs whose cancellation is reported
  after    bigint := 0;
  j        record;
  lanes    bigint[] := '{}';  -- jobs that are ended without being run
  seqs     bigint[]  := '{}';
  ids      bigint[]  := '{}';
  outcomes text[]    := '{}';
  errors   text[]    := '{}';
BEGIN
  PERFORM weir._check_isolation('take'), weir._check_array('take', 'queues', take.queues, true), weir._check_array('take', 'limits', take.limits, true),
          weir._check_array('take', 'kinds', take.kinds, true), weir._check_array('take', 'held', take.held, true), weir._check_worker(take.worker);
  IF current_setting('transaction_read_only') = 'on' AND NOT pg_is_in_recovery() THEN
    RAISE EXCEPTION 'weir: take was called in a READ ONLY transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit, with default_transaction_read_only = off for this role: it claims jobs.';
  ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'weir: take was called inside an open transaction'
      USING ERRCODE = 'WR004', HINT = 'Call it in autocommit: it takes locks that would be held until your commit.';
  ELSIF clock_timestamp() - now() > interval '1 second' THEN  -- or the server was suspended between two messages
    RAISE EXCEPTION 'weir: take was called inside a transaction that has been open for %', clock_timestamp() - now()
      USING ERRCODE = '55000', HINT = 'Call it in autocommit: it takes locks that would be held until your commit. If you did, try again.';
  ELSIF take.lost AND take.held IS NULL THEN
    RAISE EXCEPTION 'weir: take needs held if lost is true, but held is null'
      USING ERRCODE = '22023', HINT = 'Pass as held the tokens of all attempts that the worker has not recorded; ''{}'' if there are none.';
  END IF;
  SELECT w.lease, w.queues INTO own FROM weir.worker w WHERE w.id = take.worker AND NOT w.fenced;
  take.queues := coalesce(take.queues, own.queues);
  take.limits := coalesce(take.limits, array_fill(1, ARRAY[cardinality(take.queues)]));
  IF cardinality(take.queues) <> cardinality(take.limits) THEN
    RAISE EXCEPTION 'weir: take got % queues and % limits', cardinality(take.queues), cardinality(take.limits)
      USING ERRCODE = '22023', HINT = 'Pass a limit for each queue; if queues is null, for each that the worker was started for.';
  END IF;
  is_full := NOT coalesce(0 < ANY (take.limits), false);
  IF 0 > ANY (take.limits) THEN
    RAISE EXCEPTION 'weir: take got the limit %, for queue %', (SELECT min(l) FROM unnest(take.limits) l), (SELECT to_json(u.queue) FROM unnest(take.queues, take.limits) u(queue, l) ORDER BY u.l LIMIT 1)
      USING ERRCODE = '22023', HINT = 'Pass how many jobs to claim from it; 0 claims none.';
  END IF;
  holds := weir._named_by(take.held);
  -- The wait is short enough that no timeout ends the call.
  patience := extract(epoch FROM greatest('0', least(coalesce(take.wait, '1 second'), '1 second', own.lease / 3,
    nullif(current_setting('statement_timeout')::interval, '0') / 2, nullif(current_setting('transaction_timeout', true)::interval, '0') / 2)));

  -- While it waits it must hold no locks, because they would block reclaiming and other claims: rolling back a block releases its locks.
  -- A call that writes for other reasons doesn't claim, so that no lane is locked in the meantime.
  BEGIN
    IF weir._beat_if_due(take.worker, own.lease, cardinality(holds.ids)) THEN
      take.lost := take.held IS NOT NULL;
    END IF;
    WHILE take.lost AND after IS NOT NULL LOOP
      after := (SELECT r.next FROM weir._reconcile(take.worker, holds.lanes, holds.seqs, array_fill(1, ARRAY[cardinality(holds.ids)]), holds.ids, after) r);
      EXIT WHEN clock_timestamp() - now() > interval '1 second';  -- its progress is stored: a later call does the rest
    END LOOP;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
      RAISE SQLSTATE 'WR099';
    END IF;
  EXCEPTION WHEN SQLSTATE 'WR099' THEN
    NULL;
  END;

  polled := weir._watch(0, 0, NULL, NULL);
  LOOP
    FOR id IN SELECT c.id FROM unnest(weir._cancelled_among(holds.ids)) c(id) WHERE c.id <> ALL (reported) LOOP
      reported := reported || id;
      event := 'cancel';
      token := take.held[array_position(holds.ids, id)];
      RETURN NEXT;
      is_done := NOT is_first;  -- an old cancellation may have been reported before, so it doesn't end the wait
    END LOOP;
    EXIT WHEN is_done OR pg_current_xact_id_if_assigned() IS NOT NULL OR clock_timestamp() - now() > interval '1.8 seconds';  -- because claim refuses an old transaction
    is_first := false;

    IF NOT is_full THEN
      BEGIN
        is_cut := false;
        again_at := NULL;
        FOR j IN SELECT c.* FROM weir._claim(take.worker, take.queues, take.limits) c LOOP
          IF j.id IS NULL AND j.queue IS NULL THEN
            is_cut := true;
          ELSIF j.id IS NULL THEN
            again_at := least(again_at, j.ready_at);  -- limits have withheld jobs of this queue
          ELSIF j.dropped IS NOT NULL OR take.kinds IS NOT NULL AND j.kind <> ALL (take.kinds) THEN
            lanes := lanes || j.lane;
            seqs := seqs || j.seq;
            ids := ids || j.id;
            outcomes := outcomes || CASE WHEN j.dropped IS NULL THEN 'released' ELSE 'cancelled' END;
            errors := errors || CASE WHEN j.dropped IS NULL THEN format('no handler for kind %s', j.kind) ELSE nullif(j.dropped, '') END;
          ELSE
            event := 'job';
            token := format('%s.%s.%s', j.lane, j.seq, j.id);
            id := j.id;
            queue := j.queue;
            priority := j.priority;
            kind := j.kind;
            args := j.args;
            meta := j.meta;
            attempt := j.attempt;
            max_attempts := j.max_attempts;
            enqueued_at := j.enqueued_at;
            key := j.key;
            flow := j.flow;
            RETURN NEXT;
          END IF;
        END LOOP;
        IF ids <> '{}' THEN
          PERFORM weir._record(take.worker, lanes, seqs, array_fill(1, ARRAY[cardinality(ids)]), ids, outcomes, errors, NULL,
                               array_fill('-infinity'::timestamptz, ARRAY[cardinality(ids)]));
        END IF;
        IF pg_current_xact_id_if_assigned() IS NULL THEN
          RAISE SQLSTATE 'WR099';  -- other workers got the jobs of the lanes that it has locked
        END IF;
      EXCEPTION WHEN SQLSTATE 'WR099' THEN
        NULL;
      END;
      EXIT WHEN pg_current_xact_id_if_assigned() IS NOT NULL;
      CONTINUE WHEN is_cut;  -- others got the jobs of all lanes that it visited
    END IF;

    pause := coalesce(pause, greatest(0.01, least(weir._pause_among(take.queues), patience / 2)));
    LOOP
      polls := floor(patience / pause);
      IF polls < 1 THEN
        RETURN;
      END IF;
      began := clock_timestamp();
      polls := greatest(1, least(polls, ceil(extract(epoch FROM again_at - began) / pause) - 1));
      slept := pg_sleep(pause);  -- a minimum, however many jobs others enqueue
      j := weir._watch(polled.jobs_now, polled.control_now, polled.seen_now, polled.upto_now, polls, pause);
      patience := patience - greatest(pause, extract(epoch FROM clock_timestamp() - began));  -- at least the pause, in case the clock steps back
      EXIT WHEN j.ended OR j.jobs_now <> polled.jobs_now OR j.control_now <> polled.control_now OR again_at <= clock_timestamp();
    END LOOP;
    polled := j;
  END LOOP;
END
$$;
CREATE FUNCTION weir.tasks(flow bigint, after bigint DEFAULT NULL::bigint, max_rows integer DEFAULT 100) RETURNS TABLE(id bigint, name text, state text, job bigint, queue text, kind text, after_tasks text[], waits_for text[], ignore_failed boolean, generation integer, jobs bigint, unfinished bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
AS $$
#variable_conflict use_column
BEGIN
  IF tasks.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: tasks returns 1 to 1000 tasks, got %', tasks.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last id as after.';
  END IF;
  PERFORM weir._hold_flows();
  RETURN QUERY
  SELECT i.id, i.name, i.state, i.job, f.task ->> 'queue', f.task ->> 'kind', e.names, e.waits, e.is_lenient, i.generation, i.jobs, i.unfinished
  FROM weir._read_flows(ARRAY(
    SELECT k.id FROM weir.flow k WHERE k.parent = tasks.flow AND k.task IS NOT NULL AND k.id > coalesce(tasks.after, 0)
      AND coalesce((SELECT p.jobs > 0 FROM weir.fold p WHERE p.flow = k.id ORDER BY p.cut DESC LIMIT 1), true)
    ORDER BY k.id LIMIT coalesce(tasks.max_rows, 100))) i
  CROSS JOIN LATERAL (SELECT f.task FROM weir.flow f WHERE f.id = i.id OFFSET 0) f
  CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(e.predecessor ORDER BY e.predecessor), '{}') AS names, coalesce(bool_or(e.is_lenient), false) AS is_lenient,
           coalesce(array_agg(e.predecessor ORDER BY e.predecessor) FILTER (WHERE i.state = 'blocked' AND weir._kind_of(weir._last_of_task(e.flow, e.predecessor)) IS NULL), '{}') AS waits
    FROM (SELECT e.* FROM weir.edge e WHERE e.successor = i.id OFFSET 0) e) e
  ORDER BY i.id;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.ticks(after bigint, ids bigint DEFAULT NULL::bigint, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, epoch bigint DEFAULT NULL::bigint, OUT seqs bigint[], OUT ats timestamp with time zone[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[], OUT ids_now bigint, OUT seen_now pg_snapshot) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
BEGIN
  SELECT t.* INTO seqs, ats, counts, sizes, epochs, ids_now, seen_now
  FROM weir._await_tick(ticks.after, ids => ticks.ids, polls => coalesce(ticks.polls, 1), pause => coalesce(ticks.pause, 0.003), cuts => false, epoch => ticks.epoch) t;
  RAISE SQLSTATE 'WR099';  -- releases the tables' locks, as every inspection does
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
CREATE FUNCTION weir.unwatch_table(table_name regclass, channel text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto SET client_min_messages=warning
AS $$
DECLARE
  made text := (SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace
                WHERE c.oid = unwatch_table.table_name AND p.pronargs = 0 AND p.proname = 'weir_watch_' || left(md5(unwatch_table.table_name::oid || ' ' || unwatch_table.channel), 12));
BEGIN
  IF made IS NOT NULL THEN
    EXECUTE format('DROP FUNCTION %s CASCADE', made);  -- with its triggers
  END IF;
  RETURN made IS NOT NULL;
END
$$;
CREATE FUNCTION weir.watch_table(table_name regclass, channel text, columns text[] DEFAULT NULL::text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
DECLARE
  keys    text[] := ARRAY(SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, nr) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                          WHERE i.indrelid = watch_table.table_name AND i.indisprimary ORDER BY k.nr);
  known   text[] := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = watch_table.table_name AND a.attnum > 0 AND NOT a.attisdropped);
  name    text   := 'weir_watch_' || left(md5(watch_table.table_name::oid || ' ' || watch_table.channel), 12);
  its     record;   -- the table
  made    text;     -- the function
  whose   text;     -- if it is there already
  call    text;
  wrong   text;
  at      record;
BEGIN
  SELECT c.relkind AS kind, n.nspname AS schema, c.relname AS name, r.rolname AS owner INTO its
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = watch_table.table_name;
  IF its.kind IS NULL OR its.kind NOT IN ('r', 'p') THEN
    RAISE EXCEPTION 'weir: % is not a table', coalesce(watch_table.table_name::text, 'null') USING ERRCODE = '42809', HINT = 'Watch the tables that a view is made of.';
  ELSIF its.schema = 'weir' THEN
    RAISE EXCEPTION 'weir: % is a table of Weir itself, and can''t be watched', watch_table.table_name USING ERRCODE = '42809';
  ELSIF NOT pg_has_role(its.owner, 'USAGE') THEN
    RAISE EXCEPTION 'weir: only the owner of %, %, may have it watched', watch_table.table_name, its.owner USING ERRCODE = '42501';
  ELSIF NOT has_function_privilege(its.owner, 'weir._publish_changes(text,text,text,text[],text[],jsonb[],jsonb[])', 'EXECUTE') THEN
    RAISE EXCEPTION 'weir: the owner of %, %, may not publish', watch_table.table_name, its.owner USING ERRCODE = '42501', HINT = format('GRANT weir_publish TO %I;', its.owner);
  ELSIF keys = '{}' THEN
    RAISE EXCEPTION 'weir: % has no primary key, by which a message could say which rows have changed', watch_table.table_name USING ERRCODE = '55000', HINT = 'Add a primary key.';
  ELSIF watch_table.channel IS NULL OR octet_length(watch_table.channel) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'weir: the channel has % bytes: it must have 1 to 255', coalesce(octet_length(watch_table.channel)::text, 'no') USING ERRCODE = '22023', HINT = 'For example orders, or orders.{id}.';
  ELSIF regexp_replace(watch_table.channel, '[{][^{}]+[}]', '', 'g') ~ '[{}*>]' THEN
    RAISE EXCEPTION 'weir: the channel "%" has a brace without its other one, or is a pattern', watch_table.channel USING ERRCODE = '22023', HINT = 'Put names of columns in braces, as in orders.{id}.';
  ELSIF array_ndims(watch_table.columns) > 1 THEN
    RAISE EXCEPTION 'weir: columns must be a list, got %', watch_table.columns USING ERRCODE = '22023';
  END IF;
  SELECT c INTO wrong FROM unnest(watch_table.columns || ARRAY(SELECT m[1] FROM regexp_matches(watch_table.channel, '[{]([^{}]+)[}]', 'g') m)) c WHERE c IS NULL OR c <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % has no column "%"', watch_table.table_name, coalesce(wrong, 'null') USING ERRCODE = '42703', HINT = 'Its columns are ' || array_to_string(known[:20], ', ') || '.';
  END IF;
  made := format('%I.%I', its.schema, name);
  SELECT pg_get_userbyid(p.proowner) INTO whose FROM pg_proc p JOIN pg_class c ON c.oid = watch_table.table_name AND c.relnamespace = p.pronamespace WHERE p.pronargs = 0 AND p.proname = name;
  IF whose <> its.owner THEN  -- who may call it, and would do so with the owner's rights?
    RAISE EXCEPTION 'weir: there is a function % already, and it belongs to %, not to the owner of %', made, whose, watch_table.table_name USING ERRCODE = '42723', HINT = 'Drop it, if it is left from a former owner of the table.';
  END IF;
  call := format('PERFORM weir._publish_changes(format(%L, TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_OP, %L, keys, %L, ', '%I.%I', watch_table.channel, coalesce(watch_table.columns, '{}'));
  -- Ten thousand rows or 16 MB at a time, because they are in memory. Only an update has both, the rows as they were and as they are; they belong together by
  -- the key. Columns are named nowhere but in texts: a statement of the application must not fail because one has another name now.
  EXECUTE format($make$
    CREATE OR REPLACE FUNCTION %1$s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_hashagg = off AS $body$
    DECLARE
      keys text[];
      k    record;
    BEGIN
      IF to_regnamespace('weir') IS NULL THEN
        RETURN NULL;  -- Weir was removed
      END IF;
      keys := weir._keys_now(TG_RELID, %4$L);
      IF TG_OP = 'INSERT' THEN
        FOR k IN
          SELECT array_agg(r.new) AS news
          FROM (SELECT p.new, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.new)) OVER w / 16777216 AS nr FROM (SELECT to_jsonb(n) AS new FROM new_rows n OFFSET 0) p WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %2$s NULL, k.news);
        END LOOP;
      ELSIF TG_OP = 'DELETE' THEN
        FOR k IN
          SELECT array_agg(r.old) AS olds
          FROM (SELECT p.old, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.old)) OVER w / 16777216 AS nr FROM (SELECT to_jsonb(o) AS old FROM old_rows o OFFSET 0) p WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %2$s k.olds, NULL);
        END LOOP;
      ELSE
        FOR k IN
          SELECT array_agg(r.old) AS olds, array_agg(r.new) AS news
          FROM (SELECT p.old, p.new, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.old) + pg_column_size(p.new)) OVER w / 16777216 AS nr
                FROM (SELECT o.old, n.new FROM (SELECT to_jsonb(o) AS old FROM old_rows o OFFSET 0) o FULL JOIN (SELECT to_jsonb(n) AS new FROM new_rows n OFFSET 0) n ON %3$s) p
                WHERE p.old IS DISTINCT FROM p.new WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %2$s k.olds, k.news);
        END LOOP;
      END IF;
      RETURN NULL;
    END
    $body$
  $make$, made, call, (SELECT string_agg(format('o.old -> keys[%1$s] = n.new -> keys[%1$s]', i), ' AND ') FROM generate_subscripts(keys, 1) i), keys);
  EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', made);  -- or others could have it run on tables of theirs
  EXECUTE format('COMMENT ON FUNCTION %s() IS %L', made, 'weir.watch_table ' || jsonb_build_object('table', watch_table.table_name::oid::bigint, 'channel', watch_table.channel, 'columns', watch_table.columns)::text);
  EXECUTE format('ALTER FUNCTION %s() OWNER TO %I', made, its.owner);
  FOR at IN SELECT * FROM (VALUES ('insert', 'REFERENCING NEW TABLE AS new_rows'), ('update', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'), ('delete', 'REFERENCING OLD TABLE AS old_rows')) k(event, rows) LOOP
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %s()', name || '_' || at.event, at.event, watch_table.table_name, at.rows, made);
  END LOOP;
END
$$;
CREATE FUNCTION weir.watched_tables() RETURNS TABLE(table_name regclass, channel text, columns text[]) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto
AS $$
  SELECT t.tgrelid::regclass, d.d ->> 'channel', CASE WHEN jsonb_typeof(d.d -> 'columns') = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(d.d -> 'columns')) END
  FROM pg_proc p
  JOIN pg_trigger t ON t.tgfoid = p.oid AND t.tgparentid = 0 AND right(t.tgname, 7) = '_insert'
  CROSS JOIN LATERAL (SELECT substr(obj_description(p.oid, 'pg_proc'), 18)::jsonb AS d OFFSET 0) d
  WHERE left(p.proname, 11) = 'weir_watch_' AND left(obj_description(p.oid, 'pg_proc'), 17) = 'weir.watch_table '
  ORDER BY t.tgrelid::regclass::text, 2
$$;
CREATE FUNCTION weir.weights() RETURNS TABLE(queue text, key text, weight double precision) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT w.queue, w.key, w.weight FROM weir.key_weight w ORDER BY w.queue, w.key
$$;
CREATE FUNCTION weir.workers() RETURNS TABLE(id integer, name text, queues text[], state text, started_at timestamp with time zone, seen_at timestamp with time zone, running integer, reason text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
AS $$
  SELECT w.id, w.name, w.queues, l.state, w.at, CASE WHEN k.attends THEN now() ELSE coalesce(h.at, w.at) END,
         CASE WHEN f.id IS NULL THEN coalesce(h.running, 0) ELSE 0 END, CASE WHEN l.state = 'silent' THEN weir._prepared_for(w.id) ELSE f.name END
  FROM weir.worker w
  LEFT JOIN weir.worker f ON f.id = w.id AND f.fenced
  LEFT JOIN weir._attending() a(id) ON a.id = w.id
  LEFT JOIN weir._silent() s(id) ON s.id = w.id
  LEFT JOIN LATERAL (SELECT h.* FROM weir.last_word h WHERE h.worker = w.id ORDER BY h.no DESC LIMIT 1) h ON true
  CROSS JOIN LATERAL (SELECT f.id IS NULL AND (a.id IS NOT NULL OR pg_is_in_recovery() AND coalesce(h.says, 'attends') = 'attends') AS attends) k
  CROSS JOIN LATERAL (SELECT CASE WHEN f.id IS NOT NULL THEN 'ended' WHEN s.id IS NULL OR k.attends THEN 'alive' ELSE 'silent' END AS state) l
  WHERE NOT w.fenced ORDER BY w.id DESC LIMIT 10000
$$;

COMMENT ON COLUMN weir.arrival.counts IS 'What is added to counters of the flow, by name. NULL: nothing.';
COMMENT ON COLUMN weir.arrival.event IS 'created, sealed, cancelled or retried: what has happened to the flow besides; called: the job is a callback of a flow within it. NULL: nothing.';
COMMENT ON COLUMN weir.arrival.no IS 'Of cancelled, the number of the cancellation; of retried, the greatest of those of the flow that whoever retried it had seen.';
COMMENT ON COLUMN weir.arrival.waits IS 'Of a task: what has changed of weir.fold.waits; and broken of weir.fold.broken. NULL: nothing.';
COMMENT ON COLUMN weir.batch.flows IS 'The flows of its jobs, in the order of ids; one element: all are members of that flow. NULL: none is a member of one.';
COMMENT ON COLUMN weir.batch.from_xid IS 'The smallest xid of its jobs. With to_xid, the greatest, it bounds the search for a job of the batch.';
COMMENT ON COLUMN weir.batch.gate IS 'The gate that counts its attempts; their ends write to weir.release. NULL: its queue had no limits.';
COMMENT ON COLUMN weir.batch.lanes IS 'In the ring lane of a queue, where nothing is logged, are the batches of claims from its keys: these are the lanes of its jobs, in the order of ids. NULL: all are in the batch''s lane.';
COMMENT ON COLUMN weir.batch.no IS 'A value of weir.batch_no. The attempts that a worker holds are found by (worker, no).';
COMMENT ON COLUMN weir.batch.origin IS 'The segment it was written in. It distinguishes the rows of one batch after reclaiming has carried them into one segment.';
COMMENT ON COLUMN weir.batch.pending IS 'Transactions that were in progress below the position; pending_after holds the last id already claimed of each.';
COMMENT ON COLUMN weir.batch.seen IS 'The snapshot of its claim, if unique jobs are in it: their duplicates that it shows need no run of their own.';
COMMENT ON COLUMN weir.cancellation.queue IS 'The queue in which the job was when it was cancelled, for lists of one queue.';
COMMENT ON COLUMN weir.cancellation_where.batches IS 'A value of weir.batch_no: claims with greater numbers have seen this row. NULL: not known yet.';
COMMENT ON COLUMN weir.cancellation_where.clear_xid IS 'All unfinished jobs that the row describes wait to be claimed, in rows with smaller xids. NULL: some may run, or be scheduled.';
COMMENT ON COLUMN weir.cancellation_where.is_late IS 'Of a flow: it means jobs that were added beside another cancellation of the flow, as long as their flow is cancelled.';
COMMENT ON COLUMN weir.cancellation_where.xid IS 'Jobs with ids up to upto were enqueued by transactions with smaller xids. NULL: not known yet.';
COMMENT ON COLUMN weir.edge.is_lenient IS 'The successor runs also if the predecessor has failed or was cancelled.';
COMMENT ON COLUMN weir.epoch.epoch IS 'A random number of 48 bits.';
COMMENT ON COLUMN weir.epoch.started_at IS 'The start time of the server. home is its timeline and the file of this table, which differs in a copy on the same server. While both are unchanged, the epoch continues. They are only compared for equality.';
COMMENT ON COLUMN weir.failure.finished_at IS 'NULL: not a failure, but a note that the job was retried manually, as this attempt.';
COMMENT ON COLUMN weir.flow.deadline IS 'When it is sealed, if nobody has done so.';
COMMENT ON COLUMN weir.flow.parent IS 'The flow that it is a member of; root is the outermost one, possibly itself. NULL: none.';
COMMENT ON COLUMN weir.flow.task IS 'It is a task of its parent: its first member, which is enqueued when the tasks that it comes after have ended. NULL: it is none.';
COMMENT ON COLUMN weir.flow_cut.due IS 'Flows with deadlines up to then, which the snapshot sees, are sealed.';
COMMENT ON COLUMN weir.fold.cancelled_no IS 'The last cancellation; it counts, and is_cancelled is true, unless who retried the flow has seen it: retried_no is as great. NULL: there was none.';
COMMENT ON COLUMN weir.fold.counters IS 'The counters of the flow, by name. NULL: it has none.';
COMMENT ON COLUMN weir.fold.fired_at IS 'When its members had all ended, and its callbacks were enqueued. NULL: some have not.';
COMMENT ON COLUMN weir.fold.generation IS 'How often it has ended, or will have; more than 1 if ended members were retried, or others were added, after it had ended.';
COMMENT ON COLUMN weir.fold.is_abandoned IS 'It was sealed by its deadline.';
COMMENT ON COLUMN weir.fold.is_skipped IS 'Of a task: it does not start, because a task that it needs has failed or was cancelled, or its flow was; counted as cancelled.';
COMMENT ON COLUMN weir.fold.job IS 'Of a task: its job, once that was enqueued.';
COMMENT ON COLUMN weir.fold.waits IS 'Of a task: how many of the tasks that it comes after have not ended; broken: how many have ended, but did not succeed, although it needs that. NULL: it is no task.';
COMMENT ON COLUMN weir.gate.before IS 'The seq of the gate''s first row. Its before_lanes and before_seqs are the batches that were not ended when the gate was opened: what runs of them counts as well. NULL: all have ended.';
COMMENT ON COLUMN weir.gate.folded IS 'The releases of transactions that this snapshot sees are in running.';
COMMENT ON COLUMN weir.gate.next_start IS 'When the rate would allow the next start if there were no burst: the theoretical arrival time of the generic cell rate algorithm.';
COMMENT ON COLUMN weir.gate.running IS 'How many attempts were handed out through this gate, minus how many of them the releases in folded have ended.';
COMMENT ON COLUMN weir.job.errors IS 'Why earlier attempts ended, in brief: see weir._brief_errors. It goes with the job, so that it outlives the segments of those attempts. NULL: this is the first attempt.';
COMMENT ON COLUMN weir.job.flow IS 'The flow that it is a member of: see functions/flow.sql. NULL: none.';
COMMENT ON COLUMN weir.job.key IS 'Whose job it is, in a queue that is shared by turns; its hash is part of the lane. NULL: nobody''s.';
COMMENT ON COLUMN weir.job.leads IS 'False if the row logged before it, in the same transaction and segment, has the same lane: the rows where it is true show in which lanes a transaction has logged.';
COMMENT ON COLUMN weir.job.put_off IS 'How often this attempt was snoozed or released before: (id, attempt, put_off) identifies a row, and the rows of a job are ordered by it.';
COMMENT ON COLUMN weir.job.ready_at IS 'When the job became ready to be claimed, if that is not when it was enqueued: it was scheduled, retried, snoozed or released.';
COMMENT ON COLUMN weir.job.seq IS 'The batch of an attempt that ended before a rebase, which keeps results but no batches; NULL for all others.';
COMMENT ON COLUMN weir.job.unique_key IS 'Of a unique job, or one that is to be done once in its flow: a hash of what must not be enqueued, or done, twice. See functions/unique.sql.';
COMMENT ON COLUMN weir.job.unique_no IS 'Orders the rows of a key: each attempt, and each time that it was put off, has a new number, twice an id of weir.job_id; plus 1 if the job replaces those that were enqueued before it and have not started. NULL: it is no unique job, but may be one that is to be done once in its flow.';
COMMENT ON COLUMN weir.job.unique_until IS 'Which others this job is a duplicate of: NULL: those that are unfinished; -infinity: those that wait; a time: those enqueued as long before or after it as this is after enqueued_at.';
COMMENT ON COLUMN weir.key_weight.bits IS 'What the lanes of the key have in common: see weir._key_bits.';
COMMENT ON COLUMN weir.message.keep IS 'True: deliver the message even if its transaction has already published the same one.';
COMMENT ON COLUMN weir.minute.queue IS 'Empty: all queues together, also those that have no rows of their own because a hundred others had more to count.';
COMMENT ON COLUMN weir.minute.retried IS 'With those whose worker was lost. other: snoozed or released.';
COMMENT ON COLUMN weir.minute.sampled IS 'How many of the attempts that completed, failed or were retried have been looked at for waits and runs.';
COMMENT ON COLUMN weir.minute.upto IS 'The ends before this time are counted, here or in earlier rows. NULL: the row says what waited.';
COMMENT ON COLUMN weir.minute.waiting IS 'How many jobs waited when the minute was over. oldest: for how long the first of them had.';
COMMENT ON COLUMN weir.minute.waits IS 'For how long the attempts waited that completed, failed or were retried, and in runs, how long they ran: about how many of them fall into each bucket of weir._bucket, in twelve digits for each, those of bucket 0 last. So sums of rows are sums of their buckets.';
COMMENT ON COLUMN weir.operation.filter IS 'The conditions, by the names of the arguments of weir.retry_where and the like.';
COMMENT ON COLUMN weir.operation_step.after IS 'Where the list continues. NULL: at its beginning.';
COMMENT ON COLUMN weir.operation_step.by IS 'Who has stopped the operation.';
COMMENT ON COLUMN weir.operation_step.changed IS 'How many jobs the operation has changed so far. NULL: that is not counted.';
COMMENT ON COLUMN weir.output.flow IS 'The flow of the member; of the job of a task, the flow of which it is a task.';
COMMENT ON COLUMN weir.promotion.ahead_due IS 'Earlier cursors that reach further in time, with ahead_id and ahead_snapshot: the rows that their snapshots could see are promoted. NULL except after the clock stepped back, or while very many late jobs are being promoted.';
COMMENT ON COLUMN weir.queue.ageing IS 'For how long a job waits before it may be claimed ahead of those whose priority is one before its own: see weir._reserve. NULL: forever.';
COMMENT ON COLUMN weir.queue.aside IS 'True for a twin (another row with the same name) without jobs: claims skip it. If a job is added to it after all, weir._set_twins_aside makes claims include it again.';
COMMENT ON COLUMN weir.queue.backoff IS 'The delay between the first failure of a job and the next attempt. It grows with each further failure as backoff_form says, up to backoff_limit: see weir._next_try.';
COMMENT ON COLUMN weir.queue.gate IS 'The gate of its limits; NULL: it has none. A twin that was created at the same time may lack it: the gate of a name is that of any of its twins.';
COMMENT ON COLUMN weir.queue_limit.gate IS 'Another one each time that a queue without limits gets some.';
COMMENT ON COLUMN weir.queue_limit.in_order IS 'No job of a key starts while an earlier one of it is to be tried again.';
COMMENT ON COLUMN weir.queue_limit.key_running IS 'This and the following are the limits of each key of the queue.';
COMMENT ON COLUMN weir.queue_limit.version IS 'Another one each time that they change: then keys that a limit has stopped are looked at again.';
COMMENT ON COLUMN weir.relay."position" IS 'A position in the log that the relay reads: of this database''s messages, or of another broker, in that broker''s own form.';
COMMENT ON COLUMN weir.relay.sent IS 'The position of the message that the target got last, which tells a target that was set back from one for which nothing has come. NULL: none.';
COMMENT ON COLUMN weir.relay.tick IS 'The first tick of this database with messages that the relay has not passed on: they are kept for it. NULL: it reads another log.';
COMMENT ON COLUMN weir.release.lanes IS 'The lanes of those that were jobs of keys. Claims give turns to keys that were at their limit. Empty: to all of them, because a filter has cancelled jobs that may have held them up.';
COMMENT ON COLUMN weir.report.checkpoint IS 'NULL: the checkpoint has not changed; a JSON null: there is none any more.';
COMMENT ON COLUMN weir.report.claim IS 'The number of the batch that claimed the attempt: those of a job''s attempts grow.';
COMMENT ON COLUMN weir.request.ids IS 'The answer, and duplicates (NULL: none).';
COMMENT ON COLUMN weir.request.key IS 'A hash of what the requester calls the request. body: a hash of the jobs.';
COMMENT ON COLUMN weir.ring.arrived IS 'What is announced: the news of the transactions that this snapshot sees. Rows of others are left to later claims.';
COMMENT ON COLUMN weir.ring.due IS 'No key that has another turn at an earlier time than this, because of its rate, still waits for it, unless the clock was set back.';
COMMENT ON COLUMN weir.ring.forms IS 'Which last three bits the lanes of keys have had so far, as a set: priorities, and whether attempts were put back.';
COMMENT ON COLUMN weir.ring.newcomers IS 'Lanes of keys with news that have not had a turn yet, in the order in which they came, and are not in the ring.';
COMMENT ON COLUMN weir.ring.stopped_after IS 'Limits have changed, or a filter has cancelled jobs, and some of the keys that a limit has stopped are still to be looked at again: those in the lanes after this one, up to stopped_upto; if that does not lie after it, to the last lane, and then from the first one on. NULL: none.';
COMMENT ON COLUMN weir.ring.tag IS 'Virtual time: no turn that has not begun has a smaller tag.';
COMMENT ON COLUMN weir.ring.version IS 'The version of the limits that the claim has seen.';
COMMENT ON COLUMN weir.schedule.fields IS 'The parsed schedule: see weir._parse_schedule.';
COMMENT ON COLUMN weir.schedule.first_due IS 'The first due time of this generation.';
COMMENT ON COLUMN weir.schedule.generation IS 'Another one after each change: rows of weir.later with an earlier one count no more.';
COMMENT ON COLUMN weir.segment.upto IS 'Up to which job id a segment of reports is carried; NULL for all other events.';
COMMENT ON COLUMN weir.survey.batches IS 'The value of weir.batch_no at the time: it bounds how many batches may have been claimed since.';
COMMENT ON COLUMN weir.survey.reclaimed IS 'The number of the last event by which a segment of jobs was reclaimed. After another such event the survey is invalid.';
COMMENT ON COLUMN weir.tick.bytes IS 'The size of its payloads. A tick of more than 10000 messages, or of more than 8 MB, contains a single transaction.';
COMMENT ON COLUMN weir.tick.last_id IS 'The last message id that had been assigned before the snapshot was taken.';
COMMENT ON COLUMN weir.tick.segments IS 'A bit mask of the segments that contain its messages: bit (1 << segment).';
COMMENT ON COLUMN weir.turn.again_at IS 'It has jobs, and gets another turn at this time, because of its rate.';
COMMENT ON COLUMN weir.turn.next_start IS 'As weir.gate.next_start, for the rate of the key.';
COMMENT ON COLUMN weir.turn.open IS 'Attempts that are not known to have ended: the batch and the job of each. NULL: there are none, or their number is not limited.';
COMMENT ON COLUMN weir.turn.parked IS 'It has jobs, but so many of its attempts run that none may start: it gets another turn when one ends.';
COMMENT ON COLUMN weir.turn.pending IS 'Transactions that ended after the position had passed them, and are not read to their end; pending_after holds the last id already claimed of each.';
COMMENT ON COLUMN weir.turn.seq IS 'The batch of the claim that wrote the row: it has the same number in the ring lane.';
COMMENT ON COLUMN weir.turn.tag IS 'When its next turn begins, in the virtual time of weir.ring.';
COMMENT ON COLUMN weir.turn.waits IS 'It waits for its turn.';
COMMENT ON COLUMN weir.with_keys.since IS 'No transaction before it has logged a job with a key that another row does not stand for.';
COMMENT ON ROUTINE weir._add_counts(jsonb,jsonb[]) IS 'The counters of a flow after some were added to: each stays a bigint; what is not a number is not counted. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._all_claimed(weir.cancellation_where) IS 'Reports whether claims have passed all jobs that could have been claimed when a cancellation had no other ones left. False, too, while jobs of very many keys wait.';
COMMENT ON ROUTINE weir._arrival_ring() IS 'The table of weir.arrival to log in, for all but cuts. Errors: WR003 (the log comes from another cluster). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._arrive(bigint,text,bigint,text,bigint,jsonb) IS 'Logs that n jobs of a flow were added (jobs), or have ended in a way, and what is added to its counters. Errors: WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';
COMMENT ON ROUTINE weir._arrive_ended(bigint[],text[]) IS 'Logs that a claim has ended members of flows itself: those without a reason (NULL or empty) are cancelled; the others are duplicates of members, and were none. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';
COMMENT ON ROUTINE weir._as_committed(pg_snapshot,xid8) IS 'A transaction''s own snapshot, as if that transaction had committed, and no other since. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._attending() IS 'The workers whose attendance lock is held by a session.';
COMMENT ON ROUTINE weir._await_tick(bigint,bigint,pg_snapshot,integer,double precision,integer,boolean,bigint,integer) IS 'Returns the ticks after a given one, up to 100; if there are none and cuts is true, cuts the next. The messages of a tick that it has cut are returned with it, if there are at most most_messages, of at most 256 kB. If epoch, the epoch of the given tick, is passed, a position that was lost when the log was set back is refused. It polls up to polls times, every pause seconds. ids and seen are ids_now and seen_now of an earlier call: while nothing has been published or committed since then, it reads only counters. From poll patience + 1 on, a commit without messages counts too. Errors: WR003 (see rebase_messages), WR004 (not in READ COMMITTED autocommit), WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (see _check_position; not checked again while nothing changes), 22023, 25006 (cuts on a standby), 55000 (the transaction is old: try again). Locks: advisory step 4 (tried). Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._batch_of(bigint,integer,xid8,bigint) IS 'The batch that claimed a job of one segment, found by bisection from the newest on.';
COMMENT ON ROUTINE weir._batch_of_key(bigint,integer,xid8,bigint) IS 'As _batch_of, for a job with a key: its batch is in a ring lane, and the turns of its own lane show which one it is. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._batches_after(integer,bigint,integer) IS 'The numbers of a worker''s next batches, in order: up to max_batches, but only as many as have about 2,000 jobs together; NULL: all.';
COMMENT ON ROUTINE weir._beat(text,text,bigint,integer,integer,real,real) IS 'A hub''s heartbeat, with the newest tick that it has dispatched, and how many channels have subscribers there and how many messages and deliveries it has had per second of late; NULL for the tick means that the hub stops. Errors: 22023. Locks: none that others wait for. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir._beat_if_due(integer,interval,integer) IS 'Renews a worker''s lease if it does not attend, and a third of the lease has passed since its last word by weir.watched or a rescuer has missed it. Reports whether it is time to compare what the worker holds: when the lease was renewed, or, for a worker that attends, when a batch that was claimed a third of the lease ago has not been compared since. Locks: see heartbeat.';
COMMENT ON ROUTINE weir._begin_nested(weir.fold[],weir.fold[]) IS 'Completes the first counts of flows that are members of others: they are cancelled if their parent is; a task knows how many of those that it comes after have not ended, or broke; and one that another transaction has added before has no job. Locks: none.';
COMMENT ON ROUTINE weir._being_completed() IS 'Hashes of the ids of jobs that are being completed in open transactions, or whose checkpoint is set there, including prepared ones.';
COMMENT ON ROUTINE weir._brief_errors(jsonb) IS 'The last 24 of a list of errors (objects with attempt, at, outcome and error), in the form in which the row of the next attempt carries them: the beginning and the end of a text of more than 1000 characters, and no text if it is the same as in the entry before. NULL for an empty list. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._bucket(interval) IS 'The bucket of a duration: each reaches to 1.41 times what the one before it does, bucket 0 to 1 ms, 20 to 1 s, and 64 is for all above 36 days. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._bytes_of(text,text,bigint,bigint) IS 'The number of bytes that is the value of a setting, which may have a unit. Errors: 22023.';
COMMENT ON ROUTINE weir._call_back(jsonb,jsonb,bigint) IS 'Enqueues a callback of a flow, with what its meta says about the flow; it is a member of the flow''s parent, if that has one, but not cancelled with it. Locks: see weir.enqueue.';
COMMENT ON ROUTINE weir._callback(text,jsonb) IS 'A callback of a flow with its defaults; NULL: none. Errors: 22023 (it could not be enqueued), 22P02. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._cancel_late(weir.fold[],bigint[]) IS 'Cancels what was added to cancelled flows between the call that cancelled them and its commit, or by transactions that could not see it yet: the ids of these jobs may be greater than those that the cancellation means. Locks: see weir.cancel_flow.';
COMMENT ON ROUTINE weir._cancel_members(bigint) IS 'Cancels what weir.cancel_flow says, however many cancellations there are: what fails fast has no limit. Errors: none. Locks: see weir.cancel_flow.';
COMMENT ON ROUTINE weir._cancellation_of(bigint) IS 'The last cancellation of a flow, or of one around it, that this transaction can see, for who retries it: one that it does not see counts all the same, whichever commits first. Locks: ACCESS SHARE on weir.flow, to the end of the transaction. Isolation: any.';
COMMENT ON ROUTINE weir._cancelled_among(bigint[]) IS 'The ids whose jobs were cancelled: a worker calls it for its running jobs when weir.control has changed.';
COMMENT ON ROUTINE weir._cancelled_at(bigint,text) IS 'When a job was cancelled that has no end yet, because no worker has passed it: at the latest. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._cancelled_in(bigint,timestamp with time zone,bigint,integer) IS 'Jobs of a lane that have ended as cancelled, newest first, before a place.';
COMMENT ON ROUTINE weir._cancelled_of(weir.cancellation_where[],bigint[],integer[],text[],jsonb[],timestamp with time zone[],text[],integer[],bigint[]) IS 'Which of some rows of the log are cancelled by one of these filters, in their order. The caller has chosen filters by queue, and by priority, unless it passes priorities. keys: NULL, if none of them has one.';
COMMENT ON ROUTINE weir._cancelled_where_among(bigint[]) IS 'Those of some jobs that are not finished that are cancelled by a filter. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._cancelled_within(bigint) IS 'The flows and tasks within a flow, at any depth, that are cancelled, or were a short time ago. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._carry_keys(integer,integer,bigint[],integer,bigint) IS 'As _carry_waiting, for many lanes of keys at once. The caller holds their ring''s lock. Returns how many bytes.';
COMMENT ON ROUTINE weir._carry_states(integer,integer,bigint[]) IS 'Repeats the states of idle lanes, whose newest batch is in a closed segment, in the active one: as batches without jobs and without a worker. A concurrent claim may write a newer state first, which does no harm.';
COMMENT ON ROUTINE weir._carry_turns(integer,integer,bigint[]) IS 'Repeats the newest turns of keys that are in a closed segment, and nowhere else, in the active one. A concurrent claim may write newer ones first, which does no harm.';
COMMENT ON ROUTINE weir._carry_unfinished(integer,integer,bigint[],bigint[],bigint[],bigint[],bigint[]) IS 'Carries everything unfinished from a segment, which the caller has locked exclusively, into the active one: the unclaimed jobs of the lanes in waiting; the unfinished jobs of the batches in b_lanes and b_seqs, and of each lane''s batches from newest on; and the state of a lane, if no batch elsewhere holds it.';
COMMENT ON ROUTINE weir._carry_waiting(integer,integer,bigint[],integer,bigint) IS 'Carries jobs that wait to be claimed into the active segment: about max_jobs or max_bytes, from at most 200 lanes and the keys of one queue. Returns how many bytes. Each job is copied with its xid and id and deleted, in one transaction and under its lane''s lock, or that of its key''s ring: so a claim sees it exactly once, in its place. Locks: advisory: the lanes and a ring (exclusive, tried).';
COMMENT ON ROUTINE weir._channel_for(text,jsonb) IS 'The channel of a row: its template with the row''s values. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._channel_part(text) IS 'A value as a part of a channel: dots, asterisks, greater-than signs, braces, percent signs, blanks and control characters as %XX; NULL as %00, an empty text as %, and one of more than 60 bytes as %23 and its MD5. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_array(text,text,anyarray,boolean) IS 'Raises 22023 unless an array is a list: of one dimension that begins at 1, and without nulls if is_filled. Parallel arrays are matched by index, so an array of another shape would be misread. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_backoff(interval,interval,text) IS 'Refuses values of a backoff that are invalid; NULL is valid. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_cluster() IS 'Raises WR003 if the log comes from another cluster. Functions that compare transaction ids call it first, every time: behind a pooler a session survives a move to another cluster, and the new counter may have passed the old positions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_cluster_once() IS 'As _check_cluster, for functions that are called often: a session never changes its cluster, so it looks once for each cluster that the log names. Errors: WR003. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_counts(bigint,jsonb) IS 'Refuses counters of a flow whose names are too long, or that would be too many. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_destination(text,text,integer) IS 'Refuses a queue and a priority to which jobs can''t be moved. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_filter(text,text,text[],jsonb,integer,text,text,boolean,text,text) IS 'Refuses a filter of a bulk operation that is not valid, that has no condition, or one whose value is empty. has_time: a time is a condition. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_isolation(text,boolean) IS 'Raises WR004 unless the transaction is READ COMMITTED, because the caller relies on a new snapshot for each statement. with_others: it belongs into a transaction with other statements.';
COMMENT ON ROUTINE weir._check_job(text,text,jsonb,integer,integer,jsonb) IS 'Raises 22023 with the offending value if a job is not valid. The sizes of args and meta are those of their texts, which workers receive: a column of another table may hold 50 MB in a few compressed bytes, and 1e100000 takes 12. Callers may skip the check of sizes for values of at most 2000 bytes, whose texts never exceed 16 MB. Keys of meta that begin with weir. are written by Weir''s own functions, and weir.otel by clients that trace. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_key(text) IS 'Checks the key of a job. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message(text,integer) IS 'Raises 22023 with the offending value if a message is not valid, and WR004 if its transaction has already cut a tick of its own. Up to 8000 bytes are always allowed, so small payloads don''t need a query for the setting message_bytes. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message_cluster() IS 'Raises WR003 if the log of messages comes from another cluster. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_new_queue(text) IS 'Raises 22023 if a queue should not be created with this name, because it is easily taken for another. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_operation(text,jsonb,text,integer) IS 'Refuses an operation whose arguments are not valid, and returns its filter as it is stored: without nulls, and with times that mean the same whenever they are read. Errors: 22023; see _conditions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_position(bigint,bigint) IS 'Refuses a tick that does not belong to this log: it is ahead of the log, or its number has another epoch here. A standby may lag behind, so it accepts ticks that are ahead. Errors: WR006 (the detail is epoch.tick of the last tick to continue from). Locks: none that others wait for. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._check_states(text,text[]) IS 'Refuses states whose jobs can''t be retried; NULL is valid. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_step(text,text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text,integer,text,boolean) IS 'Refuses a step of a bulk operation whose arguments are not valid. has_end: a time of the end is a condition. Errors: 22023, WR004. Locks: none.';
COMMENT ON ROUTINE weir._check_types(jsonb) IS 'Raises 22023 with the job''s number and the value if a field of a job for weir.enqueue_many(jsonb) does not have its type. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_unique(text,text[],text,interval,boolean,jsonb) IS 'Checks the arguments of enqueue_unique that enqueue does not have. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_worker(integer) IS 'Returns the queues of a worker; raises WR001 unless it was started and is not fenced. The caller holds the worker''s lock.';
COMMENT ON ROUTINE weir._claim(integer,text[],integer[],pg_snapshot,text[]) IS 'Claims the next jobs of the named queues for a worker: up to limits[i] of queues[i] (at most 960 of a lane in one call), priority by priority, and with ageing some of lower priorities (see _reserve), each attempt in exactly one batch. put_off is how often this attempt was snoozed or released before; ready_at is when the job became ready, if that is not enqueued_at. lane and seq name the batch; jobs with keys are in batches of their queue''s ring lane, whatever their priority. dropped is NULL if the job is to be run; otherwise it must not be run, but be recorded as cancelled, and dropped is the reason, to be stored as its error ('''': none to store). A paused or unknown queue returns no jobs. since is a hint for workers of very many queues: of queues that are not in backlog, only jobs of transactions that ended after that snapshot are considered; NULL: all. Jobs that weir.cancel_where has cancelled, and unique jobs that need no run (see _judge), are not returned: the claim ends them itself, thousands in one call. It visits at most 200 lanes with jobs, from a random queue on; if there may be more, the last row is all NULL, and the caller claims again at once. For each queue of which jobs were withheld there is a row without a job: with the queue and, in enqueued_at, the present time; and if only its rate has withheld them, or four other claims that have its gate or its turns, or wait for them, in ready_at, when there may be some. Otherwise it is worth another claim when attempts have ended, which moves weir.job_id. Errors: WR001 (the worker is unknown or fenced), WR003 (positions are ahead of the cluster), WR004 (not in READ COMMITTED autocommit), 22023, 55000 (the transaction is old: try again). Locks: advisory: claims (shared), the worker''s claims (exclusive), the unique jobs of each queue that has had some (exclusive, only tried if it has locked a lane already), the gate of each queue that has limits and room, and the ring of each that has jobs with keys (exclusive, only tried if it has locked a lane or a gate already; otherwise see _lock_behind_few), each lane with jobs that it visits, and with ageing the queue''s other lanes (exclusive, to the end of the call). Isolation: READ COMMITTED, in autocommit. Commits asynchronously, unless it returns jobs of a queue with limits.';
COMMENT ON ROUTINE weir._clock_change(timestamp with time zone,timestamp with time zone,text) IS 'The instant at which the clocks of a time zone change, between two instants with different offsets. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._commit_synchronously() IS 'Makes the transaction survive a crash once its commit is acknowledged, even if synchronous_commit is off for the role.';
COMMENT ON ROUTINE weir._compact_flows() IS 'Does one small chore for the tables of flows: opens the next table of arrivals when the active one has 4 MB; empties the others of what is counted; compacts the cuts, the counts and the flows to what is still of use, without flows that ended longer ago than jobs are kept. Returns what it did, or NULL. Locks: advisory: step 7 (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._compact_gates() IS 'Does one small chore for the tables of limits: opens the next table of releases when the active one has 4 MB; empties the others of what is counted; compacts the gates to their newest rows. Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._compact_operations() IS 'Compacts weir.operation and weir.operation_step, when they have 1 MB and twice what was left the last time: to the operations that have not ended, and of the others to the newest 1000 of the last 30 days, each with its newest step; and weir.operation_mark with them. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on the three. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._compact_relays() IS 'Compacts weir.relay to the newest row of each relay, when it has 1 MB and twice what was left the last time. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on it. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._compact_rings() IS 'Compacts weir.ring to the newest row of each queue, when it has 4 MB. Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on weir.ring. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._complete(integer,bigint,bigint,bigint,text,jsonb) IS 'Records one attempt as completed in the caller''s transaction: its effects and the completion commit together. counts: what is added to counters of its flow, by name, as with weir.increment, in the row that counts its end; NULL: nothing. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: see _hold_attempt; 22023. Locks, to the end of the transaction: those of _hold_attempt; ROW EXCLUSIVE on the segment''s results. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._conditions(jsonb) IS 'The conditions of an operation''s filter; NULL: it has no such condition. Errors: 22P02, 22007 and the like (a value has another type). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._copies_of(bigint[]) IS 'The copies of those among some jobs that have failed, and are neither unique nor in a flow. A copy in the array holds its values itself, so nothing is read of the tables later. Locks: none that outlast the call; waits while a segment is being emptied.';
COMMENT ON ROUTINE weir._count_minutes(timestamp with time zone) IS 'Once in each minute, notes how many jobs wait, and counts what has ended in the minutes before the last one: in a row for each of the hundred queues with most, and one for all. It reads up to 20,000 results, which the next calls continue, and looks at up to 500 of them for how long their attempts waited and ran. Ends that are committed more than a minute later are not counted. Truncates the next table of minutes ahead of its turn. at: as if it were that time. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 8 (tried); ACCESS SHARE on the log; ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._covered_cancellations(bigint[]) IS 'The cancellations by filter that are not needed, because a later one means all their jobs: one with another number than others. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._covers(weir.cancellation_where,weir.cancellation_where) IS 'Reports whether a later cancellation by filter means every job that an earlier one means, so that the earlier one is not needed. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._cron_after(text[],timestamp without time zone) IS 'The first time on the wall clock after another one that a parsed cron expression allows, or NULL if there is none within 60 years. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._cron_field(text,text,integer,integer,text) IS 'The values that a field of a cron expression allows, as a string of 0s and 1s from low on. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._cut(integer,integer,bigint,integer) IS 'Cuts the next tick from messages that were committed since the last one, and describes it; everything is NULL if there were none. whole is true if it contains everything that was committed before its snapshot. If it has at most most_messages messages of at most 256 kB together, they are returned with it. Messages that this transaction has published itself, own_count of own_size bytes in the segment own_segment, count as committed, because they commit with the tick; after that, the transaction can neither publish nor cut (WR004). The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._depths(bigint[]) IS 'How many jobs of each lane wait to be claimed, including cancelled ones, and since when the first of them have waited; lanes without waiting jobs are left out. Up to 10,000 jobs of a lane and about 20,000 of all lanes are counted; above that, the number is an estimate from a sample of pages. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._depths_later() IS 'How many jobs of each lane are scheduled, including cancelled ones: if there are more than 10,000, an estimate from a sample of pages for lanes with 100 or more. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._depths_of_keys() IS 'As _depths, for the lanes of keys. If jobs may wait in more than 2,000 lanes of a queue, their number is an estimate from a sample of pages, given for the lanes that it has met. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._depths_running() IS 'How many jobs of each lane are running: too few, perhaps, in the lanes of a worker that has claimed so many batches since it was last settled that only the newest are read; these are marked as estimates, and all of them are returned. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._draw_epoch(bigint) IS 'Starts an epoch with a tick, and deletes the epochs that are neither among the newest 1000 nor have a tick that can still be read. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';
COMMENT ON ROUTINE weir._drop(integer,bigint,bigint,weir.cancellation_where[],smallint[],bigint[],integer[],text[],jsonb[],timestamp with time zone[],text[],integer[],bigint[]) IS 'Ends those jobs of a batch that is being claimed that are cancelled by one of these filters, and returns their ids. In the transaction of the claim: so they are claimed and ended, or neither. Segments can''t be reclaimed meanwhile, because a claim holds the claims'' lock.';
COMMENT ON ROUTINE weir._due_after(text[],text,timestamp with time zone) IS 'The first due time of a parsed schedule after an instant, always a whole second; NULL: none. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._due_upto(text[],text,timestamp with time zone,timestamp with time zone) IS 'The last due time of a parsed schedule up to an instant, from one due time on, however many are in between. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._end_attempts(integer,bigint[],bigint[],smallint[],bigint[],weir.outcome[],text[],text[],timestamp with time zone[]) IS 'Writes how attempts ended, and logs those that follow. retried and lost become failed if no attempts are left; run_at -infinity means the queue''s backoff. The caller has checked that the attempts have not ended, and holds the locks that keep it so.';
COMMENT ON ROUTINE weir._end_flows(weir.fold[],weir.fold[],bigint[]) IS 'Enqueues the callbacks of flows that have ended in this cut, and cancels those that fail fast and that members have failed of (failing). Returns how many have ended, and whether it has logged an arrival that is to be counted at once. Locks: see weir.enqueue, weir.cancel_flow.';
COMMENT ON ROUTINE weir._end_members(bigint[],bigint[],bigint[],text[]) IS 'Logs how many members of flows are among attempts that the caller''s transaction has ended, for good: the jobs ids of the batches lanes and seqs; outcomes NULL: all are completed. Errors: WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';
COMMENT ON ROUTINE weir._end_of(weir.job) IS 'When and by which worker a row of the log was claimed, and how that attempt ended. All NULL: it was not claimed; outcome NULL: it is running.';
COMMENT ON ROUTINE weir._ended_among(weir.cancellation_where[],boolean,bigint[],xid8[],integer[],text[],jsonb[],timestamp with time zone[],text[],integer[],uuid[],bigint[],timestamp with time zone[],bigint[]) IS 'Which of some rows of one lane, in their order, a claim ends itself, and for what reason: those that are cancelled by one of these filters and, with to_judge, unique jobs that need no run (see _judge). Their fates are those of a claim that ends just them: so they hold up to the first row that is not among them.';
COMMENT ON ROUTINE weir._ended_since(pg_snapshot,pg_snapshot) IS 'The ranges (low included, high not) of transactions that the second snapshot sees as ended and the first did not. They exclude the 64 oldest transactions in progress, so that a scan skips the rows of those: large transactions are old. The last range may include younger ones, whose rows nobody sees.';
COMMENT ON ROUTINE weir._ends_between(timestamp with time zone,timestamp with time zone,integer) IS 'The first results of a time, in its order, up to most of them: each with the number of its jobs, and one of these at random. Locks: ACCESS SHARE on the results. Isolation: any.';
COMMENT ON ROUTINE weir._ends_of(integer,bigint[],bigint[],integer[],bigint[]) IS 'Which of some attempts of a worker have ended, and how: passed as to _record, returned by their places in ids. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._enqueue_due(weir.schedule,timestamp with time zone) IS 'Enqueues a job of a schedule; its meta says of which one, and when it was due. Errors: none, since set_schedule has checked the job. Locks: see enqueue. Isolation: any.';
COMMENT ON ROUTINE weir._enqueue_json(jsonb) IS 'Does what weir.enqueue_many(jsonb) does, and also returns which of the jobs are duplicates of earlier ones, or to be done once in their flow and there already; NULL: none. Errors, locks and isolation: as for weir.enqueue_many.';
COMMENT ON ROUTINE weir._enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[],text[],bigint[],text[]) IS 'Does what weir.enqueue_many does, and also returns which of the jobs were not added because they are to be done once in their flow, and are there already; NULL: none. Errors, locks and isolation: as for weir.enqueue_many.';
COMMENT ON ROUTINE weir._enqueue_request(uuid,jsonb) IS 'Does what weir.enqueue_many(jsonb) does, unless a request with the same key was committed less than a day ago: then it returns what that one did, and repeated is true. duplicates: which of the jobs are there already; NULL: none. Of several at the same time, one enqueues, and the others wait for it. A request that is refused, or rolled back, is not kept. Errors: WR007 (the key was used with other jobs); WR004 (not in READ COMMITTED); those of weir.enqueue_many. Locks: advisory: the request''s key (exclusive, to the end of the transaction); otherwise as for weir.enqueue_many. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._enqueue_requests(uuid[],text[]) IS 'Does what weir._enqueue_request does for requests of one job each, which weir.enqueue takes, together, and returns the ids of their jobs. NULL: nothing was done, because the key was used before, or another transaction, or an earlier one of these requests, is using it: call weir._enqueue_request. So nobody is waited for. Errors: WR004 (not in READ COMMITTED); those of weir.enqueue, for which none of the jobs is enqueued. Locks: advisory: the requests'' keys (exclusive, tried, to the end of the transaction); otherwise as for weir.enqueue. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._enqueue_unique_many(jsonb) IS 'Calls enqueue_unique for each element of a JSON array, an object whose keys are its arguments, and returns the answers in their order; but jobs whose keys have no rows in the log are enqueued together, before the others. All or none. Errors and locks: as for enqueue_unique; 22023 (more than 10000 jobs). Isolation: any.';
COMMENT ON ROUTINE weir._epoch_here() IS 'The newest epoch, if it was drawn here, on this timeline, and since this server started; NULL: the next tick starts a new one. Call it before every cut, because a session behind a pooler survives a move. The caller holds advisory step 4. Errors: WR003 (the log comes from another cluster). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._epoch_home() IS 'The place where ticks are cut: the timeline, and the file of the table, which differs between copies on one server. Errors: none on a primary. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._epoch_of(bigint) IS 'The epoch of a tick, also after the tick was truncated; NULL before the first epoch. Epoch and tick together identify a tick across all logs. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._failed_between(bigint[],timestamp with time zone,timestamp with time zone,integer) IS 'When the newest failures of a time were, up to most; in some lanes of a key, or for NULL in all.';
COMMENT ON ROUTINE weir._fence(integer,text) IS 'Ends a worker: after the commit it can neither claim nor record. _settle then releases its unfinished attempts; the rescuer calls it too. Returns false, and does nothing, while a transaction of the worker is claiming or recording. Errors: WR001 (the worker is unknown), WR004. Locks: advisory: the worker and its claims (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._fence_silent() IS 'Fences workers that were silent past their lease, and workers that have attended since this server started and whose lock has been free for 3 seconds. Silence is measured by weir.watched, which this function advances, and counts from the first check since this server started at the earliest. After a crash or a failover weir.attendance has no trace of attending workers: then their lease counts, from when they were missed. Returns the workers that it fenced or missed; more is false for those to check again in half a second: after a session has ended, until the 3 seconds are over, for everybody; while a lease decides about a worker that seems to be lost, for the caller that has advanced weir.watched; error is why a worker could not be fenced, for example that a prepared transaction holds it; the others are fenced all the same. The caller holds advisory step 6. Locks: advisory: their last words (exclusive, tried); see _fence. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._fields_of(jsonb,text[]) IS 'Some fields of an object. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._filters_of(text,integer) IS 'The cancellations by filter that may concern jobs of a queue, of one priority or (NULL) of any; NULL: there are none.';
COMMENT ON ROUTINE weir._fire(weir.later[],timestamp with time zone,integer) IS 'Fires the schedules whose rows of weir.later promotion has found due at at_time, up to most due times in all and 100 of each schedule, and inserts the rows of the next due times, which are after at_time. What was missed, because nobody promoted for more than a minute after the due time and its jitter, is fired as the schedule says; later due times are fired one by one. Returns the number of due times. Locks: the caller''s step of promotion lets one session fire at a time. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._first_instant(timestamp without time zone,text) IS 'The first instant at which the clocks of a time zone show a time; if they skip it, the instant of the change. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._first_look() IS 'The value of weir.watched at the first check for unattended workers since this server started, or its present value if there was none yet: no lease counts from before it. 0 on a standby, where no worker is fenced.';
COMMENT ON ROUTINE weir._first_tick_after(timestamp with time zone) IS 'The first tick that was cut after a time, of those that are kept, or the next one; the epoch of the tick before it; and whether everything since that time is kept. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._flows_among(bigint[],bigint[],bigint[]) IS 'The flows of some of the jobs of a batch, as weir.batch stores them. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._flows_in(integer,bigint[]) IS 'The flows of some jobs, in the order of their ids, read again from the log: only claims of jobs of several flows call it, so that the others need not aggregate what nearly all jobs lack. Locks: ACCESS SHARE on the log.';
COMMENT ON ROUTINE weir._flows_of(bigint[]) IS 'The flows of jobs as weir.batch stores them: one element, if all are of the same; NULL, if none is of any. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._fold_arrivals() IS 'Counts what has arrived at flows since the last cut, seals those whose deadline has come, enqueues the callbacks of those that have ended, and tasks whose predecessors have. Returns how many flows it has counted (folded), how many have ended (fired), busy: another session is doing it, so call again for what it may not have seen; is_used: there are flows; and again: it has logged arrivals itself, so call it again at once. If there is nothing new, it writes nothing. Errors: WR003, WR004 (not in READ COMMITTED autocommit). Locks: advisory step 7 (tried). Isolation: READ COMMITTED, in autocommit. Commits asynchronously.';
COMMENT ON ROUTINE weir._forget_ended() IS 'Removes pending transactions that have ended and left no jobs from the state of idle lanes, by writing a batch without jobs and without a worker: otherwise each claim would search for their rows again. Checks 500 queues in a call, locks at most 200 lanes, and stops after 0.1 s. Returns the number of lanes. Errors: WR003. Locks: advisory: claims (shared, tried), the lanes (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._forget_failures(bigint[]) IS 'Notes that failed jobs are deleted; not those that have been retried since. Returns how many were. The caller has called weir._lock_to_retry.';
COMMENT ON ROUTINE weir._forget_workers() IS 'Deletes ended workers that have no unfinished attempts, except the newest thousand of the last day, so that heartbeats read about as many rows as workers are alive. Their results are still refused, because they are unknown then. Returns how many.';
COMMENT ON ROUTINE weir._free_slots(integer[],integer[],bigint[]) IS 'Logs how many attempts of each gate the transaction has ended: counts[i] of gates[i], of a job with a key in lanes[i]; NULL is no gate, or no key. Attempts that follow them are claimed as any others. Locks: none that others wait for.';
COMMENT ON ROUTINE weir._fresh_between(xid8[],xid8) IS 'The lanes that have rows of transactions between those in progress, in one query for all lanes: known[i] is true if at most four lanes have any between the i-th and the next transaction in progress, and lanes are the lanes of all such ranges. It covers the 256 oldest ranges, with the index on rows that lead, as _fresh_lanes does.';
COMMENT ON ROUTINE weir._fresh_lanes(pg_snapshot,pg_snapshot,integer) IS 'The lanes with jobs of transactions that the second snapshot sees as ended and the first did not; NULL if more than max_rows rows would have to be read. The cost depends on how many jobs are new, not on how many lanes exist.';
COMMENT ON ROUTINE weir._fresh_queues(pg_snapshot,bigint,integer,double precision,integer) IS 'The queues for which jobs were committed since seen, and how many (from 100 on possibly fewer than there are). seen_now and jobs_now are to be passed to the next call; without seen, the call only returns where to start. It polls up to polls times, every pause seconds; while no job is logged and nothing is committed, it reads only counters. From poll patience + 1 on, it also returns after a commit without jobs. Errors: 22023. Locks: none. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._full_errors(jsonb) IS 'The list of errors that weir._brief_errors has made brief, with a text in each entry. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._gate_now(text,integer,boolean) IS 'The state of a queue''s gate: its newest row (seq, next_start), what runs now (running), what of it was handed out through the gate (counted) according to the snapshot folded, how many more attempts may start (room), and if only the rate keeps them from it, when that changes (next_at), as the clock is at. before: attempts from before the gate was opened still run. With to_write, the caller is a claim that holds the gate''s lock, and a gate that has no row yet is opened. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._has_key_news(bigint[],pg_snapshot,pg_snapshot) IS 'Whether _key_news would find rows, or may find some soon. The cost depends on how many transactions are in progress, and not on what other queues hold, or on how long ago the first snapshot was taken. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._has_shape(text,text) IS 'Whether weir.failure_groups puts a job with this error into the group of this shape. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._has_turns(text,pg_snapshot) IS 'Whether a claim from the keys of a queue may have something to do. The cost depends on what is new, not on how many keys there are. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._has_waiting(bigint[],bigint) IS 'Whether keys of the queues with these ids, of which the ring''s tag is given, wait for their next turn. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._heads(text,bigint,integer) IS 'Where the keys of a queue stand that wait for their turns from this tag on, in their order, at most most. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._held(integer,text) IS 'The second keys of the advisory locks of a class that are held in this database in a mode: by sessions, open transactions and prepared transactions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._hold_attempt(text,integer,bigint,bigint,bigint) IS 'Lets an attempt not end, nor be followed by another one, before the caller''s transaction has ended, unless in this transaction; returns its batch''s segment and gate, the lane of its job if it has a key, and its flow. The transaction may stay open: if the worker is fenced in the meantime, the attempt is followed after the transaction''s end. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended), WR004. Locks, to the end of the transaction: advisory: the worker''s open completions, the segment, and the one that is active now (shared), the attempt (exclusive). Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._hold_briefly() IS 'For functions that take locks that others wait for, and are called in autocommit: if the transaction is left open, the server ends the session, and thereby releases the locks, once it has been idle for 10 seconds.';
COMMENT ON ROUTINE weir._hold_ends(integer) IS 'Prevents other transactions from ending attempts of the worker, to the end of this one, except those returned: hashes of the ids of jobs that are being completed in open transactions. Locks: advisory: the worker''s ends (exclusive), its open completions (exclusive, tried).';
COMMENT ON ROUTINE weir._hold_flows() IS 'Keeps the tables of flows from being compacted, to the end of the transaction or block. Errors: 40001, if the transaction''s snapshot is older than the last compaction (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on these tables.';
COMMENT ON ROUTINE weir._hold_report_segment() IS 'The segment into which reports are written. It is not emptied before the transaction has ended. Locks: ROW EXCLUSIVE on the segment, for which only _rotate_reports waits. Isolation: any.';
COMMENT ON ROUTINE weir._hold_segments(integer,bigint[],bigint[]) IS 'Prevents a worker''s batches from being carried into other segments, to the end of the transaction. A result is written to the segment of its batch: that segment''s lock, shared, keeps it from being reclaimed. The batches are looked up again under the lock, because they may have been carried before it was held.';
COMMENT ON ROUTINE weir._holders() IS 'The workers that may hold jobs: all except those that have ended and hold nothing.';
COMMENT ON ROUTINE weir._holds(integer) IS 'The attempts that a worker holds: its batches with jobs that have no result, and these jobs. It reads what the worker has claimed since it was last settled.';
COMMENT ON ROUTINE weir._in_hand(integer[],bigint,integer) IS 'What some workers hold: their batches up to a number that have jobs without a result, and these jobs. It reads, of each worker, the batches that were open when it was last settled, and about most of the newest claimed since, each with all its parts: is_last marks the oldest one read, if there may be older ones.';
COMMENT ON ROUTINE weir._in_progress() IS 'The transactions in progress, in order, and the first xid from which on no transaction has ended: readers skip their rows. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._interval_of(text,text) IS 'The interval that is the value of a setting. Errors: 22023.';
COMMENT ON ROUTINE weir._is_cancelled_now(bigint) IS 'Whether a flow is cancelled, and was not retried since. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._is_cancelled_where(bigint) IS 'Reports whether a job that is not finished is cancelled by a filter. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._is_crowded() IS 'Reports whether the server, this database or a role has hardly any connection left, so that a worker that lost its connection may not get a new one.';
COMMENT ON ROUTINE weir._is_held(regclass[]) IS 'Reports whether a transaction of another session holds a lock on one of the tables, in any mode, and keeps it for a tenth of a second. Requesting ACCESS EXCLUSIVE would then block later sessions, and fail.';
COMMENT ON ROUTINE weir._is_kept(bigint,interval) IS 'Whether a flow is still kept: the outermost one has not ended, or not longer ago than kept. Errors: none. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._is_put_back(bigint,bigint,bigint[],pg_snapshot) IS 'Whether a job whose attempt has ended waits for its next one in this key: in front, or until it is due, and is not cancelled. Then it keeps its place in order. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._is_relayed_later(bigint) IS 'Whether a relay that was heard of within relay_retention has not passed on a tick in whole. Errors: none. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._is_token(text) IS 'Reports whether a text has the form of a token. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._is_within(bigint,bigint) IS 'Whether a flow is another one, or a member of it, at any depth. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._jobs_after(text,text) IS 'A page of the jobs in one state, as rows, for the views: the first has 50 jobs. If there are more, the last row has no job, and says where the next page begins. Errors and locks: as for weir.jobs_page.';
COMMENT ON ROUTINE weir._jobs_on(smallint,bigint) IS 'The jobs on one page of a segment.';
COMMENT ON ROUTINE weir._join_flow(bigint,bigint,jsonb) IS 'Logs that n jobs are added to a flow; or what is added to its counters. Errors: 22023 (the flow is unknown), 55000 (it has ended, or is cancelled), WR003. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';
COMMENT ON ROUTINE weir._jsonb_of(text) IS 'Parses a JSON text, with U+FFFD for escaped characters that PostgreSQL can''t store, which occur in error messages. Of an array, an element with a number that is out of jsonb''s range becomes an object with its token and what is wrong (invalid), which is no field of an end or an entry. Errors: 22P02. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._judge(bigint[],xid8[],uuid[],bigint[],timestamp with time zone[],timestamp with time zone[]) IS 'What a claim does with the unique jobs that it has picked, in their order: run: returns them; dropped: ends them as cancelled, for a reason; again: logs them again with a new number, because the last run of their key has a greater one. The caller holds the lock of the queue''s unique jobs, so no other claim changes the answer. Locks: ACCESS SHARE on the log. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._judge_once(bigint[],uuid[],bigint[]) IS 'What a claim does with jobs that are to be done once in their flow, those without a number (nos): the first that is claimed, and not cancelled, runs, and whatever becomes of it, all others are dropped. weir.seen knows it from then on (see _set_aside). Otherwise as _judge.';
COMMENT ON ROUTINE weir._judged(integer[],bigint[],bigint[],smallint[],bigint[],text[]) IS 'What the retry rules make of attempts that failed: of each that a rule matches, its place, and the outcome and the next time that take the place of those recorded. It takes about 3 seconds at most, and never fails because of a rule: rules that can''t be applied are left out, with a warning. Locks: none that others wait for. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._keep_failures(integer,bigint[],bigint[],smallint[],bigint[],text[],text[]) IS 'Copies jobs that fail for good with these attempts into the log of failures. The caller records how the attempts ended in the same transaction.';
COMMENT ON ROUTINE weir._keep_outputs(bigint[],bigint[],bigint[],text[]) IS 'Stores the outputs of jobs that have completed, and are members of flows, for as long as these are kept. Locks: ROW EXCLUSIVE on weir.output; none that others wait for.';
COMMENT ON ROUTINE weir._kept_failure(bigint,integer) IS 'How a job failed for good, in attempt after or a later one, unless it has been retried since.';
COMMENT ON ROUTINE weir._kept_turns(integer,bigint[]) IS 'The lanes of keys whose newest turn is in this segment and must be kept when it is emptied: those in lanes, where jobs here wait or run, and those that have jobs or earlier turns elsewhere, or a limit that still counts what they did. For the others, no turn means the same: all jobs that they will have lie past position 0. That a turn need not be kept stays true.';
COMMENT ON ROUTINE weir._key_bits(text) IS 'What the lanes of a key have in common: 36 bits of a hash, never 0, in their places. Two keys with the same share a lane. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._key_lanes(integer,bigint,integer,integer) IS 'Lanes of keys that have rows in the log, or in one segment of it, in order: those of a queue (NULL: of all), after a lane, at most so many. It jumps from lane to lane, whatever is in them. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';
COMMENT ON ROUTINE weir._key_news(bigint[],pg_snapshot,pg_snapshot,integer) IS 'The rows that lead in lanes of keys of the queues with these ids, and that the second snapshot sees and the first does not: the first max_rows, by their transactions. It reads no rows of other queues, and none without a key. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._key_of(text) IS 'The id of the key of an encrypted text; NULL: it is not encrypted. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._keys_now(oid,text[]) IS 'The names of the columns of a table''s primary key, or keys, those that it had, if it has none any more. The functions that weir.watch_table has made call it. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._kind_of(weir.fold) IS 'How a flow has ended, as a member of another: completed, failed or cancelled; NULL: it has not. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._known_once(text[],bigint[],text[]) IS 'The keys of jobs that are to be done once in their flows, and the ids of those that are there already, as far as this snapshot shows: known, NULL: none; a negative one is the place, in these arrays, of the first of several. Errors: 22023. Locks: none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir._lane_of(text,integer,text) IS 'The lane for a job; creates its queue if the name is new. Errors: 22023. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._lanes_in(bigint,bigint,smallint,bigint[]) IS 'The lanes of jobs with keys, which are in one row of a batch, in the order of the ids. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._lanes_of(bigint[]) IS 'The lanes of the newest rows of some jobs, in order.';
COMMENT ON ROUTINE weir._lanes_of_key(text,text) IS 'The lanes that jobs of a key have in a queue, or for NULL in all queues that have had jobs with keys, in order: of each priority, and those in front. Another key with the same hash has the same. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._lanes_to_count(weir.survey) IS 'The lanes in which jobs without a key may wait, of which a survey tells: the others have none. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._last_of_task(bigint,text) IS 'What was counted last of a task of a flow, by name; NULL: nothing yet. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._last_reclaimed() IS 'The number of the last event by which a segment of jobs was reclaimed; 0: none was.';
COMMENT ON ROUTINE weir._last_says(integer) IS 'What a worker''s last word says; NULL: none is left.';
COMMENT ON ROUTINE weir._late_of(text) IS 'The transactions, in order, that were in progress for the last claim from the keys of a queue, and have ended since: of them, rows wait below the positions of keys. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._later_on(smallint,bigint) IS 'The scheduled jobs on one page of a segment.';
COMMENT ON ROUTINE weir._limit_turns(weir.queue_limit,weir.turn[],integer[],bigint[],bigint[],integer[],pg_snapshot,bigint,timestamp with time zone) IS 'What the limits of keys allow: for each of these lanes how many jobs may start, at most its rooms, and if only the rate keeps it from more, when to try again; with its open attempts reduced to those that count. A key has one limit, whatever lanes it has. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._lock_behind_few(integer,integer) IS 'Takes the lock of a gate or of turns, but waits for it behind three other claims at most; false: four are there already. In a large fleet, all would wait for longer than deadlock_timeout, and then spend their time, and the server''s, on looking for deadlocks. Locks: advisory: a place (exclusive, tried) and the lock itself (exclusive), to the end of the transaction.';
COMMENT ON ROUTINE weir._lock_firings() IS 'Locks the firings of schedules against TRUNCATE, so that the next snapshot shows them all. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on weir.firing; waits while it is being compacted.';
COMMENT ON ROUTINE weir._lock_lanes(bigint[]) IS 'Keeps claims from the lanes of jobs, to the end of the transaction; for a job with a key, from all keys of its queue. Locks: advisory: the lanes, and the rings of keys (exclusive).';
COMMENT ON ROUTINE weir._lock_log() IS 'Locks the log against TRUNCATE, so that the next snapshot shows every job where it is; the caller releases the locks. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on the log; waits while a segment is being emptied.';
COMMENT ON ROUTINE weir._lock_to_retry(bigint[]) IS 'Excludes other retries of some jobs, to the end of the transaction; and, of those that are cancelled by a filter or with their flow, claims from their lanes. Locks: advisory: the jobs and lanes (exclusive).';
COMMENT ON ROUTINE weir._log_member(bigint,bigint,jsonb,jsonb) IS 'Logs a job that a flow brings with it, whose id was drawn after the transaction got its own, with what its meta says about that. Locks: see weir.enqueue.';
COMMENT ON ROUTINE weir._log_time(text) IS 'The time of a line of a log, in the form of RFC 3339, also if it was given with a space in place of the T, as languages print it; NULL: it is no time with a time zone. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._login_secret() IS 'The secret from which hubs derive salts for users that do not exist, and the number of iterations that they show for them. They are the same at every hub, and like those of this server''s roles, so that nobody can find out which users exist. For the role weir_hub alone. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._logins() IS 'The roles that may log in at hubs: they have a SCRAM password and the right to connect to this database, and can''t become a superuser or replicate. Hubs check passwords against the stored verifiers, as poolers do, and never see a password. listens and notifies are the channels and patterns that the role may LISTEN on and NOTIFY: NULL for all, none if it may not call weir.read or weir.publish here (see the roles weir_subscribe and weir_publish, and weir.restrict). For the role weir_hub alone. Errors: 42501. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._look_at_copy(bigint) IS 'A failed job as its copy shows it, without args, meta, output and earlier errors, in a tenth of the time of weir._read_job. No row: it has not failed, or has been retried since. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._mark_due(text,integer,timestamp with time zone,timestamp with time zone) IS 'Inserts the row of weir.later by which promotion will find that a schedule is due: enqueued_at is the due time, and run_at that time with its jitter. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._mark_keys(text) IS 'Notes that a queue has jobs with keys, before the first is logged. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._mark_operations() IS 'Notes up to which operation all have ended, if that are fifty more than were noted. Returns its number, or NULL. The caller has locked the tables. Errors: none. Locks: advisory: the beginning of operations (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._means(weir.cancellation_where,bigint,text,jsonb,timestamp with time zone,text,integer,bigint) IS 'Whether a cancellation by filter means a job of its queue, apart from reprieves; a flow''s does not mean callbacks of flows within it. priority: NULL, if the caller has compared it. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._merged_errors(jsonb,jsonb,integer) IS 'The last errors of a job: those that were read in full, and of the other attempts those that its newest row carries in brief. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._minute_ring(timestamp with time zone) IS 'Which of the tables of weir.minute is that of a time: each has its turn for 36 hours, so that after two turns, when it is truncated, its rows are older than 72 hours. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._move(bigint[],bigint[],text,text,integer,bigint) IS 'Moves those of some jobs that still wait, or are still scheduled, and returns how many. Columns that it does not change are taken as they are. The caller holds the lanes'' locks, and those of claims and promotion.';
COMMENT ON ROUTINE weir._named_by(text[]) IS 'The lane, batch and job of each token, in the order of the tokens. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._never_used(text[]) IS 'Which of these queues have no jobs and no trace of any, such as those whose names are mistyped. A rebase removes the traces. Errors: 40001 (see weir._lock_log). Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir._newest_of_key(uuid,bigint,boolean,timestamp with time zone,timestamp with time zone) IS 'The newest row of a unique key, with a number less than below, that decides what becomes of others: one that waits, runs, or has run. Jobs that were cancelled or handed back are skipped; if fresh is true, so are those that wait and that a claim would drop; if it is not, those that have never been claimed, except those that replace others; and if after and before are not NULL, so are those that were not enqueued between them. no is its number, seen the snapshot of its claim. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';
COMMENT ON ROUTINE weir._next(text,bigint[],jsonb,integer) IS 'Up to most of the next jobs that are, or were, in a state, in some lanes (those of a queue and its ring, or those of a key of it) or, for NULL, in all, after a place: each with the place to continue after it, when it ended, and what was read to find it, in units of a row. A row without an id only shows how far the search has come; no row means that there are no more.';
COMMENT ON ROUTINE weir._next_available(bigint[],jsonb,integer) IS 'Jobs that wait to be claimed, in that order, after a place; no id for a cancelled one. Of more than 500 lanes in which jobs may wait, it takes 500 at a time, by priority and queue. Behind them come the jobs with keys. See weir._next.';
COMMENT ON ROUTINE weir._next_cancelled(bigint[],jsonb,integer) IS 'Cancelled jobs, after a place: those with a tombstone by id, newest first; then those that a filter has cancelled and that are still in the log, available ones before scheduled ones; then those that have ended, newest first. No id for a job of another queue, or that is not cancelled. See weir._next.';
COMMENT ON ROUTINE weir._next_claimed(bigint[],jsonb,integer) IS 'Jobs of a key up to the positions of its lanes, in the order of the log, newest first, after a place; no id for an earlier attempt. Nearly all of them have been claimed. See weir._next.';
COMMENT ON ROUTINE weir._next_completed(bigint[],jsonb,integer) IS 'Completed jobs, newest first, after a place: that in each lane or, for all queues, in each segment; those of a key in the order of the log. No id for a result with another outcome. See weir._next.';
COMMENT ON ROUTINE weir._next_failed(bigint[],jsonb,integer) IS 'Failed jobs, newest first, after a place; no id for a job of another queue. See weir._next.';
COMMENT ON ROUTINE weir._next_later(bigint[],jsonb,integer) IS 'Scheduled jobs in the order of run_at, after a place; no id for a cancelled one, or a due time of a schedule. See weir._next.';
COMMENT ON ROUTINE weir._next_of_keys(text,bigint,xid8,bigint,integer,bigint[]) IS 'Jobs with keys that wait to be claimed, in all queues, in one, or in some lanes, key by key, from a place in a lane on; no id for a cancelled one, or to show how far the search has come. See weir._next_available.';
COMMENT ON ROUTINE weir._next_running(bigint[],jsonb,integer) IS 'Running jobs, those of the newest batches first, after a place; a row without an id shows how far the search has come. See weir._next.';
COMMENT ON ROUTINE weir._next_start(double precision,integer,timestamp with time zone,timestamp with time zone) IS 'next_start as it counts at a time: not before that time; and further ahead than the burst only if the clock was set back since, or the rate was another one: then one may start at once. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._next_stopped(bigint[],bigint,bigint,integer) IS 'The next keys, at most most, of those that a limit has or had stopped and that are to be looked at again, as lanes without their forms; after and upto: see weir.ring. Locks: none. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._next_try(interval,interval,text,integer) IS 'When a job is tried again after a number of tries: backoff after the first; after each further one twice as long (exponential), longer by backoff (linear) or as long again (fixed), up to backoff_limit; and randomly up to a quarter earlier or later, so that jobs which failed together are not tried together. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._none_scheduled(weir.cancellation_where) IS 'Reports whether no job of a cancellation is scheduled. False, too, while that would take reading more than 10000 rows, in the order of run_at and in that of ids.';
COMMENT ON ROUTINE weir._none_started(weir.cancellation_where) IS 'Reports whether no job of a cancellation is left in the batches that were claimed by those that may not have seen it. If a worker has a thousand that it has not been settled past, it is settled past these that have ended, and the answer is false.';
COMMENT ON ROUTINE weir._note_word(integer,text,integer) IS 'Writes a worker''s last word. The caller holds its lock.';
COMMENT ON ROUTINE weir._offset_at(timestamp with time zone,text) IS 'How far the clocks of a time zone are ahead of UTC at an instant. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._once_key(bigint,text,text) IS 'The key of jobs that are to be done once in a flow and queue: a hash of 128 bits, which no unique job has. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._open_gate(text,integer) IS 'Writes a gate''s first row, which lists the batches of the queue that have unfinished attempts. It reads what all workers have claimed since they were last settled, once for each gate. The caller holds the gate''s lock. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._open_operations() IS 'The operations that have not ended, oldest first. The caller has locked weir.operation and weir.operation_step, so that its snapshot is not older than their last TRUNCATE. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._overdue(weir.promotion,integer) IS 'Rows up to a cursor''s point that its snapshot could not see, for those who show what is scheduled: their transactions were committed after their time, so the next promotion logs them. It reads up to most rows of transactions that have ended since, however many those are. Locks: ACCESS SHARE on weir.later, which the caller releases. Isolation: any.';
COMMENT ON ROUTINE weir._parse_schedule(text,text) IS 'Parses a schedule into the form that weir._due_after takes. A time without an offset, from which an interval is counted, is in time_zone. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._pass_ended(integer,text,bigint,bigint,weir.cancellation_where[],boolean) IS 'If a claim from the keys of a queue has ended some of the jobs in its batch seq itself, gives back what their limits have counted for them, and ends the jobs that follow them in their lanes, up to the first one that may run; if it has ended all of them, also those of the keys that come next. Up to 9600 in one call, in batches that are ended as they are claimed. True: there may be more, or the limits allow more. The caller is the claim, and holds the lock of the ring, and of the queue''s unique jobs, if it has any (keyed).';
COMMENT ON ROUTINE weir._pass_moved(bigint) IS 'Sets the position of a lane behind the rows that were moved from its head, by writing a batch without jobs and without a worker; all transactions in progress below it are pending. The caller holds the lane''s lock.';
COMMENT ON ROUTINE weir._pass_on(weir.fold[],weir.fold[],boolean[]) IS 'Logs what a cut means for other flows: for those that the flows in it are members of, and for tasks that come after them, except for ends that were taken back already (taken). Whether it has logged something. Locks: ROW EXCLUSIVE on weir.arrival; none that others wait for.';
COMMENT ON ROUTINE weir._pause_among(text[]) IS 'How long a worker that waits for jobs of these queues pauses between two polls, in seconds: 10 ms for each worker that shares one of the queues, so that a fleet polls as often as a single worker would; at most 100 ms, because all the others may be busy. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._pending_due(weir.schedule) IS 'The first due time of a schedule that has not been fired; NULL while it is paused. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._prepared_for(integer) IS 'Describes the prepared transaction that has called record, claim or heartbeat for a worker, which therefore can''t be fenced before that transaction ends; NULL: none. Such calls can''t be refused, because a function can''t know that its transaction will be prepared.';
COMMENT ON ROUTINE weir._promote(integer,timestamp with time zone,interval) IS 'Copies due attempts from weir.later into the log, in the order of run_at, up to max_rows in one call, and fires schedules that are due (see _fire). Returns how many jobs it has logged, and when the next one is due if that is within ahead (NULL: none is, or another session is promoting). If upto is in the future, attempts up to that time are due, as if the clock showed it and then stepped back: for tests of scheduled jobs. Errors: WR003, WR004 (not in READ COMMITTED autocommit), 22023. Locks: advisory step 2 (tried). Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._publish_changes(text,text,text,text[],text[],jsonb[],jsonb[]) IS 'Publishes how some rows have changed, a message for each channel; olds or news are NULL if rows were inserted or deleted. The functions that weir.watch_table has made call it, so it must keep its arguments. Errors: those of weir.publish_many. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._publish_drafts(text[],bytea[],boolean[],boolean) IS 'For hubs: publishes messages of several clients, each delivered even if it repeats another. Text must be in UTF-8. With cuts, the next tick is cut in the same transaction, unless another session is cutting; the tick is returned, with its epoch and the epoch of the previous tick, if it contains exactly these messages. Then call it in autocommit: no other session can cut before the commit, and a later message of the transaction would be in no tick, so publishing it is refused (WR004). Errors: 22023; WR004 (this transaction has cut, or, with cuts, has written); with cuts, WR003. Locks: with cuts, advisory step 4 (tried); none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._queue_id(text) IS 'The id of a queue, which is created if the name is new. Errors: 22023 (a new name begins or ends with a blank). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._read_flows(bigint[]) IS 'Some flows and their progress, as this snapshot shows them, in the order of ids: what is counted, and what has arrived since. Errors: WR003 (the log comes from another cluster); 40001, if the transaction''s snapshot is older than the last compaction (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call; waits while a table of flows is being compacted. Isolation: any.';
COMMENT ON ROUTINE weir._read_job(bigint,integer) IS 'One job by id, see weir.job_info. Reads its newest row and the ends of up to ends attempts, however many rows the log holds of the job. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_page(text[],text,text[],jsonb,text,text,integer,bigint,text,timestamp with time zone,timestamp with time zone,text,timestamp with time zone,timestamp with time zone,boolean) IS 'A page of jobs as one snapshot shows them, see weir.jobs_page. from_copies: of failed jobs, what their copies say is enough. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_queues() IS 'The queues as one snapshot shows them, see weir.queues. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_schedules(text,text,integer) IS 'Schedules as one snapshot shows them, see weir.schedules. The caller has called weir._lock_firings.';
COMMENT ON ROUTINE weir._reclaim(integer) IS 'Empties a closed segment: copies its unclaimed and running jobs, with their xids, ids and batches, into the active one, and truncates it. Returns false if that is not done yet, because the segment is in use, or more than 10000 jobs or 8 MB of it are unfinished; in that case it may have carried some of the waiting jobs. Locks: advisory step 1 (tried); SHARE on the segment''s jobs (NOWAIT) during the scan; to carry, the lanes (exclusive, tried); to empty, claims (exclusive, waiting at most 250 ms), the segment (exclusive) and ACCESS EXCLUSIVE on its tables (at most 25 ms for each), but not while another transaction keeps a lock on them. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._reclaim_messages(integer,interval,boolean) IS 'Truncates a closed segment of messages and ticks, once all its messages are in ticks and the last of these was cut retention ago; with for_relays, only if all relays have passed it on. Returns false, and does nothing, if the segment is in use or too young. Locks: SHARE on the segment''s messages (NOWAIT), advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';
COMMENT ON ROUTINE weir._reconcile(integer,bigint[],bigint[],integer[],bigint[],bigint,text) IS 'Compares the attempts that a worker holds according to the database with those that it says it holds: lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs that the worker has not recorded. Other attempts are released for this reason, without being used up, unless an open transaction completes them. Call it while the worker has no claim under way: after a claim or a connection failed, and now and then. It works in bounded steps: if next is not NULL, call again and pass it as after. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and claims (shared), the worker''s claims (exclusive, waiting at most 5 s), and its ends if there is something to release. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._record(integer,bigint[],bigint[],integer[],bigint[],text[],text[],text[],timestamp with time zone[]) IS 'Records how attempts ended, many at once, and accepts or refuses each on its own. lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs. outcomes (NULL: completed), errors, outputs and run_at (when the next attempt is due, after retried, snoozed or released; NULL: immediately; -infinity: after the queue''s backoff) are parallel to ids. After retried with run_at -infinity, a retry rule may decide on something else: see weir.set_retry_rule. Returns a row for each end that was recorded as such, with the outcome, and for each end that was not recorded, with its place in ids: ended (the attempt has already ended, as outcome says, so it is safe to repeat a call), lost (it does not belong to this worker, because the claim was lost in a crash or the job was claimed again: drop it), busy (an open transaction of its handler completes it, or sets its checkpoint: record it again later) or invalid; detail says what is wrong and what to do. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and the segments (shared), the worker''s ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._refuse_cycle(text[],boolean[],integer[],integer[]) IS 'Refuses tasks of which some wait for each other in a circle: those with names, of which new ones are looked at; the task nrs[i] comes after befores[i] (both places in names, or NULL: one that was there before). Errors: 22023, with a circle. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._refuse_old_snapshot(text,text) IS 'Raises the message if the transaction''s snapshot is older than the last TRUNCATE of one of the tables whose names match a regular expression. The caller has locked them. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._relay_position(text) IS 'How far a relay has come, and what its target got last, as _relay_reached has recorded; NULL: nothing is recorded. Errors: WR004 (not in READ COMMITTED). Locks: none that others wait for. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._relay_reached(text,text,bigint,text,text) IS 'Records how far a relay has come, in the caller''s transaction. sent: the position of the message that the target got last. tick: the first tick of this database that it has not passed on in whole; messages from there on are kept for it, for relay_retention. after: where the relay must have been until then ('''': nowhere); then of two processes that pass on the same, only one commits. Errors: 22023; WR008 (it is elsewhere: another process has passed it on); WR004 (not in READ COMMITTED). Locks: with after, advisory: the relay (exclusive, to the end of the transaction). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._release_tasks(weir.fold[],weir.fold[]) IS 'Enqueues the jobs of tasks that have got one in this cut. Locks: see weir.enqueue.';
COMMENT ON ROUTINE weir._relog(integer,weir.outcome,text,bigint[],bigint[],integer[],bigint[],bigint) IS 'Ends unfinished attempts of a worker, except the named ones, and logs those that follow: some thousands in one call, from at most 5,000 batches. It skips attempts that are being completed in open transactions, which stay exceptions. jobs: their ids. next: pass it as after in another call to continue; NULL: finished. The caller holds the worker''s claims, and keeps segments from being reclaimed.';
COMMENT ON ROUTINE weir._reported(bigint,boolean) IS 'What a job has reported last and, if asked for, the last 1000 lines of its attempts'' logs, oldest first. All NULL if it has reported nothing.';
COMMENT ON ROUTINE weir._rescue() IS 'Fences workers whose session has ended, or that were silent past their lease, and logs the unfinished attempts of fenced workers again, in bounded steps. Returns for each worker why it ended, how many attempts were logged (NULL for one that was just fenced or is missing), and the ids of their jobs; if more is true, call again; error is why a worker could not be settled, which does not delay the others. Call it about twice a second. Errors: WR004. Locks: advisory step 6, claims (shared) and the workers'' claims (tried); see _fence_silent, _fence and _settle. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._reserve(integer,integer,interval) IS 'How many of the next n jobs that are claimed from a queue are chosen by age, by priority (1 to 4): a claim leaves them to their lanes. NULL: none, because no job has waited for ageing. Then it has locked nothing; otherwise the answer holds until the claim ends, because no other claims from these lanes. Locks: advisory: the queue''s lanes in their order (exclusive), unless it returns NULL. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._results_in(integer,bigint,bigint,integer) IS 'Completed jobs of a segment, from the end of its results backwards, before a place (page * 65536 + line); a row with is_end false stands for a result with another outcome.';
COMMENT ON ROUTINE weir._results_of(bigint,bigint,bigint,integer) IS 'Completed jobs of a lane, newest batches first, before a place; a row with is_end false stands for a result with another outcome.';
COMMENT ON ROUTINE weir._resurvey() IS 'If there are more than a hundred queues, writes a survey for inspections: in which lanes jobs wait, and how many were claimed of each. It checks the lanes that are new or were waiting in the last survey, and 500 further queues, once enough has changed. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), claims (shared, tried); ACCESS EXCLUSIVE NOWAIT on weir.survey when it has grown and is truncated. Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._retire_cancellations() IS 'Takes the next step to retire cancellations by filter, of one of them, chosen at random; merges those with the same filter, and those that one of the newest covers; and empties weir.reprieve when none is left. Returns what it did, or NULL. The caller is weir._tidy. Errors: WR003, 55P03 (a lock is held: try again later). Locks: claims (exclusive, for a moment, waiting as long as lock_timeout); ACCESS SHARE on the log; to merge, SHARE NOWAIT on weir.reprieve, for which retries of jobs wait that cancellations concern.';
COMMENT ON ROUTINE weir._retry(bigint,text[]) IS 'Retries a job if it is in one of these final states, and returns its state then, and whether it was. The caller has called weir._lock_to_retry.';
COMMENT ON ROUTINE weir._retry_failed(bigint[]) IS 'Retries the failed ones among some jobs together, from their copies, as weir._retry does one by one in ten times as long, and returns which. It leaves out those that are unique or in a flow, and all if some may be cancelled by a filter. The caller has called weir._lock_to_retry.';
COMMENT ON ROUTINE weir._revoke(text,interval) IS 'Logs that a user is disconnected and, unless lasts is NULL, that the tokens issued to the user until now are refused. Errors: 22023; 54000 (100000 users); WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._ring_lanes(bigint) IS 'In which lanes the batches and results of a job are: its own or, if it has a key, the ring lanes of its queue and of that queue''s twins. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._ring_of(text) IS 'The state of a queue''s ring, which nobody may have written yet. Its due is in the past, also if the clock was set back; then all keys that a limit has stopped are looked at again. The queue has had jobs with keys. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._rotate() IS 'Takes the next step in the life of segments, if one is due: opens a free segment when the active one has a quarter of retention_bytes, or is half of completed_retention old; reclaims the oldest closed one, or carries some of its jobs, when completed_retention has passed, or when no free one is left. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 1 (tried); see _reclaim. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._rotate_failures() IS 'Performs the next step of rotating the segments of failures. Opens a free segment when the active one exceeds a sixteenth of retention_bytes, or is older than half of failed_retention or completed_retention, whichever is longer. Empties the oldest segment when that retention has passed since it was closed, or when no free segment is left. Returns what it did, or NULL. The caller holds advisory step 1. Locks: ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_history() IS 'Takes the next step in the life of the segments of failures, and of those of reports. It is a chore of its own: under load weir._rotate may have something to do each time, and holds locks that others wait for when it has done it. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 1 (tried); see _rotate_failures and _rotate_reports. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._rotate_later(bigint) IS 'Opens the next segment of weir.later when the active one has reached segment_bytes. Reclaims a closed one when all its rows are promoted; or, if space is needed, when at least half of them are and about 100,000 at most are left, which are copied unchanged into the active segment. Returns what it did, or NULL. Locks: advisory step 2 (tried); ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_messages() IS 'Takes the next step in the life of message segments, if one is due: opens a free segment when the active one is half of message_retention old or has a quarter of message_retention_bytes; reclaims the oldest closed one when its newest message was delivered message_retention ago and relays have passed it on, or after relay_retention, or when no free one is left; empties the heartbeats of hubs ahead of their turn. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see _reclaim_messages.';
COMMENT ON ROUTINE weir._rotate_reports() IS 'Performs the next step of rotating the segments of reports. Opens a free segment when the active one exceeds a sixteenth of retention_bytes, or is older than half of failed_retention or completed_retention, whichever is longer. Empties the oldest segment when that retention has passed since it was closed, or when no free segment is left: in steps, it copies what unfinished and failed jobs have reported last into the active segment, and then truncates. Returns what it did, or NULL. The caller holds advisory step 1. Locks: SHARE on the segment, once, waiting at most 50 ms; ACCESS EXCLUSIVE on it, NOWAIT; ACCESS SHARE on the log.';
COMMENT ON ROUTINE weir._same_schedule(weir.schedule,weir.schedule) IS 'Reports whether two declarations of a schedule say the same. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._seal(jsonb,jsonb) IS 'Ties a cursor to its list and to this database, with a secret that no client knows: what is inside a cursor with a valid seal was written by this code.';
COMMENT ON ROUTINE weir._segment_bytes(integer) IS 'The size of a segment on disk, with indexes and TOAST.';
COMMENT ON ROUTINE weir._segment_state(text,integer) IS 'The state of a segment: opened, closed or reclaimed. A segment that was never used counts as reclaimed.';
COMMENT ON ROUTINE weir._select_where(text[],text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text,text,integer,bigint,text,timestamp with time zone,timestamp with time zone) IS 'The jobs among the next max_rows of a list that match a filter; next: where the list continues, or NULL. Errors: 22023, 40001. Locks: none that outlast the call; waits while a segment is being emptied.';
COMMENT ON ROUTINE weir._set_aside(integer,bigint,bigint,bigint[],smallint[],text[],text[],uuid[],bigint[]) IS 'Ends unique jobs that a claim has picked and does not hand out: dropped ones as cancelled, with the reason; the others as released, and logs them again. Of those that it does hand out, and that are to be done once in their flow (onces: their keys), it notes that they are seen. All of it is part of the claim''s transaction, so that nothing exists without the rest. Errors: 23505 (a job that was moved and one of its old queue are claimed at the same moment: try again). Locks: none that others wait for, but then the other claim.';
COMMENT ON ROUTINE weir._set_twins_aside() IS 'Sets aside the twins of queues that have no jobs, so that claims skip them, and takes back those that have: a transaction may have looked up the queue before its older twin was visible, and enqueue a job long after. Returns how many changed.';
COMMENT ON ROUTINE weir._settle(integer) IS 'Logs unfinished attempts of a fenced worker again (or fails the job, if no attempts are left): some thousands in one call. jobs: their ids; more: call again. Attempts that an open transaction completes are left for a later call. Errors: 22023 (not fenced), WR004. Locks: advisory: claims (shared), the worker''s claims and ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._settle_sums(weir.fold[],weir.fold[],timestamp with time zone) IS 'What follows from the sums of some flows for themselves: which tasks start, and get a job, or never will; and which flows have ended. was is what was counted before. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._shape_of(text) IS 'The shape of an error: the line that contains its message, up to 300 characters, with <uuid>, <time>, <email>, <path>, <text>, <hex> and <n> for what differs from one job to the next; of an encrypted text, <encrypted>. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._silent() IS 'The workers that are silent past their lease and not fenced, see weir.workers. It reads the last words of those that have no session of their own.';
COMMENT ON ROUTINE weir._skip_ended(integer,bigint,weir.cancellation_where[],boolean) IS 'Ends the jobs at the head of a lane that are cancelled by one of these filters or, with to_judge, are duplicates of others (see _judge), up to the first one that is not: up to 9600 in one call, in batches that are ended as they are claimed. True: there may be more. The caller is a claim, and holds the lane''s lock, and to judge that of the queue''s unique jobs.';
COMMENT ON ROUTINE weir._snapshot_of_others(pg_snapshot) IS 'The present snapshot, or one of before, as another session would take it: with this transaction among those in progress. PostgreSQL leaves a transaction out of its own snapshots, so those show it as ended once a later one has; but it may still end attempts, as weir.take does with jobs of unknown kinds. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._snapshot_upto(pg_snapshot,pg_snapshot,xid8) IS 'What a snapshot sees in addition to an earlier one, only up to a transaction: as if the later ones of them had not ended yet. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._spans(xid8,pg_snapshot) IS 'The ranges (low included, high not) of transactions from from_xid on that have ended in the snapshot. A scan of only these ranges skips the rows of transactions in progress.';
COMMENT ON ROUTINE weir._start(text,text[],interval) IS 'Registers a worker, creates its queues and returns its id. From then on it must call heartbeat well within its lease, or other workers get its jobs. Errors: 22023; WR003 (the log comes from another cluster). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._started(double precision,integer,timestamp with time zone,timestamp with time zone,integer) IS 'next_start after n more starts. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._starts_at(double precision,integer,timestamp with time zone,timestamp with time zone) IS 'When a rate that allows no start now is worth another look: when it allows one; or, if that is soon, as many as it allows in 10 ms. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._starts_now(double precision,integer,timestamp with time zone,timestamp with time zone) IS 'How many starts a rate with a burst allows at a time: as many as keep next_start, which each start moves by the interval between two, within burst intervals of that time. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._state_of(bigint,xid8[]) IS 'Where a lane stands: a job of it waits if it lies past the position, or if its transaction is pending, in their order, and its id comes after the one in pending_after. All NULL: nothing was claimed from it, or nothing that it has claimed is left. late: see _late_of; NULL: it is looked up. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';
COMMENT ON ROUTINE weir._step_operations(integer) IS 'Does one step, of up to max_rows jobs, of the oldest operation that has not ended and of which no other session does a step: which one, how many jobs it has changed, and the operation''s state after it; NULL: there was none. is_open: some operation has not ended. An operation whose step fails, other than because of a lock, a lack of resources or the like, has failed. Errors: 40001, 55P03, WR003, WR004. Locks: advisory: the operation (exclusive, tried), the beginning of operations (exclusive, tried, for a moment when some have ended); see weir.retry_where, delete_where and move_where. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir._stop_claims(text) IS 'Waits until no claim is in progress, and lets none begin before the transaction ends. Errors: WR004, 55P03. Locks: advisory: claims (exclusive, waiting at most 50 ms at first, and at most 1 s at a time).';
COMMENT ON ROUTINE weir._surveyed(integer) IS 'The newest survey, with the lanes that have received jobs since in waiting. If there is none, it is not valid any more, or more than max_rows rows would have to be read, an empty survey that has reached no queue.';
COMMENT ON ROUTINE weir._take_along(weir.fold[],weir.fold[],bigint) IS 'Adds to the sums of a cut, and to what was counted before, what is within flows that were cancelled, or are no longer, at any depth: it is cancelled, too, unless it has ended; or no longer. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._take_back(weir.fold[],weir.fold[],boolean[],weir.fold[],bigint) IS 'Takes back, in the sums of a cut, the ends of those that start over in it: from the flows that they are members of, and from the tasks that come after them; taken says of which it has done so. more: there were some, so others may start over because of that: settle the sums, and call it again. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._take_turns(text,weir.ring,bigint,integer,bigint,pg_snapshot) IS 'The next jobs from the keys of a queue: up to quota, each key as many as its weight and its limits allow, in the order of their turns. It announces what is new, and writes where the keys and the ring stand. before: see _gate_now. snapshot: of the claim, taken after the ring''s lock. The caller is a claim, which holds the ring''s lock and logs the batch seq in the ring lane. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._task_of(bigint,text) IS 'The id of a task of a flow, by name; NULL: there is none. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._tidy() IS 'Does one small chore at a time: sets twins aside; truncates the next table of last words ahead of its turn; compacts the cursor of promotion, the firings of schedules, the history of segments and the progress of settling by TRUNCATE; deletes ended workers, and cancellations of ended jobs, once there are thousands, checking up to 1000 for at most 0.1 s; takes the next step to retire a cancellation by filter (see _retire_cancellations); does a chore for the tables of limits (see _compact_gates); compacts the rings of keys (see _compact_rings); does a chore for the tables of flows (see _compact_flows); compacts operations (see _compact_operations) and the positions of relays (see _compact_relays); takes the next step for requests with keys (see _turn_requests); and trims idle lanes (see _forget_ended). Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates; see _compact_gates, _compact_flows and _forget_ended. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._time_zone(text) IS 'The name of a time zone as PostgreSQL writes it. Errors: 22023 (unknown). Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._times_reclaimed(integer) IS 'The number of the event by which a segment of jobs was last reclaimed: a different one each time.';
COMMENT ON ROUTINE weir._try_lane(bigint) IS 'As _lock_lanes, for one lane and without waiting: false if another transaction holds it. Locks: advisory: the lane or the ring (exclusive, tried).';
COMMENT ON ROUTINE weir._turn_lanes(text[],bigint[]) IS 'The ring lanes of those queues that have had jobs with keys; with a hint, only those that it has lanes of, and those whose keys have limits. A function, so that claims where no queue has any don''t prepare to look for them. Errors: none. Locks: none.';
COMMENT ON ROUTINE weir._turn_requests() IS 'When the active table of weir.request is a day old, or has an eighth of retention_bytes: empties the other one, and in the next call opens it. Returns what it did, or NULL. Locks: ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._turn_ring(text,text,integer) IS 'Opens the next table of weir.seen or weir.output (name) when the active one has 16 MB, or empties one whose flows are forgotten, but for most rows and a quarter of that at most, which it copies (columns). Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._unattended() IS 'Workers that are not fenced and whose attendance lock is free, each with its last word, if one is left.';
COMMENT ON ROUTINE weir._unclaimed(integer,bigint[],integer) IS 'The jobs in one segment that no batch has claimed yet, in some lanes: those past the position, and those of a pending transaction (see _state_of).';
COMMENT ON ROUTINE weir._unclaimed_of_keys(integer,integer) IS 'As _unclaimed, for all lanes of keys: it reads the whole segment once, however many lanes there are.';
COMMENT ON ROUTINE weir._unfinished(integer,bigint[]) IS 'Those of a worker''s batches with these numbers that have jobs without a result, and these jobs; no jobs if only another part of the batch has some.';
COMMENT ON ROUTINE weir._unfinished_in(integer,bigint,bigint) IS 'As weir._unfinished, for all batches after a number and up to another.';
COMMENT ON ROUTINE weir._unique_key(text,text,jsonb,text,text[]) IS 'What jobs that are duplicates of each other have in common, as a hash of 128 bits. A field that args lacks counts as null, beside others that it has. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._unique_of(bigint) IS 'What makes a job unique, for another attempt at it; NULL if nothing does. Locks: none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir._waiting(bigint,xid8[],xid8,xid8,bigint,integer,xid8,bigint,xid8[]) IS 'Up to most jobs of a lane that wait to be claimed, including cancelled ones, in the order in which they will be claimed, after a place in that order and up to another one. running and top come from weir._in_progress: rows of transactions in progress are skipped, and not scanned. late: see _state_of. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._waiting_among(bigint[],xid8[],xid8,integer) IS 'How many jobs of each of some lanes wait to be claimed, up to most of a lane, in each segment, including cancelled ones; since when the first of them has waited, and the first place of them. It finds what _waiting finds, at a tenth of the cost for lanes without keys. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._waiting_by_queue() IS 'How many jobs of each queue wait, and since when the first of them has, as weir.queues counts them; queues in which none waits are left out. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._waiting_keys(text,integer) IS 'The lanes of keys of a queue in which jobs may wait; is_whole: these are all, and at most most. What it reads is bounded, however many keys there are. Locks: ACCESS SHARE on the log, which the caller releases. Isolation: any.';
COMMENT ON ROUTINE weir._waits(xid8,bigint,xid8,bigint,xid8[],bigint[],xid8[]) IS 'Whether a row of the log, whose transaction has ended, waits in its lane, which stands at this position (NULL: at its beginning) with these transactions pending. late: see _late_of, for a lane of a key whose newest turn gives the rest. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._waits_later(weir.promotion,timestamp with time zone,bigint,xid8) IS 'Whether a row of weir.later waits for its time, according to the newest cursor of promotion. Rows that were promoted stay there until their segment is emptied. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._was_ahead(weir.promotion,timestamp with time zone,bigint,xid8) IS 'Reports whether a row of weir.later was promoted before the clock stepped back, according to the earlier cursors that are kept beside the newest.';
COMMENT ON ROUTINE weir._watch(bigint,bigint,pg_snapshot,xid8,integer,double precision) IS 'For an idle worker: polls up to polls times, every pause seconds, until the counters differ from those passed, or a transaction below upto has ended that was in progress in seen. Pass what the previous call returned (at first 0, 0, NULL, NULL). jobs_now changes with every job that is logged, control_now with every cancellation and new queue, both before the commit; ended reports whether a transaction has ended. Errors: 22023. Locks: none that others wait for. Isolation: READ COMMITTED, in autocommit. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._with_error(jsonb,integer,timestamp with time zone,weir.outcome,text) IS 'What the row of the next attempt carries after an attempt has ended with an error. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._wrong_pattern(text) IS 'Why a text can''t be the regular expression of a retry rule; NULL: it can. What is left takes time in proportion to the text that it is matched with. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._wrong_with(jsonb) IS 'Why an end that was passed to record is invalid; NULL: it is valid. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._wrong_with_entry(jsonb) IS 'Why an entry that was passed to progress is invalid; NULL: it is valid. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.add_tasks(bigint,jsonb) IS 'Adds up to 10000 tasks to a flow, all or none, in the caller''s transaction, and returns their ids in order: each is a flow of its own within this one, for weir.flow_info, cancel_flow and retry_flow. tasks is a JSON array of objects: task (the name, 1 to 200 characters, unique in the flow), after (names of the tasks that it comes after, of this call or added before; up to 100000 in all tasks of a call), ignore_failed (true: it runs even if these fail or are cancelled), and the job, as in weir.flow: queue, kind, and optionally args, priority, max_attempts, meta and key. A task''s job is enqueued when all tasks that it comes after have ended; if one of them fails or is cancelled, the task is cancelled without having started, unless ignore_failed. Its meta has the key weir.task: the flow''s id and the task''s name. A task that is there already stays as it is. Errors: 22023 (a value, a name, or tasks that wait for each other in a circle), 22P02; 55000 (the flow has ended, or is cancelled). Locks: none that others wait for; waits while a table of flows is being compacted. Isolation: any.';
COMMENT ON ROUTINE weir.attend(integer,integer,inet,integer) IS 'Makes this session stand for the worker: while the session lasts, the worker is alive; soon after it has ended without a successor, the worker is fenced. This requires a direct connection, because an intermediary could cut it while both ends are alive. Therefore pass the process id that the client received when it connected, and the address and port of the client''s own end of the connection (both NULL for a Unix socket). If the server sees other values, there is a pooler, a proxy or an address translation, and the function returns false: then renew the lease by heartbeats. If it returns true, call heartbeat in the same session well within the lease: it writes nothing, and keeps the session from being ended as idle. Call it in autocommit, because a rollback does not release the lock; to stop attending, end the session. Errors: WR001 (the worker is unknown or fenced), 55P03 (a lock was not available within 5 s). Locks: advisory: the worker''s attendance (shared, for the session) and its last word (shared), waiting at most 5 s for each. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.begin_operation(text,jsonb,text,text,integer) IS 'Begins an operation: what is retry, delete, move or cancel, and filter a JSON object with the conditions of weir.retry_where, delete_where, move_where or cancel_where, by the names of their arguments, such as {"queue": "mail", "kinds": ["welcome"]}; at least one is required. A cancellation is done with the commit. The others are done after it, step by step, by the maintenance of workers or by weir.chores, which continue after any crash; they mean the jobs that there were when the operation began, and each job is changed once: one that fails again later is not retried again. by says who has begun it (NULL: the session''s user), and to_queue and to_priority where jobs are moved. Returns the number of the operation, or NULL if the filter names a queue that does not exist. Errors: 22023, and 22P02 or 22007 (a value of the filter has another type); 54000 (100 operations have not ended); of a cancellation also those of weir.cancel_where. Locks: advisory: the beginning of operations (shared), for which none waits; of a cancellation those of weir.cancel_where. Isolation: any.';
COMMENT ON ROUTINE weir.cancel(bigint) IS 'Cancels a job. A job that has not started will not start (returns cancelled); the worker of a running job is notified, and cancels the job''s context (returns requested). Otherwise it does nothing, and returns the job''s final state, or NULL for an unknown id. A job that starts while this commits is cancelled like a running one. Errors: 40001 (see weir.job_info). Locks: none that others wait for, except a second cancel of the same job, so cancel several jobs of one transaction in ascending order of their ids. Isolation: any.';
COMMENT ON ROUTINE weir.cancel_flow(bigint) IS 'Cancels a flow: all its unfinished members, however many, with one row, as weir.cancel_where does, and the flows and tasks within it, but not their callbacks; seals it, and lets nobody add jobs any more. What others add in transactions that don''t see that yet is cancelled when it is counted. When all members have ended, on_done is enqueued, and on_success is not. Returns cancelling; or the state of a flow that has ended, which stays as it is, or NULL for an unknown id. Errors: 54000 (2000 cancellations are unfinished). Locks: ROW EXCLUSIVE on weir.cancellation_where: see weir.cancel_where. Isolation: any.';
COMMENT ON ROUTINE weir.cancel_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text) IS 'Cancels all jobs that match a filter and are not finished: of a queue, of some kinds, whose meta contains meta, of a priority, enqueued at or after enqueued_after, or before enqueued_before, with this key; all conditions that are not NULL must hold. At least one is required. It writes one row, and one for each queue whose keys run in order, and counts nothing, so it takes the same time for one job as for a million. After the commit no such job starts, and all functions show those that wait as cancelled; the workers of running ones are notified, as by weir.cancel. It applies to jobs with ids up to the last one assigned when it is called, including those of transactions that have not committed yet, and to no job enqueued later. Returns a number that identifies the cancellation, or NULL if the queue does not exist. Errors: 22023 (no filter, or not a valid one: an empty value is refused, pass NULL for no condition), 54000 (1000 cancellations are unfinished, and this one covers none of them). Locks: ROW EXCLUSIVE on weir.cancellation_where: it waits for steps of weir.move_where, and these wait until its transaction ends, for up to 5 s. Isolation: any.';
COMMENT ON ROUTINE weir.checkpoint(bigint) IS 'The newest checkpoint that an attempt of the job has reported with weir.progress, for the next attempt to go on from; NULL: there is none. It survives retries, snoozes, releases, lost workers and the move of the log to another cluster, and is kept as long as the job. Errors: none. Locks: none that others wait for, and none that outlast the call. Isolation: READ COMMITTED, to see what was reported before the call.';
COMMENT ON ROUTINE weir.chores() IS 'Does the maintenance that Go workers do automatically; if none runs, call it about twice a second: CALL weir.chores(). It promotes jobs that are due, rescues the jobs of lost workers, counts what has arrived at flows and, for weir.history, what happens in each minute, does up to 5 steps of operations, reclaims space and tidies. Any number of processes may call it, and none waits for another. An error becomes a warning, and the next call tries again. Errors: 2D000 (not in autocommit: it commits in between). Locks: those of its steps, each until the step commits. Isolation: any; its own transactions are READ COMMITTED.';
COMMENT ON ROUTINE weir.clear_limit(text,boolean) IS 'Removes the limits of a queue: those of its keys (per_key), those of the queue as a whole (false), or both (NULL). Returns false if it had none. Errors: WR004 (not in READ COMMITTED, or inside a transaction that has written or is old), 55P03 (claims did not end for 5 s: try again). Locks: as weir.set_limit. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.complete(integer,text,text) IS 'Records an attempt as completed in the caller''s transaction, with an output of up to 1048576 characters (NULL: none): its effects and the completion commit together. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended: roll back), WR004, 22023. Locks, to the end of the transaction: see _complete. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.delete(bigint) IS 'Deletes a failed job, as weir.delete_where does, and returns deleted. A job in another state is left as it is, and its state returned; NULL for an unknown id. Errors: WR004 (not in READ COMMITTED). Locks: as for weir.retry. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.delete_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text,integer,text,text,timestamp with time zone,timestamp with time zone) IS 'One step of deleting all failed jobs that match a filter; for the arguments see weir.retry_where. A deleted job is unknown to all functions after the commit, and can''t be retried. It writes a short note for each; the job''s data leaves the disk with its segment, when its retention is over. Returns how many jobs it has deleted, and next, as weir.retry_where. Errors: 22023, 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.disconnect(text) IS 'After the commit, ends all connections of a user at all hubs, whatever the protocol: the user of a token or a callback, or a role. The user may connect again, if allowed. Errors: 22023; 54000 (100000 users); WR004 (as weir.publish). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.drop_retry_rule(text) IS 'Drops a retry rule; false: there is none of that name. Errors: none. Locks: ROW EXCLUSIVE on weir.retry_rule, for which only another change of a rule waits. Isolation: any.';
COMMENT ON ROUTINE weir.drop_schedule(text) IS 'Drops a schedule: after the commit, it enqueues no more jobs. Those that it has enqueued stay. Returns false if it does not exist. Errors: none. Locks: none that others wait for, except another change of the same schedule. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue(text,text,jsonb,integer,timestamp with time zone,integer,jsonb,text,bigint,text) IS 'Enqueues a job in the caller''s transaction and returns its id. The job runs after the commit, and never after a rollback; if run_at is given, not before that time. priority: 1 (first) to 4 (NULL: 2); max_attempts: 1 to 1000 (NULL: 25). key: whose job it is (1 to 200 characters), in a queue whose keys are served by turns; NULL: nobody''s. flow: the flow that it is added to (see weir.flow); NULL: none. once: what is to be done once in this flow, in this queue (1 to 1000 characters): the first such job runs, whatever becomes of it, and others are not added; NULL: each is. Returns the id of the earlier job if it is known. If the transactions of both do not see each other, the later one is taken out of the flow, as cancelled, when it would start. Errors: 22023 with the value; 55000 (the flow has ended). Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_many(jsonb) IS 'Enqueues up to 10000 jobs, all or none, and returns their ids in order. jobs is a JSON array of objects whose keys are the arguments of enqueue; and unique, if it is to be enqueued only if it is no duplicate: an object whose keys are the arguments of enqueue_unique that enqueue does not have (its unique_key is called key there), or true. The id of a duplicate is that of the earlier job. Errors: 22023 with the job''s number and the value. Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[],text[],bigint[],text[]) IS 'Enqueues up to 10000 jobs from parallel arrays, all or none, and returns their ids in order. NULL for an optional array, or in it, means the default. Errors: 22023 with the value; 55000 (a flow has ended). Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_unique(text,text,jsonb,text,text[],text,interval,boolean,boolean,integer,timestamp with time zone,integer,jsonb,text) IS 'Enqueues a job in the caller''s transaction unless it would be a duplicate of an earlier one, and returns its id and false; or else the id of the earlier one and true. Jobs are duplicates of each other if their queue and unique_key are equal; if that is NULL, their queue, kind and args; or, of args, only the values in fields, names of the JSON object, of which args has at least one ({}: none). until says up to when the earlier one counts: finished (the default): until it has completed, failed or been cancelled; started: while it waits, also for another attempt. Or within, an interval up to 1 year: if it was enqueued within that time, and not cancelled. With replace, this job is enqueued in any case, and replaces the ones that wait, as they are when it is claimed: they end as cancelled; duplicate then reports whether there was one. Jobs enqueued in transactions that do not see each other are found to be duplicates when they are claimed, and end as cancelled, with the reason as their error. Nothing waits for another transaction, unless wait is true: then the call waits for transactions that have called it with wait and the same unique_key, and sees what they have committed. The other arguments are those of enqueue. Errors: 22023 with the value; WR004 (wait, and not in READ COMMITTED). Locks: none that others wait for, except with wait: advisory: the unique key (exclusive, to the end of the transaction). Isolation: any; REPEATABLE READ and SERIALIZABLE judge by the transaction''s snapshot.';
COMMENT ON ROUTINE weir.enqueued(integer) IS 'The jobs that this transaction has enqueued, in that order, up to a limit of 1 to 10000. For tests, which check them and then roll back. The jobs of other transactions are not among them. Those that functions and triggers of other owners have enqueued in this transaction are; therefore the caller needs weir_work or weir_operate, which may read every job. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.failure_groups(text,text,timestamp with time zone,timestamp with time zone,integer,text) IS 'Jobs that have failed for good and have not been retried, grouped by kind and by the shape of the error (its text without numbers, ids, quoted texts and the like), the largest groups first, up to max_rows (100). Only of that queue, kind and key, and only those that failed at since or later, and before that time (NULL: any). Each group has the number of jobs, when the first and the last of them failed, and one of the last, with up to 1000 characters of its error. A call looks at the newest 10,000 failures, or of a key in a queue at the newest 10,000 of that key. If there are more, rest is the time up to which they were not looked at: pass it as before to continue, and add up the groups; a row with 0 jobs says that none of those looked at is of that queue, kind and key. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.flow(text,jsonb,jsonb,timestamp with time zone,bigint,boolean) IS 'Creates a flow in the caller''s transaction and returns its id: a set of jobs, to which weir.enqueue and weir.enqueue_many add with flow, and running members, too. It is open until weir.seal, and no callback comes before that; if nobody has sealed it by the deadline (NULL: in one day), it is sealed as abandoned. When it is sealed and all its members have ended, on_done is enqueued; and on_success, if all of them have completed. Each is a job as in weir.enqueue_many(jsonb), without run_at, unique and flow; its meta has the key weir.flow: the flow''s id, name, generation (1; more if members were retried, or added, after it had ended) and how many jobs it has had, and of these completed, failed and cancelled, and its counters. name is for people, and need not be unique. parent: the flow that it is a member of, as a job would be: the parent does not end before it has ended, nor before its callbacks have, which are members of the parent, too; it counts there as one member, completed, failed or cancelled. fail_fast: it is cancelled as soon as a member has failed for good. Errors: 22023, 22P02 (a value of another type); 55000 (the parent has ended); WR003 (the log comes from another cluster, and was not rebased). Locks: ROW EXCLUSIVE on weir.flow; none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.flow_info(bigint) IS 'A flow and its progress: its state, which is open (not sealed), blocked (a task whose job is not enqueued yet: one that it comes after has not ended, or no chores have come to it), running or cancelling (sealed, and members or callbacks are left), succeeded (all its members completed), failed (some failed, or were cancelled), cancelled (by weir.cancel_flow; or a task that does not start, also because another transaction has added one of the same name) or abandoned (it was sealed by its deadline); how many jobs it has had, and of these are unfinished, completed, failed and cancelled; the generation; its deadline, NULL for a task, which has none; when it ended, if it has; its parent, if it is a member of another; whether it is a task, and then its job, once that was enqueued; and its counters (see weir.increment). No row if the id is unknown, or the flow ended longer ago than completed_retention and failed_retention. It reads a bounded number of rows, however many members there are. Errors: WR003 (the log comes from another cluster, and was not rebased), 40001 (REPEATABLE READ and SERIALIZABLE only: the tables of flows were compacted after the transaction took its snapshot). Locks: none that others wait for, and none that outlast the call; waits while a table of flows is being compacted. Isolation: any.';
COMMENT ON ROUTINE weir.flow_outputs(bigint,text,bigint,integer) IS 'The outputs of a flow''s members that have completed, also of those that have left the log, in the order in which they were recorded: up to max_rows (1 to 1000) after the one with the number after (NULL: from the first on); with task, only that task''s. job and kind are the job''s, task_name is that of the task (NULL: a member without a name). Outputs of jobs that a task has added belong to the task: pass its id. Those of a flow that has ended are complete. Errors: 22023; 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';
COMMENT ON ROUTINE weir.flow_running(bigint) IS 'How many jobs of a flow, and of the tasks and flows within it, are running, as weir.jobs_page lists them. weir.flow_info counts a task or a flow within it as one member, however many jobs of its own are running. What it costs depends on how many jobs of all queues are running, not on how many members there are; it may lack jobs that a worker claimed long before its newest batches, of which about 5,000 are read. Errors: 40001, as for weir.queues and weir.flow_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied, or a table of flows is being compacted. Isolation: any.';
COMMENT ON ROUTINE weir.flows(bigint,integer,bigint) IS 'Flows that are not members of others, or with parent those that are members of this flow or task (see weir.tasks for its tasks), and their progress, newest first: up to max_rows (1 to 1000) with smaller ids than after (NULL: the newest); see weir.flow_info. No row, if there is no such parent. With parent, it reads the ids of all flows and tasks directly within that, for each page. Errors: 22023; WR003 and 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';
COMMENT ON ROUTINE weir.forget_relay(text) IS 'Forgets a relay that no longer runs: messages are not kept for it any more, and one of the same name begins as a new one. Returns false if nothing is known of it. Errors: 55P03 (the table was in use for 5 seconds: call again); WR004 (not in READ COMMITTED). Locks: ACCESS EXCLUSIVE on the positions of relays, to the end of the transaction. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.heartbeat(integer,integer) IS 'Renews a worker''s lease; returns whether the worker is fenced, how many workers are alive, and how many of them share a queue with it. In a session that attends for the worker, it writes only changes, so an idle worker uses no transaction ids. An unknown worker counts as fenced. Errors: 55P03 (the lock was not available within 5 s). Locks: advisory: the worker''s last word (shared; it waits only for a rescuer, at most 5 s). Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.history(text,timestamp with time zone,interval) IS 'What happened in a queue, or in all (NULL), in the last 72 hours: a row for each step since a time (by default, an hour before the last), up to 500: at, its beginning; how many attempts completed, failed for good, were cancelled, were retried (or lost with their worker), and how many ended otherwise (snoozed or released); the most jobs that waited when a minute of the step was over, and the longest that the oldest of them had; and for how long half (p50) and 95 % (p95) of the attempts that completed, failed or were retried had waited and ran, NULL if there were none. The step is 1 minute for up to 6 hours, 5 for 24 hours and 10 above, unless another is passed: a number of minutes. The last row is that of the last whole step that ended at least a minute ago. Counts are exact, but for ends that were committed more than a minute after they happened, and for those whose segment was emptied before that, where the log is filled within a few minutes; durations are estimates, within 20 %, from a sample. Of more than a hundred queues in a minute, only those with most are counted on their own. A queue that does not exist has had nothing. Errors: 22023 (a step that is not such a number, or more than 500 points). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.hubs() IS 'The hubs with a heartbeat in the last five minutes that have not stopped since. behind is how many ticks had been cut by then that the hub had not dispatched. Rates are averages of the seconds before the heartbeat; messages are counted once at each hub, whether or not it has subscribers for them. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.increment(bigint,text,bigint) IS 'Adds n to a counter of a flow (1 to 100 characters; a flow has up to 100), in the caller''s transaction: it counts after the commit, and never after a rollback. No row is updated, so nobody waits. With weir.complete in the same transaction, each completed attempt is counted once, and the sum is exact when the flow ends. weir.flow_info shows it at any time. Errors: 22023; 55000 (the flow has ended, or is cancelled). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.job_info(bigint) IS 'One job by id, in state available, running, scheduled, completed, failed or cancelled. No row if the id is unknown or the job''s retention is over. errors tells how its last 25 attempts ended, oldest first; of an attempt that was snoozed or released before it ended, only the end counts. Of an earlier attempt whose segment has been reclaimed, a text of more than 1000 characters is reduced to its beginning and its end. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.jobs(text,text,integer,text) IS 'The first jobs in one state, as rows, in the order of weir.jobs_page: up to max_rows (1 to 10000), and fewer only if there are no more. It reads until it has them: where many thousands of jobs are passed over before, as waiting jobs that a filter has cancelled are in a list of available ones, weir.jobs_page reads a bounded part of them at a time. Errors and locks: as for weir.jobs_page. Isolation: any.';
COMMENT ON ROUTINE weir.jobs_page(text[],text,text[],jsonb,text,integer,text,bigint,text,timestamp with time zone,timestamp with time zone,text,timestamp with time zone,timestamp with time zone) IS 'A page of the list of jobs that are in some states (NULL: all), in a queue, of some kinds, whose meta contains meta, that have this key, are members of this flow, or of one within it, whose args, as text, contain args_text (A to Z and a to z are the same; encrypted args match no text), that were enqueued at or after enqueued_after, or before enqueued_before, whose error has the shape by which weir.failure_groups groups it (states must be {failed}), and that ended at or after finished_after, or before finished_before, which no unfinished job did (of a job that was cancelled and that no worker has passed, the time of its cancellation counts): a JSON array of up to max_rows jobs (1 to 1000), as weir.job_info shows them; and next, to be passed as after to get the next page, NULL if there is none. The states follow one another in the order in which they are named: available jobs in the order in which they will be claimed (of more than 500 lanes, 500 at a time), scheduled jobs by run_at, the others newest first (completed ones approximately, as they were recorded; of cancelled ones, first those that weir.cancel cancelled, by id, then those that weir.cancel_where cancelled and that no worker has passed yet). A job that stays in its state while pages are read is on exactly one of them; a job that enters a state in the meantime may be on none. Three exceptions: a cancelled job is on a second page if, between the two, it has ended and the record that weir.cancel wrote is tidied away, or a worker has passed a job that weir.cancel_where cancelled; a job that was cancelled while weir.move_where moved it may be in the list of its queue only once it has ended; and failed jobs are listed while their copies are kept, which is less than failed_retention if they need more than a quarter of retention_bytes, although weir.job_info finds some of them in the log for longer. A page may have fewer jobs than max_rows, or none, and still a next: what one page reads is bounded, however little a filter finds and however many queues there are. Errors: 22023; 40001 as for weir.job_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.keys_in_use() IS 'The keys with which something is encrypted that will be read, or may be: key is the id, n how many there are in this place. Places: jobs (args of jobs that wait, run, or are scheduled or to be tried again), failed jobs and cancelled jobs (args; they can be retried), schedules (args), flows (callbacks that may still come, also once more after weir.retry_flow), tasks (args of those that have not started), flow outputs (those of weir.flow_outputs, as long as the flow is kept); and of the jobs named here, checkpoints (the last), messages (the last), log lines, and errors and outputs (of the last attempt); there n counts jobs. It does not look at completed jobs, and does not see what open transactions have written. It reads all schedules, flows and jobs but completed ones, about 3,000 jobs a second, in one snapshot, and holds off the reclaiming of segments meanwhile: call it when you rotate keys, not to monitor. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed or flows were compacted after the transaction took its snapshot; 57014, if statement_timeout is too short. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied or flows are being compacted. Isolation: any.';
COMMENT ON ROUTINE weir.limits() IS 'The limits of queues, in the order of their names, and what they count: running_now attempts run; room more may start at this moment, and if none may because of the rate, the next may at next_at. A queue that nothing was claimed from since it has limits counts nothing yet. A row with per_key is about the limits of each key of the queue, and counts nothing; in_order is as in weir.set_limit. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only: the transaction''s snapshot is too old; run it again). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.move_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,integer,text,integer,text) IS 'One step of moving all available and scheduled jobs that match a filter to another queue (to_queue, which is created if the name is new), to another priority, or both; for the filter see weir.cancel_where. A moved job keeps its id, attempt, arguments and time, and comes behind the jobs that wait there; the others keep their order. A job that has started is not moved, and one that was cancelled stays cancelled; earlier cancellations of the jobs in its new place do not mean it. A step looks at max_rows jobs (1 to 1000) from after on, and returns how many it has moved, and next: pass it as after in the next call, with the same filter; NULL: this was the last step. A run that is ended has moved what it has returned, and a new run does the rest. Errors: 22023, 40001, 55P03 (a lock was not available within 5 seconds: call again), WR003, WR004 (not in READ COMMITTED autocommit). Locks, to the end of the call: advisory: claims (shared), promotion and the lanes (exclusive); SHARE on weir.cancellation_where, for which cancellations by filter wait. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.newest_tick() IS 'Returns the newest tick. Errors: WR003 (the log comes from another cluster: call weir.rebase_messages). Locks: none that others wait for, and none after the call. Isolation: any.';
COMMENT ON ROUTINE weir.next_times(text,text,timestamp with time zone,integer) IS 'The next due times of a schedule after an instant (NULL: now): count of them, 1 to 10000, or fewer if there are no more. To try an expression before it is set. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.notify(text,text) IS 'Replaces pg_notify, with the same arguments, also in triggers for each row: as weir.publish, but a message of up to 200 bytes that repeats the last one of its transaction is not even logged. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.notify_callers() IS 'Lists what still sends PostgreSQL''s own notifications in this database: functions, with the line that does, triggers that call them, rules and views. It searches their text, and may mistake a string for a call. It can''t find notifications that applications send. It lists only what the caller may see. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.operations(bigint,integer) IS 'Operations, newest first: up to max_rows (1 to 1000) with numbers below before (NULL: from the newest one on). state is running, done, stopped or failed, with the error; changed is how many jobs it has retried, deleted or moved so far, at changed_at (NULL: a cancellation counts nothing). Kept are those of the last 30 days, but not many more than 1000. Errors: 22023; 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.pause(text) IS 'Pauses a queue: after the commit, no more of its jobs are claimed; running jobs continue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.pause_schedule(text) IS 'Pauses a schedule: after the commit, it enqueues no more jobs until it is resumed, even if it is declared again. Returns false if it does not exist. Errors: none. Locks: none that others wait for, except another change of the same schedule. Isolation: any.';
COMMENT ON ROUTINE weir.progress(integer,text) IS 'Stores what running attempts report: up to 1000 at once, as the text of a JSON array of at most 16 MiB. The fields of an entry are token; percent (0 to 100); message (a text, of which 2000 characters are kept); checkpoint (any JSON value of at most 131072 bytes as text, which the next attempt reads with weir.checkpoint; null: it reads none; left out: it stays as it is); and log (an array of up to 200 lines, each an object with text, at most 8000 characters, and optionally level, INFO by default, and at, a time in the form of RFC 3339, by default when it is stored). percent and message replace those of the previous report. Returns a row for each entry that was not stored: lost (the attempt has ended, or another worker has the job) or invalid. Each call writes one row for each entry: report at most once a second. Errors: 22023, 22P02 (not valid JSON), WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and the segments (shared); ROW EXCLUSIVE on weir.report and its active segment, for which only the rotation of reports waits, at most 50 ms. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.publish(text,text,boolean) IS 'Publishes a message in the caller''s transaction: it is delivered to the channel''s subscribers after the commit, and never after a rollback, not even of a savepoint. channel: 1 to 255 bytes; payload: up to message_bytes (1048576 by default), NULL counts as empty. If a transaction publishes the same channel and payload more than once, they are delivered once, unless keep is true. Errors: 22023; WR004 (after _publish_drafts with cuts in the same transaction). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.publish_bytes(text,bytea,boolean) IS 'Publishes a message with a binary payload; otherwise as weir.publish. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.publish_many(text[],text[],boolean) IS 'Publishes each pair of channel and payload in order, as weir.publish does, all or none; returns how many. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.queues() IS 'Queues by name: how many of their jobs are available, running and scheduled, including cancelled ones that no worker has reached yet; since when the available job that has waited longest could have been claimed; and claimed, the number of attempts ever claimed; last_claim is NULL until the first; workers, how many workers that are alive work the queue, see weir.workers. Counts are exact up to about 10,000 and estimated to a few percent above that; running may lack jobs that a worker claimed long before its newest batches, of which about 5,000 are read. approximate means that one of a queue''s counts is an estimate. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.read(bigint,bigint,integer,bigint) IS 'Returns the messages of a tick after a given id, in the order of publishing: up to max_rows; from a tick of more than 10000 messages or 8 MB, about 8 MB at most. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick has another epoch; the detail is epoch.tick of the last one to continue from), 22023. Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.rebase() IS 'After a restore or a move into another cluster, logs every unfinished attempt again under this cluster''s transaction ids, starts from new positions, and fences all earlier workers. Returns the number of attempts, or NULL if there was nothing to do. Workers call it automatically, without a statement_timeout. Errors: WR004 (not in READ COMMITTED autocommit), 57014 (cancelled, for example by a statement_timeout; nothing has changed), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on all tables of the log of jobs, waiting at most 10 s for each. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.rebase_messages() IS 'After a restore or a move into another cluster, logs the messages that were in no tick yet again under this cluster''s transaction ids. Earlier ticks are deleted, because no position in them is valid here: subscribers receive a gap. Returns the number of messages, or NULL if there was nothing to do. Hubs call it automatically. Errors: WR004 (not in READ COMMITTED), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on the tables of messages and on the settings, waiting at most 10 s for each. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.record(integer,text) IS 'Records how attempts ended, many at once, and accepts or refuses each on its own. ends is the text of a JSON array of at most 10000 objects and 64 MiB. The fields of an object are token; outcome: completed (the default), failed (tried again while attempts are left, unless "final" is true), cancelled, or, without using up the attempt, snoozed (the job postponed itself) or released (this worker can''t run it); error and output, texts that are kept with the job; and delay, in seconds, until the next try (NULL: as weir.set_retry_rule and the queue''s backoff say). Returns a row for each end that was not recorded, with the refusal: ended (the attempt has already ended, so it is safe to repeat a call), lost (it no longer belongs to this worker: drop it), busy (a transaction that completes it is still open: record it again later) or invalid (see detail; the worker still holds the attempt: record it as failed). Characters that PostgreSQL can''t store become U+FFFD. Errors: 22023, 22P02 (not valid JSON), WR001 (the worker is unknown or fenced), WR004. Locks: see _record. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.relays() IS 'Relays by name, and how far they have come: the position in the log that they read, when that was recorded (about every ten seconds while it changes, and once an hour), and for those that read messages of this database the first tick that they have not passed on in whole, the newest tick, and when the oldest tick with messages that may still have to be passed on was cut (NULL: there is none). Errors: 40001 (REPEATABLE READ and SERIALIZABLE only). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.restrict(text,text[],text[]) IS 'Restricts what a role may LISTEN on and NOTIFY at hubs to channels and patterns such as orders.*; NULL allows everything that its grants allow. It replaces earlier restrictions of the role, and applies to connected clients within a few seconds. It does not restrict access to the database itself. Errors: 22023. Locks: none that others wait for, except another change of the role''s restrictions. Isolation: any.';
COMMENT ON ROUTINE weir.resume(text) IS 'Resumes a queue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.resume_schedule(text) IS 'Resumes a schedule. What was due while it was paused is not fired, whatever missed says. Returns false if it does not exist. Errors: 22023 (PostgreSQL does not know its time zone any more). Locks: none that others wait for, except another change of the same schedule. Isolation: any.';
COMMENT ON ROUTINE weir.retry(bigint) IS 'Enqueues another attempt of a completed, failed or cancelled job, and returns its new state. A job in another state is left as it is, and its state returned; NULL for an unknown id. Errors: WR004 (not in READ COMMITTED). Locks: advisory: the job (exclusive); only a second retry of the same job waits, so retry several jobs of one transaction in ascending order of their ids. For a job that weir.cancel_where or weir.cancel_flow means, also its lane (exclusive): until the transaction ends, no job is claimed from it. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.retry_flow(bigint,text,integer) IS 'One step of retrying all failed and cancelled members of a flow, and of flows and tasks within it, as weir.retry does; tasks that did not start because of these may start again. If the flow had ended, it runs again, and its callbacks come once more when it ends: with the next generation. A step looks at max_rows jobs (1 to 1000) of the list from after on, returns how many it has retried, and next: pass it as after in the next call; NULL: this was the last step. Errors: 22023 (the flow is unknown), 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry, in an order in which two runs don''t deadlock. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.retry_rules() IS 'The retry rules, in the order in which they are tried: the first that matches an error applies. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.retry_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text[],text,integer,text,text,timestamp with time zone,timestamp with time zone) IS 'One step of retrying all jobs that match a filter, as weir.retry does: those that are failed (or in states: failed, cancelled, completed), of a queue, of some kinds, whose meta contains meta, of a priority, enqueued at or after enqueued_after or before enqueued_before, with this key, whose last error contains the text error, or has the shape by which weir.failure_groups groups it, and that reached that state at or after finished_after, or before finished_before (of a job that was cancelled and that no worker has passed, the time when it was enqueued counts). All conditions that are not NULL must hold, and one besides states is required. An empty value is refused: pass NULL for no condition. A step looks at max_rows jobs (1 to 1000) of the list of these states from after on, returns how many it has retried, and next: pass it as after in the next call, with the same filter; NULL: this was the last step. A job that fails again meanwhile is not retried a second time. Call each step in autocommit: then a run that is ended has done what it has returned, and a new run does the rest. Errors: 22023, 40001, WR004 (not in READ COMMITTED). Locks: as for weir.retry, in an order in which two runs don''t deadlock. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.revocations() IS 'The users whose tokens from before at are refused until the time until, and, without until, those that were disconnected in the last ten minutes. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.revoke(text,interval) IS 'After the commit, all hubs refuse the tokens that were issued to a user (sub) before the time that it returns (iat), and those without iat, and end the user''s connections. The hubs forget it after lasts, up to 400 days: by then these tokens must have expired. Errors: 22023; 54000 (100000 users); WR004 (as weir.publish). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.run_schedule(text) IS 'Enqueues a job of a schedule now, as if it were due, even if the schedule is paused. Its due times stay as they are. Returns the job''s id, or NULL if the schedule does not exist. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.schedules(text,text,integer) IS 'Schedules in the order of their names, up to max_rows (1 to 10000) after the name after, or the one called name: state is active or paused; next_at is the first due time that has not been fired, without its jitter; last_at the last one that has, or that was missed and passed over; last_job the last job that a due time has enqueued; error why it can''t be fired. Errors: 22023; 40001, in REPEATABLE READ and SERIALIZABLE, if firings were compacted after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while firings are being compacted. Isolation: any.';
COMMENT ON ROUTINE weir.seal(bigint) IS 'Seals a flow, in the caller''s transaction: after the commit, it ends as soon as all its members have. From then on, only these should add jobs. A flow without members ends at once. Returns false if it was sealed already. Errors: 22023 (the flow is unknown); WR003 and 40001 as for weir.flow_info. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.set(text,text) IS 'Changes a setting: completed_retention (how long completed and cancelled jobs can be inspected and retried; 1 day by default), failed_retention (the same for failed jobs, but never less than completed_retention; 7 days by default), retention_bytes (the size of log and history together, and a quarter more for failed jobs; unfinished jobs are kept whatever their size; 4294967296 by default), message_retention (how long a subscriber can resume from a position; 1 hour by default), relay_retention (how long messages are kept beyond that for a relay that has not passed them on, unless space is short; 1 day by default), message_retention_bytes (the size of messages; 1073741824 by default) or message_bytes (the largest payload; 1048576 by default, at most 16777216). Intervals need a unit; bytes may have one (4 GB). Errors: 22023. Locks: none that others wait for, except another change of the setting. Isolation: any.';
COMMENT ON ROUTINE weir.set(text,text,text) IS 'Changes a setting of a queue, which need not have been used yet: backoff (the delay between a job''s first failure and the next attempt; it doubles with each further failure, and varies by up to a quarter; 1 second by default), backoff_limit (its maximum; 1 hour by default), backoff_form (how it grows: exponential, the default, which doubles it; linear, which adds it once more; or fixed), or ageing (for how long a job waits before it may start ahead of jobs of the priority before its own; 0, the default: forever). Returns false if no queue had this name, and creates it. Errors: 22023. Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.set_checkpoint(integer,text,jsonb) IS 'Sets the checkpoint of a running attempt in the caller''s transaction: its effects and the checkpoint commit together, so the next attempt goes on exactly behind the last transaction that was committed. checkpoint is any JSON value of at most 131072 bytes as text; null: the next attempt reads none. The transaction may stay open: even if the worker is lost in the meantime, no other attempt starts before it has ended. Its percent and message stay as they are. Errors: 22023; WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended: roll back), WR004. Locks, to the end of the transaction: advisory: see _hold_attempt; ROW EXCLUSIVE on weir.report and its active segment, for which only the rotation of reports waits, at most 50 ms. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.set_limit(text,integer,double precision,interval,integer,boolean,boolean) IS 'Limits what the whole fleet does with the jobs of a queue, of all priorities: at most running attempts at a time; at most rate starts per interval (1 second if NULL), of which burst may start at once after a pause (NULL: half a second''s worth, at least 1). NULL for running or rate: unlimited. With per_key, this is what each key of the queue may do (running at most 1000), besides the limits of the queue as a whole; and with in_order (running 1), no job of a key starts while an earlier one is to be tried again. It replaces the limits of this sort that the queue had; the same limits again change nothing and take no lock. The queue need not exist yet. From the moment it returns no attempt starts beyond the limits; attempts that run already count, and none is interrupted. An attempt holds its place until its end is recorded, or its worker is fenced and the attempt was logged again; a job that waits for its next attempt holds none. Errors: 22023, WR004 (not in READ COMMITTED, or inside a transaction that has written or is old), 55P03 (claims did not end for 5 s: try again). Locks: advisory: claims (exclusive, waiting at most 50 ms at first, and at most 1 s at a time, to the end of the transaction). Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.set_retry_rule(text,text,text,text,text,interval,interval,text) IS 'Creates the retry rule of that name, or replaces it. It says what follows an attempt that failed in a queue, of a kind, with an error that a regular expression matches (NULL: any), unless the worker has said so itself, by a delay or a final outcome. action: retry (the default) after a backoff, as long as attempts are left; fail, without a further attempt; cancel; or snooze, which uses up no attempt, for backoff each time. backoff, backoff_limit and backoff_form are as for weir.set; NULL: the queue''s, except that a snooze is fixed. Of the rules that match, one with an error precedes one without, then one with a kind, then one with a queue, then the first by name. The expression (up to 1000 characters, as of the operator ~, without back references and lookaround) is matched with the first and the last 2000 characters of the error. At most 100 rules. Errors: 22023. Locks: SHARE ROW EXCLUSIVE on weir.retry_rule, for which only another change of a rule waits. Isolation: any.';
COMMENT ON ROUTINE weir.set_schedule(text,text,text,text,jsonb,text,text,interval,integer,integer,jsonb,text) IS 'Declares a schedule: at each of its due times after the commit, a job is enqueued. schedule is a cron expression of five fields (minute, hour, day, month, weekday), of six with the second first, @hourly and the like, or an interval (every 90 seconds; every 2 weeks from 2026-01-05 09:00), in the time zone time_zone. Returns created, changed, or unchanged: declaring the same again writes nothing, so every process can do it when it starts. A paused schedule stays paused. missed says what happens to due times that nobody fired for more than a minute, because no worker ran: one (a single job for all of them, with the newest of these due times), all (a job for each), or none. Those of the last minute are fired one by one, whatever missed says. jitter delays each job by a random time up to it. The job''s meta has the keys schedule (the name) and due (the due time), and its key is key. NULL: the default. Errors: 22023 with the field and the value; 40001; WR004 (a change outside READ COMMITTED). Locks: none that others wait for, except another change of the same schedule; a change waits while firings are being compacted. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.set_weight(text,text,double precision) IS 'Sets how many jobs a key of a queue gets to start in relation to the other keys, while both have jobs that wait: 0.01 to 1000; NULL or 1: as many as a key without a weight. It counts from each key''s next turn on; limits per key hold all the same. The queue and the key need not exist yet. The same weight again writes nothing. Errors: 22023. Locks: none that others wait for, except another change of the same weight. Isolation: any.';
COMMENT ON ROUTINE weir.settings() IS 'All settings that weir.set changes: those of the database (queue is NULL), then those of each queue; of failed_retention, what applies, which is at least completed_retention. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.start(text,text[],interval) IS 'Registers a worker, creates its queues and returns its id. From then on it must call take (or heartbeat) well within its lease, 1 second to 5 minutes (NULL: 30 seconds), or other workers get its jobs. A log that comes from another cluster is rebased first; that may take minutes, and ignores statement_timeout. Errors: 22023; see rebase. Locks: none that others wait for; see rebase if it rebases. Isolation: any; if it rebases, READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.stop(integer) IS 'Ends a worker. The jobs that it still holds are released immediately, without using up an attempt. Returns false while a call for this worker is still running, or more jobs are left to release: then call it again. It is safe to repeat. Errors: WR001 (the worker is unknown), WR004. Locks: see _reconcile, _fence and _settle. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.stop_operation(bigint,text) IS 'Stops an operation: after the commit it changes no more jobs, and what it has done stays done. by says who has stopped it (NULL: the session''s user). Returns stopped; done or failed, if it had ended; NULL: the number is unknown. Errors: 22023, 55P03 (a step did not end within 5 seconds: call again), WR004 (not in READ COMMITTED). Locks: advisory: the operation (exclusive), until the transaction ends; steps of it pass over it meanwhile. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.storage() IS 'What Weir''s tables take on disk. One row for each segment of each log: job (with batches, results and turns), later (scheduled jobs), failure, report, message (with ticks). state is active (new rows go there), closed (it is kept until reclaim_at, at least) or free (emptied, or never used: since is NULL); since is when it came to be so; opened_at is when its oldest rows came, apart from those that were carried into it; bytes include index_bytes and TOAST; from max_bytes on, the next segment is opened, if one is free. holders are the pids of up to 10 transactions that began a second ago or earlier, as far as the schema''s owner may see that, and hold a lock on a closed segment past its reclaim_at (0: a prepared one): they keep it from being reclaimed. Then one row each, without a segment, for the tables of flows (flow) and all others (control). It reads the sizes of files, and no rows but the history of segments. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only, if that was compacted since the snapshot). Locks: none that others wait for, and none that outlast the call; it waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.take(integer,text[],integer[],text[],text[],boolean,interval) IS 'Returns what a worker must do next, as rows: with event job, an attempt to run, and then to record by its token; with event cancel, an attempt in held whose job was cancelled, to interrupt. Claims up to limits[i] jobs of queues[i], at most 960 of a priority and from at most 200 pairs of queue and priority in one call, priority by priority (NULL: 1 from each of the queues that the worker was started for). Jobs whose kind is not in kinds (NULL: all kinds) are released for workers that have a handler, each time with a longer delay. If there is no work it waits, for at most 1 second (wait; 0 does not wait) and half of statement_timeout, and then returns no row. It also renews the lease once a third of it has passed, so that at least two thirds are left, counted from the call. A few times in a lease, and if lost is true (the answer of a take was lost), it compares what the database has recorded as held by the worker with held, the tokens of all attempts that the worker has not recorded: others get the attempts that are not in held. A call that has written for one of these reasons claims nothing. Call it once at a time for a worker. Errors: WR001 (the worker is unknown or fenced: drop everything and start again), 22023, WR003, WR004, 55000 (the transaction is old: try again). Locks: see _claim and _reconcile. Isolation: READ COMMITTED, in autocommit. While it waits it holds a snapshot, and no lock that others wait for.';
COMMENT ON ROUTINE weir.tasks(bigint,bigint,integer) IS 'The tasks of a flow, in the order of their ids, up to max_rows (1 to 1000) with ids greater than after (NULL: from the first on): the task''s id, name and state, as in weir.flow_info; its job, once that was enqueued; the names of the tasks that it comes after, and of those for which it still waits; and how many jobs belong to it, with those that its own has added. Errors: 22023; WR003 and 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';
COMMENT ON ROUTINE weir.ticks(bigint,bigint,integer,double precision,bigint) IS 'Returns the ticks after a given one, up to 100, which hubs have cut; it cuts none. It polls up to polls times, every pause seconds, until there are any; pass ids_now of the previous call as ids, and the epoch of the given tick as epoch, so that a position that was lost when the log was set back is refused. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick does not belong to this log; the detail is epoch.tick of the last one to continue from), 22023, WR004 (not in READ COMMITTED). Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir.unwatch_table(regclass,text) IS 'Undoes weir.watch_table for this table and channel; false: it was not watched so. Errors: 42501. Locks: ACCESS EXCLUSIVE on the table, to the end of the transaction, as for the end of any trigger. Isolation: any.';
COMMENT ON ROUTINE weir.watch_table(regclass,text,text[]) IS 'From now on, publishes what statements change in a table, as one message for each channel and statement, in the transaction of the change. Names of columns in braces in the channel, as in orders.{id}, are replaced by the row''s values, in which dots, blanks and other special characters are written as %XX. columns: only changes of these count, and the messages contain their new values; NULL: any change counts, and the messages contain only the primary key and the names of the columns that have changed. A message is {"table", "op", "rows", "changes": [{"op", "key", "changed", "new"}]}, with up to 1000 changes and 64 kB; if there are more, "more" is true, and rows is how many there are. A statement that changes more than 10000 rows, or more than 16 MB of them, publishes a message of each channel for every 10000 or 16 MB. A row that moves to another channel is deleted in the one and inserted in the other. TRUNCATE is not seen, nor what logical replication changes, nor statements that name a partition or an inheriting table instead of this one. The key goes by the names that its columns have at the time; a column of the channel or of columns that is renamed or dropped counts as NULL until watch_table is called again. Calling it again changes nothing, or replaces the columns. It makes a function in the table''s schema, which belongs to the table''s owner, and three triggers. The owner needs weir_publish; who changes the table needs nothing. Errors: 22023, 42501 (the caller does not own the table, or the owner may not publish), 42703 (no such column), 42723 (its function belongs to somebody else), 42809 (no table), 55000 (no primary key). Locks: SHARE ROW EXCLUSIVE on the table, to the end of the transaction, as for any new trigger. Isolation: any.';
COMMENT ON ROUTINE weir.watched_tables() IS 'The tables that are watched, each with its channels and columns (NULL: any). Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.weights() IS 'The keys that have a weight, in the order of queues and keys. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.workers() IS 'Workers, newest first, up to 10,000: alive, silent (past their lease, about to be fenced; reason, if any: why they can''t be) or ended, with the reason. running is how many attempts it ran at its last heartbeat; weir.jobs(''running'') lists those that it has claimed. Locks: none that others wait for. Isolation: any.';
COMMENT ON SEQUENCE weir.active_arrival IS 'The table that new rows of weir.arrival are written to.';
COMMENT ON SEQUENCE weir.active_failure IS 'The segment that new rows of weir.failure are written to.';
COMMENT ON SEQUENCE weir.active_job IS 'The segment that new jobs are written to.';
COMMENT ON SEQUENCE weir.active_later IS 'The segment that new rows of weir.later are written to.';
COMMENT ON SEQUENCE weir.active_message IS 'The segment that new messages are written to.';
COMMENT ON SEQUENCE weir.active_output IS 'The table that new rows of weir.output are written to.';
COMMENT ON SEQUENCE weir.active_release IS 'The table that new rows of weir.release are written to.';
COMMENT ON SEQUENCE weir.active_report IS 'The segment that new rows of weir.report are written to.';
COMMENT ON SEQUENCE weir.active_request IS 'The table that new rows of weir.request are written to.';
COMMENT ON SEQUENCE weir.active_seen IS 'The table that new rows of weir.seen are written to.';
COMMENT ON SEQUENCE weir.batch_no IS 'Numbers batches. A worker''s claims exclude each other, so its batches are numbered in the order of their commits.';
COMMENT ON SEQUENCE weir.cancel_looked IS 'The greatest id of weir.cancellation that tidying has checked.';
COMMENT ON SEQUENCE weir.carried IS 'Bytes carried into the active segment, in steps, since it was opened.';
COMMENT ON SEQUENCE weir.control IS 'Counts changes that running workers must notice: cancellations, pauses, new queues.';
COMMENT ON SEQUENCE weir.counted_minute IS 'The minute, since 1970, in which minutes were last counted: those that were over a minute before it are in weir.minute. It lies behind if that is rolled back or lost, which does no harm.';
COMMENT ON SEQUENCE weir.flow_bytes IS 'The size of weir.flow and weir.fold when they were compacted last.';
COMMENT ON SEQUENCE weir.flow_id IS 'Flow ids.';
COMMENT ON SEQUENCE weir.idle_looked IS 'The greatest queue id that tidying has checked for idle lanes.';
COMMENT ON SEQUENCE weir.job_id IS 'Job ids. An idle worker compares its last_value with the one of its last poll to find out whether anything was enqueued in between.';
COMMENT ON SEQUENCE weir.message_id IS 'Message ids. A hub compares its last_value with the one of its last poll to find out whether anything was published in between.';
COMMENT ON SEQUENCE weir.operation_bytes IS 'The size of weir.operation and weir.operation_step when they were compacted last.';
COMMENT ON SEQUENCE weir.operation_id IS 'Numbers operations.';
COMMENT ON SEQUENCE weir.output_no IS 'Numbers outputs of members of flows.';
COMMENT ON SEQUENCE weir.relay_bytes IS 'The size of weir.relay when it was compacted last.';
COMMENT ON SEQUENCE weir.relay_no IS 'Numbers the rows of weir.relay.';
COMMENT ON SEQUENCE weir.report_no IS 'Numbers reports.';
COMMENT ON SEQUENCE weir.revocation_id IS 'Ids of revocations.';
COMMENT ON SEQUENCE weir.tick_floor IS 'Ticks up to this number can''t be read any more, because messages of theirs have been truncated.';
COMMENT ON SEQUENCE weir.tick_seq IS 'The number of the newest tick. It may be ahead: while that tick is being committed, and after a cut was rolled back, until the next one.';
COMMENT ON SEQUENCE weir.watched IS 'For how long, in ms, rescuers have watched the workers: each call of weir._rescue adds the time since the previous call, but at most 2 s, and at most 0.5 s while a worker whose session has ended has time to attend with another. An outage, a failover, a clock step or an hour without a rescuer therefore does not count as silence of a worker.';
COMMENT ON SEQUENCE weir.watched_at IS 'The server''s clock, in ms, when weir.watched was last advanced.';
COMMENT ON TABLE weir.arrival IS 'What a transaction has changed of the counts of a flow: how many jobs were added, and how many have ended, in which way; a retry takes back an end. Insert-only: a ring of three tables, each of which is truncated once its rows are counted.';
COMMENT ON TABLE weir.attendance IS 'Workers that have attended, each with the start time of the server on which they did, and the value of weir.watched at that time. Without a row for the current server start, a free attendance lock means nothing. The row of worker 0 records the first check for unattended workers since the server started: no lease counts from before it.';
COMMENT ON TABLE weir.batch IS 'A slice of a lane and the worker that claimed it, with one row for each segment that its jobs are in. The newest batch of a lane holds the lane''s position, its pending transactions and the total number of claimed jobs.';
COMMENT ON TABLE weir.cancellation IS 'Jobs that were cancelled: they must not start, or must stop.';
COMMENT ON TABLE weir.cancellation_where IS 'Cancellations by filter: unfinished jobs that a row describes, with ids up to upto, must not start, or must stop. A row is deleted when no such job is left.';
COMMENT ON TABLE weir.edge IS 'Which task of a flow comes after which: by name, because two transactions that do not see each other may both add a task, of which one counts. Insert-only, and compacted with weir.flow.';
COMMENT ON TABLE weir.epoch IS 'Periods in which one server cut ticks, each with its first tick: they distinguish ticks of logs that were copied from each other and then diverged. Never truncated: one row for each start of the server; kept are the newest 1000, and those whose ticks can still be read.';
COMMENT ON TABLE weir.failure IS 'Jobs that failed for good, each as it was after its last attempt. A row is a copy, which outlives the job''s segment. It contains no transaction ids, so it stays valid in another cluster.';
COMMENT ON TABLE weir.firing IS 'The due times of schedules that were fired, each with its job (NULL: it was missed, and passed over). Insert-only; the newest row of a schedule counts, and the others are kept for a while.';
COMMENT ON TABLE weir.flow IS 'Flows, as they were created. Insert-only; those that ended long ago are left out when it is compacted by TRUNCATE.';
COMMENT ON TABLE weir.flow_cut IS 'Up to where arrivals are counted: the newest row counts. Those of the transactions that its snapshot sees are in weir.fold, and no others. Insert-only, and compacted by TRUNCATE.';
COMMENT ON TABLE weir.fold IS 'The sums of the arrivals of flows, a row for each cut in which a flow had some; the newest row of a flow counts. Insert-only, and compacted by TRUNCATE.';
COMMENT ON TABLE weir.gate IS 'What the limits of a queue count: a row for each claim, and the newest row of a gate is its whole state. Insert-only, and compacted by TRUNCATE.';
COMMENT ON TABLE weir.hub_beat IS 'Heartbeats of hubs, with the newest tick that each has dispatched (NULL: the hub has stopped), and what it does, in messages and deliveries per second: a ring of three tables for five minutes each; each is truncated before its turn.';
COMMENT ON TABLE weir.job IS 'The log: one row for each attempt, and one more for each time that the attempt was snoozed or released, with the transaction that logged it.';
COMMENT ON TABLE weir.key_weight IS 'How many turns a key gets in relation to others, if not one; only those change it who operate queues.';
COMMENT ON TABLE weir.keyed IS 'The names of queues that have had unique jobs; insert-only. Transactions that do not see each other may each write a row. A snapshot that shows a unique job shows a row of its queue.';
COMMENT ON TABLE weir.last_word IS 'The last words of workers, their liveness records, ordered by no: a ring of three tables for five minutes of weir.watched each; each is truncated before its turn. watched is the value of that sequence; at is only for people.';
COMMENT ON TABLE weir.later IS 'Attempts with a run_at in the future: scheduled, retried, snoozed. Promotion copies them into the log when they are due.';
COMMENT ON TABLE weir.message IS 'The log of messages, with the transaction that published each. A payload that is not binary is text in UTF-8.';
COMMENT ON TABLE weir.minute IS 'What happened in a minute in a queue: in one kind of rows, how its attempts ended; in another, what waited when it was over. No row: nothing. Several rows of a minute and a queue add up. Insert-only: a ring of four tables for 36 hours each; each is truncated before its turn.';
COMMENT ON TABLE weir.operation IS 'Bulk operations, as they were begun. Insert-only; old ones are left out when it is compacted by TRUNCATE.';
COMMENT ON TABLE weir.operation_mark IS 'Up to which number all operations have ended, so that nobody looks at them again. Insert-only; the newest row counts, and the others are left out when weir.operation is compacted.';
COMMENT ON TABLE weir.operation_step IS 'Where operations stand: a row for each step, written in the transaction of what the step does. Insert-only; the newest row of an operation counts, and the others are left out when it is compacted with weir.operation.';
COMMENT ON TABLE weir.output IS 'Outputs of members of flows that have completed, for as long as their flows are kept. Insert-only: a ring of four tables, each of which is truncated once its flows are forgotten.';
COMMENT ON TABLE weir.promotion IS 'The cursor of promotion; the newest row counts: every row of weir.later up to (due, due_id) that the snapshot could see has been promoted.';
COMMENT ON TABLE weir.queue IS 'Queues by name. lane = id << 39 | priority - 1; the bits between are 0. A name may have several ids: two transactions that use a new name at the same time create one row each instead of waiting for each other.';
COMMENT ON TABLE weir.queue_limit IS 'The limits of queues, which only those change who operate them: at most running attempts at a time; at most rate starts per interval, of which burst may start at once. NULL: unlimited.';
COMMENT ON TABLE weir.relay IS 'How far relays have come. Insert-only; the newest row of a relay counts, and the others are left out when it is compacted by TRUNCATE.';
COMMENT ON TABLE weir.release IS 'How many attempts of a gate a transaction has ended, written by that transaction. Insert-only: a ring of three tables, each of which is truncated once its rows are counted.';
COMMENT ON TABLE weir.report IS 'What attempts have reported while they ran. The newest row of a job counts, in the order of (claim, no); and the newest that has a checkpoint.';
COMMENT ON TABLE weir.reprieve IS 'Jobs that were retried after they were cancelled by a filter, or moved: cancellations with numbers from since to upto do not apply to this and later attempts. Insert-only, truncated when those cancellations are gone.';
COMMENT ON TABLE weir.request IS 'Requests to enqueue that came with a key of their own, to be answered alike when they are repeated within a day. Insert-only: a ring of two tables, each of which is truncated before its turn.';
COMMENT ON TABLE weir.result IS 'How attempts ended: one row for each flush, batch and outcome, in the segment of its batch.';
COMMENT ON TABLE weir.retry_rule IS 'What follows an attempt that failed with an error which the regular expression error matches, in a queue, of a kind; NULL: any. A backoff, limit or form that is NULL is the queue''s.';
COMMENT ON TABLE weir.revocation IS 'Users that were disconnected from all hubs. Their tokens from before at are refused until the time until; NULL: they are not. Only inserted into; what is over is deleted by later calls.';
COMMENT ON TABLE weir.ring IS 'The turns of a queue''s keys: a row for each claim from them, and the newest row of a queue is the whole state. Insert-only, and compacted by TRUNCATE.';
COMMENT ON TABLE weir.role_channel IS 'The channels and patterns that a role is restricted to at hubs; NULL: not restricted.';
COMMENT ON TABLE weir.schedule IS 'Schedules, which only those change who declare or operate them.';
COMMENT ON TABLE weir.seen IS 'What was done, or is being done, once in a flow: the job that the first claim has chosen, by weir.job.unique_key. Insert-only: a ring of four tables, each of which is truncated once its flows are forgotten.';
COMMENT ON TABLE weir.segment IS 'The history of segments, insert-only. A segment''s state is its event with the greatest number; at is used for ages, never for order.';
COMMENT ON TABLE weir.setting IS 'Settings, which operators change with weir.set; the cluster that this log belongs to; and the secret that seals the cursors of lists.';
COMMENT ON TABLE weir.settled IS 'Up to which number all of a worker''s batches have ended, except those listed in open. Insert-only; the row with the greatest no counts. The greatest possible no means that the worker is fenced and has no unfinished attempts.';
COMMENT ON TABLE weir.survey IS 'A summary of the lanes of queues with ids up to upto, for inspections; insert-only, and the newest row counts. Of the jobs that snapshot sees, all were claimed except those in the lanes in waiting. lanes, totals and claimed_at hold how many jobs were ever claimed from each lane, and when last.';
COMMENT ON TABLE weir.tick IS 'A batch of messages: those of the transactions that its snapshot sees and that of the previous tick did not. These are the transactions from from_xid up to the snapshot''s xmax that are not in progress in it, and those in late, which were in progress before.';
COMMENT ON TABLE weir.turn IS 'Where the keys of queues stand: a row for each turn, and the newest row of a lane is the key''s whole state. A key without a row has had no turn yet, or nothing that is left in the log. See functions/turn.sql.';
COMMENT ON TABLE weir.with_keys IS 'The names of queues that have had jobs with keys; insert-only. Transactions that do not see each other may each write a row. A snapshot that shows a job with a key shows a row of its queue.';
COMMENT ON TABLE weir.worker IS 'A row with fenced = false when a worker starts, another with fenced = true when it stops or is fenced. Never updated.';
COMMENT ON TYPE weir.failure_group IS 'Failed jobs of a kind whose errors have the same shape, and one of them: see weir.failure_groups.';
COMMENT ON TYPE weir.flow_info IS 'A flow and its progress, as weir.flow_info returns it.';
COMMENT ON TYPE weir.job_info IS 'A job, in the state of its newest attempt. error is why the last attempt ended; errors are those of the last attempts, oldest first: up to 25 from weir.job_info, one from a list.';
COMMENT ON TYPE weir.outcome IS 'How an attempt ended. completed, failed and cancelled are final; retried, snoozed, released (not started) and lost (its worker died) are followed by another row of the same job.';
COMMENT ON TYPE weir.schedule_info IS 'A schedule, as weir.schedules lists it.';
COMMENT ON VIEW weir.available_jobs IS 'All available jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.cancelled_jobs IS 'All cancelled jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.completed_jobs IS 'All completed jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.failed_jobs IS 'All failed jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.running_jobs IS 'All running jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.scheduled_jobs IS 'All scheduled jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';

GRANT EXECUTE ON ROUTINE weir._await_tick(bigint,bigint,pg_snapshot,integer,double precision,integer,boolean,bigint,integer) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir._beat(text,text,bigint,integer,integer,real,real) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._cancelled_among(bigint[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._claim(integer,text[],integer[],pg_snapshot,text[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._complete(integer,bigint,bigint,bigint,text,jsonb) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._count_minutes(timestamp with time zone) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._enqueue_json(jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[],text[],bigint[],text[]) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._enqueue_request(uuid,jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._enqueue_requests(uuid[],text[]) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._enqueue_unique_many(jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._epoch_of(bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir._fence(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._first_tick_after(timestamp with time zone) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir._fold_arrivals() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._fresh_queues(pg_snapshot,bigint,integer,double precision,integer) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._jobs_after(text,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir._keys_now(oid,text[]) TO weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir._login_secret() TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._logins() TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._never_used(text[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._promote(integer,timestamp with time zone,interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._publish_changes(text,text,text,text[],text[],jsonb[],jsonb[]) TO weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir._publish_drafts(text[],bytea[],boolean[],boolean) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._reconcile(integer,bigint[],bigint[],integer[],bigint[],bigint,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._record(integer,bigint[],bigint[],integer[],bigint[],text[],text[],text[],timestamp with time zone[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._relay_position(text) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir._relay_reached(text,text,bigint,text,text) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir._rescue() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._resurvey() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate_history() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate_later(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate_messages() TO weir_hub, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._settle(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._start(text,text[],interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._step_operations(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._tidy() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._watch(bigint,bigint,pg_snapshot,xid8,integer,double precision) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.add_tasks(bigint,jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.attend(integer,integer,inet,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.begin_operation(text,jsonb,text,text,integer) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.cancel(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.cancel_flow(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.cancel_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.checkpoint(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.chores() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.clear_limit(text,boolean) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.complete(integer,text,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.delete(bigint) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.delete_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text,integer,text,text,timestamp with time zone,timestamp with time zone) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.disconnect(text) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.drop_retry_rule(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.drop_schedule(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.enqueue(text,text,jsonb,integer,timestamp with time zone,integer,jsonb,text,bigint,text) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue_many(jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[],text[],bigint[],text[]) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue_unique(text,text,jsonb,text,text[],text,interval,boolean,boolean,integer,timestamp with time zone,integer,jsonb,text) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueued(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.failure_groups(text,text,timestamp with time zone,timestamp with time zone,integer,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.flow(text,jsonb,jsonb,timestamp with time zone,bigint,boolean) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.flow_info(bigint) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.flow_outputs(bigint,text,bigint,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.flow_running(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.flows(bigint,integer,bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.forget_relay(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.heartbeat(integer,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.history(text,timestamp with time zone,interval) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.hubs() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.increment(bigint,text,bigint) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.job_info(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.jobs(text,text,integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.jobs_page(text[],text,text[],jsonb,text,integer,text,bigint,text,timestamp with time zone,timestamp with time zone,text,timestamp with time zone,timestamp with time zone) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.keys_in_use() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.limits() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.move_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,integer,text,integer,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.newest_tick() TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.next_times(text,text,timestamp with time zone,integer) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.notify(text,text) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.notify_callers() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.operations(bigint,integer) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.pause(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.pause_schedule(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.progress(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.publish(text,text,boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.publish_bytes(text,bytea,boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.publish_many(text[],text[],boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.queues() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.read(bigint,bigint,integer,bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.rebase() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.rebase_messages() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.record(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.relays() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.restrict(text,text[],text[]) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.resume(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.resume_schedule(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.retry(bigint) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.retry_flow(bigint,text,integer) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.retry_rules() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.retry_where(text,text[],jsonb,integer,timestamp with time zone,timestamp with time zone,text,text[],text,integer,text,text,timestamp with time zone,timestamp with time zone) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.revocations() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.revoke(text,interval) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.run_schedule(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.schedules(text,text,integer) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.seal(bigint) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.set(text,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set(text,text,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set_checkpoint(integer,text,jsonb) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.set_limit(text,integer,double precision,interval,integer,boolean,boolean) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set_retry_rule(text,text,text,text,text,interval,interval,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set_schedule(text,text,text,text,jsonb,text,text,interval,integer,integer,jsonb,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set_weight(text,text,double precision) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.settings() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.start(text,text[],interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.stop(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.stop_operation(bigint,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.storage() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.take(integer,text[],integer[],text[],text[],boolean,interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.tasks(bigint,bigint,integer) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.ticks(bigint,bigint,integer,double precision,bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.unwatch_table(regclass,text) TO weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.watch_table(regclass,text,text[]) TO weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.watched_tables() TO weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.weights() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.workers() TO weir_operate;
GRANT SELECT ON weir.available_jobs TO weir_operate;
GRANT SELECT ON weir.cancelled_jobs TO weir_operate;
GRANT SELECT ON weir.completed_jobs TO weir_operate;
GRANT SELECT ON weir.failed_jobs TO weir_operate;
GRANT SELECT ON weir.running_jobs TO weir_operate;
GRANT SELECT ON weir.scheduled_jobs TO weir_operate;
GRANT USAGE ON SCHEMA weir TO weir_enqueue, weir_hub, weir_operate, weir_publish, weir_subscribe, weir_work;
