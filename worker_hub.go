package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// hubs are the hubs at which a worker waits for work, one at a time.
type hubs struct {
	urls   []string
	next   atomic.Int64
	token  func(context.Context) (string, error)
	client *http.Client
}

// hubAnswers limits a wait: a hub answers after 20 s if there is no work.
const hubAnswers = 40 * time.Second

func newHubs(addresses []string, token func(context.Context) (string, error)) (*hubs, error) {
	h := &hubs{token: token, client: &http.Client{Timeout: hubAnswers}}
	for _, address := range addresses {
		u, err := hubURL(address)
		if err != nil {
			return nil, err
		}
		h.urls = append(h.urls, u.JoinPath("/v1/jobs/wait").String())
	}
	h.next.Store(rand.Int64N(int64(len(h.urls))))
	return h, nil
}

// hubURL parses a hub's address.
func hubURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not a valid hub address: write it as http://host:port or https://host", address)
	}
	return u, nil
}

// Wait implements worker.Hub. After an error, the next call tries the next hub.
func (h *hubs) Wait(ctx context.Context, queues []string, since string) (next string, err error) {
	at := h.next.Load()
	defer func() {
		if err != nil {
			h.next.CompareAndSwap(at, at+1)
		}
	}()
	query := url.Values{"queue": queues, "since": {since}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.urls[int(at)%len(h.urls)]+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	if h.token != nil {
		token, err := askToken(ctx, h.token)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := h.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", hubRefusal(response)
	}
	var answer struct{ Token string }
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&answer); err != nil {
		return "", fmt.Errorf("read the hub's answer: %w", err)
	}
	return answer.Token, nil
}

// askToken calls a program's function for tokens, in a goroutine of the library, which a panic must not end.
func askToken(ctx context.Context, ask func(context.Context) (string, error)) (token string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get a token for the hub: %w", err)
		}
	}()
	defer caught(&err)
	return ask(ctx)
}
