package doctor

import (
	"context"
	"fmt"
	"strings"
)

// preparedSQL names the prepared transactions that hold a lock. They have no pid, but their virtual transaction also holds the lock of their id.
const preparedSQL = `
WITH k AS MATERIALIZED (
  SELECT k.locktype, k.relation, k.classid, k.objid, k.transactionid, k.virtualtransaction FROM pg_lock_status() k WHERE k.granted AND k.pid IS NULL
)
SELECT DISTINCT p.gid, p.database::text FROM k JOIN k id ON id.locktype = 'transactionid' AND id.virtualtransaction = k.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = id.transactionid
WHERE k.locktype = $1 AND coalesce(k.relation, k.classid) = $2 AND coalesce(k.objid, 0) = $3 ORDER BY 1 LIMIT 3`

// endPrepared says how to end the prepared transactions that hold a lock of a type: of a relation, or of a class and an object.
func endPrepared(ctx context.Context, l *inspection, lockType string, of, object uint32) (string, error) {
	type row struct{ GID, Database string }
	rows, err := list[row](ctx, l.session, preparedSQL, lockType, of, object)
	if err != nil {
		return "", fmt.Errorf("which prepared transaction holds the lock: %w", err)
	}
	if len(rows) == 0 {
		return "The prepared transaction that held it has ended by now: nothing is left to end.", nil
	}
	ends := make([]string, len(rows))
	for i, r := range rows {
		ends[i] = endPreparedStatement(r.GID, r.Database)
	}
	return strings.Join(ends, "; ") + ".", nil
}

// endPreparedStatement says how to end a prepared transaction. Only its coordinator knows which way.
func endPreparedStatement(gid, database string) string {
	gid = strings.ReplaceAll(gid, "'", "''")
	return fmt.Sprintf("ROLLBACK PREPARED '%[1]s' or COMMIT PREPARED '%[1]s', in database %[2]s, as its coordinator would", gid, database)
}
