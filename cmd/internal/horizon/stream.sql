-- What a server tells about streaming, and, if it is a standby, from where it streams.
SELECT pg_catalog.current_setting('hot_standby_feedback')::bool, pg_catalog.current_setting('port')::int4, w.pid IS NOT NULL,
       COALESCE(w.slot_name, ''), COALESCE(w.conninfo, ''), COALESCE(w.sender_port, 0)
  FROM (SELECT) AS one
  LEFT JOIN pg_catalog.pg_stat_wal_receiver AS w ON true
