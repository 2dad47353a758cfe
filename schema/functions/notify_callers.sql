-- Migration from PostgreSQL's NOTIFY to Weir.

CREATE OR REPLACE FUNCTION weir.notify_callers() RETURNS TABLE (kind text, name text, calls text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  WITH pattern AS (
    -- A call of pg_notify; or a NOTIFY statement where a statement can start, also in a string that is executed.
    SELECT E'(?in)^.*(?:\\mpg_notify\\M"?\\s*\\(|(?:^|[;$(]|\\m(?:begin|then|else|loop|also|instead|do)\\M|\\mexecute\\M\\s*\\(?\\s*(?:format\\s*\\(\\s*)?e?''\\s*)[ \\t]*notify\\s+["a-z_%'']).*$' AS for_calls,
           -- Matches strings, which are kept, and comments, which are removed.
           E'(''(?:[^'']|'''')*'')|--[^\\n]*|/\\*(?:[^*]|\\*+[^*/])*\\*+/' AS comments
  ), callers AS (
    SELECT p.oid, p.oid::regprocedure::text AS name, substring(b.body FROM pattern.for_calls) AS calls
    FROM pattern CROSS JOIN pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
    CROSS JOIN LATERAL (SELECT regexp_replace(CASE WHEN p.prosrc = '' AND p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE p.prosrc END, pattern.comments, E'\\1', 'g') AS body) b
    WHERE p.pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND b.body ~ pattern.for_calls)
  SELECT CASE WHEN p.prorettype = 'trigger'::regtype THEN 'trigger function' ELSE 'function' END, c.name, btrim(c.calls)
  FROM callers c JOIN pg_proc p ON p.oid = c.oid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), c.name FROM pg_trigger t JOIN callers c ON c.oid = t.tgfoid
  UNION ALL
  SELECT 'trigger', format('%I on %s', t.tgname, t.tgrelid::regclass), p.oid::regprocedure::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.proname = 'triggered_change_notification'
  UNION ALL
  SELECT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, CASE WHEN r.ev_type = '1' THEN c.oid::regclass::text ELSE format('%I on %s', r.rulename, c.oid::regclass) END,
         btrim(substring(d.def FROM pattern.for_calls))
  FROM pattern CROSS JOIN pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class CROSS JOIN LATERAL (SELECT pg_get_ruledef(r.oid) AS def) d
  WHERE c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'weir'::regnamespace) AND d.def ~ pattern.for_calls
  ORDER BY 1, 2
$$;
COMMENT ON FUNCTION weir.notify_callers IS
  'Lists what still sends PostgreSQL''s own notifications in this database: functions, with the line that does, triggers that call them, rules and views. It searches their text, and may mistake a string for a call. It can''t find notifications that applications send. It lists only what the caller may see. Errors: none. Locks: none. Isolation: any.';
