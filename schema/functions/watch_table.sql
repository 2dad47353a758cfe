-- Changes of an application's rows as messages, by triggers for each statement: a statement that changes a million rows publishes a hundred messages for
-- each channel, not a million.
--
-- A trigger turns rows into JSON, which may call casts of the application's own types. So it does not run as Weir's owner: watch_table makes a function
-- beside the table, which belongs to the table's owner, and may only publish.

CREATE OR REPLACE FUNCTION weir.watch_table(table_name regclass, channel text, columns text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
DECLARE
  keys    text[] := ARRAY(SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, nr) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                          WHERE i.indrelid = watch_table.table_name AND i.indisprimary ORDER BY k.nr);
  known   text[] := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = watch_table.table_name AND a.attnum > 0 AND NOT a.attisdropped);
  name    text;     -- of the function, and how those of the triggers begin
  its     record;   -- the table
  made    text;     -- the function
  whose   text;     -- if it is there already
  call    text;
  wrong   text;
  at      record;
BEGIN
  SELECT c.relkind AS kind, n.nspname AS schema, c.relname AS name, r.rolname AS owner INTO its
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = watch_table.table_name;
  IF its.kind IS NULL OR its.kind NOT IN ('r', 'p') THEN
    RAISE EXCEPTION 'weir: % is not a table', coalesce(watch_table.table_name::text, 'null') USING ERRCODE = '42809', HINT = 'Watch the tables that a view is made of.';
  ELSIF its.schema = 'weir' THEN
    RAISE EXCEPTION 'weir: % is a table of Weir itself, and can''t be watched', watch_table.table_name USING ERRCODE = '42809';
  ELSIF NOT pg_has_role(its.owner, 'USAGE') THEN
    RAISE EXCEPTION 'weir: only the owner of %, %, may have it watched', watch_table.table_name, its.owner USING ERRCODE = '42501';
  ELSIF NOT has_function_privilege(its.owner, 'weir._publish_changes(text,text,text,text[],text[],jsonb[],jsonb[])', 'EXECUTE') THEN
    RAISE EXCEPTION 'weir: the owner of %, %, may not publish', watch_table.table_name, its.owner USING ERRCODE = '42501', HINT = format('GRANT weir_publish TO %I;', its.owner);
  ELSIF keys = '{}' THEN
    RAISE EXCEPTION 'weir: % has no primary key, by which a message could say which rows have changed', watch_table.table_name USING ERRCODE = '55000', HINT = 'Add a primary key.';
  ELSIF watch_table.channel IS NULL OR octet_length(watch_table.channel) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'weir: the channel has % bytes: it must have 1 to 255', coalesce(octet_length(watch_table.channel)::text, 'no') USING ERRCODE = '22023', HINT = 'For example orders, or orders.{id}.';
  ELSIF regexp_replace(watch_table.channel, '[{][^{}]+[}]', '', 'g') ~ '[{}*>]' THEN
    RAISE EXCEPTION 'weir: the channel "%" has a brace without its other one, or is a pattern', watch_table.channel USING ERRCODE = '22023', HINT = 'Put names of columns in braces, as in orders.{id}.';
  ELSIF array_ndims(watch_table.columns) > 1 THEN
    RAISE EXCEPTION 'weir: columns must be a list, got %', watch_table.columns USING ERRCODE = '22023';
  ELSIF watch_table.columns = '{}' THEN  -- no change would count, or every one
    RAISE EXCEPTION 'weir: columns is empty' USING ERRCODE = '22023', HINT = 'Name the columns whose changes count, or leave columns out if those of all count.';
  END IF;
  SELECT c INTO wrong FROM unnest(watch_table.columns || ARRAY(SELECT m[1] FROM regexp_matches(watch_table.channel, '[{]([^{}]+)[}]', 'g') m)) c WHERE c IS NULL OR c <> ALL (known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: % has no column "%"', watch_table.table_name, coalesce(wrong, 'null') USING ERRCODE = '42703', HINT = 'Its columns are ' || array_to_string(known[:20], ', ') || '.';
  END IF;
  SELECT format('%s.%I', p.pronamespace::regnamespace, p.proname), p.proname, pg_get_userbyid(p.proowner) INTO made, name, whose
  FROM pg_proc p WHERE p.oid = (SELECT min(w) FROM weir._watches_of(watch_table.table_name, watch_table.channel) w);
  IF made IS NULL THEN  -- a name that is free: after a restore, that of another table's function may be what this one's would be
    SELECT k.name INTO name
    FROM (SELECT nr, 'weir_watch_' || left(md5(concat_ws(' ', watch_table.table_name::oid, watch_table.channel, nullif(nr, 0))), 12) AS name FROM generate_series(0, 9) nr) k
    WHERE NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = quote_ident(its.schema)::regnamespace AND p.proname = k.name) ORDER BY k.nr LIMIT 1;
    made := format('%I.%I', its.schema, name);
  ELSIF whose <> its.owner THEN  -- who may call it, and would do so with the owner's rights?
    RAISE EXCEPTION 'weir: there is a function % already, and it belongs to %, not to the owner of %', made, whose, watch_table.table_name USING ERRCODE = '42723', HINT = 'Drop it, if it is left from a former owner of the table.';
  END IF;
  call := format('PERFORM weir._publish_changes(format(%L, TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_OP, %L, keys, %L, ', '%I.%I', watch_table.channel, coalesce(watch_table.columns, '{}'));
  -- Ten thousand rows or 16 MB at a time, because they are in memory. Only an update has both, the rows as they were and as they are; they belong together by
  -- the key. Columns are named nowhere but in texts: a statement of the application must not fail because one has another name now.
  -- The body is quoted as a whole, since names may contain any quotes.
  EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_hashagg = off AS %L', made, format($make$
    DECLARE
      keys text[];
      k    record;
    BEGIN
      IF to_regnamespace('weir') IS NULL THEN
        RETURN NULL;  -- Weir was removed
      END IF;
      keys := weir._keys_now(TG_RELID, %3$L);
      IF TG_OP = 'INSERT' THEN
        FOR k IN
          SELECT array_agg(r.new) AS news
          FROM (SELECT p.new, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.new)) OVER w / 16777216 AS nr FROM (SELECT to_jsonb(n.*) AS new FROM new_rows n OFFSET 0) p WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %1$s NULL, k.news);
        END LOOP;
      ELSIF TG_OP = 'DELETE' THEN
        FOR k IN
          SELECT array_agg(r.old) AS olds
          FROM (SELECT p.old, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.old)) OVER w / 16777216 AS nr FROM (SELECT to_jsonb(o.*) AS old FROM old_rows o OFFSET 0) p WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %1$s k.olds, NULL);
        END LOOP;
      ELSE
        FOR k IN
          SELECT array_agg(r.old) AS olds, array_agg(r.new) AS news
          FROM (SELECT p.old, p.new, (row_number() OVER w - 1) / 10000 + sum(pg_column_size(p.old) + pg_column_size(p.new)) OVER w / 16777216 AS nr
                FROM (SELECT o.old, n.new FROM (SELECT to_jsonb(o.*) AS old FROM old_rows o OFFSET 0) o FULL JOIN (SELECT to_jsonb(n.*) AS new FROM new_rows n OFFSET 0) n ON %2$s) p
                WHERE p.old IS DISTINCT FROM p.new WINDOW w AS (ROWS UNBOUNDED PRECEDING)) r
          GROUP BY r.nr ORDER BY r.nr
        LOOP
          %1$s k.olds, k.news);
        END LOOP;
      END IF;
      RETURN NULL;
    END
  $make$, call, (SELECT string_agg(format('o.old -> keys[%1$s] = n.new -> keys[%1$s]', i), ' AND ') FROM generate_subscripts(keys, 1) i), keys));
  EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', made);  -- or others could have it run on tables of theirs
  EXECUTE format('COMMENT ON FUNCTION %s() IS %L', made, 'weir.watch_table ' || jsonb_build_object('channel', watch_table.channel, 'columns', watch_table.columns)::text);
  EXECUTE format('ALTER FUNCTION %s() OWNER TO %I', made, its.owner);
  FOR at IN SELECT * FROM (VALUES ('insert', 'REFERENCING NEW TABLE AS new_rows'), ('update', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'), ('delete', 'REFERENCING OLD TABLE AS old_rows')) k(event, rows) LOOP
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s %s FOR EACH STATEMENT EXECUTE FUNCTION %s()', name || '_' || at.event, at.event, watch_table.table_name, at.rows, made);
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir.watch_table IS
  'From now on, publishes what statements change in a table, as one message for each channel and statement, in the transaction of the change. Names of columns in braces in the channel, as in orders.{id}, are replaced by the row''s values, in which dots, blanks and other special characters are written as %XX, and long ones as hashes, so that the channel fits. columns: only changes of these count, and the messages contain their new values; NULL: any change counts, and the messages contain only the primary key and the names of the columns that have changed. A message is {"table", "op", "rows", "changes": [{"op", "key", "changed", "new"}]}, with up to 1000 changes and 64 kB, or message_bytes if that is less; if there are more, or one is larger, "more" is true, and rows is how many there are. A statement that changes more than 10000 rows, or more than 16 MB of them, publishes a message of each channel for every 10000 or 16 MB. A row that moves to another channel is deleted in the one and inserted in the other. TRUNCATE is not seen, nor what logical replication changes, nor statements that name a partition or an inheriting table instead of this one. The key goes by the names that its columns have at the time; a column of the channel or of columns that is renamed or dropped counts as NULL until watch_table is called again. Calling it again changes nothing, or replaces the columns. It makes a function in the table''s schema, which belongs to the table''s owner, and three triggers. The owner needs weir_publish; who changes the table needs nothing. Errors: 22023 (the channel, or columns, which must not be empty), 42501 (the caller does not own the table, or the owner may not publish), 42703 (no such column), 42723 (its function belongs to somebody else), 42809 (no table), 55000 (no primary key). Locks: SHARE ROW EXCLUSIVE on the table, to the end of the transaction, as for any new trigger. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._keys_now(table_id oid, keys text[]) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
  SELECT coalesce((SELECT array_agg(a.attname::text ORDER BY k.nr) FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, nr)
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indrelid = _keys_now.table_id AND i.indisprimary), _keys_now.keys)
$$;
COMMENT ON FUNCTION weir._keys_now IS
  'The names of the columns of a table''s primary key, or keys, those that it had, if it has none any more. The functions that weir.watch_table has made call it. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._watches_of(table_name regclass, channel text) RETURNS SETOF oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
  -- By what the triggers call, not by a name: a restored table has another oid, and a table may have moved to another schema.
  SELECT DISTINCT p.oid
  FROM pg_trigger t
  JOIN pg_proc p ON p.oid = t.tgfoid AND left(p.proname, 11) = 'weir_watch_'
  CROSS JOIN LATERAL (SELECT obj_description(p.oid, 'pg_proc') AS d OFFSET 0) d
  WHERE t.tgrelid = _watches_of.table_name AND CASE WHEN left(d.d, 17) = 'weir.watch_table ' THEN substr(d.d, 18)::jsonb ->> 'channel' = _watches_of.channel END
$$;
COMMENT ON FUNCTION weir._watches_of IS
  'The functions that weir.watch_table has made for a table and channel: one, or none. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.unwatch_table(table_name regclass, channel text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
SET client_min_messages = warning  -- the triggers go with it, as they should
AS $$
DECLARE
  made  regprocedure;
  found boolean := false;
BEGIN
  FOR made IN SELECT * FROM weir._watches_of(unwatch_table.table_name, unwatch_table.channel) LOOP
    EXECUTE format('DROP FUNCTION %s CASCADE', made);  -- with its triggers
    found := true;
  END LOOP;
  RETURN found;
END
$$;
COMMENT ON FUNCTION weir.unwatch_table IS
  'Undoes weir.watch_table for this table and channel; false: it was not watched so. Errors: 42501. Locks: ACCESS EXCLUSIVE on the table, to the end of the transaction, as for the end of any trigger. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.watched_tables() RETURNS TABLE (table_name regclass, channel text, columns text[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
  SELECT t.tgrelid::regclass, d.d ->> 'channel', CASE WHEN jsonb_typeof(d.d -> 'columns') = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(d.d -> 'columns')) END
  FROM pg_proc p
  JOIN pg_trigger t ON t.tgfoid = p.oid AND t.tgparentid = 0 AND right(t.tgname, 7) = '_insert'
  CROSS JOIN LATERAL (SELECT substr(obj_description(p.oid, 'pg_proc'), 18)::jsonb AS d OFFSET 0) d
  WHERE left(p.proname, 11) = 'weir_watch_' AND left(obj_description(p.oid, 'pg_proc'), 17) = 'weir.watch_table '
  ORDER BY t.tgrelid::regclass::text, 2
$$;
COMMENT ON FUNCTION weir.watched_tables IS 'The tables that are watched, each with its channels and columns (NULL: any). Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._publish_changes(table_name text, op text, template text, keys text[], columns text[], olds jsonb[], news jsonb[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = auto
AS $$
#variable_conflict use_variable
DECLARE
  most      CONSTANT integer := 1000;  -- changes in a message
  -- And the bytes of all of it: what is too large would fail the application's statement.
  most_size integer := (SELECT least(65536, s.value::integer) FROM weir.setting s WHERE s.name = 'message_bytes');
  frame     jsonb   := jsonb_build_object('table', table_name, 'op', lower(op COLLATE "C"));
  channels  text[];
  payloads  text[];
BEGIN
  most_size := most_size - octet_length((frame || jsonb_build_object('rows', greatest(cardinality(olds), cardinality(news)) * 2, 'changes', '[]'::jsonb, 'more', true))::text);
  WITH changed AS (
    SELECT k.nr, k.old, k.new, CASE WHEN k.old IS NOT NULL THEN weir._channel_for(template, k.old) END AS was_in, CASE WHEN k.new IS NOT NULL THEN weir._channel_for(template, k.new) END AS is_in
    FROM unnest(olds, news) WITH ORDINALITY k(old, new, nr)
  ), told AS (
    -- A row that moves to another channel leaves the one, and comes into the other.
    SELECT c.nr, c.was_in AS channel, 'delete' AS what, c.old AS fields, NULL::text[] AS names FROM changed c WHERE c.old IS NOT NULL AND c.was_in IS DISTINCT FROM c.is_in
    UNION ALL
    SELECT c.nr, c.is_in, 'insert', c.new, NULL FROM changed c WHERE c.new IS NOT NULL AND c.is_in IS DISTINCT FROM c.was_in
    UNION ALL
    SELECT c.nr, c.is_in, 'update', c.new, d.names
    FROM changed c
    CROSS JOIN LATERAL (SELECT array_agg(n ORDER BY n) AS names FROM jsonb_object_keys(c.new) n WHERE c.old -> n IS DISTINCT FROM c.new -> n AND (columns = '{}' OR n = ANY (columns))) d
    WHERE c.was_in = c.is_in AND d.names IS NOT NULL
  ), entries AS (
    SELECT t.channel, t.nr, t.what, weir._fields_of(t.fields, keys) AS key,
           jsonb_build_object('op', t.what, 'key', weir._fields_of(t.fields, keys)) || CASE WHEN t.names IS NULL THEN '{}' ELSE jsonb_build_object('changed', t.names) END
           || CASE WHEN columns = '{}' OR t.what = 'delete' THEN '{}' ELSE jsonb_build_object('new', weir._fields_of(t.fields, columns)) END AS entry
    FROM told t
  ), sized AS (
    SELECT e.*, row_number() OVER w AS place, sum(octet_length(e.entry::text) + 2) OVER w AS size  -- each with a comma and a blank
    FROM entries e WINDOW w AS (PARTITION BY e.channel ORDER BY e.key, e.what ROWS UNBOUNDED PRECEDING)
  ), messages AS (
    SELECT s.channel, min(s.nr) AS nr,
           frame || jsonb_build_object('rows', count(*), 'changes', coalesce(jsonb_agg(s.entry ORDER BY s.place) FILTER (WHERE s.place <= most AND s.size <= most_size), '[]'))
           || CASE WHEN count(*) FILTER (WHERE s.place <= most AND s.size <= most_size) < count(*) THEN '{"more": true}'::jsonb ELSE '{}' END AS payload
    FROM sized s GROUP BY s.channel
  )
  SELECT array_agg(m.channel ORDER BY m.nr, m.channel), array_agg(m.payload::text ORDER BY m.nr, m.channel) INTO channels, payloads FROM messages m;
  IF channels IS NOT NULL THEN
    PERFORM weir.publish_many(channels, payloads, keep => true);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._publish_changes IS
  'Publishes how some rows have changed, a message for each channel; olds or news are NULL if rows were inserted or deleted. The functions that weir.watch_table has made call it, so it must keep its arguments. Errors: those of weir.publish_many. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._channel_for(template text, fields jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  most    CONSTANT integer := 255;  -- bytes
  hash    CONSTANT integer := 35;   -- bytes of %23 and an MD5
  channel text;
  field   text;
  part    text;
  longest integer;                  -- what is longer is written as a hash
BEGIN
  FOREACH longest IN ARRAY ARRAY[most, hash] LOOP
    channel := template;
    FOR field IN SELECT DISTINCT m[1] FROM regexp_matches(template, '[{]([^{}]+)[}]', 'g') m LOOP
      part := weir._channel_part(fields ->> field);
      channel := replace(channel, '{' || field || '}', CASE WHEN octet_length(part) > longest THEN '%23' || md5(fields ->> field) ELSE part END);
    END LOOP;
    IF octet_length(channel) <= most THEN
      RETURN channel;
    END IF;
  END LOOP;
  RETURN (SELECT string_agg(s.c, '' ORDER BY s.nr) FROM (SELECT k.c, k.nr, sum(octet_length(k.c)) OVER (ORDER BY k.nr) AS size FROM regexp_split_to_table(channel, '') WITH ORDINALITY k(c, nr)) s WHERE s.size <= most - hash)
         || '%23' || md5(channel);
END
$$;
COMMENT ON FUNCTION weir._channel_for IS 'The channel of a row: its template with the row''s values. If that has more than 255 bytes, values that are written with more than 35 are %23 and their MD5; if it still has, it is cut after 220, and %23 and the MD5 of all of it follow. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._channel_part(value text) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- What has a meaning in channels and templates, and what can't be seen. Of a long value only a hash fits into a channel.
  SELECT CASE WHEN _channel_part.value IS NULL THEN '%00'
              WHEN _channel_part.value = '' THEN '%'
              WHEN octet_length(_channel_part.value) > 60 THEN '%23' || md5(_channel_part.value)
              WHEN _channel_part.value !~ '[][:space:][:cntrl:].*>%{}]' THEN _channel_part.value
              ELSE (SELECT string_agg(CASE WHEN c ~ '[][:space:][:cntrl:].*>%{}]' THEN '%' || upper(lpad(to_hex(ascii(c)), 2, '0')) ELSE c END, '' ORDER BY nr)
                    FROM regexp_split_to_table(_channel_part.value, '') WITH ORDINALITY s(c, nr)) END
$$;
COMMENT ON FUNCTION weir._channel_part IS
  'A value as a part of a channel: dots, asterisks, greater-than signs, braces, percent signs, blanks and control characters as %XX; NULL as %00, an empty text as %, and one of more than 60 bytes as %23 and its MD5. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._fields_of(fields jsonb, names text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT jsonb_object_agg(n, _fields_of.fields -> n) FROM unnest(_fields_of.names) n
$$;
COMMENT ON FUNCTION weir._fields_of IS 'Some fields of an object. Errors: none. Locks: none. Isolation: any.';
