-- Slots that hold something, but for those that the server gave up. inactive_since is known since 17.
SELECT s.slot_name::text,
       s.slot_type,
       s.active,
       s.xmin::text::int8,
       s.catalog_xmin::text::int8,
       (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz,
       COALESCE(a.application_name, ''),
       COALESCE(pg_catalog.host(a.client_addr), '')
  FROM pg_catalog.pg_replication_slots AS s
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
 WHERE (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
   AND s.wal_status IS DISTINCT FROM 'lost'
