package weirui

// overview is the first page.
func overview(v *visit) (*view, error) {
	queues, err := v.queues()
	if err != nil {
		return nil, err
	}
	operations, err := v.operations(0, 5)
	if err != nil {
		return nil, err
	}
	past, err := v.charts("")
	if err != nil {
		return nil, err
	}
	return &view{template: "overview", title: "Overview", data: struct {
		Queues     []queue     `json:"queues"` // the first
		Total      int         `json:"total_queues"`
		Operations []operation `json:"operations"` // the newest
		History    *history    `json:"-"`
	}{first(queues), len(queues), operations, past}}, nil
}
