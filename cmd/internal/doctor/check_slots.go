package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	slotSome      = 64 << 20  // bytes of WAL, below which a slot is not worth a word
	slotCatalog   = 1_000_000 // transactions
	fullSoon      = time.Hour
	fullLater     = 24 * time.Hour
	seeSlots      = `SELECT slot_name, active, wal_status, safe_wal_size, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), age(catalog_xmin) FROM pg_replication_slots`
	slotsLostText = "lost"
)

const slotsSQL = `
SELECT s.slot_name::text, s.slot_type, s.active, coalesce(s.active_pid, 0), coalesce(s.wal_status, ''), s.safe_wal_size,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)::float8,
       coalesce(age(s.catalog_xmin), 0)::bigint, (SELECT p.setting::float8 * 1024 * 1024 FROM pg_settings p WHERE p.name = 'max_wal_size')
FROM pg_replication_slots s WHERE NOT s.temporary LIMIT 1000`

// walSlot is a replication slot and the WAL that it holds.
type walSlot struct {
	Name, Type string
	Active     bool
	PID        int32
	Status     string
	Safe       *int64 // bytes until the slot is lost; nil: it is never lost
	Held       float64
	Catalog    int64
	Usual      float64 // max_wal_size
}

// checkSlots detects replication slots that keep the server from removing WAL, until its disk is full or the slot is lost.
func checkSlots(ctx context.Context, l *inspection) (result, error) {
	slots, err := list[walSlot](ctx, l.session, slotsSQL)
	if err != nil {
		return result{}, err
	}
	free, freeKnown := diskFree(ctx, l)
	growth := l.wal()
	slices.SortFunc(slots, func(a, b walSlot) int { return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Name, b.Name)) })
	var r result
	for _, s := range slots {
		if len(r.findings) == maxFacts {
			break
		}
		left, room := time.Duration(0), free
		known := freeKnown && growth > 0
		if s.Safe != nil {
			room, known = float64(*s.Safe), growth > 0
		}
		if known {
			left = seconds(min(max(room, 0)/growth, centuries))
		}
		behind := s.Held > max(s.Usual, slotSome)
		var severity Severity
		switch {
		case s.Status == "unreserved", behind && known && left < fullSoon:
			severity = Critical
		case s.Status == slotsLostText, behind && (!s.Active || known && left < fullLater), s.Catalog >= slotCatalog:
			severity = Warning
		case behind, !s.Active && s.Held >= slotSome:
			severity = Info
		default:
			continue
		}
		f := l.finding(SlotHoldsWAL, severity, 0, len(l.view.samples))
		use := "not in use"
		if s.Active {
			use = fmt.Sprintf("in use by pid %d", s.PID)
		}
		f.Summary = fmt.Sprintf("The %s replication slot %s (%s) keeps %s of WAL from removal.", s.Type, s.Name, use, bytes(s.Held))
		f.add(seeSlots, "%s: wal_status %s, %s of WAL held, max_wal_size is %s", s.Name, s.Status, bytes(s.Held), bytes(s.Usual))
		f.add("SELECT pg_current_wal_lsn() -- twice", "the server writes %s of WAL a second", bytes(growth))
		switch {
		case s.Status == slotsLostText:
			f.add("", "the slot is lost: WAL that its consumer needs has been removed")
		case s.Safe != nil && known:
			f.add("SHOW max_slot_wal_keep_size", "%s more may be written before the slot is lost: in %s at this rate", bytes(max(room, 0)), span(left))
		case s.Safe != nil:
			f.add("SHOW max_slot_wal_keep_size", "%s more may be written before the slot is lost", bytes(max(room, 0)))
		case known:
			f.add("-- in a shell: df on the data directory", "%s are free on the disk of the data directory, which is full in %s at this rate", bytes(free), span(left))
		default:
			f.add("SHOW max_slot_wal_keep_size", "nothing limits what it holds, until the disk is full; how much is free shows only on the server's machine")
		}
		if s.Catalog > 0 {
			f.add(seeSlots, "its catalog_xmin is %s transactions old: dead rows of the system catalogs are kept since then", figure(float64(s.Catalog)))
		}
		f.Now, f.ForGood = adviseSlot(s), "Set max_slot_wal_keep_size to what the disk can take, and raise an alert on the WAL that slots hold."
		r.findings = append(r.findings, f)
	}
	if len(r.findings) == 0 {
		r.healthy = fmt.Sprintf("No replication slot holds much WAL (%s).", many(len(slots), "slot"))
	}
	return r, nil
}

// adviseSlot never advises dropping a slot that may still have a consumer.
func adviseSlot(s walSlot) string {
	name := literal(s.Name)
	switch {
	case s.Status == slotsLostText:
		return fmt.Sprintf("Make the standby or subscriber that used the slot anew; it can't continue. Then SELECT pg_drop_replication_slot(%s);", name)
	case s.Active:
		return fmt.Sprintf("Find out why its consumer is slow: SELECT * FROM pg_stat_replication WHERE pid = %d; leave the slot alone.", s.PID)
	}
	return fmt.Sprintf("Start the consumer of the slot %s again. Only if it never comes back: SELECT pg_drop_replication_slot(%s); a standby or subscriber that used it must then be made anew.", s.Name, name)
}

// diskFree returns the free bytes of the data directory's file system, if the server runs on this machine and the directory's name may be read.
func diskFree(ctx context.Context, l *inspection) (float64, bool) {
	if l.local.postmaster == 0 {
		return 0, false
	}
	dirs, err := scalars[string](ctx, l.session, "SELECT current_setting('data_directory')")
	if err != nil {
		return 0, false
	}
	free := recall(l.session.tape, "free space", func() float64 { free, _ := freeSpace(dirs[0]); return free })
	return free, free > 0
}
