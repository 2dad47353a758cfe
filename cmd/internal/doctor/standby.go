package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// standby is another server, a standby of the examined one.
type standby struct {
	at      string
	session *session
}

// standbyView is what is seen of a standby.
type standbyView struct {
	at   string
	view *horizon.View
}

const clusterSQL = `SELECT pg_is_in_recovery(), c.system_identifier FROM pg_control_system() c`

type clusterRow struct {
	Standby bool
	System  int64
}

// accept refuses a server that is no standby of the examined one: what it says of its sessions would be read as if it were. One that can't be reached may be back
// for the examination, which says so if it is not.
func (d *Doctor) accept(ctx context.Context, s standby) error {
	there, err := one[clusterRow](ctx, s.session, clusterSQL)
	if err != nil {
		return nil // the examination asks again
	}
	if !there.Standby {
		return fmt.Errorf("--standby: %s is not a standby: it was promoted, or is the primary itself: name servers that follow the examined one, or leave it out", s.at)
	}
	here, err := one[clusterRow](ctx, d.session, clusterSQL)
	if err != nil {
		return fmt.Errorf("--standby: compare %s with the examined server: %w", s.at, err)
	}
	if here.System != there.System {
		return fmt.Errorf("--standby: %s is a standby of another cluster: name servers that follow the examined one, or leave it out", s.at)
	}
	return nil
}

// readStandbys reads what may hold the horizon on the standbys. An error names the standby that could not be read, and what is not known without it.
func readStandbys(ctx context.Context, standbys []standby) (views []standbyView, errs []error) {
	for _, s := range standbys {
		view, err := readHorizon(ctx, s.session)
		if err == nil && !view.Standby {
			err = errors.New("it is not a standby any more: it was promoted")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("what the sessions of the standby %s hold back here: %w: check that it runs, and its URL in --standby", s.at, err))
			continue
		}
		views = append(views, standbyView{s.at, view})
	}
	return views, errs
}

// connectError is the error of a server that can't be reached.
type connectError struct{ err error }

// Error says why in a few words: the error of the driver repeats the address for each way in which it has tried.
func (e *connectError) Error() string {
	why := e.err
	var refused *pgconn.PgError
	if errors.As(why, &refused) {
		return "the server refuses the connection: " + refused.Message
	}
	if errors.Is(why, context.DeadlineExceeded) {
		return fmt.Sprintf("can't connect: no answer in %s", connectTimeout)
	}
	for {
		if many, ok := why.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) > 0 {
			why = many.Unwrap()[0]
			continue
		}
		inner := errors.Unwrap(why)
		if inner == nil {
			return "can't connect: " + why.Error()
		}
		why = inner
	}
}

func (e *connectError) Unwrap() error { return e.err }
