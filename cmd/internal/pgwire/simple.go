package pgwire

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"
)

// query answers a simple query. Several statements in it are one transaction, unless they contain BEGIN or COMMIT.
func (c *conn) query(ctx context.Context, sql string) {
	if err := c.runQuery(ctx, sql); err != nil {
		c.fail(err)
	}
	c.ready()
}

func (c *conn) runQuery(ctx context.Context, sql string) error {
	// The unnamed statement does not outlive a simple query.
	c.forget("")
	statements, err := parse(sql)
	if err != nil {
		return err
	}
	if len(statements) == 0 {
		c.send(&pgproto3.EmptyQueryResponse{})
		return nil
	}
	for i, s := range statements {
		if len(s.params) > 0 {
			return errorf(noSuchParameter, "there is no parameter $1")
		}
		r, err := c.execute(ctx, s, nil)
		if err == nil && i == len(statements)-1 {
			err = c.finish(ctx) // before the answer, which confirms that it is done
		}
		if err != nil {
			return err
		}
		if columns := describe(s.statement); columns != nil {
			c.send(rowDescription(columns, nil))
			for _, row := range r.rows {
				c.sendRow(columns, nil, row)
			}
		}
		c.send(&pgproto3.CommandComplete{CommandTag: []byte(r.tag)})
	}
	return nil
}

// rowDescription describes columns. formats are as in Bind: none means text for all, one applies to all.
func rowDescription(columns []column, formats []int16) *pgproto3.RowDescription {
	d := &pgproto3.RowDescription{Fields: make([]pgproto3.FieldDescription, len(columns))}
	for i, col := range columns {
		d.Fields[i] = pgproto3.FieldDescription{
			Name: []byte(col.name), DataTypeOID: col.typ.oid, DataTypeSize: col.typ.size, TypeModifier: -1, Format: formatOf(formats, i),
		}
	}
	return d
}

func (c *conn) sendRow(columns []column, formats []int16, row []value) {
	values := make([][]byte, len(row))
	for i, v := range row {
		values[i] = columns[i].typ.encode(v, formatOf(formats, i))
	}
	c.send(&pgproto3.DataRow{Values: values})
}

func formatOf(formats []int16, i int) int16 {
	switch len(formats) {
	case 0:
		return 0
	case 1:
		return formats[0]
	}
	return formats[i]
}
