package load

import "fmt"

// Plural returns "1 round" or "12 rounds".
func Plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}
