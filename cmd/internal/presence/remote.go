package presence

import "encoding/json"

// remote is another hub, as it has announced itself.
type remote struct {
	seq    int64
	synced bool
	silent int // own beats since it was last heard
	users  map[place]json.RawMessage
	more   map[string]int
	number int64 // of its last frame of any kind

	stale     map[place]struct{}  // members from before its last reset that have not been announced again
	staleMore map[string]struct{} // the same for channels with members that are counted
}

// place is a user on a channel.
type place struct{ channel, user string }

// receive takes in another hub's frame. The caller holds mu.
func (p *Presence) receive(f frame) {
	r := p.remotes[f.Hub]
	if r == nil {
		if len(p.remotes) >= maxHubs {
			return
		}
		r = &remote{users: map[place]json.RawMessage{}, more: map[string]int{}}
		p.remotes[f.Hub] = r
	}
	if f.N <= r.number {
		return // somebody has published it again
	}
	r.number = f.N
	switch {
	case f.Reset:
		if f.Seq <= r.seq {
			return // an old one
		}
		r.seq, r.synced = f.Seq, true
		r.stale = map[place]struct{}{}
		for at := range r.users {
			r.stale[at] = struct{}{}
		}
		r.staleMore = map[string]struct{}{}
		for channel := range r.more {
			r.staleMore[channel] = struct{}{}
		}
	case f.Hello:
		p.asked = true
	case f.Beat:
		if !r.synced || f.Seq > r.seq {
			r.synced = false
			p.asks = true
		}
	case !r.synced || f.Seq > r.seq+1:
		r.synced = false // something is missing
		p.asks = true
		return
	case f.Seq <= r.seq:
		return
	default:
		r.seq = f.Seq
	}
	r.silent = 0
	p.apply(r, f)
	if f.Done {
		for at := range r.stale {
			p.remove(r, at)
		}
		for channel := range r.staleMore {
			p.countRemote(r, channel, 0)
		}
		r.stale, r.staleMore = nil, nil
	}
}

func (p *Presence) apply(r *remote, f frame) {
	for _, e := range f.Users {
		at := place{e.Channel, e.User}
		if e.Left {
			p.remove(r, at)
			continue
		}
		delete(r.stale, at)
		if _, known := r.users[at]; known {
			p.rooms.update(e)
		} else {
			p.rooms.join(e)
		}
		r.users[at] = e.Info
		p.dirty[e.Channel] = struct{}{}
	}
	for channel, n := range f.More {
		delete(r.staleMore, channel)
		p.countRemote(r, channel, n)
	}
}

// countRemote notes how many members of a channel a hub counts, and does not list.
func (p *Presence) countRemote(r *remote, channel string, n int) {
	p.rooms.addMore(channel, n-r.more[channel])
	p.dirty[channel] = struct{}{}
	if r.more[channel] = n; n == 0 {
		delete(r.more, channel)
	}
}

func (p *Presence) remove(r *remote, at place) {
	if _, known := r.users[at]; known {
		delete(r.users, at)
		p.rooms.leave(at.channel, at.user)
		p.dirty[at.channel] = struct{}{}
	}
}

// forget lets all members of a hub leave.
func (p *Presence) forget(hub string) {
	r := p.remotes[hub]
	for at := range r.users {
		p.remove(r, at)
	}
	for channel := range r.more {
		p.countRemote(r, channel, 0)
	}
	delete(p.remotes, hub)
}
