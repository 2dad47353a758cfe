//go:build !unix

package proof

import (
	"errors"
	"os"
)

func freeze(*os.Process) error { return errors.ErrUnsupported }
func thaw(*os.Process) error   { return errors.ErrUnsupported }
