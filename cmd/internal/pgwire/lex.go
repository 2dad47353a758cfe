package pgwire

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// The lexical rules are those of PostgreSQL (chapter "Lexical Structure" of its manual) with standard_conforming_strings on.

type tokenKind uint8

const (
	endToken    tokenKind = iota
	wordToken             // a key word or an unquoted name, folded to lower case
	quotedToken           // a quoted name
	stringToken
	numberToken
	paramToken // $1
	opToken    // one character, or ::
)

type token struct {
	kind tokenKind
	text string // what it stands for: unquoted, unescaped
	raw  string // as written
}

// lexer splits SQL into tokens.
type lexer struct {
	sql string
	at  int
}

// next returns the next token, or the end. An error is a *Error.
func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	if l.at >= len(l.sql) {
		return token{}, nil
	}
	begin := l.at
	t, err := l.scan()
	t.raw = l.sql[begin:l.at]
	return t, err
}

func (l *lexer) scan() (token, error) {
	rest := l.sql[l.at:]
	switch c := rest[0]; {
	case (c == 'e' || c == 'E') && len(rest) > 1 && rest[1] == '\'':
		l.at++
		return l.quotedString(true)
	case c == '\'':
		return l.quotedString(false)
	case c == '"':
		return l.quotedName()
	case beginsName(c):
		n := 1
		for n < len(rest) && (beginsName(rest[n]) || isDigit(rest[n]) || rest[n] == '$') {
			n++
		}
		l.at += n
		return token{kind: wordToken, text: fold(rest[:n])}, nil
	case isDigit(c) || c == '.' && len(rest) > 1 && isDigit(rest[1]):
		return l.number(), nil
	case c == '$':
		return l.dollar()
	case strings.HasPrefix(rest, "::"):
		l.at += 2
		return token{kind: opToken, text: "::"}, nil
	default:
		_, n := utf8.DecodeRuneInString(rest)
		l.at += n
		return token{kind: opToken, text: rest[:n]}, nil
	}
}

// skip skips white space and comments.
func (l *lexer) skip() error {
	for l.at < len(l.sql) {
		rest := l.sql[l.at:]
		switch {
		case isSpace(rest[0]):
			l.at++
		case strings.HasPrefix(rest, "--"):
			if n := strings.IndexAny(rest, "\r\n"); n >= 0 {
				l.at += n
			} else {
				l.at = len(l.sql)
			}
		case strings.HasPrefix(rest, "/*"):
			if err := l.comment(); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// comment skips a /* */ comment; they nest.
func (l *lexer) comment() error {
	depth := 0
	for at := l.at; at+1 < len(l.sql); at++ {
		switch l.sql[at : at+2] {
		case "/*":
			depth++
			at++
		case "*/":
			depth--
			at++
		}
		if depth == 0 {
			l.at = at + 1
			return nil
		}
	}
	return errorf(syntaxError, "unterminated /* comment")
}

// quotedString reads a string from the quote on. Strings separated by a newline are one.
func (l *lexer) quotedString(escapes bool) (token, error) {
	var text strings.Builder
	for {
		if err := l.segment(&text, escapes); err != nil {
			return token{}, err
		}
		back, newline := l.at, false
		for l.at < len(l.sql) && isSpace(l.sql[l.at]) {
			newline = newline || l.sql[l.at] == '\n' || l.sql[l.at] == '\r'
			l.at++
		}
		if !newline || l.at >= len(l.sql) || l.sql[l.at] != '\'' {
			l.at = back
			break
		}
	}
	t := token{kind: stringToken, text: text.String()}
	if !isText(t.text) {
		return t, errorf(badEncoding, "invalid byte sequence for encoding \"UTF8\" in a string")
	}
	return t, nil
}

func (l *lexer) segment(text *strings.Builder, escapes bool) error {
	special := "'"
	if escapes {
		special = `'\`
	}
	for l.at++; ; {
		n := strings.IndexAny(l.sql[l.at:], special)
		if n < 0 {
			l.at = len(l.sql)
			return errorf(syntaxError, "unterminated quoted string")
		}
		text.WriteString(l.sql[l.at : l.at+n])
		l.at += n
		if l.sql[l.at] == '\\' {
			if err := l.escape(text); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(l.sql[l.at:], "''") {
			l.at++
			return nil
		}
		text.WriteByte('\'')
		l.at += 2
	}
}

// escape reads a backslash escape.
func (l *lexer) escape(text *strings.Builder) error {
	l.at++
	if l.at >= len(l.sql) {
		return errorf(syntaxError, "unterminated quoted string")
	}
	c := l.sql[l.at]
	l.at++
	switch c {
	case 'b', 'f', 'n', 'r', 't':
		text.WriteByte(map[byte]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}[c])
	case 'x':
		if n, ok := l.digits(16, 1, 2); ok {
			text.WriteByte(byte(n))
		} else {
			text.WriteByte(c)
		}
	case '0', '1', '2', '3', '4', '5', '6', '7':
		l.at--
		n, _ := l.digits(8, 1, 3)
		text.WriteByte(byte(n))
	case 'u', 'U':
		return l.unicode(text, c)
	default:
		_, n := utf8.DecodeRuneInString(l.sql[l.at-1:])
		text.WriteString(l.sql[l.at-1 : l.at-1+n])
		l.at += n - 1
	}
	return nil
}

// unicode reads the digits after \u or \U. A character outside the basic plane may be written as two surrogates.
func (l *lexer) unicode(text *strings.Builder, c byte) error {
	width := map[byte]int{'u': 4, 'U': 8}[c]
	n, ok := l.digits(16, width, width)
	if ok && n >= 0xD800 && n < 0xDC00 && strings.HasPrefix(l.sql[l.at:], `\u`) {
		l.at += 2
		low, fits := l.digits(16, 4, 4)
		ok = fits && low >= 0xDC00 && low < 0xE000
		n = (n-0xD800)<<10 + (low - 0xDC00) + 0x10000
	}
	if !ok || n > utf8.MaxRune || n >= 0xD800 && n < 0xE000 {
		return errorf(syntaxError, "invalid Unicode escape: write \\uXXXX or \\UXXXXXXXX")
	}
	text.WriteRune(rune(n))
	return nil
}

// digits reads between least and most digits.
func (l *lexer) digits(base, least, limit int) (uint64, bool) {
	end := l.at
	for end < len(l.sql) && end < l.at+limit {
		if _, err := strconv.ParseUint(l.sql[end:end+1], base, 8); err != nil {
			break
		}
		end++
	}
	if end < l.at+least {
		return 0, false
	}
	n, err := strconv.ParseUint(l.sql[l.at:end], base, 64)
	l.at = end
	return n, err == nil
}

func (l *lexer) quotedName() (token, error) {
	var text strings.Builder
	for l.at++; ; {
		n := strings.IndexByte(l.sql[l.at:], '"')
		if n < 0 {
			l.at = len(l.sql)
			return token{}, errorf(syntaxError, "unterminated quoted identifier")
		}
		text.WriteString(l.sql[l.at : l.at+n])
		l.at += n + 1
		if !strings.HasPrefix(l.sql[l.at:], `"`) {
			break
		}
		text.WriteByte('"')
		l.at++
	}
	if text.Len() == 0 {
		return token{}, errorf(syntaxError, "zero-length delimited identifier")
	}
	return token{kind: quotedToken, text: text.String()}, nil
}

func (l *lexer) number() token {
	end := l.at
	for end < len(l.sql) {
		c := l.sql[end]
		sign := (c == '+' || c == '-') && end > l.at && (l.sql[end-1] == 'e' || l.sql[end-1] == 'E')
		if !isDigit(c) && c != '.' && c != 'e' && c != 'E' && !sign {
			break
		}
		end++
	}
	text := l.sql[l.at:end]
	l.at = end
	return token{kind: numberToken, text: text}
}

// dollar reads a parameter or a dollar-quoted string.
func (l *lexer) dollar() (token, error) {
	rest := l.sql[l.at+1:]
	n := 0
	for n < len(rest) && isDigit(rest[n]) {
		n++
	}
	if n > 0 {
		l.at += 1 + n
		return token{kind: paramToken, text: rest[:n]}, nil
	}
	for n < len(rest) && (beginsName(rest[n]) || n > 0 && isDigit(rest[n])) {
		n++
	}
	if n >= len(rest) || rest[n] != '$' {
		l.at++
		return token{kind: opToken, text: "$"}, nil
	}
	quote := l.sql[l.at : l.at+n+2]
	text, _, ok := strings.Cut(l.sql[l.at+len(quote):], quote)
	if !ok {
		return token{}, errorf(syntaxError, "unterminated dollar-quoted string")
	}
	l.at += 2*len(quote) + len(text)
	return token{kind: stringToken, text: text}, nil
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func beginsName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

// fold converts ASCII letters to lower case, as PostgreSQL does in UTF8.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// isText reports whether PostgreSQL would accept the string as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
