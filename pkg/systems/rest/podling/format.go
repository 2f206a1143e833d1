package podling

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// age formats a duration by its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// cores formats thousandths of cores.
func cores(milli int64) string {
	switch {
	case milli == 0:
		return "0"
	case milli < 1000:
		return fmt.Sprintf("%dm", milli)
	case milli%1000 == 0:
		return fmt.Sprint(milli / 1000)
	}
	return fmt.Sprintf("%.1f", float64(milli)/1000)
}

func size(n int64) string {
	for _, u := range []struct {
		name   string
		bytes  int64
		digits int
	}{{"Ti", 1 << 40, 1}, {"Gi", 1 << 30, 1}, {"Mi", 1 << 20, 0}, {"Ki", 1 << 10, 0}} {
		if n >= u.bytes {
			return fmt.Sprintf("%.*f%s", u.digits, float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprint(n)
}

// short truncates a text to a width.
func short(s string, width int) string {
	if len(s) <= width {
		return s
	}
	return s[:width-3] + "..."
}

// pairs writes key=value lines, sorted.
func pairs(w io.Writer, indent string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(w, "%s%s=%s\n", indent, k, m[k])
	}
}

func keyValues(what string, list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, pair := range list {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("invalid %s %q: it is not of the form key=value", what, pair)
		}
		m[k] = v
	}
	return m, nil
}

func table(w io.Writer, header string, rows func(line func(...any))) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, header)
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, c)
		}
		fmt.Fprintln(t)
	})
	return t.Flush()
}
