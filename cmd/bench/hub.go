package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"

	"github.com/weir-pg/weir/cmd/bench/internal/hub"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// hubFlags are those of every bench of the hub, which runs in a process of its own.
type hubFlags struct {
	flags
	HubCPUProfile string `name:"hub-cpu-profile" type:"path" placeholder:"FILE" help:"Write a CPU profile of the hub, for go tool pprof; of the last hub where there are several."`
}

func (f *hubFlags) config() hub.HubConfig {
	return hub.HubConfig{Spawn: thisProgram, Profile: f.HubCPUProfile}
}

// thisProgram is this program once more, as a childCmd.
func thisProgram(ctx context.Context) *exec.Cmd {
	self, err := os.Executable()
	cmd := exec.CommandContext(ctx, self)
	cmd.Err = errors.Join(cmd.Err, err)
	cmd.Args = []string{"bench", "__child"}
	return cmd
}

// childCmd is a process that a bench starts: a hub, or subscribers.
type childCmd struct{}

func (childCmd) Run(ctx context.Context, s *streams) error {
	in, readable := s.in.(io.ReadCloser)
	out, writable := s.out.(io.WriteCloser)
	if !readable || !writable {
		return errors.New("this command is for benches alone: run one of the others")
	}
	return hub.Child(ctx, in, out, s.errs)
}

type publishCmd struct {
	hubFlags
	Clients int     `default:"64" help:"How many (${default})."`
	Rounds  int     `default:"5" help:"In which the ways take turns, once with the disk as it is and once with slow flushes (${default})."`
	Seconds float64 `default:"3" help:"Of each way in each round (${default})."`
}

func (c *publishCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, c.Clients+40, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Publish(ctx, d, e, hub.PublishConfig{
			HubConfig: c.config(), Clients: c.Clients, Rounds: c.Rounds, Slice: seconds(c.Seconds),
		})
	})
}

type pingPongCmd struct {
	hubFlags
	Idle         int     `default:"10000" help:"Idle listeners on the hub, at most (${default})."`
	IdlePostgres int     `default:"1000" help:"Idle listeners on PostgreSQL, at most (${default})."`
	Rounds       int     `default:"3" help:"In which hub and PostgreSQL take turns (${default})."`
	Seconds      float64 `default:"3" help:"With each number of idle listeners in each round (${default})."`
}

func (c *pingPongCmd) Run(ctx context.Context, s *streams) error {
	config := hub.PingPongConfig{HubConfig: c.config(), Idle: c.Idle, IdlePostgres: c.IdlePostgres, Rounds: c.Rounds, Slice: seconds(c.Seconds)}
	return c.alone(ctx, s, hub.PingPongConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.PingPong(ctx, d, e, config)
	})
}

type fanoutCmd struct {
	hubFlags
	Subscribers int     `default:"10000" help:"How many (${default})."`
	Transport   string  `default:"pg" enum:"pg,ws,sse" help:"How they subscribe: pg, ws or sse (${default})."`
	Seconds     float64 `default:"20" help:"Of each of the three parts (${default})."`
	Payload     int     `default:"32" help:"Bytes of a message's payload (${default})."`
	InFlight    int     `help:"Deliveries under way at most. Default: those of two transactions on one channel, and two for each subscriber."`
	Batch       int     `help:"Messages in a transaction. Default: 1 on one channel, up to 500 on a channel for each."`
	Only        string  `enum:"one,burst,each," default:"" help:"Measure one part alone: one (channel to all), burst (ten messages at a time on it) or each (a channel for each)."`
	Rate        int     `help:"Deliveries offered per second at most. Default: as many as --in-flight lets through."`
}

func (c *fanoutCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 0, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Fanout(ctx, d, e, hub.FanoutConfig{
			HubConfig: c.config(), Subscribers: c.Subscribers, Transport: hub.Transport(c.Transport), Duration: seconds(c.Seconds),
			Payload: c.Payload, InFlight: c.InFlight, Batch: c.Batch, Only: c.Only, Rate: c.Rate,
		})
	})
}

type listenersCmd struct {
	hubFlags
	Subscribers int      `default:"50000" help:"How many. Where one process may not open so many files, several hubs share them (${default})."`
	Transports  []string `default:"pg,ws,sse" enum:"pg,ws,sse" help:"How they subscribe, one after the other: pg, ws, sse (${default})."`
	Backends    int      `default:"100" help:"Sessions that listen to PostgreSQL itself, for comparison (${default})."`
	Settle      float64  `default:"10" help:"Seconds between the last one's coming and the look at the memory (${default})."`
}

func (c *listenersCmd) Run(ctx context.Context, s *streams) error {
	config := hub.ListenersConfig{HubConfig: c.config(), Subscribers: c.Subscribers, Backends: c.Backends, Settle: seconds(c.Settle)}
	for _, t := range c.Transports {
		config.Transports = append(config.Transports, hub.Transport(t))
	}
	return c.alone(ctx, s, hub.ListenersConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Listeners(ctx, d, e, config)
	})
}

type stormCmd struct {
	hubFlags
	Clients  int `default:"10000" help:"Of the hub (${default})."`
	Postgres int `default:"1000" help:"Of PostgreSQL itself (${default})."`
	Rounds   int `default:"3" help:"In which hub and PostgreSQL take turns (${default})."`
}

func (c *stormCmd) Run(ctx context.Context, s *streams) error {
	config := hub.StormConfig{HubConfig: c.config(), Clients: c.Clients, Postgres: c.Postgres, Rounds: c.Rounds}
	return c.alone(ctx, s, hub.StormConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Storm(ctx, d, e, config)
	})
}
