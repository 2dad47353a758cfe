package pgwire

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Auth looks up what a user's password is checked against.
type Auth interface {
	// Verifier returns the user's SCRAM verifier as PostgreSQL keeps it, SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>.
	// ErrUnknownUser says that nobody may log in under the name; a client can't tell it from a wrong password.
	Verifier(ctx context.Context, user string) (string, error)
}

// ErrUnknownUser is Verifier's answer when there is no such user, or it may not log in, or has no password.
var ErrUnknownUser = errors.New("no such user, or it may not log in with a password")

// AuthFunc is a function as an Auth.
type AuthFunc func(ctx context.Context, user string) (string, error)

// Verifier calls the function.
func (f AuthFunc) Verifier(ctx context.Context, user string) (string, error) { return f(ctx, user) }

// Trust lets everybody in, under any name. It is for listeners on loopback addresses.
var Trust Auth = trust{}

type trust struct{}

func (trust) Verifier(context.Context, string) (string, error) { return "", ErrUnknownUser }

// SASL mechanisms.
const (
	plainSCRAM = "SCRAM-SHA-256"
	boundSCRAM = "SCRAM-SHA-256-PLUS"
)

// authenticate lets the client prove that it knows the user's password.
func (c *conn) authenticate(ctx context.Context) error {
	auth := c.server.config.Auth
	if auth == Trust {
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
	proof, ok, err := exchange.last(last.Data)
	if err != nil {
		return err
	}
	if !ok {
		return errorf(badPassword, "password authentication failed for user \"%s\"", cut(c.user, 64))
	}
	c.send(&pgproto3.AuthenticationSASLFinal{Data: proof})
	return nil
}

// lookUp returns the user's verifier, or one that nobody's password fits.
func (c *conn) lookUp(ctx context.Context, auth Auth) (*verifier, error) {
	text, err := "", ErrUnknownUser
	if auth != nil {
		text, err = auth.Verifier(ctx, c.user)
	}
	if err == nil {
		v, bad := parseVerifier(text)
		if bad == nil {
			return v, nil
		}
		c.server.log.Warn("weir: a user can't log in", "user", c.user, "error", bad)
		err = ErrUnknownUser
	}
	if !errors.Is(err, ErrUnknownUser) {
		c.server.log.Error("weir: can't look up a user", "user", c.user, "error", err)
		return nil, errorf(cannotConnect, "the hub can't look up users now").hint("Try again in a while.")
	}
	return mock(c.server.secret[:], c.user), nil
}

// password reads one of the client's answers.
func (c *conn) password(m pgproto3.FrontendMessage) error {
	const most = 64 << 10
	kind, body, err := c.in.message(most)
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

// malformed is a SCRAM message that is not.
func malformed(what string) error {
	return errorf(protocolViolation, "malformed SCRAM message").hint(fmt.Sprintf("The message's %s is missing or wrong.", what))
}
