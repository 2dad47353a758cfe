package pgwire_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

// Unmodified drivers of other languages. Package drivertest describes how to run these tests.

func fixture(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", "drivers", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDriverPsycopg3 and the tests below: connect, listen, receive, notify, and the same again after a restart of the hub.
func TestDriverPsycopg3(t *testing.T) {
	t.Parallel()
	drivePython(t, "psycopg3.py")
}

func TestDriverAsyncpg(t *testing.T) {
	t.Parallel()
	drivePython(t, "asyncpg_listen.py")
}

func TestDriverNodePostgres(t *testing.T) {
	t.Parallel()
	driveNode(t, "node-postgres.js")
}

func TestDriverPostgresJS(t *testing.T) {
	t.Parallel()
	driveNode(t, "postgres-js.js")
}

func drivePython(t *testing.T, script string) {
	drive(t, exec.Command(drivertest.Python(t, fixture(t, "requirements.txt")), fixture(t, script)))
}

func driveNode(t *testing.T, script string) {
	dir := drivertest.Node(t, fixture(t, "package.json"))
	cmd := exec.Command("node", fixture(t, script))
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	drive(t, cmd)
}

func TestDriverJDBC(t *testing.T) {
	t.Parallel()
	drivertest.Want(t)
	java, _, mvn := drivertest.Tool(t, "java"), drivertest.Tool(t, "javac"), drivertest.Tool(t, "mvn")
	const artifact = "org.postgresql:postgresql:42.7.7"
	dir := drivertest.Installed(t, "jdbc", artifact, func(dir string) *exec.Cmd {
		return exec.CommandContext(t.Context(), mvn, "--batch-mode", "--quiet", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy",
			"-Dartifact="+artifact, "-DoutputDirectory="+dir)
	})
	jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil || len(jars) != 1 {
		t.Fatalf("%v, %v", jars, err)
	}
	drive(t, exec.Command(java, "-cp", jars[0], fixture(t, "Listen.java")))
}

const driverChannel = `Orders "new"`

// process is a hub run by weir serve, on a database with the clients' roles.
type process struct {
	t        *testing.T
	database string
	pool     *pgxpool.Pool
	server   *server.Server
	role     string
}

func startProcess(t *testing.T) *process {
	t.Helper()
	p := &process{t: t, database: pgtest.Database(t), role: "weir_driver_" + strings.ToLower(rand.Text())} // roles belong to the server, which other tests use
	p.pool = pgtest.Pool(t, p.database)
	p.sql("CREATE ROLE " + p.role + ` LOGIN PASSWORD 'se"cret' IN ROLE weir_subscribe, weir_publish`)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := p.pool.Exec(ctx, "DROP ROLE "+p.role); err != nil {
			t.Error(err)
		}
	})
	p.start(pgtest.Address(t))
	t.Cleanup(p.stop)
	return p
}

func (p *process) start(address string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var err error
	p.server, err = server.Start(ctx, server.Config{Name: p.t.Name(), Database: p.database, ListenPG: address})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.server.Stop(ctx); err != nil {
		p.t.Error(err)
	}
}

func (p *process) sql(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// drive runs a program that follows testdata/drivers/README.md.
func drive(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	p := startProcess(t)
	address := p.server.PGAddr().(*net.TCPAddr)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "PGHOST=127.0.0.1", fmt.Sprintf("PGPORT=%d", address.Port), "PGUSER="+p.role, `PGPASSWORD=se"cret`, "PGDATABASE=app",
		"PGAPPNAME=weir test", "PYTHONIOENCODING=utf-8")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, done := make(chan string), make(chan struct{}, 10)
	go func() {
		defer close(lines)
		for scanner := newScanner(stdout); scanner.Scan(); {
			if scanner.Text() == "done" {
				done <- struct{}{}
				continue
			}
			lines <- scanner.Text()
		}
	}()
	kill := time.AfterFunc(5*patience, func() { _ = cmd.Process.Kill() }) // of which each line has one
	t.Cleanup(func() {
		kill.Stop()
		_ = cmd.Process.Kill()
		for range lines {
		}
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(stderr.String())
		}
	})
	line := func() string {
		t.Helper()
		select {
		case s, ok := <-lines:
			if !ok {
				t.Fatalf("the program has ended: %s", stderr.String())
			}
			return s
		case <-time.After(patience):
			t.Fatal("the program says nothing")
		}
		return ""
	}
	expect := func(payload string) {
		t.Helper()
		var n struct{ Channel, Payload string }
		if s := line(); json.Unmarshal([]byte(s), &n) != nil || n.Channel != driverChannel || n.Payload != payload {
			t.Fatalf("got %.200s, want %.200q", s, payload)
		}
	}
	for round := range 3 {
		if round > 0 {
			// Messages published while no hub runs are not delivered: LISTEN does not resume.
			p.stop()
			p.start(address.String())
		}
		if s := line(); s != "listening" {
			t.Fatal(s)
		}
		for _, payload := range []string{`it's "quoted" \ and $1`, "Grüße, 世界 🎉\nsecond line", "", strings.Repeat("long ", 10_000)} {
			p.sql("SELECT weir.publish($1, $2)", driverChannel, payload)
			expect(payload)
		}
		p.sql("SELECT weir.publish($1, 'your turn')", driverChannel)
		for _, payload := range []string{"your turn", "committed", `it's a "parameter" €`} {
			expect(payload)
		}
		receive(t, done, "the end of its turn")
	}
	p.sql("SELECT weir.publish($1, 'stop')", driverChannel)
	expect("stop")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

func newScanner(from interface{ Read([]byte) (int, error) }) *bufio.Scanner {
	s := bufio.NewScanner(from)
	s.Buffer(nil, 1<<20)
	return s
}

// publish logs a message, like weir.publish in the database.
func publish(t testing.TB, e *endpoint, channel, payload string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.hub.Publish(ctx, hub.Draft{Channel: channel, Payload: []byte(payload)}); err != nil {
		t.Fatal(err)
	}
}
