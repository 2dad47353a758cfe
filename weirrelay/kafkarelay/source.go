package kafkarelay

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/weir-pg/weir/weirrelay"
)

// SourceConfig specifies a source. Options and Topic are required.
type SourceConfig struct {
	// Options say where Kafka is, and how to connect to it, as in Config.
	Options []kgo.Opt
	// Topic is read, by nobody's consumer group: the relay's position is in the database.
	Topic string
	// New begins with records that arrive from now on, if nothing is recorded of the relay; otherwise it begins with the oldest.
	New bool
}

// Source implements weirrelay.Source: it reads what is committed in a topic, of each partition in order. Its positions are the topic's id, by which one that was
// deleted and made anew is told from the old one, and the next offset of each partition.
type Source struct {
	SourceConfig
	client *kgo.Client
	at     place
	looked time.Time // when partitions were counted last
	lost   []string  // to be returned by the next call of Next
}

// place is a position.
type place struct {
	topic string
	next  []int64 // by partition
}

const (
	maxPartitions = 100              // so that a position has less than 1000 characters
	lookEvery     = 5 * time.Second  // for new partitions, and for a topic that was made anew
	askTimeout    = 30 * time.Second // of a request
	latest        = -1               // as an offset that is asked for
	earliest      = -2
)

// NewSource returns a source, which connects when it is used. Close it at the end.
func NewSource(c SourceConfig) (*Source, error) {
	if err := checkTopic(c.Topic); err != nil {
		return nil, fmt.Errorf("kafkarelay: SourceConfig.Topic: %w", err)
	}
	s := &Source{SourceConfig: c}
	if err := kgo.ValidateOpts(s.options()...); err != nil {
		return nil, fmt.Errorf("kafkarelay: SourceConfig.Options: %w", err)
	}
	return s, nil
}

func (s *Source) options() []kgo.Opt {
	first := []kgo.Opt{kgo.ClientID("weir"), kgo.MetadataMinAge(250 * time.Millisecond), kgo.DisableClientMetrics()}
	return append(append(first, s.Options...), kgo.MaxVersions(kversion.V4_0_0()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
}

// Close closes the connections to Kafka.
func (s *Source) Close() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

// Begin implements weirrelay.Source.
func (s *Source) Begin(ctx context.Context, position string) (at string, err error) {
	s.Close()
	s.lost, s.looked = nil, time.Now()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asking, err := kgo.NewClient(s.options()...)
	if err != nil {
		return "", err
	}
	defer asking.Close()
	topic, n, err := s.describe(ctx, asking)
	if err != nil {
		return "", err
	}
	begin, err := s.offsets(ctx, asking, n, earliest)
	if err != nil {
		return "", err
	}
	end, err := s.offsets(ctx, asking, n, latest)
	if err != nil {
		return "", err
	}
	if err := s.place(position, place{topic, begin}, place{topic, end}); err != nil {
		return "", err
	}
	from := make(map[int32]kgo.Offset, n)
	for i, next := range s.at.next {
		from[int32(i)] = kgo.NewOffset().At(next)
	}
	s.client, err = kgo.NewClient(append(s.options(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: from}))...)
	if err != nil || position != "" || !s.New {
		return "", err
	}
	return s.at.String(), nil
}

// place finds where to go on: at the position, if that is one of a topic which begins and ends there.
func (s *Source) place(position string, begin, end place) error {
	if position == "" {
		if s.at = begin; s.New {
			s.at = end
		}
		return nil
	}
	known, err := parsePlace(position)
	if err != nil {
		return err
	}
	if known.topic != begin.topic {
		s.at, s.lost = begin, append(s.lost, fmt.Sprintf("the topic %s was deleted and made anew: it is read from its beginning", s.Topic))
		return nil
	}
	s.at = begin // so partitions that are new are read from their beginnings
	for i, next := range known.next {
		switch {
		case i >= len(begin.next):
			return fmt.Errorf("the topic %s has %d partitions, and had %d", s.Topic, len(begin.next), len(known.next))
		case next < begin.next[i]:
			s.lost = append(s.lost, fmt.Sprintf("the topic %s no longer has records %d to %d of its partition %d", s.Topic, next, begin.next[i]-1, i))
		case next > end.next[i]:
			s.at.next[i] = end.next[i]
			s.lost = append(s.lost, fmt.Sprintf("the partition %d of the topic %s ends at %d, and was read up to %d: it was set back; what it has now is skipped", i, s.Topic, end.next[i], next))
		default:
			s.at.next[i] = next
		}
	}
	return nil
}

// describe returns the topic's id, and how many partitions it has.
func (s *Source) describe(ctx context.Context, c *kgo.Client) (id string, partitions int, err error) {
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &s.Topic
	r := kmsg.NewPtrMetadataRequest()
	r.Topics = []kmsg.MetadataRequestTopic{topic}
	got, err := r.RequestWith(ctx, c)
	if err == nil && len(got.Topics) != 1 {
		err = fmt.Errorf("%d topics are described, want one", len(got.Topics))
	}
	if err == nil {
		err = kerr.ErrorForCode(got.Topics[0].ErrorCode)
	}
	if err != nil {
		return "", 0, fmt.Errorf("topic %q: %w", s.Topic, err)
	}
	if partitions = len(got.Topics[0].Partitions); partitions > maxPartitions {
		return "", 0, fmt.Errorf("the topic %q has %d partitions: %d can be read", s.Topic, partitions, maxPartitions)
	}
	return base64.RawURLEncoding.EncodeToString(got.Topics[0].TopicID[:]), partitions, nil
}

// offsets returns where each partition begins, or ends.
func (s *Source) offsets(ctx context.Context, c *kgo.Client, partitions int, which int64) ([]int64, error) {
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = s.Topic
	for i := range partitions {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = int32(i), which
		topic.Partitions = append(topic.Partitions, partition)
	}
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID, r.IsolationLevel, r.Topics = -1, 1, []kmsg.ListOffsetsRequestTopic{topic}
	got, err := r.RequestWith(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("topic %q: %w", s.Topic, err)
	}
	all, found := make([]int64, partitions), 0
	for _, t := range got.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("topic %q, partition %d: %w", s.Topic, p.Partition, err)
			}
			if int(p.Partition) < partitions {
				all[p.Partition] = p.Offset
				found++
			}
		}
	}
	if found != partitions {
		return nil, fmt.Errorf("topic %q: the offsets of %d partitions are known, of %d", s.Topic, found, partitions)
	}
	return all, nil
}

// Next implements weirrelay.Source.
func (s *Source) Next(ctx context.Context, most int) (arrived []weirrelay.Arrival, position string, err error) {
	if len(s.lost) > 0 {
		err = &weirrelay.Lost{What: strings.Join(s.lost, "; ")}
		s.lost = nil
		return nil, "", err
	}
	for len(arrived) == 0 {
		if err := s.look(ctx); err != nil {
			return nil, "", err
		}
		waiting, cancel := context.WithTimeout(ctx, lookEvery)
		fetched := s.client.PollRecords(waiting, most)
		cancel()
		for _, e := range fetched.Errors() {
			if ctx.Err() != nil {
				return nil, "", ctx.Err()
			} else if !errors.Is(e.Err, context.DeadlineExceeded) {
				return nil, "", fmt.Errorf("topic %q, partition %d: %w", s.Topic, e.Partition, e.Err)
			}
		}
		fetched.EachRecord(func(r *kgo.Record) {
			arrived = append(arrived, weirrelay.Arrival{Subject: r.Topic, ID: fmt.Sprintf("%d-%d", r.Partition, r.Offset), Payload: r.Value, Key: string(r.Key)})
			s.at.next[r.Partition] = r.Offset + 1
		})
	}
	return arrived, s.at.String(), nil
}

// look returns an error if the topic has more partitions than are read, or is another one: the relay begins anew then.
func (s *Source) look(ctx context.Context) error {
	if time.Since(s.looked) < lookEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	topic, n, err := s.describe(ctx, s.client)
	if err != nil {
		return err
	}
	if s.looked = time.Now(); topic != s.at.topic || n != len(s.at.next) {
		return fmt.Errorf("the topic %q has %d partitions, and had %d, or was made anew", s.Topic, n, len(s.at.next))
	}
	return nil
}

// String is the form in which a position is recorded.
func (p place) String() string {
	b := append([]byte(p.topic), ':')
	for i, next := range p.next {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, next, 36)
	}
	return string(b)
}

func parsePlace(position string) (p place, err error) {
	topic, rest, ok := strings.Cut(position, ":")
	p.topic = topic
	for text := range strings.SplitSeq(rest, ",") {
		next, err := strconv.ParseInt(text, 36, 64)
		if err != nil || next < 0 || !ok {
			return p, fmt.Errorf("position %q is not one of a topic: it must have the form id:offset,offset,…", position)
		}
		p.next = append(p.next, next)
	}
	return p, nil
}
