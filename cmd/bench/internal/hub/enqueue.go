package hub

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// enqueueWay is a way to enqueue over HTTP.
type enqueueWay struct {
	name    string
	clients int
	batch   int
	keys    bool // each request has an Idempotency-Key
}

var enqueueWays = []enqueueWay{
	{"POST /v1/jobs, a job in each", 64, 1, false},
	{"POST /v1/jobs, a job and a key in each", 64, 1, true},
	{"POST /v1/jobs, 1000 jobs in each", 4, 1000, false},
}

// enqueue measures how many jobs a second clients enqueue, for slice. Nobody works them.
func (b *jobsBench) enqueue(ctx context.Context, way enqueueWay, slice time.Duration) (rate float64, err error) {
	const job = `{"queue": "enqueued", "kind": "noop", "args": {"n": 1}}`
	body := []byte(job)
	if way.batch > 1 {
		body = []byte("[" + strings.Repeat(job+",", way.batch-1) + job + "]")
	}
	ctx, stop := context.WithTimeout(ctx, slice+10*time.Second)
	defer stop()
	var jobs atomic.Int64
	var clients sync.WaitGroup
	failed := make(chan error, way.clients)
	begin := time.Now()
	for client := range way.clients {
		clients.Go(func() {
			for n := 0; time.Since(begin) < slice; n++ {
				key := ""
				if way.keys {
					key = fmt.Sprintf("%d-%d-%d", begin.UnixNano(), client, n)
				}
				if err := b.enqueueOnce(ctx, body, key); err != nil {
					failed <- err
					return
				}
				jobs.Add(int64(way.batch))
			}
		})
	}
	clients.Wait()
	took := time.Since(begin)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(jobs.Load()) / took.Seconds(), nil
	}
}

func (b *jobsBench) enqueueOnce(ctx context.Context, body []byte, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/jobs", bytes.NewReader(body))
	if err != nil {
		return err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := jobsClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("enqueue: %s: %s", response.Status, text)
	}
	return err
}

// pushAtOnce is how many jobs the endpoint gets at once.
const pushAtOnce = 200

// push measures how many jobs a second a hub pushes to an endpoint that answers at once.
func (b *jobsBench) push(ctx context.Context, jobs int) (rate float64, err error) {
	m, pushed := &load.Meter{}, make(chan error, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	endpoint := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		m.Start()
		_, _ = io.Copy(io.Discard, r.Body)
		rw.WriteHeader(http.StatusOK)
		m.Add(1)
	})}
	go func() { // ends with Close
		if err := endpoint.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			pushed <- err
		}
	}()
	defer func() { _ = endpoint.Close() }()
	file, err := os.CreateTemp("", "weir-bench-*.toml")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	const queue = "pushed"
	secret := "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("s"), 32))
	_, err = fmt.Fprintf(file, "[endpoint.bench]\nurl = \"http://%s/\"\nqueues = {%s = %d}\nsecrets = [%q]\n", listener.Addr(), queue, pushAtOnce, secret)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	pool, client, err := b.Client(ctx, b.engine, 4)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if err := client.Fill(ctx, queue, jobs); err != nil {
		return 0, err
	}
	h, err := startPushingHub(ctx, b.Database, b.HubConfig, b.URL, file.Name())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := m.Reach(ctx, int64(jobs), pushed); err != nil {
		return 0, err
	}
	return float64(jobs) / m.Took().Seconds(), nil
}
