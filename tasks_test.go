package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weircrypt"
)

// TestOutputsOfAFlowAreReadByThoseThatComeAfter: by name, and all of them page by page; also of attempts that complete in a transaction, and encrypted ones; those of
// attempts that do not complete are none.
func TestOutputsOfAFlowAreReadByThoseThatComeAfter(t *testing.T) {
	t.Parallel()
	const members = 250
	keys, err := weircrypt.New(weircrypt.Key{ID: "1", Secret: []byte("0123456789abcdef0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	for _, encrypted := range []bool{false, true} {
		r := newRig(t)
		if encrypted {
			r.client = r.client.WithCodec(keys)
		}
		type found struct {
			Sum, Outputs int
			Task         string
		}
		ended := make(chan found, 1)
		r.work(func(ctx context.Context, job *weir.Job[number]) error {
			if task := job.Task(); task != nil && task.Name == "last" {
				one, err := weir.TaskOutput[number](ctx, r.client, task.Flow, "first")
				if err != nil {
					return err
				}
				f := found{Task: fmt.Sprint(one.N)}
				for o, err := range r.client.FlowOutputs(ctx, task.Flow) {
					if err != nil {
						return err
					}
					var n number
					if err := o.Decode(&n); err != nil {
						return err
					}
					f.Sum, f.Outputs = f.Sum+n.N, f.Outputs+1
				}
				ended <- f
				return nil
			}
			job.SetOutput(fmt.Sprintf(`{"n": %d}`, job.Args.N))
			switch {
			case job.Attempt == 1 && job.Args.N%10 == 0:
				return errors.New("once more")
			case job.Args.N%2 == 0:
				return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
			default:
				return nil
			}
		}, nil)
		jobs := make([]weir.NewJob, members)
		sum := members
		for i := range jobs {
			jobs[i] = weir.NewJob{Args: number{i}}
			sum += i
		}
		flow, err := r.client.Flow(t.Context(), weir.Flow{Name: "f", Open: true}, jobs...)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			info, err := r.client.FlowInfo(t.Context(), flow)
			if err == nil && info.Completed < members {
				err = fmt.Errorf("%d members have completed", info.Completed)
			}
			return err
		})
		if _, err := r.client.AddTasks(t.Context(), flow, weir.Task{Name: "last", After: []string{"first"}, Job: weir.NewJob{Args: number{-1}}}, weir.Task{Name: "first", Job: weir.NewJob{Args: number{members}}}); err != nil {
			t.Fatal(err)
		}
		want := found{Sum: sum, Outputs: members + 1, Task: fmt.Sprint(members)}
		if got := receive(t, ended, "the last task"); got != want {
			t.Errorf("the last task has found %+v, want %+v (encrypted: %v)", got, want, encrypted)
		}
		var stored int
		if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.output WHERE output LIKE '%"n"%'`).Scan(&stored); err != nil || (stored > 0) == encrypted {
			t.Errorf("%d outputs are readable in the table (encrypted: %v; %v)", stored, encrypted, err)
		}
		if _, err := weir.TaskOutput[string](t.Context(), r.client, flow, "nobody"); !errors.Is(err, weir.ErrNotFound) {
			t.Errorf("the output of an unknown task: %v", err)
		}
		for what, job := range map[string]weir.NewJob{"unique": {Args: number{1}, Options: &weir.Options{Unique: &weir.Unique{}}}, "without args": {}} {
			if _, err := r.client.AddTasks(t.Context(), flow, weir.Task{Name: "x", Job: job}); err == nil {
				t.Errorf("a task with a job that is %s was added", what)
			}
		}
	}
}

// TestATaskIsAFlowThatCanBeLookedUp: FlowInfo takes the id of a task, as it takes that of a flow. A task has no deadline.
func TestATaskIsAFlowThatCanBeLookedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flow, err := r.client.Flow(t.Context(), weir.Flow{Name: "f", Open: true})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := r.client.AddTasks(t.Context(), flow, weir.Task{Name: "first", Job: weir.NewJob{Args: number{1}}})
	if err != nil {
		t.Fatal(err)
	}
	task, err := r.client.FlowInfo(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	if task.ID != ids[0] || !task.IsTask || task.Parent != flow || task.Deadline != nil {
		t.Errorf("the task is %+v", task)
	}
	if info, err := r.client.FlowInfo(t.Context(), flow); err != nil || info.Deadline == nil || !info.Deadline.After(info.CreatedAt) {
		t.Errorf("the flow is %+v, %v", info, err)
	}
}

// TestTheJobOfATaskHasOnlyWhatItMayHave: and the error says all that it may not have, whichever it is.
func TestTheJobOfATaskHasOnlyWhatItMayHave(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flow, err := r.client.Flow(t.Context(), weir.Flow{Name: "f", Open: true})
	if err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]weir.Options{"Unique": {Unique: &weir.Unique{}}, "Flow": {Flow: flow}, "Once": {Once: "x"}, "Once and Flow": {Once: "x", Flow: flow}, "RunAt": {RunAt: time.Now().Add(time.Hour)}} {
		_, err := r.client.AddTasks(t.Context(), flow, weir.Task{Name: "x", Job: weir.NewJob{Args: number{1}, Options: &o}})
		if err == nil || !strings.Contains(err.Error(), `task "x": it can't have Unique, Flow, Once or RunAt`) || strings.Contains(err.Error(), "see Unique") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Once is too long, and the hint is about that.
	_, err = r.client.Enqueue(t.Context(), number{1}, &weir.Options{Flow: flow, Once: strings.Repeat("x", 1001)})
	if err == nil || !strings.Contains(err.Error(), "once must have 1 to 1000 characters, got 1001") || !strings.Contains(err.Error(), "or a hash of it") || strings.Contains(err.Error(), "pass the id of the flow") {
		t.Errorf("a Once of 1001 characters: %v", err)
	}
}
