package load

import "io"

// Tree is what a tree of nodes has shown beside as many flat jobs.
type Tree struct{}

func (t *Tree) text(io.Writer) {}
