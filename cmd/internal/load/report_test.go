package load

import (
	"encoding/json"
	"math"
	"testing"
)

// TestAReportWithARatioToZeroIsJSON: an engine that did nothing in its time is a result too.
func TestAReportWithARatioToZeroIsJSON(t *testing.T) {
	t.Parallel()
	r := Report{Bench: "pinned", Ratio: SpreadOf([]float64{2, math.Inf(1)})}
	r.AtLeast("ratio", math.Inf(1), 0.9)
	r.AtLeast("ratio of nothing to nothing", math.NaN(), 0.9)
	r.AtLeast("plain", 3, 4)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Ratio   map[string]*float64
		Targets []map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Ratio["max"] != nil || got.Ratio["min"] == nil || *got.Ratio["min"] != 2 || *got.Ratio["samples"] != 2 {
		t.Errorf("the ratio is %s", text)
	}
	for i, want := range []map[string]any{
		{"what": "ratio", "got": nil, "want": 0.9, "most": false, "met": true},
		{"what": "ratio of nothing to nothing", "got": nil, "want": 0.9, "most": false, "met": false},
		{"what": "plain", "got": 3.0, "want": 4.0, "most": false, "met": false},
	} {
		for key, value := range want {
			if got.Targets[i][key] != value {
				t.Errorf("target %d: %s is %v, want %v: %s", i, key, got.Targets[i][key], value, text)
			}
		}
	}
}
