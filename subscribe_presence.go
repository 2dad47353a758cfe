package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Member is a user on a channel.
type Member struct {
	User string          `json:"user"`
	Info json.RawMessage `json:"info,omitempty"` // what the user's token says that others may know
}

// PresenceChange says who has joined and left a channel since the last one. If these are very many, it has only the count.
type PresenceChange struct {
	Channel string   `json:"channel"`
	Joined  []Member `json:"joined"`
	Left    []string `json:"left"`
	Count   int      `json:"count"` // members now
}

// MembersPage is a part of the members of a channel.
type MembersPage struct {
	Users []Member `json:"users"` // by name, up to 1,000
	Count int      `json:"count"` // all members of the channel
	Next  string   `json:"next"`  // pass it as after, for the next page; "": there are no more
}

// hubCallTimeout bounds a question to one hub.
const hubCallTimeout = 10 * time.Second

const maxMembersAnswer = 8 << 20 // bytes: a thousand names, each with its info, escaped

// Members asks a hub who is on a channel, from the member after a name on; "" begins with the first. The channel must have presence, and the
// subscription's token must allow to subscribe to it. Subscribe with SubscribeConfig.Presence first, and then ask: later changes arrive as
// events, and one that repeats what you know changes nothing.
func (s *Subscription) Members(ctx context.Context, channel, after string) (*MembersPage, error) {
	if s.members == nil {
		return nil, errors.New("weir: members: this subscription reads the database, and only hubs know who is on a channel: set SubscribeConfig.Hubs")
	}
	page, err := s.members.askMembers(ctx, channel, after)
	if err != nil {
		return nil, fmt.Errorf("weir: members of %q: %w", channel, err)
	}
	return page, nil
}

// askMembers asks the hub that the subscription is at, and the others if it does not answer.
func (f *hubFollower) askMembers(ctx context.Context, channel, after string) (page *MembersPage, err error) {
	query := url.Values{"channel": {channel}}
	if after != "" {
		query.Set("after", after)
	}
	first := int(f.current.Load())
	for i := range f.hubs {
		at := f.hubs[(first+i)%len(f.hubs)].JoinPath("/v1/presence").String() + "?" + query.Encode()
		var again bool
		if page, again, err = f.askMembersAt(ctx, at); err == nil || !again || ctx.Err() != nil {
			break
		}
	}
	return page, err
}

// askMembersAt asks one hub. again reports that another may answer.
func (f *hubFollower) askMembersAt(ctx context.Context, at string) (page *MembersPage, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, hubCallTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, false, err
	}
	if f.Token != nil {
		token, err := askToken(ctx, f.Token)
		if err != nil {
			return nil, false, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := f.HTTP.Do(request)
	if err != nil {
		return nil, true, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, response.StatusCode >= http.StatusInternalServerError, hubRefusal(response)
	}
	page = &MembersPage{}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxMembersAnswer)).Decode(page); err != nil {
		return nil, true, fmt.Errorf("read the answer of the hub %s: %w", request.URL.Host, err)
	}
	return page, false, nil
}
