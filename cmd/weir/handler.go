package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir"
)

const (
	outputLimit = 1 << 20   // of standard output
	errorLimit  = 63 << 10  // of standard error, its end; with the text before it, within the server's 64 KiB
	argLimit    = 64 << 10  // of one argument in the environment
	argsLimit   = 256 << 10 // of all arguments in the environment
	killAfter   = 5 * time.Second

	// exitGiveUp is EX_DATAERR of sysexits.h.
	exitGiveUp = 65
)

// runner runs the command of weir work.
type runner struct {
	path   string
	argv   []string
	groups groups
	listed bool // the jobs are of several databases
}

// run is one attempt at a job.
func (r *runner) run(ctx context.Context, job *weir.Job[json.RawMessage]) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	stdout, stderr := &head{limit: outputLimit}, &tail{limit: errorLimit}
	env := append(inherited(), environment(job)...)
	if r.listed {
		env = append(env, "WEIR_JOB_DATABASE="+nameOfClient(job.Client()))
	}
	cmd := &exec.Cmd{
		Path: r.path, Args: r.argv, Env: env,
		Stdin: io.MultiReader(bytes.NewReader(job.Args), strings.NewReader("\n")), Stdout: stdout, Stderr: stderr,
		// A process that the command left behind may keep its output open: do not wait for it.
		WaitDelay: killAfter,
	}
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	r.groups.add(cmd.Process)
	// This goroutine ends when the command has ended.
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		terminateGroup(cmd.Process)
		select {
		case <-ended:
		case <-time.After(killAfter):
		}
		killGroup(cmd.Process) // and processes that the command has left behind
	}()
	err := cmd.Wait()
	close(ended)
	<-stopped
	r.groups.remove(cmd.Process)
	return conclude(ctx, job, err, stdout, stderr)
}

// conclude derives the attempt's result from the command's exit.
func conclude(ctx context.Context, job *weir.Job[json.RawMessage], err error, stdout *head, stderr *tail) error {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		if text := strings.TrimRight(string(stdout.kept), "\n"); text != "" {
			job.SetOutput(text)
		}
		return nil
	case !errors.As(err, &exit):
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("run the command: %w", err)
	}
	text := exit.ProcessState.String() // "exit status 3", "signal: killed"
	if said := strings.TrimSpace(string(stderr.end())); said != "" {
		text += ": " + said
	}
	if exit.ExitCode() == exitGiveUp {
		return weir.Fail(errors.New(text))
	}
	return errors.New(text)
}

// inherited returns the variables of this process, without a flow that another job was a member of: this one may be of none.
func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_JOB_FLOW=") })
}

// environment returns the variables that describe the job to its command.
func environment(job *weir.Job[json.RawMessage]) []string {
	env := []string{
		"WEIR_JOB_ID=" + strconv.FormatInt(job.ID, 10),
		"WEIR_JOB_KIND=" + job.Kind,
		"WEIR_JOB_QUEUE=" + job.Queue,
		"WEIR_JOB_ATTEMPT=" + strconv.Itoa(job.Attempt),
		"WEIR_JOB_MAX_ATTEMPTS=" + strconv.Itoa(job.MaxAttempts),
	}
	if job.Flow != 0 {
		env = append(env, "WEIR_JOB_FLOW="+strconv.FormatInt(job.Flow, 10))
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(job.Args, &fields) != nil {
		return env
	}
	size := 0
	for name, value := range fields {
		text, ok := scalar(value)
		// The prefix keeps arguments from setting PATH and the like. Values too long for the system are left out.
		if size += len(text); ok && isName(name) && len(text) <= argLimit && size <= argsLimit {
			env = append(env, "WEIR_ARG_"+name+"="+text)
		}
	}
	return env
}

// scalar returns the text of a string, number or boolean.
func scalar(value json.RawMessage) (string, bool) {
	switch value[0] {
	case '"':
		var text string
		err := json.Unmarshal(value, &text)
		return text, err == nil
	case '{', '[', 'n':
		return "", false
	}
	return string(value), true
}

// isName reports whether the text can be part of a shell variable's name.
func isName(text string) bool {
	return text != "" && len(text) <= 128 && strings.IndexFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// head keeps the beginning of what is written to it; tail keeps the end.
type head struct {
	limit int
	kept  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), h.limit-len(h.kept))]...)
	return len(p), nil
}

type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*t.limit {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.limit:]...)
	}
	return len(p), nil
}

// end returns what was kept, after the last write.
func (t *tail) end() []byte { return t.kept[max(0, len(t.kept)-t.limit):] }

// groups are the process groups of running commands.
type groups struct {
	mu   sync.Mutex
	runs map[*os.Process]bool
}

func (g *groups) add(p *os.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.runs == nil {
		g.runs = map[*os.Process]bool{}
	}
	g.runs[p] = true
}

func (g *groups) remove(p *os.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, p)
}

// kill ends all of them at once.
func (g *groups) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.runs {
		killGroup(p)
	}
}
