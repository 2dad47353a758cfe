package weir_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// profile is a way in which users configure their servers, databases and roles.
type profile struct {
	name     string
	settings []string // of the role, in its database
	jit      bool     // on a server that compiles plans
	plain    bool     // the schema's owner is not a superuser and may not create roles, as in managed PostgreSQL
	locale   string   // of the database
	says     []string // settings that the worker reports as bad for Weir
	ascii    bool     // only ASCII texts: pgx assumes that every session uses UTF-8
}

var nasty = []string{
	"default_transaction_isolation = serializable", "default_transaction_deferrable = on", "statement_timeout = '100ms'", "lock_timeout = '1ms'",
	"idle_in_transaction_session_timeout = '100ms'", "idle_session_timeout = '300ms'", "synchronous_commit = off", "plan_cache_mode = force_custom_plan",
	"search_path = elsewhere, pg_catalog", "timezone = 'Asia/Kathmandu'", "datestyle = 'german'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'",
	"extra_float_digits = -15", "client_encoding = 'latin1'", "row_security = off", "work_mem = '64kB'",
}

var profiles = []profile{
	{name: "none"},
	{name: "compiling", jit: true},
	{name: "compiling everything", jit: true, settings: []string{"jit_above_cost = 0", "jit_inline_above_cost = 0", "jit_optimize_above_cost = 0"}, says: []string{"jit_above_cost"}},
	{name: "serializable", settings: []string{"default_transaction_isolation = serializable"}},
	{name: "repeatable read", settings: []string{"default_transaction_isolation = 'repeatable read'"}},
	{name: "impatient", settings: []string{"statement_timeout = '100ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '100ms'", "idle_session_timeout = '300ms'"}},
	{name: "careless", settings: []string{"synchronous_commit = off", "plan_cache_mode = force_custom_plan", "row_security = off"}, says: []string{"synchronous_commit"}},
	{name: "parallel", settings: []string{"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0", "min_parallel_index_scan_size = 0", "plan_cache_mode = force_generic_plan"}},
	{name: "thrifty", settings: []string{"work_mem = '64kB'", "temp_buffers = '800kB'", "hash_mem_multiplier = 1", "default_toast_compression = 'pglz'"}},
	{name: "another search path", settings: []string{"search_path = elsewhere, pg_catalog"}},
	{name: "no search path", settings: []string{"search_path = ''"}},
	{name: "other formats", settings: []string{"timezone = 'Asia/Kathmandu'", "datestyle = 'german'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = -15",
		"standard_conforming_strings = off", "escape_string_warning = off"}},
	{name: "another encoding", settings: []string{"client_encoding = 'latin1'"}, says: []string{"client_encoding"}, ascii: true},
	{name: "another locale", locale: "LOCALE 'C.UTF-8'"},
	{name: "a plain owner", plain: true},
	{name: "a plain owner, nastily", plain: true, settings: nasty, says: []string{"client_encoding", "synchronous_commit"}, ascii: true},
	{name: "compiling everything, nastily", jit: true, settings: slices.Concat([]string{"jit_above_cost = 0"}, nasty, []string{"statement_timeout = '10s'"}), says: []string{"client_encoding", "jit_above_cost", "synchronous_commit"}, ascii: true},
}

// TestPromisesHoldWithSettingsPeopleHave: whatever the defaults of the server, the database and the role, jobs complete, are retried,
// snoozed, rescued and carried over, messages arrive in order and resume, and the worker logs no complaints.
func TestPromisesHoldWithSettingsPeopleHave(t *testing.T) {
	pgtest.Alone(t, "on a busy machine, calls last longer than the timeouts of some configurations")
	for _, h := range profiles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			newEnvironment(t, h).live(false)
		})
	}
}

// TestPromisesHoldThroughPgBouncerWithSettingsPeopleHave: calls bring the settings that they need, because a pooler's sessions can't be
// changed.
func TestPromisesHoldThroughPgBouncerWithSettingsPeopleHave(t *testing.T) {
	pgtest.Alone(t, "on a busy machine, calls last longer than the timeouts of some configurations")
	for _, name := range []string{"none", "serializable", "impatient", "other formats", "a plain owner, nastily"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newEnvironment(t, profiles[slices.IndexFunc(profiles, func(h profile) bool { return h.name == name })]).live(true)
		})
	}
}

// TestReadOnlyDatabaseIsSaidAndWaitedFor: if a role may not write for some time, as with some services when the disk is full, the worker
// reports why it does nothing, waits, and works as soon as it may write.
func TestReadOnlyDatabaseIsSaidAndWaitedFor(t *testing.T) {
	t.Parallel()
	h := newEnvironment(t, profile{settings: []string{"default_transaction_read_only = on"}})
	job, err := weir.NewClient(h.admin).Enqueue(t.Context(), chore{Do: "complete"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[chore]) error { return nil })
	log := &pgtest.Log{}
	worker, err := weir.NewClient(pgtest.Pool(t, h.url)).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	defer func() {
		stop()
		if err := pgtest.Receive(t, ended, "the worker has stopped"); err != nil {
			t.Errorf("the worker: %v", err)
		}
	}()
	eventually(t, func() error {
		if settings, text := split(log); !slices.Equal(settings, []string{"default_transaction_read_only"}) || !strings.Contains(text, "read-only transaction") {
			return fmt.Errorf("the worker reports the settings %v and logs %s", settings, text)
		}
		return nil
	})
	u, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	h.exec(`ALTER ROLE ` + u.User.Username() + ` IN DATABASE ` + strings.TrimPrefix(u.Path, "/") + ` RESET default_transaction_read_only`)
	(&rig{t: t, client: weir.NewClient(h.admin)}).await(job.ID, weir.StateCompleted)
}

// environment is a database, and a role with a profile.
type environment struct {
	*testing.T
	profile
	admin *pgxpool.Pool // without the profile
	url   string        // for the role
}

// newEnvironment creates the database and the role, and installs the schema.
func newEnvironment(t *testing.T, h profile) *environment {
	t.Helper()
	at := ""
	switch {
	case h.jit:
		at = pgtest.JIT(t, nil).URL("postgres")
	default:
		at = pgtest.Empty(t)
	}
	if h.locale != "" {
		at = inLocale(t, at, h.locale)
	}
	env := &environment{T: t, profile: h, admin: pgtest.Pool(t, at)}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	database := pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()
	name, password := "weir_people_"+strings.ToLower(rand.Text()[:10]), rand.Text()
	role := pgx.Identifier{name}.Sanitize()
	env.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD '` + password + `'`)
	t.Cleanup(func() {
		// A role belongs to the whole server, and outlives the database.
		for _, sql := range []string{`DROP OWNED BY ` + role + ` CASCADE`, `DROP ROLE ` + role} {
			if _, err := env.admin.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
				t.Error(err)
			}
		}
	})
	for _, s := range h.settings {
		env.exec(`ALTER ROLE ` + role + ` IN DATABASE ` + database + ` SET ` + s)
	}
	u.User = url.UserPassword(name, password)
	env.url = u.String()

	env.exec(`CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO ` + role)
	env.exec(`CREATE FUNCTION elsewhere.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'`)
	env.exec(`CREATE FUNCTION elsewhere.make_interval(secs double precision) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval'`)
	env.exec(`CREATE TABLE elsewhere.effect (n bigint PRIMARY KEY); GRANT ALL ON elsewhere.effect TO ` + role)
	if !h.plain {
		env.install(env.admin)
		env.exec(`GRANT weir_operate, weir_work, weir_publish, weir_hub TO ` + role)
		return env
	}
	// The administrator creates the roles, and the owner does the rest.
	for _, part := range []string{"weir_enqueue", "weir_work", "weir_operate", "weir_publish", "weir_subscribe", "weir_hub"} {
		env.exec(`DO $$ BEGIN CREATE ROLE ` + part + `; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	}
	env.exec(`GRANT CREATE ON DATABASE ` + database + ` TO ` + role)
	env.install(pgtest.Pool(t, env.url))
	return env
}

// inLocale returns a database like the one at the URL, but with another locale.
func inLocale(t *testing.T, at, locale string) string {
	t.Helper()
	admin := pgtest.Pool(t, at)
	name := "weir_locale_" + strings.ToLower(rand.Text()[:10])
	if _, err := admin.Exec(t.Context(), `CREATE DATABASE `+name+` TEMPLATE template0 `+locale); err != nil {
		t.Skipf("this server has no such locale: %v", err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func (h *environment) install(pool *pgxpool.Pool) {
	h.Helper()
	if err := pool.AcquireFunc(h.Context(), func(conn *pgxpool.Conn) error { return schema.Up(h.Context(), conn.Conn()) }); err != nil {
		h.Fatal(err)
	}
}

func (h *environment) exec(sql string, args ...any) {
	h.Helper()
	if _, err := h.admin.Exec(h.Context(), sql, args...); err != nil {
		h.Fatalf("%s: %v", sql, err)
	}
}

// text returns a text that the profile allows.
func (h *environment) text(s string) string {
	if h.ascii {
		return strings.Map(func(r rune) rune { return r & 127 }, s)
	}
	return s
}

// chore is a job that specifies how it ends.
type chore struct {
	Do string `json:"do"`
	N  int64  `json:"n"`
}

func (chore) Kind() string { return "chore" }

// sqlEffect is the effect of a handler.
const sqlEffect = `INSERT INTO elsewhere.effect VALUES ($1)`

// live checks the promises of the engine and of the hub, with the real worker and hub.
func (h *environment) live(pooled bool) {
	h.Helper()
	through := h.url
	if pooled {
		through = pgtest.Bouncer(h.T, h.url)
	}
	client := weir.NewClient(pgtest.Pool(h, through)) // prepares statements, through a pooler too
	handlers := through                               // for handlers' own statements
	if pooled {
		handlers = configuredForPooler(through)
		// In every session, another process of the application has already prepared what handlers run.
		inEverySession(h.T, through, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sqlEffect, 0)
			return err
		})
	}
	log := &pgtest.Log{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	h.Cleanup(func() {
		settings, text := split(log)
		if text != "" {
			h.Errorf("complaints:\n%s", text)
		}
		if !slices.Equal(settings, h.says) {
			h.Errorf("the worker reports the settings %v as bad, want %v", settings, h.says)
		}
	})
	hub := hubtest.Start(h, through, log)
	h.work(client, pgtest.Pool(h, handlers), logger)
	h.listen(client, hub, logger)
}

// patiently repeats a call while an impatient role's timeouts end it, or end its session before: on a busy machine they do.
func patiently[T any](h *environment, what string, call func() (T, error)) (answer T) {
	h.Helper()
	eventually(h.T, func() (err error) {
		var refused *pgconn.PgError
		answer, err = call()
		// query_canceled, idle_session_timeout, idle_in_transaction_session_timeout
		late := errors.As(err, &refused) && slices.Contains([]string{"57014", "57P05", "25P03"}, refused.Code)
		if err != nil && !late && !pgconn.SafeToRetry(err) {
			h.Fatalf("%s: %v", what, err)
		}
		return err
	})
	return answer
}

// work checks that jobs complete, also in the handler's transaction, are retried, snoozed, failed, cancelled, and rescued from a killed worker; and that their
// space is reclaimed, with one unfinished job carried over.
func (h *environment) work(client *weir.Client, pool *pgxpool.Pool, logger *slog.Logger) {
	h.Helper()
	r := &rig{t: h.T, client: client}
	enqueue := func(do string, o *weir.Options) int64 {
		h.Helper()
		return patiently(h, "enqueue", func() (weir.Enqueued, error) { return client.Enqueue(h.Context(), chore{do, 1}, o) }).ID
	}
	killed := enqueue("complete", nil)
	var dead int32
	if err := h.admin.QueryRow(h.Context(), `SELECT weir._start('killed', ARRAY['default'], '1 second')`).Scan(&dead); err != nil {
		h.Fatal(err)
	}
	h.exec(`SELECT FROM weir._claim($1, ARRAY['default'], ARRAY[10])`, dead)

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[chore]) error {
		if job.Attempt == 1 {
			switch job.Args.Do {
			case "retry":
				return weir.RetryAfter(50*time.Millisecond, errors.New(h.text("grüße")))
			case "snooze":
				_, err := pool.Exec(ctx, sqlEffect, -job.ID)
				if err == nil {
					return weir.Snooze(50 * time.Millisecond)
				}
			case "fail":
				return weir.Fail(errors.New("for good"))
			}
		}
		if job.Args.Do == "tx" {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, sqlEffect, job.ID); err != nil {
					return err
				}
				return job.CompleteTx(ctx, tx)
			})
		}
		job.SetOutput(h.text("größe"))
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8}, Lease: 20 * time.Second, Logger: logger,
		Retry: func(int, error) time.Duration { return 50 * time.Millisecond }})
	if err != nil {
		h.Fatal(err)
	}
	ctx, stop := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	h.Cleanup(func() {
		stop()
		if err := pgtest.Receive(h, ended, "the worker has stopped"); err != nil {
			h.Errorf("the worker: %v", err)
		}
	})
	for range 20 {
		enqueue("complete", nil)
	}
	for id, want := range map[int64]weir.State{
		killed: weir.StateCompleted, enqueue("retry", nil): weir.StateCompleted, enqueue("snooze", nil): weir.StateCompleted, enqueue("tx", nil): weir.StateCompleted, enqueue("fail", nil): weir.StateFailed,
		enqueue("later", &weir.Options{RunAt: time.Now().Add(200 * time.Millisecond)}): weir.StateCompleted,
	} {
		if job := r.await(id, want); want == weir.StateCompleted && (job.Output == nil || *job.Output != h.text("größe")) && job.Kind == "chore" && !bytes.Contains(job.Args, []byte(`"tx"`)) {
			h.Errorf("job %d has the output %v", id, job.Output)
		}
	}
	later := enqueue("complete", &weir.Options{Queue: "nobody's"})
	far := enqueue("complete", &weir.Options{RunAt: time.Now().Add(time.Hour)})
	if state := patiently(h, "cancel", func() (weir.State, error) { return client.CancelJob(h.Context(), far) }); state != weir.StateCancelled {
		h.Errorf("cancel: %q", state)
	}
	patiently(h, "retry", func() (weir.State, error) { return client.RetryJob(h.Context(), killed) })
	r.await(killed, weir.StateCompleted)
	if queues := patiently(h, "queues", func() ([]weir.QueueInfo, error) { return client.Queues(h.Context()) }); len(queues) != 2 {
		h.Errorf("queues: %v", queues)
	}
	if workers := patiently(h, "workers", func() ([]weir.WorkerInfo, error) { return client.Workers(h.Context()) }); len(workers) != 2 {
		h.Errorf("workers: %v", workers)
	}
	patiently(h, "set", func() (struct{}, error) { return struct{}{}, client.Set(h.Context(), "completed_retention", "0 s") })
	// The segment with all these jobs is reclaimed, and the unfinished job is in another.
	eventually(h.T, func() error {
		var back bool
		if err := h.admin.QueryRow(h.Context(), `SELECT EXISTS (SELECT FROM weir.segment s WHERE s.log = 'job' AND s.event = 'reclaimed' AND s.at > (SELECT min(o.at) FROM weir.segment o WHERE o.log = 'job' AND o.event = 'closed'))`).Scan(&back); err != nil || !back {
			return fmt.Errorf("no segment was reclaimed: %w", err)
		}
		return nil
	})
	r.await(later, weir.StateAvailable)
}

// listen checks that messages arrive in order, from a hub and directly from the database, and that subscriptions continue where they were.
func (h *environment) listen(client *weir.Client, hub string, logger *slog.Logger) {
	h.Helper()
	for name, config := range map[string]weir.SubscribeConfig{"hub": {Hubs: []string{"http://" + hub}}, "database": {Client: client}} {
		config.Channels, config.Logger = []string{name + ".>"}, logger
		published := 0
		publish := func() {
			text := []byte(h.text(fmt.Sprintf("%d grüße", published)))
			patiently(h, "publish", func() (struct{}, error) {
				return struct{}{}, client.Publish(h.Context(), name+".news", text, &weir.PublishOptions{Binary: published%2 == 0})
			})
			published++
		}
		// read subscribes from the last position, and checks that these messages arrive.
		read := func(first, last int) {
			h.Helper()
			sub, err := weir.Subscribe(h.Context(), config)
			if err != nil {
				h.Fatalf("subscribe to the %s: %v", name, err)
			}
			defer sub.Close()
			ctx, cancel := context.WithTimeout(h.Context(), deadline)
			defer cancel()
			for i := first; i <= last; i++ {
				if published <= last {
					publish()
				}
				event, err := sub.Next(ctx)
				if want := h.text(fmt.Sprintf("%d grüße", i)); err != nil || event.Message == nil || string(event.Message.Payload) != want {
					h.Fatalf("from the %s: got %+v, %v; want %q", name, event, err, want)
				}
				config.After = sub.Position()
			}
		}
		read(0, 2)
		publish()
		publish()
		read(3, 6)
	}
}

var adverseSetting = regexp.MustCompile(`is bad for Weir" setting=(\w+)`)

// split returns the settings that the worker reports as bad, except those of all test servers, and the rest of its log, except the lines expected in
// every case: that jobs of the killed worker were rescued, and that one failed.
func split(log *pgtest.Log) (settings []string, text string) {
	var rest []string
	for line := range strings.Lines(log.String()) {
		line = strings.TrimSpace(line)
		if named := adverseSetting.FindStringSubmatch(line); named != nil {
			if named[1] != "fsync" && named[1] != "full_page_writes" {
				settings = append(settings, named[1])
			}
		} else if !strings.Contains(line, "lost workers") && !strings.Contains(line, "job failed for good") {
			rest = append(rest, line)
		}
	}
	return settings, strings.Join(rest, "\n")
}
