package doctor

import (
	"regexp"
	"strings"
)

// lexemes matches what a statement consists of, as far as it matters for values: comments, strings, quoted names, what opens a string in dollar quotes, parameters,
// words and numbers. A statement may be cut off in any of them.
var lexemes = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?(?:\*/|$)` +
	`|[eE]'(?:[^'\\]|''|\\.)*'?|'(?:[^']|'')*'?` +
	`|"(?:[^"]|"")*"?` +
	`|\$(?:[\pL_][\pL\pN_]*)?\$|\$\d+` +
	`|[\pL_][\pL\pN_$]*` +
	`|0[xXoObB][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?`)

// defines matches statements whose string in dollar quotes is code.
var defines = regexp.MustCompile(`(?i)^\s*(do|create)\b`)

// withoutValues returns a statement without its comments, and with a question mark for each of its values.
func withoutValues(query string) string {
	var b strings.Builder
	code := "" // what opens and closes the code, whose values are left out one by one
	for {
		at := lexemes.FindStringIndex(query)
		if at == nil {
			b.WriteString(query)
			return b.String()
		}
		lexeme := query[at[0]:at[1]]
		b.WriteString(query[:at[0]])
		query = query[at[1]:]
		switch first := lexeme[0]; {
		case first == '-', first == '/':
			b.WriteByte(' ')
		case first == '$' && strings.HasSuffix(lexeme, "$"):
			if code == "" && defines.MatchString(b.String()) {
				code = lexeme
			}
			if lexeme == code {
				b.WriteString(lexeme)
				continue
			}
			_, query, _ = strings.Cut(query, lexeme)
			b.WriteByte('?')
		case first != '"' && strings.Contains(lexeme, "'"), '0' <= first && first <= '9':
			b.WriteByte('?')
		default:
			b.WriteString(lexeme)
		}
	}
}
