// Command fetch downloads PostgreSQL's binaries for tests of a module that can't import what does: fetch VERSION DIRECTORY.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/weir-pg/weir/cmd/internal/binaries"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: fetch VERSION DIRECTORY")
		os.Exit(2)
	}
	if err := binaries.Fetch(context.Background(), os.Args[1], os.Args[2], nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
