package horizon

import (
	"slices"
	"strings"
)

// backups are the application names of backup programs, in lower case.
var backups = []string{
	"pg_dump", "pg_dumpall", "pg_basebackup", "pg_receivewal", "pg_probackup", "pg_rman", "pgbackrest", "barman", "wal-g", "walg",
}

// IsBackup reports whether an application name is that of a backup program. Whoever ends its session loses the backup.
func IsBackup(application string) bool {
	application = strings.ToLower(application)
	return slices.ContainsFunc(backups, func(name string) bool { return strings.HasPrefix(application, name) })
}

// Leave says what a session is that nobody should end, or "" for any other: a backup, known by its application's name or by the command that it runs whatever that
// calls itself, or another process of the server.
func Leave(backend, application, query string) string {
	command := strings.ToLower(strings.TrimSpace(query))
	switch {
	case backend == "walsender" && strings.HasPrefix(command, "base_backup"):
		return "a base backup (" + application + ")"
	case IsBackup(application):
		return "a backup (" + application + ")"
	case strings.Contains(command, "pg_backup_start") || strings.Contains(command, "pg_start_backup"):
		return "a backup in progress (" + application + ")"
	case backend != "" && backend != "client backend" && backend != "parallel worker":
		return "a server process (" + backend + ")"
	}
	return ""
}
