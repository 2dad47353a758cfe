-- The server that a standby streams from.
SELECT COALESCE(w.slot_name, ''), COALESCE(w.conninfo, ''), COALESCE(w.sender_port, 0)
  FROM pg_catalog.pg_stat_wal_receiver AS w
