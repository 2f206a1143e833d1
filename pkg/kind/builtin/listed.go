package builtin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// listVerbs are the verbs of kinds that cannot be created.
var listVerbs = []string{"delete", "deletecollection", "get", "list", "watch"}

// listed returns the rows of kinds that have no controller yet. They cannot be created (405), but can be listed,
// watched and deleted, for clients that list all kinds: `kubectl apply --prune` would fail otherwise. They are in no
// category, so `kubectl get all` does not request them.
func listed() []*kind.Resource {
	volumes := row[corev1.PersistentVolume, corev1.PersistentVolumeList](gv("", "v1"), "persistentvolumes", "persistentvolume", persistentvolume.Strategy, metaFields)
	volumes.ShortNames = []string{"pv"}
	claims := row[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](gv("", "v1"), "persistentvolumeclaims", "persistentvolumeclaim", persistentvolumeclaim.Strategy, metaFields)
	claims.ShortNames = []string{"pvc"}
	volumes.ReturnsDeleted, claims.ReturnsDeleted = true, true
	rows := []*kind.Resource{volumes, claims}
	for _, r := range rows {
		r.Verbs = listVerbs
	}
	return rows
}
