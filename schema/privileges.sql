-- Privileges. Only the owner may access the tables, and functions run with the owner's rights. Each role may call a part of the functions:
-- enqueue; work (and enqueue); operate (everything except functions for hubs alone); publish; subscribe; hub.

DO $$
DECLARE
  missing text[];
BEGIN
  SELECT array_agg(r ORDER BY ord) INTO missing
  FROM unnest(ARRAY['weir_enqueue', 'weir_work', 'weir_operate', 'weir_publish', 'weir_subscribe', 'weir_hub']) WITH ORDINALITY u(r, ord)
  WHERE NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = r);
  FOR i IN 1..coalesce(cardinality(missing), 0) LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', missing[i]);
    EXCEPTION
      WHEN duplicate_object OR unique_violation THEN NULL;  -- a concurrent migration of another database has created it
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'weir: the roles % do not exist, and % may not create roles', array_to_string(missing, ', '), current_user
          USING ERRCODE = '42501', HINT = 'Have an administrator run: CREATE ROLE ' || array_to_string(missing, ' NOLOGIN; CREATE ROLE ') || ' NOLOGIN;';
    END;
  END LOOP;
END
$$;

REVOKE ALL ON SCHEMA weir FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA weir FROM PUBLIC, weir_enqueue, weir_work, weir_operate, weir_publish, weir_subscribe, weir_hub;
REVOKE ALL ON ALL TABLES IN SCHEMA weir FROM weir_enqueue, weir_work, weir_operate, weir_publish, weir_subscribe, weir_hub;
GRANT USAGE ON SCHEMA weir TO weir_enqueue, weir_work, weir_operate, weir_publish, weir_subscribe, weir_hub;

GRANT EXECUTE ON FUNCTION weir.enqueue, weir.enqueue_unique, weir._enqueue_unique_many, weir.enqueue_many(text[], text[], jsonb[], integer[], timestamptz[], integer[], jsonb[], text[], bigint[], text[]), weir._enqueue_many, weir.enqueue_many(jsonb), weir._enqueue_json, weir._enqueue_request, weir._enqueue_requests, weir._hold_slot, weir._slots, weir.flow, weir.seal, weir.add_tasks, weir.increment
  TO weir_enqueue, weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.start, weir.take, weir.record, weir.progress, weir.checkpoint, weir.set_checkpoint, weir.stop, weir.complete, weir.attend, weir.heartbeat, weir.enqueued, weir.job_info, weir.jobs, weir.jobs_page, weir.cancel, weir.rebase,
  weir._start, weir._never_used, weir._queue_names, weir._watch, weir._claim, weir._record, weir._complete, weir._reconcile, weir._fence, weir._settle, weir._cancelled_among,
  weir._promote, weir._rotate, weir._rotate_history, weir._rotate_later, weir._rescue, weir._misses_one, weir._resurvey, weir._tidy, weir._fold_arrivals, weir._count_minutes, weir._step_operations TO weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.flow_info, weir.tasks TO weir_enqueue, weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.flows, weir.cancel_flow, weir.flow_outputs, weir.flow_running TO weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.retry_flow TO weir_operate;
GRANT EXECUTE ON PROCEDURE weir.chores TO weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.queues, weir.history, weir.workers, weir.retry, weir.pause, weir.resume, weir.set(text, text), weir.set(text, text, text), weir.settings, weir.set_limit, weir.clear_limit, weir.limits, weir.set_weight, weir.weights, weir.set_retry_rule, weir.drop_retry_rule, weir.retry_rules, weir.failure_groups, weir.hubs, weir.notify_callers, weir.restrict, weir.disconnect, weir.revoke, weir.revocations, weir._jobs_after, weir.keys_in_use TO weir_operate;
GRANT EXECUTE ON FUNCTION weir.set_schedule, weir.drop_schedule, weir.pause_schedule, weir.resume_schedule, weir.run_schedule, weir.schedules, weir.next_times TO weir_operate;
GRANT EXECUTE ON FUNCTION weir.queues TO weir_hub;  -- hubs export its counts as metrics
GRANT EXECUTE ON FUNCTION weir.storage TO weir_operate;
GRANT EXECUTE ON FUNCTION weir._assign_slots, weir._leave_slots, weir._holders_of_slots, weir._depart, weir._close_slots, weir._departing, weir._taken_upto, weir._take_in, weir._own_slots, weir._clear_departed, weir._stop_taking, weir._stay TO weir_operate;
GRANT EXECUTE ON FUNCTION weir.delete, weir.cancel_where, weir.retry_where, weir.delete_where, weir.move_where, weir.begin_operation, weir.stop_operation, weir.operations TO weir_operate;
GRANT SELECT ON weir.available_jobs, weir.running_jobs, weir.scheduled_jobs, weir.completed_jobs, weir.failed_jobs, weir.cancelled_jobs TO weir_operate;

GRANT EXECUTE ON FUNCTION weir.publish, weir.publish_bytes, weir.publish_many, weir.notify TO weir_publish, weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir.watch_table, weir.unwatch_table, weir.watched_tables, weir._publish_changes, weir._keys_now, weir._watches_of TO weir_publish, weir_operate;
-- Subscribers only read, and can't block other sessions for long: functions that cut, rebase or reclaim are for hubs.
GRANT EXECUTE ON FUNCTION weir.ticks, weir.read, weir.newest_tick, weir._epoch_of TO weir_subscribe, weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir._await_tick, weir.rebase_messages TO weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir._rotate_messages TO weir_hub, weir_work, weir_operate;
GRANT EXECUTE ON FUNCTION weir.revocations, weir.disconnect, weir.revoke, weir._publish_drafts, weir._beat, weir._fresh_queues, weir._logins, weir._login_secret TO weir_hub;
GRANT EXECUTE ON FUNCTION weir._relay_reached, weir._relay_position, weir._first_tick_after, weir._shared_upto TO weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir.relays TO weir_hub, weir_operate;
GRANT EXECUTE ON FUNCTION weir.forget_relay TO weir_operate;
