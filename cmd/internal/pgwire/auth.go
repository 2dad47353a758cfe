package pgwire

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/internal/hub"
)

// Auth looks up a user's password verifier and the channels that the user may use.
type Auth interface {
	// Login returns a user's login. ErrUnknownUser means that no user may log in under this name; a client can't distinguish it from a
	// wrong password.
	Login(ctx context.Context, user string) (Login, error)
}

// Login describes a user.
type Login struct {
	Verifier       string       // as PostgreSQL stores it, SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>
	Listen, Notify []hub.Filter // channels that the user may LISTEN on and NOTIFY; nil: none
}

// Everything allows all channels.
func Everything() []hub.Filter { return []hub.Filter{hub.Pattern(">")} }

// ErrUnknownUser is returned by Login if the user does not exist, may not log in, or has no password.
var ErrUnknownUser = errors.New("the user does not exist, or may not log in with a password")

// AuthFunc adapts a function to an Auth.
type AuthFunc func(ctx context.Context, user string) (Login, error)

// Login calls the function.
func (f AuthFunc) Login(ctx context.Context, user string) (Login, error) { return f(ctx, user) }

// Trust accepts every client under any name, and lets it listen and notify on all channels. Use it on loopback addresses only.
var Trust Auth = trust{}

type trust struct{}

func (trust) Login(context.Context, string) (Login, error) { return Login{}, ErrUnknownUser }

// may returns an error unless one of the filters allows the channel.
func (c *conn) may(do string, filters []hub.Filter, channel string) error {
	if err := hub.CheckChannel(channel); err != nil {
		return errorf(badValue, "%v", err)
	}
	if hub.IsInternal(channel) {
		return errorf(denied, "permission denied: channels whose names begin with %s are for hubs alone", hub.Internal)
	}
	action := policy.Subscribe
	if do == "NOTIFY" {
		action = policy.Publish
	}
	switch c.server.config.Policies.Set().Decide(action, hub.Channel(channel), c.user) {
	case policy.Allow:
		return nil
	case policy.Refuse:
		return errorf(denied, "permission denied: the policies of channel \"%s\" don't allow user \"%s\" to %s", cut(channel, 64), cut(c.user, 64), do)
	}
	for _, f := range filters {
		if f.Match(channel) {
			return nil
		}
	}
	return errorf(denied, "permission denied: user \"%s\" may not %s on channel \"%s\"", cut(c.user, 64), do, cut(channel, 64)).
		hint("A role of the database may LISTEN as a member of weir_subscribe, and NOTIFY as one of weir_publish, unless weir.restrict says otherwise.")
}

// SASL mechanisms.
const (
	plainSCRAM = "SCRAM-SHA-256"
	boundSCRAM = "SCRAM-SHA-256-PLUS"
)

// authenticate checks that the client knows the user's password.
func (c *conn) authenticate(ctx context.Context) error {
	auth := c.server.config.Auth
	if auth == Trust {
		c.rights.Store(&rights{Everything(), Everything()})
		return nil
	}
	verifier, err := c.lookUp(ctx, auth)
	if err != nil {
		return err
	}
	mechanisms := []string{plainSCRAM}
	binding := c.endPoint()
	if binding != nil {
		mechanisms = []string{boundSCRAM, plainSCRAM}
	}
	c.send(&pgproto3.AuthenticationSASL{AuthMechanisms: mechanisms})
	c.flush()
	exchange := scram{verifier: verifier, binding: binding}

	var first pgproto3.SASLInitialResponse
	if err := c.password(&first); err != nil {
		return err
	}
	if first.AuthMechanism == boundSCRAM && binding != nil {
		exchange.bound = true
	} else if first.AuthMechanism != plainSCRAM {
		return errorf(protocolViolation, "client selected an invalid SASL authentication mechanism")
	}
	challenge, err := exchange.first(first.Data)
	if err != nil {
		return err
	}
	c.send(&pgproto3.AuthenticationSASLContinue{Data: challenge})
	c.flush()

	var last pgproto3.SASLResponse
	if err := c.password(&last); err != nil {
		return err
	}
	proof, right, err := exchange.last(last.Data)
	if err := c.turn(err == nil && right); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	if !right {
		return errorf(badPassword, "password authentication failed for user \"%s\"", cut(c.user, 64))
	}
	c.send(&pgproto3.AuthenticationSASLFinal{Data: proof})
	return nil
}

// lookUp returns the user's verifier, or one that no password matches.
func (c *conn) lookUp(ctx context.Context, auth Auth) (*verifier, error) {
	var login Login
	err := ErrUnknownUser
	if auth != nil {
		login, err = auth.Login(ctx, c.user)
	}
	if err == nil {
		v, bad := parseVerifier(login.Verifier)
		if bad == nil {
			c.rights.Store(&rights{login.Listen, login.Notify})
			return v, nil
		}
		c.server.complain("weir: a user can't log in", "user", cut(c.user, 64), "error", bad)
		err = ErrUnknownUser
	}
	if !errors.Is(err, ErrUnknownUser) {
		c.server.log.Debug("weir: can't look up a user", "user", cut(c.user, 64), "error", err) // the Auth logs it once
		return nil, errorf(cannotConnect, "the hub can't look up users now").hint("Try again in a while; the hub's log has the reason.")
	}
	return mock(c.server.config.Secret, c.user, c.server.config.Iterations), nil
}

// password reads one of the client's SASL messages.
func (c *conn) password(m pgproto3.FrontendMessage) error {
	const limit = 64 << 10
	kind, body, err := c.in.message(limit)
	if err != nil {
		return err
	}
	if kind != 'p' {
		return errorf(protocolViolation, "expected SASL response, got message type %d", kind)
	}
	if err := m.Decode(body); err != nil {
		return errorf(protocolViolation, "malformed SASL response: %v", err)
	}
	return nil
}

// malformed is the error for a malformed SCRAM message.
func malformed(what string) error {
	return errorf(protocolViolation, "malformed SCRAM message").hint(fmt.Sprintf("The message's %s is missing or wrong.", what))
}
