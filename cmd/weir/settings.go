package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-pg/weir"
)

type settingsCmd struct {
	List settingsListCmd `cmd:"" default:"withargs" help:"List the settings of the database and of each queue."`
	Set  settingsSetCmd  `cmd:"" help:"Change a setting, with immediate effect."`

	Rules    rulesListCmd `cmd:"" help:"List retry rules, which say what follows an error."`
	SetRule  rulesSetCmd  `cmd:"" help:"Create or replace a retry rule."`
	DropRule rulesDropCmd `cmd:"" help:"Drop retry rules."`
}

func (settingsCmd) Help() string {
	return `Example:

    weir settings list`
}

type settingsListCmd struct {
	Queue string `short:"q" help:"Only the settings of this queue."`
	All   bool   `help:"Of queues, also settings that have their defaults."`
	jsonFlag
}

// defaults are the settings of a queue for which none was set.
var defaults = map[string]string{"backoff": "00:00:01", "backoff_limit": "01:00:00", "backoff_form": "exponential", "ageing": "00:00:00"}

func (settingsListCmd) Help() string {
	return `Of queues, it lists what differs from the defaults: a backoff of 1 second, up to 1 hour, exponential, and no ageing. --json lists everything.

Examples:

    weir settings list --json

    weir settings list --queue mail`
}

func (c *settingsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	settings, err := client.Settings(ctx)
	if err != nil {
		return err
	}
	if c.Queue != "" {
		if settings = slices.DeleteFunc(settings, func(k weir.Setting) bool { return k.Queue != c.Queue }); len(settings) == 0 {
			return noQueue(c.Queue)
		}
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(settings))
	}
	var rows [][]string
	for _, k := range settings {
		if k.Queue == "" || c.All || c.Queue != "" || k.Value != defaults[k.Name] {
			rows = append(rows, []string{k.Queue, k.Name, k.Value})
		}
	}
	return table(s.out, []string{"QUEUE", "SETTING", "VALUE"}, rows)
}

type settingsSetCmd struct {
	Name  string `arg:"" help:"completed_retention, failed_retention, retention_bytes, message_retention, relay_retention, message_retention_bytes or message_bytes; for a queue, backoff, backoff_limit, backoff_form (exponential, linear or fixed) or ageing (how long a job waits before it may start ahead of the next higher priority; 0: off)."`
	Value string `arg:"" help:"Value: an interval such as '3 days', a size such as '4 GB', or a form."`
	Queue string `short:"q" help:"Queue whose setting to change."`
}

func (settingsSetCmd) Help() string {
	return `Examples:

    weir settings set failed_retention '14 days'
    weir settings set retention_bytes 16GB
    weir settings set --queue mail backoff '10 seconds'`
}

func (c *settingsSetCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	isNew := unknownQueue(ctx, client, c.Queue) != nil
	if c.Queue == "" {
		err = client.Set(ctx, c.Name, c.Value)
	} else {
		err = client.SetQueue(ctx, c.Queue, c.Name, c.Value)
	}
	if err != nil {
		return err
	}
	of := ""
	if c.Queue != "" {
		of = " of queue " + printable(c.Queue)
	}
	fmt.Fprintf(s.out, "set %s%s to %s\n", c.Name, of, printable(c.Value))
	if isNew {
		tellOfNew(s, c.Queue)
	}
	return nil
}
