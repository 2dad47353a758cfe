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
