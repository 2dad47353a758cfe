package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/weir-pg/weir/weirui"
)

type uiPasswordCmd struct {
	Name string `arg:"" help:"The user's name."`
	Role string `default:"viewer" placeholder:"ROLE" help:"viewer, operator or admin (${default})."`
}

func (uiPasswordCmd) Help() string {
	return `It reads a password from the terminal, or from the first line of standard input, and prints the user's line for the file of weir serve --ui-users. The line does not contain the password, but what it can be checked with.

Example:

    weir ui-password ada --role admin >>users.txt`
}

func (c *uiPasswordCmd) Run(ctx context.Context, s *streams) error {
	role, ok := weirui.ParseRole(c.Role)
	if !ok {
		return usagef("--role must be viewer, operator or admin, got %q", c.Role)
	}
	password, err := readPassword(ctx, s)
	if err != nil {
		return err
	}
	line, err := weirui.UserLine(c.Name, role, password)
	if err != nil {
		return usagef("%s", strings.TrimPrefix(err.Error(), "weirui: "))
	}
	_, err = io.WriteString(s.out, line)
	return err
}

// readPassword reads a password: twice from a terminal, which does not show it.
func readPassword(ctx context.Context, s *streams) (string, error) {
	f, ok := isTerminal(s.in)
	if !ok {
		line, err := bufio.NewReader(io.LimitReader(s.in, 64<<10)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	shows, err := term.GetState(int(f.Fd()))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	var typed [2]string
	for i, prompt := range []string{"Password: ", "Again: "} {
		fmt.Fprint(s.err, prompt)
		read := make(chan error, 1)
		go func() { // ends with the line, or with the process
			text, err := term.ReadPassword(int(f.Fd()))
			typed[i] = string(text)
			read <- err
		}()
		select {
		case err = <-read:
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), term.Restore(int(f.Fd()), shows))
		}
		fmt.Fprintln(s.err)
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
	}
	if typed[0] != typed[1] {
		return "", usagef("the passwords differ: try again")
	}
	return typed[0], nil
}
