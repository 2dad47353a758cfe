// Package testdb creates databases for tests on a running PostgreSQL server: a template with Weir's schema, and a copy of it for each test.
// Package weirtest offers this to users of the library, package pgtest to the library's own tests.
//
// All state is in the names, since nothing else survives a test process that is killed:
//
//	weir_test_a16384_r7f3c09d2_some_test_ab12cd09f4e1    a test's database
//	weir_test_a16384_r7f3c09d2_template_ab12cd7733a0     a template that only this process copies, or one being created
//	weir_test_template_1f0e9d…                           a template of all processes, named after its contents
//
// a16384 is the oid of the database to which the process connects to create others. r7f3c09d2 is the run of one process, which holds an
// advisory lock in that database as long as it lives. So a database is left over if the lock of its run is free; nothing depends on clocks.
// Databases of runs that started from another database are left to processes that connect to that one, since only they can see the locks of
// those runs. The last six digits are a checksum of the rest of the name: a database whose name has none was not created by this
// package, and is never dropped.
package testdb
