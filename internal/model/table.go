package model

// noRoom is the panic of a state without room for what a step adds. Scenarios have so little to do that it never occurs; a replay of a real run,
// which may do anything, ends where it occurs.
type noRoom string

func (n noRoom) Error() string {
	return "model: " + string(n) + ": give the scenario less to do, or more room"
}

// table is a small set of rows without pointers, so that states can be compared and copied as a whole.
type table[T comparable] struct {
	n   uint8
	row [16]T
}

func (t *table[T]) all() []T { return t.row[:t.n] }

func (t *table[T]) add(row T) *T {
	if int(t.n) == len(t.row) {
		panic(noRoom("a table is full"))
	}
	t.row[t.n] = row
	t.n++
	return &t.row[t.n-1]
}

// keep removes the rows that do not satisfy the condition.
func (t *table[T]) keep(satisfies func(*T) bool) {
	n := uint8(0)
	for i := range t.all() {
		if satisfies(&t.row[i]) {
			t.row[n] = t.row[i]
			n++
		}
	}
	var none T
	for i := n; i < t.n; i++ {
		t.row[i] = none
	}
	t.n = n
}

func (t *table[T]) remove(i int) {
	copy(t.row[i:t.n], t.row[i+1:t.n])
	var none T
	t.n--
	t.row[t.n] = none
}

// sort sorts rows by their keys.
func (t *table[T]) sort(key func(*T) uint64) {
	var keys [16]uint64
	for i := range t.all() {
		k, row := key(&t.row[i]), t.row[i]
		j := i
		for ; j > 0 && keys[j-1] > k; j-- {
			t.row[j], keys[j] = t.row[j-1], keys[j-1]
		}
		t.row[j], keys[j] = row, k
	}
}
