package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/connstring"
)

const maxList = 16 << 20 // bytes of a list of databases

// errEnough ends a walk through a list, which is no failure.
var errEnough = errors.New("enough for now")

// lastFailure is one that ends a walk through a list.
type lastFailure struct{ error }

func (f lastFailure) Unwrap() error { return f.error }

// eachOfList does something with each database of a list, one after the other, and says which. After a failure it goes on with the next, unless that is a lastFailure, and
// returns an error at the end.
func eachOfList(ctx context.Context, s *streams, path string, do func(*database) error) error {
	urls, err := readList(s.in, path)
	if err != nil {
		return err
	}
	failed, hints := 0, saidHints{}
	for i, url := range urls {
		name, err := nameOf(url)
		if err == nil {
			fmt.Fprintf(s.out, "%d of %d: %s\n", i+1, len(urls), name)
			err = do(&database{url: url, err: s.err})
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stopped at database %d of %d, %s: run it again for those that are left: %w", i+1, len(urls), name, ctx.Err())
		}
		if errors.Is(err, errEnough) {
			fmt.Fprintf(s.err, "weir: stopped before database %d of %d, %s: the same command goes on from there\n", i+1, len(urls), name)
			break
		}
		if err != nil {
			failed++
			fmt.Fprintf(s.err, "weir: database %d of %d, %s: %s\n", i+1, len(urls), name, hints.line(err))
		}
		if errors.As(err, new(lastFailure)) {
			return fmt.Errorf("stopped at database %d of %d, %s, which failed: mend what is in the way, and run it again: those that are done stay so", i+1, len(urls), name)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d databases failed: mend what is in the way, and run it again for them", failed, len(urls))
	}
	return nil
}

// saidHints are the hints of the server that were said: what mends one database of a list, such as roles that a server lacks, often mends the others.
type saidHints map[string]bool

// line is an error in one line, with the server's hint unless that was said.
func (h saidHints) line(err error) string {
	line := ofList(strings.TrimPrefix(oneLine(err), "weir: "))
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Hint == "" {
		return line
	}
	if h[refused.Hint] {
		return strings.Replace(line, ": "+refused.Hint, "", 1)
	}
	h[refused.Hint] = true
	return line
}

// ofList is an error about a database of a list, which is given by no flag.
func ofList(text string) string {
	return strings.ReplaceAll(text, "--database or DATABASE_URL", "the list")
}

// namedOr is nameOf, but for one that can't be read the place on the list, from 1.
func namedOr(place int, url string) (string, error) {
	name, err := nameOf(url)
	if err != nil {
		name = fmt.Sprintf("number %d of the list", place)
	}
	return name, err
}

// readList reads connection strings, one in each line.
func readList(in io.Reader, path string) (urls []string, err error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the list of databases: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxList+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the list of databases: %w", err)
	case len(text) > maxList:
		return nil, usagef("the list of databases is longer than %d bytes: split it", maxList)
	}
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		url := strings.TrimSpace(string(line))
		if url == "" || url[0] == '#' || seen[url] {
			continue
		}
		seen[url] = true
		urls = append(urls, url)
	}
	if len(urls) == 0 {
		return nil, usagef("the list of databases is empty: it has a connection string in each line")
	}
	return urls, nil
}

// nameOf names a database without its password.
func nameOf(url string) (string, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return "which can't be read", connstring.Invalid(err)
	}
	return fmt.Sprintf("%s at %s", c.Database, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))), nil
}
