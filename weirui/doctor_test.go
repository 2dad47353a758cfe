package weirui_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir/weirui"
)

type doctor struct {
	findings []weirui.Finding
	err      error
}

func (d doctor) Findings(context.Context) ([]weirui.Finding, error) { return d.findings, d.err }

func TestFindingsAreShownWithTheirFix(t *testing.T) {
	t.Parallel()
	with := func(d weirui.Doctor) func(*weirui.Config) {
		return func(c *weirui.Config) { c.Databases[0].Doctor = d }
	}
	r := newRig(t, with(doctor{findings: []weirui.Finding{{Code: "horizon_held", Severity: "critical", Title: "A <transaction> is old", Text: "It holds back vacuum.", Evidence: []string{"pid 7 & its query"}, Fix: []string{"SELECT pg_terminate_backend(7)"}}}}))
	text := r.page("doctor")
	for _, want := range []string{"A &lt;transaction&gt; is old", `class="tag critical"`, "pid 7 &amp; its query", "<pre><code>SELECT pg_terminate_backend(7)</code></pre>", "horizon_held", `href="doctor"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	if text := newRig(t, with(doctor{})).page("doctor"); !strings.Contains(text, "Nothing is wrong") {
		t.Errorf("without findings: %s", text)
	}
	if answer, text := newRig(t, with(doctor{err: errors.New("the server is away")})).ask("GET", "doctor", ""); answer.StatusCode != http.StatusBadGateway || !strings.Contains(text, "the server is away") {
		t.Errorf("with an error: %s: %s", answer.Status, text)
	}
	if text := newRig(t).page("doctor"); !strings.Contains(text, "weir serve --doctor") {
		t.Errorf("without a doctor: %s", text)
	}
}
