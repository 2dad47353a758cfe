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
CREATE FUNCTION weir._batches_after(worker integer, after bigint, most integer) RETURNS bigint[] LANGUAGE sql STABLE SET search_path=pg_catalog, pg_temp SET plan_cache_mode=force_generic_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashagg=off SET jit=off;
CREATE FUNCTION weir._beat_if_due(worker integer, lease interval, running integer) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off;
CREATE FUNCTION weir._beat(hub text, address text, tick bigint, subscribers integer) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._being_completed() RETURNS integer[] LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._cancelled_among(ids bigint[]) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off;
CREATE FUNCTION weir._carry_states(segment integer, active integer, lanes integer[]) RETURNS void LANGUAGE sql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off;
CREATE FUNCTION weir._carry_unfinished(segment integer, active integer, waiting integer[], lanes integer[], newest bigint[], b_lanes integer[], b_seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off;
CREATE FUNCTION weir._carry_waiting(segment integer, active integer, lanes integer[], most integer, bytes bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=force_custom_plan SET enable_seqscan=off SET enable_bitmapscan=off;
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
CREATE FUNCTION weir.enqueue_many(queue text[], kind text[], args jsonb[], priority integer[] DEFAULT NULL::integer[], run_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], max_attempts integer[] DEFAULT NULL::integer[], meta jsonb[] DEFAULT NULL::jsonb[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET plan_cache_mode=auto;
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

COMMENT ON COLUMN weir.batch.from_xid IS 'The smallest xid among its jobs: with to_xid, the greatest, it bounds the look-up of a job from its batch.';
COMMENT ON COLUMN weir.batch.no IS 'Of weir.batch_no: what a worker holds is found through (worker, no).';
COMMENT ON COLUMN weir.batch.origin IS 'The segment it was made in; it tells the rows of one batch apart where reclaiming has carried them together.';
COMMENT ON COLUMN weir.batch.pending IS 'Transactions that were in progress below the position; pending_after is the last id already taken of each.';
COMMENT ON COLUMN weir.epoch.epoch IS 'Drawn at random, 48 bits.';
COMMENT ON COLUMN weir.epoch.started_at IS 'When the server started, and home, its timeline and the file of this table, which a copy in the same server has not: while both are the same, so is the epoch. Only compared for being equal.';
COMMENT ON COLUMN weir.failure.finished_at IS 'NULL: no end, but the word that the job was retried by hand, as this attempt.';
COMMENT ON COLUMN weir.job.leads IS 'False where the row logged before it, in the same transaction and segment, is of the same lane: the others tell in which lanes a transaction has logged.';
COMMENT ON COLUMN weir.job.put_off IS 'How often this attempt was put off (snoozed) or handed back (released) before: (id, attempt, put_off) names a row, and a job''s rows follow each other in that order.';
COMMENT ON COLUMN weir.job.ready_at IS 'When it became ready to be claimed, where that is not when it was enqueued: it was scheduled, retried or handed back.';
COMMENT ON COLUMN weir.job.seq IS 'The batch of an attempt that ended before a rebase, which keeps results but no batches. NULL for all others.';
COMMENT ON COLUMN weir.message.keep IS 'Deliver it even where its transaction has published the same before.';
COMMENT ON COLUMN weir.promotion.ahead_due IS 'Cursors of before that reach further in time, with ahead_id and ahead_snapshot: what they say of what their snapshots could see still holds. NULL but after a clock stepped back, or while very many late jobs are promoted.';
COMMENT ON COLUMN weir.queue.aside IS 'A twin with nothing to do: claims do not look at it. Should a job come to it all the same, weir._set_twins_aside finds it.';
COMMENT ON COLUMN weir.queue.backoff IS 'How long after its first failure a job is tried again; twice as long after each that follows, up to backoff_limit: see weir._next_try.';
COMMENT ON COLUMN weir.survey.batches IS 'What weir.batch_no showed: tells how much may have been handed out since.';
COMMENT ON COLUMN weir.survey.reclaimed IS 'The last event by which a segment of jobs was given back: after another the survey is of no use.';
COMMENT ON COLUMN weir.tick.bytes IS 'Of its payloads. A tick of more than 10000 messages, or of more than 8 MB, holds a single transaction.';
COMMENT ON COLUMN weir.tick.last_id IS 'The last id that had been drawn before the snapshot was taken.';
COMMENT ON COLUMN weir.tick.segments IS 'A bit (1 << segment) for each segment that holds messages of it.';
COMMENT ON ROUTINE weir._as_committed(pg_snapshot,xid8) IS 'A transaction''s own snapshot as it would be if that had committed, and nothing else since. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._attending() IS 'The workers whose attendance lock is held by a session of theirs.';
COMMENT ON ROUTINE weir._await_tick(bigint,bigint,pg_snapshot,integer,double precision,integer,boolean,bigint,integer) IS 'Returns the ticks after a given one, at most 100, and cuts the next if there is none and cuts is true. The messages of one that it has cut come with it, if there are at most most_messages, of 256 kB. With the epoch of that given one it is refused where the log has been set back and has grown past it again. Looks up to so many times, pause seconds apart; ids and seen are what an earlier call returned: while nothing has been published or committed since then, only counters are looked at. A commit alone counts from look patience + 1 on. Errors: WR003 (see rebase_messages), WR004 (not in autocommit), WR005 (truncated; the detail is epoch.tick of the last that was), WR006 (see check_position; not looked at again while nothing changes), 22023, 25006. Locks: advisory step 4 (tried). Isolation: READ COMMITTED. It holds a snapshot while it waits: at most 1 second.';
COMMENT ON ROUTINE weir._batch_of(integer,integer,xid8,bigint) IS 'The batch that handed out a job of one segment, found by bisection.';
COMMENT ON ROUTINE weir._batches_after(integer,bigint,integer) IS 'The numbers of a worker''s next batches, in order: as many as it says, but no more than have some 2,000 jobs; all of them for NULL.';
COMMENT ON ROUTINE weir._beat(text,text,bigint,integer) IS 'A hub''s sign of life, with the newest tick it has dispatched; NULL says that it stops. Errors: 22023. Locks: none that others wait for. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir._beat_if_due(integer,interval,integer) IS 'Renews a worker''s lease if a third of it has passed since its last word, by weir.watched, or a rescuer has missed it; and nothing else speaks for it. Tells whether, and so whether it is time to compare what the worker holds; for one that attends it is when something was claimed a third of the lease ago and not compared since. Locks: see heartbeat.';
COMMENT ON ROUTINE weir._being_completed() IS 'Hashes of the ids of jobs that are being completed in open transactions, prepared ones among them.';
COMMENT ON ROUTINE weir._cancelled_among(bigint[]) IS 'Those of the ids that have been cancelled: a worker asks for what it runs when weir.control has moved.';
COMMENT ON ROUTINE weir._carry_states(integer,integer,integer[]) IS 'Repeats the states of idle lanes, whose newest batch is in a closed segment, as batches of nobody without jobs. One that is outrun by a claim meanwhile is of no consequence.';
COMMENT ON ROUTINE weir._carry_unfinished(integer,integer,integer[],integer[],bigint[],integer[],bigint[]) IS 'Carries what is unfinished in a segment that the caller holds alone: what still waits of the lanes waiting; and of the batches named, of those from newest on, their unfinished jobs, and their state if no other has it.';
COMMENT ON ROUTINE weir._carry_waiting(integer,integer,integer[],integer,bigint) IS 'Carries jobs that wait to be claimed, up to so many and so many bytes, of at most 200 lanes; returns how many bytes. A job is copied, xid and id unchanged, and deleted in one transaction, under its lane''s lock, so that each claim sees it once, in its place. Locks: advisory: the lanes (tried).';
COMMENT ON ROUTINE weir._check_array(text,text,anyarray,boolean) IS 'Raises 22023 unless an array is a list: of one dimension that begins at 1, and without nulls where it is to be filled. Where arrays go together, by place, any other shape would mean something else. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_cluster() IS 'Raises WR003 when the log comes from another cluster. Whatever compares transaction ids calls it first, every time: behind a pooler a session outlives a move, and the new counter may have passed the old positions. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_isolation(text) IS 'Raises WR004 unless the transaction is READ COMMITTED: what the caller does relies on a new snapshot for each statement.';
COMMENT ON ROUTINE weir._check_job(text,text,jsonb,integer,integer,jsonb) IS 'Raises 22023 with the offending value when a job is not well-formed. What args and meta take is counted as text, as workers get them: a column of another table may hold 50 MB in a few compressed bytes, and 1e100000 takes 12. Callers spare it those of at most 2000 bytes, which are never more than 16 MB as text. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message(text,integer) IS 'Raises 22023 with the offending value when a message is not well-formed, and WR004 where its transaction has cut a tick of its own already. Up to 8000 bytes are always allowed, so that small ones cost no look at the setting message_bytes. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_message_cluster() IS 'Raises WR003 when the log of messages comes from another cluster. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._check_position(bigint,bigint) IS 'Refuses a tick that is not of this log: one that lies ahead of it, or whose number is there in another epoch. On a standby, which may lag, what lies ahead is let pass. Errors: WR006 (the detail is epoch.tick of the last tick from which to go on). Locks: none that another caller waits for. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._check_worker(integer) IS 'The queues of a worker; raises WR001 unless it was started and is not fenced. The caller holds the worker''s lock.';
COMMENT ON ROUTINE weir._claim(integer,text[],integer[],pg_snapshot,text[]) IS 'Hands the next jobs of the named queues to a worker: up to limits[i] of queues[i] (at most 960 of a lane in one call), priority by priority, each attempt in exactly one batch. put_off is how often this attempt was put off or handed back before, ready_at when it became ready, where that is not enqueued_at. A job returned as cancelled must not be run but recorded as cancelled. A paused or unknown queue gives nothing. since is a hint for workers of very many queues: of the queues that are not in backlog, only what transactions have logged that ended after that snapshot is looked for; without it, everything. Errors: WR001 (worker fenced or unknown), WR003 (positions ahead of the cluster), WR004 (not in READ COMMITTED autocommit), 55000 (the transaction is old: try again). Locks: advisory: claims (shared), the worker''s claims (exclusive), each lane with work (exclusive, to the end of the call). Commits asynchronously.';
COMMENT ON ROUTINE weir._commit_synchronously() IS 'Has the transaction survive a crash once it is acknowledged, whatever the role''s own taste.';
COMMENT ON ROUTINE weir._complete(integer,integer,bigint,bigint) IS 'Records one attempt as completed in a transaction of the caller''s: effects and completion commit together. The transaction may stay open: if the worker is fenced meanwhile, the attempt is handed out again when it has rolled back, and has ended when it commits. Errors: WR001 (fenced), WR002 (the attempt is not this worker''s, or has ended), WR004. Locks, to the end of the transaction: advisory: the worker''s open completions and the segment (shared), the attempt (exclusive); ROW EXCLUSIVE on the segment''s results. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._cut(integer,integer,bigint,integer) IS 'Cuts the next tick from what was committed since the last, and says what it is; all null when there was nothing. whole tells that it holds all that was committed before its snapshot. Of one with at most most_messages, and of 256 kB at most, the messages come with it. What this transaction itself has published, own_count messages of own_size bytes in the segment own_segment, counts as committed, for they commit together; after that nothing can be published or cut in it any more (WR004). The caller holds advisory step 4. Errors: WR003. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._depths(integer[]) IS 'How many jobs of each lane wait to be claimed, those that were cancelled among them, and since when the longest-waiting of its first jobs has been ready; lanes without any are left out. Up to 10,000 of a lane and some 20,000 of all are counted; how many there are past that is an estimate, by a sample of pages. Locks: ACCESS SHARE on the log, which the caller lets go of.';
COMMENT ON ROUTINE weir._depths_later() IS 'How many jobs of each lane wait for their time, those that were cancelled among them: where there are more than 10,000, an estimate by a sample of pages for lanes that have 100 or more. Locks: ACCESS SHARE on the log, which the caller lets go of.';
COMMENT ON ROUTINE weir._depths_running() IS 'How many jobs of each lane are running: an estimate where workers have claimed so many batches, since what they hold was last compared, that only the newest are looked at. Locks: ACCESS SHARE on the log, which the caller lets go of.';
COMMENT ON ROUTINE weir._draw_epoch(bigint) IS 'Begins an epoch with a tick, and forgets those that are neither among the newest 1000 nor have a tick that can be read. The caller holds advisory step 4. Errors: none of its own. Isolation: any.';
COMMENT ON ROUTINE weir._end_attempts(integer,integer[],bigint[],smallint[],bigint[],weir.outcome[],text[],text[],timestamp with time zone[]) IS 'run_at -infinity stands for the queue''s backoff. Writes how attempts ended and logs those that follow. retried and lost become failed when the attempts are used up. The caller has seen that they have no end, and keeps it so.';
COMMENT ON ROUTINE weir._end_of(weir.job) IS 'When and by which worker a row of the log was claimed, and how that attempt ended. All NULL: it was not claimed; outcome NULL: it is running.';
COMMENT ON ROUTINE weir._ended_since(pg_snapshot,pg_snapshot) IS 'The stretches (low included, high not) of transactions that the second snapshot sees as ended and the first did not. It leaves out the 64 oldest in progress, so that a scan does not walk through what they have written: large ones are old. The last stretch may hold younger ones, whose rows nobody sees.';
COMMENT ON ROUTINE weir._epoch_here() IS 'The newest epoch, if it was drawn here, on this timeline, and since this server started; NULL: the next tick begins one. Whoever is about to cut a tick calls it first, every time: a session behind a pooler outlives a move. The caller holds advisory step 4. Errors: WR003 (the log comes from another cluster). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._epoch_home() IS 'Where ticks are cut: on which timeline, and in which of the copies that one server may hold. Errors: none on a primary. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._epoch_of(bigint) IS 'The epoch that a tick is of, also after it was truncated; NULL before the first. Both together tell ticks of all logs apart. Errors: none. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._fence(integer,text) IS 'Ends a worker: from the commit on it can neither claim nor record; settle logs again what it left, and the rescuer calls that too. False, and nothing done, while a transaction of the worker''s is claiming or recording. Errors: WR001 (unknown), WR004. Locks: advisory: the worker and its claims (exclusive, tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._fence_silent() IS 'Fences workers that were silent past their lease, by weir.watched, which it moves on, counted from the first look in this life of the server at the earliest, and those that attended since this server started and whose lock has been free for 3 seconds. Of these a crash or a failover leaves no trace in weir.attendance: then the lease counts, from when they were missed. Returns whom it fenced or missed; more is false for those to look at again in half a second; error is why one could not be fenced, among it that a prepared transaction holds it, and it holds up no other. The caller holds advisory step 6. Locks: advisory: their last words (exclusive, tried); see fence. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._first_look() IS 'What weir.watched showed at the first look in this life of the server at who does not attend, or shows, if there was none yet: no lease counts from before. 0 on a standby, where nobody is fenced.';
COMMENT ON ROUTINE weir._forget_ended() IS 'Has idle lanes forget the pending transactions that have ended and left nothing there, by a batch of nobody without jobs: each claim would look for their rows anew. Looks at 500 queues in a call, locks at most 200 lanes, and stops after 0.1 s. Returns how many lanes. Errors: WR003. Locks: advisory: claims (shared, tried), the lanes (tried). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._forget_workers() IS 'Deletes workers that have ended and left nothing, but for the newest thousand of the last day: what every heartbeat looks through stays about as large as the fleet. Results of such a worker are refused all the same, for it is unknown. Returns how many.';
COMMENT ON ROUTINE weir._fresh_between(xid8[],xid8) IS 'Who has logged between transactions in progress, asked once for all lanes: known[i] where at most four lanes have, between the i-th and the next; lanes are those of all such stretches. It looks between the 256 oldest, in the index of what leads, as fresh_lanes does.';
COMMENT ON ROUTINE weir._fresh_lanes(pg_snapshot,pg_snapshot,integer) IS 'The lanes with jobs of transactions that the second snapshot sees as ended and the first did not; NULL when more than so many rows would have to be looked through. It costs what is new, however many lanes there are.';
COMMENT ON ROUTINE weir._fresh_queues(pg_snapshot,bigint,integer,double precision,integer) IS 'The queues for which jobs were committed since seen, with how many (from a hundred on perhaps less than all), and seen and jobs to ask with next. Without seen it tells where to begin. Looks up to so many times, pause seconds apart; while no job is logged and nothing is committed, only counters are looked at. A commit alone counts from look patience + 1 on. Errors: 22023. Locks: none. Isolation: READ COMMITTED. It holds a snapshot while it waits: at most 1 second.';
COMMENT ON ROUTINE weir._held(integer,text) IS 'The second keys of the advisory locks of a class that are held in this database in a mode, by sessions, open transactions and prepared ones. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._hold_briefly() IS 'For whatever takes locks that others wait for, to be called in autocommit: in a transaction that is left open, the server ends the session when it has been idle for 10 seconds, and the locks with it.';
COMMENT ON ROUTINE weir._hold_ends(integer) IS 'To the end of the transaction nobody else ends an attempt of the worker''s, but for those returned: hashes of the ids of jobs that are being completed in open transactions. Locks: advisory: the worker''s ends (exclusive), its open completions (exclusive, tried).';
COMMENT ON ROUTINE weir._hold_segments(integer,integer[],bigint[]) IS 'Keeps a worker''s batches where they are to the end of the transaction. A result lies in its batch''s segment: that segment''s lock, shared, keeps it from being reclaimed meanwhile; the look is repeated under the lock, for the batch may have been carried elsewhere before it was held.';
COMMENT ON ROUTINE weir._holders() IS 'The workers that may hold jobs: all but those that have ended and left nothing.';
COMMENT ON ROUTINE weir._holds(integer) IS 'What a worker holds: its batches with jobs that have no result, and which jobs. It looks at what the worker has claimed since it was last settled.';
COMMENT ON ROUTINE weir._in_hand(integer[],bigint,integer) IS 'What some workers hold: of their batches up to a number those with jobs that have no result, and which jobs. Of each worker it looks at those that were open when it was last settled, and at the newest claimed since, at most so many: where there may be older ones, a row has is_last.';
COMMENT ON ROUTINE weir._in_progress() IS 'The transactions in progress, in order, and the one from which on none has ended: what a look steps over. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._is_crowded() IS 'Whether the server has hardly a connection left, or this database or a role has none, so that one who lost his may not get another.';
COMMENT ON ROUTINE weir._is_held(regclass[]) IS 'Whether a transaction of another session holds a lock on one of the tables, in whatever mode, and still does after a tenth of a second. Asking for ACCESS EXCLUSIVE would stall whoever comes after, and in vain.';
COMMENT ON ROUTINE weir._is_token(text) IS 'Whether a text has a token''s form. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._jobs_on(smallint,bigint) IS 'The jobs on one page of a segment.';
COMMENT ON ROUTINE weir._jsonb_of(text) IS 'A JSON text, with U+FFFD for escaped characters that PostgreSQL can''t keep, as they come in error messages. Errors: 22P02. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._keep_failures(integer,integer[],bigint[],smallint[],bigint[],text[],text[]) IS 'Writes down jobs that fail for good with these attempts. The caller writes the attempts'' ends in the same transaction.';
COMMENT ON ROUTINE weir._kept_failure(bigint,integer) IS 'How a job failed for good, in an attempt after that one, unless it was retried since.';
COMMENT ON ROUTINE weir._last_reclaimed() IS 'The number of the event by which a segment of jobs was given back last; 0: none was.';
COMMENT ON ROUTINE weir._last_says(integer) IS 'What a worker''s last word says; NULL: there is none any more.';
COMMENT ON ROUTINE weir._later_on(smallint,bigint) IS 'The scheduled jobs on one page of a segment.';
COMMENT ON ROUTINE weir._lock_log() IS 'Locks the log against TRUNCATE, so that the next snapshot shows every job where it is; the caller releases the locks. Errors: 40001, if the transaction''s snapshot is older than the last TRUNCATE (REPEATABLE READ and SERIALIZABLE only). Locks: ACCESS SHARE on the log; waits while a segment is being emptied.';
COMMENT ON ROUTINE weir._login_secret() IS 'What hubs make the salts of users from that do not exist, and how many iterations they show for them: the same at every hub, and such as this server gives its roles, so that nobody can tell who exists. For the role weir_hub alone. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._logins() IS 'The roles that may log in at hubs: with a SCRAM password, the right to connect to this database, and no way to become a superuser or to replicate. Hubs check passwords with the stored verifiers, as poolers do, without ever seeing one. listens and notifies are the channels and patterns that the role may LISTEN on and NOTIFY: null for all, none where it may not call weir.read or weir.publish here (see the roles weir_subscribe and weir_publish, and weir.restrict). For the role weir_hub alone. Errors: 42501. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._named_by(text[]) IS 'What tokens stand for, in their order: lane, batch and job. Errors: 22023. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._next(text,integer[],jsonb,integer) IS 'Up to most of the next jobs that are, or were, in a state, in some lanes or, for NULL, in all, after a key: each with the key to continue after it, when it ended, and what was read to find it, in units of a row. A row without an id only shows how far the search has come; no row means that there are no more.';
COMMENT ON ROUTINE weir._next_available(integer[],jsonb,integer) IS 'Jobs that wait to be claimed, in that order, after a key; no id for a cancelled one. Of more than 500 lanes in which jobs may wait, it takes 500 at a time, by priority and queue. See weir._next.';
COMMENT ON ROUTINE weir._next_cancelled(integer[],jsonb,integer) IS 'Cancelled jobs, after a key: those with a tombstone by id, newest first, then those that their handler cancelled. No id where one is of another queue. See weir._next.';
COMMENT ON ROUTINE weir._next_completed(integer[],jsonb,integer) IS 'Completed jobs, newest first, after a key: the place in each lane, or of all queues in each segment. No id where a result is of another outcome. See weir._next.';
COMMENT ON ROUTINE weir._next_failed(integer[],jsonb,integer) IS 'Jobs that failed, newest first, after a key; no id where one is of another queue. See weir._next.';
COMMENT ON ROUTINE weir._next_later(integer[],jsonb,integer) IS 'Jobs that wait for their time, by it, after a key; no id where one was cancelled. See weir._next.';
COMMENT ON ROUTINE weir._next_running(integer[],jsonb,integer) IS 'Running jobs, those of the newest batches first, after a key; a row without an id says how far it has looked. See weir._next.';
COMMENT ON ROUTINE weir._next_try(interval,interval,integer) IS 'When a job is tried again after so many tries: backoff after the first, twice as long after each that follows, up to backoff_limit, and a quarter less to a quarter more, so that those which failed together are not tried together. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir._note_word(integer,text,integer) IS 'Notes a worker''s last word. The caller holds its lock.';
COMMENT ON ROUTINE weir._pause_among(text[]) IS 'How long a worker that waits for work of these queues pauses between two looks, in seconds: 10 ms for each worker that shares one of them, so that a fleet looks as often as one worker would; 100 ms at most, for the others may all be busy. Errors: none. Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._prepared_for(integer) IS 'Says which prepared transaction has called record, claim or heartbeat for a worker, which therefore cannot be fenced before that transaction ends; NULL: none. PostgreSQL tells no function that its transaction will be prepared, so such calls are not refused.';
COMMENT ON ROUTINE weir._promote(integer,timestamp with time zone) IS 'Copies due attempts from later into the log, in the order of run_at, at most so many in one call; returns how many and when the next is due, if that is within 10 seconds (NULL: none is known, or another session is promoting). Where upto is given and not past, what is due until then is due, as if the clock showed it and then stepped back: for tests of jobs that are scheduled. Errors: WR003, WR004 (not in READ COMMITTED autocommit), 22023. Locks: advisory step 2 (tried). Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._publish_drafts(text[],bytea[],boolean[],boolean) IS 'For hubs: logs what several of its clients publish, each message for itself. Text must be in UTF-8. With cuts the next tick is cut in the same transaction, unless somebody else is at it; it is returned, with its epoch and that of the tick before, if it holds these messages and no others. Only in autocommit then: until the commit nobody else can cut, and what the transaction publishes after it would be in no tick, so that is refused (WR004). Errors: 22023; WR004 (this transaction has cut, or with cuts has written); with cuts WR003. Locks: with cuts advisory step 4 (tried); none that another caller waits for. Isolation: any.';
COMMENT ON ROUTINE weir._queue_id(text) IS 'The id of a queue, made if the name is new. Locks: none that another caller waits for. Isolation: any.';
COMMENT ON ROUTINE weir._read_job(bigint,integer) IS 'One job by id, see weir.job_info. Reads its newest row and the ends of up to ends attempts, however many rows the log holds of the job. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_page(text[],text,text[],jsonb,text,integer) IS 'A page of jobs as one snapshot shows them, see weir.jobs_page. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._read_queues() IS 'The queues as one snapshot shows them, see weir.queues. The caller has called weir._lock_log.';
COMMENT ON ROUTINE weir._reclaim(integer) IS 'Empties a closed segment, carrying its unclaimed and running jobs, xid and id unchanged, with their batches, into the active one. False when that is not done yet: it is in use, or more of it is unfinished than may be copied in one go, 10000 jobs or 8 MB; of those that wait to be claimed some have been carried then. Locks: advisory step 1 (tried); SHARE on the segment''s jobs (NOWAIT) during the look; to carry, the lanes (tried); to empty, claims (exclusive, waiting at most 50 ms), the segment (exclusive) and ACCESS EXCLUSIVE on its tables (at most 25 ms for each), and not even that while another transaction is seen to stay in them. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._reclaim_messages(integer,interval) IS 'Empties a closed segment of messages and ticks, when all of it has been in ticks, the last of them retention ago. False, and nothing done, when it is in use or too young. Locks: SHARE on the segment''s messages, advisory step 4 (tried), ACCESS EXCLUSIVE on its tables, waiting at most 10 ms for each.';
COMMENT ON ROUTINE weir._reconcile(integer,integer[],bigint[],integer[],bigint[],bigint) IS 'Compares what the database takes a worker to hold with what the worker says it does: lanes[i], seqs[i] name a batch, the next sizes[i] of ids are its jobs that the worker has not recorded. What it does not name is logged again, as not started, unless a transaction that completes it is open. To be called while the worker has no claim under way: after a claim or a connection failed, and now and then. In bounded steps: where next is not NULL, call again with it as after. Errors: 22023, WR001, WR004. Locks: advisory: the worker and claims (shared), the worker''s claims (exclusive, waiting at most 5 s), and its ends once there is something to log. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._record(integer,integer[],bigint[],integer[],bigint[],text[],text[],text[],timestamp with time zone[]) IS 'Records how attempts ended, many at once, each judged by itself: lanes[i], seqs[i] name a batch, the next sizes[i] of ids are its jobs; outcomes (completed where NULL), errors, outputs and run_at (when the next attempt is due, after retried, snoozed or released; at once where NULL, by the queue''s backoff where -infinity) go with ids. Returns those that were not recorded, by their place in ids: ended (the attempt has an end already: so the call may be repeated), lost (it is not this worker''s, for its claim was lost in a crash or it was handed out again: drop it), busy (a transaction of its handler''s that completes it is open: record it again later) or invalid; detail says what was wrong and what to do. Errors: 22023, WR001 (fenced), WR004. Locks: advisory: the worker and the segments (shared), the worker''s ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir._relog(integer,weir.outcome,text,integer[],bigint[],integer[],bigint[],bigint) IS 'Ends unfinished attempts of a worker, but for those named, and logs those that follow: some thousands in one call, and looks at 5,000 batches at most. Those that are being completed in open transactions it passes over: they stay exceptions. jobs: whose. next: call again with it as after, to go on; NULL: that was all. The caller holds the worker''s claims, and keeps reclaiming out.';
COMMENT ON ROUTINE weir._rescue() IS 'Fences workers that are gone or were silent past their lease, and logs again what fenced workers have left unfinished, in bounded steps: returns for which, why they ended, how many attempts (NULL for one that is fenced or missed just now), and of which jobs; where more is true, call again; error is why a worker could not be settled, which holds up no other. To be called about twice a second. Locks: advisory step 6, claims (shared) and the workers'' claims (tried); see fence_silent, fence and settle. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._results_in(integer,bigint,bigint,integer) IS 'Completed jobs of a segment, from the end of its results back, before a place (page * 65536 + line); a row with is_end false is of another outcome.';
COMMENT ON ROUTINE weir._results_of(integer,bigint,bigint,integer) IS 'Completed jobs of a lane, from its newest batches back, before a place; a row with is_end false is of another outcome.';
COMMENT ON ROUTINE weir._resurvey() IS 'Where there are more than a hundred queues, notes for looks in which lanes jobs wait, and how many were handed out of each: of what is new since the last survey and what waited then, or of 500 queues more; only once enough is new. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), claims (shared, tried); ACCESS EXCLUSIVE NOWAIT on weir.survey when it has grown and is emptied. Isolation: READ COMMITTED. Commits asynchronously.';
COMMENT ON ROUTINE weir._rotate() IS 'Takes the next step in the life of segments, if one is due: opens a free segment when the active one is a quarter of retention_bytes or half of completed_retention old; reclaims the oldest closed one, or carries some of it, when completed_retention has passed, or when no free one is left; then see rotate_failures. Returns what it did, or NULL. Locks: advisory step 1 (tried); see reclaim and rotate_failures.';
COMMENT ON ROUTINE weir._rotate_failures() IS 'Takes the next step in the life of the segments of failures: opens a free one when the active is a sixteenth of retention_bytes, or half of the longer of failed_retention and completed_retention old; empties the oldest when that time has passed since it was closed, or when no free one is left. Returns what it did, or NULL. The caller has advisory step 1. Locks: ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_later(bigint) IS 'Opens the next segment of later when the active one has reached segment_bytes, and gives back a closed one when all of it has been promoted, or, when space is needed, half of it and all but about 100,000, carrying the rest along unchanged. Returns what it did, or NULL. Locks: advisory step 2 (tried); ACCESS EXCLUSIVE on the segment, NOWAIT.';
COMMENT ON ROUTINE weir._rotate_messages() IS 'Takes the next step in the life of message segments, if one is due: opens a free one when the active one is half of message_retention old or a quarter of message_retention_bytes; gives the oldest closed one back when its newest message was delivered message_retention ago, or when no free one is left. Returns what it did, or NULL. Errors: WR004 (not in autocommit). Locks: advisory step 5 (tried); see reclaim_messages.';
COMMENT ON ROUTINE weir._seal(text[],text,text[],jsonb,jsonb) IS 'Ties a cursor to its list and to this database, with a secret that no client knows: what is inside a cursor with a valid seal was written by this code.';
COMMENT ON ROUTINE weir._segment_bytes(integer) IS 'What a segment takes on disk, with its indexes and with what lies in TOAST.';
COMMENT ON ROUTINE weir._segment_state(text,integer) IS 'opened, closed or reclaimed. A segment never used counts as reclaimed.';
COMMENT ON ROUTINE weir._set_twins_aside() IS 'Sets aside the twins of queues in which nothing is to be done, so that claims do not look at them any more, and takes back those where there is: a transaction may have looked the queue up before its older twin was there, and log a job long after. Returns how many changed.';
COMMENT ON ROUTINE weir._settle(integer) IS 'Logs again (or fails, if that was their last) attempts that a fenced worker has left unfinished: some thousands in one call; jobs: whose; more: call again. What a transaction that is still open completes waits for how that ends: the rescuer comes back to it. Errors: 22023 (not fenced), WR004. Locks: advisory: claims (shared), the worker''s claims and ends (exclusive, waiting at most 5 s). Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir._spans(xid8,pg_snapshot) IS 'The stretches (low included, high not) of transactions from from_xid on that have ended in the snapshot. Looking only there, a scan never walks through the rows of one in progress.';
COMMENT ON ROUTINE weir._start(text,text[],interval) IS 'Registers a worker, makes its queues and returns its id. From then on it must call heartbeat well within its lease, or its jobs are given to others. Errors: 22023; WR003 (the log comes from another cluster). Locks: none that others wait for. Isolation: any.';
COMMENT ON ROUTINE weir._surveyed(integer) IS 'The newest survey, with the lanes that have had jobs since among waiting; one that has reached no queue where there is none that holds, or more than so many rows would have to be looked through.';
COMMENT ON ROUTINE weir._tidy() IS 'One small chore at a time: sets twins aside, empties the heartbeat ring ahead of its turn, compacts the promoter''s cursor, the history of segments and how far workers have settled by TRUNCATE, and deletes what thousands of ended workers and cancellations have left, of these a part at a time: it looks at up to 1000, for 0.1 s; and has idle lanes forget transactions that have ended (see forget_ended). Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), ACCESS EXCLUSIVE NOWAIT on a table that it truncates; and see forget_ended.';
COMMENT ON ROUTINE weir._times_reclaimed(integer) IS 'The number of the event by which a segment of jobs was given back last: another one each time.';
COMMENT ON ROUTINE weir._unattended() IS 'Workers that are not fenced and whose attendance lock is free, each with its last word, if that is known still.';
COMMENT ON ROUTINE weir._unclaimed(integer,integer[],integer) IS 'The jobs in one segment that no batch has handed out yet: past the position, or of a pending transaction.';
COMMENT ON ROUTINE weir._unfinished(integer,bigint[]) IS 'Those of a worker''s batches with these numbers that have jobs without a result, and these jobs; none, where only the batch''s other part has some.';
COMMENT ON ROUTINE weir._unfinished_in(integer,bigint,bigint) IS 'As weir._unfinished, of all batches past a number and up to another.';
COMMENT ON ROUTINE weir._waiting(integer,xid8[],xid8,xid8,bigint,integer,xid8,bigint) IS 'Up to most jobs of a lane that wait to be claimed, including cancelled ones, in the order in which they will be claimed, after a place in that order and up to another one. running and top come from weir._in_progress: rows of transactions in progress are skipped, and not scanned. Locks: ACCESS SHARE on the log, which the caller releases.';
COMMENT ON ROUTINE weir._was_ahead(weir.promotion,timestamp with time zone,bigint,xid8) IS 'Whether a row of later was promoted before a clock stepped back, as a cursor that is kept beside the newest tells.';
COMMENT ON ROUTINE weir._watch(bigint,bigint,pg_snapshot,xid8,integer,double precision) IS 'For an idle worker: looks up to so many times, pause seconds apart, until the counters differ from those given, or a transaction below upto has ended that was in progress in seen: all of it as an earlier call returned it (at first 0, 0, NULL, NULL). jobs_now moves with every job logged, control_now with every cancellation and new queue, both even before the commit; ended tells of the transactions. Errors: 22023. Locks: none that others wait for. Isolation: READ COMMITTED, in autocommit. It holds a snapshot while it waits: at most 1 second.';
COMMENT ON ROUTINE weir._wrong_with(jsonb) IS 'What is wrong with an end that record was given; NULL: nothing. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.attend(integer,integer,inet,integer) IS 'Has this session speak for the worker: while it lasts the worker is alive, and once it has ended without another the worker is soon fenced. Only where nothing lies between that could cut the line with both ends alive: so the caller says the process id that it was given as it connected, and the address and port of its own end of the connection (both NULL for a Unix socket). If the server sees others, there is a pooler, a proxy or an address translation, and the answer is false: renew the lease by heartbeats. Where it is true call heartbeat by the same session, well within the lease: it writes nothing then, and keeps the session from being ended as idle. In autocommit, for a rollback does not take the lock back; to cease to attend end the session. Errors: WR001. Locks: advisory: the worker''s attendance (shared, for the session), its last word (shared), each waited for at most 5 s. Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.cancel(bigint) IS 'Cancels a job: one that has not started will not (cancelled); of a running one its worker is told, which cancels its context (requested). Otherwise nothing is done and the job''s final state returned, or NULL for an unknown id. A job that starts while this commits is told like a running one. Errors: see weir.job_info. Locks: none that others wait for, but a second cancel of the same job. Isolation: any.';
COMMENT ON ROUTINE weir.chores() IS 'What must be done about twice a second where no Go worker runs: CALL weir.chores(). Promotes jobs whose time has come, gives the jobs of lost workers to others, gives back space, tidies. Any number of processes may call it, and none waits for another. What goes wrong is a warning, and the next call tries again. It commits in between, so call it in autocommit (2D000 otherwise). Isolation: any, for its own are READ COMMITTED.';
COMMENT ON ROUTINE weir.complete(integer,text) IS 'Records an attempt as completed in a transaction of the caller''s: effects and completion commit together. The transaction may stay open: if the worker is fenced meanwhile, the attempt is handed out again when it has rolled back, and has ended when it commits. Errors: WR001 (fenced), WR002 (the attempt is not this worker''s, or has ended: roll back), WR004, 22023. Locks, to the end of the transaction: see _complete. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.enqueue(text,text,jsonb,integer,timestamp with time zone,integer,jsonb) IS 'Enqueues one job in the caller''s transaction and returns its id. It runs after the commit, never after a rollback; not before run_at if one is given. priority: 1 (first) to 4, 2 where NULL; max_attempts: 25 where NULL. Errors: 22023 with the value. Locks: ROW EXCLUSIVE on the log; nothing another enqueue waits for. Isolation: any.';
COMMENT ON ROUTINE weir.enqueue_many(jsonb) IS 'Enqueues up to 10000 jobs from a JSON array of objects with the argument names of enqueue as keys. Errors, locks, isolation: as enqueue.';
COMMENT ON ROUTINE weir.enqueue_many(text[],text[],jsonb[],integer[],timestamp with time zone[],integer[],jsonb[]) IS 'Enqueues up to 10000 jobs from parallel arrays, all or none, and returns their ids in order. A NULL in an optional array means its default. Errors, locks, isolation: as enqueue.';
COMMENT ON ROUTINE weir.enqueued(integer) IS 'The jobs that this transaction has enqueued, in that order, up to a limit of 1 to 10000. For tests, which check them and then roll back. The jobs of other transactions are not among them. Those that functions and triggers of other owners have enqueued in this transaction are; therefore the caller needs weir_work or weir_operate, which may read every job. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.heartbeat(integer,integer) IS 'Renews a worker''s lease; tells whether it is fenced, how many workers live, and how many of them share a queue with it. By a session that attends for the worker it writes only what has changed, and an idle worker uses up no transaction id. Locks: advisory: the worker''s last word (shared; a rescuer is waited for, at most 5 s). Isolation: any. Commits asynchronously.';
COMMENT ON ROUTINE weir.hubs() IS 'The hubs that have shown a sign of life in the last five minutes, and have not stopped since; behind is how many ticks had been cut by then that it had not dispatched.';
COMMENT ON ROUTINE weir.job_info(bigint) IS 'One job by id, in state available, running, scheduled, completed, failed or cancelled. No row if the id is unknown or the job''s retention is over. errors tells how its last 25 attempts ended, oldest first; of an attempt that was snoozed or released before it ended, only the end counts. If the job has failed and its segment has been reclaimed, errors holds only the last one. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.jobs(text,text,integer) IS 'The first jobs in one state, as rows, in the order that weir.jobs_page says: at most so many, 1 to 10000, and fewer where they stand behind very many that have come into another state. Errors and locks: as weir.jobs_page. Isolation: any.';
COMMENT ON ROUTINE weir.jobs_page(text[],text,text[],jsonb,text,integer) IS 'A page of the list of jobs in some states (NULL: all), of a queue, of some kinds, and whose meta contains meta: a JSON array of at most so many jobs, 1 to 1000, as weir.job_info shows them; and next, to be given as after for the page that follows, NULL when there is none. The states follow each other in the order in which they are named: available jobs in the order in which they will be claimed, scheduled ones by run_at, the others newest first (of completed ones about so: as they were recorded; of cancelled ones those that weir.cancel cancelled by id, then the others). A job that stays in its state while pages are read is on exactly one of them; one that comes into a state meanwhile may be on none. A page may have fewer jobs than max_rows, or none, and still a next: what one page looks at is bounded, however little a filter finds. Errors: 22023; 40001 as of weir.job_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.newest_tick() IS 'The newest tick. Errors: WR003 (the log comes from another cluster and needs weir.rebase_messages). Locks: none that others wait for, and none that outlast the call. Isolation: any.';
COMMENT ON ROUTINE weir.notify(text,text) IS 'weir.publish in the shape of PostgreSQL''s function of that name, to put in its place, also in triggers for each row: a message of up to 200 bytes that repeats the last one of its transaction is not even logged.';
COMMENT ON ROUTINE weir.notify_callers() IS 'What in this database still sends PostgreSQL''s own notifications: functions, with the line that does, the triggers that call them, rules and views. It reads their text, and may take a string for a call. What applications send themselves is not seen here. Sees what the caller may see. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.pause(text) IS 'Pauses a queue from the commit on: nothing more of it is claimed; what runs, runs on. False if there is no such queue.';
COMMENT ON ROUTINE weir.publish(text,text,boolean) IS 'Publishes a message with this transaction: it is delivered after the commit, to whoever subscribes to the channel, and not at all after a rollback, also of a savepoint. channel: 1 to 255 bytes. payload: up to message_bytes (default 1048576); null counts as empty. The same channel and payload in one transaction are delivered once, unless keep is true. Errors: 22023; WR004 (after publish_drafts with cuts in the same transaction). Locks: none that another caller waits for. Isolation: any.';
COMMENT ON ROUTINE weir.publish_bytes(text,bytea,boolean) IS 'weir.publish with a payload that is not text.';
COMMENT ON ROUTINE weir.publish_many(text[],text[],boolean) IS 'weir.publish for each pair of the arrays, in their order; returns how many. One bad message, and none is published. Errors: 22023. Locks: none that another caller waits for. Isolation: any.';
COMMENT ON ROUTINE weir.queues() IS 'Queues: how many of their jobs are available, running and scheduled, those that were cancelled and have not been met yet among them; since when the available job that has waited longest could have been claimed; and claimed, all that was ever handed out. Counted up to some 10,000, estimated to some percent past that: approximate says that one of a queue''s counts is an estimate. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed after the transaction took its snapshot. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';
COMMENT ON ROUTINE weir.read(bigint,bigint,integer,bigint) IS 'The messages of a tick after a given id, in order of publishing: at most max_rows, and of a tick that is longer than 10000 or larger than 8 MB about 8 MB at most. Errors: WR005 (truncated; the detail is epoch.tick of the last that was), WR006 (the tick is of another epoch; see check_position), 22023. Locks: none that others wait for, and none that outlast the call. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.rebase() IS 'After a restore or a move into another cluster: logs every unfinished attempt again under this cluster''s transaction ids and starts from new positions; fences all workers of before. Returns how many attempts, or NULL when there was nothing to do. Workers call it by themselves, without a statement_timeout. Errors: WR004 (not in READ COMMITTED autocommit); 57014 (cancelled, as by a statement_timeout; nothing has changed). Locks: everything of Weir''s, ACCESS EXCLUSIVE, waiting at most 10 s for each. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.rebase_messages() IS 'After a restore or a move into another cluster: logs messages that were in no tick yet again under this cluster''s transaction ids; what was in ticks is history that nobody can resume from, and goes. Returns how many, or NULL when there was nothing to do. Hubs call it by themselves. Locks: the messages'' tables, ACCESS EXCLUSIVE, waiting at most 10 s for each. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.record(integer,text) IS 'Records how attempts ended, many at once, each judged by itself: ends is a JSON array (as text, of at most 10000, and 64 MiB) of objects with a token; the outcome: completed (the default); failed: tried again while attempts are left, and, with "final": true, not; cancelled; or, without using up the attempt, snoozed (the job asked for it) or released (this worker can''t run it); error and output, texts that are kept; and delay, in seconds, of the next try (NULL: the queue''s backoff, see weir.set). Returns those that were not recorded: ended (the attempt has an end already: so the call may be repeated), lost (it is not this worker''s any more: drop it), busy (a transaction that completes it is open: record it again later) or invalid (with the detail: record it as failed, for it is held still, and runs again when it no longer is). Characters that PostgreSQL can''t keep become U+FFFD. Errors: 22023, 22P02 (no JSON), WR001 (fenced), WR004. Locks: see _record. Isolation: READ COMMITTED. Commits synchronously.';
COMMENT ON ROUTINE weir.restrict(text,text[],text[]) IS 'Restricts what a role may LISTEN on and NOTIFY at hubs to channels and patterns such as orders.*; null is all that its grants allow. It replaces what was said of the role before, and holds for who is connected within some seconds. In the database itself it changes nothing. Errors: 22023.';
COMMENT ON ROUTINE weir.resume(text) IS 'Resumes a queue. False if there is no such queue.';
COMMENT ON ROUTINE weir.retry(bigint) IS 'Logs another attempt of a job that completed, failed or was cancelled, and returns its new state; of any other, its state unchanged; NULL for an unknown id. Errors: WR004. Locks: a second retry of the same job waits. Isolation: READ COMMITTED.';
COMMENT ON ROUTINE weir.set(text,text) IS 'Changes a setting: completed_retention (how long completed and cancelled jobs can be looked at and retried, default 1 day), failed_retention (how long those that failed for good can, default 7 days, and as long as the others in any case), retention_bytes (what log and history may take together, default 4294967296, and a quarter more for jobs that failed; unfinished jobs are kept whatever they take), message_retention (how long a subscriber can resume from a position, default 1 hour), message_retention_bytes (what messages may take, default 1073741824) or message_bytes (the largest payload, default 1048576, at most 16777216). Errors: 22023.';
COMMENT ON ROUTINE weir.set(text,text,text) IS 'Changes a setting of a queue from the commit on: backoff (1 second), how long after its first failure a job is tried again; it doubles with each that follows, up to backoff_limit (1 hour), give or take a quarter. False if there is no such queue. Errors: 22023, 22007 (no interval). Locks: none that others wait for, but another change of the queue. Isolation: any.';
COMMENT ON ROUTINE weir.settings() IS 'All settings that weir.set changes, as they are: those of the database (queue is NULL), then those of each queue. Locks: none. Isolation: any.';
COMMENT ON ROUTINE weir.start(text,text[],interval) IS 'Registers a worker, makes its queues and returns its id. From then on it must call take (or heartbeat) well within its lease, 1 second to 5 minutes (30 seconds where NULL), or its jobs are given to others. A log that has come from another cluster is re-based first: that may take minutes, without a statement_timeout. Errors: 22023; see rebase. Locks: none that others wait for, but where it re-bases. Isolation: any; where it re-bases READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.stop(integer) IS 'Ends a worker. What it holds still is handed to others at once, and the attempt is not used up. False while a call of the worker''s is under way, or there is more to hand over: call it again. May be repeated. Errors: WR001 (unknown), WR004. Locks: see _reconcile, _fence and _settle. Isolation: READ COMMITTED, in autocommit.';
COMMENT ON ROUTINE weir.take(integer,text[],integer[],text[],text[],boolean,interval) IS 'The next rows for a worker to act on: event job, an attempt to run and then to record by its token; event cancel, an attempt that it holds (held) whose job was cancelled, to be interrupted. Up to limits[i] of queues[i] (all that the worker was started for, and 1 of each, where NULL; at most 960 of a priority in one call), priority by priority. Jobs of a kind that is not in kinds (NULL: all) are handed back for workers that have a handler, each time for longer. Where there is nothing it waits, for 1 second at most (wait; 0 does not) and half of what statement_timeout allows, and returns no row. It also renews the lease once a third of it has passed, so that two thirds at least are left, from when it was called; and compares what the database takes the worker to hold with held (the tokens of all that it has not recorded): what held does not name is given to others, a few times in a lease, and at once where lost says that the answer of a take got lost; a call that has written for this hands out nothing. One take of a worker at a time. Errors: WR001 (fenced: drop everything and start again), 22023, WR003, WR004, 55000 (the transaction is old: try again). Locks: see _claim and _reconcile. Isolation: READ COMMITTED, in autocommit. While it waits it holds a snapshot, and no lock that others wait for.';
COMMENT ON ROUTINE weir.ticks(bigint,bigint,integer,double precision,bigint) IS 'weir.tick for who reads and does not cut: a lock that a cut takes lasts until its transaction ends, so subscribers could stop everybody by not ending theirs. They see what hubs cut. Errors, isolation: as weir.tick with cuts => false. Locks: none that others wait for, and none that outlast the call.';
COMMENT ON ROUTINE weir.workers() IS 'Workers, newest first: alive, silent (past their lease, about to be fenced; reason, where there is one: why that can''t be) or ended, with the reason. Locks: none that others wait for.';
COMMENT ON SEQUENCE weir.active_failure IS 'The segment that failures are kept in.';
COMMENT ON SEQUENCE weir.active_job IS 'The segment that new jobs are logged in.';
COMMENT ON SEQUENCE weir.active_later IS 'The segment that jobs for later are logged in.';
COMMENT ON SEQUENCE weir.active_message IS 'The segment that new messages are logged in.';
COMMENT ON SEQUENCE weir.batch_no IS 'Numbers batches. A worker''s claims exclude each other, so its batches are numbered in the order of their commits.';
COMMENT ON SEQUENCE weir.cancel_looked IS 'How far tidying has looked through weir.cancellation, in the order of ids.';
COMMENT ON SEQUENCE weir.carried IS 'Bytes carried into the active segment, step by step, since it was opened.';
COMMENT ON SEQUENCE weir.control IS 'Counts what running workers must hear of: cancellations, pauses, new queues.';
COMMENT ON SEQUENCE weir.idle_looked IS 'How far tidying has looked through the queues for idle lanes, in the order of ids.';
COMMENT ON SEQUENCE weir.job_id IS 'Job ids. Its last_value also tells an idle worker whether anything was enqueued since it last looked.';
COMMENT ON SEQUENCE weir.message_id IS 'Message ids. Its last_value also tells a hub whether anything was published since it last looked.';
COMMENT ON SEQUENCE weir.tick_floor IS 'Ticks up to this one can no longer be read: messages of theirs have been truncated.';
COMMENT ON SEQUENCE weir.tick_seq IS 'The newest tick, or ahead of it: while that is being committed, and after a cut that was rolled back until the next.';
COMMENT ON SEQUENCE weir.watched IS 'For how long, in ms, the silence of workers has been watched: by each weir._rescue, for the time since the last, but 2 s at most, and 0.5 s while somebody is missed. An outage, a failover, a clock that steps and an hour in which nobody looked are not a worker''s silence.';
COMMENT ON SEQUENCE weir.watched_at IS 'What the server''s clock showed when weir.watched was moved on, in ms.';
COMMENT ON TABLE weir.attendance IS 'Workers that have attended, of the server they did it at when it was started, and what weir.watched showed then. Where there is none of this life of the server, a lock that is free says nothing. That of worker 0 is of the first look at who does not attend: in this life no lease counts from before.';
COMMENT ON TABLE weir.batch IS 'A slice of a lane and who works it, one row for each segment its jobs are in. The newest batch of a lane holds its position, its pending transactions and the total handed out.';
COMMENT ON TABLE weir.cancellation IS 'Tombstones: jobs that must not start, or must stop.';
COMMENT ON TABLE weir.epoch IS 'The lives of servers in which ticks were cut, each with the first tick of it: which of several logs, that were one and have parted, a tick is of. Never truncated: a row for each start of the server, the newest 1000 and those whose ticks can still be read.';
COMMENT ON TABLE weir.failure IS 'Jobs that have failed for good, each as it stood after the attempt it failed in; a copy, which outlives the job''s segment. It holds no transaction ids, so it means the same in another cluster.';
COMMENT ON TABLE weir.hub_beat IS 'Hubs'' signs of life, and the newest tick each has dispatched (NULL: it has stopped): a ring of three, five minutes each, truncated before its turn.';
COMMENT ON TABLE weir.job IS 'The log: one row for each attempt, and for each time that one was put off, with the transaction that logged it.';
COMMENT ON TABLE weir.last_word IS 'Workers'' last words, in the order of no: a ring of three, five minutes of weir.watched each, truncated before its turn. watched is what that register showed; at is for people.';
COMMENT ON TABLE weir.later IS 'Attempts with a run_at in the future: scheduled, retried, snoozed. The promoter copies them into the log when they are due.';
COMMENT ON TABLE weir.message IS 'The log of messages, with the transaction that published each. A payload that is not binary is text in UTF-8.';
COMMENT ON TABLE weir.promotion IS 'The promoter''s cursor, newest row: everything in later up to (due, due_id) that snapshot could see has been promoted.';
COMMENT ON TABLE weir.queue IS 'Queues by name. lane = id * 4 + priority - 1. A name may have several ids: two transactions that first use a name at the same time make one each rather than wait for one another.';
COMMENT ON TABLE weir.result IS 'How attempts ended: a row for each flush, batch and outcome. It lies in its batch''s segment.';
COMMENT ON TABLE weir.role_channel IS 'The channels and patterns that a role is restricted to at hubs; null: not restricted.';
COMMENT ON TABLE weir.segment IS 'What happened to segments, insert-only. The event with the greatest number of a segment is its state; at tells ages, never order.';
COMMENT ON TABLE weir.setting IS 'Settings, changed by an operator: see weir.set; the cluster this log belongs to; and the secret that seals the cursors of lists.';
COMMENT ON TABLE weir.settled IS 'How far a worker''s batches have all ended: up to number no, but for those listed. Insert-only; the row with the greatest no counts. The greatest number there is means that the worker is fenced and has left nothing.';
COMMENT ON TABLE weir.survey IS 'What is known of the lanes of queues up to the id upto, for looks; insert-only, and the newest row counts. Of what snapshot sees, all was handed out but in the lanes waiting; and lanes, totals and claimed_at tell what was ever handed out, and when last.';
COMMENT ON TABLE weir.tick IS 'A batch of messages: those of the transactions that its snapshot sees and that of the tick before did not. They are the transactions from from_xid up to the snapshot''s xmax that are not in progress in it, and the late ones, which were in progress before.';
COMMENT ON TABLE weir.worker IS 'A row (fenced false) when a worker starts, another (fenced true) when it stops or is fenced. Never updated.';
COMMENT ON TYPE weir.job_info IS 'A job as its newest attempt stands. error is why the last attempt ended as it did; errors are those of the last attempts still kept, oldest first: up to 25 from weir.job_info, one from a list.';
COMMENT ON TYPE weir.outcome IS 'How an attempt ended. completed, failed and cancelled are final; retried, snoozed, released (handed back unstarted) and lost (its worker died) are followed by another attempt.';

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
