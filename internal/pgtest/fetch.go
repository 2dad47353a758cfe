package pgtest

import (
	"context"
	"fmt"
	"os/exec"
)

// Fetch is embedded.Config.Fetch for tests. It runs the downloader as a command, because that is in another module, whose dependencies the
// library does not need.
func Fetch(ctx context.Context, version, into string, _ func(done, total int64)) error {
	out, err := exec.CommandContext(ctx, "go", "run", "github.com/weir-pg/weir/cmd/internal/binaries/fetch", version, into).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
