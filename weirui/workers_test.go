package weirui_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestWorkersThatHaveEndedAreListedOnRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "x"}, &weir.Options{Queue: "mail"})
	r.fail("mail", func(note) error { return errors.New("no") }) // its worker ends
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[note]) error { return nil })
	w, err := r.client.NewWorker(weir.WorkerConfig{Name: "<b>one</b>", Handlers: handlers, Queues: map[string]int{"a/b": 2, "mail": 1}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { stop(); pgtest.Receive(t, done, "the worker ends") }()
	var list struct {
		Workers []weir.WorkerInfo
		Hubs    []weir.HubInfo
	}
	pgtest.Eventually(t, func() error {
		if r.data("workers", &list); len(list.Workers) != 1 || list.Workers[0].State != "alive" {
			return fmt.Errorf("the workers are %+v", list.Workers)
		}
		return nil
	})
	if text := r.page("workers"); strings.Contains(text, "<b>one") || !strings.Contains(text, "queues/a%2Fb") || !strings.Contains(text, "weir serve") {
		t.Errorf("the page is %s", text)
	}
	r.data("workers?ended=1", &list)
	if len(list.Workers) != 2 || list.Workers[0].State != "alive" || list.Workers[1].State != "ended" || list.Workers[1].Reason == nil {
		t.Errorf("with those that have ended, the workers are %+v", list.Workers)
	}
	if len(list.Hubs) != 0 {
		t.Errorf("the hubs are %+v", list.Hubs)
	}
}

func TestManyWorkersAreShownPageByPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.pool.Exec(t.Context(), `SELECT count(weir.start('w' || n, ARRAY(SELECT 'q' || m FROM generate_series(1, 20) m))) FROM generate_series(1, 250) n`); err != nil {
		t.Fatal(err)
	}
	seen := map[int32]bool{}
	for path, pages := "workers", 0; ; pages++ {
		var list struct {
			Workers       []weir.WorkerInfo
			Next          int64
			Current, More int
		}
		r.data(path, &list)
		for _, w := range list.Workers {
			seen[w.ID] = true
		}
		if len(list.Workers) > 100 || list.Current != 250 || list.More != 250-len(seen) {
			t.Fatalf("a page has %d workers of %d, and %d more", len(list.Workers), list.Current, list.More)
		}
		if list.Next == 0 || pages > 20 {
			break
		}
		path = fmt.Sprintf("workers?after=%d", list.Next)
	}
	if len(seen) != 250 {
		t.Errorf("%d of 250 workers are on the pages", len(seen))
	}
	if text := r.page("workers"); strings.Count(text, `href="queues/`) != 100*5 || !strings.Contains(text, "and 15 more") || !strings.Contains(text, "150 of them on the next pages") || !strings.Contains(text, "Next page") || len(text) > 100_000 {
		t.Errorf("the first page has %d bytes and %d links to queues", len(text), strings.Count(text, `href="queues/`))
	}
}
