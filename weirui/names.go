package weirui

import (
	"net/url"
	"strings"
)

// inPath is a name as a part of a path. Browsers and proxies take . and .. for steps, even if they are escaped, so these have a ~ before them, and what
// looks so has one more.
func inPath(name string) string {
	if isDots(strings.TrimLeft(name, "~")) {
		name = "~" + name
	}
	return url.PathEscape(name)
}

// name is the name in the path, as inPath writes it.
func (v *visit) name() string {
	name := v.PathValue("name")
	if isDots(strings.TrimLeft(name, "~")) {
		return strings.TrimPrefix(name, "~")
	}
	return name
}

func isDots(name string) bool { return name == "." || name == ".." }
