package main

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/weir-pg/weir/schema"
)

type versionCmd struct{ jsonFlag }

func (versionCmd) Help() string {
	return `Example:

    weir version --json`
}

type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Schema   int    `json:"schema"`
}

func (c *versionCmd) Run(s *streams) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this build contains no version information: build it with go build in module mode")
	}
	migrations, err := schema.Migrations()
	if err != nil {
		return err
	}
	b := build{Version: info.Main.Version, Go: info.GoVersion, Schema: len(migrations)}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.time":
			b.Time = setting.Value
		case "vcs.modified":
			b.Modified = setting.Value == "true"
		}
	}
	if c.JSON {
		return printJSON(s.out, b)
	}
	fmt.Fprintf(s.out, "weir %s, schema version %d, %s\n", b.Version, b.Schema, b.Go)
	if b.Revision != "" {
		changed := ""
		if b.Modified {
			changed = ", with changes"
		}
		fmt.Fprintf(s.out, "built from %s of %s%s\n", b.Revision, b.Time, changed)
	}
	return nil
}
