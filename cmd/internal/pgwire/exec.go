package pgwire

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// result is a statement's answer.
type result struct {
	tag  string
	rows [][]value
}

// execute runs a statement in the open transaction.
func (c *conn) execute(ctx context.Context, p parsed, params []value) (result, error) {
	c.slowDown(ctx)
	tx, isTx := p.statement.(txStatement)
	ends := isTx && (tx.op == commitTx || tx.op == rollbackTx || tx.op == rollbackToTx)
	if c.tx.status == failed && !ends {
		return result{}, errorf(failedTransaction, "current transaction is aborted, commands ignored until end of transaction block")
	}
	if isTx {
		return c.executeTx(ctx, tx)
	}
	c.open()
	switch s := p.statement.(type) {
	case listenStatement:
		if err := c.may("LISTEN", c.rights.Load().listen, s.channel); err != nil {
			return result{}, err
		}
		return result{tag: "LISTEN"}, c.pend(action{kind: listenAction, channel: s.channel})
	case unlistenStatement:
		if s.all {
			return result{tag: "UNLISTEN"}, c.pend(action{kind: unlistenAllAction})
		}
		return result{tag: "UNLISTEN"}, c.pend(action{kind: unlistenAction, channel: s.channel})
	case notifyStatement:
		return result{tag: "NOTIFY"}, c.notify([]value{&s.channel, &s.payload}, false, false)
	case selectStatement:
		return c.executeSelect(s, params)
	case catalogStatement:
		return result{tag: "SELECT 0"}, nil
	case setStatement:
		if s.local && c.tx.status == idle {
			c.warn(noTransaction, "SET LOCAL can only be used in transaction blocks")
		}
		return result{tag: "SET"}, c.set(s.name, s.value, s.local)
	case resetStatement:
		if s.all {
			c.settings.resetAll()
			return result{tag: "RESET"}, nil
		}
		return result{tag: "RESET"}, c.set(s.name, nil, false)
	case showStatement:
		return c.executeShow(s)
	case discardStatement:
		return c.executeDiscard(s.what)
	case deallocateStatement:
		return c.executeDeallocate(s)
	case closeStatement:
		if s.all {
			clear(c.portals)
			return result{tag: "CLOSE CURSOR ALL"}, nil
		}
		return result{}, errorf(noSuchPortal, "cursor \"%s\" does not exist", s.name)
	case ignoredStatement:
		return result{tag: s.tag}, nil
	case unknownStatement:
		return result{}, errorf(unsupported, "this endpoint only listens and notifies: it does not run this %s statement", s.what).
			hint("Here LISTEN, UNLISTEN, NOTIFY, SELECT pg_notify(...), transactions, SET and SHOW work. " +
				"Send all other SQL to the database itself, over a connection of its own.")
	}
	return result{}, fmt.Errorf("no such statement: %T", p.statement)
}

func (c *conn) executeTx(ctx context.Context, s txStatement) (result, error) {
	explicit := c.tx.status != idle
	switch s.op {
	case beginTx, startTx:
		tag := map[txOp]string{beginTx: "BEGIN", startTx: "START TRANSACTION"}[s.op]
		if explicit {
			c.warn(activeTransaction, "there is already a transaction in progress")
			return result{tag: tag}, nil
		}
		c.open()
		c.begin()
		return result{tag: tag}, nil
	case commitTx, rollbackTx:
		return c.endExplicit(ctx, s, explicit)
	}
	if !explicit {
		return result{}, errorf(noTransaction, "%s can only be used in transaction blocks",
			map[txOp]string{savepointTx: "SAVEPOINT", rollbackToTx: "ROLLBACK TO SAVEPOINT", releaseTx: "RELEASE SAVEPOINT"}[s.op])
	}
	if s.op == savepointTx {
		if len(c.tx.savepoints) >= maxSavepoints {
			return result{}, errorf(tooLarge, "a transaction may have at most %d savepoints here", maxSavepoints)
		}
		c.tx.savepoints = append(c.tx.savepoints, savepoint{s.name, len(c.tx.pending), c.tx.bytes, c.settings})
		return result{tag: "SAVEPOINT"}, nil
	}
	at := -1
	for i, p := range slices.Backward(c.tx.savepoints) {
		if p.name == s.name {
			at = i
			break
		}
	}
	if at < 0 {
		return result{}, errorf(noSuchSavepoint, "savepoint \"%s\" does not exist", s.name)
	}
	if s.op == releaseTx {
		c.tx.savepoints = c.tx.savepoints[:at]
		return result{tag: "RELEASE"}, nil
	}
	back := c.tx.savepoints[at]
	c.tx.savepoints = c.tx.savepoints[:at+1]
	clear(c.tx.pending[back.pending:])
	c.server.pending.Add(int64(back.bytes - c.tx.bytes))
	c.tx.pending, c.tx.bytes, c.tx.status = c.tx.pending[:back.pending], back.bytes, inTx
	c.restore(back.settings)
	return result{tag: "ROLLBACK"}, nil
}

// endExplicit executes COMMIT or ROLLBACK. Outside a transaction it ends the implicit one, with a warning.
func (c *conn) endExplicit(ctx context.Context, s txStatement, explicit bool) (result, error) {
	if !explicit {
		if s.chain {
			return result{}, errorf(noTransaction, "AND CHAIN can only be used in transaction blocks")
		}
		c.warn(noTransaction, "there is no transaction in progress")
		c.open()
	}
	var err error
	tag := "COMMIT"
	if s.op == rollbackTx || c.tx.status == failed {
		tag = "ROLLBACK"
		c.rollback()
	} else {
		err = c.commit(ctx)
	}
	if err == nil && s.chain {
		c.open()
		c.begin()
	}
	return result{tag: tag}, err
}

func (c *conn) executeSelect(s selectStatement, params []value) (result, error) {
	if s.channels {
		rows := make([][]value, 0, len(c.listens))
		for channel := range c.listens {
			rows = append(rows, []value{textValue(channel)})
		}
		return rowsResult(rows), nil
	}
	row := make([]value, len(s.columns))
	for i, col := range s.columns {
		var err error
		if row[i], err = c.evaluate(col.expr, params); err != nil {
			return result{}, err
		}
	}
	return rowsResult([][]value{row}), nil
}

func rowsResult(rows [][]value) result {
	return result{tag: "SELECT " + strconv.Itoa(len(rows)), rows: rows}
}

func (c *conn) executeShow(s showStatement) (result, error) {
	if !s.all {
		v, err := c.setting(s.name)
		return result{tag: "SHOW", rows: [][]value{{&v}}}, err
	}
	names := slices.Collect(maps.Keys(defaults))
	names = append(names, "server_version", "server_version_num", "session_authorization")
	slices.Sort(names)
	r := result{tag: "SHOW"}
	for _, name := range names {
		v, err := c.setting(name)
		if err != nil {
			return result{}, err
		}
		r.rows = append(r.rows, []value{&name, &v, textValue("")})
	}
	return r, nil
}

func (c *conn) executeDiscard(what string) (result, error) {
	if what != "all" {
		return result{tag: "DISCARD " + map[string]string{"plans": "PLANS", "sequences": "SEQUENCES"}[what]}, nil
	}
	if c.tx.status != idle {
		return result{}, errorf(activeTransaction, "DISCARD ALL cannot run inside a transaction block")
	}
	c.settings.resetAll()
	clear(c.prepared)
	c.preparedBytes = 0
	clear(c.portals)
	return result{tag: "DISCARD ALL"}, c.pend(action{kind: unlistenAllAction})
}

func (c *conn) executeDeallocate(s deallocateStatement) (result, error) {
	if s.all {
		clear(c.prepared)
		c.preparedBytes = 0
		return result{tag: "DEALLOCATE ALL"}, nil
	}
	if c.prepared[s.name] == nil {
		return result{}, errorf(noSuchStatement, "prepared statement \"%s\" does not exist", s.name)
	}
	c.forget(s.name)
	return result{tag: "DEALLOCATE"}, nil
}

// describe returns the columns of a statement's result; nil if it has none.
func describe(s statement) []column {
	switch s := s.(type) {
	case selectStatement:
		if s.channels {
			return []column{{name: "pg_listening_channels", typ: textType}}
		}
		return s.columns
	case catalogStatement:
		return s.columns
	case showStatement:
		if s.all {
			return []column{{name: "name", typ: textType}, {name: "setting", typ: textType}, {name: "description", typ: textType}}
		}
		return []column{{name: s.name, typ: textType}}
	}
	return nil
}
