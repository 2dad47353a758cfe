package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// newLogger logs to standard error. On a terminal lines are short; elsewhere they carry date and zone.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	p, ok := w.(*progress)
	if ok && p.file != nil {
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			switch {
			case len(groups) > 0:
			case a.Key == slog.TimeKey:
				return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05"))
			case a.Key == slog.LevelKey && a.Value.Any() == slog.LevelInfo:
				return slog.Attr{}
			}
			return plainMessage(groups, a)
		}
	} else {
		options.ReplaceAttr = plainMessage
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// plainMessage drops the library's name, which the command's own output need not repeat.
func plainMessage(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.MessageKey {
		a.Value = slog.StringValue(strings.TrimPrefix(a.Value.String(), "weir: "))
	}
	return a
}

// atLeast is a handler that passes on what is at least so grave.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}
