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

// hubFlags are the flags of every bench of the hub, which runs in a separate process.
type hubFlags struct {
	flags
	HubCPUProfile string `name:"hub-cpu-profile" type:"path" placeholder:"FILE" help:"Write a CPU profile of the hub, for go tool pprof; of the last hub if there are several."`
}

func (f *hubFlags) config() hub.HubConfig {
	return hub.HubConfig{Spawn: thisProgram, Profile: f.HubCPUProfile}
}

// thisProgram returns the command that runs this program as a childCmd.
func thisProgram(ctx context.Context) *exec.Cmd {
	self, err := os.Executable()
	cmd := exec.CommandContext(ctx, self)
	cmd.Err = errors.Join(cmd.Err, err)
	cmd.Args = []string{"bench", "__child"}
	return cmd
}

// childCmd is a process that a bench starts: a hub, or a group of subscribers.
type childCmd struct{}

func (childCmd) Run(ctx context.Context, s *streams) error {
	in, readable := s.in.(io.ReadCloser)
	out, writable := s.out.(io.WriteCloser)
	if !readable || !writable {
		return errors.New("this command is only for benches: run another one")
	}
	return hub.Child(ctx, in, out, s.errs)
}

type publishCmd struct {
	hubFlags
	Clients int     `default:"64" help:"Number of clients (${default})."`
	Rounds  int     `default:"5" help:"Number of rounds, in which the ways take turns, once with the disk as it is and once with slow flushes (${default})."`
	Seconds float64 `default:"3" help:"Seconds of each way in each round (${default})."`
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
	Idle         int     `default:"10000" help:"Maximum number of idle listeners on the hub (${default})."`
	IdlePostgres int     `default:"1000" help:"Maximum number of idle listeners on PostgreSQL (${default})."`
	Rounds       int     `default:"3" help:"Number of rounds, in which the hub and PostgreSQL take turns (${default})."`
	Seconds      float64 `default:"3" help:"Seconds with each number of idle listeners in each round (${default})."`
}

func (c *pingPongCmd) Run(ctx context.Context, s *streams) error {
	config := hub.PingPongConfig{HubConfig: c.config(), Idle: c.Idle, IdlePostgres: c.IdlePostgres, Rounds: c.Rounds, Slice: seconds(c.Seconds)}
	return c.alone(ctx, s, hub.PingPongConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.PingPong(ctx, d, e, config)
	})
}

type fanoutCmd struct {
	hubFlags
	Subscribers int     `default:"10000" help:"Number of subscribers (${default})."`
	Transport   string  `default:"pg" enum:"pg,ws,sse" help:"Transport of the subscribers: pg, ws or sse (${default})."`
	Seconds     float64 `default:"20" help:"Seconds of each of the three parts (${default})."`
	Payload     int     `default:"32" help:"Size of a message's payload, in bytes (${default})."`
	InFlight    int     `help:"Maximum number of deliveries in progress. Default: those of two transactions on one channel; on a channel for each, two per subscriber."`
	Batch       int     `help:"Messages per transaction. Default: 1 on one channel, up to 500 on a channel for each."`
	Only        string  `enum:"one,burst,each," default:"" help:"Measure only one part: one (one channel to all), burst (one channel to all, ten messages at a time) or each (a channel for each)."`
	Rate        int     `help:"Maximum number of deliveries per second. Default: limited only by --in-flight."`
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
	Subscribers int      `default:"50000" help:"Number of subscribers. If a process may not open that many files, several hubs share them (${default})."`
	Transports  []string `default:"pg,ws,sse" enum:"pg,ws,sse" help:"Transports, measured one after the other: pg, ws, sse (${default})."`
	Backends    int      `default:"100" help:"Number of sessions that listen on PostgreSQL itself, for comparison (${default})."`
	Settle      float64  `default:"10" help:"Seconds between the arrival of the last subscriber and the measurement of memory (${default})."`
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

type hubsCmd struct {
	hubFlags
	Hubs        []int   `default:"1,2,4,8,16" help:"Numbers of hubs, measured one after the other (${default})."`
	Subscribers int     `default:"20" help:"Number of subscribers of each hub (${default})."`
	Rate        int     `default:"200" help:"Messages a second, each in a transaction of its own (${default})."`
	Seconds     float64 `default:"10" help:"Seconds of each measurement (${default})."`
}

func (c *hubsCmd) Run(ctx context.Context, s *streams) error {
	config := hub.HubsConfig{HubConfig: c.config(), Hubs: c.Hubs, Subscribers: c.Subscribers, Rate: c.Rate, Duration: seconds(c.Seconds)}
	return c.alone(ctx, s, hub.HubsConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Hubs(ctx, d, e, config)
	})
}

type stormCmd struct {
	hubFlags
	Clients  int `default:"10000" help:"Number of clients of the hub (${default})."`
	Postgres int `default:"1000" help:"Number of clients of PostgreSQL itself (${default})."`
	Rounds   int `default:"3" help:"Number of rounds, in which the hub and PostgreSQL take turns (${default})."`
}

func (c *stormCmd) Run(ctx context.Context, s *streams) error {
	config := hub.StormConfig{HubConfig: c.config(), Clients: c.Clients, Postgres: c.Postgres, Rounds: c.Rounds}
	return c.alone(ctx, s, hub.StormConnections(config), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Storm(ctx, d, e, config)
	})
}

type httpCmd struct {
	hubFlags
	Jobs   int     `default:"100000" help:"Number of no-op jobs of each way in each round (${default})."`
	Rounds int     `default:"3" help:"Number of rounds, in which the ways take turns (${default})."`
	Slots  int     `default:"1000" help:"How many jobs each way has at once (${default})."`
	Takers int     `default:"20" help:"Number of calls of take at once, which share the slots (${default})."`
	Slow   float64 `default:"10" help:"Milliseconds that a job takes in the second part (${default})."`
	Idle   int     `default:"10000" help:"Number of idle sessions (${default})."`
}

func (c *httpCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 100, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return hub.Jobs(ctx, d, e, hub.JobsConfig{HubConfig: c.config(), Jobs: c.Jobs, Rounds: c.Rounds, Slots: c.Slots, Takers: c.Takers, Slow: seconds(c.Slow / 1000), Idle: c.Idle})
	})
}
