package main

import (
	"context"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/connstring"
)

// worker returns what works a client's database, or, without a client, the databases of the list, until its context ends; and the health of that.
func (c *workCmd) worker(client *weir.Client, config weir.WorkerConfig) (run func(context.Context) error, health func() error, err error) {
	if client != nil {
		w, err := client.NewWorker(config)
		if err != nil {
			return nil, nil, err
		}
		return w.Run, w.Health, nil
	}
	many, err := weir.NewMultiWorker(weir.MultiWorkerConfig{WorkerConfig: config, Databases: func(context.Context) ([]string, error) { return readList(nil, c.List) }})
	if err != nil {
		return nil, nil, err
	}
	return many.Run, func() error { return nil }, nil // one that can't be reached is no reason to restart the process, which works the others
}

// checkList refuses what is about one database, and a list that can't be read now.
func (c *workCmd) checkList() error {
	switch {
	case c.List == "-":
		return usagef("--list - can be read only once, and the list is read again and again: write it to a file")
	case c.ExitWhenIdle:
		return usagef("--exit-when-idle is about the queues of one database: leave it out, or work each database of --list by a command of its own")
	}
	_, err := readList(nil, c.List)
	return err
}

// nameOfClient names a client's database, with its place.
func nameOfClient(client *weir.Client) string {
	names, err := connstring.Named(client.Pool().Config().ConnString())
	if err != nil {
		return "" // it has been connected to
	}
	return names.Full
}
