package weirui

import (
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-pg/weir"
)

// ask is what an action asks before it acts, which may depend on the path and the form. An error refuses the action, and "" asks nothing.
type ask func(*visit) (string, error)

// asks makes an endpoint ask before it acts: its forms with the script, and a page without it.
func (e endpoint) asks(question ask) endpoint {
	e.ask = question
	return e
}

// askID is a question about the id or name in the path.
func askID(question, part string) ask {
	return func(v *visit) (string, error) {
		value := v.PathValue(part)
		if part == "name" {
			value = v.name()
		}
		return fmt.Sprintf(question, cut(value, 200)), nil
	}
}

// isSure reports whether an action need not ask, or has asked already. Programs are not asked.
func (v *visit) isSure(e endpoint) bool {
	if e.ask == nil || v.wantsJSON() || v.PostForm.Get("sure") == "yes" {
		return true
	}
	text, err := e.ask(v)
	return err == nil && text == ""
}

// question is a page that asks before an action.
type question struct {
	Text   string
	Fields []condition // of the form that is sent again
	Back   string
}

func (v *visit) question(e endpoint) (*view, error) {
	text, err := e.ask(v)
	if err != nil {
		return nil, err
	}
	q := question{Text: text, Back: v.back()}
	for _, name := range slices.Sorted(maps.Keys(v.PostForm)) {
		for _, value := range v.PostForm[name] {
			if name != "sure" {
				q.Fields = append(q.Fields, condition{name, value})
			}
		}
	}
	return &view{template: "question", title: "Are you sure?", data: q}, nil
}

// Form begins the form of an action, with hidden fields: pairs of names and values. Those that the path has in braces are put there. If the action asks, so does the form.
func (l layout) Form(path string, pairs ...any) (template.HTML, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("a form needs names and values, got %d", len(pairs))
	}
	form := struct {
		Action, Ask string
		Fields      []condition
	}{}
	// What the question is about is in the visit that the form will be.
	to := &visit{ui: l.visit.ui, Request: &http.Request{Method: http.MethodPost, PostForm: url.Values{}}}
	action, back := path, l.Here()
	for i := 0; i < len(pairs); i += 2 {
		name, value := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		switch {
		case name == "back":
			back = value
		case strings.Contains(path, "{"+name+"}"):
			part := inPath(value)
			action = strings.ReplaceAll(action, "{"+name+"}", part)
			value, _ = url.PathUnescape(part) // as a request has it
			to.SetPathValue(name, value)
		case value != "":
			to.PostForm.Set(name, value)
			form.Fields = append(form.Fields, condition{name, value})
		}
	}
	form.Fields = append(form.Fields, condition{"back", back})
	form.Action = l.Root() + action
	var err error
	if question := l.visit.ui.asks[path]; question != nil {
		if form.Ask, err = question(to); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	err = l.visit.ui.templates.ExecuteTemplate(&b, "form", form)
	return template.HTML(b.String()), err // rendered by a template, which has escaped it
}

// FormAll begins the form of an action on all jobs of the list.
func (l layout) FormAll(path string) (template.HTML, error) {
	var fields []any
	if list, ok := l.Data().(jobList); ok {
		what := weir.OperationKind(path[strings.LastIndexByte(path, '/')+1:])
		for _, f := range list.Filter.forAll(what).Fields() {
			fields = append(fields, f.Name, f.Value)
		}
	}
	return l.Form(path, fields...)
}
