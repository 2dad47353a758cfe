// Package cluster joins hubs over NATS, so that one of them reads each tick from the database and the others receive it.
//
//	source, err := cluster.Start(ctx, cluster.Config{Source: log, Database: "…", URL: "nats://…"})
//	h := hub.New(hub.Config{Source: source})
//	h.Run(ctx)
//	source.Close()
//
// A Cluster is a hub.Source around another one, mostly a hub.Log. NATS only makes it faster: what there is, in which order, and whether
// it is complete, the database alone says. So nothing that is lost, delayed or doubled on NATS is lost, delayed for long or doubled for
// a subscriber, and there is no consensus to be reached: two hubs that read at once read the same.
//
// # Who reads
//
//	Following ──(no reader heard for a while, or NATS is gone)──► Serving ──(its time has come)──► Reading
//	    ▲                                                           │                               │
//	    └───────────────(a reader is heard)─────────────────────────┴──(one of a smaller id is)─────┘
//
// A reader gives the ticks it reads to the others and tells several times a second that it lives and how far it has come. Who hears none
// serves itself from the database at once, and offers itself as reader after a random while. A partition of NATS has a reader on each
// side; who is alone reads for itself.
//
// # What goes over NATS
//
// The subjects of a database begin with "weir." and its name. Channels fall into 256 buckets; for each part of a tick, the reader sends
// the messages of every bucket on the bucket's subject, in pieces, and then, on the subject "head", the part's head: its place, when it
// was cut, when the tick before it was, and how much there is in which bucket. A hub subscribes to the heads and to the buckets that its
// subscribers want. Once it has the head and all that the head lists of its buckets, it has the part. What is still missing a moment after
// the head has come it reads from the database. So a bucket that was subscribed to too late for a tick costs a read, and nothing else.
// A head whose tick before is of another epoch than the one the hub knows is of another history, and is not believed.
//
// "beat" carries the hubs' signs of life. Messages that are not logged go on their bucket's subject, too. Every frame begins with a
// version: one that is not known is as good as not sent.
//
// # Goroutines
//
// Start starts three, and Close stops and waits for them:
//
//	receiver   takes frames off the subscriptions' common channel into the inbox; never waits for anything else
//	announcer  sends the parts that Next hands it, and beats; so that a slow NATS holds up no dispatching
//	keeper     drops subscriptions that nobody wants any more
//
// Next runs in the goroutine of hub.Run, and decides: take a part from the inbox, or read. Cluster.mu guards all state; nothing waits while
// holding it.
package cluster
