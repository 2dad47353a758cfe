package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// starved says that the machine has no time for anybody, if that is why the postmaster's answers come late: then a statement of an open session, for which nothing
// is forked, comes as late. "" if that is not so.
func (l *inspection) starved(ctx context.Context, answer time.Duration) (string, error) {
	trip := l.view.probes[len(l.view.probes)-1].Trip
	const rounds = 5
	took := make([]time.Duration, rounds)
	for i := range took {
		begin := l.session.now()
		if _, err := scalars[int32](ctx, l.session, "SELECT 1"); err != nil {
			return "", fmt.Errorf("how long a statement takes that does nothing: %w", err)
		}
		took[i] = max(0, l.session.now().Sub(begin)-trip)
	}
	slices.Sort(took)
	statement := took[rounds/2]
	if statement < answer/2 {
		return "", nil
	}
	pressure := ""
	if waited, ok := l.local.cpuPressure(); ok {
		pressure = fmt.Sprintf("; in the last 10 s something on the machine waited for a CPU %.0f%% of the time (/proc/pressure/cpu)", waited)
	}
	return fmt.Sprintf("its first byte takes %s, but a statement of an open session that does nothing takes %s too, and hardly anybody connects: the machine, or the network, has no time for either%s: look what else runs there",
		span(answer), span(statement), pressure), nil
}

// cpuPressure returns for how much of the last 10 seconds something that could run waited for a CPU, in percent; false if the server is on another machine, or the
// kernel does not count it.
func (l *local) cpuPressure() (float64, bool) {
	if l.postmaster == 0 {
		return 0, false
	}
	text := recall(l.tape, "pressure on the CPUs", func() string {
		text, _ := os.ReadFile("/proc/pressure/cpu") // not all kernels have it
		return string(text)
	})
	_, rest, _ := strings.Cut(text, "some avg10=")
	figure, _, _ := strings.Cut(rest, " ")
	waited, err := strconv.ParseFloat(figure, 64)
	return waited, err == nil
}
