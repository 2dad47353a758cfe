// Package policy reads the file of --channels-file: what is allowed on which channels, for clients of every transport.
//
//	{"channels": [
//	  {"match": "inbox.{user}", "subscribe": "self", "publish": "nobody"},
//	  {"match": "chat.*",       "publish_rate": 5, "payload_bytes": 4096, "history": 50, "presence": true},
//	  {"match": ">",            "history": 0}
//	]}
//
// The first entry that matches a channel decides, alone. To subscribe to a pattern, all entries must allow it that match some of its channels.
package policy
