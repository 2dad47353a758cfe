package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Job is one job to enqueue. Zero fields mean the defaults of weir.enqueue.
type Job struct {
	Queue       string
	Kind        string
	Args        json.RawMessage
	Priority    int
	RunAt       time.Time
	MaxAttempts int
	Meta        json.RawMessage
	Key         string
	Flow        int64  // 0: none
	Once        string // "": each time
	Unique      *Unique
}

// Unique says which jobs a job is a duplicate of, as in weir.enqueue_unique. Zero fields mean its defaults; Fields may be empty.
type Unique struct {
	Key     string
	Fields  []string
	Until   string
	Within  time.Duration
	Replace bool
	Wait    bool
}

// Answer is what a job that may be there already got.
type Answer struct {
	ID        int64 `json:"id"`
	Duplicate bool  `json:"duplicate"` // it is there already, under this id
}

// Defaults of weir.enqueue.
const (
	DefaultQueue       = "default"
	DefaultMaxAttempts = 25
)

const (
	sqlEnqueue     = `SELECT weir.enqueue($1, $2, $3::jsonb, $4, $5, $6, $7::jsonb, nullif($8, ''), nullif($9::bigint, 0))`
	sqlEnqueueMany = `SELECT weir.enqueue_many($1::text[], $2::text[], $3::text[]::jsonb[], $4::int[], $5::timestamptz[], $6::int[], $7::text[]::jsonb[], $8::text[], $9::bigint[])`
	sqlEnqueueOnce = `SELECT e.ids, e.duplicates FROM weir._enqueue_many($1::text[], $2::text[], $3::text[]::jsonb[], $4::int[], $5::timestamptz[], $6::int[], $7::text[]::jsonb[], $8::text[], $9::bigint[], $10::text[]) e`
	// Of one job, without arrays.
	sqlEnqueueOneOnce = `SELECT e.ids[1], e.duplicates[1] FROM weir._enqueue_many(ARRAY[$1], ARRAY[$2], ARRAY[$3::jsonb], ARRAY[$4::int], ARRAY[$5::timestamptz], ARRAY[$6::int], ARRAY[$7::jsonb], ARRAY[nullif($8, '')],
		ARRAY[nullif($9::bigint, 0)], ARRAY[$10]) e`
	// From JSON, and as JSON, because not every driver behind a Querier has arrays.
	sqlEnqueueUnique = `SELECT coalesce(json_agg(json_build_object('id', e.id, 'duplicate', e.duplicate) ORDER BY e.ord), '[]')::text
		FROM weir._enqueue_unique_many($1::jsonb) WITH ORDINALITY e(id, duplicate, ord)`
	sqlEnqueueJSON = `SELECT array_to_json(weir.enqueue_many($1::jsonb))::text`

	sqlEnqueueAnswers = `SELECT e.ids, e.duplicates, false FROM weir._enqueue_json($1::jsonb) e`
	sqlEnqueueEach    = `SELECT array_agg(weir.enqueue(x.queue, x.kind, x.args, x.priority, x.run_at, x.max_attempts, x.meta, x.key, x.flow) ORDER BY e.ord)
		FROM unnest($1::text[]) WITH ORDINALITY e(job, ord) CROSS JOIN LATERAL jsonb_to_record(e.job::jsonb) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint)`
	sqlEnqueueOne = `SELECT weir.enqueue(x.queue, x.kind, x.args, x.priority, x.run_at, x.max_attempts, x.meta, x.key, x.flow)
		FROM jsonb_to_record($1::jsonb) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint)`
	sqlEnqueueRequests = `SELECT weir._enqueue_requests($1::text[]::uuid[], $2::text[])`
	sqlEnqueueRequest  = `SELECT e.ids, e.duplicates, e.repeated FROM weir._enqueue_request($2::uuid, $1::jsonb) e`
)

// Enqueue calls weir.enqueue in q's transaction, or in one of its own if q is a pool. It passes only plain scalars, so that it works with
// any driver behind q.
func Enqueue(ctx context.Context, q Querier, j Job) (id int64, err error) {
	err = q.QueryRow(ctx, sqlEnqueue, j.scalars()...).Scan(&id)
	return id, err
}

// EnqueueOnce is Enqueue for a job with Once.
func EnqueueOnce(ctx context.Context, q Querier, j Job) (answer Answer, err error) {
	err = q.QueryRow(ctx, sqlEnqueueOneOnce, append(j.scalars(), j.Once)...).Scan(&answer.ID, &answer.Duplicate)
	return answer, err
}

// scalars returns the arguments of weir.enqueue.
func (j Job) scalars() []any {
	j = j.withDefaults()
	var runAt, meta any
	if !j.RunAt.IsZero() {
		runAt = j.RunAt
	}
	if j.Meta != nil {
		meta = string(j.Meta)
	}
	return []any{j.Queue, j.Kind, string(j.Args), j.Priority, runAt, j.MaxAttempts, meta, j.Key, j.Flow}
}

// EnqueueMany calls weir.enqueue_many with arrays, which require pgx behind q. It returns which jobs are there already; nil: none of them has Once.
func EnqueueMany(ctx context.Context, q Querier, jobs []Job) (ids []int64, duplicates []bool, err error) {
	n := len(jobs)
	queues, kinds, args := make([]string, n), make([]string, n), make([]string, n)
	priorities, attempts := make([]int32, n), make([]int32, n)
	runAts, metas := make([]*time.Time, n), make([]*string, n)
	var keys []*string  // nil, if no job has one
	var flows []*int64  // the same
	var onces []*string // the same
	for i, j := range jobs {
		j = j.withDefaults()
		queues[i], kinds[i], args[i] = j.Queue, j.Kind, string(j.Args)
		priorities[i], attempts[i] = int32(j.Priority), int32(j.MaxAttempts)
		if !j.RunAt.IsZero() {
			runAts[i] = new(j.RunAt)
		}
		if j.Meta != nil {
			metas[i] = new(string(j.Meta))
		}
		if j.Key != "" {
			if keys == nil {
				keys = make([]*string, n)
			}
			keys[i] = new(j.Key) // a pointer to the field would move each job to the heap
		}
		if j.Flow != 0 {
			if flows == nil {
				flows = make([]*int64, n)
			}
			flows[i] = new(j.Flow)
		}
		if j.Once != "" {
			if onces == nil {
				onces = make([]*string, n)
			}
			onces[i] = new(j.Once)
		}
	}
	if onces != nil {
		err = q.QueryRow(ctx, sqlEnqueueOnce, queues, kinds, args, priorities, runAts, attempts, metas, keys, flows, onces).Scan(&ids, &duplicates)
		return ids, duplicates, err
	}
	err = q.QueryRow(ctx, sqlEnqueueMany, queues, kinds, args, priorities, runAts, attempts, metas, keys, flows).Scan(&ids)
	return ids, nil, err
}

// EnqueueManyJSON is EnqueueMany for drivers without arrays.
func EnqueueManyJSON(ctx context.Context, q Querier, jobs []Job) (ids []int64, err error) {
	entries := make([]jobJSON, len(jobs))
	for i, j := range jobs {
		entries[i] = j.json()
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("encode jobs: %w", err)
	}
	var answer string
	if err := q.QueryRow(ctx, sqlEnqueueJSON, string(text)).Scan(&answer); err != nil {
		return nil, err
	}
	return ids, json.Unmarshal([]byte(answer), &ids)
}

// EnqueueUnique enqueues each job as weir.enqueue_unique does.
func EnqueueUnique(ctx context.Context, q Querier, jobs []Job) (answers []Answer, err error) {
	type entry struct {
		jobJSON
		UniqueKey string   `json:"unique_key,omitempty"`
		Fields    []string `json:"fields"` // null, or possibly empty
		Until     string   `json:"until,omitempty"`
		Within    string   `json:"within,omitempty"`
		Replace   bool     `json:"replace"`
		Wait      bool     `json:"wait"`
	}
	entries := make([]entry, len(jobs))
	for i, j := range jobs {
		u := j.Unique
		entries[i] = entry{jobJSON: j.json(), UniqueKey: u.Key, Fields: u.Fields, Until: u.Until, Replace: u.Replace, Wait: u.Wait}
		if u.Within != 0 {
			entries[i].Within = fmt.Sprintf("%d microseconds", max(u.Within.Microseconds(), 1))
		}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("encode jobs: %w", err)
	}
	var answer string
	if err := q.QueryRow(ctx, sqlEnqueueUnique, string(text)).Scan(&answer); err != nil {
		return nil, err
	}
	return answers, json.Unmarshal([]byte(answer), &answers)
}

// EnqueueOne enqueues a job with some of the fields queue, kind, args, priority, run_at, max_attempts, meta, key and flow, as a JSON object, in a transaction of its own. It costs the server
// a small part of what EnqueueRequest does. What is wrong with a job, that one says better.
func (s *Store) EnqueueOne(ctx context.Context, job string) (a Answer, err error) {
	err = s.row(ctx, sqlEnqueueOne, []any{job}, &a.ID)
	return a, err
}

// EnqueueEach enqueues jobs as EnqueueOne does, in one transaction, and returns their ids, in their order.
func (s *Store) EnqueueEach(ctx context.Context, jobs []string) (ids []int64, err error) {
	err = s.row(ctx, sqlEnqueueEach, []any{jobs}, &ids)
	return ids, err
}

// EnqueueRequests does what EnqueueRequest does with some jobs that EnqueueOne takes, and their keys, in one transaction. The id of a job is 0 if nothing was done with it, because its
// key is, or was, used: then call EnqueueRequest.
func (s *Store) EnqueueRequests(ctx context.Context, keys, jobs []string) (ids []int64, err error) {
	var found []*int64
	err = s.row(ctx, sqlEnqueueRequests, []any{keys, jobs}, &found)
	ids = make([]int64, len(found))
	for i, id := range found {
		if id != nil {
			ids[i] = *id
		}
	}
	return ids, err
}

// EnqueueRequest enqueues a JSON array of jobs, as weir.enqueue_many(jsonb) takes them, in a transaction of its own. If key is not "", it is a uuid: a
// request with a key that was committed less than a day ago enqueues nothing, and is answered as it was then.
func (s *Store) EnqueueRequest(ctx context.Context, key, jobs string) (answers []Answer, repeated bool, err error) {
	var ids []int64
	var duplicates []bool
	if key == "" {
		err = s.row(ctx, sqlEnqueueAnswers, []any{jobs}, &ids, &duplicates, &repeated)
	} else {
		err = s.row(ctx, sqlEnqueueRequest, []any{jobs, key}, &ids, &duplicates, &repeated)
	}
	answers = make([]Answer, len(ids))
	for i, id := range ids {
		answers[i] = Answer{ID: id, Duplicate: i < len(duplicates) && duplicates[i]}
	}
	return answers, repeated, err
}

// jobJSON is a job as weir.enqueue_many(jsonb) takes it.
type jobJSON struct {
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Priority    int             `json:"priority"`
	RunAt       *time.Time      `json:"run_at,omitempty"`
	MaxAttempts int             `json:"max_attempts"`
	Meta        json.RawMessage `json:"meta,omitempty"`
	Key         string          `json:"key,omitempty"`
	Flow        int64           `json:"flow,omitempty"`
}

func (j Job) json() jobJSON {
	j = j.withDefaults()
	text := jobJSON{Queue: j.Queue, Kind: j.Kind, Args: j.Args, Priority: j.Priority, MaxAttempts: j.MaxAttempts, Meta: j.Meta, Key: j.Key, Flow: j.Flow}
	if !j.RunAt.IsZero() {
		text.RunAt = &j.RunAt
	}
	return text
}

func (j Job) withDefaults() Job {
	if j.Queue == "" {
		j.Queue = DefaultQueue
	}
	if j.Priority == 0 {
		j.Priority = 2
	}
	if j.MaxAttempts == 0 {
		j.MaxAttempts = DefaultMaxAttempts
	}
	if len(j.Args) == 0 {
		j.Args = json.RawMessage("{}")
	}
	return j
}
