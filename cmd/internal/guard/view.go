package guard

import (
	"context"
	"embed"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

// statement returns the text of a file in sql/.
func statement(name string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

var (
	serverSQL    = statement("server")
	sessionsSQL  = statement("sessions")
	preparedSQL  = statement("prepared")
	slotsSQL     = statement("slots")
	receiverSQL  = statement("receiver")
	tablesSQL    = statement("tables")
	cancelSQL    = statement("cancel")
	terminateSQL = statement("terminate")
)

// DB is a server to look at: a pool, or a connection of which nobody else makes use.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Server is one of the cluster.
type Server struct {
	Name string // for people, such as host:port
	DB   DB
}

// xid is a transaction id. They are compared as PostgreSQL does: on a circle.
type xid uint32

func (x xid) before(y xid) bool { return int32(x-y) < 0 }

// view is what one look saw of one server.
type view struct {
	server     Server
	at         time.Time // by the server's clock
	standby    bool
	role       string // the guard's own
	system     int64  // identifies the cluster
	database   string
	version    string
	port       int
	feedback   bool
	next       xid
	seesAll    bool // may read everybody's statistics
	maySignal  bool
	sessions   []*session
	prepared   []prepared
	slots      []slot
	streamFrom *receiver // of a standby that streams
}

type session struct {
	pid                              int32
	backendStart                     time.Time
	xactStart                        *time.Time
	quietSince                       *time.Time // since when it has at least held what it holds: its last statement's start or end
	backendType                      string
	database, role                   string
	superuser                        bool
	application, client, state, wait string
	xid, xmin                        *int64
	query                            string
}

type prepared struct {
	gid             string
	xid             int64
	since           time.Time
	owner, database string
}

type slot struct {
	name, kind          string
	active              bool
	xmin, catalogXmin   *int64
	inactiveSince       *time.Time
	application, client string // of the walsender that uses it
}

type receiver struct {
	slot, conninfo string
	port           int
}

// look reads one server. On a standby nothing is prepared, and only a standby streams.
func look(ctx context.Context, s Server) (*view, error) {
	v := &view{server: s}
	var next int64
	err := s.DB.QueryRow(ctx, serverSQL).Scan(&v.at, &v.role, &v.standby, &v.system, &v.database, &v.version, &v.port, &v.feedback, &next,
		&v.seesAll, &v.maySignal)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.Name, err)
	}
	v.next = xid(next)
	v.sessions, err = read(ctx, s.DB, sessionsSQL, func(row pgx.CollectableRow) (*session, error) {
		x := &session{}
		return x, row.Scan(&x.pid, &x.backendStart, &x.xactStart, &x.quietSince, &x.backendType, &x.database, &x.role, &x.superuser, &x.application,
			&x.client, &x.state, &x.wait, &x.xid, &x.xmin, &x.query)
	})
	if err == nil {
		v.slots, err = read(ctx, s.DB, slotsSQL, func(row pgx.CollectableRow) (x slot, err error) {
			return x, row.Scan(&x.name, &x.kind, &x.active, &x.xmin, &x.catalogXmin, &x.inactiveSince, &x.application, &x.client)
		})
	}
	if err == nil && !v.standby {
		v.prepared, err = read(ctx, s.DB, preparedSQL, func(row pgx.CollectableRow) (x prepared, err error) {
			return x, row.Scan(&x.gid, &x.xid, &x.since, &x.owner, &x.database)
		})
	}
	if err == nil && v.standby {
		var all []receiver
		all, err = read(ctx, s.DB, receiverSQL, func(row pgx.CollectableRow) (x receiver, err error) {
			return x, row.Scan(&x.slot, &x.conninfo, &x.port)
		})
		if len(all) > 0 {
			v.streamFrom = &all[0]
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.Name, err)
	}
	return v, nil
}

func read[T any](ctx context.Context, db DB, sql string, scan func(pgx.CollectableRow) (T, error), args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// The server lists the parameters unquoted, one after the other.
var (
	applicationParameter = regexp.MustCompile(`(?:^|\s)application_name=(.*?)(?:\s+\w+=|$)`)
	fallbackParameter    = regexp.MustCompile(`(?:^|\s)fallback_application_name=(.*?)(?:\s+\w+=|$)`)
)

// application is the name under which a standby is known where it streams from; "" where that can't be told.
func (r *receiver) application() string {
	for _, parameter := range []*regexp.Regexp{applicationParameter, fallbackParameter} {
		if m := parameter.FindStringSubmatch(r.conninfo); m != nil && m[1] != "" {
			return m[1]
		}
	}
	return ""
}
