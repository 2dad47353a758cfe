package pgwire_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/pgwire"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func usersFile(t testing.TB, text string) *pgwire.UsersFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	users, err := pgwire.ReadUsersFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return users
}

// login returns the SQLSTATE of why a client does not get in; "" if it does.
func (e *endpoint) login(user, password, options string) string {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.url(user, password, options))
	if err == nil {
		_ = conn.Close(e.t.Context())
		return ""
	}
	var told *pgconn.PgError
	if !errors.As(err, &told) {
		e.t.Fatalf("%s: %v", user, err)
	}
	return told.Code
}

func TestOnlyTheRightPasswordGetsIn(t *testing.T) {
	e := start(t, pgwire.Config{Auth: usersFile(t, `# who may come in
"app" "se""cret"
plain word   more is ignored

; "gone" "x"
`)})
	for _, try := range []struct{ user, password, want string }{
		{"app", "se%22cret", ""}, {"plain", "word", ""}, {"app", "secret", "28P01"}, {"app", "", "28P01"}, {"gone", "x", "28P01"}, {"nobody", "x", "28P01"},
	} {
		if try.password == "" {
			continue // pgx does not try
		}
		if got := e.login(try.user, try.password, "sslmode=disable"); got != try.want {
			t.Errorf("%s with %s: %q, want %q", try.user, try.password, got, try.want)
		}
	}
	if s := e.server.Stats(); s.Authenticated != 2 || s.AuthFailed != 3 {
		t.Errorf("%+v", s)
	}
}

func TestWithoutAuthNobodyGetsIn(t *testing.T) {
	e := start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (string, error) { return "", pgwire.ErrUnknownUser })})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "28P01" {
		t.Error(got)
	}
	e = start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (string, error) { return "md5abc", nil })})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "28P01" {
		t.Error(got)
	}
	e = start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (string, error) { return "", errors.New("connection refused") })})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "57P03" {
		t.Error(got)
	}
}

// The server's first SCRAM message shows a salt. That of a user that does not exist must look like any other, and be the same each time.
func TestAnUnknownUserLooksLikeAWrongPassword(t *testing.T) {
	e := start(t, pgwire.Config{Auth: usersFile(t, "app secret\n")})
	challenge := func(user string) string {
		t.Helper()
		r := e.dial()
		r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user}})
		r.expect("AuthenticationSASL")
		r.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,,n=,r=abcdefghijklmnop")})
		m, err := r.wire.Receive()
		if err != nil {
			t.Fatal(err)
		}
		c, ok := m.(*pgproto3.AuthenticationSASLContinue)
		if !ok {
			t.Fatalf("got %s", inShort(m))
		}
		nonce, rest, _ := strings.Cut(string(c.Data), ",")
		proof := strings.Repeat("A", 43) + "="
		r.send(&pgproto3.SASLResponse{Data: []byte("c=biws," + nonce + ",p=" + proof)})
		r.expect("FATAL 28P01")
		r.expect("gone")
		return rest
	}
	known, unknown, other := challenge("app"), challenge("nobody"), challenge("nobody else")
	if len(known) != len(unknown) || !strings.HasSuffix(unknown, ",i=4096") {
		t.Errorf("they differ: %s and %s", known, unknown)
	}
	if unknown != challenge("nobody") || unknown == other || unknown == known {
		t.Errorf("salts: %s, %s, %s", known, unknown, other)
	}
}

func TestMalformedAuthenticationIsRefused(t *testing.T) {
	e := start(t, pgwire.Config{Auth: usersFile(t, "app secret\n")})
	for _, first := range []string{
		"", "n", "n,,", "n,,n=", "n,,n=,r=", "n,,n=,r=a b", "n,a=other,n=,r=abc", "x,,n=,r=abc",
		"p=tls-unique,,n=,r=abc", "n,,n=,r=abc,m=x", "n,,m=x,n=,r=abc",
	} {
		r := e.dial()
		r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app"}})
		r.expect("AuthenticationSASL")
		r.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte(first)})
		got := r.next()
		if first == "n,,n=,r=abc,m=x" && got == "FATAL 0A000" {
			continue
		}
		if got != "FATAL 08P01" && !(strings.Contains(first, "a=other") && got == "FATAL 0A000") {
			t.Errorf("%q: %s", first, got)
		}
	}
	r := e.dial()
	r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app"}})
	r.expect("AuthenticationSASL")
	r.send(&pgproto3.Query{String: "LISTEN a"})
	r.expect("FATAL 08P01")
}

func TestUsersFilesThatCannotBeUsedSayWhy(t *testing.T) {
	for text, want := range map[string]string{
		"app md5" + strings.Repeat("0", 32):   `line 1, user "app": an md5 hash can't be used`,
		"\napp":                               `line 2, user "app": a user and a password are needed`,
		`"app" "x`:                            "a double quote is missing",
		`"app" ""`:                            "the password is empty",
		"app x\napp y":                        `line 2: user "app" is there twice`,
		"app SCRAM-SHA-256$4096:AAAA$BBBB:CC": "not kept as a SCRAM-SHA-256 verifier",
	} {
		path := filepath.Join(t.TempDir(), "users.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pgwire.ReadUsersFile(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := pgwire.ReadUsersFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestPasswordsOfPostgresRolesWork(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Empty(t))
	const role = "weir_pgwire_test"
	if _, err := pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'p€ss wörd'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP ROLE "+role) })
	e := start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(ctx context.Context, user string) (v string, err error) {
		err = pool.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin", user).Scan(&v)
		if errors.Is(err, pgx.ErrNoRows) {
			err = pgwire.ErrUnknownUser
		}
		return v, err
	})})
	if got := e.login(role, "p%E2%82%ACss%20w%C3%B6rd", "sslmode=disable"); got != "" {
		t.Errorf("refused: %s", got)
	}
	for _, user := range []string{role, "nobody", "pg_monitor"} {
		if got := e.login(user, "wrong", "sslmode=disable"); got != "28P01" {
			t.Errorf("%s: %s", user, got)
		}
	}
}

func TestCacheAsksOnceForManyAndAgainLater(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	slow := pgwire.AuthFunc(func(ctx context.Context, user string) (string, error) {
		asked.Add(1)
		<-release
		if user == "nobody" {
			return "", pgwire.ErrUnknownUser
		}
		return "verifier of " + user, nil
	})
	auth := pgwire.Cache(slow, time.Hour)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 100)
	for i := range cap(answers) {
		go func() {
			text, err := auth.Verifier(t.Context(), []string{"app", "nobody"}[i%2])
			answers <- answer{text, err}
		}()
	}
	close(release)
	unknown := 0
	for range cap(answers) {
		a := receive(t, answers, "an answer")
		if errors.Is(a.err, pgwire.ErrUnknownUser) {
			unknown++
		} else if a.err != nil || a.text != "verifier of app" {
			t.Errorf("%+v", a)
		}
	}
	if unknown != 50 || asked.Load() != 2 {
		t.Errorf("%d unknown, %d asked", unknown, asked.Load())
	}
	auth = pgwire.Cache(slow, 0)
	for range 2 {
		_, _ = auth.Verifier(t.Context(), "app")
	}
	if asked.Load() != 4 {
		t.Errorf("old answers were used: %d asked", asked.Load())
	}
}

func TestCacheDoesNotKeepFailures(t *testing.T) {
	fail := true
	auth := pgwire.Cache(pgwire.AuthFunc(func(ctx context.Context, _ string) (string, error) {
		if fail {
			return "", errors.New("the database is away")
		}
		return "verifier", ctx.Err()
	}), time.Hour)
	if _, err := auth.Verifier(t.Context(), "app"); err == nil {
		t.Fatal("no error")
	}
	fail = false
	if _, err := auth.Verifier(t.Context(), "app"); err != nil {
		t.Error(err)
	}
}

// login authenticates with SCRAM.
func (r *raw) login(user, password string) {
	r.t.Helper()
	r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user, "database": "app"}})
	r.expect("AuthenticationSASL")
	first := "n=,r=abcdefghijklmnopqrstuvwx"
	r.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,," + first)})
	m, err := r.wire.Receive()
	if err != nil {
		r.t.Fatal(err)
	}
	challenge := string(m.(*pgproto3.AuthenticationSASLContinue).Data)
	var nonce, salt string
	var iterations int
	for _, part := range strings.Split(challenge, ",") {
		switch part[0] {
		case 'r':
			nonce = part
		case 's':
			salt = part[2:]
		case 'i':
			iterations, _ = strconv.Atoi(part[2:])
		}
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	key := saltedPassword(r.t, password, salt, iterations)
	client := mac(key, "Client Key")
	stored := sha256.Sum256(client)
	last := "c=biws," + nonce
	proof := mac(stored[:], first+","+challenge+","+last)
	subtle.XORBytes(proof, proof, client)
	r.send(&pgproto3.SASLResponse{Data: []byte(last + ",p=" + base64.StdEncoding.EncodeToString(proof))})
	r.expect("AuthenticationSASLFinal")
	if got := r.answer(); !strings.HasSuffix(got, "/I") {
		r.t.Fatal(got)
	}
}

var salted sync.Map // it takes milliseconds

func saltedPassword(t testing.TB, password, salt string, iterations int) []byte {
	t.Helper()
	type question struct {
		password, salt string
		iterations     int
	}
	q := question{password, salt, iterations}
	if known, ok := salted.Load(q); ok {
		return known.([]byte)
	}
	raw, err := base64.StdEncoding.DecodeString(salt)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pbkdf2.Key(sha256.New, password, raw, iterations, sha256.Size)
	if err != nil {
		t.Fatal(err)
	}
	salted.Store(q, key)
	return key
}
