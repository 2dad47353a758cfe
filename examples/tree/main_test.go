package main

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestATreeIsBuiltOnceHoweverManyPagesShareALink: each page is a row and a job that completes at its first attempt, every row's parent is there, and all sums are exact; a second run
// builds another tree.
func TestATreeIsBuiltOnceHoweverManyPagesShareALink(t *testing.T) {
	t.Parallel()
	const pages = 500
	url := pgtest.Empty(t)
	pool := pgtest.Pool(t, url)
	size := 0
	for n := range pages {
		size += 1000 + n%1000
	}
	for tree := 1; tree <= 2; tree++ {
		var out bytes.Buffer
		if err := run(t.Context(), url, pages, &out); err != nil {
			t.Fatal(err)
		}
		var parents, orphans, jobs, repeated int
		err := pool.QueryRow(t.Context(), `
			SELECT (SELECT count(DISTINCT n.parent) FROM node n WHERE n.tree = $1),
			       (SELECT count(*) FROM node n WHERE n.tree = $1 AND n.parent IS NOT NULL AND NOT EXISTS (SELECT FROM node p WHERE p.tree = n.tree AND p.path = n.parent)),
			       (SELECT i.completed FROM weir.flow_info($1) i), (SELECT count(*) FROM weir.jobs('completed', 'tree', 2000) WHERE attempt > 1)`, tree).
			Scan(&parents, &orphans, &jobs, &repeated)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("tree %d: %d nodes, %d of them with %d children, %d bytes\n", tree, pages, parents, pages-1, size); out.String() != want {
			t.Errorf("got %swant %s", out.String(), want)
		}
		if orphans != 0 || jobs != pages || repeated != 0 {
			t.Errorf("%d nodes without their parent, %d jobs completed, %d of them not at the first attempt", orphans, jobs, repeated)
		}
	}
}

// TestATreeOfOnePageHasNothingToCount: and the program ends.
func TestATreeOfOnePageHasNothingToCount(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), pgtest.Empty(t), 1, &out); err != nil {
		t.Fatal(err)
	}
	if want := "tree 1: 1 nodes, 0 of them with 0 children, 1000 bytes\n"; out.String() != want {
		t.Errorf("got %swant %s", out.String(), want)
	}
}

// TestATreeIsBuiltByAnApplicationsRole: Weir belongs to another role, and has been installed by that.
func TestATreeIsBuiltByAnApplicationsRole(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin := pgtest.Pool(t, database)
	to, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	user := strings.TrimPrefix(to.Path, "/") + "_app"
	if _, err := admin.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'secret' IN ROLE weir_work; CREATE SCHEMA %[1]s AUTHORIZATION %[1]s`, user)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(t.Context(), fmt.Sprintf(`DROP OWNED BY %[1]s; DROP ROLE %[1]s`, user)); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	to.User = url.UserPassword(user, "secret")
	var out bytes.Buffer
	if err := run(t.Context(), to.String(), 20, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "tree 1: 20 nodes, ") {
		t.Errorf("got %s", out.String())
	}
}
