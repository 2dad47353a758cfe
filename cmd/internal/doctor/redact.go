package doctor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// redactor takes the texts of statements out of what a session reads, before anything else sees them. What the checks go by stays: the command, and the
// tables that it names, which the report names anyway. A digest tells different statements apart.
type redactor struct{ known map[string]bool }

// commands are the words that stay: those by which checks tell one kind of statement from another. The last ones are calls of Weir's.
const commands = `select insert into update delete merge copy with from where group by on conflict do nothing count sum avg min max string_agg array_agg json_agg jsonb_agg
	listen unlisten notify begin start commit end rollback abort prepare transaction truncate lock table alter create drop vacuum cluster analyze set show fetch for share
	weir _claim heartbeat _promote _record record`

const mostKnown = 20_000

// newRedactor reads the names of tables and schemas, which may stay.
func newRedactor(ctx context.Context, s *session) (*redactor, error) {
	names, err := scalars[string](ctx, s, `SELECT lower(c.relname::text) FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
UNION SELECT lower(n.nspname::text) FROM pg_namespace n LIMIT $1`, mostKnown)
	if err != nil {
		return nil, fmt.Errorf("the names of tables, which may stay in statements: %w", err)
	}
	r := &redactor{known: map[string]bool{}}
	for _, name := range append(names, strings.Fields(commands)...) {
		r.known[name] = true
	}
	return r, nil
}

var words = regexp.MustCompile(`"(?:[^"]|"")*"|[\pL_][\pL\pN_$]*|\s+|.`)

// statement returns what may stay of a statement's text.
func (r *redactor) statement(text string) string {
	if text == "" || text == hiddenQuery {
		return text
	}
	plain := shape(text)
	var b strings.Builder
	gap, kept, marked := false, false, false
	for _, word := range words.FindAllString(withoutValues(text), -1) {
		switch {
		case strings.TrimSpace(word) == "":
			kept = false
			continue
		case kept && (word == "." || word == "("):
			b.WriteString(word)
			kept = word == "."
			continue
		case word == ";":
			continue
		case !r.known[strings.ToLower(strings.Trim(word, `"`))]:
			gap, kept = true, false
			continue
		}
		r.close(&b, &gap, &marked, plain)
		if b.Len() > 0 && !kept {
			b.WriteByte(' ')
		}
		b.WriteString(word)
		kept = true
	}
	r.close(&b, &gap, &marked, plain)
	return b.String()
}

// close marks what was left out: the first time with a digest of the statement.
func (r *redactor) close(b *strings.Builder, gap, marked *bool, plain string) {
	if !*gap {
		return
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if *marked {
		b.WriteString("…")
	} else {
		sum := sha256.Sum256([]byte(plain))
		const length = 4 // bytes: enough to tell the statements of one server apart
		b.WriteString("[s" + hex.EncodeToString(sum[:length]) + "]")
	}
	*gap, *marked = false, true
}

// rows redacts the fields of rows that are tagged `text:"statement"`.
func (r *redactor) rows(rows any) {
	list := reflect.ValueOf(rows)
	if r == nil || list.Len() == 0 || list.Type().Elem().Kind() != reflect.Struct {
		return
	}
	for field := range list.Type().Elem().NumField() {
		if list.Type().Elem().Field(field).Tag.Get("text") != "statement" {
			continue
		}
		for i := range list.Len() {
			text := list.Index(i).Field(field)
			text.SetString(r.statement(text.String()))
		}
	}
}
