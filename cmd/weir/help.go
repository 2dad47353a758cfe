package main

import (
	"fmt"

	"github.com/alecthomas/kong"
)

// printHelp prints the top-level help on one screen, and leaves the help of subcommands to kong.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() != nil || ctx.Command() != "" {
		options.Compact = true
		return kong.DefaultHelpPrinter(options, ctx)
	}
	w := ctx.Stdout
	fmt.Fprintf(w, "Usage: weir <command> [flags | --help]. %s\n", description)
	for _, command := range ctx.Model.Children {
		if !command.Hidden {
			fmt.Fprintf(w, "  %-11s %s\n", command.Name, command.Help)
		}
	}
	fmt.Fprintf(w, `  --database=URL   PostgreSQL to work with. Default: DATABASE_URL, or a weir dev running here.
Also: operations, storage, completion, version. Exit codes: %d done, %d failed, %d wrong usage, %d not found, %d database unreachable, %d interrupted.
`, exitOK, exitFailure, exitUsage, exitNotFound, exitUnreachable, exitInterrupted)
	return nil
}
