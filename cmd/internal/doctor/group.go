package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	readAtOnce = 4                // databases of a server that are read at the same time
	readsTake  = 30 * time.Second // at most, of all of them, or their first samples are forgotten
)

// member is one database of a group.
type member struct {
	doctor *Doctor
	begin  time.Time
	first  *reading
	err    error // why it can't be examined
}

// examineGroup examines databases of one running server: once what they share, and each by what it has of its own. Samples are taken once for all of them, and the
// databases are read a few at a time, by sessions that end again. An error of a database is in its report; the returned one is that of the server.
func examineGroup(ctx context.Context, c Config, urls []string, duration time.Duration) (shared Report, own []DatabaseReport, err error) {
	var lead *Doctor
	for _, url := range urls { // whichever can be reached now
		c.URL = url
		if lead, err = Open(ctx, c); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return shared, nil, err
	}
	defer lead.Close()
	lead.part = theServer
	lead.sampler.window.reach(readsTake + duration + connectTimeout)
	members := make([]member, len(urls))
	own = make([]DatabaseReport, len(urls))
	err = lead.while(ctx, func(ctx context.Context) error {
		begin := lead.clock.now()
		first := lead.read(ctx)
		atMost(readAtOnce, len(urls), func(i int) { members[i].open(ctx, lead, urls[i]) })
		for _, m := range members {
			if m.err == nil {
				lead.listed = append(lead.listed, m.doctor.server.databaseOID)
			}
		}
		if err := lead.wait(ctx, lead.clock.now(), duration); err != nil {
			return err
		}
		shared = lead.judge(ctx, begin, first, lead.read(ctx))
		if shared.Samples == 0 {
			_, err := lead.sampler.failures()
			return fmt.Errorf("no sample could be taken in %s: %w", span(duration), errors.Join(err, ctx.Err()))
		}
		atMost(readAtOnce, len(urls), func(i int) { own[i] = members[i].report(ctx, shared.Findings) })
		return ctx.Err()
	})
	return shared, own, err
}

// open connects to a database of the server that lead examines, reads it for the first time, and disconnects.
func (m *member) open(ctx context.Context, lead *Doctor, url string) {
	config, err := sessionConfig(url)
	if err != nil {
		m.err = err
		return
	}
	d := &Doctor{
		config: lead.config, meter: new(meter), clock: lead.clock, sampler: lead.sampler, prober: lead.prober, local: lead.local, part: theDatabase,
		session: &session{config: config, clock: lead.clock, redact: lead.session.redact},
	}
	d.session.meter = d.meter
	defer d.session.close()
	if d.server, m.err = readServer(ctx, d.session); m.err != nil {
		return
	}
	if d.server.databaseOID == lead.server.databaseOID {
		d.hot = lead.hot
	}
	m.doctor, m.begin = d, d.clock.now()
	m.first = d.read(ctx)
}

// report reads the database again, and judges what has happened meanwhile, as far as no finding of its server explains it.
func (m *member) report(ctx context.Context, shared []Finding) DatabaseReport {
	if m.err == nil {
		defer m.doctor.session.close()
		_, m.err = scalars[int32](ctx, m.doctor.session, "SELECT 1") // connects again
	}
	if m.err != nil {
		return DatabaseReport{Error: m.err.Error()}
	}
	for _, f := range shared {
		f.above = true
		m.doctor.above = append(m.doctor.above, f)
	}
	r := m.doctor.judge(ctx, m.begin, m.first, m.doctor.read(ctx))
	return DatabaseReport{Report: &r}
}

// atMost calls f for each of 0 to all-1, so many at a time.
func atMost(limit, all int, f func(int)) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(limit, all) {
		workers.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	workers.Wait()
}
