package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/clock"
)

const (
	subprotocol = "weir.work.v1"
	pingEvery   = 10 * time.Second // or a third of the lease
	openFor     = 10 * time.Second // within which a client must say what it wants
	writeFor    = 30 * time.Second
	frameRate   = 20_000  // frames a second that are read of a client: a worker may record each end in one of its own; the others wait in its connection
	maxPending  = 10_000  // ends of a session that are being recorded at once; further ones wait in its connection
	endBytes    = 4 << 10 // of a frame count as one of them: what is to be recorded stays in memory
	maxReplyID  = 100
)

// Close codes, as those of messages.
const (
	closeStopping websocket.StatusCode = 1012
	closeExpired  websocket.StatusCode = 4401
	closeReplaced websocket.StatusCode = 4409
)

// session is a WebSocket.
type session struct {
	*endpoints
	conn    *websocket.Conn
	remote  string // the client's address
	call    *Call
	queues  []string
	pending *semaphore.Weighted // of ends that are being recorded
	frames  *rate.Limiter
	tasks   sync.WaitGroup
	stopped atomic.Bool  // it has asked to stop: the answer to that closes it
	sending atomic.Int32 // frames that are being written
	awaits  clock.Last   // when it began to wait for the next frame
	waiting atomic.Bool  // for the next frame; otherwise one is arriving, or being carried out, and a pong would wait behind it

	mu       sync.Mutex
	caller   web.Caller
	grant    web.Grant
	revision uint64
	accepted int // how many times a token was
}

// request is what a client sends.
type request struct {
	Type    string          `json:"type"`
	ID      json.RawMessage `json:"id"`
	Token   string          `json:"token"`
	Ends    web.List[End]   `json:"ends"`
	Entries json.RawMessage `json:"entries"`
	opening
	size int // bytes of its frame
}

// message is what the hub sends.
type message struct {
	Type     string          `json:"type"`
	ID       json.RawMessage `json:"id,omitempty"`
	Worker   string          `json:"worker,omitempty"`
	Lease    float64         `json:"lease,omitempty"`
	Jobs     []Job           `json:"jobs,omitempty"`
	Attempts []Interrupted   `json:"attempts,omitempty"`
	Results  []Result        `json:"results,omitempty"`
	Expires  *time.Time      `json:"expires,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	*web.Failure
}

func (e *endpoints) serveWebSocket(rw http.ResponseWriter, r *http.Request) {
	caller, release, err := e.gate.Admit(r)
	if err != nil {
		e.gate.Refuse(rw, "open a session", err)
		return
	}
	served := false
	defer func() {
		if !served {
			release()
		}
	}()
	s := &session{endpoints: e, caller: caller, remote: caller.Remote, pending: semaphore.NewWeighted(maxPending), frames: rate.NewLimiter(frameRate, frameRate), revision: e.gate.Revision()}
	if s.grant, err = e.gate.Authorize(r.Context(), caller, web.Work); err != nil {
		e.gate.Refuse(rw, "open a session", err)
		return
	}
	// The origin was checked by the gate.
	s.conn, err = websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it has answered
	}
	s.conn.SetReadLimit(maxBody)
	served = true
	go func() { // the request, and the stack that served it, are not needed any more
		defer release()
		defer func() { _ = s.conn.CloseNow() }()
		s.serve()
	}()
}

// serve serves the session until its connection ends.
func (s *session) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	defer s.tasks.Wait()
	defer cancel()
	if !s.open(ctx) {
		return
	}
	defer s.call.Close(true)
	s.tasks.Go(func() { s.tell(ctx) })
	s.tasks.Go(func() { s.ping(ctx) })
	for {
		r, err := s.next(ctx)
		if err != nil {
			return
		}
		s.call.Heard()
		if s.frames.Wait(ctx) != nil {
			return
		}
		// Processing a request needs a larger stack than waiting for one, and this goroutine would keep it.
		goes := make(chan bool)
		go func() { goes <- s.do(ctx, r) }()
		if !<-goes {
			return
		}
	}
}

var errFrame = errors.New("not a request")

// next reads a request; one that is none is answered.
func (s *session) next(ctx context.Context) (*request, error) {
	for {
		s.awaits.Now()
		s.waiting.Store(true)
		kind, frame, err := s.conn.Reader(ctx)
		s.waiting.Store(false)
		if err != nil {
			return nil, err
		}
		b, done, err := s.gate.ReadFrom(ctx, frame, func() { _ = s.conn.CloseNow() })
		if err != nil {
			return nil, err
		}
		r := &request{}
		err = errFrame
		if kind == websocket.MessageText {
			err = json.Unmarshal(b, r)
		}
		r.size = len(b)
		done()
		if err == nil && len(r.ID) > maxReplyID {
			r.ID, err = nil, fmt.Errorf("its id is longer than %d bytes", maxReplyID)
		}
		if err == nil {
			return r, nil
		}
		s.refuse(ctx, nil, &BadError{"the frame is not a valid request: " + web.Unreadable(err), `send a JSON object in a text frame, such as {"type": "open", "queues": {"mail": 8}}`})
	}
}

// open waits for the first request, and opens the session.
func (s *session) open(ctx context.Context) bool {
	soon, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	for {
		r, err := s.next(soon)
		if err != nil {
			return false
		}
		if r.Type != "open" {
			s.refuse(ctx, r.ID, &BadError{fmt.Sprintf("the session is not open, got %.50q", r.Type), `send {"type": "open", "queues": …} first`})
			continue
		}
		s.queues = slices.Sorted(maps.Keys(r.Queues))
		if _, err := s.authorize(ctx, s.caller); err != nil {
			s.refuse(ctx, r.ID, err)
			continue
		}
		o := r.opening
		if s.call, err = s.Open(ctx, Opening{o.Worker, o.Name, o.Queues, o.Kinds, o.Held, o.Call}, true); err != nil {
			s.refuse(ctx, r.ID, err)
			continue
		}
		if s.send(ctx, message{Type: "opened", ID: r.ID, Worker: s.call.ID(), Lease: s.Lease.Seconds()}) != nil {
			s.call.Close(true) // or jobs would be given to nobody
			return false
		}
		return true
	}
}

// authorize asks whether the client may work the session's queues, and keeps its grant.
func (s *session) authorize(ctx context.Context, as web.Caller) (web.Grant, error) {
	revision := s.gate.Revision()
	grant, err := s.gate.Authorize(ctx, as, web.Work, s.queues...)
	if err != nil {
		return grant, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives(as, grant, revision)
	return grant, nil
}

// lives keeps what a token that was accepted grants; the caller holds mu.
func (s *session) lives(as web.Caller, grant web.Grant, revision uint64) {
	s.caller, s.grant, s.revision = as, grant, revision
	s.accepted++
}

// stillGood asks again for the session's token if the revision has changed; false: it is refused. If the client sends another token meanwhile, that one decides.
func (s *session) stillGood(ctx context.Context) bool {
	revision := s.gate.Revision()
	s.mu.Lock()
	before, accepted, caller := s.revision, s.accepted, s.caller
	s.mu.Unlock()
	if before == revision {
		return true
	}
	grant, err := s.gate.Authorize(ctx, caller, web.Work, s.queues...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted != accepted {
		return true
	}
	var refusal *web.Failure
	if err == nil {
		s.lives(caller, grant, revision)
	}
	return !errors.As(err, &refusal) || refusal.Status == http.StatusServiceUnavailable
}

// do carries out a request; false: the session is over.
func (s *session) do(ctx context.Context, r *request) bool {
	var err error
	switch r.Type {
	case "slots":
		err = s.call.Slots(r.Queues)
	case "record":
		if err = checkEnds(len(r.Ends)); err == nil {
			s.later(ctx, max(len(r.Ends), r.size/endBytes), func() {
				ctx, cancel := context.WithTimeout(ctx, recordFor)
				defer cancel()
				results := s.Record(ctx, r.Ends, false)
				s.call.Ended(results)
				_ = s.send(ctx, message{Type: "recorded", ID: r.ID, Results: results})
			})
		}
	case "progress":
		s.later(ctx, max(maxEntries, r.size/endBytes), func() {
			results, err := s.Report(ctx, r.Entries)
			if err != nil {
				s.refuse(ctx, r.ID, err)
				return
			}
			_ = s.send(ctx, message{Type: "reported", ID: r.ID, Results: results})
		})
	case "auth":
		var grant web.Grant
		if grant, err = s.authorize(ctx, web.Caller{Token: r.Token, Remote: s.remote}); err == nil {
			m := message{Type: "authorized", ID: r.ID}
			if !grant.Expires.IsZero() {
				m.Expires = &grant.Expires
			}
			_ = s.send(ctx, m)
		}
	case "ping":
		_ = s.send(ctx, message{Type: "pong", ID: r.ID})
	case "stop":
		if !s.hasRoom(ctx, maxPending) { // ends that it sent before are recorded, and answered, before
			return false
		}
		s.stopped.Store(true)
		soon, cancel := context.WithTimeout(ctx, recordFor)
		s.End(soon, s.call.ID())
		cancel()
		_ = s.send(ctx, message{Type: "stopped", ID: r.ID})
		_ = s.conn.Close(websocket.StatusNormalClosure, "the worker has stopped")
		return false
	case "open":
		err = &BadError{"the session is open already", "open another connection"}
	default:
		err = &BadError{fmt.Sprintf("%.50q is not a type of request", r.Type), "use slots, record, progress, auth, ping or stop"}
	}
	if err != nil {
		s.refuse(ctx, r.ID, err)
	}
	return true
}

// later carries out what waits for the database, beside the next requests, with so many ends.
func (s *session) later(ctx context.Context, ends int, f func()) {
	if !s.hasRoom(ctx, int64(ends)) {
		return
	}
	s.tasks.Go(func() {
		defer s.pending.Release(int64(ends))
		f()
	})
}

// silent is for how long the client has sent nothing.
func (s *session) silent() time.Duration {
	if !s.waiting.Load() {
		return 0
	}
	return s.awaits.Ago()
}

// hasRoom waits until so few ends are being recorded that there is room for more; false: the session is over.
func (s *session) hasRoom(ctx context.Context, ends int64) bool {
	if s.pending.TryAcquire(ends) {
		return true
	}
	for ctx.Err() == nil {
		s.call.Heard() // it is not the client that is silent
		soon, cancel := context.WithTimeout(ctx, s.Lease/6)
		err := s.pending.Acquire(soon, ends)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// tell sends the client its jobs, and what to interrupt, until the session is over or the hub stops. Nothing else closes the session of a hub that stops, because what has been taken here
// would not be sent any more.
func (s *session) tell(ctx context.Context) {
	if len(s.call.Lost) > 0 {
		_ = s.send(ctx, message{Type: "cancel", Attempts: s.call.Lost})
	}
	lasting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.gate.Context(), cancel)()
	for lasting.Err() == nil {
		news, err := s.call.Wait(lasting)
		if err != nil {
			if s.stopped.Load() {
				return
			}
			code := websocket.StatusNormalClosure
			if errors.Is(err, errRenewed) {
				code = closeReplaced
			}
			_ = s.conn.Close(code, err.Error())
			return
		}
		if s.pass(ctx, news) != nil {
			_ = s.conn.CloseNow()
			return
		}
	}
	if ctx.Err() == nil {
		news, _ := s.call.take() // what was interrupted at the end
		_ = s.pass(ctx, news)
		_ = s.conn.Close(closeStopping, "this hub is stopping")
	}
}

// pass sends news.
func (s *session) pass(ctx context.Context, news News) (err error) {
	before, after := news.interrupted()
	if len(before) > 0 {
		err = s.send(ctx, message{Type: "cancel", Attempts: before})
	}
	if len(news.Jobs) > 0 && err == nil {
		err = s.send(ctx, message{Type: "jobs", Jobs: news.Jobs})
	}
	if len(after) > 0 && err == nil {
		err = s.send(ctx, message{Type: "cancel", Attempts: after})
	}
	if len(news.Warnings) > 0 && err == nil {
		err = s.send(ctx, message{Type: "warning", Warnings: news.Warnings})
	}
	if news.Quiet && err == nil {
		err = s.send(ctx, message{Type: "quiet"})
	}
	if news.Trouble != nil && err == nil {
		s.refuse(ctx, nil, news.Trouble)
	}
	return err
}

// ping checks that the client is alive and its token valid, until the session is over.
func (s *session) ping(ctx context.Context) {
	pause := min(pingEvery, s.Lease/3)
	for {
		next := pause
		if already := s.silent(); already < pause {
			next -= already // when it will have been silent for a pause: one that is gone is noticed within three
		}
		s.mu.Lock()
		grant := s.grant
		s.mu.Unlock()
		var expires <-chan time.Time
		if !grant.Expires.IsZero() {
			expires = time.After(time.Until(grant.Expires))
		}
		select {
		case <-time.After(next):
		case <-expires:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		expired := s.grant.Expired(time.Now())
		s.mu.Unlock()
		if expired || !s.stillGood(ctx) {
			_ = s.conn.Close(closeExpired, "the token has expired")
			return
		}
		// What is being sent comes before a ping, and fails if the client does not read it.
		if s.silent() >= pause && s.sending.Load() == 0 && !s.answersPing(ctx, pause) {
			_ = s.conn.CloseNow()
			return
		}
		s.call.Heard()
		brief, cancel := context.WithTimeout(ctx, pause)
		_ = s.pass(ctx, News{Interrupted: s.call.Renew(brief)}) // if it can't be written, the next ping fails
		cancel()
	}
}

// answersPing asks a client that has been silent. One that sends is alive; and while this hub does not read it, it could not answer, and some libraries give the connection up that can't be
// written to for five seconds.
func (s *session) answersPing(ctx context.Context, pause time.Duration) bool {
	asked := time.Now()
	alive, cancel := context.WithTimeout(ctx, 2*pause)
	defer cancel()
	err := s.conn.Ping(alive)
	return err == nil ||
		s.sending.Load() > 0 || // which has begun since, and which the ping may have waited for
		alive.Err() != nil && s.silent() <= time.Since(asked) // it has sent something else, behind which its answer may be
}

func (s *session) refuse(ctx context.Context, id json.RawMessage, err error) {
	_ = s.send(ctx, message{Type: "error", ID: id, Failure: s.gate.Explain("carry out a worker's request", asFailure(err))})
}

func (s *session) send(ctx context.Context, m message) error {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	if err := to.Encode(m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeFor)
	defer cancel()
	s.sending.Add(1)
	defer s.sending.Add(-1)
	return s.conn.Write(ctx, websocket.MessageText, bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
