package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/kafkarelay"
)

func (s *kafkaServer) source(t *testing.T, topic string, isNew bool) *kafkarelay.Source {
	t.Helper()
	source, err := kafkarelay.NewSource(kafkarelay.SourceConfig{Options: []kgo.Opt{kgo.SeedBrokers(s.address()), kgo.FetchMaxWait(250 * time.Millisecond)}, Topic: topic, New: isNew})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	return source
}

// TestATopicIsReadAsItChanges: records that it no longer has are a gap, new partitions are read, of transactions only what is committed, and a topic that was made anew is read from its beginning.
func TestATopicIsReadAsItChanges(t *testing.T) {
	t.Parallel()
	kafka, topic, pool := sharedKafka(t), unique("in"), pgtest.Pool(t, pgtest.Database(t))
	kafka.createTopic(t, topic, 1)
	dial := func() *kgo.Client {
		c, err := kgo.NewClient(kgo.SeedBrokers(kafka.address()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := dial()
	made := 0
	produce := func(partition int32, n int) {
		t.Helper()
		for range n {
			r := &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: fmt.Appendf(nil, `{"n": %d}`, made)}
			pgtest.Eventually(t, func() error {
				c.ForceMetadataRefresh() // the partition may be new
				return c.ProduceSync(t.Context(), r).FirstErr()
			})
			made++
		}
	}
	var gaps atomic.Int32
	begin := func() (stop func()) {
		return relaying(t, func(ctx context.Context) error {
			return weirrelay.RunFrom(ctx, weirrelay.FromConfig{Name: "in", Pool: pool, Source: kafka.source(t, topic, false), Queue: "q", Kind: "k", Key: "{key}", Observe: func(p weirrelay.Progress) {
				if p.Gap != nil {
					gaps.Add(1)
				}
			}})
		})
	}
	until := func(jobs int, missed int32) {
		t.Helper()
		pgtest.Until(t, fmt.Sprintf("%d jobs are there, and %d gaps", jobs, missed), func() bool {
			n := 0
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.job WHERE kind = 'k'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == jobs && gaps.Load() == missed
		})
	}
	produce(0, 5)
	stop := begin()
	until(5, 0)
	stop()

	produce(0, 3)
	partition := kmsg.NewDeleteRecordsRequestTopicPartition()
	partition.Offset = 7
	remove := kmsg.NewPtrDeleteRecordsRequest()
	remove.TimeoutMillis, remove.Topics = 10_000, []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{partition}}}
	if done, err := remove.RequestWith(t.Context(), c); err != nil || kerr.ErrorForCode(done.Topics[0].Partitions[0].ErrorCode) != nil {
		t.Fatalf("%+v, %v", done, err)
	}
	begin()
	until(6, 1)

	more := kmsg.NewPtrCreatePartitionsRequest()
	more.TimeoutMillis, more.Topics = 10_000, []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: 2}}
	if done, err := more.RequestWith(t.Context(), c); err != nil || kerr.ErrorForCode(done.Topics[0].ErrorCode) != nil {
		t.Fatalf("%+v, %v", done, err)
	}
	produce(1, 2)
	until(8, 1)

	tx, err := kgo.NewClient(kgo.SeedBrokers(kafka.address()), kgo.TransactionalID(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tx.Close)
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("in a transaction")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	until(9, 1)

	gone := kmsg.NewPtrDeleteTopicsRequest()
	gone.TimeoutMillis, gone.TopicNames = 10_000, []string{topic}
	gone.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &topic}}
	if done, err := gone.RequestWith(t.Context(), c); err != nil || kerr.ErrorForCode(done.Topics[0].ErrorCode) != nil {
		t.Fatalf("%+v, %v", done, err)
	}
	kafka.createTopic(t, topic, 1)
	c = dial() // the old one knows the old topic
	produce(0, 1)
	until(10, 2)
}
