package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
)

// replays is a database whose messages are replayed into another one.
type replays struct {
	url      string
	from, to *pgxpool.Pool
	file     string
}

func newReplays(t *testing.T) *replays {
	t.Helper()
	r := &replays{url: pgtest.Database(t), file: filepath.Join(t.TempDir(), "relay.toml")}
	to := pgtest.Database(t)
	r.from, r.to = pgtest.Pool(t, r.url), pgtest.Pool(t, to)
	if err := os.WriteFile(r.file, fmt.Appendf(nil, "[relay.orders]\nroute = [{ channels = \"orders\" }]\n[relay.orders.database]\nurl = %q\n", to), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// publish publishes messages, each in a tick of its own, and returns a time after the last.
func (r *replays) publish(t *testing.T, payloads ...string) (after time.Time) {
	t.Helper()
	for _, payload := range payloads {
		for _, sql := range []string{`SELECT weir.publish('orders', '` + payload + `'), weir.publish('others', 'x')`, `SELECT seqs FROM weir._await_tick(weir.newest_tick())`} {
			if _, err := r.from.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.from.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&after); err != nil {
		t.Fatal(err)
	}
	return after
}

// replay runs the command, and returns what has arrived since the last one.
func (r *replays) replay(t *testing.T, as, since string) (code int, said string, arrived []string) {
	t.Helper()
	var had int64
	if err := r.to.QueryRow(t.Context(), `SELECT coalesce(max(id), 0) FROM weir.message`).Scan(&had); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = run([]string{"relay", "replay", "orders", "--file", r.file, "--since", since, "--as", as, "--database", r.url}, strings.NewReader(""), &out, &errs)
	if err := r.to.QueryRow(t.Context(), `SELECT coalesce(array_agg(encode(payload, 'escape') ORDER BY id), '{}') FROM weir.message WHERE id > $1`, had).Scan(&arrived); err != nil {
		t.Fatal(err)
	}
	return code, out.String() + errs.String(), arrived
}

// TestAReplayBeginsWithATimeInsideTheLog: with what came after it, and all of that; as a time, and as how long ago that is.
func TestAReplayBeginsWithATimeInsideTheLog(t *testing.T) {
	t.Parallel()
	r := newReplays(t)
	inside := r.publish(t, "1", "2", "3")
	r.publish(t, "4", "5")
	if _, err := r.from.Exec(t.Context(), `UPDATE weir.tick SET at = at - interval '1 hour' WHERE at < $1`, inside); err != nil {
		t.Fatal(err)
	}
	for as, c := range map[string]struct {
		since string
		want  []string
	}{
		"time":     {inside.Format(time.RFC3339Nano), []string{"4", "5"}},
		"duration": {"30m", []string{"4", "5"}},
		"longer":   {"2h", []string{"1", "2", "3", "4", "5"}},
		"oldest":   {"oldest", []string{"1", "2", "3", "4", "5"}},
		"just-now": {"0s", nil},
	} {
		code, said, arrived := r.replay(t, as, c.since)
		if code != exitOK || !slices.Equal(arrived, c.want) || !strings.Contains(said, plural(len(c.want), "message")+" passed on up to ") {
			t.Errorf("--since %s: exit code %d, %v has arrived, want %v: %s", c.since, code, arrived, c.want, said)
		}
	}
}

// truncate truncates what was published until now, and publishes what is kept.
func (r *replays) truncate(t *testing.T, kept string) {
	t.Helper()
	for _, sql := range []string{`UPDATE weir.segment SET at = at - interval '2 hours'`, `SELECT weir._rotate_messages()`} {
		if _, err := r.from.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	r.publish(t, kept)
	var reclaimed bool
	if err := r.from.QueryRow(t.Context(), `SELECT weir._reclaim_messages(1, '0')`).Scan(&reclaimed); err != nil || !reclaimed {
		t.Fatalf("reclaimed: %t, %v", reclaimed, err)
	}
}

// TestAReplayOfWhatIsNotKeptFailsWhenTheRestIsPassedOn: with the exit code of failures, not that of wrong usage.
func TestAReplayOfWhatIsNotKeptFailsWhenTheRestIsPassedOn(t *testing.T) {
	t.Parallel()
	r := newReplays(t)
	r.publish(t, "gone", "gone as well")
	var early string
	if err := r.from.QueryRow(t.Context(), `SELECT weir._epoch_of(1) || '.2.0'`).Scan(&early); err != nil {
		t.Fatal(err)
	}
	r.truncate(t, "kept")
	for as, since := range map[string]string{"time": "1h", "position": early} {
		code, said, arrived := r.replay(t, as, since)
		if code != exitFailure || !slices.Equal(arrived, []string{"kept"}) || !strings.Contains(said, "1 message passed on") || !strings.Contains(said, "weir: messages may be missing at 1 place, which the log names") {
			t.Errorf("--since %s: exit code %d, %v has arrived: %s", since, code, arrived, said)
		}
	}
}

// TestAReplayOfAnotherLogIsRefused: with one error, the exit code of wrong usage, and nothing left behind; so is one that lies ahead of the log.
func TestAReplayOfAnotherLogIsRefused(t *testing.T) {
	t.Parallel()
	r := newReplays(t)
	r.publish(t, "1", "2")
	var oldest, end, epoch string
	if err := r.from.QueryRow(t.Context(), `SELECT '0.1.0', weir._epoch_of(n) || '.' || n + 1 || '.0', weir._epoch_of(n)::text FROM weir.newest_tick() n`).Scan(&oldest, &end, &epoch); err != nil {
		t.Fatal(err)
	}
	for since, what := range map[string]string{
		"1.1.1":                "is of a log that this database does not know: its own is kept",
		"1.999999999.0":        "is of a log that this database does not know: its own is kept",
		epoch + ".999999999.1": "is ahead of the log of this database, which is kept",
	} {
		code, said, arrived := r.replay(t, "x", since)
		want := fmt.Sprintf("weir: --since: the position %s %s from %s on, and ends at %s: give a position in it, or a time\n", since, what, oldest, end)
		if code != exitUsage || said != want || len(arrived) > 0 {
			t.Errorf("--since %s: exit code %d, %v has arrived: %s; want %s", since, code, arrived, said, want)
		}
		for name, pool := range map[string]*pgxpool.Pool{"the database": r.from, "the target": r.to} {
			var left int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.relay`).Scan(&left); err != nil || left != 0 {
				t.Errorf("--since %s: %s has %d rows of it, %v", since, name, left, err)
			}
		}
	}
	// The end of the log is a position in it.
	if code, said, arrived := r.replay(t, "end", end); code != exitOK || len(arrived) > 0 {
		t.Errorf("exit code %d, %v has arrived: %s", code, arrived, said)
	}
}

// TestAReplayFromALostPositionBeginsWhereBothLogsPart: whatever its number, which may be greater than those of the log as it is now.
func TestAReplayFromALostPositionBeginsWhereBothLogsPart(t *testing.T) {
	t.Parallel()
	r := newReplays(t)
	r.publish(t, "shared")
	var lost string
	if err := r.from.QueryRow(t.Context(), `SELECT weir._epoch_of(n) || '.' || n + 1000 || '.1' FROM weir.newest_tick() n`).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	if _, err := r.from.Exec(t.Context(), `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	r.publish(t, "1", "2")
	code, said, arrived := r.replay(t, "x", lost)
	if code != exitFailure || !slices.Equal(arrived, []string{"1", "2"}) || !strings.Contains(said, "2 messages passed on") || !strings.Contains(said, "messages may be missing at 1 place") {
		t.Errorf("--since %s: exit code %d, %v has arrived: %s", lost, code, arrived, said)
	}
}

// TestAReplaySinceTheLastTickThatIsGoneMissesNothing: a time between that tick and the first that is kept is no gap.
func TestAReplaySinceTheLastTickThatIsGoneMissesNothing(t *testing.T) {
	t.Parallel()
	r := newReplays(t)
	since := r.publish(t, "gone")
	r.truncate(t, "kept")
	if code, said, arrived := r.replay(t, "x", since.Format(time.RFC3339Nano)); code != exitOK || !slices.Equal(arrived, []string{"kept"}) {
		t.Errorf("exit code %d, %v has arrived: %s", code, arrived, said)
	}
}
