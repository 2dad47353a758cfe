package weirui

import (
	"cmp"
	"slices"
)

// counted is how many connections have something in common.
type counted struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"`
}

// usersInFigures is the number of users who are shown with their connections.
const usersInFigures = 20

// hubNow is what this process's hub does now.
type hubNow struct {
	HubFigures
	Connections int       `json:"connections"`
	Protocols   []counted `json:"protocols"`
	Users       []counted `json:"users"`                // those with the most connections
	MoreUsers   int       `json:"more_users,omitempty"` // who are not listed
	Nameless    int       `json:"nameless,omitempty"`   // connections of clients without a user
}

func figuresOf(h Hub, clients []HubClient) *hubNow {
	now := &hubNow{HubFigures: h.Figures(), Connections: len(clients)}
	protocols, users := map[string]int{}, map[string]int{}
	for _, c := range clients {
		protocols[c.Protocol]++
		if c.User != "" {
			users[c.User]++
		} else {
			now.Nameless++
		}
	}
	now.Protocols, now.Users = most(protocols), most(users)
	if len(now.Users) > usersInFigures {
		now.MoreUsers = len(now.Users) - usersInFigures
		now.Users = now.Users[:usersInFigures]
	}
	return now
}

// most returns counts, the largest first.
func most(counts map[string]int) []counted {
	all := make([]counted, 0, len(counts))
	for name, n := range counts {
		all = append(all, counted{name, n})
	}
	slices.SortFunc(all, func(a, b counted) int { return cmp.Or(b.Connections-a.Connections, cmp.Compare(a.Name, b.Name)) })
	return all
}
