package doctor_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// TestTheStatementsOfAFindingAreAListOfTheirOwn: with what the sessions do that run them; and every finding has one, though it may be empty.
func TestTheStatementsOfAFindingAreAListOfTheirOwn(t *testing.T) {
	t.Parallel()
	url := alone(t)
	holder := connect(t, url)
	execute(t, holder, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (1, 0)", "BEGIN", "UPDATE account SET n = 1 WHERE id = 1", "SELECT 'held'")
	for range 2 {
		stand(t, url, "UPDATE account SET n = 2 WHERE id = 1", "wait_event_type = 'Lock'")
	}
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.IdleBlocker, doctor.Warning)
	for _, want := range []doctor.Statement{{Text: "UPDATE account SET n = ? WHERE id = ?", Does: doctor.WaitsForIt, Share: 1}, {Text: "SELECT ?", Does: doctor.HoldsIt}} {
		if !slices.Contains(f.Statements, want) {
			t.Errorf("of %+v it lists %+v", want, f.Statements)
		}
	}
	var decoded struct {
		Findings []map[string]json.RawMessage `json:"findings"`
	}
	if err := json.Unmarshal([]byte(asJSON(t, r)), &decoded); err != nil {
		t.Fatal(err)
	}
	for _, f := range decoded.Findings {
		var statements []map[string]any
		if err := json.Unmarshal(f["statements"], &statements); err != nil || statements == nil {
			t.Errorf("%s has no list of statements (%v): %s", f["code"], err, f["statements"])
		}
	}
}

// TestFiguresOfWaitsAreRounded: as all others of a report are.
func TestFiguresOfWaitsAreRounded(t *testing.T) {
	t.Parallel()
	url := alone(t)
	stand(t, url, "SELECT pg_advisory_lock(1), pg_advisory_lock(2), pg_sleep(60)", "wait_event = 'PgSleep'")
	stand(t, url, "SELECT pg_advisory_lock(1)", "wait_event_type = 'Lock'")
	r := examine(t, url, examineFor)
	figures := []float64{r.Waits.Seconds, r.Cost.Milliseconds}
	for _, s := range r.Waits.Classes {
		figures = append(figures, s)
	}
	for _, e := range r.Waits.Top {
		figures = append(figures, e.Seconds)
	}
	if len(figures) < 4 {
		t.Errorf("no session waits: %+v", r.Waits)
	}
	for _, x := range figures {
		if x != math.Round(1000*x)/1000 {
			t.Errorf("%v is not rounded", x)
		}
	}
}
