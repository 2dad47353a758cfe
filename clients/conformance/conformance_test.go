package conformance

import (
	"flag"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// A client that this repository does not know is named by these.
var (
	command = flag.String("driver", "", "the command of your client's driver, run by a shell in -dir")
	via     = flag.String("via", "sql", "which way jobs take: sql or http")
	dir     = flag.String("dir", "", "the directory of the driver; default: that of this package")
)

func TestMain(m *testing.M) {
	flag.Parse()
	pgtest.Main(m)
}

// TestTheSuite: a client passes all scripts of the suite: the Go library, or the one of the flags -driver and -via.
func TestTheSuite(t *testing.T) {
	t.Parallel()
	if *via != "sql" && *via != "http" {
		t.Fatalf("-via is %q, want sql or http", *via)
	}
	all := []client{goClient(t, "sql")}
	if thorough() {
		all = append(all, goClient(t, "http")) // which is the hub's own test
	}
	if *command != "" {
		all = []client{{"yours", []string{"sh", "-c", *command}, *dir, *via}}
	}
	for _, c := range all {
		t.Run(c.name+" over "+c.via, func(t *testing.T) { run(t, c) })
	}
}
