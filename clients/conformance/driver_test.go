package conformance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// patience is longer than anything takes that is not stuck, on a busy machine.
const patience = time.Minute

// longestLine is the longest line that a driver may write.
const longestLine = 16 << 20

// object is a JSON object.
type object map[string]any

// event is a line of a driver that is no answer.
type event struct {
	Event string `json:"event"`

	Client   string   `json:"client"`
	Via      string   `json:"via"`
	Features []string `json:"features"`

	Run    int     `json:"run"`
	Job    job     `json:"job"`
	Reason string  `json:"reason"`
	Error  *answer `json:"error"`

	Subscription  int     `json:"subscription"`
	Channel       string  `json:"channel"`
	Payload       string  `json:"payload"`
	PayloadBase64 *[]byte `json:"payload_base64"`
	Position      string  `json:"position"`
}

// job is what a driver tells about a job.
type job struct {
	ID          int64     `json:"id"`
	State       string    `json:"state"`
	Queue       string    `json:"queue"`
	Priority    int       `json:"priority"`
	Kind        string    `json:"kind"`
	Args        any       `json:"args"`
	Meta        any       `json:"meta"`
	Key         *string   `json:"key"`
	Flow        *int64    `json:"flow"`
	Attempt     int       `json:"attempt"`
	MaxAttempts int       `json:"max_attempts"`
	EnqueuedAt  time.Time `json:"enqueued_at"`
	Output      *string   `json:"output"`
	Error       *string   `json:"error"`
}

// answer is what a driver answers to a command: these fields of it, or a code and a message.
type answer struct {
	Code    string `json:"code"`
	Message string `json:"message"`

	ID           int64           `json:"id"`
	Duplicate    bool            `json:"duplicate"`
	Jobs         []enqueued      `json:"jobs"`
	Tx           int             `json:"tx"`
	Job          job             `json:"job"`
	State        string          `json:"state"`
	Checkpoint   json.RawMessage `json:"checkpoint"`
	Subscription int             `json:"subscription"`
}

type enqueued struct {
	ID        int64 `json:"id"`
	Duplicate bool  `json:"duplicate"`
}

// driver is a running driver.
type driver struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   *pgtest.Log // what it wrote to standard error
	stdin io.WriteCloser
	hello event

	commands sync.Mutex // one command at a time
	last     int        // number of the last command

	mu      sync.Mutex // guards the rest
	changed chan struct{}
	answers map[int]answer
	events  []event // nobody has waited for yet
	over    error   // not nil: the driver has ended, and why
}

// start starts a driver, and waits for its hello.
func start(t *testing.T, cmd *exec.Cmd) *driver {
	t.Helper()
	d := &driver{t: t, cmd: cmd, log: &pgtest.Log{}, changed: make(chan struct{}), answers: map[int]answer{}}
	cmd.Stderr = d.log
	var err error
	if d.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ownGroup(cmd) // a shell may be in between
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the driver: %v", err)
	}
	done := make(chan struct{})
	go func() { // ends with the process, for which the cleanup waits
		defer close(done)
		err := d.read(stdout)
		if err != nil {
			d.kill()
		}
		d.end(errors.Join(err, cmd.Wait()))
	}()
	t.Cleanup(func() {
		d.stdin.Close()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the driver still runs a minute after the end of its standard input")
			d.kill()
			<-done
		}
		if t.Failed() {
			t.Logf("what driver %d wrote to standard error, and events that no one waited for:\n%s\n%s", cmd.Process.Pid, d.log, d.unexpected())
		}
	})
	d.hello = d.await("hello, the first line", func(e event) bool { return e.Event == "hello" })
	return d
}

// read reads what the driver writes, to the end.
func (d *driver) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var line struct {
			N     *int   `json:"n"`
			OK    answer `json:"ok"`
			Error *answer
			Event string `json:"event"`
		}
		var e event
		err := json.Unmarshal(lines.Bytes(), &line)
		if err == nil && line.N == nil {
			err = json.Unmarshal(lines.Bytes(), &e)
		}
		if err == nil && line.N == nil && e.Event == "" {
			err = errors.New("it has neither n nor event")
		}
		if err != nil {
			return fmt.Errorf("the driver wrote a line that is neither an answer nor an event: %w: %.1000s", err, lines.Text())
		}
		d.mu.Lock()
		switch {
		case line.N == nil:
			d.events = append(d.events, e)
		case line.Error != nil:
			if line.Error.Code == "" {
				line.Error.Code = "other"
			}
			d.answers[*line.N] = *line.Error
		default:
			line.OK.Code = ""
			d.answers[*line.N] = line.OK
		}
		d.wake()
		d.mu.Unlock()
	}
	return lines.Err()
}

// wake wakes all who wait. mu is held.
func (d *driver) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *driver) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = fmt.Errorf("the driver has ended: %w", err)
	if err == nil {
		d.over = errors.New("the driver has ended")
	}
	d.wake()
}

// wait waits until found is true, which is called whenever the driver has written a line.
func (d *driver) wait(found func() bool) error {
	limit := time.After(patience)
	for {
		d.mu.Lock()
		ok, over, changed := found(), d.over, d.changed
		d.mu.Unlock()
		switch {
		case ok:
			return nil
		case over != nil:
			return over
		}
		select {
		case <-changed:
		case <-limit:
			return fmt.Errorf("waited %v in vain", patience)
		}
	}
}

// try sends a command, and returns the answer, whatever it is.
func (d *driver) try(do string, fields object) (answer, error) {
	d.commands.Lock()
	defer d.commands.Unlock()
	d.last++
	line := object{"n": d.last, "do": do}
	for name, value := range fields {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		return answer{}, err
	}
	if _, err := d.stdin.Write(append(text, '\n')); err != nil {
		return answer{}, fmt.Errorf("%s: %w", do, err)
	}
	var a answer
	err = d.wait(func() (ok bool) {
		a, ok = d.answers[d.last]
		delete(d.answers, d.last)
		return ok
	})
	if err != nil {
		return a, fmt.Errorf("no answer to %.1000s: %w", text, err)
	}
	return a, nil
}

func shown(command string, fields object) string {
	return command + " " + brief(map[string]any(fields))
}

// brief shows a value that may be long.
func brief(v any) string { return fmt.Sprintf("%.1000s", fmt.Sprintf("%+v", v)) }

// do sends a command that must succeed.
func (d *driver) do(command string, fields object) answer {
	d.t.Helper()
	a, err := d.try(command, fields)
	if err != nil {
		d.t.Fatal(err)
	}
	if a.Code != "" {
		d.t.Fatalf("%s failed with %q: %s", shown(command, fields), a.Code, a.Message)
	}
	return a
}

// refuse sends a command that must fail, with one of these codes.
func (d *driver) refuse(command string, fields object, codes ...string) answer {
	d.t.Helper()
	a, err := d.try(command, fields)
	switch {
	case err != nil:
		d.t.Fatal(err)
	case a.Code == "":
		d.t.Errorf("%s did not fail, want %s", shown(command, fields), strings.Join(codes, " or "))
	case !slices.Contains(codes, a.Code):
		d.t.Errorf("%s failed with %q, want %s: %s", shown(command, fields), a.Code, strings.Join(codes, " or "), a.Message)
	case a.Message == "":
		d.t.Errorf("%s failed without a message", shown(command, fields))
	}
	return a
}

// await takes the first event that is wanted, and waits for it if it has not come yet.
func (d *driver) await(what string, wanted func(event) bool) (found event) {
	d.t.Helper()
	err := d.wait(func() bool {
		i := slices.IndexFunc(d.events, wanted)
		if i < 0 {
			return false
		}
		found = d.events[i]
		d.events = slices.Delete(d.events, i, i+1)
		return true
	})
	if err != nil {
		d.t.Fatalf("%s: %v; what came instead:\n%s", what, err, d.unexpected())
	}
	return found
}

// unexpected describes the events that nobody has waited for.
func (d *driver) unexpected() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, e := range d.events[:min(len(d.events), 20)] {
		all = append(all, fmt.Sprintf("%s: run %d, job %d %v, attempt %d, reason %q, channel %q, payload %.100q, error %v",
			e.Event, e.Run, e.Job.ID, e.Job.Kind, e.Job.Attempt, e.Reason, e.Channel, e.Payload, e.Error))
	}
	return strings.Join(all, "\n")
}

// none checks that no event of this name came that nobody has waited for.
func (d *driver) none(name string) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.Event == name {
			d.t.Errorf("the driver wrote the event %s once too often: run %d, job %d, attempt %d, channel %q, payload %.100q", name, e.Run, e.Job.ID, e.Job.Attempt, e.Channel, e.Payload)
			return
		}
	}
}

// anyJob waits for a job, any one.
func (d *driver) anyJob() event {
	d.t.Helper()
	return d.await("a job", func(e event) bool { return e.Event == "job" })
}

// job waits for a job.
func (d *driver) job(id int64) event {
	d.t.Helper()
	return d.await(fmt.Sprintf("job %d", id), func(e event) bool { return e.Event == "job" && e.Job.ID == id })
}

// finish ends a handler.
func (d *driver) finish(e event, how string, fields object) {
	d.t.Helper()
	all := object{"run": e.Run, "how": how}
	for name, value := range fields {
		all[name] = value
	}
	d.do("end", all)
}

// interrupted waits until a handler is interrupted.
func (d *driver) interrupted(e event) string {
	d.t.Helper()
	return d.await(fmt.Sprintf("the interruption of job %d", e.Job.ID), func(i event) bool { return i.Event == "interrupted" && i.Run == e.Run }).Reason
}

// stopped tells the worker to stop, and waits until it has.
func (d *driver) stopped() {
	d.t.Helper()
	d.do("stop", nil)
	d.hasStopped()
}

func (d *driver) hasStopped() {
	d.t.Helper()
	e := d.await("stopped, after stop", func(e event) bool { return e.Event == "stopped" })
	if e.Error != nil {
		d.t.Errorf("the worker stopped with the error %s: %s", e.Error.Code, e.Error.Message)
	}
}

// answerAll answers each job from now on as how says, until the driver ends, and returns a function that ends this and returns how many there were.
func (d *driver) answerAll(how func(e event) object) (finish func() int) {
	over, done, n := make(chan struct{}), make(chan struct{}), 0
	go func() { // ends with the driver, or when finish is called, which waits for it
		defer close(done)
		for {
			var e event
			var ok bool
			err := d.wait(func() bool {
				i := slices.IndexFunc(d.events, func(e event) bool { return e.Event == "job" })
				if i >= 0 {
					e, ok = d.events[i], true
					d.events = slices.Delete(d.events, i, i+1)
				}
				select {
				case <-over:
					return true
				default:
					return ok
				}
			})
			if err != nil || !ok {
				return
			}
			n++
			command := how(e)
			command["run"] = e.Run
			if _, err := d.try("end", command); err != nil {
				return
			}
		}
	}()
	finish = sync.OnceValue(func() int {
		close(over)
		d.mu.Lock()
		d.wake()
		d.mu.Unlock()
		<-done
		return n
	})
	d.t.Cleanup(func() { d.kill(); finish() })
	return finish
}

// kill ends the driver with SIGKILL, and everything that it has started.
func (d *driver) kill() { d.signal(os.Kill) }

func (d *driver) signal(sig os.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil {
		signal(d.cmd, sig)
	}
}
