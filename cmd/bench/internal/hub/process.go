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

// Spawn returns a command, not started yet, that runs Child.
type Spawn func(ctx context.Context) *exec.Cmd

// HubConfig is the configuration that all benches of the hub share.
type HubConfig struct {
	Spawn     Spawn  // required
	LoggingIn int    // see HubSpec
	Profile   string // file for a CPU profile of the hub, or of the last one; "": none
}

// process is a child process, with a connection for requests.
type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	close  func() error
}

// spawn starts a child process. It ends at the latest with ctx.
func spawn(ctx context.Context, d *load.Database, spawn Spawn) (*process, error) {
	cmd := spawn(ctx)
	var said bytes.Buffer // several processes may write to a file at the same time, but not to any other writer
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
		err := p.client.Close() // closing the pipe makes the child end
		if errors.Is(err, rpc.ErrShutdown) {
			err = nil
		}
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer stuck.Stop()
		ended := cmd.Wait()
		_, _ = said.WriteTo(d.Config.Progress)
		if ended != nil && ctx.Err() == nil {
			err = errors.Join(err, fmt.Errorf("bench: a child process failed: %w", ended))
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

// hubProcess is a hub in a separate process.
type hubProcess struct {
	*process
	at HubAt
}

// startHub starts a hub on the database, with these settings for its sessions.
func startHub(ctx context.Context, d *load.Database, c HubConfig, url string, durable bool) (*hubProcess, error) {
	return startHubAs(ctx, d, c, HubSpec{Database: url, DurableNotify: durable, LoggingIn: c.LoggingIn})
}

// startPushingHub starts a hub that pushes jobs to the endpoints of a file.
func startPushingHub(ctx context.Context, d *load.Database, c HubConfig, url, file string) (*hubProcess, error) {
	return startHubAs(ctx, d, c, HubSpec{Database: url, PushFile: file})
}

func startHubAs(ctx context.Context, d *load.Database, c HubConfig, spec HubSpec) (*hubProcess, error) {
	p, err := spawn(ctx, d, c.Spawn)
	if err != nil {
		return nil, err
	}
	h := &hubProcess{process: p}
	if c.Profile != "" {
		err = p.ask(ctx, "Profile", c.Profile, &struct{}{})
	}
	if err == nil {
		err = p.ask(ctx, "Hub", spec, &h.at)
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

// serves waits until the hub has n subscribers.
func (h *hubProcess) serves(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		u, err := h.usage(ctx, false)
		if err != nil || u.Subscribers == n {
			return err
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("bench: after a minute the hub has %d subscribers, want %d: %w", u.Subscribers, n, ctx.Err())
		}
	}
}

// mayOpen checks whether this process and its children may open n files each.
func mayOpen(n int) error {
	if limit := openFiles(); limit > 0 && limit < n {
		return fmt.Errorf("bench: this bench needs %d open files, but a process may have %d: raise the limit (ulimit -n), or measure fewer", n, limit)
	}
	return nil
}

// spare is the number of files that a process needs in addition to those of its clients.
const spare = 200
