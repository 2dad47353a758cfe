-- Three roles: one may only enqueue, one may work (and enqueue), one operates (and works).
-- The tables are nobody's but the owner's; every function runs with its owner's rights.

DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['weir_enqueue', 'weir_work', 'weir_operate'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', r);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;  -- another database is being migrated at this moment
        WHEN insufficient_privilege THEN
          RAISE EXCEPTION 'weir: the role % is missing and % may not create roles', r, current_user
            USING ERRCODE = '42501', HINT = format('Let an administrator run: CREATE ROLE %I NOLOGIN', r);
      END;
    END IF;
  END LOOP;
END
$$;

REVOKE ALL ON SCHEMA weir FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA weir FROM PUBLIC;
GRANT USAGE ON SCHEMA weir TO weir_enqueue, weir_work, weir_operate;

GRANT EXECUTE ON FUNCTION weir.enqueue, weir.enqueue_many(text[], text[], jsonb[], integer[], timestamptz[], integer[], jsonb[]), weir.enqueue_many(jsonb)
  TO weir_enqueue, weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.worker_start, weir.heartbeat, weir.watch, weir.claim, weir.complete, weir.finish, weir.fence, weir.give_back, weir.has_ended, weir.cancelled_among,
  weir.promote, weir.rotate, weir.rotate_later, weir.rescue, weir.tidy, weir.rebase, weir.job_info TO weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.jobs, weir.queues, weir.workers, weir.cancel, weir.retry, weir.pause, weir.resume, weir.set TO weir_operate;
GRANT SELECT ON weir.available_jobs, weir.running_jobs, weir.later_jobs, weir.completed_jobs, weir.failed_jobs, weir.cancelled_jobs TO weir_operate;

-- down --
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA weir FROM weir_enqueue, weir_work, weir_operate;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA weir FROM weir_enqueue, weir_work, weir_operate;
REVOKE ALL ON ALL TABLES IN SCHEMA weir FROM weir_enqueue, weir_work, weir_operate;
REVOKE ALL ON SCHEMA weir FROM weir_enqueue, weir_work, weir_operate;
-- The roles belong to the whole server and stay.
