package worker

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
)

// logHandler adds what is logged to a report. slog.TextHandler writes the text of a line.
type logHandler struct {
	report *Report
	with   func(slog.Handler) slog.Handler // adds attributes and groups
}

// NewLogHandler returns a handler whose lines are kept with the attempt.
func NewLogHandler(r *Report) slog.Handler {
	return &logHandler{r, func(h slog.Handler) slog.Handler { return h }}
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	var b bytes.Buffer
	text := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.Level(-1 << 16), ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{} // they are kept apart, and the message as it is
		}
		return a
	}})
	if err := h.with(text).Handle(ctx, r); err != nil {
		return err
	}
	h.report.Log(r.Time, r.Level.String(), strings.TrimSpace(r.Message+" "+b.String()))
	return nil
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.report, func(to slog.Handler) slog.Handler { return h.with(to).WithAttrs(attrs) }}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.report, func(to slog.Handler) slog.Handler { return h.with(to).WithGroup(name) }}
}
