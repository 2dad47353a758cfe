package lab

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// ListenersSize is the size of scenario listeners.
type ListenersSize struct {
	Idle    []int // numbers of idle listeners next to the ping-pong; default 0, 10, 100, 1000
	Clients []int // numbers of clients that listen and unlisten; default 1, 2, 4, 8, 16, 32
}

var listenersScenario = &scenario{
	title: "Every notification wakes every listener",
	about: "Two sessions play ping-pong by NOTIFY, next to idle sessions that listen on channels of their own, which nobody notifies. A " +
		"backend that notifies does not know which backends listen on which channels, so it signals every listening backend of the " +
		"database. Then clients LISTEN, LISTEN and NOTIFY, or LISTEN and UNLISTEN, on one common channel or on one each.",
	needs: func(c *Config) needs {
		if len(c.Listeners.Idle) == 0 {
			c.Listeners.Idle = []int{0, 10, 100, 1000}
		}
		if len(c.Listeners.Clients) == 0 {
			c.Listeners.Clients = []int{1, 2, 4, 8, 16, 32}
		}
		slices.Sort(c.Listeners.Idle)
		slices.Sort(c.Listeners.Clients)
		clients := max(slices.Max(c.Listeners.Idle)+2, slices.Max(c.Listeners.Clients))
		return needs{connections: clients + 20, weir: true}
	},
	run:  runListeners,
	load: loadListeners,
}

// post is where sessions listen and notify: PostgreSQL itself, or a hub.
type post struct {
	name   string // appended to the names of ways
	kind   Kind
	listen string // URL of the sessions that listen
	notify string // URL of the sessions that notify
	send   string // statement that notifies $1 with $2
}

func runListeners(ctx context.Context, r *run) error {
	size := r.Listeners
	r.set("idle listeners", list(size.Idle))
	r.set("clients that listen", list(size.Clients))
	point := max(r.Duration/5, 200*time.Millisecond)
	r.set("duration of each point", point)
	posts := []post{{name: "PostgreSQL", kind: Collapse, listen: r.site.url, notify: r.site.url, send: `SELECT pg_notify($1, $2)`}}
	if r.site.weir {
		h, err := startHub(ctx, r.site)
		if err != nil {
			return err
		}
		defer h.stop()
		posts = append(posts, post{name: "hub", kind: Fix, listen: h.url, notify: r.site.url, send: `SELECT weir.publish($1, $2)`})
	}
	r.steps = len(posts) * (len(size.Idle) + len(listenOps)*2*len(size.Clients))
	if err := runPingPong(ctx, r, posts, point); err != nil {
		return err
	}
	if err := runListening(ctx, r, posts, point); err != nil {
		return err
	}
	r.result.Verdict = listenersVerdict(r.result, size.Idle)
	return nil
}

func listenersVerdict(r *Result, idle []int) Verdict {
	few, many := idle[0], idle[len(idle)-1]
	first, last := r.Way(pingPongName("PostgreSQL", few)), r.Way(pingPongName("PostgreSQL", many))
	times := ratio(first.Rate, last.Rate)
	what := fmt.Sprintf("two sessions make %s round trips per second next to %d idle listeners, and %s next to %d: %s times fewer, although nobody "+
		"notifies the idle ones",
		Number(first.Rate), few, Number(last.Rate), many, Number(times))
	var fixes []string
	hubFirst, hubLast := r.Way(pingPongName("hub", few)), r.Way(pingPongName("hub", many))
	if hubFirst != nil && hubLast != nil {
		fixes = append(fixes, fmt.Sprintf("Through the hub they make %s and %s per second.", Number(hubFirst.Rate), Number(hubLast.Rate)))
		crossing := -1
		for _, n := range idle {
			if pg, hub := r.Way(pingPongName("PostgreSQL", n)), r.Way(pingPongName("hub", n)); pg != nil && hub != nil && hub.Rate > pg.Rate {
				crossing = n
				break
			}
		}
		if crossing >= 0 {
			fixes = append(fixes, fmt.Sprintf("The hub is faster from %d idle listeners on (of the numbers measured).", crossing))
		} else {
			fixes = append(fixes, "PostgreSQL is faster at all numbers measured.")
		}
	}
	return verdict(times, what, fixes)
}

func list(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ", ")
}

func loadListeners(ctx context.Context, s *site, c LoadConfig) error {
	idle := &sessions{}
	defer idle.close()
	if err := grow(ctx, idle, s.url, cmp.Or(c.Clients, 100)); err != nil {
		return err
	}
	p := post{listen: s.url, notify: s.url, send: `SELECT pg_notify($1, $2)`}
	return playPingPong(ctx, p, func(play func(until context.Context, m *load.Tally) error) error {
		c.Ready()
		return play(ctx, load.NewTally())
	})
}
