package pgwire

// The supported statements. Any other is an unknownStatement, which fails when it is executed: as in PostgreSQL,
// the statements before it in the same query run.

type statement interface{}

type listenStatement struct{ channel string }

type unlistenStatement struct {
	channel string
	all     bool
}

type notifyStatement struct{ channel, payload string }

// txStatement begins or ends a transaction or a part of one.
type txStatement struct {
	op    txOp
	name  string // of a savepoint
	chain bool   // another transaction begins immediately
}

type txOp uint8

const (
	beginTx txOp = iota
	startTx      // like BEGIN, with another tag in the answer
	commitTx
	rollbackTx
	savepointTx
	rollbackToTx
	releaseTx
)

type setStatement struct {
	name  string
	value *string // nil: the default
	local bool
}

type resetStatement struct {
	name string
	all  bool
}

type showStatement struct {
	name string
	all  bool
}

type discardStatement struct{ what string }

type deallocateStatement struct {
	name string
	all  bool
}

type closeStatement struct {
	name string
	all  bool
}

type selectStatement struct {
	columns  []column
	channels bool // FROM pg_listening_channels(): one row per channel, instead of columns
}

// catalogStatement is a query of the system catalogs that a driver sends automatically. It returns no rows.
type catalogStatement struct{ columns []column }

// ignoredStatement is confirmed without any effect.
type ignoredStatement struct{ tag string }

type unknownStatement struct{ what string }

// column is a result column.
type column struct {
	name string
	expr expression
	typ  *dataType
}

// expression is what SELECT can compute: a constant, a parameter, or a call, followed by casts.
type expression struct {
	constant value
	typ      *dataType // of the constant; nil: text
	param    int       // from 1; 0: it is none
	function *function
	args     []expression
	casts    []*dataType
}
