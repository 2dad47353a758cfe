package doctor_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// troubled starts a server with troubles of several kinds, whose statements all contain the word, in names and in values.
func troubled(t *testing.T, word string) (url string) {
	t.Helper()
	url = pgtest.Server(t, map[string]string{"shared_preload_libraries": "pg_stat_statements", "work_mem": "64kB"}).URL("postgres")
	conn, idle, reader := connect(t, url), connect(t, url), connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Logf("without pg_stat_statements: %v", err)
	}
	execute(t, conn, "CREATE TABLE account (id int PRIMARY KEY, name text, n int)", "INSERT INTO account SELECT i, '"+word+"', 0 FROM generate_series(1, 20) i",
		"CREATE TABLE sale (id int, text text)", "INSERT INTO sale SELECT i, repeat('x', 400) FROM generate_series(1, 10000) i", "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
		"SELECT weir._start('silent', ARRAY['mail'], interval '1 second')", "SELECT weir.enqueue('mail', 'k') FROM generate_series(1, 1200)")
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1 AS "+word)
	execute(t, idle, "BEGIN", "UPDATE account SET n = 1 WHERE name = '"+word+"'")
	for range 2 {
		stand(t, url, "UPDATE account SET n = 2 WHERE name = '"+word+"' /* "+word+" */", "wait_event_type = 'Lock'")
	}
	runSessions(t, url, 2, repeat("SELECT count(*) AS "+word+" FROM (SELECT id, text FROM sale ORDER BY text DESC, id OFFSET 1) s"))
	runSessions(t, url, 2, repeat("INSERT INTO queue SELECT /* "+word+" */ FROM generate_series(1, 400)", "DELETE FROM queue WHERE id IN (SELECT id AS "+word+" FROM queue ORDER BY id LIMIT 200)"))
	runSessions(t, url, 1, repeat("SELECT id AS "+word+" FROM account WHERE id = -1 - $1"))
	return url
}

// recorded runs the doctor, and returns its report and what it has recorded.
func recorded(t *testing.T, c doctor.Config, duration time.Duration) (doctor.Report, []byte) {
	t.Helper()
	c.Record = true
	d, err := doctor.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	live, err := d.Run(t.Context(), duration)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := d.Recording().Write(&file); err != nil {
		t.Fatal(err)
	}
	return live, file.Bytes()
}

// replayed returns the report of a recording.
func replayed(t *testing.T, file []byte) doctor.Report {
	t.Helper()
	r, err := doctor.ReadRecording(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Replay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// unpacked returns a recording before compression.
func unpacked(t *testing.T, file []byte) []byte {
	t.Helper()
	in, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func asJSON(t *testing.T, r doctor.Report) string {
	t.Helper()
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// expectSame fails unless a recording's replays are the live report, byte for byte, but for the mark.
func expectSame(t *testing.T, live doctor.Report, file []byte) {
	t.Helper()
	want := asJSON(t, live)
	for range 5 { // nothing depends on the order of a map
		again := replayed(t, file)
		if !again.Replay {
			t.Error("a replay is not marked as one")
		}
		again.Replay = false
		if got := asJSON(t, again); got != want {
			a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Fatalf("line %d of the live report:\n%s\nof the replay:\n%s", i, a[i], b[i])
				}
			}
			t.Fatalf("the live report has %d lines, the replay %d", len(a), len(b))
		}
	}
}

func TestAReplayIsTheReportOfTheRun(t *testing.T) {
	t.Parallel()
	live, file := recorded(t, doctor.Config{URL: troubled(t, "hush")}, 3*examineFor)
	for _, code := range []doctor.Code{doctor.IdleBlocker, doctor.WorkerDead} {
		if _, found := live.Find(code); !found {
			t.Errorf("%s is not found, so that this proves little:\n%s", code, describe(live))
		}
	}
	if !strings.Contains(asJSON(t, live), "hush") {
		t.Errorf("no statement is in the report, so that this proves little:\n%s", describe(live))
	}
	t.Logf("%d bytes: %d samples", len(file), live.Samples)
	expectSame(t, live, file)
}

// TestARecordingWithoutStatementsHasNone: neither the report nor the recording contains a word of the statements that is no command and no table's name.
func TestARecordingWithoutStatementsHasNone(t *testing.T) {
	t.Parallel()
	url := troubled(t, "hush")
	live, file := recorded(t, doctor.Config{URL: url, WithoutStatements: true}, 3*examineFor)
	f := expectNoHush(t, live, file)
	if len(f.Statements) == 0 || !strings.HasPrefix(f.Statements[0].Text, "UPDATE account SET [s") {
		t.Errorf("the list of its statements: %+v", f.Statements)
	}
	if hot, found := live.Find(doctor.HotRow); !found {
		t.Errorf("no row is hot:\n%s", describe(live))
	} else {
		expectFact(t, hot, "account: ", "; its key is left out, as --without-statements says")
	}
	expectSame(t, live, file)
}

// expectNoHush checks that neither a report nor a recording has a statement of the load "hush", and returns what was found all the same.
func expectNoHush(t *testing.T, report doctor.Report, file []byte) doctor.Finding {
	t.Helper()
	for what, text := range map[string]string{"report": asJSON(t, report), "recording": string(unpacked(t, file))} {
		if at := strings.Index(text, "hush"); at >= 0 {
			t.Errorf("the %s has a statement: …%s…", what, text[max(0, at-300):min(len(text), at+100)])
		}
	}
	f, found := report.Find(doctor.IdleBlocker)
	if !found {
		t.Fatalf("the check did not do without the texts:\n%s", describe(report))
	}
	expectFact(t, f, "waiting statements: UPDATE account SET [s")
	return f
}

// TestStatementsAreLeftOutOfARecordingThatHasThem: of what is shown of it and of what is written, as if they had been left out when it was made.
func TestStatementsAreLeftOutOfARecordingThatHasThem(t *testing.T) {
	t.Parallel()
	live, file := recorded(t, doctor.Config{URL: troubled(t, "hush")}, 3*examineFor)
	whole, err := doctor.ReadRecording(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := whole.WithoutStatements()
	if err != nil {
		t.Fatal(err)
	}
	report, err := bare.Replay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	if err := bare.Write(&written); err != nil {
		t.Fatal(err)
	}
	expectNoHush(t, report, written.Bytes())
	for _, f := range live.Findings {
		if _, found := report.Find(f.Code); !found {
			t.Errorf("without the texts %s is not found:\n%s", f.Code, describe(report))
		}
	}
	report.Replay = false
	expectSame(t, report, written.Bytes())
	expectSame(t, live, file) // which is as it was
}

// TestARecordingOfAStandbyIsReplayed: what was seen of standbys is in the recording too.
func TestARecordingOfAStandbyIsReplayed(t *testing.T) {
	t.Parallel()
	p := pinByAStandby(t)
	live, file := recorded(t, doctor.Config{URL: p.at, Standbys: []string{p.standby.URL("postgres")}}, pinnedLong)
	expectFact(t, expect(t, live, doctor.HorizonPinned, doctor.Info), "on the standby 127.0.0.1:", fmt.Sprintf("pid %d of postgres", p.reader.PgConn().PID()))
	expectSame(t, live, file)
}

// TestARecordingThatCannotBeReadIsRefused: one of another version, a part of one, a damaged one, or another file.
func TestARecordingThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	_, file := recorded(t, doctor.Config{URL: alone(t)}, time.Second)
	pack := func(text []byte) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	damaged := bytes.Clone(file)
	damaged[len(damaged)-6] ^= 0xff // in its checksum
	for what, c := range map[string]struct {
		file []byte
		want string
	}{
		"of another version":  {pack(bytes.Replace(unpacked(t, file), []byte(`"version":1`), []byte(`"version":7`), 1)), "it is a recording of version 7, and this weir reads version 1"},
		"cut off at half":     {file[:len(file)/2], "it is cut off"},
		"cut off at its end":  {file[:len(file)-1], "it is cut off"},
		"cut off in its head": {file[:15], "it is cut off"},
		"damaged":             {damaged, "it is damaged"},
		"of something else":   {pack([]byte("{}\n{}\n")), "it is not a recording of weir doctor --record"},
		"not compressed":      {unpacked(t, file), "it is not a recording of weir doctor --record"},
		"empty":               {nil, "it is not a recording of weir doctor --record"},
		"too large":           {pack(append(unpacked(t, file), bytes.Repeat([]byte(" "), 256<<20)...)), "it is larger than 256 MiB"},
	} {
		if _, err := doctor.ReadRecording(bytes.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a recording that is %s: %v, want %q", what, err, c.want)
		}
	}
}
