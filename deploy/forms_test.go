package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// form is an issue form: the fields of GitHub's format that are used here.
type form struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Labels      []string `json:"labels"`
	Body        []struct {
		Type        string          `json:"type"`
		ID          string          `json:"id"`
		Validations map[string]bool `json:"validations"`
		Attributes  struct {
			Label       string   `json:"label"`
			Description string   `json:"description"`
			Value       string   `json:"value"`
			Render      string   `json:"render"`
			Options     []string `json:"options"`
		} `json:"attributes"`
	} `json:"body"`
}

// TestIssueFormsAreWhole: the issue forms have the fields that GitHub requires.
func TestIssueFormsAreWhole(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../.github/ISSUE_TEMPLATE/*.yml")
	if err != nil || len(files) != 4 {
		t.Fatalf("found %v (%v), want three forms and their configuration", files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "config.yml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f form
		if err := yaml.UnmarshalStrict(text, &f); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if f.Name == "" || f.Description == "" || len(f.Labels) == 0 || len(f.Body) == 0 {
			t.Errorf("%s: name, description, labels and body are needed: %+v", file, f)
		}
		var ids []string
		for _, field := range f.Body {
			if !slices.Contains([]string{"textarea", "input", "dropdown"}, field.Type) || field.Attributes.Label == "" || field.ID == "" || slices.Contains(ids, field.ID) {
				t.Errorf("%s: a field needs a type, a label, and an id of its own: %+v", file, field)
			}
			if (field.Type == "dropdown") != (len(field.Attributes.Options) > 0) {
				t.Errorf("%s: options go with dropdown: %+v", file, field)
			}
			ids = append(ids, field.ID)
		}
	}
}
