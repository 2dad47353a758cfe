package weir

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/turn"
)

// A copy of a cluster, such as one that was restored from a base backup to become a shard of its own, has the same ids as the original. So two names lead to one
// database if they also lead to the same running server.

var errStandby = errors.New("weir: the server is a standby: jobs are worked at its primary")

// identify finds out which database it is, and takes it if nobody else has, or somebody who can't reach it any more: after a failover, another name may lead there.
func (d *workedDatabase) identify(ctx context.Context, client *Client, yield func()) error {
	leave, ok := turn.Take(ctx, d.m.looks, looksFor)
	if !ok {
		return ctx.Err()
	}
	defer leave()
	defer client.Pool().Reset() // there may be more databases than their server has connections, and handlers may not want any
	ctx, cancel := context.WithTimeout(ctx, databaseCall)
	defer cancel()
	cluster, err := client.store.DatabaseID(ctx)
	if err != nil {
		return err
	}
	since, standby, err := client.store.Server(ctx)
	if err != nil {
		return err
	}
	if standby {
		return errStandby
	}
	for n := 1; ; n++ {
		id := cluster
		if n > 1 {
			id = fmt.Sprintf("%s-%d", cluster, n)
		}
		holder := d.takes(id, client, yield)
		if holder == nil {
			return nil
		}
		theirs, err := holder.server(ctx)
		if err != nil {
			if holder.lost() && d.takesFrom(holder, client, yield) {
				return nil
			}
			return errDuplicate
		}
		if now, _, err := client.store.Server(ctx); err != nil || !now.Equal(since) || now.Equal(theirs) {
			return errDuplicate // or the server was restarted meanwhile
		}
	}
}

// takes takes the id, unless somebody holds it, whom it returns.
func (d *workedDatabase) takes(id string, client *Client, yield func()) (holder *workedDatabase) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if holder = d.m.worked[id]; holder == nil {
		d.holds(id, client, yield)
	}
	return holder
}

// takesFrom takes the id of somebody who does not reach the database, and need not be waited for: that takes some time to stop. It reports whether that still held it.
func (d *workedDatabase) takesFrom(holder *workedDatabase, client *Client, yield func()) bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if d.m.worked[holder.id] != holder {
		return false
	}
	holder.yield()
	d.holds(holder.id, client, yield)
	return true
}

// holds notes who has an id; the caller holds MultiWorker.mu.
func (d *workedDatabase) holds(id string, client *Client, yield func()) {
	d.m.worked[id], d.id, d.client, d.yield = d, id, client, yield
}

// release leaves the database to whoever else is named for it.
func (d *workedDatabase) release() {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if d.m.worked[d.id] == d {
		delete(d.m.worked, d.id)
	}
	d.worker, d.client, d.yield = nil, nil, nil
}

// server returns since when the server runs to which the name leads now. It has a connection of its own for that: handlers may use all those of the pool.
func (d *workedDatabase) server(ctx context.Context) (since time.Time, err error) {
	d.m.mu.Lock()
	client := d.client
	d.m.mu.Unlock()
	if client == nil {
		return since, errDuplicate // it has just been released
	}
	one, err := store.OpenOne(client.Pool())
	if err != nil {
		return since, err
	}
	defer one.Pool().Close()
	since, _, err = one.Server(ctx)
	return since, err
}

// lost reports whether its worker does not reach the database.
func (d *workedDatabase) lost() bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if d.state == DatabaseUnreachable {
		return true
	}
	var ill *HealthError
	return d.worker != nil && errors.As(d.worker.Health(), &ill) && ill.Reason == HealthUnreachable
}
