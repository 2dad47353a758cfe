package load

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is the result of a bench. Only fields that apply are set.
type Report struct {
	Bench     string    `json:"bench"`
	Engine    string    `json:"engine"`
	StartedAt time.Time `json:"started_at"`
	Note      string    `json:"note,omitempty"` // what was done exactly
	*Figures
	Before     *Figures     `json:"before,omitempty"`   // the pin
	During     *Figures     `json:"during,omitempty"`   // the pin
	Plain      *Figures     `json:"plain,omitempty"`    // plain INSERTs of the same row
	Features   []Feature    `json:"features,omitempty"` // beside plain jobs, of which the figures are
	Over       []Over       `json:"over_servers,omitempty"`
	Phases     []Phase      `json:"phases,omitempty"`
	SQL        *Figures     `json:"sql,omitempty"`   // jobs enqueued by plain SQL
	Ratio      *Spread      `json:"ratio,omitempty"` // of enqueues to plain INSERTs; of during to before
	Idle       *Idle        `json:"idle,omitempty"`
	Shares     *Shares      `json:"shares,omitempty"`
	Fleet      *Fleet       `json:"fleet,omitempty"`
	Memory     *Memory      `json:"memory,omitempty"`
	Hub        *HubFigures  `json:"hub,omitempty"`
	Operations []Operation  `json:"operations,omitempty"` // on a log that has grown
	Chords     []Chord      `json:"chords,omitempty"`
	DAG        *DAG         `json:"dag,omitempty"`
	Tree       *Tree        `json:"tree,omitempty"`
	Targets    []Target     `json:"targets,omitempty"`
	Server     ServerFacts  `json:"server"`
	Machine    MachineFacts `json:"machine"`
}

// Figures of one phase.
type Figures struct {
	Jobs           int64    `json:"jobs"`
	Seconds        float64  `json:"seconds"`
	JobsPerSecond  float64  `json:"jobs_per_second"`
	Rate           *Spread  `json:"rate,omitempty"`                // jobs per second, per sample or round
	Enqueued       *Spread  `json:"enqueued_per_second,omitempty"` // in bulk, before
	WALBytesPerJob *float64 `json:"wal_bytes_per_job,omitempty"`
	P50            *float64 `json:"p50_ms,omitempty"`
	P99            *float64 `json:"p99_ms,omitempty"`
	ClaimP50       *float64 `json:"claim_p50_ms,omitempty"`
	ClaimP99       *float64 `json:"claim_p99_ms,omitempty"`
	DeadTuples     *int64   `json:"dead_tuples,omitempty"`
	Offered        float64  `json:"offered_jobs_per_second,omitempty"` // by the producer

	ServerCPUPerJob *float64 `json:"server_cpu_us_per_job,omitempty"` // without enqueueing; only for a private server on Linux
	WorkerCPUPerJob *float64 `json:"worker_cpu_us_per_job,omitempty"` // of worker processes
}

// Feature is what jobs with a feature cost beside plain ones, round by round.
type Feature struct {
	What string `json:"what"`
	*Figures
	Plain *Figures `json:"plain"`
	Ratio *Spread  `json:"ratio"`                          // of jobs per second to those of plain jobs
	WAL   *Spread  `json:"wal_bytes_on_top"`               // per job
	CPU   *Spread  `json:"server_cpu_us_on_top,omitempty"` // per job
}

// Over is what one process does over so many servers.
type Over struct {
	Servers int `json:"servers"`
	*Figures
	Connections int     `json:"connections"` // of the process, to all servers together, when the last jobs ran; the most of the rounds
	Ratio       *Spread `json:"ratio"`       // of jobs per second to those of one server, round by round
}

// Phase is a part of a bench in which some jobs wait while others come.
type Phase struct {
	What   string   `json:"what"`
	Waits  *Times   `json:"wait_ms"`              // from enqueueing a job to its start
	Claims *Times   `json:"claim_ms"`             // as the worker sees them
	Cores  *float64 `json:"cores_used,omitempty"` // by this process and the server; only for a private server on Linux
}

// Times are times in milliseconds.
type Times struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// Spread is the spread of repeated measurements.
type Spread struct {
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Samples int     `json:"samples"`
}

// MarshalJSON writes null for a ratio to zero: JSON has no infinity.
func (s Spread) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Median  *float64 `json:"median"`
		Min     *float64 `json:"min"`
		Max     *float64 `json:"max"`
		Samples int      `json:"samples"`
	}{finite(s.Median), finite(s.Min), finite(s.Max), s.Samples})
}

// finite returns nil for infinities, and for what is not a number.
func finite(f float64) *float64 {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return nil
	}
	return &f
}

// Idle is the CPU time of an idle worker, in percent of one core.
type Idle struct {
	Seconds float64  `json:"seconds"`
	Queues  int      `json:"queues"`
	Worker  float64  `json:"worker_cpu_percent"`
	Server  *float64 `json:"server_cpu_percent,omitempty"` // all processes of the server; only for a private server on Linux
}

// Shares is the distribution of jobs over workers.
type Shares struct {
	Workers  int     `json:"workers"`
	Least    float64 `json:"least"` // of all jobs
	Greatest float64 `json:"greatest"`
}

// Fleet is what many workers cost that share a limit.
type Fleet struct {
	Workers   int        `json:"workers"`
	Limit     int        `json:"limit"`
	Idle      *FleetCost `json:"idle"`
	Saturated *FleetCost `json:"saturated"`
	Refill    *Times     `json:"refill_ms"` // from the end of a job to the start of the next one
	Flowing   *FleetCost `json:"flowing"`
	Used      float64    `json:"used_slots"` // the share of the slots' time in which jobs ran while they flowed
}

// FleetCost is what a fleet costs in a second.
type FleetCost struct {
	What         string   `json:"what"`
	Seconds      float64  `json:"seconds"`
	Jobs         int64    `json:"jobs,omitempty"`
	XIDs         float64  `json:"xids_per_second"`
	Transactions float64  `json:"transactions_per_second"`
	WAL          float64  `json:"wal_bytes_per_second"`
	Workers      *float64 `json:"workers_cpu_percent,omitempty"`
	Server       *float64 `json:"server_cpu_percent,omitempty"` // only for a private server on Linux
}

// Memory of this process.
type Memory struct {
	Running int   `json:"running_jobs"`
	RSS     int64 `json:"rss_bytes"`
}

// Operation is the time of an operation on a log that has grown.
type Operation struct {
	What   string  `json:"what"`
	Times  int     `json:"times"`
	Median float64 `json:"median_ms"`
	Max    float64 `json:"max_ms"`
}

// Target is a promised bound of a figure.
type Target struct {
	What string  `json:"what"`
	Got  float64 `json:"got"`
	Want float64 `json:"want"`
	Most bool    `json:"most"` // Want is an upper bound
	Met  bool    `json:"met"`
}

// MarshalJSON writes null for a ratio to zero, as that of a Spread does.
func (t Target) MarshalJSON() ([]byte, error) {
	type plain Target // without this method
	return json.Marshal(struct {
		plain
		Got *float64 `json:"got"` // in place of the one in plain
	}{plain(t), finite(t.Got)})
}

// ServerFacts describes what affects the figures of the server.
type ServerFacts struct {
	Version  string            `json:"version"`
	Private  bool              `json:"private"`
	Settings map[string]string `json:"settings"`
}

// MachineFacts describes what affects the figures of the machine that runs the bench.
type MachineFacts struct {
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Load  string `json:"load_average,omitempty"` // at the start; other load makes figures worse
}

func (r *Report) AtLeast(what string, got, want float64) {
	r.Targets = append(r.Targets, Target{What: what, Got: got, Want: want, Met: got >= want})
}

func (r *Report) AtMost(what string, got, want float64) {
	r.Targets = append(r.Targets, Target{What: what, Got: got, Want: want, Most: true, Met: got <= want})
}

// SpreadOf summarizes samples; nil if there are none.
func SpreadOf(samples []float64) *Spread {
	if len(samples) == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(samples))
	median := s[len(s)/2]
	if len(s)%2 == 0 {
		median = (median + s[len(s)/2-1]) / 2
	}
	return &Spread{Median: median, Min: s[0], Max: s[len(s)-1], Samples: len(s)}
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s %s on PostgreSQL %s, %d cores\n", r.Engine, r.Bench, r.Server.Version, r.Machine.Cores)
	if r.Note != "" {
		fmt.Fprintln(t, r.Note)
	}
	r.Figures.text(t, "")
	r.Before.text(t, "before: ")
	r.During.text(t, "during: ")
	r.Plain.text(t, "plain INSERT: ")
	r.SQL.text(t, "enqueued by SQL: ")
	featuresText(t, r.Features)
	for _, o := range r.Over {
		o.Figures.text(t, fmt.Sprintf("over %s: ", Plural(o.Servers, "server")))
		fmt.Fprintf(t, "over %s: connections\t%d\tof the process, to all of them\n", Plural(o.Servers, "server"), o.Connections)
		fmt.Fprintf(t, "over %s: times as many as over one\t%.2f\t%.2f to %.2f\n", Plural(o.Servers, "server"), o.Ratio.Median, o.Ratio.Min, o.Ratio.Max)
	}
	phasesText(t, r.Phases)
	if r.Ratio != nil {
		fmt.Fprintf(t, "ratio\t%.2f\t%.2f to %.2f in %d samples\n", r.Ratio.Median, r.Ratio.Min, r.Ratio.Max, r.Ratio.Samples)
	}
	if i := r.Idle; i != nil {
		fmt.Fprintf(t, "CPU of an idle worker of %d queues\t%.2f%%\n", i.Queues, i.Worker)
		if i.Server != nil {
			fmt.Fprintf(t, "CPU of its server\t%.2f%%\n", *i.Server)
		}
	}
	if s := r.Shares; s != nil {
		fmt.Fprintf(t, "share of one of %d workers\t%.2f%% to %.2f%%\n", s.Workers, 100*s.Least, 100*s.Greatest)
	}
	r.Fleet.text(t)
	if m := r.Memory; m != nil {
		fmt.Fprintf(t, "memory with %d jobs running\t%.1f MB\n", m.Running, float64(m.RSS)/1e6)
	}
	r.Hub.text(t)
	chordsText(t, r.Chords)
	r.DAG.text(t)
	r.Tree.text(t)
	for _, o := range r.Operations {
		fmt.Fprintf(t, "ms, %s\t%.2f\tat most %.2f in %d\n", o.What, o.Median, o.Max, o.Times)
	}
	for _, g := range r.Targets {
		bound, verdict := "at least", "met"
		if g.Most {
			bound = "at most"
		}
		if !g.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "target: %s %s %g\t%.4g\t%s\n", g.What, bound, g.Want, g.Got, verdict)
	}
	return t.Flush()
}

func (f *Figures) text(w io.Writer, phase string) {
	if f == nil {
		return
	}
	fmt.Fprintf(w, "%sjobs\t%d\tin %.1f s\n", phase, f.Jobs, f.Seconds)
	fmt.Fprintf(w, "%sjobs per second\t%.0f", phase, f.JobsPerSecond)
	if f.Rate != nil && f.Rate.Samples > 1 {
		fmt.Fprintf(w, "\tmedian %.0f, %.0f to %.0f in %d samples", f.Rate.Median, f.Rate.Min, f.Rate.Max, f.Rate.Samples)
	}
	fmt.Fprintln(w)
	if f.Enqueued != nil {
		fmt.Fprintf(w, "%senqueued per second\t%.0f\n", phase, f.Enqueued.Median)
	}
	for _, line := range []struct {
		what  string
		value *float64
	}{
		{"ms, p50", f.P50}, {"ms, p99", f.P99}, {"claim ms, p50", f.ClaimP50}, {"claim ms, p99", f.ClaimP99},
		{"WAL bytes per job", f.WALBytesPerJob}, {"server's CPU, µs per job", f.ServerCPUPerJob},
		{"workers' CPU, µs per job", f.WorkerCPUPerJob},
	} {
		if line.value != nil {
			fmt.Fprintf(w, "%s%s\t%.2f\n", phase, line.what, *line.value)
		}
	}
	if f.DeadTuples != nil {
		fmt.Fprintf(w, "%sdead tuples\t%d\n", phase, *f.DeadTuples)
	}
}
