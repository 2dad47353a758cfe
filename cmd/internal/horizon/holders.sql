-- The possible holders of a server's vacuum horizon. The first row is the server itself: its database, whether it is a standby, and the next
-- xid, all at one moment.
--
-- Omitted are those that VACUUM itself ignores (lazy vacuums; logical decoding, whose slot counts instead), parallel workers, whose
-- leader is listed, lost slots, and the querying session.
SELECT 'server' AS kind, pg_catalog.current_database()::text AS name, NULL::int4 AS pid, NULL::timestamptz AS connected,
       pg_catalog.clock_timestamp() AS started, NULL::timestamptz AS quiet, '' AS backend, '' AS database, '' AS role, false AS superuser,
       '' AS application, '' AS client, '' AS state, '' AS wait, '' AS query, pg_catalog.pg_is_in_recovery() AS active,
       (pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 & 4294967295) AS xid, NULL::int8 AS xmin, NULL::int8 AS catalog_xmin
UNION ALL
SELECT 'session', '', a.pid, a.backend_start, a.xact_start, GREATEST(a.xact_start, a.query_start, a.state_change),
       COALESCE(a.backend_type, ''), COALESCE(a.datname, '')::text, COALESCE(a.usename, '')::text, COALESCE(r.rolsuper, false),
       COALESCE(a.application_name, ''), COALESCE(pg_catalog.host(a.client_addr), ''), COALESCE(a.state, ''),
       COALESCE(a.wait_event_type || ':' || a.wait_event, ''), COALESCE(pg_catalog.left(a.query, 200), ''), true,
       a.backend_xid::text::int8, a.backend_xmin::text::int8, NULL
  FROM pg_catalog.pg_stat_activity AS a
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
 WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
   AND a.pid <> pg_catalog.pg_backend_pid()
   AND a.backend_type <> 'parallel worker'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s WHERE s.active_pid = a.pid AND s.slot_type = 'logical')
UNION ALL
SELECT 'prepared', p.gid, NULL, NULL, p.prepared, p.prepared, '', p.database::text, p.owner::text, false, '', '', '', '', '', false,
       p.transaction::text::int8, NULL, NULL
  FROM pg_catalog.pg_prepared_xacts AS p
UNION ALL
-- inactive_since exists from 17 on.
SELECT s.slot_type || ' slot', s.slot_name::text, s.active_pid, NULL, NULL, (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz,
       '', COALESCE(s.database, '')::text, '', false, COALESCE(a.application_name, ''), COALESCE(pg_catalog.host(a.client_addr), ''), '', '', '',
       s.active, NULL, s.xmin::text::int8, s.catalog_xmin::text::int8
  FROM pg_catalog.pg_replication_slots AS s
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
 WHERE (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
   AND s.wal_status IS DISTINCT FROM 'lost'
