package pgwire

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"
)

// prepared is a prepared statement.
type prepared struct {
	parsed
	empty bool
	bytes int // approximate memory
}

// portal is a statement bound to parameters and, once executed, its remaining rows.
type portal struct {
	prepared *prepared
	params   []value
	formats  []int16 // of the result
	bytes    int     // approximate memory of its parameters
	ran      bool
	result   result
}

// Limits of a connection.
const (
	maxPrepared      = 2_000
	maxPreparedBytes = 4 << 20
	maxPortals       = 100
	maxPortalBytes   = 4 << 20 // of all portals together
)

// extended answers a message of the extended protocol. After an error, messages up to Sync are skipped.
func (c *conn) extended(ctx context.Context, m pgproto3.FrontendMessage) {
	if _, sync := m.(*pgproto3.Sync); sync {
		c.skipping = false
		if err := c.finish(ctx); err != nil {
			c.fail(err)
		}
		c.ready()
		return
	}
	if c.skipping {
		return
	}
	var err error
	switch m := m.(type) {
	case *pgproto3.Parse:
		err = c.parse(m)
	case *pgproto3.Bind:
		err = c.bind(m)
	case *pgproto3.Describe:
		err = c.describe(m)
	case *pgproto3.Execute:
		err = c.run(ctx, m)
	case *pgproto3.Close:
		if m.ObjectType == 'S' {
			c.forget(m.Name)
		} else {
			delete(c.portals, m.Name)
		}
		c.send(&pgproto3.CloseComplete{})
	case *pgproto3.Flush:
		c.flush()
	}
	if err != nil {
		c.fail(err)
		c.skipping = true
	}
}

func (c *conn) parse(m *pgproto3.Parse) error {
	statements, err := parse(m.Query)
	if err != nil {
		return err
	}
	if len(statements) > 1 {
		return errorf(syntaxError, "cannot insert multiple commands into a prepared statement")
	}
	p := &prepared{empty: len(statements) == 0, bytes: len(m.Query) + len(m.Name)}
	if !p.empty {
		p.parsed = statements[0]
	}
	if err := p.declare(m.ParameterOIDs); err != nil {
		return err
	}
	p.bytes += p.parsed.bytes + 8*len(p.params)
	switch {
	case m.Name == "":
		c.forget("")
	case c.prepared[m.Name] != nil:
		return errorf(duplicateStatement, "prepared statement \"%s\" already exists", cut(m.Name, 64))
	}
	if len(c.prepared) >= maxPrepared || c.preparedBytes+p.bytes > maxPreparedBytes {
		return errorf(tooLarge, "too many prepared statements: a connection may keep %d of %d MiB together", maxPrepared, maxPreparedBytes>>20).
			hint("DEALLOCATE those that you no longer use.")
	}
	if c.prepared == nil {
		c.prepared = map[string]*prepared{}
	}
	c.prepared[m.Name] = p
	c.preparedBytes += p.bytes
	c.send(&pgproto3.ParseComplete{})
	return nil
}

// declare sets the parameter types that the client has declared.
func (p *prepared) declare(oids []uint32) error {
	for i, oid := range oids {
		typ, known := typesByOID[oid]
		switch {
		case !known:
			return errorf(unsupported, "parameter $%d is of a type that this endpoint does not know (OID %d)", i+1, oid).
				hint("Channels and payloads are text: pass text.")
		case i >= len(p.params):
			p.params = append(p.params, typ)
		case typ != nil && typ != unknownType:
			// Columns and calls may have been given the presumed type.
			p.retype(i+1, typ)
			p.params[i] = typ
		}
	}
	for i, typ := range p.params {
		if typ == nil {
			if _, unknown := p.statement.(unknownStatement); unknown {
				p.params[i] = textType
				continue
			}
			return errorf(indeterminateType, "could not determine data type of parameter $%d", i+1)
		}
	}
	return nil
}

// retype sets the type of columns that are bare parameters to the parameters' declared types.
func (p *prepared) retype(n int, to *dataType) {
	s, ok := p.statement.(selectStatement)
	if !ok {
		return
	}
	for i, col := range s.columns {
		if col.expr.param == n && len(col.expr.casts) == 0 {
			s.columns[i].typ = to
		}
	}
}

// forget drops a prepared statement if it exists.
func (c *conn) forget(name string) {
	if p := c.prepared[name]; p != nil {
		c.preparedBytes -= p.bytes
		delete(c.prepared, name)
	}
}

func (c *conn) statementNamed(name string) (*prepared, error) {
	p := c.prepared[name]
	if p == nil {
		return nil, errorf(noSuchStatement, "prepared statement \"%s\" does not exist", cut(name, 64))
	}
	return p, nil
}

func (c *conn) portalNamed(name string) (*portal, error) {
	p := c.portals[name]
	if p == nil {
		return nil, errorf(noSuchPortal, "portal \"%s\" does not exist", cut(name, 64))
	}
	return p, nil
}

func (c *conn) bind(m *pgproto3.Bind) error {
	p, err := c.statementNamed(m.PreparedStatement)
	if err != nil {
		return err
	}
	if len(m.Parameters) != len(p.params) {
		return errorf(protocolViolation, "bind message supplies %d parameters, but prepared statement \"%s\" requires %d",
			len(m.Parameters), cut(m.PreparedStatement, 64), len(p.params))
	}
	if n := len(m.ParameterFormatCodes); n > 1 && n != len(m.Parameters) {
		return errorf(protocolViolation, "bind message has %d parameter formats but %d parameters", n, len(m.Parameters))
	}
	if n := len(m.ResultFormatCodes); n > 1 && n != len(describe(p.statement)) {
		return errorf(protocolViolation, "bind message has %d result formats but query has %d columns", n, len(describe(p.statement)))
	}
	for _, codes := range [][]int16{m.ParameterFormatCodes, m.ResultFormatCodes} {
		for _, code := range codes {
			if code != 0 && code != 1 {
				return errorf(badValue, "unsupported format code: %d", code)
			}
		}
	}
	if c.portals[m.DestinationPortal] == nil && len(c.portals) >= maxPortals {
		return errorf(tooLarge, "too many portals: a transaction may have at most %d here", maxPortals)
	}
	bound := &portal{prepared: p, params: make([]value, len(p.params)), formats: append([]int16(nil), m.ResultFormatCodes...)}
	bound.bytes = len(m.DestinationPortal) + 8*len(bound.params)
	for _, b := range m.Parameters {
		bound.bytes += len(b)
	}
	all := bound.bytes
	for name, other := range c.portals {
		if name != m.DestinationPortal {
			all += other.bytes
		}
	}
	if len(c.portals) > 0 && all > maxPortalBytes {
		return errorf(tooLarge, "the parameters of open portals are too large: at most %d MiB together are allowed here", maxPortalBytes>>20).hint("Close those that you no longer use.")
	}
	for i, b := range m.Parameters {
		if bound.params[i], err = p.params[i].decode(b, formatOf(m.ParameterFormatCodes, i)); err != nil {
			return err
		}
	}
	if c.portals == nil {
		c.portals = map[string]*portal{}
	}
	c.portals[m.DestinationPortal] = bound
	c.send(&pgproto3.BindComplete{})
	return nil
}

func (c *conn) describe(m *pgproto3.Describe) error {
	var columns []column
	var formats []int16
	if m.ObjectType == 'S' {
		p, err := c.statementNamed(m.Name)
		if err != nil {
			return err
		}
		oids := make([]uint32, len(p.params))
		for i, t := range p.params {
			oids[i] = t.oid
		}
		c.send(&pgproto3.ParameterDescription{ParameterOIDs: oids})
		columns = describe(p.statement)
	} else {
		p, err := c.portalNamed(m.Name)
		if err != nil {
			return err
		}
		columns, formats = describe(p.prepared.statement), p.formats
	}
	if columns == nil {
		c.send(&pgproto3.NoData{})
		return nil
	}
	c.send(rowDescription(columns, formats))
	return nil
}

// run executes a portal.
func (c *conn) run(ctx context.Context, m *pgproto3.Execute) error {
	p, err := c.portalNamed(m.Portal)
	if err != nil {
		return err
	}
	if p.prepared.empty {
		c.send(&pgproto3.EmptyQueryResponse{})
		return nil
	}
	columns := describe(p.prepared.statement)
	if !p.ran {
		if p.result, err = c.execute(ctx, p.prepared.parsed, p.params); err != nil {
			return err
		}
		p.ran = true
	} else if columns == nil {
		return errorf("55000", "portal \"%s\" cannot be run", cut(m.Portal, 64))
	}
	n := len(p.result.rows)
	if m.MaxRows > 0 {
		n = min(n, int(m.MaxRows))
	}
	for _, row := range p.result.rows[:n] {
		c.sendRow(columns, p.formats, row)
	}
	p.result.rows = p.result.rows[n:]
	if len(p.result.rows) > 0 {
		c.send(&pgproto3.PortalSuspended{})
		return nil
	}
	c.send(&pgproto3.CommandComplete{CommandTag: []byte(p.result.tag)})
	return nil
}
