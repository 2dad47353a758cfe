package main

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestAnEmptyFlagIsRefused: a flag or an argument that is given an empty value, or zero, is refused by every command, rather than taken for not given:
// an unset variable of the shell selects no more jobs than a set one. Where such a value means something, it is listed here.
func TestAnEmptyFlagIsRefused(t *testing.T) {
	t.Parallel()
	meaningful := map[string]bool{
		"weir dev --port": true, "weir dev --hub-pg-port": true, "weir dev --hub-http-port": true, // any free port
		"weir serve --listen-http": true, "weir serve --listen-pg": true, // off
		"weir work --timeout": true, "weir work <command>": true, "weir migrate down --to": true, "weir schedules set --jitter": true, "weir publish <payload>": true,
	}
	parser, err := newParser(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	marked := map[string]bool{}
	tried := 0
	for _, command := range parser.Model.Leaves(true) {
		path := strings.Fields(command.FullPath())[1:]
		// valid returns a value that the parser accepts for it.
		valid := func(v *kong.Value) string {
			switch {
			case v.Enum != "":
				return v.EnumSlice()[0]
			case v.Tag.Type == "existingfile":
				return "given_test.go"
			case v.Target.Kind() == reflect.String || v.Target.Kind() == reflect.Slice && v.Target.Type().Elem().Kind() == reflect.String:
				return "x"
			}
			return "1"
		}
		try := func(name string, tagged bool, args ...string) {
			t.Helper()
			if tagged {
				marked[command.FullPath()+" "+name] = true
				return
			}
			tried++
			fresh, err := newParser(&cli{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = fresh.Parse(slices.Concat(path, args)) // does not run the command
			if err == nil || !strings.Contains(err.Error(), name) || commandOf(err) != command.FullPath() || strings.Contains(err.Error(), "unknown") {
				t.Errorf("weir %q: %v", slices.Concat(path, args), err)
			}
		}
		var flags, required []string // required are the arguments that the command needs in any case
		for _, p := range command.Positional {
			if p.Required {
				required = append(required, valid(p))
			}
		}
		all := slices.Concat(slices.Concat(command.AllFlags(false)...))
		for _, f := range all {
			if f.Required {
				flags = append(flags, "--"+f.Name+"="+valid(f.Value))
			}
		}
		for _, f := range all {
			if f.IsBool() || f.Name == "help" {
				continue
			}
			others := slices.DeleteFunc(slices.Clone(flags), func(arg string) bool { return strings.HasPrefix(arg, "--"+f.Name+"=") })
			kind := f.Target.Kind()
			if f.Target.Type() == reflect.TypeFor[moment]() || f.Target.Type() == reflect.TypeFor[past]() {
				try("--"+f.Name, f.Tag.Has("empty"), slices.Concat(required, others, []string{"--" + f.Name + "=0001-01-01T00:00:00Z"})...)
			}
			if kind == reflect.Int || kind == reflect.Int64 || kind == reflect.Float64 {
				try("--"+f.Name, f.Tag.Has("empty"), slices.Concat(required, others, []string{"--" + f.Name + "=0"})...)
			}
			try("--"+f.Name, f.Tag.Has("empty"), slices.Concat(required, others, []string{"--" + f.Name + "="})...)
			if kind == reflect.Slice && f.Tag.Sep == -1 { // one value at a time
				try("--"+f.Name, f.Tag.Has("empty"), slices.Concat(required, others, []string{"--" + f.Name + "=1", "--" + f.Name + "="})...)
			}
		}
		for i, p := range command.Positional {
			var before []string
			for _, earlier := range command.Positional[:i] {
				before = append(before, valid(earlier))
			}
			after := []string{}
			if len(required) > i+1 {
				after = required[i+1:]
			}
			try("<"+p.Name+">", p.Tag.Has("empty"), slices.Concat(flags, before, []string{""}, after)...)
			if p.Target.Kind() == reflect.Float64 {
				try("<"+p.Name+">", p.Tag.Has("empty"), slices.Concat(flags, before, []string{"0"}, after)...)
			}
		}
	}
	delete(marked, "weir __complete <words>")
	if !maps.Equal(marked, meaningful) {
		t.Errorf("empty values are accepted by %v, want %v", slices.Sorted(maps.Keys(marked)), slices.Sorted(maps.Keys(meaningful)))
	}
	if tried < 100 {
		t.Errorf("only %d flags and arguments were tried", tried)
	}
}
