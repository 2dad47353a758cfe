-- Cancels a session's statement, if the session is still the one that was judged, in the same transaction, with the same xid ($4) or
-- the same snapshot ($5, its oldest xid).
-- A commit that waits for a standby is spared, even if the wait began after the session was judged.
SELECT pg_catalog.pg_cancel_backend(a.pid)
  FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid = $1 AND a.backend_start = $2 AND a.xact_start = $3
   AND (a.backend_xid::text::int8 = $4 OR a.backend_xmin::text::int8 = $5)
   AND a.backend_type = 'client backend'
   AND a.wait_event IS DISTINCT FROM 'SyncRep'
   AND a.state IN ('active', 'fastpath function call')
