package weirui

import (
	"slices"

	"github.com/weir-pg/weir"
)

func workerEndpoints() []endpoint {
	return []endpoint{page("workers", listWorkers).takes("ended", "after")}
}

const (
	workersOnPage = 100
	queuesInBrief = 5 // of a worker, in a list
)

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
	list := workerList{Hubs: listed(hubs), Ended: v.URL.Query().Get("ended") != ""}
	if list.After, err = v.afterID("after"); err != nil {
		return nil, err
	}
	hasEnded := func(w weir.WorkerInfo) bool { return w.State == "ended" }
	found := slices.DeleteFunc(slices.Clone(all), hasEnded)
	list.Current = len(found)
	if list.Ended {
		found = append(found, slices.DeleteFunc(slices.Clone(all), func(w weir.WorkerInfo) bool { return !hasEnded(w) })...)
	}
	if list.After > 0 {
		// If it is not among them any more, the list starts over.
		found = found[1+slices.IndexFunc(found, func(w weir.WorkerInfo) bool { return int64(w.ID) == list.After }):]
	}
	if list.More = max(len(found)-workersOnPage, 0); list.More > 0 {
		found = found[:workersOnPage]
		list.Next = int64(found[workersOnPage-1].ID)
	}
	list.Workers = listed(found)
	return &view{template: "workers", title: "Workers", data: list}, nil
}

// workerList is a page of workers.
type workerList struct {
	Workers []weir.WorkerInfo `json:"workers"`
	Hubs    []weir.HubInfo    `json:"hubs"`
	Current int               `json:"current"`        // how many have not ended
	Next    int64             `json:"next,omitempty"` // ?after= of the next page
	More    int               `json:"more,omitempty"` // how many are on the next pages
	Ended   bool              `json:"-"`              // those that have ended are listed too
	After   int64             `json:"-"`
}

// Brief are the first of a worker's queues, and Rest is how many others it has.
func (workerList) Brief(queues []string) []string { return queues[:min(len(queues), queuesInBrief)] }

// Rest is how many queues Brief leaves out.
func (workerList) Rest(queues []string) int { return max(len(queues)-queuesInBrief, 0) }

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
