// Package binaries downloads PostgreSQL's binaries, for machines without an installed PostgreSQL. It is separate from internal/embedded, which
// runs them, because the library's tests use that package, and the library's module should not depend on what this one needs.
package binaries

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// Fetch downloads a version and unpacks it into a directory that does not exist yet. It reports the number of downloaded bytes to
// progress, unless that is nil; the total is -1 if it is unknown.
//
// The library embedded-postgres knows where the binaries for each platform are, and verifies their checksums. But its only call then also
// starts the server with pg_ctl, as this user. So Fetch passes it a data directory that contains only PG_VERSION: initdb is skipped, and
// pg_ctl fails. Its error message shows that everything before it succeeded.
func Fetch(ctx context.Context, version, into string, progress func(done, total int64)) error {
	stage, err := os.MkdirTemp(filepath.Dir(into), "archive-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	major, _, _ := strings.Cut(version, ".")
	if err := os.Mkdir(filepath.Join(stage, "data"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "data", "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return err
	}
	var said bytes.Buffer
	meter := &meter{ctx: ctx, progress: progress}
	err = meter.during(embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		Port(0).
		CachePath(filepath.Join(stage, "archive")).
		RuntimePath(into).
		DataPath(filepath.Join(stage, "data")).
		Logger(&said)).Start)
	if meter.err != nil {
		return meter.err // the library hides it
	}
	if err == nil {
		return fmt.Errorf("a server started on an empty data directory in %s: stop it", stage)
	}
	if said.Len() == 0 {
		return err
	}
	return nil
}

// meter counts the bytes of the library's downloads, and ends them when the context ends.
//
// The library has no hook for either, and downloads with http.DefaultTransport. So that is replaced during the download; all other
// requests pass through unchanged.
type meter struct {
	ctx      context.Context // of one call of Fetch, not kept after it
	progress func(done, total int64)
	next     http.RoundTripper
	err      error
}

var transport sync.Mutex // held while http.DefaultTransport is replaced

func (m *meter) during(f func() error) error {
	transport.Lock()
	defer transport.Unlock()
	m.next = http.DefaultTransport
	http.DefaultTransport = m
	defer func() { http.DefaultTransport = m.next }()
	return f()
}

func (m *meter) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/embedded-postgres-binaries-") {
		return m.next.RoundTrip(r)
	}
	res, err := m.next.RoundTrip(r.WithContext(m.ctx))
	if err != nil {
		m.err = err
		return nil, err
	}
	if m.progress != nil && strings.HasSuffix(r.URL.Path, ".jar") && res.StatusCode == http.StatusOK {
		res.Body = &countedBody{ReadCloser: res.Body, total: res.ContentLength, progress: m.progress}
	}
	return res, nil
}

type countedBody struct {
	io.ReadCloser
	done, total int64
	progress    func(done, total int64)
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.done += int64(n)
		b.progress(b.done, b.total)
	}
	return n, err
}
