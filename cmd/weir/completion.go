package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `Examples:

    source <(weir completion bash)                  # in ~/.bashrc

    source <(weir completion zsh)                   # in ~/.zshrc, after compinit

    weir completion fish > ~/.config/fish/completions/weir.fish`
}

// The scripts call the command itself, so they need no change when it gets a new flag. If it has no answer, the shell completes file
// names.
var completionScripts = map[string]string{
	"bash": `_weir() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(weir __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _weir weir
`,
	"zsh": `_weir() {
  local -a found
  found=("${(@f)$(weir __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _weir weir
`,
	"fish": `complete -c weir -a '(weir __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
`,
}

func (c *completionCmd) Run(s *streams) error {
	fmt.Fprint(s.out, completionScripts[c.Shell])
	return nil
}

// completeCmd prints the completions of the last word, one per line.
type completeCmd struct {
	Words []string `arg:"" optional:"" empty:"ok"`
}

func (c *completeCmd) Run(s *streams, app *kong.Application) error {
	for _, candidate := range candidates(app.Node, c.Words) {
		fmt.Fprintln(s.out, candidate)
	}
	return nil
}

func candidates(node *kong.Node, words []string) (found []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	last, before := words[len(words)-1], words[:len(words)-1]
	var value *kong.Flag // the flag that waits for its value
	for _, word := range before {
		if word == "--" {
			return nil
		}
		if value != nil {
			value = nil
			continue
		}
		if strings.HasPrefix(word, "-") {
			value = flagOf(node, word)
			continue
		}
		for _, child := range node.Children {
			if child.Name == word {
				node = child
			}
		}
	}
	offer := func(word string) {
		if word != "" && strings.HasPrefix(word, last) {
			found = append(found, word)
		}
	}
	switch {
	case value != nil:
		for word := range strings.SplitSeq(value.Tag.Get("values")+","+value.Enum, ",") {
			offer(word)
		}
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, flag := range group {
				offer("--" + flag.Name)
			}
		}
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				offer(child.Name)
			}
		}
		for _, positional := range node.Positional {
			for _, word := range positional.EnumSlice() {
				offer(word)
			}
		}
	}
	return found
}

// flagOf returns the flag whose value is the next word; nil: there is none.
func flagOf(node *kong.Node, word string) *kong.Flag {
	for _, group := range node.AllFlags(false) {
		for _, flag := range group {
			if (word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short)) && !flag.IsBool() {
				return flag
			}
		}
	}
	return nil
}
