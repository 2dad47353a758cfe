package horizon

import "testing"

func TestNameOfAStandbyIsReadFromItsConnection(t *testing.T) {
	t.Parallel()
	for conninfo, want := range map[string]string{
		"user=r dbname=replication host=h port=5432 fallback_application_name=walreceiver sslmode=prefer": "walreceiver",
		"application_name=my standby port=1 fallback_application_name=cluster":                            "my standby",
		"user=r fallback_application_name=main":                                                           "main",
		"":                                                                                                "",
	} {
		if got := (Stream{Conninfo: conninfo}).application(); got != want {
			t.Errorf("%q: %q, want %q", conninfo, got, want)
		}
	}
}
