package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

var failing = []script{
	{promise: "sessions that end, and answers that are lost, cost no job and no attempt", pooled: true, run: func(s *stage) {
		const rounds, each = 8, 40
		d := s.start()
		d.answerAll(func(event) object { return object{"how": "return"} })
		d.work(object{"queues": object{"q": 8}})
		for round := range rounds {
			some := value[int](s, `SELECT count(*) FROM weir.batch`)
			s.exec(`SELECT weir.enqueue('q', 'alpha', '{}', max_attempts => 1) FROM generate_series(1, $1)`, each)
			pgtest.Until(s, "the worker claims jobs", func() bool { return value[int](s, `SELECT count(*) FROM weir.batch`) > some })
			if round%2 == 0 {
				s.endSessions()
			} else {
				s.line.Cut()
			}
		}
		s.allEnd(rounds * each)
		if n := value[int](s, `SELECT count(*) FROM weir.result WHERE outcome NOT IN ('released', 'completed')`); n > 0 {
			s.Errorf("%d results are neither completed nor released", n)
		}
		d.stopped()
	}},
	{promise: "a client goes on after its sessions have ended", pooled: true, run: func(s *stage) {
		d := s.start()
		for range 4 {
			id := patientlyEnqueue(s, d)
			s.until(id, "available")
			s.endSessions()
			s.line.Cut()
		}
	}},
	{promise: "a restart of the server costs no job", pooled: true, server: true, run: func(s *stage) {
		const each = 50
		d := s.start()
		d.answerAll(func(event) object { return object{"how": "return"} })
		d.work(object{"queues": object{"q": 8}})
		s.exec(`SELECT weir.enqueue('q', 'alpha', '{}') FROM generate_series(1, $1)`, each)
		pgtest.Until(s, "the worker claims jobs", func() bool { return value[int](s, `SELECT count(*) FROM weir.batch`) > 0 })
		for crash := range 2 {
			s.pool.Reset()
			var err error
			if crash == 0 {
				err = s.server.Stop(s.Context())
			} else {
				err = s.server.Kill()
			}
			if err == nil {
				err = s.server.Restart(s.Context())
			}
			if err != nil {
				s.Fatal(err)
			}
			pgtest.Eventually(s, func() error { return s.pool.Ping(s.Context()) })
			s.exec(`SELECT weir.enqueue('q', 'alpha', '{}') FROM generate_series(1, $1)`, each)
			s.allEnd((2 + crash) * each)
		}
		d.stopped()
	}},
	{promise: "a restart of the hub costs no job", via: "http", run: func(s *stage) {
		const each = 50
		d := s.start()
		d.answerAll(func(event) object { return object{"how": "return"} })
		d.work(object{"queues": object{"q": 8}})
		for range 3 {
			some := value[int](s, `SELECT count(*) FROM weir.batch`)
			s.exec(`SELECT weir.enqueue('q', 'alpha', '{}') FROM generate_series(1, $1)`, each)
			pgtest.Until(s, "the worker gets jobs", func() bool { return value[int](s, `SELECT count(*) FROM weir.batch`) > some })
			s.hub.Kill()
			s.hub.Restart()
		}
		s.allEnd(3 * each)
		d.stopped()
	}},
	{promise: "a hub that stops lets jobs end, and the client goes on at the next", via: "http", run: func(s *stage) {
		d := s.worker(nil)
		id := s.enqueue("max_attempts => 1")
		e := d.job(id)
		stopped := make(chan struct{})
		go func() { // ends with the hub, which waits for the job
			defer close(stopped)
			s.hub.Stop()
		}()
		pgtest.Until(s, "the hub is stopping", func() bool {
			answer, err := http.Get("http://" + s.hub.Address + "/readyz")
			if err != nil {
				return true
			}
			answer.Body.Close()
			return answer.StatusCode != http.StatusOK
		})
		d.finish(e, "return", object{"output": "in time"})
		if out := s.output(id); out != "in time" {
			s.Errorf("the output is %q", out)
		}
		pgtest.Receive(s, stopped, "the hub stops")
		s.hub.Restart()
		other := s.enqueue("max_attempts => 1")
		d.finish(d.job(other), "return", nil)
		s.until(other, "completed")
		d.none("interrupted")
		d.stopped()
	}},
	{promise: "a pool that is exhausted does not stop the worker", needs: []string{"transactions", "lease"}, run: func(s *stage) {
		d := s.start("WEIR_POOL=2")
		d.work(object{"lease": lease})
		var txs []int
		for range 2 {
			txs = append(txs, d.do("begin", nil).Tx)
		}
		long := d.job(s.enqueue("max_attempts => 1"))
		for begin := time.Now(); time.Since(begin) < 2*lease*time.Second; {
			id := s.enqueue()
			d.finish(d.job(id), "return", nil)
			s.until(id, "completed")
		}
		d.none("interrupted")
		d.finish(long, "return", nil)
		s.until(long.Job.ID, "completed")
		for _, tx := range txs {
			d.do("rollback", object{"tx": tx})
		}
	}},
	{promise: "time limits of the role do not stop a worker", run: func(s *stage) {
		for _, setting := range []string{`statement_timeout = '400ms'`, `lock_timeout = '200ms'`, `idle_in_transaction_session_timeout = '500ms'`, `idle_session_timeout = '300ms'`} {
			s.exec(`ALTER ROLE ` + s.role + ` SET ` + setting)
		}
		d := s.worker(object{"lease": lease})
		for range 3 {
			id := s.enqueue("max_attempts => 1")
			e := d.job(id)
			s.outlast(500 * time.Millisecond)
			d.finish(e, "return", nil)
			s.until(id, "completed")
		}
		other := patientlyEnqueue(s, d)
		d.finish(d.job(other), "return", nil)
		s.until(other, "completed")
		d.none("interrupted")
	}},
	{promise: "every job ends once, whatever happens", pooled: true, run: func(s *stage) {
		const jobs = 600
		seed := uint64(time.Now().UnixNano())
		s.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		s.exec(`SELECT weir.enqueue('q', 'alpha', jsonb_build_object('i', i), max_attempts => 20, key => CASE WHEN i % 2 = 0 THEN 'key ' || i % 14 END) FROM generate_series(1, $1) i`, jobs)
		s.exec(`SELECT weir.set_limit('q', running => 5, per_key => true)`)
		begin := func() *driver {
			d := s.start()
			d.answerAll(func(e event) object {
				if e.Job.ID%5 == 0 && e.Job.Attempt == 1 {
					return object{"how": "raise", "error": "the first attempt fails"}
				}
				if e.Job.ID%7 == 0 && contains(d.hello.Features, "complete") {
					return object{"how": "complete", "sql": effect(e.Job.ID), "then": "commit"}
				}
				return object{"how": "return", "output": fmt.Sprint(e.Job.ID)}
			})
			d.work(object{"queues": object{"q": 4}, "lease": lease, "stop_timeout": 1})
			return d
		}
		workers := []*driver{begin(), begin()}
		for range 12 {
			i := random.IntN(len(workers))
			switch random.IntN(4) {
			case 0:
				workers[i].kill()
				workers[i] = begin()
			case 1:
				s.endSessions()
			case 2:
				s.line.Cut()
			case 3:
				s.exec(`SELECT weir.cancel(id) FROM weir.jobs('running', max_rows => 2) ORDER BY id`)
			}
			before := s.ended()
			if before >= jobs {
				break
			}
			pgtest.Until(s, "another job ends", func() bool { return s.ended() > before })
		}
		s.allEnd(jobs)
		if n := value[int](s, `SELECT count(*) FROM (SELECT FROM effect GROUP BY job HAVING count(*) > 1) e`); n > 0 {
			s.Errorf("%d effects happened more than once", n)
		}
	}},
}

// patientlyEnqueue enqueues a job through a driver, which may find that its connection is lost.
func patientlyEnqueue(s *stage, d *driver) (id int64) {
	s.Helper()
	pgtest.Eventually(s, func() error {
		a, err := d.try("enqueue", object{"queue": "q", "kind": "alpha"})
		if err != nil {
			s.Fatal(err)
		}
		if a.Code != "" {
			return fmt.Errorf("enqueue failed with %q: %s", a.Code, a.Message)
		}
		id = a.ID
		return nil
	})
	return id
}
