// Package doctor looks at a live PostgreSQL from outside and names what slows it down.
//
//	d, err := doctor.Open(ctx, doctor.Config{URL: url})
//	defer d.Close()
//	report, err := d.Run(ctx, 15*time.Second)
//
// It works on any PostgreSQL from 14 on, with or without Weir's schema, by SQL alone and with the rights of
// pg_monitor; with less it says what it could not see. So the SQL stands here, beside the checks, and not with the
// typed calls of Weir's own functions.
//
// Three things run while it looks, each in a goroutine that Run or Watch starts, ends and waits for:
//
//   - the Sampler reads who waits for what, once a second, and ten times a second while sessions wait. Waits that
//     are shorter than deadlock_timeout are in no log and in no counter, so sampling is the only way to see them;
//   - the prober asks the postmaster for the one byte that answers an SSLRequest, once a second;
//   - the checks read the window of samples, the growth of counters between two looks, and catalogs.
//
// It never writes, and takes no lock but ACCESS SHARE: its sessions are read only, with timeouts for statements and
// locks; results are bounded; and a look that takes long is taken more rarely. Its own sessions (application_name
// "weir doctor") never count.
//
// What is found is graded by time lost: session-seconds waited per second, which is how many sessions stand still at
// any moment. A share of all waits would make a finding of an idle server's only wait.
//
// A check is one file, check_*.go: it gives findings, or one sentence on what is well. relate.go then says which
// finding is only a consequence of which. docs/findings has a page for each code.
package doctor
