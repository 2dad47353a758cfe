//go:build unix

package embedded

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestALockEndsWithItsFile: also while a child that is about to become another program holds the file open.
func TestALockEndsWithItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := syscall.Dup(int(lock.Fd())) // as fork does
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	if _, err := tryLock(path); err != errLocked {
		t.Errorf("a file that is locked can be locked: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatalf("a file whose lock is given up: %v", err)
	}
	again.Close()
}
