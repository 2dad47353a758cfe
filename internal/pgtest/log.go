package pgtest

import (
	"log/slog"
	"strings"
	"sync"
)

// Log keeps what is logged, for a test that reads it meanwhile. Its zero value is empty.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Logger logs into the Log, a line each.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count tells how many lines hold a text.
func (l *Log) Count(text string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
