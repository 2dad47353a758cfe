package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-pg/weir"
)

// Kubernetes probes: a worker is ready while it is healthy, and is killed only if a restart helps.
func ExampleWorker_Health() {
	client := weir.NewClient(connect())
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error { return nil })
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"mail": 8}})
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := worker.Health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		var ill *weir.HealthError
		if errors.As(worker.Health(), &ill) && ill.Reason == weir.HealthStuck {
			http.Error(w, ill.Error(), http.StatusServiceUnavailable)
		}
	})
	server := httptest.NewServer(mux) // in your program: http.ListenAndServe(":8081", mux)
	defer server.Close()
	probe := func(path string) int {
		response, err := http.Get(server.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}

	fmt.Println("before Run:", probe("/readyz"), probe("/healthz"))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	for probe("/readyz") != http.StatusOK {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("at work:", probe("/readyz"), probe("/healthz"))
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	fmt.Println("after Run:", probe("/readyz"), probe("/healthz"))
	// Output:
	// before Run: 503 200
	// at work: 200 200
	// after Run: 503 200
}
