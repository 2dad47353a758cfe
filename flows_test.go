package weir_test

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir"
)

// TestAMemberOfAnotherFlowIsRefused: a job whose options name another flow than the one that is created is refused, and nothing is created.
func TestAMemberOfAnotherFlowIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, err := r.client.Flow(t.Context(), weir.Flow{Name: "other", Open: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.client.Flow(t.Context(), weir.Flow{Name: "f"}, weir.NewJob{Args: Report{}}, weir.NewJob{Args: Report{}, Options: &weir.Options{Flow: other}})
	if err == nil || !strings.Contains(err.Error(), "job 2 of 2") || !strings.Contains(err.Error(), "Flow 1") {
		t.Errorf("the error is %v", err)
	}
	if all, err := r.client.Flows(t.Context(), 0, 0); err != nil || len(all) != 1 {
		t.Errorf("there are the flows %v, %v; want only the other one", all, err)
	}
}
