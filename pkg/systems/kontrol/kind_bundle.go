package kontrol

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

func bundleKind() own.Kind {
	return own.Declare(own.Definition[*kontrol.Bundle]{
		Kind: kontrol.GroupVersion.WithKind("Bundle"), Plural: "bundles", ShortNames: []string{"kbu"},
		Categories: categories, Cluster: true, Source: kontrol.BundleSourceText,
		New:     func() *kontrol.Bundle { return &kontrol.Bundle{} },
		NewList: func() client.ObjectList { return &kontrol.BundleList{} },
		Default: kontrol.DefaultBundle, Validate: kontrol.ValidateBundle,
		Columns: []own.Column[*kontrol.Bundle]{
			number("Objects", "How many objects it has", ".status.objects",
				func(b *kontrol.Bundle) any { return b.Status.Objects }),
			elsewhere[*kontrol.Bundle]("Synced", "The clusters in sync", ".status.clusters.synced", "integer"),
			elsewhere[*kontrol.Bundle]("Clusters", "The clusters that should have it", ".status.clusters.total", "integer"),
			text("Clusters", "The clusters in sync, of those that should have it", "", func(b *kontrol.Bundle) any {
				return fmt.Sprintf("%d/%d", b.Status.Clusters.Synced, b.Status.Clusters.Total)
			}),
			text("Phase", "How far it is", ".status.phase", func(b *kontrol.Bundle) any { return b.Phase() }),
			text("Wave", "The waves that all clusters have, of all", "",
				func(b *kontrol.Bundle) any { return b.WavesDone() }),
			own.AgeColumn[*kontrol.Bundle](),
			wide(text("Source", "Where its objects are", "", func(b *kontrol.Bundle) any { return b.Spec.Source.String() })),
			wide(text("Content", "Identifies the objects", "", func(b *kontrol.Bundle) any { return b.Status.Content })),
			messageColumn(".status.message", func(b *kontrol.Bundle) any { return b.Status.Message }),
		},
		Schema: func(s *own.Schema) {
			own.Adjust(s, "metadata", own.WithNames(63, dnsLabel))
			commonSchema(s)
			own.Adjust(s, "spec.source",
				own.WithRule("[has(self.inline), has(self.configMap), has(self.artifact)].exists_one(x, x)",
					"exactly one of inline, configMap and artifact"))
			own.Adjust(s, "spec.source.artifact.pullSecret.key", own.WithDefault(kontrol.DockerConfigKey))
			own.Adjust(s, "spec.rollout", own.WithDefault(struct{}{}))
			own.Adjust(s, "spec.rollout.onFailure", own.OneOf(kontrol.FailureStop, kontrol.FailureContinue),
				own.WithDefault(kontrol.FailureStop))
			own.Adjust(s, "spec.rollout.approval", own.OneOf(kontrol.ApprovalNone, kontrol.ApprovalManual),
				own.WithDefault(kontrol.ApprovalNone))
			own.Adjust(s, "spec.rollout.maxUnavailable", own.WithDefault(1))
			own.Adjust(s, "spec.rollout.healthTimeout", own.WithDefault(metav1.Duration{Duration: kontrol.DefaultHealthTimeout}))
		},
	}, func(b *kontrol.Bundle) *kontrol.BundleStatus { return &b.Status })
}
