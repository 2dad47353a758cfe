package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Users ends the connections of users at all hubs.
type Users interface {
	Disconnect(ctx context.Context, user string) error
	// Revoke also has the user's tokens refused that were issued before the time that it returns.
	Revoke(ctx context.Context, user string, lasts time.Duration) (issuedBefore time.Time, err error)
}

const (
	adminBody     = 4 << 10
	adminPatience = 10 * time.Second
	// The most that a request may name is checked by the database; this is what a time.Duration holds.
	maxRevocation = 100 * 365 * 24 * time.Hour
	revokedFor    = 30 * 24 * time.Hour
	minAdminToken = 16 // characters
)

// userRequest is the body of a request about a user.
type userRequest struct {
	User string   `json:"user"`
	For  *float64 `json:"for"` // seconds for which tokens are refused
}

// revokedAnswer is the answer to a revocation.
type revokedAnswer struct {
	Revoked      string    `json:"revoked"`
	IssuedBefore time.Time `json:"issued_before"` // tokens from before are refused
}

// CheckAdminTokens returns an error unless a file of tokens for operators is one: a token in each line, which are many only while one replaces another.
func CheckAdminTokens(text []byte) error {
	if len(adminTokens(text)) == 0 {
		return fmt.Errorf("it contains no token: write one of %d characters or more in a line", minAdminToken)
	}
	for _, token := range adminTokens(text) {
		if len(token) < minAdminToken {
			return fmt.Errorf("a token has %d characters: it must have %d or more", len(token), minAdminToken)
		}
	}
	return nil
}

func adminTokens(text []byte) (all [][]byte) {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			all = append(all, line)
		}
	}
	return all
}

// isOperator returns a failure unless the request has one of the tokens of operators.
func (c AdminConfig) isOperator(r *http.Request) *Failure {
	text, err := c.Tokens()
	if err == nil {
		err = CheckAdminTokens(text)
	}
	if err != nil {
		return fail(http.StatusServiceUnavailable, "unavailable", "the file of tokens for operators can't be used: "+err.Error(), "correct the file of --admin-token-file")
	}
	scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return fail(http.StatusUnauthorized, "unauthorized", "the request has no token of an operator", "send it as Authorization: Bearer")
	}
	got, known := sha256.Sum256([]byte(strings.TrimSpace(value))), 0
	for _, token := range adminTokens(text) {
		want := sha256.Sum256(token)
		known |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	if known == 0 {
		return fail(http.StatusUnauthorized, "unauthorized", "this is not the token of an operator", "send one from the file of --admin-token-file")
	}
	return nil
}

// serveUser answers POST /users/disconnect and POST /users/revoke.
func (w *Web) serveUser(c AdminConfig, revoke bool) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), adminPatience)
		defer cancel()
		answer, err := c.user(ctx, rw, r, revoke)
		if err != nil {
			w.explain("end the connections of a user", err).write(rw)
			return
		}
		reply(rw, http.StatusOK, answer)
	}
}

func (c AdminConfig) user(ctx context.Context, rw http.ResponseWriter, r *http.Request, revoke bool) (answer any, err error) {
	if c.Tokens == nil || c.Users == nil {
		return nil, fail(http.StatusForbidden, "denied", "users can't be disconnected or revoked here: this server has no tokens for operators",
			"start it with --admin-token-file; or call weir.disconnect and weir.revoke in the database")
	}
	var asked userRequest
	from := json.NewDecoder(http.MaxBytesReader(rw, r.Body, adminBody))
	from.DisallowUnknownFields()
	if err := from.Decode(&asked); err != nil {
		return nil, badRequest("the body is not a valid request: "+unreadable(err), `send {"user": "NAME"}`)
	}
	switch {
	case asked.User == "":
		return nil, badRequest("the request names no user", `send {"user": "NAME"}`)
	case !revoke && asked.For != nil:
		return nil, badRequest(`only a revocation lasts: "for" does not belong here`, "POST /users/revoke revokes the user's tokens as well")
	case asked.For != nil && (*asked.For <= 0 || *asked.For > maxRevocation.Seconds()):
		return nil, badRequest(fmt.Sprintf(`"for" is %v seconds: tokens are revoked for up to 400 days`, *asked.For), "name the longest life of a token")
	}
	if !revoke {
		return map[string]string{"disconnected": asked.User}, c.Users.Disconnect(ctx, asked.User)
	}
	lasts := revokedFor
	if asked.For != nil {
		lasts = time.Duration(*asked.For * float64(time.Second))
	}
	before, err := c.Users.Revoke(ctx, asked.User, lasts)
	return revokedAnswer{Revoked: asked.User, IssuedBefore: before.UTC()}, err
}
