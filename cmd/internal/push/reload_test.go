package push_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestSecretsAreReplacedWithoutLosingAJob: while jobs run, the old secret, both, and the new one are used in turn, as the file says; the endpoint accepts them in its own time. Each job is
// done at its first attempt.
func TestSecretsAreReplacedWithoutLosingAJob(t *testing.T) {
	t.Parallel()
	old, fresh := newSecret(), newSecret()
	s := newService(t, func(http.ResponseWriter, *http.Request, pushed) { time.Sleep(time.Millisecond) })
	s.secret, s.secrets = "file:"+filepath.Join(t.TempDir(), "secret"), []string{old}
	put := func(text string) {
		t.Helper()
		path := strings.TrimPrefix(s.secret, "file:")
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put(old)
	r := newRig(t, s.of("e", "q = 5"))
	var all []int64
	signedWith := func(secrets ...string) func() bool {
		return func() bool {
			all = append(all, r.enqueue("q", "k", 5)...)
			r.until(all[len(all)-1], "completed")
			got := s.requests()
			last := got[len(got)-1]
			for _, secret := range secrets {
				if verify(secret, last.body, last.header) != nil {
					return false
				}
			}
			return len(strings.Fields(last.header.Get("webhook-signature"))) == len(secrets)
		}
	}
	pgtest.Until(t, "the old secret is used", signedWith(old))
	r.write(strings.Replace(s.of("e", "q = 5"), `secrets = [`, `secrets = ["`+fresh+`", `, 1))
	pgtest.Until(t, "both are used", signedWith(fresh, old))
	s.mu.Lock()
	s.secrets = []string{fresh}
	s.mu.Unlock()
	put(fresh)
	r.write(s.of("e", "q = 5"))
	pgtest.Until(t, "the new secret is used", signedWith(fresh))
	for _, id := range all {
		if got := r.until(id, "completed"); got.Attempt != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestEndpointsComeAndGoWithTheFile: a new endpoint gets jobs, and one that is taken out gets none; what was sent before ends as it would have. A file that can't be used changes nothing, and the log says why.
func TestEndpointsComeAndGoWithTheFile(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan pushed, 1000), make(chan struct{})
	first := newService(t, func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		began <- p
		if p.Kind == "accepted" {
			rw.WriteHeader(http.StatusAccepted)
			return
		}
		<-goOn
	})
	var second atomic.Int64
	later := newService(t, func(http.ResponseWriter, *http.Request, pushed) { second.Add(1) })
	r := newRig(t, first.of("first", "q = 2"))
	running := r.enqueue("q", "running", 1)[0]
	pgtest.Receive(t, began, "the job was pushed")
	accepted := r.enqueue("q", "accepted", 1)[0]
	p := pgtest.Receive(t, began, "the other was pushed")

	r.write("nonsense")
	pgtest.Until(t, "the log says that the file is wrong", func() bool { return strings.Contains(r.log.String(), "can't be read") })
	r.write(later.of("second", "q = 2"))
	ids := r.enqueue("q", "k", 20)
	for _, id := range ids {
		r.until(id, "completed")
	}
	if n := second.Load(); n != 20 {
		t.Errorf("the new endpoint has got %d jobs, want 20", n)
	}
	close(goOn)
	if got := r.until(running, "completed"); got.Attempt != 1 {
		t.Errorf("%+v", got)
	}
	if status, answer := r.report(r.url, "first", first.secret, map[string]any{"token": p.Token}); status != 200 || answer != `{"recorded":true}` {
		t.Errorf("a report of an endpoint that was taken out: %d %s", status, answer)
	}
	r.until(accepted, "completed")
	pgtest.Until(t, "the endpoint is gone", func() bool {
		return !strings.Contains(get(t, r.url+"/metrics"), `weir_push_accepted_jobs{endpoint="first"}`)
	})

	r.write(later.of("second", "other = 1", `kinds = ["k"]`) + first.of("first", "q = 1"))
	pgtest.Until(t, "the first endpoint is back", func() bool {
		r.until(r.enqueue("q", "k", 1)[0], "completed")
		return len(began) > 0
	})
	before := second.Load()
	for _, id := range r.enqueue("q", "k", 5) {
		r.until(id, "completed")
	}
	if n := second.Load(); n > before+2 { // it may have been about to ask
		t.Errorf("the endpoint has got %d jobs of a queue that it does not have any more", n-before)
	}
	other := r.enqueue("other", "k", 1)[0]
	r.until(other, "completed")
	if n := strings.Count(r.log.String(), "can't be read"); n != 1 {
		t.Errorf("the log says %d times that the file is wrong", n)
	}
}
