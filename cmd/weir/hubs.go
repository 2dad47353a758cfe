package main

import (
	"context"
	"fmt"
	"strconv"
)

type hubsCmd struct{ jsonFlag }

func (hubsCmd) Help() string {
	return `Lists the hubs that have sent a heartbeat in the last five minutes. BEHIND is the number of ticks that a hub had not read at that time;
rates are those of the seconds before it.

Example:

    weir hubs`
}

func (c *hubsCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	hubs, err := client.Hubs(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(hubs))
	}
	if len(hubs) == 0 {
		fmt.Fprintln(s.err, "weir: no hubs: start one with weir serve")
		return nil
	}
	rows := make([][]string, len(hubs))
	for i, h := range hubs {
		rows[i] = []string{h.Name, h.Address, ago(&h.SeenAt), strconv.FormatInt(h.Tick, 10), strconv.FormatInt(h.Behind, 10), strconv.Itoa(h.Subscribers), strconv.Itoa(h.Channels), perSecond(h.MessagesPerSecond), perSecond(h.DeliveriesPerSecond)}
	}
	return table(s.out, []string{"NAME", "ADDRESS", "SEEN", "TICK", "BEHIND", "SUBSCRIBERS", "CHANNELS", "MESSAGES/S", "DELIVERIES/S"}, rows)
}

// perSecond is a rate, with a digit after the point if it is small.
func perSecond(rate float64) string {
	if rate > 0 && rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return strconv.FormatFloat(rate, 'f', 0, 64)
}
