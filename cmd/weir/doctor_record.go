package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// check refuses flags that have no meaning together, other than those that exclude each other by their tags.
func (c *doctorCmd) check() error {
	switch {
	case c.List != "" && (c.Watch || c.Record != "" || c.Replay != "" || len(c.Standby) > 0):
		return usagef("--watch, --record, --replay and --standby are about one database: use them without --list, once for each; --listen-metrics watches a list")
	case c.List == "-" && c.ListenMetrics != "":
		return usagef("--list - can be read only once, and --listen-metrics reads the list again and again: write it to a file")
	case c.Replay != "" && c.Record != "" && !c.WithoutStatements:
		return usagef("--replay and --record together leave the statements out of a recording: add --without-statements, or copy the file")
	case c.Replay != "" && len(c.Standby) > 0:
		return usagef("--standby applies to recording: a replay asks no server")
	case c.ListenMetrics != "" && (c.For != 0 || c.Once || c.Record != "" || c.Replay != "" || c.JSON):
		return usagef("--listen-metrics runs until Ctrl-C: use it alone or with --watch")
	}
	return nil
}

// replay reports on a recording. With --without-statements it leaves them out, and with --record it writes what is left.
func (c *doctorCmd) replay(ctx context.Context, s *streams) error {
	file, err := os.Open(c.Replay)
	if err != nil {
		return usagef("--replay: %w", err)
	}
	defer file.Close()
	recording, err := doctor.ReadRecording(file)
	if err != nil {
		return usagef("--replay %s: %w", c.Replay, err)
	}
	if c.WithoutStatements {
		if recording, err = recording.WithoutStatements(); err != nil {
			return err
		}
	}
	report, err := recording.Replay(ctx)
	if err != nil {
		return err
	}
	if c.Record != "" {
		written, err := createRecording(c.Record)
		if err != nil {
			return err
		}
		defer written.discard()
		if err := written.keep(recording); err != nil {
			return err
		}
		fmt.Fprintln(s.err, "weir: recorded in "+c.Record)
	}
	return c.print(s, report)
}

// recordingFile is a file that gets its name once it is complete. It is created before the run, so that one that can't be written is no surprise at its end.
type recordingFile struct {
	file *os.File // only its owner may read it: it may contain what is confidential
	name string
}

func createRecording(name string) (*recordingFile, error) {
	if _, err := os.Lstat(name); err == nil {
		return nil, usagef("--record %s: the file exists already, and a recording can't be made again: name another one, or remove it", name)
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".weir-recording-*")
	if err != nil {
		return nil, usagef("--record %s: %w", name, err)
	}
	return &recordingFile{file, name}, nil
}

func (f *recordingFile) keep(r *doctor.Recording) error {
	err := r.Write(f.file)
	if closeErr := f.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.file.Name(), f.name)
	}
	if err != nil {
		return fmt.Errorf("--record %s: %w", f.name, err)
	}
	return nil
}

// discard removes the file unless it was kept.
func (f *recordingFile) discard() {
	_ = f.file.Close()
	_ = os.Remove(f.file.Name()) // not found, if it has its name by now
}
