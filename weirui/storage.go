package weirui

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

func storageEndpoints() []endpoint { return []endpoint{page("storage", showStorage)} }

// storageFresh is how long sizes are shown again: they change slowly.
const storageFresh = 5 * time.Second

// logNames say what is in a log.
var logNames = map[string]string{"job": "Jobs", "later": "Scheduled jobs", "failure": "Failed jobs", "report": "Progress and logs of attempts", "message": "Messages", "flow": "Flows", "control": "Everything else"}

// logStorage is what a log takes on disk.
type logStorage struct {
	Log        string        `json:"log"`
	Bytes      int64         `json:"bytes"`
	IndexBytes int64         `json:"index_bytes"`
	Oldest     *time.Time    `json:"oldest,omitempty"` // when its oldest segment was opened
	Segments   []segmentInfo `json:"segments,omitempty"`
}

// Name says what is in the log.
func (l logStorage) Name() string {
	if name := logNames[l.Log]; name != "" {
		return name
	}
	return l.Log
}

// Size is the log's size, for people.
func (l logStorage) Size() string { return byteSize(l.Bytes) }

// IndexSize is the size of the log's indexes, for people.
func (l logStorage) IndexSize() string { return byteSize(l.IndexBytes) }

// segmentInfo is a segment with why it is still there.
type segmentInfo struct {
	weir.StorageInfo
	HeldBy string `json:"held_by,omitempty"` // why it has not been reclaimed yet; "": it is not overdue
}

// Size is the segment's size, for people.
func (s segmentInfo) Size() string { return byteSize(s.Bytes) }

// Full is how full the segment is, in percent of the size at which the next one is opened.
func (s segmentInfo) Full() int {
	if s.MaxBytes == 0 {
		return 0
	}
	return int(min(s.Bytes*100/s.MaxBytes, 100))
}

// MaxSize is the size at which the next segment is opened, for people.
func (s segmentInfo) MaxSize() string { return byteSize(s.MaxBytes) }

// storage is what the page shows.
type storage struct {
	Bytes    int64          `json:"bytes"`
	Logs     []logStorage   `json:"logs"`
	Settings []weir.Setting `json:"settings"`
}

// Size is the size of all of Weir's tables, for people.
func (s storage) Size() string { return byteSize(s.Bytes) }

// HeldBy are the segments that should have been reclaimed.
func (s storage) HeldBy() (held []segmentInfo) {
	for _, l := range s.Logs {
		for _, g := range l.Segments {
			if g.HeldBy != "" {
				held = append(held, g)
			}
		}
	}
	return held
}

func showStorage(v *visit) (*view, error) {
	found, err := readAged(v.Context(), v.db, "storage", storageFresh, v.storage)
	if err != nil {
		return nil, err
	}
	return &view{template: "storage", title: "Storage", data: *found}, nil
}

func (v *visit) storage(ctx context.Context) (*storage, error) {
	rows, err := v.db.client.Storage(ctx)
	if err != nil {
		return nil, err
	}
	settings, err := v.db.client.Settings(ctx)
	if err != nil {
		return nil, err
	}
	s := &storage{Logs: []logStorage{}, Settings: []weir.Setting{}}
	for _, k := range settings {
		if k.Queue == "" && (strings.HasSuffix(k.Name, "retention") || strings.HasSuffix(k.Name, "bytes")) {
			s.Settings = append(s.Settings, k)
		}
	}
	workers := "" // why nothing is reclaimed, if that is because no worker runs
	if slices.ContainsFunc(rows, isOverdue) {
		all, err := v.db.client.Workers(ctx)
		if err != nil {
			return nil, err
		}
		if !anyAlive(all) {
			workers = "No worker runs, and nothing else reclaims segments: start one."
		}
	}
	for _, r := range rows {
		if len(s.Logs) == 0 || s.Logs[len(s.Logs)-1].Log != r.Log {
			s.Logs = append(s.Logs, logStorage{Log: r.Log})
		}
		l := &s.Logs[len(s.Logs)-1]
		s.Bytes += r.Bytes
		l.Bytes += r.Bytes
		l.IndexBytes += r.IndexBytes
		if r.Segment == 0 {
			continue
		}
		if r.OpenedAt != nil && (l.Oldest == nil || r.OpenedAt.Before(*l.Oldest)) {
			l.Oldest = r.OpenedAt
		}
		l.Segments = append(l.Segments, segmentInfo{StorageInfo: r, HeldBy: heldBy(r, workers)})
	}
	return s, nil
}

// overdueAfter is how long after its time a segment counts as held back: those who reclaim it look every few seconds.
const overdueAfter = 10 * time.Second

func isOverdue(s weir.StorageInfo) bool {
	return s.ReclaimAt != nil && time.Since(*s.ReclaimAt) > overdueAfter
}

// heldBy says what keeps a segment from being reclaimed, and what to do; "": nothing does.
func heldBy(s weir.StorageInfo, workers string) string {
	var pids []string
	for _, pid := range s.Holders {
		if pid != 0 {
			pids = append(pids, strconv.Itoa(int(pid)))
		}
	}
	switch {
	case !isOverdue(s):
		return ""
	case len(pids) > 0:
		return fmt.Sprintf("A transaction holds it, and has to end: SELECT pid, usename, application_name, state, xact_start, query FROM pg_stat_activity WHERE pid IN (%s)", strings.Join(pids, ", "))
	case len(s.Holders) > 0:
		return "A prepared transaction holds it, and has to be committed or rolled back: SELECT * FROM pg_prepared_xacts"
	case workers != "":
		return workers
	case s.Log == "job":
		return "It is reclaimed once fewer than 10,000 of its jobs are running, and what waits in it has been carried on, 10,000 jobs at a time."
	}
	return "It is reclaimed at the next opportunity."
}

// byteSize is a size in one unit.
func byteSize(n int64) string {
	size, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for ; size >= 1024 && len(units) > 1; size /= 1024 {
		units = units[1:]
	}
	if size >= 100 || n < 1024 {
		return fmt.Sprintf("%.0f %s", size, units[0])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", size), ".0") + " " + units[0]
}

// storageSettings are the settings of the page, and what they say before their values.
var storageSettings = []struct{ name, before string }{
	{"completed_retention", "Keeps completed and cancelled jobs for"},
	{"failed_retention", "Keeps failed jobs for"},
	{"retention_bytes", "Keeps jobs and their history up to"},
	{"message_retention", "Keeps messages for"},
	{"message_retention_bytes", "Keeps messages up to"},
	{"message_bytes", "Takes messages up to"},
}

// Says are the settings in words.
func (s storage) Says() (all []condition) {
	for _, known := range storageSettings {
		for _, k := range s.Settings {
			if k.Name != known.name {
				continue
			}
			value := hoursOf(k.Value)
			if n, err := strconv.ParseInt(k.Value, 10, 64); err == nil {
				value = byteSize(n)
			}
			all = append(all, condition{k.Name, known.before + " " + value})
		}
	}
	return all
}

// clockTime is how PostgreSQL writes the part of an interval that is shorter than a day.
var clockTime = regexp.MustCompile(`(\d+):(\d\d):(\d\d)(\.\d+)?$`)

// hoursOf is an interval in words: 01:30:00 is 1 hour 30 minutes.
func hoursOf(interval string) string {
	return clockTime.ReplaceAllStringFunc(interval, func(text string) string {
		parts := clockTime.FindStringSubmatch(text)
		var words []string
		for i, unit := range []string{"hour", "minute", "second"} {
			n, _ := strconv.Atoi(parts[i+1]) // digits; too many are 0
			if n == 1 {
				words = append(words, "1 "+unit)
			} else if n > 1 {
				words = append(words, number(n)+" "+unit+"s")
			}
		}
		if len(words) == 0 {
			return "0 seconds"
		}
		return strings.Join(words, " ")
	})
}
