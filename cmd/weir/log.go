package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// newLogger logs to standard error. On a terminal the lines are short; otherwise they contain date and time zone.
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

// plainMessage removes the library's name, which is redundant in the command's own output.
func plainMessage(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.MessageKey {
		a.Value = slog.StringValue(strings.TrimPrefix(a.Value.String(), "weir: "))
	}
	return a
}

// atLeast is a handler that drops records below a level.
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
