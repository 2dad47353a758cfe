// Package presence knows who is on which channel, at all hubs of a database.
//
// Each hub announces its own members on an internal channel of the log: joins and leaves, a few times a second, and all of them when another hub asks. So nothing is
// written for members that stay, no row is updated, and hubs need no network of their own.
//
//	Enter, Leave ─► local ─► frames ─► log of messages ─► every hub: remotes ─► rooms ─► events for subscribers, List
//
// A hub's frames are numbered. Who misses one, as after a gap, asks that hub for all of its members. Every few seconds each hub sends a beat; one whose beats don't come,
// while three of the own have, is dead, and its members leave. No clock is compared with another. Frames are signed with a secret that only hubs may read, because
// others may publish in the log.
package presence
