package weirui

import (
	"slices"

	"github.com/weir-pg/weir"
)

func workerEndpoints() []endpoint { return []endpoint{page("workers", listWorkers)} }

const workersOnPage = 500

// listWorkers lists the workers, newest first, and the hubs. Workers that have ended are listed with ?ended=1, after the others.
func listWorkers(v *visit) (*view, error) {
	all, err := v.workers()
	if err != nil {
		return nil, err
	}
	hubs, err := v.hubs()
	if err != nil {
		return nil, err
	}
	list := struct {
		Workers []weir.WorkerInfo `json:"workers"`
		Hubs    []weir.HubInfo    `json:"hubs"`
		Ended   bool              `json:"-"`              // those that have ended are listed too
		More    int               `json:"more,omitempty"` // how many are not listed
	}{Hubs: listed(hubs), Ended: v.URL.Query().Get("ended") != ""}
	hasEnded := func(w weir.WorkerInfo) bool { return w.State == "ended" }
	list.Workers = listed(slices.DeleteFunc(slices.Clone(all), hasEnded))
	if list.Ended {
		list.Workers = append(list.Workers, slices.DeleteFunc(slices.Clone(all), func(w weir.WorkerInfo) bool { return !hasEnded(w) })...)
	}
	if list.More = len(list.Workers) - workersOnPage; list.More > 0 {
		list.Workers = list.Workers[:workersOnPage]
	} else {
		list.More = 0
	}
	return &view{template: "workers", title: "Workers", data: list}, nil
}

// workers lists all workers of the database, newest first.
func (v *visit) workers() ([]weir.WorkerInfo, error) {
	return read(v.Context(), v.db, "workers", v.db.client.Workers)
}

// anyAlive reports whether one of the workers is alive, and so does what workers do for all.
func anyAlive(workers []weir.WorkerInfo) bool {
	return slices.ContainsFunc(workers, func(w weir.WorkerInfo) bool { return w.State == "alive" })
}

// hubs lists the hubs of the database.
func (v *visit) hubs() ([]weir.HubInfo, error) {
	return read(v.Context(), v.db, "hubs", v.db.client.Hubs)
}
