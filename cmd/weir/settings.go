package main

import (
	"context"
	"fmt"
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

type settingsListCmd struct{ jsonFlag }

func (settingsListCmd) Help() string {
	return `Example:

    weir settings list --json`
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
	if c.JSON {
		return printJSON(s.out, orEmpty(settings))
	}
	rows := make([][]string, len(settings))
	for i, setting := range settings {
		rows[i] = []string{setting.Queue, setting.Name, setting.Value}
	}
	return table(s.out, []string{"QUEUE", "SETTING", "VALUE"}, rows)
}

type settingsSetCmd struct {
	Name  string `arg:"" help:"completed_retention, failed_retention, retention_bytes, message_retention, message_retention_bytes or message_bytes; for a queue, backoff, backoff_limit, backoff_form (exponential, linear or fixed) or ageing (how long a job waits before it may start ahead of the next higher priority; 0: off)."`
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
