// Package proof tests what Weir promises. Each test is named after its promise. The tests use a real
// PostgreSQL server and only the SQL functions, like a client in any language.
//
//	go test ./cmd/internal/proof                                  all tests that need not be alone (WEIR_TEST_ALONE=1: those as well)
//	go test ./cmd/internal/proof -run Attempt -long 5m            the random test for longer; with -long 1s, also a million jobs
//	go test ./cmd/internal/proof -run Attempt -seed 42            repeats the plan of an earlier run (or WEIR_TEST_SEED)
//	go test ./cmd/internal/proof -run Golden -update              accepts a change of the schema
//	WEIR_TEST_PG_MAJOR=14 go test ./cmd/internal/proof            on the oldest supported PostgreSQL
//	WEIR_POSTGRES=/usr/lib/postgresql/15 go test ./…          on an installed PostgreSQL
//
// A seed determines what each session does, but not how the sessions interleave.
package proof
