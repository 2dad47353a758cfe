// Command weir runs, operates and tries out Weir: background jobs on PostgreSQL. See weir --help.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
