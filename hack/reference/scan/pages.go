package scan

import (
	"fmt"
	"regexp"
	"strings"
)

// Pages are the pages of the manual that list what a scan finds, by file name.
func Pages(metrics []Metric, events []Event) map[string]string {
	return map[string]string{"metrics.md": metricsPage(metrics), "events.md": eventsPage(events)}
}

var verb = regexp.MustCompile(`%\.?[0-9]*[a-z]`)

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "%%", "%").Replace(verb.ReplaceAllString(text, "..."))
}

func metricsPage(all []Metric) string {
	var b strings.Builder
	b.WriteString(`# Metrics

` + "`/metrics`" + ` of the API server and of each node, without the metrics of Go, the process and client libraries. Names that
upstream has mean the same here. [monitor](monitor.md) says how to scrape them. This page is generated from the source.

| Metric | Meaning |
|---|---|
`)
	for _, m := range all {
		fmt.Fprintf(&b, "| `%s` | %s |\n", m.Name, cell(m.Help))
	}
	return b.String()
}

func eventsPage(all []Event) string {
	var b strings.Builder
	b.WriteString(`# Events

Reasons of the events that Coracle writes, with the constant part of the message. Upstream's reasons mean the same here.
` + "`coracle ctl events`" + ` lists events; they are kept for an hour. This page is generated from the source.

| Reason | Type | Message | Written by |
|---|---|---|---|
`)
	for _, e := range all {
		by := strings.TrimPrefix(strings.TrimPrefix(e.Package, "pkg/"), "control/controllers/")
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", e.Reason, e.Kind, cell(e.Message), by)
	}
	return b.String()
}
