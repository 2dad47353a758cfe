package weir

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// RetryAction is what a retry rule does with a job whose attempt has failed.
type RetryAction string

const (
	RetryActionRetry  RetryAction = "retry"  // tries again after a backoff, as long as attempts are left
	RetryActionFail   RetryAction = "fail"   // fails the job, without a further attempt
	RetryActionSnooze RetryAction = "snooze" // tries again after the backoff, without using up the attempt
	RetryActionCancel RetryAction = "cancel" // cancels the job
)

// BackoffForm is how a backoff grows with the number of failures.
type BackoffForm string

const (
	BackoffExponential BackoffForm = "exponential" // it doubles each time
	BackoffLinear      BackoffForm = "linear"      // once more each time
	BackoffFixed       BackoffForm = "fixed"       // the same each time
)

// RetryRule says what follows an attempt that failed in a queue, of a kind, with an error: whichever worker ran it, in any language. It does not
// apply if the handler or [WorkerConfig].Retry has decided: with [Fail], [Cancel], [Snooze], [RetryAfter], or a delay. Of the rules that match, one
// with an Error precedes one without, then one with a Kind, then one with a Queue, then the first by name.
type RetryRule struct {
	Name   string      `json:"name"`
	Action RetryAction `json:"action"`          // "": RetryActionRetry
	Queue  string      `json:"queue,omitempty"` // "": any
	Kind   string      `json:"kind,omitempty"`  // "": any
	// Error is a regular expression of PostgreSQL's, to be found in the text of the error; "": any error. Back references and lookaround are not
	// allowed, and of a long text only the first and the last 2,000 characters count.
	Error string `json:"error,omitempty"`
	// Backoff is the delay after the first failure, and BackoffLimit the longest delay; nil: those of the queue. They vary by up to a quarter.
	Backoff      *time.Duration `json:"backoff,omitempty"`
	BackoffLimit *time.Duration `json:"backoff_limit,omitempty"`
	BackoffForm  BackoffForm    `json:"backoff_form,omitempty"` // "": that of the queue; of RetryActionSnooze, BackoffFixed
}

// SetRetryRule creates the rule of that name, or replaces it. It applies to attempts that end from then on. There may be 100 rules.
func (c *Client) SetRetryRule(ctx context.Context, r RetryRule) error {
	return wrap("set retry rule "+r.Name, c.store.SetRetryRule(ctx, r.Name, string(r.Action), r.Queue, r.Kind, r.Error, r.Backoff, r.BackoffLimit, string(r.BackoffForm)), "weir_operate")
}

// DropRetryRule drops a rule. It returns ErrNotFound if there is none of that name.
func (c *Client) DropRetryRule(ctx context.Context, name string) error {
	found, err := c.store.DropRetryRule(ctx, name)
	return wrap("drop retry rule", orNotFound(found, err, "retry rule", name), "weir_operate")
}

// RetryRules lists the rules, in the order in which they are tried: the first that matches applies.
func (c *Client) RetryRules(ctx context.Context) ([]RetryRule, error) {
	rules, err := store.RetryRules[RetryRule](ctx, c.store)
	return rules, wrap("list retry rules", err, "weir_operate")
}
