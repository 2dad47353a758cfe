package pgtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/embedded"
)

// JIT returns a server, of the test's own as Server's are, that can compile its plans, as those that distributions build can and those that
// are fetched can't: that of WEIR_POSTGRES, or else one that is installed. Without any the test is skipped, or fails where
// WEIR_TEST_REQUIRE has the word jit.
func JIT(t testing.TB, parameters map[string]string) *embedded.Server {
	t.Helper()
	for _, home := range append([]string{os.Getenv("WEIR_POSTGRES")}, embedded.Installed()...) {
		// Debian's packages have it beside the server, others in lib/pgsql, macOS's under another ending.
		for _, pattern := range []string{"lib/llvmjit.*", "lib/*/llvmjit.*"} {
			if found, _ := filepath.Glob(filepath.Join(home, pattern)); home != "" && len(found) > 0 {
				return serve(t, home, parameters)
			}
		}
	}
	const missing = "no PostgreSQL with JIT is installed: install a distribution's, such as Debian's package postgresql, or name one in WEIR_POSTGRES"
	if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "jit") {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return nil
}
