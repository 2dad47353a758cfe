package presence

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// alone is a Presence without other hubs, on all channels.
func alone() *Presence { return New(Config{On: func(string) bool { return true }}) }

// TestAnEventSaysWhoIsThereEvenIfAChangeWasUndone: between two changes that undo each other a client may have asked for the members, and would keep what it was told.
func TestAnEventSaysWhoIsThereEvenIfAChangeWasUndone(t *testing.T) {
	t.Parallel()
	p := alone()
	ada := []entry{{Channel: "c", User: "ada"}}
	gone := []entry{{Channel: "c", User: "ada", Left: true}}
	p.receive(frame{Hub: "h", N: 1, Seq: 1, Reset: true, Done: true})
	p.receive(frame{Hub: "h", N: 2, Seq: 2, Users: ada})
	if m := p.List("c", "", 10); len(m.Users) != 1 {
		t.Fatalf("the members are %v", m)
	}
	p.receive(frame{Hub: "h", N: 3, Seq: 3, Users: gone})
	if e := p.rooms["c"].event("c"); len(e.Left) != 1 || e.Left[0] != "ada" || e.Count != 0 {
		t.Errorf("after ada has come and gone, the event is %+v", e)
	}
	p.receive(frame{Hub: "h", N: 4, Seq: 4, Users: ada})
	p.rooms["c"].event("c")
	p.receive(frame{Hub: "h", N: 5, Seq: 5, Users: gone})
	if m := p.List("c", "", 10); len(m.Users) != 0 {
		t.Fatalf("the members are %v", m)
	}
	p.receive(frame{Hub: "h", N: 6, Seq: 6, Users: ada})
	if e := p.rooms["c"].event("c"); len(e.Joined) != 1 || e.Joined[0].User != "ada" || e.Count != 1 {
		t.Errorf("after ada has gone and come, the event is %+v", e)
	}
}

// TestCountedMembersLeaveWithAReset: a hub that counted members before its frames were lost, and counts none now, does not mention the channel.
func TestCountedMembersLeaveWithAReset(t *testing.T) {
	t.Parallel()
	p := alone()
	p.receive(frame{Hub: "h", N: 1, Seq: 1, Reset: true, Done: true, More: map[string]int{"c": 5, "d": 2}})
	p.receive(frame{Hub: "h", N: 3, Seq: 3, Reset: true, More: map[string]int{"d": 3}})
	p.receive(frame{Hub: "h", N: 4, Seq: 4, Done: true})
	if c, d := p.List("c", "", 0).Count, p.List("d", "", 0).Count; c != 0 || d != 3 {
		t.Errorf("%d and %d members are counted, want 0 and 3", c, d)
	}
}

// TestTheNewestTokenSaysWhatIsKnownOfAMember at all hubs, also if the member was there before.
func TestTheNewestTokenSaysWhatIsKnownOfAMember(t *testing.T) {
	t.Parallel()
	p, other := alone(), alone()
	info := func(of *Presence) string { return string(of.List("c", "", 1).Users[0].Info) }
	p.Enter("c", "ada", json.RawMessage(`"Ada"`))
	for _, f := range p.frames(false) {
		other.receive(f)
	}
	p.rooms["c"].event("c")
	p.Enter("c", "ada", json.RawMessage(`"Ada L."`))
	for _, f := range p.frames(false) {
		other.receive(f)
	}
	if info(p) != `"Ada L."` || info(other) != `"Ada L."` {
		t.Errorf("at her hub it is %s, at the other %s", info(p), info(other))
	}
	if e := p.rooms["c"].event("c"); len(e.Joined) != 1 || string(e.Joined[0].Info) != `"Ada L."` {
		t.Errorf("the event is %+v", e)
	}
}

// TestAUserIsListedOrCounted: never both, on a channel on which more users are than are listed, whichever of their connections began or ended first.
func TestAUserIsListedOrCounted(t *testing.T) {
	t.Parallel()
	p := alone()
	for i := range maxRoom {
		p.Enter("c", fmt.Sprint("user ", i), nil)
	}
	want := func(what string, count int, listed bool) {
		t.Helper()
		m := p.List("c", "user zoe", 1) // the first of those after that name
		if is := len(m.Users) == 1 && m.Users[0].User == "zoe"; m.Count != count || is != listed {
			t.Errorf("%s: %d members, zoe listed: %v, want %d, %v", what, m.Count, is, count, listed)
		}
	}
	p.Enter("c", "zoe", nil)
	p.Enter("c", "zoe", nil)
	want("two connections of one more user", maxRoom+1, false)
	p.Leave("c", "user 1")
	p.leaving[place{"c", "user 1"}] = time.Now().Add(-time.Second)
	p.settle()
	want("another has left", maxRoom, false)
	p.Enter("c", "zoe", nil)
	want("a third connection, for which there is room", maxRoom, true)
	p.Leave("c", "zoe")
	p.Leave("c", "zoe")
	if at, leaves := p.leaving[place{"c", "zoe"}]; leaves {
		t.Errorf("with one connection of three, the user leaves at %v", at)
	}
	p.Leave("c", "zoe")
	p.leaving[place{"c", "zoe"}] = time.Now().Add(-time.Second)
	p.settle()
	want("all her connections have ended", maxRoom-1, false)
	if len(p.counted) != 0 || len(p.more) != 0 {
		t.Errorf("still counted: %v, %v", p.counted, p.more)
	}
}
