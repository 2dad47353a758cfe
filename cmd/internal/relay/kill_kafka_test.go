package relay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir/weirrelay/kafkarelay"
)

func dyingKafka(t *testing.T, pool *pgxpool.Pool) *dying {
	kafka := ownKafka(t)
	at := func(relay, settings, topic string, of func([]*kgo.Record) []string) *end {
		kafka.createTopic(t, topic, 1)
		consumer := kafka.consumer(t, topic)
		var read []*kgo.Record
		arrived := func() int {
			read = append(read, poll(t, consumer)...)
			return len(of(read))
		}
		return &end{relay, settings + fmt.Sprintf("kafka = { brokers = %q }", kafka.address()), arrived, func(n int) []string {
			arrive(t, n, "in the topic "+topic, arrived)
			again := of(kafka.read(t, len(read), topic)) // whatever a consumer sees that reads only now
			if !slices.Equal(again, of(read)) {
				t.Errorf("of the topic %s, a consumer that was there all the time has read %d, and one that comes later others: %d", topic, len(of(read)), len(again))
			}
			return again
		}}
	}
	kafka.createTopic(t, "in", 1)
	producer := kafka.consumer(t)
	return &dying{kill: kafka.kill, start: func() { kafka.start(t) },
		messages: []*end{at("messages", messagesTo("orders"), "orders", values)},
		jobs:     at("jobs", jobsTo("jobs"), "jobs", firsts),
		source: &source{
			end: jobsFrom(t, pool, fmt.Sprintf("from_kafka = { brokers = %q, topic = \"in\" }", kafka.address())),
			publish: func(ctx context.Context, n int) error {
				return producer.ProduceSync(ctx, &kgo.Record{Topic: "in", Value: []byte(payload(n))}).FirstErr() // which Kafka takes once, however often the client sends it
			},
			held: func(n int) []string { return values(kafka.read(t, n, "in")) },
		}}
}

// firsts returns jobs without those that came again, which Kafka does not drop: consumers tell them by the id and the time.
func firsts(records []*kgo.Record) (all []string) {
	seen := map[string]bool{}
	for _, r := range records {
		id := header(r, kafkarelay.HeaderJob) + " " + header(r, kafkarelay.HeaderEnqueuedAt)
		if !seen[id] {
			all = append(all, string(r.Value))
		}
		seen[id] = true
	}
	return all
}
