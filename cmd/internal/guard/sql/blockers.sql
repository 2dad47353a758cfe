-- The sessions of $1 that wait for no lock themselves. The columns are those of horizon.Session, in its order.
SELECT a.pid, a.backend_start, a.xact_start, GREATEST(a.xact_start, a.query_start, a.state_change), COALESCE(a.backend_type, ''),
       COALESCE(a.datname, '')::text, COALESCE(a.usename, '')::text, COALESCE(r.rolsuper, false), COALESCE(a.application_name, ''),
       COALESCE(pg_catalog.host(a.client_addr), ''), COALESCE(a.state, ''), COALESCE(a.wait_event_type || ':' || a.wait_event, ''),
       COALESCE(pg_catalog.left(a.query, 200), ''), a.backend_xid::text::int8, a.backend_xmin::text::int8
  FROM pg_catalog.pg_stat_activity AS a
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
 WHERE a.pid = ANY ($1) AND a.wait_event_type IS DISTINCT FROM 'Lock'
