// Package push sends jobs to HTTP endpoints, for functions in a cloud that cannot ask for them. docs/push.md describes it.
//
//	p, err := push.New(push.Config{File: "push.toml", Dispatcher: d, …})
//	go p.Run(ctx)
//
// A Pusher reads endpoints from a file, again and again. To the dispatcher (package work) each of them is a worker with a standing call, and as many slots as the file says:
//
//	work.Call.Wait ──► endpoint.start ──► deliver: POST, signed ──► 2xx, or an error ──► Dispatcher.Record
//	                                                          └──► 202: endpoint.accept ··· POST /v1/push/{endpoint}/callback ──► Dispatcher.Record
//
// Requests and callbacks are signed as Standard Webhooks are, with one secret for both directions. A callback names the attempt by a token that is bound to its endpoint: any hub that has the file
// records it, whichever has sent the job.
//
// Goroutines: Run has one for each endpoint, and that one for each request. They end with Run's context, which waits for them. endpoint.mu guards what it holds; nothing is waited for while it is locked.
package push
