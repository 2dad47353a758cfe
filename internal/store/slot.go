package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	sqlHoldSlot       = `SELECT weir._hold_slot($1)`
	sqlHoldSlots      = `SELECT count(weir._hold_slot(s.slot)) FROM (SELECT DISTINCT unnest($1::int[])) s(slot)`
	sqlSlots          = `SELECT low, high, state, epoch, move, peer FROM weir._slots()`
	sqlAssignSlots    = `SELECT weir._assign_slots($1, $2, $3)`
	sqlLeaveSlots     = `SELECT move::text, epoch, is_closed FROM weir._leave_slots($1, $2, $3)`
	sqlHoldersOfSlots = `SELECT weir._holders_of_slots($1)`
	sqlDepart         = `SELECT departed, running, coalesce(next, '') FROM weir._depart($1::text::uuid, nullif($2, ''))`
	sqlCloseSlots     = `SELECT coalesce(weir._close_slots($1::text::uuid)::text, '')`
	sqlDeparting      = `SELECT place, job FROM weir._departing($1::text::uuid, $2)`
	sqlTakenUpto      = `SELECT weir._taken_upto($1::text::uuid)`
	sqlTakeIn         = `SELECT weir._take_in($1::text::uuid, $2, $3, $4::text::jsonb)`
	sqlOwnSlots       = `SELECT weir._own_slots($1, $2, $3, $4::text::uuid, $5)`
	sqlStopTaking     = `SELECT weir._stop_taking($1::text::uuid)`
	sqlStay           = `SELECT coalesce(copied::text, ''), coalesce(next, '') FROM weir._stay($1::text::uuid, $2, nullif($3, ''), nullif($4, '')::uuid, $5)`
	sqlClearDeparted  = `SELECT weir._clear_departed($1::text::uuid)::text`
)

// States of slots.
const (
	SlotsOwned     = "owned"
	SlotsLeaving   = "leaving"
	SlotsCopying   = "copying"
	SlotsReturning = "returning" // the move is being given up
	SlotsLeft      = "left"
)

// SlotRange is what a database says about slots.
type SlotRange struct {
	Low, High int
	State     string
	Epoch     int64  // of several databases that own a slot, the one with the greatest does
	Move      string // what the move is called by which they leave, or have left; "": none
	Peer      string // the id of the database to which they move, or have moved; "": none
}

// Slots returns what the database says about slots: a later range counts more than an earlier one.
func (s *Store) Slots(ctx context.Context) ([]SlotRange, error) {
	return rows(ctx, s, sqlSlots, nil, pgx.RowToStructByPos[SlotRange])
}

// InSlots runs f in a transaction of its own, for whose length the database owns these slots: else the error is one for which IsNotOwner returns true.
func (s *Store) InSlots(ctx context.Context, slots []int, f func(q Querier) error) error {
	return s.call(ctx, func(mode pgx.QueryExecMode) error {
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			var held int
			if err := (moded{tx, mode}).QueryRow(ctx, sqlHoldSlots, slots).Scan(&held); err != nil {
				return err
			}
			return f(moded{tx, mode})
		})
	})
}

// HoldSlot makes sure that the database owns a slot until the transaction ends.
func HoldSlot(ctx context.Context, tx Querier, slot int) error {
	var epoch int64
	return tx.QueryRow(ctx, sqlHoldSlot, slot).Scan(&epoch)
}

// AssignSlots makes the database the owner of slots that nobody owns; false: it says something else about some of them.
func (s *Store) AssignSlots(ctx context.Context, low, high int, epoch int64) (assigned bool, err error) {
	err = s.row(ctx, sqlAssignSlots, []any{low, high, epoch}, &assigned)
	return assigned, err
}

// LeaveSlots begins to move slots to another database, or finds the move that has begun. closed: all their unfinished jobs have departed.
func (s *Store) LeaveSlots(ctx context.Context, low, high int, peer string) (move string, epoch int64, closed bool, err error) {
	err = s.row(ctx, sqlLeaveSlots, []any{low, high, peer}, &move, &epoch, &closed)
	return move, epoch, closed, err
}

// HoldersOfSlots returns the open transactions that hold slots, or those of some that are left; nil: all.
func (s *Store) HoldersOfSlots(ctx context.Context, among []string) (all []string, err error) {
	err = s.row(ctx, sqlHoldersOfSlots, []any{among}, &all)
	return all, err
}

// Depart takes some unfinished jobs of slots that leave out of the log, from a place on. It returns how many of the slots' jobs run, and the next place; "": this was the last.
func (s *Store) Depart(ctx context.Context, move string, after string) (departed, running int, next string, err error) {
	err = s.row(ctx, sqlDepart, []any{move, after}, &departed, &running, &next)
	return departed, running, next, err
}

// CloseSlots ends the departure of jobs. It returns what the move is called in the other database; "": some jobs have not departed yet.
func (s *Store) CloseSlots(ctx context.Context, move string) (copied string, err error) {
	err = s.row(ctx, sqlCloseSlots, []any{move}, &copied)
	return copied, err
}

// Departed is a job that has left the log, to be logged in another database.
type Departed struct {
	Place string
	Job   string // in JSON
}

// Departing returns the next jobs that have departed, after a place.
func (s *Store) Departing(ctx context.Context, move string, after string) ([]Departed, error) {
	return rows(ctx, s, sqlDeparting, []any{move, after}, pgx.RowToStructByPos[Departed])
}

// MoveDone is the place up to which a move has come that is over where its jobs arrive.
const MoveDone = "done"

// TakenUpto returns up to which place the jobs of a move have arrived; "": none has.
func (s *Store) TakenUpto(ctx context.Context, move string) (place string, err error) {
	err = s.row(ctx, sqlTakenUpto, []any{move}, &place)
	return place, err
}

// TakeIn logs jobs, as a JSON array, and that they have arrived up to a place. It returns how far the move has come; if that is not after, nothing was logged.
func (s *Store) TakeIn(ctx context.Context, move, after, upto, jobs string) (place string, err error) {
	err = s.row(ctx, sqlTakeIn, []any{move, after, upto, jobs}, &place)
	return place, err
}

// OwnSlots makes the database the owner of slots whose jobs have arrived, up to a place; false: they have not.
func (s *Store) OwnSlots(ctx context.Context, low, high int, epoch int64, move, upto string) (owns bool, err error) {
	err = s.row(ctx, sqlOwnSlots, []any{low, high, epoch, move, upto}, &owns)
	return owns, err
}

// ClearDeparted ends a move.
func (s *Store) ClearDeparted(ctx context.Context, move string) error {
	return s.exec(ctx, sqlClearDeparted, move)
}

// StopTaking takes in no more jobs of a move, and returns up to which place they have arrived; MoveDone: it is over, and the database owns the slots, or did.
func (s *Store) StopTaking(ctx context.Context, move string) (place string, err error) {
	err = s.row(ctx, sqlStopTaking, []any{move}, &place)
	return place, err
}

// StaySlots makes one step of giving up a move of slots: it logs some of the jobs that have departed again, and returns up to which place, with which it is to be called again as upto;
// or, once none is left, the database owns the slots again, with at least this epoch, or they are noted to be at another owner, and it returns nothing. If it returns the name of the
// move at the peer, nothing has changed: first it is to be stopped there, and how far it had come is upto.
func (s *Store) StaySlots(ctx context.Context, move string, epoch int64, owner, copied, upto string) (name, next string, err error) {
	err = s.row(ctx, sqlStay, []any{move, epoch, owner, copied, upto}, &name, &next)
	return name, next, err
}
