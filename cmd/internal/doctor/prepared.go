package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// preparedSQL names the prepared transactions that hold a lock. They have no pid, but their virtual transaction also holds the lock of their id.
const preparedSQL = `
WITH k AS MATERIALIZED (
  SELECT k.locktype, k.relation, k.classid, k.objid, k.transactionid, k.virtualtransaction, k.mode FROM pg_lock_status() k WHERE k.granted AND k.pid IS NULL
)
SELECT DISTINCT p.gid, p.database::text FROM k JOIN k id ON id.locktype = 'transactionid' AND id.virtualtransaction = k.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = id.transactionid
WHERE k.locktype = $1 AND coalesce(k.relation, k.classid) = $2 AND coalesce(k.objid, 0) = $3 AND k.mode = ANY (coalesce($4::text[], ARRAY[k.mode])) ORDER BY 1 LIMIT 3`

// endPrepared says how to end the prepared transactions that hold a lock of a type: of a relation, or of a class and an object; in one of
// the modes, or in any if modes is nil.
func endPrepared(ctx context.Context, l *inspection, lockType string, of, object uint32, modes []string) (string, error) {
	type row struct{ GID, Database string }
	rows, err := list[row](ctx, l.session, preparedSQL, lockType, of, object, modes)
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
	return fmt.Sprintf("ROLLBACK PREPARED %[1]s or COMMIT PREPARED %[1]s, in database %[2]s, as its coordinator would", literal(gid), printable(database))
}

// literal writes a text as a literal of SQL. What a terminal would act on, rather than show, is escaped in it.
func literal(text string) string {
	quoted := strings.ReplaceAll(text, "'", "''")
	if printable(text) == text {
		return "'" + quoted + "'"
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(quoted, `\`, `\\`) {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	return "E'" + b.String() + "'"
}

// printable returns a text as it is, or between quotes and escaped if a terminal would not show all of it.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
