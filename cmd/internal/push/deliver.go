package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxOutput    = 1 << 20 // bytes of an answer that are kept as the output
	maxSaid      = 1 << 10 // of one that are kept as the error
	longestDefer = 24 * time.Hour
	finalHeader  = "weir-final" // of an answer: the job fails for good

	atOnce    = 256              // connections to one endpoint that are kept
	idleFor   = 90 * time.Second // how long
	dialFor   = 10 * time.Second
	maxHeader = 64 << 10
)

// fate is what has become of a request.
type fate struct {
	outcome  string // of the attempt, as in weir.record; "": it was accepted, and its report follows
	reason   string // why it failed
	output   string
	delay    time.Duration // until the next try, if deferred
	deferred bool
	final    bool
	status   int // 0: there was no answer
}

func failed(format string, args ...any) fate {
	return fate{outcome: "failed", reason: fmt.Sprintf(format, args...)}
}

// newClient returns a client that follows no redirects: a job must only reach the URL that the operator has chosen.
func newClient() *http.Client {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialFor, KeepAlive: 15 * time.Second}).DialContext, ForceAttemptHTTP2: true,
		MaxIdleConns: 4 * atOnce, MaxIdleConnsPerHost: atOnce, IdleConnTimeout: idleFor, TLSHandshakeTimeout: dialFor, MaxResponseHeaderBytes: maxHeader,
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// deliver sends a job to the target, and returns what has become of it. If ctx ends, it returns what ctx's cause is.
func deliver(ctx context.Context, client *http.Client, t *target, id string, body []byte) fate {
	bounded, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(bounded, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return failed("%s can't be asked: %s", t.name, withoutURL(err))
	}
	for name, value := range t.headers {
		if request.Header.Set(name, value); strings.EqualFold(name, "Host") {
			request.Host = value
		}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "weir")
	sign(request.Header, t.secrets, id, time.Now(), body)
	response, err := client.Do(request)
	if err != nil {
		return t.unanswered(bounded, err)
	}
	defer response.Body.Close()
	most := int64(maxSaid)
	if response.StatusCode/100 == 2 {
		most = maxOutput
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil && response.StatusCode != http.StatusAccepted {
		f := t.unanswered(bounded, err)
		f.status = response.StatusCode
		return f
	}
	// The rest of a short answer is read, so that the connection can be used again.
	_, _ = io.CopyN(io.Discard, response.Body, maxSaid)
	return judge(response, answer, time.Now())
}

// unanswered is the fate of a request without an answer, or with half of one.
func (t *target) unanswered(ctx context.Context, err error) fate {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return failed("%s did not answer within %v", t.name, t.timeout)
	}
	return failed("%s did not answer: %s", t.name, withoutURL(err))
}

// withoutURL describes an error of net/http without the URL, which may contain a secret.
func withoutURL(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}

// judge returns what an answer means.
func judge(response *http.Response, answer []byte, now time.Time) fate {
	status := response.StatusCode
	f := fate{status: status}
	after, has := retryAfter(response.Header, now)
	switch {
	case status == http.StatusAccepted:
		return f
	case status/100 == 2:
		f.outcome, f.output = "completed", text(answer)
		return f
	case (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && has:
		f.outcome, f.delay, f.deferred = "snoozed", after, true
	default:
		f.outcome = "failed"
		f.final = status == http.StatusGone || strings.EqualFold(response.Header.Get(finalHeader), "true")
	}
	f.reason = fmt.Sprintf("HTTP %d", status)
	if said := strings.TrimSpace(text(answer)); said != "" {
		f.reason += ": " + said
	} else if name := http.StatusText(status); name != "" {
		f.reason += " " + name
	}
	if status/100 == 3 {
		f.reason += " (redirects are not followed: change the endpoint's url)"
	}
	return f
}

// text returns bytes as valid text.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// retryAfter returns how long to wait, as the header says: in seconds, or until a time.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, longestDefer), true
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), longestDefer), true
	}
	return 0, false
}
