package pgwire

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// errNotUnderstood turns a SELECT into an unknownStatement.
var errNotUnderstood = errors.New("not understood")

// selectOrUnknown parses a SELECT of constants, parameters and known functions, and skips any other.
func (p *parser) selectOrUnknown() (statement, error) {
	lexer, first := p.lexer, p.token
	s, err := p.selectColumns()
	if err == nil && !p.atEnd() {
		err = errNotUnderstood
	}
	if err == nil {
		return s, nil
	}
	var told *Error
	if errors.As(err, &told) && told.Code != syntaxError {
		return nil, err
	}
	p.lexer, p.token, p.params = lexer, first, nil
	var words []string
	for !p.atEnd() {
		if len(words) <= longestKnown {
			words = append(words, p.token.text)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if known, ok := catalogQueries[strings.Join(words, " ")]; ok {
		return known, nil
	}
	return unknownStatement{"SELECT"}, nil
}

// catalogQueries are the queries of system catalogs that drivers send when they connect, by their tokens. An empty result means
// that there are only built-in types.
var catalogQueries = map[string]catalogStatement{
	// postgres.js looks for array types.
	"select b . oid , b . typarray from pg_catalog . pg_type a left join pg_catalog . pg_type b on b . oid = a . typelem " +
		"where a . typcategory = A group by b . oid , b . typarray order by b . oid": {[]column{
		{name: "oid", typ: oidType}, {name: "typarray", typ: oidType},
	}},
}

const (
	maxColumns   = 1664 // as PostgreSQL
	longestKnown = 100  // words of a catalog query
)

func (p *parser) selectColumns() (statement, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if star, err := p.op("*"); err != nil {
		return nil, err
	} else if star {
		return selectStatement{channels: true}, p.fromChannels()
	}
	var columns []column
	for {
		c, err := p.column()
		if err != nil {
			return nil, err
		}
		if len(columns) == maxColumns {
			return nil, errorf(tooManyColumns, "target lists can have at most %d entries", maxColumns)
		}
		columns = append(columns, c)
		if comma, err := p.op(","); err != nil {
			return nil, err
		} else if !comma {
			break
		}
	}
	sets := func(c column) bool { return c.expr.function != nil && c.expr.function.set }
	if slices.ContainsFunc(columns, sets) {
		if len(columns) > 1 || len(columns[0].expr.casts) > 0 {
			return nil, errNotUnderstood
		}
		return selectStatement{channels: true}, nil
	}
	return selectStatement{columns: columns}, nil
}

func (p *parser) fromChannels() error {
	if err := p.expect("from"); err != nil {
		return err
	}
	e, err := p.expression(nil)
	if err == nil && (e.function == nil || !e.function.set) {
		err = errNotUnderstood
	}
	return err
}

func (p *parser) column() (column, error) {
	e, err := p.expression(textType)
	if err != nil {
		return column{}, err
	}
	c := column{name: "?column?", expr: e, typ: p.typeOf(e)}
	switch {
	case e.function != nil:
		c.name = e.function.name
	case len(e.casts) > 0:
		c.name = c.typ.name
	}
	as, err := p.word("as")
	if err != nil {
		return c, err
	}
	if as || p.token.kind == quotedToken || p.token.kind == wordToken {
		c.name, err = p.name()
	}
	return c, err
}

// typeOf returns the type of an expression's result.
func (p *parser) typeOf(e expression) *dataType {
	switch {
	case len(e.casts) > 0:
		return e.casts[len(e.casts)-1]
	case e.function != nil:
		return e.function.result
	case e.param > 0:
		return p.params[e.param-1]
	case e.typ != nil:
		return e.typ
	}
	return textType
}

// expression parses an expression. A parameter in it that is not cast has the given type.
func (p *parser) expression(typ *dataType) (expression, error) {
	e, err := p.primary()
	for err == nil && p.isOp("::") {
		if err = p.advance(); err == nil {
			err = p.cast(&e)
		}
	}
	if err == nil && e.param > 0 {
		if len(e.casts) > 0 {
			typ = e.casts[0]
		}
		err = p.param(e.param, typ)
	}
	return e, err
}

const maxParams = 1000

// param records the type of a parameter; the first known type counts.
func (p *parser) param(n int, typ *dataType) error {
	if n > maxParams {
		return errorf(tooLarge, "a statement may have at most %d parameters here", maxParams)
	}
	for len(p.params) < n {
		p.params = append(p.params, nil)
	}
	if p.params[n-1] == nil {
		p.params[n-1] = typ
	}
	return nil
}

const maxDepth = 20

func (p *parser) primary() (expression, error) {
	if p.depth++; p.depth > maxDepth {
		return expression{}, errNotUnderstood
	}
	defer func() { p.depth-- }()
	t := p.token
	switch t.kind {
	case stringToken:
		return expression{constant: textValue(t.text)}, p.advance()
	case numberToken:
		return p.number(t.text)
	case paramToken:
		n, err := strconv.Atoi(t.text)
		if err != nil || n < 1 {
			return expression{}, errorf(noSuchParameter, "there is no parameter $%s", cut(t.text, 20))
		}
		return expression{param: n}, p.advance()
	case wordToken:
		switch t.text {
		case "null":
			return expression{}, p.advance()
		case "true", "false":
			return expression{constant: boolValue(t.text == "true"), casts: []*dataType{boolType}}, p.advance()
		case "cast":
			return p.castCall()
		}
		fallthrough
	case quotedToken:
		return p.call()
	}
	return expression{}, errNotUnderstood
}

// number parses an integer, which is an int4 if it fits.
func (p *parser) number(text string) (expression, error) {
	for _, typ := range []*dataType{int4Type, int8Type} {
		if _, err := strconv.ParseInt(text, 10, int(typ.size)*8); err == nil {
			return expression{constant: textValue(text), typ: typ}, p.advance()
		}
	}
	return expression{}, errNotUnderstood
}

func (p *parser) castCall() (expression, error) {
	if err := p.advance(); err != nil {
		return expression{}, err
	}
	if err := p.expect("("); err != nil {
		return expression{}, err
	}
	e, err := p.primary()
	if err == nil {
		err = p.expect("as")
	}
	if err == nil {
		err = p.cast(&e)
	}
	if err == nil {
		err = p.expect(")")
	}
	return e, err
}

// cast parses a type's name.
func (p *parser) cast(e *expression) error {
	if qualified, err := p.words("pg_catalog"); err != nil {
		return err
	} else if qualified {
		if err := p.expect("."); err != nil {
			return err
		}
	}
	name, err := p.name()
	if err != nil {
		return err
	}
	if varying, err := p.word("varying"); err != nil {
		return err
	} else if varying {
		name = "varchar"
	}
	typ := typesByName[name]
	if typ == nil {
		return errNotUnderstood
	}
	e.casts = append(e.casts, typ)
	return nil
}

// call parses a function call.
func (p *parser) call() (expression, error) {
	name, err := p.name()
	if err != nil {
		return expression{}, err
	}
	if p.isOp(".") {
		if err := p.advance(); err != nil {
			return expression{}, err
		}
		more, err := p.name()
		if err != nil {
			return expression{}, err
		}
		name = strings.TrimPrefix(name+"."+more, "pg_catalog.")
	}
	f := functions[name]
	if f == nil {
		return expression{}, errNotUnderstood
	}
	e := expression{function: f}
	if f.bare && !p.isOp("(") {
		return e, nil
	}
	if err := p.expect("("); err != nil {
		return e, err
	}
	for !p.isOp(")") {
		if len(e.args) > 0 {
			if err := p.expect(","); err != nil {
				return e, err
			}
		}
		if len(e.args) >= len(f.takes) {
			return e, errNotUnderstood
		}
		arg, err := p.expression(f.takes[len(e.args)])
		if err != nil {
			return e, err
		}
		if arg.function != nil {
			return e, errNotUnderstood
		}
		e.args = append(e.args, arg)
	}
	if len(e.args) < f.least {
		return e, errNotUnderstood
	}
	return e, p.advance()
}
