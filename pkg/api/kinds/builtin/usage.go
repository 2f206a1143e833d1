package builtin

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			Columns: usageColumns,
			Cells: func(m *metrics.NodeMetrics, _ time.Time) []any {
				return usageCells(m.Name, m.Usage, m.Window)
			},
		}, nil)),
		usageRow(own.Row[metrics.PodMetrics, struct{}](own.Definition[*metrics.PodMetrics]{
			Kind: metrics.SchemeGroupVersion.WithKind("PodMetrics"), Plural: "pods",
			New:     func() *metrics.PodMetrics { return &metrics.PodMetrics{} },
			NewList: func() client.ObjectList { return &metrics.PodMetricsList{} },
			Columns: usageColumns,
			Cells: func(m *metrics.PodMetrics, _ time.Time) []any {
				sum := corev1.ResourceList{}
				for _, c := range m.Containers {
					for name, q := range c.Usage {
						total := sum[name]
						total.Add(q)
						sum[name] = total
					}
				}
				return usageCells(m.Name, sum, m.Window)
			},
		}, nil)),
	}
}

func usageRow(r *kind.Resource) *kind.Resource {
	r.Singular, r.Verbs = "", []string{"get", "list"} // as in metrics-server's discovery
	r.Computed = true
	return r
}

func usageColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
		{Name: "cpu", Type: "string"}, {Name: "memory", Type: "string"},
		{Name: "Window", Type: "string", Format: "duration"},
	}
}

func usageCells(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	return []any{name, usage.Cpu().String(), usage.Memory().String(), window.Duration.Round(time.Millisecond).String()}
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
