package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// BundleColumns returns the columns of kubectl get bundles.
func BundleColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		name(), column("Objects", "How many objects it has"),
		column("Clusters", "The clusters in sync, of those that should have it"),
		column("Phase", "How far it is"), column("Wave", "The waves that all clusters have, of all"),
		column("Age", "Time since its creation"),
		wide("Source", "Where its objects are"), wide("Content", "Identifies the objects"),
		wide("Message", "What is wrong, and what to do"),
	}
}

// BundleCells returns a Bundle's values for BundleColumns.
func BundleCells(b *Bundle, now time.Time) []any {
	s := &b.Status
	return []any{
		b.Name, fmt.Sprint(s.Objects), fmt.Sprintf("%d/%d", s.Clusters.Synced, s.Clusters.Total), b.Phase(), b.WavesDone(),
		common.Age(b.CreationTimestamp.Time, now), b.Spec.Source.String(), s.Content, s.Message,
	}
}

// Phase returns the phase of a Bundle. It is Progressing until the latest generation has been observed.
func (b *Bundle) Phase() string {
	switch {
	case b.DeletionTimestamp != nil:
		return "Terminating"
	case b.Status.ObservedGeneration != b.Generation:
		return string(BundleProgressing)
	}
	return string(b.Status.Phase)
}

// WavesDone returns "done/all" for the waves that all clusters have completed.
func (b *Bundle) WavesDone() string {
	done := 0
	for _, w := range b.Status.Waves {
		if w.Clusters == b.Status.Clusters.Total {
			done++
		}
	}
	return fmt.Sprintf("%d/%d", done, len(b.Status.Waves))
}

// String describes the source.
func (s *BundleSource) String() string {
	switch {
	case s.ConfigMap != nil:
		return "configmap " + s.ConfigMap.Namespace + "/" + s.ConfigMap.Name
	case s.Artifact != nil:
		return s.Artifact.Reference
	}
	return "inline"
}
