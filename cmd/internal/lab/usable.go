package lab

import (
	"fmt"
	"slices"
)

// Usable returns an error that names the first size that can't be measured with, or nil. A size of zero means its default.
func (c Config) Usable() error {
	sizes := map[string][]struct {
		flag  string
		least int
		of    []int
	}{
		"notify":    {{"--clients", 0, []int{c.Notify.Clients}}, {"--rounds", 0, []int{c.Notify.Rounds}}},
		"listeners": {{"--idle", 0, c.Listeners.Idle}, {"--groups", 1, c.Listeners.Groups}, {"--notifiers", 1, c.Listeners.Notifiers}, {"--clients", 1, c.Listeners.Clients}},
		"storm": {
			{"--clients", 0, []int{c.Storm.Clients}}, {"--rounds", 0, []int{c.Storm.Rounds}}, {"--queries", 0, []int{c.Storm.Queries}},
			{"--pool", 0, []int{c.Storm.Pool}}, {"--rates", 1, c.Storm.Rates},
		},
		"tree": {
			{"--workers", 0, []int{c.Tree.Workers}}, {"--parents", 0, []int{c.Tree.Parents}}, {"--children", 0, []int{c.Tree.Children}},
			{"--crowd", 0, []int{c.Tree.Crowd}},
		},
		"pinned": {{"--rate", 0, []int{c.Pinned.Rate}}, {"--workers", 0, []int{c.Pinned.Workers}}},
	}
	for _, size := range sizes[c.Scenario] {
		for _, n := range size.of {
			if n < size.least {
				return fmt.Errorf("%s must be at least %d, got %d", size.flag, size.least, n)
			}
		}
	}
	if idle := c.Listeners.Idle; len(idle) > 0 && slices.Min(idle) == slices.Max(idle) {
		return fmt.Errorf("--idle needs two different numbers, which are compared, got %s", list(idle))
	}
	if groups := c.Listeners.Groups; len(groups) > 0 && slices.Max(groups) > allGrouped {
		return fmt.Errorf("--groups may be at most %d, the number of listeners in all groups, got %d", allGrouped, slices.Max(groups))
	}
	return nil
}
