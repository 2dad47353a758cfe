-- The tables with the most dead rows that match a pattern of $1 (empty: all tables). "usual" is the number of dead rows at which
-- autovacuum starts, which a healthy table may therefore have at any time; 0 if autovacuum is off for the table.
-- autovacuum_vacuum_max_threshold exists since PostgreSQL 18.
SELECT t.name, t.dead, t.vacuumed,
       CASE WHEN COALESCE(o.enabled, 'on')::bool AND pg_catalog.current_setting('autovacuum')::bool THEN
            LEAST(COALESCE(o.threshold, pg_catalog.current_setting('autovacuum_vacuum_threshold'))::float8
                  + COALESCE(o.scale, pg_catalog.current_setting('autovacuum_vacuum_scale_factor'))::float8 * t.rows,
                  NULLIF(COALESCE(o.most, pg_catalog.current_setting('autovacuum_vacuum_max_threshold', true))::float8, -1))::int8
            ELSE 0 END
  FROM (
        SELECT n.nspname || '.' || c.relname AS name, c.reloptions, GREATEST(c.reltuples, 0)::float8 AS rows,
               pg_catalog.pg_stat_get_dead_tuples(c.oid) AS dead,
               GREATEST(pg_catalog.pg_stat_get_last_vacuum_time(c.oid), pg_catalog.pg_stat_get_last_autovacuum_time(c.oid)) AS vacuumed
          FROM pg_catalog.pg_class AS c
          JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
           AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'
           AND (pg_catalog.cardinality($1::text[]) = 0 OR n.nspname || '.' || c.relname LIKE ANY ($1::text[]))
       ) AS t
 CROSS JOIN LATERAL (
        SELECT pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled') AS enabled,
               pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
               pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS scale,
               pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_max_threshold') AS most
          FROM pg_catalog.pg_options_to_table(t.reloptions)
       ) AS o
 WHERE t.dead > 0
 ORDER BY t.dead DESC
 LIMIT 50
