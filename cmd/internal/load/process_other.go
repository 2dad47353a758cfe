//go:build !unix

package load

import "time"

func OwnCPU() (time.Duration, bool) { return 0, false }
func mostRSS() (int64, bool)        { return 0, false }
