package pgwire

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-pg/weir/internal/hub"
)

// rights are the channels that a user may listen on and notify.
type rights struct{ listen, notify []hub.Filter }

func (r *rights) equal(o *rights) bool {
	return slices.Equal(r.listen, o.listen) && slices.Equal(r.notify, o.notify)
}

// Recheck looks up again what those who have logged in may do: a user is looked up once, whatever connections it has. Who may not log in any
// more, or listens where it may not any more, is cut off; what else has changed holds from now on. It returns why users could not be looked up,
// if they could not; nobody is cut off for that.
func (s *Server) Recheck(ctx context.Context) error {
	if s.config.Auth == nil || s.config.Auth == Trust {
		return nil
	}
	users := map[string][]*conn{}
	s.each(func(c *conn) {
		if c.loggedIn.Load() {
			users[c.user] = append(users[c.user], c)
		}
	})
	for user, conns := range users {
		login, err := s.config.Auth.Login(ctx, user)
		if err != nil && !errors.Is(err, ErrUnknownUser) {
			return err
		}
		now := &rights{login.Listen, login.Notify}
		ended := 0
		for _, c := range conns {
			if err != nil || !c.nowMay(now) {
				ended++
				go c.cutOff(errRevoked) // it may have to wait for a write; it ends soon after that
			}
		}
		if ended > 0 {
			s.complain("weir: clients were cut off, for they may not log in, or listen where they did, any more", "user", cut(user, 64), "clients", ended)
		}
	}
	return nil
}

// nowMay gives the connection other rights, and tells whether it may listen on all that it listens on.
func (c *conn) nowMay(r *rights) bool {
	if c.rights.Load().equal(r) {
		return true
	}
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
