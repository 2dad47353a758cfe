// Package guard watches the vacuum horizon of a primary and its standbys: it finds what holds it back, judges whether that does harm, and
// ends the sessions that a policy allows it to end.
//
// A poll reads all servers (view.go) and traces what pins the primary's horizon to its causes, through walsenders and slots to the sessions
// of standbys (cluster.go). Holders are judged oldest first. A session behind a holder that will stay is left alone, because ending it would
// move nothing, and one behind a snapshot that may stay waits until that can be told (judge.go). Action is taken one step at a time: report,
// cancel, terminate (ladder.go). Signals are limited in rate, and paused after one that did not help (caution.go). Each is sent by a statement
// that finds the session again, and the following polls check its effect (act.go). What of the policy protects nothing is logged (useless.go).
//
// The guard's SQL changes nothing apart from these signals. The databases need not have Weir installed.
package guard
