package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

type letter struct {
	To    string `json:"to"`
	Token string `json:"token,omitempty"`
}

func (letter) Kind() string { return "letter" }

// ui serves the UI on a database that has something to show on each page, at a path, with a worker.
func ui(t *testing.T) (address string, client *weir.Client) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client = weir.NewClient(pool)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, j *weir.Job[letter]) error {
		switch {
		case strings.HasPrefix(j.Args.To, "bad"):
			return weir.Fail(fmt.Errorf("mailbox %d of %q is full", j.ID, j.Args.To))
		case strings.HasPrefix(j.Args.To, "slow"):
			j.SetProgress(40, "written, not sent")
			j.Log().Info("the server is slow", "to", j.Args.To)
			<-ctx.Done()
			return ctx.Err()
		}
		j.SetOutput("sent to " + j.Args.To)
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"mail": 10}, Name: "postman", Logger: slog.New(slog.DiscardHandler)})
	must(err)
	works(t, worker)
	var jobs []weir.NewJob
	for i := range 60 {
		to := fmt.Sprintf("user%d@example.com", i)
		if i%3 == 0 {
			to = "bad" + to
		}
		jobs = append(jobs, weir.NewJob{Args: letter{To: to, Token: "hunter2"}, Options: &weir.Options{Queue: "mail", Key: "acme", Meta: map[string]string{"tenant": "acme"}}})
	}
	jobs = append(jobs, weir.NewJob{Args: letter{To: "slow@example.com"}, Options: &weir.Options{Queue: "mail"}},
		weir.NewJob{Args: letter{To: "later@example.com"}, Options: &weir.Options{Queue: "mail", RunAt: time.Now().Add(time.Hour)}},
		weir.NewJob{Args: letter{To: "nobody@example.com"}, Options: &weir.Options{Queue: "an unworked queue/with a slash"}})
	made, err := client.EnqueueMany(t.Context(), jobs)
	must(err)
	_, err = client.CancelJob(t.Context(), made[len(made)-2].ID)
	must(err)
	_, err = client.SetSchedule(t.Context(), weir.Schedule{Name: "daily/letter", Schedule: "0 9 * * *", TimeZone: "Europe/Berlin", Args: letter{To: "bad-daily@example.com"}, Options: &weir.Options{Queue: "mail"}})
	must(err)
	must(client.SetLimit(t.Context(), "mail", weir.Limit{Running: 5}))
	flow, err := client.Flow(t.Context(), weir.Flow{Name: "newsletter", Open: true})
	must(err)
	task := func(name, to string, after ...string) weir.Task {
		return weir.Task{Name: name, Job: weir.NewJob{Args: letter{To: to}, Options: &weir.Options{Queue: "mail"}}, After: after}
	}
	_, err = client.AddTasks(t.Context(), flow, task("write", "a@example.com"), task("proof", "b@example.com", "write"), task("print", "bad-printer@example.com", "write"), task("send", "d@example.com", "proof", "print"))
	must(err)
	must(client.SealFlow(t.Context(), flow))
	pgtest.Eventually(t, func() error {
		page, err := client.Jobs(t.Context(), weir.JobsParams{Queue: "mail", States: []weir.State{weir.StateAvailable}})
		if err == nil && len(page.Jobs) > 0 {
			err = errors.New("jobs wait")
		}
		return err
	})
	_, err = client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationMove, Filter: weir.JobFilter{Queue: "an unworked queue/with a slash"}, To: weir.MoveTo{Priority: 4}, By: "ada"})
	must(err)
	handler, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Admin), Logger: slog.New(slog.DiscardHandler)})
	must(err)
	mux := http.NewServeMux()
	mux.Handle("/weir/", http.StripPrefix("/weir", handler))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/weir/", client
}

// works runs a worker until the test ends.
func works(t *testing.T, worker *weir.Worker) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// complaints collects what a page complains about in the browser's console: scripts that fail, and what the policy forbids.
func complaints(t *testing.T, ctx context.Context) func() []string {
	t.Helper()
	var mu sync.Mutex
	var all []string
	add := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, text)
	}
	err := chromedp.Listen(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			add(e.ExceptionDetails.Text + " " + e.ExceptionDetails.URL)
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == "error" {
				add(e.Entry.Text + " " + e.Entry.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	do(t, ctx, call(cdplog.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		was := all
		all = nil
		return was
	}
}

// call is an action that sends a command of the browser's protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func scheme(name string) chromedp.Action[chromedp.Void] {
	return call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

var unnamed = regexp.MustCompile(`[^a-z0-9]+`)

// TestEachPageOfTheUIWorksInABrowser opens every page that a link leads to: on a desktop, on a phone, and in the dark.
func TestEachPageOfTheUIWorksInABrowser(t *testing.T) {
	t.Parallel()
	address, _ := ui(t)
	ctx := chromium(t, address)
	complains := complaints(t, ctx)
	var axe string
	if os.Getenv("WEIR_TEST_DRIVERS") != "" {
		source, err := os.ReadFile(filepath.Join(drivertest.Node(t, "testdata/axe/package.json"), "node_modules/axe-core/axe.min.js"))
		if err != nil {
			t.Fatal(err)
		}
		axe = string(source)
	}
	kinds := map[string]int{} // how many pages of a kind were opened: one of each is enough
	kindOf := func(path string) string {
		at, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		at.Path = regexp.MustCompile(`[0-9]+|(queues)/.*`).ReplaceAllString(at.Path, "${1}N")
		names := []string{}
		for name := range at.Query() {
			names = append(names, name)
		}
		slices.Sort(names)
		return at.Path + "?" + strings.Join(names, "&")
	}
	next, seen := []string{address}, map[string]bool{address: true}
	pages := 0
	for len(next) > 0 && pages < 80 {
		at := next[0]
		next = next[1:]
		kind := kindOf(strings.TrimPrefix(at, address))
		if kinds[kind]++; kinds[kind] > 1 {
			continue
		}
		pages++
		do(t, ctx, chromedp.EmulateViewport(1200, 900), scheme("light"), chromedp.Navigate(at), chromedp.WaitVisible(chromedp.CSS("h1")))
		links, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](`[...document.querySelectorAll("a[href]")].map(a => new URL(a.getAttribute("href"), document.baseURI).href.replace(/#.*/, ""))`))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if strings.HasPrefix(l, address) && !seen[l] {
				seen[l] = true
				next = append(next, l)
			}
		}
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.documentElement.outerHTML`))
		if err != nil || strings.Contains(text, "hunter2") {
			t.Errorf("%s: it shows a secret, or %v", at, err)
		}
		for _, look := range []struct {
			name, scheme  string
			width, height int64
		}{{"desktop", "light", 1200, 900}, {"dark", "dark", 1200, 900}, {"phone", "light", 390, 844}} {
			do(t, ctx, chromedp.EmulateViewport(look.width, look.height), scheme(look.scheme))
			over, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`document.documentElement.scrollWidth - innerWidth`))
			if err != nil || over > 1 {
				t.Errorf("%s, %s: the page is %v pixels too wide, %v", at, look.name, over, err)
			}
			out, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`[...document.querySelectorAll(".stack button")].filter(b => b.getBoundingClientRect().right > innerWidth).length`))
			if err != nil || look.name == "phone" && out > 0 {
				t.Errorf("%s, %s: %v buttons of a table are out of sight, %v", at, look.name, out, err)
			}
			wide, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`[...document.querySelectorAll(".wide:has(> .stack)")].filter(w => w.scrollWidth > w.clientWidth + 1).length`))
			if err != nil || look.name == "phone" && wide > 0 {
				t.Errorf("%s, %s: %v tables are wider than the page, %v", at, look.name, wide, err)
			}
			if axe != "" && look.name != "phone" {
				do(t, ctx, chromedp.Evaluate[chromedp.Void](axe+";0"))
				found, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.flatMap(v => v.nodes.slice(0, 2).map(n => v.id + ": " + v.help + ": " + n.html.slice(0, 200))))`, chromedp.EvalAwaitPromise))
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range found {
					t.Errorf("%s, %s: %s", at, look.name, f)
				}
			}
			picture(t, ctx, strings.Trim(unnamed.ReplaceAllString(strings.ToLower(strings.TrimPrefix(at, address)), "-"), "-")+"_"+look.name+".png", 100)
		}
		if all := complains(); len(all) > 0 {
			t.Errorf("%s: the console says %q", at, all)
		}
	}
	if pages < 25 {
		t.Errorf("only %d pages were found", pages)
	}
}

// TestAnOperatorWorksWithTheUI clicks through what operators do.
func TestAnOperatorWorksWithTheUI(t *testing.T) {
	t.Parallel()
	address, client := ui(t)
	ctx := chromium(t, address+"queues")
	text := func(selector string) string {
		return fmt.Sprintf(`document.querySelector(%q)?.textContent.trim() ?? ""`, selector)
	}
	const mail = `#pause-mail`
	await(t, ctx, text(mail), "Pause queue mail")
	do(t, ctx, press(mail))
	await(t, ctx, text(".said"), "Queue mail is paused. Running jobs continue.")
	await(t, ctx, text(mail), "Resume queue mail")

	// The page follows what others do, without being loaded again.
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`window.same = true`))
	if err := client.ResumeQueue(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, text(mail), "Pause queue mail")
	await(t, ctx, `String(window.same)`, "true")

	failed, err := client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateFailed}, Limit: 1})
	if err != nil || len(failed.Jobs) != 1 {
		t.Fatalf("%v, %v", failed, err)
	}
	id := failed.Jobs[0].ID
	do(t, ctx, chromedp.Navigate(fmt.Sprintf("%sjobs/%d", address, id)), press("#retry"))
	await(t, ctx, text(".said"), fmt.Sprintf("Job %d is available again.", id))

	// What the script asks, the server does not ask again.
	waits, err := client.Enqueue(t.Context(), letter{To: "nobody@example.com"}, &weir.Options{Queue: "unworked"})
	if err != nil {
		t.Fatal(err)
	}
	do(t, ctx, chromedp.Navigate(fmt.Sprintf("%sjobs/%d", address, waits.ID)), chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`window.confirm = (question) => question === "Cancel job %d?"`, waits.ID)),
		press("#cancel"))
	await(t, ctx, text(".said"), fmt.Sprintf("Job %d is cancelled.", waits.ID))

	// By keyboard alone: the first stop of the Tab key skips to the content.
	do(t, ctx, chromedp.Navigate(address+"jobs"), chromedp.KeyEvent("\t"))
	await(t, ctx, `document.activeElement.textContent`, "Skip to the content")
	do(t, ctx, chromedp.KeyEvent("\r"))
	await(t, ctx, `document.activeElement.id`, "main")

	// Without scripts, too.
	do(t, ctx, call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}), chromedp.Navigate(address+"queues"), chromedp.Click(chromedp.CSS(mail)), chromedp.WaitVisible(chromedp.CSS(".said")))
	queues, err := client.Queues(t.Context())
	if err != nil || !slices.ContainsFunc(queues, func(q weir.QueueInfo) bool { return q.Name == "mail" && q.PausedAt != nil }) {
		t.Errorf("without scripts, the queue was not paused: %+v, %v", queues, err)
	}
	do(t, ctx, chromedp.Navigate(address+"failures"), chromedp.Click(chromedp.CSS("#retry-0")), chromedp.Click(chromedp.CSS("#sure")), chromedp.WaitVisible(chromedp.CSS("#operation")))
	pgtest.Eventually(t, func() error {
		all, err := client.Operations(t.Context(), weir.OperationsParams{Limit: 1})
		if err == nil && (all[0].What != weir.OperationRetry || all[0].State != weir.OperationDone || *all[0].Changed == 0) {
			err = fmt.Errorf("the newest operation is %+v", all[0])
		}
		return err
	})
}
