package weirui

// overview is the first page.
func overview(v *visit) (*view, error) {
	queues, err := v.queues()
	if err != nil {
		return nil, err
	}
	past, err := v.charts("")
	if err != nil {
		return nil, err
	}
	return &view{template: "overview", title: "Overview", data: struct {
		Queues  []queue  `json:"queues"`
		History *history `json:"-"`
	}{queues, past}}, nil
}
