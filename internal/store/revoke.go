package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Revocation is a user whose connections were ended.
type Revocation struct {
	ID    int64
	User  string
	At    time.Time
	Until *time.Time // tokens from before At are refused until then; nil: they are not
}

// Revocations lists the revocations in force, and who was disconnected lately.
func (s *Store) Revocations(ctx context.Context) ([]Revocation, error) {
	return rows(ctx, s, sqlRevocations, nil, pgx.RowToStructByPos[Revocation])
}

// Disconnect ends a user's connections at all hubs after the commit.
func Disconnect(ctx context.Context, q Querier, user string) error {
	var nothing *string
	return q.QueryRow(ctx, sqlDisconnect, user).Scan(&nothing)
}

// Revoke also revokes the tokens issued to the user until now, which must have expired after lasts.
func Revoke(ctx context.Context, q Querier, user string, lasts time.Duration) (at time.Time, err error) {
	err = q.QueryRow(ctx, sqlRevoke, user, lasts.Seconds()).Scan(&at)
	return at, err
}
