package ui

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/weirui"
)

const (
	listEvery  = 15 * time.Second
	lookAtOnce = 16 // databases that are asked who they are at the same time
)

// follower shows the databases of a list, which come and go. Its goroutine is run's; only that uses its fields.
type follower struct {
	ui    *weirui.UI
	list  func() ([]string, error)
	every time.Duration
	log   *slog.Logger
	fixed []weirui.Database // that are shown whatever the list says
	added map[string]*followed
	crowd crowds
	many  *server.Many    // has the hubs of the list; nil: there are none
	bad   map[string]bool // connection strings that can't be used, as far as that was said
}

// followed is a database of the list.
type followed struct {
	shown weirui.Database
	id    string // of the database on its running server; "": it was not reached yet
	err   error  // why not
	twice bool   // it was said that another line is shown instead
	store *store.Store
}

func newFollower(u *weirui.UI, c Config, fixed []weirui.Database) *follower {
	every := c.ListEvery
	if every == 0 {
		every = listEvery
	}
	return &follower{ui: u, list: c.List, every: every, log: c.Logger, fixed: fixed, added: map[string]*followed{}, bad: map[string]bool{}}
}

// run follows the list until ctx ends.
func (f *follower) run(ctx context.Context) {
	defer func() {
		for _, d := range f.added {
			d.shown.Pool.Close()
		}
	}()
	var closing sync.WaitGroup
	defer closing.Wait()
	known := map[string]bool{}
	for _, d := range f.fixed { // for as long as the process runs
		if id, err := identify(ctx, store.New(d.Pool, 0)); err == nil {
			known[id] = true
		}
	}
	for {
		urls, err := f.list()
		switch {
		case err != nil && f.many != nil: // which says so itself, and also what can't be used
		case err != nil:
			f.log.Error("weir: the list of databases for the web UI can't be read, and they stay as they were", "error", err)
		default:
			gone := f.refresh(ctx, urls)
			f.show(urls, known)
			for _, d := range gone {
				f.crowd.leave(d.shown.Pool)
				closing.Go(func() { d.shown.Pool.Close() }) // waits for requests that still use it
			}
		}
		if !sleep.For(ctx, f.every) {
			return
		}
	}
}

// refresh opens what is new in the list, returns what is gone, and asks those that were not reached yet who they are.
func (f *follower) refresh(ctx context.Context, urls []string) (gone []*followed) {
	wanted := make(map[string]bool, len(urls))
	for _, url := range urls {
		wanted[url] = true
	}
	for url, d := range f.added {
		if !wanted[url] {
			gone = append(gone, d)
			delete(f.added, url)
		}
	}
	maps.DeleteFunc(f.bad, func(url string, _ bool) bool { return !wanted[url] })
	for i, url := range urls {
		if f.added[url] != nil || f.bad[url] {
			continue
		}
		d, err := f.open(ctx, url)
		if err != nil {
			f.bad[url] = true
			if f.many == nil {
				f.log.Error("weir: a database of the web UI's list can't be used", "place", i+1, "error", err)
			}
			continue
		}
		if f.many != nil {
			d.shown.Hub = listed{f.many, url}
		}
		f.added[url] = d
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin) // of all together, so that many that don't answer keep the others from being shown no longer than one does
	defer cancel()
	turns := make(chan struct{}, lookAtOnce)
	var looks sync.WaitGroup
	for _, d := range f.added { // in another order each time: who is not asked now may be next time
		if d.id != "" {
			continue
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		looks.Go(func() {
			defer func() { <-turns }()
			var id string
			if id, d.err = identify(ctx, d.store); d.err == nil {
				d.id = id
			}
			d.shown.Pool.Reset() // there may be more databases than their server has connections, and perhaps nobody looks at any
		})
	}
	looks.Wait()
	return gone
}

// show shows each database once, in the order of the list: one that has two names there, or is shown anyway, has one page. Of two lines that lead to the same
// place, as different users, one by which the database was reached is shown.
func (f *follower) show(urls []string, known map[string]bool) {
	all := slices.Clone(f.fixed)
	names, ids := map[string]bool{}, map[string]bool{}
	for _, d := range all {
		names[d.Name] = true
	}
	reached := maps.Clone(names)
	for _, d := range f.added {
		if d.id != "" {
			reached[d.shown.Name] = true
		}
	}
	for i, url := range urls {
		d := f.added[url]
		switch {
		case d == nil || d.id != "" && (known[d.id] || ids[d.id]):
			continue
		case names[d.shown.Name] || d.id == "" && reached[d.shown.Name]:
			if !d.twice {
				d.twice = true
				f.log.Warn("weir: a database of the web UI's list is left out: another one leads to the same place", "place", i+1, "database", d.shown.Name, "user", d.shown.Pool.Config().ConnConfig.User, "error", d.err)
			}
			continue
		}
		names[d.shown.Name], ids[d.id] = true, true
		all = append(all, d.shown)
	}
	if err := f.ui.SetDatabases(all); err != nil {
		f.log.Error("weir: the web UI can't show the databases of its list", "error", err)
	}
}

// open opens a pool, which connects when it is first used.
func (f *follower) open(ctx context.Context, url string) (*followed, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, connstring.Invalid(err)
	}
	names, err := connstring.Named(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = connections, 0, 0
	config.MaxConnIdleTime = time.Minute // there may be many
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "weir ui"
	}
	config.AfterConnect = store.Settle
	server := serverOf(config)
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		f.crowd.makeRoom(server)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	f.crowd.join(pool)
	return &followed{shown: weirui.Database{Name: names.Full, Pool: pool}, store: store.New(pool, 0)}, nil
}

// identify returns which database of which running server it is.
func identify(ctx context.Context, s *store.Store) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	id, err := s.DatabaseID(ctx)
	if err != nil {
		return "", err
	}
	since, _, err := s.Server(ctx)
	return fmt.Sprintf("%s-%d", id, since.UnixMicro()), err
}
