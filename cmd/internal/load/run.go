package load

import (
	"context"
	"errors"
	"os"
	"runtime/pprof"
)

// Run opens a database, has something measured there, and closes it. A CPU profile of this process is written to a file meanwhile, unless profile is "".
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
