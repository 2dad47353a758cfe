package weirui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-pg/weir"
)

func channelEndpoints() []endpoint {
	return []endpoint{
		page("channels", listChannels).takes("after"),
		page("channels/tail", showTail).takes("channel"),
		{method: "GET", path: "channels/tail/events", role: Viewer, stream: streamTail, fields: []string{"channel"}},
		action(Operator, "channels/publish", publish).takes("channel", "payload", "as"),
		action(Admin, "channels/disconnect", disconnect).asks(func(v *visit) (string, error) {
			return "Disconnect client " + cut(v.PostForm.Get("id"), 100) + "?", nil
		}).takes("id"),
		action(Admin, "channels/disconnect-user", disconnectUser).asks(func(v *visit) (string, error) {
			return "Disconnect " + cut(v.PostForm.Get("user"), 100) + " from all hubs?", nil
		}).takes("user"),
		action(Admin, "channels/revoke", revokeUser).asks(func(v *visit) (string, error) {
			return "Revoke all tokens that were issued to " + cut(v.PostForm.Get("user"), 100) + " until now, and disconnect this user from all hubs?", nil
		}).takes("user"),
	}
}

const (
	channelsOnPage = 100
	clientsOnPage  = 200
)

// channelList is what the page of channels shows.
type channelList struct {
	Hubs     []weir.HubInfo `json:"hubs"`           // of the database
	Serves   bool           `json:"serves"`         // this process has a hub; the rest is about it
	Now      *hubNow        `json:"now,omitempty"`  // what the hub does now
	Channels []Channel      `json:"channels"`       // a page of them
	Next     string         `json:"next,omitempty"` // ?after= of the next page
	Clients  []HubClient    `json:"clients"`
	More     int            `json:"more,omitempty"` // clients that are not listed
	After    string         `json:"-"`
}

func listChannels(v *visit) (*view, error) {
	hubs, err := v.hubs()
	if err != nil {
		return nil, err
	}
	list := channelList{Hubs: listed(hubs), Channels: []Channel{}, Clients: []HubClient{}, After: v.URL.Query().Get("after")}
	if h := v.db.Hub; h != nil {
		list.Serves = true
		if list.Channels = listed(h.Channels(list.After, channelsOnPage+1)); len(list.Channels) > channelsOnPage {
			list.Channels = list.Channels[:channelsOnPage]
			list.Next = list.Channels[channelsOnPage-1].Name
		}
		list.Clients = listed(h.Clients())
		list.Now = figuresOf(h, list.Clients)
		if len(list.Clients) > clientsOnPage {
			list.More = len(list.Clients) - clientsOnPage
			list.Clients = list.Clients[:clientsOnPage]
		}
	}
	return &view{template: "channels", title: "Channels", data: list}, nil
}

// publish publishes the message in the form.
func publish(v *visit) (string, error) {
	channel, payload := strings.TrimSpace(v.PostForm.Get("channel")), v.PostForm.Get("payload")
	switch kind := v.PostForm.Get("as"); {
	case channel == "":
		return "", badInput("Name the channel to publish on.")
	case kind != "json" && kind != "text" && kind != "":
		return "", badInput("A payload is json or text; got %q.", cut(kind, 50))
	case kind == "json" && !json.Valid([]byte(payload)):
		return "", badInput("The payload is not valid JSON. Publish it as text if it is not meant to be.")
	}
	said := "The message is published on " + channel + "."
	for word := range strings.SplitSeq(channel, ".") {
		if word == "*" || word == ">" {
			said += fmt.Sprintf(" That is the literal name of a channel: %s is a wildcard only in subscriptions.", word)
			break
		}
	}
	return said, v.db.client.Publish(v.Context(), channel, []byte(payload), nil)
}

// disconnect ends the connection of a client of this process's hub.
func disconnect(v *visit) (string, error) {
	id := v.PostForm.Get("id")
	switch {
	case v.db.Hub == nil:
		return "", &problem{http.StatusNotFound, "This process has no hub, and so no clients.", "Disconnect a client at the hub that it is connected to."}
	case id == "":
		return "", badInput("Name the client to disconnect.")
	case !v.db.Hub.End(id):
		return "", &problem{http.StatusNotFound, fmt.Sprintf("There is no client %q.", cut(id, 100)), "It may have disconnected by itself."}
	}
	return "Client " + id + " is disconnected. It may connect again, if its rights allow it.", nil
}

// disconnectUser ends a user's connections at all hubs of the database.
func disconnectUser(v *visit) (string, error) {
	user := v.PostForm.Get("user")
	if user == "" {
		return "", badInput("Name the user to disconnect.")
	}
	return user + " is disconnected from all hubs, and may connect again, if allowed.", v.db.client.Disconnect(v.Context(), user)
}

// revokeUser also revokes the user's tokens.
func revokeUser(v *visit) (string, error) {
	user := v.PostForm.Get("user")
	if user == "" {
		return "", badInput("Name the user whose tokens to revoke.")
	}
	_, err := v.db.client.Revoke(v.Context(), user, 0)
	return "Tokens that were issued to " + user + " until now are refused for 30 days. Connections of " + user + " have ended.", err
}
