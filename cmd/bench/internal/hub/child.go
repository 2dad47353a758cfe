// Package hub measures a hub: what publishing costs, how idle listeners slow down two clients that play ping-pong, how fast messages reach many
// subscribers, how much memory a subscriber takes, and how soon clients that connect at the same time are served. The hub is a separate process,
// and so are many of its clients, which use as little CPU time as possible.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/rpc"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/cluster"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// Child serves requests of the bench that started this process, over in and out, until in ends. It runs a hub, or holds a crowd of subscribers, so
// that their memory and CPU time can be measured separately. Logs go to errs.
func Child(ctx context.Context, in io.ReadCloser, out io.WriteCloser, errs io.Writer) error {
	c := &child{ctx: ctx, log: slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	s := rpc.NewServer()
	if err := s.RegisterName("Child", exported{c}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	s.ServeConn(pipe{in, out})
	return c.close()
}

type pipe struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipe) Close() error                { return errors.Join(p.ReadCloser.Close(), p.out.Close()) }

// child is the state of the process. The parent makes one request at a time.
type child struct {
	ctx    context.Context
	log    *slog.Logger
	server *server.Server
	users  string // a file of the hub's users; "": there is none
	crowds []*crowd
	bare   *bare
	cpu    *os.File // not nil while a profile is being written
}

func (c *child) close() error {
	c.endProfile()
	if c.bare != nil {
		c.bare.close()
	}
	for _, crowd := range c.crowds {
		crowd.leave()
	}
	if c.users != "" {
		defer os.Remove(c.users)
	}
	if c.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 10*time.Second)
	defer cancel()
	return c.server.Stop(ctx)
}

func (c *child) endProfile() {
	if c.cpu != nil {
		pprof.StopCPUProfile()
		c.cpu.Close()
		c.cpu = nil
	}
}

// HubSpec specifies the hub to run.
type HubSpec struct {
	Database      string
	ReadDatabase  string // of a standby from which it reads; "": the primary
	DurableNotify bool
	PushFile      string // endpoints to push jobs to; "": none
	NATS          string // URL of a NATS server that joins it to other hubs; "": it reads for itself
	LoggingIn     int    // number of clients that may log in at once from one address; 0: the default of hubs
}

// HubAt contains the hub's addresses.
type HubAt struct{ PG, HTTP string }

// Usage contains the resources that a child uses, and the number of its clients.
type Usage struct {
	RSS         int64 // resident memory, according to the operating system
	Heap, Stack int64 // according to Go's runtime
	CPU         time.Duration
	Subscribers int
}

// exported has the methods that a parent may call, in the form that net/rpc requires.
type exported struct{ c *child }

// Hub starts the hub.
func (e exported) Hub(spec HubSpec, at *HubAt) (err error) {
	c := e.c
	if c.server != nil {
		return errors.New("the hub is already running")
	}
	const anyPort = "127.0.0.1:0"
	database, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		return err
	}
	users, err := load.UsersFile(database.User, database.Password)
	if err != nil {
		return err
	}
	c.users = users
	var joined *cluster.Config
	if spec.NATS != "" {
		joined = &cluster.Config{URL: spec.NATS}
	}
	c.server, err = server.Start(c.ctx, server.Config{
		Database: spec.Database, ReadDatabase: spec.ReadDatabase, ListenPG: anyPort, ListenHTTP: anyPort, DurableNotify: spec.DurableNotify, PGAuth: server.UsersFile, UsersFile: users, LoggingIn: spec.LoggingIn,
		Web: web.Config{Anonymous: true}, Jobs: true, PushFile: spec.PushFile, Cluster: joined, Name: fmt.Sprintf("bench:%d", os.Getpid()), Drain: 100 * time.Millisecond, Logger: c.log,
	})
	if err != nil {
		return fmt.Errorf("start a hub: %w", err)
	}
	*at = HubAt{PG: c.server.PGAddr().String(), HTTP: c.server.HTTPAddr().String()}
	return nil
}

// Gather connects subscribers.
func (e exported) Gather(spec CrowdSpec, _ *struct{}) error {
	crowd, err := gather(e.c.ctx, spec, nil)
	if err == nil {
		e.c.crowds = append(e.c.crowds, crowd)
	}
	return err
}

// Leave disconnects the subscribers. It fails if one of them was disconnected before.
func (e exported) Leave(struct{}, *struct{}) (err error) {
	for _, crowd := range e.c.crowds {
		select {
		case failed := <-crowd.failed:
			err = failed
		default:
		}
		crowd.leave()
	}
	e.c.crowds = nil
	return err
}

// Usage reports the resources that the process uses. With trim, it first returns free memory to the operating system.
func (e exported) Usage(trim bool, u *Usage) error {
	if trim {
		debug.FreeOSMemory()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap, u.Stack = int64(m.HeapInuse), int64(m.StackInuse)
	u.RSS, _ = load.OwnRSS()
	u.CPU, _ = load.OwnCPU()
	if e.c.server != nil {
		u.Subscribers = e.c.server.Hub().Stats().Subscribers
	}
	return nil
}

// Profile writes a CPU profile to a file until the process ends, for go tool pprof.
func (e exported) Profile(file string, _ *struct{}) (err error) {
	if e.c.cpu != nil {
		return errors.New("a profile is already being written")
	}
	if e.c.cpu, err = os.Create(file); err != nil {
		return err
	}
	return pprof.StartCPUProfile(e.c.cpu)
}
