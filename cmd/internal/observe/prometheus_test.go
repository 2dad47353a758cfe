package observe

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// program finds one of Prometheus's programs. If it is not installed, the test is skipped, unless WEIR_TEST_REQUIRE contains prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "prometheus") {
			t.Fatalf("%s is required by WEIR_TEST_REQUIRE but not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

// TestAlertsFireWhenTheyShould: promtool accepts the rules, and their own tests pass.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "weir.rules.yaml"}, {"test", "rules", "weir.rules.test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Dir(filepath.FromSlash(rulesFile))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	// Each alert has a test in which it fires, and one in which it does not.
	scenes := read(t, strings.Replace(rulesFile, "rules.yaml", "rules.test.yaml", 1))
	for _, line := range strings.Split(read(t, rulesFile), "\n") {
		name, ok := strings.CutPrefix(line, "      - alert: ")
		if ok && (!strings.Contains(scenes, "alertname: "+name+"\n        exp_alerts:") || !strings.Contains(scenes, "alertname: "+name+"}")) {
			t.Errorf("the rules' tests lack a case in which %s fires, or one in which it does not", name)
		}
	}
}

// TestPrometheusTakesDashboardAndAlerts: a real Prometheus scrapes a hub and a program with weirotel, evaluates every rule without an error, and
// returns data for every query of the dashboard.
func TestPrometheusTakesDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	prometheus := program(t, "prometheus")
	s := start(t)
	s.work()
	rules, err := filepath.Abs(filepath.FromSlash(rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	at := func(address string) string { u, _ := url.Parse(address); return u.Host }
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: hub, static_configs: [{targets: [%q]}]}
  - {job_name: program, metrics_path: /, static_configs: [{targets: [%q]}]}
`, rules, at(s.hub), at(s.program))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	cmd := exec.CommandContext(t.Context(), prometheus, "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+address)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	pgtest.Until(t, "Prometheus listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	queries, _ := dashboard(t)
	for _, q := range queries {
		pgtest.Eventually(t, func() error {
			var answer struct {
				Status, Error string
				Data          struct{ Result []any }
			}
			if err := json.Unmarshal([]byte(get(t, "http://"+address+"/api/v1/query?query="+url.QueryEscape(q.expr))), &answer); err != nil {
				return err
			}
			if answer.Status == "error" && strings.Contains(answer.Error, "parse") {
				t.Fatalf("%s: %s: %s", q.panel, q.expr, answer.Error)
			}
			if answer.Status != "success" || len(answer.Data.Result) == 0 {
				s.work() // so that rates are not zero
				return fmt.Errorf("%s: %s answers %s %s with %d series", q.panel, q.expr, answer.Status, answer.Error, len(answer.Data.Result))
			}
			return nil
		})
	}
	pgtest.Eventually(t, func() error {
		var answer struct {
			Data struct {
				Groups []struct {
					Rules []struct{ Name, Health, LastError string }
				}
			}
		}
		if err := json.Unmarshal([]byte(get(t, "http://"+address+"/api/v1/rules")), &answer); err != nil {
			return err
		}
		n := 0
		for _, g := range answer.Data.Groups {
			for _, r := range g.Rules {
				if n++; r.Health != "ok" {
					return fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if want := strings.Count(read(t, rulesFile), "- alert:"); n != want {
			return fmt.Errorf("Prometheus has %d rules, want %d", n, want)
		}
		return nil
	})
}
