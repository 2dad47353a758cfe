package main

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// TestADoctorThatCouldNotSeeDoesNotExitAsIfAllWereWell: the worst finding decides, and without one, whether all could be examined.
func TestADoctorThatCouldNotSeeDoesNotExitAsIfAllWereWell(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		severity   doctor.Severity
		incomplete bool
		want       int
	}{
		{doctor.Info, false, exitOK}, {doctor.Info, true, exitUnseen}, {doctor.Warning, true, exitWarning}, {doctor.Critical, true, exitCritical},
	} {
		err := verdict(doctor.Report{Findings: []doctor.Finding{{Code: doctor.HotRow, Severity: c.severity}}, Incomplete: c.incomplete})
		var f *failure
		code := exitOK
		if errors.As(err, &f) {
			code = f.code
		}
		if code != c.want {
			t.Errorf("%s, incomplete: %t: exit code %d, want %d", c.severity, c.incomplete, code, c.want)
		}
	}
}

// TestFindingsAreLoggedAsSevereAsTheyAre: who alerts on errors in the log hears of critical ones.
func TestFindingsAreLoggedAsSevereAsTheyAre(t *testing.T) {
	t.Parallel()
	for severity, want := range map[doctor.Severity]slog.Level{doctor.Info: slog.LevelInfo, doctor.Warning: slog.LevelWarn, doctor.Critical: slog.LevelError} {
		if level := levelOf(severity); level != want {
			t.Errorf("%s is logged as %s, want %s", severity, level, want)
		}
	}
}
