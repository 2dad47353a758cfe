package conformance

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// lease is the lease of workers in scripts that wait for its end, in seconds: long enough for a driver on a busy machine to keep it.
const lease = 6

// stage is where a script is played: a database, a hub if one is needed, and the drivers' way to them, which can be cut.
type stage struct {
	*testing.T
	client client
	script script
	pooled bool

	pool   *pgxpool.Pool    // of the judge, whose sessions stay when others are ended
	role   string           // with which drivers log in
	server *embedded.Server // nil: the server is shared with other tests
	url    string           // of the database, with that role
	hub    *hubtest.Hub     // nil: there is none
	line   *pgtest.Line     // between drivers and the database or, over HTTP, the hub
	toHub  *pgtest.Line     // between drivers and the hub
}

func newStage(t *testing.T, c client, script script, pooled bool) *stage {
	s := &stage{T: t, client: c, script: script, pooled: pooled}
	var admin string
	if script.server {
		s.server = pgtest.Server(t, nil)
		admin = s.server.URL("postgres")
		s.migrate(admin)
	} else {
		admin = pgtest.Database(t)
	}
	s.openJudge(admin)
	s.createRole(admin)
	if c.via == "http" || contains(script.needs, "subscribe") {
		var flags []string
		if c.via == "http" {
			flags = []string{"--jobs"}
			if contains(script.needs, "lease") {
				flags = append(flags, fmt.Sprintf("--jobs-lease=%ds", lease))
			}
		}
		s.hub = hubtest.Run(t, admin, t.Output(), flags...)
		s.toHub = pgtest.NewLine(t, "http://"+s.hub.Address)
	}
	switch {
	case c.via == "http":
		s.line = s.toHub
	case pooled:
		s.line = pgtest.NewLine(t, pgtest.Bouncer(t, s.url))
	default:
		s.line = pgtest.NewLine(t, s.url)
	}
	s.exec(`CREATE TABLE effect (job bigint NOT NULL)`)
	s.exec(`GRANT ALL ON effect TO ` + s.role)
	s.exec(`SELECT weir.enqueue('q', 'none', '{}', run_at => '2999-01-01'), weir.set('q', 'backoff', '50 ms'), weir.set('q', 'backoff_limit', '200 ms')`) // the queue is created by its first use
	return s
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func (s *stage) migrate(admin string) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), admin)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(s.Context())
	if err := schema.Up(s.Context(), conn); err != nil {
		s.Fatal(err)
	}
}

// openJudge opens connections that endSessions does not end.
func (s *stage) openJudge(admin string) {
	s.Helper()
	config, err := pgxpool.ParseConfig(admin)
	if err != nil {
		s.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = "judge"
	if s.pool, err = pgxpool.NewWithConfig(s.Context(), config); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(s.pool.Close)
}

// createRole creates a role that has what a client needs, and nothing else.
func (s *stage) createRole(admin string) {
	s.Helper()
	u, err := url.Parse(admin)
	if err != nil {
		s.Fatal(err)
	}
	s.role = fmt.Sprintf("conform_%d", value[int64](s, `SELECT oid::bigint FROM pg_database WHERE datname = current_database()`))
	s.exec(`CREATE ROLE ` + s.role + ` LOGIN PASSWORD 'secret' IN ROLE weir_enqueue, weir_work, weir_operate, weir_publish`)
	s.Cleanup(func() { // before the database is dropped, and after the drivers have ended
		if _, err := s.pool.Exec(context.Background(), `DROP OWNED BY `+s.role+`; DROP ROLE `+s.role); err != nil && s.server == nil {
			s.Error(err)
		}
	})
	u.User = url.UserPassword(s.role, "secret")
	s.url = u.String()
}

// start starts a driver of the client. env are further variables.
func (s *stage) start(env ...string) *driver {
	s.Helper()
	return s.startAs(s.client, s.line, env...)
}

// apart starts a driver that does not use the line.
func (s *stage) apart() *driver {
	s.Helper()
	to := s.url
	if s.client.via == "http" {
		to = "http://" + s.hub.Address
	}
	return s.startAs(s.client, pgtest.NewLine(s, to))
}

func (s *stage) startAs(c client, line *pgtest.Line, env ...string) *driver {
	s.Helper()
	env = append([]string{"WEIR_VIA=" + c.via, "WEIR_POOL=4", "TZ=America/St_Johns"}, env...)
	if c.via == "http" {
		env = append(env, "WEIR_HUB_URL="+line.URL)
	} else {
		env = append(env, "DATABASE_URL="+line.URL)
		if s.pooled {
			env = append(env, "WEIR_POOLER=transaction")
		}
		if s.toHub != nil {
			env = append(env, "WEIR_HUB_URL="+s.toHub.URL)
		}
	}
	d := start(s.T, c.driver(env...))
	if d.hello.Via != c.via {
		s.Fatalf("the driver says that jobs take the way %q, but WEIR_VIA is %s", d.hello.Via, c.via)
	}
	if why := s.script.lacks(s.T, c.via, d.hello); why != "" {
		s.Skip(why)
	}
	return d
}

// work starts a worker of queue q with the kind alpha, unless the fields say otherwise.
func (d *driver) work(fields object) {
	d.t.Helper()
	all := object{"queues": object{"q": 4}, "kinds": []string{"alpha"}}
	for name, value := range fields {
		all[name] = value
	}
	if !contains(d.hello.Features, "lease") {
		delete(all, "lease")
	}
	d.do("work", all)
}

// worker starts a driver with a worker.
func (s *stage) worker(fields object) *driver {
	s.Helper()
	d := s.start()
	d.work(fields)
	return d
}

func (s *stage) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.pool.Exec(s.Context(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func value[V any](s *stage, sql string, args ...any) (v V) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), sql, args...).Scan(&v); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return v
}

// enqueue enqueues a job of the kind alpha into queue q, with further arguments of weir.enqueue.
func (s *stage) enqueue(further ...string) int64 {
	s.Helper()
	return value[int64](s, `SELECT weir.enqueue(`+strings.Join(append([]string{`'q', 'alpha', '{}'`}, further...), ", ")+`)`)
}

// info is the state of a job as the database sees it.
type info struct {
	State       string
	Attempt     int
	Error       string
	Output      *string
	Errors      int     // number of attempts that have not completed
	Percent     float64 // -1: none
	Message     string
	RunAt       string // in UTC
	Priority    int
	MaxAttempts int
}

func (s *stage) info(id int64) info {
	s.Helper()
	rows, err := s.pool.Query(s.Context(), `SELECT state, attempt, coalesce(error, '') AS error, output, coalesce(jsonb_array_length(to_jsonb(errors)), 0) AS errors, coalesce(percent, -1)::double precision AS percent,
		coalesce(message, '') AS message, coalesce(to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS'), '') AS run_at, priority, max_attempts FROM weir.job_info($1)`, id)
	if err != nil {
		s.Fatal(err)
	}
	i, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[info])
	if err != nil {
		s.Fatalf("job %d: %v", id, err)
	}
	return i
}

// until waits until a job is in a state.
func (s *stage) until(id int64, state string) (i info) {
	s.Helper()
	pgtest.Eventually(s, func() error {
		if i = s.info(id); i.State != state {
			return fmt.Errorf("job %d is %+v, want it %s", id, i, state)
		}
		return nil
	})
	return i
}

// output waits until a job has completed, and returns its output.
func (s *stage) output(id int64) string {
	s.Helper()
	i := s.until(id, "completed")
	if i.Output == nil {
		s.Fatalf("job %d has no output: %+v", id, i)
	}
	return *i.Output
}

// effects is how often the application has done what a job is for.
func (s *stage) effects(id int64) int {
	s.Helper()
	return value[int](s, `SELECT count(*) FROM effect WHERE job = $1`, id)
}

func effect(id int64) string { return "INSERT INTO effect VALUES (" + strconv.FormatInt(id, 10) + ")" }

// endSessions ends all sessions in the database except the judge's.
func (s *stage) endSessions() {
	s.Helper()
	s.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'judge'`)
}

// ended returns how many jobs have ended.
func (s *stage) ended() int {
	s.Helper()
	return value[int](s, `SELECT count(DISTINCT i.id) FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome IN ('completed', 'failed', 'cancelled')`)
}

// allEnd waits until so many jobs have ended, and checks that each did once.
func (s *stage) allEnd(jobs int) {
	s.Helper()
	pgtest.Eventually(s, func() error {
		if n := s.ended(); n < jobs {
			return fmt.Errorf("%d of %d jobs have ended; there are %s", n, jobs, value[string](s, `SELECT coalesce(string_agg(format('%s %s %s', id, state, attempt), '; '), '')
				FROM (SELECT * FROM weir.jobs('running', max_rows => 5) UNION ALL SELECT * FROM weir.jobs('scheduled', queue => 'q', max_rows => 5) UNION ALL SELECT * FROM weir.jobs('available', max_rows => 5)) j`))
		}
		return nil
	})
	if twice := value[int](s, `SELECT count(*) FROM (SELECT FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome IN ('completed', 'failed', 'cancelled')
		GROUP BY i.id HAVING count(*) <> 1) k`); twice > 0 {
		s.Errorf("%d jobs have ended more than once", twice)
	}
}
