package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

type schedulesCmd struct {
	List   schedulesListCmd   `cmd:"" default:"withargs" help:"List schedules, with their next and last due times."`
	Show   schedulesShowCmd   `cmd:"" help:"Show a schedule and its next due times."`
	Set    schedulesSetCmd    `cmd:"" help:"Create or change a schedule."`
	Drop   schedulesDropCmd   `cmd:"" help:"Drop schedules."`
	Pause  schedulesPauseCmd  `cmd:"" help:"Pause schedules: they enqueue no jobs until they are resumed."`
	Resume schedulesResumeCmd `cmd:"" help:"Resume paused schedules; what was due in between is not fired."`
	Run    schedulesRunCmd    `cmd:"" help:"Enqueue a job of each schedule now."`
	Next   schedulesNextCmd   `cmd:"" help:"Print the next due times of an expression."`
}

func (schedulesCmd) Help() string {
	return `A schedule enqueues a job at each time of a cron expression, or at an interval.

Example:

    weir schedules list`
}

type schedulesListCmd struct{ jsonFlag }

func (schedulesListCmd) Help() string {
	return `Example:

    weir schedules list --json`
}

func (c *schedulesListCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Schedules(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no schedules yet: see weir schedules set --help")
		return nil
	}
	rows := make([][]string, len(all))
	for i, k := range all {
		state := k.State
		if k.Error != "" {
			state = "failing: " + k.Error
		}
		job := ""
		if k.LastJob != nil {
			job = strconv.FormatInt(*k.LastJob, 10)
		}
		rows[i] = []string{cell(k.Name), cell(state), cell(k.Schedule), cell(k.TimeZone), ago(k.NextAt), ago(k.LastAt), job, cell(k.Queue), cell(k.Kind)}
	}
	return table(s.out, []string{"SCHEDULE", "STATE", "WHEN", "TIME ZONE", "NEXT", "LAST", "LAST JOB", "QUEUE", "KIND"}, rows)
}

type schedulesShowCmd struct {
	Name string `arg:"" help:"Name of a schedule."`
	jsonFlag
}

func (schedulesShowCmd) Help() string {
	return `Example:

    weir schedules show report`
}

func (c *schedulesShowCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	k, err := client.Schedule(ctx, c.Name)
	if err != nil {
		return noSchedule(c.Name, err)
	}
	if c.JSON {
		return printJSON(s.out, k)
	}
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(s.out, "%-13s %s\n", name, printable(value))
		}
	}
	line("schedule", k.Name)
	line("state", k.State)
	line("when", k.Schedule)
	line("time zone", k.TimeZone)
	line("missed", string(k.Missed))
	if k.Jitter > 0 {
		line("jitter", durationText(time.Duration(k.Jitter*float64(time.Second))))
	}
	line("next", when(k.NextAt))
	line("last", when(k.LastAt))
	if k.LastJob != nil {
		line("last job", strconv.FormatInt(*k.LastJob, 10))
	}
	line("queue", k.Queue)
	line("kind", k.Kind)
	line("priority", strconv.Itoa(k.Priority))
	line("max attempts", strconv.Itoa(k.MaxAttempts))
	line("args", string(k.Args))
	line("meta", string(k.Meta))
	line("key", k.Key)
	line("error", k.Error)
	return nil
}

type schedulesSetCmd struct {
	Name        string        `arg:"" help:"Name of the schedule."`
	Schedule    string        `arg:"" help:"Cron expression of five fields, or of six with the second first; @hourly and the like; or 'every 90 seconds'."`
	Queue       string        `short:"q" default:"default" help:"Queue of the jobs."`
	Kind        string        `short:"k" required:"" help:"Kind of the jobs, which selects the handler that runs them."`
	Args        string        `default:"{}" placeholder:"JSON" help:"Arguments of the jobs, a JSON object ({})."`
	TimeZone    string        `default:"UTC" placeholder:"NAME" help:"Time zone whose clock counts, such as Europe/Berlin (${default})."`
	Missed      string        `default:"one" placeholder:"POLICY" help:"What happens to due times that nobody fired for more than a minute, because no worker ran: one job for all of them, all, or none (${default}). Those of the last minute are fired one by one."`
	Jitter      time.Duration `placeholder:"DURATION" empty:"ok" most:"1d" help:"Enqueue each job up to this much later, at random."`
	Priority    int           `default:"2" range:"1 (first) to 4" help:"1 (first) to 4."`
	MaxAttempts int           `default:"25" range:"1 to 1000" help:"Maximum number of attempts."`
	Meta        string        `placeholder:"JSON" help:"JSON object to store with the jobs."`
	Key         string        `placeholder:"TEXT" help:"Whose jobs they are: see weir enqueue."`
}

func (schedulesSetCmd) Help() string {
	return `Setting the same again changes nothing. A job's meta tells its handler the due time.

Examples:

    weir schedules set report '30 2 * * mon-fri' --time-zone Europe/Berlin -q reports -k report

    weir schedules set poll 'every 90 seconds' -k poll --jitter 10s`
}

func (c *schedulesSetCmd) Run(ctx context.Context, s *streams, db *database) error {
	options := &weir.Options{Priority: c.Priority, MaxAttempts: c.MaxAttempts, Key: c.Key}
	job := enqueueCmd{Queue: c.Queue, Args: c.Args, Meta: c.Meta, Priority: c.Priority, MaxAttempts: c.MaxAttempts}
	if err := job.check(options); err != nil {
		return err
	}
	options.Queue = c.Queue
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	changed, err := client.SetSchedule(ctx, weir.Schedule{
		Name: c.Name, Schedule: c.Schedule, TimeZone: c.TimeZone, Missed: weir.Missed(c.Missed), Jitter: c.Jitter, Args: rawArgs{c.Kind, []byte(job.Args)}, Options: options,
	})
	if err != nil {
		return err
	}
	k, err := client.Schedule(ctx, c.Name)
	if err != nil {
		return noSchedule(c.Name, err)
	}
	did, next := "set", "paused"
	if !changed {
		did = "unchanged:"
	}
	if k.NextAt != nil {
		next = "next due " + when(k.NextAt)
	}
	fmt.Fprintf(s.out, "%s schedule %s: %s\n", did, printable(c.Name), next)
	return nil
}

// namedSchedules are the schedules that a command does something to.
type namedSchedules struct {
	Name []string `arg:"" help:"Names of schedules."`
}

func (c namedSchedules) each(ctx context.Context, s *streams, db *database, did string, do func(*weir.Client, context.Context, string) error) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	for _, name := range c.Name {
		if err := do(client, ctx, name); err != nil {
			return noSchedule(name, err)
		}
		if did != "" {
			fmt.Fprintf(s.out, "%s schedule %s\n", did, printable(name))
		}
	}
	return nil
}

// change brings schedules into a state, and says of which ones it was theirs already.
func (c namedSchedules) change(ctx context.Context, s *streams, db *database, state string, do func(*weir.Client, context.Context, string) error) error {
	did, already := "paused", "is paused already"
	if state == "active" {
		did, already = "resumed", "is not paused"
	}
	return c.each(ctx, s, db, "", func(client *weir.Client, ctx context.Context, name string) error {
		before, err := client.Schedule(ctx, name)
		if err == nil {
			err = do(client, ctx, name)
		}
		switch {
		case err != nil:
			return err
		case before.State == state:
			fmt.Fprintf(s.out, "schedule %s %s\n", printable(name), already)
		default:
			fmt.Fprintf(s.out, "%s schedule %s\n", did, printable(name))
		}
		return nil
	})
}

func noSchedule(name string, err error) error {
	if errors.Is(err, weir.ErrNotFound) {
		return notFoundf("schedule %q does not exist: see weir schedules list", name)
	}
	return err
}

type schedulesDropCmd struct{ namedSchedules }

func (schedulesDropCmd) Help() string {
	return `Jobs that it has enqueued stay.

Example:

    weir schedules drop report`
}

func (c *schedulesDropCmd) Run(ctx context.Context, s *streams, db *database) error {
	return c.each(ctx, s, db, "dropped", (*weir.Client).DropSchedule)
}

type schedulesPauseCmd struct{ namedSchedules }

func (schedulesPauseCmd) Help() string {
	return `Example:

    weir schedules pause report`
}

func (c *schedulesPauseCmd) Run(ctx context.Context, s *streams, db *database) error {
	return c.change(ctx, s, db, "paused", (*weir.Client).PauseSchedule)
}

type schedulesResumeCmd struct{ namedSchedules }

func (schedulesResumeCmd) Help() string {
	return `Example:

    weir schedules resume report`
}

func (c *schedulesResumeCmd) Run(ctx context.Context, s *streams, db *database) error {
	return c.change(ctx, s, db, "active", (*weir.Client).ResumeSchedule)
}

type schedulesRunCmd struct{ namedSchedules }

func (schedulesRunCmd) Help() string {
	return `Their due times stay as they are.

Example:

    weir schedules run report`
}

func (c *schedulesRunCmd) Run(ctx context.Context, s *streams, db *database) error {
	return c.each(ctx, s, db, "", func(client *weir.Client, ctx context.Context, name string) error {
		job, err := client.RunSchedule(ctx, name)
		if err == nil {
			fmt.Fprintf(s.out, "enqueued job %d of schedule %s\n", job.ID, printable(name))
		}
		return err
	})
}

type schedulesNextCmd struct {
	Schedule string `arg:"" help:"Expression, as of weir schedules set."`
	TimeZone string `default:"UTC" placeholder:"NAME" help:"Time zone whose clock counts (${default})."`
	After    moment `placeholder:"TIME" help:"Start after this time (RFC 3339), or a duration from now; by default now."`
	Count    int    `short:"n" default:"5" help:"How many (${default})."`
}

func (schedulesNextCmd) Help() string {
	return `The times are in the time zone of the schedule if this machine knows it, and otherwise in UTC.

Example:

    weir schedules next '30 2 * * *' --time-zone Europe/Berlin -n 3`
}

func (c *schedulesNextCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	times, err := client.NextTimes(ctx, c.Schedule, c.TimeZone, c.After.Time, c.Count)
	if err != nil {
		return err
	}
	location, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		location = time.UTC
	}
	for _, at := range times {
		fmt.Fprintln(s.out, at.In(location).Format("Mon 2006-01-02 15:04:05 -07:00"))
	}
	if len(times) == 0 {
		return errors.New("it is never due: no year has such a day: check the day and the month")
	}
	return nil
}
