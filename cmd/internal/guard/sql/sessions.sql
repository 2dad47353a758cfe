-- Sessions that hold an xid or a snapshot, but for those that VACUUM itself leaves out of account: lazy vacuums, logical decoding (whose slot
-- counts instead), and the looker.
SELECT a.pid,
       a.backend_start,
       a.xact_start,
       GREATEST(a.xact_start, a.query_start, a.state_change),
       a.backend_type,
       COALESCE(a.datname, '')::text,
       COALESCE(a.usename, '')::text,
       COALESCE(r.rolsuper, false),
       COALESCE(a.application_name, ''),
       COALESCE(pg_catalog.host(a.client_addr), ''),
       COALESCE(a.state, ''),
       COALESCE(a.wait_event_type || ':' || a.wait_event, ''),
       a.backend_xid::text::int8,
       a.backend_xmin::text::int8,
       COALESCE(pg_catalog.left(a.query, 200), '')
  FROM pg_catalog.pg_stat_activity AS a
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
 WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
   AND a.pid <> pg_catalog.pg_backend_pid()
   AND a.backend_type <> 'parallel worker' -- its leader is there too
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s WHERE s.active_pid = a.pid AND s.slot_type = 'logical')
