// Package testdb makes databases for tests on a PostgreSQL server that runs already: a template with Weir's schema in it, and a copy of it for
// each test. Package weirtest does it for users of the library, package pgtest for the library's own tests.
//
// Names tell everything, for nothing else survives a test process that is killed:
//
//	weir_test_a16384_r7f3c09d2_some_test_ab12cd    a test's database
//	weir_test_a16384_r7f3c09d2_template_ab12cd     a template that this process alone copies, or one in the making
//	weir_test_template_1f0e9d…                     a template of all processes, by what is in it
//
// a16384 is the database that is connected to for creating others, by its oid; r7f3c09d2 is the run of one process, which holds an advisory lock
// there for as long as it lives. So a database is left over when its run's lock is free: nothing depends on clocks. Those of runs that were
// begun from another database are left to processes that connect to that one, which alone can see their locks.
package testdb
