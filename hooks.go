package weir

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// hooks calls the hooks of a worker. A hook that panics is logged, and affects nothing else: not the job, the other hooks, or the worker.
type hooks struct {
	all []Hooks
	log *slog.Logger
}

// start calls every Start before an attempt, and counts the hooks that it has reached: each of them is due an End. It writes to its
// arguments as it proceeds, because a hook may end the goroutine (runtime.Goexit).
func (h *hooks) start(ctx *context.Context, reached *int, job JobMeta) {
	for _, hook := range h.all {
		*reached++
		if hook.Start == nil {
			continue
		}
		h.guard("Start", &job, func() {
			if next := hook.Start(*ctx, job); next != nil {
				*ctx = next
			}
		})
	}
}

// end calls the End of the first hooks, in reverse order.
func (h *hooks) end(reached int, ctx context.Context, job JobMeta, recorded Outcome, took time.Duration, err error) {
	if reached == 0 {
		return
	}
	hook := h.all[reached-1]
	defer h.end(reached-1, ctx, job, recorded, took, err) // even if this hook ends the goroutine
	if hook.End != nil {
		h.guard("End", &job, func() { hook.End(ctx, job, recorded, took, err) })
	}
}

// ends reports whether any hook has an End.
func (h *hooks) ends() bool {
	return slices.ContainsFunc(h.all, func(hook Hooks) bool { return hook.End != nil })
}

// claimed returns the function to call after a claim; nil if no hook wants it.
func (h *hooks) claimed() func(int, time.Duration) {
	return h.counted("Claimed", func(hook Hooks) func(int, time.Duration) { return hook.Claimed })
}

// recorded returns the function to call after results were recorded; nil if no hook wants it.
func (h *hooks) recorded() func(int, time.Duration) {
	return h.counted("Recorded", func(hook Hooks) func(int, time.Duration) { return hook.Recorded })
}

func (h *hooks) counted(name string, of func(Hooks) func(int, time.Duration)) func(int, time.Duration) {
	var calls []func(int, time.Duration)
	for _, hook := range h.all {
		if call := of(hook); call != nil {
			calls = append(calls, call)
		}
	}
	if calls == nil {
		return nil
	}
	return func(jobs int, took time.Duration) {
		for _, call := range calls {
			h.apart(name, func() { call(jobs, took) })
		}
	}
}

// rescued returns the function to call when attempts were taken from a lost worker; nil if no hook wants it.
func (h *hooks) rescued() func(store.Rescued) {
	if !slices.ContainsFunc(h.all, func(hook Hooks) bool { return hook.Rescued != nil }) {
		return nil
	}
	return func(some store.Rescued) {
		for _, hook := range h.all {
			if hook.Rescued != nil {
				h.apart("Rescued", func() { hook.Rescued(Rescue{Worker: some.Worker, Reason: some.Reason, Jobs: slices.Clone(some.Jobs)}) })
			}
		}
	}
}

// guard calls a hook, and logs its panic. job is nil if the call is not about one.
func (h *hooks) guard(name string, job *JobMeta, call func()) {
	defer func() {
		if v := recover(); v != nil {
			about := []any{"panic", v, "stack", string(debug.Stack())}
			if job != nil {
				about = append(attrs(*job), shownPanic(*job, v, debug.Stack())...)
			}
			h.log.Error("weir: Hooks."+name+" panicked", about...)
		}
	}()
	call()
}

// apart is guard in another goroutine, and waits for it: if the hook ends that goroutine, the worker's own continues.
func (h *hooks) apart(name string, call func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.guard(name, nil, call)
	}()
	<-done
}
