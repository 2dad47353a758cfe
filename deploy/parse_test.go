package deploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// started is a command that a deployment file starts, and the endpoints it is probed at.
type started struct {
	args  []string
	paths []string // probed at the HTTP port
}

// dockerfile reads deploy/Dockerfile as BuildKit does, and returns its stages. A warning of its linter fails the test.
func dockerfile(t *testing.T) []instructions.Stage {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) {
		t.Errorf("Dockerfile: %s: %s (%v)", rule, message, at)
	}})
	stages, _, err := instructions.Parse(parsed.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	return stages
}

// instruction returns the last instruction of a given type in a stage.
func instruction[C any](t *testing.T, stage instructions.Stage) C {
	t.Helper()
	for _, command := range slices.Backward(stage.Commands) {
		if c, ok := command.(C); ok {
			return c
		}
	}
	var none C
	t.Fatalf("the Dockerfile's stage %q has no %T", stage.Name, none)
	return none
}

// TestTheImageIsTheCommandAloneRunByNobody: the image has a distroless base, a numeric non-root user, and the command as its entry point.
func TestTheImageIsTheCommandAloneRunByNobody(t *testing.T) {
	t.Parallel()
	stages := dockerfile(t)
	image := stages[len(stages)-1]
	if !strings.HasPrefix(image.BaseName, "gcr.io/distroless/static-") || !strings.HasSuffix(image.BaseName, ":nonroot") {
		t.Errorf("the image is based on %s, want a static distroless image with a non-root user", image.BaseName)
	}
	if user := instruction[*instructions.UserCommand](t, image).User; user != "65532:65532" {
		t.Errorf("the image runs as %s: use a number other than 0, which Kubernetes can check", user)
	}
	if entry := instruction[*instructions.EntrypointCommand](t, image).CmdLine; !slices.Equal(entry, []string{"/usr/local/bin/weir"}) {
		t.Errorf("the image starts %q", entry)
	}
}

// compose reads the compose file as docker compose does.
func compose(t *testing.T) map[string]started {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithEnv([]string{"POSTGRES_PASSWORD=secret"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]started{}
	for name, service := range project.Services {
		if service.Image != "weir" {
			continue
		}
		if service.Build == nil || service.Build.Dockerfile != "deploy/Dockerfile" {
			t.Errorf("compose: %s is not built from deploy/Dockerfile: %+v", name, service.Build)
		}
		if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") {
			t.Errorf("compose: %s may write its file system, or has capabilities", name)
		}
		if service.Environment["DATABASE_URL"] == nil {
			t.Errorf("compose: %s has no DATABASE_URL", name)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("compose: %s publishes port %s on %q: only this machine should reach it", name, port.Published, port.HostIP)
			}
		}
		all["compose "+name] = started{args: service.Command, paths: pathsOf(service.Command)}
	}
	return all
}

// pathsOf returns the endpoints that a command serves.
func pathsOf(args []string) []string {
	switch args[0] {
	case "serve", "guard":
		return []string{"/healthz", "/readyz", "/metrics"}
	}
	return nil
}

// kubernetes decodes the manifests into Kubernetes' own types, and rejects unknown fields.
func kubernetes(t *testing.T) map[string]started {
	t.Helper()
	var list types.Kustomization
	text, err := os.ReadFile("kubernetes/kustomization.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) != len(list.Resources)+1 {
		t.Errorf("the kustomization has %d files, the directory %d (%v)", len(list.Resources), len(files)-1, err)
	}
	all := map[string]started{}
	labels := map[string]map[string]string{}
	var selectors []map[string]string
	for _, name := range list.Resources {
		text, err := os.ReadFile(filepath.Join("kubernetes", name))
		if err != nil {
			t.Fatal(err)
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(document, &kind); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch kind.APIVersion + " " + kind.Kind {
			case "apps/v1 Deployment":
				d := decode[apps.Deployment](t, name, document)
				all["kubernetes "+d.Name] = pod(t, d.Name, d.Spec.Template.Spec)
				labels[d.Name] = d.Spec.Template.Labels
				selectors = append(selectors, d.Spec.Selector.MatchLabels)
			case "batch/v1 Job":
				j := decode[batch.Job](t, name, document)
				all["kubernetes "+j.Name] = pod(t, j.Name, j.Spec.Template.Spec)
			case "v1 Service":
				selectors = append(selectors, decode[core.Service](t, name, document).Spec.Selector)
			case "policy/v1 PodDisruptionBudget":
				selectors = append(selectors, decode[policy.PodDisruptionBudget](t, name, document).Spec.Selector.MatchLabels)
			default:
				t.Errorf("%s: this test does not know %s %s", name, kind.APIVersion, kind.Kind)
			}
		}
	}
	for _, selector := range selectors {
		matches := 0
		for _, of := range labels {
			if fmt.Sprint(of) == fmt.Sprint(selector) {
				matches++
			}
		}
		if matches != 1 {
			t.Errorf("the selector %v matches %d deployments", selector, matches)
		}
	}
	return all
}

// pod checks a pod's security settings and probes, and returns the command it starts.
func pod(t *testing.T, name string, spec core.PodSpec) started {
	t.Helper()
	if len(spec.Containers) != 1 {
		t.Fatalf("%s has %d containers", name, len(spec.Containers))
	}
	c := spec.Containers[0]
	if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil {
		t.Errorf("%s may run as root", name)
	}
	if s := c.SecurityContext; s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Contains(s.Capabilities.Drop, "ALL") {
		t.Errorf("%s may write its file system, or gain rights", name)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Errorf("%s gets a token for Kubernetes' API, which it does not need", name)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("%s does not request resources", name)
	}
	if i := slices.IndexFunc(c.Env, func(e core.EnvVar) bool { return e.Name == "DATABASE_URL" }); i < 0 || c.Env[i].ValueFrom.SecretKeyRef == nil {
		t.Errorf("%s does not get DATABASE_URL from a secret", name)
	}
	s := started{args: c.Args}
	for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if probe == nil {
			continue
		}
		port := slices.IndexFunc(c.Ports, func(p core.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal })
		if port < 0 || !slices.ContainsFunc(c.Args, func(arg string) bool {
			return strings.HasSuffix(arg, fmt.Sprintf(":%d", c.Ports[port].ContainerPort))
		}) {
			t.Errorf("%s is probed at port %q, on which it does not listen", name, probe.HTTPGet.Port.StrVal)
		}
		s.paths = append(s.paths, probe.HTTPGet.Path)
	}
	return s
}

func decode[O any](t *testing.T, name string, document []byte) (o O) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, &o); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return o
}

// units returns the commands that the systemd units start.
func units(t *testing.T) map[string]started {
	t.Helper()
	files, err := filepath.Glob("systemd/*.service")
	if err != nil || len(files) == 0 {
		t.Fatalf("no units: %v", err)
	}
	all := map[string]started{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
			if command, ok := strings.CutPrefix(line, "ExecStart=/usr/local/bin/weir "); ok {
				args := strings.Fields(command)
				all[filepath.Base(file)] = started{args: args, paths: pathsOf(args)}
			}
		}
	}
	if len(all) != len(files) {
		t.Errorf("%d units start %d commands", len(files), len(all))
	}
	return all
}
