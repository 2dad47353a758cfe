package lab

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// ListenersSize is the size of scenario listeners.
type ListenersSize struct {
	Idle      []int // numbers of idle listeners next to the ping-pong; default 0, 10, 100, 1000
	Groups    []int // numbers of listeners that share a channel; default 2, 4, 8, 16
	Grouped   int   // number of listeners in all groups; default 32
	Notifiers []int // numbers of notifiers of one listener; default 1, 2, 4, …, 128
	Clients   []int // numbers of clients that listen and unlisten; default 1, 2, 4, …, 32, 100, 1000

	short []string // what was left out of the defaults, because the machine is small
}

// fill fills in the defaults, with fewer numbers on a machine with few cores.
func (s *ListenersSize) fill(cores int) {
	defaults := func(of *[]int, what string, all, few []int) {
		switch {
		case len(*of) > 0:
		case cores >= smallMachine:
			*of = all
		default:
			*of = slices.Clone(few)
			if len(few) == len(all) {
				break
			}
			s.short = append(s.short, fmt.Sprintf("of %s %s", what, list(slices.DeleteFunc(slices.Clone(all), func(n int) bool { return slices.Contains(few, n) }))))
		}
		slices.Sort(*of)
	}
	ten := []int{0, 10, 100, 1000}
	defaults(&s.Idle, "idle listeners", ten, ten)
	groups := []int{2, 4, 8, 16}
	defaults(&s.Groups, "groups", groups, groups)
	defaults(&s.Notifiers, "notifiers", []int{1, 2, 4, 8, 16, 32, 64, 128}, []int{1, 8, 32, 128})
	defaults(&s.Clients, "clients that listen", []int{1, 2, 4, 8, 16, 32, 100, 1000}, []int{1, 8, 32, 1000})
	if s.Grouped == 0 {
		s.Grouped = allGrouped
	}
}

// allGrouped is the default number of listeners in all groups: with those who notify them, so many that a server with its default of 100 connections has room.
const allGrouped = 32

// smallMachine is the number of cores from which on sweeps have all their numbers.
const smallMachine = 4

var listenersScenario = &scenario{
	title: "Every notification wakes every listener",
	about: "Two sessions play ping-pong by NOTIFY, next to idle sessions that listen on channels of their own, which nobody notifies. A " +
		"backend that notifies does not know which backends listen on which channels, so it signals every listening backend of the " +
		"database. Then groups of listeners share channels; many sessions notify one listener; clients LISTEN, LISTEN and NOTIFY, or LISTEN " +
		"and UNLISTEN, on one common channel or on one each; and one listener is in a transaction while the queue fills.",
	needs: func(c *Config) needs {
		c.Listeners.fill(runtime.NumCPU())
		size := c.Listeners
		clients := max(slices.Max(size.Idle)+2, slices.Max(size.Clients), slices.Max(size.Notifiers)+1, 2*size.Grouped+4)
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
	r.set("listeners of a channel", list(size.Groups))
	r.set("listeners in all groups", size.Grouped)
	r.set("notifiers of one listener", list(size.Notifiers))
	r.set("clients that listen", list(size.Clients))
	point, short := max(r.Duration/4, 200*time.Millisecond), max(r.Duration/10, 200*time.Millisecond)
	r.set("duration of each point", fmt.Sprintf("%s of the ping-pong, %s of others", point, short))
	if len(size.short) > 0 {
		r.note("This machine has fewer than %d cores, so the sweeps are shorter. Left out were: %s.", smallMachine, strings.Join(size.short, "; "))
	}
	posts := []post{{name: "PostgreSQL", kind: Collapse, listen: r.site.url, notify: r.site.url, send: `SELECT pg_notify($1, $2)`}}
	if r.site.weir {
		h, err := startHub(ctx, r.site)
		if err != nil {
			return err
		}
		defer h.stop()
		posts = append(posts, post{name: "hub", kind: Fix, listen: h.url, notify: r.site.url, send: `SELECT weir.publish($1, $2)`})
	}
	r.steps = len(posts) * (len(size.Idle) + len(size.Groups) + len(size.Notifiers) + len(listenOps)*2*len(size.Clients) + 1)
	if err := runPingPong(ctx, r, posts, point); err != nil {
		return err
	}
	for _, part := range []func(context.Context, *run, []post, time.Duration) error{runGroups, runNotifiers, runListening} {
		if err := part(ctx, r, posts, short); err != nil {
			return err
		}
	}
	if err := runTail(ctx, r, posts); err != nil {
		return err
	}
	r.result.Verdict = listenersVerdict(r.result, size)
	return nil
}

func listenersVerdict(r *Result, size ListenersSize) Verdict {
	idle := size.Idle
	few, many := idle[0], idle[len(idle)-1]
	first, last := r.Way(pingPongName("PostgreSQL", few)), r.Way(pingPongName("PostgreSQL", many))
	times := ratio(first.Rate, last.Rate)
	what := fmt.Sprintf("two sessions make %s round trips per second next to %d idle listeners, and %s next to %d: %s times fewer, although nobody "+
		"notifies the idle ones",
		Number(first.Rate), few, Number(last.Rate), many, Number(times))
	if times == 0 {
		what = tooShort
	}
	var fixes []string
	hubFirst, hubLast := r.Way(pingPongName("hub", few)), r.Way(pingPongName("hub", many))
	if hubFirst != nil && hubLast != nil {
		fixes = append(fixes, fmt.Sprintf("Through the hub they make %s and %s per second.", Number(hubFirst.Rate), Number(hubLast.Rate)))
		crossing := -1
		for _, n := range slices.Backward(idle) { // from there on the hub is faster at all numbers
			if pg, hub := r.Way(pingPongName("PostgreSQL", n)), r.Way(pingPongName("hub", n)); pg == nil || hub == nil || hub.Rate <= pg.Rate {
				break
			}
			crossing = n
		}
		if crossing >= 0 {
			fixes = append(fixes, fmt.Sprintf("The hub is faster from %d idle listeners on (of the numbers measured).", crossing))
		} else {
			fixes = append(fixes, fmt.Sprintf("PostgreSQL is faster next to %d.", many))
		}
	}
	fixes = append(fixes, compareText(r, size.Groups, groupsName, theRate, "Groups of %s listeners make %s rounds per second")...)
	fixes = append(fixes, compareText(r, size.Notifiers, notifiersName, theReceived, "%s sessions that notify one listener get %s notifications per second to it")...)
	most := size.Clients[len(size.Clients)-1]
	fixes = append(fixes, compareText(r, []int{size.Clients[0], most}, func(post string, n int) string { return listeningName(post, listenOps[1].name, ownChannels, n) }, theRate,
		"%s clients that LISTEN and NOTIFY on channels of their own do so %s times per second")...)
	return verdict(times, what, append(fixes, tailText(r)...))
}

func theRate(w *Way) float64 { return w.Rate }

// theReceived is what arrives, which may be less than what is sent.
func theReceived(w *Way) float64 { v, _ := w.Figure(oneReceived); return v }

// compareText names the rates of the ends of a sweep, at PostgreSQL and at the hub.
func compareText(r *Result, numbers []int, name func(post string, n int) string, rate func(*Way) float64, format string) []string {
	ends := []int{numbers[0], numbers[len(numbers)-1]}
	text := ""
	for _, post := range []string{"PostgreSQL", "hub"} {
		var rates, counts []string
		for _, n := range slices.Compact(slices.Clone(ends)) {
			if w := r.Way(name(post, n)); w != nil {
				counts, rates = append(counts, strconv.Itoa(n)), append(rates, Number(rate(w)))
			}
		}
		switch {
		case len(rates) == 0:
		case text == "":
			text = fmt.Sprintf(format, strings.Join(counts, " and "), strings.Join(rates, " and "))
		default:
			text += "; through the hub, " + strings.Join(rates, " and ")
		}
	}
	if text == "" {
		return nil
	}
	return []string{text + "."}
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
