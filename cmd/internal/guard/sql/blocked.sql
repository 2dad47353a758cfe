-- The sessions of this database that have waited for a lock for $1 or longer, longest first, and the sessions that they wait for. Each call of
-- pg_blocking_pids locks the whole table of locks for a moment, so there are at most $2 of them.
WITH waiting AS MATERIALIZED (
  SELECT l.pid, pg_catalog.min(l.waitstart) AS since
    FROM pg_catalog.pg_locks AS l
    JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
   WHERE NOT l.granted AND a.datname = pg_catalog.current_database() AND l.waitstart <= pg_catalog.clock_timestamp() - $1::interval
   GROUP BY l.pid
   ORDER BY since
   LIMIT $2
)
SELECT w.pid, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - w.since)::float8, pg_catalog.pg_blocking_pids(w.pid)
  FROM waiting AS w
