package weirui

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/seldom"
)

const (
	rememberFor    = 5 * time.Minute // a right password, from its last use on
	rememberAtMost = 1000
	waitAtMost     = 1000 // logins at a time, those being checked included
	waitFor        = 45 * time.Second
)

// PasswordConfig configures Password. File is required.
type PasswordConfig struct {
	// File has a line for each user, name:role:verifier, as weir ui-password prints it and UserLine returns it. Blank lines are ignored, and lines that begin
	// with #. It is read again when it changes: who is removed from it, or gets another password or role, is known within a second.
	File string

	// ClientAddress returns the address of a request's client, which limits how often passwords can be guessed from there. nil: the address that the connection comes from.
	ClientAddress func(*http.Request) string

	Logger *slog.Logger // nil: slog.Default()
}

// Password returns an Access for users with passwords, with HTTP's basic authentication. Have TLS between the browsers and this server: each request contains
// the password.
func Password(c PasswordConfig) (Access, error) {
	if c.ClientAddress == nil {
		c.ClientAddress = peer
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	p := &password{
		PasswordConfig: c, accounts: accounts{path: c.File, log: c.Logger}, remembered: map[mark]memory{},
		checks: map[guess]*check{}, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), waiting: make(chan struct{}, waitAtMost),
	}
	_, _ = rand.Read(p.key[:]) // never fails
	if err := p.accounts.read(); err != nil {
		return nil, fmt.Errorf("weirui: %w", err)
	}
	return p, nil
}

type password struct {
	PasswordConfig
	accounts accounts
	guesses  guesses
	slots    chan struct{} // a flood of guesses must not take all cores: deriving a key takes a core for a fifth of a second
	waiting  chan struct{} // and those who wait for a slot are bounded, too
	derived  atomic.Int64  // keys

	key        [32]byte // of marks
	mu         sync.Mutex
	remembered map[mark]memory
	checks     map[guess]*check // that are under way

	refused, busy seldom.Log
}

// mark stands for a name and a password in memory, and is of no use elsewhere.
type mark [sha256.Size]byte

// memory is that a password was right, for as long as the user has this verifier.
type memory struct {
	verifier verifier
	until    time.Time
}

// guess is a name and a password from somewhere.
type guess struct {
	mark
	origin string
}

// check is a check of a guess, for all requests that contain it.
type check struct {
	done chan struct{} // closed when err is set
	err  error
}

var (
	errWrongPassword = errors.New("the name or the password is wrong")
	errBusy          = errors.New("too many logins at a time")
)

// Identify implements Access.
func (p *password) Identify(w http.ResponseWriter, r *http.Request) (User, bool) {
	name, secret, given := r.BasicAuth()
	if !given {
		askPassword(w, "Log in with your name and your password.")
		return User{}, false
	}
	who, known := p.accounts.now()[name]
	if p.accounts.broken() {
		refuseLogin(w, http.StatusServiceUnavailable, time.Second, "This server can't read the file of its users: its log says why.")
		return User{}, false
	}
	from := p.ClientAddress(r)
	err := p.check(r.Context(), from, name, who, known, secret)
	if err == nil {
		return User{Name: name, Role: who.role}, true
	}
	var again *tooManyGuesses
	switch shown := shownName(name, known); {
	case errors.Is(err, errWrongPassword):
		p.Logger.Warn("weir: a login to the UI has failed: the name or the password is wrong", "user", shown, "address", from)
		askPassword(w, "The name or the password is wrong.")
	case errors.As(err, &again):
		p.refused.Warn(p.Logger, "weir: logins to the UI are refused: too many wrong passwords from an address", "user", shown, "address", from)
		refuseLogin(w, http.StatusTooManyRequests, again.after, "There were too many wrong passwords from your address. Try again later, with the right one.")
	case errors.Is(err, errBusy):
		p.busy.Warn(p.Logger, "weir: logins to the UI have to wait for longer than they may: somebody may be guessing passwords", "user", shown, "address", from)
		refuseLogin(w, http.StatusServiceUnavailable, time.Second, "Too many are logging in just now. Try again.")
	}
	return User{}, false // if its context has ended, the client is gone
}

// shownName is a name for the log: that of nobody may be a password that somebody typed in the wrong field.
func shownName(name string, known bool) string {
	if known {
		return name
	}
	return "(unknown)"
}

func askPassword(w http.ResponseWriter, text string) {
	w.Header().Set("WWW-Authenticate", `Basic realm="Weir", charset="UTF-8"`)
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, http.StatusUnauthorized)
}

func refuseLogin(w http.ResponseWriter, status int, after time.Duration, text string) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, status)
}

// check returns nil if the password is right. Requests with the same guess, as those of one page, wait for one check. An unknown user takes as long as a known one.
func (p *password) check(ctx context.Context, from, name string, who account, known bool, secret string) error {
	m := p.markOf(name, secret)
	if known && p.remembers(m, who.verifier) {
		return nil
	}
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
	default:
		return errBusy
	}
	g := guess{m, origin(from)}
	for {
		p.mu.Lock()
		if known && p.recalls(m, who.verifier) { // a check that has ended since this request looked
			p.mu.Unlock()
			return nil
		}
		c, others := p.checks[g]
		if !others {
			c = &check{done: make(chan struct{})}
			p.checks[g] = c
		}
		p.mu.Unlock()
		if !others {
			c.err = p.verify(ctx, g.origin, name, who, known, secret)
			p.mu.Lock()
			delete(p.checks, g)
			p.mu.Unlock()
			close(c.done)
			if c.err == nil {
				p.Logger.Info("weir: a user has logged in to the UI", "user", name, "role", who.role.String(), "address", from)
			}
			return c.err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch {
		case c.err == nil && known && p.remembers(m, who.verifier):
			return nil
		case c.err != nil && !errors.Is(c.err, context.Canceled) && !errors.Is(c.err, context.DeadlineExceeded): // whose client has left
			return c.err
		}
	}
}

// verify checks a guess, if there were not too many wrong ones.
func (p *password) verify(ctx context.Context, origin, name string, who account, known bool, secret string) error {
	if len(name) > maxUserName || len(secret) > maxPassword {
		name = "" // nobody has such
	}
	address, user := guesser{origin, ""}, guesser{origin, "user " + name}
	may := func() error {
		if p.guesses.proven(user) {
			return nil // neighbours who guess don't lock out who has logged in from there
		}
		return p.guesses.mayGuess(address, ofAddress, time.Now())
	}
	if err := may(); err != nil {
		return err
	}
	// Charged before it is known whether it is right, because otherwise any number could be tried at once. Of different users, as many are tried at once as there are slots.
	if err := p.guesses.take(user, ofUser, time.Now()); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-wait.Done():
		p.guesses.giveBack(user, ofUser)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errBusy
	}
	if err := may(); err != nil { // others were wrong while it waited
		p.guesses.giveBack(user, ofUser)
		return err
	}
	v := who.verifier
	if !known {
		v = p.nobody()
	}
	wrong := name == ""
	if !wrong {
		p.derived.Add(1)
		wrong = !v.matches(secret) || !known
	}
	if wrong {
		_ = p.guesses.take(address, ofAddress, time.Now())
		return errWrongPassword
	}
	p.guesses.giveBack(user, ofUser)
	p.guesses.prove(user)
	p.remember(p.markOf(name, secret), v)
	return nil
}

// nobody is a verifier that no password matches, with as many iterations as users have.
func (p *password) nobody() verifier {
	v := verifier{iterations: iterations, salt: string(p.key[:16])}
	for _, a := range p.accounts.now() {
		v.iterations = max(v.iterations, a.verifier.iterations)
	}
	return v
}

func (p *password) markOf(name, secret string) (m mark) {
	h := hmac.New(sha256.New, p.key[:])
	fmt.Fprintf(h, "%d:%s:%s", len(name), name, secret)
	copy(m[:], h.Sum(nil))
	return m
}

func (p *password) remembers(m mark, v verifier) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recalls(m, v)
}

// recalls is remembers, for who holds mu.
func (p *password) recalls(m mark, v verifier) bool {
	kept, ok := p.remembered[m]
	if !ok || kept.verifier != v || time.Now().After(kept.until) {
		return false
	}
	kept.until = time.Now().Add(rememberFor)
	p.remembered[m] = kept
	return true
}

func (p *password) remember(m mark, v verifier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.remembered) >= rememberAtMost {
		for old, kept := range p.remembered {
			if time.Now().After(kept.until) {
				delete(p.remembered, old)
			}
		}
		if len(p.remembered) >= rememberAtMost {
			clear(p.remembered)
		}
	}
	p.remembered[m] = memory{v, time.Now().Add(rememberFor)}
}

// origin is where guesses are counted: an address, or the network of one that has many.
func origin(address string) string {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	at = at.Unmap().WithZone("")
	if at.Is6() {
		if network, err := at.Prefix(64); err == nil {
			return network.String()
		}
	}
	return at.String()
}
