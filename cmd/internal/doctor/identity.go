package doctor

import (
	"context"
	"time"
)

// identity says which database of which running server it is. A copy of a cluster has the identifier of the original, but its server was not started at the same moment.
type identity struct {
	Cluster  string
	Started  time.Time
	OID      uint32
	Database string
}

// server returns the running server that it is on.
func (i identity) server() identity { return identity{Cluster: i.Cluster, Started: i.Started.UTC()} }

// same returns what is equal for all names of a database.
func (i identity) same() identity { s := i.server(); s.OID = i.OID; return s }

const identitySQL = `SELECT c.system_identifier::text, pg_postmaster_start_time(), d.oid, d.datname::text
FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()`

// identify connects, and disconnects again.
func identify(ctx context.Context, url string) (identity, error) {
	config, err := sessionConfig(url)
	if err != nil {
		return identity{}, err
	}
	s := &session{config: config, meter: new(meter)}
	defer s.close()
	return one[identity](ctx, s, identitySQL)
}
