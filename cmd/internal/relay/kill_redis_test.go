package relay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

func dyingRedis(t *testing.T, pool *pgxpool.Pool) *dying {
	server := startRedis(t)
	c := server.client()
	at := func(relay, settings string, form redisrelay.Form) *end {
		return &end{relay, settings + fmt.Sprintf("redis = { url = \"redis://%s\", form = %q }", server.address(), form), func() int { return lengthIn(t, c, form, relay) }, func(n int) []string {
			arrive(t, n, "in "+relay, func() int { return lengthIn(t, c, form, relay) })
			return allIn(t, c, form, relay)
		}}
	}
	b := &dying{kill: server.kill, start: server.start, jobs: at("jobs", jobsTo("jobs"), redisrelay.List)}
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List, redisrelay.Sidekiq, redisrelay.BullMQ} {
		settings := messagesTo(string(form))
		if form == redisrelay.Sidekiq {
			settings = strings.Replace(settings, " }]", `, headers = { class = "Order" } }]`, 1)
		}
		b.messages = append(b.messages, at(string(form), settings, form))
	}
	b.source = &source{
		end: jobsFrom(t, pool, fmt.Sprintf("from_redis = { url = \"redis://%s\", stream = \"in\" }", server.address())),
		publish: func(ctx context.Context, n int) error {
			err := c.XAdd(ctx, &redis.XAddArgs{Stream: "in", ID: fmt.Sprintf("1-%d", n+1), Values: []any{"payload", payload(n)}}).Err()
			if err != nil && strings.Contains(err.Error(), "equal or smaller") {
				return nil // it is there: the answer was lost
			}
			return err
		},
		held: func(int) []string { return allIn(t, c, redisrelay.Stream, "in") },
	}
	return b
}

// keyIn is the key of a stream, list or queue.
func keyIn(form redisrelay.Form, name string) string {
	switch form {
	case redisrelay.Sidekiq:
		return "queue:" + name
	case redisrelay.BullMQ:
		return "bull:" + name + ":wait"
	}
	return name
}

// lengthIn returns how many elements a stream, list or queue has; -1: the server does not answer.
func lengthIn(t *testing.T, c *redis.Client, form redisrelay.Form, name string) int {
	count := c.LLen
	if form == redisrelay.Stream {
		count = c.XLen
	}
	n, err := count(t.Context(), keyIn(form, name)).Result()
	if err != nil {
		return -1
	}
	return int(n)
}

// allIn returns what a stream, list or queue has, in order.
func allIn(t *testing.T, c *redis.Client, form redisrelay.Form, name string) (all []string) {
	t.Helper()
	switch form {
	case redisrelay.BullMQ:
		return listed(t, c, form, name)
	case redisrelay.Stream:
		for _, e := range c.XRange(t.Context(), name, "-", "+").Val() {
			all = append(all, e.Values["payload"].(string))
		}
		return all
	}
	return list(t, c, keyIn(form, name))
}
