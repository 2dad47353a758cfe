package lab

import "fmt"

// inRounds measures ways that take turns, and adds them to the result. It returns those that have been measured: if one of them fails, the others
// keep what they have measured by then, which is a round more for those whose turn comes first.
func inRounds[W any](r *run, rounds int, ways []W, measure func(W) error, sum func(W) *Way) (measured []W, err error) {
	turns := make([]int, len(ways))
	turn, i := 0, 0
	for ; turn < rounds && err == nil; turn++ {
		for i = 0; i < len(ways) && err == nil; i++ {
			err = measure(ways[i])
			turns[i]++
		}
	}
	if err != nil {
		turns[i-1] = 0 // its earlier rounds can't be told from the one that failed
		if rounds > 1 {
			err = fmt.Errorf("round %d of %d: %w", turn, rounds, err)
		}
	}
	for i, w := range ways {
		if turns[i] > 0 {
			measured = append(measured, w)
			r.result.Ways = append(r.result.Ways, sum(w))
		}
	}
	return measured, err
}
