package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// Spawn makes a command that runs Child, not started yet.
type Spawn func(ctx context.Context) *exec.Cmd

// HubConfig is what all benches of the hub need.
type HubConfig struct {
	Spawn     Spawn  // required
	LoggingIn int    // as HubSpec's
	Profile   string // file for a CPU profile of the hub, the last one where there are several; "": none
}

// process is a child process, and the way to ask it for something.
type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	close  func() error
}

// spawn starts a child process. It ends with ctx at the latest.
func spawn(ctx context.Context, d *load.Database, spawn Spawn) (*process, error) {
	cmd := spawn(ctx)
	var said bytes.Buffer // what several processes write at once goes to a file as it is, but not to any writer
	if file, ok := d.Config.Progress.(*os.File); ok {
		cmd.Stderr = file
	} else {
		cmd.Stderr = &said
	}
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start a process: %w", err)
	}
	p := &process{cmd: cmd, client: rpc.NewClient(pipe{out, in})}
	p.close = sync.OnceValue(func() error {
		err := p.client.Close() // its end of the pipe is the child's sign to go
		if errors.Is(err, rpc.ErrShutdown) {
			err = nil
		}
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer stuck.Stop()
		ended := cmd.Wait()
		_, _ = said.WriteTo(d.Config.Progress)
		if ended != nil && ctx.Err() == nil {
			err = errors.Join(err, fmt.Errorf("bench: a child process ended badly: %w", ended))
		}
		return err
	})
	return p, nil
}

// ask calls one of the child's methods.
func (p *process) ask(ctx context.Context, what string, request, answer any) error {
	call := p.client.Go("Child."+what, request, answer, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if errors.Is(call.Error, io.ErrUnexpectedEOF) || errors.Is(call.Error, rpc.ErrShutdown) {
		return fmt.Errorf("bench: a child process has ended: %w", call.Error)
	}
	return call.Error
}

func (p *process) usage(ctx context.Context, trim bool) (u Usage, err error) {
	err = p.ask(ctx, "Usage", trim, &u)
	return u, err
}

// hubProcess is a hub in a process of its own.
type hubProcess struct {
	*process
	at HubAt
}

// startHub starts one on the database, whose sessions have the settings.
func startHub(ctx context.Context, d *load.Database, c HubConfig, url string, durable bool) (*hubProcess, error) {
	p, err := spawn(ctx, d, c.Spawn)
	if err != nil {
		return nil, err
	}
	h := &hubProcess{process: p}
	if c.Profile != "" {
		err = p.ask(ctx, "Profile", c.Profile, &struct{}{})
	}
	if err == nil {
		err = p.ask(ctx, "Hub", HubSpec{Database: url, DurableNotify: durable, LoggingIn: c.LoggingIn}, &h.at)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), p.close())
	}
	return h, nil
}

// address is where a transport's clients connect.
func (h *hubProcess) address(t Transport) string {
	if t == PG {
		return h.at.PG
	}
	return h.at.HTTP
}

// serves waits until the hub has so many subscribers.
func (h *hubProcess) serves(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		u, err := h.usage(ctx, false)
		if err != nil || u.Subscribers == n {
			return err
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("bench: the hub has %d subscribers after a minute, and not %d: %w", u.Subscribers, n, ctx.Err())
		}
	}
}

// mayOpen looks whether this process and those that it starts may open so many files each.
func mayOpen(n int) error {
	if most := openFiles(); most > 0 && most < n {
		return fmt.Errorf("bench: this takes %d open files, and a process may have %d: raise the limit (ulimit -n) or measure fewer", n, most)
	}
	return nil
}

// spare is how many files a process needs besides its clients'.
const spare = 200
