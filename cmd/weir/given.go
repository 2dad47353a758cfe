package main

import (
	"fmt"
	"reflect"

	"github.com/alecthomas/kong"
)

// refuseEmpty refuses a flag or an argument that was given an empty value, or zero: commands take this for not given, so that an unset variable of the
// shell in --key "$TENANT" would select the jobs of all keys. The tag empty:"ok" marks where such a value means something, and range:"1 to 4" says
// which numbers there are, and needed:"" that it may not be left out after what precedes it.
func refuseEmpty(given *kong.Path) error {
	var value *kong.Value
	name := ""
	switch {
	case given.Flag != nil:
		value, name = given.Flag.Value, "--"+given.Flag.Name
	case given.Positional != nil:
		value, name = given.Positional, "<"+given.Positional.Name+">"
	}
	if value == nil || value.Tag.Has("empty") || !isEmpty(value.Target) {
		return nil
	}
	advice := "give it a value, or leave it out"
	if value.Required || value.Tag.Has("needed") {
		advice = "give it a value"
	}
	switch value.Target.Kind() {
	case reflect.String, reflect.Slice, reflect.Pointer:
		return fmt.Errorf("%s is empty: %s (is a variable of your shell not set?)", name, advice)
	}
	if bounds := value.Tag.Get("range"); bounds != "" && value.Required {
		return fmt.Errorf("%s must be %s, got %v", name, bounds, value.Target.Interface())
	} else if bounds != "" {
		return fmt.Errorf("%s must be %s, got %v: %s", name, bounds, value.Target.Interface(), advice)
	}
	return fmt.Errorf("%s must not be %v: %s", name, value.Target.Interface(), advice)
}

// isEmpty reports whether a command would take a value for not given, or one of several values is empty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Bool:
		return false
	case reflect.Pointer: // nil: not given
		return v.Elem().Kind() == reflect.String && v.Elem().Len() == 0
	case reflect.Slice:
		for _, element := range v.Seq2() {
			if element.Kind() == reflect.String && element.Len() == 0 {
				return true
			}
		}
		return v.Len() == 0
	}
	if time, ok := v.Interface().(interface{ IsZero() bool }); ok {
		return time.IsZero()
	}
	return v.IsZero()
}
