package guard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// Blocker is the kind of a session that is judged only because others wait for its locks: it holds no horizon.
const Blocker horizon.Kind = "session"

// mostBlocked bounds the sessions whose waits are followed in a poll.
const mostBlocked = 64

// waiter is a session that has waited for a lock for as long as the policy says.
type waiter struct {
	PID  int32
	For  float64 // seconds
	Whom []int32 // 0: a prepared transaction
}

// blocker is a session that waits for no lock, and for whose locks others wait, directly or behind one another.
type blocker struct {
	session *horizon.Session
	waiters []int32 // those that wait directly for it
	blocks  int
	longest float64 // wait, in seconds
}

// readBlockers returns the sessions for which others wait, most of them first, and how many wait in all.
func readBlockers(ctx context.Context, db DB, atLeast time.Duration) (list []*blocker, waiting int, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	waiters, err := read(ctx, db, blockedSQL, pgx.RowToStructByPos[waiter], atLeast, mostBlocked)
	if err != nil || len(waiters) == 0 {
		return nil, 0, err
	}
	whom := map[int32][]int32{}
	for _, w := range waiters {
		whom[w.PID] = w.Whom
	}
	heads := map[int32]*blocker{}
	for _, w := range waiters {
		for _, pid := range headsOf(w.PID, whom) {
			if heads[pid] == nil {
				heads[pid] = &blocker{}
			}
			h := heads[pid]
			h.blocks++
			h.longest = max(h.longest, w.For)
			if slices.Contains(w.Whom, pid) {
				h.waiters = append(h.waiters, w.PID)
			}
		}
	}
	sessions, err := read(ctx, db, blockersSQL, func(row pgx.CollectableRow) (*horizon.Session, error) {
		s, xid, xmin := &horizon.Session{}, (*int64)(nil), (*int64)(nil)
		err := row.Scan(&s.PID, &s.Connected, &s.Started, &s.Quiet, &s.Backend, &s.Database, &s.Role, &s.Superuser, &s.Application, &s.Client, &s.State,
			&s.Wait, &s.Query, &xid, &xmin)
		s.XID, s.Xmin = xidOf(xid), xidOf(xmin)
		return s, err
	}, slices.Sorted(maps.Keys(heads)))
	if err != nil {
		return nil, 0, err
	}
	for _, s := range sessions {
		h := heads[s.PID]
		h.session = s
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *blocker) int { return cmp.Or(b.blocks-a.blocks, cmp.Compare(a.session.PID, b.session.PID)) })
	return list, len(waiters), nil
}

// headsOf returns the sessions at the heads of the lines in which a session waits. Sessions that wait for each other have none.
func headsOf(pid int32, whom map[int32][]int32) []int32 {
	var heads []int32
	seen := map[int32]bool{pid: true}
	for next := []int32{pid}; len(next) > 0; {
		at := next[0]
		next = next[1:]
		for _, b := range whom[at] {
			if b == 0 || seen[b] {
				continue
			}
			seen[b] = true
			if _, waits := whom[b]; waits {
				next = append(next, b)
			} else {
				heads = append(heads, b)
			}
		}
	}
	return heads
}

// markBlockers adds to the holders which of them others wait for, and the sessions that are judged only for that.
func (c *cluster) markBlockers(list []*Holder, p Protect) []*Holder {
	for _, b := range c.blockers {
		if b.blocks < p.BlockedSessions {
			continue
		}
		i := slices.IndexFunc(list, func(h *Holder) bool { return h.at == c.primary && b.is(h) })
		if i < 0 {
			s := b.session
			since := c.primary.At
			if s.Quiet != nil {
				since = *s.Quiet
			}
			h := &Holder{
				Server: c.primary.server.Name, Kind: Blocker, Name: fmt.Sprintf("pid %d", s.PID), PID: s.PID, Role: s.Role, Application: s.Application,
				Database: s.Database, Client: s.Client, State: s.State, Wait: s.Wait, Query: strings.Join(strings.Fields(s.Query), " "), By: "lock",
				session: s, at: c.primary, since: since,
			}
			if s.Started != nil {
				h.Started = *s.Started
			}
			i, list = len(list), append(list, h)
		}
		list[i].Blocks, list[i].BlocksFor, list[i].waiters = b.blocks, b.longest, b.waiters
	}
	return list
}

// is reports whether a holder is this session, in the same transaction.
func (b *blocker) is(h *Holder) bool {
	s := b.session
	return h.session != nil && h.session.PID == s.PID && h.session.Connected.Equal(s.Connected) && h.session.Started != nil && s.Started != nil &&
		h.session.Started.Equal(*s.Started)
}

// blocks reports whether others still wait for what a session held when it was judged.
func (c *cluster) blocks(h *Holder) bool {
	return slices.ContainsFunc(c.blockers, func(b *blocker) bool { return b.is(h) })
}

func xidOf(x *int64) *horizon.XID {
	if x == nil {
		return nil
	}
	id := horizon.XID(*x)
	return &id
}
