//go:build !linux && !darwin

package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

var (
	errLocked      = errors.New("locked by another process")
	errUnsupported = fmt.Errorf("Weir cannot start a private PostgreSQL server on %s: start a server yourself, and give Weir its URL", runtime.GOOS)
)

func supported() error { return errUnsupported }

func runsAsRoot() bool                 { return false }
func checkPrivate(string) error        { return errUnsupported }
func tryLock(string) (*os.File, error) { return nil, errUnsupported }
func alive(int) bool                   { return false }
func isPostmaster(int, string) bool    { return false }

type owner struct{}

func pickOwner() (*owner, error)          { return nil, errUnsupported }
func ownerOf(string) (*owner, error)      { return nil, errUnsupported }
func (*owner) as() string                 { return "" }
func (*owner) own(string) error           { return errUnsupported }
func (*owner) reach(string) error         { return errUnsupported }
func (*owner) elsewhere() (string, error) { return "", errUnsupported }

func run(context.Context, string, []string, *owner) error { return errUnsupported }

type process struct {
	done, gone chan struct{}
	err        error
}

func startProcess(string, []string, *os.File, *owner) (*process, error) { return nil, errUnsupported }

func (*process) pid() int   { return 0 }
func (*process) interrupt() {}
func (*process) quit()      {}
func (*process) kill()      {}
