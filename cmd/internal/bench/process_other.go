//go:build !unix

package bench

import "time"

func ownCPU() (time.Duration, bool) { return 0, false }
func mostRSS() (int64, bool)        { return 0, false }
