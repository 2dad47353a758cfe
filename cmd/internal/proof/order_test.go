package proof

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestRetriesAndCancellationsInOneOrderDoNotDeadlock: of two transactions that retry or cancel the same jobs in ascending order, the second
// waits for the first, and succeeds; in different orders, one of them is ended by the server and can be repeated.
func TestRetriesAndCancellationsInOneOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"retry", "cancel"} {
		for _, ascending := range []bool{true, false} {
			url := pgtest.Database(t)
			conn := connect(t, url)
			ids := enqueueN(t, conn, "q", 2)
			if operation == "retry" {
				worker := startWorker(t, conn, "q")
				mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 2))
			}
			change := fmt.Sprintf(`SELECT weir.%s($1)`, operation)
			first, second := connect(t, url), connect(t, url)
			exec(t, first, `BEGIN`)
			exec(t, second, `BEGIN`)
			order := []int64{ids[1], ids[0]}
			if ascending {
				order = ids
			}
			exec(t, first, change, ids[0])
			if !ascending {
				exec(t, second, change, order[0])
			}
			ended := make(chan error, 1)
			go func() {
				var err error
				for i, id := range order {
					if i == 0 && !ascending {
						continue
					}
					if _, err = second.Exec(context.Background(), change, id); err != nil {
						break
					}
				}
				_, _ = second.Exec(context.Background(), `COMMIT`)
				ended <- err
			}()
			until(t, "the second transaction waits", func() bool {
				return value[bool](t, conn, `SELECT $1 = ANY (SELECT pid FROM pg_locks WHERE NOT granted)`, second.PgConn().PID())
			})
			_, err := first.Exec(t.Context(), change, ids[1])
			exec(t, first, `COMMIT`)
			other := pgtest.Receive(t, ended, "the second transaction has ended")
			if deadlocked := sqlstate(err) == "40P01" || sqlstate(other) == "40P01"; deadlocked == ascending {
				t.Errorf("%s, ascending: %v: the transactions ended with %v and %v", operation, ascending, err, other)
			}
		}
	}
}
