// Package refer reads configuration files, and what they refer to.
package refer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// LookUp returns what a value refers to: env:NAME, file:PATH, or the value itself.
func LookUp(from string) (string, error) {
	if name, ok := strings.CutPrefix(from, "env:"); ok {
		text, ok := os.LookupEnv(name)
		if !ok {
			return "", fmt.Errorf("the environment has no %s", name)
		}
		return text, nil
	}
	if path, ok := strings.CutPrefix(from, "file:"); ok {
		text, err := read(path)
		return strings.TrimRight(string(text), "\r\n"), err
	}
	return from, nil
}

// Hidden is a value for people: a secret is not shown.
func Hidden(from string) string {
	if strings.HasPrefix(from, "env:") || strings.HasPrefix(from, "file:") {
		return from
	}
	return "one"
}

// TOML decodes a file. Its errors name unknown settings, with their lines, and the line and column of what can't be read.
func TOML(path string, into any) error {
	text, err := read(path)
	if err != nil {
		return err
	}
	err = toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(into)
	var unknown *toml.StrictMissingError
	var wrong *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		names := make([]string, len(unknown.Errors))
		for i, e := range unknown.Errors {
			line, _ := e.Position()
			names[i] = fmt.Sprintf("%s (line %d)", strings.Join(e.Key(), "."), line)
		}
		return fmt.Errorf("unknown settings: %s", strings.Join(names, ", "))
	case errors.As(err, &wrong):
		row, column := wrong.Position()
		return fmt.Errorf("line %d, column %d: %w", row, column, wrong)
	}
	return err
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return b, err
}
