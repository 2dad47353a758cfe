-- Written by go test ./cmd/internal/proof -run Golden -update. Bodies of functions and views are left out.

CREATE TYPE weir.outcome AS ENUM ('completed', 'failed', 'cancelled', 'retried', 'snoozed', 'released', 'lost');

CREATE SEQUENCE weir.active_failure AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_job AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_later AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.active_message AS smallint MINVALUE 1 MAXVALUE 4;
CREATE SEQUENCE weir.batch_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.cancel_looked AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.carried AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.control AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.idle_looked AS integer MINVALUE 0 MAXVALUE 2147483647;
CREATE SEQUENCE weir.job_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.last_word_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.message_id AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.queue_id AS integer MINVALUE 1 MAXVALUE 500000000;
CREATE SEQUENCE weir.segment_no AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.tick_floor AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.tick_seq AS bigint MINVALUE 1 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.watched AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.watched_at AS bigint MINVALUE 0 MAXVALUE 9223372036854775807;
CREATE SEQUENCE weir.worker_id AS integer MINVALUE 1 MAXVALUE 2147483647;

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
  errors jsonb
);
CREATE TABLE weir.batch (
  lane integer NOT NULL,
  segment smallint NOT NULL,
  origin smallint NOT NULL,
  worker integer NOT NULL,
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
  ids bigint[] NOT NULL
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
  at timestamp with time zone NOT NULL DEFAULT now()
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
  errors jsonb
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
  errors jsonb
);
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
  errors jsonb
);
CREATE TABLE weir.failure (
  id bigint NOT NULL,
  segment smallint NOT NULL,
  lane integer NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer,
  enqueued_at timestamp with time zone,
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  worker integer,
  kind text,
  args jsonb,
  meta jsonb,
  error text,
  output text
) PARTITION BY LIST (segment);
CREATE TABLE weir.failure_1 PARTITION OF weir.failure FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_2 PARTITION OF weir.failure FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_3 PARTITION OF weir.failure FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE weir.failure_4 PARTITION OF weir.failure FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat (
  ring smallint NOT NULL,
  at timestamp with time zone NOT NULL,
  tick bigint,
  subscribers integer NOT NULL,
  hub text NOT NULL,
  address text NOT NULL
) PARTITION BY LIST (ring);
CREATE TABLE weir.hub_beat_0 PARTITION OF weir.hub_beat FOR VALUES IN ('0') WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat_1 PARTITION OF weir.hub_beat FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE weir.hub_beat_2 PARTITION OF weir.hub_beat FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE weir.job (
  id bigint NOT NULL,
  xid xid8 NOT NULL,
  enqueued_at timestamp with time zone NOT NULL,
  ready_at timestamp with time zone,
  lane integer NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  put_off integer NOT NULL DEFAULT 0,
  segment smallint NOT NULL,
  leads boolean NOT NULL DEFAULT true,
  kind text NOT NULL,
  args jsonb NOT NULL,
  meta jsonb,
  seq bigint
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
  errors jsonb
);
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
  lane integer NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  put_off integer NOT NULL DEFAULT 0,
  segment smallint NOT NULL,
  kind text NOT NULL,
  args jsonb NOT NULL,
  meta jsonb
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
  created_at timestamp with time zone NOT NULL DEFAULT now()
);
CREATE TABLE weir.result (
  lane integer NOT NULL,
  segment smallint NOT NULL,
  worker integer NOT NULL,
  seq bigint NOT NULL,
  finished_at timestamp with time zone NOT NULL,
  outcome weir.outcome NOT NULL,
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
  errors jsonb
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
  errors jsonb
);
CREATE TABLE weir.segment (
  no bigint NOT NULL DEFAULT nextval('weir.segment_no'::regclass),
  log text NOT NULL,
  segment smallint NOT NULL,
  event text NOT NULL,
  at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
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
  waiting integer[] NOT NULL,
  lanes integer[] NOT NULL,
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
ALTER TABLE weir.last_word_0 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word_1 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word_2 ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.last_word ADD CHECK ((says = ANY (ARRAY['beats'::text, 'attends'::text, 'missed'::text])));
ALTER TABLE weir.migration ADD PRIMARY KEY (version);
ALTER TABLE weir.promotion ADD PRIMARY KEY (seq);
ALTER TABLE weir.queue ADD PRIMARY KEY (id);
ALTER TABLE weir.role_channel ADD PRIMARY KEY (role);
ALTER TABLE weir.segment ADD CHECK ((event = ANY (ARRAY['opened'::text, 'closed'::text, 'reclaimed'::text])));
ALTER TABLE weir.segment ADD CHECK ((log = ANY (ARRAY['job'::text, 'later'::text, 'failure'::text, 'message'::text])));
ALTER TABLE weir.segment ADD PRIMARY KEY (no);
ALTER TABLE weir.setting ADD PRIMARY KEY (name);
ALTER TABLE weir.settled ADD PRIMARY KEY (worker, no);
ALTER TABLE weir.survey ADD PRIMARY KEY (no);
ALTER TABLE weir.tick ADD PRIMARY KEY (seq, segment);
ALTER TABLE weir.worker ADD PRIMARY KEY (id, fenced);

CREATE INDEX batch_worker ON ONLY weir.batch USING btree (worker, no);
CREATE INDEX failure_by_id ON ONLY weir.failure USING btree (id, attempt);
CREATE INDEX failure_ended ON ONLY weir.failure USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX job_by_id ON ONLY weir.job USING btree (id, attempt, put_off);
CREATE INDEX job_lane ON ONLY weir.job USING btree (lane, xid, id);
CREATE INDEX job_lead ON ONLY weir.job USING btree (xid) WHERE leads;
CREATE INDEX last_word_worker ON ONLY weir.last_word USING btree (worker, no);
CREATE INDEX later_by_id ON ONLY weir.later USING btree (id, attempt, put_off);
CREATE INDEX later_due ON ONLY weir.later USING btree (run_at, id);
CREATE INDEX later_lane ON ONLY weir.later USING btree (lane, run_at, id);
CREATE INDEX later_xid ON ONLY weir.later USING btree (xid);
CREATE INDEX message_xid ON ONLY weir.message USING btree (xid, id);
CREATE INDEX queue_name ON weir.queue USING btree (name, id);
CREATE INDEX result_batch ON ONLY weir.result USING btree (lane, seq);
CREATE INDEX result_cancelled ON ONLY weir.result USING btree (finished_at) WHERE (outcome = 'cancelled'::weir.outcome);

CREATE FUNCTION weir._as_committed(snapshot pg_snapshot, xid xid8) RETURNS pg_snapshot LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._attending() RETURNS SETOF integer LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._await_tick(after bigint, ids bigint DEFAULT NULL::bigint, seen pg_snapshot DEFAULT NULL::pg_snapshot, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, patience integer DEFAULT 0, cuts boolean DEFAULT true, epoch bigint DEFAULT NULL::bigint, most_messages integer DEFAULT 0, OUT seqs bigint[], OUT ats timestamp with time zone[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[], OUT ids_now bigint, OUT seen_now pg_snapshot, OUT message_ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off;
CREATE FUNCTION weir._batch_of(lane integer, segment integer, xid xid8, id bigint) RETURNS SETOF weir.batch LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._batches_after(worker integer, after bigint, max_batches integer) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashagg=off SET jit=off;
CREATE FUNCTION weir._beat_if_due(worker integer, lease interval, running integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._beat(hub text, address text, tick bigint, subscribers integer) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._being_completed() RETURNS integer[] LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._cancelled_among(ids bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._carry_states(segment integer, active integer, lanes integer[]) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off;
CREATE FUNCTION weir._carry_unfinished(segment integer, active integer, waiting integer[], lanes integer[], newest bigint[], b_lanes integer[], b_seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off;
CREATE FUNCTION weir._carry_waiting(segment integer, active integer, lanes integer[], max_jobs integer, max_bytes bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._check_array(caller text, name text, given anyarray, is_filled boolean DEFAULT false) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_cluster() RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_isolation(caller text) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_job(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb) RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_message_cluster() RETURNS void LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_message(channel text, bytes integer) RETURNS void LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._check_position(tick bigint, epoch bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off;
CREATE FUNCTION weir._check_worker(worker integer) RETURNS text[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off;
CREATE FUNCTION weir._claim(worker integer, queues text[], limits integer[], since pg_snapshot DEFAULT NULL::pg_snapshot, backlog text[] DEFAULT NULL::text[]) RETURNS TABLE(queue text, lane integer, seq bigint, id bigint, attempt integer, max_attempts integer, kind text, args jsonb, meta jsonb, enqueued_at timestamp with time zone, cancelled boolean, put_off integer, ready_at timestamp with time zone) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._commit_synchronously() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._complete(worker integer, lane integer, seq bigint, id bigint) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off;
CREATE FUNCTION weir._cut(most_messages integer DEFAULT 0, own_count integer DEFAULT 0, own_size bigint DEFAULT 0, own_segment integer DEFAULT NULL::integer, OUT seq bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamp with time zone, OUT count integer, OUT size bigint, OUT last_id bigint, OUT snapshot pg_snapshot, OUT whole boolean, OUT ids bigint[], OUT xids bigint[], OUT channels text[], OUT payloads bytea[], OUT binaries boolean[], OUT keeps boolean[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._depths_later() RETURNS TABLE(lane integer, scheduled bigint, is_estimate boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._depths_running() RETURNS TABLE(lane integer, running bigint, is_estimate boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._depths(lanes integer[]) RETURNS TABLE(lane integer, waiting bigint, is_estimate boolean, ready_at timestamp with time zone) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._draw_epoch(tick bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._end_attempts(worker integer, lanes integer[], seqs bigint[], segments smallint[], ids bigint[], outcomes weir.outcome[], errors text[], outputs text[], run_at timestamp with time zone[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off;
CREATE FUNCTION weir._end_of(attempt weir.job, OUT claimed_at timestamp with time zone, OUT worker integer, OUT outcome weir.outcome, OUT finished_at timestamp with time zone, OUT error text, OUT output text) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._ended_since(since pg_snapshot, snapshot pg_snapshot) RETURNS TABLE(low xid8, high xid8) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._epoch_here() RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._epoch_home() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._epoch_of(tick bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._fence_silent() RETURNS TABLE(worker integer, reason text, more boolean, error text) LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._fence(worker integer, reason text DEFAULT 'its worker was fenced'::text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._first_look() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._forget_ended() RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._forget_workers() RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._fresh_between(running xid8[], top xid8, OUT known boolean[], OUT lanes integer[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._fresh_lanes(since pg_snapshot, snapshot pg_snapshot, max_rows integer DEFAULT 200) RETURNS integer[] LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._fresh_queues(seen pg_snapshot DEFAULT NULL::pg_snapshot, jobs bigint DEFAULT NULL::bigint, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, patience integer DEFAULT 0, OUT names text[], OUT counts integer[], OUT seen_now pg_snapshot, OUT jobs_now bigint) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._held(class integer, mode text) RETURNS SETOF integer LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._hold_briefly() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._hold_ends(worker integer) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._hold_segments(worker integer, lanes integer[], seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off;
CREATE FUNCTION weir._holders() RETURNS integer[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._holds(worker integer) RETURNS TABLE(no bigint, lane integer, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._in_hand(workers integer[], upto bigint, most integer) RETURNS TABLE(no bigint, lane integer, ids bigint[], is_last boolean) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off;
CREATE FUNCTION weir._in_progress(OUT running xid8[], OUT top xid8) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._is_crowded() RETURNS boolean LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._is_held(tables regclass[]) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._is_token(token text) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._jobs_on(segment smallint, page bigint) RETURNS TABLE(lane integer, xid xid8, id bigint) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_indexscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._jsonb_of(given text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._keep_failures(worker integer, lanes integer[], seqs bigint[], segments smallint[], ids bigint[], errors text[], outputs text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off;
CREATE FUNCTION weir._kept_failure(job_id bigint, after integer) RETURNS SETOF weir.failure LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET jit=off;
CREATE FUNCTION weir._last_reclaimed() RETURNS bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_sort=off;
CREATE FUNCTION weir._last_says(worker integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._later_on(segment smallint, page bigint) RETURNS TABLE(lane integer, run_at timestamp with time zone, id bigint) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_indexscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._lock_log() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._login_secret(OUT secret text, OUT iterations integer) RETURNS record LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._logins() RETURNS TABLE(name text, verifier text, listens text[], notifies text[]) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._named_by(tokens text[], OUT lanes integer[], OUT seqs bigint[], OUT ids bigint[]) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._next_available(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off;
CREATE FUNCTION weir._next_cancelled(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._next_completed(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._next_failed(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001;
CREATE FUNCTION weir._next_later(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET cursor_tuple_fraction=0.001;
CREATE FUNCTION weir._next_running(lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._next_try(backoff interval, backoff_limit interval, tries integer) RETURNS timestamp with time zone LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._next(state text, lanes integer[], after jsonb, most integer) RETURNS TABLE(id bigint, ended_at timestamp with time zone, key jsonb, cost integer) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._note_word(worker integer, says text, running integer) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._pause_among(queues text[]) RETURNS double precision LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._prepared_for(worker integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._promote(max_rows integer DEFAULT 2000, upto timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT promoted integer, OUT next_due timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._publish_drafts(channels text[], payloads bytea[], binaries boolean[], cuts boolean DEFAULT false, OUT tick bigint, OUT epoch bigint, OUT prior bigint, OUT at timestamp with time zone) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._queue_id(name text) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir._read_job(job_id bigint, ends integer) RETURNS SETOF weir.job_info LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._read_page(states text[], queue text, kinds text[], meta jsonb, after text, most integer, OUT jobs weir.job_info[], OUT next text) RETURNS record LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._read_queues() RETURNS TABLE(name text, paused_at timestamp with time zone, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamp with time zone, claimed bigint, last_claim timestamp with time zone, workers bigint) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._reclaim_messages(segment integer, retention interval) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET lock_timeout=10ms;
CREATE FUNCTION weir._reclaim(segment integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET work_mem=64MB SET lock_timeout=50ms;
CREATE FUNCTION weir._reconcile(worker integer, lanes integer[], seqs bigint[], sizes integer[], ids bigint[], after bigint DEFAULT 0, OUT released integer, OUT next bigint) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off;
CREATE FUNCTION weir._record(worker integer, lanes integer[], seqs bigint[], sizes integer[], ids bigint[], outcomes text[] DEFAULT NULL::text[], errors text[] DEFAULT NULL::text[], outputs text[] DEFAULT NULL::text[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[]) RETURNS TABLE(place integer, refusal text, detail text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_mergejoin=off SET enable_hashjoin=off SET jit=off SET lock_timeout=5s;
CREATE FUNCTION weir._relog(worker integer, outcome weir.outcome, reason text, lanes integer[], seqs bigint[], sizes integer[], ids bigint[], after bigint, OUT relogged integer, OUT next bigint, OUT jobs bigint[]) RETURNS record LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET jit=off;
CREATE FUNCTION weir._rescue() RETURNS TABLE(worker integer, reason text, relogged integer, more boolean, error text, jobs bigint[]) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._results_in(segment integer, before_place bigint, before_id bigint, most integer) RETURNS TABLE(place bigint, id bigint, finished_at timestamp with time zone, is_end boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._results_of(lane integer, before_seq bigint, before_id bigint, most integer) RETURNS TABLE(place bigint, id bigint, finished_at timestamp with time zone, is_end boolean) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._resurvey() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._rotate() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._rotate_failures() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._rotate_later(segment_bytes bigint DEFAULT 67108864) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms;
CREATE FUNCTION weir._rotate_messages() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._seal(states text[], queue text, kinds text[], meta jsonb, at jsonb) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._segment_bytes(segment integer) RETURNS bigint LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._segment_state(log text, segment integer) RETURNS text LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._set_twins_aside() RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._settle(worker integer, OUT relogged integer, OUT more boolean, OUT jobs bigint[]) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off;
CREATE FUNCTION weir._spans(from_xid xid8, snapshot pg_snapshot) RETURNS TABLE(low xid8, high xid8) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._start(name text, queues text[], lease interval DEFAULT '00:00:30'::interval) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._surveyed(max_rows integer DEFAULT 10000) RETURNS weir.survey LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off;
CREATE FUNCTION weir._tidy() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=50ms;
CREATE FUNCTION weir._times_reclaimed(segment integer) RETURNS bigint LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._unattended() RETURNS TABLE(id integer, name text, lease interval, no bigint, says text, watched bigint, running integer) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._unclaimed(segment integer, lanes integer[], max_rows integer DEFAULT NULL::integer) RETURNS SETOF weir.job LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._unfinished_in(worker integer, after bigint, upto bigint) RETURNS TABLE(no bigint, lane integer, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off;
CREATE FUNCTION weir._unfinished(worker integer, nos bigint[]) RETURNS TABLE(no bigint, lane integer, seq bigint, segment smallint, claimed_at timestamp with time zone, ids bigint[]) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off SET jit=off;
CREATE FUNCTION weir._waiting(lane integer, running xid8[], top xid8, after_xid xid8, after_id bigint, most integer, upto_xid xid8 DEFAULT '18446744073709551615'::xid8, upto_id bigint DEFAULT '9223372036854775807'::bigint) RETURNS TABLE(xid xid8, id bigint, ready_at timestamp with time zone, segment smallint, place tid) LANGUAGE plpgsql STABLE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off;
CREATE FUNCTION weir._was_ahead(c weir.promotion, run_at timestamp with time zone, id bigint, xid xid8) RETURNS boolean LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._watch(jobs bigint, control bigint, seen pg_snapshot, upto xid8, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, OUT jobs_now bigint, OUT control_now bigint, OUT seen_now pg_snapshot, OUT upto_now xid8, OUT ended boolean) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._wrong_with(given jsonb) RETURNS text LANGUAGE sql IMMUTABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.attend(worker integer, pid integer, address inet, port integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=5s;
CREATE FUNCTION weir.cancel(job_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE PROCEDURE weir.chores() LANGUAGE plpgsql VOLATILE;
CREATE FUNCTION weir.complete(worker integer, token text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.enqueue_many(jobs jsonb) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.enqueue_many(queue text[], kind text[], args jsonb[] DEFAULT NULL::jsonb[], priority integer[] DEFAULT NULL::integer[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], max_attempts integer[] DEFAULT NULL::integer[], meta jsonb[] DEFAULT NULL::jsonb[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.enqueued(max_rows integer DEFAULT 1000) RETURNS SETOF weir.job_info LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir.enqueue(queue text, kind text, args jsonb DEFAULT '{}'::jsonb, priority integer DEFAULT 2, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT 25, meta jsonb DEFAULT NULL::jsonb) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.heartbeat(worker integer, running integer DEFAULT 0, OUT fenced boolean, OUT workers integer, OUT sharing integer) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s SET jit=off;
CREATE FUNCTION weir.hubs() RETURNS TABLE(hub text, address text, seen_at timestamp with time zone, tick bigint, behind bigint, subscribers integer) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.job_info(job_id bigint) RETURNS SETOF weir.job_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.jobs_page(states text[] DEFAULT NULL::text[], queue text DEFAULT NULL::text, kinds text[] DEFAULT NULL::text[], meta jsonb DEFAULT NULL::jsonb, after text DEFAULT NULL::text, max_rows integer DEFAULT 100, OUT jobs jsonb, OUT next text) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.jobs(state text, queue text DEFAULT NULL::text, max_rows integer DEFAULT 100) RETURNS SETOF weir.job_info LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.newest_tick() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.notify_callers() RETURNS TABLE(kind text, name text, calls text) LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.notify(channel text, payload text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.pause(queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.publish_bytes(channel text, payload bytea, keep boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.publish_many(channels text[], payloads text[], keep boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.publish(channel text, payload text DEFAULT ''::text, keep boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
CREATE FUNCTION weir.queues() RETURNS TABLE(name text, paused_at timestamp with time zone, available bigint, running bigint, scheduled bigint, approximate boolean, ready_since timestamp with time zone, claimed bigint, last_claim timestamp with time zone, workers bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.read(tick bigint, after_id bigint DEFAULT 0, max_rows integer DEFAULT 10000, epoch bigint DEFAULT NULL::bigint) RETURNS TABLE(id bigint, xid xid8, channel text, payload bytea, is_binary boolean, keep boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir.rebase() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=10s SET work_mem=256MB SET maintenance_work_mem=256MB SET enable_mergejoin=off SET enable_nestloop=off;
CREATE FUNCTION weir.rebase_messages() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET lock_timeout=10s;
CREATE FUNCTION weir.record(worker integer, ends text) RETURNS TABLE(token text, refusal text, detail text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.restrict(role text, listens text[] DEFAULT NULL::text[], notifies text[] DEFAULT NULL::text[]) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.resume(queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.retry(job_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.set(name text, value text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.set(queue text, name text, value text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.settings() RETURNS TABLE(queue text, name text, value text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.start(name text, queues text[], lease interval DEFAULT NULL::interval) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.stop(worker integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.take(worker integer, queues text[] DEFAULT NULL::text[], limits integer[] DEFAULT NULL::integer[], kinds text[] DEFAULT NULL::text[], held text[] DEFAULT NULL::text[], lost boolean DEFAULT NULL::boolean, wait interval DEFAULT NULL::interval) RETURNS TABLE(event text, token text, id bigint, queue text, priority integer, kind text, args jsonb, meta jsonb, attempt integer, max_attempts integer, enqueued_at timestamp with time zone) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.ticks(after bigint, ids bigint DEFAULT NULL::bigint, polls integer DEFAULT 1, pause double precision DEFAULT 0.003, epoch bigint DEFAULT NULL::bigint, OUT seqs bigint[], OUT ats timestamp with time zone[], OUT counts integer[], OUT sizes bigint[], OUT epochs bigint[], OUT ids_now bigint, OUT seen_now pg_snapshot) RETURNS record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir.workers() RETURNS TABLE(id integer, name text, queues text[], state text, started_at timestamp with time zone, seen_at timestamp with time zone, running integer, reason text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;

COMMENT ON COLUMN weir.batch.from_xid IS 'The smallest xid of its jobs. With to_xid, the greatest, it bounds the search for a job of the batch.';
COMMENT ON COLUMN weir.batch.no IS 'A value of weir.batch_no. The attempts that a worker holds are found by (worker, no).';
COMMENT ON COLUMN weir.batch.origin IS 'The segment it was written in. It distinguishes the rows of one batch after reclaiming has carried them into one segment.';
COMMENT ON COLUMN weir.batch.pending IS 'Transactions that were in progress below the position; pending_after holds the last id already claimed of each.';
COMMENT ON COLUMN weir.epoch.epoch IS 'A random number of 48 bits.';
COMMENT ON COLUMN weir.epoch.started_at IS 'The start time of the server. home is its timeline and the file of this table, which differs in a copy on the same server. While both are unchanged, the epoch continues. They are only compared for equality.';
COMMENT ON COLUMN weir.failure.finished_at IS 'NULL: not a failure, but a note that the job was retried manually, as this attempt.';
COMMENT ON COLUMN weir.job.leads IS 'False if the row logged before it, in the same transaction and segment, has the same lane: the rows where it is true show in which lanes a transaction has logged.';
COMMENT ON COLUMN weir.job.put_off IS 'How often this attempt was snoozed or released before: (id, attempt, put_off) identifies a row, and the rows of a job are ordered by it.';
COMMENT ON COLUMN weir.job.ready_at IS 'When the job became ready to be claimed, if that is not when it was enqueued: it was scheduled, retried, snoozed or released.';
COMMENT ON COLUMN weir.job.seq IS 'The batch of an attempt that ended before a rebase, which keeps results but no batches; NULL for all others.';
COMMENT ON COLUMN weir.message.keep IS 'True: deliver the message even if its transaction has already published the same one.';
COMMENT ON COLUMN weir.promotion.ahead_due IS 'Earlier cursors that reach further in time, with ahead_id and ahead_snapshot: the rows that their snapshots could see are promoted. NULL except after the clock stepped back, or while very many late jobs are being promoted.';
COMMENT ON COLUMN weir.queue.aside IS 'True for a twin (another row with the same name) without jobs: claims skip it. If a job is added to it after all, weir._set_twins_aside makes claims include it again.';
COMMENT ON COLUMN weir.queue.backoff IS 'The delay between the first failure of a job and the next attempt. It doubles with each further failure, up to backoff_limit: see weir._next_try.';
COMMENT ON COLUMN weir.survey.batches IS 'The value of weir.batch_no at the time: it bounds how many batches may have been claimed since.';
COMMENT ON COLUMN weir.survey.reclaimed IS 'The number of the last event by which a segment of jobs was reclaimed. After another such event the survey is invalid.';
COMMENT ON COLUMN weir.tick.bytes IS 'The size of its payloads. A tick of more than 10000 messages, or of more than 8 MB, contains a single transaction.';
COMMENT ON COLUMN weir.tick.last_id IS 'The last message id that had been assigned before the snapshot was taken.';
COMMENT ON COLUMN weir.tick.segments IS 'A bit mask of the segments that contain its messages: bit (1 << segment).';
COMMENT ON ROUTINE weir._as_committed(pg_snapshot,xid8) IS 'A transaction''s own snapshot, as if that transaction had committed, and no other since. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._attending() IS 'The workers whose attendance lock is held by a session.';
COMMENT ON ROUTINE weir._await_tick(bigint,bigint,pg_snapshot,integer,double precision,integer,boolean,bigint,integer) IS 'Returns the ticks after a given one, up to 100; if there are none and cuts is true, cuts the next. The messages of a tick that it has cut are returned with it, if there are at most most_messages, of at most 256 kB. If epoch, the epoch of the given tick, is passed, a position that was lost when the log was set back is refused. It polls up to polls times, every pause seconds. ids and seen are ids_now and seen_now of an earlier call: while nothing has been published or committed since then, it reads only counters. From poll patience + 1 on, a commit without messages counts too. Errors: WR003 (see rebase_messages), WR004 (not in READ COMMITTED autocommit), WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (see _check_position; not checked again while nothing changes), 22023, 25006 (cuts on a standby), 55000 (the transaction is old: try again). Locks: advisory step 4 (tried). Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._batch_of(integer,integer,xid8,bigint) IS 'The batch that claimed a job of one segment, found by bisection.';
COMMENT ON ROUTINE weir._batches_after(integer,bigint,integer) IS 'The numbers of a worker''s next batches, in order: up to max_batches, but only as many as have about 2,000 jobs together; NULL: all.';
COMMENT ON ROUTINE weir._beat(text,text,bigint,integer) IS 'A hub''s heartbeat, with the newest tick that it has dispatched; NULL means that the hub stops. Errors: 22023. Locks: none that others wait for. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir._beat_if_due(integer,interval,integer) IS 'Renews a worker''s lease if it does not attend, and a third of the lease has passed since its last word by weir.watched or a rescuer has missed it. Reports whether it is time to compare what the worker holds: when the lease was renewed, or, for a worker that attends, when a batch that was claimed a third of the lease ago has not been compared since. Locks: see heartbeat.';
COMMENT ON ROUTINE weir._being_completed() IS 'Hashes of the ids of jobs that are being completed in open transactions, including prepared ones.';
COMMENT ON ROUTINE weir._cancelled_among(bigint[]) IS 'The ids whose jobs were cancelled: a worker calls it for its running jobs when weir.control has changed.';
COMMENT ON ROUTINE weir._carry_states(integer,integer,integer[]) IS 'Repeats the states of idle lanes, whose newest batch is in a closed segment, in the active one: as batches without jobs and without a worker. A concurrent claim may write a newer state first, which does no harm.';
COMMENT ON ROUTINE weir._carry_unfinished(integer,integer,integer[],integer[],bigint[],integer[],bigint[]) IS 'Carries everything unfinished from a segment, which the caller has locked exclusively, into the active one: the unclaimed jobs of the lanes in waiting; the unfinished jobs of the batches in b_lanes and b_seqs, and of each lane''s batches from newest on; and the state of a lane, if no batch elsewhere holds it.';
COMMENT ON ROUTINE weir._carry_waiting(integer,integer,integer[],integer,bigint) IS 'Carries jobs that wait to be claimed into the active segment: about max_jobs or max_bytes, from at most 200 lanes. Returns how many bytes. Each job is copied with its xid and id and deleted, in one transaction and under its lane''s lock: so a claim sees it exactly once, in its place. Locks: advisory: the lanes (exclusive, tried).';
COMMENT ON ROUTINE weir._check_array(text,text,anyarray,boolean) IS 'Raises 22023 unless an array is a list: of one dimension that begins at 1, and without nulls if is_filled. Parallel arrays are matched by index, so an array of another shape would be misread. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_cluster() IS 'Raises WR003 if the log comes from another cluster. Functions that compare transaction ids call it first, every time: behind a pooler a session survives a move to another cluster, and the new counter may have passed the old positions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_isolation(text) IS 'Raises WR004 unless the transaction is READ COMMITTED, because the caller relies on a new snapshot for each statement.';
COMMENT ON ROUTINE weir._check_job(text,text,jsonb,integer,integer,jsonb) IS 'Raises 22023 with the offending value if a job is not valid. The sizes of args and meta are those of their texts, which workers receive: a column of another table may hold 50 MB in a few compressed bytes, and 1e100000 takes 12. Callers may skip the check of sizes for values of at most 2000 bytes, whose texts never exceed 16 MB. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message(text,integer) IS 'Raises 22023 with the offending value if a message is not valid, and WR004 if its transaction has already cut a tick of its own. Up to 8000 bytes are always allowed, so small payloads don''t need a query for the setting message_bytes. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message_cluster() IS 'Raises WR003 if the log of messages comes from another cluster. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_position(bigint,bigint) IS 'Refuses a tick that does not belong to this log: it is ahead of the log, or its number has another epoch here. A standby may lag behind, so it accepts ticks that are ahead. Errors: WR006 (the detail is epoch.tick of the last tick to continue from). Locks: none that others wait for. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._check_worker(integer) IS 'Returns the queues of a worker; raises WR001 unless it was started and is not fenced. The caller holds the worker''s lock.';
COMMENT ON ROUTINE weir._claim(integer,text[],integer[],pg_snapshot,text[]) IS 'Claims the next jobs of the named queues for a worker: up to limits[i] of queues[i] (at most 960 of a lane in one call), priority by priority, each attempt in exactly one batch. put_off is how often this attempt was snoozed or released before; ready_at is when the job became ready, if that is not enqueued_at. A job returned as cancelled must not be run, but recorded as cancelled. A paused or unknown queue returns no jobs. since is a hint for workers of very many queues: of queues that are not in backlog, only jobs of transactions that ended after that snapshot are considered; NULL: all. Errors: WR001 (the worker is unknown or fenced), WR003 (positions are ahead of the cluster), WR004 (not in READ COMMITTED autocommit), 22023, 55000 (the transaction is old: try again). Locks: advisory: claims (shared), the worker''s claims (exclusive), each lane with jobs (exclusive, to the end of the call). Isolation: READ COMMITTED, in autocommit. Commits asynchronously.';
COMMENT ON ROUTINE weir._commit_synchronously() IS 'Makes the transaction survive a crash once its commit is acknowledged, even if synchronous_commit is off for the role.';
COMMENT ON ROUTINE weir._complete(integer,integer,bigint,bigint) IS 'Records one attempt as completed in the caller''s transaction: its effects and the completion commit together. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended), WR004. Locks, to the end of the transaction: advisory: the worker''s open completions and the segment (shared), the attempt (exclusive); ROW EXCLUSIVE on the segment''s results. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._cut(integer,integer,bigint,integer) IS 'Cuts the next tick from messages that were committed since the last one, and describes it; everything is NULL if there were none. whole is true if it contains everything that was committed before its snapshot. If it has at most most_messages messages of at most 256 kB together, they are returned with it. Messages that this transaction has published itself, own_count of own_size bytes in the segment own_segment, count as committed, because they commit with the tick; after that, the transaction can neither publish nor cut (WR004). The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._depths(integer[]) IS 'How many jobs of each lane wait to be claimed, including cancelled ones, and since when the first of them have waited; lanes without waiting jobs are left out. Up to 10,000 jobs of a lane and about 20,000 of all lanes are counted; above that, the number is an estimate from a sample of pages. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._depths_later() IS 'How many jobs of each lane are scheduled, including cancelled ones: if there are more than 10,000, an estimate from a sample of pages for lanes with 100 or more. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._depths_running() IS 'How many jobs of each lane are running: an estimate if workers have claimed so many batches since they were last settled that only the newest are read. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._draw_epoch(bigint) IS 'Starts an epoch with a tick, and deletes the epochs that are neither among the newest 1000 nor have a tick that can still be read. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';
COMMENT ON ROUTINE weir._end_attempts(integer,integer[],bigint[],smallint[],bigint[],weir.outcome[],text[],text[],timestamp with time zone[]) IS 'Writes how attempts ended, and logs those that follow. retried and lost become failed if no attempts are left; run_at -infinity means the queue''s backoff. The caller has checked that the attempts have not ended, and holds the locks that keep it so.';
COMMENT ON ROUTINE weir._end_of(weir.job) IS 'When and by which worker a row of the log was claimed, and how that attempt ended. All NULL: it was not claimed; outcome NULL: it is running.';
COMMENT ON ROUTINE weir._ended_since(pg_snapshot,pg_snapshot) IS 'The ranges (low included, high not) of transactions that the second snapshot sees as ended and the first did not. They exclude the 64 oldest transactions in progress, so that a scan skips the rows of those: large transactions are old. The last range may include younger ones, whose rows nobody sees.';
COMMENT ON ROUTINE weir._epoch_here() IS 'The newest epoch, if it was drawn here, on this timeline, and since this server started; NULL: the next tick starts a new one. Call it before every cut, because a session behind a pooler survives a move. The caller holds advisory step 4. Errors: WR003 (the log comes from another cluster). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._epoch_home() IS 'The place where ticks are cut: the timeline, and the file of the table, which differs between copies on one server. Errors: none on a primary. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._epoch_of(bigint) IS 'The epoch of a tick, also after the tick was truncated; NULL before the first epoch. Epoch and tick together identify a tick across all logs. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._fence(integer,text) IS 'Ends a worker: after the commit it can neither claim nor record. _settle then releases its unfinished attempts; the rescuer calls it too. Returns false, and does nothing, while a transaction of the worker is claiming or recording. Errors: WR001 (the worker is unknown), WR004. Locks: advisory: the worker and its claims (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._fence_silent() IS 'Fences workers that were silent past their lease, and workers that have attended since this server started and whose lock has been free for 3 seconds. Silence is measured by weir.watched, which this function advances, and counts from the first check since this server started at the earliest. After a crash or a failover weir.attendance has no trace of attending workers: then their lease counts, from when they were missed. Returns the workers that it fenced or missed; more is false for those to check again in half a second; error is why a worker could not be fenced, for example that a prepared transaction holds it; the others are fenced all the same. The caller holds advisory step 6. Locks: advisory: their last words (exclusive, tried); see _fence. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._first_look() IS 'The value of weir.watched at the first check for unattended workers since this server started, or its present value if there was none yet: no lease counts from before it. 0 on a standby, where no worker is fenced.';
COMMENT ON ROUTINE weir._forget_ended() IS 'Removes pending transactions that have ended and left no jobs from the state of idle lanes, by writing a batch without jobs and without a worker: otherwise each claim would search for their rows again. Checks 500 queues in a call, locks at most 200 lanes, and stops after 0.1 s. Returns the number of lanes. Errors: WR003. Locks: advisory: claims (shared, tried), the lanes (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._forget_workers() IS 'Deletes ended workers that have no unfinished attempts, except the newest thousand of the last day, so that heartbeats read about as many rows as workers are alive. Their results are still refused, because they are unknown then. Returns how many.';
COMMENT ON ROUTINE weir._fresh_between(xid8[],xid8) IS 'The lanes that have rows of transactions between those in progress, in one query for all lanes: known[i] is true if at most four lanes have any between the i-th and the next transaction in progress, and lanes are the lanes of all such ranges. It covers the 256 oldest ranges, with the index on rows that lead, as _fresh_lanes does.';
COMMENT ON ROUTINE weir._fresh_lanes(pg_snapshot,pg_snapshot,integer) IS 'The lanes with jobs of transactions that the second snapshot sees as ended and the first did not; NULL if more than max_rows rows would have to be read. The cost depends on how many jobs are new, not on how many lanes exist.';
COMMENT ON ROUTINE weir._fresh_queues(pg_snapshot,bigint,integer,double precision,integer) IS 'The queues for which jobs were committed since seen, and how many (from 100 on possibly fewer than there are). seen_now and jobs_now are to be passed to the next call; without seen, the call only returns where to start. It polls up to polls times, every pause seconds; while no job is logged and nothing is committed, it reads only counters. From poll patience + 1 on, it also returns after a commit without jobs. Errors: 22023. Locks: none. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._held(integer,text) IS 'The second keys of the advisory locks of a class that are held in this database in a mode: by sessions, open transactions and prepared transactions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._hold_briefly() IS 'For functions that take locks that others wait for, and are called in autocommit: if the transaction is left open, the server ends the session, and thereby releases the locks, once it has been idle for 10 seconds.';
COMMENT ON ROUTINE weir._hold_ends(integer) IS 'Prevents other transactions from ending attempts of the worker, to the end of this one, except those returned: hashes of the ids of jobs that are being completed in open transactions. Locks: advisory: the worker''s ends (exclusive), its open completions (exclusive, tried).';
COMMENT ON ROUTINE weir._hold_segments(integer,integer[],bigint[]) IS 'Prevents a worker''s batches from being carried into other segments, to the end of the transaction. A result is written to the segment of its batch: that segment''s lock, shared, keeps it from being reclaimed. The batches are looked up again under the lock, because they may have been carried before it was held.';
COMMENT ON ROUTINE weir._holders() IS 'The workers that may hold jobs: all except those that have ended and hold nothing.';
COMMENT ON ROUTINE weir._holds(integer) IS 'The attempts that a worker holds: its batches with jobs that have no result, and these jobs. It reads what the worker has claimed since it was last settled.';
COMMENT ON ROUTINE weir._in_hand(integer[],bigint,integer) IS 'What some workers hold: their batches up to a number that have jobs without a result, and these jobs. It reads, of each worker, the batches that were open when it was last settled, and up to most of the newest claimed since: is_last marks the oldest one read, if there may be older ones.';
COMMENT ON ROUTINE weir._in_progress() IS 'The transactions in progress, in order, and the first xid from which on no transaction has ended: readers skip their rows. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._is_crowded() IS 'Reports whether the server, this database or a role has hardly any connection left, so that a worker that lost its connection may not get a new one.';
COMMENT ON ROUTINE weir._is_held(regclass[]) IS 'Reports whether a transaction of another session holds a lock on one of the tables, in any mode, and keeps it for a tenth of a second. Requesting ACCESS EXCLUSIVE would then block later sessions, and fail.';
COMMENT ON ROUTINE weir._is_token(text) IS 'Reports whether a text has the form of a token. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._jobs_on(smallint,bigint) IS 'The jobs on one page of a segment.';
COMMENT ON ROUTINE weir._jsonb_of(text) IS 'Parses a JSON text, with U+FFFD for escaped characters that PostgreSQL can''t store, which occur in error messages. Errors: 22P02. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._keep_failures(integer,integer[],bigint[],smallint[],bigint[],text[],text[]) IS 'Copies jobs that fail for good with these attempts into the log of failures. The caller records how the attempts ended in the same transaction.';
COMMENT ON ROUTINE weir._kept_failure(bigint,integer) IS 'How a job failed for good, in attempt after or a later one, unless it has been retried since.';
COMMENT ON ROUTINE weir._last_reclaimed() IS 'The number of the last event by which a segment of jobs was reclaimed; 0: none was.';
COMMENT ON ROUTINE weir._last_says(integer) IS 'What a worker''s last word says; NULL: none is left.';
COMMENT ON ROUTINE weir._later_on(smallint,bigint) IS 'The scheduled jobs on one page of a segment.';
COMMENT ON ROUTINE weir._lock_log() IS 'Locks the log against TRUNCATE, so that the next snapshot shows every job where it is; the caller releases the locks. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on the log; waits while a segment is being emptied.';
COMMENT ON ROUTINE weir._login_secret() IS 'The secret from which hubs derive salts for users that do not exist, and the number of iterations that they show for them. They are the same at every hub, and like those of this server''s roles, so that nobody can find out which users exist. For the role weir_hub alone. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._logins() IS 'The roles that may log in at hubs: they have a SCRAM password and the right to connect to this database, and can''t become a superuser or replicate. Hubs check passwords against the stored verifiers, as poolers do, and never see a password. listens and notifies are the channels and patterns that the role may LISTEN on and NOTIFY: NULL for all, none if it may not call weir.read or weir.publish here (see the roles weir_subscribe and weir_publish, and weir.restrict). For the role weir_hub alone. Errors: 42501. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._named_by(text[]) IS 'The lane, batch and job of each token, in the order of the tokens. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._next(text,integer[],jsonb,integer) IS 'Up to most of the next jobs that are, or were, in a state, in some lanes or, for NULL, in all, after a key: each with the key to continue after it, when it ended, and what was read to find it, in units of a row. A row without an id only shows how far the search has come; no row means that there are no more.';
COMMENT ON ROUTINE weir._next_available(integer[],jsonb,integer) IS 'Jobs that wait to be claimed, in that order, after a key; no id for a cancelled one. Of more than 500 lanes in which jobs may wait, it takes 500 at a time, by priority and queue. See weir._next.';
COMMENT ON ROUTINE weir._next_cancelled(integer[],jsonb,integer) IS 'Cancelled jobs, after a key: those with a tombstone by id, newest first, then those that their handler cancelled. No id for a job of another queue. See weir._next.';
COMMENT ON ROUTINE weir._next_completed(integer[],jsonb,integer) IS 'Completed jobs, newest first, after a key: the place in each lane or, for all queues, in each segment. No id for a result with another outcome. See weir._next.';
COMMENT ON ROUTINE weir._next_failed(integer[],jsonb,integer) IS 'Failed jobs, newest first, after a key; no id for a job of another queue. See weir._next.';
COMMENT ON ROUTINE weir._next_later(integer[],jsonb,integer) IS 'Scheduled jobs in the order of run_at, after a key; no id for a cancelled one. See weir._next.';
COMMENT ON ROUTINE weir._next_running(integer[],jsonb,integer) IS 'Running jobs, those of the newest batches first, after a key; a row without an id shows how far the search has come. See weir._next.';
COMMENT ON ROUTINE weir._next_try(interval,interval,integer) IS 'When a job is tried again after a number of tries: backoff after the first, twice as long after each further one, up to backoff_limit, and randomly up to a quarter earlier or later, so that jobs which failed together are not tried together. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._note_word(integer,text,integer) IS 'Writes a worker''s last word. The caller holds its lock.';
COMMENT ON ROUTINE weir._pause_among(text[]) IS 'How long a worker that waits for jobs of these queues pauses between two polls, in seconds: 10 ms for each worker that shares one of the queues, so that a fleet polls as often as a single worker would; at most 100 ms, because all the others may be busy. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._prepared_for(integer) IS 'Describes the prepared transaction that has called record, claim or heartbeat for a worker, which therefore can''t be fenced before that transaction ends; NULL: none. Such calls can''t be refused, because a function can''t know that its transaction will be prepared.';
COMMENT ON ROUTINE weir._promote(integer,timestamp with time zone) IS 'Copies due attempts from weir.later into the log, in the order of run_at, up to max_rows in one call. Returns how many, and when the next one is due if that is within 10 seconds (NULL: none is, or another session is promoting). If upto is in the future, attempts up to that time are due, as if the clock showed it and then stepped back: for tests of scheduled jobs. Errors: WR003, WR004 (not in READ COMMITTED autocommit), 22023. Locks: advisory step 2 (tried). Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._publish_drafts(text[],bytea[],boolean[],boolean) IS 'For hubs: publishes messages of several clients, each delivered even if it repeats another. Text must be in UTF-8. With cuts, the next tick is cut in the same transaction, unless another session is cutting; the tick is returned, with its epoch and the epoch of the previous tick, if it contains exactly these messages. Then call it in autocommit: no other session can cut before the commit, and a later message of the transaction would be in no tick, so publishing it is refused (WR004). Errors: 22023; WR004 (this transaction has cut, or, with cuts, has written); with cuts, WR003. Locks: with cuts, advisory step 4 (tried); none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._queue_id(text) IS 'The id of a queue, which is created if the name is new. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._read_job(bigint,integer) IS 'One job by id, see weir.job_info. Reads its newest row and the ends of up to ends attempts, however many rows the log holds of the job. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_page(text[],text,text[],jsonb,text,integer) IS 'A page of jobs as one snapshot shows them, see weir.jobs_page. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_queues() IS 'The queues as one snapshot shows them, see weir.queues. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._reclaim(integer) IS 'Empties a closed segment: copies its unclaimed and running jobs, with their xids, ids and batches, into the active one, and truncates it. Returns false if that is not done yet, because the segment is in use, or more than 10000 jobs or 8 MB of it are unfinished; in that case it may have carried some of the waiting jobs. Locks: advisory step 1 (tried); SHARE on the segment''s jobs (NOWAIT) during the scan; to carry, the lanes (exclusive, tried); to empty, claims (exclusive, waiting at most 50 ms), the segment (exclusive) and ACCESS EXCLUSIVE on its tables (at most 25 ms for each), but not while another transaction keeps a lock on them. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._reclaim_messages(integer,interval) IS 'Truncates a closed segment of messages and ticks, once all its messages are in ticks and the last of these was cut retention ago. Returns false, and does nothing, if the segment is in use or too young. Locks: SHARE on the segment''s messages (NOWAIT), advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';
COMMENT ON ROUTINE weir._reconcile(integer,integer[],bigint[],integer[],bigint[],bigint) IS 'Compares the attempts that a worker holds according to the database with those that it says it holds: lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs that the worker has not recorded. Other attempts are released, without being used up, unless an open transaction completes them. Call it while the worker has no claim under way: after a claim or a connection failed, and now and then. It works in bounded steps: if next is not NULL, call again and pass it as after. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and claims (shared), the worker''s claims (exclusive, waiting at most 5 s), and its ends if there is something to release. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._record(integer,integer[],bigint[],integer[],bigint[],text[],text[],text[],timestamp with time zone[]) IS 'Records how attempts ended, many at once, and accepts or refuses each on its own. lanes[i] and seqs[i] identify a batch, and the next sizes[i] of ids are its jobs. outcomes (NULL: completed), errors, outputs and run_at (when the next attempt is due, after retried, snoozed or released; NULL: immediately; -infinity: after the queue''s backoff) are parallel to ids. Returns a row for each end that was not recorded, with its place in ids: ended (the attempt has already ended, so it is safe to repeat a call), lost (it does not belong to this worker, because the claim was lost in a crash or the job was claimed again: drop it), busy (an open transaction of its handler completes it: record it again later) or invalid; detail says what is wrong and what to do. Errors: 22023, WR001 (the worker is unknown or fenced), WR004. Locks: advisory: the worker and the segments (shared), the worker''s ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._relog(integer,weir.outcome,text,integer[],bigint[],integer[],bigint[],bigint) IS 'Ends unfinished attempts of a worker, except the named ones, and logs those that follow: some thousands in one call, from at most 5,000 batches. It skips attempts that are being completed in open transactions, which stay exceptions. jobs: their ids. next: pass it as after in another call to continue; NULL: finished. The caller holds the worker''s claims, and keeps segments from being reclaimed.';
COMMENT ON ROUTINE weir._rescue() IS 'Fences workers whose session has ended, or that were silent past their lease, and logs the unfinished attempts of fenced workers again, in bounded steps. Returns for each worker why it ended, how many attempts were logged (NULL for one that was just fenced or missed), and the ids of their jobs; if more is true, call again; error is why a worker could not be settled, which does not delay the others. Call it about twice a second. Errors: WR004. Locks: advisory step 6, claims (shared) and the workers'' claims (tried); see _fence_silent, _fence and _settle. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._results_in(integer,bigint,bigint,integer) IS 'Completed jobs of a segment, from the end of its results backwards, before a place (page * 65536 + line); a row with is_end false stands for a result with another outcome.';
COMMENT ON ROUTINE weir._results_of(integer,bigint,bigint,integer) IS 'Completed jobs of a lane, newest batches first, before a place; a row with is_end false stands for a result with another outcome.';
COMMENT ON ROUTINE weir._resurvey() IS 'If there are more than a hundred queues, writes a survey for inspections: in which lanes jobs wait, and how many were claimed of each. It checks the lanes that are new or were waiting in the last survey, and 500 further queues, once enough has changed. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), claims (shared, tried); ACCESS EXCLUSIVE NOWAIT on weir.survey when it has grown and is truncated. Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._rotate() IS 'Takes the next step in the life of segments, if one is due: opens a free segment when the active one has a quarter of retention_bytes, or is half of completed_retention old; reclaims the oldest closed one, or carries some of its jobs, when completed_retention has passed, or when no free one is left; otherwise, see _rotate_failures. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 1 (tried); see _reclaim and _rotate_failures. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._rotate_failures() IS 'Performs the next step of rotating the segments of failures. Opens a free segment when the active one exceeds a sixteenth of retention_bytes, or is older than half of failed_retention or completed_retention, whichever is longer. Empties the oldest segment when that retention has passed since it was closed, or when no free segment is left. Returns what it did, or NULL. The caller holds advisory step 1. Locks: ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_later(bigint) IS 'Opens the next segment of weir.later when the active one has reached segment_bytes. Reclaims a closed one when all its rows are promoted; or, if space is needed, when at least half of them are and about 100,000 at most are left, which are copied unchanged into the active segment. Returns what it did, or NULL. Locks: advisory step 2 (tried); ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_messages() IS 'Takes the next step in the life of message segments, if one is due: opens a free segment when the active one is half of message_retention old or has a quarter of message_retention_bytes; reclaims the oldest closed one when its newest message was delivered message_retention ago, or when no free one is left; empties the heartbeats of hubs ahead of their turn. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see _reclaim_messages.';
COMMENT ON ROUTINE weir._seal(text[],text,text[],jsonb,jsonb) IS 'Ties a cursor to its list and to this database, with a secret that no client knows: what is inside a cursor with a valid seal was written by this code.';
COMMENT ON ROUTINE weir._segment_bytes(integer) IS 'The size of a segment on disk, with indexes and TOAST.';
COMMENT ON ROUTINE weir._segment_state(text,integer) IS 'The state of a segment: opened, closed or reclaimed. A segment that was never used counts as reclaimed.';
COMMENT ON ROUTINE weir._set_twins_aside() IS 'Sets aside the twins of queues that have no jobs, so that claims skip them, and takes back those that have: a transaction may have looked up the queue before its older twin was visible, and enqueue a job long after. Returns how many changed.';
COMMENT ON ROUTINE weir._settle(integer) IS 'Logs unfinished attempts of a fenced worker again (or fails the job, if no attempts are left): some thousands in one call. jobs: their ids; more: call again. Attempts that an open transaction completes are left for a later call. Errors: 22023 (not fenced), WR004. Locks: advisory: claims (shared), the worker''s claims and ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._spans(xid8,pg_snapshot) IS 'The ranges (low included, high not) of transactions from from_xid on that have ended in the snapshot. A scan of only these ranges skips the rows of transactions in progress.';
COMMENT ON ROUTINE weir._start(text,text[],interval) IS 'Registers a worker, creates its queues and returns its id. From then on it must call heartbeat well within its lease, or other workers get its jobs. Errors: 22023; WR003 (the log comes from another cluster). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._surveyed(integer) IS 'The newest survey, with the lanes that have received jobs since in waiting. If there is none, it is not valid any more, or more than max_rows rows would have to be read, an empty survey that has reached no queue.';
COMMENT ON ROUTINE weir._tidy() IS 'Does one small chore at a time: sets twins aside; truncates the next table of last words ahead of its turn; compacts the cursor of promotion, the history of segments and the progress of settling by TRUNCATE; deletes ended workers, and cancellations of ended jobs, once there are thousands, checking up to 1000 for at most 0.1 s; and trims idle lanes (see _forget_ended). Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates; see _forget_ended. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._times_reclaimed(integer) IS 'The number of the event by which a segment of jobs was last reclaimed: a different one each time.';
COMMENT ON ROUTINE weir._unattended() IS 'Workers that are not fenced and whose attendance lock is free, each with its last word, if one is left.';
COMMENT ON ROUTINE weir._unclaimed(integer,integer[],integer) IS 'The jobs in one segment that no batch has claimed yet: those past the position, and those of a pending transaction.';
COMMENT ON ROUTINE weir._unfinished(integer,bigint[]) IS 'Those of a worker''s batches with these numbers that have jobs without a result, and these jobs; no jobs if only another part of the batch has some.';
COMMENT ON ROUTINE weir._unfinished_in(integer,bigint,bigint) IS 'As weir._unfinished, for all batches after a number and up to another.';
COMMENT ON ROUTINE weir._waiting(integer,xid8[],xid8,xid8,bigint,integer,xid8,bigint) IS 'Up to most jobs of a lane that wait to be claimed, including cancelled ones, in the order in which they will be claimed, after a place in that order and up to another one. running and top come from weir._in_progress: rows of transactions in progress are skipped, and not scanned. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._was_ahead(weir.promotion,timestamp with time zone,bigint,xid8) IS 'Reports whether a row of weir.later was promoted before the clock stepped back, according to the earlier cursors that are kept beside the newest.';
COMMENT ON ROUTINE weir._watch(bigint,bigint,pg_snapshot,xid8,integer,double precision) IS 'For an idle worker: polls up to polls times, every pause seconds, until the counters differ from those passed, or a transaction below upto has ended that was in progress in seen. Pass what the previous call returned (at first 0, 0, NULL, NULL). jobs_now changes with every job that is logged, control_now with every cancellation and new queue, both before the commit; ended reports whether a transaction has ended. Errors: 22023. Locks: none that others wait for. Isolation: READ COMMITTED, in autocommit. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir._wrong_with(jsonb) IS 'Why an end that was passed to record is invalid; NULL: it is valid. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.attend(integer,integer,inet,integer) IS 'Makes this session stand for the worker: while the session lasts, the worker is alive; soon after it has ended without a successor, the worker is fenced. This requires a direct connection, because an intermediary could cut it while both ends are alive. Therefore pass the process id that the client received when it connected, and the address and port of the client''s own end of the connection (both NULL for a Unix socket). If the server sees other values, there is a pooler, a proxy or an address translation, and the function returns false: then renew the lease by heartbeats. If it returns true, call heartbeat in the same session well within the lease: it writes nothing, and keeps the session from being ended as idle. Call it in autocommit, because a rollback does not release the lock; to stop attending, end the session. Errors: WR001 (the worker is unknown or fenced), 55P03 (a lock was not available within 5 s). Locks: advisory: the worker''s attendance (shared, for the session) and its last word (shared), waiting at most 5 s for each. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.cancel(bigint) IS 'Cancels a job. A job that has not started will not start (returns cancelled); the worker of a running job is notified, and cancels the job''s context (returns requested). Otherwise it does nothing, and returns the job''s final state, or NULL for an unknown id. A job that starts while this commits is cancelled like a running one. Errors: 40001 (see weir.job_info). Locks: none that others wait for, except a second cancel of the same job. Isolation: any.';
COMMENT ON ROUTINE weir.chores() IS 'Does the maintenance that Go workers do automatically; if none runs, call it about twice a second: CALL weir.chores(). It promotes jobs that are due, rescues the jobs of lost workers, reclaims space and tidies. Any number of processes may call it, and none waits for another. An error becomes a warning, and the next call tries again. Errors: 2D000 (not in autocommit: it commits in between). Locks: those of its steps, each until the step commits. Isolation: any; its own transactions are READ COMMITTED.';
COMMENT ON ROUTINE weir.complete(integer,text) IS 'Records an attempt as completed in the caller''s transaction: its effects and the completion commit together. The transaction may stay open: if the worker is fenced in the meantime, the attempt is claimed again after a rollback, and has ended after a commit. Errors: WR001 (the worker is unknown or fenced), WR002 (the attempt does not belong to this worker, or has ended: roll back), WR004, 22023. Locks, to the end of the transaction: see _complete. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.enqueue(text,text,jsonb,integer,timestamp with time zone,integer,jsonb) IS 'Enqueues a job in the caller''s transaction and returns its id. The job runs after the commit, and never after a rollback; if run_at is given, not before that time. priority: 1 (first) to 4 (NULL: 2); max_attempts: 1 to 1000 (NULL: 25). Errors: 22023 with the value. Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_many(jsonb) IS 'Enqueues up to 10000 jobs, all or none, and returns their ids in order. jobs is a JSON array of objects whose keys are the arguments of enqueue. Errors: 22023 with the value; 22007, 22P02 (a value of another type). Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[]) IS 'Enqueues up to 10000 jobs from parallel arrays, all or none, and returns their ids in order. NULL for an optional array, or in it, means the default. Errors: 22023 with the value. Locks: ROW EXCLUSIVE on the log; none that another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueued(integer) IS 'The jobs that this transaction has enqueued, in that order, up to a limit of 1 to 10000. For tests, which check them and then roll back. The jobs of other transactions are not among them. Those that functions and triggers of other owners have enqueued in this transaction are; therefore the caller needs weir_work or weir_operate, which may read every job. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.heartbeat(integer,integer) IS 'Renews a worker''s lease; returns whether the worker is fenced, how many workers are alive, and how many of them share a queue with it. In a session that attends for the worker, it writes only changes, so an idle worker uses no transaction ids. An unknown worker counts as fenced. Errors: 55P03 (the lock was not available within 5 s). Locks: advisory: the worker''s last word (shared; it waits only for a rescuer, at most 5 s). Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.hubs() IS 'The hubs with a heartbeat in the last five minutes that have not stopped since. behind is how many ticks had been cut by then that the hub had not dispatched. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.job_info(bigint) IS 'One job by id, in state available, running, scheduled, completed, failed or cancelled. No row if the id is unknown or the job''s retention is over. errors tells how its last 25 attempts ended, oldest first; of an attempt that was snoozed or released before it ended, only the end counts. If the job has failed and its segment has been reclaimed, errors holds only the last one. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.jobs(text,text,integer) IS 'The first jobs in one state, as rows, in the order of weir.jobs_page: up to max_rows (1 to 10000), and fewer if very many jobs before them have changed their state. Errors and locks: as for weir.jobs_page. Isolation: any.';
COMMENT ON ROUTINE weir.jobs_page(text[],text,text[],jsonb,text,integer) IS 'A page of the list of jobs that are in some states (NULL: all), in a queue, of some kinds, and whose meta contains meta: a JSON array of up to max_rows jobs (1 to 1000), as weir.job_info shows them; and next, to be passed as after to get the next page, NULL if there is none. The states follow one another in the order in which they are named: available jobs in the order in which they will be claimed (of more than 500 lanes, 500 at a time), scheduled jobs by run_at, the others newest first (completed ones approximately, as they were recorded; of cancelled ones, first those that weir.cancel cancelled, by id). A job that stays in its state while pages are read is on exactly one of them; a job that enters a state in the meantime may be on none. A page may have fewer jobs than max_rows, or none, and still a next: what one page reads is bounded, however little a filter finds and however many queues there are. Errors: 22023; 40001 as for weir.job_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.newest_tick() IS 'Returns the newest tick. Errors: WR003 (the log comes from another cluster: call weir.rebase_messages). Locks: none that others wait for, and none after the call. Isolation: any.';
COMMENT ON ROUTINE weir.notify(text,text) IS 'Replaces pg_notify, with the same arguments, also in triggers for each row: as weir.publish, but a message of up to 200 bytes that repeats the last one of its transaction is not even logged. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.notify_callers() IS 'Lists what still sends PostgreSQL''s own notifications in this database: functions, with the line that does, triggers that call them, rules and views. It searches their text, and may mistake a string for a call. It can''t find notifications that applications send. It lists only what the caller may see. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.pause(text) IS 'Pauses a queue: after the commit, no more of its jobs are claimed; running jobs continue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.publish(text,text,boolean) IS 'Publishes a message in the caller''s transaction: it is delivered to the channel''s subscribers after the commit, and never after a rollback, not even of a savepoint. channel: 1 to 255 bytes; payload: up to message_bytes (1048576 by default), NULL counts as empty. If a transaction publishes the same channel and payload more than once, they are delivered once, unless keep is true. Errors: 22023; WR004 (after _publish_drafts with cuts in the same transaction). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.publish_bytes(text,bytea,boolean) IS 'Publishes a message with a binary payload; otherwise as weir.publish. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.publish_many(text[],text[],boolean) IS 'Publishes each pair of channel and payload in order, as weir.publish does, all or none; returns how many. Errors: 22023, WR004. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.queues() IS 'Queues by name: how many of their jobs are available, running and scheduled, including cancelled ones that no worker has reached yet; since when the available job that has waited longest could have been claimed; and claimed, the number of attempts ever claimed. Counts are exact up to about 10,000 and estimated to a few percent above that: approximate means that one of a queue''s counts is an estimate. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.read(bigint,bigint,integer,bigint) IS 'Returns the messages of a tick after a given id, in the order of publishing: up to max_rows; from a tick of more than 10000 messages or 8 MB, about 8 MB at most. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick has another epoch; the detail is epoch.tick of the last one to continue from), 22023. Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.rebase() IS 'After a restore or a move into another cluster, logs every unfinished attempt again under this cluster''s transaction ids, starts from new positions, and fences all earlier workers. Returns the number of attempts, or NULL if there was nothing to do. Workers call it automatically, without a statement_timeout. Errors: WR004 (not in READ COMMITTED autocommit), 57014 (cancelled, for example by a statement_timeout; nothing has changed), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on all tables of the log of jobs, waiting at most 10 s for each. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.rebase_messages() IS 'After a restore or a move into another cluster, logs the messages that were in no tick yet again under this cluster''s transaction ids. Earlier ticks are deleted, because no position in them is valid here: subscribers receive a gap. Returns the number of messages, or NULL if there was nothing to do. Hubs call it automatically. Errors: WR004 (not in READ COMMITTED), 55P03 (a lock was not available in time). Locks: ACCESS EXCLUSIVE on the tables of messages and on the settings, waiting at most 10 s for each. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.record(integer,text) IS 'Records how attempts ended, many at once, and accepts or refuses each on its own. ends is the text of a JSON array of at most 10000 objects and 64 MiB. The fields of an object are token; outcome: completed (the default), failed (tried again while attempts are left, unless "final" is true), cancelled, or, without using up the attempt, snoozed (the job postponed itself) or released (this worker can''t run it); error and output, texts that are kept with the job; and delay, in seconds, until the next try (NULL: the queue''s backoff, see weir.set). Returns a row for each end that was not recorded, with the refusal: ended (the attempt has already ended, so it is safe to repeat a call), lost (it no longer belongs to this worker: drop it), busy (a transaction that completes it is still open: record it again later) or invalid (see detail; the worker still holds the attempt: record it as failed). Characters that PostgreSQL can''t store become U+FFFD. Errors: 22023, 22P02 (not valid JSON), WR001 (the worker is unknown or fenced), WR004. Locks: see _record. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.restrict(text,text[],text[]) IS 'Restricts what a role may LISTEN on and NOTIFY at hubs to channels and patterns such as orders.*; NULL allows everything that its grants allow. It replaces earlier restrictions of the role, and applies to connected clients within a few seconds. It does not restrict access to the database itself. Errors: 22023. Locks: none that others wait for, except another change of the role''s restrictions. Isolation: any.';
COMMENT ON ROUTINE weir.resume(text) IS 'Resumes a queue. Returns false if the queue does not exist. Errors: none. Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.retry(bigint) IS 'Enqueues another attempt of a completed, failed or cancelled job, and returns its new state. A job in another state is left as it is, and its state returned; NULL for an unknown id. Errors: WR004 (not in READ COMMITTED). Locks: advisory: the job (exclusive); only a second retry of the same job waits. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.set(text,text) IS 'Changes a setting: completed_retention (how long completed and cancelled jobs can be inspected and retried; 1 day by default), failed_retention (the same for failed jobs, but never less than completed_retention; 7 days by default), retention_bytes (the size of log and history together, and a quarter more for failed jobs; unfinished jobs are kept whatever their size; 4294967296 by default), message_retention (how long a subscriber can resume from a position; 1 hour by default), message_retention_bytes (the size of messages; 1073741824 by default) or message_bytes (the largest payload; 1048576 by default, at most 16777216). Errors: 22023; 22007, 22P02 (not a valid interval or number). Locks: none that others wait for, except another change of the setting. Isolation: any.';
COMMENT ON ROUTINE weir.set(text,text,text) IS 'Changes a setting of a queue: backoff (the delay between a job''s first failure and the next attempt; it doubles with each further failure, and varies by up to a quarter; 1 second by default) or backoff_limit (its maximum; 1 hour by default). Returns false if the queue does not exist. Errors: 22023; 22007 (not a valid interval). Locks: none that others wait for, except another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.settings() IS 'All settings that weir.set changes: those of the database (queue is NULL), then those of each queue. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir.start(text,text[],interval) IS 'Registers a worker, creates its queues and returns its id. From then on it must call take (or heartbeat) well within its lease, 1 second to 5 minutes (NULL: 30 seconds), or other workers get its jobs. A log that comes from another cluster is rebased first; that may take minutes, and ignores statement_timeout. Errors: 22023; see rebase. Locks: none that others wait for; see rebase if it rebases. Isolation: any; if it rebases, READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.stop(integer) IS 'Ends a worker. The jobs that it still holds are released immediately, without using up an attempt. Returns false while a call for this worker is still running, or more jobs are left to release: then call it again. It is safe to repeat. Errors: WR001 (the worker is unknown), WR004. Locks: see _reconcile, _fence and _settle. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.take(integer,text[],integer[],text[],text[],boolean,interval) IS 'Returns what a worker must do next, as rows: with event job, an attempt to run, and then to record by its token; with event cancel, an attempt in held whose job was cancelled, to interrupt. Claims up to limits[i] jobs of queues[i], at most 960 of a priority in one call, priority by priority (NULL: 1 from each of the queues that the worker was started for). Jobs whose kind is not in kinds (NULL: all kinds) are released for workers that have a handler, each time with a longer delay. If there is no work it waits, for at most 1 second (wait; 0 does not wait) and half of statement_timeout, and then returns no row. It also renews the lease once a third of it has passed, so that at least two thirds are left, counted from the call. A few times in a lease, and if lost is true (the answer of a take was lost), it compares what the database has recorded as held by the worker with held, the tokens of all attempts that the worker has not recorded: others get the attempts that are not in held. A call that has written for one of these reasons claims nothing. Call it once at a time for a worker. Errors: WR001 (the worker is unknown or fenced: drop everything and start again), 22023, WR003, WR004, 55000 (the transaction is old: try again). Locks: see _claim and _reconcile. Isolation: READ COMMITTED, in autocommit. While it waits it holds a snapshot, and no lock that others wait for.';
COMMENT ON ROUTINE weir.ticks(bigint,bigint,integer,double precision,bigint) IS 'Returns the ticks after a given one, up to 100, which hubs have cut; it cuts none. It polls up to polls times, every pause seconds, until there are any; pass ids_now of the previous call as ids, and the epoch of the given tick as epoch, so that a position that was lost when the log was set back is refused. Errors: WR005 (truncated; the detail is epoch.tick of the last truncated one), WR006 (the tick does not belong to this log; the detail is epoch.tick of the last one to continue from), 22023, WR004 (not in READ COMMITTED). Locks: none that others wait for, and none after the call. Isolation: READ COMMITTED. It holds a snapshot while it waits, for at most 1 second.';
COMMENT ON ROUTINE weir.workers() IS 'Workers, newest first, up to 10,000: alive, silent (past their lease, about to be fenced; reason, if any: why they can''t be) or ended, with the reason. Locks: none that others wait for. Isolation: any.';
COMMENT ON SEQUENCE weir.active_failure IS 'The segment that new rows of weir.failure are written to.';
COMMENT ON SEQUENCE weir.active_job IS 'The segment that new jobs are written to.';
COMMENT ON SEQUENCE weir.active_later IS 'The segment that new rows of weir.later are written to.';
COMMENT ON SEQUENCE weir.active_message IS 'The segment that new messages are written to.';
COMMENT ON SEQUENCE weir.batch_no IS 'Numbers batches. A worker''s claims exclude each other, so its batches are numbered in the order of their commits.';
COMMENT ON SEQUENCE weir.cancel_looked IS 'The greatest id of weir.cancellation that tidying has checked.';
COMMENT ON SEQUENCE weir.carried IS 'Bytes carried into the active segment, in steps, since it was opened.';
COMMENT ON SEQUENCE weir.control IS 'Counts changes that running workers must notice: cancellations, pauses, new queues.';
COMMENT ON SEQUENCE weir.idle_looked IS 'The greatest queue id that tidying has checked for idle lanes.';
COMMENT ON SEQUENCE weir.job_id IS 'Job ids. An idle worker compares its last_value with the one of its last poll to find out whether anything was enqueued in between.';
COMMENT ON SEQUENCE weir.message_id IS 'Message ids. A hub compares its last_value with the one of its last poll to find out whether anything was published in between.';
COMMENT ON SEQUENCE weir.tick_floor IS 'Ticks up to this number can''t be read any more, because messages of theirs have been truncated.';
COMMENT ON SEQUENCE weir.tick_seq IS 'The number of the newest tick. It may be ahead: while that tick is being committed, and after a cut was rolled back, until the next one.';
COMMENT ON SEQUENCE weir.watched IS 'For how long, in ms, rescuers have watched the workers: each call of weir._rescue adds the time since the previous call, but at most 2 s, and at most 0.5 s while a worker is missed. An outage, a failover, a clock step or an hour without a rescuer therefore does not count as silence of a worker.';
COMMENT ON SEQUENCE weir.watched_at IS 'The server''s clock, in ms, when weir.watched was last advanced.';
COMMENT ON TABLE weir.attendance IS 'Workers that have attended, each with the start time of the server on which they did, and the value of weir.watched at that time. Without a row for the current server start, a free attendance lock means nothing. The row of worker 0 records the first check for unattended workers since the server started: no lease counts from before it.';
COMMENT ON TABLE weir.batch IS 'A slice of a lane and the worker that claimed it, with one row for each segment that its jobs are in. The newest batch of a lane holds the lane''s position, its pending transactions and the total number of claimed jobs.';
COMMENT ON TABLE weir.cancellation IS 'Jobs that were cancelled: they must not start, or must stop.';
COMMENT ON TABLE weir.epoch IS 'Periods in which one server cut ticks, each with its first tick: they distinguish ticks of logs that were copied from each other and then diverged. Never truncated: one row for each start of the server; kept are the newest 1000, and those whose ticks can still be read.';
COMMENT ON TABLE weir.failure IS 'Jobs that failed for good, each as it was after its last attempt. A row is a copy, which outlives the job''s segment. It contains no transaction ids, so it stays valid in another cluster.';
COMMENT ON TABLE weir.hub_beat IS 'Heartbeats of hubs, with the newest tick that each has dispatched (NULL: the hub has stopped): a ring of three tables for five minutes each; each is truncated before its turn.';
COMMENT ON TABLE weir.job IS 'The log: one row for each attempt, and one more for each time that the attempt was snoozed or released, with the transaction that logged it.';
COMMENT ON TABLE weir.last_word IS 'The last words of workers, their liveness records, ordered by no: a ring of three tables for five minutes of weir.watched each; each is truncated before its turn. watched is the value of that sequence; at is only for people.';
COMMENT ON TABLE weir.later IS 'Attempts with a run_at in the future: scheduled, retried, snoozed. Promotion copies them into the log when they are due.';
COMMENT ON TABLE weir.message IS 'The log of messages, with the transaction that published each. A payload that is not binary is text in UTF-8.';
COMMENT ON TABLE weir.promotion IS 'The cursor of promotion; the newest row counts: every row of weir.later up to (due, due_id) that the snapshot could see has been promoted.';
COMMENT ON TABLE weir.queue IS 'Queues by name. lane = id * 4 + priority - 1. A name may have several ids: two transactions that use a new name at the same time create one row each instead of waiting for each other.';
COMMENT ON TABLE weir.result IS 'How attempts ended: one row for each flush, batch and outcome, in the segment of its batch.';
COMMENT ON TABLE weir.role_channel IS 'The channels and patterns that a role is restricted to at hubs; NULL: not restricted.';
COMMENT ON TABLE weir.segment IS 'The history of segments, insert-only. A segment''s state is its event with the greatest number; at is used for ages, never for order.';
COMMENT ON TABLE weir.setting IS 'Settings, which operators change with weir.set; the cluster that this log belongs to; and the secret that seals the cursors of lists.';
COMMENT ON TABLE weir.settled IS 'Up to which number all of a worker''s batches have ended, except those listed in open. Insert-only; the row with the greatest no counts. The greatest possible no means that the worker is fenced and has no unfinished attempts.';
COMMENT ON TABLE weir.survey IS 'A summary of the lanes of queues with ids up to upto, for inspections; insert-only, and the newest row counts. Of the jobs that snapshot sees, all were claimed except those in the lanes in waiting. lanes, totals and claimed_at hold how many jobs were ever claimed from each lane, and when last.';
COMMENT ON TABLE weir.tick IS 'A batch of messages: those of the transactions that its snapshot sees and that of the previous tick did not. These are the transactions from from_xid up to the snapshot''s xmax that are not in progress in it, and those in late, which were in progress before.';
COMMENT ON TABLE weir.worker IS 'A row with fenced = false when a worker starts, another with fenced = true when it stops or is fenced. Never updated.';
COMMENT ON TYPE weir.job_info IS 'A job, in the state of its newest attempt. error is why the last attempt ended; errors are those of the last attempts that are still kept, oldest first: up to 25 from weir.job_info, one from a list.';
COMMENT ON TYPE weir.outcome IS 'How an attempt ended. completed, failed and cancelled are final; retried, snoozed, released (not started) and lost (its worker died) are followed by another row of the same job.';

GRANT EXECUTE ON ROUTINE weir._await_tick(bigint,bigint,pg_snapshot,integer,double precision,integer,boolean,bigint,integer) TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir._beat(text,text,bigint,integer) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._cancelled_among(bigint[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._claim(integer,text[],integer[],pg_snapshot,text[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._complete(integer,integer,bigint,bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._epoch_of(bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir._fence(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._fresh_queues(pg_snapshot,bigint,integer,double precision,integer) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._login_secret() TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._logins() TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._promote(integer,timestamp with time zone) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._publish_drafts(text[],bytea[],boolean[],boolean) TO weir_hub;
GRANT EXECUTE ON ROUTINE weir._reconcile(integer,integer[],bigint[],integer[],bigint[],bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._record(integer,integer[],bigint[],integer[],bigint[],text[],text[],text[],timestamp with time zone[]) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rescue() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._resurvey() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate_later(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._rotate_messages() TO weir_hub, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._settle(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._start(text,text[],interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._tidy() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir._watch(bigint,bigint,pg_snapshot,xid8,integer,double precision) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.attend(integer,integer,inet,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.cancel(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.chores() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.complete(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue(text,text,jsonb,integer,timestamp with time zone,integer,jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue_many(jsonb) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[]) TO weir_enqueue, weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.enqueued(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.heartbeat(integer,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.hubs() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.job_info(bigint) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.jobs(text,text,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.jobs_page(text[],text,text[],jsonb,text,integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.newest_tick() TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.notify(text,text) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.notify_callers() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.pause(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.publish(text,text,boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.publish_bytes(text,bytea,boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.publish_many(text[],text[],boolean) TO weir_hub, weir_operate, weir_publish;
GRANT EXECUTE ON ROUTINE weir.queues() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.read(bigint,bigint,integer,bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.rebase() TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.rebase_messages() TO weir_hub, weir_operate;
GRANT EXECUTE ON ROUTINE weir.record(integer,text) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.restrict(text,text[],text[]) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.resume(text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.retry(bigint) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set(text,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.set(text,text,text) TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.settings() TO weir_operate;
GRANT EXECUTE ON ROUTINE weir.start(text,text[],interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.stop(integer) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.take(integer,text[],integer[],text[],text[],boolean,interval) TO weir_operate, weir_work;
GRANT EXECUTE ON ROUTINE weir.ticks(bigint,bigint,integer,double precision,bigint) TO weir_hub, weir_operate, weir_subscribe;
GRANT EXECUTE ON ROUTINE weir.workers() TO weir_operate;
GRANT SELECT ON weir.available_jobs TO weir_operate;
GRANT SELECT ON weir.cancelled_jobs TO weir_operate;
GRANT SELECT ON weir.completed_jobs TO weir_operate;
GRANT SELECT ON weir.failed_jobs TO weir_operate;
GRANT SELECT ON weir.running_jobs TO weir_operate;
GRANT SELECT ON weir.scheduled_jobs TO weir_operate;
