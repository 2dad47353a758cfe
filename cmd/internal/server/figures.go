package server

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// Figures are what a hub does now.
type Figures struct {
	Channels   int     // with subscribers; patterns are not counted
	Messages   float64 // per second, each counted once, over the last seconds
	Deliveries float64 // per second
}

// figuresEvery is the time over which rates are measured.
const figuresEvery = 5 * time.Second

// sample is the hub's counters at a time, and the rates since the sample before.
type sample struct {
	at     time.Time
	stats  hub.Stats
	before *sample
}

// sampleFigures keeps two samples of the hub's counters, a few seconds apart, until ctx ends.
func (s *Server) sampleFigures(ctx context.Context) {
	for {
		now := &sample{at: time.Now(), stats: s.hub.Stats()}
		if last := s.sampled.Load(); last != nil {
			now.before = &sample{at: last.at, stats: last.stats}
		}
		s.sampled.Store(now)
		if !sleep.For(ctx, figuresEvery) {
			return
		}
	}
}

// Figures returns what the hub does now.
func (s *Server) Figures() Figures {
	now := sample{at: time.Now(), stats: s.hub.Stats()}
	f := Figures{Channels: now.stats.Channels}
	since := s.sampled.Load()
	if since != nil && since.before != nil {
		since = since.before
	}
	if since == nil || now.at.Sub(since.at) < time.Second {
		return f
	}
	seconds := now.at.Sub(since.at).Seconds()
	f.Messages = float64(now.stats.Messages-since.stats.Messages) / seconds
	f.Deliveries = float64(now.stats.Delivered-since.stats.Delivered) / seconds
	return f
}
