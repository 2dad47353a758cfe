-- Cancels a session's statement, if the session is still the one that was judged, in the same transaction, and one of $4 still waits for it.
-- A commit that waits for a standby is spared, even if the wait began after the session was judged.
SELECT pg_catalog.pg_cancel_backend(a.pid)
  FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid = $1 AND a.backend_start = $2 AND a.xact_start = $3
   AND a.backend_type = 'client backend'
   AND a.wait_event IS DISTINCT FROM 'SyncRep'
   AND a.state IN ('active', 'fastpath function call')
   AND EXISTS (SELECT FROM pg_catalog.unnest($4::int4[]) AS w(pid) WHERE a.pid = ANY (pg_catalog.pg_blocking_pids(w.pid)))
