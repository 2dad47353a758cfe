package pgwire

import "strings"

func (p *parser) set() (statement, error) {
	local, err := p.word("local")
	if err != nil {
		return nil, err
	}
	if !local {
		for _, ignored := range [][]string{{"session", "characteristics", "as", "transaction"}, {"constraints"}, {"transaction"}} {
			if found, err := p.words(ignored...); found || err != nil {
				return p.ignored()
			}
		}
		if _, err := p.word("session"); err != nil {
			return nil, err
		}
	} else if found, err := p.word("transaction"); found || err != nil {
		return p.ignored()
	}
	for _, role := range []string{"role", "authorization"} {
		if found, err := p.word(role); found || err != nil {
			return p.setRole()
		}
	}
	name, err := p.setting()
	if err != nil {
		return nil, err
	}
	switch name {
	case "TimeZone":
		if _, err := p.word("to"); err != nil {
			return nil, err
		}
		if _, err := p.op("="); err != nil {
			return nil, err
		}
	case "client_encoding":
		if p.token.kind == stringToken { // SET NAMES
			break
		}
		fallthrough
	default:
		to, err := p.word("to")
		if err == nil && !to {
			err = p.expect("=")
		}
		if err != nil {
			return nil, err
		}
	}
	value, err := p.settingValue()
	return setStatement{name, value, local}, err
}

// ignored parses a statement that is confirmed as SET and otherwise ignored.
func (p *parser) ignored() (statement, error) { return ignoredStatement{"SET"}, p.rest() }

// setRole allows switching to the client's own role, which pools do when a connection is returned.
func (p *parser) setRole() (statement, error) {
	if none, err := p.word("none", "default"); none || err != nil {
		return ignoredStatement{"SET"}, err
	}
	return p.unknown("SET ROLE")
}

// setting reads the name of a setting, which may contain dots or consist of several key words.
func (p *parser) setting() (string, error) {
	for _, special := range []struct {
		name  string
		words []string
	}{
		{"TimeZone", []string{"time", "zone"}}, {"client_encoding", []string{"names"}},
		{"transaction_isolation", []string{"transaction", "isolation", "level"}}, {"session_authorization", []string{"session", "authorization"}},
	} {
		if found, err := p.words(special.words...); found || err != nil {
			return special.name, err
		}
	}
	name, err := p.name()
	for err == nil && p.isOp(".") {
		if err = p.advance(); err != nil {
			break
		}
		var more string
		more, err = p.name()
		name += "." + more
	}
	return canonical(name), err
}

// settingValue reads a setting's value; nil is its default.
func (p *parser) settingValue() (*string, error) {
	if def, err := p.word("default"); def || err != nil {
		return nil, err
	}
	var values []string
	for {
		sign := ""
		for _, s := range []string{"-", "+"} {
			if found, err := p.op(s); err != nil {
				return nil, err
			} else if found {
				sign = s
			}
		}
		switch p.token.kind {
		case wordToken, quotedToken, stringToken, numberToken:
			values = append(values, strings.TrimPrefix(sign, "+")+p.token.text)
		default:
			return nil, p.unexpected()
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if comma, err := p.op(","); err != nil {
			return nil, err
		} else if !comma {
			value := strings.Join(values, ", ")
			return &value, nil
		}
	}
}

func (p *parser) reset() (statement, error) {
	if all, err := p.word("all"); all || err != nil {
		return resetStatement{all: true}, err
	}
	if p.isWord("role") {
		return ignoredStatement{"RESET"}, p.rest()
	}
	name, err := p.setting()
	if name == "session_authorization" {
		return ignoredStatement{"RESET"}, err
	}
	return resetStatement{name: name}, err
}

func (p *parser) show() (statement, error) {
	if all, err := p.word("all"); all || err != nil {
		return showStatement{all: true}, err
	}
	name, err := p.setting()
	return showStatement{name: name}, err
}
