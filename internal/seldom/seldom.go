// Package seldom logs what strangers can make happen as often as they like.
package seldom

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const pause = 10 * time.Second

// Log logs one kind of event at most once in ten seconds. The zero value is ready for use, by any number of goroutines.
type Log struct {
	mu   sync.Mutex
	last time.Time
	left int // events since then
}

// Warn logs an event, or counts it: the next line says how many were left out.
func (l *Log) Warn(log *slog.Logger, text string, attrs ...any) {
	l.mu.Lock()
	if !l.last.IsZero() && time.Since(l.last) < pause {
		l.left++
		l.mu.Unlock()
		return
	}
	if l.left > 0 {
		attrs = append(attrs, "left_out", l.left)
	}
	l.last, l.left = time.Now(), 0
	l.mu.Unlock()
	log.Log(context.Background(), slog.LevelWarn, text, attrs...)
}
