package horizon_test

import (
	"testing"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

func at(x horizon.XID) *horizon.XID { return &x }

// TestWhatAHolderHolds: each kind of holder affects the tables that ComputeXidHorizons says.
func TestWhatAHolderHolds(t *testing.T) {
	t.Parallel()
	session := func(database string, xid, xmin *horizon.XID) *horizon.View {
		return &horizon.View{Database: "shop", Next: 1000, Sessions: []*horizon.Session{
			{PID: 7, Backend: "client backend", Database: database, XID: xid, Xmin: xmin},
		}}
	}
	backend := func(kind, database, application string) *horizon.View {
		v := session(database, nil, at(500))
		v.Sessions[0].Backend, v.Sessions[0].Application = kind, application
		return v
	}
	slot := func(s horizon.ReplicationSlot) *horizon.View {
		return &horizon.View{Database: "shop", Next: 1000, Slots: []horizon.ReplicationSlot{s}}
	}
	standby := session("elsewhere", nil, at(500))
	standby.Standby = true
	for name, c := range map[string]struct {
		view *horizon.View
		want horizon.Holder
	}{
		"a snapshot here":            {session("shop", nil, at(500)), horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"a snapshot elsewhere":       {session("elsewhere", nil, at(500)), horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Elsewhere}},
		"one on a standby":           {standby, horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"a transaction here":         {session("shop", at(600), nil), horizon.Holder{Kind: horizon.Transaction, By: "xid", Hold: 600, Scope: horizon.Here}},
		"one with an older snapshot": {session("shop", at(600), at(500)), horizon.Holder{Kind: horizon.Transaction, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"one with a later snapshot":  {session("shop", at(600), at(700)), horizon.Holder{Kind: horizon.Transaction, By: "xid", Hold: 600, Scope: horizon.Here}},
		"a transaction elsewhere, whose snapshot counts only there": {session("elsewhere", at(600), at(500)),
			horizon.Holder{Kind: horizon.Transaction, By: "xid", Hold: 600, Scope: horizon.Through}},
		"a process of no database": {backend("background writer", "", ""), horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"an analysing autovacuum":  {backend("autovacuum worker", "shop", ""), horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"a standby's walsender":    {backend("walsender", "", "reports"), horizon.Holder{Kind: horizon.Standby, By: "feedback", Hold: 500, Scope: horizon.Here}},
		"a walsender that copies a table for logical replication": {backend("walsender", "shop", "sync"),
			horizon.Holder{Kind: horizon.Snapshot, By: "snapshot", Hold: 500, Scope: horizon.Here}},
		"a prepared transaction here": {&horizon.View{Database: "shop", Prepared: []horizon.PreparedXact{{GID: "g", XID: 500, Database: "shop"}}},
			horizon.Holder{Kind: horizon.Prepared, By: "xid", Hold: 500, Scope: horizon.Here}},
		"and elsewhere": {&horizon.View{Database: "shop", Prepared: []horizon.PreparedXact{{GID: "g", XID: 500, Database: "elsewhere"}}},
			horizon.Holder{Kind: horizon.Prepared, By: "xid", Hold: 500, Scope: horizon.Through}},
		"an unused slot": {slot(horizon.ReplicationSlot{Name: "s", Xmin: at(500), CatalogXmin: at(400)}),
			horizon.Holder{Kind: horizon.Slot, By: "slot", Hold: 500, Scope: horizon.Here}},
		"a standby's slot": {slot(horizon.ReplicationSlot{Name: "s", Active: true, Xmin: at(500)}),
			horizon.Holder{Kind: horizon.Standby, By: "feedback", Hold: 500, Scope: horizon.Here}},
		"a logical slot": {slot(horizon.ReplicationSlot{Name: "s", Logical: true, Active: true, CatalogXmin: at(500)}),
			horizon.Holder{Kind: horizon.Slot, By: "slot", Hold: 500, Scope: horizon.Catalogs}},
	} {
		list := c.view.Holders()
		if len(list) != 1 {
			t.Errorf("%s: %d holders, want 1", name, len(list))
			continue
		}
		if h := list[0]; h.Kind != c.want.Kind || h.By != c.want.By || h.Hold != c.want.Hold || h.Scope != c.want.Scope {
			t.Errorf("%s: %s by %s from %d, %s; want %s by %s from %d, %s", name, h.Kind, h.By, h.Hold, h.Scope, c.want.Kind, c.want.By, c.want.Hold, c.want.Scope)
		}
	}
	for _, observer := range []string{"weir doctor", "weir guard"} {
		if list := backend("client backend", "shop", observer).Holders(); len(list) != 0 {
			t.Errorf("a session of %s is named as a holder", observer)
		}
	}
}

// TestTheOldestHoldComesFirst: holders are sorted by age, even when transaction ids wrap around, and a transaction comes before the snapshots that
// are as old because of it.
func TestTheOldestHoldComesFirst(t *testing.T) {
	t.Parallel()
	v := &horizon.View{Database: "shop", Next: 5, Sessions: []*horizon.Session{
		{PID: 1, Database: "shop", Xmin: at(3)},
		{PID: 2, Database: "shop", Xmin: at(4_294_967_000)},
		{PID: 3, Database: "shop", XID: at(4_294_967_000)},
	}}
	var pids []int32
	for _, h := range v.Holders() {
		pids = append(pids, h.PID)
	}
	if len(pids) != 3 || pids[0] != 3 || pids[1] != 2 || pids[2] != 1 {
		t.Errorf("the order is %v, want 3, 2, 1", pids)
	}
	if got := v.Next.Since(4_294_967_000); got != 301 {
		t.Errorf("%d transactions since, want 301", got)
	}
}
