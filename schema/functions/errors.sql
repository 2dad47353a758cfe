-- Why the attempts of a job ended. Results hold it in full, and are reclaimed with their segment; but a job may be retried for days. So the row of
-- each further attempt carries it in brief: the cost is borne by jobs that are retried, and nothing is looked up or updated.

CREATE OR REPLACE FUNCTION weir._brief_errors(errors jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- Most attempts fail for the same reason as the one before: its text is not repeated.
  SELECT jsonb_agg(CASE WHEN k.text IS DISTINCT FROM k.before THEN k.entry || jsonb_build_object('error', k.text) ELSE k.entry - 'error' END ORDER BY k.nr)
  FROM (
    SELECT s.entry, s.nr, s.text, lag(s.text) OVER (ORDER BY s.nr) AS before
    FROM (
      SELECT u.entry, u.nr, CASE WHEN length(t.text) <= 1000 THEN t.text
               -- A part of an encrypted text can't be decrypted: only the id of its key is kept.
               ELSE coalesce('{"weir.encrypted":{"key":' || substring(left(t.text, 1000) FROM '^[{]"weir[.]encrypted": ?[{]"key": ?("[^"]*")') || '}}',
                             left(t.text, 500) || ' ... ' || right(t.text, 495)) END AS text
      FROM jsonb_array_elements(_brief_errors.errors) WITH ORDINALITY u(entry, nr)
      CROSS JOIN LATERAL (SELECT u.entry ->> 'error' AS text OFFSET 0) t
      WHERE u.nr > jsonb_array_length(_brief_errors.errors) - 24) s) k
$$;
COMMENT ON FUNCTION weir._brief_errors IS
  'The last 24 of a list of errors (objects with attempt, at, outcome and error), in the form in which the row of the next attempt carries them: the beginning and the end of a text of more than 1000 characters, and no text if it is the same as in the entry before. NULL for an empty list. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._full_errors(errors jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce(jsonb_agg(k.entry || jsonb_build_object('error', first_value) ORDER BY k.nr), '[]')
  FROM (
    SELECT s.entry, s.nr, first_value(s.entry -> 'error') OVER (PARTITION BY s.run ORDER BY s.nr)
    FROM (
      SELECT u.entry, u.nr, count(u.entry -> 'error') OVER (ORDER BY u.nr) AS run
      FROM jsonb_array_elements(_full_errors.errors) WITH ORDINALITY u(entry, nr)) s) k
$$;
COMMENT ON FUNCTION weir._full_errors IS 'The list of errors that weir._brief_errors has made brief, with a text in each entry. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._with_error(errors jsonb, attempt integer, at timestamptz, outcome weir.outcome, error text) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  entry jsonb;
  brief text := CASE WHEN length(_with_error.error) > 1000 THEN left(_with_error.error, 500) || ' ... ' || right(_with_error.error, 495) ELSE _with_error.error END;
BEGIN
  -- What weir._brief_errors makes of the whole list, but for one more entry, because many attempts may fail at once.
  IF brief IS NULL THEN
    RETURN _with_error.errors;
  END IF;
  entry := jsonb_build_object('attempt', attempt, 'at', at, 'outcome', outcome);
  IF _with_error.errors IS NULL THEN
    RETURN jsonb_build_array(entry || jsonb_build_object('error', brief));
  ELSIF brief IS DISTINCT FROM (SELECT u.e ->> 'error' FROM jsonb_array_elements(_with_error.errors) WITH ORDINALITY u(e, nr) WHERE u.e ? 'error' ORDER BY u.nr DESC LIMIT 1) THEN
    entry := entry || jsonb_build_object('error', brief);
  END IF;
  errors := _with_error.errors || entry;
  IF jsonb_array_length(errors) > 24 THEN
    IF errors #> '{1,error}' IS NULL THEN
      errors := jsonb_set(errors, '{1,error}', errors #> '{0,error}');
    END IF;
    errors := errors - 0;
  END IF;
  RETURN errors;
END
$$;
COMMENT ON FUNCTION weir._with_error IS 'What the row of the next attempt carries after an attempt has ended with an error. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._merged_errors(history jsonb, errors jsonb, most integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT coalesce(jsonb_agg(k.entry ORDER BY k.attempt, k.nr), '[]')
  FROM (
    SELECT u.entry, u.nr, (u.entry ->> 'attempt')::integer AS attempt
    FROM (
      SELECT e.entry, e.nr FROM jsonb_array_elements(_merged_errors.errors) WITH ORDINALITY e(entry, nr)
      UNION ALL
      SELECT h.entry, 0 FROM jsonb_array_elements(weir._full_errors(_merged_errors.history)) h(entry)
      WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(_merged_errors.errors) e(entry) WHERE e.entry -> 'attempt' = h.entry -> 'attempt')) u
    ORDER BY 3 DESC, u.nr DESC LIMIT _merged_errors.most) k
$$;
COMMENT ON FUNCTION weir._merged_errors IS
  'The last errors of a job: those that were read in full, and of the other attempts those that its newest row carries in brief. Errors: none. Locks: none. Isolation: any.';
