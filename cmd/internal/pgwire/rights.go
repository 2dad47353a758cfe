package pgwire

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-pg/weir/internal/hub"
)

// rights are the channels on which a user may listen and notify.
type rights struct{ listen, notify []hub.Filter }

func (r *rights) equal(o *rights) bool {
	return slices.Equal(r.listen, o.listen) && slices.Equal(r.notify, o.notify)
}

// Recheck looks up the rights of all connected users again, each user once. It ends the connections of users that may no longer log in,
// and those that listen on channels that are no longer allowed; other changes apply from now on. It returns why users could not be looked up,
// if they could not; that ends no connection.
func (s *Server) Recheck(ctx context.Context) error {
	if s.config.Auth == nil || s.config.Auth == Trust && s.config.Policies == nil {
		return nil
	}
	version := s.config.Policies.Version()
	users := map[string][]*conn{}
	s.each(func(c *conn) {
		if c.loggedIn.Load() {
			users[c.user] = append(users[c.user], c)
		}
	})
	for user, conns := range users {
		login, err := Login{Listen: Everything(), Notify: Everything()}, error(nil)
		if s.config.Auth != Trust {
			login, err = s.config.Auth.Login(ctx, user)
		}
		if err != nil && !errors.Is(err, ErrUnknownUser) {
			return err
		}
		now := &rights{login.Listen, login.Notify}
		ended := 0
		for _, c := range conns {
			if err != nil || !c.nowMay(now, version) {
				ended++
				go c.cutOff(errRevoked) // it may wait for a write; it ends soon after that
			}
		}
		if ended > 0 {
			s.complain("weir: clients were disconnected, because they may no longer log in or listen on their channels", "user", cut(user, 64), "clients", ended)
		}
	}
	return nil
}

// nowMay sets the connection's rights, and reports whether they allow all channels that it listens on.
func (c *conn) nowMay(r *rights, policies uint64) bool {
	if c.rights.Load().equal(r) && c.policies == policies {
		return true
	}
	c.policies = policies
	c.out.Lock() // as listen does
	defer c.out.Unlock()
	c.rights.Store(r)
	for channel := range c.listens {
		if c.may("LISTEN", r.listen, channel) != nil {
			return false
		}
	}
	return true
}
