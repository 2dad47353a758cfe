package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What a backup leaves out, according to the section "Making a Base Backup Using the Low Level API" of the PostgreSQL manual. The directories are
// kept, but empty: their contents belong to the running server or, for pg_wal, arrive by streaming.
var (
	emptied = []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}
	omitted = []string{"postmaster.pid", "postmaster.opts", "current_logfiles", "postgresql.auto.conf.tmp"}
)

// copyCluster copies the data directory of a running server, during a backup, into an existing empty directory. Files that vanish during
// the copy were dropped, and replay drops them too; replay also repairs pages that were written during the copy.
func copyCluster(ctx context.Context, from, to string, owner *owner) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || path == from {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case slices.Contains(omitted, name), strings.HasPrefix(entry.Name(), "pgsql_tmp"), strings.HasPrefix(entry.Name(), "pg_internal.init"):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case slices.Contains(emptied, filepath.Dir(name)) && entry.IsDir():
			return fs.SkipDir
		case slices.Contains(emptied, filepath.Dir(name)):
			return nil
		case entry.IsDir():
			return errors.Join(os.Mkdir(target, 0o700), owner.own(target))
		case entry.Type().IsRegular():
			return copyFile(path, target, owner)
		case filepath.Dir(name) == "pg_tblspc":
			return nil // stopping the backup returns its contents
		case name == "pg_wal": // may be a link to the WAL directory
			return errors.Join(os.Mkdir(target, 0o700), owner.own(target))
		default:
			return fmt.Errorf("copy %s: it is not a regular file", path)
		}
	})
}

func copyFile(from, to string, owner *owner) error {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close(), owner.own(to))
}
