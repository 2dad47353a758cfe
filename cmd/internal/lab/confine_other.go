//go:build !linux

package lab

import "errors"

const canConfine = false

func confine(int, int) (undo func() error, err error) {
	return nil, errors.New("only Linux can keep a process to some of the cores")
}
