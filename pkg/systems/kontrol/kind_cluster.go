package kontrol

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

func clusterKind(tunnels *pull.Hub) own.Kind {
	k := own.Declare(own.Definition[*kontrol.Cluster]{
		Kind: kontrol.GroupVersion.WithKind("Cluster"), Plural: "clusters", ShortNames: []string{"kcl"},
		Categories: categories, Cluster: true, Source: kontrol.Source,
		New:     func() *kontrol.Cluster { return &kontrol.Cluster{} },
		NewList: func() client.ObjectList { return &kontrol.ClusterList{} },
		Default: kontrol.DefaultCluster, Validate: kontrol.ValidateCluster,
		Columns: []own.Column[*kontrol.Cluster]{
			text("Ready", "Whether it answers, or why not", ".status.conditions[?(@.type=='Ready')].reason",
				func(c *kontrol.Cluster) any { return readyText(c) }),
			text("Version", "The version of its API server", ".status.version",
				func(c *kontrol.Cluster) any { return c.Status.Version }),
			{
				Name: "Last Seen", About: "Time since it answered last, up to 5 minutes too much while it is ready",
				Path: ".status.lastSeen", PathType: "date", Cell: func(c *kontrol.Cluster) any { return seenText(c) },
			},
			own.AgeColumn[*kontrol.Cluster](),
			wide(text("Server", "The address of its API server", ".status.server",
				func(c *kontrol.Cluster) any { return c.Status.Server })),
			messageColumn(".status.conditions[?(@.type=='Ready')].message", func(c *kontrol.Cluster) any {
				if r := meta.FindStatusCondition(c.Status.Conditions, kontrol.ConditionReady); r != nil {
					return r.Message
				}
				return ""
			}),
		},
		Schema: func(s *own.Schema) {
			own.Adjust(s, "metadata", own.WithNames(63, dnsLabel))
			own.Adjust(s, "spec",
				own.WithRule("(has(self.local) && self.local) != has(self.kubeconfigSecret)",
					"exactly one of local and kubeconfigSecret"))
			own.Adjust(s, "spec.kubeconfigSecret.key", own.WithDefault(kontrol.DefaultKey))
			own.Adjust(s, "spec.pull",
				own.WithRule("self == false",
					"agents connect to the API servers of Coracle alone: give kubeconfigSecret, or run the hub as coracle server "+
						"--no-node"))
		},
	}, func(c *kontrol.Cluster) *kontrol.ClusterStatus { return &c.Status })
	k.Row = tunnelled(tunnels, k.Row)
	return k
}

// readyText returns "True", or why the cluster is not ready.
func readyText(c *kontrol.Cluster) string {
	r := meta.FindStatusCondition(c.Status.Conditions, kontrol.ConditionReady)
	switch {
	case r == nil:
		return "Unknown"
	case r.Status == metav1.ConditionTrue:
		return "True"
	}
	return r.Reason
}

// seenText returns "now" for a ready cluster: status.lastSeen is up to 5 minutes old.
func seenText(c *kontrol.Cluster) string {
	if meta.IsStatusConditionTrue(c.Status.Conditions, kontrol.ConditionReady) {
		return "now"
	}
	return own.Ago(c.Status.LastSeen, "never")
}
