-- Surveys of all lanes: with one, the cost of an inspection depends on how many jobs are new or waiting, not on how many lanes exist.
--
-- In a survey, each lane of the queues up to upto either is in waiting, or had all its jobs claimed that the survey's snapshot sees.
-- A claimed row never waits again: the next attempt is a new row, of another transaction, and rows that reclaiming carries were waiting
-- before. So jobs that wait now are in lanes of waiting, in lanes with jobs of transactions that have ended since (weir._fresh_lanes), or
-- in queues that no survey has reached. A claim commits asynchronously, but its commit record precedes that of every survey that has seen
-- it in the WAL: a crash that loses the claim loses the survey, too. Lanes of keys are not in surveys: see _waiting_keys.

CREATE OR REPLACE FUNCTION weir._surveyed(max_rows integer DEFAULT 10000) RETURNS weir.survey
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
  s     weir.survey;
  fresh bigint[];
  own   bigint[];  -- the lanes in which the caller's transaction has logged
BEGIN
  SELECT v.* INTO s FROM weir.survey v ORDER BY v.no DESC LIMIT 1;
  -- Transaction ids of another cluster can't be compared, and of jobs that were logged and reclaimed since, only the totals are left.
  IF pg_snapshot_xmax(s.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) AND s.reclaimed = weir._last_reclaimed()
     AND (SELECT k.value FROM weir.setting k WHERE k.name = 'cluster') = (SELECT c.system_identifier::text FROM pg_control_system() c) THEN
    fresh := weir._fresh_lanes(s.snapshot, pg_current_snapshot(), _surveyed.max_rows);
    own := ARRAY(SELECT j.lane FROM weir.job j WHERE j.leads AND j.xid = pg_current_xact_id_if_assigned() LIMIT _surveyed.max_rows + 1);
    IF fresh IS NOT NULL AND cardinality(own) <= _surveyed.max_rows THEN
      s.waiting := ARRAY(SELECT w FROM unnest(s.waiting) w UNION SELECT f FROM unnest(fresh || own) f WHERE f >> 39 <= s.upto AND f & 549755813880 = 0);
      RETURN s;
    END IF;
  END IF;
  RETURN ROW(coalesce(s.no, 0), 0, NULL, 0, 0, '{}', '{}', '{}', '{}')::weir.survey;
END
$$;
COMMENT ON FUNCTION weir._surveyed IS
  'The newest survey, with the lanes that have received jobs since in waiting. If there is none, it is not valid any more, or more than max_rows rows would have to be read, an empty survey that has reached no queue.';

CREATE OR REPLACE FUNCTION weir._last_reclaimed() RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_sort = off
AS $$
  SELECT coalesce((SELECT k.no FROM weir.segment k WHERE k.log = 'job' AND k.event = 'reclaimed' ORDER BY k.no DESC LIMIT 1), 0)
$$;
COMMENT ON FUNCTION weir._last_reclaimed IS 'The number of the last event by which a segment of jobs was reclaimed; 0: none was.';

CREATE OR REPLACE FUNCTION weir._resurvey() RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
  min_queues CONSTANT integer := 100;  -- fewer are inspected quickly without a survey
  step       CONSTANT integer := 500;
  snapshot   pg_snapshot;
  batches    bigint;
  reached    integer;
  every      integer;
  checked    bigint[];
  s          weir.survey;
  room       boolean := pg_table_size('weir.survey') < 4194304;
BEGIN
  PERFORM weir._check_isolation('survey'), weir._hold_briefly();
  IF NOT EXISTS (SELECT FROM weir.queue q ORDER BY q.id OFFSET min_queues LIMIT 1) THEN
    RETURN NULL;
  -- TRUNCATE is not MVCC-safe: nothing may be reclaimed between the snapshot and the queries.
  ELSIF NOT pg_try_advisory_xact_lock(1464158547, 3) OR NOT pg_try_advisory_xact_lock_shared(1464158547, 0) THEN
    RETURN NULL;
  END IF;
  PERFORM weir._check_cluster();
  batches := coalesce(pg_sequence_last_value('weir.batch_no'), 0);
  snapshot := pg_current_snapshot();  -- later statements see at least as much
  s := weir._surveyed();
  reached := coalesce((SELECT max(n.id) FROM (SELECT q.id FROM weir.queue q WHERE q.id > s.upto ORDER BY q.id LIMIT step) n), s.upto);
  every := greatest(500, reached / 4);  -- the larger the survey, the less often it is rewritten
  IF reached = s.upto AND batches < s.batches + every AND weir._fresh_lanes(s.snapshot, snapshot, every) IS NOT NULL THEN
    RETURN NULL;
  END IF;
  IF NOT room THEN
    BEGIN
      LOCK TABLE weir.survey IN ACCESS EXCLUSIVE MODE NOWAIT;
      TRUNCATE weir.survey;
    EXCEPTION WHEN lock_not_available THEN
      RETURN NULL;  -- it is being read: try again later
    END;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  checked := ARRAY(SELECT w FROM unnest(s.waiting) w
                  UNION SELECT (q.id::bigint << 39) + p FROM weir.queue q, generate_series(0, 3) p WHERE q.id > s.upto AND q.id <= reached);
  INSERT INTO weir.survey (no, upto, snapshot, batches, reclaimed, waiting, lanes, totals, claimed_at)
  WITH lane AS MATERIALIZED (
    SELECT l.lane, b.total, b.claimed_at,
           EXISTS (SELECT FROM weir.job j WHERE j.lane = l.lane AND (j.xid, j.id) > (coalesce(b.pos_xid, '0'), coalesce(b.pos_id, 0)))
           OR EXISTS (SELECT FROM unnest(b.pending, b.pending_after) p(xid, after)
                      CROSS JOIN LATERAL (SELECT FROM weir.job j WHERE j.lane = l.lane AND j.xid = p.xid AND j.id > p.after LIMIT 1) j
                      WHERE pg_visible_in_snapshot(p.xid, snapshot)) AS waits
    FROM unnest(checked) l(lane)
    LEFT JOIN LATERAL (SELECT b.* FROM weir.batch b WHERE b.lane = l.lane ORDER BY b.seq DESC LIMIT 1) b ON true
  ), totals AS MATERIALIZED (
    SELECT l.lane, l.total, l.claimed_at FROM lane l WHERE l.total IS NOT NULL
    UNION ALL
    SELECT k.* FROM unnest(s.lanes, s.totals, s.claimed_at) k(lane, total, at) LEFT JOIN lane l ON l.lane = k.lane WHERE l.lane IS NULL
  )
  SELECT s.no + 1, reached, snapshot, batches, weir._last_reclaimed(), ARRAY(SELECT l.lane FROM lane l WHERE l.waits),
         coalesce(array_agg(k.lane), '{}'), coalesce(array_agg(k.total), '{}'), coalesce(array_agg(k.claimed_at), '{}') FROM totals k;
  RETURN format('surveyed %s lanes', cardinality(checked));
END
$$;
COMMENT ON FUNCTION weir._resurvey IS
  'If there are more than a hundred queues, writes a survey for inspections: in which lanes jobs wait, and how many were claimed of each. It checks the lanes that are new or were waiting in the last survey, and 500 further queues, once enough has changed. Returns what it did, or NULL. Errors: WR003, WR004. Locks: advisory step 3 (tried), claims (shared, tried); ACCESS EXCLUSIVE NOWAIT on weir.survey when it has grown and is truncated. Isolation: READ COMMITTED. Commits asynchronously.';
