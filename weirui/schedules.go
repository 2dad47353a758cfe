package weirui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir"
)

func scheduleEndpoints() []endpoint {
	return []endpoint{
		page("schedules", listSchedules).takes("after"),
		page("schedules/{name}", showSchedule),
		action(Operator, "schedules/{name}/pause", pauseSchedule),
		action(Operator, "schedules/{name}/resume", resumeSchedule),
		action(Operator, "schedules/{name}/run", runSchedule).asks(askID("Enqueue a job of schedule %s now?", "name")),
		action(Admin, "schedules/{name}/drop", dropSchedule).asks(askID("Drop schedule %s? It enqueues no more jobs.", "name")),
	}
}

const schedulesOnPage = 200

// listSchedules lists schedules by name, from the one after a name on.
func listSchedules(v *visit) (*view, error) {
	all, err := read(v.Context(), v.db, "schedules", v.db.client.Schedules)
	if err != nil {
		return nil, err
	}
	list := struct {
		Schedules []weir.ScheduleInfo `json:"schedules"`
		Next      string              `json:"next,omitempty"` // ?after= of the next page
		After     string              `json:"-"`
	}{After: v.URL.Query().Get("after")}
	start := 0
	if list.After != "" {
		// The database sorts them, in an order that is not Go's; if this one was dropped meanwhile, the list starts over.
		start = 1 + slices.IndexFunc(all, func(s weir.ScheduleInfo) bool { return s.Name == list.After })
	}
	end := min(start+schedulesOnPage, len(all))
	if end < len(all) {
		list.Next = all[end-1].Name
	}
	list.Schedules = listed(slices.Clone(all[start:end]))
	for i := range list.Schedules {
		v.ui.redactSchedule(&list.Schedules[i])
	}
	return &view{template: "schedules", title: "Schedules", data: list}, nil
}

// schedule is what the page of a schedule shows.
type schedule struct {
	weir.ScheduleInfo
	Times   []time.Time   `json:"next_times"` // on the clock of its time zone
	Invalid string        `json:"-"`          // why there are no next times
	Last    *weir.JobInfo `json:"last,omitempty"`
}

func showSchedule(v *visit) (*view, error) {
	name := v.name()
	found, err := read(v.Context(), v.db, "schedule "+name, func(ctx context.Context) (*schedule, error) {
		k, err := v.db.client.Schedule(ctx, name)
		if err != nil {
			return nil, err
		}
		s := &schedule{ScheduleInfo: *k}
		if s.Times, err = v.db.client.NextTimes(ctx, k.Schedule, k.TimeZone, time.Time{}, 10); err != nil {
			s.Invalid = sentence(err.Error())
		}
		if zone, err := time.LoadLocation(k.TimeZone); err == nil {
			for i := range s.Times {
				s.Times[i] = s.Times[i].In(zone)
			}
		}
		if k.LastJob != nil {
			if s.Last, err = v.db.client.Job(ctx, *k.LastJob); err != nil && !errors.Is(err, weir.ErrNotFound) {
				return nil, err
			}
		}
		return s, nil
	})
	if errors.Is(err, weir.ErrNotFound) {
		return nil, noSchedule(name)
	} else if err != nil {
		return nil, err
	}
	shown := *found
	shown.Times = listed(found.Times)
	v.ui.redactSchedule(&shown.ScheduleInfo)
	if found.Last != nil {
		last := *found.Last
		v.ui.redactJob(&last)
		shown.Last = &last
	}
	return &view{template: "schedule", title: "Schedule " + name, data: shown}, nil
}

// Local is a time on the clock of the schedule.
func (schedule) Local(t time.Time) string { return t.Format("Mon 2006-01-02 15:04:05 MST") }

// Spread is how much later a job is enqueued at most.
func (s schedule) Spread() time.Duration { return time.Duration(s.Jitter * float64(time.Second)) }

// redactSchedule hides secret fields in what is shown of a schedule.
func (u *UI) redactSchedule(s *weir.ScheduleInfo) {
	s.Args, s.Meta = u.redact(s.Args), u.redact(s.Meta)
}

func noSchedule(name string) error {
	return &problem{404, fmt.Sprintf("There is no schedule %q.", cut(name, 200)), "It may have been dropped. Programs declare schedules with SetSchedule, people with weir schedules set."}
}

// onSchedule does something with the schedule that the path names.
func onSchedule(v *visit, said string, do func(ctx context.Context, name string) error) (string, error) {
	return v.onNamed(said, do, noSchedule)
}

func pauseSchedule(v *visit) (string, error) {
	return onSchedule(v, "Schedule %s is paused: it enqueues no jobs until it is resumed.", v.db.client.PauseSchedule)
}

func resumeSchedule(v *visit) (string, error) {
	return onSchedule(v, "Schedule %s is active again. What was due in between is not fired.", v.db.client.ResumeSchedule)
}

func dropSchedule(v *visit) (string, error) {
	return onSchedule(v, "Schedule %s is dropped. A program that declares it creates it again.", v.db.client.DropSchedule)
}

func runSchedule(v *visit) (string, error) {
	var id int64
	said, err := onSchedule(v, "Schedule %s has enqueued job", func(ctx context.Context, name string) error {
		job, err := v.db.client.RunSchedule(ctx, name)
		id = job.ID
		return err
	})
	return fmt.Sprintf("%s %d. Its due times stay as they are.", said, id), err
}
