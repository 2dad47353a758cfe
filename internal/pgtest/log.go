package pgtest

import (
	"log/slog"
	"strings"
	"sync"
)

// Log stores log output for a test that reads it while it is written. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Logger returns a logger that writes to the Log, one line per record.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns everything logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns the number of lines that contain a text.
func (l *Log) Count(text string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
