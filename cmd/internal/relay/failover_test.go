package relay_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// failingOver is a primary that dies, its standby, and what both are relayed to.
type failingOver struct {
	primary, standby *embedded.Server
	both             *pgxpool.Pool // of whichever is the primary
	redis            *redis.Client
	js               jetstream.JetStream
	natsURL          string
	to               *pgxpool.Pool // another database
	read             map[string]func() []string
}

func newFailingOver(t *testing.T) *failingOver {
	t.Helper()
	f := newRestored(t)
	f.standby = pgtest.Standby(t, f.primary, nil)
	f.both = pgtest.Pool(t, pgtest.EitherOf(t, f.primary, f.standby, "postgres")+"&pool_max_conns=80")
	return f
}

// newRestored returns a primary without a standby.
func newRestored(t *testing.T) *failingOver {
	t.Helper()
	f := &failingOver{primary: pgtest.Installed(t, nil), redis: startRedis(t).client(), to: pgtest.Pool(t, pgtest.Database(t)), read: map[string]func() []string{}}
	f.both = pgtest.Pool(t, f.primary.URL("postgres")+"&pool_max_conns=80")
	f.natsURL = jetStream(t).ClientURL()
	_, f.js = dial(t, f.natsURL)
	return f
}

// target returns a target for the relay of a name, into what has the same name there.
func (f *failingOver) target(t *testing.T, what, name string) weirrelay.Target {
	t.Helper()
	switch what {
	case "NATS":
		if _, err := f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, AllowAtomicPublish: true}); err != nil {
			t.Fatal(err)
		}
		nc, _ := dial(t, f.natsURL)
		target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: name, Stream: name})
		if err != nil {
			t.Fatal(err)
		}
		f.read[name] = func() []string { return stored(t, f.js, name, 0) }
		return target
	case "database":
		f.read[name] = func() []string {
			return texts(t, f.to, `SELECT m.text FROM (SELECT id, convert_from(payload, 'UTF8') AS text FROM weir.message WHERE channel = $1 UNION ALL SELECT id, args::text FROM weir.job WHERE kind = $1) m ORDER BY m.id`, name)
		}
		return &weirrelay.Database{Pool: f.to, Name: name}
	}
	form := redisrelay.Form(what)
	target, err := redisrelay.New(redisrelay.Config{Client: f.redis, Name: name, Form: form})
	if err != nil {
		t.Fatal(err)
	}
	f.read[name] = func() (all []string) {
		if form != redisrelay.Stream {
			return listed(t, f.redis, form, name)
		}
		for _, e := range f.redis.XRange(t.Context(), name, "-", "+").Val() {
			all = append(all, e.Values["payload"].(string))
		}
		return all
	}
	return target
}

// listed returns the payloads in a list, or in a queue of BullMQ.
func listed(t *testing.T, c *redis.Client, form redisrelay.Form, name string) (all []string) {
	t.Helper()
	if form == redisrelay.BullMQ {
		for _, id := range list(t, c, "bull:"+name+":wait") {
			all = append(all, c.HGet(t.Context(), "bull:"+name+":"+id, "data").Val())
		}
		return all
	}
	return list(t, c, name)
}

// list returns the elements of a list, of which the newest is at the left.
func list(t *testing.T, c *redis.Client, key string) []string {
	t.Helper()
	all := c.LRange(t.Context(), key, 0, -1).Val()
	slices.Reverse(all)
	return all
}

func texts(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// has waits until exactly these have arrived; in any order, if they are jobs.
func (f *failingOver) has(t *testing.T, name string, want []string, jobs bool) {
	t.Helper()
	var got []string
	pgtest.Until(t, fmt.Sprintf("%s has %d", name, len(want)), func() bool {
		got = slices.Clone(f.read[name]())
		return len(got) >= len(want)
	})
	if want = slices.Clone(want); jobs {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", name, got, want)
	}
}

// cutOff returns when the standby has everything so far, and will get nothing more.
func (f *failingOver) cutOff(t *testing.T) {
	t.Helper()
	pgtest.Replayed(t, f.primary, f.standby)
	pgtest.CutOff(t, f.standby)
}

func (f *failingOver) failOver(t *testing.T) *pgxpool.Pool {
	t.Helper()
	if err := f.primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, f.standby)
	return pgtest.Pool(t, f.standby.URL("postgres"))
}

// TestAFailoverThatLostMessagesIsAGapAndNothingElse: a standby that lags is promoted. A target has messages then that the database has lost, and gets each of those that are published from then on once and in
// order, although they have the numbers of the lost ones; from a relay that lived through the failover, and from one that begins when the new log is longer than the old one was. Each says so.
func TestAFailoverThatLostMessagesIsAGapAndNothingElse(t *testing.T) {
	t.Parallel()
	f := newFailingOver(t)
	f.losesMessages(t, func() { f.cutOff(t) }, func() *pgxpool.Pool { return f.failOver(t) })
}

// TestADatabaseThatIsRestoredFromItsDiskIsAGapAndNothingElse: from a copy of it, so on the same timeline, while its targets are ahead.
func TestADatabaseThatIsRestoredFromItsDiskIsAGapAndNothingElse(t *testing.T) {
	t.Parallel()
	f := newRestored(t)
	dir := f.dataDirectory(t)
	f.losesMessages(t, func() { f.restore(t, dir, dir+".copy") }, func() *pgxpool.Pool {
		f.restore(t, dir+".copy", dir)
		return pgtest.Pool(t, f.primary.URL("postgres"))
	})
}

func (f *failingOver) dataDirectory(t *testing.T) (dir string) {
	t.Helper()
	if err := f.both.QueryRow(t.Context(), `SHOW data_directory`).Scan(&dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// restore kills the primary, replaces one directory by a copy of another, and starts it again.
func (f *failingOver) restore(t *testing.T, from, to string) {
	t.Helper()
	if err := f.primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := f.primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// losesMessages relays messages, of which some are published after hold, and lost by setBack, which returns how to reach the database then.
func (f *failingOver) losesMessages(t *testing.T, hold func(), setBack func() *pgxpool.Pool) {
	t.Helper()
	type relay struct {
		name, what string
		config     weirrelay.Config
		gaps       atomic.Int32
		log        pgtest.Log
		stop       func()
	}
	var relays []*relay
	for _, what := range []string{string(redisrelay.Stream), "NATS", "database"} {
		for _, how := range []string{"lives", "anew"} {
			r := &relay{name: unique(what + "-" + how), what: what}
			r.config = weirrelay.Config{Name: r.name, Pool: f.both, Target: f.target(t, what, r.name), Since: time.Now().Add(-time.Hour), Logger: r.log.Logger(), Routes: []weirrelay.Route{{Channels: "c", Subject: r.name}},
				Observe: func(p weirrelay.Progress) {
					if p.Gap != nil {
						r.gaps.Add(1)
					}
				}}
			r.stop = run(t, r.config)
			relays = append(relays, r)
		}
	}
	var want []string
	say := func(pool *pgxpool.Pool, what string, n int, to func(r *relay) bool) {
		t.Helper()
		newest := func() (tick int64) {
			if err := pool.QueryRow(t.Context(), `SELECT weir.newest_tick()`).Scan(&tick); err != nil {
				t.Fatal(err)
			}
			return tick
		}
		for i := range n { // each in a tick of its own
			before := newest()
			want = append(want, fmt.Sprintf(`{"%s": %d}`, what, i))
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', $1)`, want[len(want)-1]); err != nil {
				t.Fatal(err)
			}
			pgtest.Until(t, "a tick is cut", func() bool { return newest() > before })
		}
		for _, r := range relays {
			if to(r) {
				f.has(t, r.name, want, false)
			}
		}
	}
	lives := func(r *relay) bool { return strings.Contains(r.name, "-lives-") }
	all := func(*relay) bool { return true }
	old := pgtest.Pool(t, f.primary.URL("postgres"))
	say(old, "kept", 3, all)
	for _, r := range relays {
		if !lives(r) { // so that it is recorded how far it has come
			r.stop()
			r.stop = run(t, r.config)
		}
	}
	hold()
	old.Reset()
	say(old, "lost", 10, all)
	for _, r := range relays {
		if !lives(r) {
			r.stop()
		}
	}
	after := setBack()
	say(after, "new", 15, lives)
	for _, r := range relays {
		if !lives(r) {
			run(t, r.config)
		}
	}
	say(after, "last", 1, all)
	for _, r := range relays {
		// A relay into NATS that begins finds what is there by its ids, and can't tell which of them the database has lost.
		if n := r.gaps.Load(); n != 1 && (r.what != "NATS" || lives(r)) {
			t.Errorf("%s: %d gaps, want one", r.name, n)
		} else if n == 1 && r.log.Count("messages may be missing") != 1 {
			t.Errorf("%s: the log does not say that messages may be missing:\n%s", r.name, r.log.String())
		}
	}
}

// TestJobsThatGetTheIdsOfLostOnesArePassedOn: after a failover that has lost jobs, which a target has. Jobs whose completion alone was lost, are not doubled.
func TestJobsThatGetTheIdsOfLostOnesArePassedOn(t *testing.T) {
	t.Parallel()
	f := newFailingOver(t)
	names := map[string]string{}
	for _, what := range []string{string(redisrelay.List), string(redisrelay.BullMQ), "NATS", "database"} {
		names[what] = unique(what)
	}
	ids := map[int64]int{}
	var want []string
	enqueue := func(pool *pgxpool.Pool, what string, n int) {
		t.Helper()
		for i := range n {
			want = append(want, fmt.Sprintf(`{"n": "%s %d"}`, what, i))
		}
		for _, name := range names {
			rows, err := pool.Query(t.Context(), `SELECT unnest(weir.enqueue_many(array_fill($1::text, ARRAY[$2::integer]), array_fill($1, ARRAY[$2]), $3::jsonb[]))`, name, n, want[len(want)-n:])
			if err != nil {
				t.Fatal(err)
			}
			made, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil || len(made) != n {
				t.Fatalf("%d jobs, %v", len(made), err)
			}
			for _, id := range made {
				ids[id]++
			}
		}
	}
	arrive := func() {
		t.Helper()
		for _, name := range names {
			f.has(t, name, want, true)
		}
	}
	old := pgtest.Pool(t, f.primary.URL("postgres"))
	enqueue(old, "held", 5)
	f.cutOff(t)
	for what, name := range names {
		target := f.target(t, what, name)
		relaying(t, func(ctx context.Context) error {
			return weirrelay.RunJobs(ctx, weirrelay.JobsConfig{Name: name, Pool: f.both, Target: target, Routes: []weirrelay.Route{{Queue: name}}})
		})
	}
	enqueue(old, "lost", 100)
	arrive()
	promoted := f.failOver(t)
	enqueue(promoted, "new", 100)
	arrive()
	again := 0
	for _, n := range ids {
		again += n - 1
	}
	if again == 0 {
		t.Error("no id was used again")
	}
	pgtest.Until(t, "all jobs have completed", func() bool {
		return texts(t, promoted, `SELECT count(*)::text FROM (SELECT FROM weir.jobs('available') UNION ALL SELECT FROM weir.jobs('running')) k`)[0] == "0"
	})
	arrive()
}
