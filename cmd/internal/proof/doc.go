// Package proof holds the tests of what Weir promises, each named after its promise. They talk to a real
// PostgreSQL through the SQL functions alone, as a client in any language would.
//
//	go test ./cmd/internal/proof                                  everything, in about a minute and a half
//	go test ./cmd/internal/proof -run Attempt -long 5m            the random test for longer; with -long 1s also the million jobs
//	go test ./cmd/internal/proof -run Attempt -seed 42            the plan of operations of an earlier run (or WEIR_TEST_SEED)
//	go test ./cmd/internal/proof -run Golden -update              accept a change of the schema
//	WEIR_TEST_PG_MAJOR=14 go test ./cmd/internal/proof            on the oldest PostgreSQL
//	WEIR_POSTGRES=/usr/lib/postgresql/15 go test ./…          on one that is installed
//
// A seed fixes what each session does, not how the sessions interleave.
package proof
