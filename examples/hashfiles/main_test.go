package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestEveryFileIsHashedOnceAndNothingIsLeft: the program hashes each file once, and a second run finds nothing to do.
func TestEveryFileIsHashedOnceAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	folder, url := t.TempDir(), pgtest.Empty(t)
	want := map[string]string{}
	for i := range 300 {
		path := filepath.Join(folder, fmt.Sprintf("dir %d", i%3), fmt.Sprintf("it's \"%d\".txt", i))
		text := strings.Repeat(fmt.Sprint(i, "\n"), i)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		want[path] = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	}
	var out bytes.Buffer
	if err := run(t.Context(), url, folder, &out); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		hash, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		got[path] = hash
	}
	if len(got) != len(want) {
		t.Errorf("%d files were hashed, want %d", len(got), len(want))
	}
	for path, hash := range want {
		if got[path] != hash {
			t.Errorf("%s: got %s, want %s", path, got[path], hash)
		}
	}

	// A second run finds nothing to do and ends.
	out.Reset()
	if err := run(t.Context(), url, folder, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != len(want) {
		t.Errorf("the second run printed other files:\n%s", out.String())
	}

	pool := pgtest.Pool(t, url)
	var jobs int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.jobs('completed', 'hashfiles', 1000) WHERE attempt = 1`).Scan(&jobs); err != nil {
		t.Fatal(err)
	}
	if jobs != len(want) {
		t.Errorf("%d jobs completed at the first attempt, want %d", jobs, len(want))
	}
}
