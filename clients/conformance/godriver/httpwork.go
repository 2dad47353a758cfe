package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir"
)

// remoteWorker is a worker over HTTP. One goroutine takes, another one records, and each attempt has one; mu guards what they share.
type remoteWorker struct {
	*driver
	name    string // from the hub's first answer
	queues  map[string]int
	kinds   []string
	timeout time.Duration
	grace   time.Duration

	mu    sync.Mutex
	held  map[string]*remoteJob // by token: not recorded yet
	ends  map[string]object     // by token: to be recorded
	lapse *time.Timer           // interrupts everything, unless the hub has answered meanwhile
	again context.CancelFunc    // ends the call of take that is under way
	news  chan struct{}         // signals that there are ends
}

// remoteJob is an attempt that a hub has given out.
type remoteJob struct {
	ID         int64           `json:"id"`
	Token      string          `json:"token"`
	Queue      string          `json:"queue"`
	Checkpoint json.RawMessage `json:"checkpoint"`

	worker *remoteWorker
	cancel context.CancelCauseFunc
}

func (r *remote) worker(d *driver, c command) *remoteWorker {
	return &remoteWorker{driver: d, queues: c.Queues, kinds: c.Kinds, timeout: seconds(c.Timeout), grace: seconds(c.StopTimeout),
		held: map[string]*remoteJob{}, ends: map[string]object{}, news: make(chan struct{}, 1)}
}

// run works until ctx ends, and then until nothing is left.
func (w *remoteWorker) run(ctx context.Context) error {
	lasting, over := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	loops.Go(func() { w.takes(ctx, lasting) })
	loops.Go(func() { w.records(lasting) })
	<-ctx.Done()
	limit := time.After(w.grace)
	for tick := time.NewTicker(10 * time.Millisecond); w.left() > 0; {
		select {
		case <-tick.C:
		case <-limit:
			w.interrupt(weir.ErrStopping)
		}
	}
	over()
	loops.Wait()
	if w.lapse != nil {
		w.lapse.Stop()
	}
	if w.name == "" {
		return nil
	}
	return w.remote.call(context.WithoutCancel(ctx), "DELETE", "/v1/work/"+w.name, nil, new(any))
}

func (w *remoteWorker) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held)
}

// interrupt interrupts everything that runs.
func (w *remoteWorker) interrupt(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.held {
		j.cancel(cause)
	}
}

// takes calls take, one call after the other: while the worker stops, to hold what runs.
func (w *remoteWorker) takes(ctx, lasting context.Context) {
	for number := 1; lasting.Err() == nil; number++ {
		call, cancel := context.WithCancel(lasting)
		free, held := map[string]int{}, []string{}
		stopping := ctx.Err() != nil
		w.mu.Lock()
		w.again = cancel
		for queue, n := range w.queues {
			if free[queue] = n; stopping {
				free[queue] = 0
			}
		}
		for token, j := range w.held {
			held = append(held, token)
			free[j.Queue] = max(0, free[j.Queue]-1)
		}
		w.mu.Unlock()
		unhook := func() bool { return false }
		if !stopping { // then a call holds what runs, and is not ended by that
			unhook = context.AfterFunc(ctx, cancel)
		}
		var answer struct {
			Worker string
			Lease  float64
			Waited float64
			Jobs   []json.RawMessage
			Cancel []struct{ Token, Reason string }
			Quiet  bool
		}
		sent := time.Now()
		err := w.remote.call(call, "POST", "/v1/work/take", object{"worker": w.name, "queues": free, "kinds": w.kinds, "held": held, "call": number, "wait": 20}, &answer)
		interrupted := call.Err() != nil
		unhook()
		cancel()
		if err != nil {
			if !interrupted {
				pause(lasting, 100*time.Millisecond)
			}
			continue
		}
		w.mu.Lock()
		w.name = answer.Worker
		switch { // what is held is leased from when the hub may have heard of it, what is new from when the call had waited for it
		case len(held) > 0:
		case len(answer.Jobs) > 0:
			sent = sent.Add(seconds(answer.Waited))
		default:
			sent = time.Now()
		}
		rest := time.Until(sent.Add(seconds(answer.Lease)))
		if w.lapse == nil {
			w.lapse = time.AfterFunc(rest, func() { w.interrupt(weir.ErrLapsed) })
		} else {
			w.lapse.Reset(rest)
		}
		for _, c := range answer.Cancel {
			if j := w.held[c.Token]; j != nil && c.Reason == "cancelled" {
				j.cancel(weir.ErrCancelled)
			} else if j != nil {
				j.cancel(weir.ErrFenced)
			}
		}
		w.mu.Unlock()
		if rest <= 0 {
			continue // the answer was late: what is still this worker's is in the next
		}
		for _, text := range answer.Jobs {
			w.take(lasting, text)
		}
		if answer.Quiet {
			pause(lasting, 100*time.Millisecond)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// take runs a job.
func (w *remoteWorker) take(ctx context.Context, text json.RawMessage) {
	j := &remoteJob{worker: w}
	var fields object
	if err := errors.Join(json.Unmarshal(text, j), json.Unmarshal(text, &fields)); err != nil {
		return // it will be given out again
	}
	ctx, j.cancel = context.WithCancelCause(ctx)
	unlimited := func() {}
	if w.timeout > 0 {
		ctx, unlimited = context.WithTimeout(ctx, w.timeout)
	}
	w.mu.Lock()
	_, known := w.held[j.Token]
	if !known {
		w.held[j.Token] = j
	}
	w.mu.Unlock()
	if known {
		unlimited()
		return
	}
	go func() { // ends with the handler
		defer unlimited()
		delete(fields, "token")
		delete(fields, "checkpoint")
		c, err := w.called(ctx, j, fields)
		end := object{"token": j.Token}
		switch {
		case err != nil:
			end["error"] = fmt.Sprint("interrupted: ", context.Cause(ctx))
			end["outcome"] = map[string]string{"cancelled": "cancelled", "stopping": "released", "lost": "released"}[reason(ctx)]
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				end["outcome"], end["error"] = "failed", fmt.Sprintf("the attempt has taken longer than its timeout of %s", w.timeout)
			}
		case c.How == "snooze":
			end["outcome"], end["delay"] = "snoozed", c.Delay
		case c.How == "return":
			if end["outcome"] = "completed"; c.Output != nil {
				end["output"] = c.Output
			}
		default:
			end["outcome"], end["error"], end["final"] = "failed", c.Error, c.How == "fail"
			if c.How == "retry_after" {
				end["delay"] = c.Delay
			}
		}
		w.mu.Lock()
		w.ends[j.Token] = end
		w.mu.Unlock()
		select {
		case w.news <- struct{}{}:
		default:
		}
	}()
}

// records records ends, as many together as a request takes.
func (w *remoteWorker) records(ctx context.Context) {
	for {
		select {
		case <-w.news:
		case <-ctx.Done():
			return
		}
		for {
			var some []object
			size := 0
			w.mu.Lock()
			for _, end := range w.ends {
				text, _ := json.Marshal(end)
				if size += len(text); len(some) > 0 && size > 4<<20 || len(some) == 1000 {
					break
				}
				some = append(some, end)
			}
			w.mu.Unlock()
			if len(some) == 0 {
				break
			}
			var answer struct {
				Results []struct {
					Token, Refusal, Detail string
					Recorded               bool
				}
			}
			if err := w.remote.call(ctx, "POST", "/v1/work/record", object{"ends": some}, &answer); err != nil {
				if ctx.Err() != nil {
					return
				}
				pause(ctx, 100*time.Millisecond)
				continue
			}
			w.mu.Lock()
			for _, r := range answer.Results {
				switch r.Refusal {
				case "invalid":
					w.ends[r.Token] = object{"token": r.Token, "outcome": "failed", "error": r.Detail}
				case "", "ended", "lost":
					delete(w.ends, r.Token)
					delete(w.held, r.Token)
				}
			}
			if w.again != nil {
				w.again() // take with what is free now
			}
			w.mu.Unlock()
		}
	}
}

func (j *remoteJob) report(entry object) error {
	entry["token"] = j.Token
	var answer struct {
		Results []struct {
			Recorded        bool
			Refusal, Detail string
		}
	}
	err := j.worker.remote.call(context.Background(), "POST", "/v1/work/progress", object{"entries": []object{entry}}, &answer)
	if err == nil && len(answer.Results) == 1 && !answer.Results[0].Recorded {
		err = &remoteError{Status: 400, Text: answer.Results[0].Refusal + ": " + answer.Results[0].Detail}
	}
	return err
}

func (j *remoteJob) progress(percent float64, message string) error {
	return j.report(object{"percent": percent, "message": message})
}

func (j *remoteJob) log(text string) error { return j.report(object{"log": []object{{"text": text}}}) }

func (j *remoteJob) setCheckpoint(data json.RawMessage) error {
	err := j.report(object{"checkpoint": data})
	if err == nil {
		j.Checkpoint = data
	}
	return err
}

func (j *remoteJob) checkpoint(context.Context) (json.RawMessage, error) { return j.Checkpoint, nil }
