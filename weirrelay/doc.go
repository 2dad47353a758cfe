// Package weirrelay passes Weir's messages on to other brokers, reliably and in bulk.
//
// A relay reads the log of messages as a hub does, so it neither waits for a long transaction nor holds one up, and passes on every message once it is
// committed, in the order of the log. How far it has come is kept where the messages go, together with them, if that is possible; so after a crash
// of any part it continues there. Processes that run a relay of the same name stand by for one another.
//
// Targets are in packages of their own, so that you depend only on the client that you use: kafkarelay for Kafka, natsrelay for NATS JetStream, redisrelay
// for Redis. A Target of your own needs two methods.
package weirrelay
