package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestDrainComparesWeirWithRiver: drain measures both engines, and prints one JSON object with their ratio.
func TestDrainComparesWeirWithRiver(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"drain", "--jobs", "3000", "--rounds", "1", "--json"}, &streams{out: &out, errs: &errs}); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var c comparison
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("the output is not a single JSON object: %v\n%s", err, out.String())
	}
	if len(c.Weir) != 1 || len(c.River) != 1 || c.Ratio.Median <= 0 || c.Weir[0].Jobs != 3000 || c.River[0].Jobs != 3000 || *c.Weir[0].DeadTuples != 0 {
		t.Errorf("%s", out.String())
	}
}

// TestDrainComparesUniqueJobs: both engines enqueue unique jobs, and find none of them a duplicate.
func TestDrainComparesUniqueJobs(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"drain", "--unique", "--jobs", "300", "--rounds", "2", "--json"}, &streams{out: &out, errs: &errs}); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var c comparison
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("the output is not a single JSON object: %v\n%s", err, out.String())
	}
	for _, r := range append(c.Weir, c.River...) {
		if r.Jobs != 300 || r.Enqueued == nil || r.Enqueued.Median <= 0 {
			t.Errorf("%s", out.String())
		}
	}
}

// TestPinnedComparesWeirWithRiver: pinned measures both engines before and during the pin.
func TestPinnedComparesWeirWithRiver(t *testing.T) {
	pgtest.Alone(t, "jobs must be done within a second before the pin, and within one during it")
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"pinned", "--rate", "200", "--seconds", "1", "--pin", "write", "--json"}, &streams{out: &out, errs: &errs}); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var c comparison
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("the output is not a single JSON object: %v\n%s", err, out.String())
	}
	if c.Weir[0].During.Jobs <= 0 || c.River[0].During.Jobs <= 0 {
		t.Errorf("%s", out.String())
	}
}

// TestLatencyComparesWeirWithRiver: latency measures both engines, and prints the ratio of their medians.
func TestLatencyComparesWeirWithRiver(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"latency", "--seconds", "1", "--rounds", "1", "--json"}, &streams{out: &out, errs: &errs}); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var c comparison
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatalf("the output is not a single JSON object: %v\n%s", err, out.String())
	}
	if *c.Weir[0].P50 <= 0 || *c.Weir[0].SQL.P50 <= 0 || *c.River[0].P50 <= 0 || c.River[0].SQL != nil {
		t.Errorf("%s", out.String())
	}
}
