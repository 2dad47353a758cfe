package push

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/cmd/internal/work"
)

const maxReport = 2*maxOutput + 64<<10 // bytes of a callback's body: an output of 1 MiB, with escapes

// Register implements web.Endpoints.
func (p *Pusher) Register(g *web.Gate) {
	p.gate = g
	g.Handle("POST /v1/push/{endpoint}/callback", p.serveCallback)
}

// reportResult is the answer to a callback. Whoever has reported need not do it again, whether it was recorded or not.
type reportResult struct {
	Recorded bool   `json:"recorded"`
	Refusal  string `json:"refusal,omitempty"` // ended, or lost
}

func (p *Pusher) serveCallback(rw http.ResponseWriter, r *http.Request) {
	const doing = "record the end of a pushed job"
	_, release, err := p.gate.Admit(r)
	if err != nil {
		p.gate.Refuse(rw, doing, err)
		return
	}
	defer release()
	result, err := p.report(rw, r)
	if err != nil {
		p.gate.Refuse(rw, doing, err)
		return
	}
	web.Reply(rw, http.StatusOK, result)
}

func (p *Pusher) report(rw http.ResponseWriter, r *http.Request) (reportResult, error) {
	name := r.PathValue("endpoint")
	e := p.endpoint(name)
	if e == nil {
		return reportResult{}, web.Fail(http.StatusNotFound, "not_found", fmt.Sprintf("endpoint %.64q does not exist", name), "post to the callback of the endpoint that has got the job")
	}
	said, err := readSigned(r.Header, time.Now())
	if err != nil {
		return reportResult{}, unsigned(err.Error())
	}
	ctx, cancel := context.WithTimeout(r.Context(), recordFor)
	defer cancel()
	body, done, err := p.gate.Read(ctx, rw, r, maxReport)
	if err != nil {
		return reportResult{}, err
	}
	defer done()
	if !said.by(e.current().secrets, body) {
		return reportResult{}, unsigned("no signature in webhook-signature fits: the body, or the secret, is another")
	}
	var end work.End
	if err := json.Unmarshal(body, &end); err != nil {
		return reportResult{}, web.Fail(http.StatusBadRequest, "bad_request", "the body is not a valid report: "+web.Unreadable(err), `send {"token": …, "outcome": "completed", "output": …}`)
	}
	token, ok := p.unbound(name, end.Token)
	if !ok {
		return reportResult{}, web.Fail(http.StatusBadRequest, "bad_request", "the token is not one that this endpoint has got", "pass the token of the job unchanged")
	}
	end.Token = token
	switch result := p.Dispatcher.Record(ctx, []work.End{end}, true)[0]; result.Refusal {
	case "", "ended", "lost":
		e.reported(token)
		p.metrics.reported(name, result.Recorded)
		return reportResult{result.Recorded, result.Refusal}, nil
	case "invalid":
		return reportResult{}, web.Fail(http.StatusBadRequest, "bad_request", result.Detail, "")
	default:
		return reportResult{}, web.Fail(http.StatusServiceUnavailable, "unavailable", "it is not known whether the end was recorded: "+result.Detail, "send it again")
	}
}

func unsigned(text string) error {
	return web.Fail(http.StatusUnauthorized, "unauthorized", "the callback is not signed as it has to be: "+text, "sign it as Standard Webhooks are signed, with the endpoint's secret")
}
