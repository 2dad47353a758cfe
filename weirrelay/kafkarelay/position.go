package kafkarelay

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
)

// The position is the metadata of an offset that is committed, in the transaction of the records, for a consumer group in which nobody consumes. An offset belongs to
// a partition: it is committed for the first one of the topic of the last record. The offset itself is how many records the relay has sent, so that the one with
// the largest offset is the newest.

// commitPosition commits the position in the current transaction, in which something has been written already.
func (t *Target) commitPosition(ctx context.Context, last *weirrelay.Record, passed int64) error {
	id, epoch, err := t.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = t.id, id, epoch, t.id
	added, err := add.RequestWith(ctx, t.client)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return err
	}
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Offset, partition.Metadata = passed, (*string)(&last.Position)
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = last.Subject, []kmsg.TxnOffsetCommitRequestTopicPartition{partition}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = t.id, id, epoch, t.id
	commit.Topics = []kmsg.TxnOffsetCommitRequestTopic{topic}
	committed, err := commit.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	for _, topic := range committed.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

// readPosition reads the newest position, waiting until none is undecided.
func (t *Target) readPosition(ctx context.Context) error {
	t.at, t.passed = "", 0
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group, group.Topics = t.id, nil // all topics
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Groups, fetch.RequireStable = []kmsg.OffsetFetchRequestGroup{group}, true
	fetched, err := fetch.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	for _, group := range fetched.Groups {
		if err := kerr.ErrorForCode(group.ErrorCode); err != nil {
			return err
		}
		for _, topic := range group.Topics {
			for _, partition := range topic.Partitions {
				if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
					return err
				}
				if partition.Metadata != nil && *partition.Metadata != "" && partition.Offset >= t.passed {
					t.at, t.passed = weir.Position(*partition.Metadata), partition.Offset
				}
			}
		}
	}
	return nil
}
