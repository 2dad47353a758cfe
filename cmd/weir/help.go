package main

import (
	"fmt"
	"slices"

	"github.com/alecthomas/kong"
)

// printHelp prints the top-level help on one screen, and leaves the help of subcommands to kong.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() != nil || ctx.Command() != "" {
		options.Compact = true
		if ofLab(ctx) {
			options.ValueFormatter = func(value *kong.Value) string {
				if value.Name == "database" {
					return labDatabase
				}
				return kong.DefaultHelpValueFormatter(value)
			}
		}
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

// ofLab says whether the help is that of the lab, or of one of its scenarios.
func ofLab(ctx *kong.Context) bool {
	return slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Command != nil && p.Command.Name == "lab" })
}
