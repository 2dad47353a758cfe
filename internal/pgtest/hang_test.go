package pgtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const hangs = "WEIR_TEST_HANGS"

// TestHangs hangs if it is told to.
func TestHangs(t *testing.T) {
	t.Parallel()
	if os.Getenv(hangs) == "" {
		t.Skip("it is run by another test")
	}
	mustEndWithin(t, time.Second)
	<-t.Context().Done()
}

// TestATestThatHangsIsNamed: with the place where it hangs.
func TestATestThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHangs$")
	child.Env = append(os.Environ(), hangs+"=1")
	out, err := child.CombinedOutput()
	for _, want := range []string{"TestHangs has not ended within 1s", "hang_test.go"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("it ended with %v, and its output lacks %q:\n%s", err, want, out)
		}
	}
}

// TestWhatIsThereIsReceived: and so is the end of a channel.
func TestWhatIsThereIsReceived(t *testing.T) {
	t.Parallel()
	ready := make(chan int, 1)
	ready <- 7
	if got := Receive(t, ready, "a number"); got != 7 {
		t.Errorf("received %d, want 7", got)
	}
	close(ready)
	if got := Receive(t, ready, "the end"); got != 0 {
		t.Errorf("received %d from a closed channel", got)
	}
}
