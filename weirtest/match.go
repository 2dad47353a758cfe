package weirtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// nearly is how far a job's RunAt may be from the wanted one, since both are usually computed from separate readings of a clock.
const nearly = time.Second

// The maximum jobs that a failure lists, and the maximum bytes of each job's args.
const (
	maxListed = 20
	maxArgs   = 500
)

// want is a job that a test requires.
type want struct {
	weir.NewJob
	options weir.Options
	args    []byte // as JSON
	meta    map[string]any
}

func wanted(t testing.TB, j weir.NewJob) want {
	t.Helper()
	if j.Args == nil {
		t.Fatal("weirtest: a required job has no args")
	}
	w := want{NewJob: j}
	if j.Options != nil {
		w.options = *j.Options
	}
	var err error
	if w.args, err = json.Marshal(j.Args); err != nil {
		t.Fatalf("weirtest: encode the args of kind %s: %v", j.Args.Kind(), err)
	}
	if w.options.Meta != nil {
		text, err := json.Marshal(w.options.Meta)
		if err == nil {
			err = json.Unmarshal(text, &w.meta)
		}
		if err != nil {
			t.Fatalf("weirtest: the required meta of kind %s is not a JSON object: %v", j.Args.Kind(), err)
		}
	}
	return w
}

// differs lists the fields in which a job differs from the wanted one; none: it matches.
func (w *want) differs(j weir.JobInfo) (in []string) {
	if j.Kind != w.Args.Kind() {
		return []string{"kind"}
	}
	if !w.sameArgs(j.Args) {
		in = append(in, "args")
	}
	o := w.options
	if o.Queue != "" && o.Queue != j.Queue {
		in = append(in, "queue")
	}
	if o.Priority != 0 && o.Priority != j.Priority {
		in = append(in, "priority")
	}
	if o.MaxAttempts != 0 && o.MaxAttempts != j.MaxAttempts {
		in = append(in, "max_attempts")
	}
	if o.Key != "" && o.Key != j.Key {
		in = append(in, "key")
	}
	if !o.RunAt.IsZero() {
		at := j.EnqueuedAt // for a job that runs at once, since its RunAt is not stored
		if j.RunAt != nil {
			at = *j.RunAt
		}
		early := o.RunAt.Before(at) && j.RunAt == nil
		if d := o.RunAt.Sub(at).Abs(); d > nearly && !early {
			in = append(in, "run_at")
		}
	}
	var meta map[string]any
	_ = json.Unmarshal(j.Meta, &meta) // nil and null leave meta nil
	for key, value := range w.meta {
		if got, ok := meta[key]; !ok || !reflect.DeepEqual(got, value) {
			in = append(in, "meta."+key)
		}
	}
	return in
}

// sameArgs compares args after decoding them into the kind's type and encoding them again.
func (w *want) sameArgs(text []byte) bool {
	got, err := w.again(text)
	if err != nil {
		return false
	}
	mine, err := w.again(w.args)
	return err == nil && bytes.Equal(got, mine)
}

func (w *want) again(text []byte) ([]byte, error) {
	value := reflect.New(reflect.TypeOf(w.Args))
	if err := json.Unmarshal(text, value.Interface()); err != nil {
		return nil, err
	}
	return json.Marshal(value.Elem().Interface())
}

func (w want) String() string {
	o := w.options
	text := fmt.Sprintf("    %s  %s", w.Args.Kind(), shortened(w.args))
	if o.Queue != "" {
		text += "  queue " + o.Queue
	}
	if o.Priority != 0 {
		text += fmt.Sprintf("  priority %d", o.Priority)
	}
	if o.MaxAttempts != 0 {
		text += fmt.Sprintf("  max_attempts %d", o.MaxAttempts)
	}
	if o.Key != "" {
		text += "  key " + o.Key
	}
	if !o.RunAt.IsZero() {
		text += "  run_at " + o.RunAt.Format(time.RFC3339)
	}
	if w.meta != nil {
		meta, _ := json.Marshal(w.meta) // it came from JSON
		text += "  meta " + shortened(meta)
	}
	return text
}

// list describes the jobs found, and how they differ from the wanted one.
func (f found) list(w *want) string {
	if len(f.jobs) == 0 {
		return "nothing was enqueued"
	}
	var b strings.Builder
	b.WriteString("enqueued were")
	for i, j := range f.jobs {
		if i == maxListed {
			fmt.Fprintf(&b, "\n    and %d more", len(f.jobs)-i)
			break
		}
		b.WriteString("\n" + line(j))
		if w == nil {
			continue
		}
		if in := w.differs(j); len(in) > 0 {
			b.WriteString("  (differs in " + strings.Join(in, ", ") + ")")
		}
		if j.Encrypted != "" {
			b.WriteString("  (encrypted: use a client that has its codec, and in a transaction weirtest.Decrypting)")
		}
	}
	return b.String()
}

func line(j weir.JobInfo) string {
	text := fmt.Sprintf("    %s  %s  queue %s  priority %d  max_attempts %d", j.Kind, shortened(j.Args), j.Queue, j.Priority, j.MaxAttempts)
	if j.Key != "" {
		text += "  key " + j.Key
	}
	if j.RunAt != nil {
		text += "  run_at " + j.RunAt.Format(time.RFC3339)
	}
	if j.Meta != nil {
		text += "  meta " + shortened(j.Meta)
	}
	return text
}

func shortened(text []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, text) == nil {
		text = compact.Bytes()
	}
	if len(text) > maxArgs {
		return strings.ToValidUTF8(string(text[:maxArgs]), "") + "…"
	}
	return string(text)
}
