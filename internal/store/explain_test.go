package store

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestAnErrorNamesOneRole: of calls within calls, the innermost one knows which role is missing.
func TestAnErrorNamesOneRole(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "42501", Message: "permission denied for function enqueue"}
	err := Explain(Explain(refused, "weir_enqueue"), "weir_hub")
	if text := err.Error(); !strings.HasSuffix(text, "grant this user the role weir_enqueue") || strings.Contains(text, "weir_hub") || !IsDenied(err) {
		t.Error(text)
	}
}
