package weir_test

import (
	"log/slog"
	"strings"
	"sync"
)

// records keeps what is logged.
type records struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// logger logs into the records, a line each.
func (r *records) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// count tells how many lines hold a text.
func (r *records) count(text string) (n int) {
	for line := range strings.Lines(r.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
