package doctor_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

func examineList(t *testing.T, urls ...string) doctor.ListReport {
	t.Helper()
	r, err := doctor.ExamineList(t.Context(), doctor.Config{}, urls, examineFor, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAListIsExaminedByWhatEachDatabaseHas: what a server shares once, what a database suffers in its own part, one that has two names once, and one that can't be
// reached without the others noticing.
func TestAListIsExaminedByWhatEachDatabaseHas(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Server(t, nil), pgtest.Server(t, nil)
	admin := connect(t, first.URL("postgres"))
	execute(t, admin, "CREATE DATABASE calm", "CREATE DATABASE busy")
	busy := connect(t, first.URL("busy"))
	execute(t, busy, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (1, 0)", "BEGIN", "UPDATE account SET n = 1 WHERE id = 1")
	for range 3 {
		stand(t, first.URL("busy"), "UPDATE account SET n = 2 WHERE id = 1", "wait_event_type = 'Lock'")
	}
	nowhere := "postgres://ada:secret@127.0.0.1:1/nowhere"
	sameAgain := strings.Replace(first.URL("calm"), "127.0.0.1", "localhost", 1)
	r := examineList(t, first.URL("calm"), nowhere, first.URL("busy"), second.URL("postgres"), sameAgain)

	if len(r.Servers) != 2 || len(r.Servers[0].Databases) != 2 || len(r.Servers[1].Databases) != 1 {
		t.Fatalf("want two servers, with two databases and one: %+v", r.Servers)
	}
	at := r.Servers[0]
	if at.Report == nil || at.Cluster == r.Servers[1].Cluster {
		t.Fatalf("server: %+v", at)
	}
	calm, suffering := at.Databases[0], at.Databases[1]
	if calm.Database != "calm" || len(calm.Also) != 1 || suffering.Database != "busy" {
		t.Errorf("databases %+v and %+v", calm, suffering)
	}
	expect(t, *suffering.Report, doctor.IdleBlocker, doctor.Warning)
	if hot, found := suffering.Report.Find(doctor.HotRow); !found { // samples are taken in the first database
		t.Errorf("no row is hot:\n%s", describe(*suffering.Report))
	} else {
		expectFact(t, hot, "account: ", "; its key shows with weir doctor --database 'postgres://postgres@127.0.0.1:", "/busy'")
	}
	for name, part := range map[string]*doctor.Report{"the server's": at.Report, "the calm database's": calm.Report, "the other server's": r.Servers[1].Report} {
		for _, f := range part.Findings {
			if f.Severity != doctor.Info {
				t.Errorf("in %s part: %s: %s", name, f.Code, f.Summary)
			}
		}
	}
	for _, well := range calm.Report.Well {
		if well.Check == "slots" || well.Check == "connections" {
			t.Errorf("a database's part is about the server's %s", well.Check)
		}
	}
	if len(r.Unreachable) != 1 || r.Unreachable[0].Database != "nowhere" || r.Unreachable[0].Error == "" || strings.Contains(r.Unreachable[0].Error, "secret") {
		t.Errorf("unreachable: %+v", r.Unreachable)
	}
}

// TestWhatComesAndGoesInAListIsTold: by cluster and database, and in metrics, of which each part has its own.
func TestWhatComesAndGoesInAListIsTold(t *testing.T) {
	t.Parallel()
	finding := func(code doctor.Code) *doctor.Report {
		return &doctor.Report{Samples: 1, Findings: []doctor.Finding{{Code: code, Severity: doctor.Warning, Summary: "It is so."}}}
	}
	at := func(address string, found *doctor.Report, err string) doctor.ServerReport {
		return doctor.ServerReport{Cluster: "7", Address: address, Report: &doctor.Report{Samples: 1}, Databases: []doctor.DatabaseReport{{Database: "shop", Address: address, Report: found, Error: err}}}
	}
	server := func(found *doctor.Report, err string) doctor.ServerReport { return at("a", found, err) }
	copied := at("b", &doctor.Report{}, "")
	var changes doctor.ListChanges
	var told []string
	var metrics doctor.ListMetrics
	if metrics.Ready() == nil {
		t.Error("ready without a report")
	}
	for _, r := range []doctor.ListReport{
		{Servers: []doctor.ServerReport{server(finding(doctor.HotRow), ""), copied}},
		{Servers: []doctor.ServerReport{server(nil, "it is gone"), copied}},
		{Servers: []doctor.ServerReport{server(finding(doctor.HotRow), ""), copied}, Unreachable: []doctor.DatabaseReport{{Database: "shop", Error: "refused"}}},
	} {
		metrics.Show(r)
		for _, c := range changes.Next(r) {
			told = append(told, c.Cluster+" "+c.Database+": "+c.Text)
		}
	}
	want := "7 shop: warning hot-row: It is so.\n7 shop: it can't be examined: it is gone\n7 shop: warning hot-row: It is so.\n7 shop: it can be examined again\n shop: it can't be examined: refused"
	if got := strings.Join(told, "\n"); got != want {
		t.Errorf("told:\n%s\nwant:\n%s", got, want)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&metrics)
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`weir_doctor_finding{address="a",cluster="7",code="hot-row",database="shop",downstream_of="",severity="warning"} 1`,
		`weir_doctor_unreachable_databases 1`,
		`weir_doctor_up{address="a",cluster="7",database=""} 1`, `weir_doctor_up{address="a",cluster="7",database="shop"} 1`,
		`weir_doctor_up{address="b",cluster="7",database=""} 1`, `weir_doctor_up{address="b",cluster="7",database="shop"} 1`,
	} {
		if !strings.Contains(page.Body.String(), "\n"+line+"\n") {
			t.Errorf("no metric %s in\n%s", line, page.Body)
		}
	}
	if err := metrics.Ready(); err != nil {
		t.Error(err)
	}
}

// TestANameThatIsNotUTF8DoesNotSpoilTheMetrics of all others.
func TestANameThatIsNotUTF8DoesNotSpoilTheMetrics(t *testing.T) {
	t.Parallel()
	var metrics doctor.ListMetrics
	metrics.Show(doctor.ListReport{Servers: []doctor.ServerReport{{
		Cluster: "7", Address: "a", Report: &doctor.Report{Samples: 1}, Databases: []doctor.DatabaseReport{{Database: "h\xe4ndler", Address: "a", Report: &doctor.Report{}}},
	}}})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&metrics)
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	if want := `weir_doctor_up{address="a",cluster="7",database="h\\xe4ndler"} 1`; !strings.Contains(page.Body.String(), want) {
		t.Errorf("no metric %s in\n%s", want, page.Body)
	}
}
