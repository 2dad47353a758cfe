package pgwire

import "strconv"

// function is a function that SELECT can call.
type function struct {
	name   string // of a result column
	takes  []*dataType
	least  int // required arguments
	result *dataType
	bare   bool // it may be written without parentheses
	set    bool // it returns rows: pg_listening_channels
	call   func(c *conn, args []value) (value, error)
}

// functions by name, without the schema pg_catalog.
var functions = map[string]*function{
	"pg_notify": {name: "pg_notify", takes: []*dataType{textType, textType}, least: 2, result: voidType,
		call: func(c *conn, args []value) (value, error) {
			return textValue(""), c.notify(args, false, false)
		}},
	"weir.notify": {name: "notify", takes: []*dataType{textType, textType}, least: 2, result: voidType,
		call: func(c *conn, args []value) (value, error) {
			return textValue(""), c.notify(args, true, false)
		}},
	"weir.publish": {name: "publish", takes: []*dataType{textType, textType, boolType}, least: 1, result: voidType,
		call: func(c *conn, args []value) (value, error) {
			keep := len(args) > 2 && args[2] != nil && *args[2] == "t"
			return textValue(""), c.notify(args, true, keep)
		}},
	"pg_listening_channels": {name: "pg_listening_channels", result: textType, set: true},

	"version":           {name: "version", result: textType, call: constant((*conn).version)},
	"current_schema":    {name: "current_schema", result: nameType, bare: true, call: constant(func(*conn) string { return "public" })},
	"current_user":      {name: "current_user", result: nameType, bare: true, call: constant((*conn).userName)},
	"user":              {name: "user", result: nameType, bare: true, call: constant((*conn).userName)},
	"session_user":      {name: "session_user", result: nameType, bare: true, call: constant((*conn).userName)},
	"current_role":      {name: "current_role", result: nameType, bare: true, call: constant((*conn).userName)},
	"current_database":  {name: "current_database", result: nameType, call: constant((*conn).databaseName)},
	"current_catalog":   {name: "current_catalog", result: nameType, bare: true, call: constant((*conn).databaseName)},
	"pg_backend_pid":    {name: "pg_backend_pid", result: int4Type, call: constant(func(c *conn) string { return strconv.Itoa(int(c.pid)) })},
	"pg_is_in_recovery": {name: "pg_is_in_recovery", result: boolType, call: constant(func(*conn) string { return "f" })},
	"pg_advisory_unlock_all": {name: "pg_advisory_unlock_all", result: voidType,
		call: constant(func(*conn) string { return "" })},

	"current_setting": {name: "current_setting", takes: []*dataType{textType, boolType}, least: 1, result: textType,
		call: func(c *conn, args []value) (value, error) {
			if args[0] == nil {
				return nil, nil
			}
			v, err := c.setting(canonical(*args[0]))
			if err != nil && len(args) > 1 && args[1] != nil && *args[1] == "t" {
				return nil, nil
			}
			return textValue(v), err
		}},
	"set_config": {name: "set_config", takes: []*dataType{textType, textType, boolType}, least: 3, result: textType,
		call: func(c *conn, args []value) (value, error) {
			if args[0] == nil || args[2] == nil {
				return nil, errorf(badValue, "set_config needs a setting's name and whether it is local")
			}
			name := canonical(*args[0])
			if err := c.set(name, args[1], *args[2] == "t"); err != nil {
				return nil, err
			}
			v, err := c.setting(name)
			return textValue(v), err
		}},
}

func constant(f func(*conn) string) func(*conn, []value) (value, error) {
	return func(c *conn, _ []value) (value, error) { return textValue(f(c)), nil }
}

// evaluate computes an expression.
func (c *conn) evaluate(e expression, params []value) (v value, err error) {
	switch {
	case e.param > 0:
		v = params[e.param-1]
	case e.function != nil:
		args := make([]value, len(e.args))
		for i, a := range e.args {
			if args[i], err = c.evaluate(a, params); err != nil {
				return nil, err
			}
			if args[i], err = e.function.takes[i].cast(args[i]); err != nil {
				return nil, err
			}
		}
		v, err = e.function.call(c, args)
	default:
		v = e.constant
	}
	for _, t := range e.casts {
		if err == nil {
			v, err = t.cast(v)
		}
	}
	return v, err
}
