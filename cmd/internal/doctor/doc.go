// Package doctor examines a live PostgreSQL from outside and names what slows it down.
//
//	d, err := doctor.Open(ctx, doctor.Config{URL: url})
//	defer d.Close()
//	report, err := d.Run(ctx, 15*time.Second)
//
// It works on any PostgreSQL from 14 on, with or without Weir's schema, by SQL alone and with the privileges of pg_monitor; with fewer, it
// reports what it could not see. Its SQL is therefore here, next to the checks, not with the typed calls of Weir's functions.
//
// While it examines a server, three parts run, each in a goroutine that Run or Watch starts, ends and waits for:
//
//   - the Sampler reads what sessions wait for, once a second, and ten times a second while sessions wait. Waits
//     shorter than deadlock_timeout appear in no log and no counter, so sampling is the only way to see them;
//   - the prober sends the postmaster an SSLRequest, which it answers with one byte, once a second;
//   - the checks read the window of samples, the growth of counters between two readings, and catalogs.
//
// It never writes, and takes no locks other than ACCESS SHARE. Its sessions are read-only, with timeouts for statements and locks. Results are
// limited in size, and slow samples are taken less often. Its own sessions (application_name "weir doctor") never count.
//
// Findings are graded by time lost: session-seconds waited per second, which is the average number of waiting sessions. A share of all waits
// would turn an idle server's only wait into a finding.
//
// Of a list of databases (list.go), each running server is examined once (group.go): its samples and its postmaster's answers serve all its databases, each of
// which is judged by its own sessions (part.go).
//
// Each check has its own file, check_*.go. It returns findings, or one sentence on what is healthy. relate.go then decides which findings are
// only consequences of others. docs/findings has a page for each code.
package doctor
