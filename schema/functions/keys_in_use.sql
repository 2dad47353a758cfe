-- Which keys encrypt what may still be read: those that nothing has can be removed (docs/encryption.md).

CREATE OR REPLACE FUNCTION weir._key_of(stored text) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT substring(left(_key_of.stored, 200) FROM '^[{]"weir[.]encrypted": ?[{]"key": ?"([^"]*)"')
$$;
COMMENT ON FUNCTION weir._key_of IS 'The id of the key of an encrypted text; NULL: it is not encrypted. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.keys_in_use() RETURNS TABLE (key text, place text, n bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
SET enable_hashjoin = off
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
COMMENT ON FUNCTION weir.keys_in_use IS
  'The keys with which something is encrypted that will be read, or may be: key is the id, n how many there are in this place. Places: jobs (args of jobs that wait, run, or are scheduled or to be tried again), failed jobs and cancelled jobs (args; they can be retried), schedules (args), flows (callbacks that may still come, also once more after weir.retry_flow), tasks (args of those that have not started), flow outputs (those of weir.flow_outputs, as long as the flow is kept); and of the jobs named here, checkpoints (the last), messages (the last), log lines, and errors and outputs (of the last attempt); there n counts jobs. It does not look at completed jobs, and does not see what open transactions have written. It reads all schedules, flows and jobs but completed ones, about 3,000 jobs a second, in one snapshot, and holds off the reclaiming of segments meanwhile: call it when you rotate keys, not to monitor. Errors: 40001, in REPEATABLE READ and SERIALIZABLE, if a segment was reclaimed or flows were compacted after the transaction took its snapshot; 57014, if statement_timeout is too short. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied or flows are being compacted. Isolation: any.';
