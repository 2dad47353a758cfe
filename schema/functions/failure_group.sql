-- Failures, grouped by kind and by the shape of the error: the text without what differs from one job to the next.

CREATE OR REPLACE FUNCTION weir._shape_of(error text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  trace  CONSTANT text := 'Traceback (most recent call last):';
  frames CONSTANT text := E'\n  File "';
  line   text;
  tail   text;
  frame  integer;
BEGIN
  IF left(_shape_of.error, 18) = '{"weir.encrypted":' THEN
    RETURN '<encrypted>';
  END IF;
  -- The line with the message: of a traceback of Python's the first one after the last frame, whose lines are indented, otherwise the text's first. Below it
  -- drivers add more, such as DETAIL and a caret. Without a frame in sight it is the last line, but for what a retry rule has added.
  line := coalesce(substring(left(_shape_of.error, 1000) FROM E'[^[:space:]][^\\r\\n]*'), '');
  IF right(rtrim(line), length(trace)) = trace THEN
    line := left(rtrim(line), -length(trace));
    tail := regexp_replace(right(_shape_of.error, 2000), E'\n\\[[a-z]+ by retry rule [^\n]*$', '');
    frame := strpos(reverse(tail), reverse(frames));
    line := line || coalesce(
      CASE WHEN frame > 0 THEN substring(right(tail, frame + length(frames) - 1) FROM E'\n([^[:space:]][^\\r\\n]*)') END,
      substring(rtrim(tail, E' \r\n\t') FROM E'[^\\r\\n]*$'), '');
  END IF;
  line := left(line, 300);
  -- Most lines have little of this, and to look for a character takes a tenth of the time of a regular expression.
  IF strpos(line, '-') > 0 THEN
    line := regexp_replace(line, E'\\m[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\\M', '<uuid>', 'g');
    line := regexp_replace(line, '[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?([.,][0-9]+)?(Z| ?[+-][0-9]{2}(:?[0-9]{2})?)?', '<time>', 'g');
  END IF;
  IF strpos(line, '@') > 0 THEN
    line := regexp_replace(line, '[^[:space:]<>"''@,;:()]+@[^[:space:]<>"''@,;:()]+', '<email>', 'g');
  END IF;
  IF strpos(line, '"') > 0 THEN
    line := regexp_replace(line, E'"([^"\\\\]|\\\\.)*"', '"<text>"', 'g');
  END IF;
  IF strpos(line, '`') > 0 THEN
    line := regexp_replace(line, '`[^`]*`', '`<text>`', 'g');
  END IF;
  IF strpos(line, '''') > 0 THEN
    line := regexp_replace(line, E'(^|[^[:alnum:]])''([^''\\\\]|\\\\.)*''(?![[:alnum:]])', E'\\1''<text>''', 'g');  -- not the apostrophe of a word
  END IF;
  IF strpos(line, '://') > 0 THEN
    line := regexp_replace(line, E'(\\m[a-z][a-z0-9+.-]*://[^/[:space:]"''?#)]+)[/?#][^[:space:]"'')]*', E'\\1/<path>', 'gi');
  END IF;
  IF line ~ '[0-9]' THEN
    IF strpos(line, '0x') > 0 THEN
      line := regexp_replace(line, E'\\m0x[0-9a-fA-F]+\\M', '<hex>', 'g');
    END IF;
    line := regexp_replace(line, E'\\m(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\\M', '<hex>', 'g');
    IF strpos(line, '/') > 0 OR strpos(line, E'\\') > 0 THEN
      line := regexp_replace(line, E'([/\\\\])[^[:space:]/\\\\"'':)]*[0-9][^[:space:]/\\\\"'':)]*(?=[/\\\\])', E'\\1<n>', 'g');
    END IF;
    -- Numbers, but not codes: status 404, SQLSTATE 23505, [Errno 111]. Parts of an address, a version or a list are one.
    line := regexp_replace(line, E'(?<!\\m(?:status|code|http|https|sqlstate|errno|exit)[ :=#]{0,2})(?<![0-9])[0-9]+([.,:][0-9]+)*', '<n>', 'gi');
  END IF;
  RETURN btrim(line);
END
$$;
COMMENT ON FUNCTION weir._shape_of IS
  'The shape of an error: the line that contains its message, up to 300 characters, with <uuid>, <time>, <email>, <path>, <text>, <hex> and <n> for what differs from one job to the next; of an encrypted text, <encrypted>. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._has_shape(error text, shape text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  -- Of the parts of the text that weir.failure_groups groups by.
  RETURN weir._shape_of(concat(left(_has_shape.error, 1000), CASE WHEN length(_has_shape.error) > 1000 THEN right(_has_shape.error, 2000) END)) = _has_shape.shape;
END
$$;
COMMENT ON FUNCTION weir._has_shape IS 'Whether weir.failure_groups puts a job with this error into the group of this shape. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._failed_between(lanes bigint[], since timestamptz, before timestamptz, most integer) RETURNS SETOF timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET cursor_tuple_fraction = 0.001
AS $$
  SELECT f.finished_at FROM (
    (SELECT f.finished_at FROM weir.failure f
     WHERE _failed_between.lanes IS NULL AND f.finished_at >= _failed_between.since AND f.finished_at < _failed_between.before
     ORDER BY f.finished_at DESC LIMIT _failed_between.most)
    UNION ALL
    SELECT f.finished_at FROM unnest(_failed_between.lanes) l(lane) CROSS JOIN LATERAL (
      SELECT f.finished_at FROM weir.failure f
      WHERE f.lane = l.lane AND f.key IS NOT NULL AND f.finished_at >= _failed_between.since AND f.finished_at < _failed_between.before
      ORDER BY f.finished_at DESC, f.id DESC LIMIT _failed_between.most) f) f  -- worded so that their own index is used
  ORDER BY f.finished_at DESC LIMIT _failed_between.most
$$;
COMMENT ON FUNCTION weir._failed_between IS 'When the newest failures of a time were, up to most; in some lanes of a key, or for NULL in all.';

CREATE OR REPLACE FUNCTION weir.failure_groups(
  queue text DEFAULT NULL, kind text DEFAULT NULL, since timestamptz DEFAULT NULL, before timestamptz DEFAULT NULL, max_rows integer DEFAULT NULL, key text DEFAULT NULL)
RETURNS SETOF weir.failure_group
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET cursor_tuple_fraction = 0.001
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most  CONSTANT integer := 5000;  -- failures that are looked at: so many are grouped in a few hundredths of a second
  ids   bigint[];
  lanes bigint[];  -- of the key in the queue: only there are they indexed
  rest  timestamptz;
  newest record;
  none  weir.failure_group;
BEGIN
  max_rows := coalesce(failure_groups.max_rows, 100);
  IF max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: failure_groups returns 1 to 10000 groups, got max_rows %', max_rows USING ERRCODE = '22023';
  END IF;
  PERFORM weir._check_key(failure_groups.key);
  since := coalesce(failure_groups.since, '-infinity');
  before := coalesce(failure_groups.before, 'infinity');
  IF failure_groups.queue IS NOT NULL THEN
    ids := ARRAY(SELECT q.id FROM weir.queue q WHERE q.name = failure_groups.queue);
    lanes := CASE WHEN failure_groups.key IS NOT NULL THEN weir._lanes_of_key(failure_groups.queue, failure_groups.key) END;
  END IF;
  -- The newest ones, and all that ended at the same time as the last of them: so that a next call continues before that time.
  SELECT count(*) >= most AS is_cut, min(k) AS upto INTO newest
  FROM weir._failed_between(lanes, since, before, most) k;
  rest := CASE WHEN newest.is_cut AND EXISTS (SELECT FROM weir._failed_between(lanes, since, newest.upto, 1)) THEN newest.upto END;
  RETURN QUERY
  WITH seen AS MATERIALIZED (
    SELECT f.id, f.kind, f.finished_at, left(f.error, 1000) AS head, CASE WHEN length(f.error) > 1000 THEN right(f.error, 2000) END AS tail
    FROM (SELECT f.* FROM weir.failure f WHERE lanes IS NULL AND f.finished_at >= newest.upto AND f.finished_at >= since AND f.finished_at < before
          UNION ALL
          SELECT f.* FROM unnest(lanes) l(lane) CROSS JOIN LATERAL (
            SELECT f.* FROM weir.failure f WHERE f.lane = l.lane AND f.key IS NOT NULL AND f.finished_at >= newest.upto AND f.finished_at >= since AND f.finished_at < before
            ORDER BY f.finished_at DESC, f.id DESC LIMIT 2 * most) f) f
    WHERE (ids IS NULL OR f.lane >> 39 = ANY (ids)) AND (failure_groups.kind IS NULL OR f.kind = failure_groups.kind) AND (failure_groups.key IS NULL OR f.key = failure_groups.key)
      -- A job that was retried, or has failed again since, is not failed as it was here.
      AND NOT EXISTS (SELECT FROM weir.failure k WHERE k.id = f.id AND k.attempt > f.attempt AND k.segment = f.segment)  -- see weir._retry
    LIMIT 2 * most
  ), texts AS MATERIALIZED (  -- the same text often occurs many times
    SELECT s.kind, s.head, s.tail, count(*) AS n, min(s.finished_at) AS first_at, max(s.finished_at) AS last_at, max(s.id) AS id FROM seen s GROUP BY s.kind, s.head, s.tail
  ), shapes AS MATERIALIZED (
    SELECT t.*, weir._shape_of(concat(t.head, t.tail)) AS shape FROM texts t
  )
  SELECT g.kind, g.shape, sum(g.n)::bigint, min(g.first_at), max(g.last_at), (array_agg(g.id ORDER BY g.last_at DESC))[1],
         (array_agg(g.head ORDER BY g.last_at DESC))[1], rest
  FROM shapes g GROUP BY g.kind, g.shape ORDER BY 3 DESC, 5 DESC, 1, 2 LIMIT max_rows;
  IF NOT FOUND AND rest IS NOT NULL THEN
    none.jobs := 0;
    none.rest := rest;
    RETURN NEXT none;
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.failure_groups IS
  'Jobs that have failed for good and have not been retried, grouped by kind and by the shape of the error (its text without numbers, ids, quoted texts and the like), the largest groups first, up to max_rows (100). Only of that queue, kind and key, and only those that failed at since or later, and before that time (NULL: any). Each group has the number of jobs, when the first and the last of them failed, and one of the last, with up to 1000 characters of its error. A call looks at the newest 5,000 failures, or of a key in a queue at the newest 5,000 of that key. If there are more, rest is the time up to which they were not looked at: pass it as before to continue, and add up the groups; a row with 0 jobs says that none of those looked at is of that queue, kind and key. Errors: 22023. Locks: none that others wait for, and none that outlast the call. Isolation: any.';
