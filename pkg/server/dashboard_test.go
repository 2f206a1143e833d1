package server

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// In PromQL, a name followed by ( is a function; a name in {} or after "by" is a label.
	promLabels = regexp.MustCompile(`\{[^}]*\}|by \([^)]*\)|\[[^\]]*\]`)
	promNames  = regexp.MustCompile(`[a-z_]{4,}\b(\s*\()?`)
)

func queried(expr string) (names []string) {
	for _, m := range promNames.FindAllStringSubmatch(promLabels.ReplaceAllString(expr, " "), -1) {
		if m[1] == "" {
			names = append(names, m[0])
		}
	}
	return names
}

// TestTheDashboardAsksForWhatThereIs checks that a running server serves every metric that the dashboard queries.
func TestTheDashboardAsksForWhatThereIs(t *testing.T) {
	require.Equal(t, []string{"up_total", "down_bytes"},
		queried(`sum by (le, verb) (rate(up_total{code=~"5.."}[$__rate_interval])) / max(down_bytes)`))
	raw, err := os.ReadFile("../../manifests/grafana/coracle.json")
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &dashboard))
	l := startPlane(t)
	require.Equal(t, http.StatusOK, l.get(t, "/api/v1/pods", admin).Code)
	l.watchOnce(t)
	served := servedMetrics(t, l)
	ids, asked := map[int]bool{}, 0
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "%s has the ID of another panel", p.Title)
		ids[p.ID] = true
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, target := range p.Targets {
			names := queried(target.Expr)
			require.NotEmpty(t, names, target.Expr)
			for _, name := range names {
				asked++
				require.True(t, served[name], "%s: no server has %s", p.Title, name)
			}
		}
	}
	require.Greater(t, asked, 50)
}
