package weirui

// Tests derive many keys, and other tests need the cores. How many iterations there are otherwise is tested with weir ui-password.
func init() { iterations = 10_000 }
