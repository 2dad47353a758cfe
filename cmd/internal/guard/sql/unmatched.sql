-- The positions in $1, from 1, of the patterns that match no table, in the sense of tables.sql.
SELECT p.at::int4
  FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS p(pattern, at)
 WHERE NOT EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
          JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
           AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'
           AND n.nspname || '.' || c.relname LIKE p.pattern)
 ORDER BY p.at
