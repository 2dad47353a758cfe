package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

type limitsCmd struct {
	List   limitsListCmd   `cmd:"" default:"withargs" help:"List the limits of queues, and what they count."`
	Set    limitsSetCmd    `cmd:"" help:"Set the limits of a queue, or of its keys, for the whole fleet."`
	Clear  limitsClearCmd  `cmd:"" help:"Remove the limits of queues, or of their keys."`
	Weight limitsWeightCmd `cmd:"" help:"Set how many turns a key gets in relation to others, or list weights."`
}

func (limitsCmd) Help() string {
	return `A limit says how many attempts of a queue, or of each of its keys, run at a time, or how many start in a time, in the whole fleet.

Example:

    weir limits list`
}

type limitsListCmd struct{ jsonFlag }

func (limitsListCmd) Help() string {
	return `RUNNING is how many attempts run, and LIMIT how many may; attempts of a key are not counted here. STATE says whether jobs may start at this moment, or what they wait for; or that the limits are those of each key.

Example:

    weir limits list --json`
}

func (c *limitsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Limits(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no limits: see weir limits set --help")
		return nil
	}
	rows := make([][]string, len(all))
	for i, l := range all {
		running, burst, state := runningOf(l), "", cmp.Or(stateOf(&l), "free")
		if l.PerKey {
			state = "each key" // attempts are counted for each
			if l.InOrder {
				state += ", in order"
			}
		}
		if l.Rate.Starts > 0 {
			burst = strconv.Itoa(l.Rate.Burst)
		}
		rows[i] = []string{cell(l.Queue), running, mostOf(l), rateOf(l), burst, state}
	}
	return table(s.out, []string{"QUEUE", "RUNNING", "LIMIT", "RATE", "BURST", "STATE"}, rows)
}

// runningOf returns how many attempts run; "": they aren't counted, because each key has its own limit.
func runningOf(l weir.QueueLimit) string {
	if l.RunningNow == nil {
		return ""
	}
	return strconv.Itoa(*l.RunningNow)
}

// mostOf returns how many attempts may run; "": any number.
func mostOf(l weir.QueueLimit) string {
	switch {
	case l.Running == 0:
		return ""
	case l.PerKey:
		return strconv.Itoa(l.Running) + " per key"
	}
	return strconv.Itoa(l.Running)
}

// rateOf formats how many attempts may start in a time; "": any number.
func rateOf(l weir.QueueLimit) string {
	if l.Rate.Starts == 0 {
		return ""
	}
	return strconv.FormatFloat(l.Rate.Starts, 'f', -1, 64) + "/" + unitOf(l.Rate.Per)
}

// limitText describes all limits of a queue in one cell: what runs, with the most that may; the rate, and when it allows the next start; those of each key.
func limitText(limits []weir.QueueLimit) string {
	var all []string
	for _, l := range limits {
		most, rate := mostOf(l), rateOf(l)
		switch {
		case l.PerKey && rate != "":
			rate += " per key"
		case l.PerKey: // most says so
		case most != "":
			most = runningOf(l) + "/" + most
		}
		if l.Room != nil && *l.Room <= 0 && l.NextAt != nil {
			rate += ", next in " + short(max(time.Until(*l.NextAt), 0))
		}
		for _, text := range []string{most, rate} {
			if text != "" {
				all = append(all, text)
			}
		}
	}
	return strings.Join(all, ", ")
}

// unitOf formats the time of a rate, as parseRate reads it.
func unitOf(per time.Duration) string {
	switch per {
	case time.Second:
		return "s"
	case time.Minute:
		return "m"
	case time.Hour:
		return "h"
	}
	return durationText(per)
}

// stateOf returns what keeps a queue's jobs from starting; "": no limit does.
func stateOf(l *weir.QueueLimit) string {
	switch {
	case l.Room == nil || *l.Room > 0:
		return ""
	case l.NextAt != nil:
		return "rate: next in " + short(max(time.Until(*l.NextAt), 0))
	}
	return "at its limit"
}

type limitsSetCmd struct {
	Queue   string `arg:"" help:"Name of the queue, which need not exist yet."`
	Running int    `placeholder:"N" range:"at least 1" help:"The most attempts that run at a time."`
	Rate    string `placeholder:"N/TIME" help:"How many start in a time: 100/s, 30/m, 1/10s, 5000/h."`
	Burst   int    `placeholder:"N" range:"at least 1" help:"How many may start at once after a pause; by default what the rate allows in half a second."`
	PerKey  bool   `help:"Limit each key of the queue, besides the queue as a whole."`
	InOrder bool   `help:"With --per-key: run the jobs of a key one after the other, also when one is tried again."`
}

func (limitsSetCmd) Help() string {
	return `It replaces all limits of the queue, or with --per-key those of its keys. Attempts that run already count, and none is interrupted.

Examples:

    weir limits set mail --running 20

    weir limits set crawl --rate 100/m --burst 10

    weir limits set mail --per-key --running 2

    weir limits set orders --per-key --in-order`
}

func (c *limitsSetCmd) Run(ctx context.Context, s *streams, db *database) error {
	limit := weir.Limit{Running: c.Running, Rate: weir.Rate{Burst: c.Burst}, PerKey: c.PerKey, InOrder: c.InOrder}
	if c.Rate != "" {
		var err error
		if limit.Rate.Starts, limit.Rate.Per, err = parseRate(c.Rate); err != nil {
			return usagef("%w", err)
		}
	}
	if c.InOrder && (!c.PerKey || c.Running > 1) {
		return usagef("--in-order is for the jobs of a key, one at a time: pass --per-key, and no --running but 1")
	}
	if c.Burst != 0 && c.Rate == "" {
		return usagef("--burst belongs to --rate: pass --rate too")
	}
	most := math.MaxInt32
	if c.PerKey {
		most = 1000
	}
	if c.Running > most {
		return usagef("--running must be 1 to %d, got %d", most, c.Running)
	}
	if c.Burst > 1_000_000 {
		return usagef("--burst must be 1 to 1000000, got %d", c.Burst)
	}
	if c.Running < 0 || c.Running == 0 && c.Rate == "" && !c.InOrder {
		return usagef("pass --running, at least 1, or --rate; to remove limits: weir limits clear")
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	isNew := unknownQueue(ctx, client, c.Queue) != nil
	if err := client.SetLimit(ctx, c.Queue, limit); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "set the limits of %s%s\n", eachKeyOf(c.PerKey), printable(c.Queue))
	if isNew {
		tellOfNew(s, c.Queue)
	}
	return nil
}

// parseRate parses a number of starts and a time, such as 100/s or 1/10s.
func parseRate(text string) (starts float64, per time.Duration, err error) {
	n, unit, found := strings.Cut(text, "/")
	starts, err = strconv.ParseFloat(n, 64)
	if unit != "" && (unit[0] < '0' || unit[0] > '9') {
		unit = "1" + unit
	}
	if err == nil {
		per, err = parseDuration(unit)
	}
	if err == nil && found && per > 366*24*time.Hour {
		return 0, 0, fmt.Errorf("--rate: the time of %q is too long: it must be at most 366d", text)
	}
	if err == nil && found && (starts <= 0 || per <= 0) {
		return 0, 0, fmt.Errorf("--rate: %q starts nothing: number and time must be more than 0, such as 100/s, 30/m or 1/10s; to start nothing: weir queues pause", text)
	}
	if err != nil || !found || !(starts > 0) {
		return 0, 0, fmt.Errorf("--rate: %q is not a rate: write a number and a time, such as 100/s, 30/m or 1/10s", text)
	}
	return starts, per, nil
}

// eachKeyOf begins the name of what has limits.
func eachKeyOf(perKey bool) string {
	if perKey {
		return "each key of "
	}
	return ""
}

type limitsClearCmd struct {
	Queue  []string `arg:"" help:"Names of queues."`
	PerKey bool     `help:"Remove only the limits of their keys."`
}

func (limitsClearCmd) Help() string {
	return `Example:

    weir limits clear mail`
}

func (c *limitsClearCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	for _, name := range c.Queue {
		clear := client.ClearLimit
		if c.PerKey {
			clear = client.ClearKeyLimit
		}
		err := clear(ctx, name)
		if errors.Is(err, weir.ErrNotFound) && c.PerKey {
			return notFoundf("the keys of queue %q have no limits: see weir limits list", name)
		}
		if errors.Is(err, weir.ErrNotFound) {
			return notFoundf("queue %q has no limits: see weir limits list", name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "cleared the limits of %s%s\n", eachKeyOf(c.PerKey), printable(name))
	}
	return nil
}

type limitsWeightCmd struct {
	Queue  string  `arg:"" optional:"" help:"Name of the queue. Without a key, its weights are listed; without a queue, all."`
	Key    string  `arg:"" optional:"" help:"A key of the queue's jobs."`
	Weight float64 `arg:"" optional:"" needed:"" range:"0.01 to 1000" help:"How many turns it gets in relation to other keys, 0.01 to 1000; 1, the weight of all others, removes it."`
	jsonFlag
}

func (limitsWeightCmd) Help() string {
	return `While two keys of a queue have jobs that wait, one with weight 3 starts three times as many as one with weight 1.

Examples:

    weir limits weight mail acme 3

    weir limits weight`
}

func (c *limitsWeightCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.Key != "" && c.Weight == 0 {
		return usagef("pass a weight of 0.01 to 1000 after the key")
	}
	if c.Key != "" && !(c.Weight >= 0.01 && c.Weight <= 1000) {
		return usagef("a weight must be 0.01 to 1000, got %v", c.Weight)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	if c.Key != "" {
		isNew := unknownQueue(ctx, client, c.Queue) != nil
		if err := client.SetWeight(ctx, c.Queue, c.Key, c.Weight); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "set the weight of %s in %s\n", printable(c.Key), printable(c.Queue))
		if isNew {
			tellOfNew(s, c.Queue)
		}
		return nil
	}
	all, err := client.Weights(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(w weir.KeyWeight) bool { return c.Queue != "" && w.Queue != c.Queue })
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no weights: all keys have the weight 1")
		return nil
	}
	rows := make([][]string, len(all))
	for i, w := range all {
		rows[i] = []string{cell(w.Queue), cell(w.Key), strconv.FormatFloat(w.Weight, 'f', -1, 64)}
	}
	return table(s.out, []string{"QUEUE", "KEY", "WEIGHT"}, rows)
}
