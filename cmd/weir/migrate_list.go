package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/schema"
)

// statusAtOnce is how many databases of a list are asked at the same time.
const statusAtOnce = 16

// listedStatus is the version of one database of a list.
type listedStatus struct {
	Name    string `json:"name"`
	Applied int    `json:"applied"` // migrations
	Of      int    `json:"of"`      // migrations that this build has
	// Current says that weir migrate up has nothing to do: the functions are this build's too.
	Current bool   `json:"current"`
	Error   string `json:"error,omitempty"`
}

func (l listedStatus) state() string {
	switch {
	case l.Error != "":
		return l.Error
	case l.Applied == 0:
		return "not installed"
	case l.Current:
		return "up to date"
	case l.Applied == l.Of:
		return "its functions are another build's"
	}
	return "behind"
}

// ofList shows how far each database of a list is.
func (c *migrateStatusCmd) ofList(ctx context.Context, s *streams) error {
	urls, err := readList(s.in, c.List)
	if err != nil {
		return err
	}
	all := make([]listedStatus, len(urls))
	turns := make(chan struct{}, statusAtOnce)
	var each sync.WaitGroup
	for i, url := range urls {
		turns <- struct{}{}
		each.Go(func() {
			defer func() { <-turns }()
			all[i] = statusOf(ctx, s, i+1, url)
		})
	}
	each.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, behind := 0, 0
	rows := make([][]string, len(all))
	for i, l := range all {
		version := ""
		if l.Error == "" {
			version = fmt.Sprintf("%d of %d", l.Applied, l.Of)
		}
		rows[i] = []string{l.Name, version, l.state()}
		if l.Error != "" {
			failed++
		} else if !l.Current {
			behind++
		}
	}
	if c.JSON {
		err = printJSON(s.out, all)
	} else {
		err = table(s.out, []string{"DATABASE", "VERSION", "STATE"}, rows)
	}
	if err != nil {
		return err
	}
	if behind > 0 {
		fmt.Fprintf(s.err, "weir: %d of %d databases are behind: run weir migrate up --list\n", behind, len(all))
	}
	if failed > 0 {
		return &failure{exitUnreachable, fmt.Errorf("%d of %d databases could not be asked", failed, len(all))}
	}
	return nil
}

func statusOf(ctx context.Context, s *streams, place int, url string) (l listedStatus) {
	name, err := namedOr(place, url)
	l.Name = name
	if err == nil {
		err = (&database{url: url, err: s.err}).conn(ctx, func(conn *pgx.Conn) error {
			migrations, err := schema.Status(ctx, conn)
			if err != nil {
				return err
			}
			l.Applied, l.Of = applied(migrations), len(migrations)
			l.Current, err = schema.Current(ctx, conn)
			return err
		})
	}
	if err != nil {
		l.Error = ofList(err.Error())
	}
	return l
}
