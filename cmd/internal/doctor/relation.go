package doctor

import (
	"context"
)

// relationNames resolves relations of this database; those of other databases remain unknown.
func relationNames(ctx context.Context, s *session, oids []uint32) (map[uint32]string, error) {
	if len(oids) == 0 {
		return nil, nil
	}
	type row struct {
		OID  uint32
		Name string
	}
	rows, err := list[row](ctx, s, `
SELECT c.oid, CASE WHEN n.nspname = 'public' THEN quote_ident(c.relname) ELSE quote_ident(n.nspname) || '.' || quote_ident(c.relname) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY ($1::oid[])`, oids)
	if err != nil {
		return nil, err
	}
	names := make(map[uint32]string, len(rows))
	for _, r := range rows {
		names[r.OID] = r.Name
	}
	return names, nil
}
