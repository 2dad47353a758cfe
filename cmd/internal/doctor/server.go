package doctor

import (
	"context"
	"fmt"
	"strings"
)

// Server describes the examined server.
type Server struct {
	Version    string `json:"version"`
	VersionNum int    `json:"version_num"`
	Database   string `json:"database"`
	User       string `json:"user"`
	// Rights is what the role may see: superuser, pg_monitor, pg_read_all_stats or limited.
	Rights     string `json:"rights"`
	Standby    bool   `json:"standby,omitempty"`
	Weir       bool   `json:"weir"`       // Weir's schema is in the database
	Statements bool   `json:"statements"` // pg_stat_statements can be read

	databaseOID      uint32
	statementsSchema string
	hubs             bool // Weir's schema has hubs
	commitDelay      int
	feedback         bool    // hot_standby_feedback is on
	flushes          bool    // commits are flushed to disk
	address          *string // the server's end of the connection, as it sees it; nil for a Unix socket
	backend          uint32
	relayed          bool // a pooler answers in the server's place
}

// sees reports whether the role sees other roles' sessions.
func (s Server) sees() bool { return s.Rights != "limited" }

const serverSQL = `
SELECT current_setting('server_version'), current_setting('server_version_num')::integer, current_database()::text, current_user::text,
       CASE WHEN r.rolsuper THEN 'superuser'
            WHEN pg_has_role(r.oid, 'pg_monitor', 'USAGE') THEN 'pg_monitor'
            WHEN pg_has_role(r.oid, 'pg_read_all_stats', 'USAGE') THEN 'pg_read_all_stats'
            ELSE 'limited' END,
       pg_is_in_recovery(), EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'weir' AND c.relname = 'batch'),
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'weir' AND c.relname = 'hub_beat'),
       (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
       coalesce((SELECT n.nspname::text FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                 WHERE e.extname = 'pg_stat_statements'), ''),
       current_setting('commit_delay')::integer, current_setting('fsync')::boolean, current_setting('hot_standby_feedback')::boolean, host(inet_server_addr()), pg_backend_pid()
FROM pg_roles r WHERE r.rolname = current_user`

// differs returns what can't be compared between two readings because the server was another, or had something else, when they were made.
func (s Server) differs(from Server) (lacks readings) {
	if s.Standby != from.Standby || s.VersionNum != from.VersionNum {
		lacks |= ofCounted
	}
	if s.Weir != from.Weir || s.hubs != from.hubs {
		lacks |= ofQueues
	}
	if s.Statements != from.Statements {
		lacks |= ofStatements
	}
	return lacks
}

// oldest is the first supported version.
const oldest = 140000

func readServer(ctx context.Context, s *session) (Server, error) {
	type row struct {
		Version          string
		VersionNum       int
		Database, User   string
		Rights           string
		Standby, Weir    bool
		Hubs             bool
		OID              uint32
		StatementsSchema string
		CommitDelay      int
		Flushes          bool
		Feedback         bool
		Address          *string
		Backend          uint32
	}
	r, err := one[row](ctx, s, serverSQL)
	if err != nil {
		return Server{}, fmt.Errorf("read the server's version and rights: %w", err)
	}
	if r.VersionNum < oldest {
		return Server{}, fmt.Errorf("the server is PostgreSQL %s: weir doctor needs 14 or later", r.Version)
	}
	server := Server{
		Version: strings.Fields(r.Version)[0], VersionNum: r.VersionNum, Database: r.Database, User: r.User, Rights: r.Rights,
		Standby: r.Standby, Weir: r.Weir, hubs: r.Hubs, databaseOID: r.OID, commitDelay: r.CommitDelay, flushes: r.Flushes, feedback: r.Feedback, address: r.Address, backend: r.Backend,
	}
	// A pooler gives its clients pids of its own.
	told := recall(s.tape, "pid that the session was given", s.pid)
	server.relayed = told != 0 && told != r.Backend
	if r.StatementsSchema != "" {
		server.statementsSchema = quoteIdentifier(r.StatementsSchema)
		// The extension may be installed but not loaded: then the view returns an error.
		_, err := scalars[int64](ctx, s, "SELECT count(*) FROM (SELECT FROM "+server.statementsSchema+".pg_stat_statements(false) LIMIT 1) s")
		server.Statements = err == nil
	}
	return server, nil
}
