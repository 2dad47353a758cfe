package presence

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// rooms are the channels with members, at any hub.
type rooms map[string]*room

// room is a channel with members.
type room struct {
	users   map[string]*member
	more    int                 // members that are counted, and not listed
	touched map[string]struct{} // users who have joined, left, or changed their info since the last event
	changed bool
	told    uint64 // Presence.told when subscribers were told of it last; 0: they were not yet
}

// member is a user on a channel, at one hub or several.
type member struct {
	hubs int
	info json.RawMessage
}

func (all rooms) of(channel string) *room {
	r := all[channel]
	if r == nil {
		r = &room{users: map[string]*member{}, touched: map[string]struct{}{}}
		all[channel] = r
	}
	return r
}

func (all rooms) join(e entry) {
	r := all.of(e.Channel)
	m := r.users[e.User]
	if m == nil {
		m = &member{}
		r.users[e.User] = m
		r.note(e.User)
	}
	m.hubs++
	r.describe(m, e)
}

// update notes what is known of a member now.
func (all rooms) update(e entry) {
	if r := all[e.Channel]; r != nil && r.users[e.User] != nil {
		r.describe(r.users[e.User], e)
	}
}

func (r *room) describe(m *member, e entry) {
	if !bytes.Equal(m.info, e.Info) {
		m.info = e.Info
		r.note(e.User)
	}
}

func (all rooms) leave(channel, user string) {
	r := all[channel]
	if r == nil || r.users[user] == nil {
		return
	}
	m := r.users[user]
	if m.hubs--; m.hubs == 0 {
		delete(r.users, user)
		r.note(user)
	}
}

// note has the next event say whether a user is there. It does so even if a change was undone since the last event: a client may have asked for the members in between.
func (r *room) note(user string) {
	r.changed = true
	r.touched[user] = struct{}{}
}

func (all rooms) addMore(channel string, n int) {
	if n != 0 {
		r := all.of(channel)
		r.more += n
		r.changed = true
	}
}

// Member is a user on a channel.
type Member struct {
	User string          `json:"user"`
	Info json.RawMessage `json:"info,omitempty"` // from the user's token
}

// Event says who has joined and left a channel since the last event. If that are very many, it only says how many there are now.
type Event struct {
	Type    string   `json:"type"`
	Channel string   `json:"channel"`
	Joined  []Member `json:"joined,omitempty"`
	Left    []string `json:"left,omitempty"`
	Count   int      `json:"count"`
}

// eventChanges bounds what one event lists: every member of a channel may receive it.
const eventChanges = 100

// event returns what has changed since the last one, and begins anew.
func (r *room) event(channel string) Event {
	e := Event{Type: "presence", Channel: channel, Count: len(r.users) + r.more}
	if len(r.touched) <= eventChanges {
		for user := range r.touched {
			if m := r.users[user]; m != nil {
				e.Joined = append(e.Joined, Member{user, m.info})
			} else {
				e.Left = append(e.Left, user)
			}
		}
		slices.SortFunc(e.Joined, func(a, b Member) int { return strings.Compare(a.User, b.User) })
		slices.Sort(e.Left)
	}
	clear(r.touched)
	r.changed = false
	return e
}

// Members are a part of those on a channel, by name.
type Members struct {
	Channel string   `json:"channel"`
	Users   []Member `json:"users"`
	Count   int      `json:"count"`          // all of them
	Next    string   `json:"next,omitempty"` // the name after which to continue; empty: these are the last
}

// list returns up to most members, from the one after a name on.
func (r *room) list(channel, after string, most int) Members {
	m := Members{Channel: channel, Users: []Member{}}
	if r == nil {
		return m
	}
	m.Count = len(r.users) + r.more
	if most <= 0 {
		return m
	}
	names := make([]string, 0, len(r.users))
	for user := range r.users {
		if user > after {
			names = append(names, user)
		}
	}
	slices.Sort(names)
	if len(names) > most {
		names = names[:most]
		m.Next = names[most-1]
	}
	for _, user := range names {
		m.Users = append(m.Users, Member{user, r.users[user].info})
	}
	return m
}
