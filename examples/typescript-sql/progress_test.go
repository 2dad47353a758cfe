package typescriptsql

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

// What the example of docs/progress.md leaves to its readers. The clock goes on by two seconds each time it is read.
const before = `
import pg from "pg";

interface Job { token: string; id: string; args: { file: string } }
interface Row { number: number; percent: number }
let clock = 0;
Date.now = () => (clock += 2000);
let failed = false;

async function* chunks(file: string, after: number): AsyncGenerator<Row[]> {
  for (let first = after + 1; first < 7; first += 2) yield [first, first + 1].map((n) => ({ number: n, percent: (100 * n) / 6 }));
}

async function insert(db: pg.Client, rows: Row[]) {
  for (const row of rows) {
    await db.query("INSERT INTO imported VALUES ($1)", [row.number]);
    if (row.number === 3 && !failed) {
      failed = true;
      throw new Error("fails once");
    }
  }
}
`

const after = `
const db = new pg.Client({ connectionString: process.argv[2] });
await db.connect();
const worker: number = (await db.query("SELECT weir.start('example', '{q}') AS id")).rows[0].id;
for (const outcome of ["failed", "completed"]) {
  const job: Job = (await db.query("SELECT * FROM weir.take($1, limits => '{1}', held => '{}', wait => '30 s') WHERE event = 'job'", [worker])).rows[0];
  let end: object & { outcome: string } = { token: job.token, outcome: "completed" } as any;
  try {
    await importFile(db, worker, job);
  } catch (e) {
    end = { token: job.token, outcome: "failed", error: String(e), delay: 0 } as any;
  }
  if (end.outcome !== outcome) throw new Error(JSON.stringify(end));
  await db.query("SELECT * FROM weir.record($1, $2)", [worker, JSON.stringify([end])]);
}
await db.end();
`

// TestTheProgressExampleInTypeScriptGoesOnWhereItFailed: the example of docs/progress.md imports every row once.
func TestTheProgressExampleInTypeScriptGoesOnWhereItFailed(t *testing.T) {
	t.Parallel()
	dir := compiled(t, map[string]string{"worker.ts": before + drivertest.Example(t, "../../docs/progress.md", "typescript") + after})
	url := pgtest.Database(t)
	workertest.Import(t, url, exec.CommandContext(t.Context(), "node", filepath.Join(dir, "worker.js"), url))
}

// TestTheDocumentedEncryptionInTypeScriptCompiles: the functions of docs/encryption.md compile under the example's settings.
func TestTheDocumentedEncryptionInTypeScriptCompiles(t *testing.T) {
	t.Parallel()
	compiled(t, map[string]string{"worker.ts": drivertest.Example(t, "../../docs/encryption.md", "typescript")})
}

// compiled compiles the example, or other files in its place, and returns the directory.
func compiled(t *testing.T, files map[string]string) string {
	t.Helper()
	modules, dir := filepath.Join(drivertest.Node(t, "package.json"), "node_modules"), t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "tsconfig.json", "worker.ts"} {
		text := []byte(files[name])
		var err error
		if len(text) == 0 {
			text, err = os.ReadFile(name)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "node", filepath.Join(modules, "typescript", "bin", "tsc"), "--project", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}
