package ui

import (
	"context"
	"fmt"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/weirui"
)

// doctor implements weirui.Doctor.
type doctor struct{ server *server.Server }

// Findings implements weirui.Doctor. What the doctor can't examine is a finding, too: nobody should take it for healthy.
func (d doctor) Findings(context.Context) ([]weirui.Finding, error) {
	report, err := d.server.Examined()
	if err != nil {
		return nil, err
	}
	if report == nil {
		return []weirui.Finding{{Code: "begun", Severity: "info", Title: "The doctor has only begun", Text: "Its first report takes some seconds."}}, nil
	}
	all := make([]weirui.Finding, 0, len(report.Findings)+1)
	for _, f := range report.Findings {
		found := weirui.Finding{Code: string(f.Code), Severity: string(f.Severity), Title: f.Summary, Text: fmt.Sprintf("%d of %d samples show it.", f.Seen, f.Samples)}
		if f.DownstreamOf != "" {
			found.Text += " It is a consequence of " + string(f.DownstreamOf) + "."
		}
		for _, e := range f.Evidence {
			text := e.Fact
			if e.Query != "" {
				text += "\n" + e.Query
			}
			found.Evidence = append(found.Evidence, text)
		}
		for _, fix := range []string{f.Now, f.ForGood} {
			if fix != "" {
				found.Fix = append(found.Fix, fix)
			}
		}
		all = append(all, found)
	}
	if n := len(report.Unseen); n > 0 {
		all = append(all, weirui.Finding{
			Code: "unchecked", Severity: "info", Title: fmt.Sprintf("%d things could not be examined", n),
			Text: "The doctor lacks privileges or settings. What is not examined is not known to be healthy.", Evidence: report.Unseen,
		})
	}
	return all, nil
}
