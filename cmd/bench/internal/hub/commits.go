package hub

import (
	"sync/atomic"
	"time"
)

// commits are the times at which the newest messages were committed, by their numbers.
type commits struct {
	base time.Time
	at   []atomic.Int64 // ns since base, by number modulo the length; 0: not yet
}

// commitsOf remembers the last n messages.
func commitsOf(n int) *commits { return &commits{time.Now(), make([]atomic.Int64, n)} }

func (c *commits) of(number int64) *atomic.Int64 { return &c.at[number%int64(len(c.at))] }

// begin is called before a message is published, note when its commit was answered.
func (c *commits) begin(number int64) { c.of(number).Store(0) }
func (c *commits) note(number int64)  { c.of(number).Store(max(int64(time.Since(c.base)), 1)) }

// ago returns how long ago a message was committed; 0 if it was received before the answer to the commit.
func (c *commits) ago(number int64) time.Duration {
	at := c.of(number).Load()
	if at == 0 {
		return 0
	}
	return time.Since(c.base) - time.Duration(at)
}
