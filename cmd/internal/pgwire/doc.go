// Package pgwire is the hub's endpoint for PostgreSQL's wire protocol: unchanged drivers connect, LISTEN, and are notified.
// docs/wire-protocol.md says what is supported.
//
//	server := pgwire.New(pgwire.Config{Hub: h, Auth: roster, TLS: tlsConfig})
//	err := server.Serve(ctx, listener) // until ctx ends; then clients are told and the connections closed
//
// Config.Auth looks up the verifiers that SCRAM-SHA-256 is checked against, and the channels that each user may listen on and notify: a
// Roster of the database's roles; a UsersFile; or Trust, which lets everybody in. Without one nobody gets in.
//
// It is no PostgreSQL: it understands LISTEN, UNLISTEN, NOTIFY and pg_notify, transactions and savepoints around them, settings, and
// what drivers ask on their own. All else is refused with SQLSTATE 0A000.
//
// Each connection has one goroutine, which Serve starts and waits for. It blocks in a read with a buffer of 256 bytes, for most
// connections are idle most of the time. Notifications are written by the hub's goroutines through conn.Deliver; conn.out is held
// while anything is written. What a message looks like on the wire is made once, for all its subscribers.
//
//	lex, parse*     SQL to statements
//	exec, tx        statements to answers and, at the commit, to calls of the hub; functions, settings and types serve them
//	simple, extended    the two protocols of queries
//	listen          the hub's Sink
//	startup, auth, scram, tls, crowd    until a connection is a session
package pgwire
