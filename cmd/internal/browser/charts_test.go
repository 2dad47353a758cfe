package browser

import (
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestAMinuteAloneIsDrawn: after the first minute of work there is one point, which no line can show.
func TestAMinuteAloneIsDrawn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, sql := range []string{
		`SELECT weir.enqueue('mail', 'letter')`, `SELECT weir._count_minutes()`,
		`INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, cancelled, other, waits, runs)
			SELECT at, weir._minute_ring(at), '', at + interval '1 minute', 1, 0, 0, 0, 0, 1e120, 1e120 FROM (SELECT date_trunc('minute', now()) - interval '10 minutes' AS at) m`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Viewer), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(ui)
	t.Cleanup(server.Close)
	ctx := chromium(t, server.URL+"/")
	do(t, ctx, call(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"}), scheme("light"), chromedp.Navigate(server.URL+"/"))
	for _, chart := range []string{"ended", "wait", "run"} {
		await(t, ctx, `(() => {
			const canvas = document.querySelector("[data-chart=`+chart+`] canvas");
			if (!canvas) return "no canvas";
			const rgba = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
			let coloured = 0; // --good or --warn: what is drawn last is on top
			for (let i = 0; i < rgba.length; i += 4) if (Math.abs(rgba[i] - rgba[i + 2]) > 50 && rgba[i + 3] > 200) coloured++;
			return coloured > 10 ? "drawn" : coloured + " pixels";
		})()`, "drawn")
	}
	await(t, ctx, `document.querySelector("[data-chart=ended] .u-series th").textContent`, "Time in Asia/Tokyo")
	await(t, ctx, `document.getElementById("zone").textContent`, "Times in Asia/Tokyo")
	// The same time in the table, nine hours ahead of UTC.
	await(t, ctx, `(() => {
		const at = document.querySelector("#history-table time");
		return String(at.textContent === new Date(Date.parse(at.dateTime) + 9 * 3600000).toISOString().slice(0, 19).replace("T", " ") + " GMT+9");
	})()`, "true")
	do(t, ctx, call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}), chromedp.Navigate(server.URL+"/"), chromedp.WaitVisible(chromedp.CSS("#zone")))
	utc, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("#zone")))
	if err != nil || utc != "Times in UTC" {
		t.Errorf("without scripts, the page says %q, %v", utc, err)
	}
}

// drawn is how many charts of a page have anything in them.
const drawn = `String([...document.querySelectorAll("[data-chart] canvas")].filter(c => c.width > 0 && c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v)).length)`

// TestChartsAreDrawn: the charts show the history, on the first page and on that of a queue, follow the width of the page and the colours of the system, and
// violate no policy. Without scripts, there is a table instead.
func TestChartsAreDrawn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, sql := range []string{
		`SELECT weir.enqueue('mail', 'letter')`,
		`SELECT weir._count_minutes()`,
		`INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, cancelled, other, waits, runs)
			SELECT at, weir._minute_ring(at), queue, at + interval '1 minute', 900 + 300 * sin(n / 30.0), n % 7, 20 + n % 5, n % 3, 0, 800 * ('1e' || 12 * (10 + n / 60))::numeric + 100e192, 500e48 + 60 * ('1e' || 12 * (18 + n / 200))::numeric
			FROM generate_series(1, 350) n CROSS JOIN LATERAL (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at) m CROSS JOIN unnest(ARRAY['', 'mail']) queue`,
		`INSERT INTO weir.minute (at, ring, queue, waiting, oldest)
			SELECT at, weir._minute_ring(at), queue, 40 + n % 60, n * interval '1 second' FROM generate_series(1, 350) n
			CROSS JOIN LATERAL (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at) m CROSS JOIN unnest(ARRAY['', 'mail']) queue`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Viewer), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(ui)
	t.Cleanup(server.Close)
	ctx := chromium(t, server.URL+"/")
	complains := complaints(t, ctx)
	const image = `document.querySelector("[data-chart=ended] canvas").toDataURL()`
	for _, path := range []string{"/?hours=1", "/queues/mail?hours=6", "/queues/mail?hours=72"} {
		do(t, ctx, chromedp.EmulateViewport(1200, 900), scheme("light"), chromedp.Navigate(server.URL+path))
		await(t, ctx, drawn, "4")
		await(t, ctx, `[...document.querySelectorAll("[data-chart=ended] .u-series th")].map(e => e.textContent.trim()).slice(1).join(" ")`, "completed retried failed cancelled")
		picture(t, ctx, "charts_light.jpg", 80)
		light, err := chromedp.Run(ctx, chromedp.Evaluate[string](image))
		if err != nil {
			t.Fatal(err)
		}
		do(t, ctx, scheme("dark"))
		await(t, ctx, `String(`+image+` !== "`+light+`")`, "true")
		picture(t, ctx, "charts_dark.jpg", 80)
		do(t, ctx, chromedp.EmulateViewport(390, 844))
		await(t, ctx, `String([...document.querySelectorAll("[data-chart] canvas")].every(c => c.clientWidth > 200 && c.clientWidth < 390) && document.documentElement.scrollWidth <= innerWidth)`, "true")
		picture(t, ctx, "charts_phone.jpg", 80)
		await(t, ctx, `getComputedStyle(document.querySelector("#history-problem")).display`, "none")
	}
	if all := complains(); len(all) > 0 {
		t.Errorf("the console says %q", all)
	}
	do(t, ctx, call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}), chromedp.Navigate(server.URL+"/?hours=1"), chromedp.Click(chromedp.CSS("#history-table summary")),
		chromedp.WaitVisible(chromedp.CSS("#history-table td")), chromedp.WaitNotVisible(chromedp.CSS(".charts")))
}
