package main

import (
	"testing"

	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// TestTheGuardsFirstLineSaysWhatTheRowsDo: that nothing holds back the horizon does not stand alone above sessions that keep others waiting.
func TestTheGuardsFirstLineSaysWhatTheRowsDo(t *testing.T) {
	t.Parallel()
	blocks, holds := guard.Holder{Kind: guard.Blocker, Blocks: 1}, guard.Holder{Kind: horizon.Snapshot}
	for want, f := range map[string]guard.Findings{
		"nothing holds back the horizon":                                               {},
		"nothing holds back the horizon; 1 session waits for locks":                    {Holders: []guard.Holder{blocks}, Blocked: 1},
		"horizon: 3 transactions old, held for at least 2s; 2 sessions wait for locks": {Holders: []guard.Holder{holds, blocks}, AgeXids: 3, Held: 2, Blocked: 2},
		"horizon: 1 transaction old, held for at least 2s":                             {Holders: []guard.Holder{holds}, AgeXids: 1, Held: 2},
	} {
		if got := guardHead(&f); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
