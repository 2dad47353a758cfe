package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/lab"
)

// labCmd reproduces known collapses of PostgreSQL next to their fixes.
type labCmd struct {
	Notify    labNotifyCmd    `cmd:"" help:"NOTIFY lets only one commit through at a time."`
	Listeners labListenersCmd `cmd:"" help:"Every notification wakes every listener."`
	Storm     labStormCmd     `cmd:"" help:"Thousands of simultaneous connections saturate the postmaster."`
	Tree      labTreeCmd      `cmd:"" help:"Foreign keys, one row per statement, and hot counters."`
	Pinned    labPinnedCmd    `cmd:"" help:"A long transaction makes a queue read through its dead rows."`
	All       labAllCmd       `cmd:"" help:"All five, one after another, with their default sizes."`
}

// Help is shown by weir lab --help.
func (labCmd) Help() string {
	return "Each scenario runs a load in the variant that collapses and with each known fix, in one run. A verdict, computed from the figures, says whether the collapse shows on this machine. " +
		"By default it starts a private PostgreSQL and removes it at the end. With --database it uses your database, in its own schema weir_lab, " +
		"and refuses a database that contains anything else. " +
		"DATABASE_URL is ignored, so that the load is never run by accident.\n\n" +
		"Example: weir lab notify --report notify.html"
}

// labDatabase is the help of --database in the lab, which differs from that of other commands.
const labDatabase = "PostgreSQL database to measure on. Default: a private one; DATABASE_URL is ignored."

// labFlags are common to all scenarios.
type labFlags struct {
	Duration      time.Duration `placeholder:"10s" help:"How long each variant is measured (pinned: 16s)."`
	JSON          string        `name:"json" placeholder:"FILE" help:"Write the result as JSON to a file, or with - to standard output."`
	Report        string        `placeholder:"FILE" help:"Write a self-contained HTML report with charts."`
	PostgresMajor int           `name:"postgres-major" placeholder:"18" help:"Major version of the private PostgreSQL, 14 to 18. To use an installed one, set WEIR_POSTGRES to its directory."`
	AllowNonempty bool          `name:"allow-nonempty" help:"Run even if the database given with --database contains something else, which the load will disturb."`
}

// labExample returns the end of a scenario's help.
func labExample(command string) string { return "Example: " + command }

type labNotifyCmd struct {
	labFlags
	Clients int `default:"64" help:"Number of sessions that insert."`
	Rounds  int `default:"3" help:"Number of rounds in which the variants alternate."`
}

func (labNotifyCmd) Help() string {
	return labExample("weir lab notify --clients 64 --duration 30s --report notify.html")
}

func (c *labNotifyCmd) config() (lab.Config, string) {
	return lab.Config{Scenario: "notify", Notify: lab.NotifySize{Clients: c.Clients, Rounds: c.Rounds}},
		fmt.Sprintf("--clients %d --rounds %d", c.Clients, c.Rounds)
}

func (c *labNotifyCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	return c.run(ctx, s, d, k, c)
}

type labListenersCmd struct {
	labFlags
	Idle      []int `default:"0,10,100,1000" help:"Numbers of idle listeners next to the ping-pong."`
	Groups    []int `default:"2,4,8,16" help:"Numbers of listeners that share a channel."`
	Notifiers []int `placeholder:"1,2,4,…" help:"Numbers of sessions that notify one listener. Default: 1 to 128, fewer on machines with few cores."`
	Clients   []int `placeholder:"1,2,4,…" help:"Numbers of clients that LISTEN and UNLISTEN. Default: 1 to 1000, fewer on machines with few cores."`
}

func (labListenersCmd) Help() string {
	return labExample("weir lab listeners --idle 0,100,1000 --report listeners.html")
}

func (c *labListenersCmd) config() (lab.Config, string) {
	flags := fmt.Sprintf("--idle %s --groups %s", commas(c.Idle), commas(c.Groups))
	for _, f := range []struct {
		name    string
		numbers []int
	}{{"notifiers", c.Notifiers}, {"clients", c.Clients}} {
		if len(f.numbers) > 0 { // otherwise the machine decides
			flags += " --" + f.name + " " + commas(f.numbers)
		}
	}
	return lab.Config{Scenario: "listeners", Listeners: lab.ListenersSize{Idle: c.Idle, Groups: c.Groups, Notifiers: c.Notifiers, Clients: c.Clients}}, flags
}

func (c *labListenersCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	return c.run(ctx, s, d, k, c)
}

type labStormCmd struct {
	labFlags
	Clients int           `default:"2000" help:"Number of clients that connect at the same moment."`
	Rounds  int           `default:"2" help:"Number of rounds in which the variants alternate."`
	Jitter  time.Duration `default:"10s" help:"Period over which clients with jitter spread their connections."`
	Queries int           `default:"4" help:"Number of sessions that run small parallel queries at the same time."`
	Pool    int           `default:"20" help:"Number of sessions of PgBouncer and of the standing pool."`
	Servers int           `default:"8" help:"Number of private servers over which the clients are spread at most: 1, 2, 4, and so on."`
	Rates   []int         `default:"100,200,400,800,1600,3200,6400" help:"Connections per second of the sweep, which ends at the first that the server does not keep up with."`

	NoReserve bool `name:"no-reserve" help:"Measure huge pages only if the machine has some reserved; otherwise root reserves them for the run (vm.nr_hugepages)."`
}

func (labStormCmd) Help() string {
	return labExample("weir lab storm --clients 5000 --report storm.html")
}

func (c *labStormCmd) config() (lab.Config, string) {
	flags := fmt.Sprintf("--clients %d --rounds %d --jitter %s --queries %d --pool %d --servers %d --rates %s", c.Clients, c.Rounds, c.Jitter, c.Queries, c.Pool, c.Servers, commas(c.Rates))
	if c.NoReserve {
		flags += " --no-reserve"
	}
	return lab.Config{Scenario: "storm", Storm: lab.StormSize{
		Clients: c.Clients, Rounds: c.Rounds, Jitter: c.Jitter, Queries: c.Queries, Pool: c.Pool, Servers: c.Servers, Rates: c.Rates, NoReserve: c.NoReserve,
	}}, flags
}

func (c *labStormCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	if c.Servers < 1 || c.Servers > lab.MostServers {
		return usagef("--servers must be 1 to %d, got %d", lab.MostServers, c.Servers)
	}
	return c.run(ctx, s, d, k, c)
}

type labTreeCmd struct {
	labFlags
	Workers  int `default:"32" help:"Number of sessions that process items."`
	Parents  int `default:"4" help:"Number of parent rows that they share."`
	Children int `default:"20" help:"Number of child rows per item; one in ten is new."`
	Crowd    int `default:"256" help:"Number of sessions of the variant with many, which make more MultiXacts."`
}

func (labTreeCmd) Help() string { return labExample("weir lab tree --workers 64 --report tree.html") }

func (c *labTreeCmd) config() (lab.Config, string) {
	return lab.Config{Scenario: "tree", Tree: lab.TreeSize{
			Workers: c.Workers, Parents: c.Parents, Children: c.Children, Crowd: c.Crowd, Flows: &lab.TreeFlows{Engine: engine.Engine{Log: io.Discard}, Work: engine.WorkTree},
		}},
		fmt.Sprintf("--workers %d --parents %d --children %d --crowd %d", c.Workers, c.Parents, c.Children, c.Crowd)
}

func (c *labTreeCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	return c.run(ctx, s, d, k, c)
}

type labPinnedCmd struct {
	labFlags
	Rate    int    `default:"1500" help:"Jobs enqueued per second."`
	Workers int    `default:"8" help:"Number of sessions that claim jobs."`
	Pin     string `default:"all" enum:"all,read,write,standby,slot,prepared" help:"With which pin all queues are measured. read: a snapshot that stays open; write: an idle transaction that holds an xid; standby: a snapshot on a standby; slot: an abandoned replication slot; prepared: a prepared transaction; all: read, and the others with some of the queues."`
}

func (labPinnedCmd) Help() string {
	return labExample("weir lab pinned --rate 800 --duration 5m --pin read --report pinned.html")
}

func (c *labPinnedCmd) config() (lab.Config, string) {
	size := lab.PinnedSize{Rate: c.Rate, Workers: c.Workers}
	if c.Pin != "all" {
		size.Pins = []string{c.Pin}
	}
	return lab.Config{Scenario: "pinned", Pinned: size}, fmt.Sprintf("--rate %d --workers %d --pin %s", c.Rate, c.Workers, c.Pin)
}

func (c *labPinnedCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	return c.run(ctx, s, d, k, c)
}

type labAllCmd struct {
	labFlags
	PinnedDuration time.Duration `placeholder:"16s" help:"How long each variant of pinned is measured. Default: --duration, or 16s."`
}

func (labAllCmd) Help() string { return labExample("weir lab all --report lab.html --json lab.json") }

func (c *labAllCmd) Run(ctx context.Context, s *streams, d *database, k *kong.Context) error {
	// Each scenario has the defaults of its own command.
	var each labCmd
	parser, err := kong.New(&each, kong.Exit(func(int) {}))
	if err != nil {
		return err
	}
	var configs []configured
	for _, name := range lab.Scenarios {
		if _, err := parser.Parse([]string{name}); err != nil {
			return err
		}
		scenario := each.named(name)
		config, size := scenario.config()
		config.Duration = c.Duration
		if name == "pinned" && c.PinnedDuration > 0 {
			config.Duration = c.PinnedDuration
		}
		configs = append(configs, configured{config, size})
	}
	return c.runAll(ctx, s, d, k, "weir lab all"+c.common(c.Duration)+flagUnless(" --pinned-duration ", c.PinnedDuration), configs)
}

// labScenario is implemented by the command of each scenario.
type labScenario interface {
	// config returns what to measure, and the same as flags.
	config() (lab.Config, string)
}

func (c *labCmd) named(name string) labScenario {
	return map[string]labScenario{
		"notify": &c.Notify, "listeners": &c.Listeners, "storm": &c.Storm, "tree": &c.Tree, "pinned": &c.Pinned,
	}[name]
}

// configured is a scenario with its flags.
type configured struct {
	lab.Config
	size string
}

// run runs one scenario.
func (f *labFlags) run(ctx context.Context, s *streams, d *database, k *kong.Context, c labScenario) error {
	config, size := c.config()
	config.Duration = f.Duration
	return f.runAll(ctx, s, d, k, "weir lab "+config.Scenario+f.common(f.Duration)+" "+size, []configured{{config, size}})
}

// common returns the flags that affect the figures, unless they have their defaults.
func (f *labFlags) common(duration time.Duration) string {
	text := flagUnless(" --duration ", duration)
	if f.PostgresMajor != 0 {
		text += fmt.Sprintf(" --postgres-major %d", f.PostgresMajor)
	}
	return text
}

func flagUnless(flag string, d time.Duration) string {
	if d == 0 {
		return ""
	}
	return flag + d.String()
}

func commas(numbers []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(numbers), "[]"), " ", ",")
}

// runAll runs scenarios one after another. If one fails, the others still run, and what was measured is written, unless that is nothing.
func (f *labFlags) runAll(ctx context.Context, s *streams, d *database, k *kong.Context, command string, configs []configured) error {
	if f.Duration < 0 {
		return usagef("--duration must not be negative, got %s", f.Duration)
	}
	for _, c := range configs {
		if err := c.Usable(); err != nil {
			return usagef("%w", err)
		}
	}
	url := ""
	if given(k, "database") {
		url = d.url
		where := " --database URL" // which may contain a password
		if f.AllowNonempty {
			where += " --allow-nonempty"
		}
		command += where
		for i := range configs {
			configs[i].size += where
		}
	} else if d.url != "" {
		fmt.Fprintln(s.err, "weir: DATABASE_URL is ignored: a private PostgreSQL is used; pass --database to measure on another")
	}
	if url != "" {
		all := make([]lab.Config, len(configs))
		for i, c := range configs {
			all[i] = c.Config
		}
		if err := lab.Check(ctx, url, all...); err != nil {
			return err
		}
	}
	begun := time.Now()
	report := &lab.Report{Version: lab.Version, StartedAt: begun.UTC().Truncate(time.Second), Command: command, Machine: lab.ThisMachine(), Results: []*lab.Result{}}
	view := newLabView(s.err)
	if why := lab.Busy(); why != "" {
		fmt.Fprintf(s.err, "weir: this machine is busy: %s: the figures will be worse than they could be, and the report will say so\n", why)
	}
	var errs []error
	for i, c := range configs {
		c.Follows = i > 0
		c.Database, c.AllowNonempty, c.Major, c.Progress = url, f.AllowNonempty, f.PostgresMajor, view.show
		c.Command = "weir lab " + c.Scenario + f.common(c.Duration) + " " + c.size
		result, err := lab.Run(ctx, c.Config)
		if result != nil {
			report.Results = append(report.Results, result)
		}
		if err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			if left := (*lab.LeftError)(nil); errors.As(err, &left) { // an interrupted command says nothing else
				fmt.Fprintln(s.err, "weir: "+left.Error())
			}
			break
		}
		if result != nil {
			view.verdict(result)
		}
	}
	view.done()
	report.Seconds = time.Since(begun).Round(time.Second).Seconds()
	if slices.ContainsFunc(report.Results, func(r *lab.Result) bool { return len(r.Ways) > 0 }) {
		errs = append(errs, f.write(s, report))
	}
	return errors.Join(errs...)
}

// given reports whether a flag was given on the command line, not only in the environment.
func given(k *kong.Context, name string) bool {
	for _, element := range k.Path {
		if element.Flag != nil && element.Flag.Name == name && !element.Resolved {
			return true
		}
	}
	return false
}
