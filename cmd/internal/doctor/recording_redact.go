package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// WithoutStatements returns the recording as it would be if the texts of statements and the keys of rows had been left out when it was made. Of the names in
// statements those of tables stay whose counters are in the recording.
func (r *Recording) WithoutStatements() (*Recording, error) {
	if !r.head.Statements {
		return r, nil
	}
	redact := &redactor{known: map[string]bool{}}
	for _, word := range strings.Fields(commands) {
		redact.known[word] = true
	}
	bare := &Recording{head: r.head, body: r.body}
	bare.head.Statements, bare.body.Keys = false, nil
	for _, a := range r.body.Tape.Told {
		var tables []tableCount
		if strings.HasSuffix(a.Ask, tablesSQL) && json.Unmarshal(a.Answer, &tables) == nil {
			for _, t := range tables {
				redact.known[strings.ToLower(t.Schema)], redact.known[strings.ToLower(t.Name)] = true, true
			}
		}
	}
	bare.body.Samples = slices.Clone(r.body.Samples)
	for i := range bare.body.Samples {
		s := &bare.body.Samples[i]
		s.Sessions, s.Locks = slices.Clone(s.Sessions), slices.Clone(s.Locks)
		for n := range s.Sessions {
			s.Sessions[n].Query = redact.statement(s.Sessions[n].Query)
		}
		for n := range s.Locks {
			s.Locks[n].Query = redact.statement(s.Locks[n].Query)
		}
	}
	bare.body.Tape = &tape{Told: slices.Clone(r.body.Tape.Told)}
	for i := range bare.body.Tape.Told {
		a := &bare.body.Tape.Told[i]
		if len(a.Answer) == 0 {
			continue
		}
		var err error
		if a.Answer, err = redact.answer(a.Answer); err != nil {
			return nil, fmt.Errorf("leave the statements out of the recording's answer to %q: %w", clip(oneLine(a.Ask), 60), err)
		}
	}
	return bare, nil
}

// answer redacts the statements in an answer: what rows tag `text:"statement"`, which has one of these names.
func (r *redactor) answer(text json.RawMessage) (json.RawMessage, error) {
	in := json.NewDecoder(strings.NewReader(string(text)))
	in.UseNumber() // as written
	var answer any
	if err := in.Decode(&answer); err != nil {
		return nil, err
	}
	rows, _ := answer.([]any)
	for _, row := range rows {
		fields, _ := row.(map[string]any)
		for _, name := range []string{"Query", "Text"} {
			if statement, is := fields[name].(string); is {
				fields[name] = r.statement(statement)
			}
		}
	}
	return json.Marshal(answer)
}
