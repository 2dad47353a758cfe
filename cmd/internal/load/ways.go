package load

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// HubFigures are the results of a bench of the hub.
type HubFigures struct {
	Ways        []Way        `json:"ways"`
	Comparisons []Comparison `json:"comparisons,omitempty"`
	Crossings   []Crossing   `json:"crossings,omitempty"`
}

// Way is one variant that a bench of the hub measures, under one condition. Only fields that apply are set.
type Way struct {
	Way       string     `json:"way"`
	Under     string     `json:"under,omitempty"` // the condition
	Clients   int        `json:"clients,omitempty"`
	Idle      *int       `json:"idle_listeners,omitempty"`
	Unit      string     `json:"unit"` // of Done
	Done      int64      `json:"done"`
	PerSecond *Spread    `json:"per_second,omitempty"`
	P50       *float64   `json:"p50_ms,omitempty"`
	P99       *float64   `json:"p99_ms,omitempty"`
	Longest   *float64   `json:"longest_ms,omitempty"`
	Seconds   *Spread    `json:"seconds,omitempty"` // until the last client was served
	Refused   *int       `json:"refused,omitempty"`
	Each      *Footprint `json:"bytes_each,omitempty"`
	Cores     *Cores     `json:"cores,omitempty"`
}

// Footprint is the memory of one connection, in bytes.
type Footprint struct {
	RSS     int64 `json:"rss,omitempty"`         // of the hub's resident memory, after a while
	Trimmed int64 `json:"rss_trimmed,omitempty"` // after free memory was returned to the system
	Heap    int64 `json:"heap,omitempty"`        // of Go's runtime, at that time
	Stack   int64 `json:"stack,omitempty"`
	PSS     int64 `json:"pss,omitempty"` // of a PostgreSQL backend: its own memory and its share of shared memory
}

// Cores is the number of cores that each process kept busy.
type Cores struct {
	Hub      float64  `json:"hub"`
	Client   float64  `json:"client"`
	Postgres *float64 `json:"postgres,omitempty"` // only for a private server on Linux
	Standby  *float64 `json:"standby,omitempty"`  // if hubs read from one
}

// Comparison is the ratio of two ways in each round.
type Comparison struct {
	What  string `json:"what"`
	Under string `json:"under,omitempty"`
	Ratio Spread `json:"ratio"`
}

// Crossing is the number of idle listeners from which the hub is faster than PostgreSQL.
type Crossing struct {
	Way  string `json:"way"`
	Idle int    `json:"idle_listeners"`
}

// Compare adds the ratio of two ways' rates, round by round.
func (h *HubFigures) Compare(what, under string, rates, to []float64) Spread {
	ratios := make([]float64, min(len(rates), len(to)))
	for i := range ratios {
		ratios[i] = rates[i] / to[i]
	}
	c := Comparison{What: what, Under: under, Ratio: *SpreadOf(ratios)}
	h.Comparisons = append(h.Comparisons, c)
	return c.Ratio
}

// text writes the figures as text.
func (h *HubFigures) text(w io.Writer) {
	if h == nil {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, way := range h.Ways {
		fmt.Fprintf(t, "%s\t%s\n", strings.Join(way.name(), ", "), strings.Join(way.figures(), ", "))
	}
	_ = t.Flush() // the report's own writer returns the error again
	for _, c := range h.Comparisons {
		fmt.Fprintf(w, "%s: %.4g (%.4g to %.4g in %s)\n", join(c.What, c.Under), c.Ratio.Median, c.Ratio.Min, c.Ratio.Max, Plural(c.Ratio.Samples, "round"))
	}
	for _, c := range h.Crossings {
		fmt.Fprintf(w, "%s: faster than PostgreSQL from %d idle listeners on\n", c.Way, c.Idle)
	}
}

func join(what, under string) string {
	if under == "" {
		return what
	}
	return what + ", " + under
}

func (way *Way) name() []string {
	name := []string{join(way.Way, way.Under)}
	if way.Idle != nil {
		name = append(name, fmt.Sprintf("%d idle listeners", *way.Idle))
	}
	if way.Clients > 0 {
		name = append(name, fmt.Sprintf("%d clients", way.Clients))
	}
	return name
}

func (way *Way) figures() (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if s := way.PerSecond; s != nil {
		add("%s/s %.0f (%.0f to %.0f)", way.Unit, s.Median, s.Min, s.Max)
	}
	if s := way.Seconds; s != nil {
		add("all %d %s in %.2f s (%.2f to %.2f)", way.Done, way.Unit, s.Median, s.Min, s.Max)
	}
	for _, p := range []struct {
		what  string
		value *float64
	}{{"p50", way.P50}, {"p99", way.P99}, {"longest", way.Longest}} {
		if p.value != nil {
			add("%s %.2f ms", p.what, *p.value)
		}
	}
	if way.Refused != nil {
		add("%d refused", *way.Refused)
	}
	if e := way.Each; e != nil && e.PSS > 0 {
		add("%d bytes each (PSS)", e.PSS)
	} else if e != nil {
		add("bytes each: RSS %d, trimmed %d, Go's heap %d and stacks %d", e.RSS, e.Trimmed, e.Heap, e.Stack)
	}
	if c := way.Cores; c != nil {
		add("cores: hub %.2f, clients %.2f", c.Hub, c.Client)
		if c.Postgres != nil {
			add("PostgreSQL %.2f", *c.Postgres)
		}
		if c.Standby != nil {
			add("standby %.2f", *c.Standby)
		}
	}
	return all
}
