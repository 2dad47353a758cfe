package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// versions are the releases that can be fetched, by the major versions that Weir supports.
var versions = map[int]string{
	18: "18.3.0",
	17: "17.5.0",
	16: "16.9.0",
	15: "15.13.0",
	14: "14.18.0",
}

// Installed lists the directories in which distribution packages install a PostgreSQL server, newest version first. WEIR_POSTGRES may be
// set to any of them.
func Installed() []string {
	var homes []string
	for _, pattern := range []string{"/usr/lib/postgresql/*", "/usr/pgsql-*", "/opt/homebrew/opt/postgresql@*", "/usr/local/opt/postgresql@*"} {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		homes = append(homes, found...)
	}
	homes = slices.DeleteFunc(homes, func(home string) bool { return complete(home) != nil })
	slices.SortStableFunc(homes, func(a, b string) int { return trailingNumber(b) - trailingNumber(a) })
	return homes
}

func trailingNumber(path string) int {
	n, _ := strconv.Atoi(path[strings.LastIndexFunc(path, func(r rune) bool { return r < '0' || r > '9' })+1:])
	return n
}

// findBinaries returns a directory that contains bin/postgres and bin/initdb, and their major version. It uses the directory named in the
// configuration, or else the one in WEIR_POSTGRES, the cached ones, or newly fetched ones. A major of 0 means that of the installed
// binaries, or 18.
func findBinaries(ctx context.Context, c Config) (home string, found int, err error) {
	named, major := c.Binaries, c.Major
	installed, by := named, ""
	if installed == "" {
		installed, by = os.Getenv("WEIR_POSTGRES"), "WEIR_POSTGRES="
	}
	passed := "" // why installed binaries were not used
	if installed != "" {
		if found, err = majorOf(ctx, installed); err != nil {
			return "", 0, fmt.Errorf("find postgres in %s%s: %w: it must name a directory with bin/postgres and bin/initdb", by, installed, err)
		}
		if major == 0 || found == major {
			return installed, found, nil
		}
		passed = fmt.Sprintf(" (%s%s is PostgreSQL %d)", by, installed, found)
		if named != "" {
			return "", 0, fmt.Errorf("find postgres %d%s: name a directory with that version, or no version", major, passed)
		}
	}
	if major == 0 {
		major = defaultMajor
	}
	home, err = cached(ctx, major, passed, c)
	return home, major, err
}

// cached returns the directory of binaries that were fetched, now or earlier.
func cached(ctx context.Context, major int, passed string, c Config) (string, error) {
	version, ok := versions[major]
	if !ok {
		return "", fmt.Errorf("find postgres: version %d can't be fetched%s: use 14 to 18, or set WEIR_POSTGRES to an installed version, such as /usr/lib/postgresql/%d",
			major, passed, major)
	}
	root, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("find postgres: %w", err)
	}
	home := filepath.Join(root, fmt.Sprintf("%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if complete(home) == nil {
		return home, nil
	}
	// Other processes may need the same binaries now, like the packages of one go test: one fetches them, the others wait.
	lock, err := lockFile(ctx, home+".lock")
	if err != nil {
		return "", fmt.Errorf("find postgres: %w", err)
	}
	defer lock.Close()
	if complete(home) == nil {
		return home, nil
	}
	if c.Fetch == nil {
		return "", fmt.Errorf("find PostgreSQL %s%s: it is not in %s, and this program can't fetch it: set WEIR_POSTGRES to an installed version, such as /usr/lib/postgresql/%d",
			version, passed, root, major)
	}
	if err := fetch(ctx, version, home, c); err != nil {
		return "", fmt.Errorf("fetch PostgreSQL %s%s: %w: if downloads are not possible, set WEIR_POSTGRES to an installed version, such as /usr/lib/postgresql/%d",
			version, passed, err, major)
	}
	return home, nil
}

// fetch installs a version in home, completely or not at all.
func fetch(ctx context.Context, version, home string, c Config) error {
	stage, err := os.MkdirTemp(filepath.Dir(home), "fetch-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	unpacked := filepath.Join(stage, "postgres")
	if err := c.Fetch(ctx, version, unpacked, c.Progress); err != nil {
		return err
	}
	if err := complete(unpacked); err != nil {
		return err
	}
	if err := openModes(unpacked); err != nil {
		return err
	}
	return os.Rename(unpacked, home)
}

// complete returns nil if home contains binaries. They are moved there by one rename, so they are complete.
func complete(home string) error {
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(home, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

var versionOutput = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

// majorOf returns the major version that the binaries in home report.
func majorOf(ctx context.Context, home string) (int, error) {
	if err := complete(home); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(home, "bin", "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	m := versionOutput.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("postgres --version printed %q", out)
	}
	return strconv.Atoi(string(m[1]))
}

// cacheDir returns this user's directory for binaries. Since they are executed, no other user may be able to write there.
func cacheDir() (string, error) {
	var candidates []string
	switch {
	case runsAsRoot() && runtime.GOOS == "darwin":
		candidates = append(candidates, "/Library/Caches/weir/postgres")
	case runsAsRoot():
		// The server's user can't read root's own cache.
		candidates = append(candidates, "/var/cache/weir/postgres", "/var/tmp/weir-postgres-0")
	default:
		if dir, err := os.UserCacheDir(); err == nil {
			candidates = append(candidates, filepath.Join(dir, "weir", "postgres"))
		}
		candidates = append(candidates, filepath.Join(os.TempDir(), fmt.Sprintf("weir-postgres-%d", os.Getuid())))
	}
	var errs []error
	for _, dir := range candidates {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = checkPrivate(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("find a directory for the binaries: %w", errors.Join(errs...))
}

// openModes sets the modes of all directories and files below home to those of a distribution's binaries: readable by all, writable only by
// the owner, whatever the umask was.
func openModes(home string) error {
	return filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.IsDir() || info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}

// lockFile waits for the lock on a file, which it creates if necessary.
func lockFile(ctx context.Context, path string) (io.Closer, error) {
	for {
		lock, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another process to fetch the binaries (%s): %w", path, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
