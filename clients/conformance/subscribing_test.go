package conformance

import (
	"fmt"
	"strings"
)

// message waits for the next message of any subscription.
func (d *driver) message() event {
	d.t.Helper()
	return d.await("a message", func(e event) bool { return e.Event == "message" || e.Event == "gap" })
}

func (s *stage) publish(channel, payload string) {
	s.Helper()
	s.exec(`SELECT weir.publish($1, $2)`, channel, payload)
}

var subscribing = []script{
	{promise: "messages arrive in their order, those of the channels and patterns alone", needs: []string{"subscribe"}, run: func(s *stage) {
		d := s.start()
		n := d.do("subscribe", object{"channels": []string{"orders.*", "news", "Kanäle.>"}}).Subscription
		want := [][2]string{{"orders.1", "a"}, {"news", everything}, {"Kanäle.é 漢字.🚀", ""}, {"orders.2", strings.Repeat("ü", 500_000)}, {"news", `{"a": [1, 2]}`}}
		for _, m := range want {
			s.publish("orders", "not subscribed")
			s.publish("orders.1.2", "not subscribed")
			s.publish(m[0], m[1])
		}
		for i, m := range want {
			if e := d.message(); e.Event != "message" || e.Subscription != n || e.Channel != m[0] || e.Payload != m[1] || e.PayloadBase64 != nil || e.Position == "" {
				s.Errorf("message %d is %s, want %s", i, brief(e), brief(m))
			}
		}
		s.exec(`SELECT weir.publish_bytes('news', '\x00ff80')`)
		if e := d.message(); e.PayloadBase64 == nil || string(*e.PayloadBase64) != "\x00\xff\x80" {
			s.Errorf("a binary payload arrived as %+v", e)
		}
		d.do("unsubscribe", object{"subscription": n})
		d.do("subscribe", object{"channels": []string{"other"}})
		s.publish("news", "late")
		s.publish("other", "last")
		if e := d.message(); e.Payload != "last" {
			s.Errorf("after unsubscribe, %q arrives", e.Payload)
		}
	}},
	{promise: "a subscription goes on where it was, whatever happens to its connection", needs: []string{"subscribe"}, run: func(s *stage) {
		const rounds, each = 6, 20
		d := s.start()
		d.do("subscribe", object{"channels": []string{"c"}})
		for round := range rounds {
			s.exec(`SELECT weir.publish('c', ($1::int * $2::int + i)::text) FROM generate_series(0, $2::int - 1) i`, round, each)
			if round%2 == 1 { // before or after some have arrived
				d.order(round * each)
			}
			switch round % 3 {
			case 0:
				s.toHub.Cut()
			case 1:
				s.hub.Kill()
				s.exec(`SELECT weir.publish('other', 'while there is no hub')`)
				s.hub.Restart()
			}
			for i := range each {
				if round%2 == 0 || i > 0 {
					d.order(round*each + i)
				}
			}
		}
		d.none("message")
		d.none("gap")
	}},
	{promise: "a program that starts again goes on from the position that it has kept", needs: []string{"subscribe"}, run: func(s *stage) {
		first := s.start()
		first.do("subscribe", object{"channels": []string{"c"}})
		s.publish("c", "0")
		s.publish("c", "1")
		at := first.order(0)
		first.order(1)
		first.kill()
		s.publish("c", "2")
		second := s.start()
		second.do("subscribe", object{"channels": []string{"c"}, "after": at})
		second.order(1)
		second.order(2)
		s.publish("c", "3")
		second.order(3)
		third := s.start()
		third.do("subscribe", object{"channels": []string{"c"}}) // from now on
		s.publish("c", "4")
		third.order(4)
	}},
	{promise: "a gap is reported where messages may be missing", needs: []string{"subscribe"}, run: func(s *stage) {
		d := s.start()
		d.do("subscribe", object{"channels": []string{"c"}, "after": "1.1.1"}) // from another log
		e := d.message()
		if e.Event != "gap" || e.Reason != "unknown" || e.Position == "" {
			s.Errorf("instead of a gap, for a position of another log, came %+v", e)
		}
		s.publish("c", "0")
		d.order(0)
	}},
	{promise: "a subscription that is not allowed is refused", needs: []string{"subscribe"}, run: func(s *stage) {
		d := s.start()
		d.refuse("subscribe", object{"channels": []string{strings.Repeat("c", 300)}}, "invalid")
		d.refuse("subscribe", object{"channels": []string{}}, "invalid")
		d.refuse("subscribe", object{"channels": []string{"c"}, "after": "yesterday"}, "invalid")
		d.do("subscribe", object{"channels": []string{"c"}})
		s.publish("c", "0")
		d.order(0)
	}},
	{promise: "what is published arrives as it was", needs: []string{"publish", "subscribe"}, run: func(s *stage) {
		d := s.start()
		d.do("subscribe", object{"channels": []string{">"}})
		for _, text := range []string{everything, "", "null", strings.Repeat("ü", 500_000)} {
			d.do("publish", object{"channel": "Kanal 漢字", "payload": text})
			if e := d.message(); e.Channel != "Kanal 漢字" || e.Payload != text {
				s.Errorf("%.100q arrived as %s", text, brief(e))
			}
		}
		d.refuse("publish", object{"channel": strings.Repeat("c", 300), "payload": ""}, "invalid")
		d.refuse("publish", object{"channel": "c", "payload": strings.Repeat("x", 1<<20+1)}, "invalid")
	}},
}

// order waits for the message with this number as its payload, and returns its position.
func (d *driver) order(n int) string {
	d.t.Helper()
	e := d.message()
	if e.Event != "message" || e.Payload != fmt.Sprint(n) {
		d.t.Fatalf("message %d is %s", n, brief(e))
	}
	return e.Position
}
