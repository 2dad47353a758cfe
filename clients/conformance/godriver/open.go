package main

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// open holds the application's transactions. Commands use it, which come one after the other.
type open struct {
	last int
	txs  map[int]pgx.Tx
}

func (o *open) add(tx pgx.Tx) int {
	if o.txs == nil {
		o.txs = map[int]pgx.Tx{}
	}
	o.last++
	o.txs[o.last] = tx
	return o.last
}

func (o *open) find(n int) (pgx.Tx, error) {
	tx, ok := o.txs[n]
	if !ok {
		return nil, fmt.Errorf("transaction %d: %w", n, weir.ErrNotFound)
	}
	return tx, nil
}

func (o *open) remove(n int) (pgx.Tx, error) {
	tx, err := o.find(n)
	delete(o.txs, n)
	return tx, err
}
