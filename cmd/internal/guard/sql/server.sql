-- What the server is. The next xid is the one after the newest that has ended.
SELECT pg_catalog.clock_timestamp(),
       current_user::text,
       pg_catalog.pg_is_in_recovery(),
       (SELECT system_identifier FROM pg_catalog.pg_control_system()),
       pg_catalog.current_database()::text,
       pg_catalog.current_setting('server_version'),
       pg_catalog.current_setting('port')::int4,
       pg_catalog.current_setting('hot_standby_feedback')::bool,
       (pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 & 4294967295),
       pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'),
       pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
