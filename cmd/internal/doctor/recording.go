package doctor

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// RecordingVersion is the version of the format of recordings. A reader refuses all others.
const RecordingVersion = 1

// maxRecording bounds a recording, in bytes before compression, when it is written and when it is read.
const maxRecording = 256 << 20

// recordingFormat begins each recording.
const recordingFormat = "weir doctor recording"

// Recording is all that Doctor.Run saw of a server. Replaying it gives the same report, wherever and whenever.
type Recording struct {
	head recordingHead
	body recordingBody
}

// recordingHead is the first line, by which a file of another version is told.
type recordingHead struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	At      time.Time `json:"at"`
	// Statements says that it contains the texts of statements.
	Statements bool `json:"statements"`
}

// recordingBody is the second line.
type recordingBody struct {
	Tape     *tape                     `json:"tape"`
	Standbys []string                  `json:"standbys,omitempty"`
	Samples  []Sample                  `json:"samples"`
	Probes   []Probe                   `json:"probes"`
	Keys     map[uint32]map[string]int `json:"keys,omitempty"` // of hot rows, by table
	Denied   map[uint32]bool           `json:"denied,omitempty"`
}

// At returns when the recording was made.
func (r *Recording) At() time.Time { return r.head.At }

// errTooLarge is the error of a recording that is larger than maxRecording.
var errTooLarge = fmt.Errorf("it is larger than %d MiB: record for a shorter time", maxRecording>>20)

// bounded writes up to maxRecording bytes.
type bounded struct {
	w io.Writer
	n int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.n += len(p); b.n > maxRecording {
		return 0, errTooLarge
	}
	return b.w.Write(p)
}

// Write writes the recording. It ends with a checksum, so a part of it is not taken for the whole.
func (r *Recording) Write(w io.Writer) error {
	compressed := gzip.NewWriter(w)
	out := json.NewEncoder(&bounded{w: compressed})
	err := out.Encode(r.head)
	if err == nil {
		err = out.Encode(r.body)
	}
	if err == nil {
		err = compressed.Close()
	}
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	return nil
}

// ReadRecording reads a recording that Write has written.
func ReadRecording(from io.Reader) (*Recording, error) {
	whole, err := gzip.NewReader(from)
	if err != nil {
		return nil, errors.New("it is not a recording of weir doctor --record")
	}
	limited := &io.LimitedReader{R: whole, N: maxRecording + 1}
	in := bufio.NewReaderSize(limited, 4096)
	r := &Recording{}
	head, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return nil, errCutOff
	case err != nil || json.Unmarshal(head, &r.head) != nil || r.head.Format != recordingFormat:
		return nil, errors.New("it is not a recording of weir doctor --record")
	case r.head.Version != RecordingVersion:
		return nil, fmt.Errorf("it is a recording of version %d, and this weir reads version %d: replay it with the weir that made it", r.head.Version, RecordingVersion)
	}
	text, err := io.ReadAll(in)
	switch {
	case limited.N == 0:
		return nil, errTooLarge
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errCutOff
	case err != nil:
		return nil, fmt.Errorf("it is damaged: %w: copy it again", err)
	}
	if err := json.Unmarshal(text, &r.body); err != nil {
		return nil, fmt.Errorf("it is damaged: %w: copy it again", err)
	}
	if r.body.Tape == nil {
		return nil, errors.New("it is damaged: it has no answers of the server: copy it again")
	}
	return r, nil
}

var errCutOff = errors.New("it is cut off: copy it again, completely")

// Replay judges the recording, as Run judged what it saw. Nothing but Report.Replay differs.
func (r *Recording) Replay(ctx context.Context) (Report, error) {
	t := &tape{Told: r.body.Tape.Told}
	t.rewind()
	d := &Doctor{meter: new(meter), tape: t}
	d.session = &session{meter: d.meter, tape: t}
	var err error
	if d.server, err = readServer(ctx, d.session); err != nil {
		return Report{}, fmt.Errorf("replay the recording: %w", err)
	}
	d.local = findLocal(d.server, t)
	d.sampler = &Sampler{session: &session{meter: d.meter}, window: &window{}}
	d.hot = &hotRows{database: d.server.databaseOID, withheld: !r.head.Statements, keys: r.body.Keys, denied: r.body.Denied}
	for _, at := range r.body.Standbys {
		d.standbys = append(d.standbys, standby{at, &session{name: at, meter: d.meter, tape: t}})
	}
	first := d.read(ctx)
	last := d.read(ctx)
	report := d.examine(ctx, view{r.body.Samples, r.body.Probes}, first, last)
	report.Replay = true
	return report, ctx.Err()
}

// record keeps what was judged, in addition to what the tape remembers.
func (d *Doctor) record(v view) {
	r := &Recording{
		head: recordingHead{Format: recordingFormat, Version: RecordingVersion, At: d.clock.now(), Statements: !d.config.WithoutStatements},
		body: recordingBody{Tape: d.tape, Samples: v.samples, Probes: v.probes},
	}
	for _, s := range d.standbys {
		r.body.Standbys = append(r.body.Standbys, s.at)
	}
	r.body.Keys, r.body.Denied = d.hot.found()
	d.recording = r
}

// Recording returns what Run has seen; nil if Config.Record is not set, or Run has not returned a report.
func (d *Doctor) Recording() *Recording { return d.recording }
