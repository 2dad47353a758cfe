-- Which database of which running server it is: a copy of a cluster has its identifier, but was not started at the same moment.
SELECT c.system_identifier::text, pg_catalog.pg_postmaster_start_time(), d.oid, d.datname::text
  FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d
 WHERE d.datname = pg_catalog.current_database()
