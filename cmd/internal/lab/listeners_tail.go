package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// tail is a load of notifications, during which one of two listeners is in a transaction: for a time, or until commits have failed for a while. Its
// place in the queue is where it was, and the queue keeps everything from there on.
type tail struct {
	calm, held, after time.Duration // before the transaction, the longest time of it, and after it
	rate              float64       // notifications per second
	payload           string
	pages             int // of the queue, of 8 kB
}

const (
	queueUsed       = "queue used"
	refusedPerS     = "commits refused"
	refusedInAll    = "commits refused in all"
	inTransaction   = "in the transaction for"
	mostUsed        = "most of the queue used"
	fullAfter       = "queue full after"
	emptyAfter      = "queue empty after the transaction's end"
	notEmpty        = "queue not empty within"
	otherReceived   = "received by the other listener"
	lateReceived    = "received by the listener in the transaction, in all"
	lateClosed      = "connections closed of the listener in the transaction"
	emptyPages      = 3 // of the queue, in which what has just been sent may be
	tailQueuePages  = 256
	defaultPages    = 1 << 20 // 8 GB, before PostgreSQL 17 always
	tailNotifiers   = 4
	queueTooFull    = "54000" // program_limit_exceeded
	tailChannel     = "weir_lab_tail"
	tailName        = ": one listener in a transaction"
	tailPayloadMost = 7900
)

// runTail measures the lagging listener on a server of its own, whose queue is small enough to fill in seconds, and the same through the hub.
func runTail(ctx context.Context, r *run, posts []post) error {
	where, pages, closeSite, err := tailSite(ctx, r)
	defer closeSite()
	if err != nil {
		return err
	}
	for _, s := range []*site{r.site, where} {
		if _, err := s.guard.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS weir_lab; DROP TABLE IF EXISTS weir_lab.entry; `+makeEntry); err != nil {
			return err
		}
	}
	t := &tail{calm: r.Duration / 4, held: r.Duration, after: r.Duration / 4, pages: pages}
	if pages != defaultPages { // it fills, but on a busy machine not as soon as planned
		t.held *= 3
	}
	if err := t.tune(ctx, where, r.Duration/3); err != nil {
		return err
	}
	var tracks []*track
	for _, p := range posts {
		at := r.site
		if p.kind == Collapse {
			at = where
			p.listen, p.notify = where.url, where.url
		}
		k, err := t.measure(ctx, r, p, at)
		if err != nil {
			return err
		}
		tracks = append(tracks, k)
	}
	marks := []Mark{{At: t.calm.Seconds(), Until: (t.calm + t.held).Seconds(), Label: "a listener is in a transaction"}} // as long as it was
	r.chartGauge(tracks, queueUsed, Chart{Title: "The queue of NOTIFY while a listener is in a transaction", Note: "pg_notification_queue_usage(); the hub's messages are not in it", Y: Axis{Label: "percent"}, Marks: marks})
	r.chartGauge(tracks, refusedPerS, Chart{Title: "Commits that fail while a listener is in a transaction", Note: "of sessions that have nothing to do with the listener", Y: Axis{Label: "per second"}, Marks: marks})
	return nil
}

// tailSite returns where PostgreSQL's queue is measured, and how many pages it has.
func tailSite(ctx context.Context, r *run) (s *site, pages int, closeSite func(), err error) {
	if r.site.server == nil || r.site.number < 170000 {
		r.note("The queue of NOTIFY holds 8 GB here, which a short run can't fill: only PostgreSQL 17 and later on a private server can have a smaller one.")
		return r.site, defaultPages, func() {}, nil
	}
	s = &site{number: r.site.number}
	closeSite = func() {
		if s.guard != nil {
			closeConn(s.guard)
		}
		_ = s.close()
	}
	parameters := map[string]string{"max_notify_queue_pages": fmt.Sprint(tailQueuePages), "shared_buffers": "64MB"}
	if err := s.start(ctx, r.Major, needs{connections: tailNotifiers + 20, parameters: parameters}, r.say); err != nil {
		return s, 0, closeSite, err
	}
	if s.guard, err = connect(ctx, s.url, watcherName, nil); err != nil {
		return s, 0, closeSite, err
	}
	return s, tailQueuePages, closeSite, nil
}

// tune measures how fast the sessions can notify, and chooses half of that, and payloads that fill a small queue within a time. An entry of the
// queue holds its payload and some thirty bytes.
func (t *tail) tune(ctx context.Context, s *site, fills time.Duration) error {
	notifiers, err := openSessions(ctx, s.url, tailNotifiers, nil)
	if err != nil {
		return err
	}
	defer notifiers.close()
	lasts := max(t.calm/4, 100*time.Millisecond)
	until, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	m := load.NewTally()
	begun := time.Now()
	if err := notifiers.work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		return t.notify(ctx, conn, `SELECT pg_notify($1, $2)`)
	}); err != nil {
		return err
	}
	done, _ := m.Cut()
	t.rate = max(float64(done)/time.Since(begun).Seconds()/2, 5)
	bytes := float64(min(t.pages, tailQueuePages)) * 8192 / (t.rate * fills.Seconds())
	t.payload = strings.Repeat("x", int(min(max(bytes-30, 10), tailPayloadMost)))
	return nil
}

// notify inserts a row and notifies, in one transaction.
func (t *tail) notify(ctx context.Context, conn *pgx.Conn, send string) error {
	return transaction(ctx, conn, func(b *pgx.Batch) {
		b.Queue(insertEntry)
		b.Queue(send, tailChannel, t.payload)
	})
}

// measure measures one post.
func (t *tail) measure(ctx context.Context, r *run, p post, s *site) (*track, error) {
	way := &Way{Name: p.name + tailName, Kind: p.kind, Unit: "transactions", What: fmt.Sprintf("%s transactions per second insert a row and notify %d bytes; one of two listeners is in a "+
		"transaction meanwhile", Number(t.rate), len(t.payload))}
	if p.kind == Collapse && t.pages != defaultPages {
		way.Settings = []Setting{{"max_notify_queue_pages", fmt.Sprint(t.pages)}}
	}
	total := t.calm + t.held + t.after
	k := newTrack(way, total)
	k.latencyOf = "from the request's arrival to its commit"
	listeners, err := openSessions(ctx, p.listen, 2, nil)
	if err != nil {
		return nil, err
	}
	defer listeners.close()
	if err := listeners.exec(ctx, `LISTEN `+tailChannel); err != nil {
		return nil, err
	}
	notifiers, err := openSessions(ctx, p.notify, tailNotifiers, nil)
	if err != nil {
		return nil, err
	}
	defer notifiers.close()
	watcher, err := connect(ctx, s.url, watcherName, nil)
	if err != nil {
		return nil, err
	}
	defer closeConn(watcher)
	var refused atomic.Int64
	usage := func(ctx context.Context) (percent float64, err error) {
		err = watcher.QueryRow(ctx, `SELECT 100 * pg_notification_queue_usage()`).Scan(&percent)
		return percent, err
	}
	w := newTailWatch(t.pages)
	begun := time.Now()
	gauges := []gauge{
		{queueUsed, func(ctx context.Context) (float64, error) {
			percent, err := usage(ctx)
			w.see(time.Since(begun), percent)
			return percent, err
		}},
		rateOf(refusedPerS, func(context.Context) (float64, error) { return float64(refused.Load()), nil }),
	}
	received := 0
	err = r.measure(ctx, k, total, nil, gauges, func(until context.Context, m *load.Tally) error {
		until, over := context.WithCancel(until)
		defer over()
		a := &arrivals{pace: pace{{total, t.rate}}, begun: begun}
		slow, other := make(chan error, 1), make(chan error, 1)
		go func() { // both end with until, and are waited for
			err := t.lag(ctx, until, listeners.conns[0], begun, w)
			over()
			slow <- err
		}()
		go func() {
			other <- answer(until, listeners.conns[1], func(context.Context) error { received++; return nil })
		}()
		err := notifiers.each(ctx, until, func(until context.Context, conn *pgx.Conn, _ int) error {
			for {
				_, at, ok := a.next(until)
				if !ok {
					return nil
				}
				err := t.notify(ctx, conn, p.send)
				var full *pgconn.PgError
				switch {
				case errors.As(err, &full) && full.Code == queueTooFull:
					if n := refused.Add(1); n == 1 {
						w.firstNo.Store(int64(time.Since(begun)))
						close(w.full)
					}
				case err != nil:
					return err
				default:
					m.Did(1, time.Since(at))
				}
			}
		})
		return errors.Join(err, <-slow, <-other)
	})
	if err != nil {
		return nil, err
	}
	k.sum()
	r.result.Ways = append(r.result.Ways, way)
	way.Figures = append(way.Figures, Figure{refusedInAll, float64(refused.Load()), "commits"}, Figure{otherReceived, round(ratio(float64(received), way.Seconds)), "per second"},
		Figure{lateReceived, float64(w.late), "messages"})
	if w.closed {
		way.Figures = append(way.Figures, Figure{lateClosed, 1, "connection"})
	}
	if ended := time.Duration(w.ended.Load()); ended > t.calm {
		t.held = ended - t.calm // and so long for those that follow
	}
	way.Figures = append(way.Figures, Figure{inTransaction, round(t.held.Seconds()), "s"})
	if p.kind == Collapse {
		way.Figures = append(way.Figures, w.figures(t)...)
	}
	return k, nil
}

// lag is the listener that is in a transaction. Through a hub its connection may be closed meanwhile, because too much is queued for it.
func (t *tail) lag(ctx, until context.Context, conn *pgx.Conn, begun time.Time, w *tailWatch) error {
	calm, cancel := context.WithDeadline(until, begun.Add(t.calm))
	defer cancel()
	count := func(context.Context) error { w.late++; return nil }
	if err := answer(calm, conn, count); err != nil || until.Err() != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `BEGIN`); err != nil {
		return err
	}
	sleep.Until(until, t.held, w.full)
	select {
	case <-w.full:
		sleep.For(until, t.calm) // so that it is seen for how long commits fail
	default:
	}
	_, err := conn.Exec(ctx, `COMMIT`)
	ended := time.Since(begun)
	w.ended.Store(int64(ended))
	last, cancel := context.WithTimeout(until, t.after)
	defer cancel()
	if err == nil {
		err = answer(last, conn, count)
	}
	w.closed = err != nil && until.Err() == nil
	sleep.For(last, t.after)
	return nil
}

// tailWatch keeps when the queue was full and empty again.
type tailWatch struct {
	small   float64 // percent of the queue that count as empty
	most    float64
	late    int           // what the listener in the transaction has received
	closed  bool          // its connection was
	empty   time.Duration // since the transaction's end; -1: never
	full    chan struct{} // closed when a commit is refused
	firstNo atomic.Int64  // nanoseconds since the beginning: of the first commit that is refused,
	ended   atomic.Int64  // and of the transaction's end; 0: not yet
}

func newTailWatch(pages int) *tailWatch {
	return &tailWatch{empty: -1, full: make(chan struct{}), small: 100 * emptyPages / float64(pages)}
}

func (w *tailWatch) see(at time.Duration, percent float64) {
	w.most = max(w.most, percent)
	if ended := time.Duration(w.ended.Load()); ended > 0 && percent < w.small && w.empty < 0 {
		w.empty = at - ended
	}
}

func (w *tailWatch) figures(t *tail) []Figure {
	out := []Figure{{mostUsed, round(w.most), "%"}}
	if no := w.firstNo.Load(); no > 0 {
		out = append(out, Figure{fullAfter, round(max(time.Duration(no)-t.calm, 0).Seconds()), "s"})
	}
	if w.empty < 0 {
		return append(out, Figure{notEmpty, round(t.after.Seconds()), "s"})
	}
	return append(out, Figure{emptyAfter, round(w.empty.Seconds()), "s"})
}

// tailText says what the listener did to others.
func tailText(r *Result) (sentences []string) {
	pg := r.Way("PostgreSQL" + tailName)
	if pg == nil {
		return nil
	}
	figure := func(w *Way, name string) float64 { v, _ := w.Figure(name); return v }
	refused := figure(pg, refusedInAll)
	text := fmt.Sprintf("While one listener is in a transaction for %s s, the queue of NOTIFY, which the whole cluster shares, fills to %s%%", Number(figure(pg, inTransaction)), Number(figure(pg, mostUsed)))
	switch after, full := pg.Figure(fullAfter); {
	case full:
		text += fmt.Sprintf(": it is full after %s s, and from then on commits that notify fail, %s of them, although they have nothing to do with that listener", Number(after), Number(refused))
	default:
		text += ", and no commit fails yet"
	}
	if s, ok := pg.Figure(emptyAfter); ok {
		text += fmt.Sprintf("; it is empty %s s after the transaction's end", Number(s))
	}
	itself := func(w *Way) string { // what became of the listener in the transaction
		text := fmt.Sprintf("the one in the transaction received %s of %s messages", Number(figure(w, lateReceived)), Number(float64(w.Done)))
		if _, closed := w.Figure(lateClosed); closed {
			text += ", and its connection was closed"
		}
		return text
	}
	sentences = append(sentences, text+"; "+itself(pg)+".")
	if hub := r.Way("hub" + tailName); hub != nil {
		sentences = append(sentences, fmt.Sprintf("With the listener at the hub, %s commits fail, and the other listener receives %s messages per second; %s.", Number(figure(hub, refusedInAll)),
			Number(figure(hub, otherReceived)), itself(hub)))
	}
	return sentences
}
