// Package hub measures a hub: what publishing costs, what idle listeners cost two who play ping-pong, how fast messages go out to many, what a
// subscriber weighs, how soon all are served who connect at once. The hub is a process of its own, and so are many of its clients, which
// are made to cost next to nothing.
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

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// Child serves the bench that started this process, over in and out, until in ends: it runs a hub, or holds a crowd of subscribers, so that
// their memory and CPU time are their own. Logs go to errs.
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

// child is one process's state. The parent asks one thing at a time.
type child struct {
	ctx    context.Context
	log    *slog.Logger
	server *server.Server
	users  string // a file of the hub's users; "": none
	crowds []*crowd
	bare   *bare
	cpu    *os.File // a profile is being written
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

// HubSpec says which hub to run.
type HubSpec struct {
	Database      string
	DurableNotify bool
	LoggingIn     int // clients at once, all from this machine; 0: as many as hubs take by default
}

// HubAt says where it listens.
type HubAt struct{ PG, HTTP string }

// Usage is what a child takes, and whom it serves.
type Usage struct {
	RSS         int64 // resident, as the operating system sees it
	Heap, Stack int64 // as Go's runtime sees it
	CPU         time.Duration
	Subscribers int
}

// exported is what a parent may ask, in the form that net/rpc wants.
type exported struct{ c *child }

// Hub starts the hub.
func (e exported) Hub(spec HubSpec, at *HubAt) (err error) {
	c := e.c
	if c.server != nil {
		return errors.New("the hub runs already")
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
	c.server, err = server.Start(c.ctx, server.Config{
		Database: spec.Database, ListenPG: anyPort, ListenHTTP: anyPort, DurableNotify: spec.DurableNotify, PGAuth: server.UsersFile, UsersFile: users, LoggingIn: spec.LoggingIn,
		Web: web.Config{Anonymous: true}, Name: fmt.Sprintf("bench:%d", os.Getpid()), Drain: 100 * time.Millisecond, Logger: c.log,
	})
	if err != nil {
		return fmt.Errorf("start a hub: %w", err)
	}
	*at = HubAt{PG: c.server.PGAddr().String(), HTTP: c.server.HTTPAddr().String()}
	return nil
}

// Gather makes subscribers.
func (e exported) Gather(spec CrowdSpec, _ *struct{}) error {
	crowd, err := gather(e.c.ctx, spec, nil)
	if err == nil {
		e.c.crowds = append(e.c.crowds, crowd)
	}
	return err
}

// Leave disconnects them. It fails if one of them had been cut off.
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

// Usage tells what the process takes. With trim, memory that is free is given back first.
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

// Profile writes what the process does until it ends to a file, for go tool pprof.
func (e exported) Profile(file string, _ *struct{}) (err error) {
	if e.c.cpu != nil {
		return errors.New("a profile is being written already")
	}
	if e.c.cpu, err = os.Create(file); err != nil {
		return err
	}
	return pprof.StartCPUProfile(e.c.cpu)
}
