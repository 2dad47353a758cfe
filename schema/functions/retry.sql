-- Retry rules: what follows an attempt that failed, by its queue, kind and error. Workers of every language record the text of an error, so rules match
-- that text, and the server applies them where ends are recorded. Without rules nothing is read, and an end that says itself what follows (a delay,
-- final, cancelled, snoozed) is left as it is.

CREATE OR REPLACE FUNCTION weir.set_retry_rule(
  name text, action text DEFAULT NULL, queue text DEFAULT NULL, kind text DEFAULT NULL, error text DEFAULT NULL,
  backoff interval DEFAULT NULL, backoff_limit interval DEFAULT NULL, backoff_form text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most CONSTANT integer := 100;
  wrong text;
BEGIN
  action := coalesce(set_retry_rule.action, 'retry');
  IF set_retry_rule.name IS NULL OR set_retry_rule.name !~ '^[[:graph:]]{1,100}$' THEN
    RAISE EXCEPTION 'weir: the name of a retry rule must be 1 to 100 characters without spaces, got %', coalesce(quote_literal(left(set_retry_rule.name, 200)), 'null') USING ERRCODE = '22023';
  ELSIF set_retry_rule.action <> ALL (ARRAY['retry', 'fail', 'snooze', 'cancel']) THEN
    RAISE EXCEPTION 'weir: the action of a retry rule must be retry, fail, snooze or cancel, got %', quote_literal(left(set_retry_rule.action, 100)) USING ERRCODE = '22023';
  ELSIF set_retry_rule.action = 'snooze' AND set_retry_rule.backoff IS NULL THEN
    RAISE EXCEPTION 'weir: retry rule % snoozes, but does not say for how long', set_retry_rule.name USING ERRCODE = '22023', HINT = 'Pass a backoff, for example ''5 minutes''.';
  ELSIF set_retry_rule.action IN ('fail', 'cancel') AND num_nonnulls(set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form) > 0 THEN
    RAISE EXCEPTION 'weir: retry rule % has a backoff, but no attempt follows after %', set_retry_rule.name, set_retry_rule.action USING ERRCODE = '22023', HINT = 'A backoff belongs to retry and snooze.';
  ELSIF set_retry_rule.queue IS NULL AND set_retry_rule.kind IS NULL AND set_retry_rule.error IS NULL THEN
    RAISE EXCEPTION 'weir: retry rule % would apply to every error of every job', set_retry_rule.name USING ERRCODE = '22023', HINT = 'Name a queue, a kind or an error; error => ''.'' matches every error.';
  END IF;
  PERFORM weir._check_backoff(set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form);
  wrong := weir._wrong_pattern(set_retry_rule.error);
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION 'weir: retry rule %: error is not a usable regular expression: %, got %', set_retry_rule.name, wrong, quote_literal(left(set_retry_rule.error, 200))
      USING ERRCODE = '22023', HINT = 'Write a regular expression as PostgreSQL understands it, in which a backslash before . ( [ * + ? | makes it an ordinary character.';
  END IF;
  LOCK TABLE weir.retry_rule IN SHARE ROW EXCLUSIVE MODE;  -- for the count; readers do not wait
  IF (SELECT count(*) FROM weir.retry_rule r WHERE r.name <> set_retry_rule.name) >= most THEN
    RAISE EXCEPTION 'weir: there are % retry rules, and no more are allowed', most USING ERRCODE = '22023', HINT = 'One rule can match several errors: a|b. Drop rules that are not needed with weir.drop_retry_rule.';
  END IF;
  INSERT INTO weir.retry_rule (name, queue, kind, error, action, backoff, backoff_limit, backoff_form)
  VALUES (set_retry_rule.name, set_retry_rule.queue, set_retry_rule.kind, set_retry_rule.error, set_retry_rule.action,
          set_retry_rule.backoff, set_retry_rule.backoff_limit, set_retry_rule.backoff_form)
  ON CONFLICT ON CONSTRAINT retry_rule_pkey DO UPDATE SET queue = excluded.queue, kind = excluded.kind, error = excluded.error, action = excluded.action,
    backoff = excluded.backoff, backoff_limit = excluded.backoff_limit, backoff_form = excluded.backoff_form;
END
$$;
COMMENT ON FUNCTION weir.set_retry_rule IS
  'Creates the retry rule of that name, or replaces it. It says what follows an attempt that failed in a queue, of a kind, with an error that a regular expression matches (NULL: any), unless the worker has said so itself, by a delay or a final outcome. action: retry (the default) after a backoff, as long as attempts are left; fail, without a further attempt; cancel; or snooze, which uses up no attempt, for backoff each time. backoff, backoff_limit and backoff_form are as for weir.set; NULL: the queue''s, except that a snooze is fixed. Of the rules that match, one with an error precedes one without, then one with a kind, then one with a queue, then the first by name. The expression (up to 1000 characters, as of the operator ~, without back references and lookaround) is matched with the first and the last 2000 characters of the error. At most 100 rules. Errors: 22023. Locks: SHARE ROW EXCLUSIVE on weir.retry_rule, for which only another change of a rule waits. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.drop_retry_rule(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  DELETE FROM weir.retry_rule r WHERE r.name = drop_retry_rule.name;
  RETURN FOUND;
END
$$;
COMMENT ON FUNCTION weir.drop_retry_rule IS 'Drops a retry rule; false: there is none of that name. Errors: none. Locks: ROW EXCLUSIVE on weir.retry_rule, for which only another change of a rule waits. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.retry_rules()
RETURNS TABLE (name text, action text, queue text, kind text, error text, backoff interval, backoff_limit interval, backoff_form text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT r.name, r.action, r.queue, r.kind, r.error, r.backoff, r.backoff_limit, r.backoff_form FROM weir.retry_rule r
  ORDER BY r.error IS NULL, r.kind IS NULL, r.queue IS NULL, r.name COLLATE "C"
$$;
COMMENT ON FUNCTION weir.retry_rules IS 'The retry rules, in the order in which they are tried: the first that matches an error applies. Errors: none. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._check_backoff(backoff interval, backoff_limit interval, backoff_form text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF _check_backoff.backoff_form <> ALL (ARRAY['exponential', 'linear', 'fixed']) THEN
    RAISE EXCEPTION 'weir: backoff_form must be exponential, linear or fixed, got %', quote_literal(left(_check_backoff.backoff_form, 100)) USING ERRCODE = '22023';
  ELSIF _check_backoff.backoff NOT BETWEEN interval '0' AND interval '366 days' THEN
    RAISE EXCEPTION 'weir: backoff must be 0 to 1 year, got %', _check_backoff.backoff USING ERRCODE = '22023';
  ELSIF _check_backoff.backoff_limit NOT BETWEEN interval '0' AND interval '366 days' THEN
    RAISE EXCEPTION 'weir: backoff_limit must be 0 to 1 year, got %', _check_backoff.backoff_limit USING ERRCODE = '22023';
  END IF;
END
$$;
COMMENT ON FUNCTION weir._check_backoff IS 'Refuses values of a backoff that are invalid; NULL is valid. Errors: 22023. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._wrong_pattern(pattern text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  bare text := regexp_replace(pattern, E'\\\\[^0-9]', '', 'g');  -- without escapes, but with back references
BEGIN
  IF length(pattern) NOT BETWEEN 1 AND 1000 THEN
    RETURN format('it must have 1 to 1000 characters, not %s', length(pattern));
  ELSIF bare ~ E'\\\\[0-9]' THEN
    RETURN 'back references can take very long';
  ELSIF bare ~ '[(][?](=|!|<=|<!)' THEN
    RETURN 'lookahead and lookbehind can take very long';
  END IF;
  PERFORM '' ~ pattern;
  RETURN NULL;
EXCEPTION WHEN invalid_regular_expression THEN
  RETURN SQLERRM;
END
$$;
COMMENT ON FUNCTION weir._wrong_pattern IS
  'Why a text can''t be the regular expression of a retry rule; NULL: it can. What is left takes time in proportion to the text that it is matched with. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._judged(places integer[], lanes bigint[], seqs bigint[], segments smallint[], ids bigint[], errors text[])
RETURNS TABLE (place integer, rule text, outcome text, run_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
SET enable_hashjoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  most    CONSTANT interval := '3 seconds';
  began   timestamptz := clock_timestamp();
  open    integer[];  -- the attempts that no rule has matched yet
  matched integer[];
  jobs    record;
  r       record;
BEGIN
  SELECT array_agg(e.nr ORDER BY e.nr) AS open, array_agg(q.name ORDER BY e.nr) AS queues, array_agg(j.kind ORDER BY e.nr) AS kinds,
         array_agg(j.attempt ORDER BY e.nr) AS attempts, array_agg(j.put_off ORDER BY e.nr) AS put_offs,
         array_agg(CASE WHEN length(e.error) > 4000 THEN left(e.error, 2000) || E'\n' || right(e.error, 2000) ELSE e.error END ORDER BY e.nr) AS texts,
         array_agg(q.backoff ORDER BY e.nr) AS backoffs, array_agg(q.backoff_limit ORDER BY e.nr) AS limits, array_agg(q.backoff_form ORDER BY e.nr) AS forms
    INTO jobs
  FROM (SELECT u.*, row_number() OVER ()::integer AS nr
        FROM unnest(_judged.lanes, _judged.seqs, _judged.segments, _judged.ids, _judged.errors) u(lane, seq, segment, id, error)) e
  LEFT JOIN LATERAL (  -- as in weir._end_attempts
    SELECT j.kind, j.attempt, j.put_off FROM weir.batch b
    CROSS JOIN LATERAL (
      SELECT j.* FROM weir.job j
      WHERE j.segment = b.segment AND j.id = e.id AND (j.lane = e.lane OR b.lanes IS NOT NULL)
        AND NOT (j.xid < b.from_xid) AND NOT (j.xid > b.to_xid)
      ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
    WHERE b.segment = e.segment AND b.lane = e.lane AND b.seq = e.seq LIMIT 1) j ON true
  LEFT JOIN LATERAL (SELECT q.* FROM weir.queue q WHERE q.id = (e.lane >> 39)::integer LIMIT 1) q ON true;
  open := jobs.open;
  -- Rule by rule, so that each expression is compiled once.
  FOR r IN SELECT k.* FROM weir.retry_rules() k LOOP
    EXIT WHEN open IS NULL OR open = '{}';
    BEGIN
      matched := ARRAY(
        SELECT o.nr FROM unnest(open) o(nr)
        WHERE CASE WHEN r.queue <> jobs.queues[o.nr] OR r.kind <> jobs.kinds[o.nr] THEN false
                   WHEN r.error IS NULL THEN true
                   WHEN clock_timestamp() - began > most THEN false
                   ELSE coalesce(jobs.texts[o.nr], '') ~ r.error END);
    EXCEPTION WHEN OTHERS THEN  -- results must be recorded
      RAISE WARNING 'weir: retry rule % was left out: %', quote_ident(r.name), SQLERRM;
      CONTINUE;
    END;
    RETURN QUERY
    SELECT _judged.places[o.nr], r.name, CASE r.action WHEN 'fail' THEN 'failed' WHEN 'cancel' THEN 'cancelled' WHEN 'snooze' THEN 'snoozed' ELSE 'retried' END,
           CASE r.action
             WHEN 'snooze' THEN weir._next_try(r.backoff, coalesce(r.backoff_limit, interval '366 days'), coalesce(r.backoff_form, 'fixed'), jobs.put_offs[o.nr] + 1)
             WHEN 'retry' THEN weir._next_try(coalesce(r.backoff, jobs.backoffs[o.nr]), coalesce(r.backoff_limit, jobs.limits[o.nr]), coalesce(r.backoff_form, jobs.forms[o.nr]), jobs.attempts[o.nr]) END
    FROM unnest(matched) o(nr);
    open := ARRAY(SELECT unnest(open) EXCEPT SELECT unnest(matched));
    IF clock_timestamp() - began > most AND open <> '{}' THEN
      RAISE WARNING 'weir: retry rules took more than % seconds: rule %, or those behind it, were left out for some errors', extract(epoch FROM most)::integer, quote_ident(r.name)
        USING HINT = 'Simplify their regular expressions.';
      EXIT;
    END IF;
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._judged IS
  'What the retry rules make of attempts that failed: of each that a rule matches, its place, and the outcome and the next time that take the place of those recorded. It takes about 3 seconds at most, and never fails because of a rule: rules that can''t be applied are left out, with a warning. Locks: none that others wait for. Isolation: READ COMMITTED.';
