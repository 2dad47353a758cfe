package deploy

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWhatIsReleasedIsThere: every file that a release contains exists. goreleaser notices a missing one only during a release; its own
// checks are run by `.ci/run nightly`, because its build takes minutes.
func TestWhatIsReleasedIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var release struct {
		Builds []struct {
			Main string `json:"main"`
		} `json:"builds"`
		Archives []struct {
			Files []string `json:"files"`
		} `json:"archives"`
	}
	if err := yaml.Unmarshal(text, &release); err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, b := range release.Builds {
		wanted = append(wanted, filepath.Join(b.Main, "main.go"))
	}
	for _, a := range release.Archives {
		wanted = append(wanted, a.Files...)
	}
	if len(wanted) < 4 {
		t.Errorf("only %v would be released", wanted)
	}
	for _, pattern := range wanted {
		if found, err := filepath.Glob(filepath.Join("..", pattern)); err != nil || len(found) == 0 {
			t.Errorf("%s does not exist (%v)", pattern, err)
		}
	}
}
