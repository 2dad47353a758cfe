package lab

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestARunUnderForeignLoadSaysSo(t *testing.T) {
	t.Parallel()
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		seen   Conditions
		rested bool
		want   string // part of the reason; "": undisturbed
	}{
		{Conditions{}, true, ""},
		{Conditions{LoadBefore: f(3.9), LoadDuring: f(60), Others: f(0.3), OthersMost: f(1.9)}, true, ""}, // the load during is the lab's own
		{Conditions{LoadBefore: f(4.1)}, true, "load average was 4.1 before it started, on 4 cores"},
		{Conditions{LoadBefore: f(4.1), Others: f(0), OthersMost: f(0.1)}, true, ""}, // what ran before has ended
		{Conditions{LoadBefore: f(4.1)}, false, ""},                                  // it is that of the scenario before
		{Conditions{LoadBefore: f(0.1), Others: f(0.5), OthersMost: f(0.6)}, true, "other programs used 0.5 of 4 cores meanwhile"},
		{Conditions{Others: f(0.1), OthersMost: f(2.5)}, false, "2.5 of 4 cores for some seconds"},
	} {
		got := c.seen
		got.judge(4, c.rested)
		if got.Disturbed != (c.want != "") || !strings.Contains(got.Why, c.want) {
			t.Errorf("%+v: disturbed is %v, because %q", c.seen, got.Disturbed, got.Why)
		}
	}
}

// A child's time counts as the lab's own while it runs and after it has ended: private servers are children.
func TestTheLabsServersAreNotForeign(t *testing.T) {
	t.Parallel()
	before, ok := ownUserTicks()
	if !ok {
		t.Skip("this system has no /proc")
	}
	child := exec.Command("sh", "-c", "while :; do :; done")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill() // it never ends by itself
		_ = child.Wait()
	}()
	const enough = 50
	grown := func() bool {
		now, ok := ownUserTicks()
		return ok && now-before >= enough
	}
	pgtest.Until(t, "a child's time counts", grown)
	_ = child.Process.Kill()
	_ = child.Wait()
	if !grown() {
		t.Error("the time of a child that has ended does not count")
	}
}
