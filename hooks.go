package weir

import (
	"context"
	"time"
)

// joined combines several hooks into one. A hook that none of them has stays nil and costs nothing.
func joined(all []Hooks) Hooks {
	var one Hooks
	for _, h := range all {
		one = one.then(h)
	}
	return one
}

// then combines o with h, which is nested inside it.
func (o Hooks) then(h Hooks) Hooks {
	if first, second := o.Start, h.Start; first == nil {
		o.Start = second
	} else if second != nil {
		o.Start = func(ctx context.Context, job JobMeta) context.Context { return second(first(ctx, job), job) }
	}
	if first, second := o.End, h.End; first == nil {
		o.End = second
	} else if second != nil {
		o.End = func(ctx context.Context, job JobMeta, outcome Outcome, took time.Duration, err error) {
			defer first(ctx, job, outcome, took, err) // even if second panics
			second(ctx, job, outcome, took, err)
		}
	}
	o.Claimed = both(o.Claimed, h.Claimed)
	o.Recorded = both(o.Recorded, h.Recorded)
	if first, second := o.Rescued, h.Rescued; first == nil {
		o.Rescued = second
	} else if second != nil {
		o.Rescued = func(r Rescue) {
			first(r)
			second(r)
		}
	}
	return o
}

func both(first, second func(int, time.Duration)) func(int, time.Duration) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(jobs int, took time.Duration) {
		first(jobs, took)
		second(jobs, took)
	}
}
