SELECT p.gid, p.transaction::text::int8, p.prepared, p.owner::text, p.database::text
  FROM pg_catalog.pg_prepared_xacts AS p
