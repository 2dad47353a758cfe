package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// cli is the command line. The type of each field has its own file.
type cli struct {
	Database string `placeholder:"URL" env:"DATABASE_URL" help:"PostgreSQL database to connect to."`

	Dev        devCmd        `cmd:"" help:"Run a private PostgreSQL with Weir, to try it out."`
	Migrate    migrateCmd    `cmd:"" help:"Install, upgrade or remove Weir's schema."`
	Enqueue    enqueueCmd    `cmd:"" help:"Enqueue one job, or one for each line of standard input."`
	Work       workCmd       `cmd:"" help:"Work jobs by running a command for each."`
	Serve      serveCmd      `cmd:"" help:"Run a hub, which delivers messages over PostgreSQL's protocol, WebSocket and SSE."`
	Publish    publishCmd    `cmd:"" help:"Publish a message on a channel."`
	Listen     listenCmd     `cmd:"" help:"Print messages as they arrive."`
	Relay      relayCmd      `cmd:"" help:"Pass messages and jobs on to Kafka, NATS, Redis or another database."`
	Jobs       jobsCmd       `cmd:"" help:"List, show, cancel, retry, delete and move jobs."`
	Operations operationsCmd `cmd:"" hidden:"" help:"List and stop bulk operations that run in the background."`
	Queues     queuesCmd     `cmd:"" help:"List, pause and resume queues."`
	Limits     limitsCmd     `cmd:"" help:"List, set and clear limits of queues."`
	Flows      flowsCmd      `cmd:"" help:"List, show, create, cancel and retry flows: sets of jobs that call back."`
	Schedules  schedulesCmd  `cmd:"" help:"List, set, pause, resume and run schedules (cron)."`
	Workers    workersCmd    `cmd:"" help:"List workers."`
	Settings   settingsCmd   `cmd:"" help:"List and change settings."`
	Hubs       hubsCmd       `cmd:"" help:"List hubs."`
	Clients    clientsCmd    `cmd:"" help:"Disconnect users from all hubs, and revoke their tokens."`
	Storage    storageCmd    `cmd:"" hidden:"" help:"Show what Weir's tables take on disk."`
	Guard      guardCmd      `cmd:"" help:"End transactions that hold back the vacuum horizon, by policy."`

	Bench      benchCmd      `cmd:"" help:"Measure Weir on your database, or on a private one."`
	Doctor     doctorCmd     `cmd:"" help:"Name what slows down a PostgreSQL server, with or without Weir."`
	Lab        labCmd        `cmd:"" help:"Reproduce known collapses of PostgreSQL, next to their fixes."`
	Completion completionCmd `cmd:"" hidden:"" help:"Print a completion script for your shell."`
	Version    versionCmd    `cmd:"" hidden:"" help:"Print the version of this build."`
	UIPassword uiPasswordCmd `cmd:"" name:"ui-password" hidden:"" help:"Print the line of a user of the web UI, for weir serve --ui-users."`
	Complete   completeCmd   `cmd:"" name:"__complete" hidden:"" passthrough:""`
}

const description = "Background jobs and messages on PostgreSQL. Start with: weir dev"

// streams are what a command reads and writes. print.go says what is written where.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs the command, without exiting the process.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	ctx, signals := catchSignals(errs)
	defer signals.release()

	var line cli
	s := &streams{in: in, out: out, err: errs}
	ended := false // kong calls Exit after printing help
	parser, err := newParser(&line,
		kong.Writers(out, errs), kong.Exit(func(int) { ended = true }),
		kong.Bind(s, signals), kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		fmt.Fprintln(errs, oneLine(err))
		return exitFailure
	}
	if len(args) == 0 {
		s.out = errs
		parser.Stdout = errs
		args = []string{"--help"}
		defer func() { ended = true }()
		_, _ = parser.Parse(args) // prints the help
		return exitUsage
	}
	parsed, err := parser.Parse(customary(args))
	if ended {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(errs, oneLine(fmt.Errorf("%s: see %s --help", unparsed(err, args), commandOf(err))))
		return exitUsage
	}
	err = parsed.Run(&database{url: line.Database, err: errs}, parser.Model)
	code := exitCode(ctx, err)
	switch {
	case err == nil:
	case code == exitInterrupted:
		fmt.Fprintln(errs, "weir: interrupted")
	default:
		fmt.Fprintln(errs, oneLine(err))
	}
	return code
}

// newParser returns a parser of the command line.
func newParser(line *cli, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(line, append(options, kong.Name("weir"), kong.Description(description), kong.Help(printHelp), durations(), kong.WithAfterApply(refuseEmpty))...)
}

// customary translates what people try first, such as --version, into a command of weir.
func customary(args []string) []string {
	switch args[0] {
	case "help":
		return append(slices.Clone(args[1:]), "--help")
	case "--version", "-V":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

// Kong's messages for a flag without a value, for a negative number, for what is no number, for a command without its second word, for one argument too
// many, and for a value that looks like a flag.
var (
	noValue   = regexp.MustCompile(`^(--?\S+): expected .*value but got "EOL" \(<EOL>\)$`)
	negative  = regexp.MustCompile(`^unknown flag (-[0-9.].*?)(, did you mean .*)?$`)
	notNumber = regexp.MustCompile(`^\[?(--?[\w-]+|<[\w-]+>)(?: \.\.\.)?\]?: expected a (?:float|valid [0-9]+ bit u?int) but got (".*")(?: \(.*\))?$`)
	oneOf     = regexp.MustCompile(`^expected one of .*\.\.\.$`)
	tooMany   = regexp.MustCompile(`^unexpected argument (.*)$`)
	flagValue = regexp.MustCompile(`^(--?\S+): expected .*value but got "(.*)" \(\w+ flag\); perhaps try .*$`)
)

// unparsed words an error of the parser.
func unparsed(err error, args []string) string {
	text := noValue.ReplaceAllString(err.Error(), "$1 needs a value")
	if m := negative.FindStringSubmatch(text); m != nil { // it names the first digit
		if i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, m[1]) }); i >= 0 {
			text = "unknown flag " + args[i]
		}
	}
	text = negative.ReplaceAllString(text, "unknown flag $1: if it is meant as a value, values of this command are not negative")
	text = notNumber.ReplaceAllString(text, "$1 must be a number, got $2")
	if oneOf.MatchString(text) {
		text = "expected one of " + strings.Join(subcommands(err), ", ")
	}
	if m := tooMany.FindStringSubmatch(text); m != nil {
		switch commandOf(err) {
		case "weir":
			if meant := commandsNamed(err, m[1]); len(meant) > 0 {
				text += ", did you mean " + strings.Join(meant, " or ") + "?"
			}
		case "weir schedules next", "weir schedules set":
			text += ": quote an expression that has spaces, as in '0 9 * * mon'"
		case "weir jobs delete", "weir jobs move":
			text += ": it takes no ids: select jobs with flags, such as --queue or --key"
		}
	}
	return flagValue.ReplaceAllString(text, `$1 needs a value, and "$2" looks like a flag: write $1="$2" if you mean it as the value`)
}

// commandOf returns the command whose arguments could not be parsed.
func commandOf(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if at := parse.Context.Selected(); at != nil {
			return at.FullPath()
		}
	}
	return "weir"
}

// subcommands returns the commands that there are below the one that could not be parsed.
func subcommands(err error) (names []string) {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		at := parse.Context.Selected()
		if at == nil {
			at = parse.Context.Model.Node
		}
		for _, child := range at.Children {
			if !child.Hidden {
				names = append(names, child.Name)
			}
		}
	}
	return names
}

// commandsNamed returns the commands of two words whose second is the name.
func commandsNamed(err error, name string) (commands []string) {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context == nil {
		return nil
	}
	for _, first := range parse.Context.Model.Children {
		for _, second := range first.Children {
			if !first.Hidden && !second.Hidden && second.Name == name {
				commands = append(commands, fmt.Sprintf("%q", second.FullPath()))
			}
		}
	}
	return commands
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && terminal(f)
}
