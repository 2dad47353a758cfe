package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress is a line on standard error: overwritten on a terminal, otherwise printed every ten seconds. All other output to standard error
// is written through it in the meantime, above the line.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	file     *os.File // the terminal; nil: none
	line     string   // shown on the terminal
	lastAt   time.Time
	lastLine string
}

const (
	redrawEvery = 100 * time.Millisecond
	plainEvery  = 10 * time.Second
)

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, lastAt: time.Now()}
	if f, ok := isTerminal(w); ok {
		p.file, p.lastAt = f, time.Time{}
	}
	return p
}

// show replaces the line, at a readable rate.
func (p *progress) show(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	every := plainEvery
	if p.file != nil {
		every = redrawEvery
	}
	if time.Since(p.lastAt) < every {
		return
	}
	line := fmt.Sprintf(format, args...)
	if line == p.lastLine {
		return
	}
	p.lastAt, p.lastLine = time.Now(), line
	if p.file == nil {
		fmt.Fprintln(p.w, line)
		return
	}
	p.clear()
	p.draw(line)
}

// done removes the line.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// Write writes above the line.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.line
	p.clear()
	n, err := p.w.Write(text)
	if line != "" && bytes.HasSuffix(text, []byte("\n")) {
		p.draw(line)
	}
	return n, err
}

// draw and clear are called with mu held.
func (p *progress) draw(line string) {
	if width, _, err := term.GetSize(int(p.file.Fd())); err == nil && width > 1 {
		if runes := []rune(line); len(runes) >= width {
			line = string(runes[:width-1])
		}
	}
	p.line = line
	fmt.Fprint(p.w, line)
}

func (p *progress) clear() {
	if p.line != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.line = ""
	}
}
