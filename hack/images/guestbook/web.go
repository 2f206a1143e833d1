package main

import (
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"
)

var page = template.Must(template.New("page").Parse(`<!doctype html>
<title>Guestbook</title>
<form method="post"><input name="entry" maxlength="200" autofocus> <button>Sign</button></form>
<ul>{{range .}}<li>{{.}}</li>{{end}}</ul>
`))

var client = &http.Client{Timeout: 5 * time.Second}

// web is the page. It writes to the store and reads from the store's replicas.
type web struct{ write, read string }

func (s web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		s.sign(w, r)
		return
	}
	response, err := client.Get(s.read)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxEntries*(maxEntry+1)))
	if err != nil || response.StatusCode != http.StatusOK {
		http.Error(w, fmt.Sprint(response.Status, " ", err), http.StatusBadGateway)
		return
	}
	_ = page.Execute(w, strings.FieldsFunc(string(text), func(c rune) bool { return c == '\n' }))
}

func (s web) sign(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4*maxEntry)
	response, err := client.Post(s.write, "text/plain", strings.NewReader(r.PostFormValue("entry")))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxEntry))
		http.Error(w, string(text), response.StatusCode)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
