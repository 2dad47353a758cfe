package pgwire

func (p *parser) begin() (statement, error) {
	if _, err := p.word("work", "transaction"); err != nil {
		return nil, err
	}
	return txStatement{op: beginTx}, p.modes()
}

func (p *parser) start() (statement, error) {
	if err := p.expect("transaction"); err != nil {
		return nil, err
	}
	return txStatement{op: startTx}, p.modes()
}

// modes skips a transaction's modes, which make no difference here.
func (p *parser) modes() error {
	for !p.atEnd() {
		known := false
		for _, mode := range [][]string{
			{"isolation", "level", "serializable"}, {"isolation", "level", "repeatable", "read"}, {"isolation", "level", "read", "committed"},
			{"isolation", "level", "read", "uncommitted"}, {"read", "write"}, {"read", "only"}, {"deferrable"}, {"not", "deferrable"},
		} {
			var err error
			if known, err = p.words(mode...); err != nil {
				return err
			}
			if known {
				break
			}
		}
		if !known {
			return p.unexpected()
		}
		if _, err := p.op(","); err != nil {
			return err
		}
	}
	return nil
}

// words skips key words if all of them are next and nothing follows.
func (p *parser) words(words ...string) (bool, error) {
	lexer, first := p.lexer, p.token
	for _, w := range words {
		found, err := p.word(w)
		if err != nil {
			return false, err
		}
		if !found {
			p.lexer, p.token = lexer, first
			return false, nil
		}
	}
	return true, nil
}

func (p *parser) commit() (statement, error) {
	if prepared, err := p.word("prepared"); prepared || err != nil {
		return p.unknown("COMMIT PREPARED")
	}
	if _, err := p.word("work", "transaction"); err != nil {
		return nil, err
	}
	chain, err := p.chain()
	return txStatement{op: commitTx, chain: chain}, err
}

func (p *parser) rollback() (statement, error) {
	if prepared, err := p.word("prepared"); prepared || err != nil {
		return p.unknown("ROLLBACK PREPARED")
	}
	if _, err := p.word("work", "transaction"); err != nil {
		return nil, err
	}
	to, err := p.word("to")
	if err != nil {
		return nil, err
	}
	if !to {
		chain, err := p.chain()
		return txStatement{op: rollbackTx, chain: chain}, err
	}
	if _, err := p.word("savepoint"); err != nil {
		return nil, err
	}
	name, err := p.name()
	return txStatement{op: rollbackToTx, name: name}, err
}

func (p *parser) chain() (bool, error) {
	if chain, err := p.words("and", "chain"); chain || err != nil {
		return chain, err
	}
	_, err := p.words("and", "no", "chain")
	return false, err
}

func (p *parser) savepoint() (statement, error) {
	name, err := p.name()
	return txStatement{op: savepointTx, name: name}, err
}

func (p *parser) release() (statement, error) {
	if _, err := p.word("savepoint"); err != nil {
		return nil, err
	}
	name, err := p.name()
	return txStatement{op: releaseTx, name: name}, err
}

func (p *parser) unknown(what string) (statement, error) { return unknownStatement{what}, p.rest() }
