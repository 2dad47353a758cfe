// Package guard supervises the vacuum horizon of a primary and its standbys: it finds who holds it back, judges whether that does harm, and
// ends those sessions that a policy gives it to end.
//
// A look reads all servers (view.go) and traces what pins the primary's horizon to its causes, through walsenders and slots to the sessions of
// standbys (cluster.go). It is judged in order: the oldest hold is in front, and a session behind a hold that will stay is left alone, since
// ending it would move nothing (judge.go). What is due climbs a ladder, one rung at a time: report, cancel, terminate
// (ladder.go). Signals are few, and fewer still after one that did no good (caution.go). Each is sent by a statement that finds the
// session anew, and what came of it is checked by the looks that follow (act.go).
//
// Everything is read from the outside, by SQL that changes nothing but by those signals; the databases need not have Weir in them.
package guard
