-- Giving back the space of flows: what is counted, and what belongs to flows that ended longer ago than jobs are kept.

CREATE OR REPLACE FUNCTION weir._compact_flows() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 4194304;
  active    integer := pg_sequence_last_value('weir.active_arrival');
  ring      integer;
  kept      interval;
  did       text;
BEGIN
  IF pg_relation_size('weir.arrival_' || active) > max_bytes AND pg_relation_size('weir.arrival_' || active % 3 + 1) = 0 THEN
    PERFORM setval('weir.active_arrival', active % 3 + 1);
    RETURN 'opened arrival ' || active % 3 + 1;
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 3) r WHERE r <> active AND pg_relation_size('weir.arrival_' || r) > 0 LOOP
    CONTINUE WHEN weir._is_held(ARRAY['weir.arrival_' || ring]::regclass[]);  -- an open transaction has arrivals there: the others rotate meanwhile
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 7);
      EXECUTE format('LOCK TABLE weir.arrival_%s IN ACCESS EXCLUSIVE MODE NOWAIT', ring);
      -- Nearly all are counted.
      EXECUTE format('INSERT INTO weir.arrival (flow, ring, xid, jobs, completed, failed, cancelled, event, no, waits, broken, counts)
                      SELECT a.flow, $1, a.xid, a.jobs, a.completed, a.failed, a.cancelled, a.event, a.no, a.waits, a.broken, a.counts
                      FROM weir.arrival_%s a CROSS JOIN (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c
                      WHERE NOT pg_visible_in_snapshot(a.xid, c.snapshot)', ring) USING active;
      EXECUTE format('TRUNCATE weir.arrival_%s', ring);
      RETURN 'emptied arrival ' || ring;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  did := coalesce(weir._turn_ring('seen', 'key, job, flow', 20000), weir._turn_ring('output', 'no, flow, job, task, kind, output', 1000));
  IF did IS NOT NULL THEN
    RETURN did;
  END IF;
  IF pg_relation_size('weir.flow_cut') > max_bytes THEN
    PERFORM pg_advisory_xact_lock(1464158547, 7);
    LOCK TABLE weir.flow_cut IN ACCESS EXCLUSIVE MODE NOWAIT;
    CREATE TEMP TABLE weir_keep ON COMMIT DROP AS SELECT c.* FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1;
    TRUNCATE weir.flow_cut;
    INSERT INTO weir.flow_cut SELECT k.* FROM pg_temp.weir_keep k;
    RETURN 'compacted cuts of flows';
  ELSIF pg_relation_size('weir.fold') + pg_relation_size('weir.flow') > greatest(max_bytes, 2 * pg_sequence_last_value('weir.flow_bytes')) THEN
    PERFORM pg_advisory_xact_lock(1464158547, 7);
    LOCK TABLE weir.flow, weir.edge, weir.fold IN ACCESS EXCLUSIVE MODE NOWAIT;
    kept := (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention'));
    -- What is within a flow is kept as long as that.
    CREATE TEMP TABLE weir_last ON COMMIT DROP AS SELECT DISTINCT ON (p.flow) p.* FROM weir.fold p ORDER BY p.flow, p.cut DESC;
    CREATE TEMP TABLE weir_keep_root ON COMMIT DROP AS
      SELECT f.id FROM weir.flow f LEFT JOIN pg_temp.weir_last r ON r.flow = f.id
      WHERE f.parent IS NULL AND (r.flow IS NULL OR r.fired_at IS NULL OR r.fired_at > clock_timestamp() - kept)
      UNION  -- or a member was retried, which is not counted yet
      SELECT d.root FROM weir.arrival a CROSS JOIN (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1) c JOIN weir.flow d ON d.id = a.flow
      WHERE a.xid >= pg_snapshot_xmin(c.snapshot) AND NOT pg_visible_in_snapshot(a.xid, c.snapshot);
    -- Joined: where a list of flows is longer than work_mem, IN would go through it for each of them.
    CREATE TEMP TABLE weir_keep_flow ON COMMIT DROP AS SELECT f.* FROM weir.flow f JOIN pg_temp.weir_keep_root k ON k.id = f.root;
    CREATE TEMP TABLE weir_keep_edge ON COMMIT DROP AS SELECT e.* FROM weir.edge e JOIN pg_temp.weir_keep_flow f ON f.id = e.flow;
    TRUNCATE weir.flow, weir.edge, weir.fold;
    INSERT INTO weir.flow SELECT k.* FROM pg_temp.weir_keep_flow k;
    INSERT INTO weir.edge SELECT k.* FROM pg_temp.weir_keep_edge k;
    INSERT INTO weir.fold SELECT k.* FROM pg_temp.weir_last k JOIN pg_temp.weir_keep_flow f ON f.id = k.flow;
    PERFORM setval('weir.flow_bytes', pg_relation_size('weir.fold') + pg_relation_size('weir.flow'));
    RETURN 'compacted flows';
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;  -- in use: try again later
END
$$;
COMMENT ON FUNCTION weir._compact_flows IS
  'Does one small chore for the tables of flows: opens the next table of arrivals when the active one has 4 MB; empties the others of what is counted; compacts the cuts, the counts and the flows to what is still of use, without flows that ended longer ago than jobs are kept. Returns what it did, or NULL. Locks: advisory: step 7 (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._turn_ring(name text, columns text, most integer) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  max_bytes CONSTANT integer := 16777216;
  active    integer := pg_sequence_last_value(('weir.active_' || name)::regclass);
  target    integer;
  ring      integer;
  kept      interval;
  n         bigint;
  bytes     bigint;
BEGIN
  IF pg_table_size('weir.' || name || '_' || active) > max_bytes THEN
    SELECT r INTO target FROM generate_series(1, 4) r WHERE pg_relation_size('weir.' || _turn_ring.name || '_' || r) = 0 LIMIT 1;
    IF FOUND THEN
      PERFORM setval(('weir.active_' || name)::regclass, target);
      RETURN format('opened %s %s', name, target);
    END IF;
  END IF;
  FOR ring IN SELECT r FROM generate_series(1, 4) r WHERE r <> active AND pg_relation_size('weir.' || _turn_ring.name || '_' || r) > 0 LOOP
    kept := coalesce(kept, (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention')));
    -- One that large flows still need waits until these have ended: the others rotate meanwhile. What is copied must be little, or it would fill the next table, and be copied again and again.
    EXECUTE format('SELECT count(*), sum(k.bytes) FROM (SELECT %s AS bytes FROM weir.%I s WHERE weir._is_kept(s.flow, $1) LIMIT $2) k',
                   (SELECT string_agg(format('coalesce(pg_column_size(s.%I), 0)', c), ' + ') FROM unnest(string_to_array(columns, ', ')) c), name || '_' || ring) INTO n, bytes USING kept, most + 1;
    CONTINUE WHEN n > most OR bytes > max_bytes / 4 OR weir._is_held(ARRAY[format('weir.%I', name || '_' || ring)]::regclass[]);
    BEGIN
      PERFORM pg_advisory_xact_lock(1464158547, 0);  -- a claim with an older snapshot would not see the copies
      EXECUTE format('LOCK TABLE weir.%I IN ACCESS EXCLUSIVE MODE NOWAIT', name || '_' || ring);
      EXECUTE format('INSERT INTO weir.%I (ring, %s) SELECT $1, %s FROM weir.%I s WHERE weir._is_kept(s.flow, $2)', name, columns, columns, name || '_' || ring) USING active, kept;
      EXECUTE format('TRUNCATE weir.%I', name || '_' || ring);
      RETURN format('emptied %s %s', name, ring);
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._turn_ring IS
  'Opens the next table of weir.seen or weir.output (name) when the active one has 16 MB, or empties one whose flows are forgotten, but for most rows and a quarter of that at most, which it copies (columns). Returns what it did, or NULL. Locks: advisory: claims (exclusive, waiting at most 50 ms); ACCESS EXCLUSIVE NOWAIT on a table that it truncates. Isolation: READ COMMITTED.';

CREATE OR REPLACE FUNCTION weir._is_kept(flow bigint, kept interval) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM weir.flow f WHERE f.id = _is_kept.flow
                   AND ((SELECT r.fired_at FROM weir.fold r WHERE r.flow = f.root ORDER BY r.cut DESC LIMIT 1) < clock_timestamp() - _is_kept.kept) IS NOT TRUE);
END
$$;
COMMENT ON FUNCTION weir._is_kept IS 'Whether a flow is still kept: the outermost one has not ended, or not longer ago than kept. Errors: none. Locks: none. Isolation: READ COMMITTED.';
