package pgtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/embedded"
)

// JIT returns a server for this test alone, like Server, that can compile its plans. Servers built by distributions can, fetched ones
// can't. It uses the server in WEIR_POSTGRES, or else an installed one. If there is none, the test is skipped, or fails if
// WEIR_TEST_REQUIRE contains the word jit.
func JIT(t testing.TB, parameters map[string]string) *embedded.Server {
	t.Helper()
	for _, home := range append([]string{os.Getenv("WEIR_POSTGRES")}, embedded.Installed()...) {
		// Debian's packages install it next to the server, others in lib/pgsql; on macOS, the file extension differs.
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
