package pythonsql

import (
	"os/exec"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

// What the example of docs/progress.md leaves to its readers. The clock goes on by two seconds each time it is read.
const before = `
import itertools, json, sys, types
import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

time = types.SimpleNamespace(monotonic=itertools.count(0, 2).__next__)
failed = False

def chunks(file, after):
    for first in range(after + 1, 7, 2):
        yield [types.SimpleNamespace(number=n, percent=100 * n / 6) for n in (first, first + 1)]

def insert(conn, rows):
    global failed
    for row in rows:
        conn.execute("INSERT INTO imported VALUES (%s)", [row.number])
        if row.number == 3 and not failed:
            failed = True
            raise RuntimeError("fails once")
`

const after = `
conn = psycopg.connect(sys.argv[1], autocommit=True)
worker = conn.execute("SELECT weir.start('example', '{q}')").fetchone()[0]
for outcome in ("failed", "completed"):
    job = conn.cursor(row_factory=namedtuple_row).execute(
        "SELECT * FROM weir.take(%s, limits => '{1}', held => '{}', wait => '30 s') WHERE event = 'job'", [worker]).fetchone()
    end = {"token": job.token, "outcome": "completed"}
    try:
        import_file(conn, worker, job)
    except RuntimeError as e:
        end = {"token": job.token, "outcome": "failed", "error": str(e), "delay": 0}
    assert end["outcome"] == outcome, end
    conn.execute("SELECT * FROM weir.record(%s, %s)", [worker, json.dumps([end])])
`

// TestTheProgressExampleInPythonGoesOnWhereItFailed: the example of docs/progress.md imports every row once.
func TestTheProgressExampleInPythonGoesOnWhereItFailed(t *testing.T) {
	t.Parallel()
	python := drivertest.Python(t, "requirements.txt")
	url := pgtest.Database(t)
	workertest.Import(t, url, exec.CommandContext(t.Context(), python, "-c", before+drivertest.Example(t, "../../docs/progress.md", "python")+after, url))
}
