-- The server, and the guard's privileges there.
SELECT current_user::text,
       (SELECT system_identifier FROM pg_catalog.pg_control_system()),
       pg_catalog.current_setting('server_version'),
       pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'),
       pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
