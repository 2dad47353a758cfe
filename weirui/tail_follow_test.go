package weirui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

func arrive(t *testing.T, to *tail, tick int64, n int) {
	t.Helper()
	events := make([]hub.Event, n)
	for i := range events {
		events[i] = hub.Event{Message: &hub.Message{Channel: "c", Payload: fmt.Append(nil, i), Position: hub.Position{Epoch: 1, Tick: tick, Index: int32(i + 1)}}}
	}
	if err := to.Deliver(events); err != nil {
		t.Error(err)
	}
}

// The tests of this file run in time of their own, and so wait for nothing.

func TestATailWithoutMessagesShowsThatItLivesAndEndsSomeTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, began := httptest.NewRecorder(), time.Now()
		newEventStream(w).follow(t.Context(), nil, &UI{}, newTail(), func() hub.Position { return hub.Position{Epoch: 1, Tick: 2, Index: 3} })
		if took := time.Since(began); took != tailFor {
			t.Errorf("it ended after %s, want %s", took, tailFor)
		}
		if n, want := strings.Count(w.Body.String(), ":\nid: 1.2.3\n\n"), int(tailFor/tailBeat)-1; n < want {
			t.Errorf("it has shown %d times that it lives, want %d: %s", n, want, w.Body)
		}
	})
}

func TestATailShowsSoManyMessagesInASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seconds, inEach = 5, 10
		w, to := httptest.NewRecorder(), newTail()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			newEventStream(w).follow(ctx, nil, &UI{}, to, func() hub.Position { return hub.Position{} })
		}()
		for i := range seconds * inEach {
			arrive(t, to, int64(i+1), tailRate)
			time.Sleep(time.Second / inEach)
		}
		time.Sleep(time.Second)
		stop()
		<-done
		shown, left := strings.Count(w.Body.String(), `"channel":"c"`), 0
		for event := range strings.SplitSeq(w.Body.String(), "\n\n") {
			if _, data, found := strings.Cut(event, "event: left\n"); found {
				var l struct{ Messages int }
				_, data, _ = strings.Cut(data, "data: ")
				if err := json.Unmarshal([]byte(data), &l); err != nil {
					t.Fatal(err)
				}
				left += l.Messages
			}
		}
		if want := seconds * tailRate; shown != want || shown+left != want*inEach {
			t.Errorf("of %d messages, %d are shown, want %d, and %d counted", want*inEach, shown, want, left)
		}
	})
}

func TestWhoConnectsAgainMissesNothingThatWasNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, to := httptest.NewRecorder(), newTail()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		// At each sign of life, messages have just been delivered and not been sent.
		tick := int64(0)
		newEventStream(w).follow(ctx, nil, &UI{}, to, func() hub.Position {
			tick++
			arrive(t, to, tick, 1)
			if tick == 3 {
				stop()
			}
			return hub.Position{Epoch: 1, Tick: tick, Index: 1}
		})
		for i := range tick - 1 {
			if id := fmt.Sprintf("id: 1.%d.1\ndata: ", i+1); !strings.Contains(w.Body.String(), id) {
				t.Errorf("lacks %q: %s", id, w.Body)
			}
		}
		if strings.Contains(w.Body.String(), "\n:\n") {
			t.Errorf("a position is sent ahead of its messages: %s", w.Body)
		}
	})
}

func TestATailSaysWhyItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, to := httptest.NewRecorder(), newTail()
		to.Close(errors.New("the hub is closing"))
		newEventStream(w).follow(t.Context(), nil, &UI{}, to, func() hub.Position { return hub.Position{} })
		if !strings.Contains(w.Body.String(), "event: problem\ndata: {\"error\":\"The hub is closing.\"}\n\n") {
			t.Errorf("it ends with %s", w.Body)
		}
	})
}
