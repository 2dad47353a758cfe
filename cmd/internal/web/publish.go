package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/hub"
)

// servePublish publishes one message, a list of messages, or the raw body if the URL names the channel.
func (w *Web) servePublish(rw http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	published, err := w.publishRequest(ctx, rw, r)
	if err != nil {
		w.metrics.publish("http", "refused")
		w.explain("publish", err).write(rw)
		return
	}
	reply(rw, http.StatusOK, struct {
		Published int `json:"published"`
	}{published})
}

// publishRequest first checks whether the client may publish at all, or to the channel in the URL; otherwise it does not read the body.
func (w *Web) publishRequest(ctx context.Context, rw http.ResponseWriter, r *http.Request) (int, error) {
	ask := Ask{Token: token(r), Action: Publish, Remote: strings.Clone(w.ClientAddress(r))}
	if f := w.admit(ask.Remote); f != nil {
		return 0, f
	}
	defer w.release(ask.Remote)
	query := r.URL.Query()
	if query.Has("channel") {
		if err := w.checkChannel(query.Get("channel")); err != nil {
			return 0, err
		}
		ask.Filters = []hub.Filter{hub.Channel(query.Get("channel"))}
	}
	grant, err := w.admitClient(ctx, ask)
	if err != nil {
		return 0, err
	}
	body, done, err := w.readAll(ctx, http.MaxBytesReader(rw, r.Body, w.Limits.carrier()))
	if err != nil {
		return 0, err
	}
	defer done()
	drafts, err := w.parseBody(r, body)
	if err != nil {
		return 0, err
	}
	ask.Filters = channelsOf(drafts)
	rest, err := w.decide(Publish, ask.Filters, grant.User)
	if err != nil {
		return 0, err
	}
	if _, ok := grant.Covers(rest); !ok {
		ask.Filters = rest
		if grant, err = w.authorize(ctx, ask); err != nil {
			return 0, err
		}
	}
	if grant.User != "" {
		if f := w.countRequest(identity(grant.User, ""), "http"); f != nil {
			return 0, f
		}
	}
	if err := w.checkPolicies("http", identity(grant.User, ask.Remote), drafts, grant); err != nil {
		w.metrics.refused("limit")
		return 0, err
	}
	return len(drafts), w.publish(ctx, "http", drafts)
}

func (w *Web) parseBody(r *http.Request, body []byte) ([]hub.Draft, error) {
	if q := r.URL.Query(); q.Has("channel") {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		d := hub.Draft{Channel: q.Get("channel"), Payload: body, Binary: kind == "application/octet-stream" || !utf8.Valid(body)}
		return []hub.Draft{d}, w.checkDraft(d)
	}
	var all List[draftJSON]
	var err error
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		err = json.Unmarshal(body, &all)
	} else {
		all = make([]draftJSON, 1)
		err = json.Unmarshal(body, &all[0])
	}
	var limit *Failure
	if errors.As(err, &limit) {
		return nil, limit
	}
	if err != nil {
		return nil, badRequest("the body is not a valid message: "+unreadable(err),
			`send {"channel":…,"payload":…}, a list of such objects, or any body with ?channel= in the URL`)
	}
	return w.parseDrafts(all)
}

// publish logs messages, all or none, and counts them.
func (w *Web) publish(ctx context.Context, transport string, drafts []hub.Draft) error {
	if err := w.Hub.PublishAll(ctx, drafts); err != nil {
		w.metrics.publish(transport, "failed")
		if errors.Is(err, context.DeadlineExceeded) {
			return fail(http.StatusServiceUnavailable, "unavailable", "the database did not answer in time: the messages may be logged nevertheless",
				"publish again if your subscribers tolerate duplicates")
		}
		return err
	}
	w.metrics.publish(transport, "ok")
	return nil
}
