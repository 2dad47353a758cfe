//go:build unix

package embedded

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestALockEndsWithItsFile: closing a locked file releases the lock, even while a forked child that has not reached its exec holds the file open.
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
		t.Errorf("locking a locked file: %v, want that it is locked", err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatalf("locking a file whose lock was released: %v", err)
	}
	again.Close()
}
