package oidc

import (
	"bytes"
	"html/template"
	"net/http"
	"strings"
)

// page is what a browser sees of a login that does not go through.
type page struct {
	Status      int
	Title, Text string
	Link        string // below the UI
	Follow      string // what the link says
	Provider    string // where to log out at the provider; "": nowhere
	Base        string // the way to the UI
}

var layout = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}} · Weir</title>
<link rel="icon" href="{{.Base}}static/icon.svg">
<link rel="stylesheet" href="{{.Base}}static/weir.css">
</head>
<body>
<header><a class="brand" href="{{or .Base "./"}}">Weir</a></header>
<main id="main">
<h1>{{.Title}}</h1>
<p>{{.Text}}</p>
<p><a href="{{or (print .Base .Link) "./"}}">{{.Follow}}</a></p>
{{with .Provider}}<p><a href="{{.}}">Log out at the identity provider too</a></p>{{end}}
</main>
</body>
</html>
`))

func show(w http.ResponseWriter, r *http.Request, p page) {
	p.Base = strings.Repeat("../", max(strings.Count(r.URL.Path, "/")-1, 0))
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Error(w, p.Text, p.Status)
		return
	}
	var b bytes.Buffer
	if err := layout.Execute(&b, p); err != nil {
		http.Error(w, p.Text, p.Status)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(p.Status)
	_, _ = w.Write(b.Bytes())
}
