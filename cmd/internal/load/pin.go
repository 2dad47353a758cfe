package load

import "fmt"

// Pin is a long transaction that keeps VACUUM from removing rows that died after it began.
type Pin struct {
	What string   // describes it
	SQL  []string // runs before it idles
}

// Pins are the kinds of long transactions, by name.
var Pins = map[string]Pin{
	"read":  {"a repeatable-read snapshot that only reads", []string{`BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY`, `SELECT count(*) FROM pg_class`}},
	"write": {"an idle transaction that holds an xid", []string{`BEGIN`, `SELECT pg_current_xact_id()`}},
}

// PinOf returns the pin with a name.
func PinOf(name string) (Pin, error) {
	pin, ok := Pins[name]
	if !ok {
		return pin, fmt.Errorf("%q is not a valid pin: use read (an old snapshot) or write (an idle transaction that holds an xid)", name)
	}
	return pin, nil
}
