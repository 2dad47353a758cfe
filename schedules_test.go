package weir_test

import (
	"bytes"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAScheduleOfAnEncryptedKindIsDeclaredOnce: args are encrypted differently each time; declaring the same schedule again changes nothing all the same,
// other args do, and nobody without the key reads them.
func TestAScheduleOfAnEncryptedKindIsDeclaredOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool).WithCodec(codec(t, "k1"))
	for i, c := range []struct {
		format  string
		changed bool
	}{{"secret", true}, {"secret", false}, {"other", true}, {"other", false}} {
		changed, err := client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{c.format}})
		if err != nil || changed != c.changed {
			t.Errorf("declaration %d: changed is %t (%v), want %t", i+1, changed, err, c.changed)
		}
		info, err := client.Schedule(t.Context(), "s")
		if err != nil || bytes.Contains(info.Args, []byte(c.format)) {
			t.Errorf("the args are %s, %v", info.Args, err)
		}
	}
}
