package weirui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

var lines sync.Map // by what they are made of: each takes a fraction of a second

// line is the line of a user of a file.
func line(t *testing.T, name string, role weirui.Role, password string) string {
	t.Helper()
	make, _ := lines.LoadOrStore([3]string{name, role.String(), password}, sync.OnceValues(func() (string, error) { return weirui.UserLine(name, role, password) }))
	text, err := make.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// door is an Access, as those who knock at it see it.
type door struct {
	*testing.T
	access weirui.Access
	log    *pgtest.Log
	file   string
}

// byPassword returns a door with a file of users.
func byPassword(t *testing.T, lines ...string) *door {
	t.Helper()
	d := &door{T: t, log: &pgtest.Log{}, file: filepath.Join(t.TempDir(), "users.txt")}
	d.write(lines...)
	var err error
	if d.access, err = weirui.Password(weirui.PasswordConfig{File: d.file, Logger: d.log.Logger()}); err != nil {
		t.Fatal(err)
	}
	return d
}

// write replaces the file of users at once.
func (d *door) write(lines ...string) {
	d.Helper()
	err := os.WriteFile(d.file+".new", []byte(strings.Join(lines, "")), 0o600)
	if err == nil {
		err = os.Rename(d.file+".new", d.file)
	}
	if err != nil {
		d.Fatal(err)
	}
}

// knock asks for a page, and returns who the access says that it is, and how it has answered otherwise.
func (d *door) knock(from string, change func(*http.Request)) (weirui.User, *httptest.ResponseRecorder) {
	r := httptest.NewRequest("GET", "/jobs", nil)
	r.RemoteAddr = from
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	user, ok := d.access.Identify(w, r)
	if ok && user.Role == weirui.Nobody {
		d.Errorf("%q is let in without a role", user.Name)
	}
	if !ok {
		user = weirui.User{}
	}
	return user, w
}

// login knocks with a name and a password.
func (d *door) login(from, name, password string) (weirui.User, *httptest.ResponseRecorder) {
	return d.knock(from, func(r *http.Request) { r.SetBasicAuth(name, password) })
}

const (
	here = "192.0.2.1:1234"
	far  = "198.51.100.7:1234"
)

func TestAPasswordLetsItsUserIn(t *testing.T) {
	t.Parallel()
	d := byPassword(t, "# who may use the UI\n\n", line(t, "ada", weirui.Admin, "correct horse"), line(t, "Grace Hopper", weirui.Viewer, "battery: staple"))
	for _, c := range []struct {
		name, password string
		role           weirui.Role
	}{
		{"ada", "correct horse", weirui.Admin}, {"Grace Hopper", "battery: staple", weirui.Viewer}, {"ada", "battery: staple", 0}, {"ada", "", 0}, {"", "correct horse", 0},
		{"nobody", "correct horse", 0}, {"Ada", "correct horse", 0}, {"ada", "correct horse ", 0}, {"ada", strings.Repeat("x", 2000), 0},
	} {
		user, w := d.login(here, c.name, c.password)
		if user.Role != c.role {
			t.Errorf("%q with %.20q is %v, want %v", c.name, c.password, user, c.role)
		}
		if c.role == weirui.Nobody && (w.Code != http.StatusUnauthorized || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ")) {
			t.Errorf("%q with %.20q is answered with %d and %q", c.name, c.password, w.Code, w.Header().Get("WWW-Authenticate"))
		}
	}
	if user, w := d.knock(here, nil); user.Role != weirui.Nobody || w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("without a password: %v, %d", user, w.Code)
	}
	if user, w := d.knock(here, func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }); user.Role != weirui.Nobody || w.Code != http.StatusUnauthorized {
		t.Errorf("with a token: %v, %d", user, w.Code)
	}
	log := d.log.String()
	for _, secret := range []string{"correct horse", "battery", "pbkdf2", "user=nobody"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q: %s", secret, log)
		}
	}
	if !strings.Contains(log, "user=ada") || !strings.Contains(log, "address=192.0.2.1") || !strings.Contains(log, "wrong") {
		t.Errorf("the log does not say who from where: %s", log)
	}
}

func TestAPasswordIsCheckedOnceForManyRequests(t *testing.T) {
	t.Parallel()
	d := byPassword(t, line(t, "ada", weirui.Admin, "correct horse"))
	var all sync.WaitGroup
	for range 30 { // more than may be wrong at once
		all.Go(func() {
			for range 50 {
				if user, w := d.login(here, "ada", "correct horse"); user.Role != weirui.Admin {
					t.Errorf("refused with %d", w.Code)
				}
			}
		})
	}
	all.Wait()
	if n := weirui.Derived(d.access); n != 1 {
		t.Errorf("1500 requests derived %d keys", n)
	}
}

// TestABurstOfFirstLoginsIsLetIn: a hundred users behind one address, whose browsers ask for several things at once, as after a restart; some of them mistype.
func TestABurstOfFirstLoginsIsLetIn(t *testing.T) {
	t.Parallel()
	_, verifier, _ := strings.Cut(line(t, "ada", weirui.Admin, "correct horse"), ":")
	var users []string
	for i := range 100 {
		users = append(users, fmt.Sprintf("user%d:%s", i, verifier))
	}
	d := byPassword(t, users...)
	var all sync.WaitGroup
	for i := range users {
		name := fmt.Sprintf("user%d", i)
		for range 3 {
			all.Go(func() {
				if user, w := d.login(here, name, "correct horse"); user.Role != weirui.Admin {
					t.Errorf("%s is refused with %d: %s", name, w.Code, w.Body)
				}
			})
		}
		if i%5 == 0 {
			all.Go(func() {
				if _, w := d.login(here, name, "correct house"); w.Code != http.StatusUnauthorized {
					t.Errorf("the mistake of %s is answered with %d", name, w.Code)
				}
			})
		}
	}
	all.Wait()
	if n := weirui.Derived(d.access); n != 120 {
		t.Errorf("300 requests with the right passwords of 100 users, and 20 with wrong ones, derived %d keys", n)
	}
}

// TestOnePasswordForManyUsersIsRefusedUnseen: whoever tries one password on many users has a limit, too.
func TestOnePasswordForManyUsersIsRefusedUnseen(t *testing.T) {
	t.Parallel()
	d := byPassword(t, line(t, "ada", weirui.Admin, "correct horse"))
	began := time.Now()
	answers := map[int]int{}
	for i := range 500 {
		_, w := d.login(here, fmt.Sprintf("user%d", i), "123456")
		answers[w.Code]++
	}
	n, most := weirui.Derived(d.access), int64(weirui.AddressGuesses)+int64(time.Since(began)/weirui.AddressEvery)+1
	if n < int64(weirui.AddressGuesses) || n > most || answers[http.StatusUnauthorized]+answers[http.StatusTooManyRequests] != 500 {
		t.Errorf("500 guesses derived %d keys, want %d to %d, and are answered with %v", n, weirui.AddressGuesses, most, answers)
	}
	if user, w := d.login(far, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Errorf("a user at another address is refused with %d", w.Code)
	}
}

func TestAFloodOfWrongPasswordsIsRefusedUnseen(t *testing.T) {
	t.Parallel()
	d := byPassword(t, line(t, "ada", weirui.Admin, "correct horse"), line(t, "grace", weirui.Viewer, "battery staple"))
	if user, _ := d.login(here, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Fatal("the right password is refused")
	}
	began, before := time.Now(), weirui.Derived(d.access)
	answers := map[int]int{}
	for i := range 2000 {
		name := "grace"
		if i%2 == 0 {
			name = "nobody"
		}
		_, w := d.login(here, name, "guess")
		answers[w.Code]++
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
			t.Error("it does not say when to try again")
		}
	}
	least, most := int64(2*weirui.GuessesAtOnce), 2*(int64(weirui.GuessesAtOnce)+int64(time.Since(began)/weirui.GuessEvery)+1) // of two names
	if n := weirui.Derived(d.access) - before; n < least || n > most {
		t.Errorf("the flood derived %d keys, want %d to %d", n, least, most)
	}
	if answers[http.StatusTooManyRequests] < 1900 || answers[http.StatusUnauthorized] < int(least) {
		t.Errorf("the answers are %v", answers)
	}
	// Who has logged in there is let in all the same, and so is everybody elsewhere.
	if user, w := d.login(here, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Errorf("who has logged in is refused with %d", w.Code)
	}
	if user, w := d.login(far, "grace", "battery staple"); user.Role != weirui.Viewer {
		t.Errorf("a user at another address is refused with %d", w.Code)
	}
	if n := d.log.Count("too many wrong passwords"); n < 1 || n > 100 {
		t.Errorf("the flood is %d lines in the log", n)
	}
}

// TestFewPasswordsAreCheckedAtATime: of a flood from many addresses, some wait and the others are refused at once; those who have logged in are not among them.
func TestFewPasswordsAreCheckedAtATime(t *testing.T) {
	t.Parallel()
	d := byPassword(t, line(t, "ada", weirui.Admin, "correct horse"))
	if user, _ := d.login(here, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Fatal("the right password is refused")
	}
	free, wait := weirui.Occupy(d.access)
	ctx, leave := context.WithCancel(t.Context())
	flood := wait + 100
	refused := make(chan int, flood)
	var all sync.WaitGroup
	for i := range flood {
		all.Go(func() {
			_, w := d.knock(fmt.Sprintf("203.0.%d.%d:1", i/250, i%250), func(r *http.Request) {
				*r = *r.WithContext(ctx)
				r.SetBasicAuth("ada", "guess")
			})
			if ctx.Err() == nil {
				refused <- w.Code
			}
		})
	}
	for range flood - wait {
		if code := pgtest.Receive(t, refused, "a refusal"); code != http.StatusServiceUnavailable {
			t.Errorf("refused with %d", code)
		}
	}
	if user, w := d.login(here, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Errorf("who has logged in is refused with %d", w.Code)
	}
	leave()
	all.Wait()
	free()
	if n := weirui.Derived(d.access); n != 1 {
		t.Errorf("%d keys are derived, want the first alone", n)
	}
	if user, w := d.login(far, "ada", "correct horse"); user.Role != weirui.Admin {
		t.Errorf("after the flood, a user is refused with %d", w.Code)
	}
}

// TestGuessesAreCountedByNetwork: whoever has a network of addresses has one limit.
func TestGuessesAreCountedByNetwork(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "192.0.2.2": "192.0.2.2", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::/64", "2001:db8::ffff:2": "2001:db8::/64", "2001:db8:0:1::1": "2001:db8:0:1::/64",
		"fe80::1%eth0": "fe80::/64", "@": "@",
	} {
		if got := weirui.Origin(address); got != want {
			t.Errorf("guesses from %s are counted for %s, want %s", address, got, want)
		}
	}
}

func TestWhoIsRemovedFromTheFileIsOut(t *testing.T) {
	t.Parallel()
	ada, grace := line(t, "ada", weirui.Admin, "correct horse"), line(t, "grace", weirui.Viewer, "battery staple")
	d := byPassword(t, ada, grace)
	role := func(name, password string) func(weirui.Role) func() bool {
		return func(want weirui.Role) func() bool {
			return func() bool { user, _ := d.login(far, name, password); return user.Role == want }
		}
	}
	is := role("ada", "correct horse")
	if !is(weirui.Admin)() || !role("grace", "battery staple")(weirui.Viewer)() {
		t.Fatal("the right passwords are refused")
	}
	derived := weirui.Derived(d.access)
	d.write(strings.Replace(ada, ":admin:", ":operator:", 1), grace)
	pgtest.Until(t, "ada has another role", is(weirui.Operator))
	if n := weirui.Derived(d.access); n != derived {
		t.Error("another role is another password")
	}
	d.write(grace)
	pgtest.Until(t, "ada is removed", is(weirui.Nobody))
	d.write(line(t, "ada", weirui.Admin, "another password"), grace)
	pgtest.Until(t, "ada has another password", role("ada", "another password")(weirui.Admin))
	if !is(weirui.Nobody)() {
		t.Error("the old password is accepted still")
	}

	// A file that is being written, or has a mistake, changes nothing for a moment, and then lets nobody in.
	d.write("ada:admin:what is this\n")
	pgtest.Until(t, "the mistake is said", func() bool {
		d.login(far, "grace", "battery staple")
		return strings.Contains(d.log.String(), "line 1: ada has no valid verifier")
	})
	if !role("grace", "battery staple")(weirui.Viewer)() {
		t.Error("a mistake shuts everybody out at once")
	}
	pgtest.Until(t, "nobody is let in", role("grace", "battery staple")(weirui.Nobody))
	d.write(grace)
	pgtest.Until(t, "the file is corrected", role("grace", "battery staple")(weirui.Viewer))
}

func TestAMistakeInTheFileIsNamed(t *testing.T) {
	t.Parallel()
	good, least := line(t, "ada", weirui.Admin, "correct horse"), fmt.Sprintf("$%d$", weirui.Iterations())
	for text, want := range map[string]string{
		"":                          "no user in it",
		"# ada\n":                   "no user in it",
		"ada\n":                     "line 1 is not of the form name:role:verifier",
		good + "ada:admin\n":        "line 2 is not of the form",
		good + good:                 "line 2: ada is there twice",
		"ada:root:x\n":              `line 1: ada has the role "root"`,
		"ada:admin:correct horse\n": "line 1: ada has no valid verifier",
		strings.Replace(good, least, fmt.Sprintf("$%d$", weirui.Iterations()-1), 1): fmt.Sprintf("it has %d iterations", weirui.Iterations()-1),
		strings.Replace(good, least, "$99999999$", 1):                               "iterations",
		strings.TrimSpace(good) + "A\n":                                             "its key 32",
	} {
		file := filepath.Join(t.TempDir(), "users.txt")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := weirui.Password(weirui.PasswordConfig{File: file})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "horse") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := weirui.Password(weirui.PasswordConfig{File: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a missing file: %v", err)
	}
	for name, role := range map[string]weirui.Role{"": weirui.Admin, "a:b": weirui.Admin, "a\nb": weirui.Admin, "ada": weirui.Nobody, " ada": weirui.Admin} {
		if _, err := weirui.UserLine(name, role, "correct horse"); err == nil {
			t.Errorf("there is a line for %q as %v", name, role)
		}
	}
	if _, err := weirui.UserLine("ada", weirui.Admin, "short"); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short password: %v", err)
	}
}
