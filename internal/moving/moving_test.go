package moving

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestMovingFromGraphileWorkerLosesNoJobAndRunsNoneTwice: after the steps of the page, every job has run once.
func TestMovingFromGraphileWorkerLosesNoJobAndRunsNoneTwice(t *testing.T) {
	t.Parallel()
	losesNoJobAndRunsNoneTwice(t, open(t, graphileWorker))
}

// TestMovingFromPgBossLosesNoJobAndRunsNoneTwice: after the steps of the page, every job has run once.
func TestMovingFromPgBossLosesNoJobAndRunsNoneTwice(t *testing.T) {
	t.Parallel()
	losesNoJobAndRunsNoneTwice(t, open(t, pgBoss))
}

// TestMovingFromGraphileWorkerEnqueuesIntoOneOfTheTwoInOneTransaction: the page's switch puts each job into one of the two queues, or none after a rollback.
func TestMovingFromGraphileWorkerEnqueuesIntoOneOfTheTwoInOneTransaction(t *testing.T) {
	pgtest.Alone(t, "it sets what its programs read in the environment")
	enqueuesIntoOneOfTheTwo(t, open(t, graphileWorker))
}

// TestMovingFromPgBossEnqueuesIntoOneOfTheTwoInOneTransaction: the page's switch puts each job into one of the two queues, or none after a rollback.
func TestMovingFromPgBossEnqueuesIntoOneOfTheTwoInOneTransaction(t *testing.T) {
	pgtest.Alone(t, "it sets what its programs read in the environment")
	enqueuesIntoOneOfTheTwo(t, open(t, pgBoss))
}

// peer is a queue to move from.
type peer struct {
	name string // name of the page, and of the program that enqueues its jobs
	stop string // the heading of the page's last step
	// Queries that count what the test waits for.
	failed, running, gone string
	all                   string
	used                  string // expression for the number of used attempts, in a moved job's meta
}

var (
	graphileWorker = peer{
		name: "graphile-worker", stop: "5. Stop Graphile Worker",
		failed:  `SELECT count(*) FROM graphile_worker.jobs WHERE attempts > 0 AND locked_at IS NULL AND attempts < max_attempts`,
		running: `SELECT count(*) FROM graphile_worker.jobs WHERE locked_at IS NOT NULL`,
		gone:    `SELECT count(*) FROM graphile_worker.jobs WHERE attempts = max_attempts AND locked_at IS NULL`,
		all:     `SELECT count(*) FROM graphile_worker.jobs`,
		used:    `(meta->'graphile_worker'->>'attempts')::int`,
	}
	pgBoss = peer{
		name: "pg-boss", stop: "5. Stop pg-boss",
		failed:  `SELECT count(*) FROM pgboss.job WHERE state = 'retry'`,
		running: `SELECT count(*) FROM pgboss.job WHERE state = 'active'`,
		gone:    `SELECT count(*) FROM pgboss.job WHERE state = 'failed'`,
		all:     `SELECT count(*) FROM pgboss.job WHERE state IN ('created', 'retry', 'active')`,
		used:    `(meta->'pgboss'->>'attempts')::int`,
	}
)

// Accounts that testdata/mail.mjs treats specially.
const (
	refused = 10_000 // from here on, mail is refused
	slow    = 20_000 // from here on, a mail takes until the gate is open
)

// stage is a database with both queues, and a directory with the page's programs.
type stage struct {
	peer
	page Page
	dir  string
	node string
	url  string
	pool *pgxpool.Pool
}

// open writes the page's programs into a directory, and compiles the worker of the examples with the page's handlers.
func open(t *testing.T, p peer) stage {
	t.Helper()
	modules := filepath.Join(drivertest.Node(t, "package.json"), "node_modules")
	s := stage{peer: p, page: Read(t, "../../docs/moving-from-"+p.name+".md"), dir: t.TempDir(), url: pgtest.Database(t)}
	// The queues may require a newer Node.js than the installed one, so npm installs one with them. Its install script may not have run; then
	// the installed one must do.
	if s.node = filepath.Join(modules, "node", "bin", "node"); !isThere(s.node) {
		s.node = drivertest.Tool(t, "node")
	}
	s.pool = pgtest.Pool(t, s.url)
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE ledger (account bigint NOT NULL); CREATE TABLE gate ()`); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(s.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	const example = "../../examples/typescript-sql/"
	for name, from := range map[string]string{
		"package.json": "package.json", "tsconfig.json": example + "tsconfig.json",
		"mail.mjs": "testdata/mail.mjs", "mail.d.mts": "testdata/mail.d.mts",
		"transactions.mjs": "testdata/transactions.mjs", "fill.mjs": "testdata/fill-" + p.name + ".mjs",
	} {
		s.write(t, name, read(t, from))
	}
	for _, program := range blocks(s.page.text, "js") {
		name, ok := strings.CutPrefix(strings.SplitN(program, "\n", 2)[0], "// ")
		if !ok {
			t.Fatalf("the first line of this program on the page is not its file name:\n%s", program)
		}
		s.write(t, name, program)
	}
	handlers := regexp.MustCompile(`(?s)const handlers: .*?\n};\n`)
	worker := read(t, example+"worker.ts")
	if !handlers.MatchString(worker) {
		t.Fatal("the example has no handlers to replace")
	}
	s.write(t, "worker.ts", handlers.ReplaceAllLiteralString(worker, s.page.Block(t, "Side by side", "ts")))
	s.run(t, "", filepath.Join(modules, "typescript", "bin", "tsc"), "--project", s.dir)
	return s
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (s stage) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s stage) command(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), s.node, args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "DATABASE_URL="+s.url)
	return cmd
}

// run runs a program to its end.
func (s stage) run(t *testing.T, input string, args ...string) {
	t.Helper()
	cmd := s.command(t, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, out)
	}
}

// start runs a program until the test ends.
func (s stage) start(t *testing.T, args ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := s.command(t, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", args[0], said.String())
		}
	})
}

func (s stage) count(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// job is a line of the programs that fill a queue.
type job struct {
	Account  int64      `json:"account"`
	At       *time.Time `json:"at,omitempty"`
	Attempts int        `json:"attempts"`
	First    bool       `json:"first"`
}

// fill enqueues jobs for n accounts with the peer's own API.
func (s stage) fill(t *testing.T, from, n int64, like job) {
	t.Helper()
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for like.Account = from; like.Account < from+n; like.Account++ {
		if err := encoder.Encode(like); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, lines.String(), "fill.mjs")
}

func losesNoJobAndRunsNoneTwice(t *testing.T, s stage) {
	const waiting, scheduled, retried, gone = 3_000, 300, 50, 7
	in := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	s.fill(t, slow, 1, job{Attempts: 4})
	s.fill(t, refused, retried, job{Attempts: 4})
	s.fill(t, refused+retried, gone, job{Attempts: 1})
	s.start(t, "worker.mjs")
	pgtest.Until(t, "the old queue has a job running, some that failed, and some that failed for good", func() bool {
		return s.count(t, s.running) >= 1 && s.count(t, s.failed) > 0 && s.count(t, s.gone) >= gone
	})
	s.fill(t, 0, waiting, job{Attempts: 4, First: true})
	s.fill(t, waiting, scheduled, job{Attempts: 4, At: &in})
	// Weir's worker runs at the same time. Jobs that fail with it are not retried before the test checks them.
	if _, err := s.pool.Exec(t.Context(), `SELECT weir.enqueue('mail', 'welcome', '{"account": 9999}')`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `SELECT weir.set('mail', 'backoff', '1 hour')`); err != nil {
		t.Fatal(err)
	}
	s.start(t, "worker.js", s.url, "mail")

	move, left := s.page.Block(t, "4. Move what waits", "sql"), strings.TrimRight(s.page.Block(t, s.stop, "sql"), ";\n")
	var moved int64
	drain := func() {
		for {
			n := s.count(t, move)
			if n == 0 {
				return
			}
			moved += n
		}
	}
	drain()
	if moved < scheduled {
		t.Fatalf("%d jobs were moved, want at least the %d scheduled ones", moved, scheduled)
	}
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO gate DEFAULT VALUES`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the old queue has nothing left to do", func() bool {
		drain() // a job that was running may have failed, and wait again
		return s.count(t, `SELECT count(*) FROM (`+left+`) AS left_over`) == 0
	})
	pgtest.Until(t, "every waiting job has run", func() bool {
		return s.count(t, `SELECT count(DISTINCT account) FROM ledger`) == waiting+2
	})
	if twice := s.count(t, `SELECT count(*) FROM (SELECT FROM ledger GROUP BY account HAVING count(*) > 1) AS twice`); twice != 0 {
		t.Errorf("%d jobs ran twice", twice)
	}
	// Jobs that fail have either failed for good in the old queue, or have their remaining attempts in Weir.
	pgtest.Until(t, "every failing job has failed with Weir, too", func() bool {
		return s.count(t, `SELECT count(*) FROM weir.scheduled_jobs WHERE attempt > 1`)+s.count(t, `SELECT count(*) FROM weir.failed_jobs`)+s.count(t, s.peer.gone) == retried+gone
	})
	if wrong := s.count(t, `
		SELECT count(*) FROM (SELECT * FROM weir.scheduled_jobs UNION ALL SELECT * FROM weir.failed_jobs) AS j
		WHERE (args->>'account')::int >= 10000 AND max_attempts <> 4 - `+s.used); wrong != 0 {
		t.Errorf("%d failed jobs do not have the number of attempts that were left", wrong)
	}
	if n := s.count(t, `SELECT count(*) FROM weir.scheduled_jobs WHERE run_at = $1 AND max_attempts = 4 AND priority = 2`, in); n != scheduled {
		t.Errorf("%d jobs have kept their schedule, want %d", n, scheduled)
	}
}

func enqueuesIntoOneOfTheTwo(t *testing.T, s stage) {
	s.fill(t, 0, 0, job{}) // creates its schema
	s.run(t, "", "transactions.mjs", "10")
	if n := s.count(t, s.all); n != 1 {
		t.Errorf("%d jobs are in the old queue, want the one that was committed", n)
	}
	t.Setenv("MOVED_TO_WEIR", "1")
	s.run(t, "", "transactions.mjs", "20")
	if n := s.count(t, s.all); n != 1 {
		t.Errorf("%d jobs are in the old queue after the move, want the one from before", n)
	}
	if n := s.count(t, `SELECT count(*) FROM weir.available_jobs WHERE queue = 'mail' AND kind = 'welcome' AND args = '{"account": 20}'`); n != 1 {
		t.Errorf("%d jobs wait in Weir, want the one that was committed", n)
	}
	if n := s.count(t, `SELECT count(*) FROM weir.available_jobs`); n != 1 {
		t.Errorf("%d jobs wait in Weir, want 1: a rollback left some behind", n)
	}
}
