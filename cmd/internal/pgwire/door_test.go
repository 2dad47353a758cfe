package pgwire_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
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

// house is a door and the databases behind it. Its endpoint is the door's.
type house struct {
	*endpoint
	mu   sync.Mutex
	all  map[string]*pgwire.Server
	asks func(name string) // called before a name is looked up; nil: nothing is
}

// open starts a door in front of databases with these configurations, which need no hubs.
func open(t testing.TB, door pgwire.Config, databases map[string]pgwire.Config) *house {
	t.Helper()
	h := &house{all: map[string]*pgwire.Server{}}
	for name, config := range databases {
		h.add(t, name, config, newMemory())
	}
	door.Databases = h.find
	h.endpoint = serve(t, door, "127.0.0.1:0")
	t.Cleanup(h.stop) // before the hubs
	return h
}

// add puts a database behind the door, in place of an earlier one of this name.
func (h *house) add(t testing.TB, name string, config pgwire.Config, source hub.Source) *pgwire.Server {
	t.Helper()
	var stop func()
	config.Hub, stop = runHub(source)
	t.Cleanup(stop)
	if config.Auth == nil {
		config.Auth = pgwire.Trust
	}
	config.Logger = quiet
	s := pgwire.New(config)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[name] = s
	return s
}

func (h *house) database(name string) *pgwire.Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[name]
}

func (h *house) find(_ context.Context, name string) (*pgwire.Server, error) {
	if h.asks != nil {
		h.asks(name)
	}
	if s := h.database(name); s != nil {
		return s, nil
	}
	switch name {
	case "away":
		return nil, pgwire.Unreachable("the database \"away\" can't be reached", "Come back later.")
	case "broken":
		return nil, errors.New("no idea")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return nil, pgwire.UnknownDatabase(fmt.Sprintf("there is no database %q", name), "There are: "+strings.Join(slices.Sorted(maps.Keys(h.all)), ", "))
}

// enter begins a session in a database, as someone.
func (h *house) enter(database string) *raw {
	h.t.Helper()
	r, begin := h.session(map[string]string{"database": database})
	if !strings.HasSuffix(begin, "/I") {
		h.t.Fatalf("%s: %s", database, begin)
	}
	return r
}

// as connects with pgx.
func (h *house) as(user, password, database, options string) (*pgx.Conn, error) {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), fmt.Sprintf("postgres://%s:%s@%s/%s?%s", user, password, h.addr, database, options))
	if err == nil {
		h.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

func two() map[string]pgwire.Config { return map[string]pgwire.Config{"one": {}, "two": {}} }

func TestOneDoorServesSeveralDatabases(t *testing.T) {
	t.Parallel()
	certificates, root := certificate(t)
	h := open(t, pgwire.Config{TLS: certificates, RequireTLS: true}, map[string]pgwire.Config{
		"one": {Auth: usersFile(t, "app first\nsomeone first\n"), ServerVersion: "17.2 (one)"},
		"two": {Auth: usersFile(t, "app second\ntwo second\n"), ServerVersion: "18.1 (two)", DurableNotify: true},
	})
	pids := map[uint32]bool{}
	connect := func(user, password, database, options string) *pgx.Conn {
		t.Helper()
		conn, err := h.as(user, password, database, options)
		if err != nil {
			t.Fatal(err)
		}
		pids[conn.PgConn().PID()] = true
		return conn
	}
	one := connect("app", "first", "one", "sslmode=require")
	two := connect("app", "second", "two", "channel_binding=require&sslmode=verify-full&sslrootcert="+root)
	own := connect("two", "second", "", "sslnegotiation=direct&sslmode=verify-full&sslrootcert="+root) // its user's
	if len(pids) != 3 {
		t.Errorf("process ids are not unique: %v", pids)
	}
	for _, conn := range []*pgx.Conn{one, two, own} {
		run(t, conn, "LISTEN a")
		var ssl string
		if err := conn.QueryRow(t.Context(), "SHOW ssl").Scan(&ssl); err != nil || ssl != "on" {
			t.Errorf("SHOW ssl: %s, %v", ssl, err)
		}
	}
	for range 10 {
		run(t, one, "NOTIFY a, 'one'")
		run(t, two, "NOTIFY a, 'two'")
	}
	for _, who := range []struct {
		conn                    *pgx.Conn
		database, heard, server string
	}{{one, "one", "one", "17.2 (one)"}, {two, "two", "two", "18.1 (two)"}, {own, "two", "two", "18.1 (two)"}} {
		for range 10 {
			if n := notification(t, who.conn); n.Payload != who.heard {
				t.Errorf("a client of %s was notified of %s", who.database, n.Payload)
			}
		}
		if got := who.conn.PgConn().ParameterStatus("server_version"); got != who.server {
			t.Errorf("%s says that it is %s", who.database, got)
		}
		var database string
		if err := who.conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil || database != who.database {
			t.Errorf("a client of %s is in %s: %v", who.database, database, err)
		}
	}

	for _, try := range []struct{ user, password, database, options, code, message, hint string }{
		{"app", "second", "one", "sslmode=require", "28P01", "password authentication failed", ""},
		{"two", "second", "one", "sslmode=require", "28P01", "password authentication failed", ""},
		{"someone", "first", "", "sslmode=require", "3D000", `no database "someone"`, "There are: one, two"},
		{"app", "first", "other", "sslmode=require", "3D000", `no database "other"`, "There are: one, two"},
		{"app", "first", "away", "sslmode=require", "57P03", `"away" can't be reached`, "Come back later."},
		{"app", "first", "broken", "sslmode=require", "XX000", "no idea", ""},
		{"app", "first", "one", "sslmode=disable", "28000", "TLS", "Add sslmode=require."},
	} {
		_, err := h.as(try.user, try.password, try.database, try.options)
		var told *pgconn.PgError
		if !errors.As(err, &told) {
			t.Errorf("%+v: %v", try, err)
		} else if told.Code != try.code || !strings.Contains(told.Message, try.message) || told.Hint != try.hint {
			t.Errorf("%+v: %+v", try, told)
		}
	}
	if a, b := h.database("one").Stats(), h.database("two").Stats(); a.AuthFailed != 2 || b.AuthFailed != 0 || a.Authenticated != 1 || b.Authenticated != 2 ||
		a.Notified != 10 || b.Notified != 10 || a.Accepted != 3 || b.Accepted != 2 {
		t.Errorf("the databases count %+v and %+v", a, b)
	}
}

func TestADatabaseKnowsItsOwnClientsAlone(t *testing.T) {
	t.Parallel()
	known, err := usersFile(t, `"app" "secret"`).Login(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	var gone atomic.Bool
	h := open(t, pgwire.Config{}, map[string]pgwire.Config{
		"one": {Auth: pgwire.AuthFunc(func(context.Context, string) (pgwire.Login, error) {
			if gone.Load() {
				return pgwire.Login{}, pgwire.ErrUnknownUser
			}
			return known, nil
		})},
		"two":   {Auth: usersFile(t, `"app" "secret"`)},
		"small": {MaxConnections: 1},
	})
	one, two := h.database("one"), h.database("two")
	connect := func(database string) *pgx.Conn {
		t.Helper()
		conn, err := h.as("app", "secret", database, "sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	ended := func(conn *pgx.Conn, code string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var told *pgconn.PgError
		if _, err := conn.WaitForNotification(ctx); !errors.As(err, &told) || told.Code != code {
			t.Errorf("it should have been ended with %s: %v", code, err)
		}
	}
	a, b := connect("one"), connect("two")
	if all := one.Clients(); len(all) != 1 || all[0].PID != a.PgConn().PID() || all[0].User != "app" {
		t.Errorf("the clients of one database are %+v", all)
	}
	if all := h.server.Clients(); len(all) != 2 {
		t.Errorf("the clients of the door are %+v", all)
	}
	if one.End(b.PgConn().PID()) {
		t.Error("one database ends a client of another one")
	}
	if n := one.EndUser("app"); n != 1 {
		t.Errorf("it ends %d clients", n)
	}
	ended(a, "57P01")
	a = connect("one")
	gone.Store(true)
	for _, s := range []*pgwire.Server{one, two, h.server} {
		if err := s.Recheck(t.Context()); err != nil {
			t.Error(err)
		}
	}
	ended(a, "28000")
	run(t, b, "SELECT 1")
	if !two.End(b.PgConn().PID()) {
		t.Error("a database can't end its own client")
	}
	ended(b, "57P01")

	small := h.enter("small")
	if _, begin := h.session(map[string]string{"database": "small"}); begin != "FATAL 53300 gone" {
		t.Error(begin)
	}
	connect("two")
	small.asks("SELECT 1", "[?column?:23] (1) SELECT 1 /I")
	if s := h.database("small").Stats(); s.Refused != 1 || s.Accepted != 2 {
		t.Errorf("%+v", s)
	}
}

func TestADatabaseIsDrainedAlone(t *testing.T) {
	t.Parallel()
	h := open(t, pgwire.Config{}, two())
	release := make(chan struct{})
	source := &slowSource{memory: newMemory(), begun: make(chan struct{}, 1), release: release}
	one := h.add(t, "one", pgwire.Config{Drain: time.Hour, DurableNotify: true}, source)
	idle, listening, inTransaction, busy, other := h.enter("one"), h.enter("one"), h.enter("one"), h.enter("one"), h.enter("two")
	listening.asks("LISTEN a", "LISTEN /I")
	inTransaction.asks("BEGIN", "BEGIN /T")
	other.asks("LISTEN a", "LISTEN /I")
	busy.send(&pgproto3.Query{String: "NOTIFY b"})
	receive(t, source.begun, "the publish")
	drained := make(chan struct{})
	go func() { one.Drain(t.Context()); close(drained) }()
	for _, r := range []*raw{idle, listening, inTransaction} {
		r.expect("FATAL 57P01")
		r.expect("gone")
	}
	if _, begin := h.session(map[string]string{"database": "one"}); begin != "FATAL 57P03 gone" {
		t.Errorf("a new client of the database that is drained: %s", begin)
	}
	select {
	case <-drained:
		t.Error("it was drained while a query ran")
	default:
	}
	close(release)
	busy.expect("NOTIFY")
	busy.expect("/I")
	busy.expect("FATAL 57P01")
	receive(t, drained, "the end of the drain")
	if n := one.Stats().Connections; n != 0 {
		t.Errorf("%d connections are left", n)
	}
	one.Drain(t.Context()) // which is done
	other.asks("NOTIFY a, 'x'", "NOTIFY /I")
	other.expect("!a x")

	h.add(t, "one", pgwire.Config{}, newMemory())
	h.enter("one").asks("NOTIFY a", "NOTIFY /I")
	eventually(t, "the door knows who is left", func() bool { return h.server.Stats().Connections == 2 })
}

// TestADrainIsOverWhenItsTimeIs: whoever drains, and whichever way its time is over, a query that does not end is interrupted.
func TestADrainIsOverWhenItsTimeIs(t *testing.T) {
	t.Parallel()
	for _, drain := range []string{"database", "database, context", "door"} {
		t.Run(drain, func(t *testing.T) {
			t.Parallel()
			long, short := time.Hour, 10*time.Millisecond
			times := map[string][2]time.Duration{"database": {long, short}, "database, context": {long, long}, "door": {short, long}}[drain]
			h := open(t, pgwire.Config{Drain: times[0]}, two())
			release := make(chan struct{})
			source := &slowSource{memory: newMemory(), begun: make(chan struct{}, 1), release: release}
			one := h.add(t, "one", pgwire.Config{Drain: times[1], DurableNotify: true}, source)
			t.Cleanup(func() { close(release) }) // before the hub's
			r := h.enter("one")
			r.send(&pgproto3.Query{String: "NOTIFY a"})
			receive(t, source.begun, "the publish")
			done := make(chan struct{})
			go func() {
				defer close(done)
				if drain == "door" {
					h.stop()
					return
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if drain != "database" {
					cancel()
				}
				one.Drain(ctx)
			}()
			receive(t, done, "the end of the drain")
			for r.next() != "gone" {
			}
			if n := one.Stats().Connections; n != 0 {
				t.Errorf("%d connections are left", n)
			}
		})
	}
}

func TestADoorThatStopsEndsAllDatabasesClients(t *testing.T) {
	t.Parallel()
	h := open(t, pgwire.Config{Drain: time.Hour}, map[string]pgwire.Config{"one": {}, "two": {Drain: time.Hour}, "three": {Auth: usersFile(t, "someone secret\n")}})
	one, twice := h.enter("one"), h.enter("two")
	stranger := h.dial()
	stranger.send(&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone", "database": "three"},
	})
	stranger.expect("AuthenticationSASL")
	if s := h.database("three").Stats(); s.Connections != 1 || h.server.Stats().Strangers != 1 {
		t.Errorf("%+v", s)
	}
	stopped, drained := make(chan struct{}), make(chan struct{})
	go func() { h.database("two").Drain(t.Context()); close(drained) }() // at the same time
	go func() { h.stop(); close(stopped) }()
	for _, r := range []*raw{one, twice, stranger} {
		r.expect("FATAL 57P01")
		r.expect("gone")
	}
	receive(t, stopped, "the stop")
	receive(t, drained, "the drain")
	for _, s := range []*pgwire.Server{h.server, h.database("one"), h.database("two"), h.database("three")} {
		if n := s.Stats(); n.Connections != 0 || n.Strangers != 0 {
			t.Errorf("%+v", n)
		}
	}
}

// TestWhatHappensDuringAHandover: the door looks up the database's server, and before it has handed the connection over, something else happens.
func TestWhatHappensDuringAHandover(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what string
		does func(h *house)
		want string
	}{
		{"the database is drained", func(h *house) { h.database("one").Drain(context.Background()) }, "FATAL 57P03 gone"},
		{"the door stops", func(h *house) {
			go h.stop()
			pgtest.Until(h.t, "the listener is closed", func() bool {
				conn, err := net.Dial("tcp", h.addr.String())
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
		}, "FATAL 57P01"},
		{"others take its place", func(h *house) {
			h.dial()
			h.dial()
			pgtest.Until(h.t, "it has been ended", func() bool { return h.server.Stats().Shed > 0 })
		}, "gone"},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			asked, resume := make(chan struct{}), make(chan struct{})
			h := open(t, pgwire.Config{MaxStrangers: 2, Drain: time.Hour}, two())
			one := h.database("one")
			ask := sync.OnceFunc(func() {
				close(asked)
				<-resume
			})
			h.asks = func(name string) {
				if name == "one" {
					ask()
				}
			}
			r := h.dial()
			r.send(&pgproto3.StartupMessage{
				ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone", "database": "one"},
			})
			receive(t, asked, "the question for the database")
			test.does(h)
			close(resume)
			var all []string
			for len(all) == 0 || all[len(all)-1] != "gone" {
				all = append(all, r.next())
			}
			if got := strings.Join(all, " "); !strings.Contains(got, test.want) {
				t.Errorf("got %s", got)
			}
			eventually(t, "nothing is left of it", func() bool { return one.Stats().Connections == 0 })
			done := make(chan struct{})
			go func() { one.Drain(context.Background()); close(done) }()
			receive(t, done, "the drain")
		})
	}
}

// TestAServerThatHasEndedIsLookedUpAgain: another may have taken its place meanwhile.
func TestAServerThatHasEndedIsLookedUpAgain(t *testing.T) {
	t.Parallel()
	h := open(t, pgwire.Config{}, two())
	h.database("one").Drain(t.Context())
	asked := 0
	h.asks = func(string) {
		if asked++; asked == 2 {
			h.add(t, "one", pgwire.Config{}, newMemory())
		}
	}
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://someone@%s/one?sslmode=disable", h.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if n := h.database("one").Stats().Connections; n != 1 || asked != 2 {
		t.Errorf("%d connections of the new one after %d questions", n, asked)
	}
}

func TestStrangersAreLimitedByTheDoor(t *testing.T) {
	t.Parallel()
	users := usersFile(t, "someone secret\n")
	h := open(t, pgwire.Config{MaxStrangers: 4}, map[string]pgwire.Config{"one": {Auth: users}, "two": {Auth: users}})
	var silent []*raw
	for i := range 8 {
		r := h.dial()
		r.send(&pgproto3.StartupMessage{
			ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone", "database": []string{"one", "two"}[i%2]},
		})
		r.expect("AuthenticationSASL")
		silent = append(silent, r)
	}
	for _, r := range silent[:4] {
		r.expect("gone")
	}
	eventually(t, "those that were ended are forgotten", func() bool {
		return h.database("one").Stats().Connections == 2 && h.database("two").Stats().Connections == 2
	})
	if s := h.server.Stats(); s.Strangers != 4 || s.Shed != 4 {
		t.Errorf("%+v", s)
	}
	conn, err := h.as("someone", "secret", "one", "sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	for range 8 { // who has logged in makes no room for strangers
		h.dial()
	}
	run(t, conn, "SELECT 1")
}

// TestWhoMakesRoomWaitsForNoDatabase: a stranger that must make room for another one does not go on to wait for a database that does not answer, nor does one when the drain is
// over.
func TestWhoMakesRoomWaitsForNoDatabase(t *testing.T) {
	t.Parallel()
	asked, gaveUp := make(chan string, 2), make(chan string, 2)
	e := serve(t, pgwire.Config{MaxFromAddress: 1, Drain: 50 * time.Millisecond, Databases: func(ctx context.Context, name string) (*pgwire.Server, error) {
		asked <- name
		<-ctx.Done()
		gaveUp <- name
		return nil, pgwire.Unreachable("it does not answer", "")
	}}, "127.0.0.1:0")
	for _, name := range []string{"one", "two"} {
		r := e.dial()
		r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone", "database": name}})
		if got := pgtest.Receive(t, asked, "the database is asked for"); got != name {
			t.Fatalf("%s is asked for, want %s", got, name)
		}
	}
	if got := pgtest.Receive(t, gaveUp, "the first has made room"); got != "one" {
		t.Errorf("%s has made room, want one", got)
	}
	e.stop()
	if got := pgtest.Receive(t, gaveUp, "the drain is over"); got != "two" {
		t.Errorf("%s has ended, want two", got)
	}
}

// TestManyComeAndGoWhileDatabasesDo: while clients connect, notify and leave, databases are drained and come again, and then the door stops. Each
// client is served or told, and all is accounted for.
func TestManyComeAndGoWhileDatabasesDo(t *testing.T) {
	t.Parallel()
	h := open(t, pgwire.Config{MaxStrangers: 8}, two())
	servers := []*pgwire.Server{h.server, h.database("one"), h.database("two")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var served atomic.Int64
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			database := []string{"one", "two"}[i%2]
			for ctx.Err() == nil {
				heard, err := visit(ctx, fmt.Sprintf("postgres://someone@%s/%s?sslmode=disable", h.addr, database), database)
				var told *pgconn.PgError
				switch {
				case err == nil && heard == database:
					served.Add(1)
				case err == nil, errors.Is(err, context.DeadlineExceeded), errors.As(err, &told) && told.Code != "57P01" && told.Code != "57P03":
					t.Errorf("a client of %s heard %q: %v", database, heard, err)
				}
			}
		})
	}
	for i := range 20 {
		before := served.Load()
		eventually(t, "clients are served", func() bool { return served.Load() >= before+10 })
		name := []string{"one", "two"}[i%2]
		old := h.database(name)
		if i%4 < 2 { // clients are refused meanwhile
			old.Drain(ctx)
			servers = append(servers, h.add(t, name, pgwire.Config{}, newMemory()))
		} else {
			servers = append(servers, h.add(t, name, pgwire.Config{}, newMemory()))
			old.Drain(ctx)
		}
		if n := old.Stats().Connections; n != 0 {
			t.Errorf("%d connections are left of a database that was drained", n)
		}
	}
	var ends sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		ends.Go(func() { h.database(name).Drain(ctx) })
	}
	ends.Go(h.stop)
	ends.Wait()
	cancel()
	clients.Wait()
	for _, s := range servers {
		if n := s.Stats(); n.Connections != 0 || n.Strangers != 0 || len(s.Clients()) != 0 {
			t.Errorf("%+v", n)
		}
	}
}

// visit listens, notifies, and returns what it hears.
func visit(ctx context.Context, url, payload string) (heard string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"LISTEN a", "NOTIFY a, '" + payload + "'"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := conn.WaitForNotification(bounded)
	if err != nil {
		return "", err
	}
	return n.Payload, nil
}
