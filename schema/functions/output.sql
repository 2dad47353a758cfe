-- The outputs of members of flows, for those that come after them.
--
-- The results of attempts leave with their segment of the log; a flow may take longer than that. So an output of a member is stored once more, beside its flow, and kept
-- for as long as that.

CREATE OR REPLACE FUNCTION weir._keep_outputs(lanes bigint[], seqs bigint[], ids bigint[], outputs text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO weir.output (no, flow, job, ring, task, kind, output)
  SELECT nextval('weir.output_no'), coalesce(d.parent, k.flow), k.id, pg_sequence_last_value('weir.active_output'), d.name, k.kind, k.output
  FROM (
    SELECT u.id, u.output, u.nr, b.flow, (SELECT j.kind FROM weir.job j WHERE j.segment = b.segment AND j.id = u.id LIMIT 1) AS kind
    FROM unnest(_keep_outputs.lanes, _keep_outputs.seqs, _keep_outputs.ids, _keep_outputs.outputs) WITH ORDINALITY u(lane, seq, id, output, nr)
    CROSS JOIN LATERAL (
      SELECT b.segment, b.flows[CASE WHEN cardinality(b.flows) = 1 THEN 1 ELSE array_position(b.ids, u.id) END] AS flow
      FROM weir.batch b WHERE b.lane = u.lane AND b.seq = u.seq AND b.flows IS NOT NULL AND u.id = ANY (b.ids) LIMIT 1) b
    WHERE b.flow IS NOT NULL OFFSET 0) k
  -- That of a task's own job is the task's, in the flow that this belongs to.
  LEFT JOIN LATERAL (SELECT d.parent, d.name FROM weir.flow d WHERE d.id = k.flow AND d.task IS NOT NULL
                     AND (SELECT p.job = k.id FROM weir.fold p WHERE p.flow = d.id ORDER BY p.cut DESC LIMIT 1) OFFSET 0) d ON true
  ORDER BY k.nr;
END
$$;
COMMENT ON FUNCTION weir._keep_outputs IS 'Stores the outputs of jobs that have completed, and are members of flows, for as long as these are kept. Locks: ROW EXCLUSIVE on weir.output; none that others wait for.';

CREATE OR REPLACE FUNCTION weir.flow_outputs(flow bigint, task text DEFAULT NULL, after bigint DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (no bigint, job bigint, task_name text, kind text, output text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
  IF flow_outputs.max_rows NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'weir: flow_outputs returns 1 to 1000 outputs, got %', flow_outputs.max_rows USING ERRCODE = '22023', HINT = 'Read more pages: pass the last no as after.';
  END IF;
  LOCK TABLE weir.output IN ACCESS SHARE MODE;
  PERFORM weir._refuse_old_snapshot('^output_[1-4]$', 'weir: a table of outputs was emptied after this transaction took its snapshot, which does not show what was moved');
  RETURN QUERY
  SELECT o.no, o.job, o.task, o.kind, o.output FROM weir.output o
  WHERE o.flow = flow_outputs.flow AND o.no > coalesce(flow_outputs.after, 0) AND (flow_outputs.task IS NULL OR o.task = flow_outputs.task)
    AND NOT EXISTS (SELECT FROM weir.output n WHERE n.flow = o.flow AND n.job = o.job AND n.no > o.no)  -- it has completed once more
  ORDER BY o.no LIMIT coalesce(flow_outputs.max_rows, 100);
  RAISE SQLSTATE 'WR099';  -- releases the tables
EXCEPTION WHEN SQLSTATE 'WR099' THEN
  RETURN;
END
$$;
COMMENT ON FUNCTION weir.flow_outputs IS
  'The outputs of a flow''s members that have completed, also of those that have left the log, in the order in which they were recorded: up to max_rows (1 to 1000) after the one with the number after (NULL: from the first on); with task, only that task''s. job and kind are the job''s, task_name is that of the task (NULL: a member without a name). Outputs of jobs that a task has added belong to the task: pass its id. Those of a flow that has ended are complete. Errors: 22023; 40001 as for weir.flow_info. Locks: as for weir.flow_info. Isolation: any.';
