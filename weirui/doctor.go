package weirui

func doctorEndpoints() []endpoint { return []endpoint{page("doctor", listFindings)} }

func listFindings(v *visit) (*view, error) {
	list := struct {
		Runs     bool      `json:"runs"` // false: this process has no doctor
		Findings []Finding `json:"findings"`
	}{Runs: v.db.Doctor != nil}
	if list.Runs {
		var err error
		if list.Findings, err = read(v.Context(), v.db, "findings", v.db.Doctor.Findings); err != nil {
			return nil, err
		}
	}
	list.Findings = listed(list.Findings)
	return &view{template: "doctor", title: "Doctor", data: list}, nil
}
