package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	// Hubs send a heartbeat every few seconds.
	hubSilent = 30 * time.Second
	// A tick is cut every few milliseconds under traffic.
	hubBehind    = 200
	hubFarBehind = 2000
)

// checkHubs detects hubs that have not dispatched published messages.
func checkHubs(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir || !l.server.hubs {
		return absent, nil
	}
	type row struct {
		Hub, Address string
		SeenAt       time.Time
		Silent       float64
		Behind       int64
		Subscribers  int32
	}
	hubs, err := list[row](ctx, l.session, `
SELECT h.hub, h.address, h.seen_at, extract(epoch FROM clock_timestamp() - h.seen_at)::float8, coalesce(h.behind, 0), h.subscribers
FROM weir.hubs() h ORDER BY h.behind DESC NULLS LAST, h.seen_at LIMIT 1000`)
	if r, ok, err := unless(err, "Weir's hubs", "the role weir_operate"); !ok {
		return r, err
	}
	var f Finding
	severity := Info
	alive := 0
	for _, h := range hubs {
		silent := seconds(h.Silent)
		fact := ""
		switch {
		case silent >= hubSilent:
			// A stopped hub and a dead one look the same. Its subscribers are at another hub, or waiting.
			fact = fmt.Sprintf("hub %s at %s has sent no heartbeat for %s; it had %s", h.Hub, h.Address, span(silent), many(int64(h.Subscribers), "subscriber"))
		case h.Behind >= hubBehind:
			severity = worse(severity, Warning)
			if h.Behind >= hubFarBehind {
				severity = Critical
			}
			fact = fmt.Sprintf("hub %s at %s is %s behind, with %s", h.Hub, h.Address, many(h.Behind, "tick"), many(int64(h.Subscribers), "subscriber"))
		}
		if silent < hubSilent {
			alive++
		}
		if fact == "" {
			continue
		}
		if f.Code == "" {
			f = l.finding(HubLagging, severity, 0, 1)
			f.Samples = 1
		}
		f.add("SELECT * FROM weir.hubs()", "%s", fact)
	}
	if f.Code == "" {
		return healthy("Weir's hubs: %d alive, none lagging.", alive)
	}
	f.Severity = severity
	if alive == 0 && severity == Info {
		f.Severity = Warning
	}
	f.Summary = capitalize(f.Evidence[0].Fact) + "."
	f.Now = "Check that the hub's process runs and has a CPU to run on; its subscribers can resume at another hub from the same position."
	f.ForGood = "Run two or more hubs, with fewer subscribers each."
	return found(f)
}

func worse(a, b Severity) Severity {
	if b.rank() > a.rank() {
		return b
	}
	return a
}
