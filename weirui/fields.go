package weirui

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// takes says which fields an endpoint reads; each action takes formFields besides.
func (e endpoint) takes(fields ...string) endpoint {
	e.fields = fields
	return e
}

// formFields are what the pages' own forms send with an action: where the browser goes after it, and that the user is sure.
var formFields = []string{"back", "sure"}

// unknownField refuses a field that the endpoint does not read: a filter with a misspelt condition would select more than was meant. nil: there is none.
func (e endpoint) unknownField(given url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if slices.Contains(e.fields, name) || e.action != nil && slices.Contains(formFields, name) {
			continue
		}
		hint := "It takes no fields."
		if len(e.fields) > 0 {
			hint = "It takes these: " + strings.Join(slices.Sorted(slices.Values(e.fields)), ", ") + "."
		}
		return &problem{http.StatusBadRequest, fmt.Sprintf("There is no field %q here.", cut(name, 50)), hint}
	}
	return nil
}
