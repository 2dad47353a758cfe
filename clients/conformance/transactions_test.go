package conformance

import "encoding/json"

// plain is what JSON makes of a value.
func plain(v any) (p any) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		panic(err)
	}
	return p
}

var transactions = []script{
	{promise: "a job of a transaction runs after the commit, and never after a rollback", needs: []string{"transactions"}, pooled: true, run: func(s *stage) {
		d := s.worker(nil)
		for _, end := range []string{"rollback", "commit"} {
			tx := d.do("begin", nil).Tx
			id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "tx": tx}).ID
			d.do("sql", object{"tx": tx, "sql": effect(id)})
			other := s.enqueue()
			d.finish(d.job(other), "return", nil) // of the two jobs, only this one can be claimed
			s.until(other, "completed")
			d.none("job")
			d.do(end, object{"tx": tx})
			if end == "commit" {
				d.finish(d.job(id), "return", nil)
				s.until(id, "completed")
			}
			if there := s.effects(id) == 1; there != (end == "commit") {
				s.Errorf("after the %s, what the transaction did is there: %v", end, there)
			}
		}
		d.stopped()
		d.none("job")
	}},
	{promise: "many jobs of a transaction run after the commit, and never after a rollback", needs: []string{"transactions"}, run: func(s *stage) {
		d := s.start()
		for _, end := range []string{"rollback", "commit"} {
			tx := d.do("begin", nil).Tx
			all := d.do("enqueue_many", object{"tx": tx, "jobs": []object{{"queue": "q", "kind": "alpha"}, {"queue": "q", "kind": "alpha", "unique": object{}}, {"queue": "q", "kind": "beta"}}}).Jobs
			if len(all) != 3 {
				s.Fatalf("the results are %v", all)
			}
			d.do(end, object{"tx": tx})
			if n := value[int](s, `SELECT count(*) FROM weir.jobs('available')`); (n > 0) != (end == "commit") {
				s.Errorf("after the %s there are %d jobs", end, n)
			}
		}
	}},
	{promise: "an error in a transaction costs nothing but the transaction", needs: []string{"transactions"}, pooled: true, run: func(s *stage) {
		d := s.start()
		for range 10 { // more than the pool has connections
			tx := d.do("begin", nil).Tx
			d.do("enqueue", object{"queue": "q", "kind": "alpha", "tx": tx})
			d.refuse("enqueue", object{"queue": "q", "kind": "alpha", "flow": 4711, "tx": tx}, "invalid", "not_found")
			d.do("rollback", object{"tx": tx})
		}
		if n := value[int](s, `SELECT count(*) FROM weir.jobs('available')`); n > 0 {
			s.Errorf("%d jobs of transactions that were rolled back are there", n)
		}
		tx := d.do("begin", nil).Tx
		id := d.do("enqueue", object{"queue": "q", "kind": "alpha", "tx": tx}).ID
		d.do("commit", object{"tx": tx})
		s.until(id, "available")
	}},
	{promise: "a message of a transaction is published by its commit alone", needs: []string{"transactions", "publish", "subscribe"}, run: func(s *stage) {
		d := s.start()
		d.do("subscribe", object{"channels": []string{"c"}})
		for _, end := range []string{"rollback", "commit"} {
			tx := d.do("begin", nil).Tx
			d.do("publish", object{"channel": "c", "payload": end, "tx": tx})
			d.do(end, object{"tx": tx})
		}
		if e := d.message(); e.Payload != "commit" {
			s.Errorf("received %q, which was rolled back", e.Payload)
		}
	}},
}
