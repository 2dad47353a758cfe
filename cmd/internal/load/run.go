package load

import (
	"context"
	"errors"
	"os"
	"runtime/pprof"
)

// Run opens a database, measures there, and closes it. Unless profile is "", it writes a CPU profile of this process to that file.
func Run(ctx context.Context, c Config, profile string, measure func(*Database) error, engines ...Engine) (err error) {
	d, err := Open(ctx, c, engines...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if profile != "" {
		file, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return measure(d)
}
