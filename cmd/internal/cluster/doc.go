// Package cluster joins hubs over NATS, so that one of them reads each tick from the database and the others receive it.
//
//	source, err := cluster.Start(ctx, cluster.Config{Source: log, Database: "…", URL: "nats://…"})
//	h := hub.New(hub.Config{Source: source})
//	h.Run(ctx)
//	source.Close()
//
// A Cluster is a hub.Source that wraps another one, usually a hub.Log. NATS makes delivery faster, but decides nothing: which messages exist,
// their order, and whether a hub has all of them, is known from the database alone. So frames that NATS loses, delays or duplicates cause no
// loss, no long delay and no duplicates for subscribers, and hubs need no consensus: two hubs that read at once read the same ticks.
//
// # Who reads
//
//	Following ──(no reader heard for a while, or NATS is down)──► Serving ──(its random delay is over)──► Reading
//	    ▲                                                           │                                       │
//	    └──────────────────(a reader is heard)──────────────────────┴──────(a reader with a lower id is)────┘
//
// A reader sends the ticks that it reads to the others, and a heartbeat with its position several times a second. A hub that hears no reader
// reads from the database for itself immediately, and becomes the reader after a random delay. A partition of NATS has a reader on each
// side; a hub that is alone reads for itself.
//
// # What goes over NATS
//
// The subjects of a database begin with "weir." and its name. Channels are hashed into 256 buckets. For each part of a tick, the reader sends
// the messages of each bucket on the bucket's subject, in pieces, and then, on the subject "head", the part's head: its position, when it
// was cut, the epoch of the tick before it, and the number of pieces and messages in each bucket. A hub subscribes to the heads and to the
// buckets that its subscribers want. Once it has the head and everything that the head lists for these buckets, it has the part. A hub reads
// from the database what is still missing a moment after the head has arrived. So a bucket that was subscribed to too late for a tick costs a
// read, and nothing else. If the previous tick of a head has another epoch than the hub's, the head is of another history and is rejected.
//
// "beat" carries the hubs' heartbeats. Messages that are not logged are sent on their bucket's subject, too. Every frame begins with a
// version; frames of an unknown version are ignored.
//
// # Goroutines
//
// Start starts three, and Close stops them and waits for them:
//
//	receiver   takes frames off the subscriptions' common channel into the inbox; never waits for anything else
//	announcer  sends the parts that Next passes to it, and heartbeats, so that a slow NATS does not delay dispatching
//	keeper     drops subscriptions that are no longer wanted
//
// Next runs in the goroutine of hub.Run, and decides whether to take a part from the inbox or to read. Cluster.mu guards all state; nothing
// waits while holding it.
package cluster
