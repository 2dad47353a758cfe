package lab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const nrHugePages = "/proc/sys/vm/nr_hugepages"

// reserveHuge reserves huge pages for one more server like the site's, if the machine has none free and this user may. It returns the number of
// free ones and a function that puts back what was reserved before, or a sentence that says why there are none.
func reserveHuge(ctx context.Context, r *run) (free int64, putBack func() error, why string) {
	putBack = func() error { return nil }
	free, ok := meminfo("HugePages_Free")
	switch {
	case !ok:
		return 0, putBack, "this system does not report whether it has any"
	case free > 0:
		return free, putBack, ""
	case r.Storm.NoReserve:
		return 0, putBack, "this machine has none reserved (vm.nr_hugepages), and the run must not reserve any"
	}
	before, err := readHuge()
	if err != nil {
		return 0, putBack, "this machine has none reserved (vm.nr_hugepages)"
	}
	need, ok := hugeNeeded(ctx, r.site)
	available, known := meminfo("MemAvailable")
	size, sized := meminfo("Hugepagesize")
	if !ok || !known || !sized || need*size > available/3 {
		return 0, putBack, fmt.Sprintf("this machine has none reserved (vm.nr_hugepages), and too little memory to reserve %d", need)
	}
	putBack = func() error { return writeHuge(before) }
	if err := writeHuge(before + need); err != nil {
		return 0, func() error { return nil }, "this machine has none reserved (vm.nr_hugepages), and only root can reserve some"
	}
	if free, _ = meminfo("HugePages_Free"); free < need {
		return 0, putBack, fmt.Sprintf("the system could reserve %d of %d huge pages only: its memory is fragmented", free, need)
	}
	r.note("%d huge pages were reserved for the run (vm.nr_hugepages), and put back to %d after it.", need, before)
	return free, putBack, ""
}

// hugeNeeded returns the number of huge pages for a server like the site's, and some to spare. Servers before 15 do not tell.
func hugeNeeded(ctx context.Context, s *site) (int64, bool) {
	var pages int64
	err := s.guard.QueryRow(ctx, `SELECT coalesce(nullif(current_setting('shared_memory_size_in_huge_pages', true), '')::bigint, pg_size_bytes(current_setting('shared_buffers')) / 2097152 * 5 / 4)`).Scan(&pages)
	return pages + pages/20 + 8, err == nil && pages > 0
}

func readHuge() (int64, error) {
	text, err := os.ReadFile(nrHugePages)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

func writeHuge(pages int64) error {
	return os.WriteFile(nrHugePages, []byte(strconv.FormatInt(pages, 10)), 0o644)
}
