package builtin

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// usageRows returns the rows of metrics.k8s.io.
func usageRows() []*kind.Resource {
	return []*kind.Resource{
		usageRow(own.Row[metrics.NodeMetrics, struct{}](own.Definition[*metrics.NodeMetrics]{
			Kind: metrics.SchemeGroupVersion.WithKind("NodeMetrics"), Plural: "nodes", Cluster: true,
			New:     func() *metrics.NodeMetrics { return &metrics.NodeMetrics{} },
			NewList: func() client.ObjectList { return &metrics.NodeMetricsList{} },
			Columns: usageColumns(func(m *metrics.NodeMetrics) (corev1.ResourceList, time.Duration) {
				return m.Usage, m.Window.Duration
			}),
		}, nil)),
		usageRow(own.Row[metrics.PodMetrics, struct{}](own.Definition[*metrics.PodMetrics]{
			Kind: metrics.SchemeGroupVersion.WithKind("PodMetrics"), Plural: "pods",
			New:     func() *metrics.PodMetrics { return &metrics.PodMetrics{} },
			NewList: func() client.ObjectList { return &metrics.PodMetricsList{} },
			Columns: usageColumns(func(m *metrics.PodMetrics) (corev1.ResourceList, time.Duration) {
				sum := corev1.ResourceList{}
				for _, c := range m.Containers {
					for name, q := range c.Usage {
						total := sum[name]
						total.Add(q)
						sum[name] = total
					}
				}
				return sum, m.Window.Duration
			}),
		}, nil)),
	}
}

func usageRow(r *kind.Resource) *kind.Resource {
	r.Singular, r.Verbs = "", []string{"get", "list"} // as in metrics-server's discovery
	r.Computed = true
	return r
}

func usageColumns[P client.Object](usage func(P) (corev1.ResourceList, time.Duration)) []own.Column[P] {
	return []own.Column[P]{
		{Name: "cpu", Cell: func(o P) any { used, _ := usage(o); return used.Cpu() }},
		{Name: "memory", Cell: func(o P) any { used, _ := usage(o); return used.Memory() }},
		{Name: "Window", Format: "duration", Cell: func(o P) any {
			_, window := usage(o)
			return window.Round(time.Millisecond)
		}},
	}
}

// usageRole lets the roles view, edit and admin read metrics, like metrics-server's role of the same name.
func usageRole() client.Object {
	role := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:aggregated-metrics-reader"), Rules: []rbacv1.PolicyRule{
		{
			APIGroups: []string{metrics.GroupName},
			Resources: []string{"pods", "nodes"},
			Verbs:     []string{"get", "list", "watch"},
		},
	}}
	for _, to := range []string{"view", "edit", "admin"} {
		role.Labels[aggregateTo+to] = "true"
	}
	return role
}
