package relay_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// to returns records for these keys, streams or queues.
func to(subjects ...string) (all []weirrelay.Record) {
	for n, subject := range subjects {
		at := weir.Position(fmt.Sprintf("7.1.%d", n+1))
		all = append(all, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "c", Subject: subject, Key: "k", Payload: []byte(strconv.Itoa(n)), Headers: map[string]string{}})
	}
	return all
}

// limited returns a target whose user may do everything but this, and what gives it all rights.
func limited(t *testing.T, c *redis.Client, form redisrelay.Form, rights ...any) (target *redisrelay.Target, allow func()) {
	t.Helper()
	user := func(rights ...any) {
		t.Helper()
		if err := c.Do(t.Context(), append([]any{"ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all", "~*"}, rights...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	user(rights...)
	own := redis.NewClient(&redis.Options{Addr: c.Options().Addr, Username: "limited", Password: "secret"})
	t.Cleanup(func() { own.Close() })
	target, err := redisrelay.New(redisrelay.Config{Client: own, Name: "r", Form: form})
	if err != nil {
		t.Fatal(err)
	}
	return target, func() { user() }
}

// sendAgain sends records to a target, as a relay does after an error.
func sendAgain(t *testing.T, target *redisrelay.Target, records []weirrelay.Record) {
	t.Helper()
	at, err := target.Begin(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	rest, _ := weirrelay.Behind(records, at)
	if err := target.Send(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
}

// TestWhatRedisForbidsIsDoneOnceWhenItIsAllowed: whichever command its ACL forbids in the middle of a batch, or whichever key, nothing is doubled, or lost, when it is allowed.
func TestWhatRedisForbidsIsDoneOnceWhenItIsAllowed(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List, redisrelay.Sidekiq, redisrelay.BullMQ} {
		for _, command := range []string{"set", "get", "type", "lpush", "sadd", "xadd", "hset", "hmget", "zadd", "llen"} {
			forbid(t, c, form, "-"+command)
		}
	}
	const onlyRead = "%R~*"
	forbid(t, c, redisrelay.List, "resetkeys", onlyRead, "~weir:*", "~first")
	forbid(t, c, redisrelay.Stream, "resetkeys", onlyRead, "~weir:*", "~first")
	forbid(t, c, redisrelay.Sidekiq, "resetkeys", onlyRead, "~weir:*", "~queue:first", "~queues")
	forbid(t, c, redisrelay.BullMQ, "resetkeys", onlyRead, "~weir:*", "~bull:first:*", "~bull:second:r-*")
	forbid(t, c, redisrelay.BullMQ, "resetkeys", onlyRead, "~weir:*", "~bull:first:*", "~bull:second:r-*", "~bull:second:events", "~bull:second:marker")
}

func forbid(t *testing.T, c *redis.Client, form redisrelay.Form, rights ...any) {
	t.Helper()
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	records := to("first", "second", "first")
	if form == redisrelay.Sidekiq {
		for i := range records {
			records[i].Headers["class"] = "C"
		}
	}
	target, allow := limited(t, c, form, rights...)
	for range 2 {
		if _, err := target.Begin(t.Context(), ""); err != nil {
			break // it may not even read its position
		}
		rest, _ := weirrelay.Behind(records, weir.Position(c.Get(t.Context(), "weir:relay:r").Val()))
		if err := target.Send(t.Context(), rest); err == nil {
			break // this form does without the command
		}
	}
	allow()
	sendAgain(t, target, records)
	got := strings.Join([]string{count(t, c, form, "first"), count(t, c, form, "second")}, " ")
	if got != "2 1" || c.Get(t.Context(), "weir:relay:r").Val() != "7.1.3" {
		t.Errorf("%s %v: there are %s records, want 2 and 1; the position is %s", form, rights, got, c.Get(t.Context(), "weir:relay:r").Val())
	}
}

// count counts what is in a queue, stream or list, if it is whole.
func count(t *testing.T, c *redis.Client, form redisrelay.Form, name string) string {
	t.Helper()
	switch form {
	case redisrelay.Stream:
		return fmt.Sprint(c.XLen(t.Context(), name).Val())
	case redisrelay.Sidekiq:
		if !c.SIsMember(t.Context(), "queues", name).Val() {
			return "unknown"
		}
		return fmt.Sprint(c.LLen(t.Context(), "queue:"+name).Val())
	case redisrelay.BullMQ:
		for _, id := range c.LRange(t.Context(), "bull:"+name+":wait", 0, -1).Val() {
			if n := c.HLen(t.Context(), "bull:"+name+":"+id).Val(); n != 6 {
				return fmt.Sprintf("broken (%d fields)", n)
			}
		}
		return fmt.Sprint(c.LLen(t.Context(), "bull:"+name+":wait").Val())
	}
	return fmt.Sprint(c.LLen(t.Context(), name).Val())
}

// TestAJobThatRedisForbidsIsPushedWhenItIsAllowed: it does not count as one that is there, although its user may not delete what says so.
func TestAJobThatRedisForbidsIsPushedWhenItIsAllowed(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	target, allow := limited(t, c, redisrelay.List, "-lpush", "-del")
	record := weirrelay.Record{ID: "r/7", Subject: "jobs", Payload: []byte("{}"), Job: &weir.JobMeta{ID: 7, Queue: "q", Kind: "k"}}
	if err := target.Send(t.Context(), []weirrelay.Record{record}); err == nil {
		t.Fatal("the job was pushed")
	}
	allow()
	pgtest.Until(t, "nothing says that the job is there", func() bool { return c.Exists(t.Context(), "weir:relay:r:7").Val() == 0 })
	for range 2 {
		if err := target.Send(t.Context(), []weirrelay.Record{record}); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.LLen(t.Context(), "jobs").Val(); n != 1 {
		t.Errorf("there are %d jobs, want 1", n)
	}
}

// TestRedisGetsNoMoreArgumentsAtOnceThanItTakes: before version 7 it takes a million. The rest comes with the next script.
func TestRedisGetsNoMoreArgumentsAtOnceThanItTakes(t *testing.T) {
	t.Parallel()
	const records, half = 110_000, 500_000
	c := startRedis(t).client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r", Form: redisrelay.List})
	if err != nil {
		t.Fatal(err)
	}
	subjects := make([]string, records)
	for i := range subjects {
		subjects[i] = "list"
	}
	if err := target.Send(t.Context(), to(subjects...)); err != nil {
		t.Fatal(err)
	}
	if n := c.LLen(t.Context(), "list").Val(); n != records {
		t.Errorf("there are %d records, want %d", n, records)
	}
	if stats := c.Info(t.Context(), "commandstats").Val(); !strings.Contains(stats, "cmdstat_set:calls=2,") {
		t.Errorf("of %d arguments, at most %d at once, there were not two scripts: %s", 5*records, half, stats)
	}
}
