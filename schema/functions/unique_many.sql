-- Many unique jobs in one call. Those whose key has no row in the log are no duplicates, whatever their rule, and are logged together, as enqueue_many
-- logs plain jobs; for the others, one after the other, enqueue_unique decides.

CREATE OR REPLACE FUNCTION weir._enqueue_unique_many(jobs jsonb) RETURNS TABLE (id bigint, duplicate boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  few        CONSTANT integer := 20;
  n          integer := jsonb_array_length(jobs);
  j          record;      -- the jobs, as arrays
  known      boolean[];   -- there are rows with its key
  is_new     boolean[];   -- it is logged together with others
  duplicates boolean[];
  ids        bigint[];
  names      text[];
  queue_ids  integer[];
  homes      integer[];   -- the queue of each job, as an id; NULL: see _enqueue_many
  this_xid   xid8;
  u          record;
BEGIN
  IF n > 10000 THEN
    RAISE EXCEPTION 'weir: % jobs in one call, at most 10000 are allowed', n
      USING ERRCODE = '22023', HINT = 'Call enqueue_many several times in one transaction.';
  ELSIF n = 0 THEN
    RETURN;
  END IF;
  PERFORM weir._check_job(x.queue, x.kind, coalesce(x.args, '{}'), coalesce(x.priority, 2), coalesce(x.max_attempts, 25), x.meta),
          weir._check_unique(x.unique_key, x.fields, x.until, x.within, x.replace, coalesce(x.args, '{}')), weir._check_key(x.key)
  FROM jsonb_to_recordset(jobs) x(queue text, kind text, args jsonb, priority integer, max_attempts integer, meta jsonb, unique_key text, fields text[], until text, within interval, replace boolean,
                                    key text);
  SELECT array_agg(x.queue ORDER BY e.ord) AS queues, array_agg(x.kind ORDER BY e.ord) AS kinds, array_agg(coalesce(x.args, '{}') ORDER BY e.ord) AS args,
         array_agg(coalesce(x.priority, 2) ORDER BY e.ord) AS priorities, array_agg(x.run_at ORDER BY e.ord) AS run_at,
         array_agg(coalesce(x.max_attempts, 25) ORDER BY e.ord) AS max_attempts, array_agg(x.meta ORDER BY e.ord) AS metas,
         array_agg(weir._unique_key(x.queue, x.kind, coalesce(x.args, '{}'), x.unique_key, x.fields) ORDER BY e.ord) AS keys, array_agg(coalesce(x.wait, false) ORDER BY e.ord) AS waits,
         array_agg(coalesce(x.replace, false)::integer ORDER BY e.ord) AS replaces,
         array_agg(CASE WHEN x.within IS NOT NULL THEN now() + x.within WHEN x.replace OR x.until = 'started' THEN '-infinity' END ORDER BY e.ord) AS untils,
         array_agg(x.key ORDER BY e.ord) AS owners, array_agg(CASE WHEN x.key IS NULL THEN 0 ELSE weir._key_bits(x.key) END ORDER BY e.ord) AS bits
    INTO j
  FROM jsonb_array_elements(jobs) WITH ORDINALITY e(job, ord)
  CROSS JOIN LATERAL jsonb_to_record(e.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb,
                                              unique_key text, fields text[], until text, within interval, replace boolean, wait boolean, key text);
  BEGIN
    -- Worded so that the indexes are used, whatever the number of keys.
    known := ARRAY(SELECT coalesce((SELECT true FROM weir.job k WHERE k.unique_key = h.key LIMIT 1), (SELECT true FROM weir.later k WHERE k.unique_key = h.key LIMIT 1), false)
                   FROM unnest(j.keys) WITH ORDINALITY h(key, ord) ORDER BY h.ord);
    RAISE SQLSTATE 'WR099';
  EXCEPTION WHEN SQLSTATE 'WR099' THEN  -- releases the tables, as in enqueue_unique
    NULL;
  END;
  is_new := ARRAY(SELECT NOT w.known AND NOT w.waits AND w.nth = 1 AND (w.run_at < '10000-01-01 00:00:00+00') IS NOT FALSE
                  FROM (SELECT h.*, row_number() OVER (PARTITION BY h.key ORDER BY h.ord) AS nth
                        FROM unnest(j.keys, known, j.waits, j.run_at) WITH ORDINALITY h(key, known, waits, run_at, ord)) w ORDER BY w.ord);
  duplicates := array_fill(false, ARRAY[n]);

  SELECT array_agg(d.name), array_agg(weir._queue_id(d.name)) INTO names, queue_ids FROM (SELECT q.name FROM unnest(j.queues) q(name) GROUP BY q.name ORDER BY q.name COLLATE "C") d;
  IF cardinality(names) > few THEN
    homes := ARRAY(SELECT queue_ids[r.place] FROM (SELECT q.ord, dense_rank() OVER (ORDER BY q.name COLLATE "C") AS place FROM unnest(j.queues) WITH ORDINALITY q(name, ord)) r ORDER BY r.ord);
  END IF;
  INSERT INTO weir.keyed (queue) SELECT d.name FROM unnest(names) d(name) WHERE (SELECT true FROM weir.keyed k WHERE k.queue = d.name LIMIT 1) IS NULL;
  PERFORM weir._mark_keys(d.name) FROM (SELECT DISTINCT h.queue AS name FROM unnest(j.queues, j.owners, is_new) h(queue, owner, is_new) WHERE h.owner IS NOT NULL AND h.is_new) d;
  this_xid := pg_current_xact_id();  -- before the ids are drawn, as in enqueue
  ids := ARRAY(SELECT CASE WHEN h.is_new THEN nextval('weir.job_id') END FROM unnest(is_new) WITH ORDINALITY h(is_new, ord) ORDER BY h.ord);
  INSERT INTO weir.job (id, xid, enqueued_at, lane, attempt, max_attempts, segment, leads, kind, args, meta, unique_key, unique_no, unique_until, key)
  SELECT w.id, this_xid, now(), w.lane, 1, w.max_attempts, pg_sequence_last_value('weir.active_job'), lag(w.lane) OVER () IS DISTINCT FROM w.lane, w.kind, w.args, w.meta,
         w.key, w.id * 2 + w.replaces, w.until, w.owner
  FROM (SELECT h.*, (coalesce(h.home, queue_ids[array_position(names, h.queue)])::bigint << 39) + h.priority - 1 + h.bits AS lane
        FROM unnest(ids, j.queues, j.kinds, j.args, j.priorities, j.run_at, j.max_attempts, j.metas, j.keys, j.replaces, j.untils, j.owners, j.bits, homes)
          h(id, queue, kind, args, priority, run_at, max_attempts, meta, key, replaces, until, owner, bits, home)
        WHERE h.id IS NOT NULL AND (h.run_at <= now()) IS NOT FALSE) w;
  INSERT INTO weir.later (id, xid, run_at, enqueued_at, lane, attempt, max_attempts, segment, kind, args, meta, unique_key, unique_no, unique_until, key)
  SELECT h.id, this_xid, h.run_at, now(), (coalesce(h.home, queue_ids[array_position(names, h.queue)])::bigint << 39) + h.priority - 1 + h.bits, 1, h.max_attempts, pg_sequence_last_value('weir.active_later'), h.kind, h.args, h.meta,
         h.key, h.id * 2 + h.replaces, h.until, h.owner
  FROM unnest(ids, j.queues, j.kinds, j.args, j.priorities, j.run_at, j.max_attempts, j.metas, j.keys, j.replaces, j.untils, j.owners, j.bits, homes)
    h(id, queue, kind, args, priority, run_at, max_attempts, meta, key, replaces, until, owner, bits, home)
  WHERE h.id IS NOT NULL AND h.run_at > now();

  FOR i IN 1..n LOOP
    CONTINUE WHEN is_new[i];
    SELECT a.* INTO u
    FROM jsonb_to_record(jobs -> (i - 1)) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb,
                                            unique_key text, fields text[], until text, within interval, replace boolean, wait boolean, key text)
    CROSS JOIN LATERAL weir.enqueue_unique(x.queue, x.kind, x.args, x.unique_key, x.fields, x.until, x.within, x.replace, x.wait, x.priority, x.run_at, x.max_attempts, x.meta, x.key) a;
    ids[i] := u.id;
    duplicates[i] := u.duplicate;
  END LOOP;
  RETURN QUERY SELECT w.id, w.duplicate FROM unnest(ids, duplicates) WITH ORDINALITY w(id, duplicate, ord) ORDER BY w.ord;
END
$$;
COMMENT ON FUNCTION weir._enqueue_unique_many IS
  'Calls enqueue_unique for each element of a JSON array, an object whose keys are its arguments, and returns the answers in their order; but jobs whose keys have no rows in the log are enqueued together, before the others. All or none. Errors and locks: as for enqueue_unique; 22023 (more than 10000 jobs). Isolation: any.';
