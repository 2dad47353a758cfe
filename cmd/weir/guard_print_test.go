package main

import (
	"bytes"
	"io"
	"strings"
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

// TestAHolderTakesOneCell: what is not known of a session leaves no blank, and a snapshot that is newer than the newest transaction seen is not of a negative age.
func TestAHolderTakesOneCell(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := printFindings(&streams{out: &out, err: io.Discard}, &guard.Findings{Acting: true, Holders: []guard.Holder{
		{Server: "primary", Kind: horizon.Standby, Name: "walreceiver", Application: "walreceiver", Client: "127.0.0.1", AgeXids: -2},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if row, want := strings.Split(out.String(), "\n")[4], "primary  standby  walreceiver  walreceiver 127.0.0.1  -      0ms   0     -"; row != want {
		t.Errorf("%q, want %q", row, want)
	}
}

// TestWhatIsToBeDoneByHandIsSaid: with the name and the server, and no more of it than the guard says.
func TestWhatIsToBeDoneByHandIsSaid(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := printFindings(&streams{out: &out, err: io.Discard}, &guard.Findings{Acting: true, Holders: []guard.Holder{
		{Server: "primary", Kind: horizon.Slot, Name: "old", Step: guard.Report, Command: "start its consumer again"},
		{Server: "primary", Kind: horizon.Slot, Name: "young", Command: "wait"}, // nothing is due
	}})
	if err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.HasSuffix(text, "\nto do by hand:\n  old on primary: start its consumer again\n") {
		t.Errorf("%q", text)
	}
}
