// Package pgwire is the hub's endpoint for PostgreSQL's wire protocol: unmodified drivers connect, LISTEN, and receive notifications.
// docs/wire-protocol.md describes what is supported.
//
//	server := pgwire.New(pgwire.Config{Hub: h, Auth: roster, TLS: tlsConfig})
//	err := server.Serve(ctx, listener) // until ctx ends; then clients are notified and connections closed
//
// Config.Auth looks up the SCRAM-SHA-256 verifiers of passwords, and the channels on which each user may listen and notify: a
// Roster of the database's roles, a UsersFile, or Trust, which accepts every client. Without one, no client can log in.
//
// With Config.Databases, one server is the door of several databases: it accepts connections, and hands each over to the server of the database
// that its startup message names.
//
// It is not a PostgreSQL server: it understands LISTEN, UNLISTEN, NOTIFY and pg_notify, transactions and savepoints around them, settings, and
// the queries that drivers send automatically. Everything else is refused with SQLSTATE 0A000.
//
// Each connection has one goroutine, which Serve starts and waits for. It blocks in a read with a buffer of 256 bytes, because most
// connections are idle most of the time. The hub's goroutines write notifications through conn.Deliver. conn.out is held during every write.
// A message's wire format is encoded once for all its subscribers.
//
//	lex, parse*     SQL to statements
//	exec, tx        statements to answers and, at commit, to calls of the hub; functions, settings and types support them
//	simple, extended    the two query protocols
//	listen          the hub's Sink
//	startup, door, auth, scram, tls, strangers    until a connection is a session
package pgwire
