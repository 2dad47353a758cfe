-- What Weir's tables take on disk, and which segments exist.

CREATE OR REPLACE FUNCTION weir.storage()
RETURNS TABLE (log text, segment integer, state text, since timestamptz, opened_at timestamptz, reclaim_at timestamptz, bytes bigint, index_bytes bigint, max_bytes bigint, holders integer[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
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
COMMENT ON FUNCTION weir.storage IS
  'What Weir''s tables take on disk. One row for each segment of each log: job (with batches, results and turns), later (scheduled jobs), failure, report, message (with ticks). state is active (new rows go there), closed (it is kept until reclaim_at, at least) or free (emptied, or never used: since is NULL); since is when it came to be so; opened_at is when its oldest rows came, apart from those that were carried into it; bytes include index_bytes and TOAST; from max_bytes on, the next segment is opened, if one is free. holders are the pids of up to 10 transactions that began a second ago or earlier, as far as the schema''s owner may see that, and hold a lock on a closed segment past its reclaim_at (0: a prepared one): they keep it from being reclaimed. Then one row each, without a segment, for the tables of flows (flow) and all others (control). It reads the sizes of files, and no rows but the history of segments. Errors: 40001 (REPEATABLE READ and SERIALIZABLE only, if that was compacted since the snapshot). Locks: none that others wait for, and none that outlast the call; it waits while a segment is being emptied. Isolation: any.';
