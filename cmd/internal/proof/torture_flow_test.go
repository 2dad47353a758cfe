package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// Flows in the torture test. Those of the family sure are never cancelled, and none of their members fails for good, so these are judged with the other jobs
// that run and complete once. In those of the family wild, members fail, are to be done once, are cancelled and retried. Both are sealed with their
// creation, later, or by their deadline, and have tasks, flows within them, and members that add others. Triggers note all of it, in the transactions
// that do it, and the test is judged by these notes alone: whatever a failover has lost has lost its notes, too.

const flowNotebook = `
CREATE TABLE flow_made (id bigint PRIMARY KEY, name text NOT NULL, parent bigint, is_task boolean NOT NULL, family text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE flow_member (id bigint PRIMARY KEY, flow bigint, kind text NOT NULL, is_task boolean NOT NULL, called bigint, generation integer, about jsonb, once uuid,
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(), seen pg_snapshot NOT NULL DEFAULT pg_current_snapshot());
CREATE TABLE flow_edge (parent bigint NOT NULL, predecessor text, successor bigint, is_lenient boolean NOT NULL, PRIMARY KEY (successor, predecessor));
CREATE TABLE flow_folded (flow bigint, cut bigint, generation integer NOT NULL, jobs bigint NOT NULL, completed bigint NOT NULL, failed bigint NOT NULL, cancelled bigint NOT NULL, fired boolean NOT NULL,
  is_cancelled boolean NOT NULL, is_abandoned boolean NOT NULL, is_skipped boolean NOT NULL, job bigint, counters jsonb, PRIMARY KEY (flow, cut));
CREATE VIEW flow_last AS SELECT m.name, m.parent, m.is_task, m.family, k.* FROM flow_made m CROSS JOIN LATERAL (SELECT k.* FROM flow_folded k WHERE k.flow = m.id ORDER BY k.cut DESC LIMIT 1) k;
CREATE TABLE flow_effect (flow bigint NOT NULL, job bigint NOT NULL);
CREATE TABLE flow_read (job bigint NOT NULL, task text NOT NULL, n bigint NOT NULL);
CREATE INDEX ON flow_made (parent, name);
CREATE INDEX ON flow_member (flow);
CREATE INDEX ON flow_member (called, generation);
CREATE INDEX ON flow_effect (flow);
CREATE INDEX ON dropped (id);
GRANT SELECT ON flow_made, flow_member, flow_effect TO hasty;
GRANT INSERT ON flow_effect, flow_read TO hasty;

CREATE FUNCTION note_flow() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.flow_made (id, name, parent, is_task, family)
  VALUES (NEW.id, NEW.name, NEW.parent, NEW.task IS NOT NULL, coalesce((SELECT m.family FROM public.flow_made m WHERE m.id = NEW.root), split_part(NEW.name, ' ', 1)))
  ON CONFLICT DO NOTHING;  -- compacting repeats rows
  RETURN NULL;
END
$$;
CREATE TRIGGER note_flow AFTER INSERT ON weir.flow FOR EACH ROW EXECUTE FUNCTION note_flow();

CREATE FUNCTION note_edge() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.flow_edge VALUES (NEW.flow, NEW.predecessor, NEW.successor, NEW.is_lenient) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_edge AFTER INSERT ON weir.edge FOR EACH ROW EXECUTE FUNCTION note_edge();

CREATE FUNCTION note_fold() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.flow_folded VALUES (NEW.flow, NEW.cut, NEW.generation, NEW.jobs, NEW.completed, NEW.failed, NEW.cancelled, NEW.fired_at IS NOT NULL,
    NEW.is_cancelled, NEW.is_abandoned, NEW.is_skipped, NEW.job, NEW.counters) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_fold AFTER INSERT ON weir.fold FOR EACH ROW EXECUTE FUNCTION note_fold();

CREATE FUNCTION note_member() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO public.flow_member (id, flow, kind, is_task, called, generation, about, once)
  VALUES (NEW.id, NEW.flow, NEW.kind, coalesce(NEW.meta ? 'weir.task', false), (NEW.meta -> 'weir.flow' ->> 'id')::bigint, (NEW.meta -> 'weir.flow' ->> 'generation')::integer, NEW.meta -> 'weir.flow', NEW.unique_key)
  ON CONFLICT DO NOTHING;  -- reclaiming repeats rows
  IF FOUND AND NEW.kind = 'torn' AND NEW.meta ? 'weir.task' THEN
    INSERT INTO public.produced VALUES (NEW.args ->> 'Key', NEW.id, (NEW.args ->> 'Tx')::boolean);
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_member AFTER INSERT ON weir.job FOR EACH ROW
  WHEN (NEW.attempt = 1 AND NEW.put_off = 0 AND (NEW.flow IS NOT NULL OR NEW.meta ? 'weir.flow')) EXECUTE FUNCTION note_member();
`

// countEffect counts the effect of a member ($1), if it is one, in the transaction of its completion.
const countEffect = `WITH e AS (INSERT INTO flow_effect SELECT m.flow, m.id FROM flow_member m WHERE m.id = $1 AND m.flow IS NOT NULL RETURNING flow) SELECT weir.increment(e.flow, 'effects') FROM e`

// flowMember is a member of a flow that may add others.
type flowMember struct{ Depth int }

func (flowMember) Kind() string { return "member" }

// flowJoin is a task that reads the outputs of those that it comes after.
type flowJoin struct{ After []string }

func (flowJoin) Kind() string { return "join" }

// useFlows makes the bounds small from which on the tables of flows are compacted. With some seeds, what has ended is soon forgotten.
func (w *torture) useFlows(conn *pgx.Conn) {
	exec(w.T, conn, flowNotebook)
	setConstant(w.T, conn, "weir._compact_flows", "max_bytes", "4194304", "32768")
	setConstant(w.T, conn, "weir._turn_ring", "max_bytes", "16777216", "65536")
	if w.forgets = w.seed%2 == 1; w.forgets {
		exec(w.T, conn, `SELECT weir.set('completed_retention', '3 seconds'), weir.set('failed_retention', '3 seconds')`)
	}
}

// produceFlows creates a flow, adds to one, or seals one, in a transaction of a producer that is noted as f.
func (w *torture) produceFlows(tx pgx.Tx, rng *rand.Rand, producer int, n *int, f *txRecord) error {
	*n++
	family := []string{"sure", "wild"}[rng.IntN(2)]
	switch rng.IntN(5) {
	case 0, 1: // one that others may have sealed meanwhile
		var id int64
		err := tx.QueryRow(w.ctx, `SELECT m.id FROM (SELECT m.id FROM flow_made m WHERE m.parent IS NULL AND m.family = $1 ORDER BY m.id DESC LIMIT 1 OFFSET $2) m
			CROSS JOIN LATERAL weir.flow_info(m.id) i WHERE i.state IN ('open', 'running')`, family, rng.IntN(4)).Scan(&id)
		if err == pgx.ErrNoRows {
			return nil
		}
		if err == nil {
			err = w.addToFlow(tx, rng, id, family, fmt.Sprintf("%d.%d", producer, *n), f)
		}
		if err == nil && family == "wild" && rng.IntN(2) == 0 {
			err = w.addTwins(tx, id, fmt.Sprintf("%d.%d", producer, *n))
		}
		if err == nil && rng.IntN(2) == 0 {
			_, err = tx.Exec(w.ctx, `SELECT weir.seal($1)`, id)
		}
		return err
	}
	seals := rng.IntN(2) == 0
	id, err := w.newFlow(tx, rng, family, fmt.Sprintf("%s %d.%d", family, producer, *n), nil)
	if err == nil {
		err = w.addToFlow(tx, rng, id, family, fmt.Sprintf("%d.%d", producer, *n), f)
	}
	if err == nil && rng.IntN(3) == 0 {
		var inner int64
		if inner, err = w.newFlow(tx, rng, family, fmt.Sprintf("in %d.%d", producer, *n), &id); err == nil {
			_, err = tx.Exec(w.ctx, `SELECT weir.enqueue('only', 'member', '{"Depth": 1}', flow => $1, run_at => now() + $2 * interval '1 ms')`, inner, max(rng.IntN(2000)-1000, 0))
		}
		if err == nil && rng.IntN(3) > 0 {
			_, err = tx.Exec(w.ctx, `SELECT weir.seal($1)`, inner)
		}
	}
	if err == nil && seals {
		_, err = tx.Exec(w.ctx, `SELECT weir.seal($1)`, id)
	}
	return err
}

// newFlow creates one that is abandoned if nobody seals it within a few seconds.
func (w *torture) newFlow(tx pgx.Tx, rng *rand.Rand, family, name string, parent *int64) (id int64, err error) {
	queue := "only"
	if family == "sure" && rng.IntN(2) == 0 {
		queue = "torture"
	}
	return id, tx.QueryRow(w.ctx, `SELECT weir.flow($1, jsonb_build_object('queue', $2::text, 'kind', 'flow done', 'args', '{"Key": "", "Tx": false}'::jsonb),
		jsonb_build_object('queue', 'only', 'kind', 'flow success'), clock_timestamp() + $3 * interval '1 ms', $4, $5)`, name, queue, 500+rng.IntN(5000), parent, family == "wild" && rng.IntN(4) == 0).Scan(&id)
}

// addToFlow adds members and tasks to a flow. Tasks that are there already stay as they are.
func (w *torture) addToFlow(tx pgx.Tx, rng *rand.Rand, id int64, family, unique string, f *txRecord) error {
	if family == "sure" {
		for i := range 1 + rng.IntN(2) {
			if _, err := tx.Exec(w.ctx, `WITH j AS (SELECT weir.enqueue('torture', 'torn', jsonb_build_object('Key', $1::text, 'Tx', $2::boolean), flow => $3) AS id) INSERT INTO produced SELECT $1, j.id, $2 FROM j`,
				w.named(fmt.Sprintf("f%s.%d", unique, i), f), rng.IntN(3) > 0, id); err != nil {
				return err
			}
		}
		if rng.IntN(2) == 0 {
			return nil
		}
		_, err := tx.Exec(w.ctx, `SELECT weir.add_tasks($1, jsonb_build_array(jsonb_build_object('task', 'a' || $2, 'queue', 'only', 'kind', 'member', 'args', '{"Depth": 1}'::jsonb),
			jsonb_build_object('task', 'b' || $2, 'after', jsonb_build_array('a' || $2), 'queue', 'only', 'kind', 'join', 'args', jsonb_build_object('After', jsonb_build_array('a' || $2))),
			jsonb_build_object('task', 'c' || $2, 'after', jsonb_build_array('b' || $2, 'a' || $2), 'queue', 'torture', 'kind', 'torn', 'args', jsonb_build_object('Key', $3::text, 'Tx', true))))`,
			id, unique, w.named("t"+unique, f))
		return err
	}
	for range 1 + rng.IntN(2) {
		if _, err := tx.Exec(w.ctx, `SELECT weir.enqueue('only', 'member', '{"Depth": 0}', flow => $1, once => $2, priority => $3, run_at => now() + $4 * interval '1 ms')`,
			id, fmt.Sprint("page ", rng.IntN(3)), 1+rng.IntN(4), max(rng.IntN(1000)-700, 0)); err != nil {
			return err
		}
	}
	if rng.IntN(4) == 0 {
		if _, err := tx.Exec(w.ctx, `INSERT INTO promised (id, what, key) SELECT weir.enqueue('only', 'dud', flow => $1, max_attempts => 1), 'dud', ''`, id); err != nil {
			return err
		}
	}
	if rng.IntN(2) == 0 {
		return nil
	}
	// Several transactions, which may not see each other, add the same ones.
	first := `"kind": "member", "args": {"Depth": 1}`
	if rng.IntN(4) == 0 {
		first = `"kind": "dud", "max_attempts": 1`
	}
	_, err := tx.Exec(w.ctx, `SELECT weir.add_tasks($1, $2::text::jsonb)`, id, `[{"task": "a", "queue": "only", `+first+`}, {"task": "b", "after": ["a"], "queue": "only", "kind": "member", "args": {"Depth": 2}},
		{"task": "c", "after": ["b"], "queue": "only", "kind": "member", "args": {"Depth": 2}}, {"task": "d", "after": ["a", "c"], "ignore_failed": true, "queue": "only", "kind": "member", "args": {"Depth": 2}}]`)
	return err
}

// addTwins adds a member that is to be done once, and another one that does not see it, of a transaction that commits first.
func (w *torture) addTwins(tx pgx.Tx, id int64, unique string) error {
	const add = `SELECT weir.enqueue('only', 'member', '{"Depth": 2}', flow => $1, once => $2)`
	if _, err := tx.Exec(w.ctx, add, id, unique); err != nil {
		return err
	}
	conn, err := pgx.Connect(w.ctx, w.common.url(w.T, w.address))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(w.ctx, add, id, unique)
	return err
}

// operateFlows cancels or retries a flow of the family wild, or a task or flow within one.
func (w *torture) operateFlows(conn *pgx.Conn, rng *rand.Rand) error {
	var id int64
	cancels := rng.IntN(2) == 0
	err := conn.QueryRow(w.ctx, `SELECT m.id FROM (SELECT m.id FROM flow_made m WHERE m.family = 'wild' ORDER BY m.id DESC LIMIT 40) m
		WHERE $1 OR (SELECT NOT k.is_task AND (k.is_cancelled OR k.failed + k.cancelled > 0) FROM flow_last k WHERE k.flow = m.id) ORDER BY hashint8extended(m.id, $2) LIMIT 1`, cancels, rng.Int64()).Scan(&id)
	switch {
	case err == pgx.ErrNoRows:
		return nil
	case err != nil:
		return err
	case cancels:
		w.flowCancels.Add(1)
		_, err := conn.Exec(w.ctx, `SELECT weir.cancel_flow($1)`, id)
		return err
	}
	err = w.stepsOf(conn, "retry_flow", "retried", itoa(id), &w.flowRetries)
	if sqlstate(err) == "22023" {
		return nil // it was forgotten
	}
	return err
}

// handleFlows registers the handlers of members of flows.
func handleFlows(handlers *weir.Handlers, pool *pgxpool.Pool) {
	fails := func(kind string, meta weir.JobMeta) error {
		switch luck(kind, int(meta.ID), meta.Attempt+100*meta.PutOff, 12) {
		case 0:
			return errTorture
		case 1:
			return errLater
		}
		return nil
	}
	weir.HandleWith(handlers, byRule, func(ctx context.Context, job *weir.Job[flowMember]) error {
		say("start", job.ID, job.Attempt, "")
		defer say("end", job.ID, job.Attempt)
		if err := fails(job.Kind, job.JobMeta); err != nil {
			return err
		}
		job.SetOutput("from Go")
		kind := luck("child", int(job.ID), job.Attempt, 4)
		if job.Args.Depth >= 2 || kind > 1 {
			return nil
		}
		once := []*string{nil, new(string)}[kind] // what is done once is found by others, too
		if once != nil {
			*once = fmt.Sprint("page ", luck("page", int(job.ID), job.Attempt, 5))
		}
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT weir.enqueue('only', 'member', jsonb_build_object('Depth', $2::int), flow => $1, once => $3)`, job.Flow, job.Args.Depth+1, once); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, countEffect, job.ID); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	})
	weir.HandleWith(handlers, byRule, func(ctx context.Context, job *weir.Job[flowJoin]) error {
		say("start", job.ID, job.Attempt, "")
		defer say("end", job.ID, job.Attempt)
		if err := fails(job.Kind, job.JobMeta); err != nil {
			return err
		}
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, countEffect, job.ID); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, tx); err != nil {
				return err
			}
			// The flow is open: it waits for this transaction, and keeps what it needs.
			_, err := tx.Exec(ctx, `INSERT INTO flow_read SELECT $1, a.name, (SELECT count(*) FROM weir.flow_outputs($2, task => a.name)) FROM unnest($3::text[]) a(name)`, job.ID, job.Task().Flow, job.Args.After)
			return err
		})
	})
}

// flowsLeft says which flows have not ended, and what is not counted.
const flowsLeft = `SELECT coalesce(string_agg(k.is, ', '), '') FROM (
	SELECT format('flow %s', i) AS is FROM (
		SELECT f.id FROM weir.flow f WHERE (SELECT p.fired_at FROM weir.fold p WHERE p.flow = f.id ORDER BY p.cut DESC LIMIT 1) IS NULL ORDER BY f.id LIMIT 3) f CROSS JOIN LATERAL weir.flow_info(f.id) i
	UNION ALL
	(SELECT format('uncounted %s', a) FROM weir.arrival a WHERE EXISTS (SELECT FROM weir.flow f WHERE f.id = a.flow)
	   AND pg_visible_in_snapshot(a.xid, (SELECT c.snapshot FROM weir.flow_cut c ORDER BY c.no DESC LIMIT 1)) IS NOT TRUE LIMIT 3)) k`

// flowFaults are what the notebook of flows must not show. What a flow says is compared with what became of its members, as long as it is kept: one that was
// forgotten counts no retries.
var flowFaults = map[string]string{
	"is a flow that was forgotten or left before it had ended": `SELECT format('flow %s (%s)', m.id, m.name) FROM flow_made m WHERE (SELECT k.fired FROM flow_last k WHERE k.flow = m.id) IS NOT TRUE`,
	"has not called back as it should": `
		WITH ends AS (SELECT DISTINCT ON (k.flow, k.generation) m.name, m.is_task, k.* FROM flow_folded k JOIN flow_made m ON m.id = k.flow WHERE k.fired ORDER BY k.flow, k.generation, k.cut)
		SELECT format('%s, on_done %s times, on_success %s times, told %s', e, c.done, c.success, c.told) FROM ends e
		CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE m.kind = 'flow done') AS done, count(*) FILTER (WHERE m.kind = 'flow success') AS success, array_agg(m.about) AS told,
			bool_and((m.about ->> 'jobs')::bigint = e.jobs AND (m.about ->> 'completed')::bigint = e.completed AND (m.about ->> 'failed')::bigint = e.failed AND (m.about ->> 'cancelled')::bigint = e.cancelled
				AND (m.about -> 'counters') IS NOT DISTINCT FROM e.counters) AS is_right
			FROM flow_member m WHERE m.called = e.flow AND m.generation = e.generation) c
		WHERE c.done <> (NOT e.is_task)::integer OR c.success <> (NOT e.is_task AND e.failed = 0 AND e.cancelled = 0 AND NOT e.is_cancelled AND NOT e.is_abandoned)::integer OR NOT c.is_right`,
	"is a callback of nothing that has ended": `SELECT format('%s', m) FROM flow_member m WHERE m.called IS NOT NULL AND NOT EXISTS (SELECT FROM flow_folded k WHERE k.flow = m.called AND k.generation = m.generation AND k.fired)`,
	"has left out a generation":               `SELECT format('flow %s', k.flow) FROM flow_folded k WHERE k.fired GROUP BY k.flow HAVING count(DISTINCT k.generation) <> max(k.generation)`,
	"has ended, and does not add up":          `SELECT format('%s', k) FROM flow_folded k WHERE k.fired AND k.jobs <> k.completed + k.failed + k.cancelled`,
	"counts other than what became of its members": `
		WITH members AS (
			SELECT m.flow, (SELECT e.outcome::text FROM ended e WHERE e.id = m.id AND e.outcome IN ('completed', 'failed', 'cancelled') ORDER BY e.xid DESC LIMIT 1) AS outcome
			FROM flow_member m WHERE m.flow IS NOT NULL AND NOT EXISTS (SELECT FROM dropped d WHERE d.id = m.id)
			UNION ALL
			SELECT k.parent, CASE WHEN k.is_cancelled THEN 'cancelled' WHEN k.is_abandoned OR k.failed > 0 THEN 'failed' WHEN k.cancelled > 0 THEN 'cancelled' ELSE 'completed' END
			FROM flow_last k WHERE k.parent IS NOT NULL AND NOT (k.is_task AND k.jobs = 0)
			UNION ALL
			SELECT k.flow, 'cancelled' FROM flow_last k WHERE k.is_skipped)
		SELECT format('%s has %s members, %s completed, %s failed, %s cancelled', k, n.jobs, n.completed, n.failed, n.cancelled) FROM flow_last k JOIN weir.flow f ON f.id = k.flow
		LEFT JOIN (SELECT m.flow, count(*) AS jobs, count(*) FILTER (WHERE m.outcome = 'completed') AS completed, count(*) FILTER (WHERE m.outcome = 'failed') AS failed, count(*) FILTER (WHERE m.outcome = 'cancelled') AS cancelled
			FROM members m GROUP BY m.flow) n ON n.flow = k.flow
		WHERE (k.jobs, k.completed, k.failed, k.cancelled) <> (coalesce(n.jobs, 0), coalesce(n.completed, 0), coalesce(n.failed, 0), coalesce(n.cancelled, 0))`,
	"is a member, or a callback, that did not end":             `SELECT format('%s', m) FROM flow_member m WHERE NOT EXISTS (SELECT FROM ended e WHERE e.id = m.id AND e.outcome IN ('completed', 'failed', 'cancelled'))`,
	"is a callback of an outermost flow that did not complete": `SELECT format('%s', m) FROM flow_member m WHERE m.called IS NOT NULL AND m.flow IS NULL AND NOT EXISTS (SELECT FROM ended e WHERE e.id = m.id AND e.outcome = 'completed')`,
	"was to be done once, and two jobs have started":           `SELECT format('jobs %s of flow %s', array_agg(DISTINCT m.id), m.flow) FROM flow_member m JOIN claimed c ON c.id = m.id WHERE m.once IS NOT NULL GROUP BY m.flow, m.once HAVING count(DISTINCT m.id) > 1`,
	"is a task with several jobs":                              `SELECT format('%s of flow %s', f.name, f.parent) FROM flow_made f JOIN flow_member m ON m.flow = f.id AND m.is_task GROUP BY f.parent, f.name HAVING count(*) > 1`,
	"is a task that has started though those that it comes after had not ended as they should": `
		SELECT format('job %s of task %s of flow %s, after %s', j.id, s.name, s.parent, e.predecessor) FROM flow_edge e JOIN flow_made s ON s.id = e.successor JOIN flow_member j ON j.flow = s.id AND j.is_task
		JOIN flow_last p ON p.parent = e.parent AND p.name = e.predecessor AND p.is_task AND p.jobs > 0
		WHERE NOT e.is_lenient AND NOT EXISTS (SELECT FROM flow_member m WHERE m.flow = p.flow AND m.is_task)
		   OR EXISTS (SELECT FROM flow_member m WHERE m.flow = p.flow AND pg_visible_in_snapshot(m.xid, j.seen) AND NOT EXISTS (SELECT FROM dropped d WHERE d.id = m.id)
			AND NOT EXISTS (SELECT FROM ended d WHERE d.id = m.id AND d.outcome = ANY (CASE WHEN e.is_lenient THEN '{completed,failed,cancelled}' ELSE '{completed}' END::weir.outcome[]) AND pg_visible_in_snapshot(d.xid, j.seen)))`,
	"has a counter that is not the sum of its effects":         `SELECT format('%s has %s', k, n.n) FROM flow_last k CROSS JOIN LATERAL (SELECT count(*) AS n FROM flow_effect e WHERE e.flow = k.flow) n WHERE coalesce((k.counters ->> 'effects')::bigint, 0) <> n.n`,
	"is a task that has not found the output of one before it": `SELECT format('%s', r) FROM flow_read r WHERE r.n <> 1`,
	// A flow that ended longer ago than jobs are kept is forgotten, though its own row is dropped later than its outputs.
	"has completed, and its output is not kept as long as its flow": `
		SELECT format('%s: %s outputs', m, o.n) FROM flow_member m JOIN weir.flow f ON f.id = m.flow
		CROSS JOIN LATERAL (SELECT count(*) AS n FROM weir.output o WHERE o.job = m.id AND o.flow = CASE WHEN m.is_task THEN f.parent ELSE f.id END) o
		WHERE m.kind = 'member' AND EXISTS (SELECT FROM ended e WHERE e.id = m.id AND e.outcome = 'completed') AND o.n <> 1
		AND weir._is_kept(f.id, (SELECT max(s.value::interval) FROM weir.setting s WHERE s.name IN ('completed_retention', 'failed_retention')))`,
}

// judgeFlows compares what the notebook of flows says with what is promised. The jobs, and the flows, have ended.
func (w *torture) judgeFlows(conn *pgx.Conn) {
	w.findNone(conn, flowFaults)
	w.eventually("no cancellation is kept when all that it applies to has ended", func() (bool, string) {
		left := value[string](w.T, conn, `SELECT coalesce(string_agg(w::text, ', '), '') FROM weir.cancellation_where w`)
		return left == "", left
	})
	var flows, ends, callbacks, nested, tasks, abandoned, cancelled, again, dropped, skipped, effects, read, forgotten int
	if err := conn.QueryRow(w.ctx, `SELECT (SELECT count(*) FROM flow_made m WHERE NOT m.is_task), (SELECT count(*) FROM (SELECT DISTINCT k.flow, k.generation FROM flow_folded k JOIN flow_made m ON m.id = k.flow WHERE NOT m.is_task AND k.fired) k),
		(SELECT count(*) FROM flow_member m WHERE m.called IS NOT NULL), (SELECT count(*) FROM flow_made m WHERE m.parent IS NOT NULL AND NOT m.is_task), (SELECT count(*) FROM flow_made m WHERE m.is_task),
		(SELECT count(*) FROM flow_last k WHERE k.is_abandoned), (SELECT count(DISTINCT k.flow) FROM flow_folded k WHERE k.is_cancelled AND k.fired), (SELECT count(*) FROM flow_last k WHERE k.generation > 1),
		(SELECT count(*) FROM dropped d JOIN flow_member m ON m.id = d.id), (SELECT count(DISTINCT k.flow) FROM flow_folded k WHERE k.is_skipped), (SELECT count(*) FROM flow_effect), (SELECT count(*) FROM flow_read),
		(SELECT count(*) FROM flow_made m WHERE NOT EXISTS (SELECT FROM weir.flow f WHERE f.id = m.id))`).
		Scan(&flows, &ends, &callbacks, &nested, &tasks, &abandoned, &cancelled, &again, &dropped, &skipped, &effects, &read, &forgotten); err != nil {
		w.Fatal(err)
	}
	w.Logf("%d flows with %d ends and %d callbacks; %d of them within others, %d tasks, %d abandoned, %d cancelled by %d calls, %d with several generations, %d members retried; %d duplicates, %d tasks that did not start at first, %d effects counted, %d outputs read; forgotten: %v, %d",
		flows, ends, callbacks, nested, tasks, abandoned, cancelled, w.flowCancels.Load(), again, w.flowRetries.Load(), dropped, skipped, effects, read, w.forgets, forgotten)
	for what, n := range map[string]int{"flow was abandoned": abandoned, "flow was cancelled": cancelled, "flow has had several generations": again, "member was a duplicate": dropped, "task was skipped": skipped,
		"effect was counted": effects, "output was read": read} {
		if n == 0 && *longFlag >= time.Minute {
			w.Errorf("no %s", what)
		}
	}
	if w.forgets && forgotten == 0 && *longFlag >= time.Minute {
		w.Error("no flow was forgotten")
	}
}
