package workertest

import (
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Import runs a program that imports the file of a job of queue q, as docs/progress.md does: it fails once, in the midst of the second of three parts, and
// writes the number of each row into the table imported. It checks that each was imported once, and what the job has reported.
func Import(t testing.TB, url string, program *exec.Cmd) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE imported (row integer)`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'import', '{"file": "f"}')`); err != nil {
		t.Fatal(err)
	}
	if out, err := program.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var rows, job string
	err = conn.QueryRow(t.Context(), `SELECT (SELECT string_agg(i.row::text, ' ' ORDER BY i.row) FROM imported i),
		format('%s, attempt %s, %s%% %s, checkpoint %s', j.state, j.attempt, j.percent, j.message, weir.checkpoint(1)) FROM weir.job_info(1) j`).Scan(&rows, &job)
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 2 3 4 5 6"; rows != want {
		t.Errorf("rows %s were imported, want %s", rows, want)
	}
	if want := "completed, attempt 2, 100% importing, checkpoint 6"; job != want {
		t.Errorf("the job is %q, want %q", job, want)
	}
}
