package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/connstring"
)

const (
	identifyAtOnce = 16 // databases of a list to which it connects at the same time, to see where they are
	serversAtOnce  = 16 // examined at the same time
)

// ListReport is what was seen of the databases of a list.
type ListReport struct {
	Version int            `json:"version"` // ReportVersion
	At      time.Time      `json:"at"`
	Servers []ServerReport `json:"servers"`
	// Unreachable are those of which not even the server is known.
	Unreachable []DatabaseReport `json:"unreachable"`
}

// ServerReport is what was seen of one running server.
type ServerReport struct {
	Cluster string    `json:"cluster"` // its system identifier, which a copy of it has too
	Started time.Time `json:"started"`
	Address string    `json:"address"`
	// Report is about what its databases share; nil: Error says why.
	Report    *Report          `json:"report"`
	Error     string           `json:"error,omitempty"`
	Databases []DatabaseReport `json:"databases"`
}

// DatabaseReport is what was seen of one database.
type DatabaseReport struct {
	Database string `json:"database"`
	Address  string `json:"address"`
	// Also are the addresses at which the list names it too.
	Also []string `json:"also,omitempty"`
	// Report is about what it has of its own; nil: Error says why.
	Report *Report `json:"report"`
	Error  string  `json:"error,omitempty"`
}

// listed is a database of a list.
type listed struct {
	url  string
	id   identity
	name DatabaseReport // its names, and why it can't be examined
}

// ExamineList examines each database of a list of connection strings once, whatever names it has there, and what the databases of a running server share once. One that
// can't be reached is reported, and delays no other. Config.URL and Config.Standbys are not used; progress is told how many of the servers are done.
func ExamineList(ctx context.Context, c Config, urls []string, duration time.Duration, progress func(done, servers int)) (ListReport, error) {
	all := make([]listed, len(urls))
	atMost(identifyAtOnce, len(urls), func(i int) { all[i] = look(ctx, urls[i]) })
	r := ListReport{Version: ReportVersion, At: time.Now(), Servers: []ServerReport{}, Unreachable: []DatabaseReport{}}
	servers, databases := map[identity]int{}, map[identity]int{}
	var groups [][]string // of each server
	for _, l := range all {
		if l.id == (identity{}) {
			r.Unreachable = append(r.Unreachable, l.name)
			continue
		}
		s, known := servers[l.id.server()]
		if !known {
			s = len(groups)
			servers[l.id.server()] = s
			groups = append(groups, nil)
			r.Servers = append(r.Servers, ServerReport{Cluster: l.id.Cluster, Started: l.id.Started, Address: l.name.Address})
		}
		at := &r.Servers[s]
		if i, twice := databases[l.id.same()]; twice {
			if d := &at.Databases[i]; d.Address != l.name.Address && !slices.Contains(d.Also, l.name.Address) {
				d.Also = append(d.Also, l.name.Address)
			}
			continue
		}
		databases[l.id.same()] = len(at.Databases)
		at.Databases = append(at.Databases, l.name)
		groups[s] = append(groups[s], l.url)
	}
	done := make(chan struct{}, len(groups)) // counts
	atMost(serversAtOnce, len(groups), func(i int) {
		r.Servers[i].examine(ctx, c, groups[i], duration)
		done <- struct{}{}
		progress(len(done), len(groups))
	})
	return r, ctx.Err()
}

// examine examines the server and its databases, which have these connection strings.
func (s *ServerReport) examine(ctx context.Context, c Config, urls []string, duration time.Duration) {
	shared, own, err := examineGroup(ctx, c, urls, duration)
	if full, ok := Full(ctx, urls[0], err); ok {
		s.Report = &full
	} else if err == nil {
		s.Report = &shared
	}
	for i := range s.Databases {
		d := &s.Databases[i]
		if err != nil {
			d.Error = fmt.Sprintf("its server could not be examined: %v", err)
			continue
		}
		d.Report, d.Error = own[i].Report, own[i].Error
	}
	if s.Report == nil {
		s.Error = err.Error()
	}
}

// look finds out which database a connection string leads to.
func look(ctx context.Context, url string) listed {
	l := listed{url: url}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		l.name.Error = connstring.Invalid(err).Error()
		return l
	}
	l.name.Database, l.name.Address = config.Database, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	id, err := identify(ctx, url)
	if full, ok := Full(ctx, url, err); ok {
		l.name.Report = &full
		return l
	}
	if err != nil {
		l.name.Error = err.Error()
		return l
	}
	l.id, l.name.Database = id, id.Database
	return l
}
