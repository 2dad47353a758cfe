package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/store"
)

// PublishConfig configures Publish.
type PublishConfig struct {
	HubConfig
	Clients int           // default 64
	Rounds  int           // default 5
	Slice   time.Duration // time of each way in each round; default 3 s
}

const (
	publishChannel = "weir_bench"

	sqlEventTable = `CREATE SCHEMA IF NOT EXISTS weir_bench;
		CREATE TABLE IF NOT EXISTS weir_bench.event (
			id bigserial PRIMARY KEY, client integer NOT NULL, note text NOT NULL, at timestamptz NOT NULL DEFAULT now())`
	sqlEventEmpty = `TRUNCATE weir_bench.event`
	sqlEventDrop  = `DROP SCHEMA IF EXISTS weir_bench CASCADE`
)

// publishStatements are prepared by every client.
var publishStatements = map[string]string{
	"begin":   `BEGIN`,
	"insert":  `INSERT INTO weir_bench.event (client, note) VALUES (1, 'as long as a note is, more or less')`,
	"publish": `SELECT weir.publish('` + publishChannel + `', '{"event": 1}')`,
	"notify":  `SELECT pg_notify('` + publishChannel + `', '{"event": 1}')`,
	"commit":  `COMMIT`,
}

// condition is how fast the disk flushes.
type condition struct {
	name     string
	settings map[string]string
	slow     bool
}

// PostgreSQL flushes for many transactions at once. With these settings, the first to flush waits for 2 ms, which is as long as a flush takes on
// network storage.
var conditions = []condition{
	{name: "the disk as it is"},
	{name: "a flush takes 2 ms", settings: map[string]string{"commit_delay": "2000", "commit_siblings": "0"}, slow: true},
}

// publishWay specifies what each transaction does in addition to its insert, and who listens.
type publishWay struct {
	name       string
	statements []string
	hub        bool // with a hub and one subscriber
	listener   bool // with one session that listens on PostgreSQL
	l          load.Rounds
}

func publishWays() []*publishWay {
	return []*publishWay{
		{name: "insert alone", statements: []string{"begin", "insert", "commit"}},
		{name: "insert and weir.publish, without a hub", statements: []string{"begin", "insert", "publish", "commit"}},
		{name: "insert and weir.publish, with a hub and a subscriber", statements: []string{"begin", "insert", "publish", "commit"}, hub: true},
		{name: "insert and pg_notify, without a listener", statements: []string{"begin", "insert", "notify", "commit"}},
		{name: "insert and pg_notify, with a listener", statements: []string{"begin", "insert", "notify", "commit"}, listener: true},
	}
}

// Publish lets clients insert a row in each of their transactions: alone, and together with weir.publish or pg_notify. The ways take turns.
func Publish(ctx context.Context, d *load.Database, e load.Engine, c PublishConfig) (r *load.Report, err error) {
	c.Clients = cmp.Or(c.Clients, 64)
	c.Rounds = cmp.Or(c.Rounds, 5)
	c.Slice = cmp.Or(c.Slice, 3*time.Second)
	if r, err = d.Begin(ctx, "publish", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d clients, each transaction BEGIN, an INSERT, what is compared, COMMIT, prepared and in one round trip; %d rounds of %s of each way, in turn",
		c.Clients, c.Rounds, c.Slice)
	r.Hub = &load.HubFigures{}
	if _, err := d.Observer.Exec(ctx, sqlEventTable, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, fmt.Errorf("bench: create the table: %w", err)
	}
	defer func() {
		_, dropErr := d.Observer.Exec(context.WithoutCancel(ctx), sqlEventDrop)
		err = errors.Join(err, dropErr)
	}()
	for _, under := range conditions {
		p := &publishBench{Database: d, config: c, under: under, ways: publishWays()}
		if err := p.measure(ctx); err != nil {
			return nil, err
		}
		p.report(r)
	}
	return r, nil
}

// publishBench measures under one condition.
type publishBench struct {
	*load.Database
	config  PublishConfig
	under   condition
	account *account
	clients []*wire
	ways    []*publishWay
}

func (p *publishBench) measure(ctx context.Context) error {
	home, err := accountOf(p.URL)
	if err != nil {
		return err
	}
	p.account = home.with(p.under.settings)
	defer func() {
		for _, w := range p.clients {
			w.hangUp()
		}
	}()
	for i := range p.config.Clients {
		w, err := p.account.login(ctx, home.home, i)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		p.clients = append(p.clients, w)
		for _, name := range slices.Sorted(maps.Keys(publishStatements)) {
			if err := w.prepare(name, publishStatements[name]); err != nil {
				return fmt.Errorf("bench: prepare %s: %w", name, err)
			}
		}
	}
	for round := range p.config.Rounds {
		order := slices.Clone(p.ways)
		if round%2 == 1 {
			slices.Reverse(order) // so that no way always follows the same one
		}
		for _, way := range order {
			if err := p.turn(ctx, way); err != nil {
				return fmt.Errorf("bench: %s, %s: %w", way.name, p.under.name, err)
			}
		}
		p.Say("publish, %s, round %d of %d: transactions/s: %s", p.under.name, round+1, p.config.Rounds, p.latest())
	}
	return nil
}

func (p *publishBench) latest() (text string) {
	for i, way := range p.ways {
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s %.0f", way.name, way.l.Rates[len(way.l.Rates)-1])
	}
	return text
}

// turn measures a way for a slice of time.
func (p *publishBench) turn(ctx context.Context, way *publishWay) (err error) {
	if _, err := p.Observer.Exec(ctx, sqlEventEmpty); err != nil {
		return err
	}
	if way.hub {
		h, err := startHub(ctx, p.Database, p.config.HubConfig, withSettings(p.URL, p.under.settings), true)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		leave, err := p.attend(ctx, h.at.PG)
		if err != nil {
			return err
		}
		defer leave()
	}
	if way.listener {
		leave, err := p.attend(ctx, p.account.home)
		if err != nil {
			return err
		}
		defer leave()
	}
	transaction, err := pipeline(way.statements...)
	if err != nil {
		return err
	}
	var warm load.Rounds
	if err := repeat(ctx, &warm, p.clients, transaction, min(p.config.Slice/5, 300*time.Millisecond)); err != nil {
		return err
	}
	return repeat(ctx, &way.l, p.clients, transaction, p.config.Slice)
}

// attend subscribes with one connection, and returns when it has received a message: by then a hub has read the existing log.
func (p *publishBench) attend(ctx context.Context, address string) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var heard atomic.Bool
	first := make(chan struct{})
	c, err := gather(ctx, CrowdSpec{Transport: PG, Address: address, Database: p.URL, Count: 1, Channel: publishChannel}, func(int64) {
		if heard.CompareAndSwap(false, true) {
			close(first)
		}
	})
	if err != nil {
		return nil, err
	}
	if address == p.account.home {
		_, err = p.Observer.Exec(ctx, `SELECT pg_notify($1, '')`, publishChannel)
	} else {
		err = store.Publish(ctx, p.Observer, publishChannel, "", false)
	}
	if err == nil {
		select {
		case <-first:
			return c.leave, nil
		case err = <-c.failed:
		case <-ctx.Done():
			err = fmt.Errorf("the listener received nothing: %w", ctx.Err())
		}
	}
	c.leave()
	return nil, err
}

func (p *publishBench) report(r *load.Report) {
	rates := map[string][]float64{}
	for _, way := range p.ways {
		rates[way.name] = way.l.Rates
		r.Hub.Ways = append(r.Hub.Ways, load.Way{
			Way: way.name, Under: p.under.name, Clients: p.config.Clients, Unit: "transactions", Done: way.l.Done,
			PerSecond: load.SpreadOf(way.l.Rates), P50: way.l.H.At(50), P99: way.l.H.At(99),
		})
	}
	alone, quiet, heard, unheard, notify := rates[p.ways[0].name], rates[p.ways[1].name], rates[p.ways[2].name], rates[p.ways[3].name], rates[p.ways[4].name]
	r.Hub.Compare("weir.publish without a hub to insert alone", p.under.name, quiet, alone)
	r.Hub.Compare("pg_notify without a listener to insert alone", p.under.name, unheard, alone)
	r.Hub.Compare("pg_notify with a listener to insert alone", p.under.name, notify, alone)
	toAlone := r.Hub.Compare("weir.publish with a hub to insert alone", p.under.name, heard, alone)
	toNotify := r.Hub.Compare("weir.publish with a hub to pg_notify with a listener", p.under.name, heard, notify)
	r.AtLeast("ratio of weir.publish with a hub to insert alone, "+p.under.name, toAlone.Median, 0.75)
	if p.under.slow {
		r.AtLeast("ratio of weir.publish with a hub to pg_notify, "+p.under.name, toNotify.Median, 20)
	}
}
