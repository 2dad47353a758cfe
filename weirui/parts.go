package weirui

import "context"

// Hub is a hub in this process: weir serve passes its own.
type Hub interface {
	// Channels lists the channels that have subscribers here, by name, up to most of them, from the one after a name on.
	Channels(after string, most int) []Channel

	// Clients lists the connected clients.
	Clients() []HubClient

	// Figures returns what the hub does now.
	Figures() HubFigures

	// End disconnects a client, and reports whether there was one with this id.
	End(id string) bool
}

// Channel is a channel, or a pattern of channels, with subscribers.
type Channel struct {
	Name        string `json:"name"`
	Subscribers int    `json:"subscribers"`
}

// HubFigures is what a hub does now.
type HubFigures struct {
	Channels   int     `json:"channels"`   // with subscribers; patterns are not counted
	Messages   float64 `json:"messages"`   // per second, each counted once
	Deliveries float64 `json:"deliveries"` // per second, to all subscribers
}

// HubClient is a client of a hub.
type HubClient struct {
	ID       string `json:"id"`
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	User     string `json:"user,omitempty"`
	Since    string `json:"since"` // RFC 3339
}

// Doctor examines the database: weir serve --doctor passes its own.
type Doctor interface {
	// Findings returns what was found last, causes first, each followed by its consequences; an error: the database can't be examined.
	Findings(ctx context.Context) ([]Finding, error)
}

// Finding is what a doctor has found.
type Finding struct {
	Code     string   `json:"code"`
	Severity string   `json:"severity"` // critical, warning or info
	Title    string   `json:"title"`
	Text     string   `json:"text"`
	Evidence []string `json:"evidence,omitempty"`
	Fix      []string `json:"fix,omitempty"`
}
