package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/hub"
)

// servePublish publishes one message, several, or the body as it is where the URL names the channel.
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

func (w *Web) publishRequest(ctx context.Context, rw http.ResponseWriter, r *http.Request) (int, error) {
	_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(patience)) // who sends slowly holds nothing for long
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, w.Limits.carrier()))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return 0, fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("the body is longer than the %d bytes allowed", tooLong.Limit),
			"publish a reference to it, such as the row's key")
	case err != nil:
		return 0, badRequest("the body could not be read", "")
	}
	drafts, filters, err := w.parseBody(r, body)
	if err != nil {
		return 0, err
	}
	ask := Ask{Token: token(r), Action: Publish, Channels: names(filters), Remote: w.ClientAddress(r)}
	if _, err := w.authorize(ctx, ask, filters); err != nil {
		return 0, err
	}
	return len(drafts), w.publish(ctx, "http", drafts)
}

func (w *Web) parseBody(r *http.Request, body []byte) ([]hub.Draft, []hub.Filter, error) {
	if q := r.URL.Query(); q.Has("channel") {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		d := hub.Draft{Channel: q.Get("channel"), Payload: body, Binary: kind == "application/octet-stream" || !utf8.Valid(body)}
		return []hub.Draft{d}, []hub.Filter{{Name: d.Channel}}, w.checkDraft(d)
	}
	var all []draftJSON
	var err error
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		err = json.Unmarshal(body, &all)
	} else {
		all = make([]draftJSON, 1)
		err = json.Unmarshal(body, &all[0])
	}
	if err != nil {
		return nil, nil, badRequest("the body is no message: "+err.Error(),
			`send {"channel":…,"payload":…}, a list of such, or any body with ?channel= in the URL`)
	}
	return w.parseDrafts(all)
}

// publish logs messages, all or none, and counts them.
func (w *Web) publish(ctx context.Context, transport string, drafts []hub.Draft) error {
	if err := w.Hub.PublishAll(ctx, drafts); err != nil {
		w.metrics.publish(transport, "failed")
		if errors.Is(err, context.DeadlineExceeded) {
			return fail(http.StatusServiceUnavailable, "unavailable", "the database did not answer in time: what you published may be logged all the same",
				"publish again, if your subscribers can take it twice")
		}
		return err
	}
	w.metrics.publish(transport, "ok")
	return nil
}
