package web

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestAClientThatSendsTooMuchIsRefusedAlone: over every transport, with the time after which to try again; others are served, and metrics count it.
func TestAClientThatSendsTooMuchIsRefusedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		c.Limits.RequestRate, c.Limits.ClientRate = 0.01, 0.3 // one request, and three, at once
		c.ClientAddress = func(r *http.Request) string { return r.Header.Get("From") }
	})
	from := func(address string) http.Header { return http.Header{"From": {address}} }
	dial := func(address string) *wsClient {
		t.Helper()
		c, _, err := r.dial("", from(address))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := dial("1")
	if got := c.ask(`{"type":"ping"}`); got.Type != "pong" {
		t.Fatalf("the first request is answered by %+v", got)
	}
	c.say(`{"type":"subscribe","id":7,"channels":["a"]}`)
	if got := c.next(); got.Code != "limit" || string(got.ID) != "7" {
		t.Errorf("a request too many is answered by %+v", got)
	}
	if got := dial("2").ask(`{"type":"subscribe","channels":["a"]}`); got.Type != "subscribed" {
		t.Errorf("another client is answered by %+v", got)
	}

	try := func(method, path, address string) (int, string, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, r.server.URL+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = from(address)
		response, err := r.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text := ""
		if response.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(response.Body)
			text = string(b)
		}
		return response.StatusCode, response.Header.Get("Retry-After"), text
	}
	for i := range 3 {
		if status, _, text := try(http.MethodPost, "/v1/publish?channel=b", "3"); status != http.StatusOK {
			t.Errorf("message %d: %d %s", i+1, status, text)
		}
	}
	for _, path := range []string{"POST /v1/publish?channel=b", "GET /v1/events?channel=b", "GET /v1/ws"} {
		method, path, _ := strings.Cut(path, " ")
		if status, after, text := try(method, path, "3"); status != http.StatusTooManyRequests || after == "" || after == "0" || !strings.Contains(text, `"limit"`) {
			t.Errorf("%s %s by an address that has sent too much: %d, Retry-After %q, %s", method, path, status, after, text)
		}
	}
	if status, _, text := try(http.MethodPost, "/v1/publish?channel=b", "4"); status != http.StatusOK {
		t.Errorf("another address: %d %s", status, text)
	}
	eventually(t, func() error {
		response, _ := r.get("/metrics", nil)
		text, err := io.ReadAll(response.Body)
		for _, want := range []string{`weir_hub_rate_limited_total{transport="websocket"} 1`, `weir_hub_rate_limited_total{transport="http"} 3`} {
			if err == nil && !strings.Contains(string(text), want) {
				err = fmt.Errorf("%s is missing from the metrics", want)
			}
		}
		return err
	})
}

// TestAFloodIsReadNoFasterThanItIsAllowed: a client that sends without end, and reads the answers, is answered at its rate: the hub reads its requests no faster.
func TestAFloodIsReadNoFasterThanItIsAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Limits.RequestRate = 20 })
	c := r.ws("")
	const n = 260
	go func() {
		for range n {
			c.say(`{"type":"ping"}`)
		}
	}()
	pongs := 0
	for range n {
		if c.next().Type == "pong" {
			pongs++
		}
	}
	// After a burst of 200, whoever is refused is not read until another is allowed: so at most every other is refused.
	if pongs < 225 {
		t.Errorf("%d of %d requests were answered: the others were read too early", pongs, n)
	}
}
