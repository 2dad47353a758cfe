package main

import (
	"reflect"
	"testing"
	"time"
)

// TestEveryOptionOfUniqueJobsHasAFlag: weir enqueue passes each of them on.
func TestEveryOptionOfUniqueJobsHasAFlag(t *testing.T) {
	t.Parallel()
	c := enqueueCmd{UniqueKey: "x", Fields: []string{"x"}, Until: "started", Within: time.Hour, Replace: true, Wait: true}
	u := reflect.ValueOf(*c.unique())
	for i := range u.NumField() {
		if u.Field(i).IsZero() {
			t.Errorf("weir enqueue has no flag for Unique.%s", u.Type().Field(i).Name)
		}
	}
	if only := (&enqueueCmd{Wait: true}).unique(); only == nil || !only.Wait {
		t.Error("--wait does not imply --unique")
	}
}
