package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/rate"
	"github.com/weir-pg/weir/internal/hub"
)

// Access says which clients are allowed.
type Access string

// Which clients are allowed.
const (
	Token  Access = "token"  // those whose token, callback or role allows the channel; the default
	Anyone Access = "anyone" // all, even without a token
	User   Access = "user"   // all that are known by name, whatever their tokens allow
	Self   Access = "self"   // only the user whose name is the word {user} of match
	Nobody Access = "nobody" // no client; publishing with SQL is not affected
)

// Rule is an entry of the file. A field that is missing, and so nil or empty, changes nothing.
type Rule struct {
	Match        string   `json:"match"`
	Subscribe    Access   `json:"subscribe"`
	Publish      Access   `json:"publish"`
	PayloadBytes *int     `json:"payload_bytes"` // of a message
	PublishRate  *float64 `json:"publish_rate"`  // messages per second by each user on all channels of the entry
	PublishBurst *int     `json:"publish_burst"` // messages at once
	History      *int     `json:"history"`       // messages with which a subscription may begin
	Subscribers  *int     `json:"subscribers"`   // of each channel at each hub
	Presence     bool     `json:"presence"`      // who is there can be seen

	filter hub.Filter
	rates  *rate.Limiter
}

// Set is what a file contains. It is immutable, but for what its rates have counted. A nil Set changes nothing.
type Set struct {
	rules    []*Rule
	anyone   bool
	presence bool
}

const (
	maxBytes = 1 << 20
	maxRules = 1000
	maxUsers = 100000 // whose rates are remembered for each entry
)

// userWord is the word of match that stands for the user's name.
const userWord = "{user}"

// Parse parses a file.
func Parse(text []byte) (*Set, error) {
	var file struct {
		Channels *[]*Rule `json:"channels"`
	}
	from := json.NewDecoder(bytes.NewReader(text))
	from.DisallowUnknownFields()
	if err := from.Decode(&file); err != nil {
		return nil, fmt.Errorf("it is not valid: %w", err)
	}
	if _, err := from.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is not valid: something follows the object")
	}
	switch {
	case file.Channels == nil:
		return nil, errors.New(`it has no member "channels": write {"channels": [{"match": "orders.*", …}]}`)
	case len(*file.Channels) > maxRules:
		return nil, fmt.Errorf("it has %d entries; the limit is %d: use broader patterns", len(*file.Channels), maxRules)
	}
	s := &Set{rules: *file.Channels}
	for i, r := range s.rules {
		if r == nil {
			return nil, fmt.Errorf("entry %d is null", i+1)
		}
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("entry %d (%q): %w", i+1, r.Match, err)
		}
		for _, earlier := range s.rules[:i] {
			if earlier.filter.Contains(r.filter) {
				return nil, fmt.Errorf("entry %d (%q) never applies, because %q comes before it, and the first that matches decides: move it up, or remove it", i+1, r.Match, earlier.Match)
			}
		}
		s.anyone = s.anyone || r.Subscribe == Anyone || r.Publish == Anyone
		s.presence = s.presence || r.Presence
	}
	return s, nil
}

// check checks an entry, and prepares it.
func (r *Rule) check() (err error) {
	words := strings.Split(r.Match, ".")
	users := 0
	for i, word := range words {
		if word == userWord {
			words[i] = "*"
			users++
		}
	}
	if r.filter, err = hub.ParseFilter(strings.Join(words, ".")); err != nil {
		return err
	}
	for _, access := range []*Access{&r.Subscribe, &r.Publish} {
		switch *access {
		case "":
			*access = Token
		case Token, Anyone, User, Nobody:
		case Self:
			if users != 1 {
				return errors.New(`"self" needs one word {user} in match, as in inbox.{user}`)
			}
		default:
			return fmt.Errorf("%q may not subscribe or publish: write token, anyone, user, self or nobody", cut(string(*access)))
		}
	}
	switch {
	case r.PayloadBytes != nil && *r.PayloadBytes < 0:
		return fmt.Errorf("payload_bytes is %d: it must not be negative", *r.PayloadBytes)
	case r.History != nil && *r.History < 0:
		return fmt.Errorf("history is %d: it must not be negative", *r.History)
	case r.Subscribers != nil && *r.Subscribers < 1:
		return fmt.Errorf(`subscribers is %d: it must be at least 1; "subscribe": "nobody" allows none`, *r.Subscribers)
	case r.PublishRate != nil && *r.PublishRate <= 0:
		return fmt.Errorf(`publish_rate is %v: it must be greater than 0; "publish": "nobody" allows none`, *r.PublishRate)
	case r.PublishBurst != nil && (r.PublishRate == nil || *r.PublishBurst < 1):
		return errors.New("publish_burst must be at least 1, and needs publish_rate")
	}
	if r.PublishRate != nil {
		limit := rate.Limit{PerSecond: *r.PublishRate}
		if r.PublishBurst != nil {
			limit.Burst = *r.PublishBurst
		}
		r.rates = rate.New(limit, maxUsers)
	}
	return nil
}

func cut(s string) string {
	if len(s) > 50 {
		return s[:50] + "…"
	}
	return s
}

// Of returns the entry that decides on a channel; nil: none does.
func (s *Set) Of(channel string) *Rule {
	if s == nil {
		return nil
	}
	for _, r := range s.rules {
		if r.filter.Match(channel) {
			return r
		}
	}
	return nil
}

// For returns the entries that decide on the channels of a filter. all is false if no entry decides on some of them.
func (s *Set) For(f hub.Filter) (rules []*Rule, all bool) {
	if s == nil {
		return nil, false
	}
	if c, ok := f.(hub.Channel); ok {
		if r := s.Of(string(c)); r != nil {
			return []*Rule{r}, true
		}
		return nil, false
	}
	for _, r := range s.rules {
		if hub.Overlap(r.filter, f) {
			rules = append(rules, r)
		}
		if r.filter.Contains(f) {
			return rules, true
		}
	}
	return rules, false
}

// Anyone reports whether clients without a token may do anything.
func (s *Set) Anyone() bool { return s != nil && s.anyone }

// HasPresence reports whether an entry has presence.
func (s *Set) HasPresence() bool { return s != nil && s.presence }

// Action is what a client wants to do.
type Action uint8

// The actions.
const (
	Subscribe Action = iota
	Publish
)

// Verdict is what the entries say about an action on a filter's channels.
type Verdict uint8

// The verdicts.
const (
	Ask    Verdict = iota // whoever the client's token, callback or role allows
	Allow                 // this client
	Refuse                // not this client
)

// Decide decides whether a user may do something on all channels of a filter. The user's name is empty if it is not known.
func (s *Set) Decide(do Action, f hub.Filter, user string) Verdict {
	rules, all := s.For(f)
	verdict := Allow
	if !all {
		verdict = Ask
	}
	for _, r := range rules {
		access := r.Subscribe
		if do == Publish {
			access = r.Publish
		}
		switch {
		case access == Token:
			verdict = Ask
		case access == Nobody, access == User && user == "", access == Self && !r.isOf(user, f):
			return Refuse
		}
	}
	return verdict
}

// NeedsUser reports whether a decision depends on who the user is.
func (s *Set) NeedsUser(do Action, f hub.Filter) bool {
	rules, _ := s.For(f)
	for _, r := range rules {
		access := r.Subscribe
		if do == Publish {
			access = r.Publish
		}
		if access == User || access == Self {
			return true
		}
	}
	return false
}

// isOf reports whether the channels of a filter are the user's own.
func (r *Rule) isOf(user string, f hub.Filter) bool {
	if user == "" || strings.ContainsAny(user, ".*>") {
		return false
	}
	own, err := hub.ParseFilter(strings.Replace(r.Match, userWord, user, 1))
	return err == nil && own.Contains(f)
}

// Payload returns the largest payload on a channel, if that is less than most.
func (s *Set) Payload(channel string, most int) int {
	if r := s.Of(channel); r != nil && r.PayloadBytes != nil {
		return min(most, *r.PayloadBytes)
	}
	return most
}

// HistoryOf returns the most messages of history of a filter's channels, if that is less than most.
func (s *Set) HistoryOf(f hub.Filter, most int) int {
	rules, _ := s.For(f)
	for _, r := range rules {
		if r.History != nil {
			most = min(most, *r.History)
		}
	}
	return most
}

// PresenceOf reports whether who is on a channel can be seen.
func (s *Set) PresenceOf(channel string) bool {
	r := s.Of(channel)
	return r != nil && r.Presence
}

// SubscribersOf returns how many subscribers a channel or a pattern may have at a hub, if that is less than most; 0 is any number.
func (s *Set) SubscribersOf(f hub.Filter, most int) int {
	rules, _ := s.For(f)
	for _, r := range rules {
		if r.Subscribers != nil && (most == 0 || *r.Subscribers < most) {
			most = *r.Subscribers
		}
	}
	return most
}
