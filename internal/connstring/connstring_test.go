package connstring

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestWhatIsWrongIsSaidWithoutThePassword: whatever is wrong, and whatever the password contains.
func TestWhatIsWrongIsSaidWithoutThePassword(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgress://app:se:cret@db/shop":           `it begins with "postgress://", and must begin with postgres:// or postgresql://`,
		"mysql://app:se@cret@db/shop":               `it begins with "mysql://", and must begin with postgres://`,
		"postgres://app:secret@db:port/shop":        "invalid port",
		"postgres://app:secret@[::1/shop":           "matching",
		"secret":                                    "neither a URL nor a list of keyword=value",
		"host=db password=top secret port=1":        "in single quotes",
		"host=db password=secret sslmode=maybe":     "sslmode is invalid",
		"postgres://app:secret@db?pool_max_conns=x": "cannot parse pool_max_conns",
	} {
		_, err := pgxpool.ParseConfig(text)
		if err == nil {
			t.Errorf("%q can be read", text)
			continue
		}
		said := Invalid(err).Error()
		if !strings.Contains(said, want) || strings.Contains(said, "cret") || strings.Contains(said, "top ") {
			t.Errorf("of %q it says: %s", text, said)
		}
	}
}
