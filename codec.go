package weir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/worker"
)

// Codec encrypts what jobs store. Package weircrypt has one for AES-256-GCM with keys of your own; write one to use a key service. Its
// methods are called from many goroutines at once, and must not keep or change their arguments. The texts of their errors are stored and
// logged as they are.
type Codec interface {
	// Encode returns plain in encrypted form, and the id of the key (1 to 128 letters, digits or ._:/@+=-), which is stored in the
	// clear. bound says what the data belongs to: it is
	// not stored, and Decode must fail if it is called with another.
	Encode(ctx context.Context, plain, bound []byte) (key string, data []byte, err error)
	// Decode returns what Encode was given. If the codec does not have the key, the error is ErrUnknownKey.
	Decode(ctx context.Context, key string, data, bound []byte) (plain []byte, err error)
}

// ErrUnknownKey means that a codec does not have the key that a job was encrypted with.
var ErrUnknownKey = errors.New("this program does not have the key")

// ErrEncrypted means that a job is encrypted and its client has no codec for the job's kind. A worker releases such a job for workers that
// have one, as it does with [ErrUnknownKind].
var ErrEncrypted = errors.New("the job is encrypted, and this program has no codec for its kind: see Client.WithCodec")

// codecs are the codecs of a client.
type codecs struct {
	rest   Codec // for kinds without one of their own; nil: those are not encrypted
	byKind map[string]Codec
}

func (c codecs) of(kind string) Codec {
	if own, ok := c.byKind[kind]; ok {
		return own
	}
	return c.rest
}

// WithCodec returns a client that encrypts jobs of these kinds (none: all kinds without a codec of their own), and whose workers decrypt
// them. It shares c's pool and has its middleware, which is built again. Encrypted are the args of the jobs that the client enqueues, and
// what its workers store for these kinds: outputs, errors, checkpoints, and the messages and lines that they report. Jobs of these kinds that were enqueued without a codec run as before. Meta,
// queue, kind and key are not encrypted.
//
// [JobInfo] has only the id of the key in place of what is encrypted; [Client.Decrypt] decrypts it. A nil codec means that the kinds are not
// encrypted.
func (c *Client) WithCodec(codec Codec, kinds ...string) *Client {
	with := &Client{store: c.store, codecs: codecs{c.codecs.rest, maps.Clone(c.codecs.byKind)}}
	if len(kinds) == 0 {
		with.codecs.rest = codec
	} else if with.codecs.byKind == nil {
		with.codecs.byKind = map[string]Codec{}
	}
	for _, kind := range kinds {
		with.codecs.byKind[kind] = codec
	}
	if len(c.middleware) > 0 {
		return with.WithMiddleware(c.middleware...)
	}
	return with
}

// encodeArgs encrypts args before they are enqueued, if their kind has a codec.
func (c codecs) encodeArgs(ctx context.Context, kind string, args []byte) ([]byte, error) {
	codec := c.of(kind)
	switch {
	case codec == nil:
		return args, nil
	case !bytes.HasPrefix(args, []byte("{")): // the server would not see it
		return nil, fmt.Errorf("the args of kind %s must encode to a JSON object", kind)
	case sealed.Is(args):
		return nil, fmt.Errorf("the args of kind %s are encrypted already", kind)
	}
	stored, err := encode(ctx, codec, sealed.Args, 0, kind, args)
	if err != nil {
		return nil, fmt.Errorf("encrypt the args of kind %s: %w", kind, err)
	}
	return stored, nil
}

func encode(ctx context.Context, codec Codec, part sealed.Part, id int64, kind string, plain []byte) ([]byte, error) {
	key, data, err := codec.Encode(ctx, plain, sealed.Bound(part, id, kind))
	if err != nil {
		return nil, err
	}
	return sealed.Join(key, data)
}

// decode decrypts a part of a job. Its error does not contain what is encrypted.
func (c codecs) decode(ctx context.Context, part sealed.Part, id int64, kind string, stored []byte) ([]byte, error) {
	key, data, rest, err := sealed.Split(stored)
	if err != nil {
		return nil, &undecrypted{part, key, err}
	}
	codec := c.of(kind)
	if codec == nil {
		return nil, &undecrypted{part, key, ErrEncrypted}
	}
	if part == sealed.Args {
		id = 0
	}
	plain, err := codec.Decode(ctx, key, data, sealed.Bound(part, id, kind))
	if err != nil {
		return nil, &undecrypted{part, key, err}
	}
	return append(plain, rest...), nil
}

// undecrypted is the error for a part of a job that could not be decrypted.
type undecrypted struct {
	part sealed.Part
	key  string
	err  error
}

func (e *undecrypted) Error() string {
	return fmt.Sprintf("decrypt the job's %s, encrypted with key %q: %v", e.part, e.key, e.err)
}

func (e *undecrypted) Unwrap() error { return e.err }

// Decrypt replaces what is encrypted in a job that c returned by what it was: args, output, errors, message and log. If a part can't be decrypted, the
// error says why, and nothing is changed.
func (c *Client) Decrypt(ctx context.Context, job *JobInfo) error {
	from := job
	if job.stored != nil {
		from = job.stored
	}
	plain := *job
	text := func(part sealed.Part, to **string, stored *string) error {
		if stored == nil || !sealed.Is(*stored) {
			return nil
		}
		if key, data, _, err := sealed.Split([]byte(*stored)); err == nil && data == nil {
			s := "a long text, encrypted with key " + key + ", of which no copy is kept"
			*to = &s
			return nil
		}
		decoded, err := c.codecs.decode(ctx, part, job.ID, job.Kind, []byte(*stored))
		s := string(decoded)
		*to = &s
		return err
	}
	var err error
	if sealed.Is(from.Args) {
		plain.Args, err = c.codecs.decode(ctx, sealed.Args, job.ID, job.Kind, from.Args)
	}
	plain.Errors = append([]AttemptError(nil), from.Errors...)
	for i := range plain.Errors {
		to := &plain.Errors[i].Error
		err = errors.Join(err, text(sealed.Error, &to, &from.Errors[i].Error))
		plain.Errors[i].Error = *to
	}
	plain.Log = append([]LogLine(nil), from.Log...)
	for i := range plain.Log {
		to := &plain.Log[i].Text
		err = errors.Join(err, text(sealed.Log, &to, &from.Log[i].Text))
		plain.Log[i].Text = *to
	}
	err = errors.Join(err, text(sealed.Message, &plain.Message, from.Message), text(sealed.Output, &plain.Output, from.Output), text(sealed.Error, &plain.Error, from.Error))
	var first *undecrypted
	if errors.Is(err, ErrEncrypted) && errors.As(err, &first) {
		err = first // it is the same for each text of the job
	}
	if err != nil {
		return fmt.Errorf("weir: job %d: %w", job.ID, err)
	}
	*job = plain
	return nil
}

// hide keeps what is encrypted in stored, and shows the ids of the keys in its place.
func (j *JobInfo) hide() {
	is := sealed.Is(j.Args) || j.Message != nil && sealed.Is(*j.Message) || j.Output != nil && sealed.Is(*j.Output) || j.Error != nil && sealed.Is(*j.Error)
	for _, e := range j.Errors {
		is = is || sealed.Is(e.Error)
	}
	for _, l := range j.Log {
		is = is || sealed.Is(l.Text)
	}
	if !is {
		return
	}
	stored := *j
	j.stored = &stored
	j.Encrypted, j.Args = keyOf(j.Args), shownArgs(j.Args)
	j.Output, j.Error, j.Message = hidden(j.Output), hidden(j.Error), hidden(j.Message)
	j.Log = append([]LogLine(nil), j.Log...)
	for i := range j.Log {
		j.Log[i].Text = *hidden(&j.Log[i].Text)
	}
	j.Errors = append([]AttemptError(nil), j.Errors...)
	for i := range j.Errors {
		j.Errors[i].Error = *hidden(&j.Errors[i].Error)
	}
}

// keyOf returns the id of the key with which args are encrypted; "": they are not.
func keyOf(args []byte) (key string) {
	if sealed.Is(args) {
		key, _, _, _ = sealed.Split(args)
	}
	return key
}

// shownArgs returns what to show in place of args that may be encrypted.
func shownArgs(args []byte) []byte {
	if !sealed.Is(args) {
		return args
	}
	shown, _ := json.Marshal(map[string]string{"encrypted": keyOf(args)}) // of a string: never fails
	return shown
}

// hidden returns what to show in place of a text that may be encrypted.
func hidden(text *string) *string {
	if text == nil || !sealed.Is(*text) {
		return text
	}
	shown := "encrypted"
	if key, _, rest, err := sealed.Split([]byte(*text)); err == nil {
		shown = "encrypted with key " + key + string(rest)
	}
	return &shown
}

// sealFor is the time limit for encrypting the end of an attempt: a codec may call a key service.
const sealFor = 30 * time.Second

// seal returns the function that encrypts what an attempt stores; nil: its kind has no codec.
func (c codecs) seal(ctx context.Context, t *worker.Task) func(part sealed.Part, text string) (string, error) {
	codec := c.of(t.Kind)
	if codec == nil {
		return nil
	}
	return func(part sealed.Part, text string) (stored string, err error) {
		defer caught(&err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sealFor)
		defer cancel()
		encoded, err := encode(ctx, codec, part, t.ID, t.Kind, []byte(text))
		return string(encoded), err
	}
}

// open decrypts the args of a task in place.
func (c codecs) open(ctx context.Context, t *worker.Task) error {
	if !sealed.Is(t.Args) {
		return nil
	}
	plain, err := c.decode(ctx, sealed.Args, t.ID, t.Kind, t.Args)
	if err == nil {
		t.Args = plain
	}
	return err
}

// inTheClear reports whether the text of an error that ends an attempt at an encrypted job contains nothing of the job.
func inTheClear(err error) bool {
	var own *undecrypted
	return err == ErrUnknownKind || errors.As(err, &own)
}

// shown returns an error for logs: of an encrypted job only its type, because its text may contain what is encrypted.
func shown(meta JobMeta, err error) string {
	var late *worker.TimedOut
	switch {
	case !meta.Encrypted || inTheClear(err):
		return fmt.Sprint(err)
	case errors.As(err, &late):
		return late.Error()
	}
	return fmt.Sprintf("%T: its text is encrypted with the job", innermost(err))
}

// innermost returns the error in which others are wrapped, whose type says the most.
func innermost(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// shownPanic returns the value of a panic and its stack for logs: of an encrypted job without the values of variables.
func shownPanic(meta JobMeta, value any, stack []byte) []any {
	if !meta.Encrypted {
		return []any{"panic", value, "stack", string(stack)}
	}
	var calls strings.Builder
	for line := range strings.Lines(string(stack)) {
		if at := strings.LastIndexByte(line, '('); at >= 0 && !strings.HasPrefix(line, "\t") && strings.HasSuffix(line, ")\n") {
			line = line[:at] + "(...)\n"
		}
		calls.WriteString(line)
	}
	return []any{"panic", fmt.Sprintf("%T: its text is encrypted with the job", value), "stack", calls.String()}
}
