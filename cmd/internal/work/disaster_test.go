package work_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// work records as completed what it gets, with its id as the output, until a condition holds.
func (k *socket) work(until func() bool) {
	k.t.Helper()
	for !until() {
		var ends []m
		for _, j := range k.next().Jobs {
			ends = append(ends, m{"token": j.Token, "output": fmt.Sprint(j.ID)})
		}
		if len(ends) > 0 {
			k.send(m{"type": "record", "id": 1, "ends": ends})
		}
	}
}

// TestWorkersSurviveAFailover: a session goes on at its hub, whose database fails over to its standby while jobs run: each job of the standby completes.
func TestWorkersSurviveAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Installed(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	both := pgtest.EitherOf(t, primary, standby, "postgres")
	s := &site{t: t, database: both, pool: pgtest.Pool(t, primary.URL("postgres"))}
	s.server = s.hub(shortLease)
	s.url = "http://" + s.server.HTTPAddr().String()
	const jobs = 200
	if _, err := s.pool.Exec(t.Context(), `SELECT weir.enqueue_many(queue => array_agg('mail'::text), kind => array_agg('any'::text), args => array_agg('{}'::jsonb)) FROM generate_series(1, $1) n`, jobs); err != nil {
		t.Fatal(err)
	}
	pgtest.Replayed(t, primary, standby)
	k, _ := s.dial(m{"queues": m{"mail": 10}})
	held := k.next().Jobs // running while the server dies
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	s.pool = pgtest.Pool(t, standby.URL("postgres"))
	var ends []m
	for _, j := range held {
		ends = append(ends, m{"token": j.Token, "output": fmt.Sprint(j.ID)})
	}
	k.send(m{"type": "record", "id": 1, "ends": ends})
	k.work(func() bool {
		var left int
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM generate_series(1, $1) n, weir.job_info(n) j WHERE j.state <> 'completed' OR j.output <> n::text`, jobs).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	id := s.enqueue("mail", "welcome", "{}")
	k.work(func() bool { return strings.HasPrefix(s.state(id), "completed") })
}

// TestAHubThatWasSuspendedGoesOn: a hub that did not run for longer than its lease has lost its jobs to others, tells its sessions so, and goes on to serve them.
func TestAHubThatWasSuspendedGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t, shortLease)
	hub := startChild(t, s.database)
	there := *s
	there.url = hub.url
	k, _ := there.dial(m{"queues": m{"mail": 1}})
	id := s.enqueue("mail", "welcome", "{}")
	before := k.next().Jobs[0]
	if err := hub.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w, _ := s.dial(m{"queues": m{"mail": 1}}) // a session, which keeps what it has, however long the rest takes
	after := w.next().Jobs[0]
	if after.ID != id || after.Token == before.Token {
		t.Errorf("the other hub gives %+v", after)
	}
	w.send(m{"type": "slots", "queues": m{"mail": 0}}) // the next job is for the first session
	w.send(m{"type": "ping"})
	if f := w.next(); f.Type != "pong" {
		t.Errorf("%+v", f)
	}
	if err := hub.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{before.Token, "lost"}) {
		t.Errorf("its session is told %+v", f)
	}
	if r := there.record(m{"token": before.Token, "output": "late"}, m{"token": after.Token, "output": "in time"}); r[0] != "lost" && r[0] != "ended" || r[1] != "" {
		t.Error(r)
	}
	s.until(id, "completed 2 in time")
	next := s.enqueue("mail", "welcome", "{}")
	if j := k.next().Jobs; len(j) != 1 || j[0].ID != next {
		t.Errorf("its session gets %+v", j)
	}
}

// TestHubsBehindAPooler: a hub whose sessions are a pooler's, in transaction mode, hands out jobs, renews and records as another does.
func TestHubsBehindAPooler(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := &site{t: t, database: pgtest.Database(t)}
	s.pool = pgtest.Pool(t, s.database)
	through := pgtest.BouncerOf(t, s.database, 4) // each of the two hubs waits in one for what is published
	pooled := func(name string) func(c *server.Config) {
		return func(c *server.Config) {
			shortLease(c)
			c.Name, c.Database = name, through
		}
	}
	s.server = s.hub(pooled("first"))
	s.url = "http://" + s.server.HTTPAddr().String()
	other := s.at(s.hub(pooled("other")))
	kept := s.enqueue("mail", "welcome", "{}")
	k, f := s.dial(m{"queues": m{"mail": 1}})
	j := k.next().Jobs[0]
	const jobs = 300
	if _, err := s.pool.Exec(t.Context(), `SELECT weir.enqueue_many(queue => array_agg('files'::text), kind => array_agg('any'::text), args => array_agg('{}'::jsonb)) FROM generate_series(1, $1) n`, jobs); err != nil {
		t.Fatal(err)
	}
	at, recorded := []*site{s, other}, 0
	for worker, deadline := "", time.Now().Add(generous); recorded < jobs; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d jobs are recorded", recorded, jobs)
		}
		a := at[(recorded+1)%2].take(m{"worker": worker, "queues": m{"files": 20}})
		worker = a.Worker
		var ends []m
		for _, j := range a.Jobs {
			ends = append(ends, m{"token": j.Token})
		}
		if len(ends) > 0 {
			for _, r := range at[len(ends)%2].record(ends...) {
				if r == "" {
					recorded++
				} else {
					t.Logf("refused: %s", r)
				}
			}
		}
	}
	if is := s.state(kept); is != "running 1" {
		t.Error(is)
	}
	_ = k.conn.CloseNow()
	k, _ = other.dial(m{"queues": m{"mail": 1}, "worker": f.Worker, "held": []string{j.Token}})
	s.cancel(kept)
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{j.Token, "cancelled"}) {
		t.Errorf("%+v", f)
	}
	k.send(m{"type": "record", "id": 1, "ends": []m{{"token": j.Token, "outcome": "cancelled"}}})
	if f := k.next(); f.Type != "recorded" || !f.Results[0].Recorded {
		t.Errorf("%+v", f)
	}
}

// TestAHubWhoseRoleIsRevokedSaysSo: and keeps its sessions, which get jobs again when it has its role again.
func TestAHubWhoseRoleIsRevokedSaysSo(t *testing.T) {
	t.Parallel()
	s := &site{t: t, database: pgtest.Database(t)}
	s.pool = pgtest.Pool(t, s.database)
	role := strings.ToLower("hub_" + t.Name())
	do := func(sql string) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	do(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'geheim' IN ROLE weir_hub, weir_work`)
	t.Cleanup(func() { _, _ = s.pool.Exec(t.Context(), `DROP ROLE `+role) })
	u, err := url.Parse(s.database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "geheim")
	log := &pgtest.Log{}
	defer func() {
		if t.Failed() {
			t.Log(log)
		}
	}()
	s.server = s.hub(func(c *server.Config) { shortLease(c); c.Database, c.Logger = u.String(), log.Logger() })
	s.url = "http://" + s.server.HTTPAddr().String()
	k, _ := s.dial(m{"queues": m{"mail": 2}})
	id := s.enqueue("mail", "welcome", "{}")
	j := k.next().Jobs[0]
	do(`REVOKE weir_work FROM ` + role)
	const says = "its user lacks the role weir_work"
	waits := make(chan answer, 1)
	go func() {
		for {
			if status, a := s.call("POST", "/v1/work/take", m{"queues": m{"mail": 1}, "wait": 60}); status != http.StatusOK {
				waits <- a
				return
			}
		}
	}()
	if status, a := s.call("POST", "/v1/jobs", m{"queue": "mail", "kind": "welcome"}); status != http.StatusServiceUnavailable || !strings.Contains(a.Error, says) {
		t.Errorf("to enqueue is answered with %d %+v", status, a)
	}
	f := k.next()
	for f.Type == "cancel" || f.Type == "recorded" { // the lease of its attempt may end meanwhile
		f = k.next()
	}
	if f.Type != "error" || f.Code != "unavailable" || !strings.Contains(f.Error, says) {
		t.Errorf("the session is told %+v", f)
	}
	if a := pgtest.Receive(t, waits, "a call of take"); a.Code != "unavailable" || !strings.Contains(a.Error, says) {
		t.Errorf("a call that waits is answered with %+v", a)
	}
	do(`GRANT weir_work TO ` + role)
	k.send(m{"type": "record", "id": 1, "ends": []m{{"token": j.Token}}})
	next := s.enqueue("mail", "welcome", "{}")
	k.work(func() bool {
		return strings.HasPrefix(s.state(id), "completed") && strings.HasPrefix(s.state(next), "completed")
	})
}
