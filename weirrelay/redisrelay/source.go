package redisrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/weirrelay"
)

// SourceConfig specifies a source. Client and Stream are required.
type SourceConfig struct {
	Client redis.UniversalClient
	// Stream is the key of a stream, whose entries are read, and left there.
	Stream string
	// Field is the field with the payload; default payload. An entry without it has its fields as a JSON object.
	Field string
	// New begins with entries that arrive from now on, if nothing is recorded of the relay; otherwise it begins with the oldest.
	New bool
}

// Source implements weirrelay.Source: it reads a stream in the order of its ids, which are its positions.
type Source struct {
	SourceConfig
	last  string
	added int64  // how many entries the stream has had up to last, since it was made; 0: not known
	told  string // the position behind which entries are known, and were said, to be missing
	lost  error  // to be returned by the next call of Next
}

// NewSource returns a source. Whoever made the client closes it.
func NewSource(c SourceConfig) (*Source, error) {
	switch {
	case c.Client == nil:
		return nil, errors.New("redisrelay: SourceConfig.Client is nil: make one with redis.NewClient")
	case c.Stream == "":
		return nil, errors.New("redisrelay: SourceConfig.Stream is empty: give the key of the stream that is read")
	case c.Field == "":
		c.Field = "payload"
	}
	return &Source{SourceConfig: c}, nil
}

// Begin implements weirrelay.Source.
func (s *Source) Begin(ctx context.Context, position string) (at string, err error) {
	s.last, s.added, s.told, s.lost = position, 0, "", nil
	// What refuses each read is found here, where nothing counts as read yet.
	if err := s.Client.XRead(ctx, &redis.XReadArgs{Streams: []string{s.Stream, first}, Count: 1, Block: -1}).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("stream %s: %w", s.Stream, err)
	}
	if position == "" && !s.New {
		s.last = first
		return "", nil
	}
	info, err := s.Client.XInfoStream(ctx, s.Stream).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		return "", fmt.Errorf("stream %s: %w", s.Stream, err)
	}
	switch {
	case position == "" && err == nil:
		s.last, s.added = info.LastGeneratedID, info.EntriesAdded
		return s.last, nil
	case position == "":
		s.last = first
		return s.last, nil
	case err != nil && position == first: // it has never been there
	case err != nil:
		s.last, s.lost = first, &weirrelay.Lost{What: fmt.Sprintf("the stream %s is gone: it is read from its beginning when it is there again", s.Stream)}
	case info.LastGeneratedID == position:
		s.added = info.EntriesAdded
	case before(info.LastGeneratedID, position):
		s.last, s.added = info.LastGeneratedID, info.EntriesAdded
		s.lost = &weirrelay.Lost{What: fmt.Sprintf("the stream %s ends at %s, and was read up to %s: it was set back, or made anew; what it has now is skipped", s.Stream, info.LastGeneratedID, position)}
	case before(position, info.MaxDeletedEntryID):
		s.told = position
		s.lost = &weirrelay.Lost{What: fmt.Sprintf("entries of the stream %s between %s and %s were deleted", s.Stream, position, info.MaxDeletedEntryID)}
	}
	return "", nil
}

// first is before the first entry of a stream.
const first = "0-0"

// block is how long one read waits.
const block = 5 * time.Second

// Next implements weirrelay.Source.
func (s *Source) Next(ctx context.Context, most int) (arrived []weirrelay.Arrival, position string, err error) {
	if s.lost != nil {
		err, s.lost = s.lost, nil
		return nil, "", err
	}
	for {
		entries, info, err := s.read(ctx, most)
		if err != nil {
			return nil, "", err
		}
		if len(entries) == 0 {
			// What wakes it is read again, with what the stream says of itself at that time.
			err := s.Client.XRead(ctx, &redis.XReadArgs{Streams: []string{s.Stream, s.last}, Count: 1, Block: block}).Err()
			if err != nil && !errors.Is(err, redis.Nil) {
				return nil, "", err
			} else if ctx.Err() != nil {
				return nil, "", ctx.Err()
			}
			continue
		}
		if s.last != first && s.told != s.last && s.isBehind(info) {
			s.told = s.last
			return nil, "", &weirrelay.Lost{What: fmt.Sprintf("the stream %s was read up to %s, and begins at %s now: entries between them may have been trimmed", s.Stream, s.last, info.FirstEntry.ID)}
		}
		for _, e := range entries {
			a, err := s.arrival(e)
			if err != nil {
				return nil, "", err
			}
			arrived = append(arrived, a)
		}
		n := int64(len(entries))
		switch {
		case info.EntriesAdded == 0: // before Redis 7
		case len(entries) < most: // it was read to its end
			s.added = info.EntriesAdded
		case before(s.last, info.FirstEntry.ID): // it was read from its beginning
			s.added = info.EntriesAdded - info.Length + n
		case s.added > 0:
			s.added += n
		}
		s.last = entries[n-1].ID
		return arrived, s.last, nil
	}
}

// read returns the entries behind the position, without waiting for any, and what the stream said of itself at the same time.
func (s *Source) read(ctx context.Context, most int) ([]redis.XMessage, *redis.XInfoStream, error) {
	var about *redis.XInfoStreamCmd
	var read *redis.XStreamSliceCmd
	_, err := s.Client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		about = p.XInfoStream(ctx, s.Stream)
		read = p.XRead(ctx, &redis.XReadArgs{Streams: []string{s.Stream, s.last}, Count: int64(most), Block: -1})
		return nil
	})
	switch {
	case errors.Is(err, redis.Nil) && before(about.Val().LastGeneratedID, s.last):
		return nil, nil, fmt.Errorf("the stream %s was set back, or made anew", s.Stream) // the relay begins anew then
	case errors.Is(err, redis.Nil), err != nil && strings.Contains(err.Error(), "no such key"):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("stream %s: %w", s.Stream, err)
	}
	return read.Val()[0].Messages, about.Val(), nil
}

// isBehind reports whether the stream may have had further entries behind the position than it has now. Trimming takes the oldest ones, so none of them while one up to the position is there.
// (Redis says which entries were deleted, but not which were trimmed.) Otherwise all entries are behind the position, and those that have come since are counted, if it is known from where on.
func (s *Source) isBehind(info *redis.XInfoStream) bool {
	return before(s.last, info.FirstEntry.ID) && (s.added == 0 || info.EntriesAdded-s.added != info.Length)
}

func (s *Source) arrival(e redis.XMessage) (a weirrelay.Arrival, err error) {
	a = weirrelay.Arrival{Subject: s.Stream, ID: e.ID}
	a.Key, _ = e.Values["key"].(string)
	if payload, ok := e.Values[s.Field].(string); ok {
		a.Payload = []byte(payload)
		return a, nil
	}
	a.Payload, err = json.Marshal(e.Values)
	return a, err
}

// before reports whether an entry's id lies before another's. What is not an id lies before none.
func before(a, b string) bool {
	am, as, err1 := parse(a)
	bm, bs, err2 := parse(b)
	return err1 == nil && err2 == nil && (am < bm || am == bm && as < bs)
}

func parse(id string) (ms, seq uint64, err error) {
	m, s, _ := strings.Cut(id, "-")
	ms, err1 := strconv.ParseUint(m, 10, 64)
	seq, err2 := strconv.ParseUint(s, 10, 64)
	return ms, seq, errors.Join(err1, err2)
}
