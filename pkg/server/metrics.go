package server

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// registries hold the metrics of the control plane, which the API server exposes, and of the node, which the agent
// exposes. They are separate so that scraping both, as Prometheus's usual configuration does, counts nothing twice.
type registries struct{ plane, node *prometheus.Registry }

func newRegistries() registries {
	r := registries{prometheus.NewRegistry(), prometheus.NewRegistry()}
	for _, reg := range []*prometheus.Registry{r.plane, r.node} {
		info := version.Info()
		reg.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubernetes_build_info",
				Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, " +
					"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
				ConstLabels: prometheus.Labels{
					"major": info.Major, "minor": info.Minor, "git_version": info.GitVersion, "git_commit": info.GitCommit,
					"git_tree_state": info.GitTreeState,
					"build_date":     info.BuildDate, "go_version": info.GoVersion, "compiler": info.Compiler,
					"platform": info.Platform,
				}}, func() float64 { return 1 }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "coracle_build_info", Help: "A metric with a constant '1' value labeled by the version of Coracle.",
				ConstLabels: prometheus.Labels{"version": version.Coracle},
			}, func() float64 { return 1 }),
		)
	}
	return r
}

func (l *plane) lagMetrics() {
	l.process.metrics.plane.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "coracle_cache_lag_revisions",
		Help: "Revisions in the store that readers of the cache do not see yet."}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		seen := l.cache.Revision()
		at, err := l.store.Revision(ctx)
		if err != nil {
			return 0
		}
		return float64(max(0, at-seen))
	}))
}

// resourceOf implements store.Config.Resource for the kinds in the catalog.
func resourceOf(kinds *kind.Catalog) func(string) (string, schema.GroupResource) {
	return func(key string) (string, schema.GroupResource) {
		for _, r := range kinds.Table().All() {
			if r.StoredAs == nil && r.Keys != "" && strings.HasPrefix(key, r.Prefix("")) {
				return r.Keys, r.GR()
			}
		}
		return "", schema.GroupResource{}
	}
}
