package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir"
)

type rulesListCmd struct{ jsonFlag }

func (rulesListCmd) Help() string {
	return `The first rule that matches a failed attempt applies.

Example:

    weir settings rules --json`
}

func (c *rulesListCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	rules, err := client.RetryRules(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(rules))
	}
	if len(rules) == 0 {
		fmt.Fprintln(s.err, "weir: no retry rules: each queue's backoff decides")
		return nil
	}
	orAny := func(text string) string { return cell(cmp.Or(text, "any")) }
	orQueue := func(d *time.Duration) string {
		if d == nil {
			return "-"
		}
		return durationText(*d)
	}
	rows := make([][]string, len(rules))
	for i, r := range rules {
		rows[i] = []string{cell(r.Name), string(r.Action), orAny(r.Queue), orAny(r.Kind), orAny(r.Error), orQueue(r.Backoff), orQueue(r.BackoffLimit), cmp.Or(string(r.BackoffForm), "-")}
	}
	return table(s.out, []string{"RULE", "ACTION", "QUEUE", "KIND", "ERROR", "BACKOFF", "LIMIT", "FORM"}, rows)
}

type rulesSetCmd struct {
	Name         string         `arg:"" help:"Name of the rule."`
	Action       string         `default:"retry" placeholder:"ACTION" help:"retry, fail, cancel, or snooze, which uses up no attempt (${default})."`
	Queue        string         `short:"q" help:"Only attempts of this queue."`
	Kind         string         `short:"k" help:"Only attempts of this kind."`
	Error        string         `placeholder:"REGEX" help:"Only attempts whose error this regular expression matches."`
	Backoff      *time.Duration `placeholder:"DURATION" help:"Delay after the first failure; by default the queue's."`
	BackoffLimit *time.Duration `placeholder:"DURATION" help:"Longest delay; by default the queue's."`
	BackoffForm  string         `placeholder:"FORM" help:"How the delay grows: exponential, linear or fixed; by default as the queue says."`
}

func (rulesSetCmd) Help() string {
	return `Examples:

    weir settings set-rule declined --action fail --kind charge --error 'card (was )?declined'

    weir settings set-rule busy --action snooze --error 'HTTP 429' --backoff 5m`
}

func (c *rulesSetCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	err = client.SetRetryRule(ctx, weir.RetryRule{
		Name: c.Name, Action: weir.RetryAction(c.Action), Queue: c.Queue, Kind: c.Kind, Error: c.Error,
		Backoff: c.Backoff, BackoffLimit: c.BackoffLimit, BackoffForm: weir.BackoffForm(c.BackoffForm),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "set rule %s\n", printable(c.Name))
	return nil
}

type rulesDropCmd struct {
	Name []string `arg:"" help:"Names of rules."`
}

func (rulesDropCmd) Help() string {
	return `Example:

    weir settings drop-rule busy`
}

func (c *rulesDropCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	for _, name := range c.Name {
		err := client.DropRetryRule(ctx, name)
		if errors.Is(err, weir.ErrNotFound) {
			return notFoundf("retry rule %q does not exist: see weir settings rules", name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "dropped rule %s\n", printable(name))
	}
	return nil
}
