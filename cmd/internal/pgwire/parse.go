package pgwire

import (
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// parser parses statements, with one token of lookahead, and a second one where necessary.
type parser struct {
	lexer  lexer
	token  token
	params []*dataType // of the statement; nil: unknown
	depth  int         // of nested expressions
	tokens int         // so far
}

// Limits of a query, because the parsed form needs far more memory than the text. A payload of any length is one token.
const (
	maxTokens  = 20_000
	tokenCosts = 128 // approximate bytes of a parsed statement per token
)

// parsed is a statement and the types of its parameters.
type parsed struct {
	statement statement
	params    []*dataType
	bytes     int // approximate memory
}

// parse parses all statements of a query; empty ones are left out.
func parse(sql string) ([]parsed, error) {
	if !isText(sql) {
		return nil, errorf(badEncoding, "invalid byte sequence for encoding \"UTF8\" in a query")
	}
	p := &parser{lexer: lexer{sql: sql}}
	if err := p.advance(); err != nil {
		return nil, err
	}
	var all []parsed
	for {
		for p.isOp(";") {
			if err := p.advance(); err != nil {
				return nil, err
			}
		}
		if p.token.kind == endToken {
			return all, nil
		}
		p.params = nil
		before := p.tokens
		s, err := p.statement()
		if err != nil {
			return nil, err
		}
		if p.token.kind != endToken && !p.isOp(";") {
			return nil, p.unexpected()
		}
		all = append(all, parsed{s, p.params, tokenCosts*(p.tokens-before+1) + 8*len(p.params)})
	}
}

func (p *parser) advance() (err error) {
	if p.tokens++; p.tokens > maxTokens {
		return errorf(tooComplex, "statement too complex: a query may have at most %d words, numbers, strings and symbols here", maxTokens).
			hint("Send it in parts.")
	}
	p.token, err = p.lexer.next()
	return err
}

func (p *parser) isOp(op string) bool     { return p.token.kind == opToken && p.token.text == op }
func (p *parser) isWord(word string) bool { return p.token.kind == wordToken && p.token.text == word }
func (p *parser) atEnd() bool             { return p.token.kind == endToken || p.isOp(";") }

// word skips a key word if it is next, and reports whether it was.
func (p *parser) word(words ...string) (bool, error) {
	for _, w := range words {
		if p.isWord(w) {
			return true, p.advance()
		}
	}
	return false, nil
}

func (p *parser) op(op string) (bool, error) {
	if p.isOp(op) {
		return true, p.advance()
	}
	return false, nil
}

// expect skips a key word or an operator, which is required.
func (p *parser) expect(what string) error {
	if !p.isWord(what) && !p.isOp(what) {
		return p.unexpected()
	}
	return p.advance()
}

func (p *parser) unexpected() error {
	if p.token.kind == endToken {
		return errorf(syntaxError, "syntax error at end of input")
	}
	return errorf(syntaxError, "syntax error at or near \"%s\"", cut(p.token.raw, 64))
}

// name reads a name.
func (p *parser) name() (string, error) {
	if p.token.kind != wordToken && p.token.kind != quotedToken {
		return "", p.unexpected()
	}
	name := p.token.text
	if len(name) > hub.MaxChannel {
		return "", errorf(nameTooLong, "identifier too long: %d bytes, at most %d are allowed", len(name), hub.MaxChannel)
	}
	return name, p.advance()
}

func (p *parser) str() (string, error) {
	if p.token.kind != stringToken {
		return "", p.unexpected()
	}
	s := p.token.text
	return s, p.advance()
}

// rest skips the rest of the statement.
func (p *parser) rest() error {
	for !p.atEnd() {
		if err := p.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) statement() (statement, error) {
	first := p.token
	if first.kind != wordToken {
		return nil, p.unexpected()
	}
	if first.text == "select" {
		return p.selectOrUnknown()
	}
	read := statements[first.text]
	if read == nil {
		return unknownStatement{strings.ToUpper(first.text)}, p.rest()
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	return read(p)
}

// statements holds the parsers of statements, by their first word.
var statements map[string]func(*parser) (statement, error)

func init() { // not in the declaration: they refer to each other
	statements = map[string]func(*parser) (statement, error){
		"listen": (*parser).listen, "unlisten": (*parser).unlisten, "notify": (*parser).notify,
		"begin": (*parser).begin, "start": (*parser).start, "commit": (*parser).commit, "end": (*parser).commit,
		"rollback": (*parser).rollback, "abort": (*parser).rollback, "savepoint": (*parser).savepoint, "release": (*parser).release,
		"set": (*parser).set, "reset": (*parser).reset, "show": (*parser).show,
		"discard": (*parser).discard, "deallocate": (*parser).deallocate, "close": (*parser).close,
	}
}

func (p *parser) listen() (statement, error) {
	channel, err := p.name()
	return listenStatement{channel}, err
}

func (p *parser) unlisten() (statement, error) {
	if all, err := p.op("*"); all || err != nil {
		return unlistenStatement{all: true}, err
	}
	channel, err := p.name()
	return unlistenStatement{channel: channel}, err
}

func (p *parser) notify() (statement, error) {
	channel, err := p.name()
	if err != nil {
		return nil, err
	}
	comma, err := p.op(",")
	if err != nil || !comma {
		return notifyStatement{channel: channel}, err
	}
	payload, err := p.str()
	return notifyStatement{channel, payload}, err
}

func (p *parser) discard() (statement, error) {
	for _, what := range []string{"all", "plans", "sequences", "temp", "temporary"} {
		if found, err := p.word(what); found || err != nil {
			return discardStatement{what}, err
		}
	}
	return nil, p.unexpected()
}

func (p *parser) deallocate() (statement, error) {
	if _, err := p.word("prepare"); err != nil {
		return nil, err
	}
	if all, err := p.word("all"); all || err != nil {
		return deallocateStatement{all: true}, err
	}
	name, err := p.name()
	return deallocateStatement{name: name}, err
}

func (p *parser) close() (statement, error) {
	if all, err := p.word("all"); all || err != nil {
		return closeStatement{all: true}, err
	}
	name, err := p.name()
	return closeStatement{name: name}, err
}
