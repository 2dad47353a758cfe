package guard

import (
	"context"
	"fmt"
	"time"
)

var identitySQL = statement("identity")

// Identity says which database of which running server a Server is.
type Identity struct {
	Cluster  string // its system identifier
	Started  time.Time
	OID      uint32
	Database string
}

// Running names the running server, of which a copy has the same cluster identifier.
func (i Identity) Running() string { return fmt.Sprintf("%s-%d", i.Cluster, i.Started.UnixMicro()) }

// Same is equal for all names of a database.
func (i Identity) Same() string { return fmt.Sprintf("%s-%d", i.Running(), i.OID) }

// Identify finds out which database it is.
func Identify(ctx context.Context, s Server) (i Identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if err := s.DB.QueryRow(ctx, identitySQL).Scan(&i.Cluster, &i.Started, &i.OID, &i.Database); err != nil {
		return i, fmt.Errorf("identify %s: %w", s.Name, err)
	}
	return i, nil
}
