-- Lists of jobs, one page at a time.
--
-- A page continues after a place, not after a number of rows, so jobs that come and go do not move others to another page. Each state has an order in which the
-- place of a job does not change while it is in that state, and in which an index or the log itself is sorted:
--
--   available  in the order in which they will be claimed: priority, then (xid, id); of very many lanes 500 at a time, which bounds what a page reads.
--              Jobs with keys, which are claimed by turns, come behind the others: key by key
--   running    latest claim first: the number of the batch, then the id
--   scheduled  by (run_at, id)
--   completed  newest first: in one queue by its batches, lane by lane; in all queues in the order of results in each segment, from the end. Each lane
--              or segment is a stream in its own order; they are merged by the time when jobs ended, and the place is that in each
--   failed     newest first: (finished_at, id)
--   cancelled  jobs with a tombstone by id, newest first; then those that a filter has cancelled and that still wait; then those that have ended, in the order of failed ones
--
-- Of one key of a queue, only its own lanes are read: waiting jobs lane by lane, completed ones and those that have ended as cancelled in the order of
-- the log, newest first, and failed ones by an index. Of a queue, finished jobs are read from its own lanes too, so that those of others cost nothing; only failed jobs of a queue
-- with keys, which has too many lanes, are found among those of all queues.
--
-- The states follow one another. The cost of a page is bounded: if a filter finds nothing, or jobs have changed their state, the page ends early,
-- and the next one continues from there.

CREATE OR REPLACE FUNCTION weir._next(state text, lanes bigint[], after jsonb, most integer) RETURNS TABLE (id bigint, ended_at timestamptz, place jsonb, cost integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  CASE _next.state
    WHEN 'available' THEN RETURN QUERY SELECT n.* FROM weir._next_available(_next.lanes, _next.after, _next.most) n;
    WHEN 'running' THEN RETURN QUERY SELECT n.* FROM weir._next_running(_next.lanes, _next.after, _next.most) n;
    WHEN 'scheduled' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_later(_next.lanes, _next.after, _next.most) n;
    WHEN 'completed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_completed(_next.lanes, _next.after, _next.most) n;
    WHEN 'failed' THEN RETURN QUERY SELECT n.*, 1 FROM weir._next_failed(_next.lanes, _next.after, _next.most) n;
    WHEN 'cancelled' THEN RETURN QUERY SELECT n.* FROM weir._next_cancelled(_next.lanes, _next.after, _next.most) n;
  END CASE;
END
$$;
COMMENT ON FUNCTION weir._next IS
  'Up to most of the next jobs that are, or were, in a state, in some lanes (those of a queue and its ring, or those of a key of it) or, for NULL, in all, after a place: each with the place to continue after it, when it ended, and what was read to find it, in units of a row. A row without an id only shows how far the search has come; no row means that there are no more.';

CREATE OR REPLACE FUNCTION weir._read_page(states text[], queue text, kinds text[], meta jsonb, key text, after text, most integer, flow bigint DEFAULT NULL,
                                           args_text text DEFAULT NULL, enqueued_after timestamptz DEFAULT NULL, enqueued_before timestamptz DEFAULT NULL,
                                           shape text DEFAULT NULL, finished_after timestamptz DEFAULT NULL, finished_before timestamptz DEFAULT NULL, from_copies boolean DEFAULT false, OUT jobs weir.job_info[], OUT next text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  every  CONSTANT text[] := ARRAY['available', 'running', 'scheduled', 'completed', 'failed', 'cancelled'];
  bound  CONSTANT integer := 10000;  -- of a page's effort: 1 for a row or a batch, 12 for a lane, 5 for a job that is compared, 10 for one that a filter has cancelled, 50 for one that is read in vain, 20 if its error has another shape, 1 for each kilobyte of args that is searched
  effort integer := 0;
  lanes  bigint[];
  wrong  text;
  at     jsonb;    -- where the previous page stopped: the state's number in the list, the place, and the seal
  nr     integer := 1;
  place  jsonb;
  widest CONSTANT integer := CASE WHEN args_text IS NULL THEN 500 ELSE 25 END;  -- of a step: args may have 1 MiB each, and the effort is seen after the step
  step   integer := least(most + 1, 200, widest);  -- more at a time, the more are read in vain
  wanted text    := lower(args_text COLLATE "C");
  conditions jsonb;
  got    integer;
  hits   integer;  -- how many jobs the page has had before this step
  r      record;
  look   weir.job_info;
  has_conditions boolean := num_nonnulls(nullif(kinds, '{}'), _read_page.meta, _read_page.key, _read_page.flow, args_text, enqueued_after, enqueued_before) > 0;
  has_end boolean := num_nonnulls(finished_after, finished_before) > 0;
  has_filters boolean := EXISTS (SELECT FROM weir.cancellation_where w WHERE _read_page.queue IS NULL OR w.queue IS NULL OR w.queue = _read_page.queue);
BEGIN
  IF most IS NULL OR most NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a page has 1 to 1000 jobs, got %', coalesce(most::text, 'null') USING ERRCODE = '22023', HINT = 'Read more pages.';
  END IF;
  SELECT s INTO wrong FROM unnest(states) s WHERE s IS NULL OR s <> ALL (every) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'weir: unknown state %', coalesce(left(wrong, 100), 'null')
      USING ERRCODE = '22023', HINT = 'States are available, running, scheduled, completed, failed and cancelled.';
  ELSIF cardinality(states) > 6 THEN
    RAISE EXCEPTION 'weir: a list has up to 6 states, got %', cardinality(states) USING ERRCODE = '22023', HINT = 'Name each state once.';
  ELSIF cardinality(kinds) > 1000 OR array_position(kinds, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'weir: a list has 1 to 1000 kinds, none of them null, got % kinds', cardinality(kinds) USING ERRCODE = '22023';
  ELSIF jsonb_typeof(meta) <> 'object' OR pg_column_size(meta) > 65536 THEN
    RAISE EXCEPTION 'weir: meta must be a JSON object of at most 64 KiB, got %', left(meta::text, 100) USING ERRCODE = '22023', HINT = 'The list has the jobs whose meta contains this object, as with @>.';
  END IF;
  IF length(args_text) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: args_text must have 1 to 1000 characters, got %', length(args_text) USING ERRCODE = '22023', HINT = 'The list has the jobs whose args contain this text; pass NULL for all jobs.';
  END IF;
  IF length(shape) NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: a shape has 1 to 1000 characters, got %', length(shape) USING ERRCODE = '22023', HINT = 'Pass a shape that weir.failure_groups has returned; or NULL for all jobs.';
  ELSIF shape IS NOT NULL AND (coalesce(cardinality(states), 0) = 0 OR 'failed' <> ANY (states)) THEN
    RAISE EXCEPTION 'weir: only failed jobs are listed by the shape of their error' USING ERRCODE = '22023', HINT = 'Pass the states ''{failed}''.';
  END IF;
  PERFORM weir._check_key(_read_page.key);
  states := ARRAY(SELECT u.s FROM unnest(CASE WHEN cardinality(states) > 0 THEN states ELSE every END) WITH ORDINALITY u(s, nr)
                  WHERE NOT has_end OR u.s IN ('completed', 'failed', 'cancelled') GROUP BY u.s ORDER BY min(u.nr));
  kinds := CASE WHEN cardinality(kinds) > 0 THEN kinds END;
  -- Times in UTC, so that they read the same in a session with another time zone.
  conditions := jsonb_build_object('states', states, 'queue', queue, 'kinds', kinds, 'meta', _read_page.meta, 'key', _read_page.key, 'flow', _read_page.flow, 'args_text', args_text,
    'enqueued_after', enqueued_after AT TIME ZONE 'UTC', 'enqueued_before', enqueued_before AT TIME ZONE 'UTC',
    'shape', shape, 'finished_after', finished_after AT TIME ZONE 'UTC', 'finished_before', finished_before AT TIME ZONE 'UTC');
  IF after <> '' THEN
    BEGIN
      IF length(after) > 65536 THEN
        RAISE data_exception;
      END IF;
      at := convert_from(decode(rpad(translate(after, '-_', '+/'), (length(after) + 3) / 4 * 4, '='), 'base64'), 'UTF8')::jsonb;
      IF at->>2 IS DISTINCT FROM weir._seal(conditions, at) THEN
        RAISE data_exception;
      END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
      RAISE EXCEPTION 'weir: "%" is not a valid cursor for this list', left(after, 100)
        USING ERRCODE = '22023', COLUMN = 'after', HINT = 'Pass what the previous page returned as next, in the same database and with the same conditions; or NULL for the first page.';
    END;
    nr := (at->>0)::integer;
    step := CASE WHEN has_conditions THEN least(200, widest) ELSE step END;
    place := at->1;
  END IF;
  IF queue IS NOT NULL AND key IS NOT NULL THEN
    lanes := weir._lanes_of_key(queue, key);
  ELSIF queue IS NOT NULL THEN
    lanes := ARRAY(SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 4) p WHERE q.name = _read_page.queue);  -- and its ring lane
  END IF;

  jobs := '{}';
  <<states>>
  WHILE nr <= cardinality(states) AND lanes IS DISTINCT FROM '{}' LOOP
    IF states[nr] = 'failed' AND finished_before IS NOT NULL THEN
      place := coalesce(nullif(place, 'null'), jsonb_build_array(finished_before, 0));  -- failed jobs are in the order of their end: what is later is not read
    END IF;
    <<steps>>
    LOOP
      got := 0;
      hits := cardinality(jobs);
      FOR r IN
        WITH n AS MATERIALIZED (
          SELECT k.*, row_number() OVER () AS at_nr FROM weir._next(states[nr], lanes, nullif(place, 'null'), step) k
        ), fit AS MATERIALIZED (
          -- All rows of a job have the same kind, args, meta, time, key and flow. In one query for all of them: one for each would cost many times as much.
          SELECT n.*, n.id IS NOT NULL AND (NOT has_conditions OR coalesce(k.fits, false)) AS fits, coalesce(k.kilobytes, 0) AS kilobytes
          FROM n LEFT JOIN LATERAL (
            SELECT (kinds IS NULL OR k.kind = ANY (kinds)) AND (_read_page.meta IS NULL OR k.meta @> _read_page.meta) AND (_read_page.key IS NULL OR k.key = _read_page.key)
                   AND (enqueued_after IS NULL OR k.enqueued_at >= enqueued_after) AND (enqueued_before IS NULL OR k.enqueued_at < enqueued_before)
                   AND (wanted IS NULL OR strpos(t.text, wanted) > 0)
                   AND (_read_page.flow IS NULL OR k.flow = _read_page.flow OR weir._is_within(k.flow, _read_page.flow)) AS fits,
                   octet_length(t.text) / 1000 AS kilobytes
            FROM (
              (SELECT j.kind, j.args, j.meta, j.enqueued_at, j.key, j.flow FROM weir.job j WHERE j.id = n.id LIMIT 1)
              UNION ALL (SELECT l.kind, l.args, l.meta, l.enqueued_at, l.key, l.flow FROM weir.later l WHERE l.id = n.id LIMIT 1)
              UNION ALL (SELECT f.kind, f.args, f.meta, f.enqueued_at, f.key, f.flow FROM weir.failure f WHERE f.id = n.id AND f.kind IS NOT NULL LIMIT 1) LIMIT 1) k
            -- Encrypted args are not the database's to read.
            CROSS JOIN LATERAL (SELECT CASE WHEN wanted IS NOT NULL AND NOT k.args ? 'weir.encrypted' THEN lower(k.args::text COLLATE "C") END AS text OFFSET 0) t
            WHERE has_conditions) k ON true
        ), gone AS MATERIALIZED (
          SELECT CASE WHEN has_filters AND states[nr] IN ('available', 'scheduled') THEN weir._cancelled_where_among(ARRAY(SELECT f.id FROM fit f WHERE f.fits)) END AS ids
        )
        SELECT CASE WHEN f.fits THEN f.id END AS id, f.ended_at, f.place, f.cost + CASE WHEN has_conditions AND f.id IS NOT NULL THEN 4 + f.kilobytes ELSE 0 END AS cost,
               f.fits AND coalesce(f.id = ANY (gone.ids), false) AS is_gone
        FROM fit f CROSS JOIN gone ORDER BY f.at_nr
      LOOP
        got := got + 1;
        EXIT steps WHEN states[nr] = 'failed' AND (r.place->>0)::timestamptz < finished_after;  -- nor what is earlier
        effort := effort + r.cost;
        IF r.is_gone THEN
          effort := effort + 9;
          r.id := NULL;
        END IF;
        IF r.id IS NOT NULL THEN
          IF from_copies AND states[nr] = 'failed' THEN
            SELECT k.* INTO look FROM weir._look_at_copy(r.id) k;
          ELSE
            SELECT k.* INTO look FROM weir._read_job(r.id, 1) k;
          END IF;
          -- A job that was retried by hand is in another state now, or has ended again since.
          IF look.state IS DISTINCT FROM states[nr] OR look.queue <> _read_page.queue OR look.finished_at IS DISTINCT FROM coalesce(r.ended_at, look.finished_at)
             -- A job that was cancelled, and that no worker has passed, has no end yet.
             OR has_end AND (SELECT e < finished_after OR e >= finished_before FROM coalesce(look.finished_at, weir._cancelled_at(look.id, look.queue)) e) THEN
            effort := effort + 50;
          ELSIF (CASE WHEN _read_page.shape IS NULL THEN false ELSE NOT weir._has_shape(look.error, _read_page.shape) END) THEN
            effort := effort + 20;
          ELSE
            IF cardinality(jobs) = most THEN
              next := jsonb_build_array(nr, place);
              EXIT states;
            END IF;
            jobs := jobs || look;
          END IF;
        END IF;
        place := r.place;
        IF effort >= bound THEN
          next := jsonb_build_array(nr, place);
          EXIT states;
        END IF;
      END LOOP;
      EXIT WHEN got = 0;
      IF got >= step THEN
        step := least(2 * step, CASE WHEN cardinality(jobs) = hits THEN 500 ELSE 200 END, widest);
      END IF;
    END LOOP;
    nr := nr + 1;
    place := NULL;
  END LOOP;
  IF next IS NOT NULL THEN
    at := next::jsonb;
    next := rtrim(translate(encode(convert_to((at || to_jsonb(weir._seal(conditions, at)))::text, 'UTF8'), 'base64'), E'+/\n', '-_'), '=');
  END IF;
END
$$;
COMMENT ON FUNCTION weir._read_page IS 'A page of jobs as one snapshot shows them, see weir.jobs_page. from_copies: of failed jobs, what their copies say is enough. The caller has called weir._lock_log.';

CREATE OR REPLACE FUNCTION weir._seal(conditions jsonb, at jsonb) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  -- The number is the version of the places: increase it when their form changes.
  SELECT left(encode(sha256(convert_to(jsonb_build_array(s.value, c.system_identifier, d.oid::bigint, 5, conditions, at->0, at->1)::text, getdatabaseencoding())), 'hex'), 32)
  FROM weir.setting s, pg_control_system() c, pg_database d WHERE s.name = 'cursor_secret' AND d.datname = current_database()
$$;
COMMENT ON FUNCTION weir._seal IS
  'Ties a cursor to its list and to this database, with a secret that no client knows: what is inside a cursor with a valid seal was written by this code.';

CREATE OR REPLACE FUNCTION weir.jobs_page(states text[] DEFAULT NULL, queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL,
                                          after text DEFAULT NULL, max_rows integer DEFAULT 100, key text DEFAULT NULL, flow bigint DEFAULT NULL,
                                          args_text text DEFAULT NULL, enqueued_after timestamptz DEFAULT NULL, enqueued_before timestamptz DEFAULT NULL,
                                          shape text DEFAULT NULL, finished_after timestamptz DEFAULT NULL, finished_before timestamptz DEFAULT NULL, OUT jobs jsonb, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._lock_log();
  SELECT to_jsonb(p.jobs), p.next INTO jobs, next
  FROM weir._read_page(jobs_page.states, jobs_page.queue, jobs_page.kinds, jobs_page.meta, jobs_page.key, jobs_page.after, coalesce(jobs_page.max_rows, 100), jobs_page.flow,
                       jobs_page.args_text, jobs_page.enqueued_after, jobs_page.enqueued_before, jobs_page.shape, jobs_page.finished_after, jobs_page.finished_before) p;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.jobs_page IS
  'A page of the list of jobs that are in some states (NULL: all), in a queue, of some kinds, whose meta contains meta, that have this key, are members of this flow, or of one within it, whose args, as text, contain args_text (A to Z and a to z are the same; encrypted args match no text), that were enqueued at or after enqueued_after, or before enqueued_before, whose error has the shape by which weir.failure_groups groups it (states must be {failed}), and that ended at or after finished_after, or before finished_before, which no unfinished job did (of a job that was cancelled and that no worker has passed, the time of its cancellation counts): a JSON array of up to max_rows jobs (1 to 1000), as weir.job_info shows them; and next, to be passed as after to get the next page, NULL if there is none. The states follow one another in the order in which they are named: available jobs in the order in which they will be claimed (of more than 500 lanes, 500 at a time), scheduled jobs by run_at, the others newest first (completed ones approximately, as they were recorded; of cancelled ones, first those that weir.cancel cancelled, by id, then those that weir.cancel_where cancelled and that no worker has passed yet). A job that stays in its state while pages are read is on exactly one of them; a job that enters a state in the meantime may be on none. Three exceptions: a cancelled job is on a second page if, between the two, it has ended and the record that weir.cancel wrote is tidied away, or a worker has passed a job that weir.cancel_where cancelled; a job that was cancelled while weir.move_where moved it may be in the list of its queue only once it has ended; and failed jobs are listed while their copies are kept, which is less than failed_retention if they need more than a quarter of retention_bytes, although weir.job_info finds some of them in the log for longer. A page may have fewer jobs than max_rows, or none, and still a next: what one page reads is bounded, however little a filter finds and however many queues there are. Errors: 22023; 40001 as for weir.job_info. Locks: none that others wait for, and none that outlast the call; waits while a segment is being emptied. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.jobs(state text, queue text DEFAULT NULL, max_rows integer DEFAULT 100, key text DEFAULT NULL) RETURNS SETOF weir.job_info
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  left_ integer := coalesce(jobs.max_rows, 100);
  after text;
  p     record;
BEGIN
  IF jobs.max_rows NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'weir: jobs returns 1 to 10000 jobs, got %', jobs.max_rows USING ERRCODE = '22023', HINT = 'Use weir.jobs_page to read more, page by page.';
  END IF;
  PERFORM weir._lock_log();
  LOOP
    SELECT k.* INTO p FROM weir._read_page(ARRAY[jobs.state], jobs.queue, NULL, NULL, jobs.key, after, least(left_, 1000)) k;
    RETURN QUERY SELECT j.* FROM unnest(p.jobs) j;
    left_ := left_ - cardinality(p.jobs);
    after := p.next;
    EXIT WHEN left_ = 0 OR after IS NULL;
  END LOOP;
  RAISE SQLSTATE 'WR099';
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.jobs IS
  'The first jobs in one state, as rows, in the order of weir.jobs_page: up to max_rows (1 to 10000), and fewer only if there are no more. It reads until it has them: where many thousands of jobs are passed over before, as waiting jobs that a filter has cancelled are in a list of available ones, weir.jobs_page reads a bounded part of them at a time. Errors and locks: as for weir.jobs_page. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._jobs_after(state text, after text) RETURNS TABLE (job weir.job_info, next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
ROWS 100
AS $$
DECLARE
  p record;
BEGIN
  PERFORM weir._lock_log();
  SELECT k.* INTO p FROM weir._read_page(ARRAY[_jobs_after.state], NULL, NULL, NULL, NULL, _jobs_after.after, CASE WHEN _jobs_after.after IS NULL THEN 50 ELSE 500 END) k;
  RETURN QUERY SELECT j, NULL::text FROM unnest(p.jobs) j;
  IF p.next IS NOT NULL THEN
    RETURN QUERY SELECT NULL::weir.job_info, p.next;
  END IF;
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir._jobs_after IS
  'A page of the jobs in one state, as rows, for the views: the first has 50 jobs. If there are more, the last row has no job, and says where the next page begins. Errors and locks: as for weir.jobs_page.';
