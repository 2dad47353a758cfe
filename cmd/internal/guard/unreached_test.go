package guard

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestARuleThatNeverAppliesIsNamedWithItsLine: one behind a rule that matches all that it matches, and one for what the cluster does not have.
func TestARuleThatNeverAppliesIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Server(t, nil).URL("postgres"))
	for policy, want := range map[string][]string{
		"interval = \"1s\"\n\n[[rule]]\nname = \"all\"\naction = \"report\"\n[[rule]]\nroles = [\"postgres\"]": {`line 6: rule "rule 2": it never applies: rule "all" of line 3, before it, matches all that it matches`},
		"[[rule]]\nroles = [\"post*\"]\n[[rule]]\nroles = [\"postgres\"]":                                      {`line 3: rule "rule 2": it never applies: rule "rule 1" of line 1`},
		"[[rule]]\nroles = [\"reporting\"]":                                                                    {`line 1: rule "rule 1": it never applies: no role here matches "reporting"`},
		"[[rule]]\nroles = [\"reporting\", \"bi_*\", \"postgres\"]":                                            {`line 1: rule "rule 1": no role here matches "reporting" or "bi_*"`},
		"[[rule]]\ndatabases = [\"shop\"]":                                                                     {`it never applies: no database here matches "shop"`},
		"[[rule]]\non = \"standby\"":                                                                           {"it is for standbys, and none is given with --standby"},
		"rule = [{roles = [\"reporting\"]}]":                                                                   {`rule "rule 1": it never applies`},
		"[[rule]]\nclients = [\"10.0.0.0/8\"]\n[[rule]]\nclients = [\"10.1.0.0/16\", \"10.2.3.4\"]":            {`line 3: rule "rule 2": it never applies`},

		// These may apply.
		"[[rule]]\nroles = [\"postgres\"]\n[[rule]]\nroles = [\"post*\"]":                                        nil,
		"[[rule]]\nroles = [\"post*\"]\ndatabases = [\"postgres\"]\n[[rule]]\nroles = [\"postgres\"]":            nil,
		"[[rule]]\non = \"primary\"\n[[rule]]\nroles = [\"postgres\"]":                                           nil,
		"[[rule]]\nclients = [\"10.1.0.0/16\"]\n[[rule]]\nclients = [\"10.1.0.0/16\", \"local\"]":                nil,
		"[[rule]]\nclients = [\"10.1.0.0/16\"]\n[[rule]]\nclients = [\"10.0.0.0/8\"]":                            nil,
		"[[rule]]\napplications = [\"metabase*\"]\n[[rule]]\napplications = [\"meta*\"]\nroles = [\"p?stgres\"]": nil,
		"": nil,
	} {
		p, err := ParsePolicy(policy)
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(Config{Primary: Server{Name: "primary", DB: pool}, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		all, err := g.Unreached(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, u := range all {
			got = append(got, u.String())
		}
		if !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("%s\nis told %q, want %q", policy, got, want)
		}
	}
}
