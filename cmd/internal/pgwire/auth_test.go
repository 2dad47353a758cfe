package pgwire_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
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

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func usersFile(t testing.TB, text string) *pgwire.UsersFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	users, err := pgwire.ReadUsersFile(path, []byte("secret"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return users
}

// login returns the SQLSTATE with which a login fails; "" if it succeeds.
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
	t.Parallel()
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
	t.Parallel()
	e := start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (pgwire.Login, error) { return pgwire.Login{}, pgwire.ErrUnknownUser })})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "28P01" {
		t.Error(got)
	}
	e = start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (pgwire.Login, error) { return pgwire.Login{Verifier: "md5abc"}, nil })})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "28P01" {
		t.Error(got)
	}
	e = start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (pgwire.Login, error) {
		return pgwire.Login{}, errors.New("connection refused")
	})})
	if got := e.login("postgres", "postgres", "sslmode=disable"); got != "57P03" {
		t.Error(got)
	}
}

// The server's first SCRAM message contains a salt. That of a user that does not exist must look like any other, and always be the same.
func TestAnUnknownUserLooksLikeAWrongPassword(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	for text, want := range map[string]string{
		"app md5" + strings.Repeat("0", 32):   `line 1, user "app": an md5 hash is not supported`,
		"\napp":                               `line 2, user "app": a line needs a user and a password`,
		`"app" "x`:                            "the closing double quote is missing",
		`"app" ""`:                            "the password is empty",
		"app x\napp y":                        `line 2: user "app" appears twice`,
		"app SCRAM-SHA-256$4096:AAAA$BBBB:CC": "not stored as a SCRAM-SHA-256 verifier",
		"app x listne=a":                      `line 1, user "app": "listne" is not valid`,
		"app x listen=a.>.b":                  `line 1, user "app": listen: pattern "a.>.b"`,
	} {
		path := filepath.Join(t.TempDir(), "users.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pgwire.ReadUsersFile(path, []byte("secret"), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := pgwire.ReadUsersFile(filepath.Join(t.TempDir(), "none"), nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestPasswordsOfPostgresRolesWork(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	const role = "weir_pgwire_test"
	if _, err := pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'p€ss wörd'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP ROLE "+role) })
	e := start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(ctx context.Context, user string) (v pgwire.Login, err error) {
		err = pool.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin", user).Scan(&v.Verifier)
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

// TestStormsOfNamesCostOneQuestion: however many clients log in under however many names, the database is queried by one at a time, and at most
// once per period.
func TestStormsOfNamesCostOneQuestion(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	release := make(chan struct{})
	roster := pgwire.NewRoster(func(context.Context) (map[string]pgwire.Login, error) {
		asked.Add(1)
		<-release
		return map[string]pgwire.Login{"app": {Verifier: "of app"}}, nil
	})
	type answer struct {
		pgwire.Login
		err error
	}
	answers := make(chan answer, 1000)
	for i := range cap(answers) {
		go func() {
			user := "app"
			if i%2 == 1 {
				user = "nobody" + strconv.Itoa(i)
			}
			login, err := roster.Login(t.Context(), user)
			answers <- answer{login, err}
		}()
	}
	close(release)
	unknown := 0
	for range cap(answers) {
		a := receive(t, answers, "an answer")
		if errors.Is(a.err, pgwire.ErrUnknownUser) {
			unknown++
		} else if a.err != nil || a.Verifier != "of app" {
			t.Errorf("%+v", a)
		}
	}
	// A fast result is reused for a second: only a very slow machine gets to a second query.
	if unknown != 500 || asked.Load() > 3 {
		t.Errorf("%d unknown, %d asked", unknown, asked.Load())
	}
}

// TestRosterTellsOfFailuresAndRecovers: after a failed load nobody logs in with the old users, and everybody can again after a successful one.
func TestRosterTellsOfFailuresAndRecovers(t *testing.T) {
	t.Parallel()
	away := errors.New("the database is away")
	var fails atomic.Bool
	fails.Store(true)
	roster := pgwire.NewRoster(func(context.Context) (map[string]pgwire.Login, error) {
		if fails.Load() {
			return nil, away
		}
		return map[string]pgwire.Login{"app": {}}, nil
	})
	if _, err := roster.Login(t.Context(), "app"); !errors.Is(err, away) || !errors.Is(roster.Err(), away) {
		t.Errorf("%v, %v", err, roster.Err())
	}
	fails.Store(false)
	for end := time.Now().Add(patience); roster.Check(t.Context()) != nil; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not asked again")
		}
	}
	if _, err := roster.Login(t.Context(), "app"); err != nil {
		t.Error(err)
	}
}

// TestUsersListenAndNotifyWhereTheyMay: a users file restricts users to channels.
func TestUsersListenAndNotifyWhereTheyMay(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{Auth: usersFile(t, "all x\nsome x listen=orders.*,news notify=chat.>\nnone x listen= notify=\n")})
	for _, try := range []struct {
		user, sql, want string
	}{
		{"all", `LISTEN anything`, ""}, {"all", `NOTIFY anything`, ""},
		{"some", `LISTEN "orders.new"`, ""}, {"some", `LISTEN "orders.new.big"`, "42501"}, {"some", `LISTEN news; LISTEN chat`, "42501"},
		{"some", `LISTEN "orders.*"`, ""}, // a channel of that name, and no more
		{"some", `NOTIFY "chat.a"`, ""}, {"some", `NOTIFY news`, "42501"}, {"some", `SELECT pg_notify('news', '')`, "42501"},
		{"some", `SELECT weir.publish('news', '')`, "42501"}, {"some", `SELECT weir.notify('news', '')`, "42501"},
		{"none", `LISTEN news`, "42501"}, {"none", `NOTIFY news`, "42501"}, {"none", `UNLISTEN *`, ""},
	} {
		conn, err := pgx.Connect(t.Context(), e.url(try.user, "x", "sslmode=disable&default_query_exec_mode=simple_protocol"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), try.sql)
		var told *pgconn.PgError
		if errors.As(err, &told); (err == nil) != (try.want == "") || err != nil && (told == nil || told.Code != try.want) {
			t.Errorf("%s: %s: %v, want %q", try.user, try.sql, err, try.want)
		}
		_ = conn.Close(t.Context())
	}
}

// TestTwoHubsTellTheSameOfAUser: hubs with the same secret send the same salt and iterations, for existing users and for others.
func TestTwoHubsTellTheSameOfAUser(t *testing.T) {
	t.Parallel()
	config := pgwire.Config{Secret: []byte("shared"), Iterations: 7777}
	shown := func(e *endpoint, user string) string {
		r := e.dial()
		r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user}})
		r.expect("AuthenticationSASL")
		r.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,,n=,r=abcdefghijklmnop")})
		m, err := r.wire.Receive()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(m.(*pgproto3.AuthenticationSASLContinue).Data), ",")
		return rest
	}
	text := "app secret\n"
	config.Auth = usersFile(t, text)
	one := start(t, config)
	config.Auth = usersFile(t, text)
	two := start(t, config)
	for _, user := range []string{"app", "nobody"} {
		if a, b := shown(one, user), shown(two, user); a != b {
			t.Errorf("%s: %s at one hub, %s at the other", user, a, b)
		}
	}
	if s := shown(one, "nobody"); !strings.HasSuffix(s, ",i=7777") {
		t.Errorf("a user who does not exist is shown %s", s)
	}
}

// TestSilentConnectionsMakeRoom: silent connections are ended once there are too many, and do not keep others from logging in.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	pgtest.Alone(t, "silent is who sends nothing for a moment")
	const limit = 20
	e := start(t, pgwire.Config{Auth: usersFile(t, "app x\n"), MaxFromAddress: limit})
	silent := make([]net.Conn, 5*limit)
	for i := range silent {
		conn, err := net.Dial("tcp", e.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent[i] = conn
	}
	for range 10 {
		if got := e.login("app", "x", "sslmode=disable"); got != "" {
			t.Fatalf("refused: %s", got)
		}
	}
	_ = silent[0].SetReadDeadline(time.Now().Add(patience))
	if _, err := silent[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest is still there: %v", err)
	}
	if s := e.server.Stats(); s.Strangers > limit || s.Shed < int64(len(silent)-limit) {
		t.Errorf("%+v", s)
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

var salted sync.Map // salting takes milliseconds

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

// loginFrom is login from an address.
func (e *endpoint) loginFrom(ctx context.Context, address, user, password string) error {
	e.t.Helper()
	config, err := pgx.ParseConfig(e.url(user, password, "sslmode=disable"))
	if err != nil {
		e.t.Fatal(err)
	}
	config.DialFunc = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		_ = conn.Close(e.t.Context())
	}
	return err
}

// TestGuessersWaitAndOthersDoNot: an address that sends very many wrong passwords is refused, while others log in as usual.
func TestGuessersWaitAndOthersDoNot(t *testing.T) {
	pgtest.Alone(t, "others must not wait")
	e := start(t, pgwire.Config{Auth: usersFile(t, `"app" "secret"`)})
	if err := e.loginFrom(t.Context(), "127.0.0.1", "app", "secret"); err != nil {
		t.Skip("this machine has no other loopback addresses: ", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan struct{})
	var once sync.Once
	var guessers sync.WaitGroup
	for range 100 {
		guessers.Go(func() { // until it is refused; half of them are not, and wait for their turn
			for ctx.Err() == nil {
				var told *pgconn.PgError
				if err := e.loginFrom(ctx, "127.0.0.2", "app", "guess"); errors.As(err, &told) && told.Code == "28000" {
					once.Do(func() { close(refused) })
					return
				}
			}
		})
	}
	select {
	case <-refused:
	case <-time.After(patience):
		t.Error("guesses are not bounded")
	}
	for _, address := range []string{"127.0.0.1", "127.0.0.3"} {
		if err := e.loginFrom(t.Context(), address, "app", "secret"); err != nil {
			t.Errorf("the right password from %s: %v", address, err)
		}
	}
	cancel()
	guessers.Wait()
}

// TestUsersFileIsReadAgainWhenItChanges: a new user can log in, a removed one can't and is disconnected, and a file with a mistake does not revoke
// any user immediately.
func TestUsersFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`"app" "secret"`)
	users, err := pgwire.ReadUsersFile(path, []byte("secret"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, pgwire.Config{Auth: users})
	conn, err := pgx.Connect(t.Context(), e.url("app", "secret", "sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	write(`"app" "secret" and "a mistake`)
	if code := e.login("app", "secret", "sslmode=disable"); code != "" {
		t.Errorf("while the file has a mistake: %s", code)
	}
	write(`"other" "secret"`)
	eventually(t, "the new user gets in", func() bool { return e.login("other", "secret", "sslmode=disable") == "" })
	if code := e.login("app", "secret", "sslmode=disable"); code != "28P01" {
		t.Errorf("the removed user: %q", code)
	}
	if err := e.server.Recheck(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var told *pgconn.PgError
	if _, err := conn.WaitForNotification(ctx); !errors.As(err, &told) || told.Code != "28000" {
		t.Errorf("the client of the removed user: %v", err)
	}
}

// TestWhatIsTakenFromAUserIsTakenFromItsClients: clients that listen on revoked channels are disconnected at the next check; others continue with
// their new rights; and while users can't be looked up, nobody is disconnected.
func TestWhatIsTakenFromAUserIsTakenFromItsClients(t *testing.T) {
	t.Parallel()
	known := usersFile(t, `"app" "secret"`)
	login, err := known.Login(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	var listen atomic.Pointer[[]hub.Filter]
	all := pgwire.Everything()
	listen.Store(&all)
	var away atomic.Bool
	e := start(t, pgwire.Config{Auth: pgwire.AuthFunc(func(context.Context, string) (pgwire.Login, error) {
		if away.Load() {
			return pgwire.Login{}, errors.New("the database is away")
		}
		l := login
		l.Listen = *listen.Load()
		return l, nil
	})})
	connect := func(channel string) *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), e.url("app", "secret", "sslmode=disable"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		run(t, conn, "LISTEN "+channel)
		return conn
	}
	news, orders, late := connect("news"), connect("orders"), connect("orders")
	run(t, late, "BEGIN")
	run(t, late, "LISTEN news") // which takes effect at the commit
	away.Store(true)
	if err := e.server.Recheck(t.Context()); err == nil {
		t.Error("the check says nothing of the database being away")
	}
	away.Store(false)
	only := []hub.Filter{hub.Channel("orders")}
	listen.Store(&only)
	if err := e.server.Recheck(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var told *pgconn.PgError
	if _, err := news.WaitForNotification(ctx); !errors.As(err, &told) || told.Code != "28000" {
		t.Errorf("who listened on a channel that was taken away: %v", err)
	}
	for _, conn := range []*pgx.Conn{orders, late} {
		sql := "LISTEN news"
		if conn == late {
			sql = "COMMIT"
		}
		if _, err := conn.Exec(t.Context(), sql); !errors.As(err, &told) || told.Code != "42501" {
			t.Errorf("%s of a channel that was taken away: %v", sql, err)
		}
	}
	run(t, orders, "NOTIFY orders")
	notification(t, orders)
}
